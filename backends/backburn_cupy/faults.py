"""Errors found on the device: an index out of range, a matrix without a result.

Raising at once would mean synchronizing in every operation. So kernels record the first fault, and the host checks when
it next synchronizes anyway: in ``to_numpy``, in ``synchronize``, and when a result's shape depends on data. With
``BACKBURN_CUPY_DEBUG=1`` the host checks after every operation.
"""

from __future__ import annotations

from typing import Any, ClassVar

import cupy
import numpy as np

from backburn.base.errors import BackburnError, LinearAlgebraError, OutOfRangeError, SingularMatrixError

#: The numbers that a kernel records: the fault's code, and for an index, its value and the length of the axis.
FIELDS = 3

#: The codes: the operation and the error. The fused kernels do not know the operation, and record 1.
FAULTS: tuple[tuple[str, type[BackburnError], str], ...] = (
    ("", BackburnError, ""),
    ("an operation", OutOfRangeError, ""),
    ("gather", OutOfRangeError, ""),
    ("scatter", OutOfRangeError, ""),
    ("take", OutOfRangeError, ""),
    ("index_add", OutOfRangeError, ""),
    ("cholesky", LinearAlgebraError, "a matrix is not positive definite"),
    ("qr", LinearAlgebraError, "a matrix has no decomposition that is found"),
    ("svd", LinearAlgebraError, "a matrix has no decomposition that is found"),
    ("eigh", LinearAlgebraError, "a matrix has no decomposition that is found"),
    ("solve", SingularMatrixError, "a matrix is singular"),
    ("eig", LinearAlgebraError, "a matrix has no decomposition that is found"),
)
NUMBER = {name: number for number, (name, _, _) in enumerate(FAULTS) if name}

#: The preamble for kernels that report a fault; ``fault`` is the device's record.
REPORT = """
__device__ inline void report(long long* fault, long long kind, long long index, long long length) {
  if (atomicCAS(reinterpret_cast<unsigned long long*>(fault), 0ull, static_cast<unsigned long long>(kind)) == 0ull) {
    fault[1] = index;
    fault[2] = length;
  }
}
"""

_report_where = cupy.ElementwiseKernel(
    "bool is_fault, int64 kind",
    "raw int64 fault",
    "if (is_fault) report(&fault[0], kind, 0, 0);",
    "backburn_report",
    preamble=REPORT,
)


class Faults:
    """The fault record of one device."""

    _instances: ClassVar[dict[int, Faults]] = {}

    def __init__(self) -> None:
        self._record: Any = None
        self.pending = False

    @classmethod
    def for_device(cls, device: int) -> Faults:
        """The fault record of a device, shared by its backends."""
        return cls._instances.setdefault(device, cls())

    def record(self) -> Any:
        """The array that kernels write to; requested by each call that may find a fault."""
        if self._record is None:
            self._record = cupy.zeros((FIELDS,), np.int64)
        self.pending = True
        return self._record

    def report(self, operation: str, is_fault: Any) -> None:
        """Record a fault of ``operation`` if any element of a bool array is true."""
        _report_where(is_fault, NUMBER[operation], self.record())

    def check(self) -> None:
        """Raise the first fault since the last check, if any; synchronizes if there may be one."""
        if not self.pending:
            return
        kind, index, length = self._record.get().tolist()
        self.pending = False
        if kind:
            self._record.fill(0)
            operation, error, what = FAULTS[kind]
            what = what or f"index {index} is out of range for an axis of {length}"
            raise error(
                f"{what} (in {operation}, called earlier: device errors are found when the host waits. "
                f"Set BACKBURN_CUPY_DEBUG=1 to check after each call)"
            )
