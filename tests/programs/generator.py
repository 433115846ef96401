"""Random programs: lines of Python over tensors that use the whole table of operations.

A program is text, so that a failing one can be printed and run. Every line is computed on the backend ``numpy`` when it
is drawn, so that shapes are known, and lines that raise or give large values are drawn again.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

import backburn as bb
from backburn.errors import BackburnError
from backburn.nn import functional

#: The names that programs use.
NAMES: dict[str, Any] = {"bb": bb, "F": functional, "np": np}

#: Sizes of axes of small arrays: around the widths of vectors and cache lines, and primes.
SIDES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13, 16, 17)
#: Shapes on both sides of the planners' thresholds: joined calls (4,096 elements), parts of stacks and repeated rows
#: (16,384), results of native programs (65,536), pooled memory (256 KiB).
LARGE = (
    *((4095,), (4096,), (4097,), (64, 64), (63, 65), (16, 256), (17, 241), (255, 17), (2, 33, 64)),
    *((16383,), (16384,), (128, 128), (129, 127), (16, 1025), (65, 256), (4, 65, 65)),
    *((65535,), (65537,), (256, 256), (257, 255), (2, 181, 181)),
    *((6, 40, 32), (3, 4, 67, 33), (2, 3, 48, 40), (20, 16, 9, 10)),
)
#: The largest absolute value that a line of floats may give.
MOST = 30.0
#: Inputs are slices of these.
NORMAL = np.random.default_rng(40).normal(size=1 << 19)
UNIFORM = np.random.default_rng(41).random(1 << 19)


@dataclass(frozen=True)
class Value:
    """A value of a program: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether its dtype is a float, so that it is differentiated."""
        return "float" in self.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Input:
    """An argument and its values in each call; integers are below ``high``."""

    value: Value
    high: int = 0
    #: The dtype before widening, to which its values are still rounded.
    rounded: str = ""

    @lru_cache(200)  # noqa: B019 - inputs are immutable, and both runs of a program need these values
    def array(self, seed: int, batch: tuple[int, ...] = ()) -> Any:
        """The values for a call."""
        shape = batch + self.value.shape
        at = zlib.crc32(f"{seed} {self.value.name}".encode())
        if self.value.is_float:
            made = _numbers(NORMAL, shape, at)
            if (dtype := self.rounded or self.value.dtype) == "bfloat16":
                return bb.asarray(made, dtype=bb.bfloat16, backend="numpy").numpy().astype("float64")
            return made.astype(dtype)
        if self.value.dtype == "bool":
            return _numbers(NORMAL, shape, at) < 0.0
        return (_numbers(UNIFORM, shape, at) * self.high).astype(self.value.dtype)

    def tensor(self, seed: int, batch: tuple[int, ...] = (), backend: str = "numpy") -> bb.Tensor:
        """The values for a call, on a backend."""
        return bb.asarray(self.array(seed, batch), dtype=getattr(bb, self.value.dtype), backend=backend)


def _numbers(table: Any, shape: tuple[int, ...], at: int) -> Any:
    """A slice of a table: a generator for each input would take longer than most calls."""
    size = prod(shape)
    first = at % (table.size - size)
    return table[first : first + size].reshape(shape).copy()


@dataclass(frozen=True)
class Line:
    """Statements that compute one value."""

    value: Value
    text: str

    def reads(self) -> set[str]:
        """The names of the values that it reads."""
        return set(_NAME.findall(self.text)) - {self.value.name}


_LOOPED = re.compile(r"( +)(h|h, c) = ")
_NARROW = re.compile(r"\bbb\.b?float(16|32)\b")
_NAME = re.compile(r"\b[vxc]\d+\b")
_READ = re.compile(rf"{_NAME.pattern}(?! = )")


@dataclass(frozen=True)
class Program:
    """Inputs, constants and lines, and the names of the results."""

    inputs: tuple[Input, ...]
    constants: tuple[Input, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]

    def source(self, between: str = "", returns: str = "") -> str:
        """The program as a function of its inputs.

        ``between`` is a statement after each line, and ``returns`` an expression before the results.
        """
        body = [text for line in self.lines for text in _statements(line, between)]
        ends = f"({', '.join(self.results)},)"
        body.append(f"return {returns}, {ends}" if returns else f"return {ends}")
        arguments = ", ".join(x.value.name for x in self.inputs)
        return "\n".join([f"def program({arguments}):", *(f"    {text}" for text in body)])

    def function(self, space: dict[str, Any], between: str = "", returns: str = "") -> Callable[..., Any]:
        """The compiled program; ``space`` has its constants and the names that ``between`` uses."""
        space = {**NAMES, **space}
        exec(_compiled(self.source(between, returns)), space)
        made: Callable[..., Any] = space["program"]
        return made

    def names_in(self, text: str) -> list[str]:
        """The names of values in an expression."""
        return _NAME.findall(text)

    def reading(self, form: str) -> Program:
        """The program with ``form`` applied to each value that a line reads."""
        lines = (replace(x, text=_READ.sub(lambda name: form.format(name[0]), x.text)) for x in self.lines)
        return replace(self, lines=tuple(lines))

    def live(self, also: Collection[str] = ()) -> Program:
        """The program without lines, inputs and constants that neither a result nor ``also`` needs."""
        needed, kept = {*self.results, *also}, []
        for line in reversed(self.lines):
            if line.value.name in needed:
                kept.append(line)
                needed |= line.reads()
        inputs = tuple(x for x in self.inputs if x.value.name in needed)
        constants = tuple(x for x in self.constants if x.value.name in needed)
        return replace(self, inputs=inputs, constants=constants, lines=tuple(reversed(kept)))


@lru_cache(8)
def _compiled(source: str) -> Any:
    """The compiled code of a program, cached because it runs unrecorded and recorded."""
    return compile(source, "<program>", "exec")


def widened(program: Program) -> Program:
    """The program in float64, with inputs of the same values."""

    def wide(v: Value) -> Value:
        return replace(v, dtype="float64") if v.is_float else v

    def of(x: Input) -> Input:
        return replace(x, value=wide(x.value), rounded=x.value.dtype)

    inputs, constants = tuple(map(of, program.inputs)), tuple(map(of, program.constants))
    lines = tuple(Line(wide(line.value), _NARROW.sub("bb.float64", line.text)) for line in program.lines)
    return replace(program, inputs=inputs, constants=constants, lines=lines)


def _statements(line: Line, between: str) -> list[str]:
    """The statements of a line; those of a loop are followed by ``between``, too."""
    found = []
    for text in line.text.split("\n"):
        found.append(text)
        if between and (made := _LOOPED.match(text)):
            found += [f"{made[1]}{between.format(name)}" for name in made[2].split(", ")]
    return [*found, *([between.format(line.value.name)] if between else [])]


@dataclass
class Draw:
    """A program under construction: random choices among its values so far."""

    rng: random.Random
    dtype: str
    is_large: bool
    has_random: bool = True
    inputs: list[Input] = field(default_factory=list)
    constants: list[Input] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=lambda: dict(NAMES))

    # ---- choices ----

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def one(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        """A shape, often with sizes of axes from the program."""
        if self.is_large and self.chance(0.5):
            found: tuple[int, ...] = self.one([s for s in LARGE if ndim is None or len(s) == ndim] or [(3,)])
            if ndim is None or len(found) == ndim:
                return found
        ndim = self.one((0, 1, 1, 2, 2, 2, 3, 3, 4)) if ndim is None else ndim
        sides = [n for v in self.values for n in v.shape if 0 < n < 70] if self.chance(0.6) else []
        made = [self.one(sides or SIDES) for _ in range(ndim)]
        if made and self.chance(0.015):
            made[self.rng.randrange(ndim)] = 0
        while prod(made) > (70000 if self.is_large else 1500):
            made[made.index(max(made))] = 1 + max(made) // 3
        return tuple(made)

    # ---- operands ----

    def new(self, shape: tuple[int, ...], dtype: str | None = None, high: int = 0) -> Value:
        """A new input or constant."""
        kind = self.constants if self.chance(0.25) else self.inputs
        letter = "c" if kind is self.constants else "x"
        made = Input(Value(f"{letter}{len(kind)}", shape, dtype or self.dtype), high)
        kind.append(made)
        self.space[made.value.name] = made.tensor(0)
        if not high:
            self.values.append(made.value)
        return made.value

    def any(self, fits: Callable[[Value], bool] = lambda v: True, kind: str = "float") -> Value | None:
        """A value that fits, often a recent one."""
        found = [v for v in self.values if kind in v.dtype and fits(v)]
        if not found:
            return None
        recent: Value = self.one(found[-3:] if self.chance(0.5) else found)
        return recent

    def array(self, ndim: int, largest: int = 1 << 17) -> Value:
        """A non-empty float array of rank ``ndim``, existing or new."""
        found = self.any(lambda v: len(v.shape) == ndim and 0 < v.size <= largest)
        return found if found is not None and self.chance(0.8) else self.new(self.shape(ndim))

    def of(self, shape: tuple[int, ...], dtype: str | None = None) -> Value:
        """A float array of a shape, existing or new."""
        found = self.any(lambda v: v.shape == shape and v.dtype == (dtype or self.dtype))
        return found if found is not None and self.chance(0.7) else self.new(shape, dtype)

    def indices(self, shape: tuple[int, ...], high: int) -> str:
        """Integers below ``high``: an input, or a list as a constant."""
        if len(shape) == 1 and self.chance(0.4):
            return repr([self.rng.randrange(high) for _ in range(shape[0])])
        known = [x.value.name for x in (*self.inputs, *self.constants) if x.value.shape == shape and 0 < x.high <= high]
        if known and self.chance(0.5):
            return str(self.one(known))
        return self.new(shape, self.one(("int64", "int64", "int32")), high).name

    def partner(self, shape: tuple[int, ...], dtype: str) -> str:
        """An operand that broadcasts with a shape: a value, a new array, or a number."""
        if self.chance(0.2):
            return repr(self.one((0.0, -0.0, 0.5, 2.0, -1.5, 1.0, 3, 0.1)))
        found = self.any(lambda v: v.dtype == dtype and v.size > 0 and _broadcasts(v.shape, shape))
        if found is not None and self.chance(0.75):
            return found.name
        sides = [n if self.chance(0.7) else 1 for n in shape]
        made = sides[self.rng.randrange(len(sides) + 1) if sides and self.chance(0.3) else 0 :]
        return self.new(tuple(made), dtype).name

    # ---- lines ----

    def add(self, text: str) -> bool:
        """Add a line with this expression, or these statements with ``$`` for the value; False if it is rejected."""
        name = f"v{len(self.lines)}"
        text = text.replace("$", name) if "$" in text else f"{name} = {text}"
        try:
            exec(text, self.space)
        except BackburnError:
            return False
        made = self.space[name]
        value = Value(name, tuple(made.shape), str(made.dtype).rpartition(".")[2])
        array = made.numpy()
        if value.size > 300_000 or (value.is_float and not np.all(np.abs(array.astype(np.float64)) < MOST)):
            return False
        self.lines.append(Line(value, text))
        self.values.append(value)
        return True


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False)) and (
        prod(np.broadcast_shapes(a, b)) <= 70000
    )


def program_of(rng: random.Random, *, has_random: bool = True, longest: int = 40, has_large: bool = True) -> Program:
    """A random program of at most ``longest`` lines."""
    from tests.programs.productions import PRODUCTIONS, WEIGHTS

    dtype = rng.choices(["float32", "float64", "float16", "bfloat16"], [70, 22, 4, 4])[0]
    draw = Draw(rng, dtype, is_large=rng.random() < 0.12 and has_large, has_random=has_random)
    for _ in range(rng.randint(1, 3)):
        draw.new(draw.shape())
    count = min(longest, rng.choice((3, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 26, 33, 40)))
    favoured = rng.choices(PRODUCTIONS, WEIGHTS, k=4)  # some programs have many lines of one kind
    with bb.use_backend("numpy"), bb.random.fork(0):
        for _ in range(3 * count):
            if len(draw.lines) >= count:
                break
            make = rng.choice(favoured) if rng.random() < 0.3 else rng.choices(PRODUCTIONS, WEIGHTS)[0]
            text = make(draw)
            if text is not None:
                draw.add(text)
        if not any(v.is_float for v in draw.values):
            draw.add(f"bb.tanh({draw.new(()).name})")
    read = {name for line in draw.lines for name in line.reads()}
    made = [line.value for line in draw.lines if not line.value.dtype.startswith("u")]
    ends = [v.name for v in made if v.name not in read][-4:]
    ends += [v.name for v in made if v.name in read and rng.random() < 0.12]
    rng.shuffle(ends)
    made_of = Program(tuple(draw.inputs), tuple(draw.constants), tuple(draw.lines), tuple(ends)).live()
    if made_of.inputs:
        return made_of
    first = draw.inputs[0] if draw.inputs else Input(Value("x0", (2,), dtype))
    return replace(made_of, inputs=(first,), results=(*made_of.results, first.value.name))
