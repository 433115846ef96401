"""Checks that communicators share, and the ranks of a launched program, which are known before its MPI is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from backburn.base.errors import ArgumentError

#: The variables in which launchers pass the rank and the number of processes: Open MPI, MPICH and its derivatives, and
#: Slurm's ``srun``, which sets the second only in job steps, not in a batch script.
VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The rank of this process and the number of processes, if a launcher of MPI programs started it; else None.

    ``mpiexec``, ``mpirun``, ``srun`` and ``backburn launch`` are recognized by their environment variables: MPI itself
    is not loaded.

        >>> launched({"PMI_RANK": "1", "PMI_SIZE": "4"})
        (1, 4)
        >>> launched({}) is None
        True
    """
    for rank, size in VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return int(environment[rank]), int(environment[size])
    return None


def check_lists(operation: str, size: int, *lists: Sequence[Any]) -> None:
    """Raise :class:`ArgumentError` unless each list has one buffer for each process."""
    for buffers in lists:
        if len(buffers) != size:
            raise ArgumentError(f"{operation}: {len(buffers)} buffers for {size} processes: pass one for each")


def check_root(root: int, size: int) -> None:
    """Raise :class:`ArgumentError` unless ``root`` is a rank."""
    if not 0 <= root < size:
        raise ArgumentError(f"broadcast: there is no rank {root} among {size}")
