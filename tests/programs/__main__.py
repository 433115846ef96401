"""``python -m tests.programs``: compare recorded random programs with the same programs unrecorded.

Programs run in a child process, which records the name of each before running it, so that a program that crashes the
process is reported, too. ``--minutes`` or ``--count`` limits the run, ``--seed`` selects the programs (a new seed each
time by default), and ``--replay NAME`` runs one program again. A failure is shortened and printed as a script.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import mmap
import os
import secrets
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tests.backends.cupy.stand_in.compiled import COMPILER
from tests.backends.cupy.stand_in.use import standing_in
from tests.programs.modes import CUPY, Case, case_of
from tests.programs.running import Failure, Skipped, run
from tests.programs.shrinking import script, shrink

#: Programs per child, and the time limit of one in seconds.
BATCH, LONGEST = 2000, 240
#: Bytes for a message.
ROOM = 1 << 16


class Shared:
    """Memory that a child writes and its parent reads: the number of the program, or the outcome."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ROOM)

    def put(self, words: str) -> None:
        data = words.encode()[: ROOM - 8]
        self.memory[:8] = len(data).to_bytes(8, "little")
        self.memory[8 : 8 + len(data)] = data

    def get(self) -> str:
        size = int.from_bytes(self.memory[:8], "little")
        return bytes(self.memory[8 : 8 + size]).decode(errors="replace")


#: Whether memory is guarded.
HAS_GUARDS = True


def outcome(case: Case) -> str:
    """The outcome of a case, as text; that of a failure begins with "failed"."""
    try:
        return run(case, has_guards=HAS_GUARDS)
    except Skipped as skipped:
        return f"skipped, {skipped}"
    except Failure as failure:
        return f"failed: {failure}"


def in_child(work: Callable[[Shared, Shared], None]) -> tuple[int, str, str]:
    """Run ``work`` in a child: its status, the last name that it recorded, and its message."""
    current, message = Shared(), Shared()
    with tempfile.TemporaryFile() as stacks:
        return _watched(work, current, message, stacks)


def _watched(
    work: Callable[[Shared, Shared], None], current: Shared, message: Shared, stacks: Any
) -> tuple[int, str, str]:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            faulthandler.register(signal.SIGUSR1, stacks)
            work(current, message)
            status = 0
        except BaseException as error:
            message.put(f"failed: {type(error).__name__}: {error}")
        finally:
            os._exit(status)
    last, since = "", time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status, current.get(), message.get()
        if current.get() != last:
            last, since = current.get(), time.monotonic()
        elif time.monotonic() - since > LONGEST:
            os.kill(child, signal.SIGUSR1)
            time.sleep(1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            stacks.seek(0)
            return signal.SIGALRM, last, f"failed: took longer than {LONGEST} s\n{stacks.read().decode()}"
        time.sleep(0.002)


def apart(case: Case) -> str:
    """The outcome of a case in a separate child."""
    status, _, message = in_child(lambda current, message: message.put(outcome(case)))
    return message if status in (0, signal.SIGALRM) or message else f"failed: the process ended by {_ending(status)}"


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"status {os.waitstatus_to_exitcode(status)}"


def kind_of(words: str) -> str:
    """The part of a failure that similar failures share: the first words, or the class of the error."""
    first, _, error = words.partition(" raises ")
    return f"{first} raises {error.partition(':')[0]}" if error else " ".join(words.split()[:2])


def report(case: Case, words: str, is_short: bool) -> None:
    """Print a failure, shortened as far as possible if ``is_short``."""
    print(f"\n{case.describe()}\n  {words}", flush=True)
    if is_short:
        kind = kind_of(words)

        def fails(shorter: Case) -> bool:
            return kind_of(apart(shorter)) == kind

        case = shrink(case, fails) if fails(case) else case
        print(script(case, apart(case)), flush=True)


def many(seed: str, start: int, stop: int, end: float, counts: Any) -> tuple[int, list[tuple[str, str]]]:
    """Run programs in a child until one fails; returns their number, and the failures."""
    tally = mmap.mmap(-1, ROOM)

    def work(current: Shared, message: Shared) -> None:
        found: collections.Counter[str] = collections.Counter()
        for i in range(start, stop):
            if time.monotonic() > end:
                break
            current.put(str(i))
            words = outcome(case_of(f"{seed}-{i}"))
            found[words.partition(":")[0] if words.startswith("failed") else words] += 1
            data = repr(dict(found)).encode()[: ROOM - 8]
            tally[:8] = len(data).to_bytes(8, "little")
            tally[8 : 8 + len(data)] = data
            if words.startswith("failed"):
                message.put(words)
                return

    status, last, message = in_child(work)
    size = int.from_bytes(tally[:8], "little")
    if size:
        counts.update(eval(bytes(tally[8 : 8 + size]).decode()))
    done = int(last or start) + 1 - start
    if message:
        return done, [(f"{seed}-{last}", message)]
    if status:
        counts["failed"] += 1
        return done, [(f"{seed}-{last}", f"failed: the process ended by {_ending(status)}")]
    return done, []


def main() -> int:
    """Run programs, print the outcome, and return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the prefix of program names")
    parser.add_argument("--cupy", action="store_true", help="run on the stand-in for CuPy; such names begin with cupy-")
    parser.add_argument("--start", type=int, default=0, help="the number of the first program")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="the number of programs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="the time limit")
    parser.add_argument("--failures", type=int, default=5, help="stop after this many failures")
    parser.add_argument("--replay", metavar="NAME", help="run one program again")
    parser.add_argument("--as-it-is", action="store_true", help="do not shorten failures")
    parser.add_argument("--unguarded", action="store_true", help="run without memory guards, for sanitizers")
    options = parser.parse_args()
    if options.cupy and not options.seed.startswith(CUPY):
        options.seed = CUPY + options.seed
    is_cupy = (options.replay or options.seed).startswith(CUPY)
    if is_cupy and COMPILER is None:
        print("random programs: no program was run: CuPy's kernels need g++ to run on the CPU")
        return 0
    with standing_in() if is_cupy else nullcontext():
        return tried(options)


def tried(options: argparse.Namespace) -> int:
    """Run programs as the options specify; 1 if one failed."""
    global HAS_GUARDS
    HAS_GUARDS = not options.unguarded
    warnings.simplefilter("ignore")
    if options.replay:
        case = case_of(options.replay)
        words = apart(case)
        if words.startswith("failed"):
            report(case, words, not options.as_it_is)
        else:
            print(f"{case.describe()}\n{case.program.source()}\n{words}")
        return int(words.startswith("failed"))
    if options.minutes == float("inf") and options.count == sys.maxsize:
        options.minutes = 2.0
    print(f"random programs, --seed {options.seed}", flush=True)
    begin = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    done = failures = 0
    while done < options.count and failures < options.failures and time.monotonic() - begin < options.minutes * 60:
        at = options.start + done
        stop = options.start + min(options.count, done + BATCH)
        more, found = many(options.seed, at, stop, begin + options.minutes * 60, counts)
        done += more
        for name, words in found:
            failures += 1
            report(case_of(name), words, not options.as_it_is)
    seconds = time.monotonic() - begin
    skipped = sum(n for words, n in counts.items() if words.startswith("skipped"))
    rest = f"{counts['unstable']} unstable, {skipped} skipped, {failures} failed"
    print(f"{done} programs in {seconds:.0f} s: {counts['passed']} passed, {rest}")
    for words, n in counts.most_common():
        if words.startswith("skipped"):
            print(f"  {n} {words}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
