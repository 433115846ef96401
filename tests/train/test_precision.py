"""Precision: casts, loss scaling, and float32 master weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.errors import ArgumentError


def model_of() -> Any:
    with bb.random.fork(1):
        return nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm(8), nn.Linear(8, 3))


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch["ids"]), batch["y"])


BATCH: dict[str, Any] = {
    "ids": bb.asarray(np.arange(24).reshape(12, 2) % 7),
    "y": bb.asarray(np.arange(12) % 3),
    "f": bb.asarray(np.linspace(0.0, 1.0, 12, dtype=np.float32)),
    "name": "a",
}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_floats_of_parameters_and_batches_are_cast(name: str) -> None:
    precision, model = train.Precision(name), model_of()
    narrow = precision.cast(model)
    assert (narrow is model) == (name == "float32")
    assert {x.dtype.name for _, x in narrow.named_parameters()} == {name}
    assert {key: x.dtype.name for key, x in narrow.named_buffers()} == {
        "3.running_mean": "float32", "3.running_var": "float32", "3.num_batches_tracked": "int64",
    }  # fmt: skip
    batch = precision.cast(BATCH)
    assert {k: x.dtype.name for k, x in batch.items() if k != "name"} == {"ids": "int64", "y": "int64", "f": name}
    assert batch["name"] == "a"


def test_quantized_weights_are_not_cast() -> None:
    model = bb.quantization.quantize_model(nn.Sequential(nn.Linear(32, 4)), "qint8_symmetric_tensor_float32")
    narrow = train.Precision("bfloat16").cast(model)
    assert narrow.state_dict()["0.weight"].dtype is model.state_dict()["0.weight"].dtype


def test_shared_parameters_stay_shared() -> None:
    layer = nn.Linear(2, 2)
    narrow: Any = train.Precision("float16").cast(nn.Sequential(layer, layer))
    assert narrow[0].weight is narrow[1].weight


@pytest.mark.parametrize(("name", "rtol"), [("float32", 1e-6), ("bfloat16", 0.1), ("float16", 0.02)])
def test_gradients_are_close_to_those_of_float32(name: str, rtol: float) -> None:
    precision, model, twin = train.Precision(name), model_of(), model_of()
    value, gradients = precision.value_and_gradients(loss, model, BATCH)
    expected = loss(twin, BATCH)
    exact = optim.named_gradients(twin, expected.backward())
    assert value.dtype is bb.float32
    assert value.item() == pytest.approx(expected.item(), rel=rtol)
    assert gradients.keys() == exact.keys()
    scale = optim.global_norm(exact, norm_type=math.inf).item()  # per parameter it may be only rounding error
    for path, g in gradients.items():
        assert g.dtype is bb.float32, path
        np.testing.assert_allclose(g.numpy(), exact[path].numpy(), atol=rtol * scale, err_msg=path)
    for (path, x), (_, y) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), atol=rtol, err_msg=path)
    assert dict(model.named_buffers())["3.num_batches_tracked"].item() == 1
    assert {x.dtype.name for x in model.parameters()} == {"float32"}


def test_loss_scaling_preserves_small_gradients() -> None:
    def tiny(model: Any, x: Any) -> Any:
        return (model["w"] * x).sum() * 1e-4

    x = bb.asarray([1e-4, 1.0])  # gradients 1e-8, which underflows in float16, and 1e-4
    for scale, survives in ((1.0, False), (2.0**15, True)):
        model = {"w": bb.asarray([1.0, 1.0]).require_grad()}
        _, gradients = train.Precision("float16", scale=scale).value_and_gradients(tiny, model, x)
        assert (gradients["w"].numpy()[0] > 0) == survives
        assert gradients["w"].numpy()[1] == pytest.approx(1e-4, rel=1e-2)


def test_the_scale_backs_off_and_grows() -> None:
    precision = train.Precision("float16", scale=8.0, growth_interval=3)
    good, bad = ({"w": bb.asarray([x])} for x in (1.0, math.inf))
    scales = []
    for gradients in (good, bad, good, good, good, good, bad, {"w": bb.asarray([math.nan])}):
        accepted = precision.accepts(gradients)
        assert accepted == (gradients is good)
        scales.append(precision.scale)
    assert scales == [8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 4.0, 2.0]
    assert precision.state_dict() == {"scale": 2.0, "accepted": 0}
    other = train.Precision("float16")
    other.load_state_dict({"scale": 4.0, "accepted": 2})
    assert other.state_dict() == {"scale": 4.0, "accepted": 2}
    always = train.Precision("bfloat16")
    assert always.accepts(bad)
    assert always.scale == 1.0


def test_steps_that_overflow_are_skipped_in_a_run() -> None:
    def large(model: Any, batch: Any) -> Any:
        return (model(batch) ** 2.0).mean()

    model = nn.Linear(4, 4)
    x = np.full((8, 4), 30.0, np.float32)
    precision = train.Precision("float16", scale=2.0**24)
    run = train.fit(model, large, [x] * 30, optimizer=optim.SGD(1e-5), epochs=1, precision=precision, progress=False)
    row = run.history[0]
    assert row["skipped"] > 0
    assert row["step"] == 30 - row["skipped"] == run.optimizer.steps
    assert row["loss_scale"] == 2.0 ** (24 - row["skipped"])
    assert {p.dtype.name for p in model.parameters()} == {"float32"}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("spec", ["autodiff(numpy)", "autodiff(capture(numpy))"])
def test_training_in_16_bits_learns(name: str, spec: str) -> None:
    with bb.use_backend(spec):
        model = model_of()
    batch = {"ids": BATCH["ids"].numpy(), "y": BATCH["y"].numpy()}
    run = train.fit(model, loss, [batch] * 20, optimizer=optim.Adam(0.02), epochs=4, precision=name, progress=False)
    exact = train.fit(model_of(), loss, [batch] * 20, optimizer=optim.Adam(0.02), epochs=4, progress=False)
    assert run.history[-1]["loss"] < 0.8 * run.history[0]["loss"]
    assert run.history[-1]["loss"] == pytest.approx(exact.history[-1]["loss"], rel=0.02)


def test_options() -> None:
    for wrong, words in (
        ({"dtype": "float64"}, "Precision: dtype"),
        ({"dtype": "bfloat16", "scale": 2.0}, "takes no scale; float16 does"),
        ({"dtype": "float16", "scale": 0.0}, "Precision: scale"),
        ({"dtype": "float16", "backoff": 1.0}, "Precision: backoff"),
        ({"dtype": "float16", "growth_interval": 0}, "Precision: growth_interval"),
    ):
        with pytest.raises(ArgumentError, match=words):
            train.Precision(**wrong)
    with pytest.raises(ArgumentError, match="the state of a Precision has scale and accepted"):
        train.Precision().load_state_dict({"scale": 1.0})
    assert (repr(train.Precision()), repr(train.Precision("float16"))) == (
        "Precision('float32')", "Precision('float16', scale=32768)",
    )  # fmt: skip
    assert train.Precision(bb.bfloat16).dtype is bb.bfloat16
