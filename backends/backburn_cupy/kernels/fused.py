"""Launchers: element-wise formulas, each by a kernel that is generated at the first call of the formula.

CuPy launches a kernel for each operation of a formula, such as a gradient rule. Here the formula is traced, and one
kernel computes it in one pass over memory, 16-bit floats in float, rounded once. The numbers of a formula are
parameters of its kernel, so that a new number needs no new kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import numpy as np

from backburn.base.dtypes import float32, float64, rounded
from backburn.ops.table import OPERATIONS
from backburn.programs.lowering import UNTRACEABLE, Formula, Trace, Value, is_formula, method_of, traced
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES, write

Array = Any

#: Operations that are functions of CUDA by the same name: the required ones of floats, and some that have a body.
#: nextafter is left out: CUDA's steps by the ulp of a float even where elements have 16 bits.
FUNCTIONS = (
    *(
        n
        for n, op in OPERATIONS.items()
        if op.required and op.kinds in ("F", "FC") and is_formula(n) and n != "nextafter"
    ),
    *("exp2", "log2", "erf", "erfc", "lgamma", "rsqrt", "hypot", "pow"),
)

#: Each operation in C++; C is the type computed in.
EXPRESSIONS = {
    **{
        name: f"{name}({', '.join('{}' for _ in OPERATIONS[name].operands)})"
        for name in FUNCTIONS
        if name != "nextafter"
    },
    **{name: f"{{}} {sign} {{}}" for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{
        name: f"{{}} {sign} {{}} ? C(1) : C(0)"
        for name, sign in (
            *(("less", "<"), ("less_equal", "<="), ("greater", ">"), ("greater_equal", ">=")),
            *(("equal", "=="), ("not_equal", "!="), ("logical_and", "&&"), ("logical_or", "||")),
        )
    },
    "neg": "-{}",
    "abs": "fabs({})",
    "round": "rint({})",
    "square": "{0} * {0}",
    "reciprocal": "C(1) / {}",
    "sign": "{0} > C(0) ? C(1) : {0} < C(0) ? C(-1) : {0}",
    "sigmoid": "gated<T>(C(1), {})",
    # NaN where an operand is.
    "maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "where": "{} != C(0) ? {} : {}",
    "logical_not": "{} == C(0) ? C(1) : C(0)",
    "isnan": "{0} != {0} ? C(1) : C(0)",
    "isinf": "fabs({}) == infinity(C(0)) ? C(1) : C(0)",
}

#: The most numbers of a formula, which are parameters of eight bytes.
NUMBERS = 256

SOURCE = """#include "map.cuh"
template <class T> __global__ void __launch_bounds__(256) {family}(%(parameters)s) {
  typedef compute<T> C;
%(numbers)s  const T* const operands[] = {%(operands)s};
  map(operands, out, count, [=](const C* at) {
%(steps)s    return %(result)s;
  }, singles);
}
"""


class _Trace(Trace):
    """Notes the operations."""

    def knows(self, operation: str) -> bool:
        """Whether there is an expression for the operation."""
        return operation in EXPRESSIONS

    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation."""
        result = Value()
        self.calls.append((operation, result, [self.value(x) for x in operands]))
        return result


class _Kernel(NamedTuple):
    """A kernel, and the numbers that it takes besides the operands."""

    family: str
    name: str
    numbers: tuple[float, ...]


class _Kernels(NamedTuple):
    """A kernel for each result of a formula; ``is_tuple`` if the formula returns a tuple."""

    per_result: tuple[_Kernel, ...]
    is_tuple: bool


@lru_cache(4096)
def formula_kernels(formula: Formula, kinds: tuple[Any, ...], dtype: np.dtype[Any]) -> _Kernels | None:
    """The kernels of a formula, or None if a result takes more than one.

    The kind of an operand is ``"array"``, also for a single element beside larger arrays, or a tuple of an option and
    of whatever distinguishes it from equal ones.
    """
    trace = _Trace(float64 if dtype.itemsize == 8 else float32)
    values = [_operand(kind, dtype) for kind in kinds]
    try:
        found = traced(formula, trace, values)
        numbers = tuple(map(float, trace.constants.values()))
    except UNTRACEABLE:
        return None
    if len(numbers) > NUMBERS:
        return None

    def kernel(result: Value) -> _Kernel:
        family = write(_kernel_source([v for v in values if isinstance(v, Value)], trace, result), "formula")
        return _Kernel(family, f"{family}<{C_TYPES[dtype.name]}>", numbers)

    results = found if isinstance(found, tuple) else (found,)
    return _Kernels(tuple(map(kernel, results)), results is found)


def _operand(kind: Any, dtype: np.dtype[Any]) -> Any:
    """An operand to trace a formula with: a value for an array, a number rounded as with arrays of the dtype."""
    if isinstance(kind, str):
        return Value()
    return rounded(kind[0], dtype) if dtype.itemsize == 2 else kind[0]


def _kernel_source(operands: list[Value], trace: Trace, result: Value) -> str:
    """The source of a kernel."""
    names = {value: f"at[{i}]" for i, value in enumerate(operands)}
    names.update((value, f"c{i}") for i, value in enumerate(trace.constants))
    count, steps = len(trace.constants), []
    for i, (operation, made, given) in enumerate(trace.calls):
        names[made] = f"v{i}"
        steps.append(f"    const C v{i} = {EXPRESSIONS[operation].format(*(names[x] for x in given))};\n")
    pointers, numbers = [f"x{i}" for i in range(len(operands))], [f"number{i}" for i in range(count)]
    parameters = [*(f"const T* {x}" for x in pointers), *(f"double {n}" for n in numbers)]
    return SOURCE % {
        "parameters": ", ".join([*parameters, "index_t singles", "T* out", "index_t count"]),
        "numbers": "".join(f"  const C c{i} = C({number});\n" for i, number in enumerate(numbers)),
        "operands": ", ".join(pointers),
        "steps": "".join(steps),
        "result": names[result],
    }


def fuse(on: Runner, formula: Formula, /, *values: Any) -> Any:
    """``formula(k, *values)`` of floats; NotImplemented where that takes more than one kernel for each result.

    Arrays have one shape and dtype, or one element; other values are numbers and options.
    """
    ndarray = on.xp.ndarray
    main = max((x for x in values if isinstance(x, ndarray)), key=_extent, default=None)
    if main is None or main.dtype.char not in "fdeE":
        return NotImplemented
    dtype, shape = main.dtype, main.shape
    kinds: list[Any] = []
    operands: list[Array] = []
    singles = 0
    for x in values:
        if isinstance(x, ndarray):
            if x.dtype != dtype or (x.shape != shape and (x.size != 1 or x.ndim > len(shape))):
                return NotImplemented
            kinds.append("array")
            if x.shape == shape and (x is main or _extent(x)[1]):
                operands.append(on.xp.ascontiguousarray(x))
            else:
                singles |= 1 << len(operands)
                operands.append(x[(0,) * x.ndim + (...,)])
        elif x.__class__ in OPTIONS:
            kinds.append((x, x.__class__) if x else (x, x.__class__, repr(x)))  # -0.0 == 0.0
        else:  # such as a number that changes from replay to replay
            return NotImplemented
    kernels = formula_kernels(formula, tuple(kinds), dtype)
    if kernels is None:
        return NotImplemented

    def result(kernel: _Kernel) -> Array:
        out = on.xp.ndarray(shape, dtype)
        if out.size:
            launch = geometry.elements(out.size, 2 * geometry.pack(dtype.itemsize))
            on.run(kernel.family, kernel.name, *launch, *operands, *kernel.numbers, singles, out, out.size)
        return out

    results = tuple(map(result, kernels.per_result))
    return results if kernels.is_tuple else results[0]


#: The classes of options.
OPTIONS = (float, int, bool, str, type(None))


def _extent(x: Array) -> tuple[int, bool]:
    """An array's size, and whether it is more than a single element that was broadcast."""
    return x.size, x.size <= 1 or any(x.strides)


def prefer_fused(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation ``plain(k, ...)``, by one kernel if possible."""
    parameters, formula = tuple(OPERATIONS[name].parameters.values()), method_of(name)
    names = frozenset(OPERATIONS[name].attributes)

    @wraps(plain)
    def operation(k: Any, *operands: Any, **options: Any) -> Any:
        if k.runner is not None and names.issuperset(options):
            rest = (options.get(p.name, p.default) for p in parameters[len(operands) :])
            if (found := fuse(k.runner, formula, *operands, *rest)) is not NotImplemented:
                return found
        return plain(k, *operands, **options)

    return operation
