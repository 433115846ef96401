"""Finding backends by name: entry points, and expressions such as ``"autodiff(cupy:1)"``.

Grammar: ``name``, ``name:device``, either followed by options in parentheses, ``cupy:0(float_dtype=bfloat16)``; a
decorator's first argument is the expression of what it wraps, ``autodiff(numpy)``. Backends are found in the
entry-point group ``backburn.backends``, decorators in ``backburn.decorators``; those that ship with backburn need no
installed metadata. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from dataclasses import dataclass
from typing import Any

from backburn.backend.contract import AnyBackend, is_autodiff, is_backend
from backburn.base.errors import BackburnError, BackendMismatchError, BackendUnavailableError, SpecError, hint_for

#: What ships with backburn; found without installed metadata.
BUILT_IN = {
    "backburn.backends": {"numpy": "backburn_numpy:NumpyBackend"},
    "backburn.decorators": {"autodiff": "backburn.autodiff:Autodiff"},
}
_registered: dict[str, dict[str, Any]] = {"backburn.backends": {}, "backburn.decorators": {}}
_loaded: dict[str, AnyBackend] = {}


class BackendWarning(UserWarning):
    """A backend's package is installed and cannot be imported."""


@dataclass(frozen=True)
class BackendInfo:
    """What is known of an installed backend: whether it can be used here, and if not, why."""

    name: str
    target: str
    usable: bool
    reason: str = ""


def register_backend(name: str, factory: Any) -> None:
    """Make a backend known by ``name`` in this process; ``factory(device=..., **options)`` returns it."""
    _registered["backburn.backends"][name] = factory
    _loaded.clear()


def _targets(group: str) -> dict[str, Any]:
    """Everything known in ``group``: name to an object, or to ``"module:attribute"``."""
    found: dict[str, Any] = dict(BUILT_IN[group])
    if not os.environ.get("BACKBURN_DISABLE_PLUGINS"):
        from importlib.metadata import entry_points

        found.update({e.name: e.value for e in entry_points(group=group)})
    return {**found, **_registered[group]}


def _find(group: str, name: str) -> Any | None:
    """The class or factory called ``name``, or None; an import that fails says why."""
    target = _registered[group].get(name) or BUILT_IN[group].get(name) or _targets(group).get(name)
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except BackburnError:
        raise
    except Exception as cause:
        raise BackendUnavailableError(
            f"backend {name!r}: {module} could not be imported ({type(cause).__name__}: {cause})"
        ) from cause


def load_backend(spec: str) -> AnyBackend:
    """The backend that an expression names; the same expression always gives the same object.

        >>> load_backend("autodiff(numpy)").inner_backend is load_backend("numpy")
        True

    Raises :class:`SpecError` for an expression that cannot be read or a name that nothing goes by, and
    :class:`BackendUnavailableError` for a backend that is known and cannot be used here.
    """
    known = _loaded.get(spec)
    if known is None:
        parser = _Parser(spec)
        known = parser.backend()
        parser.end()
        check_autodiff_backend(known)
        known = _loaded.setdefault(known.spec, known)
        _loaded[spec] = known
    return known


def list_backends() -> list[BackendInfo]:
    """Every backend that is installed, usable or not; one whose package fails to import also warns."""
    result = []
    for name, target in sorted(_targets("backburn.backends").items()):
        where = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
        try:
            load_backend(name)
        except BackendUnavailableError as error:
            if isinstance(error.__cause__, Exception):
                warnings.warn(str(error), BackendWarning, stacklevel=2)
            result.append(BackendInfo(name, where, usable=False, reason=str(error)))
        else:
            result.append(BackendInfo(name, where, usable=True))
    return result


def check_autodiff_backend(backend: Any) -> None:
    """Refuse an ``AutodiffBackend`` that is not of one device, float type and int type with its inner backend."""
    if not is_autodiff(backend):
        return
    inner = backend.inner_backend
    for what in ("device", "float_dtype", "int_dtype"):
        outer_value, inner_value = getattr(backend, what), getattr(inner, what)
        if outer_value != inner_value:
            raise BackendMismatchError(
                f"{type(backend).__name__} ({what} {outer_value}) wraps {type(inner).__name__} ({what} {inner_value}): "
                f"an autodiff backend and its inner backend share device, float type and int type"
            )


class _Parser:
    """A recursive-descent reader of backend expressions."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.tokens = re.findall(r"\s*([A-Za-z_][\w.-]*|\d+(?:\.\d+)?|[():,=]|\S)", spec)
        self.position = 0

    def fail(self, problem: str) -> SpecError:
        return SpecError(
            f"cannot read the backend expression {self.spec!r}: {problem}. Examples: numpy, autodiff(numpy), cupy:1"
        )

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if expected and token != expected:
            raise self.fail(f"expected {expected!r} and found {token or 'the end'!r}")
        self.position += 1
        return token

    def end(self) -> None:
        if self.peek():
            raise self.fail(f"nothing may follow, and {self.peek()!r} does")

    def backend(self) -> AnyBackend:
        name = self.take()
        if not re.match(r"[A-Za-z_]", name):
            raise self.fail(f"expected a name and found {name or 'the end'!r}")
        decorator = _find("backburn.decorators", name)
        if decorator is not None:
            return self.decorated(name, decorator)
        factory = _find("backburn.backends", name)
        if factory is None:
            known = {**_targets("backburn.decorators"), **_targets("backburn.backends")}
            raise SpecError(f"no backend is called {name!r}, in {self.spec!r}. {hint_for(name, known)}")
        options: dict[str, Any] = {}
        if self.peek() == ":":
            self.take()
            if not self.peek().isdigit():
                raise self.fail(f"a device is a number, not {self.peek() or 'the end'!r}")
            options["device"] = int(self.take())
        if self.peek() == "(":
            self.take()
            options.update(self.options())
        return self.make(name, factory, (), options)

    def decorated(self, name: str, decorator: Any) -> AnyBackend:
        if self.peek() != "(":
            raise self.fail(f"{name} wraps a backend: write {name}(numpy)")
        self.take("(")
        inner = self.backend()
        if self.peek() == ",":
            self.take()
            return self.make(name, decorator, (inner,), self.options())
        self.take(")")
        return self.make(name, decorator, (inner,), {})

    def make(self, name: str, factory: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> AnyBackend:
        try:
            made = factory(*operands, **options)
        except TypeError as cause:
            raise self.fail(f"{name} does not take {options or operands} ({cause})") from cause
        if not is_backend(made):
            raise SpecError(f"{name!r} made {type(made).__name__}, which is no backend")
        backend: AnyBackend = made
        return backend

    def options(self) -> dict[str, Any]:
        """``key=value, ...)``; values are numbers, true, false or words."""
        options: dict[str, Any] = {}
        while self.peek() != ")":
            key = self.take()
            self.take("=")
            value = self.take()
            words = {"true": True, "false": False}
            options[key] = words.get(value.lower(), float(value) if "." in value else int(value) if value.isdigit() else value)
            if self.peek() == ",":
                self.take()
            elif self.peek() != ")":
                raise self.fail(f"options end with ')' and are separated by commas, not {self.peek() or 'the end'!r}")
        self.take(")")
        return options
