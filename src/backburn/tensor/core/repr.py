"""The ``repr`` of a tensor: its values (a few, when there are many), dtype, backend and gradient state."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import GraphError
from backburn.batching import NeedsValues
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.host import asarray, host_text
from backburn.tensor.core.invalidation import Invalidated

#: Tensors of more elements are summarised by their edges, and only the edges are brought to the host.
THRESHOLD = 1000
EDGE = 3


def tensor_repr(x: Any) -> str:
    """``Tensor([1., 2.], dtype=float32, backend=numpy)``, with ``requires_grad`` or ``recorded`` where it is so."""
    if x.primitive.__class__ is Invalidated:
        return f"<{x.primitive.words}>"
    state = ""
    if x.is_require_grad:
        state = ", requires_grad"
    elif x.is_tracked:
        state = ", recorded"
    if x.dtype.kind == "quantized":
        state += f", nbytes={x.nbytes}"
    tail = f", dtype={x.dtype}, backend={x.backend.spec}{state})"
    if x.dtype.kind == "quantized":
        x = x.dequantize()
    try:
        if x.size > THRESHOLD:
            return f"Tensor({_summary(x)}, shape={list(x.shape)}{tail}"
        values = host_text(x)
    except (NeedsValues, GraphError):  # inside vmap, or returned from it by a side effect
        tail = tail.replace(", recorded)", ")")
        return f"Tensor(<differs between examples>, shape={list(x.shape)}{tail}"
    empty = f", shape={list(x.shape)}" if x.size == 0 else ""
    return f"Tensor({values}{empty}{tail}"


def _summary(x: Any) -> str:
    """The edges of a large tensor as NumPy prints those of an array; only these are copied to the host."""
    for axis, n in enumerate(x.shape):
        if n > 2 * EDGE:  # one element more than the edges, which the dots replace
            edges = [*range(EDGE + 1), *range(n - EDGE, n)]
            x = call("take", x, asarray(edges, backend=x.backend), axis=axis)
    return host_text(x, EDGE)
