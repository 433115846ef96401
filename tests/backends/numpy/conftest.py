"""Fixtures of the tests of the NumPy backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers.kernels import USABLE, use_level

from backburn_numpy import compiled
from backburn_numpy.elementwise import blocks as blocks_module
from backburn_numpy.elementwise import fused, half_precision
from backburn_numpy.ops import (
    attention,
    ctc,
    decompositions,
    index,
    quantized_products,
    resample,
    scan,
    selection,
)
from backburn_numpy.ops import shape as shape_module
from backburn_numpy.rows import norms
from backburn_numpy.runtime import threads


@pytest.fixture(params=[(level, count) for level in USABLE for count in (1, 3)], ids=str)
def everything_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The smallest arrays go to kernels too, by one or by several threads."""
    level, count = request.param
    use_level(monkeypatch, level)
    monkeypatch.setattr(half_precision, "SMALL", 1)
    monkeypatch.setattr(compiled, "FEW_PASSES", {})
    for module in (selection, shape_module):
        monkeypatch.setattr(module, "MANY", 1)
    for module in (blocks_module, fused, attention):
        monkeypatch.setattr(module, "SHARED", 1)
    first = (blocks_module, ctc, decompositions, index, norms)
    for module in (*first, quantized_products, resample, scan):
        monkeypatch.setattr(module, "WORTH", 1)
    before = threads.num_threads()
    threads.set_num_threads(count)
    yield
    threads.set_num_threads(before)
