"""Reading models: files, bytes and protocol buffers, and the tensors in them.

Files are untrusted: sizes are checked before anything is allocated, and external data is read only from ordinary files
in the model's folder (:func:`backburn.base.foreign_files.inside`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, FileFormatError, Unsupported
from backburn.base.foreign import printable, quoted
from backburn.base.foreign_files import inside, ordinary
from backburn.base.regular import open_regular
from backburn.io.weights.mapped import MappedFile
from backburn.onnx.dtypes import BY_VALUE, NAMES, NARROW, WITHOUT, named

#: The field for values that are not in ``raw_data``, by data type.
_FIELDS = {
    **dict.fromkeys((1,), "float_data"),
    **dict.fromkeys((11,), "double_data"),
    **dict.fromkeys((7,), "int64_data"),
    **dict.fromkeys((12, 13), "uint64_data"),
}
#: The largest protocol buffer, in bytes.
_LARGEST = 2**31 - 1
_EXTERNAL = 1
#: NumPy has no arrays of this many elements, even if one of the lengths is 0.
_TOO_LARGE = 2**56


@dataclass
class Model:
    """A model as read: the protocol buffer, its origin, and the external files."""

    proto: Any
    where: str
    folder: Path | None
    files: dict[Path, MappedFile] = field(default_factory=dict)

    def close(self) -> None:
        """Close the external files."""
        for file in self.files.values():
            file.close()
        self.files.clear()


def read_model(source: Any) -> Model:
    """The model from a path, bytes or a ``ModelProto``.

    Raises :class:`FileFormatError` for anything but an ONNX model, FileNotFoundError if there is no file, and
    :class:`ArgumentError` for other objects.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        return Model(_checked(source, "the model"), "the model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Model(_parsed(bytes(source), "the bytes"), "the bytes", None)
    if not isinstance(source, (str, os.PathLike)):
        raise ArgumentError(f"load: reads a path, bytes or a ModelProto, not a {type(source).__name__}")
    path = Path(os.fsdecode(source))
    where = printable(path, 1000)
    if ordinary(path).st_size > _LARGEST:
        raise FileFormatError(f"{where}: more than 2 GB, the limit of ONNX; larger models have data beside the file")
    with open_regular(path) as file:
        return Model(_parsed(file.read(), where), where, path.parent)


def _parsed(data: bytes, where: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{where}: not an ONNX model, or a damaged one ({error!s:.200})") from error
    if not proto.HasField("graph"):
        raise FileFormatError(f"{where}: not an ONNX model: it has no graph")
    return _checked(proto, where)


def _checked(proto: Any, where: str) -> Any:
    """A model, after checking that all names are text: protocol buffers return bytes for what is not UTF-8."""
    functions = [(function.node, _names_of_function(function)) for function in proto.functions]
    imports = [entry.domain for entry in proto.opset_import]
    for name in _texts(proto.graph.node, [*_names_of_graph(proto.graph), *imports]):
        _check_text(name, where)
    for nodes, names in functions:
        for name in _texts(nodes, names):
            _check_text(name, where)
    return proto


def _check_text(name: object, where: str) -> None:
    if name.__class__ is not str:
        raise FileFormatError(f"{where}: the name {quoted(name)} is not text in UTF-8")


def _texts(nodes: Any, names: list[Any]) -> Iterator[Any]:
    """The given names, then all names and texts of nodes and their graphs."""
    yield from names
    for node in nodes:
        yield from (node.op_type, node.name, node.domain, *node.input, *node.output)
        for entry in node.metadata_props:
            yield from (entry.key, entry.value)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            if attribute.HasField("g"):
                yield from _texts(attribute.g.node, _names_of_graph(attribute.g))


def _names_of_graph(graph: Any) -> list[Any]:
    names = [value.name for value in (*graph.input, *graph.output)]
    names += [n.dim_param for value in graph.input for n in value.type.tensor_type.shape.dim]
    tensors = [*graph.initializer, *(part for x in graph.sparse_initializer for part in (x.values, x.indices))]
    for tensor in tensors:
        names.append(tensor.name)
        entries = (*tensor.external_data, *tensor.metadata_props)
        names += [text for entry in entries for text in (entry.key, entry.value)]
    return names


def _names_of_function(function: Any) -> list[Any]:
    names = [function.name, function.domain, *function.input, *function.output, *function.attribute]
    return [*names, *(a.name for a in function.attribute_proto), *(entry.domain for entry in function.opset_import)]


def data_type(tensor: Any, where: str) -> str:
    """The name of a tensor's data type. Raises :class:`Unsupported` if tensors cannot hold it."""
    name = NAMES.get(tensor.data_type)
    if name is None or name in WITHOUT:
        raise Unsupported(f"{where} holds {named(tensor.data_type)}, which tensors here cannot hold")
    return name


def read_tensor(model: Model, tensor: Any, where: str = "") -> tuple[NDArray[Any], str]:
    """The values of a ``TensorProto``, and the name of their data type in the file.

    Raises :class:`FileFormatError` if the size of the data does not match the dims.
    """
    where = where or f"{model.where}: the tensor {quoted(tensor.name)}"
    name = data_type(tensor, where)
    shape = tuple(tensor.dims)
    if any(n < 0 for n in shape):
        raise FileFormatError(f"{where} has negative dims {list(shape)}")
    if math.prod(max(n, 1) for n in shape) >= _TOO_LARGE:
        raise FileFormatError(f"{where} has dims {list(shape)}, which no memory holds")
    if tensor.HasField("segment"):
        raise FileFormatError(f"{where} is a segment, which ONNX files no longer have")
    count = math.prod(shape)
    bits = _bits(name)
    length = -(-count * bits // 8)
    if tensor.data_location == _EXTERNAL:
        raw = _external(model, tensor, length, where)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _listed(tensor, name, shape, where), name
    if raw.size != length:
        raise FileFormatError(f"{where}: {raw.size} bytes, where {name}{list(shape)} has {length}")
    return _decoded(raw, name, shape), name


def _bits(name: str) -> int:
    if name in NARROW:
        return int(name[-1])
    return 4 if name.startswith("float4") else 8 if name in BY_VALUE else 16 if name == "bfloat16" else (
        np.dtype(name).itemsize * 8
    )  # fmt: skip


def _host_dtype(name: str) -> Any:
    """NumPy's dtype of a data type; that of ml_dtypes if NumPy lacks it."""
    if name in BY_VALUE or name == "bfloat16":
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _decoded(raw: NDArray[np.uint8], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The values in little-endian bytes."""
    if name in NARROW:
        kind, least, _ = NARROW[name]
        width = int(name[-1])
        each = 8 // width
        values = ((raw[:, None] >> (np.arange(each, dtype=np.uint8) * width)) & (2**width - 1)).reshape(-1)
        values = values[: math.prod(shape)].reshape(shape)
        if least < 0:
            values = values.astype(np.int8)
            values = np.where(values >= 2 ** (width - 1), values - 2**width, values)
        return values.astype(kind)
    if name.startswith("float4"):
        import ml_dtypes

        halves = np.stack([raw & 15, raw >> 4], -1).reshape(-1)[: math.prod(shape)]
        return halves.view(ml_dtypes.float4_e2m1fn).astype(np.float32).reshape(shape)
    if name == "bool":
        return (raw != 0).reshape(shape)
    dtype = _host_dtype(name)
    values = raw.view(dtype if dtype.itemsize == 1 or name == "bfloat16" else dtype.newbyteorder("<")).reshape(shape)
    return values.astype(np.float32) if name in BY_VALUE else values


def _listed(tensor: Any, name: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """The values of a typed list."""
    numbers = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    count = math.prod(shape)
    bits = _bits(name)
    expected = count if bits >= 8 else -(-count * bits // 8)
    if len(numbers) != expected:
        raise FileFormatError(f"{where}: {len(numbers)} numbers, where {name}{list(shape)} has {expected}")
    if bits < 8 or name in BY_VALUE:
        return _decoded(np.asarray(numbers, np.int64).astype(np.uint8), name, shape)
    if name in ("float16", "bfloat16"):
        return np.asarray(numbers, np.int64).astype(np.uint16).view(_host_dtype(name)).reshape(shape)
    if name == "bool":
        return (np.asarray(numbers, np.int64) != 0).reshape(shape)
    return np.asarray(numbers, np.uint64 if tensor.data_type in (12, 13) else None).astype(name).reshape(shape)


def _external(model: Model, tensor: Any, length: int, where: str) -> NDArray[np.uint8]:
    """The bytes of a tensor in an external file."""
    given: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = given.get("location", "")
    if model.folder is None:
        raise ArgumentError(f"{where} is in the file {quoted(location)}: load the model by its path")
    parts = Path(location).parts
    if not parts or Path(location).is_absolute() or ".." in parts or "\\" in location or "\0" in location:
        raise FileFormatError(f"{where} lies in {quoted(location)}, which is not a path inside the model's folder")
    try:
        offset = int(given.get("offset", "0"))
        size = int(given.get("length", str(length)))
    except ValueError as error:
        raise FileFormatError(f"{where}: its place in {quoted(location)} is not a number") from error
    if size != length or offset < 0:
        raise FileFormatError(
            f"{where}: {size} bytes at {offset} of {quoted(location)}, where {list(tensor.dims)} has {length} bytes"
        )
    if length == 0:
        return np.empty(0, np.uint8)
    path = model.folder / location
    if path not in model.files:
        try:
            found = inside(path, model.folder)
            ordinary(found)
            model.files[path] = MappedFile(found)
        except OSError as error:
            raise FileFormatError(
                f"{where} lies in {quoted(location)}, which cannot be read: {error.strerror}"
            ) from error
    return model.files[path].array(offset, length, f"the tensor {quoted(tensor.name)}")


def read_sparse(model: Model, sparse: Any, most: int) -> tuple[NDArray[Any], str]:
    """The values of a ``SparseTensorProto`` of at most ``most`` elements, as a dense array."""
    where = f"{model.where}: the sparse tensor {quoted(sparse.values.name)}"
    values, name = read_tensor(model, sparse.values, where)
    indices, _ = read_tensor(model, sparse.indices, where)
    shape = tuple(sparse.dims)
    if any(n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) > most:
        raise FileFormatError(f"{where} has dims {list(shape)}; Limits(elements=...) allows {most} elements")
    if indices.dtype.kind not in "iu" or values.ndim != 1 or indices.ndim not in (1, 2) or len(indices) != len(values):
        raise FileFormatError(f"{where}: {list(values.shape)} values at {list(indices.shape)} indices")
    lengths = shape if indices.ndim == 2 else (math.prod(shape),)
    places = indices.reshape(len(values), -1)
    if places.shape[1] != len(lengths) or (places < 0).any() or (places >= np.asarray(lengths, np.int64)).any():
        raise FileFormatError(f"{where} has values outside of its dims {list(shape)}")
    dense: NDArray[Any] = np.zeros(lengths, values.dtype)
    dense[tuple(places.T)] = values
    return dense.reshape(shape), name
