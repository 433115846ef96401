"""The compiled kernels of the NumPy backend: their levels, and the backend with and without them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn_numpy import compiled
from backburn_numpy.compiled import build
from backburn_numpy.runtime import gemm

BASE = load_backend("numpy")


needs_kernels = pytest.mark.skipif(compiled.level() is None, reason="the kernels are not compiled")


#: The instruction sets that this processor supports and a library exists for.
USABLE = [] if compiled.level() is None else [n for n in build.supported_levels() if n in build.libraries()]


def use_level(monkeypatch: pytest.MonkeyPatch, level: str, folder: Path = build.FOLDER) -> None:
    monkeypatch.setattr(compiled, "_library", (level, ctypes.CDLL(str(build.libraries(folder)[level]))))
    monkeypatch.setattr(compiled, "_kernels", {})


def both(monkeypatch: pytest.MonkeyPatch, name: str, *operands: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """The results of an operation from kernels, and from NumPy in float64."""

    def results(*values: Any) -> list[Any]:
        found = getattr(BASE, name)(*values, **options)
        return list(found) if isinstance(found, tuple) else [found]

    got = results(*operands)
    wide = [o.astype(np.float64) if isinstance(o, np.ndarray) and o.dtype.kind == "f" else o for o in operands]
    with monkeypatch.context() as without:
        without.setattr(compiled, "_library", None)
        without.setattr(compiled, "_kernels", {})
        return got, results(*wide)


def numbers(*shape: int, seed: int = 0, spread: float = 3.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * spread).astype(np.float32)


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 88.8, -88.8, 104.5, -104.5, 1e-40, 15.0, -15.0], "f"
)


def ends(count: int) -> Any:
    """Ordinary and special values, in an order in which every pair is adjacent."""
    x = numbers(count, seed=7)
    x[::3] = np.resize(SPECIAL, len(x[::3]))
    return x


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, and environment variables in addition to this process's."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def product_is_right(x: Any, y: Any) -> bool:
    """Whether ``gemm`` multiplies these matrices; checks the values, and that only the output is written."""
    bias = numbers(y.shape[1]).astype(x.dtype)
    around = np.full((len(x) + 2, len(bias)), 7.0, x.dtype)
    out = gemm.multiply(x, y, bias, around[1:-1])
    if out is None:
        return False
    expected = x.astype(np.float64) @ y.astype(np.float64) + bias
    sizes = np.abs(x).astype(np.float64) @ np.abs(y).astype(np.float64) + np.abs(bias)
    assert (np.abs(out - expected) <= np.finfo(x.dtype).eps * np.sqrt(len(y)) * 2 * sizes).all()
    assert (around[[0, -1]] == 7).all()
    return True
