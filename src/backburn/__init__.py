"""backburn: a tensor framework in which the backend is an object and autodiff a decorator around it.

Importing the package is cheap: its names are loaded when one of them is first accessed, a backend when the first tensor
is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backburn import autodiff as autodiff
    from backburn import backend as backend
    from backburn import data as data
    from backburn import decorators as decorators
    from backburn import distributed as distributed
    from backburn import dtypes as dtypes
    from backburn import errors as errors
    from backburn import interop as interop
    from backburn import io as io
    from backburn import models as models
    from backburn import nn as nn
    from backburn import onnx as onnx
    from backburn import optim as optim
    from backburn import quantization as quantization
    from backburn import tape as tape
    from backburn import train as train
    from backburn import transforms as transforms
    from backburn import trees as trees
    from backburn._namespace import *  # noqa: F403
    from backburn._namespace import __array_namespace_info__ as __array_namespace_info__

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

#: Packages available as attributes: ``backburn.nn`` after ``import backburn``.
_PACKAGES = frozenset(
    {
        "autodiff", "backend", "conformance", "data", "decorators", "distributed", "dtypes", "errors", "interop", "io",
        "models", "nn", "onnx", "optim", "quantization", "tape", "train", "transforms", "trees",
    }
)  # fmt: skip


if not TYPE_CHECKING:  # type checkers know every name, and report missing ones

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name not in ("__array_namespace_info__", "__all__"):
            raise AttributeError(name)
        import importlib

        namespace = importlib.import_module("backburn._namespace")
        try:
            value = getattr(namespace, name)
        except AttributeError:
            if name not in _PACKAGES:
                from backburn.hints import missing_name

                if not name.startswith("_"):
                    for package in ("nn", "optim"):  # packages that may have the name
                        importlib.import_module(f"backburn.{package}")
                raise missing_name("backburn", name) from None
            value = importlib.import_module(f"backburn.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    from backburn import _namespace

    return sorted({*(n for n in vars(_namespace) if not n.startswith("_")), *_PACKAGES, "__version__"})
