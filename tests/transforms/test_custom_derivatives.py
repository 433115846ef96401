"""Custom derivatives, constants, and checks of derivatives."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.transforms import tensor

import backburn as bb
from backburn import nn
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DTypeError,
    GraphError,
    ShapeError,
)
from backburn.base.trees import tree_map
from backburn.transforms import (
    check_grads,
    custom_vjp,
    grad,
    jvp,
    linearize,
    stop_gradient,
    vjp,
)

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
    """Return a function to the distance and angle of a point, and integers; its derivative is twice the true one."""

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

        def backward(saved: Any, g: Any) -> Any:  # noqa: N805 - the backward function takes residuals first
            factor, x = saved
            return {"factor": (g * x).sum() * 10.0}, g * factor * 10.0

        __call__.define(forward, backward)

    module, x = Scale(3.0), tensor([1.0, 2.0])
    assert Scale.__call__.__doc__ == "Multiply by the factor."
    assert module(x).tolist() == [3.0, 6.0]
    assert grad(lambda x: module(x).sum())(x).tolist() == [30.0, 30.0]
    of_module = grad(lambda m: m(x).sum())(module)
    assert of_module.factor.item() == 30.0


def test_custom_cotangents_are_matched_to_arguments_by_key() -> None:
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


def test_custom_cotangents_of_some_parameters_of_a_module() -> None:
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
        assert found[0].weight.tolist() == [[0.0, 0.0]]


def test_custom_vjp_with_a_pullback_as_residual() -> None:
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
    """A callable object with attributes."""

    def __init__(self) -> None:
        self.forward = self.name = self.f = 3.0

    def __call__(self, x: Any) -> Any:
        return x * self.f


@pytest.mark.parametrize("f", [Scaled(), functools.partial(lambda a, x: a * x, 3.0)], ids=["object", "partial"])
def test_custom_vjp_of_callables_without_a_name(f: Any) -> None:
    x, by_hand = tensor([1.0, 2.0]), custom_vjp(f)
    assert by_hand(x).tolist() == [3.0, 6.0]
    with pytest.raises(GraphError, match=rf"call {type(f).__name__}\.define"):
        grad(lambda x: by_hand(x).sum())(x)
    by_hand.define(lambda x: (f(x), None), lambda _, g: (30.0 * g,))
    assert bb.vmap(grad(by_hand))(x).tolist() == [30.0, 30.0]
    assert grad(lambda x: bb.vmap(by_hand)(x).sum())(x).tolist() == [30.0, 30.0]
    assert type(f).__name__ in repr(by_hand)


def test_custom_vjp_refuses_wrong_results() -> None:
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


def test_custom_vjp_of_a_container_that_its_caller_changes_later() -> None:
    product = custom_vjp(lambda pair: pair[0] * pair[1])
    product.define(lambda pair: (pair[0] * pair[1], tuple(pair)), lambda pair, g: ([g * pair[1], g * pair[0]],))

    def f(x: Any) -> Any:
        values = [x, x]
        values.append(product(values))
        return values[-1].sum()

    assert grad(f)(tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_functions_with_custom_vjp_take_keyword_arguments() -> None:
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


def test_custom_vjp_of_a_function_that_captures_a_tracked_tensor() -> None:
    w, x = tensor(2.0).require_grad(), tensor(3.0).require_grad()

    @custom_vjp
    def f(x: Any) -> Any:
        return x * w

    f.define(lambda x: (x * w, None), lambda saved, g: (g * 2.0,))
    with pytest.raises(GraphError, match="forward function of f uses a tracked tensor that it was not given"):
        f(x)


ONE = tensor(1.0)


def test_custom_vjp_of_a_function_that_captures_an_example_of_vmap() -> None:
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
def test_custom_vjp_applies_through_an_inner_transform(between: str, recursive: bool) -> None:
    """An inner transform treats the operand as a constant; outer ones use the custom derivative."""
    f = bb.sin
    by_hand = custom_vjp(f)
    by_hand.define(lambda x: ((by_hand if recursive else f)(x), x), lambda x, g: (g * 10.0 * bb.cos(x),))
    function = lambda x: BETWEEN[between](by_hand, x)
    x = tensor(0.7)
    leaf = x.require_grad()
    for found in (grad(function)(x), jvp(function, (x,), (ONE,))[1], leaf.grad(function(leaf).backward())):
        assert found.item() == pytest.approx(10.0 * np.cos(0.7), rel=1e-14)


def test_custom_vjp_in_the_derivative_of_a_tangent_map() -> None:
    by_hand = custom_vjp(bb.sin)
    by_hand.define(lambda x: (by_hand(x), x), lambda x, g: (g * 10.0 * bb.cos(x),))
    f = lambda x: bb.exp(by_hand(x))  # its derivative is 10 cos(x) exp(sin(x))
    c, s = np.cos(0.7), np.sin(0.7)
    found = grad(lambda x: linearize(f, x)[1](ONE))(tensor(0.7)).item()
    assert found == pytest.approx((100.0 * c * c - 10.0 * s) * np.exp(s), rel=1e-14)


def test_custom_vjp_may_use_constants_of_the_default_backend() -> None:
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


def test_check_grads_finds_a_wrong_derivative_of_a_large_value() -> None:
    @custom_vjp
    def wrong(x: Any) -> Any:
        return bb.sin(x)

    wrong.define(lambda x: (bb.sin(x), x), lambda x, g: (g * bb.cos(x) * 1.5,))
    check_grads(lambda x: bb.sin(x) + 1e6, (tensor(0.5),), order=1)
    with pytest.raises(AssertionError, match="derivative of order 1"):
        check_grads(lambda x: wrong(x) + 1e6, (tensor(0.5),))


def test_errors_of_custom_vjp_name_the_function() -> None:
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
