"""Optimizers: the formulas in float64, state by path, tied and frozen parameters, and invalid input."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.backend.contract import Backend
from backburn.backend.registry import load_backend
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, GraphError, ShapeError
from backburn.conformance.samples.optimizer_steps import adam, sgd
from backburn.ops.table import OPERATIONS
from backburn.optim import SGD, Adam, AdamW
from backburn_numpy.runtime import processors, threads

Array = Any
NUMPY = load_backend("numpy")


def leaf(value: Any, dtype: str = "float64", backend: Any = None) -> Any:
    x = bb.asarray(np.asarray(value, dtype), backend=backend)
    return x.require_grad() if x.is_autodiff else x


def model_of(*shapes: tuple[int, ...], dtype: str = "float64") -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {f"p{i}": leaf(generator.normal(size=s), dtype) for i, s in enumerate(shapes)}


def quadratic(model: Any) -> Any:
    """Gradients of ``sum(scale * x**2) / 2``, with a different scale for each parameter."""
    total = None
    for i, x in enumerate(model.values()):
        part = (x * x * (0.5 * (i + 1))).sum()
        total = part if total is None else total + part
    assert total is not None
    return total.backward()


def values(model: Any) -> list[Array]:
    return [x.numpy() for x in model.values()]


CASES: list[Any] = [
    pytest.param(lambda: SGD(0.1), {"lr": 0.1}, id="sgd"),
    pytest.param(lambda: SGD(0.1, weight_decay=0.3), {"lr": 0.1, "weight_decay": 0.3}, id="sgd-decay"),
    pytest.param(lambda: SGD(0.1, 0.9), {"lr": 0.1, "momentum": 0.9}, id="sgd-momentum"),
    pytest.param(
        lambda: SGD(0.1, 0.9, nesterov=True, weight_decay=0.3),
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.3},
        id="sgd-nesterov-decay",
    ),
    pytest.param(lambda: Adam(0.1), {"lr": 0.1}, id="adam"),
    pytest.param(
        lambda: Adam(0.1, (0.7, 0.8), 0.01, 0.3),
        {"lr": 0.1, "beta1": 0.7, "beta2": 0.8, "eps": 0.01, "weight_decay": 0.3},
        id="adam-options",
    ),
    pytest.param(lambda: AdamW(0.1), {"lr": 0.1, "weight_decay": 0.01, "decoupled": True}, id="adamw"),
]


@pytest.mark.parametrize(("make", "options"), CASES)
def test_steps_follow_the_formulas(make: Callable[[], Any], options: dict[str, Any]) -> None:
    model, optimizer = model_of((3, 2), (), (0,), (4,)), make()
    expected = values(model)
    start = [None if isinstance(optimizer, SGD) else (np.zeros(x.shape), np.zeros(x.shape)) for x in expected]
    state: list[Any] = list(start)
    for step in range(1, 6):
        optimizer.step(model, quadratic(model))
        for i, x in enumerate(expected):
            g = (i + 1) * x
            if isinstance(optimizer, SGD):
                expected[i], state[i] = sgd(x, g, state[i], **options)
            else:
                expected[i], *state[i] = adam(x, g, *state[i], step=step, **options)
    for got, reference in zip(values(model), expected, strict=True):
        np.testing.assert_allclose(got, reference, rtol=1e-12, atol=1e-13, strict=True)
    assert optimizer.steps == 5
    assert all(x.is_require_grad for x in model.values())


@pytest.mark.parametrize(("make", "options"), CASES)
def test_gradients_by_path_on_a_plain_backend(make: Callable[[], Any], options: dict[str, Any]) -> None:
    model, plain = model_of((3,)), {"p0": leaf(values(model_of((3,)))[0], backend="numpy")}
    first, second = make(), make()
    for _ in range(3):
        gradients = quadratic(model)
        second.step(plain, optim.named_gradients(model, gradients))
        first.step(model, gradients)
    np.testing.assert_array_equal(model["p0"].numpy(), plain["p0"].numpy())
    assert plain["p0"].backend is NUMPY


@pytest.mark.parametrize("name", ["sgd_step", "adam_step"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_fused_step_equals_the_default_body(name: str, dtype: str) -> None:
    """Over several blocks, with and without threads, for other layouts, with and without donated memory."""
    operation = OPERATIONS[name]
    generator = np.random.default_rng(0)
    tensors = [generator.normal(size=(3, 40_000)).astype(dtype) for _ in operation.operands]
    tensors[-1] = np.abs(tensors[-1])
    transposed = [np.asfortranarray(t) for t in tensors]
    options = {"lr": 0.1, "weight_decay": 0.3, **({"momentum": 0.9} if name == "sgd_step" else {"step": 3})}
    expected = operation.body(NUMPY, *tensors, **options)
    tolerance: dict[str, Any] = {"rtol": 1e-5 if dtype == "float32" else 1e-12, "atol": 1e-6, "strict": True}
    for operands in (tensors, transposed, [tensors[0], *transposed[1:]]):
        before = [t.copy() for t in operands]
        results = getattr(NUMPY, name)(*operands, **options)
        for got, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, reference, **tolerance)
        for now, then in zip(operands, before, strict=True):
            np.testing.assert_array_equal(now, then)
    owned = [t.copy() for t in tensors]
    results = getattr(NUMPY, name)(*owned, **options, donate=True)
    assert [np.shares_memory(r, t) for r, t in zip(results[1:], owned[2:], strict=True)] == [True] * (len(results) - 1)
    assert not np.shares_memory(results[0], owned[0])
    for got, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, reference, **tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("donate", [False, True])
def test_a_step_of_many_tensors_equals_single_steps(dtype: str, donate: bool) -> None:
    """Bitwise equal, for tensors of every size and layout."""
    generator = np.random.default_rng(0)
    shapes = [(), (1,), (0, 3), (7,), (5, 9), (300, 200), (64, 33)]
    lists: list[list[Any]]
    lists = [[np.asarray(generator.normal(size=s)).astype(dtype) for s in shapes] for _ in range(4)]
    params, grads, ms, vs = *lists[:3], list(map(np.abs, lists[3]))
    grads[4], ms[6] = np.asfortranarray(grads[4]), np.asfortranarray(ms[6])
    vs[0] = vs[0][()]  # a NumPy scalar, not an array
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.3, "step": 3}
    each: Any = zip(params, grads, ms, vs, strict=True)
    alone = [NUMPY.adam_step(p.copy(), g, m.copy(), v.copy(), **options) for p, g, m, v in each]
    together = NUMPY.adam_steps(params, grads, ms, vs, **options, donate=donate)
    for i, of_one in enumerate(alone):
        for got, expected in zip(together[i :: len(shapes)], of_one, strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)
    assert [got is m for got, m in zip(together[7:14], ms, strict=True)] == [*[donate] * 6, False]
    assert NUMPY.adam_steps([], [], [], []) == ()
    with pytest.raises(ShapeError):
        NUMPY.adam_steps(params, grads[:3], ms, vs)
    with pytest.raises(ShapeError):
        NUMPY.adam_steps(params[:2], grads[1:3], ms[:2], vs[:2])


@pytest.mark.parametrize("name", ["sgd_step", "adam_step"])
def test_the_fused_step_refuses_mismatched_operands(name: str) -> None:
    step = getattr(NUMPY, name)
    count = len(OPERATIONS[name].operands)
    with pytest.raises(ShapeError):
        step(np.ones((2, 3)), np.ones((3, 2)), *[np.ones((2, 3))] * (count - 2))
    with pytest.raises(ShapeError):
        step(np.ones(3), *[np.ones(3)] * (count - 2), np.ones(3, np.float32))
    if name == "adam_step":
        with pytest.raises(ArgumentError, match="counted from 1"):
            step(*[np.ones(3)] * 4, step=0)


def test_tied_weights_stay_tied() -> None:
    """An embedding that is also the output layer has one gradient, and both places get the same new tensor."""
    w = leaf([[0.5, -0.25], [1.0, 2.0]])
    model: dict[str, Any] = {"embed": {"weight": w}, "head": [w], "bias": leaf([0.0, 0.0])}
    alone: dict[str, Any] = {"w": leaf(w.numpy()), "bias": leaf([0.0, 0.0])}
    x = bb.asarray(np.array([[1.0, 2.0], [3.0, -1.0]]))
    first, second = Adam(0.1), Adam(0.1)

    def loss(embed: Any, head: Any, bias: Any) -> Any:
        return ((x * embed + bias) * head).sum()

    for _ in range(4):
        gradients = loss(model["embed"]["weight"], model["head"][0], model["bias"]).backward()
        assert list(optim.named_gradients(model, gradients)) == ["embed.weight", "bias"]
        first.step(model, gradients)
        second.step(alone, loss(alone["w"], alone["w"], alone["bias"]).backward())
        assert model["embed"]["weight"] is model["head"][0]
    np.testing.assert_allclose(model["head"][0].numpy(), alone["w"].numpy(), rtol=1e-12)
    names = {f"{path}.{name}" for path in ("embed.weight", "bias") for name in ("step", "m", "v")}
    assert set(first.state_dict()) == {"steps", *names}


def test_gradients_of_a_tied_parameter_under_two_paths_add_up() -> None:
    w = leaf([1.0])
    model = {"a": w, "b": w}
    SGD(1.0).step(model, {"a": leaf([0.25], backend="numpy"), "b": leaf([0.5], backend="numpy")})
    assert model["a"].item() == 0.25
    assert model["a"] is model["b"]


def test_frozen_parameters_and_parameters_without_gradient_are_left_alone() -> None:
    frozen = bb.asarray([1.0, 2.0])
    unused = bb.asarray([3.0]).require_grad()
    counts = bb.asarray([1, 2])
    w = bb.asarray([1.0, 1.0]).require_grad()
    model: dict[str, Any] = {"frozen": frozen, "unused": unused, "w": w, "n": counts}
    optimizer = Adam(0.1)
    optimizer.step(model, (model["frozen"] * model["w"]).sum().backward())
    assert model["frozen"] is frozen
    assert model["unused"] is unused
    assert model["n"] is counts
    optimizer.step(model, {"frozen": bb.asarray([9.0, 9.0], backend="numpy"), "w": bb.asarray([1.0, 1.0])})
    assert model["frozen"] is frozen
    assert optimizer.steps == 2


def test_a_changed_model_is_traversed_again() -> None:
    model: dict[str, Any] = model_of((2,))
    optimizer = SGD(0.1, 0.9)
    optimizer.step(model, quadratic(model))
    model["late"] = leaf([2.0])
    model["p0"] = leaf([1.0, 1.0])
    optimizer.step(model, quadratic(model))
    assert model["late"].item() == pytest.approx(2.0 - 0.1 * 4.0)
    other = model_of((2,))
    optimizer.step(other, quadratic(other))
    assert "p0.velocity" in optimizer.state_dict()


@pytest.mark.parametrize(("make", "options"), CASES)
def test_resuming_from_a_saved_state_equals_continuing(make: Callable[[], Any], options: Any) -> None:
    model, optimizer = model_of((3, 2), (4,)), make()
    for _ in range(3):
        optimizer.step(model, quadratic(model))
    saved: dict[str, Any] = optimizer.state_dict()
    kept = {key: value.numpy() for key, value in saved.items() if key.endswith(".m")}
    copied = pickle.loads(pickle.dumps(saved))
    resumed, other = make(), dict(model)
    resumed.load_state_dict(copied)
    for _ in range(3):
        optimizer.step(model, quadratic(model))
        resumed.step(other, quadratic(other))
    for a, b in zip(values(model), values(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert resumed.steps == 6
    for key, value in kept.items():  # later steps did not use up the snapshot
        np.testing.assert_array_equal(saved[key].numpy(), value)
        np.testing.assert_array_equal(copied[key].numpy(), value)


def test_a_saved_state_is_not_changed_by_steps_that_skip_a_parameter() -> None:
    model, optimizer = model_of((3,), (3,)), Adam(0.1)
    optimizer.step(model, quadratic(model))
    saved: dict[str, Any] = optimizer.state_dict()
    before = saved["p1.m"].numpy()
    optimizer.step(model, (model["p0"] * model["p0"]).sum().backward())
    optimizer.step(model, quadratic(model))
    np.testing.assert_array_equal(saved["p1.m"].numpy(), before)


def test_the_state_follows_the_model_to_another_backend() -> None:
    model, optimizer = model_of((3,)), Adam(0.1)
    reference, same = model_of((3,)), Adam(0.1)
    for backend in ("autodiff(numpy)", "autodiff(autodiff(numpy))", "autodiff(numpy)"):
        model = {"p0": bb.asarray(model["p0"].numpy(), backend=backend).require_grad()}
        optimizer.step(model, quadratic(model))
        same.step(reference, quadratic(reference))
    np.testing.assert_array_equal(model["p0"].numpy(), reference["p0"].numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_small_gradients_of_narrow_floats_are_not_lost(dtype: str) -> None:
    """The square of a float16 gradient of 1e-4 underflows, so it is computed in float32."""
    model = {"w": leaf([1.0], dtype)}
    optimizer = Adam(0.125)
    optimizer.step(model, {"w": leaf([1e-4], dtype, "numpy")})
    assert model["w"].item() == pytest.approx(0.875, rel=1e-2)
    assert model["w"].dtype == dtype
    assert optimizer.state_dict()["w.v"].dtype == "float32"  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [lambda: SGD(0.1, 0.9), lambda: Adam(0.1)])
def test_parameters_are_updated_together_as_they_would_be_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters differ in dtype and step count, and some state tensors are also held elsewhere."""
    calls: list[int] = []
    name = "sgd_steps" if isinstance(make(), SGD) else "adam_steps"

    def counted(k: Any, params: Any, *others: Any, **options: Any) -> Any:
        calls.append(len(params))
        return getattr(Backend, name)(k, params, *others, **options)

    monkeypatch.setattr(type(NUMPY), name, counted)
    dtypes = ["float32", "float64", "float16", "float32", "float64"]
    start = [np.arange(1.0, 4 + i) / 8 for i in range(5)]
    together = {f"p{i}": leaf(x, d) for i, (x, d) in enumerate(zip(start, dtypes, strict=True))}
    alone = [{f"p{i}": leaf(x, d)} for i, (x, d) in enumerate(zip(start, dtypes, strict=True))]
    optimizer, others = make(), [make() for _ in alone]
    apart = [1, 2, 2] if name == "adam_steps" else [2, 3]  # one parameter is a step behind
    for round_ in range(4):
        used = [i for i in range(5) if (round_, i) != (1, 2)]
        kept = {n: (x, np.array(x)) for n, x in optimizer.state_dict().items()} if round_ == 3 else {}
        expected = {0: [2, 3], 1: [2, 2]}.get(round_, apart)
        total: Any = sum((together[f"p{i}"] ** 2.0).sum().astype("float64") for i in used)
        calls.clear()
        optimizer.step(together, total.backward())
        assert sorted(calls) == expected
        for i in used:
            others[i].step(alone[i], (alone[i][f"p{i}"] ** 2.0).sum().backward())
        for i in range(5):
            np.testing.assert_array_equal(together[f"p{i}"].numpy(), alone[i][f"p{i}"].numpy())
        for now, then in kept.values():
            np.testing.assert_array_equal(np.asarray(now), then)


def test_narrow_floats_are_widened_in_limited_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(k: Any, params: Any, *others: Any, **options: Any) -> Any:
        calls.append(len(params))
        return Backend.adam_steps(k, params, *others, **options)

    monkeypatch.setattr(type(NUMPY), "adam_steps", counted)
    monkeypatch.setattr("backburn.optim.optimizer.WIDENED", 10)
    shapes = [(4,), (4,), (4,), (30,), (1,)]
    model, wide = model_of(*shapes, dtype="float16"), model_of(*shapes, dtype="float32")
    Adam().step(model, quadratic(model))
    assert calls == [3, 1, 1]
    calls.clear()
    Adam().step(wide, quadratic(wide))
    assert calls == [5]


def test_a_learning_rate_may_depend_on_the_step() -> None:
    model = {"w": leaf([0.0])}
    optimizer = SGD(lambda step: 0.5**step)
    for expected in (-1.0, -1.5, -1.75):
        optimizer.step(model, {"w": leaf([1.0], backend="numpy")})
        assert model["w"].item() == expected
    optimizer.lr = 1.0
    optimizer.step(model, {"w": leaf([1.0], backend="numpy")})
    assert model["w"].item() == -2.75
    optimizer.lr = lambda step: float("nan")
    with pytest.raises(ArgumentError, match=r"SGD: lr\(4\) is a finite number"):
        optimizer.step(model, {"w": leaf([1.0], backend="numpy")})


def test_add_scale_norm_and_clip() -> None:
    first = {"a": leaf([1.0, 2.0], backend="numpy"), "b": leaf([3.0], "float32", "numpy")}
    second = {"a": leaf([1.0, 1.0], backend="numpy"), "c": leaf([[4.0]], backend="numpy")}
    total = optim.add(first, second)
    assert {k: v.tolist() for k, v in total.items()} == {"a": [2.0, 3.0], "b": [3.0], "c": [[4.0]]}
    assert {k: v.tolist() for k, v in optim.scale(total, 2).items()} == {"a": [4.0, 6.0], "b": [6.0], "c": [[8.0]]}
    factors: list[Any] = [np.float32(2.0), np.array(2), bb.asarray(2), bb.asarray(2.0)]
    for factor in factors:
        scaled = optim.scale(total, factor)
        assert {k: (v.tolist(), v.dtype) for k, v in scaled.items()} == {
            k: ((2.0 * v).tolist(), v.dtype) for k, v in total.items()
        }
    norm = optim.global_norm(total)
    assert norm.item() == pytest.approx(38.0**0.5)
    clipped, before = optim.clip_grad_norm(total, 2.0)
    assert before.item() == norm.item()
    assert optim.global_norm(clipped).item() == pytest.approx(2.0, rel=1e-6)
    assert {k: v.dtype for k, v in clipped.items()} == {"a": "float64", "b": "float32", "c": "float64"}
    untouched, _ = optim.clip_grad_norm(total, 100.0)
    assert {k: v.tolist() for k, v in untouched.items()} == {k: v.tolist() for k, v in total.items()}
    zero, norm = optim.clip_grad_norm({"a": leaf([0.0], backend="numpy")}, 1.0)
    assert (zero["a"].item(), norm.item()) == (0.0, 0.0)
    half = {"a": leaf([300.0, 400.0], "float16", "numpy")}
    assert optim.global_norm(half).item() == 500.0  # the squares overflow float16
    assert optim.clip_grad_norm(half, 5.0)[0]["a"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("ord", [0.5, 1.0, 2.0, 3, np.inf])
def test_norms_of_other_orders(ord: float) -> None:
    values = [np.array([3.0, -4.0]), np.array([[0.5], [12.0]]), np.zeros((0, 2))]
    gradients = {f"{i}": leaf(v, backend="numpy") for i, v in enumerate(values)}
    expected = np.linalg.norm(np.concatenate([v.ravel() for v in values]), ord)
    assert optim.global_norm(gradients, norm_type=ord).item() == pytest.approx(expected)
    clipped, norm = optim.clip_grad_norm(gradients, 2.0, norm_type=ord)
    assert norm.item() == pytest.approx(expected)
    np.testing.assert_allclose(clipped["1"].numpy(), values[1] * 2.0 / expected)
    for refused in (0.0, -1.0, np.nan):
        with pytest.raises(ArgumentError, match="clip_grad_norm: norm_type is a number above 0"):
            optim.clip_grad_norm(gradients, 2.0, norm_type=refused)


def test_large_gradients_are_clipped_and_not_lost() -> None:
    clipped, norm = optim.clip_grad_norm({"a": leaf([3e30, 4e30], "float32", "numpy")}, 10.0)
    assert norm.item() == pytest.approx(5e30)
    np.testing.assert_allclose(clipped["a"].numpy(), [6.0, 8.0], rtol=1e-6)


@pytest.mark.parametrize("factor", [None, "2", [2.0], bb.asarray([2.0]), np.ones(2)])
def test_a_factor_that_is_not_a_number_is_refused(factor: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale: factor is a number"):
        optim.scale({"a": leaf([1.0], backend="numpy")}, factor)


def test_accumulated_gradients_equal_those_of_the_whole_batch() -> None:
    model, data = model_of((3,)), np.random.default_rng(2).normal(size=(4, 3))

    def gradients(rows: Array) -> Any:
        return optim.named_gradients(model, (bb.asarray(rows) * model["p0"] * model["p0"]).sum().backward())

    parts = optim.add(gradients(data[:2]), gradients(data[2:]))
    np.testing.assert_allclose(parts["p0"].numpy(), gradients(data)["p0"].numpy(), rtol=1e-12)


@pytest.mark.parametrize(("make", "options"), CASES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_an_optimizer_is_independent(
    make: Callable[[], Any], options: Any, copied: Callable[[Any], Any]
) -> None:
    model, optimizer = bb.nn.Sequential(bb.nn.Linear(3, 2)), make()

    def step(optimizer: Any, model: Any) -> None:
        optimizer.step(model, (model(bb.ones((4, 3))) ** 2.0).sum().backward())

    step(optimizer, model)
    other, twin = copied((model, optimizer))
    for _ in range(2):
        step(optimizer, model)
    for _ in range(2):
        step(twin, other)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert twin.steps == optimizer.steps == 3


def test_a_state_may_be_loaded_from_arrays(tmp_path: Path) -> None:
    model, optimizer = model_of((3, 2)), Adam(0.1)
    optimizer.step(model, quadratic(model))
    bb.io.save_state(tmp_path / "state", optimizer.state_dict())
    resumed, other = Adam(0.1), dict(model)
    resumed.load_state_dict(bb.io.load_state(tmp_path / "state"))
    optimizer.step(model, quadratic(model))
    resumed.step(other, quadratic(other))
    np.testing.assert_array_equal(values(model)[0], values(other)[0])


def test_bad_options() -> None:
    untyped: Any = Adam
    for make, words in [
        (lambda: Adam(model_of((2,)), 0.1), r"Adam: takes no parameters.*Adam\(0.01\).step\(model, gradients\)"),  # type: ignore[arg-type]
        (lambda: untyped(model_of((2,)), lr=0.1), "Adam: takes no parameters"),
        (lambda: untyped(bb.nn.Linear(2, 2).parameters(), lr=0.1), "Adam: takes no parameters"),
        (lambda: untyped(bb.nn.Linear(2, 2), lr=0.1), "Adam: takes no parameters"),
        (lambda: untyped(bb.nn.Linear(2, 2)), "Adam: takes no parameters"),
        (lambda: SGD(-0.1), "SGD: lr is a finite number of at least 0, not -0.1"),
        (lambda: SGD(float("nan")), "SGD: lr"),
        (lambda: SGD(True), "SGD: lr"),
        (lambda: Adam(betas=(0.9,)), "Adam: betas are two numbers"),  # type: ignore[arg-type]
        (lambda: Adam(betas=0.9), "Adam: betas are two numbers"),  # type: ignore[arg-type]
        (lambda: SGD(0.1, momentum=-1), "SGD: momentum"),
        (lambda: SGD(0.1, nesterov=True), "momentum with nesterov"),
        (lambda: Adam("fast"), "Adam: lr is a number, not 'fast'"),  # type: ignore[arg-type]
        (lambda: Adam(betas=(0.9, 1.0)), r"Adam: betas\[1\] is a number of at least 0 and below 1, not 1.0"),
        (lambda: AdamW(eps=-1.0), "AdamW: eps"),
        (lambda: AdamW(weight_decay=float("inf")), "AdamW: weight_decay"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            make()


def test_bad_gradients_change_nothing() -> None:
    model = model_of((2, 3), (3,))
    before, optimizer = dict(model), Adam(0.1)
    good = leaf(np.ones((2, 3)), backend="numpy")
    other: Any = leaf([1.0]) * 2.0
    for gradients, kind, words in [
        ({"p0": good, "p2": good}, ArgumentError, "the model has no parameter 'p2'"),
        ({"p0": good, "p1": good}, ShapeError, r"gradient of p1 has another shape.*float64\[2,3\].*float64\[3\]"),
        ({"p0": leaf(np.ones((2, 3)), "float32", "numpy")}, DTypeError, "gradient of p0 is a tensor of the param"),
        ({"p0": np.ones((2, 3))}, DTypeError, "gradient of p0"),
        ({"p0": leaf(np.ones((2, 3)), backend="autodiff(autodiff(numpy))")}, BackendMismatchError, "another backend"),
        ({}, GraphError, "none of the 2 float tensors of the model has a gradient"),
        (other.sum().backward(), GraphError, "none of the 2"),
        (other.sum(), DTypeError, r"not FloatTensor: step\(model, loss.backward\(\)\)"),
        (None, DTypeError, "takes the gradients that backward returned, not NoneType"),
        ((leaf([1.0], backend="autodiff(autodiff(numpy))") * 2.0).sum().backward(), BackendMismatchError, "belong to"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=words):
            optimizer.step(model, gradients)
        assert all(model[key] is before[key] for key in model)
    assert optimizer.steps == 0
    plain = {"p0": leaf([1.0], backend="numpy")}
    with pytest.raises(DTypeError, match=r"step\(model, loss.backward\(\)\)"):
        optimizer.step(plain, plain["p0"].sum())
    with pytest.raises(ArgumentError, match="max_norm"):
        optim.clip_grad_norm({"p0": good}, 0.0)
    with pytest.raises(ArgumentError, match="no gradients"):
        optim.clip_grad_norm({}, 1.0)
    with pytest.raises(ArgumentError, match="no gradients"):
        optim.global_norm({})


def test_bad_states_change_nothing() -> None:
    model, optimizer = model_of((2,)), Adam(0.1)
    optimizer.step(model, quadratic(model))
    state: dict[str, Any] = optimizer.state_dict()
    fresh = Adam(0.1)
    changes: list[tuple[dict[Any, Any], type[Exception], str]] = [
        ({"p0.m": None}, ArgumentError, r"missing in the state of Adam: p0\.m"),
        ({"steps": None}, ArgumentError, "missing in the state of Adam: steps"),
        ({"p0.velocity": 1}, ArgumentError, r"unexpected in the state of Adam: p0\.velocity"),
        ({"p0.m": 3}, DTypeError, r"p0\.m is a float tensor, not int"),
        ({"p0.m": bb.asarray([1, 2])}, DTypeError, r"p0\.m is a float tensor, not IntTensor"),
        ({"steps": "x"}, DTypeError, "steps is an integer, not 'x'"),
        ({0: {}}, ArgumentError, r"unexpected in the state of Adam: \.0"),
        ({"p0.step": 1.5}, DTypeError, r"p0\.step is an integer, not 1\.5"),
    ]
    for change, kind, words in changes:
        broken = {**state, **change}
        broken = {key: value for key, value in broken.items() if value is not None}
        with pytest.raises(kind, match=words):
            fresh.load_state_dict(broken)
    assert fresh.state_dict() == {"steps": 0}
    fresh.load_state_dict(state)
    with pytest.raises(ShapeError, match=r"p0 is float64\[2\] .*, and the parameter is float64\[3\]"):
        fresh.step({"p0": leaf([1.0, 2.0, 3.0])}, {"p0": leaf([1.0, 2.0, 3.0], backend="numpy")})
    fresh.load_state_dict(state)
    with pytest.raises(ArgumentError, match="has no parameter 'p0'"):
        fresh.step({"q": leaf([1.0])}, {"q": leaf([1.0], backend="numpy")})


def test_parallel_for_splits_ranges_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", 3)
    monkeypatch.setattr(threads, "_pool", None)
    seen: list[tuple[int, int, int]] = []

    def work(start: int, stop: int) -> None:
        seen.append((start, stop, threading.get_ident()))
        threads.parallel_for(lambda a, b: seen.append((a, b, -1)), stop - start, worth=1)  # nested calls run at once

    threads.parallel_for(work, 10, worth=6)
    parts = sorted(s[:2] for s in seen if s[2] != -1)
    assert parts == [(0, 3), (3, 6), (6, 10)]
    assert len({s[2] for s in seen if s[2] != -1}) > 1

    def fails(start: int, stop: int) -> None:
        if start:
            raise OverflowError("in a part")

    with pytest.raises(OverflowError, match="in a part"):
        threads.parallel_for(fails, 10, worth=6)
    seen.clear()
    threads.parallel_for(work, 5, worth=6)
    assert seen[0][:2] == (0, 5)
    threads.set_num_threads(1)
    assert threads.num_threads() == 1


def test_the_number_of_threads_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", None)
    monkeypatch.setenv("BACKBURN_NUM_THREADS", "many")
    with pytest.raises(ArgumentError, match="BACKBURN_NUM_THREADS='many'"):
        threads.num_threads()
    monkeypatch.setenv("BACKBURN_NUM_THREADS", "5")
    assert threads.num_threads() == 5


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/a/b\n", {"cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 1\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "500000 100000\n"}, 3),
        ("0::/outside\n", {"cpu.max": "400000 100000\n"}, 4),
        (
            "5:cpuset:/\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/docker/1/cpu.cfs_quota_us": "200000\n"},
            2,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, 8),
        ("something else\n", {}, 8),
        (None, {}, 8),
    ],
)
def test_control_groups_limit_the_number_of_threads(
    groups: str | None, files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if file.name == "cpu.cfs_quota_us":
            file.with_name("cpu.cfs_period_us").write_text("100000\n")
    if groups is not None:
        (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(processors, "_MOUNT", tmp_path)
    monkeypatch.setattr(processors, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert processors.processors() == count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # JAX warns about any fork
def test_a_forked_child_starts_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_count", 2)
    monkeypatch.setattr(threads, "_pool", None)
    threads.parallel_for(lambda start, stop: None, 10, worth=2)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.parallel_for(lambda start, stop: done.append(stop - start), 10, worth=2)
        os._exit(0 if sum(done) == 10 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_options_may_be_numbers_of_numpy() -> None:
    model = {"w": bb.asarray([1.0]).require_grad()}
    optimizer = SGD(lr=np.float32(0.5), momentum=np.float64(0.5))  # type: ignore[arg-type]
    optimizer.step(model, (model["w"] * 1.0).sum().backward())
    assert model["w"].tolist() == [0.5]
    assert type(optimizer.lr) is float


class Tied(nn.Module):
    """A tied weight, a frozen layer, and a float buffer."""

    offset: Any

    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.layers[1].weight = self.layers[0].weight
        self.last = nn.Linear(2, 1)
        self.register_buffer("offset", bb.asarray([1.0, 2.0]))
        self.freeze("last")

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x + self.offset)
        return (self.last(x) * self.last(x)).sum()


@pytest.mark.parametrize("changed", [lambda g: g, lambda g: g.to("numpy")])
@pytest.mark.parametrize("make", [lambda: SGD(0.1), lambda: Adam(0.1)])
def test_a_tree_of_gradients_is_that_of_backward(make: Any, changed: Any) -> None:
    """Trees as from ``bb.grad``: gradients of a tied parameter add up; frozen parameters and buffers stay."""
    x = bb.asarray(np.random.default_rng(0).normal(size=(3, 2)).astype("float32"))
    first: Any = Tied()
    second = copy.deepcopy(first)
    offset, frozen = first.offset, first.last.weight
    one, other = make(), make()
    for _ in range(3):
        gradients = changed(bb.grad(lambda model: model(x))(first))
        by_path = optim.named_gradients(second, second(x).backward())
        named = optim.named_gradients(first, gradients)
        assert list(named) == list(by_path) == ["layers.0.weight", "layers.0.bias", "layers.1.bias"]
        for path, gradient in named.items():
            assert gradient.backend is by_path[path].backend
            np.testing.assert_allclose(gradient.numpy(), by_path[path].numpy(), rtol=1e-5)
        one.step(first, gradients)
        other.step(second, by_path)
        assert first.layers[0].weight is first.layers[1].weight
    for x1, x2 in zip(first.parameters(), second.parameters(), strict=True):
        np.testing.assert_allclose(x1.numpy(), x2.numpy(), rtol=1e-4)
    assert first.offset is offset
    assert first.last.weight is frozen


def test_named_gradients_of_a_tree_keep_their_derivatives() -> None:
    """Inside a transform named gradients of a tree remain differentiable and mapped."""
    x = bb.asarray(np.random.default_rng(0).normal(size=(3, 2)))
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).astype("float64")

    def slope(model: Any, x: Any) -> Any:
        return bb.grad(lambda model: (model(x) ** 2.0).sum())(model)

    def size(model: Any, x: Any) -> Any:
        return optim.global_norm(optim.named_gradients(model, slope(model, x))) ** 2.0

    expected = bb.hvp(lambda model: (model(x) ** 2.0).sum(), (model,), (slope(model, x),))[0]
    for found, half in zip(bb.grad(size)(model, x).parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(found.numpy(), 2.0 * half.numpy(), rtol=1e-10)
    each = bb.vmap(size, in_axes=(None, 0))(model.freeze(), x)
    np.testing.assert_allclose(each.numpy(), [size(model.require_grad(), row).item() for row in x], rtol=1e-10)


@pytest.mark.parametrize("transform", [bb.grad, bb.vmap])
def test_a_step_inside_of_a_transform_is_refused(transform: Any) -> None:
    """The new leaves would cut off derivatives; the error says what to write instead."""

    def trained(model: Any, x: Any) -> Any:
        SGD(0.1).step(model, bb.grad(lambda model: model(x).sum())(model))
        return model(x).sum()

    model = nn.Linear(2, 1)
    if transform is bb.vmap:
        model = bb.trees.tree_map(lambda p: bb.stack([p, p, p]), model)
    with pytest.raises(GraphError, match=r"step: the model is an argument of a transform.*tree_map\(lambda p, g:"):
        transform(trained)(model, bb.ones((3, 2)))


def test_trees_of_gradients_on_a_backend_without_gradients() -> None:
    """The model distinguishes buffers from parameters, and a gradient in two places counts once."""
    model: Any = Tied().to("numpy")
    offset, old = model.offset, model.layers[0].weight
    gradient = bb.ones((2, 2), backend="numpy")
    gradients = bb.trees.tree_map(lambda x: gradient if x.shape == (2, 2) else bb.ones_like(x), model)
    SGD(0.5).step(model, gradients)
    assert model.offset is offset
    np.testing.assert_array_equal(model.layers[1].weight.numpy(), old.numpy() - np.float32(0.5))
    nested = {"a": [leaf([1.0], backend="numpy")], "b": leaf([2.0], backend="numpy")}
    SGD(1.0).step(nested, {"a": [leaf([0.25], backend="numpy")], "b": None})
    assert [nested["a"][0].item(), nested["b"].item()] == [0.75, 2.0]


@pytest.mark.parametrize("make", [lambda: SGD(0.1), lambda: Adam(0.1), lambda: optim.Groups({"*": AdamW(0.1)})])
def test_a_model_on_a_forward_backend_is_trained(make: Any) -> None:
    """On ``forward(...)`` no tensor requires a gradient: as on a plain backend, every parameter is trained."""

    def trained(spec: str) -> Any:
        model, optimizer = {"w": bb.asarray([1.0, -2.0], backend=spec)}, make()
        for _ in range(2):
            optimizer.step(model, bb.grad(lambda model: (model["w"] ** 2.0).sum())(model))
        return model["w"]

    assert trained("forward(numpy)").backend.spec == "forward(numpy)"
    assert trained("forward(numpy)").tolist() == trained("numpy").tolist() != [1.0, -2.0]
    with pytest.raises(GraphError, match=r"backward: forward\(numpy\) does not differentiate: make the tensor on"):
        trained("forward(numpy)").sum().backward()


def test_norms_of_trees_of_gradients() -> None:
    """Gradients in a module give the same norms as gradients by path."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3), nn.Linear(3, 1))
    x = bb.asarray(np.random.default_rng(0).normal(size=(5, 2)).astype("float32"))
    gradients = bb.grad(lambda model: (model(x) * model(x)).sum())(model)
    named = optim.named_gradients(model, gradients)
    assert list(named) == [path for path, _ in model.named_parameters()]
    norm = np.sqrt(sum((g.numpy() ** 2).sum() for g in named.values()))
    assert optim.global_norm(gradients).item() == pytest.approx(norm, rel=1e-5)
    clipped, before = optim.clip_grad_norm(gradients, 0.5)
    assert before.item() == pytest.approx(norm, rel=1e-5)
    assert optim.global_norm(clipped).item() == pytest.approx(0.5, rel=1e-5)
    for total in (optim.add(gradients, gradients), optim.scale(gradients, 2.0)):
        assert list(total) == list(named)
        assert optim.global_norm(total).item() == pytest.approx(2 * norm, rel=1e-5)
    SGD(0.1).step(model, clipped)


def test_objects_without_gradients_are_refused() -> None:
    """Errors name the function that reads the gradients."""
    model = nn.Linear(2, 1)
    returned = model(bb.ones((1, 2))).sum().backward()
    for wrong in (returned, model, model.parameters(), iter(model.parameters()), model.weight, None, 1.0):
        for measure in (
            lambda g: optim.clip_grad_norm(g, 1.0),
            optim.global_norm,
            lambda g: optim.scale(g, 2.0),
            lambda g: optim.add({}, g),
        ):
            with pytest.raises(ArgumentError, match=r"takes gradients.*named_gradients\(model, gradients\)"):
                measure(wrong)
    for array in ({"a": np.ones(2)}, {"a": 1.0}):
        for measure in (lambda g: optim.clip_grad_value(g, 1.0), optim.global_norm, lambda g: optim.add(g, {})):
            words = r"the gradient of a is a tensor, not (ndarray float64\[2\]: bb.asarray|1\.0)"
            with pytest.raises(DTypeError, match=words):
                measure(array)
    with pytest.raises(ShapeError, match=r"^add: two gradients of a differ in shape: float32\[2,3\]"):
        optim.add({"a": bb.ones((2, 3))}, {"a": bb.ones((3,))})
    before = model.weight
    with pytest.raises(ArgumentError, match="step: takes gradients, and 'weight' is the parameter itself"):
        SGD(0.1).step(model, model)
    with pytest.raises(ArgumentError, match="step: the model has no parameter '0'"):
        SGD(0.1).step(model, [bb.ones((2, 1))])
    with pytest.raises(ShapeError, match="step: the gradient of weight has another shape"):
        SGD(0.1).step(model, bb.trees.tree_map(lambda x: bb.ones((3,)), model))
    with pytest.raises(DTypeError, match=r"step: the gradient of a\.0 is a tensor"):
        SGD(0.1).step({"a": [leaf([1.0])]}, {"a": [np.ones(1)]})
    assert model.weight is before


def test_gradients_in_place_of_the_model_are_refused() -> None:
    """Swapped arguments would look like a model without parameters."""
    model = nn.Linear(2, 1)
    gradients = model(bb.ones((1, 2))).sum().backward()
    with pytest.raises(ArgumentError, match=r"takes the model first, .*, a Gradients, has no parameters"):
        SGD(0.1).step(gradients, model)


# ---- common mistakes ----


@pytest.mark.parametrize("make", [lambda: SGD(0.1), lambda: optim.Groups({"*": Adam()}), optim.LBFGS])
def test_the_parameters_of_a_model_are_refused_as_a_model(make: Any) -> None:
    """They are a tuple, which could not receive the new parameters."""
    model = nn.Linear(2, 1)
    x = bb.ones((3, 2))
    optimizer = make()
    for listed in (model.parameters(), model.named_parameters()):
        with pytest.raises(ArgumentError, match=r"takes the model, into which .*: step\(model, gradients\)"):
            optimizer.step(listed, model(x).sum().backward())
    assert optimizer.steps == 0
    own = [model.weight, model.bias]
    SGD(0.1).step(own, model(x).sum().backward())
    assert own[0] is not model.weight


def test_a_model_with_a_parameter_in_a_tuple_is_not_changed() -> None:
    w, b = leaf([1.0]), leaf([2.0])
    model: Any = ([w], b)
    optimizer = SGD(0.1, momentum=0.9)
    with pytest.raises(ArgumentError, match="'1' is in a tuple, which never changes"):
        optimizer.step(model, (w * b).sum().backward())
    assert model[0][0] is w
    assert optimizer.steps == 0
    optimizer.step(model, (2.0 * w).sum().backward())  # the tensor in the tuple has no gradient
    assert model[0][0].tolist() == pytest.approx([0.8])


def test_a_pattern_that_matches_no_parameter() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = optim.Groups({"0.biias": SGD(0.1), "*": SGD(0.1)})
    with pytest.raises(ArgumentError, match=r"no parameter's path matches '0.biias'. Did you mean '0.bias'\?"):
        optimizer.step(model, model(bb.ones((1, 2))).sum().backward())
    assert optimizer.steps == 0


def test_options_are_checked_when_they_are_set() -> None:
    optimizer: Any = SGD(0.1, momentum=0.5)
    with pytest.raises(AttributeError, match=r"'SGD' object has no attribute 'lrr'. Did you mean 'lr'\?"):
        optimizer.lrr = 3
    for name, value in (("lr", "x"), ("lr", -1.0), ("momentum", 1.0), ("weight_decay", None)):
        with pytest.raises(ArgumentError, match=f"^SGD: {name} is a (finite )?number"):
            setattr(optimizer, name, value)
    with pytest.raises(ArgumentError, match="SGD: momentum determines the kept state, and cannot become 0"):
        optimizer.momentum = 0.0
    optimizer.lr, optimizer.momentum, optimizer.nesterov = 0.5 * optimizer.lr, 0.75, True
    assert repr(optimizer) == "SGD(lr=0.05, momentum=0.75, weight_decay=0.0, nesterov=True)"
    for made, name, new in (
        (Adam(), "betas", 0.9),
        (Adam(), "betas", (0.9, 1.0)),
        (Adam(), "amsgrad", True),
        (optim.RMSprop(), "centered", True),
        (optim.RMSprop(), "alpha", 2.0),
        (optim.Adagrad(), "eps", "x"),
        (optim.LBFGS(), "history_size", 3),
        (SGD(0.1), "nesterov", True),
    ):
        before = getattr(made, name)
        with pytest.raises(ArgumentError, match=type(made).__name__):
            setattr(made, name, new)
        assert getattr(made, name) == before
    groups: Any = optim.Groups({"*": SGD(0.1)})
    with pytest.raises(AttributeError, match="'Groups' object has no attribute 'lr'"):
        groups.lr = 0.5
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        with pytest.raises(AttributeError, match="lrr"):
            again.lrr = 3


class Signs(optim.Optimizer):
    """A user's optimizer with attributes of its own."""

    def __init__(self, lr: float, remembered: bool) -> None:
        super().__init__(lr)
        self.seen: list[int] = []
        self.remembers = ("sign",) if remembered else ()

    def _update(self, k: Any, inputs: Any) -> Any:
        self.seen.append(len(inputs.params))
        signs = [k.sign(g) for g in inputs.grads]
        news = [k.sub(x, k.mul(s, inputs.lr)) for x, s in zip(inputs.params, signs, strict=True)]
        return (*news, *(signs if inputs.remembered else ()))


@pytest.mark.parametrize("remembered", [False, True])
def test_a_custom_optimizer(remembered: bool) -> None:
    model = {"w": bb.asarray([3.0, -2.0]).require_grad()}
    optimizer = Signs(0.5, remembered)
    optimizer.step(model, (model["w"] * model["w"]).sum().backward())
    assert model["w"].tolist() == [2.5, -1.5]
    assert optimizer.seen == [1]


def test_lbfgs_returns_the_loss_of_a_function() -> None:
    model = {"w": bb.asarray([3.0]).require_grad()}
    optimizer = optim.LBFGS()
    losses = [optimizer.step(model, lambda model: (model["w"] ** 2.0).sum()) for _ in range(3)]
    assert losses[0] == 9.0
    assert losses[0] > losses[1] > losses[2]  # type: ignore[operator]
    assert optimizer.step(model, (model["w"] ** 2.0).sum().backward()) is None


@pytest.mark.parametrize("clip", [optim.clip_grad_norm, optim.clip_grad_value])
def test_a_limit_that_is_not_a_number_is_refused(clip: Any) -> None:
    for limit in ("1", None, -1.0):
        with pytest.raises(
            ArgumentError, match=f"{clip.__name__}: (max_norm|clip_value) is a (finite )?number( above 0)?, not"
        ):
            clip({"a": bb.ones(2)}, limit)


def test_an_optimizer_refuses_a_model_of_another_dtype() -> None:
    model, optimizer = nn.Linear(2, 1), Adam()
    optimizer.step(model, model(bb.ones((1, 2))).sum().backward())
    wide = model.astype("float64")
    gradients = wide(bb.ones((1, 2), dtype="float64")).sum().backward()
    loaded = Adam()
    loaded.load_state_dict(optimizer.state_dict())
    for kept in (optimizer, loaded):
        with pytest.raises(DTypeError, match=r"of weight is float32\[1,2\] .*, and the parameter is float64\[1,2\]"):
            kept.step(wide, gradients)
    assert bool((wide.weight == model.weight.astype("float64")).all())
    Adam().step(wide, gradients)


def test_a_negative_number_of_steps_is_not_loaded() -> None:
    with pytest.raises(ArgumentError, match="load_state_dict: steps is a number of steps, not -1"):
        Adam().load_state_dict({"steps": -1})


def test_a_flag_that_is_not_a_bool_is_refused() -> None:
    makers: Any = [
        ("SGD: nesterov", lambda: SGD(0.1, 0.9, nesterov=1e-4)),  # type: ignore[arg-type]
        ("AdamW: amsgrad", lambda: AdamW(0.1, (0.9, 0.99), 1e-8, 0.1, 1)),  # type: ignore[arg-type]
        ("RMSprop: centered", lambda: optim.RMSprop(centered="no")),  # type: ignore[arg-type]
    ]
    for words, make in makers:
        with pytest.raises(ArgumentError, match=f"{words} is True or False, not .*; other options come by name"):
            make()
