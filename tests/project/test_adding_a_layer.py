"""Adds the layer of CONTRIBUTING.md to a copy of the sources and tests, and checks that it appears everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Asserts, in a process that imports the copy, that the layer is everywhere it must be.
SCRIPT = """
import pickle

import numpy as np

import backburn as bb
from backburn import nn, optim, train

assert "LayerScale" in nn.__all__ and "LayerScale" in dir(nn)  # listed in the reference

layer = nn.LayerScale(3, init_values=0.5)
assert [name for name, _ in layer.named_parameters()] == ["weight"] and layer.num_parameters == 3
x = np.asarray([[1.0, -2.0, 4.0], [0.5, 3.0, -1.0]], np.float32)

model = nn.Sequential(nn.Linear(3, 3), nn.LayerScale(3))
before = model[1].weight.numpy()
run = train.fit(model, lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(), [(x, x)], optimizer=optim.Adam(0.1), epochs=2)
assert not np.array_equal(model[1].weight.numpy(), before)

bb.io.save_model("model.safetensors", model.state_dict())
again = nn.Sequential(nn.Linear(3, 3), nn.LayerScale(3))
again.load_state_dict(bb.io.load_model("model.safetensors").state)
np.testing.assert_array_equal(again(bb.asarray(x)).numpy(), model(bb.asarray(x)).numpy())
np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer))(bb.asarray(x)).numpy(), x * 0.5)
assert "LayerScale" in str(nn.summary(model, bb.asarray(x)))

np.testing.assert_array_equal(bb.vmap(layer)(bb.asarray(x)).numpy(), x * 0.5)
value, tangent = bb.jvp(layer, (bb.asarray(x),), (bb.ones((2, 3)),))
np.testing.assert_array_equal(tangent.numpy(), np.full((2, 3), 0.5))
with bb.use_backend("autodiff(capture(numpy))"):
    recorded = nn.LayerScale(3, init_values=0.5)
    call = bb.capture(lambda x: recorded(x), state=False)
    for _ in range(3):
        np.testing.assert_array_equal(call(bb.asarray(x)).numpy(), x * 0.5)
with bb.use_backend("null"):
    assert nn.LayerScale(3)(bb.ones((2, 3))).shape == (2, 3)
"""


TESTS = ("tests/distributed/test_layers.py", "tests/nn/test_modules.py")

#: The line before the new case, and the name before the new one in the list of names.
CASES, NEIGHBOUR = "CASES: dict[str, Case] = {\n", "LayerNorm"


def edited(name: str, text: str, added: str) -> str:
    """The text of a file with the addition from CONTRIBUTING.md."""
    if CASES not in text:
        return f"{text}\n\n{added}"
    return text.replace(CASES, CASES + added)


def exported(text: str) -> str:
    """The text of ``nn/__init__.py`` with the layer imported and listed."""
    assert text.count(f"    {NEIGHBOUR},\n") == text.count(f'"{NEIGHBOUR}", ') == 1
    text = text.replace(f"    {NEIGHBOUR},\n", f"    {NEIGHBOUR},\n    LayerScale,\n")
    return text.replace(f'"{NEIGHBOUR}", ', f'"{NEIGHBOUR}", "LayerScale", ')


@pytest.mark.slow
def test_four_edits_add_a_layer(tmp_path: Path) -> None:
    kept = shutil.ignore_patterns("__pycache__", "*.npz", "stand_in", "emulation")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=kept)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## Adding a layer")[2].partition("\n## ")[0]
    paragraphs = re.findall(r"((?:[^\n]+\n)+)\n```python\n(.*?)```", section, flags=re.DOTALL)
    found = {re.findall(r"`((?:src|tests)/[^`]+)`", text)[0]: added for text, added in paragraphs}
    listed = "src/backburn/nn/__init__.py"
    assert list(found) == ["src/backburn/nn/normalization.py", *TESTS]
    assert f"In `{listed}`" in section
    for name, added in found.items():
        path = tmp_path / name
        path.write_text(edited(name, path.read_text(encoding="utf-8"), added), encoding="utf-8")
    (tmp_path / listed).write_text(exported((ROOT / listed).read_text(encoding="utf-8")), encoding="utf-8")

    paths = [str(tmp_path / "src"), str(tmp_path), str(ROOT / "backends")]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    named = ["-k", "LayerScale or layer_scale or all_layers", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
    for arguments in (["-W", "error", "-c", SCRIPT], ["-m", "pytest", *TESTS, *named]):
        run = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^[4-9] passed", run.stdout, flags=re.MULTILINE), run.stdout
