"""Runs every case of backburn and its peer alternately, each in a fresh process, and prints the ratios.

``python -m benchmarks [CASE ...] [--rounds N] [--json FILE]``. A ratio is backburn's time over the peer's, the median
of the rounds; the bar is the project's own target.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import checkpoint, layers, quantized

#: Case, peer, and the largest acceptable ratio of each figure.
BARS: list[tuple[str, str, dict[str, float]]] = [
    ("small", "torch", {"forward": 1.0, "backward": 0.7}),
    ("mlp", "torch", {"step": 1.3}),
    ("chain 100,000", "torch", {"per operation": 1.0}),
    ("chain 1,000,000", "torch", {"per operation": 1.0}),
    ("import", "numpy", {"process": 1.5}),
    *layers.BARS,
    *checkpoint.BARS,
    *quantized.BARS,
]


def measure(case: str, framework: str) -> dict[str, float]:
    """Run one case of one framework in its own process."""
    command = [sys.executable, "-m", "benchmarks.cases", case, framework]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stderr}")
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def versions() -> dict[str, str]:
    """The versions and the machine."""
    found = {"date": date.today().isoformat(), "python": platform.python_version(), "cores": str(os.cpu_count())}
    found["processor"] = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    for package in ("numpy", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def main() -> None:
    """Measure, print, and write the report if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="the cases to run (all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(" ".join(f"{k} {v}" for k, v in versions().items()))
    print(f"{'case':18} {'figure':26} {'backburn':>12} {'peer':>12} {'ratio':>7} {'range':>13} {'bar':>5}")
    report: list[dict[str, Any]] = []
    for case, peer, bars in BARS:
        if options.cases and case not in options.cases:
            continue
        rounds = [(measure(case, "backburn"), measure(case, peer)) for _ in range(options.rounds)]
        for figure in rounds[0][0]:
            ours, theirs = ([r[i][figure] for r in rounds] for i in (0, 1))
            ratios = sorted(a / b if b else float("nan") for a, b in zip(ours, theirs, strict=True))
            bar = bars.get(figure)
            scale, unit = (1, "") if figure.startswith(("KiB", "faults")) else (1e6, " us")
            print(
                f"{case:18} {figure:26} {statistics.median(ours) * scale:9.2f}{unit:3} "
                f"{statistics.median(theirs) * scale:9.2f}{unit:3} {statistics.median(ratios):6.2f}x "
                f"{ratios[0]:5.2f} - {ratios[-1]:4.2f} {'' if bar is None else f'{bar:4.1f}x'}"
            )
            report.append({"case": case, "figure": figure, "peer": peer, "backburn": ours, "theirs": theirs,
                           "ratio": statistics.median(ratios), "bar": bar})  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), "results": report}, indent=2) + "\n")


if __name__ == "__main__":
    main()
