"""Quantized tensors as named arrays: stored values, steps and zero points, and a table of scheme and shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import DType, QuantizedDType, as_dtype
from backburn.base.errors import BackburnError, FileFormatError
from backburn.base.foreign import quoted
from backburn.ops.bodies.float8 import magnitudes
from backburn.ops.bodies.quantized import scale_shape
from backburn.tensor.classes import QuantizedTensor
from backburn.tensor.core.host import quantized_from_parts, quantized_parts

#: The most characters of a scheme's name.
_LONGEST_NAME = 200
#: Stored values, steps, and zero points or None, as arrays.
Parts: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]


@dataclass(frozen=True)
class PartOfQuantized:
    """The stored values of a quantized tensor, its steps or its zero points, copied to the host when they are read."""

    whole: QuantizedTensor
    number: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def read(self) -> NDArray[Any]:
        """The values."""
        found: NDArray[Any] = quantized_parts(self.whole)[self.number]
        return found


def part_names(name: str) -> tuple[str, str, str]:
    """The names of the saved parts of a quantized tensor: values, steps and zero points."""
    return name, f"{name}.scale", f"{name}.zero"


def part_types(scheme: QuantizedDType, shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], DType]]:
    """The shapes and dtypes of the parts of a quantized tensor. Raises if the scheme does not fit the shape."""
    steps = scale_shape(shape, scheme)
    stored = (*(shape or (1,))[:-1], scheme.bytes_for((shape or (1,))[-1])) if scheme.is_packed else shape
    types: list[tuple[tuple[int, ...], DType]] = [(stored, scheme.stored), (steps, scheme.scale)]
    if scheme.has_zero:
        types.append((steps, as_dtype("uint8" if scheme.storage.name == "uint8" else "int8")))
    return types


def parts_of(name: str, x: QuantizedTensor, arrays: dict[str, Any]) -> dict[str, Any]:
    """Put the parts of ``x`` into ``arrays``; return its scheme and shape."""
    scheme: Any = x.dtype
    types = part_types(scheme, x.shape)
    for number, (part, (shape, dtype)) in enumerate(zip(part_names(name), types, strict=False)):
        if part in arrays:
            raise FileFormatError(f"{part!r} is both a tensor and a part of {name!r}")
        arrays[part] = PartOfQuantized(x, number, dtype, shape)
    return {"scheme": scheme.name, "shape": list(x.shape)}


def scheme_and_shape(about: Any) -> tuple[QuantizedDType, tuple[int, ...]]:
    """The scheme and the shape that a file names. Raises backburn's and Python's errors for anything else."""
    name, lengths = about["scheme"], about["shape"]
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise FileFormatError(f"{name!r:.100} is not a scheme")
    scheme = as_dtype(name)
    if not isinstance(scheme, QuantizedDType):
        raise FileFormatError(f"{scheme} is not a scheme")
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths):
        raise FileFormatError(f"{lengths!r:.100} is not a shape")
    return scheme, tuple(lengths)


def of_parts(name: str, about: Mapping[str, Any], arrays: dict[str, Any]) -> QuantizedTensor:
    """The quantized tensor from its parts, removed from ``arrays``. Raises :class:`FileFormatError` for unfit ones."""
    try:
        scheme, shape = scheme_and_shape(about)
        parts = [arrays.pop(part, None) for part in part_names(name)]
        if parts[0] is None or parts[1] is None:
            raise FileFormatError("its values or its steps are missing")
        check_types([None if x is None else (x.shape, x.dtype.name) for x in parts], scheme, shape)
        check_values((parts[0], parts[1], parts[2]), scheme)
        made: QuantizedTensor = quantized_from_parts(parts[0], parts[1], parts[2], scheme, shape)
        return made
    except (BackburnError, KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the quantized tensor {quoted(name)} is damaged ({error})") from error


def check_types(found: list[Any], scheme: QuantizedDType, shape: tuple[int, ...]) -> None:
    """Raise :class:`FileFormatError` unless the parts, None for a missing one, have the scheme's shapes and dtypes."""
    expected: list[Any] = [(lengths, dtype.name) for lengths, dtype in part_types(scheme, shape)]
    if found[:2] != expected[:2]:
        raise FileFormatError(f"its parts do not fit {scheme} and the shape {list(shape)}")
    if found[2:] != (expected[2:] or [None]):
        raise FileFormatError(f"its zero points do not fit {scheme} and the shape {list(shape)}")


def check_values(parts: Parts, scheme: QuantizedDType) -> None:
    """Raise :class:`FileFormatError` for values, steps or zero points that the scheme cannot have.

    :class:`DTypeError` for steps in bfloat16 if the host lacks that dtype.
    """
    values, scale, zero = parts
    if scale.dtype != scheme.scale.dtype:
        raise FileFormatError(f"its steps are {scale.dtype}, and those of {scheme} are {scheme.scale}")
    if not _are_values(values, scheme):
        raise FileFormatError(f"its values are not all in the range {scheme.limits} of {scheme}")
    least, most = scheme.limits
    if zero is not None and not ((zero >= least) & (zero <= most)).all():
        raise FileFormatError(f"its zero points are not all in the range {scheme.limits} of {scheme}")
    fit = np.isfinite(scale) if scheme.mode == "full" else np.isfinite(scale) & (scale > 0)
    if not fit.all():
        kind = "finite" if scheme.mode == "full" else "positive"
        raise FileFormatError(f"its steps, of {scheme}, are not all {kind} numbers")


def _are_values(values: NDArray[Any], scheme: QuantizedDType) -> bool:
    """Whether stored values are valid in the scheme, which does not use all codes; packed values stay packed."""
    signed = values.view(np.int8)
    if scheme.is_float:  # NaN and infinities follow the largest number of either sign
        count = len(magnitudes(scheme.storage.name))
        return bool(signed.max(initial=0) < count and values.max(initial=0) < 128 + count)
    if scheme.mode != "symmetric":
        return True
    least = scheme.limits[0] * 2 ** (8 - scheme.bits)  # of a byte that has the value in its highest bits
    shifted = (values << i if i else values for i in range(0, 8, scheme.bits))
    return all(part.view(np.int8).min(initial=0) >= least for part in shifted)
