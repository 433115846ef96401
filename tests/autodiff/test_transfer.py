"""``to`` between backends: the only operation whose gradient runs on another backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import Autodiff, optim
from backburn.base.errors import ArgumentError, BackendMismatchError
from backburn_numpy import NumpyBackend


class Elsewhere(NumpyBackend):
    """The NumPy backend with another spec, and so a different backend."""

    @property
    def spec(self) -> str:
        """The spec."""
        return "elsewhere"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


HERE = Autodiff(NumpyBackend())
THERE = Autodiff(Elsewhere())


def values(n: int = 3) -> Any:
    """Return a leaf on the first backend."""
    return bb.asarray(np.linspace(0.5, 2.0, n), backend=HERE).require_grad()


def test_gradient_comes_back() -> None:
    """Leaves of both backends have gradients, each on its own inner backend, from one ``backward``."""
    x = values()
    w: Any = bb.asarray([2.0, 3.0, 4.0], dtype="float64", backend=THERE).require_grad()
    moved = (x * x).to(THERE)
    assert moved.is_tracked
    assert moved.backend is THERE
    gradients = (moved * w).sum().backward()
    np.testing.assert_allclose(x.grad(gradients).numpy(), 2 * x.numpy() * w.numpy())
    np.testing.assert_allclose(w.grad(gradients).numpy(), x.numpy() ** 2)
    assert x.grad(gradients).backend is HERE.inner_backend
    assert w.grad(gradients).backend is THERE.inner_backend


def test_anomalies_are_found_on_the_way_back() -> None:
    x = values()
    with bb.detect_anomaly():
        assert x.grad((x * x).to(THERE).sum().backward()).tolist() == (2.0 * x).tolist()
        with pytest.raises(bb.errors.NumericalInstabilityError, match="backward of sqrt"):
            bb.sqrt((x - 0.5).to(THERE)).sum().backward()


@pytest.mark.parametrize("clipped", [False, True])
def test_a_model_on_two_backends_is_trained(clipped: bool) -> None:
    """Gradients are applied as they are, or clipped by their joint norm."""
    model = {"x": values(), "w": bb.asarray([2.0, 3.0, 4.0], dtype="float64", backend=THERE).require_grad()}
    optimizer, losses = optim.Adam(0.1), []
    for _ in range(3):
        loss = ((model["x"] ** 2.0).to(THERE) * model["w"]).sum()
        gradients: Any = loss.backward()
        if clipped:
            named = optim.named_gradients(model, gradients)
            gradients, norm = optim.clip_grad_norm(named, 0.5)
            assert norm.item() == pytest.approx(np.linalg.norm([g.numpy() for g in named.values()]))
            assert np.linalg.norm([g.numpy() for g in gradients.values()]) == pytest.approx(0.5)
        optimizer.step(model, gradients)
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert [x.backend for x in model.values()] == [HERE, THERE]


def test_paths_through_other_backends_and_within_one() -> None:
    """Cotangents that reach a node on several paths, also through other backends, are added first."""
    x = values()
    y = x.exp()
    loss = (y.to(THERE).sin().to(HERE) * y + y.to(THERE).to(HERE)).sum()
    gradient = x.grad(loss.backward())
    e = np.exp(x.numpy())
    np.testing.assert_allclose(gradient.numpy(), e * (np.cos(e) * e + np.sin(e) + 1))


def test_cotangent_flows_from_another_backend_to_one_operation_with_several_outputs() -> None:
    """Cotangents of both outputs arrive at the operation's node."""
    x = values(4)
    first, second = bb.split(x, 2)
    loss = (first.to(THERE) * second.to(THERE)).sum()
    gradient = x.grad(loss.backward())
    np.testing.assert_allclose(gradient.numpy(), np.roll(x.numpy(), 2))


def test_second_derivative() -> None:
    """The gradient of a transfer is a transfer, which is differentiated like any operation."""
    here, there = Autodiff(HERE), Autodiff(THERE)
    inner = values()
    x = bb.from_inner(inner, backend=here).require_grad()
    cube = (x.to(there) ** 3.0).sum()
    first = x.grad(cube.backward())
    np.testing.assert_allclose(first.numpy(), 3 * inner.numpy() ** 2)
    assert first.backend is HERE
    second = inner.grad(first.sum().backward())
    np.testing.assert_allclose(second.numpy(), 6 * inner.numpy())


def test_a_retained_graph_is_differentiated_again() -> None:
    """Values equal those of one backend."""
    x = values()
    loss = (x.to(THERE) * 2.0).sum()
    first = x.grad(loss.backward(retain_graph=True))
    second = x.grad(loss.backward())
    assert first.tolist() == second.tolist() == [2.0, 2.0, 2.0]


def test_transfer_to_a_backend_with_more_levels() -> None:
    """Levels are matched from the innermost; the tensor is a constant at the others."""
    x = values()
    moved = x.to(Autodiff(THERE))
    assert moved.backend == Autodiff(THERE)
    assert not moved.is_tracked
    assert moved.inner().is_tracked
    np.testing.assert_allclose(x.grad(moved.inner().sum().backward()).numpy(), 1.0)


def test_transfers_that_are_not_recorded() -> None:
    """Transfers inside ``no_grad`` and of ints are not recorded; an untracked tensor moves to a plain backend."""
    x = values()
    with bb.no_grad():
        assert not x.to(THERE).is_tracked
    assert x.astype("int64").to(THERE).tolist() == [0, 1, 2]
    assert x.detach().to(THERE.inner_backend).backend is THERE.inner_backend


def test_lost_history_is_refused() -> None:
    """Neither a plain backend nor one with fewer levels can keep the history."""
    with pytest.raises(ArgumentError, match=r"to: .*graph of autodiff\(numpy\).*does not extend to elsewhere.*detach"):
        values().to(THERE.inner_backend)
    twice = bb.from_inner(values(), backend=Autodiff(HERE)).require_grad()
    with pytest.raises(ArgumentError, match=r"graph of autodiff\(autodiff\(numpy\)\)"):
        twice.to(THERE)


def test_gradients_of_a_backend_outside_the_graph_are_refused() -> None:
    """Reading them is an error rather than a missing gradient."""
    x = values()
    gradients = x.sum().backward()
    w = bb.asarray([1.0], backend=THERE).require_grad()
    with pytest.raises(BackendMismatchError, match="belong to autodiff"):
        w.grad(gradients)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_hint_for_mixed_backends_names_a_move_that_works(order: tuple[int, int]) -> None:
    """Data moves to the backend of the tracked operand, whose history would be lost otherwise."""
    for data in (bb.ones(3, backend=HERE), bb.ones(3, backend=HERE.inner_backend)):
        tracked = bb.ones(3, backend=THERE).require_grad()
        operands = [data, tracked]
        x, y = (operands[i] for i in order)
        with pytest.raises(BackendMismatchError, match=r"multiply: .* write \.to\('autodiff\(elsewhere\)'\) for those"):
            x * y
        with pytest.raises(BackendMismatchError, match=r"concat: .* write \.to\('autodiff\(elsewhere\)'\) for those"):
            bb.concat([x, x, y])
        product = data.to(THERE) * tracked
        assert tracked.grad(product.sum().backward()).tolist() == [1.0, 1.0, 1.0]  # type: ignore[union-attr]
