"""``Autodiff``: the twelve methods of the trait on primitives, the graph and its memory, nesting, threads."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff, Forward, Gradients, gradient_rule
from backburn.autodiff.graph import Tracked
from backburn.backend import AUTODIFF_METHODS, OPERATIONS, check_autodiff_backend, is_autodiff, load_backend
from backburn.base.contexts import RECORDING, scoped
from backburn.base.dtypes import float64
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    ConsumedGraphError,
    DTypeError,
    GraphError,
    MissingRuleError,
    NotDifferentiableError,
    ShapeError,
)
from backburn.tensor.core.defaults import as_backend
from backburn_numpy import NumpyBackend

BASE = NumpyBackend()
OUTER: Any = Autodiff(BASE)  # untyped, since calls that types forbid are tested too
TWICE: Any = Autodiff(OUTER)


def leaf(values: Any, k: Any = OUTER) -> Any:
    """Return a tracked leaf of ``k``, untracked at the levels below."""
    x: Any = np.asarray(values, np.float64)
    levels: list[Any] = [OUTER] if k is OUTER else [OUTER, TWICE]
    for level in levels:
        x = level.from_inner(x)
    return k.set_require_grad(x, True)


def total(k: Any, x: Any) -> Any:
    return k.sum(x, tuple(range(len(x.shape))), False)


# ---- identity ----


def test_wrapping_a_backend_twice_gives_one_object() -> None:
    assert Autodiff(NumpyBackend()) is OUTER
    assert OUTER.inner_backend is BASE
    assert load_backend("autodiff(numpy)") is OUTER
    assert load_backend("autodiff( autodiff(numpy) )") is TWICE
    assert pickle.loads(pickle.dumps(TWICE)) is TWICE
    assert OUTER.spec == "autodiff(numpy)"
    assert OUTER != BASE
    assert hash(OUTER) == hash(load_backend("autodiff(numpy)"))


def test_inner_and_outer_agree_on_device_and_element_types() -> None:
    for k in (OUTER, TWICE):
        inner: Any = k.inner_backend
        assert (k.device, k.float_dtype, k.int_dtype) == (inner.device, inner.float_dtype, inner.int_dtype)


def test_a_foreign_autodiff_backend_that_disagrees_is_refused_with_both_types_named() -> None:
    class Other(NumpyBackend):
        _instance = None
        device = "elsewhere"

    class Foreign(NumpyBackend):
        """A third-party autodiff backend with a different device than its inner backend."""

        _instance = None
        inner_backend = Other()

    for name in AUTODIFF_METHODS:
        setattr(Foreign, name, lambda self, *a: None)
    assert is_autodiff(Foreign())
    for use in (check_autodiff_backend, as_backend, Autodiff):
        with pytest.raises(BackendMismatchError, match=r"Foreign \(device cpu\).*Other \(device elsewhere\)"):
            use(Foreign())


@pytest.mark.parametrize("value", [3, None, NumpyBackend, "numpy"])
def test_only_backends_can_be_wrapped(value: Any) -> None:
    with pytest.raises(TypeError, match="wraps a backend"):
        Autodiff(value)


def test_a_plain_backend_has_none_of_the_twelve_and_tracks_nothing() -> None:
    assert len(AUTODIFF_METHODS) == 12
    assert not [name for name in AUTODIFF_METHODS if hasattr(BASE, name)]
    assert all(hasattr(OUTER, name) for name in AUTODIFF_METHODS)
    x = np.ones(2)
    assert BASE.set_require_grad(x, True) is x
    assert BASE.detach(x) is x
    assert BASE.is_require_grad(x) is False


# ---- the twelve methods ----


def test_grad_changes_nothing_and_grad_remove_takes_the_entry_out() -> None:
    x = leaf([1.0, 2.0])
    grads = OUTER.backward(OUTER.mul(x, x))
    assert isinstance(grads, Gradients)
    first = OUTER.grad(x, grads)
    assert type(first) is np.ndarray
    np.testing.assert_array_equal(first, [2.0, 4.0], strict=True)
    assert OUTER.grad(x, grads) is first
    assert OUTER.grad_remove(x, grads) is first
    assert OUTER.grad(x, grads) is None
    assert OUTER.grad_remove(x, grads) is None


def test_grad_replace_overwrites_and_registers() -> None:
    x, unused = leaf([1.0, 2.0]), leaf([3.0])
    grads = OUTER.backward(OUTER.mul(x, x))
    other = np.array([7.0, 8.0])
    assert OUTER.grad_replace(x, grads, other) is None
    assert OUTER.grad(x, grads) is other
    assert OUTER.grad(unused, grads) is None
    OUTER.grad_replace(unused, grads, np.array([5.0]))
    np.testing.assert_array_equal(OUTER.grad(unused, grads), [5.0])


def test_grad_replace_refuses_what_could_not_be_the_gradient() -> None:
    x = leaf([1.0, 2.0])
    grads = OUTER.backward(OUTER.mul(x, x))
    kept = OUTER.grad(x, grads)
    with pytest.raises(ShapeError, match=r"\[3\].*\[2\]"):
        OUTER.grad_replace(x, grads, np.ones(3))
    with pytest.raises(DTypeError, match=r"float32.*float64"):
        OUTER.grad_replace(x, grads, np.ones(2, np.float32))
    with pytest.raises(BackendMismatchError, match="float primitive of numpy"):
        OUTER.grad_replace(x, grads, x)
    with pytest.raises(GraphError, match="not on the graph"):
        OUTER.grad_replace(OUTER.from_inner(np.ones(2)), grads, np.ones(2))
    assert OUTER.grad(x, grads) is kept


def test_inner_and_from_inner_are_inverse_and_untracked() -> None:
    p, i, b = np.ones(2), np.ones(2, np.int64), np.ones(2, np.bool_)
    q = BASE.quantize(p)
    assert OUTER.inner(OUTER.from_inner(p)) is p
    assert OUTER.is_require_grad(OUTER.from_inner(p)) is False
    assert OUTER.is_tracked(OUTER.from_inner(p)) is False
    assert OUTER.int_inner(OUTER.int_from_inner(i)) is i
    assert OUTER.bool_inner(OUTER.bool_from_inner(b)) is b
    assert OUTER.q_inner(OUTER.q_from_inner(q)) is q


def test_int_bool_and_quantized_tensors_have_no_gradient() -> None:
    x = leaf([1.0])
    grads = OUTER.backward(OUTER.mul(x, x))
    for p in (np.ones(2, np.int64), np.ones(2, np.bool_), BASE.quantize(np.ones(2))):
        for refused in (OUTER.backward, lambda p: OUTER.set_require_grad(p, True), OUTER.inner, OUTER.detach):
            with pytest.raises(NotDifferentiableError, match="only float tensors have gradients"):
                refused(p)
        assert OUTER.grad(p, grads) is None
    for p, words in (
        (np.ones(2, np.int64), "an int tensor, whose inner primitive int_inner gives"),
        (np.ones(2, np.bool_), "a bool tensor, whose inner primitive bool_inner gives"),
        (BASE.quantize(np.ones(2)), "a quantized tensor, whose inner primitive q_inner gives"),
    ):
        with pytest.raises(NotDifferentiableError, match=words):
            OUTER.inner(p)


def test_each_kind_of_primitive_has_its_own_inner_and_from_inner() -> None:
    inner = {
        "": BASE.from_numpy(np.ones(2)), "int_": np.ones(2, np.int64), "bool_": np.ones(2, np.bool_),
        "q_": BASE.quantize(np.ones(2)),
    }  # fmt: skip
    for backend in (OUTER, Forward(BASE)):
        for own in inner:
            for other, primitive in inner.items():
                if other != own:
                    with pytest.raises(DTypeError, match=f"^{own}from_inner: expected a primitive of the"):
                        getattr(backend, f"{own}from_inner")(primitive)
                    if own:
                        with pytest.raises(DTypeError, match=f"^{own}inner: expected a primitive of the"):
                            getattr(backend, f"{own}inner")(primitive)
    for wrong in (3.0, None, leaf([1.0])):
        with pytest.raises(BackendMismatchError, match="is not a primitive of the numpy backend"):
            OUTER.from_inner(wrong)
        with pytest.raises(BackendMismatchError, match="is not a primitive of the numpy backend"):
            OUTER.int_inner(wrong)
    with pytest.raises(BackendMismatchError, match="lift it with from_inner"):
        TWICE.from_inner(np.ones(2))


def test_gradients_belong_to_one_level() -> None:
    x, y = leaf([1.0]), leaf([1.0], TWICE)
    grads = OUTER.backward(OUTER.mul(x, x))
    with pytest.raises(BackendMismatchError, match=r"belong to autodiff\(numpy\).*autodiff\(autodiff\(numpy\)\)"):
        TWICE.grad(y, grads)
    with pytest.raises(DTypeError, match="not dict"):
        OUTER.grad(x, {})


# ---- tracking ----


def test_require_grad_returns_a_new_leaf() -> None:
    x = OUTER.from_inner(np.ones(2))
    w = OUTER.set_require_grad(x, True)
    assert (OUTER.is_require_grad(x), OUTER.is_require_grad(w)) == (False, True)
    assert OUTER.set_require_grad(w, True) is w
    assert OUTER.is_require_grad(OUTER.set_require_grad(w, False)) is False
    y = OUTER.mul(w, w)
    assert (OUTER.is_tracked(y), OUTER.is_require_grad(y)) == (True, False)
    for flag in (True, False):
        with pytest.raises(GraphError, match="is not a leaf"):
            OUTER.set_require_grad(y, flag)


def test_an_intermediate_tensor_keeps_its_gradient_only_with_retain_grad() -> None:
    x = leaf([3.0])
    y = OUTER.mul(x, x)
    z = OUTER.retain_grad(y)
    assert OUTER.is_require_grad(z)
    grads = OUTER.backward(OUTER.mul(z, z))
    assert OUTER.grad(y, grads) is None
    np.testing.assert_array_equal(OUTER.grad(z, grads), [18.0])
    np.testing.assert_array_equal(OUTER.grad(x, grads), [108.0])
    with pytest.raises(GraphError, match="not on the graph"):
        OUTER.retain_grad(OUTER.from_inner(np.ones(1)))


def test_detach_cuts_one_level_and_no_grad_all() -> None:
    x = leaf([2.0])
    y = OUTER.mul(OUTER.detach(OUTER.mul(x, x)), x)
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(y)), [4.0])
    with scoped(RECORDING, False):
        assert not OUTER.is_tracked(OUTER.mul(x, x))
    deep = TWICE.set_require_grad(TWICE.from_inner(leaf([2.0])), True)
    cut = TWICE.detach(TWICE.mul(deep, deep))
    assert not TWICE.is_tracked(cut)
    assert OUTER.is_tracked(TWICE.inner(cut))
    with scoped(RECORDING, False):
        silent = TWICE.mul(deep, deep)
    assert not TWICE.is_tracked(silent)
    assert not OUTER.is_tracked(TWICE.inner(silent))


def test_backward_inside_no_grad_still_records_on_inner_levels() -> None:
    inner_leaf = leaf([2.0])
    x = TWICE.set_require_grad(TWICE.from_inner(inner_leaf), True)
    y = TWICE.mul(TWICE.mul(x, x), x)
    with scoped(RECORDING, False):
        g = TWICE.grad(x, TWICE.backward(y))
    np.testing.assert_array_equal(OUTER.grad(inner_leaf, OUTER.backward(g)), [12.0])


# ---- the reverse pass ----


def test_the_cotangent_is_ones_by_default() -> None:
    x = leaf([1.0, 2.0])
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(OUTER.mul(x, x))), [2.0, 4.0])
    weighted = OUTER.backward(OUTER.mul(x, x), np.array([1.0, 10.0]))
    np.testing.assert_array_equal(OUTER.grad(x, weighted), [2.0, 40.0])
    for wrong, error in ((np.ones(3), ShapeError), (np.ones(2, np.float32), DTypeError), (1.0, BackendMismatchError)):
        with pytest.raises(error, match="backward"):
            OUTER.backward(OUTER.mul(x, x), wrong)


def test_gradients_of_several_uses_add_up_and_are_reduced_to_the_operands_shape() -> None:
    x, y = leaf([[1.0, 2.0, 3.0]]), leaf([[1.0], [2.0]])
    z = OUTER.add(OUTER.mul(x, y), OUTER.mul(x, x))
    grads = OUTER.backward(z)
    np.testing.assert_array_equal(OUTER.grad(x, grads), [[7.0, 11.0, 15.0]], strict=True)
    np.testing.assert_array_equal(OUTER.grad(y, grads), [[6.0], [6.0]], strict=True)


def test_a_diamond_is_visited_once_for_each_node() -> None:
    x = leaf([1.0])
    y = x
    for _ in range(200):  # 2 ** 200 paths
        y = OUTER.add(y, y)
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(y)), [2.0**200])


def test_a_graph_is_consumed_unless_retained() -> None:
    x = leaf([2.0])
    y = OUTER.mul(x, x)
    z = OUTER.mul(y, 3.0)
    first = OUTER.grad(x, OUTER.backward(z, retain_graph=True))
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(z)), first)
    for again in (z, y, OUTER.mul(y, 2.0)):
        with pytest.raises(ConsumedGraphError, match="retain_graph=True"):
            OUTER.backward(again)
    assert isinstance(ConsumedGraphError("x"), RuntimeError)


def test_backward_of_an_untracked_tensor_says_what_to_do() -> None:
    with pytest.raises(GraphError, match=r"require_grad\(\)"):
        OUTER.backward(OUTER.from_inner(np.ones(2)))


def test_a_leaf_differentiates_to_ones() -> None:
    x = leaf([5.0, 6.0])
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(x)), [1.0, 1.0])


def test_nothing_is_saved_that_no_gradient_needs() -> None:
    x, constant = leaf(np.ones(8)), OUTER.from_inner(np.ones(8))
    y = OUTER.mul(x, constant)
    assert y.node is not None
    saved_y, saved_x = y.node.saved  # in the order of the rules: x's needs y, y's needs x
    assert saved_y is constant.value
    assert saved_x is None
    z = OUTER.add(y, x)
    assert z.node is not None
    assert z.node.saved == ()
    result, keep = OUTER.dropout(x, 0, 0, 0.5)
    (node,) = result.node.parents
    assert node.saved == ((keep,), 0.5)


def test_saved_values_are_freed_during_the_reverse_pass() -> None:
    x = leaf(np.ones(8))
    y = OUTER.exp(x)  # its rule saves the result
    saved = weakref.ref(y.value)
    z = OUTER.add(y, 0.0)
    del y
    gc.collect()
    assert saved() is not None
    grads = OUTER.backward(z)
    assert saved() is None
    assert z.node is not None
    assert z.node.parents == ()
    assert OUTER.grad(x, grads) is not None


def test_a_graph_without_a_backward_is_freed_with_its_last_tensor() -> None:
    x = leaf(np.ones(8))
    y = OUTER.tanh(OUTER.mul(x, x))
    node = weakref.ref(y.node)
    gc.disable()
    try:
        del y
        assert node() is None, "freed by reference counting alone, not by the cyclic collector"
    finally:
        gc.enable()


def test_a_forward_loop_keeps_memory_flat() -> None:
    w = leaf(np.ones(1000))

    def step() -> None:
        OUTER.tanh(OUTER.mul(w, w))

    for _ in range(3):
        step()
    tracemalloc.start()
    try:
        step()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            step()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


def test_a_long_chain_of_operations_is_differentiated_and_freed() -> None:
    length = 200_000  # recursion would overflow a stack of 8 MB
    x = leaf([0.5])
    y = x
    for _ in range(length):
        y = OUTER.add(y, 1e-9)
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(y)), [1.0])
    y = x
    for _ in range(length):
        y = OUTER.add(y, 1e-9)
    del y  # without a backward: no recursion in the release either


# ---- nesting ----


def test_three_levels_give_third_derivatives() -> None:
    levels: list[Any] = [OUTER, TWICE, Autodiff(TWICE)]
    x: Any = np.array([0.3, 0.7])
    inputs = []
    for k in levels:
        x = k.set_require_grad(k.from_inner(x), True)
        inputs.append(x)
    top = levels[2]
    y = top.mul(top.mul(x, x), top.mul(x, x))
    for k, at in zip(levels[::-1], inputs[::-1], strict=True):
        y = k.grad(at, k.backward(y))
    np.testing.assert_allclose(y, 24 * np.array([0.3, 0.7]), rtol=1e-14)


def test_perturbations_are_not_confused() -> None:
    """d/dx [x * d/dy (x * y) at y = 1] at 2 is 4: in the inner derivative, x is a variable of the outer one."""
    x = leaf([2.0])
    x_above = TWICE.from_inner(x)
    y = TWICE.set_require_grad(TWICE.from_inner(OUTER.from_inner(np.array([1.0]))), True)
    inner = TWICE.grad(y, TWICE.backward(TWICE.mul(x_above, y)))
    np.testing.assert_array_equal(OUTER.grad(x, OUTER.backward(OUTER.mul(x, inner))), [4.0])


# ---- rules ----


def test_a_missing_rule_fails_when_the_operation_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn.autodiff.reverse_codegen import compile_operation

    entry = OPERATIONS["mul"]
    monkeypatch.setattr(entry, "gradients", [r for r in entry.gradients if r.operands != ("y",)])
    mul = compile_operation(entry)
    x = leaf([1.0])
    with pytest.raises(MissingRuleError, match=r"mul.*'y'"):
        mul(OUTER, x, x)
    assert OUTER.is_tracked(mul(OUTER, x, OUTER.from_inner(np.ones(1))))


def test_a_rule_may_only_name_existing_operands() -> None:
    with pytest.raises(ValueError, match="'z'"):
        gradient_rule("mul", z=lambda k, g: g)
    with pytest.raises(ValueError, match="'w'"):
        gradient_rule("bitwise_and", x=lambda k, g: g, y=lambda k, g, w: g)
    assert not OPERATIONS["bitwise_and"].gradients, "neither of the two rules was added"
    with pytest.raises(ValueError, match="already"):
        gradient_rule("mul", x=lambda g: g)
    with pytest.raises(ValueError, match="is not a function"):
        gradient_rule("bitwise_and", x=abs)


def test_a_rule_that_returns_a_wrong_shape_is_found_by_the_engine() -> None:
    from backburn.autodiff.graph import reverse

    x = leaf([1.0, 2.0])
    y = OUTER.tanh(x)
    assert y.node is not None
    y.node.backward = lambda k, g, node: (k.sum(g, (0,), True),)
    with pytest.raises(GraphError, match="returned shape"):
        reverse(BASE, y.node, np.ones(2), retain_graph=False)


# ---- threads ----


def test_a_graph_moves_between_threads() -> None:
    made: dict[str, Any] = {}

    def build() -> None:
        made["x"] = leaf([3.0])
        made["y"] = OUTER.mul(made["x"], made["x"])

    def differentiate() -> None:
        made["grads"] = OUTER.backward(made["y"])

    def read() -> None:
        made["g"] = OUTER.grad(made["x"], made["grads"])

    for job in (build, differentiate, read):
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()
    np.testing.assert_array_equal(made["g"], [6.0])


def test_eight_threads_share_a_leaf() -> None:
    x = leaf(np.linspace(0.1, 0.9, 50))

    def work(seed: int) -> Any:
        y = x
        for _ in range(100):
            y = OUTER.tanh(OUTER.mul(y, float(seed + 1) / 8))
        return OUTER.grad(x, OUTER.backward(y))

    alone = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, range(8)))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_reverse_pass_interrupted_by_another_thread_loses_no_gradient() -> None:
    x = leaf([1.0, 2.0])
    y = OUTER.neg(x)
    found: list[Any] = []

    def differentiate() -> None:
        grads = OUTER.backward(y)
        found.append(OUTER.grad(x, grads))

    def overtaken(k: Any, g: Any, node: Any) -> Any:
        node.backward = rule
        other = threading.Thread(target=differentiate)
        other.start()
        other.join()
        return rule(k, g, node)

    rule, y.node.backward = y.node.backward, overtaken
    differentiate()
    np.testing.assert_array_equal(found, [[-1.0, -1.0]] * 2)


def test_primitives_print_their_state() -> None:
    x = leaf([1.0])
    assert "leaf" in repr(x)
    assert "recorded" in repr(OUTER.mul(x, x))
    assert isinstance(x, Tracked)
    assert OUTER.dtype(x) is float64
    assert "1 tensor" in repr(OUTER.backward(OUTER.mul(x, x)))


def test_gradients_of_primitives_of_other_levels_are_refused() -> None:
    """Primitives of another level are an error; None means that no gradient flowed."""
    k, outer = OUTER, TWICE
    x = k.set_require_grad(k.from_inner(np.ones(2)), flag=True)
    y = outer.set_require_grad(outer.from_inner(k.from_inner(np.ones(2))), True)
    of_x, of_y = k.backward(k.mul(x, x)), outer.backward(outer.mul(y, y))
    questions: list[tuple[Any, Any, Any]] = [
        (outer, x, of_y), (k, y, of_x), (k, np.ones(2), of_x), (k, 3, of_x), (outer, np.ones(2), of_y),
    ]  # fmt: skip
    for backend, primitive, gradients in questions:
        for name in ("grad", "grad_remove"):
            with pytest.raises(BackendMismatchError, match=f"^{name}: expected a primitive of autodiff"):
                getattr(backend, name)(primitive, gradients)
    assert k.grad(k.from_inner(np.ones(2)), of_x) is None
    assert outer.grad(outer.from_inner(k.from_inner(np.ones(2))), of_y) is None
    assert k.grad(np.arange(2), of_x) is None


def test_copies_of_gradients() -> None:
    k = OUTER
    x = k.set_require_grad(k.from_inner(np.ones(2)), True)
    gradients = k.backward(k.mul(x, x))
    for copied in (copy.copy(gradients), copy.deepcopy(gradients)):
        np.testing.assert_array_equal(k.grad_remove(x, copied), [2.0, 2.0])
        assert k.grad(x, copied) is None
    np.testing.assert_array_equal(k.grad(x, gradients), [2.0, 2.0])
    with pytest.raises(GraphError, match="cannot be pickled"):
        pickle.dumps(gradients)


def test_one_object_around_a_backend_in_all_threads() -> None:
    class Derived(Autodiff[Any]):
        """A third-party decorator."""

    assert Derived(BASE) is Derived(BASE)
    assert Derived(BASE) is not Autodiff(BASE)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            own: Any = type("Own", (NumpyBackend,), {"_instance": None})  # also a singleton
            inner: Any = own()
            made: list[Any] = []
            threads = [threading.Thread(target=lambda: made.append(Autodiff(inner))) for _ in range(8)]  # noqa: B023
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(map(id, made))) == 1
    finally:
        sys.setswitchinterval(before)


def test_indexing_gradients_explains_how_to_read_them() -> None:
    """Gradients cannot be indexed by tensor."""
    w = bb.asarray([1.0]).require_grad()
    gradients: Any = (w * w).sum().backward()
    with pytest.raises(TypeError, match=r"w\.grad\(gradients\)"):
        gradients[w]
    assert repr(gradients) == "<gradients of 1 tensor on autodiff(numpy)>"


def test_wrapping_a_name_suggests_load_backend() -> None:
    name: Any = "numpy"
    with pytest.raises(ArgumentError, match=r"write load_backend\('numpy'\)"):
        Autodiff(name)


def test_a_graph_belongs_to_one_level() -> None:
    """A gradient of a tensor tracked only at the outer level has no graph at the inner level."""
    x = bb.asarray([1.0, 2.0], backend="autodiff(autodiff(numpy))").require_grad()
    slope: Any = x.grad((x**3.0).sum().backward())
    with pytest.raises(GraphError, match=r"not on the graph of autodiff\(numpy\): nothing .* bb.from_inner\(x"):
        slope.sum().backward()
