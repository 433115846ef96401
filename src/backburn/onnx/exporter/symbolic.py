"""Lengths that may vary: a model is recorded at several lengths, and numbers that differ become formulas.

A formula is a sum of products of lengths (``2 batch time + 3``). It is fitted to recordings at two lengths of each
axis, and checked in a recording at a third.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError, BackburnError, CaptureError
from backburn.onnx.exporter.lengths import Formula, integers, number_of
from backburn.onnx.exporter.recorder import Graph, Node

#: Changes of lengths, tried in order: negative ones for models with a maximal length, larger ones for models that halve
#: their inputs.
STEPS = (1, -1, 2, -2, 4, 8, 16, 32)


def merged(record: Callable[[Mapping[str, int]], Graph], lengths: Mapping[str, int]) -> Graph:
    """The graph merged from recordings at several lengths, starting from those of the examples.

    Raises :class:`ArgumentError` if the model does not run at other lengths, and :class:`CaptureError`, with the call,
    if it computes differently there.
    """
    # A length of 1 may stand for any other: arrays are broadcast along it.
    base = {name: max(n, 2) for name, n in lengths.items()}
    first = record(base)
    steps: dict[str, int] = {}
    for name in base:
        error: BackburnError | None = None
        for step in STEPS:
            if base[name] + 3 * step < 1:
                continue
            try:
                for times in (1, 3):
                    _check_alike(first, record({**base, name: base[name] + times * step}), name)
                steps[name] = step
                break
            except CaptureError:
                raise
            except BackburnError as found:
                error = error or found
        else:
            raise ArgumentError(
                f"export: dynamic: the model does not run with another length of {name!r} than {base[name]}: {error}"
            ) from error
    symbols = [*base]
    corners = [*product((0, 1), repeat=len(symbols))]
    graphs = [
        record({name: base[name] + steps[name] * part for name, part in zip(symbols, corner, strict=True)})
        if any(corner)
        else first
        for corner in corners
    ]
    for graph in graphs[1:]:
        _check_alike(first, graph, *symbols)
    third = {name: base[name] + 3 * steps[name] for name in symbols}
    last = record(third)
    _check_alike(first, last, *symbols)

    def fitted(values: Sequence[int], at_third: int, call: str) -> Formula:
        found = _formula(dict(zip(corners, values, strict=True)), symbols, base, steps)
        if _value(found, third) != at_third:
            raise CaptureError(
                f"export: {call} depends on {' and '.join(map(repr, symbols))} by more than sums and products: "
                f"{values[0]} at {base}, and {at_third} at {third}"
            )
        return found

    nodes = [
        _node(parts, last.nodes[i], fitted) for i, parts in enumerate(zip(*(g.nodes for g in graphs), strict=True))
    ]
    return replace(first, nodes=nodes, shapes=_shapes(graphs, last, fitted))


def check_values(record: Callable[[int], Graph]) -> None:
    """Raise :class:`CaptureError` if recordings of other values with the same lengths differ.

    ``record(0)`` records the examples; values for which the model fails are skipped.
    """
    first = record(0)
    for number in (1, 2):
        try:
            other = record(number)
        except CaptureError:
            raise
        except BackburnError:
            continue
        if node := _first_that_differs(first, other, same_inputs):
            raise CaptureError(
                f"export: {node.call} computes something else for other values; compute only with tensors and their "
                "lengths"
            )


def _check_alike(x: Graph, y: Graph, *symbols: str) -> None:
    """Raise :class:`CaptureError` if two recordings differ in more than integers."""
    if node := _first_that_differs(x, y, _are_alike):
        raise CaptureError(
            f"export: {node.call} computes something else at another length of {' or '.join(map(repr, symbols))}; "
            "leave that out of dynamic, or compute only with tensors"
        )


def _first_that_differs(x: Graph, y: Graph, compare: Callable[[Any, Any], bool]) -> Node | None:
    """The first node that differs from the other graph's; None if there is none."""
    for ours, theirs in zip(x.nodes, y.nodes, strict=False):
        same = ours.operator == theirs.operator and ours.outputs == theirs.outputs
        same = same and ours.attributes == theirs.attributes and len(ours.inputs) == len(theirs.inputs)
        if not same or not all(map(compare, ours.inputs, theirs.inputs)):
            return ours
    longer, shorter = (x.nodes, y.nodes) if len(x.nodes) > len(y.nodes) else (y.nodes, x.nodes)
    return longer[len(shorter)] if len(longer) > len(shorter) else None


def same_inputs(x: Any, y: Any) -> bool:
    """Whether inputs are the same."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return x.__class__ is y.__class__ and bool(x == y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _are_alike(x: Any, y: Any) -> bool:
    """Whether inputs are the same, or integers of the same shape."""
    both = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    return same_inputs(x, y) or (both and x.dtype == y.dtype == np.int64 and x.ndim < 2 and x.shape == y.shape)


def _formula(
    values: Mapping[tuple[int, ...], int], symbols: Sequence[str], base: Mapping[str, int], steps: Mapping[str, int]
) -> Formula:
    """The sum of products with these values at the corners."""
    if not symbols:
        return {(): Fraction(values[()])}
    name, *rest = symbols
    low, high = (_formula({c[1:]: v for c, v in values.items() if c[0] == part}, rest, base, steps) for part in (0, 1))
    found: Formula = {}
    for key in low.keys() | high.keys():
        slope = (high.get(key, Fraction(0)) - low.get(key, Fraction(0))) / steps[name]
        found[(name, *key)] = slope
        found[key] = low.get(key, Fraction(0)) - slope * base[name]
    return {key: factor for key, factor in found.items() if factor}


def _value(formula: Formula, lengths: Mapping[Any, int]) -> Fraction:
    total = Fraction(0)
    for names, factor in formula.items():
        for name in names:
            factor *= lengths[name]
        total += factor
    return total


def _node(parts: Sequence[Node], last: Node, fitted: Callable[..., Formula]) -> Node:
    """A node, with formulas for the integers that differ."""
    inputs: list[Any] = []
    for given, at_third in zip(zip(*(node.inputs for node in parts), strict=True), last.inputs, strict=True):
        arrays: Any = (*given, at_third)
        if not isinstance(given[0], np.ndarray) or all(x.tobytes() == given[0].tobytes() for x in arrays):
            inputs.append(given[0])
            continue
        columns = zip(*(x.reshape(-1).tolist() for x in arrays), strict=True)
        numbers = [number_of(fitted(column[:-1], column[-1], parts[0].call)) for column in columns]
        inputs.append(integers(parts[0].operator, numbers, given[0].ndim == 1))
    return replace(parts[0], inputs=inputs)


def _shapes(graphs: Sequence[Graph], last: Graph, fitted: Callable[..., Formula]) -> dict[str, list[int | str | None]]:
    """The shapes of inputs and outputs, with the names of lengths that vary; None for formulas of them."""
    found: dict[str, list[int | str | None]] = {}
    for name in last.shapes:
        lengths: list[int | str | None] = []
        for column in zip(*(g.shapes[name] for g in (*graphs, last)), strict=True):
            if None in column:
                lengths.append(None)
                continue
            number: Any = number_of(fitted(column[:-1], column[-1], f"the shape of {name}"))
            is_name = not isinstance(number, int) and len(number) == 1 and number[0][1] == 1 and len(number[0][0]) == 1
            lengths.append(number if isinstance(number, int) else number[0][0][0] if is_name else None)
        found[name] = lengths
    return found
