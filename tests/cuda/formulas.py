"""The formulas that backburn has itself: those of operations and of gradient rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.cuda.operands import host_dtype

from backburn.autodiff.rules import FUSABLE, RULES
from backburn.backend.formulas import method_of
from backburn.backend.table import OPERATIONS
from backburn_cupy.kernels.formulas import FORMULAS, kernel_of

#: What stands for options without a default.
OPTIONS = {"n": 1}


def formulas() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The operation, the formula, and the kind of each of its operands, all of which are arrays of one shape."""
    for name in FORMULAS:
        yield name, method_of(name), _kinds(name, OPERATIONS[name].parameters)
    for name in FUSABLE:
        for rule in RULES.get(name, ()):
            if rule.takes[0] == "k":
                yield name, rule.function, _kinds(name, rule.takes[1:])


def _kinds(operation: str, names: Any) -> tuple[Any, ...]:
    attributes = OPERATIONS[operation].attributes
    return tuple(_option(n, attributes[n]) if n in attributes else "array" for n in names)


def _option(name: str, default: Any) -> Any:
    value = OPTIONS.get(name, 0.5) if default is inspect.Parameter.empty else default
    return (value, value.__class__)


@functools.cache
def families(dtype: str) -> tuple[str, ...]:
    """The kernels of all the formulas for a dtype."""
    host = np.dtype(host_dtype(dtype))
    found = (kernel_of(formula, kinds, host) for _, formula, kinds in formulas())
    return tuple(dict.fromkeys(kernel.family for kernel in found if kernel is not None))
