"""Folders given as model files: the error names the function that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

import backburn as bb
from backburn.errors import FileFormatError


def test_a_run_folder_error_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FileFormatError, match=r"is a folder, .*the model of this run is load_model\('.*safetensors'\)"):
        bb.io.load_model(tmp_path)


def test_a_folder_error_names_a_single_file(tmp_path: Path) -> None:
    bb.io.save_model(tmp_path / "model.safetensors", {"x": bb.ones(2)})
    with pytest.raises(FileFormatError, match=r"load_model\('.*model\.safetensors'\) reads the file in it"):
        bb.io.load_model(tmp_path)


def test_other_folder_errors_name_readers_of_folders(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"bb\.models\.from_pretrained\(folder\)"):
        bb.io.load_model(tmp_path)
