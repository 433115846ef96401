"""Counts the lines of code of each package: without docstrings, comments and blank lines.

    python tools/count_code.py                # the working tree
    python tools/count_code.py DIRECTORY      # another checkout

Two states are comparable if both are formatted by the same `ruff format`.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

#: Tokens that are not code.
LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


def docstring_lines(tree: ast.AST) -> set[int]:
    """The line numbers of all docstrings in a syntax tree."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(text: str) -> int:
    """The number of lines of Python source that contain code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def counts(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Code lines and files of each package under ``src`` and ``backends``."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for base in (root / "src", root / "backends"):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(root).parts
            package = "/".join(parts[1 : 3 if parts[0] == "src" and len(parts) > 3 else 2])
            lines[package] += code_lines(path.read_text(encoding="utf-8"))
            files[package] += 1
    return lines, files


def main() -> None:
    """Print a line for each package, and the totals."""
    lines, files = counts(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    for package in sorted(lines):
        print(f"{package:28} {files[package]:4} files {lines[package]:7} lines")
    print(f"{'total':28} {files.total():4} files {lines.total():7} lines")


if __name__ == "__main__":
    main()
