"""Optimizers except SGD and Adam, parameter groups, schedules: against their formulas and PyTorch."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, GraphError, ShapeError
from backburn.optim import (
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Groups,
    Lion,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    schedules,
)  # fmt: skip

Array = Any
RNG = np.random.default_rng(3)
A, B = RNG.normal(size=(6, 4)), RNG.normal(size=6)
X, Y = RNG.normal(size=4), RNG.normal(size=6)


def start() -> dict[str, Any]:
    return {"x": bb.asarray(X).require_grad(), "y": bb.asarray(Y).require_grad()}


def loss(model: Any, a: Any, b: Any) -> Any:
    return ((a @ model["x"] - b + model["y"]) ** 2.0).sum() + (model["y"] ** 4.0).sum()


def steps(optimizer: Any, count: int) -> dict[str, Any]:
    model = start()
    for _ in range(count):
        optimizer.step(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())
    return model


def gradients(x: Array, y: Array) -> list[Array]:
    residual = A @ x - B + y
    return [2 * A.T @ residual, 2 * residual + 4 * y**3]


def rmsprop(x: Array, g: Array, state: Any, lr: float, alpha: float, eps: float, decay: float, mu: float) -> Array:
    """Second moments with the mean subtracted."""
    g = g + decay * x
    state["square"] = alpha * state.get("square", 0.0) + (1 - alpha) * g**2
    state["mean"] = alpha * state.get("mean", 0.0) + (1 - alpha) * g
    velocity = g / (np.sqrt(state["square"] - state["mean"] ** 2) + eps)
    state["velocity"] = mu * state.get("velocity", 0.0) + velocity
    return x - lr * state["velocity"]


def test_rmsprop_follows_its_formula() -> None:
    states: list[dict[str, Any]] = [{}, {}]
    expected = [X, Y]
    for _ in range(7):
        pairs = zip(expected, gradients(*expected), states, strict=True)
        expected = [rmsprop(x, g, s, 0.05, 0.9, 1e-3, 0.1, 0.8) for x, g, s in pairs]
    model = steps(RMSprop(0.05, 0.9, 1e-3, 0.1, 0.8, centered=True), 7)
    for got, reference in zip(model.values(), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), reference, rtol=1e-11)


def test_adagrad_follows_its_formula() -> None:
    expected, sums = [X, Y], [0.0, 0.0]
    for _ in range(7):
        decayed = [g + 0.1 * x for x, g in zip(expected, gradients(*expected), strict=True)]
        sums = [s + g**2 for s, g in zip(sums, decayed, strict=True)]
        expected = [x - 0.2 * g / (np.sqrt(s) + 1e-10) for x, g, s in zip(expected, decayed, sums, strict=True)]
    for got, reference in zip(steps(Adagrad(0.2, weight_decay=0.1), 7).values(), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), reference, rtol=1e-11)


@pytest.mark.parametrize("history", [1, 3])
def test_lbfgs_uses_the_inverse_hessian_of_its_last_moves(history: int) -> None:
    """Nocedal and Wright, (7.16) to (7.20), with matrices."""
    at = np.concatenate([X, Y])
    pairs: list[tuple[Array, Array]] = []
    before = None
    for _ in range(8):
        g = np.concatenate(gradients(at[:4], at[4:]))
        inverse = np.eye(10) * min(1.0, 1.0 / np.abs(g).sum())
        if before is not None:
            pairs = [*pairs, (at - before[0], g - before[1])][-history:]
            s, y = pairs[-1]
            inverse = np.eye(10) * (s @ y) / (y @ y)
            for s, y in pairs:
                v = np.eye(10) - np.outer(y, s) / (s @ y)
                inverse = v.T @ inverse @ v + np.outer(s, s) / (s @ y)
        before = at, g
        at = at - 0.8 * inverse @ g
    model = steps(LBFGS(0.8, history_size=history), 8)
    np.testing.assert_allclose(np.concatenate([x.numpy() for x in model.values()]), at, rtol=1e-9)


MAKERS: list[Any] = [
    pytest.param(lambda: RMSprop(), "RMSprop", {}, id="rmsprop"),
    pytest.param(
        lambda: RMSprop(0.05, 0.9, 1e-3, 0.1, 0.9), "RMSprop",
        {"lr": 0.05, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.9}, id="rmsprop-momentum",
    ),
    pytest.param(lambda: Adagrad(), "Adagrad", {}, id="adagrad"),
    pytest.param(
        lambda: Adagrad(0.2, 0.1, 0.1, 0.5, 1e-3), "Adagrad",
        {"lr": 0.2, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
        id="adagrad-options",
    ),
    pytest.param(
        lambda: LBFGS(history_size=4), "LBFGS",
        {"max_iter": 1, "history_size": 4, "tolerance_grad": 0, "tolerance_change": 0}, id="lbfgs",
    ),
    pytest.param(
        lambda: Adam(0.2, (0.5, 0.6), weight_decay=0.1, amsgrad=True), "Adam",
        {"lr": 0.2, "betas": (0.5, 0.6), "weight_decay": 0.1, "amsgrad": True}, id="amsgrad",
    ),
    pytest.param(
        lambda: AdamW(0.2, (0.5, 0.6), amsgrad=True), "AdamW",
        {"lr": 0.2, "betas": (0.5, 0.6), "amsgrad": True}, id="amsgrad-decoupled",
    ),
    pytest.param(
        lambda: AdamW(0.2, (0.5, 0.6), weight_decay=0.0, cautious=True), "AdamW",
        {"lr": 0.2, "betas": (0.5, 0.6), "weight_decay": 0.0}, id="cautious",
    ),
    pytest.param(lambda: Adadelta(), "Adadelta", {}, id="adadelta"),
    pytest.param(
        lambda: Adadelta(0.5, 0.8, 1e-3, 0.1), "Adadelta",
        {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}, id="adadelta-options",
    ),
    pytest.param(lambda: Adafactor(eps=(1e-7, 1e-3)), "Adafactor", {"eps": (1e-7, 1e-3)}, id="adafactor"),
    pytest.param(
        lambda: Adafactor(0.3, -0.5, (1e-3, 2.0), 1.5, 0.1), "Adafactor",
        {"lr": 0.3, "beta2_decay": -0.5, "eps": (1e-3, 2.0), "d": 1.5, "weight_decay": 0.1}, id="adafactor-options",
    ),
    pytest.param(lambda: Adamax(), "Adamax", {}, id="adamax"),
    pytest.param(
        lambda: Adamax(0.1, (0.5, 0.6), 1e-2, 0.1), "Adamax",
        {"lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-2, "weight_decay": 0.1}, id="adamax-options",
    ),
    pytest.param(lambda: NAdam(), "NAdam", {}, id="nadam"),
    *(
        pytest.param(
            lambda flag=flag: NAdam(0.1, (0.5, 0.6), 1e-2, 0.1, 0.5, flag), "NAdam",
            {"lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-2, "weight_decay": 0.1, "momentum_decay": 0.5,
             "decoupled_weight_decay": flag}, id=f"nadam-options-{flag}",
        )
        for flag in (False, True)
    ),
    pytest.param(lambda: RAdam(), "RAdam", {}, id="radam"),
    *(
        pytest.param(
            lambda flag=flag, beta2=beta2: RAdam(0.01, (0.5, beta2), 1e-2, 0.1, flag), "RAdam",
            {"lr": 0.01, "betas": (0.5, beta2), "eps": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": flag},
            id=f"radam-options-{beta2}-{flag}",
        )
        for flag, beta2 in ((False, 0.9), (True, 0.9), (True, 0.6))
    ),
]  # fmt: skip


@pytest.fixture
def torch() -> Any:
    """PyTorch with float64 as its default dtype, which NAdam uses for products of numbers."""
    module = pytest.importorskip("torch")
    before = module.get_default_dtype()
    module.set_default_dtype(module.float64)
    yield module
    module.set_default_dtype(before)


@pytest.mark.parametrize(("make", "name", "options"), MAKERS)
def test_steps_are_those_of_pytorch(torch: Any, make: Any, name: str, options: dict[str, Any]) -> None:
    """Steps of each optimizer, from the same start."""
    theirs = {"x": torch.tensor(X, requires_grad=True), "y": torch.tensor(Y, requires_grad=True)}
    optimizer = getattr(torch.optim, name)(theirs.values(), **options)
    ours, model = make(), start()

    def closure() -> Any:
        optimizer.zero_grad()
        value = loss(theirs, torch.tensor(A), torch.tensor(B))
        value.backward()
        return value

    for _ in range(15):
        optimizer.step(closure)
        ours.step(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())
        for path, reference in theirs.items():
            np.testing.assert_allclose(model[path].numpy(), reference.detach().numpy(), rtol=1e-9)
            assert abs(model[path].numpy()).max() < 10.0


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5), ("float16", 2e-3)])
@pytest.mark.parametrize(("make", "name", "options"), [m for m in MAKERS if m.id != "lbfgs"])
def test_steps_of_many_elements_are_those_of_pytorch(
    torch: Any, make: Any, name: str, options: dict[str, Any], dtype: str, tolerance: float
) -> None:
    """Backends may compute steps of many elements in one pass."""
    generator = np.random.default_rng(1)
    first = generator.normal(size=(70, 200)).astype(dtype)
    theirs = torch.tensor(first.astype("float64"), requires_grad=True)
    optimizer = getattr(torch.optim, name)([theirs], **options)
    ours, model = make(), {"x": bb.asarray(first).require_grad()}
    for _ in range(8):
        slope = generator.normal(size=first.shape).astype(dtype)
        theirs.grad = torch.tensor(slope.astype("float64"))
        optimizer.step()
        ours.step(model, {"x": bb.asarray(slope)})
    assert str(model["x"].dtype) == dtype
    error = abs(model["x"].numpy().astype("float64") - theirs.detach().numpy())
    assert error.max() <= tolerance * abs(theirs.detach().numpy()).max()


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (5, 3, 4), (2, 1, 3, 3)])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_adafactor_is_that_of_pytorch_for_any_number_of_axes(torch: Any, shape: Any, scale: float) -> None:
    """The default epsilon comes from the dtype, also where squared gradients are below it."""
    generator = np.random.default_rng(4)
    first = generator.normal(size=shape)
    theirs, model = torch.tensor(first, requires_grad=True), {"x": bb.asarray(first).require_grad()}
    optimizer, ours = torch.optim.Adafactor([theirs], 0.2), Adafactor(0.2)
    for _ in range(6):
        slope = scale * generator.normal(size=shape)
        theirs.grad = torch.tensor(slope)
        optimizer.step()
        ours.step(model, {"x": bb.asarray(slope)})
        np.testing.assert_allclose(model["x"].numpy(), theirs.detach().numpy(), rtol=1e-11)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 6), (70, 90)])
@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.5, "nesterov": False, "ns_steps": 3, "eps": 10.0},
     {"adjust_lr_fn": "match_rms_adamw", "ns_coefficients": (2.0, -1.5, 0.5)}],
)  # fmt: skip
def test_muon_is_that_of_pytorch(
    torch: Any, shape: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would round the matrices to bfloat16, which the patch prevents."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    generator = np.random.default_rng(4)
    first = generator.normal(size=shape)
    theirs, model = torch.tensor(first, requires_grad=True), {"x": bb.asarray(first).require_grad()}
    optimizer, ours = torch.optim.Muon([theirs], **options), Muon(**options)
    for _ in range(6):
        slope = generator.normal(size=shape)
        theirs.grad = torch.tensor(slope)
        optimizer.step()
        ours.step(model, {"x": bb.asarray(slope)})
        np.testing.assert_allclose(model["x"].numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float16", 5e-3)])
def test_muon_equalizes_singular_values(dtype: str, tolerance: float) -> None:
    """Singular values of the gradient, from 1 to 200, become nearly equal."""
    u, _, v = np.linalg.svd(np.random.default_rng(4).normal(size=(8, 20)), full_matrices=False)
    slope = ((u * np.geomspace(200.0, 1.0, 8)) @ v).astype(dtype)
    model = {"x": bb.zeros((8, 20), dtype=dtype).require_grad()}
    Muon(1.0, 0.0, 0.0).step(model, {"x": bb.asarray(slope)})
    assert str(model["x"].dtype) == dtype
    parts = -(u.T @ model["x"].numpy().astype("float64") @ v.T)
    assert np.diag(parts).min() > 0.3
    assert np.diag(parts).max() < 1.3
    np.testing.assert_allclose(parts - np.diag(np.diag(parts)), 0.0, atol=tolerance)


def test_muon_needs_matrices() -> None:
    model: Any = nn.Linear(3, 2)
    before = model.bias, model.weight
    slopes = model(bb.ones((1, 3))).sum().backward()
    optimizer = Muon()
    with pytest.raises(ShapeError, match=r"step: Muon is for matrices, and 'bias' has shape \[2\]: .* Groups\("):
        optimizer.step(model, slopes)
    assert (model.bias, model.weight) == before
    assert optimizer.steps == 0
    groups = Groups({"weight": Muon(), "*": Adafactor()})
    groups.step(model, slopes)
    assert set(groups.state_dict()) == {"0.steps", "0.weight.step", "0.weight.m", "1.steps", "1.bias.step",
                                        "1.bias.rows", "1.bias.columns"}  # fmt: skip
    empty = {"x": bb.zeros((0, 3)).require_grad()}
    for kind in (Muon, Adafactor):
        kind().step(empty, {"x": bb.zeros((0, 3))})
    assert empty["x"].shape == (0, 3)


@pytest.mark.parametrize("name", ["Adadelta", "Adamax", "NAdam", "RAdam"])
def test_groups_of_parameters_are_those_of_pytorch(torch: Any, name: str) -> None:
    options: dict[str, dict[str, Any]] = {"x": {"lr": 0.02, "weight_decay": 0.2}, "y": {"lr": 0.01, "eps": 1e-3}}
    theirs = {"x": torch.tensor(X, requires_grad=True), "y": torch.tensor(Y, requires_grad=True)}
    optimizer = getattr(torch.optim, name)([{"params": [theirs[path]], **options[path]} for path in theirs])
    groups = Groups({path: getattr(optim, name)(**options[path]) for path in options})
    model = start()
    for step in range(8):
        optimizer.zero_grad()
        loss(theirs, torch.tensor(A), torch.tensor(B)).backward()
        named = optim.named_gradients(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())
        if step == 3:  # from here on one parameter is a step behind
            theirs["y"].grad = None
            del named["y"]
        optimizer.step()
        groups.step(model, named)
        for path, reference in theirs.items():
            np.testing.assert_allclose(model[path].numpy(), reference.detach().numpy(), rtol=1e-9)


def lion(x: Array, g: Array, state: Any, lr: float, beta1: float, beta2: float, decay: float) -> Array:
    """One step of the program in the paper."""
    update = np.sign(beta1 * state["m"] + (1 - beta1) * g)
    state["m"] = beta2 * state["m"] + (1 - beta2) * g
    return x - lr * (update + decay * x)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", [(3, 5), (90, 100)])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lion_follows_its_program(decay: float, shape: Any, dtype: str, tolerance: float) -> None:
    generator = np.random.default_rng(2)
    expected = generator.normal(size=shape).astype(dtype).astype("float64")
    state, rate = {"m": np.zeros(shape)}, schedules.Linear(0.1, 0.01, 5)
    ours, model = Lion(rate, (0.5, 0.75), decay), {"x": bb.asarray(expected.astype(dtype)).require_grad()}
    for step in range(8):
        slope = generator.normal(size=shape).astype(dtype)
        slope[0, 0] = 0.0  # its sign is 0
        expected = lion(expected, slope, state, rate(step), 0.5, 0.75, decay)
        ours.step(model, {"x": bb.asarray(slope)})
        np.testing.assert_allclose(model["x"].numpy(), expected, rtol=tolerance, atol=tolerance)


def adan(x: Array, g: Array, state: Any, lr: float, decay: float, proximal: bool) -> Array:
    """Algorithm 1 of the paper with its bias correction, for the decays (0.5, 0.75, 0.9)."""
    state["step"] += 1
    change = g - state["before"] if state["step"] > 1 else 0 * g
    state["m"] = 0.5 * state["m"] + 0.5 * g
    state["n"] = 0.75 * state["n"] + 0.25 * change
    state["v"] = 0.9 * state["v"] + 0.1 * (g + 0.75 * change) ** 2
    state["before"] = g
    m, n, v = (state[name] / (1 - beta ** state["step"]) for name, beta in (("m", 0.5), ("n", 0.75), ("v", 0.9)))
    move = lr * (m + 0.75 * n) / (np.sqrt(v) + 1e-3)
    return (x - move) / (1 + lr * decay) if proximal else x * (1 - lr * decay) - move


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", [(3, 5), (90, 100)])
@pytest.mark.parametrize(("decay", "proximal"), [(0.0, True), (0.3, True), (0.3, False)])
def test_adan_follows_its_algorithm(decay: float, proximal: bool, shape: Any, dtype: str, tolerance: float) -> None:
    generator = np.random.default_rng(3)
    expected = generator.normal(size=shape).astype(dtype).astype("float64")
    state: dict[str, Any] = {"step": 0, "m": 0.0, "n": 0.0, "v": 0.0}
    rate = schedules.Linear(0.1, 0.01, 5)
    ours = optim.Adan(rate, (0.5, 0.75, 0.9), 1e-3, decay, proximal)
    model = {"x": bb.asarray(expected.astype(dtype)).require_grad()}
    for step in range(8):
        slope = generator.normal(size=shape).astype(dtype)
        expected = adan(expected, slope.astype("float64"), state, rate(step), decay, proximal)
        ours.step(model, {"x": bb.asarray(slope)})
        np.testing.assert_allclose(model["x"].numpy(), expected, rtol=tolerance, atol=tolerance)


LION = pytest.param(lambda: Lion(0.01, weight_decay=0.1), "Lion", {}, id="lion")
ADAN = pytest.param(lambda: optim.Adan(0.01, weight_decay=0.1), "Adan", {}, id="adan")


@pytest.mark.parametrize(("make", "name", "options"), [*MAKERS, LION, ADAN])
def test_training_continues_from_saved_states_and_copies(make: Any, name: str, options: dict[str, Any]) -> None:
    def go(optimizer: Any, model: Any) -> None:
        for _ in range(3):
            optimizer.step(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())

    first, model = make(), start()
    go(first, model)
    again, copied, twin = make(), copy.deepcopy(first), dict(model)
    again.load_state_dict(first.state_dict())
    third = dict(model)
    for optimizer, m in ((first, model), (again, twin), (copied, third)):
        go(optimizer, m)
    for path, x in model.items():
        np.testing.assert_array_equal(twin[path].numpy(), x.numpy())
        np.testing.assert_array_equal(third[path].numpy(), x.numpy())
    assert repr(first).startswith(f"{name}(lr=")


def test_amsgrad_keeps_the_largest_second_moment() -> None:
    """After one large gradient steps stay small, while those of plain Adam grow again."""
    moved = {}
    for peaks in (False, True):
        optimizer, model = Adam(0.1, (0.0, 0.5), amsgrad=peaks), {"x": bb.asarray([0.0]).require_grad()}
        for gradient in (100.0, *[1.0] * 20):
            before = model["x"].item()
            optimizer.step(model, {"x": bb.asarray([gradient])})
        moved[peaks] = before - model["x"].item()
    assert moved[False] == pytest.approx(0.1, rel=0.05)
    assert moved[True] < 0.003
    half = {"x": bb.asarray([1.0], dtype="float16").require_grad()}
    Adam(0.5, amsgrad=True).step(half, {"x": bb.asarray([3.0], dtype="float16")})
    assert half["x"].dtype is bb.float16
    assert half["x"].tolist() == [0.5]


def test_cautious_decay_skips_elements_that_the_update_moves_away_from_zero() -> None:
    """At the first step the update has the sign of the gradient."""
    values, g = [2.0, -2.0, 2.0, -2.0, 0.0], [1.0, 1.0, -1.0, -1.0, 1.0]
    for dtype in ("float32", "float16"):
        model = {"x": bb.asarray(values, dtype=dtype).require_grad()}
        optimizer = AdamW(0.5, weight_decay=0.5, cautious=True)
        optimizer.step(model, {"x": bb.asarray(g, dtype=dtype)})
        assert model["x"].tolist() == [1.0, -2.5, 2.5, -1.0, -0.5]
    optimizer.cautious = False
    optimizer.step(model, {"x": bb.zeros((5,), dtype="float16")})
    assert abs(model["x"].tolist()[1]) < 2.5
    with pytest.raises(ArgumentError, match="AdamW: cautious is True or False, not 1"):
        optimizer.cautious = 1  # type: ignore[assignment]


def test_lbfgs_skips_moves_without_curvature() -> None:
    """The gradient of a linear function does not change; a zero gradient moves nothing."""
    for scale, expected in ((1.0, -4.0), (0.0, 0.0)):
        model = {"x": bb.zeros((4,), dtype="float64").require_grad()}
        optimizer = LBFGS()
        for _ in range(4):
            optimizer.step(model, (model["x"].sum() * scale).backward())
        assert model["x"].sum().item() == pytest.approx(expected)


def test_lbfgs_is_bitwise_identical_for_any_layout_of_gradients() -> None:
    """A resumed run, whose state is contiguous, must equal an uninterrupted one."""
    generator, found = np.random.default_rng(0), []
    slopes = [generator.normal(size=(40, 30)).astype("float32") for _ in range(4)]
    for transposed in (False, True):
        model, optimizer = {"x": bb.zeros((40, 30)).require_grad()}, LBFGS(0.1)
        for slope in slopes:
            gradient = bb.asarray(slope.T).T if transposed else bb.asarray(slope)
            optimizer.step(model, {"x": gradient})
        found.append(model["x"].numpy())
    np.testing.assert_array_equal(*found)


def rosenbrock(model: Any) -> Any:
    x = model["x"]
    return (100.0 * (x[1:] - x[:-1] ** 2.0) ** 2.0 + (1.0 - x[:-1]) ** 2.0).sum()


@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-18), ("float32", 1e-8)])
def test_lbfgs_with_a_function_finds_the_minimum(dtype: str, least: float) -> None:
    """Each step satisfies the Wolfe conditions, from the classical start in a curved valley."""
    model, optimizer = {"x": bb.asarray([-1.2, 1.0, -1.2, 1.0], dtype=dtype).require_grad()}, LBFGS()
    for _ in range(80):
        before, value = model["x"].numpy(), rosenbrock(model).item()
        slope = optim.named_gradients(model, rosenbrock(model).backward())["x"].numpy()
        optimizer.step(model, rosenbrock)
        move, left = model["x"].numpy() - before, rosenbrock(model).item()
        after = optim.named_gradients(model, rosenbrock(model).backward())["x"].numpy()
        if dtype == "float64" and value > 1e-9:
            assert left <= value + 0.99e-4 * (slope @ move)
            assert after @ move >= 0.91 * (slope @ move)
    assert rosenbrock(model).item() < least
    assert optimizer.steps == 80


def test_lbfgs_takes_several_steps_at_once() -> None:
    """Steps in one call equal single steps, without recomputing the loss at the start of each."""
    start = [-1.2, 1.0, -1.2, 1.0]
    models = [{"x": bb.asarray(start, dtype="float64").require_grad()} for _ in range(2)]
    optimizers = LBFGS(history_size=3), LBFGS(history_size=3)
    calls = [0, 0]

    def counted(number: int) -> Any:
        def loss(model: Any) -> Any:
            calls[number] += 1
            return rosenbrock(model)

        return loss

    values = [optimizers[0].step(models[0], counted(0)) for _ in range(12)]
    assert optimizers[1].step(models[1], counted(1), steps=12) == values[0]
    np.testing.assert_array_equal(models[0]["x"].numpy(), models[1]["x"].numpy())
    assert calls[1] == calls[0] - 11
    assert optimizers[1].steps == 12
    for path, value in optimizers[0].state_dict().items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(optimizers[1].state_dict()[path]))
    rises = bb.custom_vjp(lambda x: (x * x).sum())
    rises.define(lambda x: ((x * x).sum(), x), lambda x, g: (-2.0 * x * g,))
    before = optimizers[1].steps
    optimizers[1].step(models[1], lambda model: rises(model["x"]), steps=9)
    assert optimizers[1].steps == before + 1
    with pytest.raises(ArgumentError, match=r"^LBFGS.step: 2 steps take a function of the model"):
        optimizers[1].step(models[1], {"x": models[1]["x"]}, steps=2)
    with pytest.raises(ArgumentError, match=r"^LBFGS.step: steps is an integer of at least 1, not 0"):
        optimizers[1].step(models[1], rosenbrock, steps=0)


def test_lbfgs_is_unchanged_if_a_function_raises_in_the_line_search() -> None:
    """Its history is unchanged too, so the next step is as if nothing had failed."""
    models = [{"x": bb.asarray([-1.2, 1.0, -1.2, 1.0], dtype="float64").require_grad()} for _ in range(2)]
    first, second = LBFGS(history_size=3), LBFGS(history_size=3)
    for count in range(12):
        calls: list[int] = []

        def fails(model: Any, calls: list[int] = calls) -> Any:
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return rosenbrock(model)

        before = models[0]["x"]
        with pytest.raises(KeyboardInterrupt):
            first.step(models[0], fails)
        assert models[0]["x"] is before
        assert first.steps == count
        for optimizer, model in ((first, models[0]), (second, models[1])):
            optimizer.step(model, rosenbrock)
        np.testing.assert_array_equal(models[0]["x"].numpy(), models[1]["x"].numpy())
    states = first.state_dict(), second.state_dict()
    assert list(states[0]) == list(states[1])
    for path, value in states[0].items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(states[1][path]))


def test_lbfgs_does_not_move_if_a_function_does_not_decrease() -> None:
    """A function with a wrong gradient, or one that raises; the next step starts from scratch."""
    model, optimizer = {"x": bb.asarray([1.0, 2.0]).require_grad()}, LBFGS()
    rises = bb.custom_vjp(lambda x: (x * x).sum())
    rises.define(lambda x: ((x * x).sum(), x), lambda x, g: (-2.0 * x * g,))
    optimizer.step(model, lambda model: rises(model["x"]))
    assert model["x"].tolist() == [1.0, 2.0]
    calls: list[Any] = []

    def fails(model: Any) -> Any:
        calls.append(model["x"].tolist())
        if len(calls) > 1:
            raise ZeroDivisionError
        return (model["x"] ** 2.0).sum()

    with pytest.raises(ZeroDivisionError):
        optimizer.step(model, fails)
    assert calls[1] != [1.0, 2.0]
    assert model["x"].tolist() == [1.0, 2.0]
    assert model["x"].is_require_grad
    for _ in range(3):
        optimizer.step(model, lambda model: (model["x"] ** 2.0).sum())
    assert abs(model["x"].numpy()).max() < 1e-6
    with pytest.raises(ArgumentError, match=r"^LBFGS.step: the function returns .* a float scalar, not float32\[2\]"):
        optimizer.step(model, lambda model: model["x"])


def test_bad_options() -> None:
    wrong: Any = 1.5
    untyped: Any = schedules
    cases: list[tuple[Any, str]] = [
        (lambda: RMSprop(alpha=1.0), "RMSprop: alpha is a number of at least 0 and below 1, not 1.0"),
        (lambda: RMSprop(0.1, eps=-1.0), "RMSprop: eps"),
        (lambda: Adagrad(-1.0), "Adagrad: lr"),
        (lambda: Adadelta(rho=1.0), "Adadelta: rho is a number of at least 0 and below 1, not 1.0"),
        (lambda: Adamax(betas=(0.9, 1.0)), r"Adamax: betas\[1\] is a number of at least 0 and below 1, not 1.0"),
        (lambda: NAdam(momentum_decay=-1.0), "NAdam: momentum_decay is a (finite )?number of at least 0"),
        (lambda: RAdam(decoupled_weight_decay=wrong), "RAdam: decoupled_weight_decay"),
        (lambda: Lion(betas=wrong), "Lion: betas are two numbers, not 1.5"),
        (lambda: Lion(weight_decay=-1.0), "Lion: weight_decay"),
        (lambda: optim.Adan(betas=wrong), "Adan: betas are three numbers, not 1.5"),
        (lambda: optim.Adan(betas=(0.1, 0.2, 1.0)), r"Adan: betas\[2\] is a number of at least 0 and below 1, not 1.0"),
        (lambda: optim.Adan(proximal=wrong), "Adan: proximal"),
        (lambda: Adafactor(beta2_decay=0.5), "Adafactor: beta2_decay"),
        (lambda: Adafactor(d=0.5), "Adafactor: d is a finite number of at least 1, not 0.5"),
        (lambda: Adafactor(eps=wrong), "Adafactor: eps is two numbers, the first of which may be None, not 1.5"),
        (lambda: Adafactor(eps=(None, -1.0)), r"Adafactor: eps\[1\] is a finite number of at least 0, not -1.0"),
        (lambda: Muon(momentum=1.0), "Muon: momentum"),
        (lambda: Muon(ns_steps=wrong), "Muon: ns_steps is an integer of at least 0, not 1.5"),
        (lambda: Muon(ns_coefficients=wrong), "Muon: ns_coefficients are three numbers, not 1.5"),
        (lambda: Muon(adjust_lr_fn="none"), "Muon: adjust_lr_fn is one of 'original', 'match_rms_adamw', not 'none'"),
        (lambda: LBFGS(history_size=0), "LBFGS: history_size is an integer of at least 1, not 0"),
        (lambda: LBFGS(history_size=wrong), "LBFGS: history_size is an integer"),
        (lambda: Groups(wrong), r"Groups: takes optimizers by pattern"),
        (lambda: Groups({"*": wrong}), r"Groups: takes optimizers by pattern"),
        (lambda: schedules.Cosine(0.1, 0), "Cosine: T_max is an integer of at least 1, not 0"),
        (lambda: schedules.Cosine(0.1, wrong), "Cosine: T_max is an integer"),
        (lambda: schedules.Step(0.1, 3, -0.5), "Step: gamma"),
        (lambda: schedules.OneCycle(0.1, 10, pct_start=1.0), "OneCycle: pct_start"),
        (lambda: schedules.OneCycle(0.1, 10, div_factor=0.0), "OneCycle: div_factor"),
        (lambda: schedules.Warmup(3, -1.0), "Warmup: after"),
        (lambda: schedules.ReduceOnPlateau(-1.0), "ReduceOnPlateau: lr"),
        (lambda: schedules.ReduceOnPlateau(0.1, factor=1.0), "Plateau: factor is a number of at least 0 and below 1"),
        (lambda: schedules.ReduceOnPlateau(0.1, patience=-1), "Plateau: patience is an integer of at least 0, not -1"),
        (lambda: schedules.ReduceOnPlateau(0.1, mode="best"), "Plateau: mode is one of 'min', 'max', not 'best'"),
        (lambda: schedules.ReduceOnPlateau(0.1).observe("low"), "Plateau: a metric is a number, not 'low'"),
        (lambda: schedules.ReduceOnPlateau(0.1).load_state_dict({"best": 1.0}), "the state of a ReduceOnPlateau has"),
        (lambda: schedules.ReduceOnPlateau(0.1).load_state_dict(HUGE), "has more than 64 bits"),
        (lambda: optim.Adam(0.1).load_state_dict({"steps": 10**5000}), "steps has more than 64 bits"),
        (lambda: optim.Average(0.9).load_state_dict({"updates": 10**5000}), "updates has more than 64 bits"),
        (lambda: schedules.Polynomial(0.1, 10, power=-1.0), "Polynomial: power"),
        (lambda: schedules.CosineWarmRestarts(0.1, 10, T_mult=wrong), "Restarts: T_mult is an integer of at least 1"),
        (lambda: schedules.Cosine(untyped.Warmup(3, 0.1), 10), "Cosine: lr is a number, not Warmup"),
        (lambda: untyped.Step(np.float32, 3, 0.5), "Step: lr is a number"),
        (lambda: schedules.MultiStep(0.1, wrong), "MultiStep: milestones are numbers of steps, such as .*, not 1.5"),
        (lambda: schedules.MultiStep(0.1, (3, -1)), r"MultiStep: milestones\[1\] is an integer of at least 0, not -1"),
    ]
    for make, words in cases:
        with pytest.raises(ArgumentError, match=words):
            make()
    with pytest.raises(ArgumentError, match="clip_grad_value: clip_value is a number above 0, not 0"):
        optim.clip_grad_value({"a": bb.ones(2)}, 0)


# ---- groups ----


def network() -> Any:
    bb.random.seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_groups_step_as_their_optimizers_alone_would() -> None:
    x = bb.random.normal((8, 3))
    make = {"0": lambda: AdamW(0.1), "*.bias": lambda: SGD(0.5), "*": lambda: SGD(0.1, 0.9, weight_decay=0.1)}
    model, whole = network(), Groups({pattern: f() for pattern, f in make.items()})
    alone, parts = network(), [f() for f in make.values()]
    choices = [["0.weight", "0.bias"], ["2.bias"], ["2.weight"]]
    for _ in range(4):
        whole.step(model, (model(x) ** 2.0).sum().backward())
        named = optim.named_gradients(alone, (alone(x) ** 2.0).sum().backward())
        for optimizer, paths in zip(parts, choices, strict=True):
            optimizer.step(alone, {path: named[path] for path in paths})
    for (_, got), (_, reference) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        np.testing.assert_array_equal(got.numpy(), reference.numpy())
    assert repr(whole).startswith("Groups({'0': AdamW(")


def test_groups_traverse_a_model_once() -> None:
    """One walk serves all groups; another follows after outside changes or new patterns."""
    model, groups = start(), Groups({"x": SGD(0.1), "y": SGD(0.2)})
    walked: list[Any] = []
    for changes in range(4):
        if changes == 2:
            model["x"] = model["x"].detach().require_grad()
        if changes == 3:
            groups.optimizers = {"y": SGD(0.2), "*": SGD(0.1)}
        groups.step(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())
        walked.append(groups._tree)
        assert {id(o._tree) for o in groups.optimizers.values()} == {id(walked[-1])}
    assert [a is b for a, b in pairwise(walked)] == [True, False, False]
    expected = start()
    for _ in range(4):
        found = optim.named_gradients(expected, loss(expected, bb.asarray(A), bb.asarray(B)).backward())
        SGD(0.1).step(expected, {"x": found["x"]})
        SGD(0.2).step(expected, {"y": found["y"]})
    for path, x in expected.items():
        np.testing.assert_array_equal(model[path].numpy(), x.numpy())


def test_groups_resume_from_a_saved_state() -> None:
    x = bb.random.normal((8, 3))
    make = lambda: Groups({"*.bias": SGD(0.1, 0.9), "*": AdamW(0.1)})
    model, first = network(), make()
    first.step(model, (model(x) ** 2.0).sum().backward())
    twin, second = copy.deepcopy(model), make()
    second.load_state_dict(pickle.loads(pickle.dumps({k: v.numpy() if isinstance(v, bb.Tensor) else v
                                                     for k, v in first.state_dict().items()})))  # fmt: skip
    for m, optimizer in ((model, first), (twin, second)):
        optimizer.step(m, (m(x) ** 2.0).sum().backward())
    for (_, got), (_, reference) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        np.testing.assert_array_equal(got.numpy(), reference.numpy())
    with pytest.raises(ArgumentError, match=r"'2\.steps' is not in the state of 2 groups"):
        first.load_state_dict({"2.steps": 1})


def test_groups_name_a_parameter_without_a_group() -> None:
    model = network()
    optimizer = Groups({"*.weight": SGD(0.1)})
    with pytest.raises(ArgumentError, match=r"""step: no pattern matches the parameter '0.bias': '\*.weight'. "\*" """):
        optimizer.step(model, model(bb.ones((1, 3))).sum().backward())
    with pytest.raises(GraphError, match="step: none of the 4 float tensors of the model has a gradient"):
        optimizer.step(model, network()(bb.ones((1, 3))).sum().backward())
    model.freeze("*.bias")
    optimizer.step(model, model(bb.ones((1, 3))).sum().backward())


def test_groups_in_a_captured_step() -> None:
    x, model, twin = bb.random.normal((8, 3)), network(), network()
    make = lambda: Groups({"*.bias": SGD(0.1, 0.9), "*": AdamW(schedules.Cosine(0.1, 10))})

    @bb.capture
    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        value = (model(x) ** 2.0).sum()
        optimizer.step(model, value.backward())
        return state, value

    state, optimizer = (model, make()), make()
    for _ in range(4):
        state, _ = step(state, x)
        optimizer.step(twin, (twin(x) ** 2.0).sum().backward())
    for (_, got), (_, reference) in zip(state[0].named_parameters(), twin.named_parameters(), strict=True):
        np.testing.assert_allclose(got.numpy(), reference.numpy(), rtol=1e-6)


# ---- schedules and clipping ----


def test_schedules_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    kinds = torch.optim.lr_scheduler
    for ours, make in (
        (schedules.Cosine(0.5, 20, eta_min=0.1), lambda o: kinds.CosineAnnealingLR(o, 20, 0.1)),
        (schedules.Step(0.5, 4, 0.3), lambda o: kinds.StepLR(o, 4, 0.3)),
        (schedules.Exponential(0.5, 0.9), lambda o: kinds.ExponentialLR(o, 0.9)),
        (schedules.Linear(0.05, 0.5, 5), lambda o: kinds.LinearLR(o, 0.1, 1.0, 5)),
        (schedules.Polynomial(0.5, 15, 2.5), lambda o: kinds.PolynomialLR(o, 15, 2.5)),
        (schedules.CosineWarmRestarts(0.5, 4, eta_min=0.1), lambda o: kinds.CosineAnnealingWarmRestarts(o, 4, 1, 0.1)),
        (schedules.CosineWarmRestarts(0.5, 3, 2), lambda o: kinds.CosineAnnealingWarmRestarts(o, 3, 2)),
        (schedules.MultiStep(0.5, (2, 3, 11), 0.3), lambda o: kinds.MultiStepLR(o, [2, 3, 11], 0.3)),
    ):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler = make(optimizer)
        for step in range(20):
            assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"]), (ours, step)
            optimizer.step()
            scheduler.step()


#: A count beyond the range of floats, for which ``**`` raises OverflowError.
HUGE = {"best": None, "failures": 0, "waits": 0, "reductions": 10**400}


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize(("patience", "cooldown", "end"), [(0, 0, 0.0), (0, 2, 0.01), (1, 0, 0.01), (3, 2, 0.0)])
@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_a_plateau_is_that_of_pytorch(
    mode: str, threshold_mode: str, patience: int, cooldown: int, end: float, threshold: float
) -> None:
    """Metrics are above 0: for negative ones PyTorch applies the threshold in the wrong direction."""
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    metrics = generator.uniform(1.0, 3.0, 60) / (1 + np.arange(60) / 10)
    metrics[[7, 20]], metrics[33] = np.nan, np.inf
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode, 0.3, patience, threshold, threshold_mode, cooldown, end, eps=0.0
    )
    options: Any = 0.5, mode, 0.3, patience, threshold, threshold_mode, cooldown, end
    ours, reductions = schedules.ReduceOnPlateau(*options), 0
    for i, metric in enumerate(metrics):
        scheduler.step(metric)
        before = ours(i)
        reduced = ours.observe(metric if i % 2 else bb.asarray(metric))
        assert ours(i) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert reduced or ours(i) == before
        reductions += reduced
        resumed = schedules.ReduceOnPlateau(*options)
        resumed.load_state_dict(pickle.loads(pickle.dumps(ours.state_dict())))
        ours = resumed
    assert reductions == ours.reductions > 2


def test_a_plateau_of_negative_metrics_over_another_schedule() -> None:
    rate = schedules.ReduceOnPlateau(schedules.Warmup(4, 1.0), factor=0.5, patience=0, threshold=0.1, min_lr=0.5)
    assert [rate.observe(x) for x in (-1.0, -1.05, -1.2)] == [False, True, False]
    assert [rate(n) for n in (0, 1, 3, 9)] == [0.25, 0.5, 0.5, 0.5]
    optimizer, model = SGD(rate), {"x": bb.asarray(1.0).require_grad()}
    rate.observe(0.0)
    optimizer.step(model, (model["x"] * 1.0).backward())
    assert model["x"].item() == 0.75
    with pytest.raises(ArgumentError, match="best is a number"):
        rate.load_state_dict({**rate.state_dict(), "best": "low"})
    assert rate.best == -1.2


def test_one_cycle_rises_and_falls() -> None:
    rate = schedules.OneCycle(2.0, 100, pct_start=0.25, div_factor=10.0, final_div_factor=100.0)
    rates = [rate(n) for n in range(120)]
    assert (rates[0], rates[25], rates[100], rates[119]) == pytest.approx((0.2, 2.0, 0.002, 0.002))
    assert rates[:26] == sorted(rates[:26])
    assert rates[25:] == sorted(rates[25:], reverse=True)
    assert schedules.OneCycle(2.0, 10, pct_start=0.0)(0) == 2.0


def test_schedules_store_python_numbers() -> None:
    """Whatever their types: a float32 rate would round the rates of all steps."""
    given: Any = schedules
    for made, plain in [
        (given.Cosine(np.float32(0.5), np.array(10)), schedules.Cosine(0.5, 10)),
        (given.Linear(np.array(0.5), np.float16(0.25), bb.asarray(4)), schedules.Linear(0.5, 0.25, 4)),
        (given.MultiStep(0.5, [np.int64(3), 5], np.float64(0.5)), schedules.MultiStep(0.5, (3, 5), 0.5)),
        (given.OneCycle(np.float32(0.5), 10, pct_start=np.float32(0.25)), schedules.OneCycle(0.5, 10, pct_start=0.25)),
        (given.Warmup(np.int32(3), np.float32(0.5)), schedules.Warmup(3, 0.5)),
    ]:
        assert made == plain
        assert hash(made) == hash(plain)
        assert [made(n) for n in range(12)] == [plain(n) for n in range(12)]
        assert {type(made(n)) for n in range(12)} == {float}


@pytest.mark.parametrize("rate", [schedules.Exponential(1e-3, 1.1), schedules.Step(1e-3, 1, 10.0)])
def test_a_rate_that_overflows_is_refused(rate: Any) -> None:
    assert rate(10_000) == np.inf
    model = {"w": bb.asarray([1.0]).require_grad()}
    optimizer = SGD(rate)
    optimizer.steps = 10_000
    with pytest.raises(ArgumentError, match=r"SGD: lr\(10000\) is a finite number of at least 0, not inf"):
        optimizer.step(model, (model["w"] * 1.0).sum().backward())


def test_schedules_compare_by_value_and_are_pickled_with_optimizers() -> None:
    rate = schedules.Warmup(2, schedules.Cosine(0.4, 10))
    assert pickle.loads(pickle.dumps(rate)) == rate
    assert schedules.Warmup(2, 0.4)(7) == 0.4
    model, optimizer = {"x": bb.asarray(10.0).require_grad()}, SGD(rate)
    seen = []
    for _ in range(3):
        before = model["x"].item()
        optimizer.step(model, (model["x"] * 1.0).backward())
        seen.append(before - model["x"].item())
        optimizer = pickle.loads(pickle.dumps(optimizer))
    assert seen == pytest.approx([0.2, 0.4, 0.4], rel=1e-5)


def test_clipped_values() -> None:
    model = start()
    named = optim.named_gradients(model, loss(model, bb.asarray(A), bb.asarray(B)).backward())
    clipped = optim.clip_grad_value(named, 0.5)
    for path, g in named.items():
        np.testing.assert_array_equal(clipped[path].numpy(), np.clip(g.numpy(), -0.5, 0.5))
    SGD(0.1).step(model, clipped)


def test_the_rate_of_adagrad_falls_with_the_steps_of_a_parameter() -> None:
    """A parameter without a gradient at first starts with the full rate, as in PyTorch."""
    options: Any = {"lr": 0.5, "lr_decay": 0.5}
    late, first = {"a": bb.asarray([1.0]).require_grad(), "b": bb.asarray([1.0]).require_grad()}, bb.asarray([2.0])
    optimizer = optim.Adagrad(**options)
    gradient = first.inner() if hasattr(first, "inner") else first
    optimizer.step(late, {"a": gradient})
    optimizer.step(late, {"a": gradient, "b": gradient})
    assert late["b"].tolist() == [0.5]
    assert late["a"].item() == pytest.approx(0.5 - 0.5 / 1.5 / 2**0.5)


def test_a_warmup_of_no_steps() -> None:
    assert [schedules.Warmup(0, 0.5)(n) for n in (0, 1, 9)] == [0.5, 0.5, 0.5]
    after = schedules.Cosine(1.0, 10)
    assert [schedules.Warmup(0, after)(n) for n in range(12)] == [after(n) for n in range(12)]
    with pytest.raises(ArgumentError, match="Warmup: warmup_steps is an integer of at least 0, not -1"):
        schedules.Warmup(-1, 0.5)
