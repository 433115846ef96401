"""Derived samples: float samples with imaginary parts added, for operations that take complex numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from backburn.base.dtypes import complex128
from backburn.conformance.samples.calls import flatten, is_float, is_inexact, map_operands
from backburn.conformance.samples.table import SAMPLES, Array, Sample, case, real
from backburn.ops.table import OPERATIONS, Operation

#: The first index of these samples; the index of the original sample is added.
FIRST = 3000
#: The largest absolute value of an operand, well within the range of float32.
LARGEST = 1e30
#: The modes of scattering that are not defined for complex numbers.
CLOSED_MODES = frozenset({"mul", "min", "max"})
#: Operands that are tolerances.
REAL = frozenset({"rtol"})
#: The most samples of an operation.
MOST = 9


def takes_complex(operation: Operation) -> bool:
    """Whether an operation has complex operands or results."""
    return "C" in operation.kinds or "complex" in operation.results


@cache
def complex_samples(name: str) -> tuple[tuple[int, Sample], ...]:
    """The samples of an operation with finite complex operands, with their indices; none if it takes none."""
    if name not in SAMPLES or not takes_complex(OPERATIONS[name]):
        return ()
    return tuple(_derived(name))[:MOST]


def _derived(name: str) -> Iterator[tuple[int, Sample]]:
    cases = SAMPLES[name].cases
    if name == "astype":
        cases = tuple(case(real(*shape), dtype=complex128) for shape in ((2, 3), (0, 2)))
    for index, sample in enumerate(cases):
        if (found := complex_sample(name, sample)) is not None:
            yield FIRST + index, found


def complex_sample(name: str, sample: Sample) -> Sample | None:
    """A sample with an imaginary part added to each float; None if it has no floats or is not suitable.

    Operands of ``complex`` stay real. Operands of products become small enough for long products, and those of
    ``cholesky`` positive definite.
    """
    given = [o for o in flatten(sample.operands) if is_inexact(o)]
    if not given or not all(bool((np.abs(o) <= LARGEST).all()) for o in given):
        return None
    if sample.attributes.get("mode") in CLOSED_MODES:
        return None
    sample = replace(sample, gradients=None, relative=False, exact=False)
    if name == "complex":
        return replace(sample, smooth=3)
    operands = [
        o if parameter in REAL else map_operands([o], lambda o: with_imaginary(o) if is_float(o) else o)[0]
        for parameter, o in zip(OPERATIONS[name].operands, sample.operands, strict=False)
    ]
    if "prod" in name and any(o.size > 100 or np.abs(o).max(initial=0) > 100 for o in given):
        operands = map_operands(operands, lambda o: o / np.abs(o) if is_inexact(o) else o)
    if name == "cholesky":
        operands = [o @ o.conj().swapaxes(-1, -2) + np.eye(o.shape[-1]) for o in operands]
    return replace(sample, operands=tuple(operands))


def with_imaginary(x: Any) -> Array:
    """Values with imaginary parts away from 0, the same at every call."""
    generator = np.random.default_rng(x.size)
    return np.asarray(x + 1j * generator.uniform(0.2, 1.0, x.shape) * generator.choice([-1.0, 1.0], x.shape))
