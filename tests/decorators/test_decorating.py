"""Operations of decorators are compiled at their first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from backburn.backend.contract import Backend
from backburn.backend.wrapper import DecoratorBase, make_operations
from backburn.ops.table import LISTENERS, Operation
from backburn_numpy import NumpyBackend


class Counted(DecoratorBase, Backend[Any, Any, Any, Any]):
    """A decorator that counts how often each of its operations is compiled."""

    spec = "counted(numpy)"

    def __init__(self) -> None:
        self._inner = NumpyBackend()

    def dtype(self, x: Any, /) -> Any:
        return self._inner.dtype(x)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    names: list[str] = []

    def compile_operation(operation: Operation) -> Callable[..., Any]:
        names.append(operation.name)
        return lambda self, *operands, **attributes: getattr(self._inner, operation.name)(*operands, **attributes)

    make_operations(Counted, compile_operation)
    yield names
    LISTENERS.pop()


def test_an_operation_is_compiled_once_however_it_is_called(compilations: list[str]) -> None:
    k, x = Counted(), np.ones(3)
    for _ in range(3):
        k.exp(x)
    assert compilations == ["exp"]


@pytest.mark.parametrize("take", [lambda k: k.cosh, lambda k: partial(k.cosh), lambda k: lambda x: [*map(k.cosh, [x])]])
def test_an_operation_taken_before_its_first_call_is_compiled_once(
    take: Callable[[Any], Any], compilations: list[str]
) -> None:
    k, x = Counted(), np.ones(3)
    taken, unbound = take(k), Counted.cosh
    for _ in range(3):
        taken(x)
        unbound(k, x)
        k.cosh(x)
    assert compilations == ["cosh"]


def test_a_replaced_operation_stays_replaced_after_its_first_call(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    k, x, calls = Counted(), np.ones(3), 0
    original = Counted.tanh

    def wrapper(self: Any, /, *operands: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(self, *operands)

    monkeypatch.setattr(Counted, "tanh", wrapper)
    for _ in range(3):
        np.testing.assert_array_equal(k.tanh(x), np.tanh(x))
    assert (calls, compilations) == (3, ["tanh"])
