"""Attention of 16-bit floats by our kernel, launched by the CuPy backend on the stand-in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.base import dtypes

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")


@pytest.fixture
def k(without_cudnn: None) -> Any:
    from backburn_cupy import CupyBackend

    return CupyBackend()


@pytest.fixture
def launched(k: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels launched."""
    names: list[str] = []
    run = k.runner.run

    def noted(family: str, kernel: str, *arguments: Any) -> None:
        names.append(kernel.partition("<")[0])
        run(family, kernel, *arguments)

    monkeypatch.setattr(k.runner, "run", noted)
    return names


NUMPY: Any = load_backend("numpy")

FORWARD, BACKWARD = ["attend"], ["attend_backward_queries", "attend_backward_keys"]


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


def compare(k: Any, operands: list[Any], mask: Any = None, keep: Any = None, causal: bool = False) -> Any:
    """Compare attention and its gradient on ``k`` with NumPy in float64; returns the result of ``k``."""
    dropout = 0.5 if keep is not None else 0.0
    grad = values(*operands[0].shape[:-1], operands[2].shape[-1], seed=8)
    masks = [None if m is None else k.from_numpy(m) for m in (mask, keep)]
    ours = [k.from_numpy(x) for x in operands]
    y = k.scaled_dot_product_attention(*ours, *masks, causal, 0.3, dropout)
    got = k.scaled_dot_product_attention_backward(k.from_numpy(grad), *ours, *masks, y, causal, 0.3, dropout)
    wide = [x.astype(np.float64) for x in operands]
    mask = mask.astype(np.float64) if mask is not None and mask.dtype == np.float16 else mask
    out = NUMPY.scaled_dot_product_attention(*wide, mask, keep, causal, 0.3, dropout)
    more = NUMPY.scaled_dot_product_attention_backward(grad.astype(float), *wide, mask, keep, out, causal, 0.3, dropout)
    for x, expected in zip((y, *got), (out, *more), strict=True):
        assert x.dtype == np.float16
        np.testing.assert_allclose(k.to_numpy(x), expected, rtol=6e-3, atol=6e-3)
    return y


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_operands_of_any_rank(k: Any, launched: list[str], rank: int, causal: bool) -> None:
    stack = (2, 1, 3)[: rank - 2]
    compare(k, [values(*stack, n, 8, seed=n) for n in (5, 6)] + [values(*stack, 6, 16)], causal=causal)
    assert launched == FORWARD + BACKWARD


@pytest.mark.parametrize(
    "shape",
    [(5, 6), (1, 6), (6,), (), (2, 1, 1, 5, 6), (1, 3, 2, 5, 1), (2, 3, 2, 1, 6), (3, 1, 5, 6), (1, 1, 2, 5, 6)],
)
def test_masks_of_any_shape_that_broadcasts(k: Any, launched: list[str], shape: tuple[int, ...]) -> None:
    operands = [values(2, 3, 2, n, 8, seed=n) for n in (5, 6)] + [values(2, 3, 2, 6, 8)]
    mask = np.asarray(np.random.default_rng(1).random(shape) < 0.7)
    compare(k, operands, mask)
    compare(k, operands, np.where(mask, np.float16(0.5), np.float16(-np.inf)))
    compare(k, operands, None, mask)
    assert launched == 3 * (FORWARD + BACKWARD)


def test_a_broadcast_mask_is_not_copied(k: Any) -> None:
    from backburn_cupy.attention_fused import _broadcast_mask

    query, key = (k.ones((2, 3, 2, n, 8), dtypes.float16) for n in (5, 6))
    mask = k.from_numpy(np.ones((2, 1, 1, 1, 6), bool))
    assert _broadcast_mask(k.from_numpy(np.ones((5, 6), bool)), query, key).strides == (0, 0, 6, 1)
    assert _broadcast_mask(k.from_numpy(np.ones(6, bool)), query[0, 0, 0], key[0, 0, 0]).shape == (1, 1, 5, 6)
    assert _broadcast_mask(mask, query, key).strides[1:] == (0, 0, 1)


def test_a_gradient_without_the_result_recomputes_it(k: Any, launched: list[str]) -> None:
    x = k.from_numpy(values(1, 2, 9, 8))
    y = k.scaled_dot_product_attention(x, x, x, None, None, True, 0.3, 0.0)
    grads = k.scaled_dot_product_attention_backward(x, x, x, x, None, None, y, True, 0.3, 0.0)
    anew = k.scaled_dot_product_attention_backward(x, x, x, x, None, None, None, True, 0.3, 0.0)
    assert launched == FORWARD + BACKWARD + FORWARD + BACKWARD
    for one, other in zip(grads, anew, strict=True):
        np.testing.assert_array_equal(k.to_numpy(one), k.to_numpy(other))


def test_products_compute_what_the_kernel_does_not_support(k: Any, launched: list[str]) -> None:
    for size, dtype in ((12, np.float16), (136, np.float16), (8, np.float32), (8, np.float64)):
        x = values(1, 2, 4, size).astype(dtype)
        y, wide = k.from_numpy(x), x.astype(float)
        y = k.scaled_dot_product_attention(y, y, y, None, None, False, 1.0, 0.0)
        expected = NUMPY.scaled_dot_product_attention(wide, wide, wide, scale=1.0)
        np.testing.assert_allclose(k.to_numpy(y), expected, rtol=5e-3, atol=5e-3)
    assert "attend" not in launched


@pytest.mark.parametrize("masked", [False, True])
def test_capped_scores_are_computed_by_products(k: Any, launched: list[str], masked: bool) -> None:
    operands = [values(2, n, 8, seed=n) for n in (5, 6, 6)]
    grad, mask = values(2, 5, 8, seed=8), np.random.default_rng(1).random((5, 6)) < 0.7 if masked else None
    ours, options = [k.from_numpy(x) for x in operands], {"causal": True, "scale": 0.5, "softcap": 0.7}
    seen = None if mask is None else k.from_numpy(mask)
    y = k.scaled_dot_product_attention(*ours, seen, **options)
    got = k.scaled_dot_product_attention_backward(k.from_numpy(grad), *ours, seen, None, y, **options)
    wide = [x.astype(np.float64) for x in operands]
    out = NUMPY.scaled_dot_product_attention(*wide, mask, **options)
    more = NUMPY.scaled_dot_product_attention_backward(grad.astype(float), *wide, mask, None, out, **options)
    for x, expected in zip((y, *got), (out, *more), strict=True):
        assert x.dtype == np.float16
        np.testing.assert_allclose(k.to_numpy(x), expected, rtol=6e-3, atol=6e-3)
    assert "attend" not in launched


def test_heads_of_a_model_and_its_gradient(k: Any, launched: list[str]) -> None:
    """Transposed heads, fewer key heads than query heads, and a mask per example."""
    allowed = np.arange(6) < np.array([6, 4])[:, None, None, None]

    def loss(backend: Any, dtype: str) -> Any:
        x = bb.asarray(values(2, 6, 32).astype(np.float32), dtype=dtype, backend=backend)
        mask = bb.asarray(allowed, backend=backend)

        def of(x: Any) -> Any:
            heads = bb.permute_dims(bb.reshape(x, (2, 6, 4, 8)), (0, 2, 1, 3))
            few = heads[:, :2]
            y = bb.nn.functional.scaled_dot_product_attention(heads, few, few, mask, is_causal=True, enable_gqa=True)
            return bb.sum(y * y)

        return bb.grad(of)(x).to("numpy").tolist()

    gradient = np.array(loss(Autodiff(k), "bfloat16"))
    np.testing.assert_allclose(gradient, loss(Autodiff(load_backend("numpy")), "float64"), rtol=0.1, atol=0.1)
    assert launched == [*FORWARD, "sum_all", *BACKWARD]
