"""Embeddings, embedding bags, bilinear products, scans and padded sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import GENERATOR, agrees, functions_agree, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, AxisError, OutOfRangeError, ShapeError
from backburn.nn import functional as layers

# ---- embedding and scans ----


def test_embedding(torch: Any) -> None:
    ids = GENERATOR.integers(0, 7, (4, 5))
    table = normal(7, 3)
    for padding in (None, 2, -1):
        functions_agree(
            lambda w, p=padding: layers.embedding(bb.asarray(ids), w, p),
            lambda w, p=padding: torch.nn.functional.embedding(torch.from_numpy(ids), w, padding_idx=p),
            table,
        )
    with pytest.raises(OutOfRangeError, match=r"embedding: .*float64\[7,3\]"):
        layers.embedding(bb.asarray([7]), bb.asarray(table))
    for spec in ("autodiff(numpy)", "autodiff(capture(numpy))"):
        for dtype in ("int8", "int64"):
            wrong = bb.asarray([1, -1], dtype=dtype, backend=spec)
            with pytest.raises(OutOfRangeError, match="embedding: the index -1 names none of the 200 rows"):
                layers.embedding(wrong, bb.zeros((200, 3), backend=spec))
            with pytest.raises(OutOfRangeError, match="embedding_bag: the index -1 names none of the 200 rows"):
                layers.embedding_bag(wrong[None], bb.zeros((200, 3), backend=spec))
    with pytest.raises(OutOfRangeError, match="embedding"):
        bb.vmap(lambda i: layers.embedding(i, bb.asarray(table)))(bb.asarray([[0], [-1]]))
    with pytest.raises(OutOfRangeError, match="padding_idx 7 names none of the 7 rows"):
        layers.embedding(bb.asarray([1]), bb.asarray(table), 7)
    with pytest.raises(ShapeError, match=r"embedding: the weight is 0-d, .*int64\[1\].*float32\[\]"):
        layers.embedding(bb.asarray([0]), bb.asarray(1.0))
    layer = nn.Embedding(5, 2, padding_idx=1)
    assert layer.weight[1].tolist() == [0.0, 0.0]
    gradients = layer(bb.asarray([1, 2, 1])).sum().backward()
    assert layer.weight.grad(gradients).tolist()[1:3] == [[0.0, 0.0], [1.0, 1.0]]  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="Embedding: padding_idx 5"):
        nn.Embedding(5, 2, padding_idx=5)


def test_scan() -> None:
    a, x, h0 = (normal(*s) for s in ((6, 3), (6, 3), (3,)))
    states, h = [], h0
    for t in range(6):
        h = a[t] * h + 2.0 * x[t]
        states.append(h)
    got = layers.ssm_scan(bb.asarray(a), 2.0, bb.asarray(x), bb.asarray(h0), axis=-2)
    np.testing.assert_allclose(got.numpy(), states)
    with pytest.raises(AxisError, match="ssm_scan: axis 2 is out of range"):
        layers.ssm_scan(bb.asarray(a), 2.0, bb.asarray(x), axis=2)


# ---- bilinear products and embedding bags ----


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear(torch: Any, bias: bool) -> None:
    model = nn.Bilinear(3, 4, 2, bias).astype("float64")
    theirs = lambda p, x, y: torch.nn.functional.bilinear(x, y, p["weight"], p.get("bias"))
    agrees(model, theirs, normal(5, 6, 3), normal(5, 6, 4))
    agrees(model, theirs, normal(3), normal(4))
    assert list(model.state_dict()) == (["weight", "bias"] if bias else ["weight"])
    assert model(bb.zeros((0, 3), dtype="float64"), bb.zeros((0, 4), dtype="float64")).shape == (0, 2)
    assert model(bb.zeros((5, 1, 3)), bb.zeros((6, 4))).shape == (5, 6, 2)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_embedding_bags(torch: Any, mode: str, padding_idx: int | None) -> None:
    """The bag [0, 0, 0, 0] holds only padding, if row 0 is the padding."""
    model = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding_idx).astype("float64")
    if padding_idx is not None:
        assert not model.weight[padding_idx].numpy().any()
    model.weight = nn.parameter(bb.asarray(normal(6, 3)))  # the values in the padding row must not matter
    ids = np.array([[1, 2, 0, 4], [0, 0, 5, 5], [3, 1, 1, 2], [0, 0, 0, 0], [5, 5, 5, 5]])

    def theirs(p: Any, ids: Any) -> Any:
        return torch.nn.functional.embedding_bag(ids, p["weight"], mode=mode, padding_idx=padding_idx)

    if mode == "max":  # no ties, which would share the gradient
        ids = np.array([[1, 2, 0, 4], [0, 3, 1, 5], [3, 1, 4, 2]])
        np.testing.assert_allclose(
            model(bb.asarray([[5, 5], [0, 0]])).numpy(),
            theirs({"weight": torch.from_numpy(model.weight.numpy())}, torch.tensor([[5, 5], [0, 0]])).numpy(),
        )
    agrees(model, theirs, ids)


def test_weights_in_bags(torch: Any) -> None:
    model = nn.EmbeddingBag(6, 3, mode="sum", padding_idx=1).astype("float64")
    agrees(
        model,
        lambda p, ids, w: torch.nn.functional.embedding_bag(
            ids, p["weight"], mode="sum", per_sample_weights=w, padding_idx=1
        ),
        np.array([[1, 2, 0], [1, 1, 5]]), normal(2, 3),
    )  # fmt: skip
    for mode in ("mean", "sum", "max"):
        layer = nn.EmbeddingBag(6, 3, mode=mode)
        assert layer(bb.zeros((2, 0), dtype="int64")).tolist() == [[0.0] * 3] * 2
        assert layer(bb.zeros((2, 5, 4), dtype="int64")).shape == (2, 5, 3)


@pytest.mark.parametrize("padding_idx", [None, 1])
def test_means_of_bags_add_up_16_bits_in_float32(padding_idx: int | None) -> None:
    weight, ids = bb.asarray([[300.0], [0.0]]).astype("float16"), bb.zeros((1, 400), dtype="int64")
    found = nn.functional.embedding_bag(ids, weight, padding_idx=padding_idx)
    assert (found.dtype, found.tolist()) == (bb.float16, [[300.0]])


# ---- pad_sequence ----


def test_padded_sequences_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    for rest in ((), (2,), (3, 2)):
        arrays = [generator.normal(size=(length, *rest)) for length in (3, 1, 4, 0)]
        expected = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(a) for a in arrays], True, -7.0)
        got = nn.functional.pad_sequence([bb.asarray(a) for a in arrays], padding_value=-7.0)
        assert got.shape == tuple(expected.shape)
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
    mixed = nn.functional.pad_sequence((bb.asarray([1, 2]), bb.asarray([0.5])))
    assert mixed.tolist() == [[1.0, 2.0], [0.5, 0.0]]
    assert nn.functional.pad_sequence([bb.asarray([True]), bb.asarray([True, True])]).tolist() == [[1, 0], [1, 1]]
    x = bb.asarray([1.0, 2.0, 3.0], dtype="float64")
    bb.check_grads(lambda x: nn.functional.pad_sequence([x, x[:1] * x[1:2]]).square(), (x,), order=2)


def test_sequences_that_differ_otherwise_are_refused() -> None:
    pad = nn.functional.pad_sequence
    for other in (bb.ones((2, 4)), bb.ones(2), bb.ones(())):
        with pytest.raises(ShapeError, match="pad_sequence: the sequences differ in more than their length"):
            pad([bb.ones((2, 3)), other])
    with pytest.raises(ArgumentError, match="pad_sequence: takes a list of at least one tensor"):
        pad([])
    with pytest.raises(ArgumentError, match="pad_sequence: takes a list of tensors, not one tensor"):
        pad(bb.ones((2, 3)))  # type: ignore[arg-type]
