"""The library of compiled kernels of the NumPy backend: its levels, its threads, its build, and its absence."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, both, needs_kernels, numbers, use_level

from backburn.autodiff import Autodiff
from backburn.base.dtypes import as_dtype
from backburn.conformance import SAMPLES, checks
from backburn.conformance.checks.behaviour import check_mutation
from backburn.conformance.checks.kinds import VALUE_KINDS
from backburn_numpy import (
    blas,
    compiled,
    threads,
    ufuncs,
)
from backburn_numpy.compiled import build
from backburn_numpy.ops import (
    quantized_products,
)


@needs_kernels
def test_the_library_tells_the_types_of_parameters() -> None:
    """Kernels that are written out in the sources are known by name, and some that macros make."""
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


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_samples() -> None:
    """All samples of operations with kernels, at the smallest sizes, zero among them; inputs are left as they were."""
    for check in checks(BASE, ops=WITH_KERNELS, kinds=VALUE_KINDS):
        if check.dtype in ("float32", "float16", "bfloat16"):
            check()
            if not check.sample.attributes.get("donate"):
                replace(check, function=check_mutation)()


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("name", ["sigmoid", "gelu", "softplus"])
def test_nothing_is_written_beside_the_result(level: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_scalar_of_numpy_is_computed_like_an_array(name: str) -> None:
    function = getattr(BASE, name)
    np.testing.assert_array_equal(function(np.float32(0.5)), function(np.array(0.5, np.float32)))


def test_many_threads_at_once() -> None:
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


def test_one_row_is_one_thread_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread has an empty part, whose sum would take the place of another's."""
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
    """They write into memory that the error would free."""
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


def test_a_system_without_threads_to_spare_computes_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
from backburn_numpy import threads
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


def test_the_number_of_threads_changes_while_others_compute() -> None:
    """Nobody waits for parts that a closed pool was given."""
    done = _python("-c", RESIZED)
    assert done.returncode == 0, done.stderr


INHERITED = """
from contextvars import ContextVar
from backburn_numpy import threads
setting, found = ContextVar("setting", default=False), []
threads.set_num_threads(2)
setting.set(True)
threads.parallel_for(lambda start, stop: found.append(setting.get()), 2, worth=1)
assert sorted(found) == [False, True], found
"""


def test_the_pool_keeps_no_settings_of_the_caller_that_started_it() -> None:
    """Not even where new threads inherit them: from Python 3.14 on, with this option or without the GIL."""
    done = _python("-X", "thread_inherit_context=1", "-c", INHERITED)
    assert done.returncode == 0, done.stderr


# ---- without kernels ----


def test_the_backend_says_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    level = compiled.level()
    assert level is None or Path(BASE.libraries["kernel library"]).name.startswith(f"{level}-")
    assert BASE.libraries["kernels"] == (f"compiled for {level}" if level else BASE.libraries["kernels"])
    monkeypatch.setattr(compiled, "_library", None)
    assert "python -m backburn_numpy.compiled" in BASE.libraries["kernels"]
    assert Autodiff(BASE).libraries == BASE.libraries
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    assert BASE.libraries["BLAS"].endswith(", not used by kernels")
    assert "kernel library" not in BASE.libraries


def test_without_kernels_numpy_does_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", None)
    monkeypatch.setattr(compiled, "_kernels", {})
    assert compiled.level() is None
    assert compiled.kernel("gelu") is None
    x = numbers(100, 100)
    np.testing.assert_allclose(BASE.softmax(x, axis=1).sum(1), 1, rtol=1e-5)
    got, expected = both(monkeypatch, "layer_norm", x, axis=(1,), eps=1e-5)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


def test_without_a_known_library_of_products_numpy_convolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    x, weight = numbers(8, 4, 20, 20), numbers(6, 4, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    got, expected = both(monkeypatch, "conv", x, weight, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


@needs_kernels
def test_few_rows_times_a_quantized_weight_need_no_library_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme: Any = as_dtype("qint4_symmetric_block32_float32")
    weight = BASE.quantize(numbers(20, 70), scheme)
    few = quantized_products.FEW_ROWS
    several = [numbers(count, 70, seed=1) for count in (1, few, few + 1)]
    expected = [BASE.quantized_linear(x, weight) for x in several]
    monkeypatch.setattr(blas, "sgemm_address", lambda: None)
    taken: list[bool] = []
    run_kernel = quantized_products._run_kernel

    def told(*operands: Any) -> bool:
        taken.append(run_kernel(*operands))
        return taken[-1]

    monkeypatch.setattr(quantized_products, "_run_kernel", told)
    for x, product in zip(several, expected, strict=True):
        np.testing.assert_allclose(BASE.quantized_linear(x, weight), product, rtol=1e-4, atol=1e-4)
    assert taken == [True, True, False]


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_the_environment_leaves_them_out() -> None:
    show = "from backburn_numpy import compiled; print(compiled.level())"
    assert _python("-c", show, BACKBURN_COMPILED="0").stdout.strip() == "None"
    for unset in ("", "1"):
        assert _python("-c", show, BACKBURN_COMPILED=unset).stdout.strip() == str(compiled.level())
    refused = _python("-c", show, BACKBURN_COMPILED="yes")
    assert "BACKBURN_COMPILED='yes': 0 leaves the compiled kernels out, 1 uses them" in refused.stderr


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(build.NoCompilerError, match="/nowhere/cc"):
        build.build(tmp_path)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NoCompilerError, match="neither cc nor gcc is on the PATH"):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_compiler_is_named_as_the_system_writes_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setenv("CC", r'"C:\My tools\gcc.exe" -m64')
    with pytest.raises(build.NoCompilerError, match=r"'C:\\My tools\\gcc\.exe' -m64 -std=c11"):
        build.build(tmp_path)


def test_sources_that_are_refused_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text("this is not C")
    monkeypatch.setattr(build, "SOURCES", [wrong])
    with pytest.raises(build.NoCompilerError, match=r"wrong\.c"):
        build.build(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([wrong, build.library("processor", tmp_path)])


@pytest.mark.skipif(os.name != "posix", reason="the compilers of this test are shell scripts")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "sh .*processor.c"),
        (r"printf '\377' >&2; exit 1", "\ufffd"),
        ('for last; do [ "$before" = -o ] && echo text > "$last"; before=$last; done', "cannot be loaded"),
    ],
    ids=["makes nothing", "writes another encoding", "compiles for another machine"],
)
def test_a_compiler_that_makes_nothing_to_load_is_as_good_as_none(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_text(script)
    monkeypatch.setenv("CC", f"sh {tmp_path / 'cc'}")
    with pytest.raises(build.NoCompilerError, match=message):
        build.build(tmp_path, only_best=True)


def test_windows_has_no_vectors_wider_than_its_stack_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert list(build.levels()) == ["x86-64", "x86-64-v3", "x86-64-v4"]
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert list(build.levels()) == ["x86-64"]


def test_the_command_says_why_nothing_is_compiled() -> None:
    result = _python("-m", "backburn_numpy.compiled", CC="/nowhere/cc")
    assert result.returncode == 1
    assert "The kernels are not compiled: /nowhere/cc" in result.stderr


@pytest.fixture
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single source, which is compiled soon: it is which libraries there are that is tested."""
    monkeypatch.setattr(build, "SOURCES", [build.FOLDER / "pool.c"])


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_an_installed_wheel_has_libraries_and_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by their names, of whatever sources they were made; there is nothing to compile."""
    made = build.build(tmp_path, only_best=True)
    monkeypatch.setattr(build, "SOURCES", [])
    monkeypatch.setattr(build, "edition", lambda: pytest.fail("there is nothing to sum up"))
    assert [build.library(path.name.rpartition("-")[0], tmp_path) for path in made] == made
    assert not build.library("another", tmp_path).exists()
    with pytest.raises(build.NoCompilerError, match="no sources to compile"):
        build.build(tmp_path)


@needs_kernels
@pytest.mark.usefixtures("one_source")
def test_libraries_of_other_sources_are_removed_and_never_loaded(tmp_path: Path) -> None:
    old = tmp_path / f"x86-64-00000000{build.SUFFIX}"
    old.touch()
    best = build.build(tmp_path, only_best=True)
    assert best == [build.library(n, tmp_path) for n in ("processor", build.supported_levels(tmp_path)[-1])]
    assert sorted(tmp_path.iterdir()) == sorted(best)
    made = build.build(tmp_path)
    assert made == [build.library(name, tmp_path) for name in ("processor", *build.levels())]
    assert sorted(tmp_path.iterdir()) == sorted(made)


@pytest.mark.skipif(os.name == "nt", reason="a shell script is no compiler there")
def test_after_a_failure_the_rest_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, script = tmp_path / "log", tmp_path / "my cc"
    script.write_text(f"#!/bin/sh\necho >> '{log}'\nsleep 0.05\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", f"'{script}' -m64")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(build.NoCompilerError, match="my cc' -m64"):
        build._compiled({"base": ()}, build.SOURCES, tmp_path)
    assert len(log.read_text()) < len(build.SOURCES)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(build.NoCompilerError, match="no folder for what the compiler makes"):
        build._compiled({"base": ()}, build.SOURCES, tmp_path)


@needs_kernels
def test_the_best_library_that_is_there_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = build.supported_levels()
    monkeypatch.setattr(compiled, "supported_levels", lambda: [*names, "x86-64-v9"])
    found = compiled._load()
    assert found is not None
    assert found[0] == USABLE[-1]
    monkeypatch.setattr(compiled, "supported_levels", lambda: ["x86-64-v9"])
    assert compiled._load() is None


@needs_kernels
def test_several_threads_of_python_share_the_pool() -> None:
    """One of them has it at a time, the others do their work alone; nothing is lost, and nobody waits for ever."""
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
from backburn_numpy import threads, ufuncs
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
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
