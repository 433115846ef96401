"""Quantizing models, quantization-aware training, and restoring quantized models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from backburn.base.dtypes import QuantizedDType, qint8
from backburn.base.errors import ArgumentError, BackburnError
from backburn.base.mutable_trees import MutableTree
from backburn.nn.conv import Convolution
from backburn.nn.linear import Linear
from backburn.nn.module import Module
from backburn.nn.quantized import (
    FakeQuantizedConv,
    FakeQuantizedLinear,
    InputRange,
    QuantizedConv,
    QuantizedLinear,
    Ranges,
    SavedWeight,
    as_scheme,
)
from backburn.tensor.classes import QuantizedTensor, Tensor
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor

M = TypeVar("M", bound=Module)

#: Patterns of layers' paths: with shell wildcards, one or several.
Patterns = str | tuple[str, ...]
#: The classes that replace linear and convolutional layers.
_Kinds = tuple[Callable[..., Module], Callable[..., Module]]
_QUANTIZED: _Kinds = (QuantizedLinear, QuantizedConv)


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
    """A copy of ``model`` with its linear and convolutional layers quantized.

    Layers are quantized if their paths match ``pattern`` but not ``skip`` (one or several, with shell wildcards). The
    channel axis and the blocks of the scheme refer to weights of shape (outputs, inputs); see :class:`QuantizedLinear`
    and :class:`QuantizedConv`. ``weights`` finds the ranges of weights (an observer such as :class:`quantization.MSE`).
    With a scheme for ``activations``, layers quantize their inputs too, with the ranges that ``inputs`` has by path
    (see :func:`quantization.calibrate`), or if it is None with the range of each input. Raises :class:`ArgumentError`
    if no layer matches, a pattern of ``skip`` matches none, or a layer has no range in ``inputs``; and
    :class:`DTypeError` for anything but a scheme.

        >>> from backburn.nn import ReLU, Sequential
        >>> model = quantize_model(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)), "qint8_symmetric_channel0_float32")
        >>> [type(layer).__name__ for layer in model]
        ['QuantizedLinear', 'ReLU', 'QuantizedLinear']
    """
    layers = quantizable_layers("quantize_model", model, pattern, skip)
    return _converted("quantize_model", model, layers, _QUANTIZED, scheme, activations, inputs, weights=weights)


def _converted(
    name: str,
    model: M,
    layers: list[tuple[str, Any]],
    kinds: _Kinds,
    scheme: QuantizedDType | str,
    activations: QuantizedDType | str | None,
    inputs: Mapping[str, InputRange] | None,
    **options: Any,
) -> M:
    """A copy of ``model`` with other layers at the paths of ``layers``."""
    scheme = as_scheme(name, scheme)
    changed: dict[str, Module] = {}
    for path, layer in layers:
        known = known_range(name, path, activations, inputs)
        changed[path] = _made(name, path, kinds, layer, scheme, activations=activations, inputs=known, **options)
    return replaced(model, changed)


def _made(name: str, path: str, kinds: _Kinds, layer: Module, scheme: QuantizedDType, **options: Any) -> Module:
    """The layer that replaces another; an error names the path."""
    try:
        return kinds[not isinstance(layer, Linear)](layer, scheme, **options)
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
    """A copy of ``model`` for quantization-aware training.

    Linear and convolutional layers become :class:`FakeQuantizedLinear` and :class:`FakeQuantizedConv` ones. Arguments
    and errors are those of :func:`quantize_model`, which then converts the trained model, with the same scheme (and
    activations). (Jacob et al. (2018), *Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference*, CVPR, section 3.)

        >>> import backburn as bb
        >>> model = bb.nn.Sequential(bb.nn.Linear(4, 2))
        >>> trained = fake_quantize_model(model)  # train it, then:
        >>> type(quantize_model(trained)[0]).__name__
        'QuantizedLinear'
    """
    name, kinds = "fake_quantize_model", (FakeQuantizedLinear, FakeQuantizedConv)
    layers = [(path, copy.deepcopy(layer)) for path, layer in quantizable_layers(name, model, pattern, skip)]
    return _converted(name, model, layers, kinds, scheme, activations, inputs)


def known_range(
    name: str, path: str, activations: QuantizedDType | str | None, inputs: Mapping[str, InputRange] | None
) -> InputRange | None:
    """The range of a layer's inputs. Raises if some layers' ranges are known but not this one's."""
    if activations is None or inputs is None:
        return None
    if path not in inputs:
        raise ArgumentError(
            f"{name}: there is no range for the inputs of {path!r}: calibrate(...) it, or leave it out with skip. "
            f"Ranges: {', '.join(inputs) or 'none'}"
        )
    return inputs[path]


def quantize_like(model: M, state: Mapping[str, Any]) -> M:
    """A copy of ``model`` with layers quantized as in ``state``, so that it can be loaded.

    ``state`` is that of a model quantized by :func:`quantize_model`, as :func:`backburn.io.load_model` returns it;
    layers whose inputs are quantized there quantize theirs. ``model`` has the original layers; quantized weights are
    taken from the state. Raises :class:`ShapeError` for weights of other shapes.

        >>> from backburn.nn import Sequential
        >>> saved = quantize_model(Sequential(Linear(4, 2)), "qint4_symmetric_block4_float16").state_dict()
        >>> model = quantize_like(Sequential(Linear(4, 2)), saved)
        >>> model.load_state_dict(saved)
        >>> model[0].weight.dtype
        qint4_symmetric_block4_float16
    """
    _check_module("quantize_like", model)
    given: object = state
    if not isinstance(given, Mapping):
        raise ArgumentError(f"quantize_like: takes tensors by path, as state_dict() gives them, not {given!r:.80}")
    changed: dict[str, Module] = {}
    for path, layer in model.named_modules():
        weight = state.get(f"{path}.weight")
        if isinstance(weight, QuantizedTensor) and isinstance(layer, (Linear, Convolution)):
            low, high, inputs = (state.get(f"{path}.{part}") for part in ("low", "high", "inputs"))
            with use_backend(layer.weight.backend):
                known = None if low is None or high is None else _SavedRange(asarray(low), asarray(high))
            changed[path] = _made(
                "quantize_like", path, _QUANTIZED, layer, as_scheme("quantize_like", weight.dtype),
                weights=SavedWeight(weight), activations=None if inputs is None else inputs.dtype, inputs=known,
            )  # fmt: skip
    return replaced(model, changed)


@dataclass(frozen=True)
class _SavedRange:
    """A saved range of inputs."""

    low: Tensor
    high: Tensor

    def range(self, scheme: QuantizedDType, /) -> tuple[Tensor, Tensor]:
        return self.low, self.high


def quantizable_layers(
    name: str,
    model: Module,
    pattern: Patterns = "*",
    skip: Patterns = (),
    kinds: tuple[type[Module], ...] = (Linear, Convolution),
) -> list[tuple[str, Any]]:
    """The layers of ``kinds`` that match, each once, by their first paths. Raises :class:`ArgumentError` for none."""
    _check_module(name, model)
    if isinstance(model, kinds):
        raise ArgumentError(f"{name}: the model is a layer itself; put it into Sequential(...)")
    modules = list(model.named_modules())
    layers = [  # a layer without a weight is part of one that computes it
        (path, module) for path, module in modules if isinstance(module, kinds) and vars(module)["weight"] is not None
    ]
    if not layers:
        raise ArgumentError(f"{name}: the model has no {' or '.join(k.__name__ for k in kinds)} layer")
    wanted, without = ((p,) if isinstance(p, str) else tuple(p) for p in (pattern, skip))
    all_kinds = (Linear, Convolution, QuantizedLinear, QuantizedConv)
    for p in without:
        if not any(isinstance(module, all_kinds) and _matches(path, (p,)) for path, module in modules):
            known = _listed(layers)
            raise ArgumentError(f"{name}: no layer's path matches {p!r}, which is to be skipped. Layers: {known}")
    matching = [(p, x) for p, x in layers if _matches(p, wanted) and not _matches(p, without)]
    if not matching:
        what = repr(pattern) if not without else f"{pattern!r} and not {skip!r}"
        raise ArgumentError(f"{name}: no layer's path matches {what}. Layers: {_listed(layers)}")
    return matching


def _check_module(name: str, model: object) -> None:
    if not isinstance(model, Module):
        hint = f"; write {model.__name__}(...)" if isinstance(model, type) else ""
        raise ArgumentError(f"{name}: takes a module, not {model!r:.80}{hint}")


def _listed(layers: list[tuple[str, Any]]) -> str:
    return ", ".join(path for path, _ in layers)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def replaced(model: M, layers: Mapping[str, Module]) -> M:
    """A copy of ``model`` with other modules at these paths; a shared module stays shared."""
    made = copy.deepcopy(model)
    modules = dict(made.named_modules())
    new = {id(modules[path]): module for path, module in layers.items()}
    for node in MutableTree(made, is_tensor).nodes:
        if id(node.value) in new and node.parent is not None:
            node.parent.put(node.key, new[id(node.value)])
    return made
