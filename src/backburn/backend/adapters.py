"""Helpers for backends over other array libraries, many of which differ from the contract in the same way.

Each function takes the backend, ``k``, or returns a method of one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from backburn.base.dtypes import DType, float32, int64
from backburn.base.errors import LinearAlgebraError, OutOfRangeError, SingularMatrixError
from backburn.base.threads import follow
from backburn.ops.bodies import decompositions as decompose
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.bodies.quantized_moves import take_quantized
from backburn.ops.bodies.reductions import all_axes, all_true
from backburn.ops.bodies.scalars import both_tensors, is_scalar
from backburn.ops.creation import arange_length
from backburn.ops.quantized_products import Multiply, product
from backburn.ops.table import OPERATIONS, Operation

__all__ = [
    "Quantized", "arange_length", "check_shapes", "decompositions", "falling", "follow", "forwards", "from_start",
    "held", "holding", "ignore_warnings", "integer_products", "integral", "of_tensors", "scan", "take_quantized",
]  # fmt: skip

Method = Callable[..., Any]
Shape = tuple[int, ...]
Key = tuple[slice, ...]

#: The packages that have called :func:`ignore_warnings`.
PACKAGES: set[str] = set()


def ignore_warnings(package: str) -> None:
    """Ignore RuntimeWarnings that point to the modules of a package; called by a backend's package when it is imported.

    The conformance suite then ignores them even if a test runner has reset the warning filters, as pytest does for each
    test. If a program later turns all warnings into errors, the backend must handle them itself.
    """
    PACKAGES.add(package)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{re.escape(package)}(\.|$)")


def of_tensors(function: Callable[[Any, Any], Any]) -> Method:
    """Make a method from a function of two tensors that does not accept Python scalars."""
    return lambda k, x, y, /: function(*both_tensors(k, x, y))


def held(number: Any, dtype: DType) -> Any:
    """``number``; raises OverflowError for an integer that ``dtype`` cannot hold, which a library might wrap."""
    if dtype.kind == "int" and isinstance(number, int):
        low = 0 if dtype.name.startswith("u") else -(1 << (dtype.bits - 1))
        if not low <= number < low + (1 << dtype.bits):
            raise OverflowError(f"the integer {number} is out of bounds for {dtype}")
    return number


def holding(function: Callable[[Any, Any], Any]) -> Method:
    """Make a method from a binary function that would wrap a Python integer out of range: the method raises."""

    def method(k: Any, x: Any, y: Any, /) -> Any:
        if is_scalar(x):
            held(x, k.dtype(y))
        elif is_scalar(y):
            held(y, k.dtype(x))
        return function(x, y)

    return method


def integral(divide: Callable[[Any, Any], Any]) -> Method:
    """Make a method from a quotient or remainder; an integer divided by 0 gives 0, whatever ``divide`` does."""

    def method(k: Any, x: Any, y: Any, /) -> Any:
        x, y = both_tensors(k, x, y)
        if k.dtype(x).is_floating:
            return divide(x, y)
        zero = k.equal(y, 0)
        return k.where(zero, 0, divide(x, k.where(zero, 1, y)))

    return method


def scan(function: Callable[[Any, int], Any]) -> Method:
    """Make a method from a cumulative function, for both directions; 16-bit floats are computed in float32."""

    def method(k: Any, x: Any, /, axis: int, reverse: bool = False) -> Any:
        wide = upcast_half(k, x)
        running = function(k.flip(wide, (axis,)) if reverse else wide, axis)
        return k.astype(k.flip(running, (axis,)) if reverse else running, k.dtype(x))

    return method


def integer_products(multiply: Multiply) -> Method:
    """Make ``quantized_matmul`` from a library's product of int8 matrices, accumulated in int32."""

    def method(k: Any, x: Any, y: Any, /, dtype: DType = float32, transposed: bool = False) -> Any:
        return product(k, x, y, dtype, transposed, multiply)

    return method


def check_shapes(backend: type, *names: str) -> None:
    """Make operations of a class check shapes first, for a library that accepts shapes that the contract refuses."""
    for name in names:
        setattr(backend, name, _checked(OPERATIONS[name], backend.__dict__[name]))


def _checked(operation: Operation, implementation: Any) -> Method:
    count = len(operation.operands)

    def method(k: Any, /, *given: Any, **attributes: Any) -> Any:
        named = {**dict(zip(operation.attributes, given[count:], strict=False)), **attributes}
        operation.result_shape(given[:count], named)
        return implementation.__get__(k, type(k))(*given, **attributes)

    return method


def falling(k: Any, x: Any) -> Any:
    """Values that sort ascending as ``x`` sorts descending: NaN is last, and equal elements keep their order."""
    kind = k.dtype(x).kind
    return k.neg(x) if kind == "float" else k.bitwise_invert(x) if kind == "int" else k.logical_not(x)


def forwards(shape: Shape, key: Key) -> tuple[Key, tuple[int, ...]]:
    """``key`` with positive steps, for libraries that support no others, and the axes to flip afterwards.

    >>> forwards((5, 3), (slice(4, None, -2), slice(0, 3, 1)))
    ((slice(0, 5, 2), slice(0, 3, 1)), (0,))
    """
    places = [range(*s.indices(n)) for s, n in zip(key, shape, strict=True)]
    turned = tuple(axis for axis, place in enumerate(places) if place.step < 0)
    places = [place[::-1] if place.step < 0 else place for place in places]
    return tuple(slice(p[0], p[-1] + 1, p.step) if p else slice(0, 0, 1) for p in places), turned


def from_start(k: Any, indices: Any, length: int) -> Any:
    """Indices into an axis of ``length`` in int64, counted from its start.

    They are checked on the host, and :class:`OutOfRangeError` is raised for one out of range: many libraries would read
    another element instead, or fail in a way from which a program cannot recover.
    """
    indices = k.astype(indices, int64)
    outside = k.logical_or(k.less(indices, -length), k.less_equal(length, indices))
    if k.to_numpy(k.any(outside, all_axes(outside))):
        raise OutOfRangeError(f"an index is out of range for an axis of {length}")
    return k.where(k.less(indices, 0), k.add(indices, length), indices)


def decompositions(linalg: Any, refusal: type[Exception] | None = None) -> dict[str, Method]:
    """``cholesky``, ``qr``, ``svd``, ``eigh``, ``eig`` and ``solve``, from a ``linalg`` namespace as in the Array API.

    ``refusal`` is the error that the library raises for a matrix without a result. None means that it returns NaN or
    infinities instead, for which the results are then checked on the host.
    """

    def found(k: Any, function: Method, *operands: Any, error: Any = LinearAlgebraError, **options: Any) -> Any:
        wide = tuple(upcast_half(k, x) for x in operands)
        try:
            result = function(*wide, **options)
        except Exception as cause:
            if refusal is None or not isinstance(cause, refusal):
                raise
            raise error(f"a matrix has no result here ({cause})") from cause
        results = tuple(result) if isinstance(result, tuple) else (result,)
        if refusal is None and are_finite(k, wide) and not are_finite(k, results):
            raise error("a matrix is singular, not positive definite, or has no decomposition that is found")
        return narrowed(k, wide[0], results)

    def narrowed(k: Any, x: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results in the dtype of ``x``; real results for a complex ``x`` in the dtype of its parts."""
        dtype = k.dtype(x)
        part = dtype.part if dtype.kind == "complex" else dtype
        return tuple(k.astype(r, dtype if k.dtype(r).kind == dtype.kind else part) for r in results)

    def cholesky(k: Any, x: Any, /) -> Any:
        return narrowed(k, x, found(k, linalg.cholesky, decompose.symmetric(k, upcast_half(k, x))))[0]

    def qr(k: Any, x: Any, /, complete: bool = False) -> tuple[Any, ...]:
        factors = found(k, linalg.qr, x, mode="complete" if complete else "reduced")
        return narrowed(k, x, decompose.turned_qr(k, *factors))

    def svd(k: Any, x: Any, /, full: bool = False) -> tuple[Any, ...]:
        return narrowed(k, x, decompose.turned_svd(k, *found(k, linalg.svd, x, full_matrices=full)))

    def eigh(k: Any, x: Any, /) -> tuple[Any, ...]:
        factors = found(k, linalg.eigh, decompose.symmetric(k, upcast_half(k, x)))
        return narrowed(k, x, decompose.turned_eigh(k, *factors))

    def eig(k: Any, x: Any, /) -> tuple[Any, ...]:
        return narrowed(k, x, decompose.turned_eig(k, *found(k, linalg.eig, x)))

    def solve(k: Any, x: Any, y: Any, /) -> Any:
        # Some libraries treat an operand with one axis less than the matrices as vectors.
        y = k.reshape(y, (*(1,) * (len(x.shape) - len(y.shape)), *y.shape))
        return narrowed(k, x, found(k, linalg.solve, x, y, error=SingularMatrixError))[0]

    return {"cholesky": cholesky, "qr": qr, "svd": svd, "eigh": eigh, "eig": eig, "solve": solve}


def are_finite(k: Any, tensors: tuple[Any, ...]) -> bool:
    """Whether all elements are finite."""
    return all(all_true(k, k.isfinite(x)) for x in tensors)
