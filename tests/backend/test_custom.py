"""User-defined operations, and the detection of anomalies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import anomaly
from backburn.autodiff.tape import GradientTape
from backburn.backend import OPERATIONS, Backend
from backburn.backend.user_operations import withdraw
from backburn.base.errors import ArgumentError, BackburnError, GraphError, NumericalInstabilityError
from backburn.batching import Batched
from backburn.conformance.checks.derivatives import check_derivative
from backburn.conformance.samples.table import Sample, real
from backburn_numpy import NumpyBackend, compiled


@pytest.fixture
def scaled_tanh() -> Any:
    @bb.operation()
    def scaled_tanh(k: Any, x: Any, /, scale: float = 1.0) -> Any:
        """``scale * tanh(x)``."""
        return k.mul(k.tanh(x), scale)

    return scaled_tanh


def test_a_body_alone_runs_and_differentiates_everywhere(scaled_tanh: Any) -> None:
    x = bb.asarray([0.3, 0.7], dtype="float64").require_grad()
    y = scaled_tanh(x, scale=2.0)
    np.testing.assert_allclose(y.numpy(), 2 * np.tanh(x.numpy()))
    np.testing.assert_allclose(x.grad(y.backward()).numpy(), 2 / np.cosh(x.numpy()) ** 2)  # type: ignore[union-attr]
    assert scaled_tanh(bb.asarray([1])).dtype == "float32"
    assert scaled_tanh(bb.asarray([1.0], backend="numpy")).backend.spec == "numpy"


def test_the_decorator_works_without_parentheses() -> None:
    @bb.operation
    def bare_cube(k: Any, x: Any, /) -> Any:
        """The third power."""
        return k.mul(x, k.mul(x, x))

    assert bb.grad(bare_cube)(2.0).item() == 12.0


def test_a_tensor_has_the_dtype_that_the_body_returns() -> None:
    """Also if the declaration does not say that it differs from the operand's dtype."""

    @bb.operation()
    def undeclared_widening(k: Any, x: Any, /) -> Any:
        """Compute in float64."""
        return k.astype(x, bb.float64)

    found = undeclared_widening(bb.asarray([0.5]))
    assert found.dtype is bb.float64
    assert found.numpy().dtype == np.float64


def test_a_fused_operation_is_traced_once() -> None:
    """The body and the rule are each traced once for arrays, and then not called again."""
    calls: list[str] = []

    @bb.operation(fuse=True)
    def soft_step(k: Any, x: Any, /, width: float = 1.0, height: float = 2.0) -> Any:
        """A sigmoid of a given width and height."""
        calls.append(type(k).__name__)
        return k.mul(k.sigmoid(k.div(x, width)), height)

    def slope(k: Any, g: Any, out: Any, width: float, height: float) -> Any:
        calls.append(type(k).__name__)
        return k.mul(g, k.div(k.mul(out, k.sub(1.0, k.div(out, height))), width))

    bb.gradient_rule(soft_step, x=slope)
    try:
        wide = np.linspace(-3, 3, 9000).astype(np.float32).reshape(90, 100)
        expected = 3 / (1 + np.exp(-wide / 0.5))
        x = bb.asarray(wide, backend="autodiff(numpy)").require_grad()
        y = soft_step(x, width=0.5, height=3.0)
        gradient = x.grad(bb.sum(y).backward())
        assert gradient is not None
        np.testing.assert_allclose(y.numpy(), expected, rtol=2e-6)
        np.testing.assert_allclose(gradient.numpy(), expected * (1 - expected / 3) / 0.5, rtol=1e-4, atol=1e-5)
        if compiled.level() is not None:
            assert calls == ["FormulaTrace", "FormulaTrace"]
            bb.grad(lambda x: bb.sum(soft_step(x, 0.5, height=3.0)))(x.detach())
            assert calls == ["FormulaTrace", "FormulaTrace"]
        # Small arrays, broadcast ones, batches and second derivatives take the formula itself.
        assert soft_step(bb.asarray([0.0], backend="numpy"), height=2.0).tolist() == [1.0]
        rows = bb.vmap(lambda row: soft_step(row, 0.5, height=3.0))(x.detach())
        np.testing.assert_allclose(rows.numpy(), expected, rtol=2e-6)
        assert bb.grad(bb.grad(lambda x: soft_step(x, 0.5, height=3.0)))(0.0).item() == 0.0
        with pytest.raises(BackburnError, match="depth"):
            soft_step(x, depth=1.0)
    finally:
        withdraw("soft_step")
    assert "soft_step" not in OPERATIONS


def test_tapes_record_it(scaled_tanh: Any) -> None:
    x = np.array([0.3, 0.7])
    tape = GradientTape()
    slot = tape.input(x)
    assert tape.record_scaled_tanh(slot, scale=2.0) == 1
    np.testing.assert_allclose(tape.backward(np.ones(2))[slot], 2 / np.cosh(x) ** 2)
    bb.gradient_rule(scaled_tanh, x=lambda k, g, out, scale: k.mul(g, 7.0))
    tape.reset()
    slot = tape.input(x)
    tape.record_scaled_tanh(slot)
    np.testing.assert_allclose(tape.backward(np.ones(2))[slot], 7.0)
    withdraw("scaled_tanh")
    assert not hasattr(tape, "record_scaled_tanh")

    @bb.operation(differentiable=False)
    def rounded_up(k: Any, x: Any, /) -> Any:
        """The next integer."""
        return k.ceil(x)

    with pytest.raises(AttributeError, match="record_rounded_up: it has no gradient"):
        _ = tape.record_rounded_up


def test_an_operation_may_be_redefined_and_withdrawn(scaled_tanh: Any) -> None:
    def add(factor: float) -> Any:
        @bb.operation()
        def added_again(k: Any, x: Any, /) -> Any:
            """Some multiple of each element."""
            return k.mul(x, factor)

        return added_again

    bb.gradient_rule(add(2.0), x=lambda k, g: k.mul(g, 2.0))
    again = add(3.0)  # as if a notebook cell ran again: without the old rule
    assert bb.grad(again)(1.0).item() == 3.0
    bb.implement(again, NumpyBackend)(lambda x: np.multiply(x, 4.0, out=...))
    assert again(bb.asarray(1.0)).item() == 4.0
    withdraw("added_again")
    assert "added_again" not in OPERATIONS
    for cls in (Backend, bb.Autodiff, bb.Forward, Batched, NumpyBackend):
        assert not hasattr(cls, "added_again")
    withdraw("sin")  # operations of the contract stay
    assert "sin" in OPERATIONS
    with pytest.raises(ArgumentError, match="taken by the contract"):

        @bb.operation()
        def sin(k: Any, x: Any, /) -> Any:
            """The name is taken."""
            return x


REDEFINED = """
import backburn as bb

SPECS = ("numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))", "capture(numpy)", "forward(numpy)", "trace(numpy)",
         "profile(numpy)", "sharded(numpy, dp=2)")


def values(power):
    for spec in SPECS:
        with bb.use_backend(spec):
            yield power(bb.asarray([3.0] * 80)).tolist()[0]
    x = bb.asarray([3.0] * 80)
    yield bb.vmap(power)(x).tolist()[0]
    yield bb.grad(lambda x: bb.sum(power(x)))(x).tolist()[0] * 3.0 / exponent
    yield bb.jvp(power, (x,), (x,))[1].tolist()[0] / exponent


@bb.operation(fuse=FUSE)
def some_power(k, x, /):
    "The second power."
    return k.mul(x, x)


bb.gradient_rule(some_power, x=lambda k, g, x: k.mul(g, k.mul(x, 2.0)))
first, exponent = some_power, 2
print(set(values(some_power)))
with bb.use_backend("autodiff(capture(numpy))"):
    step = bb.capture(lambda x: some_power(x) * 1.0, state=False)
    print([step(bb.asarray([3.0])).item() for _ in range(3)], step.reason)


@bb.operation(fuse=FUSE)
def some_power(k, x, /):
    "The third power."
    return k.mul(x, k.mul(x, x))


bb.gradient_rule(some_power, x=lambda k, g, x: k.mul(g, k.mul(k.mul(x, x), 3.0)))
exponent = 3
print(set(values(some_power)))
with bb.use_backend("autodiff(capture(numpy))"):
    print([step(bb.asarray([3.0])).item() for _ in range(2)], step.reason)
try:
    first(bb.asarray([3.0]))
except bb.errors.ArgumentError as error:
    print(error)
"""


EARLIER = (
    "some_power: the operation has been defined again or removed since this function was made: call the function of "
    "the new definition (import it again after a reload)"
)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_definition_that_runs_again_replaces_the_operation_everywhere(fuse: bool, loaded: str) -> None:
    """Also for backends created after the first definition, and in steps recorded with it."""
    source = REDEFINED.replace("FUSE", repr(fuse))
    if loaded == "before":
        load = "for spec in SPECS:\n    with bb.use_backend(spec):\n        bb.asarray([1.0])\n\n\ndef values"
        source = source.replace("def values", load, 1)
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [
        "{9.0}",
        "[9.0, 9.0, 9.0] ",
        "{27.0}",
        "[27.0, 27.0] ",
        EARLIER,
    ], run.stderr


def test_two_modules_cannot_define_one_name(scaled_tanh: Any) -> None:
    def other(k: Any, x: Any, /) -> Any:
        """Something else."""
        return k.exp(x)

    other.__name__, other.__module__ = "scaled_tanh", "signals"
    other.__code__ = other.__code__.replace(co_filename="signals.py")
    with pytest.raises(
        ArgumentError, match=r"'scaled_tanh' of signals is defined by .*test_custom already.*signals_sc"
    ):
        bb.operation(other)
    x = bb.asarray([0.3])
    np.testing.assert_allclose(scaled_tanh(x).numpy(), np.tanh(x.numpy()))


def test_a_file_that_is_imported_twice_may_define_it_twice(scaled_tanh: Any) -> None:
    """A file runs as ``__main__`` and is also imported by name."""

    def again(k: Any, x: Any, /) -> Any:
        """The exponential."""
        return k.exp(x)

    again.__name__, again.__module__ = "scaled_tanh", "__main__"
    assert bb.operation(again)(bb.asarray(0.0)).item() == 1.0


def test_a_new_implementation_is_recorded_again(scaled_tanh: Any) -> None:
    with bb.use_backend("autodiff(capture(numpy))"):
        step = bb.capture(lambda x: scaled_tanh(x) * 1.0, state=False)
        assert [step(bb.asarray([0.0])).item() for _ in range(3)] == [0.0] * 3
        bb.implement(scaled_tanh, NumpyBackend)(lambda x, scale=1.0: x + 5.0)
        assert [step(bb.asarray([0.0])).item() for _ in range(2)] == [5.0] * 2
        assert step.reason == ""


def test_an_operation_with_a_rule_is_one_node_and_right_at_every_order(scaled_tanh: Any) -> None:
    bb.gradient_rule(scaled_tanh, x=lambda k, g, out, scale: k.mul(g, k.sub(scale, k.div(k.square(out), scale))))
    sample = Sample((real(2, 3),), {"scale": 2.0})
    for order in (1, 2, 3):
        check_derivative("scaled_tanh", sample, NumpyBackend(), order)
    x = bb.asarray([0.5]).require_grad()
    assert scaled_tanh(x).primitive.node.parents == (x.primitive.node,)


def test_a_rule_that_returns_another_shape_is_named(scaled_tanh: Any) -> None:
    bb.gradient_rule(scaled_tanh, x=lambda k, g, x: k.sum(g, (0,), False))
    x = bb.ones((2, 3)).require_grad()
    with pytest.raises(GraphError, match=r"rule of scaled_tanh returned shape \[3\] for an operand of shape \[2, 3\]"):
        scaled_tanh(x, 1.5).sum().backward()


def test_one_backend_may_have_its_own_implementation(scaled_tanh: Any) -> None:
    calls = []

    @bb.implement(scaled_tanh, NumpyBackend)
    def fused(x: Any, scale: float = 1.0) -> Any:
        calls.append(1)
        return np.multiply(np.tanh(x), scale, out=...)

    bb.gradient_rule(scaled_tanh, x=lambda k, g, out, scale: k.mul(g, k.sub(scale, k.div(k.square(out), scale))))
    x = bb.asarray([0.5]).require_grad()
    scaled_tanh(x, scale=3.0).backward()
    assert calls == [1]


@pytest.mark.parametrize("by_rule", [False, True])
def test_operands_and_options_have_any_names(by_rule: bool) -> None:
    """Names that decorators use internally are allowed too."""

    @bb.operation()
    def odd_names(k: Any, body: Any, /, constant: float = 3.0, name: float = 1.0, parents: float = 1.0) -> Any:
        """A multiple of the square."""
        return k.mul(k.mul(body, body), constant * name * parents)

    if by_rule:
        bb.gradient_rule(odd_names, body=lambda k, g, body, constant: k.mul(g, k.mul(body, 2.0 * constant)))

    def f(x: Any) -> Any:
        return odd_names(x, constant=3.0, name=1.0, parents=1.0)

    assert bb.grad(f)(2.0).item() == bb.jvp(f, (bb.asarray(2.0),), (bb.asarray(1.0),))[1].item() == 12.0
    assert bb.grad(bb.grad(f))(2.0).item() == 6.0
    assert bb.vmap(f)(bb.asarray([2.0])).tolist() == [12.0]


def test_invalid_operations_are_refused() -> None:
    def add(k: Any, x: Any, /) -> Any:
        """Taken."""

    def nameless(k: Any, x: Any, /) -> Any:
        return x

    def greedy(k: Any, g: Any, /) -> Any:
        """An operand that rules reserve."""

    def ambiguous(k: Any, x: Any, x_shape: Any, /) -> Any:
        """An operand that is the shape of another to a rule."""

    def pointless(k: Any, x: Any) -> Any:
        """No operand."""

    def late(k: Any, x: Any, /, *, scale: float = 1.0) -> Any:
        """An option that has no position."""

    def known(k: Any, x: Any, /) -> Any:
        """Truth, which is not a float."""

    for body, words in (
        (late, r"is keyword-only: leave out the \* before it"),
        (add, "taken"),
        (nameless, "docstring"),
        (greedy, "reserved"),
        (ambiguous, "reserved"),
        (pointless, "operands"),
    ):
        with pytest.raises(ArgumentError, match=words):
            bb.operation()(body)
        assert body is add or body.__name__ not in OPERATIONS
    with pytest.raises(ArgumentError, match="a fused operation"):
        bb.operation(fuse=True, result="bool")(known)
    with pytest.raises(ArgumentError, match="is not an operation"):
        bb.implement("nothing", NumpyBackend)


def test_operations_may_lack_docstrings_in_optimized_mode() -> None:
    program = "import backburn as bb\n@bb.operation\ndef cube(k, x, /):\n '''x**3'''\n return k.mul(x, k.mul(x, x))\n"
    run = [sys.executable, "-OO", "-c", f"{program}print(bb.grad(cube)(2.0).item())"]
    assert subprocess.run(run, capture_output=True, text=True, check=False).stdout == "12.0\n"


# ---- anomalies ----


def test_the_first_nan_forward_is_reported_with_operation_operands_and_line() -> None:
    x = bb.asarray([-1.0, 4.0]).require_grad()
    with pytest.raises(NumericalInstabilityError) as caught, bb.detect_anomaly():
        bb.exp(bb.sqrt(x))  # the line to be named
    message = str(caught.value)
    assert "sqrt: the result has 1 NaN of 2" in message
    assert "float32[2] from -1.0 to 4.0" in message
    assert "test_custom.py" in message
    assert "# the line to be named" in message


def test_the_first_infinity_backward_is_reported_with_the_line_of_the_forward() -> None:
    x = bb.asarray([0.0, 4.0]).require_grad()
    with bb.detect_anomaly():
        y = bb.sqrt(x)  # finite here, infinite in its derivative
        with pytest.raises(NumericalInstabilityError) as caught:
            y.sum().backward()
    message = str(caught.value)
    assert "backward of sqrt: a gradient of shape [2] has 1 infinite value of 2" in message
    assert "# finite here" in message


WATCHED: dict[str, Any] = {
    "grad": lambda f, x: bb.grad(f)(x),
    "grad of a checkpoint": lambda f, x: bb.grad(bb.checkpoint(f))(x),
    "grad of each example": lambda f, x: bb.vmap(bb.grad(f))(x),
    "hessian": lambda f, x: bb.hessian(f)(x),
    "jacobian, forward": lambda f, x: bb.jacobian(f, mode="forward")(x),
    "jvp": lambda f, x: bb.jvp(f, (x,), (x + 1.0,)),
    "vjp": lambda f, x: bb.vjp(f, x)[1](1.0),
}


@pytest.mark.parametrize("derivative", WATCHED)
def test_the_operation_and_line_are_the_users_in_derivatives_of_functions(derivative: str) -> None:
    """Neither the operations of a rule, at the level below, nor the line of the transform are reported."""

    def f(x: Any) -> Any:
        r = bb.sqrt(x * 1.0)  # finite here
        return (r * 2.0).sum()

    expected = r"^(\w+: )?(backward of )?sqrt: .*# finite here"
    with pytest.raises(NumericalInstabilityError, match=expected), bb.detect_anomaly():
        WATCHED[derivative](f, bb.asarray([0.0, 4.0]))


def test_anomalies_of_second_order() -> None:
    with pytest.raises(NumericalInstabilityError, match=r"backward of pow: .*# of third halves"), bb.detect_anomaly():
        bb.grad(bb.grad(lambda x: x**1.5))(0.0)  # of third halves


def test_graphs_recorded_before_the_block_are_checked_too() -> None:
    x = bb.asarray([0.0, 4.0]).require_grad()
    y = bb.sqrt(x).sum()
    with pytest.raises(NumericalInstabilityError, match=r"of sqrt: .* recorded outside"), bb.detect_anomaly():
        y.backward()


def test_anomaly_detection_restores_everything() -> None:
    before = dict(vars(bb.Autodiff)), dict(vars(bb.Forward))
    with bb.detect_anomaly(), bb.detect_anomaly():
        assert vars(bb.Autodiff)["mul"] is not before[0]["mul"]
    assert (dict(vars(bb.Autodiff)), dict(vars(bb.Forward))) == before
    assert bb.log(bb.asarray([0.0])).tolist() == [float("-inf")]


def test_infinities_that_do_not_reach_the_result_are_ignored() -> None:
    x, where = bb.asarray([1.0, 2.0]), bb.asarray([0, 0])
    with bb.detect_anomaly():
        loss = lambda x: bb.scatter(x, where, 2.0 * x, axis=0, mode="max", include_self=False).sum()
        assert bb.grad(loss)(x).tolist() == [0.0, 3.0]


def test_anomaly_detection_works_with_nested_transforms() -> None:
    with bb.detect_anomaly():
        assert bb.grad(bb.grad(lambda x: x**3.0))(2.0).item() == 12.0
        with pytest.raises(NumericalInstabilityError, match="log"):
            bb.grad(lambda x: bb.log(x))(0.0)


def test_an_interrupted_block_does_not_affect_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while operations are being replaced."""
    before, looking = dict(vars(bb.Autodiff)), anomaly._checked_operation

    def interrupted(name: str, original: Any) -> Any:
        if name == "log":
            raise KeyboardInterrupt
        return looking(name, original)

    monkeypatch.setattr(anomaly, "_checked_operation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bb.detect_anomaly().__enter__()
    monkeypatch.undo()
    with pytest.raises(NumericalInstabilityError, match="log"), bb.detect_anomaly():
        bb.log(bb.asarray(0.0).require_grad())
    assert dict(vars(bb.Autodiff)) == before
