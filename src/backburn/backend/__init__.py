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
from backburn.backend.decorating import Wrapper
from backburn.backend.profiling import Cost, Profile
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
from backburn.backend.replaying import Capture
from backburn.backend.table import OPERATIONS, Operation

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
    "Capture",
    "Cost",
    "Operation",
    "Profile",
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
