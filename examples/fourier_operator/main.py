"""A Fourier neural operator that learns to map any initial wave to its solution of Burgers' equation.

Run with ``python examples/fourier_operator/main.py``. The network of Li et al., "Fourier neural operator for parametric
partial differential equations" (2021), in one dimension: each layer multiplies the lowest Fourier modes by complex
weights, adds a linear map of each point, and does not depend on the grid. It is trained on 64 points, and evaluated on
256 as well. Solutions of ``u_t + u u_x = v u_xx`` on a ring come from a spectral method.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import nn, optim

HERE = Path(__file__).parent
FINE, COARSE, VISCOSITY, TIME = 256, 64, 0.02, 1.0


def waves(count: int, seed: int) -> np.ndarray:
    """Random sums of the eight lowest waves on the fine grid, scaled to the maximum magnitude 1."""
    generator, x = np.random.default_rng(seed), 2.0 * np.pi * np.arange(FINE) / FINE
    numbers = np.arange(1, 9)
    sizes, phases = generator.normal(size=(count, 8)) / numbers, generator.uniform(0.0, 2.0 * np.pi, (count, 8))
    found = (sizes[..., None] * np.sin(numbers[:, None] * x + phases[..., None])).sum(axis=1)
    return found / np.abs(found).max(axis=1, keepdims=True)


def solve(u: np.ndarray, steps: int = 400) -> np.ndarray:
    """The waves at time 1, by a spectral method with exact diffusion and Heun's method."""
    numbers = np.arange(FINE // 2 + 1)
    decay, used, step = np.exp(-VISCOSITY * numbers**2 * TIME / steps), numbers < FINE // 3, TIME / steps

    def slope(modes: np.ndarray) -> np.ndarray:
        return -0.5j * numbers * used * np.fft.rfft(np.fft.irfft(modes) ** 2)

    modes = np.fft.rfft(u)
    for _ in range(steps):
        first = slope(modes)
        modes = decay * (modes + 0.5 * step * first) + 0.5 * step * slope(decay * (modes + step * first))
    return np.fft.irfft(modes)


class SpectralConv1d(nn.Module):
    """A convolution over the whole ring: complex weights times the lowest ``modes`` of (examples, n, channels)."""

    weight: Any

    def __init__(self, channels: int, modes: int) -> None:
        self.modes = modes
        self.weight = nn.parameter(nn.init.normal((modes, channels, channels), std=1.0 / channels, dtype="complex64"))

    def forward(self, x: bb.Tensor) -> Any:
        """Values of the shape of ``x``, on any grid."""
        low = bb.fft.rfft(x, axis=1)[:, : self.modes]
        return bb.fft.irfft(bb.einsum("bkc,kcd->bkd", low, self.weight), n=x.shape[1], axis=1)


class Operator(nn.Module):
    """Maps waves (examples, n) to waves (examples, n), by layers of width ``channels``."""

    def __init__(self, channels: int, modes: int, layers: int = 3) -> None:
        self.lift = nn.Linear(1, channels)
        self.over = [SpectralConv1d(channels, modes) for _ in range(layers)]
        self.each = [nn.Linear(channels, channels) for _ in range(layers)]
        self.drop = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, 1))

    def forward(self, u: bb.Tensor) -> Any:
        """The waves at time 1."""
        x: Any = self.lift(u[:, :, None])
        for over, each in zip(self.over, self.each, strict=True):
            x = bb.gelu(over(x) + each(x))
        return self.drop(x)[:, :, 0]


def error(found: np.ndarray, right: np.ndarray) -> float:
    """The mean of the relative errors of waves, in the 2-norm."""
    return float((np.linalg.norm(found - right, axis=1) / np.linalg.norm(right, axis=1)).mean())


def draw(u: np.ndarray, right: np.ndarray, found: np.ndarray, history: list[float], path: str) -> None:
    """Plot the error over the steps, and three waves before and after, for light and dark pages."""
    from matplotlib import pyplot

    x = np.arange(FINE) / FINE
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, *axes) = pyplot.subplots(1, 4)
            left.semilogy(history)
            left.set(xlabel="step", ylabel="relative error in training")
            for i, axis in enumerate(axes):
                axis.plot(x, u[i], linestyle=":", color="gray", label="begin")
                axis.plot(x, right[i], linewidth=4, alpha=0.4, color="gray", label="end")
                axis.plot(x, found[i], label="network")
                axis.set(xlabel="x", ylim=(-1.15, 1.15))
            axes[0].legend(frameon=False, fontsize=9, handlelength=1, loc="upper left")
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train the operator; returns the relative errors on new waves, on the coarse and the fine grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer waves and steps")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    count, channels, steps, batch = (128, 12, 150, 16) if options.quick else (512, 20, 1000, 32)

    each = FINE // COARSE
    begin, end = waves(count, 0), solve(waves(count, 0))
    bb.random.seed(0)
    model, optimizer = Operator(channels, modes=16), optim.Adam(optim.schedules.Cosine(5e-3, steps, eta_min=1e-4))
    inputs, targets = (bb.asarray(a[:, ::each], dtype="float32") for a in (begin, end))

    def step(state: Any, u: bb.Tensor, right: bb.Tensor) -> Any:
        model, optimizer = state
        distance = bb.vector_norm(model(u) - right, axis=1) / bb.vector_norm(right, axis=1)
        loss = distance.mean()
        optimizer.step(model, loss.backward())
        return state, loss

    run, state, history = bb.capture(step), (model, optimizer), []
    order = np.random.default_rng(0)
    for number in range(steps):
        chosen = bb.asarray(order.choice(count, batch, replace=False))
        state, loss = run(state, inputs[chosen], targets[chosen])
        history.append(loss.item())
        if number % 100 == 0 or number == steps - 1:
            print(f"step {number:5}  relative error {history[-1]:.4f}", flush=True)

    fresh = waves(32, 1)
    right = solve(fresh)
    with bb.no_grad():
        coarse = state[0](bb.asarray(fresh[:, ::each], dtype="float32")).numpy()
        fine = state[0](bb.asarray(fresh, dtype="float32")).numpy()
    found = {"coarse": error(coarse, right[:, ::each]), "fine": error(fine, right)}
    print(f"relative error of new waves {found['coarse']:.4f} on {COARSE} points, {found['fine']:.4f} on {FINE}")
    if options.plot:
        draw(fresh, right, fine, history, options.plot)
    return found


if __name__ == "__main__":
    main()
