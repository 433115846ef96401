"""``backburn launch``: several processes of one program, on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError, hint_for
from backburn.cli.ends import read_ends, words
from backburn.communicators.launching import LAUNCH_FOLDER
from backburn.communicators.ranks import VARIABLES
from backburn.communicators.wheels import find_mpiexec

#: The variables that set the number of threads of the NumPy backend and of libraries of linear algebra.
THREADS = ("BACKBURN_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Variables with which Open MPI 4 and 5 start more ranks than cores and bind no rank to a core, and with which they run
#: as root, as in a container; other MPIs ignore them.
OPEN_MPI = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
#: The script that runs each rank's program.
RANK = Path(__file__).with_name("rank.py")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def add_launch(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn launch``."""
    command = commands.add_parser(
        "launch",
        parents=[common],
        help="run a command in several processes of MPI on this machine",
        description="Run a command of backburn, or a program, in several processes that communicate by MPI: "
        "backburn launch -n 4 train run.toml, backburn launch -n 4 python program.py. The exit status is not 0 if one "
        "of them fails or ends silently. On a cluster, use its srun or mpiexec instead of 'backburn launch'.",
    )
    command.add_argument("-n", "--ranks", metavar="N", type=int, required=True, help="the number of processes")
    command.add_argument("--mpiexec", metavar="PATH", type=Path, help="the mpiexec to use, if not the one found")
    command.add_argument("program", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command and its arguments")
    command.set_defaults(run=launch, known=commands.choices)


def launch(options: argparse.Namespace) -> int:
    """Run the command on every rank, and return the exit status of the job."""
    if options.ranks < 1:
        raise ArgumentError(f"launch: -n is a number of processes, at least 1, not {options.ranks}")
    program = command_of(options.program, options.known)
    if program[1:4] == ["-P", "-m", "backburn"]:
        options.parsed(program[4:])  # ends here for a wrong command line, with a message that the ranks would repeat
    mpiexec = options.mpiexec or find_mpiexec()
    if mpiexec is None or shutil.which(mpiexec) is None:
        raise ArgumentError(
            f"launch: {'there is no mpiexec' if mpiexec is None else f'{mpiexec} is not a program'}. "
            f"pip install backburn[mpi-local], or name one: --mpiexec PATH"
        )
    environment = {**settings(options.ranks), **os.environ}
    with tempfile.TemporaryDirectory(prefix="backburn-launch-") as folder:
        environment[LAUNCH_FOLDER] = folder
        command = [str(mpiexec), "-n", str(options.ranks), *watched(program, folder)]
        with subprocess.Popen(command, env=environment) as process:
            status, was_stopped = _wait(process)
        ends = read_ends(Path(folder), options.ranks)
        said = [] if was_stopped and not ends.messages else words(ends, status)
        status = ends.status(status)
    if said:
        print(*said, sep="\n", file=sys.stderr)
    return status


def watched(program: list[str], folder: str) -> list[str]:
    """The command that mpiexec runs for each rank: the program, wrapped in a script that notes how it ends."""
    if not hasattr(os, "fork"):
        return program
    variables = ",".join(variable for variable, _ in VARIABLES)
    return [sys.executable, "-I", "-S", str(RANK), folder, variables, *program]


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """The exit status of mpiexec, and whether this process was asked to stop.

    mpiexec itself gets Ctrl-C, and SIGTERM is forwarded to it; it ends the ranks, and this process waits for it.
    """
    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        process.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                return process.wait(), stopped
            except KeyboardInterrupt:
                stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)


def command_of(program: Sequence[str], known: Collection[str]) -> list[str]:
    """The command of each rank: commands of backburn and ``python`` run on this interpreter.

    A command of backburn does not search the current folder for modules (``-P``), just as without ``launch``.

    >>> command_of(["train", "run.toml"], {"train"})[1:]
    ['-P', '-m', 'backburn', 'train', 'run.toml']
    >>> command_of(["--", "hostname"], {"train"})
    ['hostname']
    """
    words = list(program[1:] if program[:1] == ["--"] else program)
    if not words:
        raise ArgumentError("launch: name a command to run: backburn launch -n 2 train run.toml")
    if words[0] == "launch":
        raise ArgumentError("launch: a launched process launches no other: name another command")
    if words[0] in known:
        return [sys.executable, "-P", "-m", "backburn", *words]
    if words[0] in ("python", "python3"):
        return [sys.executable, *words[1:]]
    if shutil.which(words[0]) is None:
        is_file = os.sep in words[0] and os.path.exists(words[0])
        what = "cannot be executed" if is_file else "is neither a command of backburn nor a program"
        hint = f"For one in Python, write python {words[0]}. {hint_for(words[0], known)}"
        raise ArgumentError(f"launch: {words[0]} {what}. {hint}")
    return words


def settings(ranks: int) -> dict[str, str]:
    """The environment variables for so many ranks on this machine; those already set take precedence.

    >>> settings(10**6)["OMP_NUM_THREADS"]
    '1'
    """
    affinity, user = getattr(os, "sched_getaffinity", None), getattr(os, "geteuid", None)  # not on every system
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    found = {**dict.fromkeys(THREADS, str(max(1, cores // ranks))), **OPEN_MPI}
    return found | (AS_ROOT if user is not None and user() == 0 else {})
