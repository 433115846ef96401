"""SECURITY.md line by line: each row and each exception has a test, and each test has a row."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")

import backburn as bb
from backburn import cli, nn
from backburn.base.errors import BackburnError, ConfigError, FileFormatError, RunFolderError, SpecError
from backburn.base.foreign import inert
from backburn.cli.launch import command_of
from backburn.train.config import read_config
from backburn.train.run_folder import RunFolder
from backburn.train.runs import find_runs

TEXT = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")


class Opens:
    """Creates a folder when unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("proof",)


def safetensors() -> None:
    """Damage is an error with the file's name; names of code in metadata are only text."""
    bb.io.save_model("m.safetensors", {"x": bb.ones(3)}, about={"build": "os:system"})
    assert bb.io.load_model("m.safetensors").about == {"build": "os:system"}
    content = Path("m.safetensors").read_bytes()
    for broken in (content[:-1], content[:40], b"", content[:-2] + b"\x00\x01"):
        Path("broken").write_bytes(broken)
        with pytest.raises(FileFormatError, match="broken"):
            bb.io.load_model("broken")


def npz() -> None:
    """Objects in arrays are not unpickled."""
    np.savez("x.npz", x=np.array([Opens()], dtype=object))
    with pytest.raises(FileFormatError):
        bb.io.load_npz("x.npz")


def weights() -> None:
    """Functions in a pickle are not called, shards outside the folder are not read, and the model is unchanged."""
    model = nn.Linear(2, 2)
    before = model.weight
    Path("x.pt").write_bytes(pickle.dumps({"weight": Opens()}))
    Path("outside.safetensors").write_bytes(b"x")
    Path("folder").mkdir()
    index = '{"weight_map": {"weight": "../outside.safetensors", "bias": "../outside.safetensors"}}'
    Path("folder/model.safetensors.index.json").write_text(index)
    for source in ("x.pt", "folder"):
        with pytest.raises(BackburnError):
            bb.io.load_weights(model, source)
    assert model.weight is before


def onnx_models() -> None:
    """No data outside the folder are read, and no tensor of any node exceeds the limits."""
    pytest.importorskip("onnx")
    from onnx import TensorProto, parser

    head = '<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[n] y) '
    Path("outside").write_bytes(b"\0" * 4)
    Path("folder").mkdir()
    Path("folder/link").symlink_to(Path("outside").resolve())
    for location in ("../outside", str(Path("outside").resolve()), "link"):
        model = parser.parse_model(head + "<float[1] w = {1.0}> { y = Add(x, w) }")
        model.graph.initializer[0].ClearField("float_data")
        model.graph.initializer[0].data_location = TensorProto.EXTERNAL
        entry = model.graph.initializer[0].external_data.add()
        entry.key, entry.value = "location", location
        Path("folder/m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(FileFormatError):
            bb.onnx.load("folder/m.onnx")
    model = parser.parse_model(head + "<int64[1] s = {99}> { c = ConstantOfShape(s) y = Add(x, c) }")
    assert bb.onnx.load(model)(bb.ones(1)).shape == (99,)
    with pytest.raises(BackburnError, match="98 elements"):
        bb.onnx.load(model, limits=bb.onnx.Limits(elements=98))(bb.ones(1))


def models_of_runs() -> None:
    """Names in a model file are not imported."""
    bb.io.save_model("m.safetensors", {}, about={"config": {"model": {"build": "os:mkdir", "path": "proof"}}})
    assert cli.main(["evaluate", "m.safetensors"]) == 2
    bb.io.save_model("m.safetensors", {}, about={"config": {}, "backend": "array_api_strict"})
    assert cli.main(["evaluate", "m.safetensors"]) == 2


def configurations() -> None:
    """Configurations are programs, which --check does not run; functions that none needs are refused."""
    Path("strange.py").write_text("open('ran', 'w').close()\ndef f(): return 1\n")
    text = '[model]\nbuild = "{}"\n[data]\nbuild = "strange:f"\n[loss]\nfunction = "strange:f"\n'
    Path("run.toml").write_text(text.format("strange:f"))
    read_config("run.toml").check_without_import()
    assert not Path("ran").exists()
    read_config("run.toml").functions("model")
    assert Path("ran").exists()
    for name in ("os:mkdir", "numpy._core:zeros", "strange:open"):
        Path("run.toml").write_text(text.format(name))
        with pytest.raises(ConfigError):
            read_config("run.toml").functions("model")
    with pytest.raises(ConfigError, match="is not called with a model, a batch"):
        read_config("run.toml").functions("loss")


def run_with(*files: str) -> Path:
    """A run folder with links to a file of the user."""
    folder = Path("runs/a")
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "loss": 0.5}\n')
    Path("victim").write_text("precious")
    for name in files:
        (folder / name).symlink_to(Path("victim").resolve())
    return folder


def looking_at_runs() -> None:
    """Links are not followed, and nothing is written through them."""
    folder = run_with("lock", "report.html")
    (folder.parent / "all").symlink_to("/")
    assert len(find_runs(["runs"])) == 1
    assert cli.main(["runs", "runs", "--report"]) == 0
    assert Path("victim").read_text() == "precious"


def keeping_runs() -> None:
    """Other files are kept, and a folder with links is refused."""
    folder = run_with("metrics.csv")
    with pytest.raises(RunFolderError):
        RunFolder(folder).open(overwrite=True)
    (folder / "metrics.csv").unlink()
    (folder / ".mine.tmp").write_text("mine")
    (folder / "step-best.safetensors").write_text("mine")
    run = RunFolder(folder)
    run.open(overwrite=True)
    run.close()
    assert (folder / ".mine.tmp").exists()
    assert (folder / "step-best.safetensors").exists()
    assert Path("victim").read_text() == "precious"


def expressions() -> None:
    """Any other text is refused."""
    for text in ("os.system('x')", "(" * 5000, "autodiff(" * 200 + "numpy" + ")" * 200, "numpy" * 1000, "numpy\x1b"):
        with pytest.raises(SpecError):
            bb.load_backend(text)


ROWS: dict[str, Callable[[], None]] = {
    "`.safetensors`": safetensors,
    "`.npz`": npz,
    "safetensors, PyTorch's `.pt`, `.npz`, GGUF, folders with an index": weights,
    "`.onnx`, and the data beside it": onnx_models,
    "model files of a run, `.safetensors`": models_of_runs,
    "`.toml`": configurations,
    "run folders, by `backburn runs`": looking_at_runs,
    "run folders, by `backburn train`": keeping_runs,
    "expressions of backends": expressions,
}
#: Rows tested elsewhere, and where.
ELSEWHERE = {
    "folders of adapters, of models, of tokenizers": "tests/io/test_foreign.py",
    "`.csv`, `.tsv`, `.gz` of them, `.parquet`, images, texts": "tests/data/test_foreign_data.py",
}


def rows() -> list[str]:
    """The first cells of the table; duplicate names have the beginning of the second cell appended."""
    cells = [re.findall(r"(?<=\| ).*?(?= \|)", line) for line in TEXT.splitlines() if line.startswith("| ")][1:]
    names = [name for name, *_ in cells]
    readers = [reader.partition(",")[0] for _, reader, *_ in cells]
    return [
        f"{name}, by {reader}" if names.count(name) > 1 else name for name, reader in zip(names, readers, strict=True)
    ]


def test_each_row_has_a_test() -> None:
    """Adding or removing a row requires adding or removing its test."""
    names = rows()
    assert [name for name in names if name not in ELSEWHERE] == list(ROWS)
    root = Path(__file__).parents[2]
    assert [path for name, path in ELSEWHERE.items() if name in names and not (root / path).exists()] == []


@pytest.mark.parametrize("name", list(ROWS))
def test_claims_of_the_table(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks leave no folder ``proof``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ROWS[name]()
    sys.modules.pop("strange", None)
    assert not (tmp_path / "proof").exists()


def test_terminal_control_characters_are_removed() -> None:
    """From all error messages of backburn, and from the output of models."""
    assert "Terminal control characters are removed from names" in " ".join(TEXT.split())
    assert str(FileFormatError("a\x1b[2J")).isprintable()
    assert inert("a\x1b[2J\u200d\n").replace("\u200d", "") == "a\\x1b[2J\n"


def test_python_is_started_without_the_current_folder() -> None:
    """At every place in the sources that starts it."""
    assert "with `-P`" in TEXT
    assert command_of(["info"], {"info"})[1] == "-P"
    root = Path(bb.__file__).parent
    for path in root.rglob("*.py"):
        for call in re.findall(r"\[sys\.executable, .*", path.read_text(encoding="utf-8")):
            is_safe = '"-P", "-m"' in call or '"-I", ' in call  # also excludes the current folder
            assert is_safe or call.startswith("[sys.executable, *words[1:]]"), (path, call)


def test_exceptions_are_listed() -> None:
    """The listed exceptions; pickles between MPI processes are one."""
    points = re.findall(r"(?m)^- \*\*(.*?)\*\*", TEXT.partition("## Not a boundary")[2])
    assert points[:5] == [
        "Pickles run code.",
        "Your own programs run normally.",
        "A folder that someone else changes during use",
        "Expressions name installed packages.",
        "`backburn_numpy.compiled` runs a C compiler",
    ]
    assert points[-1] == "Kernels trust their callers."
    assert "MPI processes exchange pickles" in " ".join(TEXT.split())
    sources = Path(bb.__file__).parent / "communicators"
    assert any("pickle" in path.read_text(encoding="utf-8") for path in sources.glob("*.py"))


def test_user_programs_run_normally(tmp_path: Path) -> None:
    """They can import the modules beside them."""
    (tmp_path / "beside.py").write_text("print('found')")
    (tmp_path / "program.py").write_text("import beside")
    done = subprocess.run(
        command_of(["python", "program.py"], {}), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "found\n"
