"""The errors that backburn raises.

Each class is also the built-in exception that a Python programmer would catch: ``except ValueError`` catches a
:class:`ShapeError`. A message names the operation, every operand as ``dtype[shape] (backend)``, what is wrong, and what
to do about it.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect
from collections.abc import Iterable

from backburn.base.call_site import called_function
from backburn.base.foreign import listed, printable_lines, quoted


class BackburnError(Exception):
    """The base class of all errors of backburn.

    A message begins with the name of the function that the user called, even if a function inside it fails; see
    :mod:`backburn.base.call_site`.

        >>> import backburn as bb
        >>> try:
        ...     bb.ones((2, 3)) @ bb.ones((2, 3))
        ... except bb.BackburnError as error:
        ...     print(type(error).__name__, isinstance(error, ValueError))
        ShapeError True
    """

    def __init__(self, *args: object) -> None:
        """An error with one message."""
        if len(args) == 1 and isinstance(args[0], str):
            message = printable_lines(args[0])  # it may quote what others wrote
            name = called_function()
            args = (message if name is None else f"{name}: {_without_name(message, name)}",)
        super().__init__(*args)


class ShapeError(BackburnError, ValueError):
    """Shapes do not fit the operation or one another."""


class AxisError(ShapeError, IndexError):
    """An axis is out of range or given twice."""


class ZeroDimError(ShapeError, TypeError):
    """A 0-d tensor has no length and cannot be iterated over."""


class IndexConversionError(ShapeError, TypeError):
    """Only a 0-d integer tensor can be used as a Python index."""


class MatrixTransposeError(ShapeError, AttributeError):
    """Only a matrix has the attribute ``T``."""


class OutOfRangeError(BackburnError, IndexError):
    """An index is out of range for its axis."""


class DTypeError(BackburnError, TypeError):
    """The operation does not accept this dtype or kind of tensor."""


class ArgumentError(BackburnError, ValueError):
    """An option has an invalid value."""


class NoKeyError(ArgumentError, KeyError):
    """A map has no such key."""

    __str__ = Exception.__str__  # KeyError's would put the message in quotes


class BackendMismatchError(BackburnError, ValueError):
    """Operands are on different backends or devices; nothing is moved implicitly."""


class BackendUnavailableError(BackburnError, ImportError):
    """A known backend cannot be used on this machine; the message says why and what to do."""


class DeviceError(BackburnError, RuntimeError):
    """The device, its driver or one of its libraries failed; the message names the operation."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device is out of memory; the message says how much is in use, or how much was requested."""


class CommunicationError(BackburnError, RuntimeError):
    """The processes of a distributed program are out of step, differ in what they run, or cannot communicate."""


class SpecError(BackburnError, ValueError):
    """A backend expression such as ``"autodiff(numpy)"`` cannot be parsed."""


class Unsupported(BackburnError, NotImplementedError):
    """The backend does not support this operation or dtype."""


class GraphError(BackburnError, RuntimeError):
    """The autodiff graph is used in an invalid way."""


class ConsumedGraphError(GraphError):
    """An earlier ``backward`` consumed this graph and released what it had saved."""


class MissingRuleError(GraphError):
    """A differentiable operation has no gradient rule for one of its arguments."""


class NotDifferentiableError(GraphError, TypeError):
    """A gradient is requested for a tensor that is not a float tensor."""


class ImmutableError(BackburnError, TypeError):
    """Tensors are immutable; the message shows the expression that makes a modified copy."""


class ExportError(BackburnError, BufferError):
    """A tensor cannot be exported to another library in the requested way."""


class HostConversionError(GraphError):
    """A function of another library converts a tensor under differentiation, whose derivative would be lost."""


class CaptureError(GraphError):
    """The backend cannot capture this step for replay."""


class NumericalInstabilityError(BackburnError, ArithmeticError):
    """A value is NaN or infinite where it must be finite."""


class LinearAlgebraError(BackburnError, ValueError):
    """The operation has no result for this matrix: it is not positive definite, or an iteration does not converge."""


class SingularMatrixError(LinearAlgebraError):
    """The matrix has no inverse; :func:`backburn.linalg.pinv` and ``lstsq`` accept it."""


class ConfigError(BackburnError, ValueError):
    """A configuration file or option is invalid; the message names file and line."""


class RunFolderError(BackburnError, OSError):
    """A training run cannot begin, go on or be saved in its folder; the message says why and what to do."""


class FileFormatError(BackburnError, ValueError):
    """A file is corrupt, in an unknown format, or of an unsupported version."""


#: The most names that a hint compares, and their greatest length: a comparison takes the product of two lengths.
COMPARED, LONGEST = 500, 100


def hint_for(name: str, known: Iterable[str]) -> str:
    """``Did you mean 'x'?`` if a known name is similar to ``name``, else the known names, or the first of many.

    Among more than ``COMPARED`` names, only those that sort next to ``name`` are compared.
    """
    known = sorted(known)
    place = max(bisect(known, name) - COMPARED // 2, 0)
    beside = known[place : place + COMPARED] if len(known) > COMPARED else known
    short = [other for other in beside if len(other) <= LONGEST] if len(name) <= LONGEST else []
    near = difflib.get_close_matches(name, short, n=1)
    return f"Did you mean {quoted(near[0])}?" if near else f"Known: {listed(known)}."


def _without_name(message: str, name: str) -> str:
    """``message`` without leading function names, its own or those of an error that it quotes."""
    match = re.match(rf"(?:[\w.]+: )*{re.escape(name)}: ", message) or re.match(r"[a-z_]\w*: ", message)
    return (message[match.end() :] if match else message).replace(f": {name}: ", ": ")
