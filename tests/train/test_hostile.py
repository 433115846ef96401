"""Randomly changed run folders, configurations, checkpoints, models and specs are read or refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from tools.fuzz_runs import FORMATS, fuzz

COUNT = 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FORMATS))
def test_randomly_changed_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Both outcomes occur, so the changes are not trivial."""
    folder = tmp_path / "inside"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes = fuzz(name, COUNT, folder)
    assert sum(outcomes.values()) == COUNT
    assert len(outcomes) > 1, outcomes
