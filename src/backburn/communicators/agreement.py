"""Agreement of processes: equal versions and code at the start, and each collective with ``check=true``."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from backburn.base.errors import CommunicationError

#: Packages whose versions may change results.
PACKAGES = ("numpy", "ml_dtypes", "mpi4py", "cupy")


def check_agreement(gather_objects: Callable[[object], list[Any]], facts: Mapping[str, object]) -> None:
    """Raise on all processes unless ``facts`` are the same on all; the error names the first that differs, by rank.

    ``gather_objects`` is that of a communicator. Raises :class:`CommunicationError`.

        >>> check_agreement(lambda mine: [mine, mine], {"numpy": "2.4.1"})
    """
    told = {name: repr(value) for name, value in facts.items()}
    digests = gather_objects(_digest(told))
    if len(set(digests)) == 1:
        return
    everyone = gather_objects(told)
    names = list(dict.fromkeys(name for found in everyone for name in found))
    name = next(n for n in names if len({found.get(n) for found in everyone}) > 1)
    raise CommunicationError(f"the ranks differ in {name}: {by_rank([found.get(name) for found in everyone])}")


def by_rank(values: Sequence[Any]) -> str:
    """Each value with the ranks that have it.

    >>> by_rank(["a", "b", "a"])
    'rank 0, 2: a; rank 1: b'
    """
    ranks: dict[Any, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"rank {', '.join(map(str, own[:8]))}{', ...' if len(own) > 8 else ''}: {value}" for value, own in ranks.items()
    )


def libraries() -> dict[str, object]:
    """The versions and the code that may change results: Python, packages, the machine, backburn and the program."""
    found: dict[str, object] = {"Python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["the code of backburn"] = code_digest()
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if program is not None and Path(program).is_file():
        found["the program"] = hashlib.sha256(Path(program).read_bytes()).hexdigest()[:12]
    return found


@cache
def code_digest() -> str:
    """A digest of backburn's sources, which are read once."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).digest()


def order_digest(operation: str, facts: object, line: str) -> bytes:
    """The eight bytes that represent a collective in the order check."""
    return _digest((operation, facts, line))
