"""The explicit tapes over tensors: what :mod:`backburn.autodiff.tape` has on primitives, with tensors going in and out.

Everything is documented there; here values and gradients are tensors of the tape's backend::

    >>> from backburn.tape import GradientTape
    >>> tape = GradientTape()
    >>> x = tape.input([1.0, 2.0])
    >>> y = tape.record_mul(x, x)
    >>> tape.backward([1.0, 1.0])[x]
    Tensor([2., 4.], dtype=float32, backend=numpy)
"""

from backburn.autodiff.tape import AnyGradOp, GradOp, Record
from backburn.tape.record import GradientTape
from backburn.tape.typed import GradGraph

__all__ = ["AnyGradOp", "GradGraph", "GradOp", "GradientTape", "Record"]
