"""Compiled kernels of functions, random numbers and products, at every instruction set, compared with NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import BASE, SPECIAL, both, ends, needs_kernels, numbers

from backburn.base.dtypes import as_dtype, float32, float64
from backburn.base.errors import ArgumentError, NumericalInstabilityError, OutOfRangeError, SingularMatrixError
from backburn.ops.bodies.quantized import scale_shape
from backburn.ops.quantized_products import depth
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise import blocks, fused, half_precision, ufuncs
from backburn_numpy.ops import (
    quantization,
    quantized_products,
    random,
)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int64])
@pytest.mark.parametrize(
    ("shape", "count", "axis"), [((6,), 4, 0), ((3, 5, 7), 9, 2), ((4, 6, 1), 3, 1), ((2, 3), 0, 1)]
)
def test_gather(dtype: Any, shape: Any, count: int, axis: int) -> None:
    x, places = (numbers(*shape) * 100).astype(dtype), (*shape[:axis], count, *shape[axis + 1 :])
    for low in (0, -shape[axis]):
        indices = np.random.default_rng(0).integers(low, shape[axis], places)
        for turned, own in ((x, indices), (np.asfortranarray(x), indices[..., ::-1]), (x, indices.astype(np.int32))):
            got = BASE.take_along_axis(turned, own, axis=axis)
            np.testing.assert_array_equal(got, np.take_along_axis(x, own, axis))
            assert got.dtype == dtype
    for wrong in (shape[axis], -shape[axis] - 1) if count else ():
        with pytest.raises(OutOfRangeError, match=f"index {wrong} is out of range for an axis of {shape[axis]}"):
            BASE.take_along_axis(x, np.full(places, wrong), axis=axis)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences_over_every_axis(axis: int, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 5, 19)
    a, b, x, grad = (numbers(*shape, seed=s, spread=1.0) for s in range(4))
    h0 = numbers(*(n for i, n in enumerate(shape) if i != axis), seed=5)
    for first in (None, h0):
        got, expected = both(monkeypatch, "ssm_scan", a, b, x, first, axis=axis, reverse=reverse)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)
        out = expected[0].astype(np.float32)
        options: dict[str, Any] = {"axis": axis, "reverse": reverse}
        got, expected = both(monkeypatch, "ssm_scan_backward", grad, a, b, x, out, first, **options)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    for factors in (b[:1], 1.0, -0.5):
        got, expected = both(monkeypatch, "ssm_scan", a[:1, :1, :1], factors, x, None, axis=axis, reverse=reverse)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-4)


#: Shapes with their reduced axes: rows and columns, shorter and longer than what kernels take at a time.
OF_PRODUCTS = (
    ((3, 2000), (0,)), ((2, 1100), (1,)), ((7, 65), (1,)), ((7, 63), (0,)), ((5, 40, 7), (1,)), ((5, 40, 7), (0, 1)),
    ((4, 1), (0,)), ((4, 1), (1,)), ((60,), (0,)), ((5, 4, 7), (0, 2)), ((2, 0, 3), (1,)), ((2, 3), ()),
)  # fmt: skip


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("shape", "axis"), OF_PRODUCTS)
def test_products_of_other_elements(shape: tuple[int, ...], axis: tuple[int, ...]) -> None:
    """With no, one or several zeros, NaN, infinity, and products that float32 cannot hold though they are finite."""
    rng = np.random.default_rng(0)

    def expected(x: Any) -> Any:
        moved = np.moveaxis(x.astype(np.float64), axis, range(-len(axis), 0)) if axis else x[..., None]
        lines = moved.reshape(*moved.shape[: x.ndim - len(axis)], math.prod(x.shape[a] for a in axis))
        others = [np.delete(lines, i, -1).prod(-1) for i in range(lines.shape[-1])]
        found = np.stack(others, -1).reshape(moved.shape) if others else moved
        return np.moveaxis(found, range(-len(axis), 0), axis) if axis else found[..., 0]

    def check(x: Any) -> None:
        got, right = BASE.prod_of_others(x, axis), expected(x)
        assert got.dtype == x.dtype
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(got, right.astype(x.dtype), rtol=2e-4 if axis == (0, 2) else 2e-7, atol=1e-44)

    x = (1 + rng.normal(size=shape) / 4).astype(np.float32)
    check(x)
    for zeros in (1, 2, 9):
        x.flat[: zeros * 5 : 5] = 0
        check(x)
    if x.size:
        x[x == 0] = 1
        for special in (np.nan, np.inf):
            x.flat[1] = special
            np.testing.assert_allclose(BASE.prod_of_others(x, axis), expected(x), rtol=2e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_products_of_other_elements_are_right_where_float32_underflows_in_between() -> None:
    x = np.array([[1e-30, -1e-30, 2e38, 2e38, 0.5], [3e38, 1e30, 1e-38, -1e-38, 0.0]], np.float32)
    with np.errstate(over="ignore"):
        exact = np.array([[np.delete(row, i).astype(float).prod() for i in range(5)] for row in x]).astype(np.float32)
    np.testing.assert_allclose(BASE.prod_of_others(x, (1,)), exact, rtol=1e-6)
    np.testing.assert_allclose(BASE.prod_of_others(x.T.copy(), (0,)).T, exact, rtol=1e-6)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("shape", "axis"), [((3, 40, 5), 1), ((3, 5, 40), 2), ((3, 40, 1), 1), ((2100, 40), 1)])
def test_rows_of_repeated_indices_are_added(shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = np.random.default_rng(0).integers(-7, 7, 40)
    for dtype, near in ((np.float32, 1e-5), (np.float64, 1e-12)):
        grad = numbers(*shape).astype(dtype)
        got, expected = both(monkeypatch, "take_backward", grad, indices, length=7, axis=axis)
        assert got[0].dtype == dtype
        np.testing.assert_allclose(got[0], expected[0], rtol=near, atol=near)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_a_weight_that_is_dequantized_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "EXPANDED_AT_A_TIME", 1000)
    for name in ("qint4_affine_block32_float16", "qint8_symmetric_channel0_float32"):
        weight = BASE.quantize(numbers(70, 100), dtype=as_dtype(name))  # type: ignore[arg-type]
        grad, plain = numbers(40, 70), BASE.dequantize(weight, float32).astype(np.float64)
        back = BASE.quantized_linear_backward(grad, weight)
        np.testing.assert_allclose(back, grad.astype(np.float64) @ plain, rtol=1e-5, atol=5e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("inputs", [1, 7, 32, 100, 128, 300, 520])
@pytest.mark.parametrize("name", [
    "qint8_symmetric_tensor_float32", "quint8_affine_channel0_float16", "qint8_symmetric_block32_float32",
    "qint8_affine_block48_float16", "qint8_symmetric_block8_bfloat16", "qint4_symmetric_tensor_float32",
    "qint4_symmetric_channel0_float32", "qint4_affine_block32_float16", "qint4_symmetric_block6_float32",
    "qint4_full_block8_float16", "qint4_affine_block16_bfloat16", "qint4_symmetric_block40_float32",
    "qint4_affine_block64_float32", "qint4_affine_block128_float16", "qint4_symmetric_block256_float32",
    "qint4_affine_block384_float32", "qint2_symmetric_block32_float16",
])  # fmt: skip
def test_products_with_quantized_weights(name: str, inputs: int) -> None:
    weight = BASE.quantize(numbers(13, inputs), dtype=as_dtype(name))  # type: ignore[arg-type]
    plain = BASE.dequantize(weight, float32).astype(np.float64)
    for batch in (1, 2, 3, 4, 5, 9, 40):
        x = numbers(batch, inputs, seed=batch)
        got = BASE.quantized_linear(x, weight)
        np.testing.assert_allclose(got, x.astype(np.float64) @ plain.T, rtol=1e-5, atol=2e-4)
        grad = numbers(batch, 13, seed=batch)
        back = BASE.quantized_linear_backward(grad, weight)
        np.testing.assert_allclose(back, grad.astype(np.float64) @ plain, rtol=1e-5, atol=2e-4)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_poisson_samples_equal_numpy_s_bitwise(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    special = np.resize([0.0, 1e-300, 9.999, -1.0, np.nan, np.inf, -np.inf, 4.0, 10.0, 30.0], 201)
    for rates in (rng.uniform(0, 12, 40_001), special, np.zeros(0), np.array(3.0)):
        rate = rates.astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            found = BASE.poisson(rate, 7, 3)
            with monkeypatch.context() as without:
                without.setattr(compiled, "_library", None)
                without.setattr(compiled, "_kernels", {})
                expected = BASE.poisson(rate, 7, 3)
        assert (found.dtype, found.shape) == (dtype, rate.shape)
        np.testing.assert_array_equal(found, expected)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_permutations_are_the_stable_order_of_their_keys() -> None:
    for n in (0, 1, 2, 3, 8, 100, 1023, 1024, 5000, 70_000):
        low, high = random.words(9, 5, 2 * n).astype(np.uint64).reshape(n, 2).T
        keys = (high << np.uint64(31)) | (low >> np.uint64(1))
        np.testing.assert_array_equal(BASE.permutation(9, 5, n), np.argsort(keys, kind="stable"), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("inputs", [1, 63, 64, 129, 520])
@pytest.mark.parametrize("right", [
    "qint8_symmetric_channel0_float32", "qint8_affine_tensor_float16", "quint8_affine_channel0_bfloat16",
])  # fmt: skip
@pytest.mark.parametrize("left", ["qint8_affine_tensor_float32", "quint8_affine_channel0_float32"])
def test_products_of_integers(left: str, right: str, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are exact: only the product with both scales is rounded, once."""
    monkeypatch.setattr(tuning, "PRODUCTS_PER_TASK", 1)
    for rows, columns in ((1, 1), (3, 4), (4, 7), (135, 9)):
        x = BASE.quantize(numbers(rows, inputs) + np.float32(0.5), dtype=as_dtype(left))  # type: ignore[arg-type]
        y = BASE.quantize(numbers(columns, inputs, seed=1), dtype=as_dtype(right))  # type: ignore[arg-type]
        expected = BASE.dequantize(x, float64) @ BASE.dequantize(y, float64).T
        np.testing.assert_allclose(BASE.quantized_matmul(x, y, transposed=True), expected, rtol=1e-7, atol=1e-12)
        if y.dtype.axis is None:
            np.testing.assert_array_equal(
                BASE.quantized_matmul(x, BASE.permute_dims(y, (1, 0))), BASE.quantized_matmul(x, y, transposed=True)
            )


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_the_largest_sums_of_integers() -> None:
    """Sums are exact, whether they fit into int32 or are longer and added by NumPy."""
    scheme = as_dtype("quint8_affine_tensor_float32")
    for inputs in (quantized_products.DEEPER * depth(scheme, scheme), 1 << 16):  # type: ignore[arg-type]
        parts = np.full((1, inputs), 255, np.uint8), np.array(1.0, np.float32), np.array(0, np.uint8)
        x = BASE.quantized_from_parts(*parts, dtype=scheme, shape=(1, inputs))  # type: ignore[arg-type]
        assert BASE.quantized_matmul(x, x, transposed=True) == np.float32(255**2 * inputs)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", [
    "qint8_symmetric_tensor_float32", "quint8_affine_tensor_float32", "qint8_affine_channel0_float32",
    "qint4_affine_block6_float32", "qint4_symmetric_block32_float32", "qint2_symmetric_block32_float32",
    "qint2_affine_channel0_float32",
])  # fmt: skip
def test_quantization_equals_numpy_s_bitwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands are halves of a step and their neighbours, subnormal and largest values, zeros."""
    scheme: Any = as_dtype(name)
    halves_of_steps = np.random.default_rng(0).integers(-254, 255, (7, 40)).astype(np.float32) / 2
    some = [numbers(5, 13), abs(numbers(3, 70)), numbers(1, 1), np.zeros((3, 5), "f"), halves_of_steps]
    for step in (0.3, 7e-30, 1e-42):
        ties = halves_of_steps * np.float32(step)
        some += [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    some += [numbers(4, 6).T, np.float32(1e38) * numbers(2, 9).clip(-3, 3), numbers(6, 10).astype(np.float16)]
    for x in some:
        steps = scale_shape(x.shape, scheme)
        ends = np.full(steps, -0.7, x.dtype), np.full(steps, 2.0, x.dtype)
        for given in ((), ends, (ends[1], ends[1]), (np.zeros_like(ends[0]),) * 2):
            function: Any = BASE.quantize_between if given else BASE.quantize
            got = function(x, *given, dtype=scheme)
            with monkeypatch.context() as without:
                without.setattr(quantization, "_run_kernel", lambda *operands: None)
                expected = function(x, *given, dtype=scheme)
            for part in ("values", "scale", "zero"):
                np.testing.assert_array_equal(getattr(got, part), getattr(expected, part), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_quantization_rejects_non_finite_values_and_reversed_ends() -> None:
    x, low, high = numbers(3, 40), *(np.array(end, np.float32) for end in (-1, 1))
    for bad in (np.nan, np.inf, -np.inf):
        wrong = x.copy()
        wrong[1, 37] = bad
        with pytest.raises(NumericalInstabilityError, match="finite"):
            BASE.quantize(wrong)
        with pytest.raises(NumericalInstabilityError, match="finite"):
            BASE.quantize_between(wrong, low, high)
    with pytest.raises(NumericalInstabilityError, match="finite"):
        BASE.quantize_between(x, low, np.array(np.nan, np.float32))
    with pytest.raises(ArgumentError, match="above its high end"):
        BASE.quantize_between(x, high, low)


# ---- NumPy's functions, in our threads ----

MANY = 70_001


EXACT = ["negative", "absolute", "square", "sqrt", "reciprocal"]


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_one_array() -> None:
    x = ends(MANY)
    for ufunc, name in ufuncs.KERNELS.items():
        if ufunc.nin == 2:
            continue
        found = ufuncs.large(ufunc, x)
        with np.errstate(all="ignore"):
            same, expected = ufunc(x), ufunc(x.astype(np.float64)).astype(np.float32)
        if name in EXACT:
            np.testing.assert_array_equal(found, same, err_msg=name)
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-44, err_msg=name)
        some = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(expected[some]), err_msg=name)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_doubles() -> None:
    x = ends(MANY).astype(np.float64)
    x[1::3] *= 10.0 ** np.arange(-5, 5)[np.arange(len(x[1::3])) % 10]
    x[4::9] = np.arange(len(x[4::9])) * (math.pi / 2)
    near = x[np.abs(x) < 1e5]  # fused programs compute only these without NumPy
    for name in ("log", "log1p", "sin", "cos", "tan"):
        ufunc = getattr(np, name)
        for part, dtype, wide in ((x, "f8", np.longdouble), (near, "f8", np.longdouble), (near, "f4", np.float64)):
            narrow = part.astype(dtype)
            found: Any = fused.fuse_kernel(name, narrow)
            with np.errstate(all="ignore"):
                expected = ufunc(narrow.astype(wide))
                unit = np.spacing(np.abs(expected).astype(dtype))
            some = np.isfinite(unit)
            np.testing.assert_array_equal(found[~some], expected[~some].astype(dtype))
            found, expected, unit = (a[some] for a in (found, expected, unit))
            assert (np.abs(found - expected) <= 3 * unit).all(), name
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected), err_msg=name)
    for ufunc in ufuncs.DOUBLE_KERNELS:
        if ufunc.nin == 2:
            continue
        found = ufuncs.large(ufunc, x)
        with np.errstate(all="ignore"):
            expected = ufunc(x)
        np.testing.assert_array_max_ulp(found[np.isfinite(x)], expected[np.isfinite(x)], 3)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(("name", "units"), [("lgamma", 5), ("digamma", 11)])
def test_gamma_functions(name: str, units: int) -> None:
    """Errors are in rounding units of the result or, below 0, of the larger term of the difference."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.0, -1.0, -2.0, 1e38, -1e38, 1e-40, -8388606.5, -8388608.0]
    runs = [np.linspace(a, b, 5000) for a, b in ((-0.48, 0.52), (0.4, 7.0), (-40.3, -0.4), (5.0, 1e6))]
    for x in (*(run.astype(np.float32) for run in (*runs, *(runs[1][:n] for n in (1, 9, 255, 257)))),):
        function = getattr(BASE, name)
        with np.errstate(invalid="ignore"):
            got, expected, of_size = function(x), function(x.astype(np.float64)), function(np.abs(x.astype(np.float64)))
        near = (x > 0) | (x < -0.5)
        scale = np.where(x > 0, np.abs(expected), np.maximum(1.0, np.maximum(np.abs(expected), np.abs(of_size))))
        error = np.abs(got - expected) / (scale * 2.0**-24 + 1e-45)
        assert error[near & np.isfinite(expected)].max(initial=0.0) < 2 * units
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-5)
    x = np.array(special * 50, np.float32)
    with np.errstate(over="ignore"):
        expected = function(np.array(special, np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(function(x), np.tile(expected, 50), rtol=1e-6)
    out = function(x.reshape(-1, 2)[:, 0])
    np.testing.assert_array_equal(out, function(x)[::2])


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_functions_of_two_arrays() -> None:
    """Bitwise equal, also with a number on either side; which of two zeros is the larger is undefined."""
    x, y = ends(MANY), ends(MANY)[::-1].copy()
    for ufunc, name in ufuncs.KERNELS.items():
        if ufunc.nin == 1:
            continue
        operation = ufuncs.binary(ufunc)
        pairs: list[tuple[Any, Any]] = [(x, y)]
        pairs += [(x, number) for number in (0.3, 3, 1e39, math.nan)] + [(number, x) for number in (0.3, -2, math.inf)]
        for a, b in pairs:
            with np.errstate(all="ignore"):
                expected = ufunc(a, b, dtype=np.float32)
            np.testing.assert_array_equal(operation(a, b), expected, err_msg=f"{name} {a} {b}")


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_and_remainders_equal_numpy_s_bitwise(dtype: str) -> None:
    """Operands have any magnitudes, similar ones, or are near multiples; of both signs."""
    bits, digits = np.finfo(dtype).bits, np.finfo(dtype).nmant
    of_bits = np.dtype(f"i{bits // 8}")
    rng, exponents = np.random.default_rng(3), (1 << (bits - 1 - digits)) - 1
    x, y = (rng.integers(-(1 << bits - 1), (1 << bits - 1) - 1, MANY, of_bits) for _ in range(2))
    near = np.clip((x >> digits & exponents) - rng.integers(-3, 60, MANY), 0, exponents - 1).astype(of_bits)
    of_size = ((y & ~(exponents << digits)) | near << digits).view(dtype)
    divisors = rng.standard_normal(MANY).astype(dtype)
    multiples = (divisors * rng.integers(-(10**6), 10**6, MANY)).astype(dtype)
    special = np.array([*SPECIAL, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, 3.0, -0.5], dtype)
    pairs: list[tuple[Any, Any]] = [(x.view(dtype), y.view(dtype)), (x.view(dtype), of_size), (multiples, divisors)]
    pairs += [(np.nextafter(multiples, np.array(end, dtype)), divisors) for end in (np.inf, -np.inf)]
    pairs += [(np.repeat(special, 99), np.resize(special, 99 * len(special))), (multiples[::2], divisors[::2])]
    pairs += [(of_size, number) for number in (0.3, -7, 0.0, -0.0, np.inf, np.nan, 1e-30)]
    for ufunc in ufuncs.DIVISIONS:
        for a, b in pairs:
            with np.errstate(all="ignore"):
                found, expected = ufuncs.binary(ufunc)(a, b), ufunc(a, b)
            assert found.dtype == expected.dtype == dtype
            np.testing.assert_array_equal(found, expected, err_msg=f"{ufunc} {a} {b}")
            some = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(expected[some]))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", range(1, 9))
def test_many_small_systems(rows: int, dtype: str) -> None:
    """Some need pivoting; LAPACK handles singular systems and those with NaN."""
    rng = np.random.default_rng(rows)
    size = {"float16": 3e-3, "float32": 2e-5, "float64": 1e-12}[dtype]
    x = rng.integers(-4, 5, (3, 29, rows, rows)) + 6.0 * rng.permuted(np.eye(rows)[None].repeat(87, 0), axis=1).reshape(
        3, 29, rows, rows
    )
    x = np.where((np.linalg.cond(x) < 50)[..., None, None], x, np.eye(rows)[::-1]).astype(dtype)
    scale = rng.choice([1.0, 2.0**-9, 2.0**5], (3, 29, rows, 1)).astype(dtype)
    for a, y in (
        (x, rng.normal(size=(3, 29, rows, 2)).astype(dtype)), (x, rng.normal(size=(rows, 8)).astype(dtype)),
        (x[0], rng.normal(size=(2, 1, rows, 1)).astype(dtype)), (x[:, ::2].mT, x[:, ::2]), (x * scale, x * scale),
        (x[0, 0], rng.normal(size=(20, rows, 1)).astype(dtype)), (x, np.zeros((rows, 0), dtype)),
    ):  # fmt: skip
        wide, right = a.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(BASE.solve(a, y), np.linalg.solve(wide, right), rtol=size, atol=50 * size)
    wide = x.astype(np.float64)
    for name in ("inv", "det", "slogdet"):
        found, expected = getattr(BASE, name)(x), getattr(np.linalg, name)(wide)
        for one, other in zip(*((found, expected) if name == "slogdet" else ([found], [expected])), strict=True):
            assert (one.dtype, one.shape) == (dtype, other.shape)
            with np.errstate(over="ignore"):  # determinants in float16
                np.testing.assert_allclose(one, other.astype(dtype), rtol=100 * size, atol=size)
    x[1, 7] = 0
    assert BASE.det(x)[1, 7] == 0
    np.testing.assert_array_equal([a[1, 7] for a in BASE.slogdet(x)], [0, -np.inf])
    for call in (lambda: BASE.inv(x), lambda: BASE.solve(x, x)):
        with pytest.raises(SingularMatrixError, match=r"the matrix at \[1, 7\] is singular"):
            call()
    x[1, 7], x[2, 3, 0, -1] = 1.5 * np.eye(rows), np.nan
    found = BASE.det(x)
    assert np.isnan(found).sum() == np.isnan(found[2, 3]) == 1


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_concatenated_rows(dtype: str) -> None:
    """Rows of every width, and of operands that are not contiguous, equal NumPy's."""
    for width in (*range(1, 20), 31, 32, 33, 64, 100, 5000):
        x, y = ((numbers(9, n, 2, seed=n) * 99).astype(dtype) for n in (width, 3))
        of_one, turned = np.broadcast_to(y[:1], y.shape), x.swapaxes(0, 1).copy().swapaxes(0, 1)
        ways = [x, y], [x[:, 1:], y[:, :2]], [y[::-1], x], [of_one, y], [y, x[:, ::-1], y], [turned, y[:, :0], y]
        for tensors in ways:
            np.testing.assert_array_equal(BASE.concat(tensors, 1), np.concatenate(tensors, 1), strict=True)
        last = [x[..., 1:], x[..., :1], x[:, ::-1], np.asfortranarray(x)]
        np.testing.assert_array_equal(BASE.concat(last, 2), np.concatenate(last, 2), strict=True)
        np.testing.assert_array_equal(BASE.stack([x, x], 2), np.stack([x, x], 2), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_triangles(dtype: str) -> None:
    """Matrices of many shapes, any diagonal, NaN and infinities among the elements set to zero."""
    for shape in ((1, 1), (5, 5), (3, 7), (2, 3, 9, 4), (1, 70), (300, 200)):
        x = (numbers(*shape) * 99).astype(dtype)
        if dtype.startswith("float"):
            x[..., 0], x[..., 1:2] = np.nan, np.inf
        for operand in (x, np.asfortranarray(x), x[..., ::-1]):
            for offset in (*range(-8, 9), -(2**70), 2**70):
                near = min(max(offset, -1000), 1000)
                np.testing.assert_array_equal(BASE.triu(operand, offset), np.triu(operand, near), strict=True)
                np.testing.assert_array_equal(BASE.tril(operand, offset), np.tril(operand, near), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (7, 10_001), (70_001, 1), (30_003, 3), (4_001, 24), (300, 300)])
def test_reductions_of_rows(shape: tuple[int, int], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    near_one = 1 + x / 1000
    for axis in ((0, 1), (1,), (0,)):
        expected = np.prod(near_one.astype(np.float64), axis=axis)
        np.testing.assert_allclose(BASE.prod(near_one, axis), expected, rtol=1e-3)
        for scale in (1e-30, 1.0, 1e30):
            expected = np.sqrt(np.square(x * scale, dtype=np.float64).sum(axis))
            np.testing.assert_allclose(BASE.vector_norm(x * x.dtype.type(scale), axis), expected, rtol=1e-5)
    for axis in ((0, 1), (1,), (0,)):
        for name in ("sum", "max", "min"):
            expected = getattr(np, name)(x.astype(np.float64), axis=axis)
            np.testing.assert_allclose(getattr(BASE, name)(x, axis), expected, rtol=1e-6, atol=1e-3, err_msg=name)
            assert getattr(BASE, name)(x, axis, True).shape == getattr(np, name)(x, axis=axis, keepdims=True).shape
    x[0, shape[1] // 2], x[-1, -1] = np.inf, np.nan
    wide = x.astype(np.float64)
    for name in ("sum", "max", "min"):
        for axis in ((0, 1), (1,)):
            np.testing.assert_array_equal(
                np.isnan(getattr(BASE, name)(x, axis)), np.isnan(getattr(np, name)(wide, axis=axis)), err_msg=name
            )
    np.testing.assert_allclose(BASE.vector_norm(x, (1,)), np.sqrt(np.square(wide).sum(1)), rtol=1e-6)
    assert np.isnan(BASE.prod(x, (1,))[-1])
    x = -np.inf * np.ones(shape, dtype)
    np.testing.assert_array_equal(BASE.max(x, (1,)), x.max(1))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 11, 13), (1, 700, 7), (3, 2, 150, 70), (2, 300, 1), (1, 1, 4200)])
def test_reductions_of_stacks(shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_ELEMENTS_FOR_SHORT_ROWS", "MIN_ELEMENTS_FOR_REDUCTION", "MIN_SHORT_ROWS"):
        monkeypatch.setattr(tuning, name, 1)
    for special in ((), (np.inf,), (np.nan,), (np.nan, -np.inf, np.inf)):
        x = numbers(*shape).astype(dtype)
        x.reshape(-1)[: 5 * len(special) : 5] = special
        for first, last in ((0, 0), (0, 1), (1, 1), (1, 2), (0, len(shape) - 2), (len(shape) - 1, len(shape) - 1)):
            axis = tuple(range(first, last + 1))
            for name in ("sum", "max", "min"):
                with np.errstate(invalid="ignore"):
                    expected = getattr(np, name)(x.astype(np.float64), axis=axis)
                got = getattr(BASE, name)(x, axis)
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4, err_msg=f"{name} {axis}")
            with np.errstate(invalid="ignore"):
                near_one = 1 + x / 1000
                expected = near_one.astype(np.float64).prod(axis)
            np.testing.assert_allclose(BASE.prod(near_one, axis), expected, rtol=1e-3)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
@pytest.mark.parametrize("shape", [(5, 1000), (3, 4, 2), (1, 300), (2, 1), (0, 3), (3, 0)])
def test_differences(shape: tuple[int, ...], dtype: str) -> None:
    x = (10 * numbers(*shape)).astype(dtype)
    for operand in (x, np.asfortranarray(x)):
        for axis in range(x.ndim):
            for n in (0, 1, 2):
                np.testing.assert_array_equal(BASE.diff(operand, axis, n), np.diff(x, n, axis), strict=True)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("axis", [(0, 2, 3), (0, 3), (1, 3), (0, 1, 3), (0, 2), (0, 2, 3, 4)])
def test_sums_over_axes_that_are_not_adjacent(axis: tuple[int, ...]) -> None:
    for shape in ((5, 6, 70, 40), (2, 3, 4, 5000), (3, 2, 5, 7, 600)):
        if axis[-1] >= len(shape):
            continue
        x = numbers(*shape)
        for keepdims in (False, True):
            expected = x.sum(axis, dtype=np.float64, keepdims=keepdims)
            got = BASE.sum(x, axis, keepdims)
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-2)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_sums_of_many_rows_do_not_accumulate_rounding() -> None:
    x = np.full((1 << 20, 3), 0.1, np.float32)
    np.testing.assert_allclose(BASE.sum(x, (0,)), x.sum(0, dtype=np.float64), rtol=1e-5)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("shape", [(300, 257), (70, 1027), (1, 70_001), (2, 35_000, 1), (90_000, 3)])
def test_sums_and_products_of_doubles(shape: tuple[int, ...]) -> None:
    x = numbers(*shape).astype(np.float64)
    near_one, axis = 1 + x / 1000, len(shape) - 1
    for given, axes in ((x, (axis,)), (x, tuple(range(len(shape)))), (x - 7e5, (axis,))):
        np.testing.assert_allclose(BASE.sum(given, axes), given.sum(axes, np.longdouble), rtol=1e-13, atol=1e-11)
    np.testing.assert_allclose(BASE.prod(near_one, (axis,)), near_one.prod(axis, np.longdouble), rtol=1e-12)
    x.reshape(-1)[-1] = np.nan
    for name in ("sum", "prod"):
        with np.errstate(all="ignore"):
            found = getattr(BASE, name)(x, (axis,))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x).any(axis))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
def test_kernels_preserve_the_x87_registers() -> None:
    for _ in range(8):
        BASE.quantize(numbers(64, 100), dtype=as_dtype("qint8_symmetric_tensor_float32"))  # type: ignore[arg-type]
    assert np.sin(np.longdouble(0.5)) == pytest.approx(0.479425538604203)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (9, 1500), (3, 2, 5, 77), (17, 1)])
def test_running_maxima_and_minima(shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    late, early = x.copy(), np.full_like(x, -np.inf)
    late[..., shape[-1] // 2] = np.nan
    for values in (x, late, early, -early):
        for axis in range(x.ndim):
            np.testing.assert_array_equal(BASE.cummax(values, axis), np.maximum.accumulate(values, axis))
            np.testing.assert_array_equal(BASE.cummin(values, axis), np.minimum.accumulate(values, axis))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70_001), (9, 1500), (3, 2, 5, 77), (17, 1)])
def test_running_sums_and_products(shape: tuple[int, ...], dtype: str) -> None:
    x = numbers(*shape).astype(dtype)
    for values, operation, expected in (
        (x, BASE.cumulative_sum, np.cumsum),
        (1 + x / 1000, BASE.cumulative_prod, np.cumprod),
    ):
        wide = values.astype(np.float64)  # results in float32 are rounded once
        rtol, atol = (6.1e-8, 1e-11) if dtype == "float32" else (0, 0)
        for axis in range(x.ndim):
            np.testing.assert_allclose(operation(values, axis), expected(wide, axis), rtol=rtol, atol=atol)
            backwards = np.flip(expected(np.flip(wide, axis), axis), axis)
            np.testing.assert_allclose(operation(values, axis, True), backwards, rtol=rtol, atol=atol)


# ---- 16-bit floats ----


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_of_16_bits_equal_numpy_s(name: str) -> None:
    dtype = as_dtype(name).dtype
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        floats = every.astype(np.float32)
        finite = floats[np.isfinite(floats)]
        between = (finite[:-1] + finite[1:]) / 2
        bits = np.random.default_rng(0).integers(0, 1 << 32, 300_000, dtype=np.uint64).astype(np.uint32)
        numbers_32 = (bits.view(np.float32), finite, np.nextafter(finite, np.float32(np.inf)), between, floats[:33])
        np.testing.assert_array_equal(half_precision.upcast_half(every), floats)
        np.testing.assert_array_equal(np.signbit(half_precision.upcast_half(every)), np.signbit(floats))
        for x in numbers_32:
            got, expected = half_precision.convert(x, dtype), x.astype(dtype)
            is_nan = np.isnan(x)
            np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
            np.testing.assert_array_equal(got.view(np.uint16)[~is_nan], expected.view(np.uint16)[~is_nan])
    strided = every[100:40_000:3]
    np.testing.assert_array_equal(half_precision.upcast_half(strided), floats[100:40_000:3])
    column = np.zeros((300, 2), dtype)
    half_precision.fill(column[:, 0], np.arange(300, dtype=np.float32))
    np.testing.assert_array_equal(column[:, 0], np.arange(300).astype(dtype))


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5000,), (3, 70_001)], ids=str)
def test_arithmetic_of_16_bits_equals_numpy_s(name: str, shape: tuple[int, ...]) -> None:
    dtype = as_dtype(name).dtype
    x, y = numbers(*shape).astype(dtype), numbers(*shape, seed=1).astype(dtype)
    row = numbers(shape[-1], seed=2).astype(dtype)
    pairs = (BASE.add, np.add), (BASE.sub, np.subtract), (BASE.mul, np.multiply), (BASE.div, np.divide)
    for operation, ufunc in pairs:
        with np.errstate(all="ignore"):
            expected = [ufunc(x, y), ufunc(x, row), ufunc(x, dtype.type(0.1)), ufunc(dtype.type(0.1), x)]
        got = operation(x, y), operation(x, row), operation(x, 0.1), operation(0.1, x)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(BASE.sqrt(BASE.abs(x)), np.sqrt(np.abs(x)))
    np.testing.assert_array_equal(BASE.maximum(x.T, y.T), np.maximum(x, y).T)
    np.testing.assert_array_equal(BASE.less(x, 0.1), x < dtype.type(0.1))
    np.testing.assert_array_equal(BASE.greater_equal(0.1, x), dtype.type(0.1) >= x)
    either = np.where(y > 0, x, y)
    np.testing.assert_array_equal(BASE.equal(x, either), x == either)
    np.testing.assert_array_equal(BASE.pow(x, 3.0), np.power(x.astype(np.float32), 3).astype(dtype))
    for function in (BASE.gelu, BASE.sigmoid, BASE.tanh):
        got, expected = function(x), function(x.astype(np.float64))
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
    got, expected = BASE.sum(x, (len(shape) - 1,)), x.astype(np.float64).sum(-1)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-2)


@needs_kernels
@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 9_001), (3, 4_097), (700, 9), (5, 1030), (1, 1), (4, 1, 3)], ids=str)
def test_reductions_of_16_bits(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays, rows and columns are summed in float32 and rounded once."""
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_SHORT_ROWS", 1)
    dtype = as_dtype(name).dtype
    x = numbers(*shape).astype(dtype)
    near_one = (1 + numbers(*shape) / 3000).astype(dtype)
    for axis in (tuple(range(len(shape))), (len(shape) - 1,), (0,), tuple(range(len(shape) - 1)), (len(shape) - 2,)):
        for operation in ("sum", "mean", "max", "min", "prod", "max_abs"):
            operand = near_one if operation == "prod" else x
            wide = operand.astype(np.float64)
            expected = np.abs(wide).max(axis) if operation == "max_abs" else getattr(np, operation)(wide, axis=axis)
            for keepdims in (False, True):
                got = getattr(BASE, operation)(operand, axis, keepdims=keepdims)
                assert got.dtype == dtype
                assert got.shape == np.sum(wide, axis, keepdims=keepdims).shape
                rounded = expected.astype(dtype).astype(np.float64).reshape(got.shape)
                error, rtol = np.abs(got.astype(np.float64) - rounded), 1e-2 if operation == "prod" else 2.0**-7
                assert (error <= 1e-3 + rtol * np.abs(rounded)).all(), f"{operation} {axis}"
        for operation in ("max", "min"):  # exact
            got = getattr(BASE, operation)(x, axis).astype(np.float64)
            np.testing.assert_array_equal(got, getattr(np, operation)(x.astype(np.float64), axis=axis))
    ones = np.ones((3000, 3), dtype)
    np.testing.assert_array_equal(BASE.sum(ones, (0,)).astype(np.float64), np.float64(3000).astype(dtype))
    x[..., -1] = np.nan
    with np.errstate(invalid="ignore"):
        for operation in ("sum", "max", "min"):
            assert np.isnan(getattr(BASE, operation)(x, (len(shape) - 1,)).astype(np.float64)).all()
    np.testing.assert_array_equal(BASE.argmax(x, len(shape) - 1), shape[-1] - 1)


# ---- random numbers ----


@needs_kernels
@pytest.mark.parametrize("offset", [0, 3, 2**40 + 1, 2**64 - 50_000])
@pytest.mark.parametrize("count", [1, 2, 511, 513, 40_001])
def test_random_numbers_equal_numpy_s(monkeypatch: pytest.MonkeyPatch, offset: int, count: int) -> None:
    """Bitwise, except normal numbers; none is read beyond the end of the stream."""
    from backburn_numpy.ops import random

    key = 0x0123456789ABCDEF << 64 | 0xFEDCBA9876543210
    early = min(offset, 2**63)  # leaves several words per number

    def draws() -> list[Any]:
        return [
            random.words(key, offset, count),
            random.uniform(BASE, key, offset, (count,), float32),
            random.bernoulli(BASE, key, offset, (count,), 0.3),
            random.bernoulli(BASE, key, offset, (count,), 1.0),
            random.poisson(BASE, np.linspace(0.0, 30.0, count), key=key, offset=early),
            *random._columns(key, early, 17, count)(slice(None), 0, 17),
            *random._columns(key, early, 32, count)(np.arange(0, count, 3)[::-1], 5, 2),
            random.normal(BASE, key, offset, (count,), float32),
        ]

    *exact, normal = draws()
    monkeypatch.setattr(compiled, "kernel", lambda name: None)
    *expected, other = draws()
    for got, right in zip(exact, expected, strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right)
    np.testing.assert_allclose(normal, other, rtol=0, atol=1.5e-6)


@needs_kernels
@pytest.mark.parametrize(
    "name", ["exp", "log", "tanh", "expm1", "tan", "log1p", "sin", "cos", "sinh", "cosh", "arctan"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_compute_functions_where_numpy_is_slower(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without AVX-512, which NumPy's functions use: kernels from their threshold on, NumPy below it."""
    ufunc = getattr(np, name)
    monkeypatch.setattr(ufuncs, "_target", lambda ufunc: "X86_V3")
    monkeypatch.setattr(compiled, "level", lambda: "x86-64-v3")
    kind, size = np.dtype(dtype), ufuncs.kernel_sizes(name, "X86_V3", "x86-64-v3").get(np.dtype(dtype))
    seen: list[int] = []

    def counted(kernel: str, x: Any) -> Any:
        seen.append(x.size)
        return blocks.run_small(kernel, x)

    monkeypatch.setattr(ufuncs, "run_small", counted)
    function, many = ufuncs.unary(ufunc), tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS
    for count in (1, 511, 1024, 8192, many + 3):
        x = np.random.default_rng(0).uniform(0.1, 3.0, count).astype(kind)
        x[:1] = np.inf if name not in ("tan", "sin", "cos") else 1e30
        seen.clear()
        np.testing.assert_allclose(function(x), ufunc(x.astype(np.float64)), rtol=4 * np.finfo(kind).eps)
        assert seen == ([count] if size is not None and count >= size else []), count
        np.testing.assert_array_equal(function(x[::2]), function(x[::2].copy()))
    assert function(np.array(0.5, kind)).shape == ()


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_are_computed_where_numpy_is_slower(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without AVX-512: by the kernel from its threshold on, for arrays that broadcast and numbers, too."""
    monkeypatch.setattr(ufuncs, "_target", lambda ufunc: "X86_V3")
    monkeypatch.setattr(compiled, "level", lambda: "x86-64-v3")
    seen: list[str] = []

    def counted(name: str, *arrays: Any, **options: Any) -> Any:
        seen.append(name)
        return run_kernel(name, *arrays, **options)

    run_kernel = ufuncs.run_kernel
    monkeypatch.setattr(ufuncs, "run_kernel", counted)
    angle, rng = ufuncs.binary(np.arctan2), np.random.default_rng(0)
    y, x = (rng.normal(size=(40, 50)).astype(dtype) for _ in range(2))
    few = y[:3], x[:3]
    for operands in ((y, x), (y.T, x.T), (y, x[0]), (y, x[:, :1]), (y, -0.5), (-0.5, x), (y[::2], x[::2]), few):
        seen.clear()
        got, exact = angle(*operands), np.arctan2(*(np.asarray(v, np.float64) for v in operands))
        assert got.dtype == dtype
        np.testing.assert_allclose(got, exact, rtol=2 * float(np.finfo(dtype).eps))
        assert seen == ([] if operands is few else ["arctan2"])
    with pytest.raises(ValueError, match="broadcast"):
        angle(y, x[:, :49])


def test_numpy_s_functions_are_used_where_they_are_faster() -> None:
    assert (
        ufuncs.kernel_sizes("tan", "AVX512_SKX", "x86-64-v4") == ufuncs.kernel_sizes("tan", "X86_V4", "x86-64-v4") == {}
    )
    assert ufuncs.kernel_sizes("tan", "X86_V3", "x86-64") == ufuncs.kernel_sizes("sin", "X86_V3", None) == {}
    assert list(ufuncs.kernel_sizes("tan", "baseline(X86_V2)", "x86-64-v4")) == [np.float32, np.float64]
    assert ufuncs._target(np.exp) != ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (7, 1), (1, 1), (3, 1, 5)])
def test_the_slope_of_broadcast_values(dtype: str, shape: tuple[int, ...]) -> None:
    """As for the rows of a Jacobian: each distinct slope is computed once."""
    x = numbers(*shape, spread=6.0).astype(dtype)
    grad = numbers(3, 7, 5, seed=1).astype(dtype)
    repeated, results = (np.broadcast_to(a, grad.shape) for a in (x, np.tanh(x)))
    out = BASE.tanh_slope(grad, repeated, results)
    assert (out.dtype, out.shape) == (grad.dtype, grad.shape)
    expected = grad.astype(np.float64) / np.cosh(repeated.astype(np.float64)) ** 2
    kind = np.finfo(dtype)
    np.testing.assert_allclose(out, expected, rtol=8 * float(kind.eps), atol=2 * float(kind.tiny))


@pytest.mark.parametrize("name", ["sigmoid", "relu_backward", "silu_backward", "tanh_slope"])
def test_operations_refuse_another_number_of_operands(name: str) -> None:
    count, x = len(OPERATIONS[name].operands), np.ones(70_001, np.float32)
    for given in ([x] * (count - 1), [x] * (count + 1)):
        with pytest.raises(TypeError, match=r"operands|argument"):
            getattr(BASE, name)(*given)
