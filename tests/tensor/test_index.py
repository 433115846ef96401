"""Tensor functions: reading and writing by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError

REAL = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
ARRAYS = {"float32": REAL, "int64": np.arange(6).reshape(2, 3), "bool": np.arange(6).reshape(2, 3) % 2 == 0}


@pytest.mark.parametrize("dtype", ARRAYS)
@pytest.mark.parametrize(("indices", "axis"), [([2, 0, -1], 1), ([[1], [0]], 0), (-1, -1), ([], 1)])
def test_take(dtype: str, indices: Any, axis: int) -> None:
    x = bb.asarray(ARRAYS[dtype])
    index = np.array(indices, np.int64)
    got = bb.take(x, bb.asarray(index), axis=axis)
    expected = np.take(ARRAYS[dtype], index, axis)
    assert got.dtype is x.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(x.take(bb.asarray(index.astype(np.int8)), axis=axis).numpy(), expected)


def test_take_of_one_axis_and_its_gradient() -> None:
    x = bb.asarray([1.0, 2.0, 3.0]).require_grad()
    y = bb.take(x, bb.asarray([2, 2, 0]))
    assert y.tolist() == [3.0, 3.0, 1.0]
    assert x.grad(y.backward()).tolist() == [1.0, 0.0, 2.0]  # type: ignore[union-attr]


def test_take_without_an_axis_indexes_the_flattened_tensor() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    for index in (np.array([[0, 23], [-1, 7]]), np.array(5), np.zeros((0, 2), np.int64)):
        got = bb.asarray(values).take(bb.asarray(index))
        np.testing.assert_array_equal(got.numpy(), np.take(values, index), strict=True)
    assert bb.take(bb.asarray(3.0), bb.asarray([0, -1])).tolist() == [3.0, 3.0]
    assert bb.asarray([[1.0, 2.0]]).quantize().take(bb.asarray([1])).shape == (1,)
    bb.check_grads(lambda t: t.take(bb.asarray([1, 7, 1])).square(), (bb.asarray(values),), order=2)


def test_what_take_refuses() -> None:
    x = bb.asarray(REAL)
    with pytest.raises(OutOfRangeError, match=r"take: .*float32\[6\]"):
        bb.take(x, bb.asarray([6]))
    with pytest.raises(AxisError, match="take: axis 2 is out of range"):
        bb.take(x, bb.asarray([0]), axis=2)
    with pytest.raises(OutOfRangeError, match=r"take: .*axis=1"):
        bb.take(x, bb.asarray([3]), axis=1)
    with pytest.raises(DTypeError, match=r"take: indices are integers, not float32\[1\].*astype"):
        bb.take(x, bb.asarray([0.0]), axis=0)


def test_take_along_axis_broadcasts() -> None:
    x = bb.asarray(REAL)
    for index, axis in (([[2, 0], [1, -1]], 1), ([[1, 0, 1]], 0), ([[2]], -1)):
        expected = np.take_along_axis(REAL, np.array(index), axis)
        np.testing.assert_array_equal(bb.take_along_axis(x, bb.asarray(index), axis=axis).numpy(), expected)
    row = bb.asarray(REAL[:1])
    got = row.take_along_axis(bb.asarray([[0], [2]]), axis=1)
    np.testing.assert_array_equal(got.numpy(), [[0.0], [0.5]])
    with pytest.raises(ShapeError, match="take_along_axis: both operands need as many axes"):
        bb.take_along_axis(x, bb.asarray([0]), axis=0)
    with pytest.raises(ShapeError, match=r"take_along_axis|gather|broadcast"):
        bb.take_along_axis(x, bb.asarray([[0], [0], [0]]), axis=1)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("assign", [1.0, 30.0, 3.0]), ("add", [1.0, 52.0, 3.0]), ("mul", [1.0, 1200.0, 3.0]), ("min", [1.0, 2.0, 3.0]),
     ("max", [1.0, 30.0, 3.0])],
)  # fmt: skip
def test_scatter(mode: str, expected: Any) -> None:
    x, values = bb.asarray([1.0, 2.0, 3.0]), bb.asarray([20.0, 30.0])
    got = bb.scatter(x, bb.asarray([1, 1]), values, axis=0, mode=mode)
    assert got.tolist() == expected
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert x.scatter(bb.asarray([1]), 4, axis=0, mode=mode).dtype is bb.float32


def test_what_scatter_refuses() -> None:
    x = bb.asarray([1, 2, 3])
    with pytest.raises(ArgumentError, match=r"scatter: mode is one of 'assign', 'add', .*'max', 'mean', not 'sub'"):
        bb.scatter(x, bb.asarray([0]), 1, axis=0, mode="sub")
    with pytest.raises(ArgumentError, match=r"not 'amax'; use 'max'\. Operand: int64\[3\]"):
        bb.scatter(x, bb.asarray([0]), 1, axis=0, mode="amax")
    with pytest.raises(DTypeError, match=r"scatter: the number 1.5 does not fit into int64"):
        bb.scatter(x, bb.asarray([0]), 1.5, axis=0)
    with pytest.raises(DTypeError, match="scatter: float32 values do not fit into int64"):
        bb.scatter(x, bb.asarray([0]), bb.asarray([1.5]), axis=0)
    with pytest.raises(ShapeError, match=r"scatter: there are .* indices"):
        bb.scatter(x, bb.asarray([0, 1]), bb.asarray([1, 2, 3]), axis=0)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64", "float16"])
@pytest.mark.parametrize("count", [0, 1, 3, 2000])
def test_elements_added_to_a_vector(dtype: str, count: int) -> None:
    """Add a number, or one value per index, also where integers wrap and where the vector outnumbers the indices."""
    places = np.random.default_rng(0).integers(-5, 5, count)
    values = np.random.default_rng(1).integers(0, 4, count).astype(dtype)
    index, x = bb.asarray(places), bb.asarray(np.arange(5), dtype=dtype)
    for value, given in ((values, bb.asarray(values)), (3, 3)):
        expected = np.arange(5).astype(dtype)
        np.add.at(expected, places, value)
        got = bb.index_add(x, index, given, axis=0)
        assert got.dtype is x.dtype
        np.testing.assert_array_equal(got.numpy(), expected)
        np.testing.assert_array_equal(x.at[index].add(given).numpy(), expected)


def test_index_add_and_copy() -> None:
    x, index = bb.asarray(REAL), bb.asarray([0, 0])
    values = bb.asarray([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    expected = REAL.copy()
    expected[0] += [11, 22, 33]
    np.testing.assert_array_equal(bb.index_add(x, index, values, axis=0).numpy(), expected)
    np.testing.assert_array_equal(x.index_add(index, values, axis=-2).numpy(), expected)
    expected[0] = [10, 20, 30]
    np.testing.assert_array_equal(x.index_copy(index, values, axis=0).numpy(), expected)
    assert x.index_copy(bb.asarray([1]), 7, axis=1).tolist() == [[0.0, 7.0, 0.5], [0.75, 7.0, 1.25]]
    with pytest.raises(OutOfRangeError, match="index_add"):
        bb.index_add(x, bb.asarray([0, 2]), values, axis=0)


def test_gradients_of_writes() -> None:
    x, v = bb.asarray([1.0, 2.0]).require_grad(), bb.asarray([3.0, 4.0]).require_grad()
    gradients = (bb.index_copy(x, bb.asarray([0, 0]), v, axis=0) * bb.asarray([5.0, 7.0])).backward()
    assert x.grad(gradients).tolist() == [0.0, 7.0]  # type: ignore[union-attr]
    assert v.grad(gradients).tolist() == [0.0, 5.0]  # type: ignore[union-attr]


def test_gather_nd_and_scatter_nd() -> None:
    x = bb.asarray(REAL)
    places = bb.asarray([[0, 2], [1, -3]])
    np.testing.assert_array_equal(bb.gather_nd(x, places).numpy(), REAL[[0, 1], [2, -3]])
    np.testing.assert_array_equal(bb.gather_nd(x, bb.asarray([[1]])).numpy(), REAL[[1]])
    expected = REAL.copy()
    expected[[0, 1], [2, -3]] += 8
    np.testing.assert_array_equal(bb.scatter_nd(x, places, 8.0, mode="add").numpy(), expected)
    for tracked in (x, x.require_grad()):
        with pytest.raises(OutOfRangeError, match="gather_nd: index 7 is out of range for axis 1, which has 3"):
            bb.gather_nd(tracked, bb.asarray([[0, 1], [0, 7]]))
        with pytest.raises(OutOfRangeError, match="scatter_nd: index -9 is out of range for axis 0"):
            bb.scatter_nd(tracked, bb.asarray([[-9]]), 8.0)
    with pytest.raises(ArgumentError, match="scatter_nd: mode is one of"):
        bb.scatter_nd(x, places, 8.0, mode="or")


@pytest.mark.parametrize("mode", ["add", "mul", "min", "max", "mean"])
@pytest.mark.parametrize("include_self", [False, True])
def test_scatter_with_and_without_the_previous_values(mode: str, include_self: bool) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(3)
    values, places = generator.normal(size=(3, 4)), generator.integers(0, 5, (3, 4))
    there = generator.normal(size=(3, 5))
    named = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax", "mean": "mean"}[mode]
    leaves = [torch.tensor(a, requires_grad=True) for a in (there, values)]
    expected = leaves[0].scatter_reduce(1, torch.tensor(places), leaves[1], named, include_self=include_self)
    slopes = torch.autograd.grad(expected.square().sum(), leaves)

    def scattered(x: Any, y: Any) -> Any:
        return bb.scatter(x, bb.asarray(places), y, axis=1, mode=mode, include_self=include_self)

    x, y = bb.asarray(there), bb.asarray(values)
    np.testing.assert_allclose(scattered(x, y).numpy(), expected.detach().numpy(), rtol=1e-13, strict=True)
    got = bb.grad(lambda x, y: scattered(x, y).square().sum(), (0, 1))(x, y)
    for ours, theirs in zip(got, slopes, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-13, strict=True)
    bb.check_grads(scattered, (x, y), order=2)
    rows = np.stack([np.arange(3).repeat(4), places.ravel()], 1)
    listed = bb.scatter_nd(x, bb.asarray(rows), y.reshape(-1), mode=mode, include_self=include_self)
    np.testing.assert_allclose(listed.numpy(), expected.detach().numpy(), rtol=1e-13)
    half = bb.scatter(x.astype("float16"), bb.asarray(places), y.astype("float16"), axis=1, mode=mode)
    assert half.dtype is bb.float16
    if mode != "mean":
        got = bb.scatter(bb.asarray([5, 6]), bb.asarray([0, 0]), 4, axis=0, mode=mode, include_self=include_self)
        counts = {"add": 8, "mul": 16, "min": 4, "max": 4}[mode]
        whole = {"add": counts + 5, "mul": counts * 5, "min": 4, "max": 5}[mode]
        assert got.tolist() == [whole if include_self else counts, 6]


def test_scatter_means_need_floats() -> None:
    with pytest.raises(DTypeError, match=r"scatter: a mean needs floats; cast .*int64"):
        bb.scatter(bb.asarray([1, 2]), bb.asarray([0]), 1, axis=0, mode="mean")
    unsigned = bb.asarray([1, 2], dtype="uint8")
    assert unsigned.scatter(bb.asarray([0]), 200, axis=0, mode="min", include_self=False).tolist() == [200, 2]


@pytest.mark.parametrize("write", [bb.scatter, bb.scatter_nd])
def test_scattering_a_product_of_bools_is_refused(write: Any) -> None:
    options = {"axis": 0} if write is bb.scatter else {}
    with pytest.raises(DTypeError, match=f"{write.__name__}: "):
        write(bb.asarray([True, False]), bb.asarray([0]), True, mode="mul", **options)


@pytest.mark.parametrize(
    ("mode", "of_x", "of_values"),
    [
        ("mul", [[1.0, 0.0], [35.0, 1.0]], [6.0, 20.0, 28.0]),
        ("min", [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0, 0.0]),
        ("max", [[1.0, 1.0], [0.0, 1.0]], [0.0, 0.0, 1.0]),
    ],
)
def test_gradients_of_entries_that_are_combined(mode: str, of_x: Any, of_values: Any) -> None:
    x = bb.asarray([[2.0, 6.0], [4.0, 8.0]]).require_grad()
    values = bb.asarray([0.0, 7.0 if mode == "mul" else 3.0, 5.0]).require_grad()
    gradients = bb.scatter_nd(x, bb.asarray([[0, 1], [1, 0], [-1, 0]]), values, mode=mode).backward()
    assert x.grad(gradients).tolist() == of_x  # type: ignore[union-attr]
    assert values.grad(gradients).tolist() == of_values  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ARRAYS)
def test_nonzero(dtype: str) -> None:
    got = bb.asarray(ARRAYS[dtype]).nonzero()
    expected = np.nonzero(ARRAYS[dtype])
    assert len(got) == 2
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype is bb.int64
        np.testing.assert_array_equal(mine.numpy(), theirs)
    with pytest.raises(ShapeError, match="nonzero: a 0-d tensor has no axis"):
        bb.nonzero(bb.asarray(1.0))


def test_one_hot() -> None:
    x = bb.asarray([[0, 2], [1, 1]])
    np.testing.assert_array_equal(bb.one_hot(x, 3).numpy(), np.eye(3, dtype=np.int64)[x.numpy()])
    assert bb.one_hot(x, 3, dtype="float32").dtype is bb.float32
    assert isinstance(bb.one_hot(x, 3, dtype=bool), bb.BoolTensor)
    with pytest.raises(OutOfRangeError, match="one_hot"):
        bb.one_hot(x, 2)
    with pytest.raises(ArgumentError, match="one_hot: num_classes"):
        bb.one_hot(x, -1)
    np.testing.assert_array_equal(bb.one_hot(x).numpy(), bb.one_hot(x, 3).numpy(), strict=True)
    assert bb.one_hot(bb.asarray(0, dtype="uint8"), dtype="float32").tolist() == [1.0]
    for count in (None, 3):
        with pytest.raises(OutOfRangeError, match=r"one_hot: the index -1 names none of the . classes, .*int64\[2\]"):
            bb.one_hot(bb.asarray([0, -1]), count)
    with pytest.raises(ArgumentError, match=r"one_hot: num_classes must be given for an empty tensor. .*int64\[0\]"):
        bb.one_hot(bb.asarray([], dtype="int64"))
    with pytest.raises(DTypeError, match="one_hot: indices are integers"):
        bb.one_hot(bb.asarray([0.5]), 2)


@pytest.mark.parametrize("name", ["index_add", "index_copy", "scatter"])
def test_the_axis_before_the_indices_is_refused(name: str) -> None:
    x, indices, values = bb.zeros((3, 2)), bb.asarray([0, 2]), bb.ones((2, 2))
    if name == "scatter":
        indices = bb.asarray([[0, 1], [2, 0]])
    function, method = getattr(bb, name), getattr(x, name)
    words = rf"^{name}: the axis comes last: {name}\(x, indices, values, axis=0\)$"
    for call in (lambda: method(0, indices, values), lambda: function(x, 0, indices, values)):
        with pytest.raises(ArgumentError, match=words):
            call()
    np.testing.assert_array_equal(method(indices, values, 0).numpy(), function(x, indices, values, axis=0).numpy())
    for options, hint in (({"alpha": 2.0}, "multiply the values"), ({"reduce": "sum"}, "mode='add'"), ({}, "at most")):
        with pytest.raises(TypeError, match=hint):
            method(indices, values, *([0, 1] if not options else [0]), **options)
    with pytest.raises(DTypeError, match=f"{name}: takes a tensor, not str"):
        method("0", values, 0)


# ---- index_reduce ----

REDUCTIONS = {"mul": "prod", "mean": "mean", "min": "amin", "max": "amax"}


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_entries_reduced_by_index_are_those_of_pytorch(mode: str, include_self: bool, axis: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    x, indices = rng.normal(size=(4, 5, 3)), np.array([2, 0, 2, 2, -1 % 3])
    shape = [4, 5, 3]
    shape[axis] = indices.size
    values = rng.normal(size=shape)
    places = (torch.as_tensor(t) for t in (indices, values))
    expected = torch.as_tensor(x).index_reduce(axis, *places, reduce=REDUCTIONS[mode], include_self=include_self)
    given = (bb.asarray(indices), bb.asarray(values))
    got = bb.asarray(x).index_reduce(*given, axis=axis, mode=mode, include_self=include_self)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-14)
    bb.check_grads(
        lambda t, v: bb.index_reduce(t, given[0], v, axis, mode, include_self=include_self),
        (bb.asarray(x), given[1]), order=2,
    )  # fmt: skip
    rows = bb.vmap(lambda t: bb.index_reduce(t, bb.asarray([1, 1]), 2.0, axis=0, mode=mode))(bb.asarray(x[0]))
    assert rows.shape == (5, 3)


def test_integers_and_numbers_reduced_by_index() -> None:
    x, indices = bb.asarray([1, 2, 3]), bb.asarray([0, 0, 2])
    assert bb.index_reduce(x, indices, bb.asarray([5, 7, 1]), axis=0, mode="max").tolist() == [7, 2, 3]
    assert bb.index_reduce(x, indices, 2, axis=0, mode="mul").tolist() == [4, 2, 6]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: bb.index_reduce(x, bb.asarray([0.5]), 1.0, axis=0, mode="mul"), DTypeError, "index_reduce: "),
        (lambda x: bb.index_reduce(x, bb.asarray([[0]]), 1.0, axis=0, mode="mul"), ShapeError, "indices have one axis"),
        (lambda x: bb.index_reduce(x, bb.asarray([0]), x, axis=0, mode="mul"), ShapeError, r"have the shape \[1, 2\]"),
        (
            lambda x: bb.index_reduce(x, bb.asarray([0]), 1.0, axis=0, mode="prod"),
            ArgumentError,
            "mode is one of 'mul'",
        ),
        (
            lambda x: bb.index_reduce(x, bb.asarray([9]), 1.0, axis=0, mode="mul"),
            IndexError,
            "index_reduce: index 9 is out",
        ),
        (
            lambda x: bb.index_reduce(x.astype("int64"), bb.asarray([0]), 1, axis=0, mode="mean"),
            DTypeError,
            "index_reduce: a mean needs floats",
        ),
    ],
)
def test_what_index_reduce_refuses(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(bb.ones((3, 2)))
