"""Folders of models: round trips, and errors for damaged and unsupported ones."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.weight_files import GGUFTensor, gguf_bytes
from tests.helpers.weight_files import text as gguf_text
from tests.models.frozen import distance, frozen, names

import backburn as bb
from backburn.base.metadata import MetadataWarning
from backburn.errors import ArgumentError, BackburnError, ConfigError, FileFormatError, ShapeError


def folder_of(name: str, path: Path, **changes: Any) -> Path:
    """A folder with a frozen model and changed keys of its configuration; None removes a key."""
    frozen(name).model("numpy").save_pretrained(path)
    about = json.loads((path / "config.json").read_text()) | changes
    about = {key: x for key, x in about.items() if key not in changes or x is not None}
    (path / "config.json").write_text(json.dumps(about))
    return path


@pytest.mark.parametrize("name", names())
def test_round_trip(name: str, tmp_path: Path) -> None:
    case = frozen(name)
    model = case.model("numpy")
    model.save_pretrained(tmp_path)
    read = bb.models.from_pretrained(tmp_path, backend="numpy")
    assert type(read) is type(model)
    assert read.config == model.config
    assert not read.training
    assert (read(*case.given("numpy")) == model(*case.given("numpy"))).all()
    written = json.loads((tmp_path / "config.json").read_text())
    lost = {key for key in case.config if key not in written} - {"rope_parameters", "label2id"}
    assert not lost
    for key in ("transformers_version", "model_type", "id2label", "_diffusers_version"):
        assert key not in case.config or written[key] == case.config[key]


def test_saved_names_and_shapes_are_those_of_the_published_file(tmp_path: Path) -> None:
    for name in names():
        frozen(name).model("numpy").save_pretrained(tmp_path / name)
        (file,) = (tmp_path / name).glob("*.safetensors")
        header = json.loads(file.read_bytes()[8 : 8 + int.from_bytes(file.read_bytes()[:8], "little")])
        shapes = {key: tuple(about["shape"]) for key, about in header.items() if key != "__metadata__"}
        expected = {key: x.shape for key, x in frozen(name).weights.items()}
        counters = {key: () for key in shapes if key.endswith("num_batches_tracked")}
        assert shapes == expected | counters, name


def test_shards(tmp_path: Path) -> None:
    case = frozen("llama")
    case.model("numpy").save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert distance(bb.models.from_pretrained(tmp_path)(*case.given()), case.result) < 3e-6


@pytest.mark.parametrize("backend", ["autodiff(numpy)", "numpy", "capture(numpy)"])
@pytest.mark.parametrize("dtype", [None, "float16", "float64", "bfloat16"])
def test_backends_and_dtypes(backend: str, dtype: str | None, tmp_path: Path) -> None:
    model = bb.models.from_pretrained(folder_of("resnet", tmp_path), backend=backend, dtype=dtype)
    kinds = {str(x.dtype) for x in model.parameters()} | {str(x.dtype) for _, x in model.named_buffers()}
    assert kinds == {dtype or "float32", "int64"}
    assert {x.backend.spec for x in model.parameters()} == {backend}
    assert {x.is_require_grad for x in model.parameters()} == {backend.startswith("autodiff")}
    assert not any(x.is_require_grad for _, x in model.named_buffers() if x.dtype.kind == "float")
    assert bb.default_dtype() is bb.float32


def test_tied_weights_are_tied(tmp_path: Path) -> None:
    model: Any = bb.models.from_pretrained(folder_of("gpt2", tmp_path))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert sum(path.endswith("wte.weight") for path, _ in model.named_parameters()) == 1


def test_memory_is_the_model_and_one_tensor(tmp_path: Path) -> None:
    config = bb.models.LlamaConfig(
        vocab_size=2000, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4
    )
    with bb.use_backend("numpy"):
        bb.models.Llama(config).save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    tracemalloc.start()
    bb.models.from_pretrained(tmp_path, backend="numpy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * size + 4 * 2000 * 256


def test_a_class_reads_only_its_architecture(tmp_path: Path) -> None:
    folder_of("gpt2", tmp_path)
    assert isinstance(bb.models.GPT2.from_pretrained(tmp_path), bb.models.GPT2)
    with pytest.raises(ConfigError, match=r"no model has the architecture .* Known: GemmaForCausalLM"):
        bb.models.Llama.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 29, "n_embd": 16,
                                                      "n_layer": 2, "n_head": 4, "n_positions": 14}))  # fmt: skip
    assert isinstance(bb.models.from_pretrained(tmp_path), bb.models.GPT2)


def test_subclasses_of_models(tmp_path: Path) -> None:
    class Mine(bb.models.GPT2):
        pass

    folder_of("gpt2", tmp_path)
    assert type(Mine.from_pretrained(tmp_path)) is Mine
    assert type(bb.models.from_pretrained(tmp_path)) is bb.models.GPT2
    with pytest.raises(ConfigError, match="no model has the architecture"):
        Mine.from_pretrained(folder_of("llama", tmp_path / "other"))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_names_and_rows_of_gguf(name: str, tmp_path: Path) -> None:
    """A file as written by llama.cpp's converter, which interleaves the halves of Llama's heads."""
    model = frozen(name).model("numpy")
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    words = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_", "mlp.": "ffn_", "_proj": "",
    }  # fmt: skip
    tensors = {"rope_freqs.weight": GGUFTensor(0, (2,), bytes(8))}
    for path, x in model.state_dict().items():
        value, part = x.numpy(), path.split(".")[-2]
        if part in heads and name != "qwen2":
            halves = value.reshape(heads[part], 2, -1, *value.shape[1:])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        theirs = path
        for word, other in words.items():
            theirs = theirs.replace(word, other)
        tensors[theirs] = GGUFTensor(0, value.shape, value.astype("<f4").tobytes())
    folder = folder_of(name, tmp_path)
    (folder / "model.safetensors").unlink()
    kind = "qwen2" if name == "qwen2" else "llama"
    (folder / "model.gguf").write_bytes(gguf_bytes(tensors, described({}, kind), 32))
    same = bb.models.from_pretrained(folder, backend="numpy").state_dict()
    assert all((same[path] == x).all() for path, x in model.state_dict().items())


def described(values: dict[str, Any], kind: str = "llama") -> dict[str, bytes]:
    """Metadata of a GGUF file."""
    named = {"general.architecture": kind} | {f"{kind}.{key}": value for key, value in values.items()}
    codes: dict[type, str] = {bool: "<I?", int: "<II", float: "<If"}
    types = {bool: 7, int: 4, float: 6}
    return {
        key: struct.pack("<I", 8) + gguf_text(value)
        if isinstance(value, str)
        else struct.pack("<IIQ3I", 9, 4, 3, *value)
        if isinstance(value, list)
        else struct.pack(codes[type(value)], types[type(value)], value)
        for key, value in named.items()
    }


def llama_file(path: Path, values: dict[str, bytes]) -> tuple[Any, Path]:
    """A model, and a GGUF file with only its norm."""
    model = frozen("llama").model("numpy")
    weight = np.ones(model.config.hidden_size, "<f4")
    path.write_bytes(gguf_bytes({"output_norm.weight": GGUFTensor(0, weight.shape, weight.tobytes())}, values, 32))
    return model, path


def test_matching_metadata_of_gguf(tmp_path: Path) -> None:
    config = frozen("llama").model("numpy").config
    values = {
        "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers, "context_length": 77,
        "attention.head_count": [config.num_attention_heads] * 3, "attention.causal": True, "expert_count": 0,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "rope.dimension_count": config.head_dim,
    }  # fmt: skip
    more = {
        "general.name": struct.pack("<I", 8) + gguf_text("A model"),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 0),
    }
    model, path = llama_file(tmp_path / "x.gguf", described(values) | more)
    with pytest.raises(ArgumentError, match="missing"):  # not an error about metadata
        bb.io.load_weights(model, path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rope.freq_base", 500000.0, r"llama\.rope\.freq_base is 500000\.0, and rope_theta "),
        ("attention.layer_norm_rms_epsilon", 0.25, "layer_norm_rms_epsilon is 0.25, and rms_norm_eps "),
        ("attention.head_count", 3, "head_count is 3, and num_attention_heads "),
        ("attention.head_count_kv", [1, 7, 1], r"head_count_kv is \[1, 7, 1\], and num_key_value_heads "),
        ("rope.scaling.type", "longrope", "rope.scaling.type is 'longrope'"),
        ("rope.scaling.factor", 8.0, "rope.scaling.factor is 8.0, and the factor of rope_scaling 1.0"),
        ("rope.scale_linear", 4.0, "rope.scaling.type is 'linear'"),
        ("expert_count", 8, "llama.expert_count is 8, which is not supported"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0, which is not supported"),
        ("attention.causal", False, "attention.causal is False, which is not supported"),
    ],
)
def test_metadata_of_gguf_that_describe_another_model(key: str, value: Any, words: str, tmp_path: Path) -> None:
    model, path = llama_file(tmp_path / "x.gguf", described({key: value}))
    with pytest.raises(ConfigError, match=rf"x\.gguf: its metadata describe another model: .*{words}"):
        bb.io.load_weights(model, path)
    with pytest.warns(MetadataWarning, match=words):
        bb.io.load_weights(model, path, strict=False)


def test_gguf_of_another_architecture_and_with_unknown_keys(tmp_path: Path) -> None:
    model, path = llama_file(tmp_path / "x.gguf", described({}, "qwen2"))
    with pytest.raises(ConfigError, match=r"general\.architecture is 'qwen2', and the model a llama"):
        bb.io.load_weights(model, path)
    model, path = llama_file(tmp_path / "y.gguf", described({"attention.magic": 1.0}))
    with pytest.warns(MetadataWarning, match=r"y\.gguf: 'llama\.attention\.magic': not known here"):
        bb.io.load_weights(model, path, strict=False)


def test_gguf_of_gemma_is_refused() -> None:
    model = frozen("gemma").model("numpy")
    with pytest.raises(ArgumentError, match=r"GGUF files of Gemma, whose norms hold 1 \+ weight"):
        bb.io.load_weights(model, {"blk.0.attn_norm.weight": np.ones(4)})
    with pytest.raises(ArgumentError, match=r"unused: blk\.0\.ssm_in\.weight"):
        bb.io.load_weights(frozen("llama").model("numpy"), {"blk.0.ssm_in.weight": np.ones(4)})


def test_layer_types_choose_sliding_windows() -> None:
    case = frozen("qwen2")
    types = ["full_attention", "sliding_attention"]
    result = case.model("numpy", layer_types=types, max_window_layers=9)(*case.given("numpy"))
    assert distance(result, case.result) < 3e-6


def test_names_of_older_files() -> None:
    """GPT-2 without a prefix and with masks, BERT with gamma and beta, and U-Nets with older names of attention."""
    case = frozen("gpt2")
    older = {name.removeprefix("transformer."): x for name, x in case.weights.items()}
    older |= {"h.0.attn.bias": np.ones((1, 1, 14, 14)), "h.1.attn.masked_bias": np.asarray(-1e4)}
    model = case.model("numpy", n_ctx=14)
    bb.io.load_weights(model, older)
    assert distance(model(*case.given("numpy")), case.result) < 3e-6
    case = frozen("bert_masked")
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in case.weights.items()
    }
    older |= {"bert.pooler.dense.weight": np.ones((16, 16)), "cls.seq_relationship.bias": np.ones(2)}
    model = case.model("numpy")
    bb.io.load_weights(model, older)
    assert distance(model(*case.given("numpy")), case.result) < 3e-6
    case, older = frozen("unet"), {}
    for name, x in case.weights.items():
        for new, old in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
            name = name.replace(f".{new}.", f".{old}.")
        older[name] = x
    assert set(older) != set(case.weights)
    bb.io.load_weights(case.model("numpy"), older)


@pytest.mark.parametrize("name", ["resnet", "resnet_bottleneck"])
def test_names_of_torchvision(name: str) -> None:
    case = frozen(name)
    model: Any = case.model("numpy")
    count = {"basic": 2, "bottleneck": 3}[model.config.layer_type]
    theirs = ["conv1.weight", "fc.weight", "fc.bias"]
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    theirs += [f"bn1.{part}" for part in parts]
    for i, depth in enumerate(model.config.depths):
        for j in range(depth):
            place = f"layer{i + 1}.{j}"
            theirs += [f"{place}.conv{k + 1}.weight" for k in range(count)]
            theirs += [f"{place}.bn{k + 1}.{part}" for k in range(count) for part in parts]
            if f"resnet.encoder.stages.{i}.layers.{j}.shortcut.convolution.weight" in model.state_dict():
                theirs += [f"{place}.downsample.0.weight", *(f"{place}.downsample.1.{part}" for part in parts)]
    assert {model.rename_weight(path) for path in theirs} == set(model.state_dict())


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"architectures": ["FooForCausalLM"]}, "no model has the architecture 'FooForCausalLM'"),
        ("llama", {"architectures": ["LamaForCausalLM"]}, "Did you mean 'LlamaForCausalLM'?"),
        ("llama", {"architectures": []}, r"the architecture \[\]"),
        ("llama", {"architectures": 3}, "the architecture 3"),
        ("llama", {"architectures": None, "model_type": "foo"}, "the model_type 'foo'.*Known: bert, gemma"),
        ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "the type 'longrope', which is not supported"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "the type 'linear' needs factor, a number above 0"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "needs factor, a number above 0"),
        ("llama", {"rope_scaling": {"rope_type": "default", "warp": 2}}, "has warp = 2, which is not known"),
        ("llama", {"rope_parameters": 3}, "rope_parameters is a table, not 3"),
        *(
            ("llama", {"rope_scaling": {"rope_type": kind, "factor": 2.0, key: x}}, f"has {key} = .*numbers from 1e-06")
            for kind, key, x in (
                ("yarn", "original_max_position_embeddings", 5e-324),
                ("yarn", "beta_fast", 1e308),
                ("yarn", "attention_factor", 10**300),
                ("linear", "factor", 5e-324),
                ("dynamic", "factor", 1e308),
            )
        ),
        ("llama", {"rope_scaling": None, "rope_theta": 1e300}, "rope_theta is 1e.300, and has to be above 1"),
        ("llama", {"rope_scaling": None, "rope_parameters": {"rope_theta": "x"}}, "rope_theta is a number, not 'x'"),
        (
            "llama",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": "x"}},
            "has beta_fast = 'x', and takes",
        ),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, "heads of more than 2 features"),
        (
            "llama",
            {"rope_scaling": None, "rope_parameters": {"rope_theta": 1.0}},
            "rope_theta is 1.0, and has to be above 1",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"num_hidden_layers": 1 << 40}, "num_hidden_layers is 1099511627776, and may be 10000 at most"),
        ("llama", {"rms_norm_eps": -1.0}, "eps is a number of at least 0"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 'full_attention' or 'sliding_attention'"),
        ("bert", {"num_labels": 1 << 40, "id2label": None}, "num_labels is .* 100000 at most"),
        ("bert", {"hidden_dropout_prob": 2.0}, "p is a number from 0 to 1"),
        ("resnet", {"depths": [1, 1 << 40]}, "may be 10000 layers at most"),
        ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish', which is not supported; supported: 'silu'"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is .*, which is not supported"),
        ("llama", {"hidden_size": "16"}, "hidden_size is an integer, not '16'"),
        ("llama", {"hidden_size": True}, "hidden_size is an integer, not True"),
        ("llama", {"hidden_size": 16.0}, "hidden_size is an integer, not 16.0"),
        ("llama", {"hidden_size": 0}, "hidden_size is 0, and has to be 1 or more"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, and has to be finite"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        ("llama", {"num_attention_heads": 3, "head_dim": None, "num_key_value_heads": 3}, "does not form 3 heads"),
        ("llama", {"eos_token_id": ["a"]}, "eos_token_id is an integer or a list, each item an integer or null"),
        ("gpt2", {"n_head": 3}, "n_embd 16 does not form n_head 3 heads"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True, which is not supported"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder is True"),
        ("vit", {"id2label": {"a": "b"}}, "id2label is a table of names by number"),
        ("bert_classes", {"num_labels": 7}, "num_labels is 7, and id2label names 3"),
        ("vit", {"patch_size": [4, 4, 4]}, "patch_size is one length, or a height and a width"),
        ("vit", {"patch_size": 32}, "patch_size 32 is larger than image_size"),
        ("vit", {"num_attention_heads": 5}, "does not form 5 heads"),
        ("resnet", {"depths": [1]}, "hidden_sizes and depths have a number for each stage"),
        ("resnet", {"depths": [1, 0]}, "hidden_sizes and depths have a number for each stage"),
        ("resnet", {"layer_type": "dense"}, "layer_type is 'dense'"),
        ("unet", {"down_block_types": ["DownBlock2D", "SkipDownBlock2D"]}, "down_block_types has 'SkipDownBlock2D'"),
        ("unet", {"up_block_types": ["UpBlock2D"]}, "have equal lengths"),
        ("unet", {"time_embedding_type": "fourier"}, "time_embedding_type is 'fourier'"),
    ],
)
def test_configurations_that_are_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path, **changes)
    with pytest.raises(ConfigError, match=words) as raised:
        bb.models.from_pretrained(folder)
    assert str(raised.value).startswith(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "holds list, and a configuration is a table"),
        (b"{}", "no model has the model_type None"),
    ],
)
def test_damaged_files(content: bytes | None, words: str, tmp_path: Path) -> None:
    folder = folder_of("gpt2", tmp_path)
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        bb.models.from_pretrained(folder)
    assert str(folder / "config.json") in str(raised.value)


def test_end_tokens_come_from_generation_config(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "a")
    path = folder / "generation_config.json"
    for stops in ([5, 2], 7):
        path.write_text(json.dumps({"eos_token_id": stops, "temperature": 0.6}))
        model = bb.models.from_pretrained(folder)
        assert model.config.eos_token_id == stops
        saved = tmp_path / f"saved {stops}"
        model.save_pretrained(saved)
        assert bb.models.from_pretrained(saved).config.eos_token_id == stops
    own = frozen("llama").model("numpy").config.eos_token_id
    for words in ("{}", '{"eos_token_id": null}'):
        path.write_text(words)
        assert bb.models.from_pretrained(folder).config.eos_token_id == own
    for text, words in (
        ("{", "not JSON"),
        ('{"eos_token_id": "x"}', "eos_token_id is an integer or a list, .*not 'x'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"generation_config\.json: {words}"):
            bb.models.from_pretrained(folder)


def test_missing_folders_and_single_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: there is no such folder, and nothing is downloaded"):
        bb.models.from_pretrained(tmp_path / "absent")
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"this is a file; give a folder with config\.json and weights"):
        bb.models.from_pretrained(tmp_path / "model.gguf")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "a", intermediate_size=32)
    with pytest.raises(
        ShapeError, match=r"gate_proj.weight .*has shape \[24, 16\] there and \[32, 16\] here"
    ) as raised:
        bb.models.from_pretrained(folder)
    assert str(folder) in str(raised.value)
    folder = folder_of("llama", tmp_path / "b", num_hidden_layers=3)
    with pytest.raises(ArgumentError, match=r"missing: model.layers.2.self_attn.q_proj.weight"):
        bb.models.from_pretrained(folder)
    folder = folder_of("llama", tmp_path / "c", num_hidden_layers=1)
    with pytest.raises(ArgumentError, match=r"unused: model.layers.1"):
        bb.models.from_pretrained(folder)
    folder = folder_of("llama", tmp_path / "d")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BackburnError, match="no file of weights"):
        bb.models.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"\x10" * 7)
    with pytest.raises(BackburnError, match="not a known file of weights"):
        bb.models.from_pretrained(folder)


def test_huge_sizes_take_no_memory(tmp_path: Path) -> None:
    """A wrong configuration is detected before allocation."""
    folder = folder_of("llama", tmp_path, hidden_size=1 << 20, vocab_size=1 << 40, head_dim=None)
    with pytest.raises(ShapeError, match=r"embed_tokens\.weight .*has shape"):
        bb.models.from_pretrained(folder, backend="numpy")


def test_the_configuration_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="GPT2: takes a GPT2Config, not LlamaConfig"):
        bb.models.GPT2(bb.models.LlamaConfig())  # type: ignore[arg-type]


def test_unknown_keys_are_kept() -> None:
    with pytest.warns(MetadataWarning, match="GPT2Config: 'task': not known here, and ignored"):
        config = bb.models.GPT2Config.from_dict({"n_layer": 1, "use_cache": False, "task": {"x": [1]}})
    assert config.extra == {"use_cache": False, "task": {"x": [1]}}
    assert config.to_dict()["task"] == {"x": [1]}
    with pytest.warns(MetadataWarning, match="'task'"):
        assert bb.models.GPT2Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("given", "theta", "scaling"),
    [  # as transformers 5.24 reads them
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default",
          "rope_theta": 5e5}, "rope_theta": 7e5}, 7e5, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e5}, "rope_theta": 7e5}, 3e5,
         {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 7e5}, 7e5,
         {"rope_type": "linear", "factor": 3.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 7e5}, 5e5,
         {"rope_type": "default"}),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 64}, 1e4,
         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}, "original_max_position_embeddings": 16}, 1e4,
         {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}),
    ],
)  # fmt: skip
def test_sources_of_rope_parameters(given: Any, theta: float, scaling: Any) -> None:
    config = bb.models.LlamaConfig.from_dict(given)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)
    again = bb.models.LlamaConfig.from_dict(config.to_dict())
    assert (again.rope_theta, again.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("LlamaConfig", "pruned_heads", {"0": [1]}), ("BertConfig", "pruned_heads", {"0": [1]}),
        ("LlamaConfig", "rope_interleaved", True), ("GPT2Config", "is_encoder_decoder", True),
        ("GPT2Config", "add_cross_attention", True), ("LlamaConfig", "partial_rotary_factor", 0.5),
        ("UNetConfig", "class_embed_type", "timestep"), ("ViTConfig", "quantization_config", {"bits": 4}),
    ],
)  # fmt: skip
def test_keys_that_change_the_result_are_refused(kind: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind}: {key} is .*, which is not supported"):
        getattr(bb.models, kind).from_dict({key: value})


def test_sliding_window_is_ignored_by_llama() -> None:
    assert bb.models.LlamaConfig.from_dict({"sliding_window": 4}).sliding_window is None
    assert bb.models.MistralConfig.from_dict({"sliding_window": 4}).sliding_window == 4


def test_unsupported_keys_of_generation_config_warn(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    idle = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [1, 2], "num_beams": 1}
    (folder / "generation_config.json").write_text(json.dumps(idle))
    assert bb.models.from_pretrained(folder).config.eos_token_id == [1, 2]
    (folder / "generation_config.json").write_text(json.dumps({**idle, "suppress_tokens": [3], "num_beams": 4}))
    with pytest.warns(MetadataWarning, match=r"generation_config.json: 'num_beams', 'suppress_tokens': not known here"):
        bb.models.from_pretrained(folder)


def assert_same(found: Any, expected: Any) -> None:
    """Assert that two models have equal tensors and dtypes."""
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    for path, x in theirs.items():
        one, other = ((y.dequantize() if y.dtype.kind == "quantized" else y).numpy() for y in (mine[path], x))
        assert mine[path].dtype is x.dtype
        np.testing.assert_array_equal(one, other, err_msg=path)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma", "bert", "gpt2", "resnet", "unet"])
@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
def test_quantized_models_in_folders(name: str, backend: str, tmp_path: Path) -> None:
    """A quantized model is restored exactly, without an intermediate float model."""
    case = frozen(name)
    model = bb.nn.quantize_model(case.model(backend), "qint8_symmetric_channel0_float32")
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"] == {"quant_method": "backburn"}
    found = bb.models.from_pretrained(tmp_path, backend=backend)
    assert {p: type(m) for p, m in found.named_modules()} == {p: type(m) for p, m in model.named_modules()}
    assert_same(found, model)
    np.testing.assert_allclose(found(*case.given(backend)).numpy(), model(*case.given(backend)).numpy(), atol=2e-6)
    found.save_pretrained(tmp_path / "again")
    again = bb.models.from_pretrained(tmp_path / "again", backend=backend)
    assert_same(again, model)


@pytest.mark.parametrize("method", ["bitsandbytes", "fp8", 3, None])
def test_other_quantization_is_refused(method: Any, tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "quantization_config": {"quant_method": method}}))
    with pytest.raises(ConfigError, match=r"quantization_config is .*, which is not supported"):
        bb.models.from_pretrained(folder)


@pytest.mark.parametrize("name", ["gpt2", "gemma"])
def test_tied_heads_of_quantized_models(name: str, tmp_path: Path) -> None:
    """Quantizing a tied head unties it; otherwise it stays the embedding."""
    case = frozen(name)
    assert case.model("numpy").config.tie_word_embeddings
    whole = bb.nn.quantize_model(case.model("numpy"), "qint8_symmetric_channel0_float32")
    for pattern in ("*", "*proj"):
        model = bb.nn.quantize_model(case.model("numpy"), "qint8_symmetric_channel0_float32", pattern=pattern)
        model.save_pretrained(tmp_path / pattern.strip("*"))
        found: Any = bb.models.from_pretrained(tmp_path / pattern.strip("*"), backend="numpy")
        assert_same(found, model)
        own = found.lm_head.weight
        body = found.transformer.wte if name == "gpt2" else found.model.embed_tokens
        assert (own is body.weight) is (pattern == "*proj")
        assert (own.dtype is whole.lm_head.weight.dtype) is (pattern == "*")


@pytest.mark.parametrize("changes", [
    {"num_hidden_layers": 5000}, {"num_hidden_layers": 10**400}, {"hidden_size": 2**62}, {"rms_norm_eps": 10**400},
    {"rope_theta": 10**309}, {"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, {"vocab_size": True},
])  # fmt: skip
def test_sizes_without_weights_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    """The number of layers is compared with the tensors before allocation; integers of 400 digits are not floats."""
    config = bb.models.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                   num_attention_heads=2)  # fmt: skip
    bb.models.Llama(config).save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**table, **changes}))
    made: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bb.models.Llama, "__init__", lambda *given, **options: made.append(given))
        with pytest.raises(ConfigError, match=r"config\.json: LlamaConfig: "):
            bb.models.from_pretrained(tmp_path)
    assert not made


def test_configurations_of_too_many_blocks_are_refused(tmp_path: Path) -> None:
    config = bb.models.UNetConfig(
        block_out_channels=[4, 8], down_block_types=["DownBlock2D"] * 2, up_block_types=["UpBlock2D"] * 2,
        layers_per_block=1, norm_num_groups=2,
    )  # fmt: skip
    bb.models.UNet(config).save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    for key in ("down_block_types", "up_block_types", "block_out_channels"):
        table[key] = table[key][:1] * 10_000
    (tmp_path / "config.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=r"down_block_types is .*, and the weights beside it have \d+ tensors in all"):
        bb.models.from_pretrained(tmp_path)


def test_saving_a_model_copies_its_tokenizer(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    config = bb.models.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    bb.models.Llama(config).save_pretrained(first)
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
    (first / "tokenizer.json").write_text("words")
    (first / "generation_config.json").write_text("{}")
    (first / "secrets.txt").write_text("of nobody")
    second.mkdir()
    (second / "generation_config.json").write_text('{"do_sample": true}')
    model = bb.models.from_pretrained(first)
    model.astype("float64").save_pretrained(second)
    assert (second / "tokenizer.json").read_text() == "words"
    assert (second / "generation_config.json").read_text() == '{"do_sample": true}'
    assert not (second / "secrets.txt").exists()
    assert bb.models.from_pretrained(second).config.hidden_size == 8
    (first / "tokenizer.json").unlink()
    (first / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("of another")
    with pytest.raises(FileFormatError, match="out of the folder"):
        model.save_pretrained(third)


def test_all_layers_share_the_row_order_of_queries() -> None:
    """A small GGUF file may name a hundred thousand layers without values."""
    model = bb.models.Llama(
        bb.models.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
        )
    )
    (_, one), (_, other) = (model.rename_weight(f"blk.{i}.attn_q.weight") for i in (0, 1))
    assert one is other
    assert one.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_tensors_missing_from_the_model_are_not_reordered() -> None:
    source = {"weight": np.ones((1, 2)), "bias": np.ones(1), "other": np.ones(3)}
    report = bb.io.load_weights(
        bb.nn.Linear(2, 1), source, rename=lambda name: (name, np.arange(9)) if name == "other" else name, strict=False
    )
    assert report.unused == ("other",)
