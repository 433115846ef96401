"""Writing safetensors files, part by part, with a digest of each tensor on request."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

from backburn.backend.placing import levels_of
from backburn.base.errors import DTypeError
from backburn.io.atomic import write_atomically
from backburn.io.parts import parts_of_bytes
from backburn.io.weights.safetensors_file import DTYPE_NAMES, METADATA, Checksum
from backburn.tensor.core.wrapping import is_tensor

#: Digests by tensor name.
Digests: TypeAlias = Mapping[str, str]
#: Parts that may wait for hashing while others are written: more would leave the cache before.
_WAITING = 4


@dataclass(frozen=True)
class Part:
    """A tensor to be written: the tensors or arrays that are joined along its first axis, usually one."""

    name: str
    values: tuple[Any, ...]

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        name: str = self.values[0].dtype.name
        return name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the joined tensor."""
        first = tuple(self.values[0].shape)
        return (sum(x.shape[0] for x in self.values), *first[1:]) if len(self.values) > 1 else first

    @property
    def nbytes(self) -> int:
        """The bytes in the file."""
        return sum(x.size for x in self.values) * int(self.values[0].dtype.itemsize)


def write(
    path: str | os.PathLike[str],
    parts: Sequence[Part],
    metadata: Mapping[str, str] | Callable[[Digests], Mapping[str, str]],
    *,
    follow: bool = True,
) -> None:
    """Write a file atomically, through a link only if ``follow``.

    Metadata may be a function of the digests, which are computed while tensors are written.

    Tensors with the widest elements come first, so that each is aligned to its element size. Raises
    :class:`DTypeError` for a tensor with the name that the format reserves.
    """
    ordered = sorted(parts, key=lambda part: (-part.values[0].dtype.itemsize, part.name))
    if any(part.name == METADATA for part in ordered):
        raise DTypeError(f"the name {METADATA!r} is reserved for metadata: choose another")
    if not callable(metadata):
        write_atomically(path, _contents(_header(ordered, metadata), ordered), follow=follow)
        return
    about, pieces = metadata, _pieces(ordered)

    def write_hashed(file: BinaryIO) -> None:
        if not file.seekable():  # a pipe
            digests = _hashed(ordered, pieces, lambda part: None)
            file.writelines(_contents(_header(ordered, about(digests)), ordered))
            return
        placeholder = _header(ordered, about(dict.fromkeys((part.name for part in ordered), "0" * 8)))
        file.write(placeholder)
        header = _header(ordered, about(_hashed(ordered, pieces, file.write)))
        assert len(header) == len(placeholder)
        file.seek(0)
        file.write(header)

    try:
        write_atomically(path, write_hashed, follow=follow)
    except Exception:
        if any(is_tensor(x) and levels_of(x.backend) for part in ordered for x in part.values):
            deque(pieces, maxlen=0)  # receive the remaining shards, which other processes still send
        raise


def _header(parts: Sequence[Part], metadata: Mapping[str, str]) -> bytes:
    """The length of the header, and the header."""
    table: dict[str, Any] = {METADATA: dict(metadata)}
    place = 0
    for part in parts:
        if part.dtype not in DTYPE_NAMES:
            raise DTypeError(
                f"{part.name}: safetensors hold no {part.dtype}: cast it to complex64, or use bb.io.save_npz"
            )
        offsets = [place, place + part.nbytes]
        table[part.name] = {"dtype": DTYPE_NAMES[part.dtype], "shape": part.shape, "data_offsets": offsets}
        place += part.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _contents(header: bytes, parts: Sequence[Part]) -> Iterator[Any]:
    yield header
    for part in parts:
        for x in part.values:
            yield from parts_of_bytes(x)


def _pieces(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """The bytes of tensors, piece by piece, each with the name of its tensor."""
    for part in parts:
        for x in part.values:
            for piece in parts_of_bytes(x):
                yield part.name, piece


def _hashed(parts: Sequence[Part], pieces: Iterator[tuple[str, Any]], write: Callable[[Any], object]) -> Digests:
    """Pass the bytes of tensors to ``write`` while another thread hashes them."""
    hashes = {part.name: Checksum(part.name, part.dtype, part.shape) for part in parts}
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for name, piece in pieces:
            waiting.append(pool.submit(hashes[name].update, piece))
            write(piece)
            if len(waiting) > _WAITING:
                waiting.popleft().result()
    return {name: found.text() for name, found in hashes.items()}
