"""Derivatives against JAX's: cotangents, tangents and Hessians of operations, graphs and tapes, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff.tape import AnyGradOp, GradGraph, GradientTape
from backburn.nn import functional
from backburn.transforms import hessian, jvp, vjp

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jax")]

jax = pytest.importorskip("jax", reason="JAX is not installed: the extra `test` installs it")
jnp: Any = jax.numpy
lax: Any = jax.lax


@pytest.fixture(autouse=True)
def _wide() -> Any:
    """Let JAX compute in float64."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@dataclass(frozen=True)
class Case:
    """Our function and JAX's, and the arrays at which to compare them."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[Any, ...]


def shape_for(name: str) -> tuple[int, int]:
    """Return lengths of 2 or 3 derived from the name, so that shapes vary and runs are reproducible."""
    rng = np.random.default_rng(list(name.encode()))
    return int(rng.integers(2, 4)), int(rng.integers(2, 4))


def real(name: str, *shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """Return random numbers from ``low`` to ``high``."""
    return np.random.default_rng([seed, *name.encode()]).uniform(low, high, shape or shape_for(name))


def spd(n: int) -> Any:
    """Return a symmetric matrix with distinct eigenvalues above 0."""
    a = real("spd", n, n)
    return a @ a.T + np.diag(np.arange(1.0, n + 1.0))


CASES: dict[str, Case] = {}


def unary(name: str, ours: Any, theirs: Any = None, low: float = -2.0, high: float = 2.0) -> None:
    """Add a case of an elementwise function."""
    CASES[name] = Case(ours, theirs or getattr(jnp, name), (real(name, low=low, high=high),))


for _name in ("sin", "cos", "tanh", "sinh", "cosh", "exp", "exp2", "expm1", "square", "abs", "atan", "asinh", "sinc"):
    unary(_name, getattr(bb, _name))
for _name in ("sqrt", "log", "log2", "log10", "log1p", "reciprocal"):
    unary(_name, getattr(bb, _name), low=0.3, high=3.0)
for _name in ("asin", "acos", "atanh"):
    unary(_name, getattr(bb, _name), low=-0.9, high=0.9)
unary("tan", bb.tan, low=-1.2, high=1.2)
unary("acosh", bb.acosh, low=1.2, high=3.0)
unary("rsqrt", bb.rsqrt, lax.rsqrt, low=0.3, high=3.0)
for _name, _low, _high in (
    ("erf", -2, 2), ("erfc", -2, 2), ("erfinv", -0.9, 0.9), ("gammaln", 0.3, 4), ("digamma", 0.3, 4), ("i0", -2, 2),
    ("i1", -2, 2),
):  # fmt: skip
    _ours = {"gammaln": "lgamma"}.get(_name, _name)
    unary(_ours, getattr(bb, _ours), getattr(jax.scipy.special, _name), _low, _high)
for _name, _theirs in (
    ("sigmoid", "sigmoid"), ("log_sigmoid", "log_sigmoid"), ("relu", "relu"), ("relu6", "relu6"), ("silu", "silu"),
    ("elu", "elu"), ("celu", "celu"), ("selu", "selu"), ("softplus", "softplus"), ("softsign", "soft_sign"),
    ("leaky_relu", "leaky_relu"), ("hard_sigmoid", "hard_sigmoid"), ("hard_swish", "hard_swish"),
    ("hardtanh", "hard_tanh"), ("mish", "mish"),
):  # fmt: skip
    unary(_name, getattr(functional, _name), getattr(jax.nn, _theirs), -4, 4)
unary("gelu", functional.gelu, lambda x: jax.nn.gelu(x, approximate=False))
unary("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh"), lambda x: jax.nn.gelu(x, approximate=True))
unary("clip", lambda x: bb.clip(x, -0.7, 1.1), lambda x: jnp.clip(x, -0.7, 1.1))


def binary(name: str, ours: Any, theirs: Any, low: float = -2.0, high: float = 2.0) -> None:
    """Add a case of a function of two tensors, the second of which is broadcast."""
    rows, columns = shape_for(name)
    pair = real(name, rows, columns, low=low, high=high), real(name, columns, low=low, high=high, seed=1)
    CASES[name] = Case(ours, theirs, pair)


binary("add", lambda x, y: x * x + y, lambda x, y: x * x + y)
binary("subtract", lambda x, y: x * x - y, lambda x, y: x * x - y)
for _name in ("multiply", "maximum", "minimum", "atan2", "hypot", "logaddexp"):
    binary(_name, getattr(bb, _name), getattr(jnp, {"atan2": "arctan2"}.get(_name, _name)))
binary("divide", bb.divide, jnp.divide, 0.5, 2.0)
binary("pow", bb.pow, jnp.power, 0.5, 2.0)
binary("where", lambda x, y: bb.where(x > y, x * x, y * x), lambda x, y: jnp.where(x > y, x * x, y * x))

X = real("x", 2, 3)
for _name in ("sum", "mean", "prod", "max", "min", "var", "std"):
    _pair = getattr(bb, _name), getattr(jnp, _name)
    CASES[_name] = Case(lambda x, f=_pair[0]: f(x, axis=1) ** 2.0, lambda x, f=_pair[1]: f(x, axis=1) ** 2.0, (X,))
CASES["logsumexp"] = Case(lambda x: bb.logsumexp(x, axis=0), lambda x: jax.scipy.special.logsumexp(x, axis=0), (X,))
CASES["norm"] = Case(lambda x: bb.linalg.vector_norm(x, axis=1), lambda x: jnp.linalg.norm(x, axis=1), (X,))
CASES["cumsum"] = Case(lambda x: bb.cumulative_sum(x * x, axis=1), lambda x: jnp.cumsum(x * x, axis=1), (X,))
CASES["cumprod"] = Case(lambda x: bb.cumulative_prod(x, axis=1), lambda x: jnp.cumprod(x, axis=1), (X,))
CASES["logcumsumexp"] = Case(lambda x: bb.logcumsumexp(x, axis=1), lambda x: lax.cumlogsumexp(x, axis=1), (X,))
CASES["cummax"] = Case(lambda x: bb.cummax(x, axis=1) ** 2.0, lambda x: lax.cummax(x, axis=1) ** 2.0, (X,))
CASES["softmax"] = Case(lambda x: functional.softmax(x, axis=1), lambda x: jax.nn.softmax(x, axis=1), (X,))
CASES["log_softmax"] = Case(lambda x: functional.log_softmax(x, axis=0), lambda x: jax.nn.log_softmax(x, axis=0), (X,))

# ---- shapes and indices: results are squared, so that Hessians are not 0 ----

INDEX = np.array([2, 0, 2])
MOVES: dict[str, tuple[Any, Any]] = {
    "reshape": (lambda x: bb.reshape(x, (3, 2)), lambda x: x.reshape(3, 2)),
    "permute_dims": (lambda x: bb.permute_dims(x, (1, 0)), lambda x: x.T),
    "broadcast_to": (lambda x: bb.broadcast_to(x, (2, 2, 3)), lambda x: jnp.broadcast_to(x, (2, 2, 3))),
    "concat": (lambda x: bb.concat([x, x * x], axis=1), lambda x: jnp.concatenate([x, x * x], axis=1)),
    "stack": (lambda x: bb.stack([x, x * x], axis=1), lambda x: jnp.stack([x, x * x], axis=1)),
    "flip": (lambda x: bb.flip(x, axis=1), lambda x: jnp.flip(x, axis=1)),
    "roll": (lambda x: bb.roll(x, 1, axis=1), lambda x: jnp.roll(x, 1, axis=1)),
    "tile": (lambda x: bb.tile(x, (2, 1)), lambda x: jnp.tile(x, (2, 1))),
    "repeat": (lambda x: bb.repeat(x, 2, axis=0), lambda x: jnp.repeat(x, 2, axis=0)),
    "tril": (bb.tril, jnp.tril),
    "triu": (bb.triu, jnp.triu),
    "diagonal": (lambda x: bb.linalg.diagonal(x), lambda x: jnp.diagonal(x)),
    "take": (lambda x: bb.take(x, bb.asarray(INDEX), axis=1), lambda x: jnp.take(x, INDEX, axis=1)),
    "slice": (lambda x: x[:, ::2], lambda x: x[:, ::2]),
    "index": (lambda x: x[bb.asarray([1, 1]), bb.asarray([2, 0])], lambda x: x[np.array([1, 1]), np.array([2, 0])]),
    "sort": (lambda x: bb.sort(x, axis=1), lambda x: jnp.sort(x, axis=1)),
    "pad": (
        lambda x: bb.pad(x, ((0, 0), (1, 1)), mode="reflect"),
        lambda x: jnp.pad(x, ((0, 0), (1, 1)), "reflect"),
    ),
    "einsum": (lambda x: bb.einsum("ij,kj->ik", x, x), lambda x: jnp.einsum("ij,kj->ik", x, x)),
}
for _name, (_ours, _theirs) in MOVES.items():
    CASES[_name] = Case(lambda x, f=_ours: f(x) * f(x * x), lambda x, f=_theirs: f(x) * f(x * x), (real(_name, 2, 3),))

# ---- products and matrices ----

CASES["matmul"] = Case(bb.matmul, jnp.matmul, (real("a", 2, 3), real("b", 3, 2)))
CASES["matmul_batched"] = Case(bb.matmul, jnp.matmul, (real("a", 2, 1, 2), real("b", 2, 2)))
CASES["linear"] = Case(functional.linear, lambda x, w, b: x @ w.T + b, (real("x", 2, 3), real("w", 2, 3), real("b", 2)))
A = spd(3)
CASES["cholesky"] = Case(
    lambda x: bb.linalg.cholesky((x + x.T) / 2.0), lambda x: jnp.linalg.cholesky((x + x.T) / 2.0), (A,)
)
CASES["inv"] = Case(bb.linalg.inv, jnp.linalg.inv, (A,))
CASES["det"] = Case(bb.linalg.det, jnp.linalg.det, (A,))
CASES["slogdet"] = Case(lambda x: bb.linalg.slogdet(x)[1], lambda x: jnp.linalg.slogdet(x)[1], (A,))
CASES["solve"] = Case(bb.linalg.solve, jnp.linalg.solve, (spd(2), real("y", 2, 1)))
CASES["eigvalsh"] = Case(
    lambda x: bb.linalg.eigvalsh((x + x.T) / 2.0), lambda x: jnp.linalg.eigvalsh((x + x.T) / 2.0), (A,)
)
CASES["svdvals"] = Case(bb.linalg.svdvals, lambda x: jnp.linalg.svd(x, compute_uv=False), (real("svd", 2, 3),))
CASES["qr"] = Case(lambda x: bb.linalg.qr(x)[1] ** 2.0, lambda x: jnp.linalg.qr(x)[1] ** 2.0, (real("qr", 3, 2),))
CASES["pinv"] = Case(bb.linalg.pinv, jnp.linalg.pinv, (real("pinv", 3, 2),))


# ---- layers ----


def normalized(x: Any, axis: int, eps: float = 1e-5) -> Any:
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + eps)


def scanned(a: Any, b: Any, x: Any, h: Any) -> Any:
    """``h[t] = a[t] h[t-1] + b[t] x[t]``."""
    return lax.scan(lambda h, abx: (abx[0] * h + abx[1] * abx[2],) * 2, h, (a, b, x))[1]


CASES["layer_norm"] = Case(
    lambda x, s, b: functional.layer_norm(x, s, b), lambda x, s, b: normalized(x, -1) * s + b,
    (real("x", 2, 3), real("s", 3), real("b", 3)),
)  # fmt: skip
CASES["conv"] = Case(
    lambda x, w: functional.conv(x, w, stride=2, padding=1),
    lambda x, w: lax.conv_general_dilated(x, w, (2,), [(1, 1)]),
    (real("x", 1, 2, 4), real("w", 2, 2, 2)),
)
CASES["avg_pool"] = Case(
    lambda x: functional.avg_pool(x, 2) ** 2.0,
    lambda x: (lax.reduce_window(x, 0.0, lax.add, (1, 1, 2), (1, 1, 2), "VALID") / 2.0) ** 2.0,
    (real("avg", 1, 2, 4),),
)
CASES["max_pool"] = Case(
    lambda x: functional.max_pool(x, 2) ** 2.0,
    lambda x: x.reshape(1, 2, 2, 2).max(-1) ** 2.0,
    (real("max", 1, 2, 4),),
)
CASES["embedding"] = Case(
    lambda w: functional.embedding(bb.asarray(INDEX), w) ** 2.0, lambda w: w[INDEX] ** 2.0, (real("w", 3, 2),)
)
CASES["attention"] = Case(
    functional.scaled_dot_product_attention,
    lambda q, k, v: jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / math.sqrt(2.0), axis=-1) @ v,
    (real("q", 1, 2, 2), real("k", 1, 2, 2), real("v", 1, 2, 2)),
)
CASES["cross_entropy"] = Case(
    lambda x: functional.cross_entropy(x, bb.asarray([2, 0])),
    lambda x: -jax.nn.log_softmax(x)[np.arange(2), np.array([2, 0])].mean(),
    (X,),
)
CASES["ssm_scan"] = Case(
    lambda a, b, x, h: functional.ssm_scan(a, b, x, h, axis=0),
    scanned,
    (real("a", 3, 1), real("b", 3, 1), real("x", 3, 1), real("h", 1)),
)
CASES["rfft"] = Case(
    lambda x: bb.fourier.rfft(x)[0] ** 2.0 + bb.fourier.rfft(x)[1] ** 3.0,
    lambda x: jnp.real(jnp.fft.rfft(x)) ** 2.0 + jnp.imag(jnp.fft.rfft(x)) ** 3.0,
    (real("fft", 5),),
)


def theirs_all(f: Callable[..., Any], inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Return JAX's value, cotangents, tangent and Hessian of ``sum(u * f)``, from one compiled function."""
    u_seed = np.random.default_rng(seed)
    shape = jax.eval_shape(f, *inputs).shape
    u = u_seed.uniform(0.5, 1.5, shape)
    tangents = tuple(u_seed.uniform(-1, 1, x.shape) for x in inputs)
    sizes = np.cumsum([0, *(x.size for x in inputs)])

    def scalar(flat: Any) -> Any:
        parts = [flat[a:b].reshape(x.shape) for a, b, x in zip(sizes, sizes[1:], inputs, strict=False)]
        return (u * f(*parts)).sum()

    @jax.jit
    def everything(*args: Any) -> Any:
        value, pullback = jax.vjp(f, *args)
        flat = jnp.concatenate([x.ravel() for x in args])
        return value, pullback(jnp.asarray(u)), jax.jvp(f, args, tangents)[1], jax.hessian(scalar)(flat)

    return (u, tangents, *(jax.tree.map(np.asarray, r) for r in everything(*map(jnp.asarray, inputs))))


def close(ours: Any, theirs: Any, what: str) -> None:
    """Compare up to rounding, relative to the largest element."""
    size = max(1.0, float(np.abs(theirs).max(initial=0.0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * size, err_msg=what)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_agree_with_jax(name: str) -> None:
    case = CASES[name]
    u, tangents, value, cotangents, tangent, second = theirs_all(case.theirs, case.inputs, 7)
    inputs = tuple(bb.asarray(x, dtype="float64") for x in case.inputs)
    got, pullback = vjp(case.ours, *inputs)
    close(got.numpy(), value, "value")
    for ours, theirs in zip(pullback(bb.asarray(u, dtype="float64")), cotangents, strict=True):
        close(ours.numpy(), theirs, "vjp")
    _, moved = jvp(case.ours, inputs, tuple(bb.asarray(t, dtype="float64") for t in tangents))
    close(moved.numpy(), tangent, "jvp")
    sizes = [0, *np.cumsum([x.size for x in case.inputs]).tolist()]

    def scalar(flat: Any) -> Any:
        parts = [bb.reshape(flat[a:b], x.shape) for a, b, x in zip(sizes, sizes[1:], inputs, strict=False)]
        return (case.ours(*parts) * bb.asarray(u, dtype="float64")).sum()

    flat = bb.concat([bb.reshape(x, (-1,)) for x in inputs])
    close(hessian(scalar)(flat).numpy(), second, "Hessian")


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 100


# ---- the typed graph and the record tape ----

W = real("weights", 2, 3)
#: For each operation: a function that builds its node, the same in JAX, and the parameters.
GRAPH: dict[str, Case] = {
    "Input": Case(lambda g, p: g.mul(g.input(W), p), lambda p: W * p, (X,)),
    "Parameter": Case(lambda g, p: p, lambda p: p, (X,)),
    "Add": Case(lambda g, a, b: g.add(a, b), lambda a, b: a + b, (X, real("b", 3))),
    "Sub": Case(lambda g, a, b: g.sub(a, b), lambda a, b: a - b, (X, real("b", 2, 1))),
    "Mul": Case(lambda g, a, b: g.mul(a, b), lambda a, b: a * b, (X, real("b", 3))),
    "Div": Case(lambda g, a, b: g.div(a, b), lambda a, b: a / b, (X, real("b", 3, low=0.5))),
    "Neg": Case(lambda g, a: g.neg(g.mul(a, a)), lambda a: -(a * a), (X,)),
    "MatMul": Case(lambda g, a, b: g.matmul(a, b), lambda a, b: a @ b, (X, real("b", 3, 2))),
    "Sum": Case(lambda g, a: g.sum(g.mul(a, a)), lambda a: (a * a).sum()[None], (X,)),
    "Mean": Case(lambda g, a: g.mean(g.mul(a, a)), lambda a: (a * a).mean()[None], (X,)),
    "ScalarMul": Case(lambda g, a: g.scalar_mul(a, -2.5), lambda a: -2.5 * a, (X,)),
    "Exp": Case(lambda g, a: g.exp(a), jnp.exp, (X,)),
    "Ln": Case(lambda g, a: g.ln(a), jnp.log, (X * X + 0.1,)),
    "StructField": Case(lambda g, a: g.mul(a, g.struct_field(g.record(x=W, y=X), "x")), lambda a: a * W, (X,)),
    "MapLookup": Case(lambda g, a: g.mul(a, g.map_lookup(g.mapping({"x": W, 7: X}), "x")), lambda a: a * W, (X,)),
    "Sin": Case(lambda g, a: g.sin(a), jnp.sin, (X,)),
    "Cos": Case(lambda g, a: g.cos(a), jnp.cos, (X,)),
    "Sqrt": Case(lambda g, a: g.sqrt(a), jnp.sqrt, (X * X + 0.1,)),
    "Pow": Case(lambda g, a: g.pow(a, 3), lambda a: a**3, (X,)),
    "Sigmoid": Case(lambda g, a: g.sigmoid(a), jax.nn.sigmoid, (X,)),
    "Relu": Case(lambda g, a: g.relu(a), jax.nn.relu, (X,)),
    "TanhAct": Case(lambda g, a: g.tanh_act(a), jnp.tanh, (X,)),
    "Abs": Case(lambda g, a: g.abs(a), jnp.abs, (X,)),
    "Log2": Case(lambda g, a: g.log2(a), jnp.log2, (X * X + 0.1,)),
    "Softmax": Case(lambda g, a: g.softmax(a), jax.nn.softmax, (X,)),
    "CrossEntropy": Case(
        lambda g, a, t: g.cross_entropy(a, t), lambda a, t: -(t * jax.nn.log_softmax(a)).sum()[None], (X, W * W)
    ),
    "LayerNorm": Case(lambda g, a: g.layer_norm(a), lambda a: normalized(a, -1), (X,)),
    "BatchNorm": Case(lambda g, a: g.batch_norm(a), lambda a: normalized(a, 0), (real("batch", 3, 2),)),
    "Clamp": Case(lambda g, a: g.clamp(a, -0.5, 0.5), lambda a: jnp.clip(a, -0.5, 0.5), (X,)),
    "Where": Case(
        lambda g, a, b: g.where_cond(g.input(np.array([1.0, 0.0, 1.0])), a, b),
        lambda a, b: jnp.where(np.array([True, False, True]), a, b),
        (X, W),
    ),
    "Reshape": Case(lambda g, a: g.reshape(g.mul(a, a), [3, 2]), lambda a: (a * a).reshape(3, 2), (X,)),
    "TransposeOp": Case(lambda g, a: g.transpose_op(g.mul(a, a)), lambda a: (a * a).T, (X,)),
    "CatOp": Case(lambda g, a, b: g.cat([a, b, a], 0), lambda a, b: jnp.concatenate([a, b, a]), (X, W)),
    "GatherOp": Case(lambda g, a: g.gather(g.mul(a, a), [2, 0, 2], 1), lambda a: (a * a)[:, INDEX], (X,)),
}


def test_every_operation_of_the_typed_graph_is_here() -> None:
    assert set(GRAPH) == {v.__name__ for v in get_args(AnyGradOp)}
    assert len(GRAPH) == 34


@pytest.mark.parametrize("name", GRAPH)
def test_the_typed_graph_agrees_with_jax(name: str) -> None:
    case = GRAPH[name]
    u, tangents, value, cotangents, tangent, second = theirs_all(case.theirs, case.inputs, 8)
    graph = GradGraph()
    parameters = [graph.parameter(x) for x in case.inputs]
    out = case.ours(graph, *parameters)
    assert name in {type(op).__name__ for op in graph.nodes()}
    close(graph.tensor(out), value, "value")
    graph.backward_with_seed(out, u)
    start, along = 0, np.zeros(u.size)
    weighted = graph.mul(out, graph.input(u))
    for p, x, expected, t in zip(parameters, case.inputs, cotangents, tangents, strict=True):
        close(graph.grad(p), expected, "gradient")
        along += graph.jacobian(out, p) @ t.ravel()
        block = second[start : start + x.size, start : start + x.size]
        close(graph.hessian(weighted, p), block, "Hessian")
        close(np.ravel(graph.hessian_diag(weighted, p)), np.diag(block), "the Hessian's diagonal")
        start += x.size
    close(along, tangent.ravel(), "Jacobian times tangent")


TAPE: dict[str, Case] = {
    "add": Case(lambda t, a, b: t.record_add(a, b), lambda a, b: a + b, (X, W)),
    "mul": Case(lambda t, a, b: t.record_mul(a, b), lambda a, b: a * b, (X, W)),
    "matmul": Case(
        lambda t, a, b: t.record_matmul(a, b, flat=True), lambda a, b: (a @ b).reshape(-1), (X, real("b", 3, 2))
    ),
    "silu": Case(lambda t, a: t.record_silu(a), jax.nn.silu, (X,)),
    "layer_norm": Case(
        lambda t, x, s, b: t.record_layer_norm(x, scale=s, bias=b), lambda x, s, b: normalized(x, -1) * s + b,
        (X, real("s", 3), real("b", 3)),
    ),
    "ssm_scan": Case(
        lambda t, x, a, b, h: t.record_ssm_scan(x, a, b, h), lambda x, a, b, h: scanned(a, b, x, h),
        (real("x", 4, 2), real("a", 4, 2), real("b", 4, 2), real("h", 2)),
    ),
    "softmax": Case(lambda t, a: t.record_softmax(a, axis=1), jax.nn.softmax, (X,)),
    "tanh": Case(lambda t, a: t.record_tanh(a), jnp.tanh, (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAPE)
def test_the_record_tape_agrees_with_jax(name: str) -> None:
    case = TAPE[name]
    u, _, value, cotangents, *_ = theirs_all(case.theirs, case.inputs, 9)
    tape = GradientTape()
    slots = [tape.input(x) for x in case.inputs]
    out = case.ours(tape, *slots)
    close(tape.value(out), value, "value")
    gradients = tape.backward(u)
    for slot, expected in zip(slots, cotangents, strict=True):
        close(gradients[slot], expected, "gradient")
