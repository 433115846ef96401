"""Products of matrices by cuBLASLt, through ctypes: what CuPy has no binding of, and what a CUDA graph can record.

cuBLASLt is asked once for each kind of product which of its algorithms to take, and from then on is only told to run
it. It counts by columns. The numbers below are those of ``cublasLt.h``, which no release changes; a test compares them
with the header where that is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import cupy
import numpy as np

#: Bytes that an algorithm may use beside its operands: what NVIDIA recommends for the largest devices.
WORKSPACE = 32 << 20
#: The alignment of memory, in bytes, beyond which it makes no difference.
ALIGNMENT = 256
#: That of so many operands, each aligned as far as it matters.
ALIGNED = {count: (ALIGNMENT,) * count for count in (3, 4)}
#: The versions of CUDA whose interface this is.
VERSIONS = (12, 13)

SUCCESS, INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED = 0, 7, 8, 15
#: What it may answer where it has no algorithm. Which of them, its versions do not agree on.
NONE_KNOWN = (INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED)
#: cudaDataType_t and cublasComputeType_t.
TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
COMPUTE_FLOAT, COMPUTE_FLOAT_BY_TF32, COMPUTE_DOUBLE = 68, 77, 70
#: cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t and cublasLtMatmulPreferenceAttributes_t.
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
BATCH_COUNT, BATCH_STEP = 5, 6
MAX_WORKSPACE, REDUCTION_SCHEMES, ALIGNMENT_A, ALIGNMENT_B, ALIGNMENT_C, ALIGNMENT_D = 1, 3, 5, 6, 7, 8
#: cublasLtEpilogue_t: nothing more, a number added to each row, or each row of the left operand summed.
NOTHING, ADD_BIAS, SUM_LEFT = 1, 4, 256
#: cublasLtReductionScheme_t, how parts of a sum are added up: in any way, or in the type that is computed in rather
#: than in that of a 16-bit result.
ADDED_ANYHOW, ADDED_WIDE = 7, 2


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class CUBLASError(RuntimeError):
    """A function of cuBLASLt has failed."""


# ---- the library ----

_P, _I, _S, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _I, _I),
    "cublasLtMatmulDescSetAttribute": (_P, _I, _P, _S),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatrixLayoutCreate": (_P, _I, ctypes.c_uint64, ctypes.c_uint64, _L),
    "cublasLtMatrixLayoutSetAttribute": (_P, _I, _P, _S),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, _I, _P, _S),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, _I, _P, _P),
    "cublasLtMatmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _S, _P),
}


@functools.cache
def library() -> Any:
    """The library, or None where none of CuPy's version of CUDA is installed, or its interface is not known here."""
    wanted = cupy.cuda.runtime.runtimeGetVersion() // 1000
    for found in _candidates(wanted) if wanted in VERSIONS else ():
        if hasattr(found, "cublasLtGetVersion"):
            found.cublasLtGetVersion.restype = _S
            if found.cublasLtGetVersion() // 10000 == wanted:
                for name, arguments in _SIGNATURES.items():
                    function = getattr(found, name)
                    function.argtypes, function.restype = arguments, _I
                return found
    return None


def _candidates(version: int) -> Iterator[Any]:
    """The library as CuPy finds those that it uses, and as the system does."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        yield ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, OSError, RuntimeError):  # which is also what its own errors are
        pass
    for name in (f"libcublasLt.so.{version}", f"cublasLt64_{version}.dll"):
        with contextlib.suppress(OSError):
            yield ctypes.CDLL(name)


def words() -> str:
    """The library's version; where there is none, what that means."""
    found = library()
    if found is None:
        return "missing: CuPy's cuBLAS does the products, and no step with one is recorded"
    number = int(found.cublasLtGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def call(name: str, *arguments: Any) -> None:
    """Call a function; raises :class:`CUBLASError` unless it succeeds."""
    if status := getattr(library(), name)(*arguments):
        raise CUBLASError(f"{name} fails with cublasStatus_t {status}")


@functools.cache
def handle(device: int) -> int:
    """The library's handle of a device; made by the first product, since making it cannot be recorded."""
    with cupy.cuda.Device(device):
        return _made("cublasLtCreate")


def _made(name: str, *arguments: Any) -> int:
    """What a function makes and puts in the place that is its first argument."""
    made = _P()
    call(name, ctypes.addressof(made), *arguments)
    assert made.value is not None
    return made.value


def _set(name: str, of: int, attribute: int, value: Any) -> None:
    call(f"cublasLt{name}SetAttribute", of, attribute, ctypes.addressof(value), ctypes.sizeof(value))


# ---- products ----


#: The rows and columns of a product, the length of its sums, and how many products there are.
Sizes = tuple[int, int, int, int]


class Layout(NamedTuple):
    """How an operand lies by columns, or several, ``step`` elements apart; ``transposed`` if it is to be taken so."""

    leading: int
    step: int
    transposed: bool


class Kind(NamedTuple):
    """What an algorithm is chosen by: all of a product but where its operands are."""

    device: int
    rows: int
    columns: int
    length: int
    batch: int
    left: Layout
    right: Layout
    dtype: str
    compute: int
    epilogue: int
    alignments: tuple[int, ...]
    result: str  # the dtype of the product


def multiply(
    device: int, places: tuple[int, ...], left: Layout, right: Layout, sizes: Sizes, dtype: str, tf32: bool,
    result: str, epilogue: int = NOTHING,
) -> bool:  # fmt: skip
    """``out = left @ right``, all by columns; False if it cannot be.

    ``places`` are the addresses of the operands, of ``out``, and for any ``epilogue`` that of the numbers that it adds
    to the rows or sums up, one for each row. ``out`` lies without gaps, and is of the dtype ``result``, as are these
    numbers. The work goes to the current stream.
    """
    if library() is None:
        return False
    aligned = not functools.reduce(operator.or_, places) % ALIGNMENT
    alignments = ALIGNED[len(places)] if aligned else tuple(map(alignment, places))
    kind = Kind(device, *sizes, left, right, dtype, compute_type(dtype, tf32), epilogue, alignments, result)
    return plan(kind).run(*places)


def compute_type(dtype: str, tf32: bool) -> int:
    """What products of a dtype are computed in: never in fewer than 32 bits."""
    if dtype == "float64":
        return COMPUTE_DOUBLE
    return COMPUTE_FLOAT_BY_TF32 if tf32 and dtype == "float32" else COMPUTE_FLOAT


def alignment(address: int) -> int:
    """The largest power of two that divides an address, as far as it matters.

    >>> alignment(1024), alignment(520), alignment(6)
    (256, 8, 2)
    """
    return min(address & -address, ALIGNMENT)


class Plan:
    """The descriptors of a kind of product, and the algorithm for it."""

    def __init__(self, kind: Kind) -> None:
        self._destroy: list[tuple[Any, int]] = []
        self._handle = handle(kind.device)
        self._lock = threading.Lock()
        wide = kind.compute == COMPUTE_DOUBLE
        # The factors 1 and 0, which are read when a product is asked for.
        self._factors = np.array([1, 0], np.float64 if wide else np.float32)
        self._one = self._factors.ctypes.data
        self._zero = self._one + self._factors.itemsize
        self._what = self._kept("MatmulDesc", kind.compute, TYPES["float64" if wide else "float32"])
        for attribute, matrix in ((TRANSPOSE_A, kind.left), (TRANSPOSE_B, kind.right)):
            _set("MatmulDesc", self._what, attribute, _I(matrix.transposed))
        if kind.epilogue != NOTHING:
            _set("MatmulDesc", self._what, EPILOGUE, ctypes.c_uint32(kind.epilogue))
            # Of which, here, only the alignment is looked at.
            _set("MatmulDesc", self._what, BIAS_POINTER, _P(kind.alignments[3]))
        self._left = self._layout(kind, kind.rows, kind.length, *kind.left)
        self._right = self._layout(kind, kind.length, kind.columns, *kind.right)
        whole = (kind.rows, kind.columns, kind.rows, kind.rows * kind.columns)
        self._out = self._layout(kind, *whole, dtype=kind.result)
        self._found = self._choose(kind)

    def _kept(self, what: str, *arguments: Any) -> int:
        made = _made(f"cublasLt{what}Create", *arguments)
        self._destroy.append((getattr(library(), f"cublasLt{what}Destroy"), made))
        return made

    def _layout(
        self, kind: Kind, rows: int, columns: int, leading: int, step: int, transposed: bool = False,
        dtype: str | None = None,
    ) -> int:  # fmt: skip
        """The descriptor of a matrix that is (rows, columns) after it is transposed."""
        lies = (columns, rows) if transposed else (rows, columns)
        made = self._kept("MatrixLayout", TYPES[dtype or kind.dtype], *lies, leading)
        if kind.batch > 1:
            _set("MatrixLayout", made, BATCH_COUNT, ctypes.c_int32(kind.batch))
            _set("MatrixLayout", made, BATCH_STEP, ctypes.c_int64(step))
        return made

    def _choose(self, kind: Kind) -> Heuristic | None:
        """What cuBLASLt takes for the best algorithm; None where it has none."""
        wishes = _made("cublasLtMatmulPreferenceCreate")
        try:
            a, b, d = kind.alignments[:3]
            schemes = ADDED_WIDE if kind.dtype in ("float16", "bfloat16") else ADDED_ANYHOW
            values: Iterable[tuple[int, Any]] = (
                (MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE)), (REDUCTION_SCHEMES, ctypes.c_uint32(schemes)),
                (ALIGNMENT_A, ctypes.c_uint32(a)), (ALIGNMENT_B, ctypes.c_uint32(b)),
                (ALIGNMENT_C, ctypes.c_uint32(d)), (ALIGNMENT_D, ctypes.c_uint32(d)),
            )  # fmt: skip
            for attribute, value in values:
                _set("MatmulPreference", wishes, attribute, value)
            best, count = Heuristic(), _I()
            status = library().cublasLtMatmulAlgoGetHeuristic(
                self._handle, self._what, self._left, self._right, self._out, self._out, wishes, 1,
                ctypes.addressof(best), ctypes.addressof(count),
            )  # fmt: skip
        finally:
            call("cublasLtMatmulPreferenceDestroy", wishes)
        if status not in (SUCCESS, *NONE_KNOWN):
            raise CUBLASError(f"cublasLtMatmulAlgoGetHeuristic fails with cublasStatus_t {status}")
        return best if status == SUCCESS and count.value and best.state == SUCCESS else None

    def run(self, left: int, right: int, out: int, numbers: int | None = None) -> bool:
        """Multiply what lies at these addresses; False if cuBLASLt has no algorithm for it.

        ``numbers`` are the epilogue's.
        """
        best = self._found
        if best is None:
            return False
        size = best.workspace
        # From CuPy's pool, which gives memory of a stream to what comes later on the same stream only.
        workspace = cupy.empty((size,), np.uint8) if size else None
        arguments = (
            self._handle, self._what, self._one, left, self._left, right, self._right, self._zero, out, self._out, out,
            self._out, ctypes.addressof(best), workspace.data.ptr if workspace is not None else 0, size,
            cupy.cuda.get_current_stream().ptr,
        )  # fmt: skip
        if numbers is None:
            call("cublasLtMatmul", *arguments)
        else:
            with self._lock:  # no other thread may put its own in between
                _set("MatmulDesc", self._what, BIAS_POINTER, _P(numbers))
                call("cublasLtMatmul", *arguments)
        return True

    def __del__(self) -> None:
        for destroy, made in self._destroy:
            destroy(made)


#: The plan of a kind of product; the least used are forgotten.
plan = functools.lru_cache(maxsize=4096)(Plan)
