"""A tape of closures: every operation on it is a function that propagates gradients itself.

    >>> import numpy as np
    >>> from backburn.autodiff.tape.closures import GradientTape
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> y = -x
    >>> def negate(gradients):
    ...     x_grad, y_grad = gradients.mut_and_ref(x, y)
    ...     x_grad.addmul(-1.0, y_grad)
    >>> tape = GradientTape()
    >>> tape.add_backward_op(negate)
    >>> tape.add_backward_op(lambda gradients: gradients.mut_gradient(y).set(1.0))
    >>> tape.execute().ref_gradient(x).value
    array([-1., -1., -1.])

Operations run in reverse order of their addition, even after tapes have been appended to one another.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn, Self

from backburn.autodiff.graph import Node, Tracked, next_stamp
from backburn.autodiff.reverse import Autodiff
from backburn.backend.contract import AnyBackend
from backburn.base.contexts import RECORDING, scoped
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, GraphError, ShapeError
from backburn.base.trees import leaves_with_paths
from backburn.tapes.calls import as_constant, bound, call, differentiable, each_operand
from backburn.tapes.public import published
from backburn.tapes.values import (
    HandOut,
    as_copies,
    as_float,
    as_primitive,
    base_backend,
    dtype_at,
    is_numbers,
    primitive_of,
    shown,
)


@published("backburn.tape.closures.Gradient")
class Gradient:
    """The gradient of one tensor, for reading: :attr:`value` is a primitive of the tape's backend."""

    __slots__ = ("_backend", "_hand_out", "_value")

    def __init__(self, backend: AnyBackend, value: Any, hand_out: HandOut = as_copies) -> None:
        self._backend: Any = backend
        self._hand_out = hand_out
        self._value = value

    @property
    def value(self) -> Any:
        """The current gradient, which later writes do not change; an array in host memory is a copy."""
        return self._hand_out(self._value, self._backend)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor and of its gradient."""
        return tuple(self._value.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the tensor and of its gradient."""
        return self._backend.dtype(self._value)

    def __repr__(self) -> str:
        return f"<gradient {shown(self._backend, self._value)}>"


@published("backburn.tape.closures.Cell")
class Cell(Gradient):
    """The gradient of one tensor, for writing: its value is replaced, never modified.

    All methods accept a number, nested lists of floats, a primitive, a tensor, a host array or another gradient. They
    raise :class:`ShapeError` or :class:`DTypeError` unless the new value has the tensor's shape and dtype: a tape of
    closures neither broadcasts nor reduces.
    """

    __slots__ = ()

    def set(self, value: Any) -> None:
        """Replace the gradient by ``value``; a number fills it."""
        self._value = self._fitting("set", value)

    def add(self, value: Any) -> None:
        """Add ``value`` to the gradient."""
        self._value = self._backend.add(self._value, self._fitting("add", value))

    def addmul(self, x: Any, y: Any) -> None:
        """Add ``x * y`` to the gradient: the chain rule, for a derivative ``x`` and the result's gradient ``y``."""
        a, b = self._operand("addmul", x), self._operand("addmul", y)
        k = self._backend
        product = a * b if isinstance(a, float) and isinstance(b, float) else k.mul(a, b)
        self._value = k.add(self._value, self._fitting("addmul", product))

    def _operand(self, name: str, x: Any) -> Any:
        """``x`` as a Python float or a primitive of the cell's dtype."""
        if isinstance(x, Gradient):
            x = x._value
        if x.__class__ is not bool and isinstance(x, Real):  # NumPy's scalars too
            return float(x)
        made = as_float(self._backend, x, name)
        if is_numbers(x):  # plain numbers have no dtype
            return self._backend.astype(made, self.dtype)
        if self._backend.dtype(made) is not self.dtype:
            raise DTypeError(f"{name}: {shown(self._backend, made)} for a gradient of {self.dtype}: cast it first")
        return made

    def _fitting(self, name: str, x: Any) -> Any:
        """``x`` as a primitive of the cell's shape and dtype."""
        made = self._operand(name, x)
        if isinstance(made, float):
            return self._backend.full(self.shape, made, self.dtype)
        if tuple(made.shape) != self.shape:
            raise ShapeError(
                f"{name}: shape {list(made.shape)} for the gradient of a tensor of shape {list(self.shape)}. "
                f"A closure reduces or broadcasts by itself before it adds"
            )
        return made


@published("backburn.autodiff.tape.closures.Gradients")
class Gradients:
    """The gradients of tensors, each created when first used.

    A tensor, a primitive or a host array is identified by the node that records it, or else by object identity: two
    tensors with equal values are different. ``len`` is the number of gradients, and ``t in gradients`` asks for one.
    """

    __slots__ = ("__weakref__", "_cells", "backend")
    _hand_out = staticmethod(as_copies)

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        self.backend: Any = base_backend(backend)
        self._cells: dict[int, tuple[Any, Cell]] = {}

    @classmethod
    def _on(cls, base: AnyBackend) -> Self:
        """Gradients on exactly the backend ``base``, even if it is an autodiff backend."""
        made = cls.__new__(cls)
        made.backend, made._cells = base, {}
        return made

    def mut_gradient(self, t: Any) -> Cell:
        """The gradient of ``t`` for writing: at first, zeros of its shape and dtype."""
        key = _identity(t)
        entry = self._cells.get(id(key))
        if entry is None:
            k = self.backend
            x = _as_float(k, t)
            entry = self._cells[id(key)] = (key, Cell(k, k.zeros(tuple(x.shape), k.dtype(x)), self._hand_out))
        return entry[1]

    def ref_gradient(self, t: Any) -> Gradient:
        """The gradient of ``t`` for reading. Raises :class:`GraphError` if there is none."""
        entry = self._cells.get(id(_identity(t)))
        if entry is None:
            raise GraphError(
                f"ref_gradient: no gradient has reached this {_type_and_shape(t)}. mut_gradient creates one of zeros; "
                f"`t in gradients` checks for one"
            )
        return Gradient(self.backend, entry[1]._value, self._hand_out)

    def mut_and_ref(self, t: Any, result: Any) -> tuple[Cell, Gradient]:
        """The gradient of ``t`` for writing and that of ``result`` for reading.

        Raises :class:`GraphError` if both are the same tensor, or ``result`` has no gradient.
        """
        if _identity(t) is _identity(result):
            raise GraphError("mut_and_ref: both are one tensor, whose gradient cannot be read while it is written")
        reading = self.ref_gradient(result)
        return self.mut_gradient(t), reading

    def get(self, t: Any, default: Any = None) -> Any:
        """The gradient of ``t`` as a primitive, or ``default`` if there is none."""
        entry = self._cells.get(id(_identity(t)))
        return default if entry is None else entry[1].value

    def remove(self, t: Any) -> Any:
        """Remove the gradient of ``t``, and return it as a primitive; None if there is none."""
        entry = self._cells.pop(id(_identity(t)), None)
        return None if entry is None else entry[1].value

    def unused(self, parameters: Any) -> list[str]:
        """The paths of the tensors in a tree of parameters that have no gradient.

        >>> import numpy as np
        >>> from backburn.autodiff.tape.closures import Gradients
        >>> gradients = Gradients()
        >>> model = {"weight": np.ones(2), "bias": np.ones(2)}
        >>> gradients.mut_gradient(model["weight"]).add(1.0)
        >>> gradients.unused(model)
        ['bias']
        """
        return [path for path, t in leaves_with_paths(parameters) if t not in self]

    def __contains__(self, t: object) -> bool:
        return id(_identity(t)) in self._cells

    def __copy__(self) -> Self:
        """A copy with the same gradients, to which more can be added."""
        made = self._on(self.backend)
        made._cells = {
            place: (t, Cell(self.backend, cell._value, self._hand_out)) for place, (t, cell) in self._cells.items()
        }
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A shallow copy: gradients are replaced, never modified, and belong to tensors by identity."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Raise :class:`GraphError`: gradients belong to tensors by identity, which is not stored."""
        raise GraphError("gradients belong to tensors by identity and cannot be pickled: store get(t) instead")

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return f"<gradients of {len(self)} tensors on {self.backend.spec}>"


@published("backburn.autodiff.tape.closures.GradientTape")
class ClosureTape:
    """Records functions that compute gradients, and runs them once.

    An operation is a function of :class:`Gradients`. :meth:`execute` calls it after all operations that were added
    later, including those from tapes that have been appended. The tape itself computes nothing: an operation scales,
    broadcasts and reduces gradients as needed. ``len`` is the number of pending operations.
    """

    __slots__ = ("__weakref__", "_operations", "backend")
    _gradients = Gradients
    _hand_out = staticmethod(as_copies)

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        self.backend: Any = base_backend(backend)
        self._operations: list[tuple[int, Callable[[Gradients], Any]]] | None = []

    def add_backward_op(self, operation: Callable[[Gradients], Any]) -> None:
        """Add an operation, which is called at most once and released after it has run."""
        if not callable(operation):
            name = type(operation).__name__
            raise DTypeError(f"add_backward_op: an operation is a function of Gradients, not {name}")
        self._waiting("add_backward_op").append((next_stamp(), operation))

    def append(self, other: ClosureTape) -> None:
        """Move all operations of ``other`` to this tape; ``other`` becomes empty, and can still be used."""
        if other is self:
            raise ArgumentError("append: a tape cannot be appended to itself, since it would be emptied")
        if not isinstance(other, ClosureTape):
            raise DTypeError(f"append: expected another tape of closures, not {type(other).__name__}")
        mine, its = self._waiting("append"), other._waiting("append")
        if other.backend != self.backend:
            raise BackendMismatchError(f"append: a tape on {other.backend.spec} to one on {self.backend.spec}")
        mine.extend(its)
        its.clear()

    def execute(self, gradients: Gradients | None = None) -> Gradients:
        """Run all operations, last to first, on ``gradients`` or on new ones, and return these.

        This consumes the tape, even if an operation raises; a note on the error then names the operation.
        """
        operations = self._waiting("execute")
        if gradients is None:
            gradients = self._gradients._on(self.backend)
        elif not isinstance(gradients, Gradients):
            raise DTypeError(f"execute: expected Gradients or nothing, not {type(gradients).__name__}")
        elif gradients.backend != self.backend:
            raise BackendMismatchError(
                f"execute: gradients on {gradients.backend.spec}, the tape on {self.backend.spec}"
            )
        self._operations = None
        operations.sort(key=lambda entry: entry[0])
        count = len(operations)
        while operations:
            operation = operations.pop()[1]
            try:
                operation(gradients)
            except BaseException as error:
                name = getattr(operation, "__qualname__", repr(operation))
                error.add_note(f"in operation {len(operations) + 1} of {count} on a GradientTape: {name}")
                raise
            del operation
        return gradients

    def record(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Compute an operation of the contract, and add a function that applies its gradient rules.

        Operands are primitives, tensors, host arrays, or Python numbers, which are constants. Options follow them in
        the declared order, or are given by name. The result is a primitive of the tape's backend, which identifies its
        gradient. Raises :class:`ArgumentError` for an unknown operation, one with several results or without a
        gradient, and for operands and options that it does not take; :class:`ShapeError` or :class:`DTypeError` for
        operands that do not fit.

            >>> import numpy as np
            >>> from backburn.autodiff.tape.closures import GradientTape
            >>> x, tape = np.array([1.0, 2.0]), GradientTape()
            >>> y = tape.record("mul", x, x)
            >>> tape.add_backward_op(lambda gradients: gradients.mut_gradient(y).set(1.0))
            >>> tape.execute().get(x)
            array([2., 4.])
        """
        waiting = self._waiting("record")
        entry = differentiable("record", operation)
        if len(entry.results) > 1:
            raise ArgumentError(f"record: {operation} has several results")
        where = f"record: {operation}"
        found, options = bound(where, entry, operands, attributes, "tensors")
        level: Any = Autodiff(self.backend)
        tensors: list[tuple[Any, Tracked[Any]]] = []

        def leaf(x: Any) -> Any:
            if x is None or x.__class__ in (bool, int, float) or is_numbers(x):
                return x
            made = as_primitive(self.backend, x, "record")
            if not self.backend.dtype(made).has_gradient:
                return made
            tracked = level.set_require_grad(level.from_inner(made), True)
            tensors.append((x, tracked))
            return tracked

        def constant(x: Any, alike: bool = False) -> Any:
            return as_constant(level, "record", x, tensors[0][1], alike) if is_numbers(x) else x

        given = each_operand(entry, found, leaf)
        if not tensors:
            raise ArgumentError(f"{where}: no operand is a float tensor, so there is nothing to differentiate")
        given = each_operand(entry, given, constant, lambda x: constant(x, alike=True))

        def what() -> str:
            arrays = [x for o in given for x in (o if isinstance(o, list) else [o]) if hasattr(x, "shape")]
            return f"Operands: {', '.join(shown(level, x) for x in arrays)}"

        with scoped(RECORDING, True):
            out = call(level, where, entry, given, options, what)
        if out.__class__ is not Tracked:
            raise DTypeError(f"{where}: only floats have gradients, and the result is {self.backend.dtype(out)}")
        result = self._hand_out(level.inner(out), self.backend)  # users may modify it; the rule needs the original

        def pull_back(gradients: Gradients) -> None:
            if result not in gradients:
                return
            found = level.backward(out, gradients.ref_gradient(result)._value)
            for x, tracked in tensors:
                if (gradient := level.grad(tracked, found)) is not None:
                    gradients.mut_gradient(x).add(gradient)

        pull_back.__qualname__ = f"the gradient of {operation}"
        if level.is_tracked(out):
            waiting.append((next_stamp(), pull_back))
        return result

    def _waiting(self, name: str) -> list[tuple[int, Callable[[Gradients], Any]]]:
        """The pending operations; raises :class:`GraphError` for a tape that has been executed."""
        if self._operations is None:
            raise GraphError(f"{name}: the tape has been executed, which consumes it. Record on a new GradientTape()")
        return self._operations

    def __len__(self) -> int:
        return len(self._operations or ())

    def __reduce__(self) -> NoReturn:
        """Raise :class:`GraphError`: each operation is called once."""
        raise GraphError(
            "a tape of closures can be neither copied nor pickled: each of its operations is called once. "
            "append moves them to another tape"
        )

    def __repr__(self) -> str:
        state = "executed" if self._operations is None else f"{len(self)} operations"
        return f"<closures.GradientTape: {state}>"


def _identity(t: Any) -> Any:
    """The object that identifies a tensor: its node if it is on a graph, else its primitive."""
    x = primitive_of(t)
    return x.node if x.__class__ is Tracked and isinstance(x.node, Node) else x


def _as_float(k: Any, t: Any) -> Any:
    """``t`` as a float primitive of ``k``; not copied if it is one, since only its shape and dtype are used."""
    x = primitive_of(t)
    dtype = dtype_at(k, x)
    if x.__class__ is float:
        raise DTypeError("gradient: a Python number cannot be distinguished from an equal one. Make it an array")
    return x if dtype is not None and dtype.has_gradient else as_float(k, x, "gradient")


def _type_and_shape(t: Any) -> str:
    shape = getattr(t, "shape", None)
    return type(t).__name__ if shape is None else f"{type(t).__name__} of shape {list(shape)}"
