"""Copies of tensors: for ``copy.deepcopy``, for pickling, and of memory that a captured step would overwrite."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from backburn.backend.capturing import copy_primitive
from backburn.backend.contract import is_autodiff
from backburn.backend.host_numbers import overwritten_ids
from backburn.backend.registry import load_backend
from backburn.base.contexts import ACTIVE
from backburn.base.errors import GraphError
from backburn.tensor.core import host
from backburn.tensor.core.invalidation import check_valid
from backburn.tensor.core.levels import INNER, as_constant, inner_of, levels_between
from backburn.tensor.core.messages import describe

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

T = TypeVar("T", bound="Tensor")


def copy_if_overwritten(x: T) -> T:
    """``x`` itself, or its copy if it is a constant in memory that a captured step overwrites."""
    overwritten = overwritten_ids()
    if not overwritten or x._dtype.kind == "quantized":
        return x
    k: Any = x._backend
    primitive, kind = x._primitive, x._dtype.kind
    while is_autodiff(k):
        if x._dtype.has_gradient and k.is_tracked(primitive):
            return x
        primitive, k = getattr(k, INNER[kind])(primitive), k.inner_backend
    if inner_of(k) is not None or id(primitive) not in overwritten:
        return x
    own = copy_primitive(k, primitive)
    return type(x)(as_constant(own, kind, levels_between(k, x._backend) or ()), x._backend, x._dtype)


def deep_copy(x: T, memo: dict[int, Any]) -> T:
    """The copy of a tensor that ``copy.deepcopy`` makes."""
    check_valid(x)
    k: Any = x._backend
    if not x.is_tracked or not is_autodiff(k) or ACTIVE.get() is not None:
        # A new object: a model that holds one object twice counts it as one parameter or buffer.
        return copy_if_overwritten(type(x)(x._primitive, k, x._dtype))
    made = memo.get(id(x._primitive))  # one leaf may be in several tensors
    if made is None:
        try:
            k.set_require_grad(x._primitive, False)
        except GraphError as error:
            raise GraphError(
                f"deepcopy: a tensor computed from tracked tensors cannot be copied with its history: "
                f"{describe((x,))}. Store its detach() in the copied object"
            ) from error
        below = copy.deepcopy(x.inner(), memo)._primitive  # may be a leaf of the next level
        made = memo[id(x._primitive)] = k.new_leaf(below)
    return type(x)(made, k, x._dtype)


def pickled(x: Tensor) -> tuple[Any, ...]:
    """The function and the arguments with which ``pickle`` rebuilds a tensor."""
    if x.dtype.kind == "quantized":
        return (host.quantized_from_parts, (*host.quantized_parts(x), x.dtype, x.shape, x.backend.spec))
    return (_rebuild, (x.numpy(), x.backend.spec, x.dtype.name, x.is_require_grad))


def _rebuild(array: Any, spec: str, dtype: str, require_grad: bool) -> Any:
    tensor = host.asarray(array, dtype=dtype, backend=load_backend(spec))
    return tensor.require_grad() if require_grad else tensor
