"""Settling: gradients are summed over processes while a reverse pass computes others.

A gradient that is final waits in a :class:`Bucket` with others that are small, or has one of its own. A full bucket is
sent without waiting; whoever first needs one of its gradients waits, and adds. Elements are added in the order of
:mod:`backburn.decorators.sharding.trees` whatever is in a bucket, so that bits do not depend on buckets or time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from backburn.decorators.sharding import collectives
from backburn.decorators.sharding.rules import direct
from backburn.decorators.sharding.shards import Cuts, Shape, Shards, even_cuts, starts_of
from backburn.ops.bodies.slicing import slice_axis

#: The bytes with which a bucket is full.
FULL = 4 << 20
#: The bytes from which a gradient has a bucket of its own: it is sent from where it is, others are copied together.
ALONE = 1 << 20


@dataclass
class Column:
    """Arrays of the innermost backend that belong together in a bucket: the sums of this process's shards.

    With ``axis`` None every process gets the whole sum; else each gets a range along it, of the lengths ``lengths``.
    """

    sums: list[Any]
    axis: int | None
    lengths: Cuts

    @property
    def shape(self) -> Shape:
        """The shape of the whole sum."""
        return tuple(self.sums[0].shape)

    def shares(self) -> Cuts:
        """The number of elements that each process adds."""
        if self.axis is None:
            return self.lengths
        each = math.prod(self.shape[: self.axis] + self.shape[self.axis + 1 :])
        return tuple(n * each for n in self.lengths)

    def share(self, k: Any, x: Any, process: int) -> Any:
        """What a process adds of one of :attr:`sums`, as one axis."""
        start, length = starts_of(self.lengths)[process], self.lengths[process]
        start, stop = (start, start + length) if length else (0, 0)
        flat = (math.prod(self.shape),)
        if self.axis is None:
            return slice_axis(k, k.reshape(x, flat), 0, start, stop)
        part = slice_axis(k, x, self.axis, start, stop)
        return k.reshape(part, (self.shares()[process],))


class Bucket:
    """Gradients in addends that are sent together, all to be whole, or all to be cut as their parameters are."""

    def __init__(self, level: Any, whole: bool) -> None:
        """Empty, on a level."""
        self.level = level
        self.whole = whole
        self.size = 0
        self._items: list[tuple[Shards, int | None, Cuts]] = []
        self._likes: list[Any] = []
        self._columns: list[Column] = []
        self._pending: list[Any] = []
        self._received: list[list[Any]] = []

    def add(self, x: Shards, axis: int | None, cuts: Cuts) -> None:
        """Take in a gradient, which is to be cut along ``axis``, or whole for None."""
        x.settling = self
        self._items.append((x, axis, cuts))
        self.size += math.prod(x.shape) * self.level.dtype(x).itemsize

    @property
    def is_sent(self) -> bool:
        """Whether the bucket has been sent."""
        return self._items == [] or self._columns != []

    def send(self) -> None:
        """Send to each process what it adds, and wait for nothing."""
        level = self.level
        k, comm, rank = level.leaf_backend, level.communicator, level.communicator.rank
        for x, axis, cuts in self._items:
            parts = collectives.alike(level, x.parts, *([] if axis is None else [axis]))
            self._likes.append(parts[0])
            for column in collectives.columns(parts):
                sums = collectives.own_sums(level, column)
                lengths = (
                    even_cuts(math.prod(sums[0].shape), comm.size)
                    if axis is None
                    else collectives.of_processes(level, cuts)
                )
                self._columns.append(Column(sums, axis, lengths))
        nodes = collectives.nodes_of_processes(level.size, comm.size)
        dtype, mine = k.dtype(self._columns[0].sums[0]), sum(c.shares()[rank] for c in self._columns)
        nothing = comm.empty(k, (0,), dtype)
        self._received = [[comm.empty(k, (mine,), dtype) for _ in own] for own in nodes]
        for i in range(max(map(len, nodes))):
            has_it = i < len(nodes[rank])
            send = [
                comm.to_buffer(k, _joined(k, [c.share(k, c.sums[i], r) for c in self._columns])) if has_it else nothing
                for r in range(comm.size)
            ]
            receive = [row[i] if i < len(row) else comm.empty(k, (0,), dtype) for row in self._received]
            self._pending.append(comm.start_all_to_all(send, receive))

    def finish(self) -> None:
        """Wait, add, and put the sums where the gradients are: as their total, or as parts that are cut."""
        if not self.is_sent:
            self.level.open_buckets.forget(self)
            self.send()
        level = self.level
        k, comm = level.leaf_backend, level.communicator
        for pending in self._pending:
            pending.wait()
        found = [[comm.from_buffer(k, b) for b in row] for row in self._received]
        piece = collectives.root_sum(level, found)
        made = iter(self._gathered(piece) if self.whole else self._parts(piece))
        for (x, axis, cuts), like in zip(self._items, self._likes, strict=True):
            if axis is None:
                x.total = collectives.rebuilt(like, made)
            else:
                length = collectives.of_processes(level, cuts)[comm.rank]
                x.parts = collectives.split(level, collectives.rebuilt(like, made, axis, length), axis, cuts)
                x.axis, x.cuts = axis, cuts
            x.settling = None
        self._items, self._likes, self._columns, self._pending, self._received = [], [], [], [], []

    def _parts(self, piece: Any) -> Iterator[Any]:
        """This process's range of every column."""
        k, rank = self.level.leaf_backend, self.level.communicator.rank
        lengths = [c.shares()[rank] for c in self._columns]
        for column, start, length in zip(self._columns, starts_of(tuple(lengths)), lengths, strict=True):
            assert column.axis is not None
            shape = list(column.shape)
            shape[column.axis] = column.lengths[rank]
            part = piece if len(lengths) == 1 else slice_axis(k, piece, 0, *_range(start, length))
            yield k.reshape(part, tuple(shape))

    def _gathered(self, piece: Any) -> Iterator[Any]:
        """Every column, of whose ranges each process has added one."""
        level = self.level
        k, comm = level.leaf_backend, level.communicator
        shares = [c.shares() for c in self._columns]
        totals = [sum(column) for column in zip(*shares, strict=True)]
        buffer = comm.empty(k, (sum(totals),), k.dtype(piece))
        places = [*accumulate(totals, initial=0)]
        comm.all_gather(comm.to_buffer(k, piece), [buffer[a:b] for a, b in zip(places[:-1], places[1:], strict=True)])
        flat = comm.from_buffer(k, buffer)
        before = places[:-1]
        for column, share in zip(self._columns, shares, strict=True):
            if len(shares) == 1:
                yield k.reshape(flat, column.shape)
                continue
            ranges = [slice_axis(k, flat, 0, *_range(start, n)) for start, n in zip(before, share, strict=True)]
            before = [start + n for start, n in zip(before, share, strict=True)]
            yield k.reshape(_joined(k, ranges), column.shape)


def _range(start: int, length: int) -> tuple[int, int]:
    return (start, start + length) if length else (0, 0)


def _joined(k: Any, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else k.concat(parts, 0)


class OpenBuckets:
    """The buckets of a level that are not full, by dtype, and by whether their gradients become whole."""

    def __init__(self, level: Any) -> None:
        self._level = level
        self._open: dict[tuple[Any, bool], Bucket] = {}

    def add(self, x: Shards, axis: int | None, cuts: Cuts) -> None:
        """Take in a gradient, and send what is full."""
        level = self._level
        dtype = level.dtype(x)
        alone = math.prod(x.shape) * dtype.itemsize >= ALONE
        key = dtype, axis is None
        bucket = None if alone else self._open.get(key)
        if bucket is None:
            bucket = Bucket(level, axis is None)
        bucket.add(x, axis, cuts)
        if alone or bucket.size >= FULL:
            self.forget(bucket)
            bucket.send()
        else:
            self._open[key] = bucket

    def forget(self, bucket: Bucket) -> None:
        """Fill a bucket no further."""
        for key in [key for key, known in self._open.items() if known is bucket]:
            del self._open[key]


def settle(level: Any, gradient: Any, like: Any) -> Any:
    """A gradient in addends on its way to where its parameter is; any other one as it is, settled inside."""
    if not level.is_cut(gradient):
        return gradient
    if gradient.axis is not None:
        if level.below is None or not level.is_cut(like) or (like.axis, like.cuts) != (gradient.axis, gradient.cuts):
            return gradient
        inner = level.wrapped
        parts = [inner.settle(g, p) for g, p in zip(gradient.parts, like.parts, strict=True)]
        return Shards(parts, gradient.axis, gradient.cuts, gradient.shape, gradient.mesh_axis)
    if level.communicator.size == 1 or not level.deterministic or gradient.total is not None or 0 in gradient.shape:
        return gradient
    made = Shards(gradient.parts, None, (), gradient.shape, gradient.mesh_axis)
    axis, cuts = (like.axis, like.cuts) if level.is_cut(like) and like.axis is not None else (None, ())
    if axis is not None and level.below is not None:
        return gradient  # which levels inside may cut along the same axis
    level.open_buckets.add(made, axis, cuts)
    return made


direct("settle", settle)
