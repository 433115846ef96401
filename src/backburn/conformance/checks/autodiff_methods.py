"""Checks of the twelve methods of an autodiff backend, backburn's or another, and of its type constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from backburn.autodiff import Autodiff
from backburn.backend.contract import AUTODIFF_METHODS, is_autodiff
from backburn.backend.registry import check_autodiff_backend
from backburn.base.dtypes import qint8
from backburn.base.errors import ConsumedGraphError
from backburn.conformance.checks.check import NO_DTYPE, WHOLE, Check
from backburn.conformance.checks.gradients import levels, watch
from backburn.conformance.samples.table import Array

VALUES = np.array([1.5, -2.0, 3.0])


class _Tools:
    """An autodiff backend with helper functions for the checks."""

    def __init__(self, check: Check) -> None:
        self.inner, self.outer = levels(check.backend)
        self.dtype = self.outer.float_dtype

    def host(self, values: Any = VALUES) -> Array:
        """Values in the backend's float dtype."""
        return np.asarray(values).astype(self.dtype.dtype)

    def leaf(self, values: Any = VALUES) -> Any:
        """A leaf that requires a gradient."""
        return self.outer.set_require_grad(self.constant(values), True)

    def constant(self, values: Any = VALUES) -> Any:
        """An untracked primitive."""
        return self.outer.from_inner(self.inner.from_numpy(self.host(values)))

    def total(self, x: Any) -> Any:
        """The sum of all elements."""
        return self.outer.sum(x, tuple(range(len(x.shape))), False)

    def read(self, gradient: Any) -> Array:
        """A gradient, which must be an inner primitive, on the host."""
        assert gradient is not None, "no gradient arrived"
        return np.asarray(self.inner.to_numpy(gradient), np.float64)

    def near(self, gradient: Any, expected: Any) -> None:
        """Compare a gradient's values."""
        np.testing.assert_allclose(self.read(gradient), expected, rtol=2e-2 if self.dtype.bits == 16 else 1e-5)


def the_twelve_methods_are_there(t: _Tools) -> None:
    """All twelve methods of the trait can be called."""
    lacking = [n for n in AUTODIFF_METHODS if not callable(getattr(t.outer, n, None))]
    assert not lacking, f"lacks {', '.join(lacking)}"
    assert is_autodiff(t.outer), "it is not recognized as an autodiff backend"


def inner_and_outer_share_their_types(t: _Tools) -> None:
    """Device, float dtype, int dtype and capabilities are those of the inner backend."""
    check_autodiff_backend(t.outer)
    assert set(t.outer.capabilities.dtypes) == set(t.inner.capabilities.dtypes), "the dtypes differ from the inner ones"


def floats_go_in_and_out(t: _Tools) -> None:
    """``inner(from_inner(x))`` has the values, shape and dtype of ``x``, which is untracked in between."""
    x = t.inner.from_numpy(t.host())
    lifted = t.outer.from_inner(x)
    assert not t.outer.is_tracked(lifted), "from_inner gives a tracked primitive"
    assert t.outer.dtype(lifted) == t.dtype
    assert tuple(lifted.shape) == (3,)
    back = t.outer.inner(lifted)
    assert t.inner.dtype(back) == t.dtype
    np.testing.assert_array_equal(t.inner.to_numpy(back), t.host())


def _goes_in_and_out(t: _Tools, x: Any, into: str, out: str) -> None:
    """An inner primitive comes back as the same object."""
    lifted = getattr(t.outer, into)(x)
    assert t.outer.dtype(lifted) == t.inner.dtype(x), f"{into} returned {t.outer.dtype(lifted)}"
    back = getattr(t.outer, out)(lifted)
    kind, dtype = type(back).__name__, t.inner.dtype(back)
    assert back is x, f"{out}({into}(x)) is another object than x, {kind} of {dtype}"


def ints_go_in_and_out(t: _Tools) -> None:
    """``int_inner(int_from_inner(x))`` is ``x``, for each int dtype."""
    for dtype in t.inner.capabilities.dtypes:
        if dtype.kind == "int":
            x = t.inner.from_numpy(np.array([[1, 2], [3, 4]], np.dtype(dtype.name)))
            _goes_in_and_out(t, x, "int_from_inner", "int_inner")


def bools_go_in_and_out(t: _Tools) -> None:
    """``bool_inner(bool_from_inner(x))`` is ``x``."""
    _goes_in_and_out(t, t.inner.from_numpy(np.array([True, False, True])), "bool_from_inner", "bool_inner")


def quantized_go_in_and_out(t: _Tools) -> None:
    """``q_inner(q_from_inner(x))`` is ``x``."""
    if qint8 not in t.inner.capabilities.dtypes:
        return
    _goes_in_and_out(t, t.inner.quantize(t.inner.from_numpy(t.host()), qint8), "q_from_inner", "q_inner")


def gradients_are_inner_primitives(t: _Tools) -> None:
    """The gradient of ``sum(x * x)`` is ``2 x``, a primitive of the inner backend of the dtype of ``x``."""
    x = t.leaf()
    g = t.outer.grad(x, t.outer.backward(t.total(t.outer.mul(x, x))))
    t.near(g, 2 * VALUES)
    assert t.inner.dtype(g) == t.dtype
    assert tuple(g.shape) == (3,)


def grad_changes_nothing(t: _Tools) -> None:
    """``grad`` returns the same twice; ``grad_remove`` returns it once more, and then there is none."""
    x = t.leaf()
    gradients = t.outer.backward(t.total(t.outer.mul(x, x)))
    for _ in range(2):
        t.near(t.outer.grad(x, gradients), 2 * VALUES)
    t.near(t.outer.grad_remove(x, gradients), 2 * VALUES)
    assert t.outer.grad(x, gradients) is None, "grad_remove left the gradient behind"
    assert t.outer.grad_remove(x, gradients) is None, "a gradient was removed twice"


def grad_replace_replaces(t: _Tools) -> None:
    """``grad_replace`` sets a gradient, whether or not there was one."""
    x, other = t.leaf(), t.leaf()
    gradients = t.outer.backward(t.total(t.outer.mul(x, x)))
    for leaf in (x, other):
        t.outer.grad_replace(leaf, gradients, t.inner.from_numpy(t.host([7.0, 8.0, 9.0])))
        t.near(t.outer.grad(leaf, gradients), [7.0, 8.0, 9.0])
    assert t.outer.grad_remove(other, gradients) is not None


def nothing_flows_nowhere(t: _Tools) -> None:
    """Untracked tensors, and leaves that the result does not depend on, have no gradient."""
    x, other, constant = t.leaf(), t.leaf(), t.constant()
    gradients = t.outer.backward(t.total(t.outer.mul(x, constant)))
    assert t.outer.grad(other, gradients) is None, "an unrelated leaf got a gradient"
    assert t.outer.grad(constant, gradients) is None, "an untracked tensor got a gradient"
    t.near(t.outer.grad(x, gradients), VALUES)


def backward_starts_from_ones(t: _Tools) -> None:
    """``backward`` of a tensor with several elements differentiates their sum."""
    x = t.leaf()
    t.near(t.outer.grad(x, t.outer.backward(t.outer.mul(x, x))), 2 * VALUES)


def backward_refuses_what_is_not_on_the_graph(t: _Tools) -> None:
    """``backward`` raises for untracked, int and bool tensors."""
    for what, tensor in (
        ("an untracked tensor", t.constant()),
        ("an int tensor", t.outer.from_numpy(np.arange(3))),
        ("a bool tensor", t.outer.from_numpy(np.array([True]))),
    ):
        try:
            t.outer.backward(tensor)
        except Exception:
            continue
        raise AssertionError(f"backward returned for {what}")


def graphs_do_not_mix(t: _Tools) -> None:
    """A second graph over the same leaf, and one over a new leaf, are independent of the first."""
    x = t.leaf()
    first = t.outer.backward(t.total(t.outer.mul(x, x)))
    second = t.outer.backward(t.total(t.outer.mul(x, t.constant([1.0, 2.0, 3.0]))))
    t.near(t.outer.grad(x, second), [1.0, 2.0, 3.0])
    t.near(t.outer.grad(x, first), 2 * VALUES)
    new = t.leaf([4.0, 5.0, 6.0])
    third = t.outer.backward(t.total(t.outer.mul(new, new)))
    t.near(t.outer.grad(new, third), [8.0, 10.0, 12.0])
    assert t.outer.grad(x, third) is None, "gradients of an earlier graph came back"


def a_graph_is_used_once(t: _Tools) -> None:
    """A second ``backward`` through a graph raises ``ConsumedGraphError``: the first has consumed it."""
    x = t.leaf()
    result = t.total(t.outer.mul(x, x))
    t.outer.backward(result)
    try:
        t.outer.backward(result)
    except ConsumedGraphError:
        return
    except Exception as error:
        raise AssertionError(f"a second backward raised {type(error).__name__}, not ConsumedGraphError") from error
    raise AssertionError("a second backward returned: the first must consume the graph, and the second raise")


def tracking_is_told(t: _Tools) -> None:
    """``is_require_grad``, ``is_tracked`` and ``detach`` distinguish leaves, results and constants."""
    x, constant = t.leaf(), t.constant()
    y = t.outer.mul(x, x)
    assert t.outer.is_require_grad(x)
    assert t.outer.is_tracked(x)
    assert t.outer.is_tracked(y)
    assert not t.outer.is_tracked(constant)
    assert not t.outer.is_require_grad(constant)
    assert not t.outer.is_require_grad(y), "a result is not a leaf"
    assert not t.outer.is_tracked(t.outer.detach(y)), "detach leaves the tensor on the graph"
    assert not t.outer.is_tracked(t.outer.set_require_grad(x, False))
    assert t.outer.is_tracked(x), "set_require_grad changed its operand"


def fan_out_adds_up(t: _Tools) -> None:
    """A leaf that is used three times gets the sum of three gradients."""
    x = t.leaf()
    y = t.outer.add(t.outer.mul(x, x), x)
    t.near(t.outer.grad(x, t.outer.backward(t.total(t.outer.add(y, x)))), 2 * VALUES + 2)


def broadcasting_is_undone(t: _Tools) -> None:
    """A row that was broadcast over three rows gets the sum of their gradients, in its own shape."""
    x, row = t.leaf(np.ones((3, 2))), t.leaf([1.0, 2.0])
    gradients = t.outer.backward(t.total(t.outer.mul(x, row)))
    t.near(t.outer.grad(row, gradients), [3.0, 3.0])
    t.near(t.outer.grad(x, gradients), [[1.0, 2.0]] * 3)


def long_chains_work(t: _Tools) -> None:
    """Three thousand operations in a row do not exceed the recursion limit."""
    x = t.leaf([1.0])
    y = x
    for _ in range(3000):
        y = t.outer.neg(y)
    t.near(t.outer.grad(x, t.outer.backward(y)), [1.0])


def graphs_are_released(t: _Tools) -> None:
    """A graph is freed with its last tensor, without ``backward`` and after it, even while gradients are held."""
    x = t.leaf()
    y = t.outer.mul(x, x)
    forgotten = watch(y)
    del y
    assert forgotten is None or forgotten() is None, "a graph without tensors is still held"
    y = t.outer.mul(x, x)
    used, gradients = watch(y), t.outer.backward(t.total(y))
    del y
    assert used is None or used() is None, "backward, or its gradients, hold the graph"
    t.near(t.outer.grad(x, gradients), 2 * VALUES)


def it_nests(t: _Tools) -> None:
    """``Autodiff`` around the backend differentiates its gradient: the second derivative of ``x ** 3`` is ``6 x``."""
    k: Any = Autodiff(t.outer)
    x1 = t.leaf()
    x2 = k.set_require_grad(k.from_inner(x1), True)
    first = k.grad(x2, k.backward(k.mul(k.mul(x2, x2), x2)))
    assert t.outer.is_tracked(first), "the gradient is not on the graph of the level below"
    t.near(t.outer.grad(x1, t.outer.backward(t.total(first))), 6 * VALUES)


TRAIT: tuple[Callable[[_Tools], None], ...] = (
    the_twelve_methods_are_there, inner_and_outer_share_their_types, floats_go_in_and_out, ints_go_in_and_out,
    bools_go_in_and_out, quantized_go_in_and_out, gradients_are_inner_primitives, grad_changes_nothing,
    grad_replace_replaces, nothing_flows_nowhere, backward_starts_from_ones,
    backward_refuses_what_is_not_on_the_graph, graphs_do_not_mix, a_graph_is_used_once, tracking_is_told,
    fan_out_adds_up, broadcasting_is_undone, long_chains_work, graphs_are_released, it_nests,
)  # fmt: skip


def method_checks(backend: Any) -> Iterator[Check]:
    """Checks of the twelve methods and the type constraint, of the backend or else of ``Autodiff`` around it."""
    for index, function in enumerate(TRAIT):
        title = (function.__doc__ or "").partition("\n")[0]
        yield Check(WHOLE, NO_DTYPE, "trait", index, backend, _run, title=title)


def _run(check: Check) -> None:
    TRAIT[check.index](_Tools(check))
