"""Untrusted folders and files: links, pipes, colliding hashes, slow patterns, and errors about many names."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import weight_files as files

import backburn as bb
from backburn import nn
from backburn.base import foreign_files
from backburn.base.errors import ArgumentError, FileFormatError
from backburn.base.foreign_files import inside, parsed, room
from backburn.io import load_adapters, load_npz, load_weights, save_adapters, save_weights
from backburn.io.name_patterns import NamePatterns
from backburn.io.npz import load_array
from backburn.io.plain import put_together, take_apart

X = np.arange(6, dtype=np.float32).reshape(2, 3)
MANY = 100_000


class Model(nn.Module):
    def __init__(self) -> None:
        self.x = nn.parameter(bb.zeros((2, 3)))


def weights(**arrays: Any) -> bytes:
    return files.safetensors_bytes(arrays or {"x": X})


# ---- links, pipes and devices ----


def cache(folder: Path, name: str = "model.safetensors", content: bytes = weights()) -> Path:
    """Create a snapshot in a cache with Hugging Face's layout, and return its folder."""
    snapshot = folder / "models--a--b" / "snapshots" / "0123abcd"
    place = snapshot / name
    place.parent.mkdir(parents=True)
    (folder / "models--a--b" / "blobs").mkdir()
    (folder / "models--a--b" / "blobs" / "e3b0c442").write_bytes(content)
    place.symlink_to(os.path.relpath(folder / "models--a--b" / "blobs" / "e3b0c442", place.parent))
    return snapshot


def test_snapshots_of_a_cache_are_read(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    model = Model()
    load_weights(model, snapshot)
    assert np.array_equal(model.x.tolist(), X)
    inner = cache(tmp_path / "other", "unet/model.safetensors")
    load_weights(model, inner / "unet")
    link = tmp_path / "link"
    link.symlink_to(snapshot)
    load_weights(model, link)


@pytest.mark.parametrize("place", ["../outside", "../../blobs/../../outside", "../../blobs/sub/x", "../../blobs/link"])
def test_other_links_out_of_a_folder_are_refused(place: str, tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    for outside in (snapshot.parent / "outside", tmp_path / "outside", tmp_path / "models--a--b/blobs/sub/x"):
        outside.parent.mkdir(exist_ok=True)
        outside.write_bytes(weights())
    (tmp_path / "models--a--b" / "blobs" / "link").symlink_to(tmp_path / "outside")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(place)
    with pytest.raises(FileFormatError, match=r"a link to .*, out of the folder that is read: put a copy"):
        load_weights(Model(), snapshot)
    load_weights(Model(), snapshot / "model.safetensors")  # the user named the file


def test_a_cache_with_linked_blobs_is_refused(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileFormatError, match="out of the folder"):
        load_weights(Model(), snapshot)


@pytest.mark.parametrize("name", [
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "any.gguf", "model-1.safetensors",
])  # fmt: skip
def test_links_out_of_a_folder_of_weights_are_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    index = json.dumps({"weight_map": {"x": "model-1.safetensors"}}).encode()
    (tmp_path / "secret").write_bytes(index if name.endswith("json") else weights())
    if name == "model-1.safetensors":
        (folder / "model.safetensors.index.json").write_bytes(index)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(FileFormatError, match=r"a link to .*secret, out of the folder"):
        load_weights(Model(), folder)


def test_links_within_a_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(weights())
    (tmp_path / "model.safetensors").symlink_to("weights.bin")
    load_weights(Model(), tmp_path)
    assert inside(tmp_path / "model.safetensors", tmp_path) == tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_links_in_a_folder_of_adapters(name: str, tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(4, 2))
    folder = tmp_path / "folder"
    save_adapters(nn.add_adapters(base, rank=1), folder)
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(FileFormatError, match="out of the folder"):
        load_adapters(base, folder)
    before = (tmp_path / "secret").read_bytes()
    save_adapters(nn.add_adapters(base, rank=1), folder)  # replaces the link, not its target
    assert not (folder / name).is_symlink()
    assert (tmp_path / "secret").read_bytes() == before
    load_adapters(base, folder)


def test_saving_replaces_links_in_a_folder(tmp_path: Path) -> None:
    """A link that the user names as the file is followed."""
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    (folder / "model.safetensors").symlink_to(victim)
    save_weights(Model(), folder)
    assert victim.read_text() == "mine"
    load_weights(Model(), folder)
    for name in ("model.safetensors.index.json", "model-00001-of-00001.safetensors"):
        (folder / name).symlink_to(victim)
    save_weights(Model(), folder, max_shard_size=1)
    assert victim.read_text() == "mine"
    link = tmp_path / "link.safetensors"
    link.symlink_to(victim)
    save_weights(Model(), link)
    assert link.is_symlink()
    load_weights(Model(), victim)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX pipes")
@pytest.mark.parametrize("read", [load_npz, load_array, bb.io.load_model, bb.io.load_state])
def test_pipes_devices_and_folders_are_not_opened(read: Callable[[Path], Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(FileFormatError, match="not an ordinary file"):
        read(tmp_path / "pipe.npz")
    with pytest.raises(FileFormatError, match="not an ordinary file"):
        read(Path("/dev/zero"))
    with pytest.raises(FileFormatError, match=r"is a folder"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")


# ---- many names, and hostile names ----


def one_hash(count: int) -> list[int]:
    """Integers whose hashes collide in dicts of their number or more, and keep colliding while probing."""
    return [i << 40 for i in range(1, count + 1)]


@pytest.mark.parametrize("wrap", [files.torch_bytes, files.legacy_torch_bytes])
def test_integer_keys_of_pickles_are_not_hashed_as_integers(wrap: Callable[..., bytes], tmp_path: Path) -> None:
    """Dicts of pickles use keys with randomized hashes; tensors are still named by the numbers."""
    tree = {
        "state": dict.fromkeys(one_hash(1000), 1)
        | {7: files.torch_tensor("0", X, *([(None,)] if "legacy" in wrap.__name__ else []))}
    }
    path = tmp_path / "x.pt"
    path.write_bytes(wrap({"0": X}, tree))
    report = load_weights(Model(), path, rename=lambda name: {"state.7": "x"}.get(name))
    assert report.used == {"x": "state.7"}
    from backburn.io.weights.pickles import key_of, key_text

    assert {key_of(number) for number in (0, 1, 2**50, -5)} == {b"0", b"1", b"1125899906842624", b"-5"}
    assert key_of("0") != key_of(0)
    assert [key_text(key_of(key)) for key in (3, "3", None, True)] == ["3", "3", "None", "1"]
    for other in (1.5, (1,), 2**61 - 1):
        with pytest.raises(ValueError, match="not strings or numbers"):
            key_of(other)


def test_memoized_values_of_pickles_are_not_traversed_repeatedly(tmp_path: Path) -> None:
    """30,000 calls with one list of 100,000 pairs, or as many arguments; names of a million letters."""
    pairs = b"](" + b"(K\x01Nt" * MANY + b"eq\x00"
    dicts = pairs + b"ccollections\nOrderedDict\nq\x01" + b"0h\x01h\x00\x85R" * 30_000 + b"."
    wide = b"(" + b"K\x01" * MANY + b"tq\x00ctorch\nSize\nq\x01" + b"0h\x01h\x00R" * 30_000 + b"."
    long = b"0X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x00" + b"h\x00h\x00\x93" * 10_000 + b"."
    for code, words in (
        (dicts, "opcodes"),
        (wide, "other than a function of tensors"),
        (b"N" + long, "a name of 2097152"),
    ):
        path = tmp_path / "x.pt"
        path.write_bytes(files.torch_bytes({"0": X}, b"\x80\x02" + code))
        with pytest.raises(FileFormatError, match=words):
            load_weights(Model(), path)


def test_shared_parts_with_too_many_names_are_refused(tmp_path: Path) -> None:
    """A dict of a thousand references to a dict of a thousand references to a tensor."""
    tensor = files.opcodes(files.torch_tensor("0", X)) + b"q\x00"
    inner = b"0}(" + b"".join(files.opcodes("a" * 200 + str(i)) + b"h\x00" for i in range(1000)) + b"uq\x01"
    outer = b"0}(" + b"".join(files.opcodes("b" * 200 + str(i)) + b"h\x01" for i in range(1000)) + b"uq\x02"
    path = tmp_path / "x.pt"
    path.write_bytes(files.torch_bytes({"0": X}, b"\x80\x02" + tensor + inner + outer + b"."))
    with pytest.raises(FileFormatError, match="too many"):
        load_weights(Model(), path)


@pytest.mark.slow
def test_errors_about_many_names_are_short(tmp_path: Path) -> None:
    """With 100,000 unknown names: for a duplicate name, unused and missing names, and the report's table."""
    path = tmp_path / "x.safetensors"
    entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(f'"layer.{i}.weight":{entry}' for i in [*range(MANY), MANY - 1]) + "}"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(FileFormatError, match=rf"its header has 'layer\.{MANY - 1}\.weight' twice"):
        load_weights(Model(), path)
    model = nn.ModuleList([Model() for _ in range(300)])
    arrays = {f"layer.{i}.weight\x1b": np.zeros(0) for i in range(MANY)}
    with pytest.raises(ArgumentError) as caught:
        load_weights(model, arrays)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).isprintable()
    text = str(load_weights(model, {**arrays, "0.x": X, "y" * 1_000_000: X}, strict=False))
    assert max(map(len, text.splitlines())) < 600
    assert "\x1b" not in text


@pytest.mark.parametrize("dots", ["a.b.", "module.", "x" * 500 + "."])
def test_renamings_are_found_among_many_names(dots: str) -> None:
    arrays = {f"other.{i}": np.zeros(0) for i in range(1000)} | {f"{dots}x": X}
    with pytest.raises(ArgumentError, match=rf"removeprefix\('{re.escape(dots)}'\) if name.startswith"):
        load_weights(Model(), arrays)
    with pytest.raises(ArgumentError, match=r"Write rename=lambda name: '0\.part\.' \+ name"):
        load_weights(nn.Sequential(Inner()), {"x": X})


class Inner(nn.Module):
    def __init__(self) -> None:
        self.part = Model()


# ---- patterns ----


def test_patterns_match_as_regular_expressions_do() -> None:
    """Random patterns of all supported parts, compared with ``re`` on names of the same letters."""
    parts = [
        "a", "b", "0", r"\.", "[ab]", "[^a]", "[0-9]", r"\d", r"\w", "(?:a|b)", "(a|0b)", ".*", "a+", "b?", "(?:ab)*",
        "a{1,2}", "b{2}", "(a*)*", "^", "$", "(?:a|)", r"\w+?", "[a-]", "[]a]", "a{1,}", r"\D", r"[\d.]",
    ]  # fmt: skip
    choice, matched = random.Random(0), 0
    for _ in range(2000):
        pattern = "".join(choice.choices(parts, k=choice.randrange(1, 6))) + choice.choice(("", "", "|a", "|"))
        try:
            reference = re.compile(rf"(?:.*\.)?(?:{pattern})")
        except re.error:
            continue
        ours = NamePatterns("x.json", {pattern: True})
        for _ in range(5):
            name = "".join(choice.choices("ab0.", k=choice.randrange(7)))
            expected = reference.fullmatch(name) is not None
            assert ours.value(name, False) is expected, (pattern, name)
            matched += expected
    assert matched > 500


def test_slow_and_unsupported_patterns() -> None:
    name = "layers." + "a" * 300
    for pattern in (r"(\w+)+!", r"(a*)*b", r"(a|a)*b", ".*.*.*.*.*.*.*.*b", r"(?:(?:a+)+)+b"):
        assert NamePatterns("x.json", {pattern: 1}).value(name, None) is None
    for pattern in ("(", "[", "a**", "a{9999}", "a{3,2}", r"\1", r"\b", "(?=a)", "(?P<x>a)", "(" * 200 + ")" * 200, "*",
                    "(a{99}){99}", "a{1", "\\"):  # fmt: skip
        with pytest.raises(FileFormatError, match=r"x\.json: the pattern .* is not read: write names of layers"):
            NamePatterns("x.json", {pattern: 1})
    many = NamePatterns("x.json", {f"a*{i}$": i for i in range(5000)})
    with pytest.raises(FileFormatError, match="take too many steps: write names"):
        many.value("a" * 3000, None)
    plain = NamePatterns("x.json", {f"layers.{i}": i for i in range(MANY)} | {r"layers\.5": 7})
    assert [plain.value(f"model.layers.{i}", None) for i in range(1000)] == list(range(1000))


def test_the_first_matching_pattern_applies_and_metadata_may_be_null(tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    save_adapters(nn.add_adapters(base, rank=2), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for patterns, alpha in (
        ({"[01]": 3.0, "1": 4.0}, (3, 3)),
        ({"1": 4.0, "[01]": 3.0}, (3, 4)),
        ({"^1$": 5.0}, (8, 5)),
    ):
        (tmp_path / "adapter_config.json").write_text(
            json.dumps({**config, "lora_alpha": 8, "alpha_pattern": patterns})
        )
        tuned = load_adapters(base, tmp_path)
        assert tuple(getattr(layer, "alpha") for layer in tuned) == alpha  # noqa: B009
    content = (tmp_path / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = {**json.loads(content[8 : 8 + length]), "__metadata__": None}
    (tmp_path / "adapter_model.safetensors").write_bytes(files.with_header(header, content[8 + length :]))
    load_adapters(base, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(files.npz_bytes({"x.npy": files.npy_bytes(X)}))
    with pytest.raises(FileFormatError, match="is not part of an adapter"):
        load_adapters(base, tmp_path)
    for value in ("1e999", "1" + "0" * 400, "-" + "9" * 4300, "NaN", '"8"', "true", "[]"):
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "r": "?"}).replace('"?"', value))
        with pytest.raises(FileFormatError, match=r"is not read|is a number|whole number|not part of"):
            load_adapters(base, tmp_path)


# ---- JSON ----


@pytest.mark.parametrize("text", [
    b"[" * MANY, b'{"a":' * MANY, b"", b"\xff", b'"\xed\xa0\x80"', rb'["\ud800"]', rb'{"\udfff": 1}', b"1" * 5000,
    b"{,}", b'"\x00"', '"é"'.encode("utf-16"),
])  # fmt: skip
def test_invalid_json_is_a_backburn_error(text: bytes) -> None:
    with pytest.raises(FileFormatError, match=r"x\.json: not JSON"):
        parsed(text, "x.json:")


def test_quantized_tensors_of_a_state_are_referenced_once() -> None:
    """Otherwise a small file could reference one tensor many times, each time allocating it again."""
    parts: dict[str, Any] = {}
    tree = take_apart({"a": bb.ones((2, 64)).quantize(), "b": bb.zeros(64).quantize()}, "", parts)
    arrays = {name: part.read() for name, part in parts.items()}
    assert [x.shape for x in put_together(tree, arrays).values()] == [(2, 64), (64,)]
    with pytest.raises(FileFormatError, match="the quantized tensor 'a' is in two places"):
        put_together([tree["a"]] * 2, arrays)


def test_json_that_would_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(rb'{"a": ["\ud83d\ude00", 1e999, -5]}', "x:") == {"a": ["😀", float("inf"), -5]}
    assert parsed(b'\xef\xbb\xbf{"a": 1}', "x:") == {"a": 1}
    monkeypatch.setattr(foreign_files, "ROOM", 1_000_000)
    for text in (b"[" + b"{}," * MANY + b"{}]", b"[" + b"[]," * MANY + b"[]]", b"[" + b'"ab",' * MANY + b"1]"):
        most = room(len(text))
        tracemalloc.start()
        with pytest.raises(FileFormatError, match="JSON of too many values"):
            parsed(text, "x:")
        assert tracemalloc.get_traced_memory()[1] < most
        tracemalloc.stop()


# ---- arrays ----


def test_oversized_compressed_arrays_are_refused_before_expanding(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(files.npz_bytes({"x.npy": files.npy_bytes(np.zeros(300_000_000, np.uint8))}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 400_000
    for read in (load_npz, load_array):
        tracemalloc.start()
        with pytest.raises(FileFormatError, match=r"which expand to 300000128: at most .* are read; numpy.load has no"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "shape", [(2**40,), (2**62, 2), (2**63,), (2**64,), (10**400,), (1,) * 40, (-1,), (2**31, 2**31, 4)]
)
def test_headers_that_declare_missing_data_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(64)
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"x\.npy: the file|x\.npy: "):
        load_array(tmp_path / "x.npy")
    (tmp_path / "x.npz").write_bytes(files.npz_bytes({"x.npy": content}))
    for read in (load_npz, load_array):
        with pytest.raises(FileFormatError, match=r"x\.npz: "):
            read(tmp_path / "x.npz")


@pytest.mark.parametrize("array", [
    np.array(["ab", "c"]), np.array([b"xy"]), np.array(["2020-01-01"], "M8[D]"), np.array([3], "m8[25s]"),
    np.asfortranarray(X), X.astype(">f8"), np.array([True, False]), np.ones((2, 0, 3)), np.array(3),
    np.ones(2, np.complex64), np.ones(1, np.float16),
], ids=str)  # fmt: skip
def test_arrays_are_read_as_numpy_reads_them(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    mapped = load_array(tmp_path / "x.npy")
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", x=array)
        found = load_npz(tmp_path / "x.npz")["x"]
        assert found.flags.writeable
        for each in (found, mapped, load_array(tmp_path / "x.npz")):
            assert (each.dtype, each.shape) == (array.dtype, array.shape)
            assert np.array_equal(each, array)


@pytest.mark.parametrize("array", [np.array([{}], object), np.zeros(2, [("a", "i4")]), np.zeros(1, "V3")], ids=str)
def test_arrays_of_objects_records_and_bytes_are_refused(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=array)
    for read, name in ((load_array, "x.npy"), (load_npz, "x.npz"), (load_array, "x.npz")):
        with pytest.raises(FileFormatError, match=r"not an array of numbers with|arrays of numbers, texts and times"):
            read(tmp_path / name)


def test_names_that_files_cannot_hold_are_refused(tmp_path: Path) -> None:
    for save in (bb.io.save_model, bb.io.save_npz):
        with pytest.raises(bb.errors.DTypeError, match=r"'a\\ud800' contains half of a surrogate pair"):
            save(tmp_path / "x", {"a\ud800": bb.ones(2)})
    for name in ("a\0b", "é" * 32766):
        with pytest.raises(bb.errors.DTypeError, match=r"save_npz: '(a\\x00b|ééé.*)' has a zero byte"):
            bb.io.save_npz(tmp_path / "x", {name: np.ones(1)})
    assert not (tmp_path / "x").exists()
    bb.io.save_npz(tmp_path / "x", {"é" * 32765: np.ones(1)})
    assert load_npz(tmp_path / "x").keys() == {"é" * 32765}


def test_deeply_nested_documents_are_refused(tmp_path: Path) -> None:
    """Their checksums are valid; computing them recurses as deeply."""
    import zlib

    for depth in range(100, 1100, 50):
        document = '{"a":' * depth + "1" + "}" * depth
        crc = f"{zlib.crc32(('[' + document.replace(':', ': ') + ', {}]').encode()):08x}"
        checksums = f'{{"document": "{crc}", "tensors": {{}}}}'
        about = f'{{"format": "backburn model", "version": 4, "document": {document}, "crc32": {checksums}}}'
        (tmp_path / "x").write_bytes(files.with_header({"__metadata__": {"backburn": about}}, b""))
        try:
            assert len(repr(bb.io.load_model(tmp_path / "x").state)) == 2
        except FileFormatError as error:
            assert "too deep" in str(error) or "not JSON" in str(error)  # noqa: PT017
    assert depth == 1050


@pytest.mark.parametrize("digits", [5, 5000])
def test_long_numbers_in_names_of_tensors(digits: int) -> None:
    config = bb.models.ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic")
    with pytest.raises(ArgumentError, match="unused: "):
        load_weights(bb.models.ResNet(config), {f"layer{'1' * digits}.0.conv1.weight": X})
