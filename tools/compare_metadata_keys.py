"""Compare the lists of metadata keys with the libraries that write the files: transformers, PEFT, diffusers and gguf.

``python tools/compare_metadata_keys.py`` prints the keys of each library's configurations that are on none of our
lists, so that a reader would only warn about them, and exits with status 1 if it finds one. It needs the extra
``peers``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from typing import Any

from backburn.io import adapter_keys
from backburn.models import configs, gguf_keys, keys, tokenizer

#: The configurations of transformers, by the names that both libraries give them.
FAMILIES = (
    "LlamaConfig", "MistralConfig", "Qwen2Config", "GemmaConfig", "GPT2Config", "BertConfig", "ViTConfig",
    "ResNetConfig",
)  # fmt: skip


#: Options of tokenizers that are read from other files.
_MADE = {"vocab", "merges", "unk_id", "post_processor", "tokenizer_padding", "tokenizer_truncation", "tokenizer"}


def unlisted() -> dict[str, set[str]]:
    """The keys of each class of the libraries that are on none of our lists."""
    transformers = importlib.import_module("transformers")
    found = {}
    for name in FAMILIES:
        theirs: Any = getattr(transformers, name)
        written = set(theirs().to_dict())
        if dataclasses.is_dataclass(theirs):
            written |= {field.name for field in dataclasses.fields(theirs)}
        found[f"transformers.{name}"] = written - getattr(configs, name).known()
    found["transformers.GenerationConfig"] = set(transformers.GenerationConfig().to_dict()) - keys.GENERATION
    peft = importlib.import_module("peft")
    listed = adapter_keys.READ | adapter_keys.IDLE | set(adapter_keys.REFUSED)
    found["peft.LoraConfig"] = {field.name for field in dataclasses.fields(peft.LoraConfig)} - listed
    unet: Any = importlib.import_module("diffusers").UNet2DModel
    options = set(inspect.signature(unet.__init__).parameters) - {"self"}
    found["diffusers.UNet2DModel"] = options - configs.UNetConfig.known()
    for name in ("PreTrainedTokenizerFast", "LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer",
                 "BertTokenizer"):  # fmt: skip
        found[f"transformers.{name}"] = _options(getattr(transformers, name)) - tokenizer.KEYS
    return found | unlisted_of_gguf()


def _options(kind: Any) -> set[str]:
    """The options of a tokenizer that its files may contain: named parameters, and those taken from ``kwargs``."""
    found: set[str] = set()
    for cls in kind.__mro__:
        begin = vars(cls).get("__init__")
        if inspect.isfunction(begin):
            named = inspect.signature(begin).parameters.values()
            found |= {p.name for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}
            found |= set(re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(begin)))
    return {key for key in found if not key.startswith("_")} - _MADE


def unlisted_of_gguf() -> dict[str, set[str]]:
    """The keys of GGUF files that are on none of our lists, except those of images, audio and adapters."""
    try:
        constants = importlib.import_module("gguf.constants")
    except ImportError:
        return {}
    keys = {key for name, part in vars(constants.Keys).items() if isinstance(part, type) for key in _texts(part)
            if name not in ("Adapter", "Clip", "ClipAudio", "ClipVision", "Diffusion", "xIELU")}  # fmt: skip
    named = {key.replace("{id}", "0").replace("{name}", "x").replace("{dense}", "dense_2") for key in keys}
    return {"gguf.Keys": {key for key in named if not gguf_keys.is_listed(key)}}


def _texts(part: type) -> set[str]:
    """The strings in a class and its nested classes."""
    found: set[str] = set()
    for name, value in vars(part).items():
        if isinstance(value, str) and not name.startswith("__"):
            found.add(value)
        elif isinstance(value, type):
            found |= _texts(value)
    return found


def main() -> int:
    """Print the keys that are on no list; return 1 if there is one."""
    found = unlisted()
    for name, missing in found.items():
        version = importlib.import_module(name.partition(".")[0]).__version__
        print(f"{name} {version}: {', '.join(sorted(missing)) or 'all keys are listed'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
