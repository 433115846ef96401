"""Initialization of parameters.

Each function returns a new tensor on the default backend (or ``backend``) in the default float dtype (or ``dtype``),
drawn from the default generator (or ``generator``). Complex values have independent parts, and together the given or
documented standard deviation (Trabelsi et al., "Deep complex networks", 2018, arXiv:1705.09792).

Weights have the shape ``(outputs, inputs)``, kernels of convolutions ``(outputs, inputs, *window)``. To reinitialize a
parameter, write ``layer.weight = nn.parameter(init.orthogonal(layer.weight.shape))``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from backburn.base.dtypes import ComplexDType, as_dtype
from backburn.base.errors import ArgumentError
from backburn.hints import lookups
from backburn.tensor import creation, random, special
from backburn.tensor.classes import FloatTensor
from backburn.tensor.complex_numbers import complex as complex_tensor
from backburn.tensor.core.options import bounded, number, one_of, shape_of
from backburn.tensor.linalg import decompositions

__all__ = [
    "fans", "calculate_gain", "zeros", "ones", "constant", "uniform", "normal", "trunc_normal", "kaiming_uniform",
    "kaiming_normal", "xavier_uniform", "xavier_normal", "orthogonal",
]  # fmt: skip

Shape = tuple[int, ...]


def fans(shape: Shape) -> tuple[int, int]:
    """The number of inputs per output of a layer (fan-in), and of outputs per input (fan-out).

    Raises :class:`ArgumentError` for fewer than two axes.

    >>> fans((784, 128)), fans((32, 16, 3, 3))
    ((128, 784), (144, 288))
    """
    shape = shape_of("fans", shape)
    if len(shape) < 2:
        raise ArgumentError(f"fans: the weight of a layer has two axes or more, not the shape {list(shape)}")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def zeros(shape: Shape, **options: Any) -> FloatTensor:
    """A tensor of zeros; options are ``dtype`` and ``backend``."""
    return creation.zeros(shape, **options)


def ones(shape: Shape, **options: Any) -> FloatTensor:
    """A tensor of ones; options are ``dtype`` and ``backend``."""
    return creation.ones(shape, **options)


def constant(shape: Shape, val: float | complex, **options: Any) -> FloatTensor:
    """A tensor filled with ``val``; options are ``dtype`` and ``backend``."""
    value: Any = val if isinstance(val, complex) else float(number("constant", "val", val))
    made: Any = creation.full(shape, value, **options)
    return cast(FloatTensor, made)


def uniform(shape: Shape, a: float = 0.0, b: float = 1.0, **options: Any) -> FloatTensor:
    """Uniform values from ``a`` to ``b``; both parts of complex values are uniform, which doubles the variance."""
    low, high = number("uniform", "a", a), number("uniform", "b", b)
    if not isinstance(dtype := as_dtype(options.get("dtype") or float), ComplexDType):
        return random.uniform(shape, low=low, high=high, **options)
    options["dtype"] = dtype.part
    real, imag = (random.uniform(shape, low=low, high=high, **options) for _ in range(2))
    return cast(FloatTensor, complex_tensor(real, imag))


def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, **options: Any) -> FloatTensor:
    """Normally distributed values with the given mean and standard deviation."""
    return random.normal(shape, mean=mean, std=std, **options)


def trunc_normal(
    shape: Shape, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, **options: Any
) -> FloatTensor:
    """Normally distributed values, truncated to ``[a, b]``; mean and standard deviation are those before truncation.

    Raises :class:`ArgumentError` for a ``std`` that is not positive, and for an empty range.

    >>> bool(abs(trunc_normal((1000,), std=0.5, a=-1.0, b=1.0).numpy()).max() <= 1.0)
    True
    """
    name = "trunc_normal"
    mean, std = number(name, "mean", mean), bounded(name, "std", std, above=0, below=math.inf)
    a, b = number(name, "a", a), number(name, "b", b)
    low, high = (math.erf((edge - mean) / (std * math.sqrt(2.0))) for edge in (a, b))
    if not low < high:
        raise ArgumentError(f"{name}: nothing of the distribution is between a = {a!r} and b = {b!r}")
    drawn = special.erfinv(random.uniform(shape, low=low, high=high, **options)) * (std * math.sqrt(2.0)) + mean
    return drawn.clip(a, b)


#: The gains of :func:`calculate_gain` that do not depend on a parameter.
_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor on initial weights that compensates for a nonlinearity, so that values after it have variance 1.

    ``nonlinearity`` is ``"linear"``, ``"sigmoid"``, ``"tanh"``, ``"relu"``, ``"leaky_relu"`` (whose slope is ``param``,
    0.01 by default) or ``"selu"``. Raises :class:`ArgumentError` for others.

    >>> round(calculate_gain("relu"), 4), calculate_gain("tanh")
    (1.4142, 1.6666666666666667)
    """
    slope = number("calculate_gain", "param", 0.01 if param is None else param)
    if one_of("calculate_gain", "nonlinearity", nonlinearity, (*_GAINS, "leaky_relu")) == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + slope * slope))
    return _GAINS[nonlinearity]


def kaiming_uniform(
    shape: Shape, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", **options: Any
) -> FloatTensor:
    """Uniform with standard deviation ``gain / sqrt(inputs)`` (He et al. 2015).

    The gain is that of ``nonlinearity`` (:func:`calculate_gain`), where ``a`` is the slope of ``"leaky_relu"``: 0 for
    ReLU. With ``mode="fan_out"`` the number of outputs replaces that of inputs.

        >>> kaiming_uniform((100, 10)).shape
        (100, 10)
    """
    return _uniform(shape, _kaiming("kaiming_uniform", shape, a, mode, nonlinearity), options)


def kaiming_normal(
    shape: Shape, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", **options: Any
) -> FloatTensor:
    """Normal with standard deviation ``gain / sqrt(inputs)`` (He et al. 2015); options as :func:`kaiming_uniform`."""
    return normal(shape, std=_kaiming("kaiming_normal", shape, a, mode, nonlinearity), **options)


def xavier_uniform(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """Uniform with standard deviation ``gain * sqrt(2 / (inputs + outputs))`` (Glorot and Bengio 2010)."""
    return _uniform(shape, _gain("xavier_uniform", gain) * math.sqrt(2.0 / max(1, sum(fans(shape)))), options)


def xavier_normal(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """Normal with standard deviation ``gain * sqrt(2 / (inputs + outputs))`` (Glorot and Bengio 2010)."""
    std = _gain("xavier_normal", gain) * math.sqrt(2.0 / max(1, sum(fans(shape))))
    return normal(shape, std=std, **options)


def orthogonal(shape: Shape, gain: float = 1.0, **options: Any) -> FloatTensor:
    """A random matrix whose rows (or columns, if there are fewer) are orthogonal and have length ``gain``.

    A complex square matrix is ``gain`` times a unitary one; every such matrix is equally likely. Kernels count as
    matrices with a row for each output. Raises :class:`ArgumentError` for fewer than two axes. After Saxe, McClelland
    and Ganguli (2014).

    >>> import backburn as bb
    >>> w = orthogonal((2, 3), dtype="float64")
    >>> bool(bb.allclose(w @ w.mT, bb.eye(2, dtype="float64")))
    True
    """
    fans(shape)
    shape, gain = shape_of("orthogonal", shape), _gain("orthogonal", gain)
    rows, columns = shape[0], math.prod(shape[1:])
    # The diagonal of R is positive, so that no sign or phase of a column is preferred.
    q, _ = decompositions.qr(random.normal((max(rows, columns), min(rows, columns)), **options))
    return (q if rows >= columns else q.mT).reshape(shape) * gain


def _uniform(shape: Shape, std: float, options: dict[str, Any]) -> FloatTensor:
    """Uniform values around 0 with a standard deviation."""
    is_complex = isinstance(as_dtype(options.get("dtype") or float), ComplexDType)
    bound = math.sqrt(1.5 if is_complex else 3.0) * std
    return uniform(shape, -bound, bound, **options)


def _gain(name: str, gain: float) -> float:
    return bounded(name, "gain", gain, least=0, below=math.inf)


def _kaiming(name: str, shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    """The standard deviation of both forms of Kaiming's initialization."""
    inputs, outputs = fans(shape)
    fan = inputs if one_of(name, "mode", mode, ("fan_in", "fan_out")) == "fan_in" else outputs
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.nn.init", __all__)
