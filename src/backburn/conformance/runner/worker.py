"""The program of a worker process: creates the checks of a backend, and runs those that are requested."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import IO, Any

#: Seconds that the device may take to finish.
WAITING = 5.0
#: The number of threads for large operands; small ones are computed by one.
SHARED = 2


def main() -> None:
    """Read the task and then ids from standard input, one per line; answer each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a backend's output must not mix with the answers
    order = json.loads(sys.stdin.readline())
    if order["folder"] is not None:
        sys.path.append(order["folder"])
    warnings.simplefilter("ignore")
    _serve(order, answers)


def limit_memory(gigabytes: float) -> None:
    """Limit the address space of this process. Raises :class:`ArgumentError` if the system does not support that."""
    from backburn.base.errors import ArgumentError

    size = int(gigabytes * 2**30)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError) as cause:  # on Windows; on macOS; above the hard limit
        raise ArgumentError(f"memory cannot be limited to {gigabytes:g} GB on this system: {cause}") from cause


def _serve(order: dict[str, Any], answers: IO[str]) -> None:
    from backburn.base.errors import BackburnError
    from backburn.base.threads import set_num_threads
    from backburn.conformance.checks.kinds import LARGE_KINDS
    from backburn.conformance.runner.run import outcome, prepare
    from backburn.conformance.runner.target import deserialize

    def answer(words: dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    try:
        if order["memory"] is not None:
            limit_memory(order["memory"])
        backend = deserialize(order["sent"])
        found, prepared = prepare(backend, order["options"], order["expected"])
    except Exception as error:
        known = isinstance(error, BackburnError)
        words = str(error) if known else f"{order['target']}: {type(error).__name__}: {error}"
        answer({"refused": words, "class": type(error).__name__ if known else "BackendUnavailableError"})
        return
    by_id = {check.id: check for check in found}
    answer({**prepared, "checks": [[check.id, check.title] for check in found]})
    threads = None
    for line in sys.stdin:
        check = by_id[json.loads(line)]
        if threads != (wanted := SHARED if check.kind in LARGE_KINDS else 1):
            set_num_threads(threads := wanted)
        became = outcome(check)
        answer({**became, "lost": bool(became["failed"]) and is_lost(backend)})


def is_lost(backend: Any) -> bool:
    """Whether the device fails every call, as a CUDA device does after an illegal access."""
    from backburn.base.errors import DeviceError, DeviceMemoryError
    from backburn.conformance.checks.timeout import time_limit

    for _ in range(2):  # errors of earlier work are reported once
        try:
            with time_limit(WAITING):
                backend.synchronize()
        except DeviceMemoryError:
            return False
        except DeviceError:
            continue
        except BaseException:
            return False
        return False
    return True


if __name__ == "__main__":
    main()
