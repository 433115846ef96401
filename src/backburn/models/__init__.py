"""Published models: architectures built from ``config.json``, and weights read from and written to folders.

    model = bb.models.from_pretrained("folder")             # config.json decides the class and all sizes
    model = bb.models.Llama(bb.models.LlamaConfig(hidden_size=256, ...))
    logits = model(tokens)

Architectures are written with :mod:`backburn.nn`, with the parameter names of the published files.
"""

from typing import TYPE_CHECKING

from backburn.hints import lookups
from backburn.models.bert import Bert, BertForMaskedLM, BertForSequenceClassification
from backburn.models.cache import Cache
from backburn.models.config import Config
from backburn.models.configs import (
    BertConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    ResNetConfig,
    UNetConfig,
    ViTConfig,
)
from backburn.models.generation import generate, stream
from backburn.models.gpt2 import GPT2
from backburn.models.llama import Llama
from backburn.models.pretrained import Pretrained, from_pretrained
from backburn.models.resnet import ResNet
from backburn.models.sampling import Sampling
from backburn.models.tokenizer import Tokenizer
from backburn.models.unet import UNet
from backburn.models.vit import ViT

__all__ = [
    "from_pretrained", "Pretrained", "Config", "Cache", "generate", "stream", "Sampling", "Tokenizer",
    "Llama", "LlamaConfig", "MistralConfig", "Qwen2Config", "GemmaConfig", "GPT2", "GPT2Config",
    "Bert", "BertForMaskedLM", "BertForSequenceClassification", "BertConfig",
    "ViT", "ViTConfig", "ResNet", "ResNetConfig", "UNet", "UNetConfig",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.models", __all__)
