"""Loggers: callbacks that write the rows of a run where another program shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError
from backburn.data.packages import package
from backburn.train.callbacks import Callback, Row
from backburn.train.run_folder import TENSORBOARD
from backburn.train.runs import read_config

if TYPE_CHECKING:
    from backburn.train.trainer import Trainer


class Logger(Callback):
    """The base class of loggers, which have ``log(row, step)`` and, if they hold something open, ``close()``.

    After each epoch ``log`` gets its row of plain numbers, and every ``log_every`` steps the means since the last time,
    whose names begin with ``steps/``. ``close`` is called at the end of each ``fit``.

        >>> from backburn import train
        >>> class Printed(train.Logger):
        ...     def log(self, row, step):
        ...         print(step, f"{row['loss']:.2f}")
        >>> Printed().log({"loss": 0.5}, 10)
        10 0.50
    """

    only_first = True

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write the numbers that are known after ``step`` steps."""
        raise NotImplementedError(f"{type(self).__name__}.log")

    def close(self) -> None:
        """Finish what is being written."""

    def on_log(self, trainer: Trainer[Any], row: Row) -> None:
        """Write the means of the last steps."""
        self.log({f"steps/{name}": x for name, x in row.items() if name not in _PLACES}, int(row["step"]))

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """Write the row of an epoch."""
        self.log({name: x for name, x in row.items() if name != "step"}, int(row["step"]))

    def on_end(self, trainer: Trainer[Any], error: BaseException | None) -> None:
        """Finish, however the run has ended."""
        self.close()


#: Values of rows that say where a run is.
_PLACES = ("epoch", "step")


class TensorBoard(Logger):
    """Writes files for TensorBoard: ``tensorboard --logdir runs`` shows them.

    Without a ``folder`` they are in ``tensorboard`` in the run's folder. A resumed run replaces the points after the
    step at which it resumes. Raises :class:`BackendUnavailableError` without tensorboardX, the extra ``loggers``.

        >>> import tempfile
        >>> from backburn import train
        >>> folder = tempfile.mkdtemp()
        >>> logger = train.TensorBoard(folder)
        >>> logger.log({"loss": 0.5, "validation/loss": 0.7}, 10)
        >>> logger.close()
        >>> [name[:6] for name in os.listdir(folder)]
        ['events']
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._made = package("TensorBoard", "tensorboardX", "tensorboardX", "'backburn[loggers]'").SummaryWriter
        self.folder = None if folder is None else Path(folder)
        self._step: int | None = None
        self._writer: Any = None

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Find the folder; raises :class:`ArgumentError` if there is none."""
        if self.folder is None:
            if trainer.folder is None:
                raise ArgumentError("TensorBoard: the run has no folder, so name one: TensorBoard('runs/name')")
            self.folder = trainer.folder.path / TENSORBOARD
        self._step = trainer.steps + 1 if trainer.steps else None

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write a point of each curve."""
        if self.folder is None:
            raise ArgumentError("TensorBoard: log needs a folder: TensorBoard('runs/name')")
        if self._writer is None:
            # Default names have only seconds, and files are read in the order of their names.
            suffix = f".{time.time_ns()}"
            self._writer = self._made(str(self.folder), purge_step=self._step, filename_suffix=suffix)
        for name, value in row.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB(Logger):
    """Sends the rows to Weights & Biases; ``options`` are those of ``wandb.init``, such as ``project`` and ``name``.

    ``mode="offline"`` writes files that ``wandb sync`` sends. The configuration is that of the run, if none is given,
    and a resumed run continues the same run there. Raises :class:`BackendUnavailableError` without the package
    ``wandb``.

        train.fit(..., folder="runs/a", callbacks=[train.WandB(project="digits")])
    """

    def __init__(self, **options: Any) -> None:
        self._wandb = package("WandB", "wandb", "wandb", "wandb")
        self._options = options
        self._run: Any = None
        self._id: str | None = options.get("id")

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Start a run there, or continue it."""
        given: dict[str, Any] = {}
        if trainer.folder is not None:
            path = trainer.folder.path
            given = {"dir": str(path), "name": path.name, "config": read_config(path)}
        if self._id is not None:
            given |= {"resume": "allow", "id": self._id}
        self._run = self._wandb.init(**given | self._options)
        self._id = self._run.id

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send a point of each curve."""
        if self._run is None:
            self._run = self._wandb.init(**self._options)
        self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Send what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def state_dict(self) -> dict[str, Any]:
        """The identifier of the run there."""
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a saved :meth:`state_dict`."""
        self._id = state["id"]
