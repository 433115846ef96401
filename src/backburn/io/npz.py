"""State dictionaries as NumPy's ``.npz`` files, which need no extra package."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import DTypeError, FileFormatError
from backburn.base.foreign import listed, quoted
from backburn.io.atomic import write_atomically
from backburn.io.plain import as_array, check_names
from backburn.io.weights.archive import members
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.npz_file import is_single, read_arrays, single
from backburn.tensor.classes import Tensor

#: The number of bytes that identify a file's format.
_MAGIC = 6
#: The most bytes of a name in an archive, less those of ``.npy``.
_LONGEST_NAME = (1 << 16) - 1 - 4


def save_npz(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write tensors by name to an ``.npz`` file, atomically.

    Raises :class:`DTypeError` for anything but a tensor or NumPy array of numbers, for names that are not strings, and
    for bfloat16, which the format cannot name.

        >>> import tempfile, backburn as bb
        >>> path = tempfile.mkdtemp() + "/state.npz"
        >>> save_npz(path, {"layers.0.weight": bb.asarray([1.0, 2.0])})
        >>> load_npz(path)
        {'layers.0.weight': array([1., 2.], dtype=float32)}
    """
    check_names("save_npz", state)
    for name, value in state.items():
        if "\0" in name or len(name.encode()) > _LONGEST_NAME:  # archives end names at a zero byte
            raise DTypeError(
                f"save_npz: {quoted(name)} has a zero byte, or more than {_LONGEST_NAME} bytes: shorten it"
            )
        is_plain = isinstance(value, Tensor) and value.dtype.kind != "quantized"
        dtype = (value if is_plain else as_array(name, value)).dtype
        if dtype.name == "bfloat16":
            raise DTypeError(f"{name}: npz files cannot hold bfloat16: save it as float32, or with save_model")

    def write(file: BinaryIO) -> None:
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        with zipfile.ZipFile(file if is_file else cast(BinaryIO, _Stream(file)), "w") as archive:
            for name, value in state.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:  # also for more than 2 GiB
                    array = np.asarray(as_array(name, value), order="C")
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_atomically(path, write)


class _Stream:
    """A device or a pipe without ``tell``: some, such as ``/dev/null``, report the same position after each write."""

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read tensors by name from an ``.npz`` file; pickled objects are never loaded.

    Raises :class:`FileFormatError`, which says what is wrong, for a corrupt, truncated or foreign file, and for one
    that expands to more than ten times its size plus 200 MB; FileNotFoundError if there is none.
    """
    file = MappedFile(Path(path))
    try:
        start = file.bytes(0, min(_MAGIC, file.size), "the file")
        if is_single(start):
            raise FileFormatError(f"{file.where}: a single array without a name (.npy), and not an .npz file")
        if not start.startswith(b"PK"):
            raise FileFormatError(f"{file.where}: not an .npz file of arrays, or damaged")
        return read_arrays(file, members(file))
    finally:
        file.close()


def load_array(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the array of an ``.npy`` file, which is mapped and read-only, or the only one of an ``.npz`` file.

    Raises :class:`FileFormatError` for any other file, and FileNotFoundError if there is none.
    """
    file = MappedFile(Path(path))
    try:
        if file.bytes(0, min(_MAGIC, file.size), "the file").startswith(b"PK"):
            arrays = read_arrays(file, members(file))
        else:
            arrays = {"": single(file)}
    finally:
        file.close()
    if len(arrays) != 1:
        raise FileFormatError(f"{path}: holds {len(arrays)} arrays, not one: {listed(sorted(arrays))}")
    return next(iter(arrays.values()))
