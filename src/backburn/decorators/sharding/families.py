"""Rules of sharding: families of operations, and tables of their members."""

from __future__ import annotations

from typing import Any

from backburn.decorators.sharding import moves, products, quantized, reductions  # noqa: F401 - attach their rules
from backburn.decorators.sharding.rules import (
    Plan,
    Rule,
    Shapes,
    aligned,
    along,
    broadcasting,
    direct,
    folded,
    rows,
    sharding,
)

# Along axes: cumulative results, sorting, Fourier transforms, normalization, positions for each element.
for name in (
    "prod_of_others", "mean", "var", "std", "median", "vector_norm", "logsumexp", "normalize", "quantile",
    "argmax", "argmin", "max_with_indices", "min_with_indices",
    "cumulative_sum", "cumulative_prod", "cummax", "cummin", "logcumsumexp", "diff",
    "softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "softmin", "glu",
    "softmax_cross_entropy", "softmax_cross_entropy_backward", "label_cross_entropy", "label_cross_entropy_backward",
    "argsort", "sort", "sort_with_indices", "topk", "kthvalue", "rfft", "irfft", "fft",
    "take_along_axis", "scatter", "scatter_reduce", "flip", "roll", "repeat", "sliding_window", "concat",
):  # fmt: skip
    sharding(name, along("axis"))
sharding("diagonal", along("axis1", "axis2"))

# Matrices, which are the last two axes.
for name in (
    "triu", "tril", "cholesky", "lu", "qr", "svd", "svdvals", "eig", "eigvals", "eigh", "eigvalsh", "inv",
    "det", "slogdet", "cofactors", "solve", "triangular_solve",
    "scaled_dot_product_attention", "scaled_dot_product_attention_backward",
):  # fmt: skip
    sharding(name, broadcasting(2))

# A first axis of independent entries.
for name in (
    "max_pool", "avg_pool", "avg_pool_backward", "adaptive_avg_pool", "adaptive_max_pool",
    "unfold", "fold", "interpolate", "interpolate_backward", "group_norm", "instance_norm",
):  # fmt: skip
    sharding(name, folded(0))
for name in ("grid_sample", "sample", "sample_backward"):
    sharding(name, folded(0, 1))
sharding("deform_conv2d", folded(0, 1, 3))
sharding("lstm_cell", folded(0, 1, 2))
sharding("gru_cell", folded(0, 1))


def one_hot(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan:
    """Each number has a separate row."""
    return Plan((cut,), result=cut)


def over_steps(*together: int) -> Rule:
    """The rule of a recurrent network over all steps: examples, on the second to last axis, are independent."""

    def rule(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
        if index not in together or cut != len(shapes[index]) - 2:
            return None
        return Plan(tuple(len(s) - 2 if i in together and s is not None else None for i, s in enumerate(shapes)))

    return rule


def over_states(shapes: Shapes, index: int, cut: int, *, axis: int, **_: Any) -> Plan | None:
    """Elements of a state are independent; operands broadcast, and the last one, the first state, lacks the axis."""
    *steps, first = shapes
    rank = max(len(s) for s in steps if s is not None)
    at = 0 if first is None else max(len(first) + axis + 1 - rank, 0)
    shapes = [*steps, None if first is None else (*first[:at], 1, *first[at:])]
    cut += index == len(steps) and cut >= at
    axes = aligned(shapes, index, cut)
    if axes is None or cut - len(shapes[index]) == axis - rank:
        return None
    *own, last = axes
    return Plan((*own, None if last is None else last - (last > at)))


def normalization(main: int, sums: bool = False) -> Rule:
    """The rule of a normalization of operand ``main``, with which the others broadcast."""

    def rule(shapes: Shapes, index: int, cut: int, *, axis: tuple[int, ...], **_: Any) -> Plan | None:
        if len(shapes[index]) != len(shapes[main]) or cut in axis:
            return None
        axes = aligned(shapes, index, cut)
        return None if axes is None else Plan(axes, sums)

    return rule


def batch_norm(shapes: Shapes, index: int, cut: int, *, axis: int, **_: Any) -> Plan | None:
    """Statistics are given: examples are independent, and so are channels."""
    if index == 0 and cut != axis:
        return Plan((cut, *(None for _ in shapes[1:])), result=cut)
    channels = (axis, *(None if s is None else 0 for s in shapes[1:]))
    return Plan(channels, result=axis)


def batch_norm_training(shapes: Shapes, index: int, cut: int, *, axis: int, **_: Any) -> Plan | None:
    """Channels are independent; for cut examples the body sums the statistics."""
    if index == 0 and cut != axis:
        return None
    return Plan((axis, *(None if s is None else 0 for s in shapes[1:])))


def ctc(*steps_first: int) -> Rule:
    """The rule of CTC: examples are axis 1 of operands that have steps, and axis 0 of others."""

    def rule(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
        if cut != (index in steps_first):
            return None
        return Plan(tuple(int(i in steps_first) for i in range(len(shapes))))

    return rule


def searchsorted(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Values searched for in one row are independent."""
    return Plan((None, cut), result=cut) if index == 1 and len(shapes[0]) == 1 else None


def isin(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Elements are independent; each is looked for in all values."""
    return Plan((cut, None), result=cut) if index == 0 else None


def embedding(shapes: Shapes, index: int, cut: int, **_: Any) -> Plan | None:
    """Indices read whole rows of the table; features of the table are independent."""
    if index == 1:
        return Plan((None, cut), result=cut)
    return None if cut == 0 else Plan((cut, None), result=len(shapes[1]) + cut - 1)


def whole_embedding(level: Any, table: Any, ids: Any, **attributes: Any) -> Any:
    """Rows of a cut table for whole indices: the table is joined, like a parameter before its use."""
    if not level.is_cut(table) or table.axis != 0 or level.is_cut(ids):
        return NotImplemented
    return level.wrapped.embedding(level.whole(table), ids, **attributes)


direct("embedding", whole_embedding)
sharding("one_hot", one_hot)
sharding("lstm", over_steps(0, 1, 2))
sharding("lstm_backward", over_steps(1, 2, 3, 4, 5, 6))
sharding("gru", over_steps(0, 1))
sharding("gru_backward", over_steps(1, 2, 3, 4, 5))
sharding("ssm_scan", over_states)
sharding("ssm_scan_backward", over_states)
sharding("layer_norm", normalization(0))
sharding("rms_norm", normalization(0))
sharding("layer_norm_backward", normalization(1, sums=True))
sharding("rms_norm_backward", normalization(1, sums=True))
sharding("batch_norm", batch_norm)
sharding("batch_norm_training", batch_norm_training)
sharding("ctc_loss", ctc(0))
sharding("ctc_loss_backward", ctc(1))
sharding("searchsorted", searchsorted)
sharding("isin", isin)
sharding("embedding", embedding)
sharding("quantized_linear", rows(0))
sharding("quantized_linear_backward", rows(0))
