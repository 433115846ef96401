"""Writes the page of operations from the contract: a table for each family, and the docstrings that it links to."""

import textwrap
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from public_api import write_if_changed
from sphinx.application import Sphinx

from backburn.base import dtypes
from backburn.conformance.samples.table import SAMPLES
from backburn.ops.table import KINDS, Operation, families

PAGE = """\
# Operations

Every operation of the contract: what a backend computes, and what `Autodiff` differentiates. This page is generated
from the contract when the documentation is built.

{counts}

- **Kinds** and **dtypes** belong to the main operand. Operations are checked in these dtypes (`bfloat16` where
  `float16` is); each backend declares the dtypes that it supports. They are {kinds}.
- **Result** is the dtype of each output: *same* as the operands, or *chosen* by the option `dtype`.
- Every backend implements the **required** operations. A **derived** operation has a default {{term}}`body`, which a
  backend may override; the backend columns show where.
- The **gradient** comes from a *rule* for the named operands ([source](gradient-rules.md)) or from the *body* (which is
  recorded operation by operation); *none* means that the results are not floats or do not depend smoothly on the
  operands.

{families}
"""

FAMILY = """\
## {title}

| Operation | Kinds | Dtypes | Result | | Gradient | {backends} |
|---|---|---|---|---|---|{lines}|
{rows}

```{{eval-rst}}
{docstrings}
```
"""


def entries() -> list[tuple[str, list[Operation]]]:
    """The contract's own operations by family; users' are not among them."""
    found = ((name, [o for o in group if o.body.__module__.startswith("backburn.")]) for name, group in families())
    return [(name, group) for name, group in found if group]


def backends() -> dict[str, type]:
    """The classes of the project's backends that can be imported here, by name."""
    points = entry_points(group="backburn.backends")
    return {p.name: p.load() for p in points if p.dist is not None and p.dist.name == "backburn"}


def gradient(entry: Operation) -> str:
    """The origin of an operation's gradient."""
    if not entry.differentiable:
        return "none"
    operands = ", ".join(f"`{name}`" for rule in entry.gradients for name in rule.operands)
    return f"rule: {operands}" if operands else "body"


def result(entry: Operation) -> str:
    """The dtypes of the outputs."""
    words = {"same": "same", "dtype": "chosen", "data": "that of the data", "host": "on the host", "...": "…"}
    return ", ".join(words.get(r, f"`{r}`") for r in entry.results)


def rows(group: list[Operation], classes: dict[str, type]) -> Iterator[str]:
    """A line of the table for each operation."""
    for entry in group:
        path = f"{entry.body.__module__}.{entry.body.__qualname__}"
        own = ("own" if getattr(c, entry.name, None) is not entry.body else "body" for c in classes.values())
        yield (
            " | ".join(
                (
                    f"| {{py:meth}}`{entry.name} <{path}>`",
                    ", ".join(KINDS[kind] for kind in entry.kinds),
                    dtypes_of(entry),
                    result(entry),
                    "required" if entry.required else "derived",
                    gradient(entry),
                    *own,
                )
            )
            + " |"
        )


def dtypes_of(entry: Operation) -> str:
    """The dtypes in which an operation is checked, by kind."""
    samples = SAMPLES.get(entry.name)
    floats = sorted(samples.dtypes) if samples else ["float16", "float32", "float64"]
    words = {
        "F": ", ".join(f"`{name}`" for name in floats),
        "I": "`int8` – `int64`, `uint8` – `uint64`",
        "B": "`bool`",
        "Q": "all schemes",
        "C": "`complex64`, `complex128`",
    }
    return "; ".join(words[kind] for kind in entry.kinds)


def docstrings(group: list[Operation]) -> str:
    """Directives for the docstrings of a family."""
    classes = dict.fromkeys((e.body.__module__, e.body.__qualname__.partition(".")[0]) for e in group)
    parts = []
    for module, name in classes:
        members = ", ".join(e.name for e in group if e.body.__module__ == module)
        parts.append(f".. autoclass:: {module}.{name}\n   :members: {members}\n   :no-undoc-members:\n")
    return "\n".join(parts)


def page() -> str:
    """The whole page."""
    classes, found = backends(), entries()
    every = [entry for _, group in found for entry in group]
    smooth = [entry for entry in every if entry.differentiable]
    ruled = [entry for entry in smooth if entry.gradients]
    counts = (
        f"There are {len(every)} operations, {sum(e.required for e in every)} required and "
        f"{sum(not e.required for e in every)} derived. {len(smooth)} are differentiable: {len(ruled)} by a rule, "
        f"{len(smooth) - len(ruled)} through their bodies."
    )
    named: dict[str, list[str]] = {}
    for dtype in vars(dtypes).values():
        if isinstance(dtype, dtypes.DType) and dtype.name not in named.setdefault(dtype.kind, []):
            named[dtype.kind].append(dtype.name)
    kinds = "; ".join(f"*{kind}*: {', '.join(f'`{n}`' for n in names)}" for kind, names in named.items())
    sections = (
        FAMILY.format(
            title=name.capitalize().replace("_", " "),
            backends=" | ".join(classes) or "",
            lines="|".join("---" for _ in classes) or "---",
            rows="\n".join(rows(group, classes)),
            docstrings=docstrings(group),
        )
        for name, group in found
    )
    return PAGE.format(counts=textwrap.fill(counts, 120), kinds=kinds, families="\n".join(sections))


def generate(app: Sphinx) -> None:
    """Write the page."""
    write_if_changed(Path(app.srcdir) / "operations.md", page())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
