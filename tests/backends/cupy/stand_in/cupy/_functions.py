"""Functions with CuPy's signatures."""

from __future__ import annotations

import builtins
import functools
import inspect
from typing import Any

import numpy as np
from cupy._arrays import BFLOAT16, host, ndarray, wrapped
from cupy._device import cuda
from cupy._recording import Namespace, Tape
from cupy._ufuncs import SURFACE


def signature_of(name: str) -> inspect.Signature:
    """The real CuPy's signature."""
    return inspect.Signature(
        [
            inspect.Parameter(n, inspect._ParameterKind[kind], default=inspect.Parameter.empty if d is None else d)
            for n, kind, d in SURFACE["functions"][name]
        ]
    )


def function(name: str, body: Any) -> Any:
    """A function that binds arguments by CuPy's signature and calls ``body`` with NumPy arrays."""
    signature = signature_of(name)

    @functools.cache
    def bound(count: int, *keywords: str) -> dict[str, Any]:
        """The argument of each parameter, for a number of positional arguments and these keywords."""
        return signature.bind(*range(count), **dict(zip(keywords, keywords, strict=True))).arguments

    def call(*args: Any, **kwargs: Any) -> Any:
        every = {**dict(enumerate(args)), **kwargs}
        given = {
            n: tuple(every[p] for p in place) if isinstance(place, tuple) else every[place]
            for n, place in bound(len(args), *kwargs).items()
        }
        if name == "array":
            Tape.forbid("H2D transfers")
        values = {n: host(v) if n != "obj" else v for n, v in given.items()}

        def compute() -> Any:
            with np.errstate(all="ignore"):
                result = body(**values)
            return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)

        if name.startswith("linalg."):
            Tape.refuse("cuSOLVER")
        return wrapped(Tape.made(compute))

    call.__name__ = name
    return call


def array_of(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", **_: Any) -> Any:
    return np.array(obj._host if isinstance(obj, ndarray) else obj, dtype=dtype, copy=True, order=order)


def sums(operation: Any) -> Any:
    def body(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        loops = [np.dtype(c) for c in "?bBhHiIlLqQefdFD"] + [BFLOAT16]
        assert np.dtype(dtype or a.dtype) in loops
        return operation.reduce(a, axis=axis, dtype=dtype, keepdims=keepdims)

    return body


def truths(operation: Any) -> Any:
    return lambda a, axis=None, out=None, keepdims=False: operation.reduce(a, axis=axis, keepdims=keepdims)


def places(operation: Any) -> Any:
    def body(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        assert a.dtype.kind in "biu", "which of several NaN is found is undefined"
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
        if len(tup) > 8 and builtins.sum(t.nbytes for t in tup) < len(tup) << 21:
            Tape.forbid("H2D transfers")  # of the addresses
        return operation(tup, axis=axis)

    return body


BODIES = {
    "all": truths(np.logical_and), "any": truths(np.logical_or), "arange": tiled_arange, "argmax": places(np.argmax),
    "argmin": places(np.argmin), "argsort": sorted_places, "array": array_of,
    "broadcast_to": lambda array, shape: np.broadcast_to(array, shape), "concatenate": joined(np.concatenate),
    "cumprod": running(np.multiply), "cumsum": running(np.add),
    "moveaxis": lambda a, source, destination: np.moveaxis(a, source, destination),
    "flip": lambda a, axis=None: np.flip(a, axis), "prod": sums(np.multiply), "stack": joined(np.stack),
    "full": lambda shape, fill_value, dtype=None, order="C": np.full(shape, fill_value, dtype), "sum": sums(np.add),
    "take": wrapping_take, "tril": lambda m, k=0: np.tril(m, k),
    "zeros": lambda shape, dtype=float, order="C": np.zeros(shape, dtype),
}  # fmt: skip
for _name, _body in BODIES.items():
    globals()[_name] = function(_name, _body)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    assert dtype is None
    return a if a.flags.c_contiguous else a.copy()


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
    """``operation``, which returns NaN instead of raising; ``results`` tells whether it returns a tuple."""

    def body(a: Any, *args: Any, **options: Any) -> Any:
        assert a.dtype.char in "fdFD"
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
    eig=function("linalg.eig", lambda a: unraised(np.linalg.eig, lambda _: True)(a)),
    eigh=function("linalg.eigh", lambda a, UPLO="L": unraised(np.linalg.eigh, lambda _: True)(a)),
)


class Plan:
    """A cuFFT plan for a transform; it owns memory."""


#: The cached plans, least recently used first.
PLANS: dict[Any, Any] = {}


def transform(operation: Any) -> Any:
    def body(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        assert a.size
        assert a.dtype.char in "fdFD"
        size = a.shape[axis]
        key = (n or size, {"f": 42, "d": 106, "F": 44, "D": 108}[a.dtype.char], a.size // size, None)
        assert key in PLANS or Tape.calls is None, "cuFFT may crash"
        PLANS[key] = PLANS.pop(key, None) or Namespace(plan=Plan())
        if len(PLANS) > 16:
            del PLANS[next(iter(PLANS))]
        return operation(a, n, axis)

    return body


fft = Namespace(
    rfft=function("fft.rfft", transform(np.fft.rfft)), irfft=function("fft.irfft", transform(np.fft.irfft)),
    config=Namespace(get_plan_cache=lambda: list(PLANS.items())),
)  # fmt: skip
lib = Namespace(
    stride_tricks=Namespace(
        as_strided=function("lib.stride_tricks.as_strided", lambda x, **k: np.lib.stride_tricks.as_strided(x, **k))
    )
)
