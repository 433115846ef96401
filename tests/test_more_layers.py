"""Layers and options of layers that are rarer, against torch in float64, with all gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.against_torch import agrees, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError

ANY: Any = nn


class First(bb.nn.Module):
    """The first of a module's results."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)[0]


# ---- recurrent layers ----


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_activations_of_recurrent_layers(torch: Any, activation: str, bidirectional: bool) -> None:
    model = nn.RNN(3, 4, layers=2, bidirectional=bidirectional, activation=activation).astype("float64")
    directions = 2 if bidirectional else 1

    def theirs(p: Any, x: Any, state: Any) -> Any:
        other = torch.nn.RNN(3, 4, 2, activation, bidirectional=bidirectional, dtype=torch.float64)
        names = {"input_weight": "weight_ih", "weight": "weight_hh", "input_bias": "bias_ih", "bias": "bias_hh"}
        weights = {}
        for index in range(2 * directions):
            end = f"_l{index // directions}" + ("_reverse" if index % directions else "")
            for part, name in names.items():
                given = p[f"module.layers.{index}.{part}"]
                weights[name + end] = given.T if given.ndim == 2 else given
        return torch.func.functional_call(other, weights, (x, state))[0]

    agrees(First(model), theirs, normal(5, 2, 3), normal(2 * directions, 2, 4))


def test_activations_that_recurrent_layers_do_not_have() -> None:
    with pytest.raises(ArgumentError, match="RNN: the activation is one of 'tanh', 'relu', not 'gelu'"):
        nn.RNN(3, 4, activation="gelu")
    with pytest.raises(TypeError, match=r"RNN\(\) got an unexpected .*'nonlinearity'; here: activation"):
        ANY.RNN(3, 4, nonlinearity="relu")


# ---- products of two vectors, and bags of rows ----


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear(torch: Any, bias: bool) -> None:
    model = nn.Bilinear(3, 4, 2, bias).astype("float64")
    theirs = lambda p, x, y: torch.nn.functional.bilinear(x, y, p["weight"].permute(2, 0, 1), p.get("bias"))
    agrees(model, theirs, normal(5, 6, 3), normal(5, 6, 4))
    agrees(model, theirs, normal(3), normal(4))
    assert list(model.state_dict()) == (["weight", "bias"] if bias else ["weight"])
    assert model(bb.zeros((0, 3), dtype="float64"), bb.zeros((0, 4), dtype="float64")).shape == (0, 2)
    assert model(bb.zeros((5, 1, 3)), bb.zeros((6, 4))).shape == (5, 6, 2)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_bags_of_rows(torch: Any, mode: str, padding_idx: int | None) -> None:
    """The last bag has nothing but the padding, if there is one."""
    model = nn.EmbeddingBag(6, 3, mode, padding_idx).astype("float64")
    if padding_idx is not None:
        assert not model.weight[padding_idx].numpy().any()
    model.weight = nn.parameter(bb.asarray(normal(6, 3)))  # what stands in the row of the padding must not matter
    ids = np.array([[1, 2, 0, 4], [0, 0, 5, 5], [3, 1, 1, 2], [0, 0, 0, 0], [5, 5, 5, 5]])

    def theirs(p: Any, ids: Any) -> Any:
        return torch.nn.functional.embedding_bag(ids, p["weight"], mode=mode, padding_idx=padding_idx)

    if mode == "max":  # equal ones share the gradient
        ids = np.array([[1, 2, 0, 4], [0, 3, 1, 5], [3, 1, 4, 2]])
        np.testing.assert_allclose(
            model(bb.asarray([[5, 5], [0, 0]])).numpy(),
            theirs({"weight": torch.from_numpy(model.weight.numpy())}, torch.tensor([[5, 5], [0, 0]])).numpy(),
        )
    agrees(model, theirs, ids)


def test_weights_in_bags(torch: Any) -> None:
    model = nn.EmbeddingBag(6, 3, "sum", padding_idx=1).astype("float64")
    agrees(
        model,
        lambda p, ids, w: torch.nn.functional.embedding_bag(
            ids, p["weight"], mode="sum", per_sample_weights=w, padding_idx=1
        ),
        np.array([[1, 2, 0], [1, 1, 5]]), normal(2, 3),
    )  # fmt: skip
    for mode in ("mean", "sum", "max"):
        layer = nn.EmbeddingBag(6, 3, mode)
        assert layer(bb.zeros((2, 0), dtype="int64")).tolist() == [[0.0] * 3] * 2
        assert layer(bb.zeros((2, 5, 4), dtype="int64")).shape == (2, 5, 3)


@pytest.mark.parametrize("padding_idx", [None, 1])
def test_means_of_bags_add_up_16_bits_in_float32(padding_idx: int | None) -> None:
    weight, ids = bb.asarray([[300.0], [0.0]]).astype("float16"), bb.zeros((1, 400), dtype="int64")
    found = nn.functional.embedding_bag(ids, weight, padding_idx=padding_idx)
    assert (found.dtype, found.tolist()) == (bb.float16, [[300.0]])


# ---- unpooling ----


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("size", "stride", "padding", "more"), [(2, None, 0, 0), (3, 2, 1, 0), (2, 3, 0, 1), (3, 1, 1, 0)]
)
def test_unpooling_is_that_of_pytorch(
    torch: Any, rank: int, size: int, stride: int | None, padding: int, more: int
) -> None:
    x = normal(2, 3, *(7, 6, 5)[:rank])
    pool = getattr(torch.nn.functional, f"max_pool{rank}d")
    values, indices = pool(torch.from_numpy(x), size, stride, padding, return_indices=True)
    ours = nn.functional.max_pool_with_indices(bb.asarray(x), size, stride=stride, padding=padding)
    np.testing.assert_array_equal(ours[1].numpy(), indices.numpy())
    layer: Any = getattr(nn, f"MaxUnpool{rank}d")(size, stride, padding)
    lengths = [(n - 1) * (stride or size) + size - 2 * padding + more for n in values.shape[2:]]
    places = bb.asarray(indices.numpy())
    if int(np.prod(lengths)) <= int(indices.max()):
        lengths = list(x.shape[2:])
    unpool = getattr(torch.nn.functional, f"max_unpool{rank}d")
    theirs = unpool(values, indices, size, stride, padding, output_size=lengths)
    got = layer(ours[0], places, lengths)
    if (stride or size) >= size:  # where several windows have one maximum, each has a gradient in PyTorch
        agrees(lambda v: layer(v, places, lengths),
               lambda _, v: unpool(v, indices, size, stride, padding, output_size=lengths), values.numpy())  # fmt: skip
    np.testing.assert_array_equal(got.numpy(), theirs.numpy())


def test_unpooling_by_default_undoes_pooling_of_whole_windows() -> None:
    x = bb.asarray(normal(2, 3, 6, 4))
    values, indices = nn.functional.max_pool_with_indices(x, (3, 2))
    back = nn.MaxUnpool2d((3, 2))(values, indices)
    np.testing.assert_array_equal(back.numpy(), np.where(back.numpy() == 0.0, 0.0, x.numpy()))
    assert (back.numpy() != 0.0).sum() == values.size
    bb.check_grads(lambda v: nn.functional.max_unpool(v, indices, (3, 2)) ** 2.0, (values,), order=2)
    rows = bb.vmap(lambda v, i: nn.functional.max_unpool(v, i, (3, 2)))(bb.stack([values] * 2), bb.stack([indices] * 2))
    np.testing.assert_array_equal(rows[1].numpy(), back.numpy())
    assert nn.functional.max_unpool(values[:0], indices[:0], (3, 2)).shape == (0, 3, 6, 4)
    for call, error, words in (
        (lambda: nn.functional.max_unpool(values, indices[:1], 2), ShapeError, "max_unpool: takes an index for each"),
        (lambda: nn.functional.max_unpool(values, values, 2), DTypeError, "max_unpool"),
        (lambda: nn.functional.max_unpool(values, indices, 1), OutOfRangeError, "max_unpool: index"),
        (lambda: nn.functional.max_unpool(values, indices, 2, output_size=(1, 2, 3)), ArgumentError, "output_size"),
        (lambda: nn.MaxUnpool1d(2)(values, indices), ShapeError, "MaxUnpool1d: the input .* has 3 axes, not 4"),
        (lambda: nn.MaxUnpool2d(0), ArgumentError, "MaxUnpool2d: size is 1 or more"),
    ):
        with pytest.raises(error, match=words):
            call()


# ---- norms ----


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 5), (2, 4, 3, 2)])
def test_local_response_norm(torch: Any, size: int, shape: tuple[int, ...]) -> None:
    options: dict[str, Any] = {"alpha": 0.7, "beta": 0.6, "k": 1.5}
    theirs = lambda _, x: torch.nn.functional.local_response_norm(
        x if x.ndim > 2 else x[..., None], size, **options
    ).reshape(x.shape)
    agrees(nn.LocalResponseNorm(size, **options), theirs, normal(*shape))
    assert nn.LocalResponseNorm(size)(bb.zeros((0, *shape[1:]))).shape == (0, *shape[1:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_local_response_norm_squares_16_bits_in_float32(dtype: str) -> None:
    x: Any = bb.asarray([[-400.0, 400.0, -300.0, 300.0]]).astype(dtype)
    found = nn.functional.local_response_norm(x, 2)
    assert found.dtype == dtype
    expected = nn.functional.local_response_norm(x.astype("float64"), 2)
    np.testing.assert_allclose(found.astype("float64").numpy(), expected.numpy(), rtol=1e-2)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("ord", [1, 2, 3.5, math.inf])
def test_norms_of_windows(torch: Any, rank: int, ord: float) -> None:
    places = (7, 6, 5)[:rank]
    theirs = getattr(torch.nn.functional, f"lp_pool{rank}d")
    for size, stride in ((2, None), (3, 2), ((3, 2, 1)[:rank] if rank > 1 else 3, 1)):
        agrees(
            getattr(nn, f"LPPool{rank}d")(ord, size, stride),
            lambda _, x, size=size, stride=stride: theirs(x.abs(), ord, size, stride),
            normal(2, 3, *places),
        )


def test_the_norm_of_an_empty_window_has_no_gradient() -> None:
    x: Any = bb.asarray([[[0.0, 0.0, 3.0, -4.0]]]).require_grad()
    y = nn.LPPool1d(2, 2)(x)
    assert y.tolist() == [[[0.0, 5.0]]]
    np.testing.assert_allclose(x.grad(y.backward()).numpy(), [[[0.0, 0.0, 0.6, -0.8]]], rtol=1e-6)
    assert nn.LPPool1d(2, 2)(bb.asarray([[[300.0, 400.0]]], dtype="float16")).tolist() == [[[500.0]]]


# ---- softplus ----


@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
@pytest.mark.parametrize(("dtype", "large"), [("float32", 3e38), ("float64", 1.7e308)])
def test_softplus_where_beta_times_x_overflows(dtype: str, large: float, backend: str) -> None:
    x = bb.asarray([large, -large], dtype=dtype, backend=backend)
    assert nn.functional.softplus(x, beta=4.0).tolist() == [x[0].item(), 0.0]
    assert nn.functional.softplus(x, beta=-4.0).tolist() == [0.0, x[1].item()]



@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 0.5), (1.0, -1.0)])
def test_softplus_above_a_threshold(torch: Any, beta: float, threshold: float) -> None:
    x = np.concatenate([normal(50) * 3, [threshold / beta, 1000.0, -1000.0]])
    agrees(
        nn.Softplus(beta, threshold), lambda _, x: torch.nn.functional.softplus(x, beta=beta, threshold=threshold), x
    )
    assert nn.Softplus()(bb.asarray([25.0], dtype="float64")).item() > 25.0  # exact without one
    with pytest.raises(ArgumentError, match="Softplus: threshold is a number"):
        ANY.Softplus(1.0, "x")


# ---- dropout ----


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    bb.random.seed(0)
    x = bb.random.normal((200_000,))
    for p in (0.1, 0.5, 0.9):
        y = nn.AlphaDropout(p)(x).numpy()
        assert abs(y.mean()) < 0.02
        assert abs(y.std() - 1.0) < 0.02
        values, counts = np.unique(y, return_counts=True)
        assert abs(counts.max() / y.size - p) < 0.01
        scale = 1.0 / np.sqrt((1 - p) * (1 + p * 1.7580993408473766**2))
        np.testing.assert_allclose(values[counts.argmax()], -1.7580993408473766 * scale * (1 - p), rtol=1e-5)
    layer = nn.AlphaDropout(0.5)
    assert layer.eval()(x) is x
    one: Any = bb.asarray([1.0, float("inf")]).require_grad()
    gone = nn.AlphaDropout(1.0)(one)
    assert gone.tolist() == one.grad(gone.backward()).tolist() == [0.0, 0.0]
    same = [nn.functional.alpha_dropout(x, 0.5, generator=bb.random.Generator(3)).tolist() for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ANY.Bilinear(3, 4, 0), ArgumentError, "Bilinear: outputs is an integer of at least 1"),
        (lambda x: ANY.Bilinear(3, 4, 2, 0.5), ArgumentError, r"Bilinear: bias is True or False, not 0\.5"),
        (lambda x: nn.Bilinear(3, 4, 2)(x, x), ShapeError, r"Bilinear: the weight is \(first, second, outputs\)"),
        (lambda x: ANY.Bilinear(3, 4, 2)(x, None), DTypeError, "Bilinear: takes a tensor"),
        (
            lambda x: ANY.EmbeddingBag(3, 4, "min"),
            ArgumentError,
            "EmbeddingBag: the mode is one of 'mean', 'sum', 'max'",
        ),
        (lambda x: nn.EmbeddingBag(3, 4, "sum", 3), ArgumentError, "EmbeddingBag: padding_idx 3 names none of 3 rows"),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray([[3]])), OutOfRangeError, "EmbeddingBag: "),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray(1)), ShapeError, "EmbeddingBag: a bag is the last axis"),
        (lambda x: nn.EmbeddingBag(3, 4)(x), DTypeError, "EmbeddingBag: rows are named by integers"),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray([[1]]), x), ArgumentError, "per_sample_weights are for mode='sum'"),
        (lambda x: nn.EmbeddingBag(3, 4, "sum")(bb.asarray([[1]]), x), ShapeError, "a weight for each integer"),
        (lambda x: ANY.LocalResponseNorm(0), ArgumentError, "LocalResponseNorm: size is an integer of at least 1"),
        (lambda x: ANY.LocalResponseNorm(2, beta="x"), ArgumentError, "LocalResponseNorm: beta is a number"),
        (lambda x: nn.LocalResponseNorm(2)(x[0]), ShapeError, r"LocalResponseNorm: the input is \(examples, channels"),
        (lambda x: ANY.LPPool1d(0.5, 2), ArgumentError, r"LPPool1d: ord is a number of at least 1, not 0\.5"),
        (lambda x: ANY.LPPool1d(2, 0), ArgumentError, "LPPool1d: size is 1 or more"),
        (lambda x: nn.LPPool1d(2, 2)(x), ShapeError, "LPPool1d: the input .* has 3 axes"),
        (lambda x: nn.LPPool1d(2, 9)(x[None]), ShapeError, "LPPool1d: a window that reaches over 9"),
        (lambda x: ANY.AlphaDropout(1.5), ArgumentError, r"AlphaDropout: p is a number from 0 to 1, not 1\.5"),
        (lambda x: ANY.AlphaDropout()(None), DTypeError, "AlphaDropout: takes a tensor"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^{words}" if ":" in words else words):
        call(bb.ones((2, 3)))


# ---- gumbel_softmax ----


def test_gumbel_softmax_draws_categories() -> None:
    """With the probabilities of the softmax, whatever the temperature; a low one leaves single ones."""
    bb.random.seed(0)
    logits = np.array([0.0, 1.0, -1.0])
    x = bb.asarray(np.tile(logits, (20_000, 1)))
    expected = np.exp(logits) / np.exp(logits).sum()
    for tau in (0.1, 1.0, 5.0):
        soft = nn.functional.gumbel_softmax(x, tau)
        np.testing.assert_allclose(soft.sum(-1).numpy(), 1.0, rtol=1e-12)
        chosen = np.bincount(soft.numpy().argmax(-1), minlength=3) / len(soft)
        np.testing.assert_allclose(chosen, expected, atol=0.015)
    hard = nn.functional.gumbel_softmax(x.T, 2.0, hard=True, axis=0)
    assert hard.shape == (3, 20_000)
    np.testing.assert_allclose(hard.mean(1).numpy(), expected, atol=0.015)
    np.testing.assert_allclose(np.sort(hard.numpy(), axis=0), np.tile([[0.0], [0.0], [1.0]], (1, 20_000)), atol=1e-15)
    cold = nn.functional.gumbel_softmax(x[:50], 1e-4).numpy()
    np.testing.assert_allclose(cold.max(-1), 1.0, atol=1e-6)
    half = nn.functional.gumbel_softmax(bb.ones((2, 3), dtype="float16"), hard=True)
    assert half.dtype is bb.float16


@pytest.mark.parametrize("hard", [False, True])
def test_gradients_of_gumbel_softmax_are_those_of_the_soft_one(hard: bool) -> None:
    x, weights = bb.asarray([[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]], dtype="float64"), bb.asarray([1.0, -2.0, 0.5])

    def drawn(x: Any, hard: bool) -> Any:
        return nn.functional.gumbel_softmax(x, 0.7, hard=hard, generator=bb.random.Generator(5))

    bb.check_grads(lambda x: drawn(x, False), (x,), order=2)
    got = bb.grad(lambda x: (drawn(x, hard) * weights).sum())(x).numpy()
    np.testing.assert_allclose(got, bb.grad(lambda x: (drawn(x, False) * weights).sum())(x).numpy(), rtol=1e-12)
    assert (drawn(x, True).argmax(-1) == drawn(x, False).argmax(-1)).all()


def test_gumbel_softmax_refuses() -> None:
    x: Any = bb.ones((2, 3))
    for tau in (0.0, -1.0, float("inf"), x):
        with pytest.raises(ArgumentError, match="gumbel_softmax: tau is a"):
            nn.functional.gumbel_softmax(x, tau)
    with pytest.raises(AxisError, match="gumbel_softmax: axis 2"):
        nn.functional.gumbel_softmax(x, axis=2)


# ---- pad_sequence ----


def test_padded_sequences_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    for rest in ((), (2,), (3, 2)):
        arrays = [generator.normal(size=(length, *rest)) for length in (3, 1, 4, 0)]
        expected = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(a) for a in arrays], True, -7.0)
        got = nn.functional.pad_sequence([bb.asarray(a) for a in arrays], value=-7.0)
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
