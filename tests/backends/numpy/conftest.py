"""Fixtures of the tests of the NumPy backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers.kernels import USABLE, use_level

from backburn_numpy import tuning
from backburn_numpy.runtime import threads


@pytest.fixture(params=[(level, count) for level in USABLE for count in (1, 3)], ids=str)
def everything_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Even the smallest arrays go to compiled kernels, with one or several threads."""
    level, count = request.param
    use_level(monkeypatch, level)
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_KERNEL", {})
    for name in (
        *("MIN_HALVES_FOR_KERNEL", "MIN_ELEMENTS_FOR_MASKS", "MIN_BYTES_FOR_CONCAT"),
        *("MIN_ELEMENTS_FOR_NATIVE_THREADS", "MIN_WORK_FOR_SECOND_THREAD"),
    ):
        monkeypatch.setattr(tuning, name, 1)
    before = threads.num_threads()
    threads.set_num_threads(count)
    yield
    threads.set_num_threads(before)
