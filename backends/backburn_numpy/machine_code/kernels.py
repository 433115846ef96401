"""Generated code for single functions, which unrecorded calls on large arrays use instead of compiled kernels.

A C compiler computes one vector of elements after the other, generated code four together: the same bits in 0.5 to 0.9
of the time.
"""

from __future__ import annotations

from functools import cache

from backburn.base.errors import Unsupported
from backburn_numpy.machine_code.loops import Loop, compiled_loop
from backburn_numpy.machine_code.memory import VECTORS, Code, missing

#: Functions of so many steps that they wait for their own results.
LONG = frozenset((
    "exp", "log", "log1p", "expm1", "tanh", "cosh", "sinh", "sigmoid", "sigmoid_slope", "softplus", "log_sigmoid",
    "silu", "silu_backward", "tanh_slope", "arctan", "arctan2", "erf", "erfc", "gelu", "gelu_backward", "gelu_tanh",
    "gelu_tanh_backward",
))  # fmt: skip


@cache
def function_code(name: str, size: int, operands: int, level: str | None) -> Code | None:
    """The code of a function of arrays of elements of ``size`` bytes, with the kernels of that instruction set.

    It is called as ``(arrays, elements)``, the result's array first. None where a kernel is as fast, or there is no
    machine code.
    """
    vector = VECTORS.get(level or "")
    if name not in LONG or vector is None or missing():
        return None
    arrays, values = ("full",) * (operands + 1), tuple(("array", i + 1) for i in range(operands))
    try:
        return compiled_loop(Loop(vector, size, 1, arrays, ((name, values),), (("store", (("made", 0),), 0),)))
    except Unsupported:
        return None
