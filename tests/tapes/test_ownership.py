"""Ownership of the tapes' state: returned values and copies are independent, and tapes cannot be pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backburn.autodiff.tape import GradGraph, GradientTape
from backburn.autodiff.tape.closures import Gradients
from backburn.autodiff.tape.closures import GradientTape as Closures
from backburn.base.errors import GraphError

BOTH = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
Copied = Callable[[Any], Any]


def squares(backend: str = "numpy") -> tuple[GradientTape, int, int]:
    tape = GradientTape(backend=backend)
    x = tape.input(np.array([1.0, 3.0]))
    return tape, x, tape.record_mul(x, x)


def graph_of_squares() -> tuple[GradGraph, int, int]:
    graph = GradGraph()
    p = graph.parameter(np.array([1.0, 3.0]))
    return graph, p, graph.mul(p, p)


# ---- returned values ----


def test_writing_to_a_slot_value_does_not_change_the_tape() -> None:
    tape, x, y = squares()
    for slot in (x, y):
        tape.value(slot)[...] = 100.0
    assert tape.value(x).tolist() == [1.0, 3.0]
    assert tape.backward(np.ones(2))[x].tolist() == [2.0, 6.0]


def test_writing_to_a_node_value_or_gradient_does_not_change_the_graph() -> None:
    graph, p, y = graph_of_squares()
    for node in (p, y):
        graph.tensor(node)[...] = 100.0
    graph.backward(y)
    graph.grad(p)[...] = 100.0
    assert graph.tensor(p).tolist() == [1.0, 3.0]
    assert graph.grad(p).tolist() == [2.0, 6.0]


def test_parts_of_records_are_copies_too() -> None:
    graph = GradGraph()
    model = graph.record(w=np.ones(2), b=np.zeros(1))
    graph.tensor(model).w[...] = 100.0
    graph.grad(model).b[...] = 100.0
    assert graph.tensor(model).w.tolist() == [1.0, 1.0]
    assert graph.grad(model).b.tolist() == [0.0]


def test_a_parameter_may_be_updated_in_place_and_set_again() -> None:
    graph, p, y = graph_of_squares()
    graph.backward(y)
    value = graph.tensor(p)
    value -= 0.5 * graph.grad(p)
    assert graph.tensor(y).tolist() == [1.0, 9.0]
    graph.set_tensor(p, value)
    assert graph.tensor(y).tolist() == [0.0, 0.0]


def test_writing_to_a_result_or_gradient_does_not_change_closures() -> None:
    tape, x = Closures(), np.array([0.0, 1.0])
    y = tape.record("exp", x)
    e = y.copy()

    def start(gradients: Gradients) -> None:
        gradients.mut_gradient(y).set(1.0)
        reading = gradients.ref_gradient(y).value
        reading *= 7.0

    tape.add_backward_op(start)
    y[...] = 100.0
    gradients = tape.execute()
    np.testing.assert_array_equal(gradients.get(x), e)
    gradients.get(x)[...] = 100.0
    np.testing.assert_array_equal(gradients.get(x), e)


# ---- copies ----


@BOTH
def test_copies_of_a_record_tape_are_independent(copied: Copied) -> None:
    tape, x, y = squares()
    other = copied(tape)
    z = other.record_mul(y, x)
    assert (tape.num_tensors, other.num_tensors, len(tape), len(other)) == (2, 3, 1, 2)
    assert other.backward(np.ones(2))[x].tolist() == [3.0, 27.0]
    assert tape.backward(np.ones(2))[x].tolist() == [2.0, 6.0]
    assert other.value(z).tolist() == [1.0, 27.0]


@BOTH
def test_copies_of_a_record_tape_have_their_own_values(copied: Copied) -> None:
    tape = GradientTape()
    a, b = tape.alloc(1), tape.alloc(1)
    total = tape.record_add(a, b)
    other = copied(tape)
    other.record_add(total, a)
    for one, data in ((tape, 1.0), (other, 5.0)):
        one.record_mul(a, np.array([data]), b, np.array([data]))
    assert (tape.value(total).tolist(), other.value(total).tolist()) == ([2.0], [10.0])
    assert (tape.num_tensors, other.num_tensors) == (4, 5)


@BOTH
def test_copies_of_a_graph_are_independent(copied: Copied) -> None:
    graph, p, y = graph_of_squares()
    graph.backward(y)
    other = copied(graph)
    other.exp(y)
    other.set_tensor(p, np.array([0.0, 0.0]))
    other.backward(y)
    graph.backward(y)
    assert (len(graph), len(other)) == (2, 3)
    assert (graph.tensor(y).tolist(), other.tensor(y).tolist()) == ([1.0, 9.0], [0.0, 0.0])
    assert (graph.grad(p).tolist(), other.grad(p).tolist()) == ([4.0, 12.0], [2.0, 6.0])


def test_a_deep_copy_of_a_long_graph_needs_no_recursion() -> None:
    graph = GradGraph()
    p = node = graph.parameter(np.array([1.0]))
    for _ in range(3_000):
        node = graph.neg(node)
    other = copy.deepcopy(graph)
    other.backward(node)
    assert other.grad(p).tolist() == [1.0]


@BOTH
def test_copies_of_gradients_are_independent(copied: Copied) -> None:
    x, y, gradients = np.ones(1), np.ones(1), Gradients()
    gradients.mut_gradient(x).set(2.0)
    other = copied(gradients)
    other.mut_gradient(x).add(1.0)
    other.mut_gradient(y)
    assert (gradients.get(x).tolist(), other.get(x).tolist()) == ([2.0], [3.0])
    assert (y in gradients, y in other) == (False, True)


@BOTH
def test_a_tape_of_closures_cannot_be_copied(copied: Copied) -> None:
    tape = Closures()
    tape.add_backward_op(lambda gradients: None)
    with pytest.raises(GraphError, match="neither copied nor pickled"):
        copied(tape)
    assert len(tape) == 1


@pytest.mark.parametrize("made", [squares()[0], graph_of_squares()[0], Closures(), Gradients()], ids=repr)
def test_tapes_cannot_be_pickled(made: Any) -> None:
    with pytest.raises(GraphError, match="pickled"):
        pickle.dumps(made)


# ---- forms of calls and of arrays ----


def test_slots_may_be_keyword_arguments() -> None:
    tape = GradientTape()
    a, b = tape.input(np.array([[1.0, 2.0]])), tape.input(np.array([[3.0], [4.0]]))
    assert tape.shape(tape.record_matmul(a=a, b=b)) == (1, 1)
    assert tape.shape(tape.record_matmul(a, b=b)) == (1, 1)
    assert tape.shape(tape.record_matmul(a=a, b=b, flat=True)) == (1,)
    assert tape.value(tape.record_mul(a=a, b=a)).tolist() == [[1.0, 4.0]]
    assert tape.value(tape.record_mul(a, b=a)).tolist() == [[1.0, 4.0]]
    data = {"a_data": np.array([[1.0, 2.0]]), "b_data": None}
    assert tape.value(tape.record_mul(a=a, b=a, **data)).tolist() == [[1.0, 4.0]]


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 1, 3)])
def test_gradients_data_and_buffers_may_be_flat(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    values = np.arange(1.0, size + 1)
    tape = GradientTape()
    a, b = tape.alloc(shape), tape.alloc(shape)
    tape.record_mul(a, values, b, values)
    assert tape.value(a).shape == shape
    buffers = [np.zeros(size) for _ in range(3)]
    tape.backward(np.ones(size), buffers)
    np.testing.assert_array_equal(buffers[a], values)
    assert tape.backward(np.ones(size))[b].shape == shape
