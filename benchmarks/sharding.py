"""What ``sharded`` adds to a call and to a training step: ``python -m benchmarks.sharding [--json FILE]``.

Calls are on float32 tensors of 4 by 8 elements, in microseconds, the minimum of many short runs; two shards are both in
this process. A step is that of an MLP of 784, 1024, 1024 and 10 features on 128 rows with AdamW; the backends
alternate, and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import nn, optim
from backburn.backend import load_backend
from backburn.nn.functional import cross_entropy

Calls = dict[str, Callable[[], Any]]


def calls(k: Any, cut: bool) -> Calls:
    """Calls of a backend; with ``cut``, the rows of the first operand are split."""

    def rows(x: Any) -> Any:
        return k.cut(x, 0) if cut else x

    x, y, bias = (k.from_numpy(np.ones(shape, np.float32)) for shape in ((4, 8), (8, 4), (8,)))
    x, y_rows = rows(x), rows(y)
    return {
        "exp": lambda: k.exp(x),
        "add": lambda: k.add(x, x),
        "add a row": lambda: k.add(x, bias),
        "matmul": lambda: k.matmul(x, y),
        "matmul, the second joined": lambda: k.matmul(x, y_rows),
        "softmax": lambda: k.softmax(x, 1),
        "sum": lambda: k.sum(x, (0,), False),
        "reshape": lambda: k.reshape(x, (4, 2, 4)),
    }


def microseconds(function: Callable[[], Any]) -> float:
    """The least time of a call."""
    return min(timeit.repeat(function, number=200, repeat=100)) / 200 * 1e6


def of_calls() -> dict[str, dict[str, float]]:
    """The time of each call on the backend, on one shard and on two."""
    plain, one, two = (load_backend(spec) for spec in ("numpy", "sharded(numpy, dp=1)", "sharded(numpy, dp=2)"))
    columns = {"numpy": calls(plain, False), "dp=1": calls(one, True), "dp=2": calls(two, True)}
    return {name: {column: microseconds(own[name]) for column, own in columns.items()} for name in columns["numpy"]}


def stepper(backend: str) -> Callable[[], float]:
    """A function that takes a training step and returns its time in milliseconds."""
    with bb.use_backend(backend):
        bb.random.seed(0)
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        optimizer, rng = optim.AdamW(1e-3), np.random.default_rng(0)
        x, y = bb.asarray(rng.normal(size=(128, 784)).astype(np.float32)), bb.asarray(rng.integers(0, 10, 128))

    def step() -> float:
        with bb.use_backend(backend):
            begin = time.perf_counter()
            optimizer.step(model, cross_entropy(model(x), y).backward())
            return (time.perf_counter() - begin) * 1e3

    return step


def of_steps(rounds: int) -> dict[str, float]:
    """The median time of a step on each backend, alternating."""
    steps = {spec: stepper(spec) for spec in ("autodiff(numpy)", "autodiff(sharded(numpy, dp=1))")}
    times: dict[str, list[float]] = {spec: [] for spec in steps}
    for number in range(rounds + 5):
        for spec, step in steps.items():
            taken = step()
            if number >= 5:
                times[spec].append(taken)
    return {spec: statistics.median(own) for spec, own in times.items()}


def main() -> int:
    """Measure, print, and write a file if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="training steps of each backend")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    columns, steps = of_calls(), of_steps(options.rounds)
    print(f"{'call':<26} {'numpy':>8} {'dp=1':>8} {'more':>8} {'dp=2':>8}  us")
    for name, own in columns.items():
        print(f"{name:<26} {own['numpy']:8.2f} {own['dp=1']:8.2f} {own['dp=1'] - own['numpy']:8.2f} {own['dp=2']:8.2f}")
    plain, one = steps.values()
    print(f"step: {plain:.2f} ms, on one shard {one:.2f} ms ({one / plain - 1:+.1%})")
    if options.json:
        options.json.write_text(json.dumps({"calls": columns, "steps": steps}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
