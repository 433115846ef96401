"""Transforms of functions: values against closed forms and central differences, composition, levels, bad inputs."""

from __future__ import annotations

import copy
import functools
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DeviceMemoryError,
    DTypeError,
    GraphError,
    NotDifferentiableError,
    ShapeError,
)
from backburn.base.trees import flatten, tree_map
from backburn.transforms import (
    check_grads,
    checkpoint,
    custom_vjp,
    grad,
    hessian,
    hvp,
    jacobian,
    jacobians,
    jvp,
    linearize,
    stop_gradient,
    value_and_grad,
    vjp,
)


def tensor(values: Any, **options: Any) -> Any:
    return bb.asarray(values, dtype="float64", **options)


def cube(x: Any) -> Any:
    return (x * x * x).sum()


def test_orders_of_grad() -> None:
    f = grad(lambda x: x**4.0)
    assert f(2.0).item() == pytest.approx(32)
    assert grad(f)(2.0).item() == pytest.approx(48)
    assert grad(grad(f))(2.0).item() == pytest.approx(48)
    assert grad(grad(grad(f)))(2.0).item() == pytest.approx(24)


def test_perturbations_are_not_confused() -> None:
    """d/dx [x * d/dy (x * y) at y = 1] at 2 is 4."""
    assert grad(lambda x: x * grad(lambda y: x * y)(1.0))(2.0).item() == 4.0


@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))"])
def test_the_gradient_lives_where_its_argument_does(spec: str) -> None:
    x = tensor([1.0, 2.0], backend=spec)
    g = grad(cube)(x)
    assert g.backend is x.backend
    assert g.tolist() == [3.0, 12.0]
    assert not g.is_tracked


def test_data_on_a_lower_level_are_constants() -> None:
    data = tensor([[1.0, 2.0], [3.0, 4.0]], backend="numpy")
    w = tensor([1.0, -1.0])
    g = grad(lambda w: ((data * w).sum(axis=1) ** 2.0).sum())(w)
    np.testing.assert_allclose(g.numpy(), 2 * data.numpy().T @ (data.numpy() @ w.numpy()))


def test_a_gradient_of_a_gradient_that_the_caller_tracks() -> None:
    w = tensor([2.0]).require_grad()
    inner = grad(lambda x: (w * w * x * x).sum())(tensor([3.0]))
    np.testing.assert_array_equal(w.grad(inner.backward()).numpy(), [2 * 2 * 2 * 3.0])


def test_value_and_grad_of_trees_with_aux() -> None:
    @dataclass
    class Model:
        w: Any
        b: Any

    def loss(model: Model, scale: float, *, shift: float) -> Any:
        y = (model.w * model.w).sum() * scale + model.b["bias"][0] * shift
        return y, {"seen": y}

    model = Model(tensor([1.0, 2.0]), {"bias": (tensor(3.0),)})
    (value, aux), g = value_and_grad(loss, has_aux=True)(model, 2.0, shift=5.0)
    assert value.item() == 25.0
    assert aux["seen"].item() == 25.0
    assert isinstance(g, Model)
    assert g.w.tolist() == [4.0, 8.0]
    assert g.b["bias"][0].item() == 5.0


def test_what_else_a_function_returns_leaves_the_level_of_its_derivative() -> None:
    def loss(x: Any) -> Any:
        return (x**3.0).sum(), [x, x * x, x > 1.0, "words"]

    x = tensor([1.0, 2.0])
    (_, (same, squares, large, words)), _ = value_and_grad(loss, has_aux=True)(x)
    assert (squares.tolist(), large.tolist(), words) == ([1.0, 4.0], [False, True], "words")
    for out in (same, squares, large):
        assert out.backend is x.backend
    # An outer derivative goes through it.
    outer = grad(lambda x: value_and_grad(loss, has_aux=True)(x)[0][1][1].sum())
    np.testing.assert_allclose(outer(x).numpy(), 2 * x.numpy())


def test_several_arguments() -> None:
    f = grad(lambda x, y: (x * y * y).sum(), argnums=(0, 1))
    gx, gy = f(tensor([2.0]), tensor([3.0]))
    assert (gx.item(), gy.item()) == (9.0, 12.0)
    assert grad(lambda x, y: x * y, argnums=-1)(2.0, 3.0).item() == 2.0


def test_vjp_may_be_pulled_again_and_takes_trees() -> None:
    f = lambda x, y: {"sum": x + y, "product": x * y, "name": 3}
    out, pullback = vjp(f, tensor([1.0, 2.0]), tensor([3.0, 4.0]))
    assert out["name"] == 3
    for _ in range(2):
        gx, gy = pullback({"sum": tensor([1.0, 1.0]), "product": tensor([10.0, 100.0]), "name": 0})
        assert gx.tolist() == [31.0, 401.0]
        assert gy.tolist() == [11.0, 201.0]


def test_what_an_output_does_not_depend_on_has_gradient_zero() -> None:
    _, pullback = vjp(lambda x, y: x * 2.0, tensor([1.0]), tensor([[5.0, 6.0]]))
    gx, gy = pullback(tensor([1.0]))
    assert gx.tolist() == [2.0]
    assert gy.tolist() == [[0.0, 0.0]]
    assert grad(lambda x: tensor(3.0))(tensor([1.0, 2.0])).tolist() == [0.0, 0.0]


def test_jvp_linearize_and_forward_over_reverse() -> None:
    x, t = tensor([0.3, 0.7]), tensor([1.0, -2.0])
    out, tangent = jvp(lambda x: bb.sin(x) * x, (x,), (t,))
    a = x.numpy()
    np.testing.assert_allclose(out.numpy(), np.sin(a) * a)
    np.testing.assert_allclose(tangent.numpy(), (np.cos(a) * a + np.sin(a)) * t.numpy(), rtol=1e-14)
    _, tangent_map = linearize(lambda x: x * x, x)
    for _ in range(2):
        np.testing.assert_allclose(tangent_map(t).numpy(), 2 * a * t.numpy())
    _, second = jvp(grad(cube), (x,), (t,))
    np.testing.assert_allclose(second.numpy(), 6 * a * t.numpy(), rtol=1e-14)
    third = jvp(lambda x: jvp(grad(cube), (x,), (t,))[1], (x,), (t,))[1]
    np.testing.assert_allclose(third.numpy(), 6 * t.numpy() ** 2, rtol=1e-14)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_jacobian(mode: str) -> None:
    w = np.arange(6.0).reshape(3, 2)
    f = lambda x: bb.tanh(bb.matmul(tensor(w), x))
    x = tensor([0.1, -0.2])
    j = jacobian(f, mode=mode)(x)
    expected = (1 - np.tanh(w @ x.numpy()) ** 2)[:, None] * w
    np.testing.assert_allclose(j.numpy(), expected, rtol=1e-13)
    tree = jacobian(lambda p: p["a"] * p["b"], mode=mode)({"a": tensor([1.0, 2.0]), "b": tensor(3.0)})
    assert tree["a"].tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert tree["b"].tolist() == [1.0, 2.0]
    assert jacobian(lambda x: x * 2.0, mode=mode)(tensor(np.zeros((0,)))).shape == (0, 0)
    assert jacobian(lambda x: x * x, mode=mode)(3.0).item() == 6.0


def test_hessian_and_hvp_are_exact() -> None:
    x, v = tensor([0.3, 0.7, -0.4]), tensor([1.0, -1.0, 2.0])
    f = lambda x: bb.exp((x * x).sum()) + bb.prod(x)
    h = hessian(f)(x).numpy()
    a = x.numpy()
    e = math.exp(a @ a)
    expected = 2 * e * np.eye(3) + 4 * e * np.outer(a, a)
    for i in range(3):
        for j in range(3):
            if i != j:
                expected[i, j] += np.prod(np.delete(a, [i, j]))
    np.testing.assert_allclose(h, expected, rtol=1e-12)
    np.testing.assert_allclose(hvp(f, (x,), (v,))[0].numpy(), expected @ v.numpy(), rtol=1e-12)


def test_a_meta_gradient() -> None:
    """The derivative through two steps of gradient descent with respect to the step size."""

    def after(step: Any) -> Any:
        x: Any = tensor(1.0)
        for _ in range(2):
            x = x - step * grad(lambda x: x * x)(x)
        return x * x

    # x_2 = (1 - 2 s)^2, so d x_2^2 / ds = 4 (1 - 2 s)^3 * (-2)
    assert grad(after)(tensor(0.1)).item() == pytest.approx(-8 * 0.8**3, rel=1e-12)


# ---- custom derivatives, constants ----


def test_stop_gradient_is_constant_on_every_level() -> None:
    f = lambda x: x * stop_gradient(x * x)
    assert grad(f)(3.0).item() == 9.0
    assert grad(grad(f))(3.0).item() == 0.0


def test_custom_vjp_at_both_orders() -> None:
    @custom_vjp
    def log1pexp(x: Any) -> Any:
        return bb.log(1.0 + bb.exp(x))

    def forward(x: Any) -> Any:
        return log1pexp(x), x

    def backward(x: Any, g: Any) -> Any:
        return (g * (1.0 - 1.0 / (1.0 + bb.exp(x))),)

    log1pexp.define(forward, backward)
    x = tensor(100.0)
    assert grad(log1pexp)(x).item() == 1.0
    check_grads(log1pexp, (tensor([0.3, -0.7]),), order=2)
    assert log1pexp(tensor(0.0)).item() == pytest.approx(math.log(2))


def polar() -> Any:
    """Of a point: its distance and angle, and integers; the derivative is twice the true one."""

    @custom_vjp
    def f(x: Any, y: Any) -> Any:
        r = bb.sqrt(x * x + y * y)
        return {"r": r, "angle": bb.atan2(y, x)}, bb.asarray([1, 2])

    def backward(saved: Any, cotangents: Any) -> Any:
        x, y, r = saved
        of, of_integers = cotangents
        assert of_integers is None
        r_x, r_y, a_x, a_y = x / r, y / r, -y / (r * r), x / (r * r)
        return 2.0 * (of["r"] * r_x + of["angle"] * a_x), 2.0 * (of["r"] * r_y + of["angle"] * a_y)

    f.define(lambda x, y: (f(x, y), (x, y, bb.sqrt(x * x + y * y))), backward)
    return f


def test_custom_vjp_of_a_tree_of_values() -> None:
    f, x, y = polar(), tensor([0.6, -0.3]), tensor([0.8, 0.4])

    def plain(x: Any, y: Any) -> Any:
        return {"r": bb.sqrt(x * x + y * y), "angle": bb.atan2(y, x)}

    def loss(f: Any) -> Any:
        return lambda x, y: (lambda out: (bb.exp(out["r"]) * out["angle"]).sum())(f(x, y))

    ours = lambda x, y: f(x, y)[0]
    for one, other in zip(grad(loss(ours), (0, 1))(x, y), grad(loss(plain), (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(one.numpy(), 2.0 * other.numpy(), rtol=1e-14)
    only = grad(lambda x: ours(x, y)["r"].sum())(x)
    np.testing.assert_allclose(only.numpy(), 2.0 * grad(lambda x: plain(x, y)["r"].sum())(x).numpy(), rtol=1e-14)
    tangents = jvp(ours, (x, y), (y, x))[1], jvp(plain, (x, y), (y, x))[1]
    for name in ("r", "angle"):
        np.testing.assert_allclose(tangents[0][name].numpy(), 2.0 * tangents[1][name].numpy(), rtol=1e-14)
        each = bb.vmap(grad(lambda x, y, name=name: ours(x, y)[name]))(x, y)
        all_at_once = grad(lambda x, name=name: bb.vmap(ours)(x, y)[name].sum())(x)
        alone = grad(lambda x, name=name: plain(x, y)[name].sum())(x)
        np.testing.assert_allclose(each.numpy(), 2.0 * alone.numpy(), rtol=1e-14)
        np.testing.assert_allclose(all_at_once.numpy(), each.numpy(), rtol=1e-14)
    values, integers = f(x.require_grad(), y)
    assert integers.tolist() == [1, 2]
    assert values["r"].is_tracked


def test_custom_vjp_of_a_method() -> None:
    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            self.factor = tensor(factor).require_grad()

        @custom_vjp
        def __call__(self, x: Any) -> Any:
            """Multiply by the factor."""
            return x * self.factor

        def forward(self, x: Any) -> Any:
            return x * self.factor, (self.factor, x)

        def backward(saved: Any, g: Any) -> Any:  # noqa: N805 - a half of the derivative takes residuals first
            factor, x = saved
            return {"factor": (g * x).sum() * 10.0}, g * factor * 10.0

        __call__.define(forward, backward)

    module, x = Scale(3.0), tensor([1.0, 2.0])
    assert Scale.__call__.__doc__ == "Multiply by the factor."
    assert module(x).tolist() == [3.0, 6.0]
    assert grad(lambda x: module(x).sum())(x).tolist() == [30.0, 30.0]
    of_module = grad(lambda m: m(x).sum())(module)
    assert of_module.factor.item() == 30.0


def test_cotangents_by_hand_go_to_arguments_by_their_keys() -> None:
    @custom_vjp
    def f(p: Any) -> Any:
        return p["a"] * p["b"][0]

    def loss(a: Any, b: Any) -> Any:
        return f({"a": a, "b": [b, tensor(1.0)]})

    def back(result: Any) -> Any:
        f.define(lambda p: (p["a"] * p["b"][0], p), lambda p, g: (result(p["a"], p["b"][0], g),))
        return [x.item() for x in grad(loss, (0, 1))(tensor(2.0), tensor(3.0))]

    assert back(lambda a, b, g: {"b": [g * a, None], "a": g * b}) == [3.0, 2.0]
    assert back(lambda a, b, g: {"a": None, "b": (g * a, g)}) == [0.0, 2.0]
    assert back(lambda a, b, g: {"a": g * b, "b": None}) == [3.0, 0.0]
    for wrong in ({}, {"a": 1.0}, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": [1.0]}, {"a": {"c": 1.0}, "b": None}):
        with pytest.raises(ArgumentError, match=r"backward function of f returned .* where the arguments have a"):
            back(lambda a, b, g, wrong=wrong: tree_map(lambda t: g * t, wrong))


def test_cotangents_by_hand_of_some_parameters_of_a_module() -> None:
    @custom_vjp
    def call(model: Any, x: Any) -> Any:
        return model(x).sum()

    model, x = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), bb.asarray([1.0, 2.0])
    for of_model in ({"0.bias": 2.0}, {0: {"bias": 2.0}, 1: None}):
        call.define(
            lambda m, x: (m(x).sum(), m),
            lambda m, g, of_model=of_model: (tree_map(lambda t: bb.full((1,), t) * g, of_model), None),
        )
        found = grad(lambda m: call(m, x))(model)
        assert found[0].bias.tolist() == [2.0]
        assert found[0].weight.tolist() == [[0.0], [0.0]]


def test_derivatives_by_hand_that_keep_a_pullback() -> None:
    def inner(x: Any) -> Any:
        return bb.sin(x) * x

    @custom_vjp
    def f(x: Any) -> Any:
        return inner(x)

    f.define(lambda x: vjp(inner, x), lambda pullback, g: pullback(g))
    x, one = tensor(0.7), tensor(1.0)
    expected = grad(inner)(x).item()
    for found in (
        grad(f)(x), jvp(f, (x,), (one,))[1], linearize(f, x)[1](one), bb.jacobian(f, mode="forward")(x),
        bb.vmap(grad(f))(bb.stack([x, x]))[1], bb.vmap(lambda x: jvp(f, (x,), (one,))[1])(bb.stack([x, x]))[1],
    ):  # fmt: skip
        np.testing.assert_allclose(found.item(), expected, rtol=1e-14)
    np.testing.assert_allclose(
        jvp(lambda x: jvp(f, (x,), (one,))[1], (x,), (one,))[1].item(), grad(grad(inner))(x).item(), rtol=1e-14
    )
    with pytest.raises(GraphError, match=r"a function among the residuals of f keeps tensors.*in the backward"):
        grad(lambda x: bb.vmap(f)(x).sum())(bb.stack([x, x]))


class Scaled:
    """An object that is called, with attributes of its own."""

    def __init__(self) -> None:
        self.forward = self.name = self.f = 3.0

    def __call__(self, x: Any) -> Any:
        return x * self.f


@pytest.mark.parametrize("f", [Scaled(), functools.partial(lambda a, x: a * x, 3.0)], ids=["object", "partial"])
def test_derivatives_by_hand_of_what_has_no_name(f: Any) -> None:
    x, by_hand = tensor([1.0, 2.0]), custom_vjp(f)
    assert by_hand(x).tolist() == [3.0, 6.0]
    with pytest.raises(GraphError, match=rf"call {type(f).__name__}\.define"):
        grad(lambda x: by_hand(x).sum())(x)
    by_hand.define(lambda x: (f(x), None), lambda _, g: (30.0 * g,))
    assert bb.vmap(grad(by_hand))(x).tolist() == [30.0, 30.0]
    assert grad(lambda x: bb.vmap(by_hand)(x).sum())(x).tolist() == [30.0, 30.0]
    assert type(f).__name__ in repr(by_hand)


def test_custom_vjp_refuses_what_does_not_fit() -> None:
    @custom_vjp
    def f(x: Any) -> Any:
        return x * 1.0

    with pytest.raises(GraphError, match=r"f\.define"):
        grad(lambda x: f(x))(1.0)
    f.define(lambda x: (x * 1.0, None), lambda _, g: g)
    with pytest.raises(ArgumentError, match="tuple of 1"):
        grad(lambda x: f(x))(1.0)
    f.define(lambda x: (x * 1.0, None), lambda _, g: (tensor([1.0, 2.0]),))
    with pytest.raises(ShapeError, match="cotangent"):
        grad(lambda x: f(x))(1.0)
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'y'"):
        grad(lambda x: f(x, y=x))(1.0)
    f.define(lambda x: (bb.argmax(x), None), lambda _, g: (g,))
    with pytest.raises(ArgumentError, match="no float tensor, and so nothing to differentiate"):
        grad(lambda x: f(x))(1.0)
    assert repr(f).startswith("<custom_vjp test_custom_vjp_refuses")


def test_check_grads_finds_a_wrong_rule() -> None:
    @custom_vjp
    def wrong(x: Any) -> Any:
        return x * x

    wrong.define(lambda x: (x * x, x), lambda x, g: (g * x,))
    with pytest.raises(AssertionError, match=r"order 1, reverse: got .* central difference [-\d.]+$"):
        check_grads(wrong, (tensor([1.0, 2.0]),))
    with pytest.raises(AssertionError, match=r"Two calls at one point differ: does it draw random numbers"):
        check_grads(bb.nn.functional.dropout, (tensor([1.0] * 20),))
    with pytest.raises(DTypeError, match="float64"):
        check_grads(wrong, (bb.asarray([1.0]),))


# ---- checkpoint ----


def test_checkpoint_looks_at_what_an_inner_transform_has_given() -> None:
    """Though its value is on the graph of the outer one, whose reverse pass comes later."""
    for block in (lambda u, b: u.reshape(b.shape) * u, lambda u, b: (b * 1.0, u * u)[1]):
        for inner in (
            lambda f: grad(f)(1.0),
            lambda f: jvp(f, (tensor(1.0),), (tensor(1.0),))[1],
            lambda f: jacobian(f)(tensor(1.0)),
        ):
            outer = lambda a, block=block, inner=inner: inner(lambda b: checkpoint(lambda u: block(u, b))(a) * b)
            assert grad(outer)(2.0).item() == 4.0


def test_checkpoint_gives_the_same_derivatives_of_any_order() -> None:
    w = tensor([0.5, -0.3])

    def plain(x: Any) -> Any:
        return (bb.tanh(bb.tanh(x * w) * x) * w).sum()

    f = checkpoint(plain)
    x = tensor([0.3, 0.7])
    np.testing.assert_array_equal(grad(f)(x).numpy(), grad(plain)(x).numpy())
    np.testing.assert_allclose(hessian(f)(x).numpy(), hessian(plain)(x).numpy(), rtol=1e-13)
    nested = checkpoint(lambda x: checkpoint(lambda y: bb.tanh(y * y))(x).sum())
    np.testing.assert_allclose(grad(nested)(x).numpy(), grad(lambda x: bb.tanh(x * x).sum())(x).numpy(), rtol=1e-14)


def test_checkpoint_gives_captured_parameters_their_gradients() -> None:
    w = tensor([0.5, -0.3]).require_grad()
    x = tensor([1.0, 2.0]).require_grad()
    before = x * w  # the block is entered through a tensor that is no leaf
    out = checkpoint(lambda h: (bb.tanh(h * w), h.sum()))(before)
    grads = (out[0].sum() * out[1]).backward()
    h = x * w
    plain = (bb.tanh(h * w).sum() * h.sum()).backward()
    for leaf in (w, x):
        np.testing.assert_allclose(leaf.grad(grads).numpy(), leaf.grad(plain).numpy(), rtol=1e-14)


def test_checkpoint_runs_again_instead_of_keeping() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return bb.tanh(bb.tanh(x))

    x = tensor([1.0]).require_grad()
    y = checkpoint(f)(x)
    assert len(calls) == 1
    assert y.primitive.node.parents[0].parents == (x.primitive.node,)  # the output, the block, its entry
    y.backward()
    assert len(calls) == 2
    with bb.no_grad():
        checkpoint(f)(x)
    assert len(calls) == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_checkpoint_draws_the_same_random_numbers_again(depth: int) -> None:
    drawn = []

    def f(x: Any) -> Any:
        drawn.append(bb.random.uniform((4,)))
        return bb.tanh(x * drawn[-1]) * drawn[-1]

    block = f
    for _ in range(depth):
        block = checkpoint(block)
    bb.random.seed(3)
    x = tensor([0.1, 0.2, 0.3, 0.4]).require_grad()
    y = block(x)
    state = bb.random.get_state()
    gradient = x.grad(y.backward())
    assert bb.random.get_state() == state  # the code behind the block draws what it would have drawn anyway
    assert len(drawn) > 1
    assert all((d == drawn[0]).all().item() for d in drawn)
    slope = 1 - np.tanh(x.numpy() * drawn[0].numpy()) ** 2
    np.testing.assert_allclose(gradient.numpy(), slope * drawn[0].numpy() ** 2, rtol=1e-6)


# ---- bad inputs ----


def test_bad_inputs_are_explained() -> None:
    with pytest.raises(NotDifferentiableError, match=r"use 2\.0"):
        grad(lambda x: x)(2)
    with pytest.raises(NotDifferentiableError, match="int64"):
        grad(lambda x: x)(bb.asarray([1]))
    with pytest.raises(ArgumentError, match=r"float scalar.*float64\[2\].*jacobian"):
        grad(lambda x: x)(tensor([1.0, 2.0]))
    with pytest.raises(ArgumentError, match="not int"):
        grad(lambda x: 3)(1.0)
    with pytest.raises(DTypeError, match="not str"):
        grad(lambda x: x)("a")
    with pytest.raises(ArgumentError, match="argnums 1"):
        grad(lambda x: x, argnums=1)(1.0)
    _, pullback = vjp(lambda x: x * 2.0, tensor([1.0, 2.0]))
    with pytest.raises(ShapeError, match=r"float64\[3\].*float64\[2\]"):
        pullback(tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ArgumentError, match="1 primals and 2 tangents"):
        jvp(lambda x: x, (tensor(1.0),), (tensor(1.0), tensor(1.0)))
    with pytest.raises(ArgumentError, match="mode"):
        jacobian(lambda x: x, mode="sideways")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentError):
        grad(lambda x: x)(loop)


def test_a_variable_of_the_same_level_is_refused_rather_than_lost() -> None:
    w = bb.asarray(2.0, dtype="float64", backend="autodiff(autodiff(numpy))").require_grad()
    with pytest.raises(GraphError, match="tracked on autodiff"):
        grad(lambda x: x * w)(tensor(3.0))


def test_checkpoint_is_computed_again_among_the_transforms_that_were_running() -> None:
    """Perturbations are not confused though the outer transform has ended by then."""
    f = checkpoint(lambda x: x * grad(lambda y: x * y)(1.0))
    assert grad(f)(2.0).item() == 4.0
    forward = checkpoint(lambda x: x * bb.jvp(lambda y: x * y, (tensor(1.0),), (1.0,))[1])
    assert grad(forward)(tensor(2.0)).item() == 4.0


def test_checkpoint_of_a_block_that_returns_what_it_was_given() -> None:
    w, x = tensor(3.0).require_grad(), tensor(2.0).require_grad()
    out = checkpoint(lambda x: (x * w, w, x, x))(x)
    total = out[0] + out[1] * out[2] + out[3]
    gradients = total.backward()
    assert w.grad(gradients).item() == 4.0
    assert x.grad(gradients).item() == 7.0


def without_collector(function: Any) -> Any:
    """What ``function`` returns when the cyclic collector does not run."""
    gc.collect()
    gc.freeze()  # what there is already would be walked over again by each collection
    gc.disable()
    try:
        return function()
    finally:
        gc.enable()


def test_checkpoint_lets_go_of_what_it_computes_at_once() -> None:
    """Not only when the cyclic collector comes by: memory is what it is for."""
    seen: list[Any] = []

    def block(x: Any) -> Any:
        y = bb.tanh(x)
        seen.append(weakref.ref(y.primitive.node))
        return bb.sin(y)

    def run() -> tuple[list[bool], list[bool]]:
        out = checkpoint(block)(tensor([0.5]).require_grad())
        forward = [ref() is None for ref in seen]
        out.backward()
        return forward, [ref() is None for ref in seen]

    assert without_collector(run) == ([True], [True, True])


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: grad(f)(x),
        lambda f, x: value_and_grad(lambda p: f(p["x"]))({"x": x}),
        lambda f, x: jvp(f, (x,), (x,)),
        lambda f, x: hvp(f, (x,), (x,)),
        lambda f, x: vjp(f, x)[1](1.0),
        lambda f, x: linearize(f, x)[1](x),
        lambda f, x: jacobian(f)(x),
        lambda f, x: hessian(f)(x),
        lambda f, x: bb.vmap(f)(bb.stack([x, x])),
        lambda f, x: grad(checkpoint(f))(x),
        lambda f, x: grad(lambda x: stop_gradient(f(x)) * f(x))(x),
    ],
)
def test_transforms_leave_no_cycles_behind(transform: Any) -> None:
    """What they used is freed as they end, tensors among it, and not when the cyclic collector comes by."""
    x = tensor([0.5, 2.0])
    f = lambda x: (bb.tanh(x) * x).sum() + bb.linalg.svdvals(bb.reshape(x, (1, 2))).sum()
    transform(f, x)

    def run() -> int:
        transform(f, x)
        return gc.collect()

    assert without_collector(run) == 0


def test_a_checkpoint_that_returns_something_else_the_second_time() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        calls.append(1)
        return (x * x, x * 2.0) if len(calls) > 1 else x * x

    y = checkpoint(f)(tensor([1.0]).require_grad())
    with pytest.raises(GraphError, match="returned 1 tracked tensors, and 2 when it was called again"):
        y.backward()


def test_a_checkpoint_whose_parameter_was_replaced_before_the_reverse_pass() -> None:
    model = {"w": tensor(2.0).require_grad()}
    x = tensor(3.0).require_grad()
    out = checkpoint(lambda x: x * model["w"])(x)
    model["w"] = tensor(5.0).require_grad()
    with pytest.raises(GraphError, match="a parameter that a step has replaced"):
        out.backward()


def test_a_checkpoint_keeps_what_its_containers_held() -> None:
    """Though the caller goes on with them, or the block itself changes them."""
    x = tensor([1.0, 2.0])

    def reused(x: Any) -> Any:
        state: dict[str, Any] = {"x": x}
        total = tensor(0.0)
        for state["scale"] in (2.0, 3.0):
            total = total + checkpoint(lambda state: (state["x"] * state["scale"]).sum())(state)
        return total

    def emptied(x: Any) -> Any:
        return checkpoint(lambda stack: (stack.pop() * stack.pop()).sum())([x, x])

    assert grad(reused)(x).tolist() == [5.0, 5.0]
    assert grad(emptied)(x).tolist() == [2.0, 4.0]
    assert grad(lambda x: grad(emptied)(x).sum())(x).tolist() == [2.0, 2.0]
    statistics: Any = normalized()
    model, rows = statistics[1], bb.stack([x, 2.0 * x, x])[:, :1] * tensor([1.0, 2.0, 3.0])
    grad(lambda x: checkpoint(lambda held, x: held[0](x).square().sum())([model], x))(rows)
    assert model.running_mean.tolist() != [0.0] * 3  # a module is no container: what it has learnt it keeps


def test_a_derivative_by_hand_of_a_container_that_its_caller_goes_on_with() -> None:
    product = custom_vjp(lambda pair: pair[0] * pair[1])
    product.define(lambda pair: (pair[0] * pair[1], tuple(pair)), lambda pair, g: ([g * pair[1], g * pair[0]],))

    def f(x: Any) -> Any:
        values = [x, x]
        values.append(product(values))
        return values[-1].sum()

    assert grad(f)(tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_numbers_of_arguments_may_be_integers_of_numpy() -> None:
    x = tensor([1.0, 2.0])
    assert grad(cube, np.int64(0))(x).tolist() == [3.0, 12.0]  # type: ignore[arg-type]


def test_arguments_by_name_are_not_differentiated_for() -> None:
    with pytest.raises(ArgumentError, match=r"argnums 0 must be .* given by position are 0, and by name x, for which"):
        grad(cube)(x=tensor([1.0, 2.0]))


@pytest.mark.parametrize("call", [
    lambda option: jacobian(cube, mode=option),
    lambda option: bb.vmap(cube, randomness=option),
    lambda option: bb.vmap(cube, on_fallback=option),
    lambda option: bb.capture(cube, on_fallback=option),
])  # fmt: skip
@pytest.mark.parametrize("option", [np.asarray([1, 2]), tensor([1.0, 2.0]), None, ["reverse"]])
def test_options_that_are_no_words(call: Any, option: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^(jacobian|vmap|capture): .* is one of"):
        call(option)


def test_functions_with_derivatives_by_hand_take_arguments_by_name() -> None:
    @custom_vjp
    def scaled(x: Any, factor: float = 2.0, *rest: float) -> Any:
        return x * factor

    scaled.define(lambda x, factor: (x * factor, factor), lambda factor, g: (g * factor * 10.0, None))
    assert scaled(tensor(1.0), factor=3.0).item() == 3.0
    assert grad(lambda x: scaled(x, factor=3.0))(1.0).item() == 30.0
    assert grad(lambda x: scaled(factor=3.0, x=x))(1.0).item() == 30.0

    @custom_vjp
    def named(x: Any, *, factor: float) -> Any:
        return x * factor

    with pytest.raises(ArgumentError, match="takes factor by name only"):
        named(tensor(1.0), factor=3.0)


def test_a_derivative_by_hand_of_a_function_that_captures_a_tracked_tensor() -> None:
    w, x = tensor(2.0).require_grad(), tensor(3.0).require_grad()

    @custom_vjp
    def f(x: Any) -> Any:
        return x * w

    f.define(lambda x: (x * w, None), lambda saved, g: (g * 2.0,))
    with pytest.raises(GraphError, match="forward function of f uses a tracked tensor that it was not given"):
        f(x)


ONE = tensor(1.0)
def test_a_derivative_by_hand_of_a_function_that_captures_an_example_of_vmap() -> None:
    def scaled(x: Any) -> Any:
        f = custom_vjp(lambda y: x * y)
        f.define(lambda y: (x * y, x), lambda x, g: (g * x,))
        return f

    x = tensor([1.0, 2.0])
    assert bb.vmap(lambda x: scaled(x)(2.0 * x))(x).tolist() == [2.0, 8.0]
    with pytest.raises(GraphError, match=r"that it was not given, and that differs between the examples of the vmap"):
        grad(lambda y: bb.vmap(lambda x: scaled(x)(y))(x).sum())(tensor(3.0))
    with pytest.raises(BackendMismatchError, match="<lambda>, whose derivative is given by hand, captures a tensor of"):
        grad(lambda y: bb.vmap(lambda x: scaled(x)(y * x))(x).sum())(tensor(3.0))


BETWEEN: dict[str, Any] = {
    "grad": lambda h, x: grad(lambda y: h(x * stop_gradient(y)) * y)(ONE),
    "jvp": lambda h, x: jvp(lambda y: h(x * stop_gradient(y)) * y, (ONE,), (ONE,))[1],
    "vmap": lambda h, x: grad(lambda y: bb.vmap(lambda row: h(row))(bb.stack([x, x])).mean() * y)(ONE),
    "vmap between": lambda h, x: bb.vmap(lambda y: h(x * y))(bb.ones(2, dtype="float64")).mean(),
    "twice": lambda h, x: grad(lambda y: grad(lambda z: h(x * stop_gradient(z)) * y * z)(ONE))(ONE),
}


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_derivative_by_hand_counts_below_a_level_of_constants(between: str, recursive: bool) -> None:
    """A transform inside lifts what it does not differentiate for; outside, the derivative is the one given."""
    f = bb.sin
    by_hand = custom_vjp(f)
    by_hand.define(lambda x: ((by_hand if recursive else f)(x), x), lambda x, g: (g * 10.0 * bb.cos(x),))
    function = lambda x: BETWEEN[between](by_hand, x)
    x = tensor(0.7)
    leaf = x.require_grad()
    for found in (grad(function)(x), jvp(function, (x,), (ONE,))[1], leaf.grad(function(leaf).backward())):
        assert found.item() == pytest.approx(10.0 * np.cos(0.7), rel=1e-14)


def test_a_derivative_by_hand_in_the_derivative_of_a_tangent_map() -> None:
    by_hand = custom_vjp(bb.sin)
    by_hand.define(lambda x: (by_hand(x), x), lambda x, g: (g * 10.0 * bb.cos(x),))
    f = lambda x: bb.exp(by_hand(x))  # whose derivative is 10 cos(x) exp(sin(x))
    c, s = np.cos(0.7), np.sin(0.7)
    found = grad(lambda x: linearize(f, x)[1](ONE))(tensor(0.7)).item()
    assert found == pytest.approx((100.0 * c * c - 10.0 * s) * np.exp(s), rel=1e-14)


def test_a_derivative_by_hand_may_use_constants_of_the_default_backend() -> None:
    x: Any = bb.asarray([1.0, 2.0]).require_grad()

    @custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0

    f.define(lambda x: (x * bb.asarray(2.0), None), lambda saved, g: (g * bb.asarray([10.0, 20.0]),))
    found = x.grad(f(x).sum().backward())
    assert (found + 1.0).tolist() == [11.0, 21.0]
    w = bb.asarray(2.0).require_grad()
    f.define(lambda x: (x * 2.0, None), lambda saved, g: (g * w,))
    with pytest.raises(GraphError, match="backward function of f uses a tracked tensor that it was not given"):
        f(x).sum().backward()


def test_check_grads_finds_a_wrong_derivative_beside_a_large_value() -> None:
    @custom_vjp
    def wrong(x: Any) -> Any:
        return bb.sin(x)

    wrong.define(lambda x: (bb.sin(x), x), lambda x, g: (g * bb.cos(x) * 1.5,))
    check_grads(lambda x: bb.sin(x) + 1e6, (tensor(0.5),), order=1)
    with pytest.raises(AssertionError, match="derivative of order 1"):
        check_grads(lambda x: wrong(x) + 1e6, (tensor(0.5),))


def test_errors_of_derivatives_by_hand_name_the_function() -> None:
    @custom_vjp
    def halved(x: Any) -> Any:
        return x * 0.5

    with pytest.raises(ArgumentError, match="takes a function, not int"):
        halved.define(3, lambda saved, g: (g,))  # type: ignore[arg-type]
    halved.define(lambda x: x * 0.5, lambda saved, g: (g,))
    with pytest.raises(ArgumentError, match=r"forward function of halved must return a pair.*not FloatTensor"):
        grad(lambda x: halved(x))(1.0)
    halved.define(lambda x: (x * 0.5, 1, 2), lambda saved, g: (g,))
    with pytest.raises(ArgumentError, match="not tuple of 3"):
        grad(lambda x: halved(x))(1.0)


def test_check_grads_refuses_what_it_cannot_check() -> None:
    x = tensor([1.0])
    with pytest.raises(ArgumentError, match=r"check_grads\(f, \(x,\)\)"):
        check_grads(bb.sin, x)
    with pytest.raises(ArgumentError, match="of at least 1"):
        check_grads(bb.sin, (x,), order=0)
    wrong: tuple[dict[str, Any], ...] = ({"order": 1.5}, {"step": 0.0}, {"step": "x"}, {"tolerance": -1.0})
    for options in wrong:
        with pytest.raises(ArgumentError, match=f"check_grads: .*{next(iter(options))} is a(n integer| number)"):
            check_grads(bb.sin, (x,), **options)
    check_grads(bb.sin, (x,), tolerance=1e-4, step=1e-4)
    with pytest.raises(ArgumentError, match="no float tensor"):
        check_grads(lambda x: bb.argmax(x), (x,))
    with pytest.raises(ArgumentError, match="modes are 'reverse' and 'forward', not None"):
        check_grads(bb.sin, (x,), modes=None)  # type: ignore[arg-type]
    check_grads(bb.sin, (x,), modes="reverse")


@pytest.mark.parametrize(("name", "call"), [
    ("grad", lambda f, x: grad(f)(x)),
    ("value_and_grad", lambda f, x: value_and_grad(f)(x)),
    ("jacobian", lambda f, x: jacobian(f)(x)),
    ("hessian", lambda f, x: hessian(f)(x)),
    ("jvp", lambda f, x: jvp(f, (x,), (x,))),
    ("vjp", lambda f, x: vjp(f, x)),
    ("linearize", lambda f, x: linearize(f, x)),
])  # fmt: skip
def test_errors_name_the_function_that_was_called(name: str, call: Any) -> None:
    with pytest.raises(NotDifferentiableError, match=rf"^{name}: .*use 2\.0"):
        call(lambda x: x, 2)


def test_no_arguments_give_no_gradients() -> None:
    assert grad(lambda p: tensor(1.0))({}) == {}
    assert vjp(lambda: tensor(1.0))[1](1.0) == ()


# ---- tensors that leave a function in another way than being returned ----

INSIDE: dict[str, Any] = {
    "grad": lambda f: grad(f),
    "jvp": lambda f: lambda a: jvp(f, (a,), (1.0,))[1],
    "vjp": lambda f: lambda a: vjp(f, a)[1](1.0)[0],
    "linearize": lambda f: lambda a: linearize(f, a)[1](1.0),
    "jacobian": lambda f: jacobian(f),
    "reverse over forward": lambda f: lambda a: jvp(grad(f), (a,), (1.0,))[1],
}
OUTSIDE: dict[str, Any] = {
    "grad": lambda f: grad(f)(3.0),
    "jvp": lambda f: jvp(f, (3.0,), (1.0,)),
    "vjp": lambda f: vjp(f, 3.0)[1](1.0),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("kept", [lambda v: v, lambda v: v * 2.0], ids=["argument", "result"])
def test_tensors_kept_beyond_a_transform_are_refused(inside: str, outside: str, kept: Any) -> None:
    """What was computed from them would be a constant to the transform outside, silently."""
    box: list[Any] = []

    def square(v: Any) -> Any:
        box.append(kept(v))
        return v * v

    def f(a: Any) -> Any:
        INSIDE[inside](square)(a)
        return a * box[-1]

    with pytest.raises(GraphError, match=r"kept beyond it|the transform has ended"):
        OUTSIDE[outside](f)


def test_grad_releases_what_was_saved_as_it_goes() -> None:
    """What the end of the function saved is free when its beginning is differentiated; a vjp may go back again."""
    saved: list[Any] = []
    alive: list[bool] = []

    @bb.custom_vjp
    def first(x: Any) -> Any:
        return x * 1.0

    def backward(_: Any, g: Any) -> tuple[Any]:
        alive.append(saved[-1]() is not None)
        return (g,)

    first.define(lambda x: (x * 1.0, None), backward)

    def f(x: Any) -> Any:
        y = bb.exp(first(x))
        saved.append(weakref.ref(y.primitive.node))
        return (y * y).sum()

    found = [without_collector(lambda: grad(f)(tensor([0.5])))]
    found += without_collector(lambda: vjp(f, tensor([0.5]))[1](1.0))
    np.testing.assert_allclose([g.numpy() for g in found], [[2 * math.e]] * 2, rtol=1e-6)
    assert alive == [False, True]


def test_a_result_kept_beyond_a_transform_is_none_of_the_next() -> None:
    box: list[Any] = []

    def total(v: Any) -> Any:
        box.append(v * v)
        return box[0].sum()

    grad(total)(tensor([1.0, 2.0]))
    with pytest.raises(GraphError, match="the level of the transform itself"):
        grad(lambda v: (v * box[0]).sum())(tensor([1.0, 2.0]))


def test_an_argument_kept_beyond_a_transform_is_of_no_use() -> None:
    box: list[Any] = []
    x = tensor([1.0, 2.0])
    uses: list[Any] = [
        lambda v: v + 1.0, lambda v: v.numpy(), lambda v: x * v, bb.sin, lambda v: v[0], lambda v: bb.stack([v, x]),
        lambda v: v.detach(), lambda v: v.inner(), lambda v: v.require_grad(), copy.deepcopy,
    ]  # fmt: skip

    def total(v: Any) -> Any:
        box.append(v)
        return v.sum()

    for run in (lambda f: grad(f)(x), lambda f: jvp(f, (x,), (x,)), lambda f: jacobian(f)(x)):
        run(total)
        for use in uses:
            with pytest.raises(GraphError, match="the transform has ended"):
                use(box[-1])
        assert repr(box[-1]) == "<a tensor of a transform that has ended>"
    assert vjp(lambda v: v, x)[0].tolist() == [1.0, 2.0]
    assert grad(lambda v: (v.sum(), {"v": v}), has_aux=True)(x)[1]["v"].tolist() == [1.0, 2.0]


def test_backward_inside_a_transform_is_refused() -> None:
    for f in (lambda a: a.require_grad() * 2.0, lambda a: (a * a).backward() and a):
        with pytest.raises(GraphError, match=r"inside of a transform.*a constant.*bb\.grad"):
            grad(f)(2.0)

    def with_a_leaf_of_its_own(a: Any) -> Any:
        w = tensor(3.0).require_grad()
        return a * w.grad((w * w).backward())

    assert grad(with_a_leaf_of_its_own)(tensor(2.0)).item() == 6.0


def test_what_keeps_its_gradient_may_be_differentiated() -> None:
    """A function may be written for ``backward``, too, which would return that gradient."""

    def f(x: Any) -> Any:
        return ((x * x).retain_grad() * x).sum()

    x = tensor([1.0, 2.0])
    assert grad(f)(x).tolist() == [3.0, 12.0]
    assert grad(lambda x: grad(f)(x).sum())(x).tolist() == [6.0, 12.0]
    assert bb.vmap(grad(f))(bb.stack([x, x])).tolist() == [[3.0, 12.0]] * 2
    assert vjp(lambda x: (x * x).retain_grad(), x)[1](x)[0].tolist() == [2.0, 8.0]


def test_what_functions_return_beside_their_value() -> None:
    x = tensor([1.0, 2.0])
    f = lambda x: (x * x * x, {"twice": x * 2.0, "name": "cube"})
    pairs: dict[str, Any] = {
        "vjp": vjp(f, x, has_aux=True),
        "jvp": jvp(f, (x,), (x,), has_aux=True),
        "linearize": linearize(f, x, has_aux=True),
        "jacobian": jacobian(f, has_aux=True)(x),
        "forward jacobian": jacobian(f, has_aux=True, mode="forward")(x),
        "hessian": hessian(lambda x: (f(x)[0].sum(), f(x)[1]), has_aux=True)(x),
    }
    for name, found in pairs.items():
        aux = found[-1]
        assert aux["name"] == "cube", name
        assert aux["twice"].tolist() == [2.0, 4.0], name
        assert aux["twice"].backend is x.backend, name
    assert pairs["vjp"][1](x)[0].tolist() == [3.0, 24.0]
    assert pairs["jvp"][1].tolist() == pairs["linearize"][1](x).tolist() == [3.0, 24.0]
    assert pairs["jacobian"][0].tolist() == pairs["forward jacobian"][0].tolist() == [[3.0, 0.0], [0.0, 12.0]]
    assert pairs["hessian"][0].tolist() == [[6.0, 0.0], [0.0, 12.0]]
    of_aux = grad(lambda x: vjp(f, x, has_aux=True)[2]["twice"].sum())(x)  # a level further out takes note of it
    assert of_aux.tolist() == [2.0, 2.0]
    for call in (lambda: vjp(cube, x, has_aux=True), lambda: jacobian(cube, has_aux=True)(x)):
        with pytest.raises(ArgumentError, match="returns a pair, its value and the rest"):
            call()
    check_grads(lambda x: x * x, (x,), 1, ["reverse"])


def test_what_functions_return_beside_their_value_keeps_its_outer_history() -> None:
    """Also where the value has none, being computed from constants alone."""

    def after(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda y: transform(lambda x: (x * x, {"seen": [x * y * y]}))["seen"][0]

    three, one = tensor(3.0), tensor(1.0)
    for name, found in {
        "grad": after(lambda f: grad(f, has_aux=True)(three)[-1]),
        "value_and_grad": after(lambda f: value_and_grad(f, has_aux=True)(three)[0][1]),
        "vjp": after(lambda f: vjp(f, three, has_aux=True)[-1]),
        "jvp": after(lambda f: jvp(f, (three,), (one,), has_aux=True)[-1]),
        "linearize": after(lambda f: linearize(f, three, has_aux=True)[-1]),
        "jacobian": after(lambda f: jacobian(f, has_aux=True)(three)[-1]),
        "hessian": after(lambda f: hessian(f, has_aux=True)(three)[-1]),
    }.items():
        assert grad(found)(2.0).item() == 12.0, name
        assert jvp(found, (tensor(2.0),), (one,))[1].item() == 12.0, name
        assert grad(grad(found))(2.0).item() == 6.0, name
        assert bb.vmap(found)(tensor([1.0, 2.0])).tolist() == [3.0, 12.0], name


# ---- state of modules ----


def normalized() -> Any:
    with bb.random.fork(0), bb.use_dtype("float64"):
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.ReLU(), nn.Linear(3, 2))


def by_hand(f: Any) -> Any:
    """``f`` of a module, with a derivative by hand, which is that of ``f``."""
    made = bb.custom_vjp(f)
    made.define(lambda m: vjp(f, m), lambda pullback, g: pullback(g))
    return made


STATEFUL: dict[str, Any] = {
    "by hand": lambda f, m: by_hand(f)(m),
    "the gradient by hand": lambda f, m: grad(by_hand(f))(m),
    "the tangent by hand": lambda f, m: jvp(by_hand(f), (m,), (tree_map(lambda x: x.detach() * 0.0, m),)),
    "grad": lambda f, m: grad(f)(m),
    "vjp": lambda f, m: vjp(f, m),
    "jvp": lambda f, m: jvp(f, (m,), (tree_map(lambda x: x.detach() * 0.0, m),)),
    "linearize": lambda f, m: linearize(f, m),
    "twice": lambda f, m: grad(lambda m: grad(f)(m)[0].weight.sum())(m),
    "from outside": lambda f, m: grad(lambda x: f(m) * x)(2.0),
    "jacobian": lambda f, m: jacobian(f)(m),
    "forward": lambda f, m: jacobian(f, mode="forward")(m),
    "hessian": lambda f, m: hessian(f)(m),
}


@pytest.mark.parametrize("derivative", STATEFUL)
def test_running_statistics_are_carried_out(derivative: str) -> None:
    """A model learns the same of its data by any way."""
    x = tensor(np.random.default_rng(0).normal(size=(16, 4)))
    loss = lambda model: (model(x) ** 2.0).sum()
    plain, model = normalized(), normalized()
    loss(plain).backward()
    STATEFUL[derivative](loss, model)
    for name, buffer in model.named_buffers():
        np.testing.assert_allclose(buffer.numpy(), dict(plain.named_buffers())[name].numpy(), rtol=1e-14)
        assert buffer.backend is plain[1].running_mean.backend
        assert not buffer.is_tracked
    assert all(p.is_require_grad for p in model.parameters())
    assert np.abs(model[1].running_mean.numpy()).max() > 0.0


def test_a_jacobian_that_memory_does_not_hold_is_told_at_once() -> None:
    x = bb.broadcast_to(bb.asarray([1.0]), (10**8,))
    with pytest.raises(DeviceMemoryError, match=r"^jacobian: .* float32\[100000000,100000000\]"):
        jacobian(lambda x: x[::-1])(x)


@pytest.mark.parametrize("default", ["numpy", "autodiff(numpy)"])
@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))", "forward(numpy)"])
def test_jacobians_of_arguments_above_the_default_backend(spec: str, default: str) -> None:
    with bb.use_backend(default):
        x = bb.asarray([1.0, 2.0], backend=spec)
        if spec.startswith("autodiff"):
            x = x.require_grad()
        for mode in ("reverse", "forward"):
            found = jacobian(lambda x: x * x, mode=mode)(x)
            assert found.tolist() == [[2.0, 0.0], [0.0, 4.0]]
            assert (found.backend, found.is_tracked) == (x.backend, x.is_tracked)
        assert hessian(lambda x: (x * x * x).sum())(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]


def test_units_of_a_jacobian_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them where each is large; they are never all there."""
    asked: list[tuple[int, ...]] = []

    def f(x: Any) -> Any:
        asked.append(x.shape)
        return (x * x).sum()

    monkeypatch.setattr(jacobians, "ELEMENTS", 21)
    x = np.arange(7.0)
    for mode in ("forward", "reverse"):
        np.testing.assert_array_equal(jacobian(f, mode=mode)(tensor(x)).numpy(), 2 * x)
    np.testing.assert_array_equal(jacobian(lambda x: x * x)(tensor(x)).numpy(), np.diag(2 * x))
    assert len(asked) == 1 + 3 + 1 + 1  # a run for the value, then one for each part of at most three


def test_what_a_function_does_to_plain_containers_stays_there() -> None:
    parameters = {"w": tensor(2.0), "layers": [tensor(3.0)]}
    before = dict(parameters), list(parameters["layers"])

    def f(p: Any) -> Any:
        p["w"] = p["w"] * 2.0
        p["layers"][0] = p["w"] * p["layers"][0]
        return p["layers"][0]

    found = grad(f)(parameters)
    assert (found["w"].item(), found["layers"][0].item()) == (6.0, 4.0)
    assert parameters["w"] is before[0]["w"]
    assert parameters["layers"][0] is before[1][0]


def test_a_parameter_in_two_places_of_a_module_is_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            with bb.use_dtype("float64"):
                self.embedding = nn.Embedding(5, 3)
            self.head = self.embedding
            self.again = self.embedding.weight

        def forward(self, i: Any) -> Any:
            return self.embedding(i) @ self.head.weight.T * self.again.sum()

    model = Tied()
    loss = lambda m: (m(bb.asarray([1, 3])) ** 2.0).sum()
    expected = model.embedding.weight.grad(loss(model).backward())
    assert expected is not None
    found = grad(loss)(model)
    assert found.embedding.weight is found.head.weight is found.again
    np.testing.assert_allclose(found.again.numpy(), expected.numpy(), rtol=1e-12)
    along = jvp(loss, (model,), (found,))[1]
    assert along.item() == pytest.approx((expected.numpy() ** 2).sum())
    assert tree_map(lambda x: x * 1.0, model).num_parameters == model.num_parameters == 15
    x = tensor([1.0, 2.0])
    first, second = grad(lambda a, b: (a * b * b).sum(), (0, 1))(x, x)  # arguments are no places of a module
    assert (first.tolist(), second.tolist()) == ([1.0, 4.0], [2.0, 8.0])


def test_the_leaf_that_has_no_gradient_is_named() -> None:
    for bad, words in ((bb.asarray([1, 2]), r"only float tensors .*, at 'k\.1'"), (3, "an integer, at 'k.1': use")):
        with pytest.raises(NotDifferentiableError, match=words):
            bb.grad(lambda x, p: (x * p["k"][0]).sum(), argnums=1)(bb.ones(2), {"k": [bb.ones(2), bad]})
    with pytest.raises(DTypeError, match="differentiates for float tensors and floats, not ndarray, at 'w'"):
        bb.jvp(lambda p: p["w"], ({"w": np.ones(2)},), ({"w": np.ones(2)},))


def test_tensors_of_a_module_that_are_no_floats() -> None:
    """They belong to the module, stand in gradients as they are, and are carried out where they were replaced."""

    class Picking(nn.Module):
        order: Any
        mask: Any
        calls: Any

        def __init__(self) -> None:
            with bb.use_dtype("float64"), bb.random.fork(0):
                self.linear = nn.Linear(3, 2)
            self.register_buffer("order", bb.asarray([2, 0, 1]))
            self.register_buffer("mask", bb.asarray([True, False, True]))
            self.register_buffer("calls", bb.asarray(0))

        def forward(self, x: Any) -> Any:
            self.calls = self.calls + 1
            return self.linear(bb.where(self.mask, bb.take(x, self.order, axis=1), 0.0))

    model, x = Picking(), tensor(np.random.default_rng(0).normal(size=(4, 3)))
    loss = lambda m: (m(x) ** 2.0).sum()
    expected = model.linear.weight.grad(loss(model).backward())
    assert expected is not None
    found = grad(loss)(model)
    np.testing.assert_allclose(found.linear.weight.numpy(), expected.numpy(), rtol=1e-14)
    assert found.order is model.order
    assert model.calls.item() == 2
    along = tree_map(lambda p: p.detach() if p.dtype.kind == "float" else p, found)
    square = float((expected.numpy() ** 2).sum() + (found.linear.bias.numpy() ** 2).sum())
    assert jvp(loss, (model,), (along,))[1].item() == pytest.approx(square)
    assert linearize(loss, model)[1](along).item() == pytest.approx(square)
    assert hessian(loss)(model).linear.weight.linear.bias.shape == (3, 2, 2)
    check_grads(loss, (model,), order=1)
    assert "order=constant" in repr(flatten(model, is_constant=lambda x: x.dtype.kind != "float")[1])
    with pytest.raises(NotDifferentiableError, match=r"int64\[2\]"):
        grad(lambda p: p["w"].sum())({"w": tensor([1.0]), "i": bb.asarray([1, 2])})
