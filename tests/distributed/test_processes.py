"""Training on several processes: exact results, checkpoints, and failing processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import mesh_fit
from tests.helpers.launching import MPIEXEC, run, run_ranks

from backburn.base.errors import ArgumentError
from backburn.communicators import Local
from backburn.distributed import Mesh, mesh
from backburn.io import load_model, load_state
from backburn.train import read_rows

pytestmark = pytest.mark.slow

PROGRAM = Path(mesh_fit.__file__)
NAMES = ("replicated", "sharded", "state")


def launch(ranks: int, folder: Path, epochs: int, how: str, what: str, *names: str) -> Any:
    """Run the program on ``ranks`` processes."""
    path = os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, str(PROGRAM), str(folder), str(epochs), how, what]
    return run([*command, *names], 90, PYTHONPATH=path)


def digests(out: str) -> dict[str, str]:
    return {line.split()[0]: line.split()[1] for line in out.splitlines() if line.split()[0] in NAMES}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests after three epochs in one process, by plan."""
    folder = tmp_path_factory.mktemp("alone")
    return {name: mesh_fit.fit(folder / name, 3, False, "nothing", mesh_fit.PLANS[name]) for name in NAMES}


def test_a_run_resumed_with_fewer_processes_is_bitwise_equal(expected: dict[str, str], tmp_path: Path) -> None:
    first = launch(4, tmp_path, 2, "new", "nothing", *NAMES)
    assert first.returncode == 0, first.stderr
    second = launch(2, tmp_path, 3, "resume", "nothing", *NAMES)
    assert second.returncode == 0, second.stderr
    assert digests(second.stdout) == expected
    lines = [line for line in first.stderr.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2 * len(NAMES)  # only from the first process
    for name in NAMES:
        folder = tmp_path / name
        assert [row["epoch"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2, 3]
        saved = load_model(folder / "model.safetensors").state
        assert saved["0.weight"].shape == (16, 12)  # whole tensors
        other = load_model(tmp_path / "sharded" / "model.safetensors").state["4.weight"]
        np.testing.assert_allclose(saved["4.weight"], other, rtol=1e-4, atol=1e-6)  # other placements round differently


def test_a_killed_process_ends_the_run_and_keeps_its_last_checkpoint(expected: dict[str, str], tmp_path: Path) -> None:
    found = launch(2, tmp_path, 3, "new", "killed", "sharded")
    assert found.returncode != 0
    assert load_state(sorted((tmp_path / "sharded" / "checkpoints").iterdir())[-1])["epoch"] == 1
    assert mesh_fit.fit(tmp_path / "sharded", 3, True, "nothing", mesh_fit.PLANS["sharded"]) == expected["sharded"]


def test_a_full_disk_is_an_error_of_all_processes(tmp_path: Path) -> None:
    found = launch(2, tmp_path, 3, "new", "full", "sharded")
    assert found.returncode != 0
    assert "there is no space left on its disk; the last good checkpoint is" in found.stderr
    last = sorted((tmp_path / "sharded" / "checkpoints").glob("step-*.safetensors"))[-1]
    assert load_state(last)["steps"] == 4


def test_a_signal_to_one_process_ends_all_after_the_same_step(expected: dict[str, str], tmp_path: Path) -> None:
    found = launch(2, tmp_path, 3, "new", "terminated", "sharded")
    assert found.returncode != 0
    assert "Terminated" in found.stderr
    last = sorted((tmp_path / "sharded" / "checkpoints").glob("step-*.safetensors"))[-1]
    assert load_state(last)["steps"] == 6
    assert mesh_fit.fit(tmp_path / "sharded", 3, True, "nothing", mesh_fit.PLANS["sharded"]) == expected["sharded"]


def test_commands_that_cannot_train_together_are_errors(tmp_path: Path) -> None:
    (tmp_path / "alone.toml").write_text("[train]\nepochs = 1\n")
    text = f'[distributed]\nmesh = {{ dp = 4 }}\n[output]\nfolder = "{tmp_path.as_posix()}/run"\n'
    (tmp_path / "mesh.toml").write_text(text)
    train = [sys.executable, "-m", "backburn", "train"]
    found = run([str(MPIEXEC), "-n", "2", *train, str(tmp_path / "alone.toml")], 60)
    assert found.returncode != 0
    # Only one message is certain: the process that ends first may end the other.
    assert "alone.toml: 2 processes were started, and the file has no table [distributed]" in found.stderr
    words = [*train, str(tmp_path / "mesh.toml")]
    found = run([str(MPIEXEC), "-n", "1", *words, "train.seed=1", ":", "-n", "1", *words, "train.seed=2"], 60)
    assert found.returncode != 0
    assert "the configuration of rank 1 is not that of rank 0: train.seed is 2, and 1 on rank 0" in found.stderr


# ---- without processes ----


class Of(Local):
    """A communicator of ``size`` simulated processes."""

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(("axes", "processes"), [({"dp": 4}, 3), ({"dp": 2, "tp": 2}, 8), ({"dp": 3}, 2)])
def test_processes_that_cannot_hold_a_mesh_are_refused(axes: dict[str, int], processes: int) -> None:
    words = f"mesh: {processes} processes cannot share the [34] shards of dp="
    with pytest.raises(ArgumentError, match=words):
        Mesh(axes, {}, Of(processes))


def test_invalid_meshes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="mesh: takes its axes"):
        mesh()
    with pytest.raises(ArgumentError, match="mesh: dp is an integer"):
        mesh(dp=0)
    with pytest.raises(ArgumentError, match="has shards already"):
        mesh(dp=2).backend("autodiff(sharded(numpy, dp=2))")


def test_ranks_with_different_threads_are_named() -> None:
    found = run_ranks(
        2,
        """
        import backburn as bb
        from backburn.distributed import mesh

        made = mesh(dp=2)
        bb.set_num_threads(1 + made.rank)
        made.backend()
        """,
    )
    assert found.returncode != 0
    assert re.search(r"the ranks differ in threads: rank 0: '1.*'; rank 1: '2.*'", found.stderr), found.stderr


def test_a_mesh_sets_the_threads_of_its_processes() -> None:
    found = run_ranks(
        2,
        """
        from backburn.distributed import mesh

        made = mesh(dp=2, threads=3)
        made.print(made, "|", made.backend().libraries["threads"].split(",")[0])
        mesh(dp=2, threads=1 + made.rank)
        """,
    )
    assert "threads=3) on 2 processes, this is rank 0 | 3" in found.stdout
    assert "threads is 2, and 1 on rank 0" in found.stderr


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_invalid_threads_are_refused(threads: Any) -> None:
    with pytest.raises(ArgumentError, match="threads"):
        mesh(dp=2, threads=threads)
