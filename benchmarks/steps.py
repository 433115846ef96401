"""Training steps and loops, ours recorded or not, against PyTorch (eager, tuned, compiled) and JAX (compiled).

``python -m benchmarks.steps [PATTERN ...] [--threads N] [--seconds S] [--sides SIDE ...] [--odd] [--json FILE]``. Every
side is a separate process; the sides run alternately, while the others wait. A step is a forward pass, a backward pass
and the update. The losses of the fourth step must agree. The table has the median wall time of a step in milliseconds,
and the ratios of the recorded step to the best peer's, and of the unrecorded step to PyTorch's eager one. ``--odd``
takes widths that are not multiples of a vector's length.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.models import Framework, Model, gpt, ours, theirs

SIDES = ("captured", "eager", "torch", "tuned", "compiled", "jax")
Step = Callable[[], float]


class Training(NamedTuple):
    """A training step: the model and its loss for a framework, its optimizer, and its loss in JAX."""

    model: Callable[..., Model]
    optimizer: str
    options: dict[str, float]
    jax: Callable[..., Any]
    """A function of the parameters by their names."""
    sizes: tuple[dict[str, int], dict[str, int]]
    tuned: Callable[..., Model] | None = None
    """PyTorch's faster model, where it has one."""
    is_image: bool = False
    """Whether tuning means channels last."""


class Loop(NamedTuple):
    """A function of arrays, of which the value and the gradients are computed."""

    arrays: Callable[..., Sequence[Any]]
    function: Callable[..., Any]
    """A function of our namespace or PyTorch's, and of the arrays."""
    jax: Callable[..., Any] | None
    sizes: tuple[dict[str, int], dict[str, int]]
    is_compiled: bool = True
    """Whether ``torch.compile`` finishes within minutes."""


# ---- models ----


def mlp(f: Framework, width: int, batch: int) -> Model:
    """Three linear layers."""
    n = f.nn
    model = n.Sequential(n.Linear(784, width), n.ReLU(), n.Linear(width, width), n.ReLU(), n.Linear(width, 10))
    x, labels = f.normal(batch, 784), f.integers(10, batch)
    return model, lambda: f.functions.cross_entropy(model(x), labels)


def jax_mlp(width: int, batch: int) -> Any:
    import jax

    x, labels = numbers(batch, 784), integers(10, batch)

    def loss(p: Any) -> Any:
        h = x
        for i in (0, 2, 4):
            h = h @ p[f"{i}.weight"].T + p[f"{i}.bias"]
            h = jax.nn.relu(h) if i < 4 else h
        return jax_cross_entropy(h, labels)

    return loss


def cnn(f: Framework, batch: int, channels: int) -> Model:
    """Two convolutions with pools, and a linear layer."""
    n = f.nn
    model = n.Sequential(
        n.Conv2d(1, channels, 3, padding=1), n.ReLU(), n.MaxPool2d(2),
        n.Conv2d(channels, 2 * channels, 3, padding=1), n.ReLU(), n.MaxPool2d(2),
        n.Flatten(), n.Linear(98 * channels, 10),
    )  # fmt: skip
    x, labels = f.normal(batch, 1, 28, 28), f.integers(10, batch)
    return model, lambda: f.functions.cross_entropy(model(x), labels)


def jax_cnn(batch: int, channels: int) -> Any:
    import jax

    x, labels = numbers(batch, 1, 28, 28), integers(10, batch)

    def loss(p: Any) -> Any:
        h = x
        for i in (0, 3):
            h = jax.lax.conv_general_dilated(h, p[f"{i}.weight"], (1, 1), "SAME")
            h = jax.nn.relu(h + p[f"{i}.bias"][:, None, None])
            h = jax.lax.reduce_window(h, -math.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return jax_cross_entropy(h.reshape(batch, -1) @ p["7.weight"].T + p["7.bias"], labels)

    return loss


def jax_gpt(layers: int, width: int, batch: int, tokens: int, vocabulary: int) -> Any:
    import jax
    import jax.numpy as jnp

    ids, labels = integers(vocabulary, batch, tokens), integers(vocabulary, batch * tokens, seed=1)
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))

    def linear(p: Any, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(p: Any, name: str, x: Any) -> Any:
        return jax.nn.standardize(x, epsilon=1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def loss(p: Any) -> Any:
        x = p["tokens.weight"][ids] + p["places.weight"]
        for i in range(layers):
            block = f"blocks.{i}."
            y = norm(p, block + "before", x)
            q, k, v = (
                linear(p, block + name, y).reshape(batch, tokens, 4, -1).swapaxes(1, 2)
                for name in ("query", "key", "value")
            )
            scores = jnp.where(mask, q @ k.swapaxes(2, 3) / (width // 4) ** 0.5, -jnp.inf)
            mixed = (jax.nn.softmax(scores, -1) @ v).swapaxes(1, 2).reshape(x.shape)
            x = x + linear(p, block + "out", mixed)
            wide = linear(p, block + "wide", norm(p, block + "between", x))
            x = x + linear(p, block + "narrow", jax.nn.gelu(wide, approximate=False))
        return jax_cross_entropy(linear(p, "head", norm(p, "norm", x)).reshape(-1, vocabulary), labels)

    return loss


def embedding(f: Framework, count: int, width: int, ids: int) -> Model:
    """A weighted sum of rows of a table."""
    model, chosen, weights = f.nn.Embedding(count, width), f.integers(count, ids), f.normal(ids, width)
    return model, lambda: (model(chosen) * weights).sum()


def jax_embedding(count: int, width: int, ids: int) -> Any:
    chosen, weights = integers(count, ids), numbers(ids, width)
    return lambda p: (p["weight"][chosen] * weights).sum()


def lstm(f: Framework, steps: int, batch: int, inputs: int, hidden: int) -> Model:
    """A loop of cells."""
    cell, x = f.nn.LSTMCell(inputs, hidden), f.normal(steps, batch, inputs)
    zeros, goal = 0 * f.normal(batch, hidden), f.normal(batch, hidden, seed=1)

    def loss() -> Any:
        h, c = zeros, zeros
        total: Any = 0.0
        for t in range(steps):
            h, c = cell(x[t], (h, c))
            total = total + ((h - goal) ** 2.0).mean()
        return total / steps

    return cell, loss


def lstm_layer(f: Framework, steps: int, batch: int, inputs: int, hidden: int) -> Model:
    """One LSTM layer instead of the loop."""
    layer, x = f.nn.LSTM(inputs, hidden), f.normal(steps, batch, inputs)
    goal = f.normal(batch, hidden, seed=1)
    return layer, lambda: ((layer(x)[0] - goal) ** 2.0).mean()


def jax_lstm(steps: int, batch: int, inputs: int, hidden: int) -> Any:
    import jax
    import jax.numpy as jnp

    x, goal = numbers(steps, batch, inputs), numbers(batch, hidden, seed=1)

    def loss(p: Any) -> Any:
        projected = x @ p["weight_ih"].T + p["bias_ih"] + p["bias_hh"]

        def cell(state: Any, projected: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(projected + h @ p["weight_hh"].T, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((batch, hidden))
        return ((jax.lax.scan(cell, (zeros, zeros), projected)[1] - goal) ** 2).mean()

    return loss


# ---- functions of arrays ----


def jax_convolution(x: Any, w: Any, weights: Any) -> Any:
    import jax

    return (jax.lax.conv_general_dilated(x, w, (1, 1), "SAME") * weights).sum()


def convolution(b: Any, x: Any, w: Any, weights: Any) -> Any:
    """A weighted sum of a convolution."""
    convolve = b.nn.functional.conv if b.__name__ == "backburn" else b.nn.functional.conv2d
    return (convolve(x, w, padding=1) * weights).sum()


def recurrence(b: Any, a: Any, x: Any) -> Any:
    """A linear recurrence, and the mean of the squares of its states."""
    h, states = 0.0 * x[0], []
    for fed in x if b.__name__ == "backburn" else x.unbind():
        h = h * a + fed
        states.append(h)
    return (b.stack(states) ** 2.0).mean()


def jax_recurrence(a: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(h: Any, fed: Any) -> Any:
        h = h * a + fed
        return h, h

    return (jax.lax.scan(step, jnp.zeros_like(x[0]), x)[1] ** 2).mean()


def chain(b: Any, w: Any, x: Any, steps: int) -> Any:
    """``tanh(h * w + x)``, repeated."""
    h = x
    for _ in range(steps):
        h = b.tanh(h * w + x)
    return h.sum()


def long_chain(b: Any, x: Any, steps: int) -> Any:
    """``h * 0.999 + x``, repeated: two operations a step."""
    h = x
    for _ in range(steps // 2):
        h = h * 0.999 + x
    return h.sum()


def jax_cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def numbers(*shape: int, seed: int = 0) -> Any:
    import numpy as np

    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int, seed: int = 0) -> Any:
    import numpy as np

    return np.random.default_rng(seed).integers(0, high, shape)


CASES: dict[str, Training | Loop] = {
    "MLP": Training(mlp, "Adam", {"lr": 1e-3}, jax_mlp, ({"width": 512, "batch": 128}, {"width": 499, "batch": 101})),
    "CNN": Training(
        cnn, "SGD", {"lr": 0.01, "momentum": 0.9}, jax_cnn,
        ({"batch": 64, "channels": 16}, {"batch": 51, "channels": 13}), is_image=True,
    ),
    "GPT": Training(
        gpt, "AdamW", {"lr": 1e-3, "weight_decay": 0.01}, jax_gpt,
        ({"layers": 4, "width": 128, "batch": 16, "tokens": 128, "vocabulary": 96},
         {"layers": 4, "width": 116, "batch": 13, "tokens": 101, "vocabulary": 97}),
    ),
    "embedding": Training(
        embedding, "SGD", {"lr": 0.01}, jax_embedding,
        ({"count": 50_000, "width": 256, "ids": 4096}, {"count": 50_021, "width": 251, "ids": 4001}),
    ),
    "LSTM": Training(
        lstm, "SGD", {"lr": 0.01}, jax_lstm,
        ({"steps": 64, "batch": 32, "inputs": 64, "hidden": 128},
         {"steps": 53, "batch": 29, "inputs": 61, "hidden": 113}),
        tuned=lstm_layer,
    ),
    "convolution": Loop(
        lambda batch, inputs, side, outputs: (
            numbers(batch, inputs, side, side), numbers(outputs, inputs, 3, 3, seed=1),
            numbers(batch, outputs, side, side, seed=2),
        ),
        convolution, jax_convolution,
        ({"batch": 32, "inputs": 32, "side": 28, "outputs": 64},
         {"batch": 29, "inputs": 27, "side": 27, "outputs": 61}),
    ),
    "recurrence": Loop(
        lambda steps, batch, width: (0.9 + 0.01 * numbers(width), numbers(steps, batch, width, seed=1)),
        recurrence, jax_recurrence,
        ({"steps": 512, "batch": 32, "width": 64}, {"steps": 501, "batch": 31, "width": 61}),
    ),
    "1,000 times tanh": Loop(
        lambda width: (numbers(width), numbers(width, seed=1)), partial(chain, steps=1000), None,
        ({"width": 16}, {"width": 13}), is_compiled=False,
    ),
    "100,000 operations": Loop(
        lambda width: (numbers(width),), partial(long_chain, steps=100_000), None, ({"width": 1}, {"width": 3}),
        is_compiled=False,
    ),
}  # fmt: skip


# ---- one side ----


def first_values(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Parameters by name, equal on every side: matrices scaled by their inputs, vectors of ones and zeros."""
    import numpy as np

    values = {}
    for name, shape in shapes.items():
        name = name.removesuffix("_l0")
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        value = draw.normal(size=shape) / fan**0.5 if fan > 1 else np.full(shape, float(name.endswith("weight")))
        values[name] = value.astype(np.float32)
    return values


def of_backburn(case: Training | Loop, size: dict[str, int], is_captured: bool) -> Step:
    import backburn as bb
    from backburn import optim

    if isinstance(case, Loop):
        arrays = case.arrays(**size)
        if is_captured:
            leaves = [bb.asarray(a, backend="capture(numpy)") for a in arrays]
            function = bb.value_and_grad(partial(case.function, bb), argnums=tuple(range(len(arrays))))
            call = bb.capture(function, state=False, on_fallback="error")
            return lambda: float(call(*leaves)[0].item())
        leaves = [bb.asarray(a, backend="autodiff(numpy)").require_grad() for a in arrays]

        def evaluate() -> float:
            value = case.function(bb, *leaves)
            value.backward()
            return float(value.item())

        return evaluate
    with bb.use_backend("autodiff(capture(numpy))" if is_captured else "autodiff(numpy)"):
        model, loss = case.model(ours(), **size)
        model.load_state_dict(first_values({name: p.shape for name, p in model.named_parameters()}))
    optimizer = getattr(optim, case.optimizer)(**case.options)

    def step_of(state: Any) -> Any:
        value = loss()
        optimizer.step(model, value.backward())
        return state, value

    update = bb.capture(step_of, on_fallback="error") if is_captured else step_of
    return lambda: float(update((model, optimizer))[1].item())


def of_torch(case: Training | Loop, size: dict[str, int], variant: str) -> Step:
    import torch

    if isinstance(case, Loop):
        leaves = [torch.tensor(a, requires_grad=True) for a in case.arrays(**size)]
        call: Any = partial(case.function, torch)
        call = torch.compile(call) if variant == "compiled" else call

        def evaluate() -> float:
            for leaf in leaves:
                leaf.grad = None
            value = call(*leaves)
            value.backward()
            return float(value.item())

        return evaluate
    is_tuned = variant != "torch"
    model, loss = (case.tuned if case.tuned and variant == "tuned" else case.model)(theirs(), **size)
    values = first_values({name: tuple(p.shape) for name, p in model.named_parameters()})
    model.load_state_dict({name: torch.tensor(values[name.removesuffix("_l0")]) for name in model.state_dict()})
    if case.is_image and is_tuned:
        model = model.to(memory_format=torch.channels_last)
    options = case.options | ({"fused": True} if is_tuned else {})
    optimizer = getattr(torch.optim, case.optimizer)(model.parameters(), **options)
    call = torch.compile(loss) if variant == "compiled" else loss

    def step() -> float:
        optimizer.zero_grad()
        value = call()
        value.backward()
        optimizer.step()
        return float(value.item())

    return step


def of_jax(case: Training | Loop, size: dict[str, int]) -> Step:
    import jax
    import jax.numpy as jnp

    ready: Any = jax.block_until_ready

    if isinstance(case, Loop):
        leaves = [jnp.asarray(a) for a in case.arrays(**size)]
        assert case.jax is not None
        function: Any = jax.jit(jax.value_and_grad(case.jax, argnums=tuple(range(len(leaves)))))
        return lambda: float(ready(function(*leaves))[0])
    model, _ = case.model(ours(), **size)
    values = first_values({name: p.shape for name, p in model.named_parameters()})
    params = {name: jnp.asarray(value) for name, value in values.items()}
    function, options = jax.value_and_grad(case.jax(**size)), case.options

    def sgd(p: Any, m: Any, v: Any, t: Any, g: Any) -> Any:
        if "momentum" not in options:
            return p - options["lr"] * g, m, v
        m = options["momentum"] * m + g
        return p - options["lr"] * m, m, v

    def adam(p: Any, m: Any, v: Any, t: Any, g: Any) -> Any:
        p = p * (1 - options["lr"] * options.get("weight_decay", 0.0))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - options["lr"] * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v

    def update(state: Any, t: Any) -> Any:
        value, grads = function({name: s[0] for name, s in state.items()})
        rule: Any = sgd if case.optimizer == "SGD" else adam
        return {name: rule(*s, t, grads[name]) for name, s in state.items()}, value

    has_state = case.optimizer != "SGD" or "momentum" in options
    nothing = jnp.zeros(())
    state = {
        name: (p, jnp.zeros_like(p) if has_state else nothing, jnp.zeros_like(p) if has_state else nothing + 0)
        for name, p in params.items()
    }
    compiled: Any = jax.jit(update)
    count = 0

    def step() -> float:
        nonlocal state, count
        count += 1
        state, value = compiled(state, float(count))
        ready(state)
        return float(value)

    return step


def build(side: str, name: str, is_odd: bool) -> Step | None:
    """A step of a side, or None where the side does not take part."""
    case = CASES[name]
    size = case.sizes[is_odd]
    if side in ("captured", "eager"):
        return of_backburn(case, size, side == "captured")
    if side == "jax":
        return None if case.jax is None else of_jax(case, size)
    if isinstance(case, Loop) and (side == "tuned" or (side == "compiled" and not case.is_compiled)):
        return None
    return of_torch(case, size, side)


def work(side: str) -> None:
    """Answer requests, one line each: build a case, or time steps."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a compiler's output goes to standard error
    step: Step | None = None
    if side in ("torch", "tuned", "compiled"):
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for line in sys.stdin:
        request = json.loads(line)
        if request[0] == "build":
            step = build(side, request[1], request[2])
            answer: Any = None if step is None else [step() for _ in range(4)][-1]
        else:
            assert step is not None
            start = time.perf_counter()
            for _ in range(request[1]):
                step()
            answer = (time.perf_counter() - start) / request[1]
        print(json.dumps(answer), file=answers, flush=True)


# ---- all sides, alternating ----


class Side:
    """A process that does the work of one side, by ``module --work name``."""

    def __init__(self, name: str, threads: int, module: str = "benchmarks.steps") -> None:
        variables = dict(os.environ)
        for library in ("BACKBURN", "OPENBLAS", "OMP", "MKL"):
            variables[f"{library}_NUM_THREADS"] = str(threads)
        if threads == 1:
            variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--work", name], env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        if hasattr(os, "sched_setaffinity"):  # JAX uses more processors than its flags allow
            os.sched_setaffinity(self.process.pid, sorted(os.sched_getaffinity(0))[:threads])

    def ask(self, *request: Any) -> Any:
        """The answer to a request."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name}: {request} failed")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compare(name: str, is_odd: bool, chosen: Sequence[str], threads: int, seconds: float) -> dict[str, float]:
    """The median time of a step of each side that takes part, alternating."""
    sides = [Side(side, threads) for side in chosen]
    try:
        losses = {side: side.ask("build", name, is_odd) for side in sides}
        taking = [side for side in sides if losses[side] is not None]
        for side in taking:
            if not math.isclose(losses[side], losses[taking[0]], rel_tol=5e-3, abs_tol=1e-4):
                raise SystemExit(f"{name}: losses of the fourth step differ: { ({s.name: losses[s] for s in taking}) }")
        repeats = {side: max(1, round(0.05 / side.ask("time", 3))) for side in taking}
        times: dict[Side, list[float]] = {side: [] for side in taking}
        end = time.perf_counter() + seconds * len(taking)
        while time.perf_counter() < end or len(times[taking[0]]) < 5:
            for side in taking:
                side.ask("time", 1)
                times[side].append(side.ask("time", repeats[side]))
    finally:
        for side in sides:
            side.close()
    return {side.name: statistics.median(values) for side, values in times.items()}


def main() -> None:
    """Measure steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each side of a case, about")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--odd", action="store_true", help="sizes that are not multiples of a vector's length")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=SIDES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        return work(chosen.work)
    found: dict[str, dict[str, float]] = {}
    print(f"| case | {' | '.join(chosen.sides)} | captured / best | eager / torch |")
    print("|---" * (len(chosen.sides) + 3) + "|")
    for name in CASES:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in chosen.patterns):
            continue
        found[name] = times = compare(name, chosen.odd, chosen.sides, chosen.threads, chosen.seconds)
        peers = [t for side, t in times.items() if side not in ("captured", "eager")]
        ratios = [
            f"{times['captured'] / min(peers):.2f}" if "captured" in times and peers else "",
            f"{times['eager'] / times['torch']:.2f}" if {"eager", "torch"} <= times.keys() else "",
        ]
        each = (f"{1e3 * times[side]:.3f}" if side in times else "" for side in chosen.sides)
        print(f"| {name} | {' | '.join([*each, *ratios])} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
