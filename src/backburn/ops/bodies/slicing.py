"""Parts of a tensor that the bodies of operations take: a range along an axis, one entry, the transpose."""

from __future__ import annotations

from typing import Any

Shape = tuple[int, ...]
Key = tuple[slice, ...]


def full_slices(*lengths: int) -> Key:
    """The slices that select everything along axes of these lengths."""
    return tuple([slice(0, n, 1) for n in lengths])


def axis_slices(shape: Shape, axis: int, start: int, stop: int, step: int = 1) -> Key:
    """The slices that select a range along one axis and everything along the others."""
    return tuple([slice(start, stop, step) if a == axis else slice(0, n, 1) for a, n in enumerate(shape)])


def slice_axis(k: Any, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """Every ``step``-th entry of ``x`` along ``axis`` from ``start`` up to but excluding ``stop``."""
    return k.slice(x, axis_slices(x.shape, axis, start, stop, step))


def index_axis(k: Any, x: Any, axis: int, index: int) -> Any:
    """One entry of ``x`` along ``axis``, which the result lacks."""
    return k.reshape(slice_axis(k, x, axis, index, index + 1), (*x.shape[:axis], *x.shape[axis + 1 :]))


def transpose(k: Any, x: Any) -> Any:
    """``x`` with its last two axes exchanged."""
    rank = len(x.shape)
    return k.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))
