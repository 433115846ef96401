"""Modules: their tensors and submodules, state and modes, and layers against their formulas."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    GraphError,
    OutOfRangeError,
    ShapeError,
    Unsupported,
)
from backburn.base.trees import flatten, leaves_with_paths, tree_map, unflatten
from backburn.nn import functional, init

Array = Any


def tensor(value: Any, dtype: str = "float32") -> Any:
    return bb.asarray(np.asarray(value, dtype))


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), dtype)


@dataclass
class Part:
    layer: Any
    gain: Any


class Everything(nn.Module):
    """Tensors and modules in every kind of container, and other attributes."""

    def __init__(self) -> None:
        self.weight = nn.parameter(tensor([1.0, 2.0]))
        self.layers = [nn.Linear(2, 3), nn.ReLU(), {"deep": (nn.Linear(3, 1, bias=False), "text")}]
        self.part = Part(nn.Linear(1, 1), nn.parameter(tensor(3.0)))
        self.counts = tensor([1, 2], "int64")
        self.register_buffer("steps", tensor([0.0]))
        self.register_buffer("stats", {"mean": tensor([5.0])})
        self.sizes = [2, 3]
        self.kernel = (3, [5, "same"])
        self.name = "everything"
        self.nothing = None
        self.later: list[Any] = []


PARAMETERS = [
    "weight", "layers.0.weight", "layers.0.bias", "layers.2.deep.0.weight", "part.layer.weight", "part.layer.bias",
    "part.gain",
]  # fmt: skip


def test_a_module_lists_its_parameters_buffers_and_modules() -> None:
    model = Everything()
    assert [path for path, _ in model.named_parameters()] == PARAMETERS
    assert [x.shape for x in model.parameters()] == [(2,), (3, 2), (3,), (1, 3), (1, 1), (1,), ()]
    assert [path for path, _ in model.named_buffers()] == ["counts", "steps", "stats.mean"]
    assert [path for path, _ in model.named_modules()] == ["", "layers.0", "layers.1", "layers.2.deep.0", "part.layer"]
    assert model.num_parameters == 2 + 6 + 3 + 3 + 1 + 1 + 1
    model.later.append(nn.Linear(1, 2))
    assert [path for path, _ in model.named_parameters()][-2:] == ["later.0.weight", "later.0.bias"]


def test_a_module_is_a_tree_node() -> None:
    model = Everything()
    leaves, structure = flatten(model)
    again = unflatten(structure, leaves)
    assert isinstance(again, Everything)
    assert flatten(again)[1] == structure
    assert again.sizes == [2, 3]
    assert again.sizes is not model.sizes
    assert again.kernel == model.kernel
    assert again.kernel[1] is not model.kernel[1]
    assert (again.name, again.nothing) == ("everything", None)
    doubled = tree_map(lambda x: x * 2.0 if isinstance(x, bb.FloatTensor) else x, model)
    assert doubled.weight.tolist() == [2.0, 4.0]
    assert [path for path, _ in doubled.named_buffers()] == ["counts", "steps", "stats.mean"]
    other = Everything()
    other.name = "other"
    with pytest.raises(ArgumentError, match="at the root, what is not a leaf differs"):
        tree_map(lambda x, y: x, model, other)
    stacked = nn.Sequential(nn.Linear(1, 2), nn.Tanh())
    mapped = tree_map(lambda x: x, stacked)
    assert isinstance(mapped, nn.Sequential)
    assert len(mapped) == 2
    mapped.append(nn.ReLU())
    assert len(stacked) == 2
    assert [path for path, _ in leaves_with_paths(stacked)] == ["0.weight", "0.bias"]


def test_a_sequential_may_have_parameters_of_its_own() -> None:
    class Scaled(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(2, 2))
            self.scale = nn.parameter(tensor(2.0))

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale

    model = Scaled()
    assert [path for path, _ in model.named_parameters()] == ["0.weight", "0.bias", "scale"]
    mapped = tree_map(lambda x: x * 3.0, model)
    assert mapped.scale.item() == 6.0
    optim.SGD(1.0).step(model, model(tensor([[1.0, 1.0]])).sum().backward())
    assert model.scale.item() != 2.0
    assert model.scale.is_require_grad


def test_a_cyclic_module_is_refused() -> None:
    model = nn.Sequential(nn.ReLU())
    model[0].above = model  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="cyclic: a Sequential contains itself"):
        model.parameters()


def test_slots_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Slotted: attributes in __slots__ would not be part of the state"):

        class Slotted(nn.Module):
            __slots__ = ("w",)

    with pytest.raises(ArgumentError, match="slots=True"):

        @dataclass(slots=True)
        class Scaled(nn.Module):
            w: bb.Tensor

    class Empty(nn.Module):
        __slots__ = ()

    assert Empty().state_dict() == {}


def test_state_round_trip() -> None:
    model, other = Everything(), Everything()
    state = model.state_dict()
    assert list(state) == [*PARAMETERS, "counts", "steps", "stats.mean"]
    assert not any(x.is_tracked for x in state.values())
    other.freeze("layers")
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    for (path, x), (same, y) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        assert path == same
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    assert [p for p, x in other.named_parameters() if not x.is_require_grad] == PARAMETERS[1:4]
    arrays = {path: x.numpy() + 1 for path, x in state.items()}
    other.load_state_dict(arrays)
    assert other.weight.tolist() == [2.0, 3.0]
    assert other.counts.tolist() == [2, 3]
    other.load_state_dict({"weight": tensor([7.0, 7.0]), "unknown": tensor(1.0)}, strict=False)
    assert other.weight.tolist() == [7.0, 7.0]
    assert state["weight"].tolist() == [1.0, 2.0]
    other.load_state_dict({path: bb.asarray(x.numpy(), backend="numpy") for path, x in state.items()})
    assert other.weight.backend is bb.default_backend()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"weight": None}, ArgumentError, r"missing: weight\. Nothing was loaded"),
        ({"wieght": 1.0}, ArgumentError, "unexpected: wieght. Did you mean 'weight'"),
        ({"weight": np.zeros(3, "f")}, ShapeError, r"weight has shape \[3\] there and \[2\] here"),
        ({"weight": np.zeros(2)}, DTypeError, "weight is float64 there and float32 here"),
        ({"counts": np.zeros(2)}, DTypeError, "counts is float64 there and int64 here"),
    ],
)
def test_a_bad_state_changes_nothing(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    model = Everything()
    before = dict(leaves_with_paths(model))
    state = {k: v for k, v in {**Everything().state_dict(), **change}.items() if v is not None}
    with pytest.raises(kind, match=words) as caught:
        model.load_state_dict(state)
    assert "Nothing was loaded" in str(caught.value)
    assert all(leaf is before[path] for path, leaf in leaves_with_paths(model))


def test_a_weight_of_another_shape_is_refused() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(ShapeError, match=r"weight has shape \[3, 2\] there and \[2, 3\] here. Nothing was loaded"):
        layer.load_state_dict({"weight": bb.ones((3, 2)), "bias": bb.ones((2,))})


class Tied(nn.Module):
    """One tensor as the weight of an embedding and of a linear layer."""

    def __init__(self) -> None:
        self.table = nn.Embedding(3, 3)
        self.out = nn.Linear(3, 3, bias=False)
        self.out.weight = self.table.weight
        self.again = self.out

    def forward(self, ids: Any) -> Any:
        return self.again(self.out(self.table(ids)))


def test_tied_weights_are_one_parameter() -> None:
    model = Tied()
    assert [path for path, _ in model.named_parameters()] == ["table.weight"]
    assert model.num_parameters == 9
    assert list(model.state_dict()) == ["table.weight", "out.weight", "again.weight"]
    ids = tensor([0, 2, 2], "int64")
    optimizer = optim.Adam(0.1)
    for _ in range(2):
        optimizer.step(model, (model(ids) * model(ids)).sum().backward())
    assert model.table.weight is model.out.weight is model.again.weight
    assert model.again is model.out
    for other in (copy.deepcopy(model), model.inner(), model.to("numpy")):
        assert other.table.weight is other.out.weight
        assert other.again is other.out
    fresh = Tied()
    fresh.load_state_dict({"out.weight": model.state_dict()["out.weight"]})
    assert fresh.table.weight is fresh.out.weight
    np.testing.assert_array_equal(fresh.table.weight.numpy(), model.table.weight.numpy())
    assert "weight: the same as table.weight" in repr(model)
    assert "again: the same as out" in repr(model)


def test_deep_copies_have_new_parameters() -> None:
    """Copies are tied among themselves like the originals, but not to them; frozen ones stay frozen."""
    ids = tensor([0, 2], "int64")
    model: Any = nn.Sequential(Tied(), nn.Linear(3, 2)).freeze("1.bias")
    other: Any
    for other in (copy.deepcopy(model), model.astype("float32"), model.to("autodiff(autodiff(numpy))")):
        tied, linear = other[0], other[1]
        assert tied.table.weight is tied.out.weight
        assert tied.table.weight is not model[0].table.weight
        assert not linear.bias.is_require_grad
    target = copy.deepcopy(model)
    grads = (model(ids) - 2.0 * target(ids)).sum().backward()
    weight, bias = model[1].weight, model[1].bias
    np.testing.assert_allclose(target[1].weight.grad(grads).numpy(), -2.0 * weight.grad(grads).numpy())
    assert target[1].bias.primitive is bias.primitive  # the values of a constant never change
    first = nn.Linear(3, 3)
    layers = nn.ModuleList([copy.deepcopy(first) for _ in range(3)])
    assert layers.num_parameters == 3 * first.num_parameters
    assert copy.copy(model)[1].weight is weight  # shallow


@pytest.mark.parametrize("backend", ["numpy", "autodiff(numpy)"])
def test_deep_copies_of_constants_are_not_tied_either(backend: str) -> None:
    """For frozen parameters, buffers, and all parameters on a backend without gradients."""
    first = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2)).to(backend).freeze()
    model = nn.ModuleList([first, copy.deepcopy(first), first.astype("float32"), first.to(backend)])
    assert model.num_parameters == 4 * first.num_parameters
    assert len(model.named_buffers()) == 4 * len(first.named_buffers())
    state = model.state_dict()
    state["1.1.running_mean"] = state["1.1.running_mean"] + 1.0
    model.load_state_dict(state)
    means = [path for path, x in model.named_buffers() if path.endswith("mean") and x.tolist() == [1.0, 1.0]]
    assert means == ["1.1.running_mean"]


def test_deep_copies_of_tensors_of_all_kinds_and_levels() -> None:
    first: Any
    second: Any
    w = bb.ones((2,)).require_grad()
    again = w.require_grad()  # the same leaf
    first, second = copy.deepcopy([w, again])
    assert len((first * second).sum().backward()) == 1
    assert first is not w
    for constant in (bb.ones((2,)), bb.asarray([1, 2]), bb.asarray([True]), bb.ones((4,)).quantize()):
        first, second = copy.deepcopy([constant, constant])
        assert first is second
        assert first is not constant
        assert (type(first), first.tolist()) == (type(constant), constant.tolist())
    twice = bb.ones((2,), backend="autodiff(autodiff(numpy))").require_grad()
    made = copy.deepcopy(twice)
    grads = (made * made).sum().backward()
    assert made.grad(grads) is not None
    assert twice.grad(grads) is None
    for recorded in (w * 2.0, (w * 2.0).retain_grad()):
        with pytest.raises(GraphError, match=r"deepcopy: .*float32\[2\] \(autodiff\(numpy\)\).*detach\(\)"):
            copy.deepcopy({"loss": recorded})


def test_gradients_flow_through_deep_copies_inside_of_transforms() -> None:
    model, x = nn.Linear(3, 2), normal(4, 3)

    def loss(model: Any) -> Any:
        return (copy.deepcopy(model)(x) ** 2.0).sum()

    expected = bb.grad(lambda model: (model(x) ** 2.0).sum())(model)
    np.testing.assert_array_equal(bb.grad(loss)(model).weight.numpy(), expected.weight.numpy())
    assert bb.vmap(lambda row: copy.deepcopy(model)(copy.deepcopy(row)[None]))(x).shape == (4, 1, 2)
    gradient = bb.grad(loss)(model)  # tracked, like the model's leaves
    assert gradient.to("numpy").weight.shape == gradient.astype("float64").weight.shape == (2, 3)
    assert gradient.astype("float32").weight.is_tracked


class Remembering(nn.Module):
    """A module that stores computed tensors in attributes."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)
        self.all: Any = []
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        self.hidden = self.layer(x)
        self.all = [self.hidden, self.hidden * 2.0]
        self.kept = self.hidden.retain_grad() if self.hidden.is_tracked and self.hidden.is_autodiff else self.hidden
        self.last = (self.kept,)
        return self.hidden


def test_deep_copies_of_leaves_on_two_levels() -> None:
    """Results of the copies depend on the copies at both levels, and on the originals at neither."""
    outer: Any = bb.load_backend("autodiff(autodiff(numpy))")
    inner: Any = bb.asarray([1.0, 2.0], backend=outer.inner_backend).require_grad()
    below, above = copy.deepcopy((inner, bb.from_inner(inner, backend=outer).require_grad()))
    slope = above.grad((above**3.0).sum().backward())
    gradients = slope.sum().backward()
    assert below.grad(gradients).tolist() == [6.0, 12.0]
    assert inner.grad(gradients) is None


def test_computed_tensors_are_not_part_of_the_state() -> None:
    model = Remembering()
    before = model.state_dict()
    model(normal(4, 3))
    assert [path for path, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
    assert model.num_parameters == 8
    assert model.named_buffers() == ()
    assert list(model.state_dict()) == list(before)
    model.load_state_dict(before)
    assert repr(model).count("f32[4,2] computed") == 3
    optim.SGD(0.1).step(model, model(normal(4, 3)).sum().backward())
    assert model.to("numpy").hidden.tolist() == model.hidden.tolist()
    model.astype("float64").inner()
    with pytest.raises(GraphError, match=r"deepcopy: .*detach"):
        copy.deepcopy(model)
    with bb.no_grad():
        model(normal(4, 3))
    assert "hidden" not in model.state_dict()
    gradients = bb.grad(lambda model: model(normal(4, 3)).sum())(model)
    assert [path for path, _ in gradients.named_parameters()] == ["layer.weight", "layer.bias"]
    model.hidden = nn.parameter(bb.ones((2,)))
    assert "hidden" in model.state_dict()


@pytest.mark.parametrize("run", [
    lambda model, x: bb.grad(lambda x: model(x).sum())(x),
    lambda model, x: bb.jvp(lambda x: model(x), (x,), (x,)),
    lambda model, x: bb.vmap(model)(x),
    lambda model, x: bb.grad(lambda y: (bb.vmap(model)(x) * y).sum())(1.0),
    lambda model, x: bb.grad(lambda y: (model(x * bb.stop_gradient(y)) * y).sum())(1.0),
    lambda model, x: bb.jvp(lambda x: model.freeze()(x), (x,), (x,)),
])  # fmt: skip
def test_tensors_computed_inside_a_transform_are_not_part_of_the_state(run: Any) -> None:
    model = Remembering()
    before = list(model.state_dict())
    run(model, normal(4, 3))
    assert list(model.state_dict()) == before
    assert "computed" in repr(model)


def test_computed_tensors_do_not_replace_parameters() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 2))
    weight = model[0].weight
    with pytest.raises(GraphError, match=r"Linear.weight: .*float32\[2,3\].* Write .detach\(\).require_grad\(\)"):
        model[0].weight = weight - 0.5 * weight.detach()
    assert model[0].weight is weight
    model[0].several = [nn.parameter(bb.ones((2,))) for _ in range(2)]
    with pytest.raises(GraphError, match=r"Linear.several: a parameter is a leaf"):
        model[0].several = [x * 0.5 for x in model[0].several]
    del model[0].several
    model[0].weight = (weight - 0.5 * weight.detach()).detach().require_grad()
    with bb.no_grad():
        model[0].weight = weight * 0.5  # a constant becomes a frozen parameter
    assert len(model.parameters()) == 2
    model[0].register_buffer("average", bb.zeros(()))
    model[0].average = model[0].bias.mean()
    assert "0.average" in model.state_dict()


def test_parameters_are_replaced_inside_of_transforms() -> None:
    """Inside a transform parameters are traced values, which assignment may replace."""
    x = normal(4, 3)

    def after_a_step(model: Any) -> Any:
        gradient = bb.grad(lambda model: (model(x) ** 2.0).sum())(model)
        model.weight = model.weight - 0.1 * gradient.weight
        return (model(x) ** 2.0).sum()

    model = nn.Linear(3, 2)
    assert bb.grad(after_a_step)(model).weight.shape == (2, 3)
    assert model.weight.is_require_grad  # the new weight is written back to the model


def test_slices_of_containers_hold_the_same_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    x = normal(4, 3)
    first: Any = model[:2]
    assert type(first) is nn.Sequential
    assert list(first) == list(model)[:2]
    np.testing.assert_array_equal(first(x).numpy(), model[1](model[0](x)).numpy())
    assert type(nn.ModuleList(model)[::2]) is nn.ModuleList
    with pytest.raises(DTypeError, match="Sequential: takes the index of a module or a slice, not '0'"):
        model["0"]  # type: ignore[call-overload]


def test_different_values_for_one_parameter_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    state = model.state_dict()
    model[1].weight = model[0].weight  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"0.weight and 1.weight are one parameter here and two there.*Nothing was"):
        model.load_state_dict(state)
    saved = {"0.weight": np.array([[1.0, 2.0], [np.nan, 0.0]], dtype="float32")}
    for given in (saved, {"1.weight": saved["0.weight"]}, {**saved, "1.weight": saved["0.weight"].copy()}):
        model.load_state_dict(given)
        assert model[0].weight is model[1].weight  # type: ignore[attr-defined]
    np.testing.assert_array_equal(model.state_dict()["1.weight"].numpy(), saved["0.weight"])


def test_replacing_a_module_of_a_sequential() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 4)).freeze()
    model[-1] = nn.Linear(2, 5)
    assert model(bb.ones((1, 3))).shape == (1, 5)
    assert [path for path, x in model.named_parameters() if x.is_require_grad] == ["2.weight", "2.bias"]
    before = model.state_dict()
    optim.SGD(0.1).step(model, model(bb.ones((1, 3))).sum().backward())
    changed = [path for path, x in model.state_dict().items() if (x != before[path]).any()]
    assert changed[-1] == "2.bias"
    assert all(path.startswith("2.") for path in changed)
    for index, module, kind in (
        (3, nn.ReLU(), OutOfRangeError),
        (slice(1), nn.ReLU(), DTypeError),
        ("0", nn.ReLU(), DTypeError),
        (0, nn.ReLU, ArgumentError),
    ):
        with pytest.raises(kind, match="Sequential: "):
            model[index] = module  # type: ignore[index, assignment]
    assert len(model) == 3


@pytest.mark.parametrize("value", [np.ones(2), 1.0, [1, 2]])
def test_parameters_and_buffers_must_be_tensors(value: Any) -> None:
    """Other values would silently be missing from the state."""
    model = nn.Linear(2, 2)
    with pytest.raises(DTypeError, match=r"register_buffer: mean is not a tensor: .* bb\.asarray"):
        model.register_buffer("mean", value)
    assert not hasattr(model, "mean")
    assert not model.named_buffers()
    with pytest.raises(DTypeError, match=r"^parameter: takes a tensor, not .* bb\.asarray"):
        nn.parameter(value)


def test_freezing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    model.freeze("0").freeze("1.b*")
    assert [x.is_require_grad for x in model.parameters()] == [False, False, True, False, True, True]
    before = dict(model.named_parameters())
    optim.SGD(0.1, 0.9).step(model, model(normal(4, 2)).sum().backward())
    changed = [path for path, x in model.named_parameters() if x is not before[path]]
    assert changed == ["1.weight", "2.weight", "2.bias"]
    assert repr(model).count("frozen") == 3
    model.require_grad()
    assert all(x.is_require_grad for x in model.parameters())
    with pytest.raises(ArgumentError, match=r"freeze: no parameter's path matches '3\.weight'\. Did you mean '"):
        model.freeze("3.weight")
    with pytest.raises(ArgumentError, match=r"freeze: takes one pattern of paths, such as .*, not \['0', '1'\]"):
        model.freeze(["0", "1"])  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="does not differentiate"):
        model.inner().require_grad()


def test_copies_on_other_backends() -> None:
    model = Everything()
    inner = model.inner()
    assert {x.backend.spec for _, x in leaves_with_paths(inner) if not isinstance(x, str)} == {"numpy"}
    assert model.weight.backend.spec == "autodiff(numpy)"
    assert model.weight.is_require_grad
    assert inner.stats["mean"].tolist() == [5.0]  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match="does not differentiate"):
        inner.inner()
    model.freeze("weight")
    twice = model.to("autodiff(autodiff(numpy))")
    assert twice.weight.backend.spec == "autodiff(autodiff(numpy))"
    assert [x.is_require_grad for x in twice.parameters()] == [False, *[True] * 6]
    assert not any(x.is_require_grad for x in model.to("numpy").parameters())
    assert not any(x.is_require_grad for _, x in twice.named_buffers())


def test_layers_are_made_on_the_default_backend_in_the_default_dtype() -> None:
    with bb.use_backend("numpy"), bb.use_dtype("float64"):
        layer = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm(2), nn.Embedding(2, 2))
    assert {x.backend.spec for x in layer.state_dict().values()} == {"numpy"}
    assert {x.dtype.name for x in layer.parameters()} == {"float64"}
    assert {x.dtype.name for name, x in layer.named_buffers() if "running" in name} == {"float64"}
    assert not any(x.is_require_grad for x in layer.parameters())
    assert all(x.is_require_grad for x in nn.Linear(2, 2).parameters())


def test_modes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5)))
    assert model.eval() is model
    assert [m.training for _, m in model.named_modules()] == [False] * 4
    model.train()
    assert [m.training for _, m in model.named_modules()] == [True] * 4
    copied = model.inner().eval()
    assert model.training
    assert not copied.training


def test_dropout() -> None:
    x = tensor(np.ones((200, 50)))
    layer = nn.Dropout(0.25)
    bb.random.seed(5)
    first, second = layer(x).numpy(), layer(x).numpy()
    bb.random.seed(5)
    np.testing.assert_array_equal(first, layer(x).numpy())
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.unique(first), np.array([0.0, 1.0 / 0.75], "f"))
    assert abs((first == 0).mean() - 0.25) < 0.02
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x.numpy())
    # Training mode works without gradients too.
    assert (nn.Dropout(0.5)(bb.asarray(np.ones(100, "f"), backend="numpy")).numpy() == 0).any()
    np.testing.assert_array_equal(nn.Dropout(1.0)(x).numpy(), 0.0 * x.numpy())
    np.testing.assert_array_equal(nn.Dropout(0.0)(x).numpy(), x.numpy())
    w = normal(30).require_grad()
    bb.random.seed(1)
    y = functional.dropout(w, 0.5)
    np.testing.assert_array_equal(w.grad(y.sum().backward()).numpy(), np.where(y.numpy() != 0, 2.0, 0.0))


def test_the_same_seed_makes_the_same_model() -> None:
    def weights(seed: int) -> Array:
        bb.random.seed(seed)
        return np.concatenate([x.numpy().ravel() for x in nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).parameters()])

    np.testing.assert_array_equal(weights(3), weights(3))
    assert not np.array_equal(weights(3), weights(4))


def test_linear_and_embedding() -> None:
    layer = nn.Linear(3, 2)
    x = normal(5, 4, 3)
    w, b = (p.numpy() for p in layer.parameters())
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() @ w.T + b, rtol=1e-5, atol=1e-6)
    assert np.abs(nn.Linear(100, 50).weight.numpy()).max() <= 0.1
    assert nn.Linear(3, 2, bias=False).bias is None
    with pytest.raises(ShapeError, match="Linear"):
        layer(normal(5, 4))
    mixed = functional.linear(tensor([[1, 2]], "int64"), bb.asarray(np.ones((1, 2)), backend="numpy"), tensor([0.5]))
    assert (mixed.tolist(), mixed.dtype.name, mixed.backend.spec) == ([[3.5]], "float64", "autodiff(numpy)")
    table = nn.Embedding(4, 2)
    ids = tensor([[3, 0], [0, 1]], "int64")
    np.testing.assert_array_equal(table(ids).numpy(), table.weight.numpy()[ids.numpy()])
    grad = table.weight.grad(table(ids).sum().backward())
    assert grad is not None
    assert grad.tolist() == [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(OutOfRangeError):
        table(tensor([4], "int64"))
    with pytest.raises(DTypeError, match=r"Embedding: takes integer indices; indices and weight: float32\[1\]"):
        table(tensor([1.0]))


def test_normalizing_layers() -> None:
    x = normal(6, 3, 4, dtype="float64")
    a = x.numpy()
    with bb.use_dtype("float64"):
        layer, two, root = nn.LayerNorm(4), nn.LayerNorm((3, 4), elementwise_affine=False), nn.RMSNorm(4)
    layer.load_state_dict({"weight": np.arange(4.0), "bias": np.ones(4)})
    expected = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5) * np.arange(4.0) + 1
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-10)
    axes = (-2, -1)
    expected = (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(two(x).numpy(), expected, rtol=1e-10)
    assert two.parameters() == ()
    expected = a / np.sqrt((a * a).mean(-1, keepdims=True) + np.finfo(np.float64).eps)
    np.testing.assert_allclose(root(x).numpy(), expected, rtol=1e-10)
    with pytest.raises(ShapeError, match=r"LayerNorm: made for inputs of shape \[..., 4\], not float32\[2,5\]"):
        layer(normal(2, 5))


def test_norms_of_groups_and_instances() -> None:
    x = normal(6, 4, 3, 2, dtype="float64")
    a = x.numpy()
    with bb.use_dtype("float64"):
        groups, instances, plain = nn.GroupNorm(2, 4), nn.InstanceNorm(4, affine=True), nn.InstanceNorm(4)
    assert groups.num_parameters == instances.num_parameters == 8
    assert plain.parameters() == ()
    scale, shape = np.arange(4.0), (1, 4, 1, 1)
    for layer, count in ((groups, 2), (instances, 4)):
        layer.load_state_dict({"weight": scale, "bias": np.ones(4)})
        parts = a.reshape(6, count, -1)
        expected = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
        expected = expected.reshape(a.shape) * scale.reshape(shape) + 1
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose((plain(x).numpy() * scale.reshape(shape) + 1), expected, rtol=1e-10)
    with pytest.raises(ArgumentError, match="GroupNorm: 4 channels do not form 3 groups"):
        nn.GroupNorm(3, 4)
    for layer in (groups, plain):
        with pytest.raises(ShapeError, match=r"Norm: made for inputs of shape \[N, 4, ...\], not float32\[2,5,3\]"):
            layer(normal(2, 5, 3))


def test_batch_norm() -> None:
    with bb.use_dtype("float64"):
        layer = nn.BatchNorm(3, momentum=0.25)
    x = normal(8, 3, 5, dtype="float64")
    a = x.numpy()
    mean, var = a.mean((0, 2)), a.var((0, 2))
    shape = (1, 3, 1)
    y = layer(x.require_grad())
    expected = (a - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + 1e-5)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.25 * mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.75 + 0.25 * var * 40 / 39, rtol=1e-10)
    assert not layer.running_mean.is_tracked
    before = layer.running_mean
    layer.eval()
    evaluated = layer(x).numpy()
    rm, rv = layer.running_mean.numpy().reshape(shape), layer.running_var.numpy().reshape(shape)
    np.testing.assert_allclose(evaluated, (a - rm) / np.sqrt(rv + 1e-5), rtol=1e-10)
    assert layer.running_mean is before
    layer.train()
    layer(bb.asarray(a, backend="autodiff(autodiff(numpy))"))
    assert layer.running_mean.backend.spec == "autodiff(numpy)"
    layer(normal(8, 3, dtype="float32"))
    layer.load_state_dict(layer.state_dict())
    single = nn.BatchNorm(3)
    single(x)
    assert single.running_mean.dtype == single.running_var.dtype == "float32"  # whatever the input's dtype
    with pytest.raises(ShapeError, match="BatchNorm: one value has no variance"):
        nn.BatchNorm(3)(normal(1, 3))
    with pytest.raises(ShapeError, match="BatchNorm: without a value there is no variance"):
        nn.BatchNorm(3)(normal(0, 3))
    optimizer = optim.SGD(0.1)
    optimizer.step(layer, (layer(x) * x).sum().backward())
    assert list(layer.state_dict()) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert optimizer.steps == 1


@pytest.mark.parametrize(
    ("layer", "reference"),
    [
        (nn.Identity(), lambda a: a),
        (nn.ReLU(), lambda a: np.maximum(a, 0)),
        (nn.LeakyReLU(0.2), lambda a: np.where(a > 0, a, 0.2 * a)),
        (nn.ELU(0.5), lambda a: np.where(a > 0, a, 0.5 * np.expm1(a))),
        (nn.SiLU(), lambda a: a / (1 + np.exp(-a))),
        (nn.Tanh(), np.tanh),
        (nn.Sigmoid(), lambda a: 1 / (1 + np.exp(-a))),
        (nn.Softmax(0), lambda a: np.exp(a) / np.exp(a).sum(0)),
        (nn.GELU("tanh"), lambda a: 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))),
        (nn.Flatten(), lambda a: a.reshape(a.shape[0], -1)),
        (nn.Flatten(0), lambda a: a.reshape(-1)),
        (nn.Function(lambda x: x * 2.0), lambda a: a * 2),
        (nn.ReLU6(), lambda a: np.clip(a, 0, 6)),
        (nn.CELU(0.5), lambda a: np.where(a > 0, a, 0.5 * np.expm1(a / 0.5))),
        (nn.SELU(), lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a))),
        (nn.Mish(), lambda a: a * np.tanh(np.log1p(np.exp(a)))),
        (nn.Softplus(2.0), lambda a: np.log1p(np.exp(2 * a)) / 2),
        (nn.Softsign(), lambda a: a / (1 + np.abs(a))),
        (nn.LogSigmoid(), lambda a: -np.log1p(np.exp(-a))),
        (nn.Hardsigmoid(), lambda a: np.clip(a / 6 + 0.5, 0, 1)),
        (nn.Hardswish(), lambda a: a * np.clip(a / 6 + 0.5, 0, 1)),
        (nn.Hardtanh(-0.5, 0.25), lambda a: np.clip(a, -0.5, 0.25)),
        (nn.Hardshrink(0.3), lambda a: np.where(np.abs(a) > 0.3, a, 0)),
        (nn.Softshrink(0.3), lambda a: np.sign(a) * np.maximum(np.abs(a) - 0.3, 0)),
        (nn.Tanhshrink(), lambda a: a - np.tanh(a)),
        (nn.Threshold(0.1, -2.0), lambda a: np.where(a > 0.1, a, -2.0)),
        (nn.GLU(), lambda a: a[..., :1] / (1 + np.exp(-a[..., 1:]))),
        (nn.LogSoftmax(1), lambda a: a - np.log(np.exp(a).sum(1, keepdims=True))),
        (nn.Softmin(0), lambda a: np.exp(-a) / np.exp(-a).sum(0)),
        (nn.Unflatten(1, (3, 1)), lambda a: a.reshape(2, 3, 1, 2)),
        (nn.Unflatten(-1, (-1, 2)), lambda a: a.reshape(2, 3, 1, 2)),
        (nn.Pad(1), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 1)))),
        (nn.Pad((0, 2), "edge"), lambda a: np.pad(a, ((0, 0), (0, 0), (0, 2)), "edge")),
        (nn.Pad([(1, 0)], "wrap"), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 0)), "wrap")),
        (nn.Pad(np.array(1)), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 1)))),  # type: ignore[arg-type]
        (nn.Pad(np.array([0, 2])), lambda a: np.pad(a, ((0, 0), (0, 0), (0, 2)))),  # type: ignore[arg-type]
        (nn.Pad(1, value=3.0), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 1)), constant_values=3.0)),
    ],
    ids=lambda value: repr(value) if isinstance(value, nn.Module) else "",
)
def test_layers_without_parameters(layer: Any, reference: Any) -> None:
    x = normal(2, 3, 2, dtype="float64")
    np.testing.assert_allclose(layer(x).numpy(), reference(x.numpy()), rtol=1e-12, atol=1e-15, strict=True)
    assert layer.parameters() == ()
    assert layer.state_dict() == {}


def test_prelu_learns_its_slopes() -> None:
    x = normal(4, 3, 2, dtype="float64")
    for layer, slopes in ((nn.PReLU(), [0.25]), (nn.PReLU(3, 0.5), [0.5] * 3)):
        model = layer.astype("float64")
        assert model.weight.tolist() == slopes
        gradient: Any = model.weight.grad(model(x).sum().backward())
        below = np.minimum(x.numpy(), 0)
        expected = [below.sum()] if len(slopes) == 1 else below.sum((0, 2))
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(model(x).numpy(), np.maximum(x.numpy(), 0) + slopes[0] * below, rtol=1e-12)
    with pytest.raises(ShapeError, match=r"PReLU: axis 1 of the input has 3 channels, not float64\[2,4\]"):
        nn.PReLU(3)(normal(2, 4, dtype="float64"))
    with pytest.raises(ShapeError, match=r"Pad: the input has the shape \(examples, channels, \*spatial\), not"):
        nn.Pad(1)(normal(2, 4))
    with pytest.raises(ArgumentError, match=r"Pad: mode is one of 'constant', 'reflect', 'symmetric', .*, not 'zero'"):
        nn.Pad(1, "zero")
    with pytest.raises(ArgumentError, match=r"Pad: mode is one of .*, not 'replicate'; use 'edge'$"):
        nn.Pad(1, "replicate")
    with pytest.raises(ShapeError, match="Unflatten: "):
        nn.Unflatten(1, (2, 3))(normal(2, 4))


def test_orthogonal_and_truncated_initial_values() -> None:
    for shape in ((4, 7), (7, 4), (5, 2, 3), (3, 5, 1, 1)):
        drawn = init.orthogonal(shape, gain=2.0, dtype="float64").numpy()
        assert drawn.shape == shape
        matrix = drawn.reshape(shape[0], -1)
        small = matrix @ matrix.T if shape[0] <= matrix.shape[1] else matrix.T @ matrix
        np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-13)
    drawn = init.trunc_normal((100_000,), std=0.5, a=-0.75, b=0.75, dtype="float64").numpy()
    assert np.abs(drawn).max() <= 0.75
    assert abs(drawn.std() - 0.5 * 0.7432) < 0.005  # the truncated variance: 1 - 2 b phi(b) / P, b = 1.5
    assert abs(drawn.mean()) < 0.005
    assert init.constant((2,), 3).tolist() == [3.0, 3.0]
    assert init.constant((2,), 3).dtype == "float32"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: init.xavier_uniform(5), "fans|xavier_uniform: the weight of a layer"),  # type: ignore[arg-type]
        (lambda: init.kaiming_normal((3, 3), mode="fan"), "kaiming_normal: mode is one of 'fan_in', 'fan_out', not"),
        (lambda: init.kaiming_uniform((3, 3), nonlinearity="x"), "nonlinearity is one of .*'leaky_relu', not 'x'"),
        (lambda: init.orthogonal("a"), "a shape is one integer or several"),  # type: ignore[arg-type]
        (lambda: init.uniform((3,), "a"), "uniform: a is a number"),  # type: ignore[arg-type]
        (lambda: init.constant((3,), (1,)), "constant: val is a number"),  # type: ignore[arg-type]
        (lambda: init.trunc_normal((3,), b=None), "trunc_normal: b is a number"),  # type: ignore[arg-type]
        (lambda: nn.LayerNorm(1.5), "LayerNorm: normalized_shape is one integer or several"),  # type: ignore[arg-type]
        (lambda: nn.RMSNorm(bb.float32), "RMSNorm: normalized_shape is one integer or several"),  # type: ignore[arg-type]
        (lambda: nn.Unflatten(1, "ab"), "Unflatten: unflattened_size is one integer or several"),  # type: ignore[arg-type]
        (lambda: nn.PReLU(init="a"), "PReLU: init is a number"),  # type: ignore[arg-type]
        (lambda: nn.ModuleList(5), "ModuleList: takes a list of modules"),  # type: ignore[arg-type]
        (lambda: nn.Function(5), "Function: takes a function"),
        (lambda: nn.Pad(1.5)(bb.ones((1, 1, 3))), "Pad: widths are an integer, a pair, or a pair for"),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_wrong_types_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()


def test_initial_values() -> None:
    shape = (200, 300)
    cases: list[tuple[Callable[..., Any], float]] = [
        (init.kaiming_uniform, (2 / 300) ** 0.5),
        (init.kaiming_normal, (2 / 300) ** 0.5),
        (init.xavier_uniform, (2 / 500) ** 0.5),
        (init.xavier_normal, (2 / 500) ** 0.5),
        (init.normal, 1.0),
    ]
    for function, std in cases:
        drawn = function(shape, dtype="float64").numpy()
        assert drawn.shape == shape
        assert abs(drawn.std() / std - 1) < 0.02
        assert abs(drawn.mean()) < 5 * std / 60_000**0.5
    assert np.abs(init.xavier_uniform(shape).numpy()).max() <= (6 / 500) ** 0.5
    assert abs(init.kaiming_normal(shape, 1.0, "fan_out").numpy().std() / (1 / 200) ** 0.5 - 1) < 0.02
    assert init.ones((2,)).tolist() == [1.0, 1.0]
    assert init.zeros((2,), dtype="float64").dtype == "float64"
    words = r"xavier_normal: the weight of a layer has two axes or more, not the shape \[3\]"
    with pytest.raises(ArgumentError, match=words):
        init.xavier_normal((3,))


def test_repr() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.BatchNorm(3))
    assert repr(model) == (
        "Sequential  # 15 parameters\n"
        "  0: Linear  # 9 parameters\n"
        "    weight: f32[3,2]\n"
        "    bias: f32[3]\n"
        "  1: Dropout(p=0.5)\n"
        "  2: BatchNorm(num_features=3, eps=1e-05, momentum=0.1, axis=1)  # 6 parameters\n"
        "    weight: f32[3]\n"
        "    bias: f32[3]\n"
        "    running_mean: f32[3] buffer\n"
        "    running_var: f32[3] buffer\n"
        "    num_batches_tracked: i64[] buffer"
    )


def test_bad_layers() -> None:
    with pytest.raises(Unsupported, match="Part2 has no forward"):
        type("Part2", (nn.Module,), {})()(1)
    with pytest.raises(ArgumentError, match="Linear: in_features is an integer of at least 1, not 0"):
        nn.Linear(0, 2)
    with pytest.raises(ArgumentError, match="Embedding: embedding_dim is an integer"):
        nn.Embedding(2, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Dropout: p is a number from 0 to 1"):
        nn.Dropout(1.5)
    with pytest.raises(ArgumentError, match="BatchNorm: momentum"):
        nn.BatchNorm(2, momentum=2.0)
    with pytest.raises(ArgumentError, match="BatchNorm: momentum is a number, not"):
        nn.BatchNorm(2, momentum="x")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="TransformerEncoderLayer: the activation is one of 'relu', "):
        nn.TransformerEncoderLayer(8, 2, activation=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"load_state_dict: the value of bias: .*Nothing was loaded"):
        nn.LayerNorm(2).load_state_dict({"weight": np.ones(2), "bias": "x"})
    saved: Any = bb.io.Saved({"weight": np.ones(100), "bias": np.ones(100)})
    with pytest.raises(ArgumentError, match=r"not Saved\(state=\{[^}]{0,70}; pass its \.state$"):
        nn.LayerNorm(100).load_state_dict(saved)
    with pytest.raises(ArgumentError, match=r"as state_dict\(\) gives them, not \[\]$"):
        nn.LayerNorm(2).load_state_dict([])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Sequential: holds modules, not .*; write ReLU\(...\)"):
        nn.Sequential(nn.ReLU)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"wrap a function f in nn\.Function\(f\)"):
        nn.ModuleList([abs])  # type: ignore[list-item]
    with pytest.raises(OutOfRangeError, match="Sequential: no module 3 among 1"):
        nn.Sequential(nn.ReLU())[3]
    with pytest.raises(AxisError, match="Flatten"):
        nn.Flatten(3)(normal(2, 2))


def test_a_small_model_learns() -> None:
    bb.random.seed(0)
    x = normal(64, 2)
    labels = tensor((x.numpy()[:, 0] * x.numpy()[:, 1] > 0).astype("int64"), "int64")
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = optim.AdamW(0.05)
    losses = []
    for _ in range(60):
        loss = functional.cross_entropy(model(x), labels)
        losses.append(loss.item())
        optimizer.step(model, loss.backward())
    assert losses[-1] < 0.1 * losses[0]


def test_a_copy_in_another_dtype_keeps_everything_else() -> None:
    """Parameters stay trainable, frozen or tied; buffers and integers stay as they are; the model is not changed."""
    model: Any = Everything()
    model.tied = model.layers[0].weight
    model.register_buffer("mask", bb.asarray([True, False]))
    model.freeze("part")
    wide = model.astype("float64")
    for (path, old), (same, new) in zip(model.state_dict().items(), wide.state_dict().items(), strict=True):
        assert path == same
        assert new.dtype is (bb.float64 if old.dtype.kind == "float" else old.dtype)
        assert np.array_equal(new.numpy(), old.numpy())
        assert old.dtype is not bb.float64
    assert wide.tied is wide.layers[0].weight
    assert [n for n, _ in wide.named_buffers()] == [n for n, _ in model.named_buffers()]
    assert [x.is_require_grad for x in wide.parameters()] == [x.is_require_grad for x in model.parameters()]
    assert sorted({x.is_require_grad for x in wide.parameters()}) == [False, True]
    layer = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3)).astype(bb.float64)
    loss = layer(normal(4, 2, dtype="float64")).sum()
    optim.SGD(0.1).step(layer, loss.backward())
    assert {x.dtype for x in layer.state_dict().values() if x.dtype.kind == "float"} == {bb.float64}
    assert all(x.is_require_grad for x in layer.parameters())
    for dtype in ("int32", "bool", "qint8"):
        with pytest.raises(DTypeError, match=f"complex dtype, not {dtype}"):
            model.astype(dtype)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_reports_the_wrong_number_of_channels_first(training: bool) -> None:
    """A wrong number of channels is reported before a lack of values for the variance."""
    layer: Any = nn.BatchNorm(4).train(training)
    for shape in ((2, 3), (1, 3), (0, 3), (2, 3, 4)):
        with pytest.raises(ShapeError, match=r"^BatchNorm: made for 4 channels on axis 1, where .* 3: float32\["):
            layer(bb.zeros(shape))
    with pytest.raises(AxisError, match=r"^BatchNorm: axis 1 is out of range"):
        layer(bb.zeros((4,)))
    with pytest.raises(ShapeError, match="4 channels on axis -1, where the input has 3"):
        nn.BatchNorm(4, axis=-1).train(training)(bb.zeros((4, 3)))
    with pytest.raises(DTypeError, match=r"^BatchNorm: "):
        layer([1.0, 2.0])
    if training:
        with pytest.raises(ShapeError, match="one value has no variance"):
            layer(bb.zeros((1, 4)))


def test_batch_norm_in_vmap_recommends_eval() -> None:
    """Statistics would differ between examples: an error, inside ``grad`` too, that changes no buffer."""
    layer = nn.BatchNorm(3)
    for f in (layer, bb.grad(lambda x: layer(x).sum())):
        with pytest.raises(GraphError, match=r"BatchNorm: in .* differs between the examples.* model\.eval\(\)"):
            bb.vmap(f)(normal(2, 4, 3))
    each = bb.vmap(bb.grad(lambda model, x: model[0](x).sum()), in_axes=(None, 0))
    with pytest.raises(GraphError, match=r"in '0\.0\.running_mean'.* the examples.* model\.eval\(\)"):
        each(nn.Sequential(layer), normal(2, 4, 3))
    assert layer.running_mean.tolist() == [0.0, 0.0, 0.0]
    x = normal(2, 4, 3)
    assert bb.vmap(layer.eval())(x).shape == x.shape


def test_a_path_that_is_not_a_string_is_unexpected() -> None:
    layer = nn.Linear(2, 1)
    with pytest.raises(ArgumentError, match="unexpected: 3, other"):
        layer.load_state_dict({**layer.state_dict(), 3: 1, "other": 2})  # type: ignore[dict-item]
