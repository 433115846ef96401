"""``Precision``: in which dtype a step computes, with float32 master weights and a scale for the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, TypeVar

from backburn.base.dtypes import FloatDType, as_dtype, float32
from backburn.base.errors import ArgumentError
from backburn.base.mutable_trees import Leaf, MutableTree
from backburn.base.trees import tree_map
from backburn.optim.gradients import NamedGradients, global_norm, is_float_tensor, named_gradients, scale
from backburn.tensor.classes import Tensor
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.options import bounded, integer, one_of
from backburn.tensor.core.wrapping import is_tensor

T = TypeVar("T")

#: The first scale of the loss in float16.
FIRST_SCALE = 2.0**15


class Precision:
    """The dtype of the forward and backward pass; parameters and their updates keep their dtype.

    With ``"float32"``, the default, nothing is cast. With ``"bfloat16"`` and ``"float16"``, a step computes with a copy
    of the model whose parameters are cast, and with a batch whose floats are; gradients flow back through the cast to
    the float32 parameters (master weights; Micikevicius et al., "Mixed precision training", 2018). Buffers, such as the
    running statistics of ``BatchNorm``, integers and quantized tensors are never cast, and new buffers are put into
    the model.

    In float16 the loss is multiplied by :attr:`scale`, so that small gradients do not become 0. A step whose gradients
    are not finite is skipped, and the scale multiplied by ``backoff``; after ``growth_interval`` steps without one it
    doubles. The other dtypes have the range of float32, and the scale 1.

    Raises :class:`ArgumentError` for another dtype and options out of range.

        >>> import backburn as bb
        >>> from backburn import nn, optim, train
        >>> model, optimizer, precision = nn.Linear(4, 2), optim.Adam(1e-2), train.Precision("float16")
        >>> def loss(model, batch):
        ...     return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        >>> batch = {"x": bb.random.normal((8, 4)), "y": bb.random.integers((8,), 0, 2)}
        >>> for _ in range(3):
        ...     value, gradients = precision.value_and_gradients(loss, model, batch)
        ...     if precision.accepts(gradients):
        ...         optimizer.step(model, gradients)
        >>> value.dtype, gradients["weight"].dtype, optimizer.steps, precision.scale
        (float32, float32, 3, 32768.0)
    """

    def __init__(
        self,
        dtype: str | FloatDType = "float32",
        *,
        scale: float | None = None,
        backoff: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        name = one_of("Precision", "dtype", str(dtype), ("float32", "bfloat16", "float16"))
        self.dtype = as_dtype(name)
        #: The factor of the loss; 1 unless the dtype is float16.
        self.scale = FIRST_SCALE if name == "float16" else 1.0
        if scale is not None:
            if name != "float16":
                raise ArgumentError(f"Precision: {name} has the range of float32 and takes no scale; float16 does")
            self.scale = bounded("Precision", "scale", scale, above=0, below=inf)
        self.backoff = bounded("Precision", "backoff", backoff, above=0, below=1)
        self.growth_interval = integer("Precision", "growth_interval", growth_interval, least=1)
        self._accepted = 0

    def __repr__(self) -> str:
        return f"Precision({self.dtype.name!r}{f', scale={self.scale:g}' if self.scales else ''})"

    @property
    def casts(self) -> bool:
        """Whether anything is cast."""
        return self.dtype is not float32

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, so that steps may have to be skipped."""
        return self.dtype.name == "float16"

    def cast(self, tree: T) -> T:
        """A copy of a model or batch in which parameters and other floats are cast, and buffers are not.

        >>> import backburn as bb
        >>> narrow = bb.train.Precision("bfloat16").cast(bb.nn.Sequential(bb.nn.Linear(2, 2), bb.nn.BatchNorm(2)))
        >>> narrow[0].weight.dtype, narrow[1].running_mean.dtype, narrow[1].num_batches_tracked.dtype
        (bfloat16, float32, int64)
        """
        if not self.casts:
            return tree
        kept = {id(leaf.value) for leaf in buffers_of(tree)}
        dtype = self.dtype
        return tree_map(
            lambda x: x.astype(dtype) if is_float_tensor(x) and x.dtype.is_floating and id(x) not in kept else x,
            tree,
        )

    def value_and_gradients(self, loss: Callable[..., Any], model: Any, *batch: Any) -> tuple[Tensor, NamedGradients]:
        """The loss of ``model`` on ``batch`` in float32, and the float32 gradients of its parameters by path.

        ``loss`` is called with the cast model and batch. New buffers are put into ``model``. In float16, ask
        :meth:`accepts` before the step.
        """
        narrow = self.cast(model)
        value = cast(loss(narrow, *map(self.cast, batch)), float32)
        if not self.casts:
            return value.detach(), named_gradients(model, value.backward())
        found = (value * self.scale if self.scales else value).backward()
        put_buffers(model, buffers_by_path(narrow))
        gradients = named_gradients(model, found)
        return value.detach(), scale(gradients, 1.0 / self.scale) if self.scales else gradients

    def accepts(self, gradients: Any) -> bool:
        """Whether to take a step with these gradients: in float16, whether they are finite; else True.

        Updates the scale: lowered if they are not finite, doubled after ``growth_interval`` steps in which they were.
        """
        return not self.scales or self.observe(global_norm(gradients).item() < inf)

    def observe(self, is_finite: bool) -> bool:
        """Update the scale from whether the gradients of a step were finite, and return that."""
        if self.scales and is_finite:
            self._accepted += 1
            if self._accepted >= self.growth_interval:
                self.scale, self._accepted = min(2.0 * self.scale, 2.0**32), 0
        elif self.scales:
            self.scale, self._accepted = max(self.backoff * self.scale, 2.0**-24), 0
        return is_finite

    def state_dict(self) -> dict[str, float | int]:
        """The state for saving: the scale, and the number of accepted steps since it changed."""
        return {"scale": self.scale, "accepted": self._accepted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`. Raises :class:`ArgumentError` for anything else."""
        given: object = state
        if not isinstance(given, Mapping) or given.keys() != {"scale", "accepted"}:
            raise ArgumentError(f"load_state_dict: the state of a Precision has scale and accepted, not {given!r:.80}")
        accepted = integer("load_state_dict", "accepted", state["accepted"], least=0)
        if accepted >= 2**63:
            raise ArgumentError("load_state_dict: accepted has more than 64 bits")
        self.scale = bounded("load_state_dict", "scale", state["scale"], above=0, below=inf)
        self._accepted = accepted


# ---- buffers of models ----


def buffers_of(tree: Any) -> list[Leaf]:
    """The tensors of the modules in a tree that are not parameters: buffers, and all that are not floats."""
    return [leaf for leaf in MutableTree([tree], is_tensor).leaves if _is_buffer(leaf)]


def buffers_by_path(tree: Any) -> dict[str, Tensor]:
    """The buffers of a tree, each by its first path."""
    return {leaf.path: leaf.value for leaf in buffers_of(tree)}


def put_buffers(model: Any, buffers: Mapping[str, Any]) -> None:
    """Replace the buffers of ``model``, given by their paths in it."""
    if buffers:
        for leaf in buffers_of(model):
            leaf.put(buffers[leaf.path])


def _is_buffer(leaf: Leaf) -> bool:
    """Whether a tensor belongs to a module and is not trained."""
    node, key = leaf.parents[0]
    while not hasattr(node.value, "named_buffers"):
        if node.parent is None:
            return False
        node, key = node.parent, node.key
    return not leaf.value.dtype.has_gradient or key in node.value._buffers
