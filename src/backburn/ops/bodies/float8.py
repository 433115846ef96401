"""8-bit floats as bytes of sign, exponent and mantissa, with the operations of a backend ``k``.

(Micikevicius et al. (2022), *FP8 Formats for Deep Learning*, arXiv:2209.05433.) Only finite values are encoded:
infinities and numbers that are too large become the largest number.
"""

from __future__ import annotations

from typing import Any

from backburn.base.dtypes import LARGEST_FLOAT8, DType, float64, int64, uint8

#: For each format, the number of mantissa bits and the exponent's bias.
FORMATS = {"float8_e4m3fn": (3, 7), "float8_e5m2": (2, 15)}


def magnitudes(name: str) -> list[float]:
    """The values of the bytes 0, 1, ... up to the largest finite one."""
    mantissa, bias = FORMATS[name]
    count = 2**mantissa
    found: list[float] = []
    while not found or found[-1] < LARGEST_FLOAT8[name]:
        exponent, rest = divmod(len(found), count)
        found.append(2.0 ** (max(exponent, 1) - bias - mantissa) * (rest + (count if exponent else 0)))
    return found


def encode(k: Any, x: Any, name: str) -> Any:
    """The bytes of the nearest 8-bit floats of a float64 primitive."""
    codes = k.astype(k.searchsorted(_thresholds(k, name), k.abs(x)), int64)
    return k.astype(
        k.add(k.reshape(codes, x.shape), k.astype(k.mul(k.astype(k.less(x, 0.0), int64), 128), int64)), uint8
    )


def decode(k: Any, codes: Any, name: str, dtype: DType) -> Any:
    """The values of bytes, in ``dtype``; 0 for bytes that are not finite."""
    codes = k.astype(codes, int64)
    places = k.bitwise_and(codes, 127)
    numbers = k.where(k.less(places, len(magnitudes(name))), _magnitudes(k, places, name), 0.0)
    return k.astype(k.where(k.greater(codes, 127), k.neg(numbers), numbers), dtype)


def _magnitudes(k: Any, codes: Any, name: str) -> Any:
    """:func:`magnitudes` of int64 ``codes``, in float64: integers times a power of two, which is exact."""
    mantissa, bias = FORMATS[name]
    exponents = k.bitwise_right_shift(codes, mantissa)
    digits = k.add(k.bitwise_and(codes, 2**mantissa - 1), k.mul(k.minimum(exponents, 1), 2**mantissa))
    whole = k.bitwise_left_shift(digits, k.sub(k.maximum(exponents, 1), 1))
    return k.mul(k.astype(whole, float64), 2.0 ** (1 - bias - mantissa))


def _thresholds(k: Any, name: str) -> Any:
    """The magnitudes above which a number becomes byte ``c + 1`` rather than ``c``; ties go to the even byte."""
    codes = k.arange(0, len(magnitudes(name)) - 1, 1, int64)
    middles = k.mul(k.add(_magnitudes(k, codes, name), _magnitudes(k, k.add(codes, 1), name)), 0.5)
    return k.mul(middles, k.sub(1.0, k.mul(k.astype(k.bitwise_and(codes, 1), float64), 2.0**-53)))
