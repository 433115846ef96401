"""The configuration, the trainer, and what a run leaves behind."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend import AnyBackend, Capabilities, load_backend
from backburn.base.errors import ConfigError, FileFormatError, Unsupported
from backburn.io import load_model, save_model, save_state
from backburn.optim.schedules import ReduceOnPlateau
from backburn.train import outputs
from backburn.train.config import Config, changed, config_of, read_config
from backburn.train.model import build_model, build_optimizer
from backburn.train.toml import line_of, read_toml
from backburn.train.digits_trainer import Trainer, accuracy, model_of
from backburn_numpy import NumpyBackend

ROOT = Path(__file__).parents[2]

# ---- lines of TOML ----

TEXT = """\
# a comment
backend = "numpy"   # line 2

[train]
epochs = 3
"quoted key" = 1

[data.distort]
shift = 1.0

[model]
hidden = [
    # a comment in between
    10,
    20,
]
note = '''
[optimizer]
name = "sgd"
'''

[optimizer]
name = "sgd"
options.rate = 1
inline = { a = 1, b = { c = 2 } }
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["backend"], 2),
        (["train"], 4),
        (["train", "epochs"], 5),
        (["train", "quoted key"], 6),
        (["data"], 8),
        (["data", "distort", "shift"], 9),
        (["model", "hidden"], 12),
        (["model", "hidden", 1], 12),
        (["model", "note"], 17),
        (["optimizer"], 22),
        (["optimizer", "name"], 23),
        (["optimizer", "options", "rate"], 24),
        (["optimizer", "inline", "b", "c"], 25),
        (["optimizer", "missing"], 22),
        (["missing"], None),
        ([], None),
    ],
)
def test_line_of_a_key(keys, line) -> None:
    assert line_of(TEXT, keys) == line


def test_lines_of_windows_files() -> None:
    assert line_of(TEXT.replace("\n", "\r\n"), ["optimizer", "name"]) == 23


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = 1\nb =\n", r"c\.toml, line 2: no TOML: Invalid value"),
        (b"a = 1\na = 2\n", r"c\.toml, line 2: no TOML: Cannot overwrite"),
        (b'a = "\n', r"c\.toml, line 1: no TOML: "),
        (b"a = [1,\n2\n", r"c\.toml, line 2: no TOML: "),
        (b"\xff\xfe", r"c\.toml: no TOML file: it is not UTF-8"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_toml(tmp_path / "c.toml")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf[train]\nepochs = 3\n")
    assert read_config(path).train.epochs == 3
    path.write_bytes(b"\xef\xbb\xbf[train]\nepochs = 0\n")
    with pytest.raises(ConfigError, match=r"c\.toml, line 2: train\.epochs = 0"):
        read_config(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: the configuration cannot be read: No such file"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="directory"):
        read_config(tmp_path)


# ---- the configuration ----


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_an_empty_file_is_a_configuration(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "")) == Config()


def test_the_example_is_a_configuration() -> None:
    config = read_config(ROOT / "examples" / "digits.toml")
    assert config.backend == "autodiff(numpy)"
    assert config_of(config.model_dump()) == config


def test_whole_numbers_do_for_fractions(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "[optimizer]\nlearning_rate = 1\n")).optimizer.learning_rate == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("backnd = 'numpy'", "line 1: unknown key 'backnd'. Did you mean 'backend'?"),
        ("\n[trian]\nepochs = 1", "line 2: unknown key 'trian'. Did you mean 'train'?"),
        ("[train]\n\nepoch = 1", "line 3: [train] has no key 'epoch'. Did you mean 'epochs'?"),
        ("[data.distort]\nrot = 1", "line 2: [data.distort] has no key 'rot'. Known: rotation, scale, shear, shift."),
        ("[train]\nepochs = 'ten'", "line 2: train.epochs = 'ten': it should be a valid integer"),
        ("[train]\nepochs = 1.5", "line 2: train.epochs = 1.5: it should be a valid integer"),
        ("[train]\nepochs = true", "line 2: train.epochs = True: it should be a valid integer"),
        ("[train]\nepochs = 0", "line 2: train.epochs = 0: it should be greater than 0"),
        ("[train]\nseed = -1", "line 2: train.seed = -1: it should be greater than or equal to 0"),
        ("[model]\ndropout = 1.0", "line 2: model.dropout = 1.0: it should be less than 1"),
        ("[model]\nhidden = [8,\n 0]", "line 2: model.hidden.1 = 0: it should be greater than 0"),
        ("[model]\nhidden = 8", "line 2: model.hidden = 8: it should be a valid list"),
        ("[model]\nactivation = 'rely'", "line 2: model.activation = 'rely' is not one of its values. Did you mean"),
        ("[data]\nname = 'mnist'", "line 2: data.name = 'mnist' is not one of its values. Known: digits."),
        ("[optimizer]\nlearning_rate = nan", "line 2: optimizer.learning_rate = nan: it should be"),
        ("[optimizer]\nlearning_rate = inf", "line 2: optimizer.learning_rate = inf: it should be"),
        ("[optimizer]\nname = 'adam'\nmomentum = 0.9", "line 3: optimizer.momentum = 0.9: adam has no momentum"),
        ("train = 3", "line 1: train = 3: this is a table, [train]"),
        ("backend = ''", "line 1: backend = '': "),
        ("[output]\nfolder = 3", "line 2: output.folder = 3: it should be a valid string"),
    ],
)
def test_wrong_keys_and_values_are_named_with_their_line(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}, {expected}")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "a = 1\n[train]\nepochs = 0\nb = 2\n")
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert [line.split(": ")[0].rpartition(" ")[2] for line in str(caught.value).splitlines()] == ["3", "4", "1"]


def test_options_change_a_checked_copy() -> None:
    config = Config()
    other = changed(config, "train", epochs=7, seed=None)
    assert (other.train.epochs, other.train.seed, config.train.epochs) == (7, 0, 20)
    with pytest.raises(ConfigError, match=r"\[train\]: train.epochs = 0"):
        changed(config, "train", epochs=0)


# ---- model and optimizer ----

TINY = config_of({"model": {"hidden": [16], "dropout": 0.2}, "train": {"epochs": 2, "batch_size": 256}})


def backend() -> AnyBackend:
    return load_backend("autodiff(numpy)")


def test_model_of_a_configuration() -> None:
    config = config_of({"model": {"hidden": [8, 4], "activation": "tanh", "dropout": 0.5}})
    model = model_of(config, backend())
    assert [type(layer).__name__ for layer in model] == [  # type: ignore[attr-defined]
        "Linear", "Tanh", "Dropout", "Linear", "Tanh", "Dropout", "Linear",
    ]  # fmt: skip
    assert model.num_parameters == 64 * 8 + 8 + 8 * 4 + 4 + 4 * 10 + 10


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_every_activation_can_be_built(activation: str) -> None:
    config = config_of({"model": {"hidden": [4], "activation": activation}})
    model = build_model(config.model, 64, 10, load_backend("numpy"))
    assert model(bb.zeros((2, 64), backend="numpy")).shape == (2, 10)


@pytest.mark.parametrize(("name", "kind"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW")])
def test_optimizer_of_a_configuration(name: str, kind: str) -> None:
    config = config_of({"optimizer": {"name": name, "learning_rate": 0.5, "weight_decay": 0.1}})
    optimizer = build_optimizer(config.optimizer, 10)
    assert type(optimizer).__name__ == kind
    assert optimizer.lr == 0.5
    assert optimizer.weight_decay == 0.1  # type: ignore[attr-defined]


def test_cosine_falls_to_nothing() -> None:
    config = config_of({"optimizer": {"learning_rate": 2.0, "schedule": "cosine"}})
    rate = build_optimizer(config.optimizer, 100).lr
    assert callable(rate)
    assert [rate(0), rate(50), rate(100), rate(101)] == pytest.approx([2.0, 1.0, 0.0, 0.0])


def test_a_plateau_reduces_the_rate_and_is_resumed(tmp_path: Path) -> None:
    options = {"name": "sgd", "learning_rate": 1e-9, "schedule": "plateau", "factor": 0.5, "patience": 0}
    config = config_of({"model": {"hidden": [16]}, "optimizer": options})
    whole, broken = (Trainer(changed(config, "train", epochs=3), backend()) for _ in range(2))
    run(whole)  # with a rate of nothing the loss does not fall
    rate = whole.optimizer.lr
    assert isinstance(rate, ReduceOnPlateau)
    assert rate(0) == pytest.approx(0.25e-9)
    assert rate.best == whole.history[0].loss
    broken.run_epoch()
    broken.run_epoch()
    outputs.save(tmp_path, broken.state(), bb.__version__, backend())
    resumed = Trainer(broken.config, backend())
    outputs.resume(resumed, tmp_path)
    run(resumed)
    assert resumed.history == whole.history
    assert resumed.state()["rate"] == whole.state()["rate"]


# ---- training ----


def run(trainer: Trainer) -> Trainer:
    while len(trainer.history) < trainer.config.train.epochs:
        trainer.run_epoch()
    return trainer


def test_training_learns() -> None:
    config = changed(changed(TINY, "train", epochs=5, batch_size=64), "optimizer", learning_rate=0.01)
    trainer = run(Trainer(config, backend()))
    first, last = trainer.history[0], trainer.history[-1]
    assert last.loss < 0.5 * first.loss
    assert last.accuracy > first.accuracy
    assert last.unseen > 0.7
    assert last.unseen == accuracy(trainer.model, *trainer.held_out)


class Doubles(NumpyBackend):
    """NumPy's backend with float64 alone."""

    spec = property(lambda self: "doubles")
    float_dtype = property(lambda self: bb.float64)

    @property
    def capabilities(self) -> Capabilities:
        declared = super().capabilities
        own = (bb.float64, bb.int64, bb.bool)
        return replace(declared, dtypes={dtype: uses for dtype, uses in declared.dtypes.items() if dtype in own})

    def from_numpy(self, array):
        if array.dtype.kind == "f" and array.dtype != np.float64:
            raise Unsupported("doubles have no other float dtype")
        return super().from_numpy(array)


def test_training_computes_in_the_float_dtype_that_a_backend_has() -> None:
    doubles = bb.Autodiff(Doubles())
    trainer = run(Trainer(TINY, doubles))
    assert all(p.dtype is bb.float64 for p in trainer.model.parameters())
    found = bb.asarray(np.array([0.5, 2.5], np.float32), dtype="float64", backend=doubles)
    assert (found.dtype, found.tolist()) == (bb.float64, [0.5, 2.5])
    assert bb.asarray([0.5, 2.5], dtype="int64", backend=doubles).tolist() == [0, 2]
    with pytest.raises(Unsupported, match=r"asarray: doubles have no other .*; dtype='float64' converts the array"):
        bb.asarray(np.array([0.5], np.float32), backend=doubles)


def test_validation_images_are_the_last_of_those_trained_on() -> None:
    config = changed(TINY, "data", validation=0.25)
    trainer, plain = Trainer(config, backend()), Trainer(TINY, backend())
    assert (len(trainer.images), len(trainer.unseen[0]), len(trainer.held_out[0])) == (1078, 359, 360)
    assert np.array_equal(np.concatenate([trainer.images, trainer.unseen[0]]), plain.images)
    epoch = trainer.run_epoch()
    assert trainer.unseen_name == "validation"
    assert plain.unseen_name == "held out"
    assert epoch.unseen == accuracy(trainer.model, *trainer.unseen)
    assert trainer.held_out_accuracy() == accuracy(trainer.model, *trainer.held_out)


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = run(Trainer(TINY, backend())), run(Trainer(TINY, backend()))
    other = run(Trainer(changed(TINY, "train", seed=1), backend()))
    assert first.history == second.history
    for name, x in first.model.state_dict().items():
        assert np.array_equal(x.numpy(), second.model.state_dict()[name].numpy())
    assert first.history != other.history


def test_all_training_images_are_seen_and_no_held_out_one() -> None:
    trainer = Trainer(TINY, backend())
    seen = []

    def watched(found):
        for pixels, digits in found:
            seen.append(digits)
            yield pixels, digits

    trainer.run_epoch(watched)
    assert sorted(np.concatenate(seen)) == sorted(trainer.labels)
    assert len(trainer.labels) == 1437
    assert trainer.steps_per_epoch == len(seen) == 6


def test_distortions_are_of_training_images_only() -> None:
    plain = run(Trainer(TINY, backend()))
    config = config_of({**TINY.model_dump(), "data": {"distort": {"rotation": 30, "shift": 1}}})
    distorted = run(Trainer(config, backend()))
    assert distorted.history != plain.history
    assert np.array_equal(distorted.held_out[0], plain.held_out[0])


def test_a_resumed_run_gives_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = changed(TINY, "train", epochs=4)
    whole = run(Trainer(config, backend()))
    broken = Trainer(config, backend())
    for _ in range(2):
        broken.run_epoch()
    state = broken.state()
    broken.run_epoch()  # what happens after the state was taken does not change it
    outputs.save(tmp_path, state, bb.__version__, backend())
    resumed = Trainer(config, backend())
    outputs.resume(resumed, tmp_path)
    assert [e.number for e in resumed.history] == [1, 2]
    run(resumed)
    assert resumed.history == whole.history
    for name, x in whole.model.state_dict().items():
        assert np.array_equal(x.numpy(), resumed.model.state_dict()[name].numpy()), name


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_captured_steps_give_the_same_numbers(tmp_path: Path, schedule: str) -> None:
    config = changed(changed(TINY, "train", epochs=4), "optimizer", schedule=schedule)
    config = changed(changed(config, "model", dropout=0.2), "optimizer", patience=0, factor=0.5)
    whole = run(Trainer(config, backend()))
    recording = load_backend("autodiff(capture(numpy, join=false))")
    captured = Trainer(changed(config, "train", capture=True), recording)
    captured.run_epoch()
    captured.run_epoch()
    step: Any = captured._step
    assert step.reason == ""
    state = captured.state()
    run(captured)
    assert captured.history == whole.history
    outputs.save(tmp_path, state, bb.__version__, recording)  # the epochs after it have not changed it
    resumed = Trainer(config, backend())
    outputs.resume(resumed, tmp_path)
    assert run(resumed).history == whole.history
    moved = Trainer(config, backend())
    moved.load_state(state)  # with tensors of the other backend
    assert run(moved).history == whole.history
    for name, x in whole.model.state_dict().items():
        assert np.array_equal(x.numpy(), captured.model.state_dict()[name].numpy()), name


def test_capture_is_left_out_where_a_backend_does_not_record() -> None:
    trainer = Trainer(changed(TINY, "train", capture=True), backend())
    run(trainer)
    step: Any = trainer._step
    assert step.reason.startswith("autodiff(numpy) does not record")
    assert trainer.history == run(Trainer(TINY, backend())).history


def test_what_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    trainer = Trainer(TINY, backend())
    trainer.run_epoch()
    outputs.save(tmp_path, trainer.state(), bb.__version__, backend())
    more = changed(changed(TINY, "train", epochs=9), "output", folder="elsewhere")
    outputs.resume(Trainer(more, backend()), tmp_path)
    other = changed(changed(TINY, "train", seed=5), "model", hidden=[8])
    with pytest.raises(ConfigError, match=r"model.hidden \(was \[16\], is \[8\]\), train.seed \(was 0, is 5\)"):
        outputs.resume(Trainer(other, backend()), tmp_path)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to resume in .* it has no resume\.safetensors"):
        outputs.resume(Trainer(TINY, backend()), tmp_path)


@pytest.mark.parametrize("state", [{"x": 1}, [1, 2], {"config": 3}])
def test_a_state_of_something_else_is_refused(tmp_path: Path, state: object) -> None:
    save_state(tmp_path / outputs.STATE, state)
    with pytest.raises(FileFormatError, match="not the state of a training run"):
        outputs.resume(Trainer(TINY, backend()), tmp_path)


# ---- outputs ----


def test_a_saved_model_says_what_it_is(tmp_path: Path) -> None:
    trainer = Trainer(TINY, backend())
    trainer.run_epoch()
    outputs.save(tmp_path, trainer.state(), "9.9", backend())
    about = load_model(tmp_path / outputs.MODEL).about
    assert about["backburn"] == "9.9"
    assert about["backend"] == "autodiff(numpy)"
    assert about["epoch"] == 1
    assert about["metrics"] == asdict(trainer.history[-1])
    assert config_of(about["config"]) == TINY
    assert outputs.trained_on(tmp_path / outputs.MODEL) == "autodiff(numpy)"


@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)"])
def test_a_saved_model_tells_the_same_digits(tmp_path: Path, spec: str) -> None:
    trainer = Trainer(TINY, backend())
    epoch = trainer.run_epoch()
    outputs.save(tmp_path, trainer.state(), "9.9", backend())
    there = load_backend(spec)
    model, config = outputs.saved_model(tmp_path / outputs.MODEL, there)
    assert config == TINY
    assert accuracy(model, *trainer.held_out) == epoch.unseen


@pytest.mark.parametrize(
    ("state", "about"),
    [
        ({"x": np.zeros(3)}, {}),
        ({"x": np.zeros(3)}, {"config": TINY.model_dump()}),
        ({}, {"config": TINY.model_dump()}),
        ({"x": np.zeros(3)}, {"config": {"model": 3}}),
        ({"x": np.zeros(3)}, {"config": "none"}),
    ],
)
def test_a_model_of_something_else_is_refused(tmp_path: Path, state, about) -> None:
    path = tmp_path / "other.safetensors"
    save_model(path, state, about=about)
    with pytest.raises(FileFormatError, match=r"other\.safetensors"):
        outputs.saved_model(path, backend())


def test_prepare_makes_folders_and_leaves_nothing_in_them(tmp_path: Path) -> None:
    folder = outputs.prepare(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["model.safetensors", "resume.safetensors", "curves.png"])
def test_a_folder_where_a_file_is_to_go_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"cannot be used: {name} in it is a folder\. Choose another with --out"):
        outputs.prepare(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"file.* cannot be written to: .* Choose another with --out"):
            outputs.prepare(folder)


@pytest.mark.parametrize("epochs", [1, 3])
def test_curves_are_a_picture(tmp_path: Path, epochs: int) -> None:
    from matplotlib.image import imread

    trainer = Trainer(TINY, backend())
    history = [trainer.run_epoch() for _ in range(epochs)]
    outputs.draw_curves(history, tmp_path / "c.png")
    picture = imread(tmp_path / "c.png")
    assert picture.shape[0] >= 400
    assert picture.shape[1] >= 900
    assert picture.std() > 0.01
