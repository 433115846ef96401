"""Recorded random programs equal unrecorded ones; failures are found and shortened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in.compiled import COMPILER
from tests.helpers.kernels import needs_kernels
from tests.programs import running
from tests.programs.generator import Input, Line, Program, Value
from tests.programs.modes import CUPY_TOWERS, MODES, TOWERS, Case, case_of
from tests.programs.running import PURE, Calls, Failure, differs, is_unstable, run

from backburn.programs.executable import CompiledProgram
from backburn_numpy.programs import state_updates

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


def command(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m tests.programs``, after some statements."""
    code = f"{before}\nimport runpy\nrunpy.run_module('tests.programs', run_name='__main__', alter_sys=True)"
    paths = [str(ROOT), str(ROOT / "src"), str(ROOT / "backends")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=variables,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["1", "0"], ids=["kernels", "NumPy alone"])
def test_recorded_programs_equal_unrecorded_ones(compiled: str) -> None:
    done = command("--seed", "standing", "--count", "120", BACKBURN_COMPILED=compiled)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "120 programs" in done.stdout


@pytest.mark.stand_in
@pytest.mark.skipif(COMPILER is None, reason="running the kernels needs g++")
def test_cuda_graphs_equal_unrecorded_programs() -> None:
    """On the stand-in for CuPy, which fills the memory of graphs with garbage before each launch."""
    done = command("--cupy", "--seed", "standing", "--count", "25")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--seed cupy-standing" in done.stdout
    passed = int(done.stdout.partition(" passed")[0].split()[-1])
    assert passed >= 20


def test_programs_cover_all_modes_and_backends() -> None:
    cases = [case_of(f"kinds-{i}") for i in range(150)]
    assert {case.mode for case in cases} == {*MODES}
    assert {case.tower for case in cases} == {*TOWERS}
    assert any(case.interrupted for case in cases)
    assert any(case.at_once for case in cases)
    assert any(case.in_turns for case in cases)
    assert any(case.has_parts for case in cases)
    assert len({case.program for case in cases}) == 150
    assert cases[7] == case_of("kinds-7")
    assert {case_of(f"cupy-{i}").tower for i in range(60)} == {*CUPY_TOWERS}


#: A native program that omits the last element, like a forgotten tail loop.
TAIL = """
from backburn_numpy.programs import native_program
run = native_program.NativeProgram.__call__
def short(self, *given):
    found = run(self, *given)
    return [x if x.size < 6 else (x.reshape(-1).__setitem__(-1, 0.0), x)[1] for x in found]
native_program.NativeProgram.__call__ = short
"""
#: A native program that aborts the process.
CRASH = """
import os
from backburn_numpy.programs import native_program
from backburn_numpy.programs import state_updates
run = native_program.NativeProgram.__call__
def crash(self, *given):
    found = run(self, *given)
    if any(x.shape[-1:] == (3,) for x in found):
        os.abort()
    return found
native_program.NativeProgram.__call__ = crash
"""


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize(
    ("fault", "words"), [(TAIL, "failed: call "), (CRASH, "failed: the process ended by signal SIGABRT")]
)
def test_a_fault_is_found_and_its_program_shortened(fault: str, words: str) -> None:
    done = command("--seed", "faults", "--count", "100", "--failures", "1", before=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stdout
    _, _, short = done.stdout.partition("def program(")
    body = short.partition("return")[0].splitlines()[1:]
    assert 0 < len(body) <= 8, done.stdout
    space: dict[str, Any] = {}
    exec(done.stdout[done.stdout.index("import numpy") : done.stdout.index("for wrap")], space)  # a script that runs
    assert callable(space["function"])


@pytest.mark.parametrize(("step", "is_chaotic"), [("bb.sin({} * 40.0)", True), ("bb.tanh({} * 0.9)", False)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_distinguished_from_faults(step: str, is_chaotic: bool, dtype: str) -> None:
    """A difference is accepted only if rounding moves the unrecorded results as far."""
    names = ["x0", *(f"v{i}" for i in range(14))]
    values = [Value(name, (4,), dtype) for name in names]
    lines = [Line(v, f"{v.name} = {step.format(before)}") for before, v in zip(names, values[1:], strict=False)]
    program = Program((Input(values[0]),), (), tuple(lines), (names[-1],))
    case = Case("by hand", program, "autodiff(capture(numpy))", "value")
    expected = Calls(case).call(PURE[0])
    moved = [(name, x + x.dtype.type(0.01)) for name, x in expected]
    assert is_unstable(case, 0, moved, expected) is is_chaotic


@pytest.mark.parametrize(("by", "is_rounding"), [(2e-7, True), (1e-3, False)])
def test_cancelling_parts_of_a_gradient_are_rounded_separately(by: float, is_rounding: bool) -> None:
    x, v = Value("x0", (3,), "float32"), Value("v0", (3,), "float32")
    program = Program((Input(x),), (), (Line(v, "v0 = bb.atan2(x0, x0)"),), ("v0",))
    case = Case("by hand", program, "autodiff(capture(numpy))", "grad")
    expected = Calls(case).call(PURE[0])
    moved = [(name, y + y.dtype.type(by)) for name, y in expected]
    assert is_unstable(case, 0, moved, expected) is is_rounding


@needs_kernels
@pytest.mark.parametrize("how", ["has_parts", "in_turns"])
@pytest.mark.parametrize("optimizer", ["SGD(0.05, momentum=0.9)", "Adam(0.01)"])
def test_overwritten_shared_state_is_found(how: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that overwrites its state without checking for other references fails."""
    x, v = Value("x0", (3, 4), "float32"), Value("v0", (3, 4), "float32")
    program = Program((Input(x),), (), (Line(v, "v0 = bb.tanh(x0)"),), ("v0",))
    options: Any = {how: True}
    case = Case("by hand", program, "autodiff(capture(numpy))", "train", (("x0", "x0"),), optimizer, **options)
    assert run(case) == "passed"
    update = CompiledProgram._update

    def owning(self: Any, *given: Any) -> Any:
        self._owned = [True] * len(self._owned)
        return update(self, *given)

    monkeypatch.setattr(CompiledProgram, "_update", owning)
    monkeypatch.setattr(state_updates, "is_unshared", lambda arrays, known_references: [True] * len(arrays))
    monkeypatch.setattr(running, "VERIFIED", 0.0)
    with pytest.raises(Failure, match=r"call \d: result|a later call changed"):
        run(case)


def test_messages_describe_differences() -> None:
    case = case_of("words-0")
    x = np.arange(6.0).reshape(2, 3)
    y = x.copy()
    y[1, 2] = 7.0
    words = differs(case, [("float64", x)], [("float64", y)], exact=False)
    assert words == "result 0, float64[2, 3], at [1, 2]: np.float64(5.0), not np.float64(7.0) (1 of 6)"
    assert differs(case, [("float64", x)], [("float32", x.astype("f"))], exact=False) == (
        "result 0 is float64[2, 3], not float32[2, 3]"
    )
    assert not differs(case, [("float64", x)], [("float64", x * (1 + 1e-12))], exact=False)
    assert differs(case, [("float64", x)], [("float64", x * (1 + 1e-12))], exact=True)
    assert differs(case, [("float64", -0.0 * x[:0])], [("float64", x[:1, :0])], exact=True)
    assert differs(case, [("float64", np.array(-0.0))], [("float64", np.array(0.0))], exact=True)
