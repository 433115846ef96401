"""The number of Python frames of a product and its gradient, the fixed cost of small operations."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.helpers.frames import frames

import backburn as bb
from backburn.backend.registry import load_backend
from backburn.base.module_calls import WATCHERS


def _matrices() -> list[bb.FloatTensor]:
    rng = np.random.default_rng(0)
    k = load_backend("autodiff(numpy)")
    return [bb.asarray(rng.normal(size=(8, 8)), dtype="float32", backend=k).require_grad() for _ in range(2)]


CALLS: dict[str, tuple[Callable[[bb.FloatTensor, bb.FloatTensor], object], int]] = {
    "product": (lambda x, w: x @ w, 13),
    "linear": (lambda x, w: bb.nn.functional.linear(x, w), 18),
    "gradient": (lambda x, w: x.grad(bb.sum(x @ w).backward()), 80),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_few_frames(name: str) -> None:
    call, most = CALLS[name]
    x, w = _matrices()
    watchers = WATCHERS[:]  # traces of other tests, which the registry keeps
    WATCHERS.clear()
    try:
        found = frames(lambda: call(x, w))
    finally:
        WATCHERS[:] = watchers
    assert len(found) <= most, "\n".join(found)


def test_frames_are_counted() -> None:
    def inner() -> None: ...

    def outer() -> None:
        inner()
        inner()

    assert [name.rpartition(" ")[2] for name in frames(outer)] == ["inner", "inner"]
