"""The stand-in accepts no more than CuPy, and the backend's kernels compile; some checks need CuPy."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled
from tests.backends.cupy.stand_in.record import FILE, FUNCTIONS, MEMBERS, UFUNCS

FOLDER = FILE.parent
BACKEND = Path(__file__).parents[3] / "backends" / "backburn_cupy"
HAS_CUPY = importlib.util.find_spec("cupy") is not None
needs_compiler = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")
SURFACE = json.loads(FILE.read_text())


def test_the_record_lists_the_names_that_the_backend_uses() -> None:
    """Every CuPy name in the backend's sources is recorded, and no unused function is."""
    used = set()
    for path in BACKEND.rglob("*.py"):
        used |= set(re.findall(r"\b(?:cupy|xp)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", path.read_text()))
    recorded = {*UFUNCS, *FUNCTIONS, *MEMBERS}
    reached = {name for name in used if any(r == name or name.startswith(f"{r}.") for r in recorded)}
    prefixes = {name for name in used - reached if any(r.startswith(f"{name}.") for r in recorded)}
    assert used - reached - prefixes - OTHERWISE == set()
    assert {*UFUNCS, *FUNCTIONS} - used == set()


#: Matches that are not recorded names: versions, words in messages, a module imported by name.
OTHERWISE = {"__version__", "__version__.split", "cuda", "cuda.nccl"}


@pytest.mark.skipif(not HAS_CUPY, reason="CuPy is not installed")
def test_the_record_matches_the_installed_cupy() -> None:
    script = f"import sys, json; sys.path.insert(0, {str(FOLDER.parents[3])!r}); "
    script += "from tests.backends.cupy.stand_in.record import surface; print(json.dumps(surface()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ufuncs"] == SURFACE["ufuncs"]
    assert found["functions"] == SURFACE["functions"]
    assert found["members"] == SURFACE["members"]


@pytest.mark.skipif(not HAS_CUPY, reason="CuPy is not installed")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.slow
def test_every_kernel_compiles(architecture: str) -> None:
    script = f"import sys; sys.path[:0] = [{str(BACKEND.parent)!r}, {str(FOLDER.parents[3])!r}]; "
    script += (
        f"from tests.backends.cupy.stand_in.compile_kernels import compile_all; sys.exit(compile_all({architecture!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if "DynamicLibNotFoundError" in done.stderr or "No module named 'nvidia'" in done.stderr:
        pytest.skip("NVRTC or CUDA's headers are not installed")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("\nok ") > 300


# ---- the stand-in itself ----


def test_arrays_do_not_mix_with_numpy_s(cupy: Any) -> None:
    x = cupy.array(np.ones(2))
    for call in (
        lambda: np.asarray(x),
        lambda: cupy.add(x, np.ones(2)),
        lambda: x.__setitem__(slice(0, 1), np.ones(1)),
        lambda: cupy.concatenate([x, np.ones(2)]),
        lambda: np.add(x, 1),
    ):
        with pytest.raises(TypeError):
            call()


def test_arguments_that_cupy_does_not_accept_raise(cupy: Any) -> None:
    x = cupy.array(np.ones(2))
    for call in (lambda: cupy.sum(x, where=x), lambda: cupy.take(x, x, mode="clip"), lambda: cupy.add(x, x, where=x)):
        with pytest.raises(TypeError):
            call()
    for name in ("erf", "cummax", "vecdot", "errstate"):
        assert not hasattr(cupy, name)


def test_the_stand_in_differs_from_numpy_as_cupy_does(cupy: Any) -> None:
    x = cupy.array(np.arange(3.0))
    assert cupy.take(x, cupy.array(np.array([5]))).get().tolist() == [2.0]  # indices wrap around
    assert np.isnan(cupy.remainder(x, np.inf).get()).all()
    narrow = cupy.array(np.ones(2, np.float16))
    assert cupy.multiply(narrow, 2.0).dtype == np.float16
    with pytest.raises(TypeError, match="Wrong type"):
        cupy.bitwise_and(x, x)


def test_numbers_with_arrays_behave_as_in_cupy(cupy: Any) -> None:
    half, brain = (cupy.array(np.ones(2, np.float16)), cupy.array(np.ones(2, np.float32)).astype("bfloat16"))
    assert cupy.multiply(brain, 2.0).dtype == np.float32  # as in NumPy
    assert cupy.multiply(brain, 2).dtype == cupy.multiply(brain, brain.dtype.type(2)).dtype == brain.dtype
    with pytest.warns(RuntimeWarning, match="overflow"):
        cupy.multiply(half, 1e30)

    class Number(float):
        pass

    with pytest.raises(TypeError, match="Unsupported type"):
        cupy.multiply(half, Number(2.0))


@needs_compiler
def test_python_floats_do_not_change_the_dtype_of_arrays(cupy: Any) -> None:
    from backburn.base import dtypes
    from backburn_cupy import CupyBackend

    k: Any = CupyBackend()
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32):
        x = k.full((2,), 3.0, dtype)
        for name in ("add", "mul", "div", "pow", "maximum", "remainder", "logaddexp", "atan2"):
            assert k.dtype(getattr(k, name)(x, 0.5)) is k.dtype(getattr(k, name)(0.5, x)) is dtype
        tenth = k.full((2,), 0.1, dtype)
        assert k.to_numpy(k.equal(tenth, 0.1)).all()  # both are rounded
        assert k.to_numpy(k.astype(k.mul(x, -1e300), dtypes.float64)).tolist() == [-np.inf] * 2
        assert k.to_numpy(k.astype(k.where(k.less(x, 1e300), 1e300, x), dtypes.float64)).tolist() == [np.inf] * 2
        assert k.to_numpy(k.astype(k.mul(-(10**400), x), dtypes.float64)).tolist() == [-np.inf] * 2
        assert np.isnan(k.to_numpy(k.astype(k.mul(x, float("nan")), dtypes.float64))).all()
    whole = k.full((2,), 3, dtypes.int64)
    assert k.to_numpy(k.mul(whole, 2**61)).tolist() == [3 * 2**61] * 2


@needs_compiler
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_floats_are_rounded_as_by_numpy(cupy: Any, name: str) -> None:
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (every + np.nextafter(every, np.float32(np.inf))) / 2
        more = np.random.default_rng(0).normal(size=50000) * np.exp(np.random.default_rng(1).normal(size=50000) * 20)
        values = np.concatenate([every, between, every * np.float32(1.0007), more.astype(np.float32)])
        expected = values.astype(dtype)
    kernel = cupy.ElementwiseKernel("float32 x, raw T like", "T y", "y = static_cast<T>(x);", "to_narrow")
    got = kernel(cupy.array(values), cupy.zeros((1,), dtype))
    np.testing.assert_array_equal(got.get().astype(np.float32), expected.astype(np.float32))
    back = cupy.ElementwiseKernel("T x", "float32 y", "y = static_cast<float>(x);", "from_narrow")(cupy.array(expected))
    np.testing.assert_array_equal(back.get(), expected.astype(np.float32))
