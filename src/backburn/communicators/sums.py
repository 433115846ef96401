"""Sums over processes in a fixed order, not the engine's: bitwise identical on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from backburn.base.dtypes import as_dtype
from backburn.communicators.protocol import Buffer, Communicator

#: The bytes that are exchanged at a time, so that they are added while in the processor's cache.
CHUNK = 4 << 20
#: Up to this size of all addends, in bytes, every process receives and adds all: one exchange is faster than two.
WHOLE = 32 << 10

#: Cached memory for received addends: the first touch of a page takes longer than its transfer.
_kept: dict[tuple[str, Any], Buffer] = {}

#: Additions of rows ``i`` and ``j``, whose sum becomes row ``i``. The last one is the total.
Steps = Sequence[tuple[int, int]]


def sum_in_order(comm: Communicator, k: Any, send: Buffer, receive: Buffer, steps: Steps) -> None:
    """Fill ``receive`` with the sum of what all processes send, added in the order of ``steps``.

    Both buffers are one-dimensional with the same length and dtype; ``send`` is only read. The rows that ``steps``
    adds are the buffers of the processes, by rank. Every process sums one part of the elements, then all gather the
    parts.

        >>> import numpy as np
        >>> from backburn.backend import load_backend
        >>> from backburn.communicators import Local
        >>> total = np.empty(2)
        >>> sum_in_order(Local(), load_backend("numpy"), np.array([1.0, 2.0]), total, [])
        >>> total.tolist()
        [1.0, 2.0]
    """
    size, rank, length = comm.size, comm.rank, send.shape[0]
    if size == 1:
        receive[...] = send
        return
    itemsize = send.dtype.itemsize
    each = max(size, CHUNK // itemsize)
    scratch = _scratch(comm, k, send.dtype, max(each + size, WHOLE // itemsize))
    if length * itemsize * size <= WHOLE:
        rows = scratch[: size * length].reshape(size, length)
        comm.all_gather(send, rows)
        _add(comm, list(rows), steps, receive, -1)
        return
    for start in range(0, length, each):
        n = min(each, length - start)
        bounds = [start + n * r // size for r in range(size + 1)]
        sends, parts = [send[a:b] for a, b in pairwise(bounds)], [receive[a:b] for a, b in pairwise(bounds)]
        own = bounds[rank + 1] - bounds[rank]
        rows = [scratch[own * r : own * (r + 1)] for r in range(size)]
        rows[rank] = sends[rank]
        comm.all_to_all(sends, rows)
        _add(comm, rows, steps, parts[rank], rank)
        comm.all_gather(parts[rank], parts)


def _add(comm: Communicator, rows: list[Buffer], steps: Steps, total: Buffer, own: int) -> None:
    """Sum rows in place, without writing row ``own``."""
    last = len(steps) - 1
    for number, (i, j) in enumerate(steps):
        target = total if number == last else rows[j] if i == own else rows[i]
        comm.add(rows[i], rows[j], target)
        rows[i] = target


def _scratch(comm: Communicator, k: Any, dtype: Any, length: int) -> Buffer:
    """Cached memory for at least ``length`` elements."""
    key = (comm.name, dtype)
    found = _kept.get(key)
    if found is None or found.shape[0] < length:
        found = _kept[key] = comm.empty(k, (length,), as_dtype(dtype))
    return found
