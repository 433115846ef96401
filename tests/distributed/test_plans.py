"""Predefined plans: losses and gradients equal those of one process, and no operation falls back to gathering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import models, nn, optim
from backburn.base.errors import ArgumentError
from backburn.decorators.sharding import Sharded
from backburn.distributed import place, place_state, placement, plans
from backburn.nn.functional import cross_entropy

DP = "autodiff(sharded(numpy, dp=4, on_fallback=error))"
TP = "autodiff(sharded(numpy, tp=2, on_fallback=error))"
BOTH = "autodiff(sharded(sharded(numpy, tp=2, on_fallback=error), dp=2, on_fallback=error))"
TOKENS = np.random.default_rng(0).integers(0, 32, (5, 7))
IMAGES = np.random.default_rng(1).normal(size=(6, 3, 8, 8)).astype(np.float32)
CLASSES = np.random.default_rng(2).integers(0, 4, 6)


class Encoder(nn.Module):
    """An embedding, two layers and a head."""

    def __init__(self, num_kv_heads: int = 2) -> None:
        self.table = nn.Embedding(32, 16)
        self.layers = [nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, norm_first=True) for _ in range(2)]
        self.layers[1].self_attn = nn.MultiheadAttention(16, 4, num_kv_heads=num_kv_heads)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: Any) -> Any:
        x: Any = self.table(tokens)
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return self.head(x)


def llama() -> nn.Module:
    return models.Llama(
        models.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=False,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    return models.GPT2(models.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, embd_pdrop=0.0,
                                         resid_pdrop=0.0, attn_pdrop=0.0))  # fmt: skip


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.GELU(), nn.Flatten(), nn.Linear(12 * 16, 4),
    )  # fmt: skip


def words(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[0])


def classes(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[1])


def gradients(backend: str, make: Callable[[], Any], plan: Any, loss: Any, data: tuple[Any, ...]) -> Any:
    """The loss and gradients of a new model on a batch, and the placements of its parameters."""
    with bb.use_backend(backend):
        bb.random.seed(0)
        model = make()
        if plan is not None:
            place(model, plan)
        names = [level for level in ("dp",) if f"{level}=" in backend]
        batch = tuple(place(bb.asarray(x), dict.fromkeys(names, 0)) for x in data)
        value = loss(model, batch)
        found = optim.named_gradients(model, value.backward())
        where = {path: placement(x) for path, x in model.named_parameters()}
        return value.item(), {path: x.numpy() for path, x in found.items()}, where


def check(backend: str, make: Callable[[], Any], plan: Any, loss: Any, data: tuple[Any, ...]) -> dict[str, Any]:
    expected, wanted, _ = gradients("autodiff(numpy)", make, None, loss, data)
    value, found, where = gradients(backend, make, plan, loss, data)
    assert value == pytest.approx(expected, rel=2e-5)
    assert found.keys() == wanted.keys()
    for path in wanted:
        np.testing.assert_allclose(found[path], wanted[path], rtol=1e-3, atol=2e-6, err_msg=path)
    return where


@pytest.mark.parametrize("make", [Encoder, llama, gpt2], ids=["nn", "Llama", "GPT-2"])
@pytest.mark.parametrize(
    ("backend", "plan"),
    [
        (DP, plans.replicated()),
        (DP, plans.sharded()),
        (TP, plans.transformer()),
        (BOTH, plans.transformer(dp="dp")),
        (BOTH, plans.transformer(dp="dp", parameters="sharded")),
    ],
    ids=["data", "fully sharded", "tensor", "data x tensor", "fully sharded x tensor"],
)
def test_transformers(make: Any, backend: str, plan: Any) -> None:
    where = check(backend, make, plan, words, (TOKENS,))
    cut = [axis for found in where.values() for axis in found.values() if axis is not None]
    assert bool(cut) == (plan.name != "replicated('dp')")


@pytest.mark.parametrize("parameters", ["replicated", "sharded"])
def test_images(parameters: Any) -> None:
    check(DP, images, plans.convolutional(parameters=parameters), classes, (IMAGES, CLASSES))


def test_layers_of_a_transformer_are_cut_by_heads_and_hidden_features() -> None:
    with bb.use_backend(TP):
        model = place(Encoder(), plans.transformer())
    where = {path: placement(x)["tp"] for path, x in model.named_parameters() if placement(x)["tp"] is not None}
    layer = {f"self_attn.{name}.{part}": 0 for name in ("q_proj", "k_proj", "v_proj") for part in ("weight", "bias")}
    layer |= {"self_attn.out_proj.weight": 1, "linear1.weight": 0, "linear1.bias": 0, "linear2.weight": 1}
    assert where == {"table.weight": 1} | {f"layers.{i}.{path}": axis for i in (0, 1) for path, axis in layer.items()}


def test_heads_that_do_not_divide_equally_are_refused() -> None:
    with bb.use_backend("autodiff(sharded(numpy, tp=4))"):
        model = Encoder()
        with pytest.raises(
            ArgumentError, match=r"layers\.1\.self_attn has num_kv_heads=2, which the 4 shards of the mesh axis 'tp'"
        ):
            place(model, plans.transformer())
        assert all(set(placement(x).values()) == {None} for x in model.parameters())


def test_plans_that_do_not_fit_the_mesh_or_model_are_refused() -> None:
    with bb.use_backend(DP):
        model = images()
        with pytest.raises(ArgumentError, match=r"has no mesh axis 'tp', but 'dp'"):
            place(Encoder(), plans.transformer())
        with pytest.raises(ArgumentError, match=r"has no mesh axis 'data', but 'dp'"):
            place(model, plans.sharded("data"))
    with bb.use_backend(TP), pytest.raises(ArgumentError, match=r"Sequential has no layer to split over 'tp'"):
        place(images(), plans.transformer())
    with pytest.raises(ArgumentError, match="parameters"):
        plans.convolutional(parameters="shraded")  # type: ignore[arg-type]


def test_without_shards_a_plan_changes_nothing() -> None:
    with bb.use_backend("autodiff(numpy)"):
        model = Encoder()
        before = model.parameters()
        for plan in (plans.sharded(), plans.state(), plans.transformer(dp="dp", parameters="sharded")):
            place(model, plan)
            place_state(optim.SGD(0.1), model, plan)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))


# ---- optimizers ----

OPTIMIZERS: list[Callable[[], Any]] = [
    lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    lambda: optim.AdamW(0.01),
    lambda: optim.Lion(0.01),
    lambda: optim.RMSprop(0.01),
    lambda: optim.Adafactor(0.01),
    lambda: optim.Groups({"*.bias": optim.SGD(0.1), "*": optim.Adan(0.01)}),
]


def train(backend: str, plan: Any, make: Callable[[], Any]) -> tuple[list[float], Any, Any]:
    """Three steps with clipping, dropout and averaged parameters."""
    with bb.use_backend(backend):
        bb.random.seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 5))
        optimizer, average, losses = make(), optim.Average(0.9), []
        if plan is not None:
            place(model, plan)
            place_state(optimizer, model, plan)
        x = place(bb.asarray(np.random.default_rng(0).normal(size=(61, 12)).astype(np.float32)), {"dp": 0})
        y = place(bb.asarray(np.random.default_rng(1).integers(0, 5, 61)), {"dp": 0})
        for _ in range(3):
            loss = cross_entropy(model(x), y)
            found, _ = optim.clip_grad_norm(optim.named_gradients(model, loss.backward()), 1.0)
            optimizer.step(model, found)
            average.update(model)
            losses.append(loss.item())
        return losses, model, optimizer


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["SGD", "AdamW", "Lion", "RMSprop", "Adafactor", "groups"])
@pytest.mark.parametrize("plan", [plans.replicated(), plans.sharded(), plans.state()], ids=lambda plan: plan.name)
def test_optimizers_keep_the_placements(make: Any, plan: Any) -> None:
    expected, _, _ = train("autodiff(numpy)", None, make)
    losses, model, optimizer = train("autodiff(sharded(numpy, dp=4, on_fallback=allow))", plan, make)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    is_cut = plan.name == "sharded('dp')"
    for path, x in model.named_parameters():
        assert (placement(x)["dp"] is not None) == is_cut, path
    if "state" in plan.name:
        tensors = {name: x for name, x in optimizer.state_tensors().items() if x.size > 1}
        assert tensors
        assert all(placement(x)["dp"] is not None for x in tensors.values()), tensors.keys()


def bytes_of_shard(x: Any, shard: int) -> int:
    """The bytes of a shard's part of a tensor."""
    part: Any = x.primitive if isinstance(x.backend, Sharded) else x.inner().primitive
    array: Any = part.parts[shard] if hasattr(part, "parts") else part
    return int(array.nbytes)


def test_a_shard_holds_only_its_part_of_parameters_and_state() -> None:
    """Fully sharded over four, each shard holds at most 0.27 of the parameters and moments of AdamW."""
    with bb.use_backend("autodiff(sharded(numpy, dp=4, on_fallback=allow))"):
        model = place(Encoder(), plans.sharded())
        optimizer = optim.AdamW(1e-3)
        tokens = place(bb.asarray(TOKENS), {"dp": 0})
        optimizer.step(model, words(model, (tokens,)).backward())
    tensors = [*model.parameters(), *optimizer.state_tensors().values()]
    whole = sum(4 * x.size for x in tensors)
    for shard in range(4):
        assert sum(bytes_of_shard(x, shard) for x in tensors) <= 0.27 * whole
