"""The CUDA sources, as the compiler gets them: one text each, so that nothing has to be found at run time."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "source"

#: The files that hold kernels.
FAMILIES = tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))

#: How every source is compiled: by CuPy, which adds the device's architecture, and by the tests.
OPTIONS = ("-std=c++17",)

#: What a dtype is called in the sources.
C_TYPES = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}

# NumPy makes a dtype's name anew each time; its character is there. "E" is bfloat16 of ml_dtypes.
_OF_CHARACTER = {"f": "float", "d": "double", "e": "float16", "E": "bfloat16"}


def c_type(x: Any) -> str:
    """What the elements of a float array are called in the sources."""
    return _OF_CHARACTER[x.dtype.char]


_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@cache
def source(*families: str) -> str:
    """The text of each ``family.cu`` with the headers of the folder in place of their names, each once."""
    seen: set[str] = set()
    return "".join(_expanded(f"{family}.cu", seen) for family in families)


def _expanded(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    seen.add(name)
    text = (FOLDER / name).read_text("utf-8").replace("#pragma once\n", "")
    return _INCLUDE.sub(lambda match: _expanded(match[1], seen), text)
