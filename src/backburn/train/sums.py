"""Means of the values of steps, which are read from the device many at a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from backburn.base.dtypes import float32
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.shape import stack

#: The number of steps or batches whose values are kept on the device, then read together.
READ_AFTER = 100
#: The number of examples of a step, its values, and the weights of those that are not means over the examples.
Entry = tuple[int, dict[str, Any], dict[str, Any]]


class Sums:
    """Sums of values over examples, or over their own weights, in the order of the steps."""

    def __init__(self) -> None:
        self.examples = 0
        #: The examples since the process began, to measure rates.
        self.examples_here = 0
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    def add(self, found: list[Entry]) -> tuple[float, int] | None:
        """Read values, with one transfer for each name, and empty the list; returns the first loss that is not finite.

        With it comes the number of steps since then. Means of nothing, of weight 0, are skipped.
        """
        bad: tuple[float, int] | None = None
        columns: dict[str, list[tuple[Any, Any]]] = {}
        for count, values, weights in found:
            self.examples += count
            self.examples_here += count
            for name, x in values.items():
                columns.setdefault(name, []).append((weights.get(name, count), x))
        for name, entries in columns.items():
            read = stack([x for _, x in entries]).tolist()
            total, whole = self.sums.get(name, 0.0), self.counts.get(name, 0)
            for position, (weight, value) in enumerate(zip(_read([w for w, _ in entries]), read, strict=True)):
                if not weight:
                    continue
                total, whole = total + value * weight, whole + weight
                if name == "loss" and bad is None and not isfinite(value):
                    bad = value, len(entries) - 1 - position
            self.sums[name], self.counts[name] = total, whole
        found.clear()
        return bad

    def state(self) -> dict[str, Any]:
        """The sums for saving."""
        return {"examples": self.examples, "sums": dict(self.sums), "counts": dict(self.counts)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Sums:
        """Saved sums."""
        found = cls()
        found.examples, found.sums, found.counts = state["examples"], dict(state["sums"]), dict(state["counts"])
        return found

    def means(self) -> dict[str, float]:
        """The means of all values, NaN for those of nothing: the loss, then the others by their names."""
        names = sorted(self.sums, key=lambda name: (name != "loss", name))
        return {name: self.sums[name] / self.counts[name] if self.counts[name] else nan for name in names}


def _read(weights: list[Any]) -> list[float]:
    """Weights as numbers, with one transfer for those that are tensors."""
    tensors = [weight for weight in weights if is_tensor(weight)]
    if not tensors:
        return weights
    read = iter(stack([cast(x, float32) for x in tensors]).tolist())
    return [next(read) if is_tensor(weight) else weight for weight in weights]
