"""Sums over processes in a fixed order, not the engine's: bitwise equal on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from backburn.base.dtypes import as_dtype
from backburn.communicators.protocol import Buffer, Communicator

#: The bytes that are exchanged at a time: what is received is added while it is in the processor's cache.
CHUNK = 4 << 20
#: The bytes of all addends up to which every process receives and adds all: one exchange takes less time than two.
WHOLE = 32 << 10

#: The memory for addends that arrive, which is kept: the first touch of a page takes longer than its transfer.
_kept: dict[tuple[str, Any], Buffer] = {}

#: Additions: rows ``i`` and ``j``, whose sum is then row ``i``. The last one gives the total.
Steps = Sequence[tuple[int, int]]


def sum_in_order(comm: Communicator, k: Any, send: Buffer, receive: Buffer, steps: Steps) -> None:
    """Fill ``receive`` with the sum of what all processes send, added in the order of ``steps``.

    Both buffers have one axis and the same length and dtype; ``send`` is only read. The rows that ``steps`` adds are
    the buffers of the processes, by rank. Every process adds one part of the elements, and then all gather the parts.

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
    """Add rows up, in their own memory, but for that of row ``own``, which is not written."""
    last = len(steps) - 1
    for number, (i, j) in enumerate(steps):
        target = total if number == last else rows[j] if i == own else rows[i]
        comm.add(rows[i], rows[j], target)
        rows[i] = target


def _scratch(comm: Communicator, k: Any, dtype: Any, length: int) -> Buffer:
    """Kept memory for so many elements."""
    key = (comm.name, dtype)
    found = _kept.get(key)
    if found is None or found.shape[0] < length:
        found = _kept[key] = comm.empty(k, (length,), as_dtype(dtype))
    return found
