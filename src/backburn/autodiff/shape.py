"""Gradient rules: operations on the shape."""

from __future__ import annotations

from backburn.autodiff.rules import gradient

gradient("reshape", x=lambda k, g, x_shape: k.reshape(g, x_shape))
gradient("broadcast_to", x=lambda g: g)  # the engine sums over what was broadcast
