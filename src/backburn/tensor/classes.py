"""``Tensor`` and the classes of its kinds.

A tensor is a primitive and the backend that made it. Its methods are functions of this package that take the tensor
first. All of them, and the operators, are on :class:`Tensor` and raise :class:`DTypeError` for kinds that they do not
support; the classes of kinds only narrow types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.base.dtypes import DType
from backburn.base.errors import DTypeError, IndexConversionError, ShapeError, ZeroDimError
from backburn.hints import HidesHints, add_method_hints
from backburn.tensor import (  # noqa: F401 - functions in them are methods
    activations,
    arithmetic,
    creation,
    elementwise,
    gradients,
    index,
    indexing,
    logic,
    normalization,
    quantized,
    rearrange,
    reduce,
    scan,
    selection,
    shape,
    sort,
    special,
)
from backburn.tensor.core import arrow, complex_numbers, conversions, host
from backburn.tensor.core.copying import deep_copy, pickled
from backburn.tensor.core.dispatch import Number, Scalar, binary_function
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import METHODS, TensorMethods
from backburn.tensor.core.repr import tensor_html, tensor_repr
from backburn.tensor.core.wrapping import CLASSES, REAL_TENSORS, TENSORS
from backburn.tensor.linalg import products
from backburn.tensor.standard import namespace

if TYPE_CHECKING:
    from typing import Self

    from backburn.tensor.core.typing_stubs import BoolKind, ComplexKind, FloatKind, IntKind, QuantizedKind


#: Default of backend and dtype in ``Tensor(data)``, which other libraries allow and which raises here.
_MISSING: Any = None


class Tensor(TensorMethods, metaclass=HidesHints):
    """An immutable array of one dtype on one backend.

    Created by :func:`asarray` and other functions. It is never changed (``x.at[i].set(v)`` returns a changed copy), and
    compares elementwise.

        >>> import backburn as bb
        >>> x = bb.asarray([[1.0, 2.0], [3.0, 4.0]], backend="numpy")
        >>> x.shape, x.dtype
        ((2, 2), float32)
    """

    # A ``__setattr__`` would slow every construction, and properties every access: functions read the slots.
    __slots__ = ("__weakref__", "_backend", "_dtype", "_primitive")
    __array_ufunc__ = None  # so that ``array * tensor`` calls the tensor
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

    # ---- properties ----

    @property
    def primitive(self) -> Any:
        """The backend's primitive."""
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
        """The transpose of a matrix. Raises :class:`ShapeError` for anything else."""
        return products.transpose(self)

    @property
    def mT(self) -> Self:  # noqa: N802 - the Array API's name
        """The last two axes exchanged."""
        return products.matrix_transpose(self)

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
        return self._dtype.has_gradient and self._backend.is_tracked(self._primitive)

    @property
    def is_require_grad(self) -> bool:
        """Whether ``backward`` returns a gradient for this tensor."""
        return self._dtype.has_gradient and self._backend.is_require_grad(self._primitive)

    def __repr__(self) -> str:
        return tensor_repr(self)

    def __format__(self, spec: str) -> str:
        """The only element formatted as a Python number, as in ``f"{loss:.3f}"``; without a format, the ``repr``."""
        return format(self.item(), spec) if spec else repr(self)

    def _repr_html_(self) -> str:
        """The ``repr`` for notebooks."""
        return tensor_html(self)

    def __hash__(self) -> int:
        return id(self)

    def __round__(self, ndigits: int | None = None) -> Self:
        """``round(x, ndigits)``: :func:`backburn.round` to ``ndigits`` decimals, by default to whole numbers."""
        return elementwise.round(self, 0 if ndigits is None else ndigits)

    # ---- to the host and between backends ----

    def numpy(self) -> Any:
        """The values as a new NumPy array, without history."""
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
        conversions.refuse_array(self, "an array")
        return host.to_array(self, dtype, copy)

    @property
    def __numpy_dtype__(self) -> Any:
        """NumPy's dtype of the values, for functions that ask before they read them."""
        return host.numpy_dtype(self._dtype)

    @property
    def ctypes(self) -> Any:
        """The address of the values in host memory, as NumPy's ``ndarray.ctypes``, valid as long as the tensor.

        For libraries that read memory by its address; it must not be written to.

            >>> import backburn as bb
            >>> import ctypes
            >>> x = bb.asarray([1.5, 2.5])
            >>> (ctypes.c_float * 2).from_address(x.ctypes.data)[:]
            [1.5, 2.5]
        """
        return host.addresses(self)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        """The values for a consumer of Arrow's PyCapsule interface, such as polars and pyarrow: a copy in its dtype.

        A vector is an array, a matrix a struct array with the columns ``column_0``, ``column_1`` and so on. Raises
        :class:`ShapeError` for other tensors, and :class:`DTypeError` for bfloat16 and quantized ones.
        """
        conversions.refuse_array(self, "an Arrow array")
        return arrow.arrow_array(self)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The values for a consumer of the DLPack protocol: a copy in host memory.

        With ``copy=False`` it is the tensor's memory, read-only, for consumers of DLPack 1.0 and newer. Raises
        :class:`ExportError`, a BufferError, if that is not possible and for a ``dl_device`` that is not the host,
        :class:`ArgumentError` for a ``stream``, and :class:`DTypeError` for dtypes that NumPy cannot export.
        """
        host.check_stream("__dlpack__", stream)
        conversions.refuse_array(self, "a DLPack capsule")
        return host.to_dlpack(self, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory, whatever the backend."""
        return (1, 0)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return namespace(api_version)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new tensor that shares the values: a new leaf, if this one requires gradients.

        The copies of one leaf in one ``deepcopy`` are one leaf. Inside a transform a copy has the history of the
        original, so that gradients flow through it. Outside, raises :class:`GraphError` for a tensor computed from
        tracked tensors, because its copy would depend on the originals.

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
        conversions.refuse_number(self)
        return float(self.item())

    def __complex__(self) -> complex:
        conversions.refuse_number(self)
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"the truth of {self.size} elements is ambiguous: use any() or all(). {describe((self,))}")
        return bool(self.numpy().item())

    def __index__(self) -> int:
        if self.dtype.kind != "int" or self.ndim:
            raise IndexConversionError(f"only a 0-d int tensor is an index, not {describe((self,))}")
        return int(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise ZeroDimError(f"a 0-d tensor has no length: {describe((self,))}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.ndim:
            raise ZeroDimError(f"a 0-d tensor cannot be iterated over: {describe((self,))}")
        return indexing.entries(self)

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

    if not TYPE_CHECKING:  # type checkers reject it as well

        def __setitem__(self, key: Any, value: Any) -> NoReturn:
            raise indexing.immutable_error(self, key, value)

        def __delitem__(self, key: Any) -> NoReturn:
            raise indexing.undeletable_error(self, key)

    # ---- operators ----

    if TYPE_CHECKING:  # set below, where all classes are known

        def __add__(self, other: Tensor | Number) -> Tensor: ...
        def __sub__(self, other: Tensor | Number) -> Tensor: ...
        def __mul__(self, other: Tensor | Number) -> Tensor: ...
        def __truediv__(self, other: Tensor | Number) -> Tensor: ...
        def __floordiv__(self, other: Tensor | Scalar) -> Tensor: ...
        def __mod__(self, other: Tensor | Scalar) -> Tensor: ...
        def __pow__(self, other: Tensor | Number) -> Tensor: ...
        def __matmul__(self, other: Tensor) -> Tensor: ...
        def __and__(self, other: Tensor | int) -> Tensor: ...
        def __or__(self, other: Tensor | int) -> Tensor: ...
        def __xor__(self, other: Tensor | int) -> Tensor: ...
        def __lshift__(self, other: Tensor | int) -> Tensor: ...
        def __rshift__(self, other: Tensor | int) -> Tensor: ...
        def __radd__(self, other: Number) -> Tensor: ...
        def __rsub__(self, other: Number) -> Tensor: ...
        def __rmul__(self, other: Number) -> Tensor: ...
        def __rtruediv__(self, other: Number) -> Tensor: ...
        def __rfloordiv__(self, other: Scalar) -> Tensor: ...
        def __rmod__(self, other: Scalar) -> Tensor: ...
        def __rpow__(self, other: Number) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: int) -> Tensor: ...
        def __ror__(self, other: int) -> Tensor: ...
        def __rxor__(self, other: int) -> Tensor: ...
        def __rlshift__(self, other: int) -> Tensor: ...
        def __rrshift__(self, other: int) -> Tensor: ...
        def __eq__(self, other: object) -> BoolTensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> BoolTensor: ...  # type: ignore[override]
        def __lt__(self, other: Tensor | Scalar) -> BoolTensor: ...
        def __le__(self, other: Tensor | Scalar) -> BoolTensor: ...
        def __gt__(self, other: Tensor | Scalar) -> BoolTensor: ...
        def __ge__(self, other: Tensor | Scalar) -> BoolTensor: ...

    def __divmod__(self, other: Tensor | Scalar) -> tuple[Tensor, Tensor]:
        return arithmetic.divmod(self, other)

    def __rdivmod__(self, other: Scalar) -> tuple[Tensor, Tensor]:
        return arithmetic.divmod(other, self)

    # ---- unary operators ----

    __neg__ = arithmetic.negative
    __pos__ = arithmetic.positive
    __invert__ = logic.bitwise_invert

    if TYPE_CHECKING:

        def __abs__(self) -> Self: ...

    else:
        __abs__ = arithmetic.abs


if not TYPE_CHECKING:
    ComplexKind = FloatKind = IntKind = BoolKind = QuantizedKind = Tensor  # type checkers see one class for each kind


class FloatTensor(FloatKind):
    """A tensor of floating-point numbers: the kind that has gradients.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1.0]), bb.FloatTensor)
    True
    """

    __slots__ = ()


class ComplexTensor(ComplexKind):
    """A tensor of complex numbers, which has gradients too: ``dL/dx + i dL/dy`` for the real and imaginary part.

    >>> import backburn as bb
    >>> isinstance(bb.asarray([1j]), bb.ComplexTensor)
    True
    """

    __slots__ = ()

    def __float__(self) -> float:
        raise DTypeError(f"float: {complex_numbers.PARTS}. Operand: {describe((self,))}")

    def __int__(self) -> int:
        raise DTypeError(f"int: {complex_numbers.PARTS}. Operand: {describe((self,))}")


#: The kinds of tensors that have gradients.
DIFFERENTIABLE = (FloatTensor, ComplexTensor)


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
    """A tensor of quantized values; its dtype is the scheme. ``dequantize()`` returns the float tensor it represents.

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
        """The largest difference between an element and that of ``original``, the tensor that was quantized.

        Raises :class:`ShapeError` for an ``original`` of another shape.

        >>> import backburn as bb
        >>> x = bb.asarray([127.0, 0.25])
        >>> x.quantize().error(x)
        0.25
        """
        return quantized.largest_error(self, original)


CLASSES.update(float=FloatTensor, complex=ComplexTensor, int=IntTensor, bool=BoolTensor, quantized=QuantizedTensor)
TENSORS.update(CLASSES.values())
REAL_TENSORS.update(TENSORS - {ComplexTensor})
for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)


def _set_operators(symbol: str, function: Any) -> None:
    """Set ``Tensor.__symbol__`` to a function of two operands, and ``__rsymbol__`` unless it compares."""

    def reflected(y: Any, x: Any, /) -> Any:
        return function(x, y)

    methods = {symbol: function} if symbol in COMPARISONS else {symbol: function, f"r{symbol}": reflected}
    for word, method in methods.items():
        name = f"__{word}__"
        method.__name__, method.__qualname__ = name, f"Tensor.{name}"
        method.__code__ = method.__code__.replace(co_name=name, co_qualname=f"Tensor.{name}")  # for hints
        setattr(Tensor, name, method)


#: Operations by the symbol of their operator: comparisons, and operators that every kind of tensor has.
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", **COMPARISONS,
}  # fmt: skip
for _symbol, _name in OPERATORS.items():
    _set_operators(_symbol, binary_function(_name))
for _symbol in ("and", "or", "xor"):
    _set_operators(_symbol, lambda x, y, /, *, name=_symbol: logic._bits(name, x, y))
_set_operators("matmul", binary_function("matmul", products.product))
add_method_hints(Tensor)


__all__ = ["DIFFERENTIABLE", "BoolTensor", "ComplexTensor", "FloatTensor", "IntTensor", "QuantizedTensor", "Tensor"]
