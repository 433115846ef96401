"""Complex operands: operations with the letter C take them under every decorator, the others refuse with a reason.

The conformance suite checks samples and their derivatives. These tests run them at three sizes, below and above the
thresholds for kernels of the NumPy backend, and on a backend that passes complex operands only to operations with the
letter C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.complex_operands import (
    CLOSED,
    COMPUTED,
    DIFFERENTIABLE,
    DTYPES,
    NUMPY,
    SIZES,
    WITHOUT_OPERANDS,
    Call,
    cases_of,
    compare,
    elements_of,
    expected_of,
    operands_in,
    paired,
    smooth_cases,
)

import backburn as bb
from backburn.autodiff import Autodiff, Forward
from backburn.backend import load_backend
from backburn.backend.wrapper import Wrapper
from backburn.base.dtypes import ComplexDType, as_dtype
from backburn.base.errors import DTypeError
from backburn.conformance import check_backend
from backburn.conformance.checks import derivatives
from backburn.conformance.checks.kinds import COMPLEX_KINDS
from backburn.conformance.samples.calls import as_tuple, flatten, is_float, map_operands
from backburn.conformance.samples.derived.complex_operands import with_imaginary
from backburn.conformance.samples.table import SAMPLES, Sample
from backburn.ops.table import OPERATIONS
from backburn.tensor.core import complex_numbers
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.wrapping import is_tensor


class Closed(Wrapper):
    """Fail on complex operands of an operation without the letter C, and on results wider than the operands."""

    name = "closed"

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        dtypes = [self._inner.dtype(x) for x in flatten_lists(operands) if isinstance(x, np.ndarray)]
        has_complex = any(isinstance(d, ComplexDType) for d in dtypes)
        assert not has_complex or "C" in OPERATIONS[operation].kinds, f"{operation} is closed to complex operands"
        found = super().call(operation, *operands, **attributes)
        if has_complex and operation not in ("astype", "to_numpy", "to_numpy_many"):
            narrow = all(d.bits <= 64 for d in dtypes)
            for x in as_tuple(found):
                assert not narrow or x.dtype not in (np.complex128, np.float64), f"{operation} made {x.dtype}"
        return found


def flatten_lists(operands: Any) -> list[Any]:
    return [o for x in operands for o in (x if isinstance(x, list | tuple) else [x])]


CHECKED = Closed(NUMPY)


def test_samples_and_derivatives() -> None:
    """All samples, and their first and second derivatives, as the conformance suite checks them."""
    report = check_backend(NUMPY, kinds=COMPLEX_KINDS)
    assert report.ok, report.failures[:5]
    assert {r.id.partition("-")[0] for r in report.results} >= set(COMPUTED)


@pytest.mark.parametrize("name", COMPUTED)
def test_values_at_three_sizes(name: str) -> None:
    for size in SIZES:
        assert cases_of(name, size) or size, "no sample"
        for place, sample in enumerate(cases_of(name, size)[: 3 - size if size else None]):
            expected = expected_of(name, size, place)
            for dtype in DTYPES:
                operands = operands_in(name, sample, dtype)
                adds = float(elements_of(operands) if "prod" in name else elements_of(operands) ** 0.5)
                # CHECKED wraps NUMPY and calls its operations.
                for k in (NUMPY,) if size == 2 else (CHECKED,):
                    got = as_tuple(getattr(k, name)(*operands, **sample.attributes))
                    for g, e in zip(got, expected, strict=True):
                        compare(g, e, adds)
                        assert k.dtype(g).bits <= as_dtype(dtype).bits or name == "astype"


def close(got: float, expected: float, tolerance: float) -> None:
    assert abs(got - expected) <= tolerance * max(1.0, abs(expected)), (got, expected)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_agree(name: str) -> None:
    """Forward and reverse mode agree at both orders, also if only operations with the letter C may be called."""
    assert smooth_cases(name), "no sample"
    for sample in smooth_cases(name):
        one = Call(name, sample)
        for k in (NUMPY, CHECKED):
            grads = one.gradients(k, one.at)
            for g, x in zip(grads, one.at, strict=True):
                assert (g.shape, g.dtype) == (x.shape, x.dtype)
            first = sum(paired(g, t) for g, t in zip(grads, one.along, strict=True))
            f = Forward.level(k)
            outs = list(one.run(f, [f.dual(x, t) for x, t in zip(one.at, one.along, strict=True)]))
            outs = [x for x in outs if f.dtype(x).has_gradient]
            tangents = [f.tangent(x) for x in outs]
            pushed = sum(paired(w, t) for w, t in zip(one.weights, tangents, strict=True) if t is not None)
            close(pushed, first, 1e-12)
            assert all(t is None or t.dtype == x.value.dtype for t, x in zip(tangents, outs, strict=False))
        f = Forward.level(CHECKED)
        grads = one.gradients(f, [f.dual(x, t) for x, t in zip(one.at, one.along, strict=True)])
        pairs = zip(grads, one.along, strict=True)
        forward = sum(paired(g.tangent, t) for g, t in pairs if g.tangent is not None)
        a = Autodiff(CHECKED)
        xs = [a.set_require_grad(a.from_inner(x), True) for x in one.at]
        total: Any = None
        for g, t in zip(one.gradients(a, xs), one.along, strict=True):
            part = derivatives.paired(a, g, a.from_inner(t))
            total = part if total is None else a.add(total, part)
        reverse = 0.0
        if a.is_tracked(total):
            gradients = a.backward(total)
            found = [a.grad(x, gradients) for x in xs]
            reverse = sum(paired(g, t) for g, t in zip(found, one.along, strict=True) if g is not None)
        close(reverse, forward, 1e-9)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_large_operands_equal_those_in_the_wide_dtype(name: str, size: int) -> None:
    for sample in cases_of(name, size)[:1]:
        narrow, wide = (Call(name, Sample(tuple(operands_in(name, sample, d)), sample.attributes)) for d in DTYPES)
        narrow.weights = [w.astype(n.dtype) for w, n in zip(wide.weights, narrow.weights, strict=True)]
        expected = wide.gradients(NUMPY, wide.at)
        for g, e in zip(narrow.gradients(NUMPY, narrow.at), expected, strict=True):
            assert g.dtype.itemsize * 2 == e.dtype.itemsize
            compare(g, e, 64.0 * max(1.0, g.size**0.5 / 8))


def tensors(operands: Any, backend: str = "numpy") -> list[Any]:
    return map_operands(operands, lambda o: bb.asarray(o, backend=backend))


@pytest.mark.parametrize("size", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMPUTED)
def test_vmap_at_three_sizes(name: str, size: int) -> None:
    done = 0
    for dtype in DTYPES:
        for sample in cases_of(name, size)[: 1 if size else 2]:
            if any(isinstance(o, list) for o in sample.operands):
                continue
            stacked = [
                np.stack([o, (o * (0.5 + 0.25j)).astype(o.dtype) if o.dtype.kind == "c" else o])
                if isinstance(o, np.ndarray)
                else o
                for o in operands_in(name, sample, dtype)
            ]
            given = tensors(stacked)
            inside = [i for i, o in enumerate(given) if is_tensor(o)]

            def function(*xs: Any, given: Any = given, inside: Any = inside, sample: Any = sample) -> Any:
                full = list(given)
                for i, x in zip(inside, xs, strict=True):
                    full[i] = x
                return call(name, *full, **sample.attributes)

            mapped = bb.vmap(function)(*(given[i] for i in inside))
            for n in range(2):
                alone = function(*(given[i][n] for i in inside))
                for m, a in zip(as_tuple(mapped), as_tuple(alone), strict=True):
                    assert m.dtype is a.dtype
                    compare(m.numpy()[n], a.numpy(), 4 * elements_of(stacked) ** 0.5)
            done += 1
    assert done or size or any(OPERATIONS[name].lists)


RECORDED = [
    (size, dtype, pytest.mark.slow if size or dtype == "complex128" else ()) for size in SIZES for dtype in DTYPES
]


@pytest.mark.parametrize(("size", "dtype"), [pytest.param(size, dtype, marks=marks) for size, dtype, marks in RECORDED])
@pytest.mark.parametrize("name", COMPUTED)
def test_recorded(name: str, size: int, dtype: str) -> None:
    """Replayed and unrecorded steps are bitwise equal, with gradients, also at sizes that are fused for floats."""
    for sample in cases_of(name, size)[:1]:
        given = tensors(operands_in(name, sample, dtype))
        places = [i for i, o in enumerate(given) if is_tensor(o) and o.dtype.has_gradient]
        if not places:
            continue

        def step(*xs: Any, given: Any = given, places: Any = places, sample: Any = sample) -> Any:
            full = list(given)
            for i, x in zip(places, xs, strict=True):
                full[i] = x * 1.5
            out = as_tuple(call(name, *full, **sample.attributes))
            total = sum((bb.sum(bb.abs(x * x) + bb.real(x)) for x in out if x.dtype.has_gradient), bb.asarray(0.0))
            return out, total * 1.0

        def both(*xs: Any, step: Any = step) -> Any:
            out, _ = step(*xs)
            if not OPERATIONS[name].differentiable:
                return out
            return out, bb.grad(lambda *ys: step(*ys)[1], argnums=tuple(range(len(xs))))(*xs)

        xs = [given[i] for i in places]
        recorded = bb.capture(both, state=False)
        expected = bb.trees.flatten(both(*xs))[0]
        for _ in range(3):
            found = bb.trees.flatten(recorded(*xs))[0]
            for g, e in zip(found, expected, strict=True):
                assert g.dtype is e.dtype
                assert np.array_equal(g.numpy(), e.numpy(), equal_nan=True)


@pytest.mark.parametrize("name", sorted(WITHOUT_OPERANDS))
@pytest.mark.parametrize("dtype", [bb.complex64, bb.complex128])
def test_creation(name: str, dtype: Any) -> None:
    attributes: dict[str, Any] = {"shape": (2, 3)} if name != "eye" else {"n": 2, "m": 3, "offset": 1}
    if name == "full":
        attributes["value"] = 1.5 - 2j
    expected = {
        "full": np.full((2, 3), 1.5 - 2j), "zeros": np.zeros((2, 3)), "ones": np.ones((2, 3)), "eye": np.eye(2, 3, 1)
    }  # fmt: skip
    for spec in ("numpy", "null", "autodiff(numpy)", "forward(numpy)"):
        k: Any = load_backend(spec)
        made = getattr(k, name)(**attributes, dtype=dtype)
        assert k.dtype(made) is dtype
        assert tuple(made.shape) == (2, 3)
        if name in expected and spec != "null":
            np.testing.assert_array_equal(k.to_numpy(made), expected[name])


def complex_call(name: str, sample: Sample) -> Any:
    """Return a call of a sample through tensor functions, with complex tensors for the float ones."""
    operands = tensors(map_operands(sample.operands, lambda o: with_imaginary(o) if is_float(o) else o))
    return lambda: call(name, *operands, **sample.attributes)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_operations_refuse_with_a_reason(name: str) -> None:
    tried = 0
    for sample in SAMPLES[name].cases if name in SAMPLES else ():
        if not any(is_float(o) for o in flatten(sample.operands)):
            continue
        with pytest.raises(
            DTypeError, match=f"^{name}: takes no complex tensors: .*(order|rounded|bits|scheme|real).*"
        ):
            complex_call(name, sample)()
        tried += 1
    dtype = OPERATIONS[name].attributes.get("dtype")
    entry = OPERATIONS[name]
    assert tried or "F" not in entry.kinds or not entry.operands or dtype is not None, "no sample with floats"
    if not tried and entry.operands:  # an operation of integers, booleans or quantized tensors
        z = bb.asarray([1 + 2j, 3.0])
        with pytest.raises(DTypeError, match="takes no complex tensors"):
            call(name, *[z] * len(entry.operands))


def test_every_reason_is_used() -> None:
    assert complex_numbers.REASONS.keys() <= set(CLOSED) | {"sign"}
