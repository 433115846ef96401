"""NumPy: activation functions, by kernels, as formulas in one pass, or by the contract's bodies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backburn.backend.tracing import method_of
from backburn.ops.table import OPERATIONS
from backburn_numpy.blocks import elementwise, run_rows
from backburn_numpy.fused import FEWEST, fuse, fuse_kernel
from backburn_numpy.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.memory import empty, memory_ordered
from backburn_numpy.ops.elementwise import maximum
from backburn_numpy.quiet import quiet

Array = Any


def relu(x: Array, /) -> Array:
    return maximum(x, 0)


def softplus(k: Any, x: Array, /, beta: float = 1.0) -> Array:
    return _elementwise(k, "softplus", "softplus" if beta == 1 else "", x, beta=beta)


def gelu(k: Any, x: Array, /, approximate: str = "none") -> Array:
    return _elementwise(k, "gelu", GELU.get(approximate, ""), x, approximate=approximate)


def gelu_backward(k: Any, grad: Array, x: Array, /, approximate: str) -> Array:
    kernel = f"{GELU[approximate]}_backward" if approximate in GELU else ""
    return _elementwise(k, "gelu_backward", kernel, grad, x, approximate=approximate)


#: The kernels for the forms of GELU.
GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def _function(name: str) -> Callable[..., Array]:
    """The operation of that name, which has a kernel of the same name."""

    def operation(k: Any, x: Array, y: Array = None, /) -> Array:
        return _elementwise(k, name, name, *((x,) if y is None else (x, y)))

    return quiet(operation)


FUNCTIONS = {name: _function(name) for name in (
    "sigmoid", "sigmoid_backward", "tanh_backward", "relu_backward", "log_sigmoid", "silu", "silu_backward",
)}  # fmt: skip


def _sigmoid(out: Array, x: Array) -> None:
    _one_plus_exp(out, x)
    np.reciprocal(out, out)


def _silu(out: Array, x: Array) -> None:
    _one_plus_exp(out, x)
    np.divide(x, out, out)


def _one_plus_exp(out: Array, x: Array) -> None:
    """``1 + exp(-x)``."""
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, 1.0, out)


#: Functions of few elements without the bodies' temporaries, for models of that size.
IN_PLACE = {"sigmoid": _sigmoid, "silu": _silu}


def _elementwise(k: Any, name: str, kernel: str, *operands: Array, **options: Any) -> Array:
    """The operation of that name: by the kernel, as a formula in one pass, or by its body."""
    first = operands[0]
    if not first.flags.c_contiguous and (in_order := memory_ordered(*operands)) is not None:
        views, back = in_order
        return _elementwise(k, name, kernel, *views, **options).transpose(back)
    if is_half(first):
        if kernel and (found := fuse_kernel(kernel, *operands)) is not None:
            return found
        return cast_like(_elementwise(k, name, kernel, *map(upcast_half, operands), **options), first)
    out = empty(first.shape, first.dtype)
    if kernel and run_rows(kernel, (out, *operands), first.size):
        return out
    if first.size < FEWEST:
        if (few := IN_PLACE.get(name)) is None:
            return OPERATIONS[name].body(k, *operands, **options)
        few(out, *operands)
        return out
    if (found := fuse(method_of(name), *operands, *options.values())) is not None:
        return found
    return elementwise(partial(OPERATIONS[name].body, k, **options), *operands)
