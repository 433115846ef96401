"""Convolutions, pooling, resampling, recurrent cells and attention of tensors, and their modules, against torch."""

from __future__ import annotations

import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, AxisError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn import functional as layers

GENERATOR = np.random.default_rng(0)
HALF: Any = 1.5


def normal(*shape: int) -> Any:
    return GENERATOR.normal(size=shape)


def agrees(ours: Any, theirs: Any, *arrays: Any) -> None:
    """Values and gradients of two functions of float64 arrays, for a fixed uneven cotangent."""
    import torch

    x = [bb.asarray(a, dtype="float64").require_grad() for a in arrays]
    y = [torch.from_numpy(np.array(a, np.float64)).requires_grad_() for a in arrays]
    got, expected = ours(*x), theirs(*y)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-10)
    weight = np.cos(np.arange(got.size, dtype=np.float64)).reshape(got.shape)
    gradients = (got * bb.asarray(weight)).sum().backward()
    (expected * torch.from_numpy(weight)).sum().backward()
    for a, b in zip(x, y, strict=True):
        gradient = a.grad(gradients)
        assert gradient is not None
        assert b.grad is not None
        np.testing.assert_allclose(gradient.numpy(), b.grad.numpy(), rtol=1e-7, atol=1e-9)


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
    # Where the padding is uneven, both pad the end more.
    agrees(ours, lambda x, w, b: theirs(x, w, b, **options), normal(*shape), normal(*window), normal(window[0]))


TRANSPOSED = [
    ((2, 4, 5), (4, 3, 3), {}),
    ((2, 4, 5), (4, 2, 3), {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2}),
    ((2, 3, 4), (3, 2, 3), {"padding": 3, "dilation": 2}),
    ((2, 3, 4, 3), (3, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((1, 2, 3, 2, 3), (2, 2, 2, 3, 2), {"stride": 2, "padding": (0, 1, 1)}),
    ((2, 3, 4), (3, 2, 3), {"padding": 1, "output_padding": 2, "dilation": 3}),
    ((2, 3, 4, 3), (3, 2, 2, 2), {"stride": 2, "output_padding": (3, 1), "dilation": 4}),
]


def test_a_transposed_convolution_has_the_bias_alone_where_no_window_reaches() -> None:
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
    agrees(
        lambda x, w, b: layers.conv_transpose(x, w, b, **options),
        lambda x, w, b: theirs(x, w, b, **options),
        normal(*shape), normal(*window), normal(outputs),
    )  # fmt: skip


@pytest.mark.parametrize("examples", [0, 2])
def test_gradients_of_windows_of_the_padding_alone(examples: int) -> None:
    """Where an axis of the input is empty, and at second order, where such a gradient is differentiated."""
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
        (lambda x, w: layers.conv(x, w, padding="same", stride=2), ArgumentError, "keeps the number of places"),
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
def test_convolutions_that_are_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(bb.asarray(normal(1, 2, 5)), bb.asarray(normal(3, 2, 2)))


# ---- pooling ----

POOLS = [
    ((2, 3, 9), 3, {}),
    ((2, 3, 9), 3, {"stride": 2, "padding": 1}),
    ((2, 3, 10), 3, {"stride": 4, "ceil_mode": True}),
    ((1, 2, 7, 8), (2, 3), {"stride": (2, 1), "padding": (1, 0)}),
    ((1, 2, 7, 8), (4, 3), {"stride": 3, "padding": (2, 1), "ceil_mode": True}),
    ((1, 2, 5, 4, 5), 2, {"stride": (1, 2, 3)}),
]


@pytest.mark.parametrize(("shape", "size", "options"), POOLS)
def test_pools(torch: Any, shape: Any, size: Any, options: dict[str, Any]) -> None:
    rank, x = len(shape) - 2, normal(*shape)
    largest = getattr(torch.nn.functional, f"max_pool{rank}d")
    agrees(lambda x: layers.max_pool(x, size, **options), lambda x: largest(x, size, **options), x)
    indices = layers.max_pool_with_indices(bb.asarray(x), size, **options)[1]
    np.testing.assert_array_equal(
        indices.numpy(), largest(torch.from_numpy(x), size, return_indices=True, **options)[1].numpy()
    )
    mean = getattr(torch.nn.functional, f"avg_pool{rank}d")
    for include in (True, False):
        more = {**options, "count_include_pad": include}
        agrees(lambda x, o=more: layers.avg_pool(x, size, **o), lambda x, o=more: mean(x, size, **o), x)


@pytest.mark.parametrize(("shape", "size", "options"), [case for case in POOLS if len(case[0]) > 3])
def test_sums_of_windows_over_a_number(torch: Any, shape: Any, size: Any, options: dict[str, Any]) -> None:
    theirs = getattr(torch.nn.functional, f"avg_pool{len(shape) - 2}d")
    for more in ({"divisor_override": 3}, {"divisor_override": -2, "count_include_pad": False}):
        o: dict[str, Any] = {**options, **more}
        agrees(lambda x, o=o: layers.avg_pool(x, size, **o), lambda x, o=o: theirs(x, size, **o), normal(*shape))
    layer = getattr(bb.nn, f"AvgPool{len(shape) - 2}d")(size, **options, divisor_override=1)
    x = bb.asarray(normal(*shape))
    np.testing.assert_array_equal(
        layer(x).numpy(), layers.avg_pool(x, size, **options, divisor_override=1.0).numpy(), strict=True
    )
    bb.check_grads(layer, (x,), order=2)


def test_divisors_that_are_none() -> None:
    x = bb.ones((1, 1, 4))
    sums = layers.avg_pool(x.astype("float16") * 5000.0, 3, divisor_override=0.5, ceil_mode=True)
    assert sums.tolist() == [[[30000.0, 10000.0]]]
    for divisor in (0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match=r"avg_pool: divisor_override is a number other than 0, .*32\[1,1,4\]"):
            layers.avg_pool(x, 2, divisor_override=divisor)
    with pytest.raises(ShapeError, match=r"avg_pool: a window .*does not fit into axis 2 of 4.*: .*32\[1,1,4\]"):
        layers.avg_pool(x, 5, divisor_override=1)
    with pytest.raises(ArgumentError, match="AvgPool1d: divisor_override is a number, not 'two'"):
        bb.nn.AvgPool1d(2, divisor_override="two")  # type: ignore[arg-type]


def test_dilated_pools_and_ties(torch: Any) -> None:
    x = np.round(normal(2, 2, 9, 10))
    options: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": (2, 3)}
    theirs = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, return_indices=True, **options)
    ours = layers.max_pool_with_indices(bb.asarray(x), 3, **options)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(("shape", "size"), [((2, 3, 10), 4), ((1, 2, 7, 5), (3, 2)), ((1, 2, 3, 4, 5), (2, 4, 3))])
def test_adaptive_pools(torch: Any, shape: Any, size: Any) -> None:
    rank, x = len(shape) - 2, normal(*shape)
    mean = getattr(torch.nn.functional, f"adaptive_avg_pool{rank}d")
    agrees(lambda x: layers.adaptive_avg_pool(x, size), lambda x: mean(x, size), x)
    largest = getattr(torch.nn.functional, f"adaptive_max_pool{rank}d")
    agrees(lambda x: layers.adaptive_max_pool(x, size), lambda x: largest(x, size), x)
    indices = layers.adaptive_max_pool_with_indices(bb.asarray(x), size)[1]
    np.testing.assert_array_equal(indices.numpy(), largest(torch.from_numpy(x), size, return_indices=True)[1].numpy())


def test_pools_that_are_refused() -> None:
    x = bb.asarray(normal(1, 1, 4))
    with pytest.raises(ShapeError, match=r"max_pool: a window that reaches over 5 elements .*float64\[1,1,4\]"):
        layers.max_pool(x, 5)
    with pytest.raises(ArgumentError, match="max_pool: padding is at most half the window"):
        layers.max_pool(x, 2, padding=2)
    with pytest.raises(ShapeError, match="lies in the padding alone"):
        layers.max_pool(x[:, :, :1], 2, padding=1, dilation=2)
    with pytest.raises(ArgumentError, match="avg_pool: size is 1 or more"):
        layers.avg_pool(x, 0)
    with pytest.raises(ArgumentError, match="adaptive_avg_pool: size needs one number"):
        layers.adaptive_avg_pool(x, (1, 2))
    with pytest.raises(ShapeError, match="there is nothing to pool"):
        layers.adaptive_max_pool(x[:, :, :0], 1)


# ---- resampling ----


@pytest.mark.parametrize(
    ("mode", "align", "shape", "size"),
    [
        ("nearest", False, (2, 3, 7), (5,)),
        ("nearest-exact", False, (2, 3, 7), (10,)),
        ("linear", False, (2, 3, 7), (4,)),
        ("linear", True, (2, 3, 7), (12,)),
        ("linear", False, (1, 2, 5, 7), (8, 3)),
        ("linear", True, (1, 2, 3, 4, 5), (5, 2, 7)),
        ("cubic", False, (1, 2, 5, 7), (8, 3)),
        ("cubic", True, (1, 2, 5, 7), (3, 9)),
    ],
)
def test_interpolation(torch: Any, mode: str, align: bool, shape: Any, size: Any) -> None:
    names = {("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    theirs: dict[str, Any] = {"mode": names.get((mode, len(shape)), mode)}
    if not mode.startswith("nearest"):
        theirs["align_corners"] = align
    agrees(
        lambda x: layers.interpolate(x, size, mode=mode, align_corners=align),
        lambda x: torch.nn.functional.interpolate(x, size, **theirs),
        normal(*shape),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "scale"), [((2, 3, 5, 7), 1.3), ((1, 2, 6, 5), (0.6, 1.9)), ((1, 1, 5, 4), (2, 0.7))]
)
def test_places_lie_by_a_scale(torch: Any, mode: str, shape: Any, scale: Any) -> None:
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    agrees(
        lambda x: layers.interpolate(x, scale=scale, mode=mode),
        lambda x: torch.nn.functional.interpolate(x, scale_factor=scale, mode=name),
        normal(*shape),
    )
    bb.check_grads(lambda x: nn.Upsample(scale=scale, mode=mode)(x).square(), (bb.asarray(normal(*shape)),), order=2)


def test_a_scale_that_gives_whole_numbers_of_places_is_that_of_the_lengths() -> None:
    x = bb.asarray(normal(1, 2, 9))
    for mode in ("nearest", "linear", "lanczos3"):
        by_scale = layers.interpolate(x, scale=1 / 3, mode=mode)
        np.testing.assert_array_equal(by_scale.numpy(), layers.interpolate(x, 3, mode=mode).numpy(), strict=True)
        by_scale = layers.interpolate(x, scale=1.3, mode=mode, align_corners=mode == "linear")
        assert by_scale.shape == (1, 2, 11)
    sums = layers.interpolate(bb.ones((1, 1, 9), dtype="float16"), scale=1.3, mode="lanczos3")
    assert sums.dtype is bb.float16
    np.testing.assert_allclose(sums.numpy(), 1.0)
    with pytest.raises(ArgumentError, match=r"interpolate: .*'bilinear'"):
        layers.interpolate(x, scale=1.3, mode="bilinear")


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 3, 4, 3)])
def test_grid_sample(torch: Any, padding: str, align: bool, shape: Any) -> None:
    grid = GENERATOR.uniform(-1.9, 1.9, (shape[0], *(3,) * (len(shape) - 2), len(shape) - 2))
    sample = torch.nn.functional.grid_sample
    agrees(
        lambda x, g: layers.grid_sample(x, g, padding=padding, align_corners=align),
        lambda x, g: sample(x, g, mode="bilinear", padding_mode=padding, align_corners=align),
        normal(*shape), grid,
    )  # fmt: skip
    got = layers.grid_sample(bb.asarray(np.ones(shape)), bb.asarray(grid), mode="nearest", padding=padding).numpy()
    theirs = sample(torch.ones(shape, dtype=torch.float64), torch.from_numpy(grid), "nearest", padding, False).numpy()
    np.testing.assert_array_equal(got, theirs)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 2, 3), (1, 2, 3, 2, 4)])
def test_affine_grid(torch: Any, align: bool, shape: Any) -> None:
    """As torch's, which wants two or three axes."""
    axes = len(shape) - 2
    agrees(
        lambda maps: layers.affine_grid(maps, shape, align_corners=align),
        lambda maps: torch.nn.functional.affine_grid(maps, shape, align_corners=align),
        normal(shape[0], axes, axes + 1),
    )


def test_affine_grid_of_one_axis_and_others() -> None:
    x = bb.asarray([[[1.0, 2.0, 4.0]]])
    ahead = bb.asarray([[[1.0, 2 / 3]]])
    assert layers.grid_sample(x, layers.affine_grid(ahead, x.shape)).numpy().round(6).tolist() == [[[2.0, 4.0, 0.0]]]
    for align in (False, True):  # one place lies in the middle
        assert layers.affine_grid(bb.asarray([[[1.0, 0.25]]]), (1, 1, 1), align_corners=align).tolist() == [[[0.25]]]
    assert layers.affine_grid(bb.ones((2, 2, 3)), (2, 1, 0, 3)).shape == (2, 0, 3, 2)
    half = layers.affine_grid(bb.asarray([[[1.0, 0.0]]], dtype="float16"), (1, 1, 2))
    assert (half.dtype, half.tolist()) == (bb.float16, [[[-0.5], [0.5]]])
    for shape, fault in (((1, 1), "three axes or more"), ((2, 1, 3), r"\[2, 1, 2\]"), ((1, 1, 3, 3), r"\[1, 2, 3\]")):
        with pytest.raises(ShapeError, match=rf"affine_grid: .*{fault}.*float32\[1,1,2\]"):
            layers.affine_grid(ahead, shape)
    with pytest.raises(ShapeError, match="affine_grid: a length"):
        layers.affine_grid(ahead, (1, 1, -3))


def test_unfold_and_fold(torch: Any) -> None:
    options: dict[str, Any] = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    x = normal(2, 3, 6, 7)
    agrees(lambda x: layers.unfold(x, (3, 2), **options), lambda x: torch.nn.functional.unfold(x, (3, 2), **options), x)
    columns = layers.unfold(bb.asarray(x), (3, 2), **options).numpy()
    agrees(
        lambda x: layers.fold(x, (6, 7), (3, 2), **options),
        lambda x: torch.nn.functional.fold(x, (6, 7), (3, 2), **options),
        columns,
    )


def test_deformable_convolution_without_deformation_is_a_convolution() -> None:
    x, w, b = bb.asarray(normal(2, 4, 5, 6)), bb.asarray(normal(6, 2, 3, 3)), bb.asarray(normal(6))
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    plain = layers.conv(x, w, b, **options)
    offset = bb.zeros((2, 18, *plain.shape[2:]), dtype=bb.float64)
    np.testing.assert_allclose(
        layers.deform_conv2d(x, offset, w, None, b, **options).numpy(), plain.numpy(), atol=1e-12
    )
    with pytest.raises(ShapeError, match=r"deform_conv2d: the offset must have the shape"):
        layers.deform_conv2d(x, offset[:, :10], w, **options)


def test_resampling_that_is_refused() -> None:
    x = bb.asarray(normal(1, 1, 4))
    for options, error, words in (
        ({}, ArgumentError, "either size or scale"),
        ({"size": 3, "mode": "bilinear"}, ArgumentError, "the mode .* more 'linear' is that"),
        ({"size": 3, "align_corners": True}, ArgumentError, "align_corners has no meaning"),
        ({"scale": (1, 2)}, ArgumentError, "scale needs one number"),
        ({"scale": 0.1}, ArgumentError, "a scale of 0.1 makes no number of places of 4"),
    ):
        with pytest.raises(error, match=rf"interpolate: {words}"):
            layers.interpolate(x, **options)
    with pytest.raises(ShapeError, match=r"grid_sample: the grid .* float64\[1,3\]"):
        layers.grid_sample(x, bb.asarray(normal(1, 3)))
    with pytest.raises(ArgumentError, match="grid_sample: the padding is one of"):
        layers.grid_sample(x, bb.asarray(normal(1, 3, 1)), padding="wrap")
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match=rf"interpolate: a scale of {scale} .*Operand: float64\["):
            layers.interpolate(x, scale=scale)


def test_grid_sample_reads_zeros_far_outside_of_infinite_edges() -> None:
    x = bb.full((2, 3, 1, 2), math.inf)
    far = bb.asarray([[9.0, 9.0], [-9.0, 0.0], [1e30, -1e30], [math.inf, -math.inf]])
    grid = bb.broadcast_to(far, (2, 1, 4, 2)).require_grad()
    for mode in ("linear", "nearest"):
        found = layers.grid_sample(x, grid, mode=mode)
        assert found.tolist() == bb.zeros((2, 3, 1, 4)).tolist()
    gradient = grid.grad(layers.grid_sample(x, grid).sum().backward())
    assert gradient is not None
    assert gradient.tolist() == bb.zeros((2, 1, 4, 2)).tolist()


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_positions_that_are_nan_give_nan(mode: str, padding: str) -> None:
    x, grid = bb.ones((1, 1, 2, 3)), bb.asarray([[[[float("nan"), 0.0], [0.0, float("nan")], [0.0, 0.0]]]])
    assert bb.isnan(layers.grid_sample(x, grid, mode=mode, padding=padding)).tolist() == [[[[True, True, False]]]]
    x = x.require_grad()
    found = layers.grid_sample(x, grid, mode=mode, padding=padding)
    reached = x.grad(bb.where(bb.isnan(found), 0.0, found).sum().backward())
    assert reached is not None
    assert bb.isfinite(reached).all()
    moves = bb.where(bb.arange(2).reshape((1, 2, 1, 1)) == 1, float("nan"), bb.zeros((1, 2, 2, 3)))
    assert bb.isnan(layers.deform_conv2d(x, moves, bb.ones((1, 1, 1, 1)))).all()
    with pytest.raises(ShapeError, match=r"fold: .* is not"):
        layers.fold(x, (4,), 2)


# ---- embedding and scans ----


def test_embedding(torch: Any) -> None:
    ids = GENERATOR.integers(0, 7, (4, 5))
    table = normal(7, 3)
    for padding in (None, 2, -1):
        agrees(
            lambda w, p=padding: layers.embedding(bb.asarray(ids), w, p),
            lambda w, p=padding: torch.nn.functional.embedding(torch.from_numpy(ids), w, padding_idx=p),
            table,
        )
    with pytest.raises(OutOfRangeError, match=r"embedding: .*float64\[7,3\]"):
        layers.embedding(bb.asarray([7]), bb.asarray(table))
    with pytest.raises(OutOfRangeError, match="padding_idx 7 names none of the 7 rows"):
        layers.embedding(bb.asarray([1]), bb.asarray(table), 7)
    with pytest.raises(ShapeError, match=r"embedding: a weight has rows, .*int64\[1\].*float32\[\]"):
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


# ---- modules ----


def copied(theirs: Any, names: dict[str, Any]) -> dict[str, Any]:
    """A torch module's parameters under our names; each value is a name there, or a function of the module."""
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
    with pytest.raises(ArgumentError, match=f"{name}: 4 inputs and 6 outputs do not form 4 equal groups"):
        getattr(nn, name)(4, 6, 3, groups=4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling_modules(torch: Any, rank: int) -> None:
    x = normal(2, 3, *(7,) * rank).astype(np.float32)
    pools = ((f"MaxPool{rank}d", (3, 2, 1)), (f"AvgPool{rank}d", (2,)), (f"AdaptiveAvgPool{rank}d", (3,)))
    for name, arguments in pools:
        got = getattr(nn, name)(*arguments)(bb.asarray(x)).numpy()
        expected = getattr(torch.nn, name)(*arguments)(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(ShapeError, match=f"{name}: the input"):
            getattr(nn, name)(*arguments)(bb.asarray(x[0, 0]))
    assert nn.Upsample(scale=2, mode="linear")(bb.asarray(x)).shape == (2, 3, *(14,) * rank)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_modules(torch: Any, name: str, bidirectional: bool) -> None:
    theirs = getattr(torch.nn, name)(3, 4, num_layers=2, bidirectional=bidirectional)
    ours = getattr(nn, name)(3, 4, layers=2, bidirectional=bidirectional)
    state = {}
    for index in range(len(ours.layers)):
        layer, backwards = divmod(index, 2 if bidirectional else 1)
        end = f"l{layer}" + ("_reverse" if backwards else "")
        pairs = (
            ("input_weight", "weight_ih_"),
            ("weight", "weight_hh_"),
            ("input_bias", "bias_ih_"),
            ("bias", "bias_hh_"),
        )
        for place, source in pairs:
            state[f"layers.{index}.{place}"] = getattr(theirs, source + end).detach().numpy().T
    ours.load_state_dict(state)
    x = normal(5, 2, 3).astype(np.float32)
    first = normal(len(ours.layers), 2, 4).astype(np.float32)
    count = 2 if name == "LSTM" else 1
    mine = (bb.asarray(first),) * count if count > 1 else bb.asarray(first)
    other = (torch.from_numpy(first),) * count if count > 1 else torch.from_numpy(first)
    got, last = ours(bb.asarray(x), mine)
    expected, after = theirs(torch.from_numpy(x), other)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for a, b in zip(last if count > 1 else [last], after if count > 1 else [after], strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)
    gradients = got.square().sum().backward()
    expected.square().sum().backward()
    gradient = ours.layers[0].weight.grad(gradients)
    np.testing.assert_allclose(gradient.numpy(), theirs.weight_hh_l0.grad.numpy().T, rtol=1e-3, atol=1e-5)
    turned = getattr(nn, name)(3, 4, batch_first=True)(bb.asarray(x.swapaxes(0, 1)))[0]
    assert turned.shape == (2, 5, 4)
    with pytest.raises(ShapeError, match=f"{name}: the input has the shape"):
        ours(bb.asarray(x[..., :2]))
    with pytest.raises(ShapeError, match=f"{name}: a first state has the shape"):
        ours(bb.asarray(x), (mine[0][:1],) * 2 if count > 1 else mine[:1])


@pytest.mark.parametrize("bias", [True, False])
def test_gru_that_resets_before_its_product(bias: bool) -> None:
    def logistic(x: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-x))

    layer = nn.GRU(3, 4, bias=bias, reset_after=False)
    x, h = normal(5, 2, 3).astype(np.float32), np.zeros((2, 4))
    cell, state = nn.GRUCell(3, 4, bias, reset_after=False), None
    cell.load_state_dict({name.removeprefix("layers.0."): value for name, value in layer.state_dict().items()})
    w, u, b, c = (np.zeros(12) if p is None else p.numpy() for p in (
        layer.layers[0].input_weight, layer.layers[0].weight, layer.layers[0].input_bias, layer.layers[0].bias,
    ))  # fmt: skip
    outputs, last = layer(bb.asarray(x))
    for step, of_layer in zip(x, outputs.numpy(), strict=True):
        gates = logistic((step @ w + b + h @ u + c)[:, :8])
        new = np.tanh((step @ w + b)[:, 8:] + (gates[:, :4] * h) @ u[:, 8:] + c[8:])
        h = (1.0 - gates[:, 4:]) * new + gates[:, 4:] * h
        state = cell(bb.asarray(step), state)
        np.testing.assert_allclose(of_layer, h, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.numpy(), h, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last.numpy()[0], outputs.numpy()[-1])
    gradients = last.square().sum().backward()
    assert all(gradient.abs().max().item() > 0 for gradient in bb.optim.named_gradients(layer, gradients).values())
    with pytest.raises(ArgumentError, match="GRU: reset_after is True or False, not 1"):
        nn.GRU(3, 4, reset_after=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "more"), [("LSTMCell", ()), ("GRUCell", ()), ("RNNCell", ()), ("RNNCell", ("relu",))])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_cells(torch: Any, name: str, more: tuple[str, ...], bias: bool) -> None:
    theirs = getattr(torch.nn, name)(3, 4, bias, *more)
    ours = getattr(nn, name)(3, 4, bias, *more)
    ends = {"input_weight": "weight_ih", "weight": "weight_hh", "input_bias": "bias_ih", "bias": "bias_hh"}
    given = {n: end for n, end in ends.items() if bias or not n.endswith("bias")}
    ours.load_state_dict({n: getattr(theirs, end).detach().numpy().T for n, end in given.items()})
    steps = normal(3, 2, 3).astype(np.float32)
    mine: Any = None
    other: Any = None
    for x in steps:
        mine, other = ours(bb.asarray(x), mine), theirs(torch.from_numpy(x), other)
        for a, b in zip(*((s if name == "LSTMCell" else [s]) for s in (mine, other)), strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-6)
    last, expected = (s[0] if name == "LSTMCell" else s for s in (mine, other))
    gradients = last.square().sum().backward()
    expected.square().sum().backward()
    for place in ("input_weight", "weight"):
        gradient = getattr(ours, place).grad(gradients).numpy()
        np.testing.assert_allclose(gradient, getattr(theirs, ends[place]).grad.numpy().T, rtol=1e-3, atol=1e-6)
    with pytest.raises(ShapeError, match=f"{name}: the input has the shape"):
        ours(bb.asarray(steps))
    if name == "LSTMCell":
        with pytest.raises(ArgumentError, match="the states are two"):
            ours(bb.asarray(x), last)
    wrong = bb.zeros((3, 4))
    with pytest.raises(ShapeError, match=f"{name}: a state has the shape"):
        ours(bb.asarray(x), (wrong, wrong) if name == "LSTMCell" else wrong)


def test_attention(torch: Any) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 2)
    mask = GENERATOR.uniform(size=(2, 1, 5, 6)) > 0.3
    mask[..., 0] = True
    ours = layers.scaled_dot_product_attention
    agrees(ours, attend, q, k, v)
    agrees(lambda q, k, v: ours(q, k, v, causal=True), lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    agrees(
        lambda q, k, v: ours(q, k, v, bb.asarray(mask), scale=0.3),
        lambda q, k, v: attend(q, k, v, torch.from_numpy(mask), scale=0.3),
        q, k, v,
    )  # fmt: skip
    agrees(lambda q, k, v, m: ours(q, k, v, m), attend, q, k, v, normal(2, 1, 5, 6))
    nothing = ours(bb.asarray(q), bb.asarray(k), bb.asarray(v), bb.asarray(np.zeros((5, 6), bool)))
    assert not nothing.numpy().any()


@pytest.mark.parametrize(
    ("fronts", "mask", "grouped"),
    [
        (((2, 3), (1, 3), (3,)), None, False),
        (((2, 3), (), (2, 1)), (2, 1, 5, 6), False),
        (((2, 6), (2, 2), (2, 2)), None, True),
        (((2, 6), (2, 2), (2, 2)), (1, 6), True),
        (((2, 6), (2, 1), (2, 1)), (2, 1, 1, 6), True),
        (((2, 6), (2, 3), (2, 3)), (2, 6, 5, 6), True),
        (((2, 6), (2, 6), (2, 6)), (5, 6), True),
    ],
)
def test_attention_of_heads_that_are_shared(torch: Any, fronts: Any, mask: Any, grouped: bool) -> None:
    q, k, v = (normal(*front, *last) for front, last in zip(fronts, ((5, 4), (6, 4), (6, 2)), strict=True))
    attend, ours = torch.nn.functional.scaled_dot_product_attention, layers.scaled_dot_product_attention
    if mask is None:
        agrees(
            lambda *of: ours(*of, causal=True, enable_gqa=grouped),
            lambda *of: attend(*of, is_causal=True, enable_gqa=grouped), q, k, v,
        )  # fmt: skip
        return
    seen = GENERATOR.uniform(size=mask) > 0.3
    seen[..., 0] = True
    agrees(
        lambda *of: ours(*of, bb.asarray(seen), enable_gqa=grouped),
        lambda *of: attend(*of, torch.from_numpy(seen), enable_gqa=grouped), q, k, v,
    )  # fmt: skip
    agrees(
        lambda *of: ours(*of, enable_gqa=grouped), lambda *of: attend(*of, enable_gqa=grouped), q, k, v, normal(*mask)
    )


@pytest.mark.parametrize(
    ("shapes", "grouped", "words"),
    [
        (
            ((3, 2, 4), (2, 2, 4), (2, 2, 4)),
            False,
            "leading axes do not broadcast: cannot broadcast: axis -3 is 3 and 2",
        ),
        (((3, 2, 4), (2, 2, 4), (2, 2, 4)), True, "heads of the queries are a multiple: 3, 2 and 2"),
        (((4, 2, 4), (2, 2, 4), (4, 2, 4)), True, "heads of the queries are a multiple: 4, 2 and 4"),
        (((2, 4), (2, 4), (2, 4)), True, "enable_gqa is for operands with an axis of heads"),
    ],
)
def test_heads_that_cannot_be_shared(shapes: Any, grouped: bool, words: str) -> None:
    with pytest.raises(ShapeError, match=f"scaled_dot_product_attention: .*{words}"):
        layers.scaled_dot_product_attention(
            bb.zeros(shapes[0]), bb.zeros(shapes[1]), bb.zeros(shapes[2]), enable_gqa=grouped
        )


def test_long_attention_in_float32(torch: Any) -> None:
    """Many blocks of queries, in both directions."""
    q, k, v = (normal(1, 2, 700, 8).astype(np.float32) for _ in range(3))
    x = [bb.asarray(a).require_grad() for a in (q, k, v)]
    y = [torch.from_numpy(a).requires_grad_() for a in (q, k, v)]
    got = layers.scaled_dot_product_attention(*x, causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(*y, is_causal=True)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-3, atol=1e-5)
    gradients = got.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(x, y, strict=True):
        np.testing.assert_allclose(a.grad(gradients).numpy(), b.grad.numpy(), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("grouped", [False, True])
def test_capped_scores_of_attention(torch: Any, grouped: bool) -> None:
    q, k, v = normal(2, 4, 5, 4), normal(2, 2 if grouped else 4, 6, 4), normal(2, 2 if grouped else 4, 6, 3)
    seen, bias = GENERATOR.uniform(size=(2, 1, 5, 6)) > 0.3, normal(5, 6)

    def capped(q: Any, k: Any, v: Any, mask: Any) -> Any:
        if grouped:
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        scores = 1.5 * torch.tanh(0.3 / 1.5 * q @ k.mT)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        return torch.softmax(scores, -1).nan_to_num() @ v

    def ours(*of: Any) -> Any:
        return layers.scaled_dot_product_attention(*of, scale=0.3, softcap=1.5, enable_gqa=grouped)

    agrees(
        lambda q, k, v: ours(q, k, v, bb.asarray(seen)),
        lambda q, k, v: capped(q, k, v, torch.from_numpy(seen)), q, k, v,
    )  # fmt: skip
    agrees(ours, capped, q, k, v, bias)


def test_a_cap_of_scores_is_a_positive_number() -> None:
    x = bb.ones((2, 3, 4))
    for cap in (0, -1.0, math.inf, math.nan, True):
        with pytest.raises(ArgumentError, match="scaled_dot_product_attention: softcap is a finite number above 0"):
            layers.scaled_dot_product_attention(x, x, x, softcap=cap)
        with pytest.raises(ArgumentError, match="MultiHeadAttention: softcap is a finite number above 0"):
            nn.MultiHeadAttention(4, 2, softcap=cap)


def test_a_layer_caps_its_scores() -> None:
    bb.random.seed(0)
    x = bb.random.normal((2, 5, 8)) * 5.0
    free, capped = (nn.MultiHeadAttention(8, 2, softcap=cap) for cap in (None, 1e-6))
    capped.load_state_dict(free.state_dict())
    even = capped(x)  # all scores are nearly equal
    np.testing.assert_allclose(even.numpy(), np.broadcast_to(even.mean(1, keepdims=True).numpy(), x.shape), atol=1e-4)
    assert not free(x).allclose(even, atol=1e-2)


def test_long_capped_attention_in_float32() -> None:
    """Many blocks of queries agree with the operation's body in float64, in both directions."""
    q, k, v, grad = (normal(1, 2, 700, 8) for _ in range(4))
    found: list[Any] = []
    expected: list[Any] = []
    for x, results in (((q, k, v), expected), (tuple(a.astype(np.float32) for a in (q, k, v)), found)):
        y, back = bb.vjp(
            lambda *of: layers.scaled_dot_product_attention(*of, causal=True, softcap=2.0), *map(bb.asarray, x)
        )
        results += [y, *back(bb.asarray(grad, dtype=y.dtype))]
    scores = 2.0 * np.tanh(q @ np.swapaxes(k, -1, -2) / np.sqrt(8) / 2.0)
    powers = np.exp(scores) * np.tri(700)
    np.testing.assert_allclose(expected[0].numpy(), powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_dropout_of_attention() -> None:
    bb.random.seed(0)
    q, k = bb.zeros((4, 50, 2)), bb.zeros((4, 200, 2))
    out = layers.scaled_dot_product_attention(q, k, bb.ones((4, 200, 1)), dropout=0.25).numpy()
    assert 0.98 < out.mean() < 1.02
    assert out.std() > 0.01
    np.testing.assert_allclose(out * 200 * 0.75, np.round(out * 200 * 0.75), atol=1e-3)
    with pytest.raises(ArgumentError, match="dropout is a probability"):
        layers.scaled_dot_product_attention(q, k, k, dropout=1.5)
    with pytest.raises(DTypeError, match=r"a mask is of truth values .* or of floats"):
        layers.scaled_dot_product_attention(q, k, k, bb.ones((200,), dtype="int64"))
    with pytest.raises(ShapeError, match="scaled_dot_product_attention: there are 200 keys and 100 values"):
        layers.scaled_dot_product_attention(q, k, k[:, :100])


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_transformer_layer(torch: Any, pre_norm: bool, activation: str) -> None:
    active = partial(torch.nn.functional.gelu, approximate="tanh") if activation == "gelu_tanh" else activation
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=active, norm_first=pre_norm, batch_first=True
    )
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, pre_norm=pre_norm)
    joint, bias = theirs.self_attn.in_proj_weight.detach().numpy(), theirs.self_attn.in_proj_bias.detach().numpy()
    state = {}
    for index, part in enumerate(("query", "key", "value")):
        state[f"attention.{part}.weight"] = joint[8 * index : 8 * index + 8].T
        state[f"attention.{part}.bias"] = bias[8 * index : 8 * index + 8] + index * 0.1
    theirs.self_attn.in_proj_bias.data = torch.from_numpy(np.concatenate([state[f"attention.{p}.bias"] for p in (
        "query", "key", "value")]))  # fmt: skip
    linears = (("attention.output", theirs.self_attn.out_proj), ("first", theirs.linear1), ("second", theirs.linear2))
    for place, other in linears:
        state[f"{place}.weight"] = other.weight.detach().numpy().T
        state[f"{place}.bias"] = other.bias.detach().numpy()
    for place, other in (("attention_norm", theirs.norm1), ("feedforward_norm", theirs.norm2)):
        state[f"{place}.weight"] = other.weight.detach().numpy()
        state[f"{place}.bias"] = other.bias.detach().numpy()
    ours.load_state_dict(state)
    x = normal(3, 5, 8).astype(np.float32)
    np.testing.assert_allclose(
        ours(bb.asarray(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    later = np.triu(np.full((5, 5), -math.inf, np.float32), 1)
    expected = theirs(torch.from_numpy(x), src_mask=torch.from_numpy(later)).detach().numpy()
    np.testing.assert_allclose(ours(bb.asarray(x), causal=True).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_cells_that_are_refused() -> None:
    x, h, w = bb.zeros((2, 12)), bb.zeros((2, 3)), bb.zeros((3, 12))
    with pytest.raises(ShapeError, match=r"lstm_cell: the bias must have the shape \[12\]"):
        layers.lstm_cell(x, h, h, w, bb.zeros((1,)))
    with pytest.raises(ShapeError, match=r"lstm_cell: the projected input must have the shape \[2, 12\]"):
        layers.lstm_cell(x[:1], h, h, w)
    with pytest.raises(ShapeError, match=r"gru_cell: a state .* takes a weight \(size, 3 \* size\)"):
        layers.gru_cell(x, h, w)


def test_attention_modules_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="8 features do not form 3 heads"):
        nn.MultiHeadAttention(8, 3)
    with pytest.raises(ArgumentError, match=r"MultiHeadAttention: bias is True or False, not 0\.1; other options"):
        nn.MultiHeadAttention(8, 2, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"made for inputs \(..., length, 8\)"):
        nn.MultiHeadAttention(8, 2)(bb.zeros((5, 4)))
    with pytest.raises(ArgumentError, match="the activation is one of 'gelu', 'gelu_tanh', 'relu', not 'tanh'"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")


def test_a_layer_trains_after_dropout_and_keeps_its_parameters() -> None:
    layer = nn.TransformerEncoderLayer(8, 2)
    paths = [path for path, _ in layer.named_parameters()]
    assert paths[:2] == ["attention.query.weight", "attention.query.bias"]
    gradients = layer(bb.asarray(normal(2, 4, 8).astype(np.float32))).square().sum().backward()
    assert all(x.grad(gradients) is not None for x in layer.parameters())


class Deep(nn.Module):
    """Layers in a list."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))]

    def forward(self, x: bb.Tensor) -> bb.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_error_deep_inside_tells_its_place() -> None:
    """By the path from the outermost module, once; the outermost needs none."""
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
    """As products and maxima of NumPy are."""
    three: Any = np.int64(3)
    assert nn.Linear(2 * three, three).weight.shape == (6, 3)
    assert repr(nn.LSTM(three, three)) == repr(nn.LSTM(3, 3))
    refused: list[Any] = [np.float32(3), np.int64(0), True, "3"]
    for wrong in refused:
        with pytest.raises(ArgumentError, match="Linear: inputs is an integer of at least 1"):
            nn.Linear(wrong, 2)
