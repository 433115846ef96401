"""Ready plans: how the parameters of a model and the optimizer's state are split over the axes of a mesh.

A plan is passed to :func:`backburn.distributed.place`, :func:`place_state` and, by its name, to a configuration. Models
need no changes for any plan, and losses and gradients are the same up to rounding.

=====================  =============================  ===========================  ==============================
plan                   parameters                     state of the optimizer       known as
=====================  =============================  ===========================  ==============================
:func:`replicated`     replicated                     replicated                   data parallelism
:func:`sharded`        split                          split                        fully sharded, FSDP, ZeRO-3
:func:`state`          replicated                     split                        ZeRO-1
:func:`transformer`    by heads and hidden features   like the parameters          tensor parallelism, Megatron
:func:`convolutional`  like one of the first three    like one of the first three  data parallelism, images
=====================  =============================  ===========================  ==============================

After Rajbhandari et al., ZeRO (2020), and Shoeybi et al., Megatron-LM (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

from backburn.backend.placing import levels_of
from backburn.base.errors import ArgumentError
from backburn.decorators.sharding import placement_of
from backburn.decorators.sharding.placing import check_mesh_axes
from backburn.nn import Module
from backburn.tensor.core.options import one_of

__all__ = ["Plan", "convolutional", "named", "replicated", "sharded", "state", "transformer"]

#: The axis of a tensor that is split over each mesh axis; None if it is replicated.
Placement: TypeAlias = Mapping[str, "int | None"]
Parameters = Literal["replicated", "sharded", "state"]
#: The placements of parameters and state over the data axis.
PARAMETERS = ("replicated", "sharded", "state")

#: Projections to heads, by the names of their layers: outputs are split by heads.
_HEADS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
#: Names of layers whose outputs, the hidden features of a feed-forward block, are split.
_UP = ("linear1", "up", "up_proj", "gate_proj", "c_fc", "intermediate.dense", "fc1", "w1", "w3")
#: Names of layers whose inputs, heads or hidden features, are split.
_DOWN = ("linear2", "down", "down_proj", "mlp.c_proj", "output.dense", "out_proj", "o_proj", "fc2", "w2")


@dataclass(frozen=True, repr=False)
class Plan:
    """Placements of a model's parameters, and of the optimizer's state for them, by the model's paths."""

    name: str
    #: From a model to the placement of each parameter, by path.
    parameters: Callable[[Module], dict[str, Placement]]
    #: From a model to functions of the shape of a state tensor, by path; without one, state follows the parameter.
    state: Callable[[Module], dict[str, Callable[[tuple[int, ...]], Placement]]]

    def __repr__(self) -> str:
        return f"plans.{self.name}"


def replicated(dp: str = "dp") -> Plan:
    """Data parallelism: parameters are replicated over the mesh axis ``dp``, and batches are split.

    >>> replicated()
    plans.replicated('dp')
    """
    return Plan(f"replicated({dp!r})", lambda model: _over(model, dp, "replicated", {}), lambda model: {})


def sharded(dp: str = "dp") -> Plan:
    """Fully sharded: parameters, their gradients and the optimizer's state are split over the mesh axis ``dp``.

    A parameter is split along its first axis whose length is a multiple of the number of shards, else along its longest
    one; scalars are replicated.

        >>> import backburn as bb
        >>> from backburn import nn
        >>> from backburn.distributed import place, placement
        >>> with bb.use_backend("autodiff(sharded(numpy, dp=4))"):
        ...     model = place(nn.Linear(8, 3), sharded())
        >>> placement(model.weight), placement(model.bias)
        ({'dp': 1}, {'dp': 0})
    """
    return Plan(f"sharded({dp!r})", lambda model: _over(model, dp, "sharded", {}), lambda model: {})


def state(dp: str = "dp") -> Plan:
    """Parameters are replicated over the mesh axis ``dp``, and the optimizer's state is split.

    Each shard computes its part of the new parameters. Pass the plan to :func:`backburn.distributed.place_state` too.

        >>> state()
        plans.state('dp')
    """
    return Plan(
        f"state({dp!r})",
        lambda model: _over(model, dp, "replicated", {}),
        lambda model: _states(model, dp, {}),
    )


def transformer(tp: str = "tp", dp: str | None = None, parameters: Parameters = "replicated") -> Plan:
    """Tensor parallelism of transformers: heads and hidden features are split over the mesh axis ``tp``.

    The layers ``q_proj``, ``k_proj`` and ``v_proj`` of attention (``query``, ``key`` and ``value`` in BERT and ViT) are
    split by heads, and the layer after them along its inputs; the first layers of a feed-forward block along their
    outputs, the last along its inputs; tables of :class:`nn.Embedding` along their features, unless they are tied to a
    linear layer. All else, such as norms, is replicated, and so is GPT-2's fused layer for queries, keys and values,
    whose parts would not end between heads. With the name of an axis ``dp``, ``parameters`` is the placement of all
    parameters over that axis: as in :func:`replicated`, :func:`sharded` or :func:`state`.

    Raises :class:`ArgumentError` when applied to a model without layers to split, and for attention whose numbers of
    heads are not multiples of the number of shards.

        >>> import backburn as bb
        >>> from backburn import nn
        >>> from backburn.distributed import place, placement
        >>> with bb.use_backend("autodiff(sharded(sharded(numpy, tp=2), dp=2))"):
        ...     layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16)
        ...     _ = place(layer, transformer(dp="dp", parameters="sharded"))
        >>> placement(layer.self_attn.q_proj.weight), placement(layer.linear2.weight), placement(layer.norm1.weight)
        ({'dp': 1, 'tp': 0}, {'dp': 0, 'tp': 1}, {'dp': 0, 'tp': None})
    """
    one_of("plans.transformer", "parameters", parameters, PARAMETERS)
    words = f"{tp!r}" if dp is None else f"{tp!r}, {dp!r}, {parameters!r}"
    return Plan(
        f"transformer({words})",
        lambda model: _over(model, dp, parameters, _transformer(model, tp)),
        lambda model: _states(model, dp, _transformer(model, tp)) if dp is not None and parameters == "state" else {},
    )


def convolutional(dp: str = "dp", parameters: Parameters = "replicated") -> Plan:
    """Data parallelism of models with convolutions: batches of images are split, and images are not.

    ``parameters`` are placed as in :func:`replicated`, :func:`sharded` or :func:`state`. BatchNorm's statistics are
    those of the whole batch.

        >>> convolutional(parameters="sharded")
        plans.convolutional('dp', 'sharded')
    """
    one_of("plans.convolutional", "parameters", parameters, PARAMETERS)
    return Plan(
        f"convolutional({dp!r}, {parameters!r})",
        lambda model: _over(model, dp, parameters, {}),
        lambda model: _states(model, dp, {}) if parameters == "state" else {},
    )


def named(parameters: Parameters, dp: str) -> Plan:
    """The plan for a configuration's ``parameters``.

    >>> named("state", "dp")
    plans.state('dp')
    """
    found = {"replicated": replicated, "sharded": sharded, "state": state}
    return found[one_of("plans", "parameters", parameters, PARAMETERS)](dp)


# ---- the axes of the data ----


def _over(model: Any, dp: str | None, parameters: str, taken: Mapping[str, Placement]) -> dict[str, Placement]:
    """The placements ``taken``, with those over the mesh axis ``dp`` added."""
    if dp is None:
        return dict(taken)
    found: dict[str, Placement] = {}
    for leaf in model._parameters():
        own = taken.get(leaf.path, {})
        if not levels_of(leaf.value.backend):
            continue
        count = _size(leaf.value, dp)
        axis = None
        if parameters == "sharded":
            axis = _axis_to_cut(tuple(leaf.value.shape), [*own.values()], count)
        found[leaf.path] = {**own, dp: axis}
    return found


def _states(model: Any, dp: str, taken: Mapping[str, Placement]) -> dict[str, Callable[[tuple[int, ...]], Placement]]:
    """For the state of each parameter, the axis to be split over ``dp``."""
    found: dict[str, Callable[[tuple[int, ...]], Placement]] = {}
    for leaf in model._parameters():
        if not levels_of(leaf.value.backend):
            continue
        count, used = _size(leaf.value, dp), [*taken.get(leaf.path, {}).values()]
        found[leaf.path] = lambda shape, count=count, used=used: {dp: _axis_to_cut(shape, used, count)}  # type: ignore[misc]
    return found


def _axis_to_cut(shape: tuple[int, ...], taken: list[int | None], count: int) -> int | None:
    """The first axis that splits into equal parts, else the longest; None for tensors of fewer than two elements."""
    free = [axis for axis in range(len(shape)) if axis not in taken]
    if not free or prod(shape) < 2:
        return None
    even = [axis for axis in free if shape[axis] and shape[axis] % count == 0]
    return even[0] if even else max(free, key=lambda axis: shape[axis])


def _size(x: Any, mesh_axis: str) -> int:
    """The number of shards of a mesh axis. Raises :class:`ArgumentError` if the backend does not have it."""
    check_mesh_axes(x.backend, [mesh_axis])
    return next(level.size for level in levels_of(x.backend) if level.mesh_axis == mesh_axis)


# ---- transformers ----


def _transformer(model: Any, tp: str) -> dict[str, Placement]:
    """The placements over the mesh axis ``tp``."""
    leaves = {path: leaf for leaf in model._parameters() for path in leaf.paths}
    if not any(levels_of(leaf.value.backend) for leaf in leaves.values()):
        return {}
    found: dict[str, Placement] = {}
    for path, module in model.named_modules():
        _check_heads(path, module, tp)
        kind = _kind(path, module)
        weight = f"{path}.weight".lstrip(".")
        if kind is None or weight not in leaves:
            continue
        leaf = leaves[weight]
        if kind == "features" and len(leaf.paths) > 1:  # tied to a layer that needs whole rows
            continue
        found[leaf.path] = {tp: 0 if kind == "outputs" else 1}
        bias = f"{path}.bias".lstrip(".")
        if kind == "outputs" and bias in leaves:
            found[leaves[bias].path] = {tp: 0}
    if not any(placement[tp] == 0 for placement in found.values()):
        raise ArgumentError(
            f"plans.transformer: {type(model).__name__} has no layer to split over {tp!r}: it looks for attention "
            f"with q_proj, k_proj and v_proj, and for {', '.join(_UP[:5])}. Write placements by paths instead"
        )
    return found


def _kind(path: str, module: Any) -> str | None:
    """The part of a layer that is split: its outputs, its inputs, the features of a table, or None."""
    if getattr(module, "weight", None) is None or len(module.weight.shape) != 2:
        return None
    if type(module).__name__ == "Embedding":
        return "features"
    if _ends(path, [name for names in _HEADS for name in names]) or _ends(path, _UP):
        return "outputs"
    return "inputs" if _ends(path, _DOWN) else None


def _ends(path: str, names: Any) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


def _check_heads(path: str, module: Any, tp: str) -> None:
    """Raise :class:`ArgumentError` for attention whose heads do not split into equal parts."""
    for first, second, _ in _HEADS:
        query, key, width = (getattr(module, name, None) for name in (first, second, "head_dim"))
        if query is None or key is None or not isinstance(width, int):
            continue
        count = _size(query.weight, tp)
        for name, layer in (("num_kv_heads", key), ("num_heads", query)):
            heads = layer.weight.shape[0] // width
            if heads % count:
                raise ArgumentError(
                    f"plans.transformer: {path or type(module).__name__} has {name}={heads}, which the {count} shards "
                    f"of the mesh axis {tp!r} do not divide: choose a number of shards that divides {heads}"
                )


def placement(x: Any) -> dict[str, int | str | None]:
    """The axis of a tensor that is split over each mesh axis: None if replicated, ``"addends"`` for a partial sum.

    >>> import backburn as bb
    >>> placement(bb.zeros((3,), backend="autodiff(sharded(numpy, dp=2))"))
    {'dp': None}
    """
    return placement_of(x.backend, x.primitive)
