"""The CuPy backend: CUDA devices.

Importing this package neither imports CuPy nor touches a device. ``CupyBackend()`` does both, and raises
:class:`~backburn.base.errors.BackendUnavailableError`, with what was found and what to do, if either is missing.
"""

from backburn_cupy.backend import CupyBackend

__all__ = ["CupyBackend"]
