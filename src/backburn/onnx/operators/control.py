"""Control flow, sequences and optionals."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError
from backburn.onnx.dtypes import held
from backburn.onnx.registry import Host, Value, operator
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor
from backburn.tensor.core.wrapping import is_tensor


def _truth(value: Any) -> bool:
    """A condition, which has one element."""
    return bool(np.asarray(value).reshape(()))


@operator("If")
def if_(condition: Host, /, *, then_branch: Any, else_branch: Any) -> Any:
    """The results of one of two graphs."""
    return tuple(then_branch() if _truth(condition) else else_branch())


@operator("Loop")
def loop(count: Host | None = None, condition: Host | None = None, /, *initial: Value, body: Any, run: Any) -> Any:
    """A graph that is run repeatedly on its own results."""
    most = None if count is None else int(count.reshape(()))
    going = condition is None or _truth(condition)
    carried = list(initial)
    collected: list[list[Any]] = [[] for _ in body.graph.outputs[1 + len(carried) :]]
    step = 0
    while going and (most is None or step < most):
        run.count_iteration()
        found = body(np.asarray(step, np.int64), np.asarray(going), *carried)
        going = _truth(_host(found[0])) if found[0] is not None else True
        carried = found[1 : 1 + len(carried)]
        for values, value in zip(collected, found[1 + len(carried) :], strict=True):
            values.append(value)
        step += 1
    first = 1 + len(carried)
    return (*carried, *(_stacked(values, body, first + i, run) for i, values in enumerate(collected)))


def _host(value: Any) -> Any:
    from backburn.tensor.core.host import to_host

    return to_host(value) if is_tensor(value) else value


def _stacked(values: list[Any], body: Any, place: int, run: Any, axis: int = 0) -> Any:
    """The values that a loop collected, along a new axis, which is empty after no steps."""
    if values:
        return shapes.stack([run.constant(v) if isinstance(v, np.ndarray) else v for v in values], axis=axis)
    number, shape = body.graph.types[place]
    kind = held(number)
    if kind is None:
        raise DTypeError("the loop takes no step, and its body does not state the dtype of what it collects")
    lengths = [n if n is not None else 0 for n in shape or ()]
    lengths.insert(axis, 0)
    return run.tensor(np.zeros(lengths, kind.dtype))


@operator("Scan", since=9)
def scan(
    *values: Value, body: Any, num_scan_inputs: int, scan_input_axes: Any = None, scan_input_directions: Any = None,
    scan_output_axes: Any = None, scan_output_directions: Any = None, run: Any,
) -> Any:  # fmt: skip
    """A graph that is run for each element along axes of its inputs."""
    count = len(values) - num_scan_inputs
    if count < 0 or num_scan_inputs < 1:
        raise ArgumentError(f"num_scan_inputs is {num_scan_inputs}, for {len(values)} inputs")
    states = list(values[:count])
    scanned = [run.constant(v) if isinstance(v, np.ndarray) else v for v in values[count:]]
    axes = scan_input_axes or (0,) * num_scan_inputs
    turned = scan_input_directions or (0,) * num_scan_inputs
    parts = [shapes.unstack(x, axis=axis) for x, axis in zip(scanned, axes, strict=True)]
    parts = [tuple(reversed(part)) if turn else part for part, turn in zip(parts, turned, strict=True)]
    lengths = {len(part) for part in parts}
    if len(lengths) != 1:
        raise ArgumentError(f"the scanned axes have different lengths {sorted(lengths)}")
    outputs: list[list[Any]] = [[] for _ in body.graph.outputs[count:]]
    for now in zip(*parts, strict=True):
        run.count_iteration()
        found = body(*states, *now)
        states = found[:count]
        for collected, value in zip(outputs, found[count:], strict=True):
            collected.append(value)
    to = scan_output_axes or (0,) * len(outputs)
    backwards = scan_output_directions or (0,) * len(outputs)
    stacked = []
    for i, (collected, axis, turn) in enumerate(zip(outputs, to, backwards, strict=True)):
        stacked.append(_stacked(collected[::-1] if turn else collected, body, count + i, run, axis))
    return (*states, *stacked)


# ---- sequences ----


def _sequence(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise DTypeError("the input is not a sequence")
    return value


def _place(value: Any, length: int, most: int) -> int:
    """An index into a sequence, counted from the end if negative."""
    place = int(np.asarray(value).reshape(()))
    if not -length <= place <= most:
        raise OutOfRangeError(f"index {place} is out of range for a sequence of {length}")
    return place + length if place < 0 else place


@operator("SequenceConstruct")
def sequence_construct(*xs: Tensor) -> Any:
    """A sequence of tensors."""
    return list(xs)


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Any:
    """A sequence without elements."""
    return []


@operator("SequenceAt")
def sequence_at(sequence: Value, place: Host, /) -> Any:
    """An element of a sequence."""
    values = _sequence(sequence)
    return values[_place(place, len(values), len(values) - 1)]


@operator("SequenceInsert")
def sequence_insert(sequence: Value, x: Tensor, place: Host | None = None, /) -> Any:
    """A sequence with one more element."""
    values = _sequence(sequence)
    i = len(values) if place is None else _place(place, len(values), len(values))
    return [*values[:i], x, *values[i:]]


@operator("SequenceErase")
def sequence_erase(sequence: Value, place: Host | None = None, /) -> Any:
    """A sequence without one element."""
    values = _sequence(sequence)
    i = len(values) - 1 if place is None else _place(place, len(values), len(values) - 1)
    return [*values[:i], *values[i + 1 :]]


@operator("SequenceLength")
def sequence_length(sequence: Value, /) -> Any:
    """The length of a sequence, on the host."""
    return np.asarray(len(_sequence(sequence)), np.int64)


@operator("SplitToSequence")
def split_to_sequence(x: Tensor, split: Host | None = None, /, *, axis: int = 0, keepdims: int = 1) -> Any:
    """The parts of a tensor along an axis as a sequence."""
    n = x.shape[axis]
    if split is None:
        parts = shapes.split(x, (1,) * n, axis=axis) if n else ()
        return list(parts) if keepdims else [shapes.squeeze(part, axis) for part in parts]
    if split.ndim == 0:
        each = int(split)
        if each < 1:
            raise ArgumentError(f"parts have at least 1 element, not {each}")
        lengths = [min(each, n - i) for i in range(0, n, each)]
    else:
        lengths = [int(m) for m in split]
    return list(shapes.split(x, lengths, axis=axis))


@operator("ConcatFromSequence")
def concat_from_sequence(sequence: Value, /, *, axis: int, new_axis: int = 0) -> Any:
    """The elements of a sequence as one tensor."""
    values = _sequence(sequence)
    return shapes.stack(values, axis=axis) if new_axis else shapes.concat(values, axis=axis)


@operator("SequenceMap")
def sequence_map(sequence: Value, /, *others: Value, body: Any, run: Any) -> Any:
    """A graph that is run for each element of sequences."""
    values = _sequence(sequence)
    outputs: list[list[Any]] = [[] for _ in body.graph.outputs]
    for i, value in enumerate(values):
        run.count_iteration()
        found = body(value, *(other[i] if isinstance(other, list) else other for other in others))
        for collected, result in zip(outputs, found, strict=True):
            collected.append(run.constant(result) if isinstance(result, np.ndarray) else result)
    return tuple(outputs)


# ---- optionals ----


@operator("Optional")
def optional(x: Value | None = None, /, *, type: Any = None) -> Any:
    """A value that may be missing."""
    return x


@operator("OptionalHasElement")
def optional_has_element(x: Value | None = None, /) -> Any:
    """Whether there is a value, on the host."""
    return np.asarray(x is not None)


@operator("OptionalGetElement")
def optional_get_element(x: Value | None = None, /) -> Any:
    """The value of an optional."""
    if x is None:
        raise ArgumentError("the optional has no value")
    return x
