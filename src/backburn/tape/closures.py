"""The tape of closures over tensors."""

from backburn.tapes.closures import Cell, Gradient
from backburn.tapes.tensors import ClosureTape as GradientTape
from backburn.tapes.tensors import Gradients

__all__ = ["Cell", "Gradient", "Gradients", "GradientTape"]
