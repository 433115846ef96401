"""``NullBackend``: every operation derived from its shape and dtype rules alone."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backburn.backend.contract import Backend, Capabilities
from backburn.backend.opaque import Opaque
from backburn.base.dtypes import DTYPES, DType, as_dtype
from backburn.base.errors import BackendMismatchError, DTypeError, Unsupported
from backburn.ops.table import Operation, contract_operations

Shape = tuple[int, ...]


class _Memory:
    """The bytes that all live primitives would take, and their peak."""

    def __init__(self) -> None:
        self.used = 0
        self.peak = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Add ``size`` bytes, which may be negative."""
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)

    def restart(self) -> None:
        """Reset the peak to what is in use now."""
        with self._lock:
            self.peak = self.used


_MEMORY = _Memory()


class _Bytes:
    """Memory of a primitive and its views, in use while one of them lives."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size
        _MEMORY.add(size)

    def release(self) -> None:
        """Free it."""
        _MEMORY.add(-self.size)
        self.size = 0

    # Bound as a default: at interpreter exit, the module's globals may be gone before its last objects.
    def __del__(self, add: Callable[[int], None] = _MEMORY.add) -> None:
        add(-self.size)


class Null(Opaque):
    """A primitive of the null backend: a shape and a dtype, and memory that views share."""

    __slots__ = ("__weakref__", "_bytes", "dtype", "is_contiguous", "shape")

    def __init__(self, shape: Shape, dtype: DType, *, seen: Null | None = None, is_contiguous: bool = True) -> None:
        """With separate memory, or as a view of ``seen``."""
        self.shape = shape
        self.dtype = dtype
        #: Whether the elements are contiguous; otherwise reshaping copies them.
        self.is_contiguous = is_contiguous
        self._bytes: _Bytes = _Bytes(self.nbytes) if seen is None else seen._bytes

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def give_away(self) -> None:
        """Donate the memory to a result."""
        self._bytes.release()

    def __repr__(self) -> str:
        return f"<null {self.dtype}{list(self.shape)}>"


class NullBackend(Backend[Null, Null, Null, Null]):
    """Shapes and dtypes without values: nothing is computed or allocated. There is a single instance.

    Models, gradients and optimizers run on it unchanged, and yield their shapes; :meth:`memory_stats` tells what their
    values would take. Results take separate memory, except for views, as in NumPy, and donated operands. They
    print as ``<no values>``, and the host reads zeros. Operations whose result shape depends on values raise
    ``Unsupported``.

    >>> k = NullBackend()
    >>> k.matmul(k.zeros((1000, 784), as_dtype("float32")), k.zeros((784, 10), as_dtype("float32")))
    <null float32[1000, 10]>
    """

    _instance: NullBackend | None = None

    #: Having no values, it takes only these kinds of conformance checks.
    conformance_kinds = ("dtype", "shape", "signature", "errors", "capabilities", "release")

    def __new__(cls) -> NullBackend:  # a singleton
        known = cls._instance
        if known is None or type(known) is not cls:  # subclasses have their own
            known = cls._instance = super().__new__(cls)
        return known

    @property
    def spec(self) -> str:
        """``"null"``."""
        return "null"

    @property
    def device(self) -> str:
        """``"null"``."""
        return "null"

    @property
    def capabilities(self) -> Capabilities:
        """Every dtype of backburn."""
        uses = frozenset({"storage", "arithmetic"})
        return Capabilities({d: uses if d.kind != "quantized" else frozenset({"storage"}) for d in DTYPES.values()})

    def dtype(self, x: Any, /) -> DType:
        if x.__class__ is not Null:
            raise BackendMismatchError(f"{type(x).__name__} is not a primitive of the null backend")
        return x.dtype

    def memory_stats(self) -> Mapping[str, int]:
        """``used``: the bytes of all live primitives; ``peak``: the most since :meth:`memory_cleanup`."""
        return {"used": _MEMORY.used, "peak": _MEMORY.peak}

    def memory_cleanup(self) -> None:
        """Reset the peak."""
        _MEMORY.restart()

    def from_numpy(self, array: Any) -> Null:
        return Null(tuple(array.shape), as_dtype(array.dtype))

    def quantized_from_parts(self, values: Any, scale: Any, zero: Any, /, dtype: Any, shape: Shape) -> Any:
        """A primitive of the shape and the scheme."""
        return Null(tuple(shape), dtype)

    def to_numpy(self, x: Null, /) -> Any:
        dtype = getattr(x.dtype, "scale", x.dtype)
        try:
            return np.zeros(x.shape, dtype.dtype)
        except DTypeError:  # bfloat16 without ml_dtypes
            return np.zeros(x.shape, np.float32)

    def to_numpy_many(self, tensors: Any, /) -> tuple[Any, ...]:
        return tuple(self.to_numpy(x) for x in tensors)


#: The operands, by number, whose memory results take with ``donate``.
DONATED = {"sgd_step": (2,), "adam_step": (2, 3), "sgd_steps": (2,), "adam_steps": (2, 3), "index_copy": (0,)}


def _reshaped(x: Null, shape: Shape, options: dict[str, Any]) -> Null:
    return Null(shape, x.dtype, seen=x) if x.is_contiguous else Null(shape, x.dtype)


def _sliced(x: Null, shape: Shape, options: dict[str, Any]) -> Null:
    """A range along the first axis that is longer than 1 is contiguous, others are not."""
    first = next((a for a, n in enumerate(x.shape) if n > 1), 0)
    is_range = shape[first + 1 :] == x.shape[first + 1 :] and all(s.step in (None, 1) for s in options["key"])
    return Null(shape, x.dtype, seen=x, is_contiguous=x.is_contiguous and is_range)


def _strided(x: Null, shape: Shape, options: dict[str, Any]) -> Null:
    return Null(shape, x.dtype, seen=x, is_contiguous=x.is_contiguous and shape == x.shape)


#: The operations whose results are views of their first operand.
VIEWS: dict[str, Callable[[Null, Shape, dict[str, Any]], Null]] = {
    "reshape": _reshaped,
    "slice": _sliced,
    "select": _strided,
    "permute_dims": _strided,
}


def _dtype_of(operand: Any) -> DType | None:
    if isinstance(operand, list | tuple):
        return operand[0].dtype if operand else None
    return operand.dtype if operand.__class__ is Null else None


def by_rules(operation: Operation) -> Callable[..., Any]:
    """An operation derived from its shape and dtype rules."""
    results, view = operation.results, VIEWS.get(operation.name)

    def function(self: NullBackend, /, *arguments: Any, **attributes: Any) -> Any:
        if operation.shape is None:
            raise Unsupported(
                f"{operation.name}: the shape of its result depends on values, which the null backend does not have"
            )
        operands, options = _sorted(operation, arguments, {**operation.defaults, **attributes})
        shapes = operation.result_shape(operands, options)
        if view is not None and operands[0].__class__ is Null:
            return view(operands[0], tuple(shapes), options)
        known = dict(zip(operation.operands, map(_dtype_of, operands), strict=False))
        dtypes = operation.dtypes(known, options, len(shapes))
        if any(d is None for d in dtypes):
            raise DTypeError(f"{operation.name}: no operand is a tensor of the null backend")
        if options.get("donate"):
            for place in DONATED[operation.name]:
                for x in operands[place] if operands[place].__class__ is list else [operands[place]]:
                    if x.__class__ is Null:
                        x.give_away()
        made = [Null(tuple(s), d) for s, d in zip(shapes if len(results) > 1 else [shapes], dtypes, strict=True) if d]
        return tuple(made) if len(results) > 1 else made[0]

    function.__name__, function.__doc__ = operation.name, operation.doc
    function.__signature__ = inspect.signature(operation.body)  # type: ignore[attr-defined]
    return function


def _sorted(operation: Operation, arguments: Any, options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operands, None if absent, and the options, which may be positional."""
    count = len(operation.operands)
    operands = (*arguments[:count], *[None] * (count - len(arguments[:count])))
    return operands, {**options, **dict(zip(operation.attributes, arguments[count:], strict=False))}


for _operation in contract_operations():
    if _operation.name not in ("from_numpy", "to_numpy", "to_numpy_many"):
        setattr(NullBackend, _operation.name, by_rules(_operation))
