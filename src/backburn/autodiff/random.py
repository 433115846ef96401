"""Gradient rules: dropout, and gamma numbers by their shape parameter."""

from __future__ import annotations

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import elementwise, tangent
from backburn.backend.random import dropped, gamma_slope

gradient("dropout", x=lambda k, g, kept, p: None if g[0] is None else dropped(k, g[0], kept[0], p))
tangent("dropout", x=lambda k, t, kept, p: (dropped(k, t, kept[0], p), None))

gradient("gamma", alpha=lambda k, g, alpha, out, log: k.mul(g, gamma_slope(k, alpha, out, log)))
elementwise("gamma")
