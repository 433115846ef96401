"""The types of tensors of each kind: checkers accept each line, and a test compares each with the run-time type."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

import backburn as bb
from backburn import BoolTensor, FloatTensor, IntTensor, QuantizedTensor, Tensor


def floats(x: FloatTensor, i: IntTensor, b: BoolTensor, q: QuantizedTensor, t: Tensor) -> None:
    assert_type(x + x, FloatTensor)
    assert_type(x - i, FloatTensor)
    assert_type(x * b, FloatTensor)
    assert_type(x / q, FloatTensor)
    assert_type(x + t, FloatTensor)
    assert_type(x @ x, FloatTensor)
    assert_type(x @ i, FloatTensor)
    assert_type(x @ q, FloatTensor)
    assert_type(x // 2, FloatTensor)
    assert_type(x % 2.0, FloatTensor)
    assert_type(x**2, FloatTensor)
    assert_type(x * True, FloatTensor)
    assert_type(divmod(x, 2), tuple[FloatTensor, FloatTensor])
    assert_type(1 + x, FloatTensor)
    assert_type(1 - x, FloatTensor)
    assert_type(2.0 * x, FloatTensor)
    assert_type(2 / x, FloatTensor)
    assert_type(2 // x, FloatTensor)
    assert_type(2 % x, FloatTensor)
    assert_type(2**x, FloatTensor)
    assert_type(divmod(2.0, x), tuple[FloatTensor, FloatTensor])
    assert_type(-x, FloatTensor)
    assert_type(+x, FloatTensor)
    assert_type(abs(x), FloatTensor)
    assert_type(x == x, BoolTensor)
    assert_type(x != 2, BoolTensor)
    assert_type(x < i, BoolTensor)
    assert_type(x >= 2.0, BoolTensor)
    assert_type(x.abs(), FloatTensor)
    assert_type(x.maximum(i), FloatTensor)
    assert_type(x.minimum(0.0), FloatTensor)
    assert_type(x.fmod(2), FloatTensor)
    assert_type(x.clip(0, i), FloatTensor)
    assert_type(x.pow(i), FloatTensor)
    assert_type(x.matmul(x), FloatTensor)
    assert_type(x.vecdot(i), FloatTensor)
    assert_type(x.masked_fill(x > 0, 0), FloatTensor)
    assert_type(x.sum(), FloatTensor)
    assert_type(x.prod(axis=0), FloatTensor)
    assert_type(x.mean(axis=(0, 1)), FloatTensor)
    assert_type(x.max(keepdims=True), FloatTensor)
    assert_type(x.min(), FloatTensor)
    assert_type(x.cumsum(axis=0), FloatTensor)
    assert_type(x.sort(), FloatTensor)
    assert_type(x.argmax(), IntTensor)
    assert_type(x.topk(1), tuple[FloatTensor, IntTensor])
    assert_type(x.any(), BoolTensor)
    assert_type(x.exp(), FloatTensor)
    assert_type(x.astype(bb.int64), IntTensor)
    assert_type(x.quantize(), QuantizedTensor)
    assert_type((x * 2 + i).mean().exp() ** 2, FloatTensor)
    assert_type(x.to(x.backend), FloatTensor)
    assert_type(x.detach(), FloatTensor)


def ints(x: FloatTensor, i: IntTensor, b: BoolTensor, q: QuantizedTensor, t: Tensor, number: float) -> None:
    assert_type(i + i, IntTensor)
    assert_type(i - 1, IntTensor)
    assert_type(i * b, IntTensor)
    assert_type(i @ i, IntTensor)
    assert_type(i // 2, IntTensor)
    assert_type(i % i, IntTensor)
    assert_type(i**2, IntTensor)
    assert_type(i * True, IntTensor)
    assert_type(divmod(i, 2), tuple[Tensor, Tensor])
    assert_type(i + x, FloatTensor)
    assert_type(i @ x, FloatTensor)
    assert_type(divmod(i, x), tuple[Tensor, Tensor])
    assert_type(i * 0.5, Tensor)
    assert_type(i + q, Tensor)
    assert_type(i + t, Tensor)
    assert_type(i / i, FloatTensor)
    assert_type(i / 2, FloatTensor)
    assert_type(i / b, FloatTensor)
    assert_type(i / number, FloatTensor)
    assert_type(i / t, Tensor)
    assert_type(1 + i, IntTensor)
    assert_type(1 - i, IntTensor)
    assert_type(2 * i, IntTensor)
    assert_type(2 // i, IntTensor)
    assert_type(2 % i, IntTensor)
    assert_type(2**i, IntTensor)
    assert_type(2.0 * i, Tensor)
    assert_type(2 / i, FloatTensor)
    assert_type(i & i, IntTensor)
    assert_type(i | b, IntTensor)
    assert_type(i ^ 1, IntTensor)
    assert_type(i << 1, IntTensor)
    assert_type(i >> i, IntTensor)
    assert_type(1 & i, IntTensor)
    assert_type(1 << i, IntTensor)
    assert_type(~i, IntTensor)
    assert_type(-i, IntTensor)
    assert_type(+i, IntTensor)
    assert_type(abs(i), IntTensor)
    assert_type(i == 1, BoolTensor)
    assert_type(i <= x, BoolTensor)
    assert_type(i.maximum(0), IntTensor)
    assert_type(i.minimum(x), FloatTensor)
    assert_type(i.fmod(b), IntTensor)
    assert_type(i.abs(), IntTensor)
    assert_type(i.sum(), IntTensor)
    assert_type(i.prod(), IntTensor)
    assert_type(i.mean(), FloatTensor)
    assert_type(i.max(), IntTensor)
    assert_type(i.cumsum(axis=0), IntTensor)
    assert_type(i.sort_with_indices(), tuple[IntTensor, IntTensor])
    assert_type(i.sqrt(), FloatTensor)
    assert_type(i.astype(bb.float32), FloatTensor)


def bools(x: FloatTensor, i: IntTensor, b: BoolTensor, t: Tensor, truth: bool) -> None:
    assert_type(b & b, BoolTensor)
    assert_type(b | truth, BoolTensor)
    assert_type(b ^ b, BoolTensor)
    assert_type(truth & b, BoolTensor)
    assert_type(b & i, IntTensor)
    assert_type(b | 6, Tensor)
    assert_type(6 ^ b, Tensor)
    assert_type(b << i, IntTensor)
    assert_type(b >> 1, IntTensor)
    assert_type(1 << b, IntTensor)
    assert_type(~b, BoolTensor)
    assert_type(b + i, IntTensor)
    assert_type(b * 2, IntTensor)
    assert_type(b // i, IntTensor)
    assert_type(b @ i, IntTensor)
    assert_type(2 * b, IntTensor)
    assert_type(1 - b, IntTensor)
    assert_type(b * x, FloatTensor)
    assert_type(b * 0.5, Tensor)
    assert_type(b + t, Tensor)
    assert_type(b == b, BoolTensor)
    assert_type(b < i, BoolTensor)
    assert_type(b.sum(), IntTensor)
    assert_type(b.any(), BoolTensor)
    assert_type(b.all(axis=0), BoolTensor)
    assert_type(b.logical_not(), BoolTensor)
    assert_type(b.astype(bb.float32), FloatTensor)


def quantized(x: FloatTensor, i: IntTensor, q: QuantizedTensor) -> None:
    """Results are float tensors, or quantized on a backend that quantizes them again."""
    assert_type(q + x, FloatTensor)
    assert_type(q @ x, FloatTensor)
    assert_type(q**x, FloatTensor)
    assert_type(q + q, Tensor)
    assert_type(q * 2.0, Tensor)
    assert_type(1 - q, Tensor)
    assert_type(q / i, Tensor)
    assert_type(q @ q, Tensor)
    assert_type(-q, Tensor)
    assert_type(abs(q), Tensor)
    assert_type(+q, QuantizedTensor)
    assert_type(q < 1, BoolTensor)
    assert_type(q == q, BoolTensor)
    assert_type(q.abs(), Tensor)
    assert_type(q.sum(), Tensor)
    assert_type(q.max(axis=0), Tensor)
    assert_type(q.max_with_indices(), tuple[Tensor, IntTensor])
    assert_type(q.sort(), Tensor)
    assert_type(q.roll(1), Tensor)
    assert_type(q.argmin(), IntTensor)
    assert_type(q.dequantize(), FloatTensor)
    assert_type(q.to(q.backend), QuantizedTensor)


def any_kind(x: FloatTensor, t: Tensor) -> None:
    assert_type(t + 1.0, Tensor)
    assert_type(t * x, Tensor)
    assert_type(2 * t, Tensor)
    assert_type(t @ t, Tensor)
    assert_type(-t, Tensor)
    assert_type(t[0], Tensor)
    assert_type(t.abs(), Tensor)
    assert_type(t.max(), Tensor)
    assert_type(t < 1, BoolTensor)
    assert_type(t.detach(), FloatTensor)


def kept_of_floats(x: FloatTensor, i: IntTensor) -> None:
    assert_type(x.T, FloatTensor)
    assert_type(x.mT, FloatTensor)
    assert_type(x[0], FloatTensor)
    assert_type(x[:, None], FloatTensor)
    assert_type(x.at[0].set(1.0), FloatTensor)
    assert_type(x.reshape(-1), FloatTensor)
    assert_type(x.flatten(), FloatTensor)
    assert_type(x.expand_dims(0).squeeze(0), FloatTensor)
    assert_type(x.broadcast_to((2, 2, 2)), FloatTensor)
    assert_type(x.permute_dims((1, 0)), FloatTensor)
    assert_type(x.moveaxis(0, 1), FloatTensor)
    assert_type(x.swapaxes(0, 1), FloatTensor)
    assert_type(x.flip(), FloatTensor)
    assert_type(x.roll(1), FloatTensor)
    assert_type(x.tile((2, 1)), FloatTensor)
    assert_type(x.take(i[0], axis=0), FloatTensor)
    assert_type(x.take_along_axis(i, axis=0), FloatTensor)
    assert_type(x.unstack(), tuple[FloatTensor, ...])


def kept_of_ints(i: IntTensor) -> None:
    assert_type(i.T, IntTensor)
    assert_type(i[0], IntTensor)
    assert_type(i.at[0].set(1), IntTensor)
    assert_type(i.reshape(-1), IntTensor)
    assert_type(i.broadcast_to((2, 2, 2)), IntTensor)
    assert_type(i.permute_dims((1, 0)), IntTensor)
    assert_type(i.flip(), IntTensor)
    assert_type(i.take(i[0], axis=0), IntTensor)
    assert_type(i.unstack(), tuple[IntTensor, ...])


def kept_of_bools(b: BoolTensor, i: IntTensor) -> None:
    assert_type(b.T, BoolTensor)
    assert_type(b[0], BoolTensor)
    assert_type(b.reshape(-1), BoolTensor)
    assert_type(b.expand_dims(0).squeeze(0), BoolTensor)
    assert_type(b.take(i[0], axis=0), BoolTensor)


def kept_of_quantized(q: QuantizedTensor, i: IntTensor) -> None:
    assert_type(q.T, QuantizedTensor)
    assert_type(q[0], QuantizedTensor)
    assert_type(q.reshape(-1), QuantizedTensor)
    assert_type(q.expand_dims(0).squeeze(0), QuantizedTensor)
    assert_type(q.broadcast_to((2, 2, 2)), QuantizedTensor)
    assert_type(q.flip(), QuantizedTensor)
    assert_type(q.take(i[0], axis=0), QuantizedTensor)


class Block(bb.nn.Module):
    """A user's module with only ``forward``."""

    def __init__(self) -> None:
        self.first = bb.nn.Linear(2, 2)
        self.drop = bb.nn.Dropout(0.1)
        self.attention = bb.nn.MultiheadAttention(2, 1)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.attention(self.drop(self.first(x)) * scale, is_causal=True)
        assert_type(y, FloatTensor)
        return self.drop(self.first(x))


class Pair(bb.nn.Module):
    def forward(self, x: FloatTensor) -> tuple[FloatTensor, FloatTensor]:
        return x, x


def calls(x: FloatTensor) -> None:
    block, pair = Block(), Pair()
    assert_type(block(x), Tensor)
    assert_type(block(x, scale=2.0), Tensor)
    assert_type(block.first(x), FloatTensor)
    assert_type(pair(x), tuple[FloatTensor, FloatTensor])
    assert_type(block.to(x.backend), Block)
    as_function: Callable[[Tensor], Tensor] = block
    assert_type(as_function(x), Tensor)
    row = bb.nn.Sequential(block, bb.nn.ReLU(), bb.nn.Linear(2, 2))
    assert_type(row(x), FloatTensor)
    assert_type(bb.nn.Sequential(row, pair)(x), tuple[FloatTensor, FloatTensor])
    more: bb.nn.Sequential = bb.nn.Sequential(*[bb.nn.ReLU() for _ in range(2)])
    assert_type(more(x), FloatTensor)
    any_module: bb.nn.Module = block
    any_module(x, 2.0)


def complex_numbers(z: bb.ComplexTensor, x: FloatTensor, i: IntTensor) -> None:
    assert_type(z + 1.0, bb.ComplexTensor)
    assert_type(2j * z, bb.ComplexTensor)
    assert_type(x * z, bb.ComplexTensor)
    assert_type(x * 1j, bb.ComplexTensor)
    assert_type(x * 2.0, FloatTensor)
    assert_type(bb.abs(z), FloatTensor)
    assert_type(abs(z), FloatTensor)
    assert_type(bb.real(z), FloatTensor)
    assert_type(bb.conj(z), bb.ComplexTensor)
    assert_type(bb.complex(x, 1.0), bb.ComplexTensor)
    assert_type(-z, bb.ComplexTensor)
    assert_type(z.at[0].set(1j).at[1].add(2j), bb.ComplexTensor)
    assert_type(bb.scatter(z, i, 1j, axis=0), bb.ComplexTensor)
    assert_type(bb.index_add(z, i[0], 1j, axis=0), bb.ComplexTensor)
    assert_type(bb.pad(z, 1, value=1j), bb.ComplexTensor)
    bb.where(z == 1j, z, 1j)
    bb.where(bb.isclose(z, 1j), 1j, 0)
    bb.masked_fill(z, z != 0, 1j)
    bb.lerp(z, bb.pow(z, 1j), 0.5j)
    assert_type(bb.equal(z, 1j), BoolTensor)


def builtins(x: FloatTensor, i: IntTensor) -> None:
    assert_type(sum([x, x], start=x), FloatTensor)
    assert_type(sum([i, i], start=i), IntTensor)
    assert_type(pow(x, 2), FloatTensor)
    for row in x:
        assert_type(row, FloatTensor)
