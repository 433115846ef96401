"""Stores the pictures of the examples for the documentation: reduced in size, and once for both themes.

``python tools/keep_figures.py PATH NAME`` reads ``PATH-light.svg`` and ``PATH-dark.svg``, drawn by an example's
``main.py --plot PATH``, or ``PATH.svg`` of an example without themes, and writes ``docs/figures/NAME.svg``. The build
of the documentation creates the pictures of both themes from it (``draw_figures.kept``).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from draw_figures import DOCS, in_theme

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"
#: Attributes with coordinates, which are rounded to hundredths of a unit.
COORDINATES = frozenset({"d", "x", "y", "width", "height", "points", "transform"})
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def small(text: str) -> ElementTree.Element:
    """Return a drawing without metadata, layout and unused names, with coordinates in hundredths."""
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    used = dict.fromkeys(re.findall(r'(?:"#|url\(#)(\w+)', text))
    names = {old: f"i{number}" for number, old in enumerate(used)}
    for node in root.iter():
        node.tail = None
        if not (node.text or "").strip():
            node.text = None
        attributes = node.attrib
        if attributes.get("id") not in names:
            attributes.pop("id", None)
        for key, value in attributes.items():
            if key == "id":
                attributes[key] = names[value]
                continue
            if key in COORDINATES:
                value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            value = re.sub(r"#(\w+)", lambda found: f"#{names.get(found[1], found[1])}", " ".join(value.split()))
            attributes[key] = re.sub(r"font-family: [^;]*", "font-family: 'DejaVu Sans', sans-serif", value)
    return root


def both(light: ElementTree.Element, dark: ElementTree.Element) -> ElementTree.Element:
    """Return the light drawing with the raster images of the dark one, as ``data-dark``."""
    for ours, theirs in zip(light.iter(), dark.iter(), strict=True):
        for key, value in list(ours.attrib.items()):
            other = theirs.attrib[key]
            if in_theme(value, "dark") == other:
                continue
            if key != HREF:
                raise ValueError(f"the drawings differ by more than their colours: {key}={value!r} and {other!r}")
            ours.attrib["data-dark"] = other
    return light


def main(path: str, name: str) -> None:
    """Read the drawings, and write the file."""
    files = [Path(f"{path}-{theme}.svg") for theme in ("light", "dark")]
    if not files[0].exists():
        files = [Path(f"{path}.svg")]
    drawings = [small(file.read_text(encoding="utf-8")) for file in files]
    kept = both(*drawings) if len(drawings) == 2 else drawings[0]
    (DOCS / "figures" / f"{name}.svg").write_text(f"{ElementTree.tostring(kept, 'unicode')}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
