"""One tensor of a source, and sources: tensors by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from backburn.base.dtypes import DTYPES, as_dtype
from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.io.quantized import Parts
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.numbers import WIDENED
from backburn.tensor.core.host import quantized_from_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: The bytes of memory that a tensor of a source takes before it is read.
TENSOR = 800


def nothing() -> None:
    """Check nothing."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a source: what is known of it before it is read.

    ``dtype`` is a name: one of ours, or another, such as ``"float8_e4m3fn"`` and ``"Q4_K"``, for which ``read`` returns
    the values in a float dtype that holds them. ``kind`` is ``"float"``, ``"int"``, ``"bool"`` or ``"quantized"``;
    empty for what cannot be read. ``read`` returns an array that belongs to the source, or a tensor of ours. ``check``
    raises if reading would fail, without keeping what it reads. ``where`` is the file, for errors.

    If the values fit a scheme exactly, ``scheme`` is its name, ``parts`` reads them as a quantized tensor's (values,
    steps and zero points, as arrays), and ``check_parts`` is a ``check`` of these.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Any]
    where: str = ""
    check: Callable[[], object] = nothing
    kind: str = field(default="", kw_only=True)
    scheme: str = field(default="", kw_only=True)
    parts: Callable[[], Parts] | None = field(default=None, kw_only=True)
    check_parts: Callable[[], object] = field(default=nothing, kw_only=True)

    def quantized(self, backend: Any) -> Any:
        """The quantized tensor on a backend."""
        assert self.parts is not None
        return quantized_from_parts(*self.parts(), as_dtype(self.scheme), self.shape, backend)

    def rows(self, start: int, end: int) -> Stored:
        """A part along the first axis, as floats."""
        shape = (end - start, *self.shape[1:])
        return replace(self, shape=shape, read=lambda: self.read()[start:end], scheme="", parts=None)

    def taken(self, rows: NDArray[Any]) -> Stored:
        """The rows with these indices, in their scheme if it has blocks along rows, else as floats."""
        read, shape, parts = self.read, (len(rows), *self.shape[1:]), self.parts
        found = replace(self, shape=shape, read=lambda: np.asarray(read())[rows], scheme="", parts=None)
        scheme: Any = as_dtype(self.scheme) if parts is not None else None
        if parts is None or scheme.granularity != "block" or len(scheme.block_shape) != 1:
            return found
        return replace(found, scheme=self.scheme, parts=partial(_taken_parts, parts, rows))

    def turned(self, axes: tuple[int, ...]) -> Stored:
        """The tensor with its axes in another order, as floats."""
        shape = tuple(self.shape[axis] for axis in axes)
        read = lambda: np.transpose(np.asarray(self.read()), axes)  # noqa: E731
        return replace(self, shape=shape, read=read, scheme="", parts=None)


@dataclass
class Source:
    """Tensors by name, and the files they are in, which stay open until the source is closed."""

    where: str
    tensors: dict[str, Stored]
    files: list[MappedFile] = field(default_factory=list)
    #: The metadata of GGUF files about their model, by key.
    metadata: dict[str, Any] = field(default_factory=dict)

    def release(self) -> None:
        """Release the memory of what was read; see :class:`MappedFile`."""
        for file in self.files:
            file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.tensors.clear()
        for file in self.files:
            file.close()


def _taken_parts(parts: Callable[[], Parts], rows: NDArray[Any]) -> Parts:
    values, scale, zero = parts()
    return values[rows], scale[rows], None if zero is None else zero[rows]


def kind_of(dtype: str) -> str:
    """The kind of tensors that a dtype is read as; empty for a dtype that is not read."""
    return DTYPES[dtype].kind if dtype in DTYPES else "float" if dtype in WIDENED else ""


def elements(where: str, name: str, shape: object) -> int:
    """The number of elements of a shape that a file names. Raises :class:`FileFormatError` for what is not a shape."""
    if isinstance(shape, (list, tuple)) and len(shape) > 32:
        raise FileFormatError(f"{where}: {quoted(name)} has {len(shape)} axes, and tensors have at most 32")
    if not isinstance(shape, (list, tuple)) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise FileFormatError(f"{where}: the shape of {quoted(name)} is not a list of lengths")
    return math.prod(shape)
