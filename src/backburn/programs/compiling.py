"""The compilation of programs, and the protocol of backends that compile them themselves."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from backburn.backend.capturing import Executable
from backburn.programs.executable import CompiledProgram
from backburn.programs.fusion.replacement import fuse_calls
from backburn.programs.ir import Pass, Program, rewrite
from backburn.programs.passes.epilogues import mask_before_pools
from backburn.programs.passes.loop_products import join_products

#: The passes that join calls, on any backend.
PASSES: tuple[Pass, ...] = (join_products, mask_before_pools, fuse_calls)


class CompilingBackend(Protocol):
    """A backend that compiles the programs that ``capture(...)`` records of its calls."""

    @abstractmethod
    def compile(self, program: Program) -> Executable:
        """An executable of a program, whose calls it may rewrite; they are joined only if ``program.joins``.

        :func:`backburn.programs.ir.rewrite` runs passes, and :class:`backburn.programs.executable.CompiledProgram`
        runs the calls that remain. A backend that records by itself returns a ``CompiledProgram``: it is run once, and
        then given to the backend's ``capture`` as a step.
        """


def compile_program(k: Any, program: Program) -> Executable:
    """An executable of a program of calls of ``k``, by the backend's own ``compile`` if it has one."""
    if (own := getattr(k, "compile", None)) is not None:
        made: Executable = own(program)
        return made
    rewrite(program, k, PASSES if program.joins else ())
    return CompiledProgram(k, program)
