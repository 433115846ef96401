"""``GradOp``: the operations of a typed graph, as a closed family of values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias


class Operation:
    """What all operations of a typed graph have in common; the family itself is :class:`GradOp`."""

    __slots__ = ()

    @property
    def operand_fields(self) -> tuple[str, ...]:
        """The fields that are indices of nodes."""
        names = _OPERANDS.get(type(self).__name__, _BY_POSITION)
        return tuple(f.name for f in fields(self) if f.name in names)  # type: ignore[arg-type]

    @property
    def operands(self) -> tuple[int, ...]:
        """The indices of the nodes that the operation takes, in order."""
        found: list[int] = []
        for name in self.operand_fields:
            value = getattr(self, name)
            found.extend(value if isinstance(value, tuple) else (value,))
        return tuple(found)

    def moved(self, places: dict[int, int]) -> AnyGradOp:
        """The same operation on other nodes: each operand that is a key of ``places`` replaced by its value."""
        names = self.operand_fields
        changed = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in names:
                several = isinstance(value, tuple)
                value = tuple(places.get(i, i) for i in value) if several else places.get(value, value)
            changed[field.name] = value
        return type(self)(**changed)  # type: ignore[return-value]


def _freeze(operation: Operation, *names: str) -> None:
    """Make tuples of fields that may be given as lists, so that an operation is hashable."""
    for name in names:
        object.__setattr__(operation, name, tuple(getattr(operation, name)))


class _Family(type):
    """So that ``isinstance(op, GradOp)`` holds for every operation of the family."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Operation)


class GradOp(metaclass=_Family):
    """Operation recorded in the graph of a :class:`~backburn.autodiff.tape.GradGraph`.

    Each variant is a class whose fields are the indices of its operands and its constants: frozen, comparable,
    hashable, picklable. Variants with unnamed fields in the original match by position, the others by name::

        >>> def describe(op: AnyGradOp) -> str:
        ...     match op:
        ...         case GradOp.Add(a, b):
        ...             return f"the sum of {a} and {b}"
        ...         case GradOp.Clamp(input=x, max=high):
        ...             return f"{x}, at most {high}"
        ...         case _:
        ...             return "something else"
        >>> describe(GradOp.Add(0, 1)), describe(GradOp.Clamp(input=2, min=0.0, max=1.0))
        ('the sum of 0 and 1', '2, at most 1.0')

    ``AnyGradOp`` is the type of a value of the family: to a type checker, a ``match`` over it without ``case _`` is
    complete when all 34 variants have their case.
    """

    @dataclass(frozen=True, slots=True)
    class Input(Operation):
        """External input data (no gradient accumulated)."""

    @dataclass(frozen=True, slots=True)
    class Parameter(Operation):
        """Trainable parameter (gradients are accumulated here during backward)."""

    @dataclass(frozen=True, slots=True)
    class Add(Operation):
        """Element-wise addition of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Sub(Operation):
        """Element-wise subtraction of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Mul(Operation):
        """Element-wise (Hadamard) multiplication of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Div(Operation):
        """Element-wise division of two nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Neg(Operation):
        """Element-wise negation."""

        a: int

    @dataclass(frozen=True, slots=True)
    class MatMul(Operation):
        """Matrix multiplication of two 2-D nodes."""

        a: int
        b: int

    @dataclass(frozen=True, slots=True)
    class Sum(Operation):
        """Sum of all elements, of shape [1]."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Mean(Operation):
        """Mean of all elements, of shape [1]."""

        a: int

    @dataclass(frozen=True, slots=True)
    class ScalarMul(Operation):
        """Every element times a constant."""

        a: int
        scalar: float

    @dataclass(frozen=True, slots=True)
    class Exp(Operation):
        """Element-wise exponential."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Ln(Operation):
        """Element-wise natural logarithm."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class StructField(Operation):
        """Access of one field of a record: the node that holds it, the field's index, and how many there are."""

        parent: int
        field_index: int
        total_fields: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class MapLookup(Operation):
        """Look-up of one key of a map: its node, the key's index in insertion order, and how many keys there are."""

        map_node: int
        key_index: int
        total_keys: int

    @dataclass(frozen=True, slots=True)
    class Sin(Operation):
        """Element-wise sine."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Cos(Operation):
        """Element-wise cosine."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Sqrt(Operation):
        """Element-wise square root."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Pow(Operation):
        """Element-wise power with a constant exponent."""

        a: int
        exponent: float

    @dataclass(frozen=True, slots=True)
    class Sigmoid(Operation):
        """Logistic sigmoid: 1 / (1 + exp(-x))."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Relu(Operation):
        """Rectified linear unit: max(0, x), with derivative 0 at 0."""

        a: int

    @dataclass(frozen=True, slots=True)
    class TanhAct(Operation):
        """Hyperbolic tangent."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Abs(Operation):
        """Element-wise absolute value, with derivative 0 at 0."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Log2(Operation):
        """Element-wise logarithm to base 2."""

        a: int

    @dataclass(frozen=True, slots=True)
    class Softmax(Operation):
        """Softmax over the last axis."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CrossEntropy(Operation):
        """Cross-entropy between logits and targets, which are probabilities or class indices, over the last axis."""

        logits: int
        targets: int

    @dataclass(frozen=True, slots=True)
    class LayerNorm(Operation):
        """Normalization over the last axis: biased variance, eps 1e-5, no affine parameters."""

        a: int

    @dataclass(frozen=True, slots=True)
    class BatchNorm(Operation):
        """Normalization over the first axis: biased variance, eps 1e-5, no affine parameters."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Clamp(Operation):
        """Element-wise clamping to [min, max], with derivative 1 at both bounds."""

        input: int
        min: float
        max: float

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Where(Operation):
        """Element-wise selection by a mask of 0.0 and 1.0."""

        cond: int
        on_true: int
        on_false: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Reshape(Operation):
        """Reshape; ``original_shape`` is that of the operand, the node's own value has the new one."""

        input: int
        original_shape: tuple[int, ...]

        def __post_init__(self) -> None:
            _freeze(self, "original_shape")

    @dataclass(frozen=True, slots=True)
    class TransposeOp(Operation):
        """Transpose of a 2-D node."""

        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CatOp(Operation):
        """Concatenation along an axis; ``sizes`` are the operands' lengths along it."""

        inputs: tuple[int, ...]
        axis: int
        sizes: tuple[int, ...]

        def __post_init__(self) -> None:
            _freeze(self, "inputs", "sizes")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class GatherOp(Operation):
        """Slices of the operand along an axis, by a list of indices."""

        input: int
        indices: tuple[int, ...]
        axis: int

        def __post_init__(self) -> None:
            _freeze(self, "indices")


#: Any operation of the family, for annotations.
AnyGradOp: TypeAlias = (
    GradOp.Input
    | GradOp.Parameter
    | GradOp.Add
    | GradOp.Sub
    | GradOp.Mul
    | GradOp.Div
    | GradOp.Neg
    | GradOp.MatMul
    | GradOp.Sum
    | GradOp.Mean
    | GradOp.ScalarMul
    | GradOp.Exp
    | GradOp.Ln
    | GradOp.StructField
    | GradOp.MapLookup
    | GradOp.Sin
    | GradOp.Cos
    | GradOp.Sqrt
    | GradOp.Pow
    | GradOp.Sigmoid
    | GradOp.Relu
    | GradOp.TanhAct
    | GradOp.Abs
    | GradOp.Log2
    | GradOp.Softmax
    | GradOp.CrossEntropy
    | GradOp.LayerNorm
    | GradOp.BatchNorm
    | GradOp.Clamp
    | GradOp.Where
    | GradOp.Reshape
    | GradOp.TransposeOp
    | GradOp.CatOp
    | GradOp.GatherOp
)

#: The variants in the order of their declaration.
VARIANTS: tuple[type[Operation], ...] = tuple(
    v for v in vars(GradOp).values() if isinstance(v, type) and issubclass(v, Operation)
)

_BY_POSITION = ("a", "b")
#: The fields that are operands, in variants with named fields.
_OPERANDS = {
    "StructField": ("parent",),
    "MapLookup": ("map_node",),
    "CrossEntropy": ("logits", "targets"),
    "Clamp": ("input",),
    "Where": ("cond", "on_true", "on_false"),
    "Reshape": ("input",),
    "CatOp": ("inputs",),
    "GatherOp": ("input",),
}
