"""Transforms of functions: values, composition, levels, state of modules, invalid inputs."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.helpers.transforms import by_hand, normalized, tensor, without_collector

import backburn as bb
from backburn import nn
from backburn.base.errors import (
    ArgumentError,
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
def test_the_gradient_is_on_the_backend_of_its_argument(spec: str) -> None:
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


def test_auxiliary_results_leave_the_level_of_the_transform() -> None:
    def loss(x: Any) -> Any:
        return (x**3.0).sum(), [x, x * x, x > 1.0, "words"]

    x = tensor([1.0, 2.0])
    (_, (same, squares, large, words)), _ = value_and_grad(loss, has_aux=True)(x)
    assert (squares.tolist(), large.tolist(), words) == ([1.0, 4.0], [False, True], "words")
    for out in (same, squares, large):
        assert out.backend is x.backend
    # An outer transform differentiates through it.
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


def test_the_gradient_of_an_unused_argument_is_zero() -> None:
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
    """Objects of a transform are freed when it ends, without the cyclic collector."""
    x = tensor([0.5, 2.0])
    f = lambda x: (bb.tanh(x) * x).sum() + bb.linalg.svdvals(bb.reshape(x, (1, 2))).sum()
    transform(f, x)

    def run() -> int:
        transform(f, x)
        return gc.collect()

    assert without_collector(run) == 0


def test_argnums_may_be_numpy_integers() -> None:
    x = tensor([1.0, 2.0])
    assert grad(cube, np.int64(0))(x).tolist() == [3.0, 12.0]  # type: ignore[arg-type]


def test_keyword_arguments_are_not_differentiated() -> None:
    with pytest.raises(ArgumentError, match=r"argnums 0 must be .* 0 were given by position; arguments by name \(x\)"):
        grad(cube)(x=tensor([1.0, 2.0]))


@pytest.mark.parametrize("call", [
    lambda option: jacobian(cube, mode=option),
    lambda option: bb.vmap(cube, randomness=option),
    lambda option: bb.vmap(cube, on_fallback=option),
    lambda option: bb.capture(cube, on_fallback=option),
])  # fmt: skip
@pytest.mark.parametrize("option", [np.asarray([1, 2]), tensor([1.0, 2.0]), None, ["reverse"]])
def test_options_that_are_not_strings(call: Any, option: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^(jacobian|vmap|capture): .* is one of"):
        call(option)


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


# ---- tensors that leave a function without being returned ----

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
    """Values computed from them would silently be constants to the outer transform."""
    box: list[Any] = []

    def square(v: Any) -> Any:
        box.append(kept(v))
        return v * v

    def f(a: Any) -> Any:
        INSIDE[inside](square)(a)
        return a * box[-1]

    with pytest.raises(GraphError, match=r"kept it beyond the transform|the transform has ended"):
        OUTSIDE[outside](f)


def test_grad_frees_saved_values_during_the_reverse_pass() -> None:
    """``grad`` frees saved values during the reverse pass; ``vjp`` keeps them, as its pullback may run again."""
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


def test_a_result_kept_from_a_transform_is_refused_by_the_next() -> None:
    box: list[Any] = []

    def total(v: Any) -> Any:
        box.append(v * v)
        return box[0].sum()

    grad(total)(tensor([1.0, 2.0]))
    with pytest.raises(GraphError, match="the level of the transform itself"):
        grad(lambda v: (v * box[0]).sum())(tensor([1.0, 2.0]))


def test_an_argument_kept_beyond_a_transform_is_refused() -> None:
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


def test_functions_with_retain_grad_may_be_transformed() -> None:
    """Functions with ``retain_grad``, written for ``backward``, can be transformed too."""

    def f(x: Any) -> Any:
        return ((x * x).retain_grad() * x).sum()

    x = tensor([1.0, 2.0])
    assert grad(f)(x).tolist() == [3.0, 12.0]
    assert grad(lambda x: grad(f)(x).sum())(x).tolist() == [6.0, 12.0]
    assert bb.vmap(grad(f))(bb.stack([x, x])).tolist() == [[3.0, 12.0]] * 2
    assert vjp(lambda x: (x * x).retain_grad(), x)[1](x)[0].tolist() == [2.0, 8.0]


def test_auxiliary_results() -> None:
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
    of_aux = grad(lambda x: vjp(f, x, has_aux=True)[2]["twice"].sum())(x)  # an outer level differentiates it
    assert of_aux.tolist() == [2.0, 2.0]
    for call in (lambda: vjp(cube, x, has_aux=True), lambda: jacobian(cube, has_aux=True)(x)):
        with pytest.raises(ArgumentError, match="returns a pair, its value and the rest"):
            call()
    check_grads(lambda x: x * x, (x,), 1, ["reverse"])


def test_auxiliary_results_keep_their_outer_history() -> None:
    """Also if the value has no outer history, being computed from constants alone."""

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


def zero(x: Any) -> Any:
    """Return a zero tangent; for an integer tensor, any value is valid."""
    return x.detach() * 0.0 if x.dtype.kind == "float" else x


STATEFUL: dict[str, Any] = {
    "by hand": lambda f, m: by_hand(f)(m),
    "the gradient by hand": lambda f, m: grad(by_hand(f))(m),
    "the tangent by hand": lambda f, m: jvp(by_hand(f), (m,), (tree_map(zero, m),)),
    "grad": lambda f, m: grad(f)(m),
    "vjp": lambda f, m: vjp(f, m),
    "jvp": lambda f, m: jvp(f, (m,), (tree_map(zero, m),)),
    "linearize": lambda f, m: linearize(f, m),
    "twice": lambda f, m: grad(lambda m: grad(f)(m)[0].weight.sum())(m),
    "from outside": lambda f, m: grad(lambda x: f(m) * x)(2.0),
    "jacobian": lambda f, m: jacobian(f)(m),
    "forward": lambda f, m: jacobian(f, mode="forward")(m),
    "hessian": lambda f, m: hessian(f)(m),
}


@pytest.mark.parametrize("derivative", STATEFUL)
def test_running_statistics_are_written_back_to_the_model(derivative: str) -> None:
    """Every transform updates the running statistics of a model in the same way."""
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


def test_a_jacobian_larger_than_memory_is_refused_at_once() -> None:
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


def test_jacobians_use_groups_of_unit_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit vectors are created in small groups if they are large."""
    asked: list[tuple[int, ...]] = []

    def f(x: Any) -> Any:
        asked.append(x.shape)
        return (x * x).sum()

    monkeypatch.setattr(jacobians, "ELEMENTS", 21)
    x = np.arange(7.0)
    for mode in ("forward", "reverse"):
        np.testing.assert_array_equal(jacobian(f, mode=mode)(tensor(x)).numpy(), 2 * x)
    np.testing.assert_array_equal(jacobian(lambda x: x * x)(tensor(x)).numpy(), np.diag(2 * x))
    assert len(asked) == 1 + 3 + 1 + 1  # one run for the value, then one per group of at most three


def test_changes_of_plain_containers_do_not_leave_the_function() -> None:
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


def test_a_tied_parameter_of_a_module_has_one_gradient() -> None:
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
    first, second = grad(lambda a, b: (a * b * b).sum(), (0, 1))(x, x)  # a tensor passed twice is not tied
    assert (first.tolist(), second.tolist()) == ([1.0, 4.0], [2.0, 8.0])


def test_errors_name_the_leaf_that_is_not_differentiable() -> None:
    for bad, words in ((bb.asarray([1, 2]), r"only float tensors .*, at 'k\.1'"), (3, "an integer, at 'k.1': use")):
        with pytest.raises(NotDifferentiableError, match=words):
            bb.grad(lambda x, p: (x * p["k"][0]).sum(), argnums=1)(bb.ones(2), {"k": [bb.ones(2), bad]})
    with pytest.raises(DTypeError, match="differentiates for float tensors and floats, not ndarray, at 'w'"):
        bb.jvp(lambda p: p["w"], ({"w": np.ones(2)},), ({"w": np.ones(2)},))


def test_tensors_of_a_module_that_are_not_floats() -> None:
    """They appear unchanged in gradients, and replacements of them are written back to the module."""

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
    assert hessian(loss)(model).linear.weight.linear.bias.shape == (2, 3, 2)
    check_grads(loss, (model,), order=1)
    assert "order=constant" in repr(flatten(model, is_constant=lambda x: x.dtype.kind != "float")[1])
    with pytest.raises(NotDifferentiableError, match=r"int64\[2\]"):
        grad(lambda p: p["w"].sum())({"w": tensor([1.0]), "i": bb.asarray([1, 2])})
