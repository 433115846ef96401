"""Run one case: compare calls of a recorded program with those of the unrecorded program."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from tests.helpers.guards import MemoryFault, check, guarded
from tests.helpers.interrupts import Interrupter
from tests.programs.generator import widened
from tests.programs.modes import OPTIMIZERS, Case, function_of

import backburn as bb
from backburn.base.trees import flatten
from backburn.errors import BackburnError, CaptureError, GraphError
from backburn.programs.fusion import limits as fusion_limits
from backburn_numpy.programs import verifier
from backburn_numpy.runtime import threads

#: The seed of the inputs in each call: the first runs unrecorded, the second is recorded, the rest are replays.
SEEDS = (0, 1, 2, 3, 1)
#: The same if calls change neither state nor random numbers. The third call must equal the first, the fourth the
#: second; in a share ``COMPARED`` of the programs, the latter are also compared with the unrecorded program.
PURE, COMPARED = (2, 1, 2, 1, 1), 0.25
#: An argument of each call where two recordings alternate: each runs unrecorded, is recorded, and is replayed.
TURNS = "aaabbbaba"
#: The calls whose state has views of larger arrays.
PARTS = (2, 3, 6)
#: The share of programs whose native programs are verified.
VERIFIED = 0.2
#: The share of programs that use passes over rows at any size.
SMALL_ROWS = 0.3
#: The share of these in which passes read masks of any size.
SMALL_MASKS = 0.5
#: The share of these in which rows of short axes are several axes.
SEVERAL_AXES = 0.4
#: The limits of passes that such programs change.
LIMITS = ("MIN_ELEMENTS_OF_ROWS", "MIN_ELEMENTS_OF_BLOCK", "MIN_WIDTH", "MAX_SHORT_ROWS", "MAX_ELEMENTS_ALONE")
#: The index of the interrupted call; one more follows.
INTERRUPTED = 3
#: The error relative to the largest element above which the unrecorded program's own error is estimated.
CLOSE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}
#: The noise for this estimate, in epsilons; the number of samples; and the factor above which the difference fails.
NOISE, SAMPLES, ALLOWED = 8.0, 6, 30.0
#: A result may be this many times as far from float64 as the unrecorded program's.
FARTHER = 8.0
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Failure(AssertionError):
    """A recorded program differs from the unrecorded one."""


class Skipped(Exception):
    """A program that cannot be compared: it raises, or is not recorded."""


Values = list[tuple[str, Any]]


def seeds_of(case: Case) -> tuple[int, ...]:
    """The seeds of the inputs in each call of a case."""
    if case.in_turns:
        return tuple(i % 4 for i in range(len(TURNS)))
    seeds = PURE if case.is_pure else SEEDS
    return seeds if case.interrupted else seeds[: INTERRUPTED + 1]


def values_of(tree: Any) -> Values:
    """The dtypes of the tensors of a tree, and copies of their elements in NumPy arrays."""
    found = []
    for x in flatten(tree)[0]:
        if isinstance(x, bb.Tensor):
            name = str(x.dtype).rpartition(".")[2]
            array = np.array(x.numpy())
            found.append((name, array.astype(np.float32) if name == "bfloat16" else array))
    return found


class Calls:
    """The calls of a case, unrecorded or recorded."""

    def __init__(self, case: Case, wrap: Any = None, between: str = "", noise: Any = None) -> None:
        self.case = case
        self.is_recorded = wrap is not None
        space = {x.value.name: x.tensor(0, backend=case.tower) for x in case.program.constants}
        if noise is not None:
            space["noise"] = noise
        function = function_of(case, space, between)
        self.function = wrap(function) if wrap is not None else function
        self.state: Any = None
        if case.has_state:
            held = dict(case.renewals)
            given = {x.value.name: x.tensor(9, backend=case.tower) for x in case.program.inputs if x.value.name in held}
            if case.mode == "train":
                given = {name: x.require_grad() for name, x in given.items()}
            self.state = (given, OPTIMIZERS[case.optimizer]()) if case.mode == "train" else given
        #: The number of calls of a step with a state so far.
        self.made = 0
        #: Arguments and results of a recorded function, and their values at the time.
        self.held: list[tuple[Any, Values]] = []

    def inputs(self, seed: int) -> list[Any]:
        """The inputs of a call."""
        return [x.tensor(seed, self.case.batch, self.case.tower) for x in self.case.program.inputs]

    def call(self, seed: int) -> Values:
        """The values of a call's results and of the state after it."""
        given = self.inputs(seed)
        before = values_of(given) if self.is_recorded else []
        if self.case.has_state:
            turn = TURNS[self.made] if self.case.in_turns else ""
            if self.case.has_parts and self.made in PARTS:
                self._give_parts()
            self.made += 1
            self.state, results = self.function(self.state, *given, turn)
        else:
            results = self.function(*given)
        found = values_of(results)
        if self.is_recorded:
            self.held += (given, before), (results, found)
        return found + self.state_values()

    def _give_parts(self) -> None:
        """Replace arrays of the state by views of larger arrays, which are held and must not be overwritten."""
        arrays = self.state[0] if self.case.mode == "train" else self.state
        for name, v in arrays.items():
            x = v.inner() if self.case.mode == "train" else v
            if x.shape:
                whole = bb.concat([x, x * 0.5, x])
                if self.is_recorded:
                    self.held.append((whole, values_of(whole)))
                part = whole[2 * x.shape[0] :]
                arrays[name] = part.to(v.backend).require_grad() if self.case.mode == "train" else part

    def state_values(self) -> Values:
        """The values of the state, including an optimizer's."""
        if self.case.mode != "train":
            return values_of(self.state) if self.case.has_state else []
        weights, optimizer = self.state
        kept = optimizer.state_dict()
        return values_of([weights, *(kept[n] for n in sorted(kept) if isinstance(kept[n], bb.Tensor))]) + [
            ("int64", np.asarray(kept[n])) for n in sorted(kept) if not isinstance(kept[n], bb.Tensor)
        ]


def run(case: Case, *, has_guards: bool = True) -> str:
    """Run a case. Returns the outcome in a word; raises :class:`Failure` or :class:`Skipped`.

    Sanitizers need no guards: they know where arrays end.
    """
    before, verified = threads.num_threads(), verifier.VERIFIES
    limits = {name: getattr(fusion_limits, name) for name in LIMITS}
    threads.set_num_threads(case.threads)
    verifier.VERIFIES = has_guards and random.Random(f"verified {case.name}").random() < VERIFIED
    if random.Random(f"rows {case.name}").random() < SMALL_ROWS:
        fusion_limits.MIN_ELEMENTS_OF_ROWS, fusion_limits.MIN_ELEMENTS_OF_BLOCK, fusion_limits.MIN_WIDTH = 2, 1, 1
        if random.Random(f"masks {case.name}").random() < SMALL_MASKS:
            fusion_limits.MAX_ELEMENTS_ALONE = 0
        if random.Random(f"axes {case.name}").random() < SEVERAL_AXES:
            fusion_limits.MIN_WIDTH, fusion_limits.MAX_SHORT_ROWS = 16, 4
    try:
        with bb.use_backend(case.tower):
            with guarded() if has_guards else nullcontext():
                words, recorded, found = _run(case)
                if case.at_once and words == "passed":
                    _at_once(recorded, found)
            return words
    except MemoryFault as error:
        raise Failure(f"memory: {error}") from error
    finally:
        threads.set_num_threads(before)
        verifier.VERIFIES = verified
        for name, limit in limits.items():
            setattr(fusion_limits, name, limit)


def _run(case: Case) -> tuple[str, Calls, list[Values | None]]:
    with bb.random.fork(5):
        expected = _expected(case)
    check()
    with bb.random.fork(5):
        capture: Any = bb.capture
        recorded = Calls(case, lambda f: capture(f, state=case.has_state, on_fallback="error"))
        try:
            found = _recorded(case, recorded, expected)
        except CaptureError as error:
            if "was planned wrong" in str(error):
                raise Failure(f"the verifier refuses: {error}") from error
            raise Skipped(f"not recorded: {_reason(str(error))}") from error
        except (Failure, MemoryFault):
            raise
        except Exception as error:
            _plain(case, [PURE[0]])  # which may raise, too
            raise Failure(f"the recorded program raises {type(error).__name__}: {error}") from error
    check()
    if case.is_pure:  # the first call runs unrecorded
        expected = [found[0] if seed == PURE[0] else values for seed, values in zip(PURE, expected, strict=False)]
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine is not None and theirs is not None and (words := differs(case, mine, theirs, exact=case.is_exact)):
            if not case.is_exact and is_unstable(case, i, mine, theirs):
                return "unstable", recorded, found
            raise Failure(f"call {i}: {words}")
    for tensors, then in recorded.held:
        try:
            now = values_of(tensors)
        except GraphError:  # a result was a view of the state, which the next call donated
            continue
        if words := differs(case, now, then, exact=True):
            raise Failure(f"a later call changed an argument or a result: {words}")
    before = found[1]
    for again in found[INTERRUPTED:] if case.is_pure else ():
        if again is not None and before is not None and (words := differs(case, again, before, exact=True)):
            raise Failure(f"a replay with the same values gives other results: {words}")
    return "passed", recorded, found


def _expected(case: Case) -> list[Values | None]:
    """The expected results of each call; None for those not compared, or compared with the first call only."""
    seeds = seeds_of(case)
    if not case.is_pure:
        return [*_plain(case, seeds)]
    if random.Random(f"compared {case.name}").random() >= COMPARED:
        return [None] * len(seeds)
    known = _plain(case, [PURE[1]])[0]
    return [known if seed == PURE[1] else None for seed in seeds]


def _plain(case: Case, seeds: Sequence[int]) -> list[Values]:
    """The values of the calls of the unrecorded program."""
    plain = Calls(case)
    try:
        found = [plain.call(seed) for seed in seeds]
    except (BackburnError, RecursionError, MemoryError) as error:
        raise Skipped(f"raises {type(error).__name__}") from error
    except Exception as error:
        raise Failure(f"the unrecorded program raises {type(error).__name__}: {error}") from error
    for values in found:
        if all(not np.isfinite(array).all() for name, array in values if name in EPS and array.size):
            raise Skipped("nothing finite")
    return found


def _reason(words: str) -> str:
    return words.partition(":")[0].partition("(")[0][:70]


def _recorded(case: Case, recorded: Calls, expected: Sequence[Values | None]) -> list[Values | None]:
    """The results of the recorded calls; None for one interrupted after it had changed the state or drawn."""
    found: list[Values | None] = []
    points = 0
    for i, seed in enumerate(seeds_of(case)):
        if case.interrupted and i == INTERRUPTED - 1:
            counter = Interrupter(sys.maxsize)
            with counter:
                found.append(recorded.call(seed))
            points = counter.points
            continue
        if case.interrupted and i == INTERRUPTED and points:
            old, drawn = recorded.state_values(), bb.random.get_state()
            at = random.Random(case.name).randint(1, points)
            try:
                with Interrupter(at) as counter:
                    found.append(recorded.call(seed))
                continue
            except KeyboardInterrupt:
                pass
            now = recorded.state_values()
            whole = expected[i] or []
            results, end = whole[: len(whole) - len(now)], whole[len(whole) - len(now) :]
            has_drawn = bb.random.get_state() != drawn
            is_new = bool(differs(case, now, old, exact=True))
            if has_drawn and not is_new and differs(case, now, end, exact=False):
                raise Failure(f"interrupted ({counter.where}), the state is old, but random numbers were drawn")
            if is_new or has_drawn:
                words = differs(case, now, end, exact=case.is_exact)
                if words and (case.is_exact or not is_unstable(case, i, results + now, whole)):
                    where = f"interrupted at {at} of {points} points ({counter.where})"
                    raise Failure(f"{where}, the state is neither old nor new: {words}") from None
                found.append(None)
                continue
        found.append(recorded.call(seed))
    return found


def _at_once(recorded: Calls, found: Sequence[Values | None]) -> None:
    """Replay in three threads concurrently."""
    wrong: list[str] = []

    def replay(i: int) -> None:
        try:
            with bb.use_backend(recorded.case.tower), bb.random.fork(5):
                given = recorded.inputs(seeds_of(recorded.case)[i])
                for _ in range(3):
                    values = values_of(recorded.function(*given))
                    expected = found[i]
                    if expected is not None and (words := differs(recorded.case, values, expected, exact=True)):
                        wrong.append(f"concurrent replays in several threads: {words}")
        except Exception as error:
            wrong.append(f"concurrent replays in several threads: {type(error).__name__}: {error}")

    if recorded.case.is_random:
        return
    workers = [threading.Thread(target=replay, args=(i,)) for i in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if wrong:
        raise Failure(wrong[0])


# ---- comparison ----


def differs(case: Case, mine: Values, theirs: Values, *, exact: bool) -> str:
    """How values differ: at all if ``exact``, otherwise by more than :data:`CLOSE`; empty if they do not."""
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors instead of {len(theirs)}"
    for i, ((name, x), (other, y)) in enumerate(zip(mine, theirs, strict=True)):
        if name != other or x.shape != y.shape:
            return f"result {i} is {name}{list(x.shape)}, not {other}{list(y.shape)}"
        if x.tobytes() == y.tobytes():
            continue
        if not exact and name in CLOSE:
            close = CLOSE[case_dtype(case, name)]
            with np.errstate(all="ignore"):
                both = np.isfinite(x) & np.isfinite(y)
                most = np.abs(np.where(both, y, 0.0)).max(initial=0.0)
                if ((x == y) | (np.isnan(x) & np.isnan(y)) | (both & (np.abs(x - y) <= close * max(most, 1e-3)))).all():
                    continue
        elif exact and _are_equal(x, y):
            continue
        wrong = (x != y) & ~((x != x) & (y != y))
        with np.errstate(all="ignore"):
            far = np.where(wrong, np.nan_to_num(np.abs(x.astype(float) - y.astype(float)), nan=np.inf), -1.0)
        at = tuple(int(n) for n in np.unravel_index(int(far.argmax()), x.shape))
        return f"result {i}, {name}{list(x.shape)}, at {list(at)}: {x[at]!r}, not {y[at]!r} ({wrong.sum()} of {x.size})"
    return ""


def _are_equal(x: Any, y: Any) -> bool:
    """Whether arrays are bitwise equal, except in the bits of NaN."""
    if x.dtype.kind != "f" or not np.array_equal(x, y, equal_nan=True):
        return False
    return bool((np.isnan(x) | (np.signbit(x) == np.signbit(y))).all())


def case_dtype(case: Case, name: str) -> str:
    """The least exact float dtype of a program with a result of dtype ``name``."""
    found = {line.value.dtype for line in case.program.lines} | {x.value.dtype for x in case.program.inputs} | {name}
    return min((n for n in found if n in CLOSE), key=lambda n: -CLOSE[n])


def is_unstable(case: Case, call: int, mine: Values, theirs: Values) -> bool:
    """Whether rounding explains a difference: the unrecorded results are as inexact, or noise moves them as far."""
    try:
        return _is_near_the_truth(case, call, mine, theirs) or _is_within_noise(case, call, mine, theirs)
    except BackburnError:
        return True


def _is_near_the_truth(case: Case, call: int, mine: Values, theirs: Values) -> bool:
    """Whether results are not much farther from those in float64 than the unrecorded program's are."""
    if all("float64" in x.value.dtype for x in case.program.inputs if x.value.is_float):
        return False
    with bb.random.fork(5):
        wide = Calls(replace(case, program=widened(case.program)))
        truth = _last(wide, call)
    for (_, x), (_, y), (_, z) in zip(mine, theirs, truth, strict=True):
        if x.shape == z.shape and x.size and not _far(x, z) <= FARTHER * _far(y, z):
            return False
    return True


def _last(calls: Calls, call: int) -> Values:
    """The values of a call, after the earlier calls if they have side effects."""
    seeds = seeds_of(calls.case)[: call + 1]
    return [calls.call(seed) for seed in (seeds[-1:] if calls.case.is_pure else seeds)][-1]


def _far(x: Any, y: Any) -> float:
    """The greatest distance between elements; infinite if only one of two is NaN."""
    with np.errstate(all="ignore"):
        distance = np.where((x == y) | ((x != x) & (y != y)), 0.0, np.abs(x.astype(float) - y.astype(float)))
    return float(np.nan_to_num(distance, nan=np.inf).max(initial=0.0))


def _is_within_noise(case: Case, call: int, mine: Values, theirs: Values) -> bool:
    """Whether noise of a few roundings in every value read or computed moves the unrecorded results as far.

    Noise is drawn per read: otherwise parts of a gradient that cancel, as of ``atan2(x, x)``, would cancel with it.
    """
    renewals = tuple((name, f"noise({text})") for name, text in case.renewals)
    noisy = replace(case, program=case.program.reading("noise({})"), renewals=renewals)
    most = [0.0 for _ in mine]
    for sample in range(SAMPLES):
        rng = np.random.default_rng(sample)

        def noise(x: Any, rng: Any = rng) -> Any:
            name = str(x.dtype).rpartition(".")[2] if isinstance(x, bb.Tensor) else ""
            if name not in EPS or not x.size:
                return x
            most = NOISE * EPS[name]
            moved = x * bb.asarray(1.0 + most * rng.uniform(-1.0, 1.0, x.shape), dtype=x.dtype, backend=case.tower)
            if case.mode != "train":
                return moved
            # Optimizers divide gradients by their size: one that cancels to 0 here may be a rounding error elsewhere.
            values = np.nan_to_num(np.asarray(x.numpy(), np.float64), posinf=0.0, neginf=0.0)
            added = most * np.abs(values).max() * rng.uniform(-1.0, 1.0, x.shape)
            return moved + bb.asarray(added, dtype=x.dtype, backend=case.tower)

        with bb.random.fork(5):
            values = _last(Calls(noisy, None, "{0} = noise({0})", noise), call)
        for i, ((_, x), (_, y)) in enumerate(zip(values, theirs, strict=True)):
            most[i] = max(most[i], _far(x, y) if x.shape == y.shape else np.inf)
    return all(_far(x, y) <= ALLOWED * limit for (_, x), (_, y), limit in zip(mine, theirs, most, strict=True))
