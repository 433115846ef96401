"""``backburn launch``: several processes of one program, on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.communicators.watchdog import LAUNCH_FOLDER
from backburn.communicators.wheels import find_mpiexec

#: The variables by which the NumPy backend and libraries of linear algebra are told their number of threads.
THREADS = ("BACKBURN_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: What Open MPI 4 and 5 need to start more ranks than there are cores and to bind no rank to a core, and what they need
#: to run as root, as in a container; other MPIs do not know these variables.
OPEN_MPI = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def add_launch(commands: Any, common: argparse.ArgumentParser) -> None:
    """Enter ``backburn launch``."""
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
    """Run the command on every rank, and return an exit status that tells of each."""
    if options.ranks < 1:
        raise ArgumentError(f"launch: -n is a number of processes, at least 1, not {options.ranks}")
    program = command_of(options.program, options.known)
    mpiexec = options.mpiexec or find_mpiexec()
    if mpiexec is None or shutil.which(mpiexec) is None:
        raise ArgumentError(
            f"launch: {'there is no mpiexec' if mpiexec is None else f'{mpiexec} is no program'}. "
            f"pip install backburn[mpi-local], or name one: --mpiexec PATH"
        )
    environment = {**settings(options.ranks), **os.environ}
    with tempfile.TemporaryDirectory(prefix="backburn-launch-") as folder:
        environment[LAUNCH_FOLDER] = folder
        with subprocess.Popen([str(mpiexec), "-n", str(options.ranks), *program], env=environment) as process:
            status = _wait(process)
        silent = unfinished(Path(folder), options.ranks)
        messages = last_messages(Path(folder))
    if messages:
        print("backburn launch: the last messages, the earliest first:", *messages, sep="\n", file=sys.stderr)
    if status == 0 and silent:
        print(
            f"backburn: rank {', '.join(map(str, silent))} of {options.ranks} ended before the program did, though "
            f"mpiexec reports success: one of them has left by os._exit or the like, and took the others along",
            file=sys.stderr,
        )
        return 1
    return status if status >= 0 else 128 - status


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status; mpiexec itself gets the signal of Ctrl-C, passes it on, and is waited for."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def command_of(program: Sequence[str], known: Container[str]) -> list[str]:
    """The command of each rank: a command of backburn and ``python`` are those of this interpreter.

    A command of backburn does not look for modules in the current folder (``-P``), as it does not without ``launch``.

    >>> command_of(["train", "run.toml"], {"train"})[1:]
    ['-P', '-m', 'backburn', 'train', 'run.toml']
    >>> command_of(["--", "hostname"], {"train"})
    ['hostname']
    """
    words = list(program[1:] if program[:1] == ["--"] else program)
    if not words:
        raise ArgumentError("launch: what is to be run is missing: backburn launch -n 2 train run.toml")
    if words[0] == "launch":
        raise ArgumentError("launch: a launched process launches no other: name another command")
    if words[0] in known:
        return [sys.executable, "-P", "-m", "backburn", *words]
    return [sys.executable, *words[1:]] if words[0] in ("python", "python3") else words


def settings(ranks: int) -> dict[str, str]:
    """The variables for so many ranks on this machine, which those that are set take precedence over.

    >>> settings(10**6)["OMP_NUM_THREADS"]
    '1'
    """
    affinity, user = getattr(os, "sched_getaffinity", None), getattr(os, "geteuid", None)  # not on every system
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    found = {**dict.fromkeys(THREADS, str(max(1, cores // ranks))), **OPEN_MPI}
    return found | (AS_ROOT if user is not None and user() == 0 else {})


def unfinished(folder: Path, ranks: int) -> list[int]:
    """The ranks that have not said that their program came to its end; none if no rank has begun to communicate."""
    begun = any(folder.glob("started-*"))
    return [rank for rank in range(ranks) if begun and not (folder / f"finished-{rank}").exists()]


def last_messages(folder: Path) -> list[str]:
    """The messages with which ranks ended the job, the earliest first, of which mpiexec may have passed on a part."""
    files = sorted(folder.glob("message-*"), key=lambda file: file.stat().st_mtime_ns)
    return [file.read_text("utf-8").rstrip() for file in files]
