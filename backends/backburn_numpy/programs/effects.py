"""Effects of recorded calls and kernels, for the verifier: the elements that they move, read and write.

They follow from the definitions of the operations and from the C sources, not from the planner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.programs.ir import Variable
from backburn_numpy import compiled

Array = Any

#: The registers of the interpreter of formulas.
REGISTERS = 16


class Refused(Exception):
    """A fault of a step, as its message describes it."""


def _stacked(join: Callable[..., Array]) -> Callable[..., Array]:
    return lambda of, values, _: join([of(x) for x in values[0]], values[1] if len(values) > 1 else 0)


#: The calls that only move elements: the symbols of the result, given a function for those of an operand, the call's
#: arguments and the result.
MOVES: dict[str, Callable[[Callable[[Any], Array], list[Any], Variable], Array]] = {
    "reshape": lambda of, values, v: of(values[0]).reshape(*v.shape, -1),
    "slice": lambda of, values, v: of(values[0])[tuple(values[1])],
    "permute_dims": lambda of, values, v: of(values[0]).transpose(*values[1], len(values[1])),
    "diagonal": lambda of, values, v: np.moveaxis(
        np.diagonal(of(values[0]), values[1], *(a % len(values[0].shape) for a in values[2:])), -1, -2
    ),
    "stack": _stacked(np.stack),
    "concat": _stacked(np.concatenate),
}
#: Cells of recurrent networks, which need not read all of their operands.
CELLS = ("lstm_cell", "gru_cell", "lstm_backward", "gru_backward")


def _times(times: int) -> Callable[..., int]:
    return lambda rows, size: times * rows * size


#: The kernels that take addresses and sizes. For each address: its use ("r" read, "r?" perhaps null, "d" read as
#: doubles, "w" written, "rw" both) and the number of elements; then the names of the sizes.
EFFECTS: dict[str, tuple[Any, ...]] = {
    "divide_sums": ((("w", lambda count, width: width), ("d", lambda count, width: width)), "count", "width"),
    "sum_matrices": (
        (("r", lambda inner, number, size: number * size), ("w", lambda inner, number, size: number * inner)),
        "inner", "number", "size",
    ),
    "sum_in_order": (
        (("r", lambda rows, width, wide: rows * width), ("w", lambda rows, width, wide: width)),
        "rows", "width", "wide",
    ),
    "lstm_step": (
        (("rw", _times(4)), ("w", _times(1)), ("w", _times(1)), ("r", _times(1)), ("r", _times(4)),
         ("r?", lambda rows, size: 4 * size)),
        "rows", "size",
    ),
    "gru_step": (
        (("w", _times(4)), ("w", _times(1)), ("r", _times(1)), ("r", _times(3)), ("r", _times(3)),
         ("r?", lambda rows, size: 3 * size)),
        "rows", "size",
    ),
    "lstm_step_backward": (
        (("w", _times(4)), ("rw", _times(1)), ("rw", _times(1)), ("r?", _times(1)), ("r?", _times(1)),
         ("r?", _times(4)), ("r", _times(1)), ("r", _times(1)), ("r", _times(4))),
        "rows", "size",
    ),
    "gru_step_backward": (
        (("w", _times(3)), ("w", _times(3)), ("rw", _times(1)), ("r?", _times(1)), ("r?", _times(4)),
         ("r", _times(1)), ("r", _times(4))),
        "rows", "size",
    ),
}  # fmt: skip

#: The arrays of kernels that passes call with rows and their width, and which is the result: F has all elements, R one
#: number per row, M four numbers per row, I one index per row, C one number per column, S sums of columns in double.
ARRAYS_ALONG_ROWS = {
    "softmax": ("FF", 0), "softmax_backward": ("FFF", 0), "log_softmax": ("FF", 0), "log_softmax_backward": ("FFF", 0),
    "logsumexp": ("FR", 1), "pick": ("FRI", 1), "pick_backward": ("FRI", 0),
    "label_cross_entropy": ("FRI", 1), "label_cross_entropy_backward": ("FRFI", 0),
    "standardize": ("FFCC", 0), "standardize_backward": ("FFFCCS", 0), "moments": ("MF", 0),
}  # fmt: skip

#: The operands of a formula's kernels that are single numbers, counted from 1; for other names that end in "_number",
#: the second.
NUMBERS = {
    "fill": (1,), "clamp": (2, 3), "multiply_add_number": (3,), "scale_add": (2,), "scale_multiply": (2,),
    "scale_add_number": (2, 3),
}  # fmt: skip


def kernels() -> dict[int, str]:
    """The names of the kernels that have been used, by their addresses."""
    known: dict[str, Any] = compiled._kernels
    return {found.where: name for name, found in known.items() if found is not None}


def uses_of(formula: Any) -> tuple[int, list[str]]:
    """The number of results of a formula, and its use of each array: "row", "number", or "" if none."""
    if (known := getattr(formula, "_verified", None)) is not None:
        return known
    names, arrays = kernels(), int(formula.fixed[3])
    where = compiled.addresses(formula.calls, formula.steps)
    if formula.fixed[:3].tolist() != [where[0], len(formula.calls) // 6, where[1]] or len(formula.steps) != arrays:
        raise Refused("a formula's numbers lie elsewhere")
    results = {call[2] for call in formula.calls.reshape(-1, 6).tolist() if call[2] < arrays}
    uses = [""] * arrays
    written: set[int] = set()
    for address, count, out, *rest in formula.calls.reshape(-1, 6).tolist():
        name = names.get(address, "")
        base = name.removesuffix("_double")
        kernel: Any = compiled.kernel(name) if name else None
        if kernel is None or len(kernel.argtypes) != count + 1 or (base != name) != (formula.fixed[4] == 8):
            raise Refused(f"a formula calls what is not a kernel for its elements: {name}")
        numbers = NUMBERS.get(base, (2,) if base.endswith("_number") else ())
        for i, x in enumerate(rest[: count - 1], 1):
            if x in results or x >= arrays:
                if x not in written or i in numbers:
                    raise Refused("a formula reads what it has not written")
            else:
                uses[x] = "number" if i in numbers and uses[x] != "row" else "row"
        if out >= arrays + REGISTERS:
            raise Refused("a formula has too many registers")
        written.add(out)
    if results != {*range(len(results))} or len(results) != len(formula.made):
        raise Refused("a formula writes over an operand")
    formula._verified = len(results), uses
    return formula._verified
