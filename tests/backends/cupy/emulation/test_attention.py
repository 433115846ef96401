"""Attention on tensor cores: the CUDA kernels, run on the CPU, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, host_dtype, operand

from backburn_cupy.kernels import attention

NARROW = ("float16", "bfloat16")

#: Weights and their gradients are rounded before they are multiplied, in addition to the result's rounding.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture(scope="session", params=NARROW)
def dtype(request: pytest.FixtureRequest) -> str:
    host_dtype(request.param)
    return str(request.param)


def close(actual: Any, expected: Any, dtype: str, least: float) -> None:
    """Fail unless ``actual`` equals the float64 result up to rounding to 16 bits, of values of at least ``least``."""
    assert (actual.shape, actual.dtype.name) == (expected.shape, dtype)
    tolerance = TOLERANCE[dtype]
    scale = float(np.max(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=least))
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance * scale)


def check(
    on: EmulatedRunner, query: Any, key: Any, value: Any, *, mask: Any = None, keep: Any = None, causal: bool = False,
    scale: float = 0.25, dropout: float = 0.0, least: float = 1e-3,
) -> None:  # fmt: skip
    """Compare the result and the three gradients with NumPy's."""
    dtype, width = query.dtype.name, value.shape[3]
    grad = operand((*query.shape[:3], width), dtype, 9)
    assert attention.supports(on, query, value)
    scores = (*query.shape[:3], key.shape[2])
    of_all = (None if m is None else np.broadcast_to(m, scores) for m in (mask, keep))
    out, logarithms = (on.xp.ndarray((*query.shape[:3], n), t) for n, t in ((width, query.dtype), (1, np.float32)))
    results = [on.xp.ndarray(x.shape, x.dtype) for x in (query, key, value)]
    options = attention.Options(next(of_all), next(of_all), causal, scale, dropout)
    attention.attend(on, query, key, value, out, logarithms, options)
    attention.attend_backward(on, grad, query, key, value, out, logarithms, results, options)
    wide = [x.astype(np.float64) for x in (grad, query, key, value)]
    if mask is not None and mask.dtype.kind != "b":
        mask = mask.astype(np.float64)
    close(out, NUMPY.scaled_dot_product_attention(*wide[1:], mask, keep, *options[2:]), dtype, least)
    expected = NUMPY.scaled_dot_product_attention_backward(*wide, mask, keep, None, *options[2:])
    for actual, gradient in zip(results, expected, strict=True):
        close(actual, gradient, dtype, least)


def heads(dtype: str, queries: int, keys: int, size: int, width: int = 0, stack: tuple[int, int] = (1, 1)) -> Any:
    shapes = ((queries, size), (keys, size), (keys, width or size))
    return [operand((*stack, *shape), dtype, i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(1, 1, 8), (64, 64, 64), (70, 65, 32), (3, 130, 64), (100, 40, 128), (17, 33, 72)]
)
def test_attention(on: EmulatedRunner, dtype: str, queries: int, keys: int, size: int, causal: bool) -> None:
    check(on, *heads(dtype, queries, keys, size), causal=causal)


@pytest.mark.parametrize(("size", "width"), [(8, 40), (64, 16), (16, 128)])
def test_values_of_another_width(on: EmulatedRunner, dtype: str, size: int, width: int) -> None:
    check(on, *heads(dtype, 20, 30, size, width))


def test_strided_stacks_of_heads(on: EmulatedRunner, dtype: str) -> None:
    side_by_side = [operand((2, 21, 3, 16), dtype, i).transpose(0, 2, 1, 3) for i in range(3)]
    check(on, *side_by_side, causal=True)
    apart = [operand((2, 3, 42, 16), dtype, i)[:, :, ::2] for i in range(3)]
    check(on, *apart)


@pytest.mark.parametrize("causal", [False, True])
def test_masks(on: EmulatedRunner, dtype: str, causal: bool) -> None:
    operands = heads(dtype, 37, 90, 24, stack=(2, 2))
    generator = np.random.default_rng(5)
    allowed = generator.random((2, 1, 37, 90)) < 0.6
    allowed[0, 0, :, 1:], allowed[:, 0, 5] = False, False  # one visible key, and none
    check(on, *operands, mask=allowed, causal=causal)
    check(on, *operands, mask=generator.random((1, 1, 1, 90)) < 0.5, causal=causal)
    added = operand((1, 2, 37, 1), dtype, 3) * operand((1, 2, 37, 90), dtype, 4)
    added[:, :, 7], added[:, 1, 8, ::2] = -np.inf, -np.inf
    check(on, *operands, mask=added, causal=causal)


@pytest.mark.parametrize("size", [40, 72])
def test_masks_of_larger_heads(on: EmulatedRunner, dtype: str, size: int) -> None:
    generator = np.random.default_rng(7)
    allowed, keep = (generator.random((1, 2, 70, 66)) < 0.6 for _ in range(2))
    check(on, *heads(dtype, 70, 66, size, stack=(1, 2)), mask=allowed, keep=keep, dropout=0.4)


@pytest.mark.parametrize("dropout", [0.0, 0.25, 1.0])
def test_dropout(on: EmulatedRunner, dtype: str, dropout: float) -> None:
    keep = np.random.default_rng(6).random((1, 2, 70, 66)) >= dropout
    check(on, *heads(dtype, 70, 66, 16, stack=(1, 2)), keep=keep, dropout=dropout)
    check(on, *heads(dtype, 70, 66, 16, stack=(1, 2)), mask=keep[..., ::-1], keep=keep, causal=True, dropout=dropout)


def test_large_and_infinite_scores(on: EmulatedRunner, dtype: str) -> None:
    query, key, value = heads(dtype, 12, 80, 16)
    # Gradients of saturated weights cancel.
    check(on, query * query.dtype.type(50), key, value, scale=2.0, least=1.0)
    query[0, 0, 3], key[0, 0, 70, 5] = np.nan, np.inf
    out, logarithms = on.xp.ndarray(query.shape, query.dtype), on.xp.ndarray((1, 1, 12, 1), np.float32)
    attention.attend(on, query, key, value, out, logarithms, attention.Options(None, None, False, 1.0, 0.0))
    expected = NUMPY.scaled_dot_product_attention(*(x.astype(np.float64) for x in (query, key, value)), scale=1.0)
    assert np.array_equal(np.isnan(out.astype(np.float64)), np.isnan(expected))


def test_unsupported_operands(on: EmulatedRunner, dtype: str) -> None:
    for size, width in ((12, 8), (8, 12), (136, 8), (8, 256)):
        query, _, value = heads(dtype, 2, 2, size, width)
        assert not attention.supports(on, query, value)
    query, _, value = heads("float32", 2, 2, 8)
    assert not attention.supports(on, query, value)
    on.capability = 75
    query, _, value = heads(dtype, 2, 2, 8)
    assert not attention.supports(on, query, value)
