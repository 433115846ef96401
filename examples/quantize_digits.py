"""The digits network in float32, int8 and int4: its size and accuracy, and an adapter for rotated digits.

Run with ``python examples/quantize_digits.py``; it takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import numpy as np

import backburn as bb
from backburn.backend import load_backend
from backburn.data import batches
from backburn.data.distort import Distortion, distort
from backburn.io import save_model
from backburn.nn import Module, add_adapters, quantize_model
from backburn.nn.functional import cross_entropy
from backburn.optim import Adam
from backburn.tensor.defaults import no_grad
from backburn.train.config import Config
from backburn.train.trainer import Trainer

SCHEMES = {
    "int8, one step for each output": "qint8_symmetric_channel0_float32",
    "int4, blocks of 32": "qint4_affine_block32_float16",
}


def accuracy(model: Module, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images whose digit the model tells."""
    model.eval()
    with no_grad():
        logits = model(bb.asarray(images.reshape(len(images), -1)))
        return float((logits.argmax(axis=1) == bb.asarray(labels)).sum().item()) / len(labels)


def size(model: Module) -> int:
    """The bytes of the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_model(path, model.state_dict())
        return os.path.getsize(path)


def main() -> None:
    """Train, quantize, compare, adapt."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=20, help="of training, and of adapting")
    epochs = arguments.parse_args().epochs

    trainer = Trainer(Config(), load_backend("autodiff(numpy)"))
    for _ in range(epochs):
        trainer.run_epoch()
    images, labels = trainer.held_out
    full = size(trainer.model)
    print(f"{'':32} {'bytes':>8} {'share':>7} {'accuracy':>9}")
    print(f"{'float32':32} {full:8} {1:7.1%} {accuracy(trainer.model, images, labels):9.2%}")
    for name, scheme in SCHEMES.items():
        quantized = quantize_model(trainer.model, scheme)
        bytes_, right = size(quantized), accuracy(quantized, images, labels)
        print(f"{name:32} {bytes_:8} {bytes_ / full:7.1%} {right:9.2%}")

    # The int4 network stays as it is; only adapters of rank 8 learn to read digits that lie on their side.
    turned, held_out = (np.ascontiguousarray(np.rot90(x, axes=(1, 2))) for x in (trainer.images, images))
    base = quantize_model(trainer.model, SCHEMES["int4, blocks of 32"])
    adapted = add_adapters(base, rank=8)
    optimizer = Adam(3e-3)
    for epoch in range(1, epochs + 1):
        adapted.train()
        shaken = distort(turned, Distortion(rotation=10.0, shift=0.5), np.random.default_rng(epoch))
        for pixels, digits in batches(shaken, trainer.labels, batch_size=64, seed=0, epoch=epoch):
            logits = adapted(bb.asarray(pixels.reshape(len(pixels), -1)))
            optimizer.step(adapted, cross_entropy(logits, bb.asarray(digits)).backward())
    trained = sum(x.size for x in adapted.parameters() if x.is_require_grad)
    before, after = (accuracy(model, held_out, labels) for model in (base, adapted))
    print(f"\nRotated digits: {before:.2%} right; {after:.2%} with adapters of {trained} numbers on the int4 weights")


if __name__ == "__main__":
    main()
