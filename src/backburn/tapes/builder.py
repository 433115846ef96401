"""Building a typed graph: leaves, and a constructor for each operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from backburn.backend.contract import AnyBackend
from backburn.base.contexts import RECORDING, scoped
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackburnError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from backburn.base.trees import tree_map
from backburn.ops.rules.shapes import broadcast, check_axis, matmul
from backburn.tapes.evaluate import evaluate
from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.recorded import Recorded
from backburn.tapes.records import Record, field_place, is_tree, key_place
from backburn.tapes.values import (
    as_float,
    as_primitive,
    index_of,
    is_numbers,
    number_of,
    shown,
)  # fmt: skip
from backburn.tensor.core.messages import failed


class GraphBuilder(Recorded):
    """Nodes of a typed graph and their values: the constructors of :class:`~backburn.autodiff.tape.GradGraph`."""

    _words = "a graph", "node"
    _instead = "nodes() and the values of its leaves, and build it again"

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        super().__init__(backend=backend)
        self._ops: list[AnyGradOp] = []
        self._gradients: dict[int, Any] = {}
        #: Nodes after this one may be out of date after :meth:`set_tensor`; None if all are up to date.
        self._stale: int | None = None

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"<GradGraph: {len(self)} nodes on {self.backend.spec}>"

    # ---- leaves ----

    def input(self, x: Any) -> int:
        """External data: a value that receives no gradient."""
        return self._leaf("input", GradOp.Input(), x)

    def parameter(self, x: Any) -> int:
        """A value that receives gradients, which accumulate over calls of :meth:`backward` until :meth:`zero_grad`."""
        return self._leaf("parameter", GradOp.Parameter(), x)

    def record(self, /, **fields: Any) -> int:
        """A parameter with named fields, which may have different shapes and be records or maps themselves.

        >>> import numpy as np
        >>> from backburn.autodiff.tape import GradGraph
        >>> graph = GradGraph()
        >>> layer = graph.record(weight=np.array([2.0, 3.0]), bias=np.array([1.0]))
        >>> graph.backward(graph.struct_field(layer, "weight"))
        >>> graph.grad(layer)
        Record(weight=array([1., 1.]), bias=array([0.]))
        """
        return self._leaf("record", GradOp.Parameter(), Record(**fields))

    def mapping(self, entries: dict[Any, Any]) -> int:
        """A parameter that is a map, its keys in insertion order."""
        if not isinstance(entries, dict):
            raise DTypeError(f"mapping: takes a dict, not {type(entries).__name__}")
        return self._leaf("mapping", GradOp.Parameter(), dict(entries))

    def _leaf(self, where: str, op: AnyGradOp, x: Any) -> int:
        return self._append(op, self._leaf_value(where, op, x))

    def _leaf_value(self, where: str, op: AnyGradOp, x: Any, like: Any = None) -> Any:
        """The value of a leaf as primitives; plain numbers take the dtype of ``like``, if it is given."""
        if x is None:
            raise DTypeError(f"{where}: expected a tensor, a NumPy array, a float, or a tree of them, not None")
        trained = isinstance(op, GradOp.Parameter)

        def primitive(leaf: Any) -> Any:
            made = (as_float if trained else as_primitive)(self.backend, leaf, where)
            if not self.backend.dtype(made).has_gradient:
                return made
            if like is not None and not is_tree(like) and (leaf.__class__ is float or is_numbers(leaf)):
                made = self.backend.astype(made, self._level.dtype(like))
            lifted = self._level.from_inner(made)
            return self._level.set_require_grad(lifted, True) if trained else lifted

        return tree_map(primitive, x, is_leaf=is_numbers)

    # ---- arithmetic and functions ----

    def add(self, a: int, b: int) -> int:
        """``a + b``, elementwise; shapes broadcast, gradients are reduced to the operands' shapes."""
        return self._computed("add", GradOp.Add(a, b))

    def sub(self, a: int, b: int) -> int:
        """``a - b``, elementwise."""
        return self._computed("sub", GradOp.Sub(a, b))

    def mul(self, a: int, b: int) -> int:
        """``a * b``, elementwise."""
        return self._computed("mul", GradOp.Mul(a, b))

    def div(self, a: int, b: int) -> int:
        """``a / b``, elementwise."""
        return self._computed("div", GradOp.Div(a, b))

    def neg(self, a: int) -> int:
        """``-a``."""
        return self._computed("neg", GradOp.Neg(a))

    def matmul(self, a: int, b: int) -> int:
        """The product of two 2-D nodes."""
        return self._computed("matmul", GradOp.MatMul(a, b))

    def sum(self, a: int) -> int:
        """The sum of all elements, of shape [1]."""
        return self._computed("sum", GradOp.Sum(a))

    def mean(self, a: int) -> int:
        """The mean of all elements, of shape [1]."""
        return self._computed("mean", GradOp.Mean(a))

    def scalar_mul(self, a: int, scalar: float) -> int:
        """``a`` times a constant."""
        return self._computed("scalar_mul", GradOp.ScalarMul(a, _number("scalar_mul", scalar)))

    def exp(self, a: int) -> int:
        """The exponential."""
        return self._computed("exp", GradOp.Exp(a))

    def ln(self, a: int) -> int:
        """The natural logarithm."""
        return self._computed("ln", GradOp.Ln(a))

    def sin(self, a: int) -> int:
        """The sine."""
        return self._computed("sin", GradOp.Sin(a))

    def cos(self, a: int) -> int:
        """The cosine."""
        return self._computed("cos", GradOp.Cos(a))

    def sqrt(self, a: int) -> int:
        """The square root."""
        return self._computed("sqrt", GradOp.Sqrt(a))

    def pow(self, a: int, exponent: float) -> int:
        """``a`` to a constant power."""
        return self._computed("pow", GradOp.Pow(a, _number("pow", exponent)))

    def sigmoid(self, a: int) -> int:
        """The logistic sigmoid."""
        return self._computed("sigmoid", GradOp.Sigmoid(a))

    def relu(self, a: int) -> int:
        """``max(a, 0)``, with derivative 0 at 0."""
        return self._computed("relu", GradOp.Relu(a))

    def tanh_act(self, a: int) -> int:
        """The hyperbolic tangent."""
        return self._computed("tanh_act", GradOp.TanhAct(a))

    def abs(self, a: int) -> int:
        """The absolute value, with derivative 0 at 0."""
        return self._computed("abs", GradOp.Abs(a))

    def log2(self, a: int) -> int:
        """The logarithm to base 2."""
        return self._computed("log2", GradOp.Log2(a))

    # ---- networks ----

    def softmax(self, a: int) -> int:
        """Softmax over the last axis."""
        return self._computed("softmax", GradOp.Softmax(a))

    def cross_entropy(self, logits: int, targets: int, reduction: Literal["sum", "mean", "none"] = "sum") -> int:
        """Cross-entropy over the last axis, with probabilities or class indices as targets.

        The losses of the rows are summed to shape [1]. ``"mean"`` divides by their number, in another node;
        ``"none"`` keeps them separate.
        """
        op = GradOp.CrossEntropy(logits=logits, targets=targets)
        if reduction not in ("sum", "mean", "none"):
            raise ArgumentError(f"cross_entropy: reduction is 'sum', 'mean' or 'none', not {reduction!r}")
        rows = tuple(self._tensor("cross_entropy", logits).shape)[:-1]
        loss = self._computed("cross_entropy", op, rows if reduction == "none" and rows else None)
        return self.scalar_mul(loss, 1.0 / math.prod(rows)) if reduction == "mean" and math.prod(rows) else loss

    def layer_norm(self, a: int) -> int:
        """Normalization over the last axis: biased variance, eps 1e-5, no affine parameters."""
        return self._computed("layer_norm", GradOp.LayerNorm(a))

    def batch_norm(self, a: int) -> int:
        """Normalization over the first axis: biased variance, eps 1e-5, no affine parameters."""
        return self._computed("batch_norm", GradOp.BatchNorm(a))

    def clamp(self, a: int, min: float, max: float) -> int:
        """``a`` limited to the range from ``min`` to ``max``; the derivative at the bounds is 1."""
        return self._computed("clamp", GradOp.Clamp(input=a, min=_number("clamp", min), max=_number("clamp", max)))

    def where_cond(self, cond: int, on_true: int, on_false: int) -> int:
        """``on_true`` where the mask is 1.0, ``on_false`` where it is 0.0; raises for any other mask."""
        return self._computed("where_cond", GradOp.Where(cond=cond, on_true=on_true, on_false=on_false))

    # ---- shape ----

    def reshape(self, a: int, shape: int | Sequence[int]) -> int:
        """Elements in row-major order in another shape; one length may be -1, and is then inferred."""
        original = tuple(self._tensor("reshape", a).shape)
        wanted = _integers("reshape: a shape", shape if isinstance(shape, Iterable) else (shape,))
        lengths = wanted
        if wanted.count(-1) == 1 and (known := -math.prod(wanted)) > 0:
            lengths = tuple(math.prod(original) // known if n == -1 else n for n in wanted)
        if math.prod(original) != math.prod(lengths) or any(n < 0 for n in lengths):
            raise ShapeError(f"reshape: node {a} of shape {list(original)} does not fill the shape {list(wanted)}")
        return self._computed("reshape", GradOp.Reshape(input=a, original_shape=original), lengths)

    def transpose_op(self, a: int) -> int:
        """The transpose of a 2-D node."""
        return self._computed("transpose_op", GradOp.TransposeOp(a))

    def cat(self, inputs: Sequence[int], axis: int = 0) -> int:
        """Nodes joined along an axis."""
        if not isinstance(inputs, Iterable):
            raise DTypeError(f"cat: takes a list of nodes, not {inputs!r}")
        inputs = list(inputs)
        tensors = [self._tensor("cat", i) for i in inputs]
        place = self._axis("cat", axis, tensors[0]) if tensors else 0
        sizes = tuple(t.shape[place] if place < len(t.shape) else 0 for t in tensors)
        return self._computed("cat", GradOp.CatOp(inputs=tuple(inputs), axis=place, sizes=sizes))

    def gather(self, a: int, indices: Sequence[int], axis: int = 0) -> int:
        """The slices of a node along an axis at the given indices, which may repeat."""
        place = self._axis("gather", axis, self._tensor("gather", a))
        chosen = _integers("gather: a list of indices", indices)
        return self._computed("gather", GradOp.GatherOp(input=a, indices=chosen, axis=place))

    def struct_field(self, node: int, name_or_index: str | int) -> int:
        """One field of a record."""
        place, total = field_place(node, self._value("struct_field", node), name_or_index)
        return self._computed("struct_field", GradOp.StructField(parent=node, field_index=place, total_fields=total))

    def map_lookup(self, node: int, key: Any) -> int:
        """The value of one key of a map."""
        place, total = key_place(node, self._value("map_lookup", node), key)
        return self._computed("map_lookup", GradOp.MapLookup(map_node=node, key_index=place, total_keys=total))

    def _axis(self, where: str, axis: int, x: Any) -> int:
        try:
            return check_axis(axis, len(x.shape))
        except AxisError as error:
            raise AxisError(f"{where}: {error}") from None

    # ---- evaluation ----

    def _append(self, op: AnyGradOp, value: Any) -> int:
        self._ops.append(op)
        self._values.append(value)
        return len(self._ops) - 1

    def _computed(self, where: str, op: AnyGradOp, shape: tuple[int, ...] | None = None) -> int:
        return self._append(op, self._evaluated(where, op, shape))

    def _evaluated(self, where: str, op: AnyGradOp, shape: tuple[int, ...] | None) -> Any:
        """The value of an operation on nodes that exist, with errors that name the nodes."""
        operands = op.operands
        values = [self._value(where, i) for i in operands]
        fields = isinstance(op, (GradOp.StructField, GradOp.MapLookup))
        targets = op.targets if isinstance(op, GradOp.CrossEntropy) else None
        for i, value in zip(operands, values, strict=True):
            if is_tree(value) != fields:
                what = "no record or map" if fields else "a record or map: take a field with struct_field or map_lookup"
                raise DTypeError(f"{where}: node {i} is {what}")
            mask = isinstance(op, GradOp.Where) and i == op.cond
            if not fields and i != targets and not self._level.dtype(value).has_gradient:
                what = "the mask consists of floats: use 1.0 and 0.0" if mask else "the operation takes floats"
                raise DTypeError(f"{where}: node {i} is {shown(self._level, value)}, and {what}")
        # A mask and class indices may have another dtype; ``evaluate`` checks that of probabilities.
        chooses = op.cond if isinstance(op, GradOp.Where) else targets
        combined = zip(operands, values, strict=True)
        floats = {} if fields else {i: self._level.dtype(v) for i, v in combined if i != chooses}
        if len(set(floats.values())) > 1:
            kinds = ", ".join(f"node {i} {d}" for i, d in floats.items())
            raise DTypeError(f"{where}: the operands differ in dtype ({kinds}), and nothing is cast implicitly")
        try:
            with scoped(RECORDING, True):
                return evaluate(self._level, op, self._values, shape)
        except Exception as error:
            words = [f"node {i}" if fields else f"node {i} {shown(self._level, self._values[i])}" for i in operands]
            rule = matmul if isinstance(op, GradOp.MatMul) else broadcast
            shapes = [] if fields else [tuple(x.shape) for x in values]
            ours = isinstance(error, BackburnError)  # raised by evaluate, and more specific than the rule
            failed(where, lambda: ours or rule(*shapes), error, f" Operands: {', '.join(words)}")

    def _value(self, where: str, node: Any) -> Any:
        """The value of an existing node, recomputed if it is out of date."""
        place = self._index(where, node)
        if self._stale is not None and place > self._stale:
            self.reforward(self._stale)
        return self._values[place]

    def _tensor(self, where: str, node: Any) -> Any:
        value = self._value(where, node)
        if is_tree(value):
            raise DTypeError(f"{where}: node {node} is a record or map: take a field with struct_field or map_lookup")
        return value

    def reforward(self, start: int = 0, end: int | None = None) -> None:
        """Recompute the nodes from ``start`` up to but excluding ``end``; by default, all of them."""
        stop = len(self._ops) if end is None else end
        if index_of(start) is None or index_of(stop) is None:
            raise DTypeError(f"reforward: takes indices of nodes, not {start!r} and {end!r}")
        if not 0 <= start <= stop <= len(self._ops):
            raise OutOfRangeError(f"reforward: from {start} to {stop}, and the graph has {len(self._ops)} nodes")
        pending, self._stale = self._stale, None
        try:
            for node in range(start, stop):
                self._recompute(node)
        except Exception:
            self._stale = start if pending is None else min(pending, start)
            raise
        if pending is not None and (start > pending + 1 or stop < len(self._ops)):
            self._stale = pending

    def _recompute(self, node: int) -> None:
        op = self._ops[node]
        if not isinstance(op, (GradOp.Input, GradOp.Parameter)):
            shape = None if is_tree(self._values[node]) else tuple(self._values[node].shape)
            self._values[node] = self._evaluated(f"reforward: node {node}", op, shape)


def _integers(what: str, values: Any) -> tuple[int, ...]:
    """``values`` as Python integers; raises :class:`DTypeError`, which names them ``what``, for anything else."""
    found = [index_of(v) for v in values] if isinstance(values, Iterable) else [None]
    if None in found:
        raise DTypeError(f"{what} is made of integers, and {values!r} is not")
    return tuple(v for v in found if v is not None)


def _number(where: str, value: Any) -> float:
    """A constant of an operation as a float."""
    number = number_of(value)
    if number is None:
        raise DTypeError(f"{where}: the constant is a number, not {value!r}")
    return number
