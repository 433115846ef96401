"""The library of compiled kernels of the NumPy backend: levels, threads, and running without it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, both, needs_kernels, numbers, python, use_level

from backburn.autodiff import Autodiff
from backburn.base.dtypes import as_dtype
from backburn.conformance import SAMPLES, checks
from backburn.conformance.checks.behaviour import check_mutation
from backburn.conformance.checks.kinds import VALUE_KINDS
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import build
from backburn_numpy.elementwise import ufuncs
from backburn_numpy.ops import (
    quantized_products,
)
from backburn_numpy.runtime import blas, threads


@needs_kernels
def test_the_library_declares_parameter_types() -> None:
    """Both kernels written out in the sources and those that macros define are found by name."""
    assert compiled.kernel("no such kernel") is None
    sources = "".join(path.read_text() for path in build.SOURCES)
    written = re.findall(r"^KERNEL\((\w+)", sources, re.MULTILINE)
    for name in (*written, "exp", "exp_double", "add_number", "where_double", "cumsum_reverse"):
        assert compiled.kernel(name) is not None, name
    array, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    step: Any = compiled.kernel("momentum_step")
    assert step.argtypes == [array] * 5 + [number] * 3 + [ctypes.c_int, size]
    words: Any = compiled.kernel("random_words")
    assert words.argtypes == [array] * 2 + [ctypes.c_uint64] + [size] * 2


WITH_KERNELS = [name for name in SAMPLES if any(word in name for word in (
    "sigmoid", "soft", "silu", "gelu", "norm", "cross_entropy", "step", "scan", "conv", "take", "index_add",
    "linear", "embedding", "gather", "scatter", "attention", "lstm", "gru", "pool", "ctc", "concat", "stack", "triu",
    "tril",
))]  # fmt: skip


@pytest.mark.slow
@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_samples() -> None:
    """All samples of operations with kernels, at the smallest sizes including zero; inputs are not changed."""
    for check in checks(BASE, ops=WITH_KERNELS, kinds=VALUE_KINDS):
        if check.dtype in ("float32", "float16", "bfloat16"):
            check()
            if not check.sample.attributes.get("donate"):
                replace(check, function=check_mutation)()


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("name", ["sigmoid", "gelu", "softplus"])
def test_nothing_is_written_outside_the_result(level: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_level(monkeypatch, level)
    kernel = compiled.kernel(name)
    assert kernel is not None
    for count in range(1, 70):
        out, x = np.full(count + 64, 7.0, np.float32), numbers(count)
        kernel(compiled.address(out) + 4 * 32, compiled.address(x), count)
        assert (out[:32] == 7).all()
        assert (out[32 + count :] == 7).all()


@needs_kernels
@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_numpy_scalars_are_computed_like_arrays(name: str) -> None:
    function = getattr(BASE, name)
    np.testing.assert_array_equal(function(np.float32(0.5)), function(np.array(0.5, np.float32)))


def test_concurrent_python_threads() -> None:
    x, weight = numbers(8, 4, 20, 20), numbers(6, 4, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    expected = BASE.conv(x, weight, **options), BASE.softmax(x, axis=3), BASE.gelu(x)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            got = BASE.conv(x, weight, **options), BASE.softmax(x, axis=3), BASE.gelu(x)
            wrong.extend(a for a, b in zip(got, expected, strict=True) if not np.allclose(a, b, rtol=1e-5, atol=1e-5))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_one_row_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread has an empty part, whose sum would overwrite another's."""
    x, grad, scale = (numbers(1, 300_000, seed=s) for s in range(3))
    before = threads.num_threads()
    threads.set_num_threads(3)
    try:
        for _ in range(20):
            options: dict[str, Any] = {"axis": (1,), "eps": 1e-5}
            got, expected = both(monkeypatch, "layer_norm_backward", grad, x, scale[0], **options)
            np.testing.assert_allclose(got[1], expected[1], rtol=1e-3, atol=1e-4)
        parts: list[tuple[int, int]] = []
        threads.parallel_for(lambda start, stop: parts.append((start, stop)), 2, worth=1)
        assert sorted(parts) == [(0, 1), (1, 2)]
    finally:
        threads.set_num_threads(before)


def test_an_interrupt_waits_for_the_other_threads() -> None:
    """They write to memory that would be freed when the exception propagates."""
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)
            ended.append(start)

    before, handler = threads.num_threads(), signal.signal(signal.SIGINT, signal.default_int_handler)
    threads.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.parallel_for(work, 2, worth=1)
        assert ended == [1]
    finally:
        signal.signal(signal.SIGINT, handler)
        threads.set_num_threads(before)


def test_one_thread_computes_if_no_other_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = threads.num_threads()
    threads.set_num_threads(3)
    monkeypatch.setattr(threading.Thread, "start", refused)
    try:
        parts: list[tuple[int, int]] = []
        threads.parallel_for(lambda start, stop: parts.append((start, stop)), 5, worth=1)
    finally:
        threads.set_num_threads(before)
    assert parts == [(0, 5)]


RESIZED = """
import faulthandler, sys, threading, time
from backburn_numpy.runtime import threads
faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
stop = time.monotonic() + 2

def compute():
    while time.monotonic() < stop:
        parts = []
        threads.parallel_for(lambda start, end: parts.append(end - start), 8, worth=1)
        assert sum(parts) == 8

computing = [threading.Thread(target=compute) for _ in range(2)]
for thread in computing:
    thread.start()
while time.monotonic() < stop:
    for count in (2, 3, 1):
        threads.set_num_threads(count)
for thread in computing:
    thread.join()
"""


def test_changing_the_number_of_threads_during_computations() -> None:
    """No caller waits for work submitted to a closed pool."""
    done = python("-c", RESIZED)
    assert done.returncode == 0, done.stderr


INHERITED = """
from contextvars import ContextVar
from backburn_numpy.runtime import threads
setting, found = ContextVar("setting", default=False), []
threads.set_num_threads(2)
setting.set(True)
threads.parallel_for(lambda start, stop: found.append(setting.get()), 2, worth=1)
assert sorted(found) == [False, True], found
"""


def test_the_pool_does_not_inherit_context_variables() -> None:
    """Not even if new threads inherit them: from Python 3.14 on, with this option or without the GIL."""
    done = python("-X", "thread_inherit_context=1", "-c", INHERITED)
    assert done.returncode == 0, done.stderr


# ---- without kernels ----


def test_libraries_name_the_kernels_and_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    level = compiled.level()
    assert level is None or f"{level}-" in BASE.libraries["kernel library"]
    assert BASE.libraries["kernels"] == compiled.describe()
    monkeypatch.setattr(compiled, "_library", None)
    assert Autodiff(BASE).libraries == BASE.libraries
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    assert BASE.libraries["BLAS"].endswith(", not used by kernels")
    assert "kernel library" not in BASE.libraries


def test_numpy_computes_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", None)
    monkeypatch.setattr(compiled, "_kernels", {})
    assert compiled.level() is None
    assert compiled.kernel("gelu") is None
    x = numbers(100, 100)
    np.testing.assert_allclose(BASE.softmax(x, axis=1).sum(1), 1, rtol=1e-5)
    got, expected = both(monkeypatch, "layer_norm", x, axis=(1,), eps=1e-5)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


def test_numpy_convolves_without_a_known_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    x, weight = numbers(8, 4, 20, 20), numbers(6, 4, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    got, expected = both(monkeypatch, "conv", x, weight, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


@needs_kernels
def test_few_rows_times_a_quantized_weight_need_no_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme: Any = as_dtype("qint4_symmetric_block32_float32")
    weight = BASE.quantize(numbers(20, 70), scheme)
    few = tuning.MAX_ROWS_BY_READING
    several = [numbers(count, 70, seed=1) for count in (1, few, few + 1)]
    expected = [BASE.quantized_linear(x, weight) for x in several]
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    taken: list[bool | None] = []
    few_rows = quantized_products._few_rows

    def told(*operands: Any) -> bool | None:
        taken.append(few_rows(*operands))
        return taken[-1]

    monkeypatch.setattr(quantized_products, "_few_rows", told)
    for x, product in zip(several, expected, strict=True):
        np.testing.assert_allclose(BASE.quantized_linear(x, weight), product, rtol=1e-4, atol=1e-4)
    assert taken == [True, True]


# ---- Python threads ----


@needs_kernels
def test_python_threads_share_the_pool() -> None:
    """One uses it at a time, the others compute alone; no work is lost, and there is no deadlock."""
    before, wrong = threads.num_threads(), []
    threads.set_num_threads(4)

    def work(seed: int) -> None:
        x = numbers(150_000, seed=seed)
        expected = x + x
        for _ in range(60):
            if not np.array_equal(ufuncs.large(np.add, x, x), expected):
                wrong.append(seed)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive()
    threads.set_num_threads(before)
    assert not wrong


FORKED = """
import os, sys
import numpy as np
from backburn_numpy.runtime import threads
from backburn_numpy.elementwise import ufuncs
threads.set_num_threads(3)
x = np.ones(200_000, np.float32)
add = ufuncs.binary(np.add)
assert add(x, x).sum() == 400_000
child = os.fork()
if not child:
    os._exit(0 if add(x, x).sum() == 400_000 and add(x, 1.0).sum() == 400_000 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert add(x, x).sum() == 400_000
"""


@needs_kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_separate_pool() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
