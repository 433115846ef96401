"""Models and state on disk: safetensors and npz files, written atomically, read without executing code."""

from typing import TYPE_CHECKING, NoReturn

from backburn.base.hints import missing_name
from backburn.io.atomic import write_atomically
from backburn.io.npz import load_npz, save_npz
from backburn.io.safe import FORMAT_VERSION, Saved, load_model, load_state, save_model, save_state

__all__ = [
    "FORMAT_VERSION",
    "Saved",
    "load_model",
    "load_npz",
    "load_state",
    "save_model",
    "save_npz",
    "save_state",
    "write_atomically",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise missing_name("backburn.io", name)
