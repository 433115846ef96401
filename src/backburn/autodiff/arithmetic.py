"""Gradient rules: arithmetic."""

from __future__ import annotations

from backburn.autodiff.rules import gradient

gradient("add", x=lambda g: g, y=lambda g: g)
gradient("sub", x=lambda g: g, y=lambda k, g: k.neg(g))
gradient("mul", x=lambda k, g, y: k.mul(g, y), y=lambda k, g, x: k.mul(g, x))
