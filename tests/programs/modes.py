"""The modes in which a random program runs: unchanged, differentiated, batched, on shards, as a step with a state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.programs.generator import Program, program_of

import backburn as bb
from backburn import optim

#: The backends, the share of programs on each, and whether replays must equal unrecorded calls bitwise.
TOWERS: dict[str, tuple[int, bool]] = {
    "autodiff(capture(numpy))": (50, False),
    "capture(numpy)": (20, False),
    "autodiff(capture(numpy, join=false))": (16, True),
    "capture(sharded(numpy, dp=2, inputs=first, on_fallback=allow))": (5, False),
    "autodiff(capture(sharded(numpy, dp=2, inputs=first, on_fallback=allow)))": (5, False),
    # Equal calls are merged, though between them the addends of their operand may be summed, which rounds otherwise.
    "capture(sharded(numpy, tp=3, inputs=last, on_fallback=allow), join=false)": (4, False),
}
#: The same for programs whose name begins with :data:`CUPY`, on the stand-in for CuPy; CUDA graphs run the same calls.
CUPY = "cupy-"
CUPY_TOWERS = {
    "autodiff(cupy)": (40, True),
    "cupy": (10, True),
    "autodiff(capture(cupy))": (30, False),
    "capture(cupy)": (20, False),
}
#: The modes, and the share of programs in each.
MODES = {"value": 36, "grad": 21, "second": 5, "vmap": 8, "vmap grad": 3, "jvp": 5, "state": 14, "train": 8}
#: The optimizers of steps that train.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD(0.05)": lambda: optim.SGD(0.05),
    "SGD(0.05, momentum=0.9)": lambda: optim.SGD(0.05, momentum=0.9),
    "SGD(0.05, weight_decay=0.1)": lambda: optim.SGD(0.05, weight_decay=0.1),
    "Adam(0.01)": lambda: optim.Adam(0.01),
    "AdamW(lambda step: 0.05 / (1 + step), weight_decay=0.1)": lambda: optim.AdamW(
        lambda step: 0.05 / (1 + step), weight_decay=0.1
    ),
    "RMSprop(0.01, momentum=0.9)": lambda: optim.RMSprop(0.01, momentum=0.9),
}
FLOATS = (bb.float16, bb.bfloat16, bb.float32, bb.float64)
#: The examples of a batch under ``vmap``.
BATCH = 3
#: The most lines of second derivatives and of programs on shards, which run many more calls.
LONGEST = 12


@dataclass(frozen=True)
class Case:
    """A program, and how it is run."""

    name: str
    program: Program
    tower: str
    mode: str
    #: The new value of each input that is state: an expression over values of the program.
    renewals: tuple[tuple[str, str], ...] = ()
    optimizer: str = ""
    threads: int = 1
    interrupted: bool = False
    at_once: bool = False
    #: Whether two recordings, for different arguments, alternate on one state.
    in_turns: bool = False
    #: Whether the state of some calls has views of larger arrays that are still held.
    has_parts: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether replays must equal unrecorded calls bitwise."""
        return (TOWERS | CUPY_TOWERS)[self.tower][1]

    @property
    def has_state(self) -> bool:
        return self.mode in ("state", "train")

    @property
    def is_random(self) -> bool:
        """Whether the program draws random numbers."""
        return any("random" in line.text or "dropout" in line.text for line in self.program.lines)

    @property
    def is_pure(self) -> bool:
        """Whether calls with the same inputs give the same results."""
        return not self.has_state and not self.is_random

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dimensions of each input."""
        return (BATCH,) if self.mode.startswith("vmap") else ()

    def describe(self) -> str:
        """The case in one line."""
        known = {"interrupted": self.interrupted, "at once": self.at_once, "in turns": self.in_turns}
        extras = [words for words, holds in (known | {"parts as state": self.has_parts}).items() if holds]
        return ", ".join([f"{self.name}: {self.mode} on {self.tower}", *extras, f"threads={self.threads}"])


def case_of(name: str) -> Case:
    """The case of a name."""
    rng = random.Random(name)
    towers = CUPY_TOWERS if (is_cupy := name.startswith(CUPY)) else TOWERS
    tower = rng.choices([*towers], [share for share, _ in towers.values()])[0]
    mode = rng.choices([*MODES], [*MODES.values()])[0]
    if mode == "train" and not tower.startswith("autodiff"):
        tower = next(iter(towers))
    if mode == "second" and "sharded" in tower and rng.random() < 0.7:
        mode = "grad"
    longest = LONGEST if mode == "second" or "sharded" in tower or is_cupy else 40
    program = program_of(rng, has_random=not mode.startswith("vmap"), longest=longest, has_large=not is_cupy)
    renewals: tuple[tuple[str, str], ...] = ()
    optimizer = ""
    if mode in ("state", "train"):
        renewals = tuple(_renewals(rng, program))
        if not renewals:
            mode = "value"
    if mode == "train":
        optimizer = rng.choice([*OPTIMIZERS])
    interrupted = rng.random() < (0.3 if mode in ("state", "train") else 0.04) and not is_cupy
    at_once = mode in ("value", "grad") and rng.random() < 0.04 and not is_cupy
    threads = rng.choice((1, 1, 1, 2))
    in_turns = mode in ("state", "train") and rng.random() < 0.15 and not interrupted
    has_parts = mode in ("state", "train") and rng.random() < 0.3
    return Case(name, program, tower, mode, renewals, optimizer, threads, interrupted, at_once, in_turns, has_parts)


def _renewals(rng: random.Random, program: Program) -> Iterator[tuple[str, str]]:
    """Inputs that become state, each with its new value: a result, a slice of a value, itself, or another input."""
    floats = [x.value for x in program.inputs if x.value.is_float]
    chosen = rng.sample(floats, rng.randint(1, len(floats))) if floats else []
    values = [line.value for line in program.lines]
    for v in chosen:
        same = [w.name for w in values if (w.shape, w.dtype) == (v.shape, v.dtype)]
        swaps = [w.name for w in chosen if (w.shape, w.dtype) == (v.shape, v.dtype)]
        options = [f"{v.name} * 0.5 + 0.25", v.name, *swaps[:1], f"bb.tanh({v.name} * 2.0)"]
        options += [*same * 2, *[f"{v.name} * 0.9 + bb.tanh({name}) * 0.1" for name in same] * 2]
        for w in values if v.shape else ():
            if w.dtype == v.dtype and w.shape[1:] == v.shape[1:] and w.shape and w.shape[0] > v.shape[0]:
                options += [f"{w.name}[:{v.shape[0]}]", f"bb.tanh({w.name}[:{v.shape[0]}])"]
        if v.shape and v.shape[0] > 1:
            options += [f"bb.index_copy({v.name}, bb.asarray([0, {v.shape[0] - 1}]), bb.tanh({v.name}[:2]) + 1.0, 0)"]
            options += [f"bb.concat([{v.name}[1:], {v.name}[:1] * 0.5])"]
        yield v.name, rng.choice(options)


def function_of(case: Case, space: dict[str, Any], between: str = "") -> Callable[..., Any]:
    """The function to record: ``(*inputs) -> results``, or ``(state, *inputs, turn) -> state, results``."""
    program = case.program
    floats = tuple(i for i, x in enumerate(program.inputs) if x.value.is_float)
    at = [i for i, x in enumerate(program.inputs) if x.value.name in dict(case.renewals)]

    def merged(state: dict[str, Any], inputs: Sequence[Any]) -> list[Any]:
        found = [*inputs]
        for i in at:
            found[i] = state[program.inputs[i].value.name]
        return found

    if case.mode == "state":
        parts = ", ".join(f"{name!r}: {text}" for name, text in case.renewals)
        renewed = program.function(space, between, f"{{{parts}}}")
        return lambda state, *inputs: renewed(*merged(state, inputs[:-1]))
    f = program.function(space, between)
    loss = partial(_loss, f)
    if case.mode == "train":

        def train(state: Any, *inputs: Any) -> Any:
            weights, optimizer = state
            total = loss(*merged(weights, inputs[:-1]))
            optimizer.step(weights, total.backward())
            return state, total

        return train
    if not floats or case.mode == "value":
        return f
    if case.mode == "vmap":
        return bb.vmap(f, on_fallback="allow")
    slopes = bb.value_and_grad(loss, argnums=floats)
    if case.mode == "grad":
        return slopes
    if case.mode == "vmap grad":
        return bb.vmap(slopes, on_fallback="allow")
    if case.mode == "second":
        first = bb.grad(loss, argnums=floats)

        def size(*inputs: Any) -> Any:
            return sum(bb.mean(bb.astype(g, bb.float32) ** 2.0) for g in first(*inputs) if g.size)

        return lambda *inputs: (first(*inputs), bb.grad(size, argnums=floats)(*inputs))

    def tangent(*inputs: Any) -> Any:
        def on_floats(*given: Any) -> Any:
            found = [*inputs]
            for i, x in zip(floats, given, strict=True):
                found[i] = x
            return f(*found)

        given = tuple(inputs[i] for i in floats)
        return bb.jvp(on_floats, given, tuple(bb.cos(x) for x in given))

    return tangent


def _loss(f: Callable[..., Any], *inputs: Any) -> Any:
    """A scalar that depends nonlinearly on every float result."""
    total: Any = 0.0
    for r in f(*inputs):
        if r.dtype in FLOATS and r.size:
            total = total + bb.mean(bb.sin(bb.astype(r, bb.float32) if r.dtype.bits == 16 else r)) * 2.0
    return total if isinstance(total, bb.Tensor) else bb.zeros(())  # all results are empty
