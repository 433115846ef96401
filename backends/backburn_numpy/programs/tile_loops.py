"""Kernels of a pass as machine-code loops: which calls are joined, and what is recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from backburn.base.errors import Unsupported
from backburn.programs.fusion.plan import Extent
from backburn.programs.lowering import Call, Value
from backburn_numpy import compiled, tuning
from backburn_numpy.machine_code.functions import function_of
from backburn_numpy.machine_code.loops import MOST_ARRAYS, Loop, compiled_loop
from backburn_numpy.machine_code.memory import VECTORS, Code, missing
from backburn_numpy.programs.row_loops import MOMENTS

#: The kernels that reduce rows, and their names in loops.
REDUCTIONS = {
    "sum_rows": "sum", "max_rows": "max", "min_rows": "min", "mean_rows": "mean", "mean_products": "mean",
}  # fmt: skip
#: The kernels that sum columns, of elements or of products.
COLUMNS = frozenset(("sum_columns", "sum_products"))
#: The parts of norms that only loops compute.
LOOPED = frozenset(("standardized", "standardize_gradient", "mean_rows", "mean_products", "sum_products"))
#: The widest rows that kernels reduce sequentially, as in ``reduce.c``.
NARROW = 24
#: The most reductions of a loop, by the size of vectors in bytes.
MOST_REDUCTIONS = {32: 2, 64: 4}
#: The kernels whose results are recomputed rather than written and read.
CHEAP = frozenset(
    f"{name}{suffix}"
    for name in (
        "add", "subtract", "subtract_from", "multiply", "multiply_add", "scale_add", "scale_multiply", "negative",
        "absolute", "square", "maximum", "minimum", "clamp", "less", "less_equal", "greater", "greater_equal", "equal",
        "not_equal", "where", "relu_backward", "fill", "standardized",
    )
    for suffix in ("", "_number")
)  # fmt: skip


@dataclass(slots=True)
class Joined:
    """Calls as one loop: what it reads and writes, all arrays in the order of its addresses, and once made its code."""

    calls: list[Call]
    reads: list[Value]
    writes: list[Value]
    arrays: list[Value]
    #: Scratch memory for sums of a few rows, one for each of the sums of columns, which are its last writes.
    some: list[Value]
    loop: Loop
    code: Code = field(init=False)

    def compiles(self) -> bool:
        """Make the code; False if it needs more registers than there are."""
        try:
            self.code = compiled_loop(self.loop)
        except Unsupported:
            return False
        return True


Step: TypeAlias = "Call | Joined"


def arrays_of(writes: Sequence[Value], reads: Iterable[Value], some: Sequence[Value]) -> list[Value]:
    """The arrays of a loop in their order: scratch memory precedes each of the sums of columns, the last writes."""
    first = len(writes) - len(some)
    columns = [x for pair in zip(some, writes[first:], strict=True) for x in pair]
    return [*writes[:first], *columns, *reads]


@dataclass(slots=True)
class Pass:
    """Calls of a pass in their order, and facts about values: ``arrays`` maps single numbers to their arrays."""

    calls: Sequence[Call]
    results: Sequence[Value]
    extents: Mapping[Value, Extent]
    arrays: Mapping[Value, Value]
    constants: Mapping[Value, float]
    width: int
    size: int
    #: The inputs and results of the pass, of which loops load the next tile's elements into the cache, and the bytes of
    #: a tile; 0 if they do not. The last loop that reads or writes a value does so.
    memory: Set[Value] = frozenset()
    ahead: int = 0
    #: The stage in which each value is computed: loops are even, kernel calls odd.
    _stages: dict[Value, int] = field(default_factory=dict)
    _unfetched: set[Value] = field(default_factory=set)

    def loops(self) -> list[Step] | None:
        """The calls, some joined into loops without code; None without machine code, or if nothing is joined."""
        if missing():
            return None
        try:
            found = self._scheduled()
        except Unsupported:
            return None
        return found if len(found) < len(self.calls) else None

    def _scheduled(self) -> list[Step]:
        looped = self._assign()
        self._sink(looped)
        again = self._again(looped)
        stages = self._stages
        groups = [
            [call for call in self.calls if stages[call[1]] == stage or call[1] in again.get(stage, ())]
            for stage in range(max(stages.values()) + 1)
        ]
        if self.ahead and sum(map(bool, groups)) > 1:  # the processor itself loads what a single loop reads
            self._unfetched.update(self.memory)
        kept = {*self.results}
        found: list[Step] = []
        for stage, group in reversed([*enumerate(groups)]):
            needed, wanted = [], {x for x in kept if stages.get(x) == stage}
            for call in reversed(group):
                if call[1] in wanted or call[1] not in looped or call[0] in REDUCTIONS or call[0] in COLUMNS:
                    needed.append(call)
                    wanted.update(self._operands(call))
            if stage % 2:
                found += needed
            elif needed:
                found.append(self._joined(needed[::-1], {x for x in kept if stages.get(x) == stage}))
            own = {made for _, made, _ in needed} if stage % 2 == 0 else set()
            kept |= {x for call in needed for x in self._operands(call)} - own
        return found[::-1]

    def _base(self, x: Value) -> Value:
        return self.arrays.get(x, x)

    def _operands(self, call: Call) -> list[Value]:
        """The arrays that a call reads, without constants."""
        return [self._base(x) for x in call[2] if x not in self.constants]

    def _assign(self) -> set[Value]:
        """Assign each value its earliest stage; return those that loops compute."""
        stages, looped, reductions = self._stages, set(), dict[int, int]()
        vector = VECTORS[compiled.level() or ""]
        for call in self.calls:
            kernel, made, _ = call
            reduces = kernel in REDUCTIONS
            if kernel in COLUMNS:  # of values from a loop
                able = kernel in LOOPED or self._base(call[2][0]) in looped
            elif reduces:
                able = self.width > NARROW
            else:
                able = self.extents[made] is Extent.FULL and function_of(kernel, self.size) is not None
            stage = 0
            for x in self._operands(call):
                if x not in stages:
                    continue
                at = stages[x]
                ready = at + 1 if at % 2 else at if self.extents[x] is Extent.FULL else at + 2
                stage = max(stage, ready if able else at | 1)
            stage = stage if able else stage | 1
            if able and reduces:
                while kernel in LOOPED and reductions.get(stage, 0) == MOST_REDUCTIONS[vector]:
                    stage += 2
                if reductions.get(stage, 0) == MOST_REDUCTIONS[vector]:
                    able, stage = False, stage | 1
                else:
                    reductions[stage] = reductions.get(stage, 0) + 1
            if able:
                looped.add(made)
            stages[made] = stage
        return looped

    def _sink(self, looped: set[Value]) -> None:
        """Move values to the stage that reads them first, unless more values would have to be kept."""
        stages = self._stages
        needed: dict[Value, int] = {}
        latest: dict[Value, int] = {}
        reductions = Counter(stages[made] for kernel, made, _ in self.calls if kernel in REDUCTIONS and made in looped)
        most = MOST_REDUCTIONS[VECTORS[compiled.level() or ""]]
        for call in reversed(self.calls):
            made, is_full = call[1], self.extents[call[1]] is Extent.FULL
            if made in looped and made not in self.results and (target := needed.get(made, -1)) > stages[made]:
                able = all(
                    x not in stages or self.extents[x] is not Extent.FULL or x in self.results
                    or latest.get(x, -1) >= target for x in self._operands(call)
                )  # fmt: skip
                if able and (is_full or reductions[target] < most):
                    if not is_full:
                        reductions.update({stages[made]: -1, target: 1})
                    stages[made] = target
            for x in self._operands(call):
                stage = stages[made] & ~1
                first = stage if stages[made] % 2 or self.extents[x] is Extent.FULL else stage - 2
                needed[x] = min(needed.get(x, first), first)
                latest[x] = max(latest.get(x, stage), stage)

    def _again(self, looped: set[Value]) -> dict[int, set[Value]]:
        """The values that later loops recompute, by stage."""
        stages, makers = self._stages, {call[1]: call for call in self.calls}
        found: dict[int, set[Value]] = {}
        read_by_kernels = {x for call in self.calls if call[1] not in looped for x in self._operands(call)}

        def ways(x: Value, stage: int) -> set[Value] | None:
            """The values that a later stage recomputes for this one; None if it must read it."""
            if x not in looped or self.extents[x] is not Extent.FULL or x in self.results or x in read_by_kernels:
                return None if x in looped and self.extents[x] is Extent.FULL else set()
            kernel = makers[x][0]
            if kernel not in CHEAP:
                return None
            needs = {x}
            for y in self._operands(makers[x]):
                if y in stages and stages[y] < stage:
                    if y in self.results or y in read_by_kernels:
                        continue
                    more = ways(y, stage)
                    if more is None:
                        return None
                    needs |= more
            return needs if len(needs) <= tuning.PASS_MAX_RECOMPUTED else None

        for call in self.calls:
            stage = stages[call[1]]
            if call[1] not in looped:
                continue
            for x in self._operands(call):
                if x in looped and stages[x] < stage and self.extents[x] is Extent.FULL:
                    found.setdefault(stage, set()).update(ways(x, stage) or ())
        return found

    def _joined(self, calls: list[Call], kept: set[Value]) -> Joined:
        """A loop of calls that writes those of its results that are ``kept``."""
        made = {x for _, x, _ in calls}
        reads: dict[Value, int] = {}
        kernels: list[tuple[str, tuple[tuple[str, int | str], ...]]] = []
        numbers: dict[Value, int] = {}
        outputs: list[tuple[str, list[Value], Value]] = []
        columns: list[tuple[list[Value], Value]] = []
        given_by: list[tuple[str, list[Value]]] = []
        for kernel, x, given in calls:
            for y in given:
                if y not in self.constants and (base := self._base(y)) not in made:
                    reads.setdefault(base, len(reads))
            if kernel in REDUCTIONS:
                outputs.append((REDUCTIONS[kernel], given, x))
                continue
            if kernel in COLUMNS:
                columns.append((given, x))
                continue
            numbers[x] = len(given_by)
            given_by.append((kernel, given))
            if x in kept:
                outputs.append(("store", [x], x))
        some = [Value() for _ in columns]
        writes = [*(x for _, _, x in outputs), *(x for _, x in columns)]
        arrays = arrays_of(writes, reads, some)
        places = {x: i for i, x in enumerate(arrays)}
        outputs += [("columns", x, room) for (x, _), room in zip(columns, some, strict=True)]

        def operand(x: Value) -> tuple[str, int | str]:
            if x in self.constants:
                return "constant", float(self.constants[x]).hex()
            base = self._base(x)
            return ("made", numbers[base]) if base in numbers else ("array", places[base])

        for kernel, given in given_by:
            kernels.append((kernel, tuple(map(operand, given))))
        if len(places) > MOST_ARRAYS:
            raise Unsupported("more arrays than a loop has")
        kinds = {**dict.fromkeys(some, "some"), **{x: "sums" for _, x in columns}}
        kinds |= dict.fromkeys((made for kernel, made, _ in self.calls if kernel == MOMENTS), "moments")
        extents = tuple(kinds.get(x) or self.extents[x].name.lower() for x in places)
        fetched = [x for x in places if x in self._unfetched and self.extents[x] is Extent.FULL]
        self._unfetched.difference_update(fetched)
        loop = Loop(
            VECTORS[compiled.level() or ""], self.size, self.width, extents, tuple(kernels),
            tuple((kind, tuple(map(operand, given)), places[x]) for kind, given, x in outputs),
            self.ahead if fetched else 0, tuple(places[x] for x in fetched),
        )  # fmt: skip
        return Joined(calls, [*reads], writes, arrays, some, loop)
