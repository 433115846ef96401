"""The communicator ``count``: the bytes that each collective sends, and its predicted duration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.base.dtypes import as_dtype, float32
from backburn.base.errors import ArgumentError
from backburn.communicators import Communicator, load_communicator
from backburn.communicators.count import Count, Link, counting
from backburn_null import NullBackend
from backburn_numpy import NumpyBackend

NEAR, FAR = Link(1e-6, 1e9), Link(1e-5, 1e8)


def buffer(comm: Count, length: int) -> Any:
    return comm.empty(None, (length,), float32)


def buffers(comm: Count, *lengths: int) -> list[Any]:
    return [buffer(comm, n) for n in lengths]


def test_it_is_a_communicator_by_name() -> None:
    assert isinstance(load_communicator("count"), Communicator)
    with counting(Count(4096, rank=17)) as comm:
        assert load_communicator("count") is comm
        assert (comm.name, comm.rank, comm.size) == ("count", 17, 4096)
    assert load_communicator("count").size == 1


def test_buffers_take_no_memory_themselves() -> None:
    k, comm = NullBackend(), Count(2)
    for shape in ((), (0, 3), (1 << 20, 1 << 20)):
        made = comm.empty(k, shape, float32)
        assert (made.shape, made.dtype) == (shape, np.float32)
        first, last = np.lib.array_utils.byte_bounds(made)
        assert last - first <= 4
    whole = comm.empty(k, (4, 6), float32).reshape(-1)
    assert (whole.strides, whole[3:9].shape) == ((0,), (6,))


def test_buffers_count_as_memory_during_their_lifetime_and_their_views() -> None:
    k, comm = NullBackend(), Count(2)
    start = k.memory_stats()["used"]

    def used() -> int:
        return k.memory_stats()["used"] - start

    buffer = comm.empty(k, (4, 6), float32)
    part = buffer[2:]
    assert used() == 96
    del buffer
    assert used() == 96
    x = comm.from_buffer(k, part)  # this copies the view
    del part
    assert (used(), tuple(x.shape)) == (48, (2, 6))
    same = comm.from_buffer(k, comm.to_buffer(k, x))
    assert used() == 48
    copy = comm.to_buffer(k, x, own=True)
    assert used() == 96
    del x, same, copy
    assert used() == 0


def test_primitives_with_values_are_zeros_where_nothing_was_sent() -> None:
    k, comm = NumpyBackend(), Count(2)
    assert comm.from_buffer(k, comm.empty(k, (2, 3), float32)).tolist() == [[0.0] * 3] * 2
    assert comm.from_buffer(k, comm.to_buffer(k, k.ones((2, 3), float32)).reshape(-1)).tolist() == [1.0] * 6


def test_primitives_without_values_have_their_shapes() -> None:
    k, comm = NullBackend(), Count(2)
    x = k.zeros((3, 5), as_dtype("int64"))
    made = comm.from_buffer(k, comm.to_buffer(k, x))
    assert (made.shape, made.dtype) == ((3, 5), x.dtype)


def test_what_a_process_sends_itself_is_not_counted() -> None:
    comm = Count(4, rank=1, near=NEAR)
    comm.all_to_all(buffers(comm, 1, 100, 2, 3), buffers(comm, 0, 100, 5, 6))
    assert comm.counted.sent == {"all_to_all": 4 * (1 + 2 + 3)}
    assert comm.counted.seconds == pytest.approx(3e-6 + 24e-9)
    comm.start_all_to_all(buffers(comm, 1, 0, 0, 0), buffers(comm, 0, 0, 0, 0)).wait()
    assert comm.counted.sent["all_to_all"] == 28
    assert comm.counted.seconds == pytest.approx(4e-6 + 28e-9), "an empty send takes no time"
    assert comm.counted.calls == {"all_to_all": 2}


def test_all_gather_sends_to_every_other_process() -> None:
    comm = Count(8, near=NEAR)
    comm.all_gather(buffer(comm, 10), buffers(comm, *[10] * 8))
    assert comm.counted.bytes == 7 * 40
    assert comm.counted.seconds == pytest.approx(7e-6 + 280e-9)


def test_processes_of_a_node_share_its_connection() -> None:
    comm = Count(6, rank=4, per_node=2, near=NEAR, far=FAR)
    assert list(comm.on_node) == [4, 5]
    comm.all_gather(buffer(comm, 100), buffers(comm, *[100] * 6))
    assert comm.counted.bytes == 5 * 400
    near, far = 1e-6 + 400 / 1e9, 4e-5 + 2 * 4 * 400 / 1e8
    assert comm.counted.seconds == pytest.approx(near + far)


def test_split_communicators_share_counts_and_know_their_nodes() -> None:
    comm = Count(8, rank=5, per_node=4, near=NEAR, far=FAR)
    rows, columns = comm.split([r // 2 for r in range(8)]), comm.split([r % 2 for r in range(8)])
    assert (rows.rank, rows.size, list(rows.ranks), list(rows.on_node)) == (1, 2, [4, 5], [0, 1])
    assert (columns.rank, columns.size, list(columns.ranks), list(columns.on_node)) == (2, 4, [1, 3, 5, 7], [2, 3])
    columns.all_gather(buffer(comm, 100), buffers(comm, *[100] * 4))
    assert comm.counted.bytes == rows.counted.bytes == 3 * 400
    assert comm.counted.seconds == pytest.approx(1e-6 + 400 / 1e9 + 2e-5 + 2 * 800 / 1e8)


@pytest.mark.parametrize("size", [1, 2, 7, 1024])
def test_all_reduce_sends_all_but_one_share_twice(size: int) -> None:
    comm = Count(size, near=NEAR)
    comm.all_reduce(buffer(comm, 1024))
    assert comm.counted.bytes == pytest.approx(2 * 4096 * (size - 1) / size, abs=1)
    rounds = (size - 1).bit_length()
    assert comm.counted.seconds == pytest.approx(2 * rounds * 1e-6 + 2 * 4096 * (size - 1) / size / 1e9)


def test_sums_and_broadcasts_are_hierarchical_over_nodes() -> None:
    comm = Count(8, per_node=4, near=NEAR, far=FAR)
    comm.all_reduce(buffer(comm, 1000))
    inside, between = 4e-6 + 2 * 4000 * 3 / 4 / 1e9, 2e-5 + 2 * 4000 / 2 / 1e8
    assert comm.counted.seconds == pytest.approx(inside + between)
    comm.counted.clear()
    comm.broadcast(buffer(comm, 1000), 3)
    assert comm.counted.bytes == 4000
    assert comm.counted.seconds == pytest.approx(2e-6 + 4000 / 1e9 + 1e-5 + 4000 / 1e8)
    comm.counted.clear()
    assert comm.gather_objects("x") == ["x"] * 8
    comm.barrier()
    assert comm.counted.bytes == 0
    assert comm.counted.seconds == pytest.approx(2 * (2e-6 + 1e-5))


def test_invalid_ranks() -> None:
    for size, rank in ((0, 0), (2, 2), (2, -1)):
        with pytest.raises(ArgumentError, match="there is no rank"):
            Count(size, rank)
    with pytest.raises(ArgumentError, match="2 buffers for 3 processes"):
        Count(3).all_gather(None, [None, None])
    with pytest.raises(ArgumentError, match="no rank 3 among 3"):
        Count(3).broadcast(np.zeros(1), 3)


def test_an_abort_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Count(3, rank=2).abort("enough")
    assert capsys.readouterr().err == "backburn: rank 2 of 3: enough\n"
