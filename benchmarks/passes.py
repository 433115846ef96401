"""Recorded functions that passes compute, against PyTorch (eager, compiled) and JAX (compiled).

``python -m benchmarks.passes [PATTERN ...] [--seconds S] [--sides SIDE ...] [--odd] [--json FILE]``. Every side is a
process of one thread; the sides run alternately, while the others wait. The table has the median CPU time in
milliseconds, and the ratio of ours to the best peer's, with its minimum and maximum over the rounds. ``--odd`` takes
widths that are not multiples of a vector's length.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.steps import Side, integers, numbers

SIDES = ("captured", "torch", "compiled", "jax")


class Case(NamedTuple):
    """A function of a namespace and arrays, the arrays, and how many of them get gradients.

    If the value is not a scalar, the last array is its cotangent.
    """

    function: Callable[..., Any]
    arrays: Callable[[int, int], tuple[Any, ...]]
    tracked: int
    sizes: tuple[tuple[int, int], tuple[int, int]]


def chain(k: Any, x: Any, approximate: str = "tanh") -> Any:
    """A GELU and a sigmoid."""
    return k.sigmoid(k.gelu(x, approximate)).sum()


def head(k: Any, x: Any, scale: Any, bias: Any, labels: Any) -> Any:
    """Layer norm, softmax, and the logarithm of the picked entries."""
    shares = k.softmax(k.layer_norm(x, scale, bias))
    return -k.log(k.pick(shares + 1e-9, labels)).mean()


def outer(k: Any, x: Any, y: Any) -> Any:
    """The logarithms of sums of exponentials, and the variances of columns, of an outer product."""
    product = x * y
    return k.logsumexp(product).sum() + k.variances(product).sum()


def ten(k: Any, x: Any) -> Any:
    """Ten element-wise operations, and one more."""
    y = x * 1.5 + 0.5
    z = y * y - x
    return k.exp(-k.abs(z)) * y / (k.abs(z) + 1.0) + x


def affine(k: Any, x: Any, scale: Any, shift: Any, _: Any) -> Any:
    """A GELU of a scaled and shifted array."""
    return k.gelu(x * scale + shift, "none")


CASES = {
    "GELU (tanh), sigmoid, sum": Case(chain, lambda n, _: (numbers(n),), 1, ((4_000_000, 1), (4_000_007, 1))),
    "GELU, sigmoid, sum": Case(
        lambda k, x: chain(k, x, "none"), lambda n, _: (numbers(n),), 1, ((4_000_000, 1), (4_000_007, 1))
    ),
    "layer norm, softmax, logarithm, pick": Case(
        head, lambda n, m: (numbers(n, m), numbers(m), numbers(m, seed=1), integers(m, n)), 3,
        ((4096, 1024), (4096, 1021)),
    ),
    "outer product, log-sum-exp, variances": Case(
        outer, lambda n, m: (numbers(n, 1), numbers(m)), 2, ((512, 2048), (512, 2045))
    ),
    "layer norm": Case(
        lambda k, x, scale, bias, _: k.layer_norm(x, scale, bias),
        lambda n, m: (numbers(n, m), numbers(m), numbers(m, seed=1), numbers(n, m, seed=2)), 3,
        ((4096, 1024), (4096, 1021)),
    ),
    "ten operations, without gradients": Case(ten, lambda n, _: (numbers(n),), 0, ((1_000_000, 1), (1_000_003, 1))),
    "bias and GELU": Case(
        lambda k, x, bias, _: k.gelu(x + bias, "none"),
        lambda n, m: (numbers(n, m), numbers(m), numbers(n, m, seed=2)), 2, ((2048, 512), (2048, 509)),
    ),
    "residual and layer norm": Case(
        lambda k, x, y, scale, bias, _: k.layer_norm(x + y, scale, bias),
        lambda n, m: (numbers(n, m), numbers(n, m, seed=1), numbers(m), numbers(m), numbers(n, m, seed=2)), 4,
        ((2048, 128), (2048, 125)),
    ),
    "scale and shift of samples, GELU": Case(
        affine,
        lambda n, m: (numbers(8, n, m), numbers(8, 1, m), numbers(8, 1, m, seed=1), numbers(8, n, m, seed=2)), 3,
        ((256, 512), (255, 509)),
    ),
    "scale and shift of channels, GELU": Case(
        affine,
        lambda n, m: (numbers(16, 64, n, m), numbers(64, 1, 1), numbers(64, 1, 1, seed=1),
                      numbers(16, 64, n, m, seed=2)), 3,
        ((32, 32), (31, 29)),
    ),
}  # fmt: skip


# ---- one side ----


def of_backburn(case: Case, arrays: tuple[Any, ...]) -> Callable[[], Any]:
    import backburn as bb
    from backburn.nn import functional

    k = SimpleNamespace(
        sigmoid=bb.sigmoid, gelu=lambda x, how: functional.gelu(x, approximate=how), exp=bb.exp, abs=bb.abs, log=bb.log,
        layer_norm=functional.layer_norm, softmax=lambda x: bb.softmax(x, axis=-1),
        pick=lambda x, at: bb.take_along_axis(x, bb.reshape(at, (-1, 1)), axis=1),
        logsumexp=lambda x: bb.logsumexp(x, axis=1), variances=lambda x: bb.var(x, axis=0),
    )  # fmt: skip

    def step(*given: Any) -> Any:
        tracked, others = given[: case.tracked], given[case.tracked :]
        if not tracked:
            return case.function(k, *given)
        value, pull = bb.vjp(lambda *x: case.function(k, *x, *others), *tracked)
        return value, pull(others[-1] if value.ndim else bb.ones_like(value))

    leaves = [bb.asarray(x, backend="autodiff(capture(numpy))") for x in arrays]
    captured = bb.capture(step, state=False, on_fallback="error")
    return lambda: captured(*leaves)


def of_torch(case: Case, arrays: tuple[Any, ...], is_compiled: bool) -> Callable[[], Any]:
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    k = SimpleNamespace(
        sigmoid=torch.sigmoid, gelu=lambda x, how: functional.gelu(x, approximate=how), exp=torch.exp, abs=torch.abs,
        layer_norm=lambda x, scale, bias: functional.layer_norm(x, x.shape[1:], scale, bias), log=torch.log,
        softmax=lambda x: torch.softmax(x, -1), pick=lambda x, at: x.gather(1, at[:, None]),
        logsumexp=lambda x: torch.logsumexp(x, 1), variances=lambda x: x.var(0, correction=0),
    )  # fmt: skip
    function: Any = lambda *x: case.function(k, *x)  # noqa: E731
    function = torch.compile(function) if is_compiled else function
    leaves = [torch.from_numpy(x) for x in arrays]

    def step() -> Any:
        given = [x.detach().requires_grad_(i < case.tracked) if i < case.tracked else x for i, x in enumerate(leaves)]
        value = function(*given)
        if not case.tracked:
            return value
        return value, torch.autograd.grad(value, given[: case.tracked], leaves[-1] if value.ndim else None)

    return step


def of_jax(case: Case, arrays: tuple[Any, ...]) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias

    k = SimpleNamespace(
        sigmoid=jax.nn.sigmoid, gelu=lambda x, how: jax.nn.gelu(x, approximate=how == "tanh"), exp=jnp.exp, abs=jnp.abs,
        layer_norm=layer_norm, log=jnp.log, softmax=lambda x: jax.nn.softmax(x, -1),
        pick=lambda x, at: jnp.take_along_axis(x, at[:, None], 1), variances=lambda x: x.var(0),
        logsumexp=lambda x: jax.scipy.special.logsumexp(x, 1),
    )  # fmt: skip

    def step(*given: Any) -> Any:
        if not case.tracked:
            return case.function(k, *given)
        tracked, others = given[: case.tracked], given[case.tracked :]
        value, pull = jax.vjp(lambda *x: case.function(k, *x, *others), *tracked)
        return value, pull(others[-1] if value.ndim else jnp.ones_like(value))

    leaves = [jnp.asarray(x) for x in arrays]
    compiled: Any = jax.jit(step)
    ready: Any = jax.block_until_ready
    return lambda: ready(compiled(*leaves))


def work(side: str) -> None:
    """Answer requests, one line each: build a case, or measure the CPU time of a number of runs."""
    import numpy as np

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a compiler's output goes to standard error
    step: Callable[[], Any] = int
    for line in sys.stdin:
        request = json.loads(line)
        answer = 0.0
        if request[0] == "build":
            case = CASES[request[1]]
            arrays = case.arrays(*case.sizes[request[2]])
            if side == "captured":
                step = of_backburn(case, arrays)
            else:
                step = of_jax(case, arrays) if side == "jax" else of_torch(case, arrays, side == "compiled")
            made = [step() for _ in range(4)][-1]
            value = made[0] if isinstance(made, tuple | list) else made
            answer = float(np.sum(np.asarray(value.detach() if side != "jax" else value), dtype=np.float64))
        else:
            start = time.process_time()
            for _ in range(request[1]):
                step()
            answer = (time.process_time() - start) / request[1]
        print(json.dumps(answer), file=answers, flush=True)


# ---- all sides, alternating ----


def compare(name: str, is_odd: bool, chosen: Sequence[str], seconds: float) -> tuple[str, dict[str, float]]:
    """A line of the table, and the milliseconds of each side, measured in separate processes."""
    times: dict[str, list[float]] = {side: [] for side in chosen}
    sides = [Side(side, 1, "benchmarks.passes") for side in chosen]
    try:
        values = {side.name: side.ask("build", name, is_odd) for side in sides}
        if not all(math.isclose(value, values[chosen[0]], rel_tol=1e-3, abs_tol=0.1) for value in values.values()):
            raise SystemExit(f"{name}: the results of the sides differ; their sums are {values}")
        repeats = {side.name: max(1, round(0.2 / side.ask("time", 3))) for side in sides}
        end = time.perf_counter() + seconds * len(sides)
        while time.perf_counter() < end or len(times[chosen[0]]) < 5:
            for side in sides:
                times[side.name].append(side.ask("time", repeats[side.name]))
    finally:
        for side in sides:
            side.close()
    middle = {side: 1e3 * statistics.median(values) for side, values in times.items()}
    line = f"{name:40}" + "".join(f"{value:10.2f}" for value in middle.values())
    peers = {side: value for side, value in middle.items() if side != "captured"}
    if "captured" in middle and peers:
        best = min(peers, key=lambda side: peers[side])
        ratios = [mine / theirs for mine, theirs in zip(times["captured"], times[best], strict=True)]
        line += f"   {middle['captured'] / peers[best]:.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of {best}"
    return line, middle


def main() -> None:
    """Measure passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each side of a case, about")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--odd", action="store_true", help="sizes that are not multiples of a vector's length")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=SIDES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        return work(chosen.work)
    names = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in chosen.patterns)]
    found: dict[str, dict[str, float]] = {}
    print(f"{'ms of processor time, one thread':40}" + "".join(f"{side:>10}" for side in chosen.sides))
    for name in names:
        line, found[name] = compare(name, chosen.odd, chosen.sides, chosen.seconds)
        print(line, flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
