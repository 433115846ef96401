"""The typed graph: all 34 operations compared with central differences, operation types, nodes and records."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, assert_never, get_args

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.autodiff.tape import AnyGradOp, GradGraph, GradOp, Record
from backburn.base.contexts import DEFAULT_BACKEND, scoped
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    DTypeError,
    GraphError,
    NumericalInstabilityError,
    OutOfRangeError,
    ShapeError,
)
from backburn.base.trees import flatten, unflatten
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
OUTER = Autodiff(BASE)
ROOT = Path(__file__).parents[2]
Build = Callable[..., int]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def positive(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).uniform(0.5, 2.0, shape)


def last(graph: GradGraph, node: int) -> AnyGradOp:
    """The operation of the newest node."""
    assert node == len(graph) - 1
    return graph.nodes()[node]


# ---- the 34 operations: a builder of a node of each, and parameters for it ----

BUILD: dict[str, list[tuple[Build, tuple[Any, ...]]]] = {
    "Input": [(lambda g, p: g.mul(g.input(normal(3)), p), (normal(3, seed=1),))],
    "Parameter": [(lambda g, p: p, (normal(2, 3),)), (lambda g, p: p, (normal(),))],
    "Add": [(lambda g, a, b: g.add(a, b), (normal(2, 3), normal(3))), (lambda g, a: g.add(a, a), (normal(2),))],
    "Sub": [(lambda g, a, b: g.sub(a, b), (normal(2, 1), normal(3)))],
    "Mul": [(lambda g, a, b: g.mul(a, b), (normal(2, 3), normal(1, 3))), (lambda g, a: g.mul(a, a), (normal(2),))],
    "Div": [(lambda g, a, b: g.div(a, b), (normal(2, 3), positive(3)))],
    "Neg": [(lambda g, a: g.neg(a), (normal(2, 3),))],
    "MatMul": [(lambda g, a, b: g.matmul(a, b), (normal(2, 3), normal(3, 4)))],
    "Sum": [(lambda g, a: g.sum(a), (normal(2, 3),)), (lambda g, a: g.sum(a), (normal(),))],
    "Mean": [(lambda g, a: g.mean(a), (normal(2, 3),)), (lambda g, a: g.mean(a), (normal(),))],
    "ScalarMul": [(lambda g, a: g.scalar_mul(a, -2.5), (normal(2, 3),))],
    "Exp": [(lambda g, a: g.exp(a), (normal(2, 3),))],
    "Ln": [(lambda g, a: g.ln(a), (positive(2, 3),))],
    "StructField": [
        (lambda g: g.struct_field(g.record(x=normal(3), y=normal(2)), "y"), ()),
        (lambda g: g.struct_field(g.record(x=normal(3), y=normal(2)), 0), ()),
    ],
    "MapLookup": [(lambda g: g.map_lookup(g.mapping({"x": normal(3), 7: normal(2)}), 7), ())],
    "Sin": [(lambda g, a: g.sin(a), (normal(2, 3),))],
    "Cos": [(lambda g, a: g.cos(a), (normal(2, 3),))],
    "Sqrt": [(lambda g, a: g.sqrt(a), (positive(2, 3),))],
    "Pow": [
        (lambda g, a: g.pow(a, 3), (normal(2, 3),)),
        (lambda g, a: g.pow(a, -0.5), (positive(2, 3),)),
        (lambda g, a: g.pow(a, 0), (normal(3),)),
    ],
    "Sigmoid": [(lambda g, a: g.sigmoid(a), (3 * normal(2, 3),))],
    "Relu": [(lambda g, a: g.relu(a), (normal(2, 3),))],
    "TanhAct": [(lambda g, a: g.tanh_act(a), (normal(2, 3),))],
    "Abs": [(lambda g, a: g.abs(a), (normal(2, 3),))],
    "Log2": [(lambda g, a: g.log2(a), (positive(2, 3),))],
    "Softmax": [(lambda g, a: g.softmax(a), (normal(4),)), (lambda g, a: g.softmax(a), (normal(2, 3, 4),))],
    "CrossEntropy": [
        (lambda g, a, t: g.cross_entropy(a, t), (normal(2, 3), positive(2, 3))),
        (lambda g, a: g.cross_entropy(a, g.input(np.array([2, 0]))), (normal(2, 3),)),
        (lambda g, a: g.cross_entropy(a, g.input(np.array([2.0, 0.0]))), (normal(2, 3),)),
        (lambda g, a: g.cross_entropy(a, g.input(np.array([2]))), (normal(3),)),
        (lambda g, a: g.cross_entropy(a, g.input(np.array([[1, 0], [2, 2]])), reduction="none"), (normal(2, 2, 3),)),
    ],
    "LayerNorm": [(lambda g, a: g.layer_norm(a), (normal(2, 4),)), (lambda g, a: g.layer_norm(a), (normal(5),))],
    "BatchNorm": [(lambda g, a: g.batch_norm(a), (normal(4, 3),)), (lambda g, a: g.batch_norm(a), (normal(3, 2, 2),))],
    "Clamp": [(lambda g, a: g.clamp(a, -0.5, 0.5), (normal(3, 4),))],
    "Where": [
        (lambda g, a, b: g.where_cond(g.input(np.array([1.0, 0.0, 1.0])), a, b), (normal(2, 3), normal(2, 3, seed=1))),
        (lambda g, a, b: g.where_cond(g.input(np.array([[1.0], [0.0]])), a, b), (normal(3), normal(1))),
    ],
    "Reshape": [
        (lambda g, a: g.reshape(a, [3, 2]), (normal(2, 3),)),
        (lambda g, a: g.reshape(a, -1), (normal(2, 3),)),
        (lambda g, a: g.reshape(a, ()), (normal(1),)),
    ],
    "TransposeOp": [(lambda g, a: g.transpose_op(a), (normal(2, 3),))],
    "CatOp": [
        (lambda g, a, b: g.cat([a, b, a]), (normal(2), normal(3))),
        (lambda g, a, b: g.cat([a, b], 1), (normal(2, 1), normal(2, 3))),
        (lambda g, a, b: g.cat([a, b], 2), (normal(2, 2, 1), normal(2, 2, 3))),
        (lambda g, a, b: g.cat([a, b], -2), (normal(2, 1, 3), normal(2, 2, 3))),
    ],
    "GatherOp": [
        (lambda g, a: g.gather(a, [2, 0, 2]), (normal(4),)),
        (lambda g, a: g.gather(a, [1, 1], 1), (normal(2, 3),)),
        (lambda g, a: g.gather(a, [1, 0, 1], -1), (normal(2, 2, 2),)),
        (lambda g, a: g.gather(a, []), (normal(3, 2),)),
    ],
}
CASES = [
    pytest.param(name, build, values, id=f"{name}-{i}")
    for name, cases in BUILD.items()
    for i, (build, values) in enumerate(cases)
]


def leaves_of(graph: GradGraph, tree: Callable[[int], Any]) -> list[Any]:
    """Return the leaves of ``tree(parameter)`` for all parameters."""
    return [x for i, op in enumerate(graph.nodes()) if op == GradOp.Parameter() for x in flatten(tree(i))[0]]


def set_leaf(graph: GradGraph, place: int, value: Any) -> None:
    """Replace one leaf of the parameters."""
    for node, op in enumerate(graph.nodes()):
        if op == GradOp.Parameter():
            leaves, form = flatten(graph.tensor(node))
            if place < len(leaves):
                leaves[place] = value
                graph.set_tensor(node, unflatten(form, leaves))
                return
            place -= len(leaves)


@pytest.mark.parametrize(("name", "build", "values"), CASES)
def test_gradients_are_the_central_differences(name: str, build: Build, values: tuple[Any, ...]) -> None:
    graph = GradGraph()
    out = build(graph, *(graph.parameter(v) for v in values))
    assert name in {type(op).__name__ for op in graph.nodes()}
    cotangent = normal(*graph.tensor(out).shape, seed=9)
    graph.backward_with_seed(out, cotangent)
    gradients = leaves_of(graph, graph.grad)
    for place, leaf in enumerate([leaf.copy() for leaf in leaves_of(graph, graph.tensor)]):
        expected = np.zeros(leaf.shape)
        for index in np.ndindex(leaf.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = leaf.copy()
                moved[index] += step
                set_leaf(graph, place, moved)
                sides.append(np.sum(cotangent * graph.tensor(out)))
            expected[index] = (sides[0] - sides[1]) / 2e-6
            set_leaf(graph, place, leaf)
        np.testing.assert_allclose(gradients[place], expected, rtol=1e-6, atol=1e-8)


def cases_without(*names: str) -> list[Any]:
    return [case for case in CASES if case.values[0] not in names]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "build", "values"), cases_without("StructField", "MapLookup", "Input"))
def test_data_keep_their_dtype(name: str, build: Build, values: tuple[Any, ...], dtype: str) -> None:
    graph = GradGraph()
    out = build(graph, *(graph.parameter(v.astype(dtype)) for v in values))
    graph.backward(out)
    assert graph.tensor(out).dtype == dtype
    assert all(g.dtype == dtype for g in leaves_of(graph, graph.grad))


def test_every_operation_has_a_case_and_the_documented_fields() -> None:
    fields = {
        "Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "MatMul": 2, "Neg": 1, "Sum": 1, "Mean": 1, "ScalarMul": 2,
        "Exp": 1, "Ln": 1, "Sin": 1, "Cos": 1, "Sqrt": 1, "Pow": 2, "Sigmoid": 1, "Relu": 1, "TanhAct": 1, "Abs": 1,
        "Log2": 1, "Softmax": 1, "LayerNorm": 1, "BatchNorm": 1, "TransposeOp": 1, "Input": 0, "Parameter": 0,
        "StructField": ("parent", "field_index", "total_fields"), "MapLookup": ("map_node", "key_index", "total_keys"),
        "CrossEntropy": ("logits", "targets"), "Clamp": ("input", "min", "max"),
        "Where": ("cond", "on_true", "on_false"), "Reshape": ("input", "original_shape"),
        "CatOp": ("inputs", "axis", "sizes"), "GatherOp": ("input", "indices", "axis"),
    }  # fmt: skip
    variants = get_args(AnyGradOp)
    assert len(variants) == 34
    assert {v.__name__ for v in variants} == set(fields) == {n for n, cases in BUILD.items() if cases}
    for variant in variants:
        names = tuple(f.name for f in dataclasses.fields(variant))
        expected = fields[variant.__name__]
        if isinstance(expected, int):
            assert len(names) == expected
            assert variant.__match_args__ == names
        else:
            assert names == expected
            assert variant.__match_args__ == ()


# ---- operations as values ----


def every_operation() -> list[AnyGradOp]:
    graph = GradGraph()
    for cases in BUILD.values():
        for build, values in cases:
            build(graph, *(graph.parameter(v) for v in values))
    return list({type(op): op for op in graph.nodes()}.values())


def test_operations_are_frozen_slotted_comparable_and_picklable() -> None:
    operations = every_operation()
    assert len(operations) == 34
    for op in operations:
        assert isinstance(op, GradOp)
        assert pickle.loads(pickle.dumps(op)) == op
        assert copy.deepcopy(op) == op
        assert hash(copy.copy(op)) == hash(op)
        assert not hasattr(op, "__dict__")
        assert repr(op).startswith(f"GradOp.{type(op).__name__}(")
        for field in dataclasses.fields(op):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(op, field.name, 0)
    assert len(set(operations)) == 34
    assert GradOp.Add(0, 1) == GradOp.Add(0, 1) != GradOp.Add(1, 0)
    assert len({GradOp.Add(0, 1), GradOp.Sub(0, 1), GradOp.Add(0, 1)}) == 2
    assert GradOp.CatOp(inputs=[1, 2], axis=0, sizes=[1, 1]).inputs == (1, 2)  # type: ignore[arg-type]
    assert not isinstance(3, GradOp)


def test_fields_of_operations_are_checked() -> None:
    assert GradOp.Add(np.int64(0), 1) == GradOp.Add(0, 1)  # type: ignore[arg-type]
    assert repr(GradOp.Pow(0, 2)) == "GradOp.Pow(a=0, exponent=2.0)"
    assert issubclass(GradOp.Add, GradOp)
    for make, match in (
        (lambda: GradOp.Add("a", 1), r"GradOp\.Add: a: expected the index of a node, not 'a'"),  # type: ignore[arg-type]
        (lambda: GradOp.Neg(True), "index of a node, not True"),
        (lambda: GradOp.Neg(np.ones(3)), r"a: expected the index of a node, not ndarray\. A graph's input\(x\) makes"),  # type: ignore[arg-type]
        (lambda: GradOp.Pow(0, "2"), r"GradOp\.Pow: exponent is a number, not '2'"),  # type: ignore[arg-type]
        (lambda: GradOp.CatOp(inputs=3, axis=0, sizes=()), "inputs: expected a tuple"),  # type: ignore[arg-type]
        (lambda: GradOp.GatherOp(input=0, indices=(0,), axis="a"), "axis: expected an integer"),  # type: ignore[arg-type]
    ):
        with pytest.raises(DTypeError, match=match):
            make()
    with pytest.raises(ArgumentError, match=r"such as GradOp\.Add\(0, 1\)"):
        GradOp()


EXHAUSTIVE = '''
def formula(op: AnyGradOp) -> str:
    """Every operation, matched as the original's variants are."""
    match op:
        case GradOp.Input() | GradOp.Parameter():
            return "given"
        case GradOp.Add(a, b) | GradOp.Sub(a, b) | GradOp.Mul(a, b) | GradOp.Div(a, b) | GradOp.MatMul(a, b):
            return f"{a} {b}"
        case GradOp.ScalarMul(a, c) | GradOp.Pow(a, c):
            return f"{a} {c}"
        case GradOp.Neg(a) | GradOp.Sum(a) | GradOp.Mean(a) | GradOp.Exp(a) | GradOp.Ln(a) | GradOp.Sin(a):
            return f"{a}"
        case GradOp.Cos(a) | GradOp.Sqrt(a) | GradOp.Sigmoid(a) | GradOp.Relu(a) | GradOp.TanhAct(a) | GradOp.Abs(a):
            return f"{a}"
        case GradOp.Log2(a) | GradOp.Softmax(a) | GradOp.LayerNorm(a) | GradOp.BatchNorm(a) | GradOp.TransposeOp(a):
            return f"{a}"
        case GradOp.StructField(parent=p, field_index=i, total_fields=n):
            return f"{p} {i} {n}"
        case GradOp.MapLookup(map_node=p, key_index=i, total_keys=n):
            return f"{p} {i} {n}"
        case GradOp.CrossEntropy(logits=a, targets=b):
            return f"{a} {b}"
        case GradOp.Clamp(input=a, min=low, max=high):
            return f"{a} {low} {high}"
        case GradOp.Where(cond=c, on_true=a, on_false=b):
            return f"{c} {a} {b}"
        case GradOp.Reshape(input=a, original_shape=shape):
            return f"{a} {shape}"
        case GradOp.CatOp(inputs=inputs, axis=axis, sizes=sizes):
            return f"{inputs} {axis} {sizes}"
        case GradOp.GatherOp(input=a, indices=indices, axis=axis):
            return f"{a} {indices} {axis}"
        case _:
            assert_never(op)
'''
#: ``GradOp`` is the base type of all variants, also in an incomplete ``match``.
NOMINAL = """
def operand(op: GradOp) -> int:
    match op:
        case GradOp.Neg(a):
            return a
        case _:
            return op.operands[0]


def every(op: AnyGradOp) -> int:
    return operand(op) + operand(GradOp.Add(0, 1))
"""
HEAD = "from typing import assert_never\nfrom backburn.autodiff.tape import AnyGradOp, GradOp\n"


def test_a_match_over_all_operations_is_complete() -> None:
    namespace: dict[str, Any] = {"GradOp": GradOp, "assert_never": assert_never, "AnyGradOp": AnyGradOp}
    exec(EXHAUSTIVE, namespace)
    assert all(namespace["formula"](op) for op in every_operation())
    assert namespace["formula"](GradOp.Clamp(input=3, min=0.0, max=1.0)) == "3 0.0 1.0"


@pytest.mark.slow
def test_mypy_reports_a_missing_case(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(HEAD + EXHAUSTIVE + NOMINAL)
    (tmp_path / "lacking.py").write_text(HEAD + EXHAUSTIVE.replace("GradOp.Log2(a) | ", ""))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    run = subprocess.run(
        [*command, "--follow-imports=silent", str(tmp_path / "whole.py"), str(tmp_path / "lacking.py")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    complaints = [line for line in run.stdout.splitlines() if "error" in line]
    assert not [line for line in complaints if "whole.py" in line]
    assert len([line for line in complaints if "lacking.py" in line]) == 1
    assert "Log2" in run.stdout


# ---- semantics ----


def test_gradients_at_kinks() -> None:
    graph = GradGraph()
    x = graph.parameter(np.array([-1.0, 0.0, 1.0]))
    for out, expected in (
        (graph.relu(x), [0.0, 0.0, 1.0]),
        (graph.abs(x), [-1.0, 0.0, 1.0]),
        (graph.clamp(x, 0.0, 1.0), [0.0, 1.0, 1.0]),
        (graph.pow(x, 0), [0.0, 0.0, 0.0]),
        (graph.pow(x, 1), [1.0, 1.0, 1.0]),
        (graph.pow(x, 2), [-2.0, 0.0, 2.0]),
    ):
        np.testing.assert_array_equal(graph.backward_collect(out, [x])[0], expected)


def test_shapes_and_axes() -> None:
    graph = GradGraph()
    x = graph.input(normal(3, 4))
    assert graph.tensor(graph.sum(x)).shape == graph.tensor(graph.mean(x)).shape == (1,)
    np.testing.assert_allclose(graph.tensor(graph.softmax(x)).sum(-1), 1.0)
    np.testing.assert_allclose(graph.tensor(graph.layer_norm(x)).mean(-1), 0.0, atol=1e-12)
    np.testing.assert_allclose(graph.tensor(graph.batch_norm(x)).mean(0), 0.0, atol=1e-12)
    values = graph.tensor(x)
    scaled = (values - values.mean(0)) / np.sqrt(values.var(0) + 1e-5)
    np.testing.assert_allclose(graph.tensor(graph.batch_norm(x)), scaled)
    assert last(graph, graph.reshape(x, [12])) == GradOp.Reshape(input=x, original_shape=(3, 4))
    assert last(graph, graph.cat([x, x], -1)) == GradOp.CatOp(inputs=(x, x), axis=1, sizes=(4, 4))
    assert last(graph, graph.gather(x, [1], -1)) == GradOp.GatherOp(input=x, indices=(1,), axis=1)


def test_cross_entropy_of_both_kinds_of_targets_and_its_reductions() -> None:
    graph, x, classes = GradGraph(), normal(3, 4), np.array([1, 0, 3])
    logits = graph.parameter(x)
    rows = -(x - np.log(np.exp(x).sum(-1, keepdims=True)))[np.arange(3), classes]
    index, dense = graph.input(classes), graph.input(np.eye(4)[classes])
    for targets in (index, dense):
        total = graph.cross_entropy(logits, targets)
        assert graph.tensor(total).shape == (1,)
        np.testing.assert_allclose(graph.value(total), rows.sum())
        np.testing.assert_allclose(graph.value(graph.cross_entropy(logits, targets, "mean")), rows.mean())
        np.testing.assert_allclose(graph.tensor(graph.cross_entropy(logits, targets, "none")), rows)
    unnormalized = graph.input(np.array([1.0, 1.0, 0.0]))
    single = graph.parameter(np.array([1.0, 2.0, 0.5]))
    gradient = graph.backward_collect(graph.cross_entropy(single, unnormalized), [single])[0]
    np.testing.assert_allclose(gradient, 2 * np.exp([1, 2, 0.5]) / np.exp([1, 2, 0.5]).sum() - [1, 1, 0])
    masked = graph.parameter(np.array([1.0, -np.inf]))
    loss = graph.cross_entropy(masked, graph.input(np.array([1.0, 0.0])))
    assert graph.value(loss) == 0.0
    np.testing.assert_array_equal(graph.backward_collect(loss, [masked])[0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("targets", "error", "match"),
    [
        (np.array([0, 4]), OutOfRangeError, "class indices go from 0 to 2"),
        (np.array([-1, 0]), OutOfRangeError, "class indices"),
        (np.array([0.5, 1.0]), ArgumentError, "whole numbers"),
        (np.array([0, 1, 2, 0]), ShapeError, "class indices lack the last axis"),
        (np.ones((3, 2)), ShapeError, "probabilities have the shape"),
        (np.array([np.nan, 0.0]), OutOfRangeError, "class indices"),
        (np.array([True, False]), DTypeError, "integers"),
        (np.eye(3, dtype=int)[:2], DTypeError, r"are probabilities, and these are int64: use floats, 1\.0 and 0\.0"),
        (np.eye(3, dtype=bool)[:2], DTypeError, "are probabilities, and these are bool"),
        (np.ones((2, 3), "float32"), DTypeError, "the probabilities are float32 and the logits float64"),
    ],
)
def test_invalid_targets_are_refused(targets: Any, error: type[Exception], match: str) -> None:
    graph = GradGraph()
    logits = graph.parameter(normal(2, 3))
    with pytest.raises(error, match=match):
        graph.cross_entropy(logits, graph.input(targets))


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda g, x: g.add(x, 99), OutOfRangeError, "add: there is no node 99"),
        (lambda g, x: g.neg(-1), OutOfRangeError, "neg: there is no node -1"),
        (lambda g, x: g.neg(1.5), DTypeError, "index of a node"),
        (lambda g, x: g.add(x, g.input(np.ones(4))), ShapeError, r"add: cannot broadcast.*node 0 float64\[2,3\]"),
        (lambda g, x: g.add(x, g.input(np.ones(3, "float32"))), DTypeError, "differ in dtype"),
        (lambda g, x: g.neg(g.input(np.ones(3, "int64"))), DTypeError, "takes floats"),
        (lambda g, x: g.matmul(x, g.input(np.ones(3))), ShapeError, "node 1 must be 2-D"),
        (lambda g, x: g.matmul(x, x), ShapeError, "matmul: the inner dimensions differ: axis -1 is 3 and axis -2"),
        (lambda g, x: g.transpose_op(g.input(np.ones((1, 2, 3)))), ShapeError, "2-D"),
        (lambda g, x: g.softmax(g.input(np.float64(1.0))), ShapeError, "0-d"),
        (lambda g, x: g.reshape(x, [4]), ShapeError, "does not fill"),
        (lambda g, x: g.reshape(x, [-1, 5]), ShapeError, r"does not fill the shape \[-1, 5\]"),
        (lambda g, x: g.cat([]), ArgumentError, "nothing to concatenate"),
        (lambda g, x: g.cat([x, g.input(np.ones((2, 2)))], 0), ShapeError, "cat"),
        (lambda g, x: g.cat([x, g.input(np.ones(2))], 0), ShapeError, "axes"),
        (lambda g, x: g.cat([x, x], 2), ShapeError, "axis 2"),
        (lambda g, x: g.gather(x, [3], 1), OutOfRangeError, "indices 0 to 2, not 3"),
        (lambda g, x: g.gather(x, [-1], 1), OutOfRangeError, "not -1"),
        (lambda g, x: g.where_cond(g.input(np.array([0.5])), x, x), ArgumentError, "other than 0.0 and 1.0"),
        (lambda g, x: g.where_cond(g.input(np.ones(3, bool)), x, x), DTypeError, r"bool\[3\].*use 1\.0 and 0\.0"),
        (lambda g, x: g.where_cond(g.input(np.ones(3, int)), x, x), DTypeError, r"int64\[3\].*use 1\.0 and 0\.0"),
        (lambda g, x: g.clamp(x, 1.0, 0.0), ArgumentError, "clamp: .*above"),
        (lambda g, x: g.clamp(x, None, 1.0), DTypeError, "clamp: the constant is a number, not None"),
        (lambda g, x: g.pow(x, "2"), DTypeError, "pow: the constant is a number, not '2'"),
        (lambda g, x: g.cat(x), DTypeError, "cat: takes a list of nodes, not 0"),
        (lambda g, x: g.cat([x, x], axis="a"), ShapeError, "cat: an axis is an integer, not 'a'"),
        (lambda g, x: g.gather(x, 0), DTypeError, "gather: a list of indices is made of integers, and 0 is not"),
        (lambda g, x: g.gather(x, [0], axis="a"), ShapeError, "gather: an axis is an integer, not 'a'"),
        (lambda g, x: g.reshape(x, None), DTypeError, "reshape: a shape is made of integers"),
        (lambda g, x: g.reshape(x, (True, 6)), DTypeError, "reshape: a shape is made of integers"),
        (lambda g, x: g.backward_collect(x, x), DTypeError, "backward_collect: params is a list of nodes, not 0"),
        (lambda g, x: g.clip_grad("a"), DTypeError, "clip_grad: the bound is a number, not 'a'"),
        (lambda g, x: g.clip_grad_norm(None), DTypeError, "clip_grad_norm: the bound is a number"),
        (lambda g, x: g.vmap_forward(x, 3.0, x), DTypeError, "vmap_forward: the batch is a tensor or a list"),
        (lambda g, x: g.vmap_forward(x, None, x), DTypeError, "vmap_forward: the batch is a tensor or a list"),
        (lambda g, x: g.vmap_forward(x, normal(1, 2, 3).astype("float32")), DTypeError, "is float32, and node 0"),
        (lambda g, x: g.reforward("a"), DTypeError, "reforward: takes indices of nodes"),
        (lambda g, x: g.neg(True), DTypeError, "index of a node, not True"),
        (lambda g, x: g.input(None), DTypeError, "input: expected a tensor.*not None"),
        (lambda g, x: g.set_tensor(x, None), DTypeError, "set_tensor: expected a tensor.*not None"),
        (lambda g, x: g.parameter([1, 2]), DTypeError, "int64"),
        (lambda g, x: g.parameter([[1.0, 2.0], [3.0]]), ArgumentError, "parameter: the nested lists do not form"),
        (lambda g, x: g.parameter(2), DTypeError, r"write 2\.0"),
        (lambda g, x: g.parameter(np.ones(2, "int64")), DTypeError, "int64"),
        (lambda g, x: g.cross_entropy(x, x, "max"), ArgumentError, "'sum', 'mean' or 'none'"),
        (lambda g, x: g.backward_with_seed(x, np.ones(3)), ShapeError, "the seed has shape"),
        (lambda g, x: g.backward(g.input(np.ones(3, "int64"))), DTypeError, "gradients belong to floats"),
        (lambda g, x: g.jacobian(x, g.input(np.ones(2))), ArgumentError, "only a Parameter"),
        (lambda g, x: g.set_tensor(x, np.ones(3)), ShapeError, "set_tensor"),
        (lambda g, x: g.set_tensor(g.neg(x), np.ones((2, 3))), GraphError, "is computed"),
        (lambda g, x: g.clip_grad(-1.0), ArgumentError, "negative"),
        (lambda g, x: g.reforward(2, 1), OutOfRangeError, "reforward"),
        (lambda g, x: g.value(g.input(np.ones(0))), ShapeError, "empty"),
    ],
)
def test_invalid_calls_are_refused(build: Any, error: type[Exception], match: str) -> None:
    graph = GradGraph()
    x = graph.parameter(normal(2, 3))
    with pytest.raises(error, match=match):
        build(graph, x)


# ---- values and gradients ----


def test_parameters_accumulate_until_zero_grad() -> None:
    graph = GradGraph()
    x, w = graph.input(np.array([1.0, 2.0])), graph.parameter(np.array([3.0, 4.0]))
    y = graph.mul(x, w)
    np.testing.assert_array_equal(graph.grad(w), [0.0, 0.0])
    graph.backward(y)
    graph.backward(graph.sum(y))
    np.testing.assert_array_equal(graph.grad(w), [2.0, 4.0])
    assert graph.grad(x) is None
    assert graph.grad(y) is None
    graph.zero_grad()
    np.testing.assert_array_equal(graph.grad(w), [0.0, 0.0])
    graph.backward(x)  # no parameter is upstream
    np.testing.assert_array_equal(graph.grad(w), [0.0, 0.0])
    graph.backward_with_seed(y, np.array([1.0, -1.0]))
    np.testing.assert_array_equal(graph.grad(w), [1.0, -2.0])
    np.testing.assert_array_equal(graph.backward_collect(y, [w])[0], [1.0, 2.0])
    graph.backward(w)
    np.testing.assert_array_equal(graph.grad(w), [2.0, 3.0])
    with pytest.raises(ArgumentError, match="only a Parameter"):
        graph.backward_collect(y, [x])


def test_set_tensor_updates_dependent_nodes() -> None:
    graph = GradGraph()
    w = graph.parameter(np.array([2.0]))
    cube = graph.mul(graph.mul(w, w), w)
    graph.set_tensor(w, np.array([3.0]))
    assert graph.value(cube) == 27.0
    graph.set_tensor(w, np.array([4.0]))
    graph.reforward()
    np.testing.assert_array_equal(graph.backward_collect(cube, [w])[0], [48.0])
    graph.set_tensor(w, np.array([5.0]))
    graph.backward(cube)
    np.testing.assert_array_equal(graph.grad(w), [123.0])
    with pytest.raises(DTypeError, match="float32"):
        graph.set_tensor(w, np.ones(1, "float32"))


def test_nodes_that_fail_to_recompute_are_never_read() -> None:
    graph = GradGraph()
    mask, w = graph.input(np.array([1.0, 0.0])), graph.parameter(np.array([2.0, 3.0]))
    chosen = graph.where_cond(mask, w, graph.neg(w))
    graph.set_tensor(mask, np.array([1.0, 2.0]))
    for use in (graph.tensor, graph.backward, graph.tensor):
        with pytest.raises(ArgumentError, match=r"reforward: node 3: the mask of node 0"):
            use(chosen)
    graph.set_tensor(mask, np.array([0.0, 1.0]))
    np.testing.assert_array_equal(graph.tensor(chosen), [-2.0, 3.0])
    graph.set_tensor(mask, np.array([1.0, 1.0]))
    graph.reforward(3, 3)  # recomputes nothing: the node is still outdated
    np.testing.assert_array_equal(graph.tensor(chosen), [2.0, 3.0])


@pytest.mark.parametrize(("name", "build", "values"), cases_without("StructField", "MapLookup"))
def test_reforward_recomputes_every_operation(name: str, build: Build, values: tuple[Any, ...]) -> None:
    changed = [v * 1.25 if name in ("Ln", "Log2", "Sqrt", "Pow", "Div") else v + 0.125 for v in values]
    graph, fresh = GradGraph(), GradGraph()
    params = [graph.parameter(v) for v in values]
    out = build(graph, *params)
    expected = build(fresh, *(fresh.parameter(v) for v in changed))
    before = graph.nodes()
    for param, value in zip(params, changed, strict=True):
        graph.set_tensor(param, value)
    graph.reforward()
    assert graph.nodes() == before
    np.testing.assert_array_equal(graph.tensor(out), fresh.tensor(expected))
    graph.backward(out)
    fresh.backward(expected)
    for a, b in zip(leaves_of(graph, graph.grad), leaves_of(fresh, fresh.grad), strict=True):
        np.testing.assert_array_equal(a, b)


def test_clipping() -> None:
    graph = GradGraph()
    a, b = graph.parameter(np.array([3.0, -4.0])), graph.parameter(np.array([12.0]))
    for x in (a, b):
        graph.backward(graph.scalar_mul(graph.mul(x, x), 0.5))
    assert graph.clip_grad_norm(100.0) == pytest.approx(13.0)
    np.testing.assert_array_equal(graph.grad(a), [3.0, -4.0])
    assert graph.clip_grad_norm(6.5) == pytest.approx(13.0)
    np.testing.assert_allclose(graph.grad(a), [1.5, -2.0])
    np.testing.assert_allclose(graph.grad(b), [6.0])
    graph.clip_grad(1.75)
    np.testing.assert_allclose(graph.grad(a), [1.5, -1.75])
    np.testing.assert_allclose(graph.grad(b), [1.75])
    graph.zero_grad()
    assert graph.clip_grad_norm(1.0) == 0.0
    huge = graph.parameter(np.array([3.0, 4.0], "float32"))
    graph.backward_with_seed(huge, np.array([3e30, 4e30]))
    assert graph.clip_grad_norm(5.0) == pytest.approx(5e30)
    np.testing.assert_allclose(graph.grad(huge), [3.0, 4.0], rtol=1e-6)
    graph.backward_with_seed(huge, np.array([np.nan, 0.0]))
    with pytest.raises(NumericalInstabilityError, match="clip_grad_norm"):
        graph.clip_grad_norm(1.0)


def test_push_node_checks_its_value() -> None:
    graph = GradGraph()
    x, w = normal(2, 3), normal(3, seed=1)
    a = graph.push_node(GradOp.Input(), x)
    b = graph.push_node(GradOp.Parameter(), w, np.ones(3))
    y = graph.push_node(GradOp.Mul(a, b), x * w)
    z = graph.push_node(GradOp.Exp(y))
    np.testing.assert_allclose(graph.tensor(z), np.exp(x * w))
    flat = graph.push_node(GradOp.Reshape(input=y, original_shape=(2, 3)), (x * w).reshape(-1))
    graph.backward(flat)
    np.testing.assert_allclose(graph.grad(b), 1.0 + x.sum(0))
    for op, value, error, match in (
        (GradOp.Mul(a, b), x * w + 1e-3, ArgumentError, "not what the operation gives"),
        (GradOp.Mul(a, b), (x * w)[:1], ShapeError, r"the value has shape \[1, 3\]"),
        (GradOp.Mul(a, b), (x * w).astype("float32"), DTypeError, "float32"),
        (GradOp.Mul(a, 99), x, OutOfRangeError, "no node 99"),
        (GradOp.Input(), None, ArgumentError, "needs its value"),
        (GradOp.Reshape(input=y, original_shape=(2, 3)), None, ArgumentError, "must be given"),
        (GradOp.Reshape(input=y, original_shape=(3, 2)), np.ones(6), ShapeError, "original_shape"),
        (GradOp.CatOp(inputs=(a, a), axis=0, sizes=(2, 3)), None, ShapeError, "sizes"),
        (GradOp.StructField(parent=a, field_index=0, total_fields=1), None, DTypeError, "no record"),
        (GradOp.Clamp(input=a, min=1.0, max=0.0), None, ArgumentError, "the lower bound 1.0 is above the upper 0.0"),
        (3, None, DTypeError, "expected an operation"),
    ):
        with pytest.raises(error, match=match):
            graph.push_node(op, value)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="only a Parameter"):
        graph.push_node(GradOp.Neg(a), None, x)
    with pytest.raises(ShapeError, match="grad has shape"):
        graph.push_node(GradOp.Parameter(), w, x)
    assert len(graph) == 5


def test_pushed_nodes_need_the_matching_kind_of_tree() -> None:
    graph = GradGraph()
    record, mapping = graph.record(x=normal(2)), graph.mapping({"x": normal(2)})
    with pytest.raises(DTypeError, match="push_node: MapLookup: it is a record: use StructField"):
        graph.push_node(GradOp.MapLookup(map_node=record, key_index=0, total_keys=1))
    with pytest.raises(DTypeError, match="push_node: StructField: it is a map: use MapLookup"):
        graph.push_node(GradOp.StructField(parent=mapping, field_index=0, total_fields=1))
    with pytest.raises(DTypeError, match="its field 0 is None"):
        graph.map_lookup(graph.mapping({"x": None}), "x")
    with pytest.raises(ArgumentError, match="push_node: Parameter: grad: the trees differ"):
        graph.push_node(GradOp.Parameter(), normal(2), {"x": normal(2)})
    assert len(graph) == 3


def test_lists_of_numbers_are_arrays() -> None:
    graph = GradGraph()
    w = graph.parameter([1.0, 2.0])
    assert graph.tensor(w).dtype == "float32"
    graph.backward(graph.mul(w, graph.input([[3.0, 4.0], [5.0, 6.0]])))
    np.testing.assert_array_equal(graph.grad(w), [8.0, 10.0])
    assert graph.tensor(graph.input([[1, 0], [2, 2]])).dtype == "int64"
    tree = graph.parameter({"a": [1.0, 2.0], "b": [normal(2), normal(3)]})
    assert graph.tensor(tree)["a"].shape == (2,)
    assert [x.shape for x in graph.tensor(tree)["b"]] == [(2,), (3,)]
    double = graph.parameter(normal(2))
    graph.set_tensor(double, [3.0, 4.0])  # Python numbers have no dtype
    rows = graph.vmap_forward(double, [[1.0, 2.0], normal(2)], graph.neg(double))
    np.testing.assert_array_equal(graph.tensor(double), np.array([3.0, 4.0]), strict=True)
    np.testing.assert_array_equal(graph.tensor(rows[0]), np.array([-1.0, -2.0]), strict=True)


def test_a_failing_vmap_forward_adds_no_nodes() -> None:
    graph = GradGraph()
    x = graph.input(normal(3))
    y = graph.sum(graph.exp(x))
    for wrong in (normal(2), normal(3).astype("float32"), None, "a"):
        with pytest.raises((ShapeError, DTypeError, BackendMismatchError)):
            graph.vmap_forward(x, [normal(3), wrong], y)
        assert len(graph) == 3
    assert graph.vmap_forward(x, [], y) == []
    assert graph.value(graph.vmap_forward(x, [normal(3)], y)[0]) == graph.value(y)


# ---- records and maps ----


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any


def test_only_the_accessed_field_receives_gradient() -> None:
    graph = GradGraph()
    record = graph.record(a=normal(2), b=normal(3, 2), c=normal())
    second = graph.struct_field(record, "b")
    assert graph.nodes()[second] == GradOp.StructField(parent=record, field_index=1, total_fields=3)
    assert graph.struct_field(record, 1) == second + 1
    graph.backward(graph.mul(second, second))
    gradient = graph.grad(record)
    assert isinstance(gradient, Record)
    assert list(gradient) == ["a", "b", "c"]
    np.testing.assert_allclose(gradient.b, 2 * normal(3, 2))
    np.testing.assert_array_equal(gradient.a, np.zeros(2), strict=True)
    np.testing.assert_array_equal(gradient.c, np.zeros(()), strict=True)


def test_keys_are_in_insertion_order() -> None:
    graph = GradGraph()
    node = graph.mapping({"z": normal(2), "a": normal(2, seed=1), (1, 2): normal(1)})
    assert last(graph, graph.map_lookup(node, "z")) == GradOp.MapLookup(map_node=node, key_index=0, total_keys=3)
    third = graph.map_lookup(node, (1, 2))
    assert last(graph, third) == GradOp.MapLookup(map_node=node, key_index=2, total_keys=3)
    graph.backward(third)
    assert list(graph.grad(node)) == ["z", "a", (1, 2)]
    np.testing.assert_array_equal(graph.grad(node)[(1, 2)], [1.0])
    np.testing.assert_array_equal(graph.grad(node)["a"], [0.0, 0.0])


def test_fields_may_have_any_name() -> None:
    graph = GradGraph()
    node = graph.record(self=normal(2), x=normal(1))
    assert list(graph.tensor(node)) == ["self", "x"]
    np.testing.assert_array_equal(graph.tensor(graph.struct_field(node, "self")), normal(2))


def test_nested_records_and_maps() -> None:
    graph = GradGraph()
    tree = {"first": Record(w=normal(2), b=normal(2)), "second": Layer(normal(3), normal())}
    model = graph.record(layers=tree, t=2.0)
    layers = graph.struct_field(model, "layers")
    first, second = graph.map_lookup(layers, "first"), graph.map_lookup(layers, "second")
    w, bias = graph.struct_field(first, "w"), graph.struct_field(second, "bias")
    graph.backward(graph.sum(graph.mul(w, graph.mul(w, bias))))
    gradient = graph.grad(model)
    np.testing.assert_allclose(gradient.layers["first"].w, 2 * normal(2) * normal())
    np.testing.assert_allclose(gradient.layers["second"].bias, (normal(2) ** 2).sum())
    np.testing.assert_array_equal(gradient.layers["first"].b, [0.0, 0.0])
    np.testing.assert_array_equal(gradient.layers["second"].weight, [0.0, 0.0, 0.0])
    assert gradient.t == 0.0
    assert graph.grad(layers) is None
    assert isinstance(graph.tensor(second), Layer)


def test_named_tuples_and_dataclasses_are_parameters() -> None:
    graph = GradGraph()
    point = graph.parameter(Point(normal(2), normal(3)))
    graph.backward(graph.struct_field(point, "y"))
    assert isinstance(graph.grad(point), Point)
    np.testing.assert_array_equal(graph.grad(point).x, [0.0, 0.0])
    graph.set_tensor(point, Point(normal(2), np.full(3, 7.0)))
    assert graph.value(graph.struct_field(point, 1)) == 7.0


def test_a_backend_without_values_has_masks_and_classes() -> None:
    graph = GradGraph(backend="null")
    p = graph.parameter(normal(2, 3))
    for y in (
        graph.where_cond(graph.input(np.ones((2, 3))), p, graph.neg(p)),
        graph.cross_entropy(p, graph.input(np.array([1.0, 2.0]))),
    ):
        graph.backward(y)
    assert graph.grad(p).shape == (2, 3)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda g, r, m: g.struct_field(r, "wieght"), ArgumentError, r"no field 'wieght'.*'weight'"),
        (lambda g, r, m: g.struct_field(r, 2), OutOfRangeError, "fields 0 to 1, not 2"),
        (lambda g, r, m: g.struct_field(r, None), DTypeError, "by name or index, not None"),
        (lambda g, r, m: g.struct_field(r, True), DTypeError, "by name or index, not True"),
        (lambda g, r, m: g.struct_field(m, "a"), DTypeError, "a map: use map_lookup"),
        (lambda g, r, m: g.map_lookup(m, "b"), KeyError, "^map_lookup: the map of node 1 has no key 'b'"),
        (lambda g, r, m: g.map_lookup(r, "weight"), DTypeError, "a record: use struct_field"),
        (lambda g, r, m: g.struct_field(g.input(np.ones(2)), 0), DTypeError, "not a record"),
        (lambda g, r, m: g.map_lookup(g.input(np.ones(2)), 0), DTypeError, "not a map"),
        (lambda g, r, m: g.add(r, r), DTypeError, "take a field with struct_field"),
        (lambda g, r, m: g.backward(m), DTypeError, "take a field"),
        (lambda g, r, m: g.mapping([1.0]), DTypeError, "takes a dict"),
        (lambda g, r, m: g.set_tensor(m, {"b": np.ones(2)}), ArgumentError, "another form"),
        (lambda g, r, m: g.record(x=3), DTypeError, r"write 3\.0"),
    ],
)
def test_invalid_fields_are_refused(build: Any, error: type[Exception], match: str) -> None:
    graph = GradGraph()
    record, mapping = graph.record(weight=normal(2), bias=normal(1)), graph.mapping({"a": normal(2)})
    with pytest.raises(error, match=match):
        build(graph, record, mapping)


def test_records_are_read_by_name_or_index_and_immutable() -> None:
    record = Record(x=1, y=Record(z=2))
    assert (record.x, record["y"].z, record[0], len(record), list(record)) == (1, 2, 1, 2, ["x", "y"])
    assert repr(record) == "Record(x=1, y=Record(z=2))"
    assert repr(pickle.loads(pickle.dumps(record))) == repr(record) == repr(copy.deepcopy(record))
    with pytest.raises(AttributeError, match="no field 'w'"):
        _ = record.w
    with pytest.raises(AttributeError, match="immutable"):
        record.x = 2


# ---- backends, no_grad, pictures ----


def test_the_backend_is_the_default_of_the_scope_or_the_one_given() -> None:
    assert GradGraph().backend is BASE
    assert GradGraph(backend=OUTER).backend is BASE
    assert GradGraph(backend="autodiff(autodiff(numpy))").backend is OUTER
    with scoped(DEFAULT_BACKEND, Autodiff(OUTER)):
        assert GradGraph().backend is OUTER
    assert repr(GradGraph()) == "<GradGraph: 0 nodes on numpy>"


def test_a_graph_records_inside_no_grad() -> None:
    graph = GradGraph()
    w = graph.parameter(np.array([2.0]))
    with bb.no_grad():
        y = graph.mul(w, w)
    np.testing.assert_array_equal(graph.backward_collect(y, [w])[0], [4.0])


def test_a_picture_shows_nodes_constants_and_edges() -> None:
    pytest.importorskip("graphviz")
    graph = GradGraph()
    w = graph.record(a=normal(2, 3))
    field = graph.struct_field(w, "a")
    graph.clamp(graph.add(field, graph.input(normal(3))), 0.0, 1.0)
    source = graph.picture().source
    for text in ("0: Parameter", "record or map", "1: StructField", "field_index=0", "4: Clamp", "min=0.0"):
        assert text in source
    for edge in ("0 -> 1", "1 -> 3", "2 -> 3", "3 -> 4"):
        assert edge in source
    assert source.count("->") == 4
