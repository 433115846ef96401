"""Epilogues: passes over products and convolutions that the kernels apply to what they have just computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from backburn.base.dtypes import float32, float64
from backburn.programs.ir import Call
from backburn_numpy.ops import conv, linalg
from backburn_numpy.programs.program_compiler import PLANNERS
from backburn_numpy.runtime.gemm import Epilogue

Array = Any

#: The operations that may have an epilogue, and the functions that compute both.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "matmul": linalg.matmul_then,
    "linear": linalg.linear_then,
    "conv": conv.conv_then,
    "conv_transpose": conv.conv_transpose_then,
}


def with_epilogue(k: Any, call: Call, name: str) -> Callable[..., Array] | None:
    """A function that computes a call and the pass ``name``, from the mask, if there is one, and the call's operands.

    None if the call becomes part of a native program, which computes the pass anyway.
    """
    function = FUNCTIONS.get(call.operation)
    if function is None or call.results.dtype not in (float32, float64):
        return None
    if (plan := PLANNERS.get(call.operation)) is not None and plan(call) is not None:
        return None
    return partial(_rectified, function, k.relu) if name == "relu" else partial(_masked, function, k.relu_backward)


def _rectified(function: Callable[..., Array], relu: Callable[..., Array], *operands: Any, **attributes: Any) -> Array:
    return function(Epilogue(relu), *operands, **attributes)


def _masked(
    function: Callable[..., Array], relu_backward: Callable[..., Array], mask: Array, *operands: Any, **attributes: Any
) -> Array:
    return function(Epilogue(relu_backward, mask), *operands, **attributes)
