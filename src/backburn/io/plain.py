"""Trees of tensors and plain values, split into named arrays and JSON, and reassembled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import as_dtype
from backburn.base.errors import DTypeError, FileFormatError
from backburn.base.foreign import quoted
from backburn.io.quantized import of_parts, part_names, parts_of
from backburn.tensor.classes import QuantizedTensor, Tensor
from backburn.tensor.core.host import to_host

#: The key that marks a JSON object as an array; no saved mapping may have it.
MARK = "$array"


def as_array(name: str, value: Any) -> NDArray[Any]:
    """The host array of a tensor or NumPy array. Raises :class:`DTypeError` for quantized tensors and objects."""
    if isinstance(value, Tensor):
        if value.dtype.kind == "quantized":
            raise DTypeError(
                f"{name} is quantized ({value.dtype}), which .npz files do not hold: use save_model, or dequantize"
            )
        value = to_host(value)
    array: NDArray[Any] = np.asarray(checked(name, value))
    return array.astype(as_dtype(array.dtype).dtype, copy=False)  # in native byte order


def checked(name: str, value: Any) -> Any:
    """A tensor, or data as an array of a dtype that tensors have. Raises :class:`DTypeError` for other data."""
    if isinstance(value, Tensor):
        return value
    array: NDArray[Any] = np.asarray(value)
    try:
        as_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(f"{name or 'the state'}: arrays of {array.dtype} are not tensors") from error
    return array


def check_names(operation: str, state: object) -> None:
    """Refuse anything but a mapping from names to tensors."""
    if not isinstance(state, Mapping):
        hint = "write model.state_dict()" if hasattr(state, "state_dict") else "save_state takes trees of any form"
        raise DTypeError(f"{operation}: a state holds tensors by name, and this is a {type(state).__name__}: {hint}")
    for name in state:
        if not isinstance(name, str):
            raise DTypeError(f"{operation}: the names of tensors are strings, not {name!r}")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError:
                words = "contains half of a surrogate pair, which files cannot hold"
                raise DTypeError(f"{operation}: the name {quoted(name)} {words}") from None


def take_apart(tree: Any, name: str, arrays: dict[str, Any]) -> Any:
    """``tree`` as JSON values; its tensors go into ``arrays`` under dotted names that begin with ``name``.

    Nodes are mappings with string keys, lists and tuples (which come back as lists); leaves are tensors, NumPy arrays,
    numbers (NumPy's come back as Python's), strings, booleans and None. Raises :class:`DTypeError` for anything else.
    """
    if isinstance(tree, (Tensor, np.ndarray)):
        while name in arrays:  # {"a.b": x, "a": {"b": y}}
            name += "'"
        if isinstance(tree, QuantizedTensor):
            while any(part in arrays for part in part_names(name)):
                name += "'"
            return {MARK: name, **parts_of(name, tree, arrays)}
        arrays[name] = checked(name, tree)
        return {MARK: name}
    if isinstance(tree, np.generic) and tree.dtype.kind in "fiub":
        tree = tree.item()
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                advice = f"; {str(key)!r} would do" if isinstance(key, (int, float)) else ""
                raise DTypeError(f"{name or 'the state'}: the keys of what is saved are strings, not {key!r}{advice}")
            if key == MARK:
                raise DTypeError(f"{name or 'the state'}: among keys {MARK!r} stands for arrays: choose another")
        return {key: take_apart(value, f"{name}.{key}" if name else key, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [take_apart(value, f"{name}.{i}", arrays) for i, value in enumerate(tree)]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    advice = ": save its state_dict()" if hasattr(tree, "state_dict") else "; tensors, numbers and text can"
    raise DTypeError(f"{name or 'the state'}: a value of type {type(tree).__name__} cannot be saved{advice}")


def put_together(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The inverse of :func:`take_apart`.

    Raises :class:`FileFormatError` for a missing array, and for a quantized tensor that occurs twice, which would be
    built twice.
    """
    return _put_together(tree, arrays, set())


def _put_together(tree: Any, arrays: Mapping[str, NDArray[Any]], made: set[str]) -> Any:
    if isinstance(tree, dict):
        if MARK in tree:
            name = tree[MARK]
            if not isinstance(name, str) or name not in arrays:
                raise FileFormatError(f"the array {name!r:.200} is missing")
            if "scheme" not in tree:
                return arrays[name]
            if name in made:
                raise FileFormatError(f"the quantized tensor {quoted(name)} is in two places")
            made.add(name)
            return of_parts(name, tree, {part: arrays[part] for part in part_names(name) if part in arrays})
        return {key: _put_together(value, arrays, made) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_together(value, arrays, made) for value in tree]
    return tree
