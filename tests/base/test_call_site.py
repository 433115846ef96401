"""The user's frame, found by one function for errors, checks, warnings and traces, through every decorator."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend import load_backend
from backburn.backend.contract import is_autodiff
from backburn.base.call_site import call_site, stack_level
from backburn.base.errors import BackburnError, ShapeError
from backburn.conformance import SAMPLES
from backburn.conformance.samples.calls import arrays, map_operands, store_quantized
from backburn.nn import functional
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

SPECS = (
    "numpy",
    "autodiff(numpy)",
    "autodiff(autodiff(numpy))",
    "forward(numpy)",
    "autodiff(forward(numpy))",
    "capture(numpy)",
    "autodiff(capture(numpy))",
    "sharded(numpy, dp=2, inputs=first, on_fallback=allow)",
    "autodiff(sharded(sharded(numpy, tp=2, inputs=last, on_fallback=allow), dp=2, inputs=first, on_fallback=allow))",
    "autodiff(capture(sharded(numpy, dp=2, inputs=first, on_fallback=allow)))",
    "autodiff(profile(numpy))",
    "trace(autodiff(numpy))",
    "autodiff(trace(sharded(numpy, dp=2, inputs=first, on_fallback=allow)))",
    "null",
)
HERE = f"{__file__}:"


def asking(method: Callable[..., Any], told: list[str]) -> Callable[..., Any]:
    """Return ``method`` of a backend, which first stores its call site in ``told``."""

    def function(*operands: Any, **attributes: Any) -> Any:
        told.append(call_site())
        return method(*operands, **attributes)

    function.__code__ = function.__code__.replace(co_filename="<backburn probe>")
    return function


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of call sites of operations of the NumPy backend."""
    found: list[str] = []
    for name in (*OPERATIONS, "to_numpy", "from_numpy"):
        method = inspect.getattr_static(NumpyBackend, name)
        is_static = isinstance(method, staticmethod)
        method = asking(method.__func__ if is_static else method, found)
        monkeypatch.setattr(NumpyBackend, name, staticmethod(method) if is_static else method)
    return found


@pytest.mark.parametrize("spec", [s for s in SPECS if s != "null"])
def test_every_operation_finds_its_caller(spec: str, told: list[str]) -> None:
    k = load_backend(spec)
    for name, table in SAMPLES.items():
        sample = table.cases[0]
        try:
            operands = store_quantized(k, map_operands(arrays(sample, "float32"), k.from_numpy))
            told.clear()
            getattr(k, name)(*operands, **sample.attributes)
        except BackburnError:  # the decorator does not differentiate the operation
            pass
        assert told or name in ("stop_gradient", "settle") or name.startswith("sharded"), name
        assert {site for site in told if not site.startswith(HERE)} == set(), name


def program(told: list[str]) -> set[str]:
    """Return the call sites of a program with a reverse pass, transforms and reads of values."""
    x, w = bb.asarray(np.ones((4, 3), np.float32)), bb.asarray(np.ones((3, 5), np.float32))
    w = w.require_grad() if is_autodiff(w.backend) else w
    norm = bb.nn.LayerNorm(5)
    told.clear()
    y = bb.nn.functional.gelu(norm(x @ w))
    loss = (functional.softmax(y, axis=-1) * y).sum()
    if is_autodiff(loss.backend):
        loss.backward()
    bb.vmap(lambda row: row.sum() + bb.linalg.vector_norm(row))(x).numpy()
    loss.item(), y.tolist(), repr(y), float(loss), np.asarray(x), bool(loss > 0)
    copy.deepcopy(x)
    return set(told)


@pytest.mark.parametrize("spec", [s for s in SPECS if s not in ("null", "autodiff(autodiff(numpy))")])
def test_programs_and_reverse_passes_find_their_lines(spec: str, told: list[str]) -> None:
    with bb.use_backend(spec):
        sites = program(told)
    assert len(sites) > 3
    assert all((site.startswith(HERE) and " in program" in site) or "lambda" in site for site in sites), sites


def test_replays_find_the_line_of_the_call(told: list[str]) -> None:
    step = bb.capture(lambda x: bb.exp(x).sum() * 2.0, state=False)
    x = bb.asarray(np.ones((300, 2), np.float32), backend="capture(sharded(numpy, dp=2, inputs=first))")
    for _ in range(3):
        told.clear()
        step(x).item()
    assert "replayed" in repr(step)
    assert told
    assert all(site.startswith(HERE) for site in told), told


def test_two_lines_of_a_program_are_two_sites(told: list[str]) -> None:
    with bb.use_backend("autodiff(sharded(numpy, dp=2, inputs=first))"):
        x, sites = bb.ones((12,)), []
        for function in (lambda: bb.sum(x * 2.0).item(), lambda: bb.sum(x * 3.0).item()):
            told.clear()
            function()
            sites.append(set(told))
        told.clear()
        bb.sum(x).item()
        first = set(told)
        told.clear()
        bb.sum(x).item()
    assert len(first) == 1
    assert first.isdisjoint(told)


@pytest.mark.parametrize("spec", SPECS)
def test_errors_name_the_function_through_every_decorator(spec: str) -> None:
    k: Any = load_backend(spec)
    with bb.use_backend(k):
        x = bb.ones((4, 3))
        with pytest.raises(ShapeError, match=r"^linear: "):
            functional.linear(x, bb.ones((2, 5)))
        with pytest.raises(BackburnError, match=r"^matmul: "):
            x @ x


WARNINGS = {
    "sharded": "autodiff(sharded(numpy, dp=2, inputs=first))",
    "nested": "autodiff(autodiff(sharded(numpy, dp=2, inputs=first)))",
    "forward": "forward(sharded(numpy, dp=2, inputs=first))",
    "two levels": "autodiff(sharded(sharded(numpy, tp=2), dp=2, inputs=first))",
    "traced": "trace(autodiff(sharded(numpy, dp=2, inputs=first)))",
}


@pytest.mark.parametrize("spec", WARNINGS.values(), ids=WARNINGS)
def test_warnings_of_shards_name_the_user_s_line(spec: str) -> None:
    with bb.use_backend(spec), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        x = bb.asarray(np.eye(4, dtype=np.float32) + 1.0)
        bb.linalg.inv(x + bb.eye(4))
        line = sys._getframe().f_lineno - 1
    assert [(w.filename, w.lineno) for w in found] == [(__file__, line)]


kept: list[Any] = []


def keeps(x: Any) -> list[Any]:
    """Keep a tensor, which cannot be recorded."""
    kept.append(x * 2.0)
    return []


def keeps_state(state: Any, x: Any) -> tuple[Any, list[Any]]:
    return state, keeps(x)


def test_warnings_of_vmap_and_capture_name_the_user_s_line() -> None:
    def counts(row: Any) -> Any:
        return bb.nn.functional.ctc_loss(bb.log_softmax(row), bb.asarray([[1]]), bb.asarray([2]), bb.asarray([1]))

    with bb.use_backend("autodiff(autodiff(numpy))"), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        bb.vmap(counts)(bb.ones((3, 2, 1, 4)))
        x = bb.asarray([1.0], backend="capture(numpy)")
        of_state, of_none = bb.capture(keeps_state), bb.capture(keeps, state=False)
        for _ in range(3):
            of_state((), x)
            of_none(x)
    assert found
    assert {w.filename for w in found} == {__file__}


def test_frames_of_the_standard_library_are_not_the_user_s() -> None:
    found: list[str] = []

    class Asking:
        def __deepcopy__(self, memo: Any) -> Asking:
            found.append(call_site(sys._getframe(1)))  # copy.py calls this, and the test copy.py
            return self

    copy.deepcopy([Asking()])
    thread = threading.Thread(target=lambda: found.append(call_site()))
    thread.start()
    thread.join()
    assert all(site.startswith(HERE) for site in found), found
    assert len(found) == 2


@pytest.mark.parametrize("folder", ["backburn_experiments", "my backburn"])
def test_names_of_programs_may_begin_with_backburn(folder: str, tmp_path: Path) -> None:
    """A program in a folder or module with such a name is not taken for a part of backburn."""
    file = tmp_path / folder / "backburn_train.py"
    file.parent.mkdir()
    file.write_text("def run(ask):\n    return ask()\n")
    for name in ("backburn_train", "__main__"):
        names: dict[str, Any] = {"__name__": name}
        exec(compile(file.read_text(), str(file), "exec"), names)
        assert names["run"](call_site_of_backburn()) == f"{file}:2 in run"
        assert names["run"](call_site_of_backburn("stack_level()")) == 2


def call_site_of_backburn(expression: str = "call_site()") -> Any:
    """Return a function with a module name of backburn that evaluates ``expression``."""
    names = {"__name__": "backburn.base.somewhere", "call_site": call_site, "stack_level": stack_level}
    return eval(f"lambda: {expression}", names)


def test_without_user_frames_the_frame_of_backburn_is_reported() -> None:
    names = {"__name__": "backburn.train.loop", "ask": call_site_of_backburn()}
    found: list[str] = []

    def run() -> None:
        found.append(loop())

    run.__code__ = run.__code__.replace(co_filename="<backburn a thread>")
    loop = eval(compile("lambda: ask()", "loop.py", "eval"), names)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["loop.py:1 in <lambda>"]
