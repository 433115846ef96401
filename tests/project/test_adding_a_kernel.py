"""Adds the kernel of CONTRIBUTING.md to a copy of the NumPy backend, compiles it, and checks that it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.kernels import USABLE, needs_kernels

from backburn_numpy.compiled.build import NoCompilerError, find_compiler

ROOT = Path(__file__).parents[2]

#: Asserts, in a process that imports the copy, that the kernel is called from its threshold on at every supported
#: instruction set, and never with BACKBURN_COMPILED=0.
SCRIPT = """
import os

import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, numbers, use_level

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import build

assert compiled.__file__.startswith(os.getcwd())
without = os.environ.get("BACKBURN_COMPILED") == "0"
assert USABLE == ([] if without else build.supported_levels())
threshold = tuning.MIN_ELEMENTS_FOR_KERNEL["softsign"]
for level in USABLE or [None]:
    counts = []
    with pytest.MonkeyPatch.context() as patch:
        if level is not None:
            use_level(patch, level)
        kernel = compiled.kernel("softsign")
        assert (kernel is None) == without

        def counted(*arguments):
            counts.append(arguments[-1])
            kernel(*arguments)

        if kernel is not None:
            patch.setitem(compiled._kernels, "softsign", counted)
        for count in (1, threshold - 1, threshold, threshold + 5):
            x = numbers(count)
            wide = x.astype(np.float64)
            out = BASE.softsign(x)
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, wide / (1 + np.abs(wide)), rtol=3e-7)
            np.testing.assert_allclose(BASE.softsign(wide), wide / (1 + np.abs(wide)), rtol=1e-15)
    assert counts == ([] if without else [threshold, threshold + 5]), (level, counts)
"""


def can_compile() -> bool:
    """Whether this machine has a C compiler."""
    try:
        find_compiler()
    except NoCompilerError:
        return False
    return True


def edits() -> dict[str, str]:
    """The text that CONTRIBUTING.md adds to each file."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Adding a kernel")[2].partition("\n## ")[0]
    paragraphs = re.findall(r"((?:[^\n]+\n)+)\n```(?:c|python)\n(.*?)```", section, flags=re.DOTALL)
    return {re.findall(r"`((?:backends|tests)/[^`]+)`", text)[0]: added for text, added in paragraphs}


def run(folder: Path, *arguments: str, **variables: str) -> str:
    """The output of a Python process that imports the copy."""
    paths = [str(folder / "backends"), str(folder), str(ROOT / "src")]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_kernels
@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="no C compiler")
def test_four_edits_add_a_kernel(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.kernels", "*.npz")
    for name in ("backends/backburn_numpy", "tests/helpers", "tests/backends/numpy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    found, subject = edits(), "backends/backburn_numpy/compiled/elementwise/activations.c"
    assert list(found) == [
        subject, "backends/backburn_numpy/tuning.py", "backends/backburn_numpy/ops/activations.py",
        "tests/backends/numpy/test_compiled_layers.py",
    ]  # fmt: skip
    for path in (tmp_path / subject).parents[1].rglob("*.c"):
        if path.parent.name != "runtime" and path != tmp_path / subject:
            path.unlink()  # compile only what the kernel needs
    for name, added in found.items():
        path, names = tmp_path / name, "ELEMENTWISE = ["
        text = path.read_text(encoding="utf-8")
        text = text.replace(names, names + added.strip() + " ") if names in text else f"{text}\n\n{added}"
        path.write_text(text, encoding="utf-8")

    run(tmp_path, "-m", "backburn_numpy.compiled")
    for choice in ("1", "0"):
        run(tmp_path, "-W", "error", "-c", SCRIPT, BACKBURN_COMPILED=choice)
    tests = "tests/backends/numpy/test_compiled_layers.py"
    output = run(tmp_path, "-m", "pytest", tests, "-k", "softsign", "-p", "no:cacheprovider", "-p", "no:xdist", "-q")
    assert re.search(rf"^{4 * len(USABLE)} passed", output, flags=re.MULTILINE), output
