"""Runs the conformance suite on backends and keeps the results that the documentation's pages show.

``python tools/write_reports.py "autodiff(numpy)" torch`` writes ``docs/conformance/autodiff-numpy.json`` and
``torch.json``, each with its date; the build of the documentation generates a page from each. Without arguments it runs
all installed backends of this repository. JAX, which compiles each call, takes half an hour.
"""

from __future__ import annotations

import datetime
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backburn.conformance import check_backend
from backburn.conformance.reports.pages import record

FOLDER = Path(__file__).parents[1] / "docs" / "conformance"
OURS = ("numpy", "autodiff(numpy)", "autodiff(autodiff(numpy))", "forward(numpy)", "null")
OTHERS = ("array_api_strict", "torch", "jax")


def path_of(spec: str) -> Path:
    """Return the file of a backend."""
    return FOLDER / f"{spec.replace('(', '-').replace(')', '')}.json"


def text_of(kept: dict[str, Any]) -> str:
    """Return a record as JSON, one line for each of its parts."""
    parts = (f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in kept.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(specs: list[str]) -> int:
    """Run the suite, and write the files; return 1 if a check fails."""
    failed = False
    for spec in specs or [*OURS, *(name for name in OTHERS if find_spec(f"backburn_{name}"))]:
        report = check_backend(spec, jobs=2)
        print(f"{spec}: {report.score}, {report.seconds:.0f} s", flush=True)
        failed |= not report.ok
        path_of(spec).write_text(text_of({"date": str(datetime.date.today()), **record(report)}), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
