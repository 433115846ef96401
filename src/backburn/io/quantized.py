"""Quantized tensors as named arrays: stored values, steps and zero points, and a table of scheme and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import QuantizedDType, as_dtype
from backburn.base.errors import BackburnError, FileFormatError
from backburn.ops.bodies.float8 import magnitudes
from backburn.ops.bodies.quantized import scale_shape
from backburn.tensor.classes import QuantizedTensor
from backburn.tensor.core.host import quantized_from_parts, quantized_parts


def part_names(name: str) -> tuple[str, str, str]:
    """The names of the saved parts of a quantized tensor: values, steps and zero points."""
    return name, f"{name}.scale", f"{name}.zero"


def parts_of(name: str, x: QuantizedTensor, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Put the parts of ``x`` into ``arrays``; return its scheme and shape."""
    for part, array in zip(part_names(name), quantized_parts(x), strict=True):
        if part in arrays:
            raise FileFormatError(f"{part!r} is both a tensor and a part of {name!r}")
        if array is not None:
            arrays[part] = array
    return {"scheme": x.dtype.name, "shape": list(x.shape)}


def of_parts(name: str, about: Mapping[str, Any], arrays: dict[str, Any]) -> QuantizedTensor:
    """The quantized tensor of its parts, taken out of ``arrays``. Raises :class:`FileFormatError` for unfit ones."""
    try:
        return _of_parts(name, about, arrays)
    except (BackburnError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the quantized tensor {name!r} is damaged ({error})") from error


def _of_parts(name: str, about: Mapping[str, Any], arrays: dict[str, Any]) -> QuantizedTensor:
    scheme, lengths = as_dtype(about["scheme"]), about["shape"]
    if not isinstance(scheme, QuantizedDType):
        raise FileFormatError(f"{scheme} is no scheme")
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise FileFormatError(f"{lengths!r} is no shape")
    shape = tuple(lengths)
    values, scale, zero = (arrays.pop(part, None) for part in part_names(name))
    if values is None or scale is None:
        raise FileFormatError("its values or its steps are missing")
    steps = scale_shape(shape, scheme)
    stored = (*(shape or (1,))[:-1], scheme.bytes_for((shape or (1,))[-1])) if scheme.is_packed else shape
    expected = (stored, scheme.stored.name, steps, scheme.scale.name)
    if (values.shape, values.dtype.name, scale.shape, scale.dtype.name) != expected:
        raise FileFormatError(f"its parts do not fit {scheme} and the shape {list(shape)}")
    if not _are_values(values, scheme):
        raise FileFormatError(f"its values are not all of the range {scheme.limits} of {scheme}")
    if (zero is None) != (scheme.mode == "symmetric") or (zero is not None and not _are_zeros(zero, steps, scheme)):
        raise FileFormatError(f"its zero points do not fit {scheme} and the shape {list(shape)}")
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise FileFormatError(f"its steps, of {scheme} and the shape {list(shape)}, are not all positive numbers")
    return quantized_from_parts(values, scale, zero, scheme, shape)


def _are_values(values: NDArray[Any], scheme: QuantizedDType) -> bool:
    """Whether stored values are numbers of the scheme, which leaves some bits out; no array of them is expanded."""
    signed = values.view(np.int8)
    if scheme.is_float:  # NaN and infinities follow the largest number, of either sign
        count = len(magnitudes(scheme.storage.name))
        return bool(signed.max(initial=0) < count and values.max(initial=0) < 128 + count)
    if scheme.mode == "affine":
        return True
    least = scheme.limits[0] * 2 ** (8 - scheme.bits)  # of a byte whose highest bits are the value
    shifted = (values << i if i else values for i in range(0, 8, scheme.bits))
    return all(part.view(np.int8).min(initial=0) >= least for part in shifted)


def _are_zeros(zero: NDArray[Any], steps: tuple[int, ...], scheme: QuantizedDType) -> bool:
    """Whether an array holds zero points: one for each step, of the stored values' range."""
    least, most = scheme.limits
    dtype = "uint8" if scheme.storage.name == "uint8" else "int8"
    return zero.shape == steps and zero.dtype.name == dtype and bool(((zero >= least) & (zero <= most)).all())
