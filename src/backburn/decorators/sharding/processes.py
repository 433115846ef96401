"""How the levels of a mesh share the processes of a program, and which shards a process has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from backburn.base.errors import SpecError
from backburn.communicators import Communicator, Local, load_communicator

#: What :func:`share` sets on the levels of a mesh.
SHARED = ("communicator", "own")


def levels_in(k: Any, level: type) -> Iterator[Any]:
    """The levels of a backend, from the outside in, through other decorators."""
    while k is not None:
        if type(k) is level:
            yield k
        k = getattr(k, "_inner", None)


def taken_inside(k: Any, outer: Any) -> Any:
    """``k`` with copies of its levels, for the processes that the level ``outer`` leaves.

    A level may be part of several expressions, with other processes in each.
    """
    if next(levels_in(k, type(outer)), None) is None:
        return k
    made = object.__new__(type(k))  # `copy` would load the expression, which others may share
    vars(made).update(vars(k))
    if type(k) is type(outer):
        for name in SHARED:
            vars(made).pop(name, None)
        made.outer, made.routes = outer, {}
        outer = made
    made._inner = taken_inside(k._inner, outer)
    if outer is made:
        made.below = next(levels_in(made._inner, type(made)), None)
    return made


def share(outermost: Any) -> None:
    """Give each level of a mesh its communicator and its own shards; the outermost takes processes first.

    A level of ``n`` shards divides ``P`` processes into ``g = gcd(P, n)`` groups: each has ``n / g`` adjacent shards
    and ``P / g`` processes for the levels inside. That uses all processes if the number of shards of the mesh is a
    multiple of theirs; else :class:`SpecError` is raised. On each level, processes at the same position on the levels
    inside exchange data.
    """
    comm: Communicator = world_of(outermost)
    levels = list(levels_in(outermost, type(outermost)))
    check_mesh({level.mesh_axis: level.size for level in levels}, comm.size)
    for level in levels:
        taken = math.gcd(comm.size, level.size)
        left, each = comm.size // taken, level.size // taken
        place = comm.rank // left
        vars(level)["own"] = range(place * each, (place + 1) * each)
        if left == 1:
            vars(level)["communicator"], comm = comm, Local()
        elif taken == 1:
            vars(level)["communicator"] = Local()
        else:
            ranks = range(comm.size)
            across, inside = comm.split([r % left for r in ranks]), comm.split([r // left for r in ranks])
            vars(level)["communicator"], comm = across, inside


def check_mesh(mesh: dict[str, int], processes: int) -> None:
    """Raise :class:`SpecError` unless the shards of a mesh can be shared equally by a number of processes.

    >>> check_mesh({"dp": 4, "tp": 2}, 8)
    >>> check_mesh({"dp": 4, "tp": 2}, 3)
    Traceback (most recent call last):
    backburn.base.errors.SpecError: sharded: 3 processes cannot share the 8 shards of dp=4, tp=2; start 1, 2, 4 or 8
    """
    shards = math.prod(mesh.values())
    if shards % processes:
        fitting = [str(n) for n in range(1, shards + 1) if shards % n == 0]
        numbers = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if len(fitting) > 1 else fitting[0]
        words = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
        raise SpecError(f"sharded: {processes} processes cannot share the {shards} shards of {words}; start {numbers}")


def world_of(level: Any) -> Communicator:
    """The communicator of all processes, as the options of a level name it."""
    if not isinstance(level.comm, str):
        return level.comm
    return load_communicator(level.comm, **level.comm_options)
