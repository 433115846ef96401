"""The boundary to the host: tensors from Python and NumPy data, and back."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

import numpy as np

from backburn.autodiff.anomaly import host_values
from backburn.autodiff.transfer import transfer
from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.backend.host_numbers import RECORDING_STEP
from backburn.backend.wrapper import Wrapper
from backburn.base.contexts import default_float
from backburn.base.dtypes import (
    BoolDType,
    DType,
    FloatDType,
    IntDType,
    as_dtype,
    complex128,
    complex_of,
    float64,
    nearest,
    promote,
    promote_scalar,
)
from backburn.base.errors import (
    ArgumentError,
    BackburnError,
    BackendMismatchError,
    DTypeError,
    ExportError,
    Unsupported,
)
from backburn.hints.arguments import plain_signature, refuse
from backburn.tensor.core import complex_numbers
from backburn.tensor.core.defaults import BackendLike, as_backend, given_backend
from backburn.tensor.core.dispatch import cast, kind_operand, tensor_operand
from backburn.tensor.core.levels import INNER, constant, has_history, inner_of, innermost, levels_between, lift
from backburn.tensor.core.messages import describe, raise_out_of_memory
from backburn.tensor.core.options import dtype_of
from backburn.tensor.core.wrapping import is_tensor, wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor

T = TypeVar("T", bound="Tensor")


def plain_dtype(name: str, dtype: DType, kinds: tuple[str, ...] = ("float", "complex", "int", "bool")) -> DType:
    """``dtype``, which must be of one of ``kinds``."""
    if dtype.kind not in kinds:
        advice = "x.quantize() makes a quantized tensor" if dtype.kind == "quantized" else "astype(...) casts a result"
        raise DTypeError(f"{name}: makes {' and '.join(kinds)} tensors, not {dtype}; {advice}")
    return dtype


@overload
def asarray(
    obj: T, /, *, dtype: None = None, backend: BackendLike = None, device: BackendLike = None, copy: bool | None = None
) -> T: ...
@overload
def asarray(
    obj: Any, /, *, dtype: FloatDType, backend: BackendLike = None, device: BackendLike = None, copy: bool | None = None
) -> FloatTensor: ...
@overload
def asarray(
    obj: Any, /, *, dtype: IntDType, backend: BackendLike = None, device: BackendLike = None, copy: bool | None = None
) -> IntTensor: ...
@overload
def asarray(
    obj: Any, /, *, dtype: BoolDType, backend: BackendLike = None, device: BackendLike = None, copy: bool | None = None
) -> BoolTensor: ...
@overload
def asarray(
    obj: Any, /, *, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None, copy: bool | None = None
) -> Tensor: ...
@plain_signature
def asarray(
    obj: Any,
    /,
    *surplus: Never,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    copy: bool | None = None,
    **wrong: Never,
) -> Any:
    """A tensor of ``obj``: nested lists of numbers, a NumPy array, anything with ``__array__``, or a tensor.

    Python floats become the default float dtype, complex numbers its complex dtype, and Python ints int64. NumPy
    arrays and scalars and tensors keep their dtype (longdouble becomes float64); several in a list are promoted, and
    Python numbers among them are weakly typed, as in operations. Host data are copied. A tensor on another level of the
    same backend is lifted; one on another backend raises :class:`BackendMismatchError` (use ``to``). ``device`` is the
    Array API's name for ``backend``. Raises :class:`DTypeError` for strings, objects and a quantized ``dtype``
    (:func:`quantize` makes a quantized tensor), :class:`ArgumentError` for ragged lists, numbers that the dtype does
    not hold, and ``copy=False`` of anything but a tensor of that dtype.

        >>> asarray([[1, 2], [3, 4]], dtype="float32", backend="numpy")
        Tensor([[1., 2.],
                [3., 4.]], dtype=float32, backend=numpy)
    """
    if surplus or wrong:
        refuse(asarray, surplus, wrong)
    where = given_backend(backend, device)
    if is_tensor(obj):
        moved = obj if where is None else _on_level("asarray", obj, as_backend(where))
        out_dtype = None if dtype is None else dtype_of(dtype, moved.backend)
        if out_dtype is None or moved.dtype is out_dtype:
            return moved
        if copy is False:
            raise ArgumentError(f"asarray: copy=False, but a cast to {out_dtype} copies {describe((obj,))}")
        return cast(kind_operand("asarray", moved, "FCIB"), plain_dtype("asarray", out_dtype))
    target = as_backend(where)
    out_dtype = None if dtype is None else dtype_of(dtype, target)
    if copy is False:
        raise ArgumentError("asarray: copy=False, but tensors never share memory that others may change")
    if out_dtype is not None:
        plain_dtype("asarray", out_dtype)
    array = host_array(obj, out_dtype, default_float(target))
    if array.dtype.kind == "c":
        complex_numbers.check_supported("asarray", target, as_dtype(array.dtype))
    if out_dtype is not None and array.dtype != out_dtype.dtype and not _holds(target, array):
        with np.errstate(all="ignore"):
            array = nearest(array, out_dtype.dtype)
    try:
        tensor = wrap(target.from_numpy(array), target)
    except Unsupported as cause:
        if out_dtype is not None or array.dtype.kind != "f":
            raise
        raise Unsupported(f"asarray: {cause}; dtype={target.float_dtype.name!r} converts the array") from cause
    return tensor if out_dtype is None else cast(tensor, out_dtype)


def _holds(backend: AnyBackend, array: Any) -> bool:
    """Whether a backend has tensors of an array's dtype, so that it can cast them."""
    return backend.capabilities.supports(as_dtype(array.dtype), "storage")


def _on_level(name: str, x: Any, target: AnyBackend) -> Any:
    """``x`` on another level over the same backend; raises for another backend, which needs an explicit ``to``."""
    if innermost(x.backend) != innermost(target):
        raise BackendMismatchError(
            f"{name}: the tensor lives on another backend: {describe((x,))}. Nothing is moved implicitly: write "
            f"bb.to(x, {target.spec!r})"
        )
    return to(x, target)


def host_array(obj: Any, dtype: DType | None, default: DType) -> Any:
    """``obj`` as a NumPy array of a dtype that backburn has.

    Python numbers are converted to ``dtype`` if it can hold them. Without it, arrays, NumPy scalars and tensors keep
    their dtype, several are promoted, and Python numbers among them are weakly typed, as in operations. Python floats
    alone have the dtype ``default``, integers int64 (uint64 beyond it).
    """
    natural: DType | None = None
    try:
        dtypes: set[Any] = set()
        numbers: set[type] = set()
        data = obj if obj.__class__ in _NUMBERS or obj.__class__ is np.ndarray else _collect(obj, dtypes, numbers)
        natural = _promote_all(dtypes, numbers, default) if dtypes and dtype is None else None
        array = np.asarray(data, natural and natural.dtype)
        names = {d.name if d.kind in "VO" else "" for d in dtypes}
        if "bfloat16" in names and dtype is not None and names <= {"", "bfloat16"}:  # NumPy does not promote it
            array = array.astype(np.float64)
    except BackburnError:
        raise
    except OverflowError as cause:  # a Python integer among arrays
        raise ArgumentError(f"asarray: {natural}, the dtype of the arrays, does not hold a number ({cause})") from cause
    except ValueError as cause:
        why = "their lengths or depths differ" if "inhomogeneous" in str(cause) else cause
        raise ArgumentError(f"asarray: the nested lists do not form an array ({why})") from cause
    except (TypeError, RuntimeError) as cause:  # raised by another library's __array__
        what = f"asarray: {type(obj).__name__} does not become a NumPy array ({cause}){_bfloat16_hint(obj, cause)}"
        raise ArgumentError(what) from cause
    if array.dtype.kind == "O" and _all_integers(array):
        raise ArgumentError("asarray: an integer is beyond the 64 bits of int64 and uint64; float(n) makes it a float")
    kinds = {d.kind for d in dtypes}
    if array.dtype.kind == "f" and (kinds or numbers) and float not in numbers and kinds.isdisjoint("fV"):
        array = _exact_integers(data, array, dtype)
    given = hasattr(obj, "dtype") or hasattr(obj, "__array__")
    if array.dtype.kind not in "fciub" and array.dtype.name != "bfloat16":
        what = f"data of type {array.dtype}" if given or array.dtype.kind != "O" else _describe_object(obj)
        raise DTypeError(f"asarray: {what} have no dtype here; use numbers or booleans")
    if natural is not None or (given and array.dtype.type not in (np.longdouble, np.clongdouble)):
        return array
    return _numbers_array(array, dtype, float64 if given else default)


def _numbers_array(array: Any, dtype: DType | None, default: DType) -> Any:
    """An array of Python numbers in ``dtype``, which must hold them; without it, floats have the dtype ``default``."""
    if array.dtype.kind == "c" or (dtype is not None and dtype.kind == "complex"):
        wanted = complex_of(default) if dtype is None else dtype
        if wanted.kind != "complex":
            raise DTypeError(f"asarray: {wanted} holds no complex numbers; a dtype such as {complex_of(default)} does")
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(wanted.dtype, copy=False)
    if array.dtype.kind == "f" and dtype is not None and not dtype.is_floating:
        if dtype.kind == "int":
            limits = np.iinfo(dtype.dtype)
            wrong = array[~((array > limits.min - 1.0) & (array < limits.max + 1.0))]
            if wrong.size:
                raise ArgumentError(f"asarray: {dtype} does not hold {wrong[0]}")
        return array.astype(np.float64, copy=False)
    if array.dtype.kind == "f":  # an empty list too
        with np.errstate(over="ignore", under="ignore"):
            return nearest(array, (dtype or default).dtype)
    if dtype is not None and dtype.kind == "int":
        fitted = array.astype(dtype.dtype)
        if (fitted != array).any():
            raise ArgumentError(f"asarray: {dtype} does not hold integers from {array.min()} to {array.max()}")
        return fitted
    return array


def _exact_integers(data: Any, rounded: Any, dtype: DType | None) -> Any:
    """Integers in an exact dtype, which NumPy converted to floats because some need uint64 and others int64."""
    if dtype is not None and dtype.kind != "int":
        return rounded
    exact = np.asarray(data, object)
    if not exact.size or exact.min() >= 0:
        return exact.astype(np.uint64)
    if exact.max() < 1 << 63:
        return exact.astype(np.int64)
    if dtype is None:
        raise ArgumentError("asarray: the integers fit neither into int64 nor into uint64; dtype='float64' rounds them")
    raise ArgumentError(f"asarray: {dtype} does not hold integers from {exact.min()} to {exact.max()}")


_NUMBERS = frozenset((float, int, bool, complex))


def _collect(obj: Any, dtypes: set[Any], numbers: set[type]) -> Any:
    """Nested lists with host arrays for tensors; collects the dtypes of arrays and the types of Python numbers."""
    if isinstance(obj, (list, tuple)):
        classes = set(map(type, obj))
        if classes <= _NUMBERS:
            numbers |= classes
            return obj
        if all(issubclass(c, np.generic) for c in classes):
            dtypes.update(map(np.dtype, classes))
            return obj
        return [_collect(o, dtypes, numbers) for o in obj]
    if obj.__class__ in _NUMBERS:
        numbers.add(obj.__class__)
    elif is_tensor(obj):
        if has_history(obj):
            raise ArgumentError("asarray: a list of tracked tensors would lose their history; bb.stack(...) keeps it")
        obj = to_host(obj)
        dtypes.add(obj.dtype)
    elif isinstance(obj, np.ma.MaskedArray):
        raise ArgumentError("asarray: a tensor has no mask, and this array has one: write array.filled(value)")
    else:
        is_array = hasattr(obj, "dtype") or hasattr(obj, "__array__")
        obj = np.asarray(obj)
        number = {"f": float, "i": int, "u": int, "b": bool, "c": complex}.get(obj.dtype.kind)
        if is_array or number is None:
            dtypes.add(obj.dtype)
        else:  # other sequences of Python numbers
            numbers.add(number)
    return obj


def _promote_all(dtypes: set[Any], numbers: set[type], default: DType) -> DType | None:
    """The common dtype of arrays and of Python numbers of these types; None where a dtype is unsupported."""
    if any(d.kind not in "fciub" and d.name != "bfloat16" for d in dtypes):
        return None
    long = {np.longdouble: float64, np.clongdouble: complex128}
    found = [long.get(d.type) or as_dtype(d) for d in dtypes]
    found.sort(
        key=lambda d: ("complex", "float", "int", "bool").index(d.kind)
    )  # after a float, signed and unsigned integers promote
    try:
        result = functools.reduce(promote, found)
    except DTypeError as error:
        raise DTypeError(f"asarray: {error}") from None
    for number in numbers:
        result = promote_scalar(result, number(), default)
    return result


def _bfloat16_hint(obj: Any, cause: Exception) -> str:
    """Advice for bfloat16 data of another library, a dtype that NumPy lacks; empty for other data."""
    if "bfloat16" not in f"{cause} {getattr(obj, 'dtype', '')}".lower():
        return ""
    return "; NumPy has no bfloat16: cast it to float32 there, and here with astype('bfloat16')"


def _describe_object(obj: Any) -> str:
    """A description of an object that is not an array, for error messages."""
    inside = obj
    while isinstance(inside, list | tuple) and inside:
        inside = next((x for x in inside if not isinstance(x, int | float | np.generic)), inside[0])
    return f"objects of type {type(inside).__name__}"


def _all_integers(array: Any) -> bool:
    """Whether an array of objects holds Python integers and nothing else, so that one of them was too large."""
    return bool(array.size) and all(isinstance(x, int) for x in array.reshape(-1))


def quantized_parts(x: Any) -> tuple[Any, Any, Any]:
    """The stored values, steps, and zero points or None of a quantized tensor, as host arrays."""
    while inner_of(x.backend) is not None:
        x = x.inner()
    return x.backend.quantized_parts(x._primitive)


def quantized_from_parts(
    values: Any, scale: Any, zero: Any, dtype: Any, shape: tuple[int, ...], backend: BackendLike = None
) -> Any:
    """The quantized tensor whose :func:`quantized_parts` are given, on ``backend``."""
    target = as_backend(backend)
    k = innermost(target)
    made = wrap(k.quantized_from_parts(values, scale, zero, dtype=dtype, shape=tuple(shape)), k)
    return to(made, target)


def to_host(x: Any) -> Any:
    """The values of a tensor as a new NumPy array, without history."""
    try:
        return x.backend.to_numpy(x._primitive)
    except MemoryError as error:
        raise_out_of_memory("numpy", f" Operand: {describe((x,))}.", "cpu", error)


def host_view(x: Any) -> Any:
    """The memory of a tensor as a read-only NumPy array; None if it is not an array, or if a decorator observes reads.

    Nothing writes to a primitive that is referenced elsewhere, and the view references it.
    """
    k, value = x._backend, x._primitive
    while is_autodiff(k):
        value, k = getattr(k, INNER[x._dtype.kind])(value), k.inner_backend
    if isinstance(k, Wrapper) or inner_of(k) is not None or value.__class__ is not np.ndarray:
        return None
    view = value.view()
    view.flags.writeable = False
    return view


def host_text(x: Any, edge: int | None, options: Mapping[str, Any]) -> str:
    """The values of a tensor as NumPy prints them; with ``edge``, only that many at the ends of each axis."""
    return np.array2string(
        to_host(x),
        separator=", ",
        prefix="Tensor(",
        precision=options.get("precision"),
        suppress_small=options.get("suppress"),
        max_line_width=options.get("linewidth"),
        threshold=sys.maxsize if edge is None else 0,
        edgeitems=edge,
    )


def as_bits(values: Any) -> Any:
    """A host vector of booleans as bits, eight to a byte, the first in the lowest bit."""
    return np.packbits(values, bitorder="little")


#: Host copies of tensors whose addresses were requested, by the tensors' ``id``, kept as long as the tensors live.
_ADDRESSED: dict[int, Any] = {}


def addresses(x: Any) -> Any:
    """NumPy's ``ndarray.ctypes`` of C-ordered host memory with the values of a tensor, valid while the tensor lives."""
    view = host_view(x)
    if view is not None and view.flags.c_contiguous:
        return view.ctypes
    if id(x) not in _ADDRESSED:
        _ADDRESSED[id(x)] = np.ascontiguousarray(to_host(x))
        weakref.finalize(x, _ADDRESSED.pop, id(x), None)
    return _ADDRESSED[id(x)].ctypes


def numpy_dtype(dtype: DType) -> Any:
    """NumPy's dtype of the values that a tensor has on the host."""
    return np.dtype(np.float32) if dtype.kind == "quantized" else dtype.dtype


def host_counts(name: str, values: Any) -> Any:
    """Non-negative integers, given as one, several, or an int tensor, as a one-dimensional host array."""
    try:
        array = np.atleast_1d(to_host(values) if is_tensor(values) else np.asarray(values))
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    if array.size == 0 or array.dtype.kind in "iu":
        array = array.astype(np.int64)  # NumPy rejects unsigned repeat counts
    if array.dtype.kind != "i" or array.ndim != 1 or (array < 0).any():
        raise ArgumentError(f"{name}: one integer or several of 0 or more are needed, not {values!r}")
    if (total := array.sum(dtype=np.float64)) >= 2.0**63:
        raise ArgumentError(f"{name}: {total:.3g} entries are more than any memory has")
    return array


def first_out_of_range(indices: Any, length: int) -> int | None:
    """The first of an int tensor's elements that is not an index of ``length`` elements; None if all are.

    Inside ``vmap``, the elements of all examples.
    """
    array = host_values(indices.backend, indices.primitive)
    wrong = array[(array < -length) | (array >= length)]
    return int(wrong[0]) if wrong.size else None


def has_negative(x: Any) -> bool:
    """Whether an element of a tensor is negative; inside ``vmap``, one of any example."""
    return bool((host_values(x.backend, x.primitive) < 0).any())


def largest_value(x: Any) -> float | None:
    """The largest element of a tensor; None where it is not read, as in :func:`any_of`."""
    if RECORDING_STEP.get() is not None or innermost(x.backend).device != "cpu":
        return None
    return float(host_values(x.backend, x.primitive).max())


def any_of(x: Any, wrong: Callable[[Any], Any]) -> bool:
    """Whether ``wrong``, a function of a host array, holds for an element of ``x``; inside ``vmap``, of any example.

    False where reading would wait for a device, or where there are no values: while a step is recorded, and on a
    backend of shapes only. There the result shows the error, as the calling function documents.
    """
    if RECORDING_STEP.get() is not None or innermost(x.backend).device != "cpu":
        return False
    values = host_values(x.backend, x.primitive)
    with np.errstate(all="ignore"):
        return bool(np.any(wrong(values)))


def has_nan(x: Any) -> bool:
    """Whether an element of a float tensor is NaN, if it can be read (:func:`any_of`)."""
    return any_of(x, np.isnan)


def has_equal_values(x: Any, tolerance: float) -> bool:
    """Whether two elements along the last axis differ by at most ``tolerance`` times the largest, if readable."""

    def close(values: Any) -> Any:
        wide = values.astype(np.float64)
        size = np.abs(wide).max(-1, keepdims=True)
        return np.diff(np.sort(wide, -1), axis=-1) <= tolerance * size

    return x.shape[-1] > 1 and bool(x.size) and any_of(x, close)


def places(numbers: Any) -> Any:
    """``i`` repeated ``numbers[i]`` times, for each ``i`` from 0, as an int64 host array."""
    return np.repeat(np.arange(len(numbers), dtype=np.int64), numbers)


def from_dlpack(x: Any, /, *, device: BackendLike = None, copy: bool | None = None) -> Tensor:
    """A tensor from any object with the DLPack protocol: a copy of its data, through the host.

    A tensor becomes a constant, on the same backend unless ``device`` is given. Raises :class:`DTypeError` for data of
    an unsupported dtype, :class:`ExportError` for ``copy=False`` where a copy is needed, and :class:`ArgumentError` for
    an object that cannot be exported to the host.

        >>> import backburn as bb
        >>> import numpy as np
        >>> bb.from_dlpack(np.arange(3)).tolist()
        [0, 1, 2]
    """
    if is_tensor(x):
        target = x.backend if device is None else as_backend(device)
        if copy is False and innermost(target) != innermost(x.backend):
            raise ExportError(f"from_dlpack: copy=False, but a copy moves {describe((x,))} to {target.spec!r}")
        return to(constant(x) if x.dtype.has_gradient else x, target)
    if copy is False:
        raise ExportError("from_dlpack: copy=False, but tensors never share memory that others may change")
    try:
        array = np.from_dlpack(x)
    except (AttributeError, TypeError, RuntimeError, BufferError) as cause:
        what = f"from_dlpack: {type(x).__name__} did not export its data to the host ({cause})"
        raise ArgumentError(what + _bfloat16_hint(x, cause)) from cause
    return asarray(array, device=device)


def check_stream(name: str, stream: Any) -> None:
    """Raise :class:`ArgumentError` for a ``stream``: tensors have none."""
    if stream is not None:
        raise ArgumentError(f"{name}: a tensor has no streams; leave stream out, or give None, not {stream!r}")


def to_array(x: Any, dtype: Any, copy: bool | None) -> Any:
    """The values of a tensor as a new host array, for NumPy's functions."""
    if copy is False:
        raise ArgumentError("__array__: a tensor's memory is not shared with NumPy; copy=False cannot be met")
    array = to_host(x)
    if dtype is not None and array.dtype.kind == "c" and np.dtype(dtype).kind in "fiub":
        raise DTypeError(
            f"__array__: {np.dtype(dtype)} holds no complex numbers: bb.real(x), bb.imag(x) and bb.abs(x) are real. "
            f"Operand: {describe((x,))}"
        )
    return array if dtype is None else array.astype(dtype)


def to_dlpack(x: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """The values of a tensor as a DLPack capsule, without history: a copy, or for ``copy=False`` its read-only memory.

    Only consumers of DLPack 1.0 and newer know that memory may be read-only.
    """
    if dl_device is not None and tuple(dl_device) != x.__dlpack_device__():
        raise ExportError(f"__dlpack__: tensors are exported to host memory, (1, 0), and not to {dl_device}")
    view = host_view(x) if copy is False and max_version is not None and max_version[0] >= 1 else None
    if copy is False and view is None:
        raise ExportError(
            "__dlpack__: copy=False shares memory of the host, read-only, with consumers of DLPack 1.0 and newer: this "
            f"is {describe((x,))}, for the version {max_version}. copy=None makes a copy"
        )
    try:
        if view is not None:
            return view.__dlpack__(max_version=max_version)
        return to_host(x).__dlpack__(max_version=max_version)
    except BufferError as cause:
        raise DTypeError(f"__dlpack__: {x.dtype} cannot be exported ({cause}); astype('float32') can") from cause


def fixed_noise(shape: tuple[int, ...], seed: int) -> Any:
    """Deterministic pseudo-random host numbers, between 0.3 and 1 in absolute value."""
    generator = np.random.default_rng(seed)
    return generator.uniform(0.3, 1.0, shape) * generator.choice([-1.0, 1.0], shape)


def to(x: Any, backend: AnyBackend | str) -> Any:
    """``x`` on another backend: lifted or lowered between levels of one backend, moved through the host otherwise.

    Lifting gives a constant. Between autodiff backends over different backends, gradients flow back to the original
    tensor, and ``backward`` returns those of the leaves on both. Raises :class:`ArgumentError` for a tracked tensor
    whose history would be lost, on a level that the other backend does not have: detach it first.

        >>> to(asarray([1.0], backend="numpy"), "autodiff(numpy)")
        Tensor([1.], dtype=float32, backend=autodiff(numpy))
    """
    target = as_backend(backend)
    x = tensor_operand("to", x)
    if x.backend is target or x.backend == target:
        return x
    if levels_between(x.backend, target) is not None:
        return wrap(lift(x, target), target)
    if x.dtype.kind == "quantized":
        return quantized_from_parts(*quantized_parts(x), x.dtype, x.shape, target)
    if x.dtype.kind == "complex":
        complex_numbers.check_supported("to", target, x.dtype)
    primitive, level = transfer(x._primitive, x.backend, target)
    return wrap(lift(wrap(primitive, level), target), target)


def from_inner(x: Any, *, backend: BackendLike = None) -> Any:
    """A tensor of an inner backend as an untracked tensor of the autodiff backend around it.

    ``backend`` is the outer backend; without it the default backend. Raises :class:`ArgumentError` when ``backend``
    does not wrap the tensor's.

        >>> from_inner(asarray([1.0], backend="numpy"), backend="autodiff(numpy)").require_grad().is_tracked
        True
    """
    target = as_backend(backend)
    x = tensor_operand("from_inner", x)
    if levels_between(x.backend, target) is None:
        raise ArgumentError(f"from_inner: {target.spec} does not wrap {x.backend.spec}, where the tensor lives")
    return to(x, target)


def first_overlap(arrays: Mapping[int, Any]) -> tuple[int, int] | None:
    """The keys of two host arrays that share memory, the smaller one first; None if there are none."""
    if all(x.base is None for x in arrays.values()):
        return None  # each array owns its memory
    active: list[tuple[int, int]] = []
    for (start, end), key in sorted((np.lib.array_utils.byte_bounds(x), key) for key, x in arrays.items() if x.size):
        active = [entry for entry in active if entry[0] > start]
        for _, earlier in active:
            if np.shares_memory(arrays[earlier], arrays[key]):
                return min(earlier, key), max(earlier, key)
        active.append((end, key))
    return None
