"""A physics-informed network for Burgers' equation, ``u_t + u u_x = v u_xx``, whose solution steepens to a front.

Run with ``python examples/pinn/main.py``. The problem of Raissi, Perdikaris and Karniadakis (2019), with four times
their viscosity, which takes a minute instead of an hour: the network gets the equation and no solution. Derivatives
with respect to position (first and second) and time use forward mode, and the gradient of the residual uses reverse
mode around it. Adam approaches the solution, and L-BFGS converges to it.
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


def u(model: nn.Module, x: bb.FloatTensor, t: bb.FloatTensor) -> bb.FloatTensor:
    """The solution at points (n,). ``u = -sin(pi x)`` at time 0 and ``u = 0`` at the ends hold for any model."""
    return -bb.sin(bb.pi * x) + t * (1.0 - x * x) * model(bb.stack([x, t], axis=-1))[:, 0]


def residual(model: nn.Module, x: bb.FloatTensor, t: bb.FloatTensor, viscosity: float) -> bb.FloatTensor:
    """The residual of the equation at points (n,)."""
    one = bb.ones_like(x)

    def value_and_u_x(x: bb.FloatTensor) -> tuple[bb.FloatTensor, bb.FloatTensor]:
        return bb.jvp(lambda x: u(model, x, t), (x,), (one,))

    (value, u_x), (_, u_xx) = bb.jvp(value_and_u_x, (x,), (one,))
    _, u_t = bb.jvp(lambda t: u(model, x, t), (t,), (one,))
    return u_t + value * u_x - viscosity * u_xx


def exact(x: np.ndarray, t: np.ndarray, viscosity: float) -> np.ndarray:
    """The solution by the Cole-Hopf transform, with integrals by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite.hermgauss(100)
    y = x[..., None] - np.sqrt(4.0 * viscosity * t)[..., None] * nodes
    kernel = weights * np.exp(-np.cos(np.pi * y) / (2.0 * np.pi * viscosity))
    return -(np.sin(np.pi * y) * kernel).sum(-1) / kernel.sum(-1)


def draw(x: np.ndarray, t: np.ndarray, found: np.ndarray, right: np.ndarray, path: str) -> None:
    """Plot the solution over position and time, and beside the exact one at three times, for light and dark pages."""
    from matplotlib import pyplot

    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, *axes) = pyplot.subplots(1, 4, width_ratios=(5, 3, 3, 3))
            image = left.imshow(found, aspect="auto", origin="lower", extent=(-1, 1, 0, 1), cmap="coolwarm")
            figure.colorbar(image, ax=left, label="u")
            left.set(xlabel="x", ylabel="t")
            for axis, when in zip(axes, (0.25, 0.5, 0.75), strict=True):
                row = np.abs(t[:, 0] - when).argmin()
                axis.plot(x[row], right[row], linewidth=4, alpha=0.4, color="gray", label="exact")
                axis.plot(x[row], found[row], label="network")
                axis.set(title=f"t = {when}", xlabel="x", ylim=(-1.15, 1.15))
            axes[-1].legend(frameon=False, fontsize=9, loc="lower left", handlelength=1)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Solve the equation; returns the relative error of the solution, in the 2-norm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoother solution, fewer points and steps")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    points, width, adam, lbfgs = (300, 16, 200, 50) if options.quick else (3000, 32, 1500, 1000)
    viscosity = (0.1 if options.quick else 0.04) / np.pi

    bb.random.seed(0)
    layers: list[nn.Module] = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1))
    x, t = bb.random.uniform((points,), low=-1.0, high=1.0), bb.random.uniform((points,))

    def loss(model: nn.Module) -> bb.FloatTensor:
        return (residual(model, x, t, viscosity) ** 2.0).mean()

    optimizer = optim.Adam(optim.schedules.Cosine(5e-3, adam, eta_min=5e-4))
    for step in range(adam):
        value = loss(model)
        optimizer.step(model, value.backward())
        if step % 100 == 0:
            print(f"Adam {step:5}  loss {value.item():.2e}", flush=True)
    newton = optim.LBFGS(history_size=50)
    for step in range(0, lbfgs, 50):
        found: Any = newton.step(model, loss, steps=50)
        print(f"L-BFGS {step:5}  loss {found:.2e}", flush=True)

    grid_t, grid_x = np.meshgrid(np.linspace(0.0, 1.0, 101), np.linspace(-1.0, 1.0, 257), indexing="ij")
    with bb.no_grad():
        flat = u(model, bb.asarray(grid_x.ravel(), dtype="float32"), bb.asarray(grid_t.ravel(), dtype="float32"))
    solution, right = np.asarray(flat).reshape(grid_x.shape), exact(grid_x, grid_t, viscosity)
    error = float(np.linalg.norm(solution - right) / np.linalg.norm(right))
    print(f"relative error {error:.2e}")
    if options.plot:
        draw(grid_x, grid_t, solution, right, options.plot)
    return {"error": error}


if __name__ == "__main__":
    main()
