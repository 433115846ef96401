"""Evaluation of a typed graph: the value of each node, by operations of any backend.

A node is evaluated when it is created, when it is recomputed, and, one level higher, when it is differentiated twice.
Only this module knows the operations; ``Autodiff`` knows their derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from backburn.ops.bodies.reductions import all_axes
from backburn.ops.rules.shapes import Shape, check_axis
from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.records import check_form, parts
from backburn.tapes.values import item

#: Added to the variance in LayerNorm and BatchNorm.
EPS = 1e-5

#: The operation of the contract for each element-wise node without constants.
ELEMENTWISE: dict[type, str] = {
    GradOp.Add: "add", GradOp.Sub: "sub", GradOp.Mul: "mul", GradOp.Div: "div", GradOp.Neg: "neg",
    GradOp.Exp: "exp", GradOp.Ln: "log", GradOp.Log2: "log2", GradOp.Sin: "sin", GradOp.Cos: "cos",
    GradOp.Sqrt: "sqrt", GradOp.Sigmoid: "sigmoid", GradOp.Relu: "relu", GradOp.TanhAct: "tanh", GradOp.Abs: "abs",
}  # fmt: skip


def evaluate(k: Any, op: AnyGradOp, at: Sequence[Any], shape: Shape | None) -> Any:
    """The value of ``op``, given the values ``at`` the indices of its operands, primitives of ``k``.

    ``shape`` is that of the node, if known: the new shape of Reshape; for CrossEntropy it shows whether rows are
    summed. Raises errors of backburn for operands that do not fit.
    """
    if (name := ELEMENTWISE.get(type(op))) is not None:
        return getattr(k, name)(*(at[i] for i in op.operands))
    match op:
        case GradOp.MatMul(a, b):
            return k.matmul(_matrix(at[a], a), _matrix(at[b], b))
        case GradOp.Sum(a):
            return k.reshape(k.sum(at[a], all_axes(at[a]), False), (1,))
        case GradOp.Mean(a):
            return k.reshape(k.mean(at[a], all_axes(at[a]), False), (1,))
        case GradOp.ScalarMul(a, scalar):
            return k.mul(at[a], float(scalar))
        case GradOp.StructField(parent=parent, field_index=place, total_fields=total):
            return _part(at[parent], place, total, mapping=False)
        case GradOp.MapLookup(map_node=parent, key_index=place, total_keys=total):
            return _part(at[parent], place, total, mapping=True)
        case GradOp.Pow(a, exponent):
            return k.pow(at[a], float(exponent))
        case GradOp.Softmax(a):
            return k.softmax(at[a], _last(at[a], a))
        case GradOp.CrossEntropy(logits=logits, targets=targets):
            return cross_entropy(k, at[logits], at[targets], logits, shape)
        case GradOp.LayerNorm(a):
            return k.layer_norm(at[a], None, None, (_last(at[a], a),), EPS)
        case GradOp.BatchNorm(a):
            _last(at[a], a)
            return k.layer_norm(at[a], None, None, (0,), EPS)
        case GradOp.Clamp(input=a, min=low, max=high):
            if not low <= high:
                raise ArgumentError(f"no interval: the lower bound {low} is above the upper {high}")
            return k.clip(at[a], float(low), float(high))
        case GradOp.Where(cond=cond, on_true=a, on_false=b):
            return k.where(_mask(k, at[cond], cond), at[a], at[b])
        case GradOp.Reshape(input=a):
            if shape is None:
                raise ArgumentError("Reshape: the new shape is that of the node's value, which must be given")
            return k.reshape(at[a], shape)
        case GradOp.TransposeOp(a):
            return k.permute_dims(_matrix(at[a], a), (1, 0))
        case GradOp.CatOp(inputs=inputs, axis=axis, sizes=sizes):
            return _concatenated(k, [at[i] for i in inputs], axis, sizes)
        case GradOp.GatherOp(input=a, indices=indices, axis=axis):
            return _gathered(k, at[a], indices, axis, a)
        case _:
            raise ArgumentError(f"{type(op).__name__} is not computed: its value must be given")


def cross_entropy(k: Any, x: Any, targets: Any, node: int, shape: Shape | None) -> Any:
    """The negative log-probability of the targets, over the last axis; summed over rows to shape [1].

    Targets of the shape of the logits are probabilities; targets without the last axis are class indices.
    """
    rank, whole = _last(x, node), tuple(x.shape)
    given = tuple(targets.shape)
    logarithms = k.log_softmax(x, rank)
    if given == whole and not k.dtype(targets).is_floating and not (rank == 0 and given == (1,)):
        raise DTypeError(
            f"targets of the shape of the logits are probabilities, and these are {k.dtype(targets)}: use floats, 1.0 "
            f"and 0.0, or class indices, which lack the last axis"
        )
    if given == whole and k.dtype(targets).is_floating:
        if k.dtype(targets) is not k.dtype(x):
            raise DTypeError(f"the probabilities are {k.dtype(targets)} and the logits {k.dtype(x)}: cast one of them")
        # 0 times the logarithm of 0 counts as 0.
        impossible = k.logical_and(k.equal(targets, 0.0), k.isinf(logarithms))
        rows = k.neg(k.sum(k.mul(targets, k.where(impossible, 0.0, logarithms)), (rank,), False))
    elif given == whole[:-1] or (rank == 0 and given == (1,)):
        places = k.reshape(class_indices(k, targets, whole[-1]), (*whole[:-1], 1))
        rows = k.neg(k.reshape(k.take_along_axis(logarithms, places, rank), whole[:-1]))
    else:
        raise ShapeError(
            f"targets of shape {list(given)} for logits of shape {list(whole)}: probabilities have the shape of the "
            f"logits, class indices lack the last axis"
        )
    if shape is not None and shape == whole[:-1] and shape != (1,):
        return rows
    return k.reshape(k.sum(rows, all_axes(rows), False), (1,))


def class_indices(k: Any, targets: Any, classes: int) -> Any:
    """Targets as integers. Raises unless they are valid class indices."""
    dtype = k.dtype(targets)
    if not dtype.is_arithmetic:
        raise DTypeError(f"class indices are integers, not {dtype}")
    if math.prod(targets.shape):
        low, high = (float(item(k, f(targets, all_axes(targets), False))) for f in (k.min, k.max))
        if not (low >= 0 and high < classes):
            raise OutOfRangeError(f"class indices go from 0 to {classes - 1}, and the targets from {low:g} to {high:g}")
        if dtype.is_floating and item(k, k.any(k.not_equal(targets, k.floor(targets)), all_axes(targets), False)):
            raise ArgumentError("class indices are whole numbers; probabilities have the shape of the logits")
    return k.astype(targets, int64)


def index_primitive(k: Any, indices: Sequence[int]) -> Any:
    """Python integers as an int primitive of ``k``."""
    host = k.to_numpy(k.zeros((len(indices),), int64))
    host[...] = list(indices)
    return k.from_numpy(host)


def _matrix(x: Any, node: int) -> Any:
    if len(x.shape) != 2:
        raise ShapeError(f"node {node} must be 2-D, and has shape {list(x.shape)}")
    return x


def _last(x: Any, node: int) -> int:
    if not x.shape:
        raise ShapeError(f"node {node} is 0-d and has no axis")
    return len(x.shape) - 1


def _part(tree: Any, place: int, total: int, *, mapping: bool) -> Any:
    check_form(tree, mapping)
    children, _ = parts(tree)
    if len(children) != total:
        raise ArgumentError(f"it has {len(children)} fields, not {total}")
    if not 0 <= place < total:
        raise OutOfRangeError(f"it has fields 0 to {total - 1}, not {place}")
    if children[place] is None:
        raise DTypeError(f"its field {place} is None, which has no value")
    return children[place]


def _mask(k: Any, cond: Any, node: int) -> Any:
    chosen = k.equal(cond, 1.0)
    if item(k, k.any(k.logical_not(k.logical_or(chosen, k.equal(cond, 0.0))), all_axes(cond), False)):
        raise ArgumentError(f"the mask of node {node} holds values other than 0.0 and 1.0")
    return chosen


def _concatenated(k: Any, tensors: list[Any], axis: int, sizes: Shape) -> Any:
    if not tensors:
        raise ArgumentError("there is nothing to concatenate")
    place = check_axis(axis, len(tensors[0].shape))
    if any(len(t.shape) != len(tensors[0].shape) for t in tensors):
        raise ShapeError(f"the operands have {', '.join(str(len(t.shape)) for t in tensors)} axes")
    found = tuple(t.shape[place] for t in tensors)
    if found != sizes:
        raise ShapeError(f"the operands have sizes {list(found)} along axis {axis}, not {list(sizes)}")
    return k.concat(tensors, place)


def _gathered(k: Any, x: Any, indices: Sequence[int], axis: int, node: int) -> Any:
    place = check_axis(axis, len(x.shape))
    for index in indices:
        if not 0 <= index < x.shape[place]:
            raise OutOfRangeError(f"axis {axis} of node {node} has indices 0 to {x.shape[place] - 1}, not {index}")
    return k.take(x, index_primitive(k, indices), place)
