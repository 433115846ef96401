"""A GPT that learns, character by character, to write like this project's documentation.

Run with ``python examples/char_gpt/main.py``. A decoder of four layers (Radford et al., 2018) reads 64 characters and
predicts the next one; after 1,500 steps it spells most words, and writes headings, tables and examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn.functional import cross_entropy

HERE = Path(__file__).parent
DOCUMENTATION = HERE.parents[1] / "docs"


class GPT(nn.Module):
    """Embeddings of characters and positions, causal transformer layers, and a linear layer to the next character."""

    def __init__(self, vocab_size: int, context: int, width: int, heads: int, layers: int) -> None:
        self.context = context
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: bb.Tensor) -> bb.Tensor:
        """Logits (batch, length, vocab_size) of the characters that follow each of ``tokens`` (batch, length)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return self.head(self.norm(x))


def loss(model: GPT, batch: tuple[bb.Tensor]) -> bb.Tensor:
    """Cross-entropy of each character of the windows except the first, given the previous ones."""
    (windows,) = batch
    return cross_entropy(model(windows[:, :-1]), windows[:, 1:])


def write(model: GPT, prompt: Sequence[int], length: int, temperature: float = 0.7) -> list[int]:
    """``prompt`` and ``length`` further characters, each drawn given up to ``context`` previous ones."""
    tokens = bb.asarray([prompt])
    with bb.no_grad():
        for _ in range(length):
            logits = model(tokens[:, -model.context :])[:, -1]
            tokens = bb.concat([tokens, bb.random.categorical(logits / temperature)[:, None]], axis=1)
    return tokens[0].tolist()


def draw(history: list[dict[str, float]], text: str, path: str) -> None:
    """Plot the losses beside a text that the model has written, for light and dark pages."""
    from matplotlib import pyplot

    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2, width_ratios=(2, 3))
            steps = [row["step"] for row in history]
            left.plot(steps, [row["loss"] for row in history], label="training")
            left.plot(steps, [row["validation/loss"] for row in history], label="validation")
            left.set(xlabel="step", ylabel="nats per character", ylim=(0, None))
            left.legend(frameon=False)
            right.axis("off")
            lines = [line[i : i + 56] for line in text.splitlines() for i in range(0, max(1, len(line)), 56)]
            right.text(0, 1, "\n".join(lines[:16]), va="top", family="monospace", size=8, parse_math=False)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and write a sample; returns the losses of the last epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer steps")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    context, width, layers, epochs, lr = (32, 32, 1, 4, 1e-2) if options.quick else (64, 128, 4, 15, 2e-3)

    pages = sorted([*DOCUMENTATION.glob("*.md"), *DOCUMENTATION.glob("decisions/*.md")])
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    tokens = np.array([numbers[character] for character in text], np.int32)
    (read,), (unread,) = data.hold_out(tokens, parts=20)

    bb.random.seed(0)
    model = GPT(len(characters), context, width, heads=4, layers=layers)
    print(f"{len(text):,} characters, {len(characters)} different ones; {model.num_parameters:,} parameters")
    run: train.Trainer[Any] = train.fit(
        model,
        loss,
        data.batches(data.windows(read, context + 1, stride=1), batch_size=16, seed=0),
        validation=data.batches(data.windows(unread, context + 1), batch_size=64),
        optimizer=optim.AdamW(optim.schedules.Warmup(50, optim.schedules.Cosine(lr, 100 * epochs))),
        epochs=epochs,
        steps_per_epoch=100,
        clip=1.0,
        progress=True,
    )
    written = write(model, [numbers[character] for character in "## "], 100 if options.quick else 700)
    sample = "".join(characters[token] for token in written)
    print(sample)
    if options.plot:
        draw(run.history, sample, options.plot)
    return run.history[-1]


if __name__ == "__main__":
    main()
