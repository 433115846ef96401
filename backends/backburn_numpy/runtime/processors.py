"""The number of processors that the process may use.

A container is often limited to the time of a few processors of a large machine, and sees all of them. More threads than
it has time for take turns, and threads that wait for one another waste it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

#: The folder of Linux's control groups, and the file that lists those of this process.
_MOUNT, _GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processors() -> int:
    """The processors of the process's affinity, or fewer if its control groups limit their time.

    As in Rust's ``available_parallelism``, a limit of 2.5 processors counts as 2, and one below 1 as 1.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min([count, *map(int, _limits())]))


def _limits() -> Iterator[float]:
    """The limits, in processors, of the control groups of the process and of those around them."""
    with suppress(OSError, ValueError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                group = PurePosixPath(path.lstrip("/"))
                # In a container, the path may be the host's: then the container's group is the mounted one.
                for place in (group, *group.parents):
                    yield from _limit(_MOUNT / ("cpu" if controllers else "") / place)


def _limit(group: Path) -> Iterator[float]:
    """The limit that one group sets, if any: time in a period, and the period (version 2: ``max`` for no limit)."""
    with suppress(OSError, ValueError):
        if (group / "cpu.max").exists():
            time, period = (group / "cpu.max").read_text().split()
        else:
            time, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if float(time) > 0:
            yield float(time) / float(period)
