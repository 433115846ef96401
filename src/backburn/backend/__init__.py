"""The contract of backends, the operation table, and the registry of backends."""

from backburn.backend.contract import (
    AUTODIFF_METHODS,
    CONTRACT_VERSION,
    AnyBackend,
    AutodiffBackend,
    Backend,
    Capabilities,
    is_autodiff,
    is_backend,
)
from backburn.backend.registry import (
    BackendInfo,
    BackendWarning,
    check_autodiff_backend,
    list_backends,
    list_decorators,
    load_backend,
    register_backend,
    register_decorator,
)
from backburn.backend.wrapper import Wrapper
from backburn.ops.table import OPERATIONS, Operation

__all__ = [
    "AUTODIFF_METHODS",
    "CONTRACT_VERSION",
    "OPERATIONS",
    "AnyBackend",
    "AutodiffBackend",
    "Backend",
    "BackendInfo",
    "BackendWarning",
    "Capabilities",
    "Operation",
    "Wrapper",
    "check_autodiff_backend",
    "is_autodiff",
    "is_backend",
    "list_backends",
    "list_decorators",
    "load_backend",
    "register_backend",
    "register_decorator",
]
