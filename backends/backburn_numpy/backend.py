"""``NumpyBackend``, whose methods are the registered implementations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.backend.capturing import Executable
from backburn.backend.contract import Backend, Capabilities
from backburn.base.dtypes import STORAGES, DType, host_dtypes, qint8
from backburn.base.errors import ArgumentError, BackendMismatchError, BackendUnavailableError, DTypeError
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.table import contract_operations
from backburn.programs.ir import Program
from backburn.programs.passes.in_place import STEPS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise import fused
from backburn_numpy.implements import IMPLEMENTATIONS
from backburn_numpy.machine_code import memory as machine_code
from backburn_numpy.ops import quantization
from backburn_numpy.ops.quantization import QuantizedArray
from backburn_numpy.programs import compiling
from backburn_numpy.runtime import blas, memory, mkl, threads

Array = Any
FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.integer[Any]]
BoolArray: TypeAlias = NDArray[np.bool_]


class NumpyBackend(Backend[FloatArray, IntArray, BoolArray, QuantizedArray]):
    """Arrays in host memory, computed by NumPy. There is one instance per policy for quantized operands.

    A float operation on quantized tensors has a float result, or with ``quantized="propagate"`` one quantized by the
    same scheme. The CPU is device 0, and the only one: ``"numpy:0"`` is ``"numpy"``.

    >>> import numpy as np
    >>> from backburn_numpy import NumpyBackend
    >>> k = NumpyBackend()
    >>> k.add(np.array([1.0, 2.0]), 1.0)
    array([2., 3.])
    """

    _instances: ClassVar[dict[tuple[type, str], NumpyBackend]] = {}  # subclasses have their own
    _quantized: str = "inhibit"

    def __new__(cls, quantized: str = "inhibit", device: int = 0) -> NumpyBackend:
        try:
            number = operator.index(device)
        except TypeError:
            raise ArgumentError(f"numpy: a device is a number, not {device!r}") from None
        if number != 0:
            raise BackendUnavailableError(f"numpy:{number}: the CPU is one device, numpy:0 or numpy")
        if quantized not in ("inhibit", "propagate"):
            raise ArgumentError(f"numpy: quantized is inhibit or propagate, not {quantized!r}")
        known = cls._instances.get((cls, quantized))
        if known is None:
            blas.limit()
            known = super().__new__(cls)
            known._quantized = quantized
            known = cls._instances.setdefault((cls, quantized), known)
        return known

    @property
    def spec(self) -> str:
        """``"numpy"``, or ``"numpy(quantized=propagate)"``."""
        return "numpy" if self._quantized == "inhibit" else f"numpy(quantized={self._quantized})"

    @property
    def device(self) -> str:
        """``"cpu"``."""
        return "cpu"

    @property
    def capabilities(self) -> Capabilities:
        """Every dtype of backburn and every scheme; bfloat16 where ``ml_dtypes`` is installed."""
        return _CAPABILITIES[self._quantized]

    @property
    def libraries(self) -> Mapping[str, str]:
        """The kernels in use, their file, the library of matrix products, and the numbers of threads."""
        file, products = compiled.file(), blas.num_threads()
        library = blas.library_sgemm_address()
        is_used = library is not None and blas.sgemm_address() == library
        used = "" if mkl.in_use() is not None else f", {'used' if is_used else 'not used'} by kernels"
        return {
            "kernels": compiled.describe(),
            "machine code": machine_code.describe(),
            **({} if file is None else {"kernel library": file}),
            "BLAS": f"{blas.words()}{used}",
            "threads": f"{threads.num_threads()}, in matrix products {products or 'an unknown number'}",
        }

    def memory_stats(self) -> Mapping[str, int]:
        """Bytes ``used`` by live large results, ``held`` for them and for reuse, and the ``peak`` held since a cleanup.

        Results of 256 KiB and more are allocated from recycled memory; smaller ones, copies of the caller's data and
        NumPy's temporaries are not counted.
        """
        return memory.stats()

    def memory_cleanup(self) -> None:
        """Return the memory held for reuse to the system, and reset the peak."""
        memory.cleanup()

    def fuse(self, formula: Callable[..., Any], x: Array, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """``formula(self, x, *values)``, in one pass over memory if there are kernels for it."""
        is_small = x.__class__ is np.ndarray and x.size < tuning.MIN_ELEMENTS_FOR_FORMULAS
        found = None if is_small else fused.fuse(formula, x, *values, donate=donate)
        return formula(self, x, *values) if found is None else found

    def compile(self, program: Program) -> Executable:
        """A recorded program as native programs and in-place updates of state: :mod:`backburn_numpy.programs`.

        A subclass, which may override operations, compiles as any backend does.
        """
        is_plain = type(self) is NumpyBackend
        mine = (*STEPS, "sgd_step", "adam_step", "take_backward", "fuse")
        has_steps = all(getattr(type(self), name) is getattr(NumpyBackend, name) for name in mine)
        return compiling.compile_program(self, program, is_plain, has_steps)

    def dtype(self, x: Any, /) -> DType:
        """The dtype of an array; raises for anything else."""
        if x.__class__ is np.ndarray:
            known = _DTYPES.get(x.dtype)
            if known is None:
                raise DTypeError(f"arrays of {x.dtype} are not tensors of backburn")
            return known
        if isinstance(x, Quantized):
            return x.dtype
        hint = ""
        if isinstance(x, np.generic):
            hint = ": NumPy's functions return scalars: write the operations of k, or pass out=... for a 0-d array"
        raise BackendMismatchError(f"{type(x).__name__} is not a primitive of the numpy backend{hint}")


_DTYPES = host_dtypes(has_complex=True)


def _capabilities(propagates: bool) -> Capabilities:
    uses = frozenset({"storage", "arithmetic"})
    fast = uses | {"accelerated"}
    dtypes = {d: fast if d.name in ("float32", "float64") else uses for d in _DTYPES.values()}
    dtypes[qint8] = frozenset({"storage"})
    return Capabilities(dtypes, storages=frozenset(STORAGES), propagates=propagates)


_CAPABILITIES = {"inhibit": _capabilities(False), "propagate": _capabilities(True)}


def _attach() -> None:
    """Attach the implementations and the fused operations as methods."""
    for name in (entry.name for entry in contract_operations()):
        found = IMPLEMENTATIONS.get(name)
        if fused.is_fused(name, found is not None):
            setattr(NumpyBackend, name, fused.fused_operation(name, found and found.function))
        elif found is not None:
            setattr(NumpyBackend, name, found.function if found.takes_backend else staticmethod(found.function))
    NumpyBackend.quantized_from_parts = staticmethod(quantization.quantized_from_parts)  # type: ignore[method-assign,assignment]


_attach()
