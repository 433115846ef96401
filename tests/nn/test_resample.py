"""Resampling: interpolation, grids, unfolding, against torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import GENERATOR, functions_agree, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional as layers

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
    functions_agree(
        lambda x: layers.interpolate(x, size, mode=mode, align_corners=align),
        lambda x: torch.nn.functional.interpolate(x, size, **theirs),
        normal(*shape),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "scale"), [((2, 3, 5, 7), 1.3), ((1, 2, 6, 5), (0.6, 1.9)), ((1, 1, 5, 4), (2, 0.7))]
)
def test_interpolation_by_a_scale_factor(torch: Any, mode: str, shape: Any, scale: Any) -> None:
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    functions_agree(
        lambda x: layers.interpolate(x, scale_factor=scale, mode=mode),
        lambda x: torch.nn.functional.interpolate(x, scale_factor=scale, mode=name),
        normal(*shape),
    )
    bb.check_grads(
        lambda x: nn.Upsample(scale_factor=scale, mode=mode)(x).square(), (bb.asarray(normal(*shape)),), order=2
    )


def test_a_scale_with_an_integer_length_equals_that_length() -> None:
    x = bb.asarray(normal(1, 2, 9))
    for mode in ("nearest", "linear", "lanczos3"):
        by_scale = layers.interpolate(x, scale_factor=1 / 3, mode=mode)
        np.testing.assert_array_equal(by_scale.numpy(), layers.interpolate(x, 3, mode=mode).numpy(), strict=True)
        by_scale = layers.interpolate(x, scale_factor=1.3, mode=mode, align_corners=mode == "linear")
        assert by_scale.shape == (1, 2, 11)
    sums = layers.interpolate(bb.ones((1, 1, 9), dtype="float16"), scale_factor=1.3, mode="lanczos3")
    assert sums.dtype is bb.float16
    np.testing.assert_allclose(sums.numpy(), 1.0)
    with pytest.raises(ArgumentError, match=r"interpolate: .*'bilinear'"):
        layers.interpolate(x, scale_factor=1.3, mode="bilinear")


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 3, 4, 3)])
def test_grid_sample(torch: Any, padding: str, align: bool, shape: Any) -> None:
    grid = GENERATOR.uniform(-1.9, 1.9, (shape[0], *(3,) * (len(shape) - 2), len(shape) - 2))
    sample = torch.nn.functional.grid_sample
    functions_agree(
        lambda x, g: layers.grid_sample(x, g, padding_mode=padding, align_corners=align),
        lambda x, g: sample(x, g, mode="bilinear", padding_mode=padding, align_corners=align),
        normal(*shape), grid,
    )  # fmt: skip
    got = layers.grid_sample(bb.asarray(np.ones(shape)), bb.asarray(grid), mode="nearest", padding_mode=padding).numpy()
    theirs = sample(torch.ones(shape, dtype=torch.float64), torch.from_numpy(grid), "nearest", padding, False).numpy()
    np.testing.assert_array_equal(got, theirs)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 1, 3), (1, 1, 2, 2)])
def test_cubic_grid_sample(torch: Any, padding: str, align: bool, shape: Any) -> None:
    """Results equal torch's for its two axes, also far outside; second-order gradients are consistent."""
    options: dict[str, Any] = {"mode": "bicubic", "padding_mode": padding, "align_corners": align}
    for reach in (1.0, 1.9, 9.0):
        grid = GENERATOR.uniform(-reach, reach, (shape[0], 3, 2, 2))
        functions_agree(
            lambda x, g: layers.grid_sample(x, g, **options),
            lambda x, g: torch.nn.functional.grid_sample(x, g, **options),
            normal(*shape), grid,
        )  # fmt: skip
    near = bb.asarray(GENERATOR.uniform(-1.3, 1.3, (shape[0], 2, 1, 2)))
    bb.check_grads(lambda x, g: layers.grid_sample(x, g, **options), (bb.asarray(normal(*shape)), near), order=2)


def test_cubic_grid_sample_of_other_ranks_and_at_grid_points() -> None:
    x = bb.asarray(normal(1, 2, 4))
    at = bb.asarray([[[-1.0], [-1 / 3], [1 / 3], [1.0]]], dtype="float64")
    np.testing.assert_allclose(
        layers.grid_sample(x, at, mode="bicubic", align_corners=True).numpy(), x.numpy(), rtol=1e-12
    )
    volume = bb.asarray(normal(1, 1, 3, 4, 5))
    identity = bb.asarray(np.eye(3, 4)[None])
    grid = layers.affine_grid(identity, volume.shape, align_corners=False)
    for padding in ("zeros", "border", "reflection"):
        found = layers.grid_sample(volume, grid, mode="bicubic", padding_mode=padding)
        np.testing.assert_allclose(found.numpy(), volume.numpy(), rtol=1e-9, atol=1e-12)
    middle = bb.zeros((1, 1, 1, 2), dtype="float16")
    half = layers.grid_sample(bb.ones((1, 1, 2, 2), dtype="float16"), middle, "bicubic", "border")
    assert (half.dtype, half.tolist()) == (bb.float16, [[[[1.0]]]])


def test_third_derivatives_of_cubic_samples() -> None:
    """Inside a cell a sample is a cubic polynomial in its position, so its fourth derivative is 0."""
    x, place = bb.asarray(normal(1, 1, 5)), bb.asarray(0.1, dtype="float64")

    def read(p: Any) -> Any:
        return layers.grid_sample(x, p.reshape((1, 1, 1)), mode="bicubic").sum()

    values = np.array([read(place + 0.05 * i).item() for i in range(4)])
    third = bb.grad(bb.grad(bb.grad(read)))
    np.testing.assert_allclose(third(place).item(), np.diff(values, 3)[0] / 0.05**3, rtol=1e-6)
    assert bb.grad(third)(place).item() == 0.0


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 2, 3), (1, 2, 3, 2, 4)])
def test_affine_grid(torch: Any, align: bool, shape: Any) -> None:
    """Results equal torch's, which supports two and three axes."""
    axes = len(shape) - 2
    functions_agree(
        lambda maps: layers.affine_grid(maps, shape, align_corners=align),
        lambda maps: torch.nn.functional.affine_grid(maps, shape, align_corners=align),
        normal(shape[0], axes, axes + 1),
    )


def test_affine_grid_of_one_axis_and_others() -> None:
    x = bb.asarray([[[1.0, 2.0, 4.0]]])
    ahead = bb.asarray([[[1.0, 2 / 3]]])
    assert layers.grid_sample(x, layers.affine_grid(ahead, x.shape)).numpy().round(6).tolist() == [[[2.0, 4.0, 0.0]]]
    for align in (False, True):  # a single point is in the middle
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
    functions_agree(
        lambda x: layers.unfold(x, (3, 2), **options), lambda x: torch.nn.functional.unfold(x, (3, 2), **options), x
    )
    columns = layers.unfold(bb.asarray(x), (3, 2), **options).numpy()
    functions_agree(
        lambda x: layers.fold(x, (6, 7), (3, 2), **options),
        lambda x: torch.nn.functional.fold(x, (6, 7), (3, 2), **options),
        columns,
    )


def test_invalid_resampling_is_refused() -> None:
    x = bb.asarray(normal(1, 1, 4))
    for options, error, words in (
        ({}, ArgumentError, "give either size or scale_factor"),
        ({"size": 3, "mode": "bilinear"}, ArgumentError, "the mode .* more axes, use 'linear'"),
        ({"size": 3, "align_corners": True}, ArgumentError, "align_corners has no meaning"),
        ({"scale_factor": (1, 2)}, ArgumentError, "scale_factor needs one number"),
        ({"scale_factor": 0.1}, ArgumentError, "a scale_factor of 0.1 does not resize 4"),
    ):
        with pytest.raises(error, match=rf"interpolate: {words}"):
            layers.interpolate(x, **options)
    with pytest.raises(ShapeError, match=r"grid_sample: the grid .* float64\[1,3\]"):
        layers.grid_sample(x, bb.asarray(normal(1, 3)))
    with pytest.raises(ArgumentError, match="grid_sample: padding_mode is one of"):
        layers.grid_sample(x, bb.asarray(normal(1, 3, 1)), padding_mode="wrap")
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match=rf"interpolate: a scale_factor of {scale} .*Operand: float64\["):
            layers.interpolate(x, scale_factor=scale)


def test_grid_sample_reads_zeros_far_outside_of_infinite_edges() -> None:
    x = bb.full((2, 3, 1, 2), math.inf)
    far = bb.asarray([[9.0, 9.0], [-9.0, 0.0], [1e30, -1e30], [math.inf, -math.inf]])
    grid = bb.broadcast_to(far, (2, 1, 4, 2)).require_grad()
    for mode in ("bilinear", "bicubic", "nearest"):
        found = layers.grid_sample(x, grid, mode=mode)
        assert found.tolist() == bb.zeros((2, 3, 1, 4)).tolist()
        gradient = grid.grad(found.sum().backward())
        assert gradient is not None
        assert gradient.tolist() == bb.zeros((2, 1, 4, 2)).tolist()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_positions_that_are_nan_give_nan(mode: str, padding: str) -> None:
    x, grid = bb.ones((1, 1, 2, 3)), bb.asarray([[[[float("nan"), 0.0], [0.0, float("nan")], [0.0, 0.0]]]])
    assert bb.isnan(layers.grid_sample(x, grid, mode=mode, padding_mode=padding)).tolist() == [[[[True, True, False]]]]
    x = x.require_grad()
    found = layers.grid_sample(x, grid, mode=mode, padding_mode=padding)
    reached = x.grad(bb.where(bb.isnan(found), 0.0, found).sum().backward())
    assert reached is not None
    assert bb.isfinite(reached).all()
    moves = bb.where(bb.arange(2).reshape((1, 2, 1, 1)) == 1, float("nan"), bb.zeros((1, 2, 2, 3)))
    assert bb.isnan(layers.deform_conv2d(x, moves, bb.ones((1, 1, 1, 1)))).all()
    with pytest.raises(ShapeError, match=r"fold: .* is not"):
        layers.fold(x, (4,), 2)
