"""``vmap``: axes, levels, randomness, and composition with other transforms."""

from __future__ import annotations

import doctest
import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, OutOfRangeError, Unsupported
from backburn.base.trees import flatten, tree_map, unflatten
from backburn.batching import FallbackWarning, batching, broadcasting

Function = Callable[..., Any]


def real(*shape: int, seed: int = 0) -> Any:
    return bb.asarray(np.random.default_rng(seed).uniform(0.3, 2.0, shape))


def loop(f: Function, in_axes: tuple[int | None, ...], *args: Any) -> Any:
    """Return the expected result of ``vmap`` of a function of tensors."""
    sizes = [x.shape[a] for x, a in zip(args, in_axes, strict=True) if a is not None]
    results = [
        flatten(f(*(x if a is None else bb.take(x, bb.asarray(i), axis=a) for x, a in zip(args, in_axes, strict=True))))
        for i in range(sizes[0])
    ]
    return [bb.stack([leaves[n] for leaves, _ in results]) for n in range(len(results[0][0]))]


def same(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    leaves = flatten(got)[0]
    assert len(leaves) == len(expected)
    for x, y in zip(leaves, expected, strict=True):
        assert x.shape == y.shape
        assert x.dtype is y.dtype
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=tolerance, atol=tolerance)


# ---- axes ----


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0), (-1, 1), (1, -2), (2, None), (-3, 0)])
def test_in_axes(in_axes: tuple[int | None, ...]) -> None:
    x, y = real(3, 3, 3), real(3, 3, 3, seed=1)

    def f(a: Any, b: Any) -> Any:
        return a @ b + a.sum(), bb.sin(b).mean(axis=0)

    same(bb.vmap(f, in_axes)(x, y), loop(f, in_axes, x, y))


@pytest.mark.parametrize(("out_axes", "order"), [(0, (0, 1, 2)), (1, (1, 0, 2)), (2, (1, 2, 0)), (-1, (1, 2, 0))])
def test_out_axes(out_axes: int, order: tuple[int, ...]) -> None:
    x = real(2, 3, 4)
    assert (bb.vmap(bb.sin, out_axes=out_axes)(x) == bb.permute_dims(bb.sin(x), order)).all()


def test_out_axes_are_a_tree_and_none_omits_the_example_axis() -> None:
    x, y = real(3, 2), real(2, seed=1)
    result = bb.vmap(lambda x: {"a": x, "b": (y * 2.0, x)}, out_axes={"a": 1, "b": (None, 0)})(x)
    assert result["a"].shape == (2, 3)
    assert result["b"][0].tolist() == (y * 2.0).tolist()
    assert result["b"][1].shape == (3, 2)


def test_results_that_do_not_depend_on_the_example_are_repeated() -> None:
    y = real(2)
    assert bb.vmap(lambda x: y)(real(3)).tolist() == [y.tolist()] * 3


def test_trees_of_arguments_axes_and_results() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    tree: dict[str, Any] = {"p": Pair(real(3, 2), real(2, 3)), "q": [real(4)], "n": None}
    axes = {"p": Pair(0, 1), "q": None, "n": None}
    result = bb.vmap(lambda t: Pair(t["p"].left + t["p"].right, t["q"][0].sum()), in_axes=(axes,))(tree)
    assert isinstance(result, Pair)
    assert (result.left == tree["p"].left + tree["p"].right.T).all()
    assert result.right.shape == (3,)


def test_keyword_arguments_are_mapped_over_their_first_axis() -> None:
    x = real(3, 2)
    assert (bb.vmap(lambda x, *, y, scale: x * y * scale)(x, y=x, scale=2.0) == x * x * 2.0).all()


def test_as_decorator() -> None:
    @bb.vmap
    def doubled(x: Any) -> Any:
        """Twice."""
        return 2.0 * x

    @bb.vmap(in_axes=(0, None))
    def scaled(x: Any, y: Any) -> Any:
        return x * y

    assert doubled(real(3)).shape == (3,)
    assert doubled.__doc__ == "Twice."
    assert scaled(real(3), real(2)).shape == (3, 2)


def test_axis_size_and_no_examples() -> None:
    assert bb.vmap(lambda: bb.asarray(1.0), axis_size=3)().tolist() == [1.0, 1.0, 1.0]
    assert bb.vmap(lambda x: (x @ x.T).sum(axis=0))(real(0, 2, 3)).shape == (0, 2)
    assert bb.vmap(bb.grad(lambda x: bb.tanh(x).sum()))(real(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("kind", ["int64", "bool", "float32"])
def test_kinds_are_kept(kind: str) -> None:
    x = bb.asarray(np.arange(6).reshape(3, 2) % 2, dtype=kind)
    result = bb.vmap(lambda x: x[::-1])(x)
    assert result.dtype == kind
    assert result.backend is x.backend
    assert result.tolist() == x[:, ::-1].tolist()


def test_results_are_on_the_backend_of_the_arguments() -> None:
    x = bb.asarray([1.0, 2.0], backend="numpy")
    assert bb.vmap(bb.sin)(x).backend.spec == "numpy"
    assert bb.vmap(lambda x: x * bb.ones(2))(x).backend.spec == "numpy"


def test_indexing_with_indices_of_each_example() -> None:
    x, i = real(4, 5, 3), bb.asarray([0, -1, 2, 4])
    rows = bb.vmap(lambda x, i: (x[i], x[i, 1], x.at[i].set(0.0), bb.take(x, bb.stack([i, i]), axis=0)))(x, i)
    same(rows, loop(lambda x, i: (x[i], x[i, 1], x.at[i].set(0.0), bb.take(x, bb.stack([i, i]), axis=0)), (0, 0), x, i))
    with pytest.raises(OutOfRangeError):
        bb.vmap(lambda x, i: x[i])(x, bb.asarray([0, 5, 0, 0]))  # not a row of the next example
    with pytest.raises(OutOfRangeError, match="index 5 is out of range for axis 0"):
        bb.vmap(lambda x, i: x[i, i])(x, bb.asarray([0, 5, 0, 0]))


def test_a_mask_that_is_the_same_for_all_examples() -> None:
    x, mask = real(3, 4), bb.asarray([True, False, True, True])
    same(bb.vmap(lambda x: x[mask])(x), [x[:, mask]])
    same(bb.vmap(bb.grad(lambda x: (x[mask] ** 2.0).sum()))(x), [2.0 * x * mask.astype("float64")])
    same(bb.vmap(bb.vmap(lambda x: x.reshape((1,))[bb.asarray([True])]))(x), [bb.expand_dims(x, 2)])


# ---- levels ----


@pytest.mark.parametrize("how", ["set", "add", "multiply"])
def test_one_value_where_a_mask_is_true(how: str) -> None:
    x, v = real(3, 2, 4), real(3)

    def f(x: Any, v: Any) -> Any:
        y = getattr(x.at[x > 1.0], how)(v)
        return getattr(getattr(y.at[x[:, 0] > 0.8], how)(2.0).at[v > 1.0], how)(3.0)

    expected = bb.stack([f(x[i], v[i]) for i in range(3)])
    np.testing.assert_array_equal(bb.vmap(f)(x, v).numpy(), expected.numpy())
    gradients = bb.vmap(bb.grad(lambda x, v: (f(x, v) * x).sum(), (0, 1)))(x, v)
    for i in range(3):
        alone = bb.grad(lambda x, v: (f(x, v) * x).sum(), (0, 1))(x[i], v[i])
        for found, one in zip(gradients, alone, strict=True):
            np.testing.assert_allclose(found[i].numpy(), one.numpy(), rtol=1e-6)


def test_nested_vmap_and_captured_tensors() -> None:
    x, y = real(3), real(4, seed=1)
    table = bb.vmap(lambda a: bb.vmap(lambda b: a * b + bb.sin(b))(y))(x)
    same(table, [bb.expand_dims(x, 1) * y + bb.sin(y)])
    crossed = bb.vmap(lambda a: bb.vmap(lambda b: a + 2.0 * b)(bb.vmap(lambda c: a * c)(y)))(x)
    same(crossed, [bb.expand_dims(x, 1) + 2.0 * bb.expand_dims(x, 1) * y])


def test_perturbations_are_not_confused() -> None:
    x = real(3)
    # d/dx [x * d/dy (x * y)] = 2 x, for each example
    slope = bb.vmap(bb.grad(lambda x: x * bb.grad(lambda y: x * y)(bb.asarray(1.0, dtype="float64"))))(x)
    same(slope, [2.0 * x])
    # the inner derivative is that of a mapped function that captures the outer variable
    outer = bb.grad(lambda a: bb.vmap(bb.grad(lambda b: a * a * b * b))(x).sum())(bb.asarray(3.0, dtype="float64"))
    same(outer, [(2.0 * 3.0 * 2.0 * x).sum()])


COMPOSED: dict[str, Function] = {
    "grad": bb.grad(lambda x: (bb.tanh(x) ** 3.0).sum()),
    "grad of grad": bb.grad(lambda x: bb.grad(lambda y: (bb.sin(y) * y).sum())(x).sum()),
    "value_and_grad": bb.value_and_grad(lambda x: bb.logsumexp(x * x)),
    "jvp": lambda x: bb.jvp(lambda y: bb.exp(y) * y[0], (x,), (bb.ones_like(x),)),
    "vjp": lambda x: bb.vjp(lambda y: bb.cumulative_sum(y * y), x)[1](x),
    "linearize": lambda x: bb.linearize(bb.tanh, x)[1](x * x),
    "jacobian": bb.jacobian(lambda x: bb.softmax(x * x)),
    "jacobian forward": bb.jacobian(lambda x: bb.softmax(x * x), mode="forward"),
    "hessian": bb.hessian(lambda x: (x * x * bb.sin(x)).sum()),
    "hvp": lambda x: bb.hvp(lambda y: (y**3.0).sum() * y[0], (x,), (x,)),
    "checkpoint": bb.grad(bb.checkpoint(lambda x: bb.tanh(bb.tanh(x)).sum())),
    "stop_gradient": bb.grad(lambda x: (x * bb.transforms.stop_gradient(x)).sum()),
    "vmap": bb.vmap(bb.grad(lambda x: x * x * x)),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_vmap_of_transforms_is_the_loop(name: str) -> None:
    x = real(3, 4)
    same(bb.vmap(COMPOSED[name])(x), loop(COMPOSED[name], (0,), x))


@pytest.mark.parametrize("name", COMPOSED)
def test_derivatives_through_vmap_are_those_of_the_loop(name: str) -> None:
    x = real(2, 3)

    def total(run: Function) -> Function:
        def f(x: Any) -> Any:
            sums = [(bb.sin(y) * y).sum() for y in flatten(run(x))[0]]
            return sum(sums[1:], sums[0])

        return f

    at_once = total(bb.vmap(COMPOSED[name]))
    one_by_one = total(lambda x: loop(COMPOSED[name], (0,), x))
    same(bb.grad(at_once)(x), [bb.grad(one_by_one)(x)], 1e-10)
    same(bb.hessian(at_once)(x), [bb.hessian(one_by_one)(x)], 1e-9)
    same(bb.jvp(at_once, (x,), (x,))[1], [bb.jvp(one_by_one, (x,), (x,))[1]], 1e-10)


def test_check_grads_through_vmap() -> None:
    bb.check_grads(lambda x, w: bb.vmap(lambda x: bb.tanh(x @ w), in_axes=1)(x), (real(3, 4), real(3, 2, seed=1)))


def test_backward_through_vmap() -> None:
    w, x = real(3).require_grad(), real(4, 3, seed=1)
    by_loop = sum(((x[i] @ w) ** 2.0 for i in range(1, 4)), (x[0] @ w) ** 2.0)
    at_once = bb.vmap(lambda x: (x @ w) ** 2.0)(x).sum()
    np.testing.assert_allclose(w.grad(at_once.backward()).numpy(), w.grad(by_loop.backward()).numpy())


def test_inside_no_grad_nothing_is_recorded() -> None:
    w = real(3).require_grad()
    with bb.no_grad():
        assert not bb.vmap(lambda x: x * w)(real(2)).is_tracked


def test_checkpointed_maps() -> None:
    x = real(3, 2)
    f = bb.checkpoint(bb.vmap(lambda x: bb.tanh(x * x)))
    same(bb.grad(lambda x: f(x).sum())(x), [bb.grad(lambda x: bb.tanh(x * x).sum())(x)])
    runs: list[int] = []

    def block(x: Any) -> Any:
        runs.append(len(runs))
        return {"y": bb.tanh(x * x + w), "constant": w}

    w = real(2).require_grad()
    mapped = bb.vmap(bb.checkpoint(block))
    same(bb.grad(lambda x: mapped(x)["y"].sum())(x), [bb.grad(lambda x: bb.tanh(x * x + w).sum())(x)])
    assert len(runs) == 2  # once more for the outer derivative
    expected = w.grad(bb.tanh(x * x + w).sum().backward())
    same(w.grad(mapped(x)["y"].sum().backward()), [expected])
    nested = bb.vmap(bb.vmap(bb.checkpoint(lambda x: bb.tanh(x) * w[0])))
    same(bb.hessian(lambda x: nested(x).sum())(x), [bb.hessian(lambda x: (bb.tanh(x) * w[0]).sum())(x)])


def test_checkpointed_maps_draw_again() -> None:
    x = real(3, 4)

    @bb.checkpoint
    def dropped(x: Any) -> Any:
        return nn.functional.dropout(x, 0.5) * x

    bb.random.seed(2)
    y, pullback = bb.vjp(bb.vmap(dropped, randomness="different"), x)
    np.testing.assert_allclose(pullback(1.0)[0].numpy(), (2.0 * y / x).numpy())


# ---- custom derivatives ----


def clipped_identity() -> Any:
    """Return a product whose custom derivative is not that of its body."""

    @bb.custom_vjp
    def scaled(x: Any, w: Any) -> Any:
        return x * w

    scaled.define(lambda x, w: (x * w, {"x": x, "w": (w, 2.0)}), lambda r, g: (g * r["w"][0] * r["w"][1], g * r["x"]))
    return scaled


def test_custom_derivatives_hold_inside_and_outside() -> None:
    f, x, w = clipped_identity(), real(3), real(3, seed=1)
    same(bb.vmap(bb.grad(f))(x, w), [2.0 * w])
    of_x, of_w = bb.grad(lambda x, w: bb.vmap(f)(x, w).sum(), (0, 1))(x, w)
    same([of_x, of_w], [2.0 * w, x])
    shared = bb.asarray(1.5, dtype="float64")
    of_x, of_w = bb.grad(lambda x, w: bb.vmap(f, (0, None))(x, w).sum(), (0, 1))(x, shared)
    same([of_x, of_w], [2.0 * shared * bb.ones_like(x), x.sum()])
    same(bb.jvp(lambda x: bb.vmap(f)(x, w), (x,), (x,))[1], [2.0 * w * x])
    same(bb.vmap(f)(x, w), [x * w])
    parameter = bb.asarray(1.5, dtype="float64").require_grad()
    gradients = bb.vmap(lambda x: f(x, parameter))(x).sum().backward()
    same(parameter.grad(gradients), [x.sum().detach()])
    nested = bb.grad(lambda x: bb.vmap(lambda a: bb.vmap(lambda b: f(b, a))(x))(w).sum())(x)
    same(nested, [2.0 * w.sum() * bb.ones_like(x)])


# ---- pullbacks of functions called outside ----

OUTSIDE: dict[str, Function] = {
    "elementwise": lambda x: bb.sin(x) * x.sum(),
    "products": lambda x: bb.einsum("i,j->ij", x, bb.exp(x)) @ x,
    "layers": lambda x: model()(x).sum(),
    "convolution": lambda x: bb.nn.functional.conv(x.reshape((1, 1, 4)), bb.ones((2, 1, 3), dtype="float64")).tanh(),
    "normalized": lambda x: bb.nn.functional.log_softmax(x, axis=0),
    "sorted": lambda x: bb.sort(x * x) * bb.cumulative_prod(x),
    "picked": lambda x: x.at[bb.asarray([0, 2, 0])].add(x[:3] ** 2.0)[bb.asarray([2, 2, 1])],
    "decomposed": lambda x: bb.linalg.cholesky(bb.linalg.outer(x, x) + bb.eye(4, dtype="float64") * 3.0),
    "several": lambda x: (x.sum(), {"a": bb.exp(x)}),
    "checkpointed": bb.checkpoint(lambda x: bb.sin(bb.exp(x)) * x),
    "checkpointed in between": lambda x: bb.cos(bb.checkpoint(lambda y: bb.sin(y) * y)(bb.exp(x))),
    "by hand": lambda x: clipped_identity()(x, x),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_pullbacks_are_mapped(name: str) -> None:
    f, x = OUTSIDE[name], real(4)
    out, pullback = bb.vjp(f, x)
    leaves, structure = flatten(out)
    cotangents = [bb.random.normal((5, *leaf.shape), dtype="float64") for leaf in leaves]
    mapped = bb.vmap(pullback)(unflatten(structure, cotangents))[0]
    alone = [pullback(unflatten(structure, [c[i] for c in cotangents]))[0] for i in range(5)]
    same(mapped, [bb.stack(alone)])
    of_cotangent = bb.grad(lambda c: (pullback(c)[0] ** 2.0).sum())(out)
    units = bb.eye(4, dtype="float64")
    columns = bb.vmap(bb.linearize(f, x)[1])(units)
    (pulled,) = pullback(out)
    for got, column in zip(flatten(of_cotangent)[0], flatten(columns)[0], strict=True):
        same(got, [2.0 * bb.tensordot(pulled, column, axes=([0], [0]))])


# ---- gradients per example ----


def model() -> Any:
    with bb.random.fork(1):
        layers = [nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def convolutional() -> Any:
    with bb.random.fork(1):
        layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("make", "shape"), [(model, (4,)), (convolutional, (1, 1, 6, 6))])
def test_gradients_of_each_example_are_those_of_the_loop(make: Function, shape: tuple[int, ...]) -> None:
    net, x, y = make(), bb.random.normal((5, *shape)), bb.asarray([0, 1, 2, 1, 0])

    def loss(net: Any, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(bb.reshape(net(x), (1, 3)), bb.reshape(y, (1,)))

    found = bb.vmap(bb.grad(loss), in_axes=(None, 0, 0))(net, x, y)
    assert type(found) is type(net)
    for i in range(5):
        expected = bb.grad(loss)(net, x[i], y[i])
        same(tree_map(lambda g: g[i], found), flatten(expected)[0], 1e-6)  # noqa: B023


def test_a_model_for_each_example() -> None:
    nets = [model() for _ in range(3)]
    stacked = tree_map(lambda *w: bb.stack(w), *nets)
    x = bb.random.normal((3, 4))
    same(bb.vmap(lambda net, x: net(x))(stacked, x), [bb.stack([n(x[i]) for i, n in enumerate(nets)])], 1e-6)


class Counting(nn.Module):
    """BatchNorm that counts its calls."""

    def __init__(self) -> None:
        self.vector_norm = nn.BatchNorm(3, momentum=None)
        self.calls = bb.zeros((), dtype="int64")

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return self.vector_norm(x)


@pytest.mark.parametrize("differentiated", [False, True])
def test_stacked_models_keep_the_new_state_of_each(differentiated: bool) -> None:
    """New state has the example axis where the old state has it."""
    x = real(4, 6, 3, seed=1).astype("float32")
    alone = [Counting() for _ in range(4)]
    stacked: Any = tree_map(lambda *p: bb.stack(p, axis=-1), *alone)
    together: Any = bb.vmap(lambda model, x: model(x).sum(), in_axes=(-1, 0))
    for _ in range(2):
        if differentiated:
            bb.grad(lambda model: together(model, x).sum())(stacked)
        else:
            together(stacked, x)
        for model, part in zip(alone, x, strict=True):
            model(part)
    states = [model.state_dict() for model in alone]
    for path, found in stacked.state_dict().items():
        np.testing.assert_allclose(found.numpy(), np.stack([s[path].numpy() for s in states], -1), rtol=1e-6)
    assert [path for path, _ in stacked.named_buffers()] == [path for path, _ in alone[0].named_buffers()]
    assert not any(buffer.is_tracked for _, buffer in stacked.named_buffers())


def test_one_model_keeps_new_state_that_all_examples_share() -> None:
    model = Counting().eval()
    bb.vmap(lambda model, x: model(x), in_axes=(None, 0))(model, real(4, 6, 3).astype("float32"))
    assert (model.calls.item(), model.calls.backend.spec) == (1, "autodiff(numpy)")


class Remembering(nn.Module):
    """A layer that stores its result in an attribute."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        self.hidden = self.layer(x)
        return self.hidden


def test_results_stored_by_an_earlier_call_do_not_matter() -> None:
    """A stored result is not state of the model; it is kept if it would differ between examples."""
    model, x = Remembering(), real(4, 3).astype("float32")
    hidden = model(x)
    found = bb.vmap(lambda model, x: model(x), in_axes=(None, 0))(model, x)
    np.testing.assert_allclose(found.numpy(), hidden.numpy(), rtol=1e-6)
    each = bb.vmap(bb.grad(lambda model, x: model(x).sum()), in_axes=(None, 0))(model, x)
    assert each.layer.weight.shape == (4, 2, 3)
    assert model.hidden is hidden


# ---- randomness ----


def test_random_numbers_need_an_option() -> None:
    with pytest.raises(ArgumentError, match=r"normal: random numbers inside vmap.*randomness='different'"):
        bb.vmap(lambda x: x + bb.random.normal())(real(3))


def test_the_same_and_different_random_numbers() -> None:
    x = real(3, 64)
    equal = bb.vmap(lambda x: bb.random.uniform((8,)), randomness="same")(x)
    assert (equal == equal[:1]).all()
    bb.random.seed(0)
    first = bb.vmap(lambda x: bb.random.uniform((8,)), randomness="different")(x)
    second = bb.vmap(lambda x: bb.random.uniform((8,)), randomness="different")(x)
    assert bb.random.get_state()["offset"] == 48  # no word is used twice
    numbers = np.concatenate([first.numpy().ravel(), second.numpy().ravel()])
    assert len(np.unique(numbers)) == 48
    dropped = bb.vmap(lambda x: nn.functional.dropout(x, 0.5), randomness="different")(bb.ones_like(x))
    assert len(np.unique(dropped.numpy() == 0.0, axis=0)) == 3


@pytest.mark.parametrize(
    "draw",
    [
        lambda: bb.random.normal((3,), dtype="float64"),
        lambda: bb.random.permutation(6),
        lambda: bb.random.integers((6,), 100),
        lambda: bb.random.bernoulli((20,)),
        lambda: bb.random.categorical(bb.zeros((5, 4))),
        lambda: bb.random.gamma((4,), 0.5),
        lambda: bb.random.poisson((9,), 12.0),
    ],
)
def test_draws_of_one_example_repeat_with_the_seed(draw: Function) -> None:
    for randomness in ("different", "same"):
        runs = []
        for _ in range(2):
            bb.random.seed(5)
            runs.append(bb.vmap(lambda _: draw(), randomness=randomness)(real(4)).numpy())
        assert np.array_equal(*runs)
        assert (len(np.unique(runs[0], axis=0)) > 1) == (randomness == "different")


def test_draws_in_a_custom_derivative() -> None:
    @bb.custom_vjp
    def noisy(w: Any) -> Any:
        return w * bb.random.uniform()

    noisy.define(lambda w: (w * bb.random.uniform(), None), lambda _, g: (g,))
    w, x = bb.asarray(2.0).require_grad(), bb.zeros(3)
    with pytest.raises(ArgumentError, match="random numbers inside vmap"):
        bb.vmap(lambda x: x + noisy(w))(x)
    for randomness, distinct in (("different", 3), ("same", 1)):
        drawn = bb.vmap(lambda x: noisy(x + w), randomness=randomness)(x)
        assert len(np.unique(drawn.detach().numpy())) == distinct


def test_custom_derivatives_below_other_levels() -> None:
    """``forward`` calls the function itself, at levels between those of the outer transforms."""
    f = lambda x, y: bb.sin(x) * y
    by_hand = bb.custom_vjp(f)
    by_hand.define(lambda x, y: (by_hand(x, y), (x, y)), lambda r, g: (g * bb.cos(r[0]) * r[1], g * bb.sin(r[0])))
    x, rows = real(3), real(4, 3, seed=1)

    def of_both(h: Function, w: Any) -> Any:
        return bb.grad(lambda u: bb.vmap(lambda row: h(u, row) * w)(rows).sum())(w).sum()

    def of_the_outer_examples(h: Function, w: Any) -> Any:
        product = lambda u, row: bb.vmap(lambda other: h(u, row) * other)(rows).sum()
        return bb.grad(lambda u: bb.vmap(lambda row: product(u, row))(rows * w).sum())(w).sum()

    for function in (of_both, of_the_outer_examples):
        expected = bb.grad(functools.partial(function, f))(x).numpy()
        assert np.allclose(bb.grad(functools.partial(function, by_hand))(x).numpy(), expected)
        leaf = x.require_grad()
        assert np.allclose(leaf.grad(function(by_hand, leaf).backward()).numpy(), expected)


def test_nested_randomness() -> None:
    inner = bb.vmap(lambda y: bb.random.uniform(), randomness="same")
    table = bb.vmap(lambda x: inner(x), randomness="different")(real(3, 2)).numpy()
    assert (table[:, 0] == table[:, 1]).all()
    assert len(np.unique(table)) == 3


# ---- one example at a time ----


def test_fallback_is_named() -> None:
    @bb.operation()
    def vmap_looked(k: Any, x: Any, /) -> Any:
        """Double the elements if they sum to more than 4."""
        return k.mul(x, 2.0) if float(k.to_numpy(k.sum(x, (0,), False))) > 4.0 else x

    x = real(5, 3)
    expected = [bb.stack([r * 2.0 if r.sum().item() > 4.0 else r for r in x])]
    with pytest.warns(FallbackWarning, match=r"vmap: vmap_looked has no batched form.*5 examples") as caught:
        same(bb.vmap(vmap_looked)(x), expected)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(bb.vmap(vmap_looked, on_fallback="allow")(x), expected)
        squared = bb.grad(lambda x: bb.vmap(vmap_looked, on_fallback="allow")(x * x).sum())(x)
        same(squared, [bb.stack([r * 4.0 if (r * r).sum().item() > 4.0 else r * 2.0 for r in x])])
        assert bb.vmap(vmap_looked, on_fallback="allow")(x[:0]).shape == (0, 3)
    with pytest.raises(Unsupported, match=r"vmap_looked.*no batched form"):
        bb.vmap(vmap_looked, on_fallback="error")(x)


def test_operations_of_users() -> None:
    @bb.operation()
    def doctest_vmap_shifted(k: Any, x: Any, /) -> Any:
        """Subtract the largest element."""
        return k.sub(x, k.max(x, tuple(range(len(x.shape))), True))

    x = real(5, 3)
    same(bb.vmap(doctest_vmap_shifted)(x), loop(doctest_vmap_shifted, (0,), x))


def test_rules_of_users_operations_hold_inside_and_outside() -> None:
    @bb.operation()
    def vmap_rounded(k: Any, x: Any, /) -> Any:
        """Round to integers, with a straight-through derivative."""
        return k.round(x)

    bb.gradient_rule(vmap_rounded, x=lambda k, g: g)
    x = real(3, 4)
    ones = bb.ones_like(x)
    same(bb.vmap(vmap_rounded)(x), [bb.round(x)])  # nothing is differentiated: no warning
    same(bb.vmap(bb.grad(lambda x: vmap_rounded(x).sum()))(x), [ones])
    mapped = bb.vmap(vmap_rounded, on_fallback="allow")
    same(bb.grad(lambda x: mapped(x).sum())(x), [ones])
    same(bb.jvp(mapped, (x,), (ones,))[1], [ones])
    below = bb.grad(lambda x: bb.grad(lambda y: (mapped(x) * y).sum())(real(4)).sum())  # constants at a middle level
    same(below(x), [ones])
    with pytest.warns(FallbackWarning, match="vmap_rounded"):
        bb.grad(lambda x: bb.vmap(vmap_rounded)(x).sum())(x)
    batching(vmap_rounded, broadcasting("vmap_rounded"))
    same(bb.grad(lambda x: bb.vmap(vmap_rounded, on_fallback="error")(x).sum())(x), [ones])
    with pytest.raises(ValueError, match="already"):
        batching(vmap_rounded, broadcasting("vmap_rounded"))


# ---- documentation ----


def test_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith("A function of one example"))
    blocks = ">>> import backburn as bb\n" + "\n".join(re.findall(r"```\{doctest\}\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, "vmap", "transforms.md", 0)
    assert len(test.examples) >= 12
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0
