"""``no_grad`` and similar blocks: ``with`` statements, decorators, and functions they cannot decorate."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, NumericalInstabilityError, SpecError
from backburn.tapes.values import base_backend


def doubled(x: Any) -> Any:
    """Return twice ``x``."""
    return x * 2.0


@pytest.mark.parametrize("decorate", [bb.no_grad, bb.no_grad()], ids=["bare", "called"])
def test_no_grad_decorates_with_and_without_parentheses(decorate: Callable[..., Any]) -> None:
    """The decorated function keeps its name and records nothing; code outside still records."""
    x = bb.asarray([1.0]).require_grad()
    inside = decorate(doubled)
    assert inside.__name__ == "doubled"
    assert not inside(x).is_tracked
    assert doubled(x).is_tracked


def test_blocks_nest_and_can_be_entered_again() -> None:
    """The outer block stays in force after the inner one, also if both are one object."""
    x = bb.asarray([1.0]).require_grad()
    block = bb.no_grad()
    with block:
        with block:
            assert not doubled(x).is_tracked
        assert not doubled(x).is_tracked
    assert doubled(x).is_tracked


def generator() -> Iterator[int]:
    """A generator function."""
    yield 1


async def coroutine() -> int:
    """A coroutine function."""
    return 1


async def asynchronous_generator() -> AsyncIterator[int]:
    """An asynchronous generator function."""
    yield 1


@pytest.mark.parametrize(
    "block",
    [bb.no_grad(), bb.use_backend("numpy"), bb.use_dtype("float64"), bb.random.fork(1), bb.detect_anomaly()],
    ids=["no_grad", "use_backend", "use_dtype", "fork", "detect_anomaly"],
)
@pytest.mark.parametrize("function", [generator, coroutine, asynchronous_generator])
def test_generators_and_coroutines_are_refused(block: Any, function: Callable[..., Any]) -> None:
    """A decorated generator would silently run outside the block."""
    with pytest.raises(ArgumentError, match=rf"{function.__name__} is a (generator|coroutine) function.*'with "):
        block(function)


def test_every_block_decorates() -> None:
    """Each call of the function enters the block."""
    assert bb.use_backend("numpy")(lambda: bb.ones(2).backend.spec)() == "numpy"
    assert bb.use_dtype("float64")(lambda: bb.ones(2).dtype)() is bb.float64
    draw = bb.random.fork(3)(lambda: bb.random.uniform(1).item())
    assert draw() == draw()
    with pytest.raises(NumericalInstabilityError):
        bb.detect_anomaly()(lambda: bb.log(bb.asarray([0.0])))()


def test_invalid_arguments_are_refused_at_once() -> None:
    """The error comes from the call, not from entering the block."""
    with pytest.raises(SpecError, match=r"use_backend: .*neither a backend nor an expression"):
        bb.use_backend(doubled)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"use_dtype: the default is a float dtype, not int32"):
        bb.use_dtype("int32")
    with pytest.raises(ArgumentError, match="fork: begins at"):
        bb.random.fork(doubled)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no_grad: decorates a function, not 3"):
        bb.no_grad(3)  # type: ignore[call-overload]


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKBURN_BACKEND", "")
    assert bb.default_backend().spec == bb.zeros(1).backend.spec == "autodiff(numpy)"
    assert base_backend(None).spec == "numpy"


def test_a_block_holds_in_its_own_thread() -> None:
    """Other threads are not affected, unless the context is copied, as free-threaded Python does from 3.14 on."""
    inherits = getattr(sys.flags, "thread_inherit_context", False)
    x = bb.asarray([1.0]).require_grad()
    found: list[Any] = []

    def note() -> None:
        found.append((doubled(x).is_tracked, bb.default_backend().spec, bb.default_dtype()))

    with bb.no_grad(), bb.use_backend("numpy"), bb.use_dtype("float64"):
        for target, arguments in ((note, ()), (contextvars.copy_context().run, (note,))):
            thread = threading.Thread(target=target, args=arguments)
            thread.start()
            thread.join()
    inside, outside = (False, "numpy", bb.float64), (True, "autodiff(numpy)", bb.float32)
    assert found == [inside if inherits else outside, inside]


def test_the_repr_of_a_block_says_whether_it_is_entered() -> None:
    block = bb.use_backend("numpy")
    assert repr(block) == "<use_backend: has no effect until a with statement enters it>"
    with block:
        assert repr(block) == "<use_backend: entered>"
