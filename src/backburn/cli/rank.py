"""The parent of one rank's program: it notes how the program ends, and ends in the same way.

If the program exits with status 0 in the middle of its communication, this ends with 1, so that mpiexec ends others.

``backburn launch`` runs it as a script, by ``mpiexec``: ``rank.py FOLDER VARIABLES PROGRAM ARGUMENTS...``, where one of
the VARIABLES has the rank. It imports only Python's standard library, and starts in milliseconds. Files that mpiexec
has opened stay open until the note is written, so that mpiexec does not see an end before.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time


def main(folder: str, variables: str, *program: str) -> None:
    """Run the program, note its exit status, or minus the number of the signal that killed it, and end with it."""
    rank = next((os.environ[name] for name in variables.split(",") if name in os.environ), "0")
    ours = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(ours)
        try:
            os.execvp(program[0], program)
        except OSError as error:
            os.write(2, f"backburn launch: {program[0]} cannot be started: {error.strerror}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # mpiexec sends them to the whole group, and so to the program
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    note = os.path.join(folder, f"ended-{rank}")
    try:
        with open(f"{note}.new", "w", encoding="utf-8") as file:
            json.dump((time.monotonic_ns(), status), file)
        os.rename(f"{note}.new", note)
    except OSError:  # the launcher has given up
        pass
    begun, ended = (os.path.exists(os.path.join(folder, f"{fact}-{rank}")) for fact in ("started", "finished"))
    if status == 0 and begun and not ended:
        status = 1  # mpiexec, which may take 0 for success, must end the others, which wait
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(ours, -status)
    os._exit(status if status >= 0 else 128 - status)


def _end_with(parent: int) -> None:
    """Let the system kill this process when ``parent`` is killed, if it can."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
