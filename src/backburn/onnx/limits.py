"""Limits on the resources that an untrusted file may take."""

from __future__ import annotations

from dataclasses import dataclass

from backburn.base.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """The most resources that a graph may take. Exceeding a limit is an error that names the node and the limit.

    ``iterations`` are the steps of all loops in one call of the model, ``elements`` those of one tensor whose size a
    node computes (``ConstantOfShape``, ``Expand``, ``Range``, ``Pad``, ``Resize``, ...), and ``nodes`` those that
    inlined functions add to a graph.

        >>> Limits(iterations=10).iterations
        10
    """

    iterations: int = 1_000_000
    elements: int = 2**31
    nodes: int = 100_000

    def __post_init__(self) -> None:
        """Raises :class:`ArgumentError` for anything but positive integers."""
        for name, value in vars(self).items():
            given: object = value
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise ArgumentError(f"Limits: {name} is a positive integer, not {value!r}")
