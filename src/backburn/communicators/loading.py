"""Communicators by name: the built-in ones, and those of the entry-point group ``backburn.communicators``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from backburn.base.errors import BackburnError, BackendUnavailableError, SpecError, hint_for
from backburn.communicators.protocol import Communicator

GROUP = "backburn.communicators"
#: Communicators that ship with backburn: found without installed metadata, never replaced by a plug-in.
BUILT_IN = {
    "count": "backburn.communicators.count:world",
    "local": "backburn.communicators.local:Local",
    "mpi": "backburn.communicators.mpi:world",
}


def load_communicator(name: str, **options: Any) -> Communicator:
    """The communicator of all processes of this program, by name; its factory gets the options.

        >>> comm = load_communicator("local")
        >>> comm.rank, comm.size
        (0, 1)

    Raises :class:`SpecError` for an unknown name and for options that the factory does not take, and
    :class:`BackendUnavailableError` if a library that it needs is missing.
    """
    targets = _targets()
    if name not in targets:
        raise SpecError(f"no communicator is called {name!r}. {hint_for(name, targets)}")
    module, _, attribute = targets[name].partition(":")
    try:
        factory: Callable[..., Communicator] = getattr(importlib.import_module(module), attribute)
    except BackburnError:
        raise
    except Exception as cause:
        raise BackendUnavailableError(
            f"communicator {name!r}: {module} could not be imported ({type(cause).__name__}: {cause})"
        ) from cause
    try:
        return factory(**options)
    except TypeError as cause:
        words = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise SpecError(f"communicator {name!r} does not take {words} ({cause})") from cause


def _targets() -> dict[str, str]:
    """The ``module:attribute`` of each known communicator."""
    found: dict[str, str] = {}
    if not os.environ.get("BACKBURN_DISABLE_PLUGINS"):
        from importlib.metadata import entry_points

        found = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**found, **BUILT_IN}
