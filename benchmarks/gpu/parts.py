"""The parts of a run. Each is a function of the run's :class:`Options` and returns plain data, with ``problems``."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.frameworks import Step, our_step, torch_step
from benchmarks.gpu.models import MODELS

Result = dict[str, Any]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Options:
    """What is measured: a backend by its expression, at full size or ``small`` (to try the program itself)."""

    backend: str = "cupy"
    small: bool = False
    rounds: int = 5

    @property
    def training(self) -> str:
        """The backend that differentiates."""
        return f"autodiff({self.backend})"

    @property
    def torch_device(self) -> str | None:
        """Where PyTorch runs: beside the backend; None where it cannot."""
        if importlib.util.find_spec("torch") is None:
            return None
        import torch

        return "cuda" if torch.cuda.is_available() else ("cpu" if self.small else None)


# ---- right ----


def conformance(options: Options) -> Result:
    """The conformance suite on the backend, differentiated once and twice."""
    from backburn.conformance import check_backend

    found: Result = {"problems": []}
    for spec in (options.backend, options.training, f"autodiff({options.training})"):
        report = check_backend(spec, quick=options.small, jobs=1, timeout=60.0)
        failed = [f"{r.id}: {r.message}" for r in report.results if r.status == "failed"]
        found[spec] = {"checks": len(report.results), "failed": len(failed), "seconds": round(report.seconds, 1)}
        found["problems"] += failed
    return found


def parity(options: Options) -> Result:
    """Ten steps of each small model, and random numbers, beside NumPy's."""
    import numpy as np

    import backburn as bb

    found: Result = {"problems": []}
    for name, make in MODELS.items():
        ours, theirs = (our_step(make(True), spec, False)[0] for spec in (options.training, "autodiff(numpy)"))
        apart = max(abs(ours().item() - theirs().item()) for _ in range(10))
        found[name] = apart
        if not apart < 0.05:
            found["problems"].append(f"{name}: losses differ by {apart:.3g}")
    for draw in (bb.random.uniform, bb.random.normal):
        numbers = []
        for spec in (options.backend, "numpy"):
            bb.random.seed(3)
            numbers.append(draw((1000,), backend=spec).numpy())
        apart = float(np.max(np.abs(numbers[0] - numbers[1])))
        found[draw.__name__] = apart
        if apart > (0.0 if draw is bb.random.uniform else 1e-5):
            found["problems"].append(f"{draw.__name__}: differs by {apart:.3g}")
    return found


def digits(options: Options) -> Result:
    """The training of the README's first command, on the backend."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "backburn", "train", str(ROOT / "examples" / "digits.toml")]
        command += ["--backend", options.training, "--out", folder]
        started = time.perf_counter()
        command += ["--epochs", "2"] if options.small else []
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else ""
    problems = [] if run.returncode == 0 else [run.stderr.strip()[-500:]]
    return {"last line": last, "seconds": round(time.perf_counter() - started, 1), "problems": problems}


def recording(options: Options) -> Result:
    """Whether whole steps are recorded; a recording fails at any hidden synchronisation or transfer, and says where."""
    found: Result = {"problems": []}
    for name, make in MODELS.items():
        step, synchronize, captured = our_step(make(options.small), options.training, True)
        plain = our_step(make(options.small), options.training, False)[0]
        apart = max(abs(step().item() - plain().item()) for _ in range(5))
        synchronize()
        found[name] = {"recorded": not captured.reason, "launches": captured.launches, "apart": apart}
        if captured.reason:
            found["problems"].append(f"{name}: not recorded, since {captured.reason}")
        if not apart < 0.05:
            found["problems"].append(f"{name}: a replay differs from the step by {apart:.3g}")
    return found


def leaks(options: Options) -> Result:
    """Memory in use after ten steps and after fifty."""
    import backburn as bb

    found: Result = {"problems": []}
    backend = bb.load_backend(options.training)
    for captured in (False, True):
        step, synchronize, _ = our_step(MODELS["mlp"](options.small), options.training, captured)
        used = []
        for steps in (10, 40):
            for _ in range(steps):
                step()
            synchronize()
            gc.collect()
            used.append(dict(backend.memory_stats()).get("used", 0))
        name = "captured" if captured else "eager"
        found[name] = used
        if used[1] > used[0]:
            found["problems"].append(f"{name}: {used[1] - used[0]} bytes more after 40 steps")
    return found


# ---- fast ----


def timed(step: Step, synchronize: Callable[[], None], seconds: float) -> float:
    """The time of a step, of as many as fill some seconds."""
    synchronize()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(8):
            step()
        synchronize()
        count += 8
    return (time.perf_counter() - started) / count


def in_turns(variants: dict[str, tuple[Step, Callable[[], None]]], options: Options) -> Result:
    """The median time of each variant over the rounds, in each of which all run one after the other."""
    for step, synchronize in variants.values():
        for _ in range(5):  # compiles, records, settles
            step()
        synchronize()
    seconds = 0.02 if options.small else 0.3
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, (step, synchronize) in variants.items():
            times[name].append(timed(step, synchronize, seconds))
    return {name: statistics.median(found) for name, found in times.items()}


def speed(options: Options) -> Result:
    """A training step of each model: ours as it is and replayed, PyTorch eager and compiled, in turns."""
    found: Result = {"problems": []}
    for name, make in MODELS.items():
        model = make(options.small)
        variants: dict[str, tuple[Step, Callable[[], None]]] = {}
        for variant, captured in (("eager", False), ("replayed", True)):
            step, synchronize, _ = our_step(model, options.training, captured)
            variants[variant] = (step, synchronize)
        if device := options.torch_device:
            variants["torch eager"] = torch_step(model, device, None)
            if device == "cuda":
                mode = "reduce-overhead" if name == "mlp" else "default"
                variants["torch compiled"] = torch_step(model, device, mode)
        try:
            found[name] = in_turns(variants, options)
        except Exception as error:  # one model that cannot run must not take the others along
            found["problems"].append(f"{name}: {type(error).__name__}: {error}")
    return found


def kernels(options: Options) -> Result:
    """Single operations: bandwidth beside that of PyTorch's copy, and a large product beside PyTorch's."""
    import numpy as np

    import backburn as bb
    from backburn.nn import functional as f

    shape, side = ((8, 16), 16) if options.small else ((16384, 4096), 8192)
    found: Result = {"problems": []}
    wait = bb.load_backend(options.backend).synchronize
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        x = bb.asarray(array, dtype=getattr(bb, dtype), backend=options.backend)
        scale, bias = (bb.ones((shape[1],), dtype=x.dtype, backend=options.backend) for _ in range(2))
        variants: dict[str, tuple[Step, Callable[[], None]]] = {
            "gelu": (lambda x=x: f.gelu(x, approximate="tanh"), wait),
            "softmax": (lambda x=x: bb.softmax(x, axis=-1), wait),
            "layer norm": (lambda x=x, s=scale, b=bias: f.layer_norm(x, s, b), wait),
        }
        if device := options.torch_device:
            import torch

            y = torch.from_numpy(array).to(device, getattr(torch, dtype))
            variants["copy"] = (y.clone, torch.cuda.synchronize if device == "cuda" else lambda: None)
        times = in_turns(variants, options)
        bytes_moved = 2 * x.size * x.dtype.bits // 8
        found[dtype] = {n: {"GB/s": bytes_moved / t / 1e9} for n, t in times.items()}
        if "copy" in times:
            for n, t in times.items():
                found[dtype][n]["of copy"] = times["copy"] / t
    a = bb.asarray(np.ones((side, side), np.float32), dtype=bb.bfloat16, backend=options.backend)
    products: dict[str, tuple[Step, Callable[[], None]]] = {"backburn": (lambda: a @ a, wait)}
    if device := options.torch_device:
        import torch

        b = torch.ones(side, side, dtype=torch.bfloat16, device=device)
        products["torch"] = (lambda: b @ b, torch.cuda.synchronize if device == "cuda" else lambda: None)
    times = in_turns(products, options)
    found["product"] = {n: {"seconds": t, "TFLOP/s": 2 * side**3 / t / 1e12} for n, t in times.items()}
    return found


PARTS: dict[str, Callable[[Options], Result]] = {
    "conformance": conformance, "parity": parity, "digits": digits, "recording": recording, "leaks": leaks,
    "kernels": kernels, "speed": speed,
}  # fmt: skip
