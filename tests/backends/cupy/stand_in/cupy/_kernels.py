"""User-defined kernels, compiled for the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from cupy._arrays import host, known_number, ndarray
from cupy._recording import Tape

sys.path.insert(0, str(Path(__file__).parents[1]))
import compiled

sys.path.pop(0)


class ElementwiseKernel:
    """A user-defined element-wise kernel."""

    def __init__(
        self, in_params: str, out_params: str, operation: str, name: str = "kernel", reduce_dims: bool = True,
        preamble: str = "",
    ) -> None:  # fmt: skip
        self.ins, self.outs = compiled.parameters(in_params), compiled.parameters(out_params)
        self.body, self.name, self.preamble = operation, name, preamble
        assert name.isidentifier()

    def __call__(self, *args: Any, size: int | None = None) -> Any:
        operands = [host(a) for a in args]
        for operand in operands:
            if not isinstance(operand, np.ndarray):
                known_number(operand)
        for out in operands[len(self.ins) :]:
            Tape.writing(out)
        parts = (self.name, self.ins, self.outs, self.body, self.preamble)
        results = compiled.elementwise(*parts, operands, size)
        again = [*operands[: len(self.ins)], *results]
        Tape.add(lambda: compiled.elementwise(*parts, again, size))
        given = args[len(self.ins) :]
        if not given:
            for result in results:
                Tape.allocated(result)
        arrays = tuple(given) or tuple(ndarray(r) for r in results)
        return arrays[0] if len(arrays) == 1 else arrays


class ReductionKernel:
    """A user-defined reduction of one array."""

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
        identity: str | None,
        name: str = "reduce_kernel", reduce_type: str | None = None, reduce_dims: bool = True, preamble: str = "",
    ) -> None:  # fmt: skip
        (self.parameter,), (self.out,) = compiled.parameters(in_params), compiled.parameters(out_params)
        self.name = name
        assert reduce_type is not None
        self.texts = {
            "map": map_expr, "reduce": reduce_expr, "post": post_map_expr, "identity": identity or "",
            "reduce_type": reduce_type, "preamble": preamble,
        }  # fmt: skip

    def __call__(self, x: ndarray, *, axis: tuple[int, ...], keepdims: bool = False) -> ndarray:
        parts, source = (self.name, self.parameter, self.out, self.texts), x._host
        return ndarray(Tape.made(lambda: compiled.reduction(*parts, source, axis, keepdims)))


class RawModule:
    """Kernels in CUDA C++, run by the tests' emulation; all instances for a dtype are compiled together."""

    def __init__(self, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
        assert options == ("-std=c++17",)
        self.code, self.names = code, name_expressions

    def get_function(self, name: str) -> Any:
        assert name in self.names

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            # NumPy structures are passed by value.
            values = [a if isinstance(a, np.ndarray) and a.dtype.char == "V" else host(a) for a in arguments]
            if Tape.calls is None:
                compiled.launch(name, self.code, grid, block, values)
            # A recording computes nothing, because writes through addresses in a structure could not be undone.
            Tape.add(lambda: compiled.launch(name, self.code, grid, block, values))

        return launch
