"""The tape of closures: the order of operations, their lifetime, and errors."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.autodiff.tape.closures import Cell, Gradients, GradientTape
from backburn.base.contexts import DEFAULT_BACKEND, scoped
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, GraphError, ShapeError
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
OUTER = Autodiff(BASE)
RANDOM = np.random.default_rng(1)


def seed(tape: GradientTape, t: Any) -> None:
    tape.add_backward_op(lambda g: g.mut_gradient(t).set(1.0))


def test_the_documented_negation() -> None:
    t = RANDOM.normal(size=(2, 3))
    deriv, result = np.full_like(t, -1.0), -t

    def negate(grads: Gradients) -> None:
        t_grad, result_grad = grads.mut_and_ref(t, result)
        t_grad.addmul(deriv, result_grad)

    tape = GradientTape()
    tape.add_backward_op(negate)
    seed(tape, result)
    grads = tape.execute()
    np.testing.assert_array_equal(grads.ref_gradient(t).value, -np.ones((2, 3)))
    assert isinstance(grads, Gradients)
    assert len(grads) == 2


def test_operations_run_once_in_reverse_order() -> None:
    ran: list[int] = []
    tape = GradientTape()

    def numbered(i: int) -> None:
        tape.add_backward_op(lambda g: ran.append(i))

    for i in range(4):
        numbered(i)
    assert len(tape) == 4
    assert repr(tape) == "<closures.GradientTape: 4 operations>"
    tape.execute()
    assert ran == [3, 2, 1, 0]
    assert repr(tape) == "<closures.GradientTape: executed>"


def diamond(first: GradientTape, second: GradientTape) -> tuple[Any, dict[str, Any]]:
    """x -> a = 2x on one tape, c = 3a on another, d = 5a on the first: (c + d)' = 2 (3 + 5) = 16."""
    x = np.array(1.0)
    a, c, d = 2 * x, 6 * x, 10 * x
    total = c + d

    def scaled(tape: GradientTape, y: Any, z: Any, factor: float) -> None:
        def op(g: Gradients) -> None:
            y_grad, z_grad = g.mut_and_ref(y, z)
            y_grad.addmul(factor, z_grad)

        tape.add_backward_op(op)

    scaled(first, x, a, 2.0)
    scaled(second, a, c, 3.0)
    scaled(first, a, d, 5.0)
    return x, {"c": c, "d": d, "total": total}


@pytest.mark.parametrize("order", ["c + d", "d + c"])
def test_merged_tapes_are_right_on_diamonds(order: str) -> None:
    first, second = GradientTape(), GradientTape()
    x, made = diamond(first, second)
    mine, its = (second, first) if order == "c + d" else (first, second)
    mine.append(its)
    assert len(its) == 0
    assert len(mine) == 3

    def add(g: Gradients) -> None:
        for term in ("c", "d"):
            g.mut_gradient(made[term]).add(g.ref_gradient(made["total"]))

    mine.add_backward_op(add)
    seed(mine, made["total"])
    assert mine.execute().get(x) == 16.0
    its.add_backward_op(lambda g: None)  # an emptied tape can still be used
    assert len(its) == 1


def test_operations_are_freed_after_they_run() -> None:
    class Operation:
        def __call__(self, g: Gradients) -> None:
            pass

    tape, alive = GradientTape(), []
    operations = [Operation() for _ in range(3)]
    references = [weakref.ref(o) for o in operations]
    for operation in operations:
        tape.add_backward_op(lambda g: alive.append([r() is not None for r in references]))
        tape.add_backward_op(operation)
    del operations, operation
    tape.execute()
    gc.collect()
    assert alive == [[True, True, False], [True, False, False], [False, False, False]]


@pytest.mark.parametrize("executed", [False, True])
def test_tapes_and_gradients_are_freed_with_their_last_reference(executed: bool) -> None:
    x = bb.ones(2).require_grad()
    tape, gradients, of_tensors = GradientTape(), Gradients(), x.sum().backward()
    tape.add_backward_op(lambda grads: grads.mut_gradient(x).set(1.0))
    if executed:
        tape.execute(gradients)
    references = [weakref.ref(o) for o in (tape, gradients, of_tensors)]
    del tape, gradients, of_tensors
    assert [r() for r in references] == [None, None, None]


def test_an_executed_tape_refuses_everything() -> None:
    tape = GradientTape()
    tape.execute()
    for use in (tape.execute, lambda: tape.append(GradientTape()), lambda: GradientTape().append(tape)):
        with pytest.raises(GraphError, match=r"has been executed.*new GradientTape"):
            use()
    with pytest.raises(GraphError, match="add_backward_op: the tape has been executed"):
        tape.add_backward_op(lambda g: None)


def test_a_failing_operation_consumes_the_tape_and_is_named() -> None:
    tape = GradientTape()
    ran = []

    def broken(g: Gradients) -> None:
        raise ValueError("no")

    tape.add_backward_op(lambda g: ran.append(0))
    tape.add_backward_op(broken)
    tape.add_backward_op(lambda g: ran.append(2))
    with pytest.raises(ValueError, match="no") as error:
        tape.execute()
    assert ran == [2]
    assert any("operation 2 of 3" in note and "broken" in note for note in error.value.__notes__)
    with pytest.raises(GraphError, match="has been executed"):
        tape.execute()


def test_append_refuses_the_same_tape_and_other_backends() -> None:
    tape = GradientTape()
    with pytest.raises(ArgumentError, match="cannot be appended to itself"):
        tape.append(tape)
    with pytest.raises(BackendMismatchError, match="append"):
        tape.append(GradientTape(backend=Autodiff(OUTER)))
    with pytest.raises(DTypeError, match="function of Gradients"):
        tape.add_backward_op(3)  # type: ignore[arg-type]


# ---- gradients ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_cell_starts_as_zeros_of_the_tensors_shape_and_dtype(dtype: str) -> None:
    grads, t = Gradients(), np.ones((2, 3), dtype)
    cell = grads.mut_gradient(t)
    assert isinstance(cell, Cell)
    assert cell.shape == (2, 3)
    assert cell.dtype == dtype
    np.testing.assert_array_equal(cell.value, np.zeros((2, 3), dtype), strict=True)
    before = cell.value
    cell.add(t)
    cell.addmul(t, 2.0)
    np.testing.assert_array_equal(cell.value, np.full((2, 3), 3.0, dtype), strict=True)
    np.testing.assert_array_equal(before, 0.0)  # primitives are never modified
    assert grads.mut_gradient(t) is cell
    cell.set(4)
    np.testing.assert_array_equal(grads.ref_gradient(t).value, np.full((2, 3), 4.0, dtype), strict=True)
    assert "2,3" in repr(cell)


def test_addmul_takes_numbers_arrays_and_gradients() -> None:
    grads, t, u = Gradients(), np.zeros(2), np.ones(2)
    grads.mut_gradient(u).set(np.array([2.0, 3.0]))
    cell = grads.mut_gradient(t)
    cell.addmul(grads.ref_gradient(u), grads.ref_gradient(u))
    cell.addmul(2.0, 3)
    np.testing.assert_array_equal(cell.value, [10.0, 15.0])


def test_numpy_scalars_are_broadcast() -> None:
    cell = Gradients().mut_gradient(np.ones(2, np.float32))
    for number in (np.float64(0.5), np.float32(0.5), np.int64(2), 2):
        cell.set(number)
        cell.add(number)
        cell.addmul(number, np.ones(2, np.float32))
        assert cell.value.dtype == np.float32
        assert cell.value.tolist() == [3 * number] * 2
    with pytest.raises(ShapeError):
        cell.set(np.array(0.5, np.float32))


def test_a_cell_refuses_other_shapes_and_dtypes() -> None:
    cell = Gradients().mut_gradient(np.zeros((2, 3)))
    for wrong in (np.zeros(3), np.zeros((2, 1)), np.zeros((1, 2, 3))):
        with pytest.raises(ShapeError, match="reduces or broadcasts by itself"):
            cell.add(wrong)
    with pytest.raises(ShapeError):
        cell.addmul(np.zeros((4, 2, 3)), np.zeros((2, 3)))
    with pytest.raises(DTypeError, match="float32"):
        cell.set(np.zeros((2, 3), "float32"))
    with pytest.raises(DTypeError, match="int64"):
        cell.add(np.zeros((2, 3), "int64"))
    np.testing.assert_array_equal(cell.value, np.zeros((2, 3)))


def test_reading_needs_a_gradient_and_does_not_write() -> None:
    grads, t, u = Gradients(), np.zeros(2), np.zeros(2)
    with pytest.raises(GraphError, match="no gradient has reached"):
        grads.ref_gradient(t)
    grads.mut_gradient(t).add(1.0)
    reading = grads.ref_gradient(t)
    assert not hasattr(reading, "set")
    with pytest.raises(AttributeError):
        reading.value = 3  # type: ignore[misc]
    with pytest.raises(GraphError, match="both are one tensor"):
        grads.mut_and_ref(t, t)
    with pytest.raises(GraphError, match="no gradient"):
        grads.mut_and_ref(t, u)
    assert u not in grads


def test_remove_get_containment_length_and_unused() -> None:
    grads, t, u = Gradients(), np.zeros(2), np.zeros(2)
    assert (t in grads, len(grads), grads.get(t), grads.get(t, 5)) == (False, 0, None, 5)
    grads.mut_gradient(t).set(3.0)
    assert t in grads
    assert u not in grads  # equal arrays are different tensors
    assert grads.unused({"t": t, "rest": [u]}) == ["rest.0"]
    np.testing.assert_array_equal(grads.remove(t), [3.0, 3.0])
    assert grads.remove(t) is None
    assert len(grads) == 0
    assert "0 tensors" in repr(grads)


def test_gradients_may_be_given_to_execute() -> None:
    t, first, second = np.zeros(2), GradientTape(), GradientTape()
    for tape in (first, second):
        tape.add_backward_op(lambda g: g.mut_gradient(t).add(1.0))
    grads = first.execute()
    assert second.execute(grads) is grads
    np.testing.assert_array_equal(grads.get(t), [2.0, 2.0])
    with pytest.raises(BackendMismatchError, match="execute"):
        GradientTape().execute(Gradients(backend=Autodiff(OUTER)))


def test_tensors_are_identified_by_their_node() -> None:
    x: Any = OUTER.set_require_grad(OUTER.from_inner(np.ones(2)), True)
    tensor = bb.asarray(np.ones(2)).require_grad()
    grads = Gradients()
    grads.mut_gradient(x).set(1.0)
    same: Any = type(x)(x.value, x.node)
    assert same in grads
    assert x.value not in grads
    grads.mut_gradient(tensor).set(2.0)
    assert tensor.primitive in grads
    np.testing.assert_array_equal(grads.get(tensor), [2.0, 2.0])


# ---- backends ----


def test_the_backend_is_the_default_of_the_scope_or_the_one_given() -> None:
    assert GradientTape().backend is BASE
    assert GradientTape(backend=BASE).backend is BASE
    assert GradientTape(backend="autodiff(autodiff(numpy))").backend is OUTER
    with scoped(DEFAULT_BACKEND, Autodiff(OUTER)):
        assert GradientTape().backend is OUTER
        assert Gradients().backend is OUTER


def test_gradients_on_an_autodiff_backend_can_be_differentiated_again() -> None:
    x: Any = OUTER.set_require_grad(OUTER.from_inner(np.array([2.0, 3.0])), True)
    y: Any = OUTER.mul(OUTER.square(x), x)
    tape = GradientTape(backend=Autodiff(OUTER))

    def cube(g: Gradients) -> None:
        x_grad, y_grad = g.mut_and_ref(x, y)
        x_grad.addmul(OUTER.mul(OUTER.square(x), 3.0), y_grad)

    tape.add_backward_op(cube)
    seed(tape, y)
    first = tape.execute().get(x)
    np.testing.assert_allclose(OUTER.inner(first), [12.0, 27.0])
    np.testing.assert_allclose(OUTER.grad(x, OUTER.backward(first)), [12.0, 18.0])  # type: ignore[arg-type]


# ---- operations of the contract ----


def test_recorded_operations_use_the_table_of_rules() -> None:
    x, w = RANDOM.normal(size=(3, 4)), RANDOM.normal(size=(4, 2))
    tape = GradientTape()
    h = tape.record("tanh", tape.record("matmul", x, w))
    loss = tape.record("sum", tape.record("mul", h, h), axis=(0, 1))
    seed(tape, loss)
    grads = tape.execute()
    expected = x.T @ (2 * np.tanh(x @ w) * (1 - np.tanh(x @ w) ** 2))
    np.testing.assert_allclose(grads.get(w), expected, rtol=1e-12)
    assert tape.backend is BASE


def test_recorded_operations_take_lists_constants_and_integers() -> None:
    x, y, tape = np.array([1.0, 2.0]), np.array([3.0]), GradientTape()
    joined = tape.record("concat", [x, y, x], axis=0)
    taken = tape.record("take", joined, np.array([0, 0, 2]), axis=0)
    out = tape.record("mul", taken, 2.0)
    seed(tape, out)
    grads = tape.execute()
    np.testing.assert_array_equal(grads.get(x), [4.0, 0.0])
    np.testing.assert_array_equal(grads.get(y), [2.0])
    unused = GradientTape()
    unused.record("exp", x)
    assert len(unused.execute()) == 0  # the result has no gradient


def test_recording_refuses_operations_without_gradient() -> None:
    with pytest.raises(ArgumentError, match=r"no operation 'multiply'"):
        GradientTape().record("multiply", np.ones(2), np.ones(2))
    with pytest.raises(ArgumentError, match="argmax has no gradient"):
        GradientTape().record("argmax", np.ones(2), axis=0)
    with pytest.raises(ArgumentError, match="several results"):
        GradientTape().record("max_with_indices", np.ones(2), axis=0)


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda t, p: t.record("add", p, np.ones(3)), ShapeError, r"record: add: cannot broadcast.*float64"),
        (lambda t, p: t.record("add", p), ArgumentError, "record: add: add takes x, y, and y is missing"),
        (lambda t, p: t.record("add", p, p, p), ArgumentError, "3 arguments were given"),
        (lambda t, p: t.record("add", p, None), ArgumentError, "y is None"),
        (lambda t, p: t.record("add", p, np.ones(2, "float32")), DTypeError, "differ in dtype"),
        (lambda t, p: t.record("add", 1.0, 2.0), ArgumentError, "no operand is a float tensor"),
        (lambda t, p: t.record("softmax", p), ArgumentError, "axis is missing"),
        (lambda t, p: t.record("softmax", p, 0, axis=0), ArgumentError, "axis is given twice"),
        (lambda t, p: t.record("sum", p, axis=7), ShapeError, "record: sum: axis 7"),
        (lambda t, p: t.record("concat", p, 0), DTypeError, "tensors is a list of tensors"),
        (lambda t, p: t.record("astype", p, "int64"), DTypeError, "the result is int64"),
        (lambda t, p: t.record(3, p), DTypeError, "given by name"),
    ],
)
def test_calls_that_cannot_be_recorded(use: Any, error: type[Exception], match: str) -> None:
    tape = GradientTape()
    with pytest.raises(error, match=match):
        use(tape, np.ones(2))
    assert len(tape) == 0


def test_recorded_integers_take_the_dtype_of_the_floats_or_are_refused() -> None:
    x = np.array([1.0, 2.0], np.float32)
    tape = GradientTape()
    y = tape.record("mul", x, [3, 4])
    tape.add_backward_op(lambda gradients: gradients.mut_gradient(y).set(1.0))
    assert y.dtype == tape.execute().get(x).dtype == np.float32
    for wrong in (np.array([3, 4]), np.array([True, False]), [True, False]):
        with pytest.raises(DTypeError, match=r"record: mul: .* Operands: float32.2., (int64|bool)"):
            GradientTape().record("mul", x, wrong)
    assert GradientTape().record("take", x, [1, 0], axis=0).tolist() == [2.0, 1.0]


def test_options_of_recorded_operations_in_any_spelling() -> None:
    tape, x = GradientTape(), np.array([[1.0, 2.0], [3.0, 4.0]])
    y = tape.record("sum", tape.record("mul", x, [2.0, 3.0]), -1)
    seed(tape, y)
    np.testing.assert_array_equal(y, [8.0, 18.0])
    np.testing.assert_array_equal(tape.execute().get(x), [[2.0, 3.0], [2.0, 3.0]])


def test_cells_take_nested_lists() -> None:
    x, y = np.ones((2, 2)), np.ones(2, "float32")
    gradients = Gradients()
    gradients.mut_gradient(x).set([[1.0, 2.0], [3.0, 4.0]])
    gradients.mut_gradient(x).addmul([[1.0, 0.0], [0.0, 1.0]], 10.0)
    gradients.mut_gradient(y).add([1.0, 1.0])
    np.testing.assert_array_equal(gradients.get(x), np.array([[11.0, 2.0], [3.0, 14.0]]), strict=True)
    np.testing.assert_array_equal(gradients.get(y), np.ones(2, "float32"), strict=True)
    ragged = [[1.0], [1.0, 2.0]]
    for wrong, error in (([1.0, 1.0], ShapeError), ([[1, 1], [1, 1]], DTypeError), (ragged, ArgumentError)):
        with pytest.raises(error, match="set: "):
            gradients.mut_gradient(x).set(wrong)
