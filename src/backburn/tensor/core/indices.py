"""Indices counted from 0 only: of rows, classes and positions, where a negative one is a mistake."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import int64, uint64
from backburn.base.errors import BackburnError, OutOfRangeError
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.messages import describe

#: A number beyond any axis.
_LARGEST = (1 << 63) - 1


def as_int64(indices: Any) -> Any:
    """Indices in int64; those that it does not hold as a number beyond any axis, so that backends reject them."""
    if indices.dtype is uint64:
        k = indices._backend
        indices = indices.__class__(k.minimum(indices._primitive, _LARGEST), k, uint64)
    return cast(indices, int64)


def counted_from_zero(indices: Any) -> Any:
    """:func:`as_int64`, with negative indices as a number beyond any axis, too."""
    x = as_int64(indices)
    k = x._backend
    # Without the checks of `call`, which are unnecessary here, since layers call this often.
    return x.__class__(k.where(k.less(x._primitive, 0), _LARGEST, x._primitive), k, int64)


def no_such_index(
    name: str, error: OutOfRangeError, indices: Any, count: int, what: str, *others: Any
) -> OutOfRangeError:
    """A backend's ``error`` for an index, with the index as it was given, if it can be read."""
    wrong = ""
    try:
        found = [int(x.item()) for x in (indices.min(), indices.max())]
    except BackburnError:  # inside of a transform
        wrong = "an index"
    else:
        wrong = next((f"the index {x}" for x in found if not 0 <= x < count), "")
    if not wrong:
        return error
    words = f"{wrong} names none of the {count} {what}, which are counted from 0"
    return OutOfRangeError(f"{name}: {words}. Operands: {describe((indices, *others))}")
