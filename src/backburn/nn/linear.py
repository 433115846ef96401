"""Linear and embedding layers."""

from __future__ import annotations

import math
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.nn import functional, init
from backburn.nn.module import Module, parameter
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.options import flags, integer, one_of


def sizes(layer: str, **given: Any) -> tuple[int, ...]:
    """The sizes as Python integers, each at least 1."""
    return tuple(integer(layer, name, value, least=1) for name, value in given.items())


class Linear(Module):
    """``x @ weight + bias``, for a ``weight`` of shape (inputs, outputs) and a ``bias`` of shape (outputs,).

    The input's last axis has the length ``inputs``, the result's ``outputs``; leading axes are kept. Weight and bias
    are initialized uniformly between ``-1 / sqrt(inputs)`` and ``1 / sqrt(inputs)``.

    >>> import backburn as bb
    >>> layer = Linear(3, 2)
    >>> layer(bb.asarray([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        inputs, outputs = sizes("Linear", inputs=inputs, outputs=outputs)
        flags("Linear", bias=bias)
        bound = 1.0 / math.sqrt(inputs)
        self.weight = parameter(init.uniform((inputs, outputs), bound))
        self.bias = parameter(init.uniform((outputs,), bound)) if bias else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The product, of shape (..., outputs)."""
        return functional.linear(x, self.weight, self.bias)


class Bilinear(Module):
    """The sum of ``x[i] * y[j] * weight[i, j]``, plus ``bias``, for vectors ``x`` and ``y``.

    Called with ``x`` (..., first) and ``y`` (..., second); returns (..., outputs). ``weight`` has the shape (first,
    second, outputs), ``bias`` (outputs,); both are initialized uniformly between ``-1 / sqrt(first)`` and ``1 /
    sqrt(first)``.

        >>> import backburn as bb
        >>> Bilinear(3, 4, 2)(bb.ones((5, 3)), bb.ones((5, 4))).shape
        (5, 2)
    """

    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(self, first: int, second: int, outputs: int, bias: bool = True) -> None:
        first, second, outputs = sizes("Bilinear", first=first, second=second, outputs=outputs)
        flags("Bilinear", bias=bias)
        bound = 1.0 / math.sqrt(first)
        self.weight = parameter(init.uniform((first, second, outputs), bound))
        self.bias = parameter(init.uniform((outputs,), bound)) if bias else None

    def forward(self, x: Tensor, y: Tensor) -> FloatTensor:
        """The sums, of shape (..., outputs)."""
        return functional.bilinear(x, y, self.weight, self.bias)


class Embedding(Module):
    """A table of ``count`` vectors of length ``size``, looked up by indices of any shape.

    ``weight`` has the shape (count, size) and is initialized with the standard normal distribution, and with 0 in the
    row ``padding_idx``, which gets no gradient. Raises :class:`OutOfRangeError` for indices out of range.

    >>> import backburn as bb
    >>> Embedding(10, 4)(bb.asarray([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    weight: FloatTensor

    def __init__(self, count: int, size: int, padding_idx: int | None = None) -> None:
        self.weight, self.padding_idx = _table("Embedding", count, size, padding_idx)

    def forward(self, ids: Tensor) -> FloatTensor:
        """The vectors, of shape ``(*ids.shape, size)``."""
        return functional.embedding(ids, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """The mean, sum or maximum of the vectors selected by each bag of indices.

    Called with indices (..., bag); returns (..., size). ``mode`` is ``"mean"``, ``"sum"`` or ``"max"``; ``"sum"``
    accepts ``per_sample_weights``. Shorter bags are padded with ``padding_idx``, which is ignored. ``weight`` is that
    of :class:`Embedding`; see :func:`functional.embedding_bag`.

        >>> import backburn as bb
        >>> EmbeddingBag(10, 4, padding_idx=0)(bb.asarray([[1, 2, 9], [3, 0, 0]])).shape
        (2, 4)
    """

    weight: FloatTensor

    def __init__(self, count: int, size: int, mode: str = "mean", padding_idx: int | None = None) -> None:
        self.mode: str = one_of("EmbeddingBag", "the mode", mode, ("mean", "sum", "max"))
        self.weight, self.padding_idx = _table("EmbeddingBag", count, size, padding_idx)

    def forward(self, ids: Tensor, per_sample_weights: Tensor | None = None) -> FloatTensor:
        """One vector for each bag."""
        return functional.embedding_bag(
            ids, self.weight, mode=self.mode, per_sample_weights=per_sample_weights, padding_idx=self.padding_idx
        )


def _table(layer: str, count: int, size: int, padding_idx: int | None) -> tuple[FloatTensor, int | None]:
    """The initial weight of an embedding, and the index of its padding row, if any."""
    count, size = sizes(layer, count=count, size=size)
    first = init.normal((count, size))
    if padding_idx is not None:
        padding_idx = integer(layer, "padding_idx", padding_idx)
        if not -count <= padding_idx < count:
            raise ArgumentError(f"{layer}: padding_idx {padding_idx} names none of {count} rows")
        first = first.at[padding_idx].set(0.0)
    return parameter(first), padding_idx
