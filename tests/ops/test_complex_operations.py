"""Complex operands of every operation: those with the letter C under every decorator, the others refused with a reason.

Operands are those of the conformance samples, with an imaginary part, at three sizes: as written, and longer twice, so
that they lie below and above the sizes from which the kernels of the NumPy backend pay.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import backburn as bb
import backburn.conformance.runner.suite as _suite  # noqa: F401 - fills the table of samples
from backburn.autodiff import Autodiff, Forward
from backburn.backend import load_backend
from backburn.backend.wrapper import Wrapper
from backburn.base.dtypes import ComplexDType, as_dtype
from backburn.base.errors import DTypeError
from backburn.conformance.samples.calls import as_tuple, flatten, is_float, map_operands
from backburn.conformance.samples.decompositions import eig, matrix
from backburn.conformance.samples.derived.stretched import stretched, stretches
from backburn.conformance.samples.table import SAMPLES, Sample, case, real
from backburn.ops.table import OPERATIONS, contract_operations
from backburn.tensor.core import complex_numbers
from backburn.tensor.core.dispatch import call
from backburn.tensor.core.wrapping import is_tensor

NUMPY, NULL = load_backend("numpy"), load_backend("null")
#: Operations with complex results or operands for which float64 references do not stand.
OWN: dict[str, tuple[Any, tuple[Sample, ...]]] = {
    "complex": (
        lambda x, y: x + 1j * y,
        (case(real(2, 3), real(3)), case(real(3), 0.5), case(-0.5, real(2, 2)), case(real(0, 2), real(0, 2))),
    ),
    "astype": (lambda x, dtype: x, (case(real(2, 3), dtype=bb.complex128), case(real(0, 2), dtype=bb.complex128))),
    "prod_of_others": (
        lambda x, axis: x.prod(axis, keepdims=True) / x,
        (case(real(2, 3), axis=(1,)), case(real(2, 3, 2), axis=(0, 2)), case(real(2, 3), axis=())),
    ),
    "real": (np.real, (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "imag": (np.imag, (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "conj": (np.conj, (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "modulus": (np.abs, (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "phase": (lambda x: x / np.abs(x), (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "angle": (np.angle, (case(real(2, 3)), case(real()), case(real(0, 2)))),
    "eig": (eig, (case(matrix(3, 3)), case(matrix(2, 2, 2)), case(np.zeros((0, 2, 2))))),
    "eigvals": (lambda x: eig(x)[0], (case(matrix(3, 3)), case(matrix(2, 2, 2)))),
}
WITHOUT_OPERANDS = {"full", "zeros", "ones", "empty", "eye"}
#: Operations with the letter C whose calls need more than operands: read on the host, or of a shape that data decide.
TO_HOST = {"from_numpy", "to_numpy", "to_numpy_many", "masked_select", "nonzero"}
OPEN = [op.name for op in contract_operations() if "C" in op.kinds or "complex" in op.results]
CLOSED = [op.name for op in contract_operations() if op.name not in OPEN]
COMPUTED = [name for name in OPEN if name not in WITHOUT_OPERANDS | TO_HOST]


class Closed(Wrapper):
    """Refuses complex operands of operations without the letter C, which nothing may call, and wider results."""

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


def with_imaginary(x: Any) -> Any:
    """Float64 values with imaginary parts, the same at every call."""
    generator = np.random.default_rng(x.size)
    return np.asarray(x + 1j * generator.uniform(0.2, 1.0, x.shape) * generator.choice([-1.0, 1.0], x.shape))


def is_complex(x: Any) -> bool:
    return bool(x.dtype.kind == "c")


def is_inexact(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "fc"


def cases_of(name: str, size: int) -> Iterator[tuple[Any, Sample]]:
    """The reference and the samples of an operation with finite complex operands, of one of three sizes."""
    reference, cases = OWN.get(name) or (SAMPLES[name].reference, SAMPLES[name].cases)
    for index, sample in enumerate(cases):
        floats = [o for o in flatten(sample.operands) if is_float(o)]
        if not floats or not all(np.isfinite(o).all() for o in floats):
            continue
        if size:
            if index > 1 and OPERATIONS[name].family == "decompositions":
                continue
            sample = longer(name, index, sample, size)
            if sample is None or not any(o.size for o in flatten(sample.operands) if is_float(o)):
                continue
        if name != "complex":
            operands = map_operands(sample.operands, lambda o: with_imaginary(o) if is_float(o) else o)
            if "prod" in name:  # products of many numbers neither overflow nor vanish
                large = any(o.size > 100 or np.abs(o).max(initial=0) > 100 for o in flatten(operands) if is_inexact(o))
                operands = map_operands(operands, lambda o: o / np.abs(o)) if large else operands
            if name == "cholesky":
                operands = [o @ o.conj().swapaxes(-1, -2) + np.eye(o.shape[-1]) for o in operands]
            sample = Sample(tuple(operands), sample.attributes, sample.smooth)
        yield reference, sample


def longer(name: str, index: int, sample: Sample, size: int) -> Any:
    if name in OWN:
        lengths: tuple[int, ...] = (3, (1_031, 66_047)[size - 1])
        if OPERATIONS[name].family == "decompositions":
            lengths = (3, *((9, 31)[size - 1],) * 2)
        operands = tuple(real(*lengths, seed=i) for i in range(len(sample.operands)))
        return Sample(operands, sample.attributes) if index == 0 else None
    found = stretches(name, index, size - 1)
    return stretched(name, index, found[0]) if found else None


def cast(operands: Any, dtype: str) -> list[Any]:
    """Operands of complex128, and of float64, in a dtype and the one of its parts."""
    parts = {"c": np.dtype(dtype), "f": np.dtype("float32" if dtype == "complex64" else "float64")}
    with np.errstate(over="ignore"):
        return map_operands(operands, lambda o: o.astype(parts[o.dtype.kind]) if is_inexact(o) else o)


def compare(got: Any, expected: Any, factor: float = 1.0) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    if got.dtype.kind not in "fc":
        assert np.array_equal(got, expected)
        return
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(got))
    got, expected = got[finite], expected[finite]
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    eps = np.finfo(got.dtype).eps
    np.testing.assert_allclose(got, expected, rtol=0, atol=factor * 8 * eps * scale)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", COMPUTED)
def test_values_at_three_sizes(name: str, dtype: str) -> None:
    tried = 0
    for size in range(3):
        for reference, sample in cases_of(name, size):
            operands = cast(sample.operands, dtype)
            wide = cast(operands, "complex128")
            with np.errstate(all="ignore"):
                expected = as_tuple(reference(*wide, **sample.attributes))
            for k in (CHECKED, NUMPY):
                got = as_tuple(getattr(k, name)(*map_operands(operands, k.from_numpy), **sample.attributes))
                elements = max(1, sum(o.size for o in flatten(operands) if is_inexact(o)))
                adds = float(elements if "prod" in name else elements**0.5)
                for g, e in zip(got, expected, strict=True):
                    compare(k.to_numpy(g), e, adds)
                    assert k.dtype(g).bits <= as_dtype(dtype).bits or name == "astype"
                on_null = getattr(NULL, name)(*map_operands(operands, NULL.from_numpy), **sample.attributes)
                for g, e in zip(got, as_tuple(on_null), strict=True):
                    assert (k.dtype(g), g.shape) == (NULL.dtype(e), e.shape)
            tried += 1
    assert tried


def paired(a: Any, b: Any) -> float:
    """The real part of the sum of products, which pairs cotangents of the contract with tangents."""
    return float(np.sum(a * b).real)


@cache
def smooth_cases(name: str) -> list[Any]:
    return [
        (r, s) for r, s in cases_of(name, 0) if s.smooth and any(o.size for o in flatten(s.operands) if is_inexact(o))
    ][: 9 if OPERATIONS[name].family == "decompositions" else 6]


DIFFERENTIABLE = [name for name in COMPUTED if OPERATIONS[name].differentiable]


class Call:
    """One call as a function of its float operands, at a point and along a direction."""

    def __init__(self, name: str, sample: Sample) -> None:
        self.name, self.sample = name, sample
        self.at = [o for o in flatten(sample.operands) if is_inexact(o)]
        generator = np.random.default_rng(3)
        self.along, self.across = (
            [self.noise(generator, o.shape, o.dtype.kind == "c") for o in self.at] for _ in range(2)
        )
        outs = self.run(NUMPY, [NUMPY.from_numpy(o) for o in self.at])
        kinds = [x for x in outs if x.dtype.kind in "fc"]
        self.weights = [self.noise(generator, x.shape, x.dtype.kind == "c").astype(x.dtype) for x in kinds]

    @staticmethod
    def noise(generator: Any, shape: Any, is_complex: bool) -> Any:
        found = generator.uniform(-1, 1, shape)
        return np.asarray(found + 1j * generator.uniform(-1, 1, shape) if is_complex else found)

    def run(self, k: Any, primitives: Any) -> tuple[Any, ...]:
        remaining = iter(primitives)
        operands = map_operands(self.sample.operands, lambda o: next(remaining) if is_inexact(o) else k.from_numpy(o))
        return as_tuple(getattr(k, self.name)(*operands, **self.sample.attributes))

    def at_step(self, h: float) -> list[Any]:
        return [o + h * t for o, t in zip(self.at, self.along, strict=True)]

    def loss(self, points: Any) -> float:
        outs = [x for x in self.run(NUMPY, [np.asarray(p) for p in points]) if x.dtype.kind in "fc"]
        return sum(paired(w, x) for w, x in zip(self.weights, outs, strict=True))

    def gradients(self, k: Any, primitives: Any) -> list[Any]:
        """The gradients of the weighted sum by the operands, primitives of ``k``."""
        a = Autodiff(k)
        xs = [a.set_require_grad(a.from_inner(x), True) for x in primitives]
        outs = [x for x in self.run(a, xs) if a.dtype(x).has_gradient]
        found: list[Any] = [None] * len(xs)
        for w, out in zip(self.weights, outs, strict=True):
            if a.is_tracked(out):
                grads = a.backward(out, k.from_numpy(w), retain_graph=True)
                new = [a.grad(x, grads) for x in xs]
                found = [n if f is None else f if n is None else k.add(f, n) for f, n in zip(found, new, strict=True)]
        return [k.zeros(x.shape, k.dtype(x)) if g is None else g for g, x in zip(found, primitives, strict=True)]

    def slope(self, points: Any) -> float:
        """The derivative along the direction, by the gradients."""
        grads = self.gradients(NUMPY, [np.asarray(p) for p in points])
        return sum(paired(g, t) for g, t in zip(grads, self.along, strict=True))


def difference(function: Any, call: Call, step: float = 1e-5) -> Any:
    """The derivative along the direction by central differences, of the fourth order."""
    one, two = ((function(call.at_step(h)) - function(call.at_step(-h))) / (2 * h) for h in (step * 50, step * 100))
    return (4 * one - two) / 3


def close(got: float, expected: float, tolerance: float = 1e-8) -> None:
    assert abs(got - expected) <= tolerance * max(1.0, abs(expected)), (got, expected)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives(name: str) -> None:
    """Reverse and forward, first and second order, against central differences over both parts."""
    assert smooth_cases(name), "no sample"
    for _, sample in smooth_cases(name):
        call = Call(name, sample)
        for k in (NUMPY, CHECKED):
            grads = call.gradients(k, call.at)
            for g, x in zip(grads, call.at, strict=True):
                assert (g.shape, g.dtype) == (x.shape, x.dtype)
            first = sum(paired(g, t) for g, t in zip(grads, call.along, strict=True))
            close(first, difference(call.loss, call))
            f = Forward.level(k)
            outs = list(call.run(f, [f.dual(x, t) for x, t in zip(call.at, call.along, strict=True)]))
            outs = [x for x in outs if f.dtype(x).has_gradient]
            tangents = [f.tangent(x) for x in outs]
            pushed = sum(paired(w, t) for w, t in zip(call.weights, tangents, strict=True) if t is not None)
            close(pushed, first, 1e-12)
            assert all(t is None or t.dtype == x.value.dtype for t, x in zip(tangents, outs, strict=False))
        # The second derivative along the direction: reverse over reverse, and forward over reverse.
        expected = difference(call.slope, call)
        f = Forward.level(CHECKED)
        grads = call.gradients(f, [f.dual(x, t) for x, t in zip(call.at, call.along, strict=True)])
        close(
            sum(paired(g.tangent, t) for g, t in zip(grads, call.along, strict=True) if g.tangent is not None),
            expected,
            1e-7,
        )
        a = Autodiff(CHECKED)
        xs = [a.set_require_grad(a.from_inner(x), True) for x in call.at]
        total: Any = None
        for g, t in zip(call.gradients(a, xs), call.along, strict=True):
            part = a.mul(g, a.from_inner(t))
            part = a.sum(part, tuple(range(part.value.ndim)), False)
            part = a.real(part) if a.dtype(part).kind == "complex" else part
            total = part if total is None else a.add(total, part)
        second = 0.0
        if a.is_tracked(total):
            gradients = a.backward(total)
            found = [a.grad(x, gradients) for x in xs]
            second = sum(paired(g, t) for g, t in zip(found, call.along, strict=True) if g is not None)
        close(second, expected, 1e-7)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_large_gradients_are_those_of_the_wide_dtype(name: str) -> None:
    for size in (1, 2):
        for _, sample in list(cases_of(name, size))[:1]:
            wide = Call(name, sample)
            narrow = Call(name, Sample(tuple(cast(sample.operands, "complex64")), sample.attributes))
            narrow.weights = [w.astype(n.dtype) for w, n in zip(wide.weights, narrow.weights, strict=True)]
            expected = wide.gradients(NUMPY, wide.at)
            for g, e in zip(narrow.gradients(NUMPY, narrow.at), expected, strict=True):
                assert g.dtype.itemsize * 2 == e.dtype.itemsize
                compare(g, e, 64.0 * max(1.0, g.size**0.5 / 8))


def tensors(operands: Any, backend: str = "numpy") -> list[Any]:
    return map_operands(operands, lambda o: bb.asarray(o, backend=backend))


@pytest.mark.parametrize("name", COMPUTED)
def test_vmap(name: str) -> None:
    done = 0
    for _, sample in list(cases_of(name, 0))[:4]:
        if any(isinstance(o, list) for o in sample.operands):
            continue
        stacked = [
            np.stack([o, o * (0.5 + 0.25j) if o.dtype.kind == "c" else o]) if isinstance(o, np.ndarray) else o
            for o in sample.operands
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
                np.testing.assert_allclose(m.numpy()[n], a.numpy(), rtol=1e-12, atol=1e-12)
        done += 1
    assert done or any(OPERATIONS[name].lists)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_recorded(name: str, dtype: str) -> None:
    """A replayed step gives the bits of an unrecorded one, with gradients, also at sizes that are fused for floats."""
    for size in (0, 2):
        for _, sample in list(cases_of(name, size))[:2]:
            given = tensors(cast(sample.operands, dtype))
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
    """A call of a sample by the functions of tensors, with complex tensors for the float ones."""
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
