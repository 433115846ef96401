"""The trainer and its parts: comparison with manual loops, rows, callbacks, capture, and wrong input."""

from __future__ import annotations

import math
import traceback
from typing import Any

import numpy as np
import pytest
from tests.helpers import training
from tests.helpers.training import Batches, X, Y, loss, network, trainer

import backburn as bb
from backburn import nn, optim, train
from backburn.errors import ArgumentError, DTypeError, GraphError, NumericalInstabilityError, ShapeError


def parameters_of(model: Any) -> dict[str, Any]:
    return {name: x.numpy() for name, x in model.state_dict().items()}


def assert_same_parameters(one: Any, other: Any) -> None:
    first, second = parameters_of(one), parameters_of(other)
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.shape == second[name].shape
        assert x.tobytes() == second[name].tobytes(), name


def linear(weight: float = 0.0) -> Any:
    model = nn.Linear(1, 1, bias=False)
    model.load_state_dict({"weight": bb.asarray([[weight]])})
    return model


def squares(model: Any, batch: Any) -> Any:
    x, y = batch
    return ((model(x) - y) ** 2.0).mean()


LINE = [(np.array([[1.0], [2.0]]), np.array([[2.0], [4.0]])), (np.array([[3.0]]), np.array([[6.0]]))]


# ---- means over tokens

IGNORED = -100


def tokens(count: int = 12, seed: int = 0) -> tuple[Any, Any]:
    """Texts of five tokens, some without a label; two texts have no labels at all."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, 5, 4)), rng.integers(0, 3, (count, 5))
    y[rng.random((count, 5)) < 0.5] = IGNORED
    y[2] = y[3] = IGNORED
    return x, y


def by_itself(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], ignore_index=IGNORED)


def with_classes(model: Any, batch: Any) -> Any:
    weight = bb.asarray([1.0, 0.0, 3.0], backend=batch[0].backend)
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight, ignore_index=IGNORED)


def by_logarithms(model: Any, batch: Any) -> Any:
    logs = nn.functional.log_softmax(model(batch[0]))
    value = nn.functional.nll_loss(logs, batch[1], ignore_index=IGNORED)
    return value, {"one": (batch[0] * 0.0 + 1.0).mean()}


def weighed(model: Any, batch: Any) -> Any:
    """A manual mean over labels with its weight (NaN without labels), and a weighted metric."""
    kept = batch[1] != IGNORED
    losses = nn.functional.cross_entropy(model(batch[0]), batch[1], ignore_index=IGNORED, reduction="none")
    right = ((model(batch[0]).argmax(axis=-1) == batch[1]) & kept).astype("float32").sum()
    count = kept.astype("float32").sum()
    return (losses.sum() / count, count), {"right": (right / count, count)}


@pytest.mark.parametrize("loss_of", [by_itself, with_classes, by_logarithms, weighed])
@pytest.mark.parametrize(
    "options",
    [{}, {"clip": 0.5}, {"precision": "bfloat16"}, {"precision": "float16"}, {"on_nan": "skip"}, {"capture": True}],
    ids=str,
)
def test_means_over_labels_do_not_depend_on_the_batches(loss_of: Any, options: Any) -> None:
    x, y = tokens()
    with bb.use_backend("autodiff(capture(numpy))"), bb.random.fork(0):
        start = nn.Linear(4, 3)
    whole = train.evaluate(start, loss_of, [(x, y)])
    assert whole["loss"] == whole["loss"]
    rows = []
    for parts in (1, 2, 4, 6, 12):
        batches = [(x[i::parts][::-1], y[i::parts][::-1]) for i in range(parts)]
        assert train.evaluate(start, loss_of, batches) == pytest.approx(whole, rel=1e-5)
        with bb.use_backend("autodiff(capture(numpy))"):
            model = nn.Linear(4, 3)
        model.load_state_dict(start.state_dict())
        if options.get("precision") == "float16":
            options = {"precision": train.Precision("float16", scale=64.0)}
        run = train.Trainer(
            model, loss_of, batches, optimizer=optim.SGD(0.5), accumulate=parts, progress=False, **options
        ).fit(2)
        rows.append((run.history[0]["loss"], model.weight.numpy()))
        assert run.steps == 2
    digits = 1e-2 if "precision" in options else 1e-5
    for row in rows[1:]:
        assert row[0] == pytest.approx(rows[0][0], rel=digits)
        np.testing.assert_allclose(row[1], rows[0][1], rtol=digits, atol=digits)


def test_a_batch_without_labels_has_no_weight() -> None:
    x, y = tokens(4)
    model = nn.Linear(4, 3)
    before = model.weight.numpy()
    run = train.Trainer(model, by_itself, [(x[2:], y[2:])], optimizer=optim.SGD(0.5), progress=False).fit(1)
    assert math.isnan(run.history[0]["loss"])
    assert (model.weight.numpy() == before).all()
    run = train.Trainer(model, by_itself, [(x[2:], y[2:]), (x[:2], y[:2])], optimizer=optim.SGD(0.0), progress=False)
    assert run.fit(1).history[0]["loss"] == pytest.approx(by_itself(model, (bb.asarray(x[:2], dtype="float32"),
                                                                            bb.asarray(y[:2]))).item())  # fmt: skip


def test_metrics_have_weights_too() -> None:
    x, y = tokens()
    model = nn.Linear(4, 3)

    def accuracy(model: Any, batch: Any) -> Any:
        kept = batch[1] != IGNORED
        right = (model(batch[0]).argmax(axis=-1) == batch[1]) & kept
        return right.astype("float32").sum() / kept.astype("float32").sum(), kept.astype("int64").sum()

    parts = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    one, many = (train.evaluate(model, by_itself, data, metrics={"right": accuracy}) for data in ([(x, y)], parts))
    assert many == pytest.approx(one, rel=1e-5)


# ---- epochs without a step


@pytest.mark.parametrize("options", [{"on_nan": "skip"}, {"precision": train.Precision("float16", scale=2.0**40)}])
def test_an_epoch_with_only_skipped_steps(options: Any, tmp_path: Any) -> None:
    bad = [(np.full((2, 1), math.nan if "on_nan" in options else 300.0), np.zeros((2, 1)))] * 4
    good = [(np.ones((2, 1)), np.zeros((2, 1)))] * 40
    rate = optim.schedules.ReduceOnPlateau(1e-3)
    run = train.fit(
        linear(1.0), squares, lambda epoch: bad if epoch == 1 else good, optimizer=optim.SGD(rate), epochs=2,
        callbacks=[train.EarlyStopping("loss", patience=1), train.Checkpoints(best="loss")], progress=True,
        folder=tmp_path / "run", **options,
    )  # fmt: skip
    assert "loss" not in run.history[0]
    assert run.history[0]["skipped"] == 4
    assert run.history[1]["loss"] < 10.0
    assert (tmp_path / "run" / "best.safetensors").exists()
    assert rate.best == run.history[1]["loss"]
    assert run.stopped is None


# ---- compared with a manual loop ----


def test_an_epoch_equals_a_manual_loop() -> None:
    run = trainer(validation=None, average=None, optimizer=optim.AdamW(1e-2), callbacks=[])
    model, optimizer, random = network(), optim.AdamW(1e-2), bb.random.Generator(5)
    random.set_state(run.random.state())
    means = []
    for epoch in (1, 2):
        data = Batches()
        data.set_epoch(epoch)
        model.train()
        total = right = 0.0
        for batch in data:
            tensors = {"x": bb.asarray(batch["x"], dtype="float32"), "y": bb.asarray(batch["y"])}
            with bb.random.fork(random):
                value, further = loss(model, tensors)
                optimizer.step(model, value.backward())
            total += value.item() * len(batch["y"])
            right += further["accuracy"].item() * len(batch["y"])
        means.append((total / len(X), right / len(X)))
    run.fit(2)
    assert_same_parameters(run.model, model)
    found = [(row["loss"], row["accuracy"]) for row in run.history]
    np.testing.assert_allclose(found, means, rtol=1e-12)
    assert [(row["epoch"], row["step"], row["examples"]) for row in run.history] == [(1, 10, 160), (2, 20, 160)]
    assert not run.model.training
    assert run.history[-1]["lr"] == 1e-2
    assert run.history[-1]["seconds"] >= run.history[-1]["seconds/steps"] > 0


def test_means_are_weighted_by_batch_size() -> None:
    run = train.Trainer(linear(), squares, LINE, optimizer=optim.SGD(0.0), progress=False)
    assert run.fit(1).history[0]["loss"] == pytest.approx((4 + 16 + 36) / 3)
    assert run.evaluate(LINE) == {"loss": pytest.approx((4 + 16 + 36) / 3)}
    assert train.evaluate(run.model, squares, LINE) == run.evaluate(LINE)


def test_accumulated_steps_equal_one_large_batch() -> None:
    whole = [tuple(np.concatenate(parts) for parts in zip(*LINE, strict=True))]
    one = train.Trainer(linear(), squares, whole, optimizer=optim.SGD(0.1), progress=False).fit(3)
    two = train.Trainer(linear(), squares, LINE, optimizer=optim.SGD(0.1), accumulate=2, progress=False).fit(3)
    assert two.model.weight.item() == pytest.approx(one.model.weight.item(), rel=1e-6)
    assert (two.steps, one.steps) == (3, 3)
    assert two.history[-1]["loss"] == pytest.approx(one.history[-1]["loss"], rel=1e-6)


def test_remaining_accumulated_batches_are_a_step() -> None:
    diary = Diary()
    run = trainer(accumulate=4, callbacks=[diary]).fit(1)
    assert run.steps == 3
    assert [line[2] for line in diary.lines if line[0] == "step"] == [1, 2, 3]
    assert run.history[0]["examples"] == 160


def test_clipping_and_its_norm() -> None:
    run = train.Trainer(linear(), squares, LINE[1:], optimizer=optim.SGD(1.0), clip=0.5, progress=False).fit(1)
    assert run.model.weight.item() == pytest.approx(0.5)  # the gradient is -36
    assert run.history[0]["gradient_norm"] == pytest.approx(36.0)


def test_validation_uses_the_average() -> None:
    average = optim.Average(0.5)
    run = train.Trainer(
        linear(), squares, LINE, optimizer=optim.SGD(0.05), average=average, validation=LINE, progress=False
    ).fit(2)
    with average.applied(run.model):
        expected = train.evaluate(run.model, squares, LINE)
    assert run.history[-1]["validation/loss"] == expected["loss"] != train.evaluate(run.model, squares, LINE)["loss"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 2, "clip": 0.5},
        {"on_nan": "skip"},
        {"precision": "bfloat16"},
        {"precision": "float16", "clip": 1.0, "accumulate": 2},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_recorded_steps_are_bitwise_identical(options: dict[str, Any]) -> None:
    plain = trainer(**options).fit(3)
    recorded = trainer(spec="autodiff(capture(numpy, join=false))", **options).fit(3)
    assert recorded.not_replayed == ""
    assert_same_parameters(plain.model, recorded.model)
    assert [row["loss"] for row in plain.history] == [row["loss"] for row in recorded.history]
    assert [row["validation/accuracy"] for row in plain.history] == [
        row["validation/accuracy"] for row in recorded.history
    ]


def test_capture_options_and_reasons() -> None:
    spec = "autodiff(capture(numpy, join=false))"
    assert trainer(spec=spec, capture=False).fit(1).not_replayed is None
    assert trainer().fit(1).not_replayed is None

    def reads(model: Any, batch: Any) -> Any:
        value, further = loss(model, batch)
        return value * float(value.item() > -1.0), further

    quiet = train.Trainer(network(spec), reads, Batches(), optimizer=optim.SGD(0.1), progress=False).fit(1)
    assert "reads values on the host" in str(quiet.not_replayed)
    loud = train.Trainer(network(spec), reads, Batches(), optimizer=optim.SGD(0.1), capture=True, progress=False)
    with pytest.warns(bb.transforms.CaptureWarning, match="the step runs as it is"):
        loud.fit(1)


def test_step_and_run_epoch() -> None:
    run = trainer(clip=1.0)
    values = run.step({"x": X[:4], "y": Y[:4]})
    assert set(values) == {"loss", "accuracy", "gradient_norm"}
    assert all(x.shape == () for x in values.values())
    row = run.run_epoch()
    assert (row["epoch"], row["step"], run.epoch, run.steps) == (1, 11, 1, 11)
    assert run.history == [row]


def test_the_seed_determines_all_random_numbers() -> None:
    first, second, other = (trainer(seed=seed).fit(1) for seed in (1, 1, 2))
    assert_same_parameters(first.model, second.model)
    assert first.history[0]["loss"] == second.history[0]["loss"] != other.history[0]["loss"]
    losses = []
    for _ in range(2):
        bb.random.seed(11)
        losses.append(trainer(seed=None).fit(1).history[0]["loss"])
    assert losses[0] == losses[1]
    state = bb.random.get_state()
    trainer().fit(1)
    assert bb.random.get_state() == state


def test_host_floats_take_the_dtype_of_the_model() -> None:
    seen = []

    def watched(model: Any, batch: Any) -> Any:
        seen.append({key: x.dtype.name for key, x in batch.items() if hasattr(x, "dtype")})
        assert batch["name"] == "a"
        return model(batch["x"]).mean()

    batch = {"x": X[:2], "y": Y[:2], "f": 2.5, "n": 3, "u": np.zeros(2, np.uint8), "t": bb.asarray(X[:2]), "name": "a"}
    wide = nn.Linear(6, 1).astype("float64")
    for model, name in ((nn.Linear(6, 1), "float32"), (wide, "float64")):
        train.Trainer(model, watched, [batch], optimizer=optim.SGD(0.1), progress=False).fit(1)
        expected = {"x": name, "y": "int64", "f": name, "n": "int64", "u": "uint8", "t": "float64"}
        assert seen.pop() == expected


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, {"y": y}],
        lambda x, y: {"a": {"b": (x,)}, "y": y},
    ],
)
def test_a_batch_is_any_tree(wrap: Any) -> None:
    def first(model: Any, batch: Any) -> Any:
        leaves = bb.trees.flatten(batch)[0]
        return ((model(leaves[0]) - leaves[1]) ** 2.0).mean()

    data = [wrap(x, y) for x, y in LINE]
    run = train.Trainer(linear(), first, data, optimizer=optim.SGD(0.05), progress=False).fit(20)
    assert run.model.weight.item() == pytest.approx(2.0, abs=1e-2)
    assert run.history[0]["examples"] == 3


# ---- data ----


def test_data_are_given_the_epoch() -> None:
    told = []

    def batches(epoch: int) -> Any:
        told.append(epoch)
        return LINE

    train.Trainer(linear(), squares, batches, optimizer=optim.SGD(0.1), progress=False).fit(3)
    assert told == [1, 2, 3]
    data = Batches()
    trainer(data=data).fit(2)
    assert data.epoch == 2


def test_epochs_of_a_number_of_steps() -> None:
    endless = (LINE[0] for _ in iter(int, 1))
    run = train.Trainer(
        linear(), squares, endless, optimizer=optim.SGD(0.01), steps_per_epoch=5, accumulate=2, progress=False
    ).fit(3)
    assert [row["step"] for row in run.history] == [5, 10, 15]
    assert [row["examples"] for row in run.history] == [20, 20, 20]
    around = train.Trainer(linear(), squares, LINE, optimizer=optim.SGD(0.01), steps_per_epoch=3, progress=False).fit(2)
    assert [row["examples"] for row in around.history] == [5, 4]  # 2 + 1 + 2, then 1 + 2 + 1


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 3}])
def test_data_without_a_batch(options: Any) -> None:
    run = train.Trainer(linear(), squares, [], optimizer=optim.SGD(0.1), progress=False, **options)
    with pytest.raises(ArgumentError, match="the data, a list, have no batch in epoch 1"):
        run.fit(1)
    with pytest.raises(ArgumentError, match="the data, a list, have no batch"):
        run.evaluate([])


def test_data_with_a_wrong_length(capsys: Any) -> None:
    class Short(list[Any]):
        def __len__(self) -> int:
            return 5

    run = train.Trainer(linear(), squares, Short(LINE), optimizer=optim.SGD(0.1), progress=False).fit(3)
    assert run.steps == 6
    err = capsys.readouterr().err
    assert err == "note: the data, a Short, say that they have 5 batches, and epoch 1 had 2\n"


def test_data_that_end_early() -> None:
    once = iter(LINE)
    run = train.Trainer(linear(), squares, once, optimizer=optim.SGD(0.1), progress=False)
    with pytest.raises(ArgumentError, match="no batch left in epoch 2: a list_iterator can be iterated over only"):
        run.fit(2)
    assert len(run.history) == 1
    with pytest.raises(ArgumentError, match="once"):
        train.Trainer(linear(), squares, iter(LINE), optimizer=optim.SGD(0.1), steps_per_epoch=4, progress=False).fit(1)


# ---- callbacks ----


class Diary(train.Callback):
    """Records its calls."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def on_start(self, trainer: Any) -> None:
        self.lines.append("start")

    def on_step(self, trainer: Any, row: Any) -> None:
        self.lines.append(("step", row["epoch"], row["step"], float(row["loss"])))

    def on_log(self, trainer: Any, row: Any) -> None:
        self.lines.append(("log", row["step"], row["loss"], row["lr"]))

    def on_epoch(self, trainer: Any, row: Any) -> None:
        assert row is trainer.history[-1]
        self.lines.append(("epoch", row["epoch"]))

    def on_end(self, trainer: Any, error: Any) -> None:
        self.lines.append(("end", error))


def test_callbacks_get_all_events() -> None:
    diary = Diary()
    train.fit(
        linear(), squares, LINE, optimizer=optim.SGD(0.0), epochs=2, callbacks=[diary], log_every=2, progress=False
    )
    mean = (10.0 * 2 + 36.0) / 3
    assert diary.lines == [
        "start", ("step", 1, 1, 10.0), ("log", 2, pytest.approx(mean), 0.0), ("step", 1, 2, 36.0), ("epoch", 1),
        ("step", 2, 3, 10.0), ("log", 4, pytest.approx(mean), 0.0), ("step", 2, 4, 36.0), ("epoch", 2), ("end", None),
    ]  # fmt: skip


def test_early_stopping() -> None:
    for patience, epochs in ((2, 2), (1, 1), (0, 1)):
        stopping = train.EarlyStopping("loss", patience=patience)
        run = train.fit(
            linear(), squares, LINE, optimizer=optim.SGD(0.0), epochs=50, callbacks=[stopping], progress=False
        )
        assert run.epoch == 1 + epochs  # the best epoch, and those without improvement
        assert run.stopped == f"loss has not improved on {run.history[0]['loss']} in {epochs} epochs"
    best = train.EarlyStopping("accuracy", patience=0, mode="max", min_delta=0.1)
    assert [best.improves(x) for x in (0.5, 0.55, 0.61, math.nan, 0.9)] == [True, False, True, False, True]
    with pytest.raises(ArgumentError, match="EarlyStopping: the epochs have no 'validation/loss', as there are no val"):
        train.fit(
            linear(), squares, LINE, optimizer=optim.SGD(0.1), epochs=1, callbacks=[train.EarlyStopping()],
            metrics={}, progress=False, validation=None,
        )  # fmt: skip


def test_reduce_on_plateau_observes_automatically() -> None:
    rate = optim.schedules.ReduceOnPlateau(0.0, patience=0, factor=0.5)
    run = train.fit(linear(), squares, LINE, optimizer=optim.SGD(rate), epochs=3, progress=False)
    assert (rate.reductions, rate.best) == (2, run.history[0]["loss"])
    rate = optim.schedules.ReduceOnPlateau(1e-9, patience=0, factor=0.5)
    validated = train.fit(
        linear(), squares, LINE, optimizer=optim.SGD(rate), epochs=2, validation=LINE[:1], progress=False
    )
    assert rate.best == pytest.approx(validated.history[0]["validation/loss"])


def test_progress_is_a_line_per_epoch(capsys: Any) -> None:
    train.fit(linear(), squares, LINE, optimizer=optim.SGD(0.0), epochs=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" s")[0].rpartition("  ")[0] for line in lines] == [
        "epoch 1/2  loss 18.67  lr 0",
        "epoch 2/2  loss 18.67  lr 0",
    ]
    train.fit(linear(), squares, LINE, optimizer=optim.SGD(0.0), epochs=1)  # not a terminal
    assert capsys.readouterr().err == ""


# ---- nonfinite values ----


def spoiled(at: int, value: float = math.nan, count: int = 1) -> Any:
    """Forty batches, ``count`` of which, from ``at`` on, have the target ``value``."""
    return [(LINE[0][0], np.where(at <= i < at + count, value, LINE[0][1])) for i in range(40)]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({3: math.nan}, r"in batch 2 1: 1 of 2 elements are NaN, the first in row 1\. Leave such examples out"),
        ({1: math.inf, 3: math.nan}, r"in batch 1 1: 1 of 2 elements are NaN or infinite, the first in row 1"),
    ],
)
def test_errors_name_nonfinite_data(bad: dict[int, float], words: str) -> None:
    x, y = np.ones((6, 1), "float32"), np.ones((6, 1), "float32")
    for row, value in bad.items():
        y[row] = value
    data = bb.data.batches(x, y, batch_size=2)
    for given in (data, lambda epoch: iter(data)):
        with pytest.raises(NumericalInstabilityError, match=words) as caught:
            train.fit(linear(), squares, given, optimizer=optim.SGD(0.1), epochs=2, progress=False)
        assert "learning rate" not in str(caught.value)


def test_nonfinite_data_of_an_iterator_cannot_be_named() -> None:
    once = iter([(np.ones((2, 1), "float32"), np.full((2, 1), math.nan, "float32"))])
    with pytest.raises(NumericalInstabilityError, match="training has diverged"):
        train.fit(linear(), squares, once, optimizer=optim.SGD(0.1), epochs=1, progress=False)


def test_nan_stops_a_run() -> None:
    run = train.Trainer(linear(), squares, spoiled(7), optimizer=optim.SGD(0.01), progress=False)
    with pytest.raises(
        NumericalInstabilityError,
        match=r"the loss is nan in step 8, in epoch 1, and the data are not finite: in batch 8 1: 2 of 2 elements",
    ):
        run.fit(1)


def test_parameters_that_overflow_stop_a_run() -> None:
    huge = [(np.array([[1.0]]), np.array([[1e15]]))]
    run = train.Trainer(linear(), squares, huge, optimizer=optim.SGD(1e25), progress=False)
    with pytest.raises(NumericalInstabilityError, match="weight is not finite after step 1"):
        run.fit(1)


@pytest.mark.parametrize("spec", ["autodiff(numpy)", "autodiff(capture(numpy))"])
def test_nan_is_skipped(spec: str) -> None:
    model: Any
    with bb.use_backend(spec):
        model = nn.Sequential(nn.BatchNorm(1), linear())
    clean = [x for i, x in enumerate(spoiled(7)) if i != 7]
    twin = nn.Sequential(nn.BatchNorm(1), linear())
    run = train.Trainer(model, squares, spoiled(7), optimizer=optim.Adam(0.01), on_nan="skip", progress=False).fit(1)
    whole = train.Trainer(twin, squares, clean, optimizer=optim.Adam(0.01), on_nan="skip", progress=False).fit(1)
    assert run.history[0]["skipped"] == 1
    assert run.steps == 39
    assert model[0].num_batches_tracked.item() == 39
    for name, x in parameters_of(twin).items():
        np.testing.assert_allclose(parameters_of(model)[name], x, rtol=1e-5, err_msg=name)
    assert run.history[0]["loss"] == pytest.approx(whole.history[0]["loss"], rel=1e-5)


@pytest.mark.parametrize("lr", [0.01, optim.schedules.Cosine(0.01, 1000)])
def test_backing_off_halves_the_rate(lr: Any) -> None:
    run = train.Trainer(
        linear(), squares, spoiled(7, count=2), optimizer=optim.SGD(lr), on_nan="back_off", progress=False
    ).fit(1)
    assert run.history[0]["skipped"] == 2
    full = lr if isinstance(lr, float) else lr(38)
    assert run.history[0]["lr"] == pytest.approx(full / 4)


def test_too_many_skipped_steps_in_a_row_end_a_run() -> None:
    data = spoiled(0, count=40) * 2
    run = train.Trainer(linear(), squares, data, optimizer=optim.SGD(0.1), on_nan="skip", progress=False)
    with pytest.raises(NumericalInstabilityError, match="gradients were not finite in 50 steps in a row"):
        run.fit(1)


# ---- wrong input ----


def test_errors_describe_the_batch() -> None:
    run = trainer()
    with pytest.raises(ShapeError) as caught:
        run.step({"x": X[:4, :5], "y": Y[:4]})
    note = "In step 1, with the batch x: float32[4,5], y: int64[4]."
    assert note in caught.value.__notes__
    with pytest.raises(KeyError) as missing:
        run.step({"z": X[:4], "y": Y[:4]})
    assert "In step 1, with the batch z: float32[4,6], y: int64[4]." in missing.value.__notes__
    with pytest.raises(DTypeError, match="data of type <U1 have no dtype here") as texts:
        run.step({"x": X[:4], "y": Y[:4], "name": np.array([*"abcd"])})
    assert texts.value.__notes__ == ["In step 1, with the batch x: float64[4,6], y: int64[4], name: <U1[4]."]
    with pytest.raises(DTypeError) as texts:
        run.evaluate([{"x": X[:4], "y": np.array([*"abcd"])}])
    assert texts.value.__notes__ == ["In an evaluation, with the batch x: float64[4,6], y: <U1[4]."]
    with pytest.raises(ShapeError) as measured:
        run.evaluate([{"x": X[:4, :5], "y": Y[:4]}])
    assert "In an evaluation, with the batch x: float32[4,5], y: int64[4]." in measured.value.__notes__
    run.fit(1)  # the trainer still works


def test_errors_of_user_functions_keep_their_traceback() -> None:
    class Mine(Exception):
        pass

    def raises(model: Any, batch: Any) -> Any:
        raise Mine("of my own")

    diary = Diary()
    run = train.Trainer(linear(), raises, LINE, optimizer=optim.SGD(0.1), callbacks=[diary], progress=False)
    with pytest.raises(Mine, match="of my own") as caught:
        run.fit(1)
    assert traceback.extract_tb(caught.tb)[-1].name == "raises"
    assert diary.lines == ["start", ("end", caught.value)]


@pytest.mark.parametrize(
    ("returned", "kind", "words"),
    [
        (lambda m, b: 3.0, DTypeError, "loss: returns a 0-d float tensor, not 3.0"),
        (lambda m, b: None, DTypeError, "loss: returns a 0-d float tensor, not None"),
        (lambda m, b: m(b[0]), ShapeError, r"loss: returns a scalar, and this is float32\[2,1\] .*: take its mean"),
        (lambda m, b: (m(b[0]).mean(), 3.0), DTypeError, "a pair of a scalar and a dict of scalars by name"),
        (lambda m, b: (m(b[0]).mean(), b[0]), ShapeError, "loss: 'weight' is a scalar, and this is"),
        (lambda m, b: (m(b[0]).mean(), {}, b[0]), DTypeError, "or of a scalar and its weight, a 0-d tensor"),
        (lambda m, b: (m(b[0]).mean(), {"a": 3.0}), DTypeError, "loss: 'a' is a 0-d tensor, not 3.0; bb.asarray"),
        (lambda m, b: (m(b[0]).mean(), {"a": b[0]}), ShapeError, "loss: 'a' is a scalar, and this is"),
        (lambda m, b: (m(b[0]).mean(), {"loss": b[0].mean()}), DTypeError, "give the further value another name"),
    ],
)
def test_invalid_results_of_a_loss(returned: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        train.Trainer(linear(), returned, LINE, optimizer=optim.SGD(0.1), progress=False).fit(1)


def test_metrics_are_scalars() -> None:
    run = train.Trainer(
        linear(), squares, LINE, optimizer=optim.SGD(0.1), validation=LINE, metrics={"a": lambda m, b: b[0]}
    )
    with pytest.raises(ShapeError, match="metrics: 'a' is a scalar"):
        run.evaluate()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"data": X}, ArgumentError, "data is an iterable of batches, not one array: bb.data.batches"),
        ({"data": {"x": X}}, ArgumentError, "data is an iterable of batches, .* not dict; bb.data.batches"),
        ({"data": 3}, ArgumentError, "data is an iterable of batches"),
        ({"validation": "x"}, ArgumentError, "validation is an iterable of batches"),
        ({"optimizer": optim.SGD}, ArgumentError, "optimizer is one of bb.optim"),
        ({"optimizer": 0.1}, ArgumentError, "optimizer is one of bb.optim"),
        ({"metrics": [loss]}, ArgumentError, "metrics are functions of the model and a batch by name"),
        ({"metrics": {"loss": loss}}, ArgumentError, "'loss' is the name of the loss: give the metric another name"),
        ({"callbacks": train.EarlyStopping()}, ArgumentError, "callbacks are a list"),
        ({"callbacks": [train.EarlyStopping]}, ArgumentError, "pass an object, not the class"),
        ({"accumulate": 0}, ArgumentError, "accumulate"),
        ({"clip": 0.0}, ArgumentError, "clip"),
        ({"precision": "float64"}, ArgumentError, "dtype"),
        ({"on_nan": "ignore"}, ArgumentError, "on_nan"),
        ({"steps_per_epoch": 0}, ArgumentError, "steps_per_epoch"),
        ({"log_every": 1.5}, ArgumentError, "log_every"),
        ({"seed": -1}, ArgumentError, "seed"),
        ({"progress": 3}, ArgumentError, "progress"),
        ({"capture": 3}, ArgumentError, "capture"),
        ({"model": {"a": 3}}, ArgumentError, "the model, of type dict, has no float tensors to train"),
        ({"model": nn.Linear(6, 2).freeze()}, GraphError, "no parameter of the model requires a gradient"),
        ({"model": nn.Linear(6, 2).to("numpy")}, GraphError, "the model is on numpy, which has no gradients"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments(options: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        trainer(**options)


def test_wrong_names_of_arguments_have_hints() -> None:
    with pytest.raises(TypeError, match=r"fit.*epoch.*epochs"):
        train.fit(linear(), squares, LINE, optimizer=optim.SGD(0.1), epoch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Trainer"):
        train.Trainer(linear(), squares, LINE, optimiser=optim.SGD(0.1))  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="epochs"):
        train.Trainer(linear(), squares, LINE, optimizer=optim.SGD(0.1)).fit(0)
    with pytest.raises(ArgumentError, match="evaluate: takes data"):
        train.Trainer(linear(), squares, LINE, optimizer=optim.SGD(0.1)).evaluate()


def test_losses_with_gradients_can_be_evaluated() -> None:
    """A physics-informed loss differentiates with respect to its inputs, also during evaluation."""

    def residual(model: Any, batch: Any) -> Any:
        slope = bb.grad(lambda t: model(t).sum())(batch)
        return ((slope - 3.0) ** 2.0).mean()

    run = train.Trainer(
        linear(), residual, [X[:8, :1]], optimizer=optim.Adam(0.1), validation=[X[:8, :1]], progress=False
    ).fit(100)
    assert run.model.weight.item() == pytest.approx(3.0, abs=0.05)
    assert run.history[-1]["validation/loss"] < 0.01


def test_predictions() -> None:
    model = network()
    found = train.predict(model, [X[:5].astype(np.float32), X[5:7]])
    expected = model.eval()(bb.asarray(X[:7].astype(np.float32)))
    assert found.shape == (7, 2)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    with pytest.raises(ArgumentError, match="predict: the data, a list, have no batch"):
        train.predict(model, [])


def test_the_helper_network_has_the_expected_shape() -> None:
    assert training.network().state_dict()["0.weight"].shape == (16, 6)
