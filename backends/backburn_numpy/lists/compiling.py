"""The compilation of recorded programs: the passes of the NumPy backend, native programs, and updates in place."""

from __future__ import annotations

from functools import partial
from typing import Any

from backburn.programs.compiling import PASSES as COMMON
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Call, Pass, Program, rewrite
from backburn.programs.passes.epilogues import join_epilogues, mask_before_pools
from backburn.programs.passes.fusion import fuse_calls
from backburn.programs.passes.in_place import donated_parts, split_updates
from backburn.programs.passes.loop_products import join_products
from backburn.programs.passes.native_programs import compile_calls
from backburn.programs.passes.stacks import split_stacks
from backburn_numpy import compiled
from backburn_numpy.lists.lister import ProgramCompiler
from backburn_numpy.programs import epilogues, state_updates


def _split(program: Program, k: Any) -> list[Call]:
    """Split stacks into parts that become parts of native programs."""
    compiler = ProgramCompiler()
    return split_stacks(program, k, lambda call: compiler.calls_saved(call) is not None)


_EPILOGUES = partial(join_epilogues, with_epilogue=epilogues.with_epilogue)
#: The passes that join calls, with kernels and without them.
PASSES: tuple[Pass, ...] = (_split, join_products, mask_before_pools, _EPILOGUES, fuse_calls)
WITHOUT_KERNELS: tuple[Pass, ...] = (join_products, mask_before_pools, _EPILOGUES, fuse_calls)


def compile_program(k: Any, program: Program, is_plain: bool, has_steps: bool) -> CompiledProgram:
    """An executable of calls of ``k``: with all passes if it is the plain backend, in place if the steps are its."""
    has_native = is_plain and compiled.kernel("native_list") is not None
    passes = (PASSES if has_native else WITHOUT_KERNELS) if is_plain else COMMON
    rewrite(program, k, passes if program.joins else ())
    donated = donated_parts(program) if program.state else []
    calls, updates = split_updates(program) if program.state and has_steps else (program.calls, [])
    in_place = state_updates.in_place_updates(k, updates) if updates else None
    if in_place is not None:
        program.calls, program.updates = calls, updates
    if has_native and program.joins:
        program.calls = compile_calls(program, k, ProgramCompiler())
    return CompiledProgram(k, program, in_place, donated, state_updates.is_unshared)
