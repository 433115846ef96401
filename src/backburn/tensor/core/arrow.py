"""Tensors for data frame libraries, through Arrow's C data interface: the protocol ``__arrow_c_array__``.

(https://arrow.apache.org/docs/format/CDataInterface.html, and its PyCapsule interface.) A vector is an array, a matrix
a struct array, which data frames read as columns. The structures are those of the specification; an entry in
:data:`_KEPT` keeps what they point to alive until the consumer calls their ``release``.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from backburn.base.errors import DTypeError, ShapeError
from backburn.tensor.core.host import as_bits, to_host
from backburn.tensor.core.messages import describe

#: Arrow's format letter of each dtype.
FORMATS = {
    "float16": "e", "float32": "f", "float64": "g", "int8": "c", "uint8": "C", "int16": "s", "uint16": "S",
    "int32": "i", "uint32": "I", "int64": "l", "uint64": "L", "bool": "b",
}  # fmt: skip


class _Schema(ctypes.Structure):
    """``struct ArrowSchema``."""


class _Array(ctypes.Structure):
    """``struct ArrowArray``."""


_TAIL = [("dictionary", ctypes.c_void_p), ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p)]
_Schema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_char_p), ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64), ("children", ctypes.POINTER(ctypes.POINTER(_Schema))), *_TAIL,
]  # fmt: skip
_Array._fields_ = [
    ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64), ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))), *_TAIL,
]  # fmt: skip
_Struct = _Schema | _Array

#: The objects that structures point to, by the number in ``private_data``; and the structures in capsules, by address.
_KEPT: dict[int, Any] = {}
_IN_CAPSULES: dict[int, _Struct] = {}
_numbers = itertools.count(1)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]


def _release(struct: _Struct) -> None:
    """Release what a structure points to, its children first."""
    for i in range(struct.n_children):
        child = struct.children[i].contents
        if child.release:
            _release(child)
    struct.release = None
    _KEPT.pop(struct.private_data or 0, None)


def _callback(kind: type[_Struct]) -> Any:
    def release(address: int) -> None:
        _release(kind.from_address(address))

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)


def _destructor(name: bytes, kind: type[_Struct]) -> Any:
    def destroy(capsule: int) -> None:
        address = _pointer_of(capsule, name)
        struct = kind.from_address(address)
        if struct.release:  # no consumer has taken it
            _release(struct)
        _IN_CAPSULES.pop(address, None)

    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)


_RELEASES: dict[type[_Struct], Any] = {kind: _callback(kind) for kind in (_Schema, _Array)}
_DESTRUCTORS = {
    kind: (name, _destructor(name, kind)) for kind, name in ((_Schema, b"arrow_schema"), (_Array, b"arrow_array"))
}


def _made(kind: Any, children: list[Any], kept: Any = None, **fields: Any) -> Any:
    """A structure with children, which is released by :func:`_release`."""
    pointers = (ctypes.POINTER(kind) * len(children))(*map(ctypes.pointer, children))
    number = next(_numbers)
    _KEPT[number] = (pointers, children, kept)
    release = ctypes.cast(_RELEASES[kind], ctypes.c_void_p)
    return kind(n_children=len(children), children=pointers, release=release, private_data=number, **fields)


def _capsule(struct: _Struct) -> Any:
    name, destructor = _DESTRUCTORS[type(struct)]
    address = ctypes.addressof(struct)
    _IN_CAPSULES[address] = struct
    return _new_capsule(address, name, ctypes.cast(destructor, ctypes.c_void_p))


def arrow_array(x: Any) -> tuple[Any, Any]:
    """The capsules of schema and array; see :meth:`backburn.Tensor.__arrow_c_array__`."""
    if x.ndim not in (1, 2):
        raise ShapeError(f"__arrow_c_array__: takes vectors and matrices, not {describe((x,))}")
    if x.dtype.name not in FORMATS:
        raise DTypeError(f"__arrow_c_array__: Arrow has no {x.dtype}: {describe((x,))}; astype('float32') casts it")
    letter = FORMATS[x.dtype.name].encode()
    columns = to_host(x) if x.ndim == 1 else to_host(x).T
    if x.ndim == 1:
        schema, array = _made(_Schema, [], format=letter, name=b"", flags=0), _column(columns)
    else:
        names = [f"column_{i}".encode() for i in range(len(columns))]
        schemas = [_made(_Schema, [], format=letter, name=name, flags=0) for name in names]
        schema = _made(_Schema, schemas, format=b"+s", name=b"", flags=0)
        buffers = (ctypes.c_void_p * 1)(None)
        children = [_column(column) for column in columns]
        array = _made(_Array, children, buffers, length=x.shape[0], n_buffers=1, buffers=buffers)
    return _capsule(schema), _capsule(array)


def _column(values: Any) -> Any:
    """The structure of a host vector."""
    data = as_bits(values) if values.dtype.kind == "b" else values.copy()
    buffers = (ctypes.c_void_p * 2)(None, data.ctypes.data)
    return _made(_Array, [], (data, buffers), length=len(values), n_buffers=2, buffers=buffers)
