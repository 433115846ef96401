"""Tensor functions: multi-class margin losses, against torch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import agrees

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn import functional as layers

GENERATOR = np.random.default_rng(0)
ANY: Any = layers
X = GENERATOR.normal(size=(6, 4))
LABELS = np.array([0, 3, 1, 1, 2, 0])
#: Some examples have no label, some all of them; entries after the first -1 are ignored.
LISTS = np.array([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3], [2, -1, -1, 99], [1, 1, -1, -7], [3, 2, 1, -1]])
WEIGHT = np.array([1.0, 2.0, 0.5, 0.0])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("ord", "margin"), [(1, 1.0), (2, 1.0), (1, 0.3), (2, 2.0)])
def test_one_label(torch: Any, reduction: str, weighted: bool, ord: int, margin: float) -> None:
    theirs = torch.nn.functional.multi_margin_loss
    weight = torch.from_numpy(WEIGHT) if weighted else None
    given = bb.asarray(WEIGHT) if weighted else None
    agrees(
        lambda x, y: layers.multi_margin_loss(x, y, ord, margin, given, reduction=reduction),
        lambda _, x, y: theirs(x, y, ord, margin, weight, reduction=reduction),
        X, LABELS,
    )  # fmt: skip
    agrees(
        lambda x: layers.multi_margin_loss(x, bb.asarray(2), p=ord, margin=margin),
        lambda _, x: theirs(x, torch.tensor(2), ord, margin),
        X[0],
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_several_labels(torch: Any, reduction: str) -> None:
    theirs = torch.nn.functional
    readable = np.where(LISTS == 99, 0, np.where(LISTS == -7, 0, LISTS))
    agrees(
        lambda x: layers.multilabel_margin_loss(x, bb.asarray(LISTS), reduction=reduction),
        lambda _, x: theirs.multilabel_margin_loss(x, torch.from_numpy(readable), reduction=reduction),
        X,
    )
    targets = (GENERATOR.uniform(size=X.shape) > 0.5).astype(np.float64)
    for weight in (None, WEIGHT):
        agrees(
            lambda x, y, weight=weight: layers.multilabel_soft_margin_loss(
                x, y, None if weight is None else bb.asarray(weight), reduction=reduction
            ),
            lambda _, x, y, weight=weight: theirs.multilabel_soft_margin_loss(
                x, y, None if weight is None else torch.from_numpy(weight), reduction=reduction
            ),
            X, targets,
        )  # fmt: skip


def test_half_precision_and_mapped_examples() -> None:
    half = bb.asarray([[100.0, 200.0]], dtype="float16")
    loss = layers.multi_margin_loss(half, bb.asarray([0]), p=2)  # 101**2 / 2
    assert loss.dtype is bb.float16
    assert loss.item() == 5100.0
    for function, labels in ((layers.multi_margin_loss, LABELS), (layers.multilabel_margin_loss, LISTS)):
        given = bb.asarray(X), bb.asarray(labels)
        each = bb.vmap(function)(*given)
        np.testing.assert_allclose(each.numpy(), function(*given, reduction="none").numpy())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: layers.multi_margin_loss(x, bb.asarray([0, 4])), OutOfRangeError, "the label 4 is none of the 4"),
        (lambda x: layers.multi_margin_loss(x, bb.asarray([0, -1])), OutOfRangeError, "the label -1 is none of the 4"),
        (lambda x: layers.multi_margin_loss(x, bb.asarray([0])), ShapeError, r"labels have the shape \[2\]"),
        (lambda x: layers.multi_margin_loss(x, bb.asarray([0.0, 1.0])), DTypeError, "labels are integers"),
        (
            lambda x: layers.multi_margin_loss(x, bb.asarray([0, 1]), weight=bb.ones(3)),
            ShapeError,
            "a weight for each class",
        ),
        (lambda x: ANY.multi_margin_loss(x, bb.asarray([0, 1]), p=3), ArgumentError, "p is one of 1, 2, not 3"),
        (lambda x: ANY.multi_margin_loss(x, bb.asarray([0, 1]), margin="x"), ArgumentError, "margin is a number"),
        (lambda x: ANY.multi_margin_loss(x, [0, 1]), DTypeError, "takes a tensor, not list"),
        (lambda x: layers.multi_margin_loss(bb.zeros((2, 0)), bb.asarray([0, 1])), ShapeError, "there is none"),
        (lambda x: layers.multilabel_margin_loss(x, bb.asarray([[4, 0, 0, 0]] * 2)), OutOfRangeError, "from 0 to 3"),
        (lambda x: layers.multilabel_margin_loss(x, bb.asarray([[-2, 0, 0, 0]] * 2)), OutOfRangeError, "from 0 to 3"),
        (lambda x: layers.multilabel_margin_loss(x, bb.asarray([0, 1])), ShapeError, r"have the shape \[2, 4\]"),
        (lambda x: layers.multilabel_margin_loss(x, x), DTypeError, "labels are integers"),
        (lambda x: layers.multilabel_soft_margin_loss(x, x[:, :1]), ShapeError, "predictions and targets must have"),
        (lambda x: layers.multilabel_soft_margin_loss(x, x, reduction="x"), ArgumentError, "the reduction is one of"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=rf"^multi(label_|label_soft_|_)margin_loss: .*{words}"):
        call(bb.ones((2, 4)))
