"""``Communicator``: the protocol by which the processes of a distributed program exchange buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

from backburn.base.dtypes import DType

#: Contiguous memory that a communicator sends or fills; its type is that of :meth:`Communicator.empty`.
Buffer = Any


class Pending(Protocol):
    """A collective that has been started."""

    def wait(self) -> None:
        """Return when the buffers have been filled and may be written again."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """The processes that compute together, and the exchange of buffers between them.

    The collectives are called by all processes of a communicator, in the same order. Buffers that a collective fills
    are contiguous; lengths may be 0. Every dtype can be moved; which ones :meth:`all_reduce` sums is given by
    :meth:`can_reduce`. Buffers that are sent are not written while a collective runs.
    """

    #: The name in an expression: ``sharded(numpy, dp=4, comm=mpi)``.
    name: str
    #: The number of this process, from 0.
    rank: int
    #: The number of processes.
    size: int

    def split(self, colors: Sequence[int]) -> Communicator:
        """The communicator of the processes with this one's color, by rank.

        ``colors`` has one for each process, and is the same on all, so no communication is needed to find the groups.
        """
        ...

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A new uninitialized buffer, to be filled and then passed to :meth:`from_buffer`."""
        ...

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """The values of a primitive of backend ``k``; may be its memory, which is only read, unless ``own`` is true."""
        ...

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """A primitive of backend ``k`` with the values of a buffer, which must not be written afterwards."""
        ...

    def add(self, x: Buffer, y: Buffer, total: Buffer) -> None:
        """Fill ``total``, which may be one of the two, with the sum of two buffers."""
        ...

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Fill ``receive``, one buffer for each process, with what each process sends; the lengths may differ.

        ``receive`` may also be one buffer with an additional first axis, whose rows are filled. ``send`` may be this
        process's buffer in ``receive``.
        """
        ...

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Send one buffer to each process and receive one from each; the lengths may differ."""
        ...

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Pending:
        """Start :meth:`all_to_all`; the buffers must not be used until :meth:`Pending.wait` has returned."""
        ...

    def can_reduce(self, buffer: Buffer) -> bool:
        """Whether :meth:`all_reduce` sums the dtype of a buffer."""
        ...

    def all_reduce(self, buffer: Buffer) -> None:
        """Replace a buffer by its sum over the processes, in an order that the engine chooses.

        Raises :class:`Unsupported` for a dtype that the engine does not sum.
        """
        ...

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Fill a buffer with that of the process ``root``."""
        ...

    def gather_objects(self, value: object) -> list[Any]:
        """The ``value`` of every process, by rank: small Python objects, which are pickled."""
        ...

    def barrier(self) -> None:
        """Return when every process has called this."""
        ...

    def abort(self, message: str) -> NoReturn:
        """Print a message that names this process, and end all processes with a non-zero exit status."""
        ...
