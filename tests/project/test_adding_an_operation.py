"""Adds the element-wise operation of CONTRIBUTING.md to a copy of the sources, and checks it everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Asserts, in a process that imports the copy, that the operation is everywhere it must be.
SCRIPT = """
import numpy as np
from tools.write_methods import stub

import backburn as bb
from backburn.backend import OPERATIONS, load_backend
from backburn.conformance import check_backend
from backburn.ops.rules.tangents import jvp_strategy
from backburn.ops.table import families

x = np.array([0.5, -1.0, 2.0])
for spec in ("numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))", "forward(numpy)", "capture(numpy)"):
    tensor = bb.asarray(x, backend=spec)
    np.testing.assert_allclose(bb.to(bb.versine(tensor), "numpy").numpy(), 1 - np.cos(x), rtol=1e-12)
    assert tensor.versine().shape == (3,)
    report = check_backend(load_backend(spec), ops=["versine"], quick=True)
    assert report.ok, report
    assert len(report.results) > 10
assert bb.versine(bb.ones((2, 3), backend="null")).shape == (2, 3)

smooth = bb.asarray(x, backend="autodiff(numpy)")
np.testing.assert_allclose(bb.grad(lambda t: bb.versine(t).sum())(smooth).numpy(), np.sin(x), rtol=1e-12)
value, tangent = bb.jvp(bb.versine, (smooth,), (bb.ones_like(smooth),))
np.testing.assert_allclose(tangent.numpy(), np.sin(x), rtol=1e-12)
np.testing.assert_allclose(bb.vmap(bb.versine)(smooth).numpy(), 1 - np.cos(x), rtol=1e-12)

entry = OPERATIONS["versine"]
assert entry.family == "elementwise" and entry.elementwise and entry.fuse
assert jvp_strategy("versine") == "elementwise"
assert "versine" in bb.__all__ and "versine" in dir(bb)
assert "def versine(self, /) -> FloatTensor" in stub()
assert entry in dict(families())["elementwise"]  # listed on the page of operations
"""


def edits() -> dict[str, str]:
    """The text that CONTRIBUTING.md adds to each file."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Adding an operation")[2].partition("\n## ")[0]
    found = re.findall(r"In (?:the class of )?`(src/[^`]+)`.*?```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(found) == 3
    return dict(found)


@pytest.mark.slow
def test_three_edits_add_an_element_wise_operation(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in edits().items():
        path = tmp_path / name
        path.write_text(path.read_text(encoding="utf-8") + "\n" + text, encoding="utf-8")
    paths = [str(tmp_path / "src"), str(ROOT / "backends"), str(ROOT)]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
