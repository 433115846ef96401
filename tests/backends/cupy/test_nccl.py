"""The communicator ``nccl`` on the stand-in for CuPy, with a thread per rank: its calls, and the received values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import pytest

from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError, BackendUnavailableError, Unsupported
from backburn.communicators import Communicator, Local

UINT8 = 1


class Ended(Exception):
    """The job was aborted."""


class Threads(Local):
    """Ranks as threads of one process: exchanges small objects as MPI does."""

    def __init__(self, rank: int, size: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._slots, self._barrier = slots, barrier
        self.said: list[str] = []

    def gather_objects(self, value: object) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(20)
        found = list(self._slots)
        self._barrier.wait(20)
        return found

    def barrier(self) -> None:
        self._barrier.wait(20)

    def abort(self, message: str) -> NoReturn:
        self.said.append(message)
        raise Ended(message)


@pytest.fixture
def nccl(cupy: Any) -> Iterator[Any]:
    """The stand-in's NCCL module, with no recorded calls."""
    from cupy import _nccl

    _nccl.CALLS.clear()
    _nccl.NcclCommunicator._mail.clear()
    yield _nccl
    _nccl.NcclCommunicator.ERROR = ""
    cupy.cuda.Event.STUCK = False


def on_ranks(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """The results of ``function`` for the communicator of each of ``size`` ranks."""
    from backburn_cupy.nccl import Nccl

    slots, barrier, found = [None] * size, threading.Barrier(size), [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = function(Nccl(Threads(rank, size, slots, barrier)))
        except BaseException as error:  # raised by the caller
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found


def array(cupy: Any, values: Any, dtype: str = "float32") -> Any:
    return cupy.array(np.asarray(values).astype(as_dtype(dtype).dtype))


def names(nccl: Any, rank: int = 0) -> list[str]:
    return [name for r, name, _ in nccl.CALLS if r == rank]


def test_it_is_a_communicator(cupy: Any, nccl: Any) -> None:
    (comm,) = on_ranks(1, lambda comm: comm)
    assert isinstance(comm, Communicator)
    assert (comm.name, comm.rank, comm.size) == ("nccl", 0, 1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int64", "float16", "bfloat16", "float32", "float64"])
def test_every_dtype_is_moved_as_bytes(dtype: str, cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        send = [array(cupy, [comm.rank, to, 1], dtype) for to in range(3)]
        receive = [comm.empty(None, (3,), as_dtype(dtype)) for _ in range(3)]
        comm.all_to_all(send, receive)
        return [x.get().astype(np.float64).tolist() for x in receive]

    is_bool = dtype == "bool"
    for rank, rows in enumerate(on_ranks(3, run)):
        assert rows == [[float(bool(v)) if is_bool else float(v) for v in (r, rank, 1)] for r in range(3)]
    size = as_dtype(dtype).itemsize
    assert {a[1:3] for _, _, a in nccl.CALLS} == {(3 * size, UINT8)}
    assert [(name, a[3]) for r, name, a in nccl.CALLS if r == 0] == [("send", 1), ("recv", 2), ("send", 2), ("recv", 1)]


def test_adjacent_buffers_are_gathered_in_one_call(cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        whole = comm.empty(None, (4, 2), as_dtype("float32"))
        comm.all_gather(array(cupy, [[comm.rank] * 2] * 2), [whole[:2], whole[2:]])
        return whole.get().tolist(), whole.data.ptr

    found = on_ranks(2, run)
    assert all(values == [[0, 0], [0, 0], [1, 1], [1, 1]] for values, _ in found)
    assert sorted((r, name, a[1:]) for r, name, a in nccl.CALLS) == [
        (r, "allGather", (found[r][1], 16, UINT8, 0)) for r in range(2)
    ]


def test_buffers_of_different_lengths_are_gathered_by_messages(cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        receive = [comm.empty(None, (n,), as_dtype("float32")) for n in (2, 0, 1)]
        comm.all_gather(array(cupy, np.full((2, 0, 1)[comm.rank], comm.rank)), receive)
        return [x.get().tolist() for x in receive]

    assert on_ranks(3, run) == [[[0, 0], [], [2]]] * 3
    assert "allGather" not in names(nccl)
    assert [(r, name) for r, name, _ in nccl.CALLS if r == 1] == [(1, "recv"), (1, "recv")], "empty sends are skipped"


@pytest.mark.parametrize(("dtype", "number"), [("float32", 7), ("float16", 6), ("bfloat16", 9), ("int64", 4)])
def test_sums_use_the_buffer_s_dtype(dtype: str, number: int, cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        x = array(cupy, [1 + comm.rank, 2], dtype)
        assert comm.can_reduce(x)
        comm.all_reduce(x)
        return x.get().astype(np.float64).tolist()

    assert on_ranks(2, run) == [[3.0, 4.0]] * 2
    ((_, _, (send, receive, count, kind, op, stream)),) = [c for c in nccl.CALLS if c[0] == 0]
    assert (send == receive, count, kind, op, stream) == (True, 2, number, 0, 0)


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint16"])
def test_dtypes_that_nccl_does_not_add(dtype: str, cupy: Any, nccl: Any) -> None:
    (comm,) = on_ranks(1, lambda comm: comm)
    assert not comm.can_reduce(array(cupy, [1], dtype))
    with pytest.raises(Unsupported, match=f"NCCL does not add {dtype}"):
        comm.all_reduce(array(cupy, [1], dtype))


def test_a_broadcast(cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        x = array(cupy, [comm.rank] * 3, "bool" if comm.rank == 5 else "float32")
        comm.broadcast(x, 1)
        with pytest.raises(ArgumentError, match="no rank 2 among 2"):
            comm.broadcast(x, 2)
        return x.get().tolist()

    assert on_ranks(2, run) == [[1, 1, 1]] * 2
    assert [a[2:5] for _, name, a in nccl.CALLS if name == "broadcast"] == [(12, UINT8, 1)] * 2


def test_a_started_exchange_has_its_own_stream(cupy: Any, nccl: Any) -> None:
    from cupy import _device

    _device.WAITS.clear()

    def run(comm: Any) -> Any:
        send, receive = [array(cupy, [7.0])], [comm.empty(None, (1,), as_dtype("float32"))]
        pending = comm.start_all_to_all(send, receive)
        before = list(_device.WAITS)
        pending.wait()
        return receive[0].get().tolist(), before, list(_device.WAITS)

    ((values, before, after),) = on_ranks(1, run)
    assert values == [7.0]
    ((own, first),) = before
    assert own != 0
    assert first == 0, "it waits for queued work"
    assert after[1:] == [(0, own)], "and later work waits for it"


def test_a_primitive_is_its_own_buffer(cupy: Any, nccl: Any) -> None:
    (comm,) = on_ranks(1, lambda comm: comm)
    x = array(cupy, [[1.0, 2.0], [3.0, 4.0]])
    assert comm.to_buffer(None, x).data.ptr == x.data.ptr
    assert comm.to_buffer(None, x, own=True).data.ptr != x.data.ptr
    turned = comm.to_buffer(None, x.transpose())
    assert turned.flags.c_contiguous
    assert turned.get().tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert comm.from_buffer(None, x) is x

    class Other:
        spec = "numpy"

    with pytest.raises(ArgumentError, match="numpy has ndarray; take comm=mpi"):
        comm.to_buffer(Other(), np.ones(2))


def test_a_group_is_created_with_rank_0_s_id(cupy: Any, nccl: Any) -> None:
    made = on_ranks(3, lambda comm: (comm.all_reduce(array(cupy, [1.0])), comm._group)[1])
    assert len({g._id for g in made}) == 1
    assert [(g._rank, g.ndev) for g in made] == [(0, 3), (1, 3), (2, 3)]


def test_buffer_lists_of_wrong_length(cupy: Any, nccl: Any) -> None:
    (comm,) = on_ranks(1, lambda comm: comm)
    for call in (lambda: comm.all_gather(None, []), lambda: comm.all_to_all([None] * 2, [None])):
        with pytest.raises(ArgumentError, match="buffers for 1 processes"):
            call()


# ---- the watch ----


def watched(timeout: float = 5.0) -> tuple[Any, list[str], Any]:
    from cupy import _nccl

    from backburn_cupy.nccl import Watch

    said: list[str] = []

    def abort(message: str) -> NoReturn:
        said.append(message)
        raise Ended(message)

    group = _nccl.NcclCommunicator(1, _nccl.get_unique_id(), 0)
    watch = Watch(group, timeout, abort)
    watch._thread = threading.current_thread()  # no thread is started: the test calls look()
    return watch, said, group


def event(cupy: Any) -> Any:
    made = cupy.cuda.Event()
    made.record()
    return made


def test_finished_collectives_are_no_longer_watched(cupy: Any, nccl: Any) -> None:
    watch, said, _ = watched()
    watch.add(event(cupy), "all_reduce")
    assert watch.look(time.monotonic() + 100) is False
    assert said == []


def test_a_collective_that_does_not_end_aborts(cupy: Any, nccl: Any) -> None:
    cupy.cuda.Event.STUCK = True
    watch, _, _ = watched(timeout=5.0)
    watch.add(event(cupy), "all_gather")
    assert watch.look(time.monotonic()) is True
    with pytest.raises(Ended, match="all_gather did not end within 5 s: another process is stuck or gone"):
        watch.look(time.monotonic() + 6)


def test_an_error_of_nccl_aborts(cupy: Any, nccl: Any) -> None:
    cupy.cuda.Event.STUCK = True
    nccl.NcclCommunicator.ERROR = "NCCL_ERROR_SYSTEM_ERROR: unhandled system error"
    watch, _, _ = watched()
    watch.add(event(cupy), "broadcast")
    with pytest.raises(Ended, match="broadcast: NCCL reports NCCL_ERROR_SYSTEM_ERROR"):
        watch.look(time.monotonic())


def test_a_thread_watches_queued_collectives(cupy: Any, nccl: Any) -> None:
    cupy.cuda.Event.STUCK = True
    from backburn_cupy.nccl import Watch

    ended = threading.Event()
    group = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    watch = Watch(group, 60.0, lambda message: ended.set())
    watch.add(event(cupy), "all_reduce")
    nccl.NcclCommunicator.ERROR = "NCCL_ERROR_INTERNAL_ERROR"
    assert ended.wait(20)
    cupy.cuda.Event.STUCK = False
    thread = watch._thread
    if thread is not None:
        thread.join(20)
    assert watch._thread is None


def test_an_abort_reaches_nccl_and_the_host(cupy: Any, nccl: Any) -> None:
    def run(comm: Any) -> Any:
        comm.all_reduce(array(cupy, [1.0]))
        with pytest.raises(Ended, match="enough"):
            comm.abort("enough")
        return comm._group.aborted, comm._host.said

    assert on_ranks(1, run) == [(True, ["enough"])]


def test_a_missing_nccl_names_the_package_to_install(cupy: Any, nccl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy.nccl import library

    monkeypatch.setattr(nccl, "available", False)
    with pytest.raises(BackendUnavailableError, match="CuPy finds no NCCL library; pip install nvidia-nccl-cu13"):
        library()


def test_bfloat16_has_nccl_s_type_code() -> None:
    from backburn_cupy.nccl import ADDED

    assert ADDED["bfloat16"] == 9
    assert np.dtype(ml_dtypes.bfloat16).itemsize == 2
