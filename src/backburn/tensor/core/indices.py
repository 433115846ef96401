"""Indices counted from 0 only: of rows, classes and positions, where a negative one is a mistake."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import int64
from backburn.base.errors import BackburnError, OutOfRangeError
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.messages import describe

#: All bits but the sign.
_LARGEST = (1 << 63) - 1


def counted_from_zero(indices: Any) -> Any:
    """Indices in int64, negative ones as numbers beyond any axis, so that backends reject them."""
    x = cast(indices, int64)
    k = x._backend
    # Without the checks of `call`, which are unnecessary here, since layers call this often.
    return x.__class__(k.bitwise_and(x._primitive, _LARGEST), k, int64)


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
