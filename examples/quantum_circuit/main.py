"""A variational quantum circuit of ten qubits that finds the ground states of an Ising ring in a transverse field.

Run with ``python examples/quantum_circuit/main.py``. The energy of the ring is ``-sum(Z[i] Z[i + 1]) - h sum(X[i])``:
it is low if neighbours align, or if spins follow the field ``h``. The circuit alternates between rotations by both
terms (Hadfield et al. (2019)); with half as many layers as spins it reaches every ground state (Ho and Hsieh (2019)).
Its state is 1,024 complex amplitudes, the parameters are the angles, and the loss is the energy, a real number.
Circuits for all fields, from several starts each, are trained together by ``vmap``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import backburn as bb
from backburn import optim

HERE = Path(__file__).parent
QUBITS, LAYERS = 10, 5
#: The spins, 1 or -1, in each of the 1,024 basis states, which are the entries of a matrix of 32 rows.
SPINS = 1.0 - 2.0 * (np.arange(2**QUBITS).reshape(32, 32, 1) >> np.arange(QUBITS) & 1)
ALIKE = bb.asarray((SPINS * np.roll(SPINS, 1, axis=-1)).sum(axis=-1), dtype="float32")
TOTAL = bb.asarray(SPINS.sum(axis=-1), dtype="float32")
#: The Hadamard gate on five qubits: applied on both sides of the matrix, it maps all ten from Z to X, and back.
_GATE = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2.0)
TURN = bb.asarray(np.kron(_GATE, np.kron(_GATE, np.kron(_GATE, np.kron(_GATE, _GATE)))), dtype="float32")


def state(angles: bb.Tensor) -> bb.Tensor:
    """The amplitudes (32, 32) after layers with the angles (layers, 2), starting with all spins along the field."""
    psi: bb.Tensor = bb.full((32, 32), 1.0 / 32.0, dtype="complex64")
    for layer in range(LAYERS):
        psi = psi * bb.exp(1j * angles[layer, 0] * ALIKE)
        psi = TURN @ psi @ TURN * bb.exp(1j * angles[layer, 1] * TOTAL)
        psi = TURN @ psi @ TURN
    return psi


def energy(angles: bb.Tensor, field: bb.Tensor) -> tuple[bb.Tensor, bb.Tensor]:
    """The energy per spin, and the magnetization along the field."""
    psi = state(angles)
    alike = bb.sum(ALIKE * bb.abs(psi) ** 2)
    along = bb.sum(TOTAL * bb.abs(TURN @ psi @ TURN) ** 2)
    return -(alike + field * along) / QUBITS, along / QUBITS


def exact(field: np.ndarray) -> np.ndarray:
    """The lowest energy per spin, by free fermions (Lieb, Schultz and Mattis (1961); Pfeuty (1970))."""
    momenta = np.pi * (2 * np.arange(QUBITS) + 1) / QUBITS
    return -np.sqrt(1.0 + field[:, None] ** 2 - 2.0 * field[:, None] * np.cos(momenta)).mean(axis=1)


def draw(fields: np.ndarray, history: np.ndarray, along: np.ndarray, path: str) -> None:
    """Plot the energy's error over the steps, and energy and magnetization over the field, for light and dark pages."""
    from matplotlib import pyplot

    fine = np.linspace(fields[0], fields[-1], 201)
    slope = -np.gradient(exact(fine), fine)  # the magnetization is the derivative of the energy
    errors = np.maximum(history - exact(fields), 1e-7)
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, middle, right) = pyplot.subplots(1, 3)
            for index in (0, len(fields) // 2, -1):
                left.semilogy(errors[:, index], label=f"h = {fields[index]:g}")
            left.set(xlabel="step", ylabel="error of the energy per spin")
            left.legend(frameon=False, fontsize=9)
            for axis, points, line, label in (
                (middle, history[-1], exact(fine), "energy per spin"),
                (right, along, slope, "magnetization along the field"),
            ):
                axis.plot(fine, line, linewidth=4, alpha=0.4, color="gray", label="exact")
                axis.plot(fields, points, "o", markersize=4, label="circuit")
                axis.set(xlabel="field h", ylabel=label)
            right.legend(frameon=False, fontsize=9)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train the circuits; returns the largest errors of the energy and the magnetization."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three fields, and fewer steps")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    count, starts, steps = (3, 4, 100) if options.quick else (9, 6, 400)

    fields = np.linspace(0.0, 2.0, count)
    bb.random.seed(0)
    model = {"angles": bb.random.uniform((starts * count, LAYERS, 2), high=0.8).require_grad()}
    optimizer, h = (
        optim.Adam(optim.schedules.Cosine(0.05, steps, eta_min=1e-3)),
        bb.asarray(np.tile(fields, starts), dtype="float32"),
    )

    def step(trained: Any) -> Any:
        model, optimizer = trained
        energies, along = bb.vmap(energy)(model["angles"], h)
        optimizer.step(model, bb.sum(energies).backward())
        return trained, (energies, along)

    run, trained, history = bb.capture(step), (model, optimizer), []
    for number in range(steps):
        trained, found = run(trained)
        history.append([x.numpy().reshape(starts, count) for x in found])
        if number % 100 == 0 or number == steps - 1:
            error = (history[-1][0].min(axis=0) - exact(fields)).max()
            print(f"step {number:4}  largest error of an energy {error:.1e}", flush=True)
    energies, along = np.moveaxis(np.array(history), 1, 0)
    best, each = energies[-1].argmin(axis=0), np.arange(count)
    chosen, magnetizations = energies[:, best, each], along[-1, best, each]
    if options.plot:
        draw(fields, chosen, magnetizations, options.plot)
    slopes = (exact(fields - 1e-4) - exact(fields + 1e-4)) / 2e-4
    return {
        "energy": float(np.abs(chosen[-1] - exact(fields)).max()),
        "magnetization": float(np.abs(magnetizations - slopes).max()),
    }


if __name__ == "__main__":
    main()
