"""The ``null`` backend: the memory that values would use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.base.dtypes import float32
from backburn.ops.table import OPERATIONS
from backburn_null import NullBackend
from backburn_null.backend import DONATED, VIEWS
from backburn_numpy import NumpyBackend

MB = 1 << 20


@pytest.fixture
def k() -> NullBackend:
    backend = NullBackend()
    backend.memory_cleanup()
    return backend


def large(k: Any) -> Any:
    return k.zeros((MB // 4,), float32)


def test_memory_is_in_use_while_primitives_live(k: Any) -> None:
    before = k.memory_stats()["used"]
    x = large(k)
    y = k.add(x, x)
    assert k.memory_stats()["used"] - before == 2 * MB
    del x, y
    stats = k.memory_stats()
    assert (stats["used"] - before, stats["peak"] - before) == (0, 2 * MB)


#: Calls of each operation that returns views.
SEEN: dict[str, list[Any]] = {
    "reshape": [lambda k, x: k.reshape(x, (3, 8)), lambda k, x: k.reshape(k.permute_dims(x, (1, 0)), (24,))],
    "slice": [
        lambda k, x: k.slice(x, (slice(1, 3), slice(0, 6))),
        lambda k, x: k.slice(x, (slice(0, 4), slice(0, 3))),
        lambda k, x: k.reshape(k.slice(x, (slice(1, 3), slice(0, 6))), (12,)),
        lambda k, x: k.reshape(k.slice(x, (slice(0, 4), slice(0, 3))), (12,)),
        lambda k, x: k.reshape(k.slice(x, (slice(3, None, -1), slice(0, 6))), (24,)),
    ],
    "select": [lambda k, x: k.select(x, 0, 1), lambda k, x: k.select(x, 1, 1)],
    "permute_dims": [lambda k, x: k.permute_dims(x, (1, 0))],
}


def test_views_match_numpy_s(k: Any) -> None:
    numpy = NumpyBackend()
    assert set(SEEN) == set(VIEWS)
    for calls in SEEN.values():
        for call in calls:
            array = numpy.from_numpy(np.zeros((4, 6), np.float32))
            x = k.zeros((4, 6), float32)
            before = k.memory_stats()["used"]
            y = call(k, x)
            is_view = bool(np.shares_memory(array, call(numpy, array)))
            assert k.memory_stats()["used"] - before == (0 if is_view else y.nbytes)
            del x, y


def test_memory_is_in_use_while_a_view_of_it_lives(k: Any) -> None:
    before = k.memory_stats()["used"]
    x = large(k)
    row = k.select(k.reshape(x, (4, MB // 16)), 0, 1)
    del x
    assert k.memory_stats()["used"] - before == MB
    assert row.nbytes == MB // 4
    del row
    assert k.memory_stats()["used"] - before == 0


@pytest.mark.parametrize(("donate", "more"), [(False, 3), (True, 1)])
def test_donated_moments_are_reused(k: Any, donate: bool, more: int) -> None:
    param, grad, m, v = (large(k) for _ in range(4))
    before = k.memory_stats()["used"]
    k.memory_cleanup()
    new = k.adam_steps([param], [grad], [m], [v], donate=donate)
    stats = k.memory_stats()
    assert (stats["used"] - before, stats["peak"] - before) == (more * MB, more * MB)
    del new, m, v
    assert k.memory_stats()["used"] - before == -2 * MB


def test_an_absent_velocity_donates_no_memory(k: Any) -> None:
    param, grad = large(k), large(k)
    before = k.memory_stats()["used"]
    kept = k.sgd_step(param, grad, None, donate=True)
    assert k.memory_stats()["used"] - before == 2 * MB == sum(x.nbytes for x in kept)


def test_every_operation_that_takes_donations_is_listed() -> None:
    takes = {name for name, operation in OPERATIONS.items() if "donate" in operation.attributes}
    assert takes == set(DONATED)
