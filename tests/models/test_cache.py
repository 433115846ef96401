"""Decoders with a cache: a text in parts gives the results of the whole, for every kind of cache."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from tests.models.frozen import frozen

import backburn as bb
from backburn.errors import ArgumentError, OutOfRangeError, ShapeError

pytestmark = pytest.mark.usefixtures("guarded_memory")

DECODERS = ["llama", "llama_llama3", "mistral", "qwen2", "gemma", "gpt2", "gpt2_scaled"]
CLOSE = 2e-6
ANY: Any = bb.models


def tokens(case: Any, backend: str | None = None) -> Any:
    return bb.asarray(case.inputs["input_ids"], backend=backend)


def assert_close(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape
    assert np.abs(got.numpy() - expected.numpy()).max() < CLOSE * np.abs(expected.numpy()).max()


def address(x: Any) -> int:
    """The address of the values, below all levels."""
    inner = x.primitive
    while not isinstance(inner, np.ndarray):
        inner = inner.value
    start: int = inner.__array_interface__["data"][0]
    return start


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("ends", [(13,), (1, 2, 3, 13), (5, 6, 12, 13)])
@pytest.mark.parametrize("fixed_from", [None, 1])
@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
def test_parts_give_the_results_of_the_whole(
    name: str, ends: tuple[int, ...], fixed_from: int | None, backend: str
) -> None:
    case = frozen(name)
    model, text = case.model(backend), tokens(case, backend)
    cache, parts, begin = bb.models.Cache(), [], 0
    with bb.no_grad():
        whole = model(text)
        for number, end in enumerate(ends):
            cache = cache.fixed(13) if number == fixed_from else cache
            parts.append(model(text[:, begin:end], cache=cache))
            begin = end
    assert_close(bb.concat(parts, axis=1), whole)
    assert int(cache.length) == 13


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("fixed", [False, True])
def test_padding_changes_nothing(name: str, side: str, fixed: bool) -> None:
    """Texts of 4 and 7 tokens, continued by 3 each, give the same results in one batch as separately."""
    case = frozen(name)
    model, ids = case.model("numpy"), case.inputs["input_ids"]
    lengths, most = (4, 7), 7
    prompt, mask = np.zeros((2, most), np.int64), np.zeros((2, most), np.int64)
    for row, n in enumerate(lengths):
        place = slice(most - n, most) if side == "left" else slice(0, n)
        prompt[row, place], mask[row, place] = ids[row, :n], 1
    more = np.stack([ids[row, n : n + 3] for row, n in enumerate(lengths)])
    cache = bb.models.Cache()
    first = model(bb.asarray(prompt, backend="numpy"), bb.asarray(mask, backend="numpy"), cache=cache)
    cache = cache.fixed() if fixed else cache
    rest = [model(bb.asarray(more[:, i : i + 1], backend="numpy"), cache=cache) for i in range(3)]
    for row, n in enumerate(lengths):
        alone = model(bb.asarray(ids[row : row + 1, : n + 3], backend="numpy"))
        place = slice(most - n, most) if side == "left" else slice(0, n)
        if name != "qwen2" or side == "left":  # a sliding window counts padding on the right
            assert_close(bb.concat([first[row, place], *(x[row] for x in rest)]), alone[0])
        else:
            assert_close(first[row, place], alone[0, :n])


def test_padding_in_parts() -> None:
    case = frozen("llama")
    model, text = case.model("numpy"), tokens(case, "numpy")[:, :8]
    mask = bb.asarray([[1] * 8, [0] * 3 + [1] * 5], backend="numpy")
    whole, cache = model(text, mask), bb.models.Cache()
    parts = [model(text[:, a:b], mask[:, a:b], cache=cache) for a, b in ((0, 2), (2, 4), (4, 8))]
    joint = bb.concat(parts, axis=1)
    assert_close(joint[0], whole[0])
    assert_close(joint[1, 3:], whole[1, 3:])


def test_padding_that_begins_later() -> None:
    """A mask after steps without one, which had no padding."""
    case = frozen("gpt2")
    model, text = case.model("numpy"), tokens(case, "numpy")[:1, :6]
    whole, cache = model(text), bb.models.Cache()
    model(text[:, :3], cache=cache)
    padded = bb.concat([text[:, :1], text[:, 3:]], axis=1)
    rest = model(padded, bb.asarray([[0, 1, 1, 1]], backend="numpy"), cache=cache)
    assert_close(rest[:, 1:], whole[:, 3:])


def test_one_text_without_a_batch() -> None:
    case = frozen("llama")
    model, text, cache = case.model("numpy"), tokens(case, "numpy")[0], bb.models.Cache()
    whole = model(text)
    assert whole.shape == (13, 29)
    assert_close(bb.concat([model(text[:5], cache=cache), model(text[5:], cache=cache)]), whole)


def test_logits_to_keep() -> None:
    case = frozen("gpt2")
    model, text = case.model("numpy"), tokens(case, "numpy")
    assert_close(model(text, logits_to_keep=1), model(text)[:, -1:])


def test_buffers_grow_and_are_updated_in_place() -> None:
    case = frozen("llama")
    model, text, cache = case.model("numpy"), tokens(case, "numpy"), bb.models.Cache(capacity=3)
    places = set()
    for i in range(7):
        model(text[:, i : i + 1], cache=cache)
        places.add((cache.capacity, cache.keys[0].primitive.__array_interface__["data"][0]))
    assert len({capacity for capacity, _ in places}) == len(places) == 2
    assert (cache.length, cache.capacity) == (7, 64)


def test_gradients_flow_through_a_cache() -> None:
    """While gradients are tracked, buffers are not overwritten."""
    case = frozen("llama")
    model, text, cache = case.model(), tokens(case), bb.models.Cache()
    expected = model(text)[:, 5:].sum().backward()
    model(text[:, :5], cache=cache)
    got = model(text[:, 5:], cache=cache).sum().backward()
    for path, x in model.named_parameters():
        a, b = x.grad(got).numpy(), x.grad(expected).numpy()
        assert np.abs(a - b).max() < 1e-5 * max(1.0, np.abs(b).max()), path


def test_buffers_in_a_graph_are_not_overwritten() -> None:
    case = frozen("llama")
    model, text = case.model(), tokens(case)
    model.freeze().require_grad("model.layers.0.self_attn.q_proj.weight")  # its graph refers to untracked keys

    def gradient(writes: bool) -> Any:
        cache = bb.models.Cache()
        model(text[:, :5], cache=cache)
        cache = cache.fixed(7)
        logits = model(text[:, 5:7], cache=cache)
        if writes:
            with bb.no_grad():
                cache.length = cache.length * 0
                model(text[:, 6:11], cache=cache)
                model(text[:, :2], cache=cache)
        return model.model.layers[0].self_attn.q_proj.weight.grad(logits.sum().backward()).numpy()

    assert np.array_equal(gradient(False), gradient(True))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_are_independent(copied: Any) -> None:
    case = frozen("llama")
    model, text, cache = case.model("numpy"), tokens(case, "numpy"), bb.models.Cache()
    whole = model(text)
    model(text[:, :5], cache=cache)
    other = copied(cache)
    model(text[:, 9:12], cache=other)
    assert_close(model(text[:, 5:], cache=cache), whole[:, 5:])
    assert (cache.length, other.length) == (13, 8)
    odd = bb.concat([text[:, :5], text[:, 9:13]], axis=1)
    assert_close(model(text[:, 12:], cache=other), model(odd)[:, 8:])


@pytest.mark.parametrize("spec", ["capture(numpy)", "capture(numpy, join=false)", "autodiff(capture(numpy))"])
@bb.no_grad()
def test_a_replayed_step_writes_in_place(spec: str) -> None:
    case = frozen("qwen2")
    model, text = case.model(spec), tokens(case, spec)
    whole, cache = model(text), bb.models.Cache()
    model(text[:, :3], cache=cache)

    def step(cache: Any, token: Any) -> Any:
        return cache, model(token, cache=cache)

    run, state = bb.capture(step, on_fallback="error"), cache.fixed(13)
    places = []
    for i in range(3, 13):
        state, logits = run(state, text[:, i : i + 1])
        assert_close(logits, whole[:, i : i + 1])
        places.append([address(x) for x in (*state.keys, *state.values)])
    assert run.reason == ""
    assert places[4] == places[5] == places[9]


@pytest.mark.parametrize("spec", ["numpy", "capture(numpy)"])
def test_deep_copies_outlive_captured_steps(spec: str) -> None:
    with bb.use_backend(spec):
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = ANY.Llama(ANY.LlamaConfig(vocab_size=32, **sizes)).eval()
        cache = ANY.Cache()
        model(bb.asarray([[1, 2, 3]]), cache=cache)
        cache = cache.fixed(16)
        decode = bb.capture(lambda cache, x: (cache, model(x, cache=cache)), on_fallback="allow")
        saved, sums = [], []
        for i in range(4):
            saved.append(copy.deepcopy(cache))
            sums.append(cache.keys[0].sum().item())
            cache, _ = decode(cache, bb.asarray([[i]]))
        assert "replayed" in repr(decode) or spec == "numpy"
        assert [int(x.length) for x in saved] == [3, 4, 5, 6]
        assert [x.keys[0].sum().item() for x in saved] == sums


def test_a_referenced_buffer_is_copied() -> None:
    case = frozen("llama")
    model, text = case.model("capture(numpy)"), tokens(case, "capture(numpy)")
    cache = bb.models.Cache()
    model(text[:, :3], cache=cache)
    run, state = bb.capture(lambda c, x: (c, model(x, cache=c))), cache.fixed(13)
    for i in range(3, 8):
        state, _ = run(state, text[:, i : i + 1])
    held = state.keys[0].detach()
    before = held.numpy().copy()
    state, _ = run(state, text[:, 8:9])
    assert np.array_equal(held.numpy(), before)
    assert not np.array_equal(state.keys[0].numpy(), before)


@pytest.mark.parametrize("spec", ["numpy", "autodiff(numpy)", "capture(numpy)"])
def test_examples_of_vmap_write_in_place(spec: str) -> None:
    """Each example has its own cache, allocated in the first step."""
    case = frozen("llama")
    model, text = case.model(spec), tokens(case, spec)
    places: list[list[int]] = []

    def stepwise(tokens: Any) -> Any:
        cache, found = bb.models.Cache(), []
        for i in range(8):
            found.append(model(tokens[None, i : i + 1], cache=cache))
            places.append([address(x) for x in (*cache.keys, *cache.values)])
        return bb.concat(found, axis=1)[0]

    with bb.no_grad():
        assert_close(bb.vmap(stepwise)(text), model(text[:, :8]))
    assert places == [places[0]] * 8


@pytest.mark.parametrize("of_each", [True, False])
def test_gradients_of_examples_with_caches(of_each: bool) -> None:
    """Per example and in total: buffers in a graph are not overwritten."""
    case = frozen("llama")
    model, text = case.model("autodiff(numpy)"), tokens(case, "autodiff(numpy)")[:, :6]

    def loss(model: Any, tokens: Any) -> Any:
        cache = bb.models.Cache()
        return sum((model(tokens[None, i : i + 3], cache=cache) ** 2).sum() for i in (0, 3))

    if of_each:
        found = bb.vmap(bb.grad(loss), in_axes=(None, 0))(model, text)
    else:
        found = bb.grad(lambda model: bb.vmap(lambda tokens: loss(model, tokens))(text).sum())(model)
    got = dict(found.named_parameters())
    for path, x in bb.grad(lambda model: (model(text) ** 2).sum())(model).named_parameters():
        mine = got[path].numpy()
        error = np.abs((mine.sum(0) if of_each else mine) - x.numpy()).max()
        assert error < 1e-5 * max(1.0, np.abs(x.numpy()).max()), path


def test_selecting_texts_and_undoing_steps() -> None:
    case = frozen("llama")
    model, text, cache = case.model("numpy"), tokens(case, "numpy"), bb.models.Cache()
    model(text[:, :5], cache=cache)
    swapped = cache.taken(bb.asarray([1, 1, 0], backend="numpy"))
    rows = text[:, 5:6][bb.asarray([1, 1, 0], backend="numpy")]
    expected = model(text[:, :6])[:, 5:]
    assert_close(model(rows, cache=swapped), expected[bb.asarray([1, 1, 0], backend="numpy")])
    model(text[:, 7:9], cache=cache)
    cache.length = 5
    assert_close(model(text[:, 5:6], cache=cache), expected)


def test_misuse() -> None:
    case = frozen("gpt2")
    model, text = case.model("numpy"), tokens(case, "numpy")
    cache = bb.models.Cache()
    with pytest.raises(ArgumentError, match="the cache is empty"):
        cache.fixed()
    with pytest.raises(ArgumentError, match=r"cache is a bb.models.Cache\(\) or None, not \[\]"):
        model(text, cache=[])
    with pytest.raises(ShapeError, match="the attention_mask has the shape of the tokens"):
        model(text, text[:, :2])
    with pytest.raises(ShapeError, match="takes token numbers"):
        model(text.astype("float32"))
    with pytest.raises(ArgumentError, match="capacity is an integer of at least 0"):
        ANY.Cache(capacity="8")
    with pytest.raises(OutOfRangeError, match=r"has 14 positions \(n_positions\), not 15"):
        model(bb.zeros((1, 15), dtype="int64", backend="numpy"), cache=cache)
    model(text, cache=cache)
    with pytest.raises(OutOfRangeError, match="14 positions"):
        model(text[:, :2], cache=cache)
    with pytest.raises(ShapeError, match="begin with an empty Cache"):
        model(text[:1, :1], cache=cache)
    assert cache.length == 13  # refused tokens were not added
    full = bb.models.Cache(length=cache.length, capacity=13, keys=_cut(cache.keys), values=_cut(cache.values)).fixed()
    with pytest.raises(OutOfRangeError, match="index_copy"):
        model(text[:, :1], cache=full)


def _cut(buffers: list[Any]) -> list[Any]:
    return [x[..., :13, :] for x in buffers]


def test_a_replayed_step_beyond_the_capacity_keeps_the_cache() -> None:
    """The first layer's write raises the error; with more capacity the steps continue."""
    case = frozen("llama")
    model, text = case.model("capture(numpy)"), tokens(case, "capture(numpy)")
    whole, cache = model(text), bb.models.Cache()
    model(text[:, :3], cache=cache)
    keys, values = ([x[..., :8, :] for x in part] for part in (cache.keys, cache.values))
    state = bb.models.Cache(8, 3, keys, values).fixed()
    run = bb.capture(lambda cache, token: (cache, model(token, cache=cache)), on_fallback="error")
    for i in range(3, 8):
        state, logits = run(state, text[:, i : i + 1])
    with pytest.raises(OutOfRangeError, match="index_copy"):
        run(state, text[:, 8:9])
    assert int(state.length) == 8
    state.reserve(13)
    for i in range(8, 13):
        state, logits = run(state, text[:, i : i + 1])
        assert_close(logits, whole[:, i : i + 1])
    assert run.reason == ""
