"""The parts of a run: functions of its :class:`Options` that return plain data, with ``problems``.

A part also reports intermediate results, which are kept if it is stopped.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.frameworks import Step, our_step, torch_step, torch_synchronize
from benchmarks.gpu.models import MODELS, Model

Result = dict[str, Any]
Say = Callable[[Result], None]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Options:
    """The options of a run: a backend by its spec, at full size or ``small`` (to try the program itself).

    ``model`` is the only model in the parts about models; None for all.
    """

    backend: str = "cupy"
    small: bool = False
    rounds: int = 5
    model: str | None = None

    @property
    def models(self) -> dict[str, Callable[[bool], Model]]:
        """The factory of each model, by name."""
        return {name: make for name, make in MODELS.items() if self.model in (None, name)}

    @property
    def training(self) -> str:
        """The backend under ``autodiff``."""
        return f"autodiff({self.backend})"

    @property
    def torch_device(self) -> str | None:
        """PyTorch's device, that of the backend; None if it cannot run there."""
        if importlib.util.find_spec("torch") is None:
            return None
        import torch

        return "cuda" if torch.cuda.is_available() else ("cpu" if self.small else None)


@contextlib.contextmanager
def _going_on(name: str, problems: list[str]) -> Iterator[None]:
    """A context that reports an error in ``problems`` and continues after it."""
    try:
        yield
    except Exception as error:
        problems.append(f"{name}: {''.join(traceback.format_exception(error))[-2000:]}")


# ---- correctness ----


def conformance(options: Options, say: Say) -> Result:
    """The conformance suite on the backend."""
    return _conforms(options.backend, options.small, say)


def gradients(options: Options, say: Say) -> Result:
    """The conformance suite under ``autodiff``."""
    return _conforms(options.training, options.small, say)


def second_gradients(options: Options, say: Say) -> Result:
    """The conformance suite under ``autodiff`` twice: the first samples of each operation."""
    return _conforms(f"autodiff({options.training})", True, say)


def _conforms(spec: str, quick: bool, say: Say) -> Result:
    from backburn.conformance import check_backend

    started, said = time.perf_counter(), 0.0
    found: Result = {"problems": []}
    counts: dict[str, Any] = {"checks": 0, "failed": 0}

    def progress(result: Any, done: int, total: int) -> None:
        nonlocal said
        counts.update(checks=f"{done} of {total}", failed=counts["failed"] + (result.status == "failed"))
        if result.status == "failed":
            found["problems"].append(f"{result.id}: {result.message}")
        if (now := time.perf_counter() - started) > said + 5:
            said = now
            say({**found, spec: counts})

    report = check_backend(spec, quick=quick, jobs=_jobs(), timeout=60.0, progress=progress)
    counts.update(checks=len(report.results), seconds=round(report.seconds, 1))
    return {**found, spec: counts}


def _jobs() -> int:
    """Processes that share the device: a check spends most of its time in the compiler and in Python."""
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def parity(options: Options, say: Say) -> Result:
    """Ten steps of each small model, and random numbers, compared with NumPy's."""
    import numpy as np

    import backburn as bb

    found: Result = {"problems": []}
    for name, make in options.models.items():
        with _going_on(name, found["problems"]):
            ours, theirs = (our_step(make(True), spec, False)[0] for spec in (options.training, "autodiff(numpy)"))
            apart = _apart(ours, theirs, 10)
            found[name] = apart
            if not apart < 0.05:
                found["problems"].append(f"{name}: losses differ by {apart:.3g}")
        say(found)
    for draw in (bb.random.uniform, bb.random.normal):
        numbers = []
        for spec in (options.backend, "numpy"):
            bb.random.seed(3)
            numbers.append(draw((1000,), backend=spec).numpy())
        apart = float(np.max(np.abs(numbers[0] - numbers[1])))
        found[draw.__name__] = apart
        if not apart <= (0.0 if draw is bb.random.uniform else 1e-5):
            found["problems"].append(f"{draw.__name__}: differs by {apart:.3g}")
    return found


def _apart(ours: Step, theirs: Step, steps: int) -> float:
    """The largest difference of the losses of ``steps`` steps; NaN if one is NaN, which ``max`` may pass over."""
    found = [float(abs(ours().item() - theirs().item())) for _ in range(steps)]
    return next((d for d in found if math.isnan(d)), max(found))


def digits(options: Options, say: Say) -> Result:
    """The training run of the README's first command, on the backend, unchanged and with captured steps."""
    needed = ("pydantic", "tqdm", "matplotlib")
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if lacking:
        return {"not run": f"the command needs {', '.join(lacking)}: pip install 'backburn[train]'", "problems": []}
    example = (ROOT / "examples" / "digits.toml").read_text()
    found: Result = {"problems": []}
    for name, captured in (("as it is", "false"), ("captured", "true")):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "digits.toml")
            config.write_text(example.replace("capture = false", f"capture = {captured}"))
            command = [sys.executable, "-m", "backburn", "train", str(config)]
            command += ["--backend", options.training, "--out", folder]
            command += ["--epochs", "2"] if options.small else []
            started = time.perf_counter()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else ""
        found[name] = {"last line": last, "seconds": round(time.perf_counter() - started, 1)}
        if run.returncode or "CaptureWarning" in run.stderr:
            found["problems"].append(f"{name}: {run.stderr.strip()[-500:]}")
        say(found)
    return found


def recording(options: Options, say: Say) -> Result:
    """Whether whole steps can be recorded: recording fails at a hidden synchronization or transfer, and says where."""
    found: Result = {"problems": []}
    for name, make in options.models.items():
        with _going_on(name, found["problems"]):
            step, synchronize, captured = our_step(make(options.small), options.training, True)
            plain = our_step(make(options.small), options.training, False)[0]
            apart = _apart(step, plain, 5)
            synchronize()
            found[name] = {"recorded": not captured.reason, "launches": captured.launches, "apart": apart}
            if captured.reason:
                found["problems"].append(f"{name}: not recorded, since {captured.reason}")
            if not apart < 0.05:
                found["problems"].append(f"{name}: a replay differs from the step by {apart:.3g}")
        say(found)
    return found


def leaks(options: Options, say: Say) -> Result:
    """Memory in use after ten steps and after fifty."""
    import backburn as bb

    found: Result = {"problems": []}
    backend = bb.load_backend(options.training)
    for captured in (False, True):
        name = "captured" if captured else "eager"
        with _going_on(name, found["problems"]):
            step, synchronize, _ = our_step(MODELS["mlp"](options.small), options.training, captured)
            used = []
            for steps in (10, 40):
                for _ in range(steps):
                    step()
                synchronize()
                gc.collect()
                used.append(dict(backend.memory_stats()).get("used", 0))
            found[name] = used
            if used[1] > used[0]:
                found["problems"].append(f"{name}: {used[1] - used[0]} bytes more after 40 steps")
        say(found)
    return found


# ---- speed ----


def timed(step: Step, synchronize: Callable[[], None], seconds: float, least: int = 8) -> float:
    """The time per step, over ``least`` or more steps that take at least ``seconds``, without waiting in between.

    At each wait the device idles until the host has prepared the next step: few steps would measure the host as well.
    """
    count = max(least // 2, 1)
    while True:
        count *= 2
        synchronize()
        started = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        if (taken := time.perf_counter() - started) >= seconds:
            return taken / count


def in_turns(variants: dict[str, tuple[Step, Callable[[], None]]], options: Options, problems: list[str]) -> Result:
    """The median time of each variant over the rounds; in each round all variants take a turn.

    A variant that fails is left out, and reported in ``problems``.
    """
    variants = {name: v for name, v in variants.items() if _settled(name, *v, problems)}
    seconds, least = (0.02, 2) if options.small else (0.3, 8)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, (step, synchronize) in variants.items():
            times[name].append(timed(step, synchronize, seconds, least))
    return {name: statistics.median(found) for name, found in times.items()}


def _settled(name: str, step: Step, synchronize: Callable[[], None], problems: list[str]) -> bool:
    """Whether the warm-up steps, which compile and record, succeed."""
    try:
        for _ in range(5):
            step()
        synchronize()
    except Exception as error:  # one that cannot run must not stop the others
        problems.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
        return False
    return True


def _peer(options: Options, problems: list[str]) -> str | None:
    """PyTorch's device; None if it cannot run there, or cannot be imported, which is reported in ``problems``."""
    try:
        return options.torch_device
    except Exception as error:
        problems.append(f"torch: {type(error).__name__}: {str(error)[:500]}")
        return None


def speed(options: Options, say: Say) -> Result:
    """A training step of each model: ours eager and replayed, and PyTorch eager, alternating."""
    return _speed(options, say, {"eager": False, "replayed": True}, {"torch eager": None})


def compiled(options: Options, say: Say) -> Result:
    """A training step of each model: ours replayed, and PyTorch compiled, which may take minutes."""
    modes = {"mlp": "reduce-overhead"}
    return _speed(options, say, {"replayed": True}, {"torch compiled": lambda name: modes.get(name, "default")})


def _speed(options: Options, say: Say, ours: dict[str, bool], theirs: dict[str, Any]) -> Result:
    """Time our variants, captured or not, and PyTorch's, eager (None) or compiled in the mode for the model."""
    found: Result = {"problems": []}
    for name, make in options.models.items():
        model = make(options.small)
        makers: dict[str, Callable[[], tuple[Any, ...]]] = {
            variant: partial(our_step, model, options.training, captured) for variant, captured in ours.items()
        }
        problems: list[str] = []
        if device := _peer(options, problems):
            for variant, mode in theirs.items():
                if mode is None or device == "cuda":
                    makers[variant] = partial(torch_step, model, device, mode and mode(name))
        variants: dict[str, tuple[Step, Callable[[], None]]] = {}
        recorded: Any = None
        for variant, make_step in makers.items():
            try:
                step, synchronize, *rest = make_step()
                variants[variant] = (step, synchronize)
                recorded = rest[0] if variant == "replayed" else recorded
            except Exception as error:  # the others may run
                problems.append(f"{variant}: {type(error).__name__}: {str(error)[:500]}")
        try:
            found[name] = in_turns(variants, options, problems)
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
        if recorded is not None and recorded.reason and found.get(name, {}).pop("replayed", None) is not None:
            problems.append(f"replayed: not recorded, since {recorded.reason}")
        found["problems"] += [f"{name}: {problem}" for problem in problems]
        say(found)
    return found


def kernels(options: Options, say: Say) -> Result:
    """Single operations: bandwidth compared with PyTorch's copy, and a large product with PyTorch's."""
    import numpy as np

    import backburn as bb
    from backburn.nn import functional as f

    shape, side = ((8, 16), 16) if options.small else ((16384, 4096), 8192)
    found: Result = {"problems": []}
    wait, device = bb.load_backend(options.backend).synchronize, _peer(options, found["problems"])
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        x = bb.asarray(array, dtype=getattr(bb, dtype), backend=options.backend)
        scale, bias = (bb.ones((shape[1],), dtype=x.dtype, backend=options.backend) for _ in range(2))
        variants: dict[str, tuple[Step, Callable[[], None]]] = {
            "gelu": (lambda x=x: f.gelu(x, approximate="tanh"), wait),
            "softmax": (lambda x=x: bb.softmax(x, axis=-1), wait),
            "layer norm": (lambda x=x, s=scale, b=bias: f.layer_norm(x, s, b), wait),
        }
        if device:
            with _going_on("copy", found["problems"]):
                variants["copy"] = _torch_copy(array, dtype, device)
        times = in_turns(variants, options, found["problems"])
        bytes_moved = 2 * x.size * x.dtype.bits // 8
        found[dtype] = {n: {"GB/s": bytes_moved / t / 1e9} for n, t in times.items()}
        if "copy" in times:
            for n, t in times.items():
                found[dtype][n]["of copy"] = times["copy"] / t
        say(found)
    # Random numbers: products of equal ones take less power, and so run at a higher clock.
    matrix = np.random.default_rng(0).standard_normal((side, side), np.float32)
    a = bb.asarray(matrix, dtype=bb.bfloat16, backend=options.backend)
    products: dict[str, tuple[Step, Callable[[], None]]] = {"backburn": (lambda: a @ a, wait)}
    if device:
        with _going_on("torch", found["problems"]):
            products["torch"] = _torch_product(matrix, device)
    times = in_turns(products, options, found["problems"])
    found["product"] = {n: {"seconds": t, "TFLOP/s": 2 * side**3 / t / 1e12} for n, t in times.items()}
    return found


def products(options: Options, say: Say) -> Result:
    """The products and the attention of a GPT's block, with and without their fused parts; and PyTorch's."""
    import numpy as np

    import backburn as bb
    from backburn.base.dtypes import bfloat16

    k: Any = bb.load_backend(options.backend)
    rows, width, wide = (16, 16, 32) if options.small else (8192, 768, 3072)
    heads = (1, 2, 8, 8) if options.small else (8, 12, 1024, 64)
    random = np.random.default_rng(0)

    def host(*shape: int) -> Any:
        return random.standard_normal(shape, np.float32)

    arrays = {
        "x": host(rows, width), "up": host(wide, width), "down": host(width, wide), "bias": host(wide),
        "before": host(rows, wide), "grad": host(rows, width), "less": host(width),
        "query": host(*heads), "grad_attention": host(*heads),
    }  # fmt: skip
    x, up, down, bias, before, grad, less, query, grad_attention = (
        k.astype(k.from_numpy(array), bfloat16) for array in arrays.values()
    )

    def weight_grads(x: Any, grad: Any) -> Any:
        return k.matmul(k.permute_dims(grad, (1, 0)), x), k.sum(grad, (0,), False)

    def feed_forward_grads() -> Any:
        grad_before = k.gelu_backward(k.matmul(grad, down), before, "tanh")
        return grad_before, weight_grads(x, grad_before)

    y = k.scaled_dot_product_attention(query, query, query, causal=True, scale=0.125)
    steps: dict[str, Step] = {
        "linear": lambda: k.linear(x, up, bias),
        "weight gradient": lambda: k.linear_weight_backward(before, x),
        "weight gradient, bias apart": lambda: weight_grads(x, before),
        "small weight gradient": lambda: k.linear_weight_backward(grad, x),
        "small weight gradient, bias apart": lambda: weight_grads(x, grad),
        "feed forward": lambda: k.feed_forward(x, up, down, bias, less, "tanh"),
        "feed forward, GELU apart": lambda: k.linear(k.gelu(k.linear(x, up, bias), "tanh"), down, less),
        "feed forward gradient": lambda: k.feed_forward_backward(grad, x, down, before, "tanh"),
        "feed forward gradient, GELU apart": feed_forward_grads,
        "attention": lambda: k.scaled_dot_product_attention(query, query, query, causal=True, scale=0.125),
        "attention gradient": lambda: k.scaled_dot_product_attention_backward(
            grad_attention, query, query, query, None, None, y, causal=True, scale=0.125
        ),
    }
    found: Result = {"problems": []}
    variants = {name: (step, bb.load_backend(options.backend).synchronize) for name, step in steps.items()}
    if device := _peer(options, found["problems"]):
        with _going_on("torch", found["problems"]):
            variants.update(_torch_block(arrays, device))
    times = in_turns(variants, options, found["problems"])
    return {**found, "microseconds": {name: round(1e6 * t, 1) for name, t in times.items()}}


def _torch_block(arrays: dict[str, Any], device: str) -> dict[str, tuple[Step, Callable[[], None]]]:
    import torch
    from torch.nn import functional as f

    given = {name: torch.from_numpy(array).to(device, torch.bfloat16) for name, array in arrays.items()}
    query = given["query"].requires_grad_()
    y = f.scaled_dot_product_attention(query, query, query, is_causal=True)
    steps: dict[str, Step] = {
        "torch linear": lambda: f.linear(given["x"], given["up"], given["bias"]),
        "torch weight gradient": lambda: (given["before"].t() @ given["x"], given["before"].sum(0)),
        "torch small weight gradient": lambda: (given["grad"].t() @ given["x"], given["grad"].sum(0)),
        "torch GELU": lambda: f.gelu(given["before"], approximate="tanh"),
        "torch attention": lambda: f.scaled_dot_product_attention(query, query, query, is_causal=True),
        "torch attention gradient": lambda: torch.autograd.grad(y, query, given["grad_attention"], retain_graph=True),
    }
    return {name: (step, torch_synchronize(device)) for name, step in steps.items()}


def _torch_copy(array: Any, dtype: str, device: str) -> tuple[Step, Callable[[], None]]:
    import torch

    x = torch.from_numpy(array).to(device, getattr(torch, dtype))
    return x.clone, torch_synchronize(device)


def _torch_product(matrix: Any, device: str) -> tuple[Step, Callable[[], None]]:
    import torch

    x = torch.from_numpy(matrix).to(device, torch.bfloat16)
    return lambda: x @ x, torch_synchronize(device)


#: The most informative ones first.
PARTS: dict[str, Callable[[Options, Say], Result]] = {
    "parity": parity, "recording": recording, "kernels": kernels, "speed": speed, "products": products, "leaks": leaks,
    "compiled": compiled, "digits": digits, "conformance": conformance, "gradients": gradients,
    "second_gradients": second_gradients,
}  # fmt: skip

#: Parts that run in a separate process for each model, since an illegal access ends the process.
OF_MODELS = ("parity", "recording", "speed", "compiled")
