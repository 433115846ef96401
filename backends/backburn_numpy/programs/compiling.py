"""Compilation of recorded programs: the NumPy backend's passes, native programs and in-place updates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from backburn.base.dtypes import float32, float64
from backburn.programs.compiling import PASSES as COMMON
from backburn.programs.executable import CompiledProgram
from backburn.programs.fusion.expansions import expand_logsumexp, expand_variances
from backburn.programs.fusion.replacement import fuse_calls
from backburn.programs.ir import Call, Pass, Program, Variable, listed, rewrite
from backburn.programs.passes.epilogues import join_epilogues, mask_before_pools
from backburn.programs.passes.in_place import Update, donated_parts, split_updates
from backburn.programs.passes.loop_products import join_products
from backburn.programs.passes.native_programs import compile_calls
from backburn.programs.passes.stacks import split_stacks
from backburn_numpy import compiled, tuning
from backburn_numpy.programs import epilogues, state_updates
from backburn_numpy.programs.program_compiler import ProgramCompiler
from backburn_numpy.programs.tile_code import knows
from backburn_numpy.programs.tiles import compile_plan


def _split(program: Program, k: Any) -> list[Call]:
    """Split stacks into parts that native programs can include."""
    compiler = ProgramCompiler()
    return split_stacks(program, k, lambda call: compiler.calls_saved(call) is not None)


_EPILOGUES = partial(join_epilogues, with_epilogue=epilogues.with_epilogue)
#: The passes that join calls, with kernels and without them.
PASSES: tuple[Pass, ...] = (
    *(_split, join_products, mask_before_pools, _EPILOGUES, expand_variances, expand_logsumexp),
    partial(fuse_calls, compile=compile_plan, knows=knows),
)
WITHOUT_KERNELS: tuple[Pass, ...] = (join_products, mask_before_pools, _EPILOGUES, fuse_calls)


def _small_steps(program: Program, k: Any) -> list[Call]:
    """Plain SGD steps of small parameters as two element-wise calls each, for native programs: bitwise identical."""
    found: list[Call] = []
    for call in program.calls:
        if call.operation != "sgd_steps" or any(call.attributes.get(n) for n in ("momentum", "weight_decay")):
            found.append(call)
            continue
        params, grads, *rest = call.operands
        count = len(params)
        small = [i for i, p in enumerate(params) if _is_small(p) and call.results[count + i] is None]
        for i in small:
            product = program.variable(params[i].shape, params[i].dtype)
            found.append(Call("mul", k.mul, [grads[i], call.attributes.get("lr", 0.01)], {}, product))
            found.append(Call("sub", k.sub, [params[i], product], {}, call.results[i]))
        others = [i for i in range(count) if i not in small]
        if others:
            operands = [[values[i] for i in others] if values else values for values in (params, grads, *rest)]
            results = [call.results[i + half] for half in (0, count) for i in others]
            found.append(replace(call, operands=operands, results=results))
    return found


def _is_small(x: Any) -> bool:
    """Whether a value is small enough to be updated in a native program rather than in place."""
    if x.__class__ is not Variable or x.dtype not in (float32, float64):
        return False
    return prod(x.shape) * x.dtype.itemsize < tuning.MIN_BYTES_FOR_PLAIN_STEP


def _is_small_formula(call: Call) -> bool:
    return call.operation == "fuse" and all(map(_is_small, listed(call.results)))


def compile_program(k: Any, program: Program, is_plain: bool, has_steps: bool) -> CompiledProgram:
    """An executable of calls of ``k``: with all passes if it is plain, in place if its optimizer steps are plain."""
    has_native = is_plain and compiled.kernel("native_program") is not None
    passes = (PASSES if has_native else WITHOUT_KERNELS) if is_plain else COMMON
    rewrite(program, k, passes if program.joins else ())
    has_native = has_native and program.joins
    if has_native:
        program.calls = _small_steps(program, k)
    donated = donated_parts(program) if program.state else []
    calls, updates = program.calls, list[Update]()
    if program.state and has_steps:
        calls, updates = split_updates(program, lambda call: has_native and _is_small_formula(call))
    in_place = state_updates.in_place_updates(k, updates) if updates else None
    if in_place is not None:
        program.calls, program.updates = calls, updates
    if has_native:
        program.calls = compile_calls(program, k, ProgramCompiler())
    return CompiledProgram(k, program, in_place, donated, state_updates.is_unshared)
