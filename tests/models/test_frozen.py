"""Models compared with results and gradients of transformers and diffusers, frozen by `tools/freeze_models.py`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from tests.models.frozen import FILE, distance, frozen, names

import backburn as bb
from backburn.models.pretrained import ARCHITECTURES

#: The largest difference, relative to the largest element; measured: 1.1e-6 for results, 1.6e-6 for gradients.
CLOSE = 3e-6


def loss(result: Any) -> Any:
    """The sum of a result's elements times the factors of `tools/freeze_models.py`."""
    return (result * bb.asarray(np.cos(np.arange(result.size)), dtype=result.dtype).reshape(result.shape)).sum()


def test_the_file_is_small_and_names_every_architecture() -> None:
    assert FILE.stat().st_size < 700_000
    known = {frozen(name).config.get("architectures", [frozen(name).config.get("_class_name")])[0] for name in names()}
    assert known == set(ARCHITECTURES)


@pytest.mark.parametrize("name", names())
def test_results(name: str) -> None:
    case = frozen(name)
    assert distance(case.model()(*case.given()), case.result) < CLOSE


@pytest.mark.parametrize("name", names())
def test_gradients(name: str) -> None:
    case = frozen(name)
    model, expected = case.model(), case.model()
    bb.io.load_weights(expected, case.grads, strict=False)
    grads = loss(model(*case.given())).backward()
    wanted = dict(expected.named_parameters())
    scale = max(float(np.abs(x).max()) for x in case.grads.values())
    for path, x in model.named_parameters():
        unused = name == "bert" and "pooler" in path  # features do not depend on it
        got = np.zeros(x.shape, np.float32) if unused else x.grad(grads).numpy()
        assert np.abs(got - wanted[path].numpy()).max() < CLOSE * scale, path


@pytest.mark.parametrize("name", ["llama", "gemma", "gpt2", "bert_masked", "vit", "resnet", "unet"])
@pytest.mark.parametrize(("dtype", "close"), [("float64", CLOSE), ("float16", 4e-3), ("bfloat16", 3e-2)])
def test_other_dtypes(name: str, dtype: str, close: float) -> None:
    case = frozen(name)
    result = case.model("numpy").astype(dtype)(*case.given("numpy", dtype))
    assert str(result.dtype) == dtype
    assert distance(result, case.result) < close


@pytest.mark.parametrize("name", names())
def test_shapes_without_values(name: str) -> None:
    case = frozen(name)
    assert case.model("null")(*case.given("null")).shape == case.result.shape


@pytest.mark.parametrize("name", names())
def test_vmap_over_examples(name: str) -> None:
    case = frozen(name)
    model = case.model()
    if name.startswith(("unet", "vit", "resnet")):  # convolutions need a batch axis
        got = bb.vmap(lambda *given: model(*(x[None] for x in given))[0])(*case.given())
    else:
        got = bb.vmap(model)(*case.given())
    assert distance(got, case.result) < CLOSE


@pytest.mark.parametrize("name", ["llama_dynamic", "qwen2", "gemma", "gpt2", "bert", "vit", "resnet", "unet"])
def test_recorded_calls(name: str) -> None:
    case = frozen(name)
    model = case.model("capture(numpy)")
    run = bb.capture(lambda *given: model(*given), state=False, on_fallback="error")
    for _ in range(3):
        assert distance(run(*case.given("capture(numpy)")), case.result) < CLOSE
    assert run.reason == ""


@pytest.mark.parametrize("name", names())
def test_training_with_dropout(name: str) -> None:
    """Training lowers the loss of the batch and keeps weights tied."""
    case = frozen(name)
    model = case.model().train()
    optimizer, first, last = bb.optim.Adam(0.003), 0.0, 0.0
    target = copy.deepcopy(model).eval()(*case.given()).detach() + 1.0
    for step in range(12):
        error = bb.nn.functional.mse_loss(model(*case.given()), target)
        first, last = (error.item() if step == 0 else first), error.item()
        optimizer.step(model, error.backward())
    assert last < first
    if case.config.get("tie_word_embeddings") and name == "gpt2":
        assert model.lm_head.weight is model.transformer.wte.weight
