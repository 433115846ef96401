"""Options of windows over spatial axes, converted to the form that the contract takes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, TypeAlias

from backburn.base.errors import ArgumentError, ShapeError
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import beside

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

#: One number for all axes, or one for each.
Sizes: TypeAlias = int | Sequence[int]
#: ``"same"``, ``"valid"``, a width for all ends, or for each axis a width or a pair (before, after).
Padding: TypeAlias = str | int | Sequence[int | Sequence[int]]
Pairs: TypeAlias = tuple[tuple[int, int], ...]


def places_rank(name: str, x: Tensor) -> int:
    """The number of spatial axes of ``x`` (examples, channels, *spatial); 1 to 3."""
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3:
        raise ShapeError(
            f"{name}: the input (examples, channels, *spatial) has 3 to 5 axes. Operand: {describe((x,))}; "
            "expand_dims adds an axis for a single example"
        )
    return rank


def each(
    name: str, option: str, value: Sizes, rank: int, least: int = 1, *, of: Sequence[Tensor] = ()
) -> tuple[int, ...]:
    """An option with one number for each of ``rank`` axes; an error names the operands ``of`` the call, if any."""
    try:
        numbers = (index(value),) * rank if not isinstance(value, Sequence) else tuple(map(index, value))
    except TypeError:
        words = f"{name}: {option} is an integer, or one for each of {rank} axes, not {value!r}{beside(of)}"
        raise ArgumentError(words) from None
    if len(numbers) != rank:
        words = f"{name}: {option} needs one number for each of {rank} spatial axes, not {value!r}{beside(of)}"
        raise ArgumentError(words)
    if any(n < least for n in numbers):
        raise ArgumentError(f"{name}: {option} is {least} or more, not {value!r}{beside(of)}")
    return numbers


def pairs(
    name: str,
    padding: Padding,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    of: Sequence[Tensor] = (),
) -> Pairs:
    """``padding`` as a pair for each axis; ``"same"`` keeps the length, and requires stride 1."""
    rank = len(size)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * rank
        if padding != "same":
            raise ArgumentError(
                f"{name}: padding is 'same', 'valid' or a number of places, not {padding!r}{beside(of)}"
            )
        if any(s != 1 for s in stride):
            raise ArgumentError(
                f"{name}: padding 'same' requires stride 1, not {list(stride)}; give numbers instead{beside(of)}"
            )
        totals = [spacing * (n - 1) for n, spacing in zip(size, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    if not isinstance(padding, Sequence):
        return tuple((n, n) for n in each(name, "padding", padding, rank, 0, of=of))
    if len(padding) != rank:
        words = f"{name}: padding needs one entry for each of {rank} spatial axes, not {padding!r}{beside(of)}"
        raise ArgumentError(words)
    return tuple(_pair(name, p, of) for p in padding)  # type: ignore[arg-type]


def _pair(name: str, value: Sizes, of: Sequence[Tensor]) -> tuple[int, int]:
    before, after = each(name, "padding", value, 2, 0, of=of)
    return before, after
