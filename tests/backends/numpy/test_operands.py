"""Operations of the backend itself, whose operands no tensor has checked: other shapes and dtypes read no other memory.

A read beyond an array ends the process, and so fails the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels
from tests.helpers.pages import at_the_end, needs_pages

from backburn.conformance.samples import SAMPLES, Sample
from backburn.conformance.samples.calls import arrays
from backburn_numpy import NumpyBackend, tuning
from backburn_numpy.implements import IMPLEMENTATIONS

K = NumpyBackend()
CALLS = 12


def _resized(x: Any, draw: random.Random, change: Callable[[int], int]) -> Any:
    axis = draw.randrange(x.ndim)
    shape = [change(n) if i == axis else n for i, n in enumerate(x.shape)]
    return np.resize(x, shape) if x.size and all(shape) else np.empty(shape, x.dtype)


def _changed(x: Any, draw: random.Random) -> Any:
    """An array of another shape or dtype."""
    kinds: list[Callable[[], Any]] = [
        lambda: x.astype(np.float64 if x.dtype == np.float32 else np.float32),
        lambda: x.astype(np.int64 if x.dtype.kind == "f" else np.int32),
        lambda: x[None],
        lambda: np.resize(x, (3,)) if x.size else x,
        lambda: np.resize(x, ()) if x.size else x,
    ]
    if x.ndim:
        changes: tuple[Callable[[int], int], ...] = (lambda n: max(0, n - 1), lambda n: n // 2, lambda n: 1)
        kinds += [lambda change=change: _resized(x, draw, change) for change in changes]  # type: ignore[misc]
        kinds.append(lambda: np.ascontiguousarray(x.swapaxes(0, -1)))
    return draw.choice(kinds)()


def _call(name: str, sample: Sample, dtype: str, draw: random.Random) -> None:
    """Call an operation with one array of a sample changed; it may raise any error."""
    operands = [list(x) if isinstance(x, list) else x for x in arrays(sample, dtype)]
    places = [(operands, i) for i, x in enumerate(operands) if isinstance(x, np.ndarray)]
    places += [(x, i) for x in operands if isinstance(x, list) for i, y in enumerate(x) if isinstance(y, np.ndarray)]
    if not places:
        return
    within, at = draw.choice(places)
    within[at] = _changed(within[at], draw)

    def held(x: Any) -> Any:
        if isinstance(x, list):
            return [*map(held, x)]
        if isinstance(x, np.ndarray):
            return at_the_end(x) if x.size else x
        return x.on(K) if hasattr(x, "on") else x

    given = [*map(held, operands)]
    try:
        with np.errstate(all="ignore"):
            getattr(K, name)(*given, **sample.attributes)
    except Exception:  # any error is right, and so is a result
        pass


@needs_kernels
@needs_pages
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(IMPLEMENTATIONS.keys() & {*SAMPLES}))
def test_no_memory_beyond_the_operands_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for least in dir(tuning):  # few elements take the paths of many, too
        if least.startswith("MIN_") and isinstance(getattr(tuning, least), int):
            monkeypatch.setattr(tuning, least, 1)
    draw = random.Random(name)
    samples = [sample for sample in SAMPLES[name].cases if sample.operands]
    for i in range(CALLS if samples else 0):
        _call(name, draw.choice(samples), ("float32", "float64")[i % 2], draw)
