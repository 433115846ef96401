"""Element-wise formulas as lists of operations, for backends that compute them in one pass over memory.

A formula is a function of a backend and its operands: the body of a derived operation, or a gradient rule. A backend
calls it once with a :class:`Trace`, which only records the operations, and compiles them to a program or a kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from backburn.base.dtypes import DType
from backburn.base.errors import Unsupported
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import OPERATIONS

Formula = Callable[..., Any]

#: The errors of a formula that is not made of element-wise operations of one dtype and numbers.
UNTRACEABLE = (AttributeError, OverflowError, TypeError, Unsupported)


class Value:
    """An operand or result of an operation in a formula: an array, or if ``is_number`` a single element."""

    __slots__ = ("is_number",)

    def __init__(self, is_number: bool = False) -> None:
        self.is_number = is_number


#: An operation or a kernel, its result and its operands.
Call = tuple[str, Value, list[Value]]


class Trace(ABC):
    """A backend that records the operations of a formula. All floats have one dtype, and true is 1, false 0."""

    def __init__(self, dtype: DType) -> None:
        self.floats = dtype
        self.calls: list[Call] = []
        #: The constants of the formula.
        self.constants: dict[Value, float] = {}

    @abstractmethod
    def knows(self, operation: str) -> bool:
        """Whether an operation is a single step; otherwise its body is traced."""

    @abstractmethod
    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation for which :meth:`knows` is true."""

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name not in OPERATIONS:
            raise AttributeError(name)
        return partial(self.step, name) if self.knows(name) else partial(OPERATIONS[name].body, self)

    def value(self, x: Any) -> Value:
        """A value, which may be given as a number."""
        return x if isinstance(x, Value) else self.constant(x)

    def constant(self, number: float) -> Value:
        """A number."""
        value = Value(is_number=True)
        self.constants[value] = number
        return value

    def dtype(self, x: Value) -> DType:
        """The dtype that all floats have."""
        return self.floats

    def full(self, shape: tuple[int, ...], number: float, dtype: DType) -> Value:
        """A number; raises :class:`Unsupported` for an array."""
        if shape:
            raise Unsupported("a formula cannot create arrays")
        return self.constant(number)

    def astype(self, x: Value, dtype: DType) -> Value:
        """``x``; raises :class:`Unsupported` for another dtype than its own."""
        if dtype is not self.floats:
            raise Unsupported(f"a formula computes in {self.floats}, not in {dtype}")
        return x


def traced(formula: Formula, trace: Trace, values: list[Any]) -> Value | tuple[Value, ...]:
    """The result of a formula, or its tuple of results.

    Raises one of :data:`UNTRACEABLE` if it has an operation that cannot be recorded, or a result that no operation
    made.
    """
    found: Value | tuple[Value, ...] = formula(trace, *values)
    results = found if isinstance(found, tuple) else (found,)
    if not {*results} <= {made for _, made, _ in trace.calls} or len({*results}) < len(results):
        raise Unsupported("a formula without an operation")
    return found


@cache
def method_of(name: str) -> Formula:
    """The operation of that name as a formula."""

    def formula(k: Any, *values: Any) -> Any:
        return getattr(k, name)(*values)

    return formula


def is_formula(name: str) -> bool:
    """Whether the operation is declared element-wise on floats: a backend without a function for it fuses its body."""
    entry = OPERATIONS[name]
    is_float = entry.kinds in ("F", "FC", "FCI", "FI") and entry.keeps_kind
    return entry.differentiable and is_float and entry.shape in (broadcast, unchanged)
