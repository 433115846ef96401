"""Results and memory layouts do not depend on the number of processes.

Kernels, especially small products and sums, round differently for other layouts. So every operation is computed on
transposed, sliced, gathered, recut and summed operands, by one process and by threads that simulate several.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.launching import run_ranks
from tests.helpers.threads import on_threads

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.conformance import SAMPLES
from backburn.conformance.samples.calls import arrays, as_tuple, map_operands, store_quantized
from backburn.decorators.sharding import Sharded, collectives
from backburn.decorators.sharding.processes import share
from backburn.distributed import place
from backburn.nn import functional
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend
from backburn_numpy.runtime import threads

PROCESSES = (2, 4)
HOW = ("transposed", "sliced", "gathered", "cut anew", "addends")


def backend(mesh: dict[str, int], comm: Any) -> Any:
    """A mesh on this process alone or on those of ``comm``."""
    k: Any = NumpyBackend()
    for axis, size in reversed(mesh.items()):
        outermost = comm is not None and axis == next(iter(mesh))
        options: dict[str, Any] = {axis: size, "comm": comm if outermost else None}
        k = Sharded(k, on_fallback="allow", **options)
    if comm is not None:
        share(k)  # before reading a property, whose lock other threads need
    return k


def placed(k: Any, array: Any, rng: np.random.Generator) -> Any:
    """A primitive with the values of an array, computed in a random way."""
    how = HOW[rng.integers(len(HOW))]
    if not array.ndim:
        return k.from_numpy(array)
    axis, other = (int(n) for n in rng.integers(array.ndim, size=2))

    def cut(values: Any) -> Any:
        if rng.random() < 0.5:
            return k.cut(k.from_numpy(values), axis)
        stops = np.sort(rng.integers(0, values.shape[axis] + 1, k.size - 1))
        return k.cut(k.from_numpy(values), axis, tuple(int(n) for n in np.diff([0, *stops, values.shape[axis]])))

    if how == "transposed":
        order = tuple(range(array.ndim))[::-1] if rng.random() < 0.5 else tuple(map(int, rng.permutation(array.ndim)))
        values = np.ascontiguousarray(array.transpose(order))
        x = cut(values) if rng.random() < 0.8 else k.from_numpy(values)
        return k.permute_dims(x, tuple(np.argsort(order).tolist()))
    if how == "sliced":
        key = tuple(slice(1, 1 + n, 1) for n in array.shape)
        values = np.zeros([n + 3 for n in array.shape], array.dtype)
        values[key] = array
        return k.slice(cut(values), key=key)
    x = cut(array)
    if how == "gathered":
        return k.whole(x)
    return k.cut(x, other) if how == "cut anew" else k.addends(k.from_numpy(array))


def layouts(x: Any) -> list[Any]:
    """The strides of each array of a primitive, if its library has strides."""
    return [getattr(leaf, "strides", None) if 0 not in leaf.shape else () for leaf in collectives.leaves(x)]


def computed(name: str, number: int, comm: Any) -> list[tuple[Any, ...]]:
    """The shape, bytes and layouts of each result of a sample, or its error."""
    k, sample = backend({"dp": 4}, comm), SAMPLES[name].cases[number]
    seeds = itertools.count()

    def from_numpy(array: Any) -> Any:
        return placed(k, array, np.random.default_rng([zlib.crc32(name.encode()), number, next(seeds)]))

    operands = store_quantized(k, map_operands(arrays(sample, "float32"), from_numpy))
    try:
        found = as_tuple(getattr(k, name)(*operands, **sample.attributes))
    except Exception as error:
        return [(type(error), str(error))]
    if OPERATIONS[name].results == ("host",):
        return [(repr(found),)]
    result: list[tuple[Any, ...]] = []
    for x in found:
        own = [(shard, layout) for shard, layout in zip(k.own, layouts(x), strict=True)] if k.is_cut(x) else layouts(x)
        result.append((own, tuple(x.shape), k.to_numpy(x).tobytes(), layouts(k.whole(x))))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_every_operation(name: str) -> None:
    for number in range(len(SAMPLES[name].cases)):
        expected = computed(name, number, None)
        for processes in PROCESSES:
            for found in on_threads(processes, lambda comm: computed(name, number, comm)):  # noqa: B023 - called now
                for mine, alone in zip(found, expected, strict=True):
                    assert mine[1:] == alone[1:], (name, number, processes)
                    assert mine[0] == alone[0] or set(map(str, mine[0])) <= set(map(str, alone[0])), (name, number)


#: Expressions of ``h`` (rows x inner), a transposed ``t`` and a slice ``s`` of the same shape, a batch, and ``w``.
PRODUCTS: dict[str, Callable[..., Any]] = {
    "by a transposed weight": lambda h, t, s, b, w: h @ w.T,
    "of a transposed matrix": lambda h, t, s, b, w: t @ w.T,
    "of a slice": lambda h, t, s, b, w: s @ w.T,
    "of a batch": lambda h, t, s, b, w: b @ w.T,
    "from the left": lambda h, t, s, b, w: w @ t.T,
    "linear": lambda h, t, s, b, w: functional.linear(t, w),
    "twice": lambda h, t, s, b, w: functional.softmax(t @ w.T) @ w,
    "of products": lambda h, t, s, b, w: (h @ w.T).T @ (s @ w.T),
    "normalized": lambda h, t, s, b, w: functional.layer_norm(t @ w.T, bb.ones((len(w),)), bb.zeros((len(w),))),
    "sums": lambda h, t, s, b, w: (t * 2.0).sum(axis=0) + w.T.sum(axis=1),
    "attention": lambda h, t, s, b, w: functional.scaled_dot_product_attention(b, b * w[0], b),
    "a tied head": lambda h, t, s, b, w: functional.cross_entropy(
        functional.embedding(bb.arange(len(t)) % len(w), w) @ w.T, bb.arange(len(t)) % len(w)
    ),
}


def products(mesh: dict[str, int], rows: int, seed: int, comm: Any) -> dict[str, Any]:
    """The bytes of the expressions' values and of the gradients of ``w``."""
    rng = np.random.default_rng(seed)
    inner, outputs = int(rng.choice([1, 3, 16, 29, 64])), int(rng.choice([1, 2, 7, 16, 29, 65]))
    found = {}
    with bb.use_backend(Autodiff(backend(mesh, comm))):

        def made(*shape: int) -> Any:
            x = bb.asarray(rng.normal(size=shape).astype(np.float32))
            places = {axis: int(rng.integers(-1, len(shape))) for axis in mesh}
            return place(x, {axis: None if n < 0 else n for axis, n in places.items()})

        w = made(outputs, inner).require_grad()
        given = made(rows, inner), made(inner, rows).T, made(rows + 2, inner + 5)[1:-1, 2:-3], made(3, rows, inner)
        for name, expression in PRODUCTS.items():
            y = expression(*given, w)
            found[name] = y.numpy().tobytes()
            found[f"{name}, its gradient"] = w.grad((y * y).sum().backward()).numpy().tobytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"dp": 4}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 70])
def test_products_of_few_rows(mesh: dict[str, int], rows: int) -> None:
    for seed in (rows, 100 + rows):
        expected = products(mesh, rows, seed, None)
        for processes in PROCESSES:
            for found in on_threads(processes, lambda comm: products(mesh, rows, seed, comm)):  # noqa: B023
                assert [name for name in expected if found[name] != expected[name]] == [], (seed, processes)


FEW = (1, 2, 3, 16)


def digest(comm: Any) -> str:
    """A digest of products of few rows, for two meshes."""
    found = [products(mesh, rows, rows, comm) for rows in FEW for mesh in ({"dp": 4}, {"dp": 2, "tp": 2})]
    return hashlib.sha256(repr(found).encode()).hexdigest()


@pytest.mark.slow
def test_products_of_few_rows_in_processes() -> None:
    program = """
        from backburn.communicators import load_communicator
        from backburn_numpy.runtime import threads
        from tests.decorators.sharding.test_layouts import digest

        threads.set_num_threads(1)
        print(f"{digest(load_communicator('mpi'))}\\n", end="")
    """
    before = threads.num_threads()
    threads.set_num_threads(1)
    alone = digest(None)
    threads.set_num_threads(before)
    for ranks in PROCESSES:
        found = run_ranks(ranks, program, PYTHONPATH=str(Path(__file__).parents[3]))
        assert found.stdout.split() == [alone] * ranks, found.stderr
