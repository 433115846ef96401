"""Folders of images, tables and texts, including damaged ones."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburn.base.errors import ArgumentError, BackendUnavailableError, DTypeError, FileFormatError, ShapeError
from backburn.data import batches, hold_out, image_folder, read_table, read_text, windows

# ---- images ----


def picture(path: Path, values: Any, **options: Any) -> None:
    """Write an image of uint8 values."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path, **options)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of two and three images of 4 x 6 pixels, each in one colour."""
    pytest.importorskip("PIL")
    for name, count in (("b", 2), ("a", 3)):
        for i in range(count):
            value = 10 * i + (100 if name == "b" else 0)
            picture(tmp_path / "photos" / name / f"{i}.png", np.full((4, 6, 3), [value, 0, 255]))
    (tmp_path / "photos" / "a" / ".hidden.png").write_bytes(b"")
    (tmp_path / "photos" / "a" / "notes.txt").write_bytes(b"no image")
    (tmp_path / "photos" / ".git").mkdir()
    return tmp_path / "photos"


def test_a_folder_of_images(photos: Path) -> None:
    folder = image_folder(photos)
    assert (len(folder), folder.classes) == (5, ["a", "b"])
    assert folder.labels is not None
    assert folder.labels.tolist() == [0, 0, 0, 1, 1]
    batch = folder[np.array([4, 1])]
    assert batch["image"].shape == (2, 3, 4, 6)
    assert batch["image"].dtype == np.float32
    assert batch["image"].flags.c_contiguous
    assert np.array_equal(batch["image"][:, 0, 0, 0], np.divide([110, 10], 255, dtype=np.float32))
    assert (batch["image"][:, 2] == 1).all()
    assert batch["label"].tolist() == [1, 0]
    assert batch["label"].dtype == np.int64


def test_single_and_empty_selections_of_images(photos: Path) -> None:
    folder = image_folder(photos, dtype="uint8", size=2)
    assert (folder[3]["image"].shape, folder[3]["label"], folder[-1]["label"]) == ((3, 2, 2), 1, 1)
    assert folder[[]]["image"].shape == (0, 3, 2, 2)
    with pytest.raises(IndexError):
        folder[5]
    assert len(list(folder)) == 5  # type: ignore[call-overload]


def test_batches_and_parts_of_a_folder(photos: Path) -> None:
    folder = image_folder(photos, dtype="uint8")
    found = list(batches(folder, batch_size=2, seed=0))
    assert [len(b["label"]) for b in found] == [2, 2, 1]
    reds = sorted((int(r), int(n)) for b in found for r, n in zip(b["image"][:, 0, 0, 0], b["label"], strict=True))
    assert reds == [(0, 0), (10, 0), (20, 0), (100, 1), (110, 1)]
    kept, held_out = hold_out(folder, seed=1)
    assert (len(kept), len(held_out)) == (4, 1)
    assert sorted([*kept.paths, *held_out.paths]) == folder.paths
    assert folder[1:3]["label"].tolist() == [0, 0]
    assert batches(folder, batch_size=2).describe()["arrays"] == {
        "": {"images": 5, "classes": ["a", "b"], "size": None, "mode": "RGB", "dtype": "uint8"}
    }


def test_modes_and_sizes(photos: Path) -> None:
    from PIL import Image

    gray = image_folder(photos, mode="L", size=(3, 5), dtype="float64")[[0]]["image"]
    assert gray.shape == (1, 1, 3, 5)
    assert gray.dtype == np.float64
    with Image.open(photos / "a" / "0.png") as file:
        expected = np.asarray(file.convert("L").resize((5, 3), Image.Resampling.BILINEAR)) / 255
    assert np.array_equal(gray[0, 0], expected)
    assert image_folder(photos, mode="RGBA")[[0]]["image"].shape == (1, 4, 4, 6)


def test_images_are_rotated_by_their_exif_orientation(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    turned = image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    notes = turned.getexif()
    notes[0x0112] = 6  # a quarter turn
    turned.save(tmp_path / "a.png", exif=notes)
    found = image_folder(tmp_path, mode="L", dtype="uint8")[[0]]["image"]
    assert np.array_equal(found[0, 0], np.rot90(np.arange(24).reshape(4, 6), -1))


@pytest.mark.parametrize(("name", "options"), [("a.png", {}), ("a.tif", {}), ("a.pgm", {}), ("b.tif", {262: 0})])
def test_images_of_16_bits(name: str, options: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    values = np.array([[0, 16384], [32768, 65535]], np.uint16)
    image.fromarray(values).save(tmp_path / name, **({"tiffinfo": options} if options else {}))
    shares = values / 65535 if not options else 1 - values / 65535
    found = image_folder(tmp_path, mode="RGBA", dtype="float64")[0]["image"]
    np.testing.assert_allclose(found[:3], np.broadcast_to(shares, (3, 2, 2)), rtol=0, atol=1e-15)
    assert (found[3] == 1).all()
    assert image_folder(tmp_path, mode="L", size=(1, 3))[0]["image"].shape == (1, 1, 3)
    with pytest.raises(DTypeError, match=r"has 16 bits for each pixel, which uint8 does not hold"):
        image_folder(tmp_path, dtype="uint8")[0]


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_images_without_a_defined_white_are_refused(dtype: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.ones((2, 2), dtype)).save(tmp_path / "a.tif")
    with pytest.raises(FileFormatError, match="does not say what white is"):
        image_folder(tmp_path)[0]


def deep_png(pixels: Any, kind: int) -> bytes:
    """A PNG with 16 bits per channel."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("name", "channels"), [("x.png", 2), ("x.png", 3), ("x.png", 4), ("x.ppm", 3)])
def test_colours_of_16_bits_are_read_with_8_and_a_note(
    name: str, channels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    pixels = np.arange(4 * channels).reshape(2, 2, channels) * 4000
    content = b"P6\n# deep\n2 2\n65535\n" + pixels.astype(">u2").tobytes()
    (tmp_path / name).write_bytes(deep_png(pixels, {2: 4, 3: 2, 4: 6}[channels]) if name == "x.png" else content)
    folder = image_folder(tmp_path)
    for _ in range(2):
        image = folder[0]["image"]
        if channels != 2:
            np.testing.assert_allclose(image, pixels.transpose(2, 0, 1)[:3] / 65535, atol=1 / 255)
    assert capsys.readouterr().err.count("has 16 bits per colour, and only the upper 8 are read") == 1


def test_palettes_and_transparency(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    made = image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "P")
    made.putpalette([10, 20, 30, 200, 100, 0])
    made.save(tmp_path / "a.png", transparency=1)
    found = image_folder(tmp_path, mode="RGBA", dtype="uint8")[0]["image"]
    assert found[:, 0].T.tolist() == [[10, 20, 30, 255], [200, 100, 0, 0]]


def test_images_without_classes(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for i in range(3):
        picture(tmp_path / f"{i}.png", np.full((2, 2), i))
    folder = image_folder(tmp_path, mode="L", dtype="uint8")
    (batch,) = batches(folder, batch_size=3)
    assert list(batch) == ["image"]
    assert batch["image"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert folder.classes == []


def test_images_of_different_sizes_need_a_size(photos: Path) -> None:
    picture(photos / "a" / "3.png", np.zeros((5, 6, 3)))
    folder = image_folder(photos)
    with pytest.raises(ShapeError, match=r"0.png has 4 x 6 pixels and .*3.png 5 x 6: size=\(height, width\)"):
        folder[[0, 3]]
    assert image_folder(photos, size=8)[[0, 3]]["image"].shape == (2, 3, 8, 8)


@pytest.mark.parametrize("damage", ["cut off", "empty", "text", "bomb"])
def test_errors_name_damaged_images(photos: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    path = photos / "a" / "1.png"
    content = path.read_bytes()
    if damage == "bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    else:
        path.write_bytes({"cut off": content[: len(content) // 2], "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(FileFormatError, match=r"image_folder: .*1\.png cannot be read as an image: (?!.* at 0x)"):
        image_folder(photos)[[1]]


def test_folders_that_have_no_images(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match=r"empty has no images \(.bmp"):
        image_folder(tmp_path / "empty")
    with pytest.raises(FileFormatError, match="nowhere is not a folder"):
        image_folder(tmp_path / "nowhere")
    (photos / "c").mkdir()
    with pytest.raises(FileFormatError, match="c has no images, which a class needs"):
        image_folder(photos)
    (photos / "c").rmdir()
    picture(photos / "loose.png", np.zeros((4, 6, 3)))
    with pytest.raises(FileFormatError, match=r"in sub-folders .* and beside them .*loose.png"):
        image_folder(photos)


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (ArgumentError, "mode is one of 'L', 'RGB', 'RGBA', not 'P'", {"mode": "P"}),
        (ArgumentError, "size is a height and a width of at least 1", {"size": 0}),
        (ArgumentError, "size is a height and a width of at least 1", {"size": (1, 2, 3)}),
        (DTypeError, "dtype is a float or uint8, not 'int64'", {"dtype": "int64"}),
        (TypeError, r"unexpected keyword argument 'transform'; .*it takes image_folder", {"transform": None}),
    ],
)
def test_wrong_options_of_images(photos: Path, kind: Any, words: str, options: Any) -> None:
    with pytest.raises(kind, match=words):
        image_folder(photos, **options)


# ---- tables ----

CSV = 'x,count,kind,when,ok\n1.5,1,a,2024-01-01,true\n,2,"b, c",2024-01-02,false\n3.5,,,2024-01-03,\n'


def test_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text(CSV, encoding="utf-8")
    found = read_table(path)
    assert list(found) == ["x", "count", "kind", "when", "ok"]
    np.testing.assert_array_equal(found["x"], [1.5, np.nan, 3.5])
    np.testing.assert_array_equal(found["count"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(found["ok"], [1.0, 0.0, np.nan])
    assert found["kind"].tolist() == ["a", "b, c", ""]
    assert found["when"].dtype.kind == "M"
    assert str(found["when"][1]) == "2024-01-02"
    (batch,) = batches(found, batch_size=3)
    assert batch["kind"].tolist() == ["a", "b, c", ""]
    assert list(read_table(path, columns=["ok", "x"])) == ["ok", "x"]
    (tmp_path / "t.tsv").write_text("x\ty\n1\t2\n", encoding="utf-8")
    assert {k: v.tolist() for k, v in read_table(tmp_path / "t.tsv").items()} == {"x": [1], "y": [2]}


@pytest.mark.parametrize(
    ("cells", "dtype", "values"),
    [
        (["02116", "10001"], "<U5", ["02116", "10001"]),
        (["1", "", "+3"], "<f8", [1.0, None, 3.0]),
        (["-1", "2"], "<i8", [-1, 2]),
        (["12345678901234567890", "1"], "<u8", [12345678901234567890, 1]),
        (["9007199254740993", ""], "<U16", ["9007199254740993", ""]),
        (["9007199254740993", "1.5"], "<U16", ["9007199254740993", "1.5"]),
        (["9007199254740992", "1.5"], "<f8", [2.0**53, 1.5]),
        (["1" + "0" * 30, "2"], "<U31", ["1" + "0" * 30, "2"]),
        (["1e5", " .5", "inf"], "<f8", [1e5, 0.5, float("inf")]),
        (["1e400", "2"], "<U5", ["1e400", "2"]),
        (["true", "False"], "|b1", [True, False]),
        (["1", "true"], "<U4", ["1", "true"]),
        (["NA", "DE"], "<U2", ["NA", "DE"]),
        (["12:30", "", "23:59:58"], "<m8[s]", [45000, None, 86398]),
        (["12:30:00.25"], "<m8[ms]", [45000250]),
        (["25:00"], "<U5", ["25:00"]),
        (["2024-01-31", "NA"], "<M8[D]", [19753, None]),
        (["2024-02-30"], "<U10", ["2024-02-30"]),
        (["1970-01-01 00:01", "1970-01-02T00:00:00.5"], "<M8[ms]", [60_000, 86_400_500]),
        (["1970-01-01T02:00:00+02:00", "1970-01-01T00:00:01Z"], "<M8[s]", [0, 1]),
        (["1970-01-01T00:00:00Z", "1970-01-01T00:00:00"], "<U20", ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00"]),
        (["2400-01-01 00:00:00.123456789"], "<U29", ["2400-01-01 00:00:00.123456789"]),
        (["", "NaN"], "<f8", [None, None]),
    ],
)
def test_types_of_columns(cells: list[str], dtype: str, values: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{cell},x\n" for cell in cells), encoding="utf-8")
    found = read_table(path)["a"]
    assert found.dtype.str == dtype
    expected: Any = values
    if found.dtype.kind in "mM":
        expected = np.array([np.datetime64("NaT").astype("i8") if x is None else x for x in values]).astype(dtype)
    elif found.dtype.kind == "f":
        expected = np.array([np.nan if x is None else x for x in values])
    np.testing.assert_array_equal(found, expected)


def test_quoted_line_ends_in_a_large_file(tmp_path: Path) -> None:
    import csv

    pytest.importorskip("pyarrow")
    reviews = ["line,\r\n" * (1 + i % 97) + 'and "so"\n on\r' for i in range(60_000)]
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(reviews)])
    assert path.stat().st_size > 20 << 20  # more than one block
    found = read_table(path)
    assert found["id"].tolist() == list(range(60_000))
    assert all(ours == theirs for ours, theirs in zip(found["text"], reviews, strict=True))


def test_a_cell_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn.data import delimited

    pytest.importorskip("pyarrow")
    monkeypatch.setattr(delimited, "_BLOCK", 64)
    (tmp_path / "t.csv").write_text('a,b\n1,"' + "x\n" * 500 + '"\n2,y\n', encoding="utf-8")
    found = read_table(tmp_path / "t.csv")
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, 2], ["x\n" * 500, "y"])


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("t.csv", "aä;b\n1;2,5\n3;4,5\n", {}, "semicolons"),
        ("t.csv", "aä\tb\n1\t2,5\n3\t4,5\n", {}, "tabs"),
        ("t.tsv", "aä|b\n1|2,5\n3|4,5\n", {}, "vertical bars"),
        ("t.tsv", "aä\tb\n1\t2,5\n3\t4,5\n", {}, ""),
        ("t.csv", "aä:b\n1:2,5\n3:4,5\n", {"delimiter": ":"}, ""),
        ("t.csv", "aä;b\n1;2,5\n3;4,5\n", {"delimiter": ";", "encoding": "cp1252"}, ""),
        ("t.csv", "aä;b\n1;2,5\n3;4,5\n", {"encoding": "utf-16"}, "semicolons"),
    ],
)
def test_dialects(
    name: str, content: str, options: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(content, encoding=options.get("encoding", "utf-8"))
    found = read_table(tmp_path / name, **options)
    assert {k: v.tolist() for k, v in found.items()} == {"aä": [1, 3], "b": ["2,5", "4,5"]}
    noted = capsys.readouterr().err
    assert noted.count("note: read_table") == 1 + bool(said)
    assert f"separated by {said}" in noted if said else "separated" not in noted


def test_decimal_commas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.csv"
    path.write_text("a;b;c;d\n1,5;3;1.234,5;2.5\n-,25;4;x;3\n;5;y;4\n")
    found = read_table(path)
    assert found["a"].tolist() == ["1,5", "-,25", ""]
    assert "'a' in" in (said := capsys.readouterr().err)
    assert said.count("has numbers with commas, which stay texts; decimal=','") == 1
    found = read_table(path, decimal=",")
    np.testing.assert_array_equal(found["a"], [1.5, -0.25, np.nan])
    assert found["b"].tolist() == [3, 4, 5]
    assert found["c"].tolist() == ["1.234,5", "x", "y"]
    assert found["d"].tolist() == ["2.5", "3", "4"]  # stay text: points could separate thousands
    assert read_table(path, columns=["a"], types={"a": "float32"}, decimal=",")["a"][0] == 1.5
    with pytest.raises(DTypeError, match=r"'1,5' in row 1, which cannot be read as float64: decimal=',' reads it"):
        read_table(path, types={"a": "float64"})
    with pytest.raises(DTypeError, match=r"'2\.5' in row 1, which cannot be read as float64"):
        read_table(path, types={"d": "float64"}, decimal=",")
    with pytest.raises(ArgumentError, match="decimal"):
        read_table(path, decimal=";")


def test_numbers_below_the_smallest_float_stay_texts(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1e-400,0e5\n2,0.0\n")
    found = read_table(path)
    assert (found["a"].tolist(), found["b"].tolist()) == (["1e-400", "2"], [0.0, 0.0])


def test_lists_of_large_integers_with_gaps_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for values, fits in (([[1, None], [3, 4]], True), ([[2**60 + 1, 2], [3, None]], False)):
        parquet.write_table(arrow.table({"x": values}), tmp_path / "x.parquet")
        if fits:
            np.testing.assert_array_equal(read_table(tmp_path / "x.parquet")["x"], [[1, np.nan], [3, 4]])
        else:
            with pytest.raises(DTypeError, match=r"integers above 2\*\*53 and gaps"):
                read_table(tmp_path / "x.parquet")


def test_encodings_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "t.csv").write_text("ä,b\nü,1\n", encoding=encoding)
        assert {k: v.tolist() for k, v in read_table(tmp_path / "t.csv").items()} == {"ä": ["ü"], "b": [1]}
    assert "the encoding is UTF-16" in capsys.readouterr().err


def test_given_dtypes_and_missing_values(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("zip,n,f,t,s\n02116,007,1.5,2024-01-01,?\n10001,8,?,?,b\n", encoding="utf-8")
    types = {"zip": "str", "n": "int16", "f": "float32", "t": "datetime64[ns]"}
    found = read_table(path, types=types, missing=["?"])
    assert found["zip"].tolist() == ["02116", "10001"]
    assert [found[name].dtype.name for name in "nft"] == ["int16", "float32", "datetime64[ns]"]
    assert found["n"].tolist() == [7, 8]
    np.testing.assert_array_equal(found["f"], np.array([1.5, np.nan], np.float32))
    assert np.isnat(found["t"]).tolist() == [False, True]
    assert found["s"].tolist() == ["", "b"]
    assert read_table(path, columns=["f", "s"])["f"].tolist() == ["1.5", "?"]


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (DTypeError, "'a' in .* has '300' in row 2, which cannot be read as uint8", {"types": {"a": "uint8"}}),
        (DTypeError, "'b' in .* has 'x' in row 1, which cannot be read as float64", {"types": {"b": float}}),
        (DTypeError, "'b' in .* has 'x' in row 1, which cannot be read as bool", {"types": {"b": "bool"}}),
        (DTypeError, "'c' in .* is missing in row 2, for which int64", {"types": {"c": "int64"}}),
        (DTypeError, "'a' in .* has cells that are not all times", {"types": {"a": "datetime64[s]"}}),
        (ArgumentError, "has no column 'd'", {"types": {"d": "int64"}}),
        (ArgumentError, "types has no dtype for 'a', but 'text'", {"types": {"a": "text"}}),
        (ArgumentError, "types has object for 'a'", {"types": {"a": object}}),
        (ArgumentError, "types is a dict", {"types": ["int64"]}),
        (ArgumentError, "delimiter is one character", {"delimiter": "::"}),
        (ArgumentError, "no encoding has the name 'latin-one'", {"encoding": "latin-one"}),
        (ArgumentError, "missing is a list of texts, not '-'", {"missing": "-"}),
        (FileFormatError, "is not in ASCII, at byte 16 in line 3", {"encoding": "ascii"}),
    ],
)
def test_wrong_options_of_tables(kind: Any, words: str, options: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,2\n300,ä,\n", encoding="utf-8")
    with pytest.raises(kind, match=f"read_table: .*{words}"):
        read_table(tmp_path / "t.csv", **options)


def test_parquet_types_that_numpy_lacks(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import datetime
    import zoneinfo
    from decimal import Decimal

    from pyarrow import parquet

    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    columns = {
        "gaps": pyarrow.array([2**60 + 1, None]),
        "cents": pyarrow.array([Decimal("123456789012345678.12"), None]),
        "whole": pyarrow.array([Decimal("12345678901234567"), Decimal(1)]),
        "fine": pyarrow.array([Decimal("0.1000000000000000"), Decimal(1)], pyarrow.decimal128(20, 18)),
        "when": pyarrow.array([datetime.datetime(2024, 1, 1, tzinfo=berlin), None]),
        "clock": pyarrow.array([datetime.time(12, 30), None]),
        "n": pyarrow.array([300, 2]),
        "__index_level_0__": pyarrow.array([0, 1]),
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata({"pandas": "{}"}), path)
    safe = ["whole", "fine", "when", "clock", "n"]
    found = read_table(path, columns=safe)
    assert found["whole"].tolist() == [12345678901234567, 1]
    assert found["fine"].tolist() == [0.1, 1.0]
    assert str(found["when"][0]) == "2023-12-31T23:00:00.000000"
    assert found["clock"].dtype == "m8[us]"
    assert found["clock"].astype("m8[s]").astype(int).tolist()[0] == 45000
    assert np.isnat(found["clock"][1])
    for name in ("gaps", "cents"):
        with pytest.raises(DTypeError, match=rf"'{name}' in .*types={{'{name}': 'float64'}} rounds them"):
            read_table(path, columns=[name])
    assert read_table(path, columns=["gaps"], types={"gaps": "str"})["gaps"].tolist() == [str(2**60 + 1), ""]
    rounded = read_table(path, columns=["gaps", "cents"], types={"gaps": "float64", "cents": "float64"})
    np.testing.assert_array_equal(rounded["gaps"], [2.0**60, np.nan])
    assert rounded["cents"][0] == 123456789012345678.12
    with pytest.raises(DTypeError, match=r"'n' in .* has values, of int64, that uint8 does not hold"):
        read_table(path, columns=["n"], types={"n": "uint8"})
    assert "__index_level_0__" not in read_table(path, types={"gaps": "str", "cents": "str"})
    assert read_table(path, columns=["__index_level_0__"])["__index_level_0__"].tolist() == [0, 1]


def test_compressed_csv(tmp_path: Path) -> None:
    import gzip

    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x\n1\n2\n"))
    assert read_table(tmp_path / "t.csv.gz")["x"].tolist() == [1, 2]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from decimal import Decimal

    from pyarrow import parquet

    columns = {
        "x": pyarrow.array([1.5, None, 2.5], pyarrow.float32()),
        "n": pyarrow.array([1, 2, 3], pyarrow.int16()),
        "b": pyarrow.array([True, False, True]),
        "s": pyarrow.array(["a", None, "b"]).dictionary_encode(),
        "v": pyarrow.array([[1, 2], [3, 4], [5, 6]], pyarrow.list_(pyarrow.int32())),
        "f": pyarrow.array([[1.0], [2.0], [3.0]], pyarrow.list_(pyarrow.float64(), 1)),
        "d": pyarrow.array([Decimal("1.25"), None, Decimal("2.50")]),
        "nothing": pyarrow.nulls(3),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found["x"], np.array([1.5, np.nan, 2.5], np.float32))
    assert [found[name].dtype.name for name in "xnb"] == ["float32", "int16", "bool"]
    assert found["b"].tolist() == [True, False, True]
    assert found["s"].tolist() == ["a", "", "b"]
    assert found["v"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found["v"].dtype == np.int32
    assert found["f"].tolist() == [[1.0], [2.0], [3.0]]
    np.testing.assert_array_equal(found["d"], [1.25, np.nan, 2.5])
    assert np.isnan(found["nothing"]).all()


def test_nested_columns_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ragged = pyarrow.array([[1], [2, 3]])
    records = pyarrow.array([{"a": 1}, {"a": 2}])
    parquet.write_table(pyarrow.table({"n": [1, 2], "r": ragged, "s": records}), tmp_path / "t.parquet")
    for name in "rs":
        with pytest.raises(DTypeError, match=rf"'{name}' in .*t.parquet is of type (list|struct)<.*columns="):
            read_table(tmp_path / "t.parquet", columns=[name])
    assert read_table(tmp_path / "t.parquet", columns=["n"])["n"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "kind", "words"),
    [
        ("t.csv", b"", FileFormatError, "cannot be read: Empty CSV"),
        ("t.csv", b"a,b\n", FileFormatError, "t.csv has no rows"),
        ("t.csv", b"a,b\n1\n", FileFormatError, "cannot be read: .*Expected 2 columns, got 1"),
        ("t.csv", b"a,a\n1,2\n", FileFormatError, "has two columns 'a'"),
        ("t.parquet", b"PAR1 no", FileFormatError, "t.parquet cannot be read"),
        ("t.csv.gz", b"a\n1\n", FileFormatError, "t.csv.gz cannot be read"),
        ("t.xlsx", b"", FileFormatError, "neither .csv, .tsv nor .parquet"),
        ("t", b"", FileFormatError, "neither .csv, .tsv nor .parquet"),
        ("t.csv", b"length\n1\n", ArgumentError, r"no column 'lenght'. Did you mean 'length'\?"),
    ],
)
def test_invalid_tables_are_refused(name: str, content: bytes, kind: Any, words: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(kind, match=f"read_table: .*{words}"):
        read_table(tmp_path / name, columns=["lenght"] if kind is ArgumentError else None)


def test_missing_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(FileNotFoundError, match=name):
            read_table(tmp_path / name)
    with pytest.raises(ArgumentError, match="columns is a list of names, not 'x'"):
        read_table(tmp_path / "t.csv", columns="x")


# ---- texts ----


def test_texts_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("äb", encoding="utf-8")
    found = read_text(tmp_path / "b.txt")
    assert (found.dtype.name, bytes(found)) == ("uint8", "äb".encode())
    assert isinstance(found, np.memmap)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("c", encoding="utf-8")
    (tmp_path / "more" / "a.md").write_text("no", encoding="utf-8")
    assert bytes(read_text(tmp_path)) == "äbc".encode()
    ((rows,),) = batches(windows(read_text(tmp_path), 2), batch_size=9)
    assert rows.tolist() == [list(b"\xc3\xa4"), list(b"bc")]


@pytest.mark.parametrize(("largest", "dtype"), [(255, "uint8"), (256, "uint16"), (70_000, "uint32")])
def test_texts_are_encoded_in_the_smallest_dtype(largest: int, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab", encoding="utf-8")
    found = read_text(tmp_path / "a.txt", lambda text: [ord(text[0]), largest])
    assert (found.tolist(), found.dtype.name) == ([97, largest], dtype)


def test_a_tokenizer_encodes_texts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from backburn.models import Tokenizer

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("to be or to", encoding="utf-8")
    assert read_text(tmp_path / "a.txt", Tokenizer(tmp_path).encode).tolist() == [0, 1, 2, 0]


def test_texts_keep_their_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert bytes(read_text(tmp_path / "a.txt", lambda text: [*map(ord, text)])) == b"a\r\nb"


@pytest.mark.parametrize(
    ("content", "encode", "kind", "words"),
    [
        (b"", None, FileFormatError, "a.txt is empty"),
        (b"a\xff", len, FileFormatError, "not UTF-8: invalid start byte at byte 1"),
        (b"ab", len, ArgumentError, r"gave int64\[\]"),
        (b"ab", str.split, ArgumentError, r"gave <U2\[1\]"),
        (b"ab", lambda text: [1.5], ArgumentError, r"gave float64\[1\]"),
        (b"ab", lambda text: [-1], ArgumentError, r"gave int64\[1\]"),
    ],
)
def test_invalid_texts_and_encodings_are_refused(
    content: bytes, encode: Any, kind: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(kind, match=f"read_text: .*{words}"):
        read_text(tmp_path / "a.txt", encode)


def test_missing_texts(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"has no files \*.txt"):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none.txt")


# ---- missing packages ----


@pytest.mark.parametrize(
    ("module", "read", "words"),
    [
        ("PIL", image_folder, "image_folder: needs the package Pillow"),
        ("pyarrow", read_table, "read_table: needs the package pyarrow"),
    ],
)
def test_missing_packages_raise_one_line_errors(
    module: str, read: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailableError, match=rf"{words}: pip install 'backburn\[data\]'"):
        read(tmp_path)
