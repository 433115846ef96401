"""Every error that backburn raises, and the words it is made of.

Each class is also the built-in exception that a Python programmer would catch: ``except ValueError`` catches a
:class:`ShapeError`. A message names the operation, every operand as ``dtype[shape] (backend)``, what is wrong, and what
to do about it.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any


class BackburnError(Exception):
    """The base of all errors of backburn.

    A message begins with the function that the user called. Functions that are made of others leave the checks to
    those: whatever they raise is given the name of the outermost, which is read off the stack.

        >>> import backburn as bb
        >>> try:
        ...     bb.ones((2, 3)) @ bb.ones((2, 3))
        ... except bb.BackburnError as error:
        ...     print(type(error).__name__, isinstance(error, ValueError))
        ShapeError True
    """

    def __init__(self, *args: object) -> None:
        """An error with one message."""
        if len(args) == 1 and isinstance(args[0], str) and (name := called()) is not None:
            args = (f"{name}: {_without_name(args[0], name)}",)
        super().__init__(*args)


class ShapeError(BackburnError, ValueError):
    """Shapes do not fit the operation or one another."""


class AxisError(ShapeError, IndexError):
    """An axis is out of range or given twice."""


class NoAxisError(ShapeError, TypeError):
    """A 0-d tensor stands where there must be elements to count, as a Python number could."""


class NotAnIndexError(ShapeError, TypeError):
    """A tensor that is no integer scalar stands where Python wants an index."""


class NoMatrixError(ShapeError, AttributeError):
    """What is no matrix has no transpose: ``hasattr(x, "T")`` is False."""


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


class DeviceError(BackburnError, RuntimeError):
    """The device, its driver or one of its libraries failed; the message says in which operation."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a device is exhausted; the message says what is in use, or what was asked for."""


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


class CaptureError(GraphError):
    """A step that a backend cannot record to play it again."""


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


#: Where the functions live that users call, by module, as users write it.
NAMESPACES = {
    "backburn._namespace": "bb",
    "backburn.nn.functional": "bb.nn.functional",
    "backburn.tensor.linalg_namespace": "bb.linalg",
    "backburn.tensor.fourier": "bb.fourier",
    "backburn.tensor.random": "bb.random",
    "backburn.nn": "bb.nn",
    "backburn.nn.init": "bb.nn.init",
    "backburn.optim": "bb.optim",
}
#: The functions that operators stand for.
_OPERATORS = {
    "__add__": "add", "__radd__": "add", "__sub__": "subtract", "__rsub__": "subtract", "__mul__": "multiply",
    "__rmul__": "multiply", "__truediv__": "divide", "__rtruediv__": "divide", "__matmul__": "matmul",
    "__rmatmul__": "matmul", "__floordiv__": "floor_divide", "__rfloordiv__": "floor_divide", "__mod__": "remainder",
    "__rmod__": "remainder", "__divmod__": "divmod", "__rdivmod__": "divmod", "__pow__": "pow", "__rpow__": "pow",
    "__eq__": "equal", "__ne__": "not_equal", "__lt__": "less", "__le__": "less_equal", "__gt__": "greater",
    "__ge__": "greater_equal", "__and__": "bitwise_and", "__rand__": "bitwise_and", "__or__": "bitwise_or",
    "__ror__": "bitwise_or", "__xor__": "bitwise_xor", "__rxor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rlshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__rrshift__": "bitwise_right_shift",
}  # fmt: skip
_FLOORS = ("backburn.tensor.", "backburn.transforms.", "backburn.nn.", "backburn.optim.")


def called() -> str | None:
    """The public function of ours that stands outermost on the stack, below the first frame that is not ours."""
    found: str | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith("backburn."):
        if module.startswith(_FLOORS):
            found = _public_name(frame) or found
        frame = frame.f_back
    return found


def _public_name(frame: FrameType) -> str | None:
    """The name under which users know the function that runs in ``frame``; None if they do not.

    Methods go by their own name for tensors and with their class for others, ``forward`` by the class of its object,
    what a public function has made (such as the function that ``grad`` returns) by the name of its maker.
    """
    path, home = frame.f_code.co_qualname, frame.f_globals
    maker, inside, _ = path.partition(".<locals>")
    owner, _, name = path.rpartition(".")
    if not inside and name.startswith("_") and not name.startswith("__"):
        return None
    own = {n: home.get(n) for n in home.get("__all__", ())}
    places: list[dict[str, Any]] = [own, *(vars(sys.modules.get(n, sys)) for n in NAMESPACES)]
    if name in ("__init__", "forward") and not inside:
        lineage = type(frame.f_locals.get("self")).__mro__  # in which the base that has the method may not be public
        return next((c.__name__ for c in lineage if any(public.get(c.__name__) is c for public in places)), None)
    for public in places:
        if inside:
            if maker in public.get("__all__", public) and public[maker].__module__ == home["__name__"]:
                return maker
            continue
        if (owner or name) not in public.get("__all__", public):
            continue
        function = vars(public[owner]).get(name) if owner else public[name]
        if getattr(getattr(function, "__wrapped__", function), "__code__", None) is frame.f_code:
            return _OPERATORS.get(name) if name.startswith("__") else name if owner in ("", "Tensor") else path
    return None


def _without_name(message: str, name: str) -> str:
    """``message`` without the names of functions before what it says, or before what it quotes of another error."""
    match = re.match(rf"(?:[\w.]+: )*{re.escape(name)}: ", message) or re.match(r"[a-z_]\w*: ", message)
    return (message[match.end() :] if match else message).replace(f": {name}: ", ": ")
