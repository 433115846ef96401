"""Quantized operands of float operations: dequantized, and requantized on a backend that propagates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, BackburnError, DTypeError
from backburn.conformance.samples.table import SAMPLES, Sample
from backburn.ops.table import OPERATIONS
from backburn.tensor.core.propagate import QUANTIZED_FAMILIES

PROPAGATE = "autodiff(numpy(quantized=propagate))"
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
SCHEMES = [
    "qint8_symmetric_tensor_float32", "quint8_affine_channel1_float32", "qint4_symmetric_block3_float16",
    "qint8_affine_block2x3_float32",
]  # fmt: skip


def sample_of(name: str) -> Sample | None:
    """The first sample whose first operand is a finite float array with several elements."""
    for sample in SAMPLES[name].cases if name in SAMPLES else ():
        floats = [i for i, o in enumerate(sample.operands) if isinstance(o, np.ndarray) and o.dtype.kind == "f"]
        if floats and floats[0] == 0 and np.size(sample.operands[0]) > 1 and np.isfinite(sample.operands[0]).all():
            return sample
    return None


def called(name: str, sample: Sample, first: Any, backend: str) -> Any:
    """The result of the tensor function for a sample with another first operand."""
    others = [bb.asarray(o.astype(np.float32) if o.dtype.kind == "f" else o, backend=backend)
              if isinstance(o, np.ndarray) else o for o in sample.operands[1:]]  # fmt: skip
    return getattr(bb, name)(first, *others, **sample.attributes)


def functions() -> list[str]:
    """The float operations whose tensor function has the operation's arguments."""
    found = []
    for name, entry in OPERATIONS.items():
        sample = sample_of(name)
        if "F" not in entry.kinds or "Q" in entry.kinds or entry.family in QUANTIZED_FAMILIES or sample is None:
            continue
        if entry.family not in ("random", "index") and name != "stop_gradient" and hasattr(bb, name):
            try:
                called(name, sample, bb.asarray(sample.operands[0].astype(np.float32)), "autodiff(numpy)")
            except (TypeError, BackburnError):  # arguments differ
                continue
            found.append(name)
    return found


NAMES = functions()


def test_enough_operations_are_tested() -> None:
    assert len(NAMES) > 90


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_takes_quantized_operands(name: str) -> None:
    sample = sample_of(name)
    assert sample is not None
    x = bb.asarray(sample.operands[0].astype(np.float32))
    q = x.quantize()
    got = as_list(called(name, sample, q, "autodiff(numpy)"))
    expected = as_list(called(name, sample, q.dequantize(), "autodiff(numpy)"))
    for y, z in zip(got, expected, strict=True):
        assert y.dtype is z.dtype
        # matmul of a quantized left operand multiplies integers block by block.
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-5 if name == "matmul" else 0)


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_results_are_quantized_again(scheme: str) -> None:
    q = bb.asarray(X, backend=PROPAGATE).quantize(dtype=scheme)
    plain = q.dequantize()
    for f in (
        lambda x: x + 1.0, lambda x: 1.0 - x, lambda x: x * x, bb.tanh, lambda x: bb.softmax(x, axis=1), bb.sort,
        lambda x: bb.where(bb.asarray(X > 0, backend=PROPAGATE), x, 0.0), lambda x: bb.cumulative_sum(x, axis=0),
    ):  # fmt: skip
        got = f(q)
        assert type(got) is bb.QuantizedTensor
        assert got.dtype is q.dtype
        np.testing.assert_array_equal(got.numpy(), f(plain).quantize(dtype=scheme).numpy())
    total: Any = q.sum()  # a scalar has no channel axis or blocks
    assert total.dtype.granularity == "tensor"
    assert total.item() == pytest.approx(plain.sum().item(), rel=1e-2)


def test_functions_of_several_operations() -> None:
    """They may round intermediate results; results are float or quantized tensors."""
    from backburn.nn import functional

    q = bb.asarray(X, backend=PROPAGATE).quantize(dtype="quint8_affine_tensor_float32").abs()
    x, classes = q.dequantize(), (bb.FloatTensor, bb.QuantizedTensor)
    for f in (
        bb.cov, lambda x: functional.kl_div_loss(x, x), lambda x: functional.binary_cross_entropy_with_logits(x, x),
        lambda x: bb.cumulative_sum(-x, axis=0), lambda x: functional.elu(-x),
    ):  # fmt: skip
        got = f(q)
        assert type(got) in classes
        np.testing.assert_allclose(got.numpy(), f(x).numpy(), atol=0.1)


def test_results_that_are_not_requantized() -> None:
    q = bb.asarray(X, backend=PROPAGATE).quantize()
    assert (q + q.dequantize()).dtype == "float32"  # a float operand
    assert (q > 0.0).dtype == "bool"
    assert q.argmax().dtype == "int64"
    assert q.astype("float64").dtype == "float64"
    assert bb.quantized_matmul(q, q.T).dtype == "float32"
    tracked = q.dequantize().require_grad()
    grads = (q * tracked).sum().backward()
    np.testing.assert_array_equal(np.asarray(tracked.grad(grads)), q.numpy())


def test_gradients_flow_through_the_float_operand() -> None:
    q, x = bb.asarray(X).quantize(dtype=SCHEMES[2]), bb.asarray(X).require_grad()
    np.testing.assert_array_equal(np.asarray(x.grad((x * q).sum().backward())), q.numpy())
    assert not (q * 2.0).is_tracked


def test_the_policy_is_an_option_of_the_spec() -> None:
    k = bb.load_backend("numpy(quantized=propagate)")
    assert k is bb.load_backend(k.spec)
    assert k.capabilities.propagates
    assert bb.load_backend("numpy(quantized=inhibit)") is bb.load_backend("numpy")
    with pytest.raises(ArgumentError, match="inhibit or propagate, not 'maybe'"):
        bb.load_backend("numpy(quantized=maybe)")


def test_meaningless_operations_are_refused() -> None:
    q: Any = bb.asarray(X).quantize(dtype=SCHEMES[1])
    for bad in (
        lambda: q & q,
        lambda: bb.logical_not(q),
        lambda: q[q.dequantize() > 0],
        lambda: q.quantize(),
        lambda: q.at[0].set(1.0),
        lambda: q[[0, 1], [1, 2]],
    ):
        with pytest.raises(DTypeError, match="quint8_affine_channel1_float32"):  # fmt: skip
            bad()
