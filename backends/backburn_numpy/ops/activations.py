"""NumPy: activation functions, as block kernels (see :mod:`backburn_numpy.blocks`)."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.introspect import opt_func_info

from backburn.backend.tracing import method_of
from backburn.base.errors import ArgumentError
from backburn.ops.activations import GELU_CUBIC, GELU_LINEAR
from backburn.ops.bodies.special_coefficients import ERFCX
from backburn_numpy.blocks import elementwise, scratch
from backburn_numpy.fused import fuse
from backburn_numpy.ops.elementwise import maximum
from backburn_numpy.ops.selection import UNSIGNED

Array = Any


def _has_vectorized_exp2() -> bool:
    """Whether NumPy has SIMD code for this processor for exp2 of float32."""
    targets = opt_func_info(func_name="^exp2$").get("exp2", {}).get("ff", {})
    return not targets.get("current", "baseline").startswith("baseline")


#: An exponential function, and the logarithm of e to its base. Where vectorized, exp2 takes half the time of exp.
POWER, UNIT = (np.exp2, math.log2(math.e)) if _has_vectorized_exp2() else (np.exp, 1.0)

#: Beyond this the derivative of tanh GELU is 0 or 1 within 1e-26; the square of its exponential still fits float64.
GELU_STEEP = 9.0

#: The formulas for float64, which has kernels only within formulas.
GELU, GELU_BACKWARD = method_of("gelu"), method_of("gelu_backward")

#: The normal distribution's upper tail at ``y``, over ``exp(-y ** 2 / 2)``, as a rational function of ``y``: degrees 4
#: and 5 on 0 to 14.6, beyond which float32 underflows, with an error of 2**-27.3.
TAIL_32 = (
    (48.37106885, 42.42109394, 17.74102709, 3.935827965, 0.3989468369),
    (96.74213713, 162.0312867, 116.392779, 45.45579191, 9.866274741, 1.0),
)


def _tail_64() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The tail for float64, by :data:`ERFCX`: ``(1 + p / q) / (1 + 2 z) / 2`` for ``z = y / sqrt(2)``."""
    numerator, denominator = ERFCX[64]
    above = [0.5 * (p + q) for p, q in zip(numerator, denominator, strict=True)]
    below = [b + 2.0 * a for a, b in pairwise((0.0, *denominator, 0.0))]
    scaled = [[c * 0.5 ** (i / 2) for i, c in enumerate(part)] for part in (above, below)]
    first, second = (tuple(c / scaled[1][-1] for c in part) for part in scaled)
    return first, second


def relu(x: Array, /) -> Array:
    return maximum(x, 0)


def relu_backward(grad: Array, y: Array, /) -> Array:
    if grad.size < 1 << 10:
        return np.where(np.greater(y, 0), grad, np.zeros((), grad.dtype))
    return elementwise("relu_backward", _relu_backward, grad, y)


def sigmoid(x: Array, /) -> Array:
    return elementwise("sigmoid", _sigmoid, x)


def sigmoid_backward(grad: Array, y: Array, /) -> Array:
    return elementwise("sigmoid_backward", _sigmoid_backward, grad, y)


def tanh_backward(grad: Array, y: Array, /) -> Array:
    if grad.size < 1 << 10 and grad.itemsize > 2:
        # Recurrences call it for few elements: three direct calls take half the time of the block machinery.
        result = np.square(y, out=...)
        np.subtract(_constants(y.dtype).one, result, result)
        return np.multiply(result, grad, result)
    return elementwise("tanh_backward", _tanh_backward, grad, y)


def log_sigmoid(x: Array, /) -> Array:
    return elementwise("log_sigmoid", _log_sigmoid, x)


def softplus(x: Array, /, beta: float = 1.0) -> Array:
    if beta == 1:
        return elementwise("softplus", _softplus, x)
    return elementwise(None, partial(_softplus, beta=beta), x)


def leaky_relu(x: Array, /, slope: float = 0.01) -> Array:
    def work(out: Array, x: Array) -> None:
        np.multiply(x, slope, out)
        if 0.0 < slope <= 1.0:
            np.maximum(out, x, out=out)
        else:  # also slope 0: 0 times infinity is NaN
            np.copyto(out, x, where=x > 0)

    return elementwise(None, work, x)


def silu(x: Array, /) -> Array:
    return elementwise("silu", _silu, x)


def silu_backward(grad: Array, x: Array, /) -> Array:
    return elementwise("silu_backward", _silu_backward, grad, x)


def gelu(x: Array, /, approximate: str = "none") -> Array:
    if x.dtype == np.float64 and (found := fuse(GELU, x, approximate)) is not None:
        return found
    return elementwise("gelu", _gelu, x) if _is_exact(approximate) else elementwise("gelu_tanh", _gelu_tanh, x)


def gelu_backward(grad: Array, x: Array, /, approximate: str) -> Array:
    if x.dtype == np.float64 and (found := fuse(GELU_BACKWARD, grad, x, approximate)) is not None:
        return found
    if _is_exact(approximate):
        return elementwise("gelu_backward", _gelu_backward, grad, x)
    return elementwise("gelu_tanh_backward", _gelu_tanh_backward, grad, x)


def _is_exact(approximate: str) -> bool:
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return approximate == "none"


@lru_cache(16)
def _constants(dtype: np.dtype[Any]) -> SimpleNamespace:
    """The kernels' constants as 0-d arrays, which cost a ufunc half the time of Python scalars.

    That time is spent holding the GIL, for which the other threads wait.
    """
    values = {
        "one": 1.0,
        "cubic": -GELU_CUBIC,
        "linear": GELU_LINEAR,
        "cubic_power": -GELU_CUBIC * UNIT,
        "linear_power": GELU_LINEAR * UNIT,
        "cubic_slope": 3.0 * GELU_CUBIC,
        "zero": 0.0,
        "density": 1.0 / math.sqrt(2.0 * math.pi),
    }
    return SimpleNamespace(**{name: np.array(value, dtype) for name, value in values.items()})


@lru_cache(2)
def _tail_constants(dtype: np.dtype[Any]) -> SimpleNamespace:
    """The constants of :func:`_tail_above`, as 0-d arrays; ``leading`` masks the leading half of the bits."""
    single = dtype.itemsize == 4
    above, below = TAIL_32 if single else _tail_64()
    return SimpleNamespace(
        above=[np.array(c, dtype) for c in reversed(above)],
        below=[np.array(c, dtype) for c in reversed(below[:-1])],
        minus_half=np.array(-0.5, dtype),
        minus_half_power=np.array(-0.5 * UNIT, dtype),
        limit=np.array(14.6 if single else 39.0, dtype),
        bits=np.dtype(np.int32 if single else np.int64),
        leading=np.array(-(1 << 12) if single else -(1 << 27), np.int32 if single else np.int64),
    )


def _sigmoid(out: Array, x: Array) -> None:
    one = _constants(out.dtype).one
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, one, out)
    np.divide(one, out, out)


def _sigmoid_backward(out: Array, grad: Array, y: Array) -> None:
    np.subtract(_constants(out.dtype).one, y, out)
    np.multiply(out, y, out)
    np.multiply(out, grad, out)


def _relu_backward(out: Array, grad: Array, y: Array) -> None:
    # On the bits, since infinity times 0 is NaN.
    np.multiply(grad.view(UNSIGNED[out.itemsize]), np.greater(y, 0), out.view(UNSIGNED[out.itemsize]))


def _tanh_backward(out: Array, grad: Array, y: Array) -> None:
    np.multiply(y, y, out)
    np.subtract(_constants(out.dtype).one, out, out)
    np.multiply(out, grad, out)


def _tail(out: Array, x: Array) -> None:
    """``log(1 + exp(-|x|))``."""
    np.abs(x, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.log1p(out, out=out)


def _log_sigmoid(out: Array, x: Array) -> None:
    _tail(out, x)
    np.subtract(np.minimum(x, 0, out=scratch(out)), out, out=out)


def _softplus(out: Array, x: Array, beta: float = 1.0) -> None:
    if beta == 1:
        _tail(out, x)
    else:
        _tail(out, np.multiply(x, beta, out=scratch(out)))
        np.divide(out, beta, out=out)
    line = np.maximum if beta > 0 else np.minimum
    np.add(line(x, 0, out=scratch(out)), out, out=out)


def _silu(out: Array, x: Array) -> None:
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, _constants(out.dtype).one, out)
    np.divide(x, out, out)


def _silu_backward(out: Array, grad: Array, x: Array) -> None:
    one, gate = _constants(out.dtype).one, scratch(out)
    _sigmoid(gate, x)
    np.subtract(one, gate, out)
    np.multiply(out, x, out)
    np.add(out, one, out)
    np.multiply(out, gate, out)
    np.multiply(out, grad, out)


def _tail_above(out: Array, x: Array) -> tuple[Array, Array]:
    """``y = |x|`` and ``exp(-y**2 / 2)``, which times ``out`` is the normal distribution's upper tail at ``y``."""
    c, power, rest = _tail_constants(out.dtype), scratch(out, 1), scratch(out, 2)
    y = np.abs(x, scratch(out))
    np.minimum(y, c.limit, out=y)
    # The leading bits of y have an exact square, so the large exponent is not rounded.
    np.bitwise_and(y.view(c.bits), c.leading, power.view(c.bits))
    np.subtract(y, power, rest)
    np.add(y, power, out)
    np.multiply(rest, out, rest)
    np.multiply(rest, c.minus_half_power, rest)
    POWER(rest, rest)
    np.square(power, power)
    np.multiply(power, c.minus_half, power)
    np.exp(power, power)
    np.multiply(power, rest, power)
    np.multiply(y, c.above[0], out)
    np.add(out, c.above[1], out)
    np.add(y, c.below[0], rest)  # the denominator is monic
    for total, coefficients in ((out, c.above[2:]), (rest, c.below[1:])):
        for coefficient in coefficients:
            np.multiply(total, y, total)
            np.add(total, coefficient, total)
    np.divide(out, rest, out)
    return y, power


def _gelu(out: Array, x: Array) -> None:
    """``max(x, 0) - |x| tail``, which does not cancel below 0."""
    y, power = _tail_above(out, x)
    np.multiply(out, power, out)
    np.multiply(out, y, out)
    np.maximum(x, _constants(out.dtype).zero, out=power)
    np.subtract(power, out, out)


def _gelu_backward(out: Array, grad: Array, x: Array) -> None:
    """``t = tail - |x| density`` below 0 and ``1 - t`` above, which is ``max(s, 0) - s t`` with the sign ``s``."""
    y, power = _tail_above(out, x)
    c = _constants(out.dtype)
    np.multiply(y, c.density, y)
    np.subtract(out, y, out)
    np.multiply(out, power, out)
    np.copysign(c.one, x, power)
    np.multiply(out, power, out)
    np.maximum(power, c.zero, out=power)
    np.subtract(power, out, out)
    np.multiply(out, grad, out)


def _gelu_tanh(out: Array, x: Array) -> None:
    c = _constants(out.dtype)
    np.square(x, out)
    np.multiply(out, c.cubic, out)
    np.subtract(out, c.linear, out)
    np.multiply(out, x, out)
    np.exp(out, out)
    np.add(out, c.one, out)
    np.divide(x, out, out)


def _gelu_tanh_backward(out: Array, grad: Array, x: Array) -> None:
    """With the gate ``sigmoid(u)`` and ``e = exp(-u)``: ``grad (1 + e + x u' e) / (1 + e) ** 2``."""
    inner = np.square(x, out=scratch(out))
    if not np.maximum.reduce(inner, axis=None, initial=0) <= GELU_STEEP**2:
        # Beyond, the derivative is 0 or 1, but the exponential would overflow, and infinity times 0 is NaN.
        x = np.clip(x, -GELU_STEEP, GELU_STEEP, out=scratch(out, 1))
        np.square(x, out=inner)
    c = _constants(out.dtype)
    np.multiply(inner, c.cubic_power, out)
    np.subtract(out, c.linear_power, out)
    np.multiply(out, x, out)
    POWER(out, out)
    np.multiply(inner, c.cubic_slope, inner)
    np.add(inner, c.linear, inner)
    np.multiply(inner, x, inner)
    np.multiply(inner, out, inner)
    np.add(out, c.one, out)
    np.add(inner, out, inner)
    np.square(out, out)
    np.divide(inner, out, out)
    np.multiply(out, grad, out)
