"""``Sharded``: a decorator whose primitives may be in parts, one for each shard of a mesh axis."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from backburn.backend.contract import Backend, Capabilities, is_autodiff, is_backend, no_backend
from backburn.backend.wrapper import DecoratorBase
from backburn.base.call_site import stack_level
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, AxisError, SpecError, Unsupported
from backburn.communicators import Communicator, Local
from backburn.decorators.sharding import collectives
from backburn.decorators.sharding.gradient_reduction import OpenBuckets
from backburn.decorators.sharding.placing import PlacesShards
from backburn.decorators.sharding.processes import levels_in, share, taken_inside
from backburn.decorators.sharding.rules import NOWHERE, Plan
from backburn.decorators.sharding.shards import (
    Cuts,
    Shape,
    Shards,
    are_between,
    block_length,
    cuts_between,
    neutral,
    starts_of,
)
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.rules.shapes import check_axis
from backburn.ops.table import Operation

T = TypeVar("T")

#: How tensors from the host may be placed.
INPUTS = ("whole", "first", "last", "addends")
#: The operations with errors that depend on values: processes agree on the error, for their shards' values differ.
RAISING = frozenset(
    {
        *("take", "take_backward", "take_along_axis", "take_along_axis_backward", "embedding"),
        *("scatter", "scatter_reduce", "index_add", "index_copy", "gather_nd", "scatter_nd"),
        *("label_cross_entropy", "label_cross_entropy_backward", "cross_entropy", "nll_loss"),
        *("ctc_loss", "ctc_loss_backward", "categorical"),
        *("cholesky", "lu", "qr", "svd", "svdvals", "eigh", "eigvalsh", "solve", "triangular_solve", "inv", "pinv"),
        *("det", "slogdet", "cofactors", "quantize", "quantize_between", "fake_quantize", "fake_quantize_between"),
        *("eig", "eigvals"),
    }
)
#: By how much the cut axis is lengthened to find it in results, by shape rules.
LONGER = 1


class GatherWarning(UserWarning):
    """``Sharded`` computes an operation on whole operands: it has no rule for the way they are cut."""


class Sharded(PlacesShards, DecoratorBase, Backend[Any, Any, Any, Any]):
    """A backend on the shards of one mesh axis: primitives appear whole and may be in parts.

    The only option without a fixed name is the mesh axis with its number of shards, as in
    ``sharded(numpy, dp=4)``; several axes are nested levels, ``sharded(sharded(numpy, tp=2), dp=4)``, and
    ``autodiff``, ``forward`` and ``capture`` go around them. A primitive is an inner one, which all shards have, or
    :class:`Shards`, cut along an axis or the addends of a sum (:meth:`cut`). Results are those of the wrapped backend
    on whole operands, but for the rounding of sums and products. An operation is computed shard by shard where a rule
    allows it, else by its default body, else on gathered operands, which causes a :class:`GatherWarning`, an error or
    nothing if ``on_fallback`` is ``"warn"``, ``"error"`` or ``"allow"``. ``inputs`` says how tensors from the host are
    placed: ``"whole"``, cut along the ``"first"`` or ``"last"`` axis, or as ``"addends"``.

    All shards are in this process, unless ``comm`` names a communicator of several, as in
    ``sharded(sharded(numpy, tp=2, comm=mpi), dp=4)``, for all levels of the mesh. The processes share the shards
    (:func:`backburn.decorators.sharding.processes.share`), run the same program, and get bitwise equal results,
    whatever their number. ``deterministic=false`` lets the communicator choose the order of additions.
    ``timeout`` and ``check`` are options of the communicator. An error of an operation that depends on values, such as
    an index out of range, is raised by all processes, if one raises it.

    Raises :class:`SpecError` for none or several mesh axes, a name that a level below has, a number of shards that is
    not a positive integer, an invalid option, options of the mesh that differ between levels, and a backend that
    differentiates; and when shards are first computed, for a mesh that the processes cannot share.

        >>> from backburn_numpy import NumpyBackend
        >>> k = Sharded(NumpyBackend(), dp=2)
        >>> x = k.cut(k.arange(0, 6, 1, k.int_dtype), 0)
        >>> k.mul(x, x), k.sum(x, (0,), False)
        (Shards([6], dp: axis 0 cut into [3, 3]), Shards([], dp: addends))
        >>> k.to_numpy(k.sum(x, (0,), False)).item()
        15
    """

    name = "sharded"
    mesh_axis: str
    #: The options for all levels of the mesh that are given.
    of_mesh: dict[str, Any]

    def __init__(
        self,
        wrapped: Any,
        *,
        on_fallback: str = "warn",
        inputs: str = "whole",
        comm: str | Communicator | None = None,
        deterministic: bool | None = None,
        timeout: float | None = None,
        check: bool | None = None,
        **mesh: int,
    ) -> None:
        """Wrap a backend, which is not changed."""
        if not is_backend(wrapped):
            raise no_backend("Sharded", wrapped)
        if is_autodiff(wrapped):
            raise SpecError(
                f"sharded: goes inside of what differentiates: autodiff(sharded(...)), not sharded({wrapped.spec})"
            )
        if len(mesh) != 1:
            raise SpecError(
                f"sharded: takes one mesh axis with its number of shards, as in dp=4, and got {len(mesh)}. Several are "
                f"levels: sharded(sharded(numpy, tp=2), dp=4)"
            )
        ((axis, size),) = mesh.items()
        given: object = size
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise SpecError(f"sharded: {axis} is a number of shards, at least 1, not {size!r}")
        if on_fallback not in ("warn", "error", "allow"):
            raise SpecError(f"sharded: on_fallback is warn, error or allow, not {on_fallback!r}")
        if inputs not in INPUTS:
            raise SpecError(f"sharded: inputs is one of {', '.join(INPUTS)}, not {inputs!r}")
        self._inner = wrapped
        below = list(levels_in(wrapped, Sharded))
        if axis in [level.mesh_axis for level in below]:
            raise SpecError(f"sharded: two levels have the mesh axis {axis!r}; give each a different name")
        self.mesh_axis = sys.intern(axis)
        self.size = size
        self.on_fallback = on_fallback
        self.inputs = inputs
        self.below: Sharded | None = below[0] if below else None
        self.outer: Sharded | None = None
        self.routes: dict[Any, Any] = {}
        self._given: dict[str, Any] = {"comm": comm, "deterministic": deterministic, "timeout": timeout, "check": check}
        self._take_options(below)

    def _take_options(self, below: list[Sharded]) -> None:
        """Set the options of the whole mesh, which one level gives or several give alike."""
        given = {name: value for name, value in self._given.items() if value is not None}
        for name, value in (below[0].of_mesh if below else {}).items():
            if given.setdefault(name, value) != value:
                raise SpecError(f"sharded: {name} is for all levels, but given as {given[name]!r} and {value!r}")
        for name in ("deterministic", "check"):
            if not isinstance(given.get(name, True), bool):
                raise SpecError(f"sharded: {name} is true or false, not {given[name]!r}")
        timeout = given.get("timeout", 1)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise SpecError(f"sharded: timeout is a number of seconds, not {timeout!r}")
        self.of_mesh = given
        self.comm: str | Communicator = given.get("comm", "local")
        self.comm_options = {name: given[name] for name in ("timeout", "check") if name in given}
        self.deterministic: bool = given.get("deterministic", True)
        if self.comm == "local":
            vars(self).update(communicator=Local(), own=range(self.size))
        else:
            self._inner = taken_inside(self._inner, self)
            self.below = next(levels_in(self._inner, Sharded), None)

    @cached_property
    def communicator(self) -> Communicator:
        """The processes that share the shards of this level."""
        return self._share("communicator")

    @cached_property
    def own(self) -> range:
        """The numbers of this process's shards."""
        return self._share("own")

    def _share(self, name: str) -> Any:
        outermost = self
        while outermost.outer is not None:
            outermost = outermost.outer
        share(outermost)
        return vars(self)[name]

    @property
    def settles(self) -> bool:
        """Whether gradients may be addends, on this level or inside."""
        return self.size > 1 or bool(self._inner.settles)

    @cached_property
    def open_buckets(self) -> OpenBuckets:
        """The gradients that wait to be sent together."""
        return OpenBuckets(self)

    @cached_property
    def leaf_backend(self) -> Any:
        """The backend inside all levels."""
        return self._inner if self.below is None else self.below.leaf_backend

    @property
    def wrapped(self) -> Any:
        """The backend that computes the shards."""
        return self._inner

    @property
    def spec(self) -> str:
        """``sharded(...)`` around the inner spec, with the mesh axis and options that are not the default."""
        words = [f"{self.mesh_axis}={self.size}"]
        words += [f"on_fallback={self.on_fallback}"] if self.on_fallback != "warn" else []
        words += [f"inputs={self.inputs}"] if self.inputs != "whole" else []
        words += [f"{name}={_word(value)}" for name, value in self._given.items() if value is not None]
        return f"{self.name}({self._inner.spec}, {', '.join(words)})"

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's, without capture by itself: ``capture(sharded(...))`` records."""
        return replace(self._inner.capabilities, capture=False)

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a primitive."""
        return self._inner.dtype(x.parts[0] if self.is_cut(x) else x)

    # ---- placements ----

    def is_cut(self, x: Any) -> bool:
        """Whether a primitive is in parts on this level."""
        return x.__class__ is Shards and x.mesh_axis == self.mesh_axis

    def cut(self, x: Any, axis: int, cuts: Cuts | None = None) -> Any:
        """``x`` cut along an axis, into parts of the lengths ``cuts``, by default as equal as possible.

        Raises :class:`AxisError` for an axis that ``x`` does not have, and :class:`ArgumentError` for lengths that do
        not add up to its length, or that split blocks of a quantized tensor.
        """
        try:
            axis = check_axis(axis, len(x.shape))
        except AxisError as error:
            raise AxisError(
                f"sharded: cannot cut a tensor of shape {list(x.shape)} over {self.mesh_axis}: {error}"
            ) from None
        dtype = self.dtype(x)
        block = block_length(dtype, x.shape, axis)
        cuts = cuts_between(x.shape[axis], block, self.size) if cuts is None else tuple(cuts)
        if len(cuts) != self.size or sum(cuts) != x.shape[axis] or min(cuts) < 0:
            raise ArgumentError(
                f"sharded: {list(cuts)} are not the lengths of {self.size} parts of axis {axis} of {list(x.shape)}"
            )
        if not are_between(cuts, block):
            raise ArgumentError(
                f"sharded: {list(cuts)} split the blocks of {block} of {dtype} along axis {axis} of {list(x.shape)}"
            )
        if self.size == 1:
            return self.whole(x)
        return Shards(self.parts(x, axis, cuts), axis, cuts, tuple(x.shape), self.mesh_axis)

    def addends(self, x: Any) -> Any:
        """``x`` as addends: every element is in one shard, and the others have :func:`neutral` there.

        Bool and quantized primitives have no sums, and stay whole.
        """
        dtype = self.dtype(x)
        if not dtype.is_arithmetic or self.size == 1:
            return self.whole(x)
        k, x = self._inner, self.whole(x)
        size, shape = math.prod(x.shape), tuple(x.shape)
        owner = k.remainder(k.reshape(k.arange(0, size, 1, k.int_dtype), shape), self.size)
        parts = [k.where(k.equal(owner, i), x, neutral(dtype)) for i in self.own]
        return Shards(parts, None, (), shape, self.mesh_axis)

    def whole(self, x: Any) -> Any:
        """The inner primitive that all shards have: parts are joined, addends summed."""
        if not self.is_cut(x):
            return x
        if x.reduction is not None:
            x.reduction.finish()
        if x.axis is not None:
            return self.joined(x.parts, x.axis, x.cuts)
        if x.total is None:
            x.total = collectives.total(self, x.parts)
        return x.total

    def joined(self, parts: list[Any], axis: int, cuts: Cuts) -> Any:
        """The parts of all shards along an axis, of the lengths ``cuts``, as an inner primitive."""
        if self._inner.dtype(parts[0]).kind == "quantized":
            return collectives.joined_quantized(self, parts, axis)
        return collectives.joined(self, parts, axis, cuts)

    def mine(self, cuts: tuple[T, ...]) -> tuple[T, ...]:
        """The entries of this process's shards, from one entry per shard."""
        return cuts[self.own.start : self.own.stop]

    def parts(self, x: Any, axis: int | None, cuts: Cuts) -> list[Any]:
        """The parts of this process's shards of ``x`` cut along ``axis``, or the whole for None."""
        if axis is None:
            return [self.whole(x)] * len(self.own)
        if not self.is_cut(x):
            return self.cut_parts(x, axis, cuts)
        if x.reduction is not None:
            x.reduction.finish()
        if x.axis is None:
            return collectives.scattered(self, x, axis, cuts)
        if x.axis == axis and x.cuts == cuts:
            return x.parts
        if self.dtype(x).kind == "quantized":
            return self.cut_parts(self.whole(x), axis, cuts)
        return collectives.recut(self, x, axis, cuts)

    def cut_parts(self, x: Any, axis: int, cuts: Cuts) -> list[Any]:
        """The parts of this process's shards of an inner primitive."""
        places = zip(self.mine(starts_of(cuts)), self.mine(cuts), strict=True)
        return [self.sliced(x, axis, start, length) for start, length in places]

    def sliced(self, x: Any, axis: int, start: int, length: int) -> Any:
        """A range of an inner primitive along an axis."""
        return slice_axis(self._inner, x, axis, start if length else 0, start + length if length else 0)

    # ---- the host ----

    def from_numpy(self, array: Any) -> Any:
        """The inner backend's, placed as ``inputs`` says."""
        x = self._inner.from_numpy(array)
        if self.inputs == "whole" or (not x.shape and self.inputs != "addends"):
            return x
        return self.addends(x) if self.inputs == "addends" else self.cut(x, 0 if self.inputs == "first" else -1)

    def to_numpy(self, x: Any, /) -> Any:
        """The values of the whole primitive."""
        return self._inner.to_numpy(self.whole(x))

    def to_numpy_many(self, tensors: Sequence[Any], /) -> tuple[Any, ...]:
        """:meth:`to_numpy` of each."""
        return self._inner.to_numpy_many([self.whole(x) for x in tensors])

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The inner backend's, of all parts."""
        return self._inner.quantized_parts(self.whole(x))

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: Shape) -> Any:
        """The inner backend's, of the whole parts."""
        given = (self.whole(t) for t in (values, scale, zero))
        return self._inner.quantized_from_parts(*given, dtype=dtype, shape=shape)

    # ---- operations ----

    def fuse(self, formula: Callable[..., Any], x: Any, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """Compute an element-wise formula by the inner backend's ``fuse``, on whole operands or on parts cut alike.

        Parts may be views of one primitive, so they are not donated.
        """
        cut = [t for t in (x, *values) if self.is_cut(t)]
        if not cut:
            return self._inner.fuse(formula, x, *values, donate=donate)
        first = cut[0]
        placed = first.axis is not None and all(
            (t.axis, t.cuts, t.shape) == (first.axis, first.cuts, first.shape)
            if self.is_cut(t)
            else t is None or t.__class__ in (float, int, bool, complex)
            for t in (x, *values)
        )
        if not placed:
            return formula(self, x, *values)
        columns = (t.parts if self.is_cut(t) else [t] * len(first.parts) for t in (x, *values))
        found = [self._inner.fuse(formula, *own) for own in zip(*columns, strict=True)]
        if not isinstance(found[0], tuple):
            return self._alike(first, found)
        return tuple(self._alike(first, list(parts)) for parts in zip(*found, strict=True))

    def _alike(self, like: Shards, parts: list[Any]) -> Shards:
        """Parts that are cut as another primitive is."""
        return Shards(parts, like.axis, like.cuts, like.shape, self.mesh_axis)

    def run(
        self,
        entry: Operation,
        operands: Sequence[Any],
        attributes: dict[str, Any],
        plan: Plan,
        cuts: Cuts,
        shapes: Any = None,
    ) -> Any:
        """Compute an operation shard by shard; ``shapes`` are those of its results, if they are known."""
        columns = [
            [list(t) for t in zip(*(self.parts(x, axis, cuts) for x in given), strict=True)] or [[]] * len(self.own)
            if isinstance(given, (list, tuple))
            else self.parts(given, axis, cuts)
            if hasattr(given, "shape")
            else [given] * len(self.own)
            for given, axis in zip(operands, plan.axes, strict=True)
        ]
        function = getattr(self._inner, entry.name)
        mine = self.mine(cuts)

        def compute() -> list[Any]:
            found = []
            for start, length, own in zip(self.mine(starts_of(cuts)), mine, zip(*columns, strict=True), strict=True):
                local = attributes if plan.local is None else {**attributes, **plan.local(start, start + length)}
                found.append(function(*own, **local))
            return found

        found = collectives.agreed(self, compute) if self._agrees(entry) else compute()
        several = isinstance(found[0], tuple)
        if shapes is None:
            shapes = entry.result_shape(operands, attributes)
        shapes = shapes if several else (shapes,)
        known = None if plan.result == NOWHERE else plan.result
        axes = (
            [known] * len(shapes)
            if plan.result is not None
            else self._grown(entry, operands, attributes, plan, shapes, sum(cuts))
        )
        results = []
        for i, (shape, axis) in enumerate(zip(shapes, axes, strict=True)):
            parts = [row[i] for row in found] if several else found
            if axis is None and not plan.sums:
                results.append(parts[0])
                continue
            if axis is None and any(cuts):  # an empty shard has nothing to add, not even the sign of a zero
                dtype = self._inner.dtype(parts[0])
                parts = [
                    p if n else self._inner.full(shape, neutral(dtype), dtype) for p, n in zip(parts, mine, strict=True)
                ]
            results.append(Shards(parts, axis, () if axis is None else cuts, tuple(shape), self.mesh_axis))
        return tuple(results) if several else results[0]

    def _agrees(self, entry: Operation) -> bool:
        """Whether processes have to agree on the errors of an operation."""
        return entry.name in RAISING and self.communicator.size > 1

    def _grown(
        self,
        entry: Operation,
        operands: Sequence[Any],
        attributes: dict[str, Any],
        plan: Plan,
        shapes: Any,
        length: int,
    ) -> list[int | None]:
        """The axis of each result that grows with the cut axis of the operands; None where none does."""
        longer = [_longer(x, axis) for x, axis in zip(shapes_of(operands), plan.axes, strict=True)]
        local = attributes if plan.local is None else {**attributes, **plan.local(0, length + LONGER)}
        assert entry.shape is not None
        probed = entry.shape(*longer, **{**entry.defaults, **local})
        if len(shapes) == 1 and (not probed or not isinstance(probed[0], tuple)):
            probed = (probed,)
        return [
            next((a for a, (n, m) in enumerate(zip(old, new, strict=True)) if n != m), None)
            for old, new in zip(shapes, probed, strict=True)
        ]

    def on_whole(self, entry: Operation, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Compute an operation on whole operands, and warn or raise as ``on_fallback`` says."""
        if self.on_fallback == "error":
            raise Unsupported(
                f"{entry.name}: no rule of sharding of {entry.name} for {_placed(operands)}, and on_fallback is "
                f"'error'; with 'warn' or 'allow' the operands are gathered"
            )
        if self.on_fallback == "warn":
            warnings.warn(
                f"{entry.name}: no rule of sharding for {_placed(operands)}: every shard computes all of it; "
                f"on_fallback=allow accepts this silently",
                GatherWarning,
                stacklevel=stack_level(),
            )
        return getattr(self._inner, entry.name)(*map(self.gathered, operands), **attributes)

    def closed(self, x: Any) -> Any:
        """An operand, or a list of them; addends whose reduction has begun are replaced by their sums, whole or cut."""
        if x.__class__ is list or x.__class__ is tuple:
            return [self.closed(t) for t in x]
        if not self.is_cut(x) or x.axis is not None:
            return x
        if x.reduction is not None:
            x.reduction.finish()
        return x if x.total is None else x.total

    def gathered(self, x: Any, addends_only: bool = False) -> Any:
        """An operand, or a list of them, as whole primitives; with ``addends_only``, cut ones stay cut."""
        if x.__class__ is list or x.__class__ is tuple:
            return [self.gathered(t, addends_only) for t in x]
        return x if addends_only and self.is_cut(x) and x.axis is not None else self.whole(x)


def shapes_of(operands: Sequence[Any]) -> list[Any]:
    """The shapes of operands as rules take them."""
    return [
        shapes_of(x) if isinstance(x, (list, tuple)) else tuple(x.shape) if hasattr(x, "shape") else None
        for x in operands
    ]


def _longer(shape: Any, axis: int | None) -> Any:
    """A shape, or a list of them, with an axis that is longer."""
    if axis is None or shape is None:
        return shape
    if isinstance(shape, list):
        return [_longer(s, axis) for s in shape]
    return (*shape[:axis], shape[axis] + LONGER, *shape[axis + 1 :])


def _placed(operands: Sequence[Any]) -> str:
    """The operands in parts, in words."""
    flat = [t for x in operands for t in (x if isinstance(x, (list, tuple)) else (x,))]
    return ", ".join(repr(x) for x in flat if isinstance(x, Shards))


def _word(value: Any) -> str:
    """The value of an option as an expression has it."""
    return str(value).lower() if isinstance(value, (bool, int, float)) else getattr(value, "name", value)
