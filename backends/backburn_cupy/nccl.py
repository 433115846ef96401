"""``Nccl``: the GPUs of several processes, one each, by NCCL through CuPy; MPI moves host data.

Buffers are CuPy arrays, which go from GPU to GPU without the host. Calls return when they are queued on CuPy's current
stream. A thread watches what was queued: where NCCL reports an error, or a collective does not end in time, it aborts
all processes, for nothing else would end them. Importing this module neither imports CuPy nor touches a device.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, BackendUnavailableError, Unsupported
from backburn.communicators.protocol import Buffer, Communicator

#: NCCL's numbers of the dtypes that it adds (nccl.h, ``ncclDataType_t``); CuPy has no name for that of bfloat16.
ADDED = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9,
}  # fmt: skip
#: The type as which everything else is moved.
BYTE = ADDED["uint8"]
#: NCCL's number of the sum (``ncclRedOp_t``).
SUM = 0
#: Seconds between two checks of queued collectives.
PERIOD = 0.05


class Nccl:
    """The processes of ``host``, each with the GPU on which its first buffer is.

    NCCL is initialized by the first collective, together by all processes. ``timeout`` is the number of seconds that a
    collective may take before all processes are aborted.

    Raises :class:`BackendUnavailableError` where CuPy has no NCCL.
    """

    name = "nccl"

    def __init__(self, host: Communicator, *, timeout: float = 300.0) -> None:
        """Around the communicator that carries the identity of the group, small objects and errors."""
        self._host = host
        self._timeout = timeout
        self._cupy, self._nccl = library()
        self._group: Any = None
        self._watch: Watch | None = None
        self.rank = host.rank
        self.size = host.size

    def split(self, colors: Sequence[int]) -> Nccl:
        """The processes with this one's color, by rank, which are another group of NCCL's."""
        return Nccl(self._host.split(colors), timeout=self._timeout)

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A CuPy array without values."""
        return self._cupy.ndarray(tuple(shape), dtype.dtype)

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """The primitive itself, which is a CuPy array; a copy if it is not contiguous, or with ``own``.

        Raises :class:`ArgumentError` for primitives of other backends.
        """
        if not isinstance(x, self._cupy.ndarray):
            raise ArgumentError(f"nccl: moves arrays of CuPy, and {k.spec} has {type(x).__name__}; take comm=mpi")
        return x.copy() if own else self._cupy.ascontiguousarray(x).reshape(x.shape)

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """The array itself."""
        return buffer

    def add(self, x: Buffer, y: Buffer, total: Buffer) -> None:
        """Fill ``total`` with the sum of two arrays."""
        self._cupy.add(x, y, out=total)

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Fill ``receive`` with what each process sends: in one call if they are contiguous in memory."""
        self._check_lists("all_gather", receive)
        with self._queued("all_gather", send) as (group, stream):
            size, start = send.nbytes, receive[0].data.ptr
            if all(x.nbytes == size and x.data.ptr == start + i * size for i, x in enumerate(receive)):
                if size:
                    group.allGather(send.data.ptr, start, size, BYTE, stream)
                return
            self._send_and_receive(group, [send] * self.size, receive, stream)

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Send one buffer to each process and receive one from each, all in one group of calls."""
        self._check_lists("all_to_all", send, receive)
        with self._queued("all_to_all", *send) as (group, stream):
            self._send_and_receive(group, send, receive, stream)

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Exchange:
        """Start :meth:`all_to_all` on a separate stream, which first waits for what has been queued so far."""
        cupy = self._cupy
        stream, before = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
        before.record()
        stream.wait_event(before)
        with stream:
            self.all_to_all(send, receive)
            after = cupy.cuda.Event()
            after.record()
        return Exchange(cupy, after, (send, receive, stream))

    def can_reduce(self, buffer: Buffer) -> bool:
        """Whether NCCL adds the dtype: all but bool and 16-bit integers."""
        return buffer.dtype.name in ADDED

    def all_reduce(self, buffer: Buffer) -> None:
        """Replace a buffer by its sum over the processes, as NCCL adds it up.

        Raises :class:`Unsupported` for bool and 16-bit integers.
        """
        kind = ADDED.get(buffer.dtype.name)
        if kind is None:
            raise Unsupported(f"all_reduce: NCCL does not add {buffer.dtype.name}; sums in a fixed order do")
        with self._queued("all_reduce", buffer) as (group, stream):
            if buffer.size:
                group.allReduce(buffer.data.ptr, buffer.data.ptr, buffer.size, kind, SUM, stream)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Fill a buffer with that of the process ``root``."""
        if not 0 <= root < self.size:
            raise ArgumentError(f"broadcast: there is no rank {root} among {self.size}")
        with self._queued("broadcast", buffer) as (group, stream):
            if buffer.nbytes:
                group.broadcast(buffer.data.ptr, buffer.data.ptr, buffer.nbytes, BYTE, root, stream)

    def gather_objects(self, value: object) -> list[Any]:
        """The ``value`` of every process, by rank, through the host."""
        return self._host.gather_objects(value)

    def barrier(self) -> None:
        """Return when every process has called this, and what it had queued is done."""
        self._cupy.cuda.get_current_stream().synchronize()
        self._host.barrier()

    def abort(self, message: str) -> NoReturn:
        """Abort what NCCL is doing, and end all processes."""
        if self._group is not None:
            self._group.abort()
        self._host.abort(message)

    def _check_lists(self, operation: str, *lists: Sequence[Buffer]) -> None:
        for buffers in lists:
            if len(buffers) != self.size:
                raise ArgumentError(f"{operation}: {len(buffers)} buffers for {self.size} processes: pass one for each")

    @contextmanager
    def _queued(self, operation: str, *buffers: Buffer) -> Iterator[tuple[Any, int]]:
        """The group and the stream of a collective, which is watched from then on."""
        with self._cupy.cuda.Device(buffers[0].device.id):
            group = self._initialized()
            stream = self._cupy.cuda.get_current_stream()
            yield group, stream.ptr
            done = self._cupy.cuda.Event(disable_timing=True)
            done.record(stream)
        assert self._watch is not None
        self._watch.add(done, operation)

    def _initialized(self) -> Any:
        """NCCL's communicator, created by the first call, on the current device."""
        if self._group is None:
            identity = self._nccl.get_unique_id() if self.rank == 0 else None
            identity = self._host.gather_objects(identity)[0]
            self._group = self._nccl.NcclCommunicator(self.size, identity, self.rank)
            self._watch = Watch(self._group, self._timeout, self.abort)
        return self._group

    def _send_and_receive(self, group: Any, send: Sequence[Buffer], receive: Sequence[Buffer], stream: int) -> None:
        """Exchange buffers with all others in one group of calls, and copy this process's own."""
        self._nccl.groupStart()
        try:
            for i in range(1, self.size):
                to, source = (self.rank + i) % self.size, (self.rank - i) % self.size
                if send[to].nbytes:
                    group.send(send[to].data.ptr, send[to].nbytes, BYTE, to, stream)
                if receive[source].nbytes:
                    group.recv(receive[source].data.ptr, receive[source].nbytes, BYTE, source, stream)
        finally:
            self._nccl.groupEnd()
        if receive[self.rank].nbytes:
            receive[self.rank][...] = send[self.rank]


class Exchange:
    """An exchange on a separate stream."""

    def __init__(self, cupy: Any, done: Any, kept: Any) -> None:
        """With the event after it, and the objects to keep alive until then."""
        self._cupy, self._done, self._kept = cupy, done, kept

    def wait(self) -> None:
        """Let the current stream wait for the exchange; the host goes on."""
        self._cupy.cuda.get_current_stream().wait_event(self._done)
        self._kept = None


@dataclass
class Queued:
    """A queued collective: the event after it, and its deadline."""

    done: Any
    operation: str
    until: float


class Watch:
    """Watches queued collectives from a thread, and aborts when NCCL reports an error or time runs out.

    The thread runs while something is queued.
    """

    def __init__(self, group: Any, timeout: float, abort: Any) -> None:
        self._group = group
        self._timeout = timeout
        self._abort = abort
        self._queue: deque[Queued] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, done: Any, operation: str) -> None:
        """Watch a collective that has just been queued, whose end is the event ``done``."""
        with self._lock:
            self._queue.append(Queued(done, operation, time.monotonic() + self._timeout))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backburn-nccl", daemon=True)
                self._thread.start()

    def look(self, now: float) -> bool:
        """Drop what is done, and abort if there is an error or time has run out; returns whether anything is left."""
        with self._lock:
            while self._queue and self._queue[0].done.done:
                self._queue.popleft()
            if not self._queue:
                self._thread = None
                return False
            first = self._queue[0]
        problem = self._problem()
        if problem is not None:
            self._abort(f"{first.operation}: NCCL reports {problem}")
        if now > first.until:
            self._abort(f"{first.operation} did not end within {self._timeout:g} s: another process is stuck or gone")
        return True

    def _problem(self) -> str | None:
        """The error that NCCL reports, in words."""
        try:
            self._group.check_async_error()
        except RuntimeError as error:
            return str(error)
        return None

    def _run(self) -> None:
        while self.look(time.monotonic()):
            time.sleep(PERIOD)


def library() -> tuple[Any, Any]:
    """CuPy and its module of NCCL.

    Raises :class:`BackendUnavailableError`, with what to install, where one of them is missing.
    """
    try:
        import cupy

        nccl = importlib.import_module("cupy.cuda.nccl")
    except ImportError as cause:
        raise BackendUnavailableError(
            f"communicator 'nccl': CuPy with NCCL is missing ({cause}); pip install backburn[cuda13,mpi] and NCCL "
            f"(nvidia-nccl-cu13), or take comm=mpi, which goes through the host"
        ) from cause
    if not getattr(nccl, "available", False):
        raise BackendUnavailableError(
            "communicator 'nccl': CuPy finds no NCCL library; pip install nvidia-nccl-cu13 (or -cu12), or take "
            "comm=mpi, which goes through the host"
        )
    return cupy, nccl


_world: list[Nccl] = []


def world(**options: Any) -> Nccl:
    """The communicator of all processes of this program, which MPI has started; the same object at every call."""
    if not _world:
        from backburn.communicators import load_communicator

        _world.append(Nccl(load_communicator("mpi"), **options))
    return _world[0]
