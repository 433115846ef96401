"""Recording a step as a CUDA graph, with memory of its own.

What a recorded step makes lies in a pool that nothing else uses and that lives as long as the graph: what the step
frees while it is recorded may be used again by the step, and by nobody else. What it reads from elsewhere, a table or a
model that is not of the state, is kept as long. Nothing is computed meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from backburn.backend.capture import Program
from backburn.backend.quantized import Quantized
from backburn.backend.table import OPERATIONS
from backburn.base.errors import CaptureError
from backburn.base.replay import REPLAY, ReplayedFloat, ReplayedInt
from backburn_cupy.create import converted
from backburn_cupy.kernels.attach import LAUNCHERS
from backburn_cupy.kernels.runner import packed

Array = Any

#: How many replays may be under way before the host waits to write the numbers of one more.
AHEAD = 8


class Recorded:
    """A recorded program: see :class:`backburn.backend.capture.Replay`."""

    def __init__(self, k: Any, program: Program, state: Sequence[Array], inputs: Sequence[Array]) -> None:
        _check_plain(*state, *inputs)
        self._k = k
        gc.collect()  # what nobody needs any more makes room, and is not found while the step is recorded
        give_back()
        with k.errors("capture"):
            self._numbers = Numbers(k)
            self._pool = cupy.cuda.MemoryPool(allocated)
            self._pool.set_limit(size=0)  # at one it would give back what the graph uses
            #: What is not of the pool and is to live as long as the graph, by identity.
            self._kept: dict[int, Any] = {}
            self._stream = cupy.cuda.Stream(non_blocking=True)
            pending = k.faults.pending
            k.faults.record()  # made now, it is no part of the recording
            k.faults.pending = pending
            cupy.cuda.get_current_stream().synchronize()  # what the operands are computed from may be under way
            cupy.get_default_memory_pool().free_all_blocks()  # what one more pool may need
            with self._within():
                self._own = self._pool.malloc(1).mem.pool
                self.state = [x.copy() for x in state]
                self._inputs = [x.copy() for x in inputs]
                self._stream.synchronize()
        with k.placed(), self._within(), _watched(k, self._read) as calls, self._recording():
            new, out = program(list(self.state), list(self._inputs))
            _check_plain(*new, *out)
            self._read(new)
            with k.errors("capture"):
                self._outputs = self._apart(out)
                self._renew(new)
        self.launches = nodes(self._graph) or len(calls)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Python or CUDA may have ended before
            _FORGOTTEN.append(vars(self).copy())
            vars(self).clear()
            give_back()

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        """Work goes to the recording's stream, and memory comes from its pool."""
        with self._stream, cupy.cuda.using_allocator(self._pool.malloc):
            yield

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """What is launched inside is not done but becomes the graph."""
        faults = self._k.faults
        pending, faults.pending = faults.pending, False
        _UNDER_WAY.append(self)
        try:
            with self._k.errors("capture"):
                # In the relaxed mode, which is CuPy's default, the pool may grow meanwhile.
                self._stream.begin_capture()
            try:
                yield
            except BaseException as error:
                with contextlib.suppress(Exception):  # what has failed may have ended the recording already
                    self._stream.end_capture()
                if isinstance(error, Exception) and (found := refusal("a call of the step", error)) is not None:
                    raise found from error
                raise
            with self._k.errors("capture"):
                self._graph = self._stream.end_capture()
        finally:
            self._may_fail, faults.pending = faults.pending, pending
            _UNDER_WAY.remove(self)

    def keep(self, things: Iterable[Any]) -> None:
        """Let things live as long as the graph, which uses memory of theirs."""
        self._kept |= {id(thing): thing for thing in things}

    def _read(self, operands: Iterable[Any]) -> None:
        """Keep the memory of operands that is not the recording's own: others would use it once it is forgotten."""
        memories = [x.data.mem for x in flat(operands) if isinstance(x, cupy.ndarray)]
        self.keep(memory for memory in memories if getattr(memory, "pool", None) is not self._own)

    def _apart(self, out: Sequence[Array]) -> list[Array]:
        """The outputs, apart from the state that is about to be written over."""
        of_state = {x.data.mem.ptr for x in self.state}
        return [x.copy() if x.data.mem.ptr in of_state else x for x in out]

    def _renew(self, new: Sequence[Array]) -> None:
        """Copy the new state over the old one, but for what an operation has written there itself."""
        changed = [(x, old) for x, old in zip(new, self.state, strict=True) if not _is_same(x, old)]
        of_state = {x.data.mem.ptr for x in self.state}
        # What lies in the old state's memory is set aside before that is written to.
        aside = [(x.copy() if x.data.mem.ptr in of_state else x, old) for x, old in changed]
        for x, old in aside:
            old[...] = x

    @property
    def held(self) -> int:
        """The bytes that its pool holds."""
        return int(self._pool.total_bytes())

    def set_state(self, place: int, value: Array) -> None:
        with self._k.errors("capture"):
            self.state[place][...] = value

    def __call__(self, inputs: Sequence[Array], numbers: Sequence[float]) -> list[Array]:
        with self._k.errors("capture"), _in_order(self._k.number):
            self._numbers.send(numbers)
            for held, x in zip(self._inputs, inputs, strict=True):
                held[...] = x
            self._graph.launch()
            self._k.faults.pending |= self._may_fail
            return [x.copy() for x in self._outputs]


#: Held by the thread that records: meanwhile the backend's methods are others, and no memory is given back.
ONE_AT_A_TIME = threading.RLock()
#: What has been recorded and nobody needs any more, and the recordings that are being made.
_FORGOTTEN: list[dict[str, Any]] = []
_UNDER_WAY: list[Recorded] = []


def keep(things: Iterable[Any]) -> None:
    """Let things live as long as what is being recorded, if something is."""
    if _UNDER_WAY:
        found = list(things)
        for recorded in _UNDER_WAY:
            recorded.keep(found)


def flat(operands: Iterable[Any]) -> list[Any]:
    """Operands, those in lists too."""
    return [x for operand in operands for x in (operand if isinstance(operand, (list, tuple)) else (operand,))]


def give_back() -> None:
    """Give the memory of what is forgotten back to the device, unless a recording is made: CUDA may refuse it then."""
    while not _UNDER_WAY:
        try:
            members = _FORGOTTEN.pop()
        except IndexError:  # also where another thread has taken the last
            return
        # A pool that is forgotten keeps its memory: the arrays go back to it, and then all of it to the device.
        pool = members.pop("_pool", None)
        members.clear()
        if pool is not None:
            pool.free_all_blocks()


_ORDER = threading.Lock()
#: The stream on which the last replay on each device was asked for.
_LAST: dict[int, Any] = {}


@contextlib.contextmanager
def _in_order(device: int) -> Iterator[None]:
    """Replays on a device come one after the other, whatever threads and streams ask for them.

    All read their numbers from one place, and those of one recording write to one state.
    """
    with _ORDER:
        stream = cupy.cuda.get_current_stream()
        before = _LAST.get(device)
        if before is not None and before.ptr != stream.ptr:
            done = cupy.cuda.Event(disable_timing=True)
            done.record(before)
            stream.wait_event(done)
        _LAST[device] = stream
        yield


def allocated(size: int, again: bool = True) -> Any:
    """New memory of the device for a pool whose free memory a graph may use.

    CuPy's pools give all that is free back to the device when CUDA says that there is no more, and ask again. So this
    one is told so in other words, after the memory that eager operations do not use has been given back.
    """
    try:
        return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "cudaErrorMemoryAllocation" not in str(error):
            raise
        if not again:
            raise MemoryError(f"{size} bytes cannot be allocated for a recording ({error})") from error
    cupy.get_default_memory_pool().free_all_blocks()
    return allocated(size, again=False)


def _check_plain(*arrays: Array) -> None:
    if any(isinstance(x, Quantized) for x in arrays):
        raise CaptureError("a quantized tensor is in the state, the inputs or the outputs, and cupy records none")


def _is_same(x: Array, y: Array) -> bool:
    """Whether two arrays are one."""
    return x is y or (x.data.ptr == y.data.ptr and x.strides == y.strides and x.shape == y.shape)


def nodes(graph: Any) -> int:
    """The number of nodes (kernels, copies, fills) of a graph; 0 where CUDA does not tell."""
    try:
        return len(set(re.findall(r'"(graph_\d+_node_\d+)"\s*\[', graph.debug_dot_str())))
    except (OSError, RuntimeError):
        return 0


class Numbers:
    """What brings the numbers of a recorded step to the device, from memory that the device can read by itself."""

    def __init__(self, k: Any) -> None:
        self._on_device = k.runner.numbers if k.runner is not None else None
        self._host: Any = None
        self._turn = 0
        self._sent: list[Any] = []

    def send(self, numbers: Sequence[float]) -> None:
        """Write the numbers, by place, for the replay that comes next on the current stream."""
        if not numbers or self._on_device is None:
            return
        if self._host is None:
            memory = cupy.cuda.alloc_pinned_memory(8 * AHEAD * len(numbers))
            self._host = np.frombuffer(memory, np.uint64, AHEAD * len(numbers)).reshape(AHEAD, len(numbers))
            self._sent = [cupy.cuda.Event(disable_timing=True) for _ in range(AHEAD)]
        self._turn = (self._turn + 1) % AHEAD
        row, sent = self._host[self._turn], self._sent[self._turn]
        sent.synchronize()  # a copy that was asked for long ago, if ever
        row[:] = packed(numbers)
        self._on_device[: len(numbers)].set(row)
        sent.record()


# ---- the operations of a step that is being recorded ----


@contextlib.contextmanager
def _watched(k: Any, read: Callable[[Iterable[Any]], None]) -> Iterator[list[str]]:
    """Give numbers that change from replay to replay to operations of ``k`` as arrays; yields the operations' names.

    ``read`` is told their operands.
    The methods stand on the object, before those of the class, so that nobody pays for it at other times.
    """
    calls: list[str] = []

    def watching(name: str, function: Any) -> Any:
        binds = name in LAUNCHERS  # by itself, where it takes the operands

        def operation(*operands: Any, **options: Any) -> Any:
            if REPLAY.get() is None:  # of another thread
                return function(*operands, **options)
            calls.append(name)
            read(operands)
            if not binds and any(isinstance(x, (ReplayedFloat, ReplayedInt)) for x in operands):
                operands = _on_device(k, name, operands)
            return function(*operands, **options)

        return operation

    before = dict(vars(k))
    for name, entry in OPERATIONS.items():
        if getattr(type(k), name) is not entry.body:
            setattr(k, name, watching(name, getattr(k, name)))
    try:
        yield calls
    finally:
        for name in OPERATIONS:
            vars(k).pop(name, None)
        vars(k).update({name: value for name, value in before.items() if name in OPERATIONS})


def _on_device(k: Any, name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands with the place on the device of each number that stands beside an array, in that array's dtype."""
    count = len(OPERATIONS[name].operands)
    like: Any = next((x for x in operands[:count] if isinstance(x, cupy.ndarray) and x.dtype.kind != "b"), None)

    def placed(x: Any) -> Any:
        if not isinstance(x, (ReplayedFloat, ReplayedInt)):
            return x
        place = k.runner.bound(x) if like is not None and k.runner is not None else None
        if place is None or like is None:
            return float(x) if isinstance(x, float) else int(x)  # CuPy knows no other numbers than Python's own
        return converted(place.reshape(()), like.dtype)

    return tuple(placed(x) for x in operands[:count]) + operands[count:]


#: What CUDA and CuPy say of what they refuse while a stream is recorded.
CAPTURING = re.compile("stream ?capture|capturing", re.IGNORECASE)


def refusal(name: str, error: Exception) -> CaptureError | None:
    """What says that an operation cannot be recorded, if that is what ``error`` says."""
    words = str(error).partition("\n")[0]
    if isinstance(error, CaptureError) or REPLAY.get() is None or not re.search(CAPTURING, words):
        return None
    what = "cannot be recorded"
    if "D2H" in words or "synchronous" in words or "StreamCaptureUnsupported" in words:
        what = "reads values on the host, or waits for the device"
    elif "H2D" in words:
        what = "brings values from the host"
    elif isinstance(error, NotImplementedError):
        what = "calls a library by a way that cannot be recorded"
    if os.environ.get("BACKBURN_CUPY_DEBUG", "") not in ("", "0"):
        what += ", as every operation does with BACKBURN_CUPY_DEBUG=1"
    return CaptureError(f"{name} {what} ({words})")
