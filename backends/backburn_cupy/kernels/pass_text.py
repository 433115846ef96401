"""The text of the kernel of a pass: values, the phases that compute them, and the loops over a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from backburn_cupy.kernels.fused import EXPRESSIONS

#: The costs of recomputing a value: instructions per element, roughly.
COSTS = {"full": 6, "column": 2, "cheap": 1, "dear": 8}
#: Operations of one or two instructions.
CHEAP = frozenset((
    *("add", "sub", "mul", "neg", "abs", "square", "maximum", "minimum", "where", "round", "floor", "isnan"),
    "stored",
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip
#: The expressions of operations; a call on 16-bit floats is rounded.
TEXTS = EXPRESSIONS | {"stored": "stored({})"}
#: The most operands of a phase for which a thread loads all elements before it uses one.
AT_ONCE = 4

SOURCE = """#include "common.cuh"
template <class T, int LANES, int PACKS> __global__ void __launch_bounds__(LANES ? 256 : 512) {family}(
    %(parameters)s) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  const Group<LANES> group;
  const index_t step = group.size * P;
%(start)s  FOR_ROWS(group, row, full + (rest > 0)) {
    const index_t length = row < full ? width : row == full ? rest : 0, at = row * width;
    const index_t first = group.lane * P - %(shift)s;
%(body)s  }
%(end)s}
"""

#: A function that rounds a result to the dtype of 16 bits in which it would be stored.
STORED = """  const auto stored = [](C x) {
    T y;
    narrow(x, y);
    return widen(y);
  };"""

#: The loop of a phase over the elements of a row, at once or in pieces.
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
class Node:
    """A value of a pass: an operation, operands, whether it varies along a row; a comparison is 1 or 0."""

    operation: str
    operands: list[Node] = field(default_factory=list)
    is_element: bool = False
    #: The first phase that can compute it: the one after the phase that reduces the rows it depends on.
    phase: int = 0
    #: The expression of a value that is not an element, once it has one, or the array of an operand.
    text: str = ""

    @property
    def cost(self) -> int:
        """The cost of recomputing it."""
        return COSTS.get(self.operation) or COSTS["cheap" if self.operation in CHEAP else "dear"]


@dataclass
class Phase:
    """The outputs, the reductions of the row and the sums of columns that a phase computes."""

    writes: list[tuple[int, Node]] = field(default_factory=list)
    reductions: list[tuple[Node, Node]] = field(default_factory=list)
    columns: list[tuple[int, Node]] = field(default_factory=list)

    @property
    def needs(self) -> list[Node]:
        """The values that it needs."""
        return [x[1] for x in (*self.writes, *self.reductions, *self.columns)]


class Writer:
    """Writes phases; ``arrays`` name kept values, ``places`` are the numbers of outputs of all elements."""

    def __init__(self, arrays: dict[Node, str], places: set[int], is_held: bool) -> None:
        self._arrays, self._places, self._is_held = arrays, places, is_held
        self._count = 0

    def phase(self, phase: Phase, nodes: list[Node]) -> Iterator[str]:
        """The lines of a phase."""
        #: The expressions of elements, and lines before the loop over these, in it, and after it.
        names = {node: f"{array}[p][j]" for node, array in self._arrays.items()}
        before, steps, adds, after = list[str](), list[str](), list[str](), list[str]()
        loads = [node for node in nodes if node.operation in ("full", "column") and not node.operands]
        is_wide = len(loads) <= AT_ONCE
        for node in nodes:
            if node in loads:
                text = f"widen(in[{'p' if is_wide else 0}][{loads.index(node)}].at[j])"
            else:
                text = TEXTS[node.operation].format(*(self._text(x, names, before) for x in node.operands))
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
                text = self._text(node, names, before)
                after.append(f"if (group.lane == 0 && length) narrow({text}, y{place}[row]);")
        yield from (f"    {line}" for line in before)
        if steps:
            yield self._loop(loads, steps, [place for place, _ in whole], is_wide)
        yield from (f"    {line}" for line in after)

    def _loop(self, loads: list[Node], steps: list[str], places: list[int], is_wide: bool) -> str:
        lines = ", ".join(node.text + " + at" * (node.operation == "full") for node in loads)
        packs, begin = ("PACKS", "begin") if is_wide else ("1", "start")
        given = f"const T* const lines[] = {{{lines}}}; Pack<T> in[{packs}][{len(loads)}]; "
        given = given + f"fetch(lines, {begin}, step, length, in); " if loads else ""
        pieces = "for (index_t begin = first; begin < length; begin += PACKS * step)"
        outs = " ".join(f"C out{place}[P];" for place in places)
        text = ELEMENTS % {
            "pieces": "if (const index_t begin = first; begin < length)" if self._is_held else pieces,
            "wide": given if is_wide else "",
            "narrow": ("" if is_wide else given) + outs,
            "steps": "".join(f"          {line}\n" for line in steps),
            "writes": " ".join(f"write(y{place} + at, start, length, out{place});" for place in places),
        }
        return "\n".join(line for line in text.split("\n") if line.strip())

    def _text(self, node: Node, names: dict[Node, str], before: list[str]) -> str:
        """The expression of a value; a number of the row is computed by a line of ``before``, once."""
        if node.is_element:
            return names[node]
        if not node.text:
            text = TEXTS[node.operation].format(*(self._text(x, names, before) for x in node.operands))
            node.text = self._name()
            before.append(f"const C {node.text} = {text};")
        return node.text

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"
