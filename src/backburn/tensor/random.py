"""Random tensors, and the state of their generators.

A :class:`Generator` is a key and an offset in the key's stream of random words; a draw reads the next words and
advances the offset. Equal states give equal numbers on every backend (see :mod:`backburn.backend.random`), and the
numbers drawn depend only on the state, the distribution, shape and dtype.

Functions draw from their ``generator`` or from the current one: that of the process, which takes its key from the
operating system until :func:`seed` is called, or that of the innermost :func:`fork`. All take ``backend``, by the Array
API's name ``device``. Draws are constants; if ``mean``, ``std``, ``low`` or ``high`` are tensors, gradients flow to
them (the reparametrization trick).

    >>> import backburn as bb
    >>> bb.random.seed(7)
    >>> x = bb.random.normal((2, 3))
    >>> bb.random.seed(7)
    >>> (x == bb.random.normal((2, 3))).all().item()
    True
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar

from backburn.backend.contract import AnyBackend
from backburn.backend.random import KEYS, WORDS, check_range, draws
from backburn.base.calls import plain_signature, refuse
from backburn.base.contexts import ACTIVE, Block, default_float, scoped
from backburn.base.dtypes import DType, IntDType, as_dtype, float32, int64
from backburn.base.errors import ArgumentError, BackendMismatchError, CaptureError, DTypeError, ShapeError
from backburn.base.hints import missing_name
from backburn.base.replay import REPLAY, Recording
from backburn.batching import levels_of_vmap
from backburn.tensor.defaults import BackendLike, as_backend, given_backend
from backburn.tensor.dispatch import binary, call, cast, create, float_operand, kind_operand, scalar_of
from backburn.tensor.inspection import finfo
from backburn.tensor.levels import levels_between, lift
from backburn.tensor.messages import describe
from backburn.tensor.options import axis_of, dtype_or_default, flags, integer, number, shape_of
from backburn.tensor.sort import topk
from backburn.tensor.wrapping import is_tensor, wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor

T = TypeVar("T", bound="Tensor")
Shape = int | tuple[int, ...]


# ---- the state ----


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
        if seed is None and (recording := REPLAY.get()) is not None:
            raise recording.refuse(CaptureError("a Generator without a seed, whose key would stay as it is"))
        self.seed(int.from_bytes(os.urandom(16), "little") if seed is None else seed, offset)

    def seed(self, seed: int, offset: int = 0) -> None:
        """Go to the beginning of the stream of another key. Raises :class:`ArgumentError` for an invalid key."""
        key, first = _below(KEYS, "seed", seed), _below(WORDS, "offset", offset)
        recording = REPLAY.get()
        if recording is None:
            self._put(key, first)
            return
        before = self.key, self.offset
        recording.host(lambda: self._put(key, getattr(offset, "now", first)), lambda: self._put(*before))
        recording.known.append(self)

    def _put(self, key: int, offset: int) -> None:
        with self._lock:
            self.key, self.offset = key, offset

    def _assumed_by(self, recording: Recording) -> None:
        """A recording that has not set the key assumes that it stays as it is."""
        if not any(x is self for x in recording.known):
            key = self.key
            recording.assume(lambda: self.key == key)
            recording.known.append(self)

    def take(self, count: int) -> tuple[int, int]:
        """Reserve the next ``count`` words: the key and the offset of the first. The state advances past them.

        Raises :class:`ArgumentError`, and keeps the state, if the stream has fewer words left.
        """
        recording = REPLAY.get()
        if recording is None:
            return self.key, self._advance(count)
        self._assumed_by(recording)
        return self.key, recording.number(lambda: self._advance(count), lambda: self._advance(-count))

    def _advance(self, count: int) -> int:
        with self._lock:
            first = self.offset
            if first + count >= WORDS:
                raise ArgumentError(f"random: {count} random words are more than the stream of a key has after {first}")
            self.offset = first + count
            return first

    def spawn(self, count: int) -> list[Generator]:
        """``count`` generators with distinct keys, for workers or parts of a program.

        The keys follow from this generator's state, which advances, so that the next ones are different.

            >>> [child.offset for child in Generator(7).spawn(2)]
            [0, 0]
        """
        key, offset = self.take(8)
        digests = (blake2b(f"{key}:{offset}:{i}".encode(), digest_size=16).digest() for i in range(count))
        return [Generator(int.from_bytes(digest, "little")) for digest in digests]

    def state(self) -> dict[str, int]:
        """The state as a tree of two integers, for saving."""
        recording = REPLAY.get()
        if recording is None:
            with self._lock:
                return {"key": self.key, "offset": self.offset}
        self._assumed_by(recording)
        offset = _RecordedOffset(self.offset)
        recording.host(lambda: setattr(offset, "now", self.offset), lambda: None)
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


class Current(Generator):
    """The current generator of a step while it is recorded: at a replay it stands for the one that is current then."""

    __slots__ = ("target",)
    target: Generator

    def __init__(self, target: Generator) -> None:
        """``target`` is what it stands for now."""
        self.target = target

    if not TYPE_CHECKING:  # which are attributes of others
        _lock = property(lambda self: self.target._lock)
        key = property(lambda self: self.target.key, lambda self, key: setattr(self.target, "key", key))
        offset = property(lambda self: self.target.offset, lambda self, n: setattr(self.target, "offset", n))


class _RecordedOffset(int):
    """An offset that was asked for while a step is recorded; ``now`` is what it is at the latest replay."""

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
    """The generator that functions draw from unless they are given one."""
    return _CURRENT.get()


def seed(seed: int) -> None:
    """Reset the current generator: the same seed gives the same numbers.

    Raises :class:`ArgumentError` unless it is an integer from 0 to ``2**128 - 1``.
    """
    default_generator().seed(seed)


def get_state() -> dict[str, int]:
    """The state of the current generator, a tree of integers."""
    return default_generator().state()


def set_state(state: Mapping[str, int]) -> None:
    """Restore a state from :func:`get_state`. Raises :class:`ArgumentError` for an invalid one."""
    default_generator().set_state(state)


def fork(start: Generator | Mapping[str, int] | int | None = None) -> Block[Generator]:
    """Draw from another generator in a ``with`` block or decorated function; the state outside stays as it is.

    It is ``start``, if that is a generator; else a new one at a saved state, at the beginning of a seed's stream, or
    (None) at the current state, so that the code after the block draws the same numbers again. Only this thread or task
    is affected.

        >>> import backburn as bb
        >>> with bb.random.fork(3):
        ...     x = bb.random.uniform(4)
        >>> with bb.random.fork(3):
        ...     (x == bb.random.uniform(4)).all().item()
        True
    """
    if not (start is None or isinstance(start, Generator | Mapping | int)):
        raise ArgumentError(f"fork: begins at a generator, a saved state, a seed or None, not {start!r}")
    return Block("fork", lambda: scoped(_CURRENT, _forked(start)))


def _forked(start: Generator | Mapping[str, int] | int | None) -> Generator:
    """The generator for a block that is being entered."""
    if isinstance(start, Generator):
        return start
    if isinstance(start, int):
        return Generator(start)
    generator = Generator(0)
    generator.set_state(get_state() if start is None else start)
    return generator


# ---- draws ----


def _generator(name: str, generator: Generator | None) -> Generator:
    """The generator that was given, or the current one."""
    source = default_generator() if generator is None else generator
    if not isinstance(source, Generator):
        raise ArgumentError(f"{name}: the generator is a bb.random.Generator, not {type(source).__name__}")
    return source


def _draw(
    name: str, size: Any, dtype: DType, backend: BackendLike, generator: Generator | None, /, **attributes: Any
) -> Any:
    """Draw numbers of shape ``size`` from the next words of a generator."""
    k = _where_drawn(as_backend(backend))
    key, offset = _generator(name, generator).take(_words(name, k, size, dtype))
    return create(name, k, key=key, offset=offset, **attributes)


def _where_drawn(backend: AnyBackend) -> AnyBackend:
    """``backend``; inside ``vmap``, where draws may differ between examples, the level of the running transform."""
    running: AnyBackend | None = ACTIVE.get()
    if running is not None and levels_of_vmap(running) and levels_between(backend, running) is not None:
        return running
    return backend


def _words(name: str, backend: AnyBackend, shape: Any, dtype: DType) -> int:
    """The number of words that a draw on ``backend`` reads; inside ``vmap``, for all examples that draw separately."""
    examples = [level.size for level in levels_of_vmap(backend) if level.randomness == "different"]
    return draws(name, (*examples, *shape), dtype)


def _float(name: str, dtype: Any, backend: BackendLike) -> DType:
    """A float dtype, or the default one."""
    k = as_backend(backend)
    found = dtype_or_default(dtype, default_float(k), k)
    if found.kind != "float":
        raise DTypeError(f"{name}: draws floats, not {found}; bb.random.integers draws integers")
    return found


@plain_signature
def uniform(
    shape: Shape = (),
    *surplus: Never,
    low: Tensor | float = 0.0,
    high: Tensor | float = 1.0,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
    **wrong: Never,
) -> FloatTensor:
    """Uniform numbers from ``low`` up to but excluding ``high`` (which rounding may reach unless they are 0 and 1).

    With numbers for ``low`` and ``high`` the result has ``shape``; tensors broadcast with it. Raises
    :class:`ArgumentError` if ``low`` is above ``high``, and for a range whose width the dtype does not hold.

        >>> import backburn as bb
        >>> x = bb.random.uniform((100,), low=-1.0, high=2.0)
        >>> ((x >= -1.0) & (x <= 2.0)).all().item()
        True
    """
    if surplus or wrong:
        refuse(uniform, surplus, wrong)
    where = given_backend(backend, device)
    found, lengths = _float("uniform", dtype, where), shape_of("uniform", shape)
    x = _draw("uniform", lengths, found, where, generator, shape=lengths, dtype=found)
    if is_tensor(low) or is_tensor(high):
        return binary("add", binary("mul", x, binary("sub", high, low)), low)
    first, last = _number("uniform", low), _number("uniform", high)
    if first > last:
        raise ArgumentError(f"uniform: low is at most high, and they are {first} and {last}")
    if first != 0.0 or last != 1.0:
        if not last - first <= finfo(found).max:
            raise ArgumentError(f"uniform: {first} to {last} is wider than the largest number of {found}")
        x = binary("add", binary("mul", x, last - first), first)
    return x


@plain_signature
def normal(
    shape: Shape = (),
    *surplus: Never,
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
    **wrong: Never,
) -> FloatTensor:
    """Normally distributed numbers with the given mean and standard deviation.

    With numbers for ``mean`` and ``std`` the result has ``shape``; tensors broadcast with it. Raises
    :class:`ArgumentError` for a negative ``std``.

        >>> import backburn as bb
        >>> bb.random.normal((2, 3), std=0.1, dtype=bb.float64).dtype
        float64
    """
    if surplus or wrong:
        refuse(normal, surplus, wrong)
    where = given_backend(backend, device)
    found, lengths = _float("normal", dtype, where), shape_of("normal", shape)
    centre, spread = (n if is_tensor(n) else _number("normal", n) for n in (mean, std))
    if not is_tensor(spread) and spread < 0.0:
        raise ArgumentError(f"normal: std is a number of at least 0, not {std!r}")
    x = _draw("normal", lengths, found, where, generator, shape=lengths, dtype=found)
    if is_tensor(spread) or spread != 1.0:
        x = binary("mul", x, spread)
    if is_tensor(centre) or centre != 0.0:
        x = binary("add", x, centre)
    return x


def _number(name: str, value: Any) -> float:
    """``value`` as a Python float."""
    if value.__class__ is float:
        return value
    scalar = scalar_of(value)
    if scalar is None:
        raise DTypeError(f"{name}: takes tensors and Python numbers, not {type(value).__name__}")
    return float(number(name, "each parameter", scalar))


@plain_signature
def integers(
    shape: Shape = (),
    low: int = 0,
    high: int | None = None,
    *surplus: Never,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
    **wrong: Never,
) -> IntTensor:
    """Uniformly distributed integers from ``low`` up to but excluding ``high``; with ``low`` alone, from 0 up to it.

    The shape is the first argument. The dtype is int64 unless another int ``dtype`` is given. Raises
    :class:`ArgumentError` if the range is empty or the dtype does not hold it, and for ``integers(0, n)``, whose shape
    has no elements: NumPy's ``integers(0, n)`` is ``integers((), 0, n)`` here.

        >>> import backburn as bb
        >>> dice = bb.random.integers((5,), 1, 7)
        >>> ((dice >= 1) & (dice <= 6)).all().item()
        True
    """
    if surplus or wrong:
        refuse(integers, surplus, wrong)
    found = int64 if dtype is None else as_dtype(dtype)
    if not isinstance(found, IntDType):
        raise DTypeError(f"integers: draws integers, not {found}; bb.random.uniform and normal draw floats")
    if shape.__class__ is int and shape == 0 and high is None:
        raise ArgumentError(
            f"integers: the shape comes first, and this one has no elements: integers((), 0, {low!r}) is one integer, "
            f"integers((0,), {low!r}) is none"
        )
    lengths = shape_of("integers", shape)
    first, last = (0, low) if high is None else (low, high)
    bounds = [scalar_of(n) for n in (first, last)]
    if not all(type(n) is int for n in bounds):
        raise DTypeError(f"integers: the bounds are integers, not {first!r} and {last!r}")
    try:
        check_range(first, last, found)
    except ArgumentError as error:
        raise ArgumentError(f"integers: {error}") from None
    where = given_backend(backend, device)
    return _draw(
        "integers", lengths, found, where, generator, shape=lengths, low=bounds[0], high=bounds[1], dtype=found
    )


def bernoulli(
    shape: Shape | None = None,
    p: Tensor | float = 0.5,
    *,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> BoolTensor:
    """Booleans that are true with probability ``p``, a number or a float tensor that broadcasts to ``shape``.

    Without ``shape``, the shape is that of ``p``. Raises :class:`ArgumentError` for a number outside ``[0, 1]``.

        >>> import backburn as bb
        >>> bb.random.bernoulli((3,), 1.0).tolist(), bb.random.bernoulli(p=bb.asarray([0.0, 1.0])).tolist()
        ([True, True, True], [False, True])
    """
    where = given_backend(backend, device)
    if is_tensor(p):
        chances = float_operand("bernoulli", p)
        lengths = chances.shape if shape is None else shape_of("bernoulli", shape)
        place = chances.backend if where is None else where
        x = _draw("uniform", lengths, chances.dtype, place, generator, shape=lengths, dtype=chances.dtype)
        return binary("less", x, chances)
    lengths = shape_of("bernoulli", () if shape is None else shape)
    chance = _number("bernoulli", p)
    if not 0.0 <= chance <= 1.0:
        raise ArgumentError(f"bernoulli: a probability lies between 0 and 1, and this is {chance}")
    return _draw("bernoulli", lengths, int64, where, generator, shape=lengths, p=chance)


def permutation(
    x: int | Tensor,
    /,
    *,
    axis: int = 0,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> Tensor:
    """The numbers from 0 to ``x - 1``, or the entries of a tensor along ``axis``, in random order.

    The numbers are on ``backend``; a tensor stays on its own, and another ``backend`` raises
    :class:`BackendMismatchError`.

    >>> import backburn as bb
    >>> sorted(bb.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    if is_tensor(x):
        y = _staying("permutation", x, given_backend(backend, device))
        along = axis_of("permutation", y, axis)
        n = y.shape[along]
        order = _draw("permutation", (n,), int64, y.backend, generator, n=n)
        return call("take", y, order, axis=along)
    (n,) = shape_of("permutation", integer("permutation", "x", x))
    where = given_backend(backend, device)
    return _draw("permutation", (n,), int64, where, generator, n=n)


def _staying(name: str, x: Any, place: Any) -> Any:
    """A tensor whose entries are drawn; raises :class:`BackendMismatchError` for another place than its own."""
    y: Any = kind_operand(name, x, "FIB")
    if place is not None and (asked := as_backend(place)) != y.backend:
        raise BackendMismatchError(
            f"{name}: entries of a tensor are drawn where it lives, and {asked.spec} is not there. Write "
            f"{name}(x.to({asked.spec!r})). Operand: {describe((y,))}"
        )
    return y


@plain_signature
def choice(
    x: int | Tensor,
    /,
    shape: Shape = (),
    *surplus: Never,
    p: Tensor | None = None,
    replace: bool = True,
    axis: int = 0,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
    **wrong: Never,
) -> Tensor:
    """Numbers from 0 to ``x - 1``, or entries of a tensor along ``axis``, which ``shape`` replaces; all equally likely.

    ``p``, a vector, has the probability of each, or a positive multiple of it. Without ``replace``, none is drawn
    twice: each draw is among those that are left (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
    2006). The numbers are on ``backend``, or on that of ``p``; a tensor stays on its own.

    Raises :class:`ArgumentError` where there are fewer to choose from than are drawn, :class:`ShapeError` for a ``p``
    of another length, and :class:`BackendMismatchError` for a tensor and another ``backend``.

        >>> import backburn as bb
        >>> sorted(bb.random.choice(4, (4,), replace=False).tolist())
        [0, 1, 2, 3]
        >>> letters = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> bb.random.choice(letters, (2,), p=bb.asarray([0.0, 1.0, 0.0]), axis=1).tolist()
        [[2, 2], [5, 5]]
    """
    if surplus or wrong:
        refuse(choice, surplus, wrong)
    flags("choice", replace=replace)
    lengths, place = shape_of("choice", shape), given_backend(backend, device)
    count, values, along = math.prod(lengths), None, 0
    if is_tensor(x):
        values = _staying("choice", x, place)
        along = axis_of("choice", values, axis)
        n, place = values.shape[along], values.backend
    else:
        (n,) = shape_of("choice", integer("choice", "x", x))
    if count > (n if not replace else n * count):
        raise ArgumentError(f"choice: {count} are to be drawn from {n}{'' if replace else ', none of them twice'}")
    drawn: Any
    if p is not None:
        drawn = _weighted(n, lengths, count, p, replace, generator)
    elif replace:
        drawn = integers(lengths, 0, max(n, 1), backend=place, generator=generator)
    else:
        drawn = call("reshape", permutation(n, backend=place, generator=generator)[:count], shape=lengths)
    return drawn if values is None else call("take", values, drawn, axis=along)


def _weighted(n: int, shape: tuple[int, ...], count: int, p: Any, replace: bool, generator: Generator | None) -> Any:
    """Indices drawn with the probabilities ``p``."""
    chances: Any = float_operand("choice", p)
    if chances.shape != (n,):
        raise ShapeError(f"choice: p has one probability for each of {n}, and is {describe((chances,))}")
    logits: Any = call("log", cast(chances, float32) if chances.dtype.bits < 32 else chances)
    if replace:
        return categorical(logits, shape, generator=generator)
    u = uniform((n,), dtype=logits.dtype, backend=p.backend, generator=generator)
    times = call("sub", logits, call("log", call("neg", call("log", u))))
    return call("reshape", topk(times, count)[1], shape=shape)


def categorical(logits: Tensor, shape: Shape = (), *, generator: Generator | None = None) -> IntTensor:
    """Indices along the last axis of ``logits``, drawn with the probabilities ``softmax(logits)``.

    The result has the shape ``(*shape, *logits.shape[:-1])``. A logit of minus infinity excludes its index. Raises
    :class:`ShapeError` if the last axis is empty.

        >>> import backburn as bb
        >>> logits = bb.asarray([0.0, -float("inf"), 0.0])
        >>> (bb.random.categorical(logits, (100,)) != 1).all().item()
        True
    """
    x = float_operand("categorical", logits)
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"categorical: there is nothing to choose from in {describe((x,))}")
    extra = shape_of("categorical", shape)
    if extra:
        x = call("broadcast_to", x, shape=(*extra, *x.shape))
    k = _where_drawn(x.backend)
    key, offset = _generator("categorical", generator).take(_words("categorical", k, x.shape, x.dtype))
    return call("categorical", wrap(lift(x, k), k), key=key, offset=offset)


def dropped(x: FloatTensor, p: float, generator: Generator | None) -> FloatTensor:
    """Each element 0 with probability ``p``, and divided by ``1 - p`` otherwise."""
    k = _where_drawn(x.backend)
    key, offset = _generator("dropout", generator).take(_words("dropout", k, x.shape, x.dtype))
    return call("dropout", x if x.backend is k else wrap(lift(x, k), k), key=key, offset=offset, p=p)[0]


__all__ = [
    "Generator", "bernoulli", "categorical", "choice", "default_generator", "fork", "get_state", "integers", "normal",
    "permutation", "seed", "set_state", "uniform",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise missing_name("backburn.random", name)
