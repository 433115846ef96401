"""The result of loading weights: which names were used, and which were not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backburn.base.foreign import printable


@dataclass(frozen=True)
class WeightsReport:
    """The result of :func:`load_weights`: names of the source and of the model, and where they differ.

    ``used`` maps the model's paths to the names that they were loaded from, ``renamed`` those with another name or
    reordered axes. ``unused`` are names of the source, ``missing`` the model's paths that kept their values.
    ``cast`` maps the model's paths to the dtype in the source and that of the model. Prints as a table.

        >>> print(WeightsReport(used={"weight": "fc.weight"}, cast={"weight": ("bfloat16", "float32")}))
        model   source     dtype
        weight  fc.weight  bfloat16 -> float32
        1 used, 0 unused, 0 missing, 1 cast, 0 renamed
    """

    used: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    cast: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [(path, name, " -> ".join(self.cast.get(path, ()))) for path, name in self.used.items()]
        rows += [(path, "(missing)", "") for path in self.missing]
        rows += [("(unused)", name, "") for name in self.unused]
        table = [("model", "source", "dtype"), *(tuple(map(printable, row)) for row in rows)]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in table]
        counts = {name: len(getattr(self, name)) for name in ("used", "unused", "missing", "cast", "renamed")}
        return "\n".join([*lines, ", ".join(f"{count} {name}" for name, count in counts.items())])
