"""The record tape: operations are recorded one at a time on numbered slots, and differentiated any number of times."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper, wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from backburn.autodiff.graph import Tracked, reverse
from backburn.base.contexts import RECORDING, scoped
from backburn.base.errors import ArgumentError, DTypeError, NumericalInstabilityError, ShapeError
from backburn.ops.bodies.reductions import all_axes
from backburn.ops.table import LISTENERS, OPERATIONS, Operation
from backburn.tapes import buffers
from backburn.tapes.calls import bound, differentiable, each_operand
from backburn.tapes.public import published
from backburn.tapes.slots import Slots
from backburn.tapes.values import as_float, index_of, is_close

ABSENT: Any = object()
F = TypeVar("F", bound=Callable[..., Any])

#: The end of the docstring of a recorded operation with several operands.
NUMBERS = """

An integer operand is a slot; write a number as a float, 2.0 for 2.
"""

#: ``record_<operation>`` for slots only, if all slots have values of one dtype; other calls use ``general``.
SHORT = """
def record_{name}(tape, /, *slots, **named):
    try:
        {operands}, = slots
        if {are_slots} and not named:
            values = tape._values
            out = tape._fast.{name}({picked})
            if out.node is not None and {is_new}:
                slot = len(values)
                values.append(out)
                tape._made.append({name!r})
                return slot
    except Exception:  # general() reports what is wrong
        pass
    return general(tape, *slots, **named)
"""


def short(general: F) -> F:
    """``record_<operation>`` with a fast path for slots only, compiled like the operations of ``Autodiff``."""
    entry = OPERATIONS[general.__name__.removeprefix("record_")]
    picked = [f"values[{o}]" for o in entry.operands]
    namespace: dict[str, Any] = {"general": general}
    text = SHORT.format(
        name=entry.name,
        operands=", ".join(entry.operands),
        are_slots=" and ".join(f"{o}.__class__ is int and {o} >= 0" for o in entry.operands),  # True and -1 are not
        picked=", ".join(picked),
        is_new=" and ".join(f"out is not {p}" for p in picked),
    )
    exec(text, namespace)
    function: F = namespace[general.__name__]
    update_wrapper(function, general)
    return function


@published("backburn.autodiff.tape.GradientTape")
class RecordTape(Slots):
    """Gradient tape for reverse-mode automatic differentiation.

    Create a tape, make slots with :meth:`input`, record operations with ``record_*`` methods, each of which returns the
    index of a new slot, and call :meth:`backward` with the gradient of the last of them::

        >>> import numpy as np
        >>> from backburn.autodiff.tape import GradientTape
        >>> tape = GradientTape()
        >>> x, w = tape.input(np.array([1.0, 2.0])), tape.input(np.array([3.0, 4.0]))
        >>> y = tape.record_mul(x, w)
        >>> tape.value(y)
        array([3., 8.])
        >>> gradients = tape.backward(np.ones(2))
        >>> gradients[x], gradients[w]
        (array([3., 4.]), array([1., 2.]))

    The tape keeps the value of each slot, so data arguments may be omitted; if given, they must agree with it. Every
    differentiable operation of the contract can be recorded: ``record_add``, ``record_exp``, ``record_softmax(x,
    axis=-1)`` and so on, or ``record("softmax", x, axis=-1)``. Integers are slots; arrays and Python floats are
    constants, which are cast to the dtype of the slots they are combined with. ``len`` is the number of operations.

    Args:
        backend: where to compute; an autodiff backend stands for the one it decorates. The default is the default
            backend (:func:`backburn.use_backend`).
    """

    def __repr__(self) -> str:
        return f"<GradientTape: {len(self)} operations on {self.num_tensors} slots, {self.backend.spec}>"

    # ---- recording ----

    def record(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Record any differentiable operation of the contract by name, and return the index of the new slot.

        An integer operand is a slot, even where the operation takes a number: in ``record("pow", x, 2)`` the exponent
        is slot 2, and in ``record("pow", x, 2.0)`` the number 2. An array, a tensor, a primitive, nested lists of
        floats or a Python float is a constant. An operation on a list of tensors takes a list of these. An operation
        with several results returns a tuple: a slot for each float result, and the other results unchanged. Options
        follow the operands in the declared order, or are given by name: ``record("sum", x, 0)`` or ``record("sum", x,
        axis=0)``. Negative axes count from the end.
        """
        where = f"record_{operation}"
        entry = differentiable(where, operation)
        given, attributes = bound(where, entry, operands, attributes, "slots and arrays")
        slots = tuple(each_operand(entry, given, index_of))
        flat = [i for s in slots for i in (s if isinstance(s, list) else [s]) if i is not None]
        if not flat:
            raise ArgumentError(f"{where}: no operand is a slot, so there is nothing to record. input(x) makes a slot")
        like = self._operand(where, flat[0])

        def primitive(x: Any, alike: bool = False) -> Any:
            return self._slot_or_constant(where, x, like, alike)

        primitives = each_operand(entry, given, primitive, lambda x: primitive(x, alike=True))
        out = self._run(operation, primitives, slots, attributes)
        if len(entry.results) == 1:
            if out.__class__ is not Tracked:
                kind = self.backend.dtype(out)
                raise DTypeError(f"{where}: a slot holds floats, and the result is {kind}: compute it from value(slot)")
            return self._appended(out, operation, slots)
        return tuple(self._appended(o, operation, slots) if o.__class__ is Tracked else o for o in out)

    @short
    def record_add(self, a: int, b: int) -> int:
        """Record an elementwise addition: ``out = tensors[a] + tensors[b]``.

        Slots without values can be added too. The sum gets its value once both have one, and must then agree with any
        data given for it earlier.
        """
        return self._whole(self._sum_of, self._index("record_add", a), self._index("record_add", b))

    @overload
    def record_mul(self, a: int, b: int, /) -> int: ...
    @overload
    def record_mul(self, a: int, *, b: int) -> int: ...
    @overload
    def record_mul(self, a: int, a_data: Any, b: int, b_data: Any) -> int: ...
    @short
    def record_mul(self, a: int, a_data: Any = ABSENT, b: Any = ABSENT, b_data: Any = ABSENT) -> int:
        """Record an elementwise multiplication: ``out = tensors[a] * tensors[b]``.

        Two arguments are slots; four are two slots, each followed by its data, which may be None.
        """
        return self._whole(self._product, a, *_pairs("record_mul", a_data, b, b_data))

    def _product(self, a: Any, a_data: Any, b: Any, b_data: Any) -> int:
        x, y = self._operand("record_mul", a, a_data), self._operand("record_mul", b, b_data)
        a, b = self._index("record_mul", a), self._index("record_mul", b)
        return self._appended(self._run("mul", [x, y], (a, b), {}), "mul", (a, b))

    @overload
    def record_matmul(self, a: int, b: int, /, *, flat: bool | None = None) -> int: ...
    @overload
    def record_matmul(self, a: int, *, b: int, flat: bool | None = None) -> int: ...
    @overload
    def record_matmul(self, a: int, a_mat: Any, b: int, b_mat: Any, *, flat: bool | None = None) -> int: ...
    def record_matmul(
        self, a: int, a_mat: Any = ABSENT, b: Any = ABSENT, b_mat: Any = ABSENT, *, flat: bool | None = None
    ) -> int:
        """Record a matrix multiplication: ``out = A @ B``.

        With four arguments, two slots, each followed by its matrix or None, the result is a 1-D slot, in row-major
        order. With two arguments, which are slots, it has the shape (m, n). ``flat`` overrides this. A 1-D slot is read
        in the shape of the matrix given with it, or of the product that it holds. Raises :class:`ShapeError` if the
        inner dimensions differ, and for slots that are not matrices.
        """
        if flat is None:
            flat = b_mat is not ABSENT
        a_mat, b, b_mat = _pairs("record_matmul", a_mat, b, b_mat)
        return self._whole(self._matrix_product, a, a_mat, b, b_mat, flat)

    def _matrix_product(self, a: Any, a_mat: Any, b: Any, b_mat: Any, flat: bool) -> int:
        x, y = self._matrix(a, a_mat), self._matrix(b, b_mat)
        slots = (self._index("record_matmul", a), self._index("record_matmul", b))
        out = self._run("matmul", [x, y], slots, {})
        rows, columns = out.shape
        if not flat:
            return self._appended(out, "matmul", slots)
        with scoped(RECORDING, True):
            vector = self._level.reshape(out, (rows * columns,))
        slot = self._appended(vector, "matmul", slots)
        self._matrices[slot] = (rows, columns)
        return slot

    def _matrix(self, slot: Any, mat: Any) -> Tracked[Any]:
        """The primitive of a slot as a matrix."""
        where = "record_matmul"
        place = self._index(where, slot)
        shape = self._matrices.get(place)
        if mat is not None:
            mat = as_float(self.backend, mat, f"{where}: the matrix of slot {place}")
            if len(mat.shape) != 2:
                raise ShapeError(f"{where}: the matrix of slot {place} has {len(mat.shape)} axes, not 2")
            shape = tuple(mat.shape)
            held = tuple(self._values[place].shape)
            if len(held) == 1 and held[0] == shape[0] * shape[1]:
                mat = self.backend.reshape(mat, held)
        x = self._operand(where, place, mat)
        if len(x.shape) == 1 and shape is not None:
            with scoped(RECORDING, True):
                return self._level.reshape(x, shape)
        if len(x.shape) != 2:
            raise ShapeError(
                f"{where}: slot {place} has shape {list(x.shape)} and is not a matrix. Pass the matrix, or make the "
                f"slot with input(matrix)"
            )
        return x

    @short
    def record_silu(self, input: int, input_data: Any = None) -> int:
        """Record a SiLU activation: ``out = x * sigmoid(x)``."""
        x = self._operand("record_silu", input, input_data)
        slot = self._index("record_silu", input)
        return self._appended(self._run("silu", [x], (slot,), {}), "silu", (slot,))

    def record_layer_norm(
        self, input: int, mean: Any = None, var: Any = None, scale: Any = None, bias: Any = None, *, eps: float = 1e-5
    ) -> int:
        """Record a layer norm: ``out = (x - mean) / sqrt(var + eps) * scale + bias``.

        It normalizes over the last axis. ``mean`` and (biased) ``var`` are optional numbers or arrays without that
        axis, and must equal those of the slot's value. ``scale`` and ``bias`` are arrays, slots (which receive
        gradients) or None.
        """
        where = "record_layer_norm"
        x = self._operand(where, input)
        if not x.shape:
            raise ShapeError(f"{where}: slot {input} is 0-d, and there is nothing to normalize over")
        self._check_statistics(where, input, x.value, mean, var)
        operands = [x, *(self._slot_or_array(where, p, x) for p in (scale, bias))]
        slots = (self._index(where, input), index_of(scale), index_of(bias))
        axis = (len(x.shape) - 1,)
        out = self._run("layer_norm", operands, slots, {"axis": axis, "eps": eps})
        return self._appended(out, "layer_norm", slots)

    def _check_statistics(self, where: str, slot: int, x: Any, mean: Any, var: Any) -> None:
        """Compare given statistics with those of the slot, up to the rounding of sums of its elements."""
        if (mean is None and var is None) or 0 in x.shape:
            return
        k, axis, largest = self.backend, (len(x.shape) - 1,), self.backend.max_abs(x, all_axes(x), False)
        for name, given, stored, size in (
            ("mean", mean, k.mean(x, axis, False), largest),
            ("var", var, k.var(x, axis, 0.0, False), k.square(largest)),
        ):
            if given is None:
                continue
            number = given.__class__ in (int, float)
            made = k.full((), float(given), k.dtype(x)) if number else as_float(k, given, f"{where}: {name}")
            if number or (stored.shape == () and tuple(made.shape) == (1,)):
                made = k.broadcast_to(k.reshape(made, ()), tuple(stored.shape))
            if tuple(made.shape) != tuple(stored.shape):
                raise ShapeError(
                    f"{where}: {name} has shape {list(made.shape)}; that of slot {slot} has {list(stored.shape)}"
                )
            if not is_close(k, made, stored, size):
                raise ArgumentError(
                    f"{where}: {name} is not that of slot {slot}, whose value the tape has kept. Pass None"
                )

    def record_ssm_scan(self, input: int, a_vals: Any, b_vals: Any, h_0: Any = None, *, axis: int = 0) -> int:
        """Record a linear recurrence along ``axis``: ``h[t] = a[t] h[t-1] + b[t] x[t]``, from ``h_0`` or from 0.

        ``a_vals``, ``b_vals`` and ``h_0`` are arrays or slots; slots receive gradients. The first two broadcast to the
        states, and ``h_0`` to a single state, without the axis.
        """
        where = "record_ssm_scan"
        x = self._operand(where, input)
        for name, values in (("a_vals", a_vals), ("b_vals", b_vals)):
            if values is None:
                raise ArgumentError(f"{where}: {name} is missing: pass an array, a slot, or 1.0 for no scaling")
        operands = [self._slot_or_array(where, o, x) for o in (a_vals, b_vals, h_0)]
        slots = (index_of(a_vals), index_of(b_vals), self._index(where, input), index_of(h_0))
        a, b, first = operands
        out = self._run("ssm_scan", [a, b, x, first], slots, {"axis": axis})
        return self._appended(out, "ssm_scan", slots)

    if TYPE_CHECKING:  # at run time, it would slow down the look-up of every attribute

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """``record_<operation>`` for every operation that has a gradient; added below."""
            ...

    # ---- backward ----

    def backward(self, loss_grad: Any, tensors: list[Any] | None = None, *, output: int | None = None) -> list[Any]:
        """Differentiate one slot in reverse mode, and return a gradient for every slot.

        Args:
            loss_grad: the gradient of the loss with respect to ``output``, in its shape or flattened.
            tensors: a list of buffers to which gradients are added, at least one for each slot, in its shape or
                flattened. Arrays in host memory are changed in place; other elements of the list are replaced. By
                default, new buffers.
            output: the slot to start from, by default that of the last recorded operation.

        Returns:
            ``tensors``, or a new list of primitives of :attr:`backend`, zeros for slots without a gradient.

        A tape can be differentiated any number of times, with the same result. Raises
        :class:`NumericalInstabilityError`, naming operation and slot, if a gradient contains NaN or an infinity;
        :class:`ShapeError`, :class:`DTypeError` or :class:`ArgumentError` for a gradient or buffers that do not fit.
        After an error the buffers are unchanged.
        """
        if not self._values:
            return [] if tensors is None else tensors
        start = self._last() if output is None else self._index("backward: output", output)
        plan = None if tensors is None else buffers.plan(self.backend, tensors, self._values)
        seed = buffers.seed_of(self.backend, loss_grad, self._values[start].value, start)
        nodes: dict[Any, None] = dict.fromkeys(v.node for v in self._values)
        root: Any = self._values[start].node
        by_node = reverse(self.backend, root, seed, retain_graph=True, keep=nodes)
        gradients = [by_node.get(node) for node in nodes]
        unstable = buffers.first_unstable(self.backend, gradients)
        if unstable is not None:
            raise NumericalInstabilityError(self._instability(unstable, start))
        if tensors is None or plan is None:
            both = zip(gradients, self._values, strict=True)
            zeros, dtype = self.backend.zeros, self.backend.dtype
            new = [zeros(tuple(v.shape), dtype(v.value)) if g is None else g for g, v in both]
            return self._hand_out(new, self.backend)
        return buffers.add(self.backend, tensors, gradients, plan)

    def _last(self) -> int:
        """The slot of the last recorded operation; without operations, the last slot."""
        end = len(self._values) - 1
        return next((i for i in range(end, -1, -1) if self._made[i] not in ("input", "alloc")), end)

    def _users(self, slot: int, start: int) -> list[int]:
        """The slots up to ``start`` in which operations on ``slot`` were recorded."""
        slots = {v.node for v in self._values}
        wanted = self._values[slot].node
        users = []
        for user in range(slot + 1, start + 1):
            waiting: list[Any] = list(self._values[user].node.parents)  # type: ignore[union-attr]
            while waiting:
                node = waiting.pop()
                if node is wanted:
                    users.append(user)
                    break
                if node is not None and node not in slots:
                    waiting.extend(node.parents)
        return users

    def _instability(self, slot: int, start: int) -> str:
        """The message for a non-finite gradient: its slot, the operation that computed it, and its users."""
        made = self._made[slot]
        users = self._users(slot, start)
        came = ", ".join(f"record_{self._made[i]} in slot {i}" for i in users) or "loss_grad"
        what = f"which record_{made} made" if made not in ("input", "alloc") else f"made by {made}"
        return (
            f"GradientTape.backward: the gradient of slot {slot}, {what}, holds NaN or an infinity. "
            f"It comes from {came}"
        )


def _install(entry: Operation) -> None:
    """Add ``record_<operation>``; its fast path is compiled at the first call, since most programs use only a few."""
    name = f"record_{entry.name}"

    def general(tape: RecordTape, /, *operands: Any, **attributes: Any) -> Any:
        return tape.record(entry.name, *operands, **attributes)

    general.__name__, general.__qualname__ = name, f"GradientTape.{name}"
    general.__doc__ = f"Record ``{entry.name}``: {entry.doc}" + (NUMBERS if len(entry.operands) > 1 else "")
    compiled = cache(lambda: short(general))

    @wraps(general)
    def first_call(tape: RecordTape, /, *operands: Any, **attributes: Any) -> Any:
        setattr(RecordTape, name, compiled())
        return compiled()(tape, *operands, **attributes)

    slots_alone = not (entry.attributes or len(entry.results) > 1 or entry.lists or entry.optional)
    setattr(RecordTape, name, first_call if slots_alone else general)


class _NoGradient:
    """The recording method of an operation without a gradient: raises :class:`AttributeError`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tape: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"{self.name}: it has no gradient")


#: The methods that are written out in the class.
_WRITTEN = frozenset(vars(RecordTape))


def _offer(name: str) -> None:
    """Add ``record_<name>`` for an operation of the table, or remove it for an operation that was withdrawn."""
    method, entry = f"record_{name}", OPERATIONS.get(name)
    if entry is None:
        delattr(RecordTape, method)
    elif not entry.differentiable:
        absent = _NoGradient()
        absent.__set_name__(RecordTape, method)
        setattr(RecordTape, method, absent)
    elif method not in _WRITTEN:
        _install(entry)


for _name in OPERATIONS:
    _offer(_name)
LISTENERS.append(_offer)


def _pairs(where: str, a_data: Any, b: Any, b_data: Any) -> tuple[Any, Any, Any]:
    """The data of the first slot, the second slot, and its data, from either form of a call."""
    if b_data is ABSENT and (a_data is ABSENT) is not (b is ABSENT):  # a second slot by position, or as b=
        return None, a_data if b is ABSENT else b, None
    if a_data is ABSENT or b is ABSENT or b_data is ABSENT:
        raise ArgumentError(f"{where}: write {where}(a, b) with two slots, or {where}(a, data of a, b, data of b)")
    return a_data, b, b_data
