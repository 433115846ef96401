"""A report as a page: Markdown, through a record that can be stored, and self-contained HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from backburn.conformance.checks.kinds import KINDS
from backburn.conformance.reports.report import CELLS, Report, Result, dtypes_by_use

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 12px; margin: 1rem 0; }
th, td { border: 1px solid #ddd; padding: 1px 6px; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff; font-family: monospace; }
thead th { position: sticky; top: 0; background: #f4f4f4; }
.ok { background: #e3f4e1; } .near { background: #fff3c4; }
.bad { background: #d73a49; color: #fff; font-weight: bold; }
.xfail { background: #e8ddf5; } .none { color: #bbb; }
.badge { display: inline-block; border-radius: 4px; overflow: hidden; font-weight: bold; }
.badge span { display: inline-block; padding: 2px 10px; color: #fff; background: #555; }
.badge .yes { background: #2b8a3e; } .badge .no { background: #c92a2a; }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; } .wide { overflow-x: auto; }
"""


def record(report: Report) -> dict[str, Any]:
    """The content of a Markdown page as data, without times or paths: equal runs give equal records.

    A row of a table is one string of cells, with ``-`` for an empty one.
    """
    options = "".join(f" --{name}" for name in ("quick", "large") if report.header[name])
    return {
        "spec": report.header["spec"],
        "ok": report.ok,
        "score": report.score,
        "counts": {status: n for status, n in report.counts.items() if n},
        "command": f"backburn conformance {_quoted(report.target)}{options}",
        "facts": dict(_facts(report)),
        "failures": _markdown_failures(report),
        "dtypes": report.dtypes,
        "errors": {name: _packed(cells) for name, cells in report.matrix().items()},
        "kinds": list(KINDS),
        "checks": {name: _packed(cells) for name, cells in report.kind_matrix().items()},
        "holes": {
            kind: {reason: _named(operations) for reason, operations in reasons.items()}
            for kind, reasons in report.holes_by_reason().items()
        },
    }


def _named(operations: list[str]) -> str:
    return ", ".join(operations) if len(operations) <= 12 else f"{len(operations)} operations"


def _packed(cells: Mapping[str, str]) -> str:
    return " ".join(cell or "-" for cell in cells.values())


def _rows(packed: Mapping[str, str]) -> list[list[str]]:
    return [[name, *("" if cell == "-" else cell for cell in row.split())] for name, row in packed.items()]


def markdown(record: Mapping[str, Any]) -> str:
    """The page of a :func:`record`, which may have the date of its run as ``date``."""
    verdict = "passes" if record["ok"] else "fails"
    counts = ", ".join(f"{n} {status}" for status, n in record["counts"].items())
    lines = [
        f"# Conformance: {record['spec']}",
        "",
        f"**{record['score']}**: {verdict}. {counts}.",
        "",
        f"Made on {record['date']} by the command" if "date" in record else "Made by the command",
        "",
        f"    {record['command']}",
        "",
        *_markdown_table(["", ""], list(record["facts"].items())),
        "",
        *record["failures"],
        "## Operations and dtypes",
        "",
        *(f"- {cell or 'empty'}: {meaning}" for cell, meaning in CELLS.items()),
        "",
        *_markdown_table(["operation", *record["dtypes"]], _rows(record["errors"])),
        "",
        "## Operations and kinds of check",
        "",
        *(f"- **{kind}**: {KINDS[kind]}" for kind in record["kinds"] if kind in KINDS),
        "",
        *_markdown_table(["operation", *record["kinds"]], _rows(record["checks"])),
        "",
    ]
    if record["holes"]:
        lines += ["## Where there is no check, and why", ""]
        for kind, reasons in record["holes"].items():
            lines += [f"- **{kind}**: {reason}: {names}" for reason, names in reasons.items()]
        lines.append("")
    return "\n".join(lines)


def _quoted(target: str) -> str:
    return f'"{target}"' if "(" in target else target


def _facts(report: Report) -> list[tuple[str, str]]:
    head = report.header
    tolerances = head["tolerances"]
    facts = [
        ("backend", f"{head['spec']}, {head['class']}"),
        ("device", head["device"]),
        *((f"dtypes ({uses})", names) for uses, names in dtypes_by_use(head, ", ").items()),
        ("default dtypes", head["default dtypes"]),
        ("deterministic", "yes" if head["deterministic"] else "no"),
        ("storages of quantized tensors", ", ".join(head["storages"]) or "none"),
        ("optional groups", ", ".join(head["groups"]) or "none"),
        ("versions", ", ".join(f"{n} {v}" for n, v in head["versions"].items())),
        ("contract", head["contract"]),
        ("seeds", head["seeds"]),
        (
            "tolerance of values",
            "; ".join(f"{d}: {r:g} relative, {a:g} absolute" for d, (r, a) in tolerances["value"].items()),
        ),
        ("tolerance of gradients", "; ".join(f"{d}: {t:g}" for d, t in tolerances["gradient"].items())),
        ("tolerance of second gradients", f"{tolerances['second gradient']:g}"),
        ("tolerances widened", ", ".join(f"{n} by {f:g}" for n, f in head["widened"].items()) or "none"),
    ]
    if head["limited to"]:
        facts.append(("kinds it is made for", ", ".join(head["limited to"])))
    return facts


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " :-- |" + " --: |" * (len(head) - 1)]
    return [*lines, *("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows)]


def _markdown_failures(report: Report) -> list[str]:
    lines: list[str] = []
    if report.failures or report.unmatched:
        lines += ["## Failures", ""]
    for result in report.failures:
        lines += [f"### {result.id}", "", f"{result.title}: {result.message}", ""]
        lines += [f"    {line}" for line in (result.smallest, report.reproduction(result)) if line]
        lines.append("")
    for name in report.unmatched:
        lines += [f"- `{name}` is expected to fail, and no check has this id", ""]
    expected: dict[str, list[Result]] = {}
    for result in report.results:
        if result.status == "xfailed":
            expected.setdefault(result.reason, []).append(result)
    if expected:
        lines += ["## Expected failures", ""]
        for reason, results in expected.items():
            lines += [f"{reason}:", "", *(f"- `{r.id}`: {r.message[:200]}" for r in results), ""]
    return lines


def html(report: Report) -> str:
    """A page with an inline style and no scripts."""
    verdict = ("yes", "passes") if report.ok else ("no", "fails")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>Conformance: {escape(report.header['spec'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Conformance: {escape(report.header['spec'])}</h1>",
        '<p class="badge"><span>conformance</span>',
        f'<span class="{verdict[0]}">{escape(report.score)}, {verdict[1]}</span></p>',
        (
            f"<p>{', '.join(f'{n} {s}' for s, n in report.counts.items() if n)} in {report.seconds:.1f} s. "
            f"Made by <code>backburn conformance {escape(_quoted(report.target))}</code>.</p>"
        ),
        "<table>",
        *(f"<tr><th>{escape(n)}</th><td style='text-align:left'>{escape(v)}</td></tr>" for n, v in _facts(report)),
        "</table>",
        *_html_failures(report),
        f"<h2>Operations and dtypes</h2><p>{escape(_legend())}.</p>",
        _html_table(["operation", *report.dtypes], report.matrix(), {}),
        "<h2>Operations and kinds of check</h2><p>The number of checks; a cell without any says why in its title.</p>",
        _html_table(["operation", *KINDS], report.kind_matrix(), report.holes),
        "<dl>",
        *(f"<dt><code>{kind}</code></dt><dd>{escape(meaning)}</dd>" for kind, meaning in KINDS.items()),
        "</dl></body></html>",
    ]
    return "\n".join(parts)


def _legend() -> str:
    return "; ".join(f"{cell or 'empty'}: {meaning}" for cell, meaning in CELLS.items())


def _html_failures(report: Report) -> list[str]:
    parts = ["<h2>Failures</h2>"] if report.failures or report.unmatched else []
    for result in report.failures:
        lines = "\n".join(line for line in (result.smallest, report.reproduction(result)) if line)
        parts.append(
            f"<details open><summary><code>{escape(result.id)}</code> {escape(result.title)}</summary>"
            f"<p>{escape(result.message)}</p><pre>{escape(lines)}</pre></details>"
        )
    parts += [
        f"<p><code>{escape(n)}</code> is expected to fail, and no check has this id.</p>" for n in report.unmatched
    ]
    expected = [r for r in report.results if r.status == "xfailed"]
    if expected:
        rows = "".join(f"<li><code>{escape(r.id)}</code>: {escape(r.reason)}</li>" for r in expected)
        parts.append(f"<h2>Expected failures</h2><ul>{rows}</ul>")
    return parts


def _html_table(head: Sequence[str], rows: dict[str, dict[str, str]], titles: dict[str, dict[str, str]]) -> str:
    body = []
    for name, cells in rows.items():
        row = "".join(_html_cell(cell, titles.get(name, {}).get(column, "")) for column, cell in cells.items())
        body.append(f"<tr><th>{escape(name)}</th>{row}</tr>")
    heading = "".join(f"<th>{escape(h)}</th>" for h in head)
    return f'<div class="wide"><table><thead><tr>{heading}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _html_cell(cell: str, title: str) -> str:
    bad = cell == "FAIL" or "!" in cell
    style: Any = "none" if cell in ("", "?") else "bad" if bad else "xfail" if cell == "xfail" else "ok"
    if style == "ok" and "." in cell and float(cell) > 0.5:
        style = "near"
    note = f' title="{escape(title, quote=True)}"' if title else ""
    return f'<td class="{style}"{note}>{escape(cell)}</td>'
