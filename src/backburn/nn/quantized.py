"""Quantized layers, and layers for quantization-aware training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from backburn.base.dtypes import DType, QuantizedDType, as_dtype, qint8
from backburn.base.errors import ArgumentError, ShapeError
from backburn.batching import levels_of_vmap
from backburn.nn import functional
from backburn.nn.conv import Convolution
from backburn.nn.linear import Linear
from backburn.nn.module import Module, holding
from backburn.tensor.classes import FloatTensor, QuantizedTensor, Tensor
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.levels import has_history
from backburn.tensor.creation import zeros
from backburn.tensor.quantized import fake_quantize


class Ranges(Protocol):
    """Finds the ranges of the quantization steps of a weight; every observer of :mod:`backburn.quantization` does."""

    def weight_range(self, x: Tensor, scheme: QuantizedDType, /) -> tuple[Tensor, Tensor]:
        """The ends of the ranges, in the shape of the steps."""
        ...


@dataclass(frozen=True)
class SavedWeight:
    """A quantized weight, such as a saved one, that replaces the weight of a layer."""

    weight: QuantizedTensor


class InputRange(Protocol):
    """Gives the range of a layer's inputs, as does an observer that has seen them."""

    def range(self, scheme: QuantizedDType, /) -> tuple[Tensor, Tensor]:
        """The ends of the range, 0-d."""
        ...


class QuantizedInputs(Module):
    """The base class of layers whose inputs may be quantized: the scheme, and the range if it is known.

    ``inputs`` is an empty tensor whose dtype is the scheme, which makes the scheme part of the layer's state, like the
    range from ``low`` to ``high``. All are None if inputs stay floats.
    """

    inputs: QuantizedTensor | None
    low: Tensor | None
    high: Tensor | None

    def _quantize_inputs(
        self, weight: Tensor, activations: QuantizedDType | str | None, known: InputRange | None
    ) -> None:
        """Set scheme and range, on the backend of the layer's weight."""
        self.inputs = low = high = None
        if activations is not None:
            name = type(self).__name__
            scheme = as_scheme(name, activations)
            if scheme.axis is not None and scheme.axis < 0:
                raise ArgumentError(f"{name}: the channel axis of inputs is not negative, since they may have any rank")
            if known is not None and scheme.granularity != "tensor":
                raise ArgumentError(
                    f"{name}: a known range of inputs is one range for all values, and {scheme} has several"
                )
            with use_backend(weight.backend):
                rank = max((scheme.axis or 0) + 1, len(scheme.block_shape))
                self.inputs = zeros((0,) * rank).quantize(dtype=scheme)
            if known is not None:
                low, high = (end.detach() for end in known.range(scheme))
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    @property
    def activations(self) -> QuantizedDType | None:
        """The scheme of inputs."""
        return None if self.inputs is None else as_scheme("activations", self.inputs.dtype)

    def _rounded(self, x: Tensor) -> Tensor:
        """The inputs rounded to values of their scheme, with a straight-through gradient."""
        if self.inputs is None:
            return x
        return fake_quantize(x, dtype=self.inputs.dtype, low=self.low, high=self.high)


class QuantizedLinear(QuantizedInputs):
    """A linear layer with a quantized weight, which is a buffer; created from a :class:`Linear` layer.

    ``weight`` has the shape (outputs, inputs), so blocks run along the inputs (or span outputs and inputs, if they have
    two lengths), and ``channel`` axis 0 is the outputs. It is never dequantized as a whole. The bias, a float tensor,
    is frozen. ``weights`` finds the ranges of the steps; the default is from the smallest to the largest value.

    With a scheme for ``activations``, inputs are quantized too, with the range of ``inputs`` (if it is None, with the
    range of each input), and integer products are computed where :func:`backburn.quantized_matmul` supports them.
    Inputs that are tracked, or inside ``vmap``, are rounded as floats instead, with a straight-through gradient.

        >>> import backburn as bb
        >>> layer = QuantizedLinear(Linear(64, 3), "qint4_symmetric_block32_float16")
        >>> layer(bb.zeros((2, 64))).shape, layer.weight.nbytes
        ((2, 3), 108)
    """

    weight: QuantizedTensor
    bias: FloatTensor | None

    def __init__(
        self,
        layer: Linear,
        scheme: QuantizedDType | str = qint8,
        *,
        weights: Ranges | SavedWeight | None = None,
        activations: QuantizedDType | str | None = None,
        inputs: InputRange | None = None,
    ) -> None:
        self.weight = _quantized(layer.weight.detach(), as_scheme("QuantizedLinear", scheme), weights)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self._quantize_inputs(self.weight, activations, inputs)

    def forward(self, x: Tensor) -> FloatTensor:
        """The product, of shape (..., outputs)."""
        if self.inputs is None or not x.dtype.is_floating or has_history(x) or levels_of_vmap(x.backend):
            return functional.quantized_linear(self._rounded(x), self.weight, self.bias)
        q = x.quantize(dtype=self.inputs.dtype, low=self.low, high=self.high)
        product = functional.quantized_linear(q, self.weight, self.bias)
        return cast(product, x.dtype)


class QuantizedConv(QuantizedInputs):
    """A convolution with a quantized weight, which each call dequantizes; created from a convolutional layer.

    ``weight`` has the shape (outputs, all others), or (inputs, all others) in a transposed convolution: blocks run
    along the other axes, and ``channel`` axis 0 is the first one. This saves memory, not time. With a scheme for
    ``activations``, inputs are rounded to quantized values, with the range of ``inputs`` or that of each input; the
    gradient passes straight through.

        >>> import backburn as bb
        >>> from backburn.nn import Conv2d
        >>> layer = QuantizedConv(Conv2d(2, 4, 3), "qint8_symmetric_channel0_float32")
        >>> layer(bb.zeros((1, 2, 5, 5))).shape, layer.weight.nbytes
        ((1, 4, 3, 3), 88)
    """

    weight: QuantizedTensor
    layer: Convolution

    def __init__(
        self,
        layer: Convolution,
        scheme: QuantizedDType | str = qint8,
        *,
        weights: Ranges | SavedWeight | None = None,
        activations: QuantizedDType | str | None = None,
        inputs: InputRange | None = None,
    ) -> None:
        weight = layer.weight.detach()
        self.weight_shape = weight.shape
        self.weight = _quantized(weight.reshape(weight.shape[0], -1), as_scheme("QuantizedConv", scheme), weights)
        bias = None if layer.bias is None else layer.bias.detach()
        self.layer = holding(layer.layer if isinstance(layer, FakeQuantizedConv) else layer, weight=None, bias=bias)
        self._quantize_inputs(self.weight, activations, inputs)

    def forward(self, x: Tensor) -> FloatTensor:
        """The convolution with the rounded weight."""
        weight = self.weight.dequantize(dtype=x.dtype if x.dtype.is_floating else None)
        return holding(self.layer, weight=weight.reshape(*self.weight_shape)).forward(self._rounded(x))


def unfilled(layer: Linear | Convolution, activations: QuantizedDType | None, has_range: bool) -> Module:
    """A quantized layer to be loaded, whose weight is still the float weight of ``layer``.

    ``activations`` is the scheme of inputs, and ``has_range`` says whether their range is known.
    """
    made: Any
    if isinstance(layer, Linear):
        made = object.__new__(QuantizedLinear)
        made.weight, made.bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    else:
        made = object.__new__(QuantizedConv)
        weight = layer.weight.detach()
        made.weight_shape = weight.shape
        made.weight = weight.reshape(weight.shape[0], -1)
        made.layer = holding(layer, weight=None, bias=None if layer.bias is None else layer.bias.detach())
    made.training = layer.training
    made._quantize_inputs(layer.weight, activations, None)
    if has_range:
        with use_backend(layer.weight.backend):
            made.register_buffer("low", zeros(()))
            made.register_buffer("high", zeros(()))
    found: Module = made
    return found


def as_scheme(name: str, scheme: DType | str) -> QuantizedDType:
    """The scheme that ``scheme`` names. Raises :class:`ArgumentError` for any other dtype."""
    dtype = as_dtype(scheme)
    if not isinstance(dtype, QuantizedDType):
        raise ArgumentError(f"{name}: {dtype} is not a scheme; bb.qint8 is one")
    return dtype


def _quantized(weight: FloatTensor, scheme: QuantizedDType, weights: Ranges | SavedWeight | None) -> QuantizedTensor:
    """A constant weight, quantized with ``scheme`` and the ranges that ``weights`` finds."""
    if weights is None:
        return weight.quantize(dtype=scheme)
    if isinstance(weights, SavedWeight):
        saved = weights.weight
        if saved.shape != weight.shape:
            raise ShapeError(f"the weight has the shape {list(saved.shape)} there and {list(weight.shape)} here")
        return saved.to(weight.backend)
    low, high = weights.weight_range(weight, scheme)
    return weight.quantize(dtype=scheme, low=low, high=high)


class FakeQuantizedLinear(QuantizedInputs, Linear):
    """A linear layer that computes with rounded values of its weight and inputs, for quantization-aware training.

    The gradient passes straight through the rounding to the weight, which stays a float tensor. The layer is created
    from a :class:`Linear` layer and is one itself: :func:`quantize_model` turns it into a :class:`QuantizedLinear` that
    computes the same.

        >>> import backburn as bb
        >>> layer = FakeQuantizedLinear(Linear(4, 3), "qint4_symmetric_block4_float32")
        >>> loss = layer(bb.ones((2, 4))).sum()
        >>> layer.weight.grad(loss.backward()).shape
        (3, 4)
    """

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
        self._quantize_inputs(layer.weight, activations, inputs)

    def forward(self, x: Tensor) -> FloatTensor:
        """The product of the rounded values, of shape (..., outputs)."""
        return functional.linear(self._rounded(x), fake_quantize(self.weight, dtype=self.scheme), self.bias)


class FakeQuantizedConv(QuantizedInputs, Convolution):
    """A convolution like :class:`FakeQuantizedLinear`; :func:`quantize_model` turns it into a :class:`QuantizedConv`.

    >>> import backburn as bb
    >>> from backburn.nn import Conv2d
    >>> FakeQuantizedConv(Conv2d(2, 4, 3), "qint4_symmetric_channel0_float32")(bb.zeros((1, 2, 5, 5))).shape
    (1, 4, 3, 3)
    """

    layer: Convolution

    def __init__(
        self,
        layer: Convolution,
        scheme: QuantizedDType | str = qint8,
        *,
        activations: QuantizedDType | str | None = None,
        inputs: InputRange | None = None,
    ) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.layer = holding(layer.layer if isinstance(layer, FakeQuantizedConv) else layer, weight=None, bias=None)
        self.scheme = as_scheme("FakeQuantizedConv", scheme)
        self._quantize_inputs(layer.weight, activations, inputs)

    def forward(self, x: Tensor) -> FloatTensor:
        """The convolution with rounded weight and inputs."""
        rows = self.weight.reshape(self.weight.shape[0], -1)
        weight = fake_quantize(rows, dtype=self.scheme).reshape(*self.weight.shape)
        return holding(self.layer, weight=weight, bias=self.bias).forward(self._rounded(x))
