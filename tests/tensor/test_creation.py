"""Tensor functions: creation, dtypes, quantizing, DLPack."""

from __future__ import annotations

import math
import pickle
from collections import deque
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import (
    ArgumentError,
    DeviceMemoryError,
    DTypeError,
    ExportError,
    GraphError,
    NotDifferentiableError,
    NumericalInstabilityError,
    ShapeError,
)

DTYPES = ["bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "bfloat16", "float32", "float64"]
KINDS = {"b": bb.BoolTensor, "i": bb.IntTensor, "u": bb.IntTensor, "f": bb.FloatTensor}


def kind_of(dtype: str) -> Any:
    return KINDS[dtype[0].replace("b", "f") if dtype == "bfloat16" else dtype[0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2), 3])
def test_filled_tensors(dtype: str, shape: Any) -> None:
    expected = (shape,) if isinstance(shape, int) else shape
    for name, value in (("zeros", 0), ("ones", 1)):
        x = getattr(bb, name)(shape, dtype=dtype)
        assert type(x) is kind_of(dtype)
        assert x.dtype is getattr(bb, dtype)
        np.testing.assert_array_equal(x.astype("float64").numpy(), np.full(expected, value))
        like = getattr(bb, f"{name}_like")(x)
        assert (like.shape, like.dtype, like.backend) == (x.shape, x.dtype, x.backend)
    np.testing.assert_array_equal(bb.full(shape, 1, dtype=dtype).astype("float64").numpy(), np.ones(expected))
    assert bb.empty(shape, dtype=dtype).shape == bb.empty_like(bb.zeros(shape, dtype=dtype)).shape == expected


def test_defaults() -> None:
    assert bb.zeros(2).dtype is bb.ones(2).dtype is bb.empty(2).dtype is bb.eye(2).dtype is bb.float32
    assert bb.linspace(0, 1, 3).dtype is bb.arange(0.5).dtype is bb.full(2, 0.5).dtype is bb.float32
    assert bb.arange(3).dtype is bb.full(2, 3).dtype is bb.int64
    assert bb.full(2, True).dtype is bb.bool
    with bb.use_dtype("float64"), bb.use_backend("numpy"):
        for x in (bb.zeros(2), bb.full(2, 0.5), bb.arange(0.5), bb.linspace(0, 1, 3), bb.eye(2)):
            assert x.dtype is bb.float64
            assert x.backend.spec == "numpy"
    for where in ({"backend": "numpy"}, {"device": bb.load_backend("numpy")}):
        for make in (bb.zeros, bb.ones, bb.empty, bb.arange, bb.eye):
            assert make(2, **where).backend.spec == "numpy"
        assert bb.full(2, 1.0, **where).backend.spec == bb.linspace(0, 1, 2, **where).backend.spec == "numpy"
        assert bb.zeros_like(bb.zeros(2), **where).backend.spec == "numpy"
        assert bb.full_like(bb.zeros(2), 1, **where).backend.spec == "numpy"


def test_lengths_may_be_tensors_and_numpy_integers() -> None:
    assert bb.zeros((np.int64(2), bb.asarray(3))).shape == (2, 3)  # type: ignore[arg-type]
    assert bb.zeros(bb.asarray(3)).shape == (3,)  # type: ignore[call-overload]
    assert bb.zeros(bb.asarray([2, 1])).shape == (2, 1)  # type: ignore[call-overload]


def test_like_has_no_history_and_takes_other_dtypes() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    for y in (bb.zeros_like(x), bb.ones_like(x), bb.full_like(x, 2.0), bb.empty_like(x)):
        assert not y.is_tracked
        assert y.backend is x.backend
    assert bb.full_like(x, 2, dtype=bb.int8).tolist() == [2, 2]


def test_full_of_a_tensor_passes_the_gradient() -> None:
    x = bb.asarray(2.0).require_grad()
    g = x.grad(bb.full((2, 3), x).sum().backward())
    assert g is not None
    assert g.item() == 6.0
    assert bb.full((2,), x, dtype="int64").tolist() == [2, 2]
    with pytest.raises(ShapeError, match=r"full: .*0-d.*float32\[2\]"):
        bb.full((2,), bb.zeros(2))


@pytest.mark.parametrize(
    "bounds", [(5,), (2, 5), (5, 2), (5, 2, -1), (0, 10, 3), (0.0, 1.0, 0.1), (1.5,), (1, 2, 0.25), (0,)]
)
def test_arange(bounds: tuple[float, ...]) -> None:
    expected = np.arange(*bounds)
    for dtype in (None, "float64") if expected.dtype.kind == "f" else (None, "int16", "float64"):
        x = bb.arange(*bounds, dtype=dtype)
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
        assert (x.dtype.kind == "float") == (expected.dtype.kind == "f" or dtype == "float64")


def test_ranges_take_0d_tensors_as_bounds() -> None:
    lengths = bb.asarray([3, 5])
    assert bb.arange(lengths.max()).tolist() == [0, 1, 2, 3, 4]
    assert bb.arange(1, lengths.max(), bb.asarray(2)).dtype is bb.int64
    assert bb.linspace(0, lengths.min(), 3).tolist() == [0.0, 1.5, 3.0]


def test_linspace_and_eye() -> None:
    assert np.isnan(bb.linspace(-np.inf, np.inf, 3).numpy()[1])  # and no warning
    assert bb.linspace(0, 1e300, 2).tolist() == [0.0, np.inf]
    np.testing.assert_array_equal(bb.linspace(0, 1, 5).numpy(), np.linspace(0, 1, 5, dtype=np.float32))
    np.testing.assert_allclose(
        bb.linspace(2, -1, 7, dtype="float64", endpoint=False).numpy(), np.linspace(2, -1, 7, endpoint=False)
    )
    for k in (-1, 0, 2):
        np.testing.assert_array_equal(bb.eye(2, 3, k=k, dtype=bb.int64).numpy(), np.eye(2, 3, k))
    np.testing.assert_array_equal(bb.eye(3).numpy(), np.eye(3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: bb.zeros((2, -1)), ShapeError, r"zeros: .*\[2, -1\]"),
        (lambda: bb.ones(2.5), ArgumentError, r"ones: .*2\.5"),  # type: ignore[call-overload]
        (lambda: bb.ones("ab"), ArgumentError, "ones: .*'ab'"),  # type: ignore[call-overload]
        (lambda: bb.full(2, 300, dtype="int8"), ArgumentError, "full: .*300.*int8"),
        (lambda: bb.full(2, math.nan, dtype="int8"), ArgumentError, "full: int8 does not hold nan"),
        (lambda: bb.full(2, 1j, dtype="float32"), ArgumentError, "full: float32 does not hold 1j"),
        (lambda: bb.full_like(3, 1), DTypeError, "full_like: takes a tensor, not int"),  # type: ignore[arg-type]
        (lambda: bb.zeros(2, dtype="float31"), DTypeError, "float31.*Did you mean"),
        (lambda: bb.zeros(2, dtype=bb.qint8), DTypeError, r"zeros: .*x\.quantize\(\)"),
        (lambda: bb.asarray([1.0], dtype=bb.qint8), DTypeError, r"asarray: .*x\.quantize\(\)"),
        (lambda: bb.asarray(np.ones(2), dtype=bb.qint8), DTypeError, r"asarray: .*x\.quantize\(\)"),
        (lambda: bb.asarray(bb.ones(2), dtype=bb.qint8), DTypeError, r"asarray: .*x\.quantize\(\)"),
        (lambda: bb.empty_like(bb.ones(2), dtype=bb.qint8), DTypeError, r"empty_like: .*x\.quantize\(\)"),
        (lambda: bb.zeros(2, backend="numpy", device="null"), ArgumentError, "zeros: backend is numpy and device"),
        (lambda: bb.asarray([1], backend="numpy", device="null"), ArgumentError, "asarray: backend is numpy"),
        (lambda: bb.random.normal((2,), backend="numpy", device="null"), ArgumentError, "normal: backend is numpy and"),
        (lambda: bb.arange(0, 1, 0), ArgumentError, "arange: .*step not 0"),
        (lambda: bb.arange(0, 1.5, dtype="int64"), DTypeError, r"arange: int64 takes integers.*1\.5"),
        (lambda: bb.arange(300, dtype="uint8"), ArgumentError, "arange: uint8 does not hold 299"),
        (lambda: bb.arange(-127, -130, -1, dtype="int8"), ArgumentError, "arange: int8 does not hold -129"),
        (lambda: bb.arange(bb.ones(())), DTypeError, "arange: .*FloatTensor; item"),  # type: ignore[call-overload]
        (lambda: bb.arange(bb.asarray([1, 2])), ShapeError, r"arange: only a 0-d int tensor.*int64\[2\]"),
        (lambda: bb.arange(3, dtype="bool"), DTypeError, "arange: makes float and int tensors, not bool"),
        (lambda: bb.linspace(0, 1, -3), ShapeError, "linspace: .*-3"),
        (lambda: bb.linspace(0, 1, 3, dtype="int64"), DTypeError, "linspace: makes float tensors, not int64"),
        (lambda: bb.eye(-1), ShapeError, "eye: "),
        (lambda: bb.zeros(2, backend="nunpy"), Exception, "nunpy.*numpy"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---- dtypes ----


@pytest.mark.parametrize("start", DTYPES)
@pytest.mark.parametrize("end", DTYPES)
def test_astype(start: str, end: str) -> None:
    x = bb.asarray(np.array([0, 1, 1, 0]), dtype=start)
    y = x.astype(end)
    assert y.dtype is getattr(bb, end)
    assert type(y) is kind_of(end)
    assert y.astype("int64").tolist() == [0, 1, 1, 0]
    assert (y is x) == (start == end)


def test_astype_casts_the_gradient_back() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    g = x.grad((x.astype("float64") * 3.0).sum().backward())
    assert g is not None
    assert g.dtype is bb.float32
    assert g.tolist() == [3.0, 3.0]
    assert bb.astype(x, "float32", copy=True, device="autodiff(numpy)") is x


def test_astype_does_not_quantize() -> None:
    x = bb.asarray([1.0, 2.0])
    with pytest.raises(DTypeError, match=r"astype: .*x\.quantize\(\)"):
        x.astype(bb.qint8)
    assert x.quantize().astype("float32").tolist() == x.quantize().dequantize().tolist()


def test_result_type_and_can_cast() -> None:
    assert bb.result_type(bb.int8, "uint8") is bb.int16
    assert bb.result_type(bb.asarray([1]), 2.5) is bb.float32
    assert bb.result_type("float16", 2.5, 3, True) is bb.float16
    assert bb.result_type(bb.bool, True) is bb.bool
    with pytest.raises(ArgumentError, match="result_type: at least one"):
        bb.result_type(1, 2.0)
    with pytest.raises(DTypeError, match="result_type: int64 and uint64"):
        bb.result_type("int64", "uint64")
    assert bb.can_cast("int8", "int64")
    assert bb.can_cast(bb.asarray([True]), "int8")
    assert not bb.can_cast("int64", "int8")
    assert not bb.can_cast("float32", "int64")
    assert not bb.can_cast(bb.qint8, "float32")


def test_isdtype() -> None:
    kinds = {
        "bool": {"bool"},
        "signed integer": {"int8", "int32", "int64"},
        "unsigned integer": {"uint8", "uint64"},
        "integral": {"int8", "int32", "int64", "uint8", "uint64"},
        "real floating": {"float16", "bfloat16", "float32", "float64"},
        "complex floating": {"complex64", "complex128"},
        "numeric": {*DTYPES, "complex64", "complex128"} - {"bool"},
    }
    for kind, members in kinds.items():
        assert {d for d in (*DTYPES, "complex64", "complex128") if bb.isdtype(d, kind)} == members
    assert bb.isdtype(bb.int8, (bb.float32, "integral"))
    assert not bb.isdtype(bb.int8, bb.int64)
    with pytest.raises(ArgumentError, match="isdtype: 'float' is not a kind"):
        bb.isdtype(bb.int8, "float")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_finfo(dtype: str) -> None:
    import ml_dtypes

    info, expected = bb.finfo(dtype), ml_dtypes.finfo(dtype)
    assert info.dtype is getattr(bb, dtype)
    assert info.bits == expected.bits
    for name in ("eps", "max", "min", "smallest_normal"):
        assert getattr(info, name) == float(getattr(expected, name))
        assert type(getattr(info, name)) is float
    with pytest.raises(DTypeError, match="finfo: int8"):
        bb.finfo("int8")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_iinfo(dtype: str) -> None:
    info, expected = bb.iinfo(bb.zeros(1, dtype=dtype)), np.iinfo(dtype)
    assert (info.bits, info.max, info.min) == (expected.bits, expected.max, expected.min)
    with pytest.raises(DTypeError, match="iinfo: bool"):
        bb.iinfo("bool")


def test_broadcast_shapes() -> None:
    assert bb.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert bb.broadcast_shapes() == ()
    with pytest.raises(ShapeError, match=r"broadcast_shapes: .*axis -1 is 2 and 3"):
        bb.broadcast_shapes((2,), (3,))


# ---- host data ----


def test_numbers_from_python() -> None:
    assert bb.asarray([2**63]).dtype is bb.uint64
    assert bb.asarray([]).dtype is bb.float32
    assert bb.asarray([1e300]).tolist() == [math.inf]
    assert bb.asarray([1e300], dtype="float16").tolist() == [math.inf]
    assert bb.asarray([16777217.0], dtype="int64").tolist() == [16777217]
    assert bb.asarray([0.5, 0.0], dtype="bool").tolist() == [True, False]
    assert bb.asarray([1, 2], dtype="float64").tolist() == [1.0, 2.0]
    with pytest.raises(ArgumentError, match="asarray: int8 does not hold integers from -3 to 300"):
        bb.asarray([-3, 300], dtype="int8")
    with pytest.raises(ArgumentError, match="asarray: uint8"):
        bb.asarray([-1], dtype="uint8")
    with pytest.raises(ArgumentError, match="asarray: an integer is beyond the 64 bits"):
        bb.asarray([1, 2**64])
    with pytest.raises(ArgumentError, match="asarray: the integers fit neither into int64 nor into uint64"):
        bb.asarray([2**63, -1])
    with pytest.raises(DTypeError, match="asarray: objects of type NoneType"):
        bb.asarray([1, None])
    with pytest.raises(DTypeError, match="asarray: objects of type Fraction"):
        bb.asarray([np.int32(1), Fraction(1, 2)])


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([np.float64(1.1)], "float64"),
        ([np.array([1.1]), np.array([2.2])], "float64"),
        ([[np.float64(1.1), 2.0], (3, 4.5)], "float64"),
        ([bb.asarray(1.1, dtype="float64"), 2.0], "float64"),
        ([np.float32(1), np.float64(1)], "float64"),
        ([np.float16(1), 2.5], "float16"),
        ([bb.asarray(1.0, dtype="bfloat16"), 2.5], "bfloat16"),
        ([np.array([1.5], dtype=">f8")], "float64"),
        ([np.int32(1)], "int32"),
        ([np.int32(1), 2], "int32"),
        ([np.int32(1), 2.5], "float32"),
        ([np.int32(1), np.int64(2)], "int64"),
        ([np.float32(1), np.int64(2)], "float32"),
        ([np.float32(1), np.uint64(2), np.int64(2)], "float32"),
        ([np.int32(1), True], "int32"),
        ([np.bool_(True), 2], "int64"),
        ([np.bool_(True), deque([2.5])[0]], "float32"),
        ([np.array([1, 2], dtype=np.int8), deque([1.5, 2.5])], "float32"),
        (np.longdouble(1.1), "float64"),
        ([np.longdouble(1.1), 2.0], "float64"),
        ([1, True], "int64"),
    ],
)
def test_arrays_in_lists_keep_their_dtype(data: Any, dtype: str) -> None:
    x = bb.asarray(data)
    assert x.dtype == dtype
    expected = [v.tolist() if hasattr(v, "tolist") else v for v in data] if isinstance(data, list) else data
    np.testing.assert_array_equal(x.astype("float64").numpy(), np.asarray(expected, dtype="float64"))


def test_integers_in_lists_are_not_rounded() -> None:
    x = bb.asarray([np.uint64(2**63 + 1), 3])
    assert (x.dtype, x.tolist()) == (bb.uint64, [2**63 + 1, 3])
    with pytest.raises(ArgumentError, match="asarray: int8, the dtype of the arrays, does not hold a number"):
        bb.asarray([np.int8(1), 300])
    with pytest.raises(DTypeError, match=r"asarray: u?int64 and u?int64 have no common integer type"):
        bb.asarray([np.int64(1), np.uint64(1)])


def test_bfloat16_in_lists_becomes_another_dtype() -> None:
    x = bb.asarray(1.5, dtype="bfloat16")
    for data, expected in (([x, 257], [1.5, 257.0]), ([x, x], [1.5, 1.5]), ([[x], [np.int8(3)]], [[1.5], [3.0]])):
        assert bb.asarray(data, dtype="float32").tolist() == expected
        assert bb.asarray(data, dtype="int32").tolist() == np.asarray(expected).astype(np.int32).tolist()
    with pytest.raises(DTypeError, match="asarray: objects of type NoneType"):
        bb.asarray([[1, None], [x, x]], dtype="float32")


@pytest.mark.parametrize("dtype", [None, "uint64"])
def test_small_integers_beside_those_of_uint64(dtype: Any) -> None:
    """NumPy promotes int64 with uint64 to float64, which would round both."""
    for data in ([1, 2**64 - 1], [[2**53 + 1], [2**63 + 1]], [True, 2**63 + 1]):
        x = bb.asarray(data, dtype=dtype)
        assert (x.dtype, x.tolist()) == (bb.uint64, data)
    assert bb.asarray([np.int64(3), np.uint64(2**63 + 1)], dtype="uint64").tolist() == [3, 2**63 + 1]
    assert bb.asarray([-1, 2**63], dtype="float64").tolist() == [-1.0, 2.0**63]
    assert bb.asarray([0, 2**63], dtype="bool").tolist() == [False, True]
    assert bb.asarray([np.array([3], np.uint64), np.array([-1])], dtype="int64").tolist() == [[3], [-1]]
    assert bb.asarray([np.zeros(0, np.uint64), np.zeros(0, np.int64)], dtype="int64").shape == (2, 0)
    with pytest.raises(ArgumentError, match="asarray: int64 does not hold integers from 1 to 9223372036854775809"):
        bb.asarray([1, 2**63 + 1], dtype="int64")


def test_asarray_dequantizes_where_another_dtype_is_named() -> None:
    q = bb.asarray([1.0, -127.0]).quantize()
    assert bb.asarray(q, dtype=bb.qint8) is q
    assert bb.asarray(q, dtype="float64").tolist() == bb.asarray(q, dtype="int64").tolist() == [1, -127]
    with pytest.raises(DTypeError, match="asarray: makes float and complex and int and bool tensors, not qint4"):
        bb.asarray(q, dtype=bb.QuantizedDType("int4"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bb.zeros((10**15,)), r"zeros: .* float32\[1000000000000000\] \(numpy\) takes 4,000,000,000,000,000 b"),
        (lambda: bb.full((10**8, 10**8), 2), r"full: .* int64\[100000000,100000000\] \(numpy\) takes 80,000,"),
        (lambda: bb.arange(10**15), r"arange: the memory of cpu is exhausted: int64\[1000000000000000\]"),
        (lambda: bb.eye(10**8, dtype="float64"), r"eye: .* float64\[100000000,100000000\]"),
        (lambda: bb.random.normal((10**15,)), r"normal: .* float32\[1000000000000000\]"),
        (lambda: bb.random.permutation(10**15), r"permutation: .* int64\[1000000000000000\]"),
        (lambda: bb.zeros_like(bb.full((10**15,), bb.asarray(1.0))), r"zeros_like: .* float32\[1000000000000000\]"),
    ],
)
def test_creation_beyond_memory(call: Any, words: str) -> None:
    with bb.use_backend("numpy"), pytest.raises(DeviceMemoryError, match=words) as caught:
        call()
    assert isinstance(caught.value, MemoryError)


HUGE = {
    "add": (lambda x: x + 1.0, r"float32\[10{13}\] \(autodiff\(numpy\)\), 1.0\."),
    "multiply": (lambda x: x * x, r"float32\[10{13}\] .*, float32\[10{13}\]"),
    "exp": (bb.exp, "Operands: float32"),
    "matmul": (lambda x: x[:, None] @ x[None, :9], r"float32\[10{13},1\]"),
    "concat": (lambda x: bb.concat([x, x]), r"Operands: \[float32.* Options: axis=0"),
    "astype": (lambda x: x.astype("float64"), r"Options: dtype=float64"),
    "numpy": (lambda x: x.numpy(), r"Operand: float32\[10{13}\]"),
    "tolist": (lambda x: x.tolist(), r"Operand: float32\[10{13}\]"),
    "backward": (lambda x: bb.broadcast_to(bb.asarray(1.0).require_grad(), x.shape).backward(), "Operand: float32"),
    "vjp": (lambda x: bb.vjp(lambda y: bb.broadcast_to(y, x.shape)[0], bb.asarray(1.0))[1](1.0), "float32"),
}


@pytest.mark.parametrize("name", HUGE)
def test_operations_beyond_memory(name: str) -> None:
    f, words = HUGE[name]
    x = bb.broadcast_to(bb.asarray([1.0]), (10**13,))
    with pytest.raises(DeviceMemoryError, match=rf"^{name}: the memory of cpu is exhausted: .*{words}") as caught:
        f(x)
    assert isinstance(caught.value, MemoryError)
    assert str(caught.value).endswith("Use less at a time, or a smaller dtype")


def test_backend_and_device_may_both_name_one_backend() -> None:
    assert bb.zeros(2, backend="numpy", device=bb.load_backend("numpy")).backend.spec == "numpy"


def test_tensors_of_one_element_take_a_format() -> None:
    assert f"{bb.asarray(1.25):.1f} {bb.asarray([7]):>3d}" == "1.2   7"
    x = bb.asarray([1.0, 2.0])
    assert f"{x}" == str(x)
    with pytest.raises(ShapeError, match="item: needs exactly one element"):
        f"{x:.1f}"


def test_dlpack() -> None:
    x = bb.asarray([[1.0, 2.0], [3.0, 4.0]])
    out = np.from_dlpack(x)
    np.testing.assert_array_equal(out, x.numpy())
    with pytest.raises(GraphError, match=r"np.from_dlpack makes a DLPack capsule"):
        np.from_dlpack(x.require_grad())
    shared = np.from_dlpack(x, copy=False)
    assert (shared.flags.writeable, out.flags.writeable) == (False, True)
    np.testing.assert_array_equal(shared, x.numpy())
    with pytest.raises(ExportError, match="copy=False shares memory of the host, read-only"):
        x.__dlpack__(copy=False)
    assert x.__dlpack_device__() == (1, 0)
    host = np.arange(6).reshape(2, 3).T
    back = bb.from_dlpack(host)
    host[0, 0] = 9
    assert back.tolist() == [[0, 3], [1, 4], [2, 5]], "a copy"
    assert bb.from_dlpack(bb.asarray([True]), device="numpy").backend.spec == "numpy"
    with pytest.raises(ArgumentError, match="from_dlpack: list"):
        bb.from_dlpack([1, 2])
    with pytest.raises(ExportError, match="copy=False"):
        bb.from_dlpack(host, copy=False)
    with pytest.raises(DTypeError, match="bfloat16"):
        bb.ones(2, dtype="bfloat16").__dlpack__()


# ---- quantizing ----


def test_quantized_tensors() -> None:
    x = bb.asarray([[1.0, -127.0], [3.4, 0.0]])
    q = x.quantize()
    assert type(q) is type(bb.quantize(x)) is bb.QuantizedTensor
    assert q.dtype is bb.qint8
    assert q.dequantize().tolist() == [[1.0, -127.0], [3.0, 0.0]]
    assert type(bb.dequantize(q, dtype="float64")) is bb.FloatTensor
    assert q.dequantize(dtype=bb.float64).dtype is bb.float64
    assert "qint8" in repr(q)
    for changed, shape in ((q.reshape(4), (4,)), (q.T, (2, 2)), (q.broadcast_to((3, 2, 2)), (3, 2, 2)), (q.mT, (2, 2))):
        assert type(changed) is bb.QuantizedTensor
        assert changed.shape == shape
    again = pickle.loads(pickle.dumps(q))
    assert type(again) is bb.QuantizedTensor
    assert again.tolist() == q.tolist()


def test_dequantize_of_float_tensors() -> None:
    x = bb.asarray([0.1, -2.0]).require_grad()
    y = x.dequantize()
    assert y.tolist() == x.tolist()
    assert y.is_tracked
    half = bb.asarray([1.5], dtype="float16")
    assert half.dequantize().dtype is bb.float16
    assert half.dequantize(dtype="float64").dtype is bb.float64
    q = bb.asarray([3.0, -6.35], backend="numpy(quantized=propagate)").quantize()
    doubled = (q * 2.0).dequantize()
    assert doubled.dtype is (q.dequantize() * 2.0).dequantize().dtype is bb.float32


def test_quantizing_refuses() -> None:
    x = bb.asarray([1.0, 2.0])
    with pytest.raises(NotDifferentiableError, match=r"quantize: .*float32\[2\].*detach"):
        x.require_grad().quantize()
    assert x.require_grad().detach().quantize().tolist() == x.quantize().tolist()
    with pytest.raises(NumericalInstabilityError, match=r"quantize: .*finite"):
        bb.asarray([1.0, math.inf]).quantize()
    for bad in (bb.asarray([1, 2]), bb.asarray([True]), x.quantize()):
        with pytest.raises(DTypeError, match="quantize: takes float tensors"):
            bad.quantize()
    with pytest.raises(DTypeError, match="quantize: int8 is not a quantized dtype"):
        x.quantize(dtype="int8")
    with pytest.raises(DTypeError, match=r"dequantize: takes quantized and float tensors, not int64\[2\]"):
        bb.asarray([1, 2]).dequantize()
    with pytest.raises(DTypeError, match="dequantize: makes float tensors, not int8"):
        x.quantize().dequantize(dtype="int8")


def test_a_list_of_tracked_tensors_is_refused_rather_than_detached() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    with pytest.raises(ArgumentError, match=r"asarray: a list of tracked tensors would lose their history; bb\.stack"):
        bb.asarray([x[0], x[1]])
    with pytest.raises(ArgumentError, match="asarray: a list of tracked tensors would lose their history"):
        bb.grad(lambda y: y * bb.asarray([x[0] + bb.stop_gradient(y)])[0])(1.0)
    assert bb.asarray([x.detach()[0], 3.0]).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("shape", [(1001,), (100, 100), (7, 1000), (2, 3, 500), (6, 6, 6, 7), (6, 6, 6, 6)])
def test_large_tensors_print_as_arrays_do(shape: tuple[int, ...]) -> None:
    """Long axes print only their ends."""
    array = np.random.default_rng(0).normal(size=shape)
    found = repr(bb.asarray(array, backend="numpy"))
    values = np.array2string(array, separator=", ", prefix="Tensor(", threshold=1000)
    assert found.startswith(f"Tensor({values}, shape=")
    assert found.endswith(f", shape={list(shape)}, dtype=float64, backend=numpy)")


class Reluctant:
    """An object that refuses conversion, like a PyTorch tensor that requires a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("Use tensor.detach().numpy() instead.")


@pytest.mark.parametrize("data", [Reluctant(), [Reluctant(), 1.0]])
def test_failed_conversions_give_the_reason(data: Any) -> None:
    with pytest.raises(ArgumentError, match=r"asarray: \w+ does not become a NumPy array \(Use tensor.detach"):
        bb.asarray(data)


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"a tensor has no mask, and this array has one: write array\.filled\(value\)"
    ):
        bb.asarray(np.ma.array([1.0, 2.0], mask=[False, True]))


@pytest.mark.parametrize("ragged", [[[1.0, 2.0], [3.0]], [[1.0], 2.0], [[[1.0]], [[1.0, 2.0]]]])
def test_ragged_lists_are_refused(ragged: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"the nested lists do not form an array \(their lengths or depths differ\)$"
    ):
        bb.asarray(ragged)


@pytest.mark.parametrize("spec", ["null", "autodiff(null)", "autodiff(capture(null))"])
def test_the_repr_of_tensors_without_values(spec: str) -> None:
    x = bb.zeros((2, 3), backend=spec)
    assert repr(x) == f"Tensor(<no values>, shape=[2, 3], dtype=float32, backend={x.backend.spec})"
    assert repr(x.quantize()).startswith("Tensor(<no values>, shape=[2, 3], dtype=qint8")
    assert repr(bb.zeros((2, 3), backend="autodiff(numpy)")).startswith("Tensor([[0., 0., 0.],")
