"""The launch geometry of kernels."""

from __future__ import annotations

import pytest

from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.geometry import rows

H200 = 132


@pytest.mark.parametrize(
    ("count", "length", "itemsize", "variant"),
    [
        (8192, 10, 4, (4, 8)),
        (8192, 32, 4, (4, 8)),
        (8192, 33, 4, (32, 8)),
        (8192, 256, 2, (32, 8)),
        (8192, 1024, 2, (32, 32)),
        (128, 1024, 2, (0, 8)),  # too few rows for one warp each
        (8192, 1025, 2, (0, 8)),
        (8192, 2047, 2, (0, 16)),
        (8192, 2040, 4, (0, 8)),
        (8192, 2048, 4, (0, 16)),
        (8192, 8193, 4, (0, 16)),
        (8192, 16384, 4, (0, 16)),
        (8192, 8192, 8, (0, 16)),
        (8192, 8194, 8, (0, 0)),
        (8192, 50257, 2, (0, 0)),
    ],
)
def test_variant(count: int, length: int, itemsize: int, variant: tuple[int, int]) -> None:
    assert rows(count, length, itemsize, H200, address=0)[:2] == variant


def test_an_unaligned_row_needs_one_more_access() -> None:
    assert rows(8192, 32, 4, H200, address=16).lanes == 4
    assert rows(8192, 32, 4, H200, address=4).lanes == 32
    assert rows(8192, 31, 4, H200, address=0).lanes == 32


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 255, 1000, 1024, 1025, 8190, 8192, 16380, 16384, 10**6])
@pytest.mark.parametrize("count", [1, 7, 300, 10**6])
def test_every_row_is_covered(count: int, length: int, itemsize: int) -> None:
    for address in (0, itemsize):
        lanes, items, grid, block = rows(count, length, itemsize, H200, address)
        assert block % geometry.WARP == 0
        assert 32 <= block <= (256 if lanes else geometry.most_threads(itemsize))
        assert grid <= geometry.MOST_BLOCKS
        group = lanes or block
        assert grid * (block // group) >= count
        pack = geometry.pack(itemsize)
        before = address % 16 // itemsize if length * itemsize % 16 == 0 else pack - 1
        assert not items or group * -(-items // pack) * pack >= length + before


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("length", [1, 33, 255, 256, 257, 1000, 8192, 8193, 10**5])
@pytest.mark.parametrize("count", [1, 7, 300, 10**6])
def test_rows_whose_columns_are_summed(count: int, length: int, itemsize: int) -> None:
    lanes, items, grid, block = geometry.rows_with_sums(count, length, itemsize, H200)
    assert (lanes, items) in geometry.SUM_VARIANTS
    assert block % geometry.WARP == 0
    assert block <= (1024 if items else 512)
    assert not items or (lanes or block) * items >= length
    assert 1 <= grid <= min(count, 16 * H200)


def test_few_rows_use_many_processors() -> None:
    assert rows(264, 100, 4, H200).grid == 264
    assert rows(1, 1, 4, H200) == (4, 8, 1, 32)


def test_a_grid_has_a_largest_size() -> None:
    assert rows(2**40, 20000, 4, H200).grid == 2**31 - 1
    assert geometry.elements(2**45, 8).grid == 2**31 - 1
    assert geometry.elements(0, 8) == (1, 256)
    assert geometry.elements(257 * 8, 8) == (2, 256)
