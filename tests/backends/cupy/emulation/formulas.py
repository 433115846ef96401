"""The built-in formulas: those of operations, gradient rules and optimizers."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.backends.cupy.emulation.operands import host_dtype

from backburn import optim
from backburn.ops.table import OPERATIONS
from backburn.programs.lowering import is_formula, method_of
from backburn_cupy.kernels.attach import LAUNCHERS
from backburn_cupy.kernels.fused import EXPRESSIONS, formula_kernels

#: Operands that are always arrays, of operations with several operands.
ARRAYS = {
    "sigmoid_slope": ("grad", "x"),
    "tanh_slope": ("grad", "x", "y"),
    "clip": ("x",),
    "prelu": ("x",),
    "binary_cross_entropy": ("x", "targets"),
    "binary_cross_entropy_with_logits": ("x", "targets", "positive"),
}

#: Values of options that are tried instead of the default.
OPTIONS: dict[str, tuple[Any, ...]] = {"n": (1, 2, 3), "beta": (1.0, 0.5)}

#: Operations that the backend implements with CuPy or CUDA functions.
BY_CUPY = frozenset(
    (
        *("copysign", "erfcx", "erfinv", "floor_divide", "fmod", "i0", "i1", "log10", "logaddexp", "ndtr", "ndtri"),
        *("nextafter", "remainder", "sinc"),
    )
)

#: Operations that are formulas.
FORMULAS = (
    "sigmoid",
    *(name for name in OPERATIONS if is_formula(name) and name not in {*EXPRESSIONS, *LAUNCHERS, *BY_CUPY}),
)

#: Operations that are formulas for large arrays.
LARGE = ("add", "mul", "div", "maximum", "neg", "exp", "log")

#: Optimizer steps: the number of tensors, the options, and the number of numbers that they take.
STEPS: tuple[tuple[Callable[..., Any], int, tuple[Any, ...], int], ...] = (
    (optim.Adadelta._formula, 4, (0.9, 1e-3, 0.0), 1),
    (optim.Adagrad._formula, 3, (1e-3, 0.0), 1),
    (optim.Adamax._formula, 4, (0.9, 0.99, 1e-3, 0.1), 1),
    (optim.NAdam._formula, 4, (0.9, 0.99, 0.0), 4),
    (optim.Adam._formula, 4, (0.9, 0.99, 0.1, False), 4),
    (optim.Adam._formula, 5, (0.9, 0.99, 0.0, False), 4),
    (optim.AdamW._formula, 4, (0.9, 0.99, 0.0, True), 4),
    (optim.RMSprop._formula, 5, (0.9, 1e-3, 0.0, 0.5, True), 1),
    (optim.Lion._formula, 3, (0.9, 0.99), 2),
    (optim.Adan._formula, 6, (0.9, 0.8, 0.99), 5),
)


def formulas() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The operation, the formula, and the kinds of its operands: arrays of one shape, or numbers."""
    for name in (*FORMULAS, *LARGE):
        for kinds in _kinds(name, tuple(OPERATIONS[name].parameters)):
            yield name, method_of(name), kinds
    for name in (n for n, entry in OPERATIONS.items() if entry.fuse):
        for rule in OPERATIONS[name].gradients:
            if rule.takes[0] == "k":
                for kinds in _kinds(name, rule.takes[1:], rule.operands):
                    yield name, rule.function, kinds
    for step, tensors, options, numbers in STEPS:
        yield step.__qualname__, step, (*["array"] * tensors, *map(_option, options), *["array"] * numbers)


def _kinds(operation: str, names: tuple[str, ...], arrays: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entry = OPERATIONS[operation]
    arrays = (*arrays, *ARRAYS.get(operation, ()))
    choices: list[tuple[Any, ...]] = []
    for name in names:
        if name in entry.attributes:
            default = entry.attributes[name]
            values = OPTIONS.get(name, (0.5,) if default is inspect.Parameter.empty else (default,))
            choices.append(tuple(_option(value) for value in values))
        elif name in entry.operands and len(entry.operands) > 1 and name not in arrays:
            choices.append(("array", _option(0.5), *([_option(None)] if name in entry.optional else [])))
        else:
            choices.append(("array",))
    for kinds in itertools.product(*choices):
        operands = [kind for name, kind in zip(names, kinds, strict=True) if name in entry.operands]
        if "array" in operands or not operands:
            yield kinds


def _option(value: Any) -> tuple[Any, ...]:
    return (value, value.__class__) if value else (value, value.__class__, repr(value))


@functools.cache
def families(dtype: str) -> tuple[str, ...]:
    """The kernel families of all formulas for a dtype."""
    host = np.dtype(host_dtype(dtype))
    found = (formula_kernels(formula, kinds, host) for _, formula, kinds in formulas())
    return tuple(dict.fromkeys(kernel.family for kernels in found if kernels for kernel in kernels.per_result))
