"""Models and training state as safetensors files.

The tensors of a model are stored under their own names, for any reader of the format. The metadata have one entry,
``backburn``: a JSON table of the ``format``, its ``version``, a ``document`` (what is not a tensor) and the ``sha256``
of document and tensors, to detect damaged files. The format of the files is described at
https://huggingface.co/docs/safetensors. Needs the extra ``train``.
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

from backburn.base.errors import BackburnError, BackendUnavailableError, DTypeError, FileFormatError
from backburn.io.atomic import write_atomically
from backburn.io.plain import check_names, put_together, take_apart
from backburn.io.quantized import of_parts, parts_of
from backburn.tensor.classes import QuantizedTensor

#: The version of the files that this release writes, and the only one that it reads.
FORMAT_VERSION = 2
KEY = "backburn"
#: Why files of an earlier version are refused.
REASONS = {1: "whose weights of linear, bilinear and recurrent layers are transposed and in part named otherwise"}
#: The name that the format keeps for the metadata.
RESERVED = "__metadata__"
MODEL = "backburn model"
STATE = "backburn state"


@dataclass(frozen=True)
class Saved:
    """The contents of a model file: ``state``, the model's arrays by name, and ``about``, additional plain values.

    Quantized tensors are tensors in ``state`` too, on the default backend, as they were stored.
    """

    state: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)


def save_model(
    path: str | os.PathLike[str], state: Mapping[str, Any], *, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model's ``state_dict()`` to a safetensors file, and ``about``: plain values such as the configuration.

    The file is written atomically. The stored values of a quantized tensor are saved under its name, its steps and zero
    points under the name with ``.scale`` or ``.zero``, and its scheme and shape in the metadata. Raises
    :class:`DTypeError` for objects that cannot be saved and OSError if the file cannot be written.

        >>> import tempfile, backburn as bb
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_model(path, {"weight": bb.asarray([1.0, 2.0])}, about={"epoch": 3})
        >>> load_model(path)
        Saved(state={'weight': array([1., 2.], dtype=float32)}, about={'epoch': 3})
    """
    check_names("save_model", state)
    arrays: dict[str, NDArray[Any]] = {}
    plain = {name: x for name, x in state.items() if not isinstance(x, QuantizedTensor)}
    take_apart(plain, "", arrays)
    if len(arrays) != len(plain):
        raise FileFormatError("save_model: a state holds tensors by name and nothing else; save_state takes trees")
    schemes: dict[str, Any] = {}
    for name, x in state.items():
        if isinstance(x, QuantizedTensor):
            schemes[name] = parts_of(name, x, arrays)
    tensors: dict[str, NDArray[Any]] = {}
    document = take_apart(dict(about or {}), "", tensors)
    if tensors:
        raise DTypeError(
            f"save_model: about holds plain values, and {min(tensors)} is an array: save_state takes trees"
        )
    _write(path, MODEL, arrays, document, schemes)


def load_model(path: str | os.PathLike[str]) -> Saved:
    """Read a file of :func:`save_model`, with NumPy arrays.

    Nothing in the file is executed. Raises :class:`FileFormatError`, which says what is wrong, for a file that is
    corrupt, truncated, foreign or of another version; FileNotFoundError if there is none.
    """
    arrays, document, schemes = _read(path, MODEL)
    if not isinstance(document, dict):
        raise FileFormatError(f"{Path(path)}: its document is no table")
    state: dict[str, Any] = dict(arrays)
    try:
        for name, about in schemes.items():
            state[name] = of_parts(name, about, state)
    except FileFormatError as error:
        raise FileFormatError(f"{Path(path)}: {error}") from error
    return Saved(state, document)


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
    arrays: dict[str, NDArray[Any]] = {}
    try:
        document = take_apart(tree, "", arrays)
        _write(path, STATE, arrays, document)
    except RecursionError:
        raise DTypeError("save_state: the tree contains itself, or parts in parts too deep") from None


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read a file of :func:`save_state`. Raises the errors of :func:`load_model`.

    Tensors are returned as NumPy arrays, or as quantized tensors on the default backend; tuples as lists.
    """
    arrays, document, _ = _read(path, STATE)
    try:
        return put_together(document, arrays)
    except FileFormatError as error:
        raise FileFormatError(f"{Path(path)}: {error}") from None
    except RecursionError:
        raise FileFormatError(f"{Path(path)}: its document has parts in parts too deep") from None


def _write(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any]], document: Any, schemes: Any = None
) -> None:
    if RESERVED in arrays:
        raise DTypeError(f"files keep the name {RESERVED!r} for what is no tensor: choose another")
    header = {
        "format": kind,
        "version": FORMAT_VERSION,
        "document": document,
        "sha256": _digest(arrays, [document, schemes] if schemes else document),
    }
    if schemes:
        header["quantized"] = schemes
    # One entry, for the library writes several in an order that changes from run to run.
    write_atomically(path, _library().numpy.save(dict(arrays), metadata={KEY: json.dumps(header, sort_keys=True)}))


def _library() -> Any:
    """The package ``safetensors``. Raises :class:`BackendUnavailableError` where it is not installed."""
    try:
        import safetensors.numpy

        return safetensors
    except ImportError as cause:
        raise BackendUnavailableError(
            "files of save_model and save_state need the package safetensors: pip install 'backburn[train]'; save_npz "
            "and save_weights do not"
        ) from cause


def _read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, NDArray[Any]], Any, dict[str, Any]]:
    """The arrays, the document and the quantized tensors' schemes of a file, after every check."""
    path = Path(path)
    library = _library()
    if path.is_dir():
        raise FileFormatError(f"{path}: this is a folder, not a file")
    try:
        with library.safe_open(path, framework="numpy") as file:
            header = _header(path, kind, file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (BackburnError, OSError):
        raise
    except library.SafetensorError as error:
        raise FileFormatError(f"{path}: no safetensors file, or a damaged one ({error})") from error
    except Exception as error:  # a hostile header may trip the reader anywhere; whatever it says, the file is refused
        raise FileFormatError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    document, schemes = header["document"], header.get("quantized", {})
    if not isinstance(schemes, dict):
        raise FileFormatError(f"{path}: the metadata name no quantized tensors, but {schemes!r}")
    if _digest(arrays, [document, schemes] if schemes else document) != header["sha256"]:
        raise FileFormatError(f"{path}: the file is damaged: its content does not have the checksum that it names")
    return arrays, document, schemes


def _header(path: Path, kind: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The header of a file, checked: its kind and version can be read."""
    if KEY not in metadata:
        raise FileFormatError(
            f"{path}: this is a file of tensors that backburn did not write, and not a {kind}; "
            f"bb.io.load_weights(model, path) loads them"
        )
    header = json.loads(metadata[KEY])
    lacks = {"format", "version", "document", "sha256"} - set(header if isinstance(header, dict) else ())
    if lacks:
        raise FileFormatError(f"{path}: the metadata lack {', '.join(sorted(lacks))}")
    if header["format"] != kind:
        raise FileFormatError(f"{path}: this is a {header['format']}, and not a {kind}")
    if header["version"] != FORMAT_VERSION:
        reason = REASONS.get(header["version"], "")
        raise FileFormatError(
            f"{path}: format version {header['version']}{', ' * bool(reason)}{reason}, and this release of backburn "
            f"reads version {FORMAT_VERSION}: use the release that wrote the file"
        )
    return header


def _digest(arrays: Mapping[str, NDArray[Any]], document: Any) -> str:
    """SHA-256 of the document and of each array's name, dtype, shape and bytes, in the order of names."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
