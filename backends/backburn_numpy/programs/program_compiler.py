"""``ProgramCompiler``: which calls of a recorded program become native, and their native programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backburn.programs.fusion.plan import PASS
from backburn.programs.ir import Call, Number, Variable
from backburn.programs.passes.native_programs import FEWEST
from backburn_numpy.programs import formulas, multiplications, rearrangements, small_passes
from backburn_numpy.programs.layout import Layout, Plan
from backburn_numpy.programs.native_program import NativeProgram
from backburn_numpy.programs.tiles import TilePass


class ProgramCompiler:
    """Compiles calls of a recorded program into native programs.

    See :class:`backburn.programs.passes.native_programs.ProgramCompiler`.
    """

    def __init__(self) -> None:
        self._plans: dict[Call, Plan] = {}
        #: How each variable of indices is checked: a native program does so once for all its passes.
        self._checks: dict[Variable, Any] = {}

    def calls_saved(self, call: Call) -> int | None:
        """Calls saved by adding this one to a native program, 0 for a view; None if it cannot be added."""
        plan = PLANNERS.get(call.operation, formulas.formula_plan)(call)
        if plan is None:
            return None
        if isinstance(one := call.function, TilePass) and any(
            self._checks.setdefault(x, check) != check for x, check in one.checks(call.operands)
        ):
            return None
        self._plans[call] = plan
        return 0 if call.operation in VIEWS else FEWEST if call.operation == PASS else 1

    def native_program(
        self, calls: Sequence[Call], given: Sequence[Variable | Number], results: Sequence[Variable]
    ) -> Callable[..., list[Any]]:
        """A function that runs the calls on the values of ``given`` and returns the results."""
        layout = Layout(given)
        for call in calls:
            layout.planned = call
            self._plans[call](layout, call)
        return NativeProgram(layout, given, results, {v: call for call in calls for v in call.writes})


PLANNERS: dict[str, Callable[[Call], Plan | None]] = {
    PASS: small_passes.pass_plan,
    "sum": formulas.sum_plan,
    "mean": formulas.sum_plan,
    "matmul": multiplications.product_plan,
    "linear": multiplications.linear_plan,
    "linear_weight_backward": multiplications.weight_gradient_plan,
    "lstm_cell": multiplications.cell_plan,
    "gru_cell": multiplications.cell_plan,
    "lstm_backward": multiplications.cell_backward_plan,
    "gru_backward": multiplications.cell_backward_plan,
    "reshape": rearrangements.view_plan,
    "slice": rearrangements.slice_plan,
    "diagonal": rearrangements.diagonal_plan,
    "permute_dims": rearrangements.permutation_plan,
    "stack": rearrangements.concatenation_plan,
    "concat": rearrangements.concatenation_plan,
}
#: Calls that cost nothing outside a native program.
VIEWS = frozenset(("reshape", "slice", "permute_dims", "broadcast_to"))
