"""``backburn train``, ``evaluate`` and ``predict`` with the user's functions, named in a TOML file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")

from backburn import cli, train
from backburn.io import load_model, load_npz

MODULE = """\
from pathlib import Path

import numpy as np

from backburn import data, nn, train


def network(width: int = 8):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def arrays(path: Path, batch_size: int, seed: int, features: int = 3):
    x = np.load(path)[:, :features]
    y = x.sum(axis=1, keepdims=True)
    whole = {"x": x, "y": y}
    return {
        "train": data.batches(whole, batch_size=batch_size, seed=seed),
        "validation": data.batches(whole, batch_size=50),
        "test": data.batches(whole, batch_size=50),
    }


def loss(model, batch, power: float = 2.0):
    return (model(batch["x"]) - batch["y"]).abs().pow(power).mean()


def error(model, batch):
    return (model(batch["x"]) - batch["y"]).abs().mean()


class Notes(train.Callback):
    def __init__(self, path: Path):
        self.path = path

    def on_epoch(self, trainer, row):
        with open(self.path, "a") as file:
            print(row["epoch"], file=file)


def raises(model, batch):
    raise ZeroDivisionError("of my own")
"""

OWN = """\
[model]
build = "shapes.functions:network"
width = 16

[data]
build = "shapes.functions:arrays"
path = "{folder}/x.npy"

[loss]
function = "shapes.functions:loss"

[metrics]
error = "shapes.functions:error"

[optimizer]
name = "adam"
learning_rate = 0.02
betas = [0.9, 0.99]

[schedule]
name = "cosine"
warmup = 5

[train]
epochs = 4
batch_size = 10
clip = 5
average = 0.5

[callbacks.early_stopping]
patience = 50

[callbacks.notes]
build = "shapes.functions:Notes"
path = "{folder}/notes"

[output]
folder = "{folder}/run"
"""


#: All its functions that evaluation calls.
FUNCTIONS = ",".join(f"shapes.functions:{name}" for name in ("network", "arrays", "loss", "error"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration, a package beside it, and data."""
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "__init__.py").write_text("")
    (tmp_path / "shapes" / "functions.py").write_text(MODULE)
    (tmp_path / "run.toml").write_text(OWN.format(folder=tmp_path.as_posix()))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 3)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "run.toml"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shapes"]:
        del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line; its exit status, standard output and standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status = cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return command


def test_train_evaluate_and_predict(run: Any, own: Path) -> None:
    folder = own.parent / "run"
    status, out, err = run("train", own)
    assert (status, err) == (0, "")
    assert "data      train 5 batches, validation 1 batch, test 1 batch" in out
    assert "model     Sequential, 81 parameters" in out
    assert (own.parent / "notes").read_text() == "1\n2\n3\n4\n"
    rows = train.read_rows(folder / "metrics.jsonl")
    assert rows[-1]["validation/loss"] < rows[0]["validation/loss"]
    assert rows[-1]["lr"] < rows[0]["lr"]
    assert (folder / "best.safetensors").exists()
    assert load_model(folder / "model.safetensors").about["config"]["model"]["width"] == 16
    results = out.splitlines()[-2:]
    assert [line.split(":")[0] for line in results] == ["test loss", "test error"]
    for path in (folder, folder / "model.safetensors"):
        assert run("evaluate", path, "--config", own)[1].splitlines() == results
        assert run("evaluate", path, "--trust", FUNCTIONS)[1].splitlines() == results
    options = ("--out", own.parent / "y.npz", "--batch-size", 7, "--trust", "shapes.functions:network")
    status, out, _ = run("predict", folder, own.parent / "x.npy", *options)
    assert (status, out) == (0, f"{own.parent / 'y.npz'}: predictions, float32 of shape (50, 1)\n")
    x = np.load(own.parent / "x.npy")
    error = np.abs(load_npz(own.parent / "y.npz")["predictions"] - x.sum(axis=1, keepdims=True)).mean()
    assert float(results[1].split(": ")[1]) == pytest.approx(error, rel=1e-4)


def test_resume_accepts_only_more_epochs(run: Any, own: Path) -> None:
    assert run("train", own, "train.epochs=2", "optimizer.schedule=constant", "schedule.name=constant")[0] == 0
    options = ("optimizer.schedule=constant", "schedule.name=constant", "--resume")
    status, out, _ = run("train", own, "train.epochs=3", *options)
    assert status == 0
    assert "resumed after step 10, in epoch 3" in out
    status, _, err = run("train", own, "model.width=8", *options)
    assert status == 2
    assert "the saved run is another one: config model.width was 16, is 8; model 0." in err
    assert "model 0.weight was float32[16,3], is float32[8,3]" in err


def test_a_longer_schedule_is_noted_and_the_best_epoch_is_named(run: Any, own: Path) -> None:
    status, out, _ = run("train", own, "train.epochs=2")
    assert status == 0
    assert f"model     {own.parent / 'run' / 'model.safetensors'}, after epoch 2\n" in out
    assert f"best      {own.parent / 'run' / 'best.safetensors'}, after epoch 2, by validation/loss\n" in out
    status, _, err = run("train", own, "train.epochs=4", "--resume")
    assert status == 0
    assert err == (
        "note: the run continues at another rate: lr after step 10 was 0, and is 0.015 by the present schedule. A "
        "schedule over more epochs has other rates\n"
    )
    status, _, err = run("train", own, "train.epochs=4", "--overwrite")
    assert (status, err) == (0, "")


def test_a_model_of_several_arrays_predicts(run: Any, own: Path) -> None:
    functions = own.parent / "shapes" / "functions.py"
    source = functions.read_text()
    source = source.replace("import numpy as np", "import numpy as np\n\nimport backburn as bb")
    source += """

class Sum(nn.Module):
    def __init__(self):
        self.numbers, self.kinds = nn.Linear(3, 1), nn.Embedding(4, 1)

    def forward(self, batch):
        return self.numbers(batch["x"]) + self.kinds(batch["kind"])


def both(path: Path, batch_size: int):
    x = np.load(path)
    whole = {"x": x, "kind": np.arange(len(x)) % 4, "y": x[:, :1]}
    return {"train": data.batches(whole, batch_size=batch_size)}


def of_both(model, batch):
    return (model(batch) - batch["y"]).abs().mean()
"""
    functions.write_text(source)
    text = own.read_text().replace("functions:network", "functions:Sum").replace("functions:arrays", "functions:both")
    text = text.replace("functions:loss", "functions:of_both").replace("width = 16\n", "")
    text = text[: text.index("[metrics]")] + text[text.index("[optimizer]") :]
    own.write_text(text.replace("[callbacks.early_stopping]\npatience = 50\n", ""))
    status, _, err = run("train", own, "train.epochs=1")
    assert (status, err) == (0, "")
    x = np.load(own.parent / "x.npy")
    np.savez(own.parent / "inputs.npz", x=x, kind=np.arange(50) % 4)
    words = ("--trust", "shapes.functions:Sum", "--out", own.parent / "y.npz", "--batch-size", 7)
    status, out, err = run("predict", own.parent / "run", own.parent / "inputs.npz", *words)
    assert (status, out, err) == (0, f"{own.parent / 'y.npz'}: predictions, float32 of shape (50, 1)\n", "")
    state = load_model(own.parent / "run" / "model.safetensors").state
    expected = x @ np.asarray(state["numbers.weight"]).T + np.asarray(state["numbers.bias"])
    expected += np.asarray(state["kinds.weight"])[np.arange(50) % 4]
    np.testing.assert_allclose(load_npz(own.parent / "y.npz")["predictions"], expected, rtol=1e-5, atol=1e-6)


def test_a_model_of_a_dict_with_one_array_predicts(run: Any, own: Path) -> None:
    functions = own.parent / "shapes" / "functions.py"
    functions.write_text(
        functions.read_text()
        + """

class Named(nn.Module):
    def __init__(self):
        self.numbers = nn.Linear(3, 1)

    def forward(self, batch):
        return self.numbers(batch["x"])


def named(path: Path, batch_size: int):
    return {"train": data.batches({"x": np.load(path)}, batch_size=batch_size)}


def of_named(model, batch):
    return model(batch).abs().mean()
"""
    )
    text = own.read_text().replace("functions:network", "functions:Named").replace("width = 16\n", "")
    text = text.replace("functions:arrays", "functions:named").replace("functions:loss", "functions:of_named")
    text = text[: text.index("[metrics]")] + text[text.index("[optimizer]") :]
    own.write_text(text.replace("[callbacks.early_stopping]\npatience = 50\n", ""))
    status, _, err = run("train", own, "train.epochs=1")
    assert (status, err) == (0, "")
    np.savez(own.parent / "inputs.npz", x=np.load(own.parent / "x.npy"))
    words = ("--trust", "shapes.functions:Named", "--out", own.parent / "y.npz")
    status, _, err = run("predict", own.parent / "run", own.parent / "inputs.npz", *words)
    assert status == 2
    assert err.endswith("inputs.npz; with --dict, a dict of it.\n")
    status, out, err = run("predict", own.parent / "run", own.parent / "inputs.npz", "--dict", *words)
    assert (status, out, err) == (0, f"{own.parent / 'y.npz'}: predictions, float32 of shape (50, 1)\n", "")
    state = load_model(own.parent / "run" / "model.safetensors").state
    expected = np.load(own.parent / "x.npy") @ np.asarray(state["numbers.weight"]).T + np.asarray(state["numbers.bias"])
    np.testing.assert_allclose(load_npz(own.parent / "y.npz")["predictions"], expected, rtol=1e-5, atol=1e-6)
    status, _, err = run("predict", own.parent / "run", own.parent / "x.npy", "--dict", *words)
    assert status == 2
    assert "x.npy has no names" in err


def test_a_run_is_interrupted_before_its_first_step(run: Any, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("train", own, "train.epochs=1")[0] == 0
    before = (own.parent / "run" / "model.safetensors").read_bytes()

    def interrupts(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train.Progress, "on_start", interrupts)
    status, _, err = run("train", own, "train.epochs=1", "--overwrite")
    assert status == 130
    assert f"interrupted before the first step: {own.parent / 'run'} is as it was; begin again with\n" in err
    assert err.endswith("train.epochs=1 --overwrite\n")
    assert (own.parent / "run" / "model.safetensors").read_bytes() == before


def test_a_backend_that_the_models_module_registers_is_found(run: Any, own: Path) -> None:
    functions = own.parent / "shapes" / "functions.py"
    registered = "\n\nfrom backburn.backend import Wrapper, register_decorator\n\n\nclass Plain(Wrapper):\n"
    registered += "    name = 'plainly'\n\n\nregister_decorator('plainly', Plain)\n"
    functions.write_text(functions.read_text() + registered)
    own.write_text('backend = "autodiff(plainly(numpy))"\n' + own.read_text())
    status, out, err = run("train", own, "--check")
    assert (status, err) == (0, "")
    assert out.endswith("not checked: the backend 'plainly', which functions.py may register\n")
    status, out, err = run("train", own)
    assert (status, err) == (0, "")
    assert "backend   autodiff(plainly(numpy))\n" in out


@pytest.mark.parametrize("command", [("--check",), ()])
def test_an_unknown_backend_is_reported_with_its_line(run: Any, own: Path, command: tuple[str, ...]) -> None:
    own.write_text('backend = "autodiff(nunpy)"\n' + own.read_text())
    status, out, err = run("train", own, *command)
    assert (status, out) == (2, "")
    assert "run.toml, line 1: backend = " in err
    assert "no backend is called 'nunpy', in 'autodiff(nunpy)'. Did you mean 'autodiff(numpy)'?" in err


def test_checking_runs_nothing(run: Any, own: Path) -> None:
    status, out, err = run("train", own, "--check")
    assert (status, out, err) == (0, f"{own}: the configuration is valid\n", "")
    assert "shapes.functions" not in sys.modules
    assert not (own.parent / "run").exists()
    status, _, err = run("train", own, "--check", "data.batch_sizes=3")
    assert status == 2
    assert err.startswith(
        "backburn: the option data.batch_sizes=3: [data] has no key 'batch_sizes'. Did you mean 'batch_size'?"
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("betas = [0.9, 0.99]", "beta = 3", "run.toml, line 18: [optimizer] has no key 'beta'. Did you mean 'betas'?"),
        ("betas = [0.9, 0.99]", "betas = 3", "run.toml, line 18: optimizer.betas = 3: "),
        ('"cosine"', '"cosin"', "run.toml, line 21: schedule.name = 'cosin' is not one of its values. Did you mean"),
        ("warmup = 5", "T_mx = 5", "run.toml, line 22: [schedule] has no key 'T_mx'. Did you mean 'T_max'?"),
        ("warmup = 5", "T_max = 0", "run.toml, line 20: schedule: Cosine: T_max"),
        ('"cosine"', '"step"', "run.toml, line 20: [schedule] lacks the key 'step_size', which its function needs"),
        ("betas = [0.9, 0.99]", "foo = 3", "eps, learning_rate, weight_decay."),
        ("learning_rate = 0.02", 'schedule = "cosine"', "run.toml, line 20: [schedule] and the key schedule of"),
        ('path = "{folder}/notes"', "", "run.toml, line 33: [callbacks.notes] lacks the key 'path', which its"),
        ("width = 16", "width = true", "run.toml, line 3: model.width = True: it should be a valid integer"),
    ],
)
def test_errors_name_their_line(run: Any, own: Path, old: str, new: str, words: str) -> None:
    text = OWN.replace(old, new)
    assert text != OWN
    own.write_text(text.format(folder=own.parent.as_posix()))
    for command in (("--check",), ()):
        status, out, err = run("train", own, *command)
        assert status == 2, out
        assert words in err
        assert "epoch " not in out


def test_an_optimizer_is_checked_before_data_are_read(run: Any, own: Path) -> None:
    status, _, err = run("train", own, f"data.path={own.parent}/nowhere.npy", "optimizer.foo=3")
    assert status == 2
    assert "[optimizer] has no key 'foo'" in err


def test_batches_that_do_not_fit_are_described(run: Any, own: Path) -> None:
    status, _, err = run("train", own, "data.features=2")
    assert status == 2
    assert "In step 1, with the batch x: float32[10,2], y: float32[10,1]." in err


def test_an_error_of_a_function_has_its_own_traceback(run: Any, own: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="of my own"):
        run("train", own, "loss.function=shapes.functions:raises")
    assert run("train", own, "--overwrite")[0] == 0  # the folder is not locked


def test_missing_data_files(run: Any, own: Path) -> None:
    status, _, err = run("train", own, f"data.path={own.parent}/nowhere.npy")
    assert status == 2
    assert err == f"backburn: {own.parent}/nowhere.npy: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "{model}", "{folder}/nothing.npy"), "nothing.npy: No such file"),
        (
            ("predict", "{model}", "{folder}/run.toml"),
            "run.toml is neither .npy nor .npz, by its name: write np.savez(",
        ),
        (("predict", "{model}", "{folder}/x.npy", "--batch-size", "0"), "--batch-size is at least 1, not 0"),
        (("evaluate", "{folder}/plain.safetensors"), "this is not a model that 'backburn train' makes: it has no conf"),
    ],
)
def test_bad_input_of_evaluate_and_predict(run: Any, own: Path, arguments: Any, words: str) -> None:
    from backburn.io import save_model

    assert run("train", own, "--epochs", 1)[0] == 0
    save_model(own.parent / "plain.safetensors", {})
    names = {"model": own.parent / "run", "folder": own.parent}
    status, _, err = run(*(word.format(**names) for word in arguments), "--config", own)
    assert status == 2
    assert words in err


def test_a_function_of_data_that_returns_nothing_is_named(run: Any, own: Path) -> None:
    functions = own.parent / "shapes" / "functions.py"
    functions.write_text(functions.read_text() + "\n\ndef nothing(**options):\n    pass\n")
    status, _, err = run("train", own, "data.build=shapes.functions:nothing")
    assert status == 2
    assert err.startswith("backburn: the option data.build=shapes.functions:nothing: shapes.functions:nothing returned")
