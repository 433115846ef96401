"""First and second gradients of every operation that takes complex numbers, against PyTorch and JAX.

Cotangents of the contract equal JAX's and are the conjugates of PyTorch's. An operation that only moves and adds
elements is computed there with its matrix over the real numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.complex_operands import DIFFERENTIABLE, NUMPY, Call, paired, smooth_cases

from backburn.autodiff import Autodiff
from backburn.conformance.checks import derivatives
from backburn.conformance.samples.calls import as_tuple, is_inexact
from backburn.ops.bodies.adjoints import LEADING
from backburn.ops.table import OPERATIONS

#: Operations that are linear in all their operands together, with real coefficients.
LINEAR = {
    name
    for name in DIFFERENTIABLE
    if OPERATIONS[name].family in ("index", "shape", "selection")
    or name in ("sum", "mean", "cumulative_sum", "diff", "add", "sub", "neg", "astype")
}


class Library:
    """The functions that the formulas below need, from PyTorch or JAX."""

    def __init__(self, np_like: Any, linalg: Any) -> None:
        self.np, self.linalg = np_like, linalg
        self.is_torch = hasattr(np_like, "einsum") and hasattr(np_like, "as_tensor")

    def constant(self, x: Any) -> Any:
        return self.np.as_tensor(np.array(x)) if self.is_torch else self.np.asarray(x)

    def eye(self, x: Any) -> Any:
        return self.constant(np.eye(x.shape[-1]))

    def sgn(self, x: Any) -> Any:
        return self.np.sgn(x) if self.is_torch else x / self.np.abs(x)  # JAX's sign has no derivative

    def stacked(self, xs: Any, axis: int) -> Any:
        return self.np.stack(xs, axis)

    def tril(self, x: Any, k: int = 0) -> Any:
        return x * self.constant(np.tril(np.ones(tuple(x.shape)), k))

    def triu(self, x: Any) -> Any:
        return x * self.constant(np.triu(np.ones(tuple(x.shape))))

    def at(self, x: Any, places: Any) -> Any:
        """Return one element of each column, as a row."""
        rows = (places[..., None, :] == np.arange(x.shape[-2])[:, None]) * 1.0
        return (x * self.constant(rows)).sum(-2)[..., None, :]

    def turned(self, vectors: Any) -> Any:
        """Return the factors that make the leading elements of columns real and positive."""
        size = np.abs(host(vectors))
        first = np.argmax(size >= LEADING * size.max(-2, keepdims=True), axis=-2)
        return self.np.conj(self.sgn(self.at(vectors, first)))


def host(x: Any) -> Any:
    """Return the values of a library's array, also while it is being differentiated."""
    if "jax" in sys.modules:
        jax: Any = sys.modules["jax"]
        x = jax.lax.stop_gradient(x) if isinstance(x, jax.Array) else x
        while isinstance(x, jax.core.Tracer):
            x = x.primal if hasattr(x, "primal") else x.val
    return np.asarray(x.detach().resolve_conj()) if hasattr(x, "detach") else np.asarray(x)


def mT(x: Any) -> Any:  # noqa: N802 - the Array API's name
    return x.swapaxes(-1, -2)


def hermitian(b: Library, x: Any) -> Any:
    return (x + b.np.conj(mT(x))) / 2


def powers(b: Library, x: Any, axis: Any, keepdims: bool = False) -> Any:
    """Return products along axes, multiplying one factor at a time."""
    for a in sorted(axis):
        parts = [x[(slice(None),) * a + (slice(i, i + 1),)] for i in range(x.shape[a])]
        total = parts[0] if parts else None
        for part in parts[1:]:
            total = total * part
        x = total
    if keepdims:
        return x
    return x.reshape([n for a, n in enumerate(x.shape) if a not in axis])


def running(b: Library, x: Any, axis: int, reverse: bool = False) -> Any:
    parts = [x[(slice(None),) * axis + (i,)] for i in range(x.shape[axis])]
    found: list[Any] = []
    for part in reversed(parts) if reverse else parts:
        found.append(part if not found else found[-1] * part)
    return b.stacked(found[::-1] if reverse else found, axis)


def of_qr(b: Library, x: Any, complete: bool = False) -> Any:
    q, r = b.linalg.qr(x, "complete" if complete else "reduced")
    inner = min(x.shape[-2:])
    unit = b.sgn(b.np.diagonal(r, 0, -2, -1))[..., None, :]
    rest = [b.turned(q[..., inner:])] if q.shape[-1] > inner else []
    own = b.np.concatenate([unit, *rest], -1) if rest else unit
    return q * own, r * b.np.conj(mT(own))


def of_svd(b: Library, x: Any, full: bool = False) -> Any:
    u, s, vh = b.linalg.svd(x, full_matrices=full)
    left = b.turned(u)
    return u * left, s, vh * b.np.conj(mT(left))


def of_eigh(b: Library, x: Any) -> Any:
    values, vectors = b.linalg.eigh(hermitian(b, x))
    return values, vectors * b.turned(vectors)


def in_order(b: Library, values: Any, vectors: Any = None) -> Any:
    order = np.lexsort((host(values).imag, host(values).real), axis=-1)
    change = b.constant((order[..., None, :] == np.arange(order.shape[-1])[:, None]) * (1 + 0j))
    values = (values[..., None, :] @ change)[..., 0, :]
    return values if vectors is None else (values, vectors @ change)


def of_eig(b: Library, x: Any) -> Any:
    values, vectors = in_order(b, *b.linalg.eig(x))
    return values, vectors * b.turned(vectors)


def of_lu(b: Library, x: Any) -> Any:
    """Eliminate with the row order that the NumPy backend found."""
    order, _, _ = NUMPY.lu(host(x))
    m, n = x.shape[-2:]
    change = (order[..., :, None] == np.arange(m)) * (1 + 0j)
    y = b.constant(change) @ x
    lower = b.eye(mT(x)) * (1 + 0j) + 0 * y[..., :, :1] * y[..., :1, :1]
    for c in range(min(m, n)):
        below = b.constant(np.arange(m)[:, None] > c)
        factor = below * y[..., :, c : c + 1] / y[..., c : c + 1, c : c + 1]
        lower = lower + factor * b.constant((np.arange(m) == c) * (1 + 0j))
        y = y - factor * y[..., c : c + 1, :]
    inner = min(m, n)
    return order, lower[..., :inner], b.triu(y)[..., :inner, :]


def convolved(b: Library, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """A convolution as sums of products of shifted slices."""
    options = {**OPERATIONS["conv"].defaults, **options}
    dims, groups = x.ndim - 2, options["groups"]
    x = padded(b, x, options["padding"])
    size, stride, dilation = tuple(w.shape[2:]), options["stride"], options["dilation"]
    places = [
        (x.shape[2 + d] - dilation[d] * (size[d] - 1) - 1) // stride[d] + 1 for d in range(dims)
    ]  # fmt: skip
    total: Any = 0
    for offset in np.ndindex(*size):
        cut = tuple(
            slice(o * dil, o * dil + (n - 1) * st + 1, st)
            for o, dil, n, st in zip(offset, dilation, places, stride, strict=True)
        )
        part = x[(slice(None), slice(None), *cut)]
        weights = w[(slice(None), slice(None), *offset)]
        each = [
            b.np.einsum("nc...,oc->no...", a, v)
            for a, v in zip(split(part, groups, 1), split(weights, groups, 0), strict=True)
        ]
        total = total + b.np.concatenate(each, 1)
    return total if bias is None else total + bias.reshape(-1, *[1] * dims)


def split(x: Any, groups: int, axis: int) -> list[Any]:
    step = x.shape[axis] // groups
    return [x[(slice(None),) * axis + (slice(i * step, (i + 1) * step),)] for i in range(groups)]


def padded(b: Library, x: Any, padding: Any) -> Any:
    for d, (before, after) in enumerate(padding):
        shape = list(x.shape)
        pieces = []
        for n in (before, after):
            shape[2 + d] = n
            pieces.append(b.constant(np.zeros(shape, np.complex128)))
        x = b.np.concatenate([pieces[0], x, pieces[1]], 2 + d)
    return x


def transposed(b: Library, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
    """Return a transposed convolution, from the real matrix of each tap of the weight."""
    found: Any = 0
    shape = NUMPY.conv_transpose(np.zeros(tuple(x.shape)), np.zeros(tuple(w.shape)), None, **options).shape
    for place in np.ndindex(*w.shape):
        one = np.zeros(tuple(w.shape))
        one[place] = 1
        moves = matrix_of(lambda y, one=one: NUMPY.conv_transpose(y, one, None, **options), [tuple(x.shape)])[0]
        found = found + (b.constant(moves + 0j) @ x.reshape(-1)) * w[place]
    found = found.reshape(shape)
    return found if bias is None else found + bias.reshape(-1, *[1] * (x.ndim - 2))


def of_weight(b: Library, x: Any, grad: Any, **options: Any) -> Any:
    """Return the gradient with respect to a weight: bilinear, with coefficients 0 and 1."""
    zeros = np.zeros(tuple(x.shape)), np.zeros(tuple(grad.shape))
    found: Any = 0
    shape = NUMPY.conv_weight_backward(*zeros, **options).shape
    for place in np.ndindex(*grad.shape):
        one = np.zeros(tuple(grad.shape))
        one[place] = 1
        moves = matrix_of(lambda y, one=one: NUMPY.conv_weight_backward(y, one, **options), [tuple(x.shape)])[0]
        found = found + (b.constant(moves + 0j) @ x.reshape(-1)) * grad[place]
    return found.reshape(shape)


def matrix_of(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> tuple[Any, Any]:
    """Return the matrix and the constant of an affine function of real arrays: one column per element."""
    sizes = [int(np.prod(s)) for s in shapes]
    columns = []
    for number in (None, *range(sum(sizes))):
        flat = np.zeros(sum(sizes))
        if number is not None:
            flat[number] = 1
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        columns.append(np.ravel(function(*(p.reshape(s) for p, s in zip(parts, shapes, strict=True)))))
    return np.stack([c - columns[0] for c in columns[1:]], 1) if sum(sizes) else columns[0][:, None][:, :0], columns[0]


FORMULAS: dict[str, Callable[..., Any]] = {
    "mul": lambda b, x, y: x * y,
    "div": lambda b, x, y: x / y,
    "square": lambda b, x: x * x,
    "reciprocal": lambda b, x: 1 / x,
    "lerp": lambda b, x, y, w: x + w * (y - x),
    "pow": lambda b, x, y: x**y,
    **{
        name: lambda b, x, name=name: getattr(b.np, name)(x)
        for name in ("sqrt", "exp", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "expm1")
    },
    **{
        name: lambda b, x, name=name: getattr(b.np, name.replace("a", "arc", 1))(x)
        for name in ("asin", "acos", "acosh", "atanh")
    },
    "rsqrt": lambda b, x: 1 / b.np.sqrt(x),
    "complex": lambda b, x, y: x + 1j * y,
    "real": lambda b, x: b.np.real(x),
    "imag": lambda b, x: b.np.imag(x),
    "conj": lambda b, x: b.np.conj(x),
    "modulus": lambda b, x: b.np.abs(x),
    "phase": lambda b, x: b.sgn(x),
    "angle": lambda b, x: b.np.angle(x),
    "conv": convolved,
    "conv_transpose": transposed,
    "conv_weight_backward": of_weight,
    "cholesky": lambda b, x: b.linalg.cholesky(hermitian(b, x)),
    "lu": of_lu,
    "qr": of_qr,
    "svd": of_svd,
    "eigh": of_eigh,
    "svdvals": lambda b, x: b.linalg.svd(x, full_matrices=False)[1],
    "eigvalsh": lambda b, x: b.linalg.eigvalsh(hermitian(b, x)),
    "eig": of_eig,
    "eigvals": lambda b, x: in_order(b, b.linalg.eigvals(x)),
    "solve": lambda b, x, y: b.linalg.inv(x) @ y,
    "triangular_solve": lambda b, x, y, upper=False: b.linalg.inv(b.triu(x) if upper else b.tril(x)) @ y,
    "inv": lambda b, x: b.linalg.inv(x),
    "pinv": lambda b, x, rtol: (
        b.linalg.inv(b.np.conj(mT(x)) @ x) @ b.np.conj(mT(x))
        if x.shape[-2] >= x.shape[-1]
        else b.np.conj(mT(x)) @ b.linalg.inv(x @ b.np.conj(mT(x)))
    ),
    "det": lambda b, x: b.linalg.det(x),
    "slogdet": lambda b, x: (b.sgn(b.linalg.det(x)), b.np.log(b.np.abs(b.linalg.det(x)))),
    "cofactors": lambda b, x: b.linalg.det(x)[..., None, None] * mT(b.linalg.inv(x)),
    "cumulative_prod": running,
    "prod": powers,
    "prod_of_others": lambda b, x, axis: powers(b, x, axis, True) / x,
    "matmul": lambda b, x, y: b.np.matmul(x, y),
    "linear": lambda b, x, w, bias=None: x @ w.swapaxes(0, 1) + (0 if bias is None else bias),
    "linear_weight_backward": lambda b, g, x: (
        mT(g.reshape(-1, g.shape[-1])) @ x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]).sum(0)
    ),
}  # fmt: skip
#: Nearly singular samples of these are skipped, as the libraries have no derivatives there.
SINGULAR = {"det", "slogdet", "cofactors", "solve", "inv", "pinv"}


def test_every_operation_has_a_formula() -> None:
    assert not FORMULAS.keys() & LINEAR
    assert {*FORMULAS, *LINEAR} == set(DIFFERENTIABLE)


def outputs(b: Library, one: Call, xs: list[Any]) -> list[Any]:
    """Return the results of a call from a library, as functions of its float operands."""
    if one.name in LINEAR:
        shapes = [x.shape for x in one.at]

        def plain(*parts: Any) -> Any:
            return one.run(NUMPY, list(parts))[0]

        sample = one.sample
        if one.name == "astype":
            return [xs[0]]
        fixed = [o for o in sample.operands if isinstance(o, complex)]
        assert not fixed
        matrix, constant = matrix_of(plain, shapes)
        flat = b.np.concatenate([x.reshape(-1) for x in xs], 0)
        return [(b.constant(matrix + 0j) @ flat + b.constant(constant)).reshape(one.weights[0].shape)]
    remaining = iter(xs)
    operands = [next(remaining) if is_inexact(o) else o for o in one.sample.operands]
    found = as_tuple(FORMULAS[one.name](b, *operands, **one.sample.attributes))
    return [x for x in found if not (isinstance(x, np.ndarray) and x.dtype.kind in "iu")]


def loss(b: Library, one: Call, xs: list[Any]) -> Any:
    terms = [b.np.real((b.constant(w) * x).sum()) for w, x in zip(one.weights, outputs(b, one, xs), strict=True)]
    return sum(terms[1:], terms[0])


def second(one: Call) -> list[Any]:
    """Return the operands' cotangents of the derivative along the direction, from two levels of reverse mode."""
    a = Autodiff(NUMPY)
    xs = [a.set_require_grad(a.from_inner(x), True) for x in one.at]
    total: Any = None
    for g, t in zip(one.gradients(a, xs), one.along, strict=True):
        part = derivatives.paired(a, g, a.from_inner(t))
        total = part if total is None else a.add(total, part)
    if not a.is_tracked(total):
        return [np.zeros_like(x) for x in one.at]
    gradients = a.backward(total)
    found = [a.grad(x, gradients) for x in xs]
    return [np.zeros_like(x) if g is None else g for g, x in zip(found, one.at, strict=True)]


def calls(name: str) -> list[Call]:
    found = []
    for sample in smooth_cases(name):
        matrices = [o for o in sample.operands if is_inexact(o)]
        if name in SINGULAR and any(np.linalg.cond(m).max(initial=1) > 1e6 for m in matrices[:1] if m.size):
            continue
        if any(isinstance(o, list) for o in sample.operands) and name not in LINEAR:
            continue
        found.append(Call(name, sample))
    return found


def compare(got: Any, expected: Any) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(got - expected).max(initial=0.0))
    assert error <= 1e-10 * scale, (error, scale)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_the_conjugates_of_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    b = Library(torch, torch.linalg)
    assert calls(name)
    for one in calls(name):
        xs = [torch.tensor(x, requires_grad=True) for x in one.at]
        zero = [torch.zeros_like(x) for x in xs]
        value = loss(b, one, xs)
        results = [x for x in one.run(NUMPY, one.at) if x.dtype.kind in "fc"]
        expected = sum(paired(w, x) for w, x in zip(one.weights, results, strict=True))
        assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        first = torch.autograd.grad(value, xs, create_graph=True, allow_unused=True)
        first = [z if g is None else g for g, z in zip(first, zero, strict=True)]
        for g, e in zip(one.gradients(NUMPY, one.at), first, strict=True):
            compare(g, np.conj(host(e)))
        slope: Any = sum(
            torch.real((torch.conj(g) * torch.tensor(t)).sum()) for g, t in zip(first, one.along, strict=True)
        )
        twice: Any = [None] * len(xs)
        if slope.requires_grad:
            twice = torch.autograd.grad(slope, xs, allow_unused=True)
        for g, e, z in zip(second(one), twice, zero, strict=True):
            compare(g, np.conj(host(z if e is None else e)))


@pytest.mark.slow
@pytest.mark.xdist_group("jax")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        b = Library(jax.numpy, jax.numpy.linalg)
        for one in calls(name)[:2]:
            if name == "eig":  # JAX differentiates only the values
                continue

            def of(xs: Any, one: Call = one) -> Any:
                return loss(b, one, list(xs))

            xs = [jax.numpy.asarray(x) for x in one.at]
            first = jax.grad(of)(xs)
            for g, e in zip(one.gradients(NUMPY, one.at), first, strict=True):
                compare(g, np.asarray(e))
