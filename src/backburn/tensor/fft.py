"""``backburn.fft``: Fourier transforms with complex results or operands, as in the Array API's extension.

Transforms run along one ``axis`` (by default the last), which is truncated or zero-padded to ``n`` first; those with an
n in their name run along ``axes`` (by default all, or the last ones where lengths ``s`` are given). ``norm`` says where
the factor 1/n goes: ``"backward"`` to the inverse, ``"forward"`` to the transform, ``"ortho"`` as its square root to
both. Real operands are accepted; integers become the default float dtype, and 16-bit floats float32. All functions have
gradients of any order. Raises :class:`AxisError` for an axis that does not exist, :class:`ArgumentError` for an invalid
``norm`` or length, :class:`ShapeError` for an empty axis, and :class:`Unsupported` on backends without complex tensors
(:mod:`backburn.fourier` has transforms of pairs of real tensors).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from backburn.backend.contract import AnyBackend
from backburn.base.dtypes import complex_of
from backburn.base.errors import ArgumentError
from backburn.hints import lookups
from backburn.tensor.complex_numbers import conj
from backburn.tensor.core.complex_numbers import check_supported
from backburn.tensor.core.defaults import BackendLike, as_backend, given_backend
from backburn.tensor.core.dispatch import (
    call,
    create,
    float_operand,
    inexact_operand,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axes_of, axis_of, integers_of, number, one_of
from backburn.tensor.fourier import NORMS, Axes, each_axis, normalize, resize
from backburn.tensor.windows import float_dtype, points

if TYPE_CHECKING:
    from backburn.tensor.classes import ComplexTensor, FloatTensor, Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.fft", __all__)


T = TypeVar("T", bound="Tensor")
#: The norm with which the inverse transform has the factor of the transform with another norm.
_EXCHANGED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


# ---- transforms ----


def _operand(name: str, x: Any, real: bool = False) -> Any:
    """A float or complex operand (only float if ``real``) of at least 32 bits, on a backend with complex tensors."""
    y = upcast_half(float_operand(name, x) if real else inexact_operand(name, x))
    check_supported(name, y.backend, y.dtype if y.dtype.kind == "complex" else complex_of(y.dtype))
    return y


def _parts(x: Any) -> tuple[Any, Any]:
    if x.dtype.kind == "complex":
        return call("real", x), call("imag", x)
    return x, create("zeros", x.backend, shape=x.shape, dtype=x.dtype)


def _transform(name: str, x: Any, axes: Sequence[tuple[int, int]], norm: str, inverse: bool = False) -> Any:
    """The transform along axes with their lengths, or its inverse, which swaps the real and imaginary parts."""
    one_of(name, "norm", norm, NORMS, of=(x,))
    for along, length in axes:
        x = resize(x, length, along)
    re, im = _parts(x)
    found = call("fft", *((im, re) if inverse else (re, im)), axis=tuple(sorted(along for along, _ in axes)))
    count = math.prod(length for _, length in axes)
    return normalize(name, call("complex", *(found[::-1] if inverse else found)), count, norm, 0.0, inverse)


def _along_one(name: str, x: Any, n: int | None, axis: int, norm: str, inverse: bool = False) -> Any:
    z = _operand(name, x)
    along = axis_of(name, z, axis)
    return _transform(name, z, [(along, points(name, "n", n, z.shape[along]))], norm, inverse)


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> ComplexTensor:
    """The Fourier transform ``sum(x[t] exp(-2 pi i j t / n))`` for all n frequencies j.

    >>> import backburn as bb
    >>> bb.fft.fft(bb.asarray([0.0, 1.0, 0.0, 0.0])).numpy().round(4).tolist()
    [(1+0j), -1j, (-1+0j), 1j]
    """
    return _along_one("fft", x, n, axis, norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> ComplexTensor:
    """The inverse of :func:`fft`.

    >>> import backburn as bb
    >>> bb.fft.ifft(bb.fft.fft(bb.asarray([1j, 2.0]))).tolist()
    [1j, (2+0j)]
    """
    return _along_one("ifft", x, n, axis, norm, True)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> ComplexTensor:
    """The Fourier transform of a real tensor, for the frequencies from 0 to n // 2.

    >>> import backburn as bb
    >>> bb.fft.rfft(bb.asarray([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    return _of_real("rfft", x, n, axis, norm)


def _of_real(name: str, x: Any, n: int | None, axis: int, norm: str) -> Any:
    y = _operand(name, x, real=True)
    one_of(name, "norm", norm, NORMS, of=(x,))
    along = axis_of(name, y, axis)
    length = points(name, "n", n, y.shape[along])
    found = call("complex", *call("rfft", resize(y, length, along), axis=along))
    return normalize(name, found, length, norm, 0.0)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> FloatTensor:
    """The ``n`` real numbers whose :func:`rfft` is ``x``; without ``n`` an even number, ``2 * (frequencies - 1)``.

    Imaginary parts at frequency 0 and, for an even ``n``, at the last frequency are not read: real signals have none.

        >>> import backburn as bb
        >>> bb.fft.irfft(bb.fft.rfft(bb.asarray([1.0, 2.0, 3.0])), n=3).tolist()
        [1.0, 2.0, 3.0]
    """
    return _to_real("irfft", x, n, axis, norm)


def _to_real(name: str, x: Any, n: int | None, axis: int, norm: str) -> Any:
    z = _operand(name, x)
    one_of(name, "norm", norm, NORMS, of=(x,))
    along = axis_of(name, z, axis)
    length = points(name, "n", n, 2 * (z.shape[along] - 1))
    if length < 1:
        raise ArgumentError(f"{name}: n must be given for one frequency. Operand: {describe((x,))}")
    found = call("irfft", *_parts(resize(z, length // 2 + 1, along)), length=length, axis=along)
    return normalize(name, found, length, norm, -1.0, True)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> FloatTensor:
    """The real Fourier transform of a Hermitian-symmetric signal, of which ``x`` is the first half.

    Without ``n`` the signal has an even number of points, ``2 * (points of x - 1)``.

        >>> import backburn as bb
        >>> bb.fft.hfft(bb.asarray([1.0, 1j, 0.0])).tolist()
        [1.0, 3.0, 1.0, -1.0]
    """
    one_of("hfft", "norm", norm, NORMS, of=(x,))
    return _to_real("hfft", conj(inexact_operand("hfft", x)), n, axis, _EXCHANGED[norm])


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> ComplexTensor:
    """The inverse of :func:`hfft`: the first ``n // 2 + 1`` points of the signal with the transform ``x``.

    >>> import backburn as bb
    >>> bb.abs(bb.fft.ihfft(bb.asarray([1.0, 3.0, 1.0, -1.0]))).tolist()
    [1.0, 1.0, 0.0]
    """
    one_of("ihfft", "norm", norm, NORMS, of=(x,))
    return conj(_of_real("ihfft", x, n, axis, _EXCHANGED[norm]))


# ---- along several axes ----


def _each(name: str, x: Any, s: Sequence[int] | None, axes: Axes, norm: str) -> list[tuple[int, int]]:
    """The axes of a transform in the given order, each with its length."""
    last = axes if axes is not None or s is None else tuple(range(-len(integers_of(name, "s", s)), 0))
    return each_axis(name, x, s, last, norm, option="s")


def fftn(x: Tensor, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> ComplexTensor:
    """The Fourier transform along several axes: :func:`fft` along one after the other.

    >>> import backburn as bb
    >>> bb.fft.fftn(bb.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    z = _operand("fftn", x)
    return _transform("fftn", z, _each("fftn", z, s, axes, norm), norm)


def ifftn(x: Tensor, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> ComplexTensor:
    """The inverse of :func:`fftn`.

    >>> import backburn as bb
    >>> bb.fft.ifftn(bb.fft.fftn(bb.asarray([[1.0, 2.0], [3.0, 4j]]))).tolist()
    [[(1+0j), (2+0j)], [(3+0j), 4j]]
    """
    z = _operand("ifftn", x)
    return _transform("ifftn", z, _each("ifftn", z, s, axes, norm), norm, True)


def rfftn(x: Tensor, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> ComplexTensor:
    """The Fourier transform of a real tensor along several axes: :func:`rfft` along the last, :func:`fft` along others.

    ``axes=(-2, -1)`` transforms images.

        >>> import backburn as bb
        >>> bb.fft.rfftn(bb.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    y = _operand("rfftn", x, real=True)
    *others, (last, length) = _each("rfftn", y, s, axes, norm)
    found = _of_real("rfftn", y, length, last, norm)
    return _transform("rfftn", found, others, norm) if others else found


def irfftn(x: Tensor, /, *, s: Sequence[int] | None = None, axes: Axes = None, norm: str = "backward") -> FloatTensor:
    """The real tensor whose :func:`rfftn` is ``x``; without ``s``, of even length along the last axis.

    >>> import backburn as bb
    >>> x = bb.asarray([[1.0, 2.0, 3.0], [3.0, 4.0, 6.0]])
    >>> bb.fft.irfftn(bb.fft.rfftn(x), s=x.shape).numpy().round(4).tolist()
    [[1.0, 2.0, 3.0], [3.0, 4.0, 6.0]]
    """
    z = _operand("irfftn", x)
    *others, (last, length) = _each("irfftn", z, s, axes, norm)
    found = _transform("irfftn", z, others, norm, True) if others else z
    return _to_real("irfftn", found, None if s is None else length, last, norm)


# ---- frequencies ----


def _numbers(name: str, n: int, d: float, start: int, stop: int, dtype: Any, target: AnyBackend) -> Any:
    out_dtype, d = float_dtype(name, dtype, target), number(name, "d", d)
    if d == 0:
        raise ArgumentError(f"{name}: d is the time between samples, and not 0")
    return create(
        "arange", target, start=start / (n * d), stop=(stop - 0.5) / (n * d), step=1 / (n * d), dtype=out_dtype
    )


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor:
    """The frequencies of :func:`fft` for ``n`` points ``d`` apart: from 0 up, then the negative ones.

    >>> import backburn as bb
    >>> bb.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    length, target = points("fftfreq", "n", n), as_backend(given_backend(backend, device))
    half = (length + 1) // 2
    ranges = ((0, half), (half - length, 0))
    return call("concat", [_numbers("fftfreq", length, d, *both, dtype, target) for both in ranges], axis=0)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor:
    """The frequencies of :func:`rfft` for ``n`` points ``d`` apart.

    >>> import backburn as bb
    >>> bb.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    length, target = points("rfftfreq", "n", n), as_backend(given_backend(backend, device))
    return _numbers("rfftfreq", length, d, 0, length // 2 + 1, dtype, target)


def fftshift(x: T, /, *, axes: Axes = None) -> T:
    """``x`` with frequency 0 moved to the middle of ``axes``: one, several, or (by default) all.

    >>> import backburn as bb
    >>> bb.fft.fftshift(bb.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: T, /, *, axes: Axes = None) -> T:
    """The inverse of :func:`fftshift`.

    >>> import backburn as bb
    >>> bb.fft.ifftshift(bb.asarray([-1.0, 0.0, 1.0])).tolist()
    [0.0, 1.0, -1.0]
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: Any, axes: Axes, sign: int) -> Any:
    along = axes_of(name, tensor_operand(name, x), axes)
    return call("roll", x, shift=tuple(sign * (x.shape[a] // 2) for a in along), axis=along)
