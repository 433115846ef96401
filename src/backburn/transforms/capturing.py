"""``capture``: record a training step once, with its derivatives and updates, and replay it without Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from operator import is_
from typing import Any, Literal, overload

from backburn.autodiff.anomaly import watches
from backburn.backend.capturing import Executable, copy_primitive
from backburn.backend.host_numbers import (
    HOST_CONSTANTS,
    RECORDING_STEP,
    Contents,
    Overwritten,
    Recording,
    overwritten_ids,
    register_player,
)
from backburn.base.call_site import stack_level
from backburn.base.contexts import ACTIVE, DEFAULT_BACKEND, DEFAULT_FLOAT, RECORDING, scoped
from backburn.base.errors import ArgumentError, CaptureError
from backburn.base.trees import Structure, flatten, same, unflatten
from backburn.ops.table import revision
from backburn.tensor import generators
from backburn.tensor.classes import Tensor
from backburn.tensor.core.invalidation import STATE, invalidate
from backburn.tensor.core.levels import inner_of, innermost
from backburn.tensor.core.messages import explain
from backburn.tensor.core.options import flags, one_of
from backburn.tensor.core.wrapping import wrap
from backburn.transforms.captured_state import Batch, Maker, PlainBatch, State, computing, maker, primitive_of
from backburn.transforms.levels import check_function

OnFallback = Literal["warn", "error", "allow"]

#: The most kinds of arguments and states for which a step is recorded; each value of a number is another kind.
MAX_RECORDINGS = 64


class CaptureWarning(UserWarning):
    """A step could not be recorded, and runs uncaptured."""


@overload
def capture(
    step: Callable[..., tuple[Any, Any]], *, state: Literal[True] = True, on_fallback: OnFallback = "warn"
) -> Captured: ...
@overload
def capture(
    step: Callable[..., Any], *, state: Literal[False], on_fallback: OnFallback = "warn"
) -> CapturedFunction: ...
def capture(step: Callable[..., Any], *, state: bool = True, on_fallback: OnFallback = "warn") -> Any:
    """``step(state, *batch) -> (state, out)``, recorded and replayed without Python if the backend supports that.

    ``state`` is a tree of everything that changes from step to step: models, optimizers, tensors. ``batch`` and ``out``
    are trees of tensors. The first call with arguments of given shapes runs ``step`` normally; the second records
    forward pass, backward pass and update as one program with separate memory, which later calls replay. Values that
    the host counts (an optimizer's steps, its learning rate from a schedule, the offset of random draws) are updated at
    each replay. Other Python code of ``step`` runs only in the first two calls: numbers that it computes are constants
    after that.

    The state is donated: its tensors are consumed by the call, using one again raises an error, and the call returns
    the same models and optimizers with new tensors in them. That holds on every backend. With ``state=False``, ``step``
    is a function without a state, ``step(*batch) -> out``, such as a gradient, and nothing is donated; its arguments
    may be given by name.

    ``capture(numpy)`` records, and so does ``cupy`` without it; a backend that does not (``capabilities.capture``)
    calls ``step``. A step that reads values on the host (``item()``, ``numpy()``, ``if x > 0``), or has shapes that
    depend on them, cannot be recorded either: it is called with a warning; ``on_fallback="error"`` raises instead,
    ``"allow"`` is silent. :attr:`Captured.reason` says why.

        >>> import backburn as bb
        >>> def step(model, x):
        ...     loss = ((x * model["w"] - 6.0) ** 2.0).sum()
        ...     grads = loss.backward()
        ...     new = (model["w"].inner() - 0.1 * model["w"].grad(grads)).to(model["w"].backend)
        ...     return {"w": new.require_grad()}, loss
        >>> train = bb.capture(step)
        >>> model = {"w": bb.asarray(2.0).require_grad()}
        >>> for _ in range(3):
        ...     model, loss = train(model, bb.asarray(1.0))
        >>> loss.item(), train
        (6.553..., <captured step: runs as it is, since autodiff(numpy) does not record; autodiff(capture(numpy)) does>)

        >>> slope = bb.capture(bb.grad(lambda x: (x**3.0).sum()), state=False)
        >>> x = bb.asarray([1.0, 2.0], backend="capture(numpy)")
        >>> for _ in range(3):
        ...     out = slope(x)
        >>> out.tolist(), slope
        ([3.0, 12.0], <captured function: replayed>)

    Raises :class:`ArgumentError` unless ``step`` returns a pair, and where neither state nor batch has a tensor.
    """
    check_function("capture", step)
    one_of("capture", "on_fallback", on_fallback, ("warn", "error", "allow"))
    flags("capture", state=state)
    return Captured(step, on_fallback) if state else CapturedFunction(step, on_fallback)


class Captured:
    """The result of :func:`capture`. Not thread-safe."""

    def __init__(self, step: Callable[..., tuple[Any, Any]], on_fallback: OnFallback) -> None:
        """Initialize a step that has not run yet."""
        self._step = step
        self._on_fallback = on_fallback
        #: By kind of arguments and state: a plan, why there is none, or the host constants of the first run.
        self._plans: list[tuple[Any, _Plan | str | set[Contents]]] = []
        #: The last replay: the plan, the state that it left, the keys of the rest, and its batch.
        self._last: tuple[_Plan, State, Any, PlainBatch] | None = None
        #: Why the last call did not replay; empty if it did.
        self.reason = "it has not been called"

    @property
    def program(self) -> ProgramText | None:
        """The program that was recorded last, as text: a call on each line, and what became of it; None before."""
        return None if (compiled := self._compiled()) is None else ProgramText(compiled)

    def plan(self) -> ProgramText | None:
        """The passes over memory of the last recorded program, as text; None before, or on another backend.

        Each pass has its calls, what it reads and writes and how many bytes; then comes every other call, with the
        reason why it is in none.

        >>> import backburn as bb
        >>> x = bb.zeros((64, 128), backend="capture(numpy)")
        >>> function = bb.capture(lambda x: bb.tanh(x * 2.0 + 1.0), state=False)
        >>> for _ in range(3):
        ...     _ = function(x)
        >>> function.plan()
        pass 0: 64 rows of 128 float32, 3 calls
          reads v0 (full)
            v1: float32[64, 128] = mul(v0, 2.0)
            v2: float32[64, 128] = add(v1, 1.0)
            v3: float32[64, 128] = tanh(v2)
          writes v3 (full)
          32.8 kB read, 32.8 kB written: 65.5 kB in place of 0.2 MB by its calls one after the other...
        """
        text = getattr(self._compiled(), "plan", None)
        return None if text is None else ProgramText(text())

    def _compiled(self) -> Any:
        """The program that was recorded last, even if a backend has recorded it again."""
        plans = [plan for _, plan in self._plans if isinstance(plan, _Plan)]
        executable = plans[-1].executable if plans else None
        return getattr(executable, "compiled", executable)

    @property
    def launches(self) -> int | None:
        """The number of kernel launches that one replay saves; None before a recording."""
        plans = [plan for _, plan in self._plans if isinstance(plan, _Plan)]
        return plans[-1].executable.launches if plans and plans[-1].executable is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one by pickle, has not run yet."""
        return type(self), (self._step, self._on_fallback)

    def __repr__(self) -> str:
        return f"<captured step: {f'runs as it is, since {self.reason}' if self.reason else 'replayed'}>"

    def __call__(self, state: Any, *batch: Any) -> tuple[Any, Any]:
        """One step: the new state, and the step's output."""
        if RECORDING_STEP.get() is not None:
            self.reason = "it is recorded as a part of another captured step"
            return self._run(State(state), batch)
        if watches():
            self.reason = "detect_anomaly() checks each of its operations"
            return self._run(State(state), batch)
        contexts = (RECORDING.get(), DEFAULT_FLOAT.get(), DEFAULT_BACKEND.get())
        last, self._last = self._last, None
        slots = inputs = None
        if last is not None:
            latest, left, around, plain = last
            if left.is_as_left(state, latest.state_now):
                primitives = plain.read(batch) if around[1:] == contexts and latest.holds() else None
                if primitives is None:
                    inputs = Batch(batch)
                    if around[1:] == contexts and inputs.is_like(around[0]) and latest.holds():
                        primitives = inputs.primitives
                if primitives is not None:
                    result, self._last = latest.replay(left, primitives), last
                    return result
                slots = left
            latest.leave()
        slots, inputs = slots or State(state), inputs or Batch(batch)
        base = _base(slots, inputs)
        backends = [computing(x.backend) for x in (*slots.tensors, *inputs.tensors)]
        if (level := next((k for k in backends if inner_of(k) is not None), None)) is not None:
            records = base.spec if base.capabilities.capture else f"capture({base.spec})"
            self.reason = (
                f"{level.spec} does not record; {records} does"
                if ACTIVE.get() is None
                else "it is called inside of a transform: capture that, as in bb.capture(bb.vmap(f), state=False)"
            )
            return self._run(slots, batch)
        if not base.capabilities.capture:
            above, spec, end = (slots.tensors or inputs.tensors)[0].backend.spec.rpartition(base.spec)
            self.reason = f"{above}{spec}{end} does not record; {above}capture({spec}){end} does"
            return self._run(slots, batch)
        key = (slots.key(), inputs.key, *contexts)
        index = next((i for i, (known, _) in enumerate(self._plans) if same(known, key)), None)
        if index is None and len(self._plans) >= 2 * MAX_RECORDINGS:
            words = f"it was called with {MAX_RECORDINGS} kinds of arguments and states: use tensors for numbers"
            self.reason = self._refused(CaptureError(words))
            return self._run(slots, batch)
        if index is None:
            self.reason = "a step of these shapes runs once before it is recorded"
            constants: set[Contents] = set()
            with scoped(HOST_CONSTANTS, constants):
                state, out = self._run(slots, batch)
            # The first step of an optimizer adds to its state: the next state counts as known, too.
            self._plans += [(key, constants), ((State(state).key(), *key[1:]), constants)]
            return state, out
        plan = self._plans[index][1]
        if isinstance(plan, set) or (isinstance(plan, _Plan) and not plan.holds()):
            plan = self._record(base, slots, inputs, plan if isinstance(plan, set) else plan.recording.host_constants)
            self._plans[index] = (key, plan)
        if isinstance(plan, str):
            self.reason = plan
            return self._run(slots, batch)
        self.reason = ""
        plan.enter(slots)
        result = plan.replay(slots, inputs.primitives)
        self._last = plan, slots, key[1:], PlainBatch(batch)
        return result

    def _run(self, slots: State, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """The step without capture, after which the old state is donated all the same."""
        before = slots.tensors
        copies = _copies(slots) if RECORDING_STEP.get() is None else None
        if copies is not None:
            slots.put(copies, owned=True)
        try:
            state, out = _pair(self._step(slots.state, *batch))
        except BaseException:
            if copies is not None:
                slots.restore(before)
            raise
        new = State(state).tensors
        out = _apart(out, {id(x) for x in new})
        kept = {id(x) for x in (*new, *slots.held, *flatten((out, batch))[0])}
        invalidate((x for x in before if id(x) not in kept), STATE)
        return state, out

    def _record(self, base: Any, slots: State, inputs: Batch, constants: Collection[Contents]) -> _Plan | str:
        """The recorded program, or the reason why there is none; then nothing has changed."""
        try:
            return self._recorded(base, slots, inputs, Recording(constants))
        except Overwritten:
            return self._recorded(base, slots, inputs, Recording(constants, overwrites=False))

    def _recorded(self, base: Any, slots: State, inputs: Batch, recording: Recording) -> _Plan | str:
        plan, before = _Plan(base, recording), slots.tensors

        def program(state: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
            slots.put([maker(x)(p) for x, p in zip(before, state, strict=True)], owned=True)
            batch = inputs.tree(values)
            there = flatten(batch)
            new, out = _pair(self._step(slots.state, *batch))
            if recording.refused is not None:
                raise recording.refused
            after = State(new)
            if not same(after.key(), key):
                raise CaptureError(f"the state that it returns differs from the given one: {after.differs(key)}")
            leaves, structure = flatten(batch)
            if structure != there[1] or not all(map(is_, leaves, there[0])):
                raise CaptureError("it changes the batch (a BatchNorm that trains does): pass that in the state")
            found = plan.returns(out)
            return [primitive_of(x) for x in after.tensors], [primitive_of(x) for x in found]

        key = slots.key()
        try:
            try:
                with scoped(RECORDING_STEP, recording), generators.fork(plan.generator):
                    plan.executable = base.capture(program, [primitive_of(x) for x in before], inputs.primitives)
            finally:  # recorded, and not yet done
                recording.undo()
                slots.restore(before)
            if recording.unbound:
                raise CaptureError(
                    f"{recording.unbound} of the numbers that change from step to step (a learning rate, a counter, a "
                    f"random offset) went through Python arithmetic before {base.spec} saw them"
                )
            if kept := plan.kept():
                raise CaptureError(
                    f"a {kept} that it computes is kept outside of its state and the tensors that it returns: pass "
                    f"the model or the optimizer that holds it in the state, and return tensors (of gradients, "
                    f"w.grad(gradients))"
                )
        except CaptureError as error:
            return self._refused(error)
        register_player(plan)
        return plan

    def _refused(self, error: CaptureError) -> str:
        """Why the step is not recorded, which is reported or raised as ``on_fallback`` says."""
        if self._on_fallback == "error":
            raise error
        if self._on_fallback == "warn":
            words = f"capture: the step runs as it is, since {error}"
            warnings.warn(words, CaptureWarning, stacklevel=stack_level())
        return str(error)


def _apart(out: Any, state: Collection[int]) -> Any:
    """The outputs of a step, with other tensors in place of those of the state, which the next call uses up."""
    leaves, structure = flatten(out)
    if not any(id(x) in state for x in leaves):
        return out
    return unflatten(structure, [maker(x, False)(primitive_of(x)) if id(x) in state else x for x in leaves])


def _copies(slots: State) -> list[Any] | None:
    """The tensors of a state, with copies of those that recorded programs overwrite; None if there are none.

    A step may return a part of its state, which a later replay of such a program would change.
    """
    if not (overwritten := overwritten_ids()):
        return None
    given = slots.read()
    if overwritten.isdisjoint(map(id, given)):
        return None
    return [
        maker(x)(copy_primitive(innermost(x.backend), p)) if id(p) in overwritten and x.dtype.kind != "quantized" else x
        for x, p in zip(slots.tensors, given, strict=True)
    ]


class CapturedFunction:
    """The result of :func:`capture` with ``state=False``: a captured step whose state is empty. Not thread-safe."""

    def __init__(self, function: Callable[..., Any], on_fallback: OnFallback) -> None:
        """Initialize a function that has not run yet."""
        self._by_position = Captured(lambda state, *batch: (state, function(*batch)), on_fallback)
        self._by_name = Captured(lambda state, batch, named: (state, function(*batch, **named)), on_fallback)
        #: The one of the two that was called last.
        self._captured = self._by_position
        self._given = function, on_fallback

    @property
    def reason(self) -> str:
        """Why the last call did not replay; empty if it did."""
        return self._captured.reason

    @property
    def launches(self) -> int | None:
        """The number of kernel launches that one replay saves; None before a recording."""
        return self._captured.launches

    @property
    def program(self) -> ProgramText | None:
        """The program that was recorded last, as text: see :attr:`Captured.program`."""
        return self._captured.program

    def plan(self) -> ProgramText | None:
        """How it passes over memory, as text: see :meth:`Captured.plan`."""
        return self._captured.plan()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one by pickle, has not run yet."""
        return type(self), self._given

    def __repr__(self) -> str:
        return repr(self._captured).replace("step", "function", 1)

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """The result of the function."""
        if named:
            self._captured = self._by_name
            return self._by_name((), batch, named)[1]
        self._captured = self._by_position
        return self._by_position((), *batch)[1]


class ProgramText(str):
    """The text of a program, which is shown as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Plan:
    """A recorded step, and how to make tensors of its primitives."""

    def __init__(self, backend: Any, recording: Recording) -> None:
        self.backend = backend
        self.recording = recording
        self._revision = revision()
        self.generator = generators.Current(generators.default_generator())
        self.executable: Executable | None = None
        #: The leaves of the output: how to make each tensor, or another value.
        self._out: list[tuple[Maker | None, Any]] = []
        self._structure: Structure | None = None
        #: How to make the output, if it is one tensor.
        self._one: Maker | None = None
        self._has_run = False

    def returns(self, out: Any) -> list[Tensor]:
        """The tensors of the output; its other parts are noted."""
        leaves, self._structure = flatten(out)
        self._out = [(maker(x, False), None) if isinstance(x, Tensor) else (None, x) for x in leaves]
        self._one = maker(out, False) if isinstance(out, Tensor) else None
        return [x for x in leaves if isinstance(x, Tensor)]

    def kept(self) -> str:
        """A result of the recorded run that is still referenced, in words; empty if none is known."""
        held = vars(self.executable).pop("held", None)
        return "" if held is None else held()

    @property
    def state(self) -> list[Any]:
        """The primitives that the program overwrites."""
        return self.executable.state if self.executable is not None and self.executable.in_place else []

    def holds(self) -> bool:
        """Whether all assumptions still hold, also for the current generator."""
        self.generator.target = generators.default_generator()
        return self.recording.holds and self._revision == revision()

    @property
    def state_now(self) -> list[Any]:
        """The primitives of the state as the last replay has left it."""
        assert self.executable is not None
        return self.executable.state

    def enter(self, slots: State) -> None:
        """Let the program continue from a state that it did not produce itself."""
        assert self.executable is not None
        given = slots.read()
        changed = [
            (i, p) for i, (p, held) in enumerate(zip(given, self.executable.state, strict=True)) if p is not held
        ]
        if self.executable.in_place and self._has_run:
            # A primitive that is not known to be elsewhere may share memory with a part that is about to be written.
            elsewhere = overwritten_ids() - {id(held) for held in self.executable.state}
            changed = [
                (i, p if id(p) in elsewhere or x.dtype.kind == "quantized" else copy_primitive(innermost(x.backend), p))
                for i, p, x in ((i, p, slots.tensors[i]) for i, p in changed)
            ]
        for place, value in changed if self.executable.in_place else enumerate(given):
            self.executable.set_state(place, value)

    def leave(self) -> None:
        """Release the state, if the program only reads it."""
        if self.executable is not None and not self.executable.in_place:
            for place in range(len(self.executable.state)):
                self.executable.set_state(place, None)

    def replay(self, slots: State, inputs: list[Any]) -> tuple[Any, Any]:
        """One step: the host's part, then the recorded program.

        An error or an interrupt leaves the state as it was before, or as it is after the step if that was complete.
        """
        program = self.executable
        assert program is not None
        assert self._structure is not None
        self._has_run = True
        before, tensors, outputs = program.state, slots.tensors, None
        numbers = self.recording.advance()
        try:
            outputs = program(inputs, numbers) if program.in_place else program(inputs, numbers, slots.release)
            slots.commit(program.state)
        except BaseException as error:
            is_complete = outputs is not None or program.state is not before
            if not is_complete:
                self.recording.undo()
            slots.rollback(tensors, program.state, is_complete)
            self._explain(error)
            raise
        if self._one is not None:
            return slots.state, self._one(outputs[0])
        made = iter(outputs)
        leaves = [x if make is None else make(next(made)) for make, x in self._out]
        return slots.state, unflatten(self._structure, leaves)

    def _explain(self, error: BaseException) -> None:
        """Raise an error of backburn for the operation of a replay that failed, if the program knows which it was."""
        failed = getattr(self.executable, "failed", None)
        if failed is None or not isinstance(error, Exception) or (found := failed(error)) is None:
            return
        name, operands, attributes = found

        def shown(x: Any) -> Any:
            if isinstance(x, list):
                return [*map(shown, x)]
            return wrap(x, self.backend) if hasattr(x, "shape") else x

        explain(name, shown(operands), attributes, error)


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(f"capture: the step returns the pair (state, out), not {type(result).__name__}")
    return result


def _base(state: State, batch: Batch) -> Any:
    """The backend that computes."""
    if not state.tensors and not batch.tensors:
        raise ArgumentError("capture: neither the state nor the batch has a tensor")
    return innermost((state.tensors or batch.tensors)[0].backend)
