"""Quantized layers, models of them, and adapters that are trained on a frozen layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from backburn.base.dtypes import QuantizedDType, as_dtype, qint8
from backburn.base.errors import ArgumentError
from backburn.base.places import Places
from backburn.nn import functional, init
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module, parameter
from backburn.tensor.classes import FloatTensor, QuantizedTensor, Tensor
from backburn.tensor.create import zeros
from backburn.tensor.defaults import use_backend
from backburn.tensor.dispatch import is_tensor
from backburn.tensor.linalg import matmul

M = TypeVar("M", bound=Module)


class QuantizedLinear(Module):
    """A linear layer with a quantized weight, which is a buffer; made of a :class:`Linear` layer.

    ``weight`` has the shape (outputs, inputs), so that blocks lie along the inputs and ``channel`` axis 0 is an output.
    It is never expanded whole. The bias, kept as a float, is frozen.

    >>> import backburn as bb
    >>> layer = QuantizedLinear(Linear(64, 3), "qint4_symmetric_block32_float16")
    >>> layer(bb.zeros((2, 64))).shape, layer.weight.nbytes
    ((2, 3), 108)
    """

    weight: QuantizedTensor
    bias: FloatTensor | None

    def __init__(self, layer: Linear, scheme: QuantizedDType | str = qint8) -> None:
        self.weight = layer.weight.detach().T.quantize(dtype=scheme)
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> FloatTensor:
        """The product, of shape (..., outputs)."""
        return functional.quantized_linear(x, self.weight, self.bias, transposed=True)


class LoRALinear(Module):
    """``base(x) + (x @ down @ up) * (alpha / rank)`` for a frozen layer: an adapter of low rank.

    Only ``down``, which begins uniform, and ``up``, which begins with zeros, are trained. ``base`` is a
    :class:`QuantizedLinear` layer or a :class:`Linear` one, which is copied and frozen. (Hu et al. (2021), *LoRA:
    Low-Rank Adaptation of Large Language Models*, arXiv:2106.09685.)

    >>> import backburn as bb
    >>> layer = LoRALinear(QuantizedLinear(Linear(8, 3)), rank=2)
    >>> layer(bb.zeros((5, 8))).shape, [name for name, x in layer.named_parameters() if x.is_require_grad]
    ((5, 3), ['down', 'up'])
    """

    base: QuantizedLinear | Linear
    down: FloatTensor
    up: FloatTensor

    def __init__(self, base: QuantizedLinear | Linear, rank: int = 4, alpha: float | None = None) -> None:
        sizes("LoRALinear", rank=rank)
        self.base = copy.deepcopy(base).freeze()
        shape = base.weight.shape
        outputs, inputs = shape if isinstance(base, QuantizedLinear) else shape[::-1]
        self.scaling = 1.0 if alpha is None else alpha / rank
        with use_backend(base.weight.backend):
            self.down = parameter(init.uniform((inputs, rank), 1.0 / math.sqrt(inputs)))
            self.up = parameter(zeros((rank, outputs)))

    def forward(self, x: Tensor) -> FloatTensor:
        """The base layer's result and the adapter's, of shape (..., outputs)."""
        change = matmul(matmul(x, self.down), self.up)
        return self.base(x) + change * self.scaling  # type: ignore[no-any-return]


def quantize_model(model: M, scheme: QuantizedDType | str = qint8, pattern: str = "*") -> M:
    """A copy of ``model`` with the :class:`Linear` layers whose paths match ``pattern`` as :class:`QuantizedLinear`.

    A pattern has shell wildcards. A channel axis and blocks are those of weights of shape (outputs, inputs). Raises
    :class:`ArgumentError` when no layer matches and :class:`DTypeError` for what is no scheme.

        >>> from backburn.nn import ReLU, Sequential
        >>> model = quantize_model(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)), "qint8_symmetric_channel0_float32")
        >>> [type(layer).__name__ for layer in model]
        ['QuantizedLinear', 'ReLU', 'QuantizedLinear']
    """
    chosen = as_dtype(scheme)
    if not isinstance(chosen, QuantizedDType):
        raise ArgumentError(f"quantize_model: {chosen} is no scheme; bb.qint8 is one")
    return _replaced("quantize_model", model, pattern, Linear, lambda layer: QuantizedLinear(layer, chosen))


def add_adapters(model: M, rank: int = 4, alpha: float | None = None, pattern: str = "*") -> M:
    """A frozen copy of ``model`` with an adapter (:class:`LoRALinear`) on each linear layer that matches ``pattern``.

    Quantized and float layers alike; only the adapters are trained. Raises :class:`ArgumentError` when none matches.
    """
    frozen = copy.deepcopy(model)
    if frozen.parameters():
        frozen.freeze()
    kinds = (Linear, QuantizedLinear)
    return _replaced("add_adapters", frozen, pattern, kinds, lambda layer: LoRALinear(layer, rank, alpha))


def _replaced(name: str, model: M, pattern: str, kinds: Any, change: Callable[[Any], Module]) -> M:
    """A copy of ``model`` with other layers in the places of those of ``kinds`` that match."""
    if isinstance(model, kinds):
        raise ArgumentError(f"{name}: the model is a layer itself; put it into Sequential(...)")
    made = copy.deepcopy(model)
    layers = [h for h in Places(made, is_tensor).holders if isinstance(h.node, kinds) and h.parent is not None]
    chosen = [holder for holder in layers if fnmatchcase(holder.path, pattern)]
    if not chosen:
        known = ", ".join(holder.path for holder in layers) or "there is none"
        raise ArgumentError(f"{name}: no linear layer's path matches {pattern!r}. Linear layers: {known}")
    changed: dict[int, Module] = {}  # a layer in two places stays one
    for holder in chosen:
        if id(holder.node) not in changed:
            changed[id(holder.node)] = change(holder.node)
        assert holder.parent is not None
        holder.parent.put(holder.key, changed[id(holder.node)])
    return made
