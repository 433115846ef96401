"""Arrays of any library, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backburn.base.dtypes import DTYPES
from backburn.base.errors import ArgumentError, DTypeError
from backburn.io.weights.stored import Stored, kind_of, nothing
from backburn.tensor.core.host import quantized_parts
from backburn.tensor.core.wrapping import is_tensor


def read(arrays: Mapping[Any, Any]) -> dict[str, Stored]:
    """The arrays of a mapping. Raises :class:`ArgumentError` for names that are not strings."""
    tensors: dict[str, Stored] = {}
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise ArgumentError(f"load_weights: the names of tensors are strings, not {name!r}")
        tensors[name] = _stored(name, value)
    return tensors


def _stored(name: str, value: Any) -> Stored:
    if is_tensor(value) and value.dtype.kind == "quantized":
        scheme, parts = value.dtype.name, functools.partial(quantized_parts, value)
        return Stored(value.shape, scheme, nothing, kind="quantized", scheme=scheme, parts=parts)
    if is_tensor(value):
        return Stored(value.shape, value.dtype.name, lambda: value, kind=value.dtype.kind)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise DTypeError(f"load_weights: {name} is not an array, but a {type(value).__name__} ({error})") from error
    own = value.dtype
    dtype = own.name if isinstance(own, np.dtype) else str(own).rpartition(".")[2]
    shape = tuple(int(n) for n in value.shape)
    read = functools.partial(_host, name, value)
    return Stored(shape, dtype, read, "", nothing if isinstance(value, np.ndarray) else read, kind=kind_of(dtype))


#: Conversions to NumPy: as they are, detached from a graph and a device, and floats that NumPy lacks as float32.
_WAYS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: x.detach().cpu(),
    lambda x: x.get(),
    lambda x: x.detach().cpu().float(),
    lambda x: x.astype("float32"),
)


def _host(name: str, value: Any) -> Any:
    """An array as a NumPy array."""
    errors = []
    for way in _WAYS:
        try:
            found = np.asarray(way(value))
        except Exception as error:  # of whatever library
            errors.append(error)
            continue
        if found.dtype.name in DTYPES:
            return found
    raise DTypeError(f"load_weights: {name}, a {type(value).__name__}, cannot become a NumPy array") from (
        errors[0] if errors else None
    )
