"""Changes files of weights at random and reads them: each must be loaded, or refused with one of our errors.

Run as ``python -m tools.fuzz_weights --count 100000``, optionally with ``--formats`` and ``--seed``. It prints how many
files of each format were loaded and refused, and stops at the first that raises another error or a warning, or is
refused after changing the model. The tests run a few of each.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import random
import struct
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.helpers.weight_files import (
    GGUFTensor,
    gguf_bytes,
    legacy_torch_bytes,
    npy_bytes,
    npz_bytes,
    pickled,
    safetensors_bytes,
    torch_bytes,
    torch_tree,
)
from tools.fuzzing import outcome_of, run

import backburn as bb
from backburn.base.metadata import MetadataWarning

_RNG = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "weight": _RNG.standard_normal((2, 256)).astype(np.float32),
    "half": _RNG.standard_normal((2, 32)).astype(np.float16),
    "steps": np.array([3]),
}
_BLOCKS = {
    "weight": GGUFTensor(12, (2, 256), bytes(_RNG.integers(0, 256, 288, dtype=np.uint8))),
    "half": GGUFTensor(8, (2, 32), bytes(_RNG.integers(0, 256, 68, dtype=np.uint8))),
    "steps": GGUFTensor(27, (1,), bytes(8)),
}
#: A quantized layer as GGUF, GPTQ and AWQ store it.
_LAYER_BLOCKS = {"layer.weight": GGUFTensor(2, (8, 64), bytes(_RNG.integers(0, 56, 288, dtype=np.uint8)))}
_GPTQ: dict[str, Any] = {
    "layer.qweight": _RNG.integers(-(2**31), 2**31, (8, 8)).astype(np.int32),
    "layer.qzeros": np.zeros((2, 1), np.int32),
    "layer.scales": np.ones((2, 8), np.float16),
    "layer.g_idx": (np.arange(64) // 32).astype(np.int32),
}
_AWQ: dict[str, Any] = {**_GPTQ, "layer.qweight": _RNG.integers(-(2**31), 2**31, (64, 1)).astype(np.int32)}
del _AWQ["layer.g_idx"]
#: Numbers that replace lengths and offsets.
_NUMBERS = [0, 1, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


class Model(bb.nn.Module):
    """Has a tensor for each of the arrays."""

    def __init__(self) -> None:
        self.weight = bb.nn.parameter(bb.zeros((2, 256)))
        self.half = bb.nn.parameter(bb.zeros((2, 32)))
        self.steps = bb.zeros((1,), dtype="int64")


class Layers(bb.nn.Module):
    """Has a layer that can be quantized."""

    def __init__(self) -> None:
        self.layer = bb.nn.Linear(64, 8, bias=False)


@functools.cache
def _adapters() -> dict[str, bytes]:
    """The files of an adapter; one of them is changed at a time."""
    tuned = bb.nn.add_adapters(Layers(), rank=2)
    with tempfile.TemporaryDirectory() as folder:
        bb.io.save_adapters(tuned, folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def own_file(kind: str) -> bytes:
    """A file in one of backburn's formats, with a quantized tensor."""
    layers = bb.nn.quantize_model(Layers(), "qint4_affine_block32_float16")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        if kind == "model":
            bb.io.save_model(path, layers.state_dict(), about={"epoch": 3})
        elif kind == "state":
            bb.io.save_state(path, {"model": layers.state_dict(), "rest": [1, ARRAYS["half"]]})
        else:
            bb.io.save_weights(layers, path)
        return path.read_bytes()


def changed(content: bytes, choice: random.Random) -> bytes:
    """The content with up to four changes, more often near its ends, where headers and directories are."""
    made = bytearray(content)
    for _ in range(choice.choice((1, 1, 2, 4))):
        size = len(made)
        if size == 0:
            break
        near = min(size, 600)
        place = choice.choice((choice.randrange(size), choice.randrange(near), size - 1 - choice.randrange(near)))
        length = choice.choice((1, 2, 4, 8))
        kind = choice.randrange(7)
        if kind == 0:
            made[place] ^= 1 << choice.randrange(8)
        elif kind == 1:
            made[place] = choice.randrange(256)
        elif kind == 2:
            made[place : place + length] = (choice.choice(_NUMBERS) % (1 << 8 * length)).to_bytes(length, "little")
        elif kind == 3:
            del made[place : place + choice.randrange(1, 40)]
        elif kind == 4:
            del made[place:]
        elif kind == 5:
            made[place:place] = choice.randbytes(choice.randrange(1, 20))
        else:
            start = choice.randrange(size)
            made[place:place] = made[start : start + choice.randrange(1, 60)]
    return bytes(made)


def _safetensors(choice: random.Random) -> bytes:
    return changed(safetensors_bytes(ARRAYS, {"format": "pt"}), choice)


def _torch(choice: random.Random) -> bytes:
    if choice.random() < 0.4:
        return changed(torch_bytes(ARRAYS), choice)
    return torch_bytes(ARRAYS, changed(pickled(torch_tree(ARRAYS)), choice))  # with a correct checksum


def _legacy_torch(choice: random.Random) -> bytes:
    return changed(legacy_torch_bytes(ARRAYS), choice)


def _npz(choice: random.Random) -> bytes:
    compression = choice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    members = {f"{name}.npy": npy_bytes(x) for name, x in ARRAYS.items()}
    if choice.random() < 0.5:
        return changed(npz_bytes(members, compression), choice)
    name = choice.choice(list(members))
    return npz_bytes({**members, name: changed(members[name], choice)}, compression)


def _gguf(choice: random.Random) -> bytes:
    return changed(gguf_bytes(_BLOCKS), choice)


#: Metadata of a GGUF file: a name, the number of a type, and its value; a list has the type of its elements.
_GGUF_VALUES: list[list[Any]] = [
    ["general.architecture", 8, "llama"], ["general.alignment", 4, 64], ["rope", 6, 10000.0], ["flag", 7, 1],
    ["tokens", 9, [8, ["a", "b"]]], ["scores", 9, [6, [0.5, 1.5]]], ["nested", 9, [9, [[7, [1]], [8, ["x"]]]]],
    ["small", 0, 1], ["large", 10, 2**64 - 1], ["exact", 12, 0.5],
]  # fmt: skip
#: How types of metadata are packed; and the bytes and elements of a block of each type of tensor.
_GGUF_PACKED = {0: "B", 1: "B", 2: "H", 3: "H", 4: "I", 5: "I", 6: "f", 7: "B", 10: "Q", 11: "Q", 12: "d"}
_GGUF_BLOCKS = {
    0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256),
    11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 15: (292, 256), 24: (1, 1), 25: (2, 1), 26: (4, 1),
    27: (8, 1), 28: (8, 1), 30: (2, 1), 39: (17, 32),
}  # fmt: skip
_NAMES = ["", "weight", "half", "x", "\x1b[2J", "é\u202e", "a" * 70_000, "general.alignment", "blk.0.attn_q.weight"]


def _gguf_tree(choice: random.Random) -> bytes:
    """A file with a changed tree, packed correctly except for up to two fields."""
    values = copy.deepcopy(_GGUF_VALUES)
    shapes = {"weight": (2, 256), "half": (2, 32), "steps": (1,)}
    tensors: list[list[Any]] = []
    for name, shape in shapes.items():
        fits = [kind for kind, (_, size) in _GGUF_BLOCKS.items() if shape[-1] % size == 0]
        tensors.append([name, shape, choice.choice((24, 25, 26, 27) if name == "steps" else fits)])
    for _ in range(choice.choice((0, 1, 1, 2))):
        table = choice.choice((values, tensors, tensors))
        entry = choice.choice(table)
        way = choice.randrange(6)
        if way == 0:
            entry[0] = choice.choice(_NAMES)
        elif way == 1 and len(table) > 1:
            table.remove(entry)
        elif way == 2:
            table.insert(choice.randrange(len(table)), copy.deepcopy(entry))
        elif way == 3 and table is values:
            entry[1:] = [9, [entry[1], [entry[2]] * choice.choice((0, 1, 300))]]
            for _ in range(choice.choice((0, 1, 6, 7, 8, 100))):
                entry[1:] = [9, [9, [entry[2]]]]
        elif way == 4 and table is tensors:
            entry[1] = choice.choice(
                ((), (0,), (1,) * 8, (1,) * 9, (2, 256), (256,), (2**40, 256), (32, 2**32), (512,))
            )
        elif table is tensors:
            entry[2] = choice.choice([*_GGUF_BLOCKS, *range(45), 2**32 - 1])
        else:
            entry[2:] = choice.choice([other[2:] for other in values if other[1] == entry[1]])
    choice.shuffle(tensors)
    alignments = [entry[2] for entry in values if entry[:2] == ["general.alignment", 4]]
    alignment = int(alignments[-1]) if alignments else 32
    fields: list[list[Any]] = [["I", choice.choice((2, 3, 3))], ["Q", len(tensors)], ["Q", len(values)]]
    for name, kind, value in values:
        fields += [*_gguf_text(name), ["I", kind], *_gguf_value(kind, value)]
    data = b""
    for name, shape, kind in tensors:
        fields += [*_gguf_text(name), ["I", len(shape)], *(["Q", size] for size in shape[::-1])]
        fields += [["I", kind], ["Q", len(data)]]
        itemsize, size = _GGUF_BLOCKS.get(kind, (1, 1))
        data += choice.randbytes(min(math.prod(shape) // size * itemsize, 4096))
        data += bytes(-len(data) % alignment)
    for _ in range(choice.choice((0, 1, 1, 2))):
        field = choice.choice([field for field in fields if field[0] != "s"])
        near = [field[1] + 1, max(field[1] - 1, 0), choice.choice([other[1] for other in fields if other[0] != "s"])]
        field[1] = choice.choice([*_NUMBERS, *near, *near])
    made = b"GGUF"
    for kind, value in fields:
        if kind == "s":
            made += value
        elif kind in "fd":
            made += struct.pack(f"<{kind}", min(value, 1e30))
        else:
            made += struct.pack(f"<{kind}", int(value) % (1 << 8 * struct.calcsize(f"<{kind}")))
    return made + bytes(-len(made) % alignment) + data[: choice.choice((len(data),) * 9 + (len(data) - 1,))]


def _gguf_text(words: str) -> list[list[Any]]:
    return [["Q", len(words.encode())], ["s", words.encode()]]


def _gguf_value(kind: int, value: Any) -> list[list[Any]]:
    if kind == 8:
        return _gguf_text(value)
    if kind != 9:
        return [[_GGUF_PACKED[kind], value]]
    inner, elements = value
    parts = [field for element in elements for field in _gguf_value(inner, element)]
    return [["I", inner], ["Q", len(elements)], *parts]


def _index(choice: random.Random) -> bytes:
    places = {name: f"model-{i}.safetensors" for i, name in enumerate(ARRAYS)}
    return changed(json.dumps({"metadata": {}, "weight_map": places}).encode(), choice)


def _gguf_layer(choice: random.Random) -> bytes:
    return changed(gguf_bytes(_LAYER_BLOCKS), choice)


def _gptq(choice: random.Random) -> bytes:
    return changed(safetensors_bytes(_GPTQ), choice)


def _awq(choice: random.Random) -> bytes:
    return changed(safetensors_bytes(_AWQ), choice)


def _adapter(choice: random.Random) -> bytes:
    return changed(_adapters()["adapter_model.safetensors"], choice)


def _adapter_config(choice: random.Random) -> bytes:
    return changed(_adapters()["adapter_config.json"], choice)


def _own_weights(choice: random.Random) -> bytes:
    return changed(own_file("weights"), choice)


def _own_model(choice: random.Random) -> bytes:
    return changed(own_file("model"), choice)


def _own_state(choice: random.Random) -> bytes:
    return changed(own_file("state"), choice)


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "safetensors": _safetensors,
    "torch": _torch,
    "legacy_torch": _legacy_torch,
    "npz": _npz,
    "gguf": _gguf,
    "gguf_tree": _gguf_tree,
    "index": _index,
    "gguf_layer": _gguf_layer,
    "gptq": _gptq,
    "awq": _awq,
    "adapter": _adapter,
    "adapter_config": _adapter_config,
    "own_weights": _own_weights,
    "own_model": _own_model,
    "own_state": _own_state,
}
#: Formats whose files are read into quantized layers.
QUANTIZED = ("gguf_layer", "gptq", "awq", "own_weights", "own_model")
#: The file names of formats that are one file of a folder.
IN_FOLDER = {
    "index": "model.safetensors.index.json", "adapter": "adapter_model.safetensors",
    "adapter_config": "adapter_config.json",
}  # fmt: skip
#: Formats with separate readers.
READERS: dict[str, Callable[..., Any]] = {"own_model": bb.io.load_model, "own_state": bb.io.load_state}


def fuzz(
    name: str, count: int, folder: Path, seed: int = 0, watch: Callable[[float], None] | None = None
) -> Counter[str]:
    """Read ``count`` changed files of a format in ``folder``; the numbers of those loaded, and of errors by class.

    Raises AssertionError for an error without the file's name, and for a refused file that changed the model. Errors
    that are not ours are raised again, with a note that names the file. ``watch`` is called with the CPU seconds of
    each.
    """
    outcomes: Counter[str] = Counter()
    path = folder / IN_FOLDER.get(name, f"{name}.weights")
    if name == "index":
        for i, (key, x) in enumerate(ARRAYS.items()):
            (folder / f"model-{i}.safetensors").write_bytes(safetensors_bytes({key: x}))
    is_adapter = name.startswith("adapter")
    if is_adapter:
        for file, content in _adapters().items():
            (folder / file).write_bytes(content)
    source = folder if name in IN_FOLDER else path
    for number in range(count):
        path.write_bytes(FORMATS[name](random.Random(f"{seed} {number}")))
        model = Layers() if is_adapter or name in QUANTIZED else Model()
        before, shapes = dict(vars(model)), [x.shape for x in model.state_dict().values()]

        def read(model: Any = model, number: int = number) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MetadataWarning)  # for an unlisted key
                if is_adapter:
                    bb.io.load_adapters(model, folder, strict=number % 4 == 0)
                elif name in READERS:
                    READERS[name](path, verify=number % 2 > 0)
                if not (is_adapter or name in READERS) or (name == "own_model" and number % 4 > 1):
                    bb.io.load_weights(model, source, strict=number % 4 > 0, quantized=name in QUANTIZED)

        start = time.process_time()
        outcome, words = outcome_of(read, f"format {name}, seed {seed}, number {number}: {path}")
        if watch is not None:
            watch(time.process_time() - start)
        outcomes[outcome] += 1
        if outcome == "read":
            assert [x.shape for x in model.state_dict().values()] == shapes
        else:
            assert str(folder) in words, words
            assert all(vars(model)[key] is value for key, value in before.items()), f"{name} {number}: {words}"
    return outcomes


if __name__ == "__main__":
    run(__doc__, FORMATS, fuzz)
