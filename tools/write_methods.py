"""Writes the methods of tensors for type checkers, from the functions that are marked as methods.

    python tools/write_methods.py

Run it after marking a function with ``@method``; ``tests/project/test_public_api.py`` compares the two.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backburn.tensor.classes  # noqa: F401 - the marks
from backburn.tensor.core.methods import METHODS

STUB = Path(__file__).parents[1] / "src" / "backburn" / "tensor" / "core" / "methods.pyi"

HEAD = """\
# Written by tools/write_methods.py.
# mypy: disable-error-code="misc, override, type-var"
# pyright: reportGeneralTypeIssues=false, reportInvalidTypeArguments=false
# ruff: noqa
from collections.abc import Callable, Sequence
from typing import Any, Literal, Never, Self, TypeVar, overload

{imports}

C = TypeVar("C", bound=Callable[..., Any])
METHODS: dict[str, Callable[..., Any]]

@overload
def method(function: C, /) -> C: ...
@overload
def method(*, name: str) -> Callable[[C], C]: ...

class TensorMethods:
"""


class _SelfType(ast.NodeTransformer):
    """Replaces the type variable of the first argument with ``Self``."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("Self") if node.id == "T" else node


def definitions(function: Callable[..., Any]) -> list[ast.FunctionDef]:
    """The overloads of a function, or its only definition."""
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function.__name__]
    overloads = [n for n in found if any(isinstance(d, ast.Name) and d.id == "overload" for d in n.decorator_list)]
    return overloads or found


def as_method(name: str, definition: ast.FunctionDef) -> str:
    """The definition of a function as that of a method, whose first argument is ``self``."""
    definition = _SelfType().visit(definition)
    first = (definition.args.posonlyargs or definition.args.args)[0]
    annotation = ast.unparse(first.annotation) if first.annotation else ""
    if len(definition.decorator_list) == 0 or annotation.startswith(("Tensor", "Self")):
        first.annotation = None
    first.arg, definition.name, definition.body = "self", name, [ast.Expr(ast.Constant(...))]
    definition.decorator_list = [d for d in definition.decorator_list if ast.unparse(d) == "overload"]
    text = ast.unparse(ast.fix_missing_locations(definition)).replace(":\n    ...", ": ...")
    return textwrap.indent(text, "    ") + "\n"


def origin(function: Callable[..., Any], name: str) -> str | None:
    """The import of a name in a function's annotations, or None for a builtin name."""
    module = sys.modules[function.__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    known = node.module in ("typing", "collections.abc", "__future__")
                    return (
                        None
                        if known
                        else f"from {node.module} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                    )
    return f"from {module.__name__} import {name}" if hasattr(module, name) and name not in dir(builtins) else None


def stub() -> str:
    """The text of the stub: the signatures of the marked functions, as methods."""
    lines: list[str] = []
    imports: set[str] = set()
    for name, function in sorted(METHODS.items()):
        for definition in definitions(function):
            lines.append(as_method(name, definition))
            names = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)} - {"Self", "overload"}
            imports.update(filter(None, (origin(function, n) for n in names)))
    return HEAD.format(imports="\n".join(sorted(imports))) + "".join(lines)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
