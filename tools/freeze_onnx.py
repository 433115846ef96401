"""Exports small modules of PyTorch as ONNX files, with the outputs and gradients that PyTorch computes.

``python -m tools.freeze_onnx`` writes ``tests/onnx/data/NAME.onnx`` and ``NAME.npz`` for each module, or for those
named. It needs PyTorch with its newest exporter, onnx and onnxscript; the tests need only onnx. An array file has the
inputs (``input:0``), the output, a probe, and the gradients of ``sum(output * probe)`` by the names of the parameters
(``grad:NAME``). All parameters except those of ``fresh`` are random, so that none are equal by accident.
"""

from __future__ import annotations

import argparse
import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

FOLDER = Path(__file__).parents[1] / "tests" / "onnx" / "data"
LARGEST = 100_000


class Attention(nn.Module):
    """Causal attention as in GPT-2, with one product for queries, keys and values."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(size, 3 * size)
        self.c_proj = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        examples, steps, size = x.shape
        parts = self.c_attn(x).split(size, 2)
        q, k, v = (p.view(examples, steps, self.heads, size // self.heads).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(examples, steps, size))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(size), Attention(size, heads)
        self.ln_2 = nn.LayerNorm(size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU("tanh"), nn.Linear(2 * size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A language model whose head is tied to the embedding."""

    def __init__(self, tokens: int = 13, size: int = 8, steps: int = 12) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, size), nn.Embedding(steps, size)
        self.h = nn.ModuleList([Block(size, 2), Block(size, 2)])
        self.ln_f = nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, tokens, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = block(h)
        return self.lm_head(self.ln_f(h))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = Residual(4, 4, 1), Residual(4, 8, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = functional.adaptive_avg_pool2d(self.layer2(self.layer1(x)), 1)
        return self.fc(torch.flatten(x, 1))


class ViT(nn.Module):
    """A transformer of patches with a class token."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, size))
        self.block = Block(size, 2)
        self.head = nn.Linear(size, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        return self.head(self.block(x).mean(1))


class UNet(nn.Module):
    """A downsampling and an upsampling half, with group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(2, 8, 3, 2, 1), nn.GroupNorm(4, 8)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.norm(self.down(x)))
        y = self.up(functional.silu(self.middle(y)))
        return self.out(torch.cat([x, y], 1))


class Llama(nn.Module):
    """A block with rotary embeddings, RMS norms and a gated product."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, size)
        self.input_norm, self.post_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.q_proj, self.k_proj = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.v_proj, self.o_proj = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, 16, bias=False), nn.Linear(size, 16, bias=False)
        self.down = nn.Linear(16, size, bias=False)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, size, 2).float() / size), persistent=False)

    def _turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        steps = torch.arange(x.shape[1]).float()[:, None] * self.inv_freq
        angles = torch.cat([steps, steps], -1)
        cos, sin = angles.cos(), angles.sin()
        y = self.input_norm(h)
        q, k = self._turned(self.q_proj(y), cos, sin), self._turned(self.k_proj(y), cos, sin)
        scores = q @ k.transpose(1, 2) * 8**-0.5
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        h = h + self.o_proj(torch.softmax(scores + mask, -1) @ self.v_proj(y))
        y = self.post_norm(h)
        return h + self.down(functional.silu(self.gate(y)) * self.up(y))


class Recurrent(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(3, 4, batch_first=True, **options)
        self.head = nn.Linear(4 * (1 + options.get("bidirectional", False)), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


class FromState(nn.Module):
    """A plain recurrent layer with an initial state as input."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.rnn(x, h)[0]


class Encoder(nn.Module):
    """PyTorch's encoder layer, on embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.emb(x))


class Bags(nn.Module):
    """Sums of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 4, mode="sum")

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(x, offsets)


class Branch(nn.Module):
    """One of two layers, chosen by the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.a(x).tanh(), lambda x: self.b(x).sin(), (x,))


class Again(nn.Module):
    """A layer applied three times, in a loop of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        def going(i: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return i < 3

        def step(i: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, self.fc(h).tanh()

        return while_loop(going, step, (torch.tensor(0), x))[1]


class AgainUnrolled(Again):
    """The same without a loop, since PyTorch 2.13's gradient of while_loop differs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.fc(x).tanh()
        return x


class Scanned(nn.Module):
    """A running state over the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.scan import scan

        def step(state: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(state @ self.fc.weight.T + self.fc.bias + now)
            return state, state * 2.0

        return scan(step, torch.zeros_like(x[0]), x, dim=0)[1]


class ScannedUnrolled(Scanned):
    """The same without a scan."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros_like(x[0]), []
        for now in x:
            state = torch.tanh(state @ self.fc.weight.T + self.fc.bias + now)
            found.append(state * 2.0)
        return torch.stack(found)


class Detector(nn.Module):
    """Boxes of the best scores."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 4, 3, 2, 1)
        self.boxes, self.scores = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.backbone(x))
        boxes = self.boxes(h).flatten(2).transpose(1, 2).sigmoid()
        scores = self.scores(h).flatten(1).sigmoid()
        best, places = scores.topk(3)
        chosen = boxes.gather(1, places[..., None].expand(-1, -1, 4))
        return torch.where(best[..., None] > 0.2, chosen, torch.zeros_like(chosen)) * best[..., None]


class Mobile(nn.Module):
    """Depthwise convolutions, a gate of channels and hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.squeeze, self.excite = nn.Linear(6, 2), nn.Linear(2, 6)
        self.project = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.hardswish(self.depth(functional.hardswish(self.expand(x))))
        gate = functional.hardsigmoid(self.excite(functional.relu(self.squeeze(h.mean((2, 3))))))
        return self.project(h * gate[:, :, None, None])


class Resized(nn.Module):
    """Instance norm, an enlarged image and a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(2, affine=True)
        self.conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
        self.theta = nn.Parameter(torch.zeros(1, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.interpolate(self.conv(self.norm(x)), scale_factor=2.0, mode="bilinear", align_corners=False)
        grid = functional.affine_grid(self.theta.expand(x.shape[0], -1, -1), [x.shape[0], 2, 5, 5], align_corners=False)
        return functional.grid_sample(h, grid, align_corners=False)


class Einsums(nn.Module):
    """A product of three tensors, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, 5))
        self.scale = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,kij,bj->bk", x, self.weight, y) * self.scale.exp()


class Fresh(nn.Module):
    """Newly constructed layers, whose equal weights the exporter merges."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm2(self.fc(self.norm1(x)) + x)


class Signals(nn.Module):
    """Convolutions of one and three axes, with pools."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv1d(2, 4, 5, 2, 2), nn.Conv3d(1, 2, 2)
        self.slope = nn.PReLU(4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = functional.avg_pool1d(self.slope(self.one(x)), 2)
        return torch.cat([a.flatten(1), functional.max_pool3d(self.three(y), 2).flatten(1)], 1)


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def _as(kind: Callable[[], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """A function from a module to another one with the same parameters."""

    def made(module: nn.Module) -> nn.Module:
        other = kind()
        other.load_state_dict(module.state_dict())
        return other

    return made


def _fused(module: nn.Module) -> nn.Module:
    """A module with its batch norms folded into the convolutions, as by the exporter."""
    made = copy.deepcopy(module).eval()
    for part in list(made.modules()):
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("0", "1")):
            if isinstance(getattr(part, norm, None), nn.BatchNorm2d):
                setattr(part, conv, fuse_conv_bn_eval(getattr(part, conv), getattr(part, norm)))
                setattr(part, norm, nn.Identity())
    return made.requires_grad_(True)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ELU(), nn.Flatten(),
        nn.Linear(54, 3),
    )  # fmt: skip


#: For each module: its inputs, the axes of any length, and a function to the module for gradients, if it is another.
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...], Any, Any]] = {
    "mlp": (_mlp, (_floats(5, 4),), ({0: "n"},), None),
    "cnn": (_cnn, (_floats(2, 1, 8, 8),), ({0: "n"},), None),
    "resnet": (ResNet, (_floats(2, 3, 32, 32),), ({0: "n"},), _fused),
    "norms": (ResNet, (_floats(2, 3, 32, 32),), ({0: "n"},), None),
    "gpt": (GPT, (_ints(13, 2, 6),), ({0: "n", 1: "t"},), None),
    "vit": (ViT, (_floats(2, 3, 8, 8),), ({0: "n"},), None),
    "unet": (UNet, (_floats(2, 2, 8, 8),), ({0: "n"},), None),
    "llama": (Llama, (_ints(11, 2, 5),), ({0: "n", 1: "t"},), None),
    "encoder": (Encoder, (_ints(11, 2, 5),), ({0: "n", 1: "t"},), None),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (_floats(2, 5, 3),), None, None),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2), (_floats(2, 5, 3),), None, None),
    "rnn": (FromState, (_floats(2, 5, 3), _floats(1, 2, 4)), None, None),
    "bags": (Bags, (_ints(9, 7), torch.tensor([0, 2, 5])), None, None),
    "branch": (Branch, (_floats(2, 3),), None, None),
    "again": (Again, (_floats(2, 3),), None, _as(AgainUnrolled)),
    "scanned": (Scanned, (_floats(4, 2, 3),), None, _as(ScannedUnrolled)),
    "detector": (Detector, (_floats(2, 3, 8, 8),), ({0: "n"},), None),
    "mobile": (Mobile, (_floats(2, 3, 6, 6),), ({0: "n"},), None),
    "resized": (Resized, (_floats(2, 2, 6, 6),), ({0: "n"},), None),
    "einsums": (Einsums, (_floats(2, 3), _floats(2, 5)), None, None),
    "fresh": (Fresh, (_floats(2, 6),), ({0: "n"},), None),
    "signals": (Signals, (_floats(2, 2, 16), _floats(2, 1, 5, 5, 5)), None, None),
    "bfloat16": (lambda: _mlp().bfloat16(), (_floats(5, 4).bfloat16(),), ({0: "n"},), None),
}


def freeze(name: str) -> None:
    """Write the files of one module."""
    make, inputs, dynamic, reference_of = MODULES[name]
    torch.manual_seed(len(name))
    module = make()
    for path, parameter in module.named_parameters():
        if name != "fresh":
            torch.nn.init.normal_(parameter, std=0.5)
            if "norm" in path or "bn" in path or "ln_" in path:
                with torch.no_grad():
                    parameter.add_(1.0)
    for path, buffer in module.named_buffers():
        if path.endswith("running_mean"):
            buffer.normal_()
        elif path.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    module.eval()
    optimize = name != "norms"  # optimizing would fold its batch norms
    program = torch.onnx.export(module, inputs, dynamo=True, verbose=False, dynamic_shapes=dynamic, optimize=optimize)
    proto = program.model_proto
    strip(proto.graph)
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = proto.SerializeToString(deterministic=True)
    assert len(data) <= LARGEST, f"{name}: {len(data)} bytes"
    (FOLDER / f"{name}.onnx").write_bytes(data)
    reference = module if reference_of is None else reference_of(module)
    # Expected values are computed in float64, so that their own rounding errors do not matter.
    exact = reference if name == "bfloat16" else reference.double()
    given = [x.double() if x.is_floating_point() and name != "bfloat16" else x for x in inputs]
    output = exact(*given)
    probe = torch.randn(output.shape, dtype=output.dtype)
    (output * probe).sum().backward()
    arrays = {f"input:{i}": _array(x) for i, x in enumerate(inputs)}
    arrays |= {"output": _array(output), "probe": _array(probe)}
    arrays |= {f"grad:{path}": _array(p.grad) for path, p in exact.named_parameters() if p.grad is not None}
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    (FOLDER / f"{name}.npz").write_bytes(held.getvalue())
    print(f"{name}: {len(data)} bytes, {len(proto.graph.node)} nodes, {len(held.getvalue())} bytes of numbers")


def strip(graph: Any) -> None:
    """Remove the stack traces of nodes, which are most of a file and contain local paths."""
    graph.ClearField("value_info")
    for node in graph.node:
        kept = [x for x in node.metadata_props if not x.key.endswith("stack_trace")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                strip(attribute.g)


def _array(x: torch.Tensor) -> Any:
    x = x.detach()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()


def main() -> None:
    """Write the files of all modules, or of those on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MODULES))
    for name in parser.parse_args().names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            freeze(name)


if __name__ == "__main__":
    main()
