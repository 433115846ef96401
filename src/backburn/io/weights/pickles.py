"""Pickles interpreted without executing anything: a small machine for the opcodes of plain data.

Python's reader calls whatever a pickle names. This one builds numbers, strings, tuples, lists and dicts; it looks up
classes and functions in a table of our own functions, and refuses other names or keeps inert stand-ins. The number of
opcodes is limited, and no length is trusted before its bytes are read.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.io.weights.mapped import MappedFile

#: The most opcodes that are read, several times those of the largest published models.
MOST_OPCODES = 2_000_000
_LONGEST_LINE = 1000
_LONGEST_TEXT = 1 << 24
#: The most arguments of a function of tensors.
_MOST_ARGUMENTS = 16
_MARK = object()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "SHORT_BINSTRING", "BINSTRING"}
)
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Stream:
    """The bytes of a part of a file, read in order."""

    def __init__(self, file: MappedFile, start: int, end: int) -> None:
        self.file, self.place, self.end = file, start, end

    def read(self, length: int) -> bytes:
        """The next bytes, fewer at the end. Raises ValueError for more than names and numbers need."""
        if length > _LONGEST_TEXT:
            raise ValueError(f"a text of {length} bytes")
        found = self.file.bytes(self.place, max(0, min(length, self.end - self.place)), "a pickle")
        self.place += len(found)
        return found

    def readline(self) -> bytes:
        """The bytes up to the end of a line, which names a class."""
        start = self.place
        line, found, _ = self.read(_LONGEST_LINE).partition(b"\n")
        if not found:
            raise ValueError("a line without an end")
        self.place = start + len(line) + 1
        return line + found

    def tell(self) -> int:
        """The place in the file."""
        return self.place


@dataclass(frozen=True)
class Known:
    """A class or function that a pickle may name; ``make`` is our replacement, called with the arguments."""

    name: str
    make: Callable[..., Any] | None = None
    value: Any = None


class Foreign:
    """A stand-in for a class or function that a pickle names, and for its results: nothing is called.

    Items that are added as to a dict or list are in ``items``; attributes are dropped.
    """

    __slots__ = ("items", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: dict[Any, Any] = {}


class Machine:
    """Builds the data of pickles in a stream; ``known`` are the names that they may use.

    ``persistent`` returns the value of a reference to data outside the pickle. With ``foreign``, other names become
    :class:`Foreign` objects, and :attr:`met` is the first of them; else they are refused.
    """

    def __init__(
        self,
        where: str,
        known: Mapping[str, Known],
        persistent: Callable[[Any], Any] | None = None,
        foreign: bool = False,
    ) -> None:
        self.where = where
        self.known = known
        self.persistent = persistent
        self.left = MOST_OPCODES
        self.foreign = foreign
        self.met: str | None = None

    def load(self, stream: Stream) -> Any:
        """The data of the next pickle. Raises :class:`FileFormatError` for anything but plain data."""
        stack: list[Any] = []
        memo: list[Any] = []
        try:
            for opcode, argument, _ in pickletools.genops(cast(IO[bytes], stream)):
                self.left -= 1
                if self.left < 0:
                    raise FileFormatError(f"{self.where}: a pickle of more than {MOST_OPCODES} opcodes is not read")
                if opcode.name == "STOP":
                    return _popped(stack)
                self._step(opcode.name, argument, stack, memo)
        except FileFormatError:
            raise
        except Exception as error:  # a damaged pickle may fail anywhere
            words = f"{type(error).__name__}: {error}" if isinstance(error, ValueError) else type(error).__name__
            raise FileFormatError(f"{self.where}: a damaged pickle, near byte {stream.place} ({words:.200})") from error
        raise FileFormatError(f"{self.where}: a pickle without an end")

    def _step(self, name: str, argument: Any, stack: list[Any], memo: list[Any]) -> None:
        """One opcode."""
        if name in ("BINPUT", "LONG_BINPUT"):  # a list, since chosen integers can make a dict slow
            if argument > MOST_OPCODES:
                raise ValueError(f"a value with the memo index {argument}")
            memo.extend([_MARK] * (argument + 1 - len(memo)))
            memo[argument] = _top(stack)
        elif name == "MEMOIZE":
            memo.append(_top(stack))
        elif name in ("BINGET", "LONG_BINGET"):
            if memo[argument] is _MARK:
                raise ValueError(f"no value has the memo index {argument}")
            stack.append(memo[argument])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            items = _marked(stack)
            stack.append(tuple(items))
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple(_popped(stack) for _ in range(count))[::-1])
        elif name == "GLOBAL":
            stack.append(self._named(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            last, first = _popped(stack), _popped(stack)
            are_names = isinstance(first, str) and isinstance(last, str)
            if are_names and len(first) + len(last) > _LONGEST_LINE:  # each stand-in keeps its name
                raise ValueError(f"a name of {len(first) + len(last)} characters")
            stack.append(self._named(f"{first}.{last}" if are_names else ""))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = _popped(stack), _popped(stack)
            stack.append(self._made(function, arguments))
        elif name == "NEWOBJ_EX" and self.foreign:
            _, _, function = _popped(stack), _popped(stack), _popped(stack)
            stack.append(self._made(function, ()))
        elif name == "FROZENSET":
            stack.append(_marked(stack))
        elif name == "BINPERSID" and self.persistent is not None:
            stack.append(self.persistent(_popped(stack)))
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS"):
            self._fill(name, stack)
        elif name == "BUILD":  # attributes, such as the versions of layers that a state dict carries along
            _popped(stack)
            if not isinstance(stack[-1], (dict, Foreign)):
                raise ValueError("attributes of an object that has none")
        elif name == "POP":
            _popped(stack)
        elif name not in ("PROTO", "FRAME"):
            raise FileFormatError(f"{self.where}: a pickle with the opcode {name}, which plain tensors do not need")

    def _fill(self, name: str, stack: list[Any]) -> None:
        """Put items from the stack into the list or dict below them."""
        if name in ("SETITEM", "APPEND"):
            items = [_popped(stack) for _ in range(2 if name == "SETITEM" else 1)][::-1]
        else:
            items = _marked(stack)
        holder = stack[-1]
        if name.startswith("SETITEM"):
            into = holder.items if isinstance(holder, Foreign) else holder
            if not isinstance(into, dict) or len(items) % 2:
                raise ValueError("keys without values, or keys of what is not a dict")
            for key, value in zip(items[::2], items[1::2], strict=True):
                into[self._key(key, len(into))] = value
        elif isinstance(holder, Foreign):
            holder.items.update({str(len(holder.items) + i): item for i, item in enumerate(items)})
        elif isinstance(holder, list):
            holder.extend(items)
        else:
            raise ValueError("items of what is not a list")

    def _named(self, name: str) -> Any:
        """The stand-in for a class or function that the pickle names."""
        if name in self.known:
            return self.known[name]
        self.met = self.met or name
        if not self.foreign:
            raise self.refusal()
        return Foreign(name)

    def refusal(self) -> FileFormatError:
        """The error for a pickle of anything but tensors in dicts and lists, with the first such name."""
        return FileFormatError(
            f"{self.where}: its pickle names {quoted(self.met)}, which is not part of a dict of tensors, and nothing "
            "in it is executed: save a model's state_dict()"
        )

    def _key(self, key: Any, count: int) -> str | bytes | None:
        """The key of a dict; keys other than strings and numbers become unique strings."""
        try:
            return key_of(key)
        except ValueError:
            if not self.foreign:
                raise
            return f"<{key.name[:60] if isinstance(key, Foreign) else type(key).__name__} {count}>"

    def _made(self, function: Any, arguments: Any) -> Any:
        if isinstance(function, Foreign):
            return Foreign(function.name)
        make = function.make if isinstance(function, Known) else None
        if make is None or not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS:
            raise FileFormatError(f"{self.where}: its pickle calls something other than a function of tensors")
        # A memoized value may be passed to many calls, each of which may iterate over it.
        self.left -= sum(len(x) for x in arguments if isinstance(x, (list, tuple, dict)))
        return make(*arguments)


def _popped(stack: list[Any]) -> Any:
    """Remove and return the top of a stack. Raises ValueError for a mark."""
    value = stack.pop()
    if value is _MARK:
        raise ValueError("a mark in the place of a value")
    return value


def _marked(stack: list[Any]) -> list[Any]:
    """All that has been put on the stack since the last mark."""
    for place in range(len(stack) - 1, -1, -1):
        if stack[place] is _MARK:
            items = stack[place + 1 :]
            del stack[place:]
            return items
    raise ValueError("no mark")


def key_of(value: Any) -> str | bytes | None:
    """The key of a dict for a pickle's key: numbers as digits in bytes, which no string equals.

    Python's hash of an integer is the integer, so chosen keys can make a dict take quadratic time; hashes of text are
    random. Raises ValueError for a key that is neither.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and value.bit_length() < 60:
        return b"%d" % value
    raise ValueError("keys that are not strings or numbers")


def key_text(key: str | bytes | None) -> str:
    """A key of :func:`key_of` as part of a tensor's name."""
    return key.decode() if isinstance(key, bytes) else str(key)


def _top(stack: list[Any]) -> Any:
    """The top of a stack, which stays there."""
    value = _popped(stack)
    stack.append(value)
    return value
