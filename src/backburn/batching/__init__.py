"""Implicit batch axes: the decorator on which ``vmap`` runs functions, and its table of batching rules."""

from backburn.batching import (  # noqa: F401 - each attaches its rules
    axes,
    index,
    layers,
    products,
    quantized,
    random,
    shape,
)
from backburn.batching.decorator import Batched, NeedsValues, levels_of_vmap
from backburn.batching.rules import (
    FallbackWarning,
    Mapped,
    aligned,
    along,
    batching,
    broadcasting,
    folded,
    front,
    is_mapped,
    moved,
)

__all__ = [
    "Batched",
    "FallbackWarning",
    "Mapped",
    "NeedsValues",
    "aligned",
    "along",
    "batching",
    "broadcasting",
    "folded",
    "front",
    "is_mapped",
    "levels_of_vmap",
    "moved",
]
