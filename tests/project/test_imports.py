"""`import backburn` is light: it loads no backend, no CuPy, no package metadata (checked in a subprocess)."""

import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BACKENDS = {path.parent.name for path in (ROOT / "backends").glob("*/__init__.py")}
UNWANTED = {"cupy", "cupyx", "importlib.metadata", "matplotlib", "mpi4py", "pydantic", "safetensors", "tqdm", *BACKENDS}


def unwanted_after(statement: str, *folders: Path) -> set[str]:
    """Run a statement in a new interpreter, with folders first on its path; return the unwanted modules it loads."""
    program = f"import sys; {statement}; print(*sys.modules)"
    path = os.pathsep.join(str(folder) for folder in folders)
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    return {name for name in UNWANTED if any(f"{module}.".startswith(f"{name}.") for module in loaded)}


def test_import_loads_no_backend() -> None:
    assert unwanted_after("import backburn") == set()


def test_every_installed_backburn_backend_is_watched() -> None:
    ours = {
        point.module
        for point in entry_points(group="backburn.backends")
        if point.dist is not None and point.dist.name == "backburn"
    }
    assert ours
    assert {module.split(".")[0] for module in ours} <= BACKENDS


@pytest.mark.parametrize("culprit", sorted(UNWANTED))
def test_indirect_imports_are_detected(culprit: str, tmp_path: Path) -> None:
    """A fake `backburn` that imports a fake module indirectly is detected."""
    (tmp_path / "backburn").mkdir()
    (tmp_path / "backburn" / "__init__.py").write_text("import backburn.deep\n")
    (tmp_path / "backburn" / "deep.py").write_text(f"import {culprit}\n")
    if culprit not in sys.stdlib_module_names and "." not in culprit:
        (tmp_path / f"{culprit}.py").write_text("")
    assert culprit in unwanted_after("import backburn", tmp_path)


def test_version_is_that_of_the_distribution() -> None:
    import backburn

    assert backburn.__version__ == version("backburn")


@pytest.mark.parametrize(
    ("name", "call"), [("fft", "fftfreq(2)"), ("linalg", "det(bb.eye(2))"), ("random", "normal((2,))")]
)
def test_namespaces_of_functions_can_be_imported(name: str, call: str) -> None:
    """Also as the first import, and as the same object as the attribute of `bb`."""
    program = f"""
from backburn.{name} import *
import backburn.{name} as first, backburn as bb
{call}
assert first is bb.{name}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
