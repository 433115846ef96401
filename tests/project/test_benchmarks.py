"""The benchmarks run, and compare the results of both frameworks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_functions_are_compared_and_timed(torch: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.functions", "--side", "8", "--seconds", "0.001"]
    run = subprocess.run([*command, "--json", str(tmp_path / "ratios.json")], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    ratios = json.loads((tmp_path / "ratios.json").read_text("utf-8"))
    assert len(ratios) > 120
    assert set(ratios["huber_loss"]) == {"call", "with gradients"}
    assert set(ratios["floor"]) == {"call"}
    assert "geometric mean" in run.stdout


def test_models_are_compared_and_timed(torch: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.models", "--seconds", "0.001", "Q-learning", "G*"]
    run = subprocess.run([*command, "--json", str(tmp_path / "ratios.json")], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    ratios = json.loads((tmp_path / "ratios.json").read_text("utf-8"))
    assert ratios.keys() == {"Q-learning", "GPT", "GRU"}
    assert all(figures.keys() == {"loss", "step"} for figures in ratios.values())


def test_passes_are_compared_and_timed(torch: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.passes", "residual*", "--seconds", "0.001", "--sides", "captured"]
    run = subprocess.run(
        [*command, "torch", "--json", str(tmp_path / "times.json")], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    times = json.loads((tmp_path / "times.json").read_text("utf-8"))
    assert times["residual and layer norm"].keys() == {"captured", "torch"}
    assert "of torch" in run.stdout


def test_sums_over_processes_are_compared_and_timed(torch: Any, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    command = [sys.executable, "-m", "benchmarks.distributed", "--seconds", "0.001", "--largest", "10000"]
    run = subprocess.run([*command, "--json", str(tmp_path / "times.json")], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    times = json.loads((tmp_path / "times.json").read_text("utf-8"))
    assert times.keys() == {"4", "1024", "8192"}
    assert all(figures.keys() == {"backburn", "mpi4py", "gloo"} for figures in times.values())


@pytest.mark.slow
def test_scaling_over_processes_is_compared_and_timed(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    command = [sys.executable, "-m", "benchmarks.scaling", "--hidden", "8", "--rows", "4", "--rounds", "1"]
    command += ["--seconds", "0.001", "--json", str(tmp_path / "times.json")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    times = json.loads((tmp_path / "times.json").read_text("utf-8"))
    assert {"backburn, 1", "backburn, 2"} <= times.keys()
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in times.values())


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "pattern", "count"), [("torch", "*", 9), ("jax", "*by vector", 1)])
def test_transforms_are_compared_and_timed(peer: str, pattern: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip(peer)
    command = [sys.executable, "-m", "benchmarks.transforms", pattern, "--peer", peer, "--seconds", "0.001"]
    run = subprocess.run([*command, "--json", str(tmp_path / "ratios.json")], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    ratios = json.loads((tmp_path / "ratios.json").read_text("utf-8"))
    assert len(ratios) == count
    assert all(figures.keys() == {"64", "256"} for figures in ratios.values())
