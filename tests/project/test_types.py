"""The contract's types: two checkers accept correct code and refuse each misuse, line by line."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import backburn as bb

from .typed import kinds

HERE = Path(__file__).parent / "typed"
ROOT = HERE.parents[2]
# Pyright uses the `python` of the path by default; packages that it does not find would be Unknown and never wrong.
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")],
    "pyright": [sys.executable, "-m", "pyright", "--project", str(ROOT), "--pythonpath", sys.executable],
}


def refused(checker: str, *files: str) -> set[tuple[str, int]]:
    """The lines of ``files`` in which ``checker`` finds an error."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    run = subprocess.run(
        [*CHECKERS[checker], *(str(HERE / f) for f in files)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = re.findall(r"typed/(\w+\.py):(\d+)(?::\d+)?[:\s-]+error", run.stdout)
    return {(file, int(line)) for file, line in found}


@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_correct_code_and_refuse_each_misuse(checker: str) -> None:
    lines = (HERE / "misuse.py").read_text().splitlines()
    expected = {("misuse.py", n) for n, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(expected) >= 100
    got = refused(checker, "correct.py", "kinds.py", "misuse.py")
    assert got - expected == set(), "refused, but correct"
    assert expected - got == set(), "accepted, but wrong"


@pytest.mark.parametrize("package", ["src/backburn", *(f"backends/backburn_{b}" for b in ("cupy", "null", "numpy"))])
def test_packages_have_the_marker_of_typed_packages(package: str) -> None:
    """Without it, ``from backburn_numpy import NumpyBackend`` is an error under mypy."""
    assert (ROOT / package / "py.typed").is_file()


# ---- declared types are the run-time types ----

WALKED = [f for _, f in inspect.getmembers(kinds, inspect.isfunction) if f.__module__ == kinds.__name__]


def is_of(value: object, declared: Any) -> bool:
    """Whether a value has a declared type: a class, or a tuple of types."""
    if get_origin(declared) is not tuple:
        return isinstance(value, declared)
    assert isinstance(value, tuple)
    types = get_args(declared)
    if types[-1] is Ellipsis:
        types = types[:1] * len(value)
    return len(value) == len(types) and all(map(is_of, value, types))


@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)", "autodiff(numpy(quantized=propagate))"])
@pytest.mark.parametrize("function", WALKED, ids=lambda f: f.__name__)
def test_declared_types_are_the_run_time_types(function: Any, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = bb.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32", backend=spec)
    i = bb.asarray([[0, 1], [1, 0]], backend=spec)
    operands = {"x": x, "i": i, "b": i == 1, "q": x.quantize(), "t": x, "z": x * 1j, "number": 2, "truth": True}
    checked = []

    def check(value: object, declared: Any) -> None:
        assert is_of(value, declared), (value, declared)
        checked.append(value)

    monkeypatch.setattr(kinds, "assert_type", check)
    with bb.use_backend(spec):
        function(**{name: operands[name] for name in inspect.signature(function).parameters})
    assert checked


def test_an_int_annotated_as_float_keeps_integers() -> None:
    """This is why checkers see a ``Tensor`` for an int tensor and a ``float``."""
    number: float = 2
    assert type(bb.asarray([1]) * number) is bb.IntTensor
    assert type(bb.asarray([1]) * 2.0) is bb.FloatTensor
