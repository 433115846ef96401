"""The digits network in float32, int8 and int4: size, accuracy and speed, and an adapter for rotated digits.

Run with ``python examples/quantize_digits.py``; it takes about a minute on two cores. ``--plot digits.svg`` draws the
table (with matplotlib).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass

import numpy as np

import backburn as bb
from backburn.backend import load_backend
from backburn.data import batches, hold_out, load_digits
from backburn.data.distort import Distortion, distort
from backburn.io import save_model
from backburn.nn import Module
from backburn.nn.functional import cross_entropy
from backburn.optim import Adam
from backburn.quantization import MSE, MovingAverage, add_adapters, calibrate, gptq, quantize_model, sensitivity
from backburn.tensor.core.defaults import no_grad
from backburn.train.building import build
from backburn.train.config import read_config
from backburn.train.digits import Distorted

INT8 = "qint8_symmetric_channel0_float32"
INT4 = "qint4_symmetric_block32_float16"


@dataclass(frozen=True)
class Row:
    """A row of the table: bytes of the file and of all tensors in memory, accuracy, images per second."""

    name: str
    file: int
    memory: int
    accuracy: float
    speed: float


def accuracy(model: Module, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images that the model classifies correctly."""
    model.eval()
    with no_grad():
        logits = model(bb.asarray(images.reshape(len(images), -1)))
        return float((logits.argmax(axis=1) == bb.asarray(labels)).sum().item()) / len(labels)


def speed(model: Module, images: np.ndarray) -> float:
    """Images per second in one batch; the best of 20 runs."""
    x, seconds = bb.asarray(images.reshape(len(images), -1)), []
    with no_grad():
        for _ in range(20):
            start = time.perf_counter()
            model(x)
            seconds.append(time.perf_counter() - start)
    return len(images) / min(seconds)


def measured(name: str, model: Module, images: np.ndarray, labels: np.ndarray) -> Row:
    """The model's row of the table."""
    state = model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_model(path, state)
        file = os.path.getsize(path)
    memory = sum(x.nbytes for x in state.values())
    return Row(name, file, memory, accuracy(model, images, labels), speed(model, images))


def show(rows: list[Row]) -> None:
    """Print the table; shares are relative to the first row."""
    print(f"{'':34} {'file':>8} {'share':>6} {'memory':>8} {'share':>6} {'accuracy':>8} {'images/s':>9}")
    for r in rows:
        shares = r.file / rows[0].file, r.memory / rows[0].memory
        print(f"{r.name:34} {r.file:8} {shares[0]:6.1%} {r.memory:8} {shares[1]:6.1%} {r.accuracy:8.2%} {r.speed:9.0f}")


def draw(rows: list[Row], path: str) -> None:
    """Plot the table as three bar charts."""
    import matplotlib

    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
    names = [r.name for r in rows]
    for axis, title, values in zip(
        axes,
        ("kilobytes of the file", "accuracy, %", "thousand images per second"),
        ([r.file / 1000 for r in rows], [100 * r.accuracy for r in rows], [r.speed / 1000 for r in rows]),
        strict=True,
    ):
        axis.bar_label(axis.barh(names, values, color="#4c72b0"), fmt="%.1f", padding=3)
        axis.set(title=title, xlim=(0, 1.2 * max(values)))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def adapt(base: Module, train: Distorted, held_out_images: np.ndarray, labels: np.ndarray, epochs: int) -> None:
    """Train adapters of rank 8 on digits rotated by 90 degrees; the quantized network stays unchanged."""
    turned, held_out = (np.ascontiguousarray(np.rot90(x, axes=(1, 2))) for x in (train.images, held_out_images))
    adapted = add_adapters(base, rank=8)
    optimizer = Adam(3e-3)
    for epoch in range(1, epochs + 1):
        adapted.train()
        shaken = distort(turned, Distortion(rotation=10.0, shift=0.5), np.random.default_rng(epoch))
        for pixels, digits in batches(shaken, train.labels, batch_size=64, seed=0, epoch=epoch):
            logits = adapted(bb.asarray(pixels.reshape(len(pixels), -1)))
            optimizer.step(adapted, cross_entropy(logits, bb.asarray(digits)).backward())
    trained = sum(x.size for x in adapted.parameters() if x.is_require_grad)
    before, after = (accuracy(model, held_out, labels) for model in (base, adapted))
    print(f"\nRotated digits: {before:.2%} right; {after:.2%} with adapters of {trained} numbers on the int4 weights")


def main() -> None:
    """Train, quantize, compare, adapt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100, help="epochs of training; half as many for adapters")
    parser.add_argument("--plot", metavar="FILE", help="draw the table")
    options = parser.parse_args()

    path = os.path.join(os.path.dirname(__file__), "digits.toml")
    run = read_config(path).overridden([f"train.epochs={options.epochs}"])
    trainer = build(run, load_backend("autodiff(numpy)"), []).trainer.fit(options.epochs)
    train: Distorted = trainer.data
    _, (images, labels) = hold_out(*load_digits())
    model = trainer.model
    examples = [bb.asarray(x.reshape(len(x), -1)) for (x,) in batches(train.images, batch_size=256, seed=0)]

    found = calibrate(model, examples, MovingAverage())
    int4 = gptq(model, examples, INT4, weights=MSE())
    rows = [
        measured(name, m, images, labels)
        for name, m in (
            ("float32", model),
            ("int8 weights", quantize_model(model, INT8)),
            ("int8 weights and activations",
             quantize_model(model, INT8, activations="quint8_affine_tensor_float32", inputs=found)),
            ("int4 weights, blocks of 32", quantize_model(model, INT4)),
            ("int4 weights, blocks of 32, GPTQ", int4),
        )
    ]  # fmt: skip
    show(rows)
    print("\nWhat each layer costs in int4:")
    print(sensitivity(model, examples, INT4))
    if options.plot:
        draw(rows, options.plot)
    adapt(int4, train, images, labels, max(1, options.epochs // 2))


if __name__ == "__main__":
    main()
