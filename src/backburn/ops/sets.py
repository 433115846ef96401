"""Sets: the distinct elements of a tensor, and which elements are among others."""

from __future__ import annotations

import math
from typing import Any, Protocol, overload

from backburn.base.dtypes import int64
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.shapes import unchanged
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q


class Sets(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Operations on tensors as sets of their elements."""

    @overload
    def unique_all(self, x: F, /) -> tuple[F, I, I, I]: ...
    @overload
    def unique_all(self, x: I, /) -> tuple[I, I, I, I]: ...
    @overload
    def unique_all(self, x: B, /) -> tuple[B, I, I, I]: ...
    @operation(kinds="FIB", shape=None, result=("same", "int64", "int64", "int64"), differentiable=True)
    def unique_all(self: Any, x: Any, /) -> Any:
        """The distinct elements in ascending order, each with the index of its first occurrence and its count.

        The four results are the values; the index of each in ``x``, in row-major order; the index of each element among
        the values, in the shape of ``x``; and the counts. Each NaN is distinct from all others; 0 and -0 are equal. The
        gradient of a value goes to its first occurrence.
        """
        count = math.prod(x.shape)
        one = min(count, 1)
        flat = self.reshape(x, (count,))
        order = self.argsort(flat, 0)
        values = self.take_along_axis(flat, order, 0)
        new = self.not_equal(slice_axis(self, values, 0, one, count), slice_axis(self, values, 0, 0, max(count - 1, 0)))
        new = self.concat([self.full((one,), True, self.dtype(new)), new], 0)
        starts = self.nonzero(new)
        starts = self.reshape(starts, (starts.shape[0],))
        number = self.sub(self.cumulative_sum(self.astype(new, int64), 0), 1)
        inverse = self.scatter(self.zeros((count,), int64), order, number, 0, "assign")
        end = self.full((one,), count, int64)
        ends = self.concat([slice_axis(self, starts, 0, one, starts.shape[0]), end], 0)
        return (
            self.take_along_axis(values, starts, 0),
            self.take_along_axis(order, starts, 0),
            self.reshape(inverse, x.shape),
            self.sub(ends, starts),
        )

    @overload
    def isin(self, x: F, values: F, /) -> B: ...
    @overload
    def isin(self, x: I, values: I, /) -> B: ...
    @operation(kinds="FI", shape=unchanged, result="bool", elementwise=False)
    def isin(self: Any, x: Any, values: Any, /) -> Any:
        """Which elements of ``x`` equal one of ``values``; NaN equals nothing."""
        count = math.prod(values.shape)
        if count == 0:
            return self.full(x.shape, False, self.dtype(self.equal(x, x)))
        among = self.sort(self.reshape(values, (count,)), 0)
        place = self.minimum(self.searchsorted(among, x), count - 1)
        return self.equal(self.take(among, place, 0), x)
