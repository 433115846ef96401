"""Placing tensors and models, and training unchanged models with placements."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import ArgumentError, GraphError
from backburn.decorators.sharding import GatherWarning, placement_of
from backburn.distributed import place
from backburn.nn.functional import cross_entropy, ssm_scan

MESH = "autodiff(sharded(sharded(numpy, tp=2), dp=2))"
DATA = np.random.default_rng(0).normal(size=(61, 12)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 61)


def where(x: Any) -> dict[str, Any]:
    return placement_of(x.backend, x.primitive)


def test_a_tensor_is_cut_over_two_mesh_axes() -> None:
    x = bb.asarray(DATA, backend=MESH)
    placed = place(x, {"dp": 0, "tp": -1})
    assert where(placed) == {"dp": 0, "tp": 1}
    assert where(x) == {"dp": None, "tp": None}
    np.testing.assert_array_equal(placed.numpy(), DATA)
    assert where(place(placed, {"dp": None})) == {"dp": None, "tp": 1}


def test_integers_and_leaves_are_placed() -> None:
    labels = place(bb.asarray(LABELS, backend=MESH), {"dp": 0})
    assert where(labels) == {"dp": 0, "tp": None}
    leaf = place(bb.asarray(DATA, backend=MESH).require_grad(), {"dp": 0})
    gradient = leaf.grad((leaf * leaf).sum().backward())
    assert leaf.is_require_grad
    assert gradient is not None
    assert where(gradient) == {"dp": 0, "tp": None}


def test_without_shards_nothing_changes() -> None:
    x = bb.asarray(DATA, backend="autodiff(numpy)")
    assert place(x, {"dp": 0}) is x


def test_placing_intermediate_results_is_refused() -> None:
    x = bb.asarray(DATA, backend=MESH).require_grad()
    with pytest.raises(GraphError, match="takes data and parameters"):
        place(x * 2.0, {"dp": 0})


def model() -> nn.Module:
    bb.random.seed(0)
    layers = (nn.Linear(12, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 5))
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        ({"0.wieght": {"dp": 0}}, r"no parameter's path matches '0.wieght'. .*0\.weight"),
        ({"0.weight": {"pp": 0}}, "0.weight: place: .* has no mesh axis 'pp', but 'dp', 'tp'"),
        ({"0.bias": {"dp": 1}}, r"0.bias: sharded: cannot cut a tensor of shape \[16\] over dp: axis 1"),
        ({"0.bias": 0}, "0.bias: place: a placement maps mesh axes"),
    ],
)
def test_invalid_placements_change_nothing(placements: Any, words: str) -> None:
    with bb.use_backend(MESH):
        net = model()
        before = dict(net.named_parameters())
        with pytest.raises(ArgumentError, match=words):
            place(net, {"5.weight": {"tp": 1}, **placements})
        assert all(value is before[path] for path, value in net.named_parameters())


def train(backend: str, placements: Any, data: Any) -> tuple[list[float], nn.Module]:
    """Five steps with dropout, batch norm, clipping and AdamW."""
    with bb.use_backend(backend):
        net = place(model(), placements)
        x, y = place(bb.asarray(DATA), data), place(bb.asarray(LABELS), data)
        optimizer, losses = optim.AdamW(1e-2), []
        for _ in range(5):
            loss = cross_entropy(net(x), y)
            gradients, _ = optim.clip_grad_norm(optim.named_gradients(net, loss.backward()), 1.0)
            optimizer.step(net, gradients)
            losses.append(loss.item())
    return losses, net


TENSOR = {"0.*": {"tp": 0}, "5.weight": {"tp": 1}}
BOTH = {"0.weight": {"tp": 0, "dp": 1}, "0.bias": {"tp": 0}, "5.weight": {"tp": 1, "dp": 0}, "*": {"dp": 0}}


@pytest.mark.parametrize(
    ("backend", "placements", "data"),
    [
        ("autodiff(sharded(numpy, dp=4))", {}, {"dp": 0}),
        ("autodiff(sharded(numpy, dp=4))", {"*": {"dp": 0}}, {"dp": 0}),
        ("autodiff(sharded(numpy, tp=2))", TENSOR, {}),
        (MESH, TENSOR, {"dp": 0}),
        (MESH, BOTH, {"dp": 0}),
    ],
    ids=["data", "fully sharded", "tensor", "data x tensor", "fully sharded x tensor"],
)
def test_placed_models_train_as_on_one_device(backend: str, placements: Any, data: Any) -> None:
    expected, _ = train("autodiff(numpy)", {}, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error", GatherWarning)
        losses, net = train(backend, placements, data)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0]
    for path, value in net.named_parameters():
        wanted: Any = next((p for pattern, p in placements.items() if pattern in ("*", path, f"{path[0]}.*")), {})
        assert {a: n for a, n in where(value).items() if n is not None} == wanted


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("first", [(6, 6), (6,), ()])
def test_recurrences_are_cut_along_other_axes_than_the_steps(axis: int, first: tuple[int, ...]) -> None:
    """With their gradients: states, operands that broadcast to them, and the first state, which lacks the axis."""
    shapes = (6, 6, 6), (6,), (6, 1, 6), first
    values = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    gradient = bb.grad(lambda *v: (ssm_scan(*v, axis=axis) ** 2).sum(), argnums=(0, 1, 2, 3))
    expected = gradient(*map(bb.asarray, values))
    for i, value in enumerate(values):
        for cut in range(value.ndim):
            if value.shape[cut] == 1:
                continue
            operands = [bb.asarray(v, backend="autodiff(sharded(numpy, dp=2, on_fallback=error))") for v in values]
            operands[i] = place(operands[i], {"dp": cut})
            for got, right in zip(gradient(*operands), expected, strict=True):
                np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-12)
