"""Complex parameters: every optimizer treats them as two reals; averages, clipping, saving, recorded steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, DTypeError, ShapeError

generator = np.random.default_rng(0)
Z, A = (generator.normal(size=(2, 3, 2)) @ np.array([1, 1j]) for _ in range(2))
PARTS = np.stack([Z.real, Z.imag])
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optim.SGD(0.1),
    "momentum": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda: optim.Adam(optim.schedules.Linear(0.1, 0.0, 10), weight_decay=0.1),
    "amsgrad": lambda: optim.Adam(0.1, amsgrad=True),
    "AdamW": lambda: optim.AdamW(0.1, cautious=True),
    "RMSprop": lambda: optim.RMSprop(0.1, centered=True, momentum=0.5),
    "Adagrad": lambda: optim.Adagrad(0.1, initial_accumulator_value=0.5),
    "Adadelta": lambda: optim.Adadelta(),
    "Adamax": lambda: optim.Adamax(0.1),
    "NAdam": lambda: optim.NAdam(0.1),
    "RAdam": lambda: optim.RAdam(0.1),
    "Lion": lambda: optim.Lion(0.1),
    "Adan": lambda: optim.Adan(0.1),
    "LBFGS": lambda: optim.LBFGS(0.1, history_size=2),
    "Adafactor": lambda: optim.Adafactor(0.1),
    "Groups": lambda: optim.Groups({"w": optim.Adam(0.1), "*": optim.SGD(0.1)}),
}


def loss(w: Any) -> Any:
    return bb.sum(bb.abs(w * bb.asarray(A, dtype=w.dtype) - 1) ** 2) + bb.sum(bb.real(w * w * w)) * 0.01


def loss_of_parts(x: Any) -> Any:
    return loss(bb.complex(x[0], x[1]))


def model_of(values: Any, dtype: str) -> dict[str, Any]:
    return {"w": bb.asarray(values, dtype=dtype).require_grad()}


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_complex_parameter_is_updated_as_two_reals(name: str, wide: bool) -> None:
    model, parts = model_of(Z, f"complex{64 << wide}"), model_of(PARTS, f"float{32 << wide}")
    ours, theirs = OPTIMIZERS[name](), OPTIMIZERS[name]()
    for step in range(4):
        gradients = loss(model["w"]).backward()
        ours.step(model, {"w": model["w"].grad(gradients)} if step % 2 else gradients)
        theirs.step(parts, loss_of_parts(parts["w"]).backward())
    x = parts["w"].numpy()
    assert (model["w"].dtype.bits, model["w"].is_require_grad) == (64 << wide, True)
    np.testing.assert_array_equal(model["w"].numpy(), x[0] + 1j * x[1])
    before = bb.asarray(Z)
    assert loss(model["w"]).item() < loss(before).item()
    state, expected = ours.state_dict(), theirs.state_dict()
    assert state.keys() == expected.keys()
    for key, value in state.items():
        if isinstance(value, bb.Tensor):
            assert value.dtype.name == f"float{32 << wide}"
            np.testing.assert_array_equal(value.numpy(), expected[key].numpy())
    resumed, other = OPTIMIZERS[name](), copy.copy(model)
    resumed.load_state_dict(state)
    for optimizer, of in ((ours, model), (resumed, other)):
        optimizer.step(of, loss(of["w"]).backward())
    np.testing.assert_array_equal(model["w"].numpy(), other["w"].numpy())


def test_a_line_search_finds_the_minimum() -> None:
    model, parts = model_of(Z, "complex128"), model_of(PARTS, "float64")
    ours, theirs = optim.LBFGS(history_size=5), optim.LBFGS(history_size=5)
    for _ in range(8):
        ours.step(model, lambda model: loss(model["w"]))
        theirs.step(parts, lambda model: loss_of_parts(model["w"]))
    x = parts["w"].numpy()
    np.testing.assert_allclose(model["w"].numpy(), x[0] + 1j * x[1], rtol=1e-9)
    before, after = (np.abs(bb.grad(loss)(w).numpy()).max() for w in (bb.asarray(Z), model["w"].detach()))
    assert after < 0.02 * before


def test_adafactor_factors_the_real_view() -> None:
    for shape in ((3,), (), (2, 3, 2)):
        values = np.resize(Z, shape)
        model = {"w": bb.asarray(values).require_grad()}
        optimizer = optim.Adafactor(0.1)
        optimizer.step(model, bb.sum(bb.abs(model["w"]) ** 4).backward())
        rows = optimizer.state_dict()["w.rows"]
        assert isinstance(rows, bb.Tensor)
        assert rows.shape == ((2, 2, 3, 1) if len(shape) == 3 else ())
        assert np.all(np.abs(model["w"].numpy()) < np.abs(values))


def test_steps_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    pairs = {
        "SGD": ({"lr": 0.1, "momentum": 0.9}, optim.SGD(0.1, momentum=0.9)),
        "Adam": ({"lr": 0.1}, optim.Adam(0.1)),
        "AdamW": ({"lr": 0.1}, optim.AdamW(0.1)),
        "RMSprop": ({"lr": 0.1, "centered": True}, optim.RMSprop(0.1, centered=True)),
        "Adagrad": ({"lr": 0.1}, optim.Adagrad(0.1)),
        "Adadelta": ({}, optim.Adadelta()),
        "RAdam": ({"lr": 0.1}, optim.RAdam(0.1)),
    }
    for name, (options, ours) in pairs.items():
        there = torch.nn.Parameter(torch.tensor(Z))
        theirs, model = getattr(torch.optim, name)([there], **options), model_of(Z, "complex128")
        for _ in range(3):
            theirs.zero_grad()
            ((there * torch.tensor(A) - 1).abs() ** 2).sum().backward()
            theirs.step()
            ours.step(model, bb.sum(bb.abs(model["w"] * bb.asarray(A) - 1) ** 2).backward())
        np.testing.assert_allclose(model["w"].numpy(), there.detach().numpy(), rtol=1e-10, err_msg=name)


def test_clipping() -> None:
    gradients = {"z": bb.asarray([3 + 4j, 0j]), "x": bb.asarray([12.0])}
    clipped, norm = optim.clip_grad_norm(gradients, 6.5)
    assert norm.item() == 13.0
    assert norm.dtype is bb.float32
    assert clipped["z"].dtype is bb.complex64
    np.testing.assert_allclose(clipped["z"].numpy(), [1.5 + 2j, 0])
    assert optim.global_norm(gradients, float("inf")).item() == 12.0
    within = optim.clip_grad_value(gradients, 3.5)
    assert within["z"].tolist() == [3 + 3.5j, 0]
    assert within["x"].tolist() == [3.5]
    assert optim.add(gradients, gradients)["z"].tolist() == [6 + 8j, 0]
    assert optim.scale(gradients, 0.5)["z"].tolist() == [1.5 + 2j, 0]


def test_averages() -> None:
    average, model = optim.Average(0.5), {"w": bb.asarray([0j, 2j]).require_grad()}
    for values in ([0j, 2j], [4 + 4j, 0j]):
        model["w"] = bb.asarray(values).require_grad()
        average.update(model)
    state = average.state_dict()
    with average.applied(model):
        assert model["w"].tolist() == [2 + 2j, 1j]
        assert model["w"].dtype is bb.complex64
    other = optim.Average(0.5)
    other.load_state_dict(state)
    assert other.copy_to(model)["w"].tolist() == [2 + 2j, 1j]


class Scale(nn.Module):
    """A complex and a real parameter."""

    weight: Any

    def __init__(self) -> None:
        self.weight = nn.parameter(bb.asarray(Z, dtype="complex64"))
        self.bias = nn.parameter(bb.ones(3))

    def forward(self, x: Any) -> Any:
        return bb.sum(bb.abs(self.weight * x + self.bias - 1j) ** 2)


def test_recorded_steps() -> None:
    found: list[Any] = []
    for recorded in (False, True):
        model, optimizer, average = Scale(), optim.Adam(0.1), optim.Average(0.9)

        def step(state: Any, x: Any) -> Any:
            model, optimizer, average = state
            loss = model(x)
            named = optim.named_gradients(model, loss.backward())
            optimizer.step(model, optim.clip_grad_norm(named, 1.0)[0])
            average.update(model)
            return state, loss

        run = bb.capture(step, on_fallback="error") if recorded else step
        inputs = [bb.asarray(A * i, dtype="complex64") for i in range(1, 5)]
        state, losses = (model, optimizer, average), []
        for x in inputs:
            state, value = run(state, x)
            losses.append(value.item())
        model, _, average = state
        found.append((losses, model.weight.numpy(), average.state_tensors()["weight"].numpy()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-5)


def test_checkpoints(tmp_path: Path) -> None:
    model, optimizer = Scale(), optim.Adam(0.1)
    x = bb.asarray(A, dtype="complex64")
    optimizer.step(model, model(x).backward())
    bb.io.save_npz(tmp_path / "state.npz", {**optimizer.state_dict()})
    bb.io.save_weights(model, tmp_path / "model.npz")
    other, resumed = Scale(), optim.Adam(0.1)
    bb.io.load_weights(other, tmp_path / "model.npz")
    resumed.load_state_dict(bb.io.load_npz(tmp_path / "state.npz"))
    for m, o in ((model, optimizer), (other, resumed)):
        o.step(m, m(x).backward())
    np.testing.assert_array_equal(model.weight.numpy(), other.weight.numpy())


def test_refused() -> None:
    model = model_of(Z, "complex128")
    gradients = loss(model["w"]).backward()
    with pytest.raises(DTypeError, match=r"Muon is for real matrices, and 'w' is complex128\[2,3\].*AdamW"):
        optim.Muon().step(model, gradients)
    with pytest.raises(DTypeError, match="gradient of w is a tensor of the parameter's dtype"):
        optim.SGD(0.1).step(model, {"w": bb.ones((2, 3), dtype="float64")})
    with pytest.raises(ShapeError, match="another shape"):
        optim.SGD(0.1).step(model, {"w": bb.zeros((3, 2), dtype="complex128")})
    for rate in (1j, lambda step: 1j, bb.asarray(1j)):
        with pytest.raises((ArgumentError, DTypeError), match=r"lr|float"):
            optim.SGD(rate).step(model, gradients)  # type: ignore[arg-type]
    optimizer = optim.Adam(0.1)
    optimizer.step(model, loss(model["w"]).backward())
    with pytest.raises(DTypeError, match="an optimizer belongs to one model"):
        optimizer.step({"w": model["w"].astype("complex64").detach().require_grad()}, {})
    with pytest.raises(ShapeError, match="an optimizer belongs to one model"):
        optimizer.step({"w": bb.ones((2, 3), dtype="float64").require_grad()}, {})
