"""What is written for any backend, such as the bodies of derived operations, called with the NumPy backend."""

from __future__ import annotations

from functools import cache
from typing import Any

from backburn.backend.table import OPERATIONS


@cache
def backend() -> Any:
    """The backend, which is made of the modules that ask for it, and so imported at the first call."""
    from backburn_numpy.backend import NumpyBackend

    return NumpyBackend()


def derived(operation: str, *operands: Any, **attributes: Any) -> Any:
    """An operation by the body that its declaration has."""
    return OPERATIONS[operation].body(backend(), *operands, **attributes)
