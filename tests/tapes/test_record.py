"""The record tape: every method compared with central differences, documented forms of calls, buffers, and errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.autodiff.tape import GradientTape
from backburn.base.contexts import DEFAULT_BACKEND, scoped
from backburn.base.dtypes import float64
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DTypeError,
    NumericalInstabilityError,
    OutOfRangeError,
    ShapeError,
)
from backburn.conformance import SAMPLES
from backburn.conformance.samples.calls import is_float
from backburn.conformance.samples.table import Stored
from backburn.ops.table import OPERATIONS
from backburn.tapes import record
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
OUTER = Autodiff(BASE)
Build = Callable[..., int]


def check(build: Build, *inputs: Any, seed: int = 0) -> GradientTape:
    """Compare the gradients of all inputs of ``build(tape, *slots)`` with central differences."""

    def run(values: list[Any]) -> tuple[GradientTape, Any]:
        tape = GradientTape()
        build(tape, *(tape.input(v) for v in values))
        return tape, tape.value(tape.num_tensors - 1)

    values = [np.asarray(v, np.float64) for v in inputs]
    tape, out = run(values)
    cotangent = np.random.default_rng(seed).normal(size=out.shape)
    gradients = tape.backward(cotangent)
    assert len(gradients) == tape.num_tensors
    step = 1e-6
    for place, value in enumerate(values):
        expected = np.zeros(value.shape)
        for index in np.ndindex(value.shape):
            sides = []
            for sign in (1.0, -1.0):
                moved = [v.copy() for v in values]
                moved[place][index] += sign * step
                sides.append(float(np.sum(cotangent * run(moved)[1])))
            expected[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(gradients[place], expected, rtol=1e-6, atol=1e-8)
    return tape


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


SHAPES = [(), (3,), (2, 4), (2, 1, 3)]


# ---- the documented operations ----


@pytest.mark.parametrize("shape", SHAPES)
def test_add_and_mul(shape: tuple[int, ...]) -> None:
    x, y = normal(*shape), normal(*shape, seed=1)
    check(lambda t, a, b: t.record_add(a, b), x, y)
    check(lambda t, a, b: t.record_mul(a, b), x, y)
    check(lambda t, a: t.record_mul(a, t.record_add(a, a)), x)
    check(lambda t, a, b: t.record_mul(a, b), x, normal(1, seed=2))


@pytest.mark.parametrize("shape", SHAPES)
def test_silu(shape: tuple[int, ...]) -> None:
    check(lambda t, a: t.record_silu(a), 3 * normal(*shape))


@pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 4), (1, 5, 1), (3, 1, 2)])
def test_matmul(m: int, k: int, n: int) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    check(lambda t, x, y: t.record_matmul(x, y), a, b)
    tape = check(lambda t, x, y: t.record_matmul(x, None, y, None), a, b)
    np.testing.assert_allclose(tape.value(2), (a @ b).reshape(-1))


@pytest.mark.parametrize("shape", [(4,), (2, 5), (2, 3, 4), (1,)])
def test_layer_norm_with_slots_for_scale_and_bias(shape: tuple[int, ...]) -> None:
    x, scale, bias = normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    check(lambda t, a, s, c: t.record_layer_norm(a, None, None, s, c), x, scale, bias)
    check(lambda t, a: t.record_layer_norm(a), x)
    check(lambda t, a: t.record_layer_norm(a, None, None, scale, bias), x)


@pytest.mark.parametrize("steps", [1, 4])
def test_ssm_scan_with_slots_for_everything(steps: int) -> None:
    x, a, b = normal(steps, 2), normal(steps, 2, seed=1), normal(steps, 2, seed=2)
    check(lambda t, x, a, b, h: t.record_ssm_scan(x, a, b, h), x, a, b, normal(2))
    check(lambda t, x: t.record_ssm_scan(x, a, b), x)
    check(lambda t, x: t.record_ssm_scan(x, 0.5, 2.0, 0.5, axis=-1), x)


def test_values_of_the_corrected_layer_norm() -> None:
    x, dy = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, -0.5, 2.0, 0.25])
    for scale, expected in (
        (np.ones(4), [0.3130, -1.0509, 1.1628, -0.4249]),
        (np.array([1.0, 2.0, 0.5, 1.5]), [0.6037, -1.1963, 0.5814, 0.0112]),
    ):
        tape = GradientTape()
        tape.record_layer_norm(tape.input(x), float(x.mean()), float(x.var()), scale)
        np.testing.assert_allclose(tape.backward(dy)[0], expected, atol=6e-5)


def test_the_scan_is_the_recurrence() -> None:
    x, b = normal(4), np.array([1.0, 2.0, 0.5, 1.0])
    tape = GradientTape()
    tape.record_ssm_scan(tape.input(x), np.array([0.9, 0.7, 0.95, 0.5]), b)
    np.testing.assert_allclose(tape.backward(np.ones(4))[0], [2.6975, 4.85, 0.75, 1.0])
    tape = GradientTape()
    tape.record_ssm_scan(tape.input(x), np.zeros(4), b)
    np.testing.assert_allclose(tape.backward(np.ones(4))[0], b)


# ---- the other operations ----


def stored(x: Any) -> Any:
    """A quantized operand on the backend; other operands unchanged."""
    return x.on(OUTER.inner_backend) if isinstance(x, Stored) else x


def samples_to_record() -> list[Any]:
    """Each differentiable operation with its first smooth sample whose operands can be slots or constants."""
    found = []
    for name, samples in SAMPLES.items():
        for sample in samples.cases if OPERATIONS[name].differentiable else ():
            flat = [x for o in sample.operands for x in (o if isinstance(o, list) else [o])]
            if sample.smooth and any(is_float(x) for x in flat) and not any(isinstance(x, int) for x in flat):
                found.append(pytest.param(name, sample, id=name))
                break
    return found


@pytest.mark.parametrize(("name", "sample"), samples_to_record())
def test_every_differentiable_operation_can_be_recorded(name: str, sample: Any) -> None:
    """Gradients equal those of Autodiff, which other tests compare with central differences."""
    tape, leaves = GradientTape(), []

    def slot(x: Any) -> Any:
        if isinstance(x, list):
            return [slot(each) for each in x]
        return tape.input(x) if is_float(x) else stored(x)

    def leaf(x: Any) -> Any:
        if isinstance(x, list):
            return [leaf(each) for each in x]
        if not is_float(x):
            return stored(x)
        leaves.append(OUTER.set_require_grad(OUTER.from_inner(x), True))
        return leaves[-1]

    own = name in ("layer_norm", "ssm_scan")  # these have other signatures
    method: Any = (lambda *x, **o: tape.record(name, *x, **o)) if own else getattr(tape, f"record_{name}")
    recorded = method(*map(slot, sample.operands), **sample.attributes)
    results = getattr(OUTER, name)(*map(leaf, sample.operands), **sample.attributes)
    recorded, results = (v if isinstance(v, tuple) else (v,) for v in (recorded, results))
    assert len(recorded) == len(results)
    out, result = next(r for r in zip(recorded, results, strict=True) if isinstance(r[0], int))
    np.testing.assert_array_equal(tape.value(out), result.value)
    cotangent = normal(*result.shape)
    expected = OUTER.backward(result, cotangent)
    for gradient, x in zip(tape.backward(cotangent, output=out), leaves, strict=False):
        known = OUTER.grad(x, expected)
        np.testing.assert_array_equal(gradient, np.zeros(x.shape) if known is None else known)


def test_options_in_any_spelling() -> None:
    x = normal(2, 3)
    for options in ({"axis": -1}, {"axis": 1}):
        check(lambda t, a, o=options: t.record_softmax(a, **o), x)
    reductions: list[dict[str, Any]] = [{}, {"axis": None}, {"axis": (-1, 0)}, {"axis": 1}]
    for options in reductions:
        check(lambda t, a, o=options: t.record_sum(a, **o), x)
    check(lambda t, a: t.record_reshape(a, shape=[3, 2]), x)
    check(lambda t, a, b: t.record_concat([a, b, x], axis=-2), x, x + 1)
    check(lambda t, a: t.record_sub(1.0, a), x)
    check(lambda t, a: t.record_div(a, 4.0), x)
    check(lambda t, a: t.record("pow", a, 3.0), x)


def test_an_operation_with_several_results_makes_several_slots() -> None:
    tape = GradientTape()
    values, indices = tape.record_max_with_indices(tape.input(np.array([[1.0, 3.0], [5.0, 2.0]])), axis=1)
    np.testing.assert_array_equal(indices, [1, 0])
    np.testing.assert_array_equal(tape.backward(np.array([1.0, 2.0]), output=values)[0], [[0.0, 1.0], [2.0, 0.0]])


def test_unknown_operations_are_refused() -> None:
    tape = GradientTape()
    with pytest.raises(AttributeError, match="record_multiply"):
        tape.record_multiply(0, 0)
    with pytest.raises(ArgumentError, match=r"no operation 'mull'.*'mul'"):
        tape.record("mull", 0, 0)
    with pytest.raises(ArgumentError, match="argmax has no gradient"):
        tape.record("argmax", 0, axis=0)
    with pytest.raises(ArgumentError, match="no operand is a slot"):
        tape.record("mul", np.ones(2), np.ones(2))
    assert "record_softmax" in dir(tape)


# ---- slots ----


def test_slots_are_numbered_and_counted() -> None:
    tape = GradientTape()
    assert (tape.num_tensors, len(tape)) == (0, 0)
    a, b = tape.input(np.ones(2)), tape.input(np.array(2.0))
    assert (a, b, tape.record_add(a, b), tape.record_mul(a, a), tape.record_exp(a)) == (0, 1, 2, 3, 4)
    assert (tape.num_tensors, len(tape)) == (5, 3)
    assert tape.shape(2) == (2,)
    assert "3 operations on 5 slots" in repr(tape)
    tape.reset()
    assert (tape.num_tensors, len(tape)) == (0, 0)
    assert tape.input(1.0) == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_dtype_is_kept(dtype: str) -> None:
    tape = GradientTape()
    x = tape.input(np.array([1.0, 2.0], dtype))
    y = tape.record_mul(tape.record_add(x, x), x)
    tape.record_layer_norm(y, None, None, np.ones(2))
    assert all(tape.value(i).dtype == dtype for i in range(4))
    assert all(g.dtype == dtype for g in tape.backward(np.ones(2)))


def test_inputs_are_tensors_primitives_arrays_and_floats() -> None:
    tape, array = GradientTape(), np.array([1.0, 2.0])
    slot = tape.input(array)
    array[0] = 9.0
    np.testing.assert_array_equal(tape.value(slot), [1.0, 2.0])
    tracked: Any = OUTER.set_require_grad(OUTER.from_inner(np.ones(2)), True)
    for x in (bb.asarray([1.0]), bb.asarray([1.0], backend="numpy"), bb.asarray([1.0]).require_grad(), tracked):
        assert tape.value(tape.input(x)).shape == tuple(x.shape)
    assert tape.value(tape.input(2.5)).dtype == "float32"
    assert tape.value(tape.input(np.float64(2.5))).dtype == "float64"
    with pytest.raises(DTypeError, match=r"write 2\.0"):
        tape.input(2)
    with pytest.raises(DTypeError, match="int64"):
        tape.input(np.array([1, 2]))
    listed = tape.value(tape.input([[1.0, 2.0], (3, 4.5)]))
    np.testing.assert_array_equal(listed, np.array([[1.0, 2.0], [3.0, 4.5]], "float32"), strict=True)
    assert tape.value(tape.input([])).shape == (0,)
    np.testing.assert_array_equal(tape.value(tape.input([1e300, -1.0])), [np.inf, -1.0])
    with pytest.raises(DTypeError, match="int64"):
        tape.input([1, 2])
    with pytest.raises(ArgumentError, match="do not form an array"):
        tape.input([[1.0, 2.0], [3.0]])
    for nothing in (None, ["a"], [np.ones(2)]):
        with pytest.raises(BackendMismatchError, match="expected a tensor"):
            tape.input(nothing)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.record_add(0, 7),
        lambda t: t.record_add(-1, 0),
        lambda t: t.record_mul(7, None, 0, None),
        lambda t: t.record_matmul(0, 7),
        lambda t: t.record_silu(7),
        lambda t: t.record_layer_norm(0, None, None, 7),
        lambda t: t.record_ssm_scan(0, 7, np.ones(2)),
        lambda t: t.record_exp(-1),
        lambda t: t.value(7),
        lambda t: t.backward(np.ones(2), output=7),
    ],
)
def test_slots_that_do_not_exist(use: Any) -> None:
    tape = GradientTape()
    tape.input(np.ones((2, 2)))
    with pytest.raises(OutOfRangeError, match=r"there is no slot -?\d; the tape has 0 to 0"):
        use(tape)
    assert tape.num_tensors == 1


def test_errors_name_the_operation_and_the_slots() -> None:
    tape = GradientTape()
    a, b, c = tape.input(np.ones(3)), tape.input(np.ones(4)), tape.input(np.ones(3, "float32"))
    with pytest.raises(ShapeError, match=r"record_add: cannot broadcast.*slot 0 float64\[3\], slot 1 float64\[4\]"):
        tape.record_add(a, b)
    with pytest.raises(ShapeError, match="record_div"):
        tape.record_div(a, b)
    with pytest.raises(DTypeError, match=r"record_mul: the operands differ in dtype.*slot 2 float32"):
        tape.record_mul(a, c)
    with pytest.raises(DTypeError, match="expected the index of a slot, not ndarray"):
        tape.record_add(a, np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"slot 0 has shape \[3\] and is not a matrix"):
        tape.record_matmul(a, b)
    with pytest.raises(ShapeError, match="axis 5"):
        tape.record_softmax(a, axis=5)
    m, n = tape.input(np.ones((2, 3))), tape.input(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="inner dimensions differ"):
        tape.record_matmul(m, n)
    assert tape.num_tensors == 5


# ---- the documented signatures ----


def test_data_are_optional_and_must_agree_with_the_slot() -> None:
    x, y = normal(3), normal(3, seed=1)
    tape = GradientTape()
    a, b = tape.input(x), tape.input(y)
    tape.record_mul(a, x, b, y)
    tape.record_mul(a, None, b, y)
    tape.record_mul(a=a, a_data=x * (1 + 1e-13), b=b, b_data=None)
    tape.record_silu(a, x)
    with pytest.raises(ArgumentError, match="record_mul: the data of slot 1 differ from its value"):
        tape.record_mul(a, x, b, x)
    with pytest.raises(ArgumentError, match="slot 0"):
        tape.record_silu(a, x + 1e-3)
    with pytest.raises(ShapeError, match=r"slot 0 have shape \[4\]"):
        tape.record_silu(a, normal(4))
    for wrong in (lambda: tape.record_mul(a, x, b), lambda: tape.record_mul(a)):  # type: ignore[call-overload]
        with pytest.raises(ArgumentError, match="two slots"):
            wrong()
    nan = tape.input(np.array([np.nan, np.inf]))
    tape.record_silu(nan, np.array([np.nan, np.inf]))
    float32 = tape.input(np.float32(x))
    tape.record_silu(float32, x)  # equal within the slot's dtype


def test_slots_without_values_take_the_first_data() -> None:
    x, y = normal(3), normal(3, seed=1)
    tape = GradientTape()
    a, b = tape.alloc(3, "float64"), tape.alloc((3,), "float64")
    with pytest.raises(ArgumentError, match="record_silu: slot 0 has no value"):
        tape.record_silu(a)
    with pytest.raises(ArgumentError, match="slot 1 has no value"):
        tape.record_mul(a, x, b, None)
    product = tape.record_mul(a, x, b, y)
    np.testing.assert_array_equal(tape.value(a), x)
    np.testing.assert_allclose(tape.value(product), x * y)
    with pytest.raises(ArgumentError, match="differ from its value"):
        tape.record_silu(a, y)
    np.testing.assert_allclose(tape.backward(np.ones(3))[0], y)
    with pytest.raises(ArgumentError, match="has no value"):
        tape.value(tape.alloc(2))
    with pytest.raises(DTypeError, match="int64"):
        tape.alloc(2, "int64")
    with pytest.raises(ShapeError, match="integers from 0 on"):
        tape.alloc(-1)


def test_addition_needs_no_values() -> None:
    tape = GradientTape()
    a, b = tape.alloc(3, "float64"), tape.alloc(3, "float64")
    total = tape.record_add(a, tape.record_add(a, b))
    tape.record_silu(total, np.zeros(3))
    gradients = tape.backward(np.ones(3))
    np.testing.assert_allclose(gradients[a], 1.0)
    np.testing.assert_allclose(gradients[b], 0.5)


def test_a_documented_program_of_data_and_flat_buffers() -> None:
    a_mat, b_mat = normal(2, 3), normal(3, 2, seed=1)
    tape = GradientTape()
    a, b, c = tape.alloc(6, "float64"), tape.alloc(6, "float64"), tape.input(normal(4, seed=2))
    product = tape.record_matmul(a, a_mat, b, b_mat)
    assert tape.shape(product) == (4,)
    out = tape.record_silu(tape.record_add(product, c))
    tensors = [np.zeros(tape.shape(i)) for i in range(tape.num_tensors)]
    assert tape.backward(np.ones(4), tensors) is tensors
    z = (a_mat @ b_mat).reshape(-1) + tape.value(c)
    s = 1 / (1 + np.exp(-z))
    g = (s * (1 + z * (1 - s))).reshape(2, 2)
    np.testing.assert_allclose(tensors[a], (g @ b_mat.T).reshape(-1))
    np.testing.assert_allclose(tensors[b], (a_mat.T @ g).reshape(-1))
    np.testing.assert_allclose(tensors[c], g.reshape(-1))
    assert out == 5


def test_products_of_products() -> None:
    a, b, c = normal(2, 3), normal(3, 4, seed=1), normal(4, 2, seed=2)
    check(lambda t, x, y, z: t.record_matmul(t.record_matmul(x, y), z), a, b, c)
    tape = GradientTape()
    x, y, z = tape.input(a), tape.input(b), tape.input(c)
    flat = tape.record_matmul(x, y, flat=True)
    assert tape.shape(flat) == (8,)
    last = tape.record_matmul(flat, z)
    assert tape.shape(last) == (2, 2)
    again = tape.record_matmul(flat, a @ b, z, c, flat=False)
    np.testing.assert_allclose(tape.value(last), a @ b @ c)
    np.testing.assert_allclose(tape.value(again), a @ b @ c)
    gradients = tape.backward(np.ones(4), output=last)  # the flat gradient of a matrix
    np.testing.assert_allclose(gradients[flat], (np.ones((2, 2)) @ c.T).reshape(-1))


def test_given_statistics_must_be_those_of_the_slot() -> None:
    x = normal(2, 5) + 100.0
    tape = GradientTape()
    slot = tape.input(x)
    tape.record_layer_norm(slot, x.mean(-1), x.var(-1), np.ones(5))
    vector = tape.input(x[0].astype("float32"))
    tape.record_layer_norm(vector, float(x[0].mean()), float(x[0].var()), np.ones(5), np.zeros(5))
    with pytest.raises(ArgumentError, match="record_layer_norm: mean is not that of slot 0"):
        tape.record_layer_norm(slot, x.mean(-1) + 1.0, None)
    with pytest.raises(ArgumentError, match="var is not that of slot 0"):
        tape.record_layer_norm(slot, None, 2 * x.var(-1) + 1.0)
    with pytest.raises(ShapeError, match=r"mean has shape \[5\]"):
        tape.record_layer_norm(slot, np.zeros(5))
    with pytest.raises(ShapeError, match="0-d"):
        tape.record_layer_norm(tape.input(1.0))


# ---- backward ----


def chain() -> tuple[GradientTape, int, int, int]:
    tape = GradientTape()
    x, y = tape.input(np.array([1.0, 2.0])), tape.input(np.array([3.0, 4.0]))
    return tape, x, y, tape.record_mul(tape.record_add(x, y), y)


def test_backward_can_be_repeated_and_start_from_any_slot() -> None:
    tape, x, y, z = chain()
    first, second = tape.backward(np.ones(2)), tape.backward(np.ones(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.shares_memory(a, b)
    np.testing.assert_array_equal(first[x], [3.0, 4.0])
    np.testing.assert_array_equal(first[y], [7.0, 10.0])
    np.testing.assert_array_equal(first[2], [3.0, 4.0])
    np.testing.assert_array_equal(first[z], [1.0, 1.0])
    inner = tape.backward(np.array([5.0, 6.0]), output=2)
    np.testing.assert_array_equal(inner[x], [5.0, 6.0])
    np.testing.assert_array_equal(inner[z], [0.0, 0.0])
    np.testing.assert_array_equal(tape.backward(np.ones(2), output=y)[y], [1.0, 1.0])
    assert len({id(g) for g in first}) == 4
    first[x][0] = 100.0
    assert first[2][0] == 3.0


def test_backward_starts_from_the_last_operation() -> None:
    tape = chain()[0]
    wanted = tape.backward(np.ones(2))
    tape.input(np.array([7.0, 8.0]))
    tape.alloc(2)
    for a, b in zip(tape.backward(np.ones(2)), [*wanted, np.zeros(2), np.zeros(2)], strict=True):
        np.testing.assert_array_equal(a, b)
    leaves = GradientTape()
    leaves.input(np.ones(3))
    leaves.input(np.ones(2))
    np.testing.assert_array_equal(leaves.backward(np.array([5.0, 6.0]))[1], [5.0, 6.0])


def test_gradients_are_added_to_buffers_in_place() -> None:
    tape, x, y, z = chain()
    tensors: list[Any] = [np.full(2, 10.0) for _ in range(4)]
    tensors[y] = np.full(2, 10.0, "float32")
    tensors.append("not a slot's")
    before = list(tensors)
    assert tape.backward(np.ones(2), tensors) is tensors
    assert all(a is b for a, b in zip(before, tensors, strict=True))
    np.testing.assert_array_equal(tensors[x], [13.0, 14.0])
    np.testing.assert_array_equal(tensors[y], np.array([17.0, 20.0], "float32"), strict=True)
    np.testing.assert_array_equal(tensors[z], [11.0, 11.0])
    tape.backward(np.ones(2), tensors)
    np.testing.assert_array_equal(tensors[x], [16.0, 18.0])


def test_buffers_that_are_not_arrays_are_replaced() -> None:
    tape = GradientTape()
    x = tape.input(np.float32(2.0))
    tape.record_mul(x, x)
    tensors: list[Any] = [bb.asarray(1.0, backend="numpy"), 0.5]
    tape.backward(1.0, tensors)
    assert isinstance(tensors[0], bb.Tensor)
    assert float(tensors[0]) == 5.0
    assert float(tensors[1]) == 1.5


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda ts: ts.pop(), ArgumentError, "3 buffers, and the tape has 4 slots"),
        (lambda ts: ts.__setitem__(1, np.zeros(3)), ShapeError, r"the buffer of slot 1 has shape \[3\]"),
        (lambda ts: ts.__setitem__(1, np.zeros(2, "int64")), DTypeError, "slot 1"),
        (lambda ts: ts.__setitem__(1, ts[0]), ArgumentError, "is also that of slot 0"),
        (lambda ts: ts[2].setflags(write=False), ArgumentError, "slot 2 is read-only"),
    ],
)
def test_wrong_buffers_are_refused_and_unchanged(change: Any, error: type[Exception], match: str) -> None:
    tape, *_ = chain()
    tensors = [np.full(2, 10.0) for _ in range(4)]
    change(tensors)
    before = [t.copy() for t in tensors]
    with pytest.raises(error, match=match):
        tape.backward(np.ones(2), tensors)
    for a, b in zip(before, tensors, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(DTypeError, match="tensors is a list"):
        tape.backward(np.ones(2), tuple(tensors))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((2, 1)), np.ones(()), 1.0])
def test_a_loss_gradient_of_another_shape_is_refused(wrong: Any) -> None:
    tape, *_ = chain()
    with pytest.raises(ShapeError, match="slot 3"):
        tape.backward(wrong)


def test_an_empty_tape_has_no_gradients() -> None:
    assert GradientTape().backward(np.ones(1)) == []
    buffers: list[Any] = [np.ones(1)]
    assert GradientTape().backward(np.ones(1), buffers) is buffers


# ---- nonfinite gradients ----


def unstable(build: Build, *inputs: Any) -> str:
    """The message of the error, after checking that no buffer changed."""
    tape = GradientTape()
    build(tape, *(tape.input(x) for x in inputs))
    tensors = [np.ones(tape.shape(i)) for i in range(tape.num_tensors)]
    with pytest.raises(NumericalInstabilityError) as error:
        tape.backward(np.ones(tape.shape(tape.num_tensors - 1)), tensors)
    assert all((t == 1.0).all() for t in tensors)
    return str(error.value)


def test_nonfinite_gradients_name_slot_and_operation() -> None:
    message = unstable(lambda t, x: t.record_log(x), np.array([1.0, 0.0]))
    assert "the gradient of slot 0, made by input" in message
    assert "record_log in slot 1" in message
    message = unstable(lambda t, x: t.record_exp(t.record_sqrt(t.record_mul(x, x))), np.array([1.0, 0.0]))
    assert "slot 1, which record_mul made" in message
    assert "record_sqrt in slot 2" in message


def test_a_later_zero_does_not_hide_nonfinite_gradients() -> None:
    message = unstable(lambda t, x: t.record_sqrt(t.record_relu(x)), np.array([1.0, -1.0]))
    assert "slot 1, which record_relu made" in message


def test_nonfinite_loss_gradients_and_sums() -> None:
    tape, *_ = chain()
    for bad in (np.nan, np.inf):
        with pytest.raises(NumericalInstabilityError, match=r"slot 3.*comes from loss_grad"):
            tape.backward(np.array([1.0, bad]))
    tensors = [np.full(2, 1.0) for _ in range(4)]
    tensors[2][1] = np.inf
    with pytest.raises(NumericalInstabilityError, match=r"added to its buffer.*slot 2"):
        tape.backward(np.ones(2), tensors)
    np.testing.assert_array_equal(tensors[3], 1.0)


# ---- backends, levels, length ----


def test_the_backend_is_the_default_of_the_scope_or_the_one_given() -> None:
    assert GradientTape().backend is BASE
    assert GradientTape(backend=BASE).backend is BASE
    assert GradientTape(backend=OUTER).backend is BASE
    assert GradientTape(backend="autodiff(autodiff(numpy))").backend is OUTER
    with scoped(DEFAULT_BACKEND, Autodiff(OUTER)):
        assert GradientTape().backend is OUTER


def test_checks_of_values_are_skipped_without_values() -> None:
    tape, v = GradientTape(backend="null"), np.array([1.0, 2.0])
    x = tape.input(v)
    y = tape.record_layer_norm(tape.record_mul(x, v, x, v), 2.5, 2.25, np.ones(2))
    gradients = tape.backward(v)
    assert [g.shape for g in gradients] == [(2,)] * 3
    tensors = [tape.backend.zeros((2,), float64) for _ in range(3)]
    assert tape.backward(v, tensors, output=y) is tensors


def test_gradients_can_be_differentiated_again() -> None:
    x: Any = OUTER.set_require_grad(OUTER.from_inner(np.array([2.0, 3.0])), True)
    tape = GradientTape(backend=Autodiff(OUTER))
    a = tape.input(x)
    tape.record_mul(tape.record_mul(a, a), a)
    first = tape.backward(OUTER.from_inner(np.ones(2)))[a]
    np.testing.assert_allclose(OUTER.inner(first), [12.0, 27.0])
    np.testing.assert_allclose(OUTER.grad(x, OUTER.backward(first)), [12.0, 18.0])  # type: ignore[arg-type]


def test_a_tape_records_inside_no_grad() -> None:
    tape = GradientTape()
    x = tape.input(np.array([2.0]))
    with bb.no_grad():
        y = tape.record_mul(x, x)
        tape.record_exp(tape.record_silu(tape.record_add(y, x)))
    z, s = 6.0, 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(tape.backward(np.ones(1))[x], 5.0 * s * (1 + z * (1 - s)) * np.exp(z * s))
    with bb.no_grad():
        matrix = tape.input(np.array([[1.0, 2.0], [3.0, 4.0]]))
        product = tape.record_matmul(matrix, matrix, flat=True)
        tape.record_matmul(product, matrix)
        gradients = tape.backward(np.ones((2, 2)))
    np.testing.assert_allclose(gradients[product], [3.0, 7.0, 3.0, 7.0])


@pytest.mark.slow
def test_a_hundred_thousand_slots() -> None:
    tape = GradientTape()
    x, one = tape.input(np.array([1.0])), tape.input(np.array([1.0]))
    last = x
    for _ in range(49_999):
        last = tape.record_add(tape.record_mul(last, one), x)
    assert tape.num_tensors == 100_000
    gradients = tape.backward(np.ones(1))
    np.testing.assert_allclose(gradients[x], 50_000.0)
    assert len(gradients) == 100_000


def test_errors_of_unrecordable_operations() -> None:
    tape = GradientTape()
    for name, words in {
        "record_sotfmax": "no attribute 'record_sotfmax'",
        "record_argmax": "record_argmax: it has no gradient",
        "foo": "no attribute 'foo'",
    }.items():
        with pytest.raises(AttributeError, match=words):
            getattr(tape, name)
    with pytest.raises(ArgumentError, match=r"no operation 'sotfmax'\. Did you mean 'softmax'"):
        tape.record("sotfmax", 0)
    for shape in ("a", 2.5, True, [2, None]):
        with pytest.raises(ShapeError, match="integers from 0 on"):
            tape.alloc(shape)  # type: ignore[arg-type]
    assert tape.shape(tape.alloc(np.array([2, 3]))) == (2, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.record_add(True, 0),
        lambda t: t.record_mul(0, True),
        lambda t: t.record_mul(False, None, 0, None),
        lambda t: t.record_matmul(False, 0),
        lambda t: t.record_silu(True),
        lambda t: t.record_div(0, True),
        lambda t: t.record_layer_norm(False),
        lambda t: t.record_layer_norm(0, None, None, True),
        lambda t: t.record_ssm_scan(0, True, 1.0),
        lambda t: t.value(True),
        lambda t: t.shape(False),
        lambda t: t.backward(1.0, output=True),
    ],
)
def test_booleans_are_not_slots(use: Any) -> None:
    tape = GradientTape()
    tape.input(np.ones((2, 2)))
    tape.input(np.ones((2, 2)))
    with pytest.raises(DTypeError, match=r"not bool|write 1\.0"):
        use(tape)
    assert tape.num_tensors == 2


def test_options_follow_the_operands_in_the_declared_order() -> None:
    tape, x = GradientTape(), normal(2, 3)
    a = tape.input(x)
    for recorded, expected in (
        (tape.record_reshape(a, (3, 2)), x.reshape(3, 2)),
        (tape.record_reshape(a, 6), x.reshape(6)),
        (tape.record_sum(a, 0), x.sum(0)),
        (tape.record_sum(a, (0, 1), True), x.sum(keepdims=True)),
        (tape.record_sum(a), x.sum()),
        (tape.record_softmax(a, -1), np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        (tape.record_concat([a, a], 1), np.concatenate([x, x], 1)),
        (tape.record_clip(a, min=0.25), np.maximum(x, 0.25)),
        (tape.record_pow(a, 2.0), x**2),
    ):
        np.testing.assert_allclose(tape.value(recorded), expected)
    for wrong, match in (
        (lambda: tape.record_softmax(a), r"record_softmax: softmax takes x, axis, and axis is missing\. Write axis="),
        (lambda: tape.record_softmax(a, dim=1), "no option 'dim': softmax takes x, axis"),
        (lambda: tape.record_softmax(a, 1, axis=1), "axis is given twice"),
        (lambda: tape.record_softmax(a, 1, 2), "3 arguments were given"),
        (lambda: tape.record("sub", a), "sub takes x, y, and y is missing"),
    ):
        with pytest.raises(ArgumentError, match=match):
            wrong()
    with pytest.raises(DTypeError, match="tensors is a list of slots"):
        tape.record_concat(a, 0)
    with pytest.raises(DTypeError, match="the result is int64"):
        tape.record_astype(a, "int64")
    assert "2.0 for 2" in (tape.record_pow.__doc__ or "")


@pytest.mark.parametrize("constant", [[1, 2, 3], np.arange(1, 4), np.arange(1, 4, dtype=np.int8)])
def test_constant_integers_are_cast_to_the_dtype_of_the_slots(constant: Any) -> None:
    tape = GradientTape()
    x = tape.input(np.array([2.0, 3.0, 4.0], np.float32))
    for name in ("mul", "pow", "maximum"):
        slot = tape.record(name, x, constant)
        assert tape.value(slot).dtype == tape.backward(np.ones(3))[x].dtype == np.float32
    assert tape.value(tape.record_ssm_scan(x, constant, constant)).dtype == np.float32
    assert tape.value(tape.record_take(x, [2, 0], axis=0)).tolist() == [4.0, 2.0]
    with pytest.raises(DTypeError, match="record_add: the operands differ in dtype"):
        tape.record("add", x, np.array([True, False, True]))


def test_errors_for_slots_without_a_value_have_a_hint() -> None:
    tape = GradientTape()
    a = tape.alloc(2)
    for use in (tape.record_exp, tape.record_layer_norm, tape.value):
        with pytest.raises(ArgumentError, match="pass its data to record_mul or record_matmul or record_silu"):
            use(a)
    with pytest.raises(ArgumentError, match=r"make it with input\(x\), or pass its data to record_silu$"):
        tape.record_silu(a)


def test_a_scan_needs_its_coefficients() -> None:
    tape = GradientTape()
    tape.input(np.ones(3))
    with pytest.raises(ArgumentError, match="record_ssm_scan: a_vals is missing"):
        tape.record_ssm_scan(0, None, np.ones(3))
    with pytest.raises(ArgumentError, match="b_vals is missing"):
        tape.record_ssm_scan(0, np.ones(3), None)


# ---- slots without values ----

THIRDS = np.array([1 / 3, 2 / 3, 1.0])


def test_a_slot_without_a_dtype_takes_that_of_its_first_data() -> None:
    for dtype in ("float64", "float32", "float16"):
        tape, x = GradientTape(), THIRDS.astype(dtype)
        a, b = tape.alloc(3), tape.alloc(3)
        product = tape.record_mul(a, x, b, x)
        np.testing.assert_array_equal(tape.value(product), x * x, strict=True)
        assert all(g.dtype == dtype for g in tape.backward(np.ones(3)))
        tape.record_mul(a, b)
    tape = GradientTape()
    a, b = tape.alloc(3), tape.input(THIRDS)
    np.testing.assert_array_equal(tape.value(tape.record_mul(a, THIRDS, b, None)), THIRDS**2)
    tape = GradientTape()
    tape.record_add(tape.alloc(3), tape.input(THIRDS))
    assert [g.dtype.name for g in tape.backward(np.ones(3))] == ["float64"] * 3
    tape = GradientTape()
    tape.record_add(tape.alloc(3), tape.alloc(3))  # without any data
    assert [g.dtype.name for g in tape.backward(np.ones(3))] == ["float32"] * 3


def test_data_of_another_dtype_than_an_allocated_slot_are_refused() -> None:
    tape = GradientTape()
    a, b = tape.alloc(3, "float32"), tape.alloc((), "float64")
    with pytest.raises(DTypeError, match="the data of slot 0 are float64, and the slot is float32: cast them"):
        tape.record_silu(a, THIRDS)
    assert tape.value(tape.record_silu(b, 0.5)).dtype == "float64"  # Python numbers have no dtype
    tape.record_silu(a, THIRDS.astype("float32"))


def test_failing_operations_do_not_set_values() -> None:
    tape = GradientTape()
    a, b, c = tape.alloc(3), tape.alloc(4), tape.input(THIRDS)
    for wrong in (
        lambda: tape.record_mul(a, THIRDS, b, THIRDS),
        lambda: tape.record_mul(a, THIRDS.astype("float32"), c, None),
        lambda: tape.record_matmul(a, THIRDS.reshape(1, 3), b, np.ones((2, 2))),
    ):
        with pytest.raises((ShapeError, DTypeError)):
            wrong()
        with pytest.raises(ArgumentError, match="slot 0 has no value"):
            tape.record_silu(a)
    assert tape.num_tensors == 3
    np.testing.assert_array_equal(tape.value(tape.record_mul(a, THIRDS, c, THIRDS)), THIRDS**2)


def test_a_sum_has_a_value_once_its_slots_have() -> None:
    tape = GradientTape()
    u, v = tape.alloc(3), tape.alloc(3)
    w = tape.record_add(u, v)
    twice = tape.record_add(w, w)
    tape.record_silu(u, THIRDS)
    with pytest.raises(ArgumentError, match="slot 2 has no value"):
        tape.value(w)
    with pytest.raises(DTypeError, match="the data of slot 1 are float32, and the slot is float64"):
        tape.record_silu(v, THIRDS.astype("float32"))
    tape.record_silu(v, 2 * THIRDS)
    np.testing.assert_allclose(tape.value(w), 3 * THIRDS)
    np.testing.assert_allclose(tape.value(twice), 6 * THIRDS)
    assert tape.value(tape.record_mul(twice, u)).dtype == "float64"


def test_data_of_a_sum_and_of_its_slots_must_agree() -> None:
    tape = GradientTape()
    u, v = tape.alloc(3), tape.alloc(3)
    w = tape.record_add(u, v)
    tape.record_silu(w, THIRDS)
    tape.record_silu(u, 1e6 * THIRDS)
    with pytest.raises(ArgumentError, match="slot 2 is the sum of slots 0 and 1, and the data it was given are not"):
        tape.record_silu(v, THIRDS)
    with pytest.raises(ArgumentError, match="slot 1 has no value"):
        tape.value(v)
    tape.record_silu(v, THIRDS - 1e6 * THIRDS)
    np.testing.assert_array_equal(tape.value(w), THIRDS)


# ---- buffers that share memory ----


@pytest.mark.parametrize(
    "views",
    [
        lambda m: (m[0], m[0][:]),
        lambda m: (m[0, :4], m[0, 3:7]),
        lambda m: (m[0, :4], m[1, 3::-1], m[0, 3::-1]),
        lambda m: (m[:, 1], m[1]),
        lambda m: (m[:, ::2], m[:, 2:4]),
        lambda m: (m, m[2, 3]),
    ],
)
def test_buffers_that_share_memory_are_refused(views: Any) -> None:
    found = views(np.zeros((4, 8)))
    tape = GradientTape()
    for x in found:
        tape.input(np.zeros(x.shape))
    slot = tape.input(np.zeros(()))
    buffers = [np.asarray(x) for x in found] + [np.zeros(())]
    if any(not b.shape for b in buffers[:-1]):
        buffers = [m := np.zeros((4, 8)), m[2, 3:4].reshape(()), np.zeros(())]
    with pytest.raises(ArgumentError, match=r"the buffers of slots 0 and \d share memory"):
        tape.backward(1.0, buffers, output=slot)
    assert not any(b.any() for b in buffers)


@pytest.mark.parametrize(
    "views",
    [
        lambda m: (m[0], m[1]),
        lambda m: tuple(m.T),
        lambda m: (m[:, ::2], m[:, 1::2]),
        lambda m: (m[:, :3], m[:, 3:5], m[:, 5:]),
        lambda m: (m[::2, 1], m[1::2], m[::2, 2:]),
        lambda m: (m[0, :0], m[0], m[1:, ::-1]),
    ],
)
def test_disjoint_views_of_one_array_can_be_buffers(views: Any) -> None:
    buffers = list(views(np.zeros((4, 8))))
    tape = GradientTape()
    for x in buffers:
        tape.input(np.ones(x.shape))
    for slot, x in enumerate(buffers):
        tape.backward(np.ones(x.shape), buffers, output=slot)
    assert all((x == 1.0).all() for x in buffers)


def test_bound_methods_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    short = record.short

    def counted(general: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(general.__name__)
        return short(general)

    monkeypatch.setattr(record, "short", counted)
    record._install(OPERATIONS["cosh"])  # resets the method to its uncompiled state
    tape = GradientTape()
    x = tape.input(np.zeros(2))
    recorded = tape.record_cosh
    assert [recorded(x) for _ in range(3)] == [1, 2, 3]
    assert compiled == ["record_cosh"]
    assert tape.record_cosh(x) == 4
    assert compiled == ["record_cosh"]


def test_fast_methods_accept_every_form_of_a_call() -> None:
    tape = GradientTape()
    x, y = tape.input(np.array([2.0])), tape.input(np.array([3.0]))
    calls = [
        tape.record_mul(x, y), tape.record_mul(x, b=y), tape.record_mul(a=x, b=y), tape.record_mul(x, None, y, None),
        tape.record_mul(x, [2.0], b=y, b_data=[3.0]), tape.record_mul(a=x, a_data=None, b=y, b_data=None),
    ]  # fmt: skip
    assert [tape.value(slot).tolist() for slot in calls] == [[6.0]] * 6
    assert [tape.value(slot).tolist() for slot in (tape.record_add(a=x, b=y), tape.record_add(x, b=y))] == [[5.0]] * 2
    silu = [tape.record_silu(x), tape.record_silu(input=x), tape.record_silu(x, [2.0]), tape.record_silu(x, None)]
    assert len({tape.value(slot).item() for slot in silu}) == 1
    assert list(inspect.signature(GradientTape.record_silu).parameters) == ["self", "input", "input_data"]
