"""All-reduce of float32 among processes: backburn's sums in a fixed order, raw mpi4py and PyTorch's gloo, alternating.

``python -m benchmarks.distributed [--ranks N] [--largest BYTES] [--seconds S] [--json FILE]`` starts the processes with
``backburn launch``, compares the results, and prints microseconds and the ratios of backburn's time to the others',
below 1 where backburn is faster. Each time is the slowest process's, as the median over rounds; gloo is left out
without PyTorch.
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

#: Bytes of a buffer; the largest is --largest.
SIZES = [4, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
#: Rounds, in each of which every function takes a turn.
ROUNDS = 15


def steps_of(size: int) -> list[tuple[int, int]]:
    """The additions of a binary tree over neighbours."""
    found, rows = [], list(range(size))
    while len(rows) > 1:
        found += list(zip(rows[::2], rows[1::2], strict=False))
        rows = rows[::2]
    return found


def gloo(rank: int, size: int, file: str) -> Any:
    """PyTorch's module of collectives, initialized with gloo; None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    return torch.distributed


def measure(functions: dict[str, Callable[[], Any]], comm: Any, seconds: float) -> dict[str, float]:
    """The seconds per call of each function, alternating; all processes agree on the number of calls."""
    calls = {}
    for name, function in functions.items():
        function()
        comm.barrier()
        begun = time.perf_counter()
        function()
        function()
        once = max(comm.gather_objects((time.perf_counter() - begun) / 2))
        calls[name] = min(3000, max(1, int(seconds / ROUNDS / once)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            comm.barrier()
            begun = time.perf_counter()
            for _ in range(calls[name]):
                function()
            times[name].append((time.perf_counter() - begun) / calls[name])
    everyone = comm.gather_objects(times)
    return {
        name: statistics.median(max(row) for row in zip(*(own[name] for own in everyone), strict=True))
        for name in functions
    }


def on_each_rank(options: argparse.Namespace) -> None:
    """Measure every size; the first process prints."""
    import numpy as np

    from backburn.backend import load_backend
    from backburn.communicators import load_communicator
    from backburn.communicators.sums import sum_in_order

    comm, k = load_communicator("mpi"), load_backend("numpy")
    from mpi4py import MPI

    raw, peer = MPI.COMM_WORLD.Dup(), gloo(comm.rank, comm.size, options.file)
    steps, found = steps_of(comm.size), {}
    for size in [s for s in SIZES if s <= options.largest]:
        send = np.random.default_rng(comm.rank).standard_normal(size // 4).astype(np.float32)
        ours, theirs = np.empty_like(send), np.empty_like(send)
        functions: dict[str, Callable[[], Any]] = {
            "backburn": lambda: sum_in_order(comm, k, send, ours, steps),  # noqa: B023 - called in this turn
            "mpi4py": lambda: raw.Allreduce(send, theirs),  # noqa: B023
        }
        if peer is not None:
            import torch

            tensor = torch.from_numpy(np.zeros_like(send))  # summed in place: zeros stay finite
            functions["gloo"] = lambda: peer.all_reduce(tensor)  # noqa: B023
        found[size] = measure(functions, comm, options.seconds)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        if comm.rank == 0:
            row = [f"{size:>10,} bytes"]
            row += [f"{name} {1e6 * t:>9,.1f} us" for name, t in found[size].items()]
            row += [
                f"{found[size]['backburn'] / t:5.2f} of {name}" for name, t in found[size].items() if name != "backburn"
            ]
            print("  ".join(row), flush=True)
    if comm.rank == 0:
        print(f"{comm.size} processes, {MPI.Get_library_version().splitlines()[0].strip()}", flush=True)
        if options.json is not None:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if peer is not None:
        peer.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each function and size")
    parser.add_argument("--json", help="write the seconds by bytes and function")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None:
        on_each_rank(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "backburn", "launch", "-n", str(options.ranks)]
        command += ["python", "-m", "benchmarks.distributed", *sys.argv[1:], "--file", os.path.join(folder, "store")]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
