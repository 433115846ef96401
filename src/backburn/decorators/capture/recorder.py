"""``Capture``: steps of any backend recorded as a list of calls, and replayed without the Python code that led to them.

A replay skips the Python code of dispatch, differentiation and optimizers: one generated function calls the wrapped
backend's operations one after the other. Operations whose operands never change are computed once, unused ones
are left out, and the rest is compiled (:mod:`backburn.programs.compiling`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from itertools import count
from operator import is_
from typing import Any, ClassVar
from weakref import ReferenceType, ref

from backburn.backend.capturing import Executable, Step, copy_primitive
from backburn.backend.contract import Capabilities
from backburn.backend.host_numbers import (
    HOST_CONSTANTS,
    LARGEST_CONSTANT,
    RECORDING_STEP,
    Recording,
    ReplayedFloat,
    ReplayedInt,
    contents,
)
from backburn.backend.wrapper import Wrapper
from backburn.base.contexts import scoped
from backburn.base.errors import CaptureError, SpecError
from backburn.base.module_calls import in_layer
from backburn.ops.bodies.reductions import all_true
from backburn.ops.table import OPERATIONS
from backburn.programs.compiling import compile_program
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Call, Number, Program, Variable, numbers_in, varies
from backburn.programs.passes.in_place import Donated


class Capture(Wrapper):
    """A backend that records: :func:`backburn.capture` replays steps on it, whatever backend is ``wrapped``.

    A replay repeats the step's calls of the wrapped backend, without the time that dispatch, differentiation and
    optimizers take in Python; where tensors are small, that is most of the time. Chains of element-wise calls on 4,096
    elements and more are joined (``fuse``), and so are small matrix products of a loop's steps, which may round
    differently; with ``join=False``, as in ``capture(numpy, join=false)``, they are not, and a replay is bitwise equal
    to the step. Unrecorded calls take slightly longer than on the wrapped backend.

    Around a backend that records by itself and has ``compile``, as in ``capture(cupy)``, calls are joined, and that
    backend records the result. Raises :class:`SpecError` around any other that records by itself.

        >>> import backburn as bb
        >>> train = bb.capture(lambda state, x: (state + x, state * x))
        >>> k = bb.load_backend("capture(numpy)")
        >>> state = bb.asarray(1.0, backend=k)
        >>> for _ in range(4):
        ...     state, out = train(state, bb.asarray(2.0, backend=k))
        >>> state.item(), out.item(), train
        (9.0, 14.0, <captured step: replayed>)
    """

    name: ClassVar[str] = "capture"

    def __init__(self, wrapped: Any, join: bool = True) -> None:
        """Wrap a backend, which is not changed."""
        super().__init__(wrapped)
        if not isinstance(join, bool):
            raise SpecError(f"capture: join is true or false, not {join!r}")
        if wrapped.capabilities.capture and not hasattr(wrapped, "compile"):
            raise SpecError(f"capture: {wrapped.spec} records by itself; leave the decorator out")
        self._join = join

    @property
    def spec(self) -> str:
        """The expression, with the option if it is not the default."""
        return f"{self.name}({self._inner.spec}{'' if self._join else ', join=false'})"

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped backend's, and capture."""
        return replace(self._inner.capabilities, capture=True)

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Call an operation of the wrapped backend, and record the call if a step is being recorded."""
        function = getattr(self._inner, operation)
        tape = _tape_for(operands)
        if tape is not None:
            return tape.call(operation, function, operands, attributes)
        if operation == "from_numpy" and (constants := HOST_CONSTANTS.get()) is not None:
            array = operands[0]
            if array.nbytes <= LARGEST_CONSTANT:
                constants.add(contents(array))
        return function(*operands, **attributes)

    def select(self, x: Any, /, axis: int, index: int) -> Any:
        """An entry, recorded as a slice and a reshape, which the passes over lists and loops recognize."""
        return OPERATIONS["select"].body(self, x, axis, index)

    def fuse(self, formula: Callable[..., Any], x: Any, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """Compute a formula as the wrapped backend does; in a recording, as one call."""
        tape = _tape_for((x, *values))
        if tape is None:
            return self._inner.fuse(formula, x, *values, donate=donate)
        return tape.call("fuse", self._inner.fuse, (formula, x, *values), {"donate": donate})

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The wrapped backend's, on the host: it cannot be recorded."""
        if (tape := _tape_for((x,))) is not None:
            raise tape.reads("quantized_parts")
        return self._inner.quantized_parts(x)

    def capture(self, step: Step, state: Sequence[Any], inputs: Sequence[Any]) -> Executable:
        """Record one run of ``step``: see :class:`backburn.backend.capturing.CapturingBackend`."""
        return _record(self._inner, step, state, inputs, self._join)


class _Tape:
    """The calls of a step while it is recorded."""

    def __init__(self, k: Any, recording: Recording, joins: bool) -> None:
        self._k = k
        #: The context of each call: a backend that records by itself must not record it yet.
        self._unrecorded: Any = partial(scoped, RECORDING_STEP, None) if k.capabilities.capture else nullcontext
        self.recording = recording
        #: Whether products with ones are left out; matrix products of their operands may round differently, by layout.
        self._omits_ones = joins
        self.calls: list[Call] = []
        self._known: dict[int, Variable] = {}
        #: The primitives of the variables, held weakly, so that a recording takes no more memory than the step does.
        self._primitives: dict[int, Any] = {}
        #: The results of recorded calls, by operation and operands.
        self._results: dict[Any, Any] = {}
        #: Calls of ``take_backward`` with constant results, by the ids of these.
        self.gathered: dict[int, Call] = {}
        #: The replayed numbers that calls were given, by place.
        self.numbers: dict[int, float] = {}
        self._count = count()

    def variable(self, primitive: Any) -> Variable:
        """A new variable, for a primitive."""
        identity, known, primitives = id(primitive), self._known, self._primitives

        def forget(_: Any) -> None:
            del known[identity], primitives[identity]

        primitives[identity] = _weak(primitive, forget)
        found = known[identity] = Variable(next(self._count), tuple(primitive.shape), self._k.dtype(primitive))
        return found

    def operand(self, value: Any) -> Any:
        """The variable or number that stands for ``value`` in a recorded call; a constant stands for itself."""
        if (place := self.recording.bind(value)) is not None:
            self.numbers[place] = value
            return Number(place)
        if isinstance(value, list | tuple):
            found = [self.operand(x) for x in value]
            return value if all(map(is_, found, value)) else found
        return self._known.get(id(value), value)

    def call(self, name: str, function: Any, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Make a call, and record it if its result may differ from replay to replay."""
        if name == "from_numpy":
            self._check_constant(*operands)
        elif (entry := OPERATIONS.get(name)) and (entry.shape is None or entry.results[0] == "host"):
            raise self.reads(name)
        if len(operands) > (at := _donate_at(name)):  # a decorator may pass it by position
            operands, attributes = operands[:at], {**attributes, "donate": operands[at]}
        given: list[Any] = []
        values: list[Any] = []
        keys: list[Any] = [name]
        differs = False
        for x in operands:
            if (place := self._known.get(id(x))) is None:
                place = self.operand(x)
                differs = differs or varies(place)
                keys.append(_key(place))
                x = plain_number(x)
            else:
                differs = True
                keys.append(place)
            given.append(place)
            values.append(x)
        options: dict[str, Any] = {}
        is_donated = False
        if attributes:
            # A replay does not overwrite operands, which other calls may read, except for a part of the state that
            # only one call reads: see `donated_parts`.
            is_donated = name == "index_copy" and attributes.get("donate", False)
            attributes = {n: x for n, x in attributes.items() if n != "donate"}
            options = {n: self.operand(x) for n, x in attributes.items()}
            attributes = {n: plain_number(x) for n, x in attributes.items()}
            differs = differs or varies([*options.values()])
            keys.append(_key([*options.items()]))
        omits = self._omits_ones and name == "mul" and differs
        if omits and (found := self._times_one(given, values)) is not None:
            return found
        key = tuple(keys)
        if (before := self._results.get(key)) is not None:
            found = [reference() for reference in before[1]]
            if all(x is not None for x in found):
                return found[0] if before[0] else tuple(found)
        with self._unrecorded():
            result = function(*values, **attributes)
        is_one = not isinstance(result, list | tuple)
        found = [result] if is_one else [*result]
        # A constant operand that is returned stays a constant: the velocity of plain SGD is the gradient itself.
        constants = {*map(id, given)}
        for place in given:
            if place.__class__ is list:
                constants.update(map(id, place))
        news = [id(x) not in self._known and id(x) not in constants for x in found]
        if differs and any(news):
            results = [self.variable(x) if is_new else None for x, is_new in zip(found, news, strict=True)]
            if is_donated:
                options["donate"] = Donated()
            self.calls.append(Call(name, in_layer(function), given, options, results[0] if is_one else results))
            self._results[key] = is_one, [self._primitives.get(id(x)) or _weak(x) for x in found]
        elif name == "take_backward" and not differs:
            self.gathered[id(result)] = Call(name, in_layer(function), given, options, result)
        return result

    def _times_one(self, places: Sequence[Any], values: Sequence[Any]) -> Any | None:
        """The variable's primitive in a product with ones, as in the gradient of a sum; None for other products."""
        for i in range(2):
            x, y = values[i], values[1 - i]
            if places[i].__class__ is not Variable or varies(places[1 - i]):
                continue
            if y.__class__ is float:
                return x if y == 1.0 else None
            if hasattr(y, "shape") and y.shape == x.shape and self._k.dtype(y) == self._k.dtype(x):
                return x if all_true(self._k, self._k.equal(y, 1.0)) else None
        return None

    def reads(self, name: str) -> CaptureError:
        """The error for an operation that cannot be recorded."""
        words = f"{name} reads values on the host, or has a shape that depends on them"
        return self.recording.refuse(CaptureError(words))

    def refuse_from_elsewhere(self, operands: Sequence[Any]) -> None:
        """Refuse the recording if another thread, which is not recorded, uses values that differ between replays."""
        if any(varies(self.operand(x)) for x in operands):
            self.recording.refuse(CaptureError("it computes in another thread, whose calls are not recorded"))

    def held(self) -> str:
        """A result of the run that is still referred to, such as "float32[2]", or an empty string."""
        if self._held():
            gc.collect()  # some may only be parts of cycles
        return next((f"{v.dtype}{list(v.shape)}" for v in self._held()), "")

    def _held(self) -> list[Variable]:
        return [self._known[i] for i, x in self._primitives.items() if isinstance(x, ReferenceType) and x() is not None]

    def _check_constant(self, array: Any) -> None:
        if contents(array) not in self.recording.host_constants:
            words = f"({array.dtype}{list(array.shape)}) that differ from those of the call before"
            error = CaptureError(f"from_numpy copies values from the host {words}: pass what changes in the batch")
            raise self.recording.refuse(error)


#: The step that this thread records.
_TAPE: ContextVar[_Tape | None] = ContextVar("backburn_tape", default=None)
#: The steps that any thread records.
_TAPES: list[_Tape] = []


def _tape_for(operands: Sequence[Any]) -> _Tape | None:
    """The tape that records a call with these operands, if one does."""
    tape = _TAPE.get()
    if tape is None and _TAPES:
        for other in _TAPES.copy():
            other.refuse_from_elsewhere(operands)
    return tape


def _record(k: Any, step: Step, state: Sequence[Any], inputs: Sequence[Any], joins: bool) -> Executable:
    """Record one run of a step on copies of its arguments, and compile its calls of ``k``."""
    recording = RECORDING_STEP.get()
    assert recording is not None
    tape = _Tape(k, recording, joins)
    # Copies: one primitive may be given as several arguments, which may differ at the next replay.
    given = [[copy_primitive(k, x) for x in primitives] for primitives in (state, inputs)]
    of_state, of_inputs = ([tape.variable(x) for x in primitives] for primitives in given)
    _TAPES.append(tape)
    try:
        with scoped(_TAPE, tape):
            found = step(*given)
    finally:
        _TAPES.remove(tape)
    results = [[tape.operand(x) for x in primitives] for primitives in found]
    with _uncollected():
        program = Program(tape.calls, of_state, of_inputs, results, tape.gathered, joins)
        program.remove_unused()
        executable: Any = compile_program(k, program)
    if k.capabilities.capture:
        executable = _recorded_again(k, executable, tape, state, inputs)
    else:
        executable.state = list(state)
    vars(executable)["held"] = tape.held
    return executable


def _recorded_again(
    k: Any, compiled: CompiledProgram, tape: _Tape, state: Sequence[Any], inputs: Sequence[Any]
) -> Executable:
    """A compiled program as a step that ``k`` records by itself; it first runs once unrecorded, as every step does."""
    run = compiled.source.run
    with scoped(RECORDING_STEP, None):
        plain = {place: plain_number(x) for place, x in tape.numbers.items()}
        run(*([copy_primitive(k, x) for x in primitives] for primitives in (state, inputs)), plain)
    # The backend has to bind the numbers of the remaining calls again, or else the recording is refused.
    given = [[call.operands, [*call.attributes.values()]] for call in compiled.program.calls]
    tape.recording.bound -= {x.place for x in numbers_in(given)}

    def step(state: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        new, out, _ = run(state, inputs, tape.numbers)
        return new, out

    executable: Any = k.capture(step, state, inputs)
    executable.compiled = compiled
    return executable


@contextmanager
def _uncollected() -> Iterator[None]:
    """A context without garbage collection, which the many objects of a recording would trigger."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _donate_at(name: str) -> int:
    """The position of the attribute ``donate`` among an operation's parameters; a large number if it has none."""
    parameters = [*OPERATIONS[name].parameters] if name in OPERATIONS else []
    return parameters.index("donate") if "donate" in parameters else 1 << 30


def _weak(x: Any, forget: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """A weak reference, or a function that returns ``x`` if its type does not support them."""
    try:
        return ref(x, forget)
    except TypeError:
        return lambda: x


def _key(value: Any) -> Any:
    """A key that is equal for equal operands: variables, numbers, plain values, and other objects by identity."""
    if isinstance(value, list | tuple):
        return value.__class__, *map(_key, value)
    if isinstance(value, slice):
        return slice, value.start, value.stop, value.step
    if isinstance(value, Variable | Number):
        return value
    return (value.__class__, repr(value)) if value.__class__ in (int, float, bool, str) else id(value)


def plain_number(value: Any) -> Any:
    """The value of a replayed number as a plain float or int, which backends check for; anything else unchanged."""
    if isinstance(value, ReplayedFloat):
        return float(value)
    if isinstance(value, ReplayedInt):
        return int(value)
    return value
