"""Matrix products of a loop's steps as one product of stacked rows: with one weight, or summed over the steps.

A loop of cells computes a small product at each step, and its gradient a sum of as many. One large product reads the
weight once, writes the sum once, and has enough rows for threads and vectors. Rows are the same up to rounding; a sum
over steps is rounded once for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from backburn.programs.ir import Call, Number, Program, Variable, arguments, listed, ordered, variables_in

#: The fewest products that are joined, and the most multiplications of one of them: larger ones gain nothing.
FEWEST, MOST_MULTIPLICATIONS = 4, 1 << 24
#: The most elements of the operands and the result of a joined product, which are all in memory at once.
MOST_ELEMENTS = 1 << 22


def join_products(program: Program, k: Any) -> list[Call]:
    """A program of calls of ``k`` in which the products of a loop's steps are joined."""
    calls = program.calls
    kinds = Counter(call.operation for call in calls)
    if kinds["matmul"] + kinds["linear"] + kinds["linear_weight_backward"] < FEWEST:
        return calls
    joining = _Joining(program, k)
    joining.join_sums()
    joining.join_rows()
    return joining.ordered()


class _Joining:
    """The calls of a program, by their results, some of which are replaced."""

    def __init__(self, program: Program, k: Any) -> None:
        self._program = program
        self._calls = program.calls
        self._k = k
        self._makers = program.makers()
        self._results = variables_in([call.results for call in self._calls])
        #: Stacked operands, by their parts.
        self._stacked: dict[tuple[int, ...], Any] = {}
        self._ordered: list[Call] | None = self._calls

    # ---- sums over steps ----

    def join_sums(self) -> None:
        """Compute sums whose terms are products over rows, or sums of rows, as one product or sum each."""
        reads = self._program.uses()
        additions = [call for call in self._calls if call.operation == "add"]
        inside = {v for call in additions for v in call.reads if reads[v] == 1 and _are_alike(v, call.results)}
        sums: dict[Variable, tuple[list[Any], list[Variable]]] = {}
        terms_of: dict[Variable, Variable] = {}
        for call in additions:
            if call.results not in inside and len(found := self._terms(call, inside)[0]) >= FEWEST:
                sums[call.results] = self._terms(call, inside)
                terms_of.update((x, call.results) for x in found if isinstance(x, Variable) and reads[x] == 1)
        groups: dict[Any, list[Call]] = defaultdict(list)
        for call in self._calls:
            if not terms_of.keys().isdisjoint(call.writes) and (key := self._sum_key(call)) is not None:
                wanted = [(i, v) for i, v in enumerate(listed(call.results)) if v is not None and reads[v]]
                if all(v in terms_of for _, v in wanted):
                    groups[call.operation, key, tuple((i, terms_of[v]) for i, v in wanted)].append(call)
        joined: dict[Variable, list[tuple[set[Variable], Variable]]] = defaultdict(list)
        for (operation, _, wanted), members in sorted(groups.items(), key=lambda item: item[0][0] == "sum"):
            for calls in _portions(members, lambda call: sum(prod(x.shape) for x in self._stackable(call) or ())):
                if len(calls) >= FEWEST and (made := self._sum_of(calls, operation)) is not None:
                    for i, root in wanted:
                        joined[root].append(({listed(call.results)[i] for call in calls}, listed(made.results)[i]))
        for root, parts in joined.items():
            self._put_sum(root, *sums[root], parts)

    def _terms(self, root: Call, inside: set[Variable]) -> tuple[list[Any], list[Variable]]:
        """The terms of a sum, and its partial sums up to the whole, in order."""
        terms: list[Any] = []
        partial: list[Variable] = [root.results]
        left: list[Any] = [*root.operands]
        while left:
            x = left.pop()
            maker = self._makers.get(x) if isinstance(x, Variable) else None
            if maker is not None and x in inside and maker.operation == "add":
                partial.append(x)
                left += maker.operands
            else:
                terms.append(x)
        return sorted(terms, key=_place), sorted(partial, key=_place)

    def _sum_key(self, call: Call) -> Hashable:
        """Properties shared by calls whose results one call may sum; None for other calls."""
        operands = self._stackable(call)
        if operands is None or not all(_is_wide_float(x, self._k) for x in operands):
            return None
        if any(x.shape[0] != operands[0].shape[0] for x in operands):
            return None
        if prod(operands[0].shape) * operands[-1].shape[-1] > MOST_MULTIPLICATIONS and call.operation != "sum":
            return None
        return tuple((x.shape[1:], str(x.dtype)) for x in operands)

    def _stackable(self, call: Call) -> list[Any] | None:
        """The operands of a call that sums over their first axis, the rows; None for other calls."""
        if call.operation == "linear_weight_backward":
            return call.operands
        if call.operation == "sum":
            x, axes, keepdims = arguments(call)
            return [x] if axes == (0,) and not keepdims else None
        if call.operation != "matmul":
            return None
        x, y = call.operands
        turned = self._makers.get(x) if isinstance(x, Variable) else None
        if turned is None or turned.operation != "permute_dims" or len(y.shape) != 2 or len(x.shape) != 2:
            return None
        return [arguments(turned)[0], y] if [*arguments(turned)[1]] == [1, 0] else None

    def _sum_of(self, calls: list[Call], operation: str) -> Call | None:
        """The call that computes the sum of the results of others; None for sums of rows that nothing else stacks."""
        k, first = self._k, calls[0]
        parts = [*zip(*(self._stackable(call) or () for call in calls), strict=True)]
        if operation == "sum":
            known = {frozenset(ids): x for ids, x in self._stacked.items()}
            stacked = known.get(frozenset(map(id, parts[0])))
            if stacked is None or len({*map(id, parts[0])}) < len(calls):
                return None
            operands = [stacked, (0,), False]
        else:
            operands = [self._stack(group) for group in parts]
        if operation == "matmul":
            turned = self._new(operands[0].shape[::-1], first.results)
            self._add(Call("permute_dims", k.permute_dims, [operands[0], (1, 0)], {}, turned))
            operands[0] = turned
        results = [None if v is None else self._new(v.shape, v) for v in listed(first.results)]
        made = Call(operation, first.function, operands, {}, results if isinstance(first.results, list) else results[0])
        return self._add(made)

    def _put_sum(
        self, root: Variable, terms: list[Any], partial: list[Variable], joined: list[tuple[set[Variable], Variable]]
    ) -> None:
        """Replace the additions of a sum by those of its joined terms, then of the others in order."""
        gone = {v for members, _ in joined for v in members}
        news = [*(v for _, v in joined), *(x for x in terms if not isinstance(x, Variable) or x not in gone)]
        for v in partial:
            del self._makers[v]
        if len(news) == 1:
            made = self._makers.pop(news[0])
            results = [root if v is news[0] else v for v in listed(made.results)]
            self._add(replace(made, results=results if isinstance(made.results, list) else root))
            return
        total = news[0]
        # The last partial sums are kept: each was computed after the terms that it needs here.
        for x, made_here in zip(news[1:], partial[1 - len(news) :], strict=True):
            self._add(Call("add", self._k.add, [total, x], {}, made_here))
            total = made_here

    # ---- products with one weight ----

    def join_rows(self) -> None:
        """Compute independent products of several left operands with one matrix as one product.

        Products at the same depth of the graph of dependencies are independent, and grouping them creates no cycles;
        depth is counted first from the inputs, then from the outputs.
        """
        for turned in (False, True):
            groups: dict[Hashable, list[Call]] = defaultdict(list)
            depths: dict[Variable, int] = {}
            calls = self.ordered()
            for call in reversed(calls) if turned else calls:
                before, after = (call.writes, call.reads) if turned else (call.reads, call.writes)
                depth = 0
                for v in before:
                    if v in depths and depths[v] > depth:
                        depth = depths[v]
                if call.operation in ("linear", "matmul") and (key := self._row_key(call)) is not None:
                    groups[key, depth].append(call)
                    depth += 1
                for v in after:
                    if v not in depths or depths[v] < depth:
                        depths[v] = depth
            for members in groups.values():
                for part in _portions(members, lambda call: prod(call.operands[0].shape) + prod(call.results.shape)):
                    if len(part) >= FEWEST:
                        self._join_rows(part)

    def _row_key(self, call: Call) -> Hashable:
        """Properties shared by products that may be joined; None for others."""
        if call.attributes:
            return None
        x, weight, *bias = call.operands
        if len(x.shape) < 2 or len(weight.shape) != 2 or not all(_is_wide_float(v, self._k) for v in (x, weight)):
            return None
        if prod(call.results.shape) * x.shape[-1] > MOST_MULTIPLICATIONS:
            return None
        return call.operation, id(weight), *map(id, bias), x.shape[1:]

    def _join_rows(self, calls: list[Call]) -> None:
        k, first = self._k, calls[0]
        x = self._stack([call.operands[0] for call in calls])
        made = self._new((x.shape[0], *first.results.shape[1:]), first.results)
        self._add(Call(first.operation, first.function, [x, *first.operands[1:]], {}, made))
        start = 0
        for call in calls:
            end = start + call.results.shape[0]
            key = slice(start, end), *(slice(0, n) for n in made.shape[1:])
            self._add(Call("slice", k.slice, [made, key], {}, call.results))
            start = end

    # ---- calls ----

    def _stack(self, parts: Sequence[Any]) -> Any:
        """The concatenated rows of operands: a constant, if all of them are."""
        key = tuple(map(id, parts))
        if (found := self._stacked.get(key)) is None:
            if not variables_in(parts):
                found = self._k.concat([*parts], 0)
            else:
                like = next(iter(variables_in(parts)))
                found = self._new((sum(x.shape[0] for x in parts), *like.shape[1:]), like)
                self._add(Call("concat", self._k.concat, [[*parts], 0], {}, found))
            self._stacked[key] = found
        return found

    def _new(self, shape: tuple[int, ...], like: Variable) -> Variable:
        return self._program.variable(shape, like.dtype)

    def _add(self, call: Call) -> Call:
        self._ordered = None
        self._makers.update(dict.fromkeys(call.writes, call))
        return call

    def ordered(self) -> list[Call]:
        """The calls in their new order."""
        if self._ordered is None:
            self._ordered = ordered(self._results, self._makers)
        return self._ordered


def _place(x: Any) -> int:
    return x.index if isinstance(x, Variable) else -1


def _are_alike(x: Any, y: Variable) -> bool:
    return (x.shape, x.dtype) == (y.shape, y.dtype)


def _is_wide_float(x: Any, k: Any) -> bool:
    """Whether an operand is a float tensor of 32 or 64 bits: partial sums of smaller ones might overflow."""
    if isinstance(x, Number) or not hasattr(x, "shape"):
        return False
    dtype = x.dtype if isinstance(x, Variable) else k.dtype(x)
    return dtype.is_floating and dtype.bits >= 32


def _portions(members: list[Call], elements: Callable[[Call], int]) -> Iterator[list[Call]]:
    """Members in order, in parts of at most :data:`MOST_ELEMENTS` elements."""
    part: list[Call] = []
    size = 0
    for member in members:
        size += elements(member)
        if size > MOST_ELEMENTS and part:
            yield part
            part, size = [], elements(member)
        part.append(member)
    yield part
