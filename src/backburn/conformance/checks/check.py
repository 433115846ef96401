"""A check: one requirement on one operation of one backend, with a stable id and a seed derived from it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backburn.conformance.checks.timeout import time_limit
from backburn.conformance.samples.table import Sample

#: The operation in the ids of checks of the backend as a whole.
WHOLE = "backend"
#: The dtype in the ids of checks without one.
NO_DTYPE = "any"
#: The sample of checks without one.
NO_SAMPLE = Sample(())


@dataclass(frozen=True)
class Check:
    """``function(check)`` raises AssertionError if ``backend`` is wrong, and returns its error in units of tolerance.

    ``sample`` is the call that is tried, or :data:`NO_SAMPLE`; ``title`` describes the check, by default the first line
    of the function's docstring. ``timeout`` is the number of seconds that it may take, if this process can enforce it.
    """

    operation: str
    dtype: str
    kind: str
    index: int
    backend: Any
    function: Callable[[Check], float | None]
    sample: Sample = NO_SAMPLE
    title: str = ""
    timeout: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or (self.function.__doc__ or "").partition("\n")[0])

    @cached_property
    def id(self) -> str:
        """``operation-dtype-kind-index``, stable across releases."""
        return f"{self.operation}-{self.dtype}-{self.kind}-{self.index}"

    @cached_property
    def seed(self) -> int:
        """The seed of everything random in the check: the CRC-32 of its id, the same in every run."""
        return zlib.crc32(self.id.encode())

    @property
    def generator(self) -> np.random.Generator:
        """A new generator of random numbers, seeded by the check."""
        return np.random.default_rng(self.seed)

    def __call__(self) -> float:
        """Run the check. Returns its error in units of tolerance (0 if nothing is rounded).

        Raises the backend's own errors, AssertionError for a wrong answer, and
        :class:`~backburn.conformance.checks.timeout.OutOfTime` after ``timeout`` seconds.
        """
        with time_limit(self.timeout):
            return float(self.function(self) or 0.0)

    def __repr__(self) -> str:
        return f"<check {self.id}>"


def parts_of(check_id: str) -> tuple[str, str, str, int]:
    """Operation, dtype, kind and index of an id; raises ValueError for anything else.

    >>> parts_of("add-float32-value-0")
    ('add', 'float32', 'value', 0)
    """
    parts = check_id.split("-")
    if len(parts) != 4 or not all(parts) or not parts[3].isdecimal():
        raise ValueError(f"{check_id!r} is not of the form operation-dtype-kind-index, such as add-float32-value-0")
    return parts[0], parts[1], parts[2], int(parts[3])
