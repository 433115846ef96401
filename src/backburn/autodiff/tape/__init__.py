"""Explicit tapes: automatic differentiation operation by operation, on the graph and the rules of ``Autodiff``.

:class:`GradientTape` records operations on numbered slots; :class:`GradGraph` holds typed nodes, each of which is a
:class:`GradOp`; :class:`closures.GradientTape` holds functions that compute gradients. All of them work on primitives
of any backend.
"""

from backburn.autodiff.tape.operations import AnyGradOp, GradOp
from backburn.autodiff.tape.record import GradientTape
from backburn.autodiff.tape.records import Record
from backburn.autodiff.tape.typed import GradGraph

__all__ = ["AnyGradOp", "GradGraph", "GradOp", "GradientTape", "Record"]
