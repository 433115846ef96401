"""Averages of parameters: the formulas in float64, modes, buffers, recorded steps, resuming, and invalid input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, DTypeError, GraphError, ShapeError
from backburn.io import load_state, save_state
from backburn.nn.functional import cross_entropy

SERIES = [1.0, 2.0, 4.0, 8.0, 3.0]


def leaf(value: Any, dtype: str = "float64") -> Any:
    return bb.asarray(np.asarray(value, dtype)).require_grad()


def mean_of(model: Any, average: optim.Average, name: str = "w") -> float:
    with average.applied(model):
        return model[name].item()


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99, 1.0])
def test_the_exponential_mean(decay: float) -> None:
    average, expected = optim.Average(decay), SERIES[0]
    for value in SERIES:
        expected = expected * decay + value * (1.0 - decay)
        average.update({"w": leaf(value)})
    assert mean_of({"w": leaf(0.0)}, average) == pytest.approx(expected, rel=1e-14)
    assert average.updates == len(SERIES)


def test_equal_weights_give_the_mean() -> None:
    average = optim.Average(None)
    for value in SERIES:
        average.update({"w": leaf(value)})
    assert mean_of({"w": leaf(0.0)}, average) == pytest.approx(np.mean(SERIES), rel=1e-14)


def test_warmup_forgets_the_first_parameters() -> None:
    average, expected = optim.Average(0.3, warmup=True), SERIES[0]
    for n, value in enumerate(SERIES):
        decay = min(0.3, (1 + n) / (10 + n))
        expected = expected * decay + value * (1.0 - decay)
        average.update({"w": leaf(value)})
    assert mean_of({"w": leaf(0.0)}, average) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_parameters_are_averaged_in_float32(dtype: str) -> None:
    average = optim.Average(0.999)
    model = {"w": bb.asarray([1.0], dtype=dtype).require_grad()}
    average.update(model)
    for _ in range(100):  # each change is below the resolution of 16-bit floats at 1
        average.update({"w": bb.asarray([1.25], dtype=dtype).require_grad()})
    (state,) = (x for x in average.state_dict().values() if not isinstance(x, int))
    assert state.dtype is bb.float32
    assert state.item() == pytest.approx(1.25 - 0.25 * 0.999**100, rel=1e-5)
    average.copy_to(model)
    assert model["w"].dtype.name == dtype
    assert model["w"].is_require_grad


class Net(nn.Module):
    """A model with parameters, tied ones, buffers and computed tensors."""

    def __init__(self) -> None:
        self.layers: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm(6), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(6, 3)
        self.tied: Any = self.head.bias
        self.table = bb.arange(3)
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        self.hidden = self.layers(x)
        return self.head(self.hidden) + self.tied


def train_one(model: Any, optimizer: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bb.random.seed(seed)  # for dropout
    x, y = bb.asarray(rng.normal(size=(8, 4)).astype("float32")), bb.asarray(rng.integers(0, 3, 8))
    optimizer.step(model, cross_entropy(model(x), y).backward())


def test_averages_ignore_modes_computed_tensors_and_buffers() -> None:
    model, optimizer, average = Net(), optim.Adam(0.1), optim.Average(0.9)
    expected: dict[str, Any] = {}
    for n in range(4):
        train_one(model.train(), optimizer, n)
        average.update(model.eval() if n % 2 else model)
        for path, x in model.named_parameters():
            value = x.numpy().astype("float64")
            expected[path] = value if n == 0 else 0.9 * expected[path] + 0.1 * value
    assert {name for name in average.state_dict() if name != "updates"} == {f"{path}.mean" for path in expected}
    own = model.state_dict()
    with average.applied(model.eval()) as same:
        assert same is model
        assert model.tied is model.head.bias, "tied parameters stay tied"
        for path, x in model.named_parameters():
            np.testing.assert_allclose(x.numpy(), expected[path], rtol=1e-5, atol=1e-7)
            assert x.is_require_grad
        for path, buffer in model.named_buffers():
            assert (buffer == own[path]).all()
    assert all((x == own[path]).all() for path, x in model.state_dict().items())


def test_float_buffers_are_averaged_on_request_and_integers_never() -> None:
    model, optimizer, average = Net(), optim.SGD(0.1), optim.Average(None, use_buffers=True)
    means = []
    for n in range(3):
        train_one(model, optimizer, n)
        average.update(model)
        means.append(model.layers[1].running_mean.numpy())
    model.hidden = None
    averaged = average.copy_to(copy.deepcopy(model))
    np.testing.assert_allclose(averaged.layers[1].running_mean.numpy(), np.mean(means, axis=0), rtol=1e-5, atol=1e-8)
    assert not averaged.layers[1].running_mean.is_require_grad
    assert averaged.layers[1].num_batches_tracked.item() == 3
    assert averaged.table.tolist() == [0, 1, 2]


def test_frozen_parameters_are_kept_without_a_copy() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).freeze("0")
    average = optim.Average(0.5)
    frozen = model[0].weight
    for _ in range(3):
        average.update(model)
        optim.SGD(0.1).step(model, model(bb.ones((1, 2))).sum().backward())
    assert average.state_tensors()["0.weight"].primitive is frozen.inner().primitive
    with average.applied(model):
        assert not model[0].weight.is_require_grad
        assert model[1].weight.is_require_grad


def test_parameters_are_restored_after_an_error_and_in_nested_use() -> None:
    first, second = optim.Average(), optim.Average()
    model = {"w": leaf(1.0)}
    first.update(model)
    second.update({"w": leaf(2.0)})
    own = model["w"]
    found = []

    def fails() -> None:
        with first.applied(model), second.applied(model):
            found.append(model["w"].item())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    assert found == [2.0]
    assert model["w"] is own


@pytest.mark.parametrize("options", [{"decay": 0.9}, {"decay": None}, {"decay": 0.9, "warmup": True}])
@pytest.mark.parametrize("backend", ["autodiff(capture(numpy))", "autodiff(capture(numpy, join=false))"])
def test_replays_update_an_average_like_plain_steps(backend: str, options: dict[str, Any]) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer, average = state
        loss = cross_entropy(model(x), y)
        optimizer.step(model, loss.backward())
        average.update(model)
        return state, loss

    def trained(run: Any, where: str) -> tuple[Any, optim.Average]:
        with bb.use_backend(where):
            bb.random.seed(0)
            model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 3))
            state = (model, optim.Adam(0.05), optim.Average(**options))
            rng = np.random.default_rng(0)
            for _ in range(6):
                x = bb.asarray(rng.normal(size=(8, 64)).astype("float32"))
                state, _ = run(state, x, bb.asarray(rng.integers(0, 3, 8)))
        return state[0], state[2]

    captured = bb.capture(step, on_fallback="error")
    model, average = trained(captured, backend)
    assert repr(captured) == "<captured step: replayed>"
    plain, expected = trained(step, "autodiff(numpy)")
    assert average.updates == expected.updates == 6
    bound = 0.0 if "join=false" in backend else 1e-4  # joined programs use other kernels, for example for tanh
    for path, x in expected.state_tensors().items():
        np.testing.assert_allclose(average.state_tensors()[path].numpy(), x.numpy(), bound, bound)
    kept = {path: x.numpy().copy() for path, x in average.state_dict().items() if not isinstance(x, int)}
    with average.applied(model):
        np.testing.assert_array_equal(model[0].weight.numpy(), kept["0.weight.mean"])
    np.testing.assert_allclose(model[0].weight.numpy(), plain[0].weight.numpy(), bound, bound)


def test_a_change_of_options_is_recorded_again() -> None:
    def step(state: Any, x: Any) -> Any:
        state[1].update(state[0])
        return (({"w": (state[0]["w"].detach() + x).require_grad()}), state[1]), x.sum()

    with bb.use_backend("autodiff(capture(numpy))"):
        run, average = bb.capture(step, on_fallback="error"), optim.Average(0.5)
        state: Any = ({"w": bb.asarray(0.0).require_grad()}, average)
        values = []
        for n in range(6):
            if n == 4:
                average.decay = 0.0
            state, _ = run(state, bb.asarray(1.0))
            values.append(average.state_tensors()["w"].item())
    assert values == [0.0, 0.5, 1.25, 2.125, 4.0, 5.0]


def test_an_average_survives_replays_that_overwrite_the_state() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        optimizer.step(model, cross_entropy(model(x), y).backward())
        return state, x.sum()

    with bb.use_backend("autodiff(capture(numpy))"):
        run, model, average = bb.capture(step), nn.Linear(4, 3), optim.Average(None)
        state: Any = (model, optim.Adam(0.1))
        weights = []
        for n in range(8):
            state, _ = run(state, bb.random.normal((5, 4)), bb.asarray([0, 1, 2, n % 3, 1]))
            average.update(model)
            weights.append(model.weight.numpy().astype("float64"))
    np.testing.assert_allclose(average.state_tensors()["weight"].numpy(), np.mean(weights, axis=0), rtol=1e-5)


@pytest.mark.parametrize("options", [{"decay": 0.9}, {"decay": None, "use_buffers": True}])
def test_a_resumed_average_is_bitwise_identical(tmp_path: Path, options: dict[str, Any]) -> None:
    def run(model: Any, optimizer: Any, average: Any, steps: range) -> None:
        for n in steps:
            train_one(model, optimizer, n)
            average.update(model)

    def fresh() -> tuple[Any, Any, Any]:
        bb.random.seed(1)
        return Net(), optim.Adam(0.05), optim.Average(**options)

    whole, first, second = fresh(), fresh(), fresh()
    run(*whole, range(6))
    run(*first, range(3))
    save_state(tmp_path / "run", [x.state_dict() for x in first])
    for part, state in zip(second, load_state(tmp_path / "run"), strict=True):
        part.load_state_dict(state)
    run(*second, range(3, 6))
    expected, found = whole[2].state_dict(), second[2].state_dict()
    assert expected.pop("updates") == found.pop("updates") == 6
    assert expected.keys() == found.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), x.numpy())


def test_models_of_several_parts_and_other_trees() -> None:
    tree = {"nets": [nn.Linear(2, 1), nn.BatchNorm(3)], "scale": leaf(2.0)}
    average = optim.Average()
    average.update(tree)
    assert sorted(average.state_tensors()) == [
        "nets.0.bias", "nets.0.weight", "nets.1.bias", "nets.1.weight", "scale",
    ]  # fmt: skip


def test_a_mean_moves_to_the_backend_of_the_model() -> None:
    model = nn.Linear(2, 1)
    average = optim.Average(0.5)
    average.update(model)
    plain = model.to("numpy")
    average.update(plain)
    assert (average.copy_to(plain).weight == model.weight.detach().to("numpy")).all()


def test_bad_input_changes_nothing() -> None:
    average, model = optim.Average(), {"w": leaf([1.0, 2.0])}
    with pytest.raises(ArgumentError, match=r"copy_to: there is no mean yet: call update\(model\)"):
        average.copy_to(model)
    with pytest.raises(ArgumentError, match="there is no mean yet"), average.applied(model):
        pass
    with pytest.raises(ArgumentError, match="update: the dict has no parameters"):
        average.update({"n": bb.arange(3)})
    average.update(model)
    with pytest.raises(ArgumentError, match="an average belongs to one model, and 'v' is in the model but"):
        average.update({"v": leaf([1.0, 2.0])})
    with pytest.raises(ArgumentError, match=r"'layer' is in the model but not in the average\. Known: w\.$"):
        average.update({"layer": leaf([1.0, 2.0]), "x": leaf([1.0, 2.0])})
    with pytest.raises(ArgumentError, match=r"'v' is in the model but not in the average\.$"):
        average.update({"v": leaf([1.0, 2.0]), "w": leaf([1.0, 2.0])})
    with pytest.raises(ShapeError, match="the mean of w is"):
        average.update({"w": leaf([1.0])})
    with pytest.raises(DTypeError, match="the mean of w is"):
        average.copy_to({"w": leaf([1.0, 2.0], "float32")})

    def within(m: Any) -> Any:
        average.update(m)
        return m["w"].sum()

    with pytest.raises(GraphError, match="update it outside"):
        bb.grad(within)(model)
    assert average.updates == 1
    for decay in (-0.1, 1.1, "0.9", float("nan")):
        with pytest.raises((ArgumentError, DTypeError), match="decay"):
            optim.Average(decay)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="warmup limits the decay"):
        optim.Average(None, warmup=True)
    with pytest.raises(AttributeError, match="decay"):
        average.decai = 0.5
    state = average.state_dict()
    for wrong, words in [
        ({**state, "w": leaf(1.0)}, "unexpected"),
        ({"w.mean": leaf(1.0)}, "missing"),
        ({"updates": 2}, "2 updates do not give 0 means"),
        ({**state, "updates": -1}, "updates do not give"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            optim.Average().load_state_dict(wrong)
    for wrong in ({**state, "updates": 1.5}, {**state, "w.mean": bb.arange(2)}, {**state, "w.mean": [1.0]}):
        with pytest.raises(DTypeError, match="load_state_dict"):
            optim.Average().load_state_dict(wrong)
