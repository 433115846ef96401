"""Numbered slots with values, and the recording of operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Self

from backburn.autodiff.decorator import Autodiff
from backburn.autodiff.graph import Node, Tracked, leaf, next_stamp, passed_on
from backburn.autodiff.tape.accumulation import is_flat
from backburn.autodiff.tape.calls import call, differentiable
from backburn.autodiff.tape.values import (
    as_float,
    as_primitive,
    base_backend,
    handed_out,
    index_of,
    is_close,
    is_numbers,
    largest,
    own_state,
    shown,
)
from backburn.backend.contract import AnyBackend
from backburn.base.contexts import RECORDING, default_float, scoped
from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError, DTypeError, GraphError, OutOfRangeError, ShapeError
from backburn.base.quiet import quietly

#: The operations that are given data for slots.
_WITH_DATA = ("record_mul", "record_matmul", "record_silu")


class Slots:
    """The slots of a :class:`~backburn.autodiff.tape.GradientTape`."""

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        self.backend: Any = base_backend(backend)
        self._level: Any = Autodiff(self.backend)
        self.reset()

    def reset(self) -> None:
        """Forget all slots and operations."""
        #: The primitive of each slot.
        self._values: list[Tracked[Any]] = []
        #: The operation that made each slot.
        self._made: list[str] = []
        self._inputs = 0
        #: The level while all slots have a value and one dtype, so that operands need not be looked at; then None.
        self._fast: Any = self._level
        self._dtype: Any = None
        self._mixed = False
        #: The slots that have no value yet, and those of them whose dtype is that of what comes first.
        self._unknown: set[int] = set()
        self._undecided: set[int] = set()
        #: The sums of slots without values, and the sums that a slot is in.
        self._sums: dict[int, tuple[int, int]] = {}
        self._in_sums: dict[int, list[int]] = {}
        #: What to go back to when the operation fails that gave slots their values.
        self._before: list[tuple[Any, ...]] = []
        self._matrices: dict[int, tuple[int, int]] = {}

    @property
    def num_tensors(self) -> int:
        """The number of slots: inputs, allocated ones, and one for each recorded operation."""
        return len(self._values)

    def __len__(self) -> int:
        return len(self._values) - self._inputs

    def __copy__(self) -> Self:
        """A tape of its own with the same slots, values and operations."""
        made = own_state(self)
        made._in_sums = {slot: list(sums) for slot, sums in self._in_sums.items()}
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As a copy: values and what has been recorded of them never change."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Refused: what has been recorded is not stored."""
        raise GraphError("a tape cannot be pickled: store the values of its slots, and record the operations again")

    # ---- slots ----

    def input(self, x: Any) -> int:
        """A slot with the value ``x``: a tensor, a primitive, a NumPy array (which is copied), a float, nested lists.

        The dtype is kept; it must be a float dtype.
        """
        return self._new(as_float(self.backend, x, "input"), "input")

    def alloc(self, shape: int | Sequence[int], dtype: Any = None) -> int:
        """A slot of this shape without a value, which it gets from the first data that an operation is given for it.

        Without ``dtype``, its dtype is that of the data or of the slot that it is added to, and until then the default.
        With ``dtype``, data of another float dtype raise an error: nothing is cast implicitly.
        """
        found = default_float(self.backend) if dtype is None or dtype is float else as_dtype(dtype)
        if found.kind != "float":
            raise DTypeError(f"alloc: gradients belong to floats, not to {found}")
        sizes = [index_of(n) for n in (shape if isinstance(shape, Iterable) else (shape,))]
        if not all(n is not None and n >= 0 for n in sizes):
            raise ShapeError(f"alloc: the lengths of a shape are integers from 0 on, not {shape!r}")
        made = self.backend.broadcast_to(self.backend.zeros((), found), tuple(sizes))
        slot = self._new(made, "alloc", dtype is not None)
        self._without_value(slot)
        if dtype is None:
            self._undecided.add(slot)
        return slot

    def value(self, slot: int) -> Any:
        """The value of a slot, a primitive of :attr:`backend`; arrays in host memory are copies.

        Raises :class:`ArgumentError` if it has none.
        """
        place = self._slot("value", slot)
        self._needs_value("value", place)
        return handed_out(self._values[place].value)

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of a slot."""
        return tuple(self._values[self._slot("shape", slot)].shape)

    def _new(self, value: Any, made: str, decided: bool = True) -> int:
        if decided:
            self._see(self.backend.dtype(value))
        self._inputs += 1
        return self._put(Tracked(value, leaf(tuple(value.shape))), made)

    def _put(self, value: Tracked[Any], made: str) -> int:
        slot = len(self._values)
        self._values.append(value)
        self._made.append(made)
        return slot

    def _see(self, dtype: Any) -> None:
        """Take note of the dtype of a new slot."""
        if self._dtype is None:
            self._dtype = dtype
        elif self._dtype is not dtype:
            self._mixed, self._fast = True, None

    def _without_value(self, slot: int) -> None:
        self._unknown.add(slot)
        self._fast = None

    def _slot(self, where: str, slot: Any) -> int:
        """``slot`` as the index of a slot that exists."""
        place = index_of(slot)
        if place is None:
            raise DTypeError(f"{where}: expected the index of a slot, not {type(slot).__name__}. input(x) makes a slot")
        if not 0 <= place < len(self._values):
            have = f"0 to {len(self._values) - 1}" if self._values else "none"
            raise OutOfRangeError(f"{where}: there is no slot {place}; the tape has {have}. input(x) makes a slot")
        return place

    def _needs_value(self, where: str, slot: int) -> None:
        if slot in self._unknown:
            to = where if where in _WITH_DATA else " or ".join(_WITH_DATA)
            raise ArgumentError(f"{where}: slot {slot} has no value: make it with input(x), or pass its data to {to}")

    def _operand(self, where: str, slot: Any, data: Any = None) -> Tracked[Any]:
        """The primitive of a slot, after comparing it with ``data`` or, where it has no value, giving it that."""
        place = self._slot(where, slot)
        held = self._values[place]
        if data is None:
            self._needs_value(where, place)
            return held
        k = self.backend
        given = as_float(k, data, f"{where}: the data of slot {place}")
        plain = data.__class__ is float or is_numbers(data)  # which have no dtype of their own
        shape = tuple(held.shape)
        if tuple(given.shape) != shape and is_flat(tuple(given.shape), shape):
            given = k.reshape(given, shape)
        if tuple(given.shape) != shape:
            raise ShapeError(
                f"{where}: the data of slot {place} have shape {list(given.shape)}, and the slot {list(shape)}"
            )
        if place in self._unknown:
            self._give(where, place, given, plain)
            held = self._values[place]
        elif not is_close(k, given, held.value):
            raise ArgumentError(
                f"{where}: the data of slot {place} differ from its value, which the tape has kept. "
                f"Leave them out, or record on new slots"
            )
        return held

    # ---- slots without values ----

    def _give(self, where: str, slot: int, given: Any, plain: bool) -> None:
        """Make ``given`` the value of a slot, and compute the sums that it completes."""
        k, values = self.backend, self._values
        dtype = k.dtype(given)
        if slot not in self._undecided and dtype is not k.dtype(values[slot].value):
            wanted = k.dtype(values[slot].value)
            if not plain:
                raise DTypeError(f"{where}: the data of slot {slot} are {dtype}, and the slot is {wanted}: cast them")
            given, dtype = quietly(k, k.cast, given, wanted), wanted
        found, waiting = {slot: given}, [slot]

        def value_of(place: int) -> Any:
            return found[place] if place in found else None if place in self._unknown else values[place].value

        while waiting:
            for total in self._in_sums.get(waiting.pop(), ()):
                a, b = self._sums[total]
                x, y = value_of(a), value_of(b)
                if x is None or y is None:
                    continue
                computed, known = quietly(k, k.add, x, y), value_of(total)
                if known is None:
                    found[total] = computed
                    waiting.append(total)
                elif 0 not in computed.shape:
                    size = k.maximum(largest(k, x), largest(k, y))
                    if not is_close(k, known, computed, size):
                        raise ArgumentError(
                            f"{where}: slot {total} is the sum of slots {a} and {b}, and the data it was given are "
                            f"not, with these for slot {slot}"
                        )
        self._keep(found)
        self._decide(slot, dtype)
        for place, value in found.items():
            values[place] = Tracked(value, values[place].node)
        self._unknown -= found.keys()
        self._fast = None if self._unknown or self._mixed else self._level

    def _decide(self, slot: int, dtype: Any) -> None:
        """Make ``dtype`` that of a slot that has none, and of those with which it is in sums."""
        k, waiting = self.backend, [slot]
        while waiting:
            place = waiting.pop()
            if place not in self._undecided:
                continue
            self._keep((place,))
            self._undecided.discard(place)
            held = self._values[place]
            made = k.broadcast_to(k.zeros((), dtype), tuple(held.shape))
            self._values[place] = Tracked(made, held.node)
            waiting.extend(self._sums.get(place, ()))
            for total in self._in_sums.get(place, ()):
                waiting.extend((total, *self._sums[total]))
        self._see(dtype)

    def _keep(self, places: Iterable[int]) -> None:
        """Remember the state of slots, which :meth:`_whole` goes back to."""
        held = {place: self._values[place] for place in places}
        unknown, undecided = self._unknown & held.keys(), self._undecided & held.keys()
        self._before.append((held, unknown, undecided, self._dtype, self._mixed, self._fast))

    def _whole(self, recorded: Callable[..., int], *arguments: Any) -> int:
        """Record an operation that may give slots their values; if it fails, they have none again."""
        self._before.clear()
        try:
            return recorded(*arguments)
        except Exception:
            for held, unknown, undecided, *rest in reversed(self._before):
                for place, value in held.items():
                    self._values[place] = value
                self._unknown |= unknown
                self._undecided |= undecided
                self._dtype, self._mixed, self._fast = rest
            raise
        finally:
            self._before.clear()

    def _of_one_dtype(self, a: int, b: int) -> list[Tracked[Any]]:
        """The primitives of two slots; one whose dtype is not known takes the other's."""
        for slot, other in ((a, b), (b, a)):
            if slot in self._undecided and other not in self._undecided:
                self._decide(slot, self.backend.dtype(self._values[other].value))
        return [self._values[a], self._values[b]]

    def _sum_of(self, a: int, b: int) -> int:
        """The slot of a sum, which has a value when both of its operands have."""
        out = self._run("add", self._of_one_dtype(a, b), (a, b), {})
        known = a not in self._unknown and b not in self._unknown
        slot = self._appended(out, "add", (a, b), decided=a not in self._undecided)
        if not known:
            self._without_value(slot)
            self._sums[slot] = (a, b)
            for operand in {a, b}:
                self._in_sums.setdefault(operand, []).append(slot)
            if a in self._undecided:
                self._undecided.add(slot)
        return slot

    def _constant(self, where: str, x: Any, like: Tracked[Any], alike: bool) -> Any:
        """Something other than a slot as an operand: Python floats and None pass, arrays are cast to the slot's dtype.

        Integers and booleans only pass, unless they are ``alike``, integers of an operand that is to have that dtype.
        """
        if x is None or x.__class__ is float:
            return x
        k = self.backend
        made = as_primitive(k, x, where)
        if k.dtype(made).kind not in (("float", "int") if alike else ("float",)):
            return made
        return self._level.from_inner(quietly(k, k.cast, made, k.dtype(like.value)))

    def _slot_or_constant(self, where: str, x: Any, like: Tracked[Any], alike: bool) -> Any:
        return self._constant(where, x, like, alike) if index_of(x) is None else self._operand(where, x)

    def _slot_or_array(self, where: str, x: Any, like: Tracked[Any]) -> Any:
        """As above, where an operation needs a tensor: a number becomes a 0-d one."""
        made = self._slot_or_constant(where, x, like, alike=True)
        k = self.backend
        return self._level.from_inner(k.full((), made, k.dtype(like.value))) if made.__class__ is float else made

    def _appended(self, out: Tracked[Any], name: str, slots: Sequence[Any], decided: bool = True) -> int:
        """A slot for the result of an operation, with a node of its own."""
        flat = [i for o in slots for i in (o if isinstance(o, list) else [o]) if i is not None]
        if any(out.node is self._values[i].node for i in flat):
            out = Tracked(out.value, Node(passed_on, (out.node,), (), tuple(out.shape), next_stamp()))
        if decided:
            self._see(self.backend.dtype(out.value))
        return self._put(out, name)

    def _run(self, name: str, operands: list[Any], slots: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """Compute and record an operation, whether or not recording is switched on: a tape is asked to record."""
        where, entry = f"record_{name}", differentiable(f"record_{name}", name)
        with scoped(RECORDING, True):
            return call(self._level, where, entry, operands, attributes, lambda: self._described(slots))

    def _described(self, slots: Sequence[Any]) -> str:
        """``Operands: slot 0 float32[3], a constant``, for messages."""
        words = []
        for slot in (s for o in slots for s in (o if isinstance(o, list) else [o])):
            value = None if slot is None else self._values[slot].value
            words.append("a constant" if value is None else f"slot {slot} {shown(self.backend, value)}")
        return f"Operands: {', '.join(words)}"
