"""The documentation's pictures agree with the recorded figures, the packages and the pages that show them."""

from __future__ import annotations

import importlib
import re
import sys
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.project.test_layering import HEIGHT

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tools"))
draw_figures = importlib.import_module("draw_figures")
sys.path.remove(str(ROOT / "tools"))


DRAWN = dict(draw_figures.drawings())
KEPT = sorted(name for name in DRAWN if draw_figures.is_in_repository(name))


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_well_formed_and_small(name: str) -> None:
    ElementTree.fromstring(DRAWN[name])
    assert len(DRAWN[name]) < 200_000


@pytest.mark.parametrize("name", KEPT)
def test_committed_pictures_show_the_recorded_figures(name: str) -> None:
    assert (IMAGES / name).read_text(encoding="utf-8") == DRAWN[name], "run `python tools/draw_figures.py`"


def test_the_repository_keeps_the_pictures_of_the_readme_and_the_mark() -> None:
    shown = set(re.findall(r"docs/images/([\w-]+\.svg)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert set(KEPT) == shown | {"logo-light.svg", "logo-dark.svg"}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8")
    assert set(re.findall(r"!/docs/images/([\w-]+)-\*\.svg", ignored)) == set(draw_figures.IN_REPOSITORY)


def test_example_drawings_are_stored_once_for_both_themes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the examples draw with matplotlib")
    sys.path.insert(0, str(ROOT / "tools"))
    keep_figures = importlib.import_module("keep_figures")
    sys.path.remove(str(ROOT / "tools"))
    monkeypatch.setattr(keep_figures, "DOCS", tmp_path)
    (tmp_path / "figures").mkdir()
    for theme in ("light", "dark"):
        with pyplot.style.context(ROOT / "examples" / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2)
            left.plot([1, 3, 2], label="a line")
            right.imshow([[0.0, 1.0], [0.5, 0.2]])
            figure.savefig(tmp_path / f"drawn-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)
    keep_figures.main(str(tmp_path / "drawn"), "gallery-drawn")
    text = (tmp_path / "figures" / "gallery-drawn.svg").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        drawn = keep_figures.small((tmp_path / f"drawn-{theme}.svg").read_text(encoding="utf-8"))
        made = ElementTree.fromstring(draw_figures.in_theme(text, theme))
        assert [(n.tag, n.attrib, n.text) for n in made.iter()] == [(n.tag, n.attrib, n.text) for n in drawn.iter()]
    (tmp_path / "drawn-dark.svg").write_text((tmp_path / "drawn-light.svg").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="differ by more than their colours"):
        keep_figures.main(str(tmp_path / "drawn"), "gallery-drawn")


def test_a_chart_draws_a_bar_of_the_ratio_of_each_figure() -> None:
    data = draw_figures.measurements()
    drawing = draw_figures.chart(data, "models")(draw_figures.THEMES["light"])
    root = ElementTree.fromstring(drawing.svg())
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    widths = [float(node.attrib["width"]) for node in root.iter("{http://www.w3.org/2000/svg}rect")][2:]
    figures = [row[bar] for row in data["models"]["rows"] for bar in ("loss", "step")]
    assert [word for word in words if re.fullmatch(r"\d\.\d\d", word)] == [str(figure) for figure in figures]
    assert all(abs(w / widths[0] - float(f / figures[0])) < 0.01 for w, f in zip(widths, figures, strict=True))


def test_the_overview_repeats_figures_of_other_tables() -> None:
    data = draw_figures.measurements()
    assert data["overview"]["rows"][0]["ratio"] == data["models"]["rows"][-1]["step"]
    assert all(isinstance(row["ratio"], Decimal) for row in data["overview"]["rows"])


def test_geometric_means_follow_from_their_rows() -> None:
    data = draw_figures.measurements()
    for name in ("models", "derivatives", "replayed"):
        *rows, mean = data[name]["rows"]
        for bar in data[name]["bars"]:
            product = 1.0
            for row in rows:
                product *= float(row[bar])
            assert abs(product ** (1 / len(rows)) - float(mean[bar])) < 0.011, (name, bar)


def test_every_table_names_a_machine_and_is_on_the_page() -> None:
    data = draw_figures.measurements()
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    tables = {name for name in data if name != "machines"}
    assert set(re.findall(r"```\{measured\} (\w+)", page)) == tables
    assert all(data[name]["machine"] in data["machines"] and data[name]["date"] for name in tables)


def test_the_picture_of_the_packages_is_that_of_the_layering() -> None:
    heights = [{HEIGHT[name] for name, _ in row} for _, row in draw_figures.LAYERS]
    assert all(len(height) == 1 for height in heights)
    order = [height.pop() for height in heights]
    assert order == sorted(order, reverse=True)
    drawn = {name for _, row in draw_figures.LAYERS for name, _ in row}
    packages = {path.parent.name for path in (ROOT / "src" / "backburn").glob("*/__init__.py")}
    assert packages - drawn == {"conformance", "tape"}


def test_pictures_on_pages_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = {
        f"{name}-{theme}.svg" for name in re.findall(r"```\{picture\} ([\w-]+)", text) for theme in ("light", "dark")
    }
    named |= set(re.findall(r"docs/images/([\w-]+\.svg)", text))
    assert len(named) >= 10
    assert not {name for name in named if name not in DRAWN}
