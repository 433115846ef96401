"""Reading, listing and comparing runs in folders."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backburn.base.errors import FileFormatError, hint_for
from backburn.base.foreign import is_deep, printable, quoted
from backburn.base.regular import read_regular
from backburn.train.charts import sparkline
from backburn.train.locks import is_locked
from backburn.train.run_folder import CONFIG, LOCK, METRICS, STEPS, read_rows

#: Values of an epoch's row that measure the run, not the model.
PLACES = ("epoch", "step", "examples", "examples_per_second", "seconds")
#: The most bytes of a ``config.json``, and the most values that tables and pages show.
MOST_CONFIG, MOST_VALUES = 2**22, 200
#: A century, beyond which no time is shown.
_LONGEST = 3.2e9


@dataclass(frozen=True)
class Run:
    """A run as it is in its folder: its settings, a row for each epoch, and one for every ``log_every`` steps."""

    path: Path
    config: Mapping[str, Any] = field(repr=False)
    rows: Sequence[Mapping[str, float]] = field(repr=False)
    steps: Sequence[Mapping[str, float]] = field(repr=False)
    is_running: bool = False

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def metrics(self) -> list[str]:
        """The names of the values that measure the model, in their order."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if name not in PLACES and not name.startswith("seconds/")]

    @property
    def last(self) -> Mapping[str, float]:
        """The last row, empty if there is none."""
        return self.rows[-1] if self.rows else {}

    @property
    def seconds(self) -> float:
        """The time of all epochs."""
        return total(row.get("seconds", 0.0) for row in self.rows)

    @property
    def planned(self) -> int | None:
        """The number of epochs planned at the start; None if the run has continued for more."""
        epochs = _table(self.config.get("fit")).get("epochs")
        if not isinstance(epochs, int) or not self.last.get("epoch", 0) <= epochs < 2**63:
            return None
        return epochs

    @property
    def started(self) -> str:
        """When the run began, as ``2026-11-24 03:45``, or an empty text."""
        found = _table(self.config.get("environment")).get("started")
        return found[:16].replace("T", " ") if isinstance(found, str) else ""

    def curve(self, name: str, x: str = "epoch") -> list[tuple[float, float]]:
        """The points of a value over the epochs."""
        return [(row.get(x, i + 1), row[name]) for i, row in enumerate(self.rows) if name in row]

    def curves(self, most: int = MOST_VALUES) -> dict[str, list[tuple[float, float]]]:
        """The points of the first ``most`` values that measure the model over the epochs, by name."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in self.metrics[:most]}
        for i, row in enumerate(self.rows):
            for name, value in row.items():
                if name in found:
                    found[name].append((row.get("epoch", i + 1), value))
        return found

    def settings(self) -> dict[str, Any]:
        """Settings of a run and versions that it ran with, by dotted names; without the time and the command."""
        flat = dict(_flat(self.config))
        return {key: value for key, value in flat.items() if not key.endswith((".started", ".command"))}


def read_run(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder, also while it is running. Raises :class:`FileFormatError` if there is none.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "metrics.jsonl").write_text('{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 2.0}')
    >>> run = read_run(folder)
    >>> run.metrics, run.last["loss"], run.seconds
    (['loss'], 0.5, 2.0)
    """
    path = Path(folder)
    if not _has_run(path):
        raise FileFormatError(f"{path}: there is no run here: it has neither {CONFIG} nor {METRICS}")
    rows, steps = [_rows(path / name) for name in (METRICS, STEPS)]
    return Run(path, read_config(path), rows, steps, is_locked(path / LOCK))


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The table in the ``config.json`` of a folder, empty if there is none."""
    path = Path(folder) / CONFIG
    if not os.path.lexists(path):
        return {}
    try:
        found = json.loads(read_regular(path, MOST_CONFIG, follow=False))
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: this is not JSON: {error}") from None
    if is_deep(found):
        raise FileFormatError(f"{path}: its tables are nested too deeply")
    return _table(found)


def find_runs(folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The runs in a folder, or in several, and below them, in the order of their names.

    Links in the folders are not followed: targets below are found directly, and others may belong to someone else.
    Raises FileNotFoundError for a folder that does not exist, and :class:`FileFormatError` for one without a run.
    """
    found: dict[str, Run] = {}
    for folder in [folders] if isinstance(folders, str | os.PathLike) else folders:
        root = Path(folder)
        if not root.is_dir():
            raise FileNotFoundError(2, "there is no such folder of runs", str(root))
        paths = list(_below(root))
        if not paths:
            links = "; links in it are not followed: name their targets" if _has_links(root) else ""
            raise FileFormatError(f"{root}: there is no run here or below{links}")
        for path in paths:
            place = os.path.realpath(path)
            if place not in found:
                found[place] = read_run(path)
    return list(found.values())


def run_table(runs: Sequence[Run], metrics: Sequence[str] = ()) -> list[list[str]]:
    """Rows of a table of runs, the first with the titles: epochs, time, last values, and their course.

    Without ``metrics`` the values are the most interesting ones of all runs. Raises :class:`FileFormatError` for one
    that no run has.
    """
    names = list(metrics) or _interesting(runs)
    check_metrics(runs, names)
    course = next((name for name in ("validation/loss", "loss", *names) if any(name in r.last for r in runs)), None)
    titles = ["run", "epochs", "time", *names, *([course_title(course)] if course else []), "started", ""]
    table = [titles]
    for run in runs:
        epochs = epochs_of(run) + (f"/{run.planned}" if run.planned else "")
        values = [_number(run.last.get(name)) for name in names]
        curve = [sparkline([y for _, y in run.curve(course)])] if course else []
        state = "running" if run.is_running else ""
        table.append([_shown(run.path), epochs, duration(run.seconds), *values, *curve, run.started, state])
    return table


def course_title(name: str) -> str:
    """The title of a column of small curves."""
    return f"{name} by epoch"


def comparison(runs: Sequence[Run]) -> list[list[str]]:
    """Rows of a table with a column for each run: the settings in which they differ, last and best values."""
    table = [["", *(_shown(run.path) for run in runs)]]
    settings = [run.settings() for run in runs]
    for key in dict.fromkeys(key for each in settings for key in each):
        values = [_text(each.get(key, "-")) for each in settings]
        if len(set(values)) > 1:
            table.append([key, *values])
    table.append(["epochs", *(epochs_of(run) for run in runs)])
    table.append(["time", *(duration(run.seconds) for run in runs)])
    every = [run.curves() for run in runs]
    names = dict.fromkeys(name for curves in every for name in curves)
    for name in list(names)[:MOST_VALUES]:
        whole = [[y for _, y in curves.get(name, ())] for curves in every]
        finite = [[y for y in ys if math.isfinite(y)] for ys in whole]
        table.append([f"{name}, last", *(_number(ys[-1]) if ys else "-" for ys in whole)])
        if not name.startswith("lr"):
            table.append([f"{name}, least", *(_number(min(ys)) if ys else "-" for ys in finite)])
            table.append([f"{name}, largest", *(_number(max(ys)) if ys else "-" for ys in finite)])
    return table


def check_metrics(runs: Sequence[Run], names: Iterable[str]) -> None:
    """Raise :class:`FileFormatError` for a value that no run has."""
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    for name in names:
        if name not in known:
            raise FileFormatError(f"no run has the value {quoted(name)}. {hint_for(name, known)}")


def aligned(table: Sequence[Sequence[str]]) -> str:
    """A table as lines of text, the first column to the left and the others to the right; all cells are foreign text.

    >>> print(aligned([["run", "loss"], ["a", "0.5"], ["long", "12"]]))
    run   loss
    a      0.5
    long    12
    """
    shown = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = []
    for first, *rest in shown:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A human-readable duration.

    >>> [duration(s) for s in (0.31, 75, 7500)]
    ['0.3 s', '1 min 15 s', '2 h 05 min']
    """
    if not 60 <= seconds < _LONGEST:
        return f"{seconds:.1f} s" if abs(seconds) < 60 else f"{seconds:.4g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def total(values: Iterable[float]) -> float:
    """The sum of the finite values."""
    return sum(x for x in values if math.isfinite(x))


def epochs_of(run: Run) -> str:
    """The number of the last epoch, as text."""
    number = run.last.get("epoch", 0)
    return f"{number:.0f}" if abs(number) < 1e9 else f"{number:.4g}"


def _has_run(path: Path) -> bool:
    return any((path / name).is_file() and not (path / name).is_symlink() for name in (METRICS, CONFIG))


def _has_links(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.is_symlink() for entry in entries)


def _below(root: Path) -> Iterator[Path]:
    """The folders of runs, ``root`` itself included; nothing below a run is one."""
    waiting = [root]
    while waiting:
        path = waiting.pop()
        if _has_run(path):
            yield path
            continue
        with os.scandir(path) as entries:
            inside = [e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
        waiting += [path / name for name in sorted(inside, reverse=True)]


def _rows(path: Path) -> list[dict[str, float]]:
    """The numbers in rows; anything else in them is skipped."""
    if not os.path.lexists(path):
        return []
    rows = [{k: _float(x) for k, x in row.items() if type(x) in (int, float)} for row in read_rows(path)]
    return [row for row in rows if row]


def _float(value: float) -> float:
    """A number of a file; an integer of more than 64 bits becomes a float."""
    if isinstance(value, float) or abs(value) < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _interesting(runs: Sequence[Run]) -> list[str]:
    """Names of values to show, at most five: first the loss, and those of validation."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    first = [name for name in names if name == "loss" or name.startswith("validation/")]
    others = [name for name in names if name not in first and not name.startswith(("lr", "gradient_norm", "skipped"))]
    return (first + others)[:5]


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(path: Path) -> str:
    return path.as_posix()
