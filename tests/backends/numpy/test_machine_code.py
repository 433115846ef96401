"""Machine code of passes: bitwise equal to kernels, encoded as a disassembler reads it, executable and not writable."""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product, takewhile
from typing import Any

import capstone
import numpy as np
import pytest
from tests.backends.numpy.test_passes import cases, flat_cases, flat_graph, graph, replayed
from tests.helpers.kernels import BASE, USABLE, needs_kernels, python, use_level
from tests.helpers.loops import run
from tests.helpers.pages import at_the_end, needs_pages
from tests.helpers.planting import plant

import backburn as bb
from backburn.base.errors import ArgumentError, CaptureError
from backburn.nn import functional
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion import limits
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise import fused, runs
from backburn_numpy.machine_code import functions, loops, memory, vectors
from backburn_numpy.machine_code.encoding import Assembler, Memory
from backburn_numpy.machine_code.kernels import LONG, function_code
from backburn_numpy.machine_code.loops import Loop, assemble
from backburn_numpy.programs import formulas, row_loops, tile_code, tile_loops
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

LEVELS = [name for name in USABLE if name in memory.VECTORS]
needs_code = pytest.mark.skipif(bool(memory.missing()) or not LEVELS, reason="needs machine code")
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, -1e-42, 1e-310, 1.0, 89.0, -104.0, 126.0, 0.625, 1e30, -1e30)


@pytest.fixture(params=LEVELS)
def vector(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The width of vectors in bytes, with the kernels of that instruction set."""
    use_level(monkeypatch, request.param)
    return memory.VECTORS[request.param]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use passes of any size, in several portions and tiles."""
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_ROWS", 1)
    monkeypatch.setattr(limits, "MIN_WIDTH", 1)
    monkeypatch.setattr(limits, "MIN_ELEMENTS", 1 << 30)
    monkeypatch.setattr(tuning, "PASS_TILE_BYTES", 1 << 10)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 256)
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", 0)
    monkeypatch.setattr(tuning, "MIN_BYTES_TO_FETCH", 1)
    for cached in (fused._program, formulas.pass_of, function_code):  # they are of one library, with code or without
        cached.cache_clear()
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)
    for cached in (fused._program, formulas.pass_of, function_code):
        cached.cache_clear()


def samples(rng: np.random.Generator, count: int, dtype: Any) -> Any:
    """Values of all magnitudes, and some special ones."""
    x = rng.standard_normal(count) * np.exp(6.0 * rng.standard_normal(count))
    x[: count // 2] = 4.0 * rng.standard_normal(count // 2)
    at = rng.integers(0, count, count // 10 + 1)
    x[at] = rng.choice(SPECIAL, len(at))
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def same(x: Any, y: Any) -> bool:
    """Whether arrays are bitwise equal, up to the bits of NaN, because compilers exchange operands."""
    kind = {4: np.int32, 8: np.int64}[x.itemsize]
    return bool(((x.view(kind) == y.view(kind)) | (np.isnan(x) & np.isnan(y))).all())


# ---- encodings ----

#: Mnemonics of instructions; ``%`` is the letter of the float type and ``#`` that of the integer type.
MNEMONICS = {
    **{name: f"v{name}p%" for name in ("add", "mul", "sub", "min", "div", "max", "and", "or", "xor")},
    **{name: f"vf{sign}{form}p%" for sign, of in (("madd", "fma"), ("msub", "fms"), ("nmadd", "fnma"))
       for form in (213, 231) for name in (f"{of}{form}",)},
    "unpack_high": "vunpckhpd", "add_doubles": "vaddpd", "int_add": "vpadd#", "int_sub": "vpsub#",
}  # fmt: skip
UNARY = {"sqrt": "vsqrtp%", "move": "vmovap%", "load": "vmovup%", "to_float": "vcvtdq2ps", "broadcast": "vbroadcasts%"}
MEMORIES = {
    Memory(0): "[rax]", Memory(12): "[r12]", Memory(4, offset=64): "[rsp + 0x40]",
    Memory(13, 10, 32): "[r13 + r10 + 0x20]", Memory(1, 10): "[rcx + r10]",
}  # fmt: skip


def first_function(code: bytes) -> list[str]:
    """The instructions up to the first return, as text."""
    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    return [x.mnemonic for x in takewhile(lambda x: x.mnemonic != "ret", reader.disasm(code, 0))]


def disassembled(code: bytes) -> list[str]:
    """Instructions as text; fails if some bytes are not instructions."""
    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found = [*reader.disasm(code, 0)]
    assert sum(x.size for x in found) == len(code)
    return [f"{x.mnemonic} {x.op_str}".strip() for x in found]


@pytest.mark.parametrize(("bytes", "size"), [*product((32, 64), (4, 8))])
def test_vector_instructions_disassemble_correctly(bytes: int, size: int) -> None:
    a, expected = Assembler(bytes, size), []
    kind, letter, integer = ("ymm", "zmm")[bytes == 64], "sd"[size == 8], "dq"[size == 8]
    registers = (0, 5, 9, 15) if bytes == 32 else (0, 7, 9, 18, 31)
    for name, text in MNEMONICS.items():
        mnemonic = text.replace("%", letter).replace("#", integer)
        for to, first, second in product(registers, repeat=3):
            a.vector(name, to, first, second)
            expected.append(f"{mnemonic} {kind}{to}, {kind}{first}, {kind}{second}")
        for to, (place, where) in product(registers, MEMORIES.items()):
            a.vector(name, to, registers[-1 - registers.index(to)], place)
            first = registers[-1 - registers.index(to)]
            expected.append(f"{mnemonic} {kind}{to}, {kind}{first}, {kind}word ptr {where}")
    for name, text in UNARY.items():
        for to, (place, where) in product(registers, MEMORIES.items()):
            a.vector(name, to, 0, place)
            word = {4: "dword", 8: "qword"}[size] if name == "broadcast" else f"{kind}word"
            expected.append(f"{text.replace('%', letter)} {kind}{to}, {word} ptr {where}")
    for to, (place, where) in product(registers, MEMORIES.items()):
        a.vector("store", to, 0, place)
        expected.append(f"vmovup{letter} {kind}word ptr {where}, {kind}{to}")
    for to, x in product(registers, repeat=2):
        for name, text in (("left", "vpsll"), ("right_unsigned", "vpsrl"), ("right", "vpsra")):
            if (name, size) != ("right", 8):
                a.shift(name, to, x, 23)
                expected.append(f"{text}{integer} {kind}{to}, {kind}{x}, 0x17")
    found = [x.replace("ymmword", f"{kind}word").replace("zmmword", f"{kind}word") for x in disassembled(a.finished())]
    assert found == expected


def test_masked_instructions_disassemble_correctly() -> None:
    a = Assembler(64, 4)
    a.vector("load", 17, 0, Memory(8, 10), mask=1, zeroing=True)
    a.vector("store", 17, 0, Memory(8, 10), mask=1)
    a.vector("add", 18, 3, 18, mask=1)
    a.vector("fma213", 18, 19, Memory(1), splat=True)
    a.vector("select", 20, 21, 2, mask=3)
    a.vector("scale", 22, 17, 9)
    a.vector("scale", 3, 30, Memory(1), splat=True)
    a.vector("compare", 2, 25, 9, immediate=17)
    for name, to, first, second in (("or", 2, 3, 4), ("xor", 5, 5, 5), ("test", 6, 0, 6), ("from", 1, 0, 0)):
        a.masks(name, to, first, second)
    a.vector("extract_half", 17, 0, 1, immediate=1)
    a.vector("narrow_one", 0, 0, 0, bytes=16)
    a.vector("widen", 20, 0, 19)
    a.vector("to_half", 25, 0, 18, immediate=0)
    a.vector("from_half", 18, 0, 25)
    a.prefetch(Memory(13, 10, 64), is_written=False)
    a.prefetch(Memory(0, 10, 1 << 14), is_written=True)
    assert disassembled(a.finished()) == [
        "vmovups zmm17 {k1} {z}, zmmword ptr [r8 + r10]", "vmovups zmmword ptr [r8 + r10] {k1}, zmm17",
        "vaddps zmm18 {k1}, zmm3, zmm18", "vfmadd213ps zmm18, zmm19, dword ptr [rcx]{1to16}",
        "vblendmps zmm20 {k3}, zmm21, zmm2", "vscalefps zmm22, zmm17, zmm9",
        "vscalefps zmm3, zmm30, dword ptr [rcx]{1to16}", "vcmplt_oqps k2, zmm25, zmm9", "korw k2, k3, k4",
        "kxorw k5, k5, k5", "kortestw k6, k6", "kmovw k1, eax", "vextractf64x4 ymm1, zmm17, 1",
        "vcvtsd2ss xmm0, xmm0, xmm0", "vcvtps2pd zmm20, ymm19", "vcvtps2ph ymm18, zmm25, 0", "vcvtph2ps zmm18, ymm25",
        "prefetcht0 byte ptr [r13 + r10 + 0x40]", "prefetchw byte ptr [rax + r10 + 0x4000]",
    ]  # fmt: skip
    a = Assembler(32, 4)
    a.vector("masked_load", 9, 15, Memory(8, 10))
    a.vector("masked_store", 9, 15, Memory(8, 10))
    a.select_by_sign(8, 9, 10, 11)
    a.signs(0, 12)
    a.vector("extract", 9, 0, 1, immediate=1)
    a.vector("odd", 1, 0, 9, bytes=16)
    a.vector("store_one", 3, 0, Memory(0), bytes=16)
    a.vector("store_double", 3, 0, Memory(0), bytes=16)
    a.vector("add_double", 3, 3, Memory(4, offset=32), bytes=16)
    a.vector("mul_double", 0, 0, Memory(4, offset=32), bytes=16)
    a.low_bits(0, 0, 6)
    a.multiply(6, 6, 4096)
    a.with_number(4, 11, -64)
    a.with_number(0, Memory(7, offset=80), 4096)
    a.vector("to_half", 9, 0, 3, immediate=0)
    a.vector("from_half", 3, 0, 9)
    assert disassembled(a.finished()) == [
        "vmaskmovps ymm9, ymm15, ymmword ptr [r8 + r10]", "vmaskmovps ymmword ptr [r8 + r10], ymm15, ymm9",
        "vblendvps ymm8, ymm9, ymm10, ymm11", "vmovmskps eax, ymm12", "vextractf128 xmm1, ymm9, 1",
        "vmovshdup xmm1, xmm9", "vmovss dword ptr [rax], xmm3", "vmovsd qword ptr [rax], xmm3",
        "vaddsd xmm3, xmm3, qword ptr [rsp + 0x20]", "vmulsd xmm0, xmm0, qword ptr [rsp + 0x20]", "bzhi rax, rax, rsi",
        "imul rsi, rsi, 0x1000",
        "and r11, 0xffffffffffffffc0", "add qword ptr [rdi + 0x50], 0x1000",
        "vcvtps2ph xmm3, ymm9, 0", "vcvtph2ps ymm3, xmm9",
    ]  # fmt: skip


# ---- kernels ----


def operands_of(kernel: str, count: int) -> list[str]:
    """The extents of a kernel's operands."""
    kinds = ["full"] * count
    if kernel.endswith("_number") or kernel == "fill":
        kinds[-1] = "one"
    if kernel.startswith("scale_"):
        kinds[1] = "one"
    return [kinds[0], "one", "one"] if kernel == "clamp" else kinds


def kernels(size: int) -> Iterator[tuple[str, Any]]:
    for name in {**functions.FUNCTIONS, **functions.OF_FLOATS}:
        for suffix in ("", "_number"):
            found = compiled.kernel(name + suffix + ("_double" if size == 8 else ""))
            if found is not None and functions.function_of(name + suffix, size) is not None:
                yield name + suffix, found


def unequal(vector: int, only: tuple[str, ...] = ()) -> list[str]:
    """The kernels whose generated code is not bitwise equal to the C functions."""
    rng, wrong = np.random.default_rng(0), []
    for size, dtype in ((4, np.float32), (8, np.float64)):
        for name, kernel in kernels(size):
            if only and name not in only:
                continue
            for count in (67, 4001):
                kinds = operands_of(name, len(kernel.argtypes) - 2)
                given = [samples(rng, count if kind == "full" else 1, dtype) for kind in kinds]
                wanted, found = np.empty(count, dtype), np.full(count, 7.0, dtype)
                kernel(*map(compiled.address, (wanted, *given)), count)
                numbers = tuple(("array", i + 1) for i in range(len(given)))
                loop = Loop(vector, size, count, ("full", *kinds), ((name, numbers),), (("store", (("made", 0),), 0),))
                run(loop, [found, *given])
                if not same(wanted, found):
                    wrong.append(f"{name} of {size} bytes")
    return wrong


@needs_code
def test_functions_equal_the_kernels_bitwise(vector: int) -> None:
    assert unequal(vector) == []


def unequal_reductions(vector: int, dtype: str) -> list[str]:
    """The reductions whose results differ from the kernels', with the width of a row."""
    rng, size, wrong = np.random.default_rng(1), np.dtype(dtype).itemsize, []
    for width in (*range(25, 68), 96, 1000, 1023, 1024, 1025, 1056, 2048, 2100, 3100):
        x = rng.standard_normal((3, width)).astype(dtype)
        x[rng.random(x.shape) < 0.02] = 0.0
        x[rng.random(x.shape) < 0.02] = -0.0
        if width % 3 == 0:
            x[1, rng.integers(width)] = np.nan
        for name, kind in tile_loops.REDUCTIONS.items():
            if name in tile_loops.LOOPED:
                continue
            wanted, found = np.empty(3, dtype), np.empty(3, dtype)
            kernel: Any = compiled.kernel(name + ("_double" if size == 8 else ""))
            kernel(compiled.address(x), compiled.address(wanted), 3, width)
            run(Loop(vector, size, width, ("row", "full"), (), ((kind, (("array", 1),), 0),)), [found, x], 3)
            if not same(wanted, found):
                wrong.append(f"{name} of {width}")
    return wrong


@needs_code
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_equal_the_kernels_bitwise(vector: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unequal_reductions(vector, dtype) == []
    if vector == 32:
        plant(monkeypatch, loops._Assembly, "_row", "self._turn = i % 2", "self._turn = i // 2")
        monkeypatch.setattr(loops, "_known", type(loops._known)())
        assert unequal_reductions(vector, dtype)


def is_sum_in_order(vector: int) -> bool:
    """Whether a sum of squares is the kernel's beside a product with the exponential of a row's number."""
    x = np.random.default_rng(1).standard_normal((30, 1000)).astype(np.float32)
    squares, stored = x * x, np.empty_like(x)
    kernels: list[Any] = [("exp", (("array", 1),)), ("multiply", (("array", 2), ("array", 2)))]
    kernels += [("add", (("made", i), ("array", 2))) for i in range(1, 9)]
    kernels += [("multiply", (("made", 0), ("made", 9)))]
    outputs = ("sum", (("made", 1),), 0), ("store", (("made", 10),), 3)
    wanted, found, row = np.empty(30, np.float32), np.empty(30, np.float32), np.zeros(30, np.float32)
    kernel: Any = compiled.kernel("sum_rows")
    kernel(compiled.address(squares), compiled.address(wanted), 30, 1000)
    run(Loop(vector, 4, 1000, ("row", "row", "full", "full"), tuple(kernels), outputs), [found, row, x, stored], 30)
    total = squares
    for _ in range(8):
        total = total + x
    assert same(stored, total)
    return same(wanted, found)


@needs_code
def test_sums_are_in_order_beside_what_is_computed_once_for_a_row(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_sum_in_order(vector)
    if vector == 32:
        plant(monkeypatch, vectors, "in_turns", "outputs[turn] == outputs[turn - 1]", "False")
        monkeypatch.setattr(loops, "_known", type(loops._known)())
        assert not is_sum_in_order(vector)


@needs_code
@needs_pages
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_columns_add_four_rows_at_a_time(vector: int, dtype: str) -> None:
    rng, size = np.random.default_rng(3), np.dtype(dtype).itemsize
    kernels = (("multiply", (("array", 2), ("array", 2))),)
    for rows, width in product((1, 2, 3, 4, 5, 8, 11), (1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67)):
        x = rng.standard_normal((rows, width)).astype(dtype)
        sums, wanted = rng.standard_normal(width), np.zeros(width)
        wanted[:] = sums
        loop = Loop(vector, size, width, ("some", "sums", "full"), kernels, (("columns", (("made", 0),), 0),))
        room = np.full(width * size // 64 * 64 + 64, 7, np.uint8)
        held = [at_the_end(room), *map(at_the_end, (sums, x))]
        run(loop, held, rows)
        first = rows % 4 or 4
        for part in (x[:first], *np.split(x[first:], len(x[first:]) // 4 or 1)):
            total = np.zeros(width, dtype)
            for row in part:
                total += row * row
            wanted += total
        assert same(held[1], wanted), (rows, width)


# ---- passes ----


def both(
    function: Callable[..., Any], inputs: list[Any], monkeypatch: pytest.MonkeyPatch, backend: str = "capture(numpy)"
) -> tuple[Any, Any, str]:
    """Results of machine code and of kernels, and the plan of the first."""
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")
    wanted, _ = replayed(function, inputs, backend)
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "1")
    found, captured = replayed(function, inputs, backend)
    return found, wanted, str(captured.plan())


def first_difference(monkeypatch: pytest.MonkeyPatch, count: int) -> str:
    """The first random graph with different results for machine code and kernels; empty if they are all equal."""
    loops_seen = 0

    def shifted(x: Any) -> Any:
        return [bb.exp(x - bb.max(x, axis=1, keepdims=True))]

    try:
        found, wanted, _ = both(shifted, [np.ones((40, 40), np.float32)], monkeypatch)
    except CaptureError as error:
        return str(error)
    if not all(map(same, found, wanted)):
        return "a row less its greatest element"
    for seed, shape, dtype in cases(count):
        threads.set_num_threads((1, 2, 4)[seed % 3])
        function, inputs = graph(seed, shape, dtype)
        try:
            found, wanted, plan = both(function, inputs, monkeypatch)
        except CaptureError as error:
            return str(error)
        loops_seen += plan.count("computed by machine code")
        if not all(map(same, found, wanted)):
            return f"{seed} {shape} {dtype}"
    assert loops_seen > count // 2
    for seed, shape, dtype in flat_cases(count):
        function, inputs = flat_graph(seed, shape, dtype)
        found, wanted, _ = both(function, inputs, monkeypatch)
        if not all(map(same, found, wanted)):
            return f"without rows: {seed} {shape} {dtype}"
    return ""


@needs_code
def test_random_passes_equal_kernels_bitwise(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_difference(monkeypatch, 18) == ""


def norms(which: str, x: Any, scale: Any, bias: Any, grad: Any) -> list[Any]:
    """A norm, and the gradients of its operands."""

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        if which == "alone":
            return functional.layer_norm(x)
        if which == "scale":
            return functional.layer_norm(x, scale)
        if which == "bias":
            return functional.layer_norm(x, bias=bias)
        if which == "root mean square":
            return functional.rms_norm(x, scale)
        if which == "residual":  # a product with the scale, and a sum, which are rounded separately
            return functional.rms_norm(x * 2.0, scale) + x
        if which == "two":
            return functional.layer_norm(x, scale, bias) - functional.layer_norm(x, bias, scale, eps=0.5)
        if which == "between others":  # log(0) past the end of a row is infinite
            return functional.layer_norm(bb.log(x * x) + scale, scale, bias) * 2.0 + x
        return functional.layer_norm(x, scale, bias)

    value, pull = bb.vjp(norm, x, scale, bias)
    return [value, *pull(grad * 2.0 + 1.0 if which == "between others" else grad)]


def norm_difference(monkeypatch: pytest.MonkeyPatch, widths: Sequence[int]) -> str:
    """The first norm with different results for machine code and kernels; empty if they are all equal."""
    rng = np.random.default_rng(4)
    kinds = (
        *("all", "alone", "scale", "bias", "root mean square", "residual", "two", "between others", "far"),
        "not finite",
    )
    for width, which in product(widths, kinds):
        x, grad = rng.standard_normal((2, int(rng.integers(4, 14)), width)).astype(np.float32)
        scale, bias = rng.standard_normal((2, width)).astype(np.float32)
        if which == "far":
            x += np.float32(1000.0)
        if which == "not finite":
            x[0], x[1, 0], x[2, -1] = 2.0**121, np.inf, np.nan  # row 0 minus its mean is 0, padding minus it is not
        inputs = [x, scale, bias, grad]
        try:
            found, wanted, plan = both(partial(norms, which), inputs, monkeypatch, "autodiff(capture(numpy))")
        except CaptureError as error:
            return str(error)
        assert "loops and" in plan
        if not all(map(same, found, wanted)):
            return f"{which} of {width}"
    return ""


@needs_code
def test_norms_equal_their_kernels_bitwise(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert norm_difference(monkeypatch, (32, 33, 45, 64, 100, 1021, 1024, 1025, 2050, 3100)) == ""


def shares(which: str, x: Any, y: Any) -> list[Any]:
    """A softmax, or logarithms of one or of sums of exponentials, between other calls."""
    z = x * y
    if which == "softmax":
        return [bb.softmax(z, axis=-1) + y, z]
    if which == "log_softmax":
        return [bb.log_softmax(z, axis=-1) * y]
    if which == "both":
        return [bb.softmax(z, axis=-1) * bb.log_softmax(z, axis=-1) + z]
    if which == "logsumexp":
        return [bb.logsumexp(z, axis=-1), z * 2.0]
    if which == "two":
        return [bb.softmax(z * 2.0, axis=-1) * y - bb.softmax(y * 3.0, axis=-1) * z]
    value, pull = bb.vjp(lambda x: bb.logsumexp(x * y, axis=-1), x)
    return [value, *pull(bb.sum(y, axis=-1))]


def share_difference(monkeypatch: pytest.MonkeyPatch, widths: Sequence[int]) -> str:
    """The first softmax with different results for machine code and kernels; empty if they are all equal."""
    rng = np.random.default_rng(5)
    kinds = ("softmax", "log_softmax", "both", "two", "logsumexp", "gradient")
    for width, which, is_finite in product(widths, kinds, (True, False)):
        x, y = rng.standard_normal((2, int(rng.integers(5, 14)), width)).astype(np.float32)
        x *= np.float32(rng.choice((1.0, 30.0)))
        if not is_finite:
            x[0], x[1, 0], x[2, -1], x[3, 1:], y = -np.inf, np.inf, np.nan, -np.inf, np.abs(y)
        try:
            found, wanted, plan = both(partial(shares, which), [x, y], monkeypatch, "autodiff(capture(numpy))")
        except CaptureError as error:
            return str(error)
        assert "loops and" in plan
        if not all(map(same, found, wanted)):
            return f"{which} of {width}, finite: {is_finite}"
    return ""


@needs_code
def test_softmax_equals_its_kernels_bitwise(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_difference(monkeypatch, (32, 33, 45, 64, 100, 1021, 1024, 1025, 2050)) == ""


#: Faults of softmax in loops, as below.
FAULTS_OF_SHARES: dict[str, tuple[Any, str, str, str]] = {
    "parts are joined with other calls": (
        *(tile_code.TileCode, "_loops", "needed_calls(parts", "joined_calls(parts"),
    ),
    "infinite differences": (row_loops, "split_rows", "if is_bounded", "if False"),
    "one row of powers for all": (row_loops, "split_rows", "key = x, is_bounded", "key = None, is_bounded"),
    "the sum in place of its logarithm": (
        *(row_loops, "split_rows", 'add", made, [make("log"', 'add", made, [make("fill"'),
    ),
    "a power of 2 too many": (functions, "times_power_of_2", "shifted - SHIFT", "shifted - (SHIFT - 1.0)"),
}  # fmt: skip


@needs_code
@pytest.mark.parametrize("fault", FAULTS_OF_SHARES)
def test_faults_of_softmax_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    use_level(monkeypatch, LEVELS[-1])
    if "power of 2" in fault and memory.VECTORS[LEVELS[-1]] == 32:
        pytest.skip("an instruction of AVX-512")
    plant(monkeypatch, *FAULTS_OF_SHARES[fault])
    monkeypatch.setattr(loops, "_known", type(loops._known)())
    assert share_difference(monkeypatch, (45, 100))


#: Faults of norms in loops: the method, the source text that is replaced, and its replacement.
FAULTS_OF_NORMS: dict[str, tuple[Any, str, str, str]] = {
    "a product is rounded": (
        *(vectors.Program, "fms", 'self.make("fms", x, y, z)', 'self.make("sub", self.make("mul", x, y), z)'),
    ),
    "padding past the end counts": (
        *(loops._Assembly, "_join", "[self._scratch + i for i in range(len(registers))]"),
        "[self._scratch, *registers[1:]]",
    ),
    "a mean is a sum": (loops._Assembly, "_end_sum", "1.0 / self._loop.width", "1.0"),
    "moments of the previous row": (loops._Assembly, "_advance", "MOMENTS * loop.size", "loop.size"),
    "one number for all moments": (loops._Assembly, "_numbers", "which * self._loop.size", "0"),
    "moments overlap other values": (tile_code.TileCode, "_lower", "loops.MOMENTS * arrays[Extent.ROW]", "0"),
    "two norms are one": (row_loops, "split_rows", "key = x, options[of]", "key = x, (0.0, False)"),
    "products of columns are sums": (vectors.Body, "_add_to_columns", "len(registers) == 1", "True"),
}  # fmt: skip


@needs_code
@pytest.mark.parametrize("fault", FAULTS_OF_NORMS)
def test_faults_of_norms_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    use_level(monkeypatch, LEVELS[-1])
    if "past the end" in fault and memory.VECTORS[LEVELS[-1]] == 64:
        use_level(monkeypatch, "x86-64-v3")
    plant(monkeypatch, *FAULTS_OF_NORMS[fault])
    monkeypatch.setattr(loops, "_known", type(loops._known)())
    assert norm_difference(monkeypatch, (45, 100))


#: Faults of the generator: the same, and the kernels that show the fault; if empty, random passes show it.
FAULTS: dict[str, tuple[Any, str, str, str, tuple[str, ...]]] = {
    "a bit of registers 8 to 15": (Assembler, "_vex", "(~to & 8) << 4", "128", ()),
    "a bit of registers 16 to 31": (Assembler, "_evex", "| (~to & 16)", "| 16", ()),
    "a product is rounded": (
        *(vectors.Program, "fnma", 'self.make("fnma", x, y, z)', 'self.make("sub", z, self.make("mul", x, y))'),
        ("exp", "gelu"),
    ),
    "NaN of the second": (functions, "kept", "p.compare(x, x, UNORDERED)", "p.compare(y, y, UNORDERED)", ("maximum",)),
    "a stale constant": (vectors.Body, "constant", 'f"constant {content.hex()}"', '"constant"', ("exp",)),
    "two vectors in a register": (vectors.Body, "_new", "self._free.pop()", "self._free[-1]", ("tanh",)),
    "the tail is left out": (loops._Assembly, "_row", "count := rest % lanes", "count := 0", ()),
    "two vectors at one address": (loops._Assembly, "_place", "turn * self._loop.bytes", "0", ()),
    "two vectors in one sum": (loops._Assembly, "_join", "[output.turn % 2 if", "[0 if", ()),
    "the tail is added to another sum": (loops._Assembly, "_row", "self._turn = 1", "self._turn = 0", ()),
    "rows do not advance": (loops._Assembly, "_advance", "loop.width * loop.size", "0", ()),
    "sums of columns are kept": (loops._Assembly, "_clear", '"xor", 0', '"sub", 2', ()),
    "the last columns are left out": (loops._Assembly, "_add_columns", "rest = loop.width % lanes", "rest = 0", ()),
    "sums of columns are of other rows": (loops._Assembly, "code", "ROWS_OF_COLUMNS - 1", "0", ()),
    "sums of portions overlap": (tile_code.TileCode, "_lower", "SUMS if is_sums", "0 if is_sums", ()),
    "sums are kept": (loops._Assembly, "_start", "in self._sums[array]", "in ()", ()),
    "a sum is read before it is known": (tile_loops.Pass, "_assign", "else at + 2", "else at", ()),
    "a value overlaps another": (tile_code.TileCode, "_lower", "last[x] == i and", "last[x] <= i + 1 and", ()),
    "all values at one address": (
        *(tile_code.TileCode, "_lower", "Place(-1, free[extent].pop(), self", "Place(-1, 0, self"),
        (),
    ),
}  # fmt: skip


@needs_code
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    *planted, names = FAULTS[fault]
    level = "x86-64-v4" if "16" in fault else "x86-64-v3"
    if level not in LEVELS:
        pytest.skip(f"no kernels for {level}")
    use_level(monkeypatch, level)
    plant(monkeypatch, *planted)
    monkeypatch.setattr(loops, "_known", type(loops._known)())
    assert unequal(memory.VECTORS[level], names) if names else first_difference(monkeypatch, 12)


# ---- memory ----


@needs_code
@needs_pages
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loops_stay_within_their_arrays(vector: int, dtype: str) -> None:
    size, rng = np.dtype(dtype).itemsize, np.random.default_rng(2)
    for width in range(1, 68):
        arrays = [
            rng.standard_normal(shape).astype(dtype) for shape in ((3, width), (3, 1), (width,), (1,), (3, width))
        ]
        x, row, column, one, _ = arrays
        held = [at_the_end(np.zeros((3, width), dtype)), *map(at_the_end, arrays)]
        kernels = (
            ("multiply", (("array", 1), ("array", 2))),
            ("add", (("made", 0), ("array", 3))),
            ("subtract_number", (("made", 1), ("array", 4))),
            ("add", (("made", 2), ("array", 5))),
        )
        kinds = ("full", "full", "row", "column", "one", "full")
        run(Loop(vector, size, width, kinds, kernels, (("store", (("made", 3),), 0),)), held, 3)
        assert same(held[0], (x * row + column - one) + arrays[4])
        flat = Loop(
            vector, size, width, ("full", "full"), (("negative", (("array", 1),)),), (("store", (("made", 0),), 0),)
        )
        run(flat, held[:2], 3)
        assert same(held[0], -x)


def function(x: Any) -> Any:
    y = bb.tanh(x - bb.mean(x, axis=1, keepdims=True))
    return [y * y + 0.5, bb.sum(y, axis=0)]


@needs_code
def test_kernels_compute_if_executable_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((40, 40), np.float32)
    wanted, captured = replayed(function, [x], "capture(numpy)")
    assert "  computed by machine code (" in str(captured.plan())

    def refuse(content: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(memory, "Code", refuse)
    monkeypatch.setattr(memory, "_refused", [])
    monkeypatch.setattr(memory, "_codes", type(memory._codes)())
    monkeypatch.setattr(loops, "_known", type(loops._known)())
    found, captured = replayed(function, [x], "capture(numpy)")
    assert all(map(same, found, wanted))
    assert "machine code" not in str(captured.plan())
    assert "kernels" in str(captured.plan())
    words = "none, kernels are called one by one: the system refuses executable memory: Permission denied"
    assert BASE.libraries["machine code"] == words


@needs_code
def test_single_functions_have_code_unless_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    known = function_code.__wrapped__
    for level in ("x86-64-v3", "x86-64-v4"):
        assert known("exp", 8, 1, level) is not None
        assert known("tanh_slope", 4, 3, level) is not None
        assert known("gelu", 8, 1, level) is None  # its kernel is of float32 only
        assert known("add", 4, 2, level) is None
    assert known("exp", 4, 1, "x86-64") is None
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")
    assert known("exp", 8, 1, "x86-64-v3") is None


@needs_code
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/maps")
def test_code_is_not_writable_and_is_freed_with_its_program() -> None:
    gc.collect()
    before = {*memory._codes}  # of other tests; some may be freed meanwhile
    found, captured = replayed(function, [np.ones((41, 43), np.float32)], "capture(numpy)")
    made = {*memory._codes} - before
    assert made
    for code in memory._codes.values():
        with open("/proc/self/maps") as lines:
            parts = [line.split()[:2] for line in lines]
        own = [
            mode for place, mode in parts if int(place.split("-")[0], 16) <= code.address < int(place.split("-")[1], 16)
        ]
        assert own == ["r-xp"]
    del captured, found, code
    gc.collect()
    assert made.isdisjoint(memory._codes)


@needs_code
def test_the_variable_turns_machine_code_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BASE.libraries["machine code"] in ("AVX2", "AVX-512")
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")
    assert BASE.libraries["machine code"] == "none, kernels are called one by one: BACKBURN_MACHINE_CODE=0"
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "yes")
    with pytest.raises(ArgumentError, match="BACKBURN_MACHINE_CODE='yes': 0 leaves machine code out"):
        memory.missing()


@needs_code
@pytest.mark.slow
@pytest.mark.parametrize("function", [
    lambda x: bb.maximum(x, math.nan), lambda x: bb.minimum(x, math.nan), lambda x: bb.clip(x, -1.0, math.nan),
    lambda x: bb.clip(x, math.nan, 1.0), lambda x: bb.clip(x, 1.0, -1.0),
])  # fmt: skip
def test_bounds_that_are_nan(function: Callable[[Any], Any]) -> None:
    x = bb.asarray(np.random.default_rng(1).normal(size=(600, 512)).astype(np.float32), backend="capture(numpy)")
    recorded = bb.capture(lambda x: bb.sum(function(x * 2.0) + 1.0, axis=1), state=False)
    for _ in range(3):
        found = recorded(x).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan((function(x * 2.0) + 1.0).numpy().sum(1)))
    np.testing.assert_allclose(found, (function(x * 2.0) + 1.0).numpy().sum(1), rtol=1e-5, atol=1e-3)


@needs_code
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_run_the_code() -> None:
    source = """
import os
import backburn as bb
captured = bb.capture(lambda x: bb.tanh(x - bb.mean(x, axis=1, keepdims=True)) * 2.0, state=False)
x = bb.ones((400, 400), backend="capture(numpy)") * 0.5
wanted = [captured(x).tolist() for _ in range(3)][-1]
assert "machine code" in str(captured.plan())
if (child := os.fork()) == 0:
    os._exit(0 if captured(x).tolist() == wanted else 1)
assert os.waitpid(child, 0)[1] == 0
print("equal")
"""
    assert python("-c", source).stdout == "equal\n"


@needs_code
def test_large_formulas_are_machine_code_and_updates_are_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ELEMENTS_ALONE", 0)
    monkeypatch.setattr(limits, "MIN_ELEMENTS", 1)
    x = np.linspace(-2.0, 2.0, 40 * 48, dtype=np.float32).reshape(40, 48)
    found, wanted, plan = both(lambda x: [bb.exp(-bb.square(x)) * x + 1.0], [x], monkeypatch)
    assert "1 loops and 0 kernels" in plan
    assert same(found[0], wanted[0])

    def step(state: Any, x: Any) -> Any:
        return {"w": bb.exp(-bb.square(state["w"])) * 0.9 + x * 0.1}, bb.sum(x)

    train = bb.capture(step, on_fallback="error")
    state = {"w": bb.zeros((40, 48), backend="capture(numpy)")}
    for _ in range(4):
        state, _ = train(state, bb.asarray(x, backend="capture(numpy)"))
    assert " = fuse[square neg exp mul mul add](v0, v1)" in str(train.program)


@needs_code
def test_equal_loops_share_machine_code() -> None:
    loop = Loop(32, 4, 33, ("full", "full"), (("negative", (("array", 1),)),), (("store", (("made", 0),), 0),))
    assert memory.executable(assemble(loop)) is memory.executable(assemble(loop))


@needs_code
@pytest.mark.parametrize("name", sorted(LONG))
def test_unrecorded_functions_have_the_bits_of_kernels(monkeypatch: pytest.MonkeyPatch, vector: int, name: str) -> None:
    rng, tried = np.random.default_rng(8), 0
    operation = {"arctan": "atan", "arctan2": "atan2"}.get(name, name.replace("gelu_tanh", "gelu"))
    count = len(OPERATIONS[operation].operands)
    steps = (slice(None), slice(1, None, 2), slice(None, None, -1))
    for dtype, shape, step in product((np.float32, np.float64), ((70_001,), (41, 1_003), (70, 513)), steps):
        given = [samples(rng, math.prod(shape), dtype).reshape(shape)[step] for _ in range(count)]
        found = runs.run_on_runs(name, *given)
        with monkeypatch.context() as kernels:
            kernels.setattr(runs, "function_code", lambda *_: None)
            expected = runs.run_on_runs(name, *given)
        assert (found is None) is (expected is None)
        if found is not None:
            assert same(found, expected), (dtype, shape, step)
            tried += function_code(name, found.itemsize, count, compiled.level()) is not None
    assert tried >= 7


@needs_code
def test_loops_fetch_the_next_tile_s_elements_once(monkeypatch: pytest.MonkeyPatch, vector: int) -> None:
    made: list[Loop] = []

    def noted(loop: Loop) -> memory.Code:
        made.append(loop)
        return loops.compiled_loop(loop)

    monkeypatch.setattr(tile_loops, "compiled_loop", noted)
    monkeypatch.setattr(row_loops, "SWEEPS", {})  # the softmax is a kernel between loops
    x = np.ones((40, 64), np.float32)

    def function(x: Any, y: Any) -> list[Any]:
        return [bb.softmax(x * 2.0, axis=-1) * y, bb.tanh(y)]

    replayed(function, [x, x + 1.0], "capture(numpy)")
    assert len(made) == 2
    assert {loop.ahead for loop in made} <= {0, 1024}
    count = sum(len(loop.fetched) for loop in made)
    assert count == 4  # the two matrices and the two results
    text = [line for loop in made for line in first_function(assemble(loop))]
    lines = max(64, 4 * vector) // 64
    assert sum("prefetch" in line for line in text) == count * lines
    made.clear()
    monkeypatch.setattr(tuning, "MIN_BYTES_TO_FETCH", x.nbytes + 1)
    replayed(function, [x, x + 1.0], "capture(numpy)")
    assert len(made) == 2
    assert not any(loop.fetched for loop in made)
