"""Runs the Array API test suite on backburn, with our settings and exceptions, and prints the counts.

    git clone --branch 2026.02.26 --recurse-submodules <data-apis/array-api-tests> SUITE
    pip install -r SUITE/requirements.txt
    python tools/array_api_suite.py SUITE

Settings: version 2025.12 of the standard, plain NumPy as the backend, three examples for each property. The exceptions,
with their reasons, are in ``tests/tensor/array_api/xfails.txt``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXCEPTIONS = ROOT / "tests" / "tensor" / "array_api" / "xfails.txt"


def environment() -> dict[str, str]:
    """The environment that selects the library and the version."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "backends"))),
        "ARRAY_API_TESTS_MODULE": "backburn",
        "ARRAY_API_TESTS_VERSION": "2025.12",
        "BACKBURN_BACKEND": "numpy",
    }


def pytest_in(suite: Path, *arguments: str) -> str:
    """Run the suite's pytest and return its output; exit if it could not run."""
    command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, *arguments], cwd=suite, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"the suite did not run:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    """Run the suite; the exit code is 0 if all tests except the exceptions pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="the checkout of the suite, at its tag 2026.02.26, with submodules")
    parser.add_argument("--examples", type=int, default=3, help="examples for each property (3)")
    parser.add_argument("-k", default="", help="only the tests that pytest's -k selects")
    options = parser.parse_args()

    output = pytest_in(
        options.suite, f"--max-examples={options.examples}", "--derandomize", f"--xfails-file={EXCEPTIONS}",
        "-k", options.k, "-rfEX", "--tb=short",
    )  # fmt: skip
    print(output)
    counts = dict.fromkeys(("passed", "failed", "error", "xfailed", "xpassed", "skipped"), 0)
    counts.update({word: int(n) for n, word in re.findall(r"(\d+) (\w+)", output.splitlines()[-1]) if word in counts})
    run = sum(counts.values()) - counts["skipped"]
    print(f"{counts['passed'] + counts['xpassed']} of {run} tests passed, {counts['failed']} failed, and")
    print(f"{counts['xfailed']} listed exceptions failed ({counts['xpassed']} other exceptions passed).")
    print(f"{counts['skipped']} were skipped by the suite.")
    return int(counts["failed"] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main())
