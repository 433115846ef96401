"""Writing weights for other libraries, tensor by tensor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.base.foreign_files import repeated
from backburn.io.atomic import write_atomically
from backburn.io.quantized import parts_of
from backburn.io.versions import FORMAT_VERSION, KEY, WEIGHTS
from backburn.io.weights.folder import INDEX, SINGLE
from backburn.io.weights.safetensors_file import METADATA
from backburn.io.weights.safetensors_writer import Part, write
from backburn.nn.module import Module, state_places

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def save_weights(model: Module, path: str | os.PathLike[str], *, max_shard_size: int | str = "5GB") -> None:
    """Write a model's weights for PyTorch, transformers, MLX and whatever else reads safetensors.

    A path that ends in ``.safetensors`` becomes one file; any other a folder with ``model.safetensors``, or, if that
    would be larger than ``max_shard_size`` (bytes, or a number with a unit, as in ``"500MB"``), with shards and their
    index in Hugging Face's layout. Names and packing are those of PyTorch's layers, as in
    :func:`~backburn.io.torch_state`; a tied parameter is written once, under its first path, and the metadata lists its
    other paths. Files are written atomically, part by part; stale files of another number of shards are removed.
    Needs no extra. :func:`load_weights` reads the result.

    Quantized weights are written in their stored form: values under their name, steps and zero points under the name
    with ``.scale`` and ``.zero``, schemes in the metadata. ``load_weights(model, path, quantized=True)`` reads them;
    other libraries find arrays of integers.

    Raises :class:`ArgumentError` for an argument that is not a model or not a size, and OSError if a file cannot be
    written.

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
    target = Path(path)
    if target.suffix == ".safetensors":
        save_file(model, target)
        return
    groups, ties, schemes = _parts(model)
    target.mkdir(parents=True, exist_ok=True)
    shards = _shards(groups, limit)
    if len(shards) == 1:
        files = {SINGLE: shards[0]}
    else:
        files = {f"model-{i:05}-of-{len(shards):05}.safetensors": shard for i, shard in enumerate(shards, 1)}
    for name, shard in files.items():
        _write(target / name, shard, ties, schemes, follow=False)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(part.nbytes for group in groups for part in group)},
            "weight_map": {part.name: name for name, shard in files.items() for part in shard},
        }
        write_atomically(target / INDEX, json.dumps(index, indent=2, sort_keys=True).encode(), follow=False)
    for file in target.iterdir():  # remove files of an earlier model, which a reader would find
        stale = file.name in (SINGLE, INDEX) or _SHARD.fullmatch(file.name)
        if stale and file.name not in files and not (file.name == INDEX and len(shards) > 1):
            with suppress(FileNotFoundError):
                file.unlink()


def save_file(model: Module, path: Path, *, follow: bool = True) -> None:
    """Write all weights to one file, which replaces a link unless ``follow``."""
    groups, ties, schemes = _parts(model)
    _write(path, [part for group in groups for part in group], ties, schemes, follow=follow)


def _bytes_of(size: Any) -> int:
    """A number of bytes, given as such or with a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", size.strip().upper()) if isinstance(size, str) else None
    if match is not None and match[2] in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2]])
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"save_weights: max_shard_size is a number of bytes, or text such as '500MB', not {size!r}")
    return size


def _parts(model: Module) -> tuple[list[list[Part]], dict[str, str], dict[str, Any]]:
    """The tensors to be written, in groups that stay together; ties; and the schemes of quantized tensors.

    Ties map the further paths of a tied tensor to the path under which it is written.
    """
    leaves, packs = state_places(model)
    values: dict[str, tuple[Any, ...]] = {}
    ties: dict[str, str] = {}
    for leaf in leaves:
        values[leaf.path] = (leaf.value,)
        ties |= dict.fromkeys(leaf.paths[1:], leaf.path)
    for packed, paths in packs:
        own = [values[path][0] for path in paths if path in values]
        is_float = all(x.dtype.is_floating for x in own)
        alike = len({x.shape[1:] for x in own}) == 1 and len({x.dtype for x in own}) == 1
        if len(own) == len(paths) and alike and is_float:
            values = {path: x for path, x in values.items() if path not in paths} | {packed: tuple(own)}
    kept = {path: first for path, first in ties.items() if first in values}
    schemes: dict[str, Any] = {}
    groups: list[list[Part]] = []
    for name, own_values in values.items():
        if own_values[0].dtype.kind != "quantized":
            groups.append([Part(name, own_values)])
            continue
        arrays: dict[str, Any] = {}
        schemes[name] = parts_of(name, own_values[0], arrays)
        groups.append([Part(part, (array,)) for part, array in arrays.items()])
    names = [part.name for group in groups for part in group]
    twice = repeated(names) if len(set(names)) < len(names) else None
    for taken, why in ((METADATA if METADATA in names else None, "reserved for metadata"), (twice, "used twice")):
        if taken is not None:
            raise ArgumentError(f"save_weights: the name {taken!r} is {why}: choose another")
    return groups, kept, schemes


def _shards(groups: list[list[Part]], limit: int) -> list[list[Part]]:
    """The tensors in order, as many in each shard as fit, and at least one."""
    shards: list[list[Part]] = [[]]
    size = 0
    for group in groups:
        nbytes = sum(part.nbytes for part in group)
        if shards[-1] and size + nbytes > limit:
            shards.append([])
            size = 0
        shards[-1] += group
        size += nbytes
    return shards


def _write(
    path: Path, parts: Sequence[Part], ties: Mapping[str, str], schemes: Mapping[str, Any], *, follow: bool
) -> None:
    """Write one file; a link in a folder, which may be somebody else's, is replaced and not followed."""
    names = {part.name for part in parts}
    metadata = {"format": "pt", **{path: own for path, own in ties.items() if own in names}}
    mine = {name: about for name, about in schemes.items() if name in names}
    if mine:
        metadata[KEY] = json.dumps({"format": WEIGHTS, "version": FORMAT_VERSION, "quantized": mine}, sort_keys=True)
    write(path, parts, metadata, follow=follow)
