"""Transforms of functions: derivatives of functions of tensors and trees of tensors."""

from backburn.batching import FallbackWarning
from backburn.transforms.batching import vmap
from backburn.transforms.capturing import Captured, CapturedFunction, CaptureWarning, capture
from backburn.transforms.checking import check_grads
from backburn.transforms.checkpointing import checkpoint
from backburn.transforms.custom import custom_vjp, stop_gradient
from backburn.transforms.derivatives import grad, jvp, linearize, value_and_grad, vjp
from backburn.transforms.jacobians import hessian, hvp, jacobian

__all__ = [
    "CaptureWarning",
    "Captured",
    "CapturedFunction",
    "FallbackWarning",
    "capture",
    "check_grads",
    "checkpoint",
    "custom_vjp",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "linearize",
    "stop_gradient",
    "value_and_grad",
    "vjp",
    "vmap",
]
