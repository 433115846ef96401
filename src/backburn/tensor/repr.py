"""How a tensor prints: its values (a few, when there are many), dtype, backend and gradient state."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import GraphError
from backburn.batching import NeedsValues
from backburn.tensor.host import host_text
from backburn.tensor.spent import Spent

#: Tensors of more elements are summarised by their edges, and only the edges are brought to the host.
THRESHOLD = 1000
EDGE = 3


def tensor_repr(x: Any) -> str:
    """``Tensor([1., 2.], dtype=float32, backend=numpy)``, with ``requires_grad`` or ``recorded`` where it is so."""
    if x.primitive.__class__ is Spent:
        return "<a tensor of a transform that has ended>"
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
        values = host_text(x, prefix="Tensor(")
    except (NeedsValues, GraphError):  # inside vmap, or carried out of it
        tail = tail.replace(", recorded)", ")")
        return f"Tensor(<differs between examples>, shape={list(x.shape)}{tail}"
    empty = f", shape={list(x.shape)}" if x.size == 0 else ""
    return f"Tensor({values}{empty}{tail}"


def _summary(x: Any) -> str:
    """The edges of a large tensor, brought over a corner at a time."""
    if x.ndim == 0:
        return str(x.numpy())
    n = x.shape[0]
    edges = range(n) if n <= 2 * EDGE else [*range(EDGE), *range(n - EDGE, n)]
    parts = []
    for i in edges:
        row = x[i]
        parts.append(_summary(row) if row.size > 2 * EDGE or row.ndim else f"{row.numpy()}")
    if n > 2 * EDGE:
        parts.insert(EDGE, "...")
    return f"[{', '.join(parts)}]"
