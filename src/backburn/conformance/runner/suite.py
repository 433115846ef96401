"""All checks of a backend, generated from the operation table and the samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from backburn.base.dtypes import DTYPES
from backburn.base.errors import ArgumentError, hint_for
from backburn.conformance.checks.autodiff_methods import method_checks
from backburn.conformance.checks.behaviour import behaviour_checks, bounds_checks, error_checks, signature_checks
from backburn.conformance.checks.check import NO_DTYPE, NO_SAMPLE, WHOLE, Check
from backburn.conformance.checks.gradients import complex_gradient_checks, gradient_checks
from backburn.conformance.checks.kinds import COMPLEX_KINDS, GRADIENT_KINDS, KINDS, LARGE_KINDS, VALUE_KINDS, kinds_of
from backburn.conformance.checks.large import large_checks
from backburn.conformance.checks.quantized import quantized_checks
from backburn.conformance.checks.values import complex_checks, dtype_checks, shape_checks, value_checks
from backburn.conformance.checks.whole_backend import (
    capability_checks,
    member_checks,
    random_checks,
    round_trip_checks,
)  # fmt: skip
from backburn.conformance.samples.calls import host_arrays
from backburn.conformance.samples.table import SAMPLES, Sample
from backburn.ops.table import OPERATIONS, Operation

#: The number of checks, and of operand shapes for each operation, with ``quick``.
QUICK_CHECKS, QUICK_SHAPES = 600, 4


def checks(
    backend: Any,
    *,
    quick: bool = False,
    large: bool = False,
    ops: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    kinds: Collection[str] | None = None,
) -> Iterator[Check]:
    """Every check of ``backend``, in the order of the operation table, for all or some operations, dtypes and kinds.

    If ``backend`` differentiates, its own gradients are checked, otherwise those of ``Autodiff`` around it. With
    ``quick`` there are at most 600 checks, spread over all operations and kinds, the same in every run; they include
    those of the backend's declarations, and none with large operands. With ``large`` there are more of the latter, with
    up to 2 ** 24 elements. A backend that computes no values may list the kinds of check that apply to it in an
    attribute ``conformance_kinds``; its reports say so.

    Raises :class:`ArgumentError` for an operation, dtype or kind that does not exist.

        >>> from backburn_numpy import NumpyBackend
        >>> [c.id for c in checks(NumpyBackend(), ops=["neg"], kinds=["special", "fan_out"], dtypes=["float32"])]
        ['neg-float32-special-6']
    """
    wanted = _known("operation", ops, [*OPERATIONS, WHOLE]), _known("dtype", dtypes, [*DTYPES, NO_DTYPE])
    wanted_kinds = _known("kind of check", kinds, KINDS)
    declared = kinds_of(backend)
    found = (
        check
        for check in _all(backend, wanted[0], wanted_kinds, None if quick else large)
        if (wanted[0] is None or check.operation in wanted[0])
        and (wanted[1] is None or check.dtype in wanted[1])
        and (wanted_kinds is None or check.kind in wanted_kinds)
        and (declared is None or (check.kind in declared and _has_shape(check)))
    )
    return iter(_quick(list(found))) if quick else found


def _has_shape(check: Check) -> bool:
    """Whether a backend without values can know the shape of the results."""
    return check.kind == "signature" or OPERATIONS[check.operation].shape is not None or check.kind == "capabilities"


def _known(what: str, names: Collection[str] | None, known: Collection[str]) -> set[str] | None:
    for name in names or ():
        if name not in known:
            raise ArgumentError(f"there is no {what} {name!r}. {hint_for(name, known)}")
    return set(names) if names else None


def _all(backend: Any, ops: set[str] | None, kinds: set[str] | None, large: bool | None) -> Iterator[Check]:
    """The checks of some operations and kinds, and others that are cheap to create; none of large calls for None."""
    for make in (member_checks, method_checks, capability_checks, round_trip_checks, random_checks, quantized_checks):
        yield from make(backend)
    for name, operation in OPERATIONS.items():
        if ops is not None and name not in ops:
            continue
        for made_kinds, makers in MAKERS.items():
            if kinds is None or not kinds.isdisjoint(made_kinds):
                for make_checks in makers if name in SAMPLES else [m for m in makers if m is signature_checks]:
                    yield from make_checks(backend, operation)
        if large is not None and name in SAMPLES and (kinds is None or not kinds.isdisjoint(LARGE_KINDS)):
            yield from large_checks(backend, operation, large)


Maker = Callable[[Any, Operation], Iterator[Check]]
#: Functions that create the checks of one operation, by the kinds that they create.
MAKERS: dict[tuple[str, ...], tuple[Maker, ...]] = {
    ("signature",): (signature_checks,),
    VALUE_KINDS: (value_checks,),
    ("dtype",): (dtype_checks,),
    ("shape",): (shape_checks,),
    ("layout", "mutation", "aliasing", "determinism"): (behaviour_checks,),
    ("bounds",): (bounds_checks,),
    ("errors",): (error_checks,),
    GRADIENT_KINDS: (gradient_checks,),
    COMPLEX_KINDS: (complex_checks, complex_gradient_checks),
}


def _quick(found: list[Check]) -> list[Check]:
    """At most :data:`QUICK_CHECKS`: protocols, a value and a gradient per operation, then each kind in rotation."""
    shapes: dict[str, set[Any]] = {}
    few = []
    for check in found:
        known = shapes.setdefault(check.operation, set())
        shape = None if check.sample is NO_SAMPLE else _shapes(check.sample)
        if shape in known or len(known) < QUICK_SHAPES:
            known.add(shape)
            few.append(check)
    selected = {check.id: check for check in found if check.kind in ("protocol", "trait")}
    for kind in ("value", "gradient"):
        seen = set()
        for check in few:
            if check.kind == kind and check.operation not in seen:
                seen.add(check.operation)
                selected[check.id] = check
    selected = dict(list(selected.items())[:QUICK_CHECKS])
    # The checks of each kind, in a deterministic order that mixes the operations.
    waiting = {
        kind: sorted((c for c in few if c.kind == kind and c.id not in selected), key=lambda c: -c.seed)
        for kind in KINDS
    }
    while len(selected) < QUICK_CHECKS and any(waiting.values()):
        for rest in waiting.values():
            if rest and len(selected) < QUICK_CHECKS:
                check = rest.pop()
                selected[check.id] = check
    return [check for check in found if check.id in selected]


def _shapes(sample: Sample) -> Any:
    return tuple(
        tuple(np.shape(x) for x in o) if isinstance(o, list) else getattr(o, "shape", None) for o in sample.operands
    )


def size_of(sample: Sample) -> int:
    """The number of elements of all operands of a sample."""
    return sum(a.size for a in host_arrays(sample))
