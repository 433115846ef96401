"""``chunk_size`` of vmap, jacobian and hessian gives the same results; and counts inside vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.errors import ArgumentError, OutOfRangeError, Unsupported

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 10])
def test_chunks_equal_the_whole(chunk_size: int) -> None:
    x, w = bb.asarray(RNG.normal(size=(7, 3))), bb.asarray(RNG.normal(size=3))

    def f(x: Any, w: Any) -> Any:
        return {"a": (x @ w).tanh(), "b": (x * w, w)}

    axes: Any = {"a": 0, "b": (1, None)}
    whole = bb.vmap(f, (0, None), axes)(x, w)
    parts = bb.vmap(f, (0, None), axes, chunk_size=chunk_size)(x, w)
    np.testing.assert_allclose(parts["a"].numpy(), whole["a"].numpy(), rtol=1e-15)
    np.testing.assert_array_equal(parts["b"][0].numpy(), whole["b"][0].numpy())
    assert parts["b"][1].tolist() == w.tolist()
    columns = bb.vmap(lambda v, u: v * u, in_axes=-1, out_axes=-1, chunk_size=chunk_size)(x.T, x.T)
    np.testing.assert_array_equal(columns.numpy(), (x.T * x.T).numpy())
    named = bb.vmap(lambda v, u: v + u, chunk_size=chunk_size)(x, u=x)
    np.testing.assert_array_equal(named.numpy(), (x + x).numpy())
    nested = bb.vmap(bb.vmap(lambda v: v * v, chunk_size=2), chunk_size=chunk_size)(x)
    np.testing.assert_array_equal(nested.numpy(), (x * x).numpy())


@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_derivatives_through_chunks(chunk_size: int) -> None:
    x, w = bb.asarray(RNG.normal(size=(5, 3))), bb.asarray(RNG.normal(size=3))

    def total(w: Any, **options: Any) -> Any:
        return (bb.vmap(lambda v, u: (v @ u).sin(), (0, None), **options)(x, w) ** 2.0).sum()

    whole, parts = bb.grad(total)(w), bb.grad(lambda w: total(w, chunk_size=chunk_size))(w)
    np.testing.assert_allclose(parts.numpy(), whole.numpy(), rtol=1e-12)
    for mode in ("reverse", "forward"):
        ours = bb.jacobian(lambda v: (v * v).cumsum(), mode=mode, chunk_size=chunk_size)(w)
        np.testing.assert_allclose(ours.numpy(), np.tril(np.tile(2 * w.numpy(), (3, 1))), rtol=1e-12)
    square = bb.hessian(lambda v: (v**3.0).sum(), chunk_size=chunk_size)(w)
    np.testing.assert_allclose(square.numpy(), np.diag(6 * w.numpy()), rtol=1e-12)


def test_random_numbers_in_chunks() -> None:
    def draw() -> Any:
        return bb.random.normal(())

    same = bb.vmap(draw, axis_size=5, randomness="same", chunk_size=2)()
    assert len(set(same.tolist())) == 1
    different = bb.vmap(draw, axis_size=5, randomness="different", chunk_size=2)()
    assert len(set(different.tolist())) == 5


def test_modules_in_chunks() -> None:
    norm = bb.nn.BatchNorm1d(3)
    x = bb.asarray(RNG.normal(size=(4, 6, 3)).astype("float32"))
    assert bb.vmap(lambda m, v: m(v), (None, 0), chunk_size=3)(norm.eval(), x).shape == (4, 6, 3)
    several = bb.trees.tree_map(lambda *leaves: bb.stack(leaves), *[bb.nn.BatchNorm1d(3) for _ in range(4)])
    assert bb.vmap(lambda m, v: m(v), chunk_size=3)(several.eval(), x).shape == (4, 6, 3)
    with pytest.raises(Unsupported, match="changes a module that has an axis of examples: leave chunk_size out"):
        bb.vmap(lambda m, v: m(v), chunk_size=3)(several.train(), x)


@pytest.mark.parametrize("transform", [bb.vmap, bb.jacobian, bb.hessian])
def test_wrong_sizes_of_chunks(transform: Any) -> None:
    with pytest.raises(ArgumentError, match="chunk_size is an integer of at least 1, not 0"):
        transform(lambda x: x, chunk_size=0)


def test_counts_inside_of_vmap() -> None:
    x, weights = bb.asarray([[0, 1, 1], [2, 2, 2]]), bb.asarray([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    assert bb.vmap(lambda v: bb.bincount(v, minlength=4))(x).tolist() == [[1, 2, 0, 0], [0, 0, 3, 0]]
    sums = bb.vmap(lambda v, w: bb.bincount(v, weights=w, minlength=3))(x, weights)
    assert sums.tolist() == [[1.0, 6.0, 0.0], [0.0, 0.0, 3.0]]
    for wrong, least in ((x, 2), (x - 1, 4)):
        with pytest.raises(OutOfRangeError, match=f"bincount: an index names none of the {least} places"):
            bb.vmap(lambda v, least=least: bb.bincount(v, minlength=least))(wrong)
    with pytest.raises(Unsupported, match="vmap"):
        bb.vmap(bb.bincount)(x)
