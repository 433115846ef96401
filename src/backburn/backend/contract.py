"""The contract: :class:`Backend`, and :class:`AutodiffBackend`, which adds the twelve methods of Burn's trait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypeVar

from backburn.base.dtypes import DType, FloatDType, IntDType, float32, int64
from backburn.base.errors import ArgumentError
from backburn.ops import Operations
from backburn.ops.primitives import Primitives
from backburn.ops.table import OPERATIONS, missing
from backburn.ops.types import B, F, I, Primitive, Q

#: The version of the contract. Operations that are added after 1.0 are always derived, so that a backend written for
#: an older version of the same major number keeps working.
CONTRACT_VERSION = "0.1"


@dataclass(frozen=True)
class Capabilities:
    """The declared capabilities of a backend; using anything else must raise ``Unsupported``.

    ``dtypes`` maps each dtype to how it may be used: any of ``"storage"``, ``"arithmetic"``, ``"accelerated"``.
    ``groups`` names optional groups of operations (the contract has none yet), ``deterministic`` whether equal calls
    give identical results, ``capture`` whether it records programs
    (:class:`backburn.backend.capturing.CapturingBackend`). With ``wide_steps``, optimizer steps take the state of
    16-bit parameters in float32. ``storages`` are those of quantized tensors (``"int8"``, ``"uint8"``,
    ``"int4"``, ``"int2"``, ``"float8_e4m3fn"``, ``"float8_e5m2"``) for which every scheme works. With
    ``propagates``, float results of quantized operands are quantized again; it is an option of the backend,
    ``numpy(quantized=propagate)``.
    """

    dtypes: Mapping[DType, frozenset[str]]
    groups: frozenset[str] = field(default_factory=frozenset)
    deterministic: bool = True
    capture: bool = False
    wide_steps: bool = False
    storages: frozenset[str] = field(default_factory=frozenset)
    propagates: bool = False

    def supports(self, dtype: DType, use: str = "arithmetic") -> bool:
        """Whether ``dtype`` supports this use."""
        return use in self.dtypes.get(dtype, ())


if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolMeta  # what type checkers see
else:

    class _ProtocolMeta(type(Protocol)):
        """``isinstance`` with one of the two protocols is :func:`is_backend` or :func:`is_autodiff`."""

        def __instancecheck__(cls, instance: Any) -> bool:
            check = _CLASS_CHECKS.get(cls)
            return super().__instancecheck__(instance) if check is None else check(type(instance))

        def __subclasscheck__(cls, kind: type) -> bool:
            check = _CLASS_CHECKS.get(cls)
            return super().__subclasscheck__(kind) if check is None else check(kind)


#: Former names of operations, with the present ones.
RENAMED = {
    "cast": "astype",
    "clamp": "clip",
    "ctc": "ctc_loss",
    "ctc_backward": "ctc_loss_backward",
    "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum",
    "gather": "take_along_axis",
    "gather_backward": "take_along_axis_backward",
    "huber": "huber_loss",
    "l1": "l1_loss",
    "mask_fill": "masked_fill",
    "mse": "mse_loss",
    "nll": "nll_loss",
    "norm": "vector_norm",
    "q_linear": "quantized_linear",
    "q_matmul": "quantized_matmul",
}


@runtime_checkable
class Backend(
    Operations[F, I, B, Q],
    Protocol[F, I, B, Q],
    metaclass=_ProtocolMeta,
):
    """A collection of functions on opaque primitives of four kinds: float, int, bool and quantized.

    A primitive has ``shape`` and ``dtype``; operations never modify one. To write a backend, subclass with the four
    types and implement the required operations (``backburn info --required`` lists them); every other operation has a
    default body, which may be overridden for speed. A backend is an immutable value for one device, equal to every
    other with the same :attr:`spec`.
    """

    @property
    def spec(self) -> str:
        """The expression that ``load_backend`` reads back as this backend, such as ``"numpy"`` or ``"cupy:1"``."""
        return missing("spec")

    @property
    def device(self) -> str:
        """The device that holds the primitives, such as ``"cpu"`` or ``"cuda:1"``."""
        return missing("device")

    @property
    def float_dtype(self) -> FloatDType:
        """The default dtype of float tensors, where ``use_dtype`` names no other: float32, unless overridden."""
        return float32

    @property
    def int_dtype(self) -> IntDType:
        """The default dtype of int tensors, and that of indices."""
        return int64

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this backend."""
        return missing("capabilities")

    @property
    def settles(self) -> bool:
        """Whether :meth:`settle` does anything: only then does a reverse pass detect when a gradient is final."""
        return False

    def synchronize(self) -> None:
        """Wait until all pending work is done; does nothing if calls are synchronous."""
        return None

    @property
    def libraries(self) -> Mapping[str, str]:
        """Libraries that the backend uses, by name: the version, or why it is missing and what is used instead.

        It is shown by ``backburn info``; empty if there is nothing to choose.
        """
        return {}

    def memory_stats(self) -> Mapping[str, int]:
        """Bytes by name: ``used`` by live primitives, and others such as ``held`` and ``peak``; empty if unknown."""
        return {}

    def memory_cleanup(self) -> None:
        """Return memory that is held for reuse to the system."""
        return None

    def fuse(self, formula: Callable[..., Any], x: Any, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """``formula(self, x, *values)``, for an element-wise function such as a gradient rule of several steps.

        A backend may compute it in another way, such as in one pass over memory. A formula may return a tuple of
        several results; ``donate`` then lists, by number, operands whose memory the last results may take, in this
        order; their values are lost.
        """
        return formula(self, x, *values)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that implements an operation under a name that it no longer has."""
        super().__init_subclass__(**options)
        for name in RENAMED.keys() & vars(cls).keys():
            raise ArgumentError(
                f"{cls.__name__}.{name}: the operation is called {RENAMED[name]} now; rename the method"
            )

    def __eq__(self, other: Any) -> bool:
        # A subclass is not equal: one with the same spec would be taken for this backend, without its own operations.
        return self is other or (type(self) is type(other) and self.spec == other.spec)

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"<backend {self.spec}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from backburn.backend.registry import load_backend

        return (load_backend, (self.spec,))


#: Any backend, where the types of its primitives do not matter.
AnyBackend: TypeAlias = Backend[Any, Any, Any, Any]
BK = TypeVar("BK", bound=AnyBackend)
BK_co = TypeVar("BK_co", bound=AnyBackend, covariant=True)
G = TypeVar("G")
T_co = TypeVar("T_co", covariant=True)
FI = TypeVar("FI", bound=Primitive)
II = TypeVar("II", bound=Primitive)
BI = TypeVar("BI", bound=Primitive)
QI = TypeVar("QI", bound=Primitive)


class Wraps(Protocol[T_co]):
    """A protocol for decorators, through which type checkers infer the inner primitives."""

    @property
    def inner_backend(self) -> T_co:
        """The backend that is wrapped."""
        ...


FloatsOf: TypeAlias = Wraps[Primitives[FI, Any, Any, Any]]
IntsOf: TypeAlias = Wraps[Primitives[Any, II, Any, Any]]
BoolsOf: TypeAlias = Wraps[Primitives[Any, Any, BI, Any]]
QuantizedsOf: TypeAlias = Wraps[Primitives[Any, Any, Any, QI]]


@runtime_checkable
class AutodiffBackend(Backend[F, I, B, Q], Protocol[F, I, B, Q, BK_co, G]):
    """A backend that differentiates: Burn's trait of the same name, method for method.

    The inner backend has the outer's device, float type and int type (:func:`check_autodiff_backend`). Gradients are
    inner primitives, held in a container of type ``G`` and never on the tensors.
    """

    @property
    def inner_backend(self) -> BK_co:
        """The backend that computes."""
        return missing("inner_backend")

    def backward(self, tensor: F) -> G:
        """The gradients of ``tensor`` with respect to every leaf that it was computed from."""
        return missing("backward")

    def grad(self: FloatsOf[FI], tensor: F, grads: G) -> FI | None:
        """The gradient of ``tensor``, or None if there is none; ``grads`` is unchanged."""
        return missing("grad")

    def grad_remove(self: FloatsOf[FI], tensor: F, grads: G) -> FI | None:
        """The gradient of ``tensor``, removed from ``grads``."""
        return missing("grad_remove")

    def grad_replace(self: FloatsOf[FI], tensor: F, grads: G, grad: FI) -> None:
        """Replace the gradient of ``tensor`` by ``grad``, or add it if there was none."""
        missing("grad_replace")

    def inner(self: FloatsOf[FI], tensor: F) -> FI:
        """The inner float primitive."""
        return missing("inner")

    def int_inner(self: IntsOf[II], tensor: I) -> II:
        """The inner int primitive."""
        return missing("int_inner")

    def bool_inner(self: BoolsOf[BI], tensor: B) -> BI:
        """The inner bool primitive."""
        return missing("bool_inner")

    def q_inner(self: QuantizedsOf[QI], tensor: Q) -> QI:
        """The inner quantized primitive."""
        return missing("q_inner")

    def from_inner(self: FloatsOf[FI], tensor: FI) -> F:
        """An inner float primitive as an untracked leaf."""
        return missing("from_inner")

    def int_from_inner(self: IntsOf[II], tensor: II) -> I:
        """An inner int primitive."""
        return missing("int_from_inner")

    def bool_from_inner(self: BoolsOf[BI], tensor: BI) -> B:
        """An inner bool primitive."""
        return missing("bool_from_inner")

    def q_from_inner(self: QuantizedsOf[QI], tensor: QI) -> Q:
        """An inner quantized primitive."""
        return missing("q_from_inner")


#: The methods that a backend that differentiates has in addition to the contract.
AUTODIFF_METHODS = (
    "backward", "grad", "grad_remove", "grad_replace",
    "inner", "int_inner", "bool_inner", "q_inner",
    "from_inner", "int_from_inner", "bool_from_inner", "q_from_inner",
)  # fmt: skip


def is_backend(value: object) -> bool:
    """Whether ``value`` satisfies the contract: by subclassing :class:`Backend`, or by having all its members."""
    return is_class_of_backends(type(value))


def is_class_of_backends(kind: type) -> bool:
    """Whether the objects of a class satisfy the contract."""
    return Backend in kind.__mro__ or all(hasattr(kind, name) for name in _MEMBERS)


class NoBackendError(ArgumentError, TypeError):
    """A decorator is applied to something that is not a backend."""


def no_backend(decorator: str, value: object) -> NoBackendError:
    """The error of a decorator for a value that is not a backend."""
    if isinstance(value, str):
        return NoBackendError(f"{decorator} wraps a backend, not the name of one: write load_backend({value!r})")
    why = f": {lacking(value)}" if hasattr(value, "spec") and not isinstance(value, type) else ""
    example = f"Write {decorator}(NumpyBackend()), for example"
    return NoBackendError(f"{decorator} wraps a backend, not {value!r}{why}. {example}")


def lacking(value: object) -> str:
    """The members that the class of a value lacks, required ones if there are any, for an error message."""
    required = [name for name in _required() if not hasattr(type(value), name)]
    lacks = required or [name for name in _MEMBERS if not hasattr(type(value), name)]
    more = f" and {len(lacks) - 4} more" if len(lacks) > 4 else ""
    why = f"it lacks {', '.join(lacks[:4])}{more}"
    if not required:
        return f"{why}, for which a subclass of backburn.backend.Backend inherits default bodies"
    if not any(hasattr(value, name) for name in lacks):
        return why
    return (
        f"{why}. Members are looked for on the class, not on the object, where __getattr__ finds them: subclass "
        f"backburn.backend.Wrapper, which delegates every operation (docs/write-a-backend.md, 'Wrapping a backend')"
    )


#: The members that a class which does not inherit :class:`Backend` must have; operations added later are not required.
_MEMBERS = tuple(name for name in dir(Backend) if not name.startswith("_"))


def _required() -> tuple[str, ...]:
    """The members that every backend implements."""
    return ("spec", "dtype", "capabilities", *(e.name for e in OPERATIONS.values() if e.required))


def is_autodiff(value: object) -> bool:
    """Whether ``value`` is a backend that differentiates, from backburn or elsewhere."""
    kind: Any = type(value)
    return _differentiates(kind)


@lru_cache(256)
def _differentiates(kind: type) -> bool:
    """Whether the objects of a class differentiate; cached, since the creation of every tensor asks."""
    return is_class_of_backends(kind) and all(hasattr(kind, name) for name in AUTODIFF_METHODS)


#: The checks behind ``isinstance`` and ``issubclass`` with the two protocols.
_CLASS_CHECKS: dict[Any, Callable[[type], bool]] = {Backend: is_class_of_backends, AutodiffBackend: _differentiates}
