"""Convolutions and their modules, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import functions_agree, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.nn import functional as layers

HALF: Any = 1.5


# ---- convolutions ----

CONVOLUTIONS = [
    ((2, 4, 9), (6, 4, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ((2, 3, 10), (4, 3, 3), {"stride": 3, "padding": 2, "dilation": 2}),
    ((2, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)}),
    ((3, 4, 7, 7), (4, 1, 3, 3), {"padding": "same", "groups": 4}),
    ((2, 3, 7, 8), (4, 3, 2, 2), {"padding": "same", "dilation": 3}),
    ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"stride": (1, 2, 3), "padding": 1}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize(("shape", "window", "options"), CONVOLUTIONS)
def test_convolutions(torch: Any, shape: Any, window: Any, options: dict[str, Any]) -> None:
    theirs = getattr(torch.nn.functional, f"conv{len(shape) - 2}d")
    ours = lambda x, w, b: layers.conv(x, w, b, **options)
    # Both put the larger half of uneven padding at the end.
    functions_agree(
        ours, lambda x, w, b: theirs(x, w, b, **options), normal(*shape), normal(*window), normal(window[0])
    )


TRANSPOSED = [
    ((2, 4, 5), (4, 3, 3), {}),
    ((2, 4, 5), (4, 2, 3), {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2}),
    ((2, 3, 4), (3, 2, 3), {"padding": 3, "dilation": 2}),
    ((2, 3, 4, 3), (3, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((1, 2, 3, 2, 3), (2, 2, 2, 3, 2), {"stride": 2, "padding": (0, 1, 1)}),
    ((2, 3, 4), (3, 2, 3), {"padding": 1, "output_padding": 2, "dilation": 3}),
    ((2, 3, 4, 3), (3, 2, 2, 2), {"stride": 2, "output_padding": (3, 1), "dilation": 4}),
]


def test_a_transposed_convolution_gives_the_bias_where_no_window_reaches() -> None:
    x, weight = bb.asarray([[[1.0, 10.0]]]).require_grad(), bb.asarray([[[1.0, 2.0]]]).require_grad()
    bias = bb.asarray([0.5]).require_grad()
    y = layers.conv_transpose(x, weight, bias, stride=2, output_padding=5)
    assert y.tolist() == [[[1.5, 2.5, 10.5, 20.5, 0.5, 0.5, 0.5, 0.5, 0.5]]]
    gradients = y.backward()
    assert x.grad(gradients).tolist() == [[[3.0, 3.0]]]  # type: ignore[union-attr]
    assert weight.grad(gradients).tolist() == [[[11.0, 11.0]]]  # type: ignore[union-attr]
    assert bias.grad(gradients).tolist() == [9.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(("shape", "window", "options"), TRANSPOSED)
def test_transposed_convolutions(torch: Any, shape: Any, window: Any, options: dict[str, Any]) -> None:
    theirs = getattr(torch.nn.functional, f"conv_transpose{len(shape) - 2}d")
    outputs = window[1] * options.get("groups", 1)
    functions_agree(
        lambda x, w, b: layers.conv_transpose(x, w, b, **options),
        lambda x, w, b: theirs(x, w, b, **options),
        normal(*shape), normal(*window), normal(outputs),
    )  # fmt: skip


@pytest.mark.parametrize("examples", [0, 2])
def test_gradients_of_windows_with_padding_only(examples: int) -> None:
    """An axis of the input is empty, at first and second order."""
    x = bb.ones((examples, 1, 0), dtype="float64")
    weight, bias = bb.ones((3, 1, 2), dtype="float64"), bb.ones((3,), dtype="float64")

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return layers.conv(x, weight, bias, padding=2, stride=2).square().sum()

    for again in (loss, lambda *given: sum(g.sum() for g in bb.grad(loss, argnums=(0, 1, 2))(*given))):
        of_x, of_weight, of_bias = bb.grad(again, argnums=(0, 1, 2))(x, weight, bias)
        assert of_x.shape == x.shape
        assert of_weight.tolist() == np.zeros((3, 1, 2)).tolist()
        assert of_bias.tolist() == [4.0 * examples] * 3


def test_blocks_of_large_convolutions(torch: Any) -> None:
    """Several blocks of examples, and several blocks of one example, in float32."""
    for shape, window in (((40, 8, 40, 40), (4, 8, 3, 3)), ((2, 20, 90, 90), (2, 20, 3, 3))):
        x, w = (normal(*s).astype(np.float32) for s in (shape, window))
        for stride in (1, 2):
            a, b = bb.asarray(x).require_grad(), bb.asarray(w).require_grad()
            c, d = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_()
            got, expected = layers.conv(a, b, stride=stride, padding=1), torch.conv2d(c, d, stride=stride, padding=1)
            np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-3, atol=1e-4)
            gradients = got.square().mean().backward()
            expected.square().mean().backward()
            for ours, theirs in ((a, c), (b, d)):
                np.testing.assert_allclose(ours.grad(gradients).numpy(), theirs.grad.numpy(), rtol=1e-2, atol=1e-5)


def test_padding_of_convolutions() -> None:
    x, w = bb.asarray(normal(1, 2, 5)), bb.asarray(normal(3, 2, 2))
    by_pairs = layers.conv(x, w, padding=((1, 2),))
    padded = layers.conv(bb.pad(x, ((0, 0), (0, 0), (1, 2))), w)
    np.testing.assert_allclose(by_pairs.numpy(), padded.numpy())
    np.testing.assert_allclose(layers.conv(x, w, padding="valid").numpy(), layers.conv(x, w).numpy())
    assert layers.conv(x, w, padding="same").shape == (1, 3, 5)
    assert layers.conv(bb.asarray([[[1, 2]]]), bb.asarray([[[1.0]]], dtype="float64")).dtype is bb.float64


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x, w: layers.conv(x, w[:, :1]),
            ShapeError,
            r"conv: axis 1 of the input has 2 channels.*float64\[1,2,5\]",
        ),
        (
            lambda x, w: layers.conv(x[:, :, :1], w),
            ShapeError,
            "conv: a window that reaches over 2 elements does not fit",
        ),
        (
            lambda x, w: layers.conv(x, w, dilation=5),
            ShapeError,
            "reaches over 6 elements does not fit into axis 2 of 5",
        ),
        (lambda x, w: layers.conv(x, w, padding="full"), ArgumentError, "padding is 'same', 'valid' or"),
        (lambda x, w: layers.conv(x, w, padding="same", stride=2), ArgumentError, "'same' requires stride 1"),
        (lambda x, w: layers.conv(x, w, padding=-1), ArgumentError, "conv: padding is 0 or more"),
        (lambda x, w: layers.conv(x, w, stride=0), ArgumentError, r"stride is 1 or more, not 0.* Operands: float\d+\["),
        (lambda x, w: layers.conv(x, w, stride=(1, 1)), ArgumentError, "stride needs one number for each of 1 spatial"),
        (lambda x, w: layers.conv(x, w, dilation=HALF), ArgumentError, "conv: dilation is an integer"),
        (lambda x, w: layers.conv(x, w, groups=3), ShapeError, "do not form 3 groups"),
        (lambda x, w: layers.conv(x, w, bb.asarray([1.0])), ShapeError, "the bias must have the 3 output channels"),
        (lambda x, w: layers.conv(x[0], w), ShapeError, r"has 3 to 5 axes.*expand_dims"),
        (lambda x, w: layers.conv(x, w[0]), ShapeError, "the weight as many"),
        (lambda x, w: layers.conv(x > 0, w > 0), DTypeError, "conv: takes float tensors, not bool"),
        (lambda x, w: layers.conv_transpose(x, w), ShapeError, "conv_transpose: axis 1 of the input has 2 channels"),
        (
            lambda x, w: layers.conv_transpose(x, bb.ones((2, 1, 2)), output_padding=-1),
            ArgumentError,
            "conv_transpose: output_padding is 0 or more",
        ),
        (
            lambda x, w: layers.conv_transpose(x[:, :, :1], bb.ones((2, 1, 2)), padding=1),
            ShapeError,
            "nothing of axis 2 of 1 is left",
        ),
    ],
)
def test_invalid_convolutions_are_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(bb.asarray(normal(1, 2, 5)), bb.asarray(normal(3, 2, 2)))


def test_deformable_convolution_without_deformation_is_a_convolution() -> None:
    x, w, b = bb.asarray(normal(2, 4, 5, 6)), bb.asarray(normal(6, 2, 3, 3)), bb.asarray(normal(6))
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    plain = layers.conv(x, w, b, **options)
    offset = bb.zeros((2, 18, *plain.shape[2:]), dtype=bb.float64)
    np.testing.assert_allclose(layers.deform_conv2d(x, offset, w, b, **options).numpy(), plain.numpy(), atol=1e-12)
    with pytest.raises(ShapeError, match=r"deform_conv2d: the offset must have the shape"):
        layers.deform_conv2d(x, offset[:, :10], w, **options)


# ---- modules ----


def copied(theirs: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Return a torch module's parameters under our names; values of ``names`` are torch's names or functions of it."""
    found = {}
    for ours, source in names.items():
        value = getattr(theirs, source) if isinstance(source, str) else source(theirs)
        found[ours] = value.detach().numpy()
    return found


@pytest.mark.parametrize("name", [f"Conv{kind}{rank}d" for kind in ("", "Transpose") for rank in (1, 2, 3)])
def test_convolution_modules(torch: Any, name: str) -> None:
    rank = int(name[-2])
    ours, theirs = getattr(nn, name)(4, 6, 3, stride=2, padding=1, groups=2), getattr(torch.nn, name)
    theirs = theirs(4, 6, 3, stride=2, padding=1, groups=2)
    ours.load_state_dict(copied(theirs, {"weight": "weight", "bias": "bias"}))
    x = normal(2, 4, *(7,) * rank).astype(np.float32)
    got, expected = ours(bb.asarray(x)), theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)
    bound = theirs.weight.abs().max().item()
    assert 0.5 * bound < abs(getattr(nn, name)(4, 6, 3, groups=2).weight.numpy()).max() < 2 * bound
    with pytest.raises(ShapeError, match=rf"{name}: the input .* has {rank + 2} axes"):
        ours(bb.asarray(x[0]))
    with pytest.raises(ArgumentError, match=f"{name}: 4 and 6 channels do not form 4 equal groups"):
        getattr(nn, name)(4, 6, 3, groups=4)
