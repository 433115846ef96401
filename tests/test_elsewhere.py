"""Names of other libraries: an AttributeError that tells ours, and ours exist."""

from __future__ import annotations

import re

import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.elsewhere import FUNCTIONS, METHODS, MODELS, OPTIMIZERS


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_other_libraries_are_told_in_ours(name: str) -> None:
    """``hasattr`` still says no."""
    x = bb.ones((2, 3))
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=rf"'FloatTensor' object has no attribute '{name}'; here: "):
        getattr(x, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_other_libraries_are_told_in_ours(name: str) -> None:
    """The same for the namespaces."""
    with pytest.raises(AttributeError, match=rf"module 'backburn' has no attribute '{name}'; here: "):
        getattr(bb, name)


def test_methods_of_models_and_optimizers() -> None:
    """The same for these."""
    for owner, names in ((nn.Linear(1, 1), MODELS), (optim.SGD(0.1), OPTIMIZERS)):
        for name in names:
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'; here: "):
                getattr(owner, name)


def test_namespaces_tell_too() -> None:
    """Where users look for the names first."""
    for module, name in ((bb.nn, "CrossEntropyLoss"), (bb.random, "randn"), (bb.linalg, "norm")):
        with pytest.raises(AttributeError, match="; here: bb"):
            getattr(module, name)
    with pytest.raises(AttributeError, match=r"'add_'; here: tensors are never changed"):
        getattr(bb.ones(2), "add" + "_")
    with pytest.raises(AttributeError, match=r"'foo'$"):
        getattr(bb.ones(2), "fo" + "o")


HINTS = {hint for names in (METHODS, FUNCTIONS, MODELS, OPTIMIZERS) for hint in names.values()}


@pytest.mark.parametrize("hint", sorted(HINTS))
def test_what_is_told_exists(hint: str) -> None:
    """Every name of ours in a hint is there."""
    for path in re.findall(r"\bbb\.([\w.]+)", hint):
        found: object = bb
        for part in path.split("."):
            found = getattr(found, part)
    for name in re.findall(r"\bx\.(\w+)", hint):
        assert hasattr(bb.ones((2, 3)), name)
