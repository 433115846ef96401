"""Generates a page from each report in ``docs/conformance``, which ``tools/write_reports.py`` writes as data."""

import json
from pathlib import Path

from public_api import write_if_changed
from sphinx.application import Sphinx

from backburn.conformance.reports.pages import markdown


def generate(app: Sphinx) -> None:
    """Write a page beside each record."""
    for path in sorted((Path(app.srcdir) / "conformance").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        write_if_changed(path.with_suffix(".md"), markdown(record))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", generate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
