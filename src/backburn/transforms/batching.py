"""``vmap``: a function of one example as a function of a batch of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.contexts import ACTIVE, scoped
from backburn.base.errors import ArgumentError, AxisError, DTypeError, GraphError, ShapeError, Unsupported
from backburn.base.trees import NODE_TYPES, Structure, flatten, joined, paths, unflatten
from backburn.batching import Batched, front, is_mapped, moved
from backburn.hints.arguments import explained
from backburn.ops.rules.shapes import check_axis
from backburn.tensor.classes import DIFFERENTIABLE, Tensor
from backburn.tensor.core.defaults import default_backend
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.levels import common_backend, constant, levels_between, lift
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import integer, one_of
from backburn.tensor.generators import Draws
from backburn.transforms.levels import check_function, level_below, lower, restore_state, to_level

Function = Callable[..., Any]

RANDOMNESS = ("error", "different", "same")
ON_FALLBACK = ("warn", "error", "allow")


@explained
def vmap(
    f: Function | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    axis_size: int | None = None,
    randomness: str = "error",
    on_fallback: str = "warn",
    chunk_size: int | None = None,
) -> Function:
    """Vectorize ``f``, a function of one example, over a batch: each operation computes all examples at once.

    ``in_axes`` is the batch axis of each argument: one integer for all, or a tuple with an entry for each positional
    argument, which is an integer for all of its leaves, None for an argument that is not batched, or a tree of these
    like the argument. Tensors among keyword arguments are batched along axis 0. ``out_axes`` is the same for the
    results; None returns a result without a batch axis, which must be the same for all examples. ``axis_size`` is the
    batch size, needed only if no argument is batched. Without ``f`` it is a decorator.

    ``randomness`` selects ``"different"`` random numbers for each example, the ``"same"`` for all, or an ``"error"``.
    An operation without a batching rule runs for one example after another; ``on_fallback`` says whether to ``"warn"``
    about that, to ``"allow"`` it, or to raise (``"error"``).

    With a ``chunk_size``, at most so many examples are computed at once, which takes less memory, and the results are
    concatenated. ``"different"`` random numbers are then not those of a run without chunks, and each chunk makes the
    changes of ``f`` to modules.

    Inside ``f``, a tensor has the shape of one example, and its values cannot be read: no ``item()``, no ``if`` on it
    (use ``bb.where``), no shape that depends on values. Transforms compose: ``vmap(grad(f))`` gives the gradient of
    each example, ``grad`` of a function that uses ``vmap`` that of all.

    Raises :class:`ShapeError` for different batch sizes, :class:`AxisError` for an axis out of range,
    :class:`ArgumentError` for axes that do not match the arguments and for results that are not tensors, and
    :class:`Unsupported` for operations that need the values.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> w = bb.asarray([1.0, 10.0])
        >>> vmap(lambda x, w: x @ w, in_axes=(0, None))(x, w).tolist()
        [21.0, 43.0]
        >>> vmap(bb.grad(lambda w, x: (x @ w) ** 2.0), in_axes=(None, 0))(w, x).tolist()
        [[42.0, 84.0], [258.0, 344.0]]
    """
    one_of("vmap", "randomness", randomness, RANDOMNESS)
    one_of("vmap", "on_fallback", on_fallback, ON_FALLBACK)
    if axis_size is not None:
        axis_size = integer("vmap", "axis_size", axis_size, least=0)
    if chunk_size is not None:
        chunk_size = integer("vmap", "chunk_size", chunk_size, least=1)
    if not (in_axes is None or _is_axis(in_axes) or isinstance(in_axes, (tuple, list))):
        raise ArgumentError(f"vmap: in_axes is an integer or a tuple with an entry for each argument, not {in_axes!r}")
    if f is None:
        return functools.partial(
            vmap, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, randomness=randomness,
            on_fallback=on_fallback, chunk_size=chunk_size,
        )  # fmt: skip
    check_function("vmap", f)

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        axes = _argument_axes(in_axes, args, structure.children[0])
        axes += [0 if isinstance(x, Tensor) else None for x in leaves[len(axes) :]]  # those among the keywords
        size = _number_of_examples(leaves, axes, structure, axis_size)
        if chunk_size is not None and size > chunk_size:

            def part(args: Any, kwargs: Any, count: int) -> Any:
                number = None if axis_size is None else count
                of_part = vmap(f, in_axes, out_axes, axis_size=number, randomness=randomness, on_fallback=on_fallback)
                return of_part(*args, **kwargs)

            chunks = _chunks(part, (args, kwargs), leaves, axes, structure, size, chunk_size, randomness == "same")
            return _joined(chunks, out_axes)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        below = level_below("vmap", tensors) if tensors else ACTIVE.get() or default_backend()
        level = Batched(below, size, randomness=randomness, on_fallback=on_fallback)
        try:
            with scoped(ACTIVE, level):
                entered = [_enter_level(level, x, axis) for x, axis in zip(leaves, axes, strict=True)]
                given, named_given = unflatten(structure, entered)
                out = f(*given, **named_given)
            results, out_structure = flatten(out)
            result_axes = _leaf_axes("out_axes", out_axes, out, out_structure, "")
            home = common_backend("vmap", tensors) if tensors else below
            returned = [
                _leave_level(level, x, axis, path, home)
                for path, x, axis in zip(paths(out_structure), results, result_axes, strict=True)
            ]
            restore_state(
                (args, kwargs), structure, (given, named_given), entered,
                lambda path, new, old: _to_module(level, new, axes[[*paths(structure)].index(path)], path, old.backend),
            )  # fmt: skip
        finally:
            level.close()
        return unflatten(out_structure, returned)

    return mapped


# ---- chunks ----


def _chunks(
    part: Callable[[Any, Any, int], Any],
    given: Any,
    leaves: list[Any],
    axes: list[int | None],
    structure: Structure,
    size: int,
    chunk_size: int,
    is_same: bool,
) -> list[Any]:
    """The results of ``part`` for the examples of each chunk, with the same random numbers if that ``is_same``."""
    draws, results = Draws(), []
    for start in range(0, size, chunk_size):
        stop = min(start + chunk_size, size)
        cut = [x if axis is None else _examples(x, axis, start, stop) for x, axis in zip(leaves, axes, strict=True)]
        args, kwargs = _with_originals(given, structure, axes, cut)
        run = functools.partial(part, args, kwargs, stop - start)
        results.append((draws.first if not start else draws.again)(run) if is_same else run())
        after = flatten((args, kwargs))[0]
        if any(axis is not None and old is not new for old, new, axis in zip(cut, after, axes, strict=True)):
            raise Unsupported("vmap: the function changes a module that has an axis of examples: leave chunk_size out")
    return results


def _examples(x: Any, axis: int, start: int, stop: int) -> Any:
    """The examples of a chunk."""
    return x[(*[slice(None)] * (axis % x.ndim), slice(start, stop))]


def _with_originals(given: Any, structure: Structure, axes: list[int | None], cut: list[Any]) -> Any:
    """The arguments with the leaves of a chunk; those without batched leaves are the given objects."""
    args, kwargs = unflatten(structure, cut)
    place = 0
    kept = []
    for old, new, child in zip(given[0], args, structure.children[0].children, strict=True):
        kept.append(new if any(axis is not None for axis in axes[place : place + len(child)]) else old)
        place += len(child)
    return kept, kwargs


def _joined(chunks: list[Any], out_axes: Any) -> Any:
    """The results of all chunks, joined along their axes of examples; the first for those that have none."""
    found, structures = zip(*[flatten(chunk) for chunk in chunks], strict=True)
    axes = _leaf_axes("out_axes", out_axes, chunks[0], structures[0], "")
    return unflatten(
        structures[0],
        [
            column[0] if axis is None else call("concat", list(column), axis=axis % column[0].ndim)
            for column, axis in zip(zip(*found, strict=True), axes, strict=True)
        ],
    )


# ---- axes ----


def _is_axis(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _argument_axes(in_axes: Any, args: tuple[Any, ...], structure: Structure) -> list[int | None]:
    """The axis of each leaf of the positional arguments, which have this structure."""
    if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
        raise ArgumentError(
            f"vmap: in_axes has {len(in_axes)} entries, and there are {len(args)} positional arguments: {in_axes!r}"
        )
    by_argument = in_axes if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
    return [
        axis
        for number, (axes, argument, part) in enumerate(zip(by_argument, args, structure.children, strict=True))
        for axis in _leaf_axes("in_axes", axes, argument, part, str(number))
    ]


def _leaf_axes(what: str, axes: Any, tree: Any, structure: Structure, path: str) -> list[int | None]:
    """The axis of each leaf of ``tree``; ``axes`` is a tree like it, whose leaves may stand for whole branches."""
    if axes is None or _is_axis(axes):
        return [axes] * len(structure)
    node, other = NODE_TYPES[axes.__class__], NODE_TYPES[tree.__class__]
    if node is None:
        raise ArgumentError(f"vmap: {what} has {axes!r} {_at(path)}: an axis is an integer or None")
    if other is None or not isinstance(tree, axes.__class__):
        found = "None" if tree is None else f"a {tree.__class__.__name__}"
        raise ArgumentError(f"vmap: {what} has a {axes.__class__.__name__} {_at(path)}, where there is {found}")
    children, keys, _ = node.flatten(axes)
    branches, names, _ = other.flatten(tree)
    by_key = dict(zip(keys, children, strict=True))
    if by_key.keys() != set(names):
        raise ArgumentError(f"vmap: {what} has the entries {list(keys)} {_at(path)}, where there are {list(names)}")
    return [
        axis
        for name, branch, part in zip(names, branches, structure.children, strict=True)
        for axis in _leaf_axes(what, by_key[name], branch, part, joined(path, name))
    ]


def _at(path: str) -> str:
    return f"at {path!r}" if path else "at the root"


def _named(structure: Structure, leaf: int) -> str:
    """The name of a leaf of the arguments in messages."""
    kind, _, rest = [*paths(structure)][leaf].partition(".")
    number, _, inside = rest.partition(".")
    name = f"argument {number}" if kind == "0" else f"argument {number!r}"
    return f"{name} at {inside!r}" if inside else name


def _number_of_examples(leaves: list[Any], axes: list[int | None], structure: Structure, axis_size: int | None) -> int:
    """The common length of the batch axes."""
    size, first = axis_size, -1  # the leaf that it is taken from
    for number, (x, axis) in enumerate(zip(leaves, axes, strict=True)):
        if axis is None:
            continue
        if not isinstance(x, Tensor):
            raise DTypeError(
                f"vmap: {_named(structure, number)} is {x!r}, which has no axis of examples: bb.asarray(...) makes a "
                f"tensor, and None in in_axes passes it to every example as it is"
            )
        if x.dtype.kind == "quantized":
            raise DTypeError(
                f"vmap: {_named(structure, number)}, {describe((x,))}, is quantized, and quantized tensors are the "
                f"same for all examples: pass it unchanged with None in in_axes, or map over x.dequantize()"
            )
        if not -x.ndim <= axis < x.ndim:
            raise AxisError(f"vmap: {_named(structure, number)} has no axis {axis} of examples: {describe((x,))}")
        length = x.shape[axis]
        if size is None:
            size, first = length, number
        elif length != size:
            other = "axis_size is" if first < 0 else f"{_named(structure, first)}, {describe((leaves[first],))}, has"
            raise ShapeError(
                f"vmap: {_named(structure, number)}, {describe((x,))}, has {length} examples along axis {axis}, and "
                f"{other} {size}"
            )
    if size is None:
        raise ArgumentError("vmap: no argument has an axis of examples: give one in in_axes, or axis_size")
    return size


# ---- into the level and out of it ----


def _enter_level(level: Batched, x: Any, axis: int | None) -> Any:
    """An argument on the level of one example."""
    if axis is None:
        return x
    k = level.inner_backend
    value = moved(k, lift(x, k), axis % x.ndim, 0)
    return type(x)(level.mapped(value), level, x.dtype)


def _to_module(level: Batched, x: Any, axis: int | None, path: str, home: AnyBackend) -> Any:
    """A tensor that the function stored in a module among its arguments, as a constant outside."""
    if axis is not None:
        x = _leave_level(level, x, axis, path, home)
        x = constant(x) if isinstance(x, DIFFERENTIABLE) else x
    return to_level(x, home)


def _leave_level(level: Batched, x: Any, axis: int | None, path: str, home: AnyBackend) -> Any:
    """A result of all examples on the level below, or where the arguments came from, if it is a constant above."""
    where = f"the result {_at(path)}" if path else "the result"
    if not isinstance(x, Tensor):
        raise ArgumentError(f"vmap: {where} is {x!r}, and must be a tensor: bb.asarray(...) makes one")
    if levels_between(x.backend, level) is None:
        raise GraphError(
            f"vmap: {where} is {describe((x,))}, which is not on a level below {level.spec}: it belongs to another "
            f"transform, which did not return it"
        )
    k, primitive = level.inner_backend, lift(x, level)
    if axis is None:
        if is_mapped(level, primitive):
            raise ArgumentError(f"vmap: {where} differs between the examples, and out_axes is None there")
        value = primitive
    else:
        try:
            axis = check_axis(axis, x.ndim + 1)
        except AxisError as error:
            raise AxisError(f"vmap: {where}, {describe((x,))} and an axis of examples: {error}") from None
        value = moved(k, front(level, primitive), 0, axis)
    return lower(type(x)(value, k, x.dtype), home)
