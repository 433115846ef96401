"""Calls written out in steps that passes compute along with other calls on the same elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from backburn.base.dtypes import bool_, largest
from backburn.programs.fusion.partition import FUSABLE, OF_ROWS, may_have_rows, rows_of
from backburn.programs.fusion.plan import ALONG_ROWS, axes_of
from backburn.programs.ir import Call, Program, Variable, arguments, ordered, variables_in

#: The distance from 1 to the next float, by bits of the dtype.
EPSILONS = {32: 2.0**-23, 64: 2.0**-52}


def expand_variances(program: Program, k: Any) -> list[Call]:
    """A program of calls of ``k`` that computes variances from sums, if it computes their elements or means, too.

    A variance is the mean of the squares of ``x - mean``, less the square of the mean of ``x - mean``, which is the
    rounding error of the mean: no digits are lost if the mean is far from 0. Where only rounding errors remain, as for
    equal elements, the variance is 0. Standard deviations are roots of variances.
    """
    makers = program.makers()
    found: list[Call] = []
    means = {(call.operands[0], axes_of(call)): call for call in program.calls if _is_mean(call)}
    centres = {tuple(call.operands): call for call in program.calls if _is_difference(call)}
    for call in program.calls:
        if call.operation in ("var", "std") and _pays(call, makers, means):
            found += _Variance(program, k, call).calls(means, centres)
        else:
            found.append(call)
    return _in_order(program, found)


def expand_logsumexp(program: Program, k: Any) -> list[Call]:
    """A program of calls of ``k`` in which logarithms of sums of exponentials and their gradients share the sums.

    The gradient reads an element's share of the sum, by a ``softmax`` of the operand with infinities replaced. It has
    exponentials of its own, which another pass computes faster than it reads them; in the same pass they are shared.
    """
    sums = {call.operands[0]: call for call in program.calls if call.operation == "logsumexp" and _is_of_rows(call)}
    shares: dict[Variable, list[Call]] = {}
    makers = program.makers() if sums else {}
    for call in program.calls if sums else ():
        if call.operation != "softmax" or not isinstance(call.operands[0], Variable):
            continue
        if (clip := makers.get(call.operands[0])) is not None and _is_bounded(clip):
            x = clip.operands[0]
            if x in sums and arguments(call)[1] == len(x.shape) - 1:
                shares.setdefault(x, []).append(call)
    expanded = {sums[x]: _LogSumExp(program, k, sums[x]) for x in shares}
    expanded |= {call: expanded[sums[x]] for x, calls in shares.items() for call in calls}
    found = [one for call in program.calls for one in (expanded[call].of(call) if call in expanded else (call,))]
    return _in_order(program, found)


def _in_order(program: Program, calls: list[Call]) -> list[Call]:
    """Calls in place of a program's, each after those that compute its operands; the program's if none is new."""
    if len(calls) == len(program.calls):
        return program.calls
    known = {v: call for call in calls for v in call.writes}
    return ordered([v for call in calls for v in variables_in([call.results])], known)


def _is_of_rows(call: Call) -> bool:
    """Whether a call reduces rows along the last axis, as passes iterate over them."""
    x = call.operands[0]
    if not isinstance(x, Variable) or not x.dtype.is_floating or x.dtype.bits < 32 or len(x.shape) < 2:
        return False
    space, depth = rows_of(x.shape, x.dtype)
    return axes_of(call) == (len(x.shape) - 1,) and depth == 1 and may_have_rows(space)


def _is_bounded(call: Call) -> bool:
    """Whether a call replaces the infinities of a variable by the largest finite numbers."""
    x, low, high = arguments(call) if call.operation == "clip" else (None, None, None)
    if not isinstance(x, Variable) or not isinstance(low, float) or not isinstance(high, float):
        return False
    return -low == high == largest(x.dtype)


def _is_mean(call: Call) -> bool:
    """Whether a call computes means that broadcast to its operand."""
    return (
        call.operation == "mean"
        and isinstance(call.results, Variable)
        and isinstance(call.operands[0], Variable)
        and bool(arguments(call)[2])
    )


def _is_difference(call: Call) -> bool:
    """Whether a call subtracts one variable from another."""
    is_plain = isinstance(call.results, Variable) and not call.attributes
    return call.operation == "sub" and is_plain and all(isinstance(x, Variable) for x in call.operands)


def _pays(call: Call, makers: dict[Variable, Call], means: dict[Any, Call]) -> bool:
    """Whether a variance is of rows or columns that a pass computes or reads anyway."""
    x, _, correction, _ = arguments(call)
    if not isinstance(x, Variable) or not x.dtype.is_floating or x.dtype.bits < 32 or len(x.shape) < 2:
        return False
    axes, rank = axes_of(call), len(x.shape)
    space, depth = rows_of(x.shape, x.dtype)
    if axes not in ((*range(rank - depth, rank),), (*range(rank - depth),)) or not may_have_rows(space):
        return False
    if not isinstance(correction, int | float) or prod(x.shape[axis] for axis in axes) <= correction:
        return False
    maker = makers.get(x)
    is_made = maker is not None and (maker.operation in FUSABLE | OF_ROWS or maker.operation in ALONG_ROWS)
    return is_made or (x, axes) in means


class _Expansion:
    """The calls in place of one."""

    def __init__(self, program: Program, k: Any, call: Call) -> None:
        self._program, self._k, self._call = program, k, call
        self._made: list[Call] = []

    def _make(self, operation: str, operands: Sequence[Any], shape: tuple[int, ...], results: Any = None) -> Variable:
        made: Variable = self._program.variable(shape, self._call.results.dtype) if results is None else results
        self._made.append(Call(operation, getattr(self._k, operation), [*operands], {}, made))
        return made


class _LogSumExp(_Expansion):
    """The calls in place of the logarithms of sums of exponentials, and of elements' shares of the sums."""

    def __init__(self, program: Program, k: Any, call: Call) -> None:
        super().__init__(program, k, call)
        self._x = x = call.operands[0]
        self._bound, self._kept = largest(x.dtype), (*x.shape[:-1], 1)
        self._top = self._make("max", [x, axes_of(call), True], self._kept)
        self._shift = self._bounded(self._top)
        self._total = self._make("sum", [self._powers(), axes_of(call), True], self._kept)
        self._factor = self._make("reciprocal", [self._total], self._kept)

    def _bounded(self, x: Variable) -> Variable:
        return self._make("clip", [x, -self._bound, self._bound], x.shape)

    def _powers(self) -> Variable:
        """The exponentials of the differences to a row's largest element, which are finite."""
        shape = self._x.shape
        return self._make("exp", [self._make("sub", [self._bounded(self._x), self._shift], shape)], shape)

    def of(self, call: Call) -> list[Call]:
        """The calls in place of this one; the first ones compute what all read."""
        if call is self._call:
            logarithm = self._make("log", [self._total], self._kept)
            found = self._make("add", [logarithm, self._top], self._kept)
            self._make("reshape", [found, tuple(call.results.shape)], call.results.shape, call.results)
        else:
            self._make("mul", [self._powers(), self._factor], self._x.shape, call.results)
        made, self._made = self._made, []
        return made


class _Variance(_Expansion):
    """The calls in place of a variance."""

    def calls(self, means: dict[Any, Call], centres: dict[tuple[Any, ...], Call]) -> list[Call]:
        """The calls; they use the existing ``means`` and differences, ``centres``."""
        call = self._call
        x, _, correction, keepdims = arguments(call)
        axes, result = axes_of(call), call.results
        count = prod(x.shape[axis] for axis in axes)
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        one = means.get((x, axes))
        mean = one.results if one is not None else self._make("mean", [x, axes, True], kept)
        difference = centres.get((x, mean))
        centre = difference.results if difference is not None else self._make("sub", [x, mean], x.shape)
        shape, keep = tuple(result.shape), bool(keepdims)
        squares = self._make("sum", [self._make("square", [centre], x.shape), axes, keep], shape)
        rest = self._make("mean", [centre, axes, keep], shape)
        freedom = float(count - correction)
        lost = self._make("mul", [self._make("square", [rest], shape), count / freedom], shape)
        lost = self._make("minimum", [lost, largest(result.dtype)], shape)  # what remains of infinity is infinite
        total = self._make("sub", [self._make("div", [squares, freedom], shape), lost], shape)
        errors = self._make("mul", [lost, 64 * EPSILONS[result.dtype.bits]], shape)
        none = self._program.variable(shape, bool_)
        self._make("less_equal", [total, errors], shape, none)
        variance = self._make("where", [none, 0.0, total], shape, None if call.operation == "std" else result)
        if call.operation == "std":
            self._make("sqrt", [variance], shape, result)
        return self._made
