"""Gradients of parts of a tensor are combined in one operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn_numpy import NumpyBackend


class Counting(NumpyBackend):
    """Count the operations that assemble a large gradient from small ones."""

    calls: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def slice_backward(*operands: Any, **options: Any) -> Any:
        Counting.calls["slice_backward"] += 1
        return NumpyBackend.slice_backward(*operands, **options)

    def concat(self, *operands: Any, **options: Any) -> Any:
        Counting.calls["concat"] += 1
        return super().concat(*operands, **options)

    def stack(self, *operands: Any, **options: Any) -> Any:
        Counting.calls["stack"] += 1
        return super().stack(*operands, **options)


def read(x: Any, places: list[Any]) -> Any:
    """Return a weighted sum of cubes of parts of ``x``."""
    total = 0.0
    for i, place in enumerate(places):
        part = x[place]
        total = total + (i + 1.0) * bb.sum(part * part * part)
    return total


PLACES: dict[str, list[Any]] = {
    "every entry": list(range(6)),
    "some entries": [4, 1, 2],
    "one entry": [3],
    "an entry twice": [0, 1, 1, 5],
    "pieces": [slice(0, 2), slice(2, 5), slice(5, 6)],
    "overlapping pieces": [slice(0, 4), slice(2, 6)],
    "steps": [slice(0, 6, 2), slice(1, 6, 2)],
    "backwards": [slice(5, 2, -1), slice(2, None, -1)],
    "along the second axis": [(slice(None), j) for j in range(5)],
    "along both": [(i, j) for i in range(6) for j in range(5)],
    "some of both": [(i, slice(j, j + 2)) for i in (0, 3, 4) for j in (0, 3)],
    "of nothing": [slice(2, 2), slice(0, 1), slice(3, 3)],
    "all, and a part": [slice(None), 2, 3],
    "inner": [(slice(1, 3), slice(1, 4)), (slice(3, 5), slice(1, 4))],
    "different ranks": [(2, 3), 1, (slice(None), 4, ...), (..., 0)],
}


def by_hand(x: Any, places: list[Any]) -> tuple[Any, Any]:
    """Return the first and the diagonal of the second derivatives."""
    first, second = np.zeros_like(x), np.zeros_like(x)
    for i, place in enumerate(places):
        first[place] += (i + 1.0) * 3 * x[place] ** 2
        second[place] += (i + 1.0) * 6 * x[place]
    return first, second


@pytest.mark.parametrize("name", PLACES)
def test_first_and_second_derivatives(name: str) -> None:
    values, places = np.random.default_rng(0).normal(size=(6, 5, 2)), PLACES[name]
    first, second = by_hand(values, places)
    x = bb.asarray(values)
    gradient = bb.grad(lambda t: read(t, places))(x)
    np.testing.assert_allclose(gradient.numpy(), first, rtol=1e-12)
    direction = bb.ones(x.shape, dtype=bb.float64)
    (product,) = bb.hvp(lambda t: read(t, places), (x,), (direction,))
    np.testing.assert_allclose(product.numpy(), second, rtol=1e-12)
    again = bb.grad(lambda t: bb.sum(bb.grad(lambda u: read(u, places))(t)))(x)
    np.testing.assert_allclose(again.numpy(), second, rtol=1e-12)


@pytest.mark.parametrize("dense_first", [True, False])
def test_gradients_of_parts_are_added_to_those_of_the_whole_tensor(dense_first: bool) -> None:
    values = np.random.default_rng(0).normal(size=(4, 3))

    def function(x: Any) -> Any:
        whole = bb.sum(x * x) if dense_first else 0.0
        total = whole + bb.sum(x[1] * 2.0) + bb.sum(x[3] * 5.0)
        return total if dense_first else total + bb.sum(x * x)

    expected = 2 * values
    expected[1] += 2
    expected[3] += 5
    np.testing.assert_allclose(bb.grad(function)(bb.asarray(values)).numpy(), expected)


def gradient_of(x: Any, function: Callable[[Any], Any]) -> Any:
    k = Autodiff(Counting())
    Counting.calls.clear()
    leaf = bb.asarray(x, backend=k).require_grad()
    return leaf.grad(function(leaf).backward())


@pytest.mark.parametrize("steps", [10, 200])
def test_the_gradient_of_a_loop_over_entries_is_one_operation(steps: int) -> None:
    """One operation per step would make the gradient quadratic in the number of steps."""
    x = np.random.default_rng(0).normal(size=(steps, 3))

    def loop(t: Any) -> Any:
        state = bb.zeros((3,), dtype=bb.float64, backend=t.backend)
        for i in range(steps):
            state = state * 0.5 + t[i]
        return bb.sum(state)

    gradient = gradient_of(x, loop)
    assert Counting.calls["slice_backward"] == 0
    assert Counting.calls["stack"] + Counting.calls["concat"] == 1
    np.testing.assert_allclose(gradient.numpy()[:, 0], 0.5 ** np.arange(steps)[::-1])


def test_gradients_of_pieces_and_entries_need_no_slice_backward() -> None:
    x = np.random.default_rng(0).normal(size=(12, 4))
    for function in (
        lambda t: sum(bb.sum(p * p) for p in bb.split(t, 5)),
        lambda t: sum(bb.sum(p * p) for p in bb.unstack(t, axis=1)),
        lambda t: sum(bb.sum(t[i, j] * t[i, j]) for i in range(12) for j in range(4)),
    ):
        gradient = gradient_of(x, function)
        np.testing.assert_allclose(gradient.numpy(), 2 * x)
        assert Counting.calls["slice_backward"] == 0


def test_the_gradient_of_one_part_is_a_slice_backward() -> None:
    gradient = gradient_of(np.ones((5, 2)), lambda t: bb.sum(t[3]))
    assert Counting.calls == {"slice_backward": 1}
    np.testing.assert_array_equal(gradient.numpy()[3], 1)


def test_under_vmap() -> None:
    values = np.random.default_rng(0).normal(size=(3, 6, 5))
    places = PLACES["some entries"]
    gradients = bb.vmap(bb.grad(lambda t: read(t, places)))(bb.asarray(values))
    for mine, x in zip(gradients.numpy(), values, strict=True):
        np.testing.assert_allclose(mine, by_hand(x, places)[0], rtol=1e-12)


def test_an_anomaly_in_a_part_is_found() -> None:
    x = bb.asarray([1.0, 0.0, 4.0]).require_grad()
    with bb.detect_anomaly(), pytest.raises(bb.errors.NumericalInstabilityError, match="sqrt"):
        (bb.sqrt(x[1]) + bb.sqrt(x[2])).backward()
