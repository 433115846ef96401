"""``backburn launch``: the command of each rank, its threads, and its exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.launching import LIMIT, MPIEXEC, run

from backburn.base.errors import ArgumentError
from backburn.cli import main
from backburn.cli.ends import read_ends, words
from backburn.cli.launch import RANK, command_of, settings

pytestmark = pytest.mark.slow

BACKBURN = [sys.executable, "-m", "backburn", "launch"]


def test_commands_of_backburn_and_programs() -> None:
    known = {"train", "launch", "info"}
    assert command_of(["train", "run.toml", "--epochs", "3"], known)[1:] == [
        *("-P", "-m", "backburn", "train", "run.toml", "--epochs", "3")
    ]
    assert command_of(["python", "program.py", "-n"], known) == [sys.executable, "program.py", "-n"]
    assert command_of(["--", sys.executable, "train"], known) == [sys.executable, "train"]
    with pytest.raises(ArgumentError, match="name a command to run"):
        command_of([], known)
    with pytest.raises(ArgumentError, match="a launched process launches no other"):
        command_of(["launch", "-n", "2", "info"], known)


def test_every_rank_runs_the_command() -> None:
    done = run([*BACKBURN, "-n", "2", "info", "sqrt"], LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sqrt(x: F, /) -> F") == 2


def test_cores_are_shared_by_the_ranks() -> None:
    # A single write: the ranks' output is unbuffered and could interleave.
    program = "import os, sys; sys.stdout.write('{OPENBLAS_NUM_THREADS}/{OMP_NUM_THREADS};'.format(**os.environ))"
    variables = {"OPENBLAS_NUM_THREADS": "5", "OMP_NUM_THREADS": "7"}  # variables already set are kept
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
        (["-n", "2"], "name a command to run"),
        (["-n", "2", "--mpiexec", "/no/mpiexec", "info"], "/no/mpiexec is not a program"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_mpiexec_can_be_named() -> None:
    done = run([*BACKBURN, "-n", "1", "--mpiexec", str(MPIEXEC), "python", "-c", "print('here')"], LIMIT)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (["nosuchprogram"], "launch: nosuchprogram is neither a command of backburn nor a program"),
        (["trian", "run.toml"], "write python trian. Did you mean 'train'?"),
        ([__file__], f"launch: {__file__} cannot be executed. For one in Python, write python {__file__}"),
    ],
)
def test_an_unknown_program_is_an_error(program: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-n", "2", *program]) == 2
    assert message in capsys.readouterr().err


def test_wrong_options_are_reported_before_the_ranks_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["launch", "-n", "2", "train", "run.toml", "--nosuch"])
    assert capsys.readouterr().err.count("unrecognized arguments: --nosuch") == 1


def test_a_program_that_cannot_run_is_named_with_its_rank(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = run([*BACKBURN, "-n", "2", str(program)], LIMIT)
    assert done.returncode != 0
    assert f"{program} cannot be started: No such file or directory" in done.stderr
    assert "ended with status 127" in done.stderr


@pytest.mark.parametrize(("facts", "status"), [((), 0), (("started",), 1), (("started", "finished"), 0)])
def test_a_program_that_ends_without_finishing_reports_failure_to_mpiexec(
    facts: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    for fact in facts:
        (tmp_path / f"{fact}-3").touch()
    done = run([sys.executable, str(RANK), str(tmp_path), "NO_RANK,A_RANK", sys.executable, "-c", ""], A_RANK="3")
    assert done.returncode == status
    assert json.loads((tmp_path / "ended-3").read_text())[1] == 0


def test_a_rank_s_program_has_its_arguments() -> None:
    done = run([*BACKBURN, "-n", "1", "python", "-c", "import sys; print(sys.argv[1:])", "-x", "a b"], LIMIT)
    assert (done.returncode, done.stdout) == (0, "['-x', 'a b']\n"), done.stderr


def test_a_rank_s_program_has_the_standard_input(tmp_path: Path) -> None:
    if "Open MPI" in run([str(MPIEXEC), "--version"], LIMIT).stdout:
        pytest.skip("mpiexec of Open MPI 5 does not forward the end of standard input")
    command = [*BACKBURN, "-n", "1", "python", "-c", "import sys; print(sys.stdin.read())"]
    (tmp_path / "input").write_text("given")
    with (tmp_path / "input").open() as given:
        done = subprocess.run(command, stdin=given, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (0, "given\n"), done.stderr


@pytest.mark.parametrize(
    ("left", "of_mpiexec", "status", "said"),
    [
        ({}, 0, 0, []),
        ({"ended-0": (1, 0), "ended-1": (2, 0)}, 0, 0, []),  # a program that does not communicate
        ({f"{n}-{r}": (1, 0) for n in ("started", "finished", "ended") for r in (0, 1)}, 0, 0, []),
        (
            {"started-0": (), "started-1": (), "finished-1": (), "ended-0": (5, 0), "ended-1": (6, 0)},
            0,
            1,
            ["rank 0 .*"],
        ),
        ({"ended-0": (7, -15), "ended-1": (5, -9)}, 9, 9, ["rank 1 of 2 was killed by SIGKILL.*"]),
        ({"ended-0": (4, 1), "ended-1": (5, -9)}, 1, 1, ["rank 1 of 2 was killed by SIGKILL.*"]),
        (
            {"message-0": (4, "no"), "ended-1": (5, -9)},
            1,
            1,
            ["rank 1 of 2 was killed by SIGKILL.*", "rank 0 of 2: no"],
        ),
        ({"ended-1": (5, 3)}, 0, 3, ["rank 1 of 2 ended with status 3"]),
        ({"ended-1": (5, -99)}, 0, 1, ["rank 1 of 2 was killed by signal 99"]),
        ({"message-1": (5, "no"), "ended-1": (6, 1), "ended-0": (7, 1)}, 1, 1, ["rank 1 of 2: no"]),
        ({"message-1": (5, "no"), "message-0": (6, "no")}, 0, 1, ["rank 0, 1 of 2: no"]),
        ({"message-1": (5, "no", "trace\n"), "message-0": (4, "yes")}, 0, 1, ["rank 0 .*yes", "trace\n.*rank 1 .*no"]),
        (
            {"message-0": (9, "waits"), "ended-1": (6, 0), "started-1": ()},
            1,
            1,
            ["rank 1 .*os._exit", "rank 0 .*waits"],
        ),
        ({"ended-0": (9, 0)}, 255, 255, ["mpiexec ended with status 255, and rank 1 of 2 left no trace"]),
    ],
)
def test_messages_and_status_for_the_ends_of_ranks(
    left: dict[str, Any], of_mpiexec: int, status: int, said: list[str], tmp_path: Path
) -> None:
    for name, content in left.items():
        (tmp_path / name).write_text(json.dumps(content))
    ends = read_ends(tmp_path, 2)
    assert ends.status(of_mpiexec) == status
    found = words(ends, of_mpiexec)
    assert len(found) == len(said)
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text, re.DOTALL), text
