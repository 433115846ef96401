"""Passes over rows: a kernel for each plan of :mod:`backburn.programs.fusion`, generated when the plan is compiled.

A row belongs to a warp or a block, whose threads each have the same elements of it in every phase; a phase ends where
the rest of the pass reads a sum or an extreme of the row. Values that later phases read are kept in registers if there
are enough, those first whose recomputation or rereading costs most. A thread sums floats with their rounding errors;
its total is added to others' as a double. Sums of columns are added by each group of threads for its rows, and by a
second kernel over the groups: all orders follow from the shape.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from typing import Any

from backburn.base.dtypes import DType, float32, float64, rounded
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion.plan import ALONG_ROWS, Extent, Operand, Plan, Space
from backburn.programs.ir import Call, Variable
from backburn.programs.lowering import UNTRACEABLE, Trace, Value
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.fused import EXPRESSIONS, NUMBERS
from backburn_cupy.kernels.pass_text import END, SOURCE, STORED, Node, Phase, Writer
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES, write

Array = Any

# The limits below are guesses that have not been measured on a GPU. They follow from the 65,536 registers of a
# multiprocessor (CUDA C++ Programming Guide) and from the row kernels (`geometry`).

#: The accesses of 16 bytes that a thread has of a row, and the most threads. Longer rows are processed in pieces, and
#: none of their values are kept.
PACKS, MOST_THREADS = 2, 512
#: The most values that a thread keeps for its elements, of eight registers each; with 512 threads it has 128.
KEPT = 8
#: The fewest rows whose columns a group of threads adds, and the most groups: their sums are written and read.
LEAST_ROWS, MOST_GROUPS = 8, 2048


class _Trace(Trace):
    """Records operations as nodes."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        self._nodes: dict[Value, Node] = {}
        #: The numbers, and their nodes; -0.0 is not 0.0.
        self.numbers: dict[str, tuple[float, Node]] = {}

    def knows(self, operation: str) -> bool:
        """Whether there is an expression for the operation."""
        return operation in EXPRESSIONS

    def node(self, x: Any) -> Node:
        """The node of a value or a number."""
        if isinstance(x, Value) and x in self._nodes:
            return self._nodes[x]
        number = float(self.constants[x] if isinstance(x, Value) else x)
        new = Node("number", text=f"C(number{len(self.numbers)})")
        return self.numbers.setdefault(repr(number), (number, new))[1]

    def enter(self, node: Node) -> Value:
        """A value that stands for a node."""
        value = Value()
        self._nodes[value] = node
        return value

    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation."""
        nodes = [self.node(x) for x in operands]
        is_element = any(x.is_element for x in nodes)
        return self.enter(Node(operation, nodes, is_element, max((x.phase for x in nodes), default=0)))

    def pow(self, x: Any, y: Any) -> Value:
        """A power: multiplications, or a division, where the exponent is a small integer."""
        exponent = None if isinstance(y, Value) else float(y)
        if exponent == 3.0:
            return self.step("mul", self.step("square", x), x)
        short = {2.0: "square", -1.0: "reciprocal"}.get(exponent or 0.0)
        return self.step(short, x) if short else self.step("pow", x, y)


@cache
def knows(name: str, dtype: DType) -> bool:
    """Whether a pass computes an element-wise operation in a dtype; those along rows have separate kernels."""
    if name in ALONG_ROWS or not dtype.is_floating:
        return False
    trace = _Trace(_computed(dtype))
    known: dict[str, dict[str, Any]] = {"astype": {"dtype": trace.floats}, "gelu_backward": {"approximate": "none"}}
    values = [trace.enter(Node("full", is_element=True)) for _ in OPERATIONS[name].operands]
    try:
        getattr(trace, name)(*values, **known.get(name, {}))
    except UNTRACEABLE:
        return False
    return True


class PassKernel:
    """The kernel of a plan; a call launches it."""

    def __init__(self, plan: Plan) -> None:
        """Raises one of ``UNTRACEABLE`` for a plan that has none."""
        dtype = plan.space.dtype
        self._plan, self._is_narrow = plan, dtype.bits < 32
        self._trace = _Trace(_computed(dtype))
        self._phases: list[Phase] = []
        #: The output of each sum of columns, and its divisor.
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
            raise TypeError("a pass with too many numbers or sums of columns")
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
        plan, space, dtype = self._plan, self._space, self._plan.space.dtype.dtype
        extents = plan.extents
        outputs: list[Any] = []
        for v in plan.outputs:
            shape = v.shape
            if extents[v] is Extent.ROW and plan.space.rows == 1:  # the calls that reduce them take any number
                shape = (space.numbers, *shape[1:])
            outputs.append(None if extents[v] is Extent.COLUMN else on.xp.ndarray(shape, dtype))
        arguments = [on.xp.ascontiguousarray(x) for x in inputs]
        arguments += [x for x in outputs if x is not None]
        columns = len(self._sums) * space.width
        of_groups = [on.xp.ndarray((self._groups, columns), "float64")] if self._sums else []
        sizes = (space.rows, space.width, space.rest)
        on.run(self.family, self.kernel, self._grid, self._block, *arguments, *of_groups, *self._numbers, *sizes)
        if self._sums:
            totals = on.xp.ndarray((columns,), dtype)
            grid, block = geometry.ceil_div(columns, geometry.WARP), (geometry.WARP, geometry.WARP)
            on.run("passes", f"sum_groups<{self._type}>", grid, block, *of_groups, totals, self._groups, columns)
            for i, (place, _) in enumerate(self._sums):
                outputs[place] = totals[i * space.width : (i + 1) * space.width].reshape(plan.outputs[place].shape)
        return outputs

    # ---- computation ----

    def _read(self, plan: Plan) -> None:
        """Note what the steps of the plan compute."""
        trace, known = self._trace, dict[Any, Value]()
        kinds = {Extent.FULL: "full", Extent.COLUMN: "column"}
        for i, x in enumerate(plan.inputs):
            node = Node(kinds.get(x.extent, ""), is_element=x.extent in kinds, text=f"x{i}")
            if not node.is_element:
                node.text = f"single{i}"
            elif x.repeat:  # a pointer to the row, as to a row of numbers per column
                node = Node("column", is_element=True, text=f"line{i}")
            known[id(x.value), *x[1:]] = trace.enter(node)
        places = {v: i for i, v in enumerate(plan.outputs)}

        def value(x: Any) -> Any:
            if not isinstance(x, Operand):
                return x
            return known[id(x.value)] if id(x.value) in known else known[id(x.value), *x[1:]]

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
                node = Node(step.call.operation, phase=source.phase + 1)
                self._phase(source.phase).reductions.append((node, source))
            else:
                node = trace.node(self._made(step.call, operands))
                if self._is_narrow and result.dtype.kind != "bool":
                    node = trace.node(trace.step("stored", trace.enter(node)))
            known[id(result)] = trace.enter(node)
            if result in places:
                self._phase(node.phase).writes.append((places[result], node))

    def _made(self, call: Call, operands: list[Any]) -> Any:
        options = call.attributes
        if self._is_narrow:  # Python numbers are rounded, as beside arrays
            host = self._plan.space.dtype.dtype
            operands = [rounded(x, host) for x in operands]
            options = {name: rounded(x, host) for name, x in options.items()}
        if call.operation == "astype":  # of a comparison
            return operands[0]
        if call.operation == "fuse":  # the first operand is the formula
            return operands[0](self._trace, *operands[1:])
        return getattr(self._trace, call.operation)(*operands, **options)

    def _phase(self, number: int) -> Phase:
        self._phases += [Phase() for _ in range(len(self._phases), number + 1)]
        return self._phases[number]

    # ---- kept values ----

    def _elements(self, kept: set[Node]) -> list[list[Node]]:
        """The elements that each phase computes or reads, each after its operands; ``kept`` ones only once."""
        found: list[list[Node]] = []
        there = set[Node]()
        for phase in self._phases:
            order: dict[Node, None] = {}
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

    def _chosen(self, room: int) -> set[Node]:
        """The values to keep, at most ``room``: greedily, the one that saves most."""
        kept, cost = set[Node](), self._cost(set())
        while len(kept) < room:
            counts = Counter(node for nodes in self._elements(kept) for node in nodes)
            costs = {node: self._cost(kept | {node}) for node, count in counts.items() if count > 1}
            best = min(costs, key=lambda node: costs[node], default=None)
            if best is None or costs[best] > cost - 2:
                break
            kept.add(best)
            cost = costs[best]
        return kept

    def _cost(self, kept: set[Node]) -> int:
        return sum(node.cost for nodes in self._elements(kept) for node in nodes)

    # ---- source text ----

    def _source(self) -> str:
        inputs, outputs, extents = self._plan.inputs, self._plan.outputs, self._plan.extents
        parameters = [f"const T* __restrict__ x{i}" for i in range(len(inputs))]
        parameters += [f"T* __restrict__ y{i}" for i, v in enumerate(outputs) if extents[v] is not Extent.COLUMN]
        parameters += ["double* __restrict__ sums"] if self._sums else []
        parameters += [f"double number{i}" for i in range(len(self._numbers))]
        start = [STORED] if self._is_narrow else []
        once = [i for i, x in enumerate(inputs) if x.extent is Extent.ONE and x.repeat is None]
        start += [f"  const C single{i} = widen(x{i}[0]);" for i in once]
        kind, sum_of = ("Tally<C>", ".template value<double>()") if self._plan.space.dtype is float32 else ("C", "")
        start += [f"  {kind} column{i}[PACKS][P] = {{}};" for i in range(len(self._sums))]
        body = [
            f"    const T* const line{i} = x{i} + ({_row_of(x)}) * width;"
            for i, x in enumerate(inputs)
            if x.extent in (Extent.FULL, Extent.COLUMN) and x.repeat
        ]
        body += [
            f"    const C single{i} = length ? widen(x{i}[{_row_of(x)}]) : C(0);"
            for i, x in enumerate(inputs)
            if x.extent is Extent.ROW or (x.extent is Extent.ONE and x.repeat)
        ]
        phases = self._elements(self._kept)
        kept = dict.fromkeys(node for nodes in phases for node in nodes if node in self._kept)
        arrays = {node: f"kept{i}" for i, node in enumerate(kept)}
        body += [f"    C {name}[PACKS][P];" for name in arrays.values()]
        writer = Writer(arrays, {i for i, v in enumerate(outputs) if extents[v] is Extent.FULL}, self._is_held)
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


def _row_of(x: Operand) -> str:
    """The expression of the row of an operand for a row of the pass."""
    if x.repeat is None:
        return "row"
    # Divisions of 32 bits take fewer registers; a thread may have a row after the last one.
    row, kind = ("(unsigned)row", "u") if prod(x.repeat.whole) < 1 << 31 else ("row", "")
    terms = ([f"{n}{kind}" for n in term] for term in x.repeat.terms)
    return " + ".join(f"{row} / {each} % {count} * {stride}" for each, count, stride in terms)


def _computed(dtype: DType) -> DType:
    """The dtype in which floats are computed."""
    return float64 if dtype is float64 else float32


def _space(plan: Plan, width: int) -> Space:
    """The rows of a plan; rows of ``width`` if all steps are element-wise on one shape, or there is only one row."""
    space = plan.space
    if space.rows > 1 and not all(step.is_elementwise and step.has_one_shape for step in plan.steps):
        return space
    return Space(space.size // width, width, space.dtype, space.size % width)
