"""U-Net of diffusion models: predicts the noise in an image, given the step at which it was added.

Blocks of residual convolutions halve the image and double it again; each block on the way up also gets the results of
the block of its size on the way down. After Ronneberger et al. (2015), and Ho et al., Denoising Diffusion Probabilistic
Models (2020). Names and options are those of diffusers' ``UNet2DModel``.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from backburn.base.dtypes import float32
from backburn.models.attention import ACTIVATIONS
from backburn.models.configs import UNetConfig
from backburn.models.pretrained import Pretrained
from backburn.models.unet_blocks import ResnetBlock, Sampler, SpatialAttention
from backburn.nn import Conv2d, GroupNorm, Linear, Module, functional
from backburn.tensor import elementwise, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor

#: Names of attention in older files.
_OLDER = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}


class Block(Module):
    """Residual blocks with these numbers of input channels, each optionally followed by attention."""

    def __init__(self, config: UNetConfig, inputs: list[int], outputs: int, has_attention: bool) -> None:
        self.resnets = [ResnetBlock(config, n, outputs) for n in inputs]
        self.attentions = [SpatialAttention(config, outputs) for _ in inputs if has_attention]
        self.downsamplers: list[Sampler] = []
        self.upsamplers: list[Sampler] = []

    def forward(self, x: Any, step: Any, skipped: list[Any], goes_up: bool) -> Any:
        for i, block in enumerate(self.resnets):
            x = block(shape.concat([x, skipped.pop()], axis=-3) if goes_up else x, step)
            x = self.attentions[i](x) if self.attentions else x
            if not goes_up:
                skipped.append(x)
        for sampler in (*self.downsamplers, *self.upsamplers):
            x = sampler(x)
            if not goes_up:
                skipped.append(x)
        return x


class MiddleBlock(Module):
    """Attention between two residual blocks."""

    def __init__(self, config: UNetConfig, channels: int) -> None:
        self.resnets = [ResnetBlock(config, channels, channels) for _ in range(2)]
        self.attentions = [SpatialAttention(config, channels)] if config.add_attention else []

    def forward(self, x: Any, step: Any) -> Any:
        x = self.resnets[0](x, step)
        for attention in self.attentions:
            x = attention(x)
        return self.resnets[1](x, step)


class TimestepEmbedding(Module):
    """Two linear layers for the sines and cosines of a step."""

    def __init__(self, inputs: int, outputs: int, act: str) -> None:
        self.linear_1, self.linear_2, self.act = Linear(inputs, outputs), Linear(outputs, outputs), act

    def forward(self, x: Tensor) -> FloatTensor:
        return self.linear_2(ACTIVATIONS[self.act](self.linear_1(x)))


class UNet(Pretrained):
    """The noise in images (batch, in_channels, height, width), as (batch, out_channels, height, width).

    Called with the images and ``timestep``: a number, or one for each image. Height and width must be divisible by 2
    for each block but the last.

    >>> import backburn as bb
    >>> config = UNetConfig(block_out_channels=[8, 16], down_block_types=["DownBlock2D", "AttnDownBlock2D"],
    ...                     up_block_types=["AttnUpBlock2D", "UpBlock2D"], layers_per_block=1, norm_num_groups=4)
    >>> UNet(config)(bb.zeros((2, 3, 8, 8)), 10).shape
    (2, 3, 8, 8)
    """

    ARCHITECTURES = MappingProxyType({"UNet2DModel": UNetConfig})
    WEIGHTS = "diffusion_pytorch_model.safetensors"
    NAME_KEY = "_class_name"

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        widths, count, last = config.block_out_channels, config.layers_per_block, len(config.block_out_channels) - 1
        self.conv_in = Conv2d(config.in_channels, widths[0], 3, padding=1)
        self.time_embedding = TimestepEmbedding(widths[0], 4 * widths[0], config.act_fn)
        self.down_blocks: list[Block] = []
        before = widths[0]
        for i, (kind, width) in enumerate(zip(config.down_block_types, widths, strict=True)):
            block = Block(config, [before] + [width] * (count - 1), width, kind.startswith("Attn"))
            block.downsamplers = [Sampler(width, True, config.downsample_padding)] if i < last else []
            self.down_blocks.append(block)
            before = width
        self.mid_block = MiddleBlock(config, before)
        self.up_blocks: list[Block] = []
        for i, (kind, width) in enumerate(zip(config.up_block_types, widths[::-1], strict=True)):
            skipped = [width] * count + [widths[max(last - i - 1, 0)]]
            inputs = [n + m for n, m in zip([before] + [width] * count, skipped, strict=True)]
            block = Block(config, inputs, width, kind.startswith("Attn"))
            block.upsamplers = [Sampler(width, False)] if i < last else []
            self.up_blocks.append(block)
            before = width
        self.conv_norm_out = GroupNorm(config.norm_num_groups, widths[0], config.norm_eps)
        self.conv_out = Conv2d(widths[0], config.out_channels, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor | float) -> FloatTensor:
        """The noise. Raises :class:`ShapeError` for images that cannot be halved so often."""
        x: Any = self.conv_in(sample * 2.0 - 1.0 if self.config.center_input_sample else sample)
        step = self.time_embedding(self._waves(timestep, x))
        skipped = [x]
        for block in self.down_blocks:
            x = block(x, step, skipped, False)
        x = self.mid_block(x, step)
        for block in self.up_blocks:
            x = block(x, step, skipped, True)
        return self.conv_out(functional.silu(self.conv_norm_out(x)))

    def _waves(self, timestep: Any, like: Any) -> Any:
        """Sines and cosines of a step, of wavelengths from 2 pi to 10,000 times that."""
        half = self.config.block_out_channels[0] // 2
        given = timestep if is_tensor(timestep) else asarray(float(timestep), backend=like.backend)
        rates = [math.exp(-math.log(10000) * i / (half - self.config.freq_shift)) for i in range(half)]
        angles = cast(given, float32)[..., None] * asarray(rates, dtype=float32, backend=like.backend)
        waves = [elementwise.cos(angles), elementwise.sin(angles)]
        joint: Any = shape.concat(waves if self.config.flip_sin_to_cos else waves[::-1], axis=-1)
        return cast(joint, like.dtype)

    def rename_weight(self, name: str) -> str:
        """The path of a published name; older files name attention differently."""
        for older, newer in _OLDER.items():
            name = name.replace(f"{older}", newer) if ".attentions." in name else name
        return name
