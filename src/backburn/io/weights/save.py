"""Writing weights for other libraries, tensor by tensor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError, DTypeError
from backburn.io.atomic import write_atomically
from backburn.io.weights.folder import INDEX, SINGLE
from backburn.io.weights.safetensors_file import DTYPE_NAMES, METADATA
from backburn.nn.module import Module, state_places
from backburn.tensor.core.host import to_host

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class _Part:
    """A tensor to be written: the parameters that are stacked along its first axis, one for most."""

    name: str
    values: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.values[0].shape
        return (sum(x.shape[0] for x in self.values), *first[1:]) if len(self.values) > 1 else first

    @property
    def nbytes(self) -> int:
        return sum(x.size for x in self.values) * self.values[0].dtype.itemsize


def save_weights(model: Module, path: str | os.PathLike[str], *, max_shard_size: int | str = "5GB") -> None:
    """Write a model's weights for PyTorch, transformers, MLX and whatever else reads safetensors.

    A path that ends in ``.safetensors`` becomes one file; another a folder with ``model.safetensors``, or, if that
    would be larger than ``max_shard_size`` (bytes, or a number with a unit, as in ``"500MB"``), with shards and their
    index as Hugging Face lays them out. Names and packing are those of PyTorch's layers, as of
    :func:`~backburn.io.torch_state`; a tied parameter is written once, under its first path, and the metadata name its
    other paths. Files are written atomically and one tensor at a time; those of an earlier, other number of shards are
    removed. Needs no extra. :func:`load_weights` reads the result.

    Raises :class:`DTypeError` for quantized weights, :class:`ArgumentError` for what is no model or no size, and
    OSError if a file cannot be written.

        >>> import tempfile, backburn as bb
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_weights(bb.nn.Linear(100, 10), folder, max_shard_size="2KB")
        >>> sorted(file.name for file in folder.iterdir())[:2]
        ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
        >>> print(bb.io.load_weights(bb.nn.Linear(100, 10), folder))
        model   source  dtype
        weight  weight
        bias    bias
        2 used, 0 unused, 0 missing, 0 cast, 0 renamed
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"save_weights: writes the weights of a model, and not of a {type(model).__name__}")
    limit = _bytes_of(max_shard_size)
    parts, ties = _parts(model)
    target = Path(path)
    if target.suffix == ".safetensors":
        _write(target, parts, ties)
        return
    target.mkdir(parents=True, exist_ok=True)
    shards = _shards(parts, limit)
    if len(shards) == 1:
        files = {SINGLE: shards[0]}
    else:
        files = {f"model-{i:05}-of-{len(shards):05}.safetensors": shard for i, shard in enumerate(shards, 1)}
    for name, shard in files.items():
        _write(target / name, shard, ties)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(part.nbytes for part in parts)},
            "weight_map": {part.name: name for name, shard in files.items() for part in shard},
        }
        write_atomically(target / INDEX, json.dumps(index, indent=2, sort_keys=True).encode())
    for file in target.iterdir():  # of an earlier model, of which the reader must not find a part
        stale = file.name in (SINGLE, INDEX) or _SHARD.fullmatch(file.name)
        if stale and file.name not in files and not (file.name == INDEX and len(shards) > 1):
            with suppress(FileNotFoundError):
                file.unlink()


def _bytes_of(size: Any) -> int:
    """A number of bytes, given as such or with a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", size.strip().upper()) if isinstance(size, str) else None
    if match is not None and match[2] in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2]])
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"save_weights: max_shard_size is a number of bytes, or one as '500MB', not {size!r}")
    return size


def _parts(model: Module) -> tuple[list[_Part], dict[str, str]]:
    """The tensors to be written, and for further paths of tied ones the path under which they are."""
    leaves, packs = state_places(model)
    values: dict[str, tuple[Any, ...]] = {}
    ties: dict[str, str] = {}
    for leaf in leaves:
        if leaf.value.dtype.kind == "quantized":
            raise DTypeError(
                f"save_weights: {leaf.path} is {leaf.value.dtype}, which other libraries do not have: dequantize it, "
                "or use save_model"
            )
        values[leaf.path] = (leaf.value,)
        ties |= dict.fromkeys(leaf.paths[1:], leaf.path)
    for packed, paths in packs:
        own = [values[path][0] for path in paths if path in values]
        if len(own) == len(paths) and len({x.shape[1:] for x in own}) == 1 and len({x.dtype for x in own}) == 1:
            values = {path: x for path, x in values.items() if path not in paths} | {packed: tuple(own)}
    if METADATA in values:
        raise ArgumentError(f"save_weights: files keep the name {METADATA!r} for what is no tensor: choose another")
    kept = {path: first for path, first in ties.items() if first in values}
    return [_Part(name, x) for name, x in values.items()], kept


def _shards(parts: list[_Part], limit: int) -> list[list[_Part]]:
    """The tensors in order, as many in each shard as fit, and at least one."""
    shards: list[list[_Part]] = [[]]
    size = 0
    for part in parts:
        if shards[-1] and size + part.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += part.nbytes
    return shards


def _write(path: Path, parts: list[_Part], ties: Mapping[str, str]) -> None:
    """Write one file: tensors of wide elements first, so that each begins at a multiple of its element's bytes."""
    ordered = sorted(parts, key=lambda part: (-part.values[0].dtype.itemsize, part.name))
    names = {part.name for part in parts}
    header: dict[str, Any] = {METADATA: {"format": "pt", **{path: own for path, own in ties.items() if own in names}}}
    place = 0
    for part in ordered:
        dtype = DTYPE_NAMES[part.values[0].dtype.name]
        header[part.name] = {"dtype": dtype, "shape": part.shape, "data_offsets": [place, place + part.nbytes]}
        place += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, _contents(text, ordered))


def _contents(header: bytes, parts: list[_Part]) -> Iterator[Any]:
    yield len(header).to_bytes(8, "little") + header
    for part in parts:
        for x in part.values:
            array = np.ascontiguousarray(to_host(x))
            yield array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data
