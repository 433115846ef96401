"""Optional packages, with an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from backburn.base.errors import BackendUnavailableError


def package(user: str, name: str, distribution: str, install: str = "'backburn[data]'") -> Any:
    """The module ``name``. Raises :class:`BackendUnavailableError` which names ``user``, if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as cause:
        if cause.name is None or cause.name.partition(".")[0] != name.partition(".")[0]:
            raise  # a package that the package itself misses
        words = f"{user}: needs the package {distribution}: pip install {install}"
        raise BackendUnavailableError(words) from cause
