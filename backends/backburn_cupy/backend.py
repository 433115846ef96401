"""``CupyBackend``, to which the family modules' functions are attached with the first instance."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

from backburn.backend.capturing import Executable, Step
from backburn.backend.contract import Backend, Capabilities
from backburn.base.dtypes import STORAGES, DType, FloatDType, as_dtype, host_dtypes, qint8
from backburn.base.errors import (
    ArgumentError,
    BackendMismatchError,
    CaptureError,
    DeviceMemoryError,
    DTypeError,
)
from backburn.ops.bodies.quantized import Quantized
from backburn.ops.bodies.quantized_moves import take_quantized
from backburn.ops.table import OPERATIONS, contract_operations
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Program
from backburn_cupy import detect
from backburn_cupy.kernels.attach import attach
from backburn_cupy.kernels.fused import fuse
from backburn_cupy.kernels.runner import CupyRunner, Runner

#: The modules that define the operations. They import CuPy, and so are imported with the first instance.
FAMILIES = (
    "creation", "elementwise", "complex_numbers", "special", "selection", "reduce", "scan", "sort", "shape", "index",
    "linalg", "conv", "attention", "recurrent", "decompositions", "fft",
)  # fmt: skip


class CupyBackend(Backend[Any, Any, Any, Quantized[Any]]):
    """CuPy arrays on one CUDA device, ``cuda:device``.

    ``float_dtype`` is the default dtype of new float tensors. ``allow_tf32`` lets products of float32 matrices round
    their operands to 10 bits, which makes them several times faster. ``deterministic`` makes results reproducible bit
    for bit: sums over indices, whose order otherwise varies, are then slower.

    Work is queued on CuPy's current stream (``with cupy.cuda.Stream(): ...``), and calls return before it is done.
    Raises :class:`BackendUnavailableError` if there is no CuPy, no driver or no such device.

        >>> from backburn_cupy import CupyBackend
        >>> CupyBackend(device=0).spec  # doctest: +SKIP
        'cupy:0'
    """

    _instances: ClassVar[dict[tuple[Any, ...], CupyBackend]] = {}

    def __new__(
        cls,
        device: int = 0,
        float_dtype: FloatDType | str = "float32",
        allow_tf32: bool = False,
        deterministic: bool = False,
    ) -> CupyBackend:
        number, dtype = _device_number(device), as_dtype(float_dtype)
        if not isinstance(dtype, FloatDType):
            raise ArgumentError(f"CupyBackend: float_dtype is a float dtype, not {dtype}")
        key = (cls, number, dtype, bool(allow_tf32), bool(deterministic), os.getpid())
        known = cls._instances.get(key)
        if known is None:
            cupy = detect.load(number)
            attach_families()
            known = super().__new__(cls)
            known._prepare(cupy, number, dtype, bool(allow_tf32), bool(deterministic))
            cls._instances[key] = known
        return known

    def _prepare(self, cupy: Any, device: int, dtype: FloatDType, allow_tf32: bool, deterministic: bool) -> None:
        self._cupy = cupy
        self.number = device
        self._float_dtype = dtype
        self.allow_tf32 = allow_tf32
        self.deterministic = deterministic
        self.process = os.getpid()
        self._recorded: weakref.WeakSet[Any] = weakref.WeakSet()
        self.faults = importlib.import_module("backburn_cupy.faults").Faults.for_device(device)
        #: Runs the fused kernels; None leaves everything to CuPy.
        with cupy.cuda.Device(device):
            self.runner: Runner | None = CupyRunner(cupy, device, self.faults, deterministic)
        self._dtypes = host_dtypes(has_complex=True)  # which are CuPy's, too
        if dtype not in self._dtypes.values():
            raise DTypeError(f"CupyBackend: {dtype} needs the package ml_dtypes: pip install 'backburn[bfloat16]'")
        uses = frozenset({"storage", "arithmetic"})
        dtypes = {d: uses | {"accelerated"} if d.is_floating else uses for d in self._dtypes.values()}
        dtypes[qint8] = frozenset({"storage"})
        self._capabilities = Capabilities(
            dtypes, deterministic=deterministic, capture=True, wide_steps=True, storages=frozenset(STORAGES)
        )
        options = {
            "float_dtype": dtype if dtype.name != "float32" else None,
            "allow_tf32": "true" if allow_tf32 else None,
            "deterministic": "true" if deterministic else None,
        }
        words = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        self._spec = f"cupy:{device}({words})" if words else f"cupy:{device}"
        several = cupy.cuda.runtime.getDeviceCount() > 1
        debug = os.environ.get("BACKBURN_CUPY_DEBUG", "") not in ("", "0")
        if several or debug:
            # Slower variants are set on the instance, over the class, so that no other instance pays for them.
            for name in (
                *(entry.name for entry in contract_operations()),
                "fuse",
                "synchronize",
                "memory_stats",
                "memory_cleanup",
            ):
                setattr(self, name, _guard(self, name, getattr(self, name), debug))

    def __init__(self, *_: Any, **__: Any) -> None:
        """Done by ``__new__``, which may return an existing instance."""

    @property
    def spec(self) -> str:
        """``"cupy:0"``, with all non-default options."""
        return self._spec

    @property
    def device(self) -> str:
        """``"cuda:0"``."""
        return f"cuda:{self.number}"

    @property
    def float_dtype(self) -> FloatDType:
        """The default dtype of new float tensors."""
        return self._float_dtype

    @property
    def capabilities(self) -> Capabilities:
        """Every dtype of backburn; bfloat16 where ``ml_dtypes`` is installed."""
        return self._capabilities if self.runner is not None else replace(self._capabilities, wide_steps=False)

    @property
    def libraries(self) -> Mapping[str, str]:
        """The version of each NVIDIA library in use, or why it is missing and what replaces it; what computes passes.

        Determined once, by this property or by the first operation that would use them.
        """
        from backburn_cupy import cublaslt, cudnn

        with self.device_context():
            passes = "CUDA, a kernel for each pass of a recorded step, on capture(cupy)"
            return {"cuBLASLt": cublaslt.words(), "cuDNN": cudnn.found().words, "passes": passes}

    @classmethod
    def devices(cls) -> list[str]:
        """The available devices, such as ``["cuda:0"]``; none if CUDA cannot be used."""
        try:
            cupy = detect.load(0)
        except ImportError:
            return []
        return [f"cuda:{n}" for n in range(cupy.cuda.runtime.getDeviceCount())]

    def synchronize(self) -> None:
        """Wait for all queued work, and raise errors found on the device."""
        try:
            self._cupy.cuda.Device(self.number).synchronize()
        except Exception as error:
            self._reraise("synchronize", (), error)
        self.faults.check()

    def memory_stats(self) -> Mapping[str, int]:
        """``used`` by arrays, ``held`` by CuPy's pool (those included), ``free`` and ``total`` on the device.

        The memory of recorded steps counts as used.
        """
        pool = self._cupy.get_default_memory_pool()
        free, total = self._cupy.cuda.runtime.memGetInfo()
        recorded = sum(r.held for r in self._recorded)
        used, held = pool.used_bytes() + recorded, pool.total_bytes() + recorded
        return {"used": used, "held": held, "free": free, "total": total}

    def memory_cleanup(self) -> None:
        """Return the memory that CuPy's pools hold for reuse to the driver."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def fuse(self, formula: Callable[..., Any], /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """``formula(self, *values)``, by one kernel for each result if possible."""
        try:
            result = NotImplemented if self.runner is None else fuse(self.runner, formula, *values)
        except Exception as error:
            self._reraise(formula.__name__, values, error)
        return formula(self, *values) if result is NotImplemented else result

    def dtype(self, x: Any, /) -> DType:
        """The dtype of an array; raises for anything else."""
        if x.__class__ is self._cupy.ndarray:
            known = self._dtypes.get(x.dtype)
            if known is None:
                raise DTypeError(f"arrays of {x.dtype} are not tensors of backburn")
            return known
        if isinstance(x, Quantized):
            return x.dtype
        raise BackendMismatchError(
            f"{type(x).__name__} is not a primitive of the cupy backend: from_numpy (bb.asarray) moves it there"
        )

    def capture(self, program: Step, state: Sequence[Any], inputs: Sequence[Any]) -> Executable:
        """``program`` as a CUDA graph: see :class:`backburn.backend.capturing.CapturingBackend`."""
        from backburn_cupy.capture import ONE_AT_A_TIME, Recorded

        try:
            with ONE_AT_A_TIME:
                recorded = Recorded(self, program, state, inputs)
        except DeviceMemoryError as error:
            raise CaptureError(f"a recording needs separate memory, and there is not enough: {error}") from error
        self._recorded.add(recorded)
        return recorded

    def compile(self, program: Program) -> CompiledProgram:
        """A program with passes over rows, which ``capture(cupy)`` records: :mod:`backburn_cupy.programs`."""
        from backburn_cupy.programs import compile_program

        return compile_program(self, program)

    def device_context(self) -> Any:
        """A context that makes this CuPy's current device."""
        return self._cupy.cuda.Device(self.number)

    @contextlib.contextmanager
    def translate_errors(self, name: str) -> Iterator[None]:
        """A context for device work outside of operations: errors inside are reported as of ``name``."""
        try:
            with self.device_context():
                yield
        except Exception as error:
            self._reraise(name, (), error)

    def _reraise(self, name: str, operands: tuple[Any, ...], error: Exception) -> NoReturn:
        """Raise an error being handled again, as one of backburn if it stems from CuPy or CUDA."""
        from backburn_cupy.failures import translate_error

        failure = translate_error(name, operands, error, device=self.number, process=self.process)
        if failure is error:
            raise error
        raise failure from error


def _device_number(device: int) -> int:
    try:
        number = operator.index(device)
    except TypeError:
        number = -1
    if number < 0 or isinstance(device, bool):
        raise ArgumentError(f"CupyBackend: the device is a number from 0 on, not {device!r}")
    return number


def method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A family's function as a method that raises our errors."""

    @functools.wraps(function)
    def operation(self: CupyBackend, /, *operands: Any, **options: Any) -> Any:
        try:
            return function(self, *operands, **options)
        except Exception as error:
            self._reraise(name, operands, error)

    return operation


def _guard(k: CupyBackend, name: str, function: Callable[..., Any], debug: bool) -> Callable[..., Any]:
    """``function`` on ``k``'s device, if there are several; in debugging, synchronized and checked on return."""
    from backburn_cupy.failures import find_misplaced

    @functools.wraps(function)
    def operation(*operands: Any, **options: Any) -> Any:
        with k._cupy.cuda.Device(k.number):
            if (mixed := find_misplaced(operands, k.number)) is not None and name != "from_numpy":
                raise BackendMismatchError(f"{name}: {mixed}")
            result = function(*operands, **options)
            if debug and name in OPERATIONS:
                CupyBackend.synchronize(k)
            return result

    return operation


@functools.cache
def attach_families() -> None:
    """Attach the operations, which need CuPy, once."""
    for family in FAMILIES:
        module = importlib.import_module(f"backburn_cupy.{family}")
        for name, function in vars(module).items():
            # An imported helper may happen to have an operation's name.
            if name in OPERATIONS and getattr(function, "__module__", "") == module.__name__:
                setattr(CupyBackend, name, method(name, function))
    attach(CupyBackend, method)
    take_quantized(CupyBackend)
