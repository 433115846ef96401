"""Models and training state as safetensors files.

The tensors of a model stand under their own names, so that every reader of the format finds them. The metadata have
the ``format``, its ``version``, a ``document`` (JSON: what is not a tensor) and the ``sha256`` of all of it, by which a
damaged file is recognised. Format: https://huggingface.co/docs/safetensors. Needs the extra ``train``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from backburn.base.errors import BackburnError, FileFormatError
from backburn.io.atomic import write_atomically
from backburn.io.plain import put_together, take_apart

#: The version of the files that this release writes, and the only one that it reads.
FORMAT_VERSION = 1
MODEL = "backburn model"
STATE = "backburn state"


@dataclass(frozen=True)
class Saved:
    """What a model file holds: ``state``, the model's arrays by name, and ``about``, what was written beside them."""

    state: dict[str, NDArray[Any]]
    about: dict[str, Any] = field(default_factory=dict)


def save_model(
    path: str | os.PathLike[str], state: Mapping[str, Any], *, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model's ``state_dict()`` to a safetensors file, and ``about``: plain values such as the configuration.

    The file is written whole or not at all. Raises :class:`DTypeError` for what cannot be saved (objects, quantized
    tensors) and OSError where the file cannot be written.

        >>> import tempfile, backburn as bb
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_model(path, {"weight": bb.asarray([1.0, 2.0])}, about={"epoch": 3})
        >>> load_model(path)
        Saved(state={'weight': array([1., 2.], dtype=float32)}, about={'epoch': 3})
    """
    arrays: dict[str, NDArray[Any]] = {}
    take_apart(dict(state), "", arrays)
    if len(arrays) != len(state):
        raise FileFormatError("save_model: a state holds tensors by name and nothing else; save_state takes trees")
    _write(path, MODEL, arrays, dict(about or {}))


def load_model(path: str | os.PathLike[str]) -> Saved:
    """Read what :func:`save_model` wrote; arrays are NumPy's.

    Nothing in the file is executed. Raises :class:`FileFormatError`, which names the file and what is wrong with it,
    for one that is corrupt, truncated, foreign or of another version; FileNotFoundError where there is none.
    """
    arrays, document = _read(path, MODEL)
    if not isinstance(document, dict):
        raise FileFormatError(f"{Path(path)}: its document is no table")
    return Saved(arrays, document)


def save_state(path: str | os.PathLike[str], tree: Any) -> None:
    """Write a tree of tensors and plain values, such as all that is needed to go on training. As :func:`save_model`."""
    arrays: dict[str, NDArray[Any]] = {}
    document = take_apart(tree, "", arrays)
    _write(path, STATE, arrays, document)


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read what :func:`save_state` wrote; tensors are NumPy arrays, tuples are lists. Raises as :func:`load_model`."""
    arrays, document = _read(path, STATE)
    try:
        return put_together(document, arrays)
    except FileFormatError as error:
        raise FileFormatError(f"{Path(path)}: {error}") from None


def _write(path: str | os.PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any]], document: Any) -> None:
    from safetensors.numpy import save

    text = json.dumps(document, sort_keys=True)
    metadata = {
        "format": kind,
        "version": str(FORMAT_VERSION),
        "document": text,
        "sha256": _digest(arrays, text),
    }
    write_atomically(path, save(dict(arrays), metadata=metadata))


def _read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """The arrays and the document of a file, after every check."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        raise FileFormatError(f"{path}: this is a folder, not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_header(path, kind, metadata)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        document = json.loads(metadata["document"])
    except (BackburnError, OSError):
        raise
    except SafetensorError as error:
        raise FileFormatError(f"{path}: no safetensors file, or a damaged one ({error})") from error
    except Exception as error:  # a hostile header may trip the reader anywhere; whatever it says, the file is refused
        raise FileFormatError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if _digest(arrays, metadata["document"]) != metadata["sha256"]:
        raise FileFormatError(f"{path}: the file is damaged: its content does not have the checksum that it names")
    return arrays, document


def _check_header(path: Path, kind: str, metadata: Mapping[str, str]) -> None:
    found = metadata.get("format")
    if found != kind:
        what = f"a {found!r}" if found else "a file of tensors that backburn did not write"
        raise FileFormatError(f"{path}: this is {what}, and not a {kind!r}")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise FileFormatError(
            f"{path}: format version {metadata.get('version')}, and this release of backburn reads version "
            f"{FORMAT_VERSION}: use the release that wrote the file"
        )
    for key in ("document", "sha256"):
        if key not in metadata:
            raise FileFormatError(f"{path}: the metadata lack {key!r}")


def _digest(arrays: Mapping[str, NDArray[Any]], document: str) -> str:
    """SHA-256 of the document and of each array's name, dtype, shape and bytes, in the order of names."""
    digest = hashlib.sha256(document.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
