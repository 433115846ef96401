"""A stand-in for cuDNN's frontend: graphs of one convolution or attention, checked and computed by NumPy.

It has only the names that the backend uses, checks the order of calls and the alignment of operands as strictly as
cuDNN, and computes only from addresses, shapes and strides.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

__version__ = "1.22.1"

data_type = enum.Enum("data_type", "NOT_SET FLOAT DOUBLE HALF BFLOAT16 INT32 INT64 BOOLEAN")
heur_mode = enum.Enum("heur_mode", "A B FALLBACK OPENSOURCE")
numerical_note = enum.Enum(
    "numerical_note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD WINOGRAD_TILE_4x4 "
    "WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 STRICT_NAN_PROP",
)
NAMES = {"FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16"}
#: The workspace in bytes that every plan requests.
WORKSPACE = 96

#: Settings of tests: cuDNN's version (None: not installed), operations without a plan, whether handles can be created.
SETTINGS: dict[str, Any] = {"version": 91900, "refused": set(), "starts": True}


class cudnnGraphNotSupportedError(Exception):  # noqa: N801
    """No plan exists."""


class Call(NamedTuple):
    """A computation by cuDNN."""

    operation: str
    strides: dict[int, tuple[int, ...]]
    deselected: frozenset[str]
    options: dict[str, Any]
    has_bias: bool


#: Computations since the list was last emptied.
CALLS: list[Call] = []
_streams: dict[int, int] = {}


def backend_version() -> int:
    if SETTINGS["version"] is None:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")
    return int(SETTINGS["version"])


def create_handle() -> int:
    if not SETTINGS["starts"]:
        raise RuntimeError("cudnnHandle Create failed\nCUDNN_STATUS_NOT_INITIALIZED")
    handle = max(_streams, default=0) + 1
    _streams[handle] = -1
    return handle


def destroy_handle(handle: int) -> None:
    del _streams[handle]


def set_stream(handle: int, stream: int) -> None:
    _streams[handle] = stream


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Any = None, stride: Any = None, type: Any = None, uid: int = -1) -> None:
        self.dim, self.stride, self.type, self.uid = dim, stride, type, uid
        self.is_output = False

    def set_output(self, value: bool) -> Tensor:
        self.is_output = value
        return self

    def set_data_type(self, value: Any) -> Tensor:
        self.type = value
        return self

    def set_uid(self, value: int) -> Tensor:
        self.uid = value
        return self

    def set_dim(self, value: list[int]) -> Tensor:
        self.dim = value
        return self

    def set_stride(self, value: list[int]) -> Tensor:
        self.stride = value
        return self

    def at(self, addresses: dict[int, int]) -> Any:
        """The array at this tensor's address."""
        dtype = np.dtype(NAMES[self.type.name])
        address = addresses[self.uid]
        assert address % 16 == 0, f"operand {self.uid} begins at {address}"
        count = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        flat = np.frombuffer(memory, dtype)
        return as_strided(flat, self.dim, [s * dtype.itemsize for s in self.stride])


class pygraph:  # noqa: N801
    """A graph; the order of the calls that build it is checked."""

    def __init__(
        self, name: str = "", io_data_type: Any = None, intermediate_data_type: Any = None,
        compute_data_type: Any = None, handle: int | None = None,
    ) -> None:  # fmt: skip
        assert handle in _streams
        self.compute = compute_data_type
        assert intermediate_data_type is compute_data_type
        self.stage = 0
        self.tensors: list[Tensor] = []
        self.outs: list[Tensor] = []
        self.bias_of: Tensor | None = None
        self.deselected: frozenset[str] = frozenset()

    def tensor(self, dim: list[int], stride: list[int], data_type: Any, uid: int) -> Tensor:
        assert len(dim) == len(stride) >= 4
        assert all(type(n) is int and n > 0 for n in (*dim, *stride))
        assert uid not in [t.uid for t in self.tensors]
        self.tensors.append(Tensor(dim, stride, data_type, uid))
        return self.tensors[-1]

    # ---- operations ----

    def _node(self, operation: str, count: int, operands: dict[str, Tensor], **options: Any) -> list[Tensor]:
        assert not self.outs
        self.operation, self.operands, self.options = operation, operands, options
        self.outs = [Tensor() for _ in range(count)]
        return self.outs

    def conv_fprop(
        self, image: Tensor, weight: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        options = {"before": pre_padding, "after": post_padding, "stride": stride, "dilation": dilation}
        return self._node("conv_fprop", 1, {"x": image, "w": weight}, **options)[0]

    def conv_dgrad(
        self, loss: Tensor, filter: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        options = {"before": pre_padding, "after": post_padding, "stride": stride, "dilation": dilation}
        return self._node("conv_dgrad", 1, {"y": loss, "w": filter}, **options)[0]

    def conv_wgrad(
        self, image: Tensor, loss: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        options = {"before": pre_padding, "after": post_padding, "stride": stride, "dilation": dilation}
        return self._node("conv_wgrad", 1, {"x": image, "y": loss}, **options)[0]

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        assert [input] == self.outs
        self.bias_of, self.outs = bias, [Tensor()]
        return self.outs[0]

    def sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, is_inference: bool, attn_scale: float, use_causal_mask: bool
    ) -> list[Any]:
        options = {"scale": attn_scale, "causal": use_causal_mask}
        made = self._node("sdpa", 1 if is_inference else 2, {"q": q, "k": k, "v": v}, **options)
        return [*made, None] if is_inference else made

    def sdpa_backward(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor, stats: Tensor, attn_scale: float,
        use_causal_mask: bool, use_deterministic_algorithm: bool,
    ) -> list[Tensor]:  # fmt: skip
        operands = {"q": q, "k": k, "v": v, "o": o, "g": dO, "stats": stats}
        options = {"scale": attn_scale, "causal": use_causal_mask, "deterministic": use_deterministic_algorithm}
        return self._node("sdpa_backward", 3, operands, **options)

    # ---- building a plan ----

    def _advance(self, stage: int) -> None:
        assert self.stage == stage
        self.stage += 1

    def validate(self) -> None:
        self._advance(0)
        assert all(out.is_output and out.dim and out.stride and out.uid > 0 for out in self.outs)
        if self.operation.startswith("sdpa"):
            for operand in self.operands.values():
                assert operand.stride[3] == 1 or operand.dim[3] == 1
            if self.operands["q"].dim[3] % 8 or self.operands["v"].dim[3] % 8:
                raise cudnnGraphNotSupportedError("hidden_dim should be multiple of 8")

    def build_operation_graph(self) -> None:
        self._advance(1)

    def create_execution_plans(self, modes: list[Any]) -> None:
        self._advance(2)
        refused = SETTINGS["refused"]
        if self.operation in refused or (self.bias_of is not None and "bias" in refused):
            raise cudnnGraphNotSupportedError("No valid engine configs for\nit")
        if "broken" in refused:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        assert self.stage == 3
        self.deselected = frozenset(note.name for note in notes)

    def deselect_workspace_greater_than(self, size: int) -> None:
        assert self.stage == 3
        if size < WORKSPACE:
            raise cudnnGraphNotSupportedError("No valid engine configs")

    def check_support(self) -> None:
        self._advance(3)

    def build_plans(self) -> None:
        self._advance(4)

    def get_workspace_size(self) -> int:
        assert self.stage == 5
        return WORKSPACE

    # ---- computing ----

    def execute(self, addresses: dict[int, int], workspace: int, handle: int) -> None:
        assert self.stage == 5
        assert _streams[handle] == cupy.cuda.get_current_stream().ptr
        if "running" in SETTINGS["refused"]:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nmore of it")
        assert set(addresses) == {t.uid for t in (*self.tensors, *self.outs)}

        def compute() -> None:
            ctypes.memset(workspace, 0xA5, WORKSPACE)
            self._compute(addresses)

        compute()
        cupy.Tape.add(compute)
        strides = {t.uid: tuple(t.stride) for t in (*self.tensors, *self.outs)}
        CALLS.append(Call(self.operation, strides, self.deselected, self.options, self.bias_of is not None))

    def _compute(self, addresses: dict[int, int]) -> None:
        wide = np.float64 if self.compute is data_type.DOUBLE else np.float32
        operands = {name: t.at(addresses).astype(wide) for name, t in self.operands.items()}
        if self.operation.startswith("sdpa"):
            narrow = np.dtype(NAMES[self.operands["q"].type.name])
            made = ATTENTION[self.operation](narrow, **operands, **self.options)
        else:
            (out,) = self.outs
            made = (CONVOLUTIONS[self.operation](out.dim, **operands, **self.options),)
            if self.bias_of is not None:
                made = (made[0] + self.bias_of.at(addresses).astype(wide),)
        for out, values in zip(self.outs, made, strict=False):
            target = out.at(addresses)
            assert target.shape == values.shape, (self.operation, target.shape, values.shape)
            target[...] = values.astype(target.dtype)


def windows(x: Any, size: Any, before: Any, after: Any, stride: Any, dilation: Any) -> Any:
    """Every window of a padded input: (examples, channels, *windows, *size)."""
    rank = len(size)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    reach = [d * (n - 1) + 1 for n, d in zip(size, dilation, strict=True)]
    seen = sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    key = [slice(None, None, s) for s in stride] + [slice(None, None, d) for d in dilation]
    return seen[(slice(None), slice(None), *key)]


def _letters(rank: int) -> tuple[str, str]:
    return "xyz"[:rank], "uvw"[:rank]


def fprop(dim: Any, x: Any, w: Any, before: Any, after: Any, stride: Any, dilation: Any) -> Any:
    groups, (p, q) = x.shape[1] // w.shape[1], _letters(x.ndim - 2)
    seen = windows(x, w.shape[2:], before, after, stride, dilation)
    parts = [
        np.einsum(f"nc{p}{q},kc{q}->nk{p}", a, b)
        for a, b in zip(np.split(seen, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, 1)


def wgrad(dim: Any, x: Any, y: Any, before: Any, after: Any, stride: Any, dilation: Any) -> Any:
    groups, (p, q) = x.shape[1] // dim[1], _letters(x.ndim - 2)
    seen = windows(x, dim[2:], before, after, stride, dilation)
    parts = [
        np.einsum(f"nc{p}{q},nk{p}->kc{q}", a, b)
        for a, b in zip(np.split(seen, groups, 1), np.split(y, groups, 1), strict=True)
    ]
    return np.concatenate(parts, 0)


def dgrad(dim: Any, y: Any, w: Any, before: Any, after: Any, stride: Any, dilation: Any) -> Any:
    groups, (p, q) = dim[1] // w.shape[1], _letters(y.ndim - 2)
    padded = np.zeros((*dim[:2], *(n + a + b for n, a, b in zip(dim[2:], before, after, strict=True))), y.dtype)
    inner = np.s_[:, :] + tuple(slice(b, b + n) for b, n in zip(before, dim[2:], strict=True))
    # Windows are views; those of one group do not overlap other groups' channels.
    parts = np.split(y, groups, 1), np.split(w, groups, 0), np.split(padded, groups, 1)
    for of_y, of_w, target in zip(*parts, strict=True):
        spread = np.einsum(f"nk{p},kc{q}->nc{p}{q}", of_y, of_w)
        for at in np.ndindex(*w.shape[2:]):
            key = tuple(
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, n, s in zip(at, dilation, y.shape[2:], stride, strict=True)
            )
            target[(slice(None), slice(None), *key)] += spread[(..., *at)]
    return padded[inner]


def _weights(q: Any, k: Any, scale: float, causal: bool) -> tuple[Any, Any]:
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    top = scores.max(-1, keepdims=True)
    logarithm = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))
    return np.exp(scores - logarithm), logarithm


def attention(narrow: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> tuple[Any, Any]:
    weights, logarithm = _weights(q, k, scale, causal)
    return weights.astype(narrow).astype(q.dtype) @ v, logarithm


def attention_backward(
    narrow: Any, q: Any, k: Any, v: Any, o: Any, g: Any, stats: Any, scale: float, causal: bool, deterministic: bool
) -> tuple[Any, Any, Any]:
    def rounded(x: Any) -> Any:
        return x.astype(narrow).astype(q.dtype)

    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    weights = np.exp(scores - stats)
    of_weights = g @ v.swapaxes(-1, -2)
    of_scores = rounded(weights * (of_weights - (g * o).sum(-1, keepdims=True)) * scale)
    return of_scores @ k, of_scores.swapaxes(-1, -2) @ q, rounded(weights).swapaxes(-1, -2) @ g


CONVOLUTIONS: dict[str, Any] = {"conv_fprop": fprop, "conv_dgrad": dgrad, "conv_wgrad": wgrad}
ATTENTION: dict[str, Any] = {"sdpa": attention, "sdpa_backward": attention_backward}
