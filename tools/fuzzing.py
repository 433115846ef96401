"""Code shared by the fuzzers in this folder: reading one changed input, and the command line."""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from backburn.errors import BackburnError

#: Reads ``count`` changed inputs of a format in a folder, from a seed, and returns the number of each outcome; the last
#: argument is called with the CPU seconds of each input.
Fuzz = Callable[[str, int, Path, int, Callable[[float], None] | None], Counter[str]]

#: The most that one input may take: CPU seconds, and MiB in addition to ten times the files' size.
SECONDS, MEMORY = 1.0, 200e6 / 2**20


def memory() -> tuple[float, float]:
    """The peak memory of this process since the last call, and its current memory, in MiB; on Linux."""
    with open("/proc/self/status", encoding="ascii") as status:
        found = dict(line.split(":", 1) for line in status)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as measured:
        measured.write("5")
    return int(found["VmHWM"].split()[0]) / 1024, int(found["VmRSS"].split()[0]) / 1024


def outcome_of(read: Callable[[], object], where: str) -> tuple[str, str]:
    """The class and the message of our error that ``read`` raises, or ``"read"`` and an empty string.

    Other errors are raised again, with the note ``where``.
    """
    try:
        read()
    except BackburnError as error:
        return type(error).__name__, str(error)
    except BaseException as error:
        error.add_note(where)
        raise
    return "read", ""


def run(
    description: str | None,
    formats: Iterable[str],
    fuzz: Fuzz,
) -> None:
    """Run a fuzzer on the command line, format by format.

    Raises AssertionError for an input that takes more than ``SECONDS``, or more additional memory than ``MEMORY``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="*", default=list(formats), choices=list(formats))
    parser.add_argument("--folder", type=Path, help="keeps the last files of a run that crashes")
    options = parser.parse_args()
    warnings.simplefilter("error")

    for name in options.formats:
        with tempfile.TemporaryDirectory() as made:
            folder = (options.folder or Path(made)) / name / "inside"
            folder.mkdir(parents=True, exist_ok=True)
            fuzz(name, 200, folder, -1, None)  # warm up: imports and caches
            seconds: list[float] = []
            added: list[float] = []
            _, first = memory()
            resident, start = [first], time.perf_counter()

            def watch(
                took: float, name: str = name, folder: Path = folder, seconds: list[float] = seconds,
                added: list[float] = added, resident: list[float] = resident,
            ) -> None:  # fmt: skip
                most, now = memory()
                seconds.append(took)
                added.append(most - resident[-1])
                resident[:] = [now]
                size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
                where = f"{name}, number {len(seconds) - 1}"
                assert took < SECONDS, f"{where}: {took:.1f} s"
                assert added[-1] < MEMORY + 10 * size, f"{where}: {added[-1]:.0f} MiB for {size:.2f} MiB"

            outcomes = fuzz(name, options.count, folder, options.seed, watch)
            total = time.perf_counter() - start
        took = f"slowest {max(seconds):.2f} s, most {max(added):.0f} MiB, at the end {resident[-1] - first:+.0f} MiB"
        print(f"{name}: {options.count} in {total:.0f} s, {dict(outcomes)}, {took}", flush=True)
