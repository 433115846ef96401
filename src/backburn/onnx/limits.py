"""Limits on what a file of somebody else may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from backburn.base.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """What a graph may ask for at most. A value beyond a limit is an error that names the node and the limit.

    ``iterations`` are the steps of all loops in one call of the model, ``elements`` those of one tensor that a node
    makes from sizes (``ConstantOfShape``, ``Expand``, ``Range``, ``Pad``, ``Resize``, ...), and ``nodes`` those that
    functions add to a graph when they are written out.

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
