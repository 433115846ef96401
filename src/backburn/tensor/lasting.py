"""Values that are kept: those that a captured step would write over are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from backburn.backend.contract import is_autodiff
from backburn.base.replay import is_renewed
from backburn.tensor.dispatch import as_constant, inner_of, levels_between

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

T = TypeVar("T", bound="Tensor")

_INNER = {"float": "inner", "int": "int_inner", "bool": "bool_inner"}


def lasting(x: T) -> T:
    """``x`` itself, or its copy if it is a constant over memory that a captured step writes over."""
    k: Any = x._backend
    primitive, name = x._primitive, _INNER.get(x._dtype.kind)
    while is_autodiff(k) and name is not None:
        if name == "inner" and k.is_tracked(primitive):
            return x
        primitive, k = getattr(k, name)(primitive), k.inner_backend
    if name is None or inner_of(k) is not None or not is_renewed(primitive):
        return x
    own = k.slice_assign(primitive, primitive, tuple(slice(0, n, 1) for n in x.shape))
    return type(x)(as_constant(own, x._dtype.kind, levels_between(k, x._backend) or ()), x._backend, x._dtype)
