"""Adapters: low-rank updates of the weights of frozen linear layers (LoRA, QLoRA, DoRA)."""

from __future__ import annotations

import copy
import math
from typing import TypeVar, cast

from backburn.base.errors import ArgumentError
from backburn.nn import functional, init
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module, holding, parameter
from backburn.nn.quantized import QuantizedLinear
from backburn.nn.quantized_models import Patterns, quantizable_layers, replaced
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.dispatch import cast as cast_to
from backburn.tensor.core.dispatch import upcast_half
from backburn.tensor.core.options import flags, number
from backburn.tensor.creation import zeros
from backburn.tensor.linalg.products import matmul
from backburn.tensor.reduce import vector_norm
from backburn.tensor.selection import where
from backburn.transforms import stop_gradient

M = TypeVar("M", bound=Module)


class LoRALinear(Module):
    """``base(x) + x @ lora_A.T @ lora_B.T * scaling``: a low-rank adapter for a frozen layer.

    Only ``lora_A`` (rank, inputs), initialized uniformly, and ``lora_B`` (outputs, rank), initialized with zeros, are
    trained. ``scaling`` is ``alpha / rank``, or with ``use_rslora`` ``alpha / sqrt(rank)``; ``alpha`` is ``rank`` by
    default. ``base`` is a :class:`QuantizedLinear` layer, or a :class:`Linear` one, which is copied and frozen. (Hu et
    al. (2021), *LoRA: Low-Rank Adaptation of Large Language Models*, arXiv:2106.09685; Kalajdzievski (2023),
    arXiv:2312.03732, for the square root.)

    With ``use_dora``, each row of the adapted weight is scaled to the norm in ``lora_magnitude_vector`` (outputs,),
    which is trained too; the bias is not scaled, and no gradient flows through the norms of the rows. Each call
    computes these norms from the (dequantized) weight. (Liu et al. (2024), *DoRA: Weight-Decomposed Low-Rank
    Adaptation*, arXiv:2402.09353, section 4.3.)

    Names are those of PEFT, whose files :func:`backburn.io.save_adapters` writes.

        >>> import backburn as bb
        >>> layer = LoRALinear(QuantizedLinear(Linear(8, 3)), rank=2)
        >>> layer(bb.zeros((5, 8))).shape, [name for name, x in layer.named_parameters() if x.is_require_grad]
        ((5, 3), ['lora_A', 'lora_B'])
    """

    base: QuantizedLinear | Linear
    lora_A: FloatTensor  # noqa: N815 -- names of PEFT
    lora_B: FloatTensor  # noqa: N815
    lora_magnitude_vector: FloatTensor | None

    def __init__(
        self,
        base: QuantizedLinear | Linear,
        rank: int = 4,
        alpha: float | None = None,
        *,
        use_rslora: bool = False,
        use_dora: bool = False,
    ) -> None:
        (rank,) = sizes("LoRALinear", rank=rank)
        flags("LoRALinear", use_rslora=use_rslora, use_dora=use_dora)
        self.base = copy.deepcopy(base).freeze()
        outputs, inputs = base.weight.shape
        self.alpha = float(rank if alpha is None else number("LoRALinear", "alpha", alpha))
        self.use_rslora = use_rslora
        self.scaling = self.alpha / (math.sqrt(rank) if use_rslora else rank)
        with use_backend(base.weight.backend):
            bound = 1.0 / math.sqrt(inputs)
            self.lora_A = parameter(init.uniform((rank, inputs), -bound, bound))
            self.lora_B = parameter(zeros((outputs, rank)))
            self.lora_magnitude_vector = parameter(self._lengths(self._weight())) if use_dora else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The adapted layer's result, of shape (..., outputs)."""
        change = functional.linear(functional.linear(x, self.lora_A), self.lora_B) * self.scaling
        if self.lora_magnitude_vector is None:
            return self.base(x) + change
        bias = self.base.bias
        product = (holding(self.base, bias=None).forward(x) + change) * self._factors(self._weight())
        return product if bias is None else product + bias

    def merged(self, *, dequantize: bool = False) -> Linear | QuantizedLinear:
        """The base layer with the adapter merged into its weight, frozen.

        A quantized weight is requantized with its scheme, which rounds it again; with ``dequantize``, the result is a
        :class:`Linear` layer instead.

            >>> import backburn as bb
            >>> layer = LoRALinear(Linear(3, 2))
            >>> x = bb.ones((1, 3))
            >>> bool(bb.max_abs(layer.merged()(x) - layer(x)) < 1e-6)
            True
        """
        base = copy.deepcopy(self.base)
        weight = self._weight()
        if self.lora_magnitude_vector is not None:
            weight = weight * self._factors(weight).detach().reshape((-1, 1))
        if isinstance(base, Linear):
            return holding(base, weight=cast_to(weight, base.weight.dtype))
        if not dequantize:
            return holding(base, weight=weight.quantize(dtype=base.weight.dtype))
        made = object.__new__(Linear)
        made.weight, made.bias, made.training = weight, base.bias, base.training
        return made

    def _weight(self) -> FloatTensor:
        """The adapted weight as a constant, in at least 32 bits."""
        own = self.base.weight
        weight = own.dequantize() if isinstance(self.base, QuantizedLinear) else own
        a, b = (upcast_half(stop_gradient(x)) for x in (self.lora_A, self.lora_B))
        return cast(FloatTensor, upcast_half(stop_gradient(weight)) + matmul(b, a) * self.scaling)

    def _factors(self, weight: FloatTensor) -> FloatTensor:
        """The factors that scale each row of the weight to its trained norm."""
        assert self.lora_magnitude_vector is not None
        return self.lora_magnitude_vector / self._lengths(weight)

    @staticmethod
    def _lengths(weight: FloatTensor) -> FloatTensor:
        """The norm of each row; 1 for a row of zeros."""
        lengths = vector_norm(weight, axis=1)
        return cast(FloatTensor, where(lengths == 0.0, 1.0, lengths))


def add_adapters(
    model: M,
    rank: int = 4,
    alpha: float | None = None,
    pattern: Patterns = "*",
    *,
    use_rslora: bool = False,
    use_dora: bool = False,
) -> M:
    """A frozen copy of ``model`` with an adapter (:class:`LoRALinear`) on each linear layer that matches ``pattern``.

    Layers may be quantized or not; only the adapters are trained. :func:`merge_adapters` turns it back into a plain
    model; :func:`backburn.io.save_adapters` saves only the adapters. Raises :class:`ArgumentError` if no layer matches.

        >>> import backburn as bb
        >>> model = add_adapters(bb.nn.Sequential(bb.nn.Linear(4, 2)), rank=1)
        >>> [path for path, x in model.named_parameters() if x.is_require_grad]
        ['0.lora_A', '0.lora_B']
    """
    frozen = copy.deepcopy(model)
    layers = quantizable_layers("add_adapters", frozen, pattern, (), (Linear, QuantizedLinear))
    if frozen.parameters():
        frozen.freeze()
    made = {path: LoRALinear(layer, rank, alpha, use_rslora=use_rslora, use_dora=use_dora) for path, layer in layers}
    return replaced(frozen, made)


def merge_adapters(model: M, *, dequantize: bool = False) -> M:
    """A frozen copy of ``model`` with each adapter merged into its layer's weight: a plain model.

    Quantized weights are requantized with their schemes, which rounds them again; with ``dequantize`` their layers
    become :class:`Linear` layers. ``model`` itself is unchanged, so nothing ever needs unmerging. Raises
    :class:`ArgumentError` if there is no adapter.

        >>> import backburn as bb
        >>> adapted = add_adapters(bb.nn.Sequential(bb.nn.Linear(4, 2)), rank=1)
        >>> [type(layer).__name__ for layer in merge_adapters(adapted)]
        ['Linear']
    """
    flags("merge_adapters", dequantize=dequantize)
    return replaced(
        model, {path: layer.merged(dequantize=dequantize) for path, layer in adapters("merge_adapters", model)}
    )


def adapters(name: str, model: Module) -> list[tuple[str, LoRALinear]]:
    """The adapters of a model by path. Raises :class:`ArgumentError` if it has none, or is one itself."""
    given: object = model
    if not isinstance(given, Module):
        raise ArgumentError(f"{name}: takes a module, not {model!r:.80}")
    if isinstance(model, LoRALinear):
        raise ArgumentError(f"{name}: the model is itself an adapter: call its merged(), or put it into Sequential")
    found = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, LoRALinear)]
    if not found:
        raise ArgumentError(f"{name}: the model has no adapters; add them with add_adapters(model)")
    return found
