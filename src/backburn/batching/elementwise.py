"""Batching rules: elementwise operations, which broadcast, so that one more leading axis changes nothing."""

from backburn.backend.shapes import broadcast, unchanged
from backburn.backend.table import OPERATIONS
from backburn.batching.rules import along, batching, broadcasting

#: The families in which every operation that keeps its operands' (common) shape goes element by element.
FAMILIES = frozenset({"activate", "arithmetic", "choice", "create", "functions", "kinds", "logic", "loss"})

#: What comes to the host, or tells the values of other kinds of primitives.
OTHERS = frozenset({"to_numpy", "dequantize"})

for entry in OPERATIONS.values():
    if entry.shape in (broadcast, unchanged) and entry.family in FAMILIES and entry.name not in OTHERS:
        # Operands of one and the same shape may not be broadcast to it by the backend itself.
        family = broadcasting if entry.shape is broadcast else along
        batching(entry.name, family(entry.name))
batching("stop_gradient", broadcasting("stop_gradient"))
