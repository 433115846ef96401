"""The facts of an installation that a bug report needs: versions, machine, backends and a check of each.

:func:`gather` collects them once; ``backburn info`` prints them, ``backburn info --json`` as they are.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from backburn.backend import CONTRACT_VERSION, OPERATIONS, BackendInfo, list_backends, list_decorators, load_backend
from backburn.base.errors import BackburnError
from backburn.tensor.core.defaults import default_backend

#: Version of the report's keys: raised when one is removed or changes its meaning, not when one is added.
FORMAT = 1

#: Packages whose versions matter in a report.
PACKAGES = ("numpy", "typing-extensions", "ml-dtypes", "pydantic", "tqdm", "matplotlib")

#: Beginnings of the environment variables that a report lists: ours, and those of libraries for matrix products.
PREFIXES = ("BACKBURN_", "GOTO_", "MKL_", "OMP_", "OPENBLAS_")


def gather() -> dict[str, Any]:
    """The facts of this installation, of strings, numbers, booleans, None, lists and dictionaries only.

    ``docs/bug-reports.md`` describes the keys. In paths, ``~`` stands for the home folder. An unusable backend or
    variable is reported, and never raises.

        >>> report = gather()
        >>> sorted(report["backends"][-1])
        ['absent', 'check', 'device', 'libraries', 'name', 'package', 'reason', 'target', 'usable']
        >>> report["python"]["version"] == platform.python_version()
        True
    """
    from backburn import __version__

    backends, decorators = installed()
    report = {
        "format": FORMAT,
        "backburn": __version__,
        "contract": {
            "version": CONTRACT_VERSION,
            "operations": len(OPERATIONS),
            "required": sum(entry.required for entry in OPERATIONS.values()),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        },
        "platform": {
            "name": platform.platform(),
            "machine": platform.machine(),
            "processor": _processor(),
            "processors": os.cpu_count(),
        },
        "default": default(),
        "packages": {package: _version(package) for package in PACKAGES},
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)},
        "backends": [
            {
                **_entry(info),
                "absent": info.absent,
                "device": device(info),
                "libraries": _libraries(info) if info.usable else {},
                "check": _check(info),
            }
            for info in backends
        ],
        "decorators": [_entry(info) for info in decorators],
    }
    found: dict[str, Any] = _without_home(report, str(Path.home()))
    return found


def installed() -> tuple[list[BackendInfo], list[BackendInfo]]:
    """Backends and decorators, without warnings about broken packages: the result has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list_backends(), list_decorators()


def default() -> dict[str, Any]:
    """The spec of the default backend, the value of ``BACKBURN_BACKEND`` or None, and the error or None."""
    variable = os.environ.get("BACKBURN_BACKEND") or None
    try:
        backend = default_backend() if variable is None else load_backend(variable)
    except BackburnError as error:
        return {"spec": None, "variable": variable, "error": str(error)}
    return {"spec": backend.spec, "variable": variable, "error": None}


def device(info: BackendInfo) -> str | None:
    """The device of a backend; None for one that cannot be used."""
    return load_backend(info.name).device if info.usable else None


def _entry(info: BackendInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "target": info.target,
        "package": info.distribution or None,
        "usable": info.usable,
        "reason": info.reason or None,
    }


def _check(info: BackendInfo) -> dict[str, str]:
    """Whether a backend adds 1 to two numbers correctly, or is absent, with the result or the error."""
    if not info.usable:
        return {"outcome": "absent" if info.absent else "FAIL", "words": info.reason}
    try:
        backend = load_backend(info.name)
        answer = backend.add(backend.full((2,), 1.0, dtype=backend.float_dtype), 1.0)
        if "value" not in (getattr(backend, "conformance_kinds", None) or ["value"]):
            right, words = answer.shape == (2,), f"[1, 1] + 1 has shape {answer.shape}; no values are computed"
        else:
            result = backend.to_numpy(answer).tolist()
            right, words = result == [2.0, 2.0], f"[1, 1] + 1 = {result} on {backend.device}"
    except Exception as error:  # any error of a backend is reported
        return {"outcome": "FAIL", "words": f"{type(error).__name__}: {error}"}
    return {"outcome": "PASS" if right else "FAIL", "words": words}


def _libraries(info: BackendInfo) -> dict[str, str]:
    """The libraries that compute for a backend, by name; none for a backend that does not list them."""
    try:
        return dict(getattr(load_backend(info.name), "libraries", {}))
    except Exception as error:  # as above
        return {"not known": f"{type(error).__name__}: {error}"}


def _processor() -> str:
    """The processor's model, as far as the system tells it; ``""`` if it does not."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _without_home(value: Any, home: str) -> Any:
    """``value`` with ``~`` for the home folder in all strings."""
    if isinstance(value, dict):
        return {key: _without_home(each, home) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_home(each, home) for each in value]
    return value.replace(home + os.sep, "~" + os.sep) if isinstance(value, str) else value
