"""Backends from strings of the command line: an expression of the registry, or ``module:factory``."""

from __future__ import annotations

import base64
import importlib
import inspect
import pickle
from typing import Any

from backburn.backend.contract import Backend, Capabilities, is_backend
from backburn.backend.contract import lacking as lacking_members
from backburn.backend.registry import check_autodiff_backend, load_backend
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, BackburnError, BackendUnavailableError
from backburn.conformance.checks.whole_backend import missing_operations
from backburn.hints.arguments import plain
from backburn.ops.table import OPERATIONS, Operation

#: The prefix of a pickled backend; no expression begins with it.
PICKLED = "pickle "

#: The required members of a backend other than operations.
PROPERTIES = ("spec", "device", "capabilities", "dtype")


def load_target(target: str) -> Any:
    """The backend that ``target`` names: an expression such as ``"autodiff(numpy)"``, or ``"package.module:factory"``.

    The factory is a class, a function without arguments, or a backend. Raises an error of backburn for anything that
    cannot be used, with the missing required operations, if any.

        >>> load_target("backburn_numpy:NumpyBackend")
        <backend numpy>
    """
    module, _, attribute = target.partition(":")
    if attribute and all(p.isidentifier() for p in (*module.split("."), *attribute.split("."))):
        made = _make(target, module, attribute)
    else:
        made = load_backend(target)
    return check_usable(made, target)


def name_of(backend: Any) -> str:
    """The given string, or the spec of a backend."""
    return backend if isinstance(backend, str) else str(getattr(backend, "spec", backend))


def has_name(backend: Any) -> bool:
    """Whether :func:`name_of` suffices to load the backend in another process."""
    try:
        return isinstance(backend, str) or load_backend(name_of(backend)) == backend
    except BackburnError:
        return False


def resolve_backend(backend: Any) -> Any:
    """A usable backend, from its name or the object."""
    return load_target(backend) if isinstance(backend, str) else check_usable(backend, name_of(backend))


def serialize(backend: Any) -> str:
    """The text from which :func:`deserialize` loads the backend in another process: its name, or a pickle.

    Raises :class:`ArgumentError` for a backend that cannot be pickled.
    """
    if isinstance(backend, str):
        return backend
    try:
        return PICKLED + base64.b64encode(pickle.dumps(backend)).decode()
    except Exception as cause:
        raise ArgumentError(
            f"worker processes load the backend again, and {name_of(backend)} cannot be pickled ({cause}): "
            "pass its spec or 'module:factory' with jobs"
        ) from cause


def deserialize(sent: str) -> Any:
    """The backend from the result of :func:`serialize`; only for data from this program's parent process."""
    if not sent.startswith(PICKLED):
        return load_target(sent)
    return resolve_backend(pickle.loads(base64.b64decode(sent.removeprefix(PICKLED))))


def _make(target: str, module: str, attribute: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found() if isinstance(found, type) or (callable(found) and not is_backend(found)) else found
    except BackburnError:
        raise
    except Exception as cause:
        what = "could not be imported" if isinstance(cause, ImportError) else "could not be created"
        raise BackendUnavailableError(f"{target}: {what} ({type(cause).__name__}: {cause})") from cause


def check_usable(backend: Any, target: str) -> Any:
    """``backend``, if it has every required member and valid capabilities; raises :class:`ArgumentError` otherwise."""
    if isinstance(backend, type):
        name = backend.__name__
        raise ArgumentError(f"{name} is the class of a backend, and not a backend: pass an instance, {name}()")
    kind = type(backend)
    lacking = (
        missing_operations(backend)
        if Backend in kind.__mro__
        else [o for o in OPERATIONS.values() if o.required and not hasattr(kind, o.name)]
    )
    properties = [n for n in PROPERTIES if getattr(kind, n, None) in (None, getattr(Backend, n))]
    if properties or lacking:
        lines = [f"{target} made {kind.__name__}, which lacks required members:"]
        lines += [f"    {name}" for name in properties]
        lines += [f"    {signature(operation)}" for operation in lacking]
        raise ArgumentError("\n".join(lines))
    if not is_backend(backend):
        raise ArgumentError(f"{target} made {kind.__name__}, which is not a backend: {lacking_members(backend)}")
    declared = backend.capabilities  # it determines the checks
    if not isinstance(declared, Capabilities):
        raise ArgumentError(f"{target}: capabilities is a Capabilities, not {type(declared).__name__}")
    for dtype in declared.dtypes:
        if not isinstance(dtype, DType):
            raise ArgumentError(
                f"{target}: the keys of capabilities are dtypes such as as_dtype('float32'), not {dtype!r}"
            )
    check_autodiff_backend(backend)
    return backend


def signature(operation: Operation) -> str:
    """The name and parameters of an operation, as an implementation declares them.

    >>> signature(OPERATIONS["sum"])
    'sum(x, /, axis, keepdims=False)'
    """
    return f"{operation.name}{plain(inspect.signature(operation.body))}"
