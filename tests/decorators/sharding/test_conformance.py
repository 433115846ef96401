"""The contract's checks with every input cut along its first or last axis, or as addends."""

from __future__ import annotations

import pytest

from backburn.conformance import check_backend


def spec(inner: str, shards: int, inputs: str) -> str:
    return f"sharded({inner}, dp={shards}, on_fallback=allow, inputs={inputs})"


@pytest.mark.parametrize(("inputs", "shards"), [("first", 2), ("last", 3), ("addends", 2)])
def test_some_checks(inputs: str, shards: int) -> None:
    report = check_backend(spec("numpy", shards, inputs), quick=True)
    assert report.failures == []


@pytest.mark.parametrize("backend", ["autodiff({})", "sharded({}, tp=2, on_fallback=allow, inputs=last)"])
def test_some_checks_among_other_decorators(backend: str) -> None:
    report = check_backend(backend.format(spec("numpy", 2, "first")), quick=True)
    assert report.failures == []


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "shards"), [("first", 3), ("last", 2), ("addends", 2)])
def test_all_checks(inputs: str, shards: int) -> None:
    report = check_backend(spec("numpy", shards, inputs))
    assert report.failures == []
