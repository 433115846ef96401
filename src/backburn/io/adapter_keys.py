"""The keys of PEFT's ``adapter_config.json`` for LoRA: which are read, which change nothing, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backburn.base.errors import FileFormatError
from backburn.base.metadata import warn_of

#: Keys that are read.
READ = frozenset(
    {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "bias",
     "init_lora_weights"}
)  # fmt: skip
#: Keys that do not affect trained adapters: the names of their tensors say which layers they adapt.
IDLE = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out",
     "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
     "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
     "target_modules", "task_type", "velora_config"}
)  # fmt: skip
#: Keys that change the result: refused unless empty or false.
REFUSED = (
    "alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "kasa_config", "layer_replication", "lora_bias",
    "modules_to_save", "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_qalora",
)  # fmt: skip
#: Initializations that do not change the base's weights; the others subtract the initial adapter from them.
_HARMLESS = re.compile(r"gaussian|eva|mica|orthogonal|true|false")


def check_keys(where: str, config: Mapping[str, Any]) -> None:
    """Raise :class:`FileFormatError` for a key whose value is not supported, and warn of keys that are on no list."""
    for name in REFUSED:
        if config.get(name):
            raise FileFormatError(f"{where}: {name} is {config[name]!r:.50}, which is not read")
    if config.get("bias", "none") != "none":
        raise FileFormatError(f"{where}: bias is {config['bias']!r:.50}: adapters that change biases are not read")
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and not _HARMLESS.fullmatch(begun.lower()):
        raise FileFormatError(
            f"{where}: init_lora_weights is {begun!r:.50}, which changes the base's weights before training, and the "
            f"adapters belong to that base. PEFT converts them: save_pretrained(folder, "
            f"path_initial_model_for_weight_conversion=...)"
        )
    warn_of(where, config.keys() - READ - IDLE - set(REFUSED), stacklevel=5)
