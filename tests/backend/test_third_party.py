"""A third-party backend of two files, installed into a fresh environment, trains the digits under its name.

Nothing in backburn is changed for it. It computes with NumPy, so its results must be bitwise equal to the NumPy
backend's; it counts its operations, which shows that the NumPy backend does not run in its place.
"""

import importlib.util
import json
import os
import re
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from backburn.io import load_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"

PYPROJECT = """
[project]
name = "abacus"
version = "1.2.3"
dependencies = ["backburn"]

[project.entry-points."backburn.backends"]
abacus = "abacus:Abacus"
"""

MODULE = '''
"""A backend that lets NumPy's compute and counts what it was asked for."""

import atexit, collections, json, os

from backburn.backend import OPERATIONS, Backend, load_backend

COUNTS = collections.Counter()


class Abacus(Backend):
    spec = "abacus"
    device = "cpu"
    capabilities = load_backend("numpy").capabilities

    def dtype(self, x, /):
        return load_backend("numpy").dtype(x)


def counted(name):
    def operation(self, *operands, **attributes):
        COUNTS[name] += 1
        return getattr(load_backend("numpy"), name)(*operands, **attributes)

    return operation


for name in OPERATIONS:
    setattr(Abacus, name, counted(name))

if path := os.environ.get("ABACUS_COUNTS"):
    atexit.register(lambda: open(path, "w").write(json.dumps(COUNTS)))
'''


def built_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a project with one module, as a build tool would."""
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = about["name"], about["version"]
    points = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in about["entry-points"].items()
    ]
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": (project / f"{name}.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(points),
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


@dataclass
class Environment:
    """A virtual environment that can also import the packages of this one."""

    folder: Path
    python: Path = field(init=False)
    packages: Path = field(init=False)

    def __post_init__(self) -> None:
        venv.create(self.folder, with_pip=False, symlinks=os.name != "nt")
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.packages = Path(self.run("-c", ask).stdout.strip())
        ours = [*site.getsitepackages(), *(p for p in sys.path if p and Path(p).is_dir())]
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in dict.fromkeys(ours)]
        (self.packages / "of_the_tests.pth").write_text("".join(lines))

    def install(self, wheel: Path) -> None:
        """Install a wheel without network access, with pip if it is installed."""
        if importlib.util.find_spec("pip") is None:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.packages)
            return
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python, with variables added to its environment."""
        return subprocess.run(
            [str(self.python), *arguments],
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def backburn(self, *arguments: str, **variables: str) -> str:
        """Return the output of ``backburn``; it must not fail or warn."""
        done = self.run("-W", "error", "-m", "backburn", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    project = tmp_path_factory.mktemp("abacus")
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "abacus.py").write_text(MODULE)
    made = Environment(tmp_path_factory.mktemp("environment") / "fresh")
    made.install(built_wheel(project, tmp_path_factory.mktemp("wheels")))
    return made


def epochs(output: str) -> list[str]:
    """Return the lines with the results of a run, without the times of the epochs."""
    lines = [line for line in output.splitlines() if line.startswith(("epoch", "held-out accuracy"))]
    return [re.sub(r"  \d+\.\d s$", "", line) for line in lines]


def test_it_is_found_and_works(environment: Environment) -> None:
    row = next(line for line in environment.backburn("backends").splitlines() if line.startswith("abacus"))
    assert row.split() == ["abacus", "yes", "cpu", "abacus", "1.2.3", "abacus:Abacus"]
    assert re.search(r"abacus +PASS", environment.backburn("info"))


@pytest.mark.slow
def test_it_trains_with_the_results_of_numpy_however_it_is_chosen(environment: Environment, tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace('"autodiff(numpy)"', '"autodiff(abacus)"')
    (tmp_path / "by_key.toml").write_text(text, encoding="utf-8")

    def train(how: str, *arguments: str, config: Path = EXAMPLE, **variables: str) -> list[str]:
        counts = tmp_path / f"{how}.json"
        variables["ABACUS_COUNTS"] = str(counts)
        out = str(tmp_path / how)
        printed = environment.backburn("train", str(config), "--epochs", "1", "--out", out, *arguments, **variables)
        assert f"backend   autodiff({'numpy' if how == 'numpy' else 'abacus'})" in printed
        if how == "numpy":
            assert not counts.exists()
        else:
            assert json.loads(counts.read_text())["adam_steps"] == 12
        return epochs(printed)

    expected = train("numpy")
    assert len(expected) == 2
    assert train("option", "--backend", "abacus") == expected
    assert train("variable", BACKBURN_BACKEND="autodiff(abacus)") == expected
    assert train("key", config=tmp_path / "by_key.toml") == expected

    models = [load_model(tmp_path / how / "model.safetensors") for how in ("numpy", "option", "variable", "key")]
    for other in models[1:]:
        assert other.about["backend"] == "autodiff(abacus)"
        assert all(np.array_equal(other.state[name], x) for name, x in models[0].state.items())
    # A model file, which may be untrusted, does not choose a backend to import.
    last = environment.backburn("evaluate", str(tmp_path / "key" / "model.safetensors"), "--backend", "abacus")
    assert last.splitlines()[-1] == expected[-1]
