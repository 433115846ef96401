"""A backend that records: NumPy, which writes down every call and makes the same calls again into the same memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from backburn.backend.capture import Program
from backburn.backend.contract import Backend, Capabilities
from backburn.backend.registry import register_backend
from backburn.backend.table import OPERATIONS
from backburn.base.errors import CaptureError
from backburn.base.replay import REPLAY, ReplayedFloat, ReplayedInt
from backburn_numpy import NumpyBackend

#: What reads values on the host, or has a shape that depends on them.
HOST = {n for n, o in OPERATIONS.items() if o.results == ("host",) or o.shape is None} - {"from_numpy"}

#: What NumPy is given for the numbers that change: beside another class than float, arrays become float64.
NUMBERS: dict[type, Any] = {ReplayedFloat: float, ReplayedInt: int}


class TapingBackend(NumpyBackend):
    """NumPy with :meth:`capture`."""

    #: Formulas are taped operation by operation.
    one_pass = Backend.one_pass

    def __init__(self) -> None:
        self.tape: list[Any] | None = None
        self.calls = 0

    @property
    def spec(self) -> str:
        return "taping"

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, capture=True)

    def capture(self, program: Program, state: Sequence[Any], inputs: Sequence[Any]) -> TapeReplay:
        held, given = [x.copy() for x in state], [x.copy() for x in inputs]
        self.tape = []
        try:
            new, out = program(list(held), list(given))
            return TapeReplay(self.tape, held, given, new, out)
        finally:
            self.tape = None


class TapeReplay:
    """The calls of a program, with the very arrays that they read and write."""

    def __init__(self, tape: list[Any], state: list[Any], inputs: list[Any], new: list[Any], out: list[Any]) -> None:
        self.tape, self.state, self.inputs, self.new, self.out = tape, state, inputs, new, out
        self.launches = len(tape)

    def set_state(self, place: int, value: Any) -> None:
        np.copyto(self.state[place], value)

    def __call__(self, inputs: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
        for held, x in zip(self.inputs, inputs, strict=True):
            np.copyto(held, x)
        for function, called, bound, results in self.tape:
            now = called | {n: numbers[i] for n, i in bound.items()}
            operands = [v for n, v in now.items() if isinstance(n, int)]
            again = function(*operands, **{n: v for n, v in now.items() if isinstance(n, str)})
            for held, x in zip(results, again if isinstance(again, tuple) else (again,), strict=True):
                if held is not x and held.flags.writeable:  # what is not is a view of what was renewed
                    np.copyto(held, x)
        out = [x.copy() for x in self.out]  # some may be views of the state that is about to be written over
        for held, x in zip(self.state, [x.copy() for x in self.new], strict=True):
            np.copyto(held, x)
        return out


def _taped(name: str, function: Any) -> Any:
    def call(self: TapingBackend, *operands: Any, **options: Any) -> Any:
        self.calls += 1
        if self.tape is None:
            return function(*operands, **options)
        if name in HOST:
            raise CaptureError(f"{name} reads values on the host")
        recording, count = REPLAY.get(), len(OPERATIONS[name].operands)
        assert recording is not None
        options = {**dict(zip(OPERATIONS[name].attributes, operands[count:], strict=False)), **options}
        operands = operands[:count]
        called = dict(enumerate(operands)) | options
        bound = {n: place for n, v in called.items() if (place := recording.bind(v)) is not None}
        plain = {n: v if (kind := NUMBERS.get(type(v))) is None else kind(v) for n, v in called.items()}
        results = function(*(plain[i] for i in range(len(operands))), **{n: plain[n] for n in options})
        self.tape.append((function, called, bound, results if isinstance(results, tuple) else (results,)))
        return results

    return call


for _name, _operation in OPERATIONS.items():
    _function = getattr(NumpyBackend(), _name)
    if getattr(NumpyBackend, _name) is not _operation.body:
        setattr(TapingBackend, _name, _taped(_name, _function))

register_backend("taping", TapingBackend)
