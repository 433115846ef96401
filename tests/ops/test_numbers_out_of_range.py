"""Numbers at the limits of 32 and 64 bits: indices, offsets, strides and numbers of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, OutOfRangeError, ShapeError
from backburn.nn import functional

LAST = np.array([2**64 - 1], np.uint64)
WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, i: bb.take(x, i, axis=0),
    "getitem": lambda x, i: x[i],
    "take_along_axis": lambda x, i: bb.take_along_axis(x, i, axis=0),
    "gather_nd": lambda x, i: bb.gather_nd(x, bb.reshape(i, (1, 1))),
    "scatter": lambda x, i: bb.scatter(x, i, bb.ones(1), 0),
    "scatter_nd": lambda x, i: bb.scatter_nd(x, bb.reshape(i, (1, 1)), bb.ones(1)),
    "index_add": lambda x, i: bb.index_add(x, i, bb.ones(1), 0),
    "embedding": lambda x, i: functional.embedding(i, bb.reshape(x, (3, 1))),
    "cross_entropy": lambda x, i: functional.cross_entropy(bb.reshape(x, (1, 3)), i, ignore_index=-1),
}


@pytest.mark.parametrize("name", WRITERS)
def test_unsigned_indices_do_not_count_from_the_end(name: str) -> None:
    with pytest.raises(OutOfRangeError):
        WRITERS[name](bb.asarray([1.0, 2.0, 3.0]), bb.asarray(LAST))
    WRITERS[name](bb.asarray([1.0, 2.0, 3.0]), bb.asarray(np.array([2], np.uint64)))


@pytest.mark.parametrize("index", [-1, -(2**63), -(2**63) + 2])
def test_rows_are_counted_from_zero(index: int) -> None:
    with pytest.raises(OutOfRangeError, match=f"the index {index} names none of the 3 rows"):
        functional.embedding(bb.asarray([index]), bb.ones((3, 2)))


@pytest.mark.parametrize("offset", [-(2**31), 2**31, -(2**62), 2**62])
def test_diagonals_beyond_a_matrix_are_empty(offset: int) -> None:
    x = bb.ones((2, 3))
    assert bb.diagonal(x, offset).shape == (0,)
    assert bb.trace(x, offset=offset).item() == 0.0


@pytest.mark.parametrize(("stride", "padding"), [((2**63 - 1, 1), (2, 1)), ((2**62, 1), (2**62 + 1, 1))])
def test_windows_have_positions_of_64_bits(stride: tuple[int, int], padding: tuple[int, int]) -> None:
    x, weight = bb.ones((1, 1, 4, 8)), bb.ones((1, 1, 3, 3))
    with pytest.raises(ArgumentError, match="at most 2147483647"):
        functional.conv(x, weight, stride=stride, padding=padding)
    with pytest.raises(ArgumentError, match="at most 2147483647"):
        functional.max_pool(x, (3, 3), stride=stride, padding=padding)
    assert functional.conv(x, weight, stride=(2**31 - 1, 1), padding=(2, 1)).shape == (1, 1, 1, 8)


def test_results_have_no_more_axes_than_arrays_can_have() -> None:
    x = bb.reshape(bb.arange(3.0), (1,) * 39 + (3,))
    indices = bb.reshape(bb.asarray([0, 1]), (1,) * 39 + (2,))
    for function in (lambda: bb.take(x, indices, axis=39), lambda: x[indices]):
        with pytest.raises(ShapeError, match="79 axes"):
            function()
