"""Tensor functions: composed losses, CTC and transducers, against torch or enumeration."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn import functional as layers

GENERATOR = np.random.default_rng(0)
X, Y, Z = (GENERATOR.normal(size=(6, 4)) for _ in range(3))
P, Q = (GENERATOR.uniform(0.05, 0.95, (6, 4)) for _ in range(2))
SIGNS = np.where(X > 0, 1.0, -1.0)
COUNTS = GENERATOR.integers(0, 6, (6, 4)).astype(np.float64)


CASES: list[tuple[str, str, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    ("huber_loss", "huber_loss", (X, 3 * Y), {"delta": 0.7}, {"delta": 0.7}),
    ("smooth_l1_loss", "smooth_l1_loss", (X, 3 * Y), {"beta": 0.5}, {"beta": 0.5}),
    ("smooth_l1_loss", "smooth_l1_loss", (X, 3 * Y), {"beta": 0}, {"beta": 0}),
    ("smooth_l1_loss", "smooth_l1_loss", (X, X), {"beta": 0.0}, {"beta": 0.0}),
    ("hinge_embedding_loss", "hinge_embedding_loss", (X, SIGNS), {"margin": 0.5}, {"margin": 0.5}),
    ("triplet_margin_loss", "triplet_margin_loss", (X, Y, Z), {}, {}),
    ("triplet_margin_loss", "triplet_margin_loss", (X, Y, Z), {"swap": True, "p": 3.0, "margin": 2.0},
     {"swap": True, "p": 3.0, "margin": 2.0}),
    ("binary_cross_entropy", "binary_cross_entropy", (P, Q), {}, {}),
    ("binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits", (X, Q), {}, {}),
    ("kl_div_loss", "kl_div", (np.log(P), Q), {}, {}),
    ("kl_div_loss", "kl_div", (np.log(P), np.log(Q)), {"log_target": True}, {"log_target": True}),
    ("poisson_nll_loss", "poisson_nll_loss", (X, COUNTS), {}, {}),
    ("poisson_nll_loss", "poisson_nll_loss", (P, COUNTS), {"log_input": False, "full": True},
     {"log_input": False, "full": True}),
    ("gaussian_nll_loss", "gaussian_nll_loss", (X, Y, P), {}, {}),
    ("gaussian_nll_loss", "gaussian_nll_loss", (X, Y, P), {"full": True}, {"full": True}),
    ("gaussian_nll_loss", "gaussian_nll_loss", (X, Y, P[:, :1]), {}, {}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize(("name", "theirs", "arrays", "options", "other"), CASES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(torch: Any, name: str, theirs: str, arrays: Any, options: Any, other: Any, reduction: str) -> None:
    function = getattr(layers, name)
    x = bb.asarray(arrays[0]).require_grad()
    y = torch.from_numpy(arrays[0].copy()).requires_grad_()
    got = function(x, *map(bb.asarray, arrays[1:]), **options, reduction=reduction)
    expected = getattr(torch.nn.functional, theirs)(y, *map(torch.from_numpy, arrays[1:]), **other, reduction=reduction)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    gradient = x.grad(got.sum().backward())
    expected.sum().backward()
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), y.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_shared_variances() -> None:
    x, y = bb.asarray(X), bb.asarray(Y)
    variance = bb.asarray(0.5, dtype="float64").require_grad()
    shared, each = (layers.gaussian_nll_loss(x, y, v) for v in (variance, variance.broadcast_to(x.shape)))
    assert shared.item() == each.item()
    expected = (1 / 0.5 - ((X - Y) ** 2).mean() / 0.5**2) / 2
    np.testing.assert_allclose(variance.grad(shared.backward()).item(), expected)  # type: ignore[union-attr]
    for shape in ((4,), (6,), (6, 4, 1), (6, 2)):
        with pytest.raises(ShapeError, match="gaussian_nll_loss: the variance has the shape of the predictions"):
            layers.gaussian_nll_loss(x, y, bb.ones(shape))


def test_weights(torch: Any) -> None:
    weight, positive = np.array([1.0, 2.0, 0.5, 0.0]), np.array([3.0, 1.0, 0.5, 2.0])
    got = layers.binary_cross_entropy(bb.asarray(P), bb.asarray(Q), bb.asarray(weight))
    expected = torch.nn.functional.binary_cross_entropy(*map(torch.from_numpy, (P, Q)), torch.from_numpy(weight))
    np.testing.assert_allclose(got.item(), expected.item(), rtol=1e-9)
    got = layers.binary_cross_entropy_with_logits(*map(bb.asarray, (X, Q, weight)), pos_weight=bb.asarray(positive))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        *map(torch.from_numpy, (X, Q, weight)), pos_weight=torch.from_numpy(positive)
    )
    np.testing.assert_allclose(got.item(), expected.item(), rtol=1e-9)


def test_cosine_embedding(torch: Any) -> None:
    signs = SIGNS[:, 0]
    for reduction in ("none", "mean", "sum"):
        x1, x2, target = map(bb.asarray, (X, Y, signs))
        got = layers.cosine_embedding_loss(x1, x2, target, margin=0.1, reduction=reduction)
        expected = torch.nn.functional.cosine_embedding_loss(
            *map(torch.from_numpy, (X, Y, signs)), margin=0.1, reduction=reduction
        )
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-7)
    turned = layers.cosine_embedding_loss(bb.asarray(X.T), bb.asarray(Y.T), bb.asarray(signs), margin=0.1, axis=0)
    straight = layers.cosine_embedding_loss(bb.asarray(X), bb.asarray(Y), bb.asarray(signs), 0.1)
    np.testing.assert_allclose(turned.item(), straight.item())
    zero = bb.zeros((1, 3)).require_grad()
    loss = layers.cosine_embedding_loss(zero, bb.ones((1, 3)), bb.asarray([1]))
    assert loss.item() == 1.0
    assert np.isfinite(zero.grad(loss.backward()).numpy()).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("shapes", "axis"), [(((4, 3), (4, 3)), -1), (((4, 3), (4, 1)), 1), (((3, 2), (4, 3, 2)), 1)])
def test_cosine_similarity(torch: Any, shapes: Any, axis: int) -> None:
    """``axis`` refers to the broadcast shape; gradients flow at a zero vector too."""
    x, y = (GENERATOR.normal(size=shape) for shape in shapes)
    x[0] = 0.0  # one vector, or one element of several vectors
    leaves = [bb.asarray(v).require_grad() for v in (x, y)]
    got = layers.cosine_similarity(leaves[0], leaves[1], axis)
    theirs = [torch.from_numpy(v).requires_grad_() for v in (x, y)]
    expected = torch.nn.functional.cosine_similarity(*theirs, dim=axis)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-15)
    gradients = (got * got + got).backward()
    (expected * expected + expected).sum().backward()
    for ours, other in zip(leaves, theirs, strict=True):
        np.testing.assert_allclose(ours.grad(gradients).numpy(), other.grad.numpy(), rtol=1e-7, atol=1e-12)
    half = layers.cosine_similarity(bb.asarray([6e4, 0.0], dtype="float16"), bb.asarray([6e4, 6e4], dtype="float16"))
    assert half.dtype == bb.float16
    assert abs(half.item() - 0.5**0.5) < 1e-3
    near = layers.cosine_similarity(bb.asarray([1e-3]), bb.asarray([1e-3]), eps=0.1)
    np.testing.assert_allclose(near.item(), 1e-4, rtol=1e-6)
    with pytest.raises(ShapeError, match="cosine_similarity"):
        layers.cosine_similarity(bb.zeros((2, 3)), bb.zeros((2, 2)))
    with pytest.raises(AxisError, match="cosine_similarity: axis 1"):
        layers.cosine_similarity(bb.zeros(3), bb.zeros(3), axis=1)


def test_hinge_and_batchmean() -> None:
    np.testing.assert_allclose(
        layers.hinge_loss(bb.asarray(X), bb.asarray(SIGNS * np.roll(SIGNS, 1)), reduction="sum").item(),
        np.maximum(0, 1 - X * SIGNS * np.roll(SIGNS, 1)).sum(),
    )
    total = layers.kl_div_loss(bb.asarray(np.log(P)), bb.asarray(Q), reduction="sum").item()
    mean = layers.kl_div_loss(bb.asarray(np.log(P)), bb.asarray(Q), reduction="batchmean").item()
    np.testing.assert_allclose(mean, total / 6)
    assert layers.kl_div_loss(bb.asarray([-1.0]), bb.asarray([0.0])).item() == 0.0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extreme_predictions(dtype: str) -> None:
    """Nothing overflows, cancels or becomes NaN, in values and gradients."""

    def both(function: Any, *arrays: Any) -> tuple[Any, Any]:
        x = bb.asarray(arrays[0], dtype=dtype).require_grad()
        loss = function(x, *(bb.asarray(a, dtype=dtype) for a in arrays[1:]), reduction="none")
        assert loss.dtype is x.dtype
        gradient = x.grad(loss.sum().backward())
        assert gradient is not None
        return loss.numpy(), gradient.numpy()

    loss, gradient = both(layers.binary_cross_entropy_with_logits, [1000.0, -1000.0, 1000.0, 0.0], [1.0, 1.0, 0.0, 0.5])
    np.testing.assert_allclose(loss, [0, 1000, 1000, math.log(2)], rtol=1e-3)
    np.testing.assert_allclose(gradient, [0, -1, 1, 0], atol=1e-3)
    small, _ = both(layers.binary_cross_entropy_with_logits, [-8.0], [0.0])
    np.testing.assert_allclose(small, math.log1p(math.exp(-8)), rtol=2e-3)
    loss, gradient = both(layers.binary_cross_entropy, [0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0])
    assert (loss[:2] == 0).all()
    np.testing.assert_allclose(loss[2:], 100.0, rtol=1e-6)  # the lower bound of the logarithm
    assert np.isfinite(gradient).all()
    assert -gradient[2] == gradient[3] > 1e4  # a saturated wrong prediction learns
    assert np.isnan(both(layers.binary_cross_entropy, [-0.5, 1.5], [1.0, 0.0])[0]).all()
    loss, gradient = both(layers.huber_loss, [300.0, 0.0, 1.0], [-300.0, 0.0, 0.0])
    np.testing.assert_allclose(loss, [599.5, 0, 0.5], rtol=1e-3)
    np.testing.assert_allclose(gradient, [1, 0, 1])


def test_second_derivatives_of_huber_at_zero_and_of_bce() -> None:
    x = bb.zeros((1,), dtype=bb.float64)
    assert bb.hessian(lambda x: layers.huber_loss(x, bb.zeros((1,), dtype=bb.float64)))(x).item() == 1.0
    assert bb.hessian(lambda x: layers.binary_cross_entropy_with_logits(x, x * 0.0))(x).item() == pytest.approx(0.25)


def test_what_is_refused() -> None:
    x = bb.asarray(X)
    for function in (
        layers.huber_loss,
        layers.binary_cross_entropy,
        layers.kl_div_loss,
        layers.hinge_loss,
        layers.poisson_nll_loss,
    ):
        with pytest.raises(ShapeError, match=rf"{function.__name__}: predictions and targets .*float64\[6,1\]"):
            function(x, x[:, :1])
        with pytest.raises(ArgumentError, match=f"{function.__name__}: the reduction is one of"):
            function(x, x, reduction="average")
    with pytest.raises(ArgumentError, match="huber_loss: delta is a number above 0"):
        layers.huber_loss(x, x, delta=0.0)
    with pytest.raises(ShapeError, match="a target for each pair"):
        layers.cosine_embedding_loss(x, x, x)
    with pytest.raises(DTypeError, match="hinge_loss: takes float tensors, not bool"):
        layers.hinge_loss(x > 0, x > 0)


# ---- connectionist temporal classification ----

STEPS, EXAMPLES, CLASSES = 12, 3, 5
LOGITS = GENERATOR.normal(size=(STEPS, EXAMPLES, CLASSES))
TARGETS = np.array([[1, 2, 2, 3], [4, 4, 4, 0], [3, 1, 0, 0]])
LENGTHS = np.array([12, 10, 7]), np.array([4, 3, 2])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc(torch: Any, reduction: str) -> None:
    x, y = bb.asarray(LOGITS).require_grad(), torch.from_numpy(LOGITS.copy()).requires_grad_()
    inputs, labels = map(bb.asarray, LENGTHS)
    got = layers.ctc_loss(bb.log_softmax(x, axis=2), bb.asarray(TARGETS), inputs, labels, reduction=reduction)
    expected = torch.nn.functional.ctc_loss(
        y.log_softmax(2), torch.from_numpy(TARGETS), *map(torch.from_numpy, LENGTHS), reduction=reduction
    )
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9)
    gradient = x.grad(got.sum().backward())
    expected.sum().backward()
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), y.grad.numpy(), rtol=1e-7, atol=1e-10)


def test_ctc_over_many_steps_in_narrow_floats() -> None:
    log_probs = bb.full((400, 1, 3), 1 / 3, dtype=bb.float32).log()
    lengths = bb.asarray([400]), bb.asarray([2])
    wide = layers.ctc_loss(log_probs.astype(bb.float64), bb.asarray([[1, 2]]), *lengths, reduction="none").item()
    assert wide > 300
    for dtype, tolerance in ((bb.float32, 1e-5), (bb.float16, 1e-2)):
        loss = layers.ctc_loss(log_probs.astype(dtype), bb.asarray([[1, 2]]), *lengths, reduction="none")
        assert loss.dtype is dtype
        np.testing.assert_allclose(loss.item(), wide, rtol=tolerance)


def test_ctc_without_an_alignment() -> None:
    log_probs = bb.full((2, 1, 3), 1 / 3).log().require_grad()
    lengths = bb.asarray([2]), bb.asarray([2])
    assert layers.ctc_loss(log_probs, bb.asarray([[1, 1]]), *lengths).item() == math.inf
    loss = layers.ctc_loss(log_probs, bb.asarray([[1, 1]]), *lengths, zero_infinity=True)
    assert loss.item() == 0.0
    assert not log_probs.grad(loss.backward()).numpy().any()  # type: ignore[union-attr]


def test_invalid_ctc_arguments_are_refused() -> None:
    x, lengths = bb.asarray(LOGITS), (bb.asarray(LENGTHS[0]), bb.asarray(LENGTHS[1]))
    for label in (CLASSES, -1):
        with pytest.raises(OutOfRangeError, match="ctc_loss"):
            layers.ctc_loss(x, bb.asarray(np.where(TARGETS == 1, label, TARGETS)), *lengths)
    for wrong, lower, upper in ((0, -3, 13), (1, -1, 5)):
        for length in (lower, upper):
            others: Any = [bb.where(bb.arange(3) == 1, length, n) if i == wrong else n for i, n in enumerate(lengths)]
            with pytest.raises(OutOfRangeError, match="ctc_loss: input lengths are from 0 to 12, target lengths from"):
                layers.ctc_loss(x, bb.asarray(TARGETS), *others)
    with pytest.raises(DTypeError, match="ctc_loss: targets and lengths are integers"):
        layers.ctc_loss(x, bb.asarray(TARGETS * 1.0), *lengths)
    with pytest.raises(ArgumentError, match="ctc_loss: the blank is one of 5 classes, not 5"):
        layers.ctc_loss(x, bb.asarray(TARGETS), *lengths, blank=5)
    with pytest.raises(ShapeError, match=r"ctc_loss: targets .* must be for the 3 examples"):
        layers.ctc_loss(x, bb.asarray(TARGETS[:2]), *lengths)


# ---- transducers ----

LATTICE = GENERATOR.normal(size=(3, 5, 5, 6))
LATTICE -= np.log(np.exp(LATTICE).sum(-1, keepdims=True))
LABELS = GENERATOR.integers(1, 6, (3, 4))
REACH = np.array([5, 3, 1]), np.array([4, 2, 0])


def of_alignments(log_probs: Any, labels: Any, steps: int, count: int, blank: int) -> float:
    """Return the loss of one example, summed over all alignments: labels at the chosen moves, and a final blank."""
    total = -math.inf
    for chosen in itertools.combinations(range(steps - 1 + count), count):
        step = place = 0
        score = log_probs[steps - 1, count, blank]
        for move in range(steps - 1 + count):
            score += log_probs[step, place, labels[place] if move in chosen else blank]
            step, place = (step, place + 1) if move in chosen else (step + 1, place)
        total = np.logaddexp(total, score)
    return -total


@pytest.mark.parametrize("blank", [0, 5])
def test_transducers(blank: int) -> None:
    labels = LABELS - (blank > 0)
    expected = [of_alignments(LATTICE[i], labels[i], REACH[0][i], REACH[1][i], blank) for i in range(3)]
    x, *operands = (bb.asarray(t) for t in (LATTICE, labels, *REACH))

    def loss(reduction: str, x: Any) -> Any:
        return layers.rnnt_loss(x, *operands, blank=blank, reduction=reduction)

    np.testing.assert_allclose(loss("none", x).numpy(), expected, rtol=1e-12)
    assert loss("mean", x).item() == pytest.approx(np.mean(expected), rel=1e-12)
    assert loss("sum", x).item() == pytest.approx(np.sum(expected), rel=1e-12)
    bb.check_grads(partial(loss, "sum"), (x,), order=2)
    each = bb.vmap(lambda *of: layers.rnnt_loss(*(t[None] for t in of), blank=blank))(x, *operands)
    np.testing.assert_allclose(each.numpy(), expected, rtol=1e-12)
    nothing = [bb.asarray(x) for x in (labels[:, :0], REACH[0], 0 * REACH[1])]
    alone = layers.rnnt_loss(bb.asarray(LATTICE[:, :, :1]), *nothing, blank=blank, reduction="none").numpy()
    np.testing.assert_allclose(alone, [-LATTICE[i, : REACH[0][i], 0, blank].sum() for i in range(3)], rtol=1e-12)


def test_transducers_in_narrow_floats_and_without_an_alignment() -> None:
    log_probs = bb.full((1, 300, 41, 8), 1 / 8, dtype="float64").log()
    operands = [bb.asarray(x) for x in (np.ones((1, 40), np.int64), [300], [40])]
    wide = layers.rnnt_loss(log_probs, *operands).item()
    paths = math.lgamma(340) - math.lgamma(300) - math.lgamma(41)
    assert wide == pytest.approx(340 * math.log(8) - paths, rel=1e-12)
    for dtype, tolerance in (("float32", 1e-5), ("float16", 1e-2)):
        loss = layers.rnnt_loss(log_probs.astype(dtype), *operands)
        assert loss.dtype == dtype
        assert loss.item() == pytest.approx(wide, rel=tolerance)
    never = bb.asarray(np.where(np.arange(6) == 0, 0.0, -np.inf) + np.zeros((1, 3, 2, 6)))
    short = [bb.asarray(x) for x in ([[1]], [3], [1])]
    assert layers.rnnt_loss(never, *short).item() == math.inf
    assert np.isfinite(bb.grad(lambda x: layers.rnnt_loss(x, *short))(never).numpy()).all()


def test_invalid_transducers_are_refused() -> None:
    x, labels, lengths = bb.asarray(LATTICE), bb.asarray(LABELS), [bb.asarray(n) for n in REACH]
    words = "rnnt_loss: input lengths are from 1 to 5, target lengths from 0 to 4, and labels from 0 to 5; here one is"
    for wrong, bad in ((0, 0), (0, -1), (0, 6), (1, -1), (1, 5)):
        others = [bb.where(bb.arange(3) == 1, bad, n) if i == wrong else n for i, n in enumerate(lengths)]
        with pytest.raises(OutOfRangeError, match=words):
            layers.rnnt_loss(x, labels, *others)
    with pytest.raises(OutOfRangeError, match=words):
        layers.rnnt_loss(x, labels + 2, *lengths)
    with pytest.raises(DTypeError, match="rnnt_loss: targets and lengths are integers"):
        layers.rnnt_loss(x, bb.asarray(LABELS * 1.0), *lengths)
    with pytest.raises(ArgumentError, match="rnnt_loss: the blank is one of 6 classes, not 6"):
        layers.rnnt_loss(x, labels, *lengths, blank=6)
    for shapes in ((x, labels[:2]), (x, labels[:, :3]), (x[0], labels), (x[:, :0], labels)):
        with pytest.raises(ShapeError, match=r"rnnt_loss: log_probs are \(examples, steps, labels \+ 1, classes\)"):
            layers.rnnt_loss(*shapes, *lengths)
