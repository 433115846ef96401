"""The reduction of gradients over processes, while a reverse pass computes others.

A final gradient is collected in a :class:`Bucket` with other small ones or, if it is large, has a separate one. A full
bucket is sent without waiting; the first use of one of its gradients waits, and adds. Elements are added in the order
of :mod:`backburn.decorators.sharding.trees`: results are bitwise equal for any buckets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

from backburn.decorators.sharding import collectives
from backburn.decorators.sharding.rules import direct
from backburn.decorators.sharding.shards import Cuts, Shape, Shards, even_cuts, starts_of
from backburn.ops.bodies.slicing import slice_axis

#: The bytes at which a bucket is full.
FULL = 4 << 20
#: The bytes from which a gradient has a separate bucket, and is sent without a copy; others are copied together.
ALONE = 1 << 20


class Column:
    """Arrays of the innermost backend that belong together in a bucket: the sums of this process's shards.

    With ``axis`` None every process gets the whole sum, and adds one of the ``lengths`` of its elements; else each gets
    a range along ``axis``, of these lengths. ``shares`` are the numbers of elements that the processes add.
    """

    def __init__(self, sums: list[Any], axis: int | None, lengths: Cuts) -> None:
        self.sums = sums
        self.axis = axis
        self.lengths = lengths
        self.shape: Shape = tuple(sums[0].shape)
        each = 1 if axis is None else math.prod(self.shape[:axis] + self.shape[axis + 1 :])
        self.shares = tuple(n * each for n in lengths)
        self._starts = starts_of(lengths)

    def share(self, k: Any, x: Any, process: int) -> Any:
        """The elements of one of :attr:`sums` that a process adds, as one axis."""
        start, stop = _range(self._starts[process], self.lengths[process])
        if self.axis is None:
            return slice_axis(k, k.reshape(x, (math.prod(self.shape),)), 0, start, stop)
        return k.reshape(slice_axis(k, x, self.axis, start, stop), (self.shares[process],))


class Bucket:
    """Gradients in addends that are sent together, all to be whole, or all to be cut as their parameters are."""

    def __init__(self, level: Any, whole: bool) -> None:
        """Empty, on a level."""
        self.level = level
        self.whole = whole
        self.size = 0
        self._items: list[tuple[Shards, Any]] = []
        self._likes: list[Any] = []
        self._columns: list[Column] = []
        self._pending: list[Any] = []
        self._received: list[list[Any]] = []

    def add(self, x: Shards, like: Any) -> None:
        """Add a gradient, which is to be placed as ``like`` is."""
        x.reduction = self
        self._items.append((x, like))
        self.size += math.prod(x.shape) * self.level.dtype(x).itemsize

    @property
    def is_sent(self) -> bool:
        """Whether the bucket has been sent."""
        return self._items == [] or self._columns != []

    def send(self) -> None:
        """Send to each process the elements that it adds, without waiting."""
        level = self.level
        k, comm, rank = level.leaf_backend, level.communicator, level.communicator.rank
        for x, like in self._items:
            parts = collectives.alike(level, x.parts)
            self._likes.append(parts[0])
            for column in collectives.columns(parts):
                sums = collectives.own_sums(level, column)
                if self.whole:
                    self._columns.append(Column(sums, None, even_cuts(math.prod(sums[0].shape), comm.size)))
                else:
                    self._columns.append(Column(sums, like.axis, collectives.of_processes(level, like.cuts)))
        nodes = collectives.nodes_of_processes(level.size, comm.size)
        dtype, mine = k.dtype(self._columns[0].sums[0]), sum(c.shares[rank] for c in self._columns)
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
        """Wait, add, and store the sums in the gradients: as their totals, or as cut parts."""
        if not self.is_sent:
            self.level.open_buckets.forget(self)
            self.send()
        level = self.level
        k, comm = level.leaf_backend, level.communicator
        for pending in self._pending:
            pending.wait()
        piece = collectives.root_sum(level, [[comm.from_buffer(k, b) for b in row] for row in self._received])
        made = iter(self._gathered(piece) if self.whole else self._parts(piece))
        for (x, like), part in zip(self._items, self._likes, strict=True):
            if self.whole:
                found = collectives.rebuilt(part, made, {})
                x.total = found if level.below is None else level.wrapped.settle(found, like)
            else:
                x.parts = collectives.split(level, next(made), like.axis, like.cuts)
                x.axis, x.cuts = like.axis, like.cuts
            x.reduction = None
        self._items, self._likes, self._columns, self._pending, self._received = [], [], [], [], []

    def _parts(self, piece: Any) -> Iterator[Any]:
        """This process's range of every column."""
        k, rank = self.level.leaf_backend, self.level.communicator.rank
        lengths = [c.shares[rank] for c in self._columns]
        for column, start, length in zip(self._columns, starts_of(tuple(lengths)), lengths, strict=True):
            assert column.axis is not None
            shape = list(column.shape)
            shape[column.axis] = column.lengths[rank]
            part = piece if len(lengths) == 1 else slice_axis(k, piece, 0, *_range(start, length))
            yield k.reshape(part, tuple(shape))

    def _gathered(self, piece: Any) -> Iterator[Any]:
        """Every column, gathered from the ranges that the processes have added."""
        level = self.level
        k, comm = level.leaf_backend, level.communicator
        shares = [c.shares for c in self._columns]
        totals = [sum(column) for column in zip(*shares, strict=True)]
        buffer = comm.empty(k, (sum(totals),), k.dtype(piece))
        places = [*accumulate(totals, initial=0)]
        comm.all_gather(comm.to_buffer(k, piece), [buffer[a:b] for a, b in pairwise(places)])
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

    def add(self, x: Shards, like: Any) -> None:
        """Add a gradient, which is to be placed as ``like`` is, and send its bucket when full."""
        level, whole = self._level, not self._level.is_cut(like)
        dtype = level.dtype(x)
        alone = math.prod(x.shape) * dtype.itemsize >= ALONE
        key = dtype, whole
        bucket = None if alone else self._open.get(key)
        if bucket is None:
            bucket = Bucket(level, whole)
        bucket.add(x, like)
        if alone or bucket.size >= FULL:
            self.forget(bucket)
            bucket.send()
        else:
            self._open[key] = bucket

    def forget(self, bucket: Bucket) -> None:
        """Add nothing more to a bucket."""
        for key in [key for key, known in self._open.items() if known is bucket]:
            del self._open[key]


def settle(level: Any, gradient: Any, like: Any) -> Any:
    """A gradient in addends, summed or about to be: whole where ``like`` is whole, else cut as it is.

    Placements are those of one process, which adds at once, so later results are bitwise equal.
    """
    if not level.is_cut(gradient):
        return gradient
    is_target_cut = level.is_cut(like) and like.axis is not None
    if gradient.axis is None:
        if not level.deterministic or 0 in gradient.shape or (level.is_cut(like) and not is_target_cut):
            return gradient
        if level.communicator.size > 1 and gradient.total is None and not (is_target_cut and level.below is not None):
            made = Shards(gradient.parts, None, (), gradient.shape, gradient.mesh_axis)
            level.open_buckets.add(made, like)
            return made
        if not is_target_cut:
            total = collectives.total(level, gradient.parts) if gradient.total is None else gradient.total
            return level.wrapped.settle(total, like)
        assert like.axis is not None
        parts = collectives.scattered(level, gradient, like.axis, like.cuts)
    elif level.below is not None and is_target_cut and (like.axis, like.cuts) == (gradient.axis, gradient.cuts):
        parts = gradient.parts
    else:
        return gradient
    inner = level.wrapped
    reduced = [inner.settle(g, p) for g, p in zip(parts, like.parts, strict=True)]
    return Shards(reduced, like.axis, like.cuts, gradient.shape, gradient.mesh_axis)


direct("settle", settle)
