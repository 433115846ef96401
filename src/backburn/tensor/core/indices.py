"""Indices that are counted from the front alone: of rows, classes and places, where a negative one is a mistake."""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import int64
from backburn.base.errors import BackburnError, OutOfRangeError
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.messages import describe

#: All bits but the sign.
_LARGEST = (1 << 63) - 1


def counted_from_zero(indices: Any) -> Any:
    """Indices in int64, negative ones as numbers beyond any axis, so that backends refuse instead of counting back."""
    x = cast(indices, int64)
    k = x._backend
    # Directly, since none of what `call` does for several operands is needed in a layer that is called so often.
    return x.__class__(k.bitwise_and(x._primitive, _LARGEST), k, int64)


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
