"""The state of random draws: generators, the current one, and the words that draws take from them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

from backburn.backend.contract import AnyBackend
from backburn.backend.host_numbers import RECORDING_STEP, Kept, Recording
from backburn.base.contexts import ACTIVE, Block, default_float, scoped
from backburn.base.dtypes import DType
from backburn.base.errors import ArgumentError, CaptureError, DTypeError
from backburn.batching import levels_of_vmap
from backburn.hints import add_hints
from backburn.hints.general import GENERATORS
from backburn.ops.random import KEYS, WORDS, draws
from backburn.tensor.core.defaults import BackendLike, as_backend
from backburn.tensor.core.dispatch import as_scalar, call, create
from backburn.tensor.core.levels import levels_between, lift
from backburn.tensor.core.options import dtype_or_default, integer, number
from backburn.tensor.core.wrapping import wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor


T = TypeVar("T")


class Generator:
    """A key, and the offset of the next random word in its stream.

    ``seed`` is the key, an integer from 0 to ``2**128 - 1``; by default it comes from the operating system. Several
    threads may draw from one generator: no word is used twice, but their order is unspecified.

        >>> import backburn as bb
        >>> g = bb.random.Generator(7)
        >>> bb.random.uniform((2, 3), generator=g).shape, g
        ((2, 3), Generator(7, offset=6))
    """

    __slots__ = ("_lock", "key", "offset")
    key: int
    offset: int

    def __init__(self, seed: int | None = None, offset: int = 0) -> None:
        """A generator at the beginning of the stream of ``seed``, or at ``offset`` in it."""
        self._lock = threading.Lock()
        self.key = self.offset = 0
        if seed is None and (recording := RECORDING_STEP.get()) is not None:
            raise recording.refuse(CaptureError("a Generator without a seed, whose key would never change"))
        self.seed(_fresh_key() if seed is None else seed, offset)

    def seed(self, seed: int, offset: int = 0) -> None:
        """Move to the beginning of the stream of another key. Raises :class:`ArgumentError` for an invalid key."""
        key, first = _below(KEYS, "seed", seed), _below(WORDS, "offset", offset)
        if (instead := _stand_in(self)) is not self:
            instead.seed(seed, offset)
            return
        recording = RECORDING_STEP.get()
        if recording is None:
            self._put(key, first)
            return
        recording.host(lambda: self._put(key, getattr(offset, "now", first)), self._kept())
        recording.known.append(self)

    def _kept(self) -> Kept:
        """The functions with which a recording reads and restores the state."""
        return lambda: (self.key, self.offset), lambda before: self._put(*before)

    def _put(self, key: int, offset: int) -> None:
        with self._lock:
            self.key, self.offset = key, offset

    def _assume_key(self, recording: Recording) -> None:
        """Make a recording that has not set the key assume that it stays the same."""
        if not any(x is self for x in recording.known):
            key = self.key
            recording.assume(lambda: self.key == key)
            recording.known.append(self)

    def take(self, count: int) -> tuple[int, int]:
        """Reserve the next ``count`` words: the key and the offset of the first. The state advances past them.

        Raises :class:`ArgumentError`, and keeps the state, if the stream has fewer words left.
        """
        if _RUNS.get() and (instead := _stand_in(self)) is not self:
            return instead.take(count)
        recording = RECORDING_STEP.get()
        if recording is None:
            with self._lock:  # another thread may set the key
                return self.key, self._past(count)
        self._assume_key(recording)
        return self.key, recording.number(lambda: self._advance(count), self._kept())

    def _advance(self, count: int) -> int:
        with self._lock:
            return self._past(count)

    def _past(self, count: int) -> int:
        """Advance past the next words, and return the offset of the first. The caller holds the lock."""
        first = self.offset
        if first + count >= WORDS:
            raise ArgumentError(f"random: {count} random words are more than the stream of a key has after {first}")
        self.offset = first + count
        return first

    def spawn(self, count: int) -> list[Generator]:
        """``count`` generators with distinct keys, for workers or parts of a program.

        The keys follow from this generator's state, which advances, so that the next ones are different. Raises
        :class:`ArgumentError` for a ``count`` that is not an integer of at least 0.

            >>> [child.offset for child in Generator(7).spawn(2)]
            [0, 0]
        """
        count = integer("spawn", "the number of generators", count, least=0)
        key, offset = self.take(8)
        digests = (blake2b(f"{key}:{offset}:{i}".encode(), digest_size=16).digest() for i in range(count))
        return [Generator(int.from_bytes(digest, "little")) for digest in digests]

    def state(self) -> dict[str, int]:
        """The state as a tree of two integers, for saving."""
        if (instead := _stand_in(self)) is not self:
            return instead.state()
        recording = RECORDING_STEP.get()
        if recording is None:
            with self._lock:
                return {"key": self.key, "offset": self.offset}
        self._assume_key(recording)
        offset = _RecordedOffset(self.offset)
        recording.host(lambda: setattr(offset, "now", self.offset))
        return {"key": self.key, "offset": offset}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Restore a saved state. Raises :class:`ArgumentError` for an invalid one."""
        given: Any = state
        if not isinstance(given, Mapping) or set(given) != {"key", "offset"}:
            found = list(given) if isinstance(given, Mapping) else given
            raise ArgumentError(f"random: a state has a 'key' and an 'offset', not {found!r}")
        self.seed(state["key"], state["offset"])

    def __repr__(self) -> str:
        return f"Generator({self.key}, offset={self.offset})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Generator, (self.key, self.offset))


add_hints(Generator, GENERATORS)


class Current(Generator):
    """The current generator of a step while it is recorded: a replay uses the one that is current then."""

    __slots__ = ("target",)
    target: Generator

    def __init__(self, target: Generator) -> None:
        """``target`` is the generator that is current now."""
        self.target = target

    if not TYPE_CHECKING:  # those of the target
        _lock = property(lambda self: self.target._lock)
        key = property(lambda self: self.target.key, lambda self, key: setattr(self.target, "key", key))
        offset = property(lambda self: self.target.offset, lambda self, n: setattr(self.target, "offset", n))


class Draws:
    """The draws of a function from generators, so that it can be run again with the same numbers.

    ``first`` runs it and notes the state of each generator, however the function obtains it, before its first use.
    ``again`` runs it with other generators at these states instead; the original ones are unchanged.
    """

    __slots__ = ("_fresh", "_states")

    def __init__(self) -> None:
        self._states: dict[Generator, dict[str, int]] = {}
        self._fresh: list[int] = []

    def first(self, function: Callable[[], T]) -> T:
        """The result of ``function``, whose draws are noted."""
        with scoped(_RUNS, (*_RUNS.get(), _Run(self._states, self._fresh, None))):
            return function()

    def again(self, function: Callable[[], T]) -> T:
        """The result of ``function``, which draws what it drew at first."""
        with scoped(_RUNS, (*_RUNS.get(), _Run(self._states, list(self._fresh), {}))):
            return function()


class _Run:
    """A run of a function: the first one, or one ``again``, which has stand-ins for generators."""

    __slots__ = ("_fresh", "_stand_ins", "_states")

    def __init__(
        self,
        states: dict[Generator, dict[str, int]],
        fresh: list[int],
        stand_ins: dict[Generator, Generator] | None,
    ) -> None:
        self._states, self._fresh, self._stand_ins = states, fresh, stand_ins

    def stand_in(self, generator: Generator) -> Generator:
        """The generator from which the function draws instead of ``generator``."""
        if self._stand_ins is None:
            if generator not in self._states:
                with scoped(_RUNS, ()):
                    self._states[generator] = generator.state()
            return generator
        found = self._stand_ins.get(generator)
        if found is None:
            state = self._states.get(generator)
            if state is None:
                return generator
            with scoped(_RUNS, ()):
                found = self._stand_ins[generator] = Generator(state["key"], state["offset"])
        return found

    def fresh(self, key: int | None) -> int | None:
        """The key of a generator without a seed: the first run notes ``key``, or a new one; the next run reuses it."""
        if self._stand_ins is not None:
            return self._fresh.pop(0) if self._fresh else key
        self._fresh.append(_random_key() if key is None else key)
        return self._fresh[-1]


_RUNS: ContextVar[tuple[_Run, ...]] = ContextVar("backburn_runs", default=())


def _stand_in(generator: Generator) -> Generator:
    """The generator to draw from instead of ``generator``, in functions that run again."""
    for run in _RUNS.get():
        generator = run.stand_in(generator)
    return generator


def _fresh_key() -> int:
    """The key of a generator without a seed."""
    key: int | None = None
    for run in _RUNS.get():
        key = run.fresh(key)
    return _random_key() if key is None else key


def _random_key() -> int:
    return int.from_bytes(os.urandom(16), "little")


class _RecordedOffset(int):
    """An offset that was read while a step was recorded; ``now`` is its value in the latest replay."""

    now: int


def _below(end: int, name: str, number: Any) -> int:
    """``number`` as an integer from 0 to ``end - 1``."""
    try:
        found = index(number)
    except TypeError:
        found = -1
    if not 0 <= found < end:
        raise ArgumentError(f"random: the {name} is an integer from 0 to 2**{end.bit_length() - 1} - 1, not {number!r}")
    return found


_PROCESS = Generator()
_CURRENT: ContextVar[Generator] = ContextVar("backburn_random", default=_PROCESS)


def default_generator() -> Generator:
    """The generator that functions draw from unless they are given one.

    It is that of the innermost :func:`fork` block, or else that of the process, from which all threads draw.
    """
    return _CURRENT.get()


def seed(seed: int) -> None:
    """Reset the current generator: the same seed gives the same numbers.

    Threads share the generator of the process, so a seed set in one affects all. For separate numbers, each thread
    computes in a block of ``fork(seed)`` instead.

    Raises :class:`ArgumentError` unless ``seed`` is an integer from 0 to ``2**128 - 1``.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> x = bb.random.normal((3,))
        >>> bb.random.seed(0)
        >>> bool((bb.random.normal((3,)) == x).all())
        True
    """
    default_generator().seed(seed)


def get_state() -> dict[str, int]:
    """The state of the current generator, a tree of integers.

    >>> import backburn as bb
    >>> state = bb.random.get_state()
    >>> x = bb.random.normal((3,))
    >>> bb.random.set_state(state)
    >>> bool((bb.random.normal((3,)) == x).all())
    True
    """
    return default_generator().state()


def set_state(state: Mapping[str, int]) -> None:
    """Restore a state from :func:`get_state`. Raises :class:`ArgumentError` for an invalid one."""
    default_generator().set_state(state)


def fork(start: Generator | Mapping[str, int] | int | None = None) -> Block[Generator]:
    """Draw from another generator in a ``with`` block or decorated function; the state outside is unchanged.

    It is ``start``, if that is a generator; else a new one at a saved state, at the beginning of a seed's stream, or
    (None) at the current state, so that the code after the block draws the same numbers again. Only this thread or task
    is affected: what a thread computes in a block with another seed does not depend on other threads.

        >>> import backburn as bb
        >>> with bb.random.fork(3):
        ...     x = bb.random.uniform(4)
        >>> with bb.random.fork(3):
        ...     (x == bb.random.uniform(4)).all().item()
        True
    """
    if not (start is None or isinstance(start, Generator | Mapping | int)):
        raise ArgumentError(f"fork: begins at a generator, a saved state, a seed or None, not {start!r}")
    return Block("fork", lambda: scoped(_CURRENT, _fork(start)))


def _fork(start: Generator | Mapping[str, int] | int | None) -> Generator:
    """The generator for a block that is being entered."""
    if isinstance(start, Generator):
        return start
    if isinstance(start, int):
        return Generator(start)
    generator = Generator(0)
    generator.set_state(get_state() if start is None else start)
    return generator


# ---- draws ----


def draw(
    name: str, size: Any, dtype: DType, backend: BackendLike, generator: Generator | None, /, **attributes: Any
) -> Any:
    """Draw numbers of shape ``size`` from the next words of a generator."""
    k, key, offset = _words(name, as_backend(backend), size, dtype, generator)
    return create(name, k, key=key, offset=offset, **attributes)


def drawn_from(name: str, x: Tensor, generator: Generator | None, **attributes: Any) -> Any:
    """The results of a draw for each element of ``x``, or for each of its rows."""
    k, key, offset = _words(name, x.backend, x.shape, x.dtype, generator)
    return call(name, x if x.backend is k else wrap(lift(x, k), k), key=key, offset=offset, **attributes)


def _words(
    name: str, backend: AnyBackend, shape: Any, dtype: DType, generator: Generator | None
) -> tuple[AnyBackend, int, int]:
    """The backend of a draw, and the key and the offset of the words that it reads.

    Inside ``vmap`` the backend is the level of the running transform, with words for all examples that draw separately.
    """
    running: AnyBackend | None = ACTIVE.get()
    if running is not None and levels_of_vmap(running) and levels_between(backend, running) is not None:
        backend = running
    source = default_generator() if generator is None else generator
    if not isinstance(source, Generator):
        raise ArgumentError(f"{name}: the generator is a bb.random.Generator, not {type(source).__name__}")
    examples = [level.size for level in levels_of_vmap(backend) if level.randomness == "different"]
    return backend, *source.take(draws(name, (*examples, *shape), dtype))


def float_dtype(name: str, dtype: Any, backend: BackendLike) -> DType:
    """A float dtype, or the default one."""
    k = as_backend(backend)
    found = dtype_or_default(dtype, default_float(k), k)
    if not found.is_floating:
        drawn = "normal draws complex numbers" if found.kind == "complex" else "integers draws integers"
        raise DTypeError(f"{name}: draws floats, not {found}; bb.random.{drawn}")
    return found


def plain_number(name: str, value: Any) -> float:
    """``value`` as a Python float."""
    if value.__class__ is float:
        return value
    scalar = as_scalar(value)
    if scalar is None:
        raise DTypeError(f"{name}: takes tensors and Python numbers, not {type(value).__name__}")
    return float(number(name, "each parameter", scalar))
