"""Launchers: activation functions."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any

_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu(on: Runner, x: Array, /, approximate: str = "none") -> Array:
    return _elementwise(on, _form("gelu", approximate), x)


def gelu_backward(on: Runner, grad: Array, x: Array, /, approximate: str) -> Array:
    return _elementwise(on, _form("gelu_backward", approximate) + "_backward", grad, x)


def silu(on: Runner, x: Array, /) -> Array:
    return _elementwise(on, "silu", x)


def silu_backward(on: Runner, grad: Array, x: Array, /) -> Array:
    return _elementwise(on, "silu_backward", grad, x)


def relu(on: Runner, x: Array, /) -> Array:
    return _elementwise(on, "relu", x)


def relu_backward(on: Runner, grad: Array, y: Array, /) -> Array:
    return _elementwise(on, "relu_backward", grad, y)


def sigmoid_backward(on: Runner, grad: Array, y: Array, /) -> Array:
    return _elementwise(on, "sigmoid_backward", grad, y)


def tanh_backward(on: Runner, grad: Array, y: Array, /) -> Array:
    return _elementwise(on, "tanh_backward", grad, y)


def _form(operation: str, approximate: str) -> str:
    if approximate not in _GELU:
        raise ArgumentError(f"{operation}: approximate is 'none' or 'tanh', not {approximate!r}")
    return _GELU[approximate]


def _elementwise(on: Runner, kernel: str, *operands: Array) -> Array:
    first = operands[0]
    for other in operands[1:]:
        if other.shape != first.shape:
            raise ShapeError(f"{kernel}: operands of the shapes {list(first.shape)} and {list(other.shape)}")
    out = on.xp.ndarray(first.shape, first.dtype)
    if out.size:
        launch = geometry.elements(out.size, 2 * geometry.pack(first.dtype.itemsize))
        arrays = (on.xp.ascontiguousarray(o) for o in operands)
        on.run("activate", f"{kernel}<{c_type(first)}>", *launch, *arrays, out, out.size)
    return out
