"""Train one network on several backends: NumPy, PyTorch, JAX and any other installed one give the same curve.

Run with ``python examples/any_backend/main.py --backend numpy torch jax``. The backends over PyTorch and JAX are
examples, too: ``pip install examples/backends/backburn_torch examples/backends/backburn_jax``. A seed gives the same
initial values, order of examples and dropout on each, and ``autodiff`` around each backend computes the gradients: only
rounding differs.
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


def loss(model: nn.Module, batch: tuple[bb.Tensor, bb.Tensor]) -> tuple[bb.FloatTensor, dict[str, bb.Tensor]]:
    """Cross-entropy, and the fraction of images that are classified correctly."""
    images, labels = batch
    logits = model(images)
    return cross_entropy(logits, labels), {"accuracy": (logits.argmax(axis=1) == labels).mean()}


def trained(backend: str, epochs: int) -> train.Trainer[nn.Sequential]:
    """Train the digits network on a backend; the code is the same for all."""
    images, labels = data.load_digits()
    seen, unseen = data.hold_out(images.reshape(len(images), -1), labels)
    with bb.use_backend(f"autodiff({backend})"):
        bb.random.seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, data.CLASSES))
        return train.fit(
            model,
            loss,
            data.batches(*seen, batch_size=128, seed=0, drop_last=True),
            validation=data.batches(*unseen, batch_size=len(unseen[1])),
            optimizer=optim.Adam(3e-3),
            epochs=epochs,
        )


def draw(curves: dict[str, np.ndarray], path: str) -> None:
    """Plot the losses on each backend, and their differences from the first one's, for light and dark pages."""
    from matplotlib import pyplot

    first = next(iter(curves.values()))
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2)
            for i, (name, losses) in enumerate(curves.items()):
                epochs = np.arange(1, len(losses) + 1)
                left.plot(epochs, losses, linewidth=6 - 2 * i, label=name)
                right.plot(epochs, np.abs(losses - first) / first, label=name)
            left.set(xlabel="epoch", ylabel="training loss")
            left.legend(frameon=False)
            right.set(xlabel="epoch", title="relative difference", ylim=(0, None))
            right.ticklabel_format(axis="y", scilimits=(0, 0))
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on each backend; returns the accuracies, and the largest difference of a loss from the first backend's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", nargs="+", default=["numpy"], help="names from `backburn backends`")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)

    curves: dict[str, Any] = {}
    found: dict[str, float] = {}
    for backend in options.backend:
        run = trained(backend, 4 if options.quick else 40)
        last = run.history[-1]
        curves[backend] = np.array([row["loss"] for row in run.history])
        found[backend] = last["validation/accuracy"]
        away = np.abs(curves[backend] / curves[options.backend[0]] - 1.0).max()
        found["away"] = max(float(away), found.get("away", 0.0))
        print(
            f"{backend:10} loss {last['loss']:.6f}, {found[backend]:.2%} of the held-out digits; "
            f"{away:.1e} from {options.backend[0]}; {last['seconds']:.2f} s an epoch",
            flush=True,
        )
    if options.plot:
        draw(curves, options.plot)
    return found


if __name__ == "__main__":
    main()
