"""Numbered slots with values, and the recording of operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.autodiff.decorator import Autodiff
from backburn.autodiff.graph import Node, Tracked, leaf, next_stamp
from backburn.autodiff.tape.accumulation import is_flat
from backburn.autodiff.tape.calls import call, differentiable
from backburn.autodiff.tape.values import as_float, as_primitive, base_backend, index_of, is_close, shown
from backburn.backend.contract import AnyBackend
from backburn.base.contexts import DEFAULT_FLOAT, RECORDING, scoped
from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError


class Slots:
    """The slots of a :class:`~backburn.autodiff.tape.GradientTape`."""

    def __init__(self, *, backend: AnyBackend | str | None = None) -> None:
        self.backend: Any = base_backend(backend)
        self._level: Any = Autodiff(self.backend)
        self.reset()

    def reset(self) -> None:
        """Forget all slots and operations."""
        #: The primitive of each slot. Not a list, in which -1 would be a slot.
        self._values: dict[int, Tracked[Any]] = {}
        #: The operation that made each slot.
        self._made: list[str] = []
        self._inputs = 0
        #: The level while all slots have a value and one dtype, so that operands need not be looked at; then None.
        self._fast: Any = self._level
        self._dtype: Any = None
        self._mixed = False
        self._unknown: set[int] = set()
        self._matrices: dict[int, tuple[int, int]] = {}

    @property
    def num_tensors(self) -> int:
        """The number of slots: inputs, allocated ones, and one for each recorded operation."""
        return len(self._values)

    def __len__(self) -> int:
        return len(self._values) - self._inputs

    # ---- slots ----

    def input(self, x: Any) -> int:
        """A slot with the value ``x``: a tensor, a primitive, a NumPy array (which is copied) or a float.

        The dtype is kept; it must be a float dtype.
        """
        return self._new(as_float(self.backend, x, "input"), "input")

    def alloc(self, shape: int | Sequence[int], dtype: Any = None) -> int:
        """A slot of this shape without a value; the first data that an operation is given for it become its value."""
        found = DEFAULT_FLOAT.get() if dtype is None else as_dtype(dtype)
        if found.kind != "float":
            raise DTypeError(f"alloc: gradients belong to floats, not to {found}")
        size: tuple[Any, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(n, int) and n >= 0 for n in size):
            raise ShapeError(f"alloc: the lengths of a shape are integers from 0 on, not {list(size)}")
        k = self.backend
        slot = self._new(k.broadcast_to(k.zeros((), found), size), "alloc")
        self._without_value(slot)
        return slot

    def value(self, slot: int) -> Any:
        """The value of a slot, a primitive of :attr:`backend`. Raises when it has none."""
        place = self._slot("value", slot)
        self._needs_value("value", place)
        return self._values[place].value

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of a slot."""
        return tuple(self._values[self._slot("shape", slot)].shape)

    def _new(self, value: Any, made: str) -> int:
        self._see(self.backend.dtype(value))
        self._inputs += 1
        return self._put(Tracked(value, leaf(tuple(value.shape))), made)

    def _put(self, value: Tracked[Any], made: str) -> int:
        slot = len(self._values)
        self._values[slot] = value
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
            raise ArgumentError(
                f"{where}: slot {slot} has no value: pass its data to {where}, or make the slot with input(x)"
            )

    def _operand(self, where: str, slot: Any, data: Any = None) -> Tracked[Any]:
        """The primitive of a slot, after comparing it with ``data`` or, where it has no value, giving it that."""
        place = self._slot(where, slot)
        held = self._values[place]
        if data is None:
            self._needs_value(where, place)
            return held
        k = self.backend
        given = as_float(k, data, f"{where}: the data of slot {place}")
        shape = tuple(held.shape)
        if tuple(given.shape) != shape and is_flat(tuple(given.shape), shape):
            given = k.reshape(given, shape)
        if tuple(given.shape) != shape:
            raise ShapeError(
                f"{where}: the data of slot {place} have shape {list(given.shape)}, and the slot {list(shape)}"
            )
        if place in self._unknown:
            self._unknown.discard(place)
            self._fast = None if self._unknown or self._mixed else self._level
            held = self._values[place] = Tracked(k.cast(given, k.dtype(held.value)), held.node)
        elif not is_close(k, given, held.value):
            raise ArgumentError(
                f"{where}: the data of slot {place} differ from its value, which the tape has kept. "
                f"Leave them out, or record on new slots"
            )
        return held

    def _constant(self, where: str, x: Any, like: Tracked[Any] | None) -> Any:
        """Something other than a slot as an operand: floats, None and ints' primitives pass, floats are cast."""
        if x is None or x.__class__ is float:
            return x
        k = self.backend
        made = as_primitive(k, x, where)
        if k.dtype(made).kind != "float":
            return made
        return self._level.from_inner(made if like is None else k.cast(made, k.dtype(like.value)))

    def _slot_or_constant(self, where: str, x: Any, like: Tracked[Any]) -> Any:
        return self._constant(where, x, like) if index_of(x) is None else self._operand(where, x)

    def _slot_or_array(self, where: str, x: Any, like: Tracked[Any]) -> Any:
        """As above, where an operation needs a tensor: a number becomes a 0-d one."""
        made = self._slot_or_constant(where, x, like)
        k = self.backend
        return self._level.from_inner(k.full((), made, k.dtype(like.value))) if made.__class__ is float else made

    def _appended(self, out: Tracked[Any], name: str, slots: Sequence[Any]) -> int:
        """A slot for the result of an operation, with a node of its own."""
        flat = [i for o in slots for i in (o if isinstance(o, list) else [o]) if i is not None]
        if any(out.node is self._values[i].node for i in flat):
            out = Tracked(out.value, Node(_same, (out.node,), (), tuple(out.shape), next_stamp()))
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


def _same(k: Any, g: Any, node: Node) -> tuple[Any]:
    return (g,)
