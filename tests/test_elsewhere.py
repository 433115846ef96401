"""Names of other libraries: an AttributeError that tells ours, and ours exist."""

from __future__ import annotations

import re
from typing import Any

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


class Named(nn.Module):
    """With a name of its own that others have too, and one in the instance."""

    def __init__(self) -> None:
        self.children = [nn.Linear(1, 1)]

    def double(self) -> int:
        return 2


@pytest.mark.parametrize("owner", [bb.ones((2, 3)), nn.Linear(1, 1), optim.SGD(0.1), Named()])
def test_names_that_only_tell_are_not_listed(owner: Any) -> None:
    """Completion offers what is there."""
    listed = dir(owner)
    assert not {"zero_grad", "sum_", "shape_", "half", "cuda"} & set(listed)
    for name in listed:
        getattr(owner, name)
    assert [name for name in ("children", "double", "training") if name in listed] == (
        ["children", "double", "training"] if isinstance(owner, Named) else ["training"] * isinstance(owner, nn.Module)
    )


HINTS = {hint for names in (METHODS, FUNCTIONS, MODELS, OPTIMIZERS) for hint in names.values()}


@pytest.mark.parametrize("hint", sorted(HINTS))
def test_what_is_told_exists(hint: str) -> None:
    """Every name of ours in a hint is there."""
    for path in re.findall(r"\bbb\.([\w.]+)", hint):
        found: object = bb
        for part in path.split("."):
            found = getattr(found, part)
    for name in re.findall(r"\bmodel\.(\w+)", hint):
        assert hasattr(nn.Linear(1, 1), name)
    for name in re.findall(r"\bx\.(\w+)", hint):
        assert hasattr(bb.ones((2, 3)), name)
