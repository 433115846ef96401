"""Fourier transforms and related operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.onnx.dtypes import held
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, fourier, rearrange
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor


def _transformed(x: Any, axis: int, length: int | None, inverse: int, onesided: int) -> Any:
    """The discrete Fourier transform, in float64; the last axis has real and imaginary parts."""
    kind = x.dtype
    if x.shape[-1] not in (1, 2):
        raise ShapeError(f"the last axis has 1 or 2 elements, the parts of a number, not {x.shape[-1]}")
    wide = creation.astype(x, "float64")
    real = wide[..., 0]
    imag = wide[..., 1] if x.shape[-1] == 2 else creation.zeros_like(real)
    if inverse and onesided:
        found: Any = fourier.irfft(real, imag, n=length, axis=axis)
        return creation.astype(shapes.expand_dims(found, -1), kind)
    transform = fourier.ifft if inverse else fourier.fft
    found = transform(real, imag, n=length, axis=axis)
    result: Any = shapes.stack([found[0], found[1]], axis=-1)
    if onesided:
        n = result.shape[axis]
        result = result[tuple(slice(n // 2 + 1) if i == axis else slice(None) for i in range(result.ndim))]
    return creation.astype(result, kind)


@operator("DFT", since=20)
def dft(
    x: Tensor, length: Host | None = None, axis: Host | None = None, /, *, inverse: int = 0, onesided: int = 0, run: Any
) -> Any:
    """The discrete Fourier transform along an axis."""
    return _dft(x, length, -2 if axis is None else int(axis.reshape(())), inverse, onesided, run)


@operator("DFT", since=17)
def _older_dft(
    x: Tensor, length: Host | None = None, /, *, axis: int = 1, inverse: int = 0, onesided: int = 0, run: Any
) -> Any:
    return _dft(x, length, axis, inverse, onesided, run)


def _dft(x: Any, length: Any, axis: int, inverse: int, onesided: int, run: Any) -> Any:
    if length is not None:
        run.check_elements((math.prod(x.shape) // max(x.shape[axis], 1), int(length.reshape(()))))
    axis = axis + x.ndim if axis < 0 else axis
    return _transformed(x, axis, None if length is None else int(length.reshape(())), inverse, onesided)


@operator("STFT")
def stft(
    x: Tensor, step: Host, window: Tensor | None = None, length: Host | None = None, /, *, onesided: int = 1
) -> Any:
    """The Fourier transforms of windows of a signal."""
    hop = int(step.reshape(()))
    size = (
        window.shape[0] if length is None and window is not None else 0 if length is None else int(length.reshape(()))
    )
    if size < 1 or hop < 1:
        raise ShapeError(f"windows have a positive length and step, not {size} and {hop}")
    frames: Any = rearrange.sliding_window(x, size, axis=1, stride=hop)
    frames = shapes.moveaxis(frames, -1, 2)
    if window is not None:
        frames = arithmetic.multiply(frames, shapes.reshape(window, (1, 1, -1, 1)))
    return _transformed(frames, 2, None, 0, onesided)


@operator("MelWeightMatrix")
def mel_weight_matrix(
    bins: Host, length: Host, rate: Host, lower: Host, upper: Host, /, *, output_datatype: int = 1, run: Any
) -> Any:
    """Triangular filters with centres equally spaced on the mel scale, computed on the host."""
    count, spectrum = int(bins.reshape(())), int(length.reshape(())) // 2 + 1
    run.check_elements((spectrum, count))
    mel = [2595 * math.log10(1 + float(f.reshape(())) / 700) for f in (lower, upper)]
    step = (mel[1] - mel[0]) / (count + 2)
    edges = 700 * (10 ** ((np.arange(count + 2) * step + mel[0]) / 2595) - 1)
    places = ((int(length.reshape(())) + 1) * edges // int(rate.reshape(()))).astype(np.int64)
    result = np.zeros((spectrum, count))
    for i in range(count):
        first, centre, last = places[i : i + 3]
        if centre == first:
            result[centre, i] = 1
        else:
            result[first : centre + 1, i] = (np.arange(first, centre + 1) - first) / (centre - first)
        if last > centre:
            result[centre:last, i] = (last - np.arange(centre, last)) / (last - centre)
    kind = held(output_datatype)
    return run.tensor(result.astype("float32" if kind is None else kind.dtype))
