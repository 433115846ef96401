"""Observers, calibration, sensitivity, quantized activations and GPTQ."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, NumericalInstabilityError
from backburn.nn import (
    Conv2d,
    ConvTranspose1d,
    Dropout,
    Flatten,
    Linear,
    MultiheadAttention,
    QuantizedConv,
    QuantizedLinear,
    ReLU,
    Sequential,
)  # fmt: skip
from backburn.quantization import (
    MSE,
    AbsMean,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    calibrate,
    compensated,
    gptq,
    observe,
    quantize_model,
    sensitivity,
)  # fmt: skip
from backburn.quantization.observers import spread_out

RANDOM = np.random.default_rng(0)
INT4 = "qint4_symmetric_block8_float16"


def tensor(*shape: int) -> Any:
    return bb.asarray(RANDOM.standard_normal(shape).astype(np.float32))


def scheme(name: str) -> bb.QuantizedDType:
    found = bb.zeros((8, 8)).quantize(dtype=name).dtype
    assert isinstance(found, bb.QuantizedDType)
    return found


def ends(observer: Observer, name: str = "qint8_symmetric_tensor_float32") -> Any:
    return tuple(np.asarray(end) for end in observer.range(scheme(name)))


def model() -> Any:
    bb.random.seed(3)
    return Sequential(Linear(24, 32), ReLU(), Dropout(0.5), Linear(32, 8), ReLU(), Linear(8, 4))


MIXED = RANDOM.standard_normal((24, 24)).astype(np.float32)
BATCHES = [bb.asarray(np.maximum(RANDOM.standard_normal((32, 24)).astype(np.float32) @ MIXED, 0)) for _ in range(6)]


def error(m: Any, q: Any) -> float:
    x = bb.concat(BATCHES)
    y, z = (np.asarray(f.eval()(x).detach()) for f in (m, q))
    return float(((y - z) ** 2).sum() / (y**2).sum())


# ---- observers ----


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_ranges_are_those_of_numpy(axis: int | None) -> None:
    parts = [RANDOM.standard_normal((4, 6)).astype(np.float32) for _ in range(5)]
    observers = [
        MinMax(axis=axis), MovingAverage(0.5, axis=axis), Percentile(80, axis=axis),
        AbsMean(axis=axis),
    ]  # fmt: skip
    for part in parts:
        for o in observers:
            o.observe(bb.asarray(part))
    others = None if axis is None else 1 - axis % 2
    joined = np.stack(parts)
    rows: Any = joined.reshape(-1)
    if axis is not None:
        rows = np.moveaxis(joined, 1 + axis % 2, 0).reshape(joined.shape[1:][axis], -1)
    np.testing.assert_array_equal(ends(observers[0]), (rows.min(-1), rows.max(-1)))
    low = parts[0].min(others)
    for part in parts[1:]:
        low = 0.5 * low + 0.5 * part.min(others)
    np.testing.assert_allclose(ends(observers[1])[0], low, rtol=1e-6)
    np.testing.assert_allclose(ends(observers[2]), np.quantile(rows, [0.2, 0.8], axis=-1), rtol=1e-5, atol=1e-6)
    mean = np.abs(rows).mean(-1)
    np.testing.assert_allclose(ends(observers[3]), (-mean, mean), rtol=1e-5)
    assert all(o.count == rows.shape[-1] for o in observers)


def test_mse_is_the_best_candidate() -> None:
    x = np.concatenate([RANDOM.standard_normal(2000), [9.0]]).astype(np.float32)
    observer = MSE(candidates=20)
    observer.observe(bb.asarray(x))
    for name in ("qint4_symmetric_tensor_float32", "qint8_affine_tensor_float32"):
        low, high = ends(observer, name)

        def wrong(f: float, name: str = name) -> float:
            q = bb.asarray(x).quantize(dtype=name, low=float(x.min()) * f, high=float(x.max()) * f)
            return float(np.mean((q.numpy() - x) ** 2))

        chosen = high / x.max()
        assert low / x.min() == pytest.approx(chosen)
        assert all(wrong(float(chosen)) <= wrong(f) * 1.0001 for f in np.linspace(1, 0.2, 20))


def test_percentile_keeps_a_representative_sample() -> None:
    observer = Percentile(keep=1000, percent=90)
    for start in range(10):
        observer.observe(bb.arange(start * 1000, (start + 1) * 1000, dtype=bb.float32))
    assert observer.count == 10_000
    assert observer.values is not None
    assert observer.values.size <= 1000
    low, high = ends(observer)
    assert abs(low - 1000) < 150
    assert abs(high - 9000) < 150
    columns = np.asarray(spread_out(bb.arange(64, dtype=bb.float32).reshape(1, 64), 8))[0]
    assert len(set(columns % 8)) > 4  # not a stride that hits only one feature


@pytest.mark.parametrize("observer", [MinMax(), MovingAverage(), Percentile(), MSE(), AbsMean()])
def test_observers_refuse_invalid_values(observer: Any) -> None:
    name = type(observer).__name__
    with pytest.raises(ArgumentError, match=f"{name}.range: nothing was observed"):
        observer.range(scheme("qint8_symmetric_tensor_float32"))
    observer.observe(bb.zeros((0, 3)))
    assert observer.count == 0
    for bad in (np.nan, np.inf):
        with pytest.raises(NumericalInstabilityError, match=rf"{name}.observe.*finite.*float32\[2\]"):
            observer.observe(bb.asarray([1.0, bad]))
    with pytest.raises(DTypeError):
        observer.observe(bb.asarray([True]))
    observer.observe(bb.asarray(3.0))  # a single element
    low, high = ends(observer)
    q = bb.asarray(3.0).quantize(low=float(low), high=float(high))
    assert q.item() == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(
    "bad", [lambda: MovingAverage(momentum=1.0), lambda: Percentile(percent=50), lambda: MSE(least=0)]
)
def test_invalid_options_of_observers(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        bad()


@pytest.mark.parametrize("observer", [MinMax(), Percentile(percent=99.0), MSE(candidates=5), AbsMean()])
@pytest.mark.parametrize("part", ["tensor", "channel0", "channel1", "block5", "block64", "block4x5", "block64x64"])
def test_weight_ranges_have_the_shape_of_the_steps(observer: Any, part: str) -> None:
    x = tensor(6, 13)
    chosen = scheme(f"qint4_affine_{part}_float16")
    low, high = observer.weight_range(x, chosen)
    q = x.quantize(dtype=chosen, low=low, high=high)
    if isinstance(observer, MinMax):
        np.testing.assert_array_equal(q.numpy(), x.quantize(dtype=chosen).numpy())
    assert q.error(x) < 4.0


@pytest.mark.parametrize("part", ["tensor", "channel0", "block4", "block5"])
def test_ternary_weights_are_those_of_the_paper(part: str) -> None:
    """``clip(round(w / mean(abs(w))), -1, 1) * mean(abs(w))``."""
    x = tensor(6, 20)
    chosen = scheme(f"qint2_symmetric_{part}_float32")
    q = x.quantize(dtype=chosen, **dict(zip(("low", "high"), AbsMean().weight_range(x, chosen), strict=True)))
    rows = x.numpy().reshape(-1, {"tensor": 120, "channel0": 20, "block4": 4, "block5": 5}[part])
    mean = np.abs(rows).mean(-1, keepdims=True)
    expected = np.clip(np.round(rows / mean), -1, 1) * mean
    np.testing.assert_allclose(q.numpy(), expected.reshape(6, 20), rtol=1e-6)
    assert q.nbytes == 6 * 20 // 4 + 4 * len(mean)
    small = quantize_model(model(), chosen.name, weights=AbsMean())
    assert small.state_dict()["0.weight"].dtype is chosen


def test_mse_weights_have_a_smaller_error() -> None:
    m = model()
    for name in ("qint4_symmetric_channel0_float32", "qint4_symmetric_tensor_float32"):
        w = m[0].weight.detach()
        low, high = MSE().weight_range(w, scheme(name))
        q, plain = w.quantize(dtype=name, low=low, high=high), w.quantize(dtype=name)
        assert ((q.numpy() - w.numpy()) ** 2).mean() <= ((plain.numpy() - w.numpy()) ** 2).mean()


# ---- calibration ----


def test_observing_changes_nothing() -> None:
    m = model().eval()
    watched, found = observe(m, MovingAverage(), ("0", "5"))
    np.testing.assert_array_equal(watched(BATCHES[0]).detach().numpy(), m(BATCHES[0]).detach().numpy())
    assert list(found) == ["0", "5"]
    assert found["0"] is not found["5"]
    assert "forward" not in vars(m[0])
    x = np.asarray(BATCHES[0])
    np.testing.assert_array_equal(ends(found["0"]), (x.min(), x.max()))


def test_calibration_uses_evaluation_mode() -> None:
    m = model().train()
    found = calibrate(m, BATCHES)
    assert m.training
    assert m[2].training
    hidden = np.concatenate([np.maximum(np.asarray(m[0](x).detach()), 0) for x in BATCHES])
    np.testing.assert_allclose(ends(found["3"]), (0, hidden.max()), rtol=1e-5)  # dropout was inactive
    assert calibrate(m, [(x,) for x in BATCHES])["0"].count == found["0"].count
    with pytest.raises(ArgumentError, match="no batch"):
        calibrate(m, [])
    with pytest.raises(ArgumentError, match=r"observe: no layer's path matches 'x'. Layers: 0, 3, 5"):
        calibrate(m, BATCHES, pattern="x")


@pytest.mark.parametrize("activations", ["quint8_affine_tensor_float32", "qint8_symmetric_tensor_float32"])
@pytest.mark.parametrize("static", [True, False])
def test_quantized_activations(activations: str, static: bool) -> None:
    m = model().eval()
    found = calibrate(m, BATCHES) if static else None
    q = quantize_model(m, "qint8_symmetric_channel0_float32", activations=activations, inputs=found)
    assert error(m, q) < 1e-3
    # Integers are multiplied: the result is exactly that of the dequantized values.
    x = BATCHES[0]
    layer = q[0]
    rounded = x.quantize(dtype=activations, low=layer.low, high=layer.high).numpy().astype(float)
    expected = rounded @ layer.weight.numpy().T.astype(float) + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    # With tracked inputs, a straight-through gradient passes.
    leaf = x.require_grad()
    y = layer(leaf)
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert leaf.grad(y.sum().backward()) is not None
    again = pickle.loads(pickle.dumps(q))
    np.testing.assert_array_equal(again(x).numpy(), q(x).numpy())
    other = quantize_model(m, "qint8_symmetric_channel0_float32", activations=activations, inputs=found)
    other.load_state_dict(q.state_dict())
    if static:
        assert {"0.low", "0.high"} <= set(q.state_dict())
        with pytest.raises(ArgumentError, match="no range for the inputs of '5'"):
            quantize_model(m, activations=activations, inputs={p: o for p, o in (found or {}).items() if p != "5"})


def test_static_ranges_need_per_tensor_schemes() -> None:
    with pytest.raises(ArgumentError, match="block4"):
        QuantizedLinear(Linear(4, 4), activations="qint8_symmetric_block4_float32", inputs=calibrate(
            Sequential(Linear(4, 4)), [bb.ones((2, 4))])["0"])  # fmt: skip
    with pytest.raises(ArgumentError, match="channel axis of inputs is not negative"):
        QuantizedLinear(Linear(4, 4), activations="qint8_symmetric_channel-1_float32")


def test_convolutions_and_attention() -> None:
    bb.random.seed(0)
    m = Sequential(Conv2d(3, 8, 3, padding=1, groups=1), ReLU(), Flatten(), Linear(8 * 36, 5))
    x = tensor(4, 3, 6, 6)
    q = quantize_model(m, "qint8_symmetric_channel0_float32")
    assert [type(layer) for layer in q][::3] == [QuantizedConv, QuantizedLinear]
    np.testing.assert_allclose(q(x).numpy(), m(x).detach().numpy(), atol=0.02)
    assert calibrate(m, [x])["0"].count == x.size
    q.load_state_dict(copy.deepcopy(q).state_dict())
    turned = Sequential(ConvTranspose1d(4, 6, 3, stride=2))
    y = tensor(2, 4, 5)
    np.testing.assert_allclose(
        quantize_model(turned, "qint8_affine_block4_float32")(y).numpy(), turned(y).detach().numpy(), atol=0.05
    )
    attention: Any = Sequential(MultiheadAttention(8, 2))
    z = tensor(2, 3, 8)
    small: Any = quantize_model(attention, "qint8_symmetric_channel0_float32", "*.q_proj")
    assert isinstance(small[0].q_proj, QuantizedLinear)
    assert isinstance(small[0].k_proj, Linear)
    np.testing.assert_allclose(small(z).detach().numpy(), attention(z).detach().numpy(), atol=0.02)


# ---- sensitivity ----


def test_the_most_sensitive_layer_can_be_skipped() -> None:
    m = model().eval()
    table = sensitivity(m, BATCHES, "qint4_symmetric_tensor_float32")
    costs = {layer.path: layer.cost for layer in table.layers}
    for path, cost in costs.items():
        assert error(m, quantize_model(m, "qint4_symmetric_tensor_float32", path)) == pytest.approx(cost, rel=1e-3)
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    (worst,) = table.worst(1)
    q = quantize_model(m, "qint4_symmetric_tensor_float32", skip=table.worst(1))
    assert isinstance(q[int(worst)], Linear)
    assert table.above(1e9) == ()
    lines = str(table).splitlines()
    assert lines[0].split()[:3] == ["layer", "relative", "error"]
    assert lines[1].split()[0] == worst
    assert {layer.before for layer in table.layers} == {4 * 24 * 32, 4 * 32 * 8, 4 * 8 * 4}
    scored = sensitivity(m, [], "qint8_symmetric_tensor_float32", score=lambda f: error(m, f))
    assert scored.unit == "score increase"
    with pytest.raises(ArgumentError, match="nothing can be measured"):
        sensitivity(m, [], "qint8_symmetric_tensor_float32")


# ---- GPTQ ----


@pytest.mark.parametrize(
    "name",
    [
        INT4, "qint4_affine_channel0_float32", "qint4_symmetric_tensor_float32", "qint4_affine_channel1_float32",
        "qint4_affine_block5_float16", "qint4_symmetric_block3x8_float16", "qfloat8_e5m2_symmetric_channel0_float32",
    ],
)  # fmt: skip
def test_compensated_errors_are_smaller(name: str) -> None:
    m = model()
    q = gptq(m, BATCHES, name)
    assert [type(layer).__name__ for layer in q][::3] == ["QuantizedLinear"] * 2
    assert error(m, q) < 0.8 * error(m, quantize_model(m, name))
    assert q[0].weight.dtype == name


def test_gptq_with_quantized_inputs() -> None:
    m, activations = model(), "quint8_affine_tensor_float32"
    found = calibrate(m, BATCHES)
    q = gptq(m, BATCHES, INT4, activations=activations, inputs=found)
    assert [layer.activations for layer in (q[0], q[3], q[5])] == [activations] * 3
    assert error(m, q) < 0.8 * error(m, quantize_model(m, INT4, activations=activations, inputs=found))
    with pytest.raises(ArgumentError, match="gptq: there is no range for the inputs of '0'"):
        gptq(m, BATCHES, INT4, activations=activations, inputs={})


def test_gptq_is_the_algorithm_of_the_paper() -> None:
    """Column by column, with the inverse Hessian of the remaining weights, as in equations 2 and 3."""
    w, x = RANDOM.standard_normal((5, 7)), RANDOM.standard_normal((40, 7))
    hessian = x.T @ x
    chosen = scheme("qint4_symmetric_channel0_float32")
    got, (low, high) = compensated(bb.asarray(w), bb.asarray(hessian), chosen, damping=0.05)
    rest, damped = w.copy(), hessian + 0.05 * np.mean(np.diag(hessian)) * np.eye(7)
    rounded = np.zeros_like(w)
    for j in range(7):
        inverse = np.linalg.inv(damped[j:, j:])
        column = bb.asarray(rest[:, j]).quantize(dtype=chosen, low=low, high=high)
        rounded[:, j] = column.dequantize(dtype="float64").numpy()
        rest[:, j:] -= np.outer((rest[:, j] - rounded[:, j]) / inverse[0, 0], inverse[0])
    np.testing.assert_allclose(got.numpy(), rounded, atol=1e-10)


def test_gptq_stores_the_chosen_weights_exactly() -> None:
    m: Any = Sequential(Linear(16, 6))
    x = tensor(64, 16)
    wide = bb.asarray(np.asarray(x, np.float64))
    got, _ = compensated(m[0].weight.detach(), wide.T @ wide, scheme(INT4))
    np.testing.assert_array_equal(gptq(m, [x], INT4)[0].weight.dequantize(dtype="float64").numpy(), got.numpy())


def test_inputs_that_are_always_zero() -> None:
    x = np.array(tensor(32, 24))
    x[:, 3] = 0
    m = Sequential(Linear(24, 4))
    q: Any = gptq(m, [bb.asarray(x)], INT4)
    assert not q[0].weight.numpy()[:, 3].any()
    assert error_on(m, q, x) < 0.1


def error_on(m: Any, q: Any, x: Any) -> float:
    y, z = (np.asarray(f(bb.asarray(x)).detach()) for f in (m, q))
    return float(((y - z) ** 2).sum() / (y**2).sum())


def test_gptq_refuses_invalid_inputs() -> None:
    with pytest.raises(ArgumentError, match="no data reach the layer '0'"):
        gptq(model(), [], INT4)
    with pytest.raises(NumericalInstabilityError, match=r"3 inputs is not positive definite.*damping"):
        compensated(bb.ones((2, 3)), bb.asarray([[1.0, 2, 0], [2, 1, 0], [0, 0, 1]]), scheme(INT4), damping=0.0)
    with pytest.raises(ArgumentError, match="float32 is not a scheme"):
        gptq(model(), BATCHES, "float32")
    damped: Any = (-0.1, float("nan"), "much")
    for damping in damped:
        with pytest.raises(ArgumentError, match=r"gptq: damping is a (finite )?number"):
            gptq(model(), BATCHES, INT4, damping=damping)


def test_gptq_of_some_layers() -> None:
    first, others = gptq(model(), BATCHES, INT4, "0"), gptq(model(), BATCHES, INT4, skip=("0",))
    assert [type(first[i]) for i in (0, 3, 5)] == [QuantizedLinear, Linear, Linear]
    assert [type(others[i]) for i in (0, 3, 5)] == [Linear, QuantizedLinear, QuantizedLinear]
