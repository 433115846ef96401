"""Loaders of other libraries: the documentation's examples, states, and workers that fail or die."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim, train
from backburn.data import batches, image_folder, prefetch

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def blocks() -> dict[str, str]:
    """The page's Python blocks by heading."""
    found = {}
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        if match := re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            found[section.splitlines()[0]] = match[1]
    return found


def test_every_library_has_an_example() -> None:
    assert list(blocks()) == ["Loaders of other libraries", "Grain", "PyTorch's DataLoader", "Hugging Face datasets"]


@pytest.mark.parametrize(
    ("heading", "module"),
    [("Grain", "grain"), ("PyTorch's DataLoader", "torch"), ("Hugging Face datasets", "datasets")],
)
def test_the_examples_of_the_page(heading: str, module: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    image = pytest.importorskip("PIL.Image")
    for name in ("day", "night"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            image.new("RGB", (32, 24), (40 * i, 0, 0)).save(tmp_path / "photos" / name / f"{i}.jpg")
    names: dict[str, Any] = {
        "np": np, "bb": bb, "nn": nn, "optim": optim, "train": train, "batches": batches,
        "image_folder": image_folder, "folder": tmp_path,
    }  # fmt: skip
    steps = []

    class Counted(train.Callback):
        def on_step(self, trainer: Any, row: Any) -> None:
            steps.append(float(row["loss"]))

    def fit(*given: Any, **options: Any) -> Any:
        return train.fit(*given, callbacks=[Counted()], **options)

    found = blocks()
    exec(found["Loaders of other libraries"], names)
    exec(found[heading].replace("train.fit(", "fit("), names | {"fit": fit})
    assert len(steps) == 4  # two epochs of 4 + 2 photos
    assert np.isfinite(steps).all()


class Numbers:
    """A source for any loader."""

    def __init__(self, broken: int | None = None, dies: bool = False) -> None:
        self.broken = broken
        self.dies = dies

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: Any) -> dict[str, Any]:
        if i == self.broken:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"element {i} is broken")
        return {"x": np.full(1, i, np.float32), "y": np.full(1, 2 * i, np.float32)}


def numbers_of(iterator: Any) -> list[list[int]]:
    return [np.asarray(batch["x"]).ravel().astype(int).tolist() for batch in iterator]


def grain_loader(source: Any, epoch: int = 0) -> Any:
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(source).seed(epoch).shuffle().batch(4).to_iter_dataset()


@pytest.mark.parametrize("ahead", [False, True])
def test_grain_resumes_from_a_state(ahead: bool) -> None:
    loader: Any = prefetch(grain_loader(Numbers()), 3) if ahead else grain_loader(Numbers())
    iterator = iter(loader)
    first = [next(iterator) for _ in range(3)]
    state = iterator.get_state()
    rest = numbers_of(iterator)
    assert sorted(x for batch in numbers_of(first) + rest for x in batch) == list(range(40))
    again = iter(loader)
    again.set_state(state)
    assert numbers_of(again) == rest


def collate(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: np.stack([element[key] for element in elements]) for key in elements[0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "ahead"), [(False, True), (True, False), (True, True)], ids=["raises", "dies", "dies, prefetch"]
)
def test_failing_workers_raise_errors(dies: bool, ahead: bool) -> None:
    """Nothing hangs, and earlier batches arrive."""
    data = pytest.importorskip("torch.utils.data")
    options: Any = {"batch_size": 4, "num_workers": 1, "collate_fn": collate, "multiprocessing_context": "spawn"}
    loader = data.DataLoader(Numbers(broken=9, dies=dies), **options)
    found = []

    def take() -> None:
        for batch in prefetch(loader, 2) if ahead else loader:
            found.append(batch["x"].ravel().tolist())

    kind, words = (RuntimeError, "exited unexpectedly|killed by") if dies else (ValueError, "element 9 is broken")
    with pytest.raises(kind, match=words):
        take()
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]][: len(found)]
    assert dies or len(found) == 2


@pytest.mark.parametrize("ahead", [False, True])
def test_failing_sources_of_grain_raise_errors(ahead: bool) -> None:
    loader = grain_loader(Numbers(broken=9))
    with pytest.raises(ValueError, match="element 9 is broken"):
        numbers_of(prefetch(loader) if ahead else loader)


def test_datasets_are_shuffled_and_resumed() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": np.arange(10.0), "name": list("abcdefghij")}).with_format("numpy")
    loader = batches(data, batch_size=4, seed=0)
    iterator = iter(loader)
    first = next(iterator)
    assert {key: type(value) for key, value in first.items()} == {"x": np.ndarray, "name": np.ndarray}
    assert all(chr(97 + int(x)) == name for x, name in zip(first["x"], first["name"], strict=True))
    state = iterator.get_state()
    rest = numbers_of(iterator)
    again = iter(loader)
    again.set_state(state)
    assert numbers_of(again) == rest
    kept, held_out = bb.data.hold_out(data, seed=1)
    assert sorted([*kept["x"], *held_out["x"]]) == list(range(10))
    streamed = data.to_iterable_dataset().with_format("numpy").iter(batch_size=4)
    assert numbers_of(streamed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def squared(model: Any, batch: Any) -> Any:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
    return nn.functional.mse_loss(model(x / 40), y / 40)


def test_tensors_of_another_library_train() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(8.0)[:, None], 2 * torch.arange(8.0)[:, None])
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    run = train.fit(nn.Linear(1, 1), squared, loader, optimizer=optim.Adam(0.1), epochs=20, progress=False)
    assert run.steps == 40
    assert run.history[-1]["loss"] < run.history[0]["loss"] / 2


def loaders() -> dict[str, Any]:
    """Stateful loaders over the same elements, by name."""
    x = np.arange(40, dtype=np.float32)[:, None]

    def plain() -> Any:
        return batches({"x": x, "y": 2 * x}, batch_size=4, seed=3)

    def of_datasets() -> Any:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict({"x": x.tolist(), "y": (2 * x).tolist()})
        return batches(data.with_format("numpy"), batch_size=4, seed=3)

    return {
        "batches": plain,
        "prefetch": lambda: prefetch(plain(), 3),
        "grain": lambda: lambda epoch: grain_loader(Numbers(), epoch),
        "grain, prefetch": lambda: lambda epoch: prefetch(grain_loader(Numbers(), epoch), 2),
        "datasets": of_datasets,
    }


class StopAt(train.Callback):
    """Interrupts a run like a signal."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Any, row: Any) -> None:
        if trainer.steps == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", list(loaders()))
def test_runs_are_resumed_within_an_epoch(name: str, tmp_path: Path) -> None:
    """The result is bitwise equal to an uninterrupted run."""

    def run(folder: Path, stop: int | None, resume: bool) -> Any:
        bb.random.seed(0)
        callbacks = [] if stop is None else [StopAt(stop)]
        return train.fit(
            nn.Linear(1, 1), squared, loaders()[name](), optimizer=optim.Adam(0.1), epochs=2, folder=folder,
            callbacks=callbacks, resume=resume, progress=False, seed=1,
        )  # fmt: skip

    whole = run(tmp_path / "whole", None, False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", 7, False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", 14, True)
    parts = run(tmp_path / "parts", None, True)
    assert (whole.steps, parts.steps) == (20, 20)
    assert whole.model.weight.tolist() == parts.model.weight.tolist()
    assert [row["loss"] for row in whole.history] == [row["loss"] for row in parts.history]


def test_data_without_a_length_train_in_a_folder(tmp_path: Path) -> None:
    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": np.zeros((4, 1), np.float32), "y": np.ones((4, 1), np.float32)}

    for number, data in enumerate((endless(), prefetch(endless()))):
        run = train.fit(
            nn.Linear(1, 1), squared, data, optimizer=optim.SGD(0.1), epochs=2, steps_per_epoch=3,
            folder=tmp_path / str(number), progress=False,
        )  # fmt: skip
        assert (run.epoch, run.steps) == (2, 6)


@pytest.mark.parametrize("rows", [0, 3])
def test_an_epoch_without_batches_is_an_error(rows: int) -> None:
    x = np.zeros((rows, 1), np.float32)
    data = batches({"x": x, "y": x}, batch_size=4, drop_last=True)
    for loader in (data, prefetch(data)):
        with pytest.raises(bb.errors.ArgumentError, match="have no batch in epoch 1"):
            train.fit(nn.Linear(1, 1), squared, loader, optimizer=optim.SGD(0.1), epochs=1, progress=False)
