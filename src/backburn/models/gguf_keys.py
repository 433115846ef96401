"""The metadata keys of GGUF files: which are compared with a configuration, without effect, or refused.

Those of an architecture, such as ``llama.rope.freq_base``, are listed without its name. Unlisted keys cause a warning.
(https://github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py)
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

from backburn.base.call_site import stack_level
from backburn.base.errors import ConfigError
from backburn.base.metadata import MetadataWarning, warn_of

#: The architectures of these files, and the families that read them.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "llama": ("llama", "mistral"),
    "mistral": ("mistral",),
    "qwen2": ("qwen2",),
}

#: The keys of an architecture that are compared with the configuration's values.
COMPARED = frozenset(
    {"vocab_size", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
     "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
     "attention.sliding_window", "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
     "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
     "rope.scale_linear"}
)  # fmt: skip
#: The keys of an architecture without an effect: lengths that no computation uses, and layouts of the file.
IDLE = frozenset(
    {"context_length", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type", "decoder_start_token_id"}
)
#: The values with which keys of an architecture have no effect; others are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,), "use_parallel_residual": (False,), "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0), "embedding_scale": (0.0, 1.0), "attention.scale": (0.0,),
    "attention.output_scale": (0.0, 1.0), "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (0.0, 1.0), "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.alpha": (0.0,),
    **dict.fromkeys(
        ("activation_sparsity_scale", "altup.active_idx", "altup.num_inputs", "attention.clamp_kqv",
         "attention.decay_lora_rank", "attention.gate_lora_rank", "attention.group_norm_epsilon",
         "attention.group_norm_groups", "attention.iclr_lora_rank", "attention.indexer.head_count",
         "attention.indexer.key_length", "attention.indexer.top_k", "attention.key_length_mla",
         "attention.key_length_swa", "attention.kv_lora_rank", "attention.layer_norm_epsilon",
         "attention.max_alibi_bias", "attention.q_lora_rank", "attention.relative_buckets_count",
         "attention.shared_kv_layers", "attention.sliding_window_pattern", "attention.temperature_length",
         "attention.temperature_scale", "attention.value_length_mla", "attention.value_length_swa",
         "attention.value_residual_mix_lora_rank", "attn_logit_softcapping", "classifier.output_labels",
         "convnext.block_count", "convnext.embedding_length", "decoder_block_count", "dense_2_feat_in",
         "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out", "embedding_length_out",
         "embedding_length_per_layer_input", "expert_chunk_feed_forward_length", "expert_count",
         "expert_feed_forward_length", "expert_gating_func", "expert_group_count", "expert_group_scale",
         "expert_group_used_count", "expert_shared_count", "expert_shared_feed_forward_length", "expert_used_count",
         "expert_weights_norm", "expert_weights_scale", "experts_per_group", "features_length",
         "final_logit_softcapping", "full_attention_interval", "interleave_moe_layer_step", "kda.head_dim",
         "leading_dense_block_count", "moe_every_n_layers", "moe_latent_size", "n_deepstack_layers",
         "nextn_predict_layers", "posnet.block_count", "posnet.embedding_length", "rescale_every_n_layers",
         "rope.dimension_count_swa", "rope.dimension_sections", "rope.freq_base_swa",
         "rope.scaling.yarn_log_multiplier", "router_logit_softcapping", "shortconv.l_cache", "ssm.conv_kernel",
         "ssm.dt_b_c_rms", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank",
         "swiglu_clamp_exp", "swiglu_clamp_shexp", "swin_norm", "time_decay_extra_dim", "time_mix_extra_dim",
         "token_shift_count", "wkv.head_size"),
        (0, 0.0, False),
    ),
}  # fmt: skip
#: Keys of no architecture: the file's origin, how it is split, and its tokenizer, which is not read here.
_GENERAL = re.compile(
    r"general\.(architecture|quantization_version|alignment|file_type|sampling\.\w+|name|author|version|organization"
    r"|finetune|basename|description|quantized_by|size_label|license(\.name|\.link)?|url|doi|uuid|repo_url"
    r"|source\.(url|doi|uuid|repo_url|huggingface\.repository)|(base_model|dataset)\.(count|\w+\.\w+)|tags|languages"
    r"|datasets)"
    r"|split\.(no|count|tensors\.count)|quantize\.imatrix\.\w+|imatrix\.\w+"
    r"|tokenizer\.(ggml\.\w+|huggingface\.json|rwkv\.world|chat_templates?(\.\w+)?)"
)
#: The types of rotation in GGUF, and the corresponding types in ``rope_scaling``.
_SCALINGS = {"none": ("default", "dynamic", "llama3"), "linear": ("linear",), "yarn": ("yarn",)}


def is_listed(key: str) -> bool:
    """Whether a key is on a list; one of an architecture begins with ``{arch}.`` or its name."""
    part = key.partition(".")[2]
    return bool(_GENERAL.fullmatch(key)) or key == "general.type" or part in COMPARED | IDLE | NEUTRAL.keys()


def check_metadata(where: str, values: Mapping[str, Any], config: Any, strict: bool) -> None:
    """Raise :class:`ConfigError` if the metadata of a file contradict a Llama's configuration.

    Unless ``strict``, warn instead. Also warns of unlisted keys.
    """
    kind = values.get("general.architecture")
    if kind is None:
        return  # not a file of llama.cpp's converter
    prefix = f"{kind}."
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    wrong = [*_other_kind(kind, values, config), *_differences(prefix, own, config)]
    if wrong:
        words = f"load_weights: {where}: its metadata describe another model: {'; '.join(wrong)}"
        if strict:
            raise ConfigError(f"{words}. Change the configuration, or load with strict=False. Nothing was loaded")
        warnings.warn(words, MetadataWarning, stacklevel=stack_level())
    listed = COMPARED | IDLE | NEUTRAL.keys()
    unknown = [k for k in values if not (k.removeprefix(prefix) in listed if k.startswith(prefix) else is_listed(k))]
    warn_of(where, unknown, stacklevel=stack_level() + 1)


def _other_kind(kind: Any, values: Mapping[str, Any], config: Any) -> list[str]:
    found = []
    if config.model_type not in ARCHITECTURES.get(str(kind), ()):
        found.append(f"general.architecture is {kind!r:.50}, and the model a {config.model_type}")
    if values.get("general.type", "model") != "model":
        found.append(f"general.type is {values['general.type']!r:.50}")
    return found


def _differences(prefix: str, own: Mapping[str, Any], config: Any) -> list[str]:
    """Descriptions of the keys of an architecture that contradict the configuration."""
    scaling = config.rope_scaling or {}
    rotation = scaling.get("rope_type", scaling.get("type", "default"))
    expected: dict[str, tuple[Any, str]] = {
        "vocab_size": (config.vocab_size, "vocab_size"),
        "embedding_length": (config.hidden_size, "hidden_size"),
        "block_count": (config.num_hidden_layers, "num_hidden_layers"),
        "feed_forward_length": (config.intermediate_size, "intermediate_size"),
        "attention.head_count": (config.num_attention_heads, "num_attention_heads"),
        "attention.head_count_kv": (config.num_key_value_heads, "num_key_value_heads"),
        "attention.key_length": (config.head_dim, "head_dim"),
        "attention.value_length": (config.head_dim, "head_dim"),
        "rope.dimension_count": (config.head_dim, "head_dim"),
        "attention.layer_norm_rms_epsilon": (config.rms_norm_eps, "rms_norm_eps"),
        "attention.sliding_window": (config.sliding_window or 0, "sliding_window"),
        "rope.freq_base": (config.rope_theta, "rope_theta"),
        "rope.scaling.factor": (scaling.get("factor", 1.0), "the factor of rope_scaling"),
        "rope.scale_linear": (scaling.get("factor", 1.0), "the factor of rope_scaling"),
        "rope.scaling.original_context_length": (
            scaling.get("original_max_position_embeddings"), "original_max_position_embeddings of rope_scaling",
        ),
        "rope.scaling.yarn_beta_fast": (scaling.get("beta_fast") or 32, "beta_fast of rope_scaling"),
        "rope.scaling.yarn_beta_slow": (scaling.get("beta_slow") or 1, "beta_slow of rope_scaling"),
    }  # fmt: skip
    found = []
    for key, (value, name) in expected.items():
        if key in own and own[key] is not None and not _is(own[key], value):
            found.append(f"{prefix}{key} is {own[key]!r:.100}, and {name} {value!r:.50}")
    stretched = own.get("rope.scaling.type", "linear" if own.get("rope.scale_linear", 1.0) != 1.0 else "none")
    has_rotation = any(key.startswith("rope.") for key in own)
    if has_rotation and rotation not in _SCALINGS.get(str(stretched), ()):
        found.append(f"{prefix}rope.scaling.type is {stretched!r:.50}, and rope_scaling of the type {rotation!r}")
    for key, known in NEUTRAL.items():
        if key in own and not any(_is(own[key], value) for value in known):
            found.append(f"{prefix}{key} is {own[key]!r:.100}, which is not supported")
    return found


def _is(theirs: Any, ours: Any) -> bool:
    """Whether two values are the same; theirs may be one for each layer, or a number in float32."""
    if isinstance(theirs, list):
        return all(_is(x, ours) for x in theirs)
    if isinstance(theirs, (int, float)) and isinstance(ours, (int, float)):
        return math.isclose(theirs, ours, rel_tol=1e-6, abs_tol=0.0)
    return bool(theirs == ours)
