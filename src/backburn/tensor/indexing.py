"""``x[key]`` and ``x.at[key]``: NumPy's indexing, with the backend's operations for slices and indices.

A key is parsed into a :class:`Plan`: a slice for every axis, then the axes indexed by integer and bool tensors. Reading
and writing follow the same plan, so that ``x.at[key].set(v)[key]`` is ``v``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, AxisError, DTypeError, ImmutableError, OutOfRangeError, ShapeError
from backburn.hints import add_hints
from backburn.hints.numpy import AT
from backburn.ops.index import canonical_slice, sliced
from backburn.ops.rules.shapes import broadcast
from backburn.tensor.core.dispatch import Number, Scalar, call, kind_operand
from backburn.tensor.core.host import asarray
from backburn.tensor.core.indices import as_int64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.index import _columns, _out_of_range_error, _plain_operand, _value_operand
from backburn.tensor.shape import _slice_and_reshape

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

T = TypeVar("T", bound="Tensor")
Shape = tuple[int, ...]


def getitem(x: T, key: Any, /) -> T:
    """``x[key]``, with NumPy's rules.

    The key is an integer, a slice (also with a negative step), None (a new axis), an Ellipsis, a tensor, array or
    sequence of integers or booleans, or a tuple of them. A mask of booleans must have the lengths of the axes that it
    indexes, or length 0, which selects nothing. A single boolean makes a new axis of length 1 or 0. Raises
    :class:`OutOfRangeError` for an index outside its axis and :class:`AxisError` for too many indices.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> x[1].tolist(), x[:, ::-1].tolist(), x[x > 4].tolist(), x[[1, 0], [0, 2]].tolist()
        ([4, 5, 6], [[3, 2, 1], [6, 5, 4]], [5, 6], [4, 3])
    """
    if key.__class__ is int and x.ndim and x._dtype.kind != "quantized" and -1 < key < x.shape[0]:
        k = x._backend
        return x.__class__(k.select(x._primitive, 0, key), k, x._dtype)
    if x._dtype.kind != "quantized" and (basic := _basic(x.shape, key)) is not None:
        return _slice_and_reshape(x, *basic)
    if is_tensor(key) and key.dtype.kind == "int" and x.ndim:
        return call("take", x, as_int64(key), axis=0)
    kind_operand("x[...]", x, "FCIBQ")
    if (truth := _one_truth(key)) is not None:
        y = getitem(x, None)
        return y if truth else getitem(y, slice(0, 0))
    if (among := _truths_among(x, key)) is not None:
        return getitem(*among)
    if is_tensor(key) and key.dtype.kind == "bool" and key.shape == x.shape and x.ndim:
        return call("masked_select", _plain_operand("x[mask]", x), key)
    if is_tensor(key) and key.dtype.kind == "bool" and key.shape == x.shape[:1]:
        return call("take", x, _index_tensors(x, key, 0)[0][0], axis=0)
    plan = plan_index(x, key)
    y = x if plan.is_whole else call("slice", x, key=plan.ranges)
    if not plan.positions:
        return _reshape(y, plan.shape)
    y = _reshape(y, plan.kept_shape)
    if len(plan.axes) == 1 and plan.place == plan.axes[0]:
        y = call("take", y, plan.positions[0], axis=plan.place)
    else:
        _plain_operand("x[...] by several positions", y)
        try:
            y = _permute(call("gather_nd", _permute(y, plan.front), _stack_positions(plan)), plan.back)
        except OutOfRangeError as error:
            raise _out_of_range_error("x[...]", x, _indexed_axes(x, plan), error) from error
    return _reshape(y, plan.shape)


def entries(x: T) -> Iterator[T]:
    """``x[0]``, ``x[1]`` and so on, without the cost of :func:`getitem`: loops over steps read many entries."""
    count = x.shape[0]
    if x._dtype.kind == "quantized" or count < 2:
        yield from (getitem(x, i) for i in range(count))
        return
    k, primitive, kind, dtype = x._backend, x._primitive, x.__class__, x._dtype
    for i in range(count):
        yield kind(k.select(primitive, 0, i), k, dtype)


def immutable_error(x: Any, key: Any, value: Any) -> ImmutableError:
    """The error for ``x[key] = value``."""
    return ImmutableError(
        "x[i] = v: tensors are never changed: x = x.at[i].set(v) makes a changed copy, and for x[i] += v "
        f"x = x.at[i].add(v). Operands: {describe((x, value))}. Index: {describe((key,)) or None}"
    )


def undeletable_error(x: Any, key: Any) -> ImmutableError:
    """The error for ``del x[key]``."""
    return ImmutableError(
        "del x[i]: tensors are never changed: bb.concat([x[:i], x[i + 1 :]]) is a copy without the element. "
        f"Operand: {describe((x,))}. Index: {describe((key,)) or None}"
    )


class At(Generic[T]):
    """``x.at``: ``x.at[key]`` refers to elements of ``x``, and its methods make modified copies."""

    __slots__ = ("_x",)

    def __init__(self, x: T) -> None:
        self._x = x

    def __getitem__(self, key: Any) -> AtIndex[T]:
        return AtIndex(self._x, key)

    def __repr__(self) -> str:
        return f"<places of {describe((self._x,))}>"


class AtIndex(Generic[T]):
    """Elements of a tensor. Each method returns a copy of the tensor in which these are changed.

    Values broadcast to the shape of ``x[key]`` and must fit into the dtype of ``x``. For repeated indices, ``set``
    keeps the last value and the other methods combine all values. Gradients flow to the tensor and to the values.

        >>> import backburn as bb
        >>> x = bb.asarray([1.0, 2.0, 3.0])
        >>> x.at[0].set(9.0).tolist(), x.at[1:].add(10.0).tolist(), x.at[[0, 0]].multiply(2.0).tolist()
        ([9.0, 2.0, 3.0], [1.0, 12.0, 13.0], [4.0, 2.0, 3.0])
    """

    __slots__ = ("_key", "_x")

    def __init__(self, x: T, key: Any) -> None:
        self._x = x
        self._key = key

    def set(self, value: Tensor | Number, /) -> T:
        """A copy with these elements replaced by ``value``."""
        return _write(self._x, self._key, value, "assign")

    def add(self, value: Tensor | Number, /) -> T:
        """A copy with ``value`` added to these elements."""
        return _write(self._x, self._key, value, "add")

    def multiply(self, value: Tensor | Number, /) -> T:
        """A copy with these elements multiplied by ``value``."""
        return _write(self._x, self._key, value, "mul")

    def min(self, value: Tensor | Scalar, /) -> T:
        """A copy with the minimum of these elements and ``value``."""
        return _write(self._x, self._key, value, "min")

    def max(self, value: Tensor | Scalar, /) -> T:
        """A copy with the maximum of these elements and ``value``."""
        return _write(self._x, self._key, value, "max")


add_hints(AtIndex, AT)
add_hints(At, {name: f"x.at[index].{name}(value)" for name in ("add", "max", "min", "multiply", "set")})


# ---- only integers and slices ----


def _basic(lengths: Shape, key: Any) -> tuple[tuple[slice, ...], Shape] | None:
    """The range of each axis, and the shape of the result; None for keys with other parts or out of range.

    Most keys have no other parts, and making a :class:`Plan` takes several times as long as reading the elements.
    """
    ranges: list[slice] = []
    shape: list[int] = []
    rank, axis, after_gap = len(lengths), 0, False
    parts = key if key.__class__ is tuple else (key,)
    for number, part in enumerate(parts):
        if part is None:
            shape.append(1)
            continue
        if part is Ellipsis:
            missing = rank - axis - sum(p is not None for p in parts[number + 1 :])
            if after_gap or missing < 0:
                return None
            after_gap = True
            for n in lengths[axis : axis + missing]:
                ranges.append(slice(0, n, 1))
                shape.append(n)
            axis += missing
            continue
        if axis == rank:
            return None
        n = lengths[axis]
        if part.__class__ is int:
            if not -n <= part < n:
                return None
            at = part if part >= 0 else part + n
            ranges.append(slice(at, at + 1, 1))
        elif part.__class__ is slice:
            if part.start is part.stop is part.step is None:
                ranges.append(slice(0, n, 1))
                shape.append(n)
            else:
                try:
                    ranges.append(canonical_slice(part, n))
                except (TypeError, ValueError):
                    return None
                shape.append(len(range(*part.indices(n))))
        else:
            return None
        axis += 1
    for n in lengths[axis:]:
        ranges.append(slice(0, n, 1))
        shape.append(n)
    return tuple(ranges), tuple(shape)


# ---- reading a key ----


@dataclass(frozen=True)
class Plan:
    """A parsed key.

    First ``ranges``, a slice for each axis, gives the shape ``sliced``. Then ``integer_axes``, each indexed by an
    integer, are dropped, which leaves the shape ``kept_shape``. ``positions`` are int tensors for its axes ``axes``,
    and ``stacked`` is one tensor of them if one mask gives all; ``indexed`` is their common shape, which begins
    at axis ``place`` of the result. ``plain`` is the shape of the result without its new axes of length 1, ``shape``
    with them.
    """

    ranges: tuple[slice, ...]
    is_whole: bool
    sliced: Shape
    integer_axes: frozenset[int]
    axes: tuple[int, ...]
    positions: tuple[Any, ...]
    stacked: Any
    indexed: Shape
    place: int
    plain: Shape
    shape: Shape

    @property
    def kept_shape(self) -> Shape:
        """The shape of the ranges without the axes indexed by integers."""
        return tuple(n for i, n in enumerate(self.sliced) if i not in self.integer_axes)

    @property
    def front(self) -> Shape:
        """The order of axes that has the indexed ones first."""
        return (*self.axes, *(i for i in range(len(self.kept_shape)) if i not in self.axes))

    @property
    def back(self) -> Shape:
        """The order of axes that moves the axes of the indices from the front to ``place``."""
        count = len(self.indexed)
        return (*range(count, count + self.place), *range(count), *range(count + self.place, len(self.plain)))


def plan_index(x: Any, key: Any) -> Plan:
    """Parse ``key`` for the tensor ``x``."""
    ranges: list[slice] = []
    integer_axes: set[int] = set()
    axes: list[int] = []
    positions: list[Any] = []
    masks: list[Any] = []
    advanced: list[int] = []  # numbers of the items that are integers or tensors
    lengths: list[int] = []  # lengths of the result's axes without those of the indices
    plain: list[int] = []  # ``lengths`` without new axes
    place = plain_place = 0  # position of the indices' axes among the axes
    for number, item in _items(x, key):
        axis = len(ranges)
        if item is None:
            lengths.append(1)
        elif isinstance(item, slice):
            ranges.append(_axis_slice(x, item, axis))
            plain.append(len(range(*item.indices(x.shape[axis]))))
            lengths.append(plain[-1])
        else:
            if not advanced:
                place, plain_place = len(lengths), len(plain)
            advanced.append(number)
            if item.__class__ is int:
                index = _axis_index(x, item, axis)
                ranges.append(slice(index, index + 1, 1))
                integer_axes.add(axis)
                continue
            found, mask = _index_tensors(x, item, axis)
            positions.extend(found)
            masks.append(mask)
            for _ in found:
                axes.append(len(ranges) - len(integer_axes))
                ranges.append(slice(0, x.shape[len(ranges)], 1))
    if advanced and advanced[-1] - advanced[0] >= len(advanced):
        place = plain_place = 0  # NumPy's rule: axes of separated indices come first
    indexed = _common_shape(positions)
    shape = sliced(x.shape, key=tuple(ranges))
    return Plan(
        ranges=tuple(ranges),
        is_whole=shape == x.shape and all(s.step == 1 for s in ranges),
        sliced=shape,
        integer_axes=frozenset(integer_axes),
        axes=tuple(axes),
        positions=tuple(positions),
        stacked=masks[0] if len(masks) == 1 else None,
        indexed=indexed,
        place=plain_place,
        plain=(*plain[:plain_place], *indexed, *plain[plain_place:]),
        shape=(*lengths[:place], *indexed, *lengths[place:]),
    )


def _items(x: Any, key: Any) -> list[tuple[int, Any]]:
    """The parts of ``key``, numbered: ints, slices, None and tensors of integers or booleans.

    The slices that an Ellipsis, written or implied, expands to share its number; it is counted even if it expands to
    none.
    """
    parts = [_item(x, part) for part in (key if isinstance(key, tuple) else (key,))]
    used = sum(_axes_taken(part) for part in parts)
    if used > x.ndim:
        raise AxisError(f"x[...]: {used} indices for {x.ndim} axes. Operand: {describe((x,))}")
    gaps = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(gaps) > 1:
        raise AxisError(f"x[...]: only one Ellipsis can stand for the missing axes. Operand: {describe((x,))}")
    numbered = list(enumerate(parts))
    at = gaps[0] if gaps else len(parts)
    return [*numbered[:at], *[(at, slice(None))] * (x.ndim - used), *numbered[at + 1 :]]


def _item(x: Any, part: Any) -> Any:
    """One part of a key; a sequence or an array becomes a tensor."""
    if isinstance(part, (tuple, range)):  # inside the tuple of a key of several parts
        part = list(part)
    if part is None or part is Ellipsis or isinstance(part, slice) or part.__class__ is int:
        return part
    tensor = part if is_tensor(part) else None
    if tensor is None and not isinstance(part, (list, bool)):
        try:
            return operator.index(part)
        except TypeError:
            if not hasattr(part, "__array__"):
                raise DTypeError(
                    f"x[...]: an index is an integer, a slice, None, an Ellipsis, or a tensor or list of integers or "
                    f"truth values, not {part!r}. Operand: {describe((x,))}"
                ) from None
    if tensor is None:
        tensor = asarray(part, backend=x.backend)
        if isinstance(part, list) and not tensor.size:
            tensor = as_int64(tensor)
    if tensor.dtype.kind not in ("int", "bool"):
        raise DTypeError(f"x[...]: indices are integers or truth values, not {describe((tensor,))}")
    return tensor


def _one_truth(key: Any) -> bool | None:
    """The boolean that ``key`` is; None if it is not a single one."""
    if key.__class__ is bool:
        return bool(key)
    if getattr(key, "shape", None) != () or str(getattr(key, "dtype", "")) != "bool":
        return None
    return bool(key)


def _truths_among(x: Any, key: Any) -> tuple[Any, Any] | None:
    """``x`` with an axis for each single boolean in the tuple ``key``, and the key for it; None if there is none.

    Such an axis is indexed by an array of length 1 (True) or 0 (False), as in NumPy.
    """
    if key.__class__ is not tuple or not any(_one_truth(part) is not None for part in key):
        return None
    axes: list[Any] = []
    parts: list[Any] = []
    for part in key:
        truth = _one_truth(part)
        part = _item(x, part) if truth is None else part
        if truth is None:
            axes += [part] if part is Ellipsis else [slice(None)] * _axes_taken(part)
            parts.append(part)
        else:
            axes.append(None)
            parts.append(asarray([0] * truth, dtype=int64, backend=x.backend))
    return getitem(x, tuple(axes)), tuple(parts)


def _axes_taken(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    return int(part.ndim) if is_tensor(part) and part.dtype.kind == "bool" else 1


def _axis_slice(x: Any, part: slice, axis: int) -> slice:
    try:
        return canonical_slice(part, x.shape[axis])
    except (TypeError, ValueError) as error:
        ours = DTypeError if isinstance(error, TypeError) else ArgumentError
        raise ours(f"x[...]: {part} at axis {axis}: {error}. Operand: {describe((x,))}") from None


def _axis_index(x: Any, index: int, axis: int) -> int:
    length: int = x.shape[axis]
    if not -length <= index < length:
        raise OutOfRangeError(
            f"x[...]: index {index} is out of range for axis {axis}, which has {length} elements. "
            f"Operand: {describe((x,))}"
        )
    return index % length


def _index_tensors(x: Any, item: Any, axis: int) -> tuple[Sequence[Any], Any]:
    """Int64 tensors for the axes from ``axis`` on that a tensor indexes; for a mask, also all of them as one tensor."""
    if item.dtype.kind == "int":
        return [as_int64(item)], None
    lengths = x.shape[axis : axis + item.ndim]
    if any(n not in (0, length) for n, length in zip(item.shape, lengths, strict=True)):
        raise AxisError(
            f"x[...]: truth values of shape {list(item.shape)} cannot choose from axes of the lengths {list(lengths)}, "
            f"from axis {axis} on. Operands: {describe((x, item))}"
        )
    if not item.ndim:
        raise DTypeError(f"x[...]: a single truth value is an index only by itself. Operand: {describe((x,))}")
    found = call("nonzero", item)
    return _columns(found), found


def _common_shape(positions: list[Any]) -> Shape:
    try:
        return broadcast(*(p.shape for p in positions))
    except ShapeError as error:
        raise ShapeError(f"x[...]: the indices {describe(positions)} do not broadcast: {error}") from None


# ---- following a plan ----


def _permute(x: Any, axes: Shape) -> Any:
    """``x`` with its axes in another order."""
    return x if axes == tuple(range(len(axes))) else call("permute_dims", x, axes=axes)


def _inverse_axes(axes: Shape) -> Shape:
    """The inverse of an order of axes."""
    return tuple(axes.index(i) for i in range(len(axes)))


def _reshape(x: Any, shape: Shape) -> Any:
    return x if x.shape == shape else call("reshape", x, shape=shape)


def _broadcast(x: Any, shape: Shape) -> Any:
    return x if x.shape == shape else call("broadcast_to", x, shape=shape)


def _stack_positions(plan: Plan) -> Any:
    """The positions as one tensor, whose last axis numbers the axes that they index."""
    if plan.stacked is not None:
        return plan.stacked
    columns = [call("reshape", _broadcast(p, plan.indexed), shape=(*plan.indexed, 1)) for p in plan.positions]
    return columns[0] if len(columns) == 1 else call("concat", columns, axis=len(plan.indexed))


def _write(x: Any, key: Any, value: Any, how: str) -> Any:
    """A copy of ``x`` with ``value`` combined with ``x[key]`` by the operation ``how`` ("assign", "add", ...)."""
    name = "x.at[...]"
    _plain_operand(name, x)
    if how != "assign" and x._dtype.kind == "bool":
        raise DTypeError(f"{name}: truth values are set, not calculated with. Operand: {describe((x,))}")
    basic = _basic(x.shape, key)
    if basic is not None and getattr(value, "shape", ()) in ((), basic[1]):
        value = _value_operand(name, x, value)
        # Only the first axes are indexed, by integers: the value broadcasts to the remaining axes.
        if is_tensor(value) and value.ndim and (places := sliced(x.shape, key=basic[0]))[-value.ndim :] != value.shape:
            value = _reshape(value, places)
        return _write_ranges(x, basic[0], value, how)
    is_mask = is_tensor(key) and key.dtype.kind == "bool" and key.shape == x.shape[: key.ndim]
    is_one_value = is_mask and getattr(value, "shape", ()) == () and how in _MASK_MODES
    if not is_one_value and (truth := _one_truth(key)) is not None:
        if truth:
            return _write(x, None, value, how)
        _write(_reshape(x, (1, *x.shape)), slice(0, 0), value, how)  # only checks the value
        return x
    if (among := _truths_among(x, key)) is not None:
        return _reshape(_write(*among, value, how), x.shape)
    if is_one_value:
        value = _value_operand(name, x, value)
        return _write_where(x, _reshape(key, (*key.shape, *(1,) * (x.ndim - key.ndim))), value, how)
    if how in _AXIS_OPERATIONS and is_tensor(key) and key.dtype.kind == "int" and key.ndim == 1 and x.ndim:
        places = (*key.shape, *x.shape[1:])
        if getattr(value, "shape", ()) in ((), places):
            value = _value_operand(name, x, value)
            try:
                return _write_entries(x, as_int64(key), value, places, how)
            except OutOfRangeError as error:
                raise _out_of_range_error(name, x, [(0, key)], error) from error
    plan = plan_index(x, key)
    value = _value_operand(name, x, value)
    return _write_plan(plan, name, x, _fit_value(name, x, value, plan) if is_tensor(value) else value, how)


def _write_plan(plan: Plan, name: str, x: Any, value: Any, how: str) -> Any:
    """A copy of ``x`` with ``value``, which fits the plan, combined with the elements that the plan reads."""
    if plan.positions:
        part = x if plan.is_whole else call("slice", x, key=plan.ranges)
        try:
            new = _reshape(_write_positions(_reshape(part, plan.kept_shape), value, plan, how), plan.sliced)
        except OutOfRangeError as error:
            raise _out_of_range_error(name, x, _indexed_axes(x, plan), error) from error
        return new if plan.is_whole else call("slice_assign", x, new, key=plan.ranges)
    if is_tensor(value) and plan.integer_axes:
        lengths = iter((1,) * (len(plan.plain) - value.ndim) + value.shape)
        value = _reshape(value, tuple(1 if i in plan.integer_axes else next(lengths) for i in range(len(plan.sliced))))
    return _write_ranges(x, plan.ranges, value, how)


def _write_ranges(x: Any, ranges: tuple[slice, ...], value: Any, how: str) -> Any:
    """``x`` with ``value``, which broadcasts to these ranges of its axes, combined with them by ``how``."""
    new = value if how == "assign" else call(_COMBINE[how], call("slice", x, key=ranges), value)
    return call("slice_assign", x, new, key=ranges)


def _indexed_axes(x: Any, plan: Plan) -> Iterable[tuple[int, Any]]:
    """The axes of ``x`` that tensors index, and these tensors."""
    axes = [i for i in range(x.ndim) if i not in plan.integer_axes]
    return ((axes[axis], position) for axis, position in zip(plan.axes, plan.positions, strict=True))


#: Modes in which one value is written through a mask without its positions, so that they work inside vmap as well.
_MASK_MODES = ("assign", "add", "mul")


def _write_where(x: Any, mask: Any, value: Any, how: str) -> Any:
    """``x`` with one value written at the elements where ``mask`` is true."""
    if how == "assign":
        return call("where", mask, value, x)
    if how == "add":
        return call("where", mask, call("add", x, value), x)
    # 1 replaces elements that are not written: multiplied by an infinite value, their gradient would be NaN.
    one = {"float": 1.0, "complex": 1.0, "int": 1}[x.dtype.kind]
    return call("where", mask, call("mul", call("where", mask, x, one), value), x)


#: The operation that writes entries at positions along one axis, by mode.
_AXIS_OPERATIONS = {"assign": "index_copy", "add": "index_add"}


def _write_entries(x: Any, positions: Any, value: Any, places: Shape, how: str) -> Any:
    """``x`` with ``value``, which broadcasts to ``places``, written at positions along its first axis."""
    count = math.prod(positions.shape)
    if is_tensor(value):
        value = _reshape(_broadcast(value, places), (count, *x.shape[1:]))
    return call(_AXIS_OPERATIONS[how], x, _reshape(positions, (count,)), value, axis=0)


_COMBINE = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}


def _fit_value(name: str, x: Any, value: Any, plan: Plan) -> Any:
    """``value`` without the new axes of the result; raises if it does not broadcast to the result."""
    try:
        fits = broadcast(value.shape, plan.shape) == plan.shape
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name}: a value of shape {list(value.shape)} does not broadcast to the indexed elements of shape "
            f"{list(plan.shape)}. Operands: {describe((x, value))}"
        )
    return value if plan.shape == plan.plain else _reshape(_broadcast(value, plan.shape), plan.plain)


def _write_positions(x: Any, value: Any, plan: Plan, how: str) -> Any:
    """``x``, of the plan's shape ``kept_shape``, with ``value`` written at the positions."""
    order = plan.front
    moved = _permute(x, order)
    if is_tensor(value):
        value = _permute(_broadcast(value, plan.plain), _inverse_axes(plan.back))
    if len(plan.axes) == 1 and how in _AXIS_OPERATIONS:
        written = _write_entries(moved, plan.positions[0], value, (*plan.indexed, *moved.shape[1:]), how)
    else:
        if how not in ("assign", "add"):
            kind_operand("x.at[...]", x, "FI")
        written = call("scatter_nd", moved, _stack_positions(plan), value, mode=how)
    return _permute(written, _inverse_axes(order))
