"""Tensors in ``einops``: after ``import backburn.interop.einops`` its functions accept and differentiate them.

``einops.array_api`` accepts tensors without this module; ``einops.rearrange``, ``reduce``, ``repeat``, ``einsum``,
``pack`` and ``unpack`` need a class for each library, such as the one here. Importing this module raises
:class:`BackendUnavailableError` without the package ``einops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.base.errors import BackendUnavailableError
from backburn.tensor.classes import Tensor
from backburn.tensor.core.host import asarray
from backburn.tensor.creation import arange
from backburn.tensor.einsum import einsum
from backburn.tensor.rearrange import tile
from backburn.tensor.shape import concat, expand_dims, permute_dims, reshape, stack

try:
    from einops._backends import AbstractBackend
except ModuleNotFoundError as cause:
    raise BackendUnavailableError(
        "backburn.interop.einops: needs the package einops: pip install 'backburn[einops]'"
    ) from cause

__all__ = ["EinopsBackend"]


class EinopsBackend(AbstractBackend):
    """The functions that ``einops`` calls on tensors. Importing this module registers the class.

    >>> import backburn as bb
    >>> import backburn.interop.einops
    >>> from einops import rearrange
    >>> x = bb.asarray([[1.0, 2.0, 3.0, 4.0]]).require_grad()
    >>> y = rearrange(x, "a (b c) -> c (a b)", c=2)
    >>> y.tolist(), x.grad((y * y).sum().backward()).tolist()
    ([[1.0, 3.0], [2.0, 4.0]], [[2.0, 4.0, 6.0, 8.0]])
    """

    framework_name = "backburn"

    def is_appropriate_type(self, tensor: object) -> bool:
        """Whether ``tensor`` is a backburn tensor."""
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Any:
        """A tensor from a NumPy array."""
        return asarray(x)

    def to_numpy(self, x: Any) -> Any:
        """The values as a NumPy array."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> Any:
        """The integers from ``start`` to ``stop``, exclusive."""
        return arange(start, stop)

    def shape(self, x: Any) -> tuple[int, ...]:
        """The length of each axis."""
        return x.shape

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """``x`` in another shape."""
        return reshape(x, tuple(shape))

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        """``x`` with its axes in another order."""
        return permute_dims(x, tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: Sequence[Any]) -> Any:
        """Tensors along a new first axis."""
        return stack(tensors)

    def add_axis(self, x: Any, new_position: int) -> Any:
        """``x`` with a new axis of length 1."""
        return expand_dims(x, new_position)

    def tile(self, x: Any, repeats: Sequence[int]) -> Any:
        """``x`` repeated along each axis."""
        return tile(x, tuple(repeats))

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Tensors one after the other."""
        return concat(tensors, axis=axis)

    def is_float_type(self, x: Any) -> bool:
        """Whether the dtype is floating, as means require."""
        return bool(x.dtype.is_floating)

    def einsum(self, pattern: str, *x: Any) -> Any:
        """The sum of products that ``pattern`` describes."""
        return einsum(pattern, *x)
