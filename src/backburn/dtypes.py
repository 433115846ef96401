"""Data types, for authors of backends: classes, the dtypes themselves, and conversion by name.

>>> from backburn.dtypes import as_dtype, float32, promote
>>> as_dtype("float32") is float32, promote(float32, "int64")
(True, float32)
"""

from backburn.base.dtypes import (
    DTYPES,
    STORAGES,
    BoolDType,
    ComplexDType,
    DType,
    FloatDType,
    IntDType,
    QuantizedDType,
    as_dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    host_dtypes,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    promote,
    qint8,
    uint8,
    uint16,
    uint32,
    uint64,
)

__all__ = [
    "DTYPES", "STORAGES", "BoolDType", "ComplexDType", "DType", "FloatDType", "IntDType", "QuantizedDType",
    "as_dtype", "bfloat16", "bool_", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float16", "float32",
    "float64", "host_dtypes", "int2", "int4", "int8", "int16", "int32", "int64", "promote", "qint8", "uint8",
    "uint16", "uint32", "uint64",
]  # fmt: skip
