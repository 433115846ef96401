"""A variational autoencoder of digits with a two-dimensional latent space, trained without labels.

Run with ``python examples/vae/main.py``. After Kingma and Welling, "Auto-Encoding Variational Bayes" (2014): the loss
is the negative evidence lower bound per image: reconstruction plus divergence from the prior. Labels only colour the
picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

import backburn as bb
from backburn import data, nn, optim, train
from backburn.nn.functional import binary_cross_entropy_with_logits

HERE = Path(__file__).parent
PIXELS, LATENT = 64, 2


class VAE(nn.Module):
    """An encoder to the mean and the log variance of a Gaussian in the latent space, and a decoder back to pixels."""

    def __init__(self, width: int) -> None:
        self.encoder = nn.Sequential(nn.Linear(PIXELS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.mean, self.log_variance = nn.Linear(width, LATENT), nn.Linear(width, LATENT)
        self.decoder = nn.Sequential(
            *(nn.Linear(LATENT, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()), nn.Linear(width, PIXELS)
        )

    def encode(self, images: bb.Tensor) -> tuple[bb.FloatTensor, bb.FloatTensor]:
        """Mean and log variance (batch, LATENT) of the posterior of images (batch, PIXELS)."""
        hidden = self.encoder(images)
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, latents: bb.Tensor) -> bb.FloatTensor:
        """Images (n, PIXELS) at latents (n, LATENT)."""
        return bb.sigmoid(self.decoder(latents))


def loss(model: VAE, batch: tuple[bb.FloatTensor]) -> tuple[bb.FloatTensor, dict[str, bb.FloatTensor]]:
    """The negative evidence lower bound of images in nats, with one sample by the reparametrization trick."""
    (images,) = batch
    mean, log_variance = model.encode(images)
    latents = mean + bb.exp(0.5 * log_variance) * bb.random.normal(mean.shape)
    logits = model.decoder(latents)
    reconstruction = binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
    divergence = 0.5 * (mean**2.0 + bb.exp(log_variance) - 1.0 - log_variance).sum() / len(images)
    return reconstruction + divergence, {"reconstruction": reconstruction, "divergence": divergence}


def draw(model: VAE, images: np.ndarray, labels: np.ndarray, path: str, side: int = 14) -> None:
    """Plot the digits in the latent space, and images decoded at quantiles of the prior, for light and dark pages."""
    from matplotlib import pyplot

    quantiles = [NormalDist().inv_cdf((i + 0.5) / side) for i in range(side)]
    grid = [[x, y] for y in reversed(quantiles) for x in quantiles]
    with bb.no_grad():
        means = np.asarray(model.encode(bb.asarray(images))[0])
        drawn = np.asarray(model.decode(bb.asarray(grid))).reshape(side, side, 8, 8)
    sheet = drawn.transpose(0, 2, 1, 3).reshape(8 * side, 8 * side)
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.9))
            points = left.scatter(*means.T, c=labels, s=6, cmap="tab10", vmin=-0.5, vmax=9.5, rasterized=True)
            figure.colorbar(points, ax=left, ticks=range(10), label="digit")
            left.set(xlabel="first latent", ylabel="second latent", title="digits in the latent space")
            right.imshow(sheet)
            right.set(title="drawn at quantiles of the prior")
            right.axis("off")
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and plot; returns the losses of the last epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer epochs")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    width, epochs = (64, 30) if options.quick else (256, 300)

    images, labels = data.load_digits()
    images = images.reshape(len(images), PIXELS)
    (seen, _), (unseen, _) = data.hold_out(images, labels)
    bb.random.seed(0)
    batches = data.batches(seen, batch_size=64, seed=0)
    run: train.Trainer[Any] = train.fit(
        VAE(width),
        loss,
        batches,
        validation=data.batches(unseen, batch_size=len(unseen)),
        optimizer=optim.Adam(optim.schedules.Cosine(2e-3, epochs * len(batches))),
        epochs=epochs,
    )
    last = run.history[-1]
    print(
        f"nats per held-out image: {last['validation/loss']:.2f}, of which {last['validation/reconstruction']:.2f} "
        f"reconstruction and {last['validation/divergence']:.2f} divergence"
    )
    if options.plot:
        draw(run.model, images, labels, options.plot)
    return last


if __name__ == "__main__":
    main()
