"""No operation warns, also if a program turns all warnings, or NumPy's errors, into exceptions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.autodiff.tape import GradGraph, GradientTape, closures
from backburn.backend.adapters import PACKAGES, ignore_warnings
from backburn.base.errors import NumericalInstabilityError
from backburn.conformance import SAMPLES, check_backend
from backburn.conformance.samples.calls import (
    call,
    dtypes_of,
    is_float,
    map_operands,
    operands_of,
    same_bits,
    to_host,
    to_primitives,
)
from backburn.conformance.samples.derived.edge_values import samples_of
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

ZERO, BIG = [0.0, 1.0], [1e4, 6e4]

BASE = NumpyBackend()
LEVEL = Autodiff(BASE)


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
def test_nothing_raises_under_numpys_errstate(call: Callable[[], Any]) -> None:
    with np.errstate(all="raise"):
        call()
        assert set(np.geterr().values()) == {"raise"}


def edges(array: Any) -> Any:
    """Return an array of this shape and dtype with zeros, infinities, NaN, largest and negative numbers."""
    limits = np.finfo(array.dtype) if array.dtype.isbuiltin == 1 else np.finfo(np.float32)
    values = np.array([0.0, limits.max, -1.0, np.inf, limits.tiny, np.nan, -np.inf, -limits.max], array.dtype)
    return np.resize(values, array.shape)


def outcome(name: str, operands: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the results of an operation on the host, or the class of the error that it raises."""
    try:
        return to_host(BASE, name, call(BASE, name, to_primitives(BASE, operands), attributes))
    except Exception as error:
        return type(error)


def longer(x: Any) -> Any:
    """Repeat a vector of floats to a length for which kernels are used; return other operands unchanged."""
    return np.resize(x, (4096,)) if x.ndim == 1 and is_float(x) else x


@pytest.mark.parametrize("name", SAMPLES)
def test_an_operation_has_the_same_results_where_numpy_raises(name: str) -> None:
    for _, sample in samples_of(name):
        for dtype in dtypes_of(name, sample, BASE):
            given = operands_of(name, sample, dtype)
            changed = map_operands(given, lambda a: edges(a) if is_float(a) else a)
            # Only elementwise ones: other operations may give much larger results.
            large = map_operands(changed, longer) if OPERATIONS[name].elementwise else changed
            for operands in (given, changed, large):
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    # The first call of a formula decides how later ones compute it.
                    expected = [outcome(name, operands, sample.attributes) for _ in range(2)][1]
                with warnings.catch_warnings(), np.errstate(all="raise"):
                    warnings.resetwarnings()
                    warnings.simplefilter("error")
                    found = outcome(name, operands, sample.attributes)
                if isinstance(expected, type) or isinstance(found, type):
                    assert found is expected, operands
                else:
                    assert all(map(same_bits, found, expected)), operands


def test_threads_of_the_backend_are_quiet(strict: None) -> None:
    """Worker threads have neither the caller's ``np.errstate`` nor its warning filters."""
    x = np.full(3 << 20, -1.0)
    with np.errstate(all="raise"):
        results = [f(x) for f in (BASE.log, BASE.sqrt, BASE.acosh)]
    assert all(np.isnan(y).all() for y in results)


def test_numpys_errors_elsewhere_are_raised() -> None:
    with np.errstate(all="raise"):
        BASE.log(np.zeros(1))
        with pytest.raises(FloatingPointError, match="divide by zero"):
            np.log(np.zeros(1))


def test_warnings_of_others_pass(strict: None) -> None:
    BASE.log(np.zeros(1))
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


def test_conformance_ignores_warnings_that_a_backend_ignores(strict: None) -> None:
    """A runner such as pytest drops filters that modules set; the backend must still pass."""
    warnings.resetwarnings()
    report = check_backend("numpy", ops=["mul", "log"], kinds=["value", "special"])
    assert report.ok, report


def test_a_package_may_declare_its_warnings_ignored(strict: None) -> None:
    ignore_warnings("test_quiet_package")
    for module in ("test_quiet_package", "test_quiet_package.part"):
        warnings.warn_explicit("ignored", RuntimeWarning, "file.py", 1, module)
    with pytest.raises(RuntimeWarning, match="another"):
        warnings.warn_explicit("another", RuntimeWarning, "file.py", 1, "test_quiet_packages")
    PACKAGES.discard("test_quiet_package")
