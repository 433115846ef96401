"""Automatic differentiation as a decorator around any backend."""

from backburn.autodiff.decorator import Autodiff, Gradients
from backburn.autodiff.graph import Tracked
from backburn.autodiff.rules import gradient

__all__ = ["Autodiff", "Gradients", "Tracked", "gradient"]
