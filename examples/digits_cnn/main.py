"""A convolutional network that classifies handwritten digits: the mean accuracy of five seeds.

Run with ``python examples/digits_cnn/main.py``. The last fifth of the 1,797 images of 8 x 8 pixels is held out.
``--validate`` evaluates on each fifth of the other images in turn: layers, distortions and epochs were chosen by the
second and third of those accuracies, the lowest, not by the held-out images.
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
#: Distortions of the images in each training epoch, and of the copies that are classified.
TRAINING = data.Distortion(rotation=14.0, scale=0.14, shear=0.21, shift=0.7)
READING = data.Distortion(rotation=10.0, scale=0.1, shear=0.1, shift=0.5)


def network(width: int) -> nn.Sequential:
    """Two pairs of convolutions with batch norm, each pair followed by a maximum over 2 x 2, and a linear layer."""

    def pair(channels: int, filters: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for inputs in (channels, filters):
            layers += [nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
        return [*layers, nn.MaxPool2d(2)]

    return nn.Sequential(
        *(*pair(1, width), nn.Dropout(0.15), *pair(width, 2 * width)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(2 * width * 4, data.CLASSES)),
    )


def loss(model: nn.Module, batch: tuple[bb.Tensor, bb.Tensor]) -> tuple[bb.FloatTensor, dict[str, bb.Tensor]]:
    """Smoothed cross-entropy, and the fraction of images that are classified correctly."""
    images, labels = batch
    logits = model(images)
    return cross_entropy(logits, labels, label_smoothing=0.1), {"accuracy": (logits.argmax(axis=1) == labels).mean()}


def trained(seen: Any, unseen: Any, seed: int, epochs: int, width: int) -> train.Trainer[Any]:
    """A run trained on ``seen`` images and labels, and validated on ``unseen`` ones."""
    images, labels = seen

    def distorted(epoch: int) -> Iterable[Any]:
        random = np.random.default_rng([seed, epoch])
        shown = data.distort(images, TRAINING, random)[:, None]
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


def read(model: nn.Module, images: np.ndarray, copies: int = 16) -> np.ndarray:
    """Classify images (n, 8, 8), each by the mean probabilities of slightly distorted copies."""
    random = np.random.default_rng(0)
    shown = (data.distort(images, READING, random)[:, None] for _ in range(copies))
    mean_of_copies = sum(bb.softmax(train.predict(model, [x]), axis=1) for x in shown) / copies
    return np.asarray(mean_of_copies.argmax(axis=1))


def folded(whole: Any, fold: int, folds: int = 5) -> tuple[Any, Any]:
    """Images and labels without one fold of consecutive images, and that fold."""
    parts = [np.array_split(x, folds) for x in whole]
    return tuple(np.concatenate(p[:fold] + p[fold + 1 :]) for p in parts), tuple(p[fold] for p in parts)


def draw(run: train.Trainer[Any], images: np.ndarray, labels: np.ndarray, path: str) -> None:
    """Plot the errors over the epochs, and the misclassified held-out digits, for light and dark pages."""
    from matplotlib import pyplot

    digits = read(run.model, images)
    wrong = np.flatnonzero(digits != labels)[:8]
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
                    cell.set_title(f"{labels[i]}, read {digits[i]}", fontsize=9)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with each seed; returns the mean accuracy on images that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller network, one seed, few epochs")
    parser.add_argument("--validate", action="store_true", help="evaluate on parts of the training images")
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
        accuracies.append(float((read(run.model, unseen[0]) == unseen[1]).mean()))
        once = run.history[-1]["validation/accuracy"]
        print(f"seed {seed}: {accuracies[-1]:.2%} of {len(unseen[1])} images, {once:.2%} if read once", flush=True)
    if len(accuracies) > 1:
        print(f"mean {mean(accuracies):.2%}, standard deviation {stdev(accuracies):.2%}")
    if options.plot:
        draw(run, *unseen, options.plot)
    return {"accuracy": mean(accuracies)}


if __name__ == "__main__":
    main()
