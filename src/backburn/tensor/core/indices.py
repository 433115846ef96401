"""Indices that are counted from the front alone: of rows, classes and places, where a negative one is a mistake."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import int64
from backburn.base.errors import BackburnError, OutOfRangeError
from backburn.tensor.core.dispatch import call, cast
from backburn.tensor.core.messages import describe


def counted_from_zero(indices: Any) -> Any:
    """Indices in int64, negative ones as numbers beyond any axis, so that backends refuse instead of counting back."""
    return call("bitwise_and", cast(indices, int64), (1 << 63) - 1)


def no_such_index(
    name: str, error: OutOfRangeError, indices: Any, count: int, what: str, *others: Any
) -> OutOfRangeError:
    """``error``, in which a backend names an index, with the one that was given, where it can be read."""
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
