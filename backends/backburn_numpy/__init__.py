"""The NumPy backend: the CPU reference, and the one that is always there."""

from backburn_numpy.backend import NumpyBackend, QuantizedArray

__all__ = ["NumpyBackend", "QuantizedArray"]
