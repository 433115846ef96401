"""Compiling and launching kernels.

Launchers need only what :class:`Runner` declares: the tests have a runner that executes the same sources on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from backburn.backend.host_numbers import RECORDING_STEP
from backburn_cupy.kernels.sources import OPTIONS, source

Array = Any

#: The most numbers of a recorded step that may change per replay; a step with more is not recorded.
NUMBERS = 1 << 16


def number_bits(numbers: Sequence[float]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The bits of each number: an int modulo ``2**64``, any other as float64."""
    result = np.zeros(len(numbers), np.uint64)
    for i, number in enumerate(numbers):
        result[i] = number % 2**64 if isinstance(number, int) else np.float64(number).view(np.uint64)
    return result


class Runner(Protocol):
    """A device, or the tests' emulation of one, on which kernels run."""

    xp: Any
    """The array module of their operands; ``xp.ndarray`` creates new ones, faster than CuPy's ``empty``."""

    processors: int
    """The multiprocessors of the device."""

    capability: int
    """The device's architecture: 90 for sm_90."""

    large_parameters: bool
    """Whether kernel parameters may take 32 KB instead of 4, as from CUDA 12.1 on."""

    deterministic: bool
    """Whether results must be reproducible bit for bit, even if slower."""

    recorded: Any
    """The recording in progress (:class:`backburn_cupy.capture.Recorded`), or None."""

    @property
    def fault(self) -> Array:
        """Three int64 on the device, for an out-of-range index: 1 if there was one, the index, and the axis' length."""

    def address(self, x: Array) -> int:
        """The device address of an array's first element."""
        ...

    def device_number(self, number: float) -> Array | None:
        """The element on the device that holds ``number`` at each replay of the step being recorded.

        A float64 or an int64; None for a number that does not change.
        """
        ...

    def successor(self, x: Array) -> Array:
        """Memory for the new values of a parameter: its own, in a recorded step that no longer reads it."""
        ...

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        """Launch an instance of ``family``'s kernels, such as ``softmax<float, 32, 8>``.

        An argument is an array, None (a null pointer), an int or a float, each eight bytes for the kernel, or a NumPy
        array of one structure, passed by value.
        """


class CupyRunner:
    """Kernels on a CUDA device.

    They are compiled by NVRTC when first needed, cached on disk by CuPy, and launched on the current stream.
    ``faults`` is the device's :class:`~backburn_cupy.faults.Faults`.
    """

    def __init__(self, cupy: Any, device: int, faults: Any, deterministic: bool = False) -> None:
        self.xp = cupy
        self.deterministic = deterministic
        versions = (cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion())
        self.large_parameters = min(versions) >= 12010
        self.processors = int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])
        self.capability = int(cupy.cuda.Device(device).compute_capability)  # not in `attributes`
        self._faults = faults
        # Allocated now: memory allocated while a step is recorded belongs to the recording.
        #: The numbers of recorded steps, by place.
        self.numbers = cupy.zeros(NUMBERS, "uint64")
        self._functions: dict[str, Any] = {}
        self.recorded: Any = None

    @property
    def fault(self) -> Array:
        """The device's record."""
        return self._faults.record()

    def address(self, x: Array) -> int:
        """The address of an array's first element."""
        return int(x.data.ptr)

    def device_number(self, number: float) -> Array | None:
        """Its place among the numbers on the device."""
        recording = RECORDING_STEP.get()
        if recording is None or getattr(number, "place", NUMBERS) >= NUMBERS:
            return None
        place = recording.bind(number)
        if place is None:
            return None
        return self.numbers[place : place + 1].view("int64" if isinstance(number, int) else "float64")

    def successor(self, x: Array) -> Array:
        """Its own memory in a recording, if that allows it."""
        own = None if self.recorded is None else self.recorded.overwrite(x)
        return self.xp.ndarray(x.shape, x.dtype) if own is None else own

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        """Launch a kernel."""
        function = self._functions.get(kernel)
        if function is None:
            module = self.xp.RawModule(code=source(family), options=OPTIONS, name_expressions=(kernel,))
            function = self._functions[kernel] = module.get_function(kernel)
        function((grid,), block if isinstance(block, tuple) else (block,), arguments)
