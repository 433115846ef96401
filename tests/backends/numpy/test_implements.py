"""The registration of functions as operations."""

from __future__ import annotations

import pkgutil
import types
from collections.abc import Iterator

import numpy as np
import pytest

from backburn.ops.table import OPERATIONS
from backburn_numpy import implements, ops


def forgotten(module: types.ModuleType) -> Iterator[str]:
    """The functions of a module that have the name of an operation and are not registered."""
    for name, function in vars(module).items():
        # An imported helper may have an operation's name, such as ``empty``.
        if name in OPERATIONS and getattr(function, "__module__", "") == module.__name__:
            found = implements.IMPLEMENTATIONS.get(name)
            if found is None or getattr(found.function, "__wrapped__", found.function) is not function:
                yield name


FAMILIES = [name for _, name, _ in pkgutil.iter_modules(ops.__path__)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_function_with_the_name_of_an_operation_is_registered(family: str) -> None:
    assert list(forgotten(getattr(ops, family))) == []


def test_a_function_that_is_not_registered_is_found() -> None:
    module = types.ModuleType("planted")
    exec("def sort(x, /, axis): return x\ndef unrelated(): ...", vars(module))
    assert list(forgotten(module)) == ["sort"]


@pytest.mark.parametrize(("name", "words"), [("srot", "no operation srot"), ("sort", "in backburn_numpy.ops.sort")])
def test_unknown_operations_and_second_implementations_are_rejected(name: str, words: str) -> None:
    with pytest.raises(KeyError, match=words):
        implements.implements(name)(np.sort)
