"""Bytes of files as arrays, including dtypes that NumPy lacks."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import DTYPES, bfloat16
from backburn.base.errors import DTypeError

#: 8-bit floats: bits of the mantissa, bias of the exponent, and what the highest exponents stand for. (Micikevicius et
#: al. (2022), *FP8 Formats for Deep Learning*, arXiv:2209.05433, for the first two; "fnuz" have no infinity, no
#: negative zero, and one NaN in its place: Noune et al. (2022), *8-bit Numerical Formats for Deep Neural Networks*,
#: arXiv:2206.02915.)
_FLOAT8 = {
    "float8_e4m3fn": (3, 7, "nan"),
    "float8_e5m2": (2, 15, "infinite"),
    "float8_e4m3fnuz": (3, 8, "unsigned zero"),
    "float8_e5m2fnuz": (2, 16, "unsigned zero"),
}
#: Bytes of an element of dtypes that are read as wider ones.
WIDENED = {**dict.fromkeys(_FLOAT8, 1), "float8_e8m0fnu": 1}
#: Bytes of an element of every dtype that is read.
ITEMSIZE = {name: d.itemsize for name, d in DTYPES.items() if d.kind != "quantized"} | WIDENED


def decoded(raw: NDArray[np.uint8], dtype: str, byte_order: str = "little") -> NDArray[Any]:
    """The elements of neighbouring bytes, as a view where NumPy has the dtype.

    bfloat16 is that of ``ml_dtypes`` if installed, else float32; 8-bit floats become float16, and 8-bit powers of two
    float32, without rounding.
    """
    if dtype in WIDENED:
        return _widening(dtype)[raw]
    if dtype == "bool":
        return raw != 0
    if dtype == "bfloat16":
        return _bfloat16(raw.view("<u2" if byte_order == "little" else ">u2"))
    return raw.view(DTYPES[dtype].dtype.newbyteorder("<" if byte_order == "little" else ">"))


def _bfloat16(bits: NDArray[np.uint16]) -> NDArray[Any]:
    try:
        return bits.astype(np.uint16, copy=False).view(bfloat16.dtype)
    except DTypeError:  # without ml_dtypes
        wide = np.zeros(bits.size, np.uint32)
        wide.view(np.uint16)[int(sys.byteorder == "little") :: 2] = bits
        return wide.view(np.float32)


@functools.cache
def _widening(dtype: str) -> NDArray[Any]:
    """The values of all 256 bytes."""
    if dtype == "float8_e8m0fnu":
        return np.array([2.0**exponent for exponent in range(-127, 128)] + [np.nan], np.float32)
    mantissa, bias, highest = _FLOAT8[dtype]
    magnitudes = np.empty(128)
    for code in range(128):
        exponent, rest = divmod(code, 2**mantissa)
        magnitudes[code] = (rest + (2**mantissa if exponent else 0)) * 2.0 ** (max(exponent, 1) - bias - mantissa)
    if highest == "nan":
        magnitudes[127] = np.nan
    elif highest == "infinite":
        magnitudes[124:] = np.inf, np.nan, np.nan, np.nan
    both = np.concatenate([magnitudes, -magnitudes]).astype(np.float16)
    if highest == "unsigned zero":
        both[128] = np.nan
    return both
