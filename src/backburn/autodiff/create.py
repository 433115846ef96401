"""Gradient rules: casts."""

from __future__ import annotations

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import linear

gradient("cast", x=lambda k, g, x_dtype: k.cast(g, x_dtype))

linear("cast")
