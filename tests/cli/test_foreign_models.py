"""Untrusted model files, configurations and current folders: no code that they name runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")

import backburn as bb
from backburn import cli
from backburn.cli.launch import command_of
from backburn.train.config import INSTALLED, run_of

MODULE = """\
from functools import partial
from os import system
from pathlib import Path

from backburn import nn, optim

Path("imported").touch()


def network(width: int = 4):
    return nn.Linear(3, width)


def loss(model, batch):
    return model(batch).mean()


def one(model):
    return model


def positional(width, /):
    return nn.Linear(3, width)


class Made:
    def __call__(self, width: int = 4):
        return network(width)


shell = partial(partial(system))
made = Made()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module ``strange`` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text(MODULE)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("strange", None)


def saved(about: Any, state: Any = None) -> str:
    """Write a model file with these metadata."""
    bb.io.save_model("m.safetensors", state or {}, about=about)
    return "m.safetensors"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit status and the output."""
    status = cli.main([str(word) for word in arguments])
    out, err = capsys.readouterr()
    return status, out + err


COMMANDS = [["evaluate", "m.safetensors"], ["predict", "m.safetensors", "x.npy"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["evaluate", "predict"])
@pytest.mark.parametrize(
    "build", ["os:system", "posix:system", "builtins:exec", "subprocess:call", "shutil:rmtree", "strange:network",
              "numpy:load", "backburn.models:from_pretrained", "backburn.io:load_state", "backburn.train:fit"],
)  # fmt: skip
def test_a_model_file_runs_nothing_that_it_names(
    here: Path, command: list[str], build: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error lists the names and the option that allows exactly these; nothing is imported."""
    np.save("x.npy", np.ones((2, 3), np.float32))
    saved({"config": {"model": {"build": build, "command": "touch proof"}}, "config_folder": str(here)})
    status, words = run(capsys, *command)
    assert status == 2
    assert f"model.build = {build!r}" in words
    assert f"--trust {build!r}" in words
    assert not (here / "proof").exists()
    assert not (here / "imported").exists()
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("table", "values", "key"),
    [
        ("data", {"build": "strange:network"}, "data.build"),
        ("loss", {"function": "strange:loss"}, "loss.function"),
        ("metrics", {"x": "strange:loss"}, "metrics.x"),
    ],
)
def test_every_function_of_a_model_file_needs_permission(
    here: Path, table: str, values: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of data, losses and metrics."""
    status, words = run(capsys, "evaluate", saved({"config": {table: values}}))
    assert status == 2
    assert f"{key} = 'strange:" in words
    assert not (here / "imported").exists()


def test_functions_that_are_not_called_are_not_imported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluating a model file does not import its callbacks."""
    from backburn.train.digits import network

    config = {"callbacks": {"c": {"build": "strange:loss"}}, "model": {"hidden": [4]}}
    status, words = run(capsys, "evaluate", saved({"config": config}, network([4]).state_dict()))
    assert (status, "held-out loss" in words) == (0, True), words
    assert not (here / "imported").exists()


def test_only_functions_named_by_trust_are_allowed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--trust`` must list every function; other names have no effect; Python's own functions are always refused."""
    np.save("x.npy", np.ones((2, 3), np.float32))
    path = saved({"config": {"model": {"build": "strange:network"}}}, bb.nn.Linear(3, 4).state_dict())
    assert run(capsys, "predict", path, "x.npy", "--trust", "strange:loss")[0] == 2
    assert not (here / "imported").exists()
    words = run(capsys, "predict", path, "x.npy", "--trust", "b:b,strange:loss,a:a")[1]
    assert "--trust 'b:b,strange:loss,a:a,strange:network'" in words
    status, words = run(capsys, "predict", path, "x.npy", "--trust", "strange:loss, strange:network")
    assert status == 0, words
    path = saved({"config": {"model": {"build": "os:system", "command": "touch proof"}}})
    status, words = run(capsys, "predict", path, "x.npy", "--trust", "os:system")
    assert (status, "Python's own library" in words) == (2, True)
    assert not (here / "proof").exists()


def test_a_configuration_that_the_user_names_is_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model file's own configuration is ignored."""
    np.save("x.npy", np.ones((2, 3), np.float32))
    (here / "run.toml").write_text(
        '[model]\nbuild = "strange:network"\n[data]\nbuild = "strange:network"\n[loss]\nfunction = "strange:loss"\n'
    )
    about = {"config": {"model": {"build": "os:system", "command": "touch proof"}}, "backend": "evil"}
    path = saved(about, bb.nn.Linear(3, 4).state_dict())
    status, words = run(capsys, "predict", path, "x.npy", "--config", "run.toml")
    assert status == 0, words
    assert not (here / "proof").exists()


def test_a_model_file_may_name_only_backburn_backends(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loading any other backend would import its package."""
    path = saved({"config": {}, "backend": "autodiff(array_api_strict)"})
    status, words = run(capsys, "evaluate", path)
    assert (status, "'array_api_strict' is not backburn's" in words) == (2, True)
    status, words = run(capsys, "evaluate", saved({"config": {}, "backend": "(" * 5000}))
    assert status == 2
    assert len(words) < 1000


def test_a_small_model_file_cannot_allocate_much_memory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers of terabytes are compared by shape only; tables of many values are refused."""
    status, words = run(capsys, "evaluate", saved({"config": {"model": {"hidden": [2**20, 2**20]}}}))
    assert (status, "nothing in the file" in words) == (2, True)
    status, words = run(capsys, "evaluate", saved({"config": {"model": {"hidden": [1] * 20_000}}}))
    assert (status, "more than 10,000 values" in words) == (2, True)
    for config in ({"x": [[[[[0]]]]]}, {"train": {"epochs": 10**400}}, {"model": {"hidden": [10**300]}}):
        assert run(capsys, "evaluate", saved({"config": config}))[0] == 2


def test_a_symlinked_model_in_a_run_folder_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user can name its target instead."""
    path = saved({"config": {}})
    (here / "run").mkdir()
    (here / "run" / "model.safetensors").symlink_to(here / path)
    status, words = run(capsys, "evaluate", "run")
    assert (status, "this is a link" in words) == (2, True)


def test_installed_functions_exist() -> None:
    """Each name in ``INSTALLED`` is a function, and looking it up reads no file."""
    for name in INSTALLED:
        key = {"data": "data", "loss": "loss"}.get(name.rpartition(":")[2], "model")
        tables = {key: {"function" if key == "loss" else "build": name}}
        run = run_of(tables, Path(), "x")
        if name.startswith("backburn.models"):
            with pytest.raises(bb.errors.ConfigError, match="lacks the key 'config'"):
                run.functions(key)
        else:
            assert run.functions(key)


# ---- configurations ----


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os:system", "Python's own library"),
        ("strange:system", "Python's own library"),
        ("strange:shell", "Python's own library"),
        ("subprocess:Popen", "Python's own library"),
        ("numpy:os.system", "numpy has no 'os'"),
        ("numpy._core.multiarray:array", "not a public name"),
        ("pydantic.main:sys", "not a public name"),
        ("strange:positional", "is not called with"),
        ("strange:nothing", "strange has no 'nothing'"),
        ("strange:__file__", "is a str, not a function"),
        ("strange", "is not a function"),
        ("strange:a b", "is not a function"),
        ("\x1b[2J:x", "is not a function"),
    ],
)
def test_functions_that_are_refused_before_they_are_called(here: Path, name: str, words: str) -> None:
    """They are refused by package, name or signature."""
    run = run_of({"model": {"build": name}}, here, "run.toml")
    with pytest.raises(bb.errors.ConfigError) as caught:
        run.functions("model")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["strange:network", "strange:made"])
def test_functions_of_the_users_are_used(here: Path, name: str) -> None:
    """Also a callable object of a user's class."""
    function, arguments = run_of({"model": {"build": name, "width": 2}}, here, "x").functions("model")["model",]
    assert function.__name__ if name == "strange:network" else callable(function)
    assert arguments == {"width": 2}


def test_a_loss_takes_a_model_and_a_batch(here: Path) -> None:
    """A function of one value is not a loss."""
    with pytest.raises(bb.errors.ConfigError, match="is not called with a model, a batch"):
        run_of({"loss": {"function": "strange:one"}}, here, "x").functions("loss")


def test_checking_imports_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own functions and private ones are refused as in a run."""
    names = '[data]\nbuild = "strange:network"\n[loss]\nfunction = "strange:loss"\n'
    long = ("strange" + ".a" * 5000 + ":b", 2)  # longer than any path
    for build, status in (("strange:network", 0), ("strange:shell", 0), ("os:system", 2), ("antigravity:fly", 2), long):
        (here / "run.toml").write_text(f'[model]\nbuild = "{build}"\n{names}')
        assert run(capsys, "train", "run.toml", "--check")[0] == status
        assert not (here / "imported").exists()
        assert not {"strange", "antigravity"} & set(sys.modules)


@pytest.mark.parametrize(
    "source",
    [
        b"\x00",
        b"x = " + b"(" * 5000,
        b"\xff",
        b"def network(a, a): pass",
        b"A = 'A'\ndef network(x: A): pass",
        b"".join(b"A%d = tuple[A%d, A%d]\n" % (i, i + 1, i + 1) for i in range(60)) + b"def network(x: A0 = 0): pass",
        b"def network(x: '" + b"(" * 3000 + b"' = 0): pass",
        b"def network(x: " + b"list[" * 90 + b"int" + b"]" * 90 + b" = 0): pass",
    ],
    ids=range(8),
)
def test_checking_ends_for_any_source(here: Path, source: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """With a backburn error or none."""
    (here / "odd.py").write_bytes(source)
    (here / "run.toml").write_text(
        '[model]\nbuild = "odd:network"\n[data]\nbuild = "strange:network"\n[loss]\nfunction = "strange:loss"\n'
    )
    assert run(capsys, "train", "run.toml", "--check")[0] in (0, 2)


# ---- the current folder ----

SHADOWS = [
    "json", "numpy", "argparse", "html", "tempfile", "subprocess", "typing", "dataclasses", "ast", "csv", "re", "os",
    "pydantic", "tqdm", "matplotlib", "mpi4py", "ml_dtypes", "tomllib", "cupy", "tokenizers", "jinja2", "tensorboardX",
    "wandb", "backburn_numpy", "backburn_null", "backburn_cupy", "pickle", "queue", "concurrent", "opt_einsum", "torch",
    "jax", "sitecustomize", "usercustomize", "site", "runpy", "encodings", "ziglang", "orjson", "rich", "scipy",
]  # fmt: skip


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A folder of modules named like others; importing one records it in ``marks``."""
    folder = tmp_path / "shadowed"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(f"open(r'{tmp_path}/marks', 'a').write('{name}\\n')\nraise ImportError\n")
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "loss": 0.5}\n')
    (folder / "run.toml").write_text("[model]\nhidden = [4]\n[train]\nepochs = 1\n")
    return folder


def fresh(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a backburn command in a folder, in a new process, started like the installed script."""
    program = (
        "import sys; sys.path[:] = [p for p in sys.path if p]; from backburn.__main__ import main; sys.exit(main())"
    )
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        cwd=folder, capture_output=True, text=True, check=False, env=environment, timeout=240,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["info", "sqrt"], 0),
        (["info", "--json"], 0),
        (["backends"], 0),
        (["runs", "."], 0),
        (["runs", ".", "--report"], 0),
        (["train", "run.toml", "--check"], 0),
        (["train", "run.toml", "--out", "out"], 0),
        (["evaluate", "run.toml"], 2),
        (["generate", ".", "a"], 2),
        (["conformance", "numpy", "--ops", "neg", "--quick", "--jobs", "1", "--brief"], 0),
        (["conformance", "numpy", "--ops", "neg", "--quick", "--in-process", "--html", "c.html"], 0),
        (["conformance", "backburn_numpy:NumpyBackend", "--ops", "neg", "--quick", "--jobs", "1", "--brief"], 0),
    ],
)
def test_modules_of_the_current_folder_are_not_imported(shadowed: Path, words: list[str], status: int) -> None:
    """For any command and any module name, including those of packages that are not installed."""
    done = fresh(shadowed, *words)
    marks = shadowed.parent / "marks"
    assert not marks.exists(), marks.read_text()
    assert done.returncode == status, done.stderr


def test_launched_commands_import_nothing_of_the_current_folder(shadowed: Path) -> None:
    """The command of each rank, run without mpiexec."""
    command = command_of(["info", "sqrt"], {"info"})
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=shadowed, capture_output=True, text=True, check=False, env=environment)
    assert not (shadowed.parent / "marks").exists()
    assert (done.returncode, "sqrt(x: F, /) -> F" in done.stdout) == (0, True)


@pytest.mark.slow
def test_a_backend_in_the_current_folder_is_found_after_the_path(shadowed: Path) -> None:
    """Also in worker processes, where the folder's other modules shadow nothing."""
    (shadowed / "mine.py").write_text("from backburn_numpy import NumpyBackend as Backend\n")
    for jobs in (["--jobs", "1"], ["--in-process"]):
        done = fresh(shadowed, "conformance", "mine:Backend", "--ops", "neg", "--quick", "--brief", *jobs)
        assert done.returncode == 0, done.stderr
    marks = shadowed.parent / "marks"
    left = set(marks.read_text().split()) if marks.exists() else set()
    assert not left & (set(sys.stdlib_module_names) | {"numpy", "backburn_numpy"})


def test_curves_ignore_matplotlib_settings(tmp_path: Path) -> None:
    """A ``matplotlibrc`` in the current folder could enable LaTeX, which would run on the names of the values."""
    matplotlib = pytest.importorskip("matplotlib")
    from backburn.train.outputs import draw_curves

    for settings in ({}, {"text.usetex": True, "axes.facecolor": "red", "savefig.transparent": True}):
        with matplotlib.rc_context(settings):
            draw_curves([{"epoch": 1, "loss": 0.5}], tmp_path / f"{len(settings)}.png")
            assert all(matplotlib.rcParams[name] == x for name, x in settings.items())
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "3.png").read_bytes()


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'PIL'"), RuntimeError("No module named 'PIL'")])
def test_a_broken_extra_does_not_end_a_run(
    error: Exception, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is written, and a line names the missing package."""
    from backburn.train import outputs

    def broken(*given: object) -> None:
        raise error

    monkeypatch.setattr(outputs, "draw_curves", broken)
    (here / "run.toml").write_text("[model]\nhidden = [4]\n[train]\nepochs = 1\n")
    status, words = run(capsys, "train", "run.toml", "--out", "run")
    assert (status, "No module named 'PIL'" in words) == (0, True), words
    assert (here / "run" / "model.safetensors").exists()
