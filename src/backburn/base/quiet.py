"""NaN and infinities are values: the warnings with which a backend's library computes them are not passed on."""

from __future__ import annotations

import re
import warnings
from typing import Any


def silence(warning: RuntimeWarning, backend: Any) -> None:
    """Ignore RuntimeWarnings of the package of ``backend`` from now on; the operation that raised one is called again.

    A backend over NumPy does so when it is imported, but a program (or its test runner) may make all warnings errors
    later. This is called where one arrives as an exception, so that it costs other calls nothing. A warning of
    anybody else is raised again.
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
