"""Curves, bars and small images as SVG and PNG, built from strings and bytes without other packages."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from backburn.base.foreign import printable

#: The size of a chart, and the margins around its curves: left, top, right, bottom.
WIDTH, HEIGHT = 480, 240
LEFT, TOP, RIGHT, BOTTOM = 52, 10, 10, 34
#: The most points drawn of a curve, evenly chosen.
POINTS = 1000
#: The most points of a curve that have a mark and, as its title, their value.
MARKED = 40
#: The least ratio of the largest to the smallest value, all positive, at which a scale is logarithmic.
LOGARITHMIC = 50.0
#: The largest size of a value that is drawn: differences of larger ones may be infinite.
LARGEST = 1e300
#: The least distance of two values, relative to their size and absolute: smaller ones cannot be divided.
_NEAR, _LEAST = 1e-13, 1e-290

Curve = Sequence[tuple[float, float]]


def line_chart(curves: Mapping[str, Curve], x_label: str = "epoch") -> str:
    """An SVG of curves by name, each a list of points. Values that are not finite interrupt a curve.

    >>> line_chart({"loss": [(1, 0.5), (2, 0.25)]}).count("<circle")
    2
    """
    drawn = {name: _drawable(_thinned(curve)) for name, curve in curves.items()}
    points = [p for curve in drawn.values() for p in curve if math.isfinite(p[1])]
    if not points:
        return '<p class="note">no finite values</p>'
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    logarithmic = min(ys) > 0 and max(ys) / min(ys) >= LOGARITHMIC
    x_scale = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_scale = _Scale(min(ys), max(ys), HEIGHT - BOTTOM, TOP, logarithmic)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_escaped(", ".join(drawn))}">']
    for value in y_scale.ticks(5):
        height = f"{y_scale(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{height}" dy="0.35em" text-anchor="end">{_short(value)}</text>')
    for value in x_scale.ticks(6, whole=all(x == int(x) for x in xs)):
        parts.append(
            f'<text x="{x_scale(value):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{_short(value)}</text>'
        )
    label = x_label + (", logarithmic scale" if logarithmic else "")
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{_escaped(label)}</text>')
    for number, (name, curve) in enumerate(drawn.items()):
        colour = f"c{number % COLOURS}"
        for piece in _pieces(curve):
            places = [(x_scale(x), y_scale(y)) for x, y in piece]
            path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
            parts.append(f'<path class="{colour}" d="{path}"/>')
            if len(curve) <= MARKED or len(piece) == 1:
                for (x, y), (at, value) in zip(places, piece, strict=True):
                    title = f"<title>{_escaped(f'{name}, {x_label} {_short(at)}: {value:.6g}')}</title>"
                    parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">{title}</circle>')
    parts.append("</svg>")
    return "".join(parts) + legend(drawn)


#: The number of colours, classes ``c0`` to ``c7`` of the page's style.
COLOURS = 8


def legend(names: Iterable[str]) -> str:
    """The names of curves beside their colours."""
    words = "".join(f'<li class="c{i % COLOURS}">{_escaped(name)}</li>' for i, name in enumerate(names))
    return f'<ul class="legend">{words}</ul>'


def share_bar(shares: Mapping[str, float]) -> str:
    """One bar of parts by name, with their sizes in per cent below."""
    total = sum(shares.values())
    if not total > 0:
        return ""
    parts, left = ['<svg viewBox="0 0 960 18" role="img">'], 0.0
    for number, (name, size) in enumerate(shares.items()):
        width = 960 * size / total
        title = f"<title>{_escaped(name)}: {size:.2f} s</title>"
        parts.append(f'<rect class="c{number % COLOURS}" x="{left:.1f}" width="{width:.1f}" height="18">{title}</rect>')
        left += width
    names = [f"{name} {size / total:.0%} ({size:.1f} s)" for name, size in shares.items()]
    return "".join(parts) + "</svg>" + legend(names)


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Values as a line of small bars, for a terminal.

    >>> sparkline([4, 3, 2, 1])
    '█▆▃▁'
    """
    chosen = [y for _, y in _drawable(_thinned(list(enumerate(values)), width))]
    finite = [y for y in chosen if math.isfinite(y)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    marks = "▁▂▃▄▅▆▇█"
    step = 1.0 if _is_one(low, high) else (high - low) / (len(marks) - 1)
    return "".join(marks[round((y - low) / step)] if math.isfinite(y) else " " for y in chosen)


def png(pixels: Sequence[Any]) -> str:
    """An image as a data URL. ``pixels`` are rows of bytes from 0 to 255, or of three of them.

    >>> png([[0, 255]])[:30]
    'data:image/png;base64,iVBORw0K'
    """
    coloured = bool(pixels and pixels[0] and isinstance(pixels[0][0], (list, tuple)))
    rows = [bytes(x for pixel in row for x in pixel) if coloured else bytes(row) for row in pixels]
    width = len(pixels[0]) if pixels else 0
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2 if coloured else 0, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    file = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


class _Scale:
    """The map from values to positions on an axis."""

    def __init__(self, low: float, high: float, start: float, stop: float, logarithmic: bool = False) -> None:
        self._log = logarithmic
        low, high = self._mapped(low), self._mapped(high)
        if _is_one(low, high):  # a single value stands in the middle
            half = abs(high) / 2 if abs(high) > _LEAST else 0.5
            low, high = low - half, high + half
        self.low, self.high, self._start, self._stop = low, high, start, stop

    def _mapped(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        share = (self._mapped(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._stop - self._start)

    def ticks(self, count: int, whole: bool = False) -> list[float]:
        """At most about ``count`` round values on the axis."""
        if self._log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            found = [10.0**power for power in powers[:: max(1, math.ceil(len(powers) / count))]]
            return found if len(found) > 1 else [10.0**self.low, 10.0**self.high]
        rough = (self.high - self.low) / count
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def _escaped(text: str) -> str:
    """A line of untrusted text as HTML."""
    return escape(printable(text))


def _is_one(low: float, high: float) -> bool:
    """Whether two values are too close to be drawn apart."""
    return high - low <= max(_LEAST, _NEAR * max(abs(low), abs(high)))


def _drawable(curve: Curve) -> Curve:
    """A curve without points whose ``x`` cannot be drawn; values that cannot be drawn are NaN."""
    return [(x, y if abs(y) <= LARGEST else math.nan) for x, y in curve if abs(x) <= LARGEST]


def _thinned(curve: Curve, most: int = POINTS) -> Curve:
    """``most`` evenly chosen points of a longer curve, with the first and the last."""
    if len(curve) <= most:
        return curve
    return [curve[round(i * (len(curve) - 1) / (most - 1))] for i in range(most)]


def _pieces(curve: Curve) -> list[list[tuple[float, float]]]:
    """The runs of finite points."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in curve:
        if math.isfinite(y):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
