"""``SharedFolder``: the folder of a run on several processes; the first one writes all files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backburn.base.errors import RunFolderError
from backburn.distributed import Mesh
from backburn.io import load_state, save_model, save_state
from backburn.train.run_folder import RunFolder


class SharedFolder:
    """A :class:`RunFolder` for the processes of a mesh, which call the same methods in the same order.

    The first process owns the folder, and its errors are raised on all. Sharded tensors are gathered one after the
    other as it writes them; the others write nothing. All processes read the state from which a run resumes.
    """

    def __init__(self, path: str | os.PathLike[str], mesh: Mesh) -> None:
        self._own = RunFolder(path)
        self._mesh = mesh
        self.path: Path = self._own.path
        self.is_open = self.replaces = False

    def __repr__(self) -> str:
        return f"SharedFolder({str(self.path)!r})"

    def open(self, *, resume: bool = False, overwrite: bool = False) -> None:
        """Lock the folder for the first process; see :meth:`RunFolder.open`."""

        def open_own() -> bool:
            self._own.open(resume=resume, overwrite=overwrite)
            return self._own.replaces

        self.replaces = self._mesh.first(open_own)
        self.is_open = True

    def close(self) -> None:
        """Release the lock. Processes need not call it together, since it also ends a failed run."""
        self.is_open = self.replaces = False
        if self._mesh.rank == 0:
            self._own.close()

    def start(self) -> None:
        """Delete the run that is overwritten, if there is one; see :meth:`RunFolder.start`."""
        if self.replaces:
            self._mesh.first(self._own.start)
            self.replaces = False

    @property
    def checkpoints(self) -> list[Path]:
        """The files of the saved states, as this process sees them."""
        return self._own.checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether a state has been saved."""
        return self._mesh.first(lambda: self._own.has_checkpoints)

    def latest(self, note: Callable[[str], None]) -> tuple[Path, Any] | None:
        """The last state that can be read, and its file; see :meth:`RunFolder.latest`.

        Raises :class:`RunFolderError` where a process does not see the file.
        """
        found: list[Any] = []

        def read() -> Path | None:
            found.append(self._own.latest(note))
            return None if found[0] is None else found[0][0]

        path = self._mesh.first(read)
        if path is None:
            return None
        missing = self._mesh.communicator.gather_objects(not path.is_file())
        if True in missing:
            raise RunFolderError(
                f"process {missing.index(True)} does not see the checkpoint {path}: a run is resumed from a folder "
                f"that all processes see"
            )
        return (path, found[0][1]) if found else (path, load_state(path, verify=False))

    def save(
        self,
        state: Mapping[str, Any],
        keep: int,
        models: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
    ) -> None:
        """Write a state, and models by their files' names; see :meth:`RunFolder.save`. Waits until written."""
        files: list[tuple[Path, Callable[..., None]]] = [
            (self.path / name, partial(save_model, state=tensors, about=about))
            for name, (tensors, about) in models.items()
        ]
        files.append((self._own.checkpoint_of(state["steps"]), partial(save_state, tree=state)))
        failed: list[Exception] = []
        for path, write in files:
            is_written = self._mesh.rank == 0 and not failed
            try:
                write(path if is_written else os.devnull)  # after a failure, shards must still be gathered
            except Exception as error:
                failed.append(error)

        def finish() -> None:
            with self._own.guarded("saved"):
                if failed:
                    raise failed[0]
                self._own.delete_old(keep)

        self._mesh.first(finish)

    def wait(self) -> None:
        """Do nothing: saved states are already written."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of an epoch; see :meth:`RunFolder.append`."""
        self._mesh.first(lambda: self._own.append(row))

    def append_steps(self, row: Mapping[str, Any]) -> None:
        """Add a row to ``steps.jsonl``."""
        self._mesh.first(lambda: self._own.append_steps(row))

    def forget(self, epochs: int, steps: int) -> None:
        """Delete the rows that a resumed run repeats; see :meth:`RunFolder.forget`."""
        self._mesh.first(lambda: self._own.forget(epochs, steps))

    def write_config(self, tables: Mapping[str, Any]) -> None:
        """Write ``config.json``."""
        self._mesh.first(lambda: self._own.write_config(tables))
