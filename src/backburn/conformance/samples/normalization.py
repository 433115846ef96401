"""Samples: softmax and the normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.table import case, positive, real, samples

# ---- softmax ----


def softmax(x: Any, axis: int) -> Any:
    """The reference of ``softmax``."""
    if not x.size:
        return x
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    """The reference of ``log_softmax``."""
    if not x.size:
        return x
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


LINES = (
    case(real(2, 3), axis=1),
    case(real(3, 2), axis=0),
    case(real(2, 3, 2), axis=1),
    case(real(4), axis=0),
    case(real(2, 1), axis=1),
    case(real(0, 3), axis=1),
    case(real(3, 0), axis=1),
    case(real(3, low=-1200.0, high=1200.0), axis=0, note="exponentials overflow"),
    case(np.array([[1.0, -np.inf, 2.0]]), axis=1, smooth=0, note="a masked element"),
)

samples("softmax", softmax, *LINES)
samples("log_softmax", log_softmax, *LINES)
samples("softmin", lambda x, axis: softmax(-x, axis), *LINES[:-1])

PAIRS = tuple(
    case(real(*shape), softmax(real(*shape, seed=1), axis), axis=axis)
    for shape, axis in (((2, 3), 1), ((3, 2), 0), ((2, 3, 2), 1), ((0, 3), 1))
)

samples(
    "softmax_backward",
    lambda grad, y, axis: y * (grad - (y * grad).sum(axis, keepdims=True)),
    *PAIRS,
)
samples(
    "log_softmax_backward",
    lambda grad, y, axis: grad - np.exp(y) * grad.sum(axis, keepdims=True),
    *PAIRS,
)

# ---- over the elements of one example ----


def layer_norm(x: Any, scale: Any = None, bias: Any = None, axis: Any = (1,), eps: float = 1e-5) -> Any:
    """The reference of ``layer_norm``."""
    normal = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)
    return normal * (1.0 if scale is None else scale) + (0.0 if bias is None else bias)


def rms_norm(x: Any, scale: Any = None, axis: Any = (1,), eps: float = 1e-5) -> Any:
    """The reference of ``rms_norm``."""
    return x / np.sqrt((x**2).mean(axis, keepdims=True) + eps) * (1.0 if scale is None else scale)


SENSITIVE: dict[str, Any] = {
    "tolerance": 4.0, "gradient_tolerance": 10.0, "because": "dividing by a small deviation enlarges errors"
}  # fmt: skip
NORMS = (
    case(real(2, 4), positive(4), axis=(1,)),
    case(real(2, 4), None, axis=(1,)),
    case(real(2, 4), positive(4), axis=(1,), eps=0.5),
    case(real(2, 2, 3), positive(2, 3), axis=(1, 2)),
    case(real(3, 2), positive(3, 1), axis=(0,)),
    case(real(2, 2, 3), positive(2, 1), axis=(0, 2)),
    case(real(4), positive(1), axis=(0,)),
    case(real(0, 3), positive(3), axis=(1,)),
)

samples(
    "layer_norm",
    layer_norm,
    *(case(s.operands[0], s.operands[1], s.operands[1], **s.attributes) for s in NORMS),
    case(real(2, 4), None, real(4), axis=(1,)),
    case(real(2, 4), positive(4), None, axis=(1,)),
    case(np.full((2, 3), 2.0), positive(3), axis=(1,), smooth=0, note="no variance"),
    case(real(2, 4), positive(4), real(4), axis=(1,)),
    **SENSITIVE,
)
samples("rms_norm", rms_norm, *NORMS, case(np.zeros((2, 3)), positive(3), axis=(1,), smooth=0, note="no size"))


def backward(grad: Any, x: Any, scale: Any, axis: Any, eps: float, centred: bool) -> tuple[Any, Any]:
    """The gradients, by the matrix of all first derivatives of the normalization."""
    if not x.size:
        return x, np.zeros_like(scale)
    centre = x - x.mean(axis, keepdims=True) if centred else x
    deviation = np.sqrt((centre**2).mean(axis, keepdims=True) + eps)
    normal, inner = centre / deviation, grad * scale
    count = int(np.prod([x.shape[a] for a in axis]))
    grad_x = inner - normal * (inner * normal).sum(axis, keepdims=True) / count
    if centred:
        grad_x = grad_x - inner.sum(axis, keepdims=True) / count
    grad_scale = grad * normal
    extra = x.ndim - scale.ndim
    axes = (*range(extra), *(extra + i for i, n in enumerate(scale.shape) if n == 1 and x.shape[extra + i] != 1))
    return grad_x / deviation, grad_scale.sum(axes).reshape(scale.shape)


GRADIENTS = (
    *(
        case(real(*s.operands[0].shape, seed=2), s.operands[0], s.operands[1], axis=s.attributes["axis"], eps=1e-5)
        for s in NORMS
        if s.operands[1] is not None
    ),
    case(real(2, 4, seed=2), real(2, 4), positive(4), axis=(1,), eps=0.5),
)

samples(
    "layer_norm_backward",
    lambda grad, x, scale, axis, eps: backward(grad, x, scale, axis, eps, True),
    *GRADIENTS,
    tolerance=8.0,
    gradient_tolerance=100.0,
    because=SENSITIVE["because"],
)
samples(
    "rms_norm_backward",
    lambda grad, x, scale, axis, eps: backward(grad, x, scale, axis, eps, False),
    *GRADIENTS,
    **SENSITIVE,
)


def group_norm(x: Any, scale: Any = None, bias: Any = None, groups: int = 1, eps: float = 1e-5) -> Any:
    """The reference of ``group_norm``."""
    grouped = x.reshape(x.shape[0], groups, int(np.prod(x.shape[1:])) // groups)
    normal = layer_norm(grouped, axis=(2,), eps=eps).reshape(x.shape)
    shape = (-1, *(1 for _ in x.shape[2:]))
    return normal * (1.0 if scale is None else scale.reshape(shape)) + (0.0 if bias is None else bias.reshape(shape))


CHANNELS = (
    case(real(2, 4, 3), positive(4), real(4)),
    case(real(2, 2, 2, 2), positive(2), None),
    case(real(2, 2, 3), None, None, eps=0.1),
)

samples(
    "group_norm",
    group_norm,
    case(real(2, 4, 3), positive(4), real(4), groups=2),
    case(real(2, 4), positive(4), real(4), groups=2),
    case(real(0, 4, 2), positive(4), groups=2),
    *CHANNELS,
    **SENSITIVE,
)
samples(
    "instance_norm",
    lambda x, scale=None, bias=None, eps=1e-5: group_norm(x, scale, bias, x.shape[1], eps),
    *CHANNELS,
    **SENSITIVE,
)

# ---- over a batch ----


def by_channel(x: Any, parameter: Any, axis: int) -> Any:
    """A vector along ``axis`` in the shape that broadcasts against ``x``."""
    return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def batch_norm(
    x: Any, mean: Any, variance: Any, scale: Any = None, bias: Any = None, axis: int = 1, eps: float = 1e-5
) -> Any:
    """The reference of ``batch_norm``."""
    normal = (x - by_channel(x, mean, axis)) / np.sqrt(by_channel(x, variance, axis) + eps)
    scale, bias = (None if p is None else by_channel(x, p, axis) for p in (scale, bias))
    return normal * (1.0 if scale is None else scale) + (0.0 if bias is None else bias)


def batch_norm_training(
    x: Any, scale: Any = None, bias: Any = None, axis: int = 1, eps: float = 1e-5
) -> tuple[Any, Any, Any]:
    """The reference of ``batch_norm_training``."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    mean, variance = x.mean(others), x.var(others)
    return batch_norm(x, mean, variance, scale, bias, axis, eps), mean, variance


samples(
    "batch_norm",
    batch_norm,
    case(real(4, 3), real(3), positive(3), positive(3, seed=1), real(3, seed=1)),
    case(real(2, 3, 2), real(3), positive(3), None, real(3, seed=1)),
    case(real(2, 2, 3), real(3), positive(3), positive(3, seed=1), None, axis=2, eps=0.1),
    case(real(2, 3), real(3), positive(3)),
    case(real(0, 3), real(3), positive(3), positive(3), real(3)),
)
samples(
    "batch_norm_training",
    batch_norm_training,
    case(real(4, 3), positive(3, seed=1), real(3, seed=1)),
    case(real(2, 3, 2), None, real(3, seed=1)),
    case(real(2, 2, 3), positive(3), None, axis=2, eps=0.1),
    case(real(3, 2)),
    **SENSITIVE,
)

# ---- to length 1 ----


def normalize(x: Any, axis: Any, ord: float = 2.0, eps: float = 1e-12) -> Any:
    """The reference of ``normalize``."""
    return x / np.maximum((np.abs(x) ** ord).sum(axis, keepdims=True) ** (1 / ord), eps)


samples(
    "normalize",
    normalize,
    case(real(2, 3), axis=(1,)),
    case(real(2, 3), axis=(0, 1)),
    case(real(2, 3), axis=(0,), ord=3.0),
    case(real(2, 3), axis=(1,), ord=1.0, eps=0.5),
    case(real(3, low=0.01, high=0.02), axis=(0,), eps=0.5, note="shorter than eps"),
    case(np.zeros((2, 2)), axis=(1,), eps=0.5, smooth=0, gradients=(np.full((2, 2), 2.0),)),
    case(real(0, 3), axis=(1,)),
)
