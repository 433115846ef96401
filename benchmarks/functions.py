"""Functions one by one, backburn's and PyTorch's alternating in one process.

``python -m benchmarks.functions [PATTERN ...] [--side N] [--dtype D] [--threads N] [--json FILE]`` compares the results
on matrices of N x N, and prints the ratios of the times, below 1 where backburn is faster: of a call, and of a call
with the gradients of its float operands. A pattern such as ``*loss`` selects functions.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

Function = Callable[..., Any]
#: The parts of a case: name, backburn's function, PyTorch's function.
Parts = Iterator[tuple[str, Function, Function]]
#: Cases by name; the parts of each are created when it is measured.
Cases = Iterable[tuple[str, Callable[[], Parts]]]


class Case(NamedTuple):
    """A function of both frameworks, and its operands as NumPy arrays; the first ``leaves`` of them have gradients."""

    name: str
    ours: Function
    theirs: Function
    operands: tuple[Any, ...]
    leaves: int = 1
    is_random: bool = False


def cases(n: int) -> Iterator[Case]:
    """Every case, on matrices of ``n`` x ``n``."""
    import numpy as np
    import torch
    import torch.nn.functional as theirs

    import backburn as bb
    import backburn.nn.functional as ours

    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(n, n)), draw.normal(size=(n, n))
    positive, fraction = draw.uniform(0.1, 3.0, (n, n)), draw.uniform(0.05, 0.95, (n, n))
    index, labels = draw.integers(0, n, (n, n)), draw.integers(0, n, n)
    vector = draw.normal(size=n)

    # Functions with the same name in both frameworks.
    real = "abs exp expm1 sin cos tan sinh cosh tanh atan asinh erf erfc sigmoid square negative"
    positives = "log log1p log2 sqrt rsqrt reciprocal lgamma digamma"
    activations = "relu gelu silu elu selu celu mish softplus softsign hardtanh leaky_relu relu6 tanhshrink softshrink"
    for module, peer, names, operand in (
        (bb, torch, real, x), (bb, torch, positives, positive), (bb, torch, "asin acos atanh erfinv", fraction),
        (ours, theirs, activations, x),
    ):  # fmt: skip
        for name in names.split():
            yield Case(name, getattr(module, name), getattr(peer, name), (operand,))
    for name in ["floor", "ceil", "round", "sign", "isnan", "isfinite"]:
        yield Case(name, getattr(bb, name), getattr(torch, name), (x,), leaves=0)
    for name in ["maximum", "minimum", "atan2", "hypot", "logaddexp", "pow"]:
        yield Case(name, getattr(bb, name), getattr(torch, name), (positive, fraction), leaves=2)
    for name in ["equal", "less", "logical_xor"]:
        peer_name = {"equal": "eq", "less": "lt"}.get(name, name)
        operands = (x > 0, y > 0) if "logical" in name else (x, y)
        yield Case(name, getattr(bb, name), getattr(torch, peer_name), operands, leaves=0)
    for name in ["l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss"]:
        yield Case(name, getattr(ours, name), getattr(theirs, name), (x, y), leaves=2)

    other: list[tuple[str, Function, Function, tuple[Any, ...], int]] = [
        # element by element
        ("add", bb.add, torch.add, (x, y), 2),
        ("subtract", bb.subtract, torch.sub, (x, y), 2),
        ("multiply", bb.multiply, torch.mul, (x, y), 2),
        ("divide", bb.divide, torch.div, (x, positive), 2),
        ("add a number", lambda x: x + 1.5, lambda x: x + 1.5, (x,), 1),
        ("add a row", bb.add, torch.add, (x, vector), 2),
        ("add a column", bb.add, torch.add, (x, vector[:, None]), 2),
        ("square by pow", lambda x: x**2, lambda x: x**2, (x,), 1),
        ("remainder", bb.remainder, torch.remainder, (x, positive), 0),
        ("clip", lambda x: bb.clip(x, -1.0, 1.0), lambda x: torch.clip(x, -1.0, 1.0), (x,), 1),
        ("where", lambda x, y: bb.where(x > 0, x, y), lambda x, y: torch.where(x > 0, x, y), (x, y), 2),
        ("lerp", bb.lerp, torch.lerp, (x, y, fraction), 2),
        ("gelu, tanh", partial(ours.gelu, approximate="tanh"), partial(theirs.gelu, approximate="tanh"), (x,), 1),
        ("log_sigmoid", ours.log_sigmoid, theirs.logsigmoid, (x,), 1),
        ("hard_swish", ours.hard_swish, theirs.hardswish, (x,), 1),
        ("hard_sigmoid", ours.hard_sigmoid, theirs.hardsigmoid, (x,), 1),
        ("glu", partial(ours.glu, axis=-1), partial(theirs.glu, dim=-1), (x,), 1),
        # rows and columns
        *(
            (f"{f} of {what}", partial(getattr(bb, f), axis=axis), partial(getattr(torch, f), dim=axis), (x,), 1)
            for f in ("sum", "mean", "logsumexp", "softmax", "log_softmax")
            for what, axis in (("rows", 1), ("columns", 0))
        ),
        ("sum", bb.sum, torch.sum, (x,), 1),
        ("mean", bb.mean, torch.mean, (x,), 1),
        ("var", bb.var, partial(torch.var, correction=0), (x,), 1),
        ("std of rows", partial(bb.std, axis=1), partial(torch.std, dim=1, correction=0), (x,), 1),
        ("max", bb.max, torch.amax, (x,), 1),
        ("max of rows", partial(bb.max, axis=1), partial(torch.amax, dim=1), (x,), 1),
        ("prod of rows", partial(bb.prod, axis=1), partial(torch.prod, dim=1), (1.0 + 0.01 * x,), 1),
        ("argmax of rows", partial(bb.argmax, axis=1), partial(torch.argmax, dim=1), (x,), 0),
        ("any of rows", partial(bb.any, axis=1), partial(torch.any, dim=1), (x > 3,), 0),
        ("norm", bb.linalg.vector_norm, torch.linalg.vector_norm, (x,), 1),
        ("cumulative sum of rows", partial(bb.cumulative_sum, axis=1), partial(torch.cumsum, dim=1), (x,), 1),
        ("cumulative sum of columns", partial(bb.cumulative_sum, axis=0), partial(torch.cumsum, dim=0), (x,), 1),
        ("layer_norm", lambda x: ours.layer_norm(x, axis=-1), lambda x: theirs.layer_norm(x, (n,)), (x,), 1),
        ("rms_norm", lambda x: ours.rms_norm(x, axis=-1), lambda x: theirs.rms_norm(x, (n,), eps=1e-5), (x,), 1),
        ("rfft", lambda x: bb.fourier.rfft(x)[0], lambda x: torch.fft.rfft(x).real, (x,), 1),
        # order
        ("sort", bb.sort, lambda x: torch.sort(x).values, (x,), 1),
        ("argsort", bb.argsort, partial(torch.argsort, stable=True), (x,), 0),
        ("topk", lambda x: bb.topk(x, 3)[0], lambda x: torch.topk(x, 3).values, (x,), 1),
        ("median of rows", lambda x: bb.quantile(x, 0.5, axis=1), lambda x: torch.quantile(x, 0.5, dim=1), (x,), 1),
        ("unique", bb.unique_values, torch.unique, (index,), 0),
        ("searchsorted", bb.searchsorted, torch.searchsorted, (np.sort(vector), x), 0),
        # moves
        ("transposed copy", lambda x: x.T + 0.0, lambda x: x.T + 0.0, (x,), 1),
        ("concat", lambda x, y: bb.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1), (x, y), 2),
        ("stack", lambda x, y: bb.stack([x, y]), lambda x, y: torch.stack([x, y]), (x, y), 2),
        ("flip", partial(bb.flip, axis=1), partial(torch.flip, dims=(1,)), (x,), 1),
        ("roll", lambda x: bb.roll(x, 3, axis=1), lambda x: torch.roll(x, 3, 1), (x,), 1),
        ("tile", lambda x: bb.tile(x, (2, 1)), lambda x: torch.tile(x, (2, 1)), (x,), 1),
        ("pad", lambda x: bb.pad(x, 2), lambda x: theirs.pad(x, (2, 2, 2, 2)), (x,), 1),
        ("triu", bb.triu, torch.triu, (x,), 1),
        # indices
        ("rows by index", lambda x, i: bb.take(x, i, axis=0), lambda x, i: x[i], (x, labels), 1),
        ("gather", lambda x, i: bb.take_along_axis(x, i, axis=1), lambda x, i: torch.gather(x, 1, i), (x, index), 1),
        (
            "scatter and add",
            lambda x, i, y: bb.scatter(x, i, y, axis=1, mode="add"),
            lambda x, i, y: torch.scatter_add(x, 1, i, y),
            (x, index, y),
            1,
        ),
        ("index_add", partial(bb.index_add, axis=0), lambda x, i, y: x.index_add(0, i, y), (x, labels, y), 1),
        ("select by mask", lambda x: x[x > 0], lambda x: x[x > 0], (x,), 0),
        ("slices", lambda x: x[::2, 1:-1] + 0.0, lambda x: x[::2, 1:-1] + 0.0, (x,), 1),
        # products and decompositions
        ("matmul", bb.matmul, torch.matmul, (x, y), 2),
        ("matmul, transposed", lambda x, y: x.T @ y, lambda x, y: x.T @ y, (x, y), 2),
        ("matrix by vector", bb.matmul, torch.matmul, (x, vector), 2),
        # losses
        ("cross_entropy", ours.cross_entropy, theirs.cross_entropy, (x, labels), 1),
        (
            "cross_entropy of pixels",
            lambda x, i: ours.cross_entropy(x[None], i[None], axis=1),
            lambda x, i: theirs.cross_entropy(x[None], i[None]),
            (x, labels),
            1,
        ),
        ("binary_cross_entropy", ours.binary_cross_entropy, theirs.binary_cross_entropy, (fraction, 1.0 * (x > 0)), 1),
        (
            "binary_cross_entropy_with_logits",
            ours.binary_cross_entropy_with_logits,
            theirs.binary_cross_entropy_with_logits,
            (x, fraction),
            1,
        ),
        (
            "kl_div_loss",
            partial(ours.kl_div_loss, reduction="batchmean"),
            partial(theirs.kl_div, reduction="batchmean"),
            (np.log(fraction), fraction),
            1,
        ),
        ("poisson_nll_loss", ours.poisson_nll_loss, theirs.poisson_nll_loss, (x, positive), 1),
    ]  # fmt: skip
    for name, mine, peers, operands, leaves in other:
        yield Case(name, mine, peers, operands, leaves)

    # Decompositions of a million elements would take too long.
    m = min(n, 200)
    regular, definite = x[:m, :m] + 2 * m**0.5 * np.eye(m), x[:m, :m] @ x[:m, :m].T / m + np.eye(m)
    for name, operand in (("inv", regular), ("det", regular / m**0.5), ("cholesky", definite), ("eigvalsh", definite)):
        yield Case(f"{name}, {m} x {m}", getattr(bb.linalg, name), getattr(torch.linalg, name), (operand,))
    yield Case(f"solve, {m} x {m}", bb.linalg.solve, torch.linalg.solve, (regular, y[:m, :m]), 2)
    yield Case(f"svdvals, {m} x {m}", bb.linalg.svdvals, torch.linalg.svdvals, (regular,))

    for name, mine, peers in (
        ("random, normal", lambda: bb.random.normal((n, n)), lambda: torch.randn(n, n)),
        ("random, uniform", lambda: bb.random.uniform((n, n)), lambda: torch.rand(n, n)),
        ("random, permutation", lambda: bb.random.permutation(n * n), lambda: torch.randperm(n * n)),
    ):
        yield Case(name, mine, peers, (), leaves=0, is_random=True)
    yield Case("dropout", partial(ours.dropout, p=0.5), partial(theirs.dropout, p=0.5), (x,), is_random=True)


def steps(case: Case, dtype: str) -> Parts:
    """The parts to time: a call, and a call with gradients if it has any. Raises where results differ."""
    import numpy as np
    import torch

    import backburn as bb

    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in case.operands]
    mine, peers = [bb.asarray(a) for a in arrays], [torch.tensor(a) for a in arrays]
    result, expected = case.ours(*mine), case.theirs(*peers)
    if not case.is_random:
        far = {"float64": 1e-8, "float32": 2e-3}.get(dtype, 5e-2)
        wide = np.asarray(result.numpy(), np.float64), expected.double().numpy()
        np.testing.assert_allclose(*wide, rtol=far, atol=far * np.abs(wide[1][np.isfinite(wide[1])]).max(initial=1e-3))
    yield "call", lambda: case.ours(*mine), lambda: case.theirs(*peers)
    if not case.leaves:
        return
    tracked = [x.require_grad() if i < case.leaves else x for i, x in enumerate(mine)]
    for leaf in peers[: case.leaves]:
        leaf.requires_grad_()
    weight = np.random.default_rng(9).normal(size=result.shape).astype(dtype)
    ours, theirs = bb.asarray(weight), torch.tensor(weight)

    def step() -> None:
        y = case.ours(*tracked)
        gradients = ((y * ours).sum() if y.ndim else y).backward()
        for x in tracked[: case.leaves]:
            x.grad(gradients)

    def peers_step() -> None:
        y = case.theirs(*peers)
        ((y * theirs).sum() if y.ndim else y).backward()
        for x in peers[: case.leaves]:
            x.grad = None

    yield "with gradients", step, peers_step


def in_turns(ours: Function, theirs: Function, seconds: float) -> tuple[float, float]:
    """The least CPU time per call of each function, over alternating runs for about ``seconds``."""
    repeats = 1
    while (took := _time(ours, repeats) + _time(theirs, repeats)) < seconds / 20:
        repeats *= 1 + max(1, min(9, int(seconds / 20 / max(took, 1e-9))))
    least = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        least = [min(old, _time(f, repeats)) for old, f in zip(least, (ours, theirs), strict=True)]
    return least[0] / repeats, least[1] / repeats


def _time(function: Function, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        function()
    return time.process_time() - start


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of every table of ratios."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure, about")
    parser.add_argument("--json", type=Path)
    return parser


def report(chosen: argparse.Namespace, columns: tuple[str, str], cases: Cases) -> None:
    """Measure the cases whose names match, and print a table of the parts that ``columns`` name."""
    for library in ("BACKBURN", "OPENBLAS", "OMP", "MKL"):  # they read it when they are loaded
        os.environ[f"{library}_NUM_THREADS"] = str(chosen.threads)
    if chosen.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # JAX's
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(chosen.threads)
    found: dict[str, dict[str, float]] = {}
    print(f"| case | {columns[0]} | {columns[1]} | microseconds |\n|---|---|---|---|")
    for name, parts in cases:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in chosen.patterns):
            continue
        times = {part: in_turns(ours, theirs, chosen.seconds) for part, ours, theirs in parts()}
        found[name] = {part: ours / theirs for part, (ours, theirs) in times.items()}
        words = [f"{found[name][part]:.2f}" if part in times else "" for part in columns]
        each = ", ".join(f"{1e6 * ours:,.1f} / {1e6 * theirs:,.1f}" for ours, theirs in times.values())
        print(f"| {name} | {' | '.join(words)} | {each} |", flush=True)
    for part in columns:
        ratios = [figures[part] for figures in found.values() if part in figures]
        if ratios:
            print(f"{part}: geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1), "utf-8")


def main() -> None:
    """Measure functions."""
    parser = options(__doc__)
    parser.add_argument("--side", type=int, default=1000, help="the side of the matrices")
    parser.add_argument("--dtype", default="float32", choices=["float16", "bfloat16", "float32", "float64"])
    chosen = parser.parse_args()
    found = ((case.name, partial(steps, case, chosen.dtype)) for case in cases(chosen.side))
    report(chosen, ("call", "with gradients"), found)


if __name__ == "__main__":
    main()
