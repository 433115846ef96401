"""Arguments of layers: every refusal names the layer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import normal

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError

nn: Any = bb.nn  # Any, since type checkers would refuse the arguments below
optim: Any = bb.optim


def test_an_encoder_layer_names_its_parameters_and_all_have_gradients() -> None:
    layer = nn.TransformerEncoderLayer(8, 2)
    paths = [path for path, _ in layer.named_parameters()]
    assert paths[:2] == ["self_attn.q_proj.weight", "self_attn.q_proj.bias"]
    gradients = layer(bb.asarray(normal(2, 4, 8).astype(np.float32))).square().sum().backward()
    assert all(x.grad(gradients) is not None for x in layer.parameters())


class Deep(bb.nn.Module):
    """Layers in a list."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))]

    def forward(self, x: bb.Tensor) -> bb.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_error_in_a_nested_module_names_its_path() -> None:
    """Errors name the path from the outermost module, once, unless they are raised by that module itself."""
    for model, place in (
        (Deep(), "In 'layers.1.1' (Linear) of this Deep."),
        (nn.Sequential(nn.ReLU(), Deep()), "In '1.layers.1.1' (Linear) of this Sequential."),
    ):
        with pytest.raises(ShapeError, match="axis -1 of the input is 3") as error:
            model(bb.ones((2, 3)))
        assert error.value.__notes__ == [place]
        assert pickle.loads(pickle.dumps(error.value)).__notes__ == [place]
    with pytest.raises(ShapeError) as error:
        nn.Linear(2, 2)(bb.ones(3))
    assert not hasattr(error.value, "__notes__")


def test_sizes_may_be_integers_of_numpy() -> None:
    """NumPy's products and maxima are NumPy integers."""
    three: Any = np.int64(3)
    assert nn.Linear(2 * three, three).weight.shape == (3, 6)
    assert repr(nn.LSTM(three, three)) == repr(nn.LSTM(3, 3))
    refused: list[Any] = [np.float32(3), np.int64(0), True, "3"]
    for wrong in refused:
        with pytest.raises(ArgumentError, match="Linear: in_features is an integer of at least 1"):
            nn.Linear(wrong, 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: nn.Bilinear(3, 4, 0), ArgumentError, "Bilinear: out_features is an integer of at least 1"),
        (lambda x: nn.Bilinear(3, 4, 2, 0.5), ArgumentError, r"Bilinear: bias is True or False, not 0\.5"),
        (lambda x: nn.Bilinear(3, 4, 2)(x, x), ShapeError, r"Bilinear: the weight is \(outputs, first, second\)"),
        (lambda x: nn.Bilinear(3, 4, 2)(x, None), DTypeError, "Bilinear: takes a tensor"),
        (
            lambda x: nn.EmbeddingBag(3, 4, mode="min"),
            ArgumentError,
            "EmbeddingBag: the mode is one of 'mean', 'sum', 'max'",
        ),
        (
            lambda x: nn.EmbeddingBag(3, 4, mode="sum", padding_idx=3),
            ArgumentError,
            "EmbeddingBag: padding_idx 3 names none of 3 rows",
        ),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray([[3]])), OutOfRangeError, "EmbeddingBag: "),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray(1)), ShapeError, "EmbeddingBag: bags are the last axis"),
        (lambda x: nn.EmbeddingBag(3, 4)(x), DTypeError, "EmbeddingBag: takes integer indices"),
        (lambda x: nn.EmbeddingBag(3, 4)(bb.asarray([[1]]), x), ArgumentError, "per_sample_weights are for mode='sum'"),
        (lambda x: nn.EmbeddingBag(3, 4, mode="sum")(bb.asarray([[1]]), x), ShapeError, "a weight for each index"),
        (lambda x: nn.LocalResponseNorm(0), ArgumentError, "LocalResponseNorm: size is an integer of at least 1"),
        (lambda x: nn.LocalResponseNorm(2, beta="x"), ArgumentError, "LocalResponseNorm: beta is a number"),
        (lambda x: nn.LocalResponseNorm(2)(x[0]), ShapeError, r"LocalResponseNorm: the input is \(examples, channels"),
        (lambda x: nn.LPPool1d(0.5, 2), ArgumentError, r"LPPool1d: norm_type is a number of at least 1, not 0\.5"),
        (lambda x: nn.LPPool1d(2, 0), ArgumentError, "LPPool1d: kernel_size is 1 or more"),
        (lambda x: nn.LPPool1d(2, 2)(x), ShapeError, "LPPool1d: the input .* has 3 axes"),
        (lambda x: nn.LPPool1d(2, 9)(x[None]), ShapeError, "LPPool1d: a window that reaches over 9"),
        (lambda x: nn.AlphaDropout(1.5), ArgumentError, r"AlphaDropout: p is a number from 0 to 1, not 1\.5"),
        (lambda x: nn.AlphaDropout()(None), DTypeError, "AlphaDropout: takes a tensor"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^{words}" if ":" in words else words):
        call(bb.ones((2, 3)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear(3, 2, bb.ones(2)), "Linear: bias is True or False"),
        (lambda: nn.Conv2d(3, 2, 3, bias=0.5), "Conv2d: bias is True or False, not 0.5"),
        (lambda: nn.ConvTranspose1d(3, 2, 3, bias="no"), "ConvTranspose1d: bias is True or False, not 'no'"),
        (lambda: nn.LSTM(3, 2, 1, 0.1), "LSTM: bias is True or False, not 0.1; other options come by name"),
        (lambda: nn.GRU(3, 2, batch_first="False"), "GRU: batch_first is True or False, not 'False'"),
        (lambda: nn.RNN(3, 2, bidirectional=2), "RNN: bidirectional is True or False, not 2"),
        (lambda: nn.LayerNorm(3, elementwise_affine=bb.ones(3)), "LayerNorm: elementwise_affine is True or False"),
        (lambda: nn.LayerNorm(3, bias=0), "LayerNorm: bias is True or False, not 0"),
        (lambda: nn.RMSNorm(3, elementwise_affine=None), "RMSNorm: elementwise_affine is True or False, not None"),
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
        (
            lambda: nn.TransformerEncoderLayer(4, 2, norm_first="x"),
            "TransformerEncoderLayer: norm_first is True or False",
        ),
        (lambda: nn.TransformerEncoderLayer(None, 2), "TransformerEncoderLayer: d_model is an integer"),
        (
            lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=0),
            "TransformerEncoderLayer: dim_feedforward is an integer",
        ),
        (lambda: nn.TransformerEncoderLayer(4, 2, dropout=2.0), "TransformerEncoderLayer: p is a number from 0 to 1"),
        (lambda: nn.Linear(bb.asarray(2.0), 2), "Linear: in_features is an integer of at least 1"),
        (lambda: nn.Embedding(3, 2, padding_idx="x"), "Embedding: padding_idx is an integer, not 'x'"),
        (lambda: nn.BatchNorm(3, eps=-1.0), "BatchNorm: eps is a number of at least 0, not -1.0"),
        (lambda: nn.LayerNorm(3, eps=float("nan")), "LayerNorm: eps is a number of at least 0, not nan"),
        (lambda: nn.RMSNorm(3, eps=-1), "RMSNorm: eps is a number of at least 0, not -1"),
        (lambda: nn.GroupNorm(1, 3, eps=-1), "GroupNorm: eps is a number of at least 0, not -1"),
        (lambda: nn.InstanceNorm(3, eps="x"), "InstanceNorm: eps is a number"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "Conv2d: padding is 'same', 'valid' or a number of places"),
        (lambda: nn.Conv1d(3, 4, 3, stride=2, padding="same"), "Conv1d: padding 'same' requires stride 1"),
        (lambda: nn.ConvTranspose1d(3, 4, 3, padding=-1), "ConvTranspose1d: padding is 0 or more, not -1"),
        (lambda: nn.MaxPool2d(2, padding=(1, 1, 1)), "MaxPool2d: padding needs one entry for each of 2 spatial axes"),
        (lambda: nn.AvgPool2d(2, padding="x"), "AvgPool2d: padding is 'same', 'valid' or a number of places"),
        (lambda: nn.Upsample(2, mode="bilinear"), "'lanczos3', not 'bilinear'; use 'linear'"),
        (lambda: nn.Upsample(), "Upsample: either size or scale_factor gives the size of the output"),
        (lambda: nn.GELU("exact"), "GELU: approximate is one of 'none', 'tanh', not 'exact'"),
        (lambda: nn.LayerNorm(()), r"LayerNorm: normalized_shape has the length of one axis or more, not ()"),
    ],
)
def test_invalid_options_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 2), nn.Conv1d(3, 2, 1), nn.ConvTranspose2d(3, 2, 1), nn.MaxPool2d(2), nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(1), nn.LSTM(3, 2), nn.GRU(3, 2), nn.RNN(3, 2), nn.LayerNorm(3), nn.RMSNorm(3),
        nn.BatchNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm(3), nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2), nn.Pad(1), nn.PReLU(3), nn.Unflatten(1, (3, 1)), nn.Flatten(), nn.ReLU(),
        nn.Softmax(), nn.Dropout(), nn.Upsample(scale_factor=2), nn.Embedding(3, 2), nn.Threshold(0.0, 1.0),
        nn.EmbeddingBag(3, 2), nn.LocalResponseNorm(3), nn.LPPool1d(2, 2), nn.AlphaDropout(), nn.RotaryEmbedding(),
        nn.BatchNorm(3, track_running_stats=False), nn.Softplus(1.0, 20.0),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_inputs_that_are_not_tensors_are_refused_with_the_layers_name(layer: Any) -> None:
    for given in (np.ones((2, 3, 3), np.float32), [[1.0]], None):
        with pytest.raises(DTypeError) as caught:
            layer(given)
        assert str(caught.value).startswith(f"{type(layer).__name__}: ")


def test_errors_of_a_base_class_name_the_layer() -> None:
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
        (lambda: nn.init.kaiming_uniform((2, 3), "relu"), "kaiming_uniform: param is a number"),
        (lambda: nn.init.xavier_normal((2, 3), gain=-1.0), "gain is a finite number of at least 0, not -1.0"),
        (lambda: nn.init.orthogonal((2, 3), gain=None), "orthogonal: gain is a number"),
        (lambda: nn.init.trunc_normal((2,), std=float("nan")), "trunc_normal: std is a finite number above 0"),
        (lambda: nn.init.trunc_normal((2,), b=-3.0), "nothing of the distribution is between a = -2.0 and b = -3.0"),
        (lambda: nn.Linear(2, 2).train("eval"), "train: mode is True or False, not 'eval'"),
        (lambda: nn.Sequential({"a": nn.ReLU()}), "write Sequential(*modules.values())"),
        (
            lambda: optim.SGD(lambda step: "fast").step(m := nn.Linear(1, 1), m(bb.ones((1, 1))).backward()),
            "SGD: lr(0) is a number, not 'fast'",
        ),
    ],
)
def test_invalid_initializers_modes_and_rates_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert words in str(caught.value)


def test_invalid_states_and_labels_are_refused() -> None:
    x, state = bb.ones((5, 2, 3)), bb.zeros((1, 2, 4))
    for given in ((state,), (state, state, state), 3, "xy"):
        with pytest.raises((ArgumentError, DTypeError), match=r"^LSTM: (the initial states are a pair|takes a tensor)"):
            nn.LSTM(3, 4)(x, given)
    for cell in (None, (state, state)):
        with pytest.raises(DTypeError, match=r"^LSTM: takes a tensor"):
            nn.LSTM(3, 4)(x, (state, cell))
    with pytest.raises(DTypeError, match=r"^GRU: takes a tensor, not tuple"):
        nn.GRU(3, 4)(x, (state,))
    with pytest.raises(DTypeError, match=r"^MultiheadAttention: takes a tensor, not str"):
        nn.MultiheadAttention(4, 2)(bb.ones((5, 4)), "key")
    for loss in (nn.functional.cross_entropy, nn.functional.nll_loss):
        with pytest.raises(OutOfRangeError, match=f"^{loss.__name__}: the label -100 .*; ignore_index=-100 leaves"):
            loss(bb.ones((2, 3)), bb.asarray([0, -100]))
        with pytest.raises(OutOfRangeError, match=rf"^{loss.__name__}: the label 7 is none of the 3 classes\."):
            loss(bb.ones((2, 3)), bb.asarray([7, -100]), ignore_index=-100)
        for label in (1.5, "x"):
            with pytest.raises(ArgumentError, match=rf"^{loss.__name__}: ignore_index is an integer"):
                loss(bb.ones((2, 3)), bb.asarray([0, 1]), ignore_index=label)


def test_replacing_a_tensor_by_an_array_or_a_number_is_refused() -> None:
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
    layer.weight = nn.Linear(2, 3)  # a module may replace a tensor, and its tensors are state
    layer.factor = np.ones(3)  # an array that replaces no tensor is a constant
    assert list(layer.state_dict()) == ["weight.weight", "weight.bias"]
