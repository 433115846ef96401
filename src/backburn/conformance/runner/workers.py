"""Worker processes: a check that crashes or hangs does not affect others.

A worker is a separate Python process, ``python -P -m backburn.conformance.runner.worker``, which reads one id per line
and answers with one line of JSON. Its import path is the parent's, with the current folder moved to the end, if it is
on the path, so that a file in it hides no library. The parent never loads the backend. A worker that dies or does not
answer in time is replaced, and so is one whose device has failed permanently, since all further checks would fail.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from backburn.base import errors
from backburn.base.errors import BackburnError, BackendUnavailableError
from backburn.conformance.runner.target import name_of, serialize

#: Seconds within which a worker must load the backend; more if checks may take longer.
LOADING = 120.0

#: Checks compute with small tensors, and waiting BLAS threads would only take processors from other workers.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}


def _is_here(place: str) -> bool:
    """Whether an entry of the path is the current folder, which may have been deleted."""
    try:
        return os.path.samefile(place, os.curdir)
    except OSError:
        return False


class WorkerError(Exception):
    """The worker died, or did not answer in time."""


class Worker:
    """One worker process: send it a line, and wait for the answer."""

    def __init__(self, order: Mapping[str, Any], timeout: float) -> None:
        """Start it, and let it load the backend and create the checks. Raises the error that it reports."""
        path = os.pathsep.join(place for place in sys.path if place and not _is_here(place))
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "backburn.conformance.runner.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise,
            env={**ONE_THREAD, **os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.prepared = self.ask(order, max(timeout, LOADING))
            if "refused" in self.prepared:
                raise getattr(errors, self.prepared["class"], BackburnError)(self.prepared["refused"])
        except WorkerError as error:
            self.stop()
            raise BackendUnavailableError(f"{order['target']}: {error} while the backend was loaded") from error
        except BaseException:
            self.stop()
            raise

    def ask(self, question: Any, timeout: float) -> dict[str, Any]:
        """The answer to a question. Raises :class:`WorkerError` if there is none in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise WorkerError(f"took more than {timeout:g} s and was stopped") from None
        except OSError:
            line = b""
        if not line:
            raise WorkerError(f"the process died ({self._end()})")
        return json.loads(line)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._noise):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # nobody reads the unwritten rest
                    continue

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._answers.put(line)
        except ValueError:  # closed while reading
            pass
        self._answers.put(b"")

    def _end(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "its output closed"
        self._noise.seek(0)
        words = self._noise.read().decode(errors="replace").strip().splitlines()
        last = f": {words[-1]}" if words else ""
        return f"{'signal' if code < 0 else 'exit status'} {abs(code)}{last}"


def run_in_workers(
    backend: Any,
    options: Mapping[str, Any],
    expected: list[str],
    jobs: int,
    timeout: float,
    progress: Callable[[Mapping[str, Any], int, int], None],
    memory: float | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the checks of ``backend`` in ``jobs`` processes. Returns parts of the report, and the outcomes in order."""
    plain = {n: sorted(v) if isinstance(v, (set, frozenset, tuple, list)) else v for n, v in options.items()}
    order = {
        "target": name_of(backend), "sent": serialize(backend), "options": plain, "expected": expected,
        "memory": memory, "folder": os.getcwd() if any(_is_here(p) for p in sys.path) else None,
    }  # fmt: skip
    first = Worker(order, timeout)
    listed: list[list[str]] = first.prepared["checks"]
    waiting = deque(enumerate(listed))
    found: dict[int, dict[str, Any]] = {}
    lock, stopped = threading.Lock(), threading.Event()
    problems: list[BaseException] = []

    def work(worker: Worker | None) -> None:
        try:
            while not stopped.is_set():
                try:
                    number, (check_id, title) = waiting.popleft()
                except IndexError:
                    return
                if worker is None:
                    worker = Worker(order, timeout)
                try:
                    answer = worker.ask(check_id, timeout)
                except WorkerError as error:
                    answer = {
                        "id": check_id, "title": title, "failed": str(error), "smallest": "", "error": 0.0,
                        "seconds": timeout, "calls": [], "lost": True,
                    }  # fmt: skip
                if answer.pop("lost"):
                    worker.stop()
                    worker = None
                with lock:
                    found[number] = answer
                    progress(answer, len(found), len(listed))
        except BaseException as error:
            problems.append(error)
            stopped.set()
        finally:
            if worker is not None:
                worker.stop()

    helpers = [threading.Thread(target=work, args=(None,), daemon=True) for _ in range(min(jobs, len(listed)) - 1)]
    for helper in helpers:
        helper.start()
    try:
        work(first)
        for helper in helpers:
            helper.join()
    finally:
        stopped.set()
    if problems:
        raise problems[0]
    return first.prepared, [found[n] for n in range(len(listed))]
