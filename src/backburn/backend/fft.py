"""Fourier transforms of real numbers; complex numbers are two tensors, their real and imaginary parts.

16-bit floats are computed in float32.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.kinds import Kinds
from backburn.backend.shapes import Shape, check_axis
from backburn.backend.table import missing, operation
from backburn.backend.types import B, F, I, Q
from backburn.base.errors import ShapeError


def _rfft(x: Shape, *, axis: int, **_: Any) -> tuple[Shape, Shape]:
    length = x[check_axis(axis, len(x))]
    if length == 0:
        raise ShapeError(f"axis {axis} has no element to transform")
    result = (*x[:axis], length // 2 + 1, *x[axis + 1 :])
    return result, result


def _irfft(real: Shape, imag: Shape, *, length: int, axis: int, **_: Any) -> Shape:
    check_axis(axis, len(real))
    if real != imag:
        raise ShapeError(f"the real and the imaginary parts differ in shape: {list(real)} and {list(imag)}")
    if length < 1 or real[axis] != length // 2 + 1:
        raise ShapeError(f"{length} real numbers have {length // 2 + 1} frequencies, and axis {axis} is {real[axis]}")
    return (*real[:axis], length, *real[axis + 1 :])


class Fourier(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """Discrete Fourier transforms along an axis."""

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
