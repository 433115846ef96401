"""Batching rules: operations that move elements."""

from __future__ import annotations

from typing import Any

from backburn.batching.rules import along, batching, front, with_rank

for name in ("concat", "stack", "select", "flip", "roll", "repeat", "sliding_window", "overlap_add"):
    batching(name, along(name, "axis"))
batching("diagonal", along("diagonal", "axis1", "axis2"))


def reshape(level: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    """The reshaped examples."""
    return level.inner_backend.reshape(x.value, (level.size, *shape))


def broadcast_to(level: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    """The broadcast examples: new axes follow the batch axis."""
    return level.inner_backend.broadcast_to(with_rank(level, x, max(len(shape), len(x.shape))), (level.size, *shape))


def permute_dims(level: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    """The permuted axes; the batch axis stays first."""
    return level.inner_backend.permute_dims(x.value, (0, *(a + 1 for a in axes)))


def tile(level: Any, x: Any, *, repeats: tuple[int, ...]) -> Any:
    """The tiled examples; the batch axis is not repeated."""
    return level.inner_backend.tile(x.value, (1, *repeats))


def pad(level: Any, x: Any, *, widths: Any, mode: str, value: Any) -> Any:
    """The padded examples; the batch axis is not padded."""
    return level.inner_backend.pad(front(level, x), ((0, 0), *widths), mode, value)


batching("reshape", reshape)
batching("broadcast_to", broadcast_to)
batching("permute_dims", permute_dims)
batching("tile", tile)
batching("pad", pad)
