"""Every interface uses one engine: one table of rules, the same backend calls, no finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff, Forward
from backburn.autodiff.tape import GradGraph, GradientTape
from backburn.autodiff.tape.closures import GradientTape as ClosureTape
from backburn.conformance import check_backend
from backburn.ops.rules.gradients import GradientRule
from backburn.ops.table import OPERATIONS, notify
from backburn_numpy import NumpyBackend

X = np.array([[0.3, -0.7], [1.1, 0.4]])
W = np.array([[0.5, 1.5, -0.5], [0.2, -0.4, 0.9]])


class Watched(NumpyBackend):
    """Record the operations that are called, and the operands of ``sin``, ``cos`` and ``tanh``."""

    calls: list[str]
    operands: list[Any]

    @property
    def spec(self) -> str:
        return "watched"

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name not in OPERATIONS:
            return found
        self.calls.append(name)
        if name not in ("sin", "cos", "tanh"):
            return found

        def noted(x: Any) -> Any:
            self.operands.append(np.array(x))
            return found(x)

        return noted


@pytest.fixture
def watched() -> Any:
    made = Watched()
    made.calls, made.operands = [], []
    return made


def autodiff(k: Any) -> Callable[[], Any]:
    level: Any = Autodiff(k)
    leaves = [level.set_require_grad(level.from_inner(v), True) for v in (X, W)]
    y = level.tanh(level.matmul(*leaves))
    return lambda: level.grad(leaves[1], level.backward(y, np.ones(y.shape)))


def record(k: Any) -> Callable[[], Any]:
    tape = GradientTape(backend=k)
    a, b = tape.input(X), tape.input(W)
    tape.record_tanh(tape.record_matmul(a, b))
    buffers = [np.zeros(tape.shape(i)) for i in range(4)]
    return lambda: tape.backward(np.ones((2, 3)), buffers)[b]


def closures(k: Any) -> Callable[[], Any]:
    tape = ClosureTape(backend=k)
    z = tape.record("tanh", tape.record("matmul", X, W))
    tape.add_backward_op(lambda g: g.mut_gradient(z).set(1.0))
    return lambda: tape.execute().get(W)


def graph(k: Any) -> Callable[[], Any]:
    made = GradGraph(backend=k)
    p, q = made.parameter(X), made.parameter(W)
    node = made.tanh_act(made.matmul(p, q))

    def run() -> Any:
        made.backward_with_seed(node, np.ones((2, 3)))
        return made.grad(q)

    return run


def function(k: Any) -> Callable[[], Any]:
    x, w = (bb.asarray(v, backend=k) for v in (X, W))
    with bb.use_backend(k):
        _, pullback = bb.vjp(lambda x, w: bb.tanh(x @ w), x, w)
    cotangent = bb.asarray(np.ones((2, 3)), backend=k)
    return lambda: pullback(cotangent)[1].numpy()


FACES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "autodiff": autodiff, "record": record, "closures": closures, "graph": graph, "function": function
}  # fmt: skip


def test_every_interface_calls_the_same_operations(watched: Any) -> None:
    # Operations that store gradients in buffers, cells and parameters, and check that they are finite.
    looks = ("isfinite", "logical_not", "any", "to_numpy_many", "to_numpy")
    around = ("add", "zeros", "astype", "from_numpy", "full", *looks)
    found = {}
    for name, face in FACES.items():
        run = face(watched)
        watched.calls.clear()
        gradient = run()
        found[name] = [c for c in watched.calls if c not in around]
        np.testing.assert_allclose(gradient, X.T @ (1 - np.tanh(X @ W) ** 2), rtol=1e-12, err_msg=name)
    assert found["autodiff"].count("matmul") == 2
    for name, calls in found.items():
        assert calls == found["autodiff"], name


@pytest.fixture
def doubled() -> Iterator[None]:
    """Replace the gradient of ``tanh`` in the table of rules by twice the cotangent."""
    entry = OPERATIONS["tanh"]
    before = entry.gradients
    entry.gradients = [GradientRule(("x",), lambda k, g: k.mul(g, 2.0), ("k", "g"), False)]
    notify("tanh")
    yield
    entry.gradients = before
    notify("tanh")


@pytest.mark.usefixtures("doubled")
def test_replacing_one_rule_affects_every_interface() -> None:
    k = NumpyBackend()
    for name, face in FACES.items():
        np.testing.assert_allclose(face(k)(), X.T @ np.full((2, 3), 2.0), rtol=1e-12, err_msg=name)
    x, t = (bb.asarray(v, dtype="float64") for v in ([0.3, -0.7], [1.0, 10.0]))
    assert bb.jvp(bb.tanh, (x,), (t,))[1].tolist() == [2.0, 20.0]
    assert bb.linearize(bb.tanh, x)[1](t).tolist() == [2.0, 20.0]
    assert bb.vmap(bb.grad(bb.tanh))(x).tolist() == [2.0, 2.0]
    for mode in ("reverse", "forward"):
        assert bb.jacobian(bb.tanh, mode=mode)(x).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert bb.hessian(lambda x: bb.tanh(x).sum())(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    level: Any = Forward(k)
    assert level.tangent(level.tanh(level.dual(np.array(0.3), np.array(1.0)))) == 2.0
    typed = GradGraph()
    p = typed.parameter(X)
    np.testing.assert_array_equal(typed.hessian(typed.tanh_act(p), p), np.zeros((4, 4)))
    for spec in ("numpy", "autodiff(numpy)", "forward(numpy)"):
        report = check_backend(spec, ops=["tanh"], kinds=["gradient", "second_gradient"])
        assert not report.ok, spec
        assert {r.id.split("-")[2] for r in report.failures} == {"gradient"}, spec  # second ones agree with the first


def test_with_its_own_rule_tanh_passes_again() -> None:
    assert check_backend("numpy", ops=["tanh"], kinds=["gradient", "second_gradient"]).ok


# ---- exact, and not by differences ----


def closed_forms(x: Any) -> tuple[Any, Any]:
    """The gradient and the Hessian of ``sum(sin(x)) * sum(x ** 2)``."""
    s, q, c = np.sin(x).sum(), (x**2).sum(), np.cos(x)
    second = np.diag(-np.sin(x) * q + 2 * s) + 2 * np.outer(c, x) + 2 * np.outer(x, c)
    return c * q + 2 * x * s, second


def test_second_derivatives_agree_with_closed_forms(watched: Any) -> None:
    """Every method agrees to 1e-12, and evaluates ``sin`` and ``cos`` only at the given point."""
    x, v = np.array([0.3, -0.7, 1.1]), np.array([1.0, -2.0, 0.5])
    first, second = closed_forms(x)
    f = lambda x: bb.sin(x).sum() * (x * x).sum()
    at, along = bb.asarray(x, backend=watched), bb.asarray(v, backend=watched)
    basis = bb.asarray(np.eye(3), backend=watched)
    watched.operands.clear()
    with bb.use_backend(watched):
        found = {
            "hessian": bb.hessian(f)(at),
            "reverse over reverse": bb.jacobian(bb.grad(f))(at),
            "forward over forward": bb.jacobian(bb.jacobian(f, mode="forward"), mode="forward")(at),
            "reverse over forward": bb.jacobian(bb.jacobian(f, mode="forward"))(at),
            "hvp": bb.vmap(lambda e: bb.hvp(f, (at,), (e,))[0])(basis),
            "checkpointed": bb.hessian(bb.checkpoint(f))(at),
        }
        products = {
            "hvp": bb.hvp(f, (at,), (along,))[0],
            "linearize": bb.linearize(bb.grad(f), at)[1](along),
            "vjp": bb.vjp(bb.grad(f), at)[1](along)[0],
        }
        np.testing.assert_allclose(bb.grad(f)(at).numpy(), first, rtol=1e-12)
    for name, hessian in found.items():
        np.testing.assert_allclose(hessian.numpy(), second, rtol=1e-12, err_msg=name)
    for name, product in products.items():
        np.testing.assert_allclose(product.numpy(), second @ v, rtol=1e-12, err_msg=name)

    typed = GradGraph(backend=watched)
    p = typed.parameter(x)
    loss = typed.mul(typed.sum(typed.sin(p)), typed.sum(typed.mul(p, p)))
    np.testing.assert_allclose(typed.hessian(loss, p), second, rtol=1e-12)
    np.testing.assert_allclose(typed.hessian_diag(loss, p), np.diag(second), rtol=1e-12)
    np.testing.assert_allclose(typed.double_backward(loss, p), np.diag(second), rtol=1e-12)

    assert len(watched.operands) > 20
    for operand in watched.operands:
        np.testing.assert_array_equal(operand, np.broadcast_to(x, operand.shape))


def test_the_number_of_evaluations_does_not_grow_with_the_number_of_elements(watched: Any) -> None:
    counts = []
    for n in (3, 30):
        x = bb.asarray(np.linspace(-1, 1, n), backend=watched)
        watched.calls.clear()
        with bb.use_backend(watched):
            bb.hessian(lambda x: bb.sin(x).sum())(x)
            bb.jacobian(bb.sin)(x)
        counts.append(watched.calls.count("sin"))
    assert counts[0] == counts[1]
