"""Writes ``__all__`` of ``backburn._namespace`` from what the module imports, so that type checkers see every name.

    python tools/write_all.py

Run it after adding an import to ``src/backburn/_namespace.py``; ``tests/test_public_api.py`` compares the two.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

NAMESPACE = Path(__file__).parents[1] / "src" / "backburn" / "_namespace.py"
FENCE = "\n__all__ = [\n"


def imported(source: str) -> list[str]:
    """The names that a module imports, except from ``__future__``, sorted."""
    return sorted(
        alias.asname or alias.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    )


def block(names: list[str]) -> str:
    """``__all__`` as written at the end of the module."""
    lines = textwrap.fill(", ".join(f'"{name}"' for name in names) + ",", 116, break_on_hyphens=False)
    return FENCE + textwrap.indent(lines, "    ") + "\n]  # fmt: skip\n"


def main() -> None:
    """Rewrite the block."""
    source = NAMESPACE.read_text(encoding="utf-8")
    before = source.partition(FENCE)[0].rstrip("\n") + "\n"
    NAMESPACE.write_text(before + block(imported(source)), encoding="utf-8")


if __name__ == "__main__":
    main()
