"""Models and state on disk: safetensors and npz files, written atomically, read without executing code."""

from typing import TYPE_CHECKING

from backburn.hints import lookups
from backburn.io.atomic import write_atomically
from backburn.io.npz import load_npz, save_npz
from backburn.io.safe import FORMAT_VERSION, Saved, load_model, load_state, save_model, save_state
from backburn.io.torch_state import torch_state

__all__ = [
    "FORMAT_VERSION", "Saved", "load_model", "load_npz", "load_state", "save_model", "save_npz", "save_state",
    "torch_state", "write_atomically",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.io", __all__)
