"""``Batched``: a decorator whose operations compute all examples of a batch at once."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

from backburn.backend.contract import AnyBackend, Backend
from backburn.backend.wrapper import DecoratorBase, make_operations
from backburn.base.call_site import stack_level
from backburn.base.dtypes import DType
from backburn.base.errors import GraphError, Unsupported
from backburn.batching.rules import FallbackWarning, Mapped, Same, as_tuple, front, is_mapped, rule_of
from backburn.ops.bodies import slicing as views
from backburn.ops.rules.shapes import broadcast, unchanged
from backburn.ops.table import Operation

_serial = itertools.count(1).__next__


class NeedsValues(Unsupported):
    """The values of a single example are requested inside ``vmap``."""


class Batched(DecoratorBase, Backend[Any, Any, Any, Any]):
    """``inner`` with an implicit batch axis of length ``size``: a primitive has the shape of one example and holds all.

    Its primitives are inner primitives, which are the same for all examples, and :class:`Mapped` ones. An operation on
    inner primitives runs on the inner backend; one with a mapped operand uses its batching rule, else its default body,
    else runs example by example. A level equals only itself. ``randomness`` (``"error"``, ``"different"`` or
    ``"same"``) controls random draws, and ``on_fallback`` (``"warn"``, ``"error"`` or ``"allow"``) operations that run
    example by example.

        >>> from backburn_numpy import NumpyBackend
        >>> import numpy as np
        >>> k = Batched(NumpyBackend(), 2)
        >>> rows = k.mapped(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        >>> rows.shape, k.sum(rows, (0,), False).value
        ((3,), array([ 6., 15.]))
    """

    def __init__(self, inner: AnyBackend, size: int, *, randomness: str = "error", on_fallback: str = "warn") -> None:
        """A new level over ``inner``."""
        self._inner = inner
        self.size = size
        self.randomness = randomness
        self.on_fallback = on_fallback
        self._number = _serial()
        self._is_open = True

    @property
    def inner_backend(self) -> Any:
        """The wrapped backend."""
        return self._inner

    @property
    def spec(self) -> str:
        """``batched[n](...)`` around the inner spec; the number distinguishes levels. It cannot be loaded."""
        return f"batched[{self._number}]({self.inner_backend.spec})"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> NoReturn:
        raise needs_values("pickle")

    # ---- levels ----

    def close(self) -> None:
        """Mark the mapped function as finished: using a primitive of this level afterwards is a leak."""
        self._is_open = False

    @contextmanager
    def reopened(self) -> Iterator[None]:
        """A context in which a part of the mapped function is run again (:func:`backburn.checkpoint`)."""
        before, self._is_open = self._is_open, True
        try:
            yield
        finally:
            self._is_open = before

    def mapped(self, value: Any) -> Mapped:
        """An inner primitive with the batch axis first, as a mapped primitive."""
        return Mapped(value, self)

    def unmapped(self, x: Any) -> Any:
        """The inner primitive, mapped or not."""
        return x.value if is_mapped(self, x) else x

    def example(self, x: Any, index: int) -> Any:
        """One example of a primitive, as an inner primitive."""
        if x.__class__ is list or x.__class__ is tuple:
            return [self.example(t, index) for t in x]
        if not is_mapped(self, x):
            return x
        return views.index_axis(self.inner_backend, x.value, 0, index)

    def from_inner(self, tensor: Any) -> Any:
        """An inner primitive, unchanged: the same for all examples."""
        return tensor

    def inner(self, tensor: Any) -> Any:
        """The inner primitive of one that is the same for all examples; raises for a mapped one."""
        if is_mapped(self, tensor):
            raise GraphError(
                "inner: the tensor differs between the examples of vmap, and cannot be used outside of it. Return it "
                "from the mapped function"
            )
        return tensor

    int_from_inner = bool_from_inner = q_from_inner = from_inner
    int_inner = bool_inner = q_inner = inner

    def dtype(self, x: Any, /) -> DType:
        """The dtype of a primitive."""
        return self.inner_backend.dtype(self.unmapped(x))

    # ---- tracking: that of the inner backend, since a level of vmap has no graph ----

    def set_require_grad(self, x: Any, /, flag: bool) -> Any:
        """Raises for True: a leaf of the inner graph would be shared by all examples."""
        if flag:
            raise GraphError("require_grad: not possible inside vmap; bb.grad and bb.vjp differentiate per example")
        return self.detach(x)

    def new_leaf(self, x: Any, /) -> Any:
        """Raises, like ``set_require_grad(x, True)``."""
        return self.set_require_grad(x, True)

    def is_require_grad(self, x: Any, /) -> bool:
        """Whether the inner primitive is a leaf."""
        return self.inner_backend.is_require_grad(self.unmapped(x))

    def is_tracked(self, x: Any, /) -> bool:
        """Whether the inner primitive is tracked."""
        return self.inner_backend.is_tracked(self.unmapped(x))

    def detach(self, x: Any, /) -> Any:
        """``x`` with the inner primitive detached."""
        return self.over(x, self.inner_backend.detach)

    def is_differentiated_whole(self, name: str, operands: tuple[Any, ...]) -> bool:
        """Whether a level below has rules for the derivative of an operation, and an operand is tracked there."""
        given = [t for x in operands for t in (x if isinstance(x, (list, tuple)) else (x,)) if hasattr(t, "shape")]
        tensors = [t for t in given if self.dtype(t).has_gradient]
        k: Any = self
        while tensors and hasattr(k, "inner_backend"):
            tensors = [k.unmapped(t) if isinstance(k, Batched) else k.inner(t) for t in tensors]
            k = k.inner_backend
            if hasattr(k, "differentiates_whole") and k.differentiates_whole(name) and any(map(k.is_tracked, tensors)):
                return True
        return False

    def over(self, x: Any, function: Callable[[Any], Any]) -> Any:
        """``function`` applied to the inner primitive; the result is mapped if ``x`` is."""
        return Mapped(function(x.value), self) if is_mapped(self, x) else function(x)

    def over_both(self, x: Any, y: Any, function: Callable[[Any, Any], Any]) -> Any:
        """``function`` applied to two inner primitives; the result is mapped if one of them is."""
        if is_mapped(self, x) or is_mapped(self, y):
            return Mapped(function(front(self, x), front(self, y)), self)
        return function(x, y)

    # ---- to the host ----

    def to_numpy(self, x: Any, /) -> Any:
        """The values of a primitive that is the same for all examples; raises for a mapped one."""
        if is_mapped(self, x):
            self.check_open("to_numpy")
            raise needs_values("to_numpy")
        return self.inner_backend.to_numpy(x)

    def to_numpy_many(self, tensors: Any, /) -> tuple[Any, ...]:
        """:meth:`to_numpy` of each."""
        return tuple(self.to_numpy(x) for x in tensors)

    # ---- operations ----

    def check_open(self, name: str) -> None:
        """Raise for an operation on a primitive that has leaked from the mapped function."""
        if not self._is_open:
            raise GraphError(
                f"{name}: a tensor is used outside of the vmap that created it (through a global, a closure or an "
                f"attribute). Return it from the mapped function"
            )

    def one_by_one(self, entry: Operation, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """Run an operation example by example, and stack the results."""
        name = entry.name
        if self.on_fallback == "error":
            raise Unsupported(
                f"vmap: {name} has no batched form, and on_fallback is 'error'; with 'warn' or 'allow' it runs for "
                f"one example after another"
            )
        if self.on_fallback == "warn":
            warnings.warn(
                f"vmap: {name} has no batched form and runs for each of {self.size} examples separately; "
                f"vmap(..., on_fallback='allow') silences this warning",
                FallbackWarning,
                stacklevel=stack_level(),
            )
        k = self.inner_backend
        if not self.size:
            return self._empty_results(entry, operands, attributes)
        results = [
            as_tuple(getattr(k, name)(*(self.example(x, i) for x in operands), **attributes)) for i in range(self.size)
        ]
        stacked = []
        for parts in zip(*results, strict=True):
            if len({tuple(p.shape) for p in parts}) > 1:
                raise Unsupported(f"{name}: the results of the examples of vmap differ in shape and cannot be stacked")
            rows = [k.reshape(p, (1, *p.shape)) for p in parts]
            stacked.append(Mapped(k.concat(rows, 0), self))
        return tuple(stacked) if len(entry.results) > 1 else stacked[0]

    def _empty_results(self, entry: Operation, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """The results of an operation without examples."""
        if entry.shape is None:
            raise Unsupported(f"{entry.name}: without examples, vmap cannot infer the shape of the result")
        found = entry.result_shape(operands, attributes)
        first = [x[0] if isinstance(x, (list, tuple)) and x else x for x in operands]
        dtypes = {n: self.dtype(x) for n, x in zip(entry.operands, first, strict=False) if hasattr(x, "shape")}
        made = [
            Mapped(self.inner_backend.zeros((0, *shape), dtype), self)
            for shape, dtype in zip(
                found if len(entry.results) > 1 else [found],
                entry.dtypes(dtypes, attributes, len(found)),
                strict=True,
            )
        ]
        return tuple(made) if len(entry.results) > 1 else made[0]


def needs_values(name: str) -> NeedsValues:
    """The error for reading values that differ between examples."""
    return NeedsValues(
        f"{name}: inside vmap a tensor stands for its values in all examples, and Python cannot read those of one: no "
        f"item(), numpy(), asarray() or bool(), no if or while on it, and no shape that depends on it (boolean masks, "
        f"nonzero). Choose between values with bb.where, combine tensors with bb.stack, or move this part out of vmap"
    )


def levels_of_vmap(backend: AnyBackend | None) -> list[Batched]:
    """The levels of ``vmap`` from ``backend`` down, the highest first."""
    found: list[Batched] = []
    k: Any = backend
    while k is not None:
        if _is_batched(k.__class__):
            found.append(k)
        k = getattr(k, "inner_backend", None)
    return found


@lru_cache(256)
def _is_batched(kind: type) -> bool:
    return Batched in kind.__mro__  # issubclass of a protocol takes ten times as long


# ---- one function for each operation ----


def compile_operation(entry: Operation) -> Callable[..., Any]:
    """The method of ``Batched`` for an operation."""
    name, count = entry.name, len(entry.operands)
    names, defaults = tuple(entry.attributes), entry.defaults
    padding = (None,) * count
    always = entry.family == "random"
    rule = rule_of(entry)
    # A rule adds an axis, with which the inner backend may accept operands that are invalid for one example.
    check = entry.shape not in (broadcast, unchanged)

    def method(self: Batched, /, *given: Any, **options: Any) -> Any:
        operands = given[:count]
        if not always and not _takes_part(self, operands):
            return getattr(self.inner_backend, name)(*given, **options)
        if not self._is_open:
            self.check_open(name)
        attributes = {**defaults, **dict(zip(names, given[count:], strict=False)), **options} if names else {}
        if len(operands) < count:
            operands += padding[len(operands) :]
        if rule is not None:
            if check:
                entry.result_shape(operands, attributes)
            found = rule(self, *operands, **attributes)
            if found is not NotImplemented:
                return tuple(Mapped(y, self) for y in found) if found.__class__ is tuple else _result(self, found)
        if entry.shape is None:
            raise needs_values(name)
        if getattr(attributes.get("dtype"), "kind", "") == "quantized" and entry.results == ("dtype",):
            raise NeedsValues(
                f"{name}: quantized tensors are the same for all examples of vmap: quantize outside of it, or use "
                "fake_quantize, which returns the rounded values of each example as floats"
            )
        if entry.required or (rule is None and self.is_differentiated_whole(name, operands)):
            return self.one_by_one(entry, operands, attributes)
        try:
            return entry.body(self, *operands, **attributes)
        except NeedsValues:
            return self.one_by_one(entry, operands, attributes)

    method.__name__ = name
    method.__qualname__ = f"Batched.{name}"
    method.__doc__ = entry.body.__doc__
    return method


def _result(level: Batched, found: Any) -> Any:
    return found.value if found.__class__ is Same else Mapped(found, level)


def _takes_part(level: Batched, operands: Any) -> bool:
    """Whether an operand, or one of a list of them, differs between examples."""
    for x in operands:
        if x.__class__ is Mapped:
            if x.level is level:
                return True
        elif (x.__class__ is list or x.__class__ is tuple) and _takes_part(level, x):
            return True
    return False


make_operations(Batched, compile_operation, written=("to_numpy", "to_numpy_many"))
