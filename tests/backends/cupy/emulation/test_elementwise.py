"""Activation functions, optimizer steps and recurrences: the CUDA kernels, run on the CPU, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, host_dtype, operand

from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.base.errors import ArgumentError, ShapeError
from backburn_cupy.kernels import activations, geometry, optimizer_steps, scan
from backburn_cupy.kernels.runner import number_bits

SHAPES = [(), (1,), (31,), (32,), (33,), (1000,), (4097,), (0,), (3, 0), (5, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations(on: EmulatedRunner, dtype: str, shape: tuple[int, ...]) -> None:
    _check_activations(on, operand(shape, dtype), operand(shape, dtype, 1))


@pytest.mark.parametrize("offset", [1, 2, 7])
def test_activations_that_are_not_aligned(on: EmulatedRunner, dtype: str, offset: int) -> None:
    _check_activations(on, operand((100,), dtype, 0, offset), operand((100,), dtype, 1, offset + 1))
    _check_activations(on, operand((10, 12), dtype)[::-2, 1::3], operand((5, 4), dtype, 1))


def test_activations_of_special_values(on: EmulatedRunner, dtype: str) -> None:
    large = 6e4 if dtype == "float16" else 1e38
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4, -1e4, 60.0, -60.0, 5.0, -5.0, 11.0, -11.0, 1e-7, -large])
    x = x.astype(host_dtype(dtype))
    _check_activations(on, x, np.ones_like(x))


def _check_activations(on: EmulatedRunner, x: Any, grad: Any) -> None:
    for approximate in ("none", "tanh"):
        check(activations.gelu(on, x, approximate), NUMPY.gelu(x, approximate), 4)
        check(activations.gelu_backward(on, grad, x, approximate), NUMPY.gelu_backward(grad, x, approximate), 4)
    check(activations.relu(on, x), NUMPY.relu(x))
    check(activations.silu(on, x), NUMPY.silu(x), 4)
    check(activations.silu_backward(on, grad, x), NUMPY.silu_backward(grad, x), 4)
    for name, y in (
        ("relu_backward", NUMPY.relu(x)),
        ("sigmoid_backward", NUMPY.sigmoid(x)),
        ("tanh_backward", NUMPY.tanh(x)),
    ):
        check(getattr(activations, name)(on, grad, y), getattr(NUMPY, name)(grad, y), 4)


def test_unknown_forms_and_mismatched_shapes_are_rejected(on: EmulatedRunner, dtype: str) -> None:
    with pytest.raises(ArgumentError, match="gelu: approximate is"):
        activations.gelu(on, operand((3,), dtype), "erf")
    with pytest.raises(ShapeError, match="silu_backward"):
        activations.silu_backward(on, operand((3,), dtype), operand((4,), dtype))


# ---- optimizers ----

ADAM = [
    {"step": 1},
    {"lr": 0.1, "beta1": 0.5, "beta2": 0.7, "eps": 1e-3, "step": 9, "weight_decay": 0.3},
    {"lr": 0.1, "step": 2, "weight_decay": 0.3, "decoupled": True},
]
SGD: list[dict[str, Any]] = [
    {},
    {"lr": 0.1, "weight_decay": 0.2},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
]


def _four(shape: tuple[int, ...], dtype: str, offset: int = 0) -> Any:
    param, grad, m, v = (operand(shape, dtype, seed, offset * seed) for seed in range(4))
    return [param, grad, m, np.abs(v, out=...)]  # an array, even if 0-d


@pytest.mark.parametrize("options", ADAM, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adam(on: EmulatedRunner, dtype: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    operands = _four(shape, dtype)
    before = [o.copy() for o in operands]
    check(optimizer_steps.adam_step(on, *operands, **options), NUMPY.adam_step(*operands, **options), 4)
    for operand_, copy in zip(operands, before, strict=True):
        np.testing.assert_array_equal(operand_, copy)


@pytest.mark.parametrize("options", SGD, ids=str)
@pytest.mark.parametrize("velocity", [True, False])
@pytest.mark.parametrize("shape", [(), (33,), (4097,), (0,)], ids=str)
def test_sgd(on: EmulatedRunner, dtype: str, shape: tuple[int, ...], velocity: bool, options: dict[str, Any]) -> None:
    param, grad, moving, _ = _four(shape, dtype, 1)
    given = moving if velocity else None
    actual = optimizer_steps.sgd_step(on, param, grad, given, **options)
    check(actual, NUMPY.sgd_step(param, grad, given, **options), 4)
    if not options:
        assert actual[1] is grad


def test_donated_memory_is_used(on: EmulatedRunner, dtype: str) -> None:
    param, grad, m, v = _four((40,), dtype)
    expected = NUMPY.adam_step(param, grad, m, v)
    actual = optimizer_steps.adam_step(on, param, grad, m, v, donate=True)
    assert actual[1] is m
    assert actual[2] is v
    check(actual, expected, 4)
    velocity = m.copy()
    expected = NUMPY.sgd_step(param, grad, velocity, momentum=0.9)
    moved = optimizer_steps.sgd_step(on, param, grad, m, momentum=0.9, donate=True)
    assert moved[1] is m
    check(moved, expected, 4)


@pytest.mark.parametrize("large", [False, True])
def test_many_tensors(on: EmulatedRunner, dtype: str, large: bool) -> None:
    on.large_parameters = large
    shapes = [(i % 7, i) if i % 5 else (i * 300,) for i in range(60)]
    lists: Any = list(zip(*(_four(s, dtype, i % 3) for i, s in enumerate(shapes)), strict=True))
    params, grads, ms, vs = lists
    optimizer_steps.copy_tensors(on, params[:40], [p.copy() for p in params[:40]])
    assert f", {geometry.TABLES[0]}>" in on.launched.pop()  # parameters of a launch are copied each time
    new = optimizer_steps.adam_steps(on, params, grads, ms, vs, step=3)
    assert len(on.launched) == (1 if large else 2)
    assert f", {geometry.TABLES[large]}>" in on.launched[0]
    moved = optimizer_steps.sgd_steps(on, params, grads, ms, momentum=0.5)
    for i, operands in enumerate(zip(*lists, strict=True)):
        check(new[i :: len(shapes)], NUMPY.adam_step(*operands, step=3), 4)
        check(moved[i :: len(shapes)], NUMPY.sgd_step(*operands[:3], momentum=0.5), 4)


@pytest.mark.parametrize("large", [False, True])
def test_copies_of_many_tensors(on: EmulatedRunner, dtype: str, large: bool) -> None:
    """Copies are bitwise equal at any alignment, and nothing else is written."""
    on.large_parameters = large
    shapes = [(), (0,), *((i % 7, i * 17) if i % 5 else (i * 300,) for i in range(58))]
    sources = [operand(s, dtype, i, i % 3) for i, s in enumerate(shapes)]
    words = np.random.default_rng(0).bytes(max(x.nbytes for x in sources))
    for x in sources:
        x.reshape(-1).view(np.uint8)[...] = np.frombuffer(words[: x.nbytes], np.uint8)
    rooms = [operand((x.size + 2,), dtype, 1, i % 5) for i, x in enumerate(sources)]
    targets = [room[1:-1].reshape(x.shape) for room, x in zip(rooms, sources, strict=True)]
    optimizer_steps.copy_tensors(on, sources, targets)
    assert len(on.launched) == (1 if large else 2)
    for room, x in zip(rooms, sources, strict=True):
        expected = operand((x.size + 2,), dtype, 1)
        expected[1:-1] = x.reshape(-1)
        assert room.tobytes() == expected.tobytes()


HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@HALVES
@pytest.mark.parametrize("options", ADAM, ids=str)
def test_adam_of_16_bits_with_float32_moments(on: EmulatedRunner, dtype: str, options: dict[str, Any]) -> None:
    """Results equal those of float32 copies of parameters and gradients, with the new parameters rounded."""
    for shape in SHAPES:
        (param, grad), (_, _, m, v) = _four(shape, dtype, 1)[:2], _four(shape, "float32", 3)
        new, *moments = NUMPY.adam_step(param.astype("float32"), grad.astype("float32"), m, v, **options)
        got = optimizer_steps.adam_step(on, param, grad, m, v, **options)
        check(got, (new.astype(param.dtype), *moments), 4)
        assert [x.dtype for x in got] == [param.dtype, m.dtype, v.dtype]
        on.large_parameters = not on.large_parameters


@HALVES
@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd_of_16_bits_with_float32_velocities(on: EmulatedRunner, dtype: str, options: dict[str, Any]) -> None:
    shapes = [(), (33,), (4097,), (0,), (5, 7)]
    lists: Any = zip(
        *((*_four(s, dtype, i % 2)[:2], _four(s, "float32", i)[2]) for i, s in enumerate(shapes)), strict=True
    )
    params, grads, velocities = lists
    on.large_parameters = bool(options)
    got = optimizer_steps.sgd_steps(on, params, grads, velocities, **options)
    assert len(on.launched) == 1
    for i, (param, grad, velocity) in enumerate(zip(params, grads, velocities, strict=True)):
        new, moving = NUMPY.sgd_step(param.astype("float32"), grad.astype("float32"), velocity, **options)
        check(got[i :: len(shapes)], (new.astype(dtype), moving), 4)
        assert got[i + len(shapes)].dtype == np.float32


def test_state_of_other_dtypes_is_rejected(on: EmulatedRunner, dtype: str) -> None:
    param, grad, m, v = _four((4,), dtype)
    other = "float64" if dtype != "float64" else "float32"
    for operands in ((grad, m.astype(other), v.astype(other)), (grad, m, v.astype(other)), (grad.astype(other), m, v)):
        with pytest.raises(ShapeError, match=rf"adam_step: a parameter {dtype}\[4\] with {other}\[4\]"):
            optimizer_steps.adam_step(on, param, *operands)


def test_many_tensors_without_velocities(on: EmulatedRunner, dtype: str) -> None:
    lists: Any = list(zip(*(_four((n,), dtype) for n in (3, 0, 4097)), strict=True))
    params, grads = lists[:2]
    for options in SGD:
        results = optimizer_steps.sgd_steps(on, params, grads, [], **options)
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            check(results[i::3], NUMPY.sgd_step(param, grad, None, **options), 4)
    assert len(on.launched) == len(SGD)


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_numbers_of_a_replay_are_read_on_the_device(on: EmulatedRunner, dtype: str, decoupled: bool) -> None:
    operands: Any = _four((50,), dtype)
    recording = Recording()
    token = RECORDING_STEP.set(recording)
    try:
        lr, step = recording.number(lambda: 0.5), recording.number(lambda: 1)
        on.numbers.update({0: np.array([0.1]), 1: np.array([5])})  # their values in the replay
        options: dict[str, Any] = {"weight_decay": 0.01, "decoupled": decoupled}
        given: dict[str, Any] = {"lr": lr, "step": step, **options}
        param, grad, m, v = operands
        actual = optimizer_steps.adam_step(on, param, grad, m, v, **given)
        moved = optimizer_steps.sgd_step(on, param, grad, m, lr=lr, momentum=0.9)
    finally:
        RECORDING_STEP.reset(token)
    assert recording.unbound == 0
    check(actual, NUMPY.adam_step(*operands, lr=0.1, step=5, **options), 4)
    check(moved, NUMPY.sgd_step(*operands[:3], lr=0.1, momentum=0.9), 4)


def test_numbers_are_packed_for_the_device() -> None:
    bits = number_bits([3, 0.1, 2**64 - 1, -2])
    assert bits.tolist() == [3, int(np.float64(0.1).view(np.uint64)), 2**64 - 1, 2**64 - 2]


def test_mismatched_tensors_are_rejected(on: EmulatedRunner, dtype: str) -> None:
    param, grad, m, v = _four((4,), dtype)
    with pytest.raises(ShapeError, match=r"adam_step: a parameter \w+\[4\] with \w+\[3\]"):
        optimizer_steps.adam_step(on, param, grad, m, v[:3])
    for ms, vs in (([], [v]), ([m], [])):
        with pytest.raises(ShapeError, match="adam_steps: 1 parameters with 0 other"):
            optimizer_steps.adam_steps(on, [param], [grad], ms, vs)
    with pytest.raises(ShapeError, match="sgd_steps: 1 parameters with 2 other"):
        optimizer_steps.sgd_steps(on, [param], [grad], [m, m])
    with pytest.raises(ArgumentError, match="counted from 1"):
        optimizer_steps.adam_step(on, param, grad, m, v, step=0)


# ---- recurrences ----


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (7, 40), (40, 7), (3, 20, 2), (2, 3, 33), (0, 3), (3, 0)], ids=str)
def test_ssm_scan(on: EmulatedRunner, dtype: str, shape: tuple[int, ...], reverse: bool) -> None:
    a, b, x = (operand(shape, dtype, seed) for seed in range(3))
    a *= a.dtype.type(0.5)
    for axis in range(len(shape)):
        h0 = operand((*shape[:axis], *shape[axis + 1 :]), dtype, 3)
        for factor, first in ((b, h0), (0.5, None)):
            actual = scan.ssm_scan(on, a, factor, x, first, axis, reverse)
            check(actual, NUMPY.ssm_scan(a, factor, x, first, axis, reverse), 16)


def test_ssm_scan_broadcasts(on: EmulatedRunner, dtype: str) -> None:
    a, b, x, h0 = (operand(s, dtype, i) for i, s in enumerate([(4, 1, 6), (5, 1), (1, 6), (6,)]))
    check(scan.ssm_scan(on, a, b, x, h0, 1), NUMPY.ssm_scan(a, b, x, h0, 1), 16)


def test_a_first_state_of_0_is_not_decayed(on: EmulatedRunner, dtype: str) -> None:
    a, x = np.full((3, 2), np.inf, host_dtype(dtype)), operand((3, 2), dtype)
    check(scan.ssm_scan(on, a, 1.0, x), NUMPY.ssm_scan(a, 1.0, x))
