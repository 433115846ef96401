"""``check_grads``: compare derivatives with central differences."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backburn.base.dtypes import complex128, float64
from backburn.base.errors import ArgumentError, DTypeError
from backburn.base.trees import flatten, unflatten
from backburn.tensor.classes import DIFFERENTIABLE
from backburn.tensor.complex_numbers import conj, real
from backburn.tensor.core.host import asarray, fixed_noise
from backburn.tensor.core.levels import innermost
from backburn.tensor.core.options import bounded, integer
from backburn.transforms.derivatives import jvp, vjp
from backburn.transforms.levels import check_function, float_leaves, is_no_float


def check_grads(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int = 2,
    modes: Sequence[str] = ("reverse", "forward"),
    *,
    tolerance: float = 1e-6,
    step: float = 2.0**-17,
) -> None:
    """Compare the derivatives of ``f`` at ``args`` with central differences along fixed directions, to ``order``.

    Arguments are float64 and complex128 tensors. ``"reverse"`` checks vjp, ``"forward"`` jvp. Raises AssertionError
    with order, mode and both numbers where they differ by more than ``tolerance`` (times ten for each further order;
    relative, for numbers above 1) plus the rounding error of the differences.

        >>> import backburn as bb
        >>> check_grads(lambda x: bb.tanh(x), (bb.asarray([0.3, 0.7], dtype="float64"),))
    """
    check_function("check_grads", f)
    if args.__class__ is not tuple:
        raise ArgumentError("check_grads: args is a tuple with an entry for each argument: check_grads(f, (x,))")
    integer("check_grads", "the order", order, least=1)
    bounded("check_grads", "tolerance", tolerance, above=0)
    bounded("check_grads", "step", step, above=0)
    given: Any = modes
    for mode in given if isinstance(given, Iterable) and not isinstance(given, str) else (given,):
        if mode not in ("reverse", "forward"):
            raise ArgumentError(f"check_grads: modes are 'reverse' and 'forward', not {mode!r}")
        _check(f, args, order, mode, tolerance, step, 1)


def _check(f: Callable[..., Any], args: Any, order: int, mode: str, tolerance: float, step: float, now: int) -> None:
    leaves, structure = float_leaves("check_grads", args)
    for x in leaves:
        if x.dtype not in (float64, complex128):
            raise DTypeError(f"check_grads: central differences need float64 or complex128 arguments, not {x.dtype}")
    directions = [_noise(x, now + i) for i, x in enumerate(leaves)]
    tangent = unflatten(structure, directions)

    def scalar(*primals: Any) -> Any:
        """The outputs, weighted unevenly, so that swapped ones are detected."""
        outputs = [y for y in flatten(f(*primals))[0] if isinstance(y, DIFFERENTIABLE)]
        if not outputs:
            raise ArgumentError("check_grads: the function returns no float tensor, and so nothing to differentiate")
        return _added(_product(y, _noise(y, 100 + i)) for i, y in enumerate(outputs))

    def derivative(*primals: Any) -> Any:
        if mode == "forward":
            return jvp(scalar, primals, tangent)[1]
        gradients, _ = flatten(vjp(scalar, *primals)[1](1.0), is_constant=is_no_float)
        return _added(_product(g, d) for g, d in zip(gradients, directions, strict=True))

    def moved(sign: float) -> Any:
        return unflatten(structure, [x + sign * step * d for x, d in zip(leaves, directions, strict=True)])

    got = float(derivative(*args))
    ends = float(scalar(*moved(1.0))), float(scalar(*moved(-1.0)))
    expected = (ends[0] - ends[1]) / (2 * step)
    rounding = 64 * 2.0**-52 * max(map(abs, ends)) / step
    if not abs(got - expected) <= tolerance * max(1.0, abs(expected)) + rounding:
        drawn = float(scalar(*args)) != float(scalar(*args))
        hint = ". Two calls at one point differ: does it draw random numbers? model.eval() takes dropout out" * drawn
        raise AssertionError(f"derivative of order {now}, {mode}: got {got!r}, central difference {expected!r}{hint}")
    if now < order:
        _check(derivative, args, order, mode, 10 * tolerance, step, now + 1)


def _product(x: Any, y: Any) -> Any:
    """The inner product; for complex numbers, its real part."""
    return real(conj(x) * y).sum()


def _added(terms: Iterable[Any]) -> Any:
    """The sum of tensors."""
    return functools.reduce(operator.add, terms)


def _noise(x: Any, seed: int) -> Any:
    """Deterministic uneven numbers, none near 0, in the shape of ``x``."""
    noise = fixed_noise(x.shape, seed)
    if x.dtype.kind == "complex":
        noise = noise + 1j * fixed_noise(x.shape, seed + 1000)
    return asarray(noise, dtype=x.dtype, backend=innermost(x.backend))
