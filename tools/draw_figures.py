"""Draws the documentation's pictures into ``docs/images``, each twice: for light and for dark pages.

The build of the documentation writes them, and so does ``python tools/draw_figures.py``; with ``--check`` it only
compares those that are kept in the repository, and exit status 1 means that one is out of date. Bar charts show the
figures of ``docs/measurements.toml``, the diagrams are functions below, and drawings of the examples are in
``docs/figures``. A picture is 520 units wide with a font size of 14, so that it can be read on a phone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[1] / "docs"
FONT = "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\""
MONO = "font-family=\"ui-monospace, 'SFMono-Regular', Menlo, 'DejaVu Sans Mono', monospace\""
WIDTH = 520
THEMES = {
    "light": {
        "ink": "#1f2933", "muted": "#52606d", "line": "#b8c2cc", "panel": "#f4f6f8", "paper": "#ffffff",
        "warm": "#c2410c", "warm-panel": "#fff3ea", "cool": "#1d5fbf", "cool-panel": "#eaf2fd", "pale": "#e8a87c",
        "green": "#2f7d4f", "green-panel": "#eaf6ee",
    },
    "dark": {
        "ink": "#e6e9ec", "muted": "#a7b1bb", "line": "#4b5762", "panel": "#1d242b", "paper": "#131416",
        "warm": "#ff9a5c", "warm-panel": "#33221a", "cool": "#7fb2ff", "cool-panel": "#182436", "pale": "#8a5a3c",
        "green": "#79c995", "green-panel": "#17281d",
    },
}  # fmt: skip


class Drawing:
    """A picture in one theme: shapes whose colours are given by their names in the theme."""

    def __init__(self, colours: dict[str, str], height: float, title: str, width: float = WIDTH) -> None:
        self.colours, self.height, self.title, self.width = colours, height, title, width
        self.parts: list[str] = []
        self.heads: set[str] = set()

    def box(
        self, x: float, y: float, w: float, h: float, fill: str = "panel", line: str = "line", r: float = 9
    ) -> None:
        """Draw a rounded rectangle."""
        colours = f'fill="{self.colours[fill]}" stroke="{self.colours[line]}" stroke-width="1.4"'
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}" {colours}/>')

    def bar(self, x: float, y: float, w: float, h: float, fill: str) -> None:
        """Draw a bar of a chart."""
        colour = self.colours[fill]
        self.parts.append(f'<rect x="{x:.4g}" y="{y:g}" width="{w:.4g}" height="{h:g}" rx="2" fill="{colour}"/>')

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", size: float = 14, anchor: str = "start",
        mono: bool = False, bold: bool = False, halo: bool = False,
    ) -> None:  # fmt: skip
        """Write a line of text; parts between backticks are code, a halo hides lines below."""
        spans = [
            f"<tspan {MONO}>{escape(part)}</tspan>" if index % 2 else escape(part)
            for index, part in enumerate(words.split("`"))
            if part
        ]
        family = f" {MONO}" if mono else ""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.4g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}"'
        if halo:
            weight += f' stroke="{self.colours["paper"]}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
        self.parts.append(f'<text {place} fill="{self.colours[colour]}"{family}{weight}>{"".join(spans)}</text>')

    def line(
        self, points: str, colour: str = "muted", arrow: bool = False, dashed: bool = False, w: float = 1.6
    ) -> None:
        """Draw a path, given as SVG commands, with an arrowhead at its end if ``arrow``."""
        head = f' marker-end="url(#{colour})"' if arrow else ""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        if arrow:
            self.heads.add(colour)
        colours = f'fill="none" stroke="{self.colours[colour]}" stroke-width="{w:g}"'
        self.parts.append(f'<path d="{points}" {colours}{dashes}{head}/>')

    def svg(self) -> str:
        """Return the file's text."""
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,1 L9,5 L0,9 z" fill="{self.colours[name]}"/></marker>'
            for name in sorted(self.heads)
        )
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {FONT}>'
        parts = [opening, f"<title>{escape(self.title)}</title>"]
        return "\n".join([*parts, *([f"<defs>{heads}</defs>"] if heads else []), *self.parts, "</svg>", ""])


def measurements() -> dict[str, Any]:
    """Return the recorded tables, with numbers as they are written."""
    data = tomllib.loads((DOCS / "measurements.toml").read_text(encoding="utf-8"), parse_float=Decimal)
    for table in data.values():
        for row in table.get("rows", ()):
            for column, value in row.items():
                if column in table["bars"] and isinstance(value, str):
                    name, label, source = value.split(" / ")
                    row[column] = next(r[source] for r in data[name]["rows"] if r["label"] == label)
    return data


def origin(data: dict[str, Any], table: dict[str, Any]) -> str:
    """Return the machine and the date of a table."""
    return f"{data['machines'][table['machine']]}; {table['date']}"


def chart(data: dict[str, Any], name: str) -> Callable[[dict[str, str]], Drawing]:
    """Return the function that draws a table's bar chart: under each label, one bar for each column."""

    def draw(colours: dict[str, str]) -> Drawing:
        table = data[name]
        bars, rows = table["bars"], table["rows"]
        highest = max(float(v) for row in rows for v in (*(row[bar] for bar in bars), *row.get("range", ())))
        left, right, top = 8, WIDTH - 52, 62 if len(bars) > 1 else 44
        scale = (right - left) / max(highest, 1.05)
        step = 21 + 16 * len(bars) + 7
        d = Drawing(colours, top + step * len(rows) + 44, f"{table['title']} ({origin(data, table)})")
        d.text(left, 20, table["title"], bold=True, size=min(15, 1.6 * (WIDTH - left) / len(table["title"])))
        if len(bars) > 1:
            x = left
            for bar, fill in zip(bars, ("pale", "warm"), strict=True):
                d.bar(x, 33, 12, 12, fill)
                d.text(x + 18, 44, table["columns"][bar], "muted", 13)
                x += 40 + 7.2 * len(table["columns"][bar])
        peer, bottom = left + scale, top + step * len(rows)
        beside_bars = (f"M{peer:.4g},{top + step * index + 20} v{16 * len(bars)}" for index in range(len(rows)))
        d.line(" ".join(beside_bars), "cool")  # not through the labels between them
        for index, row in enumerate(rows):
            y = top + step * index
            d.text(left, y + 15, row["label"], halo=True)
            for place, bar in enumerate(bars):
                fill = "warm" if place == len(bars) - 1 else "pale"
                high = float(row[bar])
                d.bar(left, y + 22 + 16 * place, scale * high, 12, fill)
                middle = y + 28 + 16 * place
                if "range" in row:
                    low, high = (left + scale * float(v) for v in row["range"])
                    d.line(
                        f"M{low:.4g},{middle} H{high:.4g} M{low:.4g},{middle - 4} v8 M{high:.4g},{middle - 4} v8", "ink"
                    )
                    high = (high - left) / scale
                after = left + scale * high + 7
                if after - 4 < peer < after + 8 * len(str(row[bar])):
                    after = peer + 5  # beyond the line, which would cross the number
                d.text(after, middle + 5, str(row[bar]), "ink", 13, halo=True)
        d.text(peer, bottom + 16, "1: the peer's time" if highest < 2.5 else "1", "cool", 12.5, "middle")
        d.text(left, bottom + 36, origin(data, table), "muted", 12)
        return d

    return draw


def stack(colours: dict[str, str]) -> Drawing:
    """Draw decorators around a backend."""
    d = Drawing(colours, 452, "Decorators around a backend: each level is a backend itself")
    d.text(260, 22, "One expression names the levels, from the outside in:", "muted", 13.5, "middle")
    d.text(260, 48, "autodiff(autodiff(capture(numpy)))", size=16, anchor="middle", mono=True, bold=True)
    d.box(10, 64, 500, 58)
    d.text(26, 88, "Your program", bold=True)
    d.text(26, 109, "`Tensor` · `nn` · `optim` · `grad` · `vmap`", "muted", 13.5)
    levels = (
        ("Autodiff", "gives derivatives of derivatives", "warm"),
        ("Autodiff", "records operations, gives derivatives", "warm"),
        ("Capture", "records a step, replays it without Python", "cool"),
    )
    for index, (name, act, colour) in enumerate(levels):
        inset, y = 10 + 16 * index, 146 + 62 * index
        d.box(inset, y, 520 - 2 * inset, 272 - 76 * index, f"{colour}-panel", colour)
        d.text(inset + 16, y + 24, name, colour, 15, mono=True, bold=True)
        d.text(inset + 16, y + 45, act, "ink", 13.5)
    for y, length in ((122, 23), (164, 43), (226, 43), (288, 43)):
        d.line(f"M452,{y} v{length}", "muted", arrow=True)
    backends = (("numpy", "C kernels"), ("cupy", "CUDA"), ("null", "shapes only"), ("yours", "any library"))
    for index, (name, act) in enumerate(backends):
        x = 58 + 102 * index
        d.box(x, 332, 98, 46, "paper" if name == "yours" else "green-panel", "green")
        d.text(x + 49, 351, name, "green", 14, "middle", mono=True, bold=True)
        d.text(x + 49, 369, act, "muted", 12.5, "middle")
    d.text(260, 442, "Every arrow is the same set of operations: each level is a backend.", "muted", 13.5, "middle")
    return d


#: The packages from the top, each with its subject and its colour. A test compares the order with the layering.
LAYERS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("plain", (("cli", "the command line"),)),
    ("plain", (("train", "loop, progress, reports"),)),
    ("plain", (("distributed", "meshes, placements, plans"),)),
    ("cool", (("models", "published architectures"), ("onnx", "models of ONNX"))),
    ("cool", (("quantization", "calibration"), ("data", "batches"), ("io", "files"))),
    ("cool", (("nn", "layers, losses"), ("optim", "optimizers, schedules"))),
    ("cool", (("transforms", "grad, vmap, jvp"), ("tapes", "explicit tapes"), ("interop", "einops"))),
    ("cool", (("tensor", "operators and functions of users"),)),
    ("warm", (("autodiff", "graph, gradients, tangents"), ("batching", "batches of vmap"))),
    ("warm", (("decorators", "capture, profile, trace, sharding"),)),
    ("warm", (("communicators", "processes that exchange buffers"),)),
    ("green", (("programs", "recorded programs: calls, passes, executables"),)),
    ("green", (("backend", "the contract of a backend"),)),
    ("green", (("ops", "every operation: declaration, body, rules"),)),
    ("plain", (("hints", "the right name, in errors"),)),
    ("plain", (("base", "errors, dtypes, trees, contexts"),)),
)


def layers(colours: dict[str, str]) -> Drawing:
    """Draw the packages, each above those that it imports."""
    d = Drawing(
        colours, 10 + 52 * len(LAYERS) + 52, "The packages of backburn, each above the packages that it imports"
    )
    for index, (colour, row) in enumerate(LAYERS):
        w = (500 - 8 * (len(row) - 1)) / len(row)
        for place, (name, subject) in enumerate(row):
            x, y = 10 + place * (w + 8), 10 + 52 * index
            fill, edge = ("panel", "line") if colour == "plain" else (f"{colour}-panel", colour)
            d.box(x, y, w, 45, fill, edge)
            d.text(x + w / 2, y + 19, name, "ink", 14, "middle", mono=True, bold=True)
            d.text(x + w / 2, y + 37, subject, "muted", 12.5, "middle")
    bottom = 10 + 52 * len(LAYERS)
    d.text(260, bottom + 20, "Imports point downwards only; a test enforces it.", "muted", 13.5, "middle")
    d.text(260, bottom + 42, "Backends are separate packages, above `decorators`.", "muted", 13.5, "middle")
    return d


def graph(colours: dict[str, str]) -> Drawing:
    """Draw the graph of a small computation, and the path of the gradients."""
    d = Drawing(colours, 462, "The graph of loss = sum(tanh(x @ w)), and its gradients")
    d.text(260, 22, "loss = bb.sum(bb.tanh(x @ w))", size=15, anchor="middle", mono=True, bold=True)
    nodes = ((204, "matmul"), (278, "tanh"), (352, "sum"))
    for x, name, note in ((20, "x", "leaf"), (190, "w", "leaf")):
        d.box(x, 98, 96, 46, "green-panel", "green")
        d.text(x + 48, 117, name, "green", 14, "middle", mono=True, bold=True)
        d.text(x + 48, 135, note, "muted", 12.5, "middle")
    for y, name in nodes:
        d.box(88, y, 130, 40, "panel", "line")
        d.text(153, y + 25, name, "ink", 14, "middle", mono=True, bold=True)
    d.text(153, 430, "loss", "ink", 14, "middle", mono=True, bold=True)
    d.line("M76,144 C84,176 108,176 120,202", "muted", arrow=True)
    d.line("M230,144 C222,176 198,176 186,202", "muted", arrow=True)
    for y in (244, 318, 392):
        d.line(f"M132,{y} v{32 if y < 392 else 22}", "muted", arrow=True)
    for y in (278, 352, 418):
        d.line(f"M174,{y - 2} v-{30 if y < 418 else 24}", "warm", arrow=True)
    d.line("M144,204 C136,180 118,172 104,146", "warm", arrow=True)
    d.line("M212,204 C224,186 250,176 258,146", "warm", arrow=True)
    notes = (
        (64, "forward", "muted", ""),
        (64, "backward: cotangents", "warm", ""),
    )
    d.line("M20,60 h28", "muted", arrow=True)
    d.text(56, 65, notes[0][1], "muted", 13.5)
    d.line("M130,60 h28", "warm", arrow=True)
    d.text(166, 65, notes[1][1], "warm", 13.5)
    for y, rule, who in (
        (120, "`grads`: one gradient per leaf", "returned by `loss.backward()`"),
        (218, "`g @ w.T`  and  `x.T @ g`", "the rules of `matmul`"),
        (292, "`g * (1 - y * y)`", "the rule of `tanh`, y its result"),
        (366, "`g` broadcast to the operand", "the rule of `sum`"),
    ):
        d.text(306, y, rule, "ink", 13)
        d.text(306, y + 18, who, "muted", 12.5)
    d.text(190, 430, "g = 1", "warm", 13)
    return d


def levels(colours: dict[str, str]) -> Drawing:
    """Draw one multiplication on two levels of Autodiff."""
    d = Drawing(colours, 430, "One multiplication and its gradient on autodiff(autodiff(numpy))")
    d.text(260, 22, "x * x on autodiff(autodiff(numpy))", size=15, anchor="middle", mono=True, bold=True)
    d.text(136, 50, "forward", "muted", 13.5, "middle")
    d.text(384, 50, "backward on the outer level", "muted", 13.5, "middle")
    runs = ("runs the rule of `mul`", "with the inner backend")
    records = ("`mul(g, x)`: records it too,", "so it has a gradient itself")
    rows = (
        ("Autodiff", "outer level", "warm", ("`mul(x, x)`", "records a node"), runs),
        ("Autodiff", "inner level", "warm", ("`mul(x, x)`", "records a node"), records),
        ("numpy", "backend", "green", ("`x * x`", "computes"), ("`g * x`", "computes")),
    )
    for index, (name, role, colour, forward, backward) in enumerate(rows):
        y = 66 + 118 * index
        d.box(10, y, 500, 86, f"{colour}-panel", colour)
        d.text(24, y + 36, name, colour, 14, mono=True, bold=True)
        d.text(24, y + 56, role, "muted", 12.5)
        for x, (act, note) in ((174, forward), (384, backward)):
            d.text(x, y + 36, act, "ink", 13.5, "middle")
            d.text(x, y + 56, note, "muted", 12.5, "middle")
        if index < 2:
            d.line(f"M174,{y + 88} v26", "muted", arrow=True)
            d.line(f"M384,{y + 88} v26", "warm", arrow=True)
            d.text(186, y + 106, "inner primitives", "muted", 12.5)
            d.text(396, y + 106, "inner primitives", "warm", 12.5)
    d.text(260, 418, "A rule uses only the inner backend's operations.", "muted", 13.5, "middle")
    return d


def passes(colours: dict[str, str]) -> Drawing:
    """Draw a residual, a layer norm and their gradients as one pass over a few rows at a time."""
    d = Drawing(colours, 404, "One pass: a few rows are read, four calls are computed on them, and results are written")
    for x, words in ((58, "memory"), (260, "a few rows, in the cache"), (462, "memory")):
        d.text(x, 22, words, "muted", 13.5, "middle")
    d.box(128, 34, 264, 316, "panel", "line")
    steps = (("add", "full"), ("layer_norm", "full"), ("layer_norm_backward", "full and columns"), ("sum", "columns"))
    for i, (name, extent) in enumerate(steps):
        y = 48 + 76 * i
        d.box(146, y, 228, 58, "warm-panel", "warm")
        d.text(260, y + 25, name, "warm", 14, "middle", mono=True, bold=True)
        d.text(260, y + 45, extent, "muted", 12.5, "middle")
    for y, name, at in ((48, "x", 66), (96, "residual", 88), (232, "grad", 228)):
        d.box(8, y, 92, 38, "cool-panel", "cool")
        d.text(54, y + 24, name, "cool", 14, "middle", mono=True, bold=True)
        d.line(f"M102,{y + 19} L144,{at}", "cool", arrow=True)
    d.line("M102,258 L144,298", "cool", arrow=True)
    d.line("M226,108 v14", "warm", arrow=True)
    d.line("M366,108 C386,132 386,186 366,200", "warm", arrow=True)
    for y, name in ((134, "y"), (196, "dx"), (244, "dscale"), (300, "dbias")):
        d.box(420, y, 92, 38, "green-panel", "green")
        d.text(466, y + 24, name, "green", 14, "middle", mono=True, bold=True)
    for start, end in ((153, 153), (219, 215), (239, 263), (305, 319)):
        d.line(f"M376,{start} L418,{end}", "green", arrow=True)
    d.text(260, 374, "83.9 MB are read and written, instead of 151.0", "ink", 13.5, "middle")
    d.text(260, 394, "by separate calls", "muted", 13.5, "middle")
    return d


def placements(colours: dict[str, str]) -> Drawing:
    """Draw what each of four shards holds under the plans of data parallelism."""
    d = Drawing(colours, 480, "What each of four shards holds of a batch, the parameters and the optimizer's state")
    d.text(260, 22, "mesh(dp=4): what each of the four shards holds", size=15, anchor="middle", bold=True)
    for shard in range(4):
        d.text(203 + 84 * shard, 50, f"shard {shard}", "muted", 13, "middle")
    names = (("examples", "green"), ("parameters", "cool"), ("state", "warm"))
    plans = (
        ("replicated", "data parallelism", (True, False, False)),
        ("state", "ZeRO-1", (True, False, True)),
        ("sharded", "fully sharded", (True, True, True)),
    )
    for row, (plan, also, cuts) in enumerate(plans):
        y = 64 + 132 * row
        d.box(10, y, 500, 122)
        d.text(20, y + 24, plan, "ink", 13, mono=True, bold=True)
        d.text(20, y + 112, also, "muted", 12)
        for line, ((name, colour), is_cut) in enumerate(zip(names, cuts, strict=True)):
            top = y + 14 + 36 * line
            d.text(161, top + 18, name, "muted", 12, "end")
            for shard in range(4):
                x = 168 + 84 * shard
                d.box(x, top, 70, 26, "paper", "line", 5)
                part = 70 / 4 if is_cut else 70
                d.bar(x + (shard * part if is_cut else 0), top + 1, part, 24, colour)
    d.text(260, 474, "Full: the whole tensor. A quarter: this shard's part.", "muted", 13.5, "middle")
    return d


def tensor_parallel(colours: dict[str, str]) -> Drawing:
    """Draw a feed-forward block that two shards compute together."""
    d = Drawing(
        colours, 330, "A feed-forward block on two shards: hidden features are split, and the results are added"
    )
    d.text(260, 22, "mesh(tp=2): a feed-forward block", size=15, anchor="middle", bold=True)
    for x, words in ((58, "x"), (172, "up.weight"), (294, "hidden"), (404, "down.weight")):
        d.text(x, 52, words, "muted", 13, "middle", mono=True)
    for shard in range(2):
        y = 64 + 96 * shard
        d.box(10, y, 430, 84)
        d.text(22, y + 76, f"shard {shard}", "muted", 12.5)
        d.box(36, y + 14, 44, 44, "green-panel", "green", 5)
        d.text(58, y + 41, "all", "green", 12.5, "middle")
        d.box(142, y + 14, 60, 44, "paper", "line", 5)
        d.bar(143, y + 15 + 21 * shard, 58, 21, "cool")
        d.box(264, y + 14, 60, 44, "paper", "line", 5)
        d.bar(265 + 29 * shard, y + 15, 29, 42, "warm")
        d.box(374, y + 14, 60, 44, "paper", "line", 5)
        d.bar(375 + 29 * shard, y + 15, 29, 42, "cool")
        for x in (84, 206, 328):
            d.line(f"M{x},{y + 36} h{52 if x < 300 else 40}", "muted", arrow=True)
        d.line(
            f"M442,{y + 36} C470,{y + 36} 478,{158 - 10 * (1 - 2 * shard)} 478,{158 - 14 * (1 - 2 * shard)}",
            "muted",
            arrow=True,
        )
    d.text(478, 163, "+", "ink", 20, "middle", bold=True)
    for y, words in (
        (282, "Each shard has half of the hidden features: rows of `up`, columns of `down`."),
        (304, "The results are addends; one sum over `tp` gives the output."),
    ):
        d.text(260, y, words, "muted", 13, "middle")
    return d


def logo(colours: dict[str, str]) -> Drawing:
    """Draw the mark: a backend in its decorators."""
    d = Drawing(colours, 64, "backburn", 64)
    d.box(3, 3, 58, 58, "warm-panel", "warm", 14)
    d.box(12, 12, 40, 40, "warm-panel", "warm", 10)
    d.parts.append(f'<rect x="21" y="21" width="22" height="22" rx="6" fill="{colours["warm"]}"/>')
    return d


PICTURES = {
    "stack": stack, "layers": layers, "graph": graph, "levels": levels, "passes": passes, "placements": placements,
    "tensor-parallel": tensor_parallel, "logo": logo,
}  # fmt: skip


#: The pictures that the repository keeps: those of the README, and the mark.
IN_REPOSITORY = ("stack", "chart-overview", "logo")
#: Maps each colour of the light theme to the one with the same name in the dark theme.
DARK = {THEMES["light"][name]: THEMES["dark"][name] for name in THEMES["light"]}


def in_theme(text: str, theme: str) -> str:
    """Return a kept drawing, stored in the light theme's colours, in a theme.

    Raster images store their dark version in the attribute ``data-dark``.
    """
    if theme == "light":
        return re.sub(r' data-dark="[^"]*"', "", text)
    text = re.sub(r'href="[^"]*"([^>]*?) data-dark="([^"]*)"', r'href="\2"\1', text)
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: DARK.get(found[0], found[0]), text)


def kept() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every picture drawn by an example (``tools/keep_figures.py``)."""
    for path in sorted((DOCS / "figures").glob("*.svg")):
        text = path.read_text(encoding="utf-8")
        if path.stem.startswith("gallery-"):
            yield from ((f"{path.stem}-{theme}.svg", in_theme(text, theme)) for theme in THEMES)
        else:
            yield path.name, text


def drawings() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file."""
    yield from kept()
    data = measurements()
    charts = {f"chart-{name}": chart(data, name) for name, table in data.items() if table.get("bars")}
    for name, draw in {**PICTURES, **charts}.items():
        for theme, colours in THEMES.items():
            yield f"{name}-{theme}.svg", draw(colours).svg()


def is_in_repository(name: str) -> bool:
    """Whether a picture's file is kept in the repository."""
    return name.removesuffix(".svg").rpartition("-")[0] in IN_REPOSITORY


def main(arguments: list[str]) -> int:
    """Write the files, or compare those of the repository."""
    stale = []
    for name, text in drawings():
        path = DOCS / "images" / name
        if "--check" in arguments and not is_in_repository(name):
            continue
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(name)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
