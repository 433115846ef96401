"""Files in the format of safetensors: the length of a header, the header in JSON, and the bytes of the tensors.

(https://huggingface.co/docs/safetensors.) Tensors of dtypes that NumPy lacks are read too, which the package
``safetensors`` refuses to give to NumPy, and values are not copied.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from numpy.typing import NDArray

from backburn.base.errors import FileFormatError
from backburn.io.safe import FORMAT_VERSION, KEY, MODEL
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.numbers import ITEMSIZE, decoded
from backburn.io.weights.stored import Stored, elements, kind_of

#: The names of the format for dtypes.
DTYPE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_DTYPES = {theirs: ours for ours, theirs in DTYPE_NAMES.items()}
#: The longest header that the format allows, in bytes.
LONGEST_HEADER = 100_000_000
METADATA = "__metadata__"


def looks_like(start: bytes) -> bool:
    """Whether a file that starts so may be of this format."""
    return start[8:9] == b"{"


def read(file: MappedFile) -> dict[str, Stored]:
    """The tensors of a file. Raises :class:`FileFormatError` for a header that does not describe it."""
    length = int.from_bytes(file.bytes(0, 8, "the length of the header"), "little")
    if length > LONGEST_HEADER:
        raise FileFormatError(f"{file.where}: a header of {length} bytes; the format allows {LONGEST_HEADER}")
    header = _header(file, file.bytes(8, length, "the header"))
    _check_metadata(file, header.get(METADATA, {}))
    tensors: dict[str, Stored] = {}
    places: list[tuple[int, int, str]] = []
    for name, about in header.items():
        if name != METADATA:
            start, end, tensors[name] = _stored(file, 8 + length, name, about)
            places.append((start, end, name))
    _check_places(file, sorted(places), file.size - 8 - length)
    return tensors


def _header(file: MappedFile, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise FileFormatError(f"{file.where}: its header has {max(names, key=names.count)!r} twice")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file.where}: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise FileFormatError(f"{file.where}: its header is no table of tensors")
    return header


def _check_metadata(file: MappedFile, metadata: Any) -> None:
    """Check that a file is none of ours that only :func:`~backburn.io.load_model` and its like can read."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FileFormatError(f"{file.where}: its metadata are no table of strings")
    if KEY not in metadata:
        return
    try:
        about = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file.where}: the metadata under {KEY!r} are no JSON ({error})") from error
    own = about if isinstance(about, dict) else {}
    if (own.get("format"), own.get("version")) != (MODEL, FORMAT_VERSION) or "quantized" in own:
        raise FileFormatError(
            f"{file.where}: a file of backburn ({own.get('format')!s:.50}, version {own.get('version')!s:.20}) of "
            "quantized tensors, of a whole run or of another release: load_model and load_state read it, or say why not"
        )


def _stored(file: MappedFile, data: int, name: str, about: Any) -> tuple[int, int, Stored]:
    """The beginning, the end and the tensor that an entry of the header describes."""
    if not isinstance(about, dict) or not {"dtype", "shape", "data_offsets"} <= about.keys():
        raise FileFormatError(f"{file.where}: the entry of {name!r} lacks its dtype, shape or data_offsets")
    theirs, offsets = about["dtype"], about["data_offsets"]
    if not isinstance(theirs, str):
        raise FileFormatError(f"{file.where}: the dtype of {name!r} is no name")
    count = elements(file.where, name, about["shape"])
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise FileFormatError(f"{file.where}: the data_offsets of {name!r} are no beginning and end")
    start, end = offsets
    if not 0 <= start <= end <= file.size - data:
        raise FileFormatError(
            f"{file.where}: {name!r} is said to be in the bytes {start} to {end}, and the file, which may be "
            f"truncated, has {file.size - data}"
        )
    dtype = _DTYPES.get(theirs, theirs)
    if dtype in ITEMSIZE and count * ITEMSIZE[dtype] != end - start:
        raise FileFormatError(f"{file.where}: {name!r}, {theirs}{about['shape']}, does not take {end - start} bytes")
    shape = tuple(about["shape"])
    read = functools.partial(_values, file, data + start, end - start, name, dtype, shape)
    return start, end, Stored(shape, dtype, read, file.where, kind=kind_of(dtype))


def _values(file: MappedFile, start: int, length: int, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return decoded(file.array(start, length, repr(name)), dtype).reshape(shape)


def _check_places(file: MappedFile, places: list[tuple[int, int, str]], length: int) -> None:
    """Check that tensors follow one another without gaps up to the end of the file, as the format demands."""
    last = 0
    for start, end, name in places:
        if start != last:
            fault = "overlaps another tensor" if start < last else f"follows a gap of {start - last} bytes"
            raise FileFormatError(f"{file.where}: {name!r} {fault}")
        last = end
    if last != length:
        raise FileFormatError(f"{file.where}: {length - last} bytes behind the last tensor belong to none")
