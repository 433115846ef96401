"""The CUDA sources as passed to the compiler, with headers inlined, so that it needs no include paths."""

from __future__ import annotations

import hashlib
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
_C_TYPE_BY_CHAR = {"f": "float", "d": "double", "e": "float16", "E": "bfloat16"}


def c_type(x: Any) -> str:
    """The name of a float array's dtype in the sources."""
    return _C_TYPE_BY_CHAR[x.dtype.char]


#: The sources that are written while the program runs, by family.
_WRITTEN: dict[str, str] = {}


def write(text: str, stem: str) -> str:
    """Enter a source in which ``{family}`` stands for its name; returns the name, which depends on the text."""
    family = f"{stem}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    _WRITTEN[family] = text.replace("{family}", family)
    return family


_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@cache
def source(*families: str) -> str:
    """The text of each ``family.cu``, or of what was written as ``family``, with every header inlined once."""
    seen: set[str] = set()
    return "".join(_expand(f"{family}.cu", seen, _WRITTEN.get(family)) for family in families)


def _expand(name: str, seen: set[str], text: str | None = None) -> str:
    if name in seen:
        return ""
    seen.add(name)
    text = ((FOLDER / name).read_text("utf-8") if text is None else text).replace("#pragma once\n", "")
    return _INCLUDE.sub(lambda match: _expand(match[1], seen), text)
