"""Batches of trees, frames, memory maps and user datasets, their orders, and the state of their iterators."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.data import batches, hold_out, windows
from backburn.data.order import BLOCK, MANY, Bijection, Order, generator
from backburn.data.sources import LARGE

# ---- structures ----


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any
    more: dict[str, Any]


def values(batch: Any) -> Any:
    return bb.trees.tree_map(lambda x: x.tolist(), batch)


X, Y = np.arange(6).reshape(3, 2), np.array([7, 8, 9])


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"x": X, "y": Y}, {"x": [[0, 1], [2, 3]], "y": [7, 8]}),
        ({"y": Y, "x": X}, {"y": [7, 8], "x": [[0, 1], [2, 3]]}),
        ({"x": {"a": X, "b": Y}}, {"x": {"a": [[0, 1], [2, 3]], "b": [7, 8]}}),
        ({"x": (X, Y), "none": None}, {"x": ([[0, 1], [2, 3]], [7, 8]), "none": None}),
        (Pair(X, Y), Pair([[0, 1], [2, 3]], [7, 8])),
        (Record(X, {"y": Y}), Record([[0, 1], [2, 3]], {"y": [7, 8]})),
    ],
    ids=["dict", "order of keys", "nested", "tuple in it", "named tuple", "dataclass"],
)
def test_a_batch_has_the_structure_of_the_data(given: Any, first: Any) -> None:
    loader = batches(given, batch_size=2)
    assert len(loader) == 2
    found = next(iter(loader))
    assert type(found) is type(given)
    assert values(found) == first
    if isinstance(given, dict):
        assert list(found) == list(given)


def test_several_trees_are_a_tuple() -> None:
    ((tree, y),) = batches({"x": X}, Y, batch_size=3)
    assert (values(tree), y.tolist()) == ({"x": X.tolist()}, Y.tolist())


def test_batches_of_a_tensor_are_tensors() -> None:
    t = bb.asarray(X)
    ((found,),) = batches(t, batch_size=3)
    assert isinstance(found, bb.Tensor)
    assert found.tolist() == X.tolist()


def test_npz_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with np.load(tmp_path / "a.npz") as file:
        (found,) = batches(file, batch_size=3)
    assert values(found) == {"x": X.tolist(), "y": Y.tolist()}


def frames() -> Iterator[Any]:
    columns = {"length": [0.5, 1.5, 2.5], "name": ["a", "b", "c"], "count": [1, 2, 3]}
    for library, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):

        def made(library: str = library, make: str = make) -> Any:
            return getattr(pytest.importorskip(library), make)(columns)

        yield pytest.param(made, id=library)


@pytest.mark.parametrize("make", list(frames()))
def test_frames_give_dicts_of_columns(make: Any) -> None:
    frame = make()
    loader = batches(frame, batch_size=2, seed=1)
    together = list(loader)
    assert [list(each) for each in together] == [["length", "name", "count"]] * 2
    assert together[0]["length"].dtype == np.float64
    assert together[0]["count"].dtype == np.int64
    rows = [row for each in together for row in zip(*each.values(), strict=True)]
    assert sorted(rows) == [(0.5, "a", 1), (1.5, "b", 2), (2.5, "c", 3)]
    kept, held_out = hold_out(frame, parts=3)
    assert (kept["count"].tolist(), held_out["count"].tolist()) == ([1, 2], [3])


def test_series_are_read_by_position() -> None:
    """The index of a series, which a selection of rows keeps, is ignored."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    chosen = frame[frame["y"] == 1]
    ((x, y),) = batches(chosen["x"], chosen["y"], batch_size=4)
    assert (type(x), x.tolist(), y.tolist()) == (np.ndarray, [2.0, 4.0], [1, 1])


def test_lazy_frames_are_refused() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(ShapeError, match=r"not a LazyFrame; \.collect\(\) reads it"):
        batches(polars.LazyFrame({"a": [1, 2]}), batch_size=1)


def test_missing_numbers_of_frames_are_nan() -> None:
    for library, made in (("pandas", {"dtype": "Int64"}), ("polars", {})):
        frame = pytest.importorskip(library).DataFrame({"a": [1, None]}, **made)
        (batch,) = batches(frame, batch_size=2)
        np.testing.assert_array_equal(batch["a"], [1.0, np.nan])


def test_duplicate_column_names_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ArgumentError, match="columns of the frame need different names: a, a"):
        batches(pandas.DataFrame([[1, 2]], columns=["a", "a"]), batch_size=1)


class Squares:
    """A user's dataset: a length, and a batch for an array of indices."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, indices: Any) -> Any:
        return {"square": indices**2}


def test_user_datasets_return_their_batches() -> None:
    assert [b["square"].tolist() for b in batches(Squares(), batch_size=2)] == [[0, 1], [4, 9], [16]]


def bad_data() -> Iterator[tuple[type[Exception], str, Any]]:
    yield ShapeError, r"equal lengths, not x: 3, y: 2$", {"x": X, "y": Y[:2]}
    yield DTypeError, r"'x' is a list: np.asarray\(...\) makes it an array", {"x": [1, 2, 3]}
    yield ShapeError, r"not 3 as 'n'$", {"x": X, "n": 3}
    yield ShapeError, r"not 'abc' as 'name'$", {"x": X, "name": "abc"}
    yield ShapeError, r"not array\(1.\) as 'x'", {"x": np.array(1.0)}
    yield ArgumentError, "at least one array, and the tree has none", {}
    yield ShapeError, "not a generator$", (x for x in range(3))


@pytest.mark.parametrize(("kind", "words", "data"), list(bad_data()))
def test_invalid_data_are_refused(kind: Any, words: str, data: Any) -> None:
    with pytest.raises(kind, match=f"^batches: .*{words}"):
        batches(data, batch_size=2)


# ---- splits ----


def test_a_random_part_is_held_out() -> None:
    kept, held_out = hold_out({"x": np.arange(20), "y": -np.arange(20)}, seed=3)
    assert len(held_out["x"]) == 4
    assert sorted([*kept["x"], *held_out["x"]]) == list(range(20))
    assert held_out["x"].tolist() != [16, 17, 18, 19]
    assert (held_out["x"] == -held_out["y"]).all()
    again, other = (hold_out(np.arange(20), seed=seed)[1][0].tolist() for seed in (3, 4))
    assert again == held_out["x"].tolist() != other


# ---- orders ----


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 64, 1000, 65_537])
def test_a_bijection_has_every_element_once(length: int) -> None:
    found = Bijection(length, np.random.default_rng(length))(np.arange(length))
    assert found.dtype == np.intp
    assert np.array_equal(np.sort(found), np.arange(length))


@pytest.mark.parametrize("length", [2**31 + 11, 2**32, 2**32 + 1, 2**40])
def test_a_bijection_of_more_elements_than_fit_in_memory(length: int) -> None:
    where = np.array([0, 1, 2, length // 2, length - 2, length - 1])
    found = Bijection(length, np.random.default_rng(0))(where)
    assert len(set(found.tolist())) == 6
    assert (found >= 0).all()
    assert (found < length).all()


def test_a_bijection_looks_random() -> None:
    """Adjacent pairs and triples are uniform in their high and low bits; half of the steps are ascents."""
    length = MANY + 77
    worst = 0.0
    for seed in range(8):
        found = Bijection(length, generator(seed, 0))(np.arange(1 << 17))
        for digits in (found * 16 // length, found & 15):
            pairs = np.bincount(digits[::2] * 16 + digits[1::2], minlength=256)
            expected = len(digits) / 2 / 256
            chi = ((pairs - expected) ** 2 / expected).sum()
            worst = max(worst, abs(chi - 255) / np.sqrt(2 * 255))
        triples = found[: len(found) // 3 * 3].reshape(-1, 3) * 8 // length
        counts = np.bincount(triples @ [64, 8, 1], minlength=512)
        expected = len(triples) / 512
        worst = max(worst, abs(((counts - expected) ** 2 / expected).sum() - 511) / np.sqrt(2 * 511))
        ascents = (np.diff(found) > 0).mean()
        worst = max(worst, abs(ascents - 0.5) * np.sqrt(12 * len(found)))
    assert worst < 4.5
    # A single round fails the same test.
    weak = Bijection(length, generator(0, 0))
    weak._keys = weak._keys[:1]
    digits = weak(np.arange(1 << 17)) * 16 // length
    pairs = np.bincount(digits[::2] * 16 + digits[1::2], minlength=256)
    assert ((pairs - 256) ** 2 / 256).sum() > 1_000


def image(i: int, length: int, random: np.random.Generator) -> int:
    """The image of one index, computed with Python integers."""
    bits = (length - 1).bit_length()
    keys = random.integers(0, 1 << 64, (5, 2), dtype=np.uint64).tolist()
    while True:
        for added, factor in keys:
            i = (i + added) * (factor | 1) % (1 << bits)
            i ^= i >> ((bits + 1) // 2)
        if i < length:
            return i


@pytest.mark.parametrize(
    ("length", "first"),
    [
        (MANY, [891902, 482369, 596627, 767155, 899435]),
        (MANY + 1, None),
        (2**32 - 1, None),
        (2**40, [731876145944, 692733372419, 400703296212]),
    ],
)
def test_long_orders_are_the_same_on_every_machine(length: int, first: list[int] | None) -> None:
    found = Order(length, 0, 1)[:5].tolist()
    assert found == [image(i, length, generator(0, 1)) for i in range(5)]
    assert first is None or found[: len(first)] == first


def test_slices_of_long_orders_equal_the_whole() -> None:
    """For any slice boundaries and in any order."""
    whole = Order(MANY + 5, 7, 2)[0 : MANY + 5]
    assert len(np.unique(whole)) == MANY + 5
    order = Order(MANY + 5, 7, 2)
    for start, stop in ((0, 10), (10, BLOCK + 30), (5, 7), (MANY - 3, MANY + 5), (MANY + 4, MANY + 9), (0, 1)):
        assert np.array_equal(order[start:stop], whole[start:stop])
    assert not np.array_equal(Order(MANY + 5, 7, 3)[:100], whole[:100])
    assert not np.array_equal(Order(MANY + 5, 8, 2)[:100], whole[:100])


def test_long_orders_take_no_memory() -> None:
    import tracemalloc

    x = np.broadcast_to(np.float32(1), (10_000_000,))
    tracemalloc.start()
    try:
        loader = batches(x, batch_size=64, seed=0)
        iterator = iter(loader)
        for _ in range(1000):
            next(iterator)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


# ---- windows and maps ----


def test_windows() -> None:
    x = np.arange(11)
    assert windows(x, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(x, 4, stride=3)[-1].tolist() == [6, 7, 8, 9]
    assert windows(x, 11).shape == (1, 11)
    assert np.shares_memory(windows(x, 4, stride=1), x)
    series = np.arange(20).reshape(10, 2)
    assert windows(series, 3, stride=2).shape == (4, 3, 2)
    assert np.array_equal(windows(series, 3, stride=2)[1], series[2:5])


@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (DTypeError, "takes a NumPy array, not a list", lambda: windows([1, 2], 1)),  # type: ignore[arg-type]
        (ShapeError, r"\[3\] has no window of 4 elements", lambda: windows(np.arange(3), 4)),
        (ShapeError, r"\[\] has no window", lambda: windows(np.array(3), 1)),
        (ArgumentError, "length is an integer of at least 1, not 0", lambda: windows(np.arange(3), 0)),
        (ArgumentError, "stride is an integer of at least 1, not -1", lambda: windows(np.arange(3), 1, stride=-1)),
    ],
)
def test_invalid_windows_are_refused(kind: Any, words: str, call: Any) -> None:
    with pytest.raises(kind, match=f"windows: .*{words}"):
        call()


RESIDENT = r"""
import os, resource, sys
import numpy as np
import backburn as bb
from backburn.data import batches, windows

tokens = np.memmap(sys.argv[1], np.uint16, mode="r")
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
loader = batches(windows(tokens, 257, stride=256), batch_size=32, seed=0)
small = batches(windows(tokens[:5000], 257), batch_size=1)
next(iter(small))
before, total = peak(), 0
for number, (rows,) in enumerate(loader):
    total += int(rows[:, :-1].sum(dtype=np.int64))
print(len(tokens), total, peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems count resident pages differently")
@pytest.mark.slow
def test_a_file_of_a_hundred_million_tokens_stays_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    block = np.arange(10**6, dtype=np.uint16)
    with open(path, "wb") as file:
        for _ in range(100):
            block.tofile(file)
    run = [sys.executable, "-c", RESIDENT, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    count, total, megabytes = map(int, done.stdout.split())
    whole = (count - 1) // 256 * 256
    expected = int(block.sum(dtype=np.int64)) * (whole // 10**6) + int(block[: whole % 10**6].sum(dtype=np.int64))
    assert (count, total) == (10**8, expected)
    assert megabytes < 50


def test_changes_of_a_private_map_are_kept(tmp_path: Path) -> None:
    """Dropping the map's pages would lose them."""
    np.zeros(10**7, np.uint16).tofile(tmp_path / "tokens.bin")
    for mode in ("c", "r+"):
        tokens: Any = np.memmap(tmp_path / "tokens.bin", np.uint16, mode=mode)
        assert tokens.nbytes > LARGE
        tokens[:1000] = 7
        assert all((x == 7).all() for (x,) in batches(tokens[:1000], batch_size=100))
        assert (tokens[:1000] == 7).all()


# ---- epochs and states ----


def test_epochs_are_set() -> None:
    loader = batches(np.arange(50), batch_size=50, seed=4)
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        ((order,),) = loader
        orders.append(order.tolist())
        ((alone,),) = batches(np.arange(50), batch_size=50, seed=4, epoch=epoch)
        assert order.tolist() == alone.tolist()
    assert orders[0] == orders[2] != orders[1]


def test_an_iterator_keeps_the_epoch_with_which_it_began() -> None:
    loader = batches(np.arange(9), batch_size=3, seed=4)
    expected = [x.tolist() for (x,) in loader]
    iterator = iter(loader)
    found = [next(iterator)[0].tolist()]
    loader.set_epoch(5)
    assert found + [x.tolist() for (x,) in iterator] == expected


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("length", [10, MANY + 3])
def test_an_iterator_resumes_from_its_state(length: int, seed: int | None) -> None:
    x = np.arange(length)
    size = 3 if length == 10 else 300_000
    loader = batches({"x": x}, batch_size=size, seed=seed, epoch=2)
    whole = [b["x"] for b in loader]
    for done in range(len(loader) + 1):
        iterator = iter(loader)
        for _ in range(done):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        other = iter(batches({"x": x}, batch_size=size, seed=seed))
        other.set_state(state)
        assert other.get_state() == state
        rest = [b["x"] for b in other]
        assert len(rest) == len(whole) - done
        assert all(np.array_equal(a, b) for a, b in zip(rest, whole[done:], strict=True))


def test_a_state_of_other_batches_is_refused() -> None:
    state = iter(batches(np.arange(10), batch_size=3, seed=0)).get_state()
    others = [
        (batches(np.arange(11), batch_size=3, seed=0), r"elements \(was 10, is 11\)$"),
        (batches(np.arange(10), batch_size=4, seed=1), r"batch_size \(was 3, is 4\), seed \(was 0, is 1\)$"),
        (batches(np.arange(10), batch_size=3, seed=0, drop_last=True), r"drop_last \(was False, is True\)$"),
    ]
    for loader, words in others:
        with pytest.raises(ArgumentError, match=words):
            iter(loader).set_state(state)
    for wrong in ({}, {"batch": 1}, None, b"1"):
        with pytest.raises(ArgumentError, match="what get_state has returned"):
            iter(batches(np.arange(10), batch_size=3)).set_state(wrong)  # type: ignore[arg-type]


def test_descriptions_can_be_written_as_json() -> None:
    tree = {"x": np.zeros((4, 2), np.float32), "own": Squares()}
    make: Any = batches
    loader = make({"x": tree["x"]}, batch_size=np.int64(2), seed=np.int32(1))
    assert json.loads(json.dumps(loader.describe())) == {
        "elements": 4, "batch_size": 2, "seed": 1, "drop_last": False, "arrays": {"x": "float32[4,2]"},
    }  # fmt: skip
    assert re.fullmatch(r".*Squares\[5\].*", str(batches(Squares(), batch_size=1).describe()))


def test_wrong_epochs_are_refused() -> None:
    loader = batches(np.arange(3), batch_size=1, seed=0)
    for epoch in (-1, 1.5, "1", True):
        with pytest.raises(ArgumentError, match="epoch is an integer from 0 on"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]


def test_integers_with_gaps_in_a_frame_are_not_rounded() -> None:
    polars = pytest.importorskip("polars")
    near = polars.DataFrame({"x": [2**53 - 1, None]})
    assert next(iter(batches(near, batch_size=2)))["x"][0] == 2**53 - 1
    far = polars.DataFrame({"x": [2**53 + 1, None]})
    for given in (far, far["x"], far.to_arrow()):
        with pytest.raises(DTypeError, match=r"batches: .* has integers of 2\*\*53 or more and gaps"):
            batches(given, batch_size=2)
