"""Machine code on Windows and macOS: the Windows calling convention, and the calls that allocate executable memory.

Neither system is needed: the tile interpreter is compiled with the Windows calling convention, and fake system
functions record their calls.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

import capstone
import numpy as np
import pytest
from tests.helpers.kernels import BASE, USABLE, needs_kernels, use_level
from tests.helpers.loops import Tile, run

from backburn_numpy import compiled
from backburn_numpy.compiled import build
from backburn_numpy.machine_code import loops, memory
from backburn_numpy.machine_code.loops import Loop

pytestmark = needs_kernels

LEVELS = [name for name in USABLE if name in memory.VECTORS]
GCC = shutil.which("gcc")

#: What the interpreter needs around it. ``watch`` calls a function by the Windows convention (arguments in rcx, rdx, r8
#: and r9) with given values of rbx, rbp, rdi, rsi, r12 to r15 and xmm6 to xmm15, and stores their values afterwards.
AROUND = r"""
#include <stddef.h>
#include <stdint.h>
#include "runtime/thread_pool.h"

void *memset(void *to, int byte, size_t count) {
    for (volatile char *x = to; count--; x++) *x = (char)byte;
    return to;
}
void *memcpy(void *to, const void *from, size_t count) {
    for (size_t i = 0; i < count; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}
int backburn_pool_place(void) { return 0; }
void backburn_pool_run(Task *task, const void *context, int64_t rows, int64_t grain, int threads) {
    (void)grain, (void)threads;
    task(context, 0, rows);
}

__asm__(
    ".globl watch\n"
    "watch:\n"  /* (function, registers, first, second, third, fourth), called by the convention of System V */
    "    push %rbx\n    push %rbp\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n    push %rsi\n"
    "    sub $32, %rsp\n"
    "    mov %rdi, %rax\n    mov %rsi, %r10\n    xchg %rcx, %rdx\n"
    "    mov 0(%r10), %rbx\n    mov 8(%r10), %rbp\n    mov 16(%r10), %rdi\n    mov 24(%r10), %rsi\n"
    "    mov 32(%r10), %r12\n    mov 40(%r10), %r13\n    mov 48(%r10), %r14\n    mov 56(%r10), %r15\n"
    "    movups 64(%r10), %xmm6\n    movups 80(%r10), %xmm7\n    movups 96(%r10), %xmm8\n"
    "    movups 112(%r10), %xmm9\n    movups 128(%r10), %xmm10\n    movups 144(%r10), %xmm11\n"
    "    movups 160(%r10), %xmm12\n    movups 176(%r10), %xmm13\n    movups 192(%r10), %xmm14\n"
    "    movups 208(%r10), %xmm15\n"
    "    call *%rax\n"
    "    mov 32(%rsp), %r10\n"
    "    mov %rbx, 0(%r10)\n    mov %rbp, 8(%r10)\n    mov %rdi, 16(%r10)\n    mov %rsi, 24(%r10)\n"
    "    mov %r12, 32(%r10)\n    mov %r13, 40(%r10)\n    mov %r14, 48(%r10)\n    mov %r15, 56(%r10)\n"
    "    movups %xmm6, 64(%r10)\n    movups %xmm7, 80(%r10)\n    movups %xmm8, 96(%r10)\n"
    "    movups %xmm9, 112(%r10)\n    movups %xmm10, 128(%r10)\n    movups %xmm11, 144(%r10)\n"
    "    movups %xmm12, 160(%r10)\n    movups %xmm13, 176(%r10)\n    movups %xmm14, 192(%r10)\n"
    "    movups %xmm15, 208(%r10)\n"
    "    add $32, %rsp\n"
    "    pop %rsi\n    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbp\n    pop %rbx\n"
    "    ret\n");
"""


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The tile interpreter with the Windows calling convention, for each level with machine code."""
    if GCC is None or not LEVELS or memory.missing():
        pytest.skip("needs GCC and machine code")
    folder, found = tmp_path_factory.mktemp("windows"), {}
    (folder / "around.c").write_text(AROUND)
    for level in LEVELS:
        made = folder / f"{level}.so"
        flags = [*build.FLAGS, *build.LEVELS["x86_64"][level], "-mabi=ms", "-shared"]
        sources = build.FOLDER / "program" / "tile_interpreter.c", folder / "around.c"
        subprocess.run([GCC, *flags, *map(str, sources), "-o", str(made)], check=True)
        found[level] = ctypes.CDLL(str(made))
    return found


#: The bytes of the callee-saved registers on Windows.
KEPT = 8 * 8 + 16 * 10
NAMES = [*("rbx", "rbp", "rdi", "rsi", "r12", "r13", "r14", "r15"), *(f"xmm{i}" for i in range(6, 16))]


def changed(library: ctypes.CDLL, function: Any, numbers: tuple[int, int], *arguments: int) -> set[str]:
    """The registers that a function does not preserve; rdi and rsi start with ``numbers``."""
    registers = np.random.default_rng(0).integers(0, 256, KEPT, np.uint8)
    registers[16:32].view(np.int64)[:] = numbers
    before = registers.copy()
    watch = library.watch
    watch.restype, watch.argtypes = None, [ctypes.c_void_p] * 6
    watch(function, compiled.address(registers), *arguments)
    parts = [slice(8 * i, 8 * i + 8) if i < 8 else slice(16 * i - 64, 16 * i - 48) for i in range(len(NAMES))]
    return {name for name, x in zip(NAMES, parts, strict=True) if bytes(registers[x]) != bytes(before[x])}


def loop_of_many_registers(vector: int, size: int) -> tuple[Loop, list[Any]]:
    """A loop that uses many registers, and its arrays."""
    rng, dtype = np.random.default_rng(1), np.float32 if size == 4 else np.float64
    kernels = (
        ("multiply", (("array", 3), ("array", 4))),
        ("silu_backward", (("made", 0), ("array", 3))),
        ("add", (("made", 1), ("array", 5))),
    )
    outputs = (("store", (("made", 2),), 0), ("sum", (("made", 2),), 1), ("max", (("made", 2),), 2))
    arrays = [
        *(np.full(shape, 7.0, dtype) for shape in ((3, 77), (3,), (3,))),
        *(rng.standard_normal(shape).astype(dtype) for shape in ((3, 77), (77,), (3,))),
    ]
    return Loop(vector, size, 77, ("full", "row", "row", "full", "column", "row"), kernels, outputs), arrays


@pytest.mark.parametrize("size", [4, 8])
def test_registers_are_preserved_on_windows(
    size: int, interpreters: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    for level, library in interpreters.items():
        use_level(monkeypatch, level)
        loop, arrays = loop_of_many_registers(memory.VECTORS[level], size)
        run(loop, arrays, 3)
        again = [np.full_like(x, 9.0) for x in arrays[:3]] + arrays[3:]
        tile = Tile(loop, again, 3)
        given = compiled.address(tile.fixed), compiled.address(tile.starts), 0, 1
        assert changed(library, library.backburn_run_tiles, (1, 2), *given) == set()
        assert all(map(np.array_equal, arrays, again))


def test_bare_code_preserves_only_the_registers_of_system_v(
    interpreters: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above would find a caller with another convention."""
    for level, library in interpreters.items():
        use_level(monkeypatch, level)
        tile = Tile(*loop_of_many_registers(memory.VECTORS[level], 4), 3)
        found = changed(library, tile.code.address, (compiled.address(tile.starts), 3), 0, 0, 0, 0)
        assert {"rsi", "xmm6", "xmm7"} <= found <= {"rsi", *(f"xmm{i}" for i in range(6, 16))}


def many_vectors(vector: int, count: int, step: float = 1.0) -> Loop:
    """A loop with ``count`` live vectors: the product of ``x + i * step``."""
    kernels: list[Any] = [("add_number", (("array", 1), ("constant", (i * step).hex()))) for i in range(count)]
    kernels += [("multiply", (("made", i if i == 0 else count + i - 1), ("made", i + 1))) for i in range(count - 1)]
    outputs = (("store", (("made", len(kernels) - 1),), 0),)
    return Loop(vector, 4, 100, ("full", "full"), tuple(kernels), outputs)


@pytest.mark.parametrize("vector", [32, 64])
def test_stacks_grow_by_less_than_a_page_at_a_time(vector: int) -> None:
    """Windows extends a stack only by the next page, when it is touched."""
    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    for count, is_large in ((20, False), (200, True)):
        found = []
        for x in reader.disasm(loops.assemble(many_vectors(vector, count)), 0):
            found.append(f"{x.mnemonic} {x.op_str}")
            if x.mnemonic.startswith("v") or x.op_str.startswith("rcx"):
                break
        grown = found[found.index("and rsp, 0xffffffffffffffc0") + 1 : -1]
        *before, last = (int(x.removeprefix("sub rsp, "), 16) for x in grown if x.startswith("sub"))
        assert (sum(before) + last > 4096) is is_large
        assert 0 <= last < 4032
        assert {*before} == ({4032} if is_large else set())
        assert grown[1::2] == ["test qword ptr [rsp], rsp"] * len(before)


@pytest.mark.skipif(bool(memory.missing()) or not LEVELS, reason="needs machine code")
def test_loops_with_large_frames_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in LEVELS:
        use_level(monkeypatch, level)
        x = np.random.default_rng(2).uniform(0.0, 0.5, (3, 100)).astype(np.float32)
        found, wanted = np.zeros_like(x), x * 1.0
        run(many_vectors(memory.VECTORS[level], 200, 2.0**-7), [found, x], 3)
        for i in range(1, 200):
            wanted = wanted * (x + np.float32(i * 2.0**-7))
        assert np.array_equal(found, wanted)


# ---- memory on Windows ----


class Function:
    """A fake system function: it checks and records its arguments, and returns ``answer``."""

    def __init__(self, name: str, calls: list[Any], answer: Any) -> None:
        self.name, self.calls, self.answer = name, calls, answer
        self.argtypes: list[Any] = []
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        assert len(arguments) == len(self.argtypes)
        for kind, x in zip(self.argtypes, arguments, strict=True):
            kind.from_param(x)
        answer = self.answer(*arguments) if callable(self.answer) else self.answer
        self.calls.append((self.name, *arguments))
        return answer


class Windows:
    """Fake memory functions of ``kernel32`` on memory of this process, with their recorded calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
        self.calls: list[Any] = []
        self.memory = ctypes.create_string_buffer(4096)
        self.address = ctypes.addressof(self.memory)
        #: The contents of memory when its protection changed.
        self.protected = b""

        def protect(address: int, length: int, _: int, before: Any) -> int:
            self.protected = self.memory.raw[:length]
            return 1

        default = {"VirtualAlloc": self.address, "VirtualProtect": protect, "GetCurrentProcess": 2**64 - 1,
                   "FlushInstructionCache": 1, "VirtualFree": 1}  # fmt: skip
        for name, answer in {**default, **answers}.items():
            setattr(self, name, Function(name, self.calls, answer))

        def library(name: str, use_last_error: bool) -> Any:
            assert (name, use_last_error) == ("kernel32", True)
            return self

        monkeypatch.setattr(ctypes, "WinDLL", library, raising=False)
        monkeypatch.setattr(ctypes, "get_last_error", lambda: 1655, raising=False)
        monkeypatch.setattr(
            ctypes, "WinError", lambda number: OSError(number, "Dynamic code is blocked"), raising=False
        )


def test_code_on_windows_is_written_and_then_made_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Windows(monkeypatch)
    made = memory._WindowsMemory(b"\x90\x90\xc3")
    assert made.address == system.address
    assert system.protected == b"\x90\x90\xc3"
    process = 2**64 - 1
    (allocated, protected, current, flushed) = system.calls
    assert allocated == ("VirtualAlloc", None, 3, 0x3000, 0x04)  # MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE
    assert protected[:4] == ("VirtualProtect", system.address, 3, 0x20)  # PAGE_EXECUTE_READ
    assert current == ("GetCurrentProcess",)
    assert flushed == ("FlushInstructionCache", process, system.address, 3)
    del made
    gc.collect()
    assert system.calls[4:] == [("VirtualFree", system.address, 0, 0x8000)]  # MEM_RELEASE


@pytest.mark.parametrize(
    ("answers", "freed"), [({"VirtualAlloc": None}, 0), ({"VirtualProtect": 0}, 1), ({"FlushInstructionCache": 0}, 1)]
)
def test_windows_refuses_memory(answers: dict[str, Any], freed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Windows(monkeypatch, **answers)
    with pytest.raises(OSError, match="Dynamic code is blocked"):
        memory._WindowsMemory(b"\xc3")
    gc.collect()
    assert [name for name, *_ in system.calls].count("VirtualFree") == freed


def test_code_uses_the_memory_functions_of_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Windows(monkeypatch)
    with monkeypatch.context() as there:
        there.setattr(sys, "platform", "win32")
        assert memory.Code(b"\xc3").address == system.address
    assert memory.Code(b"\xc3").address != system.address


# ---- memory on macOS ----


def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the system has refused."""
    monkeypatch.setattr(memory, "_refused", [])
    monkeypatch.setattr(memory, "_codes", type(memory._codes)())


@pytest.mark.parametrize(("flags", "failed"), [(0x1000, 0), (0x22000001, 0), (0x1000, -1)])
def test_code_on_macos_is_executed_unless_all_code_is_signed(
    flags: int, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def tell(process: int, operation: int, to: Any, size: int) -> int:
        assert (process, operation, size) == (os.getpid(), 0, 4)
        to._obj.value = flags
        return failed

    class Library:
        csops = Function("csops", calls, tell)
        mprotect = Function("mprotect", calls, 0)

    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno=False: Library)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(compiled, "level", lambda: "x86-64-v3")
    unknown(monkeypatch)
    is_refused = (flags, failed) == (0x1000, 0)
    words = "the system refuses executable memory: the process executes signed code only"
    assert memory.missing() == (words if is_refused else "")
    assert [name for name, *_ in calls] == ["csops", *([] if is_refused else ["mprotect"])]
    if not is_refused:
        assert calls[1][2:] == (1, 5)  # PROT_READ | PROT_EXEC


def test_other_systems_call_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    words = "none, kernels are called one by one: it is for x86-64 on Linux, macOS and Windows"
    assert BASE.libraries["machine code"] == words
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert BASE.libraries["machine code"] == words
