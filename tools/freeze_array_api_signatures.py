"""Write the signatures of the Array API, version 2025.12, to ``tests/tensor/array_api/signatures.json``.

    python tools/freeze_array_api_signatures.py SUITE

``SUITE`` is a checkout of the Array API's test suite with its submodules, one of which has the standard's stubs.
``tests/tensor/test_array_api_signatures.py`` compares our signatures with the file, and does not need the suite. A
parameter is its name, or a pair of name and default; those before ``"/"`` are positional-only and those after ``"*"``
keyword-only.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

VERSION = "2025.12"
FILE = Path(__file__).parents[1] / "tests" / "tensor" / "array_api" / "signatures.json"

#: The modules of the stubs whose functions form a separate group; those of the others are in the namespace.
GROUPS = {"array_object": "array", "linalg": "linalg", "fft": "fft", "info": "info"}


def parameters(function: ast.FunctionDef) -> list[Any]:
    """The parameters of a function as JSON, without ``self``."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [ast.literal_eval(d) for d in given.defaults]
    required = len(positional) - len(given.defaults)
    found: list[Any] = []
    for i, parameter in enumerate(positional):
        if parameter.arg != "self":
            found.append(parameter.arg if i < required else [parameter.arg, defaults[i]])
        if i + 1 == len(given.posonlyargs):
            found.append("/")
    if given.vararg is not None:
        found.append("*" + given.vararg.arg)
    elif given.kwonlyargs:
        found.append("*")
    for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(parameter.arg if default is None else [parameter.arg, ast.literal_eval(default)])
    return found


def main(suite: str) -> None:
    """Write the file."""
    stubs = Path(suite, "array-api", "src", "array_api_stubs", "_" + VERSION.replace(".", "_"))
    groups: dict[str, dict[str, list[Any]]] = {}
    for path in sorted(stubs.glob("[a-z]*.py")):
        if path.stem == "data_types":  # methods of dtypes
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                module = "" if node.name == "__array_namespace_info__" else path.stem
                groups.setdefault(GROUPS.get(module, "namespace"), {})[node.name] = parameters(node)
    lines = []
    for name, functions in sorted(groups.items()):
        entries = [f"  {json.dumps(f)}: {json.dumps(found)}" for f, found in sorted(functions.items())]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
