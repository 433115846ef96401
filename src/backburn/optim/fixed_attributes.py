"""Objects whose set of attributes is fixed after construction: setting an unknown one raises an error with a hint."""

from __future__ import annotations

from abc import ABCMeta
from inspect import Signature, signature
from typing import Any

from backburn.backend.host_numbers import HasState
from backburn.base.errors import hint_for


class _FixedAttributesMeta(ABCMeta):
    """The metaclass: fixes the attributes once ``__init__``, also that of a subclass, has returned."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        vars(made)["_is_complete"] = True
        return made

    @property
    def __signature__(cls) -> Signature:
        """The signature of ``__init__``, which ``__call__`` would hide."""
        found = signature(cls.__init__)  # type: ignore[misc]
        return found.replace(parameters=list(found.parameters.values())[1:])


class FixedAttributes(HasState, metaclass=_FixedAttributesMeta):
    """An object whose public attributes are those set by its class and ``__init__``, and no others."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; after ``__init__`` only an existing one, or one whose name begins with an underscore."""
        if "_is_complete" in vars(self) and not name.startswith("_") and not hasattr(self, name):
            known = [known for known in vars(self) if not known.startswith("_")]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}. {hint_for(name, known)}")
        super().__setattr__(name, value)
