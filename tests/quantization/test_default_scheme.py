"""The default scheme: rounding to int8 steps, its error, shapes, and refused values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backburn.autodiff import Autodiff, Dual, Forward
from backburn.backend.registry import load_backend
from backburn.base.dtypes import float16, float32, float64, qint8
from backburn.base.errors import NotDifferentiableError, NumericalInstabilityError
from backburn.tensor.core.defaults import no_grad
from backburn_numpy.ops.quantization import QuantizedArray

K: Any = load_backend("numpy")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def arrays(dtype: Any, largest: float) -> Any:
    width = np.dtype(dtype).itemsize * 8
    values = st.floats(-largest, largest, allow_nan=False, allow_infinity=False, width=width, allow_subnormal=True)
    return hnp.arrays(dtype, SHAPES, elements=values)


def check(x: Any) -> None:
    """Check, without rounding, that each value is at most half a step from its quantized value."""
    q = K.quantize(x)
    assert K.dtype(q) is qint8
    assert q.shape == x.shape
    assert q.values.dtype == np.int8
    assert q.scale.dtype == np.float32
    assert np.abs(q.values.astype(np.int64)).max(initial=0) <= 127
    step = float(q.scale)
    assert step > 0
    error = np.abs(x.astype(np.float64) - K.dequantize(q, float64))
    assert error.max(initial=0.0) <= 0.5 * step * (1 + 1e-12)


@given(arrays(np.float64, 1e38))
def test_the_error_is_at_most_half_a_step(x: Any) -> None:
    check(x)


@given(arrays(np.float32, 1000.0))
def test_the_error_is_at_most_half_a_step_in_float32(x: Any) -> None:
    check(x)


@given(arrays(np.float16, 65504.0))
def test_the_error_is_at_most_half_a_step_in_float16(x: Any) -> None:
    check(x)


@given(arrays(np.float32, 1.0), st.integers(-149, -120))
def test_the_error_is_at_most_half_a_step_for_denormal_scales(x: Any, exponent: int) -> None:
    check(np.ldexp(x, exponent))


@given(arrays(np.float64, 1.0), st.integers(-1074, -1000))
def test_values_below_every_scale_become_zeros(x: Any, exponent: int) -> None:
    x = np.ldexp(x, exponent)
    check(x)
    assert not K.to_numpy(K.quantize(x)).any()


@pytest.mark.parametrize("multiple", [64, 127, 128, 180, 190, 191, 254, 317, 318])
def test_a_denormal_scale_reaches_the_largest_value(multiple: int) -> None:
    """The step `multiple / 127` is rounded to a whole denormal: rounding down would exclude the largest value."""
    least = np.float32(1e-45)
    check(np.array([multiple, 1, -multiple], np.float32) * least)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_zeros_are_exact(shape: tuple[int, ...]) -> None:
    check(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(K.to_numpy(K.quantize(np.zeros(shape))), np.zeros(shape, np.float32), strict=True)


def test_large_arrays_and_layouts() -> None:
    x = np.random.default_rng(0).standard_normal((3, 20_000)).astype(np.float32)
    check(x)
    q = K.quantize(x)
    for other, layout in ((x.T, q.values.T), (x[:, ::-2], None)):
        check(other)
        if layout is not None:
            np.testing.assert_array_equal(K.quantize(other).values, layout)


def test_the_largest_value_is_exact_and_halves_round_to_even() -> None:
    q = K.quantize(np.array([127.0, -127.0, 0.5, 1.5, -0.5, 2.4]))
    assert float(q.scale) == 1.0
    assert q.values.tolist() == [127, -127, 0, 2, 0, 2]


def test_one_byte_per_value_and_four_for_the_scale() -> None:
    assert K.quantize(np.ones((100, 10))).nbytes == 1004


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_refused(bad: float) -> None:
    for x in (np.array(bad), np.array([1.0, bad, 2.0], np.float32), np.array([[np.nan, bad]])):
        with pytest.raises(NumericalInstabilityError, match="must be finite"):
            K.quantize(x)


def test_values_too_large_for_a_float32_scale_are_refused() -> None:
    check(np.array([4e40]))
    with pytest.raises(NumericalInstabilityError, match=r"5e\+40"):
        K.quantize(np.array([5e40]))


@pytest.mark.parametrize("dtype", [float16, float32, float64])
def test_dequantize_gives_the_dtype_asked_for(dtype: Any) -> None:
    q = K.quantize(np.array([1.0, -3.0, 2.5]))
    x = K.dequantize(q, dtype)
    assert K.dtype(x) is dtype
    np.testing.assert_array_equal(x, (q.values * q.scale.astype(np.float64)).astype(dtype.dtype))
    zero = K.dequantize(K.quantize(np.array(2.0)), dtype)
    assert type(zero) is np.ndarray
    assert zero.shape == ()


def test_dequantize_is_float32_by_default() -> None:
    assert K.dtype(K.dequantize(K.quantize(np.ones(3)))) is float32
    assert K.to_numpy(K.quantize(np.ones(3))).dtype == np.float32


def test_shape_operations_stay_quantized() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    q = K.quantize(x)
    plain = K.to_numpy(q)
    for changed, expected in (
        (K.reshape(q, (3, 2)), plain.reshape(3, 2)),
        (K.permute_dims(q, (1, 0)), plain.T),
        (K.broadcast_to(q, (4, 2, 3)), np.broadcast_to(plain, (4, 2, 3))),
    ):
        assert type(changed) is QuantizedArray
        assert changed.scale is q.scale
        np.testing.assert_array_equal(K.to_numpy(changed), expected)


def test_autodiff_does_not_wrap_quantized_tensors() -> None:
    outer: Any = Autodiff(K)
    q = outer.quantize(outer.from_inner(np.array([1.0, 2.0])))
    assert type(q) is QuantizedArray
    assert outer.q_inner(q) is q
    assert outer.q_from_inner(q) is q
    back = outer.dequantize(outer.reshape(q, (2, 1)))
    assert not outer.is_tracked(back)
    np.testing.assert_array_equal(outer.inner(back), K.dequantize(K.reshape(q, (2, 1))))


@pytest.mark.parametrize("level", [Autodiff, Forward])
def test_tracked_tensors_are_not_silently_detached(level: Any) -> None:
    """A tensor tracked at any level is not quantized outside no_grad."""
    outer: Any = level(K)
    value = np.array([1.0, 2.0], np.float32)
    x = outer.from_inner(value)
    low, high = (outer.from_inner(np.array(end, np.float32)) for end in (-1.0, 1.0))
    if level is Autodiff:
        leaf, end = outer.set_require_grad(x, True), outer.set_require_grad(high, True)
        leaf = outer.mul(leaf, leaf)
    else:
        leaf, end = Dual(value, np.ones_like(value)), Dual(high.value, np.float32(1.0))
    for k, primitive in ((outer, leaf), (Autodiff(outer), Autodiff(outer).from_inner(leaf))):
        with pytest.raises(NotDifferentiableError, match=r"quantize: x, float32\[2\].*detach.*fake_quantize"):
            k.quantize(primitive)
    for operands, name in (((leaf, low, high), "x"), ((x, low, end), "high")):
        with pytest.raises(NotDifferentiableError, match=f"quantize_between: {name}, .*detach"):
            outer.quantize_between(*operands)
        with no_grad():
            assert type(outer.quantize_between(*operands)) is QuantizedArray
    with no_grad():
        assert type(outer.quantize(leaf)) is QuantizedArray
    np.testing.assert_array_equal(outer.fake_quantize(leaf).value, K.dequantize(K.quantize(leaf.value)))
