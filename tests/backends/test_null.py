"""The backend without values: the memory that values would take."""

from __future__ import annotations

from typing import Any

import pytest

from backburn.base.dtypes import float32
from backburn.ops.table import OPERATIONS
from backburn_null import NullBackend
from backburn_null.backend import DONATED

MB = 1 << 20


@pytest.fixture
def k() -> NullBackend:
    backend = NullBackend()
    backend.memory_cleanup()
    return backend


def large(k: Any) -> Any:
    return k.zeros((MB // 4,), float32)


def test_primitives_are_in_use_while_they_live(k: Any) -> None:
    before = k.memory_stats()["used"]
    x = large(k)
    y = k.add(x, x)
    assert k.memory_stats()["used"] - before == 2 * MB
    del x, y
    stats = k.memory_stats()
    assert (stats["used"] - before, stats["peak"] - before) == (0, 2 * MB)


@pytest.mark.parametrize(("donate", "more"), [(False, 3), (True, 1)])
def test_a_step_may_take_the_memory_of_its_moments(k: Any, donate: bool, more: int) -> None:
    param, grad, m, v = (large(k) for _ in range(4))
    before = k.memory_stats()["used"]
    k.memory_cleanup()
    new = k.adam_steps([param], [grad], [m], [v], donate=donate)
    stats = k.memory_stats()
    assert (stats["used"] - before, stats["peak"] - before) == (more * MB, more * MB)
    del new, m, v
    assert k.memory_stats()["used"] - before == -2 * MB


def test_an_absent_velocity_gives_nothing(k: Any) -> None:
    param, grad = large(k), large(k)
    before = k.memory_stats()["used"]
    kept = k.sgd_step(param, grad, None, donate=True)
    assert k.memory_stats()["used"] - before == 2 * MB == sum(x.nbytes for x in kept)


def test_every_operation_that_takes_donations_is_known() -> None:
    takes = {name for name, operation in OPERATIONS.items() if "donate" in operation.attributes}
    assert takes == set(DONATED)
