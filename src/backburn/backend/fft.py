"""Fourier transforms of real numbers; complex numbers are two tensors, their real and imaginary parts.

16-bit floats are computed in float32.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.shapes import Shape, check_axes, check_axis
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import part
from backburn.base.errors import ShapeError


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
    """All frequencies of real numbers: those beyond half are the conjugates of those below, in descending order."""
    real, imag = k.rfft(x, axis)
    mirrored = [k.flip(part(k, y, axis, 1, (x.shape[axis] + 1) // 2), (axis,)) for y in (real, imag)]
    return k.concat([real, mirrored[0]], axis), k.concat([imag, k.neg(mirrored[1])], axis)


class Fourier(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Discrete Fourier transforms."""

    @operation(kinds="F", shape=_rfft, result=("same", "same"), required=True, differentiable=True)
    def rfft(self, x: F, /, axis: int) -> tuple[F, F]:
        """``sum(x[t] exp(-2 pi i j t / n))`` for the frequencies j from 0 to n // 2: real and imaginary parts.

        n is the length of ``axis``, at least 1.
        """
        return missing("rfft")

    @operation(kinds="F", shape=_irfft, required=True, differentiable=True)
    def irfft(self, real: F, imag: F, /, length: int, axis: int) -> F:
        """The ``length`` real numbers along ``axis`` whose :meth:`rfft` has these real and imaginary parts.

        There are ``length // 2 + 1`` frequencies. Imaginary parts where real numbers have none, at frequency 0 and for
        an even ``length`` at the last, are not read.
        """
        return missing("irfft")

    @operation(kinds="F", shape=_fft, result=("same", "same"), differentiable=True)
    def fft(self: Any, real: F, imag: F, /, axis: Shape) -> tuple[F, F]:
        """``sum(z[t] exp(-2 pi i j t / n))`` of ``z = real + i imag`` for all n frequencies j, along each of ``axis``.

        n is the length of the axis, at least 1. With the parts exchanged, in the operands and in the results, it is n
        times the inverse.
        """
        dtype = self.dtype(real)
        _fft(real.shape, imag.shape, axis=axis)  # type: ignore[attr-defined]
        re, im = widened(self, real), widened(self, imag)
        for a in axis:
            (first, second), (third, fourth) = _spectrum(self, re, a), _spectrum(self, im, a)
            re, im = self.sub(first, fourth), self.add(second, third)
        return self.cast(re, dtype), self.cast(im, dtype)
