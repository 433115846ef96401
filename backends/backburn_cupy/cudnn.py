"""Convolutions and attention by cuDNN, through its Python frontend: NVIDIA's package ``nvidia-cudnn-frontend``.

Work is described as a graph, from which cuDNN makes a plan once per kind of call; later calls only pass the addresses
of operands. All of it is optional: if the package or cuDNN is missing, or cuDNN has no plan, the operations are
computed by products (see :func:`found` and :data:`REFUSED`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import cupy
import numpy as np

from backburn_cupy import cublaslt
from backburn_cupy.detect import first_line

#: The oldest cuDNN supported, by its own version number.
OLDEST = 91000
#: The most workspace bytes of a plan.
WORKSPACE = 1 << 30
#: The alignment in bytes that cuDNN requires of operands.
ALIGNMENT = 16
#: cuDNN's library, as loaded by the frontend.
LIBRARY = "cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9"
INSTALL = "pip install 'backburn[cudnn{version}]'"

#: cuDNN's names of the dtypes.
TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
#: Transform algorithms: they lose precision, and spread an infinity to its neighbours as NaN.
TRANSFORMS = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13")

Shape = tuple[int, ...]


class CUDNNError(RuntimeError):
    """A function of cuDNN has failed."""


# ---- the library ----


class Frontend(NamedTuple):
    """The frontend's module, or None, and a description."""

    module: Any
    words: str


@functools.cache
def found() -> Frontend:
    """Look for the frontend, for cuDNN, and for the cuBLASLt that it calls, all of CuPy's version of CUDA."""
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    install = INSTALL.format(version=version)
    try:
        module = importlib.import_module("cudnn")
        number = int(module.backend_version())
    except ModuleNotFoundError:
        return Frontend(None, f"the frontend of cuDNN is not installed: {install}")
    except Exception as error:  # whatever keeps an optional library from loading
        return Frontend(None, f"cuDNN does not load ({first_line(error)}): {install}")
    if number < OLDEST:
        return Frontend(None, f"cuDNN is too old ({number}, where {OLDEST} is needed): {install}")
    made_for = _cuda_of_library()
    if made_for not in (None, version):
        return Frontend(None, f"cuDNN is for CUDA {made_for}, and CuPy for CUDA {version}: {install}")
    if cublaslt.library() is None:  # cuDNN aborts the process if it does not find it
        return Frontend(None, "cuDNN needs cuBLASLt, which is missing")
    try:
        module.destroy_handle(module.create_handle())
    except RuntimeError as error:
        return Frontend(None, f"cuDNN does not start on this device ({first_line(error)})")
    frontend = getattr(module, "__version__", "of an unknown version")
    return Frontend(module, f"{number // 10000}.{number // 100 % 100}.{number % 100}, frontend {frontend}")


def _cuda_of_library() -> int | None:
    """The CUDA version that the loaded cuDNN was built for; None if unknown."""
    try:
        library = ctypes.CDLL(LIBRARY)
        ask = library.cudnnGetCudartVersion
    except (OSError, AttributeError):
        return None
    ask.restype = ctypes.c_size_t
    return int(ask()) // 1000


_thread = threading.local()


def handle(device: int) -> int:
    """This thread's handle for a device, since threads must not share one."""
    handles: dict[int, int] = vars(_thread).setdefault("handles", {})
    if device not in handles:
        with cupy.cuda.Device(device):
            handles[device] = found().module.create_handle()
    return handles[device]


def target(device: int) -> Mapping[str, Any]:
    """The properties that tell a graph which device to run on."""
    return {"handle": handle(device)}


# ---- plans ----


class Kind(Protocol):
    """The key of a plan, hashable: all of a call except its operands' addresses."""

    @property
    def device(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def tf32(self) -> bool: ...

    @property
    def deterministic(self) -> bool: ...

    def describe(self, graph: Any) -> None:
        """Add the operations to a graph; operands and results have ids."""


#: The kinds that cuDNN has no plan for, with its messages.
REFUSED: dict[Kind, str] = {}


def describe_graph(kind: Kind, where: Mapping[str, Any]) -> Any:
    """The graph of ``kind``, complete, and validated by cuDNN as far as possible without a plan."""
    module = found().module
    compute = module.data_type.DOUBLE if kind.dtype == "float64" else module.data_type.FLOAT
    graph = module.pygraph(
        io_data_type=type_of(kind.dtype), intermediate_data_type=compute, compute_data_type=compute, **where
    )
    kind.describe(graph)
    graph.validate()
    graph.build_operation_graph()
    return graph


def type_of(dtype: str) -> Any:
    """A dtype as cuDNN's type."""
    return getattr(found().module.data_type, TYPES[dtype])


def excluded_notes(kind: Kind) -> list[str]:
    """Notes of excluded algorithms: they accumulate in 16 bits, or round float32 operands although not allowed."""
    notes = ["REDUCED_PRECISION_REDUCTION", *TRANSFORMS]
    if kind.dtype in ("float32", "float64") and not kind.tf32:
        notes += ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
    return [*notes, "NONDETERMINISTIC"] if kind.deterministic else notes


class Plan:
    """A graph ready to run, or a record that cuDNN has none."""

    def __init__(self, kind: Kind) -> None:
        module = found().module
        self._device = kind.device
        self._lock = threading.Lock()
        self._graph: Any = None
        self.workspace = 0
        try:
            graph = describe_graph(kind, target(kind.device))
            modes = module.heur_mode
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.deselect_numeric_notes([getattr(module.numerical_note, name) for name in excluded_notes(kind)])
            graph.deselect_workspace_greater_than(WORKSPACE)
            graph.check_support()
            graph.build_plans()
            self.workspace = int(graph.get_workspace_size())
            self._graph = graph
        except module.cudnnGraphNotSupportedError as error:
            REFUSED[kind] = first_line(error)
        except RuntimeError as error:
            raise CUDNNError(f"cuDNN makes no plan: {first_line(error)}") from error

    def run(self, addresses: Mapping[int, int]) -> bool:
        """Run on operands at these addresses, by id, on the current stream; False if there is no plan."""
        if self._graph is None:
            return False
        module, thread_handle = found().module, handle(self._device)
        # From CuPy's pool, which reuses memory only for later work on the same stream.
        workspace = cupy.ndarray((self.workspace,), np.uint8) if self.workspace else None
        module.set_stream(handle=thread_handle, stream=cupy.cuda.get_current_stream().ptr)
        try:
            with self._lock:
                self._graph.execute(
                    dict(addresses), workspace.data.ptr if workspace is not None else 0, handle=thread_handle
                )  # fmt: skip
        except (RuntimeError, module.cudnnGraphNotSupportedError) as error:
            raise CUDNNError(f"cuDNN fails: {first_line(error)}") from error
        return True


#: The plan of a kind of call, in an LRU cache.
plan = functools.lru_cache(maxsize=4096)(Plan)
