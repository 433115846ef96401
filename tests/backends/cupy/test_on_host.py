"""Every operation of the CuPy backend through the real CuPy, if that is installed: without GPU, compiler or values.

This checks which arguments CuPy accepts, the dtypes and shapes that it returns, launches, and what it does on the host
during a recording. The stand-in is written by hand, and may accept more.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.cupy.on_host import patched

ROOT = Path(__file__).parents[3]
#: Operations that need a CUDA library that may not be installed: cuSOLVER, cuBLAS, cuFFT.
OF_LIBRARIES = {"cholesky", "qr", "svd", "eigh", "eig", "eigvals", "solve", "fft", "rfft", "irfft"}
OF_LIBRARIES |= {"svdvals", "eigvalsh", "triangular_solve", "inv", "pinv", "cofactors"}
#: Operations that read values on the host, because result shapes depend on them or some values are errors.
READING = {"masked_select", "nonzero", "unique_all", "to_numpy", "to_numpy_many"}
READING |= {"quantize", "fake_quantize", "quantize_between", "fake_quantize_between"}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed"),
    pytest.mark.skipif(patched.missing() is not None, reason=str(patched.missing())),
]


def test_cupy_accepts_the_calls_of_every_operation(tmp_path: Path) -> None:
    patched.build(tmp_path)
    folders = (ROOT, ROOT / "src", ROOT / "backends", os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(str(p) for p in folders if p)
    libraries = os.pathsep.join(str(p) for p in (tmp_path, os.environ.get("LD_LIBRARY_PATH", "")) if p)
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.cupy.on_host.walk"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": libraries},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {}
    assert set(found["lacking"]) <= OF_LIBRARIES, found["lacking"]
    assert set(found["refused"]) <= READING | OF_LIBRARIES, found["refused"]
    assert found["calls"] > 2000
    assert found["launches"] > 10_000


def test_the_host_time_of_a_step_is_measured() -> None:
    path = os.pathsep.join(str(p) for p in (ROOT, ROOT / "src", ROOT / "backends", os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.cupy.on_host.step_time", "--repeats", "2"],
        capture_output=True, text=True,
        check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["forward", "backward", "optimizer", "step"]
