"""Compiling kernels and launching them.

The launchers ask no more of a runner than what :class:`Runner` says: the tests have one that runs the same sources on
the processor.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn_cupy.kernels.sources import OPTIONS, source

Array = Any


class Runner(Protocol):
    """Where kernels run."""

    xp: Any
    """The array module of their operands."""

    processors: int
    """The multiprocessors of the device."""

    large_parameters: bool
    """Whether a kernel's parameters may take 32 KB rather than 4: from CUDA 12.1 on."""

    deterministic: bool
    """Whether equal calls must give equal bits, also where that takes longer."""

    stream_offset: Array | None
    """One uint64 on the device that is added to the offset of every random draw, so that the replay of a captured
    step goes on in the stream; None for none."""

    @property
    def fault(self) -> Array:
        """Three int64 on the device, for an index out of range: 1 where there was one, which, and its axis' length."""

    def address(self, x: Array) -> int:
        """Where the first element of an array lies on the device."""

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
        self.stream_offset: Array | None = None
        self._faults = faults
        self._functions: dict[str, Any] = {}

    @property
    def fault(self) -> Array:
        """The record of the device."""
        return self._faults.record()

    def address(self, x: Array) -> int:
        """Where the first element of an array lies."""
        return int(x.data.ptr)

    def run(self, family: str, kernel: str, grid: int, block: int | tuple[int, int], *arguments: Any) -> None:
        """Launch a kernel."""
        function = self._functions.get(kernel)
        if function is None:
            module = self.xp.RawModule(code=source(family), options=OPTIONS, name_expressions=(kernel,))
            function = self._functions[kernel] = module.get_function(kernel)
        function((grid,), block if isinstance(block, tuple) else (block,), arguments)
