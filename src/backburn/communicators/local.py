"""``Local``: a program of one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from backburn.base.dtypes import DType
from backburn.communicators.protocol import Buffer
from backburn.communicators.ranks import check_lists, check_root


class Local:
    """The communicator of a program of one process; its buffers are NumPy arrays.

    >>> import numpy as np
    >>> received = np.empty(3)
    >>> Local().all_gather(np.arange(3.0), [received])
    >>> received.tolist(), Local().gather_objects("mine")
    ([0.0, 1.0, 2.0], ['mine'])
    """

    name = "local"
    rank = 0
    size = 1

    def split(self, colors: Sequence[int]) -> Local:
        """This process alone."""
        return self

    def empty(self, k: Any, shape: Sequence[int], dtype: DType) -> Buffer:
        """A NumPy array without values."""
        return empty_array(k, shape, dtype)

    def to_buffer(self, k: Any, x: Any, /, *, own: bool = False) -> Buffer:
        """The values of a primitive as a NumPy array."""
        return host_array(k, x, own)

    def from_buffer(self, k: Any, buffer: Buffer, /) -> Any:
        """A primitive with the values of a NumPy array."""
        return from_host_array(k, buffer)

    def add(self, x: Buffer, y: Buffer, total: Buffer) -> None:
        """Fill ``total`` with the sum of two arrays."""
        with np.errstate(all="ignore"):
            np.add(x, y, out=total)

    def all_gather(self, send: Buffer, receive: Sequence[Buffer]) -> None:
        """Copy ``send`` into the one buffer of ``receive``."""
        check_lists("all_gather", self.size, receive)
        receive[0][...] = send

    def all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> None:
        """Copy the one buffer of ``send`` into that of ``receive``."""
        check_lists("all_to_all", self.size, send, receive)
        receive[0][...] = send[0]

    def start_all_to_all(self, send: Sequence[Buffer], receive: Sequence[Buffer]) -> Done:
        """Copy at once."""
        self.all_to_all(send, receive)
        return Done()

    def can_reduce(self, buffer: Buffer) -> bool:
        """True: nothing needs to be added."""
        return True

    def all_reduce(self, buffer: Buffer) -> None:
        """Leave the buffer as it is."""

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Leave the buffer as it is."""
        check_root(root, self.size)

    def gather_objects(self, value: object) -> list[Any]:
        """The value, in a list."""
        return [value]

    def barrier(self) -> None:
        """Return at once."""

    def abort(self, message: str) -> NoReturn:
        """Print the message and end the process with status 1."""
        print(f"backburn: {message}", file=sys.stderr, flush=True)
        os._exit(1)


class Done:
    """A collective that has already finished."""

    def wait(self) -> None:
        """Return at once."""


def empty_array(k: Any, shape: Sequence[int], dtype: DType) -> Any:
    """An uninitialized array: one of ``k``, which may reuse memory, if its primitives are arrays."""
    found = k.empty(tuple(shape), dtype)
    return found if isinstance(found, np.ndarray) else np.empty(tuple(shape), dtype.dtype)


def host_array(k: Any, x: Any, own: bool) -> Any:
    """The values of a primitive as a contiguous NumPy array: its own memory if possible, unless ``own`` is true."""
    if not isinstance(x, np.ndarray):
        x = k.to_numpy(x)
    elif own:
        return x.copy(order="C")
    return np.ascontiguousarray(x) if x.ndim else x


#: Whether the primitives of a backend are NumPy arrays, by type.
_of_arrays: dict[type, bool] = {}


def from_host_array(k: Any, array: Any) -> Any:
    """A primitive with the values of an array: the array itself if the primitives of ``k`` are NumPy arrays."""
    known = _of_arrays.get(type(k))
    if known is None or getattr(k, "wrapped", None) is not None:
        known = isinstance(k.zeros((0,), k.float_dtype), np.ndarray)
        _of_arrays[type(k)] = known
    return array if known else k.from_numpy(array)
