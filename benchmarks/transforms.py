"""Derivatives of functions: backburn's transforms and those of ``torch.func`` or JAX, alternating in one process.

``python -m benchmarks.transforms [PATTERN ...] [--peer NAME] [--capture] [--threads N] [--json FILE]`` compares the
results for a network of two layers, ``tanh(x @ w + b) @ v``, and prints the ratios of the times, below 1 where backburn
is faster: with 64 inputs, units and examples, and with 256, or with 61 and 251 (``--odd``). JAX's functions are
compiled beforehand, by ``jax.jit``; ``jax-eager`` calls them uncompiled. With ``--capture``, backburn's are recorded
and replayed (``bb.capture``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.functions import Parts, options, report

Tree = dict[str, Any]


class Framework(NamedTuple):
    """The functions of a framework, and its transforms by common names."""

    functions: Any
    tensor: Callable[[Any], Any]
    grad: Callable[..., Any]
    jacobian: Callable[..., Any]
    hessian: Callable[..., Any]
    jvp: Callable[..., Any]
    """The derivative alone."""
    vmap: Callable[..., Any]
    """With the axes of the arguments, 0 or None, by position."""
    prepared: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f
    """The function of trees to time, which returns once its result is computed."""


def ours(is_captured: bool = False) -> Framework:
    """Backburn, whose functions may be replayed."""
    import backburn as bb

    spec = "capture(numpy)" if is_captured else "numpy"
    captured = partial(bb.capture, state=False, on_fallback="error")
    return Framework(
        bb, partial(bb.asarray, backend=spec), bb.grad, bb.jacobian, bb.hessian,
        lambda f, x, t: bb.jvp(f, (x,), (t,))[1], lambda f, *axes: bb.vmap(f, in_axes=axes),
        captured if is_captured else lambda f: f,
    )  # fmt: skip


def torch_framework() -> Framework:
    """PyTorch."""
    import torch
    from torch import func

    return Framework(
        torch, torch.from_numpy, func.grad, func.jacrev, func.hessian, lambda f, x, t: func.jvp(f, (x,), (t,))[1],
        lambda f, *axes: func.vmap(f, in_dims=axes),
    )  # fmt: skip


def jax_framework(is_compiled: bool = True) -> Framework:
    """JAX."""
    import jax

    def prepared(f: Callable[..., Any]) -> Callable[..., Any]:
        called = jax.jit(f) if is_compiled else f
        return lambda *arguments: jax.block_until_ready(called(*arguments))

    return Framework(
        jax.numpy, jax.numpy.asarray, jax.grad, jax.jacrev, jax.hessian, lambda f, x, t: jax.jvp(f, (x,), (t,))[1],
        lambda f, *axes: jax.vmap(f, in_axes=axes), prepared,
    )  # fmt: skip


PEERS: dict[str, Callable[[], Framework]] = {
    "torch": torch_framework,
    "jax": jax_framework,
    "jax-eager": partial(jax_framework, False),
}


def network(f: Framework, model: Tree, x: Any) -> Any:
    """One number per example, for a batch or a single example."""
    return (f.functions.tanh(x @ model["w"] + model["b"]) * model["v"]).sum(-1)


def loss(f: Framework, model: Tree, x: Any, y: Any) -> Any:
    """The mean squared error."""
    return ((network(f, model, x) - y) ** 2).mean()


def after_a_step(f: Framework, model: Tree, x: Any, y: Any) -> Any:
    """The loss on the second half of the examples after a step of gradient descent on the first."""
    half = x.shape[0] // 2
    slope = f.grad(partial(loss, f))(model, x[:half], y[:half])
    return loss(f, {name: model[name] - 0.1 * slope[name] for name in model}, x[half:], y[half:])


def trace(f: Framework, matrix: Any) -> Any:
    """The sum of the diagonal."""
    return f.functions.diagonal(matrix).sum()


#: Functions of a framework, a model, examples and their targets; each returns a tree or a tensor.
CASES: dict[str, Callable[[Framework, Tree, Any, Any], Any]] = {
    "gradient": lambda f, m, x, y: f.grad(partial(loss, f))(m, x, y),
    "gradient of each example": lambda f, m, x, y: f.vmap(f.grad(partial(loss, f)), None, 0, 0)(m, x, y),
    "directional derivative": lambda f, m, x, y: f.jvp(lambda m: network(f, m, x), m, m),
    "Hessian by vector": lambda f, m, x, y: f.jvp(lambda m: f.grad(partial(loss, f))(m, x, y), m, m),
    "Jacobian of the layer": lambda f, m, x, y: f.jacobian(lambda x: f.functions.tanh(x @ m["w"] + m["b"]))(x[0]),
    "Hessian by the input": lambda f, m, x, y: f.hessian(partial(network, f, m))(x[0]),
    "Laplacian of 16 examples": lambda f, m, x, y: f.vmap(lambda x: trace(f, f.hessian(partial(network, f, m))(x)), 0)(
        x[:16]
    ),
    "gradients of 8 models": lambda f, m, x, y: f.vmap(f.grad(partial(loss, f)), 0, None, None)(
        {name: f.functions.stack([value] * 8) for name, value in m.items()}, x, y
    ),
    "gradient through a step, 8 tasks": lambda f, m, x, y: f.vmap(f.grad(partial(after_a_step, f)), None, 0, 0)(
        m, *in_tasks(x, y)
    ),
}


def in_tasks(x: Any, y: Any) -> tuple[Any, Any]:
    """The examples divided into 8 tasks of equal size."""
    each = len(y) // 8
    return x[: 8 * each].reshape((8, each, x.shape[1])), y[: 8 * each].reshape((8, each))


def parts(name: str, peer: str, sizes: tuple[str, str], is_captured: bool = False) -> Parts:
    """The calls to time at the two sizes. Raises where the results differ."""
    import numpy as np

    for part in sizes:
        n = int(part)
        draw = np.random.default_rng(0)
        arrays = {"w": draw.normal(size=(n, n)) / n**0.5, "b": draw.normal(size=n), "v": draw.normal(size=n) / n**0.5}
        x, y = draw.normal(size=(n, n)), draw.normal(size=n)
        calls = []
        for f in (ours(is_captured), PEERS[peer]()):
            model = {key: f.tensor(value.astype(np.float32)) for key, value in arrays.items()}
            operands = model, *(f.tensor(a.astype(np.float32)) for a in (x, y))
            calls.append(partial(f.prepared(partial(CASES[name], f)), *operands))
        found, expected = ([call() for _ in range(3)][-1] for call in calls)  # the third is a replay
        for key in expected if isinstance(expected, dict) else [...]:
            theirs = np.asarray(expected[key])
            np.testing.assert_allclose(found[key].numpy(), theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
        yield part, calls[0], calls[1]


def main() -> None:
    """Measure transforms."""
    parser = options(__doc__)
    parser.add_argument("--peer", default="torch", choices=PEERS)
    parser.add_argument("--capture", action="store_true", help="replay backburn's functions")
    parser.add_argument("--odd", action="store_true", help="take sizes that are not multiples of a vector's length")
    chosen = parser.parse_args()
    sizes = ("61", "251") if chosen.odd else ("64", "256")
    report(chosen, sizes, ((name, partial(parts, name, chosen.peer, sizes, chosen.capture)) for name in CASES))


if __name__ == "__main__":
    main()
