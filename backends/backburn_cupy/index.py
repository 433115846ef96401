"""CuPy: indexing, gather and scatter.

CuPy wraps an index out of range and accesses another element. The kernels here skip and report it: see
:mod:`backburn_cupy.faults`. They see a tensor as (before, length, after), with the indexed axis in the middle.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy
import numpy as np

from backburn.base.errors import ArgumentError
from backburn.ops.table import shape_rule
from backburn_cupy.creation import NUMBERS, cast, cast_scalar, check_scalar
from backburn_cupy.faults import NUMBER, REPORT
from backburn_cupy.reduce import is_half

Array = Any
Shape = tuple[int, ...]


def _check(operation: str, *operands: Any, **attributes: Any) -> None:
    """Apply an operation's shape rule, where CuPy or a kernel would accept more."""
    shape_rule(operation)(*(getattr(x, "shape", None) for x in operands), **attributes)


# ---- ranges ----


def slice(k: Any, x: Array, /, key: Any) -> Array:
    return x[(*key, ...)]


def slice_assign(k: Any, x: Array, value: Any, /, key: Any) -> Array:
    _check("slice_assign", x, value, key=key)
    out = x.copy(order="C")
    out[(*key, ...)] = cast_scalar(value, x.dtype) if value.__class__ in NUMBERS else value
    return out


def nonzero(k: Any, x: Array, /) -> Array:
    x = cupy.not_equal(x, 0) if x.dtype.kind == "c" else x
    found = cupy.argwhere(x) if x.ndim else cupy.argwhere(x.reshape(1))[:, :0]
    k.faults.check()  # computing the number of elements has synchronized
    return found


# ---- the kernels ----

#: An element's position: ``i`` runs over the indices in row-major order. 32-bit divisions are several times faster.
_WHERE = """
  typedef {number} N;
  const N inner = static_cast<N>(after), column = static_cast<N>(i) % inner;
  const N line = static_cast<N>(i) / (inner * static_cast<N>(count));
  long long at = static_cast<long long>(index);
  if (at < -length || at >= length) {{
    report(&fault[0], kind, at, length);
    {outside}
  }} else {{
    if (at < 0) at += length;
    const long long place = (static_cast<long long>(line) * length + at) * static_cast<long long>(inner) + column;
    {inside}
  }}
"""
_SIZES = "int64 length, int64 count, int64 after, int64 kind"
_ADD = {
    "float32": "atomicAdd(&out[place], x);",
    "float64": "atomicAdd(&out[place], x);",
    "int64": "atomicAdd(reinterpret_cast<unsigned long long*>(&out[place]), static_cast<unsigned long long>(x));",
    "int32": "atomicAdd(reinterpret_cast<unsigned int*>(&out[place]), static_cast<unsigned int>(x));",
}


@functools.cache
def _kernel(name: str, operands: str, results: str, inside: str, outside: str, long: bool) -> Any:
    body = _WHERE.format(number="unsigned long long" if long else "unsigned int", inside=inside, outside=outside)
    return cupy.ElementwiseKernel(
        f"I index, {operands}, {_SIZES}", f"{results}, raw int64 fault", body, f"backburn_{name}_{64 if long else 32}",
        preamble=REPORT,
    )  # fmt: skip


def _launch(
    k: Any, operation: str, kernel: tuple[str, str, str, str, str], index: Array, operand: Any, length: int, out: Array
) -> None:
    """Run ``kernel`` over ``index``, of shape (before, count, after)."""
    if index.size:
        _, count, after = index.shape
        function = _kernel(*kernel, index.size >= 1 << 31)
        function(index, operand, length, count, after, NUMBER[operation], out, k.faults.record())


_READ = ("read", "raw T x", "T out", "out = x[place];", "out = T();")
_PLACE = ("place", "int64 nothing", "int64 out", "out = place;", "out = -1;")


def _around_axis(shape: Shape, axis: int) -> Shape:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _contiguous(x: Array) -> Array:
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


def _broadcast_indices(indices: Array, shape: Shape, axis: int) -> Array:
    """Indices (of any shape) of entries along ``axis``, broadcast to (before, count, after)."""
    before, _, after = _around_axis(shape, axis)
    return cupy.broadcast_to(indices.reshape(1, -1, 1), (before, indices.size, after))


# ---- reading ----


def take_along_axis(k: Any, x: Array, indices: Array, /, axis: int) -> Array:
    _check("take_along_axis", x, indices, axis=axis)
    out = cupy.ndarray(indices.shape, x.dtype)
    index = indices.reshape(_around_axis(indices.shape, axis))
    _launch(k, "gather", _READ, index, _contiguous(x), x.shape[axis], out.reshape(index.shape))
    return out


def take(k: Any, x: Array, indices: Array, /, axis: int) -> Array:
    out = cupy.ndarray((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    index = _broadcast_indices(indices, x.shape, axis)
    _launch(k, "take", _READ, index, _contiguous(x), x.shape[axis], out.reshape(index.shape))
    return out


# ---- writing ----


def scatter(k: Any, x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
    _check("scatter", x, indices, values, axis=axis)
    write = {"assign": _assign, "add": _add}.get(mode)
    if write is None:
        raise ArgumentError(f"scatter: the mode is 'assign' or 'add', not {mode!r}")
    return write(k, "scatter", x, indices.reshape(_around_axis(indices.shape, axis)), values, axis)


def index_add(k: Any, x: Array, indices: Array, values: Any, /, axis: int) -> Array:
    _check("index_add", x, indices, values, axis=axis)
    return _add(k, "index_add", x, _broadcast_indices(indices, x.shape, axis), values, axis)


def _values(values: Any, index: Array, dtype: Any) -> Array:
    """The values to write, in the shape of ``index``; a scalar is broadcast."""
    if isinstance(values, cupy.ndarray):
        return cast(values, dtype).reshape(index.shape)
    number = cupy.ndarray((), dtype)
    number.fill(np.asarray(check_scalar(values, dtype)).astype(dtype).item())  # a host array could not be recorded
    return cupy.broadcast_to(number, index.shape)


def _add(k: Any, operation: str, x: Array, index: Array, values: Any, axis: int) -> Array:
    if x.dtype.kind == "c":  # no atomic instruction adds them
        real, imag = (getattr(values, part) for part in ("real", "imag"))
        return k.complex(_add(k, operation, x.real, index, real, axis), _add(k, operation, x.imag, index, imag, axis))
    wide = _sum_dtype(x)
    out = x.astype(wide, order="C", copy=True)
    new = _values(values, index, wide)
    if wide.kind == "f" and k.deterministic:
        _combine(k, operation, "add", out, index, new, axis)
    else:
        kernel = (f"add_{wide.name}", "T x", "raw T out", _ADD[wide.name.removeprefix("u")], "")
        _launch(k, operation, kernel, index, new, out.shape[axis], out)
    return cast(out, x.dtype)


def _sum_dtype(x: Array) -> np.dtype[Any]:
    """The dtype to accumulate in: one with atomic additions, at least as wide as that of ``x``."""
    if x.dtype.kind in "iu":
        return np.dtype(f"{x.dtype.kind}{8 if x.dtype.itemsize == 8 else 4}")
    return np.dtype(np.float32) if is_half(x) else x.dtype


def _places(k: Any, operation: str, index: Array, length: int) -> Array:
    """The flat position for each index, -1 for one out of range."""
    out = cupy.ndarray(index.shape, np.int64)
    _launch(k, operation, _PLACE, index, 0, length, out)
    return out.reshape(-1)


_last = cupy.ElementwiseKernel(
    "int64 place", "raw int64 last", "if (place >= 0) atomicMax(&last[place], static_cast<long long>(i));",
    "backburn_last",
)  # fmt: skip
_write = cupy.ElementwiseKernel(
    "int64 place, T value, raw int64 last", "raw T out",
    "if (place >= 0 && last[place] == static_cast<long long>(i)) out[place] = value;",
    "backburn_write",
)  # fmt: skip


def _assign(k: Any, operation: str, x: Array, index: Array, values: Any, axis: int) -> Array:
    """``x`` with values put at ``index``; the last of duplicates wins, whatever the order of threads."""
    out = x.copy(order="C")
    if index.size:
        places = _places(k, operation, index, x.shape[axis])
        last = cupy.full(out.shape, -1, np.int64)
        _last(places, last)
        _write(places, _values(values, index, x.dtype).reshape(-1), last, out)
    return out


# ---- ordered reductions of duplicates ----

_COMBINE = {
    "add": "total += value",
    "mul": "total *= value",
    "min": "total = total != total || total <= value ? total : value",
    "max": "total = total != total || total >= value ? total : value",
}
#: The thread of a position's first value processes all of them, in the order of the indices.
_RUN = """
  if (place >= 0 && (i == 0 || places[i - 1] != place)) {{
    T total = out[place];
    for (long long j = i; j < size && places[j] == place; ++j) {{
      const T value = values[order[j]];
      {step};
    }}
    out[place] = total;
  }}
"""
_runs = {
    mode: cupy.ElementwiseKernel(
        "int64 place, raw int64 places, raw int64 order, raw T values, int64 size",
        "raw T out",
        _RUN.format(step=step),
        f"backburn_combine_{mode}",
    )
    for mode, step in _COMBINE.items()
}


def _combine(k: Any, operation: str, mode: str, out: Array, index: Array, values: Array, axis: int) -> None:
    """Combine each element of ``out`` with its values, in place."""
    if index.size:
        places = _places(k, operation, index, out.shape[axis])
        order = cupy.argsort(places, 0, "stable").astype(np.int64, copy=False)
        sorted_places = cupy.take(places, order)
        flat = _contiguous(values).reshape(-1)
        _runs[mode](sorted_places, sorted_places, order, flat, order.size, out)


def scatter_reduce(k: Any, x: Array, indices: Array, values: Array, /, axis: int, mode: str) -> Array:
    if mode not in ("mul", "min", "max"):
        raise ArgumentError(f"scatter_reduce: the mode is one of mul, min, max, not {mode!r}")
    _check("scatter_reduce", x, indices, values, axis=axis)
    out = x.astype(_sum_dtype(x), order="C", copy=True)
    index = indices.reshape(_around_axis(indices.shape, axis))
    _combine(k, "scatter", mode, out, index, _values(values, index, out.dtype), axis)
    return cast(out, x.dtype)
