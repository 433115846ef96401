"""Matrix products by cuBLASLt, through ctypes: CuPy has no bindings for it, and CUDA graphs can record it.

cuBLASLt selects an algorithm once per kind of product, which is then only run. It is column-major. The constants below
are those of ``cublasLt.h``, which releases do not change; a test compares them with the header if installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import cupy
import numpy as np

#: Workspace bytes of an algorithm: what NVIDIA recommends for the largest devices.
WORKSPACE = 32 << 20
#: The alignment of memory, in bytes, beyond which more makes no difference.
ALIGNMENT = 256
#: The CUDA versions with this interface.
VERSIONS = (12, 13)

SUCCESS, INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED = 0, 7, 8, 15
#: The statuses for having no algorithm, which vary between versions.
NONE_KNOWN = (INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED)
#: cudaDataType_t and cublasComputeType_t.
TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1, "complex64": 4, "complex128": 5}
COMPUTE_FLOAT, COMPUTE_FLOAT_BY_TF32, COMPUTE_DOUBLE = 68, 77, 70
#: cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t and cublasLtMatmulPreferenceAttributes_t.
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LEADING = 3, 4, 7, 8, 11, 12
BATCH_COUNT, BATCH_STEP = 5, 6
MAX_WORKSPACE, REDUCTION_SCHEMES, ALIGNMENT_A, ALIGNMENT_B, ALIGNMENT_C, ALIGNMENT_D = 1, 3, 5, 6, 7, 8
#: cublasLtEpilogue_t: none, a bias per row, or sums of the right operand's columns.
NO_EPILOGUE, ADD_BIAS, SUM_RIGHT = 1, 4, 512
#: Epilogues with an auxiliary matrix: a bias per row and GELU, whose operand is written to the matrix; or the gradient
#: of GELU at the matrix, and sums of the result's rows.
ADD_BIAS_AND_GELU, GELU_GRADIENT_AND_SUMS = 164, 208
#: The multiples required of the auxiliary matrix's leading dimension, and of its address in bytes.
AUX_STEP, AUX_ALIGNMENT = 8, 16
#: cublasLtReductionScheme_t, how partial sums are added: in any way, or in the compute type rather than in that of a
#: 16-bit result.
REDUCE_ANY, REDUCE_COMPUTE_TYPE = 7, 2


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm and its requirements."""

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
    """The library for CuPy's CUDA version; None if not installed or if its interface is unknown."""
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
    """The library, found as CuPy finds its own, or by the system."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        yield ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, OSError, RuntimeError):  # also the class of CuPy's own errors
        pass
    for name in (f"libcublasLt.so.{version}", f"cublasLt64_{version}.dll"):
        with contextlib.suppress(OSError):
            yield ctypes.CDLL(name)


def words() -> str:
    """The library's version; if it is missing, the consequences."""
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
    """The library's handle of a device; created by the first product, since its creation cannot be recorded."""
    with cupy.cuda.Device(device):
        return _create("cublasLtCreate")


def _create(name: str, *arguments: Any) -> int:
    """The object that a function creates and stores through its first argument."""
    created = _P()
    call(name, ctypes.addressof(created), *arguments)
    assert created.value is not None
    return created.value


def _set(name: str, of: int, attribute: int, value: Any) -> None:
    call(f"cublasLt{name}SetAttribute", of, attribute, ctypes.addressof(value), ctypes.sizeof(value))


# ---- products ----


#: The rows and columns of a product, the length of its sums, and the batch size.
Sizes = tuple[int, int, int, int]


class Layout(NamedTuple):
    """The column-major layout of an operand, or a batch ``step`` elements apart; may be ``transposed``."""

    leading: int
    step: int
    transposed: bool


class Kind(NamedTuple):
    """The key of an algorithm: all of a product except its operands' addresses."""

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


def compute_type(dtype: str, tf32: bool) -> int:
    """The type to compute products of a dtype in, of at least 32 bits."""
    if dtype in ("float64", "complex128"):
        return COMPUTE_DOUBLE
    return COMPUTE_FLOAT_BY_TF32 if tf32 and dtype == "float32" else COMPUTE_FLOAT


def scale_type(dtype: str) -> str:
    """The dtype of the factors of products of a dtype.

    >>> scale_type("bfloat16"), scale_type("float64"), scale_type("complex64")
    ('float32', 'float64', 'complex64')
    """
    return dtype if dtype in ("float64", "complex64", "complex128") else "float32"


def alignment(address: int) -> int:
    """The largest power of two that divides an address, as far as it matters.

    >>> alignment(1024), alignment(520), alignment(6)
    (256, 8, 2)
    """
    return min(address & -address, ALIGNMENT)


class Plan:
    """The descriptors and the algorithm of a kind of product."""

    def __init__(self, kind: Kind) -> None:
        self._destroy: list[tuple[Any, int]] = []
        self._handle = handle(kind.device)
        self._lock = threading.Lock()
        scale = scale_type(kind.dtype)
        # The factors 1 and 0, which are read when a product is queued.
        self._factors = np.array([1, 0], scale)
        self._one = self._factors.ctypes.data
        self._zero = self._one + self._factors.itemsize
        self._operation = self._descriptor("MatmulDesc", kind.compute, TYPES[scale])
        for attribute, matrix in ((TRANSPOSE_A, kind.left), (TRANSPOSE_B, kind.right)):
            _set("MatmulDesc", self._operation, attribute, _I(matrix.transposed))
        if kind.epilogue != NO_EPILOGUE:
            _set("MatmulDesc", self._operation, EPILOGUE, ctypes.c_uint32(kind.epilogue))
            # Only their alignment matters here.
            _set("MatmulDesc", self._operation, BIAS_POINTER, _P(kind.alignments[3]))
        if len(kind.alignments) > 4:
            _set("MatmulDesc", self._operation, AUX_POINTER, _P(kind.alignments[4]))
            _set("MatmulDesc", self._operation, AUX_LEADING, ctypes.c_int64(kind.rows))
        self._left = self._layout(kind, kind.rows, kind.length, *kind.left)
        self._right = self._layout(kind, kind.length, kind.columns, *kind.right)
        whole = (kind.rows, kind.columns, kind.rows, kind.rows * kind.columns)
        self._out = self._layout(kind, *whole, dtype=kind.result)
        #: The best algorithm, which has to live as long as its address is used; None if there is none.
        self._found = self._find_algorithm(kind)
        self._algorithm = None if self._found is None else ctypes.addressof(self._found)
        self._workspace = 0 if self._found is None else int(self._found.workspace)
        self._multiply, self._set_attribute = library().cublasLtMatmul, library().cublasLtMatmulDescSetAttribute
        self._numbers = _P()
        self._numbers_address = ctypes.addressof(self._numbers)

    def _descriptor(self, what: str, *arguments: Any) -> int:
        created = _create(f"cublasLt{what}Create", *arguments)
        self._destroy.append((getattr(library(), f"cublasLt{what}Destroy"), created))
        return created

    def _layout(
        self, kind: Kind, rows: int, columns: int, leading: int, step: int, transposed: bool = False,
        dtype: str | None = None,
    ) -> int:  # fmt: skip
        """The descriptor of a matrix of (rows, columns) after transposition."""
        lies = (columns, rows) if transposed else (rows, columns)
        created = self._descriptor("MatrixLayout", TYPES[dtype or kind.dtype], *lies, leading)
        if kind.batch > 1:
            _set("MatrixLayout", created, BATCH_COUNT, ctypes.c_int32(kind.batch))
            _set("MatrixLayout", created, BATCH_STEP, ctypes.c_int64(step))
        return created

    def _find_algorithm(self, kind: Kind) -> Heuristic | None:
        """The best algorithm by cuBLASLt's heuristic; None if it has none."""
        preference = _create("cublasLtMatmulPreferenceCreate")
        try:
            a, b, d = kind.alignments[:3]
            schemes = REDUCE_COMPUTE_TYPE if kind.dtype in ("float16", "bfloat16") else REDUCE_ANY
            values: Iterable[tuple[int, Any]] = (
                (MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE)), (REDUCTION_SCHEMES, ctypes.c_uint32(schemes)),
                (ALIGNMENT_A, ctypes.c_uint32(a)), (ALIGNMENT_B, ctypes.c_uint32(b)),
                (ALIGNMENT_C, ctypes.c_uint32(d)), (ALIGNMENT_D, ctypes.c_uint32(d)),
            )  # fmt: skip
            for attribute, value in values:
                _set("MatmulPreference", preference, attribute, value)
            best, count = Heuristic(), _I()
            status = library().cublasLtMatmulAlgoGetHeuristic(
                self._handle, self._operation, self._left, self._right, self._out, self._out, preference, 1,
                ctypes.addressof(best), ctypes.addressof(count),
            )  # fmt: skip
        finally:
            call("cublasLtMatmulPreferenceDestroy", preference)
        if status not in (SUCCESS, *NONE_KNOWN):
            raise CUBLASError(f"cublasLtMatmulAlgoGetHeuristic fails with cublasStatus_t {status}")
        return best if status == SUCCESS and count.value and best.state == SUCCESS else None

    def run(self, left: int, right: int, out: int, numbers: int | None = None, aux: int | None = None) -> bool:
        """Multiply the operands at these addresses; False if cuBLASLt has no algorithm.

        ``numbers`` and ``aux`` are the epilogue's.
        """
        if self._algorithm is None:
            return False
        size = self._workspace
        # From CuPy's pool, which reuses memory only for later work on the same stream.
        workspace = cupy.ndarray((size,), np.uint8) if size else None
        arguments = (
            self._handle, self._operation, self._one, left, self._left, right, self._right, self._zero, out, self._out,
            out, self._out, self._algorithm, workspace.data.ptr if workspace is not None else 0, size,
            cupy.cuda.get_current_stream().ptr,
        )  # fmt: skip
        if numbers is None:
            status = self._multiply(*arguments)
        else:
            with self._lock:  # no other thread may interleave its own
                self._numbers.value = numbers
                status = self._set_attribute(self._operation, BIAS_POINTER, self._numbers_address, 8)
                if aux is not None:
                    _set("MatmulDesc", self._operation, AUX_POINTER, _P(aux))
                status = status or self._multiply(*arguments)
        if status:
            raise CUBLASError(f"cublasLtMatmul fails with cublasStatus_t {status}")
        return True

    def __del__(self) -> None:
        for destroy, created in self._destroy:
            destroy(created)
