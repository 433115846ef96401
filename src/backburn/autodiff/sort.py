"""Gradient rules: order.

Only ``topk`` needs one, with which a backend's own way of finding elements is used. The others read values at indices
that have no gradient.
"""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import tangent


def topk(k: Any, g: Any, x_shape: tuple[int, ...], out: Any, axis: int) -> Any:
    """Each gradient to the element that was chosen."""
    return None if g[0] is None else k.gather_backward(g[0], out[1], x_shape, axis)


gradient("topk", x=topk)
tangent("topk", x=lambda k, t, out, axis: (k.gather(t, out[1], axis), None))
