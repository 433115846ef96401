"""backburn: a tensor framework in which the backend is an object and autodiff a decorator around it.

Importing the package costs nothing: its names are loaded when the first of them is asked for, a backend when the first
tensor is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backburn._namespace import *  # noqa: F403

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

#: Packages that are found as attributes: ``backburn.nn`` after ``import backburn``.
_PACKAGES = frozenset(
    {"autodiff", "backend", "conformance", "data", "io", "nn", "optim", "random", "tape", "train", "transforms"}
)


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__array_namespace_info__":
        raise AttributeError(name)
    import importlib

    namespace = importlib.import_module("backburn._namespace")
    try:
        value = getattr(namespace, name)
    except AttributeError:
        if name not in _PACKAGES:
            raise AttributeError(f"module 'backburn' has no attribute {name!r}") from None
        value = importlib.import_module(f"backburn.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from backburn import _namespace

    return sorted({*(n for n in vars(_namespace) if not n.startswith("_")), *_PACKAGES, "__version__"})
