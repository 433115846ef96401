"""The compilation of recorded programs: passes over rows, each a kernel. ``capture(cupy)`` records the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backburn.ops.table import OPERATIONS
from backburn.programs.executable import CompiledProgram
from backburn.programs.fusion.expansions import expand_variances
from backburn.programs.fusion.plan import Plan
from backburn.programs.fusion.replacement import fuse_calls
from backburn.programs.ir import Call, Program, rewrite
from backburn.programs.lowering import UNTRACEABLE
from backburn.programs.passes.epilogues import mask_before_pools
from backburn.programs.passes.loop_products import join_products
from backburn_cupy.kernels.passes import PassKernel, knows

Array = Any


class CudaPass:
    """A pass of a program of ``k``: a function of its inputs that launches the kernel."""

    generator = "CUDA"

    def __init__(self, k: Any, plan: Plan, twin: CudaPass | None) -> None:
        """``twin`` is the pass of an equal plan. Raises one of ``UNTRACEABLE`` for a plan that has no kernel."""
        self._k = k
        self.kernel: PassKernel = PassKernel(plan) if twin is None else twin.kernel
        #: The calls that it joins, and the one to which errors are attributed.
        self.made: Sequence[Call] = [step.call for step in plan.steps]
        self.failed = self.made[-1]

    def __call__(self, *inputs: Array) -> list[Array]:
        """Launch the kernel."""
        k = self._k
        recorded = k.runner.recorded
        if recorded is not None:
            recorded.note_operands(inputs)
        with k.translate_errors(self.failed.operation):
            outputs = self.kernel(k.runner, [*inputs])
        if recorded is not None:
            recorded.note_results(outputs)
        return outputs


def compile_program(k: Any, program: Program) -> CompiledProgram:
    """A program of calls of ``k`` with passes, if calls are to be joined and ``k`` runs kernels."""

    def compile_plan(plan: Plan, twin: CudaPass | None) -> CudaPass | None:
        try:
            return CudaPass(k, plan, twin)
        except UNTRACEABLE:
            return None

    if program.joins:
        fuse = fuse_calls if k.runner is None else partial(fuse_calls, compile=compile_plan, knows=knows)
        rewrite(program, k, (join_products, mask_before_pools, expand_variances, fuse))
    for call in program.calls:
        if call.operation in OPERATIONS or call.operation == "fuse":
            call.function = _found_late(k, call.operation)
    return CompiledProgram(k, program)


def _found_late(k: Any, name: str) -> Callable[..., Any]:
    """The operation of ``k``, looked up at each call: recordings replace it."""

    def operation(*operands: Any, **options: Any) -> Any:
        return getattr(k, name)(*operands, **options)

    return operation
