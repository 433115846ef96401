"""Second derivatives and Jacobians of the typed graph, compared with closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.autodiff.tape import GradGraph, GradOp, Record
from backburn.base.errors import GraphError, ShapeError
from backburn_numpy import NumpyBackend

OUTER = Autodiff(NumpyBackend())


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


# ---- closed forms of second order ----

CLOSED: dict[str, tuple[Any, Any, Any]] = {
    # A builder of an element-wise f, a point, and its second derivative.
    "cube by products": (lambda g, x: g.mul(g.mul(x, x), x), [2.0, -1.5, 0.25], lambda x: 6 * x),
    "pow": (lambda g, x: g.pow(x, 4), [2.0, -1.5, 0.0], lambda x: 12 * x**2),
    "exp": (lambda g, x: g.exp(g.mul(x, x)), [0.5, -1.0], lambda x: (2 + 4 * x**2) * np.exp(x**2)),
    "ln": (lambda g, x: g.ln(x), [0.5, 3.0], lambda x: -1 / x**2),
    "log2": (lambda g, x: g.log2(x), [0.5, 3.0], lambda x: -1 / x**2 / np.log(2)),
    "sin": (lambda g, x: g.sin(x), [0.5, 3.0], lambda x: -np.sin(x)),
    "cos": (lambda g, x: g.cos(g.scalar_mul(x, 2.0)), [0.5, 3.0], lambda x: -4 * np.cos(2 * x)),
    "sqrt": (lambda g, x: g.sqrt(x), [0.5, 3.0], lambda x: -0.25 * x**-1.5),
    "tanh": (lambda g, x: g.tanh_act(x), [0.5, -2.0], lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    "sigmoid": (
        lambda g, x: g.sigmoid(x), [0.5, -2.0],
        lambda x: np.exp(-x) * (np.exp(-x) - 1) / (1 + np.exp(-x)) ** 3,
    ),
    "quotient": (lambda g, x: g.div(g.input(np.array(3.0)), x), [0.5, -2.0], lambda x: 6 / x**3),
    "linear": (lambda g, x: g.scalar_mul(g.neg(x), 3.0), [0.5, -2.0], lambda x: 0 * x),
    "relu": (lambda g, x: g.mul(g.relu(x), x), [0.5, -2.0], lambda x: 2.0 * (x > 0)),
    "where": (
        lambda g, x: g.where_cond(g.input(np.array([1.0, 0.0])), g.pow(x, 3), g.pow(x, 2)), [0.5, -2.0],
        lambda x: np.array([6 * x[0], 2.0]),
    ),
    "clamp": (lambda g, x: g.pow(g.clamp(x, -1.0, 1.0), 2), [0.5, -2.0], lambda x: np.array([2.0, 0.0])),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_second_derivatives_of_elementwise_functions(name: str) -> None:
    build, point, second = CLOSED[name]
    graph = GradGraph()
    x = graph.parameter(np.array(point))
    loss = graph.sum(build(graph, x))
    expected = second(np.array(point))
    np.testing.assert_allclose(graph.hessian(loss, x), np.diag(expected), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(graph.hessian_diag(loss, x, 1e-5), expected, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(graph.double_backward(loss, x), expected, rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(graph.grad(x), 0.0)  # gradients were not accumulated


def test_hessians_of_quadratic_forms_softmax_and_cross_entropy() -> None:
    a, x = normal(3, 3), normal(3, 1, seed=1)
    graph = GradGraph()
    p, m = graph.parameter(x), graph.input(a)
    form = graph.matmul(graph.transpose_op(p), graph.matmul(m, p))
    np.testing.assert_allclose(graph.hessian(form, p), a + a.T, rtol=1e-12)
    np.testing.assert_allclose(graph.hessian_diag(form, p), 2 * np.diag(a).reshape(3, 1), rtol=1e-12)
    logits = graph.parameter(x[:, 0])
    loss = graph.cross_entropy(logits, graph.input(np.array([2])))
    s = np.exp(x[:, 0]) / np.exp(x[:, 0]).sum()
    np.testing.assert_allclose(graph.hessian(loss, logits), np.diag(s) - np.outer(s, s), rtol=1e-12, atol=1e-15)
    first = graph.gather(graph.softmax(logits), [0])
    e = np.eye(3)[0]
    expected = s[0] * (np.outer(e - s, e - s) - np.diag(s) + np.outer(s, s))
    np.testing.assert_allclose(graph.hessian(first, logits), expected, rtol=1e-12, atol=1e-15)


def test_hessians_of_norms_equal_differences_of_gradients() -> None:
    """Central differences of the exact gradient replace long closed forms; the loss uses all shape operations."""
    graph, step = GradGraph(), 1e-6
    point = normal(2, 3)
    x, w = graph.parameter(point), graph.input(normal(2, 3, seed=1))
    joined = graph.cat([graph.layer_norm(x), graph.batch_norm(x), graph.reshape(graph.transpose_op(x), [2, 3])], 1)
    loss = graph.mean(graph.mul(graph.gather(joined, [0, 2, 3, 3, 5, 8], 1), graph.cat([w, graph.abs(x)], 1)))
    hessian = graph.hessian(loss, x)
    assert hessian.shape == (6, 6)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-10, atol=1e-13)
    expected = np.zeros((6, 6))
    for i in range(6):
        sides = []
        for sign in (1, -1):
            moved = point.copy()
            moved.reshape(-1)[i] += sign * step
            graph.set_tensor(x, moved)
            sides.append(graph.backward_collect(loss, [x])[0].reshape(-1))
        expected[i] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(hessian, expected, rtol=1e-5, atol=1e-7)


def test_hessians_of_records_have_all_elements_in_order() -> None:
    graph = GradGraph()
    node = graph.record(a=np.array([2.0, 3.0]), inner={"b": np.array([[5.0]])}, unused=np.ones(1))
    a = graph.struct_field(node, "a")
    b = graph.reshape(graph.map_lookup(graph.struct_field(node, "inner"), "b"), [1])
    loss = graph.sum(graph.mul(graph.mul(a, a), b))  # b (a0^2 + a1^2)
    expected = np.zeros((4, 4))
    expected[:3, :3] = [[10.0, 0.0, 4.0], [0.0, 10.0, 6.0], [4.0, 6.0, 0.0]]
    np.testing.assert_allclose(graph.hessian(loss, node), expected, rtol=1e-12)
    diagonal = graph.double_backward(loss, node)
    assert isinstance(diagonal, Record)
    np.testing.assert_allclose(diagonal.a, [10.0, 10.0])
    np.testing.assert_array_equal(diagonal.inner["b"], [[0.0]])
    np.testing.assert_array_equal(diagonal.unused, [0.0])
    np.testing.assert_allclose(graph.jacobian(loss, node), [[20.0, 30.0, 13.0, 0.0]])


def test_jacobians() -> None:
    graph = GradGraph()
    x, w = graph.parameter(normal(3)), graph.parameter(normal(2, 3))
    y = graph.reshape(graph.matmul(w, graph.reshape(x, [3, 1])), [2])
    np.testing.assert_allclose(graph.jacobian(y, x), normal(2, 3), rtol=1e-12)
    np.testing.assert_allclose(graph.jacobian(y, w), np.kron(np.eye(2), normal(3)), rtol=1e-12)
    np.testing.assert_array_equal(graph.jacobian(graph.neg(x), w), np.zeros((3, 6)))
    np.testing.assert_array_equal(graph.jacobian(x, x), np.eye(3))
    np.testing.assert_array_equal(graph.jacobian(graph.gather(x, []), x), np.zeros((0, 3)))
    empty = graph.parameter(np.zeros((0,)))
    assert graph.jacobian(y, empty).shape == (2, 0)
    assert graph.hessian(graph.sum(empty), empty).shape == (0, 0)
    assert graph.hessian_diag(graph.sum(empty), empty).shape == (0,)


def test_hessians_use_values_of_set_tensor() -> None:
    graph = GradGraph()
    x = graph.parameter(np.array([2.0]))
    loss = graph.mul(graph.mul(x, x), x)
    graph.set_tensor(x, np.array([5.0]))
    np.testing.assert_allclose(graph.hessian(loss, x), [[30.0]])
    np.testing.assert_allclose(graph.jacobian(loss, x), [[75.0]])


def test_derivatives_on_an_autodiff_backend_can_be_differentiated_again() -> None:
    x: Any = OUTER.set_require_grad(OUTER.from_inner(np.array([2.0, 3.0])), True)
    graph = GradGraph(backend=Autodiff(OUTER))
    w = graph.parameter(x)
    second = graph.hessian_diag(graph.pow(w, 5), w)
    np.testing.assert_allclose(OUTER.inner(second), 20 * np.array([2.0, 3.0]) ** 3, rtol=1e-12)
    third: Any = OUTER.grad(x, OUTER.backward(second))
    np.testing.assert_allclose(third, 60 * np.array([2.0, 3.0]) ** 2, rtol=1e-12)


# ---- batches ----


def test_vmap_forward_maps_up_to_the_output_and_is_differentiable() -> None:
    graph, batch, point = GradGraph(), normal(4, 3, seed=1), normal(2, 3)
    x, w = graph.input(normal(3)), graph.parameter(point)
    scaled = graph.scalar_mul(w, 2.0)  # independent of x, so not repeated
    y = graph.reshape(graph.matmul(scaled, graph.reshape(graph.tanh_act(x), [3, 1])), [2])
    after = graph.exp(y)
    size = len(graph)
    results = graph.vmap_forward(x, batch, y)
    assert len(graph) == size + 4 * 5
    assert [type(op) for op in graph.nodes()[size : size + 5]] == [
        GradOp.Input, GradOp.TanhAct, GradOp.Reshape, GradOp.MatMul, GradOp.Reshape,
    ]  # fmt: skip
    expected = np.tanh(batch) @ (2 * point).T
    np.testing.assert_allclose(np.stack([graph.tensor(i) for i in results]), expected)
    loss = graph.sum(graph.cat([graph.mul(i, i) for i in results]))
    graph.backward(loss)
    np.testing.assert_allclose(graph.grad(w), 4 * expected.T @ np.tanh(batch), rtol=1e-12)
    assert len(graph.vmap_forward(x, [batch[0], batch[1]], after)) == 2
    np.testing.assert_array_equal(graph.vmap_forward(x, batch, scaled), [scaled] * 4)
    graph_of_one = GradGraph()
    p = graph_of_one.parameter(np.array([1.0, 2.0]))
    graph_of_one.mul(p, p)
    (only,) = graph_of_one.vmap_forward(p, [np.array([3.0, 4.0])])  # the last node is the output
    np.testing.assert_array_equal(graph_of_one.tensor(only), [9.0, 16.0])
    assert graph.vmap_forward(x, [], y) == []


def test_vmap_forward_refuses_other_shapes_and_computed_nodes() -> None:
    graph = GradGraph()
    x = graph.input(normal(3))
    y = graph.neg(x)
    with pytest.raises(ShapeError, match="another shape than node 0"):
        graph.vmap_forward(x, normal(2, 4), y)
    with pytest.raises(GraphError, match="is computed"):
        graph.vmap_forward(y, normal(2, 3), y)
    with pytest.raises(ShapeError, match="0-d"):
        graph.vmap_forward(x, np.array(1.0), y)
