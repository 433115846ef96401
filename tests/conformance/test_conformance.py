"""The conformance suite: its checks and their ids, the three front ends, reports, and failures."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburn.backend import Capabilities
from backburn.backend.registry import load_backend
from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError, BackburnError, BackendUnavailableError, ConfigError
from backburn.cli import main
from backburn.conformance import KINDS, Result, check_backend, checks, parametrize_with_checks, read_expected
from backburn.conformance.checks.check import Check, parts_of
from backburn.conformance.checks.kinds import LARGE_KINDS, UNEXPLAINED, holes
from backburn.conformance.checks.timeout import can_limit, time_limit
from backburn.conformance.reports.report import Report
from backburn.conformance.reports.terminal import text
from backburn.conformance.runner.shrinking import smallest_failing
from backburn.conformance.runner.suite import QUICK_CHECKS, QUICK_SHAPES
from backburn.conformance.runner.worker import limit_memory
from backburn.conformance.samples.calls import leaves
from backburn.conformance.template import write_template
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

NUMPY = load_backend("numpy")


@cache
def all_checks() -> list[Check]:
    """All checks of the NumPy backend, created on first use: it takes seconds, and every worker imports this module."""
    return list(checks(NUMPY))


#: A NumPy backend with faults, for worker processes.
MODULE = """
import os, sys, time
import numpy as np
from backburn_numpy import NumpyBackend


class Faulty(NumpyBackend):
    _instance = None
    spec = property(lambda self: "faulty")


def crash(x, /):
    print("the last words", file=sys.stderr, flush=True)
    os._exit(3)


def hang(x, /):
    time.sleep(1000)


def exhaust(x, /):
    raise MemoryError


def wrong(x, /):
    print("this must not come between the answers", flush=True)
    return np.asarray(np.sin(x) + 1)


def leave(x, /):
    raise SystemExit(0)


for name, function in {"sin": wrong, "cos": crash, "tan": hang, "exp": exhaust, "log": leave}.items():
    setattr(Faulty, name, staticmethod(function))

quiet = Faulty()


def failing():
    raise RuntimeError("no licence")


class Half:
    spec = "half"
    def add(self, x, y): ...
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "faulty_backend.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty_backend", raising=False)
    return "faulty_backend:Faulty"


# ---- the checks ----


def test_there_are_enough_checks_and_their_ids_are_unique() -> None:
    ids = [c.id for c in all_checks()]
    assert len(set(ids)) == len(ids) >= 5000
    for check in all_checks():
        assert parts_of(check.id) == (check.operation, check.dtype, check.kind, check.index)
        assert check.kind in KINDS
        assert check.title


@pytest.mark.slow
def test_checks_are_the_same_in_every_process() -> None:
    program = "from backburn.conformance import checks; from backburn.backend import load_backend\n"
    program += "print(sum(c.seed for c in checks(load_backend('numpy'), quick=True)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert int(done.stdout) == sum(c.seed for c in checks(NUMPY, quick=True))


def test_quick_has_every_kind_and_every_operation_with_a_value() -> None:
    quick = list(checks(NUMPY, quick=True))
    assert len(quick) <= QUICK_CHECKS
    assert {c.kind for c in quick} == {c.kind for c in all_checks()} - set(LARGE_KINDS)
    assert {c.id for c in all_checks() if c.kind in ("protocol", "trait")} <= {c.id for c in quick}
    assert {c.operation for c in quick} >= {c.operation for c in all_checks() if c.kind == "value"}
    shapes: dict[str, set[Any]] = {}
    for check in quick:
        if check.sample is not None:
            shapes.setdefault(check.operation, set()).add(tuple(np.shape(a) for a in leaves(check.sample)))
    assert max(map(len, shapes.values())) <= QUICK_SHAPES


def test_quick_detects_wrong_backend_properties() -> None:
    def answering(value: Any) -> property:
        return property(lambda self: value)

    for member, wrong in (("spec", 5), ("device", ""), ("float_dtype", "float32")):
        made: Any = type("Wrong", (type(NUMPY),), {"_instance": None, member: answering(wrong)})()
        assert not check_backend(made, quick=True, kinds=["protocol", "value"]).ok, member


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (["float32"], "capabilities is a Capabilities, not list"),
        (Capabilities({"float32": frozenset({"storage"})}), r"as_dtype\(.*\), not 'float32'"),  # type: ignore[dict-item]
    ],
)
def test_backends_must_declare_dtypes(declared: Any, told: str) -> None:
    wrong: Any = type("Wrong", (type(NUMPY),), {"_instance": None, "capabilities": property(lambda self: declared)})()
    with pytest.raises(ArgumentError, match=told):
        check_backend(wrong, ops=["add"])


def test_every_missing_check_has_a_reason() -> None:
    found = holes({(c.operation, c.kind) for c in all_checks()})
    assert not [pair for pair, reason in found.items() if reason == UNEXPLAINED]
    assert {c.kind for c in all_checks()} == set(KINDS)


@pytest.mark.slow
def test_numpy_passes() -> None:
    report = check_backend(NUMPY)
    assert report.ok, text(report, matrices=False)
    assert len(report.results) == len(all_checks())


def test_logarithms_to_base_10_are_exact_in_every_layout() -> None:
    powers = 10.0 ** np.arange(11)
    for x in (powers, np.resize(powers, 5000), np.resize(powers, (30, 22))[::2].T, np.array(1000.0)):
        np.testing.assert_array_equal(NUMPY.log10(x.astype(np.float32)), np.round(np.log10(x)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["autodiff(numpy)", "autodiff(autodiff(numpy))", "null", "autodiff(null)"])
def test_included_backends_and_decorators_pass(spec: str) -> None:
    report = check_backend(spec, quick=spec != "null")
    assert report.ok, text(report, matrices=False)
    assert len(report.results) > 500


def test_filters_select_and_refuse_what_does_not_exist() -> None:
    found = list(checks(NUMPY, ops=["tanh", "sum"], dtypes=["float32"], kinds=["value", "gradient"]))
    assert {c.operation for c in found} == {"tanh", "sum"}
    assert {c.dtype for c in found} == {"float32"}
    assert {c.kind for c in found} == {"value", "gradient"}
    for wrong, hint in (
        ({"ops": ["softmaxx"]}, "softmax"),
        ({"dtypes": ["flaot32"]}, "float32"),
        ({"kinds": ["valeu"]}, "value"),
    ):
        with pytest.raises(ArgumentError, match=f"Did you mean '{hint}'"):
            checks(NUMPY, **wrong)  # type: ignore[arg-type]


# ---- one check fails, and the others continue ----


@pytest.mark.slow
def test_crashes_hangs_and_exhaustion_fail_alone(faulty: str) -> None:
    names = ["sin", "cos", "tan", "exp", "log", "tanh"]
    only = [f"{name}-float64-shape-0" for name in names]
    report = check_backend(faulty, only=only, jobs=2, timeout=3)
    assert {parts_of(result.id)[0]: result.message for result in report.results} == {
        "sin": "",
        "cos": "the process died (exit status 3: the last words)",
        "tan": "took more than 3 s and was stopped",
        "exp": "raised MemoryError",
        "log": "raised SystemExit: 0",
        "tanh": "",
    }


LOSING = """
import numpy as np
from backburn.base.errors import DeviceError
from backburn_numpy import NumpyBackend


class Losing(NumpyBackend):
    _instance = None
    spec = property(lambda self: "losing")
    is_lost = False

    def synchronize(self):
        if Losing.is_lost:
            raise DeviceError("an illegal memory access was encountered")

    def cos(self, x, /):
        Losing.is_lost = True
        return self.tanh(x)

    def tanh(self, x, /):
        self.synchronize()
        return np.asarray(np.tanh(x))
"""


@pytest.mark.slow
def test_a_lost_device_does_not_fail_later_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call fails until the process ends, as after an illegal memory access in CUDA."""
    (tmp_path / "losing_backend.py").write_text(LOSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    dtypes = ["float32", "float64"]
    report = check_backend("losing_backend:Losing", ops=["cos", "tanh"], kinds=["value"], dtypes=dtypes, jobs=1)
    failed = {parts_of(r.id)[0] for r in report.failures}
    assert len(report.failures) > 1
    assert failed == {"cos"}


@pytest.mark.skipif(sys.platform != "linux", reason="memory can be limited only on Linux")
def test_memory_can_be_limited(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "greedy_backend.py").write_text(
        MODULE.replace("Faulty", "Greedy").replace("raise MemoryError", "return np.zeros(2**29)")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    report = check_backend("greedy_backend:Greedy", ops=["exp", "tanh"], kinds=["shape"], jobs=1, memory=4)
    assert {parts_of(r.id)[0] for r in report.failures} == {"exp"}
    assert "MemoryError" in report.failures[0].message


def _refuse(*_: Any) -> None:
    raise ValueError("current limit exceeds maximum limit")


@pytest.mark.parametrize(
    "module", [None, types.SimpleNamespace(RLIMIT_AS=9, setrlimit=_refuse)], ids=["Windows", "macOS"]
)
def test_a_memory_limit_that_cannot_be_set_is_an_error(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", module)
    with pytest.raises(ArgumentError, match="memory cannot be limited to 4 GB on this system"):
        limit_memory(4.0)


def test_workers_give_the_results_of_this_process(faulty: str) -> None:
    here = check_backend(faulty, ops=["sin", "add"], kinds=["value"])
    there = check_backend(faulty, ops=["sin", "add"], kinds=["value"], jobs=1)
    assert here.failures
    assert [(r.id, r.status, r.message, r.smallest) for r in here.results] == [
        (r.id, r.status, r.message, r.smallest) for r in there.results
    ]


def test_a_failure_shows_its_smallest_input_and_how_to_reproduce_it(faulty: str, capsys) -> None:
    report = check_backend(faulty, ops=["sin"], kinds=["value"], dtypes=["float32"])
    (first, *_) = report.failures
    assert re.fullmatch(r"k\.sin\(array\(\[[^,]*\], dtype=float32\)\)", first.smallest)
    assert report.reproduction(first) == f"backburn conformance {faulty} --only {first.id}"
    assert main(["conformance", faulty, "--only", first.id, "--in-process"]) == 1
    out = capsys.readouterr().out
    assert first.smallest in out
    assert "0 of 1 checks" in out


def test_a_failure_of_an_unregistered_backend_is_reproduced_by_a_call() -> None:
    class Wrong(NumpyBackend):
        def sin(self, x: Any, /) -> Any:
            return super().sin(x) + np.float32(1.0)

    report = check_backend(Wrong(), ops=["sin"], kinds=["value"], dtypes=["float32"])
    (first, *_) = report.failures
    call = report.reproduction(first)
    assert call == f"check_backend(backend, only=[{first.id!r}])"
    assert call in str(report)
    assert not eval(call, {"check_backend": check_backend, "backend": Wrong()}).ok


def test_a_failing_search_for_the_smallest_input_returns_the_original() -> None:
    def isin(x: Any, values: Any, /) -> Any:  # its operands do not broadcast
        return np.asarray(~np.isin(x, values))

    inverted: Any = type("Inverted", (type(NUMPY),), {"_instance": None, "isin": staticmethod(isin)})()
    report = check_backend(inverted, ops=["isin"])
    assert report.failures
    assert {r.smallest.startswith("k.isin(array(") for r in report.failures if "-value-" in r.id} == {True}
    (check, *_) = checks(NUMPY, ops=["isin"], kinds=["value"])
    assert check.sample is not None

    def breaking(sample: Any) -> Any:
        raise SystemExit("no more")

    strange = replace(check.sample, operands=(check.sample.operands[0], [object()]))
    assert smallest_failing(replace(check, sample=strange, function=breaking)).startswith("k.isin(array(")


def test_a_to_numpy_that_shares_memory_fails_only_checks() -> None:
    sharing: Any = type("Sharing", (type(NUMPY),), {"_instance": None, "to_numpy": staticmethod(lambda x, /: x)})()
    report = check_backend(sharing, ops=["to_numpy", "isin", "concat", "searchsorted"])
    assert {parts_of(r.id)[2] for r in report.failures} >= {"aliasing", "round_trip"}


# ---- a time limit in this process ----


def hanging(**operations: Any) -> Any:
    members = {n: staticmethod(f) for n, f in operations.items()}
    return type("Hanging", (type(NUMPY),), {"_instance": None, "__reduce__": object.__reduce__, **members})()


def spin(x: Any, /) -> Any:
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # as backends do; the limit is not an Exception
            continue


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
def test_a_check_that_hangs_fails_alone_in_this_process_too() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    report = check_backend(hanging(tan=spin), ops=["tan", "tanh"], kinds=["value"], dtypes=["float32"], timeout=0.2)
    assert {parts_of(r.id)[0]: r.message for r in report.failures} == {"tan": "took more than 0.2 s and was stopped"}
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    mark = parametrize_with_checks(hanging(tan=spin), ops=["tan"], kinds=["value"], timeout=0.2)
    with pytest.raises(BaseException, match="took more than"):
        mark.args[1][0].values[0]()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
def test_the_time_limit_does_not_replace_other_timers_or_run_in_other_threads() -> None:
    known = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        assert not can_limit()
        with time_limit(0.01):
            time.sleep(0.05)
    finally:
        signal.signal(signal.SIGALRM, known)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(can_limit()))
    thread.start()
    thread.join()
    assert answers == [False]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
def test_the_command_limits_checks_in_this_process(faulty: str, capsys) -> None:
    options = ["--ops", "tan", "--kinds", "shape", "--dtypes", "float64", "--in-process", "--timeout", "0.2"]
    assert main(["conformance", faulty, *options]) == 1
    assert "took more than 0.2 s and was stopped" in capsys.readouterr().out


def test_an_exception_whose_message_fails_does_not_stop_the_run() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def mute(x: Any, /) -> Any:
        raise MuteError

    report = check_backend(hanging(tan=mute), ops=["tan"], kinds=["value"])
    assert {r.message for r in report.failures} == {"raised MuteError: with a message that raises ValueError"}


# ---- expected failures ----


def test_expected_failures_are_strict() -> None:
    (check,) = checks(NUMPY, ops=["neg"], kinds=["special"], dtypes=["float32"])
    report = check_backend(NUMPY, {check.id: "it fails"}, ops=["neg"])
    assert [(r.id, r.status) for r in report.failures] == [(check.id, "xpassed")]
    report = check_backend(NUMPY, {"neg-float31-special-6": "a slip of the pen"}, ops=["neg"])
    assert not report.ok
    assert report.unmatched == ["neg-float31-special-6"]
    assert "no check has this id" in str(report)
    with pytest.raises(ArgumentError, match="not of the form"):
        check_backend(NUMPY, {"neg": "no id"})


@pytest.mark.parametrize("check", [check_backend, parametrize_with_checks])
@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"neg-float32-value-0": ""}, "neg-float32-value-0 has no reason, but ''"),
        ({"neg-float32-value-0": None}, "neg-float32-value-0 has no reason, but None"),
        ({"neg": "no id"}, "not of the form"),
        (["neg-float32-value-0"], "maps ids to reasons, and this is a list"),
    ],
)
def test_expected_failures_without_reasons_are_refused(check: Any, expected: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        check(NUMPY, expected, ops=["neg"])


@pytest.mark.parametrize("check", [check_backend, parametrize_with_checks])
def test_a_string_is_not_a_list_of_names(check: Any) -> None:
    with pytest.raises(ArgumentError, match=r"ops is a list of names: \['exp'\]"):
        check(NUMPY, ops="exp")
    with pytest.raises(ArgumentError, match="kinds is a list of names"):
        check(NUMPY, kinds="value")


def test_expected_failures_carry_their_reason(faulty: str) -> None:
    report = check_backend(faulty, {"sin-*-value-*": "the sine is wrong"}, ops=["sin"], kinds=["value"])
    assert report.ok
    assert report.counts["xfailed"] == len(report.results) > 0
    assert report.matrix()["sin"]["float32"] == "xfail"
    for page in (str(report), report.to_markdown(), report.to_html()):
        assert "the sine is wrong" in page


@pytest.mark.parametrize("pattern", ["sin-*", "*-value-*", "s*n-*value*"])
def test_stars_in_patterns_of_expected_failures(pattern: str, faulty: str, tmp_path: Path) -> None:
    path = tmp_path / "expected.txt"
    path.write_text(f"{pattern}: the sine is wrong\n")
    report = check_backend(faulty, read_expected(path), ops=["sin"], kinds=["value"])
    assert report.ok
    assert report.counts["xfailed"] > 0
    path.write_text("sinn-*: a slip of the pen\n")
    assert check_backend(faulty, read_expected(path), ops=["tanh"], kinds=["value"]).unmatched == ["sinn-*"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("add-float32-value-0\n", "line 1: expected 'ID: reason'"),
        ("# a comment\n\nadd: wrong\n", "line 3: 'add' is not of the form"),
        ("add-any-value-0: a\nadd-any-value-0: b\n", "line 2: add-any-value-0 is repeated"),
        ("add-float32-value-0:\n", "line 1: expected 'ID: reason'"),
        ("add-float32-value-one: wrong\n", "line 1: 'add-float32-value-one' is not of the form"),
        ("sum-[ab]*: wrong\n", "line 1: 'sum-[ab]*' is not of the form"),
    ],
)
def test_malformed_expected_failures_name_their_line(lines: str, words: str, tmp_path, capsys) -> None:
    path = tmp_path / "expected.txt"
    path.write_text(lines)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_expected(path)
    assert main(["conformance", "numpy", "--quick", "--xfail", str(path)]) == 2
    assert f"backburn: {path}, {words}" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_expected(path)


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quantum"], "no backend is called 'quantum'"),
        (["numpy(("], ""),
        (["no_such_module:Backend"], "could not be imported (ModuleNotFoundError"),
        (["backburn_numpy:Nothing"], "could not be created (AttributeError"),
        (["faulty_backend:failing"], "could not be created (RuntimeError: no licence)"),
        (["faulty_backend:Half"], "    sum(x, /, axis, keepdims=False)\n"),
        (["numpy", "--ops", "softmaxx"], "there is no operation 'softmaxx'. Did you mean 'softmax'?"),
        (["numpy", "--ops", "zzz"], " more.\n"),
        (["numpy", "--only", "add-float32-value-999"], "numpy has no check add-float32-value-999"),
        (["numpy", "--only", "nonsense"], "is not of the form operation-dtype-kind-index"),
        (["numpy", "--xfail", "not_there.txt"], "not_there.txt: No such file"),
        (["numpy", "--ops", "add", "--kinds", "bounds"], "nothing to check"),
        (["--new", "no-name", "folder"], "cannot name a backend"),
        (["--new", "numpy", "folder"], "'numpy' cannot name a new backend, since another one has this name"),
        (["--new", "autodiff", "folder"], "since another one has this name"),
        ([], "name a backend"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments: list[str], words: str, faulty: str, capsys) -> None:
    for more in ([], ["--in-process"]):
        assert main(["conformance", *arguments, *more]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.startswith("backburn: ")
        assert "Traceback" not in err


def test_missing_operations_are_listed_with_their_signatures(faulty: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_backend("faulty_backend:Half")
    listed = str(caught.value).splitlines()[1:]
    required = [n for n, o in OPERATIONS.items() if o.required and n != "add"]
    assert [line.split("(")[0].strip() for line in listed] == ["device", "capabilities", "dtype", *required]
    with pytest.raises(ArgumentError, match=r"^\w+ is the class of a backend, .* pass an instance, \w+\(\)$"):
        check_backend(type(NUMPY))

    with pytest.raises(ArgumentError, match="pass its spec"):
        check_backend(lambda: NUMPY, jobs=2)


def test_a_backend_is_pickled_for_worker_processes() -> None:
    report = check_backend(NUMPY, ops=["sin"], kinds=["value"], jobs=1)
    assert report.ok
    assert report.target == check_backend(NUMPY, ops=["sin"], kinds=["value"]).target == "numpy"


def test_a_backend_that_ends_the_process_on_import_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "deadly_backend.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="exit status 7"):
        check_backend("deadly_backend:Backend", jobs=1)


@pytest.mark.parametrize("option", ["--jobs 0", "--timeout -1", "--timeout nan", "--jobs many", "--memory much"])
def test_wrong_options_show_the_usage(option: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["conformance", "numpy", *option.split()])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "usage: backburn conformance" in told
    assert f"argument {option.split()[0]}: must be a" in told


# ---- reports ----


def test_the_command_writes_all_reports(tmp_path: Path, capsys) -> None:
    paths = {name: tmp_path / f"report.{name}" for name in ("json", "markdown", "html")}
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    assert main(["conformance", "numpy", "--ops", "tanh,take", *options]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^PASS  numpy: (\d+) of \1 checks \(100 %\); \1 passed; [\d.]+ s$", out, re.MULTILINE)
    for words in ("deterministic", "CRC-32", "float64", "python 3.", "worst error in units of tolerance"):
        assert words in out
    data = json.loads(paths["json"].read_text())
    assert data["ok"]
    assert data["counts"]["passed"] == len(data["results"]) > 50
    assert float(data["matrix"]["tanh"]["float32"]) <= 1
    page = paths["html"].read_text()
    assert "http" not in page
    assert "<script" not in page
    assert page.count("<tr>") > 4
    assert "| tanh |" in paths["markdown"].read_text()


def test_the_matrix_distinguishes_compared_from_checked_dtypes() -> None:
    compared = check_backend("numpy", ops=["add", "tanh"], kinds=["value", "integer_edges", "broadcasting"]).matrix()
    assert compared["tanh"]["int32"] == ""  # it takes only floats
    assert float(compared["add"]["int32"]) == 0.0
    few = check_backend("numpy", ops=["add"], kinds=["dtype"])
    assert few.matrix()["add"]["int32"] == "ok"
    one = check_backend("numpy", only=["add-float32-value-0", "tanh-float64-value-0"]).matrix()
    assert one["add"]["float64"] == one["tanh"]["float32"] == "?"
    assert float(one["add"]["float32"]) <= 1
    for page in (str(few), few.to_markdown(), few.to_html()):
        assert "checked, and no values were compared" in page
        assert "declared, and not checked in this run" in page


def test_equal_runs_give_equal_pages() -> None:
    first, second = (check_backend("numpy", ops=["tanh"]).to_markdown() for _ in range(2))
    assert first == second


def test_a_report_counts_omitted_failures_by_operation() -> None:
    found = [Result(f"{name}-float32-value-{i}", "", "failed") for name in ("qr", "svd") for i in range(30)]
    header = check_backend("numpy", ops=["neg"], kinds=["dtype"]).header
    shown = text(Report("mine", header, found), matrices=False)
    assert "... and 20 more failures: 20 of svd" in shown


def test_a_report_shows_failures_and_widened_tolerances() -> None:
    wide: Any = type(
        "Wide",
        (type(NUMPY),),
        {
            "_instance": None,
            "conformance_tolerances": {"tanh": 2e6, "float16": 2.0},
            "tanh": staticmethod(lambda x, /: np.asarray(np.tanh(x.astype(np.float32))).astype(x.dtype)),
        },
    )()
    report = check_backend(wide, ops=["tanh"], kinds=["value"])
    assert report.ok
    assert "tanh x 2e+06" in str(report)
    assert "tanh by 2e+06" in report.to_markdown()
    failing = Report(
        "mine", report.header, [Result("tanh-float32-value-0", "t", "failed", 3.0, "wrong | wrong", "k.tanh(1)")]
    )
    assert failing.matrix() == {"tanh": {"float32": "FAIL"}}
    assert failing.score == "0 of 1 checks (0.0 %)"
    for page in (str(failing), failing.to_markdown(), failing.to_html()):
        assert "backburn conformance mine --only tanh-float32-value-0" in page
        assert "k.tanh(1)" in page


@pytest.mark.slow
def test_progress_is_reported() -> None:
    seen: list[tuple[str, int, int]] = []
    report = check_backend(
        "numpy", ops=["neg"], jobs=2, progress=lambda r, done, total: seen.append((r.id, done, total))
    )
    assert len(seen) == len(report.results)
    assert seen[-1][1:] == (len(seen), len(seen))


# ---- pytest ----


@parametrize_with_checks("numpy", ops=["hypot"], kinds=["value", "fan_out"])
def test_as_pytest_tests(check: Callable[[], float]) -> None:
    assert check() <= 1


def test_the_decorator_marks_expected_failures_and_refuses_unknown_ones() -> None:
    (check, *_) = checks(NUMPY, ops=["hypot"], kinds=["value"])
    mark = parametrize_with_checks(NUMPY, {check.id: "because"}, ops=["hypot"], kinds=["value"])
    (marked,) = [p for p in mark.args[1] if p.marks]
    assert marked.id == check.id
    assert marked.marks[0].kwargs == {"reason": "because", "strict": True}
    with pytest.raises(ArgumentError, match="no check of numpy has"):
        parametrize_with_checks(NUMPY, {"hypot-float31-value-0": "because"})


# ---- a new package ----


@pytest.mark.slow
def test_the_template_is_a_package_that_passes(tmp_path: Path, capsys, monkeypatch) -> None:
    assert main(["conformance", "--new", "abacus", str(tmp_path)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert not [path for path in written if re.search("@(name|Class)@", path.read_text())]
    monkeypatch.syspath_prepend(str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f"{QUICK_CHECKS} passed" in done.stdout
    with pytest.raises(ArgumentError, match="exists already"):
        write_template("abacus", tmp_path)
    with pytest.raises(ArgumentError, match="the module backburn_abacus exists"):
        write_template("abacus", tmp_path / "elsewhere")


def test_the_template_imports_only_public_names() -> None:
    root = Path(__file__).parents[2]
    text = (root / "src/backburn/conformance/template/module.py.txt").read_text(encoding="utf-8")
    examples = (path.read_text(encoding="utf-8") for path in (root / "examples/backends").glob("*/backburn_*.py"))
    for source in (text, *examples):
        packages = set(re.findall(r"^(?:from|import) (backburn[\w.]*)", source, flags=re.MULTILINE))
        assert packages <= {"backburn.backend", "backburn.backend.adapters", "backburn.dtypes", "backburn.errors"}


@pytest.mark.slow
def test_the_template_is_strictly_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    write_template("counting_frame", tmp_path)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"),
         "--follow-imports=silent", str(tmp_path / "backburn_counting_frame.py")],
        cwd=root, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


# ---- the null backend ----


def test_null_knows_shapes_and_memory_without_values() -> None:
    k: Any = load_backend("autodiff(null)")
    inner = k.inner_backend
    inner.memory_cleanup()
    before = inner.memory_stats()["used"]
    x = k.set_require_grad(k.zeros((1000, 784), float32), True)
    w = k.set_require_grad(k.zeros((784, 10), float32), True)
    y = k.matmul(x, w)
    assert inner.memory_stats()["used"] - before == 4 * (1000 * 784 + 784 * 10 + 1000 * 10)
    gradients = k.backward(y)
    assert k.grad(w, gradients).shape == (784, 10)
    del x, w, y, gradients
    assert inner.memory_stats()["used"] == before
    assert inner.memory_stats()["peak"] > before
    with pytest.raises(BackburnError, match="depends on values"):
        inner.nonzero(inner.zeros((2,), float32))


# ---- backends of other libraries ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "target"),
    [("array_api_strict", "backburn_array_api_strict:StrictBackend"), ("torch", "backburn_torch:TorchBackend")],
)
def test_foreign_backends_pass(library: str, target: str, monkeypatch) -> None:
    """JAX compiles every operation for every shape, which takes minutes: only continuous integration checks it."""
    pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "backends" / target.partition(":")[0]))
    report = check_backend(target, quick=True)
    assert report.ok, text(report, matrices=False)
    assert len(report.results) == QUICK_CHECKS


@pytest.mark.parametrize(
    "page", sorted((Path(__file__).parents[2] / "docs" / "conformance").glob("*.md")), ids=lambda p: p.stem
)
def test_published_reports_pass(page: Path) -> None:
    words = page.read_text()
    found = re.search(r"\*\*(\d+) of (\d+) checks", words)
    assert found is not None
    assert found[1] == found[2]
    assert int(found[2]) >= (600 if "--quick" in words else 4000)
