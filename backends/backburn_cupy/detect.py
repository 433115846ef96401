"""Detecting CuPy and CUDA devices, with the cheapest checks first.

Nothing is checked before a backend is made, and CUDA is not initialised before the driver is known to exist: a process
that has initialised CUDA cannot be forked.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from importlib import metadata
from typing import Any, NoReturn

from backburn.base.errors import BackendUnavailableError

#: The distributions of ``cupy``, only one of which can be installed: their files overlap.
DISTRIBUTIONS = ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-rocm-7-0", "cupy-rocm-5-0")
#: The oldest CuPy with weak Python scalars and bfloat16.
OLDEST = (14, 0)
INSTALL = "pip install 'backburn[cuda12]' (or 'backburn[cuda13]' where nvidia-smi names CUDA 13)"
HIDDEN = "See nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it"
LIBRARIES = "The CUDA libraries are installed with: pip install '{distribution}[ctk]'"


def unavailable(found: str, advice: str, cause: BaseException | None = None) -> NoReturn:
    """Raise the error for missing CUDA, with the reason and what to do."""
    details = f" ({type(cause).__name__}: {first_line(cause)})" if cause is not None else ""
    raise BackendUnavailableError(f"backend 'cupy': {found}{details}. {advice}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message; a compiler's may have hundreds."""
    return str(error).strip().partition("\n")[0]


def installed() -> dict[str, str]:
    """The installed distributions of CuPy, with their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def driver() -> str | None:
    """The driver's library, loaded without initialising CUDA, or None."""
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def load(device: int) -> Any:
    """The module ``cupy``, with ``device`` known to exist; raises :class:`BackendUnavailableError` otherwise."""
    if importlib.util.find_spec("cupy") is None:
        unavailable("CuPy is not installed", f"To compute on a CUDA device: {INSTALL}. On the CPU: 'numpy'")
    packages = installed()
    if len(packages) > 1:
        names = " ".join(packages)
        unavailable(
            f"{len(packages)} packages of CuPy are installed, whose files overlap: {names}",
            f"Keep one: pip uninstall {names}; {INSTALL}",
        )
    distribution = next(iter(packages), "cupy")
    if driver() is None:
        unavailable(
            "CuPy is installed, and there is no CUDA driver (libcuda)",
            "Install NVIDIA's driver, and in a container pass the GPU on (docker run --gpus all). On the CPU: 'numpy'",
        )
    cupy = import_cupy(distribution)
    count = devices(cupy, distribution)
    if device >= count:
        there = "the only device is cupy:0" if count == 1 else f"the devices are cupy:0 to cupy:{count - 1}"
        unavailable(f"there is no device {device}", f"Here {there}; CUDA_VISIBLE_DEVICES says which can be seen")
    check_compiler(distribution)
    return cupy


def import_cupy(distribution: str) -> Any:
    """Import ``cupy``; it supports bfloat16 only if ``ml_dtypes`` was imported before."""
    if importlib.util.find_spec("ml_dtypes") is not None:
        importlib.import_module("ml_dtypes")
    try:
        cupy = importlib.import_module("cupy")
    except Exception as cause:
        import numpy as np

        wants = wanted_numpy(distribution)
        unavailable(
            f"CuPy cannot be imported beside NumPy {np.__version__}",
            f"{distribution} asks for {wants}; try: pip install --upgrade {distribution} '{wants}'",
            cause,
        )
    version = tuple(int(part) for part in cupy.__version__.split(".")[:2] if part.isdigit())
    if version < OLDEST:
        unavailable(
            f"CuPy {cupy.__version__} is too old",
            f"It takes {OLDEST[0]}.{OLDEST[1]} or newer: pip install --upgrade {distribution}",
        )
    return cupy


def wanted_numpy(distribution: str) -> str:
    """A CuPy distribution's requirement on NumPy, as in ``numpy<2.6,>=2.0``."""
    try:
        wants = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        wants = []
    return next((w.partition(";")[0].strip() for w in wants if w.startswith("numpy")), "numpy>=2")


def devices(cupy: Any, distribution: str) -> int:
    """The number of devices, at least one."""
    runtime = cupy.cuda.runtime
    try:
        count: int = runtime.getDeviceCount()
    except Exception as cause:
        explain_no_devices(runtime, distribution, cause)
    if count == 0:
        unavailable("the CUDA driver sees no device", HIDDEN)
    return count


def explain_no_devices(runtime: Any, distribution: str, cause: BaseException) -> NoReturn:
    """Raise the error that explains why devices cannot be counted."""
    text = str(cause)
    if "InitializationError" in text:
        unavailable(
            "CUDA was used before this process was forked, and cannot be used in it",
            "Start processes with multiprocessing.get_context('spawn'), or use CUDA in them only",
            cause,
        )
    if "NoDevice" in text:
        unavailable("the CUDA driver sees no device", HIDDEN, cause)
    if "InsufficientDriver" in text or "CallRequiresNewerDriver" in text:
        has, wants = (cuda_version(ask) for ask in (runtime.driverGetVersion, runtime.runtimeGetVersion))
        if has and wants and has < wants:
            unavailable(
                f"the driver is too old: it is for CUDA {has}, and {distribution} for CUDA {wants}",
                "Update NVIDIA's driver, or install a CuPy for its CUDA: 'backburn[cuda12]' needs 12.0 of it, "
                "'backburn[cuda13]' 13.0",
                cause,
            )
        unavailable(
            "the CUDA driver does not start",
            "See nvidia-smi; after an update it needs a restart, and a container needs the GPU (docker run --gpus all)",
            cause,
        )
    unavailable("the CUDA devices cannot be counted", "See nvidia-smi", cause)


def cuda_version(ask: Any) -> str:
    """A version such as ``12.4`` from a function that returns 12040; empty if it fails."""
    try:
        number = int(ask())
    except Exception:  # the query itself needs what is missing
        return ""
    return f"{number // 1000:02d}.{number % 1000 // 10}" if number else ""


def check_compiler(distribution: str) -> None:
    """Raise if NVRTC is missing, which compiles every CuPy kernel on its first call."""
    try:
        importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
    except Exception as cause:
        unavailable(
            "the compiler of CUDA's toolkit (NVRTC) is missing or does not load",
            LIBRARIES.format(distribution=distribution),
            cause,
        )
