"""Primitives have no operators: array code in a body is refused, and the error names the operation to use."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend.opaque import OPERATORS, Opaque
from backburn.base.errors import DTypeError

#: One spec for each class of primitives.
SPECS = ["autodiff(numpy)", "forward(numpy)", "autodiff(autodiff(numpy))", "null"]

WRITTEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: x * x, "x * y: .* write k.mul(x, y)"),
    (lambda x: 2.0 + x, "k.add(x, y)"),
    (lambda x: x - np.float32(1.0), "k.sub(x, y)"),
    (lambda x: np.ones(2, "float32") * x, "np.multiply: .*k.mul(x, y)"),
    (lambda x: x / 2.0, "k.div(x, y)"),
    (lambda x: -x, "k.neg(x)"),
    (abs, "k.abs(x)"),
    (lambda x: x**2, "k.pow(x, y)"),
    (lambda x: x @ x, "k.matmul(x, y)"),
    (lambda x: x > 0.0, "k.greater(x, y)"),
    (lambda x: x == 0.0, "k.equal(x, y)"),
    (lambda x: x != x, "k.not_equal(x, y)"),
    (lambda x: operator.iadd(x, 1.0), "k.add(x, y)"),
    (lambda x: x if x else None, "the truth of a primitive: .*k.where(x, y, z)"),
    (lambda x: x[0], "k.slice, k.select, k.take"),
    (len, "x.shape[0]"),
    (list, "k.select(x, 0, i)"),
    (float, "k.to_numpy(x)"),
    (np.asarray, "k.to_numpy(x)"),
    (np.sin, "np.sin: .*write k.sin(x)"),
    (np.sum, "np.sum: .*write k.sum(x)"),
    (np.add.reduce, "np.add.reduce: .*write k.sum(x)"),
    (lambda x: np.concatenate([x, x]), "np.concatenate: .*write k.concat(tensors)"),
    (bb.sin, "primitives: write k.sin(...)"),
]


def _pattern(words: str) -> str:
    for letter in "()[]*+":
        words = words.replace(letter, f"\\{letter}")
    return words.replace(".\\*", ".*")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("write", "words"), WRITTEN, ids=[words for _, words in WRITTEN])
def test_array_code_on_primitives_is_refused(spec: str, write: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(DTypeError, match=_pattern(words)):
        write(bb.ones((2,), backend=spec).primitive)


def test_array_code_in_a_body_names_the_operation() -> None:
    @bb.operation
    def written_for_arrays(k: Any, x: Any, /) -> Any:
        """A square."""
        return x * x

    with pytest.raises(DTypeError, match=r"written_for_arrays: x \* y: .*an operation's body: write k\.mul\(x, y\)"):
        bb.grad(lambda x: bb.sum(written_for_arrays(x)))(bb.ones((2,)))


@pytest.mark.parametrize("write", [lambda x: x + 1.0, np.sin, bool], ids=["add", "sin", "bool"])
def test_array_code_is_refused_under_vmap_and_in_shards(write: Callable[[Any], Any]) -> None:
    @bb.operation(shape=lambda x: x)
    def written_for_arrays(k: Any, x: Any, /) -> Any:
        """What the test writes."""
        return write(x)

    with pytest.raises(DTypeError, match="have only the operations of their backend"):
        bb.vmap(written_for_arrays)(bb.ones((2, 3)))
    whole = bb.asarray(np.ones((4, 2), "float32"), backend="sharded(numpy, dp=2, inputs=first)")
    with pytest.raises(DTypeError, match="have only the operations of their backend"):
        write(whole.primitive)


def test_missing_array_methods_suggest_the_operation() -> None:
    x = bb.ones((2,)).primitive
    with pytest.raises(AttributeError, match=r"'Tracked' object has no attribute 'sum'; here: k\.sum\(x\)"):
        _ = x.sum
    with pytest.raises(AttributeError, match=r"'Tracked' object has no attribute 'nothing'$"):
        _ = x.nothing
    assert not hasattr(x, "sum")


def test_every_operator_names_an_operation() -> None:
    for _, name in OPERATORS.values():
        assert name in bb.backend.OPERATIONS


def test_primitives_are_hashed_by_identity() -> None:
    x, y = bb.ones((2,)).primitive, bb.ones((2,)).primitive
    assert {x: 1, y: 2}[x] == 1


def test_attributes_are_read_without_getattr() -> None:
    """``__getattr__`` would halve the speed of reading slots, which costs a fifth of a small call."""
    assert "__getattr__" not in vars(Opaque)
    assert Opaque.__getattribute__ is object.__getattribute__
