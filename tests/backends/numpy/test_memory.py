"""The memory pool: freed arrays always return to it, and live memory is never handed out."""

from __future__ import annotations

import gc
import mmap
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburn_numpy import NumpyBackend
from backburn_numpy.runtime import memory

SHAPE = (1000, 333)


def address(x: np.ndarray) -> int:
    return int(x.__array_interface__["data"][0])


def test_freed_memory_is_always_reused() -> None:
    memory.cleanup()
    before = memory.stats()
    places = {address(memory.empty(SHAPE, np.dtype("float32"))) for _ in range(5)}
    assert len(places) == 1
    after = memory.stats()
    assert after["used"] == before["used"]
    assert after["peak"] == after["held"] >= before["held"] + 1000 * 333 * 4
    memory.cleanup()
    assert memory.stats() == before


def test_large_results_start_at_cache_lines() -> None:
    for rows in (300, 1000, 1001, 5000):
        assert address(memory.empty((rows, 333), np.dtype("float32"))) % memory.ALIGNMENT == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages to request")
@pytest.mark.parametrize("size", [memory.HUGE * 3 // 4, memory.HUGE, memory.HUGE + 4096, memory.NUMPY_ASKS - 1])
def test_large_blocks_are_in_huge_pages(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block starts at a huge page, and blocks do not overlap."""
    blocks = [memory.aligned(size) for _ in range(3)]
    for number, block in enumerate(blocks):
        assert block.shape == (size,)
        assert address(block) % memory.HUGE == 0
        block.fill(number)
    assert [(block.min(), block.max()) for block in blocks] == [(0, 0), (1, 1), (2, 2)]
    monkeypatch.setattr(memory, "_HUGE_PAGES", 1 << 20)  # invalid advice, as on a Linux without huge pages
    block = memory.aligned(size)
    block.fill(7)
    assert block.shape == (size,)
    assert (block.min(), block.max()) == (7, 7)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages to request")
def test_huge_pages_are_returned_to_the_system() -> None:
    memory.cleanup()
    before = resident()
    arrays = [memory.empty((memory.HUGE,), np.dtype("uint8")) for _ in range(20)]
    for x in arrays:
        x.fill(1)
    assert resident() > before + 19 * memory.HUGE
    del arrays, x
    memory.cleanup()
    assert resident() < before + 10 * memory.HUGE


def test_a_view_keeps_its_memory() -> None:
    NumpyBackend().memory_cleanup()
    before = memory.stats()["used"]
    first = memory.empty(SHAPE, np.dtype("float32"))
    first[...] = 1.0
    row = first[7].T
    del first
    second = memory.empty(SHAPE, np.dtype("float32"))
    second[...] = 2.0
    np.testing.assert_array_equal(row, np.ones(333))
    stats = NumpyBackend().memory_stats()
    assert stats["held"] == stats["used"] >= before + 2 * 1000 * 333 * 4


def test_the_pool_is_freed_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # blocks of earlier tests in cycles would return to the pool meanwhile
    before, unpatched = memory.stats()["used"], memory.aligned
    memory.empty(SHAPE, np.dtype("float32"))  # freed immediately

    def scarce(size: int) -> np.ndarray:
        if memory.stats()["held"] > memory.stats()["used"]:
            raise MemoryError
        return unpatched(size)

    monkeypatch.setattr(memory, "aligned", scarce)
    x = memory.empty((2000, 333), np.dtype("float32"))
    stats = memory.stats()
    assert stats["held"] == stats["used"] >= before + x.nbytes


def test_memory_statistics_of_parallel_threads() -> None:
    """This can only fail without the GIL."""
    before = memory.stats()["used"]

    def work(number: int) -> bool:
        right = True
        for turn in range(2000):
            first, second = (memory.empty((70_000 + 9_000 * (turn % n),), np.dtype("float32")) for n in (1, 3))
            first[:] = number
            second[:] = -number
            right &= bool(first[0] == first[-1] == number)
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert memory.stats()["used"] == before


def test_a_container_limits_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER", (str(said), str(tmp_path / "missing")))
    whole = memory._default_limit()
    said.write_text("max\n")
    assert memory._default_limit() == whole
    said.write_text(f"{256 << 20}\n")
    assert memory._default_limit() == 32 << 20


def test_copies_are_in_row_major_order_and_in_recycled_memory() -> None:
    x = np.arange(1000 * 333, dtype=np.float32).reshape(SHAPE)
    assert memory.contiguous(x) is x
    assert memory.contiguous(x, np.dtype("float32")) is x
    for view, dtype in ((x.T, None), (x[::2], None), (np.broadcast_to(x[0], SHAPE), None), (x, np.dtype("float64"))):
        copy = memory.contiguous(view, dtype)
        assert isinstance(copy.base, memory.Block)
        assert copy.flags.c_contiguous
        assert copy.dtype == (dtype or view.dtype)
        np.testing.assert_array_equal(copy, view)


def test_large_reshapes_that_copy_are_in_recycled_memory() -> None:
    k, x = NumpyBackend(), np.arange(1000 * 333, dtype=np.float32).reshape(1000, 333)
    before = memory.stats()["used"]
    copy = k.reshape(x.T, shape=(1000, 333))
    assert memory.stats()["used"] >= before + x.nbytes
    np.testing.assert_array_equal(copy, np.reshape(x.T, (1000, 333)))
    view = k.reshape(x[:, :300], shape=(10, 100, 300))
    assert view.base is not None
    assert np.shares_memory(view, x)
    with pytest.raises(ValueError, match="reshape"):
        k.reshape(x.T, shape=(1000, 334))


def test_results_of_broadcast_operands_are_in_recycled_memory() -> None:
    k, x = NumpyBackend(), np.ones(SHAPE, np.float32)
    column, row = np.broadcast_to(x[:, :1], SHAPE), np.broadcast_to(x[0], SHAPE)
    for operands in ((x, x[0]), (x, x[:, :1]), (column, x), (row, x), (x, column), (column, row), (column, 3.0)):
        total = k.add(*operands)
        assert isinstance(total.base, memory.Block)
        assert total.flags.c_contiguous
        np.testing.assert_array_equal(total, operands[0] + operands[1])
    for turned in (x.T, np.broadcast_to(x.T, (2, 333, 1000))):
        np.testing.assert_array_equal(k.add(turned, turned), turned + turned)
    assert k.add(x.T, 1.0).T.flags.c_contiguous, "a result has the layout of its operands"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["exp", "expm1", "tan", "tanh", "sigmoid", "gelu"])
def test_strides_do_not_change_results(name: str, dtype: str) -> None:
    function, x = getattr(NumpyBackend(), name), (np.random.default_rng(0).normal(size=(60, 300)) * 3).astype(dtype)
    for view in (x[:, :200], x[::2], x[:, ::-3], x.T[5:], np.broadcast_to(x[:, :1], (60, 300))):
        np.testing.assert_array_equal(function(view), function(view.copy()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0), (0, 1, 2)])
def test_transposed_operands_are_not_copied(dtype: str, order: tuple[int, ...]) -> None:
    k = NumpyBackend()
    x, y = (np.random.default_rng(i).normal(size=(40, 30, 50)).astype(dtype) * 3 for i in (0, 1))
    a, b, plain = x.transpose(order), y.transpose(order), y.transpose(order).copy()
    row = a[:1]
    calls: list[Any] = [(k.add, a, b), (k.add, a, plain), (k.add, a, row), (k.mul, a, 2), (k.maximum, a, b)]
    if dtype != "int64":
        calls += [(k.gelu, a), (k.tanh, a), (k.tanh_backward, a, b), (k.tanh_backward, a, plain), (k.leaky_relu, a)]
        calls += [(k.softplus, a), (k.lerp, a, b, a), (k.lerp, a, b, plain), (k.clip, a, -1.0, 1.0)]
        calls += [(k.expm1, a), (k.tan, a)]
    for function, *operands in calls:
        got = function(*operands)
        expected = function(*(v.copy() if isinstance(v, np.ndarray) else v for v in operands))
        np.testing.assert_array_equal(got, expected)
        if not any(v is plain or v is row for v in operands) and function is not k.clip:
            assert got.transpose(np.argsort(order)).flags.c_contiguous


def test_memory_order_needs_permuted_contiguous_operands() -> None:
    x = np.arange(24.0).reshape(4, 6)
    for other in (x, x[:, ::2].T, x[::-1].T, np.broadcast_to(x[0], (4, 6)).T, np.empty((0, 3)).T):
        assert memory.memory_ordered(other) is None
    views, back = memory.memory_ordered(x.T, 2.0, None, x.T, np.asarray(3.0)) or ([], [])
    assert [v.shape if isinstance(v, np.ndarray) else v for v in views] == [(4, 6), 2.0, None, (4, 6), ()]
    assert back == [1, 0]
    assert memory.memory_ordered(x.T, x.T.copy()) is None


FAULTS = """
import resource

import numpy as np

from backburn_numpy.runtime import memory


def chain():
    return [np.ones(16_384, np.float32) for _ in range(200)]


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


chain()
before = faults()
for _ in range(5):
    chain()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    """Each of five chains of results touches 3,200 pages, most of which are reused."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 1_000, done.stderr
