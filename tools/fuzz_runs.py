"""Changes run folders, configurations, checkpoints, models and backend expressions at random, and reads them.

Each must be read, or refused with one of our errors. Run as ``python -m tools.fuzz_runs --count 100000``, optionally
with ``--formats`` and ``--seed``. Trees of tables and lists are changed in their nodes, and written with correct
checksums; texts are changed in their characters. It stops at the first input that raises another error, writes or
deletes files that it should only read, takes more than a second, or much memory. The tests run a few of each.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tools.fuzzing import outcome_of, run

import backburn as bb
from backburn import nn, optim, train
from backburn.train.config import read_config, run_of
from backburn.train.report import comparison_html, report_html
from backburn.train.runs import aligned, comparison, find_runs, run_table

#: Values that replace nodes of a tree.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, -1e308,
    5e-324, float("nan"), float("inf"), float("-inf"), "", "x", "0", "é", "\ud800", "\x1b[2J", "\x00", "a" * 300,
    "os:system", "numpy", "autodiff(numpy)", "../..", "/etc/passwd", [], {}, [[]], {"": {}}, [1, 2, 3], {"a": 1},
    {"$tensor": "x"},
]  # fmt: skip
ROW = {
    "epoch": 1,
    "step": 5,
    "loss": 0.5,
    "lr": 0.1,
    "validation/loss": 0.25,
    "examples": 4,
    "seconds": 2.0,
    "seconds/data": 0.5,
}
CONFIG = {
    "fit": {"epochs": 3, "model": {"weight": "float32[2]"}, "options": {"seed": None}},
    "config": {"model": {"width": 3}},
    "environment": {"python": "3.11", "command": ["backburn"], "started": "2026-11-24T03:45:00+0000"},
}
TOML = """\
backend = "autodiff(numpy)"   # which
[data]
validation = 0.25
[data.distort]
rotation = 20
[model]
hidden = [16, 8]
activation = "relu"
"dropout" = 0.0
[loss]
label_smoothing = 0.1
[metrics]
error = "backburn.train.digits:loss"
[optimizer]
name = "adamw"
betas = [0.9, 0.95]
[schedule]
name = "cosine"
warmup = 10
[train]
epochs = 3
clip = 1.0
precision = 'float32'
[callbacks.early_stopping]
patience = 3
[callbacks.own]
build = "backburn.train:EarlyStopping"
"monitor" = 'loss'
[output]
folder = '''runs/x'''
[distributed]
mesh = { dp = 1 }
"""
SPECS = ["autodiff(numpy)", "numpy:0", "autodiff(capture(numpy(quantized=true)))", "sharded(autodiff(numpy), dp=2)",
         "autodiff(profile(numpy))", "cupy:1(float_dtype=bfloat16)", "forward(null)"]  # fmt: skip
_PIECES = [
    "(", ")", ",", "=", ":", "numpy", "autodiff", "0", "9" * 30, "1e999", "-", ".", "\x1b", "\u0663", " ", "[", "]",
    "{", "}", '"', "'", '"""', "'''", "#", "\n", "\\", "\x00", "\ud800", "a.b", "true", "nan", "inf", "1979-05-27",
    "0x" + "f" * 20,
]  # fmt: skip


def changed_text(text: str, choice: random.Random) -> str:
    """A text with up to four changes: parts removed, repeated or inserted."""
    for _ in range(choice.choice((1, 1, 2, 4))):
        place = choice.randrange(len(text) + 1)
        length = choice.choice((1, 1, 3, 20))
        kind = choice.randrange(5)
        if kind == 0:
            text = text[:place] + text[place + length :]
        elif kind == 1:
            text = text[:place] + choice.choice(_PIECES) + text[place:]
        elif kind == 2:
            text = text[:place] + choice.choice(_PIECES) + text[place + length :]
        elif kind == 3:
            start = choice.randrange(len(text) + 1)
            text = text[:place] + text[start : start + length] + text[place:]
        else:
            text = text[:place] + choice.choice(_PIECES) * choice.choice((2, 50, 3000)) + text[place:]
    return text


def changed_tree(tree: Any, choice: random.Random) -> Any:
    """A copy of a tree in which up to four nodes are replaced, removed, renamed, copied or wrapped."""
    made = [copy.deepcopy(tree)]
    for _ in range(choice.choice((1, 1, 2, 4))):
        places = _places(made)
        node, key = choice.choice(places)
        kind = choice.randrange(6)
        if kind == 0 and isinstance(node, dict):
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[choice.choice(("x", "", "\x1b", "epoch", "a" * 300, str(key) + "x"))] = node.pop(key)
        elif kind == 2:
            other, name = choice.choice(places)
            if name in other if isinstance(other, dict) else name < len(other):
                node[key] = copy.deepcopy(other[name])
        elif kind == 3:
            for _ in range(choice.choice((1, 2, 60))):
                node[key] = [node[key]] if choice.random() < 0.5 else {"a": node[key]}
        else:
            node[key] = copy.deepcopy(choice.choice(VALUES))
    return made[0]


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            found.append((node, key))
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])
    return found


# ---- what is read ----


def _run_folder(choice: random.Random, folder: Path) -> None:
    rows = [{**ROW, "epoch": i, "loss": 1.0 / i} for i in (1, 2, 3)]
    made = changed_tree({"rows": rows, "config": CONFIG, "steps": [{"step": 1, "loss": 1.0}]}, choice)
    tree: dict[str, Any] = made if isinstance(made, dict) else {}  # the root may have been replaced
    for name, key in (("metrics.jsonl", "rows"), ("steps.jsonl", "steps"), ("config.json", "config")):
        found = tree.get(key)
        text = "\n".join(map(json.dumps, found if isinstance(found, list) else [found]))
        text = changed_text(text, choice) if choice.random() < 0.3 else text
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    before = _stamps(folder)
    runs = find_runs([folder])
    words = aligned(run_table(runs)) + aligned(comparison(runs)) + report_html(runs[0]) + comparison_html(runs)
    words.encode()
    assert all(c.isprintable() or c == "\n" for c in words)
    assert _stamps(folder) == before


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    found = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()]
    return sorted(found)


def _toml(choice: random.Random, folder: Path) -> None:
    path = folder / "run.toml"
    path.write_bytes(changed_text(TOML, choice).encode("utf-8", "surrogatepass"))
    run = read_config(path)
    run.check_without_import()
    run.functions()


def _tables(choice: random.Random, folder: Path) -> None:
    import tomllib

    tables = changed_tree(tomllib.loads(TOML), choice)
    run = run_of(tables if isinstance(tables, dict) else {}, folder, "m.safetensors")
    run.check_without_import()
    run.functions()


def _spec(choice: random.Random, folder: Path) -> None:
    backend = bb.load_backend(changed_text(choice.choice(SPECS), choice))
    assert bb.load_backend(backend.spec) is backend


def trainer() -> Any:
    """A small run with every stateful part."""
    with bb.random.fork(0):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2))
    return train.Trainer(
        model, lambda model, batch: (model(batch["x"]) ** 2).mean(),
        bb.data.batches({"x": np.ones((8, 2), np.float32)}, batch_size=4, seed=0),
        optimizer=optim.Adam(optim.schedules.ReduceOnPlateau(0.1)), average=optim.Average(0.9), seed=0, progress=False,
        callbacks=[train.EarlyStopping("loss")], capture=False,
    )  # fmt: skip


@functools.cache
def _state() -> Any:
    made = trainer()
    made.run_epoch()
    with tempfile.TemporaryDirectory() as folder:
        made.save(f"{folder}/state.safetensors")
        return bb.io.load_state(f"{folder}/state.safetensors")


def _checkpoint(choice: random.Random, folder: Path) -> None:
    path = folder / "state.safetensors"
    state = _mutable(_state())
    try:
        bb.io.save_state(path, changed_tree(state, choice))
    except (bb.errors.DTypeError, ValueError):  # lone surrogates, and values that a state cannot contain
        return
    made = trainer()
    before = made.state()
    try:
        made.resume(path)
    except bb.errors.BackburnError:
        assert same(made.state(), before)
        raise
    made.run_epoch()


def same(one: Any, other: Any) -> bool:
    """Whether two trees have the same tables, lists, tensors and values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(x, other[key]) for key, x in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bb.Tensor) and isinstance(other, bb.Tensor):
        return one.shape == other.shape and one.tolist() == other.tolist()
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _mutable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mutable(x) for key, x in tree.items()}
    if isinstance(tree, list):
        return [_mutable(x) for x in tree]
    return tree


@functools.cache
def _weights() -> dict[str, Any]:
    from backburn.train.digits import network

    return dict(network([4]).state_dict())


def _model(choice: random.Random, folder: Path) -> None:
    from backburn import cli

    about = {"backend": "autodiff(numpy)", "epoch": 1, "config": {"model": {"hidden": [4]}, "train": {"epochs": 1}}}
    path = folder / "m.safetensors"
    made = changed_tree(about, choice)
    try:
        bb.io.save_model(path, _weights(), about=made)
    except (bb.errors.BackburnError, ValueError, TypeError):
        return
    np.save(folder / "x.npy", np.ones((1, 64), np.float32))
    options = cli.parser().parse_args(["predict", str(path), str(folder / "x.npy"), "--out", str(folder / "y.npz")])
    with redirect_stdout(io.StringIO()):
        options.run(options)


FORMATS: dict[str, Callable[[random.Random, Path], None]] = {
    "run_folder": _run_folder, "toml": _toml, "tables": _tables, "spec": _spec, "checkpoint": _checkpoint,
    "model": _model,
}  # fmt: skip


def fuzz(
    name: str, count: int, folder: Path, seed: int = 0, watch: Callable[[float], None] | None = None
) -> Counter[str]:
    """Read ``count`` changed inputs of a format in ``folder``: the numbers of those read, and of errors by class.

    Errors that are not ours are raised again, with a note that names the input. ``watch`` is called with the CPU
    seconds of each.
    """
    outcomes: Counter[str] = Counter()
    victim = folder.parent / "victim"
    victim.write_text("precious")
    for number in range(count):
        started = time.process_time()
        where = f"format {name}, seed {seed}, number {number}: {folder}"
        outcome, words = outcome_of(partial(FORMATS[name], random.Random(f"{seed} {number}"), folder), where)
        if watch is not None:
            watch(time.process_time() - started)
        assert words.replace("\n", "").isprintable(), words
        assert len(words) < 20_000
        outcomes[outcome] += 1
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(folder.parent)) == sorted(["victim", folder.name])
    return outcomes


if __name__ == "__main__":
    run(__doc__, FORMATS, fuzz)
