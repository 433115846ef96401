"""The smallest input on which a check fails, as code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from backburn.conformance.checks.behaviour import out_of_bounds, refused_calls
from backburn.conformance.checks.check import NO_SAMPLE, Check
from backburn.conformance.checks.kinds import LARGE_KINDS
from backburn.conformance.checks.large import shortest_failing
from backburn.conformance.checks.timeout import time_limit
from backburn.conformance.checks.values import value_kind
from backburn.conformance.runner.suite import size_of
from backburn.conformance.samples.calls import dtypes_of, operands_of
from backburn.conformance.samples.derived.edge_values import samples_of
from backburn.conformance.samples.table import Sample
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import OPERATIONS

#: The number of inputs that are tried.
TRIES = 60
#: The number of elements of an operand that are shown.
SHOWN = 40


def smallest_failing(check: Check, seconds: float | None = None) -> str:
    """The call with the fewest elements for which ``check`` still fails; ``""`` if it does not call a sample.

    The search repeats the failed check. If the search itself fails, or takes longer than ``seconds``, the result is the
    original call.
    """
    if check.sample is NO_SAMPLE:
        return ""
    try:
        with time_limit(seconds):
            return _search(check)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:
        return call_text(check.operation, list(check.sample.operands), check.sample.attributes)


def _search(check: Check) -> str:
    if check.kind == "errors":
        _, operands, attributes = refused_calls(OPERATIONS[check.operation], check.sample, check.dtype)[
            check.index % 100
        ]
        return call_text(check.operation, operands, attributes)
    if check.kind == "bounds":
        return call_text(check.operation, out_of_bounds(check)[0], check.sample.attributes)
    if check.kind in LARGE_KINDS:
        shortest = shortest_failing(check)
        return call_text(check.operation, operands_of(check.operation, shortest, check.dtype), shortest.attributes)
    best = check.sample
    for tried, sample in enumerate(_candidates(check)):
        if tried == TRIES:
            break
        if size_of(sample) < size_of(best) and _fails(replace(check, sample=sample)):
            best = sample
    return call_text(check.operation, operands_of(check.operation, best, check.dtype), best.attributes)


def _candidates(check: Check) -> Iterator[Sample]:
    operation, sample = OPERATIONS[check.operation], check.sample
    arrays = [o for o in sample.operands if isinstance(o, np.ndarray)]
    if operation.shape in (broadcast, unchanged) and arrays and not any(isinstance(o, list) for o in sample.operands):
        shape = _common_shape(arrays)
        for place in np.ndindex(*shape):
            yield replace(sample, operands=tuple(_element(o, shape, place) for o in sample.operands), gradients=None)
    kind = value_kind(operation, sample)
    for _, other in sorted(samples_of(check.operation), key=lambda s: size_of(s[1])):
        same_kind = value_kind(operation, other) == kind and size_of(other)
        if same_kind and check.dtype in dtypes_of(check.operation, other, check.backend):
            yield other


def _common_shape(arrays: list[Any]) -> tuple[int, ...]:
    """The shape to which operands broadcast; an empty shape if they do not."""
    try:
        return np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return (0,)


def _element(operand: Any, shape: tuple[int, ...], place: tuple[int, ...]) -> Any:
    if not isinstance(operand, np.ndarray):
        return operand
    return np.broadcast_to(operand, shape)[place].reshape((1,) * min(1, len(shape)))


def _fails(check: Check) -> bool:
    try:
        check()
    except AssertionError as error:
        return bool(str(error))
    except Exception:
        return False  # the other call fails for another reason
    return False


def call_text(name: str, operands: list[Any], attributes: dict[str, Any]) -> str:
    """A call of an operation as code.

    >>> call_text("add", [np.array([1.0, 2.0]), 2.0], {})
    'k.add(array([1., 2.], dtype=float64), 2.0)'
    """
    words = [_text(o) for o in operands] + [f"{n}={v!r}" for n, v in attributes.items()]
    return f"k.{name}({', '.join(words)})"


def _text(operand: Any) -> str:
    if isinstance(operand, list):
        return f"[{', '.join(map(_text, operand))}]"
    if not isinstance(operand, np.ndarray):
        return repr(operand)
    with np.printoptions(threshold=SHOWN, precision=9, linewidth=10**6, floatmode="unique"):
        values = np.array2string(operand, separator=", ").replace("\n", "")
    shape = f", shape={operand.shape}" if not operand.size or operand.size > SHOWN else ""
    return f"array({values}, dtype={operand.dtype.name}{shape})"
