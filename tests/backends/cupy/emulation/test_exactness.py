"""Norms of float32 rows, groups and batches: the CUDA kernels, run on the CPU, against float64.

Errors are in units of float32's epsilon times the largest absolute value in a row of the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.helpers.exactness import error, norm, real

from backburn_cupy.kernels import normalization

EPS = 1e-5
WIDTHS = (2, 3, 4, 7, 8, 9, 15, 16, 17, 29, 30, 31, 32, 33, 48, 63, 64)
LONG = [(1, 20_011), (1, 100_003)]

pytestmark = pytest.mark.parametrize("dtype", ["float32"], indirect=True)


@pytest.mark.slow
def test_a_million_elements(on: EmulatedRunner) -> None:
    test_rows(on, (1, 1_000_003), 1000.0)


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("shape", [*((9, n) for n in WIDTHS), (300, 64), (20, 300), (5, 5000), *LONG], ids=str)
def test_rows(on: EmulatedRunner, shape: tuple[int, int], mean: float) -> None:
    x, grad, scale, bias = real(*shape, mean=mean), real(*shape, seed=1), *(real(shape[1], seed=i) for i in (2, 3))
    for name, biases in (("layer_norm", (None, bias)), ("rms_norm", (None,))):
        centred, apply = name == "layer_norm", getattr(normalization, name)
        for factor in (None, scale):
            for shift in biases:
                expected, _ = norm(x, 1, centred, 1.0 if factor is None else factor, 0.0 if shift is None else shift)
                operands = (x, factor, shift) if centred else (x, factor)
                assert error(apply(on, *operands, (1,), EPS), expected, 1) <= 2
        of_x, of_scale = getattr(normalization, f"{name}_backward")(on, grad, x, scale, (1,), EPS)
        expected, products = norm(x, 1, centred, scale)[1](grad)
        assert error(of_x, expected, 1) <= 4
        assert error(of_scale, products.sum(0), least=0.3 * np.abs(products).sum(0).max()) <= 4


def test_rows_of_one_element(on: EmulatedRunner) -> None:
    x, grad, scale = real(9, 1, mean=10.0), real(9, 1, seed=1), real(1, seed=2)
    assert (normalization.layer_norm(on, x, None, scale, (1,), EPS) == scale).all()
    of_x, of_scale = normalization.layer_norm_backward(on, grad, x, scale, (1,), EPS)
    assert (of_x == 0).all()
    assert (of_scale == 0).all()
    of_x, _ = normalization.rms_norm_backward(on, grad, x, scale, (1,), EPS)
    assert error(of_x, norm(x, 1, False, scale)[1](grad)[0], 1) <= 4


def test_gradients_for_scales_of_many_rows(on: EmulatedRunner) -> None:
    for shape in ((20_000, 4), (5000, 20), (5000, 64), (100, 2000)):
        x, grad, scale = real(*shape, mean=1.0), real(*shape, mean=1.0, seed=1), real(shape[1], seed=2)
        for name in ("layer_norm", "rms_norm"):
            of_scale = getattr(normalization, f"{name}_backward")(on, grad, x, scale, (1,), EPS)[1]
            products = norm(x, 1, name == "layer_norm", scale)[1](grad)[1]
            assert error(of_scale, products.sum(0), least=math.sqrt(shape[0])) <= 4


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("shape", [(2, 2, 3, 7), (3, 2, 4, 64), (1, 1, 2, 10_007)], ids=str)
def test_groups(on: EmulatedRunner, shape: tuple[int, ...], mean: float) -> None:
    x, grad, scale, bias = (
        real(*shape, mean=mean),
        real(*shape, seed=1),
        *(real(*shape[1:3], 1, seed=i) for i in (2, 3)),
    )
    expected, backward = norm(x, (2, 3), True, scale, bias)
    assert error(normalization.layer_norm(on, x, scale, bias, (2, 3), EPS), expected, (2, 3)) <= 2
    of_x, of_scale = normalization.layer_norm_backward(on, grad, x, scale, (2, 3), EPS)
    expected, products = backward(grad)
    assert error(of_x, expected, (2, 3)) <= 4
    assert error(of_scale, products.sum((0, 3))[..., None], least=math.sqrt(shape[3])) <= 4


BATCHES = [
    pytest.param((262_144, 2), marks=pytest.mark.slow),
    (64, 3, 8, 8),
    (4, 2, 64, 64),
    (20_000, 2),
    (500, 300),
    (30, 65),
    (17, 4),
    (15, 4),
    (8, 16),
    (2, 3),
    (3, 2, 2),
]


def check_batch(on: EmulatedRunner, x: Any) -> None:
    """Batch norm of axis 1, and its gradient."""
    shape = x.shape
    grad, scale, bias = real(*shape, seed=1), *(real(shape[1], seed=i) for i in (2, 3))
    others, of_channels = (0, *range(2, len(shape))), (1, shape[1], *(1 for _ in shape[2:]))
    expected, backward = norm(x, others, True, scale.reshape(of_channels), bias.reshape(of_channels))
    out, means, variances = normalization.batch_norm_training(on, x, scale, bias, 1, EPS)
    wide, count = x.astype(np.float64), x.size // shape[1]
    assert error(out, expected, others) <= 2
    assert error(means, wide.mean(others), 0, least=1.0) <= 2
    assert error(variances, wide.var(others), 0) <= 2
    of_x, of_scale = normalization.layer_norm_backward(on, grad, x, scale.reshape(of_channels), others, EPS)
    expected, products = backward(grad)
    assert error(of_x, expected, others) <= 4
    assert error(of_scale.reshape(-1), products.sum(others), least=math.sqrt(count)) <= 4


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batches(on: EmulatedRunner, shape: tuple[int, ...], mean: float) -> None:
    check_batch(on, real(*shape, mean=mean))


@pytest.mark.parametrize("shape", [(2000, 5), (40, 3, 10, 10)], ids=str)
def test_batches_whose_first_elements_are_far_from_the_mean(on: EmulatedRunner, shape: tuple[int, ...]) -> None:
    x = real(*shape, mean=1000.0)
    x[:1] = 0
    check_batch(on, x)
