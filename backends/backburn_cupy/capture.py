"""Recording a step as a CUDA graph, with separate memory.

A recorded step allocates from a separate pool that lives as long as the graph: what the step frees while it is
recorded may be reused by the step, and by nothing else. Memory that it reads from elsewhere, such as a table or a model
that is not part of the state, is kept alive as long. Nothing is computed during recording.
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

from backburn.backend.capturing import Step
from backburn.backend.host_numbers import RECORDING_STEP, Overwritten, ReplayedFloat, ReplayedInt, contents
from backburn.base.errors import CaptureError
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.table import OPERATIONS
from backburn_cupy.creation import cast
from backburn_cupy.kernels.attach import LAUNCHERS
from backburn_cupy.kernels.optimizer_steps import copy_tensors
from backburn_cupy.kernels.runner import number_bits

Array = Any

#: The most replays in flight: the host then waits before it writes the numbers of the next.
AHEAD = 8


class Recorded:
    """A recorded program: see :class:`backburn.backend.capturing.Executable`."""

    in_place = True

    def __init__(self, k: Any, program: Step, state: Sequence[Array], inputs: Sequence[Array]) -> None:
        _check_plain(*state, *inputs)
        self._k = k
        gc.collect()  # free garbage now, so that none is collected while the step is recorded
        release_memory()
        with k.translate_errors("capture"):
            self._numbers = Numbers(k)
            self._pool = cupy.cuda.MemoryPool(allocate)
            self._pool.set_limit(size=0)  # at a limit it would free memory that the graph uses
            #: Objects outside the pool to keep alive as long as the graph, by id.
            self._kept: dict[int, Any] = {}
            #: The addresses of overwritten state, and the arrays with the new values, by id.
            self._overwritten: set[int] = set()
            self._newer: dict[int, Array] = {}
            self._is_stale = False
            self._stream = cupy.cuda.Stream(non_blocking=True)
            pending = k.faults.pending
            k.faults.record()  # allocated now, not as part of the recording
            k.faults.pending = pending
            cupy.cuda.get_current_stream().synchronize()  # the operands may still be being computed
            cupy.get_default_memory_pool().free_all_blocks()  # free memory for the new pool
            with self._allocating():
                self._own = self._pool.malloc(1).mem.pool
                self.state = [x.copy() for x in state]
                self._inputs = [x.copy() for x in inputs]
                transfers = recording.host_constants if (recording := RECORDING_STEP.get()) is not None else ()
                #: Arrays that the step copies from the host, by their values: CUDA records no such transfer.
                self.constants = {
                    (dtype, shape, data): cupy.array(np.frombuffer(data, dtype).reshape(shape))
                    for dtype, shape, data in transfers
                }
                self._stream.synchronize()
        with (
            k.device_context(),
            self._allocating(),
            _watching(k, self.note_operands, self.note_results) as calls,
            self._recording(),
        ):
            new, out = program(list(self.state), list(self._inputs))
            _check_plain(*new, *out)
            self.note_operands((*new, *out))
            if self._is_stale:
                raise Overwritten
            with k.translate_errors("capture"):
                self._outputs = self._separate(out)
                self._update_state(new)
        self.launches = nodes(self._graph) or len(calls)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # Python or CUDA may have shut down already
            _RELEASED.append(vars(self).copy())
            vars(self).clear()
            release_memory()

    @contextlib.contextmanager
    def _allocating(self) -> Iterator[None]:
        """A context in which work goes to the recording's stream, and memory comes from its pool."""
        with self._stream, cupy.cuda.using_allocator(self._pool.malloc):
            yield

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """A context in which launches are not executed but become the graph."""
        faults = self._k.faults
        pending, faults.pending = faults.pending, False
        runner = self._k.runner
        _IN_PROGRESS.append(self)
        if runner is not None:
            runner.recorded = self
        try:
            with self._k.translate_errors("capture"):
                # In relaxed mode, CuPy's default, the pool may grow during the capture.
                self._stream.begin_capture()
            try:
                yield
            except BaseException as error:
                with contextlib.suppress(Exception):  # the failure may have ended the capture already
                    self._stream.end_capture()
                if isinstance(error, Exception) and (found := refusal("a call of the step", error)) is not None:
                    raise found from error
                raise
            with self._k.translate_errors("capture"):
                self._graph = self._stream.end_capture()
        finally:
            self._may_fail, faults.pending = faults.pending, pending
            self._newer.clear()
            _IN_PROGRESS.remove(self)
            if runner is not None:
                runner.recorded = None

    def keep(self, things: Iterable[Any]) -> None:
        """Keep objects alive as long as the graph, which uses their memory."""
        self._kept |= {id(thing): thing for thing in things}

    def overwrite(self, x: Array) -> Array | None:
        """An array for new values in the memory of ``x``, if that is state; None if it must be kept."""
        recording = RECORDING_STEP.get()
        if recording is None or not recording.overwrites or not x.flags.c_contiguous:
            return None
        if all(x is not held for held in self.state) or x.data.mem.ptr in self._overwritten:
            return None
        newer = x.view()
        self._overwritten.add(x.data.mem.ptr)
        self._newer[id(newer)] = newer
        return newer

    def note_operands(self, operands: Iterable[Any]) -> None:
        """Keep operands alive that are not the recording's own, lest their memory be reused; note overwritten ones."""
        arrays = [x for x in flatten(operands) if isinstance(x, cupy.ndarray)]
        memories = [x.data.mem for x in arrays]
        self.keep(memory for memory in memories if getattr(memory, "pool", None) is not self._own)
        if self._overwritten:
            pairs = zip(arrays, memories, strict=True)
            self._is_stale |= any(m.ptr in self._overwritten and id(x) not in self._newer for x, m in pairs)

    def note_results(self, results: Any) -> None:
        """Note results that share overwritten memory: they have the new values."""
        if self._overwritten:
            arrays = [x for x in flatten((results,)) if isinstance(x, cupy.ndarray)]
            self._newer |= {id(x): x for x in arrays if x.data.mem.ptr in self._overwritten}

    def _separate(self, out: Sequence[Array]) -> list[Array]:
        """The outputs, separate from the state that is about to be overwritten."""
        state_addresses = {x.data.mem.ptr for x in self.state}
        return [x.copy() if x.data.mem.ptr in state_addresses else x for x in out]

    def _update_state(self, new: Sequence[Array]) -> None:
        """Copy the new state over the old one in one launch, except for what was written in place."""
        changed = [(x, old) for x, old in zip(new, self.state, strict=True) if not _is_same(x, old)]
        state_addresses = {x.data.mem.ptr for x in self.state}
        # Values that share the old state's memory are copied before it is overwritten.
        separate = [(x.copy() if x.data.mem.ptr in state_addresses else x, old) for x, old in changed]
        runner, batch = self._k.runner, []
        for x, old in separate:
            if runner is not None and x.dtype == old.dtype and x.dtype.char in "fdeE" and x.flags.c_contiguous:
                batch.append((x, old))
            else:
                old[...] = x
        if runner is not None and batch:
            copy_tensors(runner, *zip(*batch, strict=True))

    @property
    def held(self) -> int:
        """The bytes held by its pool."""
        return int(self._pool.total_bytes())

    def set_state(self, place: int, value: Array) -> None:
        with self._k.translate_errors("capture"):
            self.state[place][...] = value

    def __call__(
        self, inputs: Sequence[Array], numbers: Sequence[float], release: Callable[[], list[int]] | None = None
    ) -> list[Array]:
        with self._k.translate_errors("capture"), _serialized(self._k.number):
            self._numbers.send(numbers)
            for held, x in zip(self._inputs, inputs, strict=True):
                held[...] = x
            self._graph.launch()
            self._k.faults.pending |= self._may_fail
            return [x.copy() for x in self._outputs]


#: Held by the recording thread: meanwhile the backend's methods are replaced, and no memory is released.
ONE_AT_A_TIME = threading.RLock()
#: Recordings to be released, and recordings in progress.
_RELEASED: list[dict[str, Any]] = []
_IN_PROGRESS: list[Recorded] = []


def keep(things: Iterable[Any]) -> None:
    """Keep objects alive as long as the current recording, if any."""
    if _IN_PROGRESS:
        found = list(things)
        for recorded in _IN_PROGRESS:
            recorded.keep(found)


def constant(host: Any) -> Array:
    """The array of the current recording with the values of ``host``, if the step took them in the call before."""
    recording = RECORDING_STEP.get()
    assert recording is not None
    if (array := _IN_PROGRESS[-1].constants.get(contents(host))) is None:
        words = f"({host.dtype}{list(host.shape)}) that differ from those of the call before"
        error = CaptureError(f"from_numpy copies values from the host {words}: pass what changes in the batch")
        raise recording.refuse(error)
    return array


def flatten(operands: Iterable[Any]) -> list[Any]:
    """The operands, including those in lists."""
    return [x for operand in operands for x in (operand if isinstance(operand, (list, tuple)) else (operand,))]


def release_memory() -> None:
    """Return the memory of released recordings to the device, unless one is in progress: CUDA may refuse it then."""
    while not _IN_PROGRESS:
        try:
            members = _RELEASED.pop()
        except IndexError:  # another thread may have taken the last one
            return
        # A dropped pool would leak its memory: first its arrays are freed into it, then all of it to the device.
        pool, k = members.pop("_pool", None), members.get("_k")
        members.clear()
        if pool is not None and k is not None:
            with k.device_context():  # a pool releases what it has on the current device
                pool.free_all_blocks()


_ORDER = threading.Lock()
#: The stream of the last replay on each device.
_LAST: dict[int, Any] = {}


@contextlib.contextmanager
def _serialized(device: int) -> Iterator[None]:
    """A context that serializes the replays on a device, across threads and streams.

    All read their numbers from the same memory, and those of one recording write the same state.
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


def allocate(size: int, again: bool = True) -> Any:
    """Device memory for a pool whose free memory a graph may use.

    When CUDA is out of memory, CuPy's pools release all free memory and retry. So this pool gets another error, after
    the free memory of eager operations has been released.
    """
    try:
        return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "cudaErrorMemoryAllocation" not in str(error):
            raise
        if not again:
            raise MemoryError(f"{size} bytes cannot be allocated for a recording ({error})") from error
    cupy.get_default_memory_pool().free_all_blocks()
    return allocate(size, again=False)


def _check_plain(*arrays: Array) -> None:
    if any(isinstance(x, Quantized) for x in arrays):
        raise CaptureError("a quantized tensor is in the state, the inputs or the outputs, and cupy records none")


def _is_same(x: Array, y: Array) -> bool:
    """Whether two arrays are one."""
    return x is y or (x.data.ptr == y.data.ptr and x.strides == y.strides and x.shape == y.shape)


def nodes(graph: Any) -> int:
    """The number of nodes (kernels, copies, fills) of a graph; 0 if CUDA does not tell."""
    try:
        return len(set(re.findall(r'"(graph_\d+_node_\d+)"\s*\[', graph.debug_dot_str())))
    except (OSError, RuntimeError):
        return 0


class Numbers:
    """Transfers the numbers of a recorded step to the device, from pinned memory."""

    def __init__(self, k: Any) -> None:
        self._on_device = k.runner.numbers if k.runner is not None else None
        self._host: Any = None
        self._turn = 0
        self._sent: list[Any] = []

    def send(self, numbers: Sequence[float]) -> None:
        """Write the numbers, by position, for the next replay on the current stream."""
        if not numbers or self._on_device is None:
            return
        if self._host is None:
            memory = cupy.cuda.alloc_pinned_memory(8 * AHEAD * len(numbers))
            self._host = np.frombuffer(memory, np.uint64, AHEAD * len(numbers)).reshape(AHEAD, len(numbers))
            self._sent = [cupy.cuda.Event(disable_timing=True) for _ in range(AHEAD)]
        self._turn = (self._turn + 1) % AHEAD
        row, sent = self._host[self._turn], self._sent[self._turn]
        sent.synchronize()  # a copy queued long ago, if at all
        row[:] = number_bits(numbers)
        self._on_device[: len(numbers)].set(row)
        sent.record()


# ---- the operations of a step during recording ----


@contextlib.contextmanager
def _watching(
    k: Any, note_operands: Callable[[Iterable[Any]], None], note_results: Callable[[Any], None]
) -> Iterator[list[str]]:
    """Pass numbers that change per replay to the operations of ``k`` as arrays; yields the operations' names.

    ``note_operands`` is called with their operands, and ``note_results`` with their result. The methods are set on the
    instance, over the class, so that nothing is slower at other times.
    """
    calls: list[str] = []

    def watching(name: str, function: Any) -> Any:
        binds = name in LAUNCHERS  # the launcher does it, if it takes the operands

        def operation(*operands: Any, **options: Any) -> Any:
            if RECORDING_STEP.get() is None:  # called from another thread
                return function(*operands, **options)
            calls.append(name)
            note_operands(operands)
            if not binds and any(isinstance(x, (ReplayedFloat, ReplayedInt)) for x in operands):
                operands = _on_device(k, name, operands)
            result = function(*operands, **options)
            note_results(result)
            return result

        return operation

    def fused(formula: Any, /, *values: Any, **options: Any) -> Any:
        if RECORDING_STEP.get() is not None:
            note_operands(values)
        return fuse(formula, *values, **options)

    before, names, fuse = dict(vars(k)), (*OPERATIONS, "fuse"), k.fuse
    k.fuse = fused
    for name, entry in OPERATIONS.items():
        if getattr(type(k), name) is not entry.body:
            setattr(k, name, watching(name, getattr(k, name)))
    try:
        yield calls
    finally:
        for name in names:
            vars(k).pop(name, None)
        vars(k).update({name: value for name, value in before.items() if name in names})


def _on_device(k: Any, name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands, with numbers beside an array replaced by their device elements, in the array's dtype."""
    count = len(OPERATIONS[name].operands)
    like: Any = next((x for x in operands[:count] if isinstance(x, cupy.ndarray) and x.dtype.kind != "b"), None)

    def placed(x: Any) -> Any:
        if not isinstance(x, (ReplayedFloat, ReplayedInt)):
            return x
        place = k.runner.device_number(x) if like is not None and k.runner is not None else None
        if place is None or like is None:
            return float(x) if isinstance(x, float) else int(x)  # CuPy takes only Python's own number types
        return cast(place.reshape(()), like.dtype)

    return tuple(placed(x) for x in operands[:count]) + operands[count:]


#: CUDA's and CuPy's messages for what a stream capture does not allow.
CAPTURING = re.compile("stream ?capture|capturing", re.IGNORECASE)


def refusal(name: str, error: Exception) -> CaptureError | None:
    """The error for an operation that cannot be recorded, if that is what ``error`` means."""
    words = str(error).partition("\n")[0]
    recording = RECORDING_STEP.get()
    if isinstance(error, CaptureError) or recording is None or not re.search(CAPTURING, words):
        return None
    what = "cannot be recorded"
    if "D2H" in words or "synchronous" in words or "StreamCaptureUnsupported" in words:
        what = "reads values on the host, or waits for the device"
    elif "H2D" in words:
        what = "copies values from the host"
    elif isinstance(error, NotImplementedError):
        what = "calls a library in a way that cannot be recorded"
    if os.environ.get("BACKBURN_CUPY_DEBUG", "") not in ("", "0"):
        what += ", as every operation does with BACKBURN_CUPY_DEBUG=1"
    return recording.refuse(CaptureError(f"{name} {what} ({words})"))
