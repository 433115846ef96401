"""Multi-head attention, rotary position embeddings, and a key-value cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module
from backburn.tensor import choice, create, logic, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import bounded, flags


class RotaryEmbedding(Module):
    """Each vector rotated by angles proportional to its position; see :func:`functional.rotary`.

    It has no parameters. ``MultiHeadAttention(size, heads, rotary=RotaryEmbedding())`` rotates queries and keys. Raises
    :class:`ArgumentError` for a ``base`` that is not above 0.

    >>> import backburn as bb
    >>> RotaryEmbedding()(bb.ones((5, 8))).shape
    (5, 8)
    """

    def __init__(self, base: float = 10000.0, interleaved: bool = True) -> None:
        flags("RotaryEmbedding", interleaved=interleaved)
        self.base = bounded("RotaryEmbedding", "base", base, above=0)
        self.interleaved = interleaved

    def forward(self, x: Tensor, positions: Tensor | None = None) -> FloatTensor:
        """The rotated vectors, of the shape of ``x`` (..., steps, size)."""
        return functional.rotary(x, positions, base=self.base, interleaved=self.interleaved)


@dataclass(eq=False)
class KeyValueCache:
    """The keys and values of earlier steps, for generating a sequence step by step.

    Begin with an empty cache for each layer, and pass it to every call together with the new steps only; use
    ``bb.no_grad()`` for inference. The tensors (..., heads, steps, size / heads) may be replaced, for example in beam
    search.

    >>> import backburn as bb
    >>> attention, cache = MultiHeadAttention(8, 2), KeyValueCache()
    >>> for step in bb.zeros((3, 1, 8)):
    ...     y = attention(step, causal=True, cache=cache)
    >>> y.shape, cache.length
    ((1, 8), 3)
    """

    key: FloatTensor | None = None
    value: FloatTensor | None = None

    @property
    def length(self) -> int:
        """The number of steps."""
        return 0 if self.key is None else self.key.shape[-2]

    def followed_by(self, key: Any, value: Any) -> tuple[Any, Any]:
        """The keys and values of all steps, with those of the new steps appended; the cache is unchanged."""
        if self.key is None or self.value is None:
            return key, value
        return shape.concat([self.key, key], axis=-2), shape.concat([self.value, value], axis=-2)


class MultiHeadAttention(Module):
    """Multi-head attention: attention in ``heads`` parts of the ``size`` features, between linear layers.

    Called with queries (..., queries, size) and optional keys and values (..., keys, size), which default to the
    queries; returns (..., queries, size). ``mask`` and ``causal`` are those of
    :func:`functional.scaled_dot_product_attention`; the mask broadcasts to (..., heads, queries, keys). ``dropout``
    drops weights in training mode. After Vaswani et al., Attention is all you need, 2017.

    With fewer ``kv_heads``, each head of keys and values is shared by ``heads / kv_heads`` query heads (Ainslie et al.,
    GQA, 2023). ``rotary``, a :class:`RotaryEmbedding`, rotates queries and keys by their positions. With a ``cache``,
    the queries also attend to the steps in it, and the new keys and values are appended to it. ``softcap`` bounds the
    scores.

    Raises :class:`ArgumentError` unless ``heads`` divides ``size`` and ``kv_heads`` divides ``heads``, and for a
    ``bias`` that is not a boolean or a ``softcap`` that is not above 0; when called :class:`ShapeError` for inputs that
    do not fit.

    >>> import backburn as bb
    >>> MultiHeadAttention(8, 2)(bb.zeros((3, 5, 8)), causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        size: int,
        heads: int,
        bias: bool = True,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        softcap: float | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        size, heads, kv_heads = sizes(name, size=size, heads=heads, kv_heads=heads if kv_heads is None else kv_heads)
        flags(name, bias=bias)
        functional.check_probability(name, dropout)
        if size % heads:
            raise ArgumentError(f"{name}: {size} features do not form {heads} heads of equal size")
        if heads % kv_heads:
            raise ArgumentError(
                f"{name}: {kv_heads} heads of keys do not serve equally many of {heads} heads of queries"
            )
        width = size // heads
        if rotary is not None and not isinstance(rotary, Module):
            raise ArgumentError(f"{name}: rotary is a RotaryEmbedding() or None, not {rotary!r}")
        if rotary is not None and width % 2:
            raise ArgumentError(f"{name}: rotary turns pairs of features, and heads have {width} ({size} / {heads})")
        self.size = size
        self.heads = heads
        self.kv_heads = kv_heads
        self.dropout = dropout
        self.rotary = rotary
        self.softcap = None if softcap is None else bounded(name, "softcap", softcap, above=0, below=math.inf)
        self.query = Linear(size, size, bias)
        self.key = Linear(size, kv_heads * width, bias)
        self.value = Linear(size, kv_heads * width, bias)
        self.output = Linear(size, size, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> FloatTensor:
        """The attention output for each query."""
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise ArgumentError(f"MultiHeadAttention: cache is a KeyValueCache() or None, not {cache!r}")
        if cache is not None and not (key is None and value is None):
            raise ArgumentError("MultiHeadAttention: a cache is for queries alone, which are keys and values too")
        key = query if key is None else key
        value = key if value is None else value
        for x in (query, key, value):
            if tensor_operand("MultiHeadAttention", x).ndim < 2 or x.shape[-1] != self.size:
                raise ShapeError(
                    f"MultiHeadAttention: made for inputs (..., length, {self.size}), not {describe((x,))}"
                )
        q, k, v = (self._split(layer(x)) for layer, x in ((self.query, query), (self.key, key), (self.value, value)))
        before = 0 if cache is None else cache.length
        if self.rotary is not None:
            q, k = (self.rotary(x, _positions(x, before)) for x in (q, k))
        if cache is not None:
            k, v = cache.followed_by(k, v)
        if causal and before:
            mask, causal = _until(q, before, mask), False
        joint: Any = functional.scaled_dot_product_attention(
            q, k, v, mask, causal=causal, dropout=self.dropout if self.training else 0.0, softcap=self.softcap,
            enable_gqa=self.kv_heads != self.heads,
        )  # fmt: skip
        if cache is not None:
            cache.key, cache.value = k, v
        joint = shape.swapaxes(joint, -2, -3)
        return self.output(joint.reshape((*joint.shape[:-2], self.size)))

    def _split(self, x: Any) -> Any:
        """(..., length, n * size / heads) as (..., n, length, size / heads)."""
        width = self.size // self.heads
        return shape.swapaxes(x.reshape((*x.shape[:-1], x.shape[-1] // width, width)), -2, -3)


def _positions(x: Any, before: int) -> Tensor | None:
    """Those of the steps of ``x`` after as many as were ``before``."""
    return create.arange(before, before + x.shape[-2], backend=x.backend) if before else None


def _until(q: Any, before: int, mask: Tensor | None) -> Tensor | None:
    """``mask`` combined with a causal mask for queries that follow ``before`` keys."""
    steps = q.shape[-2]
    if steps == 1:
        return mask  # it sees all keys
    seen: Any = choice.tril(create.ones((steps, before + steps), dtype="bool", backend=q.backend), before)
    if mask is None:
        return seen
    if tensor_operand("MultiHeadAttention", mask).dtype.kind == "float":
        return choice.where(seen, mask, -math.inf)
    return logic.logical_and(seen, mask)
