"""Collectives of a level: joins and sums over all shards, of the parts that each process has.

Results are bitwise equal to those of one process with all shards: joins move elements, and sums add in the order of
:mod:`backburn.decorators.sharding.trees` with the inner backend's ``add``. Parts may themselves be ``Shards`` of the
levels inside. Then all shards first agree on how the parts are cut inside (:func:`alike`), and processes at the same
position inside exchange arrays of the innermost backend, the leaves.

Kernels may round differently for other memory layouts. So results are C-contiguous (:func:`dense`), as received ones
are, even where nothing was sent.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import Any

from backburn.base.dtypes import as_dtype
from backburn.communicators.sums import sum_in_order
from backburn.decorators.sharding.shards import Cuts, Shape, Shards, even_cuts, starts_of
from backburn.decorators.sharding.trees import Node, node_sum, root, subtrees
from backburn.ops.bodies.slicing import slice_axis

#: Addends of at most this many bytes are added whole by every process: one exchange takes less time than two.
WHOLE_SUM = 16 << 10


# ---- parts that are cut inside ----


def structure(x: Any) -> Any:
    """How a primitive is cut on the levels inside; None if it is whole."""
    if x.__class__ is not Shards:
        return None
    return x.mesh_axis, x.axis, x.cuts, structure(x.parts[0])


def alike(level: Any, parts: list[Any], *axes: int) -> list[Any]:
    """Parts of a level, cut alike inside on all shards, and along none of ``axes``; whole if they were not alike."""
    if level.below is None:
        return parts
    parts = [_opened(level.below, p, axes) for p in parts]
    if level.size == 1:
        return parts
    found = [structure(p) for p in parts]
    if level.communicator.size > 1:
        found = [s for row in level.communicator.gather_objects(found) for s in row]
    if all(s == found[0] for s in found):
        return parts
    return [_bare(level.below, p) for p in parts]


def _opened(level: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """A primitive of ``level`` that is cut along none of ``axes``, and alike on its shards."""
    while level is not None and not level.is_cut(x):
        level = level.below
    if level is None:
        return x
    if x.axis in axes:
        return _opened(level.below, level.whole(x), axes) if level.below else level.whole(x)
    return Shards(alike(level, x.parts, *axes), x.axis, x.cuts, x.shape, x.mesh_axis)


def _bare(level: Any, x: Any) -> Any:
    """A primitive of ``level`` that is whole on it and on all levels inside."""
    while level is not None:
        x, level = level.whole(x), level.below
    return x


def leaves(x: Any) -> list[Any]:
    """The arrays of a primitive in this process."""
    if x.__class__ is not Shards:
        return [x]
    return [leaf for p in x.parts for leaf in leaves(p)]


def rebuilt(like: Any, found: Iterator[Any], lengths: Mapping[int, int]) -> Any:
    """A primitive that is cut inside as ``like`` is, with other leaves, and other ``lengths`` by axis."""
    if like.__class__ is not Shards:
        return next(found)
    parts = [rebuilt(p, found, lengths) for p in like.parts]
    return Shards(parts, like.axis, like.cuts, _with_lengths(like.shape, lengths), like.mesh_axis)


def _with_lengths(shape: Shape, lengths: Mapping[int, int]) -> Shape:
    return tuple([lengths.get(axis, n) for axis, n in enumerate(shape)])


def columns(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The leaves of parts that are cut alike: for each leaf, one of every part."""
    return list(zip(*map(leaves, parts), strict=True))


# ---- layouts over processes ----


def of_processes(level: Any, cuts: Cuts) -> Cuts:
    """The length of a cut axis in each process."""
    each = len(level.own)
    return tuple(sum(cuts[i : i + each]) for i in range(0, level.size, each))


def dense(x: Any) -> Any:
    """A primitive with C-contiguous arrays, as received ones are, where their library has memory orders."""
    if x.__class__ is Shards:
        return Shards([dense(p) for p in x.parts], x.axis, x.cuts, x.shape, x.mesh_axis)
    flags = getattr(x, "flags", None)
    return x if flags is None or flags.c_contiguous else x.copy(order="C")


def _joined_leaf(k: Any, parts: Sequence[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else k.concat(list(parts), axis)


def split(level: Any, x: Any, axis: int, cuts: Cuts) -> list[Any]:
    """This process's range of an axis, split into the parts of its shards."""
    own = level.mine(cuts)
    if len(own) == 1:
        return [dense(x)]
    places = zip(starts_of(own), own, strict=True)
    return [dense(level.sliced(x, axis, start, length)) for start, length in places]


def _parts_of_whole(level: Any, x: Any, axis: int, cuts: Cuts) -> list[Any]:
    """The result of :func:`split` for a primitive that all processes have."""
    return [dense(p) for p in level.cut_parts(x, axis, cuts)]


def is_leading(shape: Shape, axis: int) -> bool:
    """Whether ranges along an axis are contiguous in memory."""
    return math.prod(shape[:axis]) == 1


# ---- joins ----


def joined(level: Any, parts: list[Any], axis: int, cuts: Cuts) -> Any:
    """The inner primitive that joins the parts of all shards along ``axis``."""
    if level.below is None and level.communicator.size == 1:
        return dense(level.wrapped.concat(parts, axis))
    parts = alike(level, parts, axis)
    made = [_joined_column(level, column, axis, cuts) for column in columns(parts)]
    return rebuilt(parts[0], iter(made), {axis: sum(cuts)})


def _joined_column(level: Any, column: Sequence[Any], axis: int, cuts: Cuts) -> Any:
    k, comm = level.leaf_backend, level.communicator
    own = _joined_leaf(k, column, axis)
    if comm.size == 1:
        return dense(own)
    lengths, dtype = of_processes(level, cuts), k.dtype(own)
    send = comm.to_buffer(k, own)
    shape = tuple(own.shape)
    if is_leading(shape, axis):
        buffer = comm.empty(k, _with_lengths(shape, {axis: sum(lengths)}), dtype)
        key = (slice(None),) * axis
        places = zip(starts_of(lengths), lengths, strict=True)
        comm.all_gather(send, [buffer[(*key, slice(start, start + n))] for start, n in places])
        return comm.from_buffer(k, buffer)
    buffers = [comm.empty(k, _with_lengths(shape, {axis: n}), dtype) for n in lengths]
    comm.all_gather(send, buffers)
    return k.concat([comm.from_buffer(k, b) for b in buffers], axis)


def joined_quantized(level: Any, parts: list[Any], axis: int) -> Any:
    """The quantized primitive that joins the parts of all shards along ``axis``; whole on the levels inside.

    Processes exchange the parts' integers, steps and zero points on the host.
    """
    k, comm = level.leaf_backend, level.communicator
    parts = [_bare(level.below, p) for p in parts]
    if comm.size > 1:
        sent = [(*k.quantized_parts(p), k.dtype(p).name, tuple(p.shape)) for p in parts]
        found = [part for own in comm.gather_objects(sent) for part in own]
        parts = [k.quantized_from_parts(*part[:3], as_dtype(part[3]), part[4]) for part in found]
    filled = [p for p in parts if p.shape[axis]] or parts[:1]  # nothing may follow a block that is not full
    return filled[0] if len(filled) == 1 else k.concat(filled, axis)


# ---- sums ----


def total(level: Any, parts: list[Any]) -> Any:
    """The inner primitive that is the sum of all shards' parts."""
    parts = alike(level, parts)
    made = [_total_of_column(level, column) for column in columns(parts)]
    return rebuilt(parts[0], iter(made), {})


def own_sums(level: Any, column: Sequence[Any]) -> list[Any]:
    """The sums of the largest subtrees of this process's shards."""
    own, k = level.own, level.leaf_backend
    addends = {(0, i): x for i, x in zip(own, column, strict=True)}
    return [node_sum(node, addends, level.size, k.add) for node in _nodes(own.start, own.stop, level.size)]


@cache
def _nodes(start: int, stop: int, count: int) -> tuple[Node, ...]:
    return tuple(subtrees(start, stop, count))


@cache
def nodes_of_processes(size: int, processes: int) -> tuple[tuple[Node, ...], ...]:
    """The nodes that each process sums."""
    each = size // processes
    return tuple(_nodes(i, i + each, size) for i in range(0, size, each))


@cache
def _steps(size: int, processes: int) -> tuple[tuple[int, int], ...]:
    """The additions of processes that have one node each, in the order of :func:`root_sum`."""
    found: list[tuple[int, int]] = []

    def add(x: int, y: int) -> int:
        found.append((x, y))
        return x

    known = {node: rank for rank, (node,) in enumerate(nodes_of_processes(size, processes))}
    node_sum(root(size), known, size, add)
    return tuple(found)


def root_sum(level: Any, found: Sequence[Sequence[Any]]) -> Any:
    """The sum of all shards' addends, from the sums of each process's nodes."""
    nodes = nodes_of_processes(level.size, level.communicator.size)
    known = {n: x for own, values in zip(nodes, found, strict=True) for n, x in zip(own, values, strict=True)}
    return node_sum(root(level.size), known, level.size, level.leaf_backend.add)


def _total_of_column(level: Any, column: Sequence[Any]) -> Any:
    sums = own_sums(level, column)
    comm = level.communicator
    if comm.size == 1:
        return dense(sums[0])
    k = level.leaf_backend
    shape, dtype, processes = tuple(sums[0].shape), k.dtype(sums[0]), comm.size
    size = math.prod(shape)
    nodes = nodes_of_processes(level.size, processes)
    if not level.deterministic:
        buffer = comm.to_buffer(k, reduce(k.add, sums), own=True)
        if comm.can_reduce(buffer):
            comm.all_reduce(buffer)
            return comm.from_buffer(k, buffer)
    sends = [comm.to_buffer(k, x) for x in sums]
    if all(len(own) == 1 for own in nodes) and dtype.bits >= 32:  # the backend adds 16-bit floats faster
        found = comm.empty(k, shape, dtype)
        if comm.from_buffer(k, found) is found:
            sum_in_order(comm, k, sends[0].reshape(-1), found.reshape(-1), _steps(level.size, processes))
            return found
    if size * dtype.bits <= 8 * WHOLE_SUM:
        return root_sum(level, _gathered(level, sends, shape, dtype, nodes))
    cuts = even_cuts(size, processes)
    starts = starts_of(cuts)
    flat = [b.reshape(-1) for b in sends]
    mine = [[b[s : s + n] for b in flat] for s, n in zip(starts, cuts, strict=True)]
    received = _exchanged(level, mine, [[(cuts[comm.rank],)] * len(own) for own in nodes], dtype)
    piece = comm.to_buffer(k, root_sum(level, received))
    buffer = comm.empty(k, shape, dtype)
    whole = buffer.reshape(-1)
    comm.all_gather(piece, [whole[s : s + n] for s, n in zip(starts, cuts, strict=True)])
    return comm.from_buffer(k, buffer)


def _gathered(level: Any, sends: Sequence[Any], shape: Shape, dtype: Any, nodes: Any) -> list[list[Any]]:
    """The primitives of all processes' nodes, in every process."""
    k, comm = level.leaf_backend, level.communicator
    found: list[list[Any]] = [[] for _ in nodes]
    for i in range(max(map(len, nodes))):
        has_it = [i < len(own) for own in nodes]
        buffers = [comm.empty(k, shape if has else (0,), dtype) for has in has_it]
        comm.all_gather(sends[i] if i < len(sends) else comm.empty(k, (0,), dtype), buffers)
        for own, buffer, has in zip(found, buffers, has_it, strict=True):
            if has:
                own.append(comm.from_buffer(k, buffer))
    return found


def _exchanged(level: Any, send: Sequence[Sequence[Any]], shapes: Sequence[Sequence[Shape]], dtype: Any) -> Any:
    """The primitives received from each process; ``send`` has a list of buffers for each.

    ``shapes`` are those of the buffers received from each. Buffers are exchanged one after the other.
    """
    k, comm = level.leaf_backend, level.communicator
    buffers = [[comm.empty(k, shape, dtype) for shape in row] for row in shapes]
    nothing = comm.empty(k, (0,), dtype)
    for i in range(max(max(map(len, send)), max(map(len, shapes)))):
        comm.all_to_all(
            [row[i] if i < len(row) else nothing for row in send],
            [row[i] if i < len(row) else comm.empty(k, (0,), dtype) for row in buffers],
        )
    return [[comm.from_buffer(k, b) for b in row] for row in buffers]


def scattered(level: Any, x: Shards, axis: int, cuts: Cuts) -> list[Any]:
    """The parts of this process's shards of a sum: the result of :func:`total`, cut along ``axis``."""
    comm = level.communicator
    if comm.size == 1 or x.total is not None:
        return _parts_of_whole(level, level.whole(x), axis, cuts)
    parts = alike(level, x.parts)
    if _is_cut_along(parts[0], axis):
        x.parts = parts
        return _parts_of_whole(level, level.whole(x), axis, cuts)
    lengths = of_processes(level, cuts)
    made = [_scattered_column(level, column, axis, lengths) for column in columns(parts)]
    return split(level, rebuilt(parts[0], iter(made), {axis: lengths[comm.rank]}), axis, cuts)


def _is_cut_along(x: Any, axis: int) -> bool:
    while x.__class__ is Shards:
        if x.axis == axis:
            return True
        x = x.parts[0]
    return False


def _scattered_column(level: Any, column: Sequence[Any], axis: int, lengths: Cuts) -> Any:
    k, comm = level.leaf_backend, level.communicator
    sums = own_sums(level, column)
    dtype, nodes = k.dtype(sums[0]), nodes_of_processes(level.size, comm.size)
    send = [[_range_of(level, x, axis, s, n) for x in sums] for s, n in zip(starts_of(lengths), lengths, strict=True)]
    shape = _with_lengths(sums[0].shape, {axis: lengths[comm.rank]})
    return root_sum(level, _exchanged(level, send, [[shape] * len(own) for own in nodes], dtype))


def _range_of(level: Any, x: Any, axis: int, start: int, length: int) -> Any:
    """The buffer of a range of a leaf along an axis."""
    k = level.leaf_backend
    start, stop = (start, start + length) if length else (0, 0)
    return level.communicator.to_buffer(k, slice_axis(k, x, axis, start, stop))


# ---- other cuts ----


def recut(level: Any, x: Shards, axis: int, cuts: Cuts) -> list[Any]:
    """The parts of this process's shards of a cut primitive that is to be cut in another way."""
    comm, old = level.communicator, x.axis
    assert old is not None
    if comm.size == 1:
        return _parts_of_whole(level, level.whole(x), axis, cuts)
    parts = alike(level, x.parts, old)
    if _is_cut_along(parts[0], axis):
        return _parts_of_whole(level, level.whole(x), axis, cuts)
    have, want = of_processes(level, x.cuts), of_processes(level, cuts)
    made = [_recut_column(level, column, (old, have), (axis, want)) for column in columns(parts)]
    lengths = {old: sum(have), axis: want[comm.rank]}
    return split(level, rebuilt(parts[0], iter(made), lengths), axis, cuts)


def _recut_column(level: Any, column: Sequence[Any], old: tuple[int, Cuts], new: tuple[int, Cuts]) -> Any:
    k, comm = level.leaf_backend, level.communicator
    (from_axis, have), (to_axis, want) = old, new
    x = _joined_leaf(k, column, from_axis)
    dtype, shape, rank = k.dtype(x), tuple(x.shape), comm.rank
    have_starts, want_starts = starts_of(have), starts_of(want)
    send, shapes = [], []
    for r in range(comm.size):
        if from_axis == to_axis:
            start, length = _overlap((have_starts[rank], have[rank]), (want_starts[r], want[r]))
            send.append([_range_of(level, x, to_axis, start - have_starts[rank], length)])
            _, length = _overlap((have_starts[r], have[r]), (want_starts[rank], want[rank]))
            shapes.append([_with_lengths(shape, {to_axis: length})])
        else:
            send.append([_range_of(level, x, to_axis, want_starts[r], want[r])])
            shapes.append([_with_lengths(shape, {from_axis: have[r], to_axis: want[rank]})])
    found = _exchanged(level, send, shapes, dtype)
    return k.concat([own[0] for own in found], from_axis)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """The intersection of two ranges, as start and length; if empty, at the start of the first."""
    start, stop = max(a[0], b[0]), min(a[0] + a[1], b[0] + b[1])
    return (start, stop - start) if stop > start else (a[0], 0)


# ---- errors ----


def agreed(level: Any, compute: Callable[[], Any]) -> Any:
    """The result of ``compute``; if it raises in some processes, all raise the error of the first of them."""
    error: Exception | None = None
    found = None
    try:
        found = compute()
    except Exception as raised:  # backends raise errors of their libraries, which callers explain
        error = raised
    comm = level.communicator
    raised_by = comm.gather_objects(None if error is None else _as_words(error))
    first = next((r for r in range(comm.size) if raised_by[r] is not None), None)
    if first is None:
        return found
    if error is not None and first == comm.rank:
        raise error
    kind, arguments = raised_by[first]
    raise kind(*arguments)


def _as_words(error: Exception) -> tuple[type[Exception], tuple[Any, ...]]:
    """The class and arguments of an error, in a form that can be sent to other processes."""
    try:
        pickle.loads(pickle.dumps((type(error), error.args)))
    except Exception:  # the class or an argument cannot be pickled
        return RuntimeError, (f"{type(error).__name__}: {error}",)
    return type(error), error.args
