"""Tensor functions: scans."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ShapeError

REAL = np.array([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]])
INTS = np.array([[3, -2, 7], [0, 5, -1]])
SCANS: dict[str, Any] = {
    "cumulative_sum": np.cumulative_sum,
    "cumulative_prod": np.cumulative_prod,
    "cummax": lambda x, axis: np.maximum.accumulate(x, axis),
    "cummin": lambda x, axis: np.minimum.accumulate(x, axis),
    "logcumsumexp": lambda x, axis: np.logaddexp.accumulate(x.astype(np.float64), axis),
    "diff": lambda x, axis: np.diff(x, axis=axis),
}
METHODS = {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("array", [REAL, REAL.astype(np.float32), INTS], ids=["float64", "float32", "int64"])
def test_values_and_methods(name: str, axis: int, array: Any) -> None:
    x = bb.asarray(array)
    got = getattr(bb, name)(x, axis=axis)
    assert got.dtype is (x.dtype if array is not INTS or name != "logcumsumexp" else bb.float32)
    np.testing.assert_allclose(got.numpy(), SCANS[name](array, axis=axis), rtol=1e-6)
    method = getattr(x, METHODS.get(name, name))
    np.testing.assert_array_equal(method(axis=axis).numpy(), got.numpy())


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_dtypes_and_initial_values(name: str) -> None:
    function, reference = getattr(bb, name), getattr(np, name)
    for dtype, widened in [("int8", "int64"), ("uint16", "uint64"), ("bool", "int64"), ("float16", "float16")]:
        array = np.array([2, 1, 3]).astype(dtype)
        got = function(bb.asarray(array), include_initial=True)
        assert got.dtype is getattr(bb, widened)
        np.testing.assert_array_equal(got.numpy(), reference(array.astype(widened), include_initial=True))
    assert function(bb.asarray(INTS), axis=0, dtype="float64").dtype is bb.float64
    np.testing.assert_allclose(
        function(bb.asarray(REAL), axis=-1, include_initial=True).numpy(),
        reference(REAL, axis=-1, include_initial=True),
    )
    with pytest.raises(ArgumentError, match=rf"{name}: give the axis.*float64\[2,3\]"):
        function(bb.asarray(REAL))


def test_differences() -> None:
    x = bb.asarray(INTS)
    assert bb.diff(x, n=2**63 - 1).shape == np.diff(INTS, n=5).shape
    for n in (0, 1, 2, 5):
        np.testing.assert_array_equal(bb.diff(x, n=n).numpy(), np.diff(INTS, n=n))
    around = np.array([[1.5], [2.5]])
    got = bb.diff(x, prepend=bb.asarray(around), append=bb.asarray(around), axis=1)
    assert got.dtype is bb.float64
    np.testing.assert_array_equal(got.numpy(), np.diff(INTS, prepend=around, append=around))
    assert bb.diff(x, n=0, prepend=bb.asarray(INTS), append=bb.asarray(INTS)).tolist() == INTS.tolist()
    with pytest.raises(ArgumentError, match=r"diff: differences are taken 0 or more times, not -1"):
        bb.diff(x, n=-1)
    with pytest.raises(ShapeError, match=r"int64\[3\]"):
        bb.diff(x, prepend=bb.asarray([1, 2, 3]))


@pytest.mark.parametrize("name", SCANS)
def test_gradients_flow(name: str) -> None:
    function = getattr(bb, name)
    weights = np.cos(np.arange(6.0)).reshape(2, 3)[:, : 2 if name == "diff" else 3]
    x = bb.asarray(REAL).require_grad()
    grad = x.grad((function(x, axis=1) * bb.asarray(weights)).sum().backward())
    assert grad is not None
    step, direction = 1e-6, np.sin(np.arange(6.0) + 1).reshape(2, 3)
    ends = [np.sum(function(bb.asarray(REAL + s * step * direction), axis=1).numpy() * weights) for s in (1, -1)]
    assert np.sum(grad.numpy() * direction) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", SCANS)
def test_bad_input(name: str) -> None:
    function = getattr(bb, name)
    with pytest.raises(AxisError, match=rf"{name}: axis 2 is out of range.*float64\[2,3\]"):
        function(bb.asarray(REAL), axis=2)
    with pytest.raises(AxisError, match=rf"{name}: axis 0 is out of range for 0 dimensions"):
        function(bb.asarray(1.0), axis=0)
    with pytest.raises(DTypeError, match=rf"{name}: takes a tensor, not list"):
        function([1.0], axis=0)
    if not name.startswith("cumulative"):
        with pytest.raises(DTypeError, match=rf"{name}: takes .*not bool; cast it with astype"):
            function(bb.asarray([True, False]), axis=0)


@pytest.mark.parametrize("backend", ["numpy", "null"])
def test_an_initial_state_that_does_not_broadcast_is_refused_without_steps_too(backend: str) -> None:
    x = bb.ones((0, 2), backend=backend)
    with pytest.raises(ShapeError, match="ssm_scan: cannot broadcast"):
        bb.nn.functional.ssm_scan(x, x, x, bb.ones(3, backend=backend))
    assert bb.nn.functional.ssm_scan(x, x, x, bb.ones(2, backend=backend)).shape == (0, 2)


# ---- running extrema with indices ----


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema_with_indices_are_those_of_pytorch(name: str, axis: int) -> None:
    """Also with ties, of which the last counts, and after a NaN."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    floats = rng.integers(-3, 4, (6, 7)).astype(float)
    floats[1, 3] = floats[4, 0] = floats[1, 5] = np.nan
    function = getattr(bb, f"{name}_with_indices")
    for array in (floats, floats.astype(np.float32), rng.integers(-3, 4, (6, 7)), floats[:0], floats[:, :1]):
        values, indices = function(bb.asarray(array), axis=axis)
        expected = getattr(torch.as_tensor(array), name)(axis)
        np.testing.assert_array_equal(values.numpy(), expected.values.numpy())
        np.testing.assert_array_equal(indices.numpy(), expected.indices.numpy())
        assert indices.dtype is bb.int64
    for backend in ("autodiff(autodiff(numpy))", "forward(numpy)"):
        found = function(bb.asarray(floats, backend=backend), axis=axis)[1]
        np.testing.assert_array_equal(bb.to(found, "numpy").numpy(), function(bb.asarray(floats), axis=axis)[1].numpy())
    assert function(bb.zeros((2, 3), backend="null"), axis)[1].shape == (2, 3)


def test_gradients_and_batches_of_running_extrema_with_indices() -> None:
    x = bb.asarray([1.0, 3.0, 2.0, 3.0, 5.0])
    slope = bb.grad(lambda t: (t.cummax_with_indices(0)[0] * bb.asarray([1.0, 2.0, 4.0, 8.0, 16.0])).sum())(x)
    assert slope.tolist() == [1.0, 6.0, 0.0, 8.0, 16.0]
    bb.check_grads(lambda t: bb.cummin_with_indices(t, 0)[0] ** 2.0, (bb.asarray(REAL),), order=2)
    rows = bb.vmap(lambda t: t.cummin_with_indices(0)[1])(bb.asarray(REAL))
    assert rows.tolist() == [[0, 1, 1], [0, 1, 2]]
    with pytest.raises(AxisError, match="cummax_with_indices: "):
        bb.cummax_with_indices(x, 1)
    with pytest.raises(DTypeError, match="cummin_with_indices: takes float and int tensors, not bool"):
        bb.cummin_with_indices(bb.asarray([True]), 0)


# ---- slopes and integrals ----

UNTYPED: Any = bb.gradient

FIELD = np.random.default_rng(4).normal(size=(4, 5, 3))
PLACES = [np.cumsum(np.random.default_rng(n).uniform(0.2, 1.0, n)) for n in FIELD.shape]


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize(
    ("spacing", "axis"),
    [
        ((), None),
        ((), 1),
        ((), (0, -1)),
        ((0.5,), None),
        ((0.5,), -1),
        ((0.5, 2.0, 3), None),
        ((PLACES[0], 2.0, PLACES[2]), None),
        ((PLACES[1],), 1),
        ((PLACES[2], PLACES[0]), (2, 0)),
        ((np.array(0.25),), 0),
        ((-PLACES[1],), (1,)),
    ],
)
def test_slopes_are_those_of_numpy(spacing: tuple[Any, ...], axis: Any, edge_order: Any) -> None:
    given = [bb.asarray(s) if isinstance(s, np.ndarray) else s for s in spacing]
    got = bb.gradient(bb.asarray(FIELD), *given, axis=axis, edge_order=edge_order)
    expected: Any = np.gradient(FIELD, *spacing, axis=axis, edge_order=edge_order)
    assert isinstance(got, tuple) == isinstance(expected, tuple)
    for a, b in zip(*((t if isinstance(t, tuple) else (t,)) for t in (got, expected)), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-12)
    operands = (bb.asarray(FIELD), *(s for s in given if isinstance(s, bb.Tensor)))

    def slopes(x: Any, *coordinates: Any) -> Any:
        rest = iter(coordinates)
        steps = [next(rest) if isinstance(s, bb.Tensor) else s for s in given]
        found = bb.gradient(x, *steps, axis=axis, edge_order=edge_order)
        return found[0] ** 2.0 + found[1] ** 2.0 if isinstance(found, tuple) else found**2.0

    bb.check_grads(slopes, operands, order=1)


def test_slopes_of_few_elements_and_other_dtypes() -> None:
    assert bb.gradient(bb.asarray([1.0, 3.0]), axis=0).tolist() == [2.0, 2.0]
    assert bb.gradient(bb.asarray([1, 3, 8]), axis=0).dtype is bb.float32
    assert bb.gradient(bb.asarray([1.0, 3.0], dtype="float16"), axis=0).dtype is bb.float16
    assert bb.gradient(bb.zeros((3, 4), backend="null"), axis=1).shape == (3, 4)
    assert bb.gradient(bb.zeros(3), 0.0, axis=0).isnan().all().item()
    x = bb.asarray(REAL)
    rows = bb.vmap(lambda t: bb.gradient(t, axis=0))(x)
    np.testing.assert_allclose(rows.numpy(), np.gradient(REAL, axis=1))
    steps = bb.vmap(lambda h: bb.gradient(x, h, axis=1))(bb.asarray([1.0, 2.0], dtype="float64"))
    np.testing.assert_allclose(steps.numpy()[1], np.gradient(REAL, 2.0, axis=1))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: bb.gradient(x, 1.0, 2.0, 3.0), ArgumentError, "there are 3 spacings for 2 axes"),
        (lambda x: bb.gradient(x, edge_order=3, axis=0), ArgumentError, "edge_order is 1 or 2, not 3"),
        (lambda x: bb.gradient(x, axis=5), AxisError, "gradient: "),
        (lambda x: bb.gradient(x[:1]), ShapeError, "axis 0 needs 2 elements at least"),
        (lambda x: bb.gradient(x, axis=0, edge_order=2), ShapeError, "axis 0 needs 3 elements at least"),
        (lambda x: bb.gradient(x, bb.ones(4), axis=1), ShapeError, "axis 1 are a vector of length 3"),
        (lambda x: UNTYPED(x, "1"), ArgumentError, "gradient: spacing is a number"),
        (lambda x: UNTYPED(x, edges=1), TypeError, "edges"),
        (lambda x: bb.gradient(x > 0), DTypeError, "gradient: takes float tensors, not bool"),
        (lambda x: UNTYPED([1.0, 2.0]), DTypeError, r"gradient: takes a tensor, not list. bb.asarray\("),
        (lambda x: UNTYPED("tanh", x=None), ArgumentError, r"the operation tanh; bb.gradient_rule\(tanh, x="),
        (lambda x: UNTYPED(bb.tanh, x=None), ArgumentError, r"the operation tanh; bb.gradient_rule\(tanh, x="),
        (lambda x: bb.gradient_rule("unheard"), ArgumentError, "gradient_rule: there is no operation 'unheard'"),
        (
            lambda x: bb.gradient_rule(x),
            ArgumentError,
            "gradient_rule: takes an operation or its name, not FloatTensor",
        ),
    ],
)
def test_what_gradient_refuses(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(bb.asarray(REAL))


@pytest.mark.parametrize(
    ("y", "x", "axis"),
    [((4, 5), (5,), -1), ((4, 5), (4, 5), 0), ((4, 5), (1, 5), 1), ((5,), (3, 5), -1), ((2, 4, 5), (4, 1), 1),
     ((2, 4, 5), (4, 5), -1), ((4, 5), (3, 1, 5), -1), ((2, 4, 5), (2, 1, 1, 5), -1), ((4, 5), (4, 1), 0)],
)  # fmt: skip
def test_integrals_broadcast_as_those_of_numpy(y: Any, x: Any, axis: int) -> None:
    rng = np.random.default_rng(6)
    values, places = rng.normal(size=y), rng.normal(size=x)
    try:
        expected = np.trapezoid(values, places, axis=axis)
    except ValueError:
        with pytest.raises(ShapeError, match="trapezoid"):
            bb.trapezoid(bb.asarray(values), bb.asarray(places), axis=axis)
        return
    got = bb.trapezoid(bb.asarray(values), bb.asarray(places), axis=axis)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13)
    bb.check_grads(lambda s, t: bb.trapezoid(s, t, axis=axis) ** 2.0, (bb.asarray(values), bb.asarray(places)), order=2)


@pytest.mark.parametrize("shape", [(300_000,), (2, 100_001), (100_001, 2)], ids=str)
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_derivatives_of_long_cumulative_results_keep_their_digits(name: str, shape: tuple[int, ...]) -> None:
    """Rounding errors do not accumulate over so many terms."""
    random, axis = np.random.default_rng(0), int(np.argmax(shape))
    x, weight = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    x = (1 + x / 1000).astype(np.float32) if name == "cumulative_prod" else x
    wide, slope = x.astype(np.float64), weight.astype(np.float64)

    def sums(values: Any, step: int) -> Any:
        way = (*(slice(None),) * axis, slice(None, None, step))
        return np.cumsum(values[way], axis)[way]

    if name == "cumulative_sum":
        expected = sums(slope, -1), sums(slope, 1)
    else:
        out = np.cumprod(wide, axis)
        expected = sums(slope * out, -1) / wide, out * sums(slope / wide, 1)
    function = partial(getattr(bb, name), axis=axis)
    leaf = bb.asarray(x).require_grad()
    gradient = leaf.grad((function(leaf) * bb.asarray(weight)).sum().backward())
    _, tangent = bb.jvp(function, (bb.asarray(x),), (bb.asarray(weight),))
    for got, exact in zip((gradient, tangent), expected, strict=True):
        assert got.dtype is bb.float32
        np.testing.assert_allclose(got.numpy(), exact, atol=2 * np.finfo(np.float32).eps * np.abs(exact).max(), rtol=0)
