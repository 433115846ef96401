"""Calling operations by name with the options that users write, and errors that name the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backburn.autodiff.graph import Tracked
from backburn.base.dtypes import as_dtype
from backburn.base.errors import ArgumentError, DTypeError, hint_for
from backburn.ops.rules.shapes import check_axes, check_axis
from backburn.ops.table import OPERATIONS, Operation
from backburn.tapes.values import as_primitive, index_of
from backburn.tensor.core.messages import failed


def differentiable(where: str, name: str) -> Operation:
    """The table's entry of a differentiable operation; raises for any other name."""
    if not isinstance(name, str):
        raise DTypeError(f"{where}: an operation is given by name, not {name!r}")
    entry = OPERATIONS.get(name)
    if entry is None:
        known = [n for n, e in OPERATIONS.items() if e.differentiable]
        raise ArgumentError(f"{where}: there is no operation {name!r}. {hint_for(name, known)}")
    if not entry.differentiable:
        raise ArgumentError(f"{where}: {name} has no gradient")
    return entry


def bound(
    where: str, entry: Operation, given: Sequence[Any], named: dict[str, Any], entries: str
) -> tuple[list[Any], dict[str, Any]]:
    """The operands and the options of a call, each given by position in the declared order, or by name.

    ``entries`` names the elements of list operands in messages.
    """
    names = list(entry.parameters)
    what = f"{entry.name} takes {', '.join(names)}"
    if len(given) > len(names):
        raise ArgumentError(f"{where}: {what}, and {len(given)} arguments were given")
    found = dict(zip(names, given, strict=False))
    for name, value in named.items():
        if name not in names:
            raise ArgumentError(f"{where}: there is no option {name!r}: {what}")
        if name in found:
            raise ArgumentError(f"{where}: {name} is given twice, by position and by name")
        found[name] = value
    for name, parameter in entry.parameters.items():
        all_axes = name == "axis" and parameter.annotation != "int"
        if name not in found and parameter.default is parameter.empty and not all_axes:
            raise ArgumentError(f"{where}: {what}, and {name} is missing. Write {name}=...")
    for name in entry.operands:
        if found.get(name) is None and name not in entry.optional:
            raise ArgumentError(f"{where}: {what}, and {name} is None")
        if name in entry.lists and not isinstance(found[name], (list, tuple)):
            raise DTypeError(f"{where}: {name} is a list of {entries}, not {type(found[name]).__name__}")
    operands = [found.get(name) for name in entry.operands]
    return operands, {name: found[name] for name in entry.attributes if name in found}


def each_operand(
    entry: Operation, operands: Sequence[Any], function: Callable[[Any], Any], alike: Callable[[Any], Any] | None = None
) -> list[Any]:
    """``function`` applied to all operands, and to the elements of those that are lists.

    ``alike``, if given, is applied instead to the operands that share a dtype: not to indices, labels and conditions.
    """
    same = entry.like or entry.operands
    result = []
    for name, x in zip(entry.operands, operands, strict=True):
        of = alike if alike and name in same else function
        result.append([*map(of, x)] if name in entry.lists else of(x))
    return result


def as_constant(level: Any, where: str, x: Any, like: Tracked[Any], alike: bool) -> Any:
    """A constant operand next to ``like``: Python floats and None are unchanged, arrays are cast to ``like``'s dtype.

    Integers and booleans are not cast, except integers for an operand that must have that dtype (``alike``).
    """
    if x is None or x.__class__ is float:
        return x
    k = level.inner_backend
    made = as_primitive(k, x, where)
    dtype = k.dtype(made)
    if not (dtype.is_arithmetic if alike else dtype.has_gradient):
        return made
    return level.from_inner(k.astype(made, k.dtype(like.value)))


def canonical(entry: Operation, operands: Sequence[Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Options as the contract takes them: non-negative axes, all axes for None, shapes as tuples."""
    options = dict(attributes)
    flat = [x for o in operands for x in (o if isinstance(o, list) else (o,)) if hasattr(x, "shape")]
    rank = (max(len(x.shape) for x in flat) if flat else 0) + (entry.name == "stack")
    axis = entry.parameters.get("axis")
    if axis is not None and axis.annotation == "int":
        if "axis" in options:
            options["axis"] = check_axis(options["axis"], rank)
    elif axis is not None and (axis.default is axis.empty or "axis" in options):
        options["axis"] = check_axes(options.get("axis"), rank)
    for name in ("shape", "axes"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    if "shape" in options and index_of(options["shape"]) is not None:
        options["shape"] = (index_of(options["shape"]),)
    if "dtype" in options:
        options["dtype"] = as_dtype(options["dtype"])
    return options


def call(
    level: Any,
    where: str,
    entry: Operation,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    what: Callable[[], str],
) -> Any:
    """Call an operation on primitives of ``level`` of one dtype; ``what`` describes the operands for error messages."""
    found = set()

    def note(x: Any, floats: bool = True) -> None:
        if x.__class__ is Tracked or (hasattr(x, "shape") and not floats):
            found.add(level.dtype(x))

    each_operand(entry, operands, note, lambda x: note(x, floats=False))
    if len(found) > 1:
        raise DTypeError(f"{where}: the operands differ in dtype, and nothing is cast implicitly. {what()}")
    options = attributes
    try:
        options = canonical(entry, operands, attributes)
        return getattr(level, entry.name)(*operands, **options)
    except Exception as error:
        failed(where, lambda: entry.result_shape(operands, options), error, f" {what()}")
