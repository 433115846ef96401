"""No operation warns, also where a program makes errors of all warnings after the backend was imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.quiet import silence
from backburn_numpy import NumpyBackend

ZERO, BIG = [0.0, 1.0], [1e4, 6e4]

CALLS: dict[str, Callable[[], Any]] = {
    "log": lambda: bb.log(bb.asarray(ZERO)),
    "divide": lambda: bb.asarray(ZERO) / bb.asarray(ZERO),
    "by a number": lambda: 1.0 / bb.asarray(ZERO),
    "overflow": lambda: bb.exp(bb.asarray(BIG)),
    "half": lambda: bb.asarray(BIG, dtype="float16") * bb.asarray(BIG, dtype="float16"),
    "cast": lambda: bb.asarray([1e30]).astype("float16"),
    "mean of nothing": lambda: bb.mean(bb.zeros((0,))),
    "backward": lambda: (lambda x: x.grad(bb.sqrt(x).sum().backward()))(bb.asarray(ZERO).require_grad()),
    "grad": lambda: bb.grad(lambda x: bb.sqrt(x).sum())(bb.asarray(ZERO)),
    "hvp": lambda: bb.hvp(lambda x: (x**1.5).sum(), (bb.asarray(ZERO),), (bb.asarray(ZERO),)),
    "layers": lambda: bb.nn.functional.softmax(bb.asarray([[np.inf, np.inf]])),
    "determinant": lambda: bb.linalg.det(bb.eye(500) * 3.0),
    "its logarithm": lambda: bb.linalg.slogdet(bb.full((2, 2), np.nan)),
    "its gradient": lambda: bb.grad(bb.linalg.det)(bb.eye(500) * 3.0),
    "inverse": lambda: bb.linalg.inv(bb.eye(2) * 1e-39),
    "solution": lambda: bb.linalg.solve(bb.eye(2) * 1e-30, bb.full((2,), 1e30)),
    "integers": lambda: bb.asarray([1, 2]) // bb.asarray([0, 1]),
}


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_warns(call: Callable[[], Any], strict: None) -> None:
    call()


def test_warnings_of_others_pass(strict: None) -> None:
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        np.log(np.zeros(1))
    x = bb.asarray(ZERO).require_grad()

    @bb.custom_vjp
    def noisy(x: Any) -> Any:
        return x * 1.0

    def backward(saved: Any, g: Any) -> Any:
        warnings.warn("mine", RuntimeWarning, stacklevel=1)
        return (g,)

    noisy.define(lambda x: (x * 1.0, None), backward)
    with pytest.raises(RuntimeWarning, match="mine"):
        noisy(x).sum().backward()
    with pytest.raises(RuntimeWarning, match="never raised"):
        silence(RuntimeWarning("never raised"), NumpyBackend())
