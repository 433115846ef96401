"""No operation warns, also where a program makes errors of all warnings, or of NumPy's, after importing the backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.autodiff.tape import GradGraph, GradientTape, closures
from backburn.base.errors import NumericalInstabilityError
from backburn.base.quiet import PACKAGES, ignore_warnings, quietly, silence
from backburn.conformance import check_backend
from backburn_numpy import NumpyBackend

ZERO, BIG = [0.0, 1.0], [1e4, 6e4]

LEVEL = Autodiff(NumpyBackend())


def leaf(values: list[float]) -> Any:
    return LEVEL.set_require_grad(LEVEL.from_inner(np.array(values)), True)


def recorded() -> None:
    tape = GradientTape()
    x = tape.input(np.array(ZERO))
    log = tape.record_log(x)
    tape.record_mul(log, None, x, np.array(ZERO))
    y = tape.record_mul(log, x)
    with pytest.raises(NumericalInstabilityError):
        tape.backward(np.array([np.inf, 1.0]), output=y)
    float32 = GradientTape()
    z = float32.input(np.ones(1, np.float32))
    float32.record_mul(z, z)
    with pytest.raises(NumericalInstabilityError):
        float32.backward(np.array([1e300]))


def closed() -> None:
    tape, x = closures.GradientTape(), np.array(ZERO)
    y = tape.record("log", x)

    def start(gradients: closures.Gradients) -> None:
        cell = gradients.mut_gradient(y)
        cell.set(np.inf)
        cell.add(-np.inf)
        cell.addmul(np.array(ZERO), np.inf)

    tape.add_backward_op(start)
    tape.execute()


def graphed() -> None:
    graph = GradGraph()
    p = graph.parameter(np.array(ZERO))
    y = graph.ln(p)
    for seed in (np.inf, -np.inf):
        graph.backward_with_seed(y, np.full(2, seed))
    graph.hessian(y, p)
    graph.set_tensor(p, np.array([-1.0, 2.0]))
    graph.tensor(y)


def stepped(optimizer: bb.optim.Optimizer, dtype: str = "float64") -> None:
    model = {"w": bb.asarray([1e4, 2.0], dtype=dtype).require_grad()}
    for _ in range(2):
        optimizer.step(model, {"w": bb.asarray([6e4, np.inf], dtype=dtype, backend="numpy") ** 64})


CALLS: dict[str, Callable[[], Any]] = {
    "log": lambda: bb.log(bb.asarray(ZERO)),
    "divide": lambda: bb.asarray(ZERO) / bb.asarray(ZERO),
    "by a number": lambda: 1.0 / bb.asarray(ZERO),
    "overflow": lambda: bb.exp(bb.asarray(BIG)),
    "half": lambda: bb.asarray(BIG, dtype="float16") * bb.asarray(BIG, dtype="float16"),
    "cast": lambda: bb.asarray([1e30]).astype("float16"),
    "creation": lambda: bb.linspace(0.0, 1e308, 3),
    "Fourier transform": lambda: bb.fourier.rfft(bb.asarray([3e38] * 8)),
    "its inverse": lambda: bb.fourier.irfft(*bb.fourier.rfft(bb.asarray([1e38] * 8))),
    "decomposition": lambda: bb.linalg.qr(bb.full((2, 2), 3e38)),
    "mean of nothing": lambda: bb.mean(bb.zeros((0,))),
    "backward": lambda: (lambda x: x.grad(bb.sqrt(x).sum().backward()))(bb.asarray(ZERO).require_grad()),
    "grad": lambda: bb.grad(lambda x: bb.sqrt(x).sum())(bb.asarray(ZERO)),
    "hvp": lambda: bb.hvp(lambda x: (x**1.5).sum(), (bb.asarray(ZERO),), (bb.asarray(ZERO),)),
    "layers": lambda: bb.nn.functional.softmax(bb.asarray([[np.inf, np.inf]])),
    "linear layer": lambda: bb.nn.functional.linear(
        *(bb.asarray(x, backend="numpy") for x in ([[np.inf]], [[1.0]], [-np.inf]))
    ),
    "clipping": lambda: bb.optim.clip_grad_norm({"w": bb.asarray([1e30, np.inf], backend="numpy")}, 1.0),
    "SGD": lambda: stepped(bb.optim.SGD(0.1, momentum=0.9, weight_decay=0.1)),
    "Adam": lambda: stepped(bb.optim.Adam()),
    "Adam with peaks": lambda: stepped(bb.optim.Adam(amsgrad=True)),
    "RMSprop": lambda: stepped(bb.optim.RMSprop(centered=True)),
    "Adagrad": lambda: stepped(bb.optim.Adagrad()),
    "L-BFGS": lambda: stepped(bb.optim.LBFGS()),
    "a step in 16 bits": lambda: stepped(bb.optim.SGD(1e30), "float16"),
    "determinant": lambda: bb.linalg.det(bb.eye(500) * 3.0),
    "its logarithm": lambda: bb.linalg.slogdet(bb.full((2, 2), np.nan)),
    "its gradient": lambda: bb.grad(bb.linalg.det)(bb.eye(500) * 3.0),
    "inverse": lambda: bb.linalg.inv(bb.eye(2) * 1e-39),
    "solution": lambda: bb.linalg.solve(bb.eye(2) * 1e-30, bb.full((2,), 1e30)),
    "integers": lambda: bb.asarray([1, 2]) // bb.asarray([0, 1]),
    "fan-in": lambda: (lambda x: ((x * np.inf) - (x * np.inf)).sum().backward())(bb.asarray(ZERO).require_grad()),
    "broadcasting": lambda: (lambda x: (x * bb.asarray([np.inf, -np.inf])).sum().backward())(
        bb.asarray(1.0).require_grad()
    ),
    "parts": lambda: (lambda x: (x[:2] * np.inf - x[1:] * np.inf).sum().backward())(bb.ones(3).require_grad()),
    "primitives": lambda: LEVEL.div(LEVEL.log(leaf(ZERO)), leaf(ZERO)),
    "their gradients": lambda: LEVEL.backward(LEVEL.sqrt(leaf(ZERO))),
    "record tape": recorded,
    "tape of closures": closed,
    "typed graph": graphed,
}


@pytest.fixture
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_warns(call: Callable[[], Any], strict: None) -> None:
    call()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_raises_what_numpy_was_told_to_raise(call: Callable[[], Any]) -> None:
    with np.errstate(all="raise"):
        call()
        assert set(np.geterr().values()) == {"raise"}


def test_numpys_errors_elsewhere_are_raised() -> None:
    with np.errstate(all="raise"):
        with pytest.raises(FloatingPointError, match="divide by zero"):
            np.log(np.zeros(1))
        with pytest.raises(FloatingPointError, match="divide by zero"):
            quietly(NumpyBackend(), np.log, np.zeros(1))


def test_warnings_of_others_pass(strict: None) -> None:
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        np.log(np.zeros(1))
    x = bb.asarray(ZERO).require_grad()

    @bb.custom_vjp
    def noisy(x: Any) -> Any:
        return x * 1.0

    def backward(saved: Any, g: Any) -> Any:
        warnings.warn("mine", RuntimeWarning, stacklevel=1)
        return (g,)

    noisy.define(lambda x: (x * 1.0, None), backward)
    with pytest.raises(RuntimeWarning, match="mine"):
        noisy(x).sum().backward()
    with pytest.raises(RuntimeWarning, match="never raised"):
        silence(RuntimeWarning("never raised"), NumpyBackend())
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        quietly(NumpyBackend(), np.log, np.zeros(1))


def test_conformance_hears_no_warnings_that_a_backend_ignores(strict: None) -> None:
    """A test runner that drops the filters which modules set, as pytest does, is not held against the backend."""
    warnings.resetwarnings()
    report = check_backend("numpy", ops=["mul", "log"], kinds=["value", "special"])
    assert report.ok, report


def test_a_package_says_once_that_its_warnings_mean_nothing(strict: None) -> None:
    ignore_warnings("test_quiet_package")
    for module in ("test_quiet_package", "test_quiet_package.part"):
        warnings.warn_explicit("ignored", RuntimeWarning, "file.py", 1, module)
    with pytest.raises(RuntimeWarning, match="another"):
        warnings.warn_explicit("another", RuntimeWarning, "file.py", 1, "test_quiet_packages")
    PACKAGES.discard("test_quiet_package")
