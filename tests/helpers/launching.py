"""Programs on several ranks with a time limit, so that one that hangs fails."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="programs of several ranks need mpi4py")
from backburn.cli.launch import settings
from backburn.communicators.wheels import find_mpiexec

MPIEXEC = find_mpiexec()
#: Seconds that a job of two ranks may take; generous, for machines under load.
LIMIT = 60.0
if MPIEXEC is None:
    pytest.skip("programs of several ranks need mpiexec", allow_module_level=True)


def run_ranks(ranks: int, program: str, limit: float = LIMIT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on ``ranks`` ranks; fail the test after ``limit`` seconds."""
    code = textwrap.dedent(program)
    return run([str(MPIEXEC), "-n", str(ranks), sys.executable, "-c", code], limit, **environment)


def run(command: Sequence[str | Path], limit: float = LIMIT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process group, which is killed at the limit."""
    variables = {**settings(2), **os.environ, **environment}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            pytest.fail(f"still running after {limit} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)
