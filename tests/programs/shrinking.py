"""Shorten a failing program, and write it as a standalone script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.programs.generator import Input, Program
from tests.programs.modes import TOWERS, Case

#: The maximum number of cases tried.
MOST = 400


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The shortest case found that still fails, after removing lines, results, state and options one by one."""
    tried, is_shorter = 0, True
    while is_shorter:
        is_shorter = False
        for shorter in _shorter(case):
            tried += 1
            if tried > MOST:
                return case
            if fails(shorter):
                case, is_shorter = shorter, True
                break
    return case


def _shorter(case: Case) -> Iterator[Case]:
    if case.threads > 1:
        yield replace(case, threads=1)
    if case.interrupted:
        yield replace(case, interrupted=False)
    if case.at_once:
        yield replace(case, at_once=False)
    if case.in_turns:
        yield replace(case, in_turns=False)
    if case.has_parts:
        yield replace(case, has_parts=False)
    if case.mode != "value":
        yield replace(case, mode="value", renewals=())
        if case.mode == "second":
            yield replace(case, mode="grad")
    simplest = next(iter(TOWERS)) if case.mode == "train" else "capture(numpy)"
    if case.tower not in (simplest, "autodiff(capture(numpy))"):
        yield replace(case, tower=simplest)
    program = case.program
    for name, _ in case.renewals if len(case.renewals) > 1 else ():
        yield replace(case, renewals=tuple(pair for pair in case.renewals if pair[0] != name))
    for i in range(len(program.results)) if len(program.results) > 1 else ():
        results = program.results[:i] + program.results[i + 1 :]
        yield with_program(case, replace(program, results=results))
    count = len(program.lines)
    size = count // 2
    while size:
        for start in reversed(range(0, count, size)):
            yield with_program(case, without(program, start, start + size))
        size //= 2


def without(program: Program, start: int, stop: int) -> Program:
    """The program with the values of some lines as inputs."""
    gone = program.lines[start:stop]
    inputs = tuple(Input(line.value, 2) for line in gone)
    return replace(program, inputs=program.inputs + inputs, lines=program.lines[:start] + program.lines[stop:])


def with_program(case: Case, program: Program) -> Case:
    """The case with another program, reduced to the lines and inputs that it needs."""
    needed = {name for name, text in case.renewals for name in (name, *program.names_in(text))}
    return replace(case, program=program.live(needed))


def script(case: Case, words: str) -> str:
    """The case as a script."""
    names = [x.value.name for x in case.program.inputs]
    lines = [f"# {case.describe()}: {words}"]
    lines.append(f"# python -m tests.programs --replay {case.name}   (before it was shortened)")
    lines += [
        "import numpy as np",
        "import backburn as bb",
        "import backburn.optim",
        "from backburn.nn import functional as F",
        "",
    ]
    lines.append(f"tower = {case.tower!r}")
    lines.append("rng = np.random.default_rng(0)")
    for x in case.program.constants:
        lines.append(f"{x.value.name} = {_array(x, ())}")
    renewals = ", ".join(f"{name!r}: {text}" for name, text in case.renewals)
    lines += ["", case.program.source(returns=f"{{{renewals}}}" if case.mode == "state" else ""), ""]
    for line in _how(case, names):
        lines.append(line)
    return "\n".join(lines) + "\n"


def _array(x: Input, batch: tuple[int, ...]) -> str:
    shape = batch + x.value.shape
    made = f"rng.normal(size={shape})" if x.value.is_float else f"rng.integers(0, {max(1, x.high)}, {shape})"
    return f"bb.asarray({made}, dtype=bb.{x.value.dtype}, backend=tower)"


def _how(case: Case, names: list[str]) -> Iterator[str]:
    """The lines that call the program unrecorded and recorded."""
    floats = tuple(i for i, x in enumerate(case.program.inputs) if x.value.is_float)
    yield "def loss(*inputs):"
    yield "    return sum(bb.mean(bb.sin(r)) * 2.0 for r in program(*inputs) if 'float' in str(r.dtype) and r.size)"
    yield ""
    slopes = f"bb.grad(loss, argnums={floats})"
    functions = {
        "grad": f"bb.value_and_grad(loss, argnums={floats})",
        "second": f"bb.grad(lambda *a: sum(bb.mean(g ** 2.0) for g in {slopes}(*a)), argnums={floats})",
        "vmap": "bb.vmap(program)",
        "vmap grad": f"bb.vmap(bb.value_and_grad(loss, argnums={floats}))",
        "jvp": "lambda *a: bb.jvp(program, a, tuple(bb.cos(x) for x in a))  # of the floats alone",
    }
    if case.has_state:
        yield f"names = {names}"
        yield "def function(state, *inputs):"
        if case.mode == "train":
            yield "    weights, optimizer = state"
            yield "    total = loss(*({**dict(zip(names, inputs)), **weights}[n] for n in names))"
            yield "    optimizer.step(weights, total.backward())"
            yield "    return state, total"
        else:
            yield "    return program(*({**dict(zip(names, inputs)), **state}[n] for n in names))"
    else:
        yield f"function = {functions.get(case.mode, 'program')}"
    yield ""
    yield f"for wrap in (lambda f: f, lambda f: bb.capture(f, state={case.has_state})):"
    yield "    rng, recorded = np.random.default_rng(1), wrap(function)"
    yield "    with bb.use_backend(tower), bb.random.fork(5):"
    if case.has_state:
        grad = ".require_grad()" if case.mode == "train" else ""
        held = [x for x in case.program.inputs if x.value.name in dict(case.renewals)]
        yield f"        state = {{{', '.join(f'{x.value.name!r}: {_array(x, ())}{grad}' for x in held)}}}"
        if case.mode == "train":
            yield f"        state = state, optim.{case.optimizer}"
    yield "        for _ in range(5):"
    for x in case.program.inputs:
        yield f"            {x.value.name} = {_array(x, case.batch)}"
    call = ", ".join(names)
    yield f"            {'state, found = recorded(state, ' if case.has_state else 'found = recorded('}{call})"
    yield "            print(found)"
