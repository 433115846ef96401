"""The CuPy backend: CUDA devices.

Importing this package imports no CuPy and touches no device. ``CupyBackend()`` looks for both, and raises
:class:`~backburn.base.errors.BackendUnavailableError`, which says what was found and what to type,
where one is missing.
"""

from backburn_cupy.backend import CupyBackend

__all__ = ["CupyBackend"]
