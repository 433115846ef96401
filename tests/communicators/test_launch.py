"""``backburn launch``: the command of each rank, its threads, and its exit status."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.helpers.launching import LIMIT, MPIEXEC, run

from backburn.base.errors import ArgumentError
from backburn.cli import main
from backburn.cli.launch import command_of, settings, unfinished

BACKBURN = [sys.executable, "-m", "backburn", "launch"]


def test_commands_of_backburn_and_programs() -> None:
    known = {"train", "launch", "info"}
    assert command_of(["train", "run.toml", "--epochs", "3"], known)[1:] == [
        *("-P", "-m", "backburn", "train", "run.toml", "--epochs", "3")
    ]
    assert command_of(["python", "program.py", "-n"], known) == [sys.executable, "program.py", "-n"]
    assert command_of(["--", "./program", "train"], known) == ["./program", "train"]
    with pytest.raises(ArgumentError, match="what is to be run is missing"):
        command_of([], known)
    with pytest.raises(ArgumentError, match="a launched process launches no other"):
        command_of(["launch", "-n", "2", "info"], known)


def test_every_rank_runs_the_command() -> None:
    done = run([*BACKBURN, "-n", "2", "info", "sqrt"], LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sqrt(x: F, /) -> F") == 2


def test_cores_are_shared_by_the_ranks() -> None:
    # One call writes it all: the ranks' output is unbuffered, and parts of it may alternate.
    program = "import os, sys; sys.stdout.write('{OPENBLAS_NUM_THREADS}/{OMP_NUM_THREADS};'.format(**os.environ))"
    variables = {"OPENBLAS_NUM_THREADS": "5", "OMP_NUM_THREADS": "7"}  # those that are set stay
    done = run([*BACKBURN, "-n", "2", "python", "-c", program], LIMIT, **variables)
    assert done.stdout.count("5/7") == 2, done.stderr
    cores = len(os.sched_getaffinity(0))
    assert settings(1)["OMP_NUM_THREADS"] == str(cores)
    assert settings(cores * 2)["OMP_NUM_THREADS"] == "1"


def test_the_status_is_that_of_a_rank_that_fails() -> None:
    program = "import os, sys; sys.exit(3 * int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))))"
    assert run([*BACKBURN, "-n", "2", "python", "-c", program], LIMIT).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "info"], "-n is a number of processes, at least 1, not 0"),
        (["-n", "2"], "what is to be run is missing"),
        (["-n", "2", "--mpiexec", "/no/mpiexec", "info"], "/no/mpiexec is no program"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_mpiexec_can_be_named() -> None:
    done = run([*BACKBURN, "-n", "1", "--mpiexec", str(MPIEXEC), "python", "-c", "print('here')"], LIMIT)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr


def test_ranks_that_did_not_finish(tmp_path: Path) -> None:
    assert unfinished(tmp_path, 3) == []
    for name in ("started-0", "started-1", "finished-1"):
        (tmp_path / name).touch()
    assert unfinished(tmp_path, 3) == [0, 2]
