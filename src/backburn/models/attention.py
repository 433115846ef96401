"""Shared parts of decoders: positions, masks and the cache of one call, rotary angles, and attention over heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.models.cache import CHUNK, Cache
from backburn.nn import functional
from backburn.tensor import creation, elementwise, logic, scan, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import cast, tensor_operand, upcast_half_dtype
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor

#: Activations by their published names.
ACTIVATIONS: dict[str, Callable[[Tensor], FloatTensor]] = {
    "silu": functional.silu, "swish": functional.silu, "relu": functional.relu, "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, "tanh"), "gelu_pytorch_tanh": lambda x: functional.gelu(x, "tanh"),
}  # fmt: skip


class Steps:
    """New tokens (..., steps) in a call of a decoder: their positions, what they attend to, and the cache.

    ``attention_mask`` (..., steps) is 0 for padding, on either side, and determines positions: a token's is the number
    of tokens before it. The mask is for the new tokens; earlier ones are in the cache.
    """

    def __init__(self, name: str, tokens: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> None:
        """Raises :class:`ShapeError` for a mask that does not fit, and :class:`ArgumentError` for a wrong cache."""
        if tensor_operand(name, tokens).dtype.kind != "int" or not tokens.ndim or not tokens.shape[-1]:
            raise ShapeError(f"{name}: takes token numbers (..., steps), not {describe((tokens,))}")
        if cache is not None and not isinstance(cache, Cache):
            raise ArgumentError(f"{name}: cache is a bb.models.Cache() or None, not {cache!r:.100}")
        if attention_mask is not None and tensor_operand(name, attention_mask).shape != tokens.shape:
            words = "the attention_mask has the shape of the tokens, and is 0 for padding"
            raise ShapeError(f"{name}: {words}. Operands: {describe((tokens, attention_mask))}")
        k, self.count = tokens.backend, tokens.shape[-1]
        self.cache = cache
        self.start: Any = 0 if cache is None else cache.length
        self._masks: dict[int | None, Any] = {}
        self._lends = False
        if cache is not None and not cache.is_fixed and self.end > cache.capacity:
            cache.reserve(max(2 * cache.capacity, -(-self.end // CHUNK) * CHUNK))
        steps: Any = creation.arange(self.count, backend=k)
        self._is_first = isinstance(self.start, int) and self.start == 0
        self.places: Any = steps if self._is_first else steps + self.start
        self._present: Any = None
        self.positions: Any = self.places
        if attention_mask is not None or (cache is not None and cache.present is not None):
            self._note_padding(attention_mask, tokens)

    def _note_padding(self, attention_mask: Any, tokens: Tensor) -> None:
        new: Any = creation.ones(tokens.shape, dtype="bool", backend=tokens.backend)
        new = new if attention_mask is None else attention_mask != 0
        before: Any = 0
        self._present = new
        if self.cache is not None:
            if self.cache.present is not None:
                earlier = creation.arange(self.cache.capacity, backend=tokens.backend) < self.start
                before = cast(logic.logical_and(self.cache.present, earlier), self.places.dtype).sum(-1, keepdims=True)
            elif not self._is_first:
                before = self.start
            self._present = self.cache.write_present(new, self.places)
            if not self.cache.is_fixed:
                self._present = self._present[..., : self.end]
        counts = scan.cumulative_sum(cast(new, self.places.dtype), axis=-1)
        self.positions = (counts + (before - 1)).maximum(0)

    @property
    def end(self) -> Any:
        """The number of steps with the new ones."""
        return self.start + self.count

    def mask(self, window: int | None) -> tuple[Any, bool]:
        """The attention mask (..., steps, all steps), and whether a causal mask must be added."""
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def _mask(self, window: int | None) -> tuple[Any, bool]:
        present = None if self._present is None else self._present[..., None, None, :]
        if self.cache is not None and self.cache.is_fixed:
            count: Any = self.cache.capacity
        else:
            count = self.end
            window = None if window is None or window >= count else window
            if window is None and (self._is_first or self.count == 1):
                return present, self._is_first
        keys, queries = creation.arange(count, backend=self.places.backend), self.places[:, None]
        seen = keys <= queries
        if window is not None:
            seen = logic.logical_and(seen, keys > queries - window)
        return (seen if present is None else logic.logical_and(seen, present)), False

    def attend(
        self,
        layer: int,
        query: Any,
        key: Any,
        value: Any,
        *,
        window: int | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Any:
        """Attention of heads (..., heads, steps, head_dim) in a layer, as (..., steps, heads * head_dim)."""
        if self.cache is not None:
            is_recorded = query.is_tracked or key.is_tracked or value.is_tracked
            key, value = self.cache.write(layer, key, value, self.places, not is_recorded)
            self._lends = self._lends or is_recorded
            self.cache.is_lent = self.cache.is_lent or is_recorded
        mask, is_causal = self.mask(window)
        joint: Any = functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3]
        )
        return merge_heads(joint)

    def finish(self) -> None:
        """Add the new steps to the cache's length: after the last layer, so that a failure adds none."""
        if self.cache is not None:
            self.cache.length, self.cache.is_lent = self.end, self._lends


def split_heads(x: Any, width: int) -> Any:
    """(..., steps, heads * width) as (..., heads, steps, width)."""
    return shape.swapaxes(x.reshape((*x.shape[:-1], x.shape[-1] // width, width)), -2, -3)


def merge_heads(x: Any) -> Any:
    """(..., heads, steps, width) as (..., steps, heads * width)."""
    x = shape.swapaxes(x, -2, -3)
    return x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1]))


class Rotation:
    """The cosines and sines that rotate heads at the positions of a call: rotary position embedding.

    Feature ``i`` of the first half of a head and feature ``i`` of the second are rotated by ``position * rates[i]``, as
    in GPT-NeoX, and multiplied by ``scale``. After Su et al., RoFormer, 2021.
    """

    def __init__(self, positions: Any, rates: Any, scale: float, like: Any) -> None:
        """For heads of the dtype of ``like``; 16-bit floats are rotated in float32."""
        self._exact, self._dtype = upcast_half_dtype(like.dtype), like.dtype
        rates = rates if is_tensor(rates) else asarray(rates, dtype=self._exact, backend=like.backend)
        angles = cast(positions, self._exact)[..., None] * cast(rates, self._exact)
        cos, sin = elementwise.cos(angles) * scale, elementwise.sin(angles) * scale
        if positions.ndim > 1:
            cos, sin = (x[..., None, :, :] for x in (cos, sin))
        self._cos, self._sin = shape.concat([cos, cos], axis=-1), shape.concat([-sin, sin], axis=-1)

    def __call__(self, x: Any) -> Any:
        """The rotated heads, of the shape of ``x`` (..., heads, steps, head_dim)."""
        half = x.shape[-1] // 2
        y: Any = cast(x, self._exact)
        other = shape.concat([y[..., half:], y[..., :half]], axis=-1)
        return cast(y * self._cos + other * self._sin, self._dtype)
