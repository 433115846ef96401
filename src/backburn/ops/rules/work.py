"""``multiply_adds``: how many products an operation multiplies and adds, declared next to its gradient rule.

Only operations whose cost is products summed over an axis count: matrix products, convolutions, attention and
recurrences. All others are passes over memory, and count as 0. A formula is a function of the shape of the (first)
result, of those of the operands, and of the attributes::

    multiply_adds(matmul, lambda out, x, y: prod(out) * x[-1])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backburn.ops.rules.gradients import entry_of
from backburn.ops.table import OPERATIONS


def multiply_adds(operation: Any, formula: Callable[..., int]) -> None:
    """Declare how many multiply-adds a call of an operation takes."""
    entry_of("multiply_adds", operation).multiply_adds = formula


def multiply_adds_of(name: str, operands: Sequence[Any], attributes: Mapping[str, Any], result: Any) -> int:
    """The multiply-adds of a call of the operation ``name``; operands beyond the tensors are attributes."""
    entry = OPERATIONS.get(name)
    if entry is None or entry.multiply_adds is None:
        return 0
    count = len(entry.operands)
    options = {**entry.defaults, **dict(zip(entry.attributes, operands[count:], strict=False)), **attributes}
    given = [getattr(x, "shape", None) for x in operands[:count]]
    out = result[0] if isinstance(result, (list, tuple)) else result
    return int(entry.multiply_adds(out.shape, *given, *[None] * (count - len(given)), **options))
