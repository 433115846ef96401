"""Launchers: attention of 16-bit floats, and its gradient, without scores in memory.

Operands have four axes: (examples, heads, positions, size). Not operations of the contract:
:mod:`backburn_cupy.attention` chooses between these, cuDNN, and products.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from backburn_cupy.kernels.geometry import ceil_div
from backburn_cupy.kernels.operands import structure
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type

Array = Any

#: The head sizes with kernels; smaller heads are zero-padded.
SIZES = (32, 64, 128)

#: The elements of an access, which must divide a head's size; the rows of a block; its threads.
CHUNK, ROWS, THREADS = 8, 64, 128

#: The first architecture with the instructions: Ampere.
CAPABILITY = 80

#: The structure ``Attention`` of attention.cu: ten stacks of an address and four strides, two addresses, seven numbers.
_FORM = struct.Struct("<59q2d")


def supports(on: Runner, query: Array, value: Array) -> bool:
    """Whether there are kernels for these head sizes. Operands must not be empty."""
    sizes = (query.shape[-1], value.shape[-1])
    return (
        on.capability >= CAPABILITY
        and query.dtype.itemsize == 2
        and all(n % CHUNK == 0 and n <= SIZES[-1] for n in sizes)
    )


class Options(NamedTuple):
    """Options of attention; masks have the full shape of the scores, with four axes, or are None."""

    mask: Array | None
    keep: Array | None
    causal: bool
    scale: float
    dropout: float


def attend(on: Runner, query: Array, key: Array, value: Array, out: Array, logarithms: Array, options: Options) -> None:
    """Write the result of attention, and the log-sum-exp of its scores (to base 2), in float32."""
    _launch(on, "attend", query.shape[2], (query, key, value, out, *4 * [None]), logarithms, None, options)


def attend_backward(
    on: Runner, grad: Array, query: Array, key: Array, value: Array, out: Array, logarithms: Array,
    results: Sequence[Array], options: Options,
) -> None:  # fmt: skip
    """Write the gradients for queries, keys and values to ``results``."""
    rest = ((query, key, value, out, grad, *results), logarithms, on.xp.ndarray(logarithms.shape, np.float32), options)
    _launch(on, "attend_backward_queries", query.shape[2], *rest)
    _launch(on, "attend_backward_keys", key.shape[2], *rest)


def _launch(
    on: Runner, kernel: str, rows: int, stacks: tuple[Array, ...], logarithms: Array, products: Array | None,
    options: Options,
) -> None:  # fmt: skip
    """Launch a kernel over ``rows`` rows of each head."""
    query, _, value = stacks[:3]
    examples, heads, queries, size = query.shape
    keys, width = value.shape[2:]
    mask, keep, causal, scale, dropout = options
    numbers = [n for stack in (*stacks, mask, keep) for n in _address_and_strides(on, stack)]
    numbers += [on.address(logarithms), 0 if products is None else on.address(products)]
    numbers += [heads, queries, keys, size, width, causal, mask is not None and mask.dtype.kind == "b"]
    keep_scale = 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
    parameters = structure(_FORM, *numbers, scale, keep_scale)
    padded_size = next(n for n in SIZES if n >= max(size, width))
    masked = "false" if mask is None and keep is None else "true"
    blocks = examples * heads * ceil_div(rows, ROWS)
    name = f"{kernel}<{c_type(query)}, {padded_size}, {masked}>"
    on.run("attention", name, blocks, THREADS, parameters)


def _address_and_strides(on: Runner, stack: Array | None) -> tuple[int, ...]:
    """The address of a stack and its strides in elements."""
    if stack is None:
        return (0, 0, 0, 0, 0)
    return (on.address(stack), *(s // stack.itemsize for s in stack.strides))
