"""``BACKBURN_BLAS=mkl``: loading the library, and its products in the kernels' threads.

OpenBLAS, which has the same interface, stands in for MKL if that is not installed.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, needs_kernels, numbers, product_is_right, use_level

import backburn as bb
from backburn.errors import BackendUnavailableError
from backburn_numpy import compiled, tuning
from backburn_numpy.runtime import blas, gemm, mkl, threads

pytestmark = needs_kernels

CALLS: list[tuple[int, ...]] = []
TOLD: list[int] = []


def openblas() -> mkl.Library:
    """OpenBLAS as the library."""
    for library in blas._libraries():
        if hasattr(library, "scipy_cblas_dgemm64_"):
            names = "scipy_cblas_sgemm64_", "scipy_cblas_dgemm64_"
            return mkl.Library(
                "OpenBLAS", *(ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names)
            )
    pytest.skip("NumPy's BLAS is not the OpenBLAS of its packages, which stands in for MKL")


def installed() -> mkl.Library:
    """MKL itself."""
    try:
        return mkl.look_up()
    except BackendUnavailableError as error:
        pytest.skip(f"MKL is not installed: {error}")


@ctypes.CFUNCTYPE(
    None, *[ctypes.c_int] * 3, *[ctypes.c_int64] * 3, ctypes.c_float,
    *[ctypes.c_void_p, ctypes.c_int64] * 2, ctypes.c_float, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip
def recording_sgemm(*given: Any) -> None:
    """Record layouts, sizes and leading dimensions; compute nothing."""
    CALLS.append((*given[1:6], given[8], given[10], given[13]))


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
def recording_threads(count: int) -> int:
    """Record the number of threads; the previous number is 7."""
    TOLD.append(count)
    return 7


@pytest.fixture(params=[openblas, installed])
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Multiply with a library, in three threads."""
    found, before, count = request.param(), mkl.in_use(), threads.num_threads()
    mkl.use(found)
    threads.set_num_threads(3)
    yield
    threads.set_num_threads(count)
    mkl.use(before)


@pytest.fixture
def recorded() -> Iterator[list[tuple[int, ...]]]:
    """The calls of a library that only records them."""
    before, count = mkl.in_use(), threads.num_threads()
    address = ctypes.cast(recording_sgemm, ctypes.c_void_p).value or 0
    mkl.use(mkl.Library("recorder", address, address, ctypes.cast(recording_threads, ctypes.c_void_p).value or 0))
    threads.set_num_threads(1)
    CALLS.clear()
    TOLD.clear()
    yield CALLS
    threads.set_num_threads(count)
    mkl.use(before)


# ---- products ----


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("height", "depth", "width"), [(64, 64, 64), (200, 40, 33), (33, 60, 300), (700, 100, 70), (70, 100, 700)]
)
def test_products_of_any_layout(height: int, depth: int, width: int, dtype: str) -> None:
    for x, y in itertools.product(layouts((height, depth), dtype), layouts((depth, width), dtype)):
        # The library takes no strided matrices; kernels take none where NumPy is faster, as always at the lowest level.
        assert product_is_right(x, y) or height * depth * width < tuning.MIN_GEMM_PRODUCTS.get(
            compiled.level(), math.inf
        )


def layouts(shape: tuple[int, int], dtype: str) -> list[Any]:
    """The same matrix in row order, in column order, as part of wider rows, and strided, which no BLAS takes."""
    x = numbers(*shape, seed=sum(shape)).astype(dtype)
    wide, gaps = np.zeros((shape[0], shape[1] + 5), dtype), np.zeros((shape[0], 2 * shape[1]), dtype)
    wide[:, 2:-3], gaps[:, ::2] = x, x
    return [x, x.T.copy().T, wide[:, 2:-3], gaps[:, ::2]]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("leads", [((12,), (12,)), ((2, 3), (2, 3)), ((4, 1), (1,)), ((3,), ()), ((), (2, 2))])
def test_stacks(leads: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = numbers(*leads[0], 90, 80), numbers(*leads[1], 80, 75, seed=1)
    product = gemm.multiply(x, y)
    assert product is not None
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("library")
def test_bias_epilogues_and_attention() -> None:
    """A bias, epilogues of a product, and attention, compared with float64."""
    x, w, b = numbers(128, 200), numbers(150, 200, seed=1), numbers(150, seed=2)
    exact = x.astype(np.float64) @ w.T.astype(np.float64) + b
    np.testing.assert_allclose(BASE.linear(x, w, b), exact, rtol=1e-4, atol=1e-3)
    for mask in (None, numbers(128, 150, seed=3)):
        expected = np.maximum(exact, 0) if mask is None else np.where(mask > 0, exact, 0)
        out = gemm.multiply(x, w.T, b, epilogue=gemm.Epilogue(np.maximum, mask))
        assert out is not None
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)
    q, k, v = (numbers(2, 3, 70, 16, seed=s) for s in range(3))
    scores = np.exp(np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / 4)
    tensors = [bb.asarray(t, backend="numpy") for t in (q, k, v)]
    found = np.asarray(bb.nn.functional.scaled_dot_product_attention(*tensors))
    np.testing.assert_allclose(found, scores / scores.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-4)


# ---- parts and threads ----


def test_the_split_depends_only_on_the_shape(recorded: list[tuple[int, ...]]) -> None:
    """Not on the number of threads; also when split along columns."""
    gemm.multiply(numbers(1000, 64), numbers(256, 64).T)
    one = sorted(recorded)
    assert [call[2] for call in one] == [125] * 8
    assert {(call[0], call[1], call[3], call[4], call[5], call[6], call[7]) for call in one} == {
        (111, 112, 256, 64, 64, 64, 256)
    }
    recorded.clear()
    threads.set_num_threads(3)
    gemm.multiply(numbers(1000, 64), numbers(256, 64).T)
    assert sorted(recorded) == one
    recorded.clear()
    gemm.multiply(numbers(64, 50).T, numbers(64, 3000))
    assert len(recorded) > 1
    assert sum(call[3] for call in recorded) == 3000
    assert {(call[0], call[1], call[2], call[5], call[6]) for call in recorded} == {(112, 111, 50, 50, 3000)}


def test_the_library_runs_one_thread_and_its_setting_is_restored(recorded: list[tuple[int, ...]]) -> None:
    gemm.multiply(numbers(100, 100), numbers(100, 110))
    assert len(recorded) == 1
    assert TOLD == [1, 7]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("level", USABLE)
def test_every_level_calls_the_library(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mkl.in_use()
    use_level(monkeypatch, level)
    mkl.use(found)
    x, y = numbers(90, 100), numbers(100, 80)
    product = gemm.multiply(x, y)
    mkl.use(None)
    assert product is not None
    np.testing.assert_allclose(product, x.astype(np.float64) @ y, rtol=1e-4, atol=1e-4)
    mkl.use(found)


# ---- loading the library ----


def test_nothing_is_found_in_empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "find_library", lambda name: None)
    with pytest.raises(BackendUnavailableError, match=r"no library mkl_rt is installed.*`pip install mkl`"):
        mkl.look_up([str(tmp_path)])


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "find_library", lambda name: None)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmkl_rt.so.2").write_bytes(b"no library")
    with pytest.raises(BackendUnavailableError, match="libmkl_rt"):
        mkl.look_up([str(tmp_path)])


def test_a_library_without_the_functions_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "find_library", lambda name: compiled.file())
    with pytest.raises(BackendUnavailableError, match="cblas_sgemm_64"):
        mkl.look_up([str(tmp_path)])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"BACKBURN_BLAS": "atlas"}, "BACKBURN_BLAS='atlas': write kernels, which is the default, or mkl"),
        ({"BACKBURN_BLAS": "mkl", "BACKBURN_COMPILED": "0"}, "BACKBURN_BLAS='mkl'"),
    ],
)
def test_invalid_variables_are_rejected(variables: dict[str, str], words: str) -> None:
    done = loaded(**variables)
    assert done.returncode
    assert words in done.stderr


def test_the_variable_selects_mkl() -> None:
    version = installed().words
    assert loaded(BACKBURN_BLAS="mkl").stdout.startswith(f"{version} in kernels, ")
    for variables in ({"BACKBURN_BLAS": "kernels"}, {"BACKBURN_BLAS": ""}):
        assert version not in loaded(**variables).stdout


def loaded(**variables: str) -> subprocess.CompletedProcess[str]:
    """A new process with these variables that prints its BLAS libraries."""
    program = "from backburn_numpy.runtime import blas; print(blas.words())"
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
