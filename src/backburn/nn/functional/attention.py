"""Tensor functions: embeddings, recurrent cells, attention, linear recurrences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError
from backburn.hints.arguments import explained
from backburn.ops.rules.shapes import broadcast
from backburn.tensor import random
from backburn.tensor.core.dispatch import (
    accept_dtype,
    call,
    cast,
    kind_operand,
    promote_operands,
    promote_present,
    tensor_operand,
)
from backburn.tensor.core.indices import counted_from_zero, no_such_index
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, integer, number
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["embedding", "gru", "gru_cell", "lstm", "lstm_cell", "scaled_dot_product_attention", "ssm_scan"]


def embedding(x: Tensor, weight: Tensor, padding_idx: int | None = None) -> FloatTensor:
    """The rows of ``weight`` with the indices ``x``: a tensor of shape ``(*x.shape, *weight.shape[1:])``.

    The row ``padding_idx`` gets no gradient. Raises :class:`OutOfRangeError` for an index out of range or below 0,
    :class:`DTypeError` for indices that are not integers, :class:`ShapeError` for a 0-d weight, which has no rows.

        >>> import backburn as bb
        >>> embedding(bb.asarray([1, 1, 0]), bb.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[3.0, 4.0], [3.0, 4.0], [1.0, 2.0]]
    """
    weight, ids = kind_operand("embedding", weight, "FI"), tensor_operand("embedding", x)
    if ids.dtype.kind != "int":
        raise DTypeError(f"embedding: takes integer indices; indices and weight: {describe((ids, weight))}")
    weight = cast(weight, accept_dtype("embedding", weight.dtype, "F", (weight,)))
    if not weight.ndim:
        raise ShapeError(f"embedding: the weight is 0-d, it has no rows. Operands: {describe((ids, weight))}")
    if padding_idx is not None:
        padding_idx = integer("embedding", "padding_idx", padding_idx)
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise OutOfRangeError(f"embedding: padding_idx {padding_idx} names none of the {weight.shape[0]} rows")
    try:
        return call("embedding", weight, counted_from_zero(ids), padding_idx=padding_idx)
    except OutOfRangeError as error:
        raise no_such_index("embedding", error, ids, weight.shape[0], "rows", weight) from error


def lstm_cell(
    projected: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[FloatTensor, FloatTensor]:
    """One step of an LSTM (long short-term memory): the new hidden and cell states, each (examples, size).

    ``projected`` (examples, 4 * size) is the input times its weight, best computed for all steps at once, and
    ``weight`` (4 * size, size) is that of the hidden state. With ``i, f, g, o`` the four parts of ``projected + hidden
    @ weight.T + bias``: ``cell' = sigmoid(f) * cell + sigmoid(i) * tanh(g)``, ``hidden' = sigmoid(o) * tanh(cell')``.
    Derivatives of gates are computed from their values: a gate that rounds to 1 (in float32 from 17 on) has derivative
    0, whereas :func:`sigmoid` has 4e-8. Raises :class:`ShapeError` where shapes do not fit.

        >>> import backburn as bb
        >>> state = bb.ones((1, 2))
        >>> hidden, cell = lstm_cell(bb.zeros((1, 8)), state, state, bb.zeros((8, 2)))
        >>> cell.tolist()
        [[0.5, 0.5]]
    """
    operands = promote_present("lstm_cell", projected, hidden, cell, weight, bias)
    new_hidden, new_cell, _ = call("lstm_cell", *operands)
    return new_hidden, new_cell


def lstm(
    projected: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[FloatTensor, FloatTensor]:
    """The hidden and cell states of all steps of an LSTM, each (steps, examples, size).

    :func:`lstm_cell` for each of the steps along the first axis of ``projected`` (steps, examples, 4 * size), starting
    from the states ``hidden`` and ``cell``, but as one operation, which computes the gradient of the weight in one
    product. Raises :class:`ShapeError` if shapes do not fit or there are no steps.

        >>> import backburn as bb
        >>> state = bb.ones((1, 2))
        >>> hiddens, cells = lstm(bb.zeros((3, 1, 8)), state, state, bb.zeros((8, 2)))
        >>> cells[:, 0, 0].tolist()
        [0.5, 0.25, 0.125]
    """
    operands = promote_present("lstm", projected, hidden, cell, weight, bias)
    hiddens, cells, _ = call("lstm", *operands)
    return hiddens, cells


def gru_cell(projected: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> FloatTensor:
    """One step of a GRU (gated recurrent unit): the new hidden state (examples, size).

    ``projected`` (examples, 3 * size) is the input times its weight, and ``weight`` (3 * size, size) is that of the
    hidden state. With ``r, z, n`` the parts of ``projected`` and ``r', z', n'`` those of ``hidden @ weight.T + bias``:
    ``reset = sigmoid(r + r')``, ``update = sigmoid(z + z')``, ``new = tanh(n + reset * n')``, and the result is ``(1 -
    update) * new + update * hidden``. Derivatives of gates are computed as in :func:`lstm_cell`. Raises
    :class:`ShapeError` where shapes do not fit.

        >>> import backburn as bb
        >>> gru_cell(bb.zeros((1, 6)), bb.ones((1, 2)), bb.zeros((6, 2))).tolist()
        [[0.5, 0.5]]
    """
    return call("gru_cell", *promote_present("gru_cell", projected, hidden, weight, bias))[0]


def gru(projected: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> FloatTensor:
    """The hidden states of all steps of a GRU, (steps, examples, size).

    :func:`gru_cell` for each of the steps along the first axis of ``projected`` (steps, examples, 3 * size), starting
    from the state ``hidden``, but as one operation, which computes the gradient of the weight in one product. Raises
    :class:`ShapeError` if shapes do not fit or there are no steps.

        >>> import backburn as bb
        >>> hiddens = gru(bb.zeros((3, 1, 6)), bb.ones((1, 2)), bb.zeros((6, 2)))
        >>> hiddens[:, 0, 0].tolist()
        [0.5, 0.25, 0.125]
    """
    return call("gru", *promote_present("gru", projected, hidden, weight, bias))[0]


@explained
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    generator: Any = None,
) -> FloatTensor:
    """``softmax(scale * query @ key.T + mask) @ value`` over the last two axes, without the matrix of all scores.

    Queries (..., queries, size), keys (..., keys, size) and values (..., keys, width) give (..., queries, width);
    leading axes broadcast. ``mask`` broadcasts to (..., queries, keys): a bool mask is True for the keys to attend to;
    a float mask is added to the scores. With ``is_causal``, query ``i`` attends to keys up to ``i``. A query without
    keys to attend to gives 0. ``scale`` is ``1 / sqrt(size)`` by default. Weights are dropped with probability
    ``dropout_p``, with random numbers from ``generator``. After Vaswani et al., Attention is all you need, 2017.

    A ``softcap`` bounds the scores before the mask: ``softcap * tanh(scores / softcap)`` (Gemma Team, Gemma 2, 2024).

    With ``enable_gqa`` keys and values may have fewer heads, on the axis before the last two, than queries: each is
    shared by a group of consecutive query heads (Ainslie et al., GQA, 2023).

    Raises :class:`ShapeError` where shapes do not fit, :class:`DTypeError` for an ambiguous int mask, and
    :class:`ArgumentError` for a ``dropout_p`` that is not a probability or a ``softcap`` that is not above 0.

        >>> import backburn as bb
        >>> query, key = bb.zeros((2, 1)), bb.asarray([[1.0], [2.0]])
        >>> scaled_dot_product_attention(query, key, bb.asarray([[0.0], [8.0]]), is_causal=True).tolist()
        [[0.0], [4.0]]
    """
    name = "scaled_dot_product_attention"
    for x in (query, key, value):
        tensor_operand(name, x)
    if mask is not None and tensor_operand(name, mask).dtype.kind not in ("bool", "float"):
        raise DTypeError(
            f"{name}: a mask is bool (True attends; write mask != 0) or float (added to the scores). "
            f"Operands: {describe((query, key, value, mask))}"
        )
    if mask is not None and mask.dtype.is_floating:
        query, key, value, mask = promote_operands(name, query, key, value, mask)
    else:
        query, key, value = promote_operands(name, query, key, value)
    shape = None
    if enable_gqa:
        shape, query, key, value, mask = _group_heads(query, key, value, mask)
    query, key, value = _broadcast_leading_axes(query, key, value)
    if not 0 <= number(name, "dropout_p", dropout_p, of=(query, key, value)) <= 1:
        words = f"{name}: dropout_p is a probability, from 0 to 1, not {dropout_p!r}"
        raise ArgumentError(f"{words}. Operands: {describe((query, key, value))}")
    factor = 1.0 / math.sqrt(max(1, query.shape[-1] if query.shape else 1)) if scale is None else scale
    keep = None
    if dropout_p and query.ndim > 1 and key.ndim > 1:
        keep = random.bernoulli(
            (*query.shape[:-1], key.shape[-2]), 1.0 - dropout_p, backend=query.backend, generator=generator
        )
    factor = number(name, "scale", factor, of=(query, key, value))
    cap = None if softcap is None else bounded(name, "softcap", softcap, above=0, below=math.inf)
    options = {"causal": bool(is_causal), "scale": float(factor), "dropout": float(dropout_p), "softcap": cap}
    result = call(name, query, key, value, mask, keep, **options)
    return result if shape is None else call("reshape", result, shape=shape)


def _broadcast_leading_axes(*operands: Any) -> list[Any]:
    """The operands of attention with their leading axes broadcast."""
    fronts = [x.shape[:-2] for x in operands]
    if fronts[0] == fronts[1] == fronts[2] or any(x.ndim < 2 for x in operands):
        return [*operands]
    try:
        front = broadcast(*fronts, trailing=2)
    except ShapeError as error:
        words = f"scaled_dot_product_attention: leading axes do not broadcast: {error}"
        raise ShapeError(f"{words}. Operands: {describe(operands)}") from None
    shapes = [(*front, *x.shape[-2:]) for x in operands]
    return [x if x.shape == s else call("broadcast_to", x, shape=s) for x, s in zip(operands, shapes, strict=True)]


def _group_heads(query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, ...]:
    """The shape of the result, and the operands with the query heads in groups, one for each key head.

    Keys and values get an axis of length 1 in place of the group, so that they are not copied.
    """
    operands = [x for x in (query, key, value, mask) if x is not None]
    if any(x.ndim < 3 for x in (query, key, value)):
        raise ShapeError(
            f"scaled_dot_product_attention: enable_gqa is for operands with an axis of heads before the last two. "
            f"Operands: {describe(operands)}"
        )
    heads, groups = query.shape[-3], key.shape[-3]
    if value.shape[-3] != groups or not groups or heads % groups:
        raise ShapeError(
            f"scaled_dot_product_attention: with enable_gqa keys and values have the same number of heads, and the "
            f"queries a multiple of it: {heads}, {groups} and {value.shape[-3]}. "
            f"Operands: {describe(operands)}"
        )

    def split(x: Any) -> Any:
        parts = (groups, heads // groups) if x.shape[-3] == heads else (x.shape[-3], 1)
        return call("reshape", x, shape=(*x.shape[:-3], *parts, *x.shape[-2:]))

    shape = (*broadcast(*(x.shape[:-3] for x in (query, key, value))), heads, query.shape[-2], value.shape[-1])
    key, value = (call("reshape", x, shape=(*x.shape[:-2], 1, *x.shape[-2:])) for x in (key, value))
    return shape, split(query), key, value, split(mask) if mask is not None and mask.ndim > 2 else mask


def ssm_scan(
    a: Tensor,
    b: Tensor | float,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    axis: int = 0,
    reverse: bool = False,
) -> FloatTensor:
    """The states ``h[t] = a[t] h[t-1] + b[t] x[t]`` of a linear recurrence along ``axis``, from ``h0`` or from 0.

    ``a``, ``b`` and ``x`` broadcast to the shape of the states, and ``h0`` to that of one state, without ``axis``. With
    ``reverse`` the recurrence runs from the end. Gradients reach all operands. Raises :class:`ShapeError` where shapes
    do not fit, :class:`AxisError` where there is no such axis. This is the scan of diagonal state space models (Gu and
    Dao, Mamba, 2023).

        >>> import backburn as bb
        >>> ssm_scan(bb.asarray([0.5, 0.5, 0.5]), 1.0, bb.asarray([1.0, 1.0, 0.0])).tolist()
        [1.0, 1.5, 0.75]
    """
    a, x = tensor_operand("ssm_scan", a), tensor_operand("ssm_scan", x)
    operands = promote_operands("ssm_scan", a, b, x, *(() if h0 is None else (tensor_operand("ssm_scan", h0),)))
    operands += [None] * (4 - len(operands))
    axis = integer("ssm_scan", "axis", axis)
    rank = max(len(t.shape) for t in operands[:3] if is_tensor(t))
    if not -rank <= axis < rank:
        raise AxisError(
            f"ssm_scan: axis {axis} is out of range for states of {rank} dimensions. Operands: {describe(operands)}"
        )
    return call("ssm_scan", *operands, axis=axis % rank, reverse=bool(reverse))
