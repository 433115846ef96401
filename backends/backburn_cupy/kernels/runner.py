"""Compiling kernels and launching them.

The launchers ask no more of a runner than what :class:`Runner` says: the tests have one that runs the same sources on
the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from backburn.base.replay import REPLAY
from backburn_cupy.kernels.sources import OPTIONS, source

Array = Any

#: The most numbers of one recorded step that change from replay to replay; the step is not recorded if it has more.
NUMBERS = 1 << 16


def packed(numbers: Sequence[float]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The bits of each number: of an int as an integer modulo ``2**64``, of any other as a float64."""
    result = np.zeros(len(numbers), np.uint64)
    for i, number in enumerate(numbers):
        result[i] = number % 2**64 if isinstance(number, int) else np.float64(number).view(np.uint64)
    return result


class Runner(Protocol):
    """Where kernels run."""

    xp: Any
    """The array module of their operands."""

    processors: int
    """The multiprocessors of the device."""

    capability: int
    """The architecture of the device: 90 for sm_90."""

    large_parameters: bool
    """Whether a kernel's parameters may take 32 KB rather than 4: from CUDA 12.1 on."""

    deterministic: bool
    """Whether equal calls must give equal bits, also where that takes longer."""

    @property
    def fault(self) -> Array:
        """Three int64 on the device, for an index out of range: 1 where there was one, which, and its axis' length."""

    def address(self, x: Array) -> int:
        """Where the first element of an array lies on the device."""
        ...

    def bound(self, number: float) -> Array | None:
        """The one element on the device that ``number`` stands in at each replay of the step that is being recorded.

        It is a float64 or an int64; None for a number that does not change.
        """
        ...

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        """Launch an instance of ``family``'s kernels, such as ``softmax<float, 32, 8>``.

        An argument is an array, None (no array), an int or a float, each of eight bytes for the kernel, or a NumPy
        array of one structure, which is passed by value.
        """


class CupyRunner:
    """Kernels on a CUDA device.

    They are compiled by NVRTC when first needed, kept by CuPy's cache on disk, and launched on the current stream.
    ``faults`` is the device's :class:`~backburn_cupy.faults.Faults`.
    """

    def __init__(self, cupy: Any, device: int, faults: Any, deterministic: bool = False) -> None:
        self.xp = cupy
        self.deterministic = deterministic
        versions = (cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion())
        self.large_parameters = min(versions) >= 12010
        self.processors = int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])
        self.capability = int(cupy.cuda.Device(device).compute_capability)  # of which CuPy knows no attributes
        self._faults = faults
        # Made now: what is made while a step is recorded belongs to the recording.
        #: The numbers of recorded steps, by place.
        self.numbers = cupy.zeros(NUMBERS, "uint64")
        self._functions: dict[str, Any] = {}

    @property
    def fault(self) -> Array:
        """The record of the device."""
        return self._faults.record()

    def address(self, x: Array) -> int:
        """Where the first element of an array lies."""
        return int(x.data.ptr)

    def bound(self, number: float) -> Array | None:
        """Its place among the numbers on the device."""
        recording = REPLAY.get()
        if recording is None or getattr(number, "place", NUMBERS) >= NUMBERS:
            return None
        place = recording.bind(number)
        if place is None:
            return None
        return self.numbers[place : place + 1].view("int64" if isinstance(number, int) else "float64")

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        """Launch a kernel."""
        function = self._functions.get(kernel)
        if function is None:
            module = self.xp.RawModule(code=source(family), options=OPTIONS, name_expressions=(kernel,))
            function = self._functions[kernel] = module.get_function(kernel)
        function((grid,), block if isinstance(block, tuple) else (block,), arguments)
