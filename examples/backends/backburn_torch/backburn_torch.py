"""PyTorch as a backburn backend: ``"torch"`` is the CPU, ``"torch:1"`` is CUDA device 1.

PyTorch computes and backburn differentiates: no tensor here has ``requires_grad`` set.

    >>> k = TorchBackend()
    >>> k.add(torch.tensor([1.0, 2.0]), 1.0)
    tensor([2., 3.])
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from backburn.backend import Backend, Capabilities, adapters
from backburn.backend.adapters import Quantized, arange_length, take_quantized
from backburn.dtypes import STORAGES, DType, as_dtype, qint8
from backburn.errors import ArgumentError, BackendMismatchError, Unsupported

Array = torch.Tensor

# uint8 is PyTorch's only unsigned type with arithmetic.
NAMES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)
OURS = {getattr(torch, name): as_dtype(name) for name in NAMES}
THEIRS: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in OURS.items()}


adapters.follow(torch.set_num_threads)


class TorchBackend(Backend[Array, Array, Array, Quantized[Array]]):
    """PyTorch tensors on the CPU, on a CUDA device by number, or on any device by PyTorch's name for it."""

    def __init__(self, device: int | str | None = None) -> None:
        number = isinstance(device, int)
        self._spec = "torch" if device is None else f"torch:{device}" if number else f"torch(device={device})"
        self._device = torch.device("cpu" if device is None else f"cuda:{device}" if number else device)

    spec = property(lambda self: self._spec)
    device = property(lambda self: str(self._device))

    @property
    def capabilities(self) -> Capabilities:
        uses = {d: frozenset({"storage", "arithmetic"}) for d in THEIRS} | {qint8: frozenset({"storage"})}
        return Capabilities(uses, deterministic=self._device.type == "cpu", storages=frozenset(STORAGES))

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def dtype(self, x: Any, /) -> DType:
        if not isinstance(x, (Array, Quantized)):
            raise BackendMismatchError(f"{type(x).__name__} is not a primitive of the torch backend")
        return x.dtype if isinstance(x, Quantized) else OURS[x.dtype]

    # ---- from and to the host ----

    def from_numpy(self, array: Any) -> Array:
        wanted = theirs(as_dtype(array.dtype))
        own = np.array(array, array.dtype.newbyteorder("="), copy=True, order="C")  # PyTorch has no negative strides
        bits = own.view(np.int16) if wanted is torch.bfloat16 else own  # a dtype that NumPy lacks
        return torch.from_numpy(bits).view(wanted).to(self._device)

    def to_numpy(self, x: Any, /) -> Any:
        x = self.dequantize(x) if isinstance(x, Quantized) else x
        host = x.contiguous().to("cpu", copy=True)
        return host.view(torch.int16).numpy().view(OURS[x.dtype].dtype) if x.dtype is torch.bfloat16 else host.numpy()

    def full(self, shape: tuple[int, ...], value: float, dtype: DType) -> Array:
        # PyTorch raises for a number that overflows a narrow type, instead of giving infinity.
        wide = torch.float64 if dtype.is_floating else theirs(dtype)
        value = adapters.held(value, dtype)
        return torch.full((), value, dtype=wide, device=self._device).to(theirs(dtype)).expand(shape)

    def arange(self, start: float, stop: float, step: float, dtype: DType) -> Array:
        wide = torch.float64 if dtype.is_floating else torch.int64
        indices = torch.arange(arange_length(start, stop, step), dtype=wide, device=self._device)
        return (indices * step + start).to(theirs(dtype))

    # ---- where PyTorch differs ----

    def prod(self, x: Array, /, axis: tuple[int, ...], keepdims: bool = False) -> Array:
        result = functools.reduce(lambda y, a: y.prod(a, keepdims, dtype=y.dtype), reversed(axis), wide(x))
        return result.to(x.dtype)

    def argsort(self, x: Array, /, axis: int, descending: bool = False) -> Array:
        return torch.argsort(adapters.falling(self, x) if descending else x, dim=axis, stable=True)

    def slice(self, x: Array, /, key: tuple[slice, ...]) -> Array:
        forward, flipped = adapters.forwards(x.shape, key)
        return x[forward].flip(flipped) if flipped else x[forward]

    def slice_assign(self, x: Array, value: Any, /, key: tuple[slice, ...]) -> Array:
        forward, flipped = adapters.forwards(x.shape, key)
        result = x.clone(memory_format=torch.contiguous_format)
        target = result[forward]
        target.copy_(torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(target.shape).flip(flipped))
        return result

    def take(self, x: Array, indices: Array, /, axis: int) -> Array:
        entries = x.index_select(axis, adapters.from_start(self, indices, x.shape[axis]).reshape(-1))
        return entries.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Array, indices: Array, /, axis: int) -> Array:
        return x.gather(axis, adapters.from_start(self, indices, x.shape[axis]))

    def scatter(self, x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
        indices = adapters.from_start(self, indices, x.shape[axis])
        values = torch.as_tensor(values, dtype=x.dtype, device=x.device).expand(indices.shape)
        if mode == "add":
            return wide(x).scatter_add(axis, indices, wide(values)).to(x.dtype)
        if mode != "assign":
            raise ArgumentError(f"scatter: the mode is 'assign' or 'add', not {mode!r}")
        # With duplicate indices PyTorch's result is nondeterministic; the contract keeps the last value.
        numbers = torch.arange(1, indices.shape[axis] + 1, device=x.device).reshape(-1, *[1] * (x.ndim - 1 - axis))
        last = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
        last = last.scatter_reduce(axis, indices, numbers.expand(indices.shape), "amax")
        return torch.where(last > 0, values.gather(axis, (last - 1).clamp(min=0)), x) if indices.numel() else x

    def rfft(self, x: Array, /, axis: int) -> tuple[Array, Array]:
        if not x.numel():  # MKL raises for these
            nothing = x.new_zeros((*x.shape[:axis], x.shape[axis] // 2 + 1, *x.shape[axis + 1 :]))
            return nothing, nothing
        result = torch.fft.rfft(wide(x), dim=axis)
        return result.real.to(x.dtype), result.imag.to(x.dtype)

    def irfft(self, real: Array, imag: Array, /, length: int, axis: int) -> Array:
        if not real.numel():
            return real.new_zeros((*real.shape[:axis], length, *real.shape[axis + 1 :]))
        numbers = torch.complex(wide(real).contiguous(), wide(imag).contiguous())
        result: Array = torch.fft.irfft(numbers, length, dim=axis)
        return result.to(real.dtype)


def theirs(dtype: DType) -> torch.dtype:
    """PyTorch's dtype of that name."""
    if dtype not in THEIRS:
        raise Unsupported(f"the torch backend computes in {', '.join(NAMES)}, and not in {dtype}")
    return THEIRS[dtype]


def wide(x: Array) -> Array:
    """``x``, with 16-bit floats converted to float32 for accumulation."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


ALIKE = """abs neg sqrt exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh floor ceil round
    trunc isnan isinf logical_not where nonzero matmul real imag"""
OPERATORS = {  # with a Python scalar on either side
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "pow": "pow", "equal": "eq", "less": "lt",
    "less_equal": "le", "logical_and": "and_", "logical_or": "or_", "bitwise_and": "and_", "bitwise_or": "or_",
    "bitwise_xor": "xor", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift",
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ALIKE.split()},
    "bitwise_invert": torch.bitwise_not,
    "sign": lambda x, /: torch.where(x.isnan(), x, x.sign()),
    "astype": lambda x, /, dtype: x.to(theirs(dtype)),
    # Without axes PyTorch reduces over all of them.
    "sum": lambda x, /, axis, keepdims=False: x.sum(axis, keepdims, dtype=x.dtype) if axis else x,
    "max": lambda x, /, axis, keepdims=False: x.amax(axis, keepdims) if axis else x,
    "min": lambda x, /, axis, keepdims=False: x.amin(axis, keepdims) if axis else x,
    "any": lambda x, /, axis, keepdims=False: x.any(axis, keepdims) if axis else x,
    "all": lambda x, /, axis, keepdims=False: x.all(axis, keepdims) if axis else x,
    "argmax": lambda x, /, axis, keepdims=False: x.argmax(axis, keepdims),
    "argmin": lambda x, /, axis, keepdims=False: x.argmin(axis, keepdims),
    "reshape": lambda x, /, shape: x.reshape(shape),
    "broadcast_to": lambda x, /, shape: x.expand(shape),
    "permute_dims": lambda x, /, axes: x.permute(axes),
    "concat": lambda tensors, /, axis: torch.cat(list(tensors), axis),
}
BINARY = ("complex", "maximum", "minimum", "atan2", "nextafter")
LINALG: Any = torch.linalg
METHODS: dict[str, Callable[..., Any]] = {
    **{name: adapters.holding(getattr(operator, theirs)) for name, theirs in OPERATORS.items()},
    **{name: adapters.of_tensors(getattr(torch, name)) for name in BINARY},
    **adapters.decompositions(LINALG, LINALG.LinAlgError),
    "floor_divide": adapters.integral(operator.floordiv),
    "remainder": adapters.integral(operator.mod),
    # On CUDA, _int_mm needs more than 16 rows, and multiples of 8 for the other lengths.
    "quantized_matmul": adapters.integer_products(
        lambda x, y: None if x.is_cuda and (len(x) <= 16 or (x.shape[1] | y.shape[1]) % 8) else torch._int_mm(x, y)
    ),
    "cumulative_sum": adapters.scan(lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype)),
    "cumulative_prod": adapters.scan(lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype)),
}
for _name, _function in FUNCTIONS.items():
    setattr(TorchBackend, _name, staticmethod(_function))
for _name, _function in METHODS.items():
    setattr(TorchBackend, _name, _function)
adapters.check_shapes(TorchBackend, "concat", "take_along_axis", "scatter", "prod", "rfft", "irfft")
take_quantized(TorchBackend)
