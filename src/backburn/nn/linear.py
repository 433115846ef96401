"""Linear and embedding layers."""

from __future__ import annotations

import math
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.nn import functional, init
from backburn.nn.module import Module, parameter
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.options import flags, integer, one_of


def sizes(layer: str, **given: Any) -> tuple[int, ...]:
    """The sizes as Python integers, each at least 1."""
    return tuple(integer(layer, name, value, least=1) for name, value in given.items())


class Linear(Module):
    """``x @ weight.T + bias``, for a ``weight`` (out_features, in_features) and a ``bias`` (out_features,).

    The input's last axis has the length ``in_features``, the result's ``out_features``; leading axes are kept. Weight
    and bias are initialized uniformly between ``-1 / sqrt(in_features)`` and ``1 / sqrt(in_features)``.

    >>> import backburn as bb
    >>> layer = Linear(3, 2)
    >>> layer(bb.asarray([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        in_features, out_features = sizes("Linear", in_features=in_features, out_features=out_features)
        flags("Linear", bias=bias)
        bound = 1.0 / math.sqrt(in_features)
        self.weight = parameter(init.uniform((out_features, in_features), -bound, bound))
        self.bias = parameter(init.uniform((out_features,), -bound, bound)) if bias else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The product, of shape (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)


class Bilinear(Module):
    """The sum of ``x[i] * y[j] * weight[:, i, j]``, plus ``bias``, for vectors ``x`` and ``y``.

    Called with ``x`` (..., in1_features) and ``y`` (..., in2_features); returns (..., out_features). ``weight`` has the
    shape (out_features, in1_features, in2_features), ``bias`` (out_features,); both are initialized uniformly between
    ``-1 / sqrt(in1_features)`` and ``1 / sqrt(in1_features)``.

        >>> import backburn as bb
        >>> Bilinear(3, 4, 2)(bb.ones((5, 3)), bb.ones((5, 4))).shape
        (5, 2)
    """

    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        first, second, outputs = sizes(
            "Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features
        )
        flags("Bilinear", bias=bias)
        bound = 1.0 / math.sqrt(first)
        self.weight = parameter(init.uniform((outputs, first, second), -bound, bound))
        self.bias = parameter(init.uniform((outputs,), -bound, bound)) if bias else None

    def forward(self, x: Tensor, y: Tensor) -> FloatTensor:
        """The sums, of shape (..., out_features)."""
        return functional.bilinear(x, y, self.weight, self.bias)


class Embedding(Module):
    """A table of ``num_embeddings`` vectors of length ``embedding_dim``, looked up by indices of any shape.

    ``weight`` has the shape (num_embeddings, embedding_dim) and is initialized with the standard normal distribution,
    and with 0 in the row ``padding_idx``, which gets no gradient. Raises :class:`OutOfRangeError` for indices out of
    range.

    >>> import backburn as bb
    >>> Embedding(10, 4)(bb.asarray([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    weight: FloatTensor

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        self.weight, self.padding_idx = _table("Embedding", num_embeddings, embedding_dim, padding_idx)

    def forward(self, ids: Tensor) -> FloatTensor:
        """The vectors, of shape ``(*ids.shape, embedding_dim)``."""
        return functional.embedding(ids, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """The mean, sum or maximum of the vectors selected by each bag of indices.

    Called with indices (..., bag); returns (..., embedding_dim). ``mode`` is ``"mean"``, ``"sum"`` or ``"max"``;
    ``"sum"`` accepts ``per_sample_weights``. Shorter bags are padded with ``padding_idx``, which is ignored. ``weight``
    is that of :class:`Embedding`; see :func:`functional.embedding_bag`.

        >>> import backburn as bb
        >>> EmbeddingBag(10, 4, padding_idx=0)(bb.asarray([[1, 2, 9], [3, 0, 0]])).shape
        (2, 4)
    """

    weight: FloatTensor

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean", padding_idx: int | None = None
    ) -> None:
        self.mode: str = one_of("EmbeddingBag", "the mode", mode, ("mean", "sum", "max"))
        self.weight, self.padding_idx = _table("EmbeddingBag", num_embeddings, embedding_dim, padding_idx)

    def forward(self, ids: Tensor, per_sample_weights: Tensor | None = None) -> FloatTensor:
        """One vector for each bag."""
        return functional.embedding_bag(
            ids, self.weight, mode=self.mode, per_sample_weights=per_sample_weights, padding_idx=self.padding_idx
        )


def _table(
    layer: str, num_embeddings: int, embedding_dim: int, padding_idx: int | None
) -> tuple[FloatTensor, int | None]:
    """The initial weight of an embedding, and the index of its padding row, if any."""
    count, size = sizes(layer, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
    first = init.normal((count, size))
    if padding_idx is not None:
        padding_idx = integer(layer, "padding_idx", padding_idx)
        if not -count <= padding_idx < count:
            raise ArgumentError(f"{layer}: padding_idx {padding_idx} names none of {count} rows")
        first = first.at[padding_idx].set(0.0)
    return parameter(first), padding_idx
