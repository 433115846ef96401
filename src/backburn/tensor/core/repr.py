"""The ``repr`` of a tensor: its values (a few, when there are many), dtype, backend and gradient state."""

from __future__ import annotations

from html import escape
from typing import Any

from backburn.base.errors import GraphError
from backburn.batching import NeedsValues
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.host import asarray, host_text
from backburn.tensor.core.invalidation import Invalidated
from backburn.tensor.core.print_options import OPTIONS


def tensor_repr(x: Any) -> str:
    """``Tensor([1., 2.], dtype=float32, backend=numpy)``, with ``requires_grad`` or ``recorded`` if it applies."""
    if x.primitive.__class__ is Invalidated:
        return f"<{x.primitive.words}>"
    state = ""
    if x.is_require_grad:
        state = ", requires_grad"
    elif x.is_tracked:
        state = ", recorded"
    kinds = getattr(x.backend, "conformance_kinds", None)
    has_values = kinds is None or "value" in kinds
    if x.dtype.kind == "quantized" and has_values:
        state += f", nbytes={x.nbytes}"
    tail = f", dtype={x.dtype}, backend={x.backend.spec}{state})"
    if not has_values:
        return f"Tensor(<no values>, shape={list(x.shape)}{tail}"
    if x.dtype.kind == "quantized":
        x = x.dequantize()
    try:
        if x.size > OPTIONS["threshold"]:
            return f"Tensor({_summary(x)}, shape={list(x.shape)}{tail}"
        values = host_text(x, None, OPTIONS)
    except (NeedsValues, GraphError):  # inside vmap, or returned from it by a side effect
        tail = tail.replace(", recorded)", ")")
        return f"Tensor(<differs between examples>, shape={list(x.shape)}{tail}"
    empty = f", shape={list(x.shape)}" if x.size == 0 else ""
    return f"Tensor({values}{empty}{tail}"


def _summary(x: Any) -> str:
    """The edges of a large tensor as NumPy prints those of an array; only these are copied to the host."""
    edge = OPTIONS["edgeitems"]
    for axis, n in enumerate(x.shape):
        if n > 2 * edge:  # an extra element, which the dots replace
            edges = [*range(edge + 1), *range(n - edge, n)]
            x = call("take", x, asarray(edges, backend=x.backend), axis=axis)
    return host_text(x, edge, OPTIONS)


def tensor_html(x: Any) -> str:
    """The ``repr`` as HTML for notebooks."""
    return f'<pre style="margin: 0; line-height: 1.3; white-space: pre">{escape(tensor_repr(x))}</pre>'
