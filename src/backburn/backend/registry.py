"""Finding backends by name: entry points, and expressions such as ``"autodiff(cupy:1)"``.

Grammar: ``name``, ``name:device``, either followed by options in parentheses, ``cupy:0(float_dtype=bfloat16)``; a
decorator's first argument is the expression of what it wraps, ``autodiff(numpy)``. Backends are found in the
entry-point group ``backburn.backends``, decorators in ``backburn.decorators``; those included in backburn need no
installed metadata; :func:`register_backend` and :func:`register_decorator` register names in one process. Modules are
imported on first use.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backburn.backend.contract import AnyBackend, is_autodiff, is_backend, lacking
from backburn.backend.spec import Decorated, Expression, misspelt, parse
from backburn.base.call_site import OURS, stack_level
from backburn.base.errors import BackburnError, BackendMismatchError, BackendUnavailableError, SpecError

BACKENDS = "backburn.backends"
DECORATORS = "backburn.decorators"

#: Backends and decorators that ship with backburn: found without installed metadata, never replaced by a plug-in.
BUILT_IN: dict[str, dict[str, str]] = {
    BACKENDS: {
        "cupy": "backburn_cupy:CupyBackend",
        "null": "backburn_null:NullBackend",
        "numpy": "backburn_numpy:NumpyBackend",
    },
    DECORATORS: {
        "autodiff": "backburn.autodiff:Autodiff",
        "capture": "backburn.decorators:Capture",
        "forward": "backburn.autodiff:Forward",
        "profile": "backburn.decorators:Profile",
        "sharded": "backburn.decorators.sharding:Sharded",
        "trace": "backburn.decorators:Trace",
    },
}
OURS.update(target.partition(":")[0] for targets in BUILT_IN.values() for target in targets.values())
#: The backend that has shapes and no values.
SHAPES_ONLY = "null"
#: The directories of the example adapters, for ``pip install``, by the name of the backend.
ADAPTERS = {
    "array_api_strict": "./examples/backends/backburn_array_api_strict",
    "jax": "./examples/backends/backburn_jax",
    "torch": "./examples/backends/backburn_torch",
}
#: The factories that were registered in this process, by group and name.
_registered: dict[tuple[str, str], Any] = {}
_loaded: dict[str, AnyBackend] = {}
#: The options that a loaded backend was given and its spec does not contain, by spec.
_loaded_options: dict[str, dict[str, Any]] = {}


class BackendWarning(UserWarning):
    """A backend cannot be imported though its package is installed, or computes without a part of it."""


@dataclass(frozen=True)
class BackendInfo:
    """Information on an installed backend: whether it can be used here, and if not, why.

    ``target`` is the ``module:attribute`` of its factory, ``distribution`` the installed package with its version, or
    ``""`` without metadata. ``decorates`` is True for decorators of backends. ``absent`` means that nothing is broken,
    but something that the backend needs, such as a GPU, is missing.
    """

    name: str
    target: str
    usable: bool
    reason: str = ""
    distribution: str = ""
    decorates: bool = False
    absent: bool = False


def shapes_only() -> AnyBackend:
    """The backend that ships for shapes and dtypes without values.

    >>> shapes_only().device
    'null'
    """
    return load_backend("null")


def register_backend(name: str, factory: Any) -> None:
    """Register a backend as ``name`` in this process; ``factory(device=..., **options)`` returns it.

    Its ``spec`` must begin with ``name``. A backend of that name that was loaded before is forgotten.

        >>> from backburn_numpy import NumpyBackend
        >>> register_backend("numpy", NumpyBackend)
        >>> load_backend("numpy") is NumpyBackend()
        True
    """
    _register("register_backend", BACKENDS, name, factory)


def register_decorator(name: str, factory: Any) -> None:
    """Register a decorator of backends as ``name`` in this process; ``factory(inner, **options)`` wraps a backend.

    The ``spec`` of its result must begin with ``name(`` and the inner backend's. Backends that were loaded through a
    decorator of that name before are forgotten. Raises :class:`SpecError` for an invalid name, or that of a backend.

        >>> from backburn.backend import Wrapper
        >>> class Printing(Wrapper):
        ...     name = "printing"
        ...     def call(self, operation, *operands, **attributes):
        ...         print(operation)
        ...         return super().call(operation, *operands, **attributes)
        >>> register_decorator("printing", Printing)
        >>> k = load_backend("printing(numpy)")
        >>> x = k.exp(k.from_numpy(k.wrapped.to_numpy(k.wrapped.zeros((2,), dtype=k.float_dtype))))
        from_numpy
        exp
        >>> load_backend("autodiff(printing(numpy))").inner_backend is k
        True
    """
    _register("register_decorator", DECORATORS, name, factory)


def _register(function: str, group: str, name: Any, factory: Any) -> None:
    what, other = ("backend", DECORATORS) if group == BACKENDS else ("decorator", BACKENDS)
    if not isinstance(name, str) or not name.isidentifier():
        raise SpecError(f"{function}: {name!r} cannot stand in an expression: a name is letters, digits and _")
    if not callable(factory):
        raise SpecError(f"{function}: what makes {name!r} is a {what}'s class or a function, not {factory!r}")
    if name in BUILT_IN[other] or (other, name) in _registered:
        taken = "backend" if other == BACKENDS else "decorator"
        raise SpecError(f"{function}: {name!r} is a {taken} already: choose another name")
    _registered[group, name] = factory
    for spec in [s for s in _loaded if name in parse(s).names()]:
        del _loaded[spec]


def load_backend(spec: str) -> AnyBackend:
    """The backend for an expression; the same expression always gives the same object.

        >>> load_backend("autodiff(numpy)").inner_backend is load_backend("numpy")
        True

    Raises :class:`SpecError` for an expression that cannot be parsed, for an unknown name, and for options that the
    backend's spec omits if a backend with other options already has that spec; and :class:`BackendUnavailableError`
    for a known backend that cannot be used here.
    """
    try:
        known = _loaded.get(spec)
    except TypeError:  # not even hashable
        known = None
    if known is None:
        expression = parse(spec)
        known = _loaded[spec] = _intern(expression, _build(expression))
    return known


def unknown_name(spec: str) -> tuple[str, SpecError] | None:
    """The first unregistered name in an expression, and the error for it, or None; no backend is imported.

    Raises :class:`SpecError` for a text that is not an expression.

    >>> unknown_name("autodiff(numpy)"), unknown_name("autodiff(nunpy)")[0]
    (None, 'nunpy')
    """
    known = {**_targets(DECORATORS), **_targets(BACKENDS)}
    for part in parse(spec).parts():
        if part.name not in known and not any((group, part.name) in _registered for group in (BACKENDS, DECORATORS)):
            return part.name, misspelt(part, known)
    return None


def list_backends() -> list[BackendInfo]:
    """Every backend that is installed, usable or not; one whose package fails to import also warns.

    >>> "numpy" in [info.name for info in list_backends() if info.usable]
    True
    """
    return _listed(BACKENDS)


def list_decorators() -> list[BackendInfo]:
    """Every installed decorator, such as ``autodiff``; a package that fails to import also warns.

    >>> "autodiff" in [info.name for info in list_decorators() if info.usable]
    True
    """
    return _listed(DECORATORS)


def _listed(group: str) -> list[BackendInfo]:
    """The backends or decorators known in ``group``, and whether each can be loaded."""
    packages, decorates = _packages(group), group == DECORATORS
    result = []
    for name, target in sorted(_targets(group).items()):
        where, reason, absent = _where(target), "", False
        try:
            _find(group, name) if decorates else load_backend(name)
        except BackburnError as error:
            reason = str(error)
            absent = isinstance(error, BackendUnavailableError) and error.__cause__ is None and not decorates
            if decorates or error.__cause__ is not None:
                warnings.warn(reason, BackendWarning, stacklevel=stack_level())
        package = packages.get((name, where), "")
        result.append(BackendInfo(name, where, not reason, reason, package, decorates, absent))
    return result


def check_autodiff_backend(backend: Any) -> None:
    """Raise unless an ``AutodiffBackend`` has the device, float type and int type of its inner backend."""
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


# ---- where names are looked up ----


def _entry_points(group: str) -> list[Any]:
    if os.environ.get("BACKBURN_DISABLE_PLUGINS"):
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


def _targets(group: str) -> dict[str, Any]:
    """The targets known in ``group``: by name an object, or ``"module:attribute"``."""
    found = {e.name: e.value for e in _entry_points(group)}
    return {**found, **BUILT_IN[group], **{n: f for (g, n), f in _registered.items() if g == group}}


def _where(target: Any) -> str:
    """The ``module:attribute`` of a factory; for an object without a name, that of its class."""
    if isinstance(target, str):
        return target
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}:{named.__qualname__}"


def _packages(group: str) -> dict[tuple[str, str], str]:
    """The distribution and version behind each name and target of ``group``."""
    return {(e.name, e.value): f"{e.dist.name} {e.dist.version}" for e in _entry_points(group) if e.dist is not None}


def _find(group: str, name: str) -> Any | None:
    """The class or factory called ``name``, or None; a failed import raises with the reason."""
    target = _registered.get((group, name))
    if target is None:
        target = BUILT_IN[group].get(name) or _targets(group).get(name)
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    OURS.add(module)
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as cause:
        if isinstance(cause, BackendUnavailableError):
            raise
        advice = "" if isinstance(cause, BackburnError) else ". Mend or uninstall its package"
        raise BackendUnavailableError(
            f"backend {name!r}: {module} could not be imported ({type(cause).__name__}: {cause}){advice}"
        ) from cause
    return found


def _is_decorator(name: str) -> bool:
    """Whether ``name`` is a decorator. Included backends are known without reading metadata."""
    if name in BUILT_IN[DECORATORS] or (DECORATORS, name) in _registered:
        return True
    if name in BUILT_IN[BACKENDS] or (BACKENDS, name) in _registered:
        return False
    return name in _targets(DECORATORS)


# ---- from an expression to a backend ----


def _build(expression: Expression) -> AnyBackend:
    """The backend that a parsed expression names."""
    name = expression.name
    if _is_decorator(name):
        if not isinstance(expression, Decorated):
            raise expression.error(f"{name} wraps a backend: write {name}(numpy)")
        inner = _intern(expression.inner, _build(expression.inner))
        return _call(expression, _find(DECORATORS, name), (inner,), {})
    factory = _find(BACKENDS, name)
    if factory is None:
        error = misspelt(expression, {**_targets(DECORATORS), **_targets(BACKENDS)})
        if name in ADAPTERS:
            error = SpecError(f"{error} Its adapter is an example: pip install {ADAPTERS[name]}, from a clone")
        raise error
    if isinstance(expression, Decorated):
        raise expression.error(f"{name} wraps nothing; its options are written {name}(key=value)")
    device = {} if expression.device is None else {"device": expression.device}
    return _call(expression, factory, (), device)


def _parameters(factory: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a factory; empty if Python cannot inspect it."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}


def _refusal(name: str, factory: Any, operands: int, words: list[str], cause: TypeError) -> str:
    """Why a factory could not be called with a device or options, and what it takes besides operands."""
    if not words:
        return f"{name} could not be made ({cause})"
    takes = list(_parameters(factory))[operands:]
    known = f"; it takes {', '.join(takes)}" if takes else "; it takes none"
    return f"{name} does not take {', '.join(words)}{known}"


def _intern(expression: Expression, made: AnyBackend) -> AnyBackend:
    """The loaded backend with the spec of ``made``: an earlier one, else ``made`` itself."""
    known, untold = _loaded.setdefault(made.spec, made), _hidden_options(expression, made)
    if known is made:
        _loaded_options[made.spec] = untold
    elif untold != _loaded_options.get(made.spec, {}):
        raise expression.error(
            f"the spec of {expression.name}'s result, {made.spec!r}, does not include "
            f"{', '.join(untold or _loaded_options[made.spec])}, and a backend with other options already has it: "
            f"override spec in {type(made).__name__}, so that it includes options that are not the default"
        )
    return known


def _hidden_options(expression: Expression, made: AnyBackend) -> dict[str, Any]:
    """The options of an expression that the resulting spec does not contain, without defaults."""
    told = parse(made.spec).options
    if expression.options.keys() <= told.keys():
        return {}
    factory = _find(DECORATORS if isinstance(expression, Decorated) else BACKENDS, expression.name)
    defaults = {name: p.default for name, p in _parameters(factory).items()}
    return {k: v for k, v in expression.options.items() if k not in told and (k not in defaults or defaults[k] != v)}


def _call(expression: Expression, factory: Any, operands: tuple[AnyBackend, ...], device: dict[str, int]) -> AnyBackend:
    """The result of ``factory``, which must be a backend whose spec begins with the requested name."""
    name = expression.name
    try:
        made = factory(*operands, **device, **expression.options)
    except BackburnError:
        raise
    except TypeError as cause:
        words = [f"device {expression.device}"] if device else []
        words += [f"{key}={value!r}" for key, value in expression.options.items()]
        raise expression.error(_refusal(name, factory, len(operands), words, cause)) from cause
    except (Exception, SystemExit) as cause:
        why = f"{type(cause).__name__}: {cause}"
        raise BackendUnavailableError(f"backend {name!r}: cannot be used here ({why})") from cause
    if not is_backend(made):
        raise SpecError(f"{name!r} made {type(made).__name__}, which is not a backend: {lacking(made)}")
    backend: AnyBackend = made
    begin = f"{name}({operands[0].spec}" if operands else name
    if parse(backend.spec).name != name or not backend.spec.startswith(begin):
        raise SpecError(
            f"the backend {name!r} ({type(made).__name__}) has the spec {backend.spec!r}: a spec is the expression "
            f"that is read back as the backend, and so it begins with {begin!r}"
        )
    check_autodiff_backend(backend)
    return backend
