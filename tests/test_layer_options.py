"""Options of layers: those that are none are refused by the layer's name when it is made, and rare ones work."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, GraphError, OutOfRangeError, ShapeError

nn: Any = bb.nn  # to which is given what checkers of types would refuse
optim: Any = bb.optim


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear(3, 2, bb.ones(2)), "Linear: bias is True or False"),
        (lambda: nn.Conv2d(3, 2, 3, bias=0.5), "Conv2d: bias is True or False, not 0.5"),
        (lambda: nn.ConvTranspose1d(3, 2, 3, bias="no"), "ConvTranspose1d: bias is True or False, not 'no'"),
        (lambda: nn.LSTM(3, 2, 1, 0.1), "LSTM: bias is True or False, not 0.1; other options come by name"),
        (lambda: nn.GRU(3, 2, batch_first="False"), "GRU: batch_first is True or False, not 'False'"),
        (lambda: nn.RNN(3, 2, bidirectional=2), "RNN: bidirectional is True or False, not 2"),
        (lambda: nn.LayerNorm(3, weight=bb.ones(3)), "LayerNorm: weight is True or False"),
        (lambda: nn.LayerNorm(3, bias=0), "LayerNorm: bias is True or False, not 0"),
        (lambda: nn.RMSNorm(3, weight=None), "RMSNorm: weight is True or False, not None"),
        (lambda: nn.GroupNorm(1, 3, affine=1), "GroupNorm: affine is True or False, not 1"),
        (lambda: nn.InstanceNorm(3, affine=1), "InstanceNorm: affine is True or False, not 1"),
        (lambda: nn.BatchNorm(3, affine=1), "BatchNorm: affine is True or False, not 1"),
        (
            lambda: nn.BatchNorm(3, track_running_stats=None),
            "BatchNorm: track_running_stats is True or False, not None",
        ),
        (lambda: nn.BatchNorm(3, momentum=-0.1), "BatchNorm: momentum is a number from 0 to 1, not -0.1"),
        (lambda: nn.MaxPool2d(2, ceil_mode=1), "MaxPool2d: ceil_mode is True or False, not 1"),
        (lambda: nn.AvgPool1d(2, 2, 0, False, 4), "AvgPool1d: count_include_pad is True or False, not 4"),
        (lambda: nn.TransformerEncoderLayer(4, 2, pre_norm="x"), "TransformerEncoderLayer: pre_norm is True or False"),
        (lambda: nn.TransformerEncoderLayer(None, 2), "TransformerEncoderLayer: size is an integer"),
        (lambda: nn.TransformerEncoderLayer(4, 2, hidden=0), "TransformerEncoderLayer: hidden is an integer"),
        (lambda: nn.TransformerEncoderLayer(4, 2, dropout=2.0), "TransformerEncoderLayer: p is a number from 0 to 1"),
        (lambda: nn.Linear(bb.asarray(2.0), 2), "Linear: inputs is an integer of at least 1"),
        (lambda: nn.Embedding(3, 2, padding_idx="x"), "Embedding: padding_idx is an integer, not 'x'"),
        (lambda: nn.BatchNorm(3, eps=-1.0), "BatchNorm: eps is a number of at least 0, not -1.0"),
        (lambda: nn.LayerNorm(3, eps=float("nan")), "LayerNorm: eps is a number of at least 0, not nan"),
        (lambda: nn.RMSNorm(3, eps=-1), "RMSNorm: eps is a number of at least 0, not -1"),
        (lambda: nn.GroupNorm(1, 3, eps=-1), "GroupNorm: eps is a number of at least 0, not -1"),
        (lambda: nn.InstanceNorm(3, eps="x"), "InstanceNorm: eps is a number"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "Conv2d: padding is 'same', 'valid' or a number of places"),
        (lambda: nn.Conv1d(3, 4, 3, stride=2, padding="same"), "Conv1d: padding 'same' keeps the number of places"),
        (lambda: nn.ConvTranspose1d(3, 4, 3, padding=-1), "ConvTranspose1d: padding is 0 or more, not -1"),
        (lambda: nn.MaxPool2d(2, padding=(1, 1, 1)), "MaxPool2d: padding needs one entry for each of 2 spatial axes"),
        (lambda: nn.AvgPool2d(2, padding="x"), "AvgPool2d: padding is 'same', 'valid' or a number of places"),
        (lambda: nn.Upsample(2, mode="bilinear"), "'lanczos3', not 'bilinear'; 'linear' is that"),
        (lambda: nn.Upsample(), "Upsample: either size or scale says how many places come out"),
        (lambda: nn.GELU("exact"), "GELU: approximate is one of 'none', 'tanh', not 'exact'"),
        (lambda: nn.LayerNorm(()), r"LayerNorm: shape has the length of one axis or more, not ()"),
    ],
)
def test_what_is_no_option_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 2, 1), (3, 4, 4)),
        (nn.ConvTranspose1d(3, 2, 1), (3, 4)),
        (nn.MaxPool2d(2), (3, 4, 4)),
        (nn.AdaptiveAvgPool3d(1), (3, 4, 4, 4)),
        (nn.LSTM(3, 2), (4, 3)),
    ],
)
def test_a_single_example_needs_an_axis_of_its_own(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=rf"{type(layer).__name__}: .*expand_dims adds an axis for a single example"):
        layer(bb.ones(shape))
    with pytest.raises(ShapeError) as caught:
        layer(bb.ones((1, 1, *shape)))
    assert "expand_dims" not in str(caught.value)


def test_batch_norm_without_weight_and_bias() -> None:
    plain, weighted = nn.BatchNorm(3, affine=False), nn.BatchNorm(3)
    x = bb.asarray(np.arange(12.0).reshape(4, 3) ** 2, dtype="float32")
    assert [path for path, _ in plain.named_buffers()] == ["running_mean", "running_var"]
    assert plain.num_parameters == 0
    for _ in range(2):
        assert plain(x).tolist() == weighted(x).tolist()
        assert plain.running_var.tolist() == weighted.running_var.tolist()
        plain.eval(), weighted.eval()


def with_torchs_batch_norm(**options: Any) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="torch is the reference, and it is not installed")
    return nn.BatchNorm(3, **options).astype("float64"), torch.nn.BatchNorm1d(3, **options).double()


def test_batch_norm_with_the_means_over_all_batches() -> None:
    ours, theirs = with_torchs_batch_norm(momentum=None)
    torch, random = pytest.importorskip("torch"), np.random.default_rng(0)
    assert [path for path, _ in ours.named_buffers()] == ["running_mean", "running_var", "batches"]
    for training in (True, True, True, False, True):
        ours.train(training), theirs.train(training)
        x = random.normal(1.0, 2.0, (4, 3, 5))
        np.testing.assert_allclose(ours(bb.asarray(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-9)
        for name in ("running_mean", "running_var"):
            np.testing.assert_allclose(getattr(ours, name).numpy(), getattr(theirs, name).numpy(), rtol=1e-9)
    assert ours.batches.item() == theirs.num_batches_tracked.item() == 4
    other = nn.BatchNorm(3, momentum=None).astype("float64")
    other.load_state_dict(ours.state_dict())
    for layer in (ours, other):
        layer(bb.asarray(x))
    assert other.running_mean.tolist() == ours.running_mean.tolist()
    assert other.batches.item() == 5


def test_batches_that_are_refused_are_not_counted() -> None:
    layer = nn.BatchNorm(3, momentum=None)
    with pytest.raises(GraphError, match=r"model\.eval\(\)"):
        bb.vmap(layer)(bb.asarray(np.random.default_rng(0).normal(size=(2, 4, 3))))
    assert layer.batches.item() == 0


def test_batch_norm_with_the_statistics_of_each_batch() -> None:
    ours, theirs = with_torchs_batch_norm(track_running_stats=False)
    torch, random = pytest.importorskip("torch"), np.random.default_rng(0)
    assert list(ours.state_dict()) == ["weight", "bias"]
    for training in (True, False):
        ours.train(training), theirs.train(training)
        x = random.normal(1.0, 2.0, (4, 3))
        a: Any = bb.asarray(x).require_grad()
        b = torch.from_numpy(x).requires_grad_()
        got, expected = ours(a), theirs(b)
        np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9)
        gradients = (got * bb.asarray(x)).square().sum().backward()
        theirs.zero_grad()
        (expected * torch.from_numpy(x)).square().sum().backward()
        for one, two in ((a, b), (ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            np.testing.assert_allclose(one.grad(gradients).numpy(), two.grad.numpy(), rtol=1e-7)
    assert ours(bb.ones((1, 3), dtype="float64")).tolist() == [[0.0, 0.0, 0.0]]  # which is its mean
    with pytest.raises(ShapeError, match="BatchNorm: one value has no variance"):
        ours.train()(bb.ones((1, 3), dtype="float64"))
    each = bb.vmap(ours)(bb.asarray(np.stack([x, 2 * x])))  # nothing is kept that examples would share
    np.testing.assert_allclose(each[0].numpy(), each[1].numpy(), rtol=1e-4)


def test_prelu_of_a_scalar_is_a_scalar() -> None:
    layer = nn.PReLU()
    result = layer(bb.asarray(-2.0))
    assert result.shape == ()
    assert layer.slope.grad(result.backward()).tolist() == [-2.0]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 2), nn.Conv1d(3, 2, 1), nn.ConvTranspose2d(3, 2, 1), nn.MaxPool2d(2), nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(1), nn.LSTM(3, 2), nn.GRU(3, 2), nn.RNN(3, 2), nn.LayerNorm(3), nn.RMSNorm(3),
        nn.BatchNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm(3), nn.MultiHeadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2), nn.Pad(1), nn.PReLU(3), nn.Unflatten(1, (3, 1)), nn.Flatten(), nn.ReLU(),
        nn.Softmax(), nn.Dropout(), nn.Upsample(scale=2), nn.Embedding(3, 2), nn.Threshold(0.0, 1.0),
        nn.EmbeddingBag(3, 2), nn.LocalResponseNorm(3), nn.LPPool1d(2, 2), nn.AlphaDropout(), nn.RotaryEmbedding(),
        nn.BatchNorm(3, track_running_stats=False), nn.Softplus(1.0, 20.0),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_what_is_no_tensor_is_refused_by_the_layers_name(layer: Any) -> None:
    for given in (np.ones((2, 3, 3), np.float32), [[1.0]], None):
        with pytest.raises(DTypeError) as caught:
            layer(given)
        assert str(caught.value).startswith(f"{type(layer).__name__}: ")


def test_what_a_base_class_finds_wrong_is_told_by_the_layers_name() -> None:
    with pytest.raises(ShapeError, match=r"^Conv2d: axis 1 of the input has 2 channels"):
        nn.Conv2d(3, 4, 3)(bb.ones((1, 2, 5, 5)))
    with pytest.raises(ShapeError, match=r"^MaxPool1d: a window that reaches over 3 elements does not fit"):
        nn.MaxPool1d(3)(bb.ones((1, 1, 2)))
    with pytest.raises(DTypeError, match=r"^AvgPool1d: takes float tensors, not bool"):
        nn.AvgPool1d(1)(bb.ones((1, 1, 2), dtype="bool"))

    class Wide(bb.nn.Linear):
        pass

    with pytest.raises(ShapeError, match=r"^Linear: "):
        Wide(3, 2)(bb.ones((1, 2)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.init.kaiming_uniform((2, 3), gain="relu"), "kaiming_uniform: gain is a number"),
        (lambda: nn.init.xavier_normal((2, 3), gain=-1.0), "gain is a finite number of at least 0, not -1.0"),
        (lambda: nn.init.orthogonal((2, 3), gain=None), "orthogonal: gain is a number"),
        (lambda: nn.init.trunc_normal((2,), std=float("nan")), "trunc_normal: std is a finite number of at least 0"),
        (lambda: nn.init.trunc_normal((2,), bound=-1.0), "bound is a finite number above 0, not -1.0"),
        (lambda: nn.Linear(2, 2).train("eval"), "train: mode is True or False, not 'eval'"),
        (lambda: nn.Sequential({"a": nn.ReLU()}), "write Sequential(*modules.values())"),
        (
            lambda: optim.SGD(lambda step: "fast").step(m := nn.Linear(1, 1), m(bb.ones((1, 1))).backward()),
            "SGD: lr(0) is a number, not 'fast'",
        ),
    ],
)
def test_first_values_modes_and_rates_that_are_none_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert words in str(caught.value)


def test_states_and_labels_that_are_none_are_refused() -> None:
    x, state = bb.ones((5, 2, 3)), bb.zeros((1, 2, 4))
    for given in ((state,), (state, state, state), 3, "xy"):
        with pytest.raises((ArgumentError, DTypeError), match=r"^LSTM: (the first states are two|takes a tensor)"):
            nn.LSTM(3, 4)(x, given)
    for cell in (None, (state, state)):
        with pytest.raises(DTypeError, match=r"^LSTM: takes a tensor"):
            nn.LSTM(3, 4)(x, (state, cell))
    with pytest.raises(DTypeError, match=r"^GRU: takes a tensor, not tuple"):
        nn.GRU(3, 4)(x, (state,))
    with pytest.raises(DTypeError, match=r"^MultiHeadAttention: takes a tensor, not str"):
        nn.MultiHeadAttention(4, 2)(bb.ones((5, 4)), "key")
    for loss in (nn.functional.cross_entropy, nn.functional.nll_loss):
        with pytest.raises(OutOfRangeError, match=f"^{loss.__name__}: the label -100 .*; ignore_index=-100 leaves"):
            loss(bb.ones((2, 3)), bb.asarray([0, -100]))
        with pytest.raises(OutOfRangeError, match=rf"^{loss.__name__}: the label 7 is none of the 3 classes\."):
            loss(bb.ones((2, 3)), bb.asarray([7, -100]), ignore_index=-100)
        for label in (1.5, "x"):
            with pytest.raises(ArgumentError, match=rf"^{loss.__name__}: ignore_index is an integer"):
                loss(bb.ones((2, 3)), bb.asarray([0, 1]), ignore_index=label)


def test_arrays_and_numbers_in_the_place_of_a_tensor_are_refused() -> None:
    """They would no longer be part of the state."""
    layer, norm = nn.Linear(2, 3), nn.BatchNorm(3)
    weight = layer.weight
    for given in (np.ones((2, 3)), np.float32(1.0), 0.5, [[1.0], [2.0]], (np.ones(2), 3)):
        with pytest.raises(
            DTypeError, match=r"^Linear\.weight: .*not be part of the state.*Write bb\.asarray\(\.\.\.\)\.req"
        ):
            layer.weight = given
        with pytest.raises(DTypeError, match=r"^BatchNorm\.running_mean: .* Write bb\.asarray\(\.\.\.\)$"):
            norm.running_mean = given
    assert layer.weight is weight
    layer.weight = bb.asarray(np.ones((2, 3))).require_grad()
    layer.bias = None
    assert list(layer.state_dict()) == ["weight"]
    layer.weight = nn.Linear(2, 3)  # a module may take the place of a tensor, and what it has is state
    layer.factor = np.ones(3)  # where no tensor was, an array is a constant
    assert list(layer.state_dict()) == ["weight.weight", "weight.bias"]
