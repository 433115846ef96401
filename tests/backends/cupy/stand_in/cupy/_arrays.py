"""Arrays, which are not converted to NumPy's or mixed with them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from cupy._device import cuda
from cupy._recording import Namespace, Tape, root_of

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Pointer:
    """A device pointer; ``mem`` is the memory that it points into."""

    def __init__(self, ptr: int, base: int) -> None:
        self.ptr = ptr
        self.mem = Namespace(ptr=base, pool=Tape.pool if base in Tape.inside else None)


def rubbish(shape: Any, dtype: Any) -> Any:
    """New memory, filled with garbage."""
    made = np.empty(shape, dtype)
    made.fill(111 if made.dtype.kind in "iufcV" else True)
    return made


class ndarray:  # noqa: N801 - CuPy's name
    """An array on the only device."""

    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, given: Any, dtype: Any = float) -> None:
        """Allocate a shape and dtype, as in CuPy; or wrap a NumPy array."""
        self._host = given if isinstance(given, np.ndarray) else Tape.allocated(rubbish(given, dtype))

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
    data = property(lambda self: Pointer(self._host.ctypes.data, root_of(self._host).ctypes.data))
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
            raise TypeError("the stand-in converts bfloat16 only from and to float32")
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

    def view(self, dtype: Any = None) -> ndarray:
        return ndarray(self._host.view() if dtype is None else self._host.view(dtype))

    def fill(self, value: Any) -> None:
        target = self._host
        Tape.writing(target)

        def write() -> None:
            with np.errstate(all="ignore"):
                target.fill(value)

        write()
        Tape.add(write)

    def set(self, arr: Any, stream: Any = None) -> None:
        Tape.forbid("H2D transfers")
        assert arr.dtype == self.dtype
        assert arr.shape == self.shape
        assert self.flags.c_contiguous
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
        if not isinstance(given, np.ndarray):
            known_number(given)
            np.empty((), target.dtype)[()] = given  # warns if it does not fit
        Tape.writing(target)

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
    """A key of slices and numbers, or a bool mask, for NumPy."""
    if isinstance(key, ndarray):
        assert key.dtype == np.bool_
        Tape.forbid("D2H transfers")
        cuda.READS.append(key.shape)
        return key._host
    for part in key if isinstance(key, tuple) else (key,):
        assert part is Ellipsis or isinstance(part, (slice, int)), f"{type(part).__name__} is not a plain key"
    return key


def host(value: Any) -> Any:
    """The NumPy array of an array; numbers are unchanged, and NumPy arrays raise, as in CuPy."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, (list, tuple)):
        return type(value)(host(v) for v in value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def known_number(value: Any) -> None:
    """Raise for objects that CuPy does not accept as numbers: it accepts exactly these classes."""
    if type(value) not in (bool, int, float, complex) and not isinstance(value, np.generic):
        raise TypeError(f"Unsupported type {type(value)}")


def wrapped(result: Any) -> Any:
    """A NumPy result as a CuPy array, never a scalar."""
    if isinstance(result, tuple):
        return tuple(wrapped(r) for r in result)
    return ndarray(result if isinstance(result, np.ndarray) else np.asarray(result))
