"""The key-value cache of a decoder: the keys and values of earlier steps, written in place and never read on the host.

Each layer's buffer has capacity for more steps than it holds. New steps are written after the earlier ones, into memory
that nothing else refers to, so that a step costs the same however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from backburn.backend.capturing import copy_primitive
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, ShapeError
from backburn.tensor import creation, index, shape
from backburn.tensor.classes import Tensor
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer
from backburn.tensor.core.wrapping import is_tensor

#: The least number of steps by which a buffer grows.
CHUNK = 64


@dataclass(eq=False)
class Cache:
    """The keys and values of a decoder's earlier steps, for generating step by step.

    Pass one to each call, with the new tokens only; the model writes their keys and values into it. All calls have the
    same leading axes. With ``bb.no_grad()``, or on a backend that does not differentiate, buffers are overwritten in
    place; where derivatives are recorded, they are copied. A function under :func:`backburn.vmap` creates its cache
    itself.

    The buffers hold up to ``capacity`` steps, and double when they are full. :meth:`fixed` returns a cache whose
    ``length`` is a tensor: its shapes stay the same from step to step, so that :func:`backburn.capture` replays a step
    that has the cache in its state. A cache is a tree; its tensors are overwritten, so keep ``copy.deepcopy(cache)``
    instead.

    >>> import backburn as bb
    >>> config = bb.models.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
    ...                                num_attention_heads=2)
    >>> model, cache = bb.models.Llama(config).eval(), Cache()
    >>> with bb.no_grad():
    ...     for tokens in ([[1, 2, 3]], [[4]]):
    ...         logits = model(bb.asarray(tokens), cache=cache)
    >>> logits.shape, cache.length, cache.capacity
    ((1, 1, 32), 4, 64)
    """

    #: The number of steps that the buffers can hold.
    capacity: int = 0
    #: The number of steps in the cache, an integer or a tensor. Setting a smaller one removes the last steps.
    length: Any = 0
    #: For each layer (..., heads, capacity, head_dim).
    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    #: Which steps are tokens (..., capacity), and not padding; None while all are.
    present: Any = None
    #: Whether a recorded graph or a copy may refer to the buffers, so that the next step copies them.
    is_lent: bool = False

    def __post_init__(self) -> None:
        """Raises :class:`ArgumentError` for a ``capacity`` that is not a number of steps."""
        self.capacity = integer("Cache", "capacity", self.capacity, least=0)

    def __copy__(self) -> Cache:
        """A cache that continues from the same steps independently."""
        self.is_lent = True
        return Cache(self.capacity, self.length, [*self.keys], [*self.values], self.present, True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        """A cache with buffers of its own: a captured step uses up the tensors that it is given."""

        def copied(x: Any) -> Any:
            return type(x)(copy_primitive(x.backend, x.primitive), x.backend, x.dtype) if is_tensor(x) else x

        keys, values = [*map(copied, self.keys)], [*map(copied, self.values)]
        return Cache(self.capacity, copied(self.length), keys, values, copied(self.present))

    def __repr__(self) -> str:
        return f"Cache(steps={self.length}, capacity={self.capacity}, layers={len(self.keys)})"

    @property
    def is_fixed(self) -> bool:
        """Whether the length is a tensor, and all shapes stay the same."""
        return is_tensor(self.length)

    def reserve(self, capacity: int) -> None:
        """Ensure a capacity of at least ``capacity`` steps, by copying the steps to larger buffers if necessary.

        A replayed step cannot do this: with a fixed cache, call it before the buffers are full.
        """
        more = integer("Cache.reserve", "capacity", capacity, least=0) - self.capacity
        if more <= 0:
            return
        self.keys = [_longer(x, more, -2) for x in self.keys]
        self.values = [_longer(x, more, -2) for x in self.values]
        self.present = None if self.present is None else _longer(self.present, more, -1)
        self.capacity += more

    def fixed(self, capacity: int | None = None) -> Cache:
        """The cache with its length as a tensor and a capacity of at least ``capacity``; it takes over the buffers.

        Raises :class:`ArgumentError` for an empty cache, whose backend and shapes the first call determines.
        """
        if not self.keys:
            raise ArgumentError("Cache.fixed: the cache is empty: let the model read a prompt first")
        self.reserve(self.capacity if capacity is None else capacity)
        length = self.length if self.is_fixed else asarray(self.length, dtype="int64", backend=self.keys[0].backend)
        return Cache(self.capacity, length, self.keys, self.values, self.present, self.is_lent)

    def taken(self, rows: Tensor) -> Cache:
        """A cache of some of the sequences, by index along the first axis, such as those that a beam search keeps."""
        keys, values = ([index.take(x, rows, axis=0) for x in given] for given in (self.keys, self.values))
        present = None if self.present is None else index.take(self.present, rows, axis=0)
        return Cache(self.capacity, self.length, keys, values, present)

    def write(self, layer: int, key: Any, value: Any, places: Any, in_place: bool) -> tuple[Any, Any]:
        """Write the keys and values of new steps (..., heads, steps, head_dim) of a layer; returns those of all steps.

        With a fixed length these are the whole buffers; a mask excludes the steps to come. Buffers are copied unless
        ``in_place``, or if something else may refer to them.
        """
        in_place = in_place and not self.is_lent
        if layer == len(self.keys):
            self.keys.append(_zeros((*key.shape[:-2], self.capacity, key.shape[-1]), key.dtype, key))
            self.values.append(_zeros((*value.shape[:-2], self.capacity, value.shape[-1]), value.dtype, value))
        for kept, new in ((self.keys, key), (self.values, value)):
            _check(kept[layer], new)
            kept[layer] = _written(kept[layer], new, places, -2, in_place)
        if self.is_fixed:
            return self.keys[layer], self.values[layer]
        end = self.length + key.shape[-2]
        return self.keys[layer][..., :end, :], self.values[layer][..., :end, :]

    def write_present(self, present: Any, places: Any) -> Any:
        """Record which new steps (..., steps) are tokens; returns this for the whole capacity."""
        if self.present is None:
            self.present = creation.ones(
                (*present.shape[:-1], self.capacity), dtype=present.dtype, backend=present.backend
            )
        self.present = _written(self.present, present, places, -1, False)
        return self.present


def _check(buffer: Any, new: Any) -> None:
    """Raise unless new steps fit after those of a buffer."""
    fits = buffer.shape[:-2] == new.shape[:-2] and buffer.shape[-1] == new.shape[-1] and buffer.dtype is new.dtype
    if not fits or buffer.backend != new.backend:
        raise ShapeError(
            f"Cache: made for keys and values like {describe((buffer,))}, not {describe((new,))}: another model, or "
            "another number of sequences; begin with an empty Cache()"
        )


def _written(buffer: Any, new: Any, places: Any, axis: int, in_place: bool) -> Any:
    axis += buffer.ndim
    if in_place:
        return call("index_copy", buffer, places, new, axis=axis, donate=True)
    return index.index_copy(buffer, places, new, axis=axis)


def _zeros(lengths: tuple[int, ...], dtype: DType, like: Any) -> Any:
    return creation.zeros(lengths, dtype=dtype, backend=like.backend)


def _longer(x: Any, more: int, axis: int) -> Any:
    """A buffer with ``more`` empty steps at its end."""
    lengths = [*x.shape]
    lengths[axis] = more
    return shape.concat([x, creation.zeros(tuple(lengths), dtype=x.dtype, backend=x.backend)], axis=axis)
