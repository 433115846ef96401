"""Compare the lists of metadata keys with the libraries that write the files: transformers, PEFT and diffusers.

``python tools/compare_metadata_keys.py`` prints the keys of each library's configurations that are on no list of ours,
which a reader would only warn of, and ends with 1 if there are any. It needs the extra ``peers``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from typing import Any

from backburn.io import adapter_keys
from backburn.models import configs, keys

#: The configurations of transformers, by the names that both libraries give them.
FAMILIES = (
    "LlamaConfig", "MistralConfig", "Qwen2Config", "GemmaConfig", "GPT2Config", "BertConfig", "ViTConfig",
    "ResNetConfig",
)  # fmt: skip


def unlisted() -> dict[str, set[str]]:
    """The keys of each class of the libraries that no list of ours has."""
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
    return found


def main() -> int:
    """Print what is on no list; 1 if there is any."""
    found = unlisted()
    for name, missing in found.items():
        version = importlib.import_module(name.partition(".")[0]).__version__
        print(f"{name} {version}: {', '.join(sorted(missing)) or 'all keys are listed'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
