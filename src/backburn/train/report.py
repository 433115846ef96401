"""Reports: self-contained pages about runs, with curves, timings, confusion matrices and pictures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backburn.base.errors import ArgumentError, ShapeError
from backburn.base.foreign import printable, printable_lines
from backburn.io import write_atomically
from backburn.tensor.core.host import asarray
from backburn.train.callbacks import Callback
from backburn.train.charts import line_chart, png, share_bar
from backburn.train.run_folder import REPORT
from backburn.train.runs import MOST_VALUES, Run, comparison, duration, epochs_of, find_runs, read_run, total

if TYPE_CHECKING:
    from backburn.train.trainer import Trainer

#: The most epochs that the table of a report shows.
ROWS = 200


class Section(Protocol):
    """A part of a report: its HTML, in which all text is escaped."""

    def html(self) -> str:
        """The part as HTML."""
        ...


class Confusion:
    """How often each class was predicted as which: ``labels`` and ``predicted`` are class numbers, equally many.

    Rows are the true classes. ``classes`` are their names. Raises :class:`ShapeError` for different lengths and
    :class:`ArgumentError` for numbers that are not classes.

        >>> from backburn import train
        >>> train.Confusion([0, 0, 1], [0, 1, 1], ["cat", "dog"]).counts
        [[1, 1], [0, 1]]
    """

    def __init__(self, labels: Any, predicted: Any, classes: Sequence[str] | None = None) -> None:
        true, found = _integers("labels", labels), _integers("predicted", predicted)
        if len(true) != len(found):
            raise ShapeError(f"Confusion: labels and predicted have equal lengths, not {len(true)} and {len(found)}")
        if not true:
            raise ShapeError("Confusion: there are no labels")
        number = max(*true, *found) + 1 if classes is None else len(classes)
        if min(*true, *found) < 0 or max(*true, *found) >= number:
            raise ArgumentError(f"Confusion: classes have the numbers 0 to {number - 1}, not {max(*true, *found)}")
        self.classes = [str(i) for i in range(number)] if classes is None else [str(name) for name in classes]
        #: The number of elements of each class, in rows, that were predicted as each class.
        self.counts = [[0] * number for _ in range(number)]
        for row, column in zip(true, found, strict=True):
            self.counts[row][column] += 1

    def html(self) -> str:
        """The table, coloured by the share of each row."""
        total = sum(map(sum, self.counts))
        right = sum(row[i] for i, row in enumerate(self.counts))
        heads = "".join(f"<th>{_escaped(name)}</th>" for name in self.classes)
        lines = []
        for i, (name, row) in enumerate(zip(self.classes, self.counts, strict=True)):
            size = sum(row) or 1
            cells = "".join(
                f'<td class="{"right" if i == j else "wrong"}" style="--share:{n / size:.3f}">{n or ""}</td>'
                for j, n in enumerate(row)
            )
            lines.append(f"<tr><th>{_escaped(name)}</th>{cells}<td>{row[i] / size:.1%}</td></tr>")
        return (
            f'<p>{right} of {total} right, {right / total:.2%}. Rows are the true classes.</p><div class="wide">'
            f'<table class="confusion"><tr><th></th>{heads}<th>right</th></tr>{"".join(lines)}</table></div>'
        )


class Pictures:
    """Images with captions: samples of a model, or elements that it misclassifies.

    ``images`` have shape (number, height, width) or (number, channels, height, width) with one channel or three, floats
    from 0 to 1 or integers from 0 to 255; values beyond are clipped. Raises :class:`ShapeError` for other shapes.

        >>> import backburn as bb
        >>> from backburn import train
        >>> train.Pictures(bb.zeros((2, 1, 4, 4)), ["first", "second"]).html().count("<img")
        2
    """

    def __init__(self, images: Any, captions: Iterable[Any] | None = None) -> None:
        tensor = asarray(images)
        shape = tensor.shape
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[1] not in (1, 3)) or 0 in shape:
            fit = "(number, height, width) or (number, 1 or 3 channels, height, width)"
            raise ShapeError(f"Pictures: images have shape {fit}, not {list(shape)}")
        factor = 255.0 if tensor.dtype.is_floating else 1.0
        self._images = [_pixels(image, factor) for image in tensor.tolist()]
        self._captions = [""] * shape[0] if captions is None else [str(text) for text in captions]
        if len(self._captions) != shape[0]:
            raise ShapeError(f"Pictures: {shape[0]} images have {len(self._captions)} captions")

    def html(self) -> str:
        """The images one after another."""
        figures = "".join(
            f'<figure><img alt="{text}" src="{png(image)}"><figcaption>{text}</figcaption></figure>'
            for image, text in zip(self._images, map(_lines, self._captions), strict=True)
        )
        return f'<div class="pictures">{figures}</div>'


class Report(Callback):
    """Writes the report of a run at its end, however it ends: ``report.html`` in its folder, or a file ``path``.

    ``sections`` are functions of the trainer by title, called at the end, that return a :class:`Confusion`,
    :class:`Pictures` or a text.

        def confusion(trainer):
            return train.Confusion(labels, trainer.model(images).argmax(axis=1), names)

        train.fit(..., folder="runs/a", callbacks=[train.Report({"Confusion": confusion})])
    """

    def __init__(
        self,
        sections: Mapping[str, Callable[[Any], Section | str]] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        given: Any = {} if sections is None else sections
        if not isinstance(given, Mapping) or not all(callable(each) for each in given.values()):
            raise ArgumentError("Report: sections are functions of the trainer by title: {'Confusion': confusion}")
        self.sections: dict[str, Callable[[Any], Section | str]] = dict(given)
        self.path = None if path is None else Path(path)

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Raise :class:`ArgumentError` if there is no place for the report."""
        if self.path is None and trainer.folder is None:
            raise ArgumentError("Report: the run has no folder, so name a file: Report(path='report.html')")

    def on_end(self, trainer: Trainer[Any], error: BaseException | None) -> None:
        """Write the report; that of a failed run has no sections."""
        folder = trainer.folder
        path = self.path if self.path is not None or folder is None else folder.path / REPORT
        if path is None:  # as ``on_start`` has said
            return
        ended = _how_it_ended(trainer, error)

        def write(sections: Mapping[str, Section | str]) -> None:
            if trainer.is_first:
                run = Run(Path("run"), {}, trainer.history, []) if folder is None else read_run(folder.path)
                _write(path, report_html(run, sections, ended), follow=self.path is not None)

        with suppress(OSError) if error is not None else nullcontext():  # of a full disk, which the run has reported
            write({})
        if self.sections and error is None:  # the report without them remains if one fails
            write({title: section(trainer) for title, section in self.sections.items()})


def write_report(
    folder: str | os.PathLike[str],
    sections: Mapping[str, Section | str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the report of a run in a folder, and return its path: ``report.html`` there, or ``path``.

    Raises :class:`FileFormatError` for a folder without a run, OSError where the file cannot be written.
    """
    run = read_run(folder)
    target = run.path / REPORT if path is None else Path(path)
    _write(target, report_html(run, sections), follow=path is not None)
    return target


def write_comparison(
    folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], path: str | os.PathLike[str]
) -> Path:
    """Write a page with the curves of several runs over one another, and what they differ in; returns its path."""
    runs = find_runs(folders)
    _write(Path(path), comparison_html(runs))
    return Path(path)


def report_html(run: Run, sections: Mapping[str, Section | str] | None = None, ended: str = "") -> str:
    """The page about a run, as text."""
    facts = {
        "state": "running" if run.is_running and not ended else ended,
        "epochs": epochs_of(run) + (f" of {run.planned}" if run.planned else ""),
        "steps": f"{run.last.get('step', 0):.9g}",
        "time": duration(run.seconds),
        "started": run.started,
    }
    parts = [_table((key, value) for key, value in facts.items() if value), *_last_values(run), *_curves(run)]
    phases = _phases(run)
    if phases:
        parts += ["<h2>Time</h2>", share_bar(phases)]
    for title, section in (sections or {}).items():
        given: object = section
        if not isinstance(given, str) and not hasattr(given, "html"):
            raise ArgumentError(
                f"Report: the section {title!r} is a string, Confusion, Pictures or another object with html(), not of "
                f"type {type(given).__name__}"
            )
        content = f"<p>{_lines(section)}</p>" if isinstance(section, str) else section.html()
        parts += [f"<h2>{_escaped(title)}</h2>", content]
    parts += _epochs(run)
    if run.config:
        text = json.dumps(run.config, indent=2, ensure_ascii=False)
        parts.append(f"<details><summary>Settings and environment</summary><pre>{_lines(text)}</pre></details>")
    return _page(f"Run {run.name}", parts)


def comparison_html(runs: Sequence[Run]) -> str:
    """The page that compares runs, as text."""
    every = {run.path.as_posix(): run.curves() for run in runs}
    names = dict.fromkeys(name for curves in every.values() for name in curves)
    charts = [
        f"<div><h3>{_escaped(name)}</h3>"
        + line_chart({path: curves[name] for path, curves in every.items() if name in curves})
        + "</div>"
        for name in list(names)[:MOST_VALUES]
    ]
    heads, *rows = comparison(runs)
    table = "".join(
        f"<tr><th>{_escaped(first)}</th>{''.join(f'<td>{_escaped(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    head = "".join(f"<th>{_escaped(cell)}</th>" for cell in heads)
    parts = [f'<div class="charts">{"".join(charts)}</div>', "<h2>Settings and values</h2>"]
    parts.append(f'<div class="wide"><table><tr>{head}</tr>{table}</table></div>')
    return _page(f"{len(runs)} runs", parts)


# ---- parts ----


def _last_values(run: Run) -> list[str]:
    if not run.rows:
        return ["<p>No epoch has ended yet.</p>"]
    lines = []
    for name, curve in run.curves().items():
        finite = [(y, epoch) for epoch, y in curve if math.isfinite(y)]
        if not finite or name.startswith("lr"):
            continue
        (least, at), (largest, where) = min(finite), max(finite)
        last = f"{curve[-1][1]:.5g}"
        cells = [name, last, f"{least:.5g} (epoch {at:.9g})", f"{largest:.5g} (epoch {where:.9g})"]
        lines.append("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>value</th><th>last</th><th>least</th><th>largest</th></tr>"
    return [f'<div class="wide"><table>{head}{"".join(lines)}</table></div>'] if lines else []


def _curves(run: Run) -> list[str]:
    """A chart for each kind of value: training and validation together; and one for the steps."""
    groups: dict[str, list[str]] = {}
    curves = run.curves()
    for name in curves:
        groups.setdefault("lr" if name.startswith("lr") else name.rpartition("/")[2], []).append(name)
    charts = {title: line_chart({name: curves[name] for name in names}) for title, names in groups.items()}
    if any("examples_per_second" in row for row in run.rows):
        charts["examples per second"] = line_chart({"examples per second": run.curve("examples_per_second")})
    if run.steps:
        curve = [(row["step"], row["loss"]) for row in run.steps if "loss" in row and "step" in row]
        charts["loss by steps"] = line_chart({"loss": curve}, "step")
    drawn = "".join(f"<div><h3>{_escaped(title)}</h3>{chart}</div>" for title, chart in charts.items())
    return [f'<div class="charts">{drawn}</div>'] if drawn else []


def _phases(run: Run) -> dict[str, float]:
    """The seconds of each phase of all epochs, and what is left of the whole."""
    found: dict[str, float] = {}
    for row in run.rows:
        for name, value in row.items():
            if name.startswith("seconds/") and math.isfinite(value):
                found[name.partition("/")[2]] = found.get(name.partition("/")[2], 0.0) + value
    found = dict(list(found.items())[:MOST_VALUES])
    rest = run.seconds - total(found.values())
    return {name: size for name, size in {**found, "other": rest}.items() if 0.0 < size < math.inf} if found else {}


def _epochs(run: Run) -> list[str]:
    """The table of the last epochs."""
    if not run.rows:
        return []
    names = list(dict.fromkeys(name for row in run.rows for name in row))[:MOST_VALUES]
    head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
    lines = [
        "<tr>" + "".join(f"<td>{f'{row[name]:.5g}' if name in row else ''}</td>" for name in names) + "</tr>"
        for row in run.rows[-ROWS:]
    ]
    shown = f"the last {ROWS} of {len(run.rows)} epochs" if len(run.rows) > ROWS else f"{len(run.rows)} epochs"
    table = f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
    return [f"<details><summary>Table of {shown}</summary>{table}</details>"]


def _escaped(text: str) -> str:
    """A line of untrusted text as HTML."""
    return escape(printable(text))


def _lines(text: str) -> str:
    """Text of several lines as HTML."""
    return escape("\n".join(map(printable_lines, text.split("\n"))))


def _table(pairs: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{_escaped(key)}</th><td>{_escaped(value)}</td></tr>" for key, value in pairs)
    return f'<table class="facts">{lines}</table>'


def _how_it_ended(trainer: Trainer[Any], error: BaseException | None) -> str:
    if error is not None:
        return f"ended by {type(error).__name__}: {error}".removesuffix(": ")
    return f"stopped: {trainer.stopped}" if trainer.stopped else "ended"


def _integers(name: str, values: Any) -> list[int]:
    """Class numbers from any array or list."""
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    if not all(isinstance(x, int) for x in found):
        raise ArgumentError(f"Confusion: {name} are class numbers, one for each element")
    return found


def _pixels(image: list[Any], factor: float) -> list[Any]:
    """Rows of an image as bytes; channels come last."""

    def byte(value: float) -> int:
        return min(max(round(value * factor), 0), 255) if math.isfinite(value) else 0

    if not isinstance(image[0][0], list):
        return [[byte(x) for x in row] for row in image]
    if len(image) == 1:
        return [[byte(x) for x in row] for row in image[0]]
    rows = zip(*image, strict=True)
    return [[tuple(byte(x) for x in pixel) for pixel in zip(*row, strict=True)] for row in rows]


def _write(path: Path, text: str, *, follow: bool = True) -> None:
    write_atomically(path, text.encode("utf-8", "backslashreplace"), follow=follow)


_STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --faint: #5d5d5d; --back: #fff; --line: #dcdcdc;
  --k0: #c2410c; --k1: #1d6fb8; --k2: #2e7d32; --k3: #8e3fb0; --k4: #a06a00;
  --k5: #00838f; --k6: #b0306a; --k7: #5b5b5b }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --faint: #a3a3a3; --back: #161616; --line: #3a3a3a;
  --k0: #ff9a5c; --k1: #6cb6ff; --k2: #7ccf80; --k3: #d39bf0; --k4: #e6b450;
  --k5: #5fd0dc; --k6: #ff8fc0; --k7: #b5b5b5 } }
body { margin: 2rem auto; max-width: 66rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--back) }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem } h3 { font-size: 1rem; margin: 0.5rem 0 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.5rem }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--faint) } .grid { stroke: var(--line) }
path { fill: none; stroke: currentColor; stroke-width: 1.8 } circle, rect { fill: currentColor }
.c0 { color: var(--k0) } .c1 { color: var(--k1) } .c2 { color: var(--k2) } .c3 { color: var(--k3) }
.c4 { color: var(--k4) } .c5 { color: var(--k5) } .c6 { color: var(--k6) } .c7 { color: var(--k7) }
.legend { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: 0.87rem }
.legend li::before { content: "\\25CF\\00A0" }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.7rem 0 }
th, td { padding: 0.15rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, .facts td { text-align: left } th { font-weight: 600 }
.confusion td { text-align: center; min-width: 1.6rem }
.right { background: color-mix(in srgb, var(--k2) calc(var(--share) * 60%), transparent) }
.wrong { background: color-mix(in srgb, var(--k0) calc(var(--share) * 100%), transparent) }
.pictures { display: flex; flex-wrap: wrap; gap: 0.6rem } figure { margin: 0; text-align: center; font-size: 0.8rem }
img { width: 5.5rem; image-rendering: pixelated; border: 1px solid var(--line) }
details { margin: 1rem 0 } pre { overflow-x: auto; font-size: 0.85rem }
"""


def _page(title: str, parts: Iterable[str]) -> str:
    """A whole page, which loads nothing."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body><h1>{_escaped(title)}</h1>"
        f"{chr(10).join(parts)}</body></html>\n"
    )
