"""If a package of an extra is missing, a backburn error names the package and the extra."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import backburn as bb
from backburn import data, models, train
from backburn.base.errors import BackburnError, BackendUnavailableError, ConfigError, DTypeError
from backburn.cli.saved_models import require
from backburn.communicators.loading import load_communicator
from backburn_numpy.compiled import build

ROOT = Path(__file__).parents[2]


def tokenizer(folder: Path) -> object:
    (folder / "tokenizer.json").write_text("{}")
    return models.Tokenizer(folder)


def template(folder: Path) -> object:
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("x")
    return models.Tokenizer(folder).chat([{"role": "user", "content": "x"}])


def configuration(folder: Path) -> None:
    require("pydantic")


def board(folder: Path) -> None:
    train.TensorBoard(folder).on_start(None)  # type: ignore[arg-type]


def picture(folder: Path) -> object:
    from backburn.tapes.picture import picture

    return picture([], [])


def compiler(folder: Path) -> object:
    return build.find_compiler("x86_64-linux-gnu")


#: The package, a call that needs it, the class of the error, and the extra that it names.
USES: list[tuple[str, Callable[[Path], object], type[BaseException], str]] = [
    ("PIL", lambda folder: data.image_folder(folder), BackendUnavailableError, "'backburn[data]'"),
    ("pyarrow", lambda folder: data.read_table(folder / "x.csv"), BackendUnavailableError, "'backburn[data]'"),
    ("pyarrow", lambda folder: data.read_table(folder / "x.parquet"), BackendUnavailableError, "'backburn[data]'"),
    ("tensorboardX", board, BackendUnavailableError, "'backburn[loggers]'"),
    ("wandb", lambda folder: train.WandB(), BackendUnavailableError, "wandb"),
    ("pydantic", configuration, ConfigError, "'backburn[train]'"),
    ("ml_dtypes", lambda folder: np.dtype(bb.bfloat16), DTypeError, "'backburn[bfloat16]'"),
    ("ml_dtypes", lambda folder: np.asarray(bb.ones((1,), dtype="bfloat16")), DTypeError, "'backburn[bfloat16]'"),
    ("tokenizers", tokenizer, BackendUnavailableError, "'backburn[text]'"),
    ("jinja2", template, BackendUnavailableError, "'backburn[text]'"),
    ("graphviz", picture, BackendUnavailableError, "'backburn[graph]'"),
    ("einops", lambda folder: importlib.import_module("backburn.interop.einops"), BackendUnavailableError,
     "'backburn[einops]'"),
    ("mpi4py", lambda folder: load_communicator("mpi"), BackendUnavailableError, "backburn[mpi]"),
    ("cupy", lambda folder: bb.load_backend("cupy"), BackendUnavailableError, "backburn[cuda"),
    ("onnx", lambda folder: bb.onnx.load(folder / "x.onnx"), BackendUnavailableError, "'backburn[onnx]'"),
    ("ziglang", compiler, build.NoCompilerError, "ziglang"),
]  # fmt: skip
#: Packages used by programs, by commands that work without them, or through other packages; and where they occur.
ELSEWHERE = {
    "tqdm": "tests/cli/test_cli.py", "matplotlib": "tests/cli/test_cli.py", "gymnasium": "examples/ppo/main.py",
    "mpich": "src/backburn/communicators/wheels.py",
}  # fmt: skip
#: Modules with other names than their distributions.
MODULES = {"pillow": "PIL", "cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy"}


@pytest.mark.parametrize(
    ("name", "use", "kind", "words"), USES, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(USES)]
)
def test_a_missing_package_is_an_error_that_names_it(
    name: str, use: Callable[[Path], object], kind: type[BaseException], words: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It also names the extra to install, and has the class that fits the call."""
    if name == "jinja2":
        pytest.importorskip("tokenizers")
    again = ("backburn.interop.einops", "backburn.communicators.mpi")  # import a package at the top
    for known in [known for known in sys.modules if known.partition(".")[0] == name or known in again]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(kind) as caught:
        use(tmp_path)
    assert isinstance(caught.value, (BackburnError, build.NoCompilerError))
    assert words in str(caught.value)
    assert name.replace("PIL", "Pillow") in str(caught.value)


def test_every_package_of_an_extra_is_tested() -> None:
    """Except extras for the development of backburn itself."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    ours = {"test", "peers", "loaders", "docs", "bench", "dev", "cuda-check", "cudnn12", "cudnn13"}
    wanted = {re.split(r"[\[>=<]", words)[0] for extra, list_ in tables.items() if extra not in ours for words in list_}
    wanted = {MODULES.get(name, name) for name in wanted - {"backburn"}}
    assert wanted | {"wandb"} == {name for name, *_ in USES} | set(ELSEWHERE)
    for name, path in ELSEWHERE.items():
        assert name in (ROOT / path).read_text("utf-8")
