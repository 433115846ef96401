"""``backburn.fourier``: Fourier transforms of pairs of real and imaginary parts; short-time transforms, windows.

They need no complex tensors: backends without them have these transforms too, and 16-bit floats are possible. With
complex tensors, use :mod:`backburn.fft`. Transforms run along one ``axis`` (by default the last), which is truncated or
zero-padded to ``n`` first; those with an n in their name run along several axes (by default all), with lengths ``n`` if
given. ``norm`` says where the factor 1/n goes: ``"backward"`` to the inverse, ``"forward"`` to the transform,
``"ortho"`` as its square root to both. Integers become the default float dtype; 16-bit floats are computed in float32.
All functions have gradients. Raises :class:`AxisError` for an axis that does not exist, :class:`ArgumentError` for an
invalid ``norm`` or ``n``, and :class:`ShapeError` for an empty axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backburn.base.errors import ArgumentError, NumericalInstabilityError, ShapeError
from backburn.hints import lookups
from backburn.tensor.core.dispatch import (
    call,
    cast,
    create,
    float_operand,
    promote_operands,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axes_of, axis_of, integers_of, one_of
from backburn.tensor.scan import _slice_axis
from backburn.tensor.windows import blackman_window, hamming_window, hann_window, points

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = [
    "Complex", "blackman_window", "fft", "fftn", "hamming_window", "hann_window", "ifft", "ifftn", "irfft", "irfftn",
    "istft", "rfft", "rfftn", "stft",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.fourier", __all__)


Axes = int | Sequence[int] | None

#: The exponent of n in the factor of the transform, by ``norm``; with that of the inverse it adds up to -1.
NORMS = {"backward": 0.0, "ortho": -0.5, "forward": -1.0}


class Complex(NamedTuple):
    """A complex tensor: its real and its imaginary part."""

    real: FloatTensor
    imag: FloatTensor


def normalize(name: str, x: Any, n: int, norm: str, done: float, inverse: bool = False) -> Any:
    """``x`` times the factor of ``norm``, of which the backend has already applied n to the power ``done``."""
    one_of(name, "norm", norm, NORMS, of=(x,))
    exponent = (-1.0 - NORMS[norm] if inverse else NORMS[norm]) - done
    return x if exponent == 0 else call("mul", x, float(n) ** exponent)


def resize(x: Any, length: int, axis: int) -> Any:
    """``x`` truncated or zero-padded to ``length`` along ``axis``."""
    known = x.shape[axis]
    if known > length:
        return _slice_axis(x, axis, 0, length)
    if known == length:
        return x
    widths = tuple((0, length - known if a == axis else 0) for a in range(x.ndim))
    return call("pad", x, widths=widths, mode="constant", value=0.0)


def _pair(name: str, real: Any, imag: Any) -> tuple[Any, Any]:
    """The parts of a complex operand, which have one shape and dtype."""
    re, im = promote_operands("irfft", tensor_operand(name, real), tensor_operand(name, imag))
    if re.shape != im.shape:
        raise ShapeError(f"{name}: the real and imaginary parts differ in shape. Operands: {describe((real, imag))}")
    return re, im


# ---- transforms ----


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The Fourier transform of a real tensor, for the frequencies from 0 to n // 2.

    >>> import backburn as bb
    >>> real, imag = bb.fourier.rfft(bb.asarray([1.0, 0.0, 0.0, 0.0]))
    >>> real.tolist(), imag.tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """
    y = float_operand("rfft", x)
    along = axis_of("rfft", y, axis)
    length = points("rfft", "n", n, y.shape[along])
    parts = call("rfft", resize(y, length, along), axis=along)
    return Complex(*(normalize("rfft", part, length, norm, 0.0) for part in parts))


def irfft(
    real: Tensor, imag: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
) -> FloatTensor:
    """The ``n`` real numbers with this :func:`rfft`; without ``n`` an even number, ``2 * (frequencies - 1)``.

    >>> import backburn as bb
    >>> bb.fourier.irfft(*bb.fourier.rfft(bb.asarray([1.0, 2.0, 3.0])), n=3).tolist()
    [1.0, 2.0, 3.0]
    """
    re, im = _pair("irfft", real, imag)
    along = axis_of("irfft", re, axis)
    length = points("irfft", "n", n, 2 * (re.shape[along] - 1))
    if length < 1:
        raise ArgumentError(f"irfft: n must be given for one frequency. Operands: {describe((real, imag))}")
    parts = (resize(part, length // 2 + 1, along) for part in (re, im))
    result = call("irfft", *parts, length=length, axis=along)
    return normalize("irfft", result, length, norm, -1.0, True)


def fft(
    real: Tensor,
    imag: Tensor | None = None,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
) -> Complex:
    """The Fourier transform of a complex tensor, for all n frequencies; without ``imag``, of a real one.

    >>> import backburn as bb
    >>> bb.fourier.fft(bb.asarray([0.0, 1.0])).real.tolist()
    [1.0, -1.0]
    """
    return _transform_one("fft", *_parts("fft", real, imag), n, axis, norm)


def _parts(name: str, real: Any, imag: Any) -> tuple[Any, Any]:
    """The parts of a complex operand, whose imaginary part may be missing."""
    if imag is not None:
        return _pair(name, real, imag)
    re = float_operand(name, real)
    return re, create("zeros", re.backend, shape=re.shape, dtype=re.dtype)


def _transform(
    name: str, re: Any, im: Any, axes: Sequence[tuple[int, int]], norm: str, inverse: bool = False
) -> tuple[Any, Any]:
    """The parts of the transform along axes with their lengths, or of its inverse, which swaps all parts."""
    for along, length in axes:
        re, im = (resize(part, length, along) for part in (re, im))
    found = call("fft", *((im, re) if inverse else (re, im)), axis=tuple(sorted(along for along, _ in axes)))
    number = math.prod(length for _, length in axes)
    first, second = (normalize(name, part, number, norm, 0.0, inverse) for part in found)
    return (second, first) if inverse else (first, second)


def ifft(real: Tensor, imag: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The inverse of :func:`fft`.

    >>> import backburn as bb
    >>> bb.fourier.ifft(*bb.fourier.fft(bb.asarray([0.0, 1.0]))).real.tolist()
    [0.0, 1.0]
    """
    return _transform_one("ifft", *_pair("ifft", real, imag), n, axis, norm, True)


def _transform_one(name: str, re: Any, im: Any, n: int | None, axis: int, norm: str, inverse: bool = False) -> Complex:
    """The transform along one axis, or its inverse."""
    along = axis_of(name, re, axis)
    return Complex(*_transform(name, re, im, [(along, points(name, "n", n, re.shape[along]))], norm, inverse))


# ---- along several axes ----


def each_axis(name: str, x: Any, n: Any, axis: Any, norm: str, option: str = "n") -> list[tuple[int, int]]:
    """The axes of a transform in the given order, each with its new length."""
    one_of(name, "norm", norm, NORMS, of=(x,))
    found = list(axes_of(name, x, axis))
    if not found:
        raise ShapeError(f"{name}: there is no axis to transform. Operand: {describe((x,))}")
    if not (axis is None or hasattr(axis, "__index__")):
        found = [axis_of(name, x, a) for a in axis]
    lengths = [None] * len(found) if n is None else integers_of(name, option, n)
    if len(lengths) != len(found):
        raise ArgumentError(
            f"{name}: {option} is a length for each axis, {len(found)}, not {n!r}. Operand: {describe((x,))}"
        )
    return [(a, points(name, f"each {option}", length, x.shape[a])) for a, length in zip(found, lengths, strict=True)]


def _transform_all(
    name: str, re: Any, im: Any, axes: Sequence[tuple[int, int]], norm: str, inverse: bool = False
) -> Complex:
    found = _transform(name, upcast_half(re), upcast_half(im), axes, norm, inverse)
    return Complex(*(cast(part, re.dtype) for part in found))


def rfftn(x: Tensor, /, *, n: Sequence[int] | None = None, axis: Axes = None, norm: str = "backward") -> Complex:
    """The Fourier transform of a real tensor along several axes: :func:`rfft` along the last, :func:`fft` along others.

    ``axis=(-2, -1)`` transforms images.

        >>> import backburn as bb
        >>> spectrum = bb.fourier.rfftn(bb.asarray([[1.0, 2.0], [3.0, 4.0]]))
        >>> spectrum.real.tolist(), spectrum.imag.tolist()
        ([[10.0, -2.0], [-4.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])
    """
    y = float_operand("rfftn", x)
    *others, (last, length) = each_axis("rfftn", y, n, axis, norm)
    found = rfft(upcast_half(y), n=length, axis=last, norm=norm)
    parts = _transform("rfftn", found.real, found.imag, others, norm) if others else found
    return Complex(*(cast(part, y.dtype) for part in parts))


def irfftn(
    real: Tensor, imag: Tensor, /, *, n: Sequence[int] | None = None, axis: Axes = None, norm: str = "backward"
) -> FloatTensor:
    """The real tensor with this :func:`rfftn`; without ``n``, of even length along the last axis.

    >>> import backburn as bb
    >>> x = bb.asarray([[1.0, 2.0, 3.0], [3.0, 4.0, 6.0]])
    >>> bb.fourier.irfftn(*bb.fourier.rfftn(x), n=x.shape).numpy().round(4).tolist()
    [[1.0, 2.0, 3.0], [3.0, 4.0, 6.0]]
    """
    re, im = _pair("irfftn", real, imag)
    *others, (last, length) = each_axis("irfftn", re, n, axis, norm)
    first, second = upcast_half(re), upcast_half(im)
    if others:
        first, second = _transform("irfftn", first, second, others, norm, True)
    return cast(irfft(first, second, n=None if n is None else length, axis=last, norm=norm), re.dtype)


def fftn(
    real: Tensor,
    imag: Tensor | None = None,
    /,
    *,
    n: Sequence[int] | None = None,
    axis: Axes = None,
    norm: str = "backward",
) -> Complex:
    """The Fourier transform of a complex tensor along several axes; without ``imag``, of a real one.

    >>> import backburn as bb
    >>> bb.fourier.fftn(bb.asarray([[1.0, 2.0], [3.0, 4.0]])).real.tolist()
    [[10.0, -2.0], [-4.0, 0.0]]
    """
    re, im = _parts("fftn", real, imag)
    return _transform_all("fftn", re, im, each_axis("fftn", re, n, axis, norm), norm)


def ifftn(
    real: Tensor, imag: Tensor, /, *, n: Sequence[int] | None = None, axis: Axes = None, norm: str = "backward"
) -> Complex:
    """The inverse of :func:`fftn`.

    >>> import backburn as bb
    >>> bb.fourier.ifftn(*bb.fourier.fftn(bb.asarray([[1.0, 2.0], [3.0, 4.0]]))).real.tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    re, im = _pair("ifftn", real, imag)
    return _transform_all("ifftn", re, im, each_axis("ifftn", re, n, axis, norm), norm, True)


# ---- short-time transforms ----


def _window(name: str, window: Any, size: int, win_length: int | None, like: Any) -> Any:
    """The window in the dtype of ``like``, in the middle of ``size`` points; all ones if none is given."""
    length = points(name, "win_length", win_length, size)
    if length > size:
        raise ArgumentError(f"{name}: a window of {length} points is longer than {size}. Operand: {describe((like,))}")
    if window is None:
        found = create("full", like.backend, shape=(length,), value=1.0, dtype=like.dtype)
    else:
        found = cast(float_operand(name, window), like.dtype)
    if found.shape != (length,):
        raise ShapeError(f"{name}: the window has {length} points. Operands: {describe((like, window))}")
    if length == size:
        return found
    before = (size - length) // 2
    return call("pad", found, widths=((before, size - length - before),), mode="constant", value=0.0)


def stft(
    x: Tensor,
    size: int,
    /,
    *,
    hop: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    norm: str = "backward",
) -> Complex:
    """The short-time Fourier transform of a signal along the last axis.

    Each segment has ``size`` points and begins ``hop`` points (by default ``size // 4``) after the one before; it is
    multiplied by ``window``, which has ``win_length`` points (by default ``size``) and is centred and zero-padded. With
    ``center`` the signal is padded by half of ``size`` at both ends, as ``pad_mode`` says (see :func:`backburn.pad`),
    so that segment t is centred at point ``t * hop``. The results have the frequencies in the second-to-last axis and
    the segments in the last.

        >>> import backburn as bb
        >>> real, imag = bb.fourier.stft(bb.ones(8), 4, hop=2, center=False)
        >>> real.shape, real[:, 0].tolist()
        ((3, 3), [4.0, 0.0, 0.0])
    """
    y: Any = float_operand("stft", x)
    size = points("stft", "the size", size)
    hop = points("stft", "hop", hop, max(size // 4, 1))
    last = axis_of("stft", y, -1)
    if center:
        half = size // 2
        widths = (*((0, 0) for _ in range(last)), (half, half))
        y = call("pad", y, widths=widths, mode=pad_mode, value=0.0)
    if y.shape[last] < size:
        raise ShapeError(f"stft: the signal is shorter than a window of {size} points. Operand: {describe((x,))}")
    frames = call("sliding_window", y, size=(size,), stride=(hop,), axis=(last,), dilation=(1,))
    parts = call("rfft", call("mul", frames, _window("stft", window, size, win_length, y)), axis=last + 1)
    order = (*range(last), last + 1, last)
    permuted = (call("permute_dims", part, axes=order) for part in parts)
    return Complex(*(normalize("stft", part, size, norm, 0.0) for part in permuted))


def istft(
    real: Tensor,
    imag: Tensor,
    /,
    *,
    size: int | None = None,
    hop: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    length: int | None = None,
    norm: str = "backward",
) -> FloatTensor:
    """The signal whose :func:`stft` is nearest to this one, by overlap-add of windowed inverse transforms.

    The options are those of :func:`stft`; an odd ``size`` must be given. ``length`` truncates or zero-pads the signal.
    Raises :class:`NumericalInstabilityError` if the windows do not cover all points. (Griffin and Lim, Signal
    estimation from modified short-time Fourier transform, 1984)

        >>> import backburn as bb
        >>> x = bb.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        >>> parts = bb.fourier.stft(x, 4, window=bb.fourier.hann_window(4))
        >>> bb.allclose(bb.fourier.istft(*parts, window=bb.fourier.hann_window(4)), x, atol=1e-5)
        True
    """
    re, im = _pair("istft", real, imag)
    if re.ndim < 2:
        raise ShapeError(f"istft: frequencies and windows need two axes. Operands: {describe((real, imag))}")
    windows, last = re.ndim - 1, re.ndim - 2
    size = points("istft", "size", size, max(2 * (re.shape[last] - 1), 1))
    hop = points("istft", "hop", hop, max(size // 4, 1))
    if re.shape[last] != size // 2 + 1:
        raise ShapeError(
            f"istft: windows of {size} points have {size // 2 + 1} frequencies. Operands: {describe((real, imag))}"
        )
    shape = _window("istft", window, size, win_length, re)
    count = re.shape[windows]
    total = size + hop * (count - 1)
    frames = call("irfft", re, im, length=size, axis=last)
    frames = call(
        "permute_dims", normalize("istft", frames, size, norm, -1.0, True), axes=(*range(last), windows, last)
    )
    options = {"length": (total,), "stride": (hop,), "dilation": (1,)}
    signal = call("overlap_add", call("mul", frames, shape), axis=(last,), **options)
    squares = call("broadcast_to", call("square", shape), shape=(count, size))
    weight = call("overlap_add", squares, axis=(0,), **options)
    start = size // 2 if center else 0
    stop = total - start if length is None else min(total, start + points("istft", "length", length, 1))
    signal, weight = _slice_axis(signal, last, start, stop), _slice_axis(weight, 0, start, stop)
    if weight.size and not weight.min().item() > 1e-11:
        raise NumericalInstabilityError(
            f"istft: a point lies under no window of {size} points, {hop} apart: choose a smaller hop, or a window "
            f"that is 0 nowhere. Operands: {describe((real, imag))}"
        )
    signal = call("div", signal, weight)
    return signal if length is None else resize(signal, length, last)
