"""Every operation of the contract inside ``vmap``, on the conformance samples, against a loop over the examples."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import backburn.conformance.runner.suite as _suite  # noqa: F401 - fills the table of samples
from backburn.backend import load_backend
from backburn.base.errors import Unsupported
from backburn.batching import Batched, FallbackWarning, Mapped
from backburn.batching.rules import rule_of
from backburn.conformance.samples.table import SAMPLES, Sample, Stored
from backburn.ops.table import OPERATIONS

SIZE = 3

# Operations without a batched form, which run one example at a time (none at present), and refused ones, because the
# results of the examples would not form one tensor. These lists must not grow.
BY_LOOP: set[str] = set()
REFUSED = {"masked_select", "nonzero", "unique_all", "quantize", "quantize_between", "to_numpy", "to_numpy_many"}
# Operations without an operand that could differ between examples.
MADE = {"arange", "empty", "eye", "from_numpy", "full", "linspace", "ones", "zeros", "permutation", "categorical"}
MADE |= {"random_bits", "random_window", "uniform", "integers", "bernoulli", "normal", "dropout", "gamma", "poisson"}
# Quantized tensors are equal for all examples.
QUANTIZED = {"dequantize", "quantized_matmul"}

K = load_backend("numpy")


def copies(operand: Any) -> Any:
    """Return ``SIZE`` valid versions of a host operand: floats scaled down, others rolled."""
    if isinstance(operand, list):
        return [copies(o) for o in operand]
    if operand.dtype.kind == "f":
        return np.stack([operand * s for s in (1.0, 0.75, 0.5)])
    return np.stack([np.roll(operand, i) for i in range(SIZE)])


def is_array(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) or (isinstance(operand, list) and bool(operand))


def primitive(operand: Any) -> Any:
    if isinstance(operand, list):
        return [primitive(o) for o in operand]
    if isinstance(operand, Stored):
        return operand.on(K)
    return K.from_numpy(operand) if isinstance(operand, np.ndarray) else operand


def each(operand: Any, function: Any) -> Any:
    return [function(o) for o in operand] if isinstance(operand, list) else function(operand)


def results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def patterns(sample: Sample) -> list[tuple[int, ...]]:
    """Return the choices of operands that differ between examples."""
    places = [i for i, o in enumerate(sample.operands) if is_array(o)]
    return [c for n in range(1, len(places) + 1) for c in itertools.combinations(places, n)][:31]


def check(name: str, sample: Sample, chosen: tuple[int, ...]) -> set[str]:
    """Compare the batch with a loop over examples; return the operations that ran one by one."""
    level = Batched(K, SIZE)
    operands = [copies(o) if i in chosen else o for i, o in enumerate(sample.operands)]
    given = [each(primitive(o), level.mapped) if i in chosen else primitive(o) for i, o in enumerate(operands)]
    try:
        expected = [
            results(
                getattr(K, name)(
                    *(
                        each(primitive(o), lambda a: a[i, ...]) if n in chosen else primitive(o)  # noqa: B023
                        for n, o in enumerate(operands)
                    ),
                    **sample.attributes,
                )
            )
            for i in range(SIZE)
        ]
    except Exception:  # a copy is invalid: the batch must be refused too
        level.on_fallback = "allow"
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the backend raises
            getattr(level, name)(*given, **sample.attributes)
        return set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        found = results(getattr(level, name)(*given, **sample.attributes))
    for index, part in enumerate(found):
        assert tuple(part.shape) == tuple(expected[0][index].shape), (name, sample, chosen, index)
        got = part.value if isinstance(part, Mapped) else np.broadcast_to(part, (SIZE, *part.shape))
        wanted = np.stack([e[index] for e in expected])
        assert got.dtype == wanted.dtype, (name, sample, chosen, index)
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=f"{name} {chosen}")
    return {str(w.message).split()[1] for w in caught}


BATCHED = [n for n in SAMPLES if n not in REFUSED | MADE | QUANTIZED]


@pytest.mark.parametrize("name", BATCHED)
def test_batches_equal_a_loop(name: str) -> None:
    looped: set[str] = set()
    for sample in SAMPLES[name].cases:
        for chosen in patterns(sample):
            looped |= check(name, sample, chosen)
    assert looped == BY_LOOP & {name}


@pytest.mark.parametrize("name", BATCHED)
def test_batches_of_batches(name: str) -> None:
    """Rules call the operations of the level below, which may be another level of ``vmap``."""
    for number, sample in enumerate(SAMPLES[name].cases):
        chosen = [i for i, o in enumerate(sample.operands) if is_array(o)]
        below, operands = Batched(K, SIZE), [copies(o) if i in chosen else o for i, o in enumerate(sample.operands)]
        above = Batched(below, 2)

        def twice(a: Any) -> Any:  # the outer examples are equal, on axis 1
            both = np.stack([a, a], 1)
            return above.mapped(below.mapped(K.from_numpy(both)))  # noqa: B023

        given = [each(o, twice) if i in chosen else o for i, o in enumerate(operands)]
        once = [each(primitive(o), below.mapped) if i in chosen else o for i, o in enumerate(operands)]
        try:
            expected = results(getattr(below, name)(*once, **sample.attributes))
        except Exception:  # a copy is invalid
            continue
        found = results(getattr(above, name)(*given, **sample.attributes))
        for part, wanted in zip(found, expected, strict=True):
            assert part.shape == wanted.shape
            for n in range(2):
                got = above.example(part, n)
                got, expect = (x.value if isinstance(x, Mapped) else x for x in (got, wanted))
                np.testing.assert_allclose(got, expect, rtol=1e-9, atol=1e-9, err_msg=f"{name}, sample {number}")


@pytest.mark.parametrize("name", BATCHED)
def test_no_examples(name: str) -> None:
    for sample in SAMPLES[name].cases:
        for chosen in patterns(sample):
            level = Batched(K, 0)
            try:
                expected = results(getattr(K, name)(*map(primitive, sample.operands), **sample.attributes))
            except Exception:  # the operation is refused
                continue
            given = [
                each(primitive(o), lambda a: level.mapped(np.stack([a])[:0])) if i in chosen else primitive(o)  # noqa: B023
                for i, o in enumerate(sample.operands)
            ]
            found = results(getattr(level, name)(*given, **sample.attributes))
            for part, wanted in zip(found, expected, strict=True):
                assert tuple(part.shape) == wanted.shape, (sample, chosen)
                assert level.dtype(part) is K.dtype(wanted)


def test_operations_that_need_a_rule_have_one() -> None:
    """Other operations run their default bodies in vmap, which suits those that are differentiated through them."""
    ours = [e for e in OPERATIONS.values() if e.body.__module__.startswith("backburn.ops.")]
    needing = {e.name for e in ours if e.required or e.gradients}
    ruled = {e.name for e in OPERATIONS.values() if rule_of(e) is not None}
    assert needing - ruled <= BY_LOOP | REFUSED | MADE
    assert ruled & (BY_LOOP | REFUSED) == {"masked_select"}, "its rule is for a mask that all examples share"
    body = {e.name for e in ours} - ruled - BY_LOOP - REFUSED - MADE - QUANTIZED
    print(f"{len(ruled)} by rule; one by one: {sorted(BY_LOOP)}; by body: {sorted(body)}; refused: {sorted(REFUSED)}")


@pytest.mark.parametrize("name", sorted(REFUSED - {"to_numpy", "to_numpy_many"}))
def test_shapes_that_depend_on_values_are_refused(name: str) -> None:
    sample = SAMPLES[name].cases[0]
    level = Batched(K, SIZE)
    given = [level.mapped(K.from_numpy(copies(o))) for o in sample.operands]
    with pytest.raises(Unsupported, match=r"inside vmap|of vmap"):
        getattr(level, name)(*given, **sample.attributes)


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_quantized_tensors_are_shared_by_all_examples(name: str) -> None:
    level = Batched(K, SIZE)
    q = K.quantize(K.from_numpy(np.eye(4, dtype=np.float32)))
    operands = [q] * len(OPERATIONS[name].operands)
    assert np.array_equal(getattr(level, name)(*operands), getattr(K, name)(*operands))
