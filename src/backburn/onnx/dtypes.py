"""The data types of ONNX, and the tensors that hold them.

Integers of 4 and 2 bits are held by value in tensors of 8 bits, and 8-bit and 4-bit floats by value in float32. The
latter can only be cast to other floats (:data:`BY_VALUE`), because nothing here rounds to them.
"""

from __future__ import annotations

from backburn.base.dtypes import DType, as_dtype

#: ``TensorProto.DataType`` to its name.
NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
#: Integers of fewer than 8 bits: the dtype that holds them, the least and the greatest value.
NARROW = {
    "uint4": ("uint8", 0, 15),
    "int4": ("int8", -8, 7),
    "uint2": ("uint8", 0, 3),
    "int2": ("int8", -2, 1),
}
#: Floats that are held by value in float32.
BY_VALUE = frozenset(name for name in NAMES.values() if name.startswith(("float8", "float4")))
#: Data types that no tensor holds.
WITHOUT = frozenset({"string", "complex64", "complex128"})


def held(number: int) -> DType | None:
    """The dtype of tensors that hold a data type of ONNX; None if none does.

    >>> held(1), held(22), held(8)
    (float32, int8, None)
    """
    name = NAMES.get(number, "string")
    if name in WITHOUT:
        return None
    return as_dtype("float32" if name in BY_VALUE else NARROW.get(name, (name,))[0])


def named(number: int) -> str:
    """The name of a data type of ONNX, for messages."""
    return NAMES.get(number, f"data type {number}")
