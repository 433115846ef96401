"""GPTQ: a layer's weights are rounded one after another, and later weights compensate the errors of earlier ones.

(Frantar, Ashkboos, Hoefler and Alistarh (2022), *GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers*, arXiv:2210.17323, algorithm 1.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from backburn.base.dtypes import QuantizedDType, float32, float64
from backburn.base.errors import ArgumentError, BackburnError, NumericalInstabilityError
from backburn.nn.linear import Linear
from backburn.nn.module import Module
from backburn.nn.quantized import InputRange, QuantizedLinear, Ranges, as_scheme
from backburn.nn.quantized_models import known_range, quantizable_layers, replaced
from backburn.quantization.calibration import run, watch
from backburn.quantization.observers import MinMax, Range
from backburn.tensor import shape
from backburn.tensor.classes import Tensor
from backburn.tensor.core.defaults import use_backend
from backburn.tensor.core.options import bounded
from backburn.tensor.creation import eye
from backburn.tensor.linalg.decompositions import cholesky
from backburn.tensor.linalg.products import matmul
from backburn.tensor.linalg.solve import inv
from backburn.tensor.quantized import fake_quantize
from backburn.tensor.selection import where

M = TypeVar("M", bound=Module)

#: The number of columns per update of the weights to the right, for schemes without blocks.
COLUMNS = 128


def gptq(
    model: M,
    batches: Iterable[Any],
    scheme: QuantizedDType | str,
    pattern: str | tuple[str, ...] = "*",
    *,
    skip: str | tuple[str, ...] = (),
    damping: float = 0.01,
    weights: Ranges | None = None,
    activations: QuantizedDType | str | None = None,
    inputs: Mapping[str, InputRange] | None = None,
) -> M:
    """A copy of ``model`` with quantized linear layers whose rounding errors were compensated on ``batches``.

    Layers are quantized in order, each for the inputs it receives from the layers already quantized; ``batches`` are as
    for :func:`calibrate`, and the model runs on them once for each layer. ``damping`` times the mean of the Hessian's
    diagonal is added to it. ``weights`` finds the ranges (:class:`MinMax` by default); ``activations`` and ``inputs``
    are as for :func:`quantize_model`. Raises the errors of :func:`quantize_model`, and :class:`ArgumentError` if no
    data reach a layer.

        >>> import backburn as bb
        >>> from backburn.nn import Linear, Sequential
        >>> model = Sequential(Linear(16, 4))
        >>> small = gptq(model, [bb.random.normal((64, 16))], "qint4_symmetric_block8_float16")
        >>> small[0].weight.dtype
        qint4_symmetric_block8_float16
    """
    chosen, data = as_scheme("gptq", scheme), list(batches)
    made = copy.deepcopy(model)
    for path, layer in quantizable_layers("gptq", made, pattern, skip, (Linear,)):
        hessian = _hessian(made, path, data)
        if hessian is None:
            raise ArgumentError(f"gptq: no data reach the layer {path!r}: give batches, or leave it out with skip")
        rounded, ends = compensated(layer.weight.detach(), hessian, chosen, damping=damping, weights=weights)
        moved = copy.copy(layer)
        moved.weight = rounded
        options: dict[str, Any] = {"activations": activations, "inputs": known_range("gptq", path, activations, inputs)}
        made = replaced(made, {path: QuantizedLinear(moved, chosen, weights=_Known(ends), **options)})
    return made


@dataclass(frozen=True)
class _Known:
    """Known ranges."""

    ends: Range

    def weight_range(self, x: Tensor, scheme: QuantizedDType, /) -> Range:
        return self.ends


def _hessian(model: Module, path: str, data: list[Any]) -> Tensor | None:
    """The sum of ``x^T x`` over all inputs ``x`` of a layer, up to a factor the Hessian of its squared error."""
    watched = copy.deepcopy(model)
    total: Tensor | None = None

    def see(x: Tensor) -> None:
        nonlocal total
        rows = x.detach().astype(_wide(x)).reshape(-1, x.shape[-1])
        product = matmul(rows.T, rows)
        total = product if total is None else total + product

    watch(next(module for name, module in watched.named_modules() if name == path), see)
    run(watched, data)
    return total


def _wide(x: Tensor) -> Any:
    return float64 if x.backend.capabilities.supports(float64) else float32


def compensated(
    weight: Tensor,
    hessian: Tensor,
    scheme: QuantizedDType,
    *,
    damping: float = 0.01,
    weights: Ranges | None = None,
) -> tuple[Tensor, Range]:
    """A weight (outputs, inputs) rounded to values of ``scheme`` with compensation, and the ends of their ranges.

    ``hessian`` is the sum of ``x^T x`` over the inputs. With ``U`` the upper Cholesky factor of its inverse, column
    ``j`` is rounded and its error times ``U[j, j:] / U[j, j]`` subtracted from the columns from ``j`` on: immediately
    within a block of columns, and from all columns to the right after the block. Inputs that are always 0 get weights
    0. Raises :class:`NumericalInstabilityError` where the damped Hessian is not positive definite.
    """
    finder: Ranges = weights if weights is not None else MinMax()
    upper, dead = _factor(hessian, damping)
    rest = where(dead, 0.0, weight.detach().astype(hessian.dtype))
    outputs, inputs = rest.shape
    ends = None if scheme.block_shape else finder.weight_range(rest, scheme)
    done: list[Tensor] = []
    found: list[Range] = []
    size = scheme.block_shape[-1] if scheme.block_shape else COLUMNS
    for start in range(0, inputs, size):
        stop = min(start + size, inputs)
        block = rest[:, : stop - start]
        if scheme.block_shape:
            found.append(finder.weight_range(block, scheme))
        factor, errors = upper[start:stop, start:], []
        for j in range(stop - start):
            column = block[:, 0]
            rounded = _round(column, start + j, scheme, found[-1] if ends is None else ends)
            error = (column - rounded) / factor[j, j]
            done.append(rounded)
            errors.append(error)
            block = block[:, 1:] - error[:, None] * factor[j, j + 1 : stop - start]
        rest = rest[:, stop - start :] - matmul(shape.stack(errors, axis=1), factor[:, stop - start :])
    result = shape.stack(done, axis=1) if done else rest
    if ends is None:
        ends = shape.concat([f[0] for f in found], axis=-1), shape.concat([f[1] for f in found], axis=-1)
    assert result.shape == (outputs, inputs)
    return result, ends


def _factor(hessian: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The upper Cholesky factor of the damped Hessian's inverse, and which inputs are always 0."""
    bounded("gptq", "damping", damping, least=0, below=math.inf)
    size = hessian.shape[0]
    with use_backend(hessian.backend):
        identity = eye(size, dtype=hessian.dtype)
    diagonal = (hessian * identity).sum(axis=0)
    dead = diagonal == 0.0
    added = diagonal.mean() * damping + where(dead, 1.0, diagonal * 0.0)
    try:
        # Factoring the matrix with reversed axes would avoid the inverse but is less clear; the matrices are small.
        return cholesky(inv(hessian + identity * added), upper=True), dead
    except BackburnError as error:
        raise NumericalInstabilityError(
            f"gptq: the Hessian of {size} inputs is not positive definite ({error}): give more data or more damping "
            f"than {damping}"
        ) from error


def _round(column: Tensor, index: int, scheme: QuantizedDType, ends: Range) -> Tensor:
    """A column of a weight rounded to values of ``scheme``."""
    low, high = ends
    if scheme.block_shape:
        down = scheme.in_blocks(scheme.block_shape[:-1] or (1,))
        return fake_quantize(column, dtype=down, low=low[:, 0], high=high[:, 0])
    if scheme.axis == 1:
        return fake_quantize(column, dtype=scheme.for_tensor(), low=low[index], high=high[index])
    return fake_quantize(column, dtype=scheme, low=low, high=high)
