"""Configurations of the digits and of user functions, and their errors by file and line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

import backburn as bb
from backburn.base.errors import ConfigError
from backburn.train import building
from backburn.train.config import Config, Run, read_config, run_of
from backburn.train.signatures import imported, parameters_in_source, parameters_of

ROOT = Path(__file__).parents[2]

MODULE = """\
import sys
sys.modules["own_was_imported"] = sys
from pathlib import Path
from typing import Annotated, Any, Literal
from collections.abc import Sequence
import numpy as np
from os.path import join
from backburn import data, nn

Kind = Literal["a", "b"]
computed = nn.Linear

def network(width: int, depth: int = 2, kind: Kind = "a", *, rate: float | None = None, sizes: tuple[int, ...] = ()):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))

def batches(path: Path, batch_size: int, seed: int = 0, scale: "float" = 1.0, **other: Any):
    x = np.linspace(-1, 1, 96).reshape(32, 3)
    return {
        "train": data.batches({"x": x, "y": x[:, :1] * scale}, batch_size=batch_size, seed=seed),
        "validation": data.batches({"x": x, "y": x[:, :1]}, batch_size=32),
        "test": data.batches({"x": x, "y": x[:, :1]}, batch_size=32),
    }

def loss(model, batch, power: float = 2.0):
    return (model(batch["x"]) - batch["y"]).abs().pow(power).mean()

def error(model, batch):
    return (model(batch["x"]) - batch["y"]).abs().mean()

class Watch:
    def __new__(cls, every: int = 1):
        from backburn.train import Callback
        made = Callback()
        made.every = every
        return made

def broken():
    raise RuntimeError("of my own")
"""

OWN = """\
[model]
build = "own:network"
width = 4
[data]
build = "own:batches"
path = "somewhere"
[loss]
function = "own:loss"
power = 2.0
[metrics]
error = "own:error"
[train]
epochs = 2
batch_size = 8
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration with a module of functions beside it."""
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "run.toml").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own", "own_was_imported"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path / "run.toml"
    for name in ("own", "own_was_imported"):
        sys.modules.pop(name, None)


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def faults(run: Any) -> str:
    """The message of the ``ConfigError`` that ``run`` raises."""
    with pytest.raises(ConfigError) as caught:
        run()
    return str(caught.value)


# ---- the digits ----


def test_an_empty_file_is_a_configuration(tmp_path: Path) -> None:
    run = read_config(written(tmp_path, ""))
    assert run.config == Config()
    assert run.functions()["model",][0].__name__ == "network"


def test_the_example_is_a_configuration() -> None:
    run = read_config(ROOT / "examples" / "digits.toml")
    assert run.config.backend == "autodiff(numpy)"
    assert run_of(run.config.model_dump(), run.source.folder, "again").config == run.config
    assert run.functions()["data",][1]["distort"].rotation == 20
    assert run.check_without_import() == []


def test_keys_without_functions_are_those_of_the_digits(tmp_path: Path) -> None:
    text = "[data]\nname = 'digits'\n[model]\nhidden = [8]\nactivation = 'tanh'\n[train]\nlabel_smoothing = 0.1\n"
    functions = read_config(written(tmp_path, text)).functions()
    assert functions["model",][1] == {"hidden": [8], "activation": "tanh"}
    assert functions["loss",][1] == {"label_smoothing": 0.1}


def test_integers_are_accepted_as_floats(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "[optimizer]\nlearning_rate = 1\n")).config.optimizer.learning_rate == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("backnd = 'numpy'", "line 1: unknown key 'backnd'. Did you mean 'backend'?"),
        ("\n[trian]\nepochs = 1", "line 2: unknown key 'trian'. Did you mean 'train'?"),
        ("[train]\n\nepoch = 1", "line 3: [train] has no key 'epoch'. Did you mean 'epochs'?"),
        ("[data.distort]\nrot = 1", "line 2: [data.distort] has no key 'rot'. Known: rotation, scale, shear, shift."),
        ("[data.distort]\nrotation = -1", "line 1: data.distort = {'rotation': -1}: Distortion: rotation is a finite"),
        ("[train]\nepochs = 'ten'", "line 2: train.epochs = 'ten': it should be a valid integer"),
        ("[train]\nepochs = 1.5", "line 2: train.epochs = 1.5: it should be a valid integer"),
        ("[train]\nepochs = true", "line 2: train.epochs = True: it should be a valid integer"),
        ("[train]\nepochs = 0", "line 2: train.epochs = 0: it should be greater than 0"),
        ("[train]\nseed = -1", "line 2: train.seed = -1: it should be greater than or equal to 0"),
        (
            "[train]\nprecision = 'float64'",
            "line 2: train.precision = 'float64' is not one of its values. Did you mean",
        ),
        ("[model]\ndropout = 1.0", "line 2: model.dropout = 1.0: it should be less than 1"),
        ("[model]\nhidden = [8,\n 0]", "line 2: model.hidden.1 = 0: it should be greater than 0"),
        ("[model]\nhidden = 8", "line 2: model.hidden = 8: it should be a valid array"),
        ("[model]\nactivation = 'rely'", "line 2: model.activation = 'rely' is not one of its values. Did you mean"),
        ("[model]\nwidth = 3", "line 2: [model] has no key 'width'. Known: activation, dropout, hidden."),
        ("[data]\nname = 'mnist'", "line 2: data.name = 'mnist' is not one of its values. Known: digits."),
        ("[optimizer]\nlearning_rate = nan", "line 2: optimizer.learning_rate = nan: it should be"),
        ("[optimizer]\nlearning_rate = inf", "line 2: optimizer.learning_rate = inf: it should be"),
        ("[callbacks.early_stopping]\npatience = -1", "line 2: callbacks.early_stopping.patience = -1: it should be"),
        ("[callbacks.early_stoping]\npatience = 1", "line 1: [callbacks.early_stoping] has a key build, the name of a"),
        ("train = 3", "line 1: train = 3: this is a table, [train]"),
        ("backend = ''", "line 1: backend = '': "),
        ("[output]\nfolder = 3", "line 2: output.folder = 3: it should be a valid string"),
    ],
)
def test_errors_of_keys_and_values_name_their_line(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    assert faults(lambda: read_config(path).functions()).startswith(f"{path}, {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[optimizer]\nlr = 0.1", "line 2: [optimizer] has no key 'lr'. Did you mean 'learning_rate'?"),
        ("[train]\nlr = 0.1", "line 2: [train] has no key 'lr'. Did you mean 'learning_rate' of [optimizer]?"),
        ("[train]\nlearning_rate = 1", "line 2: [train] has no key 'learning_rate'. Did you mean 'learning_rate' of"),
        ("[train]\nmax_grad_norm = 1", "line 2: [train] has no key 'max_grad_norm'. Did you mean 'clip'?"),
        ("[optimizer]\nbetas = [0.9]", "line 2: optimizer.betas = [0.9]: it lacks item 2"),
        ("[optimizer]\npatience = 3", "line 2: optimizer.patience: it is for schedule = 'plateau', not 'constant'"),
        ("[schedule]\nwarmup_steps = 3", "line 2: [schedule] has no key 'warmup_steps'. Did you mean 'warmup'?"),
    ],
)
def test_keys_of_other_libraries_get_a_hint(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    backend = bb.load_backend("autodiff(numpy)")
    assert faults(lambda: building.build(read_config(path), backend, [])).startswith(f"{path}, {expected}")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    message = faults(lambda: read_config(written(tmp_path, "a = 1\n[train]\nepochs = 0\nb = 2\n")))
    assert [line.split(": ")[0].rpartition(" ")[2] for line in message.splitlines()] == ["3", "4", "1"]


# ---- user functions ----


def test_functions_are_found_beside_the_file_and_get_typed_arguments(own: Path) -> None:
    functions = read_config(own).functions()
    assert functions["model",][1] == {"width": 4}
    assert functions["data",][1] == {"path": Path("somewhere"), "batch_size": 8, "seed": 0}
    assert functions["loss",][1] == {"power": 2.0}
    assert functions["metrics", "error"][0].__name__ == "error"
    assert sys.path[-1] == str(own.parent)


def test_files_named_like_libraries_do_not_shadow_them(own: Path) -> None:
    (own.parent / "numpy.py").write_text("raise RuntimeError('hidden')")
    (own.parent / "json.py").write_text("raise RuntimeError('hidden')")
    read_config(own).functions()
    assert "hidden" not in str(sys.modules["numpy"].__file__)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("width = 4", "width = 'four'", "line 3: model.width = 'four': it should be a valid integer"),
        ("width = 4", "", "line 1: [model] lacks the key 'width', which its function needs"),
        ("width = 4", "width = 4\nwidht = 3", "line 4: [model] has no key 'widht'. Did you mean 'width'?"),
        ("width = 4", "width = 4\nkind = 'c'", "line 4: model.kind = 'c' is not one of its values. Known: a, b."),
        ("width = 4", "width = 4\nsizes = [1, 2.5]", "line 4: model.sizes.1 = 2.5: it should be a valid integer"),
        ("power = 2.0", "power = 'two'", "line 9: loss.power = 'two': it should be a valid number"),
        ('"own:network"', '"own:netwrk"', "line 2: model.build: own has no 'netwrk'. Did you mean 'network'?"),
        ('"own:network"', '"onw:network"', "line 2: model.build: there is no module 'onw', neither in the environment"),
        ('"own:network"', '"own.network"', "line 2: model.build: 'own.network' is not a function: write package"),
        ('"own:error"', '"own:eror"', "line 11: metrics.error: own has no 'eror'. Did you mean 'error'?"),
        ("epochs = 2", "label_smoothing = 0.1", "line 13: train.label_smoothing: the loss, own:loss, does not take it"),
    ],
)
@pytest.mark.parametrize("how", ["functions", "check_without_import"])
def test_errors_of_arguments_name_their_line(own: Path, how: str, old: str, new: str, expected: str) -> None:
    own.write_text(own.read_text().replace(old, new))
    assert faults(lambda: getattr(read_config(own), how)()).startswith(f"{own}, {expected}")


def test_checking_imports_nothing(own: Path) -> None:
    assert read_config(own).check_without_import() == []
    assert "own_was_imported" not in sys.modules
    assert "own" not in sys.modules
    read_config(own).functions()
    assert "own_was_imported" in sys.modules


def test_signatures_missing_from_the_source_are_not_checked(own: Path) -> None:
    own.write_text(own.read_text().replace("own:network", "own:computed").replace("own:error", "own:join"))
    assert read_config(own).check_without_import() == ["own:computed", "own:join"]


def test_errors_in_user_modules(own: Path) -> None:
    (own.parent / "own.py").write_text("def network(:\n")
    assert f"{own.parent / 'own.py'}, line 1: " in faults(read_config(own).check_without_import)
    (own.parent / "own.py").write_text("import nothing_like_this\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_like_this"):  # the user's own error
        read_config(own).functions()


def test_user_functions_must_be_complete(tmp_path: Path) -> None:
    path = written(tmp_path, '[model]\nbuild = "own:network"\n[loss]\nfunction = "own:loss"\n')
    message = faults(lambda: read_config(path))
    assert message.startswith(f"{path}: [data] has no build, which names a function, package.module:function; [loss]")


def test_signatures_of_sources_are_those_of_the_functions(own: Path) -> None:
    for name, skip in (("network", 0), ("batches", 0), ("loss", 2), ("Watch", 0)):
        read = parameters_in_source(f"own:{name}", own.parent, skip)
        found = parameters_of(imported(f"own:{name}", own.parent), skip)
        if name != "Watch":  # its signature is that of __new__
            assert read is not None
            assert (dict(read.types), read.required, read.takes_any) == (
                dict(found.types), found.required, found.takes_any,
            )  # fmt: skip


# ---- options ----


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train.epochs=3"], lambda c: c.train.epochs == 3),
        (["model.hidden=[64, 32]"], lambda c: c.model.arguments["hidden"] == [64, 32]),
        (["optimizer.name=sgd", "train.clip=1"], lambda c: (c.optimizer.name, c.train.clip) == ("sgd", 1.0)),
        (["data.distort.rotation=5"], lambda c: c.data.arguments["distort"] == {"rotation": 5}),
        (["backend=autodiff(numpy)"], lambda c: c.backend == "autodiff(numpy)"),
    ],
)
def test_options_change_any_key(tmp_path: Path, words: list[str], found: Any) -> None:
    run = read_config(written(tmp_path, "[train]\nepochs = 7\n"))
    assert found(run.overridden(words).config)
    assert run.config.train.epochs == 7


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("train.epochs=0", "the option train.epochs=0: train.epochs = 0: it should be greater than 0"),
        ("train.epoch=3", "the option train.epoch=3: [train] has no key 'epoch'. Did you mean 'epochs'?"),
        ("train.epochs", "'train.epochs' changes nothing: write table.key=value, such as train.epochs=3"),
        ("backend.x=3", "the option backend.x=3: backend is a value, and not a table"),
    ],
)
def test_errors_of_options_name_them(tmp_path: Path, word: str, expected: str) -> None:
    run = read_config(written(tmp_path, "backend = 'numpy'\n"))
    assert faults(lambda: run.overridden([word])) == expected


def test_errors_of_function_arguments_name_the_option(own: Path) -> None:
    run = read_config(own).overridden(["model.width=4.5"])
    assert faults(run.functions) == "the option model.width=4.5: model.width = 4.5: it should be a valid integer"


def test_tables_of_a_saved_model(tmp_path: Path) -> None:
    assert isinstance(run_of({"train": {"epochs": 3}}, tmp_path, "m.safetensors"), Run)
    with pytest.raises(ConfigError, match=r"^m\.safetensors: train\.epochs = 0"):
        run_of({"train": {"epochs": 0}}, tmp_path, "m.safetensors")
