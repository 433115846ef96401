"""``jvp`` and transforms based on it: levels, leaks, other dtypes, custom rules, checkpoints, trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DTypeError,
    GraphError,
    MissingRuleError,
    NotDifferentiableError,
    ShapeError,
)
from backburn.ops.table import OPERATIONS
from backburn.transforms import (
    checkpoint,
    custom_vjp,
    grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    linearize,
    stop_gradient,
    value_and_grad,
    vjp,
)


def tensor(values: Any, **options: Any) -> Any:
    return bb.asarray(values, dtype="float64", **options)


def slope(f: Any) -> Any:
    """Return the forward-mode derivative of a function of a number."""
    return lambda x: jvp(f, (x,), (1.0,))[1]


# ---- levels ----


@pytest.mark.parametrize("outer", [slope, grad])
@pytest.mark.parametrize("inner", [slope, grad])
def test_perturbations_are_not_confused(outer: Any, inner: Any) -> None:
    """d/dx [x * d/dy (x * y) at y = 1] at 2 is 4, and d/dx [x * d/dy (x + y) at y = 1] at 1 is 1."""
    assert outer(lambda x: x * inner(lambda y: x * y)(tensor(1.0)))(tensor(2.0)).item() == 4.0
    assert outer(lambda x: x * inner(lambda y: x + y)(tensor(1.0)))(tensor(1.0)).item() == 1.0


def test_a_derivative_that_returns_a_function_keeps_its_perturbations_apart() -> None:
    """The shift operator of Manzyuk et al. (2019): its derivative, applied to itself, differentiates twice."""

    def shift(u: Any) -> Any:
        return lambda f: lambda x: f(x + u)

    def differentiated(f: Any) -> Any:
        """Return the derivative of ``u -> shift(u)(f)(y)`` at 0, as a function of y."""
        return lambda y: slope(lambda u: shift(u)(f)(y))(tensor(0.0))

    twice = differentiated(differentiated(bb.exp))
    assert twice(tensor(1.0)).item() == pytest.approx(np.e, rel=1e-15)


@pytest.mark.parametrize("order", ["fff", "ffr", "frf", "frr", "rff", "rfr", "rrf", "rrr"])
def test_third_derivatives(order: str) -> None:
    f: Any = lambda x: x**4.0
    for mode in order:
        f = slope(f) if mode == "f" else grad(f)
    assert f(tensor(2.0)).item() == 48.0


def test_an_argument_may_be_tracked_by_hand() -> None:
    w = tensor(2.0).require_grad()
    value, tangent = jvp(lambda x: x * x * w, (tensor(3.0),), (tensor(1.0),))
    assert w.grad(tangent.backward(retain_graph=True)).item() == 6.0
    assert w.grad(value.backward()).item() == 9.0
    direction = tensor(1.0).require_grad()
    _, tangent = jvp(lambda x: x * x, (tensor(3.0, backend="numpy"),), (direction,))
    assert direction.grad(tangent.backward()).item() == 6.0


def test_constants_and_detached_tensors_have_no_tangent() -> None:
    x = tensor(3.0)
    assert jvp(lambda x: tensor(5.0), (x,), (1.0,))[1].item() == 0.0
    assert jvp(lambda x: x * x.detach(), (x,), (1.0,))[1].item() == 3.0
    assert jvp(lambda x: x * stop_gradient(x), (x,), (1.0,))[1].item() == 3.0
    assert slope(slope(lambda x: x * stop_gradient(x * x)))(x).item() == 0.0

    def unrecorded(x: Any) -> Any:
        with bb.no_grad():
            y = x * x
        return x * y

    assert jvp(unrecorded, (x,), (1.0,))[1].item() == 9.0
    assert grad(unrecorded)(x).item() == 9.0


def test_transforms_inside_no_grad_differentiate_and_return_constants() -> None:
    w = tensor(2.0).require_grad()
    f = lambda x: x * x * w
    with bb.no_grad():
        results = [*value_and_grad(f)(w), *jvp(f, (w,), (w,)), hvp(f, (w,), (w,))[0], hessian(f)(w), linearize(f, w)[0]]
        _, pullback = vjp(f, w)
        results += [pullback(1.0)[0], linearize(f, w)[1](1.0), grad(lambda x: (f(x), x * w), has_aux=True)(w)[1]]
    assert [x.item() for x in results] == [8.0, 8.0, 8.0, 16.0, 8.0, 4.0, 8.0, 8.0, 8.0, 4.0]
    assert not any(x.is_tracked for x in results)


def test_a_leaked_tensor_is_refused_and_explained() -> None:
    leaked: list[Any] = []

    def leak(x: Any) -> Any:
        leaked.append(x * 2.0)
        return x * x

    jvp(leak, (tensor(3.0),), (1.0,))
    grad(leak)(tensor(3.0))
    with pytest.raises(BackendMismatchError, match=r"different runs of a transform.*has_aux"):
        jvp(lambda x: x * leaked[0], (tensor(5.0),), (1.0,))
    with pytest.raises(BackendMismatchError, match="different runs of a transform"):
        grad(lambda x: x * leaked[0])(tensor(5.0))
    with pytest.raises(GraphError, match="Pass the tensor as an argument"):
        grad(lambda x: x * leaked[1])(tensor(5.0))
    assert leaked[0].item() == 6.0


def test_decorators_written_by_the_user_are_not_levels_of_a_transform() -> None:
    """Two decorators of one backend, neither of which contains the other."""
    with pytest.raises(BackendMismatchError, match=r"different backends.*write \.to\('forward\(numpy\)'\)"):
        bb.ones(2, backend="forward(numpy)") + bb.ones(2, backend="autodiff(numpy)")


# ---- other dtypes, user-defined rules, checkpoints ----


def test_integers_booleans_and_quantized_tensors_pass_through() -> None:
    index, mask = bb.asarray([2, 0]), bb.asarray([True, False])
    weight = tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).astype("float32").quantize()

    def f(x: Any, i: Any) -> Any:
        y = bb.where(mask, bb.take(x, i), 0.0)
        return {"y": y, "chosen": bb.argmax(x), "sum": i.sum(), "dense": weight.dequantize().sum() * y.sum()}

    value, tangent = jvp(lambda x: f(x, index), (bb.asarray([1.0, 2.0, 3.0]),), (bb.asarray([0.1, 0.2, 0.3]),))
    assert value["y"].tolist() == [3.0, 0.0]
    np.testing.assert_allclose(tangent["y"].numpy(), [0.3, 0.0], rtol=1e-6)
    assert tangent["chosen"].item() == value["chosen"].item() == 2
    assert tangent["sum"].item() == 2
    np.testing.assert_allclose(tangent["dense"].item(), 21 * 0.3, rtol=1e-2)


def test_a_number_among_the_results_has_the_tangent_of_a_constant() -> None:
    def f(x: Any) -> Any:
        return {"y": x * x, "rate": 0.5, "steps": 3, "name": "f", "none": None}

    expected = {"y": 6.0, "rate": 0.0, "steps": 3, "name": "f", "none": None}
    for tangent in (jvp(f, (3.0,), (1.0,))[1], linearize(f, 3.0)[1](1.0)):
        assert {**tangent, "y": tangent["y"].item()} == expected


def test_user_defined_operations_propagate_tangents_in_three_ways() -> None:
    @bb.operation()
    def jvp_body(k: Any, x: Any, /) -> Any:
        """The third power, differentiated through its body."""
        return k.mul(x, k.mul(x, x))

    @bb.operation()
    def jvp_ruled(k: Any, x: Any, y: Any, /) -> Any:
        """A product whose rule is transposed."""
        return k.mul(k.mul(x, x), y)

    bb.gradient_rule(
        jvp_ruled,
        x=lambda k, g, x, y: k.mul(g, k.mul(2.0, k.mul(x, y))),
        y=lambda k, g, x: k.mul(g, k.square(x)),
    )

    @bb.operation()
    def jvp_marked(k: Any, x: Any, /) -> Any:
        """A third power whose rule is marked."""
        return k.mul(x, k.mul(x, x))

    bb.gradient_rule(jvp_marked, x=lambda k, g, x: k.mul(g, k.mul(3.0, k.square(x))))
    bb.autodiff.elementwise("jvp_marked")
    x, t = tensor([1.0, 2.0]), tensor([1.0, 10.0])
    for operation in (jvp_body, jvp_marked):
        assert jvp(operation, (x,), (t,))[1].tolist() == [3.0, 120.0]
        assert hvp(lambda x, f=operation: f(x).sum(), (x,), (t,))[0].tolist() == [6.0, 120.0]
    assert jvp(lambda x: jvp_ruled(x, x), (x,), (t,))[1].tolist() == [3.0, 120.0]
    assert slope(slope(lambda x: jvp_ruled(x, x)))(tensor(2.0)).item() == 12.0
    assert [bb.autodiff.jvp_strategy(n) for n in ("jvp_body", "jvp_ruled", "jvp_marked")] == [
        "body", "transposed", "elementwise"
    ]  # fmt: skip


def test_an_operand_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @bb.operation()
    def jvp_partial(k: Any, x: Any, y: Any, /) -> Any:
        """A product with a rule for one operand."""
        return k.mul(x, y)

    bb.gradient_rule(jvp_partial, x=lambda k, g, y: k.mul(g, y))
    bb.autodiff.elementwise("jvp_partial")
    x = tensor(2.0)
    assert jvp(lambda x: jvp_partial(x, 3.0), (x,), (1.0,))[1].item() == 3.0
    with pytest.raises(MissingRuleError, match="'y'"):
        jvp(lambda y: jvp_partial(3.0, y), (x,), (1.0,))
    assert OPERATIONS["jvp_partial"].gradients


def test_custom_vjp_is_transposed() -> None:
    @custom_vjp
    def softplus(x: Any, scale: Any) -> Any:
        return bb.log(1.0 + bb.exp(x * scale))

    def backward(saved: Any, g: Any) -> Any:
        x, scale = saved
        s = bb.sigmoid(x * scale)
        return g * s * scale, (g * s * x).sum()

    softplus.define(lambda x, scale: (softplus(x, scale), (x, scale)), backward)
    x, t = tensor([0.3, 800.0]), tensor([1.0, 2.0])
    plain = lambda x, scale: bb.nn.functional.softplus(x * scale)
    at, along = (x, tensor(0.5)), (t, tensor(-1.0))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(jvp(softplus, at, along)[1].numpy(), jvp(plain, at, along)[1].numpy(), rtol=1e-14)
    x, along = tensor([0.3, -0.2]), (t, tensor(-1.0))
    at = (x, tensor(0.5))
    loss = lambda f: lambda x, s: (f(x, s) ** 2.0).sum()
    for one, other in zip(hvp(loss(softplus), at, along), hvp(loss(plain), at, along), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-13)
    np.testing.assert_allclose(
        jacobian(softplus, mode="forward")(*at).numpy(), jacobian(softplus)(*at).numpy(), rtol=1e-14
    )


def test_checkpoints_carry_tangents() -> None:
    w = tensor([0.5, -0.3])
    plain = lambda x: bb.tanh(bb.tanh(x * w) * x) * w
    x, t = tensor([0.3, 0.7]), tensor([1.0, -2.0])
    np.testing.assert_array_equal(jvp(checkpoint(plain), (x,), (t,))[1].numpy(), jvp(plain, (x,), (t,))[1].numpy())
    loss = lambda f: lambda x: (f(x) ** 2.0).sum()
    np.testing.assert_allclose(
        hvp(loss(checkpoint(plain)), (x,), (t,))[0].numpy(), hvp(loss(plain), (x,), (t,))[0].numpy(), rtol=1e-14
    )


def test_a_network_with_parameters_and_running_statistics() -> None:
    with bb.random.fork(0):
        model = bb.nn.Sequential(bb.nn.Linear(3, 4), bb.nn.BatchNorm(4), bb.nn.GELU(), bb.nn.Linear(4, 2))
    x = bb.asarray(np.linspace(-1, 1, 15).reshape(5, 3), dtype="float32")
    t = bb.asarray(np.linspace(1, -1, 15).reshape(5, 3), dtype="float32")
    _, tangent = jvp(model, (x,), (t,))
    step = 1e-2
    expected = (model(x + step * t).numpy() - model(x - step * t).numpy()) / (2 * step)
    np.testing.assert_allclose(tangent.numpy(), expected, atol=2e-3)
    statistics: Any = model[1]
    assert statistics.running_mean.backend is x.backend
    assert not statistics.running_mean.is_tracked


# ---- trees ----


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_jacobians_of_trees(mode: str) -> None:
    f = lambda p: {"a": (p["w"] ** 2.0).sum() * p["b"], "c": p["w"] * p["b"]}
    found = jacobian(f, mode=mode)({"w": tensor([1.0, 2.0]), "b": tensor(3.0)})
    assert found["a"]["w"].tolist() == [6.0, 12.0]
    assert found["a"]["b"].item() == 5.0
    assert found["c"]["w"].tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert found["c"]["b"].tolist() == [1.0, 2.0]
    of_x, of_y = jacobian(lambda x, y: x * y, argnums=(0, 1), mode=mode)(tensor([1.0, 2.0]), tensor(3.0))
    assert of_x.tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert of_y.tolist() == [1.0, 2.0]


def test_hessians_of_trees() -> None:
    f = lambda p: (p["w"] ** 2.0).sum() * p["b"]
    found = hessian(f)({"w": tensor([1.0, 2.0]), "b": tensor(3.0)})
    assert found["w"]["w"].tolist() == [[6.0, 0.0], [0.0, 6.0]]
    assert found["w"]["b"].tolist() == found["b"]["w"].tolist() == [2.0, 4.0]
    assert found["b"]["b"].item() == 0.0
    (xx, xy), (yx, yy) = hessian(lambda x, y: (x * y * y).sum(), argnums=(0, 1))(tensor([1.0]), tensor([2.0]))
    assert [h.item() for h in (xx, xy, yx, yy)] == [0.0, 4.0, 4.0, 2.0]


# ---- cost, invalid inputs ----


def test_jvp_runs_the_function_once_and_records_nothing() -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(1)
        y = bb.tanh(x @ x)
        assert y.primitive.value.__class__ is not y.primitive.__class__
        assert y.inner().is_tracked is False
        return y

    jvp(f, (tensor(np.ones((3, 3))),), (tensor(np.ones((3, 3))),))
    assert len(runs) == 1


def test_bad_inputs_are_explained() -> None:
    x = tensor([1.0, 2.0])
    f = lambda x: x * x
    with pytest.raises(ArgumentError, match=r"jvp\(f, \(x,\), \(t,\)\)"):
        jvp(f, x, x)
    with pytest.raises(ArgumentError, match=r"hvp\(f, \(x,\), \(t,\)\)"):
        hvp(f, x, x)
    with pytest.raises(ShapeError, match=r"tangent float64\[3\].*float64\[2\]"):
        jvp(f, (x,), (tensor([1.0, 2.0, 3.0]),))
    with pytest.raises(ShapeError, match=r"tangent float32\[2\].*float64\[2\]"):
        jvp(f, (x,), (bb.asarray([1.0, 2.0]),))
    with pytest.raises(DTypeError, match="a tensor or a number, not str"):
        jvp(f, (x,), ("a",))
    with pytest.raises(DTypeError, match="a tensor or a number, not str"):
        vjp(f, x)[1]("a")
    with pytest.raises(NotDifferentiableError, match=r"use 2\.0"):
        jvp(f, (2,), (1,))
    with pytest.raises(GraphError, match=r"inside of a transform.*bb\.grad"):
        jvp(lambda x: x.require_grad(), (x,), (x,))
    transforms: dict[str, Any] = {"grad": grad, "jacobian": jacobian, "checkpoint": checkpoint, "vjp": vjp}
    for name, transform in transforms.items():
        with pytest.raises(ArgumentError, match=f"{name}: takes a function, not FloatTensor"):
            transform(x)
    with pytest.raises(ArgumentError, match="argnums 3 must be"):
        hessian(f, argnums=3)(x)
    with pytest.raises(ArgumentError, match="integer or a tuple"):
        grad(f, argnums="x")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="returns a pair"):
        grad(lambda x: x.sum(), has_aux=True)(x)
    with pytest.raises(ArgumentError, match="float tensors, not IntTensor"):
        jacobian(lambda x: bb.argmax(x))(x)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_jacobians_of_many_elements_use_several_groups(mode: str) -> None:
    from backburn.transforms import jacobians

    x = tensor(np.linspace(-1, 1, jacobians.AT_ONCE + 44))
    found = jacobian(lambda x: bb.cumulative_sum(x * x), mode=mode)(x).numpy()
    np.testing.assert_allclose(found, np.tril(np.broadcast_to(2 * x.numpy(), found.shape)), rtol=1e-14)
    state = bb.random.get_state()
    dropped = jacobian(lambda x: x * bb.random.normal(x.shape, dtype="float64"), mode=mode)(x).numpy()
    bb.random.set_state(state)
    np.testing.assert_array_equal(dropped, np.diag(bb.random.normal(x.shape, dtype="float64").numpy()))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_functions_under_a_jacobian_may_read_values(mode: str) -> None:
    x = tensor([1.0, 2.0, -0.5])
    assert jacobian(lambda x: x * x if x.sum().item() > 0 else x, mode=mode)(x).tolist()[1] == [0.0, 4.0, 0.0]
    assert jacobian(lambda x: x[x > 0.0] ** 2.0, mode=mode)(x).tolist() == [[2.0, 0.0, 0.0], [0.0, 4.0, 0.0]]
    w = tensor([1.0, 2.0, 3.0]).require_grad()
    found = jacobian(lambda x: x * w, mode=mode)(x)
    assert found.backend is x.backend
    assert w.grad(found.sum().backward()).tolist() == [1.0, 1.0, 1.0]


def test_infinite_numbers_written_to_elements_are_constants() -> None:
    x, direction = tensor([1.0, 2.0, 3.0]), tensor([1.0, 1.0, 1.0])
    for f in (lambda x: x.at[1].set(np.inf), lambda x: bb.scatter(x, bb.asarray([1]), -np.inf, axis=0)):
        assert jvp(f, (x,), (direction,))[1].tolist() == [1.0, 0.0, 1.0]
