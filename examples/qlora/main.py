"""Fine-tune a 4-bit model with adapters: a small Llama trained on prose learns Python.

Run with ``python examples/qlora/main.py``. The model learns English from this project's documentation, is quantized to
4 bits and frozen; then low-rank adapters beside its linear layers learn Python from the project's sources, and only
these are saved. After Dettmers et al., "QLoRA: Efficient finetuning of quantized LLMs" (2023).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.io import save_adapters
from backburn.models import Llama, LlamaConfig
from backburn.nn.functional import cross_entropy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONTEXT, CHARACTERS = 64, 128


def tokens_of(pages: Sequence[Path]) -> np.ndarray:
    """The characters of files as numbers below 128; non-ASCII characters become question marks."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)


def loss(model: nn.Module, batch: tuple[bb.Tensor]) -> bb.FloatTensor:
    """Cross-entropy of each character of the windows except the first, given the previous ones."""
    (windows,) = batch
    return cross_entropy(model(windows[:, :-1]), windows[:, 1:])


def run(model: nn.Module, tokens: np.ndarray, steps: int, lr: float) -> train.Trainer[Any]:
    """Train on nine tenths of the tokens, and validate on the rest."""
    (seen,), (unseen,) = data.hold_out(tokens, parts=10)
    return train.fit(
        model,
        loss,
        data.batches(data.windows(seen, CONTEXT + 1, stride=1), batch_size=16, seed=0),
        validation=data.batches(data.windows(unseen, CONTEXT + 1)[:512], batch_size=64),
        optimizer=optim.AdamW(optim.schedules.Warmup(20, optim.schedules.Cosine(lr, steps))),
        epochs=10,
        steps_per_epoch=steps // 10,
        clip=1.0,
    )


def draw(sizes: dict[str, float], losses: dict[str, float], path: str) -> None:
    """Plot the sizes of the models and their losses on Python, for light and dark pages."""
    from matplotlib import pyplot

    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.4), sharey=True)
            for axis, values, title, form in zip(
                axes, (sizes, losses), ("kilobytes", "nats per character of Python"), ("%.0f", "%.2f"), strict=True
            ):
                axis.bar_label(axis.barh(list(values), list(values.values()), height=0.6), fmt=form, padding=3)
                axis.set(title=title, xlim=(0, 1.2 * max(values.values())), xticks=[])
                axis.spines["bottom"].set_visible(False)
            axes[0].invert_yaxis()
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Pre-train, quantize, adapt; returns the loss of each model on Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer steps")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    width, layers, steps = (32, 1, 200) if options.quick else (128, 3, 800)

    prose = tokens_of(sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")]))
    python = tokens_of(sorted(ROOT.glob("src/backburn/nn/**/*.py")))
    bb.random.seed(0)
    config = LlamaConfig(
        vocab_size=CHARACTERS, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=2 * CONTEXT,
    )  # fmt: skip
    base = Llama(config)
    print(f"prose, float32: {run(base, prose, steps, 5e-3).history[-1]['validation/loss']:.3f} nats per character")

    small = nn.quantize_model(base, "qint4_symmetric_block32_float16", skip="lm_head")
    adapted = nn.add_adapters(small, rank=8, alpha=16, pattern="model.*")
    held_out = run(adapted, python, steps // 2, 5e-3).validation
    assert held_out is not None
    with tempfile.TemporaryDirectory() as folder:
        save_adapters(adapted, folder)
        file = sum(path.stat().st_size for path in Path(folder).iterdir())

    models = {"float32": base, "int4": small, "int4 and adapters": adapted}
    losses = {name: train.evaluate(model, loss, held_out)["loss"] for name, model in models.items()}
    sizes = {name: sum(x.nbytes for x in model.state_dict().values()) / 1000 for name, model in models.items()}
    for name, value in losses.items():
        print(f"{name:18} {sizes[name]:7.0f} kB  {value:.3f} nats per character of Python")
    trainable = sum(x.size for x in adapted.parameters() if x.is_require_grad)
    print(f"{trainable:,} numbers were trained; the adapters' files take {file:,} bytes")
    if options.plot:
        draw(sizes, losses, options.plot)
    return losses


if __name__ == "__main__":
    main()
