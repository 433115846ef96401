"""``Capture``: steps of any backend recorded as a list of calls, and replayed without the Python code that led to them.

A replay skips the Python code of dispatch, differentiation and optimizers: one generated function calls the wrapped
backend's operations one after the other. Operations whose operands never change have been computed once, unused ones
are left out, element-wise ones are fused (:mod:`backburn.decorators.capture.fusion`), and products of a loop's steps
joined (:mod:`backburn.decorators.capture.products`).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from itertools import count
from operator import is_
from typing import Any, ClassVar
from weakref import ReferenceType, WeakSet, ref

from backburn.backend.contract import Capabilities
from backburn.backend.wrapper import Wrapper
from backburn.base.contexts import scoped
from backburn.base.errors import CaptureError, SpecError
from backburn.base.module_calls import WATCHERS, in_layer, replay_call
from backburn.decorators.capture.donation import Donated, Place, Renewal, Update, donated_parts, split_updates
from backburn.decorators.capture.epilogues import EPILOGUE, join_epilogues, mask_before_pools
from backburn.decorators.capture.fusion import fuse_calls
from backburn.decorators.capture.native import NATIVE_LIST, list_calls
from backburn.decorators.capture.products import join_products
from backburn.decorators.capture.program import (
    Call,
    Number,
    Variable,
    compile_program,
    live_calls,
    variables_in,
    varies,
)
from backburn.decorators.capture.protocol import Program, copy_primitive
from backburn.decorators.capture.replay import (
    BROUGHT,
    LARGEST_CONSTANT,
    REPLAY,
    Recording,
    ReplayedFloat,
    ReplayedInt,
    contents,
)
from backburn.decorators.capture.stacks import split_stacks
from backburn.ops.bodies.reductions import all_true
from backburn.ops.table import OPERATIONS


class Capture(Wrapper):
    """A backend that records: :func:`backburn.capture` replays steps on it, whatever backend is ``wrapped``.

    A replay makes the calls that the step made of the wrapped backend, without the time that dispatch, differentiation
    and optimizers take in Python; where tensors are small, that is most of the time. Element-wise calls on 4,096
    elements and more that follow from one another are joined (``fuse``), which may round differently; with
    ``join=False``, as in ``capture(numpy, join=false)``, they are not, and a replay gives the bits that the step gives.
    Small products of a loop's steps are joined, too. Other calls cost a little more than those of the wrapped backend.

    Raises :class:`SpecError` around a backend that records by itself.

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
        """Around a backend, which stays as it is."""
        super().__init__(wrapped)
        if not isinstance(join, bool):
            raise SpecError(f"capture: join is true or false, not {join!r}")
        if wrapped.capabilities.capture:
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
        if operation == "from_numpy" and (brought := BROUGHT.get()) is not None:
            array = operands[0]
            if array.nbytes <= LARGEST_CONSTANT:
                brought.add(contents(array))
        return function(*operands, **attributes)

    def select(self, x: Any, /, axis: int, index: int) -> Any:
        """An entry, recorded as a slice and a reshape, which lists and rewritten loops know."""
        return OPERATIONS["select"].body(self, x, axis, index)

    def fuse(self, formula: Callable[..., Any], x: Any, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """Compute a formula as the wrapped backend does; in a recording, as one call."""
        if not hasattr(self._inner, "fuse"):
            return super().fuse(formula, x, *values, donate=donate)
        tape = _tape_for((x, *values))
        if tape is None:
            return self._inner.fuse(formula, x, *values, donate=donate)
        return tape.call("fuse", self._inner.fuse, (formula, x, *values), {"donate": donate})

    def quantized_parts(self, x: Any, /) -> tuple[Any, Any, Any]:
        """The wrapped backend's, on the host: it cannot be recorded."""
        if (tape := _tape_for((x,))) is not None:
            raise tape.reads("quantized_parts")
        return self._inner.quantized_parts(x)

    def capture(self, program: Program, state: Sequence[Any], inputs: Sequence[Any]) -> Replayed:
        """Record one run of ``program``: see :class:`backburn.decorators.capture.protocol.CapturingBackend`."""
        return Replayed(self._inner, program, state, inputs, self._join)


class _Tape:
    """The calls of a step while it is recorded."""

    def __init__(self, k: Any, recording: Recording) -> None:
        self._k = k
        self.recording = recording
        self.calls: list[Call] = []
        self._known: dict[int, Variable] = {}
        #: The primitives of the variables, held weakly, so that a recording takes no more memory than the step does.
        self._primitives: dict[int, Any] = {}
        #: The results of recorded calls, by what was called.
        self._results: dict[Any, Any] = {}
        #: Gradients of gathered rows that are constants: the calls that made them, by the identity of their results.
        self.gathered: dict[int, Call] = {}
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
            return Number(place)
        if isinstance(value, list | tuple):
            found = [self.operand(x) for x in value]
            return value if all(map(is_, found, value)) else found
        return self._known.get(id(value), value)

    def call(self, name: str, function: Any, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Make a call, and record it if its result may differ from replay to replay."""
        if name == "from_numpy":
            self._check_brought(*operands)
        elif (entry := OPERATIONS.get(name)) and (entry.shape is None or entry.results[0] == "host"):
            raise self.reads(name)
        if len(operands) > (at := _donate_at(name)):  # a decorator may give it by its place
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
            # A replay does not write over what it was given: something else of the step may read that. It does where a
            # part of the state is given to one call alone: see `donated_parts`.
            is_donated = name == "index_copy" and attributes.get("donate", False)
            attributes = {n: x for n, x in attributes.items() if n != "donate"}
            options = {n: self.operand(x) for n, x in attributes.items()}
            attributes = {n: plain_number(x) for n, x in attributes.items()}
            differs = differs or varies([*options.values()])
            keys.append(_key([*options.items()]))
        if name == "mul" and differs and (found := self._times_one(given, values)) is not None:
            return found
        key = tuple(keys)
        if (before := self._results.get(key)) is not None:
            found = [reference() for reference in before[1]]
            if all(x is not None for x in found):
                return found[0] if before[0] else tuple(found)
        result = function(*values, **attributes)
        is_one = not isinstance(result, list | tuple)
        found = [result] if is_one else [*result]
        # An operand that is a constant stays one as a result: the velocity of plain SGD is the gradient itself.
        constants = {id(x) for place in given for x in (place if place.__class__ is list else (place,))}
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
        """A variable's primitive that is multiplied by ones, as the gradient of a sum is; None for other products."""
        for i in range(2):
            x, y = values[i], values[1 - i]
            if places[i].__class__ is not Variable or varies(places[1 - i]):
                continue
            if y.__class__ is float:
                return x if y == 1.0 else None
            if y.__class__ is not int and y.shape == x.shape and self._k.dtype(y) == self._k.dtype(x):
                return x if all_true(self._k, self._k.equal(y, 1.0)) else None
        return None

    def reads(self, name: str) -> CaptureError:
        """The error of an operation that makes the step impossible to record."""
        words = f"{name} reads values on the host, or has a shape that depends on them"
        return self.recording.refuse(CaptureError(words))

    def refuse_from_elsewhere(self, operands: Sequence[Any]) -> None:
        """Refuse the recording if a thread whose calls are not recorded computes with what differs between replays."""
        if any(varies(self.operand(x)) for x in operands):
            self.recording.refuse(CaptureError("it computes in another thread, whose calls are not recorded"))

    def kept(self) -> list[Variable]:
        """The variables whose primitives something still holds."""
        return [self._known[i] for i, x in self._primitives.items() if isinstance(x, ReferenceType) and x() is not None]

    def _check_brought(self, array: Any) -> None:
        if contents(array) not in self.recording.brought:
            words = f"({array.dtype}{list(array.shape)}) that it did not bring in the call before"
            error = CaptureError(f"from_numpy brings values from the host {words}: pass what changes in the batch")
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


class Replayed:
    """A recorded program: see :class:`backburn.decorators.capture.protocol.Replay`."""

    in_place = False

    def __init__(self, k: Any, program: Program, state: Sequence[Any], inputs: Sequence[Any], join: bool) -> None:
        recording = REPLAY.get()
        assert recording is not None
        self._k = k
        self.state = list(state)
        tape = _Tape(k, recording)
        # Copies, since one primitive may be given in several places, and differ there at the next replay.
        given = [[copy_primitive(k, x) for x in primitives] for primitives in (state, inputs)]
        variables = [[tape.variable(x) for x in primitives] for primitives in given]
        _TAPES.append(tape)
        try:
            with scoped(_TAPE, tape):
                found = program(*given)
        finally:
            _TAPES.remove(tape)
        results = [[tape.operand(x) for x in primitives] for primitives in found]
        self._tape: _Tape | None = tape
        #: The updates that come after the calls, and how the backend makes them.
        self._updates: list[Update] = []
        self._renewal: Renewal | None = None
        #: The parts of the state that calls write over, by number.
        self._donated: list[tuple[int, Donated]] = []
        with _uncollected():
            self._compile(tape.calls, variables, results, join, tape.gathered)
        #: Whether a replay has allocated the part of the state.
        self._owned = [False] * len(self.state)
        self._lock = threading.Lock()
        _REPLAYED.add(self)

    def _compile(
        self,
        calls: list[Call],
        variables: list[list[Variable]],
        results: list[list[Any]],
        join: bool,
        gathered: Mapping[int, Call],
    ) -> None:
        """Make a program of the recorded calls."""
        k = self._k
        calls = live_calls(calls, results)
        if join and hasattr(k, "lister"):
            calls = live_calls(split_stacks(calls, variables_in(results), k), results)
        if join:
            calls = live_calls(join_products(calls, variables_in(results), k), results)
            calls = mask_before_pools(calls, variables_in(results), k)
        if join and hasattr(k, "with_epilogue"):
            calls = join_epilogues(calls, variables_in(results), k)
        if join and hasattr(k, "fuse"):
            calls = fuse_calls(calls, set(variables_in(results)), k)
        self.launches = len(calls)
        if self.state and hasattr(k, "unshared"):
            self._donated = donated_parts(calls, variables[0], results)
        if self.state and hasattr(k, "renewal"):
            others, updates = split_updates(calls, variables[0], results, gathered)
            if updates and (renewal := k.renewal(updates)) is not None:
                calls, self._updates, self._renewal = others, updates, renewal
        made = {v: n for n, v in enumerate(v for update in self._updates for v in update.results) if v is not None}
        #: Where the results of the updates go: in the state and in the outputs, the places and which results.
        self._puts = [
            [(i, made[v]) for i, v in enumerate(values) if isinstance(v, Variable) and v in made] for values in results
        ]
        results = [[None if isinstance(v, Variable) and v in made else v for v in values] for values in results]
        given = [[update.operands, [*update.call.attributes.values()]] for update in self._updates]
        if join and hasattr(k, "lister"):
            calls = list_calls(calls, variables_in([*results, *given]), k)
        self._program = compile_program(calls, variables, [*results, given])

    def kept(self) -> str:
        """A result of the run that is still referenced, such as "float32[2]"; asked for once, right after recording."""
        tape, self._tape = self._tape, None
        assert tape is not None
        if tape.kept():
            gc.collect()  # which may be parts of cycles
        return next((f"{v.dtype}{list(v.shape)}" for v in tape.kept()), "")

    def set_state(self, place: int, value: Any) -> None:
        """Hold a primitive as a part of the state, or None."""
        self.state[place] = value
        self._owned[place] = False

    def __call__(
        self, inputs: Sequence[Any], numbers: Sequence[float], release: Callable[[], list[int]] | None = None
    ) -> list[Any]:
        """Make the calls, and then the updates; :attr:`state` is another list after that. Returns the outputs."""
        if self._renewal is None and not self._donated:
            state, out, _ = self._run(inputs, numbers)
            self.state, self._owned = state, [False] * len(state)
            return out
        with self._lock:  # what may be written over is decided for one replay
            return self._replay(inputs, numbers, release)

    def _run(self, inputs: Sequence[Any], numbers: Sequence[float]) -> Any:
        """Make the calls: the results in the state, the outputs, and what the updates are given."""
        if not WATCHERS:
            return self._program.run(self.state, inputs, numbers)
        with replay_call():
            return self._program.run(self.state, inputs, numbers)

    def _replay(
        self, inputs: Sequence[Any], numbers: Sequence[float], release: Callable[[], list[int]] | None
    ) -> list[Any]:
        """Make the calls and the updates of a program that writes over its state."""
        if self._donated and release is not None:
            is_free = self._k.unshared(self.state, release())
            for place, donated in self._donated:
                donated.is_free = self._owned[place] and is_free[place]
        try:
            state, out, given = self._run(inputs, numbers)
        finally:
            for _, donated in self._donated:
                donated.is_free = False
        if self._renewal is None:
            self.state, self._owned = state, [False] * len(state)
        else:
            self._renew(self._renewal, state, out, given, release)
        for place, _ in self._donated:
            self._owned[place] = True
        return out

    def _renew(
        self,
        renewal: Renewal,
        state: list[Any],
        out: list[Any],
        given: list[Any],
        release: Callable[[], list[int]] | None,
    ) -> None:
        """Make the updates of these operands and values of attributes; the results complete ``state`` and ``out``."""
        owned = [False] * len(state)
        if release is None:
            renewal.begin(self.state, owned, owned)
        else:
            held = release()
            renewal.begin(self.state, self._owned, held)
        made: list[tuple[Any, bool]] = []
        for number, (operands, values) in enumerate(given):
            attributes = dict(zip(self._updates[number].call.attributes, values, strict=True))
            made += renewal.prepare(number, operands, attributes)
        for place, i in self._puts[0]:
            state[place], owned[place] = made[i]
        for place, i in self._puts[1]:
            out[place] = made[i][0]
        try:
            renewal.run()
        finally:
            if renewal.done[0]:
                self.state, self._owned = state, owned

    def failed(self, error: BaseException) -> tuple[str, list[Any], dict[str, Any]] | None:
        """The operation whose call raised ``error`` in a replay, with its operands and attributes."""
        trace = error.__traceback__
        codes = self._program.run.__code__, Replayed._renew.__code__
        while trace is not None and trace.tb_frame.f_code not in codes:
            trace = trace.tb_next
        if trace is None:
            return None
        values = trace.tb_frame.f_locals
        if trace.tb_frame.f_code is codes[0]:
            call = self._program.calls.get(trace.tb_lineno)
            if call is not None and call.operation in (NATIVE_LIST, EPILOGUE):
                call = getattr(call.function, "failed", None)
        else:
            call = self._updates[values["number"]].call if "operands" in values else None
        if call is None or call.operation not in OPERATIONS:
            return None
        if trace.tb_frame.f_code is codes[1]:
            operands = [self._shown(x) for x in values["operands"]]
            update = self._updates[values["number"]]
            for i in update.gathered:  # the gradient is rows and their indices: show it like its parameter
                operands[1][i] = operands[0][i]
            return call.operation, operands, values["attributes"]

        def value(x: Any) -> Any:
            if isinstance(x, list):
                return [*map(value, x)]
            if isinstance(x, Variable):
                if (name := self._program.names.get(x)) is not None:
                    return values[name]
                k = self._k  # a list's own value: one like it
                return k.broadcast_to(k.zeros((), x.dtype), x.shape)
            return values["numbers"][x.place] if isinstance(x, Number) else x

        return call.operation, value(call.operands), {n: value(x) for n, x in call.attributes.items()}

    def _shown(self, operand: Any) -> Any:
        """An operand of an update, with the primitives of the state."""
        if isinstance(operand, Place):
            return self.state[operand.number]
        return [*map(self._shown, operand)] if isinstance(operand, list) else operand


#: All programs: a thread of the parent may have been in one of them when it forked.
_REPLAYED: WeakSet[Replayed] = WeakSet()


def _after_fork_in_child() -> None:
    for one in _REPLAYED:
        one._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A context in which the many objects of a recording do not make the collector look through all others."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _donate_at(name: str) -> int:
    """The place of the attribute ``donate`` among an operation's parameters; a large number if it has none."""
    parameters = [*OPERATIONS[name].parameters] if name in OPERATIONS else []
    return parameters.index("donate") if "donate" in parameters else 1 << 30


def _weak(x: Any, forget: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """A weak reference, or another function that returns ``x`` where its type has none."""
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
    """The value of a number that changes, of an ordinary class, for which backends look; anything else as it is."""
    if isinstance(value, ReplayedFloat):
        return float(value)
    if isinstance(value, ReplayedInt):
        return int(value)
    return value
