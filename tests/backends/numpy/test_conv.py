"""Convolutions of the NumPy backend equal the default bodies' for every division into blocks and threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.ops.conv import convolved
from backburn.ops.table import OPERATIONS
from backburn_numpy import tuning
from backburn_numpy.runtime import blas, threads

BASE = load_backend("numpy")
GENERATOR = np.random.default_rng(0)

#: Shapes of input and weight, then stride, padding, dilation, groups.
CASES: dict[str, tuple[Any, ...]] = {
    "same": ((5, 4, 9, 8), (6, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "narrow": ((3, 2, 9, 8), (6, 2, 3, 2), (1, 1), ((0, 2), (1, 0)), (2, 1), 1),
    "strides": ((4, 4, 11, 10), (6, 4, 3, 2), (2, 3), ((1, 1), (2, 0)), (1, 2), 1),
    "groups": ((2, 6, 7, 9), (4, 3, 2, 3), (1, 1), ((1, 0), (1, 1)), (1, 1), 2),
    "depthwise": ((3, 6, 7, 9), (6, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 6),
    "windows of one element": ((3, 8, 5, 6), (4, 8, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "one window": ((3, 4, 5, 6), (7, 4, 5, 6), (2, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "one window of groups": ((3, 4, 5, 6), (6, 2, 5, 6), (1, 1), ((0, 0), (0, 0)), (1, 1), 2),
    "one window and padding": ((3, 4, 3, 2), (6, 4, 3, 3), (1, 1), ((0, 0), (1, 0)), (1, 1), 1),
    "one window of volumes": ((2, 3, 2, 3, 4), (5, 3, 2, 3, 4), (1, 1, 1), ((0, 0),) * 3, (1, 1, 1), 1),
    "single elements": ((3, 8, 1, 1), (4, 8, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "one example": ((1, 3, 12, 9), (7, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "lines": ((3, 4, 20), (6, 4, 5), (1,), ((2, 2),), (1,), 1),
    "volumes": ((2, 3, 6, 5, 7), (8, 3, 2, 3, 2), (1, 1, 1), ((1, 0), (1, 1), (0, 1)), (1, 2, 1), 1),
    "volumes by strides": ((2, 3, 6, 5, 7), (2, 3, 2, 3, 2), (2, 1, 3), ((1, 0), (1, 1), (0, 1)), (1, 2, 1), 1),
}


@pytest.fixture(params=[1, 2, 3])
def number_of_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = threads.num_threads()
    threads.set_num_threads(request.param)
    yield request.param
    threads.set_num_threads(before)


def real(*shape: int) -> Any:
    return GENERATOR.normal(size=shape)


def check(name: str, *operands: Any) -> None:
    """Compare with the default body, and float16 with loose tolerances."""
    expected = OPERATIONS[name].body(BASE, *operands)
    np.testing.assert_allclose(getattr(BASE, name)(*operands), expected, rtol=1e-10, atol=1e-10)
    small = [o.astype(np.float16) if isinstance(o, np.ndarray) else o for o in operands]
    got = getattr(BASE, name)(*small)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("columns", [1 << 18, 1 << 9, 1])
@pytest.mark.parametrize("case", CASES)
def test_convolutions_in_blocks(
    case: str, columns: int, number_of_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "CONV_BLOCK_ELEMENTS", columns)
    monkeypatch.setattr(tuning, "CONV_MIN_BLOCK_COLUMNS", 0)
    monkeypatch.setattr(tuning, "CONV_MIN_PRODUCTS_FOR_THREADS", 1)
    x_shape, weight_shape, stride, padding, dilation, groups = CASES[case]
    x, weight, bias = real(*x_shape), real(*weight_shape), real(weight_shape[0])
    check("conv", x, weight, bias, stride, padding, dilation, groups)
    grad = real(*convolved(x_shape, weight_shape, stride=stride, padding=padding, dilation=dilation, groups=groups))
    check("conv_weight_backward", x, grad, weight_shape[2:], stride, padding, dilation, groups)
    for first in (None, real(x_shape[1])):
        check("conv_transpose", grad, weight, first, stride, padding, (0,) * len(stride), dilation, groups)


def test_single_limits_blas_to_one_thread_and_restores_the_count() -> None:
    if not blas.can_be_single():
        pytest.skip("NumPy does not use its bundled BLAS")
    assert blas._functions is not None
    count, _ = blas._functions
    before = count()
    with blas.single():
        assert count() == 1
        with blas.single():
            assert count() == 1
        assert count() == 1
    assert count() == before
    with pytest.raises(ValueError, match="inside"), blas.single():
        raise ValueError("inside")
    assert count() == before


def test_single_does_nothing_without_a_known_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_functions", None)
    assert not blas.can_be_single()
    with blas.single():
        check("conv", real(3, 4, 9), real(2, 4, 3), None, (1,), ((0, 0),), (1,), 1)


@pytest.mark.skipif(not blas.can_be_single(), reason="NumPy does not use its bundled BLAS")
@pytest.mark.parametrize(("variable", "expected"), [(None, 1), ("OPENBLAS_NUM_THREADS", 2), ("OMP_NUM_THREADS", 2)])
def test_blas_uses_at_most_one_thread_per_processor(variable: str | None, expected: int) -> None:
    code = """
from backburn_numpy import NumpyBackend
from backburn_numpy.runtime import blas
get, set_ = blas._functions
set_(2)
blas.processors = lambda: 1
NumpyBackend()
print(get())
"""
    environment = {k: v for k, v in os.environ.items() if k not in blas.VARIABLES}
    if variable is not None:
        environment[variable] = "2"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(expected)], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork") or not blas.can_be_single(), reason="needs fork and a known BLAS")
def test_a_forked_child_restores_blas_threads_at_its_next_product() -> None:
    code = """
import os
from backburn_numpy.runtime import blas
get, set_ = blas._functions
before = get()
calls = []
blas._functions = get, lambda count: (calls.append(count), set_(count))
with blas.single():
    child = os.fork()
    if not child:
        assert calls == [1], calls  # nothing that may wait for the library in the fork itself
        with blas.single(), blas.single():
            assert get() == 1
        os._exit(0 if get() == before and calls == [1, 1, before] else 1)
assert os.waitpid(child, 0)[1] == 0
assert get() == before
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_blas_functions_are_called_on_x86_64_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert blas.function.__wrapped__("scipy_cblas_strsm64_") is None
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert (blas.function.__wrapped__("scipy_cblas_strsm64_") is None) == (blas.sgemm_address() is None)
