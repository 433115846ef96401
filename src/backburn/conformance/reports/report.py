"""The results of a run: one per check, counts, matrices, and the score."""

from __future__ import annotations

import functools
import json
import platform
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from typing import Any

from backburn.backend.contract import CONTRACT_VERSION, is_autodiff
from backburn.base.dtypes import DTYPES, as_dtype
from backburn.conformance.checks.check import NO_DTYPE, WHOLE, parts_of
from backburn.conformance.checks.kinds import KINDS, VALUE_KINDS, exists_in, kinds_of
from backburn.conformance.checks.tolerances import GRADIENT, SECOND_GRADIENT, VALUE
from backburn.ops.table import OPERATIONS

#: The kinds of check that compare values with a reference.
COMPARING = frozenset({*VALUE_KINDS, "round_trip", "quantized", "gradient", "convention", "second_gradient"})

#: Cells of the matrix of operations and dtypes, and their meanings.
CELLS = {
    "0.12": "the worst error in units of tolerance",
    "ok": "checked, and no values were compared",
    "FAIL": "a check failed",
    "xfail": "a check failed as expected",
    "?": "declared, and not checked in this run",
    "": "n/a: the operation does not exist in the dtype, or the backend does not declare it",
}


@dataclass
class Result:
    """The result of one check: ``status`` is ``"passed"``, ``"failed"``, ``"xfailed"`` (expected) or ``"xpassed"``.

    ``error`` is in units of tolerance; ``smallest`` is the smallest failing call; ``reason`` says why a failure is
    expected. ``cause`` is another operation that the check called and that fails by itself, the probable cause of the
    failure.
    """

    id: str
    title: str
    status: str
    error: float = 0.0
    message: str = ""
    smallest: str = ""
    reason: str = ""
    seconds: float = 0.0
    cause: str = ""

    @property
    def bad(self) -> bool:
        """Whether the result makes the run fail: a failure, or a pass where a failure was expected."""
        return self.status in ("failed", "xpassed")


@dataclass
class Report:
    """All results of a run. ``print(report)`` shows it; :meth:`to_json`, :meth:`to_markdown`, :meth:`to_html` write it.

    ``header`` describes the backend and the run. ``unmatched`` lists the expected failures that match no check.
    ``holes`` has the reasons why operations have no check of a kind. ``has_name`` says whether ``target`` also names
    the backend on a command line.
    """

    target: str
    header: dict[str, Any]
    results: list[Result]
    holes: dict[str, dict[str, str]] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    seconds: float = 0.0
    has_name: bool = True

    @property
    def ok(self) -> bool:
        """Whether every check passed or failed as expected, and every expected failure exists."""
        return not self.unmatched and not any(r.bad for r in self.results)

    @property
    def failures(self) -> list[Result]:
        """The results that make the run fail."""
        return [r for r in self.results if r.bad]

    @property
    def causes(self) -> dict[str, list[Result]]:
        """The failures with a probable cause, by the operation that causes them."""
        grouped: dict[str, list[Result]] = {}
        for result in self.failures:
            if result.cause:
                grouped.setdefault(result.cause, []).append(result)
        return grouped

    @property
    def counts(self) -> dict[str, int]:
        """The number of checks with each status."""
        counts: dict[str, int] = {"passed": 0, "failed": 0, "xfailed": 0, "xpassed": 0}
        for result in self.results:
            counts[result.status] += 1
        return counts

    @property
    def score(self) -> str:
        """The badge: the number of checks that pass.

        >>> Report("numpy", {}, [Result("add-float32-value-0", "", "passed")]).score
        '1 of 1 checks (100 %)'
        """
        passed, total = self.counts["passed"], len(self.results)
        percent = 100.0 * passed / total if total else 0.0
        shown = "100" if passed == total and total else f"{min(percent, 99.9):.1f}"
        return f"{passed} of {total} checks ({shown} %)"

    def reproduction(self, result: Result) -> str:
        """A command line that runs one check alone; a Python call for a backend without a name."""
        if not self.has_name:
            return f"check_backend(backend, only=[{result.id!r}])"
        return f"backburn conformance {shlex.quote(self.target)} --only {result.id}"

    @property
    def dtypes(self) -> list[str]:
        """The dtypes that occur, in the contract's order, with all schemes as ``quantized``; ``any`` last."""
        seen = {_column(parts_of(r.id)[1]) for r in self.results}
        return [d for d in (*DTYPES, "quantized", NO_DTYPE) if d in seen]

    def _rows(self, column: Callable[[str, str], str]) -> dict[str, dict[str, list[Result]]]:
        """The results of each operation that has any, by the ``column`` of dtype and kind."""
        rows: dict[str, dict[str, list[Result]]] = {}
        for result in self.results:
            operation, dtype, kind, _ = parts_of(result.id)
            rows.setdefault(operation, {}).setdefault(column(dtype, kind), []).append(result)
        return {n: rows[n] for n in (WHOLE, *OPERATIONS) if n in rows}

    def matrix(self) -> dict[str, dict[str, str]]:
        """A table of operations by dtypes, with cells as in :data:`CELLS`."""
        rows, dtypes = self._rows(lambda dtype, kind: _column(dtype)), self.dtypes
        return {n: {d: _cell(row.get(d, [])) or self._unchecked(n, d) for d in dtypes} for n, row in rows.items()}

    def _unchecked(self, operation: str, dtype: str) -> str:
        """``"?"`` if an operation exists in a dtype that the backend declares, else ``""``."""
        if dtype == NO_DTYPE or operation not in OPERATIONS:
            return ""
        if dtype == "quantized":
            return "?" if "Q" in OPERATIONS[operation].kinds and self.header.get("storages") else ""
        declared = "arithmetic" in self.header.get("dtypes", {}).get(dtype, ())
        return "?" if declared and exists_in(operation, dtype) else ""

    def kind_matrix(self) -> dict[str, dict[str, str]]:
        """A table of operations by kinds of check: the number of checks, with ``!`` if some failed."""

        def cell(found: list[Result]) -> str:
            return f"{len(found)}{'!' if any(r.bad for r in found) else ''}" if found else ""

        rows = self._rows(lambda dtype, kind: kind)
        return {n: {k: cell(row.get(k, [])) for k in KINDS} for n, row in rows.items()}

    def holes_by_reason(self) -> dict[str, dict[str, list[str]]]:
        """The operations without checks, by kind of check and reason."""
        grouped: dict[str, dict[str, list[str]]] = {}
        for operation, reasons in self.holes.items():
            for kind, reason in reasons.items():
                grouped.setdefault(kind, {}).setdefault(reason, []).append(operation)
        return {kind: grouped[kind] for kind in KINDS if kind in grouped}

    def to_json(self) -> str:
        """Everything, for programs."""
        return json.dumps(
            {
                "target": self.target, "ok": self.ok, "score": self.score, "seconds": round(self.seconds, 3),
                "header": self.header, "counts": self.counts, "unmatched": self.unmatched,
                "results": [_finite(asdict(r)) for r in self.results],
                "matrix": self.matrix(), "kinds": self.kind_matrix(), "holes": self.holes,
            },
            indent=1,
        )  # fmt: skip

    def to_markdown(self) -> str:
        """A Markdown page; equal runs give equal pages, so it can be kept under version control."""
        from backburn.conformance.reports.pages import markdown, record

        return markdown(record(self))

    def to_html(self) -> str:
        """A self-contained HTML page."""
        from backburn.conformance.reports.pages import html

        return html(self)

    def __str__(self) -> str:
        from backburn.conformance.reports.terminal import text

        return text(self)


def _required_by(distribution: str) -> list[str]:
    """The unconditional requirements of a distribution, including the library that an adapter adapts."""
    found = [r for r in requires(distribution) or () if "extra ==" not in r]
    return [re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in found]


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions of every installed package; cached, since this reads all metadata."""
    return packages_distributions()


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the infinities that JSON lacks."""
    error = record["error"]
    return {**record, "error": error if error < 1e300 else None, "seconds": round(record["seconds"], 6)}


def _column(dtype: str) -> str:
    """The column of a check's dtype; all quantized schemes share one."""
    return "quantized" if dtype != NO_DTYPE and as_dtype(dtype).kind == "quantized" else dtype


def _cell(found: list[Result]) -> str:
    if not found:
        return ""
    if any(r.bad for r in found):
        return "FAIL"
    if any(r.status == "xfailed" for r in found):
        return "xfail"
    if not any(parts_of(r.id)[2] in COMPARING for r in found):
        return "ok"
    return f"{max(r.error for r in found):.2f}"


def describe(backend: Any) -> dict[str, Any]:
    """The header of a report: the backend's declarations, its origin, and the versions in use."""
    capabilities = backend.capabilities
    return {
        "spec": backend.spec,
        "class": f"{type(backend).__module__}.{type(backend).__qualname__}",
        "device": backend.device,
        "autodiff": is_autodiff(backend),
        "default dtypes": f"{backend.float_dtype}, {backend.int_dtype}",
        "dtypes": {d.name: sorted(uses) for d, uses in capabilities.dtypes.items()},
        "storages": sorted(capabilities.storages),
        "groups": sorted(capabilities.groups),
        "deterministic": capabilities.deterministic,
        "limited to": sorted(kinds_of(backend) or ()),
        "tolerances": {"value": VALUE, "gradient": GRADIENT, "second gradient": SECOND_GRADIENT},
        "widened": dict(getattr(backend, "conformance_tolerances", {})),
        "seeds": "CRC-32 of each check's id",
        "contract": CONTRACT_VERSION,
        "versions": versions(backend),
        "platform": platform.platform(),
    }


def dtypes_by_use(header: Mapping[str, Any], separator: str) -> dict[str, str]:
    """The declared dtypes grouped by use, both as text."""
    grouped: dict[str, list[str]] = {}
    for name, uses in header["dtypes"].items():
        grouped.setdefault(separator.join(uses), []).append(name)
    return {uses: ", ".join(names) for uses, names in grouped.items()}


def versions(backend: Any) -> Mapping[str, str]:
    """The versions of Python, backburn, NumPy, and each level of the backend: its package and requirements."""
    found = {"python": platform.python_version()}
    names = ["backburn", "numpy"]
    level = backend
    while level is not None:
        package = type(level).__module__.partition(".")[0]
        for distribution in _distributions().get(package, []):
            names += [distribution, *_required_by(distribution)]
        level = getattr(level, "inner_backend", None)
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
