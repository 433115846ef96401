"""Finds NVIDIA's libraries: only the stand-in for cuBLASLt."""

from __future__ import annotations

from typing import Any

import fake_cublaslt  # type: ignore[import-not-found]


class Found:
    """A library that has been found."""

    def __init__(self, path: str) -> None:
        self.abs_path = path


def load_nvidia_dynamic_lib(name: str) -> Any:
    """The loaded library. Raises RuntimeError if it is not installed."""
    if name != "cublasLt" or not fake_cublaslt.is_installed():
        raise RuntimeError(f'Failure finding "lib{name}.so"')
    return Found(fake_cublaslt.load())
