"""PyTorch checkpoints with objects of other classes beside the weights, which are skipped and not executed."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import functools
import pathlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.errors import FileFormatError


class Colour(enum.Enum):
    """A class as trainers have."""

    RED = 1


class Settings(dict[str, Any]):
    """A subclass of dict."""


class Trap:
    """Creates a file if unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.path,)


BESIDE: dict[str, Any] = {
    "a NumPy number": np.float64(1.5),
    "a namespace": argparse.Namespace(lr=0.1),
    "an array": np.arange(5.0),
    "objects": np.array(["a", None], object),
    "sets": [{1, 2}, frozenset({3})],
    "a path": pathlib.Path("/x"),
    "times": [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(1)],
    "an enum": Colour.RED,
    "a dict": Settings(a=1),
    "a defaultdict": collections.defaultdict(list, {"a": [1]}),
    "a deque": collections.deque([1, 2], 3),
    "numbers": [decimal.Decimal("1.5"), 1j, 10**40, range(3), slice(1, 2)],
    "bytes": [b"x", bytearray(b"xy")],
    "functions": [np.mean, functools.partial(print, 1), int, re.compile("a")],
    "keys": {Colour.RED: 1, (1, 2): 2, 1.5: 3, np.int64(3): 4, b"x": 5, Colour: 6},
    "states": [np.random.default_rng(0), np.random.RandomState(0).get_state()],
}


def saved(path: Path, tree: Any, **options: Any) -> Path:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(tree, path, **options)
    return path


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("what", BESIDE)
def test_weights_beside_other_objects(what: str, archive: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    tree = {"args": BESIDE[what], "state_dict": theirs.state_dict(), "epoch": 3}
    path = saved(tmp_path / "x.pt", tree, _use_new_zipfile_serialization=archive)
    model = nn.Linear(3, 2)
    start = "state_dict."
    bb.io.load_weights(model, path, rename=lambda name: name.removeprefix(start) if name.startswith(start) else None)
    np.testing.assert_array_equal(model.weight.numpy(), theirs.weight.detach().numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickles(protocol: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    path = saved(tmp_path / "x.pt", {**theirs.state_dict(), "all": BESIDE}, pickle_protocol=protocol)
    model = nn.Linear(3, 2)
    bb.io.load_weights(model, path)
    np.testing.assert_array_equal(model.bias.numpy(), theirs.bias.detach().numpy())  # type: ignore[union-attr]


def test_subclasses_of_dict_are_searched(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    path = saved(tmp_path / "x.pt", Settings(model=Settings(theirs.state_dict())))
    model = nn.Linear(3, 2)
    bb.io.load_weights(model, path, rename=lambda name: name.removeprefix("model."))
    np.testing.assert_array_equal(model.weight.numpy(), theirs.weight.detach().numpy())


@pytest.mark.parametrize("archive", [True, False])
def test_objects_beside_weights_are_not_executed(archive: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    tree = {"trap": Trap(tmp_path / "executed"), **theirs.state_dict()}
    path = saved(tmp_path / "x.pt", tree, _use_new_zipfile_serialization=archive)
    bb.io.load_weights(nn.Linear(3, 2), path)
    assert not (tmp_path / "executed").exists()


def test_a_whole_model_is_refused_by_its_class(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = saved(tmp_path / "x.pt", torch.nn.Linear(3, 2))
    with pytest.raises(FileFormatError, match=r"its pickle names 'torch.nn.modules.linear.Linear', .*state_dict"):
        bb.io.load_weights(nn.Linear(3, 2), path)
