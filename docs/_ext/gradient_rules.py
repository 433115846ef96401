"""Writes the page of gradient rules: for each operation with a gradient, the statements that declare it, as source."""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from operation_table import entries
from public_api import write_if_changed
from sphinx.application import Sphinx

from backburn.ops.rules.tangents import jvp_strategy
from backburn.ops.table import Operation

Function = Callable[..., Any]

#: The functions that declare derivatives.
DECLARE = frozenset({"gradient_rule", "constant", "elementwise", "linear_in", "reduction", "decompose", "tangent"})

PAGE = """\
# Gradient rules

The derivatives of all operations, as they are written in the sources beside each operation: {count} operations, {ruled}
with a gradient rule. This page is generated from the contract when the documentation is built.

In a rule, `k` is the inner backend, `g` the gradient of the result, `out` the result, `t` a tangent; other parameters
are operands and options by their names. {{func}}`backburn.gradient_rule` attaches a rule, and
[How it works](how-it-works.md) explains how `Autodiff` runs it. The tangent in forward mode is one of:

- *elementwise*: the gradient rule, applied to the tangent;
- *linear*: the operation, applied to the tangents (`linear_in`);
- *reduction*: the sum over the axes of the tangent times the gradient (`reduction`);
- *tangent*: a separate rule (`tangent`);
- *transposed*: the transpose of the gradient rule, which is linear in `g`;
- *body*: the tangent of the default {{term}}`body`, operation by operation (`decompose`).

{families}
## Functions that several rules call

{shared}
"""


@cache
def statements(path: str) -> tuple[str, list[ast.stmt]]:
    """The text of a module, and the statements of the module and its classes."""
    text = Path(path).read_text(encoding="utf-8")
    found: list[ast.stmt] = []
    for statement in ast.parse(text).body:
        found += statement.body if isinstance(statement, ast.ClassDef) else [statement]
    return text, found


def lines(path: str, first: int, last: int | None) -> str:
    """The lines of a file, without their common indentation."""
    return textwrap.dedent("\n".join(statements(path)[0].splitlines()[first - 1 : last]))


def mentions(statement: ast.stmt, name: str) -> bool:
    """Whether a statement declares a derivative of the operation of that name."""
    nodes = [*ast.walk(statement)]
    if not any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in DECLARE for n in nodes):
        return False
    return any(getattr(n, "id", None) == name or getattr(n, "value", None) == name for n in nodes)


def declarations(entry: Operation) -> list[ast.stmt]:
    """The statements that declare the operation's derivatives, which stand in the module of its declaration."""
    found = statements(inspect.getfile(entry.body))[1]
    return [s for s in found if not isinstance(s, ast.FunctionDef) and mentions(s, entry.name)]


def functions(entry: Operation) -> list[Function]:
    """The functions of the contract that those statements name: rules that are not lambdas, and what lambdas call."""
    known = inspect.getmodule(entry.body).__dict__
    names = (n.id for s in declarations(entry) for n in ast.walk(s) if isinstance(n, ast.Name))
    named = [
        known[name] for name in dict.fromkeys(names) if name not in DECLARE and inspect.isfunction(known.get(name))
    ]
    return [f for f in named if f.__module__.startswith("backburn.ops.")]


def code(parts: Iterable[str]) -> str:
    """A block of Python."""
    return "\n".join(["```python", *parts, "```"])


def section(entry: Operation, shared: set[Function]) -> str:
    """The part of the page about an operation that has a rule."""
    path = inspect.getfile(entry.body)
    parts = [lines(path, s.lineno, s.end_lineno) for s in declarations(entry)]
    own = [f for f in functions(entry) if f not in shared]
    rest = [f"`{f.__name__}`" for f in functions(entry) if f in shared]
    below = f" {', '.join(rest)}: [below](#functions-that-several-rules-call)." if rest else ""
    parameters = [p.replace(annotation=p.empty) for p in entry.parameters.values()]
    return (
        f"### {entry.name}\n\n{{py:meth}}`{entry.name} <{entry.body.__module__}.{entry.body.__qualname__}>` "
        f"`{inspect.Signature(parameters)}`. Tangent: *{jvp_strategy(entry.name)}*.{below}\n\n"
        + code([*parts, *("\n\n" + textwrap.dedent(inspect.getsource(f)).rstrip() for f in own)])
    )


def family(title: str, group: list[Operation], shared: set[Function]) -> str:
    """The part of the page about a family: operations with rules, and the names of those without."""
    ruled = [section(entry, shared) for entry in group if entry.gradients]
    bodies = [f"{{py:meth}}`{e.name} <{e.body.__module__}.{e.body.__qualname__}>`" for e in group if not e.gradients]
    through = [f"Differentiated through their bodies: {', '.join(bodies)}."] if bodies else []
    return "\n\n".join([f"## {title.capitalize().replace('_', ' ')}", *through, *ruled])


def page() -> str:
    """The whole page."""
    smooth = [(name, [e for e in group if e.differentiable]) for name, group in entries()]
    every = [entry for _, group in smooth for entry in group]
    uses = Counter(f for entry in every for f in functions(entry))
    shared = {f for f, count in uses.items() if count > 1}
    return PAGE.format(
        count=len(every),
        ruled=sum(bool(e.gradients) for e in every),
        families="\n\n".join(family(name, group, shared) for name, group in smooth if group),
        shared="\n\n".join(code([inspect.getsource(f).rstrip()]) for f in uses if f in shared),
    )


def generate(app: Sphinx) -> None:
    """Write the page."""
    write_if_changed(Path(app.srcdir) / "gradient-rules.md", page())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
