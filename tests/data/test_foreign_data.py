"""Untrusted tables, images and texts: decompression bombs, links, pipes, programs as pictures, and damaged pages."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.fuzzing import memory

from backburn.base.errors import DTypeError, FileFormatError
from backburn.data import image_folder, read_table, read_text
from backburn.data.parquet_pages import _leaves, _Reader, check_memory

# ---- links ----


def outside(folder: Path) -> Path:
    secret = folder / "secret"
    secret.write_text("root:x:0:0")
    inner = folder / "folder"
    inner.mkdir()
    return inner


def test_links_out_of_a_folder_of_texts_are_refused(tmp_path: Path) -> None:
    folder = outside(tmp_path)
    (folder / "a.txt").write_text("to be")
    (folder / "b.txt").symlink_to("a.txt")
    assert bytes(read_text(folder)) == b"to beto be"
    (folder / "c.txt").symlink_to("../secret")
    with pytest.raises(FileFormatError, match=r"c\.txt: a link to .*secret, out of the folder"):
        read_text(folder)
    assert bytes(read_text(folder / "c.txt")) == b"root:x:0:0"  # the user named it


def test_links_within_a_dataset_cache_are_read(tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--a" / "snapshots" / "012"
    snapshot.mkdir(parents=True)
    (tmp_path / "datasets--a" / "blobs").mkdir()
    (tmp_path / "datasets--a" / "blobs" / "3f").write_text("to be")
    (snapshot / "a.txt").symlink_to("../../blobs/3f")
    assert bytes(read_text(snapshot)) == b"to be"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX pipes")
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.parquet", "x.txt"])
def test_pipes_are_not_opened(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileFormatError, match="not an ordinary file"):
        (read_text if name.endswith("txt") else read_table)(tmp_path / name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.parquet").mkdir()
    with pytest.raises(FileFormatError, match="a folder"):
        read_table(tmp_path / "folder" / "x.parquet")


# ---- images ----


def png(width: int, height: int, rows: bytes) -> bytes:
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def test_images_that_expand_too_far_are_not_decoded(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "x.png").write_bytes(png(6000, 6000, bytes(6000 * 18001)))
    assert (tmp_path / "x.png").stat().st_size < 200_000
    found = image_folder(tmp_path, size=8)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=r"x\.png is said to have 6000 x 6000 pixels, too many for a file of its"):
        found[0]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    (tmp_path / "x.png").write_bytes(png(20_000, 20_000, b""))
    with pytest.raises(FileFormatError, match=r"cannot be read as an image|too many"):
        found[0]


def test_jpegs_of_many_scans_are_not_decoded(tmp_path: Path) -> None:
    """Each scan visits all pixels: here 23 bytes take 5 ms, so a megabyte would take minutes."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "1.jpg").touch()
    for noise in (False, True):
        pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8) * np.uint8(noise)
        image.fromarray(pixels).save(tmp_path / "1.jpg", progressive=True, exif=b"Exif\0\0" + b"\xff\xda\0\2" * 200)
        content = (tmp_path / "1.jpg").read_bytes()
        assert image_folder(tmp_path)[0]["image"].shape == (3, 40, 40)
        last = content.rindex(b"\xff\xda")
        (tmp_path / "1.jpg").write_bytes(content[:last] + content[last:-2] * 99 + content[-2:])
        with pytest.raises(FileFormatError, match="more than 100 scans"):
            image_folder(tmp_path)[0]


def test_postscript_in_image_files_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow runs Ghostscript on PostScript files of any name."""
    pytest.importorskip("PIL")

    def started(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"{arguments} was started")

    for name in ("run", "Popen", "check_call", "check_output", "call"):
        monkeypatch.setattr(subprocess, name, started)
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(proof) (w) file closefile\nshowpage\n%%EOF\n"  # noqa: E501
    for name in ("x.png", "x.jpg", "x.tiff"):
        (tmp_path / name).write_bytes(program)
        with pytest.raises(FileFormatError, match="cannot be read as an image"):
            image_folder(tmp_path)[0]
        (tmp_path / name).unlink()


@pytest.mark.parametrize("way", ["file", "class", "loose"])
def test_links_out_of_a_folder_of_images_are_refused(way: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    for each in (elsewhere, folder):
        (each / "cat").mkdir(parents=True)
        image.new("RGB", (4, 4)).save(each / "cat" / "1.png")
    assert len(image_folder(folder)) == 1
    if way == "file":
        (folder / "cat" / "2.png").symlink_to(elsewhere / "cat" / "1.png")
    elif way == "class":
        (folder / "dog").symlink_to(elsewhere / "cat")
    else:
        (folder / "cat" / "1.png").unlink()
        (folder / "cat").rmdir()
        (folder / "2.png").symlink_to(elsewhere / "cat" / "1.png")
    with pytest.raises(FileFormatError, match="out of the folder that is read"):
        image_folder(folder)


# ---- tables ----


@pytest.mark.parametrize(("name", "content", "words"), [
    ("x.csv.gz", lambda: gzip.compress(b"a\n" + b"1\n" * 20_000_000), "expands to more than .* bytes: expand it first"),
    ("x.csv", lambda: b",".join(b"c%d" % i for i in range(100_000)) + b"\n" + b"," * 99_999, "has 100000 columns, too many"),  # noqa: E501
    ("x.csv", lambda: b"a,b,a\n1,2,3\n", "has two columns 'a'"),
    ("x.csv.gz", lambda: gzip.compress(b"a\n1\n")[:-6], "cannot be read"),
    ("x.csv.gz", lambda: b"\x1f\x8b" + bytes(30), "cannot be read"),
    ("x.csv", lambda: b"a\x1b[2J,a\x1b[2J\n1,2\n", r"two columns 'a\\x1b\[2J'"),
])  # fmt: skip
def test_oversized_or_damaged_csv_files_are_refused(
    name: str, content: Callable[[], bytes], words: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content())
    _, before = _memory()
    with pytest.raises(FileFormatError, match=words):
        read_table(tmp_path / name)
    assert _memory()[0] - before < 100, "MiB"


def _memory() -> tuple[float, float]:
    """Peak MiB since the last call, and current MiB, from Linux; tracemalloc may not stop while other threads run."""
    return memory() if sys.platform == "linux" else (0.0, 0.0)


def test_one_long_text_does_not_pad_the_others(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text("s\n" + "ab\n" * 50_000 + "y" * 500_000 + "\n")
    found = read_table(tmp_path / "x.csv")["s"]
    assert found.dtype == np.dtypes.StringDType()
    assert (found[0], len(found[-1]), found.shape) == ("ab", 500_000, (50_001,))
    assert read_table(tmp_path / "x.csv", types={"s": "str"})["s"].dtype == np.dtypes.StringDType()


def test_long_texts_of_many_columns_are_not_padded(tmp_path: Path) -> None:
    """A padded array of one column would take 200 MB."""
    pytest.importorskip("pyarrow")
    row, last = ",".join(["ab"] * 10), ",".join("y" * 100_000 for _ in range(10))
    (tmp_path / "x.csv").write_text(",".join("abcdefghij") + "\n" + f"{row}\n" * 450 + f"{last}\n")
    _, before = _memory()
    found = read_table(tmp_path / "x.csv")
    assert _memory()[0] - before < 200, "MiB"
    assert {x.dtype.kind for x in found.values()} == {"T"}
    assert all((x[0], len(x[-1])) == ("ab", 100_000) for x in found.values())


def parquet(table: dict[str, Any], **options: Any) -> bytes:
    import pyarrow
    from pyarrow import parquet

    content = io.BytesIO()
    parquet.write_table(pyarrow.table(table), content, **options)
    return content.getvalue()


@pytest.mark.parametrize("dictionary", [False, True])
def test_invalid_utf8_in_a_parquet_file_is_refused(tmp_path: Path, dictionary: bool) -> None:
    """Its reader does not validate the bytes, plain or in a dictionary."""
    path = tmp_path / "x.parquet"
    content = parquet({"s": ["abcd", "efgh"]}, compression="none", use_dictionary=dictionary, write_statistics=False)
    path.write_bytes(content)
    assert read_table(path)["s"].tolist() == ["abcd", "efgh"]
    path.write_bytes(content.replace(b"abcd", b"a\xb2cd"))
    for types in (None, {"s": "str"}, {"s": "float32"}):
        with pytest.raises(FileFormatError, match=r"x\.parquet cannot be read: .*UTF8"):
            read_table(path, types=types)


def test_times_beyond_pythons_calendar(tmp_path: Path) -> None:
    """They can be read as times, not as texts."""
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet({"t": np.array([2**62], "M8[us]")}))
    assert read_table(path)["t"].dtype == "M8[us]"
    with pytest.raises(FileFormatError, match=r"x\.parquet cannot be read"):
        read_table(path, types={"t": "str"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "list", "struct", "dictionary", "numbers"])
@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "RLE_DICTIONARY"])
def test_repeated_texts_of_a_page_are_not_expanded(kind: str, encoding: str, tmp_path: Path) -> None:
    """400 rows of the same text of 1 MB, delta or dictionary encoded, take a few hundred bytes."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    whole = "a" * 1_000_000
    column, leaf = {
        "string": (pyarrow.array([whole] * 400), "x"),
        "large_string": (pyarrow.array([whole] * 400, pyarrow.large_string()), "x"),
        "binary": (pyarrow.array([whole.encode()] * 400, pyarrow.binary()), "x"),
        "list": (pyarrow.array([[whole]] * 400), "x.list.element"),
        "struct": (pyarrow.array([{"a": whole}] * 400), "x.a"),
        "dictionary": (pyarrow.DictionaryArray.from_arrays([0] * 400, pyarrow.array([whole.encode()])), "x"),
        "numbers": (pyarrow.array([[1.0, 2.0]] * 400), "x.list.element"),
    }[kind]
    options: dict[str, Any] = {"use_dictionary": [leaf]}
    if encoding == "DELTA_BYTE_ARRAY" and kind != "numbers":
        options = {"use_dictionary": False, "column_encoding": {leaf: encoding}}
    path = tmp_path / "x.parquet"
    writer.write_table(
        pyarrow.table({"x": column, "n": range(400)}), path, compression="zstd", write_statistics=False, **options
    )
    del column, whole
    assert path.stat().st_size < 20_000
    pyarrow.default_memory_pool().release_unused()
    _, before = _memory()
    if kind == "numbers":
        assert read_table(path)["x"].shape == (400, 2)
    else:
        with pytest.raises(
            (FileFormatError, DTypeError),
            match=r"DELTA_BYTE_ARRAY|cannot be converted to an array|would take more|texts of",
        ):
            read_table(path)
    assert _memory()[0] - before < 100, "MiB"
    assert read_table(path, columns=["n"])["n"].shape == (400,)


@pytest.mark.parametrize("kind", ["zeros", "texts", "nulls", "lists"])
def test_tables_that_expand_too_far_are_not_read(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {
        "zeros": lambda: np.zeros(30_000_000, np.int64),
        "nulls": lambda: pyarrow.nulls(40_000_000, pyarrow.int64()),
        "texts": lambda: pyarrow.DictionaryArray.from_arrays(np.zeros(1_000, np.int8), ["a" * 300_000]).cast(
            pyarrow.string()
        ),
        "lists": lambda: pyarrow.FixedSizeListArray.from_arrays(np.zeros(30_000_000, np.int64), 1_000_000),
    }
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet({"x": columns[kind]()}, compression="zstd"))
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(FileFormatError, match=r"would take more than|texts of .* bytes together"):
        read_table(path, columns=["x"])
    assert pyarrow.total_allocated_bytes() - before < 100 << 20


def test_small_columns_of_an_oversized_table_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet({"x": np.zeros(20_000_000, np.int64), "n": np.ones(20_000_000, np.int8)}))
    assert read_table(path, columns=["n"])["n"].dtype == np.int8


def test_changed_footers_do_not_end_the_process(tmp_path: Path) -> None:
    """Each byte of a footer is changed: PyArrow's metadata objects would end the process for some of them."""
    pytest.importorskip("pyarrow")
    content = parquet({"n": [1, 2, 3], "s": ["a", "b", "c"], "l": [[1], [2], [3, 4]]})
    length = int.from_bytes(content[-8:-4], "little")
    outcomes = {"read": 0, "refused": 0}
    for place in range(len(content) - 8 - length, len(content) - 8):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        (tmp_path / "x.parquet").write_bytes(changed)
        try:
            read_table(tmp_path / "x.parquet", columns=["n"])
        except FileFormatError:
            outcomes["refused"] += 1
        except (ValueError, TypeError):  # includes backburn's errors for another column name or type
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 50


def compact(fields: dict[int, Any]) -> bytes:
    """Encode a struct of integers, structs and lists of structs in Thrift's compact protocol."""

    def unsigned(n: int) -> bytes:
        return bytes([n & 127 | 128]) + unsigned(n >> 7) if n > 127 else bytes([n])

    found, last = b"", 0
    for number, x in fields.items():
        kind, value = (
            (6, unsigned(2 * x)) if isinstance(x, int) else
            (12, compact(x)) if isinstance(x, dict) else
            (9, b"\xfc" + unsigned(len(x)) + b"".join(map(compact, x)))
        )  # fmt: skip
        found, last = found + bytes([(number - last) << 4 | kind]) + value, number
    return found + b"\0"


def test_columns_that_share_their_pages_are_refused(tmp_path: Path) -> None:
    """A hundred columns that share two thousand empty pages took six seconds, a thousand a minute."""
    pages = compact({1: 0, 2: 0, 3: 0, 5: {1: 0}}) * 2000
    path = tmp_path / "x.parquet"
    for second in (0, len(pages)):
        parts = [{2: 4, 3: {7: length, 9: 4}} for length in (len(pages), second)]
        footer = compact({2: [{5: 2}, {1: 1}, {1: 1}], 4: [{1: parts, 3: 0}]})
        path.write_bytes(b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1")
        if not second:
            check_memory(path, None, 1 << 20)
    with pytest.raises(FileFormatError, match="columns in the same bytes"):
        check_memory(path, None, 1 << 20)


def test_deeply_nested_columns_and_structs_are_refused() -> None:
    """Also nested structs of the protocol and values that do not end."""
    with pytest.raises(ValueError, match="more than 64 levels"):
        _leaves([{5: 1}] * 100 + [{1: 1}])
    assert [(leaf.width, leaf.is_nested) for leaf in _leaves([{5: 3}, {1: 2}, {5: 1, 3: 2}, {1: 6}, {1: 7, 2: 300}])] == [  # noqa: E501
        (8, False), (16, True), (300, False),
    ]  # fmt: skip
    for content, words in (
        (b"\x1c" * 100 + b"\0" * 100, "too deep"), (b"\x15", "does not end"), (b"\x15" + b"\xff" * 20, "64 bits"),
        (b"\x18\xff\xff\x03", "does not end"), (b"\x19\xf5\xff\xff\xff\x0f\0", "does not end"), (b"\x1e\0", "the type 14"),  # noqa: E501
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            _Reader(content).struct()
    assert _Reader(b"\x15\x04\x28\x02ab\x11\x1c\x16\x01\0\0").struct() == {1: 2, 3: b"ab", 4: True, 5: {1: -1}}
