"""What the tapes take: tensors, primitives, host arrays and numbers, as float primitives of one backend."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from copy import copy
from typing import Any, TypeVar

from backburn.autodiff.graph import Tracked
from backburn.backend.contract import AnyBackend, is_autodiff, is_backend
from backburn.backend.quantized import LARGEST
from backburn.backend.registry import load_backend
from backburn.backend.totals import axes_of
from backburn.base.contexts import DEFAULT_BACKEND, default_float
from backburn.base.dtypes import DType, int64
from backburn.base.dtypes import bool_ as truth
from backburn.base.errors import ArgumentError, BackburnError, BackendMismatchError, DTypeError, SpecError
from backburn.base.quiet import quietly

T = TypeVar("T")

#: How far a value that is handed in may be from the one that a tape holds, relative to the largest of them.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def base_backend(backend: AnyBackend | str | None) -> Any:
    """The backend that computes a tape's gradients: ``backend``, or what it decorates if it is an autodiff backend.

    None means the default backend of the scope.
    """
    if backend is None:
        backend = DEFAULT_BACKEND.get() or os.environ.get("BACKBURN_BACKEND") or "autodiff(numpy)"
    if isinstance(backend, str):
        backend = load_backend(backend)
    if not is_backend(backend):
        raise SpecError(f"{backend!r} is neither a backend nor an expression such as 'autodiff(numpy)'")
    made: Any = backend
    return made.inner_backend if is_autodiff(made) else made


def primitive_of(x: Any) -> Any:
    """The primitive of a tensor; anything else as it is."""
    return x if x.__class__ is Tracked else getattr(x, "primitive", x)


def is_host(x: Any) -> bool:
    """Whether ``x`` is an array in host memory, which its owner may change, or one of its scalars."""
    return hasattr(x, "__array_interface__")


def handed_out(x: Any) -> Any:
    """A primitive to give away: an array in host memory, which its new owner may change, is copied."""
    return x.copy() if is_host(x) else x


def index_of(x: Any) -> int | None:
    """``x`` as an index (of a slot, of a node); None when it is not an integer."""
    if x.__class__ is int:
        return int(x)
    if isinstance(x, bool) or not hasattr(x, "__index__") or getattr(x, "shape", ()) != ():
        return None
    try:
        return x.__index__()
    except TypeError:  # a 0-d float array has the method and refuses
        return None


def number_of(x: Any) -> float | None:
    """``x`` as a constant of an operation; None when it is not a number."""
    if isinstance(x, (bool, str, bytes)) or not hasattr(x, "__float__") or tuple(getattr(x, "shape", ())) != ():
        return None
    return float(x)


def dtype_at(k: Any, x: Any) -> DType | None:
    """The dtype of a primitive of ``k``; None for what is none."""
    try:
        dtype: DType = k.dtype(x)
    except Exception:
        return None
    return dtype


def on_backend(k: Any, x: Any, where: str) -> Any:
    """A primitive of any level around ``k``'s base, on ``k``: lifted as a constant, or without its outer history."""
    levels = [k]
    while dtype_at(levels[-1], x) is None:
        if not is_autodiff(levels[-1]):
            if x.__class__ is Tracked:
                return on_backend(k, x.value, where)
            raise BackendMismatchError(
                f"{where}: expected a tensor, a primitive of {k.spec}, a NumPy array or a float, not {type(x).__name__}"
            )
        levels.append(levels[-1].inner_backend)
    floats = dtype_at(levels[-1], x).kind == "float"  # type: ignore[union-attr]
    for level in reversed(levels[:-1]):
        x = level.from_inner(x) if floats else x
    return x


def is_numbers(x: Any) -> bool:
    """Whether ``x`` is a list or tuple of numbers, nested or not, which stands for an array."""
    if x.__class__ not in (list, tuple):
        return False
    return all(isinstance(v, (int, float)) or is_numbers(v) for v in x)


def from_numbers(k: Any, numbers: Any, where: str) -> Any:
    """Nested lists of numbers as a primitive of ``k``: floats of the default dtype, else int64 or bool."""
    shape, flat = [], [numbers]
    while any(v.__class__ in (list, tuple) for v in flat):
        sizes = {len(v) if v.__class__ in (list, tuple) else None for v in flat}
        if len(sizes) > 1:
            raise ArgumentError(f"{where}: the nested lists do not form an array: their lengths differ")
        shape.append(sizes.pop())
        flat = [v for part in flat for v in part]
    kinds = {bool if isinstance(v, bool) else float if isinstance(v, float) else int for v in flat}
    dtype = default_float(k) if not kinds or float in kinds else truth if kinds == {bool} else int64
    if dtype.kind == "float":
        top = LARGEST.get(dtype.name, math.inf)
        flat = [v if -top <= v <= top or v != v else v * math.inf for v in flat]
    made = k.to_numpy(k.zeros((len(flat),), dtype))
    try:
        made[...] = flat
    except OverflowError:
        raise ArgumentError(f"{where}: an integer is beyond the 64 bits of int64; write it as a float") from None
    return k.reshape(k.from_numpy(made), tuple(shape))


def as_primitive(k: Any, x: Any, where: str) -> Any:
    """``x`` as a primitive of ``k``, of any kind but quantized.

    Host arrays are copied and keep their dtype; nested lists of numbers are arrays.
    """
    if is_numbers(x):
        return from_numbers(k, x, where)
    x = primitive_of(x)
    if is_host(x):
        try:
            return k.from_numpy(x)
        except BackburnError as error:
            raise type(error)(f"{where}: {error}") from error
    if isinstance(x, float):
        return k.full((), x, default_float(k))
    if isinstance(x, int):
        raise DTypeError(f"{where}: gradients belong to floats, and {x!r} is not a float: write {float(x)}")
    return on_backend(k, x, where)


def as_float(k: Any, x: Any, where: str) -> Any:
    """``x`` as a float primitive of ``k``; integers and booleans are refused."""
    made = as_primitive(k, x, where)
    dtype = k.dtype(made)
    if dtype.kind != "float":
        raise DTypeError(f"{where}: gradients belong to floats, and this is {dtype}: cast it to a float dtype first")
    return made


def own_state(recorded: T) -> T:
    """A copy of a tape or graph whose lists, maps and sets are its own; what they hold never changes."""
    made = type(recorded).__new__(type(recorded))
    for name, value in vars(recorded).items():
        setattr(made, name, copy(value) if isinstance(value, (list, dict, set)) else value)
    return made


def item(k: Any, x: Any) -> Any:
    """The only element of a primitive, as a Python number."""
    return k.to_numpy(x).item()


def is_close(k: Any, given: Any, stored: Any, size: Any = None) -> bool:
    """Whether two float primitives of one shape agree up to the rounding of their dtypes; NaN agrees with NaN.

    ``size`` is a 0-d primitive of what the rounding is relative to: by default the largest element of ``stored``.
    """
    if 0 in given.shape:
        return True
    coarser = max((k.dtype(given), k.dtype(stored)), key=lambda d: TOLERANCES[d.name])
    a, b = (quietly(k, k.cast, x, coarser) for x in (given, stored))
    if size is None:
        size = largest(k, b)
    size = quietly(k, k.cast, size, coarser)
    near = k.less_equal(k.abs(quietly(k, k.sub, a, b)), k.mul(size, TOLERANCES[coarser.name]))
    same = k.logical_or(k.equal(a, b), k.logical_and(k.isnan(a), k.isnan(b)))
    apart = k.logical_not(k.logical_or(near, same))
    return not item(k, k.any(apart, axes_of(apart), False))


def largest(k: Any, x: Any) -> Any:
    """The size of the largest finite element of a primitive that has any elements, 0-d."""
    return k.max(k.where(k.isfinite(x), k.abs(x), 0.0), axes_of(x), False)


def all_finite(k: Any, tensors: Sequence[Any]) -> list[bool]:
    """Whether each float primitive is free of NaN and infinities, asked of the device at once.

    What is asked is whether any is there: of a backend without values, where every answer is no, there is none.
    """
    flags = [k.any(k.logical_not(k.isfinite(x)), axes_of(x), False) for x in tensors]
    return [not flag.item() for flag in k.to_numpy_many(flags)]


def shown(k: Any, x: Any) -> str:
    """``float32[2,3]``: dtype and shape for messages."""
    return f"{k.dtype(x)}[{','.join(map(str, x.shape))}]"
