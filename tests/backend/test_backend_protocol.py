"""The two protocols of the contract at run time: which objects are backends, and which are autodiff backends."""

from __future__ import annotations

from typing import Any

import pytest

import backburn as bb
from backburn.backend import (
    AUTODIFF_METHODS,
    OPERATIONS,
    AutodiffBackend,
    Backend,
    Wrapper,
    is_autodiff,
    is_backend,
)  # fmt: skip
from backburn.backend.contract import RENAMED
from backburn.base.errors import ArgumentError, BackendMismatchError, SpecError
from backburn.conformance import check_backend
from backburn_null import NullBackend
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
REQUIRED = ["spec", "device", "dtype", "capabilities", *(e.name for e in OPERATIONS.values() if e.required)]
MEMBERS = [name for name in dir(Backend) if not name.startswith("_")]


def with_members_of(kind: type, names: list[str]) -> type:
    """Return a class without bases that has the named members of ``kind``, and the private ones that they use."""
    every = {name: value for k in reversed(kind.__mro__[:-1]) for name, value in vars(k).items()}
    used = {name for name in every if name.startswith("_") and not name.startswith("__")}
    return type("Structural", (), {name: every[name] for name in every if name in used.union(names)})


Structural = with_members_of(NumpyBackend, MEMBERS)
#: A structural autodiff backend.
Differentiating = with_members_of(bb.Autodiff, [*MEMBERS, *AUTODIFF_METHODS])
#: A structural class without default bodies, which only subclasses inherit.
Required = with_members_of(NumpyBackend, REQUIRED)


class Counting(Wrapper):
    name = "counting"


class Delegating:
    def __getattr__(self, name: str) -> Any:
        return getattr(BASE, name)


@pytest.mark.parametrize(
    ("value", "backend", "autodiff"),
    [
        (BASE, True, False),
        (NullBackend(), True, False),
        (bb.Autodiff(BASE), True, True),
        (bb.Autodiff(bb.Autodiff(BASE)), True, True),
        (bb.Forward(BASE), True, False),
        (Counting(BASE), True, False),
        (Structural(), True, False),
        (Differentiating(), True, True),
        (Required(), False, False),
        (Delegating(), False, False),
        (NumpyBackend, False, False),
        ("numpy", False, False),
        (None, False, False),
    ],
    ids=lambda value: repr(value).partition(" object at ")[0],  # the same in every worker
)
def test_isinstance_agrees_with_is_backend_and_is_autodiff(value: Any, backend: bool, autodiff: bool) -> None:
    assert (isinstance(value, Backend), isinstance(value, AutodiffBackend)) == (backend, autodiff)
    kinds: tuple[Any, Any] = (Backend, AutodiffBackend)
    assert tuple(issubclass(type(value), kind) for kind in kinds) == (backend, autodiff)
    assert (is_backend(value), is_autodiff(value)) == (backend, autodiff)


def test_isinstance_of_a_backend_class_works_as_usual() -> None:
    """Only the protocols answer ``isinstance`` from attributes; their subclasses answer as usual."""
    assert isinstance(BASE, NumpyBackend)
    assert issubclass(NumpyBackend, NumpyBackend)
    assert not isinstance(NullBackend(), NumpyBackend)
    assert not isinstance(bb.Autodiff(BASE), NumpyBackend)
    assert isinstance(bb.Autodiff(BASE), bb.Autodiff)
    assert not isinstance(BASE, bb.Autodiff)
    assert not isinstance(Structural(), NumpyBackend)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (NumpyBackend, r"it is a class: NumpyBackend\(\) makes a backend"),
        (Delegating(), "it lacks spec, dtype, capabilities, .* and 8. more. Members are looked for on the class"),
        (Required(), "it lacks adam_step, .* more, for which a subclass of backburn.backend.Backend inherits default"),
        (3, "3 is neither a backend nor an expression such as"),
    ],
    ids=["a class", "an object that delegates", "required members alone", "a number"],
)
def test_errors_say_why_an_object_is_not_a_backend(given: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        bb.ones(2, backend=given)


def test_check_backend_refuses_required_members_alone() -> None:
    with pytest.raises(ArgumentError, match="made Structural, which is not a backend: it lacks adam_step"):
        check_backend(Required())


def test_a_backend_that_subclasses_nothing_computes_and_differentiates() -> None:
    x = bb.asarray([1.0, 2.0], backend=bb.Autodiff(Structural())).require_grad()
    gradient = x.grad(bb.softmax(x)[0].backward())
    assert gradient is not None
    assert gradient.tolist() == pytest.approx([0.19661193, -0.19661193])


def test_errors_distinguish_backends_of_one_spec_by_their_classes() -> None:
    class Nameless(NumpyBackend):
        pass

    for here, there in ((Nameless(), BASE), (BASE, Nameless()), (bb.Autodiff(Nameless()), bb.Autodiff(BASE))):
        assert here != there
        with pytest.raises(
            BackendMismatchError, match=r"backends with the same spec, 'numpy' \(Nameless and NumpyBackend\)"
        ):
            bb.add(bb.ones(2, backend=here), bb.ones(2, backend=there))


def test_a_transform_stays_on_a_backend_with_the_spec_of_the_default() -> None:
    class Counting(NumpyBackend):
        calls = 0

        def tanh(self, x: Any, /) -> Any:
            type(self).calls += 1
            return super().tanh(x)

    bb.grad(bb.tanh)(bb.asarray(0.5, backend=bb.Autodiff(Counting())))
    assert Counting.calls == 1


def test_an_operation_under_its_former_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Mine\.clamp: the operation is called clip now"):
        type("Mine", (NumpyBackend,), {"clamp": lambda self, x, low, high, /: x})
    assert not any(name in OPERATIONS for name in RENAMED)
    assert all(name in OPERATIONS for name in RENAMED.values())
