"""Generates the methods of ``Forward`` from the operation table, the gradient rules and the forward-mode declarations.

Every operation of ``Forward`` is one function, generated at its first call: it unwraps the inner primitives, calls
the inner backend, and, if an operand has a tangent, sums the contributions of the operands to the result's tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from backburn.autodiff.base import Box
from backburn.autodiff.codegen import OperationSource, compiled
from backburn.autodiff.reverse import Autodiff
from backburn.autodiff.reverse_codegen import missing_rule
from backburn.backend.contract import BK
from backburn.base.contexts import RECORDING, scoped
from backburn.base.dtypes import ComplexDType, DType
from backburn.ops.bodies.reductions import all_axes, sum_terms
from backburn.ops.bodies.scalars import is_scalar
from backburn.ops.rules.tangents import JvpTerm, jvp_terms, runs_body
from backburn.ops.table import Operation


class Dual(Box[BK]):
    """The float primitive of ``Forward[BK]``: an inner float primitive, and its tangent unless it is a constant."""

    __slots__ = ("tangent",)

    def __init__(self, value: Any, tangent: Any = None) -> None:
        self.value = value
        self.tangent = tangent

    def __repr__(self) -> str:
        return f"Dual({self.value!r}{'' if self.tangent is None else f', tangent={self.tangent!r}'})"


def compile_operation(operation: Operation) -> Callable[..., Any]:
    """The method of ``Forward`` for ``operation``."""
    names: dict[str, Any] = {
        "_Dual": Dual,
        "_like": like,
        "_zero": zero,
        "_reduced": reduced,
        "_transposed": transposed,
        "_missing_rule": missing_rule,
        "_operation": operation.name,
        **{f"_tangent_{i}": p.function for i, p in enumerate(jvp_terms(operation))},
    }
    return compiled(operation, _ForwardSource(operation).text(), "Forward", names)


#: An operation without terms: its gradient rule is transposed if an operand has a tangent.
TRANSPOSE = """
if not _constant:
    return _transposed(k, _operation, _boxed, dict({attributes}))
"""
#: The first term of a tangent, and each other one.
FIRST_TERM = """
if {noted}:
    _term = {term}
    _t = _term
"""
ADD_TERM = """
if {noted}:
    _term = {term}
    _t = _term if _t is None else _t if _term is None else k.add(_t, _term)
"""


class _ForwardSource(OperationSource):
    """The source text of one operation of ``Forward``."""

    box = "_Dual"
    note = "tangent"

    def text(self) -> str:
        op = self.operation
        terms = jvp_terms(op)
        self.signature()
        if runs_body(op):
            self.decomposed()
            return "\n".join(self.lines) + "\n"
        if op.differentiable and not terms:
            self.emit(f"_boxed = ({', '.join(op.operands)},)")
        self.unwrap()
        if op.differentiable:
            self.emit(f"_constant = not ({' or '.join(self.noted(o) for o in op.operands)}) or not _recording()")
            if not terms:
                attributes = ", ".join(f"{n}={n}" for n in op.attributes)
                self.emit(TRANSPOSE, attributes=attributes)
        self.call_inner()
        if op.differentiable and terms:
            self.emit(f"if _constant:\n    return {self.plain()}")
            self.push(terms)
        else:
            self.emit(f"return {self.plain()}")
        return "\n".join(self.lines) + "\n"

    def push(self, terms: list[JvpTerm]) -> None:
        """Add up the terms of the operands that have tangents."""
        self.refuse_missing({o for p in terms for o in p.operands})
        self.emit("_t = None")
        for index, term in enumerate(terms):
            noted = " or ".join(self.noted(o) for o in term.operands)
            self.emit(ADD_TERM if index else FIRST_TERM, noted=noted, term=self.term(index, term))
        results = self.operation.results
        if len(results) == 1:
            self.emit(f"return {self.wrapped('out', results[0], ', _like(k, _t, out)')}")
        else:
            self.emit(f"_t = ({'None, ' * len(results)}) if _t is None else _t")
            boxed = (self.wrapped(f"out[{i}]", r, f", _like(k, _t[{i}], out[{i}])") for i, r in enumerate(results))
            self.emit(f"return {', '.join(boxed)}")

    def term(self, index: int, term: JvpTerm) -> str:
        """An expression for one term of the tangent."""
        (operand, *_) = term.operands
        if term.kind == "linear":
            return f"k.{self.operation.name}({self.linear_arguments(term.operands)})"
        if term.kind == "tangent":
            return self.call(f"_tangent_{index}", term.takes, {"t": f"_{operand}_tangent"})
        number, rule = next((i, r) for i, r in enumerate(self.rules) if operand in r.operands)
        if term.kind == "elementwise":
            return self.rule_call(f"_rule_{number}", self.named(rule.takes, {"g": f"_{operand}_tangent"}))
        ones_gradient = self.call(f"_rule_{number}", rule.takes, {"g": "k.ones(out.shape, k.dtype(out))"})
        axes = "axis" if term.axes is None else repr(term.axes)
        return f"_reduced(k, _{operand}_tangent, {ones_gradient}, {axes}, out)"

    def call(self, function: str, takes: tuple[str, ...], given: dict[str, str]) -> str:
        """A call of a function with the arguments that it names."""
        return f"{function}({', '.join(self.named(takes, given))})"

    def named(self, takes: tuple[str, ...], given: dict[str, str]) -> list[str]:
        """Expressions for the arguments that a function names."""
        return [given.get(n) or self.value_of(n) for n in takes]

    def linear_arguments(self, group: tuple[str, ...]) -> str:
        """The arguments of the operation with tangents in place of the group's operands."""
        op, linear = self.operation, {o for p in jvp_terms(self.operation) for o in p.operands}
        arguments = []
        for name in op.parameters:
            if name in group and name in op.lists:
                arguments.append(f"[_zero(k, x, t) for x, t in zip({name}, _{name}_tangents)]")
            elif name in group:
                arguments.append(f"_zero(k, {name}, _{name}_tangent)")
            else:
                arguments.append("None" if name in op.optional and name in linear else name)
        return ", ".join(arguments)


def like(k: Any, t: Any, out: Any) -> Any:
    """A tangent in the shape of the result, which the other operands may have broadcast."""
    return t if t is None or t.shape == out.shape else k.broadcast_to(t, out.shape)


def zero(k: Any, x: Any, t: Any) -> Any:
    """The tangent of one of several operands in which an operation is linear; zeros for a constant."""
    if t is not None or x is None:
        return t
    return x.__class__(0) if is_scalar(x) else k.zeros(x.shape, k.dtype(x))


def reduced(k: Any, t: Any, gradient: Any, axis: int | tuple[int, ...], out: Any) -> Any:
    """The sum of the tangent times the gradient over the axes of a reduction, in the result's shape."""
    if gradient is None:
        return None
    rank = len(t.shape)
    axes = tuple(sorted(a % rank for a in ((axis,) if isinstance(axis, int) else axis)))
    return k.reshape(k.sum(k.mul(t, gradient), axes, False), out.shape)


def paired(middle: Any, pairs: Iterable[tuple[Any, Any]], dtype: DType) -> Any:
    """The inner product, of ``dtype``, of gradients on the graph with their tangents; None if none is on the graph.

    For complex numbers it is the real part, of the dtype of the parts.
    """
    own = dtype.part if isinstance(dtype, ComplexDType) else dtype

    def product(g: Any, t: Any) -> Any:
        found = middle.sum(middle.mul(g, middle.from_inner(t)), all_axes(t), False)
        return middle.astype(middle.real(found) if middle.dtype(found).kind == "complex" else found, own)

    return sum_terms(middle, (product(g, t) for g, t in pairs if g is not None and middle.is_tracked(g)))


def transposed(k: Any, operation: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """The results of an operation with their tangents, by transposing its gradient rule.

    Recorded once, the operation gives the cotangents of its operands as functions of that of its result, ``u``; these
    are recorded in turn, and their gradient with respect to ``u`` maps tangents forward.
    """
    middle: Any = Autodiff(k)
    outer: Any = Autodiff(middle)
    pairs: list[tuple[Any, Any]] = []

    def lifted(x: Any) -> Any:
        if x.__class__ is not Dual:
            return x
        constant = outer.from_inner(middle.from_inner(x.value))
        if x.tangent is None:
            return constant
        pairs.append((outer.set_require_grad(constant, True), x.tangent))
        return pairs[-1][0]

    def pushed(out: Any) -> Any:
        """The tangent of one output; None where it does not depend on the operands."""
        if not outer.is_tracked(out):
            return None
        u = middle.new_leaf(k.zeros(out.shape, outer.dtype(out)))
        pulled = outer.backward(out, u, retain_graph=True)
        product = paired(middle, ((outer.grad(x, pulled), t) for x, t in pairs), outer.dtype(out))
        return None if product is None else middle.grad(u, middle.backward(product))

    with scoped(RECORDING, True):
        given = [[*map(lifted, x)] if x.__class__ in (list, tuple) else lifted(x) for x in operands]
        results = getattr(outer, operation)(*given, **attributes)

        def boxed(out: Any) -> Any:
            if not outer.dtype(out).has_gradient:
                return out
            return Dual(middle.inner(outer.inner(out)), pushed(out))

        return tuple(map(boxed, results)) if results.__class__ is tuple else boxed(results)
