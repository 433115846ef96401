"""Randomly changed files of tokenizers, configurations, tables, images and arrays are read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.fuzz_readers import FORMATS, fuzz

NEEDS = {
    "tokenizer": ("tokenizers",), "template": ("tokenizers", "jinja2"), "csv": ("pyarrow",), "parquet": ("pyarrow",),
    "image": ("PIL",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_randomly_changed_files_are_read_or_refused(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Errors are backburn's, without control characters; panics and decoders may write to standard error."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    outcomes = fuzz(name, 2000, tmp_path)
    capfd.readouterr()
    assert outcomes.total() == 2000
    assert outcomes["read"] > 50
    assert outcomes.total() - outcomes["read"] > 200
