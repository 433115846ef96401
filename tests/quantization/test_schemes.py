"""Schemes of quantized tensors: names, rounding errors, shape operations, and errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backburn.backend.registry import load_backend
from backburn.base.dtypes import QuantizedDType, as_dtype, float32, float64, int8, qint8
from backburn.base.errors import ArgumentError, AxisError, DTypeError, NumericalInstabilityError, ShapeError
from backburn.ops.bodies import quantized, quantized_moves
from backburn.ops.bodies.float8 import FORMATS
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

K: Any = load_backend("numpy")
#: NumPy's backend with the contract's default bodies.
BARE: Any = object.__new__(
    type("Bare", (NumpyBackend,), {n: OPERATIONS[n].body for n in ("quantize", "quantize_between", "dequantize")})
)
INTEGERS = [
    ("int8", "symmetric"), ("int4", "symmetric"), ("int8", "affine"), ("uint8", "affine"), ("int4", "affine"),
    ("int2", "symmetric"), ("int2", "affine"), ("int8", "full"), ("int4", "full"), ("int2", "full"),
]  # fmt: skip
STORAGES = [*INTEGERS, ("float8_e4m3fn", "symmetric"), ("float8_e5m2", "symmetric")]
SCALES = ["float32", "float16", "bfloat16"]


@st.composite
def schemes(draw: Any, rank: int) -> QuantizedDType:
    storage, mode = draw(st.sampled_from(STORAGES))
    scale = draw(st.sampled_from(SCALES))
    granularity = draw(st.sampled_from(["tensor", "channel", "block"] if rank else ["tensor"]))
    part: dict[str, Any] = {}
    if granularity == "channel":
        part["axis"] = draw(st.integers(0, rank - 1))
    if granularity == "block":
        part["block"] = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=rank)))
    return QuantizedDType(storage, scale, mode, granularity, **part)


@st.composite
def tensors(draw: Any, max_dims: int = 4) -> Any:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=6))
    largest = draw(st.sampled_from([1e-7, 1.0, 1000.0]))
    elements = st.one_of(st.just(0.0), st.just(largest), st.floats(-largest, largest))
    return draw(hnp.arrays(np.float64, shape, elements=elements))


def steps(q: Any) -> Any:
    """Each element's step in float64: for 8-bit floats, the spacing at the element."""
    wide = np.broadcast_to(quantized.broadcast_steps(K, q.scale.astype(np.float64), q.shape, q.dtype), q.shape)
    if not q.dtype.is_float:
        return wide
    mantissa, bias = FORMATS[q.dtype.storage.name]
    _, exponent = np.frexp(np.abs(K.dequantize(q, float64) / wide))
    return wide * 2.0 ** (np.maximum(exponent - 1, 1 - bias) - mantissa)


def named(name: str) -> QuantizedDType:
    found = as_dtype(name)
    assert isinstance(found, QuantizedDType)
    return found


def check(k: Any, x: Any, scheme: QuantizedDType) -> Any:
    q = k.quantize(x, scheme)
    assert k.dtype(q) is scheme
    assert q.shape == x.shape
    assert q.scale.dtype == scheme.scale.dtype
    assert (q.scale > 0).all()
    error = np.abs(k.dequantize(q, float64) - x)
    assert (error <= 0.5 * steps(q) * (1 + 1e-9)).all()
    if scheme.is_float:
        return q
    least, most = scheme.limits
    stored = quantized.integers(k, q).astype(int)
    assert ((stored >= least) & (stored <= most)).all()
    return q


@settings(max_examples=300)
@given(st.data(), tensors())
def test_the_error_is_at_most_half_a_step(data: Any, x: Any) -> None:
    scheme = data.draw(schemes(x.ndim))
    q = check(K, x, scheme)
    plain = check(BARE, x, scheme)
    for ours, theirs in ((q.values, plain.values), (q.scale, plain.scale), (q.zero, plain.zero)):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(K.dequantize(q, float32), BARE.dequantize(plain, float32), strict=True)


@pytest.mark.parametrize(("storage", "mode"), STORAGES)
@pytest.mark.parametrize("scale", SCALES)
def test_large_tensors(storage: str, mode: str, scale: str) -> None:
    x = np.random.default_rng(0).standard_normal((520, 257)).astype(np.float32) + 0.3
    for part in ({}, {"axis": 0}, {"axis": 1}, {"block": 32}, {"block": 1000}, {"block": (16, 32)}):
        granularity = {"axis": "channel", "block": "block"}.get(next(iter(part), ""), "tensor")
        scheme = QuantizedDType(storage, scale, mode, granularity, **part)
        check(K, x, scheme)
        check(K, x[::-1].T[::2], scheme)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_constant_tensors(value: float) -> None:
    for storage, mode in STORAGES:
        x = np.full((2, 5), value)
        q = check(K, x, QuantizedDType(storage, "float32", mode, "block", block=3))
        np.testing.assert_allclose(K.to_numpy(q), x, rtol=1e-6)


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("scale", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", [K, BARE], ids=["numpy", "plain"])
def test_the_largest_numbers_stay_finite(k: Any, scale: str) -> None:
    """A multiple of the step may exceed them by less than half a step."""
    for storage, mode in STORAGES:
        for ends in ([1], [-1], [1, -1], [1, -1 / 3], [-1, 1 / 7]):
            for largest, dtype in ((LARGEST, float32), (65504.0, as_dtype("float16"))):
                x = (np.array(ends) * largest).astype(dtype.dtype)
                is_its_step = mode == "symmetric" or (mode == "full" and max(ends) == 1)
                if (storage, scale, largest) == ("int2", "bfloat16", LARGEST) and is_its_step:
                    with pytest.raises(NumericalInstabilityError, match="have no place on the bfloat16 scale"):
                        k.quantize(x, QuantizedDType(storage, scale, mode))  # its step is the number itself
                    continue
                q = k.quantize(x, QuantizedDType(storage, scale, mode))
                error = np.abs(k.dequantize(q, dtype).astype(np.float64) - x)
                assert (error <= 0.5 * steps(q) + np.finfo(dtype.dtype).eps * np.abs(x.astype(np.float64))).all()


@pytest.mark.parametrize("k", [K, BARE], ids=["numpy", "plain"])
@pytest.mark.parametrize("block", [65536, 10**12, 10**30])
def test_blocks_longer_than_the_axis_need_no_extra_memory(k: Any, block: int) -> None:
    import tracemalloc

    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for storage, mode in STORAGES:
        long = QuantizedDType(storage, "float32", mode, "block", block=block)
        short = QuantizedDType(storage, "float32", mode, "block", block=8)

        def results(scheme: QuantizedDType) -> list[Any]:
            q = k.quantize(x, scheme)
            return [k.dequantize(q), k.quantized_linear(x, q), k.quantized_linear_backward(x[:, :4], q)]

        expected = results(short)
        tracemalloc.start()
        got = results(long)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert k.quantize(x[:, :0], long).scale.shape == (4, 0)


def test_names_are_schemes() -> None:
    scheme = QuantizedDType("int4", "float16", "affine", "block", block=32)
    assert scheme.name == repr(scheme) == "qint4_affine_block32_float16"
    assert as_dtype(scheme.name) is scheme
    assert pickle.loads(pickle.dumps(scheme)) is scheme
    assert QuantizedDType("int4", "float16", "affine", "block", block=32) is scheme
    assert QuantizedDType(int8) is qint8
    last = QuantizedDType("int8", "bfloat16", granularity="channel", axis=-1)
    assert as_dtype("qint8_symmetric_channel-1_bfloat16") is last
    assert QuantizedDType("int8", granularity="block", block=np.int64(7)).name == "qint8_symmetric_block7_float32"
    assert as_dtype("qint8") is qint8
    assert scheme.limits == (-8, 7)
    assert qint8.limits == (-127, 127)


@pytest.mark.parametrize(
    "name",
    [
        "quint8_symmetric_tensor_float32", "qint8_symmetric_channel_float32", "qint8_symmetric_block0_float32",
        "qint8_odd_tensor_float32", "qint16_affine_tensor_float32", "qint8_affine_tensor_float64",
        "qint8_affine_tensor3_float32",
    ],
)  # fmt: skip
def test_invalid_names_of_schemes_are_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=name):
        as_dtype(name)


@pytest.mark.parametrize("name", ["qint4", "int4", "quint8", "qint8_symmetric", "qint4_block32", "float8_e5m2"])
def test_incomplete_names_of_schemes_get_a_hint(name: str) -> None:
    with pytest.raises(DTypeError, match=f"{name} is not a dtype.* qint8_symmetric_channel0_float32 and"):
        as_dtype(name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("k", [K, BARE])
def test_nonfinite_values_are_refused(bad: float, k: Any) -> None:
    for name in ("qint8_affine_tensor_float32", "qint4_symmetric_channel1_float16", "quint8_affine_block2_float32"):
        with pytest.raises(NumericalInstabilityError, match=rf"\[2, 3\].*{name}.*must be finite"):
            k.quantize(np.array([[1.0, 2.0, 3.0], [1.0, bad, 2.0]]), as_dtype(name))


def test_schemes_that_do_not_fit_the_shape() -> None:
    with pytest.raises(AxisError, match=r"qint8_symmetric_channel2_float32.*\[2, 3\]"):
        K.quantize(np.ones((2, 3)), as_dtype("qint8_symmetric_channel2_float32"))
    with pytest.raises(ShapeError, match="qint8_symmetric_block2_float32"):
        K.quantize(np.ones(()), as_dtype("qint8_symmetric_block2_float32"))


def test_bytes() -> None:
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    assert K.quantize(x, as_dtype("qint8_symmetric_channel0_float32")).nbytes <= 0.27 * x.nbytes
    assert K.quantize(x, as_dtype("qint4_symmetric_block32_float16")).nbytes <= 0.15 * x.nbytes


# ---- operations on the shape ----


def plain_key(key: Any, shape: tuple[int, ...]) -> Any:
    from backburn.ops.index import canonical_slice

    return tuple(canonical_slice(s, n) for s, n in zip(key, shape, strict=True))


X = np.random.default_rng(1).standard_normal((4, 3, 8)) * np.arange(1, 9)
NAMES = [
    f"q{storage}_{mode}_{granularity}_float32"
    for storage, mode in INTEGERS
    for granularity in ("tensor", "channel0", "channel2", "block4", "block3", "block2x4", "block3x1", "block3x2x3")
] + ["qfloat8_e4m3fn_symmetric_channel0_float32"]
S = slice
MOVED: dict[str, tuple[Any, Any]] = {
    "reshape": (lambda q: K.reshape(q, (2, 2, 3, 8)), lambda a: a.reshape(2, 2, 3, 8)),
    "reshape one": (lambda q: K.reshape(q, (1, 4, 3, 8)), lambda a: a[None]),
    "flatten": (lambda q: K.reshape(q, (96,)), lambda a: a.reshape(96)),
    "permute": (lambda q: K.permute_dims(q, (1, 0, 2)), lambda a: a.transpose(1, 0, 2)),
    "transpose": (lambda q: K.permute_dims(q, (2, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    "broadcast": (lambda q: K.broadcast_to(q, (2, 4, 3, 8)), lambda a: np.broadcast_to(a, (2, 4, 3, 8))),
    "flip": (lambda q: K.flip(q, (0,)), lambda a: a[::-1]),
    "flip last": (lambda q: K.flip(q, (2,)), lambda a: a[..., ::-1]),
    "slice": (lambda q: K.slice(q, plain_key((S(3, 0, -2), S(None), S(None)), q.shape)), lambda a: a[3:0:-2]),
    "slice blocks": (lambda q: K.slice(q, plain_key((S(None), S(1), S(4, 7)), q.shape)), lambda a: a[:, :1, 4:7]),
    "slice none": (lambda q: K.slice(q, plain_key((S(0), S(None), S(2, 2)), q.shape)), lambda a: a[:0, :, 2:2]),
    "take": (lambda q: K.take(q, np.array([3, -4, 3]), 0), lambda a: a[[3, 0, 3]]),
    "take one": (lambda q: K.take(q, np.array(2), 0), lambda a: a[2]),
    "take grid": (lambda q: K.take(q, np.array([[0, 1], [2, 0]]), 1), lambda a: a[:, [[0, 1], [2, 0]]]),
    "take last": (lambda q: K.take(q, np.array([1, 6]), 2), lambda a: a[..., [1, 6]]),
    "take_along_axis": (lambda q: K.take_along_axis(q, np.ones((4, 2, 8), int), 1), lambda a: a[:, [1, 1]]),
    "concat": (lambda q: K.concat([q, q], 0), lambda a: np.concatenate([a, a])),
    "concat last": (lambda q: K.concat([q, q], 2), lambda a: np.concatenate([a, a], 2)),
}
REFUSED = {
    "channel2": {"flatten"},
    "channel0": {"flatten", "reshape"},
    "block4": {"flatten", "take last", "take_along_axis"},
    "block3": {"flatten", "take last", "take_along_axis", "flip last", "slice blocks", "concat last"},
    "block2x4": {"flatten", "take last", "take grid", "take_along_axis"},
    "block3x1": {"flatten", "take grid", "take_along_axis"},
    "block3x2x3": {
        "reshape",
        "flatten",
        "flip",
        "slice",
        "take",
        "take one",
        "take grid",
        "take last",
        "take_along_axis",
        "flip last",
        "slice blocks",
        "concat",
        "concat last",
    },
    "tensor": set[str](),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("move", MOVED)
def test_moves_are_exact_or_refused(name: str, move: str) -> None:
    q = K.quantize(X, as_dtype(name))
    operation, reference = MOVED[move]
    if move in REFUSED[name.split("_")[-2]]:
        with pytest.raises(ShapeError, match=name):
            operation(q)
        return
    moved = operation(q)
    assert moved.dtype.kind == "quantized"
    np.testing.assert_array_equal(K.to_numpy(moved), reference(K.to_numpy(q)), strict=True)
    assert moved.shape == reference(X).shape
    assert moved.scale.shape == quantized.scale_shape(moved.shape, moved.dtype)


@settings(max_examples=200)
@given(st.data())
def test_permuting_axes_of_packed_values(data: Any) -> None:
    """Values that share a byte along the last axis are repacked in parts, to the same bytes."""
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    x = np.random.default_rng(0).standard_normal(shape)
    q = K.quantize(x, as_dtype(f"q{data.draw(st.sampled_from(['int4', 'int2']))}_affine_tensor_float32"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_moves, "PART", data.draw(st.sampled_from([4, 12])))
        turned = K.permute_dims(q, axes)
    np.testing.assert_array_equal(K.to_numpy(turned), K.to_numpy(q).transpose(axes), strict=True)
    packed = quantized.pack(K, quantized.integers(K, turned), q.dtype.bits)
    np.testing.assert_array_equal(turned.values, packed, strict=True)
    assert turned.shape == tuple(shape[a] for a in axes)


@pytest.mark.parametrize(
    "name", ["qint4_symmetric_channel0_float32", "qint4_affine_tensor_float32", "qint2_symmetric_tensor_float32"]
)
def test_packed_values_are_never_unpacked_whole(name: str) -> None:
    import tracemalloc

    q = K.quantize(np.random.default_rng(0).standard_normal((1024, 1024)), as_dtype(name))
    rows = plain_key((slice(5, 9), slice(None)), q.shape)
    moves: list[tuple[Any, float]] = [
        (lambda: K.permute_dims(q, (1, 0)), 0.3), (lambda: K.slice(q, rows), 0.01), (lambda: K.flip(q, (0,)), 0.01),
        (lambda: K.take(q, np.array([3, 1]), 0), 0.01), (lambda: K.reshape(q, (1024, 1, 1024)), 0.01),
    ]  # fmt: skip
    for move, share in moves:
        move()
        tracemalloc.start()
        moved = move()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert moved.dtype.is_packed
        assert peak < share * 4 * 1024 * 1024


@pytest.mark.parametrize("name", ["qint8_affine_tensor_float32", "qint4_symmetric_channel1_float32"])
def test_joining_needs_equal_steps(name: str) -> None:
    a, b = K.quantize(np.ones((2, 3)), as_dtype(name)), K.quantize(np.full((2, 3), 2.0), as_dtype(name))
    with pytest.raises(ArgumentError, match=rf"{name} in the shapes \[2, 3\], \[2, 3\] have different steps"):
        K.concat([a, b], 0)
    with pytest.raises(ArgumentError, match="one scheme"):
        K.concat([a, K.quantize(np.ones((2, 3)), as_dtype("quint8_affine_tensor_float16"))], 0)


@settings(max_examples=100)
@given(st.data())
def test_reshapes_keep_the_channel_axis(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(0).standard_normal(shape)
    q = K.quantize(x, QuantizedDType("int4", granularity="channel", axis=axis))
    new = (*shape[:axis], 1, shape[axis], 1, *shape[axis + 1 :])
    np.testing.assert_array_equal(K.to_numpy(K.reshape(q, new)), K.to_numpy(q).reshape(new))


def test_tensors_are_rebuilt_from_parts() -> None:
    for name in NAMES:
        q = K.quantize(X, as_dtype(name))
        again = K.quantized_from_parts(*K.quantized_parts(q), q.dtype, q.shape)
        np.testing.assert_array_equal(K.to_numpy(again), K.to_numpy(q))


def test_many_steps() -> None:
    """Enough steps for results in recycled memory."""
    x = np.random.default_rng(2).standard_normal((2048, 64)).astype(np.float32)
    check(K, x, named("qint4_symmetric_block1_float16"))
    check(K, x, named("qint8_affine_block2_float32"))


# ---- a given range ----


@settings(max_examples=100)
@given(st.data(), tensors())
def test_a_given_range_is_kept(data: Any, x: Any) -> None:
    scheme = data.draw(schemes(x.ndim))
    shape = quantized.scale_shape(x.shape, scheme)
    low, high = data.draw(st.floats(-2.0, 0.5)), data.draw(st.floats(0.5, 2.0))
    ends = np.full(shape, low), np.full(shape, high)
    q, plain = K.quantize_between(x, *ends, scheme), BARE.quantize_between(x, *ends, scheme)
    for ours, theirs in ((q.values, plain.values), (q.scale, plain.scale), (q.zero, plain.zero)):
        np.testing.assert_array_equal(ours, theirs)
    low, high = min(low, 0.0), max(high, 0.0)
    if scheme.mode == "symmetric":
        low, high = -max(-low, high), max(-low, high)
    if scheme.mode == "full":
        least, most = scheme.limits
        step = max(low / least, high / most)
        low, high = step * least, step * most
    got, step = K.dequantize(q, float64), steps(q)
    inside = (low <= x) & (x <= high)
    assert (np.abs(got - x)[inside] <= (0.5 * step * (1 + 1e-9))[inside]).all()
    ends = np.where(x > 0, high, low)  # rounding of stored steps may exceed them a little
    assert (np.abs(got - ends)[~inside] <= (step + 0.02 * np.abs(ends))[~inside]).all()


@pytest.mark.parametrize("k", [K, BARE])
def test_nonfinite_values_are_refused_with_a_given_range(k: Any) -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(NumericalInstabilityError, match="must be finite"):
            k.quantize_between(np.array([1.0, bad]), np.array(-1.0), np.array(1.0))


# ---- 8-bit floats ----


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("k", [K, BARE])
def test_8_bit_floats_equal_those_of_ml_dtypes(name: str, k: Any) -> None:
    peer = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    most = float(QuantizedDType(name).limits[1])
    numbers = np.arange(256, dtype=np.uint8).view(peer).astype(np.float64)
    numbers = np.sort(numbers[np.abs(numbers) <= most])
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([numbers, middles, np.nextafter(middles, 1e9), np.random.default_rng(0).uniform(-2, 2, 2000)])
    q = k.quantize_between(x, np.array(-most), np.array(most), QuantizedDType(name))
    assert float(q.scale) == 1.0
    expected = x.astype(np.float32).astype(peer).astype(np.float64)
    exact = x == x.astype(np.float32)  # ml_dtypes rounds values that float32 cannot represent twice
    np.testing.assert_array_equal(k.dequantize(q, float64)[exact], expected[exact])
    np.testing.assert_array_equal(np.abs(q.values.view(peer).astype(np.float64)), np.abs(k.dequantize(q, float64)))


def test_8_bit_floats_have_no_zero_points() -> None:
    with pytest.raises(DTypeError, match="densest around 0"):
        QuantizedDType("float8_e5m2", mode="affine")


@pytest.mark.parametrize(
    "part",
    [
        {"block": 2.5}, {"block": 32.0}, {"block": True}, {"block": "32"}, {"block": np.bool(True)}, {"block": 0},
        {"block": -4}, {"block": None}, {"axis": 1.0}, {"axis": "1"}, {"axis": False}, {"axis": None},
        {"axis": 5, "block": 4}, {"granularity": "tensor", "axis": 5}, {"granularity": "rows", "axis": 5},
    ],
)  # fmt: skip
def test_invalid_options_of_schemes_are_refused(part: Any) -> None:
    """Also if similar valid schemes are cached, and on the second attempt."""
    for axis, block in ((5, 4), (1, 32), (0, 1)):
        QuantizedDType(granularity="channel", axis=axis)
        QuantizedDType(granularity="block", block=block)
    granularity = "channel" if "axis" in part else "block"
    for _ in range(2):
        with pytest.raises(DTypeError, match="scheme"):
            QuantizedDType("int8", **{"granularity": granularity, **part})


@pytest.mark.parametrize("k", [K, BARE], ids=["numpy", "plain"])
def test_empty_and_negative_ranges(k: Any) -> None:
    x = np.array([[-2.0, 0.3, 7.0], [1.0, -1.0, 0.5]], np.float32)
    low, high = np.array([0.0, -1.0], np.float32), np.array([0.0, 1.0], np.float32)
    for storage, mode in STORAGES:
        scheme = QuantizedDType(storage, "float32", mode, "channel", axis=0)
        got = k.dequantize(k.quantize_between(x, low, high, scheme))
        np.testing.assert_array_equal(got[0], 0.0)
        np.testing.assert_allclose(got[1], x[1], atol=0.5 if storage == "int2" else 0.1)
        with pytest.raises(ArgumentError, match=rf"low end .* above .*{scheme}.*\[2, 3\]"):
            k.quantize_between(x, high + 1, low, scheme)
        one = k.quantize_between(x, np.zeros((), np.float32), np.zeros((), np.float32), scheme.for_tensor())
        assert not k.dequantize(one).any()
