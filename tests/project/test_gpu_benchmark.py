"""The GPU benchmark command, tested on the NumPy backend and the CuPy stand-in."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.report import markdown
from tests.backends.cupy.stand_in import compiled

ROOT = Path(__file__).parents[2]
command: Any = importlib.import_module("benchmarks.gpu.__main__")
Options = command.Options


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False, timeout=300, env=variables)


@pytest.mark.slow
def test_the_parts_run_on_the_numpy_backend(tmp_path: Path) -> None:
    parts = ["--parts", "leaks,recording"]
    done = run("--backend", "numpy", "--small", "--rounds", "1", *parts, "--out", str(tmp_path))
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert done.stdout.endswith((tmp_path / "gpu.md").read_text() + "\n")
    assert report["about"]["backend"] == "numpy"
    assert report["parts"]["leaks"]["problems"] == []
    assert list(report["parts"]) == ["leaks", *(f"recording {model}" for model in MODELS)]
    for model in MODELS:  # NumPy does not record
        assert [p.split(":")[0] for p in report["parts"][f"recording {model}"]["problems"]] == [model]
    assert done.returncode == 1


@pytest.mark.skipif(os.name != "posix", reason="uses a shell script")
def test_results_of_a_stopped_part_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    said = ["noise", '{"problems": ["one"], "n": 2}', '{"prob']
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in said) + "sleep 60 & wait\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    found = command._part("leaks", Options("numpy"), 1.0)
    assert found["n"] == 2
    assert found["problems"] == ["one", "took more than 1 s and was stopped"]
    assert not found["complete"]
    program.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    found = command._part("leaks", Options("numpy"), 60.0)
    assert [p.strip() for p in found["problems"]] == ["it broke"]
    program.write_text("#!/bin/sh\nprintf 'it \\377broke' >&2\nexit 3\n")
    found = command._part("leaks", Options("numpy"), 60.0)
    assert found["problems"] == ["it \ufffdbroke"]


def test_failing_library_versions_do_not_stop_the_command() -> None:
    class Broken:
        @property
        def libraries(self) -> Any:
            raise ValueError("no version")

    assert command._libraries(Broken()) == {"not known": "ValueError: no version"}


def test_resume_continues_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    def part(name: str, options: Any, timeout: float) -> dict[str, object]:
        called.append((name, timeout))
        return {"problems": [], "complete": name != "leaks" or called.count((name, timeout)) > 1, "seconds": 0.0}

    monkeypatch.setattr(command, "_part", part)
    arguments = ["gpu", "--backend", "numpy", "--small", "--parts", "kernels,leaks", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--limit", "12"])
    assert command.main() == 1
    assert called == []
    assert "--resume continues here" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments, "--timeout", "100"])
    assert command.main() == 1
    assert called == [("kernels", 100.0), ("leaks", 100.0)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--timeout", "100", "--resume"])
    assert command.main() == 0
    assert called[2:] == [("leaks", 100.0)]


def test_stopped_parts_run_after_parts_that_have_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def part(name: str, options: Any, timeout: float) -> dict[str, object]:
        called.append(name)
        return {"problems": [], "complete": True, "seconds": 0.0}

    stopped = {"problems": ["took more than 420 s and was stopped"], "complete": False, "seconds": 420.0}
    report = {"about": command._about(Options("numpy", small=True)), "parts": {"leaks": stopped}}
    (tmp_path / "gpu.json").write_text(json.dumps(report))
    monkeypatch.setattr(command, "_part", part)
    parts = ["--parts", "leaks,kernels", "--resume", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu", "--backend", "numpy", "--small", *parts])
    assert command.main() == 0
    assert called == ["kernels", "leaks"]


def test_results_of_several_stopped_runs_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([{"a": 1, "b": 1}, {"a": 2}])
    stopped = {"problems": ["took more than 420 s and was stopped"], "complete": False, "seconds": 420.0}
    monkeypatch.setattr(command, "_part", lambda *_: {**stopped, **next(runs)})
    arguments = ["gpu", "--backend", "numpy", "--small", "--parts", "leaks", "--resume", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert [command.main(), command.main()] == [1, 1]
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"]["leaks"] == {**stopped, "a": 2, "b": 1}


@pytest.mark.skipif(os.name != "posix", reason="uses a shell script")
def test_each_model_runs_in_its_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal memory access, a process cannot use the device any more."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in *mlp*) exit 1;; esac\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    arguments = ["gpu", "--backend", "numpy", "--small", "--parts", "speed,leaks", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert command.main() == 1
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [c.partition("--model ")[2].partition(" ")[0] for c in calls] == [*MODELS, ""]
    report = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [name for name, part in report.items() if not part["complete"]] == ["speed mlp"]


@pytest.mark.parametrize("other", ["--small", "--backend"])
def test_reports_of_other_options_are_not_continued(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise times of a trial run would appear as measurements."""
    monkeypatch.setattr(command, "_part", lambda *_: {"problems": [], "complete": True, "seconds": 0.0, "n": 1})
    about = command._about(Options("numpy", small=other == "--backend"))
    about["backend"] = "cupy" if other == "--backend" else "numpy"
    trial = {"problems": [], "complete": True, "seconds": 0.0, "n": 2}
    (tmp_path / "gpu.json").write_text(json.dumps({"about": about, "parts": {"leaks": trial}}))
    arguments = ["--backend", "numpy", "--small", "--parts", "leaks", "--resume", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    assert command.main() == 0
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"]["leaks"]["n"] == 1
    assert f"of another {other.strip('-')}" in capsys.readouterr().out


def test_reports_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu.json").write_text("what was there")

    def write(path: Path, text: str, **_: Any) -> None:
        with path.open("w") as file:
            file.write(text[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(command, "markdown", lambda _: "")
    with pytest.raises(KeyboardInterrupt):
        command._write({"parts": {}}, tmp_path)
    assert (tmp_path / "gpu.json").read_text() == "what was there"


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX sessions")
def test_a_part_ends_with_the_session_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    say = "import os, json; print(json.dumps({'problems': [], 'ids': [os.getsid(0), os.getpgid(0) == os.getpid()]}))"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{say}"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert command._part("leaks", Options("numpy"), 60.0)["ids"] == [os.getsid(0), True]


def test_steps_are_timed_without_waiting_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between short runs of steps: here a step takes a second, and a wait another."""
    parts: Any = importlib.import_module("benchmarks.gpu.parts")
    now = [0.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(parts, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    assert parts.timed(lambda: pass_by(1.0), lambda: pass_by(1.0), 100.0) == (128 + 1) / 128


def test_a_failing_variant_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = importlib.import_module("benchmarks.gpu.parts")

    def fail(*_: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(parts, "MODELS", {"mlp": MODELS["mlp"]})
    monkeypatch.setattr(parts, "torch_step", fail)
    monkeypatch.setattr(Options, "torch_device", "cpu")
    found = parts.speed(Options("numpy", small=True, rounds=1), lambda _: None)
    assert set(found["mlp"]) == {"eager"}
    assert found["problems"][0] == "mlp: torch eager: MemoryError: no more"


def test_unrecorded_steps_are_not_timed_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = importlib.import_module("benchmarks.gpu.parts")
    monkeypatch.setattr(parts, "MODELS", {"mlp": MODELS["mlp"]})
    monkeypatch.setattr(Options, "torch_device", None)
    found = parts.speed(Options("numpy", small=True, rounds=1), lambda _: None)
    assert set(found["mlp"]) == {"eager"}
    why = "autodiff(numpy) does not record; autodiff(capture(numpy)) does"
    assert found["problems"] == [f"mlp: replayed: not recorded, since {why}"]


@pytest.mark.parametrize("part", ["kernels", "speed"])
def test_backburn_is_measured_without_pytorch(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = importlib.import_module("benchmarks.gpu.parts")

    def broken(_: Any) -> str:
        raise ImportError("libcublas.so.13: undefined symbol")

    monkeypatch.setattr(parts, "MODELS", {"mlp": MODELS["mlp"]})
    monkeypatch.setattr(Options, "torch_device", property(broken))
    found = parts.PARTS[part](Options("numpy", small=True, rounds=1), lambda _: None)
    assert "eager" in found["mlp"] if part == "speed" else "gelu" in found["float32"]
    assert [p for p in found["problems"] if p.endswith("torch: ImportError: libcublas.so.13: undefined symbol")]


@pytest.mark.parametrize("part", ["parity", "recording"])
def test_a_failing_model_does_not_stop_the_others(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = importlib.import_module("benchmarks.gpu.parts")

    def fail(small: bool) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(parts, "MODELS", {"mlp": fail, "resnet": MODELS["mlp"]})
    found = parts.PARTS[part](Options("numpy", small=True), lambda _: None)
    assert "resnet" in found
    assert found["problems"][0].startswith("mlp: Traceback")
    assert found["problems"][0].endswith("MemoryError: no more\n")


@pytest.mark.parametrize("part", ["parity", "recording"])
def test_a_nan_loss_is_a_problem(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the first step, where ``max`` would ignore it."""
    parts: Any = importlib.import_module("benchmarks.gpu.parts")
    losses = iter([1.0, 1.0, 1.0, math.nan, *[1.0] * 40])

    def step(*_: Any) -> Any:
        recorded = types.SimpleNamespace(reason="", launches=1)
        return lambda: np.float64(next(losses)), lambda: None, recorded

    monkeypatch.setattr(parts, "MODELS", {"mlp": MODELS["mlp"]})
    monkeypatch.setattr(parts, "our_step", step)
    found = parts.PARTS[part](Options("numpy", small=True), lambda _: None)
    assert len(found["problems"]) == 1
    assert "nan" in found["problems"][0]


def test_a_failed_check_of_conformance_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = importlib.import_module("benchmarks.gpu.parts")
    said: list[Any] = []

    def check(spec: str, *, progress: Any, **_: Any) -> Any:
        results = [types.SimpleNamespace(status=status, id=status, message="m") for status in ("passed", "failed")]
        for done, result in enumerate(results, 1):
            progress(result, done, len(results))
        return types.SimpleNamespace(results=results, seconds=1.0)

    monkeypatch.setattr("backburn.conformance.check_backend", check)
    found = parts.PARTS["gradients"](Options("numpy", small=True), said.append)
    assert found == {"problems": ["failed: m"], "autodiff(numpy)": {"checks": 2, "failed": 1, "seconds": 1.0}}
    assert said == []


@pytest.mark.stand_in
@pytest.mark.skipif(compiled.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    "parts",
    [
        "leaks,kernels,products",
        pytest.param("parity,recording", marks=pytest.mark.slow),
        pytest.param("digits,speed", marks=pytest.mark.slow),
    ],
)
def test_the_parts_run_on_the_cupy_backend_with_the_stand_in(tmp_path: Path, parts: str) -> None:
    empty = tmp_path / "driver.cpp"
    empty.write_text("")
    driver = ["-shared", "-o", str(tmp_path / "libcuda.so.1"), str(empty)]  # loaded, but not called
    subprocess.run([str(compiled.COMPILER), *driver], check=True)
    path = [compiled.HERE, ROOT / "src", ROOT / "backends", os.environ.get("PYTHONPATH", "")]
    libraries = [tmp_path, os.environ.get("LD_LIBRARY_PATH", "")]
    done = run(
        "--backend", "cupy", "--small", "--rounds", "1", "--parts", parts, "--out", str(tmp_path),
        PYTHONPATH=os.pathsep.join(map(str, path)).rstrip(os.pathsep),
        LD_LIBRARY_PATH=os.pathsep.join(map(str, libraries)).rstrip(os.pathsep),
    )  # fmt: skip
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {part["problems"] == [] for part in report["parts"].values()} == {True}, report["parts"]
    assert {name.partition(" ")[0] for name in report["parts"]} == set(parts.split(","))
    assert done.returncode == 0
    assert report["about"]["libraries"]["cuDNN"].startswith("9.19.0")
    for model in MODELS if "recording" in parts else ():
        assert report["parts"][f"recording {model}"][model]["recorded"]
        assert report["parts"][f"recording {model}"][model]["apart"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "nump"], "Did you mean 'autodiff(numpy)'"),
        (["--parts", "everything"], "there is no part 'everything'"),
    ],
)
def test_errors_of_options_are_reported(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_git_is_not_needed(tmp_path: Path) -> None:
    done = run("--backend", "numpy", "--small", "--parts", "leaks", "--out", str(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "gpu.json").read_text())["about"]["commit"] == "unknown"


def test_the_page_has_ratios_and_problems() -> None:
    about = {"backend": "b", "device": "d", "date": "now", "commit": "c", "python": "3", "versions": {}, "small": False}
    about |= {"libraries": {"cuDNN": "missing"}}
    times = {"eager": 2e-3, "replayed": 1e-3, "torch eager": 4e-3}
    speed = {"mlp": times, "problems": ["gpt: out of\nmemory"], "seconds": 1}
    beside = {"mlp": {"replayed": 1e-3, "torch compiled": 2e-3}, "problems": [], "seconds": 1}
    page = markdown({"about": about, "parts": {"speed mlp": speed, "compiled mlp": beside}})
    assert "| mlp | replayed | torch compiled | 0.50 | 1.0 |" in page
    assert "| mlp | replayed | torch eager | 0.25 | 0.3 |" in page
    assert "| mlp | eager | torch eager | 0.50 | 1.0 |" in page
    assert "- **problem**: gpt: out of memory" in page
    assert "\n- cuDNN: missing\n" in page
    assert "shrunk" not in page
