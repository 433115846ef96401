"""Placing tensors, the parameters of models and the state of optimizers on a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from backburn.backend.placing import levels_of
from backburn.base.errors import ArgumentError, BackburnError, hint_for
from backburn.base.mutable_trees import path_matches
from backburn.decorators.sharding import place_primitive
from backburn.distributed.plans import Placement, Plan
from backburn.nn import Module
from backburn.optim import Groups, Optimizer
from backburn.tensor.classes import FloatTensor, Tensor

T = TypeVar("T", Tensor, Module)
#: Placements of parameters by patterns of their paths.
Placements: TypeAlias = Mapping[str, Placement]


def place(target: T, placement: Placement | Placements | Plan) -> T:
    """Shard a tensor, or the parameters of a model, over the mesh axes of their backend.

    For a tensor, ``placement`` maps names of mesh axes to the axis of the tensor that is split, or to None to replicate
    it; mesh axes without an entry keep their placement. The result is a new tensor with the values of ``target``: a
    leaf if ``target`` is one. For a model, ``placement`` maps patterns of paths (shell wildcards, or the path of a
    part) to such mappings, of which the first match counts, or is one of :mod:`backburn.distributed.plans`; parameters
    are replaced in place, and the model is returned. On a backend without shards nothing changes.

    Raises :class:`ArgumentError` for a pattern that no parameter's path matches, for a mesh axis that the backend does
    not have, and for an axis that a tensor does not have (naming the parameter); :class:`GraphError` for the result of
    a differentiated operation. On errors no parameter is changed.

        >>> import backburn as bb
        >>> from backburn import nn
        >>> from backburn.distributed import place, placement
        >>> with bb.use_backend("autodiff(sharded(numpy, dp=2))"):
        ...     x = place(bb.ones((4, 3)), {"dp": 0})
        ...     model = place(nn.Linear(3, 2), {"weight": {"dp": 1}})
        ...     y = model(x).sum()
        >>> placement(x), placement(model.weight)
        ({'dp': 0}, {'dp': 1})
    """
    if isinstance(target, Module):
        if isinstance(placement, Plan):
            return _place_leaves(target, placement.parameters(target))
        return _place_leaves(target, _of_patterns(target, placement))
    return _placed(target, placement)


def place_state(optimizer: Optimizer | Groups, model: Module, plan: Plan) -> None:
    """Shard the state of an optimizer by ``plan``; state that does not exist yet is created.

    State that the plan does not mention is placed like its parameter, which needs no call of this function.

        >>> import backburn as bb
        >>> from backburn import nn, optim
        >>> from backburn.distributed import placement, plans
        >>> with bb.use_backend("autodiff(sharded(numpy, dp=2))"):
        ...     model, optimizer = nn.Linear(3, 2), optim.Adam()
        ...     place_state(optimizer, model, plans.state("dp"))
        >>> placement(model.weight), placement(optimizer.state_tensors()["weight.m"])
        ({'dp': None}, {'dp': 0})
    """
    found = plan.state(model)

    def placed(path: str, x: FloatTensor) -> FloatTensor:
        return _placed(x, found[path](tuple(x.shape))) if path in found else x

    optimizer.begin(model, placed)


def _placed(x: Any, placement: Any) -> Any:
    if not isinstance(placement, Mapping):
        raise ArgumentError(f"place: a placement maps mesh axes to axes, as in {{'dp': 0}}, and is not {placement!r}")
    if not levels_of(x.backend):
        return x
    return type(x)(place_primitive(x.backend, x.primitive, placement), x.backend, x.dtype)


def _of_patterns(model: Any, placements: Any) -> dict[str, Any]:
    """The placement of each parameter that matches a pattern, by its path."""
    if not isinstance(placements, Mapping):
        raise ArgumentError(
            f"place: a model takes placements by patterns of paths, as in {{'*.weight': {{'dp': 0}}}}, or a plan of "
            f"backburn.distributed.plans, and not {placements!r:.80}"
        )
    leaves = model._parameters()
    paths = [path for leaf in leaves for path in leaf.paths]
    for pattern in placements:
        if not any(path_matches(path, pattern) for path in paths):
            raise ArgumentError(f"place: no parameter's path matches {pattern!r}. {hint_for(pattern, paths)}")
    found = {}
    for leaf in leaves:
        own = [p for pattern, p in placements.items() if any(path_matches(path, pattern) for path in leaf.paths)]
        if own:
            found[leaf.path] = own[0]
    return found


def _place_leaves(model: Any, placements: Mapping[str, Any]) -> Any:
    made = []
    for leaf in model._parameters():
        if leaf.path in placements:
            try:
                made.append((leaf, _placed(leaf.value, placements[leaf.path])))
            except BackburnError as error:
                raise ArgumentError(f"place: {leaf.path}: {error}") from error
    for leaf, new in made:
        leaf.put(new)
    return model
