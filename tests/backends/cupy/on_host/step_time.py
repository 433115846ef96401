"""The host's time for a training step on the CuPy backend, when CUDA takes no time.

``python -m tests.backends.cupy.on_host.step_time`` prints the least CPU time of the parts of a step of the multilayer
perceptron of the GPU benchmark, through the real CuPy without GPU, kernels or values. ``--profile`` prints a profile.
On a GPU, an unrecorded step takes at least this long.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import itertools
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.backends.cupy.on_host import patched

PARTS = ("forward", "backward", "optimizer")


def step() -> Any:
    """A function that runs a step and returns the time of each part."""
    from benchmarks.gpu.frameworks import OurFunctions, mapped
    from benchmarks.gpu.models import MODELS

    import backburn as bb
    from backburn import optim

    def tensor(array: Any) -> Any:
        return bb.asarray(array, dtype="float32" if array.dtype.kind == "f" else None, backend="autodiff(cupy)")

    written, functions = MODELS["mlp"](False), OurFunctions()
    parameters = mapped(lambda array: tensor(array).require_grad(), written.parameters)
    batch, optimizer = tuple(map(tensor, written.batch)), optim.Adam(1e-3)

    def parts() -> list[float]:
        times = [time.process_time()]
        loss = written.loss(functions, parameters, *batch)
        times.append(time.process_time())
        gradients = loss.backward()
        times.append(time.process_time())
        optimizer.step(parameters, gradients)
        times.append(time.process_time())
        return [after - before for before, after in itertools.pairwise(times)]

    return parts


def measure(repeats: int, is_profiled: bool) -> None:
    """Print the times of the parts of a step."""
    host = patched.install()
    from tests.backends.cupy.on_host import walk

    from backburn_cupy import cublaslt

    walk.backend()
    product = cublaslt.library().cublasLtMatmul
    host.host_nothing.argtypes, host.host_nothing.restype = product.argtypes, ctypes.c_int
    cublaslt.library().cublasLtMatmul = host.host_nothing  # the stand-in would compute
    run = step()
    for _ in range(20):
        run()
    if is_profiled:
        with cProfile.Profile() as profile:
            for _ in range(repeats):
                run()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    least = [min(times) for times in zip(*(run() for _ in range(repeats)), strict=True)]
    for name, seconds in zip((*PARTS, "step"), (*least, sum(least)), strict=True):
        print(f"{name:10} {1e6 * seconds:6.0f} us")


def main() -> None:
    """Measure, in a separate process that loads the driver."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    if os.environ.get("LD_LIBRARY_PATH", "").startswith(tempfile.gettempdir() + "/backburn-driver"):
        measure(chosen.repeats, chosen.profile)
        return
    if (why := patched.missing()) is not None:
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="backburn-driver") as folder:
        patched.build(Path(folder))
        path = os.pathsep.join(p for p in (folder, os.environ.get("LD_LIBRARY_PATH", "")) if p)
        command = [sys.executable, "-m", "tests.backends.cupy.on_host.step_time", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": path}, check=False).returncode)


if __name__ == "__main__":
    main()
