"""Automatic differentiation by decorators around any backend: ``Autodiff`` (reverse mode) and ``Forward``."""

from backburn.autodiff.decorator import Autodiff, Gradients
from backburn.autodiff.duals import Dual
from backburn.autodiff.forward import Forward
from backburn.autodiff.graph import Tracked
from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import elementwise, linear, reduction, tangent, through_body, way

__all__ = [
    "Autodiff",
    "Dual",
    "Forward",
    "Gradients",
    "Tracked",
    "elementwise",
    "gradient",
    "linear",
    "reduction",
    "tangent",
    "through_body",
    "way",
]
