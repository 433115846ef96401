"""Windows as columns of a matrix, and back: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import check, operand

from backburn.ops.conv import window_counts
from backburn_cupy.kernels.columns import add_columns, columns
from backburn_cupy.kernels.windows import Windows

CASES: list[tuple[Any, ...]] = [
    ((3, 2, 9), (3,), (1,), ((0, 0),), (1,)),
    ((2, 3, 50), (4,), (3,), ((2, 5),), (2,)),
    ((2, 3, 7, 9), (3, 2), (1, 1), ((1, 1), (0, 0)), (1, 1)),
    ((3, 1, 8, 5), (3, 3), (2, 1), ((0, 2), (3, 1)), (1, 2)),
    ((1, 2, 33, 17), (1, 5), (1, 2), ((0, 0), (2, 2)), (1, 1)),
    ((2, 2, 4, 5, 6), (2, 3, 2), (1, 2, 2), ((0, 1), (1, 0), (1, 1)), (2, 1, 1)),
]


def windows_of(shape: tuple[int, ...], size: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    return Windows(size, window_counts(shape[2:], size, stride, padding, dilation), stride, padding, dilation)


def places(shape: tuple[int, ...], windows: Windows) -> Any:
    """For each element of a window, slices of a padded example with that element of every window."""
    for tap in itertools.product(*map(range, windows.size)):
        steps = zip(tap, windows.dilation, windows.stride, windows.places, strict=True)
        yield tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in steps)


def expected(x: Any, windows: Windows) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), *windows.padding))
    taken = np.stack([padded[(slice(None), slice(None), *at)] for at in places(x.shape, windows)], 1)
    return np.moveaxis(taken, 0, 2).swapaxes(0, 1).reshape(-1, x.shape[0] * int(np.prod(windows.places)))


@pytest.mark.parametrize("case", CASES)
def test_columns(on: EmulatedRunner, dtype: str, case: Any) -> None:
    windows = windows_of(*case)
    x = operand(case[0], dtype)
    check(columns(on, x, windows), expected(x, windows))


def test_columns_of_strided_arrays(on: EmulatedRunner, dtype: str) -> None:
    windows = windows_of(*CASES[2])
    last = np.moveaxis(operand((2, 7, 9, 3), dtype), -1, 1)
    check(columns(on, last, windows), expected(last, windows))
    apart = operand((2, 6, 14, 18), dtype)[:, ::2, ::-2, ::2]
    check(columns(on, apart, windows), expected(apart, windows))


@pytest.mark.parametrize("case", CASES)
def test_columns_are_added_back(on: EmulatedRunner, dtype: str, case: Any) -> None:
    shape, windows = case[0], windows_of(*case)
    wide = "float64" if dtype == "float64" else "float32"
    rows = shape[1] * int(np.prod(windows.size))
    matrix = operand((rows, shape[0] * int(np.prod(windows.places))), wide)
    out = on.xp.ndarray(shape, operand((1,), dtype).dtype)
    add_columns(on, matrix, windows, out)
    padded = np.zeros((*shape[:2], *(n + b + a for n, (b, a) in zip(shape[2:], windows.padding, strict=True))))
    by_tap = matrix.reshape(shape[1], -1, shape[0], *windows.places)
    for tap, at in enumerate(places(shape, windows)):
        padded[(slice(None), slice(None), *at)] += np.moveaxis(by_tap[:, tap], 0, 1)
    inner = tuple(slice(b, b + n) for n, (b, _) in zip(shape[2:], windows.padding, strict=True))
    check(out, padded[(slice(None), slice(None), *inner)].astype(out.dtype))
