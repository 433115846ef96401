"""``operation``: define an operation of every backend by a function over a backend's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from backburn.backend.user_operations import define
from backburn.base.errors import ArgumentError
from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import OPERATIONS, Operation
from backburn.tensor.core.dispatch import call, promote_operands
from backburn.tensor.core.wrapping import is_tensor


class TensorOperation:
    """A user's operation as a function of tensors; ``entry`` is the operation in the table."""

    def __init__(self, entry: Operation) -> None:
        self.entry = entry
        self.__name__ = entry.name
        self.__doc__ = entry.body.__doc__

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        """The operation on tensors and Python scalars, after promotion of the float and int operands.

        Raises :class:`ArgumentError` if an operation of this name has been defined since.
        """
        if OPERATIONS.get(self.__name__) is not self.entry:
            raise ArgumentError(
                f"{self.__name__}: the operation has been defined again or removed since this function was made: call "
                f"the function of the new definition (import it again after a reload)"
            )
        numeric = [x for x in operands if not is_tensor(x) or x.dtype.is_arithmetic]
        if len(numeric) == len(operands):
            operands = tuple(promote_operands(self.__name__, *operands))
        return call(self.__name__, *operands, **attributes)

    def __repr__(self) -> str:
        return repr(self.entry)


@overload
def operation(body: Callable[..., Any], /) -> TensorOperation: ...
@overload
def operation(
    *,
    kinds: str = ...,
    shape: Callable[..., Any] | None = ...,
    result: str | tuple[str, ...] = ...,
    differentiable: bool = ...,
    fuse: bool = ...,
) -> Callable[[Callable[..., Any]], TensorOperation]: ...
def operation(
    body: Callable[..., Any] | None = None,
    /,
    *,
    kinds: str = "F",
    shape: Callable[..., Any] | None = broadcast,
    result: str | tuple[str, ...] = "same",
    differentiable: bool = True,
    fuse: bool = False,
) -> TensorOperation | Callable[[Callable[..., Any]], TensorOperation]:
    """Make the decorated ``body(k, operands, /, attributes)`` an operation of every backend and a function of tensors.

    The body is written with the operations of ``k`` and needs a docstring. By default, every backend runs it and
    ``Autodiff`` differentiates through it. ``bb.gradient_rule`` adds a rule, so that it is recorded as one node;
    ``bb.implement`` adds an implementation for one backend; ``backburn.conformance.samples.samples`` adds samples, on
    which every backend and every derivative is checked.

    Running the definition again, as in a notebook, replaces the operation everywhere: attach its rules, implementations
    and samples again; captured steps are recorded again. Calling the function of the earlier definition raises
    :class:`ArgumentError`, and so does a second module that defines an operation of the same name.

    ``fuse`` says that the body and the gradient rules are pure element-wise formulas. Backends may then call them
    once, note their operations, and compute them in one pass over memory (NumPy) or by one kernel (CUDA).

        >>> import backburn as bb
        >>> @bb.operation(fuse=True)
        ... def doctest_cube(k, x, /):
        ...     '''The third power of each element.'''
        ...     return k.mul(x, k.mul(x, x))
        >>> bb.gradient_rule(doctest_cube, x=lambda k, g, x: k.mul(g, k.mul(3.0, k.mul(x, x))))
        >>> bb.grad(doctest_cube)(2.0).item(), bb.grad(bb.grad(doctest_cube))(2.0).item()
        (12.0, 12.0)
    """
    declared: Any = {
        "kinds": kinds,
        "shape": shape,
        "result": result,
        "differentiable": differentiable,
        "fuse": fuse,
    }

    def make(body: Callable[..., Any]) -> TensorOperation:
        return TensorOperation(define(body, **declared))

    return make if body is None else make(body)
