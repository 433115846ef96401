"""The values of GGUF's blocks of integers, in float32.

Each format packs a block of 32 or 256 neighbouring values of a row. The layouts are those of ``ggml-common.h`` and
``dequantize_row_...`` of https://github.com/ggml-org/ggml. A value is an integer times one or two steps, minus an
offset; products are exact in float32, so each result is rounded at most once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.io.quantized import Parts

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
#: Values that are expanded at a time.
_AT_ONCE = 1 << 20
#: Shifts that extract the parts of a byte, along an axis in front of the bytes.
_HALVES, _QUARTERS, _BITS = (np.arange(0, 8, bits, dtype=np.uint8)[:, None] for bits in (4, 2, 1))


@dataclass(frozen=True)
class Block:
    """A format: ``size`` values in ``itemsize`` bytes; ``values`` maps blocks (blocks, bytes) to (blocks, size)."""

    size: int
    itemsize: int
    values: Callable[[Bytes], Any]


def dequantized(raw: Bytes, name: str) -> Floats:
    """The values of neighbouring blocks of a format in :data:`BLOCKS`."""
    block = BLOCKS[name]
    blocks = raw.reshape(-1, block.itemsize)
    result = np.empty((len(blocks), block.size), np.float32)
    count = _AT_ONCE // block.size
    with np.errstate(all="ignore"):  # steps may be infinite or NaN
        for start in range(0, len(blocks), count):
            result[start : start + count] = block.values(blocks[start : start + count])
    return result.reshape(-1)


def _halves(b: Bytes, place: int) -> Floats:
    """The float16 at byte ``place`` of each block, as a column."""
    return np.ascontiguousarray(b[:, place : place + 2]).view("<f2").astype(np.float32)


def _nibbles(b: Bytes) -> NDArray[np.int8]:
    """The low halves of bytes, and then the high ones."""
    return np.concatenate([b & 15, b >> 4], axis=-1).view(np.int8)


def _fifth_bits(b: Bytes) -> NDArray[np.int8]:
    """The bits of four bytes, as 0 or 16."""
    return np.unpackbits(b, axis=-1, bitorder="little").view(np.int8) << 4


def _q4_0(b: Bytes) -> Any:
    return _halves(b, 0) * (_nibbles(b[:, 2:]) - 8)


def _q4_1(b: Bytes) -> Any:
    return _halves(b, 0) * _nibbles(b[:, 4:]) + _halves(b, 2)


def _q5_0(b: Bytes) -> Any:
    return _halves(b, 0) * ((_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])) - 16)


def _q5_1(b: Bytes) -> Any:
    return _halves(b, 0) * (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])) + _halves(b, 2)


def _q8_0(b: Bytes) -> Any:
    return _halves(b, 0) * b[:, 2:].view(np.int8)


def _q2_k(b: Bytes) -> Any:
    scales, packed = b[:, :16], b[:, 16:80].reshape(-1, 2, 1, 32)
    q = (packed >> _QUARTERS) & 3  # two halves of four rows of 32
    steps, offsets = _halves(b, 80) * (scales & 15), _halves(b, 82) * (scales >> 4)
    return _in_groups(steps, q, 16) - np.repeat(offsets, 16, axis=1)


def _q3_k(b: Bytes) -> Any:
    high = (b[:, None, :32] >> _BITS) & 1
    low = (b[:, 32:96].reshape(-1, 2, 1, 32) >> _QUARTERS) & 3
    q = low.reshape(-1, 8, 32).view(np.int8) + (high.view(np.int8) << 2) - 4
    packed = b[:, 96:108]
    low_bits = _nibbles(packed[:, :8])
    high_bits = ((packed[:, None, 8:] >> _QUARTERS) & 3).reshape(-1, 16).view(np.int8)
    steps = _halves(b, 108) * ((low_bits | high_bits << 4) - 32)
    return _in_groups(steps, q, 16)


def _q4_k(b: Bytes) -> Any:
    steps, offsets = _steps_and_offsets(b)
    q = (b[:, 16:].reshape(-1, 4, 1, 32) >> _HALVES) & 15
    return _in_groups(steps, q, 32) - np.repeat(offsets, 32, axis=1)


def _q5_k(b: Bytes) -> Any:
    steps, offsets = _steps_and_offsets(b)
    high = ((b[:, None, 16:48] >> _BITS) & 1) << 4
    low = (b[:, 48:].reshape(-1, 4, 1, 32) >> _HALVES) & 15
    return _in_groups(steps, low.reshape(-1, 8, 32) | high, 32) - np.repeat(offsets, 32, axis=1)


def _q6_k(b: Bytes) -> Any:
    low = (b[:, :128].reshape(-1, 2, 1, 64) >> _HALVES) & 15
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> _QUARTERS) & 3
    q = (low.reshape(-1, 256) | high.reshape(-1, 256) << 4).view(np.int8) - 32
    return _in_groups(_halves(b, 208) * b[:, 192:208].view(np.int8), q, 16)


def _q8_k(b: Bytes) -> Any:
    return np.ascontiguousarray(b[:, :4]).view("<f4") * b[:, 4:260].view(np.int8)


def _in_groups(steps: Any, q: Any, size: int) -> Any:
    """The integers of each block times the steps of their groups."""
    return (steps[:, :, None] * q.reshape(len(steps), -1, size)).reshape(len(steps), -1)


def _steps_and_offsets(b: Bytes) -> tuple[Any, Any]:
    """The eight steps and offsets of a block, whose 6-bit factors are packed into twelve bytes."""
    packed = b[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    steps = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    offsets = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return _halves(b, 0) * steps, _halves(b, 2) * offsets


#: The formats that are read, by name.
BLOCKS = {
    "Q4_0": Block(32, 18, _q4_0),
    "Q4_1": Block(32, 20, _q4_1),
    "Q5_0": Block(32, 22, _q5_0),
    "Q5_1": Block(32, 24, _q5_1),
    "Q8_0": Block(32, 34, _q8_0),
    "Q2_K": Block(256, 84, _q2_k),
    "Q3_K": Block(256, 110, _q3_k),
    "Q4_K": Block(256, 144, _q4_k),
    "Q5_K": Block(256, 176, _q5_k),
    "Q6_K": Block(256, 210, _q6_k),
    "Q8_K": Block(256, 292, _q8_k),
}


# ---- blocks that match a scheme ----


def _split(raw: Bytes, name: str, shape: tuple[int, ...]) -> tuple[NDArray[np.float16], Bytes, tuple[int, ...]]:
    """The steps of blocks, the bytes of their values, and the shape of steps."""
    blocks = raw.reshape(-1, BLOCKS[name].itemsize)
    steps = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float16, copy=False)[:, 0]
    return steps, blocks[:, 2:], (*shape[:-1], shape[-1] // BLOCKS[name].size)


def _q4_0_parts(raw: Bytes, shape: tuple[int, ...]) -> Parts:
    """Blocks of Q4_0, whose low halves of bytes hold the first half of the values; here neighbours share a byte."""
    steps, b, counts = _split(raw, "Q4_0", shape)
    values = np.empty((len(b), 16), np.uint8)
    low, high = b & 15, b & 240
    values[:, :8] = low[:, ::2] | low[:, 1::2] << 4
    values[:, 8:] = high[:, ::2] >> 4 | high[:, 1::2]
    values ^= 0x88
    return values.reshape(*shape[:-1], shape[-1] // 2), steps.reshape(counts), None


def _q8_0_parts(raw: Bytes, shape: tuple[int, ...]) -> Parts:
    """Blocks of Q8_0. Steps of 0, whose values are all 0, become 1; steps below 0 change sign with their values."""
    steps, b, counts = _split(raw, "Q8_0", shape)
    values = np.ascontiguousarray(b).view(np.int8)
    if not (steps > 0).all():
        values, steps = np.where((steps < 0)[:, None], -values, values), np.abs(steps)
        values[steps == 0] = 0
        steps[steps == 0] = 1
    return values.reshape(shape), steps.reshape(counts), None


#: Formats that match a scheme exactly: its name, and the parts of a quantized tensor from bytes and a shape.
SCHEMES: dict[str, tuple[str, Callable[[Bytes, tuple[int, ...]], Parts]]] = {
    "Q4_0": ("qint4_full_block32_float16", _q4_0_parts),
    "Q8_0": ("qint8_symmetric_block32_float16", _q8_0_parts),
}
