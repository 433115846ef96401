"""The CUDA sources as passed to the compiler, with headers inlined, so that it needs no include paths."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "source"

#: The files with kernels.
FAMILIES = tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))

#: Options for every source, for CuPy, which adds the device's architecture, and for the tests.
OPTIONS = ("-std=c++17",)

#: The dtypes' names in the sources.
C_TYPES = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}

# NumPy builds a dtype's name on each access; its character is ready-made. "E" is bfloat16 of ml_dtypes.
_OF_CHARACTER = {"f": "float", "d": "double", "e": "float16", "E": "bfloat16"}


def c_type(x: Any) -> str:
    """The name of a float array's dtype in the sources."""
    return _OF_CHARACTER[x.dtype.char]


_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@cache
def source(*families: str) -> str:
    """The text of each ``family.cu``, with every header inlined once."""
    seen: set[str] = set()
    return "".join(_expanded(f"{family}.cu", seen) for family in families)


def _expanded(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    seen.add(name)
    text = (FOLDER / name).read_text("utf-8").replace("#pragma once\n", "")
    return _INCLUDE.sub(lambda match: _expanded(match[1], seen), text)
