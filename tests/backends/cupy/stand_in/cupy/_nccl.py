"""NCCL with CuPy's interface (``cupy.cuda.nccl``), for ranks that are threads of this process, on host memory.

It is as strict as NCCL: messages must be received with the same count and type, in the same order.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from collections import defaultdict
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

available = True
#: The dtypes of ``ncclDataType_t``, by value.
TYPES = (
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16
)  # fmt: skip
#: Every call: the rank, the name of the method, and its arguments.
CALLS: list[tuple[int, str, tuple[int, ...]]] = []
WAIT = 20.0
_numbers = itertools.count(1)
_local = threading.local()


class NcclError(RuntimeError):
    """An error of NCCL's."""


def get_unique_id() -> tuple[int, ...]:
    """The id of a new group: 128 numbers."""
    return (next(_numbers), *[0] * 127)


def groupStart() -> None:  # noqa: N802 - CuPy's name
    """Defer the calls that follow."""
    assert getattr(_local, "held", None) is None
    _local.held = []


def groupEnd() -> None:  # noqa: N802 - CuPy's name
    """Run the deferred calls, sends first, because calls in a group do not wait for each other."""
    held, _local.held = _local.held, None
    for first in (True, False):
        for is_send, call in held:
            if is_send is first:
                call()


def _in_group(is_send: bool, call: Any) -> None:
    if getattr(_local, "held", None) is None:
        call()
    else:
        _local.held.append((is_send, call))


def _bytes_of(address: int, count: int, datatype: int) -> bytes:
    return ctypes.string_at(address, count * np.dtype(TYPES[datatype]).itemsize)


class NcclCommunicator:
    """A rank of a group."""

    #: Messages in transit, by group, sender and receiver.
    _mail: ClassVar[Any] = defaultdict(queue.Queue)
    #: The error that every group reports, if any.
    ERROR: ClassVar[str] = ""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        assert len(commId) == 128
        assert 0 <= rank < ndev
        self.ndev, self._id, self._rank = ndev, commId[0], rank
        self.aborted = False

    def _note(self, name: str, *arguments: int) -> None:
        assert all(type(a) is int for a in arguments)
        if self.aborted:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: the communicator was aborted")
        CALLS.append((self._rank, name, arguments))

    def _post(self, to: int, what: Any) -> None:
        self._mail[self._id, self._rank, to].put(what)

    def _take(self, source: int, count: int, datatype: int) -> bytes:
        sent, sent_type = self._mail[self._id, source, self._rank].get(timeout=WAIT)
        size = count * np.dtype(TYPES[datatype]).itemsize
        if (len(sent), sent_type) != (size, datatype):
            raise NcclError(f"{len(sent)} bytes of type {sent_type} arrived, and {size} of {datatype} were expected")
        return bytes(sent)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._note("send", sendbuf, count, datatype, peer, stream)
        _in_group(True, lambda: self._post(peer, (_bytes_of(sendbuf, count, datatype), datatype)))

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._note("recv", recvbuf, count, datatype, peer, stream)

        def receive() -> None:
            found = self._take(peer, count, datatype)
            ctypes.memmove(recvbuf, found, len(found))

        _in_group(False, receive)

    def _gathered(self, address: int, count: int, datatype: int) -> list[bytes]:
        for r in range(self.ndev):
            self._post(r, (_bytes_of(address, count, datatype), datatype))
        return [self._take(r, count, datatype) for r in range(self.ndev)]

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:  # noqa: N802
        self._note("allGather", sendbuf, recvbuf, count, datatype, stream)
        found = b"".join(self._gathered(sendbuf, count, datatype))
        ctypes.memmove(recvbuf, found, len(found))

    def allReduce(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._note("allReduce", sendbuf, recvbuf, count, datatype, op, stream)
        assert op == 0
        found = [np.frombuffer(b, TYPES[datatype]) for b in self._gathered(sendbuf, count, datatype)]
        total = np.sum(np.stack(found).astype(np.float64), axis=0).astype(TYPES[datatype]).tobytes()
        ctypes.memmove(recvbuf, total, len(total))

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._note("broadcast", sendbuff, recvbuff, count, datatype, root, stream)
        found = self._gathered(sendbuff, count, datatype)[root]
        ctypes.memmove(recvbuff, found, len(found))

    def check_async_error(self) -> None:
        if NcclCommunicator.ERROR:
            raise NcclError(NcclCommunicator.ERROR)

    def abort(self) -> None:
        self.aborted = True
