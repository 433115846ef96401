"""``einsum`` against NumPy's, its gradients, and errors for invalid subscripts."""

from __future__ import annotations

import math
import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.tensor.einsum import compiled

LENGTHS = {"i": 2, "j": 3, "k": 4, "l": 1, "m": 5}


def operands(subscripts: str, beyond: tuple[int, ...] = (2, 3)) -> list[Any]:
    """Return arrays for the inputs of ``subscripts``; an ellipsis stands for axes of lengths ``beyond``."""
    generator = np.random.default_rng(len(subscripts))
    inputs = subscripts.replace(" ", "").partition("->")[0].split(",")
    known = {**{label: (length,) for label, length in LENGTHS.items()}, ".": beyond}
    shapes = [tuple(n for part in text.replace("...", ".") for n in known[part]) for text in inputs]
    return [generator.integers(-4, 5, shape).astype(np.float64) for shape in shapes]


SUBSCRIPTS = re.split(
    r"\s+",
    """
    i->i  ij->ji  ij->j  ij->  ij  ji  ii  ii->i  iij->j  iij->ij  iii  iii->i
    ij,jk  ij,jk->ik  ij,jk->ki  ij,kj->ik  ij,ij  ij,ij->ij  ij,ij->i  i,j  i,j->ij  i,j->ji  i,i  i,i->i
    ij,j  ij,i  kij,jm->kim  kij,kjm->kim  kij,kjm->imk  ijk,k  ij,jk,km  ij,jk,km->im  im,ij,jk->mk  i,j,k->kji
    ii,ij->j  ijj,jk->ik  ij,k->k  ij,k->  i,->i  ,  l,i->i  il,lj->ij  lj,ij->ij
    ...ij->...ji  ...i,...i->...  ...ij,...jk->...ik  ...ij,jk  i...->...i  i...,i...->...  ...,...  ...->...
    ...i->i...  i...j,...j->i...
    ij,jk,kl,lm,mi  ijk,jk,k->i
""".strip(),
)


@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_values_equal_numpys(subscripts: str, dtype: str) -> None:
    arrays = [a.astype(dtype) for a in operands(subscripts)]
    got = bb.einsum(subscripts, *(bb.asarray(a) for a in arrays))
    expected = np.einsum(subscripts, *arrays)
    assert got.shape == expected.shape
    assert got.dtype == dtype
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=60)
def test_any_subscripts(data: st.DataObject) -> None:
    inputs = data.draw(st.lists(st.text("ijkl", max_size=3), min_size=1, max_size=4))
    named = "".join(sorted(set("".join(inputs))))
    output = data.draw(st.lists(st.sampled_from(named), unique=True)) if named else []
    subscripts = ",".join(inputs) + "->" + "".join(output)
    arrays = operands(subscripts)
    got = bb.einsum(subscripts, *(bb.asarray(a) for a in arrays))
    np.testing.assert_array_equal(got.numpy(), np.einsum(subscripts, *arrays))


def test_axes_of_length_one_are_repeated() -> None:
    x, y = np.ones((1, 3)), np.arange(8.0).reshape(2, 4)
    for subscripts in ("ij,ik->ijk", "ij,ik->jk", "ij,ik->"):
        np.testing.assert_allclose(
            bb.einsum(subscripts, bb.asarray(x), bb.asarray(y)).numpy(), np.einsum(subscripts, x, y)
        )
    a, b = np.ones((1, 3, 2)), np.ones((4, 1, 2))
    assert bb.einsum("...i,...i", bb.asarray(a), bb.asarray(b)).shape == (4, 3)


def test_axes_without_elements() -> None:
    x, y = bb.zeros((2, 0)), bb.zeros((0, 3))
    assert bb.einsum("ij,jk->ik", x, y).tolist() == [[0.0] * 3] * 2
    assert bb.einsum("ij->i", x).tolist() == [0.0, 0.0]
    assert bb.einsum("ij,jk->ijk", x, y).shape == (2, 0, 3)


def test_dtypes_are_promoted() -> None:
    result = bb.einsum("i,i->i", bb.asarray([1, 2]), bb.asarray([0.5, 0.5], dtype="float16"))
    assert result.dtype is bb.float16
    assert result.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("subscripts", ["ij,jk,km->im", "iij,jk->k", "...ij,...jk->...ik", "ij,k->", "il,lj->ij"])
def test_gradients(subscripts: str) -> None:
    """The operation is linear in each operand: an operand times its gradient sums to the sum of the result."""
    k = bb.load_backend("autodiff(numpy)")
    leaves = [bb.asarray(a, backend=k).require_grad() for a in operands(subscripts)]
    total = bb.einsum(subscripts, *leaves).sum()
    gradients = total.backward()
    for leaf in leaves:
        found = leaf.grad(gradients)
        assert found.shape == leaf.shape
        assert (found * leaf.inner()).sum().item() == pytest.approx(total.item(), abs=1e-9)
    if len(leaves) > 1:
        hessian = bb.hessian(lambda x: bb.einsum(subscripts, x, *(t.inner() for t in leaves[1:])).sum())
        assert not hessian(leaves[0].inner()).any()


def test_the_contraction_order_keeps_intermediates_small() -> None:
    program = compiled("ai,bi,b->a", ((100, 2), (100, 2), (100,)))
    assert max(math.prod(shape) for shape in program.shapes[3:]) <= 200


def test_programs_skip_idle_steps_and_free_values_after_their_last_use() -> None:
    """Steps that change nothing are left out, and no intermediate outlives its last use."""
    assert [step.name for step in compiled("ij,jk->ik", ((2, 3), (3, 4))).steps] == ["matmul"]
    assert [step.name for step in compiled("ij->ij", ((2, 3),)).steps] == []
    program = compiled("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5)))
    gone = [i for step in program.steps for i in step.last]
    assert sorted([*gone, program.result]) == list(range(len(program.shapes)))
    assert compiled("ij,jk->ik", ((2, 3), (3, 4))) is compiled("ij,jk->ik", ((2, 3), (3, 4)))


@pytest.mark.parametrize(
    ("subscripts", "count", "place", "words", "error"),
    [
        ("ij,jk->i%", 2, 8, "'%' is not a letter", ArgumentError),
        ("ij,jk->iz", 2, 8, "'z' names no axis of an operand", ArgumentError),
        ("ij,jk->ii", 2, 8, "'i' names two axes of the result", ArgumentError),
        ("ij,jk", 1, 2, "more operands than the 1", ArgumentError),
        ("ij", 2, 2, "name 1 operands, and 2 are given", ArgumentError),
        ("ijk,jk", 2, 2, "operand 0 has 2 axes, and 3 letters", ShapeError),
        ("i,jk", 2, 0, "operand 0 has 2 axes, and 1 letters", ShapeError),
        ("ij,ki->jk", 2, 4, "axis 'i' is 3 in operand 1 and 2 before", ShapeError),
        ("ij->j->i", 1, 5, "only one arrow", ArgumentError),
        ("ij->i,j", 1, 5, "only one result", ArgumentError),
        ("..ij", 1, 0, "an ellipsis is three points", ArgumentError),
        ("...i...", 1, 4, "only one ellipsis", ArgumentError),
        ("ij-j", 1, 2, "an arrow is '->'", ArgumentError),
        ("...j->j", 1, 4, "have an ellipsis and the result has none", ArgumentError),
        ("ii", 1, 1, "axis 'i' is 3 in operand 0 and 2 before", ShapeError),
        ("...i,j...", 2, 6, "an axis of the ellipsis is 3 in operand 1 and 2 before", ShapeError),
    ],
)
def test_errors_mark_the_character(subscripts: str, count: int, place: int, words: str, error: type[Exception]) -> None:
    shapes = [(2, 3), (3, 3) if "ki" in subscripts or "j..." in subscripts else (3, 4)]
    with pytest.raises(error) as found:
        bb.einsum(subscripts, *(bb.zeros(shape) for shape in shapes[:count]))
    lines = str(found.value).splitlines()
    assert words in lines[0]
    assert lines[1] == f"    {subscripts}"
    assert lines[2] == " " * (4 + place) + "^"
    assert "Operands: float32[2,3] (" in lines[3]


def test_other_errors() -> None:
    with pytest.raises(ArgumentError, match="the subscripts are a string"):
        bb.einsum(bb.zeros(2), "i")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="axes 'i' of operand 0 differ in length"):
        bb.einsum("ii", bb.zeros((1, 3)))
    with pytest.raises(DTypeError, match="einsum: takes a tensor, not int"):
        bb.einsum("i,", bb.zeros(2), 3)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="einsum: takes float and int tensors, not bool"):
        bb.einsum("i->", bb.asarray([True]))
    with pytest.raises(ArgumentError, match="einsum: the subscripts name 1 operands, and 0 are given"):
        bb.einsum("i")
