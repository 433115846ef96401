"""Calls that ``vmap`` refuses, and the error messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackendMismatchError,
    DTypeError,
    GraphError,
    ShapeError,
    Unsupported,
)

Function = Callable[..., Any]


def real(*shape: int) -> Any:
    return bb.asarray(np.random.default_rng(0).uniform(0.3, 2.0, shape))


X = real(3, 2)


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (lambda: bb.vmap(lambda x: x if x.sum() > 0 else -x)(X), Unsupported, "no if or while.*bb.where"),
        (lambda: bb.vmap(lambda x: bb.asarray([x[0], x[1]]))(X), Unsupported, "bb.stack"),
        (lambda: bb.vmap(lambda x: (real(2).require_grad() * x).sum().backward())(X), GraphError, "bb.grad"),
        (lambda: bb.vmap(lambda x: bb.asarray(x[0].item()))(X), Unsupported, r"no item\(\), numpy\(\)"),
        (lambda: bb.vmap(lambda x: bb.asarray(x.numpy()))(X), Unsupported, r"no item\(\), numpy\(\)"),
        (lambda: bb.vmap(lambda x: bb.asarray([float(x[0])]))(X), Unsupported, "bb.where"),
        (lambda: bb.vmap(lambda x: x[x > 0])(X), Unsupported, "boolean masks"),
        (lambda: bb.vmap(bb.nonzero)(X), Unsupported, "nonzero"),
        (lambda: bb.vmap(bb.unique_values)(X), Unsupported, "no shape that"),
        (lambda: bb.vmap(lambda x, y: x)(X, X[:2]), ShapeError, r"argument 1, .*2 examples.*argument 0, .* has 3"),
        (lambda: bb.vmap(lambda t: t)({"a": X, "b": [X[:2]]}), ShapeError, r"argument 0 at 'b.0'.*argument 0 at 'a'"),
        (lambda: bb.vmap(lambda x, y: x)(X, y=X[:2]), ShapeError, "argument 'y'"),
        (lambda: bb.vmap(lambda x: x, axis_size=4)(X), ShapeError, "3 examples.*axis_size is 4"),
        (lambda: bb.vmap(lambda x: x, in_axes=2)(X), AxisError, "argument 0 has no axis 2"),
        (lambda: bb.vmap(lambda x: x)(X[0, 0]), AxisError, "argument 0 has no axis 0"),
        (lambda: bb.vmap(lambda x: x, in_axes=(0, 0))(X), ArgumentError, "2 entries.*1 positional"),
        (lambda: bb.vmap(lambda x: x, in_axes=({"a": 0},))(X), ArgumentError, "has a dict at '0', where there is"),
        (lambda: bb.vmap(lambda x: x, in_axes=({"b": 0},))({"a": X}), ArgumentError, r"\['b'\] at '0'.*\['a'\]"),
        (lambda: bb.vmap(lambda x: x, in_axes=((0, "1"),))((X, X)), ArgumentError, "'1' at '0.1'"),
        (lambda: bb.vmap(lambda x: x, in_axes="0"), ArgumentError, "in_axes is an integer or a tuple"),
        (lambda: bb.vmap(lambda x: x, in_axes=True), ArgumentError, "in_axes"),
        (lambda: bb.vmap(lambda x, y: x)(X, 2.0), DTypeError, r"argument 1 is 2.0.*asarray.*None in in_axes"),
        (lambda: bb.vmap(lambda x, y: x)(X, np.ones(3)), DTypeError, "argument 1"),
        (lambda: bb.vmap(lambda: bb.asarray(1.0))(), ArgumentError, "axis_size"),
        (lambda: bb.vmap(lambda x: x, in_axes=None)(X), ArgumentError, "no argument has an axis of examples"),
        (lambda: bb.vmap(lambda x: 3)(X), ArgumentError, "the result is 3, and must be a tensor"),
        (lambda: bb.vmap(lambda x: {"a": [x, "b"]})(X), ArgumentError, "the result at 'a.1' is 'b'"),
        (lambda: bb.vmap(lambda x: x, out_axes=2)(X), AxisError, "axis 2 is out of range for 2 dimensions"),
        (lambda: bb.vmap(lambda x: x, out_axes=None)(X), ArgumentError, "differs between the examples"),
        (lambda: bb.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(X), ArgumentError, "out_axes"),
        (lambda: bb.vmap(3), ArgumentError, "takes a function, not int"),  # type: ignore[arg-type]
        (lambda: bb.vmap(bb.sin, randomness="yes"), ArgumentError, "randomness is one of 'error', 'different'"),
        (lambda: bb.vmap(bb.sin, on_fallback="yes"), ArgumentError, "on_fallback is one of 'warn'"),
        (lambda: bb.vmap(bb.sin, axis_size=-1), ArgumentError, "axis_size"),
        (lambda: bb.vmap(lambda x: x.require_grad())(X), GraphError, "bb.grad"),
        (lambda: bb.vmap(nn.functional.dropout)(X), ArgumentError, r"draws once for all\. Operands: .*Options: p=0.5"),
        (lambda: bb.vmap(lambda x: x @ X)(X), ShapeError, r"float64\[2\].*float64\[3,2\]"),
        (lambda: bb.vmap(lambda x: x)(bb.quantize(X)), DTypeError, r"None in in_axes.*dequantize\(\)"),
        (lambda: bb.vmap(lambda x: bb.quantize(x))(X), Unsupported, "outside of it.*fake_quantize"),
    ],
)
def test_errors(run: Function, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        run()
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (bb.matmul, [(), (3,)]),
        (bb.matmul, [(3, 3), ()]),
        (bb.triu, [(3,)]),
        (bb.tril, [(3,)]),
        (lambda b: nn.functional.conv(bb.ones((2, 2, 4)), bb.ones((3, 2, 2)), b), [(1,)]),
        (lambda b: nn.functional.conv(bb.ones((2, 2, 4)), bb.ones((3, 2, 2)), b), [()]),
        (lambda x, s: nn.functional.layer_norm(x, s), [(3,), (2, 1)]),
    ],
)
@pytest.mark.parametrize("which", ["first", "last", "all"])
def test_operands_refused_for_one_example_are_refused_in_vmap(f: Function, shapes: list[Any], which: str) -> None:
    """The additional axis of the examples would make some of these operands fit."""
    operands = [real(*shape) for shape in shapes]
    chosen = {"first": {0}, "last": {len(shapes) - 1}, "all": set(range(len(shapes)))}[which]
    with pytest.raises(ShapeError):
        f(*operands)
    with pytest.raises(ShapeError):
        bb.vmap(f, tuple(0 if i in chosen else None for i in range(len(shapes))))(
            *(bb.stack([x] * 3) if i in chosen else x for i, x in enumerate(operands))
        )


def test_leaked_tensors_are_refused() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2.0)
        return x

    bb.vmap(f)(X)
    (leaked,) = kept
    with pytest.raises(GraphError, match="outside of the vmap"):
        leaked + 1.0
    with pytest.raises(GraphError, match="outside of the vmap"):
        leaked.numpy()
    with pytest.raises(BackendMismatchError, match="carried out"):
        bb.vmap(lambda x: x + leaked)(X)
    with pytest.raises(GraphError, match=r"the result at '1'"):
        bb.vmap(lambda x: (x, leaked))(X)
    assert "differs between examples" in repr(leaked)


def test_other_backends_are_distinguished_from_other_levels() -> None:
    elsewhere = bb.ones(2, backend="null")
    with pytest.raises(BackendMismatchError, match=r"write \.to\('autodiff\(numpy\)'\)"):
        bb.vmap(lambda x: x * elsewhere)(X)
    above = bb.asarray([1.0, 2.0], backend="autodiff(autodiff(numpy))")
    with pytest.raises(BackendMismatchError, match="captured from a level that the transform does not wrap"):
        bb.vmap(lambda x: x * above)(X)
    assert bb.vmap(lambda x: x * above)(X.to("autodiff(autodiff(numpy))")).shape == (3, 2)


def test_tensors_leaked_from_an_inner_derivative_are_refused() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 1.0)
        return x.sum()

    with pytest.raises(GraphError, match="the result"):
        bb.vmap(lambda x: (bb.grad(f)(x), kept[-1])[1])(X)


def test_printing_inside() -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.append(repr(x))
        return x

    bb.vmap(f)(X)
    assert seen[0].startswith("Tensor(<differs between examples>, shape=[2], dtype=float64")


def test_statistics_do_not_leak_from_batch_norm() -> None:
    layer = nn.BatchNorm(2)
    with pytest.raises(GraphError, match="differs between the examples of vmap"):
        bb.vmap(layer)(bb.random.normal((3, 5, 2)))
    assert layer.running_mean.backend.spec == "autodiff(numpy)"
    layer.train(False)
    assert bb.vmap(layer)(bb.random.normal((3, 5, 2))).shape == (3, 5, 2)


def test_anomalies_are_found_inside() -> None:
    with bb.detect_anomaly():
        bb.vmap(bb.grad(lambda x: bb.log(x).sum()))(X)
        with pytest.raises(ArithmeticError, match="1 infinite value of 6"):
            bb.vmap(bb.grad(lambda x: bb.log(x).sum()))(X.at[1, 0].set(0.0))
        pullback = bb.vjp(bb.sqrt, X.at[1, 0].set(0.0))[1]
        with pytest.raises(ArithmeticError, match=r"backward of sqrt: .* 2 infinite values of 12"):
            bb.vmap(pullback)(bb.stack([X, X]))


def test_errors_of_the_function_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        bb.vmap(lambda x: 1 / 0)(X)
    assert bb.vmap(bb.sin)(X).shape == X.shape
