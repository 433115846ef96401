"""Normalization: batch statistics, single examples, local responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import agrees, normal

import backburn as bb
from backburn.base.errors import GraphError, ShapeError

nn: Any = bb.nn  # Any, since type checkers would refuse the arguments below


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
    assert [path for path, _ in plain.named_buffers()] == ["running_mean", "running_var", "num_batches_tracked"]
    assert plain.num_parameters == 0
    for _ in range(2):
        assert plain(x).tolist() == weighted(x).tolist()
        assert plain.running_var.tolist() == weighted.running_var.tolist()
        plain.eval(), weighted.eval()


def with_torchs_batch_norm(**options: Any) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="torch is the reference, and it is not installed")
    return nn.BatchNorm(3, **options).astype("float64"), torch.nn.BatchNorm1d(3, **options).double()


def test_batch_norm_with_cumulative_averages() -> None:
    ours, theirs = with_torchs_batch_norm(momentum=None)
    torch, random = pytest.importorskip("torch"), np.random.default_rng(0)
    assert [path for path, _ in ours.named_buffers()] == ["running_mean", "running_var", "num_batches_tracked"]
    for training in (True, True, True, False, True):
        ours.train(training), theirs.train(training)
        x = random.normal(1.0, 2.0, (4, 3, 5))
        np.testing.assert_allclose(ours(bb.asarray(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-9)
        for name in ("running_mean", "running_var"):
            np.testing.assert_allclose(getattr(ours, name).numpy(), getattr(theirs, name).numpy(), rtol=1e-9)
    assert ours.num_batches_tracked.item() == theirs.num_batches_tracked.item() == 4
    other = nn.BatchNorm(3, momentum=None).astype("float64")
    other.load_state_dict(ours.state_dict())
    for layer in (ours, other):
        layer(bb.asarray(x))
    assert other.running_mean.tolist() == ours.running_mean.tolist()
    assert other.num_batches_tracked.item() == 5


def test_refused_batches_are_not_counted() -> None:
    layer = nn.BatchNorm(3, momentum=None)
    with pytest.raises(GraphError, match=r"model\.eval\(\)"):
        bb.vmap(layer)(bb.asarray(np.random.default_rng(0).normal(size=(2, 4, 3))))
    assert layer.num_batches_tracked.item() == 0


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
    assert ours(bb.ones((1, 3), dtype="float64")).tolist() == [[0.0, 0.0, 0.0]]  # the value is its own mean
    with pytest.raises(ShapeError, match="BatchNorm: one value has no variance"):
        ours.train()(bb.ones((1, 3), dtype="float64"))
    each = bb.vmap(ours)(bb.asarray(np.stack([x, 2 * x])))  # no buffer is shared by the examples
    np.testing.assert_allclose(each[0].numpy(), each[1].numpy(), rtol=1e-4)
