"""``Sharded``: a decorator whose primitives may be in parts, one for each shard of a mesh axis."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from backburn.backend.contract import Backend, Capabilities, is_autodiff, is_backend, no_backend
from backburn.backend.wrapper import DecoratorBase
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, AxisError, SpecError, Unsupported
from backburn.communicators import Communicator, Local
from backburn.decorators.sharding.collectives import join, total
from backburn.decorators.sharding.rules import NOWHERE, Plan
from backburn.decorators.sharding.shards import Cuts, Shape, Shards, even_cuts, starts_of
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.rules.shapes import check_axis
from backburn.ops.table import Operation

#: Where tensors of the host may go when they arrive.
INPUTS = ("whole", "first", "last", "addends")
#: By how much the cut axis is longer when shape rules are asked where results have it.
LONGER = 1


class GatherWarning(UserWarning):
    """``Sharded`` computes an operation on whole operands, for it has no rule for operands that are cut as they are."""


class Sharded(DecoratorBase, Backend[Any, Any, Any, Any]):
    """``inner`` on the shards of one mesh axis: primitives appear whole and may be in parts.

    The only option without a name of its own is the mesh axis with its number of shards, as in
    ``sharded(numpy, dp=4)``; several axes are levels inside one another, ``sharded(sharded(numpy, tp=2), dp=4)``, and
    ``autodiff``, ``forward`` and ``capture`` go around them. A primitive is an inner one, which all shards have, or
    :class:`Shards`, cut along an axis or the addends of a sum (:meth:`cut`). Results are those of ``inner`` on whole
    operands, but for the rounding of sums and products. An operation is computed shard by shard where a rule allows it,
    else by its default body, else on gathered operands, of which ``on_fallback`` (``"warn"``, ``"error"`` or
    ``"allow"``) makes a :class:`GatherWarning`, an error, or nothing. ``inputs`` says how tensors arrive from the host:
    ``"whole"``, cut along the ``"first"`` or ``"last"`` axis, or as ``"addends"``.

    All shards are in this process.

    Raises :class:`SpecError` for none or several mesh axes, a name that a level below has, a number of shards that is
    no positive integer, another word for an option, and around a backend that differentiates.

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

    def __init__(self, wrapped: Any, *, on_fallback: str = "warn", inputs: str = "whole", **mesh: int) -> None:
        """Around a backend, which stays as it is."""
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
        if axis in [level.mesh_axis for level in self._levels_below()]:
            raise SpecError(f"sharded: two levels have the mesh axis {axis!r}; give each a name of its own")
        self.mesh_axis = sys.intern(axis)
        self.size = size
        self.on_fallback = on_fallback
        self.inputs = inputs
        self._communicator: Communicator = Local()

    def _levels_below(self) -> Iterator[Sharded]:
        k: Any = self._inner
        while k is not None:
            if type(k) is Sharded:
                yield k
            k = getattr(k, "wrapped", None)

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
        return f"{self.name}({self._inner.spec}, {', '.join(words)})"

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's, but without capture by itself: ``capture(sharded(...))`` records."""
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
        not make it up, and for quantized tensors, which are not cut.
        """
        try:
            axis = check_axis(axis, len(x.shape))
        except AxisError as error:
            raise AxisError(
                f"sharded: cannot cut a tensor of shape {list(x.shape)} over {self.mesh_axis}: {error}"
            ) from None
        if self.dtype(x).kind == "quantized":
            raise ArgumentError(
                "sharded: quantized tensors are whole on every shard; cut them before they are quantized"
            )
        cuts = even_cuts(x.shape[axis], self.size) if cuts is None else tuple(cuts)
        if len(cuts) != self.size or sum(cuts) != x.shape[axis] or min(cuts) < 0:
            raise ArgumentError(
                f"sharded: {list(cuts)} are not the lengths of {self.size} parts of axis {axis} of {list(x.shape)}"
            )
        if self.size == 1:
            return self.whole(x)
        return Shards(self.parts(x, axis, cuts), axis, cuts, tuple(x.shape), self.mesh_axis)

    def addends(self, x: Any) -> Any:
        """``x`` as addends: every element is in one shard, and the others have 0 there (-0.0 for floats).

        Bool and quantized primitives have no sums, and stay whole.
        """
        kind = self.dtype(x).kind
        if kind not in ("float", "int") or self.size == 1:
            return self.whole(x)
        k, x = self._inner, self.whole(x)
        size, shape = math.prod(x.shape), tuple(x.shape)
        owner = k.remainder(k.reshape(k.arange(0, size, 1, k.int_dtype), shape), self.size)
        parts = [k.where(k.equal(owner, i), x, -0.0 if kind == "float" else 0) for i in range(self.size)]
        return Shards(parts, None, (), shape, self.mesh_axis)

    def whole(self, x: Any) -> Any:
        """The inner primitive that all shards have: parts are joined, addends summed."""
        if not self.is_cut(x):
            return x
        if x.axis is None:
            return total(self._inner, x.parts)
        return self.joined(x.parts, x.axis)

    def joined(self, parts: list[Any], axis: int) -> Any:
        """The parts of all shards along an axis, as an inner primitive."""
        return join(self._inner, parts, axis)

    def parts(self, x: Any, axis: int | None, cuts: Cuts) -> list[Any]:
        """The part of each shard of a primitive that is to be cut so; the whole for an ``axis`` of None."""
        if axis is not None and self.is_cut(x) and x.axis == axis and x.cuts == cuts:
            return x.parts
        x = self.whole(x)
        if axis is None:
            return [x] * self.size
        places = zip(starts_of(cuts), cuts, strict=True)
        return [
            slice_axis(self._inner, x, axis, start, start + n) if n else self._nothing(x, axis) for start, n in places
        ]

    def _nothing(self, x: Any, axis: int) -> Any:
        """No element of ``x`` along an axis: the part of an empty shard."""
        return self._inner.slice(x, tuple(slice(0, 0 if a == axis else n, 1) for a, n in enumerate(x.shape)))

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
        """The inner backend's."""
        return self._inner.quantized_parts(x)

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: Shape) -> Any:
        """The inner backend's, of the whole parts."""
        given = (self.whole(t) for t in (values, scale, zero))
        return self._inner.quantized_from_parts(*given, dtype=dtype, shape=shape)

    # ---- operations ----

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
            [list(t) for t in zip(*(self.parts(x, axis, cuts) for x in given), strict=True)] or [[]] * self.size
            if isinstance(given, (list, tuple))
            else self.parts(given, axis, cuts)
            if hasattr(given, "shape")
            else [given] * self.size
            for given, axis in zip(operands, plan.axes, strict=True)
        ]
        function = getattr(self._inner, entry.name)
        found = []
        for start, length, own in zip(starts_of(cuts), cuts, zip(*columns, strict=True), strict=True):
            local = attributes if plan.local is None else {**attributes, **plan.local(start, start + length)}
            found.append(function(*own, **local))
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
            if axis is None:  # an empty shard has nothing to add, not even the sign of a zero
                neutral = -0.0 if self._inner.dtype(parts[0]).kind == "float" else 0
                parts = [
                    p if n else self._inner.full(shape, neutral, self._inner.dtype(p))
                    for p, n in zip(parts, cuts, strict=True)
                ]
            results.append(Shards(parts, axis, () if axis is None else cuts, tuple(shape), self.mesh_axis))
        return tuple(results) if several else results[0]

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
        """Compute an operation on whole operands, and say so."""
        if self.on_fallback == "error":
            raise Unsupported(
                f"{entry.name}: no rule of sharding for {_placed(operands)}, and on_fallback is 'error'; with "
                f"'warn' or 'allow' the operands are gathered"
            )
        if self.on_fallback == "warn":
            warnings.warn(
                f"{entry.name}: no rule of sharding for {_placed(operands)}: every shard computes all of it; "
                f"on_fallback=allow says that this is known",
                GatherWarning,
                stacklevel=_depth_of_caller(),
            )
        return getattr(self._inner, entry.name)(*map(self.settled, operands), **attributes)

    def settled(self, x: Any, addends_only: bool = False) -> Any:
        """An operand, or a list of them, as whole primitives; with ``addends_only`` only those in addends."""
        if x.__class__ is list or x.__class__ is tuple:
            return [self.settled(t, addends_only) for t in x]
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


def _depth_of_caller() -> int:
    """The number of frames up to the caller outside the package."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "backburn":
        frame, depth = frame.f_back, depth + 1
    return depth
