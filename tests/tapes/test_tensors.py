"""The tapes over tensors: tensors in and out, with the same values as over primitives."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff.tape import GradGraph as PrimitiveGraph
from backburn.autodiff.tape import GradientTape as PrimitiveTape
from backburn.base.errors import DTypeError, GraphError, ShapeError
from backburn.tape import GradGraph, GradientTape, GradOp, Record
from backburn.tape import closures as over_tensors


def is_tensor_of(x: Any, values: Any, backend: str = "numpy") -> None:
    assert isinstance(x, bb.Tensor)
    assert x.backend.spec == backend
    np.testing.assert_allclose(x.numpy(), values, rtol=1e-6)


def test_the_record_tape() -> None:
    tape, reference = GradientTape(), PrimitiveTape()
    x, w = [[1.0, 2.0]], [[3.0], [4.0]]
    for t in (tape, reference):
        a, b = (t.input(v if t is tape else np.array(v, "float32")) for v in (x, w))
        t.record_tanh(t.record_matmul(a, b))
    is_tensor_of(tape.value(2), [[11.0]])
    for mine, other in zip(tape.backward([[1.0]]), reference.backward(1.0), strict=True):
        is_tensor_of(mine, other)
    buffers: list[Any] = [bb.zeros(tape.shape(i), backend="numpy") for i in range(tape.num_tensors)]
    assert tape.backward([[1.0]], buffers, output=2) is buffers
    is_tensor_of(buffers[1], [[1.0], [2.0]])
    host = [np.zeros(tape.shape(i), "float32") for i in range(4)]
    tape.backward(1.0, host, output=2)
    np.testing.assert_array_equal(host[0], [[3.0, 4.0]])
    with pytest.raises(ShapeError, match="loss_grad"):
        tape.backward([1.0, 2.0])
    with pytest.raises(DTypeError, match="int64"):
        tape.input([1, 2])


def test_the_typed_graph() -> None:
    graph, reference = GradGraph(), PrimitiveGraph()
    point = np.array([0.5, -1.0])
    nodes = []
    for g in (graph, reference):
        p = g.parameter(bb.asarray(point) if g is graph else point)
        nodes.append((p, g.sum(g.sin(g.mul(p, p)))))
    assert nodes[0] == nodes[1]
    p, loss = nodes[0]
    graph.backward(loss)
    reference.backward(loss)
    is_tensor_of(graph.grad(p), reference.grad(p))
    is_tensor_of(graph.tensor(loss), reference.tensor(loss))
    for name in ("jacobian", "hessian", "hessian_diag", "double_backward"):
        is_tensor_of(getattr(graph, name)(loss, p), getattr(reference, name)(loss, p))
    assert graph.value(loss) == reference.value(loss)
    assert graph.nodes() == reference.nodes()
    assert graph.grad(loss) is None
    is_tensor_of(graph.backward_collect(loss, [p])[0], reference.backward_collect(loss, [p])[0])
    assert graph.clip_grad_norm(0.0) > 0.0
    is_tensor_of(graph.grad(p), [0.0, 0.0])


def test_records_of_tensors() -> None:
    graph = GradGraph()
    node = graph.record(a=bb.asarray([1.0, 2.0]), b={"c": bb.asarray([3.0])})
    graph.backward_with_seed(graph.struct_field(node, "a"), [5.0, 6.0])
    gradient = graph.grad(node)
    assert isinstance(gradient, Record)
    is_tensor_of(gradient.a, [5.0, 6.0])
    is_tensor_of(gradient.b["c"], [0.0])
    pair = graph.parameter((bb.asarray([1.0]), bb.asarray([2.0])))
    graph.backward(graph.struct_field(pair, 1))
    is_tensor_of(graph.grad(pair)[1], [1.0])
    leaf = graph.parameter([1.0, 2.0])
    graph.set_tensor(leaf, [3.0, 4.0])
    is_tensor_of(graph.tensor(leaf), [3.0, 4.0])
    rows = graph.vmap_forward(leaf, bb.asarray([[1.0, 2.0], [3.0, 4.0]]), graph.neg(leaf))
    is_tensor_of(graph.tensor(rows[1]), [-3.0, -4.0])
    pushed = graph.push_node(GradOp.Neg(leaf), bb.asarray([-3.0, -4.0]))
    is_tensor_of(graph.tensor(pushed), [-3.0, -4.0])


def test_the_tape_of_closures() -> None:
    x = bb.asarray([1.0, 2.0])
    tape = over_tensors.GradientTape()
    y = tape.record("mul", x, x)
    is_tensor_of(y, [1.0, 4.0])

    def double(gradients: Any) -> None:
        y_grad, z_grad = gradients.mut_and_ref(y, z)
        is_tensor_of(z_grad.value, [1.0, 1.0])
        y_grad.addmul(bb.asarray([2.0, 2.0]), z_grad)
        is_tensor_of(y_grad.value, [2.0, 2.0])

    z = y + y
    tape.add_backward_op(double)
    tape.add_backward_op(lambda gradients: gradients.mut_gradient(z).set(1.0))
    gradients = tape.execute()
    assert isinstance(gradients, over_tensors.Gradients)
    is_tensor_of(gradients.get(x), [4.0, 8.0])
    is_tensor_of(gradients.remove(x), [4.0, 8.0])
    assert gradients.get(x) is None
    with pytest.raises(GraphError, match="has been executed"):
        tape.record("mul", x, x)


def test_all_tapes_take_nested_lists() -> None:
    tape = GradientTape()
    slot = tape.alloc(2, "float64")
    tape.record_silu(slot, [0.0, 0.0])
    is_tensor_of(tape.value(slot), [0.0, 0.0])
    x = bb.asarray([1.0, 2.0])
    gradients = over_tensors.Gradients()
    gradients.mut_gradient(x).set([1.0, 1.0])
    is_tensor_of(gradients.get(x), [1.0, 1.0])
    tree = GradGraph()
    assert tree.tensor(tree.parameter({"w": [1.0, 2.0]}))["w"].shape == (2,)


def test_tensors_of_the_tapes_level_stay_differentiable() -> None:
    x = bb.asarray(np.array([2.0, 3.0])).require_grad()
    tape = GradientTape(backend="autodiff(autodiff(numpy))")
    a = tape.input(x)
    tape.record_mul(tape.record_mul(a, a), a)
    first = tape.backward(bb.asarray(np.ones(2)))[a]
    is_tensor_of(first, [12.0, 27.0], "autodiff(numpy)")
    is_tensor_of(x.grad(first.backward()), [12.0, 18.0])


@pytest.mark.parametrize("made", ["GradientTape().input([1.0, 2.0])", "GradGraph().parameter([1.0, 2.0])"])
def test_the_tapes_can_be_imported_alone(made: str) -> None:
    program = f"from backburn.tape import GradGraph, GradientTape; print({made})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "0\n", run.stderr
