"""Means of the values of steps, which are read from the device many at a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from backburn.tensor.shape import stack


class Sums:
    """Sums of values over examples, in the order of the steps."""

    def __init__(self) -> None:
        self.examples = 0
        #: The examples since the process began, which rates are measured by.
        self.examples_here = 0
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, found: list[tuple[int, dict[str, Any]]]) -> tuple[float, int] | None:
        """Read values, with one transfer for each name, and empty the list; returns a loss that is not finite.

        Beside it stands how many steps ago it was.
        """
        bad: tuple[float, int] | None = None
        columns: dict[str, list[tuple[int, Any]]] = {}
        for count, values in found:
            self.examples += count
            self.examples_here += count
            for name, x in values.items():
                columns.setdefault(name, []).append((count, x))
        for name, entries in columns.items():
            read = stack([x for _, x in entries]).tolist()
            total = self.sums.get(name, 0.0)
            for position, ((count, _), value) in enumerate(zip(entries, read, strict=True)):
                total += value * count
                if name == "loss" and bad is None and not isfinite(value):
                    bad = value, len(entries) - 1 - position
            self.sums[name] = total
            self.counts[name] = self.counts.get(name, 0) + sum(count for count, _ in entries)
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
        """The means of all values: the loss, and the others by their names, in the order that a saved state keeps."""
        names = sorted(self.sums, key=lambda name: (name != "loss", name))
        return {name: self.sums[name] / self.counts[name] for name in names if self.counts[name]}
