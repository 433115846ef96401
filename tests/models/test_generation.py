"""Generation: the same tokens as without a cache, for batches, seeds and backends; and bad options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.frozen import frozen

import backburn as bb
from backburn import nn
from backburn.errors import ArgumentError, OutOfRangeError
from backburn.models import Sampling, generate, stream
from backburn.models import generation as module
from backburn.models.sampling import uniform

DECODERS = ["llama", "llama_llama3", "mistral", "qwen2", "gemma", "gpt2"]
PROMPTS = [[3, 1, 4, 1], [5], [9, 2, 6, 5, 3, 5, 8]]
NONE: tuple[int, ...] = ()


def without_cache(model: Any, prompt: list[int], count: int) -> list[int]:
    text = [*prompt]
    for _ in range(count):
        logits = model(bb.asarray([text], backend="numpy"))
        text.append(int(logits[0, -1].argmax().item()))
    return text[len(prompt) :]


@pytest.mark.parametrize("name", DECODERS)
def test_a_batch_gives_the_tokens_of_each_text_alone(name: str) -> None:
    model = frozen(name).model("numpy")
    expected = [without_cache(model, prompt, 6) for prompt in PROMPTS]
    assert generate(model, PROMPTS, 6, stop_tokens=NONE) == expected
    assert [generate(model, prompt, 6, stop_tokens=NONE) for prompt in PROMPTS] == expected


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.7, "top_p": 0.9, "seed": 1}]
)
def test_backends_choose_the_same_tokens(options: dict[str, Any]) -> None:
    """Also if steps are recorded, and if the cache's capacity is exhausted twice."""
    found = {}
    for spec in ("numpy", "autodiff(numpy)", "capture(numpy)", "autodiff(capture(numpy))"):
        model = frozen("llama").model(spec)
        found[spec] = generate(model, PROMPTS, 12, stop_tokens=NONE, **options)
    assert [*found.values()] == [found["numpy"]] * 4


def test_the_cache_grows_and_prompts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = frozen("qwen2").model("numpy")
    expected = generate(model, PROMPTS, 20, stop_tokens=NONE)
    monkeypatch.setattr(module, "ROOM", 2)
    monkeypatch.setattr(module, "PROMPT_CHUNK", 3)
    for spec in ("numpy", "capture(numpy)"):
        assert generate(model.to(spec), PROMPTS, 20, stop_tokens=NONE) == expected


def test_texts_end_at_stop_tokens() -> None:
    model = frozen("llama").model("numpy")
    whole = generate(model, PROMPTS, 8, stop_tokens=NONE)
    stop = whole[1][3]
    expected = [row[: row.index(stop)] if stop in row else row for row in whole]
    assert generate(model, PROMPTS, 8, stop_tokens=[stop, 1000]) == expected
    items = [*stream(model, PROMPTS, 8, stop_tokens=stop)]
    assert [[x for x in column if x is not None] for column in zip(*items, strict=True)] == expected
    assert all(item[1] is None for item in items[3:])
    model.config.eos_token_id = stop
    assert generate(model, PROMPTS, 8) == expected


def test_one_prompt_gives_one_list() -> None:
    model = frozen("llama").model("numpy")
    text = generate(model, PROMPTS[0], 4, stop_tokens=NONE)
    assert [*stream(model, bb.asarray(PROMPTS[0]), 4, stop_tokens=NONE)] == text
    assert [*stream(model, np.array(PROMPTS[0]), 4, stop_tokens=NONE)] == text
    assert generate(model, bb.asarray([PROMPTS[0]]), 4, stop_tokens=NONE) == [text]


def test_seeds() -> None:
    model = frozen("llama").model("numpy")

    def texts(**options: Any) -> Any:
        return generate(model, PROMPTS, 10, temperature=2.0, stop_tokens=NONE, **options)

    assert texts(seed=1) == texts(seed=1) != texts(seed=2)
    assert texts(seed=1)[0] == generate(model, PROMPTS[0], 10, temperature=2.0, stop_tokens=NONE, seed=1)
    bb.random.seed(3)
    one, other = texts(), texts()
    bb.random.seed(3)
    assert one == texts() != other


def test_against_transformers() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    mine = bb.models.Llama(bb.models.LlamaConfig(**config)).eval().to("numpy")
    mine.load_state_dict({name: x.detach().numpy() for name, x in theirs.state_dict().items()})
    prompt = torch.tensor([PROMPTS[2]])
    choices: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.7}]
    for options in choices:
        found = theirs.generate(
            prompt, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0, **options
        )
        assert generate(mine, PROMPTS[2], 12, stop_tokens=NONE, **options) == found[0, 7:].tolist()


# ---- the choice of a token ----


def probabilities(logits: Any, sampling: Sampling, earlier: Any = ()) -> Any:
    """The distribution from its definition."""
    z = np.array(logits, float)
    for token in {*earlier}:
        z[token] = z[token] / sampling.repetition_penalty if z[token] > 0 else z[token] * sampling.repetition_penalty
    p = np.exp((z - z.max()) / sampling.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if sampling.top_k:
        for i in order[sampling.top_k :]:
            p[i] = 0.0
        p /= p.sum()
    total = 0.0
    kept = []
    for i in order:
        if total < sampling.top_p and p[i] > 0:
            kept.append(i)
        total += p[i]
    kept = [i for i in kept if p[i] >= sampling.min_p * p[order[0]]]
    q = np.zeros_like(p)
    q[kept] = p[kept]
    return q / q.sum()


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([0, 1, 3, 50]), st.sampled_from([0.05, 0.5, 0.93, 1.0]),
       st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([1.0, 1.5]))  # fmt: skip
def test_tokens_are_drawn_from_the_distribution(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float, penalty: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=8) * 2.0
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    expected = probabilities(logits, sampling, [1, 5, 5])
    count = 2000
    drawn = [sampling.choose(logits, (i + 0.5) / count, [1, 5, 5]) for i in range(count)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=8) / count, expected, atol=2.0 / count)


def test_extreme_logits() -> None:
    inf = float("inf")
    warm = Sampling(temperature=1.0)
    assert warm.choose([-inf, 0.0, -inf], 0.999999) == 1
    assert warm.choose([0.0, inf, 1.0], 0.5) == 1
    assert Sampling(temperature=1e-300).choose([0.0, 1.0, 2.0], 0.9) == 2
    assert [Sampling(temperature=1e300).choose([0.0, 1.0], u) for u in (0.1, 0.9)] == [1, 0]
    assert Sampling().choose([1.0, 3.0, 3.0]) == 1
    with pytest.raises(ArgumentError, match="logits are NaN"):
        warm.choose([0.0, float("nan")])


def test_numbers_differ_by_seed_text_and_step() -> None:
    numbers = [uniform(*place) for place in np.ndindex(4, 4, 4)]
    assert len({*numbers}) == 64
    assert all(0.0 <= x < 1.0 for x in numbers)
    assert uniform(1, 2, 3) == uniform(1, 2, 3)


# ---- bad input ----


@pytest.mark.parametrize("options", [
    {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": -1}, {"top_k": 2.5},
    {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 2}, {"repetition_penalty": 0.0}, {"seed": -1},
    {"seed": 1 << 64}, {"temperature": "warm"}, {"top_p": True},
])  # fmt: skip
def test_options_out_of_range(options: dict[str, Any]) -> None:
    model = frozen("llama").model("numpy")
    with pytest.raises((ArgumentError, TypeError), match=next(iter(options))):
        stream(model, PROMPTS, 3, **options)


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []], [[1], 2], ["text"], "text", [1.5], [[True]]])
def test_invalid_prompts_are_refused(prompts: Any) -> None:
    with pytest.raises(ArgumentError, match="generate: "):
        generate(frozen("llama").model("numpy"), prompts, 3)


def test_models_without_a_cache_are_refused() -> None:
    for model in (frozen("bert").model("numpy"), nn.Linear(2, 2), None):
        with pytest.raises(ArgumentError, match=f"a {type(model).__name__} takes no cache"):
            stream(model, [1, 2], 3)  # type: ignore[arg-type, unused-ignore]


def test_tokens_and_positions_out_of_range_are_refused() -> None:
    model = frozen("gpt2").model("numpy")
    vocabulary, positions = model.config.vocab_size, model.config.n_positions
    for token in (-1, vocabulary):
        with pytest.raises(OutOfRangeError, match=f"token {token}; the vocabulary has {vocabulary}"):
            generate(model, [0, token], 1)
    assert len(generate(model, [1, 2, 3], positions - 2, stop_tokens=NONE)) == positions - 2
    with pytest.raises(OutOfRangeError, match=f"at most {positions - 2} new tokens fit"):
        generate(model, [1, 2, 3], positions - 1)
