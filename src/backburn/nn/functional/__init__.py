"""Layers as functions, with all parameters as arguments.

Activation functions, normalizations and losses are those of :mod:`backburn.tensor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.hints import lookups
from backburn.nn.functional.attention import (
    embedding,
    gru,
    gru_cell,
    lstm,
    lstm_cell,
    scaled_dot_product_attention,
    ssm_scan,
)
from backburn.nn.functional.composed import (
    alpha_dropout,
    bilinear,
    embedding_bag,
    gumbel_softmax,
    local_response_norm,
    lp_pool,
    pad_sequence,
    rotary,
)
from backburn.nn.functional.composed import check_probability as check_probability
from backburn.nn.functional.composed_losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    ctc_loss,
    gaussian_nll_loss,
    huber_loss,
    kl_div_loss,
    poisson_nll_loss,
    smooth_l1_loss,
)
from backburn.nn.functional.convolution import conv, conv_transpose, deform_conv2d
from backburn.nn.functional.losses import cross_entropy, l1_loss, mse_loss, nll_loss
from backburn.nn.functional.margin_losses import (
    cosine_embedding_loss,
    cosine_similarity,
    hinge_embedding_loss,
    hinge_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    triplet_margin_loss,
)
from backburn.nn.functional.pooling import (
    adaptive_avg_pool,
    adaptive_max_pool,
    adaptive_max_pool_with_indices,
    avg_pool,
    max_pool,
    max_pool_with_indices,
    max_unpool,
)  # fmt: skip
from backburn.nn.functional.resampling import affine_grid, fold, grid_sample, interpolate, unfold
from backburn.nn.functional.rnnt_loss import rnnt_loss
from backburn.tensor import random
from backburn.tensor.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_swish,
    hardshrink,
    hardtanh,
    leaky_relu,
    log_sigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)  # fmt: skip
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import call, call_same_dtype, inexact_operand, promote_present
from backburn.tensor.core.options import one_of
from backburn.tensor.elementwise import tanh
from backburn.tensor.normalization import (
    batch_norm,
    batch_norm_training,
    group_norm,
    instance_norm,
    layer_norm,
    log_softmax,
    normalize,
    rms_norm,
    softmax,
    softmin,
)  # fmt: skip
from backburn.tensor.quantized import fake_quantize, quantized_linear

__all__ = [
    "linear", "feed_forward", "bilinear", "embedding", "embedding_bag", "dropout", "alpha_dropout",
    "pad_sequence",
    "relu", "relu6", "leaky_relu", "prelu", "elu", "celu", "selu", "gelu", "silu", "mish", "glu", "softplus",
    "softsign", "sigmoid", "log_sigmoid", "hard_sigmoid", "hard_swish", "tanh", "hardtanh", "tanhshrink",
    "softshrink", "hardshrink", "threshold",
    "softmax", "log_softmax", "softmin", "gumbel_softmax",
    "layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "batch_norm_training", "normalize",
    "local_response_norm",
    "cosine_similarity",
    "conv", "conv_transpose", "deform_conv2d", "max_pool", "max_pool_with_indices", "max_unpool", "avg_pool",
    "adaptive_avg_pool", "adaptive_max_pool", "adaptive_max_pool_with_indices", "lp_pool", "interpolate", "grid_sample",
    "affine_grid", "unfold", "fold",
    "lstm", "lstm_cell", "gru", "gru_cell", "scaled_dot_product_attention", "rotary", "ssm_scan",
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "hinge_loss",
    "hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div_loss", "poisson_nll_loss", "gaussian_nll_loss", "ctc_loss", "rnnt_loss",
    "fake_quantize", "quantized_linear",
]  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> FloatTensor:
    """``x @ weight.T + bias`` for a ``weight`` of shape (outputs, inputs) and a ``bias`` of shape (outputs,).

    The last axis of ``x`` has the length ``inputs``; leading axes are kept. Raises :class:`ShapeError` where shapes do
    not fit.

    >>> import backburn as bb
    >>> linear(bb.asarray([1.0, 2.0], backend="numpy"), bb.asarray([[1.0, 10.0]], backend="numpy"))
    Tensor([21.], dtype=float32, backend=numpy)
    """
    return call_same_dtype("linear", x, weight, bias)


#: The argument ``approximate`` of :func:`gelu` for each activation that uses it.
GELUS = {"gelu": "none", "gelu_tanh": "tanh"}


def feed_forward(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    activation: str = "gelu",
) -> FloatTensor:
    """Two :func:`linear` layers with an activation between them, the feed-forward block of a transformer.

    ``weight1`` has the shape (hidden, inputs), ``weight2`` (outputs, hidden). ``activation`` is ``"gelu"``,
    ``"gelu_tanh"`` (its tanh form) or ``"relu"``. With GELU, the block is one operation, which a backend may compute as
    part of the products. Raises :class:`ShapeError` where shapes do not fit.

    >>> import backburn as bb
    >>> up, down = bb.asarray([[1.0], [-1.0]]), bb.asarray([[1.0, 10.0]])
    >>> feed_forward(bb.asarray([2.0]), up, None, down, None, activation="relu").tolist()
    [2.0]
    """
    if one_of("feed_forward", "the activation", activation, (*GELUS, "relu")) == "relu":
        return linear(relu(linear(x, weight1, bias1)), weight2, bias2)
    operands = promote_present("feed_forward", x, weight1, weight2, bias1, bias2)
    return call("feed_forward", *operands, approximate=GELUS[activation])[0]


def dropout(x: Tensor, p: float = 0.5, training: bool = True, *, generator: Any = None) -> FloatTensor:
    """Each element set to 0 with probability ``p``, else divided by ``1 - p``; ``x`` itself unless ``training``.

    The random numbers come from ``generator``, or from the default one. Raises :class:`ArgumentError` unless
    ``0 <= p <= 1``.

        >>> import backburn as bb
        >>> sorted(set(dropout(bb.ones((100,)), 0.5).tolist())), dropout(bb.ones((2,)), 0.5, training=False).tolist()
        ([0.0, 2.0], [1.0, 1.0])
    """
    check_probability("dropout", p)
    values: FloatTensor = inexact_operand("dropout", x)
    if not training or p == 0:
        return values
    return random.dropped(values, float(p), generator)


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.nn.functional", __all__)
