"""Changes files of tokenizers, configurations, tables and images at random, and reads them.

Each must be read, or refused with one of our errors. Changes know the structure: values in a tree of JSON, chunks of an
image and members of an archive with their checksums. Run as ``python -m tools.fuzz_readers --count 100000``, optionally
with ``--formats`` and ``--seed``. It prints how many files of each format were read and refused, the CPU seconds of the
slowest, and the memory growth; it stops at the first file that raises another error or a warning. The tests read a few
of each; :mod:`tools.fuzz_weights` does the same with weights.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import random
import struct
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.helpers.weight_files import (
    npy_bytes,
    npz_bytes,
    safetensors_bytes,
    torch_bytes,
    torch_tensor,
    torch_tree,
    with_header,
)
from tools.fuzz_weights import ARRAYS, Model, changed, own_file
from tools.fuzzing import outcome_of, run

import backburn as bb
from backburn import models
from backburn.base.metadata import MetadataWarning
from backburn.io.npz import load_array

#: Values that replace others in trees of JSON.
_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 255, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.0, -0.5, 1e-320, 1e308,
    float("inf"), float("nan"), "", "a", "0", "\x1b[2J", "\ud800", "a" * 5000, "[" * 100, "(a+)+$", "__metadata__", [],
    {}, [[]], [1, 2], {"a": 1}, ["a"], [[[[[[[[]]]]]]]],
]  # fmt: skip
#: Parts of patterns for layer names, suffixes for them, and parts that no valid pattern contains.
_PARTS = ["0", "1", "a", ".", r"\.", "(0|1)", "(?:.*)", "(a*)", "[01]", "[^a-c]", r"\w", r"\d", "-"]
_AFTER = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "*?", "|", "$", "|^"]
_NEVER = ["(", "]", "[", "{", r"\b", r"\1", "**", "(?=a)", "a{9999}"]
_TEXTS = ["hello world", "", "naïve 日本 🎉", "\n\t x" * 20, "a" * 500]
_TEMPLATE = """{% set ns = namespace(n=0) %}{% macro said(m) %}<{{ m.role }}>{{ m['content'] | trim }}{% endmacro %}
{%- for m in messages if m.content %}{% set ns.n = ns.n + loop.index %}{{ said(m) }}{{ '-' * 3 }}{{ 'a' ~ ns.n }}
{%- if loop.last and not loop.first %}{{ m.content.replace('a', 'bb').split('b') | join('+') }}{% endif %}{% endfor %}
{{- messages[1:] | tojson(indent=2) }}{{ '%5d' % 3 }}{{ '{:>4}'.format(2) }}{{ messages | length ** 2 }}
{{- messages | map(attribute='role') | list | string | center(30) | replace('u', 'v') | indent(2) }}
{% if add_generation_prompt %}<assistant>{% endif %}"""
#: Replacements for parts of templates.
_WORDS = [
    "99999", "3000000000", "10 ** 9", "-1", "messages", "ns", "loop", "range(99999)", "'a' * 9999", "[messages] * 9999",
    "ns.a", "said", "namespace", "dict(a=messages)", "''", "none", "{'a': ns}", "[ns, ns]", "self", "caller",
]  # fmt: skip


def changed_tree(tree: Any, choice: random.Random) -> Any:
    """A tree of JSON with up to three changes: values replaced, and names removed, duplicated or replaced."""
    made = json.loads(json.dumps(tree))
    for _ in range(choice.choice((1, 1, 2, 3))):
        places = [(made, key) for key in _keys(made)]
        for holder, key in places:
            places += [(holder[key], inner) for inner in _keys(holder[key])]
        if not places:
            break
        holder, key = choice.choice(places)
        kind = choice.randrange(6)
        if kind < 3:
            holder[key] = json.loads(json.dumps(choice.choice(_VALUES)))
        elif kind == 3:
            del holder[key]
        elif kind == 4:
            other, there = choice.choice(places)
            if there in _keys(other):
                holder[key] = json.loads(json.dumps(other[there]))
        elif isinstance(holder, dict):
            holder[str(choice.choice(_VALUES))[:100]] = holder.pop(key)
        else:
            holder.extend([holder[key]] * choice.choice((1, 2, 1000)))
    return made


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []


def _json(tree: Any, choice: random.Random) -> bytes:
    text = json.dumps(changed_tree(tree, choice)).encode()
    return changed(text, choice) if choice.random() < 0.2 else text


# ---- tokenizers ----


@functools.cache
def _tokenizers() -> list[Any]:
    """The trees of tokenizers of several kinds."""
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers

    bytes_alone = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    bytes_alone.train_from_iterator(["hello world hello", "naïve"], trainer)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"[UNK]": 0, "hel": 1, "##lo": 2, "[CLS]": 3}, unk_token="[UNK]")
    )
    words.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.Replace("x", "y")])
    words.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"\s+|\p{L}+"), "isolated")
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 3)])
    words.decoder = decoders.WordPiece()
    words.enable_padding(length=8)
    words.enable_truncation(6)
    single = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁hello", -2.0)], 0, True))
    single.pre_tokenizer = pre_tokenizers.Metaspace()
    single.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Strip(" ", 1, 0)])
    single.add_special_tokens(["<end>"])
    return [json.loads(made.to_str()) for made in (bytes_alone, words, single)]


def _tokenizer(choice: random.Random) -> dict[str, bytes]:
    settings = {
        "eos_token": {"content": "<end>"},
        "bos_token": "<s>",
        "chat_template": [{"name": "default", "template": "x"}],
    }
    return {
        "tokenizer.json": _json(choice.choice(_tokenizers()), choice),
        "tokenizer_config.json": _json(settings, choice) if choice.random() < 0.3 else json.dumps(settings).encode(),
    }


def _read_tokenizer(folder: Path, choice: random.Random) -> None:
    tokenizer = models.Tokenizer(folder)
    for text in _TEXTS:
        tokens = tokenizer.encode(text, special_tokens=choice.random() < 0.5)
        tokenizer.decode(tokens[:500])
    tokenizer.decode([choice.choice((0, 1, 2**31, 2**32 - 1))])
    "".join(tokenizer.decode_stream([0, 1, 2, 3]))
    assert tokenizer.eos_token_id is None or tokenizer.eos_token_id >= 0


def _template(choice: random.Random) -> dict[str, bytes]:
    parts = _TEMPLATE.replace("(", " ( ").replace(")", " ) ").split(" ")
    for _ in range(choice.choice((0, 1, 1, 1, 2, 3))):
        place = choice.randrange(len(parts))
        kind = choice.randrange(4)
        if kind == 0:
            parts[place] = choice.choice(_WORDS)
        elif kind == 1:
            parts[place : place + choice.randrange(1, 4)] = []
        elif kind == 2:
            start = choice.randrange(len(parts))
            parts[place:place] = parts[start : start + choice.randrange(1, 30)] * choice.choice((1, 1, 2, 30))
        else:
            parts.insert(place, choice.choice(("(", ")", "*", "~", "**", "[", "]", "{{", "}}", "{%", "%}", "|", ".")))
    text = " ".join(parts).encode()
    tokenizer = json.dumps(_tokenizers()[0]).encode()
    return {
        "tokenizer.json": tokenizer,
        "chat_template.jinja": changed(text, choice) if choice.random() < 0.2 else text,
    }


def _read_template(folder: Path, choice: random.Random) -> None:
    messages = [
        {"role": role, "content": "ab a <b> " * choice.choice((1, 30))} for role in ("user", "assistant", "user")
    ]
    models.Tokenizer(folder).chat(messages, generate=choice.random() < 0.5)


# ---- configurations ----


@functools.cache
def _models() -> list[dict[str, bytes]]:
    """The files of small models."""
    made = [
        models.Llama(models.LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=1)),
        models.Llama(models.Qwen2Config(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=2)),
        models.GPT2(models.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=2, n_head=2)),
        models.Bert(models.BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                      intermediate_size=8, max_position_embeddings=8)),
        models.ViT(models.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                                    image_size=8, patch_size=4)),
        models.ResNet(models.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")),
        models.UNet(models.UNetConfig(block_out_channels=[4, 8], down_block_types=["DownBlock2D", "AttnDownBlock2D"],
                                      up_block_types=["AttnUpBlock2D", "UpBlock2D"], layers_per_block=1,
                                      norm_num_groups=2, attention_head_dim=2)),
    ]  # fmt: skip
    found = []
    for model in made:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            found.append({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    return found


def _config(choice: random.Random) -> dict[str, bytes]:
    files = dict(choice.choice(_models()))
    tree = json.loads(files["config.json"])
    if choice.random() < 0.2:
        tree["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 8}  # fmt: skip
    if choice.random() < 0.2:
        files["generation_config.json"] = _json({"eos_token_id": [1, 2]}, choice)
    files["config.json"] = _json(tree, choice)
    return files


def _read_config(folder: Path, choice: random.Random) -> None:
    models.from_pretrained(folder)


@functools.cache
def _adapters() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        bb.io.save_adapters(bb.nn.add_adapters(_layers(), rank=2), folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _layers() -> bb.nn.Module:
    return bb.nn.Sequential(bb.nn.Linear(8, 4, bias=False), bb.nn.Linear(4, 2, bias=False))


def _adapter_config(choice: random.Random) -> dict[str, bytes]:
    files = dict(_adapters())
    tree = json.loads(files["adapter_config.json"])
    for key in ("rank_pattern", "alpha_pattern"):
        parts = [
            [choice.choice(_PARTS) + choice.choice(_AFTER) for _ in range(choice.randrange(1, 8))] for _ in range(3)
        ]
        if choice.random() < 0.3:
            parts[0].append(choice.choice(_NEVER))
        tree[key] = {"".join(part): 2 if choice.random() < 0.9 else choice.choice(_VALUES) for part in parts}
    files["adapter_config.json"] = _json(tree, choice) if choice.random() < 0.3 else json.dumps(tree).encode()
    return files


def _read_adapter_config(folder: Path, choice: random.Random) -> None:
    bb.io.load_adapters(_layers(), folder, strict=False)


# ---- tables ----


def _csv(choice: random.Random) -> dict[str, bytes]:
    rows = [["a", "b", "c", "d"]] + [
        [str(i), str(i / 7), "x" * (i % 3), "2020-01-0" + str(i % 9 + 1)] for i in range(30)
    ]
    cells = [
        ",",
        "\n",
        '"',
        '""',
        "\0",
        "\r",
        "nan",
        "inf",
        "-1e999",
        "9" * 400,
        "é",
        "\ud83d",
        "true",
        "",
        "y" * 3000,
        "\ufeff",
    ]
    for _ in range(choice.choice((0, 1, 2, 5))):
        row = choice.choice(rows)
        row[choice.randrange(4)] = choice.choice(cells)
        if choice.random() < 0.2:
            rows[choice.randrange(len(rows))] = row[:4] * choice.choice((1, 2, 500))
    text = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    text = changed(text, choice) if choice.random() < 0.5 else text
    if choice.random() < 0.3:
        packed = gzip.compress(text * choice.choice((1, 1, 5000 if len(text) < 5000 else 2)), mtime=0)
        return {"x.csv.gz": changed(packed, choice) if choice.random() < 0.5 else packed}
    return {choice.choice(("x.csv", "x.tsv")): text}


@functools.cache
def _parquet_files() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    columns = {
        "n": list(range(40)), "x": [i / 3 if i % 5 else None for i in range(40)],
        "s": ["ab" * (i % 4) for i in range(40)],
        "l": [[i, i + 1] for i in range(40)], "t": pyarrow.array(range(40), pyarrow.timestamp("us")),
        "b": [i % 2 == 0 for i in range(40)], "r": [{"u": i, "v": [str(i)]} for i in range(40)],
    }  # fmt: skip
    found = []
    for compression, version in (("none", "1.0"), ("snappy", "2.0"), ("zstd", "1.0"), ("gzip", "2.0")):
        content = io.BytesIO()
        parquet.write_table(
            pyarrow.table(columns), content, compression=compression, data_page_version=version, row_group_size=16,
            write_page_checksum=compression == "zstd",
        )  # fmt: skip
        found.append(content.getvalue())
    return found


def _parquet(choice: random.Random) -> dict[str, bytes]:
    content = choice.choice(_parquet_files())
    length = int.from_bytes(content[-8:-4], "little")
    if choice.random() < 0.5:  # the footer, with its correct length
        footer = changed(content[-8 - length : -8], choice)
        return {"x.parquet": content[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"}
    pages = changed(content[4 : -8 - length], choice)
    if choice.random() < 0.7:  # keep the offsets in the footer valid
        pages = (pages + bytes(len(content)))[: len(content) - 12 - length]
    return {"x.parquet": b"PAR1" + pages + content[-8 - length :]}


def _read_table(folder: Path, choice: random.Random) -> None:
    (path,) = folder.iterdir()
    columns = None if choice.random() < 0.5 else [choice.choice(("a", "n", "s", "l", "x"))]
    for name, column in bb.data.read_table(path, columns=columns).items():
        assert len(column), name


# ---- images ----


@functools.cache
def _images() -> dict[str, bytes]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    found = {}
    for name, options in (
        ("png", {}), ("jpg", {"exif": Image.Exif()}), ("gif", {}), ("bmp", {}), ("webp", {}), ("ppm", {}),
        ("tiff", {}), ("tif", {"compression": "tiff_deflate"}),
    ):  # fmt: skip
        content = io.BytesIO()
        exif: Any = options.get("exif")
        if exif is not None:
            exif[0x0112] = 6
        format_name = {"jpg": "JPEG", "tif": "TIFF"}.get(name, name.upper())
        Image.fromarray(pixels).save(content, format_name, **options)
        found[name] = content.getvalue()
    content = io.BytesIO()
    Image.fromarray(pixels).convert("P").save(content, "PNG")
    found["palette.png"] = content.getvalue()
    return found


def _image(choice: random.Random) -> dict[str, bytes]:
    name = choice.choice(list(_images()))
    content = _images()[name]
    if name.endswith("png") and choice.random() < 0.7:
        content = _changed_png(content, choice)
    else:
        content = changed(content, choice)
    return {f"x.{name}": content}


def _changed_png(content: bytes, choice: random.Random) -> bytes:
    """A PNG with chunks that are changed, removed, duplicated or added, all with correct checksums."""
    chunks, place = [], 8
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    for _ in range(choice.choice((1, 1, 2))):
        i = choice.randrange(len(chunks))
        kind, data = chunks[i]
        way = choice.randrange(6)
        if way == 0 and kind == b"IHDR":
            sides = [choice.choice((0, 1, 10, 12, 4000, 2**16, 2**31 - 1)) for _ in range(2)]
            chunks[i] = (kind, struct.pack(">II", *sides) + data[8:])
        elif way == 1:
            chunks.insert(i, choice.choice(chunks))
        elif way == 2 and len(chunks) > 1:
            del chunks[i]
        elif way == 3 and kind == b"IDAT":
            pixels = changed(bytes(12 * 31), choice)  # rows of 10 pixels, each after its filter byte
            chunks[i] = (kind, zlib.compress(pixels * choice.choice((1, 1, 10_000))))
        elif way == 4:
            chunks.insert(
                i,
                (choice.choice((b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"tRNS", b"PLTE", b"acTL")), choice.randbytes(20)),
            )
        else:
            chunks[i] = (kind, changed(data, choice))
    parts = [struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x)) for kind, x in chunks]
    return content[:8] + b"".join(parts)


def _read_image(folder: Path, choice: random.Random) -> None:
    size = choice.choice((None, 8))
    bb.data.image_folder(folder, size=size, mode=choice.choice(("RGB", "L", "RGBA")))[[0]]


# ---- arrays ----


def _arrays(choice: random.Random) -> dict[str, bytes]:
    arrays = {
        "x.npy": np.arange(24, dtype=np.float32).reshape(4, 6), "y.npy": np.asfortranarray(np.ones((3, 5), ">i4")),
        "s.npy": np.array(["ab", "c"]), "t.npy": np.array(["2020-01-01"], "M8[D]"), "c.npy": np.ones(3, np.complex64),
    }  # fmt: skip
    members = {name: npy_bytes(x) for name, x in arrays.items()}
    name = choice.choice(list(members))
    if choice.random() < 0.4:
        return {"x.npy": changed(members[name], choice)}
    if choice.random() < 0.5:
        members[name] = changed(members[name], choice)
    elif choice.random() < 0.3:
        members[name] = npy_bytes(np.zeros(choice.choice((10, 1000, 100_000)), np.uint8))
    content = npz_bytes(members, choice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return {"x.npz": changed(content, choice) if choice.random() < 0.4 else content}


def _read_arrays(folder: Path, choice: random.Random) -> None:
    (path,) = folder.iterdir()
    if choice.random() < 0.5:
        load_array(path)
    else:
        bb.io.load_npz(path)


# ---- weights ----


def _weights(choice: random.Random) -> dict[str, bytes]:
    """Files with a changed tree and a matching rest: headers, indexes, pickles, and documents with their checksum."""
    kind = choice.randrange(4)
    if kind == 0:
        content = safetensors_bytes(ARRAYS, {"format": "pt"})
        length = int.from_bytes(content[:8], "little")
        return {
            "model.safetensors": with_header(_json(json.loads(content[8 : 8 + length]), choice), content[8 + length :])
        }
    if kind == 1:
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(ARRAYS, "a.safetensors")}
        return {"model.safetensors.index.json": _json(index, choice), "a.safetensors": safetensors_bytes(ARRAYS)}
    if kind == 2:
        tree: Any = {"state": torch_tree(ARRAYS), "epoch": 3, "groups": [{"params": [0, 1]}]}
        for _ in range(choice.choice((1, 2, 3))):
            place = choice.choice((tree, tree["state"] if isinstance(tree.get("state"), dict) else tree))
            values = [x for x in _VALUES if not isinstance(x, float) and x != "\ud800"]
            values = [x % 2**60 if isinstance(x, int) and not isinstance(x, bool) else x for x in values]
            key = choice.choice([*place, 5, 2**59, "a.b", ""])
            lies: dict[str, Any] = {
                "size": choice.choice(((2, 256), (2**59, 4), (0,), (2,) * 40, (-1,))),
                "stride": choice.choice(((256, 1), (0, 0), (1,))), "offset": choice.choice((0, 1, 2**59, -1)),
            }  # fmt: skip
            tensors = [*torch_tree(ARRAYS).values(), torch_tensor("0", ARRAYS["weight"], **lies)]
            place[key] = copy.deepcopy(choice.choice([*values, *tensors, *tensors, tuple(values)]))
        return {"pytorch_model.bin": torch_bytes(ARRAYS, tree)}
    content = own_file("model")
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    own = changed_tree(json.loads(header["__metadata__"]["backburn"]), choice)
    if isinstance(own, dict) and isinstance(own.get("crc32"), dict):
        document = json.dumps([own.get("document"), own.get("quantized") or {}], sort_keys=True)
        own["crc32"]["document"] = f"{zlib.crc32(document.encode()):08x}"
    header["__metadata__"]["backburn"] = json.dumps(own)
    return {"own.safetensors": with_header(header, content[8 + length :])}


def _read_weights(folder: Path, choice: random.Random) -> None:
    if (folder / "own.safetensors").exists():
        bb.io.load_model(folder / "own.safetensors", verify=choice.random() < 0.5)
        return
    bb.io.load_weights(Model(), folder, strict=False, rename=lambda name: name.removeprefix("state."))


#: For each format: a function that creates the files of a folder, and one that reads them.
FORMATS: dict[str, tuple[Callable[[random.Random], dict[str, bytes]], Callable[[Path, random.Random], None]]] = {
    "tokenizer": (_tokenizer, _read_tokenizer),
    "template": (_template, _read_template),
    "config": (_config, _read_config),
    "adapter_config": (_adapter_config, _read_adapter_config),
    "csv": (_csv, _read_table),
    "parquet": (_parquet, _read_table),
    "image": (_image, _read_image),
    "arrays": (_arrays, _read_arrays),
    "weights": (_weights, _read_weights),
}


def fuzz(
    name: str, count: int, folder: Path, seed: int = 0, watch: Callable[[float], None] | None = None
) -> Counter[str]:
    """Read ``count`` changed folders of a format; the numbers of those that were read, and of errors by class.

    Errors that are not ours are raised again, with a note that names the file. ``watch`` is called with the CPU seconds
    of each.
    """
    make, read = FORMATS[name]
    outcomes: Counter[str] = Counter()
    for number in range(count):
        choice = random.Random(f"{seed} {number}")
        files = make(choice)
        for path in folder.iterdir():
            path.unlink()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetadataWarning)
            where = f"format {name}, seed {seed}, number {number}: {folder}"
            outcome, words = outcome_of(partial(read, folder, choice), where)
        if watch is not None:
            watch(time.process_time() - start)
        outcomes[outcome] += 1
        assert words.replace("\n", "").replace("\t", "").isprintable(), ascii(words)
        assert len(words) < 10_000, f"{name} {number}: {len(words)} characters"
    return outcomes


if __name__ == "__main__":
    run(__doc__, FORMATS, fuzz)
