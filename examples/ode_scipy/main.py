"""Fit the parameters of an ordinary differential equation by SciPy's least squares, with derivatives through a solver.

Run with ``python examples/ode_scipy/main.py``. Lotka and Volterra's predator-prey equations are fitted to the pelts of
hares and lynxes that the Hudson's Bay Company counted from 1900 to 1920, in thousands (as tabulated by Howard,
*Modeling basics*, 2009). The Jacobian of the solution with respect to the four rates and both populations of 1900 comes
from tangents through all steps of the Runge-Kutta method; SciPy minimizes, and its own solver checks the solution.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import backburn as bb

HERE = Path(__file__).parent
YEARS = np.arange(1900, 1921)
HARES = (30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6,
         16.2, 24.7)  # fmt: skip
LYNXES = (4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6)
PELTS = np.log(np.array([HARES, LYNXES]).T)
NAMES = ("growth of hares", "hares eaten by a lynx", "death of lynxes", "growth of lynxes by a hare")


def slope(logs: bb.FloatTensor, rates: bb.FloatTensor) -> bb.FloatTensor:
    """The time derivatives of the logarithms of both populations, (2,), for four rates, (4,)."""
    hares, lynxes = bb.exp(logs)
    growth, eaten, death, born = rates
    return bb.stack([growth - eaten * lynxes, born * hares - death])


def solution(unknowns: bb.FloatTensor, steps: int) -> bb.FloatTensor:
    """The logarithms of both populations in each year, (21, 2), by ``steps`` classical Runge-Kutta steps per year.

    ``unknowns`` are the logarithms of the four rates and of both populations in the first year.
    """
    rates, logs, h = bb.exp(unknowns[:4]), unknowns[4:], 1.0 / steps
    years = [logs]
    for _ in YEARS[1:]:
        for _ in range(steps):
            k1 = slope(logs, rates)
            k2 = slope(logs + 0.5 * h * k1, rates)
            k3 = slope(logs + 0.5 * h * k2, rates)
            k4 = slope(logs + h * k3, rates)
            logs = logs + (h / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        years.append(logs)
    return bb.stack(years)


def draw(best: np.ndarray, path: str) -> None:
    """Plot the counts, and the populations of the fitted equation, for light and dark pages."""
    from matplotlib import pyplot

    times = np.linspace(1900, 1920, 401)
    populations = by_scipy(best, times - 1900)
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, (left, right) = pyplot.subplots(1, 2, width_ratios=(5, 3))
            for i, name in enumerate(("hares", "lynxes")):
                (line,) = left.plot(times, populations[:, i], label=name)
                left.plot(YEARS, np.exp(PELTS[:, i]), "o", color=line.get_color(), markersize=4)
            left.set(xlabel="year", ylabel="thousand pelts", xticks=YEARS[::5])
            left.legend(frameon=False)
            right.plot(*populations.T)
            right.plot(*np.exp(PELTS.T), "o", markersize=4)
            right.set(xlabel="hares", ylabel="lynxes")
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def by_scipy(unknowns: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Both populations at times in years since 1900, (n, 2), by SciPy's solver of eighth order."""
    rates = bb.asarray(np.exp(unknowns[:4]))
    found = solve_ivp(
        lambda _, logs: slope(bb.asarray(logs), rates), (0, times[-1]), unknowns[4:], "DOP853", times, rtol=1e-10
    )
    return np.exp(found.y.T)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Fit the equation; returns the rates, the residual, and the largest difference from SciPy's solution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps per year")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    steps = 4 if options.quick else 20

    def jacobian(unknowns: np.ndarray) -> np.ndarray:
        return np.asarray(bb.jacobian(solution, mode="forward")(bb.asarray(unknowns), steps)).reshape(-1, 6)

    def residuals(unknowns: np.ndarray) -> np.ndarray:
        return (np.asarray(solution(bb.asarray(unknowns), steps)) - PELTS).ravel()

    start = np.log([0.5, 0.02, 0.5, 0.02, HARES[0], LYNXES[0]])
    fit = least_squares(residuals, start, jac=jacobian)
    deviation = np.sqrt(2.0 * fit.cost / (PELTS.size - fit.x.size))
    errors = deviation * np.sqrt(np.diag(np.linalg.inv(fit.jac.T @ fit.jac)))
    for name, value, error in zip(NAMES, np.exp(fit.x), errors, strict=False):
        print(f"{name:27} {value:.4f} a year, within a factor of {np.exp(2.0 * error):.2f}")
    away = np.abs(np.log(by_scipy(fit.x, np.arange(21.0))) - np.asarray(solution(bb.asarray(fit.x), steps))).max()
    print(
        f"{fit.nfev} solutions, {fit.njev} Jacobians; {deviation:.1%} from the counts, {away:.1e} from SciPy's solution"
    )
    if options.plot:
        draw(fit.x, options.plot)
    return {
        **dict(zip(NAMES, np.exp(fit.x).tolist(), strict=False)),
        "deviation": float(deviation),
        "away": float(away),
    }


if __name__ == "__main__":
    main()
