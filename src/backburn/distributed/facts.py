"""What processes compare before they compute together: versions, machines, and the sources that they run."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: The packages whose versions change results.
PACKAGES = ("backburn", "numpy", "mpi4py", "cupy")


@cache
def facts() -> dict[str, Any]:
    """The Python, the kind of machine, the versions of packages, and digests of backburn's sources and the program's.

    >>> sorted(facts())
    ['backburn', 'code of backburn', 'cupy', 'machine', 'mpi4py', 'numpy', 'program', 'python']
    """
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    root = Path(__file__).parents[1]
    found["code of backburn"] = _digest(sorted(root.rglob("*.py")), root)
    program = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    found["program"] = _digest([program], program.parent) if program is not None and program.is_file() else None
    return found


def _digest(paths: list[Path], root: Path) -> str:
    """A digest of the names and contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]
