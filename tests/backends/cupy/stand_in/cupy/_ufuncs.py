"""Ufuncs with CuPy's loops."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from cupy._arrays import BFLOAT16, host, known_number, ndarray
from cupy._recording import Tape

SURFACE = json.loads((Path(__file__).parents[1] / "surface.json").read_text())


def _remainder(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y)))
    return x - np.floor(x / y) * y


def _floor_divide(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))
    return np.floor(x / y)


def _nextafter(x: Any, y: Any) -> Any:
    following = np.nextafter(x, y)
    return np.where(np.isfinite(x), following, x.dtype.type(np.nan)) if x.dtype == np.float16 else following


def _expm1(x: Any) -> Any:
    return np.exp(x) - 1 if x.dtype.kind == "c" else np.expm1(x)


def _log1p(x: Any) -> Any:
    return np.log(1 + x) if x.dtype.kind == "c" else np.log1p(x)


def _power(x: Any, y: Any) -> Any:
    return np.where(y == 0, 1, np.exp(np.log(x) * y)) if x.dtype.kind == "c" else np.power(x, y)


#: Ufuncs whose results differ between CuPy and NumPy.
OWN = {
    "remainder": _remainder, "floor_divide": _floor_divide, "nextafter": _nextafter, "expm1": _expm1, "log1p": _log1p,
    "power": _power,
}  # fmt: skip


class ufunc:  # noqa: N801 - CuPy's name
    """A ufunc with CuPy's loops."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.loops = []
        for loop in SURFACE["ufuncs"][name]:
            ins, _, outs = loop.partition("->")
            self.loops.append(([letter(c) for c in ins], letter(outs)))

    def __call__(self, *args: Any, out: ndarray | None = None) -> ndarray:
        operands = [host(a) for a in args]
        assert len(operands) == len(self.loops[0][0]), f"{self.__name__}: {len(operands)} operands"
        assert any(isinstance(a, ndarray) for a in args)
        types, result = self.loop(operands)
        computed = [np.float32 if t == BFLOAT16 or t == np.float16 else t for t in types]
        if self.__name__ == "nextafter":
            computed = types
        function = OWN.get(self.__name__, getattr(np, self.__name__))

        def compute() -> Any:
            arrays = [np.asarray(o).astype(t).astype(c) for o, t, c in zip(operands, types, computed, strict=True)]
            with np.errstate(all="ignore"):
                return np.asarray(function(*arrays)).astype(result)

        if out is None:
            return ndarray(Tape.made(compute))
        assert np.can_cast(result, out.dtype, "same_kind")
        target = out._host
        Tape.writing(target)

        def write() -> None:
            target[...] = compute()

        write()
        Tape.add(write)
        return out

    def loop(self, operands: list[Any]) -> tuple[list[Any], Any]:
        """The loop for these operands: see :meth:`choice`."""
        types, result = self.choice(*map(kind, operands))
        for o, t in zip(operands, types, strict=True):
            number(o, t)
        return types, result

    @functools.cache  # noqa: B019 - ufuncs live as long as the module
    def choice(self, *kinds: Any) -> tuple[list[Any], Any]:
        """The first matching loop: arrays match by safe casting, Python numbers by kind."""
        # ``in`` also matches a NumPy dtype, which equals its Python class.
        numbers = [score(k) for k in kinds if k in WEAK]
        arrays = [score(k) for k in kinds if k not in WEAK]
        weak = bool(arrays and numbers) and max(arrays) >= max(numbers)
        for types, result in self.loops:
            if all(fits(k, t, weak) for k, t in zip(kinds, types, strict=True)):
                return types, result
        names = ", ".join(getattr(k, "__name__", str(k)) for k in kinds)
        raise TypeError(f"Wrong type ({names}) of arguments for cupy_{self.__name__}")


def letter(char: str) -> Any:
    """The dtype of a letter; ``E`` is bfloat16."""
    return BFLOAT16 if char == "E" else np.dtype(char)


#: Python numbers, whose dtype depends on the other operands. A bool has its own dtype, and subclasses raise.
WEAK = (int, float, complex)


def kind(operand: Any) -> Any:
    """What selects the loop: an array's dtype, or a Python number's class."""
    if isinstance(operand, (np.ndarray, np.generic)):
        return operand.dtype
    known_number(operand)
    return type(operand)


def score(kind: Any) -> int:
    """CuPy's rank of a kind; bfloat16, which it does not know, ranks highest."""
    if isinstance(kind, np.dtype):
        return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}.get(kind.kind, 4)
    return (bool, int, float, complex).index(kind)


def fits(kind: Any, wanted: Any, weak: bool) -> bool:
    """Whether an operand of a kind matches one of a loop's types."""
    if isinstance(kind, np.dtype):
        return bool(np.can_cast(kind, wanted, "safe"))
    own = np.dtype({bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}[kind])
    if np.can_cast(own, wanted, "safe"):
        return True
    # NumPy's rule: bfloat16 with a Python float is float32.
    return weak and kind is not bool and bool(np.result_type(kind(0), wanted) == wanted)


def number(operand: Any, wanted: Any) -> None:
    """Raise or warn for a Python number that does not fit a dtype, as NumPy's assignment does."""
    if type(operand) in WEAK:
        np.empty((), wanted)[()] = operand


for _name in SURFACE["ufuncs"]:
    globals()[_name] = ufunc(_name)
