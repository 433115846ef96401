"""Folders exchanged with transformers and diffusers in both directions; skipped without the libraries.

Sizes and options are those of the frozen cases, which `test_frozen.py` compares in more detail.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.frozen import distance, frozen, names

import backburn as bb

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.filterwarnings("ignore"),
]


def library(name: str) -> Any:
    return pytest.importorskip("diffusers" if name == "unet" else "transformers")


def their_class(name: str) -> Any:
    about = frozen(name).config
    return getattr(library(name), about["_class_name"] if name == "unet" else about["architectures"][0])


def theirs(name: str, model: Any) -> Any:
    import torch

    given = {key: torch.tensor(x.astype(np.float32) if x.dtype == np.float16 else x)
             for key, x in frozen(name).inputs.items()}  # fmt: skip
    with torch.no_grad():
        return next(iter(model.eval()(**given).values())).numpy()


@pytest.mark.parametrize("name", names())
def test_folders_are_exchanged_in_both_directions(name: str, tmp_path: Path) -> None:
    kind, case = their_class(name), frozen(name)
    case.model("numpy").save_pretrained(tmp_path / "ours")
    model, about = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    assert not about["mismatched_keys"]
    expected = theirs(name, model)
    assert distance(expected, case.result) < 3e-6
    model.save_pretrained(tmp_path / "theirs")
    read = bb.models.from_pretrained(tmp_path / "theirs", backend="numpy")
    assert distance(read(*case.given("numpy")), expected) < 3e-6
    read.save_pretrained(tmp_path / "again")
    assert np.array_equal(theirs(name, kind.from_pretrained(tmp_path / "again")), expected)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_half_precision(name: str, tmp_path: Path) -> None:
    import torch

    kind = their_class(name)
    frozen(name).model("numpy").astype("bfloat16").save_pretrained(tmp_path)
    model = kind.from_pretrained(tmp_path)
    assert model.dtype is torch.bfloat16
    model.half().save_pretrained(tmp_path, max_shard_size="8KB")
    read = bb.models.from_pretrained(tmp_path)
    assert (
        distance(read(*frozen(name).given()), theirs(name, kind.from_pretrained(tmp_path, dtype=torch.float32))) < 3e-6
    )


def test_every_metadata_key_of_peers_is_listed() -> None:
    for name in ("transformers", "peft", "diffusers"):
        pytest.importorskip(name)
    spec = importlib.util.spec_from_file_location(
        "compare", Path(__file__).parents[2] / "tools/compare_metadata_keys.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert {name: keys for name, keys in tool.unlisted().items() if keys} == {}
