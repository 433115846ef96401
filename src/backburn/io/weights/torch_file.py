"""PyTorch's files of tensors, in both formats, read without PyTorch; nothing in them is executed.

Since PyTorch 1.6, a file is an archive: ``data.pkl`` describes the objects, and each storage is a member. Earlier files
are a sequence of pickles (a magic number, a version, sizes of the machine, the objects, the names of the storages) and
then the storages, each after its length. Names of tensors in dicts and lists are joined by dots, as in
``optimizer.state.0.exp_avg``. Objects of other classes are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.base.foreign_files import room
from backburn.io.weights.archive import Member
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.numbers import ITEMSIZE, decoded
from backburn.io.weights.pickles import Foreign, Known, Machine, Stream, key_of, key_text
from backburn.io.weights.stored import Stored, elements, kind_of, nothing

#: The start of files of the older format: a pickle of their magic number.
LEGACY_START = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_VERSION = 1001
_MOST_DEPTH = 50
#: The bytes of memory that count for a visit of a part, besides its path.
_VISIT = 200
_LONGEST_NAME = 1000

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}  # fmt: skip
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "complex64", "complex128",
)  # fmt: skip
_ITEMSIZE = {**ITEMSIZE, "": 1}


@dataclass
class _Storage:
    """Neighbouring elements in a file; bytes if ``dtype`` is empty. In the older format, ``start`` is set at the end.

    ``first`` is the first element of a view of the storage ``whole``.
    """

    dtype: str
    length: int
    start: int = -1
    member: Member | None = None
    first: int = 0
    whole: _Storage | None = None


def description(found: Mapping[str, Member]) -> str | None:
    """The name of the member of an archive that describes PyTorch's objects, if there is one."""
    return next((name for name in found if name == "data.pkl" or name.endswith("/data.pkl")), None)


def read(file: MappedFile, found: Mapping[str, Member], described: str) -> dict[str, Stored]:
    """The tensors of an archive with these members, one of which describes the objects.

    Raises :class:`FileFormatError` for anything but a tree of tensors, and for compressed members.
    """
    packed = next((name for name, member in found.items() if member.is_compressed), None)
    if packed is not None:
        raise FileFormatError(f"{file.where}: {quoted(packed)} is compressed, which PyTorch's files are not")
    prefix = described.removesuffix("data.pkl")
    order = found.get(f"{prefix}byteorder")
    byte_order = "little" if order is None else order.beginning(10).decode("latin-1")
    if byte_order not in ("little", "big"):
        raise FileFormatError(f"{file.where}: its byte order is {quoted(byte_order)}")

    def storage(reference: Any) -> _Storage:
        dtype, key, length, _ = _reference(file, reference)
        member = found.get(f"{prefix}data/{key}")
        if member is None:
            raise FileFormatError(f"{file.where}: the data {quoted(key)} of a tensor are missing")
        if member.size != length * _ITEMSIZE[dtype]:
            raise FileFormatError(
                f"{file.where}: {quoted(member.name)} has {member.size} bytes, and not {length} of {dtype or 'bytes'}"
            )
        return _Storage(dtype, length, member.start, member)

    found[described].check()
    start = found[described].start
    stream = Stream(file, start, start + found[described].length)
    machine = Machine(file.where, _known(file, byte_order), storage, foreign=True)
    return _tensors(file, machine.load(stream), machine)


def read_legacy(file: MappedFile) -> dict[str, Stored]:
    """The tensors of a file of the older format. Raises as :func:`read` does."""
    storages: dict[str, _Storage] = {}

    def storage(reference: Any) -> _Storage | Foreign:
        if isinstance(reference, tuple) and reference and reference[0] == "module":  # the source of a class
            return Foreign("a class")
        dtype, key, length, view = _reference(file, reference)
        whole = storages.setdefault(key, _Storage(dtype, length))
        if (whole.dtype, whole.length) != (dtype, length):
            raise FileFormatError(f"{file.where}: two storages have the name {quoted(key)}")
        if view is None:
            return whole
        if not (isinstance(view, tuple) and len(view) == 3 and all(type(n) is int for n in view[1:])):
            raise FileFormatError(f"{file.where}: a view of the storage {quoted(key)} has no beginning and length")
        _, first, count = view
        if first < 0 or count < 0 or first + count > length:
            raise FileFormatError(f"{file.where}: a view of the storage {quoted(key)} ends beyond it")
        return _Storage(dtype, count, first=first, whole=whole)

    stream = Stream(file, 0, file.size)
    plain = Machine(file.where, {})
    _, version, machine = plain.load(stream), plain.load(stream), plain.load(stream)
    if version != _LEGACY_VERSION or not isinstance(machine, dict):
        raise FileFormatError(f"{file.where}: PyTorch's older format of another version than {_LEGACY_VERSION}")
    byte_order = "little" if machine.get("little_endian", True) else "big"
    reader = Machine(file.where, _known(file, byte_order), storage, foreign=True)
    tree = reader.load(stream)
    keys = plain.load(stream)
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or sorted(keys) != sorted(storages):
        raise FileFormatError(f"{file.where}: the list of storages and the tensors disagree")
    place = stream.place
    for key in keys:
        found = storages[key]
        length = int.from_bytes(file.bytes(place, 8, "a storage"), "little")
        if length != found.length:
            raise FileFormatError(f"{file.where}: the storage {quoted(key)} has two lengths")
        found.start = place + 8
        place = found.start + length * _ITEMSIZE[found.dtype]
        if place > file.size:
            raise FileFormatError(
                f"{file.where}: the storage {quoted(key)} ends beyond the end of the file, which is truncated"
            )
    return _tensors(file, tree, reader)


def _reference(file: MappedFile, reference: Any) -> tuple[str, str, int, Any]:
    """The dtype, the name, the length and the view of a storage that a pickle refers to."""
    if isinstance(reference, tuple) and len(reference) in (5, 6) and reference[0] == "storage":
        kind, key, length = reference[1], reference[2], reference[4]
        is_storage = isinstance(kind, Known) and kind.name.endswith("Storage")
        if is_storage and isinstance(key, str) and type(length) is int and length >= 0:
            return kind.value, key, length, reference[5] if len(reference) == 6 else None
    raise FileFormatError(f"{file.where}: its pickle refers to data in a way that PyTorch's files do not")


def _known(file: MappedFile, byte_order: str) -> dict[str, Known]:
    """The names that a pickle may use."""

    def tensor(storage: Any, first: Any, shape: Any, strides: Any, *rest: Any) -> Stored:
        if len(rest) > 2 and rest[2]:  # conjugated or negated
            raise FileFormatError(f"{file.where}: a tensor with properties, such as conjugated ones, is not read")
        return _tensor(file, storage, first, shape, strides, "", byte_order)

    def typed(
        storage: Any, first: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any, dtype: Any, *rest: Any
    ) -> Stored:
        if not isinstance(dtype, Known) or dtype.make is not None or (rest and rest[0]):
            raise FileFormatError(f"{file.where}: a tensor without a dtype, or with properties, is not read")
        return _tensor(file, storage, first, shape, strides, dtype.value, byte_order)

    def parameter(data: Any, *rest: Any) -> Any:
        return data

    def mapping(*items: Any) -> dict[Any, Any]:
        if not items:
            return {}
        pairs = items[0]
        if isinstance(pairs, dict):
            return pairs
        if not isinstance(pairs, list) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
            raise FileFormatError(f"{file.where}: a dict without pairs of keys and values")
        return {key_of(key): value for key, value in pairs}

    functions: dict[str, Callable[..., Any]] = {
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": typed,
        "torch._utils._rebuild_parameter": parameter,
        "torch._utils._rebuild_parameter_with_state": parameter,
        "collections.OrderedDict": mapping,
        "collections.Counter": mapping,
        "torch.Size": lambda *lengths: lengths[0] if lengths else (),
        "torch.device": lambda *words: None,
    }
    values = {f"torch.{name}": dtype for name, dtype in _STORAGES.items()}
    values |= {"torch.storage.UntypedStorage": ""} | {f"torch.{dtype}": dtype for dtype in _DTYPES}
    return {name: Known(name, make) for name, make in functions.items()} | {
        name: Known(name, value=value) for name, value in values.items()
    }


def _tensor(
    file: MappedFile, storage: Any, first: Any, shape: Any, strides: Any, dtype: str, byte_order: str
) -> Stored:
    """A tensor over a storage, after checking that all its elements are in it."""
    if not isinstance(storage, _Storage) or bool(storage.dtype) == bool(dtype):
        raise FileFormatError(f"{file.where}: a tensor without a storage of its dtype")
    dtype = dtype or storage.dtype
    count = elements(file.where, "a tensor", shape)
    elements(file.where, "the strides of a tensor", strides)
    if type(first) is not int or first < 0 or len(strides) != len(shape):
        raise FileFormatError(f"{file.where}: a tensor without a beginning, or without as many strides as axes")
    last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if count else first - 1
    size = _ITEMSIZE[dtype]
    available = storage.length // (1 if storage.dtype else size)
    if last >= available:
        raise FileFormatError(
            f"{file.where}: a tensor {dtype}{list(shape)} has elements up to {last} of a storage of {available}"
        )
    span = last - first + 1
    places = first * size, span * size
    read = functools.partial(_values, file, storage, places, dtype, tuple(shape), tuple(strides), byte_order)
    check = storage.member.check if storage.member is not None else nothing
    return Stored(tuple(shape), dtype, read, file.where, check, kind=kind_of(dtype))


def _values(
    file: MappedFile,
    storage: _Storage,
    places: tuple[int, int],
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    byte_order: str,
) -> NDArray[Any]:
    whole = storage.whole or storage
    start = whole.start + storage.first * _ITEMSIZE[storage.dtype] + places[0]
    flat = decoded(file.array(start, places[1], "the data of a tensor"), dtype, byte_order)
    steps = tuple(step * flat.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False)


def _tensors(file: MappedFile, tree: Any, machine: Machine) -> dict[str, Stored]:
    """The tensors of a tree of dicts and lists, by the dotted paths to them."""
    if isinstance(tree, Stored):
        raise FileFormatError(f"{file.where}: a single tensor, without a name")
    tensors: dict[str, Stored] = {}
    for name, stored in _leaves(file, tree, "", 0, _Room(room(file.size))):
        if name in tensors:
            raise FileFormatError(f"{file.where}: two tensors have the name {quoted(name)}")
        tensors[name] = stored
    if not tensors and machine.met is not None:
        raise machine.refusal()
    return tensors


class _Room:
    """A budget of memory for names: in a small file, a part that is referenced often may have very many."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Take ``size`` from the budget. Returns whether it sufficed."""
        self.left -= size
        return self.left >= 0


def _leaves(file: MappedFile, tree: Any, path: str, depth: int, left: _Room) -> Iterator[tuple[str, Stored]]:
    """The tensors in a tree, each with its path; a part is visited once per reference, within the budget ``left``."""
    if depth > _MOST_DEPTH or len(path) > _LONGEST_NAME or not left.take(_VISIT + len(path)):
        raise FileFormatError(f"{file.where}: its pickle is nested too deeply, or has too many parts or too long names")
    if isinstance(tree, Stored):
        yield path, tree
        return
    if isinstance(tree, Foreign):
        tree = tree.items
    if isinstance(tree, (dict, list, tuple)):
        entries: Any = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in entries:
            name = key_text(key) if isinstance(tree, dict) else str(key)
            yield from _leaves(file, part, f"{path}.{name}" if path else name, depth + 1, left)
