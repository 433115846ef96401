"""How :func:`backburn.onnx.load` used a file: parameters, constants, ties and operators."""

from __future__ import annotations

from dataclasses import dataclass, field

from backburn.base.foreign import printable


@dataclass(frozen=True)
class Entry:
    """A tensor of a file, and its role in the model.

    ``path`` is its name in the model, ``names`` are the initializers of the file that it came from, ``role`` is
    ``"parameter"``, ``"buffer"`` or ``"constant"``, ``change`` says how its layout in the file differs (``"T"``:
    transposed, ``"stacked"``: with the other weights of a recurrent layer), and ``reason`` why it has its role.
    """

    path: str
    names: tuple[str, ...]
    role: str
    shape: tuple[int, ...]
    dtype: str
    change: str
    reason: str


@dataclass(frozen=True)
class OnnxReport:
    """How a file was loaded; ``str(report)`` is a table.

    ``parameters``, ``buffers`` and ``constants`` are entries of tensors. ``ties`` are pairs of a parameter's path and
    an initializer that follows it, ``splits`` pairs of an initializer and the paths of the parameters that it became.
    ``missing`` are the paths of parameters that the exporter noted, but that have no tensor in the file: omitted zero
    biases, and parameters folded into other constants. ``renamed`` are the initializers whose names are not paths, with
    their paths here, and ``operators`` the number of nodes of each operator.
    """

    parameters: tuple[Entry, ...] = ()
    buffers: tuple[Entry, ...] = ()
    constants: tuple[Entry, ...] = ()
    ties: tuple[tuple[str, str], ...] = ()
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    missing: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    operators: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [("model", "initializer", "dtype", "shape", "role", "why")]
        for entry in (*self.parameters, *self.buffers, *self.constants):
            names = ", ".join(name for name in entry.names if name != entry.path)
            change = f" ({entry.change})" if entry.change else ""
            rows.append(
                (entry.path, f"{names}{change}".strip(), entry.dtype, str(list(entry.shape)), entry.role, entry.reason)
            )
        shown = [tuple(printable(cell, 60) for cell in row) for row in rows]
        widths = [max(len(row[i]) for row in shown) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
        ]
        lines += [f"tied: {printable(name)} follows {printable(path)}" for path, name in self.ties]
        lines += [f"split: {printable(name)} became {', '.join(map(printable, paths))}" for name, paths in self.splits]
        if self.missing:
            lines.append(f"not in the file: {', '.join(map(printable, self.missing))}")
        counted = sorted(self.operators.items(), key=lambda item: (-item[1], item[0]))
        lines.append(", ".join(f"{printable(name)} {count}" for name, count in counted))
        return "\n".join(lines)
