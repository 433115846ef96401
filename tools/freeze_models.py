"""Stores results of models of transformers and diffusers as expected values of ``tests/models/test_frozen.py``.

    python tools/freeze_models.py

It needs the extra ``peers``; the test does not. Each case has a configuration as ``save_pretrained`` writes it, random
weights under their names in the file, inputs, and, computed in float64, the result and the gradients of the sum of its
elements times :func:`factors`, also under the names in the file. Weights and inputs are exact in float16.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

t: Any = importlib.import_module("transformers")
diffusers: Any = importlib.import_module("diffusers")

FILE = Path(__file__).parents[1] / "tests" / "models" / "frozen.npz"

SIZES = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
DECODER = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 10}
UNET = {
    "block_out_channels": (4, 8), "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "norm_num_groups": 2,
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "layers_per_block": 1, "attention_head_dim": 4,
    "downsample_padding": 0, "freq_shift": 1, "sample_size": 8,
}  # fmt: skip
LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 5}


def rope(kind: str, **options: Any) -> dict[str, Any]:
    """The options of a Llama with scaled rotary embeddings."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, "factor": 4.0, **options}}


#: For each case: the class, its configuration, and the kind of its inputs.
CASES: dict[str, tuple[Any, Any, str]] = {
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**DECODER, attention_bias=True, mlp_bias=True), "text"),
    "llama_linear": (t.LlamaForCausalLM, t.LlamaConfig(**DECODER, **rope("linear")), "text"),
    "llama_dynamic": (t.LlamaForCausalLM, t.LlamaConfig(**DECODER, **rope("dynamic")), "text"),
    "llama_llama3": (t.LlamaForCausalLM, t.LlamaConfig(**DECODER, **rope("llama3", **LLAMA3)), "text"),
    "llama_yarn": (
        t.LlamaForCausalLM,
        t.LlamaConfig(**DECODER, **rope("yarn", original_max_position_embeddings=5)),
        "text",
    ),
    "mistral": (t.MistralForCausalLM, t.MistralConfig(**DECODER, sliding_window=5, head_dim=6), "text"),
    "qwen2": (
        t.Qwen2ForCausalLM,
        t.Qwen2Config(**DECODER, sliding_window=5, use_sliding_window=True, max_window_layers=1),
        "text",
    ),
    "gemma": (t.GemmaForCausalLM, t.GemmaConfig(**DECODER, head_dim=6), "text"),
    "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(vocab_size=29, n_embd=16, n_layer=2, n_head=4, n_positions=14), "text"),
    "gpt2_scaled": (
        t.GPT2LMHeadModel,
        t.GPT2Config(
            vocab_size=29, n_embd=16, n_layer=2, n_head=2, n_positions=14, n_inner=24, activation_function="relu",
            scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False,
        ),
        "text",
    ),
    "bert": (t.BertModel, t.BertConfig(**SIZES, max_position_embeddings=14), "encoder"),
    "bert_masked": (t.BertForMaskedLM, t.BertConfig(**SIZES, max_position_embeddings=14), "encoder"),
    "bert_classes": (
        t.BertForSequenceClassification,
        t.BertConfig(**SIZES, max_position_embeddings=14, num_labels=3),
        "encoder",
    ),
    "vit": (
        t.ViTForImageClassification,
        t.ViTConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=(16, 8),
            patch_size=4, num_labels=5,
        ),
        "tall image",
    ),
    "resnet": (
        t.ResNetForImageClassification,
        t.ResNetConfig(embedding_size=6, hidden_sizes=[6, 8], depths=[1, 2], layer_type="basic", num_labels=5),
        "image",
    ),
    "resnet_bottleneck": (
        t.ResNetForImageClassification,
        t.ResNetConfig(embedding_size=6, hidden_sizes=[8, 16], depths=[2, 1], downsample_in_first_stage=True),
        "image",
    ),
    "unet": (diffusers.UNet2DModel, UNET, "noise"),
}  # fmt: skip


def inputs_of(kind: str, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs by the argument names of the classes."""
    tokens = random.integers(0, 29, (2, 13))
    segments = np.repeat([[0] * 6 + [1] * 7], 2, axis=0)
    mask = np.asarray([[1] * 13, [1] * 9 + [0] * 4])
    if kind == "text":
        return {"input_ids": tokens}
    if kind == "encoder":
        return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": segments}
    shape = {"tall image": (2, 3, 16, 8), "image": (2, 3, 32, 32), "noise": (2, 3, 8, 8)}[kind]
    image = random.normal(size=shape).astype(np.float16)
    return {"sample": image, "timestep": np.asarray([3, 700])} if kind == "noise" else {"pixel_values": image}


def factors(shape: tuple[int, ...]) -> np.ndarray:
    """The derivative of the loss with respect to each element of the result."""
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


def published(model: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors of a model, and its configuration, as ``save_pretrained`` writes them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (weights,) = Path(folder).glob("*.safetensors")
        return (
            {name: x.numpy() for name, x in load_file(weights).items()},
            json.loads((Path(folder) / "config.json").read_text()),
        )


def frozen(name: str) -> dict[str, np.ndarray]:
    """The arrays of a case."""
    kind, config, inputs_kind = CASES[name]
    generator = np.random.default_rng(list(name.encode()))
    model = (kind(**config) if isinstance(config, dict) else kind(config)).eval()
    with torch.no_grad():
        statistics = [(path, x) for path, x in model.named_buffers() if "running" in path]
        for path, x in (*model.named_parameters(), *statistics):
            values = generator.normal(size=x.shape) * (0.3 if x.ndim > 1 else 0.1)
            if path.endswith("running_var"):
                values = 1.0 + np.abs(values)
            x.copy_(torch.tensor(values.astype(np.float16)) + (x if x.ndim == 1 and path.endswith("weight") else 0))
            x.copy_(x.half())
    inputs = inputs_of(inputs_kind, generator)
    weights, about = published(model)
    wide = model.double()
    given = {key: torch.tensor(x.astype(np.float64) if x.dtype == np.float16 else x) for key, x in inputs.items()}
    result = next(iter(wide(**given).values()))
    (result * torch.tensor(factors(result.shape))).sum().backward()
    with torch.no_grad():
        for x in wide.parameters():
            x.copy_(torch.zeros_like(x) if x.grad is None else x.grad)
    grads, _ = published(wide)
    names = sorted(name for name, x in grads.items() if x.dtype == np.float64 and "running" not in name)
    kept = [name for name, x in weights.items() if x.dtype == np.float32]
    about = {
        "config": about,
        "weights": {name: weights[name].shape for name in kept},
        "grads": {name: grads[name].shape for name in names},
    }
    return {
        f"{name}/about": np.frombuffer(json.dumps(about, sort_keys=False).encode(), np.uint8),
        f"{name}/result": result.detach().numpy().astype(np.float32),
        f"{name}/weights": np.concatenate([weights[name].ravel() for name in kept]).astype(np.float16),
        f"{name}/grads": np.concatenate([grads[name].ravel() for name in names]).astype(np.float32),
        **{f"{name}/input/{key}": x for key, x in inputs.items()},
    }


if __name__ == "__main__":
    t.utils.logging.set_verbosity_error()
    arrays: dict[str, np.ndarray] = {}
    for case in CASES:
        arrays |= frozen(case)
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, allow_pickle=False, **arrays)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(CASES)} models")
