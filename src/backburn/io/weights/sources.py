"""Sources of weights: which reader a file, a folder or a mapping needs, recognized by its contents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError, FileFormatError
from backburn.base.foreign_files import inside
from backburn.io.weights import arrays, folder, gguf_file, npz_file, packed, safetensors_file, torch_file
from backburn.io.weights.archive import members
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.stored import Source, Stored

_LONGEST_START = 64


def opened(source: Any) -> Source:
    """The tensors of a file, a folder or a mapping.

    Raises :class:`FileFormatError` for files of no known format, or damaged ones, FileNotFoundError if there is none,
    and :class:`ArgumentError` for other objects.
    """
    if isinstance(source, Mapping):
        return Source("the arrays", packed.unpacked("the arrays", arrays.read(source)))
    if not isinstance(source, (str, os.PathLike)):
        hint = ": give its state_dict()" * hasattr(source, "state_dict")
        words = f"a file, a folder or arrays by name, not a {type(source).__name__}{hint}"
        raise ArgumentError(f"load_weights: takes {words}")
    path = Path(os.fsdecode(source))
    found = Source(str(path), {})

    def open_file(file: Path) -> dict[str, Stored]:
        found.files.append(MappedFile(file if file is path else inside(file, path)))
        return _of_file(found.files[-1], found.metadata)

    try:
        tensors = folder.read(path, open_file) if path.is_dir() else open_file(path)
        found.tensors = packed.unpacked(found.where, tensors, lambda: not folder.has_whole_zeros(path))
    except BaseException:
        found.__exit__()
        raise
    return found


def _of_file(file: MappedFile, metadata: dict[str, Any]) -> dict[str, Stored]:
    start = file.bytes(0, min(_LONGEST_START, file.size), "the file")
    if start.startswith(b"PK"):
        return _of_archive(file)
    if start.startswith(gguf_file.MAGIC):
        return gguf_file.read(file, metadata)
    if start.startswith(torch_file.LEGACY_START):
        return torch_file.read_legacy(file)
    if safetensors_file.looks_like(start):
        return safetensors_file.read(file)
    raise FileFormatError(f"{file.where}: not a known file of weights (safetensors, PyTorch, npz, GGUF), or damaged")


def _of_archive(file: MappedFile) -> dict[str, Stored]:
    found = members(file)
    described = torch_file.description(found)
    return npz_file.read(file, found) if described is None else torch_file.read(file, found, described)
