"""Attention with grouped heads, masks, positions and a cache, and transformer layers, against torch."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.helpers.against_torch import GENERATOR, agrees, functions_agree, normal, state_of

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.nn import functional as layers

ANY: Any = nn


def in_float64(model: Any) -> Any:
    """Return the model in float64, with biases and scales other than the initial ones."""
    model = model.astype("float64")
    model.load_state_dict({path: x.numpy() + 0.1 * normal(*x.shape) for path, x in model.state_dict().items()})
    return model


def attend(p: Any, place: str, heads: int, groups: int, query: Any, memory: Any, **options: Any) -> Any:
    """Return torch's attention with the parameters whose names begin with ``place``."""
    from torch.nn.functional import scaled_dot_product_attention

    def split(part: str, x: Any, count: int) -> Any:
        y = x @ p[f"{place}{part}.weight"].T + p[f"{place}{part}.bias"]
        return y.unflatten(-1, (count, -1)).swapaxes(-2, -3)

    q, k, v = split("q_proj", query, heads), split("k_proj", memory, groups), split("v_proj", memory, groups)
    joint = scaled_dot_product_attention(q, k, v, enable_gqa=groups != heads, **options).swapaxes(-2, -3).flatten(-2)
    return joint @ p[f"{place}out_proj.weight"].T + p[f"{place}out_proj.bias"]


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_several_query_heads_share_a_key_head(torch: Any, heads: int, groups: int, causal: bool) -> None:
    model = in_float64(nn.MultiheadAttention(12, heads, num_kv_heads=groups))
    assert model.k_proj.weight.shape == model.v_proj.weight.shape == (12 // heads * groups, 12)
    agrees(
        lambda_of(model, lambda x, y: model(x, y, is_causal=causal)),
        lambda p, x, y: attend(p, "", heads, groups, x, y, is_causal=causal),
        normal(2, 5, 12), normal(2, 7, 12),
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"kdim": 24, "vdim": 8}])
def test_initial_values_of_attention_are_torchs(torch: Any, options: Any) -> None:
    bb.random.seed(0)
    ours, theirs = nn.MultiheadAttention(32, 4, **options), torch.nn.MultiheadAttention(32, 4, **options)
    for name, x in theirs.state_dict().items():
        if "bias" in name:
            assert not x.any()
            continue
        bound, packed = x.abs().max().item(), bb.io.torch_state(ours)
        assert abs(packed[name].numpy()).max() == pytest.approx(bound, rel=0.02)
    assert not any(x.numpy().any() for path, x in ours.named_parameters() if path.endswith("bias"))
    assert abs(ours.k_proj.weight.numpy()).max() == pytest.approx(math.sqrt(6 / (56 if options else 128)), rel=0.02)


def lambda_of(model: Any, call: Any) -> Any:
    """Return a copy of ``model`` whose ``forward`` is ``call``."""

    class Called(bb.nn.Module):
        def __init__(self) -> None:
            vars(self).update(vars(model))

        def forward(self, *inputs: Any) -> Any:
            return call(*inputs)

    return Called()


def test_a_mask_for_each_head_of_the_queries(torch: Any) -> None:
    model = in_float64(nn.MultiheadAttention(8, 4, num_kv_heads=2))
    seen = GENERATOR.uniform(size=(2, 4, 5, 5)) > 0.3
    seen[..., 0] = True
    agrees(
        lambda_of(model, lambda x: model(x, mask=bb.asarray(seen))),
        lambda p, x: attend(p, "", 4, 2, x, x, attn_mask=torch.from_numpy(seen)),
        normal(2, 5, 8),
    )


# ---- positions ----


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rotary_by_complex_numbers(torch: Any, interleaved: bool, base: float) -> None:
    """A pair of features is a complex number, multiplied by one of modulus 1."""
    x = normal(2, 3, 5, 8)
    for positions in (None, np.array([4, 0, 7, 7, 100]), normal(2, 1, 5) * 10):

        def theirs(_: Any, y: Any, positions: Any = positions) -> Any:
            places = torch.arange(5) if positions is None else torch.from_numpy(positions)
            angles = places[..., None].double() * base ** (-2 * torch.arange(4).double() / 8)
            pairs = y.unflatten(-1, (4, 2)) if interleaved else y.unflatten(-1, (2, 4)).mT
            turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
            turned = torch.view_as_real(turned)
            return (turned if interleaved else turned.mT).flatten(-2)

        given = None if positions is None else bb.asarray(positions)
        agrees(lambda y, given=given: nn.RotaryEmbedding(base, interleaved)(y, given), theirs, x)


def test_products_of_rotated_vectors_depend_on_distances_only() -> None:
    q, k = (bb.asarray(normal(1, 6)) for _ in range(2))
    turn = nn.functional.rotary
    near = turn(q, bb.asarray([3])) @ turn(k, bb.asarray([1])).mT
    far = turn(q, bb.asarray([1003])) @ turn(k, bb.asarray([1001])).mT
    np.testing.assert_allclose(near.numpy(), far.numpy(), rtol=1e-9)


def test_dtypes_of_rotated_vectors() -> None:
    x = normal(40, 4)
    exact = nn.functional.rotary(bb.asarray(x)).numpy()
    for dtype, error in (("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)):
        y = nn.functional.rotary(bb.asarray(x, dtype=dtype))
        assert str(y.dtype) == dtype
        np.testing.assert_allclose(y.astype("float64").numpy(), exact, atol=error)
    assert nn.functional.rotary(bb.asarray([[1, 0], [0, 1]])).dtype is bb.float32
    assert nn.functional.rotary(bb.zeros((3, 0, 4))).shape == (3, 0, 4)
    np.testing.assert_allclose(bb.vmap(nn.functional.rotary)(bb.asarray(x[None])).numpy()[0], exact)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: nn.functional.rotary(x[:, :3]), ShapeError, "rotary: takes vectors of even size"),
        (lambda x: nn.functional.rotary(x[0]), ShapeError, "rotary: takes vectors of even size"),
        (lambda x: nn.functional.rotary(x, bb.arange(4)), ShapeError, r"rotary: .*broadcast"),
        (lambda x: nn.functional.rotary(x, bb.zeros((2, 5))), ShapeError, r"rotary: positions broadcast to \[5\]"),
        (lambda x: ANY.functional.rotary(x, 3), DTypeError, "rotary: takes a tensor, not int"),
        (lambda x: nn.functional.rotary(x, base=0.0), ArgumentError, r"rotary: base is a number above 0, not 0\.0"),
        (lambda x: ANY.RotaryEmbedding(-1), ArgumentError, "RotaryEmbedding: base is a number above 0, not -1"),
        (lambda x: ANY.RotaryEmbedding(10.0, 4), ArgumentError, "RotaryEmbedding: interleaved is True or False, not 4"),
        (lambda x: ANY.MultiheadAttention(6, 2, rotary=nn.RotaryEmbedding()), ArgumentError, "heads have 3"),
        (
            lambda x: ANY.MultiheadAttention(8, 2, rotary=True),
            ArgumentError,
            r"rotary is a RotaryEmbedding\(\) or None",
        ),
        (lambda x: ANY.MultiheadAttention(8, 4, num_kv_heads=3), ArgumentError, "not a multiple of 3 heads of keys"),
        (lambda x: ANY.MultiheadAttention(8, 4, num_kv_heads=0), ArgumentError, "kv_heads is an integer of at least 1"),
        (lambda x: nn.MultiheadAttention(4, 2)(x, x, cache=nn.KeyValueCache()), ArgumentError, "pass queries only"),
        (lambda x: ANY.MultiheadAttention(4, 2)(x, cache=3), ArgumentError, r"cache is a KeyValueCache\(\) or None"),
    ],
)
def test_what_attention_refuses(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(bb.ones((5, 4)))


# ---- step by step ----


@pytest.mark.parametrize("parts", [(1, 1, 1, 1, 1, 1), (3, 1, 2), (6,), (2, 4)])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_steps_with_a_cache_equal_the_whole_sequence(parts: tuple[int, ...], mask: str) -> None:
    model = nn.MultiheadAttention(8, 4, num_kv_heads=2, rotary=nn.RotaryEmbedding()).astype("float64")
    x = bb.asarray(normal(2, 6, 8))
    masks: Any = {
        "none": None,
        "bool": bb.asarray(np.array([True, False, True, True, True, True])),
        "float": bb.asarray(normal(4, 6, 6)),
    }[mask]
    whole, cache, begin = model(x, mask=masks, is_causal=True).numpy(), nn.KeyValueCache(), 0
    for count in parts:
        end = begin + count
        part = None if masks is None else masks[:end] if masks.ndim == 1 else masks[:, begin:end, :end]
        got = model(x[:, begin:end], mask=part, is_causal=True, cache=cache).numpy()
        np.testing.assert_allclose(got, whole[:, begin:end], rtol=1e-9, atol=1e-12)
        assert cache.length == end
        begin = end
    assert cache.key is not None
    assert cache.key.shape == (2, 2, 6, 2)


def test_a_cache_for_each_layer_and_none_in_the_state() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2).eval() for _ in range(2)]
    x, caches = bb.asarray(normal(1, 4, 8).astype(np.float32)), [nn.KeyValueCache() for _ in layers]
    whole = layers[1](layers[0](x, is_causal=True), is_causal=True).numpy()
    for i in range(4):
        y = x[:, i : i + 1]
        for layer, cache in zip(layers, caches, strict=True):
            y = layer(y, is_causal=True, cache=cache)
        np.testing.assert_allclose(y.numpy(), whole[:, i : i + 1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError):
        layers[0](bb.zeros((3, 1, 8)), is_causal=True, cache=caches[0])
    with pytest.raises(ShapeError):
        layers[0](bb.zeros((1, 1, 8)), mask=bb.ones((2, 9), dtype="bool"), cache=caches[0])
    assert caches[0].length == 4  # refused inputs are not cached


# ---- transformers ----


def feed_forward_by_layers(activation: str, x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
    hidden = nn.functional.linear(x, weight1, bias1)
    forms = {"gelu": {}, "gelu_tanh": {"approximate": "tanh"}}
    active: Any = bb.relu(hidden) if activation == "relu" else bb.gelu(hidden, **forms[activation])
    return nn.functional.linear(active, weight2, bias2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True), (False, False)])
def test_feed_forward_equals_its_layers(activation: str, biases: tuple[bool, bool]) -> None:
    """Values, and first and second gradients for any subset of the operands."""
    shapes: tuple[Any, ...] = ((2, 3, 4), (5, 4), (5,) if biases[0] else None, (2, 5), (2,) if biases[1] else None)
    operands = [None if s is None else bb.asarray(normal(*s)) for s in shapes]
    ways = [lambda *t: ANY.functional.feed_forward(*t, activation), partial(feed_forward_by_layers, activation)]
    places = [i for i, t in enumerate(operands) if t is not None]
    for count in range(1, len(places) + 1):
        for wanted in itertools.combinations(places, count):

            def first(way: Any, *given: Any, wanted: Any = wanted) -> Any:
                chosen = dict(zip(wanted, given, strict=True))
                return bb.sum(bb.sin(way(*(chosen.get(i, t) for i, t in enumerate(operands)))))

            def second(way: Any, *given: Any, wanted: Any = wanted, first: Any = first) -> Any:
                found = bb.grad(partial(first, way), argnums=tuple(range(len(wanted))))(*given)
                return sum(bb.sum(bb.cos(g)) for g in found)

            for order in (first, second):
                every = tuple(range(count))
                ours, theirs = (
                    bb.grad(partial(order, way), argnums=every)(*(operands[i] for i in wanted)) for way in ways
                )
                for one, right in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(one.numpy(), right.numpy(), rtol=1e-9, atol=1e-11)


def test_feed_forward_does_not_save_its_result() -> None:
    """Gradients need only the features between the layers."""
    x, weight = bb.ones((3, 4)).require_grad(), bb.ones((4, 4)).require_grad()
    y = nn.functional.feed_forward(x, weight, None, weight, None)
    (node,) = y._primitive.node.parents
    kept = [t for saved in node.saved if isinstance(saved, tuple) for t in saved]
    assert [t.shape for t in kept] == [(3, 4), (3, 4)]
    assert all(t is not y._primitive.value for t in kept)


def test_replaced_or_observed_layers_of_a_feed_forward_block_are_called() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    model = nn.TransformerEncoderLayer(4, 2, 8, norm_first=True).eval()
    x = bb.asarray(normal(3, 4), dtype="float32")
    middle = x + model.self_attn(model.norm1(x))
    added = model(x) - middle
    watched, found = bb.quantization.observe(model)
    np.testing.assert_allclose(watched(x).numpy(), model(x).numpy(), rtol=1e-5)
    assert all(observer.range(bb.qint8)[0].shape == () for observer in found.values())
    second = Doubled(8, 4)
    second.load_state_dict(model.linear2.state_dict())
    model.linear2 = second
    np.testing.assert_allclose((model(x) - middle).numpy(), 2 * added.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_decoder_layer(torch: Any, pre_norm: bool, activation: str) -> None:
    """Values and gradients equal those of torch's layer."""
    model = in_float64(nn.TransformerDecoderLayer(8, 2, 16, 0.0, activation, norm_first=pre_norm))
    assert [path for path, _ in model.named_parameters()][:2] == ["self_attn.q_proj.weight", "self_attn.q_proj.bias"]
    seen = GENERATOR.uniform(size=(5, 7)) > 0.3
    seen[:, 0] = True
    later = torch.from_numpy(np.triu(np.full((5, 5), -math.inf), 1))

    def theirs(p: Any, x: Any, memory: Any) -> Any:
        active = partial(torch.nn.functional.gelu, approximate="tanh") if activation == "gelu_tanh" else activation
        other = torch.nn.TransformerDecoderLayer(
            8, 2, 16, 0.0, active, norm_first=pre_norm, batch_first=True, dtype=torch.float64
        )
        state = {name: x for name, x in p.items() if ".q_" not in name and ".k_" not in name and ".v_" not in name}
        for place in ("self_attn", "multihead_attn"):
            for kind in ("weight", "bias"):
                state[f"{place}.in_proj_{kind}"] = torch.cat([p[f"{place}.{part}_proj.{kind}"] for part in "qkv"])
        masks = {"tgt_mask": later, "memory_mask": ~torch.from_numpy(seen)}
        return torch.func.functional_call(other, state, (x, memory), masks, strict=True)

    agrees(
        lambda_of(model, lambda x, memory: model(x, memory, memory_mask=bb.asarray(seen), is_causal=True)),
        theirs, normal(3, 5, 8), normal(3, 7, 8),
    )  # fmt: skip


def test_decoder_layer_step_by_step_and_in_training() -> None:
    model = nn.TransformerDecoderLayer(8, 2, dropout=0.5)
    x, memory = (bb.asarray(normal(2, n, 8).astype(np.float32)) for n in (4, 3))
    assert not np.array_equal(model(x, memory).numpy(), model(x, memory).numpy())
    model.eval()
    whole, cache = model(x, memory, is_causal=True).numpy(), nn.KeyValueCache()
    for i in range(4):
        got = model(x[:, i : i + 1], memory, is_causal=True, cache=cache).numpy()
        np.testing.assert_allclose(got, whole[:, i : i + 1], rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="TransformerDecoderLayer: the activation is one of 'relu', "):
        nn.TransformerDecoderLayer(8, 2, activation="tanh")
    with pytest.raises(DTypeError, match="TransformerDecoderLayer: takes a tensor, not NoneType"):
        ANY.TransformerDecoderLayer(8, 2)(x, None)


def test_attention(torch: Any) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 2)
    mask = GENERATOR.uniform(size=(2, 1, 5, 6)) > 0.3
    mask[..., 0] = True
    ours = layers.scaled_dot_product_attention
    functions_agree(ours, attend, q, k, v)
    functions_agree(
        lambda q, k, v: ours(q, k, v, is_causal=True), lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v
    )
    functions_agree(
        lambda q, k, v: ours(q, k, v, bb.asarray(mask), scale=0.3),
        lambda q, k, v: attend(q, k, v, torch.from_numpy(mask), scale=0.3),
        q, k, v,
    )  # fmt: skip
    functions_agree(lambda q, k, v, m: ours(q, k, v, m), attend, q, k, v, normal(2, 1, 5, 6))
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
def test_attention_with_shared_heads(torch: Any, fronts: Any, mask: Any, grouped: bool) -> None:
    q, k, v = (normal(*front, *last) for front, last in zip(fronts, ((5, 4), (6, 4), (6, 2)), strict=True))
    attend = torch.nn.functional.scaled_dot_product_attention
    ours: Any = layers.scaled_dot_product_attention
    if mask is None:
        functions_agree(
            lambda *of: ours(*of, is_causal=True, enable_gqa=grouped),
            lambda *of: attend(*of, is_causal=True, enable_gqa=grouped), q, k, v,
        )  # fmt: skip
        return
    seen = GENERATOR.uniform(size=mask) > 0.3
    seen[..., 0] = True
    functions_agree(
        lambda *of: ours(*of, bb.asarray(seen), enable_gqa=grouped),
        lambda *of: attend(*of, torch.from_numpy(seen), enable_gqa=grouped), q, k, v,
    )  # fmt: skip
    functions_agree(
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
        (((3, 2, 4), (2, 2, 4), (2, 2, 4)), True, "and the queries a multiple of it: 3, 2 and 2"),
        (((4, 2, 4), (2, 2, 4), (4, 2, 4)), True, "and the queries a multiple of it: 4, 2 and 4"),
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
    got = layers.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True)
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

    functions_agree(
        lambda q, k, v: ours(q, k, v, bb.asarray(seen)),
        lambda q, k, v: capped(q, k, v, torch.from_numpy(seen)), q, k, v,
    )  # fmt: skip
    functions_agree(ours, capped, q, k, v, bias)


def test_softcap_is_a_positive_number() -> None:
    x = bb.ones((2, 3, 4))
    for cap in (0, -1.0, math.inf, math.nan, True):
        with pytest.raises(ArgumentError, match="scaled_dot_product_attention: softcap is a finite number above 0"):
            layers.scaled_dot_product_attention(x, x, x, softcap=cap)
        with pytest.raises(ArgumentError, match="MultiheadAttention: softcap is a finite number above 0"):
            nn.MultiheadAttention(4, 2, softcap=cap)


def test_a_layer_caps_its_scores() -> None:
    bb.random.seed(0)
    x = bb.random.normal((2, 5, 8)) * 5.0
    free, capped = (nn.MultiheadAttention(8, 2, softcap=cap) for cap in (None, 1e-6))
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
        y, back = bb.vjp(partial(layers.scaled_dot_product_attention, is_causal=True, softcap=2.0), *map(bb.asarray, x))
        results += [y, *back(bb.asarray(grad, dtype=y.dtype))]
    scores = 2.0 * np.tanh(q @ np.swapaxes(k, -1, -2) / np.sqrt(8) / 2.0)
    powers = np.exp(scores) * np.tri(700)
    np.testing.assert_allclose(expected[0].numpy(), powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_dropout_of_attention() -> None:
    bb.random.seed(0)
    q, k = bb.zeros((4, 50, 2)), bb.zeros((4, 200, 2))
    out = layers.scaled_dot_product_attention(q, k, bb.ones((4, 200, 1)), dropout_p=0.25).numpy()
    assert 0.98 < out.mean() < 1.02
    assert out.std() > 0.01
    np.testing.assert_allclose(out * 200 * 0.75, np.round(out * 200 * 0.75), atol=1e-3)
    with pytest.raises(ArgumentError, match="dropout_p is a probability"):
        layers.scaled_dot_product_attention(q, k, k, dropout_p=1.5)
    with pytest.raises(DTypeError, match=r"a mask is bool .* or float"):
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
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, norm_first=pre_norm)
    theirs.self_attn.in_proj_bias.data.uniform_(-1.0, 1.0)
    ours.load_state_dict(state_of(theirs))
    x = normal(3, 5, 8).astype(np.float32)
    np.testing.assert_allclose(
        ours(bb.asarray(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    later = np.triu(np.full((5, 5), -math.inf, np.float32), 1)
    expected = theirs(torch.from_numpy(x), src_mask=torch.from_numpy(later)).detach().numpy()
    np.testing.assert_allclose(ours(bb.asarray(x), is_causal=True).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_invalid_attention_modules_are_refused() -> None:
    with pytest.raises(ArgumentError, match="8 features do not form 3 heads"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ArgumentError, match=r"MultiheadAttention: bias is True or False, not 0\.1; other options"):
        nn.MultiheadAttention(8, 2, 0.0, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"made for inputs \(..., length, 8\)"):
        nn.MultiheadAttention(8, 2)(bb.zeros((5, 4)))
    with pytest.raises(ArgumentError, match="the activation is one of 'relu', 'gelu', 'gelu_tanh', not 'tanh'"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("key_padding_mask", r"mask=~padding\[:, None, None, :\]"),
        ("attn_mask", "mask=~attn_mask"),
        ("need_weights", "the result is the tensor alone"),
    ],
)
def test_options_of_pytorch_are_answered_with_ours(name: str, hint: str) -> None:
    layer, x = nn.MultiheadAttention(8, 2), bb.zeros((1, 3, 8))
    call: Any = layer
    with pytest.raises(TypeError, match=rf"MultiheadAttention\.forward\(\) got .*'{name}'; here: .*{hint}"):
        call(x, **{name: None})
    make: Any = nn.MultiheadAttention
    with pytest.raises(TypeError, match=r"'add_bias_kv'; here: .*after k_proj and v_proj"):
        make(8, 2, add_bias_kv=True)
