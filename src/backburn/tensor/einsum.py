"""Tensor functions: ``einsum``, sums of products in Einstein notation.

The subscripts are those of NumPy's function. Operands are contracted in pairs, the cheapest pair first, each by one
batched matrix product. Subscripts and shapes are compiled to a program of operations, which is cached.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.table import shape_rule
from backburn.tensor.core.dispatch import call, promote_operands, tensor_operand
from backburn.tensor.core.messages import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backburn.tensor.classes import Tensor

#: A letter, or for the axes of an ellipsis a number: -1 is the last of them.
Label = str | int
ELLIPSIS = "..."


def einsum(subscripts: str, /, *operands: Tensor) -> Tensor:
    """The sum of products of ``operands`` that ``subscripts`` describe, as ``"ij,jk->ik"`` does a matrix product.

    A letter names an axis; axes of the same name have the same length, or length 1, which is broadcast. A letter that
    is repeated in one operand takes its diagonal. Letters that do not follow ``->`` are summed over. ``...`` stands for
    all further axes, which broadcast. Without ``->`` the result has the axes of ``...`` and then the letters that
    appear once, in alphabetical order. Raises :class:`ArgumentError` for invalid subscripts, marking the position, and
    :class:`ShapeError` for shapes that do not fit them.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2], [3, 4]])
        >>> bb.einsum("ij,j->i", x, bb.asarray([1, 10])).tolist()
        [21, 43]
        >>> bb.einsum("ii", x).item()
        5
    """
    if not isinstance(subscripts, str):
        raise ArgumentError(f"einsum: the subscripts are a string such as 'ij,jk->ik', not {type(subscripts).__name__}")
    tensors = tuple(tensor_operand("einsum", x) for x in operands)
    try:
        program = compiled(subscripts, tuple(x.shape for x in tensors))
    except (ArgumentError, ShapeError) as error:
        raise type(error)(f"{error}\nOperands: {describe(tensors)}") from None
    values: list[Any] = promote_operands("einsum", *tensors, kinds="FCI")
    for step in program.steps:
        values.append(call(step.name, *(values[i] for i in step.operands), **step.attributes))
        for i in step.last:
            values[i] = None
    return values[program.result]


# ---- programs ----

Shape = tuple[int, ...]


@dataclass
class Step:
    """An operation on numbered values; those in ``last`` are not used afterwards."""

    name: str
    operands: tuple[int, ...]
    attributes: dict[str, Any]
    last: tuple[int, ...] = ()


class Program:
    """Steps, whose results are numbered after the operands, and the number of the final result."""

    def __init__(self, shapes: tuple[Shape, ...]) -> None:
        self.shapes: list[Shape] = list(shapes)
        self.steps: list[Step] = []
        self.result = 0

    def do(self, name: str, *operands: int, **attributes: Any) -> int:
        """Add a step; returns the number of its result."""
        self.shapes.append(shape_rule(name)(*(self.shapes[i] for i in operands), **attributes))
        self.steps.append(Step(name, operands, attributes))
        return len(self.shapes) - 1

    def ordered(self, x: int, axes: Shape) -> int:
        """``x`` with its axes in this order."""
        return x if axes == tuple(range(len(axes))) else self.do("permute_dims", x, axes=axes)

    def shaped(self, x: int, shape: Shape) -> int:
        """``x`` in this shape."""
        return x if self.shapes[x] == shape else self.do("reshape", x, shape=shape)

    def finish(self, result: int) -> None:
        """Set the result, and release every other value after its last use."""
        self.result = result
        used = {result}
        for step in reversed(self.steps):
            step.last = tuple({*step.operands} - used)
            used.update(step.operands)


@lru_cache(512)
def compiled(subscripts: str, shapes: tuple[Shape, ...]) -> Program:
    """The program for subscripts and operands of these shapes. Raises like :func:`einsum`."""
    plan, program = read(subscripts, shapes), Program(shapes)
    terms = [_take_diagonals(program, x, labels, plan) for x, labels in enumerate(plan.inputs)]
    while len(terms) > 1:
        first, second = min(itertools.combinations(range(len(terms)), 2), key=lambda pair: _work(terms, pair, plan))
        others = [term for i, term in enumerate(terms) if i not in (first, second)]
        terms = [*others, _product(program, terms[first], terms[second], _needed_labels(others, plan), plan.lengths)]
    x, labels = _sum_labels(program, *terms[0], set(plan.output))
    program.finish(program.ordered(x, tuple(labels.index(label) for label in plan.output)))
    return program


# ---- reading ----


@dataclass(frozen=True)
class Plan:
    """The parsed subscripts: labels of each operand's axes and of the result's axes, and their lengths."""

    inputs: list[list[Label]]
    output: list[Label]
    lengths: dict[Label, int]


class _Text:
    """The subscripts, and the error that marks a position in them."""

    def __init__(self, subscripts: str) -> None:
        self.text = subscripts

    def refuse(self, place: int, why: str, error: type[ArgumentError | ShapeError] = ArgumentError) -> NoReturn:
        """Raise, with a mark under the position."""
        mark = " " * place + "^"
        raise error(f"einsum: {why}, at position {place}:\n    {self.text}\n    {mark}")

    def symbols(self) -> Iterator[tuple[int, str]]:
        """Letters, ``...``, ``,`` and ``->``, each with its position."""
        place = 0
        while place < len(self.text):
            rest = self.text[place:]
            found = next((s for s in (ELLIPSIS, "->", ",") if rest.startswith(s)), rest[0])
            if found.isascii() and (found.isalpha() or found in (ELLIPSIS, "->", ",")):
                yield place, found
            elif not found.isspace():
                words = {".": "an ellipsis is three points", "-": "an arrow is '->'", ">": "an arrow is '->'"}
                self.refuse(place, words.get(found, f"{found!r} is not a letter from a to z or A to Z"))
            place += len(found)


def read(subscripts: str, shapes: tuple[Shape, ...]) -> Plan:
    """The plan of the subscripts for operands of these shapes; errors mark the position."""
    text = _Text(subscripts)
    parts: list[list[tuple[int, str]]] = [[]]
    arrow: int | None = None
    for place, symbol in text.symbols():
        if symbol == "->":
            if arrow is not None:
                text.refuse(place, "only one arrow is allowed")
            arrow = place
            parts.append([])
        elif symbol == ",":
            if arrow is not None:
                text.refuse(place, "only one result is allowed")
            if len(parts) >= len(shapes):
                text.refuse(place, f"the subscripts name more operands than the {len(shapes)} that are given")
            parts.append([])
        else:
            if symbol == ELLIPSIS and any(s == ELLIPSIS for _, s in parts[-1]):
                text.refuse(place, "only one ellipsis is allowed for each operand")
            parts[-1].append((place, symbol))
    inputs = parts if arrow is None else parts[:-1]
    if len(inputs) != len(shapes):
        text.refuse(len(text.text), f"the subscripts name {len(inputs)} operands, and {len(shapes)} are given")
    lengths: dict[Label, int] = {}
    labels = [_axes(text, part, i, shapes[i], lengths) for i, part in enumerate(inputs)]
    beyond = sorted(label for label in lengths if isinstance(label, int))
    if arrow is None:
        seen = Counter(label for one in labels for label in one if isinstance(label, str))
        return Plan(labels, [*beyond, *sorted(label for label, times in seen.items() if times == 1)], lengths)
    return Plan(labels, _result(text, parts[-1], arrow, beyond, lengths), lengths)


def _axes(
    text: _Text, part: list[tuple[int, str]], number: int, shape: Shape, lengths: dict[Label, int]
) -> list[Label]:
    """The labels of an operand's axes, whose lengths are added to ``lengths``."""
    letters = sum(symbol != ELLIPSIS for _, symbol in part)
    end = part[-1][0] if part else 0
    if letters > len(shape) or (letters < len(shape) and letters == len(part)):
        text.refuse(end, f"operand {number} has {len(shape)} axes, and {letters} letters", ShapeError)
    labels: list[Label] = []
    places: list[int] = []
    for place, symbol in part:
        found: list[Label] = [symbol] if symbol != ELLIPSIS else list(range(letters - len(shape), 0))
        labels += found
        places += [place] * len(found)
    for label, place, length in zip(labels, places, shape, strict=True):
        known = lengths.setdefault(label, length)
        if known != length and 1 not in (known, length):
            what = "an axis of the ellipsis" if isinstance(label, int) else f"axis {label!r}"
            text.refuse(place, f"{what} is {length} in operand {number} and {known} before", ShapeError)
        lengths[label] = length if known == 1 else known
    for label, times in Counter(labels).items():
        alike = {n for one, n in zip(labels, shape, strict=True) if one == label}
        if times > 1 and len(alike) > 1:
            text.refuse(end, f"the axes {label!r} of operand {number} differ in length", ShapeError)
    return labels


def _result(
    text: _Text, part: list[tuple[int, str]], arrow: int, beyond: list[int], lengths: dict[Label, int]
) -> list[Label]:
    """The labels of the result's axes."""
    output: list[Label] = []
    for place, symbol in part:
        if symbol == ELLIPSIS:
            output += beyond
        elif symbol not in lengths:
            text.refuse(place, f"{symbol!r} names no axis of an operand")
        elif symbol in output:
            text.refuse(place, f"{symbol!r} names two axes of the result")
        else:
            output.append(symbol)
    if beyond and not any(symbol == ELLIPSIS for _, symbol in part):
        text.refuse(arrow, "the operands have an ellipsis and the result has none")
    return output


# ---- computing ----

#: The number of a value, and the labels of its axes.
Term = tuple[int, list[Label]]


def _take_diagonals(program: Program, x: int, labels: list[Label], plan: Plan) -> Term:
    """The diagonals of an operand for repeated labels, without axes of length 1 that are longer in other operands."""
    labels = list(labels)
    for label, times in Counter(labels).items():
        for _ in range(times - 1):
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = program.do("diagonal", x, offset=0, axis1=first, axis2=second)
            labels = [*(one for i, one in enumerate(labels) if i not in (first, second)), label]
    shape = program.shapes[x]
    kept_axes = [i for i, label in enumerate(labels) if shape[i] == plan.lengths[label]]
    return program.shaped(x, tuple(shape[i] for i in kept_axes)), [labels[i] for i in kept_axes]


def _needed_labels(terms: list[Term], plan: Plan) -> set[Label]:
    """The labels of the result and of other operands."""
    return {*plan.output, *(label for _, labels in terms for label in labels)}


def _work(terms: list[Term], pair: tuple[int, int], plan: Plan) -> int:
    """The number of multiplications in the product of a pair, minus the number of its operands' elements."""
    labels = {*terms[pair[0]][1], *terms[pair[1]][1]}
    sizes = sum(math.prod(plan.lengths[label] for label in terms[i][1]) for i in pair)
    return math.prod(plan.lengths[label] for label in labels) - sizes


def _sum_labels(program: Program, x: int, labels: list[Label], needed: set[Label]) -> Term:
    """A term summed over the labels that nothing else needs."""
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return program.do("sum", x, axis=axes), [label for label in labels if label in needed]


def _product(program: Program, first: Term, second: Term, needed: set[Label], lengths: dict[Label, int]) -> Term:
    """The product of two terms, summed over the labels that nothing else needs."""
    x, left = _sum_labels(program, *first, {*needed, *second[1]})
    y, right = _sum_labels(program, *second, {*needed, *left})
    both = [label for label in left if label in right and label in needed]
    inner = [label for label in left if label in right and label not in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]

    def size(labels: list[Label]) -> int:
        return math.prod(lengths[label] for label in labels)

    def arranged(t: int, labels: list[Label], *groups: list[Label]) -> int:
        order = tuple(labels.index(label) for group in groups for label in group)
        together = groups if both else groups[1:]  # a stack of one matrix is a matrix
        return program.shaped(program.ordered(t, order), tuple(map(size, together)))

    if inner:
        product = program.do("matmul", arranged(x, left, both, rows, inner), arranged(y, right, both, inner, columns))
    else:
        product = program.do("mul", arranged(x, left, both, rows, []), arranged(y, right, both, [], columns))
    labels = [*both, *rows, *columns]
    return program.shaped(product, tuple(lengths[label] for label in labels)), labels
