"""Writes the page of how ``Sharded`` computes each operation, found by calling it on the conformance samples."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from public_api import write_if_changed
from sphinx.application import Sphinx

from backburn.backend.registry import load_backend
from backburn.base.errors import Unsupported
from backburn.conformance import SAMPLES, Sample
from backburn.conformance.samples.calls import arrays, map_operands
from backburn.conformance.samples.table import Stored
from backburn.decorators.sharding import Sharded
from backburn.decorators.sharding.operations import BODY
from backburn.ops.table import OPERATIONS, Operation, families

#: How operands are placed in the columns of the table.
PLACEMENTS = ("first", "last", "addends")
PAGE = """\
# Operations on shards

How `sharded(...)` computes each operation on sharded operands, found by calling it on the samples of the conformance
suite, with tensors split along their first axis, along their last, or held as the addends of a sum. This page is
generated from the code when the documentation is built. The [decision record](decisions/0045-shards-are-a-decorator.md)
explains placements.

- *rule*: each shard computes its part; results are split, or equal on all shards.
- *body*: the default {{term}}`body` runs on the parts, operation by operation.
- *gathers*: the operands are gathered first, and every shard computes the whole result. `on_fallback` makes this an
  error or a warning, or allows it.
- *summed*: addends are summed first. *kept*: the result consists of addends, too.

Several words in a cell apply to different calls: `sort` has a rule for all axes except the sorted one. Operations
without operands, such as `zeros` and `uniform`, create whole tensors, or parts within
{{func}}`~backburn.decorators.sharding.created_in_parts`.

{families}
"""
FAMILY = """\
## {title}

| Operation | Split along the first axis | Along the last | Addends |
|---|---|---|---|
{rows}
"""


def operands_of(level: Sharded, sample: Sample, placement: str) -> list[Any]:
    """The operands of a sample, placed on a level."""

    def placed(array: Any) -> Any:
        x = level.from_numpy(array)
        if placement == "addends":
            return level.addends(x)
        return level.cut(x, 0 if placement == "first" else -1) if x.shape else x

    def stored(operand: Stored) -> Any:
        q = operand.on(level.wrapped)
        return q if placement == "addends" or not q.shape else level.cut(q, 0 if placement == "first" else -1)

    return map_operands(map_operands(arrays(sample, "float64"), placed), stored, Stored)


def way(level: Sharded, name: str, operands: list[Any], attributes: dict[str, Any], placement: str) -> str | None:
    """How one call is computed; None if no operand is sharded."""
    flat = [x for o in operands for x in (o if isinstance(o, list) else [o])]
    if not any(level.is_cut(x) for x in flat):
        return None
    level.routes.clear()
    try:
        found = getattr(level, name)(*operands, **attributes)
    except Unsupported:
        return "gathers"
    if placement == "addends":
        results = found if isinstance(found, tuple) else (found,)
        return "kept" if any(level.is_cut(x) and x.axis is None for x in results) else "summed"
    return "body" if any(key[0] == name and route is BODY for key, route in level.routes.items()) else "rule"


def ways(name: str) -> dict[str, set[str]]:
    """The ways in which an operation's samples are computed, for each placement."""
    level, found = Sharded(load_backend("numpy"), dp=2, on_fallback="error"), {p: set[str]() for p in PLACEMENTS}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for sample in SAMPLES[name].cases if OPERATIONS[name].operands else ():
            for placement in PLACEMENTS:
                one = way(level, name, operands_of(level, sample, placement), sample.attributes, placement)
                found[placement] |= {one} if one else set()
    return found


def rows(group: list[Operation]) -> str:
    """A line of the table for each operation that has operands."""
    lines = []
    for entry in group:
        if entry.operands:
            found = ways(entry.name)
            cells = (", ".join(sorted(found[p], reverse=True)) or "–" for p in PLACEMENTS)
            lines.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    sections = []
    for name, group in families():
        own = [o for o in group if o.body.__module__.startswith("backburn.") and o.operands]
        if own:
            sections.append(FAMILY.format(title=name.capitalize().replace("_", " "), rows=rows(own)))
    return PAGE.format(families="\n".join(sections))


def generate(app: Sphinx) -> None:
    """Write the page."""
    write_if_changed(Path(app.srcdir) / "sharding-operations.md", page())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
