"""Quantized layers, models of them, and adapters that are trained on a frozen layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from backburn.base.dtypes import QuantizedDType, as_dtype, qint8
from backburn.base.errors import ArgumentError, BackburnError
from backburn.base.places import Places
from backburn.nn import functional, init
from backburn.nn.conv import Convolution
from backburn.nn.linear import Linear, sizes
from backburn.nn.module import Module, parameter
from backburn.tensor.classes import FloatTensor, QuantizedTensor, Tensor
from backburn.tensor.create import zeros
from backburn.tensor.defaults import use_backend
from backburn.tensor.dispatch import cast, is_tensor
from backburn.tensor.linalg import matmul
from backburn.tensor.quantized import fake_quantize

M = TypeVar("M", bound=Module)


class Ranges(Protocol):
    """What finds the ranges of a weight's steps; every observer of :mod:`backburn.quantization` does."""

    def weight_range(self, x: Tensor, scheme: QuantizedDType, /) -> tuple[Tensor, Tensor]:
        """The ends of the ranges, of the shape of the steps."""
        ...


class InputRange(Protocol):
    """What knows the range of a layer's inputs, such as an observer that has seen them."""

    def range(self, scheme: QuantizedDType, /) -> tuple[Tensor, Tensor]:
        """The ends of the range, 0-d."""
        ...


class QuantizedLinear(Module):
    """A linear layer with a quantized weight, which is a buffer; made of a :class:`Linear` layer.

    ``weight`` has the shape (outputs, inputs), so that blocks lie along the inputs and ``channel`` axis 0 is an output.
    It is never expanded whole. The bias, kept as a float, is frozen. ``weights`` finds the ranges of the steps, by
    default from the least to the largest value.

    With a scheme for ``activations``, inputs are quantized too, and integers are multiplied where
    :func:`backburn.quantized_matmul` can: for the range that ``inputs`` knows, or for that of each input where it is
    None. Inputs that are being differentiated are rounded with a straight-through gradient instead.

        >>> import backburn as bb
        >>> layer = QuantizedLinear(Linear(64, 3), "qint4_symmetric_block32_float16")
        >>> layer(bb.zeros((2, 64))).shape, layer.weight.nbytes
        ((2, 3), 108)
    """

    weight: QuantizedTensor
    bias: FloatTensor | None
    low: Tensor | None
    high: Tensor | None

    def __init__(
        self,
        layer: Linear,
        scheme: QuantizedDType | str = qint8,
        *,
        weights: Ranges | None = None,
        activations: QuantizedDType | str | None = None,
        inputs: InputRange | None = None,
    ) -> None:
        self.weight = _quantized(layer.weight.detach().T, as_scheme("QuantizedLinear", scheme), weights)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.activations = None if activations is None else as_scheme("QuantizedLinear", activations)
        low, high = _input_range(self.activations, inputs)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> FloatTensor:
        """The product, of shape (..., outputs)."""
        if self.activations is None:
            return functional.quantized_linear(x, self.weight, self.bias, transposed=True)
        if x.is_tracked:
            rounded = fake_quantize(x, dtype=self.activations, low=self.low, high=self.high)
            return functional.quantized_linear(rounded, self.weight, self.bias, transposed=True)
        q = x.quantize(dtype=self.activations, low=self.low, high=self.high)
        product = functional.quantized_linear(q, self.weight, self.bias, transposed=True)
        return cast(product, x.dtype) if x.dtype.kind == "float" else product


class QuantizedConv(Module):
    """A convolution with a quantized weight, which is expanded for each call; made of a convolutional layer.

    ``weight`` has the shape (outputs, all others), or of a transposed convolution (inputs, all others): blocks lie
    along the others and ``channel`` axis 0 is an output. It saves memory, not time.

    >>> import backburn as bb
    >>> from backburn.nn import Conv2d
    >>> layer = QuantizedConv(Conv2d(2, 4, 3), "qint8_symmetric_channel0_float32")
    >>> layer(bb.zeros((1, 2, 5, 5))).shape, layer.weight.nbytes
    ((1, 4, 3, 3), 88)
    """

    weight: QuantizedTensor

    def __init__(
        self, layer: Convolution, scheme: QuantizedDType | str = qint8, *, weights: Ranges | None = None
    ) -> None:
        weight = layer.weight.detach()
        self.weight_shape = weight.shape
        self.weight = _quantized(
            weight.reshape(weight.shape[0], -1), as_scheme("QuantizedConv", scheme), weights
        )
        self.layer = copy.copy(layer)
        vars(self.layer)["weight"] = None
        self.layer.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> FloatTensor:
        """What the layer computes with the weight's rounded values."""
        whole = copy.copy(self.layer)
        dtype = x.dtype if x.dtype.kind == "float" else None
        whole.weight = self.weight.dequantize(dtype=dtype).reshape(*self.weight_shape)
        return whole(x)


def as_scheme(name: str, scheme: QuantizedDType | str) -> QuantizedDType:
    """The scheme that ``scheme`` names. Raises :class:`ArgumentError` for another dtype."""
    chosen = as_dtype(scheme)
    if not isinstance(chosen, QuantizedDType):
        raise ArgumentError(f"{name}: {chosen} is no scheme; bb.qint8 is one")
    return chosen


def _input_range(scheme: QuantizedDType | None, inputs: InputRange | None) -> tuple[Tensor | None, Tensor | None]:
    """The ends of the range of a layer's inputs, or None where each input has its own."""
    if scheme is None or inputs is None:
        return None, None
    if scheme.granularity != "tensor":
        raise ArgumentError(f"a range of inputs that is known belongs to all values, and {scheme} has several")
    low, high = (end.detach() for end in inputs.range(scheme))
    return low, high


def _quantized(weight: FloatTensor, scheme: QuantizedDType, weights: Ranges | None) -> QuantizedTensor:
    """A constant weight by ``scheme``, for the ranges that ``weights`` finds."""
    if weights is None:
        return weight.quantize(dtype=scheme)
    low, high = weights.weight_range(weight, scheme)
    return weight.quantize(dtype=scheme, low=low, high=high)


class FakeQuantizedLinear(Linear):
    """A linear layer that is trained with the values that its weight has by a scheme, and its inputs by another.

    The gradient passes straight through the rounding to the weight, which stays a float. Made of a :class:`Linear`
    layer, of which it is one: :func:`quantize_model` makes a :class:`QuantizedLinear` of it that computes the same.

        >>> import backburn as bb
        >>> layer = FakeQuantizedLinear(Linear(4, 3), "qint4_symmetric_block4_float32")
        >>> loss = layer(bb.ones((2, 4))).sum()
        >>> layer.weight.grad(loss.backward()).shape
        (4, 3)
    """

    low: Tensor | None
    high: Tensor | None

    def __init__(
        self,
        layer: Linear,
        scheme: QuantizedDType | str = qint8,
        *,
        activations: QuantizedDType | str | None = None,
        inputs: InputRange | None = None,
    ) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.scheme = as_scheme("FakeQuantizedLinear", scheme)
        self.activations = None if activations is None else as_scheme("FakeQuantizedLinear", activations)
        low, high = _input_range(self.activations, inputs)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> FloatTensor:
        """The product of the rounded values, of shape (..., outputs)."""
        if self.activations is not None:
            x = fake_quantize(x, dtype=self.activations, low=self.low, high=self.high)
        return functional.linear(x, fake_quantize(self.weight.T, dtype=self.scheme).T, self.bias)


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
        return self.base(x) + change * self.scaling


#: Patterns of layers' paths: with shell wildcards, one or several.
Patterns = str | tuple[str, ...]


def quantize_model(
    model: M,
    scheme: QuantizedDType | str = qint8,
    pattern: Patterns = "*",
    *,
    skip: Patterns = (),
    weights: Ranges | None = None,
    activations: QuantizedDType | str | None = None,
    inputs: Mapping[str, InputRange] | None = None,
) -> M:
    """A copy of ``model`` with quantized layers in the places of linear and convolutional ones.

    Those are quantized whose paths match ``pattern`` and not ``skip``: shell wildcards, one or several. A channel axis
    and blocks are those of weights of shape (outputs, inputs); see :class:`QuantizedLinear` and
    :class:`QuantizedConv`. ``weights`` finds the ranges of weights (an observer such as :class:`quantization.MSE`).
    With a scheme for ``activations``, linear layers quantize their inputs too: for the ranges that ``inputs`` has by
    path (:func:`quantization.calibrate` finds them), or where that is None for the range of each input. Raises
    :class:`ArgumentError` when no layer matches, a pattern of ``skip`` matches none, or a layer has no range in
    ``inputs``, and :class:`DTypeError` for what is no scheme.

        >>> from backburn.nn import ReLU, Sequential
        >>> model = quantize_model(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)), "qint8_symmetric_channel0_float32")
        >>> [type(layer).__name__ for layer in model]
        ['QuantizedLinear', 'ReLU', 'QuantizedLinear']
    """
    chosen = as_scheme("quantize_model", scheme)
    changed: dict[str, Module] = {}
    for path, layer in quantizable_layers("quantize_model", model, pattern, skip):
        if isinstance(layer, Linear):
            known = _known_range("quantize_model", path, activations, inputs)
            options: dict[str, Any] = {"weights": weights, "activations": activations, "inputs": known}
            changed[path] = _made("quantize_model", path, QuantizedLinear, layer, chosen, **options)
        else:
            changed[path] = _made("quantize_model", path, QuantizedConv, layer, chosen, weights=weights)
    return replaced(model, changed)


def _made(
    name: str, path: str, kind: Callable[..., Module], layer: Module, scheme: QuantizedDType, **options: Any
) -> Module:
    """What is to stand in the place of a layer; an error names the layer's path."""
    try:
        return kind(layer, scheme, **options)
    except BackburnError as error:
        raise type(error)(f"{name}: the layer {path!r}: {error}") from error


def fake_quantize_model(
    model: M,
    scheme: QuantizedDType | str = qint8,
    pattern: Patterns = "*",
    *,
    skip: Patterns = (),
    activations: QuantizedDType | str | None = None,
    inputs: Mapping[str, InputRange] | None = None,
) -> M:
    """A copy of ``model`` to be trained for quantization: linear layers as :class:`FakeQuantizedLinear` ones.

    Arguments and errors are those of :func:`quantize_model`, which with the same scheme (and activations) then makes
    the quantized model. (Jacob et al. (2018), *Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference*, CVPR, section 3.)
    """
    chosen = as_scheme("fake_quantize_model", scheme)
    changed: dict[str, Module] = {}
    for path, layer in quantizable_layers("fake_quantize_model", model, pattern, skip, (Linear,)):
        known = _known_range("fake_quantize_model", path, activations, inputs)
        options: dict[str, Any] = {"activations": activations, "inputs": known}
        changed[path] = _made("fake_quantize_model", path, FakeQuantizedLinear, copy.deepcopy(layer), chosen, **options)
    return replaced(model, changed)


def _known_range(
    name: str, path: str, activations: QuantizedDType | str | None, inputs: Mapping[str, InputRange] | None
) -> InputRange | None:
    """The range of a layer's inputs. Raises where some are known and this one is not."""
    if activations is None or inputs is None:
        return None
    if path not in inputs:
        raise ArgumentError(
            f"{name}: there is no range for the inputs of {path!r}: calibrate(...) it, or leave it out with skip. "
            f"Ranges: {', '.join(inputs) or 'none'}"
        )
    return inputs[path]


def quantize_like(model: M, state: Mapping[str, Any]) -> M:
    """A copy of ``model`` that ``state`` can be loaded into: layers are quantized whose weights are quantized there.

    ``state`` is that of a model quantized by :func:`quantize_model`, such as :func:`backburn.io.load_model` gives it.
    The ranges of quantized inputs are not part of a scheme: such a model is made by :func:`quantize_model` again.

        >>> from backburn.nn import Sequential
        >>> saved = quantize_model(Sequential(Linear(4, 2)), "qint4_symmetric_block4_float16").state_dict()
        >>> model = quantize_like(Sequential(Linear(4, 2)), saved)
        >>> model.load_state_dict(saved)
        >>> model[0].weight.dtype
        qint4_symmetric_block4_float16
    """
    changed: dict[str, Module] = {}
    for path, layer in model.named_modules():
        weight = state.get(f"{path}.weight")
        if isinstance(weight, QuantizedTensor) and isinstance(layer, (Linear, Convolution)):
            made = QuantizedLinear if isinstance(layer, Linear) else QuantizedConv
            changed[path] = made(layer, weight.dtype)  # type: ignore[arg-type]
    return replaced(model, changed)


def add_adapters(model: M, rank: int = 4, alpha: float | None = None, pattern: Patterns = "*") -> M:
    """A frozen copy of ``model`` with an adapter (:class:`LoRALinear`) on each linear layer that matches ``pattern``.

    Quantized and float layers alike; only the adapters are trained. Raises :class:`ArgumentError` when none matches.
    """
    frozen = copy.deepcopy(model)
    if frozen.parameters():
        frozen.freeze()
    kinds = (Linear, QuantizedLinear)
    layers = quantizable_layers("add_adapters", frozen, pattern, (), kinds)
    return replaced(frozen, {path: LoRALinear(layer, rank, alpha) for path, layer in layers})


def quantizable_layers(
    name: str,
    model: Module,
    pattern: Patterns = "*",
    skip: Patterns = (),
    kinds: tuple[type[Module], ...] = (Linear, Convolution),
) -> list[tuple[str, Any]]:
    """The layers of ``kinds`` that match, each once, by their first paths. Raises :class:`ArgumentError` for none."""
    if isinstance(model, kinds):
        raise ArgumentError(f"{name}: the model is a layer itself; put it into Sequential(...)")
    modules = list(model.named_modules())
    done = {id(module.layer) for _, module in modules if isinstance(module, QuantizedConv)}  # without a weight
    layers = [(path, module) for path, module in modules if isinstance(module, kinds) and id(module) not in done]
    wanted, without = ((p,) if isinstance(p, str) else tuple(p) for p in (pattern, skip))
    all_kinds = (Linear, Convolution, QuantizedLinear, QuantizedConv)
    for p in without:
        if not any(isinstance(module, all_kinds) and _matches(path, (p,)) for path, module in modules):
            known = _listed(layers)
            raise ArgumentError(f"{name}: no layer's path matches {p!r}, which is to be skipped. Layers: {known}")
    chosen = [(p, x) for p, x in layers if _matches(p, wanted) and not _matches(p, without)]
    if not chosen:
        what = repr(pattern) if not without else f"{pattern!r} and not {skip!r}"
        raise ArgumentError(f"{name}: no layer's path matches {what}. Layers: {_listed(layers)}")
    return chosen


def _listed(layers: list[tuple[str, Any]]) -> str:
    return ", ".join(path for path, _ in layers) or "there is none"


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def replaced(model: M, layers: Mapping[str, Module]) -> M:
    """A copy of ``model`` with other modules at these paths; a module that stands in several places is one again."""
    made = copy.deepcopy(model)
    modules = dict(made.named_modules())
    new = {id(modules[path]): module for path, module in layers.items()}
    for holder in Places(made, is_tensor).holders:
        if id(holder.node) in new and holder.parent is not None:
            holder.parent.put(holder.key, new[id(holder.node)])
    return made
