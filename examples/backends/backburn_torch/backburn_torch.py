"""PyTorch as a backend of backburn: ``"torch"`` is the CPU, ``"torch:1"`` the CUDA device 1.

PyTorch computes and backburn differentiates: no tensor here requires a gradient of PyTorch's.

    >>> k = TorchBackend()
    >>> k.add(torch.tensor([1.0, 2.0]), 1.0)
    tensor([2., 3.])
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from backburn.backend import Backend, Capabilities
from backburn.backend.create import arange_length
from backburn.backend.scalars import both_tensors
from backburn.base.dtypes import DType, QuantizedDType, as_dtype, float32, qint8
from backburn.base.errors import ArgumentError, BackendMismatchError, NumericalInstabilityError, Unsupported

Array = torch.Tensor
Shape = tuple[int, ...]
Key = tuple[slice, ...]

# Of PyTorch's unsigned types only uint8 has arithmetic.
NAMES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
OURS = {getattr(torch, name): as_dtype(name) for name in NAMES}
THEIRS: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in OURS.items()}


@dataclass(frozen=True, eq=False)
class Quantized:
    """Integers, and the step that one of them stands for."""

    values: Array
    scale: Array
    dtype: QuantizedDType
    shape = property(lambda self: self.values.shape)


class TorchBackend(Backend[Array, Array, Array, Quantized]):
    """Tensors of PyTorch on the CPU, on the CUDA device of a number, or on any other device by PyTorch's name."""

    def __init__(self, device: int | str | None = None) -> None:
        number = isinstance(device, int)
        self._spec = "torch" if device is None else f"torch:{device}" if number else f"torch(device={device})"
        self._device = torch.device("cpu" if device is None else f"cuda:{device}" if number else device)

    spec = property(lambda self: self._spec)
    device = property(lambda self: str(self._device))

    @property
    def capabilities(self) -> Capabilities:
        uses = {dtype: frozenset({"storage", "arithmetic"}) for dtype in THEIRS}
        return Capabilities({**uses, qint8: frozenset({"storage"})}, deterministic=self._device.type == "cpu")

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def dtype(self, x: Any, /) -> DType:
        if not isinstance(x, (Array, Quantized)):
            raise BackendMismatchError(f"{type(x).__name__} is no primitive of the torch backend")
        return x.dtype if isinstance(x, Quantized) else OURS[x.dtype]

    # ---- from and to the host ----

    def from_numpy(self, array: Any) -> Array:
        wanted = theirs(as_dtype(array.dtype))
        own = np.array(array, array.dtype.newbyteorder("="), copy=True, order="C")  # PyTorch has no negative strides
        bits = own.view(np.int16) if wanted is torch.bfloat16 else own  # a dtype that NumPy has not of itself
        return torch.from_numpy(bits).view(wanted).to(self._device)

    def to_numpy(self, x: Any, /) -> Any:
        x = self.dequantize(x) if isinstance(x, Quantized) else x
        host = x.contiguous().to("cpu", copy=True)
        return host.view(torch.int16).numpy().view(OURS[x.dtype].dtype) if x.dtype is torch.bfloat16 else host.numpy()

    def full(self, shape: Shape, value: float, dtype: DType) -> Array:
        # PyTorch refuses a number that overflows a narrow type, where an infinity is meant.
        wide = torch.float64 if dtype.kind == "float" else theirs(dtype)
        return torch.full((), value, dtype=wide, device=self._device).to(theirs(dtype)).expand(shape)

    def arange(self, start: float, stop: float, step: float, dtype: DType) -> Array:
        wide = torch.float64 if dtype.kind == "float" else torch.int64
        places = torch.arange(arange_length(start, stop, step), dtype=wide, device=self._device)
        return (places * step + start).to(theirs(dtype))

    def quantize(self, x: Array, /, dtype: QuantizedDType = qint8) -> Quantized:
        step = (x.abs().amax().double() / 127).float() if x.numel() else x.new_zeros((), dtype=torch.float32)
        if not step.isfinite():
            raise NumericalInstabilityError("quantize: NaN and infinite values have no place on the scale")
        step = torch.where(step > 0, step, 1.0)
        return Quantized((x.double() / step.double()).round().clamp(-127, 127).to(torch.int8), step, dtype)

    # ---- where PyTorch differs ----

    def prod(self, x: Array, /, axis: Shape, keepdims: bool = False) -> Array:
        result = wide(x)
        for a in reversed(axis):
            result = result.prod(a, keepdims, dtype=result.dtype)
        return result.to(x.dtype)

    def argsort(self, x: Array, /, axis: int, descending: bool = False) -> Array:
        # PyTorch's descending order has NaN first; the rising order of negatives has it last.
        negative = torch.neg if x.is_floating_point() else torch.bitwise_not
        return torch.argsort(negative(x) if descending else x, dim=axis, stable=True)

    def slice(self, x: Array, /, key: Key) -> Array:
        places, turned = forwards(x.shape, key)
        return x[places].flip(turned) if turned else x[places]

    def slice_assign(self, x: Array, value: Any, /, key: Key) -> Array:
        places, turned = forwards(x.shape, key)
        result = x.clone(memory_format=torch.contiguous_format)
        target = result[places]
        target.copy_(torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(target.shape).flip(turned))
        return result

    def take(self, x: Array, indices: Array, /, axis: int) -> Array:
        entries = x.index_select(axis, from_start(indices, x.shape[axis]).reshape(-1))
        return entries.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def scatter(self, x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
        indices = from_start(indices, x.shape[axis])
        values = torch.as_tensor(values, dtype=x.dtype, device=x.device).expand(indices.shape)
        if mode == "add":
            return wide(x).scatter_add(axis, indices, wide(values)).to(x.dtype)
        if mode != "assign":
            raise ArgumentError(f"scatter: the mode is 'assign' or 'add', not {mode!r}")
        # PyTorch leaves to chance which of several values for one place stays: the one with the highest number.
        numbers = torch.arange(1, indices.shape[axis] + 1, device=x.device).reshape(-1, *[1] * (x.ndim - 1 - axis))
        last = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
        last = last.scatter_reduce(axis, indices, numbers.expand(indices.shape), "amax")
        return torch.where(last > 0, values.gather(axis, (last - 1).clamp(min=0)), x) if indices.numel() else x


def theirs(dtype: DType) -> torch.dtype:
    """PyTorch's dtype of the same name."""
    if dtype not in THEIRS:
        raise Unsupported(f"the torch backend computes in {', '.join(NAMES)}, and not in {dtype}")
    return THEIRS[dtype]


def wide(x: Array) -> Array:
    """``x`` itself, or a 16-bit float in float32, in which many are added up."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def of_tensors(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """A function of two tensors, of which we may have a Python scalar in the place of one."""
    return lambda k, x, y, /: function(*both_tensors(k, x, y))


def integral(divide: Callable[[Any, Any], Array]) -> Callable[..., Array]:
    """A quotient or remainder that is 0 for an integer divisor of 0, where PyTorch raises."""
    safe = lambda x, y: torch.where(y == 0, 0, divide(x, torch.where(y == 0, 1, y)))  # noqa: E731
    return of_tensors(lambda x, y: divide(x, y) if x.is_floating_point() else safe(x, y))


def forwards(shape: Shape, key: Key) -> tuple[Key, list[int]]:
    """``key`` with positive steps, which are all that PyTorch has, and the axes to turn around."""
    places = [range(*s.indices(n)) for s, n in zip(key, shape, strict=True)]
    turned = [axis for axis, place in enumerate(places) if place.step < 0]
    places = [place[::-1] if place.step < 0 else place for place in places]
    return tuple(slice(p.start, max(p.start, p.stop), p.step) for p in places), turned


def from_start(indices: Array, length: int) -> Array:
    """Indices in int64 from 0 on; PyTorch refuses what is out of range, and what is negative still."""
    indices = indices.long()
    return torch.where(indices < 0, indices + length, indices)


def scan(function: Callable[..., Any], x: Array, axis: int, reverse: bool) -> Array:
    """A running result from either end."""
    ends = [axis] if reverse else []
    running: Array = function(wide(x).flip(ends), axis, dtype=wide(x).dtype)
    return running.flip(ends).to(x.dtype)


def moved(x: Any, move: Callable[[Array], Array]) -> Any:
    """The elements moved, those of a quantized tensor too."""
    return replace(x, values=move(x.values)) if isinstance(x, Quantized) else move(x)


ALIKE = """abs neg sqrt exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh floor ceil round
    trunc isnan isinf logical_not where nonzero matmul"""
OPERATORS = {  # These take a Python scalar on either side.
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "pow": "pow", "equal": "eq", "less": "lt",
    "less_equal": "le", "logical_and": "and_", "logical_or": "or_", "bitwise_and": "and_", "bitwise_or": "or_",
    "bitwise_xor": "xor", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift",
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ALIKE.split()},
    **{name: getattr(operator, theirs) for name, theirs in OPERATORS.items()},
    "bitwise_invert": torch.bitwise_not,
    "sign": lambda x, /: torch.where(x.isnan(), x, x.sign()),
    "cast": lambda x, /, dtype: x.to(theirs(dtype)),
    "dequantize": lambda x, /, dtype=float32: (x.values * x.scale.double()).to(theirs(dtype)),
    # Without axes PyTorch reduces over all of them.
    "sum": lambda x, /, axis, keepdims=False: x.sum(axis, keepdims, dtype=x.dtype) if axis else x,
    "max": lambda x, /, axis, keepdims=False: x.amax(axis, keepdims) if axis else x,
    "min": lambda x, /, axis, keepdims=False: x.amin(axis, keepdims) if axis else x,
    "any": lambda x, /, axis, keepdims=False: x.any(axis, keepdims) if axis else x,
    "all": lambda x, /, axis, keepdims=False: x.all(axis, keepdims) if axis else x,
    "argmax": lambda x, /, axis, keepdims=False: x.argmax(axis, keepdims),
    "argmin": lambda x, /, axis, keepdims=False: x.argmin(axis, keepdims),
    "cumsum": lambda x, /, axis, reverse=False: scan(torch.cumsum, x, axis, reverse),
    "cumprod": lambda x, /, axis, reverse=False: scan(torch.cumprod, x, axis, reverse),
    "reshape": lambda x, /, shape: moved(x, lambda v: v.reshape(shape)),
    "broadcast_to": lambda x, /, shape: moved(x, lambda v: v.expand(shape)),
    "permute_dims": lambda x, /, axes: moved(x, lambda v: v.permute(axes)),
    "concat": lambda tensors, /, axis: torch.cat(list(tensors), axis),
    "gather": lambda x, indices, /, axis: x.gather(axis, from_start(indices, x.shape[axis])),
}
METHODS = {
    **{name: of_tensors(getattr(torch, name)) for name in ("maximum", "minimum", "atan2", "nextafter")},
    "floor_divide": integral(operator.floordiv),
    "remainder": integral(operator.mod),
    **{name: staticmethod(function) for name, function in FUNCTIONS.items()},
}
for _name, _method in METHODS.items():
    setattr(TorchBackend, _name, _method)
