"""Published models: their architectures, built from ``config.json``, and their weights, read from folders and written.

    model = bb.models.from_pretrained("folder")             # config.json decides the class and all sizes
    model = bb.models.Llama(bb.models.LlamaConfig(hidden_size=256, ...))
    logits = model(tokens)

Each architecture is one module, written with :mod:`backburn.nn`, under the names of the published files.
"""

from typing import TYPE_CHECKING

from backburn.hints import lookups
from backburn.models.cache import Cache
from backburn.models.config import Config
from backburn.models.gpt2 import GPT2, GPT2Config
from backburn.models.llama import Llama
from backburn.models.llama_config import GemmaConfig, LlamaConfig, MistralConfig, Qwen2Config
from backburn.models.pretrained import Pretrained, from_pretrained

__all__ = [
    "GPT2", "Cache", "Config", "GPT2Config", "GemmaConfig", "Llama", "LlamaConfig", "MistralConfig", "Pretrained", "Qwen2Config",
    "from_pretrained",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.models", __all__)
