"""Suppressing what a backend's library says of NaN and infinite results, which are values here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

#: What NumPy raises where a program has asked for errors, by the filters of warnings or by ``np.seterr``.
RAISED = (RuntimeWarning, FloatingPointError)

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
    """``function(*arguments)``, again with :func:`silence` where ``backend`` raised one of ``RAISED``."""
    try:
        return function(*arguments)
    except RAISED as error:
        with silence(error, backend):
            return function(*arguments)


def silence(error: RuntimeWarning | FloatingPointError, backend: Any) -> AbstractContextManager[Any]:
    """The context in which to repeat the operation of ``backend`` that raised ``error``.

    RuntimeWarnings of the backend's package are ignored from now on. A backend over NumPy does so when it is imported,
    but a program or test runner may turn all warnings into errors later. If it was ``np.seterr`` instead, its setting
    is suspended for the repetition. What was raised in another package is raised again. This is called only when an
    exception arrives, so that other calls pay nothing.
    """
    while (inner := getattr(backend, "inner_backend", None) or getattr(backend, "wrapped", None)) is not None:
        backend = inner
    package = type(backend).__module__.partition(".")[0]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] != package:
        raise error
    if isinstance(error, FloatingPointError):
        return np.errstate(all="ignore")
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{re.escape(package)}(\.|$)")
    return nullcontext()
