"""Models, state and weights on disk: written atomically, read without executing code, from files of any library."""

from typing import TYPE_CHECKING

from backburn.hints import lookups
from backburn.io.adapters import load_adapters, save_adapters
from backburn.io.atomic import write_atomically
from backburn.io.npz import load_npz, save_npz
from backburn.io.safe import Saved, load_model, load_state, save_model, save_state
from backburn.io.torch_state import torch_state
from backburn.io.versions import FORMAT_VERSION
from backburn.io.weights import WeightsReport, load_weights, save_weights

__all__ = [
    "FORMAT_VERSION", "Saved", "WeightsReport", "load_adapters", "load_model", "load_npz", "load_state", "load_weights",
    "save_adapters", "save_model", "save_npz", "save_state", "save_weights", "torch_state", "write_atomically",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.io", __all__)
