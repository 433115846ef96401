"""NumPy: activation functions, as kernels that fill a block (see :mod:`backburn_numpy.blocks`)."""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.introspect import opt_func_info

from backburn.backend.activate import GELU_CUBIC, GELU_LINEAR
from backburn.base.errors import ArgumentError
from backburn_numpy.blocks import elementwise, scratch
from backburn_numpy.special import erf

Array = Any


def _vectorized(name: str) -> bool:
    """Whether NumPy has vector code of this processor for a function of float32."""
    targets = opt_func_info(func_name=f"^{name}$").get(name, {}).get("ff", {})
    return not targets.get("current", "baseline").startswith("baseline")


#: An exponential function, and the logarithm of e to its base. Vectorized, powers of 2 take half the time.
POWER, UNIT = (np.exp2, math.log2(math.e)) if _vectorized("exp2") else (np.exp, 1.0)

#: From here on the slope of GELU's tanh form is 0 or 1 up to 1e-26; the square of its exponential still is a float64.
GELU_STEEP = 9.0


def relu(x: Array, /) -> Array:
    return np.maximum(x, 0, out=...)


def sigmoid(x: Array, /) -> Array:
    return elementwise(_sigmoid, x)


def sigmoid_backward(grad: Array, y: Array, /) -> Array:
    return elementwise(_sigmoid_backward, grad, y)


def log_sigmoid(x: Array, /) -> Array:
    return elementwise(_log_sigmoid, x)


def softplus(x: Array, /, beta: float = 1.0) -> Array:
    return elementwise(lambda out, x: _softplus(out, x, beta), x)


def silu(x: Array, /) -> Array:
    return elementwise(_silu, x)


def silu_backward(grad: Array, x: Array, /) -> Array:
    return elementwise(_silu_backward, grad, x)


def gelu(x: Array, /, approximate: str = "none") -> Array:
    return elementwise({"none": _gelu, "tanh": _gelu_tanh}[_form(approximate)], x)


def gelu_backward(grad: Array, x: Array, /, approximate: str) -> Array:
    return elementwise({"none": _gelu_backward, "tanh": _gelu_tanh_backward}[_form(approximate)], grad, x)


def _form(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return approximate


@lru_cache(16)
def _constants(dtype: np.dtype[Any]) -> SimpleNamespace:
    """The kernels' constants as 0-d arrays, which take a ufunc half the time that Python's numbers do.

    That time is spent under the interpreter's lock, for which the other threads wait.
    """
    values = {
        "one": 1.0,
        "cubic": -GELU_CUBIC,
        "linear": GELU_LINEAR,
        "cubic_power": -GELU_CUBIC * UNIT,
        "linear_power": GELU_LINEAR * UNIT,
        "cubic_slope": 3.0 * GELU_CUBIC,
    }
    return SimpleNamespace(**{name: np.array(value, dtype) for name, value in values.items()})


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


def _tail(out: Array, x: Array) -> None:
    """``log(1 + exp(-|x|))``."""
    np.abs(x, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.log1p(out, out=out)


def _log_sigmoid(out: Array, x: Array) -> None:
    _tail(out, x)
    np.subtract(np.minimum(x, 0, out=scratch(out)), out, out=out)


def _softplus(out: Array, x: Array, beta: float) -> None:
    if beta != 1:
        x = np.multiply(x, beta, out=scratch(out, 1))
    _tail(out, x)
    np.add(np.maximum(x, 0, out=scratch(out)), out, out=out)
    if beta != 1:
        np.divide(out, beta, out=out)


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


def _distribution(out: Array, x: Array) -> None:
    """The normal distribution function; through erf, which takes a quarter of the time of erfc."""
    erf(np.multiply(x, math.sqrt(0.5), out=scratch(out)), out)
    np.multiply(out, 0.5, out=out)
    np.add(out, 0.5, out=out)


def _gelu(out: Array, x: Array) -> None:
    _distribution(out, x)
    np.multiply(out, x, out=out)


def _gelu_backward(out: Array, grad: Array, x: Array) -> None:
    _distribution(out, x)
    density = np.square(x, out=scratch(out))
    np.multiply(density, -0.5, out=density)
    np.exp(density, out=density)
    np.multiply(density, 1.0 / math.sqrt(2.0 * math.pi), out=density)
    np.multiply(density, x, out=density)
    np.add(out, density, out=out)
    np.multiply(out, grad, out=out)


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
    """With ``e = exp(-u)``, where the gate is ``sigmoid(u)``: ``grad (1 + e + x u' e) / (1 + e) ** 2``."""
    inner = np.square(x, out=scratch(out))
    if not np.maximum.reduce(inner, axis=None, initial=0) <= GELU_STEEP**2:
        # Beyond, the slope is 0 or 1, but powers would overflow, and infinity times 0 is NaN.
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
