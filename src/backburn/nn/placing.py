"""Placing tensors and the parameters of models on the shards of a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from backburn.base.errors import ArgumentError, BackburnError, hint_for
from backburn.base.mutable_trees import path_matches
from backburn.decorators.sharding import levels_of, place_primitive
from backburn.nn.module import Module
from backburn.tensor.classes import Tensor

T = TypeVar("T", Tensor, Module)


def place(target: T, placement: Mapping[str, Any]) -> T:
    """Cut a tensor, or the parameters of a model, over the mesh axes of their backend.

    For a tensor, ``placement`` maps names of mesh axes to the axis of the tensor that is cut, or to None for a whole
    one; mesh axes without an entry keep what they have. The result is a new tensor with the values of ``target``: a
    leaf, if it is one. For a model, it maps patterns of paths (shell wildcards, or the path of a part) to such
    mappings, of which the first that matches counts for a parameter; parameters are replaced in place, and the model
    is returned. On a backend without shards nothing changes.

    Raises :class:`ArgumentError` for a pattern that no parameter's path matches, for a mesh axis that the backend does
    not have, and for an axis that a tensor does not have (naming the parameter); :class:`GraphError` for the result of
    a differentiated operation. Then no parameter is changed.

        >>> import backburn as bb
        >>> from backburn import nn
        >>> from backburn.decorators.sharding import placement_of
        >>> with bb.use_backend("autodiff(sharded(numpy, dp=2))"):
        ...     x = place(bb.ones((4, 3)), {"dp": 0})
        ...     model = place(nn.Linear(3, 2), {"weight": {"dp": 1}})
        ...     y = model(x).sum()
        >>> placement_of(x.backend, x.primitive), placement_of(x.backend, model.weight.primitive)
        ({'dp': 0}, {'dp': 1})
    """
    if isinstance(target, Module):
        return _place_model(target, placement)
    return _place_tensor(target, placement)


def _place_tensor(x: Any, placement: Any) -> Any:
    if not isinstance(placement, Mapping):
        raise ArgumentError(f"place: a placement maps mesh axes to axes, as in {{'dp': 0}}, and is not {placement!r}")
    if not levels_of(x.backend):
        return x
    return type(x)(place_primitive(x.backend, x.primitive, placement), x.backend, x.dtype)


def _place_model(model: Any, placements: Mapping[str, Any]) -> Any:
    leaves = model._parameters()
    paths = [path for leaf in leaves for path in leaf.paths]
    for pattern in placements:
        if not any(path_matches(path, pattern) for path in paths):
            raise ArgumentError(f"place: no parameter's path matches {pattern!r}. {hint_for(pattern, paths)}")
    made = []
    for leaf in leaves:
        found = [p for pattern, p in placements.items() if any(path_matches(path, pattern) for path in leaf.paths)]
        if not found:
            continue
        try:
            made.append((leaf, _place_tensor(leaf.value, found[0])))
        except BackburnError as error:
            raise ArgumentError(f"place: {leaf.path}: {error}") from error
    for leaf, new in made:
        leaf.put(new)
    return model
