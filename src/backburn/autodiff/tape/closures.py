"""The tape of closures over primitives."""

from backburn.tapes.closures import Cell, Gradient, Gradients
from backburn.tapes.closures import ClosureTape as GradientTape

__all__ = ["Cell", "Gradient", "Gradients", "GradientTape"]
