"""Kernels under adverse conditions: ``python -m tests.programs.stress [--seconds S] [NAME ...]``.

Names are those of :data:`TRIALS`, all by default: six concurrent threads, signals, forks while another thread
computes, and little address space. Results must equal those of undisturbed calls; ``tools/sanitize.py`` runs this
with sanitizers.
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import backburn as bb
from backburn import optim
from backburn.errors import BackburnError
from backburn.nn import functional
from backburn_numpy.runtime import memory, threads

#: The number of calling threads, and of threads in the kernels' team.
CALLERS, TEAM = 6, 6
#: Sizes of axes: 0, 1, primes, and powers of two.
SIDES = (0, 1, 2, 3, 7, 13, 17, 31, 64, 127, 257)

Call = Callable[[], list[Any]]


def calls(rng: np.random.Generator) -> list[Call]:
    """Calls of many kernels on arrays of odd shapes and strides, some large enough for several threads."""
    dtype = bb.float32 if rng.random() < 0.7 else bb.float64
    n, m, k = (int(rng.choice(SIDES)) for _ in range(3))
    if rng.random() < 0.3:
        n = int(rng.choice((521, 1009, 2053)))
    x, y, z = (bb.asarray(rng.normal(size=s), dtype=dtype, backend="numpy") for s in ((n, m), (m, k), (n, m)))
    images = bb.asarray(rng.normal(size=(2, 4, 1 + n % 17, 1 + m % 13)), dtype=dtype, backend="numpy")
    weight = bb.asarray(rng.normal(size=(3, 4, 1, 1)), dtype=dtype, backend="numpy")
    indices = bb.asarray(rng.integers(0, max(n, 1), 11), backend="numpy")
    parts = [x, x[1:], x[::2, ::-1], x.T, x[:, 1:]]
    x = parts[int(rng.integers(len(parts)))] if n > 1 and m > 1 else x
    row = bb.asarray(rng.normal(size=x.shape[1:]), dtype=dtype, backend="numpy")
    found: list[Callable[[], Any]] = [
        lambda: bb.exp(x) * 0.5 + x,
        lambda: bb.tanh(x) - row,
        lambda: functional.gelu(x),
        lambda: bb.softmax(x, axis=-1),
        lambda: bb.softmax(x, axis=0),
        lambda: bb.sum(x, axis=0),
        lambda: bb.sum(x, axis=1),
        lambda: bb.var(x, axis=0) if x.shape[0] else x,
        lambda: bb.cumulative_sum(x, axis=0),
        lambda: functional.layer_norm(x, row) if x.shape[1] else x,
        lambda: bb.sort(x, axis=-1),
        lambda: bb.max(x, axis=1) if x.shape[1] else x,
        lambda: z @ y,
        lambda: functional.linear(z, bb.swapaxes(y, 0, 1)),
        lambda: functional.conv(images, weight, padding=1),
        lambda: functional.max_pool(images, 1),
        lambda: z[indices] if n else z,
        lambda: bb.concat([x[:1], x, bb.flip(x, axis=0)]),
        lambda: bb.where(x > 0.0, x, row),
    ]
    return [lambda f=f: [f().numpy()] for f in found]  # type: ignore[misc]


def step(rng: np.random.Generator) -> Call:
    """A recorded training step whose state is donated, from the first call on."""
    seed = int(rng.integers(1 << 30))
    width, rows = int(rng.choice((1, 3, 17, 64))), int(rng.choice((1, 2, 31)))

    def train() -> list[Any]:
        made = np.random.default_rng(seed)
        tower = "autodiff(capture(numpy))"

        def array(*shape: int) -> Any:
            return bb.asarray(made.normal(size=shape), dtype=bb.float32, backend=tower)

        def step(state: Any, x: Any) -> Any:
            weights, optimizer = state
            h = x
            for _ in range(4):
                h = bb.tanh(h @ weights["w"] + weights["b"])
            total = bb.mean(bb.square(h))
            optimizer.step(weights, total.backward())
            return state, total

        recorded = bb.capture(step, on_fallback="error")
        state: Any = {"w": array(width, width).require_grad(), "b": array(width).require_grad()}, optim.Adam(0.01)
        for _ in range(5):
            state, total = recorded(state, array(rows, width))
        return [total.numpy(), *(x.numpy() for x in state[0].values())]

    return train


def batch(rng: np.random.Generator) -> list[tuple[Call, list[bytes]]]:
    """Calls, and their results without disturbance."""
    made = [*calls(rng), step(rng)]
    return [(call, bits(call())) for call in made]


def bits(arrays: list[Any]) -> list[bytes]:
    return [x.tobytes() for x in arrays]


# ---- trials ----


def at_once(rng: np.random.Generator) -> None:
    """Several threads make the same calls, each in a different order."""
    known = batch(rng)
    wrong: list[str] = []

    def work(order: Any) -> None:
        for i in order:
            call, expected = known[i]
            if bits(call()) != expected:
                wrong.append(f"call {i} gives other results while other threads run")

    workers = [threading.Thread(target=work, args=(rng.permutation(len(known)),)) for _ in range(CALLERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong[0]


def signals(rng: np.random.Generator) -> None:
    """A signal every 0.5 ms, with a handler in Python."""
    known, count = batch(rng), 0

    def handler(number: int, frame: Any) -> None:
        nonlocal count
        count += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for i, (call, expected) in enumerate(known):
            assert bits(call()) == expected, f"call {i} gives other results under signals"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def forks(rng: np.random.Generator) -> None:
    """Forked children compute, while another thread of the parent computes."""
    known = batch(rng)
    end = threading.Event()

    def busy() -> None:
        x = bb.asarray(rng.normal(size=(401, 1009)), dtype=bb.float32, backend="numpy")
        while not end.is_set():
            bb.softmax(x * 0.5, axis=-1)

    other = threading.Thread(target=busy)
    other.start()
    try:
        for i in rng.permutation(len(known))[:4]:
            call, expected = known[i]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python 3.12 warns of forks in processes with threads
                child = os.fork()
            if child == 0:
                os._exit(0 if bits(call()) == expected else 9)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"call {i} in a child: {_words(status)}"
            assert bits(call()) == expected, f"call {i} gives other results after a fork"
    finally:
        end.set()
        other.join()


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return "other results" if os.waitstatus_to_exitcode(status) == 9 else f"status {os.waitstatus_to_exitcode(status)}"


def little_memory(rng: np.random.Generator) -> None:
    """Calls with little free address space: correct results, or one of our errors."""
    known = batch(rng)
    x = bb.asarray(rng.normal(size=(1009, 1013)), dtype=bb.float32, backend="numpy")
    large = lambda: [bb.softmax(bb.exp(x * 0.5) + x, axis=-1).numpy()]
    known.append((large, bits(large())))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for i, (call, expected) in enumerate(known):
        memory.cleanup()
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + int(rng.integers(1, 1 << 23)), hard))
        found: Any = None
        try:
            found = call()
        except (BackburnError, MemoryError):
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert found is None or bits(found) == expected, f"call {i} gives other results with little memory"
        assert bits(call()) == expected, f"call {i} gives other results after an error"


TRIALS: dict[str, Callable[[np.random.Generator], None]] = {
    "threads": at_once,
    "signals": signals,
    "forks": forks,
    "memory": little_memory,
}


def main() -> int:
    """Run trials cyclically until the time is over; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.stress", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRIALS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(30))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    threads.set_num_threads(TEAM)
    chosen = options.names or [*TRIALS]
    if wrong := {*chosen} - TRIALS.keys():
        parser.error(f"no such trial: {', '.join(sorted(wrong))}; trials: {', '.join(TRIALS)}")
    print(f"trials of {', '.join(chosen)}, --seed {options.seed}", flush=True)
    end, done = time.monotonic() + options.seconds, 0
    while done < len(chosen) or time.monotonic() < end:
        name = chosen[done % len(chosen)]
        try:
            TRIALS[name](np.random.default_rng(options.seed + done))
        except AssertionError as error:
            print(f"{name} --seed {options.seed + done}: {error}")
            return 1
        done += 1
    print(f"{done} trials passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
