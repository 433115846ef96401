"""Operations of the backend itself, whose operands no tensor has checked: other shapes and dtypes read no other memory.

A read beyond an array ends the process, and so fails the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels
from tests.helpers.pages import at_the_end, needs_pages

from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.conformance.samples import SAMPLES, Sample
from backburn.conformance.samples.calls import arrays
from backburn_numpy import NumpyBackend, tuning
from backburn_numpy.implements import IMPLEMENTATIONS

K = NumpyBackend()
CALLS = 12


def _resized(x: Any, draw: random.Random, change: Callable[[int], int]) -> Any:
    axis = draw.randrange(x.ndim)
    shape = [change(n) if i == axis else n for i, n in enumerate(x.shape)]
    return np.resize(x, shape) if x.size and all(shape) else np.empty(shape, x.dtype)


def _changed(x: Any, draw: random.Random) -> Any:
    """An array of another shape or dtype."""
    kinds: list[Callable[[], Any]] = [
        lambda: x.astype(np.float64 if x.dtype == np.float32 else np.float32),
        lambda: x.astype(np.int64 if x.dtype.kind == "f" else np.int32),
        lambda: x[None],
        lambda: np.resize(x, (3,)) if x.size else x,
        lambda: np.resize(x, ()) if x.size else x,
    ]
    if x.ndim:
        changes: tuple[Callable[[int], int], ...] = (lambda n: max(0, n - 1), lambda n: n // 2, lambda n: 1)
        kinds += [lambda change=change: _resized(x, draw, change) for change in changes]  # type: ignore[misc]
        kinds.append(lambda: np.ascontiguousarray(x.swapaxes(0, -1)))
    return draw.choice(kinds)()


def _places(sample: Sample, dtype: str) -> tuple[list[Any], list[tuple[list[Any], int]]]:
    """The operands of a sample, and where among them the arrays are: lists and positions in these."""
    operands = [list(x) if isinstance(x, list) else x for x in arrays(sample, dtype)]
    places = [(operands, i) for i, x in enumerate(operands) if isinstance(x, np.ndarray)]
    places += [(x, i) for x in operands if isinstance(x, list) for i, y in enumerate(x) if isinstance(y, np.ndarray)]
    return operands, places


def _call(name: str, operands: list[Any], attributes: Any) -> None:
    """Call an operation with operands at the ends of pages; it may raise any error."""

    def held(x: Any) -> Any:
        if isinstance(x, list):
            return [*map(held, x)]
        if isinstance(x, np.ndarray):
            return at_the_end(x) if x.size else x
        return x.on(K) if hasattr(x, "on") else x

    given = [*map(held, operands)]
    try:
        with np.errstate(all="ignore"):
            getattr(K, name)(*given, **attributes)
    except Exception:  # any error is right, and so is a result
        pass


@pytest.fixture
def few_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few elements take the paths of many."""
    for least in dir(tuning):
        if least.startswith("MIN_") and isinstance(getattr(tuning, least), int):
            monkeypatch.setattr(tuning, least, 1)
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_KERNEL", {})


def each_operation(test: Any) -> Any:
    """Call a test with the name of each operation of the backend's own."""
    named = pytest.mark.parametrize("name", sorted(IMPLEMENTATIONS.keys() & {*SAMPLES}))
    few = pytest.mark.usefixtures("few_as_many")
    return needs_kernels(needs_pages(pytest.mark.filterwarnings("ignore")(few(named(test)))))


@each_operation
def test_no_memory_beyond_the_operands_is_read(name: str) -> None:
    draw = random.Random(name)
    samples = [sample for sample in SAMPLES[name].cases if sample.operands]
    for i in range(CALLS if samples else 0):
        sample = draw.choice(samples)
        operands, places = _places(sample, ("float32", "float64")[i % 2])
        if places:
            within, at = draw.choice(places)
            within[at] = _changed(within[at], draw)
            _call(name, operands, sample.attributes)


#: What may be given in place of an array: one of another dtype, a scalar of NumPy, a number and nothing.
OTHERS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x.astype(np.float16), lambda x: x.astype(np.float64), lambda x: x.astype(np.bool_),
    lambda x: x.flat[0], lambda x: x.flat[0].item(), lambda x: None,
)  # fmt: skip


@each_operation
def test_operands_of_other_types_read_no_other_memory(name: str) -> None:
    for sample in SAMPLES[name].cases[:2]:
        for at in range(len(_places(sample, "float32")[1])):
            for other in OTHERS:
                operands, places = _places(sample, "float32")
                within, i = places[at]
                if within[i].size:
                    within[i] = other(within[i])
                    _call(name, operands, sample.attributes)


@each_operation
def test_axes_from_the_end_read_no_other_memory(name: str) -> None:
    for sample in [sample for sample in SAMPLES[name].cases if "axis" in sample.attributes][:4]:
        operands, places = _places(sample, "float32")
        if places:
            several = isinstance(sample.attributes["axis"], tuple)
            for axis in range(-max(within[i].ndim for within, i in places), 0):
                _call(name, operands, {**sample.attributes, "axis": (axis,) if several else axis})


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_cast(*operands: Any) -> list[list[Any]]:
    """The operands, with each in turn in each of three other dtypes."""
    others = (np.float16, np.float64, np.int32)
    return [[*operands[:i], x.astype(t), *operands[i + 1 :]] for i, x in enumerate(operands) for t in others]


@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize("base", [np.float32, np.float64])
def test_triangular_systems_of_two_dtypes(rows: int, base: Any) -> None:
    x, y = np.tril(drawn(rows, rows)) + 2 * rows * np.eye(rows), 9 * drawn(rows, 3)
    cast = [(x.astype(base), y.astype(t)) for t in (np.float16, np.float32, np.float64, np.int32, np.bool_)]
    for a, b in [*cast, (x.astype(np.float16), y.astype(base))]:
        found, wanted = K.triangular_solve(a, b), np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
        assert found.dtype == a.dtype
        np.testing.assert_allclose(found, wanted, 2e-3 if a.dtype == np.float16 else 1e-5, 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_attention_to_operands_of_several_dtypes() -> None:
    whole = [np.rint(2 * drawn(2, 64, 16, seed=i)) for i in range(4)]
    wanted, gradients = K.scaled_dot_product_attention(*whole[1:]), K.scaled_dot_product_attention_backward(*whole)
    for given in one_cast(*whole):
        if given[1].dtype != np.int32:  # results are like queries
            found = K.scaled_dot_product_attention(*given[1:])
            np.testing.assert_allclose(found, wanted, 1e-2, 1e-2)
        if np.int32 not in [x.dtype for x in given]:
            for found, expected in zip(K.scaled_dot_product_attention_backward(*given), gradients, strict=True):
                np.testing.assert_allclose(found, expected, 2e-2, 2e-2)


@pytest.mark.parametrize("shape", [(64, 3), (8, 3, 50)])
def test_batch_norm_with_parameters_of_other_dtypes(shape: tuple[int, ...]) -> None:
    x, scale, bias = drawn(*shape), np.rint(4 * drawn(3)), np.rint(4 * drawn(3, seed=1))
    wanted = K.batch_norm_training(x, scale, bias)
    for given in one_cast(scale, bias):
        for found, expected in zip(K.batch_norm_training(x, *given), wanted, strict=True):
            np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


SQUARE, LABELS = np.ones((4, 4), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(("name", "operands", "axis"), [
    *((name, [SQUARE], -1) for name in (
        "softmax", "log_softmax", "cumulative_sum", "cumulative_prod", "cummax", "cummin",
    )),
    ("softmax_backward", [SQUARE] * 2, -1), ("log_softmax_backward", [SQUARE] * 2, -1),
    ("label_cross_entropy", [SQUARE, LABELS], -1), ("label_cross_entropy_backward", [SQUARE[0], SQUARE, LABELS], -1),
    ("ssm_scan", [SQUARE] * 3, -2), ("ssm_scan_backward", [SQUARE] * 5, -2),
    ("batch_norm", [SQUARE, *[SQUARE[0]] * 4], -1), ("batch_norm_training", [SQUARE, *[SQUARE[0]] * 2], -1),
    ("prod_of_others", [SQUARE], (-1,)),
])  # fmt: skip
def test_axes_from_the_end_are_refused(name: str, operands: list[Any], axis: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: an axis is 0 or more, not -"):
        getattr(K, name)(*operands, axis=axis)


@pytest.mark.parametrize("other", [None, 0.5, np.float32(0.5)])
@pytest.mark.parametrize(("name", "operands", "at", "options"), [
    ("layer_norm_backward", [SQUARE] * 3, 2, {"axis": (1,), "eps": 1e-5}),
    ("rms_norm_backward", [SQUARE] * 3, 2, {"axis": (1,), "eps": 1e-5}),
    ("batch_norm", [SQUARE, *[SQUARE[0]] * 4], 1, {}),
    *(("ssm_scan", [SQUARE] * 3, i, {}) for i in (0, 2)),
    *(("ssm_scan_backward", [SQUARE] * 5, i, {}) for i in range(5)),
])  # fmt: skip
def test_what_is_no_array_is_refused(
    name: str, operands: list[Any], at: int, options: dict[str, Any], other: Any
) -> None:
    with pytest.raises(DTypeError, match=f"{name}: an operand is an array, not "):
        getattr(K, name)(*operands[:at], other, *operands[at + 1 :], **options)


def test_a_number_is_no_scale_or_bias() -> None:
    for given in ((0.5, None), (None, 0.5), (SQUARE[0], np.float32(0.5))):
        with pytest.raises(DTypeError, match="batch_norm_training: an operand is an array, not "):
            K.batch_norm_training(SQUARE, *given)


def test_a_factor_of_a_scan_may_be_a_number_of_python_only() -> None:
    np.testing.assert_array_equal(K.ssm_scan(SQUARE, 1.0, SQUARE), K.ssm_scan(SQUARE, SQUARE, SQUARE))
    with pytest.raises(DTypeError, match="ssm_scan: an operand is an array"):
        K.ssm_scan(SQUARE, None, SQUARE)  # type: ignore[arg-type]


def test_gradients_of_look_ups_have_the_shapes_of_what_was_read() -> None:
    grad, indices = np.ones((40, 2), np.float32), np.zeros((40, 2), np.int64)
    for shape in ((1, 2), (39, 2), (0, 2), (40, 2, 1), (80,)):
        with pytest.raises(ShapeError, match="the indices"):
            K.take_along_axis_backward(grad, indices, shape=shape, axis=1 if len(shape) > 1 else 0)
    with pytest.raises(ShapeError, match="the gradient"):
        K.take_backward(drawn(3, 2), np.array([[0, 1, 2], [0, 1, 2]]), length=3, axis=0)
    with pytest.raises(ArgumentError, match="take_backward: an axis is 0 or more"):
        K.take_backward(drawn(3, 2), np.array([0, 1]), length=3, axis=-1)


def test_ranges_to_quantize_between_have_the_shape_of_the_steps() -> None:
    x, one = np.ones((8, 8), np.float32), np.ones((), np.float32)
    for low, high in ((np.zeros(0), np.zeros(0)), (np.zeros(2), np.ones(2)), (np.zeros(()), np.ones(1))):
        with pytest.raises(ShapeError, match="the range"):
            K.quantize_between(x, low.astype(np.float32), high.astype(np.float32))
    assert K.quantize_between(x, np.zeros_like(one), one).scale.shape == ()


@pytest.mark.parametrize("repeats", [(2, 2**62), (2**62, 2), (2**62, 0), (2**32, 2**32)])
def test_more_repeats_than_there_are_addresses(repeats: tuple[int, int]) -> None:
    with pytest.raises(MemoryError):
        K.tile(SQUARE, repeats=repeats)


@pytest.mark.usefixtures("few_as_many")
def test_results_without_axes_are_arrays() -> None:
    x = (2 * np.eye(3)).astype(np.float16)
    assert K.det(x) == 8
    assert [y.shape for y in (K.det(x), *K.slogdet(x))] == [()] * 3
    assert [type(y) for y in (K.det(x), *K.slogdet(x))] == [np.ndarray] * 3
    assert K.astype(np.float16(3), float32) == 3  # type: ignore[call-overload]


@pytest.mark.parametrize(("steps", "labels"), [(4, 2), (-1, 2), (3, 3), (3, -1)])
def test_lengths_out_of_range_in_ctc(steps: int, labels: int) -> None:
    operands = np.full((3, 1, 3), -1.0, np.float32), np.array([[1, 2]]), np.array([steps]), np.array([labels])
    with pytest.raises(IndexError):
        K.ctc_loss(*operands)
    with pytest.raises(IndexError):
        K.ctc_loss_backward(np.ones(1, np.float32), *operands)
