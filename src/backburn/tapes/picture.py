"""A typed graph as a picture, drawn by Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from backburn.base.errors import BackendUnavailableError
from backburn.tapes.nodes import AnyGradOp, GradOp

if TYPE_CHECKING:
    import graphviz


def picture(ops: Sequence[AnyGradOp], values: Sequence[str]) -> graphviz.Digraph:
    """A node for each operation, with its constants and a description of its value; an edge for each operand."""
    try:
        import graphviz
    except ImportError as cause:
        raise BackendUnavailableError("picture: needs the package graphviz: pip install 'backburn[graph]'") from cause
    drawn = graphviz.Digraph("GradGraph", node_attr={"shape": "box", "fontname": "sans-serif"})
    for node, (op, value) in enumerate(zip(ops, values, strict=True)):
        leaf = isinstance(op, (GradOp.Input, GradOp.Parameter))
        label = "\n".join([f"{node}: {type(op).__name__}", *constants(op), value])
        colour = _COLOURS.get(type(op), "")
        drawn.node(str(node), graphviz.escape(label), style="filled" if leaf else "", fillcolor=colour)
        for operand in op.operands:
            drawn.edge(str(operand), str(node))
    return drawn


_COLOURS: dict[type, str] = {GradOp.Input: "lightgray", GradOp.Parameter: "lightblue"}


def constants(op: AnyGradOp) -> list[str]:
    """The constants of an operation: ``axis=0`` and the like."""
    operands = {*op.operand_fields}
    return [f"{f.name}={getattr(op, f.name)!r}" for f in fields(op) if f.name not in operands]
