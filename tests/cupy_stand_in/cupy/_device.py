"""Devices, streams, graphs, memory, and what CUDA raises."""

from __future__ import annotations

import contextlib
from typing import Any

from cupy._recording import Namespace, Tape


class CUDARuntimeError(RuntimeError):
    """An error of CUDA's."""


class OutOfMemoryError(MemoryError):
    """No memory is left on the device."""


class CompileException(Exception):
    """A kernel does not compile."""


class Device:
    """A device by number."""

    def __init__(self, device: int = 0) -> None:
        self.id = device

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 2}

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def synchronize(self) -> None:
        cuda.READS.append("synchronize")


class Graph:
    """What was recorded; launching it does it again."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def launch(self, stream: Any = None) -> None:
        for again in self.calls:
            again()


class Stream:
    """A queue of work, which is done at once here."""

    ptr = 7

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def begin_capture(self, mode: Any = None) -> None:
        assert self.non_blocking
        assert Tape.calls is None
        Tape.calls = []

    def end_capture(self) -> Graph:
        calls, Tape.calls = Tape.calls, None
        assert calls is not None
        return Graph(calls)

    def synchronize(self) -> None:
        Tape.forbid("waits")
        cuda.READS.append("synchronize")


@contextlib.contextmanager
def using_allocator(allocator: Any) -> Any:
    yield


class Pool:
    """The memory that CuPy holds."""

    def malloc(self, size: int) -> Any:
        raise NotImplementedError

    def used_bytes(self) -> int:
        return 3 << 30

    def total_bytes(self) -> int:
        return 4 << 30

    def free_all_blocks(self) -> None:
        return None


def get_default_memory_pool() -> Pool:
    return Pool()


get_default_pinned_memory_pool = get_default_memory_pool


class cuda(Namespace):  # noqa: N801 - a module of CuPy's
    """Devices, streams, the driver."""

    #: Whenever the host waited for the device.
    READS: list[Any] = []  # noqa: RUF012
    Device, Stream, MemoryPool, using_allocator = Device, Stream, Pool, staticmethod(using_allocator)
    get_current_stream = staticmethod(Stream)
    device = Namespace(get_cublas_handle=lambda: 1, get_cusolver_handle=lambda: 2)
    memory = Namespace(OutOfMemoryError=OutOfMemoryError)
    compiler = Namespace(CompileException=CompileException)
    runtime = Namespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1, memGetInfo=lambda: (1 << 30, 8 << 30),
        getDevice=lambda: 0, driverGetVersion=lambda: 12040, runtimeGetVersion=lambda: 12090,
    )  # fmt: skip


def show_config() -> None:
    return None
