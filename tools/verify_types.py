"""Reports how completely the public interface is typed, by ``pyright --verifytypes backburn``.

Exit status 1 means that a symbol has no type at all, or that the share of known types is below ``LEAST``. The methods
of ``Tensor`` are assigned from functions: pyright finds their types but calls them ambiguous, and with them every
signature that names a tensor, so the share stays below 1. Raise ``LEAST`` when it grows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

#: The least share of exported symbols with a known type.
LEAST = 0.70


def main() -> int:
    """Run pyright, print the counts and compare them."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "backburn", "--ignoreexternal", "--outputjson"]
    # With --verifytypes pyright ignores --pythonpath: it asks the first python3 on the path for packages.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, "PATH": path}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        report = json.loads(run.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        print(run.stdout, run.stderr, sep="\n", file=sys.stderr)
        return 1
    counts, score = report["exportedSymbolCounts"], report["completenessScore"]
    known, ambiguous, unknown = (counts[f"with{word}Type"] for word in ("Known", "Ambiguous", "Unknown"))
    print(f"known types of exported symbols: {score:.1%} ({known} known, {ambiguous} ambiguous, {unknown} unknown)")
    for symbol in report["symbols"]:
        if symbol["isExported"] and not symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
            print(f"unknown: {symbol['name']}")
    return 1 if unknown or score < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
