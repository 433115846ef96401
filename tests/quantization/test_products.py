"""Products with quantized operands: exact integer sums, blocks of weights, gradients of the float operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.backend.adapters import integer_products
from backburn.backend.registry import load_backend
from backburn.base.dtypes import as_dtype, float16, float32, float64
from backburn.base.errors import ShapeError
from backburn.ops import quantized_products
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

K: Any = load_backend("numpy")
BODIES = {name: OPERATIONS[name].body for name in ("quantized_linear", "quantized_linear_backward", "quantized_matmul")}
BARE: Any = object.__new__(type("Bare", (NumpyBackend,), {n: b for n, b in BODIES.items() if n != "quantized_matmul"}))
RANDOM = np.random.default_rng(0)
KINDS = (
    "int8_symmetric", "int8_full", "int4_full", "int4_symmetric", "uint8_affine", "int4_affine", "int2_symmetric",
    "int2_affine",
)  # fmt: skip
SCHEMES = [
    f"q{kind}_{granularity}_float32"
    for kind in KINDS
    for granularity in ("tensor", "channel0", "channel1", "block4", "block5", "block2x4", "block5x3", "block4x1")
]


def times(k: Any, x: Any, q: Any, transposed: bool) -> Any:
    """``x @ q``, or ``x @ q.T``."""
    return k.quantized_linear(x, q) if transposed else k.quantized_linear_backward(x, q)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k", [K, BARE], ids=["numpy", "plain"])
def test_linear_equals_the_product_with_the_dequantized_weight(
    name: str, transposed: bool, k: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_products, "BLOCK", 24)  # three rows at a time
    w = RANDOM.standard_normal((7, 8))
    q = k.quantize(w, as_dtype(name))
    exact = k.dequantize(q, float64).T if transposed else k.dequantize(q, float64)
    bias = RANDOM.standard_normal(exact.shape[1])
    for shape in ((), (3,), (2, 3), (0,), (0, 3)):
        x = RANDOM.standard_normal((*shape, exact.shape[0]))
        np.testing.assert_allclose(times(k, x, q, transposed), x @ exact, rtol=1e-12, atol=1e-12)
        if transposed:
            np.testing.assert_allclose(k.quantized_linear(x, q, bias), x @ exact + bias, rtol=1e-12, atol=1e-12)
        for dtype in (float32, float16):
            got = times(k, x.astype(dtype.dtype), q, transposed)
            assert k.dtype(got) is dtype
            np.testing.assert_allclose(got, x @ exact, rtol=0, atol=2e-5 if dtype is float32 else 3e-2)


@pytest.mark.parametrize(
    "scheme", ["qint4_full_block32_float16", "qint8_full_block32_float16", "qint8_full_channel0_float32"]
)
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_steps_of_either_sign(scheme: str, rows: int) -> None:
    """As in files; every stored value occurs, including the lowest."""
    dtype: Any = as_dtype(scheme)
    values = RANDOM.integers(-128, 128, (24, 64 * dtype.bits // 8)).astype(np.int8)
    steps = RANDOM.standard_normal(24 if dtype.axis == 0 else (24, 2)).astype(dtype.scale.dtype)
    steps.reshape(-1)[0] = 0
    numbers = values if dtype.bits == 8 else np.stack([values << 4 >> 4, values >> 4], -1).reshape(24, 64)
    wide = steps.astype(np.float64).reshape(24, -1)
    exact = numbers * np.repeat(wide, 64 // wide.shape[1], axis=1)
    q = K.quantized_from_parts(values.view(dtype.stored.dtype), steps, None, dtype, (24, 64))
    assert (numbers == dtype.limits[0]).any()
    assert np.array_equal(K.dequantize(q, float64), exact)
    assert np.array_equal(BARE.dequantize(q, float64), exact)
    x = RANDOM.standard_normal((rows, 64)).astype(np.float32)
    for k in (K, BARE):
        np.testing.assert_allclose(k.quantized_linear(x, q), x @ exact.T, rtol=1e-4, atol=2e-2)
        y = RANDOM.standard_normal((rows, 24)).astype(np.float32)
        np.testing.assert_allclose(k.quantized_linear_backward(y, q), y @ exact, rtol=1e-4, atol=2e-2)
    if dtype.axis == 0:
        other = k.quantize(x, as_dtype("qint8_symmetric_tensor_float32"))
        product = K.dequantize(other, float64) @ exact.T
        np.testing.assert_allclose(K.quantized_matmul(other, q, transposed=True), product, rtol=1e-5, atol=1e-2)


def test_gradients_flow_to_the_input_and_the_bias() -> None:
    outer: Any = Autodiff(K)
    w = K.quantize(RANDOM.standard_normal((4, 3)), as_dtype("qint4_symmetric_block2_float32"))
    exact = K.dequantize(w, float64).T
    x, b = (
        outer.set_require_grad(outer.from_inner(RANDOM.standard_normal(s)), True)
        for s in ((5, exact.shape[0]), (exact.shape[1],))
    )
    g = outer.backward(outer.sum(outer.square(outer.quantized_linear(x, w, b)), (0, 1)))
    y = outer.inner(x) @ exact + outer.inner(b)
    np.testing.assert_allclose(outer.grad(x, g), 2 * y @ exact.T, atol=1e-10)
    np.testing.assert_allclose(outer.grad(b, g), 2 * y.sum(0), atol=1e-10)


def test_gradients_of_quantized_linear_backward() -> None:
    outer: Any = Autodiff(K)
    w = K.quantize(RANDOM.standard_normal((4, 3)), as_dtype("qint4_symmetric_block2_float32"))
    x = outer.set_require_grad(outer.from_inner(RANDOM.standard_normal((5, 4))), True)
    g = outer.backward(outer.sum(outer.square(outer.quantized_linear_backward(x, w)), (0, 1)))
    exact = K.dequantize(w, float64)
    np.testing.assert_allclose(outer.grad(x, g), 2 * outer.inner(x) @ exact @ exact.T, atol=1e-10)


def test_second_derivatives() -> None:
    outer: Any = Autodiff(Autodiff(K))
    w = K.quantize(RANDOM.standard_normal((4, 3)))
    exact = K.dequantize(w, float64).T
    inner = outer.inner_backend
    leaf = inner.set_require_grad(inner.from_inner(RANDOM.standard_normal((2, 3))), True)
    x = outer.set_require_grad(outer.from_inner(leaf), True)
    y = outer.square(outer.quantized_linear(x, w))
    first = outer.grad(x, outer.backward(outer.sum(y, (0, 1))))
    second = inner.grad(leaf, inner.backward(inner.sum(first, (0, 1))))
    np.testing.assert_allclose(second, np.full((2, 3), 2.0) @ exact @ exact.T, atol=1e-10)


@pytest.mark.parametrize("left", ["qint8_symmetric_tensor_float32", "quint8_affine_channel0_float32"])
@pytest.mark.parametrize("right", ["qint8_symmetric_channel1_float16", "qint4_affine_tensor_float32"])
def test_integer_sums_are_exact(left: str, right: str) -> None:
    x, y = RANDOM.uniform(-9, 9, (3, 5000)), RANDOM.uniform(-9, 9, (5000, 4))
    x[0], y[:, 0] = 9.0, 9.0  # the largest possible sums
    a, b = K.quantize(x, as_dtype(left)), K.quantize(y, as_dtype(right))
    exact = K.dequantize(a, float64) @ K.dequantize(b, float64)
    np.testing.assert_allclose(K.quantized_matmul(a, b, float64), exact, rtol=1e-13, atol=1e-9)
    assert K.dtype(K.quantized_matmul(a, b)) is float32


def test_a_library_multiplies_int8() -> None:
    """A library multiplies if sums fit int32 and there are no zero points; otherwise, or if it declines, the body."""
    asked: list[Any] = []

    def multiply(x: Any, y: Any) -> Any:
        asked.append((x.dtype.name, y.dtype.name))
        return None if len(x) == 2 else np.matmul(x, y, dtype=np.int32)

    k: Any = object.__new__(type("Adapter", (NumpyBackend,), {"quantized_matmul": integer_products(multiply)}))
    for left, right, length, calls in (
        ("qint8_symmetric_channel0_float16", "qint8_symmetric_tensor_float32", 300, 1),
        ("qint8_symmetric_tensor_float32", "qint8_symmetric_tensor_float32", (1 << 17) + 1, 0),
        ("qint8_affine_tensor_float32", "qint8_symmetric_tensor_float32", 9, 0),
        ("qint8_symmetric_tensor_float32", "qint4_symmetric_tensor_float32", 9, 0),
        ("qint8_symmetric_channel1_float32", "qint8_symmetric_tensor_float32", 9, 0),
    ):
        for rows in (1, 2):
            asked.clear()
            a = k.quantize(np.full((rows, length), 9.0), as_dtype(left))
            b = k.quantize(np.full((2, length), -9.0), as_dtype(right))
            expected = k.dequantize(a, float64) @ k.dequantize(b, float64).T
            np.testing.assert_allclose(k.quantized_matmul(a, b, float64, True), expected, rtol=1e-6)
            if calls:
                np.testing.assert_allclose(k.quantized_matmul(a, k.permute_dims(b, (1, 0))), expected, rtol=1e-6)
            assert asked == [("int8", "int8")] * 2 * calls


def test_integer_sums_beyond_float32() -> None:
    a = K.quantize(np.full((1, 4097), 127.0))
    assert float(K.quantized_matmul(a, K.permute_dims(a, (1, 0)), float64)[0, 0]) == 4097 * 127**2


@pytest.mark.parametrize("name", ["qint8_symmetric_block3_float32", "qint4_symmetric_channel0_float32"])
def test_products_along_steps(name: str) -> None:
    a, b = K.quantize(RANDOM.standard_normal((3, 8))), K.quantize(RANDOM.standard_normal((8, 4)), as_dtype(name))
    exact = K.dequantize(a, float64) @ K.dequantize(b, float64)
    np.testing.assert_allclose(K.quantized_matmul(a, b, float64), exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_overflow_only_like_those_of_floats(name: str, transposed: bool) -> None:
    largest = float(np.finfo(np.float32).max)
    operands: list[tuple[list[float], Any]] = [
        ([1, 0, 0, 0], np.full((4, 4), largest)), ([1e38, 0, 1e37, 0], np.full((4, 4), 1e-3)),
        ([1e38, 1e38, -1e38, -1e38], 2 * np.eye(4)),
    ]  # fmt: skip
    for row, w in operands:
        x, q = np.array([row], np.float32), K.quantize(w.astype(np.float32), as_dtype(name))
        weight = K.dequantize(q).T if transposed else K.dequantize(q)
        for left, product in ((x, times(K, x, q, transposed)), (K.quantize(x), None)):
            got = K.quantized_matmul(left, q, float32, transposed) if product is None else product
            host = (x if product is not None else K.dequantize(left)).astype(np.float64)
            np.testing.assert_allclose(got, host @ weight.astype(np.float64), rtol=1e-5)
    assert np.isnan(times(K, np.array([[np.nan, 0, 0, 0]]), q, transposed)).all()
    assert np.isinf(times(K, np.array([[3e38] * 4], np.float32), q, transposed)).all()


@pytest.mark.parametrize(
    "name",
    ["qint8_symmetric_channel0_float32", "quint8_affine_channel1_float32", "qint8_affine_block32_float32",
     "qint8_symmetric_block16x32_float32"],
)  # fmt: skip
def test_products_with_transposed_views(name: str) -> None:
    """They use the weight itself, instead of gathering strided rows of the view."""
    w, x = RANDOM.standard_normal((320, 300)), RANDOM.standard_normal((4, 300)).astype(np.float32)
    q = K.quantize(w, as_dtype(name))
    view, a = K.permute_dims(q, (1, 0)), K.quantize(x)
    for got, expected, left in (
        (K.quantized_linear_backward(x, view), K.quantized_linear(x, q), x),
        (K.quantized_matmul(a, view, float32), K.quantized_matmul(a, q, float32, True), K.dequantize(a)),
    ):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_allclose(got, left @ K.dequantize(q).T, atol=1e-3)


@pytest.mark.parametrize("name", ["qint8_symmetric_channel0_float32", "qint4_affine_block32_float32"])
def test_large_products_overflow_only_like_those_of_floats(name: str) -> None:
    x = np.eye(2, 512, dtype=np.float32)
    for value, by in ((float(np.finfo(np.float32).max), 1.0), (1e-3, 1e38)):
        q = K.quantize(np.full((512, 512), value, np.float32), as_dtype(name))
        for transposed in (False, True):
            got = times(K, x * np.float32(by), q, transposed)
            np.testing.assert_allclose(got, np.full((2, 512), K.dequantize(q)[0, 0] * by), rtol=1e-5)


def test_products_of_empty_operands() -> None:
    empty = K.quantize(np.zeros((2, 0)))
    np.testing.assert_array_equal(K.quantized_matmul(empty, K.permute_dims(empty, (1, 0))), np.zeros((2, 2)))
    for got in (
        K.quantized_linear(np.zeros((2, 0)), empty),
        K.quantized_linear_backward(np.zeros((2, 0)), K.permute_dims(empty, (1, 0))),
    ):
        np.testing.assert_array_equal(got, np.zeros((2, 2)))


def test_incompatible_shapes_are_refused() -> None:
    rule: Any = OPERATIONS["quantized_linear"].shape
    with pytest.raises(ShapeError, match="takes 3 inputs"):
        rule((2, 4), (5, 3))
    with pytest.raises(ShapeError, match="5 outputs"):
        rule((2, 3), (5, 3), (3,))
    with pytest.raises(ShapeError, match=r"two axes, \(outputs, inputs\)"):
        rule((2, 3), (3,))
    backward: Any = OPERATIONS["quantized_linear_backward"].shape
    with pytest.raises(ShapeError, match="operand is 3 and axis 0 of the quantized matrix 5"):
        backward((2, 3), (5, 3))
    with pytest.raises(ShapeError, match="two axes"):
        backward((2, 3), (3,))
    with pytest.raises(ShapeError, match="two axes"):
        OPERATIONS["quantized_matmul"].shape((3,), (3, 2))  # type: ignore[misc]


# ---- both operands quantized, with every pair of schemes ----

PAIRS = [
    f"q{part}_float32"
    for part in (
        "int8_symmetric_tensor", "uint8_affine_channel0", "int4_affine_channel1", "int8_affine_block3",
        "float8_e4m3fn_symmetric_channel0", "int4_symmetric_block5",
    )
]  # fmt: skip
PLAIN: Any = object.__new__(type("Plain", (NumpyBackend,), BODIES))


@pytest.mark.parametrize("left", PAIRS)
@pytest.mark.parametrize("right", PAIRS)
@pytest.mark.parametrize("k", [K, PLAIN], ids=["numpy", "plain"])
def test_every_pair_of_schemes(left: str, right: str, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_products, "BLOCK", 24)
    x, y = RANDOM.standard_normal((4, 11)), RANDOM.standard_normal((11, 7))
    a = k.quantize(x, as_dtype(left))
    for transposed in (False, True):
        b = k.quantize(y.T if transposed else y, as_dtype(right))
        plain = k.dequantize(b, float64)
        exact = k.dequantize(a, float64) @ (plain.T if transposed else plain)
        np.testing.assert_allclose(k.quantized_matmul(a, b, float64, transposed), exact, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(k.quantized_matmul(a, b, float32, transposed), exact, rtol=0, atol=2e-5)
        assert k.dtype(k.quantized_matmul(a, b, float16, transposed)) is float16


@pytest.mark.parametrize("k", [K, PLAIN], ids=["numpy", "plain"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_largest_sums_are_exact(k: Any, transposed: bool) -> None:
    """Affine uint8 values reach 255 steps, so products reach 65025; float32 sums only 258 of them exactly."""
    x = np.zeros((1, 5000))
    x[0, :-1] = 255.0
    a = k.quantize(x, as_dtype("quint8_affine_tensor_float32"))
    b = a if transposed else k.permute_dims(a, (1, 0))
    assert float(k.quantized_matmul(a, b, float64, transposed)[0, 0]) == 4999 * 255**2


def test_mixed_operands_of_tensor_functions() -> None:
    import backburn as bb
    from backburn.base.errors import DTypeError

    x, w = (bb.asarray(RANDOM.standard_normal(s).astype(np.float32)) for s in ((2, 3, 8), (8, 5)))
    b = bb.asarray(RANDOM.standard_normal(5).astype(np.float32))
    for scheme in ("qint8_symmetric_tensor_float32", "qint8_affine_channel0_float32", "qint4_symmetric_block4_float16"):
        q, qw = x.quantize(dtype=scheme), w.T.quantize(dtype="qint8_symmetric_channel0_float32")
        expected = q.numpy() @ qw.numpy().T + b.numpy()
        np.testing.assert_allclose(bb.quantized_linear(q, qw, b).numpy(), expected, atol=1e-5)
        np.testing.assert_allclose(bb.quantized_linear(q[0, 0], qw).numpy(), q[0, 0].numpy() @ qw.numpy().T, atol=1e-5)
        left = q[1]
        np.testing.assert_allclose(bb.quantized_matmul(left, w).numpy(), left.numpy() @ w.numpy(), atol=1e-5)
        tracked = w.require_grad()
        grads = bb.quantized_matmul(left, tracked).sum().backward()
        np.testing.assert_allclose(np.asarray(tracked.grad(grads)), left.numpy().T @ np.ones((3, 5)), atol=1e-5)
    with pytest.raises(DTypeError, match="takes a quantized tensor"):
        bb.quantized_matmul(w, w)
    with pytest.raises(ShapeError, match=r"q(uantized)?_linear: .*8 inputs.*qint8_symmetric_tensor_float32\[3,5\]"):
        bb.quantized_linear(bb.zeros((3, 5)).quantize(), w.T.quantize())
    with pytest.raises(ShapeError, match=r"q(uantized)?_matmul: .*qint8_symmetric_tensor_float32\[8,5\]"):
        bb.quantized_matmul(w.quantize(), w.quantize())
    with pytest.raises(ShapeError, match=r"q(uantized)?_matmul: .*qint8_symmetric_tensor_float32\[8,5\]"):
        bb.quantized_matmul(w, w.quantize())


WEIGHTS = ["qint8_symmetric_channel0_float32", "qint4_affine_block32_float16", "qint4_affine_block16x32_float16"]


@pytest.mark.parametrize("batch", [1, 8, 128])
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_weight_is_never_dequantized_as_a_whole(name: str, batch: int) -> None:
    import tracemalloc

    w = RANDOM.standard_normal((1024, 1024)).astype(np.float32)
    q, x = K.quantize(w, as_dtype(name)), RANDOM.standard_normal((batch, 1024)).astype(np.float32)
    xq = K.quantize(x, as_dtype("quint8_affine_tensor_float32"))
    for product in (lambda: K.quantized_linear(x, q), lambda: K.quantized_matmul(xq, q, float32, True)):
        product()
        tracemalloc.start()
        result = product()
        peak = tracemalloc.get_traced_memory()[1] - result.nbytes
        tracemalloc.stop()
        # The weight is small: blocks are an eighth of it, and for a batch of 128 the float32 operands another.
        assert peak < (0.3 if batch < 128 else 0.6) * w.nbytes
