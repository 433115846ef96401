"""``Sharded``: specs, placements, cuts and addends, fallbacks, and other decorators around it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.backend import load_backend
from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError, AxisError, ShapeError, SpecError, Unsupported
from backburn.decorators.sharding import GatherWarning, Sharded, Shards, codegen, even_cuts, placement_of, sharding
from backburn.decorators.sharding.rules import DIRECT, RULES, direct, rule_of
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend


@pytest.fixture
def k() -> Sharded:
    return Sharded(NumpyBackend(), dp=3, on_fallback="error")


def host(k: Sharded, x: Any) -> Any:
    return k.to_numpy(x)


def array(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


# ---- specs ----


def test_specs_are_read_back() -> None:
    for spec in (
        "sharded(numpy, dp=4)",
        "sharded(sharded(numpy, tp=2), dp=4)",
        "sharded(numpy, dp=2, on_fallback=error, inputs=last)",
        "autodiff(capture(sharded(numpy, dp=2)))",
    ):
        assert load_backend(spec).spec == spec
    assert load_backend("sharded(numpy, dp=2)") is not load_backend("sharded(numpy, dp=4)")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("sharded(numpy)", "one mesh axis"),
        ("sharded(numpy, dp=2, tp=2)", "got 2"),
        ("sharded(numpy, dp=0)", "at least 1, not 0"),
        ("sharded(numpy, dp=1.5)", "at least 1, not 1.5"),
        ("sharded(numpy, dp=true)", "at least 1, not True"),
        ("sharded(numpy, dp=2, on_fallback=never)", "on_fallback is warn, error or allow"),
        ("sharded(numpy, dp=2, inputs=middle)", "inputs is one of whole, first, last, addends"),
        ("sharded(sharded(numpy, dp=2), dp=4)", "two levels have the mesh axis 'dp'"),
        ("sharded(capture(sharded(numpy, dp=2)), dp=4)", "two levels have the mesh axis 'dp'"),
        ("sharded(autodiff(numpy), dp=2)", "goes inside of what differentiates"),
        ("sharded", "sharded wraps a backend"),
    ],
)
def test_invalid_specs_are_refused(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_backend(spec)


def test_sharded_wraps_only_backends() -> None:
    with pytest.raises(ArgumentError, match="wraps a backend"):
        Sharded("numpy", dp=2)


def test_one_shard_is_the_inner_backend() -> None:
    k = Sharded(NumpyBackend(), dp=1)
    x = k.from_numpy(array(3, 2))
    assert k.cut(x, 0) is x
    assert k.addends(x) is x


# ---- placements ----


def test_even_cuts_are_as_equal_as_possible() -> None:
    assert even_cuts(10, 4) == (3, 3, 2, 2)
    assert even_cuts(0, 2) == (0, 0)


def test_parts_of_a_cut(k: Sharded) -> None:
    x = array(4, 5)
    cut = k.cut(k.from_numpy(x), -1)
    assert (cut.axis, cut.cuts, cut.shape) == (1, (2, 2, 1), (4, 5))
    for part, own in zip(cut.parts, np.split(x, [2, 4], axis=1), strict=True):
        np.testing.assert_array_equal(part, own)
    np.testing.assert_array_equal(host(k, cut), x)
    again = k.cut(cut, 0, (0, 4, 0))
    assert [p.shape for p in again.parts] == [(0, 5), (4, 5), (0, 5)]
    np.testing.assert_array_equal(host(k, again), x)


def test_addends_keep_every_bit(k: Sharded) -> None:
    x = np.array([0.0, -0.0, np.inf, np.nan, 1.5, -2.0], np.float32)
    addends = k.addends(k.from_numpy(x))
    assert addends.axis is None
    assert len(addends.parts) == 3
    assert host(k, addends).tobytes() == x.tobytes()


def test_addends_of_bools_are_whole(k: Sharded) -> None:
    x = k.from_numpy(np.array([True, False]))
    assert k.addends(x) is x


def test_invalid_cuts_are_refused(k: Sharded) -> None:
    x = k.from_numpy(array(4, 2))
    with pytest.raises(AxisError, match=r"shape \[4, 2\] over dp: axis 2 is out of range"):
        k.cut(x, 2)
    for cuts in ((2, 2), (1, 1, 1), (5, -1, 0)):
        with pytest.raises(ArgumentError, match=r"not the lengths of 3 parts of axis 0 of \[4, 2\]"):
            k.cut(x, 0, cuts)


# ---- operations ----


def test_sums_over_the_cut_axis_are_addends(k: Sharded) -> None:
    x = array(7, 3)
    cut = k.cut(k.from_numpy(x), 0)
    total = k.sum(cut, (0,), False)
    assert isinstance(total, Shards)
    assert total.axis is None
    np.testing.assert_allclose(host(k, total), x.sum(0), rtol=1e-5)
    other = k.sum(cut, (1,), False)
    assert (other.axis, other.cuts) == (0, (3, 2, 2))


def test_sums_with_empty_shards_keep_the_sign_of_zero(k: Sharded) -> None:
    cut = k.cut(k.from_numpy(np.array([-0.0], np.float32)), 0)
    assert np.signbit(host(k, k.sum(cut, (0,), False))) == np.signbit(np.array([-0.0], np.float32).sum())


@pytest.mark.parametrize(
    ("placed", "axis"),
    [((0, None), 0), ((None, 1), 1), ((1, None), None), ((None, 0), None), ((1, 0), None), ((0, 1), 0)],
)
def test_products(k: Sharded, placed: tuple[int | None, int | None], axis: int | None) -> None:
    x, y = array(6, 5), array(5, 4)
    left, right = (
        k.from_numpy(t) if a is None else k.cut(k.from_numpy(t), a) for t, a in zip((x, y), placed, strict=True)
    )
    product = k.matmul(left, right)
    assert isinstance(product, Shards)
    assert product.axis == axis
    np.testing.assert_allclose(host(k, product), x @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "new", "where"),
    [
        ((6, 4), 0, (6, 2, 2), 0),
        ((6, 4), 0, (24,), 0),
        ((24,), 0, (12, 2), 0),
        ((2, 6, 4), 1, (2, 24), 1),
        ((2, 6), 1, (2, 3, 2), 1),
        ((6, 1), 0, (1, 6), 1),
    ],
)
def test_reshapes_that_keep_the_cut(k: Sharded, shape: Any, axis: int, new: Any, where: int) -> None:
    x = array(*shape)
    found = k.reshape(k.cut(k.from_numpy(x), axis), new)
    assert found.axis == where
    np.testing.assert_array_equal(host(k, found), x.reshape(new))


def test_reshapes_that_do_not_keep_the_cut(k: Sharded) -> None:
    with pytest.raises(Unsupported, match="reshape: no rule of sharding"):
        k.reshape(k.cut(k.from_numpy(array(2, 6)), 1), (6, 2))


@pytest.mark.parametrize("key", [slice(1, 7, 1), slice(0, 8, 3), slice(5, 6, 1), slice(0, 0, 1), slice(2, 8, 2)])
def test_slices_across_the_cut(k: Sharded, key: slice) -> None:
    x = array(8, 2)
    found = k.slice(k.cut(k.from_numpy(x), 0), (key, slice(0, 2, 1)))
    assert found.axis == 0
    np.testing.assert_array_equal(host(k, found), x[key])


def test_reductions_of_empty_shards(k: Sharded) -> None:
    x = array(2, 3)
    cut = k.cut(k.from_numpy(x), 0, (0, 2, 0))
    np.testing.assert_array_equal(host(k, k.max(cut, (0,), False)), x.max(0))
    np.testing.assert_allclose(host(k, k.prod(cut, (0, 1), True)), x.prod(keepdims=True), rtol=1e-5)


def test_draws_do_not_depend_on_the_shards(k: Sharded, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = NumpyBackend()
    x = np.abs(array(7, 5)) + 0.5
    cut = k.cut(k.from_numpy(x), 0)
    for name in ("gamma", "poisson", "categorical"):
        found, expected = (getattr(b, name)(t, key=3, offset=11) for b, t in ((k, cut), (inner, x)))
        np.testing.assert_array_equal(host(k, found), expected)
    y, keep = inner.dropout(x, 3, 11, 0.4)

    draw = NumpyBackend.bernoulli

    def in_parts(b: Any, key: int, offset: int, shape: Any, p: float) -> Any:
        assert shape != x.shape, "a shard draws all values"
        return draw(b, key, offset, shape, p)

    monkeypatch.setattr(NumpyBackend, "bernoulli", in_parts)
    for axis in (0, 1):
        dropped, kept = k.dropout(k.cut(k.from_numpy(x), axis), 3, 11, 0.4)
        np.testing.assert_array_equal(host(k, dropped), y)
        np.testing.assert_array_equal(host(k, kept), keep)


def test_optimizer_steps_keep_the_placement_of_parameters(k: Sharded) -> None:
    inner = NumpyBackend()
    tensors = [array(5, 2) * s for s in (1.0, 2.0, 0.5)] + [np.abs(array(5, 2))]
    expected = inner.adam_step(tensors[0], tensors[1], tensors[2], tensors[3], step=2)
    param, *others = map(k.from_numpy, tensors)
    m = others[1].copy()
    for placed, wanted in ((k.cut(param, 0), 0), (param, None)):
        gradient = k.addends(others[0])
        found = k.adam_step(placed, gradient, others[1].copy(), others[2].copy(), step=2, donate=True)
        for x, y in zip(found, expected, strict=True):
            assert (x.axis if isinstance(x, Shards) else None) == wanted
            np.testing.assert_allclose(host(k, x), y, rtol=1e-6)
    np.testing.assert_array_equal(m, others[1])


def test_errors_show_whole_shapes(k: Sharded) -> None:
    x, y = k.cut(k.from_numpy(array(4, 3)), 0), k.from_numpy(array(4, 3))
    with pytest.raises(ShapeError, match="axis -1 is 3 and axis -2 is 4"):
        k.matmul(x, y)


def test_shapes_without_values() -> None:
    k = load_backend("sharded(null, dp=4, on_fallback=error)")
    assert isinstance(k, Sharded)
    x = k.cut(k.zeros((10, 3), float32), 0)
    product = k.matmul(x, k.zeros((3, 5), float32))
    assert [p.shape for p in product.parts] == [(3, 5), (3, 5), (2, 5), (2, 5)]


def test_operations_of_users_run_their_bodies() -> None:
    @bb.operation()
    def sharded_thrice(k: Any, x: Any, /) -> Any:
        """Three times each element."""
        return k.mul(x, 3.0)

    x = bb.asarray(array(5), backend="autodiff(sharded(numpy, dp=2, inputs=first, on_fallback=error))").require_grad()
    y = sharded_thrice(x)
    assert placement_of(y.backend, y.primitive) == {"dp": 0}
    gradient = x.grad(y.sum().backward())
    assert gradient is not None
    np.testing.assert_array_equal(gradient.numpy(), np.full(5, 3.0, np.float32))


def test_repeated_calls_use_the_cached_route(k: Sharded, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = array(6, 4), array(4, 5)
    calls: list[Any] = [
        lambda b, t: b.matmul(t, y),
        lambda b, t: b.softmax(t, 1),
        lambda b, t: b.reshape(t, (6, 2, 2)),
        lambda b, t: b.sum(t, (0,), False),
        lambda b, t: b.concat([t, t], 1),
        lambda b, t: b.max_with_indices(t, 1, False)[1],
        lambda b, t: b.broadcast_to(t, (2, 6, 4)),
    ]
    first = [call(k, k.cut(k.from_numpy(x), 0)) for call in calls]
    monkeypatch.setattr(Sharded, "run", None)
    for call, found in zip(calls, first, strict=True):
        again = call(k, k.cut(k.from_numpy(2 * x), 0))
        assert repr(again) == repr(found)
        np.testing.assert_allclose(host(k, again), call(NumpyBackend(), 2 * x), rtol=1e-4, atol=1e-5)


def test_the_number_of_cached_routes_is_limited(k: Sharded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "MOST_ROUTES", 3)
    for n in range(3, 9):
        k.softmax(k.cut(k.from_numpy(array(n, 2)), 0), 1)
    assert len(k.routes) == 3


def test_calls_with_unhashable_attributes_use_the_rules(k: Sharded) -> None:
    x = array(6, 4)
    for _ in range(2):
        found = k.slice_assign(k.cut(k.from_numpy(x), 0), 1.0, (slice(0, 6, 1), slice(1, 2, 1)))
        np.testing.assert_array_equal(host(k, found)[:, 1], np.ones(6, np.float32))


def test_formulas_are_fused_on_equally_cut_parts(k: Sharded) -> None:
    def formula(b: Any, x: Any, y: Any, factor: float) -> Any:
        return b.mul(b.add(x, y), factor), b.sub(x, y)

    x, y = array(6, 4), array(4, 6).T.copy()
    for placed in ((0, 0), (0, 1), (None, 0), (None, None)):
        given = [t if a is None else k.cut(k.from_numpy(t), a) for t, a in zip((x, y), placed, strict=True)]
        for found, expected in zip(k.fuse(formula, *given, 2.0), ((x + y) * 2.0, x - y), strict=True):
            np.testing.assert_allclose(host(k, found), expected, rtol=1e-6)
        assert k.is_cut(found) == (placed != (None, None))


# ---- rules ----


@pytest.mark.parametrize(
    ("name", "shapes", "index", "cut", "attributes", "axes"),
    [
        ("add", [(4, 3), (3,)], 0, 1, {}, (1, 0)),
        ("add", [(4, 3), (3,)], 0, 0, {}, (0, None)),
        ("add", [(4, 3), (1, 3)], 1, 0, {}, None),
        ("add", [(4, 3), None], 0, 0, {}, (0, None)),
        ("label_cross_entropy", [(4, 9, 5), (4, 5)], 1, 1, {"axis": 1}, (2, 1)),
        ("label_cross_entropy", [(4, 9, 5), (4, 5)], 0, 1, {"axis": 1}, None),
        ("linear", [(7, 3), (5, 3), (5,)], 2, 0, {}, (None, 0, 0)),
        ("linear", [(7, 3), (5, 3), (5,)], 1, 1, {}, None),
        ("linear", [(7, 3), (5, 3), None], 1, 1, {}, (1, 1, None)),
        ("take_backward", [(4, 2, 2), (2, 2)], 0, 1, {"length": 9, "axis": 1}, (1, 0)),
        ("layer_norm_backward", [(6, 3), (6, 3), (3,)], 0, 0, {"axis": (1,), "eps": 0.1}, (0, 0, None)),
        ("concat", [[(4, 3), (4, 2)]], 0, 0, {"axis": 1}, (0,)),
        ("concat", [[(4, 3), (4, 2)]], 0, 1, {"axis": 1}, None),
        ("conv", [(8, 4, 9), (6, 2, 3), None], 1, 0, {"groups": 2}, None),
    ],
)
def test_rules_give_the_axes_that_are_cut_together(
    name: str, shapes: Any, index: int, cut: int, attributes: Any, axes: Any
) -> None:
    rule = rule_of(name)
    assert rule is not None
    plan = rule(shapes, index, cut, **attributes)
    assert (None if plan is None else plan.axes) == axes


# ---- fallbacks ----


def test_a_fallback_warns_raises_or_is_allowed() -> None:
    x = array(4)
    for on_fallback in ("warn", "allow", "error"):
        k = Sharded(NumpyBackend(), dp=2, on_fallback=on_fallback)
        cut = k.cut(k.from_numpy(x), 0)
        if on_fallback == "error":
            with pytest.raises(Unsupported, match=r"argsort: no rule of sharding of argsort for Shards\(\[4\], dp"):
                k.argsort(cut, 0, False)
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = k.argsort(cut, 0, False)
        np.testing.assert_array_equal(host(k, found), x.argsort(0))
        assert [w.category for w in caught] == [GatherWarning] * (on_fallback == "warn")
        assert all(w.filename == __file__ for w in caught)


def test_operations_along_the_cut_axis_recut_along_another(k: Sharded) -> None:
    x = array(4, 3, 5)
    for operation, expected in (
        (lambda t: k.argsort(t, 0, False), x.argsort(0)),
        (lambda t: k.concat([t, t], 0), np.concatenate([x, x])),
        (lambda t: k.cumulative_sum(t, 0, False), x.cumsum(0)),
    ):
        found = operation(k.cut(k.from_numpy(x), 0))
        assert (found.axis, found.cuts) == (2, (2, 2, 1))
        np.testing.assert_allclose(host(k, found), expected, rtol=1e-5)


@pytest.mark.parametrize("cuts", [(4, 4, 3), (0, 11, 0)])
def test_take_from_a_cut_table(k: Sharded, cuts: tuple[int, ...]) -> None:
    table, indices = array(11, 4), np.array([[0, 10, 3], [5, 3, 4]])
    found = k.take(k.cut(k.from_numpy(table), 0, cuts), indices, 0)
    assert (found.axis, found.shape) == (None, (2, 3, 4))
    np.testing.assert_array_equal(host(k, found), table[indices])
    found = k.take(k.cut(k.from_numpy(table.T.copy()), 1, cuts), indices, 1)
    np.testing.assert_array_equal(host(k, found), table.T[:, indices])
    with pytest.raises(IndexError, match="11"):
        k.take(k.cut(k.from_numpy(table), 0, cuts), indices + 1, 0)


def test_rules_are_registered_once_for_existing_operations() -> None:
    assert OPERATIONS.keys() >= RULES.keys() | DIRECT.keys()
    for name in ("matmul", "no_such_operation"):
        with pytest.raises(ValueError, match="is not an operation, or has"):
            sharding(name, lambda *_: None)
    with pytest.raises(ValueError, match="is not an operation, or has"):
        direct("reshape", lambda *_: None)


# ---- among other decorators ----


def test_nested_levels() -> None:
    k = load_backend("sharded(sharded(numpy, tp=2), dp=2)")
    assert isinstance(k, Sharded)
    x, y = array(6, 4), array(4, 6)
    rows = k.cut(k.from_numpy(x), 0)
    columns = k.wrapped.cut(k.wrapped.from_numpy(y), 1)
    product = k.matmul(rows, columns)
    assert placement_of(k, product) == {"dp": 0, "tp": 1}
    np.testing.assert_allclose(k.to_numpy(product), x @ y, rtol=1e-4, atol=1e-5)


def test_vmap_over_cut_tensors() -> None:
    with bb.use_backend("sharded(numpy, dp=2, inputs=first, on_fallback=allow)"):
        x, y = bb.asarray(array(5, 3)), bb.asarray(array(3, 4))
        found = bb.vmap(lambda row: (row @ y).sum())(x)
        np.testing.assert_allclose(found.numpy(), (array(5, 3) @ array(3, 4)).sum(1), rtol=1e-4, atol=1e-5)


def test_forward_mode() -> None:
    def tangent(backend: str) -> Any:
        with bb.use_backend(backend):
            x = bb.asarray(array(5, 3))
            return bb.jvp(lambda t: (t.tanh() @ t.T).sum(axis=0), (x,), (x,))[1].numpy()

    np.testing.assert_allclose(
        tangent("sharded(numpy, dp=2, inputs=first, on_fallback=allow)"), tangent("numpy"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("order", [1, 2])
def test_gradients(order: int) -> None:
    def gradient(backend: str) -> Any:
        with bb.use_backend(backend):
            x, y = bb.asarray(array(7, 3)), bb.asarray(array(3, 4))
            function: Any = lambda t: ((t @ y).softmax(axis=1) * (t @ y)).logsumexp(axis=0).sum()
            if order == 2:
                first = bb.grad(function)
                function = lambda t: (first(t) ** 2).sum()
            return bb.grad(function)(x).numpy()

    for placed in ("first", "last", "addends"):
        found = gradient(f"autodiff(sharded(numpy, dp=3, inputs={placed}, on_fallback=allow))")
        np.testing.assert_allclose(found, gradient("autodiff(numpy)"), rtol=1e-4, atol=1e-5)


def test_a_captured_step() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        loss = ((model(x) - y) ** 2).mean()
        optimizer.step(model, loss.backward())
        return state, loss

    def losses(backend: str, wrap: Any) -> list[float]:
        with bb.use_backend(backend):
            bb.random.seed(0)
            state = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), optim.Adam(0.05)
            x, y = bb.asarray(array(6, 3)), bb.asarray(array(6, 1))
            run, found = wrap(step), []
            for _ in range(5):
                state, loss = run(state, x, y)
                found.append(loss.item())
            if wrap is not plain:
                assert "replayed" in repr(run)
            return found

    def plain(function: Any) -> Any:
        return function

    captured = losses("autodiff(capture(sharded(numpy, dp=2, inputs=first)))", bb.capture)
    np.testing.assert_allclose(captured, losses("autodiff(numpy)", plain), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [lambda: optim.SGD(0.1), lambda: optim.SGD(0.1, 0.9), lambda: optim.Adam(0.05)])
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm(3),
        lambda: nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm(5), nn.ReLU(), nn.Linear(5, 2)),
        lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.RMSNorm(3), nn.Linear(3, 2, bias=False)),
    ],
)
def test_steps_with_cut_parameters_are_recorded(make: Any, is_training: bool, optimizer: Any) -> None:
    """The recording must not keep pending sums of gradients over shards; results are those of one device."""

    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = ((model(x) - 1.0) ** 2).mean()
        gradients = loss.backward()
        held = [p.grad(gradients) for p in model.parameters()]
        optimizer.step(model, gradients)
        return state, [loss, *held]

    def values(spec: str, on_fallback: Any) -> list[Any]:
        bb.random.seed(0)
        model = make().train(is_training).to(spec)
        state, run = (model, optimizer()), bb.capture(step, on_fallback=on_fallback)
        found = []
        for n in range(4):
            x = bb.asarray(array(8, 3) * (1.0 + 0.1 * n), backend=spec)
            state, out = run(state, x)
            found += [t.numpy() for t in out]
        return found + [p.numpy() for p in state[0].parameters()]

    spec = "autodiff(capture(sharded(numpy, dp=2, inputs=first)))"
    for mine, theirs in zip(values(spec, "error"), values("autodiff(numpy)", "allow"), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
