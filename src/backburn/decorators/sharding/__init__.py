"""Shards of tensors: the decorator ``Sharded``, its primitives, and the rules that say what is cut together."""

from backburn.decorators.sharding import families, operations  # noqa: F401 - attach rules, and methods
from backburn.decorators.sharding.creation import created_in_parts
from backburn.decorators.sharding.decorator import GatherWarning, Sharded
from backburn.decorators.sharding.placing import place_primitive, placement_of, spec_without_shards
from backburn.decorators.sharding.rules import Plan, sharding
from backburn.decorators.sharding.shards import Shards, even_cuts

__all__ = [
    "GatherWarning",
    "Plan",
    "Sharded",
    "Shards",
    "created_in_parts",
    "even_cuts",
    "place_primitive",
    "placement_of",
    "sharding",
    "spec_without_shards",
]
