"""ReLUs that a recording joins with an adjacent product, convolution or pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import DeviceMemoryError
from backburn.nn import functional as f
from backburn.programs.ir import Call, Program, Variable
from backburn.programs.passes.epilogues import EPILOGUE
from backburn_numpy import NumpyBackend, compiled
from backburn_numpy.ops import linalg
from backburn_numpy.programs import compiling, epilogues

pytestmark = pytest.mark.usefixtures("guarded_memory")

needs_kernels = pytest.mark.skipif(compiled.level() is None, reason="compiled kernels are not in use")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of compiled programs."""
    found: list[Any] = []

    def look(program: Any, k: Any) -> Any:
        found.extend(program.calls)
        return program.calls

    for name in ("PASSES", "WITHOUT_KERNELS"):
        *before, fusion = getattr(compiling, name)
        monkeypatch.setattr(compiling, name, (*before, look, fusion))
    return found


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(dtype)


def replays(function: Callable[..., Any], arrays: Any, spec: str) -> Any:
    """Value and gradients of a replay on other values than those recorded."""
    gradient = bb.value_and_grad(function, argnums=tuple(range(len(arrays))))
    captured = bb.capture(gradient, state=False, on_fallback="error")
    for n in range(4):
        value, grads = captured(*(bb.asarray(a * (1 - 0.1 * n), backend=spec) for a in arrays))
    assert captured.reason == ""
    return value.numpy(), [x.numpy() for x in grads]


def check(function: Callable[..., Any], *arrays: Any, sums: tuple[int, ...] = ()) -> None:
    """Compare with unjoined calls: gradients exactly, except those in ``sums``; those and the value within rounding."""
    value, grads = replays(function, arrays, "capture(numpy)")
    expected, others = replays(function, arrays, "capture(numpy, join=false)")
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for i, (x, y) in enumerate(zip(grads, others, strict=True)):
        if i in sums:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max())
        else:
            np.testing.assert_array_equal(x, y)


def kinds(calls: list[Any]) -> Counter[str]:
    return Counter(call.function.failed.operation if call.operation == EPILOGUE else call.operation for call in calls)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 4, 9), (2, 4, 8, 9)])
def test_calls_with_epilogues_on_small_operands(shape: tuple[int, ...], dtype: str) -> None:
    """The native programs of small operands must not look up its parameters: it is not an operation."""
    arrays = [normal(*shape, dtype=dtype), normal(2, 4, *(1,) * (len(shape) - 2), dtype=dtype)]
    found = []
    for spec in ("capture(numpy)", "capture(numpy, join=false)"):
        captured = bb.capture(lambda x, w: bb.relu(f.conv(x, w)), state=False, on_fallback="error")
        for _ in range(3):
            result = captured(*(bb.asarray(a, backend=spec) for a in arrays))
        found.append(result.numpy())
    np.testing.assert_array_equal(*found)


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [64, 61])
def test_linear_layers(calls: list[Any], rows: int, dtype: str) -> None:
    """``relu`` after a linear layer, and its gradient after the gradient of the next layer."""

    def loss(x: Any, w: Any, b: Any, v: Any) -> Any:
        return (f.relu(f.linear(f.relu(f.linear(x, w, b)), v)) ** 2.0).sum()

    check(loss, *(normal(*s, dtype=dtype) for s in ((rows, 601), (599, 601), (599,), (605, 599))))
    assert sum(call.operation == EPILOGUE for call in calls) == 3
    assert kinds(calls)["relu"] == 0


@needs_kernels
def test_stacks_of_rows(calls: list[Any]) -> None:
    """Inputs with more than two axes."""
    arrays = normal(4, 32, 520), normal(520, 520), normal(510, 520)
    check(lambda x, w, v: f.linear(f.relu(f.linear(x, w)), v).sum(), *arrays)
    assert sum(call.operation == EPILOGUE for call in calls) >= 1


@needs_kernels
@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((4, 3, 20, 20), (16, 3, 3, 3), {"padding": 1}),
        ((2, 8, 17, 19), (12, 8, 3, 3), {}),
        ((3, 5, 9, 9), (7, 5, 3, 3), {"stride": 2}),
        ((2, 4, 15, 15), (6, 2, 3, 3), {"groups": 2, "padding": 2, "dilation": 2}),
        ((2, 8, 12, 12), (9, 8, 1, 1), {}),
        ((300, 3, 5, 5), (16, 3, 5, 5), {}),
        ((2, 4, 400), (16, 4, 5), {"padding": 2}),
    ],
)
def test_convolutions(calls: list[Any], shape: Any, weight: Any, options: Any) -> None:
    """With the direct kernel, which has its own pass, and with others."""
    size = weight[2:]

    def loss(x: Any, w: Any, b: Any, v: Any) -> Any:
        y = f.relu(f.conv(f.relu(f.conv(x, w, b, **options)), v, padding=1))
        return (y * y).sum()

    check(loss, normal(*shape), normal(*weight), normal(weight[0]), normal(8, weight[0], *(3 for _ in size)))
    assert sum(call.operation == EPILOGUE for call in calls) == 3
    assert kinds(calls)["conv_transpose"] >= 1


POOLS: list[Any] = [(2, {}), (3, {"stride": 2, "padding": 1}), (2, {"stride": 3}), (2, {"stride": 2, "dilation": 2})]


@pytest.mark.parametrize(("size", "options"), POOLS)
def test_pools(calls: list[Any], size: int, options: Any) -> None:
    """The gradient of a ReLU before a pool uses the pooled values; the bias gradient sums fewer elements."""

    def loss(x: Any, w: Any, b: Any) -> Any:
        y = f.max_pool(f.relu(f.conv(x, w, b, padding=1)), size, **options)
        return (y * y * y).sum()

    check(loss, normal(4, 3, 14, 14), normal(8, 3, 3, 3), normal(8), sums=(2,))
    [mask] = [call for call in calls if call.operation == "relu_backward"]
    assert mask.results.shape[-1] < 14 * 14
    assert [call.operands[0] for call in calls if call.operation == "sum"][-1] is mask.results


def test_pools_of_sequences(calls: list[Any]) -> None:
    """Values and gradients of a 1-d pool have the shape of its indices: no view is needed."""
    check(lambda x: (f.max_pool(f.relu(x), 2) ** 2.0).sum(), normal(2, 3, 20))
    [mask] = [call for call in calls if call.operation == "relu_backward"]
    assert mask.results.shape == (2, 3, 10)


def test_pools_that_are_not_joined(calls: list[Any]) -> None:
    """If windows are as many as elements, or the ReLU's result is used elsewhere or is not the pool's operand."""
    x = normal(2, 3, 9, 9)

    def twice(x: Any) -> Any:
        y = f.relu(x)
        return (f.max_pool(y, 2) ** 2.0).sum() + y.sum()

    check(lambda x: (f.max_pool(f.relu(x), 3, stride=1, padding=1) ** 2.0).sum(), x)
    check(lambda x: (f.max_pool(f.relu(x) + 1.0, 2) ** 2.0).sum(), x)
    check(twice, x)
    masks = [call for call in calls if call.operation == "relu_backward"]
    assert len(masks) == 3
    assert all(mask.results.shape == x.shape for mask in masks)


def test_second_derivatives() -> None:
    """The gradient of a squared gradient, through ReLUs and pools."""

    def loss(x: Any, w: Any) -> Any:
        return (
            f.max_pool(f.relu(f.conv(f.max_pool(f.relu(f.conv(x, w, padding=1)), 2), w, padding=1)), 2) ** 3.0
        ).sum()

    def slope(x: Any, w: Any) -> Any:
        one, other = bb.grad(loss, argnums=(0, 1))(x, w)
        return (one * one).sum() + (other * other).sum()

    arrays = normal(2, 4, 12, 12), 0.3 * normal(4, 4, 3, 3)
    check(slope, *arrays, sums=(0, 1))
    _, grads = replays(slope, arrays, "capture(numpy)")
    expected = bb.grad(slope, argnums=(0, 1))(*(bb.asarray(0.7 * a, dtype=bb.float64, backend="numpy") for a in arrays))
    for x, y in zip(grads, expected, strict=True):
        np.testing.assert_allclose(x, y.numpy(), rtol=1e-3, atol=1e-4 * float(abs(y).max().item()))


@needs_kernels
def test_results_that_other_calls_read_are_not_joined(calls: list[Any]) -> None:
    """A layer whose result is returned, or read by another call, is not joined."""

    def loss(x: Any, w: Any) -> Any:
        y = f.linear(x, w)
        return f.relu(y).sum() + (y * y).sum()

    check(loss, normal(64, 600), normal(600, 600))
    assert not any(call.operation == EPILOGUE for call in calls)


@needs_kernels
def test_nan_and_zeros() -> None:
    """NaN passes through a ReLU but not its gradient, as without a recording."""
    x, w = normal(64, 600), normal(600, 600)
    x[3, 5] = np.nan
    x[4] = 0
    check(lambda x, w: f.relu(f.linear(f.relu(f.linear(x, w)), w)).sum(), x, w)
    image = normal(2, 3, 14, 14)
    image[0, 1, 2, 3] = np.nan
    image[1] = -np.abs(image[1])
    check(lambda x, w: (f.max_pool(f.relu(f.conv(x, w, padding=1)), 2) ** 2.0).sum(), image, normal(8, 3, 3, 3))


@needs_kernels
def test_a_training_step() -> None:
    """A network of these layers learns as without joining."""
    losses: dict[str, list[float]] = {}
    for spec in ("autodiff(capture(numpy))", "autodiff(capture(numpy, join=false))"):
        bb.random.seed(0)
        with bb.use_backend(spec):
            layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 10)
            state = nn.Sequential(*layers), bb.optim.SGD(0.05, momentum=0.9)
            x, labels = bb.asarray(normal(32, 1, 14, 14)), bb.asarray(np.arange(32) % 10)

        def step(state: Any, x: Any, labels: Any) -> Any:
            model, optimizer = state
            loss = f.cross_entropy(model(x), labels)
            optimizer.step(model, loss.backward())
            return state, loss

        train = bb.capture(step, on_fallback="error")
        found = losses[spec] = []
        for _ in range(20):
            state, loss = train(state, x, labels)
            found.append(loss.item())
    one, other = losses.values()
    np.testing.assert_allclose(one, other, rtol=1e-3)
    assert one[-1] < 0.6 * one[0]


@needs_kernels
def test_a_failing_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a call with an epilogue names the operation."""
    fails = False

    def linear(*values: Any) -> Any:
        if fails:
            raise MemoryError("none left")
        return linalg.linear_then(*values)

    monkeypatch.setitem(epilogues.FUNCTIONS, "linear", linear)
    x, w = (bb.asarray(normal(*s), backend="capture(numpy)") for s in ((64, 600), (600, 600)))
    captured = bb.capture(lambda x: f.relu(f.linear(x, w)), state=False, on_fallback="error")
    for _ in range(3):
        captured(x)
    fails = True
    with pytest.raises(DeviceMemoryError, match=r"linear: .*float32"):
        captured(x)


def test_subclasses_of_the_backend_are_not_joined() -> None:
    """A subclass may redefine an operation, so its calls stay separate."""

    class Other(NumpyBackend):
        pass

    x, y = (Variable(i, (600, 600), bb.float32) for i in range(2))
    for k, count in ((NumpyBackend(), 1), (Other(), 2)):
        product, made = Variable(2, x.shape, x.dtype), Variable(3, x.shape, x.dtype)
        calls = [Call("matmul", k.matmul, [x, y], {}, product), Call("relu", k.relu, [product], {}, made)]
        assert k.compile(Program(calls, [], [x, y], [[], [made]])).launches == count
