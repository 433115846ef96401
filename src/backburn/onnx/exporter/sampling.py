"""Resizing, sampling on grids and Fourier transforms in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backburn.onnx.exporter.mappings import mapping
from backburn.onnx.exporter.recorder import Recorder, Value

#: The attributes of ``Resize`` by mode.
_RESIZED: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75},
}


@mapping("interpolate")
def _interpolate(w: Recorder, x: Value, /, size: Sequence[int], mode: str, align_corners: bool) -> Any:
    attributes: dict[str, Any] | None = _RESIZED.get(mode)
    if attributes is None or x.dtype.bits < 32 or 1 in size or (mode == "cubic" and len(size) != 2):
        return NotImplemented
    if align_corners:
        attributes = {**attributes, "coordinate_transformation_mode": "align_corners"}
    return w.node("Resize", x, None, None, [*x.shape[:2], *size], **attributes)


@mapping("grid_sample")
def _grid_sample(w: Recorder, x: Value, grid: Value, /, mode: str, padding: str, align_corners: bool) -> Any:
    if len(x.shape) != 4 or mode == "nearest":  # the operator breaks ties differently
        return NotImplemented
    return w.node("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=int(align_corners))


def _parts(w: Recorder, found: str) -> list[str]:
    """The real and the imaginary parts, which are stored along the last axis."""
    return [w.node("Gather", found, np.asarray(i, np.int64), axis=-1) for i in range(2)]


@mapping("rfft")
def _rfft(w: Recorder, x: Value, /, axis: int) -> Any:
    place = np.asarray(axis, np.int64)
    return _parts(w, w.node("DFT", w.node("Unsqueeze", x, [-1]), None, place, onesided=1))


@mapping("irfft")
def _irfft(w: Recorder, real: Value, imag: Value, /, length: int, axis: int) -> Any:
    """The other half of the frequencies is the conjugate of this one, reversed."""
    count = (length - 1) // 2
    both = w.node("Concat", *(w.node("Unsqueeze", part, [-1]) for part in (real, imag)), axis=-1)
    others = w.node("Slice", both, [count], [0], [axis], [-1])
    others = w.node("Mul", others, np.array([1.0, -1.0], real.dtype.dtype))
    whole = w.node("Concat", both, others, axis=axis) if count else both
    return _parts(w, w.node("DFT", whole, None, np.asarray(axis, np.int64), inverse=1))[0]
