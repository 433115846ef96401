"""``backburn conformance``: check a backend, report failures, and how to reproduce them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.communicators import launched

EPILOG = """\
A backend is an expression such as numpy or "autodiff(numpy)", or module:factory, where the factory is a class or a
function without arguments. The exit status is 0 when every check passes or fails as expected, 1 when not, and 2 when
the backend or an option cannot be used.
"""


def add_conformance(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn conformance``."""
    command = commands.add_parser(
        "conformance",
        parents=[common],
        help="check a backend against the contract",
        description="Check a backend against the contract.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("backend", nargs="?", metavar="BACKEND", help="the backend to check")
    command.add_argument(
        "--quick", action="store_true", help="at most 600 checks, spread over all operations; none of large operands"
    )
    command.add_argument(
        "--large", action="store_true", help="every sample with large operands, in all dtypes, to 2**24 elements"
    )
    for name, what in (("ops", "operations"), ("dtypes", "dtypes"), ("kinds", "kinds of check")):
        command.add_argument(f"--{name}", metavar="A,B", type=_names, help=f"only these {what}, separated by commas")
    command.add_argument("--only", metavar="ID", action="append", help="only the check with this id; may be repeated")
    command.add_argument(
        "--xfail", metavar="FILE", type=Path, action="append", help="expected failures: lines 'ID: reason'"
    )
    for name in ("json", "markdown", "html"):
        command.add_argument(f"--{name}", metavar="FILE", type=Path, help=f"write the report as {name} too")
    command.add_argument("--brief", action="store_true", help="print only failures and the count")
    command.add_argument("--jobs", metavar="N", type=_positive_int, default=1, help="worker processes (default: 1)")
    command.add_argument(
        "--timeout", metavar="S", type=_positive, default=60.0, help="seconds that a check may take (default: 60)"
    )
    command.add_argument(
        "--memory", metavar="GB", type=_positive, help="the memory of a worker process (default: no limit)"
    )
    command.add_argument(
        "--in-process",
        action="store_true",
        help="no worker processes: for debuggers, and always on the ranks of 'backburn launch'",
    )
    command.add_argument(
        "--new",
        nargs=2,
        metavar=("NAME", "DIR"),
        help="write a package for a new backend into a folder, and check nothing",
    )
    command.set_defaults(run=conformance)


def conformance(options: argparse.Namespace) -> int:
    """Run the checks, print the report, write the files."""
    # Imported late: every other command would wait for the samples.
    from backburn.conformance.checks.expected import read_expected
    from backburn.conformance.reports.terminal import summary, text
    from backburn.conformance.runner.run import check_backend

    rank, ranks = launched() or (0, 1)
    if options.new:
        from backburn.conformance.template import write_template

        for path in write_template(options.new[0], Path(options.new[1])):
            print(path)
        return 0
    if options.backend is None:
        raise ArgumentError("conformance: name a backend, such as numpy, or module:factory")
    look_in_current_folder(options.backend)
    expected: dict[str, str] = {}
    for path in options.xfail or ():
        expected.update(read_expected(path))
    show, close = _progress()
    try:
        report = check_backend(
            options.backend,
            expected,
            quick=options.quick,
            large=options.large,
            ops=options.ops,
            dtypes=options.dtypes,
            kinds=options.kinds,
            only=options.only,
            jobs=0 if options.in_process or ranks > 1 else options.jobs,  # worker processes would not be ranks
            timeout=options.timeout,
            memory=options.memory,
            progress=show,
        )
    finally:
        close()
    if rank == 0:
        _write(report, options)
    if not report.results and not report.unmatched:
        raise ArgumentError(f"conformance: nothing to check of {options.backend} with these options")
    brief = options.brief or bool(options.only)
    if rank == 0 or not report.ok:
        print(text(report, matrices=not brief) if not brief or not report.ok else summary(report))
    return 0 if report.ok else 1


def look_in_current_folder(target: str) -> None:
    """Let a module of ``module:factory`` be found in the current folder, searched last: a file there shadows nothing.

    All names in an expression are those of installed packages.
    """
    module, _, factory = target.partition(":")
    is_module = factory and all(part.isidentifier() for part in (*module.split("."), *factory.split(".")))
    if is_module and "" not in sys.path:
        with suppress(FileNotFoundError):  # it may have been deleted
            sys.path += {os.getcwd()} - {*sys.path}


def _write(report: Any, options: argparse.Namespace) -> None:
    """Write the requested files; an earlier report is kept if the disk is full."""
    from backburn.io import write_atomically

    for path, make in (
        (options.json, report.to_json), (options.markdown, report.to_markdown), (options.html, report.to_html)
    ):  # fmt: skip
        if path is not None:
            write_atomically(path, make().encode("utf-8", "backslashreplace"))


def _progress() -> tuple[Callable[[Any, int, int], None] | None, Callable[[], None]]:
    """A function that shows the progress of the run on a terminal, if there is one, and a function that ends it."""
    if not sys.stderr.isatty():
        return None, lambda: None
    if find_spec("tqdm") is None:
        return _count, lambda: print(file=sys.stderr)
    from tqdm import tqdm

    bar: Any = tqdm(unit="check", leave=False)
    failed = [0]

    def show(result: Any, done: int, total: int) -> None:
        bar.total = total
        if result.bad:
            failed[0] += 1
            bar.set_postfix_str(f"{failed[0]} failed")
        bar.update()

    return show, bar.close


def _count(result: Any, done: int, total: int) -> None:
    if done % 100 == 0 or done == total:
        print(f"\r{done}/{total}", end="", file=sys.stderr, flush=True)


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _positive(word: str) -> float:
    with suppress(ValueError):
        if (number := float(word)) > 0:
            return number
    raise argparse.ArgumentTypeError("must be a number above 0")


def _positive_int(word: str) -> int:
    with suppress(ValueError):
        if (number := int(word)) > 0:
            return number
    raise argparse.ArgumentTypeError("must be an integer of at least 1")
