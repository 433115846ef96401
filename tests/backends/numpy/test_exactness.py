"""The exactness of sums of many float32 values: norms, statistics, softmax and running sums.

Errors against float64 are in units of float32's epsilon times the largest absolute value in a row of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.exactness import error, norm, real
from tests.helpers.kernels import BASE, USABLE, use_level

from backburn_numpy import compiled
from backburn_numpy.runtime import threads

#: Kernels of every level, of the best one also in several threads; and NumPy without kernels.
WAYS = [*((level, 1) for level in USABLE), *((level, 4) for level in USABLE[-1:]), (None, 1)]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    level, count = request.param
    if level is None:
        monkeypatch.setattr(compiled, "_library", None)
        monkeypatch.setattr(compiled, "_kernels", {})
    else:
        use_level(monkeypatch, level)
    before = threads.num_threads()
    threads.set_num_threads(count)
    yield
    threads.set_num_threads(before)


ROWS = [*((9, n) for n in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)), (70, 300), (5, 5000), (2, 1_000_003)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mean", [0.0, 10.0])
@pytest.mark.parametrize("shape", [*ROWS, pytest.param((1, 4_000_000), marks=pytest.mark.slow)], ids=str)
def test_norms_of_rows(shape: tuple[int, int], mean: float) -> None:
    x, grad, scale, bias = real(*shape, mean=mean), real(*shape, seed=1), *(real(shape[1], seed=i) for i in (2, 3))
    for name, biases in (("layer_norm", (None, bias)), ("rms_norm", (None,))):
        centred, apply = name == "layer_norm", getattr(BASE, name)
        for factor in (None, scale):
            for shift in biases:
                expected, _ = norm(x, 1, centred, 1.0 if factor is None else factor, 0.0 if shift is None else shift)
                operands = (x, factor, shift) if centred else (x, factor)
                assert error(apply(*operands, axis=(1,), eps=1e-5), expected, 1) <= 2
        of_x, of_scale = getattr(BASE, f"{name}_backward")(grad, x, scale, axis=(1,), eps=1e-5)
        expected, products = norm(x, 1, centred, scale)[1](grad)
        assert error(of_x, expected, 1) <= 4
        # The error of a sum of few products is relative to the sum of their absolute values.
        assert error(of_scale, products.sum(0), least=0.3 * np.abs(products).sum(0).max()) <= 4
    assert error(BASE.sum(grad, axis=(0,)), grad.sum(0, dtype=np.float64), least=math.sqrt(shape[0])) <= 4


@pytest.mark.usefixtures("way")
def test_gradients_for_scales_of_many_rows() -> None:
    for shape in ((300_000, 4), (100_000, 20), (5000, 300)):
        x, grad, scale = real(*shape, mean=1.0), real(*shape, mean=1.0, seed=1), real(shape[1], seed=2)
        for name in ("layer_norm", "rms_norm"):
            of_scale = getattr(BASE, f"{name}_backward")(grad, x, scale, axis=(1,), eps=1e-5)[1]
            products = norm(x, 1, name == "layer_norm", scale)[1](grad)[1]
            assert error(of_scale, products.sum(0), least=math.sqrt(shape[0])) <= 4


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("width", [16, 17, 24, 31, 32, 33, 64])
def test_the_largest_error_of_many_short_rows(width: int) -> None:
    """Without kernels or fused multiply-adds, products are rounded before addition: one more unit of error."""
    x, grad, scale, bias = real(30_000, width), real(30_000, width, seed=1), *(real(width, seed=i) for i in (2, 3))
    expected, _ = norm(x, 1, True, scale, bias)
    rounded = int(compiled.level() in (None, "x86-64"))
    assert error(BASE.layer_norm(x, scale, bias, axis=(1,), eps=1e-5), expected, 1) <= 2 + rounded
    for name in ("layer_norm", "rms_norm"):
        of_x, _ = getattr(BASE, f"{name}_backward")(grad, x, scale, axis=(1,), eps=1e-5)
        assert error(of_x, norm(x, 1, name == "layer_norm", scale)[1](grad)[0], 1) <= 4 + rounded


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", [14, 146])
def test_norm_gradients_with_cancellation(seed: int) -> None:
    """In some of these rows, the gradient is a quarter of the slopes whose difference it is."""
    x, grad, scale = real(30_000, 16, seed=100 + seed), real(30_000, 16, seed=200 + seed), real(16, seed=300 + seed)
    of_x, _ = BASE.layer_norm_backward(grad, x, scale, axis=(1,), eps=1e-5)
    bar = 4 if compiled.level() else 8  # without kernels, no rows are computed in float64
    assert error(of_x, norm(x, 1, True, scale)[1](grad)[0], 1) <= bar


GROUPS = [((2, 4, 8), 2), ((3, 6, 5, 4), 3), ((2, 4, 7), 2), ((2, 6), 3), ((2, 8, 64, 64), 2), ((1, 2, 2_000_000), 1)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mean", [0.0, 10.0])
@pytest.mark.parametrize(("shape", "groups"), GROUPS, ids=str)
def test_norms_of_groups(shape: tuple[int, ...], groups: int, mean: float) -> None:
    """An instance norm is a group norm with one channel per group."""
    x, grad, scale, bias = real(*shape, mean=mean), real(*shape, seed=1), *(real(shape[1], seed=i) for i in (2, 3))
    for number in (groups, shape[1]):
        split = (shape[0], number, shape[1] // number, *shape[2:])
        of_channels = (number, shape[1] // number, *(1 for _ in shape[2:]))
        axis = tuple(range(2, len(split)))
        expected, backward = norm(x.reshape(split), axis, True, scale.reshape(of_channels), bias.reshape(of_channels))
        got = BASE.group_norm(x, scale, bias, number, 1e-5).reshape(split)
        assert error(got, expected, axis) <= 2
        operands = grad.reshape(split), x.reshape(split), scale.reshape(of_channels)
        of_x, of_scale = BASE.layer_norm_backward(*operands, axis=axis, eps=1e-5)
        expected, products = backward(operands[0])
        assert error(of_x, expected, axis, least=0.1 if number == shape[1] else 0.0) <= 4
        others = (0, *range(3, len(split)))
        least = 0.3 * np.abs(products).sum(others).max() / max(1.0, math.sqrt(products[:, 0, 0].size) / 4)
        assert error(of_scale, products.sum(others).reshape(of_channels), least=least) <= 4


BATCHES = [(64, 3, 64, 64), (4, 2, 256, 256), (262_144, 2), (65_536, 2, 4), (1000, 300), (30, 65), (8, 16), (2, 3)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_norms_of_batches(shape: tuple[int, ...], mean: float) -> None:
    x, grad, scale, bias = real(*shape, mean=mean), real(*shape, seed=1), *(real(shape[1], seed=i) for i in (2, 3))
    others, of_channels = (0, *range(2, len(shape))), (1, shape[1], *(1 for _ in shape[2:]))
    expected, backward = norm(x, others, True, scale.reshape(of_channels), bias.reshape(of_channels))
    out, means, variances = BASE.batch_norm_training(x, scale, bias, axis=1, eps=1e-5)
    wide = x.astype(np.float64)
    assert error(out, expected, others) <= 2
    assert error(means, wide.mean(others), 0, least=1.0) <= 2
    assert error(variances, wide.var(others), 0) <= 2
    of_x, of_scale = BASE.layer_norm_backward(grad, x, scale.reshape(of_channels), axis=others, eps=1e-5)
    expected, products = backward(grad)
    count = x.size // shape[1]
    assert error(of_x, expected, others) <= 4
    assert error(of_scale.reshape(-1), products.sum(others), least=math.sqrt(count)) <= 4
    assert error(BASE.sum(grad, axis=others), grad.sum(others, dtype=np.float64), least=math.sqrt(count)) <= 4


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "turned": lambda x: x.transpose(*range(1, x.ndim), 0).copy().transpose(x.ndim - 1, *range(x.ndim - 1)),
    "gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1],
}
SUMMED = [(300_001,), (1000, 300), (80_000, 4), (3, 90_001), (40, 30, 200), (70, 7, 9, 60)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SUMMED, ids=str)
def test_sums_means_and_variances(shape: tuple[int, ...], layout: str, mean: float) -> None:
    """Also along axes with large strides, where NumPy adds sequentially."""
    x = LAYOUTS[layout](real(*shape, mean=mean))
    wide, rank = x.astype(np.float64), len(shape)
    axes = {tuple(range(rank)), *((i,) for i in range(rank)), *((i, i + 2) for i in range(rank - 2)), (0, rank - 1)}
    for axis in sorted(axis for axis in axes if len(set(axis)) == len(axis)):
        size = np.abs(wide).mean(axis)
        count = x.size // size.size
        if count < 30:
            continue
        eps = np.finfo(np.float32).eps
        total, average, variance = (f(x, axis=axis) for f in (BASE.sum, BASE.mean, BASE.var))
        assert total.shape == average.shape == variance.shape == size.shape
        assert np.abs(total - wide.sum(axis)).max() <= 3 * eps * count * size.max()
        assert (np.abs(average - wide.mean(axis)) <= 3 * eps * size).all()
        assert (np.abs(variance - wide.var(axis)) <= 3 * eps * wide.var(axis)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(4_000_000,), (1_000_000, 4), (2000, 2000), (4, 1_000_000)], ids=str)
def test_sums_of_four_million(shape: tuple[int, ...]) -> None:
    x = real(*shape, mean=1.0)
    wide = x.astype(np.float64)
    for turned, exact in ((x, wide), (x.T, wide.T)):
        for axis in ((0,), tuple(range(x.ndim))):
            # Sums may cancel: errors are relative to the sum of absolute values.
            size = {"sum": np.abs(exact).sum(axis), "mean": np.abs(exact).mean(axis), "var": exact.var(axis)}
            for name, most in size.items():
                got = getattr(BASE, name)(turned, axis=axis)
                assert (np.abs(got - getattr(exact, name)(axis)) <= 3 * np.finfo(np.float32).eps * most).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(2, 1_000_000), (40, 1000), (7, 33)], ids=str)
def test_softmax_and_losses_of_long_rows(shape: tuple[int, int]) -> None:
    x, grad = real(*shape), real(*shape, seed=1)
    wide, labels = x.astype(np.float64), np.arange(shape[0])
    logarithm = np.log(np.exp(wide).sum(1, keepdims=True))
    for axis, turn in ((1, lambda a: a), (0, lambda a: np.ascontiguousarray(a.T))):
        found, slope = turn(x), turn(grad)
        y, log_y = BASE.softmax(found, axis=axis), BASE.log_softmax(found, axis=axis)
        assert error(y, turn(np.exp(wide - logarithm)), axis) <= 2
        assert error(log_y, turn(wide - logarithm), axis) <= 2
        assert error(BASE.logsumexp(found, axis=(axis,)), logarithm[:, 0], 0) <= 2
        exact = y.astype(np.float64)
        expected = exact * (slope - (slope * exact).sum(axis, keepdims=True))
        assert error(BASE.softmax_backward(slope, y, axis=axis), expected, axis) <= 4
        expected = slope - np.exp(log_y.astype(np.float64)) * slope.sum(axis, keepdims=True, dtype=np.float64)
        assert error(BASE.log_softmax_backward(slope, log_y, axis=axis), expected, axis) <= 4
        losses = BASE.label_cross_entropy(found, labels, axis=axis)
        assert error(losses, logarithm[:, 0] - wide[labels, labels], 0) <= 2


RUNNING: dict[str, Callable[[Any, int], Any]] = {
    "cumulative_sum": lambda x, axis: np.cumsum(x, axis),
    "cumulative_prod": lambda x, axis: np.cumprod(x, axis),
    "logcumsumexp": np.logaddexp.accumulate,
}
LINES = [(1_000_000,), (1, 100_003), (9, 1003), (70_001, 3), (5, 700, 11), (19, 8), (3, 5), (1, 1), (2, 1025, 4)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("layout", ["rows", "columns", "gaps", "backwards"])
@pytest.mark.parametrize("shape", LINES, ids=str)
@pytest.mark.parametrize("name", RUNNING)
def test_running_sums_and_products(name: str, shape: tuple[int, ...], layout: str) -> None:
    """Each element is rounded once, as in PyTorch, which adds in float64."""
    if name == "logcumsumexp" and (layout != "rows" or shape == LINES[0]):
        pytest.skip("computed by NumPy, slowly")
    x = real(*shape) if name != "cumulative_prod" else 1 + real(*shape) / 1000
    x = LAYOUTS[layout](x)
    for axis in range(len(shape)):
        for backwards in (False, True) if name != "logcumsumexp" else (False,):
            way = (*(slice(None),) * axis, slice(None, None, -1 if backwards else 1))
            expected = RUNNING[name](x.astype(np.float64)[way], axis)[way]
            got = getattr(BASE, name)(x, axis=axis, **({"reverse": True} if backwards else {}))
            assert got.dtype == np.float32
            # Sums of float64 in another order differ by float64's own rounding where they cancel.
            np.testing.assert_allclose(got, expected, rtol=6.1e-8, atol=1e-11)


@pytest.mark.usefixtures("way")
def test_running_sums_of_special_numbers() -> None:
    x = np.ones((9, 40), np.float32)
    x[0, 3], x[1, 20], x[2, 5], x[2, 30], x[3] = np.nan, np.inf, np.inf, -np.inf, -0.0
    x[4, 9:11] = 3e38
    for rows in (x, x[:3], x[3:4]):
        for axis, turned in ((1, rows), (0, np.ascontiguousarray(rows.T))):
            with np.errstate(all="ignore"):
                expected = [f(turned.astype(np.float64), axis).astype(np.float32) for f in (np.cumsum, np.cumprod)]
            got = BASE.cumulative_sum(turned, axis=axis), BASE.cumulative_prod(turned, axis=axis)
            for mine, theirs in zip(got, expected, strict=True):
                np.testing.assert_array_equal(mine, theirs)
                np.testing.assert_array_equal(np.signbit(mine), np.signbit(theirs))
