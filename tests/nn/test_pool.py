"""Pooling, unpooling and norms of windows, against torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import agrees, functions_agree, normal

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from backburn.nn import functional as layers

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
    functions_agree(lambda x: layers.max_pool(x, size, **options), lambda x: largest(x, size, **options), x)
    indices = layers.max_pool_with_indices(bb.asarray(x), size, **options)[1]
    np.testing.assert_array_equal(
        indices.numpy(), largest(torch.from_numpy(x), size, return_indices=True, **options)[1].numpy()
    )
    mean = getattr(torch.nn.functional, f"avg_pool{rank}d")
    for include in (True, False):
        more = {**options, "count_include_pad": include}
        functions_agree(lambda x, o=more: layers.avg_pool(x, size, **o), lambda x, o=more: mean(x, size, **o), x)


@pytest.mark.parametrize(("shape", "size", "options"), [case for case in POOLS if len(case[0]) > 3])
def test_divisor_override(torch: Any, shape: Any, size: Any, options: dict[str, Any]) -> None:
    theirs = getattr(torch.nn.functional, f"avg_pool{len(shape) - 2}d")
    for more in ({"divisor_override": 3}, {"divisor_override": -2, "count_include_pad": False}):
        o: dict[str, Any] = {**options, **more}
        functions_agree(
            lambda x, o=o: layers.avg_pool(x, size, **o), lambda x, o=o: theirs(x, size, **o), normal(*shape)
        )
    layer = getattr(bb.nn, f"AvgPool{len(shape) - 2}d")(size, **options, divisor_override=1)
    x = bb.asarray(normal(*shape))
    np.testing.assert_array_equal(
        layer(x).numpy(), layers.avg_pool(x, size, **options, divisor_override=1.0).numpy(), strict=True
    )
    bb.check_grads(layer, (x,), order=2)


def test_invalid_divisors_are_refused() -> None:
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


WIDELY_PADDED: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 3, 5), 3, {"padding": 2, "stride": 1}),
    ((1, 2, 6), 4, {"padding": ((3, 2),), "stride": 4, "ceil_mode": True}),
    ((1, 2, 4, 5), (3, 2), {"padding": ((2, 1), (0, 1)), "stride": (2, 1), "dilation": (1, 3)}),
    ((1, 2, 4, 5), (2, 3), {"padding": "same", "stride": 1, "dilation": 2}),
    ((1, 1, 3, 2, 4), 2, {"padding": 1, "stride": 2, "dilation": (2, 1, 3)}),
]


def windows_of(x: Any, fill: float, size: Any, options: dict[str, Any]) -> Any:
    """Return the windows of padded values along the last axis, from PyTorch's ``unfold`` per spatial axis."""
    import torch

    rank = x.ndim - 2
    pairs = [(p, p) if isinstance(p, int) else p for p in options["padding"]]
    for axis, ((before, after), n, step, gap) in enumerate(
        zip(pairs, size, options["stride"], options["dilation"], strict=True), 2
    ):
        ends = [torch.full((*x.shape[:axis], m, *x.shape[axis + 1 :]), fill, dtype=x.dtype) for m in (before, after)]
        x = torch.cat([ends[0], x, ends[1]], axis)
        x = x.unfold(axis, gap * (n - 1) + 1, step)[..., ::gap]
    return x.flatten(2 + rank)


@pytest.mark.parametrize(("shape", "size", "options"), WIDELY_PADDED)
def test_padding_above_half_the_window_and_dilated_means(
    torch: Any, shape: Any, size: Any, options: dict[str, Any]
) -> None:
    rank = len(shape) - 2
    x = normal(*shape)

    def each(value: Any) -> Any:
        return (value,) * rank if isinstance(value, int) else value

    gaps = each(options.get("dilation", 1))
    plain = {"stride": each(options["stride"]), "dilation": gaps, "padding": each(options["padding"])}
    if options["padding"] == "same":
        spans = [gap * (n - 1) for gap, n in zip(gaps, each(size), strict=True)]
        plain["padding"] = [(span // 2, span - span // 2) for span in spans]
    if options.get("ceil_mode"):  # padding that completes the last window
        plain["padding"] = [(3, 3)]
    every = each(size)
    functions_agree(
        lambda x: layers.max_pool(x, size, **options), lambda x: windows_of(x, -math.inf, every, plain).amax(-1), x
    )
    bb.check_grads(lambda v: layers.max_pool(v, size, **options) ** 2.0, (bb.asarray(x),), order=2)
    inside = windows_of(torch.ones(shape, dtype=torch.float64), 0.0, every, plain).sum(-1)
    functions_agree(
        lambda x: layers.avg_pool(x, size, count_include_pad=False, **options),
        lambda x: windows_of(x, 0.0, every, plain).sum(-1) / inside,
        x,
    )
    functions_agree(
        lambda x: layers.avg_pool(x, size, divisor_override=3.0, **options),
        lambda x: windows_of(x, 0.0, every, plain).sum(-1) / 3.0,
        x,
    )
    if not options.get("ceil_mode"):
        functions_agree(
            lambda x: layers.avg_pool(x, size, **options), lambda x: windows_of(x, 0.0, every, plain).mean(-1), x
        )
        layer = getattr(nn, f"AvgPool{rank}d")(size, **options)
        np.testing.assert_array_equal(
            layer(bb.asarray(x)).numpy(), layers.avg_pool(bb.asarray(x), size, **options).numpy(), strict=True
        )
    bb.check_grads(lambda v: layers.avg_pool(v, size, **options) ** 2.0, (bb.asarray(x),), order=2)
    rows = bb.stack([bb.asarray(x), bb.asarray(-x)])
    np.testing.assert_array_equal(
        bb.vmap(lambda v: layers.avg_pool(v, size, **options))(rows)[1].numpy(),
        layers.avg_pool(bb.asarray(-x), size, **options).numpy(),
    )


def test_windows_with_padding_only_have_the_mean_zero() -> None:
    x = bb.asarray([[[2.0, 4.0]]])
    assert layers.avg_pool(x, 2, padding=3, stride=1).tolist() == [[[0.0, 0.0, 1.0, 3.0, 2.0, 0.0, 0.0]]]
    assert layers.avg_pool(x, 2, padding=3, stride=1, divisor_override=1).tolist() == [[[0, 0, 2, 6, 4, 0, 0]]]


@pytest.mark.parametrize(("shape", "size"), [((2, 3, 10), 4), ((1, 2, 7, 5), (3, 2)), ((1, 2, 3, 4, 5), (2, 4, 3))])
def test_adaptive_pools(torch: Any, shape: Any, size: Any) -> None:
    rank, x = len(shape) - 2, normal(*shape)
    mean = getattr(torch.nn.functional, f"adaptive_avg_pool{rank}d")
    functions_agree(lambda x: layers.adaptive_avg_pool(x, size), lambda x: mean(x, size), x)
    largest = getattr(torch.nn.functional, f"adaptive_max_pool{rank}d")
    functions_agree(lambda x: layers.adaptive_max_pool(x, size), lambda x: largest(x, size), x)
    indices = layers.adaptive_max_pool_with_indices(bb.asarray(x), size)[1]
    np.testing.assert_array_equal(indices.numpy(), largest(torch.from_numpy(x), size, return_indices=True)[1].numpy())


def test_invalid_pools_are_refused() -> None:
    x = bb.asarray(normal(1, 1, 4))
    with pytest.raises(ShapeError, match=r"max_pool: a window that reaches over 5 elements .*float64\[1,1,4\]"):
        layers.max_pool(x, 5)
    with pytest.raises(ShapeError, match="max_pool: the window 0 along axis 2 of 4 lies in the padding alone"):
        layers.max_pool(x, 2, padding=2)
    with pytest.raises(ShapeError, match="avg_pool: the window 2 along axis 2 of 4 lies in the padding alone"):
        layers.avg_pool(x, 2, padding=((0, 2),), count_include_pad=False)
    with pytest.raises(ArgumentError, match="avg_pool: padding is 0 or more"):
        layers.avg_pool(x, 2, padding=-1)
    with pytest.raises(ArgumentError, match=r"AvgPool1d: dilation is 1 or more"):
        nn.AvgPool1d(2, dilation=0)
    with pytest.raises(ShapeError, match="lies in the padding alone"):
        layers.max_pool(x[:, :, :1], 2, padding=1, dilation=2)
    with pytest.raises(ArgumentError, match="avg_pool: kernel_size is 1 or more"):
        layers.avg_pool(x, 0)
    with pytest.raises(ArgumentError, match="adaptive_avg_pool: output_size needs one number"):
        layers.adaptive_avg_pool(x, (1, 2))
    with pytest.raises(ShapeError, match="there is nothing to pool"):
        layers.adaptive_max_pool(x[:, :, :0], 1)


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
    assert nn.Upsample(scale_factor=2, mode="linear")(bb.asarray(x)).shape == (2, 3, *(14,) * rank)


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
    if (stride or size) >= size:  # where windows share a maximum, PyTorch gives each of them the gradient
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
        (
            lambda: nn.functional.max_unpool(values, indices, 1),
            OutOfRangeError,
            "max_unpool: the index .* names",
        ),
        (lambda: nn.functional.max_unpool(values, indices - 24, (3, 2)), OutOfRangeError, "max_unpool: the index -"),
        (lambda: nn.functional.max_unpool(values, indices, 2, output_size=(1, 2, 3)), ArgumentError, "output_size"),
        (lambda: nn.MaxUnpool1d(2)(values, indices), ShapeError, "MaxUnpool1d: the input .* has 3 axes, not 4"),
        (lambda: nn.MaxUnpool2d(0), ArgumentError, "MaxUnpool2d: kernel_size is 1 or more"),
    ):
        with pytest.raises(error, match=words):
            call()


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
