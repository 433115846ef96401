"""Creating tensors, changing their dtype, and copying them to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, overload

from backburn.base.dtypes import BoolDType, DType, FloatDType, IntDType, float32, int64
from backburn.base.errors import ArgumentError
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, unchanged
from backburn.ops.rules.tangents import linear_in
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def arange_length(start: float, stop: float, step: float, **_: Any) -> int:
    """The number of values ``start, start + step, ...`` before ``stop``; integers are counted exactly."""
    if step == 0 or not all(map(math.isfinite, (start, stop, step))):
        raise ArgumentError(f"start, stop and step must be finite and step not 0: {start}, {stop}, {step}")
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        return max(0, -((start - stop) // step))
    return max(0, math.ceil((stop - start) / step))


def linspace_step(start: float, stop: float, num: int, endpoint: bool) -> float:
    """The difference between neighbours among ``num`` values; 0 if there is only one."""
    intervals = num - 1 if endpoint else num
    return (stop - start) / intervals if intervals > 0 else 0.0


class Creation(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations that create a tensor, change its dtype, or copy it to the host."""

    @operation(kinds="FCIBQ", shape=unchanged, required=True, result="host", elementwise=False)
    def to_numpy(self, x: F | I | B | Q, /) -> Any:
        """The values as a NumPy array that nothing else changes; a quantized tensor is dequantized."""
        return missing("to_numpy")

    @operation(kinds="FCIBQ", shape=None, result="host", lists=("tensors",))
    def to_numpy_many(self, tensors: Sequence[F | I | B | Q], /) -> tuple[Any, ...]:
        """``to_numpy`` of each; a backend that computes asynchronously waits once for all of them."""
        return tuple(self.to_numpy(x) for x in tensors)

    @overload
    def astype(self, x: F | I | B, /, dtype: FloatDType) -> F: ...
    @overload
    def astype(self, x: F | I | B, /, dtype: IntDType) -> I: ...
    @overload
    def astype(self, x: F | I | B, /, dtype: BoolDType) -> B: ...
    @overload
    def astype(self, x: F | I | B, /, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=unchanged, result="dtype", required=True, differentiable=True)
    def astype(self, x: Any, /, dtype: DType) -> Any:
        """``x`` in another float, int or bool dtype.

        A number becomes the boolean ``x != 0`` (NaN is True), a boolean 0 or 1. Floats are truncated to integers; the
        result is unspecified if the integer dtype does not hold it. Integers are taken modulo ``2**bits``. The gradient
        is cast back.
        """
        return missing("astype")

    gradient_rule(astype, x=lambda k, g, x_dtype: k.astype(g, x_dtype))
    linear_in(astype)

    @overload
    def full(self, shape: Shape, value: float, dtype: FloatDType) -> F: ...
    @overload
    def full(self, shape: Shape, value: int, dtype: IntDType) -> I: ...
    @overload
    def full(self, shape: Shape, value: bool, dtype: BoolDType) -> B: ...
    @overload
    def full(self, shape: Shape, value: float, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=lambda *, shape, **_: shape, result="dtype", required=True)
    def full(self, shape: Shape, value: float, dtype: DType) -> Any:
        """A tensor filled with ``value``."""
        return missing("full")

    @overload
    def zeros(self, shape: Shape, dtype: FloatDType) -> F: ...
    @overload
    def zeros(self, shape: Shape, dtype: IntDType) -> I: ...
    @overload
    def zeros(self, shape: Shape, dtype: BoolDType) -> B: ...
    @overload
    def zeros(self, shape: Shape, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=lambda *, shape, **_: shape, result="dtype")
    def zeros(self, shape: Shape, dtype: DType) -> Any:
        """A tensor filled with 0 (or False)."""
        return self.full(shape, 0, dtype)

    @overload
    def ones(self, shape: Shape, dtype: FloatDType) -> F: ...
    @overload
    def ones(self, shape: Shape, dtype: IntDType) -> I: ...
    @overload
    def ones(self, shape: Shape, dtype: BoolDType) -> B: ...
    @overload
    def ones(self, shape: Shape, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=lambda *, shape, **_: shape, result="dtype")
    def ones(self, shape: Shape, dtype: DType) -> Any:
        """A tensor filled with 1 (or True)."""
        return self.full(shape, 1, dtype)

    @overload
    def empty(self, shape: Shape, dtype: FloatDType) -> F: ...
    @overload
    def empty(self, shape: Shape, dtype: IntDType) -> I: ...
    @overload
    def empty(self, shape: Shape, dtype: BoolDType) -> B: ...
    @overload
    def empty(self, shape: Shape, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=lambda *, shape, **_: shape, result="dtype")
    def empty(self, shape: Shape, dtype: DType) -> Any:
        """A tensor of arbitrary values."""
        return self.zeros(shape, dtype)

    @overload
    def arange(self, start: float, stop: float, step: float, dtype: FloatDType) -> F: ...
    @overload
    def arange(self, start: int, stop: int, step: int, dtype: IntDType) -> I: ...
    @overload
    def arange(self, start: float, stop: float, step: float, dtype: DType) -> Any: ...
    @operation(kinds="FI", shape=lambda **bounds: (arange_length(**bounds),), result="dtype", required=True)
    def arange(self, start: float, stop: float, step: float, dtype: DType) -> Any:
        """``start + i * step`` for ``i = 0, 1, ...`` while that is before ``stop``.

        For an int dtype all three are ints. For a float dtype each value is computed in double precision, not by
        repeated addition. Raises :class:`ArgumentError` for a step of 0 and for bounds that are not finite.
        """
        return missing("arange")

    @overload
    def eye(self, n: int, m: int, offset: int, dtype: FloatDType) -> F: ...
    @overload
    def eye(self, n: int, m: int, offset: int, dtype: IntDType) -> I: ...
    @overload
    def eye(self, n: int, m: int, offset: int, dtype: BoolDType) -> B: ...
    @overload
    def eye(self, n: int, m: int, offset: int, dtype: DType) -> Any: ...
    @operation(kinds="FCIB", shape=lambda *, n, m, **_: (n, m), result="dtype")
    def eye(self: Any, n: int, m: int, offset: int, dtype: DType) -> Any:
        """``n`` by ``m`` zeros with ones on a diagonal, ``offset`` above the main one (below, if negative)."""
        rows = self.reshape(self.arange(offset, offset + n, 1, int64), (n, 1))
        return self.astype(self.equal(rows, self.arange(0, m, 1, int64)), dtype)

    @operation(kinds="F", shape=lambda *, num, **_: (num,), result="dtype")
    def linspace(self: Any, start: float, stop: float, num: int, endpoint: bool, dtype: FloatDType) -> Any:
        """``num`` evenly spaced values from ``start`` to ``stop``, which is the last (exactly) with ``endpoint``.

        Without ``endpoint`` the last value is one step before ``stop``.
        """
        wide = float32 if dtype.bits == 16 else dtype
        places = self.arange(0, num, 1, wide)
        values = self.add(self.mul(places, linspace_step(start, stop, num, endpoint)), float(start))
        if endpoint and num > 1:
            values = self.where(self.equal(places, float(num - 1)), float(stop), values)
        return self.astype(values, dtype)
