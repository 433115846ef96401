"""Fourier transforms of real numbers; complex numbers are two tensors, their real and imaginary parts.

16-bit floats are computed in float32.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.base.dtypes import int64
from backburn.base.errors import ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.shapes import Shape, check_axes, check_axis
from backburn.ops.rules.tangents import linear_in
from backburn.ops.table import missing, operation
from backburn.ops.types import B, F, I, Q


def _rfft(x: Shape, *, axis: int, **_: Any) -> tuple[Shape, Shape]:
    length = x[check_axis(axis, len(x))]
    if length == 0:
        raise ShapeError(f"axis {axis} has no element to transform")
    result = (*x[:axis], length // 2 + 1, *x[axis + 1 :])
    return result, result


def _irfft(real: Shape, imag: Shape, *, length: int, axis: int, **_: Any) -> Shape:
    check_axis(axis, len(real))
    _check_parts(real, imag)
    if length < 1 or real[axis] != length // 2 + 1:
        raise ShapeError(f"{length} real numbers have {length // 2 + 1} frequencies, and axis {axis} is {real[axis]}")
    return (*real[:axis], length, *real[axis + 1 :])


def _fft(real: Shape, imag: Shape, *, axis: Shape, **_: Any) -> tuple[Shape, Shape]:
    _check_parts(real, imag)
    for a in check_axes(axis, len(real)):
        if real[a] == 0:
            raise ShapeError(f"axis {a} has no element to transform")
    return real, real


def _check_parts(real: Shape, imag: Shape) -> None:
    if real != imag:
        raise ShapeError(f"the real and the imaginary parts differ in shape: {list(real)} and {list(imag)}")


def _spectrum(k: Any, x: Any, axis: int) -> tuple[Any, Any]:
    """All frequencies of real numbers: the second half are conjugates of the first, in descending order."""
    real, imag = k.rfft(x, axis)
    mirrored = [k.flip(slice_axis(k, y, axis, 1, (x.shape[axis] + 1) // 2), (axis,)) for y in (real, imag)]
    return k.concat([real, mirrored[0]], axis), k.concat([imag, k.neg(mirrored[1])], axis)


# ---- gradients ----


def frequency_counts(k: Any, like: Any, length: int, axis: int) -> Any:
    """The number of frequencies that each one stands for: 1 at 0 and at half of an even ``length``, else 2."""
    rank = len(like.shape)
    numbers = k.arange(0, length // 2 + 1, 1, int64)
    alone = k.logical_or(k.equal(numbers, 0), k.equal(k.mul(numbers, 2), length))
    both = k.where(alone, 1.0, k.full(numbers.shape, 2.0, k.dtype(like)))
    return k.reshape(both, tuple(length // 2 + 1 if a == axis else 1 for a in range(rank)))


def fill_parts(k: Any, g: Any) -> list[Any]:
    """The gradients of the real and the imaginary parts, zeros for a missing one."""
    known = g[0] if g[0] is not None else g[1]
    return [k.zeros(known.shape, k.dtype(known)) if part is None else part for part in g]


def grad_rfft(k: Any, g: Any, x_shape: Any, axis: int) -> Any:
    """``n`` times the inverse transform of the gradient, halved where a frequency stands for two."""
    length = x_shape[axis]
    real, imag = fill_parts(k, g)
    share = k.div(float(length), frequency_counts(k, real, length, axis))
    return k.irfft(k.mul(real, share), k.mul(imag, share), length, axis)


def grad_irfft(k: Any, g: Any, length: int, axis: int) -> tuple[Any, Any]:
    """The transform of the gradient over ``n``, twice where a frequency stands for two."""
    real, imag = k.rfft(g, axis)
    share = k.div(frequency_counts(k, g, length, axis), float(length))
    return k.mul(real, share), k.mul(imag, share)


def grad_fft(k: Any, g: Any, axis: Any) -> tuple[Any, Any]:
    """The inverse transform of the gradient times the number of elements, by exchanging the parts."""
    real, imag = fill_parts(k, g)
    imag, real = k.fft(imag, real, axis)
    return real, imag


class FFT(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Discrete Fourier transforms."""

    @operation(kinds="F", shape=_rfft, result=("same", "same"), required=True, differentiable=True)
    def rfft(self, x: F, /, axis: int) -> tuple[F, F]:
        """``sum(x[t] exp(-2 pi i j t / n))`` for the frequencies j from 0 to n // 2: real and imaginary parts.

        n is the length of ``axis``, at least 1.
        """
        return missing("rfft")

    gradient_rule(rfft, x=grad_rfft)
    linear_in(rfft)

    @operation(kinds="F", shape=_irfft, required=True, differentiable=True)
    def irfft(self, real: F, imag: F, /, length: int, axis: int) -> F:
        """The ``length`` real numbers along ``axis`` whose :meth:`rfft` has these real and imaginary parts.

        There are ``length // 2 + 1`` frequencies. The imaginary parts at frequency 0 and, for an even ``length``, at
        the last one are not read: for real numbers they are 0.
        """
        return missing("irfft")

    gradient_rule(irfft, ("real", "imag"), grad_irfft)
    linear_in(irfft)

    @operation(kinds="F", shape=_fft, result=("same", "same"), differentiable=True)
    def fft(self: Any, real: F, imag: F, /, axis: Shape) -> tuple[F, F]:
        """``sum(z[t] exp(-2 pi i j t / n))`` of ``z = real + i imag`` for all n frequencies j, along each of ``axis``.

        n is the length of the axis, at least 1. With the parts exchanged, in the operands and in the results, it is n
        times the inverse.
        """
        dtype = self.dtype(real)
        _fft(real.shape, imag.shape, axis=axis)
        re, im = upcast_half(self, real), upcast_half(self, imag)
        for a in axis:
            (first, second), (third, fourth) = _spectrum(self, re, a), _spectrum(self, im, a)
            re, im = self.sub(first, fourth), self.add(second, third)
        return self.astype(re, dtype), self.astype(im, dtype)

    gradient_rule(fft, ("real", "imag"), grad_fft)
    linear_in(fft)
