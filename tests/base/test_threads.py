"""Backends follow the number of threads that a program sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base import threads as chosen_threads
from backburn.base.errors import ArgumentError
from backburn_numpy.runtime import blas, threads


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    counts = threads.num_threads(), blas._functions[0]() if blas._functions else 1
    yield
    threads.set_num_threads(counts[0])
    blas.set_num_threads(counts[1])
    chosen_threads._num_threads = None


def test_the_numpy_backend_and_its_products_follow() -> None:
    count: Any
    for count in (1, np.int64(2)):
        bb.set_num_threads(count)
        assert threads.num_threads() == count
        if blas._functions is not None:
            assert blas._functions[0]() == count
            with blas.single():
                assert blas._functions[0]() == 1
                bb.set_num_threads(3 - count)
                assert blas._functions[0]() == 1
            assert blas._functions[0]() == 3 - count


def test_another_library_follows_by_threadpoolctl(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(blas, "_functions", None)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    blas.set_num_threads(2)
    fake = SimpleNamespace(threadpool_limits=lambda count, user_api: given.append((count, user_api)))
    monkeypatch.setitem(sys.modules, "threadpoolctl", fake)
    blas.set_num_threads(2)
    assert given == [(2, "blas")]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "two", None])
def test_invalid_numbers_of_threads_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"set_num_threads: (the number of threads is an integer|at least one)"):
        bb.set_num_threads(wrong)
    assert chosen_threads.chosen() is None


def test_backends_that_are_loaded_later_follow() -> None:
    """They use no more threads than set, even if processors or environment variables allow more."""
    program = """
import sys
import backburn as bb
bb.set_num_threads(1)
assert "backburn_numpy" not in sys.modules
bb.zeros(3)
from backburn_numpy.runtime import blas, threads
print(threads.num_threads(), blas._functions[0]() if blas._functions else 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
