"""Wide tables on a phone: each row becomes a block, in which every cell follows the name of its column.

The names are hidden on wider screens, where the head of the table shows them (``_static/backburn.css``).
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

#: The numbers of columns of a wide table, and the least number of characters in some cell.
COLUMNS, CHARACTERS = range(3, 7), 70


class WideTables(SphinxPostTransform):
    """Marks wide tables, and writes the names of columns into their cells."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Mark the tables of a page."""
        for table in list(self.document.findall(nodes.table)):
            heads = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
            rows = [
                list(row.findall(nodes.entry)) for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)
            ]
            longest = max((len(entry.astext()) for row in rows for entry in row), default=0)
            if len(heads) not in COLUMNS or longest < CHARACTERS or any(len(row) != len(heads) for row in rows):
                continue
            table["classes"].append("wide")
            for row in rows:
                for head, entry in list(zip(heads, row, strict=True))[1:]:
                    if head and entry.astext():
                        paragraph = next(iter(entry.findall(nodes.paragraph)), entry)
                        paragraph.insert(0, nodes.inline(text=f"{head}: ", classes=["column"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_post_transform(WideTables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
