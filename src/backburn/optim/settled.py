"""Objects that get no attribute once they are made: what would set one that is not there is told."""

from __future__ import annotations

from abc import ABCMeta
from inspect import Signature, signature
from typing import Any

from backburn.base.errors import hint_for
from backburn.base.replay import Carrier


class _Settling(ABCMeta):
    """The type of such classes: their objects are settled when ``__init__`` has ended, that of a subclass too."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        vars(made)["_settled"] = True
        return made

    @property
    def __signature__(cls) -> Signature:
        """That of ``__init__``, which ``__call__`` would hide."""
        found = signature(cls.__init__)  # type: ignore[misc]
        return found.replace(parameters=list(found.parameters.values())[1:])


class Settled(Carrier, metaclass=_Settling):
    """A carrier with the public attributes that ``__init__`` and its class have given it, and no others."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; after ``__init__`` only one that is there, or whose name begins with an underscore."""
        if "_settled" in vars(self) and not name.startswith("_") and not hasattr(self, name):
            known = [known for known in vars(self) if not known.startswith("_")]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}. {hint_for(name, known)}")
        super().__setattr__(name, value)
