"""``GradOp``: the operations of a typed graph, as a closed family of values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from backburn.base.errors import ArgumentError, DTypeError
from backburn.tapes.public import published
from backburn.tapes.values import index_of, number_of

#: The names of the fields that are operands.
_OPERANDS = ("a", "b", "parent", "map_node", "logits", "targets", "input", "inputs", "cond", "on_true", "on_false")


class Operation:
    """The base class of all operations of a typed graph; the family itself is :class:`GradOp`."""

    __slots__ = ()
    #: The names of the fields that are indices of nodes.
    operand_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.operand_fields = tuple(name for name in get_annotations(cls) if name in _OPERANDS)

    def __post_init__(self) -> None:
        """Convert the fields to integers, floats or tuples; raises :class:`DTypeError` for values of other types."""
        for field in fields(self):  # type: ignore[arg-type]
            made = self._made(field.name, field.type, getattr(self, field.name))
            object.__setattr__(self, field.name, made)

    def _made(self, name: str, kind: Any, value: Any) -> Any:
        where = f"GradOp.{type(self).__name__}: {name}"
        if kind == "float":
            number = number_of(value)
            if number is None:
                raise DTypeError(f"{where} is a number, not {value!r}")
            return number
        what = "the index of a node" if name in self.operand_fields else "an integer"
        if kind == "int":
            index = index_of(value)
            if index is None:
                found = repr(value) if isinstance(value, (str, bool, float)) else type(value).__name__
                advice = ". A graph's input(x) makes a node" * (name in self.operand_fields)
                raise DTypeError(f"{where}: expected {what}, not {found}{advice}")
            return index
        indices = [index_of(v) for v in value] if isinstance(value, Iterable) else [None]
        if None in indices:
            raise DTypeError(f"{where}: expected a tuple, each of its elements {what}, not {value!r}")
        return tuple(indices)

    @property
    def operands(self) -> tuple[int, ...]:
        """The indices of the operation's operands, in order."""
        found: list[int] = []
        for name in self.operand_fields:
            value = getattr(self, name)
            found.extend(value if isinstance(value, tuple) else (value,))
        return tuple(found)

    def moved(self, places: dict[int, int]) -> AnyGradOp:
        """This operation on other nodes: each operand that is a key of ``places`` is replaced by its value."""
        changed = {}
        for name in self.operand_fields:
            value = getattr(self, name)
            several = isinstance(value, tuple)
            changed[name] = tuple(places.get(i, i) for i in value) if several else places.get(value, value)
        return replace(self, **changed)  # type: ignore[type-var, return-value]


class _Family(type):
    """The metaclass that makes ``isinstance(op, GradOp)`` true for every operation of the family."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Operation)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Operation)


# The base class of a variant. At run time a class cannot be the base of classes in its own body; for a type checker it
# can, which makes ``GradOp`` the type of every variant.
if TYPE_CHECKING:
    _Variant: TypeAlias = "GradOp"
else:
    _Variant = Operation


@published("backburn.tape.GradOp")
class GradOp(Operation, metaclass=_Family):
    """Operation recorded in the graph of a :class:`~backburn.autodiff.tape.GradGraph`.

    Each variant is a class whose fields are the indices of its operands, and its constants: frozen, comparable,
    hashable, picklable. Variants with keyword-only fields match by name, the others by position::

        >>> def describe(op: GradOp) -> str:
        ...     match op:
        ...         case GradOp.Add(a, b):
        ...             return f"the sum of {a} and {b}"
        ...         case GradOp.Clamp(input=x, max=high):
        ...             return f"{x}, at most {high}"
        ...         case _:
        ...             return "something else"
        >>> describe(GradOp.Add(0, 1)), describe(GradOp.Clamp(input=2, min=0.0, max=1.0))
        ('the sum of 0 and 1', '2, at most 1.0')

    As an annotation, ``GradOp`` stands for any of them. Type checkers know that a ``match`` is exhaustive if it is over
    ``AnyGradOp``, the union of the 34 variants, and has a case for each. A field of the wrong type raises
    :class:`DTypeError`; the graph checks whether the nodes exist and fit.
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise ArgumentError("GradOp is the family of the operations: make one of them, such as GradOp.Add(0, 1)")

    @dataclass(frozen=True, slots=True)
    class Input(_Variant):
        """External input data (no gradient accumulated)."""

    @dataclass(frozen=True, slots=True)
    class Parameter(_Variant):
        """Trainable parameter (gradients are accumulated here during backward)."""

    @dataclass(frozen=True, slots=True)
    class Add(_Variant):
        """Element-wise addition of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Sub(_Variant):
        """Element-wise subtraction of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Mul(_Variant):
        """Element-wise (Hadamard) multiplication of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Div(_Variant):
        """Element-wise division of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Neg(_Variant):
        """Element-wise negation."""

        a: int

    @dataclass(frozen=True, slots=True)
    class MatMul(_Variant):
        """Matrix multiplication of two 2-D nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Sum(_Variant):
        """Sum of all elements, of shape [1]."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Mean(_Variant):
        """Mean of all elements, of shape [1]."""

        a: int

    @dataclass(frozen=True, slots=True)
    class ScalarMul(_Variant):
        """Every element times a constant."""

        a: int
        scalar: float

    @dataclass(frozen=True, slots=True)
    class Exp(_Variant):
        """Element-wise exponential."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Ln(_Variant):
        """Element-wise natural logarithm."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class StructField(_Variant):
        """One field of a record: the record's node, the index of the field, and the number of fields."""

        parent: int
        field_index: int
        total_fields: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class MapLookup(_Variant):
        """The value of one key of a map: the map's node, the key's index in insertion order, and the number of keys."""

        map_node: int
        key_index: int
        total_keys: int

    @dataclass(frozen=True, slots=True)
    class Sin(_Variant):
        """Element-wise sine."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Cos(_Variant):
        """Element-wise cosine."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Sqrt(_Variant):
        """Element-wise square root."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Pow(_Variant):
        """Element-wise power with a constant exponent."""

        a: int
        exponent: float

    @dataclass(frozen=True, slots=True)
    class Sigmoid(_Variant):
        """Logistic sigmoid: 1 / (1 + exp(-x))."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Relu(_Variant):
        """Rectified linear unit: max(0, x), with derivative 0 at 0."""

        a: int

    @dataclass(frozen=True, slots=True)
    class TanhAct(_Variant):
        """Hyperbolic tangent."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Abs(_Variant):
        """Element-wise absolute value, with derivative 0 at 0."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Log2(_Variant):
        """Element-wise logarithm to base 2."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Softmax(_Variant):
        """Softmax over the last axis."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CrossEntropy(_Variant):
        """Cross-entropy between logits and targets, which are probabilities or class indices, over the last axis."""

        logits: int
        targets: int

    @dataclass(frozen=True, slots=True)
    class LayerNorm(_Variant):
        """Normalization over the last axis: biased variance, eps 1e-5, no affine parameters."""

        a: int

    @dataclass(frozen=True, slots=True)
    class BatchNorm(_Variant):
        """Normalization over the first axis: biased variance, eps 1e-5, no affine parameters."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Clamp(_Variant):
        """Element-wise clamping to [min, max], with derivative 1 at both bounds."""

        input: int
        min: float
        max: float

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Where(_Variant):
        """Element-wise selection by a mask of 0.0 and 1.0."""

        cond: int
        on_true: int
        on_false: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Reshape(_Variant):
        """Reshape; ``original_shape`` is the operand's shape, and the node's value has the new one."""

        input: int
        original_shape: tuple[int, ...]

    @dataclass(frozen=True, slots=True)
    class TransposeOp(_Variant):
        """Transpose of a 2-D node."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CatOp(_Variant):
        """Concatenation along an axis; ``sizes`` are the operands' lengths along it."""

        inputs: tuple[int, ...]
        axis: int
        sizes: tuple[int, ...]

    @dataclass(frozen=True, slots=True, kw_only=True)
    class GatherOp(_Variant):
        """The slices of the operand along an axis at a list of indices."""

        input: int
        indices: tuple[int, ...]
        axis: int


#: Any operation of the family, as a union, so that a ``match`` can be exhaustive.
AnyGradOp: TypeAlias = (
    GradOp.Input | GradOp.Parameter | GradOp.Add | GradOp.Sub | GradOp.Mul | GradOp.Div | GradOp.Neg | GradOp.MatMul
    | GradOp.Sum | GradOp.Mean | GradOp.ScalarMul | GradOp.Exp | GradOp.Ln | GradOp.StructField | GradOp.MapLookup
    | GradOp.Sin | GradOp.Cos | GradOp.Sqrt | GradOp.Pow | GradOp.Sigmoid | GradOp.Relu | GradOp.TanhAct
    | GradOp.Abs | GradOp.Log2 | GradOp.Softmax | GradOp.CrossEntropy | GradOp.LayerNorm | GradOp.BatchNorm
    | GradOp.Clamp | GradOp.Where | GradOp.Reshape | GradOp.TransposeOp | GradOp.CatOp | GradOp.GatherOp
)  # fmt: skip
