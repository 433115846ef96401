"""Names and row orders of Llama's weights in GGUF files written by llama.cpp's converter of Hugging Face's folders."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from backburn.base.errors import ArgumentError
from backburn.models.configs import LlamaConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Names of a model's parts in these files, and their paths here.
PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
#: Names of a layer's parts in these files, and their paths in the layer.
LAYER_PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
#: The families whose rotation pairs adjacent features of queries and keys in these files, and halves here.
TURNED_BY_NEIGHBOURS = ("llama", "mistral")


def llama_weight(name: str, config: LlamaConfig) -> str | tuple[str, NDArray[Any]] | None:
    """The path in a :class:`Llama` of a tensor that a GGUF file calls ``name``; other names are unchanged.

    Queries and keys come with the order of the file's rows here. Rates of rotation, which follow from the
    configuration, are skipped. Raises :class:`ArgumentError` for files of Gemma, whose norms have other weights.
    """
    part, _, kind = name.rpartition(".")
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", part)
    if found is None and part not in (*PARTS, "rope_freqs"):
        return name
    if config.IS_GEMMA:
        raise ArgumentError("load_weights: GGUF files of Gemma, whose norms hold 1 + weight, are not supported")
    if found is None:
        return f"{PARTS[part]}.{kind}" if part in PARTS else None
    layer, part = found.groups()
    if part not in LAYER_PARTS:
        return name
    path = f"model.layers.{layer}.{LAYER_PARTS[part]}.{kind}"
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part)
    if heads is None or config.model_type not in TURNED_BY_NEIGHBOURS:
        return path
    assert config.head_dim is not None
    return path, _turned_rows(heads, config.head_dim)


@lru_cache(maxsize=8)
def _turned_rows(heads: int, size: int) -> NDArray[Any]:
    """The rows of a file in their order here, which many tensors share."""
    rows = np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)
    rows.flags.writeable = False
    return rows
