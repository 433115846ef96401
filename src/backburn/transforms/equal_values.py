"""Derivatives where a function decomposes a matrix with equal eigenvalues or singular values.

There the vectors are any basis of a space, and a cotangent for one basis does not tell how the function treats others
(:mod:`backburn.ops.decompositions`): rules give NaN. A transform has the function itself, and runs it again in forward
mode along several lines, each with the vectors that are continuous along it. The slopes are a derivative if the
function has the same value for each choice of vectors, and if they are linear in the direction.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from backburn.autodiff import Dual
from backburn.autodiff.along import AlongTwice, ForwardAlong, join_below, stands_on_line, tangent_below, value_below
from backburn.base.contexts import DECOMPOSED, scoped
from backburn.base.dtypes import float64
from backburn.base.trees import flatten, unflatten
from backburn.ops.bodies.decompositions import EPS
from backburn.tensor.classes import DIFFERENTIABLE, FloatTensor
from backburn.tensor.core.dispatch import call, cast, create
from backburn.tensor.core.host import asarray, fixed_noise, has_equal_values, has_nan
from backburn.tensor.core.levels import constant, innermost, lift
from backburn.tensor.core.wrapping import tensor_of
from backburn.tensor.generators import Draws
from backburn.transforms.levels import as_output, lower, transform_scope

#: The most elements of arguments for which lines are followed: one for each element.
MOST = 1024
#: The same where the gradient is not NaN, and can be wrong only if a cotangent happens to be 0.
MOST_TO_CHECK = 64
#: By how many rounding errors values and slopes may differ.
ROUNDINGS = 1e4


def decompositions(found: list[Any]) -> scoped[Any]:
    """Fill a list with the eigenvalues and singular values that are computed, each with whether vectors are, too."""
    return scoped(DECOMPOSED, (*DECOMPOSED.get(), found))


def some_are_equal(found: list[Any]) -> bool:
    """Whether one of the decompositions has equal values, as far as they can be read."""
    return any(has_equal_values(x, 64 * x.shape[-1] * EPS[x.dtype.name]) for x, _ in found)


def along(
    f: Callable[..., Any], draws: Draws, structure: Any, leaves: list[FloatTensor], moves: list[Any], below: Any
) -> tuple[list[Any], list[Any]]:
    """The results of ``f`` and their tangents, on the level ``below``, with the vectors that belong to the tangents."""
    moved = [tensor_of(lift(t, below), below, x.dtype) for x, t in zip(leaves, moves, strict=True)]
    given = [tensor_of(lift(x, below), below, x.dtype) for x in leaves]
    if not stands_on_line(below):
        return run(f, draws, structure, given, moved, ForwardAlong.level(below))
    # A second derivative along two lines follows from those along their sum and their difference.
    own = [tangent_on_line(x) for x in given]
    size = largest(own)
    scale = call("where", call("equal", size, 0.0), 1.0, size)
    runs = []
    for sign in (1.0, -1.0):
        step = [t * cast(scale * sign, t.dtype) for t in moved]
        first = [x + value_on_line(t) for x, t in zip(own, step, strict=True)]
        bend = [tangent_on_line(t) * 2.0 for t in step]
        starts = [joined(value_on_line(x), t) for x, t in zip(given, first, strict=True)]
        lines = [joined(t, b) for t, b in zip(first, bend, strict=True)]
        runs.append(run(f, draws, structure, starts, lines, AlongTwice.level(below)))
    (values, plus), (_, minus) = runs
    slopes = []
    for a, b in zip(plus, minus, strict=True):
        first_slope = (value_on_line(a) - value_on_line(b)) / cast(scale * 2.0, a.dtype)
        second_slope = (tangent_on_line(a) - tangent_on_line(b)) / cast(scale * 4.0, a.dtype)
        slopes.append(joined(first_slope, second_slope))
    return values, slopes


def run(
    f: Callable[..., Any], draws: Draws, structure: Any, starts: list[Any], moves: list[Any], level: Any
) -> tuple[list[Any], list[Any]]:
    """The float results of ``f`` and their tangents for tensors on the level below ``level``."""
    below = level.inner_backend
    duals: list[Dual[Any]] = [Dual(x.primitive, t.primitive) for x, t in zip(starts, moves, strict=True)]
    with transform_scope(level):
        given = unflatten(structure, [tensor_of(d, level, x.dtype) for d, x in zip(duals, starts, strict=True)])
        outputs = flatten(draws.again(lambda: f(*given)))[0]
    values, tangents = [], []
    for x in (as_output("jvp", x, level) for x in outputs):
        if not isinstance(x, DIFFERENTIABLE):
            continue
        tangent = level.from_inner(lift(x, below)).tangent if x.backend is not level else x.primitive.tangent
        values.append(lower(x.inner() if x.backend is level else x, below))
        zeros = below.zeros(x.shape, x.dtype)
        tangents.append(tensor_of(zeros if tangent is None else tangent, below, x.dtype))
    return values, tangents


def value_on_line(x: Any) -> Any:
    """A tensor of a level on a line without its tangent there."""
    return tensor_of(value_below(x.backend, x.primitive), x.backend, x.dtype)


def tangent_on_line(x: Any) -> Any:
    """The tangent of a tensor of a level on a line, zeros if it has none."""
    found = tangent_below(x.backend, x.primitive)
    return tensor_of(x.backend.zeros(x.shape, x.dtype) if found is None else found, x.backend, x.dtype)


def joined(x: Any, t: Any) -> Any:
    """The tensor on a line that has the value ``x`` and the tangent ``t``."""
    return tensor_of(join_below(x.backend, x.primitive, t.primitive), x.backend, x.dtype)


def largest(tensors: list[Any]) -> Any:
    """The largest absolute value of the elements of tensors, in float64; 0 without elements."""
    sizes = [cast(whole("max", call("abs", constant(x))), float64) for x in tensors if x.size]
    return functools.reduce(lambda a, b: call("maximum", a, b), sizes)


def same(values: list[Any], others: list[Any], leaves: list[Any]) -> Any:
    """Whether all of the values are equal to ``others`` up to rounding; inside ``vmap``, for each example.

    The rounding of results near 0 is estimated from the arguments, if these are not 0.
    """
    result: Any = None
    size = largest(leaves)
    size = call("where", call("equal", size, 0.0), 1.0, size)
    for x, y in zip(map(constant, values), map(constant, others), strict=True):
        if not y.size:
            continue
        eps = EPS[y.dtype.name]
        bound = whole("max", call("abs", y)) * (ROUNDINGS * eps) + cast(size * (64 * eps), y.dtype)
        all_near = whole("all", call("less_equal", call("abs", x - y), bound))
        result = all_near if result is None else call("logical_and", result, all_near)
    return result


def repaired_tangents(
    f: Callable[..., Any], draws: Draws, structure: Any, leaves: list[Any], moves: list[Any], below: Any,
    values: list[Any], tangents: list[Any],
) -> list[Any]:  # fmt: skip
    """The ``tangents`` of the float ``values``, replaced by those along the line where the values agree."""
    there, slopes = along(f, draws, structure, leaves, moves, below)
    known = same(there, values, leaves)
    return [call("where", known, new, old) for new, old in zip(slopes, tangents, strict=True)]


def repaired_gradients(
    f: Callable[..., Any], draws: Draws, structure: Any, leaves: list[Any], below: Any, found: list[Any],
    values: list[Any], cotangents: list[Any], gradients: list[Any],
) -> list[Any]:  # fmt: skip
    """The ``gradients`` of the leaves for cotangents of the float ``values``, or those along lines.

    They are NaN where the results depend on the choice of vectors.
    """
    total = sum(x.size for x in leaves)
    undefined = any(map(has_nan, gradients))
    if total > (MOST if undefined else MOST_TO_CHECK) or not (undefined or any(vectors for _, vectors in found)):
        return gradients
    known: list[Any] = []

    def slope(moves: list[Any]) -> Any:
        """The slope of the sum of results times cotangents."""
        there, slopes = along(f, draws, structure, leaves, moves, below)
        known.append(same(there, values, leaves))
        return added(whole("sum", s * c) for s, c in zip(slopes, cotangents, strict=True))

    home = innermost(below)
    zeros = [tensor_of(home.zeros(x.shape, x.dtype), home, x.dtype) for x in leaves]
    repaired, noise = [], []
    for place, x in enumerate(leaves):
        units = call("reshape", create("eye", home, n=x.size, m=x.size, offset=0, dtype=x.dtype), shape=(-1, *x.shape))
        slopes = [slope([*zeros[:place], units[i], *zeros[place + 1 :]]) for i in range(x.size)]
        repaired.append(call("reshape", call("stack", slopes, axis=0), shape=x.shape) if slopes else zeros[place])
        noise.append(asarray(fixed_noise(x.shape, place + 1), dtype=x.dtype, backend=home))
    extent = largest(leaves)
    floor = added(
        cast(whole("sum", call("abs", constant(v * c))), float64) for v, c in zip(values, cotangents, strict=True)
    )
    floor = floor / call("where", call("equal", extent, 0.0), 1.0, extent)
    is_linear = agree(slope(noise), repaired, noise, floor)
    is_function = functools.reduce(lambda a, b: call("logical_and", a, b), known)
    results = []
    for new, old, x in zip(repaired, gradients, leaves, strict=True):
        chosen = call("where", is_linear, cast(new, x.dtype), old)
        results.append(call("where", is_function, chosen, chosen * math.nan))  # its derivatives are NaN as well
    return results


def agree(across: Any, slopes: list[Any], directions: list[Any], floor: Any) -> Any:
    """Whether a slope is the sum of ``slopes`` times ``directions`` up to rounding, and on a line its tangent as well.

    Rounding is relative to the size of the slopes, plus ``floor``.
    """
    bound = ROUNDINGS * max(EPS[x.dtype.name] for x in slopes)

    def compared(total: Any, parts: list[Any], floor: Any) -> tuple[Any, Any]:
        products = [cast(constant(p) * d, float64) for p, d in zip(parts, directions, strict=True)]
        size = floor + added(whole("sum", call("abs", p)) for p in products)
        off = call("abs", cast(constant(total), float64) - added(whole("sum", p) for p in products))
        return call("less_equal", off, size * bound), size

    result, size = compared(across, slopes, floor)
    if not stands_on_line(across.backend):
        return result
    again, _ = compared(tangent_on_line(across), [tangent_on_line(x) for x in slopes], size)
    return call("logical_and", result, again)


def whole(name: str, x: Any) -> Any:
    """A reduction over all axes."""
    return call(name, x, axis=tuple(range(x.ndim)), keepdims=False)


def added(terms: Iterable[Any]) -> Any:
    """The sum of tensors."""
    return functools.reduce(operator.add, terms)
