"""Gradient rules: Fourier transforms.

Each transform is the transpose of the other, but for the frequencies that stand for two, j and n - j, of a real signal.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear
from backburn.base.dtypes import int64


def stands_for(k: Any, like: Any, length: int, axis: int) -> Any:
    """How many frequencies each one stands for: 1 at 0 and at half of an even ``length``, else 2."""
    rank = len(like.shape)
    numbers = k.arange(0, length // 2 + 1, 1, int64)
    alone = k.logical_or(k.equal(numbers, 0), k.equal(k.mul(numbers, 2), length))
    both = k.where(alone, 1.0, k.full(numbers.shape, 2.0, k.dtype(like)))
    return k.reshape(both, tuple(length // 2 + 1 if a == axis else 1 for a in range(rank)))


def rfft_gradient(k: Any, g: Any, x_shape: Any, axis: int) -> Any:
    """``n`` times the inverse of the gradient, halved where a frequency stands for two."""
    length = x_shape[axis]
    given = g[0] if g[0] is not None else g[1]
    real, imag = (k.zeros(given.shape, k.dtype(given)) if part is None else part for part in g)
    share = k.div(float(length), stands_for(k, given, length, axis))
    return k.irfft(k.mul(real, share), k.mul(imag, share), length, axis)


def irfft_gradients(k: Any, g: Any, length: int, axis: int) -> tuple[Any, Any]:
    """The transform of the gradient over ``n``, twice where a frequency stands for two."""
    real, imag = k.rfft(g, axis)
    share = k.div(stands_for(k, g, length, axis), float(length))
    return k.mul(real, share), k.mul(imag, share)


def fft_gradients(k: Any, g: Any, axis: Any) -> tuple[Any, Any]:
    """The inverse of the gradient, times the number of elements: by the parts exchanged."""
    given = g[0] if g[0] is not None else g[1]
    real, imag = (k.zeros(given.shape, k.dtype(given)) if part is None else part for part in g)
    imag, real = k.fft(imag, real, axis)
    return real, imag


gradient("rfft", x=rfft_gradient)
gradient("irfft", ("real", "imag"), irfft_gradients)
gradient("fft", ("real", "imag"), fft_gradients)

linear("rfft", "irfft", "fft")
