"""Element-wise kernels on arrays that broadcast or are parts of larger ones, in one call without copies.

``runs.c`` finds the runs: parts of the arrays in which each is contiguous or a single number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy import ndarray

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.machine_code.kernels import function_code
from backburn_numpy.runtime.memory import empty
from backburn_numpy.runtime.threads import available

Array = Any

#: float64 represents all integers up to this.
LARGEST = 1 << 53
#: The kernels for a first operand that is a number.
FLIPPED = {
    "divide": "divide_into", "subtract": "subtract_from", "less": "greater", "less_equal": "greater_equal",
    **{name: name for name in ("add", "multiply", "maximum", "minimum", "equal", "not_equal")},
}  # fmt: skip


@cache
def _names(name: str, is_double: bool) -> tuple[str, str, str]:
    """The names of the kernels of arrays, of arrays and a number, and of a number and arrays; empty without one."""
    end = "_double" if is_double else ""
    return name + end, f"{name}_number{end}", f"{FLIPPED[name]}_number{end}" if name in FLIPPED else ""


def run_on_runs(name: str, *operands: Any) -> Array | None:
    """The result of a kernel of one to three operands; None if there is none for them, or runs are short.

    One of them may be a Python number. Arrays may broadcast, and need not be contiguous.
    """
    main = operands[0] if operands[0].__class__ is ndarray else operands[-1]
    if main.__class__ is not ndarray:  # one of NumPy's scalars
        return None
    dtype, shape = main.dtype, main.shape
    if dtype is not FLOAT32 and dtype is not FLOAT64:
        return None
    arrays = []
    for x in operands:
        own = x if x.__class__ is ndarray else number_of(x, dtype)
        if own is None or own.dtype is not dtype:
            return None
        if own.shape != shape and own.ndim:
            shape = None
        arrays.append(own)
    if shape is None:
        shape = np.broadcast(*arrays).shape
    run: Any = compiled.kernel("on_runs")
    found: list[Any] = [compiled.kernel(own) for own in _names(name, dtype is FLOAT64)]
    kernels = [0 if kernel is None else kernel.where for kernel in found]
    if run is None or not kernels[0]:
        return None
    code = function_code(name, dtype.itemsize, len(arrays), compiled.level())
    if code is not None:
        kernels[0] = code.address
    out = empty(shape, dtype)
    if not (fields := compiled.fields_of((out, *arrays))):
        return None
    threads = available() if out.size >= tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS else 1
    sizes = dtype.itemsize, tuning.MIN_ELEMENTS_OF_RUN, tuning.ELEMENTS_PER_TASK
    missing = compiled.MISSING[len(fields)]
    return out if run(*kernels, code is not None, *sizes, threads, len(fields), *fields, *missing) else None


def number_of(x: Any, dtype: np.dtype[Any]) -> Array | None:
    """A Python number as an array without axes; None for others, and for an integer that would be rounded twice."""
    if x.__class__ is float or (x.__class__ is int and -LARGEST <= x <= LARGEST):
        return np.array(x, dtype)
    return None
