"""Element-wise formulas: the CUDA kernels generated for them, run on the CPU, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation import formulas
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, host_dtype, operand

from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.programs.lowering import method_of
from backburn_cupy.kernels.fused import formula_kernels, fuse, prefer_fused

KNOWN = [
    pytest.param(name, formula, kinds, id=f"{number}-{name}")
    for number, (name, formula, kinds) in enumerate(formulas.formulas())
    if formula_kernels(formula, kinds, np.dtype(np.float32)) is not None
]


def positive(shape: tuple[int, ...], dtype: str, seed: int, offset: int = 0) -> Any:
    """Values from 0.1 to 0.9, for which every function here is defined."""
    x = operand(shape, dtype, seed, offset)
    x[...] = 0.1 + 0.8 / (1.0 + np.exp(-x.astype(np.float64)))
    return x


def reference(formula: Callable[..., Any], *values: Any) -> Any:
    """The formula computed by NumPy in float64, rounded to the operands' dtype."""
    dtype = next(x.dtype for x in values if isinstance(x, np.ndarray))
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in values]
    found = formula(NUMPY, *wide)
    return [x.astype(dtype) for x in found] if isinstance(found, tuple) else np.asarray(found).astype(dtype)


@pytest.mark.parametrize(("name", "formula", "kinds"), KNOWN)
def test_values(on: EmulatedRunner, dtype: str, name: str, formula: Callable[..., Any], kinds: tuple[Any, ...]) -> None:
    for shape, offset in (((), 0), ((33,), 0), ((4097,), 1), ((5, 7), 3)):
        values = [positive(shape, dtype, i, offset * i) if kind == "array" else kind[0] for i, kind in enumerate(kinds)]
        if name == "tanh_slope":  # the last operand is tanh of the previous one
            values[2][...] = np.tanh(values[1].astype(np.float64))
        before = [np.copy(v) for v in values]
        actual, expected = fuse(on, formula, *values), reference(formula, *values)
        assert isinstance(actual, tuple) == isinstance(expected, list)
        for one, other in zip(actual, expected, strict=True) if isinstance(actual, tuple) else [(actual, expected)]:
            check(one, other, 16)
        for value, copy in zip(values, before, strict=True):
            np.testing.assert_array_equal(value, copy)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "log_sigmoid", "elu", "hard_swish", "hardtanh", "softsign"])
def test_special_values(on: EmulatedRunner, dtype: str, name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4, -1e4, 60.0, -60.0, 3.0, -3.0, 11.0, -11.0])
    x = x.astype(host_dtype(dtype))
    with np.errstate(all="ignore"):
        check(fuse(on, method_of(name), x), reference(method_of(name), x), 16)


def test_numbers_and_options(on: EmulatedRunner, dtype: str) -> None:
    x, y = operand((40,), dtype), operand((40,), dtype, 1)
    for low, high in ((-0.5, 0.25), (None, 0.1), (0.1, None), (-1, 1), (-0.0, np.inf), (-1e300, 1e300)):
        check(fuse(on, method_of("clip"), x, low, high), reference(method_of("clip"), x, low, high))
    zero = np.zeros((3,), host_dtype(dtype))
    for number in (0.0, -0.0):
        result = fuse(on, lambda k, x, n: k.mul(k.add(x, n), n), zero, number)
        assert np.all(np.signbit(result) == np.signbit(number))
    # A one-element array is a scalar operand; the result has the shape of the larger operand.
    weight = operand((1,), dtype, 2)
    check(fuse(on, method_of("lerp"), x, y, weight), reference(method_of("lerp"), x, y, weight), 4)
    check(fuse(on, method_of("lerp"), weight[0, ...], x, y), reference(method_of("lerp"), weight[0, ...], x, y), 4)
    # So is a broadcast element, like the gradient of a sum.
    grad = np.broadcast_to(weight, (40,))
    check(fuse(on, lambda k, g, x: k.mul(g, x), grad, x), reference(lambda k, g, x: k.mul(g, x), grad, x))
    check(fuse(on, lambda k, g: k.mul(g, 2.0), grad), reference(lambda k, g: k.mul(g, 2.0), grad))
    nothing = np.broadcast_to(weight, (0, 1))
    assert fuse(on, lambda k, g, x: k.mul(g, x), nothing, operand((0, 1), dtype)).shape == (0, 1)
    # A number compared with an element is rounded like the element.
    tenth = np.array([0.1, 0.2], host_dtype(dtype))
    same = fuse(on, lambda k, x, n: k.where(k.equal(x, n), 1.0, 0.0), tenth, 0.1)
    assert same.tolist() == [1.0 if dtype != "float32" else float(np.float32(0.1) == tenth[0]), 0.0]


def test_strided_and_empty_operands(on: EmulatedRunner, dtype: str) -> None:
    x, y = operand((10, 12), dtype)[::-2, 1::3], operand((4, 5), dtype, 1).T
    check(fuse(on, method_of("prelu"), x, y), reference(method_of("prelu"), x, y))
    assert fuse(on, method_of("sigmoid"), operand((3, 0), dtype)).shape == (3, 0)
    assert not on.launched[1:]


def test_another_number_needs_no_other_kernel(on: EmulatedRunner, dtype: str) -> None:
    host = np.dtype(host_dtype(dtype))
    found = [formula_kernels(method_of("leaky_relu"), ("array", (slope, float)), host) for slope in (0.125, 0.25)]
    kernels = [kernel for kernels in found if kernels for kernel in kernels.per_result]
    assert len(kernels) == 2
    assert kernels[0].family == kernels[1].family
    assert kernels[0].numbers != kernels[1].numbers


def test_unsupported_formulas_are_not_implemented(on: EmulatedRunner, dtype: str) -> None:
    x = operand((4, 3), dtype)
    row, other = operand((3,), dtype), operand((4, 3), "float64" if dtype != "float64" else "float32")
    lerp, sigmoid = method_of("lerp"), method_of("sigmoid")
    assert fuse(on, lerp, x, row, 0.5) is NotImplemented
    assert fuse(on, lerp, x, other, 0.5) is NotImplemented
    assert fuse(on, lerp, 1.0, 2.0, 0.5) is NotImplemented
    assert fuse(on, sigmoid, np.arange(3)) is NotImplemented
    assert fuse(on, lambda k, x: k.sum(x, (0,), False), x) is NotImplemented
    assert fuse(on, lambda k, x: x, x) is NotImplemented
    assert fuse(on, lambda k, x: k.astype(x, k.dtype(x)), x) is NotImplemented
    assert not on.launched


def test_numbers_that_change_between_replays_are_not_frozen(on: EmulatedRunner, dtype: str) -> None:
    recording = Recording()
    token = RECORDING_STEP.set(recording)
    try:
        number = recording.number(lambda: 0.5)
        assert fuse(on, method_of("lerp"), operand((4,), dtype), operand((4,), dtype), number) is NotImplemented
    finally:
        RECORDING_STEP.reset(token)


def test_operations(on: EmulatedRunner, dtype: str) -> None:
    """Fused methods of a backend fall back to the plain method for unsupported calls."""

    class Backend:
        runner: Any = on

    def plain(k: Any, *operands: Any, **options: Any) -> Any:
        return "plain", options

    hardtanh = prefer_fused("hardtanh", plain)
    x = operand((6,), dtype)
    check(hardtanh(Backend(), x, low=-0.5, high=0.5), NUMPY.hardtanh(x, -0.5, 0.5))
    check(hardtanh(Backend(), x, -0.5, high=0.5), NUMPY.hardtanh(x, -0.5, 0.5))
    assert hardtanh(Backend(), x, lowest=0.5) == ("plain", {"lowest": 0.5})
    assert hardtanh(Backend(), np.arange(3), low=1, high=2) == ("plain", {"low": 1, "high": 2})
    Backend.runner = None
    assert hardtanh(Backend(), x, low=0.0, high=1.0) == ("plain", {"low": 0.0, "high": 1.0})
    assert len(on.launched) == 2
