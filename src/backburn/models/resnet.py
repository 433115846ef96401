"""ResNet: convolutions with residual connections.

After He et al., Deep Residual Learning for Image Recognition (2015). In a bottleneck, the 3 x 3 convolution halves the
image, unless ``downsample_in_bottleneck`` makes the first do so.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from backburn.models.attention import ACTIVATIONS
from backburn.models.configs import ResNetConfig
from backburn.models.pretrained import Pretrained
from backburn.nn import BatchNorm2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, Module, Sequential
from backburn.tensor.classes import FloatTensor, Tensor


class ConvLayer(Module):
    """A convolution, batch normalization, and an activation, if any."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, act: str | None = "relu") -> None:
        self.convolution = Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.normalization, self.act = BatchNorm2d(outputs), act

    def forward(self, x: Tensor) -> FloatTensor:
        y = self.normalization(self.convolution(x))
        return y if self.act is None else ACTIVATIONS[self.act](y)


class ResidualLayer(Module):
    """Convolutions whose result is added to their input, or if the shapes differ, to a convolution of it."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, stride: int) -> None:
        is_same = inputs == outputs and stride == 1
        self.shortcut = Identity() if is_same else ConvLayer(inputs, outputs, 1, stride, None)
        self.act = config.hidden_act
        if config.layer_type == "basic":
            self.layer = [ConvLayer(inputs, outputs, 3, stride), ConvLayer(outputs, outputs, act=None)]
            return
        width = outputs // 4
        first, second = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
        self.layer = [ConvLayer(inputs, width, 1, first), ConvLayer(width, width, 3, second)]
        self.layer.append(ConvLayer(width, outputs, 1, act=None))

    def forward(self, x: Any) -> Any:
        y = x
        for layer in self.layer:
            y = layer(y)
        return ACTIVATIONS[self.act](y + self.shortcut(x))


class Stage(Module):
    """Layers of one width; the first may halve the image."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, depth: int, stride: int) -> None:
        first = ResidualLayer(config, inputs, outputs, stride)
        self.layers = [first, *(ResidualLayer(config, outputs, outputs, 1) for _ in range(depth - 1))]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Stem(Module):
    """The first convolution, and pooling: each halves the image."""

    def __init__(self, config: ResNetConfig) -> None:
        self.embedder = ConvLayer(config.num_channels, config.embedding_size, 7, 2, config.hidden_act)
        self.pooler = MaxPool2d(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> FloatTensor:
        return self.pooler(self.embedder(x))


class Encoder(Module):
    """The stages."""

    def __init__(self, config: ResNetConfig) -> None:
        widths = [config.embedding_size, *config.hidden_sizes]
        strides = [2 if config.downsample_in_first_stage else 1] + [2] * (len(config.depths) - 1)
        parts = zip(widths, config.hidden_sizes, config.depths, strides, strict=False)
        self.stages = [Stage(config, *part) for part in parts]

    def forward(self, x: Any) -> Any:
        for stage in self.stages:
            x = stage(x)
        return x


class ResNetModel(Module):
    """The layers between an image and the head."""

    def __init__(self, config: ResNetConfig) -> None:
        self.embedder, self.encoder = Stem(config), Encoder(config)

    def forward(self, x: Tensor) -> Any:
        return self.encoder(self.embedder(x))


class ResNet(Pretrained):
    """A classifier of images (batch, channels, height, width); returns logits (batch, num_labels).

    Weights also load under torchvision's names: ``bb.io.load_weights(model, "resnet18.pth")``.

    >>> import backburn as bb
    >>> config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    >>> ResNet(config).eval()(bb.zeros((2, 3, 32, 32))).shape
    (2, 3)
    """

    ARCHITECTURES = MappingProxyType({"ResNetForImageClassification": ResNetConfig})

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.resnet = ResNetModel(config)
        self.classifier = Sequential(Flatten(), Linear(config.hidden_sizes[-1], len(config.id2label or ())))

    def forward(self, pixels: Tensor) -> FloatTensor:
        """The logits."""
        return self.classifier(self.resnet(pixels).mean((-2, -1)))

    def rename_weight(self, name: str) -> str:
        """The path of a published name, also of torchvision's."""
        name = re.sub(r"^fc\.", "classifier.1.", name)
        name = re.sub(r"^conv1\.", "resnet.embedder.embedder.convolution.", name)
        name = re.sub(r"^bn1\.", "resnet.embedder.embedder.normalization.", name)
        if (match := re.match(r"layer(\d{1,9})\.(\d{1,9})\.(conv|bn|downsample\.)(\d{1,9})\.(.+)", name)) is None:
            return name
        stage, layer, kind, number, rest = match.groups()
        place = f"resnet.encoder.stages.{int(stage) - 1}.layers.{layer}"
        if kind == "downsample.":
            return f"{place}.shortcut.{('convolution', 'normalization')[number == '1']}.{rest}"
        return f"{place}.layer.{int(number) - 1}.{'convolution' if kind == 'conv' else 'normalization'}.{rest}"
