"""Constants and inspection, which the Array API standard requires of a namespace besides functions."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from backburn.backend.contract import AnyBackend
from backburn.base.contexts import default_float
from backburn.base.dtypes import DType, complex_of
from backburn.base.errors import ArgumentError
from backburn.tensor.core.defaults import BackendLike, as_backend, default_backend
from backburn.tensor.inspection import KINDS, isdtype

#: The versions of the standard that the namespace follows.
VERSIONS: Final = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")

#: Euler's number, the base of the natural logarithm.
e: Final = math.e
#: The ratio of a circle's circumference to its diameter.
pi: Final = math.pi
#: Positive infinity.
inf: Final = math.inf
#: Not a number.
nan: Final = math.nan
#: A new axis in an index: ``x[:, newaxis]``.
newaxis: Final = None


def namespace(api_version: str | None) -> Any:
    """The package itself as the namespace of a version of the standard."""
    if api_version is not None and api_version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise ArgumentError(f"__array_namespace__: version {api_version!r} is unknown; known: {known}")
    return sys.modules[__name__.partition(".")[0]]


class NamespaceInfo:
    """The Array API's inspection object: capabilities, devices and dtypes. A device is a backend object."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing, data-dependent shapes and any rank are supported on every backend."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> AnyBackend:
        """The default backend."""
        return default_backend()

    def devices(self) -> tuple[AnyBackend, ...]:
        """The default backend, the one that is certainly available; others are loaded by name."""
        return (default_backend(),)

    def default_dtypes(self, *, device: BackendLike = None) -> dict[str, DType]:
        """The default dtypes."""
        backend = as_backend(device)
        own, integers = default_float(backend), backend.int_dtype
        return {
            "real floating": own, "complex floating": complex_of(own), "integral": integers, "indexing": integers
        }  # fmt: skip

    def dtypes(self, *, device: BackendLike = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """The standard's dtypes that a backend supports, by name; only those of ``kind`` if it is given."""
        kinds = tuple(KINDS) if kind is None else (kind,) if isinstance(kind, str) else kind
        unknown = [k for k in kinds if k not in KINDS]
        if unknown:
            raise ArgumentError(f"dtypes: {unknown[0]!r} is not a kind of dtype; kinds are {', '.join(KINDS)}")
        found = as_backend(device).capabilities.dtypes
        standard = (d for d in found if d.kind != "quantized" and d.name not in ("float16", "bfloat16"))
        return {d.name: d for d in standard if isdtype(d, kinds)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 - the standard's name
    """The Array API's inspection object.

    >>> __array_namespace_info__().default_dtypes()["real floating"]
    float32
    """
    return NamespaceInfo()
