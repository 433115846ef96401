"""The page on how operations are computed on shards, compared with the warnings of calls."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from backburn.conformance import SAMPLES
from backburn.decorators.sharding import GatherWarning, Sharded
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

EXTENSIONS = Path(__file__).parents[3] / "docs" / "_ext"
WAYS = {"rule", "body", "gathers", "summed", "kept", "–"}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    yield import_module("sharding_table")
    for name in ("public_api", "sharding_table"):
        sys.modules.pop(name, None)


def test_the_page_lists_every_operation_and_those_that_gather(table: ModuleType) -> None:
    lines = [line for line in table.page().splitlines() if line.startswith("| `")]
    cells = {line.split("`")[1]: [cell.strip().split(", ") for cell in line.split("|")[2:5]] for line in lines}
    own = [o for o in OPERATIONS.values() if o.operands and o.body.__module__.startswith("backburn.")]
    assert sorted(cells) == sorted(o.name for o in own)
    assert {word for row in cells.values() for cell in row for word in cell} == WAYS
    level = Sharded(NumpyBackend(), dp=2)
    for name, row in cells.items():
        for placement, words in zip(table.PLACEMENTS, row, strict=True):
            with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
                warnings.simplefilter("always")
                for sample in SAMPLES[name].cases:
                    getattr(level, name)(*table.operands_of(level, sample, placement), **sample.attributes)
            gathers = any(w.category is GatherWarning for w in caught)
            assert gathers == ("gathers" in words), (name, placement)
