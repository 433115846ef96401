"""The bytes of tensors, part by part, so that writing a file takes little memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.backend.placing import levels_of
from backburn.io.quantized import PartOfQuantized
from backburn.tensor.core.host import host_view, to_host
from backburn.tensor.core.wrapping import is_tensor

#: The bytes of a part: it stays in the processor's cache while one thread writes it and another hashes it.
PART = 1 << 20
Bytes: TypeAlias = NDArray[np.uint8]


def parts_of_bytes(x: Any) -> Iterator[Bytes]:
    """The elements of a tensor, a NumPy array or a part of a quantized tensor in C order, little-endian.

    Host memory that is already in this order is not copied; tensors elsewhere are copied part by part.
    """
    count = max(1, PART // x.dtype.itemsize)
    if is_tensor(x):
        view = to_host(x) if levels_of(x.backend) else host_view(x)  # shards are joined one tensor at a time
        if view is None:
            flat = (x.detach() if x.dtype.has_gradient else x).reshape(-1)
            for start in range(0, x.size, count):
                yield from _parts(to_host(flat[start : start + count]), count)
            return
        x = view
    elif isinstance(x, PartOfQuantized):
        x = x.read()
    yield from _parts(x, count)


def _parts(x: NDArray[Any], count: int) -> Iterator[Bytes]:
    """The bytes of an array, at most ``count`` elements at a time."""
    if not x.flags.c_contiguous and x.size > count and x.ndim:
        for row in x:
            yield from _parts(row, count)
        return
    flat = np.ascontiguousarray(x).reshape(-1)
    for start in range(0, x.size, count):
        part = flat[start : start + count]
        if sys.byteorder == "big" or part.dtype.byteorder == ">":
            part = part.astype(part.dtype.newbyteorder("<"))
        yield part.view(np.uint8)
