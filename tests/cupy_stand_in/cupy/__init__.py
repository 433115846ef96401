"""A stand-in for CuPy over NumPy, for tests on machines without a GPU.

It offers what ``surface.json`` records of the real CuPy and nothing else, with the recorded signatures and loops. It is
no friendlier than the real one: arrays are not converted to NumPy's or mixed with them, indices out of range wrap
around, new memory holds rubbish, and what CuPy refuses is refused. User-defined kernels are compiled by g++.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import compiled

sys.path.pop(0)

SURFACE = json.loads((Path(__file__).parents[1] / "surface.json").read_text())
__version__ = SURFACE["version"]
dtype = np.dtype
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


# ---- recording ----


class Namespace:
    """A module of functions."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Tape:
    """What is being recorded: calls that write again what they have written."""

    calls: list[Any] | None = None

    @classmethod
    def add(cls, compute: Any) -> None:
        """Remember a call, if something is being recorded."""
        if cls.calls is not None:
            cls.calls.append(compute)

    @classmethod
    def made(cls, compute: Any) -> Any:
        """What ``compute`` makes; a replay writes it anew into the same memory. Views need not be written."""
        result = compute()
        if cls.calls is not None:
            parts = result if isinstance(result, tuple) else (result,)

            def again() -> None:
                values = compute()
                for held, value in zip(parts, values if isinstance(values, tuple) else (values,), strict=True):
                    if held.flags.writeable and not np.may_share_memory(held, value):
                        np.copyto(held, value)

            cls.calls.append(again)
        return result

    @classmethod
    def forbid(cls, what: str) -> None:
        """Refuse what waits for the device."""
        if cls.calls is not None:
            raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")


# ---- arrays ----


class Pointer:
    """A device pointer; ``mem`` is the memory that it points into."""

    def __init__(self, ptr: int, base: int) -> None:
        self.ptr = ptr
        self.mem = Namespace(ptr=base)


def base_of(array: Any) -> int:
    """The address of the memory that an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return int(array.ctypes.data)


class ndarray:  # noqa: N801 - CuPy's name
    """An array on the one device that there is."""

    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, host: Any) -> None:
        self._host = host

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct one explicitly."
        )

    __array_function__ = __array__

    def __repr__(self) -> str:
        return repr(self._host)

    def __len__(self) -> int:
        return len(self._host)

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: self._host.flags)
    real = property(lambda self: ndarray(self._host.real))
    imag = property(lambda self: ndarray(self._host.imag))
    data = property(lambda self: Pointer(self._host.ctypes.data, base_of(self._host)))
    device = property(lambda self: cuda.Device(0))

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        Tape.forbid("D2H transfers")
        cuda.READS.append(self.shape)
        return np.array(self._host, order=order, copy=True)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        wanted = np.dtype(dtype)
        if BFLOAT16 in (wanted, self.dtype) and not {wanted, self.dtype} <= {BFLOAT16, np.dtype(np.float32)}:
            raise TypeError("bfloat16 goes through float32 only, as far as the stand-in knows")
        source = self._host
        with np.errstate(all="ignore"):
            return ndarray(Tape.made(lambda: source.astype(wanted, order=order, copy=copy)))

    def copy(self, order: str = "C") -> ndarray:
        source = self._host
        return ndarray(Tape.made(lambda: source.copy(order=order)))

    def reshape(self, *shape: Any) -> ndarray:
        source = self._host
        return ndarray(Tape.made(lambda: source.reshape(*shape)))

    def transpose(self, *axes: Any) -> ndarray:
        return ndarray(self._host.transpose(*axes))

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self._host.view(dtype))

    def fill(self, value: Any) -> None:
        target = self._host

        def write() -> None:
            with np.errstate(all="ignore"):
                target.fill(value)

        write()
        Tape.add(write)

    def set(self, arr: Any) -> None:
        Tape.forbid("H2D transfers")
        self._host[...] = arr

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
        return ndarray(self._host.diagonal(offset, axis1, axis2))

    def __getitem__(self, key: Any) -> ndarray:
        if isinstance(key, ndarray) and key.dtype.kind == "i":
            source, places = self._host, key._host
            return ndarray(Tape.made(lambda: np.take(source, places, 0, mode="wrap")))
        found = self._host[host_key(key)]
        return ndarray(found if isinstance(found, np.ndarray) else np.asarray(found, self.dtype))

    def __setitem__(self, key: Any, value: Any) -> None:
        target, place, given = self._host, host_key(key), host(value)

        def write() -> None:
            with np.errstate(all="ignore"):
                target[place] = given

        write()
        Tape.add(write)

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("an operator waits for the device or hides a call: write the function")

    __bool__ = __float__ = __int__ = __index__ = __iter__ = __contains__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __lt__ = __gt__ = _refuse


def host_key(key: Any) -> Any:
    """A key of slices, numbers, or one of truth values."""
    if isinstance(key, ndarray):
        assert key.dtype == np.bool_
        Tape.forbid("D2H transfers")
        cuda.READS.append(key.shape)
        return key._host
    for part in key if isinstance(key, tuple) else (key,):
        assert part is Ellipsis or isinstance(part, (slice, int)), f"{type(part).__name__} is no plain key"
    return key


def host(value: Any) -> Any:
    """The NumPy array of an array; a number stays one, and what is NumPy's is refused as CuPy refuses it."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, (list, tuple)):
        return type(value)(host(v) for v in value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def wrapped(result: Any) -> Any:
    """NumPy's result as CuPy's: an array, never a scalar."""
    if isinstance(result, tuple):
        return tuple(wrapped(r) for r in result)
    return ndarray(result if isinstance(result, np.ndarray) else np.asarray(result))


# ---- ufuncs ----


def _remainder(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y)))
    return x - np.floor(x / y) * y


def _floor_divide(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))
    return np.floor(x / y)


def _bfloat16_next(x: Any, y: Any) -> Any:
    return np.nextafter(x.astype(BFLOAT16), y.astype(BFLOAT16))


#: Where CuPy computes something else than NumPy.
OWN = {"remainder": _remainder, "floor_divide": _floor_divide}


class ufunc:  # noqa: N801 - CuPy's name
    """A ufunc with CuPy's loops."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.loops = []
        for loop in SURFACE["ufuncs"][name]:
            ins, _, outs = loop.partition("->")
            if not set(ins + outs) & set("FD"):
                self.loops.append(([letter(c) for c in ins], letter(outs)))

    def __call__(self, *args: Any, out: ndarray | None = None) -> ndarray:
        operands = [host(a) for a in args]
        assert len(operands) == len(self.loops[0][0]), f"{self.__name__}: {len(operands)} operands"
        assert builtins.any(isinstance(a, ndarray) for a in args)
        types, result = self.loop(operands)
        computed = [np.float32 if t == BFLOAT16 or t == np.float16 else t for t in types]
        if self.__name__ == "nextafter":
            computed = types
        function = OWN.get(self.__name__, getattr(np, self.__name__))

        def compute() -> Any:
            arrays = [np.asarray(o).astype(t).astype(c) for o, t, c in zip(operands, types, computed, strict=True)]
            with np.errstate(all="ignore"):
                return np.asarray(function(*arrays)).astype(result)

        if out is None:
            return ndarray(Tape.made(compute))
        assert np.can_cast(result, out.dtype, "same_kind")
        target = out._host

        def write() -> None:
            target[...] = compute()

        write()
        Tape.add(write)
        return out

    def loop(self, operands: list[Any]) -> tuple[list[Any], Any]:
        """The first loop that takes the operands: arrays by safe casting, Python numbers by kind alone."""
        for types, result in self.loops:
            if builtins.all(fits(o, t) for o, t in zip(operands, types, strict=True)):
                for o, t in zip(operands, types, strict=True):
                    if type(o) is int and t.kind in "iu" and not np.iinfo(t).min <= o <= np.iinfo(t).max:
                        raise OverflowError(f"Python integer {o} out of bounds for {t}")
                return types, result
        kinds = ", ".join(str(getattr(o, "dtype", type(o).__name__)) for o in operands)
        raise TypeError(f"Wrong type ({kinds}) of arguments for cupy_{self.__name__}")


def letter(char: str) -> Any:
    """The dtype of a letter; ``E`` is bfloat16."""
    return BFLOAT16 if char == "E" else np.dtype(char)


ORDER = "biufV"


def fits(operand: Any, wanted: Any) -> bool:
    """Whether a loop takes an operand for one of its types."""
    if isinstance(operand, (np.ndarray, np.generic)):
        return bool(np.can_cast(operand.dtype, wanted, "safe"))
    if isinstance(operand, bool):
        return True
    if isinstance(operand, int):
        return bool(wanted.kind in "iufV")
    return isinstance(operand, float) and bool(wanted.kind in "fV")


for _name in SURFACE["ufuncs"]:
    globals()[_name] = ufunc(_name)


# ---- functions ----


def signature_of(name: str) -> inspect.Signature:
    """The signature that the real CuPy has."""
    return inspect.Signature(
        [
            inspect.Parameter(n, inspect._ParameterKind[kind], default=inspect.Parameter.empty if d is None else d)
            for n, kind, d in SURFACE["functions"][name]
        ]
    )


def function(name: str, body: Any) -> Any:
    """``body``, called with arrays of NumPy's, and only as the real one may be called."""
    signature = signature_of(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if name in ("array", "asarray"):
            Tape.forbid("H2D transfers")
        values = {n: host(v) if n != "obj" else v for n, v in given.items()}

        def compute() -> Any:
            with np.errstate(all="ignore"):
                result = body(**values)
            return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)

        # What is empty has no value to be written again.
        return wrapped(compute() if name == "empty" else Tape.made(compute))

    call.__name__ = name
    return call


def rubbish(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    made = np.empty(shape, dtype)
    made.view(np.uint8 if made.ndim else made.dtype)  # new memory holds no zeros
    made.fill(111 if made.dtype.kind in "iufV" else True)
    return made


def array_of(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", **_: Any) -> Any:
    return np.array(obj._host if isinstance(obj, ndarray) else obj, dtype=dtype, copy=True, order=order)


def sums(operation: Any) -> Any:
    def body(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        loops = [np.dtype(c) for c in "?bBhHiIlLqQefd"] + [BFLOAT16]
        assert np.dtype(dtype or a.dtype) in loops
        return operation.reduce(a, axis=axis, dtype=dtype, keepdims=keepdims)

    return body


def truths(operation: Any) -> Any:
    return lambda a, axis=None, out=None, keepdims=False: operation.reduce(a, axis=axis, keepdims=keepdims)


def places(operation: Any) -> Any:
    def body(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        assert a.dtype.kind in "biu", "which of several NaN is found is left to chance"
        return operation(a, axis=axis, keepdims=keepdims).astype("q")

    return body


def running(operation: Any) -> Any:
    def body(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        assert a.size
        return operation.accumulate(a, axis=axis, dtype=dtype)

    return body


def sorted_places(a: Any, axis: int = -1, kind: Any = None) -> Any:
    assert kind in (None, "stable")
    assert a.dtype != BFLOAT16
    return np.argsort(a, axis=axis, kind="stable")


def wrapping_take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    return np.take(a, indices, axis, mode="wrap")


def tiled_arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    return np.arange(start, stop, step, dtype) if stop is not None else np.arange(start, dtype=dtype)


def joined(operation: Any) -> Any:
    def body(tup: Any, axis: int = 0, **_: Any) -> Any:
        assert len({t.dtype for t in tup}) == 1
        return operation(tup, axis=axis)

    return body


BODIES = {
    "all": truths(np.logical_and), "any": truths(np.logical_or), "arange": tiled_arange, "argmax": places(np.argmax),
    "argmin": places(np.argmin), "argsort": sorted_places, "array": array_of, "asarray": lambda a, **k: np.asarray(a),
    "ascontiguousarray": lambda a, dtype=None: np.array(a, order="C", copy=True),
    "broadcast_to": lambda array, shape: np.broadcast_to(array, shape), "concatenate": joined(np.concatenate),
    "cumprod": running(np.multiply), "cumsum": running(np.add), "empty": rubbish,
    "moveaxis": lambda a, source, destination: np.moveaxis(a, source, destination),
    "flip": lambda a, axis=None: np.flip(a, axis), "prod": sums(np.multiply), "stack": joined(np.stack),
    "full": lambda shape, fill_value, dtype=None, order="C": np.full(shape, fill_value, dtype), "sum": sums(np.add),
    "take": wrapping_take, "tril": lambda m, k=0: np.tril(m, k),
    "zeros": lambda shape, dtype=float, order="C": np.zeros(shape, dtype),
}  # fmt: skip
for _name, _body in BODIES.items():
    globals()[_name] = function(_name, _body)


def asarray(a: Any) -> ndarray:
    return ndarray(np.array(a))


def argwhere(a: ndarray) -> ndarray:
    Tape.forbid("D2H transfers")
    cuda.READS.append(a.shape)
    assert a.ndim
    return ndarray(np.argwhere(a._host))


def broadcast_arrays(*args: ndarray) -> list[ndarray]:
    return [ndarray(a) for a in np.broadcast_arrays(*(a._host for a in args))]


def matmul(x: ndarray, y: ndarray) -> ndarray:
    assert x.dtype.kind in "iu", "CuPy's product of floats copies, widens, or fails"
    return ndarray(Tape.made(lambda: np.asarray(np.matmul(x._host, y._host), x.dtype)))


# ---- linear algebra, Fourier transforms ----


def unraised(operation: Any, results: Any) -> Any:
    """``operation``, which for a matrix without a result makes NaN of the shapes in ``results``."""

    def body(a: Any, *args: Any, **options: Any) -> Any:
        assert a.dtype in (np.float32, np.float64)
        try:
            return tuple(operation(a, *args, **options)) if results(a) else operation(a, *args, **options)
        except np.linalg.LinAlgError:
            if results(a):
                return tuple(np.full_like(part, np.nan) for part in operation(np.zeros_like(a), *args, **options))
            return np.full(args[0].shape if args else next(iter(options.values())).shape, np.nan, a.dtype)

    return body


def solved(a: Any, b: Any) -> Any:
    if b.ndim == 1 or a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    return unraised(np.linalg.solve, lambda _: False)(a, b)


linalg = Namespace(
    solve=function("linalg.solve", solved),
    qr=function("linalg.qr", lambda a, mode="reduced": unraised(np.linalg.qr, lambda _: True)(a, mode=mode)),
    svd=function(
        "linalg.svd",
        lambda a, full_matrices=True, compute_uv=True: unraised(np.linalg.svd, lambda _: True)(
            a, full_matrices=full_matrices
        ),
    ),
    eigh=function("linalg.eigh", lambda a, UPLO="L": unraised(np.linalg.eigh, lambda _: True)(a)),
)


def transform(operation: Any) -> Any:
    def body(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        assert a.size
        assert a.dtype.char in "fdFD"
        return operation(a, n, axis)

    return body


fft = Namespace(rfft=function("fft.rfft", transform(np.fft.rfft)), irfft=function("fft.irfft", transform(np.fft.irfft)))
lib = Namespace(
    stride_tricks=Namespace(
        as_strided=function("lib.stride_tricks.as_strided", lambda x, **k: np.lib.stride_tricks.as_strided(x, **k))
    )
)


# ---- kernels ----


class ElementwiseKernel:
    """A user-defined kernel of each element."""

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str = "kernel", reduce_dims: bool = True,
        preamble: str = "",
    ) -> None:  # fmt: skip
        self.ins, self.outs = compiled.parameters(in_params), compiled.parameters(out_params)
        self.body, self.name, self.preamble = operation, name, preamble
        assert name.isidentifier()

    def __call__(self, *args: Any, size: int | None = None) -> Any:
        operands = [host(a) for a in args]
        parts = (self.name, self.ins, self.outs, self.body, self.preamble)
        results = compiled.elementwise(*parts, operands, size)
        again = [*operands[: len(self.ins)], *results]
        Tape.add(lambda: compiled.elementwise(*parts, again, size))
        given = args[len(self.ins) :]
        arrays = tuple(given) or tuple(ndarray(r) for r in results)
        return arrays[0] if len(arrays) == 1 else arrays


class ReductionKernel:
    """A user-defined reduction of one array."""

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
        identity: str | None,
        name: str = "reduce_kernel", reduce_type: str | None = None, reduce_dims: bool = True, preamble: str = "",
    ) -> None:  # fmt: skip
        (self.parameter,), (self.out,) = compiled.parameters(in_params), compiled.parameters(out_params)
        self.name = name
        assert reduce_type is not None
        self.texts = {
            "map": map_expr, "reduce": reduce_expr, "post": post_map_expr, "identity": identity or "",
            "reduce_type": reduce_type, "preamble": preamble,
        }  # fmt: skip

    def __call__(self, x: ndarray, *, axis: tuple[int, ...], keepdims: bool = False) -> ndarray:
        parts, source = (self.name, self.parameter, self.out, self.texts), x._host
        return ndarray(Tape.made(lambda: compiled.reduction(*parts, source, axis, keepdims)))


class RawModule:
    """Kernels in CUDA C++, of which the tests have an emulation: all instances of a dtype are compiled together."""

    def __init__(self, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
        assert options == ("-std=c++17",)
        self.names = name_expressions

    def get_function(self, name: str) -> Any:
        assert name in self.names

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            # A structure of NumPy's is passed by value.
            values = [a if isinstance(a, np.ndarray) and a.dtype.names else host(a) for a in arguments]
            compiled.launch(name, grid, block, values)
            Tape.add(lambda: compiled.launch(name, grid, block, values))

        return launch


# ---- the device ----


class CUDARuntimeError(RuntimeError):
    """An error of CUDA's."""


class OutOfMemoryError(MemoryError):
    """No memory is left on the device."""


class CompileException(Exception):
    """A kernel does not compile."""


class Device:
    """A device by number."""

    def __init__(self, device: int = 0) -> None:
        self.id = device

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 2}

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def synchronize(self) -> None:
        cuda.READS.append("synchronize")


class Graph:
    """What was recorded; launching it does it again."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def launch(self, stream: Any = None) -> None:
        for again in self.calls:
            again()


class Stream:
    """A queue of work, which is done at once here."""

    ptr = 7

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def begin_capture(self, mode: Any = None) -> None:
        assert self.non_blocking
        assert Tape.calls is None
        Tape.calls = []

    def end_capture(self) -> Graph:
        calls, Tape.calls = Tape.calls, None
        assert calls is not None
        return Graph(calls)

    def synchronize(self) -> None:
        Tape.forbid("waits")
        cuda.READS.append("synchronize")


@contextlib.contextmanager
def using_allocator(allocator: Any) -> Any:
    yield


class Pool:
    """The memory that CuPy holds."""

    def malloc(self, size: int) -> Any:
        raise NotImplementedError

    def used_bytes(self) -> int:
        return 3 << 30

    def total_bytes(self) -> int:
        return 4 << 30

    def free_all_blocks(self) -> None:
        return None


def get_default_memory_pool() -> Pool:
    return Pool()


get_default_pinned_memory_pool = get_default_memory_pool


class cuda(Namespace):  # noqa: N801 - a module of CuPy's
    """Devices, streams, the driver."""

    #: Whenever the host waited for the device.
    READS: list[Any] = []  # noqa: RUF012
    Device, Stream, MemoryPool, using_allocator = Device, Stream, Pool, staticmethod(using_allocator)
    get_current_stream = staticmethod(Stream)
    device = Namespace(get_cublas_handle=lambda: 1, get_cusolver_handle=lambda: 2)
    memory = Namespace(OutOfMemoryError=OutOfMemoryError)
    compiler = Namespace(CompileException=CompileException)
    runtime = Namespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1, memGetInfo=lambda: (1 << 30, 8 << 30),
        getDevice=lambda: 0, driverGetVersion=lambda: 12040, runtimeGetVersion=lambda: 12090,
    )  # fmt: skip


def show_config() -> None:
    return None
