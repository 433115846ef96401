"""Folders in Hugging Face's layout: a file of weights, or several with an index of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from backburn.base.errors import FileFormatError
from backburn.base.foreign import listed, printable, quoted
from backburn.base.foreign_files import inside, parsed
from backburn.base.regular import read_regular
from backburn.io.weights.stored import Stored

#: Names of weight files and indexes; the first that exists is read.
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FILES = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
_SUFFIXES = (".safetensors", ".gguf", ".npz", ".pt", ".pth", ".bin")
#: The most bytes of a file's name on most systems.
_LONGEST_NAME = 255
_LONGEST_INDEX = 100_000_000


def read(folder: Path, open_file: Callable[[Path], dict[str, Stored]]) -> dict[str, Stored]:
    """The tensors of a folder. Raises :class:`FileFormatError` if there is no file of weights, or more than one.

    Also for an index that names files outside the folder or tensors that are not in their file, and for links out of
    the folder (see :func:`backburn.base.foreign_files.inside`).
    """
    for name in _FILES:
        path = folder / name
        if path.is_file():
            return _shards(inside(path, folder), open_file) if name.endswith(".json") else open_file(path)
    found = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if len(found) == 1:
        return open_file(found[0])
    names = f"{len(found)} files of weights and no index: name one of {listed([path.name for path in found], 10)}"
    raise FileFormatError(f"{folder}: {names if found else f'no file of weights, such as {SINGLE}'}")


def _shards(index: Path, open_file: Callable[[Path], dict[str, Stored]]) -> dict[str, Stored]:
    places = _weight_map(index)
    tensors: dict[str, Stored] = {}
    shards: dict[str, dict[str, Stored]] = {}
    for shard in sorted(set(places.values())):
        path = index.parent / shard
        if not path.is_file():
            raise FileFormatError(f"{index}: names the file {printable(shard)}, which is not there")
        shards[shard] = open_file(path)
        for name, stored in shards[shard].items():
            if name in tensors:
                where = f"{tensors[name].where} and {stored.where}"
                raise FileFormatError(f"{index}: {quoted(name)} is in two files, {where}")
            tensors[name] = stored
    for name, shard in places.items():
        whole = shards[shard].get(name.rpartition(".")[0])
        is_part = whole is not None and whole.kind == "quantized"
        if name not in shards[shard] and not is_part:
            raise FileFormatError(f"{index}: {quoted(name)} is said to be in {printable(shard)}, and is not")
    return tensors


def has_whole_zeros(path: Path) -> bool:
    """Whether a folder's configuration says that GPTQ's zero points are stored as they are, not minus 1."""
    config = path / "config.json"
    if not path.is_dir() or not config.is_file():
        return False
    about = _json(inside(config, path))
    quantization = about.get("quantization_config") if isinstance(about, dict) else None
    return isinstance(quantization, dict) and quantization.get("checkpoint_format") == "gptq_v2"


def _json(path: Path) -> Any:
    return parsed(read_regular(path, _LONGEST_INDEX), f"{path}:")


def _weight_map(index: Path) -> dict[str, str]:
    """The file name of each tensor."""
    about = _json(index)
    places = about.get("weight_map") if isinstance(about, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(p, str) for p in places.values()):
        raise FileFormatError(f"{index}: has no weight_map, a table of the files of tensors")
    for place in places.values():
        is_long = len(place.encode()) > _LONGEST_NAME
        if not place or is_long or place in (".", "..") or any(sign in place for sign in "/\\:\0"):
            raise FileFormatError(f"{index}: names the file {quoted(place)}, and files of weights are in its folder")
    return places
