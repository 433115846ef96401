"""Gradient rules: choosing between values.

``mask_fill`` and ``masked_select`` have none: their bodies are recorded.
"""

from __future__ import annotations

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import elementwise, linear

gradient(
    "where",
    x=lambda k, g, condition: k.where(condition, g, 0.0),
    y=lambda k, g, condition: k.where(condition, 0.0, g),
)
gradient("triu", x=lambda k, g, offset: k.triu(g, offset))
gradient("tril", x=lambda k, g, offset: k.tril(g, offset))

elementwise("where")
linear("triu", "tril")
