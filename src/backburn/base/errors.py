"""Every error that backburn raises, and the words it is made of.

Each class is also the built-in exception that a Python programmer would catch: ``except ValueError`` catches a
:class:`ShapeError`. A message names the operation, every operand as ``dtype[shape] (backend)``, what is wrong, and what
to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BackburnError(Exception):
    """The base of all errors of backburn."""


class ShapeError(BackburnError, ValueError):
    """Shapes do not fit the operation or one another."""


class AxisError(ShapeError, IndexError):
    """An axis is out of range or given twice."""


class OutOfRangeError(BackburnError, IndexError):
    """An index points outside its axis."""


class DTypeError(BackburnError, TypeError):
    """A dtype, or a kind of tensor, that the operation does not take."""


class ArgumentError(BackburnError, ValueError):
    """An option has a value that the operation does not know."""


class BackendMismatchError(BackburnError, ValueError):
    """Operands live on different backends or devices; nothing is moved without being told."""


class BackendUnavailableError(BackburnError, ImportError):
    """A backend is known but cannot be used on this machine; the message says why and what to do."""


class SpecError(BackburnError, ValueError):
    """A backend expression such as ``"autodiff(numpy)"`` cannot be read."""


class Unsupported(BackburnError, NotImplementedError):
    """The backend does not offer this operation or dtype, and says so rather than guess."""


class GraphError(BackburnError, RuntimeError):
    """A graph of recorded operations is used in a way that has no meaning."""


class ConsumedGraphError(GraphError):
    """``backward`` went through this graph before and released what it had saved."""


class MissingRuleError(GraphError):
    """A differentiable operation has no gradient rule for one of its arguments."""


class NotDifferentiableError(GraphError, TypeError):
    """Only float tensors have gradients."""


class ImmutableError(BackburnError, TypeError):
    """Tensors are never changed; the message shows the expression that makes the changed copy."""


class ExportError(BackburnError, BufferError):
    """A tensor cannot be handed to another library in the way that it asks for."""


class NumericalInstabilityError(BackburnError, ArithmeticError):
    """A NaN or an infinity where a finite number is needed."""


class LinearAlgebraError(BackburnError, ValueError):
    """A matrix for which the operation has no result: not positive definite, or an iteration does not converge."""


class SingularMatrixError(LinearAlgebraError):
    """A matrix that has no inverse; :func:`backburn.linalg.pinv` and ``lstsq`` take it."""


class ConfigError(BackburnError, ValueError):
    """A configuration file or option cannot be used; file and line are named."""


class FileFormatError(BackburnError, ValueError):
    """A file is corrupt, foreign, or of a version that this release does not read."""


def hint_for(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'x'?`` when a known name is near ``name``, else the list of known names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
