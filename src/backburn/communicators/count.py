"""``Count``: one process of any number, which sends nothing: its bytes are counted and its time is predicted.

Every buffer is one element broadcast to its shape, and received values are zeros. With the backend without values, a
step of one of thousands of processes can be simulated in the memory of a laptop.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from backburn.base.dtypes import DType, as_dtype
from backburn.base.errors import ArgumentError
from backburn.communicators.local import Done
from backburn.communicators.protocol import Buffer
from backburn.communicators.ranks import check_lists, check_root


@dataclass(frozen=True)
class Link:
    """A connection between processes: seconds for a message (``latency``), and bytes per second (``rate``)."""

    latency: float
    rate: float

    def seconds(self, messages: float, size: float) -> float:
        """The time to send ``messages`` sequentially, with ``size`` bytes in total."""
        return messages * self.latency + size / self.rate


#: Processes of one node: MPI in shared memory, on two cores of an AMD EPYC (Zen 4).
NEAR = Link(1e-6, 4e9)
#: Processes of different nodes: an assumption, 25 Gbit/s Ethernet, shared by the processes of a node.
FAR = Link(10e-6, 3e9)


@dataclass
class Counted:
    """Bytes and calls of a process by kind of collective, and their predicted time in seconds.

    ``sent`` counts bytes that leave the process by any route.
    """

    sent: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """The bytes sent by all collectives."""
        return sum(self.sent.values())

    def clear(self) -> None:
        """Set all counts to 0."""
        self.sent.clear()
        self.calls.clear()
        self.seconds = 0.0


class Count:
    """Process ``rank`` of ``size``, alone: it sends nothing, counts its bytes and predicts its time.

    ``per_node`` consecutive ranks are on each node; all of them by default. Messages within a node take the link
    ``near``, and between nodes ``far``, whose rate the processes of a node share. A collective first runs within nodes,
    then between them. ``counted`` is shared with the communicators from :meth:`split`.

    Raises :class:`ArgumentError` for a rank out of range, and for fewer than one process in all or per node.

    >>> comm = Count(1000, per_node=8)
    >>> gradients = comm.empty(None, (1_000_000,), "float32")
    >>> comm.all_reduce(gradients)
    >>> comm.counted.bytes, round(comm.counted.seconds * 1e3, 1)
    (7992000, 4.5)
    """

    name = "count"

    def __init__(
        self,
        size: int = 1,
        rank: int = 0,
        *,
        per_node: int | None = None,
        near: Link = NEAR,
        far: Link = FAR,
        counted: Counted | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """``ranks`` are the ranks of these processes in the whole program; by default ``range(size)``."""
        if size < 1 or not 0 <= rank < size or (per_node is not None and per_node < 1):
            raise ArgumentError(f"count: there is no rank {rank} of {size} processes, {per_node or size} for each node")
        self.size = size
        self.rank = rank
        self.per_node = per_node or size
        self.near = near
        self.far = far
        self.counted = Counted() if counted is None else counted
        self.ranks = range(size) if ranks is None else ranks
        node = self.ranks[rank] // self.per_node
        on_node = [r for r, number in enumerate(self.ranks) if number // self.per_node == node]
        #: The processes of this communicator that are on this node.
        self.on_node = range(on_node[0], on_node[-1] + 1) if len(on_node) == on_node[-1] - on_node[0] + 1 else on_node

    def split(self, colors: Sequence[int]) -> Count:
        """The communicator of the processes with this one's color."""
        chosen = [r for r in range(self.size) if colors[r] == colors[self.rank]]
        return Count(
            len(chosen), chosen.index(self.rank), per_node=self.per_node, near=self.near, far=self.far,
            counted=self.counted, ranks=[self.ranks[r] for r in chosen],
        )  # fmt: skip

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A buffer that holds the memory of a primitive of backend ``k``, or none without a backend."""
        known = as_dtype(dtype)
        return _buffer(tuple(shape), known.dtype, None if k is None else k.zeros(tuple(shape), known))

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """A buffer of the shape and dtype of a primitive, with its memory unless ``own`` is true."""
        dtype = k.dtype(x)
        return self.empty(k, x.shape, dtype) if own else _buffer(tuple(x.shape), dtype.dtype, x)

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """The primitive that a buffer holds, or zeros for a part of a buffer."""
        held, shape = buffer.held, tuple(buffer.shape)
        if held is not None and tuple(held.shape) == shape:
            return held
        if held is not None and math.prod(held.shape) == buffer.size:
            return k.reshape(held, shape)
        return k.zeros(shape, as_dtype(buffer.dtype))

    def add(self, x: Buffer, y: Buffer, total: Buffer) -> None:
        """Add nothing: buffers have no values."""

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Count ``send`` once for every other process."""
        check_lists("all_gather", self.size, receive)
        self._exchange("all_gather", [send.nbytes] * self.size)

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Count the bytes sent to every other process."""
        check_lists("all_to_all", self.size, send, receive)
        self._exchange("all_to_all", [x.nbytes for x in send])

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Done:
        """Count as :meth:`all_to_all` does: no overlap with computation is assumed."""
        self.all_to_all(send, receive)
        return Done()

    def can_reduce(self, buffer: Buffer) -> bool:
        """True: nothing is added."""
        return True

    def all_reduce(self, buffer: Buffer) -> None:
        """Count a reduce-scatter and an all-gather: twice the buffer without this rank's part."""
        share = buffer.nbytes / self.size
        near, nodes = len(self.on_node), math.ceil(self.size / len(self.on_node))
        seconds = self.near.seconds(2 * _rounds(near), 2 * share * self.size * (near - 1) / near)
        seconds += self.far.seconds(2 * _rounds(nodes), 2 * buffer.nbytes * (nodes - 1) / nodes)
        self._add("all_reduce", round(2 * share * (self.size - 1)), seconds)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Count the buffer once: in a tree, every process but the leaves passes it on."""
        check_root(root, self.size)
        near, nodes = len(self.on_node), math.ceil(self.size / len(self.on_node))
        passed_on = buffer.nbytes if self.size > 1 else 0
        seconds = self.near.seconds(_rounds(near), buffer.nbytes * (near > 1))
        self._add("broadcast", passed_on, seconds + self.far.seconds(_rounds(nodes), buffer.nbytes * (nodes > 1)))

    def gather_objects(self, value: object) -> list[Any]:
        """The value of this process for every rank; the rounds are counted, the few bytes are not."""
        self._rounds_of("gather_objects")
        return [value] * self.size

    def barrier(self) -> None:
        """Count the rounds."""
        self._rounds_of("barrier")

    def abort(self, message: str) -> NoReturn:
        """Print the message and end this process with status 1."""
        print(f"backburn: rank {self.rank} of {self.size}: {message}", file=sys.stderr, flush=True)
        raise SystemExit(1)

    def _exchange(self, kind: str, sizes: Sequence[int]) -> None:
        """Count messages to every other process; empty ones are not sent."""
        near = [sizes[r] for r in self.on_node if r != self.rank]
        size = sum(sizes) - sizes[self.rank]
        messages = sum(map(bool, sizes)) - bool(sizes[self.rank])
        near_size, near_messages = sum(near), sum(map(bool, near))
        seconds = self.near.seconds(near_messages, near_size)
        share = len(self.on_node)  # the processes of a node share its connection
        self._add(kind, size, seconds + self.far.seconds(messages - near_messages, (size - near_size) * share))

    def _rounds_of(self, kind: str) -> None:
        near, nodes = len(self.on_node), math.ceil(self.size / len(self.on_node))
        self._add(kind, 0, self.near.seconds(_rounds(near), 0) + self.far.seconds(_rounds(nodes), 0))

    def _add(self, kind: str, size: int, seconds: float) -> None:
        self.counted.calls[kind] += 1
        if self.size > 1:
            self.counted.sent[kind] += size
            self.counted.seconds += seconds


class _Buffer(np.ndarray[Any, np.dtype[Any]]):
    """An array whose elements share memory. It and its parts keep alive the primitive ``held``."""

    held: Any

    def __array_finalize__(self, whole: Any) -> None:
        self.held = getattr(whole, "held", None)


def _buffer(shape: tuple[int, ...], dtype: np.dtype[Any], held: Any) -> _Buffer:
    made = np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, (0,) * len(shape)).view(_Buffer)
    made.held = held
    return made


def _rounds(processes: int) -> int:
    """The rounds until a message has reached every process."""
    return math.ceil(math.log2(processes)) if processes > 1 else 0


_world: list[Count] = []


def world() -> Count:
    """The communicator for ``comm=count``: that of :func:`counting`, else one of a single process."""
    return _world[-1] if _world else Count()


@contextmanager
def counting(comm: Count) -> Iterator[Count]:
    """Use a communicator for ``comm=count`` inside the block.

    >>> with counting(Count(8, rank=3)):
    ...     world().rank, world().size
    (3, 8)
    """
    _world.append(comm)
    try:
        yield comm
    finally:
        _world.pop()
