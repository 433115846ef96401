"""``Mpi``: the processes that ``mpiexec``, ``srun`` or ``backburn launch`` started, through mpi4py.

MPI is initialized by :func:`world`, not by an import. Buffers are NumPy arrays, which are sent and filled in place.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from backburn.base.call_site import call_site
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, BackendUnavailableError, CommunicationError, Unsupported
from backburn.communicators.agreement import by_rank, check_agreement, libraries, order_digest
from backburn.communicators.local import empty_array, from_host_array, host_array
from backburn.communicators.protocol import Buffer
from backburn.communicators.ranks import check_lists, check_root, launched
from backburn.communicators.watchdog import TIMEOUT, Watchdog
from backburn.communicators.wheels import prepare_mpi

prepare_mpi()
try:
    import mpi4py

    mpi4py.rc.initialize = False  # `world` does so, with a time limit
    mpi4py.rc.finalize = False  # the watchdog does so, when all ranks have ended
    from mpi4py import MPI
except (ImportError, RuntimeError) as cause:
    raise BackendUnavailableError(
        f"communicator 'mpi': mpi4py or an MPI library is missing ({str(cause).splitlines()[0]}). "
        f"On a cluster: pip install backburn[mpi] and its MPI (module load ...); elsewhere: "
        f"pip install backburn[mpi-local]"
    ) from cause

#: Dtypes that some implementations of MPI lack are sent as integers of their size: float16, bfloat16 and bool, by
#: NumPy's type characters, which are faster to read than names.
_MOVED_AS = {"e": np.dtype("uint16"), "E": np.dtype("uint16"), "?": np.dtype("uint8")}


class Mpi:
    """The processes of an MPI communicator.

    A collective that waits for longer than ``timeout`` seconds ends the job, and reports which ranks are missing and
    what they do instead. With ``check``, every collective is compared on all ranks before it runs: operation, shape,
    dtype and the calling line. Raises :class:`CommunicationError` if these differ, for a collective after one that an
    exception interrupted, in a process that was forked from a rank, and if MPI reports an error.
    """

    name = "mpi"

    def __init__(self, comm: Any, watchdog: Watchdog, key: str, timeout: float, check: bool) -> None:
        """Around an ``mpi4py.MPI.Comm`` that nothing else uses."""
        self._comm = comm
        self._watchdog = watchdog
        self._splits = 0
        self._check = check and comm.size > 1
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.key = key
        self.timeout = timeout
        self.members: Sequence[int] = MPI.Group.Translate_ranks(comm.group, None, MPI.COMM_WORLD.group)

    def split(self, colors: Sequence[int]) -> Mpi:
        """The communicator of the processes with this one's color, by rank."""
        check_lists("split", self.size, colors)
        color = colors[self.rank]
        comm = self._run("split", tuple(colors), self._comm.Split, color, self.rank)
        self._splits += 1
        return Mpi(comm, self._watchdog, f"{self.key}/{self._splits}.{color}", self.timeout, self._check)

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A NumPy array without values."""
        return empty_array(k, shape, dtype)

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """The values of a primitive as a NumPy array."""
        return host_array(k, x, own)

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """A primitive with the values of a NumPy array."""
        return from_host_array(k, buffer)

    # ---- collectives ----

    def add(self, x: Buffer, y: Buffer, total: Buffer) -> None:
        """Fill ``total`` with the sum of two arrays."""
        with np.errstate(all="ignore"):  # inf - inf is NaN, as in operations
            np.add(x, y, out=total)

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Fill ``receive`` with what each process sends."""
        check_lists("all_gather", self.size, receive)
        if isinstance(receive, np.ndarray):
            self._run("all_gather", receive, self._comm.Allgather, _moved(send), _moved(receive))
            return
        self._run("all_gather", send.dtype, self._exchange, [send] * self.size, receive)

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Send one buffer to each process and receive one from each."""
        check_lists("all_to_all", self.size, send, receive)
        self._run("all_to_all", send[0].dtype, self._exchange, send, receive)

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Exchange:
        """Start :meth:`all_to_all`."""
        check_lists("all_to_all", self.size, send, receive)
        requests = self._run("start_all_to_all", send[0].dtype, self._start, send, receive)
        return Exchange(self, requests, (send, receive))

    def _exchange(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        if self.size != 2:
            MPI.Request.Waitall(self._start(send, receive))
            return
        rank, other = self.rank, 1 - self.rank
        if receive[rank] is not send[rank]:
            receive[rank][...] = send[rank]
        self._comm.Sendrecv(_moved(send[other]), other, 0, _moved(receive[other]), other, 0)

    def _start(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> list[Any]:
        comm, rank, size = self._comm, self.rank, self.size
        others = [(rank + i) % size for i in range(1, size)]
        requests = [comm.Irecv(_moved(receive[r]), r) for r in reversed(others) if receive[r].size]
        requests += [comm.Isend(_moved(send[r]), r) for r in others if send[r].size]
        if receive[rank] is not send[rank]:
            receive[rank][...] = send[rank]
        return requests

    def can_reduce(self, buffer: Buffer) -> bool:
        """Whether MPI adds the dtype: all but float16, bfloat16 and bool."""
        return buffer.dtype.char not in _MOVED_AS

    def all_reduce(self, buffer: Buffer) -> None:
        """Replace a buffer by its sum over the processes, in the order of MPI's ``Allreduce``."""
        if not self.can_reduce(buffer):
            raise Unsupported(f"all_reduce: MPI does not add {buffer.dtype.name}; sums in a fixed order do")
        self._run("all_reduce", buffer, self._comm.Allreduce, MPI.IN_PLACE, buffer)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Fill a buffer with that of the process ``root``."""
        check_root(root, self.size)
        self._run("broadcast", buffer, self._comm.Bcast, _moved(buffer), root)

    def gather_objects(self, value: object) -> list[Any]:
        """The ``value`` of every process, by rank."""
        return self._run("gather_objects", None, self._comm.allgather, value)

    def barrier(self) -> None:
        """Return when every process has called this."""
        self._run("barrier", None, self._comm.Barrier)

    def abort(self, message: str) -> NoReturn:
        """Print a message that names this process, and end all processes with status 1."""
        self._watchdog.abort(message)

    def _run(self, operation: str, facts: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may wait for other processes; all must agree on ``facts``."""
        watchdog = self._watchdog
        number = watchdog.enter(self, operation)
        try:
            if self._check:
                self._compare(number, operation, facts)
            result = function(*arguments)
        except BaseException as error:
            watchdog.interrupted(operation, error)
            if isinstance(error, MPI.Exception):
                raise CommunicationError(
                    f"MPI reports an error of {operation}: {error}. Ranks may be out of step; check=true compares "
                    f"every collective"
                ) from error
            raise
        watchdog.waiting = None
        return result

    def _compare(self, number: int, operation: str, facts: Any) -> None:
        """Raise on all processes unless all of them are about to begin the same collective."""
        if isinstance(facts, np.ndarray):
            facts = f"of {facts.dtype}{list(facts.shape)}"
        elif facts is not None:
            facts = f"of {facts}"
        line = call_site()
        mine = number.to_bytes(8, "little") + order_digest(operation, facts, line)
        everyone = bytearray(16 * self.size)
        self._comm.Allgather(mine, everyone)
        if everyone == mine * self.size:
            return
        told = self._comm.allgather(f"{operation}{f' {facts}' if facts else ''} at {line}")
        raise CommunicationError(f"collective {number} is not the same on all ranks: {by_rank(told)}")


class Exchange:
    """Messages in transit."""

    def __init__(self, comm: Mpi, requests: list[Any], buffers: Any) -> None:
        """With the buffers, which must live until the messages have arrived."""
        self._comm = comm
        self._number = comm._watchdog.begun[comm.key]
        self._requests = requests
        self._buffers = buffers

    def wait(self) -> None:
        """Return when all messages have arrived."""
        watchdog = self._comm._watchdog
        watchdog.waits(self._comm, "all_to_all", self._number)
        try:
            MPI.Request.Waitall(self._requests)
        except BaseException as error:
            watchdog.interrupted("all_to_all", error)
            if isinstance(error, MPI.Exception):
                raise CommunicationError(f"MPI reports an error of all_to_all: {error}") from error
            raise
        watchdog.waiting = None
        self._requests, self._buffers = [], None


def _moved(buffer: Any) -> Any:
    """A buffer in a dtype that MPI has."""
    other = _MOVED_AS.get(buffer.dtype.char)
    return buffer if other is None else buffer.view(other)


class _Post:
    """The watchdogs' messages, on a separate communicator."""

    def __init__(self) -> None:
        self._comm: Any = MPI.COMM_WORLD.Dup()
        self._status = MPI.Status()
        self._sent: list[Any] = []
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size

    def send(self, rank: int, about: int, message: object) -> None:
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend(message, rank, about))

    def receive(self) -> tuple[int, int, Any] | None:
        if not self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status):
            return None
        source, about = self._status.source, self._status.tag
        return source, about, self._comm.recv(None, source, about)

    def abort(self, status: int) -> NoReturn:
        MPI.COMM_WORLD.Abort(status)
        os._exit(status)  # if Abort returns before the launcher ends this process

    def finish(self) -> None:
        MPI.Request.Waitall(self._sent)
        MPI.Finalize()


def _wait_until_all_ranks_have_started(timeout: float) -> None:
    """Initialize MPI, which waits for every rank; at the limit print this function's name and exit with status 1."""
    if MPI.Is_initialized():
        return
    several = (launched() or (0, 1))[1] > 1
    if several:  # a timer that works while MPI holds the interpreter lock
        faulthandler.dump_traceback_later(timeout, exit=True)
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if several:
        faulthandler.cancel_dump_traceback_later()


_watchdogs: list[Watchdog] = []
_worlds: dict[tuple[float, bool], Mpi] = {}


def world(*, timeout: float = TIMEOUT, check: bool = False) -> Mpi:
    """The communicator of all processes of this program; the same object for the same options.

    ``timeout`` is the number of seconds that a collective may wait, and ``check`` enables the order check. The first
    call compares versions and code, and raises :class:`CommunicationError` for ranks that differ. All processes must
    call it with the same options.
    """
    given: object = timeout
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0:
        raise ArgumentError(f"mpi: timeout is a number of seconds, not {timeout!r}")
    if check not in (True, False):
        raise ArgumentError(f"mpi: check is true or false, not {check!r}")
    if not _watchdogs:
        _wait_until_all_ranks_have_started(timeout)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise BackendUnavailableError(
                "communicator 'mpi': this MPI was initialized without MPI_THREAD_MULTIPLE, which the watchdog needs"
            )
        _watchdogs.append(Watchdog(_Post()))
    _watchdogs[0].timeout = max(_watchdogs[0].timeout, timeout)
    if (float(timeout), check) not in _worlds:
        made = Mpi(MPI.COMM_WORLD.Dup(), _watchdogs[0], f"world {len(_worlds)}", float(timeout), check)
        if not _worlds:
            check_agreement(made.gather_objects, libraries())
        check_agreement(made.gather_objects, {"timeout of the communicator": timeout, "check of it": check})
        _worlds[float(timeout), check] = made
    return _worlds[float(timeout), check]
