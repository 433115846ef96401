"""Elements that pool processes read and compute, forked or spawned after this process has used its threads."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.data import batches, image_folder


def computed(source: Any, index: int) -> tuple[bytes, float]:
    """The bytes of an image, and the gradient's sum of a product large enough for threads."""
    image = source[index]["image"]
    x = bb.asarray(np.tile(image.reshape(3, -1), (100, 4)))
    gradient = bb.grad(lambda x: (bb.relu(x @ x.T) * 0.5).sum())(x)
    return image.tobytes(), float(gradient.sum().item())


def some(folder: Path) -> Any:
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    return image_folder(folder)


METHODS = [way for way in ("fork", "spawn", "forkserver") if way in multiprocessing.get_all_start_methods()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_pool_computes_the_results_of_one_process(method: str, tmp_path: Path) -> None:
    """Run twice, so that each process has several tasks; the folder object is pickled."""
    source = some(tmp_path)
    expected = [computed(source, index) for index in range(6)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        for _ in range(2):
            waiting = [pool.apply_async(computed, (source, index)) for index in range(6)]
            assert [each.get(timeout=240) for each in waiting] == expected
    assert computed(source, 0) == expected[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_batches_can_be_pickled_for_a_pool(method: str, tmp_path: Path) -> None:
    """Iterating in another process gives the same batches."""
    whole = batches({"x": np.arange(40.0).reshape(20, 2)}, batch_size=4, seed=3)
    expected = [batch["x"].tolist() for batch in whole]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(listed, (whole, 1)).get(timeout=240) == expected


def listed(loader: Any, _: int) -> list[Any]:
    return [batch["x"].tolist() for batch in loader]
