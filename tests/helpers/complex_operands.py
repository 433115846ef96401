"""Calls with complex operands at three sizes, below and above the thresholds for kernels, and their derivatives."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import backburn.conformance.runner.suite as _suite  # noqa: F401 - fills the table of samples
from backburn.autodiff import Autodiff
from backburn.backend import load_backend
from backburn.conformance.samples.calls import as_tuple, flatten, is_inexact, map_operands, operands_of
from backburn.conformance.samples.decompositions import matrix
from backburn.conformance.samples.derived.complex_operands import complex_sample, complex_samples, takes_complex
from backburn.conformance.samples.derived.stretched import stretched, stretches
from backburn.conformance.samples.table import SAMPLES, Sample, real
from backburn.ops.table import OPERATIONS, contract_operations

NUMPY: Any = load_backend("numpy")
DTYPES = ("complex64", "complex128")
#: A few elements, about 1,000, and about 66,000; for decompositions matrices of 3, 9 and 31 rows.
SIZES = (0, 1, 2)
WITHOUT_OPERANDS = {"full", "zeros", "ones", "empty", "eye"}
#: Operations that transfer to or from the host, or whose result shape depends on values.
TO_HOST = {"from_numpy", "to_numpy", "to_numpy_many", "masked_select", "nonzero"}
OPEN = [op.name for op in contract_operations() if takes_complex(op)]
CLOSED = [op.name for op in contract_operations() if op.name not in OPEN]
COMPUTED = [name for name in OPEN if name not in WITHOUT_OPERANDS | TO_HOST]
DIFFERENTIABLE = [name for name in COMPUTED if OPERATIONS[name].differentiable]
#: Operations whose operands have equal shapes, so that a single axis cannot be enlarged.
ALIKE = {op.name for op in contract_operations() if op.family == "complex_numbers"} | {"astype", "eig", "eigvals"}


def reference(name: str) -> Any:
    """The NumPy function that an operation is compared with."""
    if name == "prod_of_others":  # the reference of the samples loops over elements
        return lambda x, axis: x.prod(axis, keepdims=True) / x
    return SAMPLES[name].reference


@cache
def cases_of(name: str, size: int) -> tuple[Sample, ...]:
    """The samples of an operation with complex operands at one size: all for the first size, otherwise at most two."""
    if not size:
        return tuple(sample for _, sample in complex_samples(name))
    found = []
    for index, written in enumerate(SAMPLES[name].cases):
        given = longer(name, index, written, size)
        sample = None if given is None else complex_sample(name, given)
        if sample is not None and any(o.size for o in flatten(sample.operands) if is_inexact(o)):
            found.append(sample)
        if len(found) == 2:
            break
    return tuple(found)


def longer(name: str, index: int, sample: Sample, size: int) -> Sample | None:
    """A sample with one axis, or its matrices, enlarged to a size; None if it cannot be."""
    if name in ALIKE:
        rows = (9, 31)[size - 1]
        lengths = (3, rows, rows) if "eig" in name else (3, (1_031, 66_047)[size - 1])
        make: Any = matrix if "eig" in name else real
        attributes = complex_samples(name)[0][1].attributes
        operands = tuple(make(*lengths, seed=i) for i in range(len(sample.operands)))
        return None if index else Sample(operands, attributes)
    if index > 1 and OPERATIONS[name].family == "decompositions":
        return None
    found = stretches(name, index, size - 1)
    return stretched(name, index, found[0]) if found else None


def operands_in(name: str, sample: Sample, dtype: str) -> list[Any]:
    """Operands in a dtype, with values exact in complex64, so that both dtypes have one reference."""
    narrow = operands_of(name, sample, "complex64")
    if dtype == "complex64":
        return narrow
    wide = {"c": np.complex128, "f": np.float64}
    return map_operands(narrow, lambda o: o.astype(wide[o.dtype.kind]) if is_inexact(o) else o)


@cache
def expected_of(name: str, size: int, place: int) -> tuple[Any, ...]:
    """The results of the reference in complex128."""
    sample = cases_of(name, size)[place]
    with np.errstate(all="ignore"):
        return as_tuple(reference(name)(*operands_in(name, sample, "complex128"), **sample.attributes))


@cache
def plain(name: str, size: int, dtype: str) -> tuple[Any, ...]:
    """The operands and options of the first sample of a size, and the NumPy backend's results."""
    sample = cases_of(name, size)[0]
    operands = operands_in(name, sample, dtype)
    return operands, sample.attributes, as_tuple(getattr(NUMPY, name)(*operands, **sample.attributes))


def elements_of(operands: Any) -> int:
    """The number of float and complex elements in the operands, at least 1."""
    return max(1, sum(o.size for o in flatten(operands) if is_inexact(o)))


def compare(got: Any, expected: Any, factor: float = 1.0) -> None:
    """Fail unless shapes are equal, and values within some units in the last place of the largest."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    if got.dtype.kind not in "fc":
        assert np.array_equal(got, expected)
        return
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(got))
    got, expected = got[finite], expected[finite]
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(got - expected).max(initial=0.0))
    assert error <= factor * 8 * float(np.finfo(got.dtype).eps) * scale, (error, scale)


def paired(a: Any, b: Any) -> float:
    """The real part of the sum of products: the pairing of a cotangent with a tangent in the contract."""
    return float(np.sum(a * b).real)


@cache
def smooth_cases(name: str) -> list[Sample]:
    """At most three small differentiable samples."""
    found = [s for s in cases_of(name, 0) if s.smooth and any(o.size for o in flatten(s.operands) if is_inexact(o))]
    return found[:3]


class Call:
    """One call as a function of its float and complex operands, at a point and along a direction."""

    def __init__(self, name: str, sample: Sample) -> None:
        self.name, self.sample = name, sample
        self.at = [o for o in flatten(sample.operands) if is_inexact(o)]
        generator = np.random.default_rng(3)
        self.along = [self.noise(generator, o.shape, o.dtype.kind == "c") for o in self.at]
        kinds = [x for x in self.run(NUMPY, self.at) if x.dtype.kind in "fc"]
        self.weights = [self.noise(generator, x.shape, x.dtype.kind == "c").astype(x.dtype) for x in kinds]

    @staticmethod
    def noise(generator: Any, shape: Any, is_complex: bool) -> Any:
        found = generator.uniform(-1, 1, shape)
        return np.asarray(found + 1j * generator.uniform(-1, 1, shape) if is_complex else found)

    def run(self, k: Any, primitives: Any) -> tuple[Any, ...]:
        remaining = iter(primitives)
        operands = map_operands(self.sample.operands, lambda o: next(remaining) if is_inexact(o) else k.from_numpy(o))
        return as_tuple(getattr(k, self.name)(*operands, **self.sample.attributes))

    def gradients(self, k: Any, primitives: Any) -> list[Any]:
        """The gradients of the weighted sum with respect to the operands, primitives of ``k``."""
        a = Autodiff(k)
        xs = [a.set_require_grad(a.from_inner(x), True) for x in primitives]
        outs = [x for x in self.run(a, xs) if a.dtype(x).has_gradient]
        found: list[Any] = [None] * len(xs)
        for w, out in zip(self.weights, outs, strict=True):
            if a.is_tracked(out):
                grads = a.backward(out, k.from_numpy(w), retain_graph=True)
                new = [a.grad(x, grads) for x in xs]
                found = [n if f is None else f if n is None else k.add(f, n) for f, n in zip(found, new, strict=True)]
        return [k.zeros(x.shape, k.dtype(x)) if g is None else g for g, x in zip(found, primitives, strict=True)]
