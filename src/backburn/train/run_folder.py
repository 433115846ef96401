"""``RunFolder``: the files of a run, written atomically by one thread of one process.

============================================  ==========================================================
``config.json``                               what the run is: arguments, model, data, environment
``metrics.jsonl``, ``metrics.csv``            one row for each epoch
``steps.jsonl``                               one row for every ``log_every`` steps
``checkpoints/step-00001200.safetensors``     states for resuming, the last few
``model.safetensors``, ``best.safetensors``   the model at the last epoch that was saved, and at the best one
``lock``                                      held by the process that trains
============================================  ==========================================================

Beside them ``report.html``, ``curves.png``, ``timeline.json``, ``tensorboard`` and ``wandb`` may be written. Only
ordinary files of the names above are deleted, in these two folders. A folder in which one of these names is a link is
refused, since its target may belong to someone else.

A run that is overwritten is kept in ``.replaced-run`` until the new one has taken a step; if that never happens, it is
restored, if necessary by the next process that opens the folder.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from backburn.base.errors import ArgumentError, FileFormatError, RunFolderError
from backburn.base.regular import read_end, read_regular
from backburn.io import load_state, save_model, save_state, write_atomically
from backburn.train.locks import FileLock

CONFIG, METRICS, TABLE, STEPS, LOCK = "config.json", "metrics.jsonl", "metrics.csv", "steps.jsonl", "lock"
CHECKPOINTS, MODEL, BEST = "checkpoints", "model.safetensors", "best.safetensors"
#: Files that are written beside them on demand.
REPORT, CURVES, TIMELINE = "report.html", "curves.png", "timeline.json"
TENSORBOARD, WANDB = "tensorboard", "wandb"
#: The files that are a run; without a run, a file of one of these names belongs to another program.
_RUN = (CONFIG, METRICS, TABLE, STEPS, MODEL, BEST)
#: Files that are written to in place, and folders.
_GROWING = (METRICS, TABLE, STEPS, LOCK)
#: The files that are set aside with an overwritten run, besides its checkpoints.
_REPLACED_FILES = (*_RUN, REPORT, CURVES, TIMELINE)
#: The folders of an overwritten run, of its files while they are moved, and of those still to be deleted.
REPLACED, _MOVED, _DELETED = ".replaced-run", ".replaced-run.moved", ".replaced-run.deleted"
_FOLDERS = (CHECKPOINTS, TENSORBOARD, WANDB, REPLACED, _MOVED, _DELETED)
_STEP = re.compile(r"step-([0-9]{8,18})\.safetensors\Z")
#: The temporary files that :func:`~backburn.io.write_atomically` leaves behind if its process is killed.
_UNFINISHED = re.compile(
    rf"\.({'|'.join(map(re.escape, (*_RUN, REPORT, CURVES, TIMELINE)))}|step-[0-9]{{8,18}}\.safetensors)"
    r"\.[0-9]+\.[0-9a-f]{8}\.tmp\Z"
)
#: The most bytes that are read from the end of a file of rows, and the most rows.
MOST_BYTES, MOST_ROWS = 2**26, 200_000
#: The most columns of ``metrics.csv``.
MOST_COLUMNS = 1000


class RunFolder:
    """The folder of a run. Nothing is written until it is opened, and one process at a time opens it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise ArgumentError("the folder of a run has an empty name; the current folder is '.'")
        self.path = Path(path)
        self._lock = FileLock(self.path / LOCK)
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._columns: list[str] = []
        self._replaces = False

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # ---- opening and closing ----

    def open(self, *, resume: bool = False, overwrite: bool = False) -> None:
        """Lock the folder, created if necessary, for this process.

        A run to be overwritten is set aside: :meth:`start` deletes it, and :meth:`close` restores it if there was no
        start. Raises :class:`RunFolderError` if the folder cannot be written to, if another process trains in it, and
        if it already has a run that is not to be resumed or overwritten.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.check()
            (self.path / CHECKPOINTS).mkdir(exist_ok=True)
            is_free = self._lock.acquire()
        except RunFolderError:
            raise
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise RunFolderError(f"the run folder {self.path} cannot be written to: {why}. Choose another") from error
        if not is_free:
            holder = self._lock.holder()
            who = f" (process {holder})" if holder else ""
            raise RunFolderError(
                f"another run is training in {self.path}{who}: wait for its end, or choose another folder"
            )
        try:
            with self.guarded("cleaned"):  # of a process that was killed
                self._put_back()
            if self.has_run and not (resume or overwrite):
                raise RunFolderError(
                    f"the run folder {self.path} already has a run: continue it with resume=True, replace it with "
                    f"overwrite=True, or choose another"
                )
            foreign = [name for name in (REPORT, CURVES, TIMELINE) if os.path.lexists(self.path / name)]
            if foreign and not (self.has_run or overwrite):
                raise RunFolderError(
                    f"the run folder {self.path} has a file {foreign[0]}, which a run may write, and no run: choose "
                    f"another folder, or replace the file with overwrite=True"
                )
            with self.guarded("cleaned"):
                for folder in (self.path, self.path / CHECKPOINTS):
                    for left in _ordinary(folder, _UNFINISHED):  # of a process that was killed while it wrote
                        left.unlink()
                if overwrite and not resume:
                    self._put_aside()
        except BaseException:
            self._lock.release()
            raise
        self._writer = ThreadPoolExecutor(1, "backburn-checkpoints")

    def close(self) -> None:
        """Wait for pending writes, and release the lock. Raises the error of a write."""
        try:
            self.wait()
        finally:
            try:
                if self._writer is not None:
                    self._writer.shutdown()
                    self._writer = None
                    with self.guarded("cleaned"):
                        self._put_back()
            finally:
                self._lock.release()

    def start(self) -> None:
        """Delete the run that is overwritten, if there is one: the new one has taken a step."""
        if self._replaces:
            with self.guarded("cleaned"):
                os.rename(self.path / REPLACED, self.path / _DELETED)
                self._replaces = False
                self._delete(_DELETED)

    @property
    def is_open(self) -> bool:
        """Whether this object holds the folder."""
        return self._writer is not None

    @property
    def replaces(self) -> bool:
        """Whether another run, which is overwritten, is still to be deleted."""
        return self._replaces

    @property
    def has_run(self) -> bool:
        """Whether there is a run in the folder."""
        return any(os.path.lexists(self.path / name) for name in (*_RUN, REPLACED, _MOVED)) or bool(self.checkpoints)

    def check(self) -> None:
        """Raise :class:`RunFolderError` if a name that a run writes to is a link, or of the wrong type.

        The target of a link, or a file that has another name too, is not the run's to change.
        """
        for name in (*_RUN, LOCK, REPORT, CURVES, TIMELINE, *_FOLDERS):
            try:
                found = os.lstat(self.path / name)
            except FileNotFoundError:
                continue
            is_linked = stat.S_ISLNK(found.st_mode) or (name in _GROWING and found.st_nlink > 1)
            fits = (stat.S_ISDIR if name in _FOLDERS else stat.S_ISREG)(found.st_mode)
            if is_linked or not fits:
                if is_linked:
                    is_what = "a link, and what it leads to is not the run's"
                else:
                    is_what = "a folder" if stat.S_ISDIR(found.st_mode) else "a file of another kind"
                raise RunFolderError(f"the run folder {self.path} cannot be used: {name} in it is {is_what}")

    def _files(self) -> list[Path]:
        """The files of the run in the folder, without the lock."""
        return [*self.checkpoints, *(path for name in _REPLACED_FILES if (path := self.path / name).is_file())]

    def _put_aside(self) -> None:
        """Move the files of a run to a separate folder."""
        if found := self._files():
            moved = self.path / _MOVED
            moved.mkdir()
            for path in found:
                os.rename(path, moved / path.name)
            os.rename(moved, self.path / REPLACED)
            self._replaces = True

    def _put_back(self) -> None:
        """Undo :meth:`_put_aside`, wherever it, this method or :meth:`start` has been interrupted."""
        self._replaces = False
        moved, replaced = self.path / _MOVED, self.path / REPLACED
        if replaced.is_dir():
            for path in self._files():
                path.unlink()
            os.rename(replaced, moved)
        if moved.is_dir():
            (self.path / CHECKPOINTS).mkdir(exist_ok=True)
            for path in _files_aside(moved):
                folder = self.path / CHECKPOINTS if _STEP.match(path.name) else self.path
                os.rename(path, folder / path.name)
            moved.rmdir()
        self._delete(_DELETED)

    def _delete(self, name: str) -> None:
        """Delete a folder of files that were set aside, if it exists."""
        for path in _files_aside(self.path / name):
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).rmdir()

    # ---- checkpoints ----

    @property
    def checkpoints(self) -> list[Path]:
        """The files of the saved states, the oldest first."""
        return _ordinary(self.path / CHECKPOINTS, _STEP)

    @property
    def has_checkpoints(self) -> bool:
        """Whether a state has been saved."""
        return bool(self.checkpoints)

    def checkpoint_of(self, step: int) -> Path:
        """The file for the state after a number of steps."""
        return self.path / CHECKPOINTS / f"step-{step:08d}.safetensors"

    def latest(self, note: Callable[[str], None]) -> tuple[Path, Any] | None:
        """The last state that can be read, and its file; ``note`` is called for damaged files."""
        for path in reversed(self.checkpoints):
            try:
                return path, load_state(path)
            except FileFormatError as error:
                note(f"{error}; the checkpoint before it is used")
        return None

    def save(
        self,
        state: Mapping[str, Any],
        keep: int,
        models: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
    ) -> None:
        """Write a state, and models by their files' names, in the background.

        Waits for the write before, and raises its error. All but the last ``keep`` states are deleted afterwards.
        """
        self.wait()
        assert self._writer is not None

        def write() -> None:
            with self.guarded("saved"):
                for name, (tensors, about) in models.items():  # before the state, which says that they are there
                    save_model(self.path / name, tensors, about=about)
                save_state(self.checkpoint_of(state["steps"]), state)
                self.delete_old(keep)

        self._writing = self._writer.submit(write)

    def delete_old(self, keep: int) -> None:
        """Delete all saved states but the last ``keep``."""
        found = self.checkpoints
        for path in found[: max(len(found) - keep, 0)]:
            path.unlink(missing_ok=True)

    def wait(self) -> None:
        """Wait for what is being written, and raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    # ---- metrics and configuration ----

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of an epoch to ``metrics.jsonl`` and ``metrics.csv``."""
        self._append(METRICS, json.dumps(row) + "\n")
        if set(row) <= set(self._columns):
            self._append(TABLE, csv_of([row], self._columns))
        else:  # the first row, or one with values that those before have not
            self._write_table()

    def append_steps(self, row: Mapping[str, Any]) -> None:
        """Add a row to ``steps.jsonl``."""
        self._append(STEPS, json.dumps(row) + "\n")

    def _append(self, name: str, line: str) -> None:
        with self.guarded("written to"), open(self.path / name, "ab") as file:
            file.write(line.encode())

    def _write_table(self) -> None:
        rows = [
            {name: x for name, x in row.items() if isinstance(x, (int, float))}
            for row in read_rows(self.path / METRICS)
        ]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))[:MOST_COLUMNS]
        text = csv_of([dict(zip(self._columns, self._columns, strict=True)), *rows], self._columns)
        with self.guarded("written to"):
            write_atomically(self.path / TABLE, text.encode("utf-8", "backslashreplace"), follow=False)

    def forget(self, epochs: int, steps: int) -> None:
        """Delete the rows of epochs and steps after these numbers, which a resumed run repeats.

        The last step of an epoch may have been saved before its row was written, or after that.
        """
        for name, key, most in ((METRICS, "epoch", epochs), (STEPS, "step", steps)):
            path = self.path / name
            if path.exists():
                with self.guarded("written to"):
                    lines = read_regular(path, 16 * MOST_BYTES, follow=False).splitlines()
                    kept = (line + b"\n" for line in lines if _is_kept(line, key, most))
                    write_atomically(path, kept, follow=False)
        if (self.path / METRICS).exists():
            self._write_table()

    def write_config(self, tables: Mapping[str, Any]) -> None:
        """Write ``config.json``."""
        with self.guarded("written to"):
            write_atomically(self.path / CONFIG, (json.dumps(tables, indent=2) + "\n").encode(), follow=False)

    @contextmanager
    def guarded(self, done: str) -> Iterator[None]:
        """Convert the system's errors to :class:`RunFolderError`, which says what remains."""
        try:
            yield
        except RunFolderError:
            raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            what = "there is no space left on its disk" if full else f"{error.strerror or error}"
            left = self.checkpoints
            kept = f"the last good checkpoint is {left[-1]}" if left else "there is no checkpoint yet"
            todo = "Free some space and continue with resume=True" if full and left else "Choose another folder"
            raise RunFolderError(f"the run folder {self.path} cannot be {done}: {what}; {kept}. {todo}") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The last rows of a file of one JSON table per line; lines that are truncated, or no table, are skipped.

    Only the end is read of a file with more than ``MOST_ROWS`` rows or ``MOST_BYTES`` bytes. Raises
    :class:`FileFormatError` for a link, a folder, a pipe or a device.
    """
    lines = read_end(path, MOST_BYTES).splitlines()
    return [row for row in map(_row, lines[-MOST_ROWS:]) if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as a table; None for one that is not, such as one truncated by a kill or a full disk."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_kept(line: bytes, key: str, most: int) -> bool:
    row = _row(line)
    if row is None:
        return False
    number = row.get(key, 0)
    return not isinstance(number, (int, float)) or number <= most


def _files_aside(folder: Path) -> list[Path]:
    """The files of a run in a folder to which they were moved."""
    return [*_ordinary(folder, _STEP), *(path for name in _REPLACED_FILES if (path := folder / name).is_file())]


def _ordinary(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The ordinary files in a folder (not a link itself) whose names match a pattern; by number, then by name."""
    if folder.is_symlink() and folder.name == CHECKPOINTS:
        return []
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if pattern.match(e.name) and e.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names, key=lambda name: (len(name), name))]


def csv_of(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> str:
    """Lines of a CSV file."""
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore").writerows(rows)
    return text.getvalue()


@cache
def versions() -> dict[str, str]:
    """The versions of backburn and NumPy, as far as they are installed packages."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("backburn", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def environment() -> dict[str, Any]:
    """The surroundings of a run: versions, platform, processors and the command."""
    return {
        "python": platform.python_version(),
        **versions(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
