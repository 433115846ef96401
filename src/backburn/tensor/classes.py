"""``Tensor`` and the classes of its four kinds.

A tensor is a primitive and the backend that made it. Its methods are functions of this package, whose first argument
is the tensor. All of them, and the operators, are on :class:`Tensor` and raise :class:`DTypeError` for kinds that they
do not support; the classes of kinds only narrow types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.base.dtypes import DType
from backburn.base.errors import NoAxisError, NotAnIndexError, ShapeError
from backburn.base.hints import HidesHints, add_method_hints
from backburn.base.quiet import RAISED
from backburn.tensor import (
    activate,
    arithmetic,
    choice,
    create,
    functions,
    gradients,
    host,
    index,
    indexing,
    linalg,
    logic,
    moving,
    normalize,
    quantized,
    reduce,
    scan,
    special,
)
from backburn.tensor import shape as layout
from backburn.tensor import sort as order
from backburn.tensor.copying import deep_copy, pickled
from backburn.tensor.dispatch import Scalar, binary
from backburn.tensor.messages import describe, explain
from backburn.tensor.repr import tensor_repr
from backburn.tensor.standard import namespace
from backburn.tensor.wrapping import CLASSES, TENSORS

if TYPE_CHECKING:
    from typing import Self

    from backburn.tensor.kinds import BoolKind, FloatKind, IntKind, QuantizedKind


#: The backend and dtype of a tensor that is made as in other libraries, from data alone.
_MISSING: Any = None


class Tensor(metaclass=HidesHints):
    """An immutable array of one dtype on one backend.

    Made by :func:`asarray` and the other creation functions. It knows its :attr:`backend`, is never changed
    (``x.at[i].set(v)`` makes a changed copy), and compares elementwise.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 2.0], [3.0, 4.0]], backend="numpy")
        >>> x.shape, x.dtype
        ((2, 2), float32)
    """

    # A ``__setattr__`` would cost every construction some time, and properties every access: what computes reads slots.
    __slots__ = ("__weakref__", "_backend", "_dtype", "_primitive")
    __array_ufunc__ = None  # so that ``array * tensor`` asks the tensor
    _primitive: Any
    _backend: AnyBackend
    _dtype: DType

    def __init__(self, primitive: Any, backend: AnyBackend = _MISSING, dtype: DType = _MISSING) -> None:
        """A tensor over a primitive; use :func:`asarray` for data."""
        if dtype is None:
            raise TypeError(f"{type(self).__name__} is for isinstance; bb.asarray(data) makes a tensor")
        self._primitive = primitive
        self._backend = backend
        self._dtype = dtype

    # ---- what it is ----

    @property
    def primitive(self) -> Any:
        """The backend's own primitive."""
        return self._primitive

    @property
    def backend(self) -> AnyBackend:
        """The backend that made the primitive and computes with it."""
        return self._backend

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self._primitive.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._primitive.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for n in self._primitive.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> Self:  # noqa: N802 - the Array API's name
        """A matrix with its axes exchanged. Raises :class:`ShapeError` for anything but a matrix."""
        return linalg.transpose(self)

    @property
    def mT(self) -> Self:  # noqa: N802 - the Array API's name
        """The last two axes exchanged."""
        return linalg.matrix_transpose(self)

    @property
    def device(self) -> AnyBackend:
        """The Array API's name for :attr:`backend`: one backend object is one device."""
        return self._backend

    @property
    def is_autodiff(self) -> bool:
        """Whether the tensor is on an autodiff backend, so that it could be tracked."""
        return is_autodiff(self.backend)

    @property
    def is_tracked(self) -> bool:
        """Whether operations on the tensor are recorded."""
        return self._dtype.kind == "float" and self._backend.is_tracked(self._primitive)

    @property
    def is_require_grad(self) -> bool:
        """Whether ``backward`` answers with a gradient for this tensor."""
        return self._dtype.kind == "float" and self._backend.is_require_grad(self._primitive)

    def __repr__(self) -> str:
        return tensor_repr(self)

    def __format__(self, spec: str) -> str:
        """As a Python number where a format is given, as in ``f"{loss:.3f}"``; needs exactly one element then."""
        return format(self.item(), spec) if spec else repr(self)

    def __hash__(self) -> int:
        return id(self)

    # ---- gradients ----

    require_grad = gradients.require_grad
    detach = gradients.detach
    retain_grad = gradients.retain_grad
    backward = gradients.backward
    grad = gradients.grad
    grad_remove = gradients.grad_remove
    grad_replace = gradients.grad_replace
    inner = gradients.inner

    # ---- to the host and between backends ----

    def numpy(self) -> Any:
        """The values as a new NumPy array; history is left behind."""
        return host.to_host(self)

    def to(self, backend: AnyBackend | str) -> Self:
        """This tensor on another backend; see :func:`backburn.to`."""
        return host.to(self, backend)

    def to_device(self, device: AnyBackend | str, /, *, stream: Any = None) -> Self:
        """The Array API's name for :meth:`to`. There are no streams: ``stream`` must be None."""
        host.check_stream("to_device", stream)
        return host.to(self, device)

    def item(self) -> Scalar:
        """The only element, as a Python number. Raises :class:`ShapeError` unless there is exactly one."""
        if self.size != 1:
            raise ShapeError(f"item: needs exactly one element, and there are {self.size}: {describe((self,))}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return host.to_array(self, dtype, copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The values for whoever takes them by the DLPack protocol: a copy in host memory.

        Raises :class:`ExportError`, a BufferError, for ``copy=False`` and for a ``dl_device`` that is not the host,
        :class:`ArgumentError` for a ``stream``, and :class:`DTypeError` for dtypes that NumPy cannot export.
        """
        host.check_stream("__dlpack__", stream)
        return host.to_dlpack(self, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory, whatever the backend."""
        return (1, 0)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return namespace(api_version)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A tensor of its own with the same values, which are shared: a new leaf, if this one requires gradients.

        The copies of one leaf in one ``deepcopy`` are one leaf. Inside a transform a copy has the history of the
        original, so that gradients flow through it. Raises :class:`GraphError` outside for what was computed from
        tracked tensors, whose copy would depend on the old ones.

            >>> import copy, backburn as bb
            >>> w = bb.asarray([1.0, 2.0]).require_grad()
            >>> first, second = copy.deepcopy([w, w])
            >>> first is second, first is w, first.is_require_grad
            (True, False, True)
        """
        return deep_copy(self, memo)

    def __copy__(self) -> Self:
        return self

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"the truth of {self.size} elements is ambiguous: use any() or all(). {describe((self,))}")
        return bool(self.numpy().item())

    def __index__(self) -> int:
        if self.dtype.kind != "int" or self.ndim:
            raise NotAnIndexError(f"only a 0-d int tensor is an index, not {describe((self,))}")
        return int(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise NoAxisError(f"a 0-d tensor has no length: {describe((self,))}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.ndim:
            raise NoAxisError(f"a 0-d tensor cannot be iterated over: {describe((self,))}")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: object) -> bool:
        return bool((self == value).any())

    __getitem__ = indexing.getitem

    @property
    def at(self) -> indexing.At[Self]:
        """Changed copies: ``x.at[key].set(value)``, or ``add``, ``multiply``, ``min``, ``max`` in place of ``set``.

        >>> import backburn as bb
        >>> bb.asarray([1, 2, 3]).at[::2].add(10).tolist()
        [11, 2, 13]
        """
        return indexing.At(self)

    if not TYPE_CHECKING:  # checkers refuse it as well

        def __setitem__(self, key: Any, value: Any) -> NoReturn:
            raise indexing.unchanged(self, key, value)

    # ---- operators ----

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        k = self._backend
        if type(other) is FloatTensor and other._backend is k and other._dtype is self._dtype:
            try:
                return FloatTensor(k.add(self._primitive, other._primitive), k, self._dtype)
            except RAISED:  # handled by the general path
                pass
            except Exception as error:
                explain("add", (self, other), {}, error)
        return _operator("add", self, other)

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        k = self._backend
        if type(other) is FloatTensor and other._backend is k and other._dtype is self._dtype:
            try:
                return FloatTensor(k.sub(self._primitive, other._primitive), k, self._dtype)
            except RAISED:  # handled by the general path
                pass
            except Exception as error:
                explain("sub", (self, other), {}, error)
        return _operator("sub", self, other)

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        k = self._backend
        if type(other) is FloatTensor and other._backend is k and other._dtype is self._dtype:
            try:
                return FloatTensor(k.mul(self._primitive, other._primitive), k, self._dtype)
            except RAISED:  # handled by the general path
                pass
            except Exception as error:
                explain("mul", (self, other), {}, error)
        return _operator("mul", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return linalg.product(self, other)

    def __truediv__(self, other: Tensor | Scalar) -> Tensor:
        return _operator("div", self, other)

    def __floordiv__(self, other: Tensor | Scalar) -> Tensor:
        return _operator("floor_divide", self, other)

    def __mod__(self, other: Tensor | Scalar) -> Tensor:
        return _operator("remainder", self, other)

    def __divmod__(self, other: Tensor | Scalar) -> tuple[Tensor, Tensor]:
        return arithmetic.divmod(self, other)

    def __rdivmod__(self, other: Scalar) -> tuple[Tensor, Tensor]:
        return arithmetic.divmod(other, self)

    def __pow__(self, other: Tensor | Scalar) -> Tensor:
        return _operator("pow", self, other)

    def __and__(self, other: Tensor | int) -> Tensor:
        return logic.bits("and", self, other)

    def __or__(self, other: Tensor | int) -> Tensor:
        return logic.bits("or", self, other)

    def __xor__(self, other: Tensor | int) -> Tensor:
        return logic.bits("xor", self, other)

    def __lshift__(self, other: Tensor | int) -> Tensor:
        return _operator("bitwise_left_shift", self, other)

    def __rshift__(self, other: Tensor | int) -> Tensor:
        return _operator("bitwise_right_shift", self, other)

    def __radd__(self, other: Scalar) -> Tensor:
        return _operator("add", other, self)

    def __rsub__(self, other: Scalar) -> Tensor:
        return _operator("sub", other, self)

    def __rmul__(self, other: Scalar) -> Tensor:
        return _operator("mul", other, self)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _operator("matmul", other, self)

    def __rtruediv__(self, other: Scalar) -> Tensor:
        return _operator("div", other, self)

    def __rfloordiv__(self, other: Scalar) -> Tensor:
        return _operator("floor_divide", other, self)

    def __rmod__(self, other: Scalar) -> Tensor:
        return _operator("remainder", other, self)

    def __rpow__(self, other: Scalar) -> Tensor:
        return _operator("pow", other, self)

    def __rand__(self, other: int) -> Tensor:
        return logic.bits("and", other, self)

    def __ror__(self, other: int) -> Tensor:
        return logic.bits("or", other, self)

    def __rxor__(self, other: int) -> Tensor:
        return logic.bits("xor", other, self)

    def __rlshift__(self, other: int) -> Tensor:
        return _operator("bitwise_left_shift", other, self)

    def __rrshift__(self, other: int) -> Tensor:
        return _operator("bitwise_right_shift", other, self)

    def __eq__(self, other: object) -> BoolTensor:  # type: ignore[override]
        return _operator("equal", self, other)  # type: ignore[return-value]

    def __ne__(self, other: object) -> BoolTensor:  # type: ignore[override]
        return _operator("not_equal", self, other)  # type: ignore[return-value]

    def __lt__(self, other: Tensor | Scalar) -> BoolTensor:
        return _operator("less", self, other)  # type: ignore[return-value]

    def __le__(self, other: Tensor | Scalar) -> BoolTensor:
        return _operator("less_equal", self, other)  # type: ignore[return-value]

    def __gt__(self, other: Tensor | Scalar) -> BoolTensor:
        return _operator("greater", self, other)  # type: ignore[return-value]

    def __ge__(self, other: Tensor | Scalar) -> BoolTensor:
        return _operator("greater_equal", self, other)  # type: ignore[return-value]

    # ---- methods: the functions of this package, by family ----

    # arithmetic
    abs = arithmetic.abs
    sign = arithmetic.sign
    square = arithmetic.square
    reciprocal = arithmetic.reciprocal
    maximum = arithmetic.maximum
    minimum = arithmetic.minimum
    fmod = arithmetic.fmod
    clip = arithmetic.clip
    lerp = arithmetic.lerp

    # functions
    pow = functions.pow
    sqrt = functions.sqrt
    rsqrt = functions.rsqrt
    hypot = functions.hypot
    exp = functions.exp
    exp2 = functions.exp2
    expm1 = functions.expm1
    log = functions.log
    log2 = functions.log2
    log10 = functions.log10
    log1p = functions.log1p
    logaddexp = functions.logaddexp
    sin = functions.sin
    cos = functions.cos
    tan = functions.tan
    asin = functions.asin
    acos = functions.acos
    atan = functions.atan
    atan2 = functions.atan2
    sinh = functions.sinh
    cosh = functions.cosh
    tanh = functions.tanh
    asinh = functions.asinh
    acosh = functions.acosh
    atanh = functions.atanh
    floor = functions.floor
    ceil = functions.ceil
    round = functions.round
    trunc = functions.trunc
    frac = functions.frac

    # special
    erf = special.erf
    erfc = special.erfc
    erfinv = special.erfinv
    lgamma = special.lgamma
    digamma = special.digamma
    polygamma = special.polygamma
    sinc = special.sinc
    i0 = special.i0
    i1 = special.i1

    # logic
    isclose = logic.isclose
    allclose = logic.allclose
    isnan = logic.isnan
    isinf = logic.isinf
    isfinite = logic.isfinite
    signbit = logic.signbit
    copysign = logic.copysign
    nextafter = logic.nextafter
    logical_and = logic.logical_and
    logical_or = logic.logical_or
    logical_xor = logic.logical_xor
    logical_not = logic.logical_not

    # reduce
    sum = reduce.sum
    prod = reduce.prod
    count_nonzero = reduce.count_nonzero
    max = reduce.max
    min = reduce.min
    max_abs = reduce.max_abs
    argmax = reduce.argmax
    argmin = reduce.argmin
    max_with_indices = reduce.max_with_indices
    min_with_indices = reduce.min_with_indices
    any = reduce.any
    all = reduce.all
    mean = reduce.mean
    var = reduce.var
    std = reduce.std
    norm = reduce.vector_norm
    logsumexp = reduce.logsumexp

    # scan
    cumsum = scan.cumulative_sum
    cumprod = scan.cumulative_prod
    cummax = scan.cummax
    cummin = scan.cummin
    logcumsumexp = scan.logcumsumexp
    diff = scan.diff

    # sort
    sort = order.sort
    argsort = order.argsort
    sort_with_indices = order.sort_with_indices
    topk = order.topk
    kthvalue = order.kthvalue
    median_with_indices = order.median_with_indices
    searchsorted = order.searchsorted
    quantile = order.quantile
    median = order.median
    mode = order.mode

    # index
    take = index.take
    take_along_axis = index.take_along_axis
    scatter = index.scatter
    index_add = index.index_add
    index_copy = index.index_copy
    nonzero = index.nonzero

    # linalg
    matmul = linalg.matmul
    vecdot = linalg.vecdot

    # normalize and activate
    softmax = normalize.softmax
    log_softmax = normalize.log_softmax
    relu = activate.relu
    sigmoid = activate.sigmoid

    # create
    astype = create.astype
    quantize = create.quantize
    dequantize = create.dequantize

    # shape
    reshape = layout.reshape_method
    flatten = layout.flatten
    squeeze = layout.squeeze
    expand_dims = layout.expand_dims
    permute_dims = layout.permute_dims
    moveaxis = layout.moveaxis
    swapaxes = layout.swapaxes
    broadcast_to = layout.broadcast_to
    split = layout.split
    chunk = layout.chunk
    unstack = layout.unstack
    flip = moving.flip
    roll = moving.roll
    tile = moving.tile
    repeat = moving.repeat
    pad = moving.pad
    diagonal = moving.diagonal
    trace = moving.trace

    # choice
    mask_fill = choice.mask_fill
    masked_select = choice.masked_select
    triu = choice.triu
    tril = choice.tril

    # ---- operators of one operand ----

    __neg__ = arithmetic.negative
    __pos__ = arithmetic.positive
    __abs__ = arithmetic.abs
    __invert__ = logic.bitwise_invert


if not TYPE_CHECKING:
    FloatKind = IntKind = BoolKind = QuantizedKind = Tensor  # what checkers know of each kind


class FloatTensor(FloatKind):
    """A tensor of floating-point numbers: the kind that has gradients.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1.0]), bb.FloatTensor)
    True
    """

    __slots__ = ()


class IntTensor(IntKind):
    """A tensor of integers.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1]), bb.IntTensor)
    True
    """

    __slots__ = ()


class BoolTensor(BoolKind):
    """A tensor of booleans.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1]) == 1, bb.BoolTensor)
    True
    """

    __slots__ = ()


class QuantizedTensor(QuantizedKind):
    """A tensor of integers on a scale; its dtype is the scheme. ``dequantize()`` gives the float tensor it stands for.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1.0]).quantize(), bb.QuantizedTensor)
    True
    """

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """The bytes of stored values, steps and zero points.

        >>> import backburn as bb
        >>> bb.zeros((8, 64)).quantize(dtype="qint4_symmetric_block32_float16").nbytes
        288
        """
        return sum(part.nbytes for part in host.quantized_parts(self) if part is not None)

    def error(self, original: Tensor) -> float:
        """The largest difference between an element and that of ``original``, from which the tensor was made.

        Raises :class:`ShapeError` for an ``original`` of another shape.

        >>> import backburn as bb
        >>> x = bb.asarray([127.0, 0.25])
        >>> x.quantize().error(x)
        0.25
        """
        return quantized.largest_error(self, original)


CLASSES.update(float=FloatTensor, int=IntTensor, bool=BoolTensor, quantized=QuantizedTensor)
TENSORS.update(CLASSES.values())
add_method_hints(Tensor)


_operator: Callable[[str, Any, Any], Tensor] = binary  # narrowed for type checkers


__all__ = ["BoolTensor", "FloatTensor", "IntTensor", "QuantizedTensor", "Tensor"]
