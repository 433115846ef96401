"""Errors of the CuPy backend if CUDA is unusable or fails: they name the cause and the command that helps."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled
from tests.backends.cupy.stand_in.use import standing_in

import backburn as bb
from backburn.backend.registry import list_backends, load_backend
from backburn.base import dtypes
from backburn.base.errors import (
    BackendMismatchError,
    BackendUnavailableError,
    DeviceError,
    DeviceMemoryError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with standing_in() as module:
        from backburn_cupy import CupyBackend

        monkeypatch.setattr(CupyBackend, "_instances", {})
        yield module


def refused(*options: Any) -> str:
    """The message of the constructor's error."""
    from backburn_cupy import CupyBackend

    with pytest.raises(BackendUnavailableError) as caught:
        CupyBackend(*options)
    assert caught.value.__cause__ is None
    words = str(caught.value)
    assert words.startswith("backend 'cupy': ")
    return words


def test_importing_the_package_imports_no_cupy() -> None:
    path = [p for p in sys.path if p]
    program = f"import sys; sys.path[:0] = {path!r}; import backburn_cupy; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "backburn_cupy.backend" in loaded
    assert not loaded & {"cupy", "cupy_backends", "cupyx", "ml_dtypes", "backburn_cupy.creation"}


# ---- machines without a usable CUDA device ----


def test_cupy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "CuPy is not installed. To compute on a CUDA device: pip install 'backburn[cuda12]'" in refused()


def test_two_packages_of_cupy(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import backburn_cupy.detect as detect

    monkeypatch.setattr(detect, "installed", lambda: {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"})
    words = refused()
    assert "2 packages of CuPy are installed" in words
    assert "pip uninstall cupy-cuda12x cupy-cuda13x" in words


def test_there_is_no_driver(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import backburn_cupy.detect as detect

    monkeypatch.setattr(detect, "driver", lambda: None)
    assert "there is no CUDA driver (libcuda)" in refused()


def test_numpy_is_too_new(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["numpy<2.6,>=2.0", "fastrlock"])

    def fail(name: str, package: Any = None) -> Any:
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "cupy" or None)
    monkeypatch.setattr(importlib, "import_module", fail)
    words = refused()
    assert f"CuPy cannot be imported beside NumPy {np.__version__} (ImportError: numpy.core" in words
    assert "'numpy<2.6,>=2.0'" in words


def test_cupy_is_too_old(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy, "__version__", "13.6.0")
    assert "CuPy 13.6.0 is too old" in refused()


def fails_with(cupy: Any, monkeypatch: pytest.MonkeyPatch, words: str, driver: int = 11040) -> str:
    def fail() -> int:
        raise cupy.cuda.runtime.CUDARuntimeError(words)

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fail)
    monkeypatch.setattr(cupy.cuda.runtime, "driverGetVersion", lambda: driver)
    return refused()


def test_the_driver_is_too_old(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
    words = fails_with(cupy, monkeypatch, text)
    assert "the driver is too old: it is for CUDA 11.4, and cupy for CUDA 12.9" in words
    assert "Update NVIDIA's driver" in words
    assert "the CUDA driver does not start" in fails_with(cupy, monkeypatch, text, 0)
    assert "the CUDA driver does not start" in fails_with(cupy, monkeypatch, text, 13000)


def test_there_is_no_device(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sees no device" in fails_with(cupy, monkeypatch, "cudaErrorNoDevice: no CUDA-capable device is detected")
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert "CUDA_VISIBLE_DEVICES" in refused()


def test_cuda_was_used_before_the_fork(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "get_context('spawn')" in fails_with(cupy, monkeypatch, "cudaErrorInitializationError: initialization error")


def test_other_failures_are_reported(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = fails_with(cupy, monkeypatch, "cudaErrorUnknown: unknown error\nmore")
    assert "the CUDA devices cannot be counted (CUDARuntimeError: cudaErrorUnknown: unknown error)" in words


def test_the_device_is_not_there(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no device 3. Here the only device is cupy:0" in refused(3)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    assert "the devices are cupy:0 to cupy:1" in refused(2)


def test_the_compiler_is_missing(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_backends.cuda.libs import nvrtc

    def fail() -> Any:
        raise RuntimeError('Failure finding "libnvrtc.so"')

    monkeypatch.setattr(nvrtc, "getVersion", fail)
    words = refused()
    assert "(NVRTC) is missing" in words
    assert "pip install 'cupy[ctk]'" in words


def test_an_absent_device_is_not_a_broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    import backburn_cupy.detect as detect

    monkeypatch.setattr(detect, "load", lambda device: detect.unavailable("nothing is here", "Look"))
    (info,) = [b for b in list_backends() if b.name == "cupy"]
    assert (info.usable, info.absent) == (False, True)
    assert "nothing is here" in info.reason


# ---- an operation that fails ----

needs_compiler = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Any:
    """A tensor whose sum raises ``error``."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    x = bb.ones((2, 3), dtype="int64", backend="cupy")
    monkeypatch.setattr("cupy.sum", fail)
    return x


@pytest.fixture
def fresh(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, with no backend loaded."""
    from backburn.backend import registry

    monkeypatch.setattr(registry, "_loaded", {})
    return cupy


def test_memory_is_exhausted_by_a_copy_from_the_host(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, fresh.cuda.memory.OutOfMemoryError("Out of memory"))
    monkeypatch.setattr("cupy.array", fresh.sum)
    with pytest.raises(DeviceMemoryError, match=r"^from_numpy: the memory of cuda:0 is exhausted"):
        load_backend("cupy").from_numpy(np.ones(3))


def test_memory_is_exhausted(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = failing(monkeypatch, fresh.cuda.memory.OutOfMemoryError("Out of memory allocating 9,000 bytes"))
    with pytest.raises(DeviceMemoryError, match=r"^sum: the memory of cuda:0 is exhausted: Out of memory") as caught:
        x.sum()
    words = str(caught.value)
    assert "Of 8.00 GiB on the device 1.00 GiB are free" in words
    assert "take 3.00 GiB, and 1.00 GiB more are held" in words
    assert isinstance(caught.value, MemoryError)


def test_a_kernel_does_not_compile(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = failing(monkeypatch, fresh.cuda.compiler.CompileException("error: expected a ;\nline 2"))
    with pytest.raises(DeviceError, match=r"^sum: a kernel does not compile: error: expected a ;. CuPy .*headers"):
        x.sum()


def test_the_driver_fails(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = failing(monkeypatch, fresh.cuda.runtime.CUDARuntimeError("cudaErrorIllegalAddress: an illegal access"))
    with pytest.raises(DeviceError, match=r"^sum: cudaErrorIllegalAddress.*BACKBURN_CUPY_DEBUG=1.*started anew"):
        x.sum()


@pytest.mark.parametrize("name", ["CUBLASError", "CuFFTError", "CUSOLVERError", "CURANDError", "CUDADriverError"])
def test_errors_of_libraries_become_device_errors(fresh: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They are recognized by the names of CuPy's classes."""
    x = failing(monkeypatch, type(name, (RuntimeError,), {})("INTERNAL_ERROR"))
    with pytest.raises(DeviceError, match=r"^sum: INTERNAL_ERROR \(cuda:0\)"):
        bb.sum(x)


@pytest.mark.parametrize(
    "error",
    [
        ImportError('Failure finding "libcublas.so"'),
        RuntimeError("Failed to find CUDA headers. Please install them or specify CUDA_PATH environment variable."),
    ],
)
def test_a_part_of_cuda_is_missing(fresh: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    x = failing(monkeypatch, error)
    with pytest.raises(BackendUnavailableError, match=r"^sum: a part of CUDA is missing: Fail.*'cupy\[ctk\]'"):
        x.sum()


def test_a_fork_is_named_as_the_cause(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = failing(monkeypatch, fresh.cuda.runtime.CUDARuntimeError("cudaErrorInitializationError: initialization error"))
    monkeypatch.setattr(x.backend, "process", -1)
    with pytest.raises(DeviceError, match=r"^sum: CUDA was used before this process was forked.*'spawn'"):
        x.sum()


def test_contract_errors_precede_device_errors(fresh: Any) -> None:
    x = bb.ones((2, 3), backend="cupy")
    with pytest.raises(ShapeError, match="matmul"):
        x @ x


@needs_compiler
def test_tensors_raise_device_errors_when_they_wait(fresh: Any) -> None:
    table = bb.ones((3, 2), backend="cupy")
    rows = bb.take(table, bb.asarray([0, 7], backend="cupy"), axis=0)
    with pytest.raises(OutOfRangeError, match=r"index 7 is out of range for an axis of 3 \(in take"):
        rows.numpy()


def test_unknown_dtypes_are_rejected(fresh: Any) -> None:
    from backburn_cupy import CupyBackend

    k = CupyBackend()
    x = k.zeros((2,), dtypes.float32)
    assert k.dtype(x) is dtypes.float32
    with pytest.raises(DTypeError, match="datetime64"):
        k.from_numpy(np.zeros(2, "M8[s]"))


# ---- several devices ----


def test_operands_on_another_device_are_rejected(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import CupyBackend

    monkeypatch.setattr(fresh.cuda.runtime, "getDeviceCount", lambda: 2)
    k = CupyBackend(1)
    assert (k.spec, k.device) == ("cupy:1", "cuda:1")
    x = fresh.zeros((2,), np.float32)
    with pytest.raises(BackendMismatchError, match=r"neg: an operand float32\[2\] is on cuda:0 and"):
        k.neg(x)
