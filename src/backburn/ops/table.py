"""The operation table: one record per operation, entered by the decorator of its declaration.

A record holds everything known about an operation: declaration, default body, gradient rules, tangents, its rule under
``vmap`` and its samples for conformance. Decorators, completeness tests and documentation read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from backburn.base.dtypes import ComplexDType, DType, as_dtype, complex_of
from backburn.base.errors import Unsupported
from backburn.ops.rules.shapes import broadcast, unchanged

if TYPE_CHECKING:
    from backburn.ops.rules.gradients import GradientRule
    from backburn.ops.rules.tangents import JvpTerm

C = TypeVar("C", bound=Callable[..., Any])
ShapeRule = Callable[..., Any]

KINDS = {"F": "float", "C": "complex", "I": "int", "B": "bool", "Q": "quantized"}


@dataclass(eq=False)
class Operation:
    """One operation of the contract.

    ``operands`` are its tensors (positional-only in the declaration), ``attributes`` its options in order, with their
    defaults (``inspect.Parameter.empty`` where there is none). ``lists`` names operands that are sequences of tensors,
    ``optional`` operands that may be None. ``shape`` is a rule: called with the operands' shapes (None for a Python
    scalar or an absent operand) and the attributes, it returns the result's shape, one for each output, or raises an
    error of backburn; it is None if the shape depends on data. ``results`` is the dtype of each output: ``"same"`` is
    the dtype of the operands named in ``like``, ``"real"`` that of its parts, ``"complex"`` the one with such
    parts, ``"dtype"`` the dtype of the attribute of this name, ``"data"`` the dtype of the host array, ``"host"`` is
    for a result on the host, not a primitive; anything else is a dtype's name.
    A last ``"..."`` means any number of outputs like the one before it.

    ``elementwise`` says that each element of the result depends on one element of each operand, apart from
    broadcasting; ``fuse``, that its gradient rules take several steps, which a backend may compute in one pass. The
    other fields are filled after the declaration: ``gradients`` (:mod:`backburn.ops.rules.gradients`), ``constants``
    (advice for operands that must not be recorded), ``tangents``, ``decomposed`` (:mod:`backburn.ops.rules.tangents`),
    ``batching`` (:mod:`backburn.batching.rules`), ``multiply_adds`` (:mod:`backburn.ops.rules.work`), ``samples``
    (:mod:`backburn.conformance.samples`), and for an operation of a user ``implementations``, the backends that have
    their own.
    """

    name: str
    family: str
    kinds: str
    required: bool
    differentiable: bool
    shape: ShapeRule | None
    results: tuple[str, ...]
    like: tuple[str, ...]
    lists: tuple[str, ...]
    body: Callable[..., Any]
    elementwise: bool = False
    fuse: bool = False
    gradients: list[GradientRule] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    tangents: list[JvpTerm] = field(default_factory=list)
    decomposed: bool = False
    batching: Callable[..., Any] | None = None
    samples: Any = None
    implementations: list[type[Any]] | None = None
    multiply_adds: Callable[..., int] | None = None

    @cached_property
    def doc(self) -> str:
        """The docstring of the declaration."""
        return inspect.cleandoc(self.body.__doc__ or "")

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Operands and attributes in order, without the backend itself."""
        parameters = dict(inspect.signature(self.body).parameters)
        parameters.pop(next(iter(parameters)))
        return parameters

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensor operands."""
        return tuple(n for n, p in self.parameters.items() if p.kind is p.POSITIONAL_ONLY)

    def dtypes(
        self, dtypes: Mapping[str, DType | None], attributes: Mapping[str, Any], outputs: int = 1
    ) -> tuple[DType | None, ...]:
        """The dtype of each output, from the operands' dtypes by name (None for scalars); None if it depends on data.

        ``outputs`` is their number if the table leaves it open.
        """
        like = self.like or tuple(self.operands)
        common = next((d for name in like if (d := dtypes.get(name)) is not None), None)
        chosen = attributes.get("dtype", self.attributes.get("dtype"))
        special: dict[str, DType | None] = {"same": common, "dtype": chosen, "data": None, "host": None}
        if common is not None and common.has_gradient and not self.keeps_kind:
            special["real"] = common.part if isinstance(common, ComplexDType) else common
            special["complex"] = complex_of(common)
        results = self.results if self.results[-1] != "..." else self.results[:1] * outputs
        return tuple(special[r] if r in special else as_dtype(r) for r in results)

    @cached_property
    def keeps_kind(self) -> bool:
        """Whether no output is a part of a complex operand, or composed of parts."""
        return not {"real", "complex"} & {*self.results}

    @cached_property
    def needs_complex(self) -> bool:
        """Whether only backends with complex dtypes can implement it."""
        return self.kinds == "C" or "complex" in self.results

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The operands that may be absent (None)."""
        return tuple(n for n in self.operands if self.parameters[n].default is None)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The options and their defaults."""
        return {n: p.default for n, p in self.parameters.items() if p.kind is not p.POSITIONAL_ONLY}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The options that have a default, with their defaults."""
        return {n: d for n, d in self.attributes.items() if d is not inspect.Parameter.empty}

    def result_shape(self, operands: Iterable[Any], attributes: Mapping[str, Any]) -> Any:
        """The shape of a call's result, a tuple of them for several; None if it depends on data.

        Operands are tensors, lists of tensors, Python scalars or None. Raises what the shape rule raises.
        """
        if self.shape is None:
            return None
        return self.shape(*map(_shape, operands), **{**self.defaults, **attributes})

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (OPERATIONS.__getitem__, (self.name,))


def _shape(operand: Any) -> Any:
    """The shape of an operand as shape rules take it."""
    if isinstance(operand, (list, tuple)):
        return [_shape(x) for x in operand]
    return tuple(operand.shape) if hasattr(operand, "shape") else None


#: Every operation by name, in the order of declaration.
OPERATIONS: dict[str, Operation] = {}

#: Operand and attribute names that gradient rules use for themselves.
RESERVED = frozenset({"k", "g", "out", "kept", "needs"})


def operation(
    *,
    kinds: str,
    shape: ShapeRule | None,
    result: str | tuple[str, ...] = "same",
    like: tuple[str, ...] = (),
    required: bool = False,
    differentiable: bool = False,
    lists: tuple[str, ...] = (),
    elementwise: bool | None = None,
    fuse: bool = False,
) -> Callable[[C], C]:
    """Enter the decorated declaration into the operation table.

    ``kinds`` are the kinds of the main operand (a subset of ``"FCIBQ"``; without C, complex operands are refused above
    the contract); the family is the module's name; ``result`` is one string for each output (see :class:`Operation`). A
    required operation's body is ``return missing("name")``. Without ``elementwise``, an operation is element-wise if
    its result has its operands' (broadcast) shape.
    """

    def enter(body: C) -> C:
        name = body.__name__
        if name in OPERATIONS:
            raise ValueError(f"operation {name} is declared twice")
        family = (body.__module__ or "").rpartition(".")[2]
        results = (result,) if isinstance(result, str) else result
        by_element = shape in (broadcast, unchanged) if elementwise is None else elementwise
        OPERATIONS[name] = Operation(
            name, family, kinds, required, differentiable, shape, results, like, lists, body, by_element, fuse
        )
        return body

    return enter


def contract_operations() -> Iterator[Operation]:
    """The operations of the contract, without those that users have defined, whose bodies may be replaced."""
    return (entry for entry in OPERATIONS.values() if entry.implementations is None)


#: Functions to call with the name of an operation that is added, changed or removed after the decorators were made.
LISTENERS: list[Callable[[str], None]] = []

_revision = 0


def notify(name: str) -> None:
    """Call the listeners with the name of an operation; a user-defined one begins a new revision."""
    global _revision
    if name not in OPERATIONS or OPERATIONS[name].implementations is not None:
        _revision += 1
    for listener in LISTENERS:
        listener(name)


def revision() -> int:
    """A number that grows with each change of a user-defined operation: recordings of an earlier one are outdated."""
    return _revision


def shape_rule(name: str) -> ShapeRule:
    """The shape rule of an operation that has one."""
    rule = OPERATIONS[name].shape
    assert rule is not None
    return rule


def missing(name: str) -> NoReturn:
    """The body of a required member: raises an error that names it if a backend lacks it."""
    entry = OPERATIONS.get(name)
    signature = inspect.signature(entry.body) if entry else "()"
    raise Unsupported(f"{name}{signature}: this backend does not implement {name}, which the contract requires")


def families() -> Iterator[tuple[str, list[Operation]]]:
    """Operations grouped by family, in the order of declaration."""
    groups: dict[str, list[Operation]] = {}
    for entry in OPERATIONS.values():
        groups.setdefault(entry.family, []).append(entry)
    yield from groups.items()
