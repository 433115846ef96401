"""Lengths of results whose shapes depend on values, and formulas of such lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

#: A length that varies: the name of a dynamic axis, or a value of the graph and its axis.
Symbol: TypeAlias = "str | tuple[str, int]"
#: A sum of products: the factor of each product of lengths; the empty product has the constant.
Formula: TypeAlias = "dict[tuple[Symbol, ...], Fraction]"
Terms: TypeAlias = "tuple[tuple[tuple[Symbol, ...], Fraction], ...]"


@dataclass(frozen=True)
class Symbolic:
    """Integers, some of them formulas, of rank 0 or 1."""

    numbers: tuple[int | Terms, ...]
    is_vector: bool

    @property
    def names(self) -> set[str]:
        """The values whose lengths occur in the formulas."""
        terms = [term for number in self.numbers if not isinstance(number, int) for term in number]
        return {symbol[0] for symbols, _ in terms for symbol in symbols if isinstance(symbol, tuple)}


class Length(int):
    """A length that depends on values: its value in this recording, and its formula or None."""

    formula: Formula | None

    @classmethod
    def of(cls, number: int, formula: Formula | None) -> Length:
        """The length with a formula."""
        found = cls(number)
        found.formula = formula
        return found

    def __neg__(self) -> int:
        return self * -1


def _linear(sign: int) -> Callable[[Formula, Formula], Formula]:
    def added(x: Formula, y: Formula) -> Formula:
        return {key: x.get(key, Fraction(0)) + sign * y.get(key, Fraction(0)) for key in x.keys() | y.keys()}

    return added


def _product(x: Formula, y: Formula) -> Formula:
    found: Formula = {}
    for one, factor in x.items():
        for other, more in y.items():
            key = tuple(sorted((*one, *other), key=str))
            found[key] = found.get(key, Fraction(0)) + factor * more
    return found


def _quotient(x: Formula, y: Formula) -> Formula | None:
    """The quotient by one product, if its coefficients are integers."""
    terms = [(key, factor) for key, factor in y.items() if factor]
    if len(terms) != 1:
        return None
    (divisor, number), found = terms[0], {}
    for key, factor in x.items():
        left = [*key]
        for symbol in divisor:
            if symbol not in left:
                return None
            left.remove(symbol)
        if (factor / number).denominator != 1:
            return None
        found[tuple(left)] = factor / number
    return found


def formula_of(number: int) -> Formula | None:
    """The formula of a number; None if it is computed from lengths by more than sums and products."""
    return number.formula if isinstance(number, Length) else {(): Fraction(number)}


def _method(name: str, function: Callable[[Formula, Formula], Formula | None], is_reflected: bool) -> Any:
    plain = getattr(int, name)

    def computed(x: Length, y: Any) -> Any:
        number = plain(x, y)
        if not isinstance(number, int):  # NotImplemented
            return number
        ours, theirs = formula_of(x), formula_of(y)
        if ours is None or theirs is None:
            return Length.of(number, None)
        return Length.of(number, function(theirs, ours) if is_reflected else function(ours, theirs))

    return computed


for _name, _function in {
    "add": _linear(1), "sub": _linear(-1), "mul": _product, "floordiv": _quotient, "mod": lambda x, y: None,
}.items():  # fmt: skip
    for _prefix in ("", "r"):
        setattr(Length, f"__{_prefix}{_name}__", _method(f"__{_prefix}{_name}__", _function, _prefix == "r"))


def number_of(formula: Mapping[tuple[Symbol, ...], Fraction]) -> int | Terms:
    """A formula, or an integer if it is constant."""
    terms = {key: factor for key, factor in formula.items() if factor}
    if all(not key for key in terms):
        return int(terms.get((), 0))
    return tuple(sorted(terms.items(), key=str))


def integers(operator: str, numbers: Iterable[Any], is_vector: bool) -> Any:
    """Integers as an input of a node: an array, or :class:`Symbolic` if some are formulas.

    A shape with one formula is an array with -1 in its place.
    """
    found = tuple(numbers)
    if all(isinstance(number, int) for number in found):
        return np.array(found if is_vector else found[0], np.int64)
    if operator == "Reshape" and sum(not isinstance(number, int) for number in found) == 1 and 0 not in found:
        return np.array([number if isinstance(number, int) else -1 for number in found], np.int64)
    return Symbolic(found, is_vector)
