"""``backburn runs``: list the runs in folders, compare them, draw their curves."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_runs(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn runs``."""
    command = commands.add_parser(
        "runs",
        parents=[common],
        help="list, compare and plot training runs",
        description="List the training runs in folders and below them: epochs, time, last values.",
    )
    command.add_argument("folders", metavar="FOLDER", nargs="*", default=["runs"], help="default: runs")
    command.add_argument("--metric", metavar="NAME", action="append", default=[], help="a value to show; repeatable")
    command.add_argument("--sort", metavar="NAME", help="sort by the last of these values, the least first")
    command.add_argument("--reverse", action="store_true", help="the largest first")
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--compare", action="store_true", help="show in what the runs differ, last and best values")
    shown.add_argument("--plot", metavar="FILE", type=Path, help="write a page with the curves of all runs (HTML)")
    shown.add_argument("--report", action="store_true", help="write report.html into the folder of each run")
    shown.add_argument("--json", action="store_true", help="print settings and rows as JSON")
    command.set_defaults(run=runs)


def runs(options: argparse.Namespace) -> int:
    """Print a table, or write pages."""
    from backburn.base.foreign import printable
    from backburn.io import write_atomically
    from backburn.train.report import comparison_html, write_report
    from backburn.train.runs import aligned, check_metrics, comparison, find_runs, run_table

    found = find_runs(options.folders)
    if options.sort is not None:
        check_metrics(found, [options.sort])
        is_known = [math.isfinite(run.last.get(options.sort, math.nan)) for run in found]
        known = [run for run, known in zip(found, is_known, strict=True) if known]
        known.sort(key=lambda run: run.last[options.sort], reverse=options.reverse)
        found = known + [run for run, known in zip(found, is_known, strict=True) if not known]
    elif options.reverse:
        found.reverse()
    if options.json:
        tables = [
            {"path": run.path.as_posix(), "running": run.is_running, "config": run.config, "rows": run.rows}
            for run in found
        ]
        print(json.dumps(_finite(tables), indent=2, allow_nan=False))
    elif options.plot is not None:
        write_atomically(options.plot, comparison_html(found).encode("utf-8"))
        print(printable(options.plot))
    elif options.report:
        for run in found:
            print(printable(write_report(run.path)))
    else:
        print(aligned(comparison(found) if options.compare else run_table(found, options.metric)))
    return 0


def _finite(tree: Any) -> Any:
    """A tree with null in place of numbers that are not finite, which JSON lacks."""
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    return [_finite(value) for value in tree] if isinstance(tree, (list, tuple)) else tree
