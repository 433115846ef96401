"""The parts that the fuzzers of this folder share: reading one changed input, and the command line."""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from backburn.errors import BackburnError

#: Reads ``count`` changed inputs of a format in a folder, by a seed, and returns the number of each outcome; the last
#: argument is given the seconds of processor time of each input.
Fuzz = Callable[[str, int, Path, int, Callable[[float], None] | None], Counter[str]]


def outcome_of(read: Callable[[], object], where: str) -> tuple[str, str]:
    """The class and the words of the error of ours that ``read`` raises, or ``"read"`` and nothing.

    Other errors are raised as they are, with the note ``where``.
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
    *,
    most_seconds: float | None = None,
    most_memory: float | None = None,
) -> None:
    """Run a fuzzer on the command line, format by format.

    Raises AssertionError for an input that takes more seconds, and for a format that takes more MiB, than given.
    """
    import resource  # of POSIX, and the tests need the rest everywhere

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="*", default=list(formats), choices=list(formats))
    parser.add_argument("--folder", type=Path, help="keeps the last files of a run that crashes")
    options = parser.parse_args()
    warnings.simplefilter("error")

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    for name in options.formats:
        with tempfile.TemporaryDirectory() as made:
            folder = (options.folder or Path(made)) / name / "inside"
            folder.mkdir(parents=True, exist_ok=True)
            fuzz(name, 10, folder, -1, None)
            seconds: list[float] = []
            before, start = peak(), time.perf_counter()
            outcomes = fuzz(name, options.count, folder, options.seed, seconds.append)
            total, grown, slowest = time.perf_counter() - start, peak() - before, max(seconds, default=0.0)
        took = f"slowest {slowest:.2f} s, {grown:.0f} MiB more"
        print(f"{name}: {options.count} in {total:.0f} s, {dict(outcomes)}, {took}", flush=True)
        assert most_seconds is None or slowest < most_seconds, f"{name}: {slowest:.1f} s"
        assert most_memory is None or grown < most_memory, f"{name}: {grown:.0f} MiB"
