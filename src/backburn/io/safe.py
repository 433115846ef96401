"""Models and training state as safetensors files.

The tensors of a model are stored under their own names, for any reader of the format. The metadata has one entry,
``backburn``: a JSON table of the ``format``, its ``version``, a ``document`` (all that is not a tensor), the schemes of
quantized tensors, and ``crc32``: one checksum of document and schemes, and one per tensor, computed while the tensor
is written. The format is described at https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from backburn.base.dtypes import bfloat16
from backburn.base.errors import DTypeError, FileFormatError
from backburn.base.foreign import printable, quoted
from backburn.io.plain import check_names, put_together, take_apart
from backburn.io.quantized import of_parts, parts_of
from backburn.io.versions import FORMAT_VERSION, KEY, MODEL, REASONS, STATE
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.safetensors_file import Entry, check_digest, entries_of, looks_like
from backburn.io.weights.safetensors_writer import Digests, Part, write
from backburn.io.weights.stored import kind_of
from backburn.tensor.classes import QuantizedTensor

#: Whether a mapped file can be replaced by another. Not on Windows, where loaded arrays are copies.
MAPS_ARE_REPLACED = os.name != "nt"
#: Threads that compare digests.
_THREADS = 2


@dataclass(frozen=True)
class Saved:
    """The contents of a model file: ``state``, the model's arrays by name, and ``about``, additional plain values.

    The arrays are read-only views of the mapped file, which is read when they are. Quantized tensors in ``state`` are
    tensors on the default backend.
    """

    state: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)


def save_model(
    path: str | os.PathLike[str], state: Mapping[str, Any], *, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model's ``state_dict()`` to a safetensors file, and ``about``: plain values such as the configuration.

    The file is written atomically and needs little memory; it may replace a mapped file. The stored values of a
    quantized tensor are saved under its name, its steps and zero points under the name with ``.scale`` or ``.zero``,
    and its scheme and shape in the metadata. Raises :class:`DTypeError` for objects that cannot be saved and OSError if
    the file cannot be written.

        >>> import tempfile, backburn as bb
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_model(path, {"weight": bb.asarray([1.0, 2.0])}, about={"epoch": 3})
        >>> load_model(path)
        Saved(state={'weight': array([1., 2.], dtype=float32)}, about={'epoch': 3})
    """
    check_names("save_model", state)
    arrays: dict[str, Any] = {}
    plain = {name: x for name, x in state.items() if not isinstance(x, QuantizedTensor)}
    take_apart(plain, "", arrays)
    if len(arrays) != len(plain):
        raise FileFormatError("save_model: a state holds tensors by name and nothing else; save_state takes trees")
    schemes: dict[str, Any] = {}
    for name, x in state.items():
        if isinstance(x, QuantizedTensor):
            schemes[name] = parts_of(name, x, arrays)
    tensors: dict[str, Any] = {}
    document = take_apart(dict(about or {}), "", tensors)
    if tensors:
        raise DTypeError(
            f"save_model: about holds plain values, and {min(tensors)} is an array: save_state takes trees"
        )
    _write(path, MODEL, arrays, document, schemes)


def load_model(path: str | os.PathLike[str], *, verify: bool = True) -> Saved:
    """Read a file of :func:`save_model`, with NumPy arrays.

    The file is mapped: its arrays are read-only and take memory only as they are read. Tensors created from them, as by
    ``load_state_dict``, are copies. ``verify=False`` skips the tensors' checksums, which require reading the whole
    file; damaged values then go unnoticed.

    Nothing in the file is executed. Raises :class:`FileFormatError`, which says what is wrong and names a damaged
    tensor, for a file that is corrupt, truncated, foreign or of another version; FileNotFoundError if there is none.
    """
    if os.path.isdir(path):
        raise _is_folder(Path(os.fsdecode(path)))
    arrays, document, schemes = _read(path, MODEL, verify)
    if not isinstance(document, dict):
        raise FileFormatError(f"{Path(path)}: its document is not a table")
    state: dict[str, Any] = dict(arrays)
    try:
        for name, about in schemes.items():
            state[name] = of_parts(name, about, state)
    except FileFormatError as error:
        raise FileFormatError(f"{Path(path)}: {error}") from error
    return Saved(state, document)


def _is_folder(path: Path) -> FileFormatError:
    """The error for a folder, which says how to read it."""
    if (path / "model.safetensors").is_file() and not (path / "config.json").is_file():
        advice = f"load_model({str(path / 'model.safetensors')!r}) reads the file in it"
    elif (path / "metrics.jsonl").is_file():
        advice = f"the model of this run is load_model({str(path / 'model.safetensors')!r})"
    else:
        advice = "bb.models.from_pretrained(folder) and bb.io.load_weights(model, folder) read folders"
    return FileFormatError(f"{printable(path)}: is a folder, and load_model takes a file of save_model: {advice}")


def save_state(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree of tensors and plain values, such as the state of a training run, like :func:`save_model`.

    >>> import os, tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "state.safetensors")
    ...     save_state(path, {"steps": 3, "x": [np.ones(2)]})
    ...     load_state(path)
    {'steps': 3, 'x': [array([1., 1.])]}
    """
    arrays: dict[str, Any] = {}
    try:
        document = take_apart(tree, "", arrays)
        _write(path, STATE, arrays, document)
    except RecursionError:
        raise DTypeError("save_state: the tree contains itself or is nested too deeply") from None


def load_state(path: str | os.PathLike[str], *, verify: bool = True) -> Any:
    """Read a file of :func:`save_state`; mapping, ``verify`` and errors are those of :func:`load_model`.

    Tensors are returned as read-only NumPy arrays, or as quantized tensors on the default backend; tuples as lists.
    """
    arrays, document, _ = _read(path, STATE, verify)
    try:
        return put_together(document, arrays)
    except FileFormatError as error:
        raise FileFormatError(f"{Path(path)}: {error}") from None
    except RecursionError:
        raise FileFormatError(f"{Path(path)}: its document is nested too deeply") from None


def _write(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Any], document: Any, schemes: Any = None
) -> None:
    def metadata(digests: Digests) -> Mapping[str, str]:
        header: dict[str, Any] = {
            "format": kind,
            "version": FORMAT_VERSION,
            "document": document,
            "crc32": {"document": _digest(document, schemes), "tensors": dict(digests)},
        }
        if schemes:
            header["quantized"] = schemes
        return {KEY: json.dumps(header, sort_keys=True)}

    write(path, [Part(name, (x,)) for name, x in arrays.items()], metadata)


def _digest(document: Any, schemes: Any) -> str:
    """The checksum of document and schemes."""
    return f"{zlib.crc32(json.dumps([document, schemes or {}], sort_keys=True).encode()):08x}"


def _read(path: str | os.PathLike[str], kind: str, verify: bool) -> tuple[dict[str, NDArray[Any]], Any, dict[str, Any]]:
    """The arrays, the document and the quantized tensors' schemes of a file, after every check."""
    path = Path(path)
    file = MappedFile(path)
    try:
        if not looks_like(file.bytes(0, min(9, file.size), "the file")):
            raise FileFormatError(f"{path}: no safetensors file, or a damaged one")
        entries, metadata = entries_of(file)
        header = _header(path, kind, metadata)
        _check(file, header, entries, verify)
        return {name: _array(file, entry) for name, entry in entries.items()}, header["document"], header["quantized"]
    except RecursionError:
        raise FileFormatError(f"{file.where}: its document is nested too deeply") from None
    finally:
        file.close()


def _array(file: MappedFile, entry: Entry) -> NDArray[Any]:
    """The values of a tensor, read-only."""
    if entry.dtype == "bfloat16":
        try:
            bfloat16.dtype  # noqa: B018 - raises without the package that has it
        except DTypeError as error:
            raise DTypeError(f"{file.where}: {quoted(entry.name)}: {error}") from error
    array = entry.array(file)
    if not MAPS_ARE_REPLACED:
        array = array.copy()
    array.flags.writeable = False
    return array


def _check(file: MappedFile, header: Mapping[str, Any], entries: Mapping[str, Entry], verify: bool) -> None:
    """Compare the checksums of a file."""
    digests = header["crc32"]["tensors"]
    if digests.keys() != entries.keys():
        raise FileFormatError(f"{file.where}: the file is damaged: its checksums do not match its tensors")
    if header["crc32"].get("document") != _digest(header["document"], header["quantized"]):
        raise FileFormatError(f"{file.where}: the file is damaged: the checksum of its metadata does not match")
    for entry in entries.values():
        if not kind_of(entry.dtype):
            raise FileFormatError(f"{file.where}: {quoted(entry.name)} is {printable(entry.dtype)}, not a tensor dtype")
    if verify:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(lambda entry: check_digest(file, entry, digests[entry.name]), entries.values()):
                pass


def _header(path: Path, kind: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The header of a file. Raises :class:`FileFormatError` unless its kind and version can be read."""
    if KEY not in metadata:
        raise FileFormatError(
            f"{path}: this is a file of tensors that backburn did not write, and not a {kind}; "
            f"bb.io.load_weights(model, path) loads them"
        )
    try:
        header = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: cannot be read: its metadata are not JSON ({error})") from error
    lacks = {"format", "version", "document", "crc32"} - set(header if isinstance(header, dict) else ())
    if not isinstance(header, dict) or lacks:
        raise FileFormatError(f"{path}: the metadata lack {', '.join(sorted(lacks)) or 'a table'}")
    if header["format"] != kind:
        raise FileFormatError(f"{path}: this is a {header['format']!s:.50}, and not a {kind}")
    if header["version"] != FORMAT_VERSION:
        reason = REASONS.get(header["version"], "") if isinstance(header["version"], int) else ""
        raise FileFormatError(
            f"{path}: format version {header['version']!s:.50}{', ' * bool(reason)}{reason}, and this release of "
            f"backburn reads version {FORMAT_VERSION}: use the release that wrote the file"
        )
    schemes = header.setdefault("quantized", {})
    if not isinstance(schemes, dict):
        raise FileFormatError(f"{path}: the metadata name no quantized tensors, but {schemes!r:.100}")
    digests = header["crc32"]
    if not isinstance(digests, dict) or not isinstance(digests.get("tensors"), dict):
        raise FileFormatError(f"{path}: the metadata have no table of checksums, crc32")
    return header
