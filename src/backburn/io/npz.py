"""State dictionaries as NumPy's ``.npz`` files, which need no extra package."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import DTypeError, FileFormatError
from backburn.io.atomic import write_atomically
from backburn.io.plain import as_array, check_names
from backburn.tensor.classes import Tensor


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
        is_plain = isinstance(value, Tensor) and value.dtype.kind != "quantized"
        dtype = (value if is_plain else as_array(name, value)).dtype
        if dtype.name == "bfloat16":
            raise DTypeError(f"{name}: npz files cannot hold bfloat16: save it as float32, or with save_model")

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, value in state.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:  # also for more than 2 GiB
                    array = np.asarray(as_array(name, value), order="C")
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_atomically(path, write)


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read tensors by name from an ``.npz`` file; pickled objects are never loaded.

    Raises :class:`FileFormatError`, which says what is wrong, for a corrupt, truncated or foreign file;
    FileNotFoundError if there is none.
    """
    path = Path(path)
    if path.is_dir():
        raise FileFormatError(f"{path}: this is a folder, not a file")
    with open(path, "rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            state = {} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
        except MemoryError:
            raise
        except Exception as error:  # damage may trip the reader anywhere, as at an offset before the file's beginning
            raise FileFormatError(f"{path}: no .npz file of arrays, or a damaged one ({error})") from error
    if isinstance(loaded, np.ndarray):
        raise FileFormatError(f"{path}: a single array without a name (.npy), and not an .npz file")
    for name, value in state.items():
        if not isinstance(value, np.ndarray):
            raise FileFormatError(f"{path}: {name!r} in it is no array")
    return state


def load_array(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the array of an ``.npy`` file, which is mapped, or the only one of an ``.npz`` file.

    Raises :class:`FileFormatError` for any other file, and FileNotFoundError if there is none.
    """
    path = Path(path)
    if path.suffix == ".npz":
        arrays = load_npz(path)
        if len(arrays) != 1:
            raise FileFormatError(f"{path}: holds {len(arrays)} arrays, and one is meant: {', '.join(sorted(arrays))}")
        return next(iter(arrays.values()))
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileFormatError(f"{path}: no .npy file of an array, or a damaged one ({error})") from error
    return found
