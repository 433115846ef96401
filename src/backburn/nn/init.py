"""Initialization of parameters.

Each function returns a new tensor on the default backend (or ``backend``) in the default float dtype (or ``dtype``),
drawn from the default generator (or ``generator``). Weights of linear layers have the shape ``(inputs, outputs)``; with
more axes they are convolution kernels of shape ``(outputs, inputs, *window)``. ``layer.weight =
nn.parameter(init.orthogonal(layer.weight.shape))`` initializes a parameter anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError
from backburn.base.hints import lookups
from backburn.tensor import create, decompose, random, special
from backburn.tensor.classes import FloatTensor
from backburn.tensor.options import bounded, integer, number, shape_of

__all__ = [
    "fans", "zeros", "ones", "constant", "uniform", "normal", "trunc_normal", "kaiming_uniform", "kaiming_normal",
    "xavier_uniform", "xavier_normal", "orthogonal",
]  # fmt: skip

Shape = tuple[int, ...]


def fans(shape: Shape) -> tuple[int, int]:
    """The number of inputs per output of a layer (fan-in), and of outputs per input (fan-out).

    Raises :class:`ArgumentError` for fewer than two axes.

    >>> fans((784, 128)), fans((32, 16, 3, 3))
    ((784, 128), (144, 288))
    """
    shape = shape_of("fans", shape)
    if len(shape) < 2:
        raise ArgumentError(f"fans: the weight of a layer has two axes or more, not the shape {list(shape)}")
    if len(shape) == 2:
        return shape[0], shape[1]
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def zeros(shape: Shape, **options: Any) -> FloatTensor:
    """A tensor of zeros; options are ``dtype`` and ``backend``."""
    return create.zeros(shape, **options)


def ones(shape: Shape, **options: Any) -> FloatTensor:
    """A tensor of ones; options are ``dtype`` and ``backend``."""
    return create.ones(shape, **options)


def constant(shape: Shape, value: float, **options: Any) -> FloatTensor:
    """A tensor filled with ``value``; options are ``dtype`` and ``backend``."""
    return create.full(shape, float(number("constant", "value", value)), **options)


def uniform(shape: Shape, bound: float, **options: Any) -> FloatTensor:
    """Uniform between ``-bound`` and ``bound``."""
    bound = number("uniform", "bound", bound)
    return random.uniform(shape, low=-bound, high=bound, **options)


def normal(shape: Shape, std: float = 1.0, **options: Any) -> FloatTensor:
    """Normal with mean 0 and standard deviation ``std``."""
    return random.normal(shape, std=std, **options)


def trunc_normal(shape: Shape, std: float = 1.0, bound: float = 2.0, **options: Any) -> FloatTensor:
    """Normal with mean 0 and standard deviation ``std``, truncated to ``[-bound * std, bound * std]``.

    The standard deviation is that before truncation. Raises :class:`ArgumentError` for a negative ``std`` and for a
    ``bound`` that is not positive.

    >>> bool(abs(trunc_normal((1000,), std=0.5).numpy()).max() <= 1.0)
    True
    """
    std = bounded("trunc_normal", "std", std, least=0, below=math.inf)
    bound = bounded("trunc_normal", "bound", bound, above=0, below=math.inf)
    edge = math.erf(bound / math.sqrt(2.0))  # the probability of what is drawn
    drawn = special.erfinv(random.uniform(shape, low=-edge, high=edge, **options)) * (std * math.sqrt(2.0))
    return drawn.clip(-bound * std, bound * std)


def kaiming_uniform(shape: Shape, gain: float = math.sqrt(2.0), fan: int | None = None, **options: Any) -> FloatTensor:
    """Uniform with standard deviation ``gain / sqrt(inputs)`` (He et al. 2015); ``fan`` replaces the inputs.

    The gain of ReLU is the square root of 2.

        >>> kaiming_uniform((100, 10)).shape
        (100, 10)
    """
    return uniform(shape, _gain("kaiming_uniform", gain) * math.sqrt(3.0 / _fan(shape, fan)), **options)


def kaiming_normal(shape: Shape, gain: float = math.sqrt(2.0), fan: int | None = None, **options: Any) -> FloatTensor:
    """Normal with standard deviation ``gain / sqrt(inputs)`` (He et al. 2015); ``fan`` replaces the inputs."""
    return normal(shape, _gain("kaiming_normal", gain) / math.sqrt(_fan(shape, fan)), **options)


def xavier_uniform(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """Uniform with standard deviation ``gain * sqrt(2 / (inputs + outputs))`` (Glorot and Bengio 2010)."""
    return uniform(shape, _gain("xavier_uniform", gain) * math.sqrt(6.0 / max(1, sum(fans(shape)))), **options)


def xavier_normal(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """Normal with standard deviation ``gain * sqrt(2 / (inputs + outputs))`` (Glorot and Bengio 2010)."""
    return normal(shape, _gain("xavier_normal", gain) * math.sqrt(2.0 / max(1, sum(fans(shape)))), **options)


def orthogonal(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """A random matrix whose rows (or columns, if there are fewer) are orthogonal and have length ``gain``.

    Kernels count as matrices with a row for each output. Raises :class:`ArgumentError` for fewer than two axes. After
    Saxe, McClelland and Ganguli (2014).

    >>> import backburn as bb
    >>> w = orthogonal((2, 3), dtype="float64")
    >>> bool(bb.allclose(w @ w.mT, bb.eye(2, dtype="float64")))
    True
    """
    fans(shape)
    shape, gain = shape_of("orthogonal", shape), _gain("orthogonal", gain)
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = decompose.qr(random.normal((max(rows, columns), min(rows, columns)), **options))
    q = q * (1.0 - 2.0 * (r.diagonal() < 0.0).astype(q.dtype))  # as likely one way as the other
    return (q if rows >= columns else q.mT).reshape(shape) * gain


def _gain(name: str, gain: float) -> float:
    return bounded(name, "gain", gain, least=0, below=math.inf)


def _fan(shape: Shape, fan: int | None) -> int:
    return max(1, fans(shape)[0] if fan is None else integer("fans", "fan", fan, least=0))


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.nn.init", __all__)
