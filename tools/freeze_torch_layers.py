"""Stores results of PyTorch's layers as expected values of `tests/nn/test_torch_layers.py`; needs torch.

    python tools/freeze_torch_layers.py

Each case is a layer that PyTorch and backburn have, constructed with the same arguments. The file has its state dict,
its inputs, and for both modes its outputs, the gradients of inputs and parameters, and the buffers after the call.
Parameters and inputs are multiples of 1 / 128, which are exact in float16. Everything is computed in float64, and
results are stored in float32. Cases are small, and the file has few arrays, since each costs 300 bytes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

TARGET = Path(__file__).parent.parent / "tests" / "nn" / "torch_layers.npz"

CASES: list[dict[str, Any]] = []


def case(
    layer: str,
    *arguments: Any,
    inputs: list[Any],
    ours: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    call: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Add a case: a layer constructed with ``arguments`` and ``options``, and its inputs, by shape or by value.

    ``ours`` and ``theirs`` are options that only one library has, ``call`` those of our layer's call.
    """
    CASES.append(
        {
            "layer": layer,
            "arguments": arguments,
            "options": options,
            "ours": ours or {},
            "theirs": theirs or {},
            "inputs": inputs,
            "call": call or {},
        }
    )


IDS = np.array([[1, 2, 5, 0], [3, 2, 0, 0]])
#: The lengths of an input with one, two and three spatial axes.
PLACES: dict[int, tuple[int, ...]] = {1: (7,), 2: (5, 4), 3: (3, 4, 3)}
X2, X3, X4 = (3, 4), (2, 3, 5), (2, 3, 4, 3)

for name in (
    "Identity", "ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid",
    "LogSigmoid", "Softplus", "Softsign", "Hardsigmoid", "Hardswish", "Hardtanh", "Hardshrink", "Softshrink",
    "Tanhshrink", "PReLU",
):  # fmt: skip
    case(name, inputs=[X3])
for name in ("ReLU6", "Hardswish", "Hardsigmoid"):
    case(name, inputs=[np.array([-7.0, -3.5, 2.5, 3.5, 7.5])])
case("LeakyReLU", 0.2, inputs=[X2])
case("ELU", 0.5, inputs=[X2])
case("CELU", 0.5, inputs=[X2])
case("GELU", "tanh", inputs=[X2])
case("Softplus", 2.0, inputs=[X2])
case("Hardtanh", -0.3, 0.2, inputs=[X2])
case("Hardshrink", 0.2, inputs=[X2])
case("Softshrink", 0.2, inputs=[X2])
case("Threshold", 0.1, -3.0, inputs=[X2])
case("PReLU", 3, 0.5, inputs=[X3])
for name in ("GLU", "Softmax", "LogSoftmax", "Softmin"):
    case(name, 1, inputs=[(2, 4, 3)])
case("Flatten", inputs=[X4])
case("Flatten", 0, -2, inputs=[X4])
case("Unflatten", 1, (2, -1), inputs=[(3, 6, 2)])
for name in ("Dropout", "Dropout1d", "AlphaDropout"):
    case(name, 0.0, inputs=[X3])
case("Dropout2d", 0.0, inputs=[X4])
case("Dropout3d", 0.0, inputs=[(1, 2, 2, 2, 2)])

case("LayerNorm", 4, inputs=[X2])
case("LayerNorm", (4, 3), 1e-2, bias=False, inputs=[X4])
case("LayerNorm", 4, elementwise_affine=False, inputs=[X2])
case("RMSNorm", 4, inputs=[X2])
case("RMSNorm", (4, 3), 1e-2, False, inputs=[X4])
case("GroupNorm", 2, 6, inputs=[(2, 6, 3)])
case("GroupNorm", 1, 3, 1e-2, False, inputs=[X4])
case("LocalResponseNorm", 2, 0.5, 0.6, 1.5, inputs=[X4])
case("BatchNorm1d", 4, inputs=[X2])
case("BatchNorm1d", 3, 1e-2, None, inputs=[X3])
case("BatchNorm2d", 3, affine=False, inputs=[X4])
case("BatchNorm2d", 3, track_running_stats=False, inputs=[X4])
case("BatchNorm3d", 2, momentum=0.25, inputs=[(2, 2, 2, 3, 2)])
case("InstanceNorm1d", 3, inputs=[X3])
case("InstanceNorm2d", 3, 1e-2, affine=True, inputs=[X4])
case("InstanceNorm3d", 2, inputs=[(2, 2, 2, 3, 2)])

for rank, places in PLACES.items():
    case(f"Conv{rank}d", 2, 3, 2, inputs=[(2, 2, *places)])
    case(f"Conv{rank}d", 4, 2, 3, 2, 1, 1, 2, False, inputs=[(1, 4, *places)])
    case(f"ConvTranspose{rank}d", 2, 3, 2, inputs=[(1, 2, *places[:rank])])
    case(f"ConvTranspose{rank}d", 4, 2, 2, 2, 1, 1, 2, False, inputs=[(1, 4, *places)])
    case(f"MaxPool{rank}d", 2, inputs=[(1, 2, *places)])
    case(f"MaxPool{rank}d", 3, 2, 1, ceil_mode=True, inputs=[(1, 2, *places)])
    case(f"AvgPool{rank}d", 2, inputs=[(1, 2, *places)])
    case(f"AvgPool{rank}d", 3, 2, 1, True, False, inputs=[(1, 2, *places)])
    case(f"LPPool{rank}d", 2, 2, inputs=[(1, 2, *places)])
    case(f"LPPool{rank}d", 2, 2, ceil_mode=True, inputs=[(1, 2, *places)])
    case(f"AdaptiveAvgPool{rank}d", 2, inputs=[(1, 2, *places)])
    case(f"AdaptiveMaxPool{rank}d", 2, inputs=[(1, 2, *places)])
case("MaxPool2d", 2, return_indices=True, inputs=[(1, 2, 5, 4)])
case("AdaptiveMaxPool2d", (2, 3), return_indices=True, inputs=[(1, 2, 5, 4)])
case("MaxUnpool1d", 2, inputs=[(1, 2, 2), np.array([[[1, 2], [0, 3]]])])
case("MaxUnpool2d", 2, inputs=[(1, 1, 1, 2), np.array([[[[1, 6]]]])])
case("MaxUnpool3d", 2, inputs=[(1, 1, 1, 1, 1), np.array([[[[[5]]]]])])
case("Conv2d", 2, 3, (3, 2), padding="same", dilation=2, inputs=[(1, 2, 5, 4)])
for mode in ("reflect", "replicate", "circular"):
    case("Conv2d", 2, 2, 3, padding=(1, 2), padding_mode=mode, inputs=[(1, 2, 5, 4)])
case("Conv1d", 2, 2, 4, padding="same", padding_mode="circular", inputs=[(1, 2, 7)])
case("Upsample", scale_factor=2, inputs=[(1, 2, 3)])
case("Upsample", (4, 5), mode="bilinear", inputs=[(1, 2, 3, 3)])
case("Upsample", (4, 5), mode="bilinear", align_corners=True, inputs=[(1, 2, 3, 3)])
case("Embedding", 6, 3, inputs=[IDS])
case("Embedding", 6, 3, 0, inputs=[IDS])
for mode in ("mean", "sum", "max"):
    case("EmbeddingBag", 6, 3, mode=mode, padding_idx=0, inputs=[IDS])

case("Linear", 4, 3, inputs=[(2, 3, 4)])
case("Linear", 3, 3, False, inputs=[(2, 3)])
case("Bilinear", 3, 4, 2, inputs=[(5, 3), (5, 4)])
for name, states in (("RNN", 1), ("LSTM", 2), ("GRU", 1)):
    first: list[Any] = [(1, 2, 4)] * states
    case(name, 3, 4, inputs=[(3, 2, 3)])
    case(name, 3, 4, bias=False, batch_first=True, inputs=[(2, 3, 3)])
    case(name, 3, 4, inputs=[(3, 2, 3), first])
    case(name, 2, 3, 2, bidirectional=True, inputs=[(3, 2, 2)])
    case(f"{name}Cell", 3, 4, inputs=[(2, 3)])
    case(f"{name}Cell", 4, 4, False, inputs=[(2, 4), [(2, 4)] * states])
case("RNN", 3, 4, 2, nonlinearity="relu", inputs=[(3, 2, 3)])
case("RNNCell", 3, 4, nonlinearity="relu", inputs=[(2, 3)])
case("LSTM", 3, 4, 2, bidirectional=True, proj_size=2, inputs=[(3, 2, 3)])

SEEN = np.arange(15).reshape(3, 5) % 4 != 1
LATER = np.tril(np.ones((3, 3), dtype=bool))
#: PyTorch's layers have the sequence first by default.
BATCH_FIRST = {"batch_first": True}
attention: dict[str, Any] = {"theirs": BATCH_FIRST}
case("MultiheadAttention", 4, 2, inputs=[(2, 3, 4)], **attention)
case("MultiheadAttention", 4, 2, bias=False, inputs=[(2, 3, 4), (2, 5, 4)], **attention)
case("MultiheadAttention", 4, 2, kdim=3, vdim=5, inputs=[(2, 3, 4), (2, 5, 3), (2, 5, 5)], **attention)
case("MultiheadAttention", 4, 2, inputs=[(2, 3, 4), (2, 5, 4)], call={"mask": SEEN}, **attention)
case("MultiheadAttention", 4, 2, inputs=[(2, 3, 4)], call={"is_causal": True}, **attention)
for norm_first in (False, True):
    for activation in ("relu", "gelu"):
        options = {"norm_first": norm_first, "activation": activation, **attention}
        case("TransformerEncoderLayer", 4, 2, 6, 0.0, inputs=[(2, 3, 4)], **options)
    options = {"norm_first": norm_first, **attention}
    case("TransformerDecoderLayer", 4, 2, 6, 0.0, inputs=[(2, 3, 4), (2, 5, 4)], call={"is_causal": True}, **options)
case("TransformerEncoderLayer", 4, 2, 6, 0.0, bias=False, inputs=[(2, 3, 4)], call={"is_causal": True}, **attention)
case(
    "TransformerDecoderLayer", 4, 2, 6, 0.0, bias=False, inputs=[(2, 3, 4), (2, 5, 4)], call={"memory_mask": SEEN},
    **attention,
)  # fmt: skip


def called(layer: str, module: Any, inputs: list[Any], options: dict[str, Any]) -> Any:
    """The result of a module of torch, whose masks are True at positions that are ignored."""
    seen = {name: torch.from_numpy(~value) for name, value in options.items() if isinstance(value, np.ndarray)}
    later = torch.from_numpy(~LATER) if options.get("is_causal") else None
    if layer == "MultiheadAttention":
        query, key, value = (*inputs, *inputs[-1:] * (3 - len(inputs)))
        return module(query, key, value, need_weights=False, attn_mask=seen.get("mask", later))[0]
    if layer == "TransformerEncoderLayer":
        return module(*inputs, src_mask=later)
    if layer == "TransformerDecoderLayer":
        return module(*inputs, tgt_mask=later, memory_mask=seen.get("memory_mask"))
    if layer.startswith("LSTM") and len(inputs) == 2:
        return module(inputs[0], tuple(inputs[1]))
    if layer.startswith(("RNN", "GRU")) and len(inputs) == 2:
        return module(inputs[0], inputs[1][0])
    return module(*inputs)


class Store:
    """Arrays in the order in which they are read back, in one flat array per dtype, and their shapes in JSON."""

    def __init__(self) -> None:
        self.flat: dict[str, list[Any]] = {"float16": [], "float32": [], "int64": []}

    def put(self, value: Any, dtype: str) -> list[int]:
        """Append an array, and return its shape."""
        array = np.asarray(value)
        self.flat[dtype].append(array.astype(dtype).ravel())
        return list(array.shape)


def flattened(result: Any) -> list[Any]:
    """The tensors of a nested tuple."""
    return [x for part in result for x in flattened(part)] if isinstance(result, (tuple, list)) else [result]


def distinct(generator: Any, shape: tuple[int, ...], step: int) -> Any:
    """Multiples of 1 / 128, at least ``step`` of them apart: no ties, and none at a kink of an activation."""
    size = math.prod(shape)
    first = generator.permutation(max(size, 96))[:size]
    return (first * 2 - max(size, 96) // 2 * 2 + 1).reshape(shape) * step / 128


def frozen(number: int, row: dict[str, Any], store: Store) -> dict[str, Any]:
    """One case as JSON; its arrays are added to ``store``."""
    generator = np.random.default_rng(number)
    layer = row["layer"]
    module = getattr(torch.nn, layer)(*row["arguments"], **row["options"], **row["theirs"]).double()
    state = {}
    for name, x in module.state_dict().items():
        if x.dtype is torch.int64:
            state[name] = torch.tensor(3)
        else:
            odd = distinct(generator, tuple(x.shape), 1)
            state[name] = torch.from_numpy(np.abs(odd) + 0.5 if name == "running_var" else odd)
    given = [
        x if isinstance(x, np.ndarray) else [distinct(generator, s, 5) for s in x] if isinstance(x, list) else
        distinct(generator, x, 5)
        for x in row["inputs"]
    ]  # fmt: skip

    def kept(x: Any) -> Any:
        if isinstance(x, list):
            return [kept(part) for part in x]
        kind = "int64" if x.dtype.kind == "i" else "float16"
        return {"dtype": kind, "shape": store.put(x, kind)}

    made: dict[str, Any] = {name: row[name] for name in ("layer", "arguments", "options", "ours", "theirs")}
    made["state"] = {name: kept(x.numpy()) for name, x in state.items()}
    made["inputs"] = [kept(x) for x in given]
    made["call"] = {n: x.tolist() if isinstance(x, np.ndarray) else x for n, x in row["call"].items()}
    found = []
    for training in (True, False):
        module.load_state_dict(state)
        module.train(training).zero_grad()
        tensors = [
            [torch.from_numpy(p).requires_grad_() for p in x] if isinstance(x, list)
            else torch.from_numpy(x.copy()).requires_grad_(x.dtype.kind == "f")
            for x in given
        ]  # fmt: skip
        results = flattened(called(layer, module, tensors, row["call"]))
        floats = [y for y in results if y.is_floating_point()]
        sum((y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)).sum() for y in floats).backward()
        found.append(
            {
                "outputs": [y.detach().numpy() for y in results],
                "grad_inputs": [x.grad.numpy() for x in flattened(tensors) if x.is_floating_point()],
                "grad_parameters": {name: p.grad.numpy() for name, p in module.named_parameters()},
                "buffers": {name: x.numpy().copy() for name, x in module.named_buffers()},
            }
        )
    same = all(
        np.array_equal(a, b)
        for a, b in zip(*([*f["outputs"], *f["grad_inputs"], *f["grad_parameters"].values(), *f["buffers"].values()]
                          for f in found), strict=True)
    )  # fmt: skip
    made["modes"] = [
        {
            "outputs": [
                {"dtype": kind, "shape": store.put(y, kind)}
                for y in one["outputs"]
                for kind in ("int64" if y.dtype.kind == "i" else "float32",)
            ],
            "grad_inputs": [store.put(g, "float32") for g in one["grad_inputs"]],
            "grad_parameters": {name: store.put(g, "float32") for name, g in one["grad_parameters"].items()},
            "buffers": {name: store.put(x, "float32") for name, x in one["buffers"].items()},
        }
        for one in (found[:1] if same else found)
    ]
    return made


def main() -> None:
    """Write the file."""
    store = Store()
    cases = [frozen(number, row, store) for number, row in enumerate(CASES)]
    arrays = {name: np.concatenate(parts) for name, parts in store.flat.items()}
    text = np.frombuffer(json.dumps(cases, separators=(",", ":")).encode(), dtype=np.uint8)
    np.savez_compressed(TARGET, cases=text, **arrays)
    print(f"{len(cases)} cases, {TARGET.stat().st_size:,} bytes: {TARGET}")


if __name__ == "__main__":
    main()
