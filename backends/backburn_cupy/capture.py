"""Recording a step as a CUDA graph, with memory of its own.

Everything that a recorded step touches lies in a pool that nothing else uses and that lives as long as the graph: what
the step frees while it is recorded may be used again by the step, and by nobody else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import cupy

from backburn.backend.capture import Program
from backburn.backend.quantized import Quantized
from backburn.backend.table import OPERATIONS
from backburn.base.errors import BackburnError, CaptureError
from backburn_cupy import blas

Array = Any


@contextlib.contextmanager
def _counted(k: Any) -> Iterator[list[str]]:
    """The names of the operations that ``k`` itself is called for inside."""
    calls: list[str] = []

    def counting(name: str, function: Any) -> Any:
        def operation(*operands: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*operands, **options)

        return operation

    before = dict(vars(k))
    for name, entry in OPERATIONS.items():
        if getattr(type(k), name) is not entry.body:
            setattr(k, name, counting(name, getattr(k, name)))
    try:
        yield calls
    finally:
        for name in OPERATIONS:
            vars(k).pop(name, None)
        vars(k).update(before)


class Recorded:
    """A recorded program: see :class:`backburn.backend.capture.Replay`."""

    def __init__(self, k: Any, program: Program, state: Sequence[Array], inputs: Sequence[Array]) -> None:
        if any(isinstance(x, Quantized) for x in (*state, *inputs)):
            raise CaptureError("a quantized tensor is among the state or the inputs, and the cupy backend records none")
        self._k = k
        self._pool = cupy.cuda.MemoryPool()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        k.faults.record()  # made now, it is no part of the recording
        cupy.cuda.get_current_stream().synchronize()  # what the operands are computed from may be under way
        with self._stream, cupy.cuda.using_allocator(self._pool.malloc):
            self._workspace = blas.prepare(k.number, self._stream)
            self.state = [x.copy() for x in state]
            self._inputs = [x.copy() for x in inputs]
            self._stream.synchronize()
            with _counted(k) as calls, self._recording():
                new, out = program(list(self.state), list(self._inputs))
                self._outputs = [x.copy() for x in out]
                self._renew(new)
            #: The operations of the step: its launches are about as many.
            self.launches = len(calls)
        cupy.cuda.get_current_stream().synchronize()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """What is launched inside is not done but becomes the graph."""
        self._stream.begin_capture()
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Exception):  # what has failed may have ended the recording already
                self._stream.end_capture()
            self._k.faults.pending = False
            if isinstance(error, CaptureError) or not isinstance(error, Exception):
                raise
            if isinstance(error, BackburnError) and not isinstance(error.__cause__, RuntimeError):
                raise
            raise CaptureError(f"CUDA does not record it: {error}") from error
        self._graph = self._stream.end_capture()

    def _renew(self, new: Sequence[Array]) -> None:
        """Copy the new state over the old one; what lies in the old one's memory is set aside before."""
        old = {x.data.mem.ptr for x in self.state}
        aside = [x.copy() if x.data.mem.ptr in old else x for x in new]
        for held, x in zip(self.state, aside, strict=True):
            held[...] = x

    def set_state(self, place: int, value: Array) -> None:
        self.state[place][...] = value

    def __call__(self, inputs: Sequence[Array], numbers: Sequence[float]) -> list[Array]:
        self._k.runner.set_numbers(numbers)
        for held, x in zip(self._inputs, inputs, strict=True):
            held[...] = x
        self._graph.launch()
        self._k.faults.pending = True  # the graph's kernels write to the same record
        return [x.copy() for x in self._outputs]
