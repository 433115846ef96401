"""Processes that compute together: the protocol of their communication, and what implements it.

``local`` is a program of one process, ``mpi`` one that ``backburn launch``, ``mpiexec`` or ``srun`` started.
"""

from backburn.communicators.loading import load_communicator
from backburn.communicators.local import Local
from backburn.communicators.protocol import Buffer, Communicator, Pending
from backburn.communicators.ranks import launched

__all__ = ["Buffer", "Communicator", "Local", "Pending", "launched", "load_communicator"]
