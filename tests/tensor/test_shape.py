"""Tensor functions: shape, joining, splitting, moving axes, windows and diagonals, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, BackendMismatchError, DTypeError, ShapeError

ARRAYS = {
    "float32": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1,
    "int64": np.arange(24).reshape(2, 3, 4),
    "bool": np.arange(24).reshape(2, 3, 4) % 3 == 0,
}
view = np.lib.stride_tricks.sliding_window_view

#: Name, positional arguments, options, and NumPy's result.
ONE: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("reshape", ((4, 6),), {}, lambda a: a.reshape(4, 6)),
    ("reshape", ((-1, 6),), {}, lambda a: a.reshape(4, 6)),
    ("reshape", (-1,), {}, lambda a: a.reshape(-1)),
    ("reshape", ([2, -1],), {}, lambda a: a.reshape(2, -1)),
    ("flatten", (), {}, lambda a: a.reshape(24)),
    ("flatten", (1,), {}, lambda a: a.reshape(2, 12)),
    ("flatten", (0, 1), {}, lambda a: a.reshape(6, 4)),
    ("flatten", (), {"start_axis": 1}, lambda a: a.reshape(2, 12)),
    ("flatten", (), {"start_axis": 0, "end_axis": -2}, lambda a: a.reshape(6, 4)),
    ("expand_dims", (), {}, lambda a: a[None]),
    ("expand_dims", (), {"axis": -1}, lambda a: a[..., None]),
    ("expand_dims", (), {"axis": (0, 2)}, lambda a: np.expand_dims(a, (0, 2))),
    ("permute_dims", ((2, 0, 1),), {}, lambda a: a.transpose(2, 0, 1)),
    ("permute_dims", ((-1, 0, 1),), {}, lambda a: a.transpose(2, 0, 1)),
    ("moveaxis", (0, -1), {}, lambda a: np.moveaxis(a, 0, -1)),
    ("moveaxis", ((0, 2), (1, 0)), {}, lambda a: np.moveaxis(a, (0, 2), (1, 0))),
    ("swapaxes", (0, -1), {}, lambda a: np.swapaxes(a, 0, -1)),
    ("broadcast_to", ((2, 2, 3, 4),), {}, lambda a: np.broadcast_to(a, (2, 2, 3, 4))),
    ("flip", (), {}, np.flip),
    ("flip", (), {"axis": -1}, lambda a: np.flip(a, -1)),
    ("flip", (), {"axis": (0, 1)}, lambda a: np.flip(a, (0, 1))),
    ("roll", (5,), {}, lambda a: np.roll(a, 5)),
    ("roll", (-1,), {"axis": 1}, lambda a: np.roll(a, -1, 1)),
    ("roll", ((1, 2),), {"axis": (-1, 0)}, lambda a: np.roll(a, (1, 2), (-1, 0))),
    ("roll", ((1, 2),), {"axis": 2}, lambda a: np.roll(a, 3, 2)),
    ("roll", (1,), {"axis": (0, 1)}, lambda a: np.roll(a, 1, (0, 1))),
    ("tile", (2,), {}, lambda a: np.tile(a, 2)),
    ("tile", ((2, 1, 2),), {}, lambda a: np.tile(a, (2, 1, 2))),
    ("tile", ((2, 1, 1, 2),), {}, lambda a: np.tile(a, (2, 1, 1, 2))),
    ("repeat", (2,), {}, lambda a: np.repeat(a, 2)),
    ("repeat", (2,), {"axis": 1}, lambda a: np.repeat(a, 2, 1)),
    ("repeat", ([1, 0, 3],), {"axis": -2}, lambda a: np.repeat(a, [1, 0, 3], 1)),
    ("repeat", (bb.asarray([2, 1]),), {"axis": 0}, lambda a: np.repeat(a, [2, 1], 0)),
    ("repeat", (bb.asarray([2, 1], dtype="uint64"),), {"axis": 0}, lambda a: np.repeat(a, [2, 1], 0)),
    ("pad", (1,), {}, lambda a: np.pad(a, 1)),
    ("pad", ((1, 2),), {"value": 1}, lambda a: np.pad(a, (1, 2), constant_values=1)),
    ("pad", (((0, 1), (2, 0), (1, 1)),), {"mode": "edge"}, lambda a: np.pad(a, ((0, 1), (2, 0), (1, 1)), "edge")),
    ("pad", (1,), {"mode": "reflect"}, lambda a: np.pad(a, 1, "reflect")),
    ("pad", (np.array([1, 2]),), {}, lambda a: np.pad(a, (1, 2))),
    ("pad", (5,), {"mode": "wrap"}, lambda a: np.pad(a, 5, "wrap")),
    ("sliding_window", (2,), {}, lambda a: view(a, 2, -1)),
    ("sliding_window", (2,), {"axis": 0}, lambda a: view(a, 2, 0)),
    ("sliding_window", ((2, 3),), {"axis": (1, 2)}, lambda a: view(a, (2, 3), (1, 2))),
    ("sliding_window", ((3, 2),), {"axis": (2, 1)}, lambda a: view(a, (3, 2), (2, 1))),
    ("sliding_window", ((3, 2),), {"axis": (-1, 0), "stride": (2, 1)}, lambda a: view(a, (3, 2), (2, 0))[:, :, ::2]),
    ("sliding_window", (2,), {"dilation": 2, "stride": 1}, lambda a: view(a, 3, -1)[..., ::2]),
    ("diagonal", (), {}, lambda a: np.diagonal(a, 0, 1, 2)),
    ("diagonal", (), {"offset": -1, "axis1": 0, "axis2": 1}, lambda a: np.diagonal(a, -1, 0, 1)),
    ("trace", (), {"offset": 1}, lambda a: np.trace(a, 1, 1, 2)),
]


@pytest.mark.parametrize(("name", "arguments", "options", "expected"), ONE)
@pytest.mark.parametrize("dtype", ARRAYS)
def test_values_are_numpys(name: str, arguments: Any, options: Any, expected: Any, dtype: str) -> None:
    array = ARRAYS[dtype]
    x = bb.asarray(array)
    got = getattr(bb, name)(x, *arguments, **options)
    np.testing.assert_allclose(got.numpy(), expected(array), rtol=1e-6, strict=name != "trace" or dtype != "bool")
    assert type(got) is type(x) or name == "trace"
    if hasattr(x, name):
        np.testing.assert_array_equal(getattr(x, name)(*arguments, **options).numpy(), got.numpy())


@pytest.mark.parametrize(("name", "arguments", "options", "expected"), ONE)
def test_gradients_sum_over_the_copies_of_an_element(name: str, arguments: Any, options: Any, expected: Any) -> None:
    """The cotangent numbers the result's elements; each input receives the sum of the numbers of its copies."""
    x = bb.asarray(np.arange(24.0).reshape(2, 3, 4), backend="autodiff(numpy)").require_grad()
    result = getattr(bb, name)(x, *arguments, **options)
    numbers = np.arange(1.0, result.size + 1).reshape(result.shape)
    g = x.grad(result.backward(bb.asarray(numbers, backend="numpy")))
    assert g is not None
    origins = expected(np.eye(24).reshape(24, 2, 3, 4)[5]) if name == "trace" else None
    if origins is None:
        places = expected(np.arange(1, 25).reshape(2, 3, 4))
        if name == "pad" and options.get("mode", "constant") == "constant":
            places = np.pad(np.arange(1, 25).reshape(2, 3, 4), arguments[0])
        weights = [numbers[places == i].sum() for i in range(1, 25)]
        np.testing.assert_array_equal(g.numpy().ravel(), weights)
    else:
        assert g.numpy().ravel()[5] == (numbers * origins).sum()


def test_the_method_reshape_takes_lengths_or_one_shape() -> None:
    x = bb.arange(6)
    for y in (x.reshape(2, 3), x.reshape((2, 3)), x.reshape([2, -1]), x.reshape(-1, 3)):
        assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.reshape(6).shape == (6,)
    assert bb.asarray(1.0).reshape(()).shape == bb.asarray([[1.0]]).reshape(()).shape == ()
    assert bb.zeros((0, 3)).reshape(-1, 3).shape == (0, 3)
    assert bb.reshape(x, bb.asarray(6), copy=True).shape == (6,)  # type: ignore[arg-type]


def test_squeeze_and_atleast() -> None:
    x = bb.zeros((1, 3, 1))
    assert x.squeeze().shape == (3,)
    assert x.squeeze(-1).shape == bb.squeeze(x, (2,)).shape == (1, 3)
    assert bb.squeeze(x, (0, -1)).shape == (3,)
    for shape in ((), (3,), (2, 3), (2, 3, 4), (1, 2, 3, 4)):
        for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
            assert getattr(bb, name)(bb.zeros(shape)).shape == getattr(np, name)(np.zeros(shape)).shape
    assert bb.flatten(bb.asarray(3)).tolist() == [3]


def test_broadcast_arrays_and_meshgrid() -> None:
    arrays = [np.arange(3), np.arange(2.0)[:, None], np.array(True)]
    for got, expected in zip(bb.broadcast_arrays(*map(bb.asarray, arrays)), np.broadcast_arrays(*arrays), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)
    lines = [np.arange(2), np.arange(3.0), np.arange(4)]
    for indexing in ("xy", "ij"):
        for count in (0, 1, 2, 3):
            for sparse in (False, True):
                grids = bb.meshgrid(*map(bb.asarray, lines[:count]), indexing=indexing, sparse=sparse)
                theirs: Any = np.meshgrid(*lines[:count], indexing=indexing, sparse=sparse)
                assert len(grids) == len(theirs) == count
                for a, b in zip(grids, theirs, strict=True):
                    np.testing.assert_array_equal(a.numpy(), b, strict=True)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_concat_and_stack(axis: Any) -> None:
    arrays = [np.ones((2, 3), np.int8), np.zeros((2, 3), np.uint8)]
    got = bb.concat([bb.asarray(a) for a in arrays], axis=axis)
    assert got.dtype is bb.int16
    np.testing.assert_array_equal(got.numpy(), np.concatenate(arrays, axis))
    if axis is not None:
        got = bb.stack([bb.asarray(a) for a in arrays], axis=axis)
        np.testing.assert_array_equal(got.numpy(), np.stack(arrays, axis))


def test_concat_lifts_constants_and_keeps_gradients_apart() -> None:
    x = bb.asarray([1.0, 2.0]).require_grad()
    y = bb.asarray([3.0], backend="numpy")
    z = bb.concat((x, y, x))
    assert z.tolist() == [1.0, 2.0, 3.0, 1.0, 2.0]
    g = x.grad((z * bb.arange(5.0)).sum().backward())
    assert g is not None
    assert g.tolist() == [3.0, 5.0]
    assert bb.concat([bb.zeros((0, 2)), bb.ones((1, 2))]).shape == (1, 2)
    assert bb.concat([bb.zeros(()), bb.ones((1, 2))], axis=None).tolist() == [0.0, 1.0, 1.0]


def test_splitting() -> None:
    x = bb.asarray(np.arange(10).reshape(5, 2))
    for pieces, sizes in (
        (x.split(2), [2, 2, 1]),
        (bb.split(x, [1, 0, 4]), [1, 0, 4]),
        (x.split(9), [5]),
        (x.chunk(2), [3, 2]),
        (bb.chunk(x, 7), [1, 1, 1, 1, 1]),
        (x.chunk(4), [2, 2, 1]),
        (bb.zeros((0, 2)).chunk(3), [0, 0, 0]),
        (bb.zeros((0, 2)).split(3), [0]),
    ):
        assert [p.shape[0] for p in pieces] == sizes
        if pieces[0].size:
            np.testing.assert_array_equal(np.concatenate([p.numpy() for p in pieces]), x.numpy())
    assert [p.tolist() for p in x.split(1, axis=-1)] == [[[i] for i in range(a, 10, 2)] for a in (0, 1)]
    assert [p.tolist() for p in x.unstack(axis=1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert bb.unstack(bb.zeros((0, 3))) == ()
    w = bb.asarray([1.0, 2.0, 3.0]).require_grad()
    first, *_ = w.split([1, 2])
    g = w.grad(first.sum().backward())
    assert g is not None
    assert g.tolist() == [1.0, 0.0, 0.0]


def test_diag() -> None:
    for k in (-2, 0, 1, 3):
        np.testing.assert_array_equal(bb.diag(bb.arange(1, 4), offset=k).numpy(), np.diag(np.arange(1, 4), k))
        matrix = np.arange(6.0).reshape(2, 3)
        np.testing.assert_array_equal(bb.diag(bb.asarray(matrix), k).numpy(), np.diag(matrix, k))
        assert bb.trace(bb.asarray(matrix), k).item() == np.trace(matrix, k)
        np.testing.assert_array_equal(bb.asarray(matrix).diagonal(k).numpy(), np.diagonal(matrix, k))
    np.testing.assert_array_equal(bb.diag(bb.zeros(0)).numpy(), np.zeros((0, 0)))
    infinite = bb.diag(bb.asarray([float("inf"), 1.0]))
    assert infinite.tolist() == [[float("inf"), 0.0], [0.0, 1.0]]


def test_overlap_add_undoes_windows_that_do_not_overlap() -> None:
    x = bb.asarray(np.arange(24.0).reshape(4, 6), dtype="float64")
    for options in ({"axis": 1, "stride": 2}, {"axis": (1, 0), "stride": (2, 4)}, {"axis": (-2, -1), "stride": (4, 2)}):
        size: Any = {1: 2, (1, 0): (2, 4), (-2, -1): (4, 2)}[options["axis"]]
        length: Any = {1: 6, (1, 0): (6, 4), (-2, -1): (4, 6)}[options["axis"]]
        parts = bb.sliding_window(x, size, **options)
        np.testing.assert_array_equal(bb.overlap_add(parts, length, **options).numpy(), x.numpy())


def test_trace_widens_as_sums_do() -> None:
    assert bb.trace(bb.eye(3, dtype="int8")).dtype is bb.int64
    assert bb.eye(3, dtype="bool").trace().item() == 3
    assert bb.trace(bb.eye(3), dtype="float64").dtype is bb.float64


X = bb.zeros((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: X.reshape(4), ShapeError, r"reshape: 6 elements .*\[4\].*float32\[2,3\] \(autodiff\(numpy\)\)"),
        (lambda: X.reshape(-1, 4), ShapeError, r"reshape: no length for -1 .*\[-1, 4\].*float32\[2,3\]"),
        (lambda: bb.zeros((0, 2)).reshape(-1, 0), ShapeError, "reshape: no length for -1"),
        (lambda: X.reshape(-1, -1), ShapeError, "reshape: only one length can be -1"),
        (lambda: X.reshape(2.0, 3), ArgumentError, "reshape: a shape is one integer or several"),
        (lambda: bb.reshape(np.zeros(2), 2), DTypeError, "reshape: takes a tensor, not ndarray"),  # type: ignore[type-var]
        (lambda: X.flatten(start_axis=2), AxisError, r"flatten: axis 2 is out of range.*float32\[2,3\]"),
        (lambda: X.flatten(start_axis=1, end_axis=0), AxisError, "flatten: axis 1 comes after axis 0"),
        (lambda: X.squeeze(0), ShapeError, "squeeze: axis 0 has length 2"),
        (lambda: X.squeeze(5), AxisError, "squeeze: axis 5"),
        (lambda: X.expand_dims(axis=3), AxisError, "expand_dims: axis 3 is out of range"),
        (lambda: X.expand_dims(axis=(0, 0)), AxisError, "expand_dims: .*names one twice"),
        (lambda: X.permute_dims((0,)), AxisError, r"permute_dims: \[0\] is not an order"),
        (lambda: X.permute_dims((0, 2)), AxisError, "permute_dims: axis 2"),
        (lambda: X.moveaxis(0, (0, 1)), AxisError, r"moveaxis: .*\[0\] to \[0, 1\]"),
        (lambda: X.moveaxis((0, 0), (0, 1)), AxisError, "moveaxis: "),
        (lambda: X.swapaxes(0, 2), AxisError, "swapaxes: axis 2"),
        (lambda: bb.zeros(3).T, ShapeError, "T: .*mT"),
        (lambda: X.broadcast_to((3, 2)), ShapeError, r"broadcast_to: .*axis -2 is 2 and 3.*float32\[2,3\]"),
        (lambda: bb.broadcast_arrays(X, bb.zeros(2)), ShapeError, r"broadcast_arrays: .*float32\[2,3\].*float32\[2\]"),
        (lambda: bb.meshgrid(X), ShapeError, "meshgrid: takes one-dimensional"),
        (lambda: bb.meshgrid(bb.zeros(2), indexing="yx"), ArgumentError, "meshgrid: .*'yx'"),
        (lambda: bb.concat([]), ArgumentError, "concat: .*empty"),
        (lambda: bb.concat(X), ArgumentError, "concat: takes a list of tensors"),  # type: ignore[arg-type]
        (lambda: bb.concat([X, bb.zeros(3)]), ShapeError, "concat: the tensors have 2 and 1 dimensions"),
        (lambda: bb.concat([X, bb.zeros((3, 2))]), ShapeError, "concat: the tensors differ in axis 1.*3 and 2"),
        (lambda: bb.concat([X, X], axis=2), AxisError, "concat: axis 2"),
        (lambda: bb.concat([X, 1.0]), DTypeError, "concat: takes a tensor, not float"),  # type: ignore[list-item]
        (lambda: bb.concat([X, X.quantize()]), DTypeError, "concat: .*dequantize"),
        (lambda: bb.stack([X, bb.zeros((3, 2))]), ShapeError, r"stack: .*\[2, 3\] and \[3, 2\]"),
        (lambda: bb.stack([X], axis=4), AxisError, "stack: axis 4 .*3 dimensions of the result"),
        (lambda: X.split(0), ArgumentError, "split: .*not 0"),
        (lambda: X.split([1, 2]), ShapeError, r"split: the sizes \[1, 2\] do not add up to 2"),
        (lambda: X.chunk(0), ArgumentError, "chunk: at least one"),
        (lambda: bb.zeros(0).chunk(-1), ArgumentError, "chunk: at least one chunk, not -1"),
        (lambda: X.unstack(axis=2), AxisError, "unstack: axis 2"),
        (lambda: X.flip(axis=(0, -2)), AxisError, "flip: .*twice"),
        (lambda: X.roll((1, 2, 3), axis=(0, 1)), ArgumentError, "roll: 3 shifts for 2 axes"),
        (lambda: X.roll(1.5), ArgumentError, "roll: shift is one integer or several, not 1.5"),  # type: ignore[arg-type]
        (lambda: X.roll(1, axis="a"), ArgumentError, "roll: axis"),  # type: ignore[arg-type]
        (lambda: X.expand_dims(None), ArgumentError, "expand_dims: axis"),  # type: ignore[arg-type]
        (lambda: X.permute_dims(1.0), ArgumentError, "permute_dims: axes"),  # type: ignore[arg-type]
        (lambda: bb.moveaxis(X, 0, "a"), ArgumentError, "moveaxis: destination"),  # type: ignore[arg-type]
        (lambda: bb.stack(np.array(3)), ArgumentError, "stack: takes a list of tensors, not ndarray"),  # type: ignore[arg-type]
        (lambda: bb.concat(3), ArgumentError, "concat: takes a list of tensors, not int"),  # type: ignore[arg-type]
        (lambda: bb.from_inner(3), DTypeError, "from_inner: takes a tensor, not int"),
        (lambda: bb.to(3, "numpy"), DTypeError, "to: takes a tensor, not int"),
        (lambda: bb.astype(X, X), DTypeError, "not a dtype of backburn"),
        (lambda: X.tile(-1), ShapeError, "tile: "),
        (lambda: X.repeat([1, 2], axis=1), ShapeError, r"repeat: 2 numbers .*3 entries along axis 1 of float32\[2,3\]"),
        (lambda: X.repeat([1, -2], axis=0), ArgumentError, "repeat: "),
        (lambda: X.repeat([1, [2, 3]], axis=0), ArgumentError, "repeat: one integer or several"),  # type: ignore[list-item]
        (lambda: X.repeat([2**62, 2**62], axis=0), ArgumentError, "repeat: 9.22e.18 entries are more than any memory"),
        (lambda: X.repeat(2**62, axis=0), MemoryError, "repeat: "),
        (lambda: X.repeat(1.5), ArgumentError, "repeat: "),  # type: ignore[arg-type]
        (lambda: bb.diag(bb.ones(3), offset="a"), ArgumentError, "diag: offset"),  # type: ignore[arg-type]
        (lambda: X.repeat(bb.asarray([2**63], dtype="uint64")), ArgumentError, "repeat: one integer or several of 0"),
        (lambda: X.pad((1, 2, 3)), ArgumentError, "pad: widths"),
        (lambda: X.pad(-1, mode="edge"), ArgumentError, "pad: .*0 or more"),
        (lambda: X.pad(((0, 0), (-2, -2))), ShapeError, r"pad: the widths \[-2, -2\] cut off more than the 3 "),
        (lambda: X.pad(1, mode="mirror"), ArgumentError, "pad: .*'mirror'"),
        (lambda: X.pad(1, mode="median"), ArgumentError, "pad: .*'median'"),  # a mode of NumPy
        (lambda: bb.zeros((0, 2)).pad(1, mode="edge"), ShapeError, "pad: axis 0 has no element"),
        (lambda: bb.sliding_window(X, 4), ShapeError, "sliding_window: .*4 elements .*axis 1 of 3"),
        (lambda: bb.sliding_window(X, (1, 2)), ArgumentError, "sliding_window: size has 2 numbers for 1 axes"),
        (lambda: bb.sliding_window(X, 2, stride=0), ArgumentError, "sliding_window: .*1 or more"),
        (lambda: bb.overlap_add(X, 9), ShapeError, "overlap_add: "),
        (lambda: bb.overlap_add(X, 4, axis=1), AxisError, "overlap_add: axis 1"),
        (lambda: X.diagonal(axis1=0, axis2=-2), AxisError, "diagonal: .*twice in axis 0"),
        (lambda: bb.zeros(3).trace(), AxisError, "trace: axis -2"),
        (lambda: bb.diag(bb.zeros((1, 1, 1))), ShapeError, "diag: takes a vector or a matrix"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_numbers_may_be_numpys_integers() -> None:
    one: Any = np.int64(1)
    assert len(X.split(one)) == len(X.split(np.asarray(1))) == 2  # type: ignore[arg-type]
    assert bb.one_hot(bb.asarray([0]), one).shape == (1, 1)
    assert bb.tensordot(X, X.T, axes=one).shape == bb.linalg.matrix_power(bb.eye(2), one).shape == (2, 2)
    assert X.expand_dims(one).shape == (2, 1, 3)
    assert bb.moveaxis(X, one, 0).shape == (3, 2)
    assert X.roll(one, axis=one).tolist() == X.roll(1, axis=1).tolist()
    assert X.permute_dims(np.asarray([1, 0])).shape == (3, 2)  # type: ignore[arg-type]


def test_backends_do_not_mix() -> None:
    from backburn_numpy import NumpyBackend

    class Other(NumpyBackend):
        @property
        def spec(self) -> str:
            return "other"

    here, there = (bb.FloatTensor(np.zeros(2), k, bb.float64) for k in (NumpyBackend(), object.__new__(Other)))
    with pytest.raises(BackendMismatchError, match=r"concat: .*float64\[2\] \(numpy\).*\(other\).*\.to\("):
        bb.concat([here, there])


def test_negative_padding_crops() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    x = bb.asarray(values)
    got = x.pad(((-1, 0), (-1, 2), (1, -2)), value=7)
    expected = np.pad(values[1:, 1:, :-2], ((0, 0), (0, 2), (1, 0)), constant_values=7)
    np.testing.assert_array_equal(got.numpy(), expected, strict=True)
    assert x.pad(-1).shape == (0, 1, 2)
    bb.check_grads(lambda t: bb.pad(t, ((0, 0), (-2, 1), (-1, -1))).square(), (x,), order=2)


# ---- diagonals and blocks ----


@pytest.mark.parametrize("offset", [-2, 0, 1])
@pytest.mark.parametrize("axes", [(-2, -1), (0, 1), (2, 0), (-1, 1)])
def test_embedded_diagonals_are_those_of_pytorch(offset: int, axes: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(1.0, 7.0).reshape(2, 3)
    array[1, 2] = np.inf
    got = bb.diag_embed(bb.asarray(array), offset, axis1=axes[0], axis2=axes[1])
    np.testing.assert_array_equal(got.numpy(), torch.diag_embed(torch.as_tensor(array), offset, *axes).numpy())
    np.testing.assert_array_equal(got.diagonal(offset, axis1=axes[0], axis2=axes[1]).numpy(), array)
    bb.check_grads(lambda t: bb.diag_embed(t, offset, axis1=axes[0], axis2=axes[1]) ** 2.0,
                   (bb.ones((2, 3), dtype="float64"),), order=2)  # fmt: skip


def test_diagonals_of_other_dtypes() -> None:
    assert bb.diag_embed(bb.asarray([[True]])).tolist() == [[[True]]]
    assert bb.diag_embed(bb.zeros((2, 0))).shape == (2, 0, 0)
    assert bb.diag_embed(bb.zeros(0), 2).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert bb.vmap(bb.diag_embed)(bb.ones((4, 3))).shape == (4, 3, 3)
    with pytest.raises(ShapeError, match=r"diag_embed: a 0-d tensor has no diagonal"):
        bb.diag_embed(bb.asarray(1.0))
    with pytest.raises(ArgumentError, match=r"diag_embed: the matrices need two axes, not 1 twice"):
        bb.diag_embed(bb.ones(3), axis1=1)
    with pytest.raises(AxisError, match=r"diag_embed: "):
        bb.diag_embed(bb.ones(3), axis1=2)


def test_blocks_along_the_diagonal() -> None:
    blocks = [np.arange(6).reshape(2, 3), np.ones((1, 1)), np.array([7, 8]), np.array(9), np.zeros((0, 2))]
    got = bb.block_diag(*(bb.asarray(x) for x in blocks))
    expected, row, column = np.zeros((5, 9)), 0, 0
    for block in map(np.atleast_2d, blocks):
        expected[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    np.testing.assert_array_equal(got.numpy(), expected)
    assert got.dtype is bb.float64
    assert bb.block_diag(bb.asarray([[True]]), bb.asarray([[True]])).tolist() == [[True, False], [False, True]]
    bb.check_grads(
        lambda x, y: bb.block_diag(x, y) ** 2.0, (bb.asarray(np.ones((2, 1))), bb.asarray(np.ones(2))), order=2
    )
    with pytest.raises(ArgumentError, match="block_diag: there are no tensors to join"):
        bb.block_diag()
    with pytest.raises(ShapeError, match=r"block_diag: blocks have two axes at most. Operands: .*\[1,2,3\]"):
        bb.block_diag(bb.ones((1, 2, 3)))
