"""A convolutional network that reads handwritten digits, as the mean of five seeds.

Run with ``python examples/digits_cnn/main.py``. The last fifth of the 1,797 images of 8 x 8 pixels is held out, and is
by other hands than most of the others. ``--validate`` trains without the last fifth of those that are left and measures
on it: every choice in this file was made by that number, before the held-out images were looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn.functional import cross_entropy

HERE = Path(__file__).parent
DISTORTION = data.Distortion(rotation=20.0, scale=0.2, shear=0.3, shift=1.0)


def network(width: int) -> nn.Sequential:
    """Three convolutions with batch norm, with a maximum after the second, and two linear layers."""

    def block(channels: int, filters: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]

    return nn.Sequential(
        *(*block(1, width), *block(width, width), nn.MaxPool2d(2)),
        *(*block(width, 2 * width), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(2 * width * 4, 128), nn.ReLU(), nn.Linear(128, data.CLASSES)),
    )


def loss(model: nn.Module, batch: tuple[bb.Tensor, bb.Tensor]) -> tuple[bb.FloatTensor, dict[str, bb.Tensor]]:
    """Smoothed cross-entropy, and the share of images that are classified correctly."""
    images, labels = batch
    logits = model(images)
    return cross_entropy(logits, labels, label_smoothing=0.1), {"accuracy": (logits.argmax(axis=1) == labels).mean()}


def trained(seen: Any, unseen: Any, seed: int, epochs: int, width: int) -> train.Trainer[Any]:
    """A run whose validation data are the ``unseen`` images and labels."""
    images, labels = seen

    def distorted(epoch: int) -> Iterable[Any]:
        random = np.random.default_rng([seed, epoch])
        shown = data.distort(images, DISTORTION, random)[:, None]
        return data.batches(shown, labels, batch_size=64, seed=seed, epoch=epoch)

    bb.random.seed(seed)
    return train.fit(
        network(width),
        loss,
        distorted,
        validation=data.batches(unseen[0][:, None], unseen[1], batch_size=len(unseen[1])),
        optimizer=optim.AdamW(optim.schedules.OneCycle(4e-3, epochs * -(-len(labels) // 64)), weight_decay=0.05),
        epochs=epochs,
    )


def folded(whole: Any, fold: int, folds: int = 5) -> tuple[Any, Any]:
    """Images and labels without one of the folds, each of which is by a few hands, and that fold."""
    parts = [np.array_split(x, folds) for x in whole]
    return tuple(np.concatenate(p[:fold] + p[fold + 1 :]) for p in parts), tuple(p[fold] for p in parts)


def draw(run: train.Trainer[Any], images: np.ndarray, labels: np.ndarray, path: str) -> None:
    """The errors over the epochs, and the held-out digits that are misread, for light and for dark pages."""
    from matplotlib import pyplot

    with bb.no_grad():
        read = np.asarray(run.model(bb.asarray(images[:, None])).argmax(axis=1))
    wrong = np.flatnonzero(read != labels)[:8]
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure = pyplot.figure()
            left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
            axis = left.subplots()
            for name, label in (("accuracy", "training, distorted"), ("validation/accuracy", "held out")):
                axis.plot([row["epoch"] for row in run.history], [1.0 - row[name] for row in run.history], label=label)
            axis.set(xlabel="epoch", ylabel="share misread", yscale="log")
            axis.legend(frameon=False)
            for cell, i in zip(right.subplots(2, 4).flat, (*wrong, *[-1] * 8), strict=False):
                cell.axis("off")
                if i >= 0:
                    cell.imshow(images[i])
                    cell.set_title(f"{labels[i]}, read {read[i]}", fontsize=9)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with each seed; returns the mean accuracy on images that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller network, one seed, few epochs")
    parser.add_argument("--validate", action="store_true", help="measure on a part of the training images")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.epochs, options.width = 1, 5, 8

    whole, held_out = data.hold_out(*data.load_digits())
    accuracies = []
    for seed in range(options.seeds):
        seen, unseen = folded(whole, seed) if options.validate else (whole, held_out)
        run = trained(seen, unseen, seed, options.epochs, options.width)
        accuracies.append(run.history[-1]["validation/accuracy"])
        print(f"seed {seed}: {accuracies[-1]:.2%} of {len(unseen[1])} images", flush=True)
    if len(accuracies) > 1:
        print(f"mean {mean(accuracies):.2%}, standard deviation {stdev(accuracies):.2%}")
    if options.plot:
        draw(run, *unseen, options.plot)
    return {"accuracy": mean(accuracies)}


if __name__ == "__main__":
    main()
