"""Suppressing the warnings that a backend's library gives for NaN and infinite results, which are values here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: The packages that have said :func:`ignore_warnings`.
PACKAGES: set[str] = set()


def ignore_warnings(package: str) -> None:
    """Ignore RuntimeWarnings that point to the modules of a package; called by a backend's package when it is imported.

    The conformance suite then ignores them even if a test runner has reset the warning filters, as pytest does for each
    test.
    """
    PACKAGES.add(package)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{re.escape(package)}(\.|$)")


def quietly(backend: Any, function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)``, again with :func:`silence` where a warning of ``backend`` was made an error."""
    try:
        return function(*arguments)
    except RuntimeWarning as warning:
        silence(warning, backend)
        return function(*arguments)


def silence(warning: RuntimeWarning, backend: Any) -> None:
    """Ignore RuntimeWarnings of the package of ``backend`` from now on; the operation that raised one is called again.

    A backend over NumPy does so when it is imported, but a program or test runner may turn all warnings into errors
    later. This is called only when one arrives as an exception, so that other calls pay nothing. Warnings from other
    packages are raised again.
    """
    while (inner := getattr(backend, "inner_backend", None)) is not None:
        backend = inner
    package = type(backend).__module__.partition(".")[0]
    frame = warning.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] != package:
        raise warning
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{re.escape(package)}(\.|$)")
