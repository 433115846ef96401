"""Devices, streams, graphs, memory, and CUDA's errors."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from cupy._recording import Namespace, Tape


class CUDARuntimeError(RuntimeError):
    """An error from CUDA."""


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

    @property
    def compute_capability(self) -> str:
        return "90"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def synchronize(self) -> None:
        if Tape.calls is not None:
            name = "cudaErrorStreamCaptureUnsupported"
            raise CUDARuntimeError(f"{name}: operation not permitted when stream is capturing")
        cuda.READS.append("synchronize")


class Graph:
    """Recorded calls; a launch repeats them, after filling their memory with garbage."""

    def __init__(self, calls: list[Any], memory: list[Any]) -> None:
        self.calls, self.memory = calls, memory

    def launch(self, stream: Any = None) -> None:
        assert Tape.calls is None
        Tape.spoil(self.memory)
        for again in self.calls:
            again()

    def debug_dot_str(self, flags: int = 0) -> str:
        nodes = "".join(f'"graph_1_node_{n}"[style="solid" label="KERNEL"];\n' for n in range(len(self.calls)))
        edges = "".join(f'"graph_1_node_{n}" -> "graph_1_node_{n + 1}";\n' for n in range(len(self.calls) - 1))
        return f"digraph dot {{\n{nodes}{edges}}}\n"


class Stream:
    """A queue of work, which runs immediately here."""

    _current: ClassVar[list[Stream]] = []
    _count = 0

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking
        Stream._count += not null
        self.ptr = 0 if null else 16 * Stream._count

    def __enter__(self) -> Stream:
        self._current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self._current.pop()

    def begin_capture(self, mode: Any = None) -> None:
        if not self.ptr:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert self.non_blocking
        assert get_current_stream() is self, "work on other streams is not recorded"
        assert ALLOCATORS, "memory of the recording would be reused"
        Tape.begin(ALLOCATORS[-1].__self__)

    def end_capture(self) -> Graph:
        return Graph(*Tape.end())

    def wait_event(self, event: Event) -> None:
        Tape.forbid("waits")
        assert event.recorded_on
        WAITS.append((self.ptr, event.recorded_on[-1]))

    def synchronize(self) -> None:
        Tape.forbid("waits")
        cuda.READS.append("synchronize")


#: Pairs of streams: the one that waited, and the one that it waited for.
WAITS: list[tuple[int, int]] = []

NULL = Stream(null=True)


def get_current_stream() -> Stream:
    return Stream._current[-1] if Stream._current else NULL


class Event:
    """A point in a queue, which is reached immediately unless ``STUCK``."""

    STUCK = False

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.recorded_on: list[int] = []

    def record(self, stream: Any = None) -> None:
        self.recorded_on.append((stream or get_current_stream()).ptr)

    @property
    def done(self) -> bool:
        return bool(self.recorded_on) and not Event.STUCK

    def synchronize(self) -> None:
        Tape.forbid("waits")


#: The allocators of the active contexts.
ALLOCATORS: list[Any] = []


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Any:
    ALLOCATORS.append(allocator)
    try:
        yield
    finally:
        ALLOCATORS.pop()


def alloc_pinned_memory(size: int) -> Any:
    return bytearray(size)


class Memory:
    """Device memory."""

    def __init__(self, size: int) -> None:
        self.size = size


class MemoryPointer:
    """A position in memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.offset = mem, offset


class Pool:
    """A memory pool."""

    #: The pools that freed their memory, and those that did so during a recording.
    FREED: ClassVar[list[int]] = []
    FREED_MEANWHILE: ClassVar[list[int]] = []

    def __init__(self, allocator: Any = None) -> None:
        self.allocator = allocator

    def malloc(self, size: int) -> Any:
        made = self.allocator(size)
        made.mem.pool = self
        return made

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert size == 0

    def used_bytes(self) -> int:
        return 3 << 30

    def total_bytes(self) -> int:
        return 4 << 30

    def free_all_blocks(self) -> None:
        self.FREED.append(id(self))
        if Tape.calls is not None:
            self.FREED_MEANWHILE.append(id(self))


def get_default_memory_pool() -> Pool:
    return Pool()


get_default_pinned_memory_pool = get_default_memory_pool


class cuda(Namespace):  # noqa: N801 - a module of CuPy's
    """Devices, streams, the driver."""

    #: An entry for each time the host waited for the device.
    READS: list[Any] = []  # noqa: RUF012
    Device, Event, Graph, Stream = Device, Event, Graph, Stream
    Memory, MemoryPointer, MemoryPool = Memory, MemoryPointer, Pool
    using_allocator, get_current_stream = staticmethod(using_allocator), staticmethod(get_current_stream)
    alloc_pinned_memory = staticmethod(alloc_pinned_memory)
    device = Namespace(get_cublas_handle=lambda: 1, get_cusolver_handle=lambda: 2)
    memory = Namespace(OutOfMemoryError=OutOfMemoryError)
    compiler = Namespace(CompileException=CompileException)
    runtime = Namespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1, memGetInfo=lambda: (1 << 30, 8 << 30),
        driverGetVersion=lambda: 12040, runtimeGetVersion=lambda: 12090,
    )  # fmt: skip


def show_config() -> None:
    return None
