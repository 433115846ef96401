"""Automatic differentiation by decorators around any backend: ``Autodiff`` (reverse mode) and ``Forward``."""

from backburn.autodiff.forward import Forward
from backburn.autodiff.forward_codegen import Dual
from backburn.autodiff.graph import Tracked
from backburn.autodiff.reverse import Autodiff, Gradients
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import decompose, elementwise, jvp_strategy, linear_in, reduction, tangent

__all__ = [
    "Autodiff",
    "Dual",
    "Forward",
    "Gradients",
    "Tracked",
    "elementwise",
    "gradient_rule",
    "linear_in",
    "reduction",
    "tangent",
    "decompose",
    "jvp_strategy",
]
