"""The explicit tapes over tensors: values and gradients are tensors on the tape's backend."""

from backburn.tapes.nodes import AnyGradOp, GradOp
from backburn.tapes.records import Record
from backburn.tapes.tensors import GradGraph
from backburn.tapes.tensors import RecordTape as GradientTape

__all__ = ["AnyGradOp", "GradGraph", "GradOp", "GradientTape", "Record"]
