"""Digits, splits, batches and distortions."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import pytest

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.data import CLASSES, Distortion, batches, distort, hold_out, load_digits
from backburn.data.order import generator

# ---- digits ----


def test_digits_are_the_file_that_scikit_learn_ships() -> None:
    images, labels = load_digits()
    rows = np.column_stack([images.reshape(-1, 64) * 16, labels]).astype(int)
    lines = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
    digest = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


def test_attribution_is_included() -> None:
    text = resources.files("backburn.data.digits").joinpath("LICENSE.txt").read_text(encoding="utf-8")
    for words in ("Alpaydin", "Kaynak", "UCI Machine Learning Repository", "CC BY 4.0", "scikit-learn"):
        assert words in text


def test_digits() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 8, 8)
    assert labels.shape == (1797,)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert images.min() == 0
    assert images.max() == 1
    assert np.array_equal(images * 16, np.round(images * 16))
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert CLASSES == 10
    assert (images[0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_other_data_need_no_bz2() -> None:
    """Batches work on a Python without it; only the digits are compressed with it."""
    program = """
import sys
sys.modules["bz2"] = None
import numpy as np
import backburn as bb
print(len(list(bb.data.batches(np.ones((5, 2)), np.arange(5), batch_size=2))))
bb.data.load_digits()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "3\n"
    assert done.stderr.endswith("import of bz2 halted; None in sys.modules\n")


def test_load_digits_returns_copies() -> None:
    load_digits()[0][:] = -1
    assert load_digits()[0].min() == 0


# ---- the held-out part ----


def test_last_fifth_is_held_out() -> None:
    images, labels = load_digits()
    (kept, kept_labels), (held_out, held_out_labels) = hold_out(images, labels)
    assert len(kept) == len(kept_labels) == 1437
    assert len(held_out) == len(held_out_labels) == 360
    assert np.array_equal(held_out, images[-360:])
    assert np.array_equal(held_out_labels, labels[-360:])
    assert np.array_equal(kept, images[:1437])


@pytest.mark.parametrize(("length", "parts", "expected"), [(10, 5, 2), (11, 5, 3), (2, 2, 1), (5, 5, 1), (9, 2, 5)])
def test_held_out_part_is_rounded_up(length: int, parts: int, expected: int) -> None:
    assert len(hold_out(np.arange(length), parts=parts)[1][0]) == expected


@pytest.mark.parametrize(("length", "parts"), [(4, 5), (0, 2), (10, 1), (10, 0)])
def test_impossible_parts_are_refused(length: int, parts: int) -> None:
    with pytest.raises(ArgumentError, match="hold_out"):
        hold_out(np.arange(length), parts=parts)


# ---- batches ----


def test_batches_in_order_keep_the_last_partial_one() -> None:
    x = np.arange(7)
    found = list(batches(x, x * 10, batch_size=3))
    assert [len(b) for b, _ in found] == [3, 3, 1]
    assert np.array_equal(np.concatenate([b for b, _ in found]), x)
    assert all(np.array_equal(b * 10, c) for b, c in found)


@pytest.mark.parametrize(("length", "sizes"), [(7, [3, 3]), (6, [3, 3]), (2, []), (0, [])])
def test_drop_last_omits_a_partial_batch(length: int, sizes: list[int]) -> None:
    for seed in (None, 3):
        assert [len(x) for (x,) in batches(np.arange(length), batch_size=3, seed=seed, drop_last=True)] == sizes


def test_unknown_options_name_the_valid_ones() -> None:
    """They are reported before missing arguments."""
    loose: Any = batches
    for options in ({"shuffle": True}, {"shuffle": True, "batch_size": 2}):
        with pytest.raises(
            TypeError, match=r"^batches\(\) got .*'shuffle'; here: seed=0, .* batches\(\*arrays, batch_si"
        ):
            loose(np.arange(3), **options)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'batch_size'"):
        loose(np.arange(3))


def test_the_number_of_batches_is_known() -> None:
    assert len(batches(np.arange(7), batch_size=3)) == 3
    assert len(batches(np.arange(7), batch_size=3, drop_last=True, seed=0)) == 2
    assert len(batches(np.arange(0), batch_size=3)) == 0


def test_batches_can_be_iterated_again() -> None:
    """A second epoch must not be silently empty."""
    order = batches(np.arange(7), batch_size=3, seed=0)
    first, second = ([b.tolist() for (b,) in order] for _ in range(2))
    assert first == second
    assert len(first) == len(order) == 3
    assert [a.tolist() == b.tolist() for (a,), (b,) in zip(order, order, strict=True)] == [True] * 3


def test_shuffled_batches_have_everything_once_and_keep_rows_together() -> None:
    x = np.arange(100)
    found = list(batches(x, -x, batch_size=32, seed=0))
    together = np.concatenate([b for b, _ in found])
    assert sorted(together) == x.tolist()
    assert not np.array_equal(together, x)
    assert all(np.array_equal(b, -c) for b, c in found)


def test_order_depends_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [int(i) for (b,) in batches(np.arange(50), batch_size=50, seed=seed, epoch=epoch) for i in b]

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2) != order(2, 1)


def test_order_is_the_same_on_every_machine() -> None:
    ((order,),) = batches(np.arange(8), batch_size=8, seed=0, epoch=1)
    assert order.tolist() == [1, 4, 6, 5, 7, 3, 2, 0]


def test_streams_are_independent() -> None:
    assert generator(0, 0).random() != generator(0, 0, stream=1).random()


def bad_calls() -> Iterator[tuple[type[Exception], str, object]]:
    yield ArgumentError, "batch_size is an integer from 1 on", lambda: batches(np.arange(3), batch_size=0)
    yield ArgumentError, "batch_size is an integer from 1 on", lambda: batches(np.arange(3), batch_size=True)
    row: Any = [0, 1, 2]
    yield DTypeError, "batches: takes arrays one after another, not a list", lambda: batches(row, batch_size=1)
    yield DTypeError, "hold_out: takes arrays one after another, not a list", lambda: hold_out(row)
    share: Any = 0.3
    yield ShapeError, "first axis, one after another, not a set$", lambda: batches({1, 2}, batch_size=1)
    yield ShapeError, "hold_out: .* not 0.3$", lambda: hold_out(np.arange(3), share)
    yield ArgumentError, "at least one array", lambda: batches(batch_size=1)
    yield ShapeError, "equal lengths, not 3, 4", lambda: batches(np.arange(3), np.arange(4), batch_size=1)
    yield ShapeError, "hold_out", lambda: hold_out(np.arange(3), np.arange(4))
    no: Any = "False"
    yield ArgumentError, "drop_last is True or False", lambda: batches(np.arange(3), batch_size=1, drop_last=no)
    images, seed = np.zeros((1, 2, 2)), row[0]
    yield ArgumentError, "distort: how is a Distortion", lambda: distort(images, seed, np.random.default_rng(0))
    yield ArgumentError, "distort: random is a generator", lambda: distort(images, Distortion(), seed)
    yield ArgumentError, "integers from 0 on", lambda: batches(np.arange(3), batch_size=1, seed=-1)


@pytest.mark.parametrize(("kind", "words", "call"), list(bad_calls()))
def test_bad_calls_are_refused_at_once(kind, words, call) -> None:
    with pytest.raises(kind, match=words):
        call()


# ---- distortions ----


def test_no_distortion_changes_nothing() -> None:
    images, _ = load_digits()
    assert np.array_equal(distort(images[:50], Distortion(), generator(0, 0)), images[:50])


def test_distorted_images_differ_and_stay_images() -> None:
    images, _ = load_digits()
    how = Distortion(rotation=20, scale=0.2, shear=0.3, shift=1)
    found = distort(images, how, generator(0, 0))
    assert found.shape == images.shape
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() <= 1
    assert (np.abs(found - images).max(axis=(1, 2)) > 0.01).all()
    assert np.array_equal(found, distort(images, how, generator(0, 0)))


class Fixed(np.random.Generator):
    """Draws the upper bound."""

    def __init__(self) -> None:
        super().__init__(np.random.Philox(0))

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.full(size, high)


def test_shift_moves_by_pixels() -> None:
    image = np.zeros((1, 4, 4), np.float32)
    image[0, 2, 3] = 1
    moved = distort(image, Distortion(shift=1), Fixed())
    assert np.argwhere(moved[0]).tolist() == [[1, 2]]
    assert moved[0, 1, 2] == 1


def test_shift_by_half_a_pixel_averages_neighbours() -> None:
    image = np.zeros((1, 4, 4), np.float32)
    image[0, 2, 2] = 1
    assert distort(image, Distortion(shift=0.5), Fixed())[0, 1:3, 1:3].tolist() == [[0.25, 0.25], [0.25, 0.25]]


def test_rotation_turns_about_the_centre() -> None:
    image = np.arange(25, dtype=np.float64).reshape(1, 5, 5)
    turned = distort(image, Distortion(rotation=90), Fixed())
    assert np.allclose(turned[0], np.rot90(image[0], -1)) or np.allclose(turned[0], np.rot90(image[0]))


def test_pixels_shifted_out_of_the_image_are_lost() -> None:
    image = np.ones((1, 4, 4), np.float32)
    assert distort(image, Distortion(shift=8), Fixed()).max() == 0


def test_scale_stretches_about_the_centre() -> None:
    image = np.arange(1, 10, dtype=np.float64).reshape(1, 3, 3)
    small = distort(image, Distortion(scale=float(np.log(2))), Fixed())
    assert small[0, 1, 1] == pytest.approx(5)
    assert small[0, 0, 0] == pytest.approx(0)


def test_a_single_image_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"not \[8, 8\]"):
        distort(np.zeros((8, 8)), Distortion(), generator(0, 0))
