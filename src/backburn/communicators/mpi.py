"""``Mpi``: the processes that ``mpiexec``, ``srun`` or ``backburn launch`` started, by mpi4py.

Importing this module initializes MPI. Buffers are NumPy arrays, which are sent from and received into where they lie.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from backburn.base.dtypes import DType
from backburn.base.errors import BackendUnavailableError, Unsupported
from backburn.communicators.local import from_host_array, host_array
from backburn.communicators.protocol import Buffer
from backburn.communicators.ranks import check_lists, check_root
from backburn.communicators.wheels import prepare_mpi

prepare_mpi()
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as cause:
    raise BackendUnavailableError(
        f"communicator 'mpi': mpi4py or an MPI library is missing ({str(cause).splitlines()[0]}). "
        f"On a cluster: pip install backburn[mpi] and its MPI (module load ...); elsewhere: "
        f"pip install backburn[mpi-local]"
    ) from cause

#: What MPI has no type of, or not everywhere, is moved as integers of its size.
_MOVED_AS = {"float16": np.dtype("uint16"), "bfloat16": np.dtype("uint16"), "bool": np.dtype("uint8")}
#: The dtypes that MPI adds.
_ADDED = frozenset(["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


class Mpi:
    """The processes of an MPI communicator.

    Collectives are called from one thread at a time.
    """

    name = "mpi"

    def __init__(self, comm: Any) -> None:
        """Around an ``mpi4py.MPI.Comm``, which nothing else uses."""
        self._comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size

    def split(self, colors: Sequence[int]) -> Mpi:
        """The communicator of the processes with this one's color, by rank."""
        return Mpi(self._comm.Split(colors[self.rank], self.rank))

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A NumPy array without values."""
        return np.empty(tuple(shape), dtype.dtype)

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """The values of a primitive as a NumPy array."""
        return host_array(k, x, own)

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """A primitive with the values of a NumPy array."""
        return from_host_array(k, buffer)

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Fill ``receive`` with what each process sends."""
        check_lists("all_gather", self.size, receive)
        self._start([send] * self.size, receive).wait()

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Send one buffer to each process and receive one from each."""
        check_lists("all_to_all", self.size, send, receive)
        self._start(send, receive).wait()

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Exchange:
        """Start :meth:`all_to_all`."""
        check_lists("all_to_all", self.size, send, receive)
        return self._start(send, receive)

    def _start(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Exchange:
        comm, rank, size = self._comm, self.rank, self.size
        others = [(rank + i) % size for i in range(1, size)]
        requests = [comm.Irecv(_moved(receive[r]), r) for r in reversed(others) if receive[r].size]
        requests += [comm.Isend(_moved(send[r]), r) for r in others if send[r].size]
        if receive[rank] is not send[rank]:
            receive[rank][...] = send[rank]
        return Exchange(requests, (send, receive))

    def can_reduce(self, buffer: Buffer) -> bool:
        """Whether MPI adds the dtype: all but float16, bfloat16 and bool."""
        return buffer.dtype.name in _ADDED

    def all_reduce(self, buffer: Buffer) -> None:
        """Replace a buffer by its sum over the processes, as MPI's ``Allreduce`` adds it up."""
        if not self.can_reduce(buffer):
            raise Unsupported(f"all_reduce: MPI does not add {buffer.dtype.name}; sums in a fixed order do")
        self._comm.Allreduce(MPI.IN_PLACE, buffer)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Fill a buffer with that of the process ``root``."""
        check_root(root, self.size)
        self._comm.Bcast(_moved(buffer), root)

    def gather_objects(self, value: object) -> list[Any]:
        """The ``value`` of every process, by rank."""
        return self._comm.allgather(value)

    def barrier(self) -> None:
        """Return when every process has called this."""
        self._comm.Barrier()

    def abort(self, message: str) -> NoReturn:
        """Print a message that names this process, and end all processes with status 1."""
        world = MPI.COMM_WORLD
        print(f"backburn: rank {world.rank} of {world.size}: {message}", file=sys.stderr, flush=True)
        world.Abort(1)
        raise SystemExit(1)  # not reached: for type checkers


class Exchange:
    """Messages on their way."""

    def __init__(self, requests: list[Any], buffers: Any) -> None:
        """With the buffers, which must live until the messages have arrived."""
        self._requests = requests
        self._buffers = buffers

    def wait(self) -> None:
        """Return when all messages have arrived."""
        MPI.Request.Waitall(self._requests)
        self._requests, self._buffers = [], None


def _moved(buffer: Any) -> Any:
    """A buffer as MPI moves it."""
    other = _MOVED_AS.get(buffer.dtype.name)
    return buffer if other is None else buffer.view(other)


_world: list[Mpi] = []


def world() -> Mpi:
    """The communicator of all processes of this program; the same object at every call."""
    if not _world:
        _world.append(Mpi(MPI.COMM_WORLD.Dup()))
    return _world[0]
