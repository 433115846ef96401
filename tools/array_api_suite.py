"""Runs the Array API test suite on backburn, with our settings and exceptions, and prints the counts.

    git clone --branch 2026.02.26 --recurse-submodules <data-apis/array-api-tests> SUITE
    pip install -r SUITE/requirements.txt
    python tools/array_api_suite.py SUITE

Settings: version 2025.12 of the standard, real dtypes, plain NumPy as the backend, three examples for each property.
Left out are the special cases of complex numbers, which the suite does not skip along with the dtypes, the functions
``linalg.eig`` and ``linalg.eigvals``, whose results are complex, and the names of the extension ``fft``, which needs
complex numbers; none of these is offered. The exceptions, with their reasons, are in
``tests/tensor/array_api/xfails.txt``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXCEPTIONS = ROOT / "tests" / "tensor" / "array_api" / "xfails.txt"

#: The tests left out: their name in the report, and a pattern of their identifiers.
LEFT_OUT = {
    "special cases of complex numbers": re.compile(r"test_special_cases\.py::.*\b(?:real|imag)\(x_i\)"),
    "functions with complex results": re.compile(r"test_linalg\.py::test_eig(?:vals)?$"),
    "names of the extension fft": re.compile(r"test_has_names\.py::test_has_names\[fft-"),
}


def environment() -> dict[str, str]:
    """The environment that selects the library, the version and the dtypes."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "backends"))),
        "ARRAY_API_TESTS_MODULE": "backburn",
        "ARRAY_API_TESTS_VERSION": "2025.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128",
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


def left_out(suite: Path) -> dict[str, list[str]]:
    """The identifiers of the tests left out, by reason."""
    listed = [line for line in pytest_in(suite, "--collect-only").splitlines() if "::" in line]
    return {reason: [line for line in listed if pattern.search(line)] for reason, pattern in LEFT_OUT.items()}


def main() -> int:
    """Run the suite; the exit code is 0 if all tests pass but the exceptions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="the checkout of the suite, at its tag 2026.02.26, with submodules")
    parser.add_argument("--examples", type=int, default=3, help="examples for each property (3)")
    parser.add_argument("-k", default="", help="only the tests that pytest's -k selects")
    options = parser.parse_args()

    reasons = left_out(options.suite)
    with tempfile.TemporaryDirectory() as folder:
        skips = Path(folder) / "skips.txt"
        skips.write_text("\n".join(line for lines in reasons.values() for line in lines) + "\n", encoding="utf-8")
        output = pytest_in(
            options.suite, f"--max-examples={options.examples}", "--derandomize", "--disable-extension=fft",
            f"--skips-file={skips}", f"--xfails-file={EXCEPTIONS}", "-k", options.k, "-rfEX", "--tb=short",
        )  # fmt: skip
    print(output)
    counts = dict.fromkeys(("passed", "failed", "error", "xfailed", "xpassed", "skipped"), 0)
    counts.update({word: int(n) for n, word in re.findall(r"(\d+) (\w+)", output.splitlines()[-1]) if word in counts})
    out = sum(map(len, reasons.values()))
    run = sum(counts.values()) - counts["skipped"]
    print(f"{counts['passed'] + counts['xpassed']} of {run} tests that ran passed, {counts['failed']} failed, and")
    print(f"{counts['xfailed']} failed that are listed as exceptions ({counts['xpassed']} more are, and passed).")
    print(f"{counts['skipped']} did not run:")
    for reason, lines in reasons.items():
        print(f"  {len(lines):4} {reason}")
    print(f"  {counts['skipped'] - out:4} that the suite skips for dtypes and the extension that are not there")
    return int(counts["failed"] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main())
