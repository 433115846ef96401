"""Blocks over several axes: names, one step per block, moves, products and gradients."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import backburn as bb
from backburn.backend.registry import load_backend
from backburn.base.dtypes import QuantizedDType, as_dtype, float64
from backburn.base.errors import DTypeError, ShapeError
from backburn.nn import Linear, Sequential
from backburn.ops import quantized_products
from backburn.ops.bodies import quantized
from backburn.ops.table import OPERATIONS
from backburn.quantization import gptq, quantize_model
from backburn_numpy import NumpyBackend

K: Any = load_backend("numpy")


def with_bodies(*names: str) -> Any:
    """NumPy's backend with the contract's default bodies for these operations."""
    return object.__new__(type("Bare", (NumpyBackend,), {name: OPERATIONS[name].body for name in names}))


BARE = with_bodies("quantize", "quantize_between", "dequantize")
PLAIN = with_bodies("quantized_linear", "quantized_linear_backward", "quantized_matmul")
STORAGES = [
    ("int8", "symmetric"), ("int4", "symmetric"), ("int4", "full"), ("uint8", "affine"), ("int4", "affine"),
    ("int2", "affine"),
]  # fmt: skip


def values(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@st.composite
def boxes(draw: Any, min_dims: int = 2) -> tuple[tuple[int, ...], QuantizedDType]:
    """A shape, and a scheme with blocks over some of its last axes."""
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=4, min_side=0, max_side=7))
    block = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=len(shape))))
    storage, mode = draw(st.sampled_from(STORAGES))
    return shape, QuantizedDType(storage, "float32", mode, "block", block=block)


# ---- schemes ----


def test_one_scheme_has_one_name() -> None:
    scheme = QuantizedDType("int4", "float16", granularity="block", block=(16, 32))
    assert scheme.name == "qint4_symmetric_block16x32_float16"
    assert scheme.block == scheme.block_shape == (16, 32)
    assert as_dtype(scheme.name) is scheme
    assert pickle.loads(pickle.dumps(scheme)) is scheme
    row = QuantizedDType(granularity="block", block=32)
    for block in ((32,), [32], (1, 32), (1, 1, np.int64(32))):
        assert QuantizedDType(granularity="block", block=block) is row
    assert as_dtype("qint8_symmetric_block1x32_float32") is row
    assert (row.block, row.block_shape) == (32, (32,))
    assert QuantizedDType(granularity="block", block=(32, 1)).name == "qint8_symmetric_block32x1_float32"
    assert (bb.qint8.block, bb.qint8.block_shape) == (None, ())


@pytest.mark.parametrize("block", [(), (0, 2), (2, 0), (-1, 3), (2, 1.5), (2, True), ("2", 2), ((2, 2), 2), "2x2"])
def test_invalid_blocks_are_refused(block: Any) -> None:
    with pytest.raises(DTypeError, match="scheme"):
        QuantizedDType(granularity="block", block=block)


@pytest.mark.parametrize("part", ["block2x", "blockx2", "block2x0", "block-1x2", "block2xx2", "channel0x1", "tensor2x"])
def test_invalid_names_are_refused(part: str) -> None:
    with pytest.raises(DTypeError, match=f"qint8_symmetric_{part}_float32 is not a (dtype|scheme)"):
        as_dtype(f"qint8_symmetric_{part}_float32")


def test_blocks_need_as_many_axes_in_the_tensor() -> None:
    x, name = bb.asarray(values(6)), "qint8_symmetric_block2x3_float32"
    for function in (bb.quantize, bb.fake_quantize):
        with pytest.raises(ShapeError, match=rf"{name} does not fit the shape \[6\]: its blocks lie along the last 2"):
            function(x, dtype=name)
    with pytest.raises(ShapeError, match=r"the shape \[6\]"):
        bb.vmap(lambda row: bb.fake_quantize(row, dtype=name))(bb.asarray(values(4, 6)))
    for make in (quantize_model, lambda m, s: gptq(m, [bb.zeros((2, 4))], s)):
        with pytest.raises(ShapeError, match="block2x2x2_float32 does not fit the shape"):
            make(Sequential(Linear(4, 3)), "qint8_symmetric_block2x2x2_float32")


# ---- steps ----


@pytest.mark.parametrize("k", [K, BARE], ids=["numpy", "plain"])
@settings(max_examples=100)
@given(given=boxes())
def test_each_block_is_quantized_separately(k: Any, given: Any) -> None:
    shape, scheme = given
    x, lengths = values(*shape), quantized.block_shape(scheme, len(shape))
    q, alone = k.quantize(x, scheme), scheme.for_tensor()
    assert q.scale.shape == tuple(math.ceil(n / size) for n, size in zip(shape, lengths, strict=True))
    got = k.dequantize(q)
    for at in itertools.product(*map(range, q.scale.shape)):
        box = tuple(slice(i * size, (i + 1) * size) for i, size in zip(at, lengths, strict=True))
        one = k.quantize(x[box], alone)
        assert q.scale[at] == one.scale
        np.testing.assert_array_equal(got[box], k.dequantize(one))
        assert (np.abs(got[box] - x[box]) <= 0.5 * one.scale * (1 + 1e-5)).all()


def test_bytes_and_error() -> None:
    x = bb.asarray(values(64, 96))
    q = x.quantize(dtype="qint4_symmetric_block16x32_float16")
    assert q.nbytes == 64 * 96 // 2 + 4 * 3 * 2
    assert q.error(x) == np.abs(q.numpy() - x.numpy()).max()
    assert "qint4_symmetric_block16x32_float16" in repr(q)


def test_the_error_is_computed_for_blocks_longer_than_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_products, "BLOCK", 12)
    x = bb.asarray(values(11, 5))
    for name in ("block5x2", "block2x9", "block3x1", "block100x100"):
        q = x.quantize(dtype=f"qint8_symmetric_{name}_float32")
        assert q.error(x) == np.abs(q.dequantize(dtype="float64").numpy() - x.numpy()).max()


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 12), st.integers(1, 40))
def test_parts_of_rows_do_not_split_blocks(rows: int, columns: int, block: int, size: int) -> None:
    scheme = QuantizedDType(granularity="block", block=(block, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_products, "BLOCK", size)
        parts = list(quantized_products.row_blocks((rows, columns), scheme))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(rows))
    for part in parts:
        assert (part.stop - part.start) * columns <= max(size, columns)
        assert part.start // block == (part.stop - 1) // block or part.start % block == 0


# ---- moves ----


@settings(max_examples=200)
@given(st.data())
def test_axes_in_any_order_are_exact(data: Any) -> None:
    shape, scheme = data.draw(boxes(min_dims=1))
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    q = K.quantize(values(*shape), scheme)
    moved = K.permute_dims(q, axes)
    np.testing.assert_array_equal(K.to_numpy(moved), K.to_numpy(q).transpose(axes), strict=True)
    assert moved.scale.shape == quantized.scale_shape(moved.shape, moved.dtype)
    assert K.permute_dims(moved, tuple(int(a) for a in np.argsort(axes))).dtype is scheme


@settings(max_examples=300)
@given(st.data())
def test_slices_are_exact_or_refused(data: Any) -> None:
    shape, scheme = data.draw(boxes(min_dims=1))
    q = K.quantize(values(*shape), scheme)
    lengths = quantized.block_shape(scheme, len(shape))
    key, whole = [], True
    for n, size in zip(shape, lengths, strict=True):
        start = data.draw(st.integers(0, n))
        stop = data.draw(st.integers(start, n))
        key.append(slice(start, stop, 1))
        whole &= start % size == 0 or start == stop or start // size == (stop - 1) // size
    if not whole:
        with pytest.raises(ShapeError, match=scheme.name):
            K.slice(q, tuple(key))
        return
    moved = K.slice(q, tuple(key))
    np.testing.assert_array_equal(K.to_numpy(moved), K.to_numpy(q)[tuple(key)], strict=True)
    assert moved.scale.shape == quantized.scale_shape(moved.shape, scheme)


@settings(max_examples=200)
@given(st.data())
def test_axes_of_length_1_can_be_added_and_removed(data: Any) -> None:
    shape, scheme = data.draw(boxes(min_dims=1))
    without = [n for n in shape if n != 1]
    for _ in range(data.draw(st.integers(0, 3))):
        without.insert(data.draw(st.integers(0, len(without))), 1)
    q = K.quantize(values(*shape), scheme)
    try:
        moved = K.reshape(q, tuple(without))
    except ShapeError:  # each value would have its own step
        used = [size for n, size in zip(shape, quantized.block_shape(scheme, len(shape)), strict=True) if n != 1]
        assert max(used) == 1
        return
    np.testing.assert_array_equal(K.to_numpy(moved), K.to_numpy(q).reshape(without), strict=True)
    assert moved.scale.shape == quantized.scale_shape(moved.shape, moved.dtype)


def test_moves_of_tensors() -> None:
    x = bb.asarray(values(3, 8, 12))
    q: Any = x.quantize(dtype="qint4_affine_block4x6_float32")
    plain = q.numpy()
    moves: list[tuple[Any, Any, Any]] = [
        (q.permute_dims((2, 0, 1)), plain.transpose(2, 0, 1), (6, 1, 4)),
        (q[1], plain[1], (4, 6)), (q[0, 5], plain[0, 5], 6), (q[:, :, 3], plain[:, :, 3], 4),
        (q[2, 4:, :6], plain[2, 4:, :6], (4, 6)), (q.flip(axis=(1, 2)), plain[:, ::-1, ::-1], (4, 6)),
        (q.reshape(3, 1, 8, 12), plain[:, None], (4, 6)), (q.reshape(3, 8, 1, 12), plain[:, :, None], (4, 1, 6)),
        (bb.stack([q, q], axis=-1), np.stack([plain, plain], -1), (4, 6, 1)),
        (bb.stack([q, q], axis=1), np.stack([plain, plain], 1), (4, 6)),
        (bb.concat([q, q], axis=1), np.concatenate([plain, plain], 1), (4, 6)),
        (bb.roll(q, 4, axis=1), np.roll(plain, 4, 1), (4, 6)), (q[0, 1, 2], plain[0, 1, 2], None),
        (bb.tile(q, (1, 2, 2)), np.tile(plain, (1, 2, 2)), (4, 6)),
        (q.take(bb.asarray([2, 0]), axis=0), plain[[2, 0]], (4, 6)),
        (bb.broadcast_to(q, (2, 3, 8, 12)), np.broadcast_to(plain, (2, 3, 8, 12)), (4, 6)),
    ]  # fmt: skip
    for moved, expected, block in moves:
        assert moved.dtype.block == block
        assert moved.dtype.is_packed
        np.testing.assert_array_equal(moved.numpy(), expected)
    for refused in (
        lambda: q[:, 2:7], lambda: q.reshape(24, 12), lambda: q.reshape(-1), lambda: q.take(bb.asarray([1, 0]), axis=1),
        lambda: bb.concat([q[:, :3], q], axis=1), lambda: q[:, :7].flip(axis=1),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=r"qint4_affine_block4x6_float32.*dequantize it first"):
            refused()
    np.testing.assert_array_equal(bb.roll(q, 1, axis=1).numpy(), np.roll(plain, 1, 1))  # falls back to floats


# ---- products, gradients and examples ----


@settings(max_examples=100)
@given(st.data())
def test_products_equal_those_of_dequantized_operands(data: Any) -> None:
    k, size = data.draw(st.sampled_from([K, PLAIN])), data.draw(st.sampled_from([1, 7, 24, 1 << 17]))
    storage, mode = data.draw(st.sampled_from(STORAGES))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(2))
    block = tuple(data.draw(st.integers(1, 13)) for _ in range(2))
    q = k.quantize(values(*shape), QuantizedDType(storage, "float32", mode, "block", block=block))
    transposed = data.draw(st.booleans())
    exact = k.dequantize(q, float64).T if transposed else k.dequantize(q, float64)
    x = np.random.default_rng(1).standard_normal((data.draw(st.sampled_from([0, 1, 9])), exact.shape[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_products, "BLOCK", size)
        product = k.quantized_linear(x, q) if transposed else k.quantized_linear_backward(x, q)
        np.testing.assert_allclose(product, x @ exact, rtol=1e-12, atol=1e-12)
        rows = k.quantize(x)
        product = k.quantized_matmul(rows, q, float64, transposed)
    np.testing.assert_allclose(product, k.dequantize(rows, float64) @ exact, rtol=1e-12, atol=1e-12)


def test_large_products_with_blocks_of_rows() -> None:
    """Products that would use a compiled kernel if blocks had one axis."""
    w, x = values(300, 320), values(4, 320)
    for storage in ("int8", "int4"):
        q = K.quantize(w, as_dtype(f"q{storage}_symmetric_block16x32_float32"))
        np.testing.assert_allclose(K.quantized_linear(x, q), x @ K.dequantize(q).T, atol=1e-3)


def test_gradients_pass_rounding_within_a_range() -> None:
    x, name = bb.asarray(values(4, 6)).require_grad(), "qint8_affine_block2x3_float32"
    low = bb.asarray(np.array([[-9.0, 0.0], [-0.5, -9.0]], np.float32))
    y = bb.fake_quantize(x, dtype=name, low=low, high=9.0)
    inside = (x.numpy() >= low.numpy().repeat(2, 0).repeat(3, 1)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(x.grad(y.sum().backward())), inside)


def test_vmap_quantizes_each_example_in_its_own_blocks() -> None:
    x, name = bb.asarray(values(3, 5, 7)), "qint4_affine_block2x3_float32"
    mapped = bb.vmap(lambda m: bb.fake_quantize(m, dtype=name))(x)
    np.testing.assert_array_equal(mapped.numpy(), x.quantize(dtype=name).numpy())


def test_activations_in_blocks() -> None:
    m = Sequential(Linear(12, 5)).eval()
    q = quantize_model(m, "qint8_symmetric_block4x4_float32", activations="qint8_symmetric_block2x4_float32")
    x = bb.asarray(values(3, 12))
    assert float((q(x) - m(x)).max_abs().item()) < 0.05
