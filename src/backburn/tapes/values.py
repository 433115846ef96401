"""Conversion of operands: tensors, primitives, host arrays and numbers to primitives of the tape's backend."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from backburn.autodiff.graph import Tracked
from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.base.contexts import default_float
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, BackburnError, BackendMismatchError, DTypeError, ShapeError
from backburn.base.trees import flatten, tree_map
from backburn.ops.bodies.reductions import all_axes
from backburn.tensor.core.defaults import as_backend
from backburn.tensor.core.host import host_array

T = TypeVar("T")

#: The largest differences, relative to the largest element, at which a given value equals that of a tape.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def base_backend(backend: AnyBackend | str | None) -> Any:
    """The backend that computes a tape's gradients: ``backend``, or what it decorates if it is an autodiff backend.

    None means the default backend of the scope.
    """
    made: Any = as_backend(backend)
    return made.inner_backend if is_autodiff(made) else made


def primitive_of(x: Any) -> Any:
    """The primitive of a tensor; anything else unchanged."""
    return x if x.__class__ is Tracked else getattr(x, "primitive", x)


def is_host(x: Any) -> bool:
    """Whether ``x`` is an array in host memory, which its owner may change, or a scalar of its library."""
    return hasattr(x, "__array_interface__")


#: Converts a tree of primitives of a backend into the values that users receive.
HandOut: TypeAlias = Callable[[Any, AnyBackend], Any]


def as_copies(tree: Any, backend: AnyBackend) -> Any:
    """A tree of primitives for users: arrays in host memory are copied, since users may change them."""
    return tree_map(lambda x: x.copy() if is_host(x) else x, tree)


def index_of(x: Any) -> int | None:
    """``x`` as an index (of a slot, of a node); None when it is not an integer."""
    if x.__class__ is int:
        return int(x)
    if isinstance(x, bool) or getattr(x, "shape", ()) != ():
        return None
    try:
        return operator.index(x)
    except TypeError:  # floats, and 0-d float arrays, whose __index__ raises
        return None


def number_of(x: Any) -> float | None:
    """``x`` as a constant of an operation; None when it is not a number."""
    if isinstance(x, (bool, str, bytes)) or not hasattr(x, "__float__") or tuple(getattr(x, "shape", ())) != ():
        return None
    return float(x)


def dtype_at(k: Any, x: Any) -> DType | None:
    """The dtype of a primitive of ``k``; None for anything else."""
    try:
        dtype: DType = k.dtype(x)
    except Exception:
        return None
    return dtype


def on_backend(k: Any, x: Any, where: str) -> Any:
    """A primitive of any level around ``k``'s base, on ``k``: lifted as a constant, or detached from outer levels."""
    levels = [k]
    while dtype_at(levels[-1], x) is None:
        if not is_autodiff(levels[-1]):
            if x.__class__ is Tracked:
                return on_backend(k, x.value, where)
            raise BackendMismatchError(
                f"{where}: expected a tensor, a primitive of {k.spec}, a NumPy array or a float, not {type(x).__name__}"
            )
        levels.append(levels[-1].inner_backend)
    floats = dtype_at(levels[-1], x).has_gradient  # type: ignore[union-attr]
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
    try:
        return k.from_numpy(host_array(numbers, None, default_float(k)))
    except BackburnError as error:
        raise type(error)(f"{where}: {str(error).removeprefix('asarray: ')}") from error


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
    """``x`` as a float primitive of ``k``; integers and booleans are rejected."""
    made = as_primitive(k, x, where)
    dtype = k.dtype(made)
    if not dtype.has_gradient:
        raise DTypeError(f"{where}: gradients belong to floats, and this is {dtype}: cast it to a float dtype first")
    return made


def item(k: Any, x: Any) -> Any:
    """The only element of a primitive, as a Python number."""
    return k.to_numpy(x).item()


def is_close(k: Any, given: Any, stored: Any, size: Any = None) -> bool:
    """Whether two float primitives of one shape agree up to the rounding of their dtypes; NaN agrees with NaN.

    ``size`` (0-d) is the magnitude that the rounding is relative to: by default the largest element of ``stored``.
    """
    if 0 in given.shape:
        return True
    coarser = max((k.dtype(given), k.dtype(stored)), key=lambda d: TOLERANCES[d.name])
    a, b = (k.astype(x, coarser) for x in (given, stored))
    if size is None:
        size = largest(k, b)
    size = k.astype(size, coarser)
    near = k.less_equal(k.abs(k.sub(a, b)), k.mul(size, TOLERANCES[coarser.name]))
    same = k.logical_or(k.equal(a, b), k.logical_and(k.isnan(a), k.isnan(b)))
    apart = k.logical_not(k.logical_or(near, same))
    return not item(k, k.any(apart, all_axes(apart), False))


def largest(k: Any, x: Any) -> Any:
    """The largest absolute value of the finite elements, 0-d; the primitive must not be empty."""
    return k.max(k.where(k.isfinite(x), k.abs(x), 0.0), all_axes(x), False)


def shown(k: Any, x: Any) -> str:
    """``float32[2,3]``: dtype and shape for messages."""
    return f"{k.dtype(x)}[{','.join(map(str, x.shape))}]"


def check_alike(
    k: Any, given: Any, known: Any, what: str, than: str, advice: str = "", unlike: type[BackburnError] = ArgumentError
) -> None:
    """Raise unless two trees have the same form, and their leaves, primitives of ``k``, the same shapes and dtypes.

    ``what`` and ``than`` name the trees in messages; ``unlike`` is the error for trees of different forms.
    """
    (leaves, form), (others, wanted) = flatten(given), flatten(known)
    if form != wanted:
        raise unlike(f"{what} has another form than {than}")
    for a, b in zip(leaves, others, strict=True):
        if tuple(a.shape) != tuple(b.shape):
            raise ShapeError(f"{what} has shape {list(a.shape)}, another shape than {than}: {list(b.shape)}{advice}")
        if k.dtype(a) is not k.dtype(b):
            raise DTypeError(f"{what} is {k.dtype(a)}, and {than} {k.dtype(b)}{advice or ': cast it'}")
