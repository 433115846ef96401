"""Weak scaling of a training step over processes: backburn's shards, and DistributedDataParallel of PyTorch over gloo.

``python -m benchmarks.scaling [--ranks N] [--hidden H] [--rows R] [--rounds K] [--seconds S] [--json FILE]`` trains a
perceptron 784-H-H-10 by SGD with momentum, with R rows and one thread for each process. Programs of one process and of
several alternate, each started by ``backburn launch``; a round's time is the least of its stretches. It prints the
median milliseconds of a step and the efficiency: the time of one process with R rows, divided by that of N processes
with R rows each, 1 where communication costs nothing. PyTorch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Stretches of steps in a program, of which the quickest counts.
STRETCHES = 5


def ours(ranks: int, hidden: int, rows: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """A step on ``ranks`` shards, or on the plain backend for one; and a function that agrees on a number."""
    import numpy as np

    import backburn as bb
    from backburn import distributed, nn, optim
    from backburn.nn.functional import cross_entropy

    mesh = distributed.mesh(dp=ranks) if ranks > 1 else None
    draw = np.random.default_rng(0)
    with bb.use_backend(mesh.backend("autodiff(numpy)") if mesh else "autodiff(numpy)"):
        bb.random.seed(0)
        model: Any = nn.Sequential(
            nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )
        x = bb.asarray(draw.standard_normal((ranks * rows, 784)).astype(np.float32))
        y = bb.asarray(draw.integers(0, 10, ranks * rows))
    if mesh is not None:
        x, y = distributed.place(x, {"dp": 0}), distributed.place(y, {"dp": 0})
    optimizer = optim.SGD(0.01, momentum=0.9)

    def step() -> None:
        optimizer.step(model, cross_entropy(model(x), y).backward())

    return step, (lambda n: max(mesh.communicator.gather_objects(n))) if mesh is not None else lambda n: n


def theirs(ranks: int, hidden: int, rows: int, file: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """PyTorch's step, and a function that agrees on a number."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from backburn.communicators import launched

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )
    agree: Callable[[Any], Any] = lambda n: n  # noqa: E731 - replaced for several processes
    if ranks > 1:
        rank = (launched() or (0, 1))[0]
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
        model = nn.parallel.DistributedDataParallel(model)

        def agree(n: Any) -> Any:
            most = torch.tensor(float(n))
            dist.all_reduce(most, dist.ReduceOp.MAX)
            return most.item()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(rows, 784), torch.randint(0, 10, (rows,))

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step, agree


def on_each_rank(options: argparse.Namespace) -> None:
    """Measure one program; the first process writes the seconds of a step to ``options.file``."""
    from backburn.communicators import launched

    sizes = options.ranks, options.hidden, options.rows
    step, agree = theirs(*sizes, options.file + ".store") if options.peer else ours(*sizes)
    begun = time.perf_counter()
    for _ in range(3):
        step()
    steps = max(3, int(options.seconds / agree((time.perf_counter() - begun) / 3)))
    best = float("inf")
    for _ in range(STRETCHES):
        agree(0)
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        best = min(best, agree((time.perf_counter() - begun) / steps))
    if (launched() or (0, 1))[0] == 0:
        Path(options.file).write_text(str(best), encoding="utf-8")
    if options.peer:
        agree(0)
        os._exit(0)  # with a normal exit, gloo's threads abort in some processes


def seconds_of(options: argparse.Namespace, ranks: int, peer: bool) -> float:
    """Start one program, and return the seconds of its step."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "seconds")
        sizes = ["--ranks", str(ranks), "--hidden", str(options.hidden), "--rows", str(options.rows)]
        sizes += ["--seconds", str(options.seconds)]
        command = [sys.executable, "-m", "backburn", "launch", "-n", str(ranks), "python", "-m", "benchmarks.scaling"]
        one = dict.fromkeys(("BACKBURN_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        subprocess.run(
            [*command, *sizes, "--file", file, *(["--peer"] if peer else [])], check=True, env={**os.environ, **one}
        )
        return float(Path(file).read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=128, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a stretch of steps")
    parser.add_argument("--json", help="write the seconds of each program")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None:
        on_each_rank(options)
        return 0
    peers = {"backburn": False, **({"PyTorch": True} if importlib.util.find_spec("torch") else {})}
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, peer in peers.items():
            for ranks in (1, options.ranks):
                found.setdefault(f"{name}, {ranks}", []).append(seconds_of(options, ranks, peer))
    for name in peers:
        one, several = (statistics.median(found[f"{name}, {ranks}"]) for ranks in (1, options.ranks))
        print(
            f"{name}: 784-{options.hidden}-{options.hidden}-10, {options.rows} rows for each process: {1e3 * one:.2f} "
            f"ms on 1, {1e3 * several:.2f} ms on {options.ranks}, efficiency {one / several:.2f}"
        )
    if options.json is not None:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
