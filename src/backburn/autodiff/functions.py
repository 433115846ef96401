"""Gradient rules: functions of each element."""

from __future__ import annotations

from backburn.autodiff.rules import gradient

gradient("tanh", x=lambda k, g, out: k.mul(g, k.sub(1.0, k.square(out))))
