"""The contract's checks with every input cut along its first or last axis, or as addends."""

from __future__ import annotations

import pytest

from backburn.base.dtypes import DTYPES
from backburn.conformance import check_backend
from backburn.conformance.checks.check import NO_DTYPE


def spec(inner: str, shards: int, inputs: str) -> str:
    return f"sharded({inner}, dp={shards}, on_fallback=allow, inputs={inputs})"


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "shards"), [("first", 2), ("last", 3), ("addends", 2)])
def test_some_checks(inputs: str, shards: int) -> None:
    report = check_backend(spec("numpy", shards, inputs), quick=True)
    assert report.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["autodiff({})", "sharded({}, tp=2, on_fallback=allow, inputs=last)"])
def test_some_checks_among_other_decorators(backend: str) -> None:
    report = check_backend(backend.format(spec("numpy", 2, "first")), quick=True)
    assert report.failures == []


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "shards", "is_wide"), [("first", 3, True), ("last", 2, False)])
def test_all_checks(inputs: str, shards: int, is_wide: bool) -> None:
    """Each dtype with one placement; `nox -s sharded` checks all with each."""
    dtypes = ["float64"] if is_wide else [name for name in (NO_DTYPE, *DTYPES) if name != "float64"]
    report = check_backend(spec("numpy", shards, inputs), dtypes=dtypes)
    assert len(report.results) > 10_000
    assert report.failures == []


@pytest.mark.slow
def test_all_checks_of_addends() -> None:
    report = check_backend(spec("numpy", 2, "addends"), dtypes=["float32", "int64"])
    assert len(report.results) > 5000
    assert report.failures == []
