"""Conversions of differentiated values by other libraries are refused, since they would drop the derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import GraphError

MATRIX = np.ones((2, 3))

#: Functions that convert a vector on the host, and the suggestion in the error.
LEAVING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "numpy.norm": (lambda x: (x / np.linalg.norm(x))[0], "bb.linalg.vector_norm"),
    "np.dot": (lambda x: bb.asarray(np.dot(MATRIX, x)).sum() * x[0], "x @ y"),
    "numpy.median": (lambda x: x[0] * np.median(x), "bb.median"),
    "math.sqrt": (lambda x: x[0] * math.sqrt(x[0]), "bb.sqrt"),
    "math.pow": (lambda x: x[0] * math.pow(x[0], 2.0), "bb.pow"),
    "numpy.einsum": (lambda x: x[0] * np.einsum("i,i", x, x), "bb.einsum"),
    "numpy.interp": (lambda x: x[0] * np.interp(1.5, x, x), "bb.interp"),
    "np.array": (lambda x: bb.asarray(np.array([x[0], x[1]])).sum(), "bb.stack"),
    "np.asarray": (lambda x: bb.asarray(np.asarray(x)).sum(), "x itself"),
    "np.from_dlpack": (lambda x: bb.asarray(np.from_dlpack(x)).sum(), "x.detach()"),
    "np.float64": (lambda x: x[0] * np.float64(x[1]), "x itself"),
    "float": (lambda x: x[0] * float(x[1]), "x itself"),
    "complex": (lambda x: x[0] * abs(complex(x[1])), "x itself"),
    "math.fsum": (lambda x: x[0] * math.fsum(x), "functions of backburn"),
}


def _vector() -> Any:
    return bb.asarray([1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", LEAVING)
def test_transforms_refuse_conversions_on_the_host(name: str) -> None:
    function, hint = LEAVING[name]
    x = _vector()
    ways: list[Callable[[], Any]] = [
        lambda: bb.grad(function)(x),
        lambda: bb.value_and_grad(function)(x),
        lambda: bb.jvp(function, (x,), (x,)),
        lambda: bb.vjp(function, x),
        lambda: bb.linearize(function, x),
        lambda: bb.jacobian(function)(x),
        lambda: bb.hessian(function)(x),
        lambda: bb.grad(lambda y: bb.grad(function)(y).sum())(x),
        lambda: bb.grad(bb.checkpoint(function))(x),
    ]
    for way in ways:
        with pytest.raises(GraphError) as raised:
            way()
        assert name in str(raised.value)
        assert hint in str(raised.value)
        assert "being differentiated" in str(raised.value)


def test_eager_code_refuses_arrays_and_prints_numbers() -> None:
    x = _vector().require_grad()
    loss = (x * x).sum()
    for convert in (np.asarray, np.array, np.linalg.norm, np.from_dlpack):
        for value in (x, x * 2.0):
            with pytest.raises(GraphError, match="being differentiated"):
                convert(value)
    assert (float(loss), f"{loss:.1f}", loss.item(), int(loss)) == (14.0, "14.0", 14.0, 14)
    assert x.numpy().tolist() == x.tolist() == np.asarray(x.detach()).tolist()
    with bb.no_grad():
        assert np.asarray(x).tolist() == [1.0, 2.0, 3.0]


def test_explicit_constants_and_control_flow_are_allowed() -> None:
    def function(x: Any) -> Any:
        scale = x[1].item() + x.numpy()[0] + x.tolist()[2] + np.linalg.norm(x.detach()) + int(x[1])
        return x[0] * scale if x[0] > 0 and 2.0 in x else -x[0]

    gradient = bb.grad(function)(_vector())
    assert gradient.tolist() == pytest.approx([8.0 + math.sqrt(14.0), 0.0, 0.0])


def test_constants_of_a_transform_are_converted() -> None:
    """Values that the running transform does not differentiate may be converted."""
    outside = _vector()
    weight = bb.asarray(2.0).require_grad()
    assert bb.grad(lambda x: x * np.asarray(outside).sum() * float(outside[0]))(1.0).item() == 6.0
    assert bb.grad(lambda x: x * float(weight))(1.0).item() == 2.0, "as in eager code"
    assert bb.grad(lambda x: x * float(x > 0.0))(1.0).item() == 1.0
    assert bb.grad(lambda x: x * float(bb.argmax(bb.stack([x, -x]))))(1.0).item() == 0.0
