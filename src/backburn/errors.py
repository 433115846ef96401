"""Every error that backburn raises: each is a :class:`BackburnError` and a built-in exception such as ValueError.

>>> import backburn as bb
>>> try:
...     bb.sum(bb.ones((2, 3)), axis=5)
... except bb.errors.AxisError as error:
...     print(error)
sum: axis 5 is out of range for 2 dimensions. Operand: float32[2,3] (autodiff(numpy))
"""

from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackburnError,
    BackendMismatchError,
    BackendUnavailableError,
    CaptureError,
    CommunicationError,
    ConfigError,
    ConsumedGraphError,
    DeviceError,
    DeviceMemoryError,
    DTypeError,
    ExportError,
    FileFormatError,
    GraphError,
    ImmutableError,
    LinearAlgebraError,
    MissingRuleError,
    NotDifferentiableError,
    NumericalInstabilityError,
    OutOfRangeError,
    RunFolderError,
    ShapeError,
    SingularMatrixError,
    SpecError,
    Unsupported,
)

__all__ = [
    "ArgumentError", "AxisError", "BackburnError", "BackendMismatchError", "BackendUnavailableError", "CaptureError",
    "CommunicationError", "ConfigError", "ConsumedGraphError", "DTypeError", "DeviceError", "DeviceMemoryError",
    "ExportError", "FileFormatError", "GraphError", "ImmutableError", "LinearAlgebraError", "MissingRuleError",
    "NotDifferentiableError", "NumericalInstabilityError", "OutOfRangeError", "RunFolderError", "ShapeError",
    "SingularMatrixError", "SpecError", "Unsupported",
]  # fmt: skip
