"""NumPy: element-wise formulas in one pass over memory.

A formula is a function of a backend and its operands: the body of a derived operation, or a gradient rule. NumPy passes
over memory for each of its operations. Here it is called once, with a backend that only notes the operations, and the
compiled interpreter (``formula_interpreter.c``) calls a kernel for each of them on spans of elements that stay in the
L1 cache.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from backburn.base.dtypes import float32, float64, rounded
from backburn.base.errors import Unsupported
from backburn.ops.bodies import special, special_ratios
from backburn.ops.table import OPERATIONS
from backburn.programs.lowering import UNTRACEABLE, Call, Formula, Trace, Value, is_formula, method_of, traced
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.elementwise.blocks import elementwise
from backburn_numpy.elementwise.runs import FLIPPED
from backburn_numpy.runtime.memory import contiguous, empty, memory_ordered
from backburn_numpy.runtime.quiet import quietly
from backburn_numpy.runtime.threads import available

Array = Any


#: The registers of the interpreter.
REGISTERS = 16

#: The bytes of a register, which are computed at a time.
SPAN = 1 << 11

#: Kernels that compute two, the second of the first's result: they save a pass over the registers.
JOINED = {
    ("multiply", "add"): "multiply_add", ("multiply", "add_number"): "multiply_add_number",
    ("multiply_number", "add"): "scale_add", ("multiply_number", "add_number"): "scale_add_number",
    ("multiply_number", "multiply"): "scale_multiply",
    ("maximum_number", "minimum_number"): "clamp",
}  # fmt: skip


class Cost(NamedTuple):
    """An element-wise operation's kernel, if it has one, and how many of NumPy's passes over memory it replaces.

    ``fused`` operations are programs although NumPy has a function; ``long`` ones for any number of elements.
    """

    kernel: str = ""
    passes: int = 1
    fused: bool = False
    long: bool = False


#: The costs of the operations that have a kernel, or for which a program is faster than NumPy's function.
COSTS: dict[str, Cost] = {
    "neg": Cost("negative"), "abs": Cost("absolute"), "div": Cost("divide"), "mul": Cost("multiply"),
    "atan": Cost("arctan"), "atan2": Cost("arctan2"),
    "sub": Cost("subtract"), "log1p": Cost("log1p", fused=True), "frac": Cost(),
    **{name: Cost(name) for name in (
        "square", "sqrt", "reciprocal", "sign", "floor", "round", "exp", "expm1", "log", "sin", "cos", "tan",
        "sinh", "cosh", "tanh",
        "add", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "where",
    )},
    "tanh_slope": Cost("tanh_slope", 8),
    "sigmoid": Cost("sigmoid", 3), "silu": Cost("silu", 3), "log_sigmoid": Cost("log_sigmoid", 4),
    **{name: Cost(fused=True) for name in ("leaky_relu", "clip", "hypot", "logaddexp", "logaddexp2", "rsqrt")},
    **{name: Cost(name, 8, fused=True, long=True) for name in OPERATIONS if hasattr(special, name)},
    **{name: Cost(fused=True, long=True) for name in OPERATIONS if hasattr(special_ratios, name)},
}  # fmt: skip

#: The passes that kernels replace, if several.
PASSES = {"softplus": 4, "huber": 4, **dict.fromkeys(JOINED.values(), 2)} | {
    cost.kernel: cost.passes for cost in COSTS.values() if cost.kernel
}


class FormulaTrace(Trace):
    """Records the kernels of operations in place of the operations."""

    def knows(self, operation: str) -> bool:
        """Whether there is a kernel for the operation and the dtype."""
        cost = COSTS.get(operation)
        return cost is not None and cost.kernel != "" and compiled.kernel(self.kernel(cost.kernel)) is not None

    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation."""
        if len(operands) != len(OPERATIONS[operation].operands):  # a kernel would read past the addresses
            raise TypeError(f"{operation} of {len(operands)} operands")
        return self.call(COSTS[operation].kernel, *operands)

    def kernel(self, name: str) -> str:
        """The name of a kernel for the dtype."""
        return name if self.floats is float32 else f"{name}_double"

    def call(self, kernel: str, *operands: Any) -> Value:
        """The result of a kernel."""
        values = [self.value(x) for x in operands]
        if len(values) == 2 and values[0].is_number and not values[1].is_number and kernel in FLIPPED:
            values.reverse()
            kernel = FLIPPED[kernel]
        whole = len(values) - (len(values) == 2)  # one of two operands may be a number
        if kernel != "fill":
            values[:whole] = [self.array(x) if x.is_number else x for x in values[:whole]]
        if len(values) == 2 and values[1].is_number:
            kernel += "_number"
        result = Value()
        self.calls.append((kernel, result, values))
        return result

    def array(self, number: Value) -> Value:
        """A number as an array: stored if it is a constant, else filled by a kernel."""
        if number not in self.constants:
            return self.call("fill", number)
        array = Value()
        self.constants[array] = self.constants[number]
        return array

    def pow(self, x: Value, y: Any) -> Value:
        power = POWERS.get(y) if y.__class__ is float or y.__class__ is int else None
        if power is None:
            raise Unsupported("powers whose exponent is neither a small integer nor a half")
        return power(self, x)

    def softplus(self, x: Value, beta: float = 1.0) -> Value:
        return self.call("softplus", x) if beta == 1 else OPERATIONS["softplus"].body(self, x, beta)

    def huber_loss(self, x: Value, targets: Value, delta: float = 1.0) -> Value:
        return self.call("huber", x, targets, delta)

    def logical_and(self, x: Value, y: Value) -> Value:
        return self.call("multiply", x, y)

    def logical_or(self, x: Value, y: Value) -> Value:
        return self.call("maximum", x, y)

    def logical_not(self, x: Value) -> Value:
        return self.call("equal", x, 0.0)

    def isinf(self, x: Value) -> Value:
        return self.call("equal", self.call("absolute", x), np.inf)


def _root(k: Any, x: Value) -> Value:
    """``x ** 0.5``, which is infinite for -infinity, and 0 for -0."""
    return k.where(k.equal(x, -np.inf), np.inf, k.sqrt(k.add(x, 0.0)))


#: Powers by their exponents, with at most 1.5 epsilons of error.
POWERS: dict[float, Callable[[Any, Value], Value]] = {
    2.0: lambda k, x: k.square(x), 3.0: lambda k, x: k.mul(k.square(x), x), 4.0: lambda k, x: k.square(k.square(x)),
    -1.0: lambda k, x: k.reciprocal(x), -2.0: lambda k, x: k.square(k.reciprocal(x)),
    0.5: _root, -0.5: lambda k, x: k.reciprocal(_root(k, x)),
}  # fmt: skip


class _Program:
    """A formula for operands of certain kinds, as calls for the interpreter.

    Its arrays are the results, followed by the operands and constants.
    """

    def __init__(self, formula: Formula, kinds: tuple[Any, ...]) -> None:
        wide = np.dtype(np.float64) if "float64" in kinds else FLOAT32
        trace, places, values = FormulaTrace(float64 if "float64" in kinds else float32), [], []
        for kind in kinds:
            if isinstance(kind, str):
                places.append(Value(is_number=kind == "number"))
                values.append(trace.call(UPCASTS[kind], places[-1]) if kind in UPCASTS else places[-1])
            else:  # a Python scalar or an option
                values.append(kind[0])
        outcome = traced(formula, trace, values)
        results = outcome if isinstance(outcome, tuple) else (outcome,)
        self.several = results is outcome
        narrow = next((DOWNCASTS[kind] for kind in kinds if kind in DOWNCASTS), None)
        if narrow:
            results = tuple(trace.call(narrow, result) for result in results)
        calls = joined_calls(trace.calls, results)
        last = {x: i for i, (_, _, given) in enumerate(calls) for x in given}
        used = dict.fromkeys(x for _, _, given in calls for x in given if x in trace.constants)
        self.constants = [np.full(1 if x.is_number else SPAN // wide.itemsize, trace.constants[x], wide) for x in used]
        #: When each result is computed, and each operand read for the last time.
        self.made = [next(i for i, call in enumerate(calls) if call[1] is result) for result in results]
        self.read = [last.get(x, -1) for x in places]
        self.arrays = len(results) + len(places) + len(used)
        place = {x: i for i, x in enumerate([*results, *places, *used])}
        free, code = list(reversed(range(self.arrays, self.arrays + REGISTERS))), []
        for i, (kernel, made, given) in enumerate(calls):
            if made not in results:
                if not free:
                    raise Unsupported("a formula with too many intermediate values")
                place[made] = free.pop()
            found: Any = compiled.kernel(trace.kernel(kernel))
            where = [place[x] for x in (made, *given)]
            code += [found.where, len(where), *where, *[0] * (4 - len(where))]
            free += {place[x] for x in given if last[x] == i and place[x] >= self.arrays}
        self.passes = min(max(tuning.MIN_ELEMENTS_BY_PASSES), sum(PASSES.get(kernel, 1) for kernel, _, _ in calls))
        unknown = [0] * (len(results) + len(places))  # each call sets them, in a copy
        self.starts = (ctypes.c_int64 * self.arrays)(*unknown, *map(compiled.address, self.constants))
        self.copy = type(self.starts).from_buffer_copy
        self.calls = np.array(code, np.int64)
        step = 2 if narrow else wide.itemsize
        arrays = [0 if x.is_number else step for x in places]
        self.steps = np.array([*[step] * len(results), *arrays, *[0] * len(used)], np.int64)
        at_calls, at_steps = compiled.addresses(self.calls, self.steps)
        self.fixed = np.array([at_calls, len(calls), at_steps, self.arrays, wide.itemsize], np.int64)
        self.at_fixed: int = compiled.address(self.fixed)
        self.run: Any = compiled.kernel("run_formula")
        self.run_on_runs: Any = compiled.kernel("run_formula_on_runs")

    def __call__(self, main: Array, operands: Sequence[Array], donated: Sequence[int | None] = ()) -> Any:
        """The results, like ``main``; the last ones in the memory of ``donated`` operands that nothing reads later."""
        shape, dtype, size = main.shape, main.dtype, main.size
        results = [empty(shape, dtype) for _ in range(len(self.made) - len(donated))]
        if donated:
            for i, made in zip(donated, self.made[len(results) :], strict=True):
                results.append(empty(shape, dtype) if i is None or self.read[i] > made else operands[i])
        threads = available() if size >= tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS else 1
        if not all(x.flags.c_contiguous for x in operands):
            if self._on_runs(results, operands, dtype.itemsize, threads):
                return tuple(results) if self.several else results[0]
            operands = [contiguous(x) for x in operands]
        self.run(self.at_fixed, self.bound(results, operands), size, tuning.ELEMENTS_PER_TASK, threads)
        return tuple(results) if self.several else results[0]

    def _on_runs(self, results: Sequence[Array], operands: Sequence[Array], size: int, threads: int) -> bool:
        """Compute the results of operands that are not all contiguous, of elements of that size, if it is possible."""
        arrays = [*results, *(x if not x.ndim or x.strides[-1] == size else contiguous(x) for x in operands)]
        if not (fields := compiled.fields_of(arrays)):
            return False
        found = (ctypes.c_void_p * len(fields))(*fields)
        sizes = len(fields), size, tuning.MIN_ELEMENTS_OF_RUN, tuning.ELEMENTS_PER_TASK
        return bool(self.run_on_runs(self.at_fixed, self.starts, found, *sizes, threads))

    def bound(self, results: Sequence[Array], operands: Sequence[Array]) -> Any:
        """The addresses that the interpreter takes, for these results and operands."""
        starts = self.copy(self.starts)
        for place, x in enumerate((*results, *operands)):
            starts[place] = compiled.address(x)
        return starts


def needed_calls(
    calls: Sequence[Call], results: Sequence[Value], arrays: Mapping[Value, Value] | None = None
) -> list[Call]:
    """The calls that the results depend on; ``arrays`` maps values that are single numbers to their arrays."""
    arrays, needed, kept = arrays or {}, {*results}, []
    for call in reversed(calls):
        if call[1] in needed:
            needed.update(arrays.get(x, x) for x in call[2])
            kept.append(call)
    return kept[::-1]


def joined_calls(
    calls: Sequence[Call], results: Sequence[Value], arrays: Mapping[Value, Value] | None = None
) -> list[Call]:
    """The :func:`needed_calls`, joined where one kernel computes two."""
    kept, arrays = needed_calls(calls, results, arrays), arrays or {}
    uses = Counter([*results, *(arrays.get(x, x) for _, _, given in kept for x in given)])
    joined: dict[Value, Call] = {}
    for kernel, made, given in kept:
        for x in given if kernel in ("add", "multiply") else given[:1]:
            first, _, operands = joined[x] if uses[x] == 1 and x in joined else ("", None, [])
            if (both := JOINED.get((first, kernel))) is not None:
                del joined[x]
                kernel, given = both, [*operands, *(y for y in given if y is not x)]
                break
        joined[made] = kernel, made, given
    return list(joined.values())


UPCASTS = {"float16": "half_to_float", "bfloat16": "bfloat16_to_float"}
DOWNCASTS = {"float16": "float_to_half", "bfloat16": "float_to_bfloat16"}


#: NumPy's passes for each formula that has been called.
_PASSES: dict[Formula, int] = {}


@lru_cache(512)
@quietly
def _program(formula: Formula, kinds: tuple[Any, ...], library: str) -> _Program | None:
    try:
        program = _Program(formula, kinds)
    except UNTRACEABLE:  # NumPy computes it, or raises its error
        program = None
    if len(_PASSES) == 1 << 12:  # user formulas that are created anew for each call
        _PASSES.clear()
    _PASSES[formula] = 0 if program is None else program.passes
    return program


def _pays(formula: Formula, x: Array) -> bool:
    """Whether a program for the formula pays for as many elements as ``x`` has."""
    size = x.size
    return size >= tuning.MIN_ELEMENTS_FOR_FORMULA or size >= (
        tuning.MIN_HALVES_FOR_FORMULA
        if x.itemsize == 2
        else tuning.MIN_ELEMENTS_BY_PASSES.get(_PASSES.get(formula, 5), tuning.MIN_ELEMENTS_FOR_FORMULA)
    )


@cache
def _name(dtype: np.dtype[Any]) -> str | None:
    """The name of a dtype that has kernels; None for others."""
    known = dtype.isnative and dtype.name in ("float64", "float32", *UPCASTS)
    return dtype.name if known else None


def fuse(formula: Formula, *values: Any, donate: tuple[int, ...] = (), few: bool = False) -> Any:
    """``formula(k, *values)`` of floats, with one result or several; None if NumPy is to compute it.

    Arrays have one shape, or one element; other values are numbers and options. The memory of the values at the indices
    ``donate`` may be used for the last results. With ``few``, it pays for any number of elements.
    """
    if few and len(values) == 1 and values[0].flags.c_contiguous:
        main, name, level = values[0], _name(values[0].dtype), compiled.level()
        program = _program(formula, (name,), level) if name and level else None
        return None if program is None else program(main, values)
    if (main := _main(formula, values, few)) is None:
        return None
    if (in_order := memory_ordered(main, *values)) is not None:
        (_, *views), back = in_order
        found = fuse(formula, *views, few=few)
        if isinstance(found, tuple):
            return tuple(x.transpose(back) for x in found)
        return None if found is None else found.transpose(back)
    if (known := _known(formula, main, values, few)) is None:
        return None
    program, operands = known
    return program(main, operands, [_place(values[i], operands) for i in donate])


def bound(formula: Formula, values: Sequence[Any]) -> tuple[_Program, Array, list[Array]] | None:
    """The program by which :func:`fuse` computes a formula, an operand like its results, and all operands in order.

    None if there is none, or if the results are not in row-major order.
    """
    if values[0].__class__ is np.ndarray and values[0].size < tuning.MIN_ELEMENTS_FOR_FORMULAS:
        return None
    if (main := _main(formula, values, False)) is None or memory_ordered(main, *values) is not None:
        return None
    known = _known(formula, main, values, False)
    return None if known is None else (known[0], main, [contiguous(x) for x in known[1]])


def _main(formula: Formula, values: Sequence[Any], few: bool) -> Array | None:
    """The operand whose shape and dtype are those of the results; None if NumPy is to compute the formula."""
    for main in values:
        if (
            main.__class__ is np.ndarray
            and (few or main.size >= tuning.MIN_ELEMENTS_FOR_FORMULAS)
            and any(main.strides)
        ):
            has_kernels = _name(main.dtype) is not None and compiled.level() is not None
            return main if has_kernels and (few or _pays(formula, main)) else None
    return None


def _known(formula: Formula, main: Array, values: Sequence[Any], few: bool) -> tuple[_Program, list[Array]] | None:
    """The program of a formula for these values, and those that are its operands; None if there is none."""
    dtype, shape, name = main.dtype, main.shape, _name(main.dtype)
    kinds: list[Any] = []
    operands: list[Array] = []
    for x in values:
        if x.__class__ is not np.ndarray:
            if dtype.itemsize == 2:
                x = rounded(x, dtype)
            kinds.append((x,) if x else (x, repr(x)))  # -0.0 == 0.0
        elif x.dtype is not dtype and x.dtype != dtype:
            return None
        elif x.shape == shape and (x is main or any(x.strides)):
            kinds.append(name)
            operands.append(x)
        elif x.shape == shape or (x.size == 1 and x.ndim <= len(shape)):
            kinds.append("number")
            operands.append(np.array(x[(0,) * x.ndim], FLOAT32 if dtype.itemsize == 2 else dtype))
        else:
            return None
    level = compiled.level()
    assert level is not None
    is_first = formula not in _PASSES
    program = _program(formula, tuple(kinds), level)
    # Only now it is known whether it pays: the first call must equal later ones bitwise.
    if program is None or (is_first and not few and not _pays(formula, main)):
        return None
    return program, operands


def _place(x: Array, operands: list[Array]) -> int | None:
    """The number of an operand into whose memory a result may be written."""
    return next((i for i, y in enumerate(operands) if y is x and x.flags.writeable and x.flags.c_contiguous), None)


@cache
def _kernel_formula(name: str) -> Formula:
    return lambda k, *operands: k.call(name, *operands)


def fuse_kernel(name: str, *operands: Any) -> Array | None:
    """A kernel's result, with 16-bit floats converted within the pass; None if NumPy is to compute it."""
    return fuse(_kernel_formula(name), *operands)


def fused_operation(name: str, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """The method of a backend for an operation: its kernel or its body in one pass if that pays, else ``otherwise``."""
    entry = OPERATIONS[name]
    body, parameters, formula = entry.body, tuple(entry.parameters.values()), method_of(name)

    def rest(operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return (options.get(p.name, p.default) for p in parameters[1 + len(operands) :]) if parameters else ()

    def in_blocks(self: Any, x: Any, *operands: Any, **options: Any) -> Array:
        return elementwise(partial(body, self, **options), x, *operands)

    def long_operation(self: Any, x: Any, /, *operands: Any, **options: Any) -> Array:
        if x.__class__ is np.ndarray and x.size:
            line = x.reshape(1) if x.ndim == 0 else x
            if (found := fuse(formula, line, *operands, *rest(operands, options), few=True)) is not None:
                return found.reshape(x.shape)
        if otherwise is not None:
            return otherwise(x, *operands, **options)
        return in_blocks(self, x, *operands, **options)

    def operation(self: Any, x: Any, /, *operands: Any, **options: Any) -> Array:
        if x.__class__ is np.ndarray:
            if x.size >= tuning.MIN_ELEMENTS_FOR_FORMULAS and _pays(formula, x):
                counted = formula in _PASSES  # then it is known to pay, and need not be asked again
                found = fuse(formula, x, *operands, *rest(operands, options), few=counted)
                if found is not None:
                    return found
            if otherwise is None and x.nbytes <= tuning.MIN_BYTES_FOR_BLOCKS:  # too few for blocks
                return body(self, x, *operands, **options)
        if otherwise is not None:
            return otherwise(x, *operands, **options)
        return in_blocks(self, x, *operands, **options)

    return long_operation if name in COSTS and COSTS[name].long else operation


def is_fused(name: str, has_function: bool) -> bool:
    """Whether an operation is a program: one of :data:`COSTS`, or an element-wise one without a function of NumPy's."""
    return COSTS[name].fused if name in COSTS else not has_function and is_formula(name)
