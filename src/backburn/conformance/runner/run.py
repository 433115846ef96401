"""Running checks, in this process or in worker processes, and reporting the results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.conformance.checks.check import WHOLE, Check, parts_of
from backburn.conformance.checks.expected import reason_for, unknown, with_reasons
from backburn.conformance.checks.kinds import holes, kinds_of
from backburn.conformance.checks.timeout import OutOfTime, time_limit
from backburn.conformance.reports.report import Report, Result, describe
from backburn.conformance.runner.causes import calls_of, causes_by_kind
from backburn.conformance.runner.shrinking import smallest_failing
from backburn.conformance.runner.suite import checks
from backburn.conformance.runner.target import has_name, name_of, resolve_backend
from backburn.conformance.samples.calls import complex_dtypes
from backburn.ops.table import OPERATIONS

#: Seconds that the search for a smaller failing input may take.
SEARCH = 5.0

#: A function of the result of a check, the number of checks done, and the number of all checks.
Progress = Callable[[Result, int, int], None]


def check_backend(
    backend: Any,
    expected_failures: Mapping[str, str] | None = None,
    *,
    quick: bool = False,
    large: bool = False,
    ops: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    kinds: Collection[str] | None = None,
    only: Collection[str] | None = None,
    jobs: int = 0,
    timeout: float = 60.0,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the checks of a backend and return a report.

    ``backend`` is a backend, an expression such as ``"autodiff(numpy)"``, or ``"module:factory"``. With ``jobs`` of 1
    or more, checks run in that many worker processes (``backend`` must then be one of the two strings, or picklable): a
    check that crashes, or takes longer than ``timeout`` seconds, fails without affecting others. ``memory`` limits the
    gigabytes of each worker, if the system supports it and the backend computes on the CPU. Without ``jobs``, checks
    run in this process, where ``timeout`` is enforced only on the main thread of a POSIX system, if nothing else uses
    its timer (SIGALRM), and only for code that returns to Python regularly.

    ``expected_failures`` maps ids (or patterns, in which ``*`` matches anything) of checks that may fail to reasons.
    They are strict: the run fails if such a check passes, or if no check of the backend matches.

    Raises :class:`ArgumentError` or another error of backburn for a backend, operation, kind or id that does not exist.

        >>> report = check_backend("numpy", ops=["tanh"])
        >>> report.ok, report.failures
        (True, [])
    """
    expected = with_reasons(expected_failures)
    options = {"quick": quick, "large": large, "ops": ops, "dtypes": dtypes, "kinds": kinds, "only": only}
    started = time.perf_counter()

    def report_one(found: Mapping[str, Any], done: int, total: int) -> None:
        if progress is not None:
            progress(_result(found, expected), done, total)

    if jobs > 0:
        from backburn.conformance.runner.workers import run_in_workers

        prepared, outcomes = run_in_workers(backend, options, list(expected), jobs, timeout, report_one, memory)
    else:
        found, prepared = prepare(resolve_backend(backend), options, list(expected))
        outcomes = []
        for check in found:
            outcomes.append(outcome(replace(check, timeout=timeout)))
            report_one(outcomes[-1], len(outcomes), len(found))
    results = [_result(o, expected) for o in outcomes]
    caused = causes_by_kind((o["id"], o["calls"]) for o in outcomes if o["failed"])
    for result in results:
        result.cause = caused.get(result.id, "")
    seconds = time.perf_counter() - started
    parts = prepared["header"], results, prepared["holes"], prepared["unmatched"]
    return Report(name_of(backend), *parts, seconds, has_name(backend))


def prepare(backend: Any, options: Mapping[str, Any], expected: list[str]) -> tuple[list[Check], dict[str, Any]]:
    """The selected checks, and the parts of the report that do not depend on their results."""
    for name, value in options.items():
        if isinstance(value, str):
            raise ArgumentError(f"{name} is a list of names: [{value!r}]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        only = options.get("only")
        filters: dict[str, Any] = {n: options.get(n) for n in ("ops", "dtypes", "kinds")}
        if only:
            wanted = set(only)
            same = list(_checks_named_in(only, backend))
            found = [c for c in same if c.id in wanted]
            if lacking := sorted(wanted - {c.id for c in found}):
                raise ArgumentError(f"{backend.spec} has no check {lacking[0]}: {_advice(lacking[0], same)}")
        else:
            sizes: dict[str, Any] = {n: bool(options.get(n)) for n in ("quick", "large")}
            found = list(checks(backend, **sizes, **filters))
        unmatched = unknown(expected, [c.id for c in found])
        if unmatched:
            unmatched = unknown(unmatched, [c.id for c in _checks_named_in(unmatched, backend)])
        complete = not any(filters.values()) and not only and not options.get("quick")
        gaps: dict[str, dict[str, str]] = {}
        if complete and kinds_of(backend) is None:
            present = {(c.operation, c.kind) for c in found}
            for (name, kind), reason in holes(present, bool(complex_dtypes(backend))).items():
                gaps.setdefault(name, {})[kind] = reason
        header = {**describe(backend), **{n: bool(options.get(n)) for n in ("quick", "large")}}
        header["selected"] = {n: sorted(v) for n, v in filters.items() if v}
    return found, {"header": header, "holes": gaps, "unmatched": unmatched}


def _checks_named_in(patterns: Iterable[str], backend: Any) -> Iterator[Check]:
    """The checks of the operations at the beginning of ids or patterns, and those of the whole backend."""
    beginnings = {pattern.partition("-")[0].partition("*") for pattern in patterns}
    named = {name for name, star, _ in beginnings if not star}
    prefixes = tuple(name for name, star, _ in beginnings if star)
    return checks(backend, large=True, ops={WHOLE, *(n for n in OPERATIONS if n in named or n.startswith(prefixes))})


def _advice(check_id: str, every: list[Check]) -> str:
    try:
        operation, dtype, kind, _ = parts_of(check_id)
    except ValueError as error:
        return str(error)
    near = [c.id for c in every if c.operation == operation and (c.dtype == dtype or c.kind == kind)]
    return f"there are {', '.join(near[:4])}" if near else f"there is nothing to check of {operation!r} in {dtype}"


def outcome(check: Check) -> dict[str, Any]:
    """The result of one check, as plain data."""
    started, message, smallest, error = time.perf_counter(), "", "", 0.0
    calls: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            error = check()
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            message = describe_failure(failure)
            if isinstance(failure, AssertionError):
                smallest = smallest_failing(replace(check, timeout=None), SEARCH)
            if not isinstance(failure, OutOfTime):
                calls = _calls_of(replace(check, timeout=None))
    seconds = time.perf_counter() - started
    return {
        "id": check.id, "title": check.title, "failed": message, "smallest": smallest, "error": error,
        "seconds": seconds, "calls": sorted(calls),
    }  # fmt: skip


def _calls_of(check: Check) -> set[str]:
    """The operations that a check calls before it fails."""
    with calls_of(check.backend) as seen:
        try:
            with time_limit(SEARCH):
                check()
        except KeyboardInterrupt:
            raise
        except BaseException:
            return seen
    return seen


def describe_failure(failure: BaseException) -> str:
    """An exception as text: the message of an assertion, or class and message."""
    try:
        words = " ".join(str(failure).split())
    except Exception as error:  # a backend's exception may be broken, too
        words = f"with a message that raises {type(error).__name__}"
    if isinstance(failure, OutOfTime):
        return words
    if isinstance(failure, AssertionError):
        return words or "an assertion failed"
    return f"raised {type(failure).__name__}: {words}" if words else f"raised {type(failure).__name__}"


def _result(outcome: Mapping[str, Any], expected: Mapping[str, str]) -> Result:
    reason = reason_for(outcome["id"], expected)
    failed = bool(outcome["failed"])
    status = ("xfailed" if failed else "xpassed") if reason else ("failed" if failed else "passed")
    message = outcome["failed"] or ("it passes, and was expected to fail" if reason else "")
    fields = {name: outcome[name] for name in ("id", "title", "error", "smallest", "seconds")}
    return Result(status=status, message=message, reason=reason, **fields)


def parametrize_with_checks(
    backend: Any,
    expected_failures: Mapping[str, str] | None = None,
    *,
    quick: bool = False,
    large: bool = False,
    timeout: float = 60.0,
    **filters: Iterable[str],
) -> Any:
    """A pytest decorator that runs a test once per check of ``backend``, with the check's id as parameter id.

    Expected failures become strict ``xfail`` marks with their reasons. The test takes an argument ``check``::

        @parametrize_with_checks("mypackage:MyBackend", quick=True)
        def test_conformance(check):
            check()

    A check that takes longer than ``timeout`` seconds fails, under the conditions of :func:`check_backend` without
    ``jobs``; a time limit of pytest has precedence. Raises :class:`ArgumentError` for an expected failure that matches
    no check.
    """
    import pytest

    made = resolve_backend(backend)
    expected = with_reasons(expected_failures)
    found, prepared = prepare(made, {"quick": quick, "large": large, **filters}, list(expected))
    if prepared["unmatched"]:
        raise ArgumentError(f"expected failures that no check of {made.spec} has: {', '.join(prepared['unmatched'])}")
    parameters = []
    for check in found:
        reason = reason_for(check.id, expected)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        parameters.append(pytest.param(replace(check, timeout=timeout), id=check.id, marks=marks))
    return pytest.mark.parametrize("check", parameters)
