"""Passes over rows: a kernel for each plan of :mod:`backburn.programs.fusion`, written when the plan is compiled.

A row belongs to a warp or a block, whose threads each have the same elements of it in every phase; a phase ends where
the rest of the pass reads a sum or an extreme of the row. What later phases read is kept in registers if that saves more
than to make or read it again, and if there is room. A thread adds floats as pairs of a sum and what that lacks, threads
add doubles. Sums of columns are added by each group of threads for its rows, and by a second kernel over the groups: all
orders follow from the shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from backburn.base.dtypes import DType, float32, float64
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion.plan import ALONG_ROWS, Extent, Operand, Plan, Space
from backburn.programs.ir import Call, Variable
from backburn.programs.lowering import UNTRACEABLE, Trace, Value
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.fused import EXPRESSIONS, NUMBERS
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES, write

Array = Any

# The limits below have not been measured on a GPU. They follow from 65,536 registers for 2,048 threads of a
# multiprocessor (CUDA C++ Programming Guide), and from the row kernels (`geometry`).

#: What it takes to make a value once more, roughly: instructions for each element.
COSTS = {"full": 6, "column": 2, "cheap": 1, "dear": 8}
#: Operations of one or two instructions.
CHEAP = frozenset((
    *("add", "sub", "mul", "neg", "abs", "square", "maximum", "minimum", "where", "round", "floor", "isnan"),
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip
#: The accesses of 16 bytes that a thread has of a row, and the most threads. Longer rows are gone over in pieces, and
#: nothing of them is kept.
PACKS, MOST_THREADS = 2, 512
#: The values of its elements that a thread keeps, of eight registers each, where 512 threads leave it 128; and the most
#: operands of which all accesses are on their way at once.
KEPT, AT_ONCE = 8, 4
#: The fewest rows of which a group of threads adds the columns, and the most groups: their sums are written and read.
LEAST_ROWS, MOST_GROUPS = 8, 2048

SOURCE = """#include "common.cuh"
template <class T, int LANES, int PACKS> __global__ void __launch_bounds__(LANES ? 256 : 512) {family}(
    %(parameters)s) {
  typedef T C;
  constexpr int P = PACK<T>;
  const Group<LANES> group;
  const index_t step = group.size * P;
%(start)s  FOR_ROWS(group, row, full + (rest > 0)) {
    const index_t length = row < full ? width : row == full ? rest : 0, at = row * width;
    const index_t first = group.lane * P - %(shift)s;
%(body)s  }
%(end)s}
"""

#: What a phase does with the elements: of a row at once, or of pieces.
ELEMENTS = """    %(pieces)s {
      %(wide)s
#pragma unroll
      for (int p = 0; p < PACKS; ++p) {
        const index_t start = begin + p * step;
        if (start >= length) continue;
        %(narrow)s
#pragma unroll
        for (int j = 0; j < P; ++j) {
%(steps)s        }
        %(writes)s
      }
    }
"""

#: The end of a kernel with sums of columns: each group writes its own.
END = """#pragma unroll
  for (int p = 0; p < PACKS; ++p)
#pragma unroll
    for (int j = 0; j < P; ++j) {
      const index_t at = group.lane * P + p * step + j;
      double* const own = sums + ((index_t)blockIdx.x * group.rows + group.row) * width * %(count)d + at;
      if (at < width) { %(writes)s }
    }
"""


@dataclass(eq=False)
class _Node:
    """A value of a pass: an operation, operands, whether it varies along a row; a comparison is 1 or 0."""

    operation: str
    operands: list[_Node] = field(default_factory=list)
    is_element: bool = False
    #: The first phase in which it can be made: that after the phase which sums the rows that it depends on.
    phase: int = 0
    #: The expression of a value that is no element, as soon as there is one, or the array of an operand.
    text: str = ""

    @property
    def cost(self) -> int:
        """What it takes to make it."""
        return COSTS.get(self.operation) or COSTS["cheap" if self.operation in CHEAP else "dear"]


class _Trace(Trace):
    """Makes nodes of operations."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        self._nodes: dict[Value, _Node] = {}
        #: The numbers, and their nodes; -0.0 is not 0.0.
        self.numbers: dict[str, tuple[float, _Node]] = {}

    def knows(self, operation: str) -> bool:
        """Whether there is an expression for the operation."""
        return operation in EXPRESSIONS

    def node(self, x: Any) -> _Node:
        """The node of a value or a number."""
        if isinstance(x, Value) and x in self._nodes:
            return self._nodes[x]
        number = float(self.constants[x] if isinstance(x, Value) else x)
        new = _Node("number", text=f"C(number{len(self.numbers)})")
        return self.numbers.setdefault(repr(number), (number, new))[1]

    def enter(self, node: _Node) -> Value:
        """A value that stands for a node."""
        value = Value()
        self._nodes[value] = node
        return value

    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation."""
        nodes = [self.node(x) for x in operands]
        is_element = any(x.is_element for x in nodes)
        return self.enter(_Node(operation, nodes, is_element, max((x.phase for x in nodes), default=0)))

    def pow(self, x: Any, y: Any) -> Value:
        """A power: multiplications, or a division, where the exponent is a small integer."""
        exponent = None if isinstance(y, Value) else float(y)
        if exponent == 3.0:
            return self.step("mul", self.step("square", x), x)
        short = {2.0: "square", -1.0: "reciprocal"}.get(exponent or 0.0)
        return self.step(short, x) if short else self.step("pow", x, y)


@cache
def knows(name: str, dtype: DType) -> bool:
    """Whether a pass computes an element-wise operation in a dtype; those along rows have kernels of their own."""
    if name in ALONG_ROWS or dtype not in (float32, float64):
        return False
    trace = _Trace(dtype)
    known: dict[str, dict[str, Any]] = {"astype": {"dtype": dtype}, "gelu_backward": {"approximate": "none"}}
    values = [trace.enter(_Node("full", is_element=True)) for _ in OPERATIONS[name].operands]
    try:
        getattr(trace, name)(*values, **known.get(name, {}))
    except UNTRACEABLE:
        return False
    return True


@dataclass
class _Phase:
    """What becomes of values in a phase: places of outputs, numbers of the row, and sums of columns."""

    writes: list[tuple[int, _Node]] = field(default_factory=list)
    reductions: list[tuple[_Node, _Node]] = field(default_factory=list)
    columns: list[tuple[int, _Node]] = field(default_factory=list)

    @property
    def needs(self) -> list[_Node]:
        """The values."""
        return [x[1] for x in (*self.writes, *self.reductions, *self.columns)]


class PassKernel:
    """The kernel of a plan; a call launches it."""

    def __init__(self, plan: Plan) -> None:
        """Raises one of ``UNTRACEABLE`` for a plan that has none."""
        dtype = plan.space.dtype
        if dtype not in (float32, float64):
            raise TypeError(f"a pass of {dtype}")
        self._plan = plan
        self._trace = _Trace(dtype)
        self._phases: list[_Phase] = []
        #: Of each sum of columns, the output, and what it is divided by.
        self._sums: list[tuple[int, float]] = []
        self._read(plan)
        self._numbers = [number for number, _ in self._trace.numbers.values()]
        pack = geometry.pack(dtype.itemsize)
        items = PACKS * pack
        space = self._space = _space(plan, items * geometry.THREADS)
        longest = items * MOST_THREADS
        # Packs are aligned if arrays are, unless threads need the same columns in every row.
        span = space.width if self._sums or space.width % pack == 0 else space.width + pack - 1
        if space.width <= longest < span:
            span = space.width
        self._is_shifted, self._is_held = span > space.width, span <= longest
        lanes = geometry.WARP if span <= geometry.WARP * items else 0
        block = geometry.ceil_div(geometry.ceil_div(min(span, longest), items), geometry.WARP) * geometry.WARP
        self._block = geometry.THREADS if lanes else block
        room = KEPT - len(self._sums) * (2 if dtype is float32 else 1)
        if len(self._numbers) > NUMBERS or room < 0 or (self._sums and not self._is_held):
            raise TypeError("a pass with more numbers, or more sums of columns, than there is room for")
        self._kept = self._chosen(room if self._is_held else 0)
        per_block = self._block // (lanes or self._block)
        self._grid = min(geometry.ceil_div(space.numbers, per_block), geometry.MOST_BLOCKS)
        if self._sums:
            most = min(geometry.ceil_div(self._grid, LEAST_ROWS), MOST_GROUPS // per_block)
            self._grid, self._groups = most, most * per_block
        self._type = C_TYPES[dtype.name]
        self.family = write(self._source(), "pass")
        self.kernel = f"{self.family}<{self._type}, {lanes}, {PACKS}>"

    def __call__(self, on: Runner, inputs: list[Array]) -> list[Array]:
        """The outputs of the plan."""
        plan, space, dtype = self._plan, self._space, self._plan.space.dtype.name
        extents = plan.extents
        outputs: list[Any] = [
            None if extents[v] is Extent.COLUMN else on.xp.ndarray(v.shape, dtype) for v in plan.outputs
        ]
        arguments = [on.xp.ascontiguousarray(x) for x in inputs]
        arguments += [x for x in outputs if x is not None]
        columns = len(self._sums) * space.width
        if self._sums:
            of_groups, totals = on.xp.ndarray((self._groups, columns), "float64"), on.xp.ndarray((columns,), dtype)
            arguments.append(of_groups)
        sizes = (space.rows, space.width, space.rest)
        on.run(self.family, self.kernel, self._grid, self._block, *arguments, *self._numbers, *sizes)
        if self._sums:
            grid, block = geometry.ceil_div(columns, geometry.WARP), (geometry.WARP, geometry.WARP)
            on.run("passes", f"sum_groups<{self._type}>", grid, block, of_groups, totals, self._groups, columns)
            for i, (place, _) in enumerate(self._sums):
                outputs[place] = totals[i * space.width : (i + 1) * space.width].reshape(plan.outputs[place].shape)
        return outputs

    # ---- what it computes ----

    def _read(self, plan: Plan) -> None:
        """Note what the steps of the plan compute."""
        trace, known = self._trace, dict[Any, Value]()
        kinds = {Extent.FULL: "full", Extent.COLUMN: "column"}
        for i, x in enumerate(plan.inputs):
            node = _Node(kinds.get(x.extent, ""), is_element=x.extent in kinds, text=f"x{i}")
            if not node.is_element:
                node.text = f"single{i}"
            known[id(x.value), x.extent] = trace.enter(node)
        places = {v: i for i, v in enumerate(plan.outputs)}

        def value(x: Any) -> Any:
            if not isinstance(x, Operand):
                return x
            return known[id(x.value)] if id(x.value) in known else known[id(x.value), x.extent]

        for step in plan.steps:
            result: Variable = step.results[0]
            operands = [*map(value, step.operands)]
            if step.extent is Extent.COLUMN and step.is_reduction:
                source = trace.node(operands[0])
                self._phase(source.phase).columns.append((len(self._sums), source))
                self._sums.append((places[result], plan.space.rows if step.call.operation == "mean" else 1))
                continue
            if step.is_reduction:
                source = trace.node(operands[0])
                node = _Node(step.call.operation, phase=source.phase + 1)
                self._phase(source.phase).reductions.append((node, source))
            else:
                node = trace.node(self._made(step.call, operands))
            known[id(result)] = trace.enter(node)
            if result in places:
                self._phase(node.phase).writes.append((places[result], node))

    def _made(self, call: Call, operands: list[Any]) -> Any:
        if call.operation == "fuse":  # the first operand is the formula
            return operands[0](self._trace, *operands[1:])
        return getattr(self._trace, call.operation)(*operands, **call.attributes)

    def _phase(self, number: int) -> _Phase:
        self._phases += [_Phase() for _ in range(len(self._phases), number + 1)]
        return self._phases[number]

    # ---- what it keeps ----

    def _elements(self, kept: set[_Node]) -> list[list[_Node]]:
        """The elements that each phase makes or reads, each after its operands, if ``kept`` need not be made again."""
        found: list[list[_Node]] = []
        there = set[_Node]()
        for phase in self._phases:
            order: dict[_Node, None] = {}
            left = [(x, False) for x in reversed(phase.needs)]
            while left:
                node, is_ready = left.pop()
                if not node.is_element or node in order or node in there:
                    continue
                if is_ready:
                    order[node] = None
                else:
                    left += [(node, True), *((x, False) for x in reversed(node.operands))]
            found.append([*order])
            there |= kept & order.keys()
        return found

    def _chosen(self, room: int) -> set[_Node]:
        """The values to keep, so many at most: each time that one which saves most."""
        kept, cost = set[_Node](), self._cost(set())
        while len(kept) < room:
            counts = Counter(node for nodes in self._elements(kept) for node in nodes)
            costs = {node: self._cost(kept | {node}) for node, count in counts.items() if count > 1}
            best = min(costs, key=lambda node: costs[node], default=None)
            if best is None or costs[best] > cost - 2:
                break
            kept.add(best)
            cost = costs[best]
        return kept

    def _cost(self, kept: set[_Node]) -> int:
        return sum(node.cost for nodes in self._elements(kept) for node in nodes)

    # ---- its text ----

    def _source(self) -> str:
        inputs, outputs, extents = self._plan.inputs, self._plan.outputs, self._plan.extents
        parameters = [f"const T* __restrict__ x{i}" for i in range(len(inputs))]
        parameters += [f"T* __restrict__ y{i}" for i, v in enumerate(outputs) if extents[v] is not Extent.COLUMN]
        parameters += ["double* __restrict__ sums"] if self._sums else []
        parameters += [f"double number{i}" for i in range(len(self._numbers))]
        start = [f"  const C single{i} = x{i}[0];" for i, x in enumerate(inputs) if x.extent is Extent.ONE]
        kind, sum_of = ("Tally<C>", ".template value<double>()") if self._plan.space.dtype is float32 else ("C", "")
        start += [f"  {kind} column{i}[PACKS][P] = {{}};" for i in range(len(self._sums))]
        body = [
            f"    const C single{i} = length ? x{i}[row] : C(0);" for i, x in enumerate(inputs) if x.extent is Extent.ROW
        ]
        phases = self._elements(self._kept)
        kept = dict.fromkeys(node for nodes in phases for node in nodes if node in self._kept)
        arrays = {node: f"kept{i}" for i, node in enumerate(kept)}
        body += [f"    C {name}[PACKS][P];" for name in arrays.values()]
        writer = _Writer(arrays, {i for i, v in enumerate(outputs) if extents[v] is Extent.FULL}, self._is_held)
        for phase, nodes in zip(self._phases, phases, strict=True):
            body += writer.phase(phase, nodes)
        writes = [
            f"own[{i} * width] = column{i}[p][j]{sum_of}" + (f" / {count}.0;" if count > 1 else ";")
            for i, (_, count) in enumerate(self._sums)
        ]
        return SOURCE % {
            "parameters": ", ".join([*parameters, "index_t full", "index_t width", "index_t rest"]),
            "start": "".join(f"{line}\n" for line in start),
            "shift": "at % P" if self._is_shifted else "0",
            "body": "".join(f"{line}\n" for line in body),
            "end": END % {"count": len(writes), "writes": " ".join(writes)} if writes else "",
        }


class _Writer:
    """Writes phases; ``arrays`` are those of what is kept, ``places`` those of outputs of all elements."""

    def __init__(self, arrays: dict[_Node, str], places: set[int], is_held: bool) -> None:
        self._arrays, self._places, self._is_held = arrays, places, is_held
        self._count = 0

    def phase(self, phase: _Phase, nodes: list[_Node]) -> Iterator[str]:
        """The lines of a phase."""
        #: The expressions of elements, and lines before the loop over these, in it, and after it.
        names = {node: f"{array}[p][j]" for node, array in self._arrays.items()}
        before, steps, adds, after = list[str](), list[str](), list[str](), list[str]()
        loads = [node for node in nodes if node.operation in ("full", "column") and not node.operands]
        is_wide = len(loads) <= AT_ONCE
        for node in nodes:
            if node in loads:
                text = f"in[{'p' if is_wide else 0}][{loads.index(node)}].at[j]"
            else:
                text = EXPRESSIONS[node.operation].format(*(self._text(x, names, before) for x in node.operands))
            name = self._name()
            kept = f"{self._arrays[node]}[p][j] = " if node in self._arrays else ""
            steps.append(f"const C {name} = {kept}{text};")
            names[node] = name
        whole = [(place, node) for place, node in phase.writes if place in self._places]
        steps += [f"out{place}[j] = {self._text(node, names, before)};" for place, node in whole]
        for node, source in phase.reductions:
            total, text, node.text = self._name(), self._text(source, names, before), self._name()
            if node.operation in ("sum", "mean"):
                before.append(f"Tally<C> {total};")
                adds.append(f"{total} += {text};")
                found = f"C(total<LANES>({total}.template value<double>()){' / length' * (node.operation == 'mean')})"
            else:
                sign = "-" if node.operation == "min" else ""
                before.append(f"C {total} = -infinity(C(0));")
                adds.append(f"{total} = larger({total}, {sign}{text});")
                found = f"{sign}largest<LANES>({total})"
            after.append(f"const C {node.text} = {found};")
        adds += [f"column{i}[p][j] += {self._text(source, names, before)};" for i, source in phase.columns]
        if adds:
            steps.append(f"if (start + j >= 0 && start + j < length) {{ {' '.join(adds)} }}")
        for place, node in phase.writes:
            if place not in self._places:
                after.append(f"if (group.lane == 0 && length) y{place}[row] = {self._text(node, names, before)};")
        yield from (f"    {line}" for line in before)
        if steps:
            yield self._loop(loads, steps, [place for place, _ in whole], is_wide)
        yield from (f"    {line}" for line in after)

    def _loop(self, loads: list[_Node], steps: list[str], places: list[int], is_wide: bool) -> str:
        lines = ", ".join(node.text + " + at" * (node.operation == "full") for node in loads)
        packs, begin = ("PACKS", "begin") if is_wide else ("1", "start")
        given = f"const T* const lines[] = {{{lines}}}; Pack<T> in[{packs}][{len(loads)}]; "
        given = given + f"fetch(lines, {begin}, step, length, in); " if loads else ""
        pieces = "for (index_t begin = first; begin < length; begin += PACKS * step)"
        outs = " ".join(f"C out{place}[P];" for place in places)
        return ELEMENTS.rstrip("\n") % {
            "pieces": "if (const index_t begin = first; begin < length)" if self._is_held else pieces,
            "wide": given if is_wide else "",
            "narrow": ("" if is_wide else given) + outs,
            "steps": "".join(f"          {line}\n" for line in steps),
            "writes": " ".join(f"write(y{place} + at, start, length, out{place});" for place in places),
        }

    def _text(self, node: _Node, names: dict[_Node, str], before: list[str]) -> str:
        """The expression of a value; a number of the row is computed by a line of ``before``, once."""
        if node.is_element:
            return names[node]
        if not node.text:
            text = EXPRESSIONS[node.operation].format(*(self._text(x, names, before) for x in node.operands))
            node.text = self._name()
            before.append(f"const C {node.text} = {text};")
        return node.text

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _space(plan: Plan, width: int) -> Space:
    """The rows of a plan; where elements have no neighbours, rows of this width."""
    if not all(step.is_elementwise and step.has_one_shape for step in plan.steps):
        return plan.space
    return Space(plan.space.size // width, width, plan.space.dtype, plan.space.size % width)
