"""Derived samples: written samples with one axis stretched at a time, or all at once.

A backend may compute large operands differently: with vectors and their tails, tiles, threads, blocks, or another
algorithm. So each axis of a sample gets odd lengths beyond the sizes at which libraries switch algorithms. The shape
rule determines which axes of the operands, and which numbers among the options, must grow together. New values derive
from the sample's, so that they stay in the function's domain: floats are interpolated between two values along the
axis, whole numbers are drawn from the values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np

from backburn.base.errors import BackburnError
from backburn.conformance.samples.calls import (
    PLACES,
    POINTERS,
    expected_of,
    flatten,
    indexed_length,
    is_float,
)  # fmt: skip
from backburn.conformance.samples.table import SAMPLES, Array, Sample, Stored
from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import OPERATIONS, Operation

#: Lengths of a long axis, to which an even offset is added: more than a block of 1,024; more than 65,536, the rows of a
#: grid and the range of 16 bits; more than a million; more than float32 can count.
LENGTHS = (1_031, 66_047, 1_050_001, 16_800_001)
#: Lengths if all axes are long, in rotation, for tiles, vectors and their tails.
SIDES = (67, 37, 131, 33)
#: The number for stretching all axes, after those of the lengths of single axes.
ALL = 9
#: The most elements of the operands of one sample by the number of its length, and with all axes stretched.
MOST = (1 << 14, 1 << 18, 1 << 22, 1 << 25)
MOST_ALL = 1 << 17
#: Fewer elements if the reference computes element by element, or the work grows faster than the operands.
SLOW: dict[str, int] = {
    **dict.fromkeys(("poisson", "ctc_loss"), 130),
    **dict.fromkeys(("gamma", "random_bits", "random_window", "uniform", "integers", "bernoulli", "normal"), 300),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool", "grid_sample", "prod_of_others"), 250),
    **dict.fromkeys(("dropout", "permutation", "categorical", "erfinv", "i0", "i1", "rfft", "irfft", "fft"), 600),
    **dict.fromkeys(("sample", "sample_backward", "conv_transpose", "max_pool", "avg_pool"), 600),
    **dict.fromkeys(("eigh", "eigvalsh"), 1_300),
    **dict.fromkeys(("digamma", "polygamma", "erfc_ratio", "sinc_ratio", "bessel_ratio", "i1e", "i0e_slope"), 1_250),
    **dict.fromkeys(("i0e", "lu", "lstm", "lstm_backward", "gru", "gru_backward"), 1_250),
    **dict.fromkeys(("index_copy", "ssm_scan", "ssm_scan_backward"), 1_250),
    **dict.fromkeys(("take_along_axis_backward", "scatter", "scatter_reduce", "one_hot"), 2_000),
    **dict.fromkeys(("cross_entropy", "nll_loss", "label_cross_entropy", "label_cross_entropy_backward"), 2_000),
    **dict.fromkeys(("ndtr", "ndtri", "log_ndtr", "inverse_mills", "erf", "erfc", "erfcx", "lgamma"), 16_000),
    **dict.fromkeys(("gelu", "gelu_backward", "det", "cofactors", "sort_with_indices", "argsort", "nonzero"), 40_000),
    **dict.fromkeys(("feed_forward", "feed_forward_backward", "scaled_dot_product_attention", "unique_all"), 40_000),
    **dict.fromkeys(("scaled_dot_product_attention_backward", "conv", "fold", "unfold", "deform_conv2d"), 40_000),
    **dict.fromkeys(("interpolate_backward", "scatter_nd"), 4_000),
}  # fmt: skip
#: The longest side of a matrix to be decomposed.
SIDE = 67
#: Operations whose reference suits only small matrices: only their batches are stretched.
BATCHES = frozenset({"det", "slogdet", "cofactors"})

#: Options that are lengths of results: those that may grow together with an axis, and those that may grow alone.
BESIDE = frozenset({"shape", "length", "key", "stop"})
ALONE = frozenset({"depth", "count", "repeats", "size", "num", "n", "m", "stop"})
#: Operations whose result may have any shape; in others, shapes correspond to the axes of the operands.
OF_ANY_SHAPE = frozenset({"reshape", "broadcast_to"})
#: Operations whose operands must be results of the forward operation, which no rule checks.
MADE = frozenset({"ctc_loss_backward", "avg_pool_backward"})
#: Options that are lengths only in creation.
CREATION = frozenset({"n", "m", "shape"})
#: Families whose integer operands may hold any integer.
ANY_INTEGER = frozenset({"reduce", "scan", "sort", "sets", "shape", "selection", "linalg"})
#: Values near the end of an axis: NaN, infinities, a negative zero.
EDGES = (np.nan, np.inf, -np.inf, -0.0)
#: The most subsets of axes of equal length that are tried.
TRIES = 24


class Slot(NamedTuple):
    """An axis of an operand (``holder``, index ``member`` in a list), or a number in the option ``holder``."""

    holder: int | str
    member: int
    axis: int

    def __str__(self) -> str:
        if isinstance(self.holder, str):
            return self.holder
        return f"operand {self.holder} axis {self.axis}"


@dataclass(frozen=True)
class Stretch:
    """New lengths of slots; ``number`` is a part of the index in ids of checks."""

    number: int
    lengths: tuple[tuple[Slot, int], ...]

    def __str__(self) -> str:
        return ", ".join(f"{slot}: {n}" for slot, n in self.lengths)


class _Shaped:
    """An operand known by its shape only."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


# ---- which axes ----


def slots_of(operation: Operation, sample: Sample) -> dict[Slot, int]:
    """Every slot of a sample with its current length, if that is at least 2; axes first."""
    found: dict[Slot, int] = {}
    for place, operand in enumerate(sample.operands):
        members = operand if isinstance(operand, list) else [operand]
        for member, array in enumerate(members):
            if isinstance(array, np.ndarray | Stored):
                fixed = 2 if operation.name in BATCHES else 0
                if isinstance(array, Stored):  # blocks of values that share a step stay as they are
                    fixed = len(array.scheme.block_shape or ())
                axes = list(enumerate(array.shape))[: len(array.shape) - fixed]
                found.update((Slot(place, member, axis), n) for axis, n in axes if n > 1)
    for name, value in sample.attributes.items():
        if name not in BESIDE | ALONE or (name in ("n", "m", "size") and sample.operands and not _sizes(operation)):
            continue
        for position, number in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(number, slice):
                ends = {0: (number.start or 0) + 1, 1: number.stop or 0}
                found.update((Slot(name, position, end), n) for end, n in ends.items() if n > 1)
            elif type(number) is int and number > 1:
                found[Slot(name, position, -1)] = number
    return found


def _sizes(operation: Operation) -> bool:
    """Whether the option ``size`` is a length of the result, not of windows."""
    return operation.name.startswith(("adaptive", "interpolate"))


def _with_lengths(sample: Sample, lengths: Mapping[Slot, int]) -> tuple[list[Any], dict[str, Any]]:
    """The operands as shapes, and the options, with new lengths."""
    operands = [
        [_shaped(a, place, m, lengths) for m, a in enumerate(operand)]
        if isinstance(operand, list)
        else _shaped(operand, place, 0, lengths)
        for place, operand in enumerate(sample.operands)
    ]
    return operands, _attributes(sample, lengths)


def _shaped(operand: Any, place: int, member: int, lengths: Mapping[Slot, int]) -> Any:
    if not isinstance(operand, np.ndarray | Stored):
        return operand
    return _Shaped(tuple(lengths.get(Slot(place, member, axis), n) for axis, n in enumerate(operand.shape)))


def _attributes(sample: Sample, lengths: Mapping[Slot, int]) -> dict[str, Any]:
    changed = dict(sample.attributes)
    for slot, n in lengths.items():
        if isinstance(slot.holder, str):
            known = changed[slot.holder]
            numbers = list(known) if isinstance(known, tuple) else [known]
            old = numbers[slot.member]
            if isinstance(old, slice):
                start, stop = (n - 1, old.stop) if slot.axis == 0 else (old.start, n)
                numbers[slot.member] = slice(start, stop, old.step)
            else:
                numbers[slot.member] = n
            changed[slot.holder] = tuple(numbers) if isinstance(known, tuple) else numbers[0]
    return changed


def _fits(operation: Operation, sample: Sample, lengths: Mapping[Slot, int]) -> bool:
    """Whether the shape rule accepts the lengths."""
    operands, attributes = _with_lengths(sample, lengths)
    try:
        operation.result_shape(operands, attributes)
    except BackburnError:
        return False
    return True


@cache
def groups_of(name: str, index: int) -> list[tuple[Slot, ...]]:
    """Small sets of slots that can grow together, so that each axis of an operand is in one if possible."""
    operation, sample = OPERATIONS[name], SAMPLES[name].cases[index]
    slots = slots_of(operation, sample)
    found: dict[frozenset[Slot], tuple[Slot, ...]] = {}
    for slot, length in slots.items():
        alone = ALONE if sample.operands and operation.name != "broadcast_to" else ALONE | CREATION
        if isinstance(slot.holder, str) and slot.holder not in alone:
            continue
        others = [s for s, n in slots.items() if n == length and s != slot and _may_grow_beside(operation, s, slot)]
        others.sort(key=lambda s: (s.axis != slot.axis, str(s.holder)))
        for chosen in _sets(operation, sample, slot, others, length):
            found.setdefault(frozenset(chosen), chosen)
    return list(found.values())


def _may_grow_beside(operation: Operation, other: Slot, slot: Slot) -> bool:
    """Whether an option's number may belong to an axis: in shapes and keys, only the one at the same index."""
    return other.holder not in ("shape", "key") or operation.name in OF_ANY_SHAPE or other.member == slot.axis


def _sets(
    operation: Operation, sample: Sample, slot: Slot, others: list[Slot], length: int
) -> Iterator[tuple[Slot, ...]]:
    """The smallest set of a slot and others that can grow, and sets with one more option."""
    every = (more for size in range(len(others) + 1) for more in combinations(others, size))
    for more in islice(every, TRIES):
        if _grows(operation, sample, (slot, *more), length):
            yield (slot, *more)
            options = tuple(s for s in others if isinstance(s.holder, str) and s not in more)
            for option in options:
                if _grows(operation, sample, (slot, *more, option), length):
                    yield (slot, *more, option)
            return


def _grows(operation: Operation, sample: Sample, group: tuple[Slot, ...], length: int) -> bool:
    """Whether the shape rule accepts longer axes, and the reference agrees with it."""
    lengths = next((n for n in _near(length + 4, length) if _fits(operation, sample, dict.fromkeys(group, n))), None)
    if lengths is None or operation.name in MADE:
        return False
    if operation.elementwise and (len(sample.operands) == 1 or operation.shape is broadcast):
        return True
    return _computes(operation, sample, dict.fromkeys(group, lengths))


def _computes(operation: Operation, sample: Sample, lengths: Mapping[Slot, int]) -> bool:
    """Whether the reference accepts a call with these lengths, since shape rules do not check all constraints."""
    if any(_is_side(operation, sample, slot) for slot in lengths):  # a matrix of equal rows has no decomposition
        tried = _stretched(operation, sample, lengths, np.random.default_rng(0))
    else:
        tried = _repeated(sample, lengths)
    try:
        with np.errstate(all="ignore"):
            found = expected_of(SAMPLES[operation.name], tried, list(tried.operands))
    except Exception:
        return False
    promised = operation.result_shape(tried.operands, tried.attributes)
    if promised is None or operation.results == ("host",):
        return True
    outputs = promised if len(operation.results) > 1 else (promised,)
    return [a.shape for a in found] == [tuple(shape) for shape in outputs]


def _repeated(sample: Sample, lengths: Mapping[Slot, int]) -> Sample:
    """A sample with longer axes along which its values repeat, which is cheaper than new values."""
    operands = [list(o) if isinstance(o, list) else [o] for o in sample.operands]
    for (place, member, axis), n in lengths.items():
        if isinstance(place, int):
            old = operands[place][member]
            values = old.values if isinstance(old, Stored) else old
            longer = values.take(np.arange(n) % values.shape[axis], axis)
            operands[place][member] = replace(old, values=longer) if isinstance(old, Stored) else longer
    members = zip(sample.operands, operands, strict=True)
    return replace(
        sample,
        operands=tuple(new if isinstance(old, list) else new[0] for old, new in members),
        attributes=_attributes(sample, lengths),
    )


def _near(length: int, multiple: int) -> tuple[int, int]:
    """An odd length, and an odd multiple of the current one for axes that are split into groups."""
    return length | 1, ((length // multiple) | 1) * multiple


# ---- which lengths ----


@cache
def stretches(name: str, index: int, number: int) -> tuple[Stretch, ...]:
    """Stretches of each axis of a written sample to the length with this number; for :data:`ALL`, of all axes at once.

    If operands would be too large, the axis gets the largest possible length, if that exceeds the previous one.
    """
    operation, sample = OPERATIONS[name], SAMPLES[name].cases[index]
    groups = groups_of(name, index)
    if number == ALL:
        every = _all(operation, sample, groups)
        return (Stretch(0, tuple(every.items())),) if every else ()
    found = []
    for place, group in enumerate(groups):
        fitting = _length(operation, sample, group, place, number)
        if number and fitting <= _length(operation, sample, group, place, number - 1):
            continue
        length = slots_of(operation, sample)[group[0]]
        for n in _near(fitting, length):
            if n > length and _fits(operation, sample, dict.fromkeys(group, n)):
                found.append(Stretch(place, tuple((slot, n) for slot in group)))
                break
    return tuple(found)


def _length(operation: Operation, sample: Sample, group: tuple[Slot, ...], place: int, number: int) -> int:
    """The length with this number, or the largest for which operands and results are not too large."""
    wanted = LENGTHS[number] + 2 * (zlib.crc32(f"{operation.name}{place}".encode()) % 61)
    if any(_is_side(operation, sample, slot) for slot in group):
        wanted = min(wanted, SIDE)
    few = MOST[number]
    if operation.name in SLOW:
        few = min(few, SLOW[operation.name] * (32 if number > 1 else 1))
        wanted = min(wanted, few)
    while (size := _elements(operation, sample, dict.fromkeys(group, wanted))) > few:
        wanted = min(int(wanted * few / size), wanted - 1) if size < 2 * few else wanted // 2
    return wanted


def _is_side(operation: Operation, sample: Sample, slot: Slot) -> bool:
    """Whether a slot is one of the last two axes of a matrix to be decomposed."""
    if operation.family != "decompositions" or operation.name == "stop_gradient" or isinstance(slot.holder, str):
        return False
    return bool(slot.axis >= sample.operands[slot.holder].ndim - 2)


def _elements(operation: Operation, sample: Sample, lengths: Mapping[Slot, int]) -> int:
    """The number of elements of all operands, or of the largest result if it has more."""
    operands, attributes = _with_lengths(sample, lengths)
    sizes = [math.prod(o.shape) for o in flatten(operands) if isinstance(o, _Shaped)]
    try:
        promised = operation.result_shape(operands, attributes) or ()
    except BackburnError:
        promised = ()
    outputs = promised if promised and isinstance(promised[0], tuple | list) else (promised,)
    return max(sum(sizes), *(math.prod(shape) for shape in outputs))


def _all(operation: Operation, sample: Sample, groups: list[tuple[Slot, ...]]) -> dict[Slot, int]:
    lengths: dict[Slot, int] = {}
    sides = 0
    for group in groups:
        if any(slot in lengths for slot in group):
            continue
        for n in _near(SIDES[sides % len(SIDES)], slots_of(operation, sample)[group[0]]):
            more = {**lengths, **dict.fromkeys(group, n)}
            if _elements(operation, sample, more) <= SLOW.get(operation.name, MOST_ALL) and _fits(
                operation, sample, more
            ):
                lengths, sides = more, sides + 1
                break
    return lengths if sides > 1 else {}


# ---- values ----


@lru_cache(maxsize=4)
def stretched(name: str, index: int, stretch: Stretch, edges: bool = False, ties: bool = True) -> Sample:
    """A written sample with other lengths, with the same values in every run.

    With ``edges`` it has NaN, infinities and a negative zero at the end of an axis; with ``ties`` equal floats.
    """
    operation, sample = OPERATIONS[name], SAMPLES[name].cases[index]
    generator = np.random.default_rng(zlib.crc32(f"{name}{index}{stretch}".encode()))
    longer = _stretched(operation, sample, dict(stretch.lengths), generator, edges, ties)
    note = f"{sample.note}; {stretch}" if sample.note else str(stretch)
    return replace(longer, smooth=min(sample.smooth, 1), gradients=None, exact=False, note=note)


def _stretched(
    operation: Operation,
    sample: Sample,
    lengths: Mapping[Slot, int],
    generator: np.random.Generator,
    edges: bool = False,
    ties: bool = True,
) -> Sample:
    name = operation.name

    def grown(operand: Any, place: int, member: int) -> Any:
        values = operand.values if isinstance(operand, Stored) else operand
        if not isinstance(values, np.ndarray):
            return operand
        make: Callable[..., Array] = partial(_between, ties=ties)
        if isinstance(operand, Stored) or _is_whole(values):
            pointers = operation.operands[place] in POINTERS
            any_integer = operation.family in ANY_INTEGER and values.dtype == np.int64 and not pointers
            make = _integers if any_integer else _drawn
        grown_axes = [axis for axis in range(values.ndim) if Slot(place, member, axis) in lengths]
        for axis in grown_axes:
            values = make(values, axis, lengths[Slot(place, member, axis)], generator)
        if place == 0 and any(_is_side(operation, sample, Slot(place, member, axis)) for axis in grown_axes):
            values = _matrices(operand, values.shape, generator)
        if operation.name == "searchsorted" and place == 0 and grown_axes:
            values = np.sort(values, axis=-1)
        if edges and grown_axes and is_float(values) and not (operation.name == "searchsorted" and place == 0):
            _put_edges(values, grown_axes[-1], operation.elementwise)
        return replace(operand, values=values) if isinstance(operand, Stored) else values

    operands = [
        [grown(o, place, member) for member, o in enumerate(operand)]
        if isinstance(operand, list)
        else grown(operand, place, 0)
        for place, operand in enumerate(sample.operands)
    ]
    attributes = _attributes(sample, lengths)
    for place, operand in enumerate(operands):
        if operation.operands[place] in POINTERS and isinstance(operand, np.ndarray):
            old = indexed_length(name, list(sample.operands), sample.attributes)
            new = indexed_length(name, operands, attributes)
            if new != old and name not in PLACES:
                operands[place] = _pointing(operand, old, new, generator)
    return replace(sample, operands=tuple(operands), attributes=attributes)


def _pointing(indices: Array, old: int, new: int, generator: np.random.Generator) -> Array:
    """Indices into a shorter axis, redrawn over the new one; indices outside of the axis stay."""
    inside, behind = (indices >= 0) & (indices < old), (indices < 0) & (indices >= -old)
    result = np.where(inside, generator.integers(0, new, indices.shape), indices)
    if inside.any():
        result[np.unravel_index(int(inside.argmax()), inside.shape)] = new - 1
    return np.where(behind, result if (indices == -1).all() else -1 - generator.integers(0, new, indices.shape), result)


def _put_edges(values: Array, axis: int, everywhere: bool) -> None:
    """Write NaN, infinities and a negative zero near the end of rows, in the tails of vectors, rotating by row."""
    rows = np.moveaxis(values, axis, -1)
    for row, place in enumerate(np.ndindex(rows.shape[:-1])):
        for turn, special in enumerate(EDGES):
            if everywhere or (turn - row) % len(EDGES) == 0:
                rows[(*place, -1 - (turn + row // len(EDGES)) % 7)] = special


def _is_whole(array: Array) -> bool:
    """Whether values must not be interpolated: integers, booleans, NaN and infinities."""
    return not is_float(array) or not np.isfinite(array).all() or bool((array == np.round(array)).all())


def _drawn(array: Array, axis: int, length: int, generator: np.random.Generator) -> Array:
    """The slices of an array along an axis, followed by more of them in random order."""
    return np.take(array, _places(array, axis, length, generator), axis)


def _between(array: Array, axis: int, length: int, generator: np.random.Generator, ties: bool) -> Array:
    """The slices of an array along an axis, followed by interpolations between neighbouring ones."""
    places = _places(array, axis, length, generator)
    first = np.take(array, places, axis)
    second = np.take(array, (places + 1) % array.shape[axis], axis)
    share = generator.random(length)
    share[: array.shape[axis]] = 0
    if ties:
        share[generator.random(length) < 0.2] = 0
    second -= first
    second *= share.reshape(tuple(length if a == axis else 1 for a in range(array.ndim)))
    second += first
    return second


def _matrices(like: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Matrices with a condition of about three and distinct singular values, symmetric if the written one is."""
    rows, columns = shape[-2:]
    result = generator.normal(size=shape) / (8 * np.sqrt(max(rows, columns)))
    if like.dtype.kind == "c":
        result = result + 1j * np.flip(result, -1)
    if rows == columns and like.shape[-1] == like.shape[-2] and np.array_equal(like, np.swapaxes(like, -1, -2)):
        result = result + np.swapaxes(result, -1, -2)
    side = np.arange(min(rows, columns))
    result[..., side, side] += np.linspace(1.0, 3.0, len(side))
    return result


def _places(array: Array, axis: int, length: int, generator: np.random.Generator) -> Array:
    known = array.shape[axis]
    return np.concatenate([np.arange(known), generator.integers(0, known, length - known)])


def _integers(array: Array, axis: int, length: int, generator: np.random.Generator) -> Array:
    """The slices of an array of integers, followed by others whose sums neither 24 nor 32 bits can hold."""
    shape = list(array.shape)
    shape[axis] = length - array.shape[axis]
    return np.concatenate([array, generator.integers(-(2**25), 2**25, shape)], axis)
