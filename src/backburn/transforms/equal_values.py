"""Derivatives where a function decomposes a matrix with equal eigenvalues or singular values.

There the vectors are any basis of a space, and a cotangent of one does not tell what the function does to the others
(:mod:`backburn.ops.decompositions`): rules give NaN. A transform has the function itself, and runs it again in forward
mode along one line after the other, with the vectors that are continuous along it. What it finds is a derivative if the
function has the same value for each choice of vectors, and if the slopes are linear in the direction.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from backburn.autodiff import Dual
from backburn.autodiff.along import ForwardAlong
from backburn.base.contexts import DECOMPOSED, scoped
from backburn.base.dtypes import float64
from backburn.base.trees import flatten, unflatten
from backburn.ops.decompositions import EPS
from backburn.tensor.classes import FloatTensor
from backburn.tensor.core.dispatch import call, cast, create
from backburn.tensor.core.host import asarray, fixed_noise, has_equal_values, has_nan
from backburn.tensor.core.levels import constant, innermost, lift
from backburn.tensor.generators import Draws
from backburn.transforms.levels import as_output, lower, transform_scope

#: The most elements of arguments for which lines are followed: one for each.
MOST = 1024
#: The same where the gradient is not NaN, and can be wrong only if a cotangent happens to be 0.
MOST_TO_CHECK = 64
#: By how many rounding errors values and slopes may differ.
ROUNDINGS = 1e4


def decompositions(found: list[Any]) -> scoped[Any]:
    """Fill a list with the eigenvalues and singular values that are computed, and whether with vectors."""
    return scoped(DECOMPOSED, (*DECOMPOSED.get(), found))


def some_are_equal(found: list[Any]) -> bool:
    """Whether one of the decompositions has equal values, as far as they can be read."""
    return any(has_equal_values(x, 64 * x.shape[-1] * EPS[x.dtype.name]) for x, _ in found)


def along(
    f: Callable[..., Any], draws: Draws, structure: Any, leaves: list[FloatTensor], moves: list[Any], below: Any
) -> tuple[list[Any], list[Any]]:
    """The results of ``f`` and their tangents, on the level ``below``, with the vectors that belong to the tangents."""
    level = ForwardAlong.level(below)
    duals: list[Dual[Any]] = [Dual(lift(x, below), lift(t, below)) for x, t in zip(leaves, moves, strict=True)]
    with transform_scope(level):
        given = unflatten(structure, [FloatTensor(d, level, x.dtype) for d, x in zip(duals, leaves, strict=True)])
        outputs = flatten(draws.again(lambda: f(*given)))[0]
    values, tangents = [], []
    for x in (as_output("jvp", x, level) for x in outputs):
        if not isinstance(x, FloatTensor):
            continue
        tangent = x.primitive.tangent if x.backend is level else None
        values.append(lower(x.inner() if x.backend is level else x, below))
        zeros = below.zeros(x.shape, x.dtype)
        tangents.append(FloatTensor(zeros if tangent is None else tangent, below, x.dtype))
    return values, tangents


def same(values: list[Any], others: list[Any], leaves: list[Any]) -> Any:
    """A truth value, of each example inside ``vmap``: whether all of the values are those of ``others`` to rounding.

    That of results near 0 is estimated from the arguments, if these are not 0.
    """
    result: Any = None
    sizes = [cast(whole("max", call("abs", constant(x))), float64) for x in leaves if x.size]
    size = functools.reduce(lambda a, b: call("maximum", a, b), sizes)
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
    """The ``tangents`` of the float ``values``, with those along the line where the values are the same there."""
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
    zeros = [FloatTensor(home.zeros(x.shape, x.dtype), home, x.dtype) for x in leaves]
    repaired, products, noise = [], [], []
    for place, x in enumerate(leaves):
        units = call("reshape", create("eye", home, n=x.size, m=x.size, offset=0, dtype=x.dtype), shape=(-1, *x.shape))
        slopes = [slope([*zeros[:place], units[i], *zeros[place + 1 :]]) for i in range(x.size)]
        repaired.append(call("reshape", call("stack", slopes, axis=0), shape=x.shape) if slopes else zeros[place])
        noise.append(asarray(fixed_noise(x.shape, place + 1), dtype=x.dtype, backend=home))
        products.append(constant(repaired[-1]) * noise[-1])
    across = constant(slope(noise))
    size = added(whole("sum", call("abs", p)) for p in products)
    off = call("abs", across - added(whole("sum", p) for p in products))
    is_linear = call("less_equal", off, size * (ROUNDINGS * max(EPS[x.dtype.name] for x in leaves)))
    is_function = functools.reduce(lambda a, b: call("logical_and", a, b), known)
    results = []
    for new, old, x in zip(repaired, gradients, leaves, strict=True):
        chosen = call("where", is_linear, cast(new, x.dtype), old)
        results.append(call("where", is_function, chosen, math.nan))
    return results


def whole(name: str, x: Any) -> Any:
    """A reduction over all axes."""
    return call(name, x, axis=tuple(range(x.ndim)), keepdims=False)


def added(terms: Iterable[Any]) -> Any:
    """The sum of tensors."""
    return functools.reduce(operator.add, terms)
