"""Partition: the element-wise calls and reductions of a program in groups, each one pass over memory.

A call joins the group that computes its operands if both iterate over the same rows, and if no call outside of the
group has to run in between. Views and broadcasts belong to no group: calls of a group read their sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

from backburn.base.dtypes import DType
from backburn.programs.fusion import limits
from backburn.programs.fusion.plan import (
    ALONG_ROWS,
    EXTENTS,
    REDUCTIONS,
    Extent,
    Knows,
    Operand,
    Repeat,
    Space,
    Step,
    axes_of,
    extent_in,
)
from backburn.programs.ir import Call, Number, Program, Variable, arguments, varies

#: Element-wise operations of one or a few steps; others have separate kernels, which are as fast.
FUSABLE = frozenset((
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "floor", "round"),
    *("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sigmoid", "silu", "log_sigmoid"),
    *("maximum", "minimum", "clip", "where", "masked_fill", "relu", "leaky_relu"),
    *("relu_backward", "tanh_backward", "sigmoid_backward", "silu_backward", "sigmoid_slope", "tanh_slope"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip
#: Operations that save a pass only together with others, in a group of rows.
OF_ROWS = frozenset(("gelu", "gelu_backward", "softplus", "erf", "isinf", "astype", "pow"))
#: The exponents of powers that are a few multiplications or a root.
EXPONENTS = frozenset((-2.0, -1.0, -0.5, 0.5, 2.0, 3.0, 4.0))

#: Operations that move no elements, or through which their operand is read.
VIEWS = frozenset(("reshape", "broadcast_to", "permute_dims", "slice"))


@dataclass(eq=False, slots=True)
class Group:
    """Calls in one pass."""

    space: Space
    number: int
    steps: list[Step] = field(default_factory=list)
    #: The groups from which it reads, and those on which its other operands depend.
    direct: set[Group] = field(default_factory=set)
    outer: set[Group] = field(default_factory=set)
    #: Whether another call reads a result, and whether one is new state, which is computed in place if unread.
    is_read: bool = False
    is_update: bool = False
    #: Whether it reads bools that no group computes.
    has_masks: bool = False
    #: The rows of the blocks of repeated operands, of which all blocks consist; 0 if none is repeated.
    block: int = 0
    #: The group into which it was merged.
    whole: Group | None = None

    @property
    def is_formula(self) -> bool:
        """Whether all arrays have one shape."""
        return all(step.is_elementwise and step.has_one_shape for step in self.steps)


def may_have_rows(space: Space) -> bool:
    """Whether a pass over the space iterates over its rows."""
    is_wide = space.width >= limits.MIN_WIDTH or space.rows <= limits.MAX_SHORT_ROWS
    return space.size >= limits.MIN_ELEMENTS_OF_ROWS and space.rows > 1 and is_wide and space.width <= limits.MAX_WIDTH


def rows_of(shape: tuple[int, ...], dtype: DType) -> tuple[Space, int]:
    """The space of arrays of a shape, and how many of the last axes are a row: several if they are short."""
    depth, width, rows = 1, shape[-1] if shape else 1, prod(shape[:-1])
    while width < limits.MIN_WIDTH and rows > limits.MAX_SHORT_ROWS and depth < len(shape) - 1:
        depth += 1
        width, rows = width * shape[-depth], rows // shape[-depth]
    return Space(rows, width, dtype), depth


def flat_space(size: int, dtype: DType) -> Space:
    """The space of arrays without suitable rows, divided into rows of which the last may be shorter."""
    width = size if size <= limits.MAX_FLAT_ROW else limits.FLAT_WIDTH
    return Space(size // width, width, dtype, size % width)


#: The types of operands of calls that join no group.
UNJOINED = frozenset((type(None), Number, list))
#: Why most calls are in no group.
FEW = "it has few elements"


def _has_small_blocks(block: int, space: Space) -> bool:
    """Whether a pass with blocks of so many rows calls kernels on too few elements; 0 if it has no blocks."""
    return 0 < block * space.width < limits.MIN_ELEMENTS_OF_BLOCK


def _is_large(call: Call, least: int) -> bool:
    """Whether a call computes, or as a reduction reads, at least so many elements."""
    of = call.reads if call.operation in REDUCTIONS else call.writes
    return any(prod(v.shape) >= least for v in of)


class NotJoined(Exception):
    """Why a call is in no group, in words."""


class Partition:
    """The groups of a program of calls of ``k``."""

    def __init__(self, program: Program, k: Any, knows: Knows | None = None) -> None:
        """With ``knows``, reductions and calls whose operands broadcast may join, too."""
        self._k = k
        self._program = program
        self._has_rows = knows is not None
        self._knows = knows
        #: Whether the backend knows an operation; the space of a shape, how many axes are a row, whether it has rows.
        self._known: dict[tuple[str, DType], bool] = {}
        self._spaces: dict[tuple[tuple[int, ...], DType], tuple[Space, int, bool]] = {}
        self._count = 0
        #: The operand of each view and broadcast.
        self.sources: dict[Variable, tuple[Any, bool]] = {}
        #: The group of each variable that a group computes, and its extent.
        self.homes: dict[Variable, tuple[Group, Extent]] = {}
        #: Whether some are numbers of rows.
        self._has_numbers = False
        #: The groups on which each other variable depends.
        self._after: dict[Variable, set[Group]] = {}
        #: The last group that reads all elements of a variable.
        self._readers: dict[Variable, Group] = {}
        #: Groups that no call may join, and that depend on such groups alone: their dependencies do not change.
        self._closed: set[Group] = set()
        self.reasons: dict[Call, str] = {}
        self._state = {v for v in program.results[0] if isinstance(v, Variable)} if program.results else set()
        least = min(limits.MIN_ELEMENTS, limits.MIN_ELEMENTS_OF_ROWS)
        for place, call in enumerate(program.calls):
            if not self.homes and not _is_large(call, least):
                self.reasons[call] = FEW
                self._leave(call)
                continue
            try:
                self._join(call, place)
            except NotJoined as reason:
                self.reasons[call] = str(reason)
                self._leave(call)

    def group_of(self, v: Variable) -> Group:
        """The group that computes a variable."""
        return _whole(self.homes[v][0])

    def groups(self) -> list[Group]:
        """The groups, in their order."""
        return [*dict.fromkeys(map(self.group_of, self.homes))]

    def _leave(self, call: Call) -> None:
        """Note a call that joins no group."""
        if call.operation in ("reshape", "broadcast_to") and self._has_rows and isinstance(call.results, Variable):
            self.sources[call.results] = call.operands[0], call.operation == "broadcast_to"
        if not self.homes:
            return
        found = set[Group]()
        for v in call.reads:
            if v in self.homes:
                group = self.group_of(v)
                group.is_read = True
                found.add(group)
            else:
                found |= self._after.get(v, set())
        if len(found) > limits.RECENT:
            found = {g for g in map(_whole, found) if self._reached({g})}
        if found:
            self._after.update(dict.fromkeys(call.writes, found))

    def _is_recent(self, group: Group) -> bool:
        return group.number > self._count - limits.RECENT

    def _join(self, call: Call, place: int) -> None:
        """Give the call at that place of the program a group; raises :class:`NotJoined`."""
        space, step = self._step(call)
        step.place = place
        repeated = list[Step]()
        group, needed = self._alone(space, [step])
        if len(needed) > 1 or any(not self._may_merge(group, other) for other in needed):
            repeated = self._repeated(space, step)
            group, needed = self._alone(space, [*repeated, step])
            if needed:
                raise NotJoined("it reads a bool that another group computes")
        whole = [x.value for x in step.operands if x.__class__ is Operand and x.is_whole]
        read = [x for x in whole if x.__class__ is Variable]
        near = group.direct - needed
        if not group.is_update:  # updates are computed in place, alone
            readers = {_whole(self._readers[x]) for x in read if x in self._readers}
            near |= {other for other in readers - needed if not other.is_update}
        candidates = sorted([g for g in near if g.space == space], key=lambda g: -g.number)
        if step.is_reduction and step.extent is not Extent.ROW and not candidates:
            raise NotJoined("no group computes its operand")
        if step.extent is Extent.ROW and step.is_elementwise and not candidates and not needed:
            raise NotJoined(FEW)
        joined = False
        for other in [*needed, *candidates]:
            if self._may_merge(group, other):
                group = self._merged(other, group)
                joined = True
        if not joined:
            if step.is_reduction and step.extent is not Extent.ROW:
                raise NotJoined("it cannot join the group of its operand")
            if step.extent is Extent.ROW and step.is_elementwise:
                raise NotJoined("it cannot join a group of its operands")
            self._count += 1
        for other in group.direct:
            _whole(other).is_read = True
        for one in (*repeated, step):
            self.homes.update((v, (group, extent)) for v, extent in one.made.items())
            self._has_numbers |= Extent.ROW in one.made.values()
        if self._is_wide(group.space):
            self._readers.update(dict.fromkeys(read, group))

    def _alone(self, space: Space, steps: list[Step]) -> tuple[Group, set[Group]]:
        """A new group of steps, and the groups that compute the bools that it reads."""
        is_update = any(not self._state.isdisjoint(step.call.writes) for step in steps)
        group, needed = Group(space, self._count, steps, is_update=is_update), set[Group]()
        operands = [x for step in steps for x in step.operands if x.__class__ is Operand]
        group.block = gcd(*[x.repeat.block for x in operands if x.repeat is not None])
        if _has_small_blocks(group.block, space):
            raise NotJoined("an operand broadcasts to few rows at a time")
        own = {v for step in steps for v in step.made}
        for x, extent, _ in operands:
            if x.__class__ is not Variable:
                group.has_masks |= self.is_bool(x)
                continue
            if x in own:
                continue
            home, is_bool = self.homes.get(x), x.dtype.kind == "bool"
            if home is None:
                if x in self._after:
                    group.outer |= self._after[x]
                if is_bool and (is_update or space.size <= limits.MAX_ELEMENTS_ALONE):
                    raise NotJoined("it reads a bool, which no group computes")
                group.has_masks |= is_bool
                continue
            other = _whole(home[0])
            is_direct = home[1] is extent and (extent is Extent.FULL or extent is Extent.ROW)
            (group.direct if is_direct else group.outer).add(other)
            if is_bool:  # bools of a pass are floats, which only it has
                if other not in group.direct:
                    raise NotJoined("it reads a bool, which no group computes")
                needed.add(other)
        return group, needed

    def is_bool(self, x: Any) -> bool:
        """Whether an operand is a bool."""
        dtype: DType = x.dtype if isinstance(x, Variable) else self._k.dtype(x)
        return dtype.kind == "bool"

    def _repeated(self, space: Space, step: Step) -> list[Step]:
        """Copies of the comparisons of other groups that a step reads: they are cheap, and no pass writes bools."""
        found = list[Step]()
        for i, x in enumerate(step.operands):
            if not self._has_rows or not isinstance(x, Operand) or x.value.__class__ is not Variable:
                continue
            if x.value.dtype.kind != "bool" or x.value not in self.homes:
                continue
            if (home := self.homes[x.value][0]).space == space:
                one = next(s for s in _whole(home).steps if x.value in s.made)
                again = self._program.variable(x.value.shape, x.value.dtype)
                found.append(Step(replace(one.call, results=again), one.extent, [*one.operands], step.place))
                step.operands[i] = x._replace(value=again)
        return found

    def _is_wide(self, space: Space) -> bool:
        """Whether calls that read the same array in a space join, up to the size of a pass over rows."""
        return space.size >= limits.MIN_ELEMENTS_OF_ROWS if self._has_rows else may_have_rows(space)

    def _may_merge(self, group: Group, other: Group) -> bool:
        """Whether two groups may be one: no other call has to run between them."""
        is_update = group.is_update or other.is_update
        if is_update and (group.has_masks or other.has_masks):
            return False
        if is_update and (group.is_read or other.is_read or not group.is_formula or not other.is_formula):
            return False
        if group.space != other.space or not self._is_recent(other):
            return False
        calls = len(group.steps) + len(other.steps)
        has_rows = self._has_rows and not is_update
        if calls > limits.MAX_CALLS and (
            calls > limits.MAX_CALLS_OF_ROWS or not has_rows or not self._is_wide(group.space)
        ):
            return False
        if (group.block or other.block) and _has_small_blocks(gcd(group.block, other.block), group.space):
            return False
        if self._depends(group, other):
            return False
        is_new = group.number == self._count  # nothing depends on it
        return is_new or not self._depends(other, group)

    def _depends(self, group: Group, other: Group) -> bool:
        """Whether a group needs another one through a third."""
        between = group.outer | group.direct - {other}
        return bool(between) and other in self._reached(between, other)

    def _reached(self, groups: Iterable[Group], wanted: Group | None = None) -> set[Group]:
        """These groups, and those that must run before or with them, without closed ones; or some with ``wanted``."""
        found, left = set[Group](), [*groups]
        while left and wanted not in found:
            group = _whole(left.pop())
            if group not in found and group not in self._closed:
                found.add(group)
                left += group.direct
                left += group.outer
        if len(found) > limits.RECENT:
            # Mostly in the order of dependencies; what is not is closed by a later search.
            for group in sorted(found, key=lambda g: g.number):
                if not self._is_recent(group) and all(_whole(g) in self._closed for g in group.direct | group.outer):
                    self._closed.add(group)
                    found.remove(group)
        return found

    def _merged(self, group: Group, other: Group) -> Group:
        """``group`` with the calls of another one."""
        other.whole = group
        group.is_read |= other.is_read
        group.is_update |= other.is_update
        group.has_masks |= other.has_masks
        group.steps += other.steps
        group.block = gcd(group.block, other.block)
        group.direct = {_whole(x) for x in group.direct | other.direct} - {group}
        group.outer = {_whole(x) for x in group.outer | other.outer} - {group}
        return group

    def _step(self, call: Call) -> tuple[Space, Step]:
        """The space and the step of a call; raises :class:`NotJoined`."""
        name = call.operation
        if self._has_rows and name in REDUCTIONS:
            return self._reduction(call)
        if self._has_rows and name in ALONG_ROWS:
            return self._along_rows(call)
        if name not in FUSABLE and name != "fuse" and not (self._has_rows and name in OF_ROWS):
            raise NotJoined("it is a view" if name in VIEWS else f"no pass computes {name}")
        result = call.results
        if not isinstance(result, Variable):
            raise NotJoined("it has several results")
        if name == "astype" and (result.dtype.kind != "float" or getattr(call.operands[0], "dtype", None) is None):
            raise NotJoined("it changes the dtype")
        if name == "pow" and not (isinstance(y := call.operands[1], int | float) and float(y) in EXPONENTS):
            raise NotJoined("its exponent is not a small integer or half")
        if call.attributes and varies([*call.attributes.values()]):
            raise NotJoined("an attribute changes from replay to replay")
        given = call.operands[1:] if name == "fuse" else call.operands  # after the formula
        if not UNJOINED.isdisjoint(map(type, given)):
            raise NotJoined("an operand is absent, a list, or a number that changes from replay to replay")
        arrays = [x for x in given if hasattr(x, "shape")]
        dtype = self._float_dtype(arrays, result)
        if dtype.bits < 32 and (
            not self._has_rows
            or name == "fuse"
            or prod(result.shape) < limits.MIN_ELEMENTS
            or not self._state.isdisjoint(call.writes)
        ):  # a formula rounds once, at its end: an intermediate overflow would be lost
            raise NotJoined("it has few elements, or updates the state, for 16-bit floats")
        if self._has_numbers and (found := self._of_rows(call, arrays, dtype)) is not None:
            return found
        if (key := (result.shape, dtype)) not in self._spaces:
            space, depth = rows_of(*key)
            self._spaces[key] = space, depth, may_have_rows(space)
        space, depth, by_rows = self._spaces[key]
        size = space.size
        is_pass = self._has_rows and size >= limits.MIN_ELEMENTS_OF_ROWS
        if size < limits.MIN_ELEMENTS and not is_pass:
            raise NotJoined(FEW)
        if is_pass:
            self._check_known(name, dtype)
            space = space if by_rows else flat_space(size, dtype)
        found_operands: dict[int, Operand] = {}
        for x in arrays:
            if size > 1 and x.__class__ is Variable and x.shape == result.shape and x not in self.sources:
                found_operands[id(x)] = Operand(x, Extent.FULL)
                continue
            operand = self._operand(x, result.shape, depth if is_pass and by_rows else 0, is_pass)
            if operand is None:
                how = "neither by rows nor by columns" if by_rows else "in rows that are too short or too long"
                raise NotJoined(f"an operand broadcasts, {how}")
            found_operands[id(x)] = operand
        return space, Step(call, Extent.FULL, [found_operands.get(id(x), x) for x in call.operands])

    def _check_known(self, name: str, dtype: DType) -> None:
        """Raises :class:`NotJoined` for an operation that no pass of the backend computes."""
        if self._knows is None or name == "fuse":
            return
        if (name, dtype) not in self._known:
            self._known[name, dtype] = self._knows(name, dtype)
        if not self._known[name, dtype]:
            raise NotJoined(f"the backend has no kernel of {name} for {dtype}")

    def _float_dtype(self, arrays: list[Any], result: Variable) -> DType:
        """The float dtype of all operands; raises :class:`NotJoined`."""
        found: DType | None = None
        for x in arrays:
            dtype: DType = x.dtype if x.__class__ is Variable else self._k.dtype(x)
            if dtype.kind == "bool":
                home = self.homes.get(self.root(x)) if x.__class__ is Variable else None
                if home is None:  # a mask, which a pass may read as floats
                    if not self._has_rows:
                        raise NotJoined("it reads a bool, which no group computes")
                    continue
                dtype = home[0].space.dtype
            if not dtype.is_floating or (found is not None and dtype is not found):
                raise NotJoined("its operands have several dtypes, or one that is not a float")
            found = dtype
        if found is None:
            raise NotJoined("its operands have several dtypes, or one that is not a float")
        if result.dtype is not found and result.dtype.kind != "bool":
            raise NotJoined("its result has another dtype")
        return found

    def root(self, x: Any) -> Any:
        """The operand from which a chain of views and broadcasts comes."""
        while x.__class__ is Variable and x in self.sources:
            x = self.sources[x][0]
        return x

    def _operand(self, x: Any, whole: tuple[int, ...], depth: int, is_pass: bool) -> Operand | None:
        """An array as an operand of a call whose results have the shape ``whole``.

        The last ``depth`` axes are a row; 0 if there are no rows.
        """

        def found(x: Any) -> tuple[Extent, Repeat | None] | None:
            pair = extent_in(tuple(x.shape), whole, depth or 1)
            is_able = pair is not None and (depth or (pair[0] in (Extent.FULL, Extent.ONE) and pair[1] is None))
            return pair if is_able else None

        if (pair := found(x)) is None:
            return None
        extent, repeat = pair
        if not is_pass:
            return Operand(x, extent)
        while x.__class__ is Variable and x in self.sources and x not in self.homes:
            source, is_broadcast = self.sources[x]
            if not is_broadcast:
                x = source
                continue
            if tuple(x.shape) != whole or (pair := found(source)) is None:
                break
            x, (extent, repeat) = source, pair
        return Operand(x, extent, repeat)

    def _numbers(self, x: Any) -> Any:
        """The values of rows that ``x`` has in another shape."""
        while x.__class__ is Variable and x in self.sources and x not in self.homes and not self.sources[x][1]:
            x = self.sources[x][0]
        return x

    def _of_rows(self, call: Call, arrays: list[Any], dtype: DType) -> tuple[Space, Step] | None:
        """An element-wise call on values of the rows of a group; None for other calls."""
        size = prod(call.results.shape)
        space, operands = None, dict[int, Operand]()
        for x in arrays:
            if prod(x.shape) == 1:
                operands[id(x)] = Operand(x, Extent.ONE)
                continue
            if prod(x.shape) != size:
                return None
            root = self._numbers(x)
            if root.__class__ is Variable and root in self.homes and self.homes[root][1] is Extent.ROW:
                space = space or _whole(self.homes[root][0]).space
            operands[id(x)] = Operand(root, Extent.ROW)
        if space is None or space.rows != size or space.dtype is not dtype:
            return None
        self._check_known(call.operation, dtype)
        return space, Step(call, Extent.ROW, [operands.get(id(x), x) for x in call.operands])

    def _reduction(self, call: Call) -> tuple[Space, Step]:
        """A sum, mean or extreme of rows, columns or all elements; raises :class:`NotJoined`."""
        x, result = call.operands[0], call.results
        if x.__class__ is not Variable or not x.dtype.is_floating or x.dtype.bits < 32 or not x.shape:
            raise NotJoined("it reduces a constant, or a dtype other than float32 and float64")
        if result.dtype is not x.dtype:
            raise NotJoined("its result has another dtype")
        space, depth = rows_of(x.shape, x.dtype)
        if space.size < limits.MIN_ELEMENTS_OF_ROWS:
            raise NotJoined(FEW)
        axes, rank = axes_of(call), len(x.shape)
        row = (*range(rank - depth, rank),)
        by_rows = may_have_rows(space)
        if axes == (*range(rank),):
            extent = Extent.ONE
            space = space if by_rows else flat_space(space.size, x.dtype)
        elif not by_rows:
            raise NotJoined("its rows are too short or too long")
        elif axes == row:
            extent = Extent.ROW
        elif axes[-depth:] == row:
            extent = Extent.ONE  # of several rows
        elif call.operation not in ("sum", "mean"):
            raise NotJoined("it finds extremes of columns")
        elif axes == (*range(rank - depth),):
            extent = Extent.COLUMN
        else:
            raise NotJoined("it reduces neither rows nor columns nor all elements")
        operand = self._operand(x, x.shape, depth if by_rows else 0, True)
        if operand is None or not operand.is_whole:
            raise NotJoined("its operand is the same in all rows or columns")
        return space, Step(call, extent, [operand])

    def _along_rows(self, call: Call) -> tuple[Space, Step]:
        """A softmax, a norm, a loss or a pick of rows, or the gradient of one; raises :class:`NotJoined`."""
        kinds, _, made = ALONG_ROWS[call.operation].partition(">")
        given, options = arguments(call)[: len(kinds)], arguments(call)[len(kinds) :]
        if varies(options) or not any(isinstance(x, Variable) for x in given):
            raise NotJoined("it reads only constants, or an attribute changes from replay to replay")
        whole = given[kinds.index("F")] if "F" in kinds else call.results
        shape = tuple(whole.shape)
        dtypes = set[DType]()
        for kind, x in zip(kinds, given, strict=True):
            dtype = None if x is None else x.dtype if isinstance(x, Variable) else self._k.dtype(x)
            if dtype is not None and (kind != "I" or dtype.kind not in ("int", "uint")):
                dtypes.add(dtype)
        if len(dtypes) != 1 or not (dtype := dtypes.pop()).is_floating or dtype.bits < 32:
            raise NotJoined("its operands have several dtypes, or one that is neither float32 nor float64")
        space = Space(prod(shape[:-1]), shape[-1] if shape else 1, dtype)
        axis = options[call.operation == "take_along_axis_backward"]  # it has a shape before the axis
        if axis not in (len(shape) - 1, (len(shape) - 1,)) or not may_have_rows(space):
            raise NotJoined("it is not along rows, or these are few, too short or too long")
        self._check_known(call.operation, dtype)
        operands: list[Operand | None] = []
        for kind, x in zip(kinds, given, strict=True):
            operand = None
            if kind in "RI" and tuple(x.shape) in (shape[:-1], (*shape[:-1], 1)):
                operand = Operand(self._numbers(x), Extent.ROW)
            elif kind in "FC" and x is not None:
                operand = self._operand(x, shape, 1, True)
            if (operand is None and (kind != "C" or x is not None)) or (
                operand and (operand.extent is not EXTENTS[kind] or operand.repeat)
            ):
                raise NotJoined(
                    "an operand is the same in all rows, a scale is not a row, or there are several indices"
                )
            operands.append(operand)
        return space, Step(call, EXTENTS[made[0]], operands)


def _whole(group: Group) -> Group:
    """The group into which a group was merged, or itself."""
    while group.whole is not None:
        group = group.whole
    return group
