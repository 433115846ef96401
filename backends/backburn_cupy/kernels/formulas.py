"""Launchers: element-wise formulas, a kernel for each, which is written when the formula is first called.

CuPy launches a kernel for each operation of a formula, such as a gradient rule. Here the formula is traced, and one
kernel computes it in one pass over memory, 16-bit floats in float, rounded once. The numbers of a formula are
parameters of its kernel, so that none is compiled for a number that is new.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import numpy as np

from backburn.backend.formulas import UNTRACEABLE, Formula, Trace, Value, method_of, traced
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import float32, float64, rounded
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import C_TYPES, write

Array = Any

#: Each operation in C++; C is the type computed in.
EXPRESSIONS = {
    **{name: f"{{}} {sign} {{}}" for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{
        name: f"{{}} {sign} {{}} ? C(1) : C(0)"
        for name, sign in (
            *(("less", "<"), ("less_equal", "<="), ("greater", ">"), ("greater_equal", ">=")),
            *(("equal", "=="), ("not_equal", "!="), ("logical_and", "&&"), ("logical_or", "||")),
        )
    },
    **{
        name: f"{name}({{}})"
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
            *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "trunc"),
            *("erf", "erfc", "lgamma", "rsqrt"),
        )
    },
    "neg": "-{}",
    "abs": "fabs({})",
    "round": "rint({})",
    "square": "{0} * {0}",
    "reciprocal": "C(1) / {}",
    "sign": "{0} > C(0) ? C(1) : {0} < C(0) ? C(-1) : {0}",
    **{name: f"{name}({{}}, {{}})" for name in ("pow", "hypot", "atan2")},
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
    """A kernel for each result of a formula, which are ``several`` if it returns a tuple."""

    of_results: tuple[_Kernel, ...]
    several: bool


@lru_cache(4096)
def kernels_of(formula: Formula, kinds: tuple[Any, ...], dtype: np.dtype[Any]) -> _Kernels | None:
    """The kernels of a formula, or None if a result takes more than one.

    The kind of an operand is ``"array"``, also for a single element beside larger arrays, or a tuple of an option and
    of what else tells it from an equal one.
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
        family = write(_text([v for v in values if isinstance(v, Value)], trace, result), "formula")
        return _Kernel(family, f"{family}<{C_TYPES[dtype.name]}>", numbers)

    results = found if isinstance(found, tuple) else (found,)
    return _Kernels(tuple(map(kernel, results)), results is found)


def _operand(kind: Any, dtype: np.dtype[Any]) -> Any:
    """What a formula is traced with: a value for an array, a number as it is beside arrays of the dtype."""
    if isinstance(kind, str):
        return Value()
    return rounded(kind[0], dtype) if dtype.itemsize == 2 else kind[0]


def _text(operands: list[Value], trace: Trace, result: Value) -> str:
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


def one_pass(on: Runner, formula: Formula, /, *values: Any) -> Any:
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
    kernels = kernels_of(formula, tuple(kinds), dtype)
    if kernels is None:
        return NotImplemented

    def result(kernel: _Kernel) -> Array:
        out = on.xp.ndarray(shape, dtype)
        if out.size:
            launch = geometry.elements(out.size, 2 * geometry.pack(dtype.itemsize))
            on.run(kernel.family, kernel.name, *launch, *operands, *kernel.numbers, singles, out, out.size)
        return out

    results = tuple(map(result, kernels.of_results))
    return results if kernels.several else results[0]


#: The classes of options.
OPTIONS = (float, int, bool, str, type(None))


def _extent(x: Array) -> tuple[int, bool]:
    """An array's size, and whether it is more than a single element that was broadcast."""
    return x.size, x.size <= 1 or any(x.strides)


def in_one_pass(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The operation ``plain(k, ...)`` by one kernel, where that can be."""
    parameters, formula = tuple(OPERATIONS[name].parameters.values()), method_of(name)
    names = frozenset(OPERATIONS[name].attributes)

    @wraps(plain)
    def operation(k: Any, *operands: Any, **options: Any) -> Any:
        if k.runner is not None and names.issuperset(options):
            rest = (options.get(p.name, p.default) for p in parameters[len(operands) :])
            if (found := one_pass(k.runner, formula, *operands, *rest)) is not NotImplemented:
                return found
        return plain(k, *operands, **options)

    return operation


#: The operations that are formulas.
FORMULAS = (
    *("sigmoid", "log_sigmoid", "softplus", "hard_sigmoid", "hard_swish", "relu6", "leaky_relu", "prelu", "threshold"),
    *("hardtanh", "elu", "celu", "selu", "mish", "softsign", "tanhshrink", "softshrink", "hardshrink"),
    *("clamp", "lerp", "frac", "digamma", "polygamma", "sinc_ratio", "bessel_ratio"),
    *("huber", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
