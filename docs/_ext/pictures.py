"""Directives for pictures, each drawn once for light and once for dark pages, and for recorded figures.

``picture`` shows ``images/NAME-light.svg`` or ``images/NAME-dark.svg``; its content is the text for readers who do not
see it. ``measured`` shows a table of ``measurements.toml``, with its machine and date, below its bar chart. The build
draws the files, by ``tools/draw_figures.py``; it fails where one that the repository keeps is out of date.
"""

import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from public_api import write_if_changed
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import draw_figures

logger = logging.getLogger(__name__)


def picture(name: str, text: str) -> list[nodes.Node]:
    """Return the two images, of which the theme shows one."""
    return [
        nodes.image(uri=f"/images/{name}-{theme}.svg", alt=text, classes=["picture", f"only-{theme}"])
        for theme in ("light", "dark")
    ]


class Picture(SphinxDirective):
    """A picture in two themes."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the images."""
        return picture(self.arguments[0], " ".join(self.content))


class Measured(SphinxDirective):
    """A recorded table, and its chart."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"chart-only": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Return the images, the line about the origin, and the table."""
        data = draw_figures.measurements()
        name = self.arguments[0]
        table = data[name]
        self.env.note_dependency(str(draw_figures.DOCS / "measurements.toml"))
        found = picture(f"chart-{name}", summary(table)) if table["bars"] else []
        if "chart-only" in self.options:
            return found
        holder = nodes.container(classes=["measured"])
        lines = [*markdown(table), "", f"*{table['title']}: {draw_figures.origin(data, table)}.*"]
        self.state.nested_parse(StringList(lines, "measurements.toml"), self.content_offset, holder)
        return [*found, holder]


def summary(table: dict[str, Any]) -> str:
    """Return the figures of a chart in words."""
    rows = (f"{row['label']} {' and '.join(str(row[bar]) for bar in table['bars'])}" for row in table["rows"])
    return f"Bar chart. {table['title']}: {'; '.join(rows)}.".replace("`", "")


def markdown(table: dict[str, Any]) -> list[str]:
    """Return the lines of a table."""
    columns = table["columns"]
    lines = [f"| {' | '.join(columns.values())} |", f"|{'---|' * len(columns)}"]
    for row in table["rows"]:
        cells = (row.get(column, "") for column in columns)
        lines.append(f"| {' | '.join(' – '.join(map(str, c)) if isinstance(c, list) else str(c) for c in cells)} |")
    return lines


def draw(app: Sphinx) -> None:
    """Write the pictures, and warn about those of the repository that are out of date."""
    for name, text in draw_figures.drawings():
        path = Path(app.srcdir) / "images" / name
        if not draw_figures.is_in_repository(name):
            write_if_changed(path, text)
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            logger.warning("docs/images/%s is out of date: run `python tools/draw_figures.py`", name, type="pictures")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("picture", Picture)
    app.add_directive("measured", Measured)
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
