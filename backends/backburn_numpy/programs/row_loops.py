"""Norms and softmax of rows, split into parts that machine-code loops compute with the calls around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TypeVar

from backburn.base.dtypes import float32, largest
from backburn.programs.fusion.plan import Extent
from backburn.programs.lowering import Call, Value

#: The narrowest rows: for narrower ones, gradients are computed in doubles where their terms cancel.
MIN_WIDTH = 32
#: The kernel of the moments of rows, which the parts of norms read.
MOMENTS = "moments"
#: How many times kernels sweep over the elements of rows; others do so once.
SWEEPS = {"standardize": 3, "standardize_backward": 4, MOMENTS: 2, "softmax": 3, "log_softmax": 3, "logsumexp": 2}
#: The largest finite number, in place of infinity.
LARGEST = largest(float32)

Maker = TypeVar("Maker")


def split_rows(
    calls: Sequence[Call],
    absent: Value,
    constant: Callable[[float], Value],
    options: MutableMapping[Value, tuple[float, bool]],
    sums: Mapping[Value, Value],
    extents: MutableMapping[Value, Extent],
    makers: MutableMapping[Value, Maker],
) -> list[Call]:
    """The calls with float32 norms, their gradients and softmax split into parts, bitwise equal to their kernels.

    A norm and its gradient share moments and standardized elements, calls of one operand its powers. ``absent`` stands
    for an absent operand; ``options``, ``extents`` and ``makers`` receive those of new values.
    """
    found: list[Call] = []
    known: dict[tuple[Value, tuple[float, bool]], tuple[Value, Value]] = {}
    known_powers: dict[tuple[Value, bool], tuple[Value, Value, Value, Value]] = {}

    def make(kernel: str, of: Value, given: Sequence[Value], extent: Extent = Extent.FULL) -> Value:
        made = Value()
        extents[made], makers[made] = extent, makers[of]
        found.append((kernel, made, [*given]))
        return made

    def standardized(of: Value, x: Value) -> tuple[Value, Value]:
        """The moments of a norm's operand, and its standardized elements."""
        key = x, options[of]
        if key not in known:
            moments = make(MOMENTS, of, [x], Extent.ROW)
            options[moments] = options[of]
            known[key] = moments, make("standardized", of, [x, moments])
        return known[key]

    def powers(of: Value, x: Value, is_bounded: bool) -> tuple[Value, Value, Value, Value]:
        """The largest element of rows, the elements without it, the powers of these, and the sums of the powers."""
        key = x, is_bounded
        if key not in known_powers:
            top = make("max_rows", of, [x], Extent.ROW)
            if is_bounded:  # a row of infinities has infinite differences
                top = make("clamp", of, [top, constant(-LARGEST), constant(LARGEST)], Extent.ROW)
            below = make("subtract", of, [x, top])
            power = make("exp", of, [below])
            known_powers[key] = top, below, power, make("sum_rows", of, [power], Extent.ROW)
        return known_powers[key]

    for kernel, made, given in calls:
        if kernel == "standardize":
            x, scale, bias = given
            _, y = standardized(made, x)
            factors = [x for x in (scale, bias) if x is not absent]
            name = {0: "fill", 1: "add" if scale is absent else "multiply", 2: "multiply_add"}[len(factors)]
            found.append((name, made, [y, *factors]))
        elif kernel == "standardize_backward":
            grad, x, scale = given
            moments, y = standardized(made, x)
            slope = make("multiply", made, [grad, scale])
            level = make("mean_rows", made, [slope], Extent.ROW) if options[made][1] else constant(0.0)
            tilt = make("mean_products", made, [slope, y], Extent.ROW)
            found.append(("standardize_gradient", made, [grad, scale, y, tilt, level, moments]))
            found.append(("sum_products", sums[made], [grad, y]))
        elif kernel == "softmax":
            _, _, power, total = powers(made, given[0], False)
            found.append(("multiply", made, [power, make("reciprocal", made, [total], Extent.ROW)]))
        elif kernel == "log_softmax":
            _, below, _, total = powers(made, given[0], False)
            found.append(("subtract", made, [below, make("log", made, [total], Extent.ROW)]))
        elif kernel == "logsumexp":
            top, _, _, total = powers(made, given[0], True)
            found.append(("add", made, [make("log", made, [total], Extent.ROW), top]))
        else:
            found.append((kernel, made, given))
    return found
