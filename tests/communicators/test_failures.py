"""A job in which one rank fails ends within a time limit, with a nonzero status and a message that names the rank.

Jobs are started with ``backburn launch``, and with ``mpiexec`` where that differs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.launching import LIMIT, run, run_ranks

from backburn.base.errors import CommunicationError
from backburn.communicators.agreement import check_agreement

pytestmark = pytest.mark.slow

LAUNCH = [sys.executable, "-m", "backburn", "launch"]

#: Ranks 0 and 1 meet in a sum, unless rank 1 does something else first; the timeout is 2 seconds.
START = """
import ctypes, os, signal, sys, time
import numpy as np
from backburn.communicators import load_communicator

comm = load_communicator("mpi", timeout=2)
total = np.ones(3, np.float32)
comm.all_reduce(total)

def does_not_come():
    time.sleep(1000)

if comm.rank == 1:
    {act}
comm.all_reduce(total)
print("after")
"""


def launched(program: str, limit: float = LIMIT, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a program with ``backburn launch``."""
    return run([*LAUNCH, "-n", str(ranks), "python", "-c", textwrap.dedent(program)], limit)


#: What rank 1 does, and the job's message.
FAILURES = {
    "raises": ("raise ValueError('no')", r"ValueError: no\n.*rank 1 of 2: ended by ValueError"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 of 2 was killed by SIGKILL, as the system does"),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", r"rank 1 of 2 was killed by SIGTERM"),
    "crashes": ("ctypes.string_at(0)", r"rank 1 of 2 was killed by SIGSEGV\n.*line 14 in <module>"),
    "leaves with 3": ("os._exit(3)", r"rank 1 of 2 left with status 3 before its program had come to its end"),
    "sleeps": ("does_not_come()", r"rank 0 of 2: all_reduce .*longer than .* 2 s, and rank 1 .* in does_not_come"),
    "computes for ever": ("while True: sum(range(99))", r"and rank 1 waits for nobody at <string>:14 in <module>"),
    "is stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", r"rank 1 does not answer"),
    "exits with 0": ("sys.exit(0)", r"all_reduce .* waits at <string>:15 in <module> for rank 1, whose program has"),
    "exits with 3": ("sys.exit(3)", r"for rank 1, whose program has ended"),
    "leaves without a word": ("os._exit(0)", r"rank 1 of 2 left with status 0 before its program had come to its end"),
    "is interrupted": ("raise KeyboardInterrupt", r"rank 1 of 2: ended by KeyboardInterrupt"),
    "waits elsewhere": (
        "comm.gather_objects(1); comm.barrier()",
        r"and rank 1 waits in .* of ranks 0, 1\) at <string>",
    ),
    "says so": ("comm.abort('the disk is full')", r"rank 1 of 2: the disk is full"),
    "ends late": ("comm.all_reduce(total); does_not_come()", r"rank 0 of 2: has ended, and ranks 1 have not for 2 s"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_rank_that_fails_ends_the_job(name: str) -> None:
    act, message = FAILURES[name]
    done = launched(START.format(act=act))
    assert done.returncode != 0, done.stdout
    assert done.stdout.count("after") <= 1
    assert re.search(message, done.stderr, re.DOTALL), done.stderr
    assert len(re.findall(r"^backburn.*: rank", done.stderr, re.MULTILINE)) <= 2  # two if ranks wait at two lines
    assert done.stderr.count("Traceback") <= 1


#: What rank 1 does while all ranks replay a recorded step on shards, and the job's message.
RECORDED = {
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 of 4 was killed by SIGKILL"),
    "leaves with 3": ("os._exit(3)", r"rank 1 of 4 left with status 3 before its program had come to its end"),
    "exits": (
        "sys.exit(3)",
        r"rank [0-9, ]+ of 4: all_gather .* waits at <string>:1\d in .* for rank 1, whose program",
    ),
    "takes another branch": (
        "(x.T @ x).numpy()",
        r"rank [0-9, ]+ of 4( left with status|: all_gather .* longer than its timeout|: ended by CommunicationError)",
    ),
}


@pytest.mark.parametrize("act", RECORDED)
def test_a_rank_that_fails_between_replays_ends_the_job(act: str) -> None:
    action, message = RECORDED[act]
    program = f"""
import os, signal, sys
import numpy as np
import backburn as bb
from backburn.distributed import mesh, place

made = mesh(dp=4, timeout=4)
with bb.use_backend(made.backend("autodiff(capture(numpy))")):
    x = place(bb.asarray(np.ones((600, 40), np.float32)), {{"dp": 0}})
    step = bb.capture(lambda x: bb.exp(x).sum(axis=0), state=False)
    for i in range(9):
        if made.rank == 1 and i == 5:
            {action}
        step(x).numpy()
"""
    done = launched(program, ranks=4)
    assert done.returncode != 0
    assert re.search(message, done.stderr, re.DOTALL), done.stderr


def test_an_error_of_all_ranks_is_printed_once() -> None:
    done = launched(
        "from backburn.communicators import load_communicator as l; l('mpi', timeout=3); raise ValueError(7)"
    )
    assert done.returncode == 1
    assert done.stderr.count("ValueError: 7") == 1
    assert re.search(r"backburn: rank (0, )?1? ?of 2: ended by ValueError", done.stderr)
    done = run([*LAUNCH, "-n", "3", "train", "no such file.toml"], LIMIT)
    assert done.returncode != 0
    assert done.stderr.count("no such file.toml") == 1
    assert "of 3: " in done.stderr


def test_mpiexec_without_launch_ends_as_well() -> None:
    done = run_ranks(2, START.format(act="raise ValueError('no')"))
    assert done.returncode != 0
    assert "rank 1 of 2: ended by ValueError" in done.stderr


def test_an_interrupt_of_the_launcher_ends_all_ranks(tmp_path: Path) -> None:
    program = f"""
        import pathlib, time
        from backburn.communicators import load_communicator

        comm = load_communicator("mpi")
        pathlib.Path({str(tmp_path)!r}, str(comm.rank)).touch()
        time.sleep(1000)
    """
    command = [*LAUNCH, "-n", "2", "python", "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            last = time.monotonic() + LIMIT
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < last:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=LIMIT) != 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_rank_that_never_starts_times_out() -> None:
    program = """
        import sys
        from backburn.communicators import launched, load_communicator
        if launched() == (1, 2):
            sys.exit(0)
        load_communicator("mpi", timeout=2)
    """
    done = launched(program)
    assert done.returncode != 0
    assert re.search("_wait_until_all_ranks_have_started|did not call .init.", done.stderr), done.stderr


def test_the_order_check_names_both_lines() -> None:
    program = """
        import numpy as np
        from backburn.communicators import load_communicator

        comm = load_communicator("mpi", check=True)
        comm.barrier()
        if comm.rank == 0:
            comm.all_reduce(np.ones((2, 3), np.float32))
        else:
            comm.broadcast(np.ones(2), 0)
    """
    done = launched(program)
    assert done.returncode != 0
    expected = (
        "is not the same on all ranks: rank 0: all_reduce of float32[2, 3] at <string>:8 in <module>; "
        "rank 1: broadcast of float64[2] at <string>:10 in <module>"
    )
    assert expected in done.stderr


@pytest.mark.parametrize("other", ["np.ones((3, 2), np.float32)", "np.ones((2, 3))"])
def test_the_order_check_compares_shapes_and_dtypes(other: str) -> None:
    program = f"""
        import numpy as np
        from backburn.communicators import load_communicator
        from backburn.errors import CommunicationError

        comm = load_communicator("mpi", check=True)
        buffer = np.ones((2, 3), np.float32) if comm.rank == 0 else {other}
        try:
            comm.all_reduce(buffer)
        except CommunicationError as error:
            assert "rank 0: all_reduce of float32[2, 3]" in str(error) and "rank 1: all_reduce of" in str(error)
        try:
            comm.barrier()
        except CommunicationError as error:
            assert "a CommunicationError interrupted all_reduce before, so the ranks are out of step" in str(error)
            print("refused")
    """
    done = launched(program)
    assert (done.returncode, done.stdout.count("refused")) == (0, 2), done.stderr


def test_a_forked_process_is_not_a_rank() -> None:
    program = """
        import os
        from backburn.communicators import load_communicator
        from backburn.errors import CommunicationError

        comm = load_communicator("mpi")
        child = os.fork()
        if child == 0:
            try:
                comm.barrier()
            except CommunicationError as error:
                assert "this process was forked from a rank" in str(error)
                raise SystemExit(7) from None
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        comm.barrier()
        print("good")
    """
    done = launched(program)
    assert (done.returncode, done.stdout.count("good")) == (0, 2), done.stderr


def test_ranks_with_other_code_are_named() -> None:
    program = """
        import backburn.communicators.agreement as agreement
        from backburn.communicators import launched, load_communicator

        if launched() == (1, 2):
            agreement.code_digest = lambda: "other"
        load_communicator("mpi")
    """
    done = launched(program)
    assert done.returncode != 0
    assert re.search(r"the ranks differ in the code of backburn: rank 0: '\w+'; rank 1: 'other'", done.stderr)


def test_facts_that_differ_are_named() -> None:
    def gather(everyone: list[dict[str, object]]) -> None:
        """Check on rank 0 as if each rank had its own facts."""
        told = [{name: repr(value) for name, value in facts.items()} for facts in everyone]
        answers: Iterator[list[Any]] = iter([[str(facts) for facts in told], told])
        check_agreement(lambda mine: next(answers), everyone[0])

    gather([{"numpy": "2.4", "threads": 1}] * 3)
    with pytest.raises(CommunicationError, match="the ranks differ in threads: rank 0, 2: 1; rank 1: 2"):
        gather([{"numpy": "2.4", "threads": n} for n in (1, 2, 1)])
    with pytest.raises(CommunicationError, match=r"differ in cupy: rank 0: None; rank 1: '14'"):
        gather([{"numpy": "2.4"}, {"numpy": "2.4", "cupy": "14"}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("timeout=0", "mpi: timeout is a number of seconds, not 0"),
        ("timeout='long'", "mpi: timeout is a number of seconds, not 'long'"),
        ("check=2", "mpi: check is true or false, not 2"),
        ("speed=1", "communicator 'mpi' does not take speed=1"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    program = f"from backburn.communicators import load_communicator; load_communicator('mpi', {options})"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 1
    assert message in alone.stderr
