"""``NumpyBackend``, whose methods are the functions of the family modules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backburn.backend.contract import Backend, Capabilities
from backburn.backend.quantized import Quantized
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import STORAGES, DType, host_dtypes, qint8
from backburn.base.errors import ArgumentError, BackendMismatchError, BackendUnavailableError, DTypeError
from backburn_numpy import (
    activate,
    alignment,
    arithmetic,
    blas,
    choice,
    compiled,
    conv,
    create,
    decompose,
    fft,
    formulas,
    functions,
    index,
    linalg,
    logic,
    loss,
    memory,
    normalize,
    optimize,
    pool,
    quantize,
    quantized_products,
    random,
    recurrent,
    reduce,
    resample,
    scan,
    sequence,
    shape,
    sort,
    special,
)
from backburn_numpy.quantize import QuantizedArray

Array = Any
FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.integer[Any]]
BoolArray: TypeAlias = NDArray[np.bool_]

#: The modules that define the operations, one per family of the contract.
FAMILIES = (
    create,
    arithmetic,
    functions,
    special,
    logic,
    choice,
    reduce,
    scan,
    sort,
    shape,
    index,
    linalg,
    conv,
    pool,
    resample,
    recurrent,
    alignment,
    sequence,
    decompose,
    fft,
    normalize,
    activate,
    loss,
    random,
    optimize,
    quantize,
    quantized_products,
)


class NumpyBackend(Backend[FloatArray, IntArray, BoolArray, QuantizedArray]):
    """Arrays in host memory, computed by NumPy. There is one instance per policy for quantized operands.

    A float operation on quantized tensors has a float result, or with ``quantized="propagate"`` one quantized by the
    same scheme. The CPU is device 0, and the only one: ``"numpy:0"`` is ``"numpy"``.

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
        """The instruction set of the compiled kernels, and whether they can call OpenBLAS."""
        level = compiled.level()
        without = "NumPy computes; python -m backburn_numpy.compiled compiles them"
        return {
            "kernels": f"compiled for {level}" if level is not None else f"not compiled, or left out: {without}",
            "OpenBLAS": "used by kernels" if blas.product() is not None else "not found: NumPy does some of their work",
        }

    def memory_stats(self) -> Mapping[str, int]:
        """``used`` by live large results, ``held`` for them and for reuse, ``peak``: the most held since a cleanup.

        Results of 256 KiB and more are allocated from recycled memory; smaller ones, copies of the caller's data and
        NumPy's temporaries are not counted.
        """
        return memory.stats()

    def memory_cleanup(self) -> None:
        """Return the memory held for reuse to the system, and reset the peak."""
        memory.cleanup()

    def one_pass(self, formula: Callable[..., Any], x: Array, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """``formula(self, x, *values)``, in one pass over memory if there are kernels for it."""
        is_small = x.__class__ is np.ndarray and x.size < formulas.FEWEST
        found = None if is_small else formulas.one_pass(formula, x, *values, donate=donate)
        return formula(self, x, *values) if found is None else found

    def dtype(self, x: Any, /) -> DType:
        """The dtype of an array; raises for anything else."""
        if x.__class__ is np.ndarray:
            known = _DTYPES.get(x.dtype)
            if known is None:
                raise DTypeError(f"arrays of {x.dtype} are not tensors of backburn")
            return known
        if isinstance(x, Quantized):
            return x.dtype
        hint = ": 0-d results stay arrays; pass out=... to the ufunc" if isinstance(x, np.generic) else ""
        raise BackendMismatchError(f"{type(x).__name__} is no primitive of the numpy backend{hint}")


_DTYPES = host_dtypes()


def _capabilities(propagates: bool) -> Capabilities:
    uses = frozenset({"storage", "arithmetic"})
    fast = uses | {"accelerated"}
    dtypes = {d: fast if d.name in ("float32", "float64") else uses for d in _DTYPES.values()}
    dtypes[qint8] = frozenset({"storage"})
    return Capabilities(dtypes, storages=frozenset(STORAGES), propagates=propagates)


_CAPABILITIES = {"inhibit": _capabilities(False), "propagate": _capabilities(True)}


for _module in FAMILIES:
    for _name, _function in vars(_module).items():
        # An imported helper may happen to have an operation's name.
        if _name in OPERATIONS and getattr(_function, "__module__", "").startswith("backburn_numpy"):
            setattr(NumpyBackend, _name, staticmethod(_function))
for _name in formulas.FORMULAS:
    setattr(NumpyBackend, _name, formulas.in_one_pass(_name, vars(NumpyBackend).get(_name)))
NumpyBackend.quantized_from_parts = staticmethod(quantize.quantized_from_parts)  # type: ignore[method-assign,assignment]
