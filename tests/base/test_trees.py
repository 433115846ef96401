"""Trees, also changed in place: ``unflatten`` inverts ``flatten``, and errors name the path."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backburn as bb
from backburn.base.errors import ArgumentError, BackendMismatchError, ShapeError
from backburn.base.mutable_trees import MutableTree
from backburn.base.trees import flatten, leaves_with_paths, register_node, tree_map, unflatten


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Layer:
    weight: Any
    name: str = field(default="layer", metadata={"static": True})
    doubled: Any = field(init=False, default=None)


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Bag:
    """A node type of the tests, which can be changed in place."""

    def __init__(self, things: list[Any]) -> None:
        self.things = things


register_node(
    Bag,
    lambda bag: (list(bag.things), [f"thing{i}" for i in range(len(bag.things))], "bag"),
    lambda children, keys, rest: Bag(list(children)),
)

TREES = st.recursive(
    st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Layer, inner)
        | st.builds(Frozen, inner)
    ),
    max_leaves=12,
)


@given(TREES)
def test_unflatten_is_the_inverse_of_flatten(tree: Any) -> None:
    leaves, structure = flatten(tree)
    again = unflatten(structure, leaves)
    assert again == tree
    assert type(again) is type(tree)
    assert flatten(again)[1] == structure
    assert hash(flatten(again)[1]) == hash(structure)
    assert len(structure) == len(leaves) == len(leaves_with_paths(tree))


@given(TREES)
def test_tree_map_composes(tree: Any) -> None:
    def f(x: int) -> int:
        return x + 1

    def g(x: int) -> int:
        return 3 * x

    assert tree_map(lambda x: x, tree) == tree
    assert tree_map(g, tree_map(f, tree)) == tree_map(lambda x: g(f(x)), tree)
    assert tree_map(lambda x, y: x - y, tree, tree) == tree_map(lambda x: 0, tree)


def test_the_order_of_a_dict_is_that_of_insertion() -> None:
    leaves, structure = flatten({"b": 1, "a": 2})
    assert leaves == [1, 2]
    assert list(unflatten(structure, [3, 4])) == ["b", "a"]


def test_types_are_kept() -> None:
    made: defaultdict[str, Any] = defaultdict(list, b=2)
    tree: list[Any] = [OrderedDict(a=1), made, Point(3, 4), (5,), Layer(6, "first"), Frozen(7), Bag([8])]
    mapped = tree_map(lambda x: 10 * x, tree)
    assert [type(t) for t in mapped] == [type(t) for t in tree]
    assert mapped[1]["new"] == []
    assert mapped[:4] == [OrderedDict(a=10), {"b": 20, "new": []}, Point(30, 40), (50,)]
    assert tree_map(lambda x: x * 10, Counter("aab")) == Counter(a=20, b=10)
    assert mapped[4] == Layer(60, "first")
    assert mapped[5] == Frozen(70)
    assert mapped[6].things == [80]


def test_paths() -> None:
    tree = {"layers": [Layer(1), {"p": Point(2, None)}], "bag": Bag([3]), 5: Frozen(4)}
    assert leaves_with_paths(tree) == [("layers.0.weight", 1), ("layers.1.p.x", 2), ("bag.thing0", 3), ("5.value", 4)]
    assert leaves_with_paths(1) == [("", 1)]
    assert leaves_with_paths(None) == []


def test_is_leaf_stops_the_walk() -> None:
    assert flatten([(1, 2), [3]], is_leaf=lambda x: isinstance(x, tuple))[0] == [(1, 2), 3]
    pair: dict[str, Any] = {"a": (1, 2)}
    assert tree_map(len, pair, is_leaf=lambda x: isinstance(x, tuple)) == {"a": 2}


@dataclass
class Derived:
    weight: Any
    sizes: Any = field(default=(1, 2), metadata={"static": True})

    def __post_init__(self) -> None:
        self.total = sum(self.sizes)

    @cached_property
    def doubled(self) -> Any:
        return self.weight * 2


def test_attributes_of_dataclasses_other_than_fields_are_kept() -> None:
    derived = Derived(3.0)
    assert derived.doubled == 6.0
    changed = tree_map(lambda x: x + 1.0, derived)
    assert (changed.weight, changed.sizes, changed.total) == (4.0, (1, 2), 3)
    assert changed.doubled == 8.0
    model = bb.nn.Sequential(bb.nn.Linear(1, 1))
    vars(model)["config"] = derived
    assert vars(tree_map(lambda x: x, model))["config"].total == 3
    derived.total = bb.asarray([1.0])
    with pytest.raises(ArgumentError, match=r"^Derived.total has a tensor and is not a field of the dataclass"):
        flatten(derived)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": [1, 2]}, "only one tree has 'b'"),
        ({"a": [1], "b": 3}, "at 'a', one list has the length 2 and the other 1"),
        ({"a": (1, 2), "b": 3}, "at 'a', one tree has a list and the other a tuple"),
        ({"a": [1, None], "b": 3}, "at 'a.1', one tree has a leaf and the other None"),
        ([1], "at the root, one tree has a dict and the other a list"),
    ],
)
def test_trees_that_differ(other: Any, words: str) -> None:
    tree = {"a": [1, 2], "b": 3}
    with pytest.raises(ArgumentError, match="tree_map: the trees differ") as caught:
        tree_map(lambda x, y: x, tree, other)
    assert words in str(caught.value)
    assert flatten(tree)[1] != flatten(other)[1]


def test_other_values_than_leaves_are_part_of_the_structure() -> None:
    with pytest.raises(ArgumentError, match="at 'l', what is not a leaf differs"):
        tree_map(lambda x, y: x, {"l": Layer(1, "first")}, {"l": Layer(1, "second")})


def test_bad_trees() -> None:
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    with pytest.raises(ArgumentError, match="cyclic: a list contains itself"):
        flatten(cycle)
    with pytest.raises(ArgumentError, match="cyclic: a list contains itself"):
        MutableTree(cycle, lambda leaf: True)
    with pytest.raises(ArgumentError, match=r"two leaves of the tree have the path 'a\.b'"):
        leaves_with_paths({"a.b": 1, "a": {"b": 2}})
    with pytest.raises(ArgumentError, match="has 2 leaves, and 1 are given"):
        unflatten(flatten([1, 2])[1], [1])
    with pytest.raises(ArgumentError, match="Bag is registered already"):
        register_node(Bag, lambda bag: ((), (), None), lambda children, keys, rest: None)


def test_one_value_in_two_places_is_not_a_cycle() -> None:
    inner = [1]
    assert flatten([inner, inner])[0] == [1, 1]


def test_a_mutable_tree_names_every_path_of_a_shared_leaf() -> None:
    shared = 1.5
    tree = {"a": [shared, 2.5], "b": Layer(shared)}
    mutable = MutableTree(tree, lambda leaf: isinstance(leaf, float))
    assert [leaf.paths for leaf in mutable.leaves] == [["a.0", "b.weight"], ["a.1"]]
    mutable.leaves[0].put(9.0)
    assert tree == {"a": [9.0, 2.5], "b": Layer(9.0)}
    assert mutable.leaves[0].value == 9.0


def test_leaves_in_immutable_containers_are_replaced() -> None:
    """A tuple is replaced in its container, also several times."""
    tree = [((1.0, 2.0), Frozen(3.0)), Bag([4.0])]
    mutable = MutableTree(tree, lambda leaf: isinstance(leaf, float))
    for leaf in mutable.leaves[:3]:
        leaf.put(10 * leaf.value)
    assert tree[0] == ((10.0, 20.0), Frozen(30.0))
    mutable.remember()
    assert mutable.unchanged()
    with pytest.raises(ArgumentError, match="a tuple cannot be changed in place"):
        MutableTree((1.0,), lambda leaf: True).leaves[0].put(2.0)
    with pytest.raises(ArgumentError, match="a single leaf"):
        MutableTree(1.0, lambda leaf: True)


def test_a_mutable_tree_notices_every_change() -> None:
    def tree() -> dict[str, Any]:
        return {"list": [1.0, {"k": 2.0}], "layer": Layer(3.0), "bag": Bag([4.0]), "tuple": (5.0,)}

    changes: list[Any] = [
        lambda t: t["list"].append(6.0),
        lambda t: t["list"].__setitem__(0, 7.0),
        lambda t: t["list"][1].pop("k"),
        lambda t: t["list"][1].__setitem__("other", t["list"][1].pop("k")),
        lambda t: setattr(t["layer"], "weight", 8.0),
        lambda t: setattr(t["layer"], "name", "last"),
        lambda t: t["bag"].things.append(9.0),
        lambda t: t.__setitem__("tuple", (10.0,)),
        lambda t: t.__setitem__("new", None),
    ]
    for change in changes:
        t = tree()
        mutable = MutableTree(t, lambda leaf: isinstance(leaf, float))
        assert mutable.unchanged()
        change(t)
        assert not mutable.unchanged()
        mutable.remember()
        assert mutable.unchanged()


def test_entries_of_dicts_may_come_in_any_order() -> None:
    one = {"a": 1, "b": {"x": (2, 3), "y": 4}}
    other = {"b": {"y": 40, "x": (20, 30)}, "a": 10}
    assert tree_map(lambda x, y: x + y, one, other) == {"a": 11, "b": {"x": (22, 33), "y": 44}}
    with pytest.raises(ArgumentError, match="at 'b', only one tree has 'z'"):
        tree_map(lambda x, y: x, one, {"b": {"y": 40, "x": (20, 30), "z": 1}, "a": 10})
    with pytest.raises(ArgumentError, match=r"at 'b\.x', one tuple has the length 2 and the other 1"):
        tree_map(lambda x, y: x, one, {"b": {"y": 40, "x": (20,)}, "a": 10})


@pytest.mark.parametrize("parts", [lambda x: ((1, 2), None), lambda x: ((1, 2), ("one",), None), lambda x: 3])
def test_invalid_flatten_functions_are_refused(parts: Any) -> None:
    class Pair:
        """A node type registered as in other libraries."""

    register_node(Pair, parts, lambda children, keys, rest: Pair())
    with pytest.raises(ArgumentError, match="takes a Pair apart returns three things"):
        flatten(Pair())


class Owner:
    """A node in which an object in two places is one leaf."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)


register_node(
    Owner, lambda x: (x.parts, range(len(x.parts)), None), lambda children, keys, rest: Owner(*children), shares=True
)


def test_a_leaf_in_two_places_of_a_sharing_node_is_one_leaf() -> None:
    a, b, outside = object(), object(), object()
    tree = [outside, Owner(a, {"again": a, "b": b}, Owner(b, outside)), outside, a]
    leaves, structure = flatten(tree)
    assert leaves == [outside, a, b, outside, outside, a]
    assert repr(structure) == "list(0=*, 1=Owner(0=*, 1=dict(again=*0, b=*), 2=Owner(0=*1, 1=*)), 2=*, 3=*)"
    made = unflatten(structure, [0, 10, 20, 30, 40, 50])
    assert made[1].parts[:2] == [10, {"again": 10, "b": 20}]
    assert made[1].parts[2].parts == [20, 30]
    assert flatten(Owner(1, 1, "x", "x"))[0] == [1, 1, "x", "x"]  # equal constants may be one object
    places = ["0", "1.0", "1.1.again", "1.1.b", "1.2.0", "1.2.1", "2", "3"]
    assert [path for path, _ in leaves_with_paths(tree)] == places
    again = flatten([outside, Owner(a, {"again": a, "b": b}, Owner(b, outside)), outside, a])[1]
    assert again == structure
    with pytest.raises(ArgumentError, match=r"at '1\.1\.again', one tree has a leaf that also occurs elsewhere"):
        tree_map(lambda x, y: x, tree, [outside, Owner(a, {"again": b, "b": b}, Owner(b, outside)), outside, a])
    with pytest.raises(ArgumentError, match="repeat different leaves"):
        tree_map(lambda x, y: x, Owner(a, b, a), Owner(a, b, b))


# ---- trees as vectors ----


def test_trees_are_vectors_and_back() -> None:
    tree: Any = {
        "w": bb.asarray(np.arange(6.0).reshape(2, 3)),
        "parts": (bb.asarray([1, 2]), bb.asarray([0.5], dtype="float32"), None),
        "empty": bb.zeros((0, 2)),
        "n": 3,
        "scale": bb.asarray(2.0, dtype="float16"),
    }
    vector, unravel = bb.trees.ravel(tree)
    assert vector.dtype is bb.float64
    leaves = [x for x in flatten(tree)[0] if isinstance(x, bb.FloatTensor)]
    np.testing.assert_array_equal(vector.numpy(), np.concatenate([x.numpy().ravel() for x in leaves]))
    given_back: Any = unravel
    for flat, factor in ((vector, 1.0), (2.0 * vector.astype("float32"), 2.0)):
        again = given_back(flat)
        assert again["n"] == 3
        assert again["parts"][0] is tree["parts"][0]
        for old, new in zip(leaves, [x for x in flatten(again)[0] if isinstance(x, bb.FloatTensor)], strict=True):
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
            np.testing.assert_array_equal(new.numpy(), factor * old.numpy())
    alone, back = bb.trees.ravel(bb.ones((2, 2)))
    assert back(alone).shape == (2, 2)
    assert bb.vmap(back)(bb.stack([alone, alone])).shape == (2, 2, 2)


def test_the_hessian_of_a_model_as_a_vector() -> None:
    bb.random.seed(0)
    with bb.use_dtype("float64"):
        model = bb.nn.Sequential(bb.nn.Linear(2, 3), bb.nn.Tanh(), bb.nn.Linear(3, 1))
        x = bb.random.normal((5, 2))
    vector, unravel = bb.trees.ravel(model)
    assert vector.size == model.num_parameters

    def loss(vector: Any) -> Any:
        return (unravel(vector)(x) ** 2.0).sum()

    bb.check_grads(loss, (vector.detach(),), order=2)
    matrix = bb.hessian(loss)(vector.detach()).numpy()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    whole = bb.grad(lambda model: (model(x) ** 2.0).sum())(model)
    np.testing.assert_allclose(bb.grad(loss)(vector.detach()).numpy(), bb.trees.ravel(whole)[0].numpy(), rtol=1e-10)


def test_invalid_trees_and_vectors_are_refused() -> None:
    with pytest.raises(ArgumentError, match="ravel: there is no float tensor in the tree, a dict"):
        bb.trees.ravel({"n": bb.asarray([1, 2])})
    vector, unravel = bb.trees.ravel([bb.ones(3)])
    for wrong in (vector[:2], vector[None], bb.ones(())):
        with pytest.raises(ShapeError, match="unravel: takes a vector of 3 elements, not float32"):
            unravel(wrong)
    with pytest.raises(BackendMismatchError):
        bb.trees.ravel([bb.ones(2), bb.ones(2, backend="null")])
