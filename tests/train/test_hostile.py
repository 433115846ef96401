"""Run folders, configurations, checkpoints, models and expressions that are changed at random: read, or refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from tools.fuzz_runs import FORMATS, fuzz

COUNT = 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FORMATS))
def test_whatever_is_read_ends_with_a_result_or_an_error_of_ours(name: str, tmp_path: Path) -> None:
    """And some of it is read, so that the changes are not all alike."""
    folder = tmp_path / "inside"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes = fuzz(name, COUNT, folder)
    assert sum(outcomes.values()) == COUNT
    assert len(outcomes) > 1, outcomes
