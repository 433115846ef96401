"""Reports: self-contained pages with the curves, tables and images of a run."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.base.errors import ArgumentError, FileFormatError, ShapeError
from backburn.train.charts import BOTTOM, HEIGHT, LEFT, POINTS, RIGHT, TOP, WIDTH, line_chart, png, share_bar, sparkline
from backburn.train.report import comparison_html, report_html
from backburn.train.runs import Run

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Checks the nesting of elements, and collects text, addresses and elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if "style" not in self.open else ""

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]


def assert_loads_nothing(text: str) -> None:
    page = Page(text)
    assert page.tags("script") == page.tags("link") == page.tags("iframe") == []
    addresses = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", text)
    assert all(address.startswith("data:image/png;base64,") for address in addresses)


# ---- charts ----


def drawing(chart: str) -> ElementTree.Element:
    """The parsed SVG of a chart."""
    return ElementTree.fromstring(chart[: chart.index("</svg>") + len("</svg>")])


def test_points_have_the_positions_of_their_values() -> None:
    """Minimum and maximum are at the edges of the plot."""
    marks = drawing(line_chart({"a": [(1, 3.0), (2, 5.0), (3, 4.0)]})).findall("circle")
    places = [(float(m.attrib["cx"]), float(m.attrib["cy"])) for m in marks]
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert places == [(LEFT, HEIGHT - BOTTOM), (middle[0], TOP), (WIDTH - RIGHT, middle[1])]
    assert [mark.findtext("title") for mark in marks][1] == "a, epoch 2: 5"


def test_wide_ranges_are_logarithmic() -> None:
    chart = line_chart({"a": [(1, 0.01), (2, 1.0), (3, 100.0)]})
    assert "logarithmic scale" in chart
    ys = [float(m.attrib["cy"]) for m in drawing(chart).findall("circle")]
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.06)
    assert "logarithmic" not in line_chart({"a": [(1, 0.0), (2, 1.0), (3, 100.0)]})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_interrupt_a_curve(bad: float) -> None:
    found = drawing(line_chart({"a": [(1, 1.0), (2, 2.0), (3, bad), (4, 3.0)]}))
    assert len(found.findall("path")) == 2
    assert len(found.findall("circle")) == 3
    assert line_chart({"a": [(1, bad)]}) == '<p class="note">no finite values</p>'


@pytest.mark.parametrize("values", [[0.0], [5.0], [-2.0, -2.0], [1e-300, 1e300], [1e12, 1e12 + 1]])
def test_extreme_values_stay_on_the_chart(values: list[float]) -> None:
    found = drawing(line_chart({"a": list(enumerate(values))}))
    for mark in found.findall("circle"):
        assert LEFT <= float(mark.attrib["cx"]) <= WIDTH - RIGHT
        assert TOP <= float(mark.attrib["cy"]) <= HEIGHT - BOTTOM
    assert found.findall("text")


def test_long_curves_are_thinned() -> None:
    chart = line_chart({"a": [(i, float(i)) for i in range(100_000)]}, "step")
    (path,) = drawing(chart).findall("path")
    assert path.attrib["d"].count("L") == POINTS - 1
    assert f"M{LEFT:.1f} {HEIGHT - BOTTOM:.1f}" in path.attrib["d"]
    assert path.attrib["d"].endswith(f"L{WIDTH - RIGHT:.1f} {TOP:.1f}")
    assert "circle" not in chart


def test_names_are_escaped_in_charts() -> None:
    for chart in (line_chart({'<a> & "b"': [(1, 1.0)]}), share_bar({"<a>": 1.0, "b": 3.0})):
        assert "<a>" not in chart
        drawing(chart)


def test_shares_are_widths() -> None:
    found = drawing(share_bar({"steps": 3.0, "data": 1.0}))
    assert [float(bar.attrib["width"]) for bar in found.findall("rect")] == [720, 240]
    assert "steps 75% (3.0 s)" in share_bar({"steps": 3.0, "data": 1.0})
    assert share_bar({}) == share_bar({"steps": 0.0}) == ""


def test_sparklines() -> None:
    assert sparkline([0, 7, math.nan, 3]) == "▁█ ▄"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([]) == sparkline([math.nan]) == ""
    assert len(sparkline(list(range(1000)))) == 16


def opened(address: str) -> Any:
    image = pytest.importorskip("PIL.Image")
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(image.open(io.BytesIO(content)))


def test_pillow_reads_the_images() -> None:
    gray = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    assert np.array_equal(opened(png(gray.tolist())), gray)
    coloured = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    assert np.array_equal(opened(png(coloured.tolist())), coloured)


# ---- sections ----


def test_confusion_counts_rows_by_the_true_class() -> None:
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    expected = np.zeros((4, 4), int)
    np.add.at(expected, (labels, predicted), 1)
    for a, b in (
        (labels, predicted),
        (bb.asarray(labels), bb.asarray(predicted)),
        (labels.tolist(), predicted.tolist()),
    ):
        assert train.Confusion(a, b).counts == expected.tolist()
    text = train.Confusion(labels, predicted, ["<a>", "b", "c", "d"]).html()
    assert f"{(labels == predicted).sum()} of 200 right" in text
    assert "&lt;a&gt;" in text
    assert "<a>" not in text


@pytest.mark.parametrize(
    ("kind", "words", "given"),
    [
        (ShapeError, "equal lengths, not 2 and 1", ([0, 1], [0])),
        (ShapeError, "there are no labels", ([], [])),
        (ArgumentError, "numbers 0 to 1, not 2", ([0, 2], [0, 1], ["a", "b"])),
        (ArgumentError, "classes have the numbers", ([0, -1], [0, 1])),
        (ArgumentError, "labels are class numbers", ([0.5], [0])),
        (ArgumentError, "predicted are class numbers", ([0], [[0.1, 0.9]])),
    ],
)
def test_invalid_confusions(kind: Any, words: str, given: Any) -> None:
    with pytest.raises(kind, match=f"Confusion: .*{words}"):
        train.Confusion(*given)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3, 4), (2, 3, 3, 4)])
def test_pictures_have_the_values_given(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape).astype(np.float32)
    values.flat[0], values.flat[1] = -1.0, 2.0
    text = train.Pictures(values, ["<first>", "second"]).html()
    assert "&lt;first&gt;" in text
    sources = re.findall(r'src="([^"]+)"', text)
    expected = np.clip(np.rint(values * 255), 0, 255).astype(np.uint8)
    for source, image in zip(sources, expected, strict=True):
        channels_last = image if image.ndim == 2 else np.moveaxis(image, 0, -1)
        assert np.array_equal(opened(source), channels_last.squeeze() if shape[1] == 1 else channels_last)
    whole = train.Pictures(expected).html()
    assert re.findall(r'src="([^"]+)"', whole) == sources


def test_pictures_of_nan_and_of_other_shapes() -> None:
    (source,) = re.findall(r'src="([^"]+)"', train.Pictures([[[math.nan, 1.0]]]).html())
    assert opened(source).tolist() == [[0, 255]]
    for shape in ((4, 4), (1, 2, 4, 4), (0, 4, 4), (1, 1, 1, 4, 4)):
        with pytest.raises(ShapeError, match="Pictures: images have shape"):
            train.Pictures(np.zeros(shape))
    with pytest.raises(ShapeError, match="2 images have 1 captions"):
        train.Pictures(np.zeros((2, 4, 4)), ["one"])


# ---- pages ----

ROWS = [
    {
        "epoch": i, "step": 10 * i, "loss": 1.0 / i, "validation/loss": 2.0 / i, "lr": 0.1,
        "validation/accuracy": i / 9, "examples_per_second": 100.0,
        "seconds": 4.0, "seconds/data": 1.0, "seconds/steps": 2.0,
    }
    for i in range(1, 9)
]  # fmt: skip


def test_a_report_shows_the_run() -> None:
    run = Run(Path("runs/mine"), {"fit": {"epochs": 9}, "environment": {"started": "2026-01-02T03:04:05"}}, ROWS, [])
    text = report_html(run, {"Note": "all < well"})
    assert_loads_nothing(text)
    page = Page(text)
    for words in ("Run mine", "8 of 9", "80", "32.0 s", "2026-01-02 03:04", "all < well", "Table of 8 epochs"):
        assert words in page.words
    assert "validation/accuracy0.888890.11111 (epoch 1)0.88889 (epoch 8)" in page.words
    assert "steps 50% (16.0 s)" in page.words
    assert "other 25% (8.0 s)" in page.words
    # Training and validation are in one chart.
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles == ["loss", "lr", "accuracy", "examples per second"]
    first = text[text.index("<h3>loss") : text.index("<h3>lr")]
    assert first.count("<path") == 2
    assert "prefers-color-scheme: dark" in text


def test_steps_have_a_chart() -> None:
    steps = [{"epoch": 1, "step": i, "loss": 1.0 / i} for i in range(1, 9)]
    assert "<h3>loss by steps</h3>" in report_html(Run(Path("a"), {}, ROWS, steps))


def test_texts_of_a_run_are_escaped() -> None:
    evil = '<script>alert("x")</script>'
    run = Run(Path(evil.replace("/", "")), {"a": evil}, [{"epoch": 1, evil: 0.5, "seconds": 1.0}], [])
    for text in (report_html(run, {evil: evil}, evil), comparison_html([run, run])):
        assert_loads_nothing(text)
        assert "<script" not in text


def test_runs_without_an_epoch_and_with_nan() -> None:
    assert "No epoch has ended yet." in report_html(Run(Path("a"), {}, [], []))
    text = report_html(Run(Path("a"), {}, [{"epoch": 1, "step": 1, "loss": math.nan, "seconds": 1.0}], []))
    assert_loads_nothing(text)
    assert "no finite values" in text


def test_the_table_shows_only_the_last_epochs() -> None:
    rows = [{"epoch": i, "loss": 1.0} for i in range(1, 301)]
    text = report_html(Run(Path("a"), {}, rows, []))
    assert "the last 200 of 300 epochs" in text
    assert text.count("<tr>") < 220


# ---- in a run ----


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch["x"]), batch["x"])


def fit(*callbacks: Any, **options: Any) -> Any:
    bb.random.seed(0)
    data = bb.data.batches({"x": np.linspace(0, 1, 12, dtype=np.float32)[:, None]}, batch_size=4, seed=0)
    given = {"epochs": 2, "log_every": 2, "progress": False} | options
    return train.fit(nn.Linear(1, 1), loss, data, optimizer=optim.SGD(0.1), callbacks=list(callbacks), **given)


def test_a_run_writes_its_report(tmp_path: Path) -> None:
    def confusion(trainer: Any) -> Any:
        assert trainer.epoch == 2
        return train.Confusion([0, 1], [0, 1])

    run = fit(train.Report({"Confusion": confusion}), folder=tmp_path / "a")
    text = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert_loads_nothing(text)
    page = Page(text)
    assert f"{run.history[-1]['loss']:.5g}" in page.words
    assert "2 of 2 right" in page.words
    assert "loss by steps" in page.words
    assert "SGD" in page.words
    # Rewritten from the folder, without the section.
    path = train.write_report(tmp_path / "a")
    assert path == tmp_path / "a" / "report.html"
    assert "2 of 2 right" not in path.read_text(encoding="utf-8")


def test_a_run_without_a_folder_names_a_file(tmp_path: Path) -> None:
    fit(train.Report(path=tmp_path / "mine.html"))
    assert "2 of" not in Page((tmp_path / "mine.html").read_text(encoding="utf-8")).words
    with pytest.raises(ArgumentError, match="Report: the run has no folder, so name a file"):
        fit(train.Report())
    wrong: Any = {"Confusion": train.Confusion([0], [0])}
    with pytest.raises(ArgumentError, match="sections are functions of the trainer by title"):
        train.Report(wrong)


def test_a_failing_run_has_a_report(tmp_path: Path) -> None:
    class Broken(train.Callback):
        def on_epoch(self, trainer: Any, row: Any) -> None:
            raise RuntimeError("it is <broken>")

    called: Any = []
    with pytest.raises(RuntimeError, match="it is <broken>"):
        fit(train.Report({"Never": called.append}), Broken(), folder=tmp_path / "a")
    text = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "ended by RuntimeError: it is &lt;broken&gt;" in text
    assert called == []


def test_a_failing_section_raises_its_own_error(tmp_path: Path) -> None:
    def section(trainer: Any) -> str:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        fit(train.Report({"Mine": section}), folder=tmp_path / "a")
    assert caught.traceback[-1].name == "section"
    assert "<h3>loss</h3>" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert train.read_run(tmp_path / "a").last["epoch"] == 2


def test_a_section_of_another_type_is_named(tmp_path: Path) -> None:
    wrong: Any = {"Score": lambda trainer: 3}
    with pytest.raises(ArgumentError, match=r"Report: the section 'Score' is a string, Confusion, .*, not of type int"):
        fit(train.Report(wrong), folder=tmp_path / "a")


def test_reports_of_other_folders(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="there is no run here"):
        train.write_report(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"config.json: this is not JSON"):
        train.write_report(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]), encoding="utf-8")
    assert train.write_report(tmp_path).exists()
