"""Element-wise calls on a stack of a loop's results, moved to where its parts are computed.

A loop stacks its results, a loss sums over the stack, and the gradient of the loss is split into parts again for the
backward loop. A pass over the whole stack reads it from memory; a part is still in cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from backburn.programs.fusion.partition import FUSABLE
from backburn.programs.ir import Call, Number, Program, Variable, arguments, ordered, variables_in

#: Element-wise operations, whose operands may be arrays of one shape and numbers.
ELEMENTWISE = FUSABLE | {"pow"}
#: The fewest parts, and the most elements of one: larger ones leave the cache.
FEWEST, MOST_ELEMENTS = 4, 1 << 14


class _Stack(NamedTuple):
    """The parts of a value along its first axis, by their starts, and those of the stack that it is computed from."""

    parts: dict[int, Variable]
    bases: dict[int, Variable]


def split_stacks(program: Program, k: Any, is_native: Callable[[Call], bool]) -> list[Call]:
    """A program of calls of ``k`` in which element-wise calls on stacks are calls on the parts, if these are native."""
    stacks = {call.results: made for call in program.calls if (made := _stack(call)) is not None}
    return _Splitting(program, k, stacks).split(is_native) if stacks else program.calls


def _stack(call: Call) -> _Stack | None:
    """The parts of the stack or concatenation that a call computes; None for other calls, and for scalars."""
    if call.operation not in ("stack", "concat"):
        return None
    parts, axis = arguments(call)
    dtype = call.results.dtype
    if axis or len(parts) < FEWEST or not dtype.is_floating or dtype.bits < 32:
        return None
    starts: dict[int, Variable] = {}
    at = 0
    for part in parts:
        if not isinstance(part, Variable) or part.dtype is not dtype:
            return None
        if not part.shape or not 0 < prod(part.shape) <= MOST_ELEMENTS:
            return None
        starts[at] = part
        at += 1 if call.operation == "stack" else part.shape[0]
    return _Stack(starts, starts)


class _Splitting:
    """The calls of a program, some of which are replaced."""

    def __init__(self, program: Program, k: Any, stacks: dict[Variable, _Stack]) -> None:
        self._program = program
        self._calls = program.calls
        self._k = k
        self._stacks = stacks
        self._makers = program.makers()
        self._readers = program.users()
        self._returned = {*program.returned}
        #: The values to compute right after another.
        self._next: dict[Variable, list[Variable]] = defaultdict(list)

    def split(self, is_native: Callable[[Call], bool]) -> list[Call]:
        """The calls in their new order."""
        splits = self._splits(is_native)
        if not splits:
            return self._calls
        for call in self._calls:
            result, first = call.results, call.operands[0] if call.operands else None
            if isinstance(result, Variable) and result in splits:
                self._stacks[result] = self._on_parts(call)
                del self._makers[result]
            elif isinstance(first, Variable) and first in splits:
                stack = self._stacks[first]
                if call.operation == "slice":
                    part = stack.parts[arguments(call)[1][0].start]
                    self._put(Call("reshape", self._k.reshape, [part, result.shape], {}, result))
                else:
                    self._sum(call, stack)
        results = variables_in([call.results for call in self._calls])
        return ordered(results, self._makers, self._next)

    def _splits(self, is_native: Callable[[Call], bool]) -> set[Variable]:
        """The results of element-wise calls on stacks that are read in parts only, or summed."""
        stacks, candidates = self._stacks.copy(), []
        for call in self._calls:
            result = call.results
            if call.operation not in ELEMENTWISE or not isinstance(result, Variable):
                continue
            stack = next((stacks[x] for x in call.operands if isinstance(x, Variable) and x in stacks), None)
            if stack is None or not all(self._is_operand(x, result, stack, stacks) for x in call.operands):
                continue
            start, base = next(iter(stack.bases.items()))
            like = {x: base for x in call.operands if isinstance(x, Variable) and x in stacks}
            operands = [like.get(x, x) if isinstance(x, Variable) else x for x in call.operands]
            operands = [self._cut(x, result, start, base) if x is not base else x for x in operands]
            sample = Call(call.operation, call.function, operands, call.attributes, base)
            if base in self._makers and all(map(is_native, (sample, self._makers[base]))):
                stacks[result] = stack
                candidates.append(call)
        splits = {call.results for call in candidates} - self._returned
        while True:
            stay = {
                call.results
                for call in candidates
                if call.results in splits
                and any(x in self._stacks or x in splits for x in call.reads)
                and all(
                    self._reads_parts(reader, call.results, splits, stacks) for reader in self._readers[call.results]
                )
            }
            if stay == splits:
                return splits
            splits = stay

    def _is_operand(self, x: Any, result: Variable, stack: _Stack, stacks: dict[Variable, _Stack]) -> bool:
        """Whether an operand of an element-wise call on a stack can be split alike, or need not be."""
        if isinstance(x, Variable) and x in stacks:
            sizes = ([(start, part.shape) for start, part in s.bases.items()] for s in (stacks[x], stack))
            return (x.shape, x.dtype) == (result.shape, result.dtype) and next(sizes) == next(sizes)
        if isinstance(x, Number) or not hasattr(x, "shape"):
            return not isinstance(x, list)
        return x.shape == result.shape or len(x.shape) < len(result.shape)

    def _reads_parts(self, call: Call, x: Variable, splits: set[Variable], stacks: Mapping[Variable, _Stack]) -> bool:
        """Whether a call reads one of the parts, sums all of them, or is itself split."""
        if isinstance(call.results, Variable) and call.results in splits:
            return True
        if call.operation == "slice":
            key, stack = arguments(call)[1], stacks[x]
            return key[0].start in stack.bases and key == self._key(key[0].start, stack.bases[key[0].start], x)
        return call.operation in ("sum", "mean") and [*arguments(call)[1]] == [*range(len(x.shape))]

    @staticmethod
    def _key(start: int, base: Variable, whole: Variable) -> tuple[slice, ...]:
        """Where a part lies in the whole."""
        length = base.shape[0] if len(base.shape) == len(whole.shape) else 1
        return slice(start, start + length, 1), *(slice(0, n, 1) for n in whole.shape[1:])

    def _cut(self, x: Any, whole: Variable, start: int, base: Variable) -> Any:
        """The part of an operand that belongs to one of the parts."""
        if isinstance(x, Number) or not hasattr(x, "shape") or x.shape != whole.shape:
            return x
        k, key = self._k, self._key(start, base, whole)
        if not isinstance(x, Variable):
            return k.reshape(k.slice(x, key), base.shape)
        part, flat = (self._program.variable(shape, x.dtype) for shape in (_lengths(key), base.shape))
        self._put(Call("slice", k.slice, [x, key], {}, part))
        self._put(Call("reshape", k.reshape, [part, base.shape], {}, flat))
        return flat

    def _on_parts(self, call: Call) -> _Stack:
        """The results of an element-wise call on each part."""
        like = next(self._stacks[x] for x in call.operands if isinstance(x, Variable) and x in self._stacks)
        parts: dict[int, Variable] = {}
        for start, base in like.bases.items():
            operands = [
                self._stacks[x].parts[start]
                if isinstance(x, Variable) and x in self._stacks
                else self._cut(x, call.results, start, base)
                for x in call.operands
            ]
            parts[start] = self._program.variable(base.shape, call.results.dtype)
            self._put(Call(call.operation, call.function, operands, call.attributes, parts[start]))
        return _Stack(parts, like.bases)

    def _sum(self, call: Call, stack: _Stack) -> None:
        """Sum the parts' sums, each of which is computed right after the part."""
        k, result = self._k, call.results
        sums = []
        for start, part in stack.parts.items():
            sums.append(self._new((), result))
            self._put(Call("sum", k.sum, [part, tuple(range(len(part.shape))), False], {}, sums[-1]))
            self._next[stack.bases[start]].append(sums[-1])
        together, total, mean = self._new((len(sums),), result), self._new((), result), self._new((), result)
        self._put(Call("stack", k.stack, [sums, 0], {}, together))
        self._put(Call("sum", k.sum, [together, (0,), False], {}, total))
        if call.operation == "mean":
            self._put(Call("div", k.div, [total, float(prod(call.operands[0].shape))], {}, mean))
            total = mean
        self._put(Call("reshape", k.reshape, [total, result.shape], {}, result))

    def _new(self, shape: tuple[int, ...], like: Variable) -> Variable:
        return self._program.variable(shape, like.dtype)

    def _put(self, call: Call) -> None:
        self._makers.update(dict.fromkeys(call.writes, call))


def _lengths(key: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in key)
