"""Language models and files of weights: generation, fine-tuning, saving and loading, compared with other libraries.

``python -m benchmarks.generation [PART ...] [--threads N] [--rounds N] [--json FILE]``. Every side is a separate
process; the sides work alternately, while the others wait.

``generate``: a Llama of 88 million parameters continues prompts of 64 and 1,536 tokens, greedily; ours in float32 and
quantized, with the recorded step, transformers in float32. The table has the minimum time of a prompt, and the median
and the minimum time of a token. ``qlora``: a training step of adapters on a quantized Llama, against one of all its
parameters. ``save``: 1 GB of float32, ours with a checksum of each tensor and flushed to the disk, against safetensors
with and without ``fsync``. ``load``: 1 GB of bfloat16 shards into a float32 model, against safetensors' reader for
PyTorch with its cast.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import _resident
from benchmarks.steps import Side

LLAMA: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 2048, "eos_token_id": None,
}  # fmt: skip
#: For training steps: 26 million parameters, and the tokens of a batch.
TRAINED = {**LLAMA, "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
           "num_attention_heads": 8}  # fmt: skip
BATCH = 4, 128
PROMPTS, NEW = (64, 1536), 32
SCHEMES = {"float32": None, "int8": "qint8_symmetric_channel0_float32", "int4": "qint4_symmetric_block64_float32"}
#: A gigabyte, in this many tensors.
TENSORS, ROWS, WIDTH = 16, 4096, 4096

PARTS: dict[str, tuple[str, ...]] = {
    "generate": (*SCHEMES, "transformers"),
    "qlora": ("adapters", "all parameters"),
    "save": ("save_model", "save_file and fsync", "save_file"),
    "load": ("load_weights", "load_file"),
}
Answer = Callable[..., Any]


# ---- generation ----


def tokens_of(length: int) -> list[int]:
    """A prompt."""
    return [(7 * i * i + 3 * i) % LLAMA["vocab_size"] for i in range(length)]


def ours(scheme: str | None, folder: str) -> Answer:
    """The times of a prompt and of single tokens, in seconds, and the tokens."""
    import backburn as bb

    model: Any = bb.models.from_pretrained(Path(folder) / "llama", backend="capture(numpy)")
    model = model if scheme is None else bb.nn.quantize_model(model, scheme)

    def generate(length: int, count: int) -> Any:
        return timed(iter(bb.models.stream(model, tokens_of(length), count + 3)), count)

    return generate


def transformers(folder: str) -> Answer:
    """The same with transformers: its model, and its growing cache."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model: Any = AutoModelForCausalLM.from_pretrained(Path(folder) / "llama", dtype=torch.float32)
    model.eval()

    def stream(length: int) -> Any:
        tokens, cache = torch.tensor([tokens_of(length)]), None
        while True:
            with torch.inference_mode():
                found = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                tokens, cache = found.logits[:, -1].argmax(-1, keepdim=True), found.past_key_values
            yield int(tokens.item())

    return lambda length, count: timed(stream(length), count)


def timed(tokens: Any, count: int) -> tuple[float, list[float], list[int]]:
    """The seconds of the first token, and of each after the next two, which are recorded; and all tokens."""
    found, seconds = [], []
    for _ in range(count + 3):
        start = time.perf_counter()
        found.append(next(tokens))
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[3:], found


# ---- training ----


def trained(has_adapters: bool) -> Answer:
    """The seconds of a step, and the peak memory above that of the imports, in MB."""
    import numpy as np

    import backburn as bb
    from backburn import optim
    from backburn.nn import functional

    before = _resident()
    with bb.use_backend("autodiff(capture(numpy))"):
        model: Any
        if has_adapters:  # as for a user: the quantized model is read from a file, and never existed in floats
            with tempfile.TemporaryDirectory() as folder:
                part_of_another_process(folder)
                model = bb.models.from_pretrained(folder)
            model = bb.nn.add_adapters(model, rank=8, pattern="*_proj")
        else:
            model = bb.models.Llama(bb.models.LlamaConfig(**TRAINED))
        numbers = np.random.default_rng(0).integers(0, TRAINED["vocab_size"], (BATCH[0], BATCH[1] + 1))
        inputs, labels = bb.asarray(numbers[:, :-1].copy()), bb.asarray(numbers[:, 1:].reshape(-1).copy())
    optimizer = optim.Adam(lr=1e-4)
    model.train()

    def step(state: Any) -> Any:
        loss = functional.cross_entropy(model(inputs).reshape(-1, TRAINED["vocab_size"]), labels)
        optimizer.step(model, loss.backward())
        return state, loss

    update = bb.capture(step, on_fallback="error")

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        float(update((model, optimizer))[1].item())
        seconds = time.perf_counter() - start
        return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6

    return run


def part_of_another_process(folder: str) -> None:
    """Write the quantized model."""
    import subprocess

    subprocess.run([sys.executable, "-m", "benchmarks.generation", "--write", folder], check=True)


def write_quantized(folder: str) -> None:
    """Write a Llama with projections in 4 bits."""
    import backburn as bb

    model = bb.models.Llama(bb.models.LlamaConfig(**TRAINED))
    bb.nn.quantize_model(model, SCHEMES["int4"] or "", pattern="*_proj").save_pretrained(folder)


# ---- files ----


def _peak() -> float:
    """The peak memory of this process, in MB, without that of the process that started it."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def saved(side: str, folder: str) -> Answer:
    """The seconds of saving, and the peak memory of the process, in MB."""
    import numpy as np

    arrays = {f"layers.{i}.weight": np.full((ROWS, WIDTH), i, np.float32) for i in range(TENSORS)}
    path = Path(folder) / f"{side}.safetensors"
    if side == "save_model":
        import backburn as bb

        state = {name: bb.asarray(arrays.pop(name), backend="numpy") for name in [*arrays]}

        def save() -> None:
            bb.io.save_model(path, state)

    else:
        from safetensors.numpy import save_file

        def save() -> None:
            save_file(arrays, path)
            if side != "save_file":
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        save()
        seconds = time.perf_counter() - start
        path.unlink()
        os.sync()  # so that the next side does not pay for this side's unwritten data
        return seconds, _peak()

    return run


def loaded(is_ours: bool, folder: str) -> Answer:
    """The seconds of loading, and the peak memory of the process, in MB."""
    shards = Path(folder) / "shards"
    if is_ours:
        import backburn as bb

        with bb.use_backend("numpy"):
            layers = [bb.nn.Linear(WIDTH, ROWS, bias=False) for _ in range(2 * TENSORS)]
        model = bb.nn.Sequential(*layers)
        load: Callable[[], object] = lambda: bb.io.load_weights(model, shards)  # noqa: E731
    else:
        import torch
        from safetensors.torch import load_file

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        theirs = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, ROWS, bias=False) for _ in range(2 * TENSORS)))

        def load() -> object:
            for path in sorted(shards.glob("*.safetensors")):
                theirs.load_state_dict({k: x.float() for k, x in load_file(path).items()}, strict=False)
            return None

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        load()
        return time.perf_counter() - start, _peak()

    return run


def write_shards(folder: Path) -> None:
    """Write 1 GB of bfloat16 in shards."""
    import backburn as bb

    with bb.use_backend("numpy"), bb.use_dtype("bfloat16"):
        model = bb.nn.Sequential(*(bb.nn.Linear(WIDTH, ROWS, bias=False) for _ in range(2 * TENSORS)))
    bb.io.save_weights(model, folder / "shards", max_shard_size="300MB")


# ---- sides ----


def build(side: str, folder: str) -> Answer:
    """The function that answers the requests to a side."""
    if side in SCHEMES:
        return ours(SCHEMES[side], folder)
    if side == "transformers":
        return transformers(folder)
    if side in PARTS["qlora"]:
        return trained(side == "adapters")
    if side in PARTS["save"]:
        return saved(side, folder)
    return loaded(side == "load_weights", folder)


def work(side: str) -> None:
    """Answer requests, one line each: the folder, and then arguments of the side's function."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = build(side, json.loads(sys.stdin.readline())[0])
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=answers, flush=True)


def in_turns(part: str, folder: str, threads: int, rounds: int) -> dict[str, dict[str, float]]:
    """The figures of each side of a part."""
    sides = [Side(name, threads, "benchmarks.generation") for name in PARTS[part]]
    figures: dict[str, dict[str, float]] = {}
    try:
        for side in sides:
            side.ask(folder)
        if part == "generate":
            for length in PROMPTS:
                found: dict[str, list[Any]] = {side.name: [] for side in sides}
                for _ in range(rounds + 1):
                    for side in sides:
                        found[side.name].append(side.ask(length, NEW))
                if found["float32"][0][2] != found["transformers"][0][2]:
                    raise SystemExit("generate: our tokens differ from those of transformers")
                for name, answers in found.items():
                    each = [seconds for _, some, _ in answers[1:] for seconds in some]
                    figures.setdefault(name, {}).update(
                        {f"prefill {length}": min(answer[0] for answer in answers[1:]),
                         f"token after {length}": statistics.median(each), f"least after {length}": min(each)}
                    )  # fmt: skip
        else:
            runs: dict[str, list[Any]] = {side.name: [] for side in sides}
            for _ in range(rounds + 3):
                for side in sides:
                    runs[side.name].append(side.ask())
            for name, answers in runs.items():
                seconds = [answer[0] for answer in answers[3 if part == "qlora" else 1 :]]
                peak = max(answer[1] for answer in answers)
                figures[name] = {"median": statistics.median(seconds), "least": min(seconds), "peak MB": peak}
    finally:
        for side in sides:
            side.close()
    return figures


def print_table(part: str, figures: dict[str, dict[str, float]]) -> None:
    """Print the figures of a part and their ratios to the last side's, below 1 where less time or memory is used."""
    names = [*next(iter(figures.values()))]
    last = figures[PARTS[part][-1]]
    print(f"\n| {part} | {' | '.join(names)} |\n|---{'|---:' * len(names)}|")
    for side, values in figures.items():
        cells = (
            f"{values[name] * (1 if 'MB' in name else 1e3):.4g}{'' if 'MB' in name else ' ms'}"
            f"{f' ({values[name] / last[name]:.2f})' if values is not last else ''}"
            for name in names
        )
        print(f"| {side} | {' | '.join(cells)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for the files, by default a temporary one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.work:
        return work(chosen.work)
    if chosen.write:
        return write_quantized(chosen.write)
    found = {}
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for part in chosen.parts:
            if part == "generate":
                import backburn as bb

                bb.random.seed(0)
                bb.models.Llama(bb.models.LlamaConfig(**LLAMA)).save_pretrained(Path(folder) / "llama")
            elif part == "load":
                write_shards(Path(folder))
            found[part] = in_turns(part, folder, chosen.threads, chosen.rounds)
            print_table(part, found[part])
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
