"""Operations and programs on random placements (uneven, empty, on several levels), compared with NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.conformance import SAMPLES
from backburn.conformance.samples.calls import arrays, as_tuple, map_operands, store_quantized
from backburn.decorators.sharding import Sharded
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
#: Products of quantized tensors are float32.
ROUNDED = {"quantized_matmul": 2e-6}


def scattering(inner: Any, rng: np.random.Generator, mesh_axis: str, size: int) -> Sharded:
    """A level that places host arrays at random."""
    mesh: dict[str, Any] = {mesh_axis: size}
    level = Sharded(inner, on_fallback="allow", **mesh)

    def from_numpy(array: Any) -> Any:
        x, how = inner.from_numpy(array), rng.integers(0, 4)
        if how == 0 or (how > 1 and not array.ndim):
            return x
        if how == 1:
            return level.addends(x)
        axis = int(rng.integers(0, array.ndim))
        if how == 2:
            return level.cut(x, axis)
        stops = np.sort(rng.integers(0, array.shape[axis] + 1, level.size - 1))
        return level.cut(x, axis, tuple(int(n) for n in np.diff([0, *stops, array.shape[axis]])))

    level.from_numpy = from_numpy  # type: ignore[method-assign]
    return level


def mesh(rng: np.random.Generator) -> Sharded:
    level = scattering(BASE, rng, "a", int(rng.integers(2, 5)))
    return scattering(level, rng, "b", int(rng.integers(2, 4))) if rng.random() < 0.3 else level


@pytest.mark.parametrize("name", SAMPLES)
def test_operations(name: str) -> None:
    for number, sample in enumerate(SAMPLES[name].cases):
        k = mesh(np.random.default_rng([number, zlib.crc32(name.encode())]))
        theirs = store_quantized(BASE, arrays(sample, "float64"))
        expected = as_tuple(getattr(BASE, name)(*theirs, **sample.attributes))
        operands = store_quantized(k, map_operands(arrays(sample, "float64"), k.from_numpy))
        found = as_tuple(getattr(k, name)(*operands, **sample.attributes))
        for x, y in zip(found, expected, strict=True):
            if OPERATIONS[name].results == ("host",):
                np.testing.assert_equal(x, y)
                continue
            assert tuple(x.shape) == tuple(y.shape)
            assert k.dtype(x) is BASE.dtype(y)
            ours, reference = k.to_numpy(x), BASE.to_numpy(y)
            np.testing.assert_allclose(ours, reference, rtol=ROUNDED.get(name, 1e-9), atol=1e-11, strict=True)


# ---- programs ----

Step = tuple[Callable[..., Any], int, int]


def choices(rng: np.random.Generator, x: Any) -> list[Callable[..., Any]]:
    """Functions of a tensor ``t`` and another tensor ``u`` that are valid for the shape of ``t``."""
    shape, size, rank = tuple(x.shape), int(np.prod(x.shape)), len(x.shape)
    axis = int(rng.integers(0, rank)) if rank else 0
    axes = tuple(a for a in range(rank) if rng.random() < 0.5)
    order = tuple(int(a) for a in rng.permutation(rank))
    factor = int(rng.choice([d for d in range(1, size + 1) if size % d == 0]))
    key = tuple(
        slice(int(rng.integers(0, n)), None, int(rng.integers(1, 3))) if rng.random() < 0.5 else slice(None, None, -1)
        for n in shape
    )
    found: list[Callable[..., Any]] = [
        lambda t, u: t + bb.sum(u),
        lambda t, u: t * 0.5 - bb.mean(u, axis=0, keepdims=True).reshape((-1,))[0] if u.shape else t * 2.0,
        lambda t, u: bb.reshape(t, (factor, size // factor)),
        lambda t, u: bb.permute_dims(t, order),
        lambda t, u: bb.sum(t, axis=axes, keepdims=factor % 2 == 0),
        lambda t, u: bb.max(t, axis=axes, keepdims=True),
        lambda t, u: bb.linalg.outer(t.reshape((-1,))[:4], u.reshape((-1,))[:5]),
        lambda t, u: t[key],
    ]
    if rank:
        index = rng.integers(0, shape[axis], 3)
        found += [
            lambda t, u: bb.softmax(t, axis=axis),
            lambda t, u: bb.cumulative_sum(t, axis=axis),
            lambda t, u: bb.sort(t, axis=axis),
            lambda t, u: bb.take(t, bb.asarray(index), axis=axis),
            lambda t, u: bb.concat([t, 2.0 * t], axis=axis),
            lambda t, u: bb.stack([t, t], axis=axis),
            lambda t, u: bb.roll(t, 1, axis=axis),
            lambda t, u: bb.where(t > bb.mean(t), t, 0.0),
            lambda t, u: bb.var(t, axis=axis, keepdims=True) * t,
            lambda t, u: bb.logsumexp(t, axis=axis),
        ]
    if rank > 1:
        found += [lambda t, u: t @ bb.matrix_transpose(t), lambda t, u: bb.tril(t), lambda t, u: t.sum(axis=-2) @ t.mT]
    return found


def program(seed: int) -> tuple[list[Any], list[Step]]:
    """Three arrays, and steps that each add a tensor: a function and the indices of two earlier tensors."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=tuple(rng.integers(1, 6, int(rng.integers(1, 4))))) for _ in range(3)]
    steps: list[Step] = []
    with bb.use_backend("numpy"):
        pool = [bb.asarray(a) for a in inputs]
        while len(steps) < 5:
            i, j = (int(n) for n in rng.integers(0, len(pool), 2))
            options = choices(rng, pool[i])
            function = options[int(rng.integers(0, len(options)))]
            made = bb.tanh(function(pool[i], pool[j]))
            if 0 < int(np.prod(made.shape)) < 400 and len(made.shape) < 5:
                pool.append(made)
                steps.append((function, i, j))
    return inputs, steps


def total(steps: list[Step], *inputs: Any) -> Any:
    """A weighted sum of all tensors of a program."""
    pool, found = list(inputs), bb.asarray(0.0, dtype="float64")
    for function, i, j in steps:
        pool.append(bb.tanh(function(pool[i], pool[j])))
        weights = np.cos(np.arange(int(np.prod(pool[-1].shape)), dtype=np.float64)).reshape(pool[-1].shape)
        found = found + (pool[-1] * bb.asarray(weights)).sum()
    return found


@pytest.mark.parametrize("seed", range(60))
def test_programs_and_their_derivatives(seed: int) -> None:
    inputs, steps = program(seed)

    def derivatives(k: Any) -> list[Any]:
        with bb.use_backend(Autodiff(k)):
            given = [bb.asarray(a) for a in inputs]
            gradient: Any = bb.grad(lambda *t: total(steps, *t), argnums=(0, 1, 2))
            first = gradient(*given)
            second: Any = bb.grad(lambda *t: sum((g * g).sum() for g in gradient(*t)), argnums=(0, 1, 2))
            return [t.numpy() for t in (total(steps, *given), *first, *(second(*given) if seed % 3 == 0 else ()))]

    found = derivatives(mesh(np.random.default_rng(seed)))
    for ours, theirs in zip(found, derivatives(BASE), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8, strict=True)


# ---- transformations ----


def network(x: Any, w: Any) -> Any:
    return (bb.softmax(bb.tanh(x @ w), axis=1) * x[:, :1]).sum()


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda x, w: bb.vmap(lambda row: bb.tanh(row @ w).sum())(x),
    "vmap of grad": lambda x, w: bb.vmap(bb.grad(lambda row: (bb.tanh(row @ w) ** 2).sum()))(x),
    "jvp": lambda x, w: bb.jvp(network, (x, w), (x * 0.5, w * w))[1],
    "hessian": lambda x, w: bb.hessian(lambda t: network(x, t))(w),
    "jacobian": lambda x, w: bb.jacobian(lambda t: bb.tanh(x @ t).sum(axis=0))(w),
    "checkpoint": lambda x, w: bb.grad(lambda t: bb.checkpoint(network)(x, t))(w),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("seed", range(3))
def test_transformations(name: str, seed: int) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(5, 3)), rng.normal(size=(3, 4))

    def compute(k: Any) -> Any:
        with bb.use_backend(Autodiff(k)):
            return TRANSFORMS[name](bb.asarray(x), bb.asarray(w)).numpy()

    np.testing.assert_allclose(compute(mesh(np.random.default_rng(seed))), compute(BASE), rtol=1e-9, atol=1e-11)
