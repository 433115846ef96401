"""A report as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from backburn.conformance.checks.check import parts_of
from backburn.conformance.checks.kinds import KINDS
from backburn.conformance.reports.report import CELLS, Report, Result, dtypes_by_use

#: The number of failures that are shown in full.
SHOWN = 40


def text(report: Report, matrices: bool = True) -> str:
    """The whole report: header, both tables, holes, failures, and counts."""
    parts = [*_head(report), ""]
    if matrices:
        parts += [*_table("operation", report.dtypes, report.matrix()), ""]
        parts += [*_kinds(report), ""]
        parts += _holes(report)
    parts += [*_expected(report), *_failures(report)]
    return "\n".join([*parts, summary(report)])


def summary(report: Report) -> str:
    """The last line: score, counts, time, and the verdict."""
    counts = ", ".join(f"{n} {status}" for status, n in report.counts.items() if n) or "no checks"
    verdict = "PASS" if report.ok else "FAIL"
    return f"{verdict}  {report.target}: {report.score}; {counts}; {report.seconds:.1f} s"


def _head(report: Report) -> list[str]:
    head = report.header
    rows = {
        "backend": f"{head['spec']} ({head['class']})",
        "device": head["device"],
        **{f"dtypes, {uses}": names for uses, names in dtypes_by_use(head, "/").items()},
        "default dtypes": head["default dtypes"],
        "deterministic": "yes" if head["deterministic"] else "no",
        "storages": ", ".join(head["storages"]) or "none",
        "groups": ", ".join(head["groups"]) or "none",
        "versions": ", ".join(f"{n} {v}" for n, v in head["versions"].items()),
        "contract": head["contract"],
        "seeds": head["seeds"],
        "checks": "quick" if head["quick"] else "large" if head["large"] else "full",
    }
    if head["widened"]:
        rows["tolerances widened"] = ", ".join(f"{n} x {f:g}" for n, f in head["widened"].items())
    if head["limited to"]:
        rows["made for"] = ", ".join(head["limited to"])
    if head["selected"]:
        rows["selected"] = "; ".join(f"{n} {', '.join(v)}" for n, v in head["selected"].items())
    width = max(map(len, rows))
    return [f"{name.ljust(width)}  {value}" for name, value in rows.items()]


def _table(corner: str, columns: Sequence[str], rows: dict[str, dict[str, str]]) -> list[str]:
    """Rows of short cells under short headings; ``-`` stands for n/a."""
    first = max([len(corner), *map(len, rows)], default=0)
    widths = {c: max([len(c), *(len(cells[c]) for cells in rows.values())]) for c in columns}
    lines = [f"{corner.ljust(first)}  " + "  ".join(c.rjust(widths[c]) for c in columns)]
    for name, cells in rows.items():
        lines.append(f"{name.ljust(first)}  " + "  ".join((cells[c] or "-").rjust(widths[c]) for c in columns))
    return [*lines, "; ".join(f"{cell or '-'}: {meaning}" for cell, meaning in CELLS.items())]


def _kinds(report: Report) -> list[str]:
    """The number of checks, and of operations, for each kind of check."""
    found: dict[str, list[Result]] = {}
    for result in report.results:
        found.setdefault(parts_of(result.id)[2], []).append(result)
    width = max(map(len, KINDS))
    lines = []
    for kind, meaning in KINDS.items():
        results = found.get(kind, [])
        operations = len({parts_of(r.id)[0] for r in results})
        bad = sum(r.bad for r in results)
        lines.append(
            f"{kind.ljust(width)}  {len(results):>6} checks  {operations:>4} operations  "
            f"{f'{bad} FAIL' if bad else 'ok' if results else 'none':>8}  {meaning}"
        )
    return lines


def _holes(report: Report) -> list[str]:
    if not report.holes:
        return []
    lines = ["no check of a kind, and why:"]
    for kind, reasons in report.holes_by_reason().items():
        for reason, operations in reasons.items():
            names = ", ".join(operations) if len(operations) <= 6 else f"{len(operations)} operations"
            lines.append(f"  {kind}: {names}: {reason}")
    return [*lines, ""]


def _expected(report: Report) -> list[str]:
    found = [r for r in report.results if r.status == "xfailed"]
    if not found:
        return []
    return [f"expected failures ({len(found)}):", *(f"  {r.id}: {r.reason}" for r in found), ""]


def _failures(report: Report) -> list[str]:
    lines = []
    first = [r for r in report.failures if not r.cause]
    shown = (first or report.failures)[:SHOWN]
    for result in shown:
        lines.append(f"FAIL {result.id}  ({result.title})")
        lines += textwrap.wrap(result.message, 116, initial_indent="     ", subsequent_indent="     ")
        if result.smallest:
            lines.append(f"     smallest: {result.smallest}")
        lines.append(f"     {report.reproduction(result)}")
        lines.append("")
    if more := first[len(shown) :]:
        counts = Counter(parts_of(r.id)[0] for r in more)
        words = ", ".join(f"{n} of {name}" for name, n in counts.items())
        lines += [*textwrap.wrap(f"... and {len(more)} more failures: {words}", 116), ""]
    for cause, results in report.causes.items():
        names = sorted({parts_of(r.id)[0] for r in results})
        words = f"{len(results)} failures of {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}"
        lines += textwrap.wrap(
            f"{words} are probably caused by {cause}, which they call and which fails by itself", 116
        )
        lines.append("")
    for name in report.unmatched:
        lines += [f"FAIL expected failure {name}: no check has this id", ""]
    return lines
