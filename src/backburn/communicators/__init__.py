"""Communication of the processes of a program: the protocol and its implementations.

``local`` is a program of one process, ``mpi`` one started by ``backburn launch``, ``mpiexec`` or ``srun``.
"""

from backburn.communicators.loading import load_communicator
from backburn.communicators.local import Local
from backburn.communicators.protocol import Buffer, Communicator, Pending
from backburn.communicators.ranks import launched

__all__ = ["Buffer", "Communicator", "Local", "Pending", "launched", "load_communicator"]
