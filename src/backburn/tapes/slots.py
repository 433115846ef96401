"""Numbered slots with values, and the recording of operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backburn.autodiff.graph import Node, Tracked, identity_rule, leaf, next_stamp
from backburn.backend.contract import AnyBackend
from backburn.base.contexts import RECORDING, default_float, scoped
from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.tapes.buffers import is_flat
from backburn.tapes.calls import as_constant, call, differentiable
from backburn.tapes.recorded import Recorded
from backburn.tapes.values import (
    as_float,
    index_of,
    is_close,
    is_numbers,
    largest,
    shown,
)

#: The operations that take data for slots.
_WITH_DATA = ("record_mul", "record_matmul", "record_silu")


class Slots(Recorded):
    """The slots of a :class:`~backburn.autodiff.tape.GradientTape`."""

    _words = "a tape", "slot"
    _instead = "the values of its slots, and record the operations again"

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        super().__init__(backend=backend)
        self.reset()

    def reset(self) -> None:
        """Forget all slots and operations."""
        #: The primitive of each slot.
        self._values: list[Tracked[Any]] = []
        #: The operation that made each slot.
        self._made: list[str] = []
        self._inputs = 0
        #: The level, if all slots have values of one dtype, so that operands need no check; otherwise None.
        self._fast: Any = self._level
        self._dtype: Any = None
        self._mixed = False
        #: The slots without a value, and among them the slots whose first value decides their dtype.
        self._unknown: set[int] = set()
        self._undecided: set[int] = set()
        #: The operands of each sum without a value, and the sums that each slot is an operand of.
        self._sums: dict[int, tuple[int, int]] = {}
        self._in_sums: dict[int, tuple[int, ...]] = {}
        self._matrices: dict[int, tuple[int, int]] = {}

    @property
    def num_tensors(self) -> int:
        """The number of slots: inputs, allocated ones, and one for each recorded operation."""
        return len(self._values)

    def __len__(self) -> int:
        return len(self._values) - self._inputs

    # ---- slots ----

    def input(self, x: Any) -> int:
        """A slot with the value ``x``: a tensor, a primitive, a NumPy array (which is copied), a float, nested lists.

        The dtype is kept; it must be a float dtype.
        """
        return self._new(as_float(self.backend, x, "input"), "input")

    def alloc(self, shape: int | Sequence[int], dtype: Any = None) -> int:
        """A slot of this shape without a value; the first data that an operation receives for it become its value.

        Without ``dtype``, it takes the dtype of the data or of a slot it is added to; before that, the default dtype.
        With ``dtype``, data of another float dtype raise an error: nothing is cast implicitly.
        """
        found = default_float(self.backend) if dtype is None or dtype is float else as_dtype(dtype)
        if not found.has_gradient:
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
        place = self._index("value", slot)
        self._needs_value("value", place)
        return self._hand_out(self._values[place].value, self.backend)

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of a slot."""
        return tuple(self._values[self._index("shape", slot)].shape)

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
        """Note the dtype of a new slot."""
        if self._dtype is None:
            self._dtype = dtype
        elif self._dtype is not dtype:
            self._mixed, self._fast = True, None

    def _without_value(self, slot: int) -> None:
        self._unknown.add(slot)
        self._fast = None

    def _needs_value(self, where: str, slot: int) -> None:
        if slot in self._unknown:
            to = where if where in _WITH_DATA else " or ".join(_WITH_DATA)
            raise ArgumentError(f"{where}: slot {slot} has no value: make it with input(x), or pass its data to {to}")

    def _operand(self, where: str, slot: Any, data: Any = None) -> Tracked[Any]:
        """The primitive of a slot; ``data`` must equal its value, or become its value if it has none."""
        place = self._index(where, slot)
        held = self._values[place]
        if data is None:
            self._needs_value(where, place)
            return held
        k = self.backend
        given = as_float(k, data, f"{where}: the data of slot {place}")
        plain = data.__class__ is float or is_numbers(data)  # plain numbers have no dtype
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
            given, dtype = k.astype(given, wanted), wanted
        found, waiting = {slot: given}, [slot]

        def value_of(place: int) -> Any:
            return found[place] if place in found else None if place in self._unknown else values[place].value

        while waiting:
            for total in self._in_sums.get(waiting.pop(), ()):
                a, b = self._sums[total]
                x, y = value_of(a), value_of(b)
                if x is None or y is None:
                    continue
                computed, known = k.add(x, y), value_of(total)
                if known is None:
                    found[total] = computed
                    waiting.append(total)
                elif 0 not in computed.shape:
                    size = k.maximum(largest(k, x), largest(k, y))
                    if not is_close(k, known, computed, size):
                        raise ArgumentError(
                            f"{where}: slot {total} is the sum of slots {a} and {b}, and the data it was given are "
                            f"not their sum with these data for slot {slot}"
                        )
        self._decide(slot, dtype)
        for place, value in found.items():
            values[place] = Tracked(value, values[place].node)
        self._unknown -= found.keys()
        self._fast = None if self._unknown or self._mixed else self._level

    def _decide(self, slot: int, dtype: Any) -> None:
        """Make ``dtype`` that of a slot without one, and of all slots that sums connect with it."""
        k, waiting = self.backend, [slot]
        while waiting:
            place = waiting.pop()
            if place not in self._undecided:
                continue
            self._undecided.discard(place)
            held = self._values[place]
            made = k.broadcast_to(k.zeros((), dtype), tuple(held.shape))
            self._values[place] = Tracked(made, held.node)
            waiting.extend(self._sums.get(place, ()))
            for total in self._in_sums.get(place, ()):
                waiting.extend((total, *self._sums[total]))
        self._see(dtype)

    def _whole(self, recorded: Callable[..., int], *arguments: Any) -> int:
        """Record an operation that may give slots their values; if it fails, the tape is restored."""
        before = self.__copy__() if self._unknown else None
        try:
            return recorded(*arguments)
        except Exception:
            if before is not None:
                vars(self).update(vars(before))
            raise

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
                self._in_sums[operand] = (*self._in_sums.get(operand, ()), slot)
            if a in self._undecided:
                self._undecided.add(slot)
        return slot

    def _slot_or_constant(self, where: str, x: Any, like: Tracked[Any], alike: bool) -> Any:
        return as_constant(self._level, where, x, like, alike) if index_of(x) is None else self._operand(where, x)

    def _slot_or_array(self, where: str, x: Any, like: Tracked[Any]) -> Any:
        """A slot or constant for an operation that needs a tensor: a number becomes 0-d."""
        made = self._slot_or_constant(where, x, like, alike=True)
        k = self.backend
        return self._level.from_inner(k.full((), made, k.dtype(like.value))) if made.__class__ is float else made

    def _appended(self, out: Tracked[Any], name: str, slots: Sequence[Any], decided: bool = True) -> int:
        """A slot for the result of an operation, with a separate node."""
        flat = [i for o in slots for i in (o if isinstance(o, list) else [o]) if i is not None]
        if any(out.node is self._values[i].node for i in flat):
            out = Tracked(out.value, Node(identity_rule, (out.node,), (), tuple(out.shape), next_stamp()))
        if decided:
            self._see(self.backend.dtype(out.value))
        return self._put(out, name)

    def _run(self, name: str, operands: list[Any], slots: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """Compute and record an operation, even where recording is switched off."""
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
