"""Machine-code loops on a tile, called as passes call them."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn_numpy import compiled
from backburn_numpy.machine_code.loops import Loop, assemble
from backburn_numpy.machine_code.memory import Code, executable

#: The tile interpreter's code for calling machine code, and the words per step (``tile_interpreter.c``).
CODE, WORDS = 8, 23


class Tile:
    """The tile interpreter's arguments to call a loop once: ``fixed`` and ``starts``, and what they point to."""

    def __init__(self, loop: Loop, arrays: list[Any], rows: int = 1) -> None:
        code = executable(assemble(loop))
        assert code is not None
        self.code: Code = code
        self.starts = np.array([compiled.address(x) for x in arrays], np.int64)
        self._places = np.array([(i, 0, 0) for i in range(len(arrays))], np.int64)
        self._step = np.zeros(WORDS, np.int64)
        self._step[:4] = code.address, CODE, len(arrays), compiled.address(self._places)
        numbers = [1, rows, loop.width, rows, rows, loop.size, 0, rows, 0]
        self.fixed = np.array([compiled.address(self._step), *numbers], np.int64)


def run(loop: Loop, arrays: list[Any], rows: int = 1) -> None:
    """Run a loop on a tile."""
    tile = Tile(loop, arrays, rows)
    kernel: Any = compiled.kernel("run_tiles")
    kernel(compiled.address(tile.fixed), compiled.address(tile.starts), None, 1)
