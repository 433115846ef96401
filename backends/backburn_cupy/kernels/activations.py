"""Launchers: activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.ops.bodies.shapes import check_same_shape
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any

_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu(on: Runner, x: Array, /, approximate: str = "none") -> Array:
    return _elementwise(on, _form("gelu", approximate), x)


def gelu_backward(on: Runner, grad: Array, x: Array, /, approximate: str) -> Array:
    return _elementwise(on, _form("gelu_backward", approximate) + "_backward", grad, x)


def _launcher(kernel: str) -> Callable[..., Array]:
    def operation(on: Runner, /, *operands: Array) -> Array:
        return _elementwise(on, kernel, *operands)

    return operation


def _form(operation: str, approximate: str) -> str:
    if approximate not in _GELU:
        raise ArgumentError(f"{operation}: approximate is 'none' or 'tanh', not {approximate!r}")
    return _GELU[approximate]


def _elementwise(on: Runner, kernel: str, *operands: Array) -> Array:
    check_same_shape(kernel, *operands)
    out = on.xp.ndarray(operands[0].shape, operands[0].dtype)
    if out.size:
        launch = geometry.elements(out.size, 2 * geometry.pack(operands[0].dtype.itemsize))
        arrays = (on.xp.ascontiguousarray(o) for o in operands)
        on.run("activations", f"{kernel}<{c_type(out)}>", *launch, *arrays, out, out.size)
    return out


silu, silu_backward, relu, relu_backward, sigmoid_backward, tanh_backward = map(
    _launcher, ("silu", "silu_backward", "relu", "relu_backward", "sigmoid_backward", "tanh_backward")
)
