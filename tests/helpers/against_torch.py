"""Compare float64 layers with PyTorch functions: values, and gradients of inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import backburn as bb

GENERATOR = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return GENERATOR.normal(size=shape)


def agrees(model: Any, theirs: Callable[..., Any], *arrays: Any) -> None:
    """Compare ``model``, a module or a function, with ``theirs``, called with the parameters by path and the inputs.

    Float inputs have gradients. The cotangent is fixed and not uniform.
    """
    import torch

    owned = dict(model.named_parameters()) if isinstance(model, bb.nn.Module) else {}
    x = [bb.asarray(a).require_grad() if a.dtype.kind == "f" else bb.asarray(a) for a in map(np.asarray, arrays)]
    leaves = {path: torch.from_numpy(p.numpy()).requires_grad_() for path, p in owned.items()}
    y = [torch.from_numpy(np.array(a)).requires_grad_(np.asarray(a).dtype.kind == "f") for a in arrays]
    got, expected = model(*x), theirs(leaves, *y)
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-10)
    weight = np.cos(np.arange(got.size, dtype=np.float64)).reshape(got.shape)
    gradients = (got * bb.asarray(weight)).sum().backward()
    (expected * torch.from_numpy(weight)).sum().backward()
    pairs: list[Any] = [*zip(owned.values(), leaves.values(), strict=True)]
    pairs += [(a, b) for a, b in zip(x, y, strict=True) if b.requires_grad]
    assert pairs
    for ours, other in pairs:
        np.testing.assert_allclose(ours.grad(gradients).numpy(), other.grad.numpy(), rtol=1e-7, atol=1e-9)


def functions_agree(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any) -> None:
    """Compare two functions of arrays, converted to float64, like :func:`agrees`."""
    agrees(ours, lambda _, *inputs: theirs(*inputs), *(np.asarray(array, np.float64) for array in arrays))


def state_of(module: Any) -> dict[str, Any]:
    """Return the state dict of a PyTorch module as arrays."""
    return {path: x.numpy() for path, x in module.state_dict().items()}
