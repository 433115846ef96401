"""The explicit tapes over primitives: values and gradients are primitives of the tape's backend."""

from backburn.tapes.graph import GradGraph
from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.record import RecordTape as GradientTape
from backburn.tapes.records import Record

__all__ = ["AnyGradOp", "GradGraph", "GradOp", "GradientTape", "Record"]
