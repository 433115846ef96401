"""``x[key]`` and ``x.at[key]`` against NumPy, on keys of every type."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ImmutableError, OutOfRangeError, ShapeError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
MASK = X % 5 < 2

KEYS: list[Any] = [
    0, -1, (1, 2), (1, 2, 3), (), ..., None, (None, 0), (..., 0), (0, ...), (..., None), (0, ..., None, 1),
    slice(None), slice(1, None), (slice(None), slice(None, None, -1)), (0, slice(2, None, -2)), (slice(0, 0),),
    (slice(None), slice(5, 1)), (slice(None), slice(1, 5, -1)),
    [1, 0], [[0], [1]], [], [[], []], (slice(None), [2, 0]), (0, [2, 0]), (slice(None), 1, [0, 3]), ([0, 1], [1, 2]),
    ([0, 1], slice(None), [1, 2]), (0, slice(None), [1, 2]), (slice(None), [0, 1], [[1], [2]]), ([0, 1], ..., [1, 2]),
    (slice(None), [0, 1], ..., 2), (None, [0, 1], None, [1, 2]), ([0, 1], None, slice(None)),
    (..., [0, 1], None), (slice(None), None, [0, 1], [1, 2]),
    MASK, MASK[0, :, 0], (slice(None), MASK[0, :, 0]), (MASK[0, :, 0].nonzero()[0][:1], 0), (0, MASK[0]),
    (slice(None), MASK[0]), (MASK[:, :, 0], [0, 1]), (MASK[:, 0, 0], None, [1]), [True, False],
    (0, [True, False, True]), np.int64(1), np.array(1), (np.array([0, 1]), 0),
    range(2), (slice(None), (2, 0)), (slice(None), range(0, 3, 2)), ((0, 1), (1, 2)), (slice(None), ()),
]  # fmt: skip


def as_numpy(key: Any) -> Any:
    """Return the key with lists as arrays, so that NumPy reads them as such anywhere in it."""
    if isinstance(key, tuple):
        return tuple(k if isinstance(k, tuple) else as_numpy(k) for k in key)
    if isinstance(key, list):
        return np.array(key, bool if key and isinstance(key[0], bool) else int)
    return key


def as_ours(key: Any) -> Any:
    """Return the key with bool arrays as tensors."""
    if isinstance(key, tuple):
        return tuple(as_ours(k) for k in key)
    return bb.asarray(key) if isinstance(key, np.ndarray) and key.dtype == bool else key


def legible(keys: list[Any]) -> list[Any]:
    return [pytest.param(k, id=str(i)) for i, k in enumerate(keys) if is_valid(k)]


def is_valid(key: Any) -> bool:
    """Whether NumPy accepts the key."""
    try:
        X[as_numpy(key)]
    except IndexError:
        return False
    return True


def test_almost_all_keys_are_valid() -> None:
    assert sum(is_valid(k) for k in KEYS) >= len(KEYS) - 3


@pytest.mark.parametrize("key", legible(KEYS))
def test_reading_is_numpys(key: Any) -> None:
    for array in (X, X.astype(np.int64), X > 5):
        got, expected = bb.asarray(array)[as_ours(key)], array[as_numpy(key)]
        assert got.shape == np.shape(expected)
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("key", legible(KEYS))
@pytest.mark.parametrize("how", ["set", "add", "multiply", "min", "max"])
def test_writing_is_numpys(key: Any, how: str) -> None:
    place = as_numpy(key)
    shape = np.shape(X[place])
    values = -np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for value in (values, values[..., :1] if shape and shape[-1] else values, np.float32(3.0)):
        expected = X.copy()
        wide = np.broadcast_to(value, shape).copy()
        if how == "set":
            expected[place] = wide
        else:
            ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}[how]
            ufunc.at(expected, place, wide)
        got = getattr(bb.asarray(X).at[as_ours(key)], how)(bb.asarray(value) if np.ndim(value) else float(value))
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("key", legible(KEYS))
def test_gradients_of_reading_and_writing(key: Any) -> None:
    """Reading adds up the cotangents of an element's copies; ``add`` passes them on to the tensor and the value."""
    ours, theirs = as_ours(key), as_numpy(key)
    x = bb.asarray(X).require_grad()
    shape = np.shape(X[theirs])
    weights = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    expected = np.zeros_like(X)
    np.add.at(expected, theirs, weights)
    np.testing.assert_array_equal(x.grad((x[ours] * bb.asarray(weights)).backward()).numpy(), expected)  # type: ignore[union-attr]
    value = bb.asarray(np.zeros(shape, np.float32)).require_grad()
    gradients = (x.at[ours].add(value) * bb.asarray(X)).backward()
    np.testing.assert_array_equal(x.grad(gradients).numpy(), X)  # type: ignore[union-attr]
    np.testing.assert_array_equal(value.grad(gradients).numpy(), X[theirs])  # type: ignore[union-attr]


def random_key(chooser: random.Random, shape: tuple[int, ...]) -> Any:
    """Return a random key of slices, integers, new axes, an Ellipsis and arrays."""
    key: list[Any] = []
    for n in shape[: chooser.randrange(len(shape) + 1)]:
        ends = [None, *range(-n - 2, n + 3)]
        key.append(
            chooser.choice(
                [
                    chooser.randrange(-n, n),
                    slice(chooser.choice(ends), chooser.choice(ends), chooser.choice([None, 1, 2, -1, -3])),
                    np.array([chooser.randrange(-n, n) for _ in range(3)]).reshape(chooser.choice([(3,), (3, 1)])),
                    np.array([chooser.random() < 0.5 for _ in range(n)]),
                    np.array([chooser.randrange(-n, n)]),
                ]
            )
        )
    for extra in (None, ...):
        if chooser.random() < 0.4:
            key.insert(chooser.randrange(len(key) + 1), extra)
    return tuple(key)


@pytest.mark.parametrize("seed", range(300))
def test_random_keys(seed: int) -> None:
    chooser = random.Random(seed)
    shape = tuple(chooser.choice([1, 2, 3, 4]) for _ in range(chooser.randrange(1, 5)))
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    key = random_key(chooser, shape)
    if len([k for k in key if k is ...]) == 0 and chooser.random() < 0.3:
        key = (*key, ...)
    x, place = bb.asarray(array), tuple(bb.asarray(k) if isinstance(k, np.ndarray) else k for k in key)
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises((ShapeError, OutOfRangeError)):
            _ = x[place]
        return
    np.testing.assert_array_equal(x[place].numpy(), expected, strict=True)
    changed = array.copy()
    changed[key] = -1.0
    np.testing.assert_array_equal(x.at[place].set(-1.0).numpy(), changed)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("key", "index", "axis", "length"),
    [([0, 9], 9, 0, 2), ((slice(None), [0, -4]), -4, 1, 3), ((1, [0], [5]), 5, 2, 4), (([0, 1], [1, 3]), 3, 1, 3)],
)
@pytest.mark.parametrize("how", ["set", "add", "max"])
def test_a_position_out_of_range_is_named_by_its_own_axis(key, index, axis, length, how) -> None:
    x = bb.ones((2, 3, 4))
    words = rf"x\.at\[\.\.\.\]: index {index} is out of range for axis {axis}, which has {length} elements"
    with pytest.raises(OutOfRangeError, match=words):
        getattr(x.at[key], how)(1.0)
    with pytest.raises(OutOfRangeError, match=rf"{index} is out of (range|bounds).* axis"):
        x[key]


def test_out_of_range_names_axis_and_length() -> None:
    x = bb.asarray(X)
    with pytest.raises(
        OutOfRangeError, match=r"index 3 is out of range for axis 1, which has 3 elements.*float32\[2,3,4\]"
    ):
        _ = x[0, 3]
    with pytest.raises(OutOfRangeError, match=r"take: .*axis=1"):
        _ = x[:, [0, 3]]
    with pytest.raises(OutOfRangeError, match=r"index -4 is out of range for axis 1"):
        _ = x[[0, 1], [0, -4]]
    with pytest.raises(OutOfRangeError):
        x.at[:, [0, 3]].set(0.0)
    with pytest.raises(OutOfRangeError):
        x.at[[2]].max(0.0)


def test_too_many_indices() -> None:
    with pytest.raises(AxisError, match=r"4 indices for 3 axes.*float32\[2,3,4\]"):
        _ = bb.asarray(X)[0, 0, 0, 0]
    with pytest.raises(AxisError, match="only one Ellipsis"):
        _ = bb.asarray(X)[..., 0, ...]
    with pytest.raises(AxisError, match="1 indices for 0 axes"):
        _ = bb.asarray(1.0)[0]


def test_indices_of_wrong_types() -> None:
    x = bb.asarray(X)
    for key in (1.0, "a", [0.5], bb.asarray([1.0]), object(), (0, "b")):
        with pytest.raises(DTypeError, match=r"x\[...\]: "):
            _ = x[key]
    np.testing.assert_array_equal(x[True, 0].numpy(), X[True, 0])
    with pytest.raises(DTypeError, match="at axis 0"):
        _ = x["a":"b"]
    with pytest.raises(ArgumentError, match="at axis 0: slice step cannot be zero"):
        _ = x[::0]


@pytest.mark.parametrize("truth", [True, False])
def test_a_single_bool_as_an_index_adds_an_axis(truth: bool) -> None:
    for array in (X, np.asarray(3.5)):
        x = bb.asarray(array)
        for key in (truth, bb.asarray(truth), np.asarray(truth), np.bool_(truth)):
            got = x[key]
            assert got.shape == array[truth].shape
            assert got.tolist() == array[truth].tolist()
            expected = array.copy()
            expected[truth] = 7
            assert x.at[key].set(7).tolist() == expected.tolist()


def test_a_mask_of_length_zero_chooses_nothing() -> None:
    x = bb.asarray(X)
    for shape in ((0,), (0, X.shape[1])):
        mask = np.zeros(shape, bool)
        assert x[bb.asarray(mask)].shape == X[mask].shape
        assert x.at[bb.asarray(mask)].set(1).tolist() == X.tolist()


def test_masks_must_fit_their_axes() -> None:
    with pytest.raises(
        AxisError, match=r"truth values of shape \[3\] cannot choose from axes of the lengths \[2\], from axis 0"
    ):
        _ = bb.asarray(X)[[True, False, True]]


def test_indices_must_broadcast() -> None:
    with pytest.raises(ShapeError, match="do not broadcast"):
        _ = bb.asarray(X)[[0, 1], [0, 1, 2]]


def test_values_must_fit() -> None:
    x = bb.asarray(X)
    with pytest.raises(
        ShapeError, match=r"value of shape \[2\] does not broadcast to the indexed elements of shape \[3, 4\]"
    ):
        x.at[0].set(bb.asarray([1.0, 2.0]))
    with pytest.raises(ShapeError, match=r"value of shape \[1, 4\] does not broadcast"):
        x.at[0, 0].set(bb.asarray([[1.0, 2.0, 3.0, 4.0]]))
    with pytest.raises(DTypeError, match="does not fit into int64"):
        bb.asarray([1, 2]).at[0].set(0.5)
    with pytest.raises(DTypeError, match="float32 values do not fit into int64"):
        bb.asarray([1, 2]).at[0].set(bb.asarray(0.5))
    with pytest.raises(DTypeError, match="truth values are set"):
        bb.asarray([True]).at[0].add(True)
    assert bb.asarray([True, True]).at[0].set(False).tolist() == [False, True]
    assert bb.asarray([1.0]).at[0].set(bb.asarray(3)).tolist() == [3.0]


def test_tensors_are_immutable() -> None:
    x = bb.asarray([1.0, 2.0])
    with pytest.raises(ImmutableError, match=r"x\.at\[i\]\.set"):
        x[0] = 3.0  # type: ignore[index]
    words = r"^x\[i\] = v: tensors are never changed: .* Operands: float32\[2\] .*, int64\[\] .*\. Index: \(slice"
    with pytest.raises(ImmutableError, match=words):
        x[1:, None] = bb.asarray(3)  # type: ignore[index]
    with pytest.raises(ImmutableError, match=r"x\.at\[i\]\.add\(v\)"):
        x[0] += 1.0  # type: ignore[index]
    with pytest.raises(ImmutableError, match=r"^del x\[i\]: .* bb\.concat\(.* Operand: float32\[2\] .*\. Index: 0$"):
        del x[0]  # type: ignore[attr-defined]
    x.at[0].set(3.0)
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_at_without_an_index_shows_the_right_call(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"here: x\.at\[index\]\.{name}\(value\)$"):
        getattr(bb.ones(2).at, name)(3.0)


def test_tensors_as_ends_of_slices_and_as_indices() -> None:
    x, one = bb.asarray(X), bb.asarray(1)
    np.testing.assert_array_equal(x[0, one:, one].numpy(), X[0, 1:, 1])
    np.testing.assert_array_equal(x[one].numpy(), X[1])


def test_iteration() -> None:
    assert [row.tolist() for row in bb.asarray([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]


def test_writing_at_false_checks_shapes_and_writes_nothing() -> None:
    x = bb.asarray([1.0, 2.0])
    assert x[False].shape == (0, 2)
    for value in (bb.zeros((0, 2)), bb.zeros((2,)), 5.0):
        assert x.at[False].set(value).tolist() == [1.0, 2.0]
    with pytest.raises(ShapeError, match=r"the indexed elements of shape \[0, 2\]"):
        x.at[False].set(bb.zeros((3,)))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0])
@pytest.mark.parametrize("how", ["set", "add", "multiply"])
def test_one_value_where_a_mask_is_true_leaves_other_gradients_alone(how: str, value: float) -> None:
    x, mask = bb.asarray([[1.0, 2.0], [3.0, 4.0]]), bb.asarray([True, False])
    for v in (value, bb.asarray(value)):
        gradient = bb.grad(lambda x, v=v: getattr(x.at[mask], how)(v).sum())(x)
        assert gradient[1].tolist() == [1.0, 1.0]
    of_value = bb.grad(lambda v: (getattr(x.at[mask], how)(v)).sum())(bb.asarray(2.0))
    assert of_value.item() == {"set": 2.0, "add": 2.0, "multiply": 3.0}[how]


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4,), (4, 2, 3)])
@pytest.mark.parametrize("dtype", [bb.float32, bb.int64, bb.bool])
def test_iterating_equals_indexing(shape: tuple[int, ...], dtype: Any) -> None:
    x = (bb.arange(math.prod(shape), dtype=bb.int64).reshape(shape) % 3).astype(dtype)
    entries: list[Any] = list(x)
    assert len(entries) == shape[0]
    for i, entry in enumerate(entries):
        assert entry.shape == shape[1:]
        assert entry.dtype is dtype
        assert entry.tolist() == x[i].tolist()
