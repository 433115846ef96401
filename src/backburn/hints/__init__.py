"""Errors for unknown names and arguments, with hints for users of other libraries.

The hints are tables, in the modules of this package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import getattr_static
from typing import Any, NoReturn

from backburn.base.call_site import NAMESPACES
from backburn.hints import models as of_models
from backburn.hints.arguments import OF_CLASSES, explained
from backburn.hints.burn import BURN
from backburn.hints.general import FUNCTIONAL, FUNCTIONS, IMMUTABLE, METHODS, SET, TREES
from backburn.hints.numpy import RANDOM
from backburn.hints.torch import ONLY_FUNCTIONS

#: Hints that hold for one module only.
_OWN: dict[str, Mapping[str, str]] = {
    "backburn.io": of_models.IO,
    "backburn.nn": of_models.NN,
    "backburn.nn.functional": FUNCTIONAL | of_models.FUNCTIONAL,
    "backburn.nn.init": of_models.INIT,
    "backburn.optim": of_models.OPTIM,
    "backburn.optim.schedules": of_models.SCHEDULES,
    "backburn.random": RANDOM,
    "backburn.trees": TREES,
}


class MissingAttribute:
    """A descriptor for an attribute that does not exist; its error names the alternative.

    A ``__getattr__`` in its place would slow down every attribute of every tensor. :class:`HidesHints` and
    :func:`_present` hide it from ``dir``.
    """

    __slots__ = ("_hint", "_name")

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, owner: object, cls: type) -> NoReturn:
        words = f"type object {cls.__name__!r}" if owner is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{words} has no attribute {self._name!r}; here: {self._hint}")


class ReadOnlyAttribute(MissingAttribute):
    """A missing attribute that other libraries allow to set; its error says what to do instead."""

    __slots__ = ()

    def __set__(self, owner: object, value: object) -> NoReturn:
        raise AttributeError(
            f"{self._name!r} of a {type(owner).__name__} cannot be set: tensors are never changed; here: {self._hint}"
        )


class HidesHints(type):
    """A metaclass that hides hints from ``dir`` and ``help``."""

    def __dir__(cls) -> list[str]:
        return _without_hints(cls, super().__dir__())


def add_method_hints(cls: type) -> None:
    """Add hints for methods of other libraries, in-place ones included, to the class of tensors."""
    in_place = [*(n for n in dir(cls) if not n.startswith("_")), "add", "copy", "div", "fill", "mul", "sub", "zero"]
    for name, hint in SET.items():
        setattr(cls, name, ReadOnlyAttribute(name, hint))
    formulas = {name: hint for name, hint in FUNCTIONS.items() if re.search(r"\bx\b", hint)}
    changing = {f"{n}_": hint for n, hint in (formulas | dict.fromkeys(in_place, IMMUTABLE) | METHODS).items()}
    add_hints(cls, formulas | ONLY_FUNCTIONS | changing | METHODS | BURN)


def add_hints(cls: type, hints: Mapping[str, str]) -> None:
    """Add hints for names that a class does not have."""
    for name, hint in hints.items():
        if not hasattr(cls, name):
            setattr(cls, name, MissingAttribute(name, hint))
    if "__dir__" not in vars(cls):
        type.__setattr__(cls, "__dir__", _present)


def _present(owner: object) -> list[str]:
    """``dir(owner)`` without hints."""
    return _without_hints(owner, object.__dir__(owner))


def _without_hints(owner: object, names: Iterable[str]) -> list[str]:
    return [name for name in names if not isinstance(getattr_static(owner, name, None), MissingAttribute)]


def explain_arguments(*values: object) -> None:
    """Make errors for wrong arguments of the classes among ``values`` name the class and its arguments.

    Python's own error names the class that defines ``__init__``, which may be private.
    """
    for value in values:
        if isinstance(value, type):
            own: Any = value.__init__  # type: ignore[misc]
            has_none = own is object.__init__
            init = _without_options(value) if has_none else explained(own, value.__name__, OF_CLASSES)
            type.__setattr__(value, "__init__", init)


def _without_options(cls: Any) -> Callable[..., None]:
    """An ``__init__`` for a class without one: it passes arguments to the next class's, or refuses them."""

    def nothing(self: Any) -> None:
        """Take no arguments."""

    refusing = explained(nothing, cls.__name__, OF_CLASSES)

    @wraps(nothing)
    def init(self: Any, *given: Any, **options: Any) -> None:
        after: Any = super(cls, self).__init__
        (after if hasattr(after, "__func__") else partial(refusing, self))(*given, **options)

    return init


def missing_name(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    own, known = _OWN.get(module, {}), name.removesuffix("Config")  # Burn's configurations are arguments here
    hint = own.get(known) or FUNCTIONS.get(known) or _ours(known, module)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; here: {hint}" if hint else ""))


def instead_of(name: str) -> str | None:
    """The code to write here for a function ``name`` of another library; None where no hint is known."""
    return FUNCTIONS.get(name) or _ours(name, "backburn._namespace")


def lookups(module: str, names: Sequence[str]) -> tuple[Callable[[], list[str]], Callable[[str], NoReturn]]:
    """``__dir__`` and ``__getattr__`` of a module: its public names, and :func:`missing_name` for others."""

    def missing(name: str) -> NoReturn:
        raise missing_name(module, name)

    return lambda: sorted(names), missing


def _ours(name: str, asked: str) -> str | None:
    """A public name, in any namespace, that equals ``name`` or differs only in case and underscores, as ``relu_`` does.

    The module ``asked`` is searched first: ``nn.Relu`` is ``nn.ReLU`` rather than ``relu``.
    """
    places = sorted(NAMESPACES.items(), key=lambda place: place[0] != asked)
    for same in (str, _plain):
        for module, spoken in places:
            for known in getattr(sys.modules.get(module), "__all__", ()):
                if same(known) == same(name):
                    return f"{spoken}.{known}"
    return None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
