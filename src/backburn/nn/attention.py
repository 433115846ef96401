"""Multi-head attention, rotary position embeddings, and a key-value cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.hints.arguments import OF_CLASSES, explained
from backburn.nn import functional, init
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import creation, logic, selection, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, flags


class RotaryEmbedding(Module):
    """Each vector rotated by angles proportional to its position; see :func:`functional.rotary`.

    It has no parameters. ``MultiheadAttention(8, 2, rotary=RotaryEmbedding())`` rotates queries and keys. Raises
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
    ``bb.no_grad()`` for inference. The tensors (..., num_kv_heads, steps, head_dim) may be replaced, for example in
    beam search.

    >>> import backburn as bb
    >>> attention, cache = MultiheadAttention(8, 2), KeyValueCache()
    >>> for step in bb.zeros((3, 1, 8)):
    ...     y = attention(step, is_causal=True, cache=cache)
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


class MultiheadAttention(Module):
    """Multi-head attention: ``num_heads`` heads of attention, between linear layers.

    Called with queries (..., queries, embed_dim) and optional keys (..., keys, kdim) and values (..., keys, vdim),
    which default to the queries and the keys; returns (..., queries, embed_dim). ``mask`` and ``is_causal`` are those
    of :func:`functional.scaled_dot_product_attention`; the mask broadcasts to (..., num_heads, queries, keys), where
    True attends. ``dropout`` drops weights in training mode. After Vaswani et al., Attention is all you need, 2017.

    The projections are the :class:`Linear` layers ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``.
    :meth:`~Module.load_state_dict` also takes the packed ``in_proj_weight`` and ``in_proj_bias`` of PyTorch's layer,
    which :func:`backburn.io.torch_state` writes. The first three weights are initialized uniformly between plus and
    minus ``sqrt(6 / (inputs + outputs))``, counting the outputs of all three, and all biases to 0.

    ``kdim`` and ``vdim`` are the features of keys and values, by default ``embed_dim``. With fewer ``num_kv_heads``,
    each head of keys and values is shared by ``num_heads / num_kv_heads`` query heads (Ainslie et al., GQA, 2023).
    ``rotary``, a :class:`RotaryEmbedding`, rotates queries and keys by their positions. With a ``cache``, the queries
    also attend to the steps in it, and the new keys and values are appended to it. ``softcap`` bounds the scores.

    Raises :class:`ArgumentError` unless ``num_heads`` divides ``embed_dim`` and ``num_kv_heads`` divides ``num_heads``,
    and for a ``bias`` that is not a boolean or a ``softcap`` that is not above 0; when called :class:`ShapeError` for
    inputs that do not fit.

    >>> import backburn as bb
    >>> MultiheadAttention(8, 2)(bb.zeros((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    PACKED_STATE = MappingProxyType(
        {
            "in_proj_weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
            "in_proj_bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
            "q_proj_weight": ("q_proj.weight",),
            "k_proj_weight": ("k_proj.weight",),
            "v_proj_weight": ("v_proj.weight",),
        }
    )

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        softcap: float | None = None,
    ) -> None:
        name = "MultiheadAttention"
        embed_dim, num_heads = sizes(name, embed_dim=embed_dim, num_heads=num_heads)
        (num_kv_heads,) = sizes(name, num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads)
        self.kdim, self.vdim = sizes(
            name, kdim=embed_dim if kdim is None else kdim, vdim=embed_dim if vdim is None else vdim
        )
        flags(name, bias=bias)
        functional.check_probability(name, dropout)
        if embed_dim % num_heads:
            raise ArgumentError(f"{name}: {embed_dim} features do not form {num_heads} heads of equal size")
        if num_heads % num_kv_heads:
            raise ArgumentError(
                f"{name}: {num_heads} heads of queries are not a multiple of {num_kv_heads} heads of keys"
            )
        width = embed_dim // num_heads
        if rotary is not None and not isinstance(rotary, Module):
            raise ArgumentError(f"{name}: rotary is a RotaryEmbedding() or None, not {rotary!r}")
        if rotary is not None and width % 2:
            raise ArgumentError(
                f"{name}: rotary rotates pairs of features, but heads have {width} ({embed_dim} / {num_heads})"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = width
        self.dropout = dropout
        self.rotary = rotary
        self.softcap = None if softcap is None else bounded(name, "softcap", softcap, above=0, below=math.inf)
        self.q_proj = Linear(embed_dim, embed_dim, bias)
        self.k_proj = Linear(self.kdim, num_kv_heads * width, bias)
        self.v_proj = Linear(self.vdim, num_kv_heads * width, bias)
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self._initialize()

    def _initialize(self) -> None:
        """Initialize the projections as Glorot and Bengio (2010) do, uniformly, and the biases to 0.

        The three share one bound, as parts of one weight, if their inputs have equally many features.
        """
        layers = self.q_proj, self.k_proj, self.v_proj
        outputs = [self.embed_dim, *(self.num_kv_heads * self.head_dim,) * 2]
        inputs = [self.embed_dim, self.kdim, self.vdim]
        joint = sum(outputs) if len({*inputs}) == 1 else 0
        for layer, n, m in zip(layers, inputs, outputs, strict=True):
            bound = math.sqrt(6.0 / (n + (joint or m)))
            layer.weight = parameter(init.uniform(layer.weight.shape, -bound, bound))
        for layer in (*layers, self.out_proj):
            layer.bias = None if layer.bias is None else parameter(init.zeros(layer.bias.shape))

    @partial(explained, name="MultiheadAttention.forward", otherwise=OF_CLASSES)
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> FloatTensor:
        """The attention output for each query."""
        name = "MultiheadAttention"
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise ArgumentError(f"{name}: cache is a KeyValueCache() or None, not {cache!r}")
        if cache is not None and not (key is None and value is None):
            raise ArgumentError(f"{name}: with a cache pass queries only, which are keys and values too")
        key = query if key is None else key
        value = key if value is None else value
        for x, features in ((query, self.embed_dim), (key, self.kdim), (value, self.vdim)):
            if tensor_operand(name, x).ndim < 2 or x.shape[-1] != features:
                raise ShapeError(f"{name}: made for inputs (..., length, {features}), not {describe((x,))}")
        layers = ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        q, k, v = (self._split(layer(x)) for layer, x in layers)
        before = 0 if cache is None else cache.length
        if self.rotary is not None:
            q, k = (self.rotary(x, _positions(x, before)) for x in (q, k))
        if cache is not None:
            k, v = cache.followed_by(k, v)
        if is_causal and before:
            mask, is_causal = _until(q, before, mask), False
        joint: Any = functional.scaled_dot_product_attention(
            q, k, v, mask, self.dropout if self.training else 0.0, is_causal, softcap=self.softcap,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        if cache is not None:
            cache.key, cache.value = k, v
        joint = shape.swapaxes(joint, -2, -3)
        return self.out_proj(joint.reshape((*joint.shape[:-2], self.embed_dim)))

    def _split(self, x: Any) -> Any:
        """(..., length, n * head_dim) as (..., n, length, head_dim)."""
        return shape.swapaxes(x.reshape((*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)), -2, -3)


def _positions(x: Any, before: int) -> Tensor | None:
    """The positions of the steps of ``x`` that follow ``before`` earlier steps."""
    return creation.arange(before, before + x.shape[-2], backend=x.backend) if before else None


def _until(q: Any, before: int, mask: Tensor | None) -> Tensor | None:
    """``mask`` combined with a causal mask for queries that follow ``before`` keys."""
    steps = q.shape[-2]
    if steps == 1:
        return mask  # the last query attends to all keys
    seen: Any = selection.tril(creation.ones((steps, before + steps), dtype="bool", backend=q.backend), before)
    if mask is None:
        return seen
    if tensor_operand("MultiheadAttention", mask).dtype.is_floating:
        return selection.where(seen, mask, -math.inf)
    return logic.logical_and(seen, mask)
