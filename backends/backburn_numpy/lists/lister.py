"""``Lister``: which calls become part of a list, and the lists of one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backburn.decorators.capture.program import Call, Number, Variable
from backburn_numpy.lists import formulas, multiplications, rearrangements
from backburn_numpy.lists.layout import Layout, Plan
from backburn_numpy.lists.native_list import NativeList


class Lister:
    """Makes lists of the calls of one program: see :class:`backburn.decorators.capture.native.Lister`."""

    def __init__(self) -> None:
        self._plans: dict[Call, Plan] = {}

    def spares(self, call: Call) -> int:
        """How many calls are spared where this one becomes part of a list: 0 for a view, -1 if it cannot."""
        plan = PLANNERS.get(call.operation, formulas.formula_plan)(call)
        if plan is None:
            return -1
        self._plans[call] = plan
        return 0 if call.operation in VIEWS else 1

    def native_list(
        self, calls: Sequence[Call], given: Sequence[Variable | Number], results: Sequence[Variable]
    ) -> Callable[..., list[Any]]:
        """A function of what is given that makes the calls and returns the results."""
        layout = Layout(given)
        for call in calls:
            layout.planned = call
            self._plans[call](layout, call)
        return NativeList(layout, given, results, {v: call for call in calls for v in call.writes})


PLANNERS: dict[str, Callable[[Call], Plan | None]] = {
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
#: Calls that take no time outside a list.
VIEWS = frozenset(("reshape", "slice", "permute_dims", "broadcast_to"))
