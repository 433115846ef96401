"""Errors for unknown names and arguments, with hints for users of other libraries.

The hints are tables, in the modules of this package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, getattr_static, signature
from typing import Any, NoReturn

from backburn.base.callers import NAMESPACES
from backburn.base.calls import OF_LAYERS, renamed
from backburn.base.hints import of_models
from backburn.base.hints.elsewhere import FUNCTIONAL, FUNCTIONS, IMMUTABLE, METHODS, SET, TREES
from backburn.base.hints.from_burn import BURN
from backburn.base.hints.from_numpy import RANDOM
from backburn.base.hints.from_torch import ONLY_FUNCTIONS

#: The hints for names of some modules alone.
_OWN: dict[str, Mapping[str, str]] = {
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
    """Add hints for methods of other libraries, also those of in-place methods, to the class of tensors."""
    in_place = [*(n for n in dir(cls) if not n.startswith("_")), "add", "copy", "div", "fill", "mul", "sub", "zero"]
    for name, hint in SET.items():
        setattr(cls, name, ReadOnlyAttribute(name, hint))
    changing = {f"{n}_": hint for n, hint in (dict.fromkeys(in_place, IMMUTABLE) | METHODS).items()}
    formulas = {name: hint for name, hint in FUNCTIONS.items() if re.search(r"\bx\b", hint)}
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


def add_option_hints(*values: Any) -> None:
    """Make errors for unknown arguments of the classes among ``values`` name the class and its arguments.

    Python's own error names the class that defines ``__init__``, which may be private.
    """
    for value in values:
        if isinstance(value, type):
            _add_option_hints(value)


def _nothing(self: Any) -> None:
    """The ``__init__`` of a class that has none, and no other class after it that has one."""


def _add_option_hints(cls: Any) -> None:
    own: Any = cls.__init__
    if own is object.__init__:
        own = _nothing

    @wraps(own)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        after: Any = super(cls, self)
        init: Any = own if own is not _nothing else getattr(after.__init__, "__func__", _nothing)
        try:
            init(self, *args, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from within
            fault = str(error).partition("() ")[2]
            quoted = re.search(r"keyword argument '(\w+)'", fault)
            hint = renamed(quoted[1], signature(init)) if quoted else ""
            if quoted and quoted[1] in OF_LAYERS:
                hint = f"; here: {OF_LAYERS[quoted[1]]}"
            raise TypeError(f"{cls.__name__}() {fault}{hint}; it takes {cls.__name__}({_options(init)})") from None

    type.__setattr__(cls, "__init__", checked)


def _options(init: Any) -> str:
    """The parameters of a method with their defaults, as in a call."""
    found = [p.replace(annotation=Parameter.empty) for p in list(signature(init).parameters.values())[1:]]
    return ", ".join(map(str, found))


def missing_name(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    own, known = _OWN.get(module, {}), name.removesuffix("Config")  # Burn's configurations are arguments here
    hint = own.get(known) or FUNCTIONS.get(known) or _ours(known, module)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; here: {hint}" if hint else ""))


def lookups(module: str, names: Sequence[str]) -> tuple[Callable[[], list[str]], Callable[[str], NoReturn]]:
    """``__dir__`` and ``__getattr__`` of a module: its public names, and :func:`missing_name` for others."""

    def missing(name: str) -> NoReturn:
        raise missing_name(module, name)

    return lambda: sorted(names), missing


def _ours(name: str, asked: str) -> str | None:
    """The same public name in another namespace, or one that differs in capitals and underscores only, as ``relu_``.

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
