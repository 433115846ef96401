"""Instructions of x86-64 as bytes: vectors with VEX (AVX2, FMA) or EVEX (AVX-512), and what loops need of integers."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack
from typing import NamedTuple, TypeAlias

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)


class Memory(NamedTuple):
    """``[base + moved + offset]``: two registers, -1 for no second one, and a number.

    A constant of the code has its label in place of a base.
    """

    base: int
    moved: int = -1
    offset: int = 0
    label: str = ""


#: A register's number, or memory.
Source: TypeAlias = "int | Memory"

#: Vector instructions: the prefix (none, 66, F3, F2 as 0 to 3), the map of opcodes (0F, 0F38, 0F3A as 1 to 3), the
#: opcode, and W. For doubles, a prefix of ``BY_SIZE`` is 66 and a W of ``BY_SIZE`` is 1; with VEX only multiply-adds
#: have a W.
BY_SIZE = -1
VECTOR: dict[str, tuple[int, int, int, int]] = {
    **{name: (BY_SIZE, 1, opcode, BY_SIZE) for name, opcode in {
        "add": 0x58, "mul": 0x59, "sub": 0x5C, "min": 0x5D, "div": 0x5E, "max": 0x5F, "sqrt": 0x51, "and": 0x54,
        "or": 0x56, "xor": 0x57, "compare": 0xC2, "move": 0x28, "load": 0x10, "store": 0x11,
    }.items()},
    **{name: (1, 2, opcode, BY_SIZE) for name, opcode in {
        "fma213": 0xA8, "fma231": 0xB8, "fms213": 0xAA, "fms231": 0xBA, "fnma213": 0xAC, "fnma231": 0xBC,
        "select": 0x65, "scale": 0x2C,
    }.items()},
    "unpack_high": (1, 1, 0x15, 1), "odd": (2, 1, 0x16, 0), "to_float": (0, 1, 0x5B, 0), "widen": (0, 1, 0x5A, 0),
    "extract": (1, 3, 0x19, 0), "extract_half": (1, 3, 0x1B, 1), "narrow_one": (3, 1, 0x5A, 1),
    "store_one": (2, 1, 0x11, 0), "store_double": (3, 1, 0x11, 1), "add_double": (3, 1, 0x58, 1),
    "add_doubles": (1, 1, 0x58, 1), "mul_double": (3, 1, 0x59, 1),
    "to_half": (1, 3, 0x1D, 0), "from_half": (1, 2, 0x13, 0),
}  # fmt: skip
#: Instructions whose opcode depends on the element's size.
SIZED: dict[str, tuple[int, dict[int, int]]] = {
    "int_add": (1, {4: 0xFE, 8: 0xD4}), "int_sub": (1, {4: 0xFA, 8: 0xFB}), "broadcast": (2, {4: 0x18, 8: 0x19}),
    "masked_load": (2, {4: 0x2C, 8: 0x2D}), "masked_store": (2, {4: 0x2E, 8: 0x2F}),
}  # fmt: skip


class Assembler:
    """Bytes of code for vectors of ``bytes`` bytes (32: VEX, 64: EVEX) whose elements have ``size`` bytes."""

    def __init__(self, bytes: int, size: int) -> None:
        self.code = bytearray()
        self.bytes, self.size = bytes, size
        self._is_wide = bytes == 64
        self._labels: dict[str, int] = {}
        #: Where offsets to labels are, the end of their instructions, and the labels.
        self._references: list[tuple[int, int, str]] = []

    def label(self, name: str) -> None:
        """The next instruction has this name."""
        self._labels[name] = len(self.code)

    def data(self, name: str, content: bytes) -> None:
        """Bytes that are not instructions."""
        self.code += bytes(-len(self.code) % min(64, len(content)))
        self.label(name)
        self.code += content

    def finished(self) -> bytes:
        """All bytes, with the offsets to labels in place."""
        for at, end, name in self._references:
            self.code[at : at + 4] = pack("<i", self._labels[name] - end)
        return bytes(self.code)

    def vector(
        self, name: str, to: int, first: int, second: Source, *, immediate: int | None = None, mask: int = 0,
        zeroing: bool = False, splat: bool = False, bytes: int = 0,
    ) -> None:  # fmt: skip
        """A vector instruction; ``splat`` reads one element of memory for all lanes, if vectors are wide."""
        size = self.size
        if name in SIZED:
            group, opcodes = SIZED[name]
            prefix, opcode, w = 1, opcodes[size], BY_SIZE
        else:
            prefix, group, opcode, w = VECTOR[name]
        prefix = int(size == 8) if prefix == BY_SIZE else prefix
        w = int(size == 8) if w == BY_SIZE else w
        length = bytes or self.bytes
        if self._is_wide:
            self._evex(prefix, group, w, opcode, to, first, second, length, mask, zeroing, splat)
        else:
            self._vex(prefix, group, w if name[0] == "f" else 0, opcode, to, first, second, length)
        self._operand(to, second, immediate)

    def shift(self, name: str, to: int, x: int, count: int) -> None:
        """A shift of integers by a constant: ``left``, ``right`` (of a sign), ``right_unsigned``."""
        digit = {"left": 6, "right": 4, "right_unsigned": 2}[name]
        opcode, w = (0x73, 1) if self.size == 8 and name != "right" else (0x72, int(self.size == 8))
        if self._is_wide:
            self._evex(1, 1, w, opcode, digit, to, x, self.bytes, 0, False, False)
        else:
            self._vex(1, 1, 0, opcode, digit, to, x, self.bytes)
        self._operand(digit, x, count)

    def select_by_sign(self, to: int, otherwise: int, x: Source, mask: int) -> None:
        """``x`` where the mask's sign is set (AVX2)."""
        self._vex(1, 3, 0, 0x4A if self.size == 4 else 0x4B, to, otherwise, x, self.bytes)
        self._operand(to, x, mask << 4)

    def masks(self, name: str, to: int, first: int, second: int) -> None:
        """An instruction of masks of 16 bits: ``or``, ``xor``, ``test`` whether all are 0, ``from`` a register."""
        opcode, is_long = {"or": (0x45, 1), "xor": (0x47, 1), "test": (0x98, 0), "from": (0x92, 0)}[name]
        self._vex(0, 1, 0, opcode, to, first, second, 32 if is_long else 16)
        self._operand(to, second, None)

    def signs(self, to: int, x: int) -> None:
        """The signs of a vector's elements as bits of a register (AVX2)."""
        self._vex(int(self.size == 8), 1, 0, 0x50, to, 0, x, self.bytes)
        self._operand(to, x, None)

    def zero_upper(self) -> None:
        """Clear the upper halves of vectors, as required before code without VEX runs."""
        self.code += b"\xc5\xf8\x77"

    def _vex(
        self, prefix: int, group: int, w: int, opcode: int, to: int, first: int, second: Source, length: int
    ) -> None:
        x, b = _high(second)
        self.code.extend((
            0xC4, (~to & 8) << 4 | (x ^ 1) << 6 | (b ^ 1) << 5 | group,
            w << 7 | (~first & 15) << 3 | (length == 32) << 2 | prefix, opcode,
        ))  # fmt: skip

    def _evex(
        self, prefix: int, group: int, w: int, opcode: int, to: int, first: int, second: Source, length: int, mask: int,
        zeroing: bool, splat: bool,
    ) -> None:  # fmt: skip
        if isinstance(second, Memory):
            x, b = _high(second)
        else:
            x, b = second >> 4 & 1, second >> 3 & 1
        self.code.extend((
            0x62, (~to & 8) << 4 | (x ^ 1) << 6 | (b ^ 1) << 5 | (~to & 16) | group,
            w << 7 | (~first & 15) << 3 | 4 | prefix,
            zeroing << 7 | {16: 0, 32: 1, 64: 2}[length] << 5 | splat << 4 | (~first & 16) >> 1 | mask, opcode,
        ))  # fmt: skip

    def _operand(self, reg: int, rm: Source, immediate: int | None) -> None:
        """The bytes after the opcode."""
        code, reg = self.code, (reg & 7) << 3
        where = -1
        if not isinstance(rm, Memory):
            code.append(0xC0 | reg | rm & 7)
        elif rm.label:
            code.append(reg | 5)
            where = len(code)
            code += b"\0\0\0\0"
        elif rm.moved < 0 and rm.base & 7 != RSP:
            code.append(0x80 | reg | rm.base & 7)
            code += pack("<i", rm.offset)
        else:
            index = RSP if rm.moved < 0 else rm.moved
            code += bytes((0x80 | reg | 4, (index & 7) << 3 | rm.base & 7))
            code += pack("<i", rm.offset)
        if immediate is not None:
            code.append(immediate & 255)
        if where >= 0:
            self._references.append((where, len(code), rm.label))  # type: ignore[union-attr]

    # ---- integers of 64 bits ----

    def integer(self, opcode: int, reg: int, rm: Source) -> None:
        """An instruction of a register and a register or memory: ``MOVE``, ``ADD`` and others."""
        x, b = _high(rm)
        self.code += bytes((0x48 | (reg & 8) >> 1 | x << 1 | b, opcode))
        self._operand(reg, rm, None)

    def prefetch(self, place: Memory, is_written: bool) -> None:
        """Load a line of memory into the cache, to be read, or to be written."""
        x, b = _high(place)
        self.code += bytes((0x48 | x << 1 | b, 0x0F, 0x0D if is_written else 0x18))
        self._operand(1, place, None)

    def with_number(self, digit: int, rm: Source, number: int) -> None:
        """``rm`` and a number of 32 bits: 0 adds it, 4 is bitwise and, 5 subtracts it, 7 compares them."""
        x, b = _high(rm)
        self.code += bytes((0x48 | x << 1 | b, 0x81))
        self._operand(digit, rm, None)
        self.code += pack("<i", number)

    def set_number(self, to: int, number: int) -> None:
        """Set a register to an unsigned number of 32 bits."""
        self.code += bytes((*((0x41,) if to & 8 else ()), 0xB8 | to & 7)) + pack("<I", number)

    def multiply(self, to: int, x: int, number: int) -> None:
        """Multiply a register by a number."""
        self.code += bytes((0x48 | (to & 8) >> 1 | x >> 3 & 1, 0x69))
        self._operand(to, x, None)
        self.code += pack("<i", number)

    def shift_right(self, x: int, count: int) -> None:
        """Shift a register right by a number of bits."""
        self.code += bytes((0x48 | x >> 3 & 1, 0xC1, 0xE8 | x & 7, count))

    def low_bits(self, to: int, x: int, count: int) -> None:
        """The lowest bits of a register, as many as another says (BMI2)."""
        self._vex(0, 2, 1, 0xF5, to, count, x, 16)
        self._operand(to, x, None)

    def push(self, registers: Iterable[int]) -> None:
        """Push registers onto the stack."""
        for x in registers:
            self.code += bytes((*((0x41,) if x & 8 else ()), 0x50 | x & 7))

    def pop(self, registers: Iterable[int]) -> None:
        """Pop registers from the stack."""
        for x in registers:
            self.code += bytes((*((0x41,) if x & 8 else ()), 0x58 | x & 7))

    def jump(self, condition: int, name: str) -> None:
        """Jump to a label: always, or under a condition."""
        self.code += bytes((0x0F, condition)) if condition else b"\xe9"
        self._references.append((len(self.code), len(self.code) + 4, name))
        self.code += b"\0\0\0\0"

    def returns(self) -> None:
        """Return to the caller."""
        self.code.append(0xC3)


#: Opcodes for :meth:`Assembler.integer`.
ADD, MOVE, ADDRESS, TEST, XOR, COMPARE, SUBTRACT = 0x03, 0x8B, 0x8D, 0x85, 0x33, 0x3B, 0x2B
#: Conditions of jumps: none, below, equal, not equal, not above.
ALWAYS, BELOW, EQUAL, UNEQUAL, NOT_ABOVE = 0, 0x82, 0x84, 0x85, 0x86


def _high(rm: Source) -> tuple[int, int]:
    """The highest bits of an operand's registers: the index and the base of memory, or 0 and the only register."""
    if isinstance(rm, Memory):
        return (rm.moved >> 3 & 1 if rm.moved >= 0 else 0), (0 if rm.label else rm.base >> 3 & 1)
    return 0, rm >> 3 & 1
