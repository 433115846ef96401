"""Callbacks: what happens during a run besides the steps, such as early stopping and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from math import inf, isnan
from typing import TYPE_CHECKING, Any, TextIO

from backburn.base.errors import ArgumentError, hint_for
from backburn.tensor.core.options import bounded, integer, one_of
from backburn.train.runs import duration

if TYPE_CHECKING:
    from backburn.train.trainer import Trainer

#: The minimum time in seconds between saves after epochs, which a killed run may lose in addition to an epoch.
PAUSE = 1.0

#: A row of the history: numbers by name. A row of a step may hold 0-d tensors.
Row = dict[str, Any]


class Callback:
    """The base class of callbacks, with a method for each event of a run; the defaults do nothing.

    ``row`` has ``"epoch"`` (from 1 on), ``"step"`` (the number of steps taken), ``"loss"``, the further values that the
    loss returned, and more after an epoch. A callback ends the run by ``trainer.stop(reason)``. A callback with a state
    that a resumed run needs has ``state_dict`` and ``load_state_dict``, whose values are trees of plain values and
    tensors; it is saved under the name of the class. Each of several processes has its own callbacks, which do the same
    thing; a callback that writes or prints sets ``only_first = True``.

        >>> from backburn import train
        >>> class Target(train.Callback):
        ...     "Ends a run at a loss."
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...     def on_epoch(self, trainer, row):
        ...         if row["loss"] < self.loss:
        ...             trainer.stop(f"the loss is below {self.loss}")
    """

    #: Whether only the first of several processes has the callback, since it only writes or prints.
    only_first = False

    def on_start(self, trainer: Trainer[Any]) -> None:
        """A call of ``fit`` begins; the state to resume from has been loaded."""

    def on_step(self, trainer: Trainer[Any], row: Row) -> None:
        """A step was taken. Values of ``row`` are 0-d tensors: ``float(row["loss"])`` waits for the device."""

    def on_log(self, trainer: Trainer[Any], row: Row) -> None:
        """The mean values of the last ``log_every`` steps are known, as plain numbers."""

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """An epoch has ended, and its row, of plain numbers, is the last one of ``trainer.history``."""

    def on_end(self, trainer: Trainer[Any], error: BaseException | None) -> None:
        """A call of ``fit`` ends, by ``error`` if that is not None. The last state has been saved."""


class Monitor(Callback):
    """The base class of callbacks that follow one value of the epochs' rows.

    ``mode`` is ``"min"`` if smaller values are better, ``"max"`` if larger ones are.
    """

    def __init__(self, monitor: str, mode: str = "min", min_delta: float = 0.0) -> None:
        name = type(self).__name__
        given: object = monitor
        if not isinstance(given, str):
            raise ArgumentError(f"{name}: monitor is the name of a value, such as 'validation/loss', not {monitor!r}")
        self.monitor = monitor
        self.mode = one_of(name, "mode", mode, ("min", "max"))
        self.min_delta = bounded(name, "min_delta", min_delta, least=0, below=inf)
        #: The best value so far, or None.
        self.best: float | None = None

    def value_of(self, row: Mapping[str, Any]) -> float | None:
        """The value in a row, or None if the epoch has none: all of its steps were skipped.

        Raises :class:`ArgumentError` where epochs have no value of that name.
        """
        return _value(type(self).__name__, row, self.monitor)

    def improves(self, value: float) -> bool:
        """Whether ``value`` is better than the best so far, which it then replaces. NaN is not."""
        sign = 1.0 if self.mode == "min" else -1.0
        if isnan(value) or (self.best is not None and sign * value >= sign * self.best - self.min_delta):
            return False
        self.best = value
        return True


def _value(name: str, row: Mapping[str, Any], monitor: str) -> float | None:
    """A value of an epoch, None for one without steps. Raises :class:`ArgumentError` for a name that epochs lack."""
    if monitor in row:
        return float(row[monitor])
    of_validation, is_validated = monitor.startswith("validation/"), any(key.startswith("validation/") for key in row)
    if "loss" in row and of_validation and not is_validated:
        raise ArgumentError(
            f"{name}: the epochs have no {monitor!r}, as there are no validation data: watch 'loss', for one"
        )
    if "loss" in row or (of_validation and is_validated):
        raise ArgumentError(f"{name}: the epochs have no {monitor!r}. {hint_for(monitor, row)}")
    return None


class EarlyStopping(Monitor):
    """Ends a run when a value has not improved by more than ``min_delta`` for ``patience`` epochs, at least one.

    Epochs without a value, because all their steps were skipped, are not counted.

    Raises :class:`ArgumentError` for options out of range, and in the first epoch if it has no such value.

        >>> from backburn import train
        >>> train.EarlyStopping("validation/accuracy", patience=3, mode="max").patience
        3
    """

    def __init__(
        self, monitor: str = "validation/loss", patience: int = 5, mode: str = "min", min_delta: float = 0.0
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = integer("EarlyStopping", "patience", patience, least=0)
        #: The number of epochs since the best one.
        self.failures = 0

    def on_start(self, trainer: Trainer[Any]) -> None:
        """End a resumed run that had ended before."""
        self._decide(trainer)

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """Compare the value of the epoch."""
        value = self.value_of(row)
        if value is not None:
            self.failures = 0 if self.improves(value) else self.failures + 1
        self._decide(trainer)

    def _decide(self, trainer: Trainer[Any]) -> None:
        if self.failures >= max(self.patience, 1):
            trainer.stop(f"{self.monitor} has not improved on {self.best} in {self.failures} epochs")

    def state_dict(self) -> dict[str, Any]:
        """The best value, and the epochs since then."""
        return {"best": self.best, "failures": self.failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`."""
        self.best, self.failures = state["best"], int(state["failures"])


class Plateau(Callback):
    """Passes a value to the optimizer's :class:`backburn.optim.schedules.ReduceOnPlateau` rate after each epoch.

    A trainer adds one automatically for such a rate, for ``"validation/loss"`` if there are validation data, else for
    ``"loss"``; the state of the rate is saved with the run.
    """

    def __init__(self, monitor: str = "validation/loss") -> None:
        self.monitor = monitor

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """Let the rate observe the value."""
        value = _value("Plateau", row, self.monitor)
        for rate in trainer.rates.values():
            if value is not None and hasattr(rate, "observe"):
                rate.observe(value)


class Checkpoints(Monitor):
    """When the states of a run are saved in its folder, and how many are kept; a trainer with a folder has one.

    A state is saved after an epoch unless the last save is less than a second ago, within an epoch after ``every``
    steps and when ``minutes`` have passed, for data whose position can be saved, and at the end of ``fit``, including
    one by a signal. The ``last`` states are kept. The model of the epoch with the best value of ``best`` is saved as
    ``best.safetensors``; without validation data there is none by default.

    Raises :class:`ArgumentError` for options out of range, and in the first epoch if it has no value ``best``.

        >>> from backburn import train
        >>> train.Checkpoints(last=2, best="validation/accuracy", mode="max").last
        2
    """

    def __init__(
        self,
        last: int = 3,
        best: str | None = "validation/loss",
        mode: str = "min",
        *,
        every: int | None = None,
        minutes: float = 5.0,
    ) -> None:
        super().__init__(best or "", mode)
        self.last = integer("Checkpoints", "last", last, least=1)
        self.every = None if every is None else integer("Checkpoints", "every", every, least=1)
        self.minutes = bounded("Checkpoints", "minutes", minutes, above=0)
        self._saved_at = 0.0

    def saved(self) -> None:
        """Record that a state has just been saved."""
        self._saved_at = time.monotonic()

    def due_after_step(self, steps: int) -> bool:
        """Whether a state is to be saved within an epoch."""
        if self.every is not None and steps % self.every == 0:
            return True
        return time.monotonic() - self._saved_at > 60.0 * self.minutes

    def due_after_epoch(self) -> bool:
        """Whether a state is to be saved after an epoch."""
        return time.monotonic() - self._saved_at > PAUSE

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """Raise an error for a value that the epochs lack, unless it is the default's."""
        if self.monitor not in ("", "validation/loss"):
            self.value_of(row)

    def is_best(self, row: Mapping[str, Any]) -> bool:
        """Whether an epoch is better than all before."""
        return bool(self.monitor) and self.monitor in row and self.improves(float(row[self.monitor]))

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`."""
        self.best = state["best"]


class Progress(Callback):
    """A line per epoch on standard error; on a terminal with rate and time left, and with ``tqdm`` a bar.

    A trainer adds it automatically if standard error is a terminal, and for ``progress=True``. Lines are written to
    ``stream`` and the bar to ``bar``, if given.
    """

    only_first = True

    def __init__(self, stream: TextIO | None = None, bar: TextIO | None = None) -> None:
        self._stream = stream
        self._bar_stream = bar or stream
        self._bar: Any = None
        self._made_for = 0
        self._shown = 0.0
        self._begun = 0.0

    def on_start(self, trainer: Trainer[Any]) -> None:
        """Say where a resumed run continues."""
        self._begun = time.monotonic()
        if trainer.steps:
            self._say(f"resumed after step {trainer.steps}, in epoch {trainer.epoch + 1}")

    def on_step(self, trainer: Trainer[Any], row: Row) -> None:
        """Move the bar."""
        bar = self._bar if self._made_for == row["epoch"] else self._new_bar(trainer, row["epoch"])
        if bar is not None:
            bar.update(trainer.batches - bar.n)
            now = time.monotonic()
            if now - self._shown > 0.5:  # reading a loss waits for the device
                bar.set_postfix_str(f"loss {float(row['loss']):.4g}", refresh=False)
                self._shown = now

    def _new_bar(self, trainer: Trainer[Any], epoch: int) -> Any:
        self._close()
        self._made_for = epoch
        stream = self._bar_stream or sys.stderr
        if not stream.isatty():
            return None
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            if epoch == trainer.first_epoch:
                self._say("note: without tqdm there is no progress bar: pip install 'backburn[train]'")
            return None
        total = trainer.batches_per_epoch
        words = f"epoch {epoch}/{trainer.last_epoch or '?'}"
        self._bar = tqdm(desc=words, total=total, unit="batch", leave=False, file=stream, initial=trainer.batches - 1)
        return self._bar

    def on_epoch(self, trainer: Trainer[Any], row: Row) -> None:
        """Print the row of an epoch, on a terminal with the rate and the time left at the pace of this ``fit``."""
        self._close()
        line = line_of(row, trainer.last_epoch)
        if (self._stream or sys.stderr).isatty():  # in a file, each run has the same lines except for the seconds
            last, done = trainer.last_epoch or 0, trainer.epoch - trainer.first_epoch + 1
            left = (time.monotonic() - self._begun) / max(done, 1) * (last - trainer.epoch)
            rate = f"  {row['examples_per_second']:,.0f} examples/s" if "examples_per_second" in row else ""
            line += rate + (f"  {duration(left)} left" if left > 0.0 else "")
        self._say(line)

    def on_end(self, trainer: Trainer[Any], error: BaseException | None) -> None:
        """Close the bar, and say why a run has ended early."""
        self._close()
        if error is None and trainer.stopped:
            self._say(f"stopped: {trainer.stopped}")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _say(self, words: str) -> None:
        print(words, file=self._stream or sys.stderr, flush=True)


#: Values of a row that a line of progress leaves out.
_HIDDEN = ("epoch", "step", "examples", "examples_per_second")


def line_of(row: Mapping[str, Any], epochs: int | None = None) -> str:
    """The row of an epoch as a line: ``epoch 3/10  loss 0.4  validation/loss 0.5  1.2 s``."""
    width = len(str(epochs)) if epochs else 1
    words = [f"epoch {row['epoch']:>{width}}" + (f"/{epochs}" if epochs else "")]
    for name, value in row.items():
        if name.endswith("accuracy"):
            words.append(f"{name} {value:7.2%}")
        elif name not in _HIDDEN and not name.startswith("seconds"):
            words.append(f"{name} {value:<8.4g}".rstrip() if name == "lr" else f"{name} {value:.4g}")
    return "  ".join([*words, f"{row['seconds']:.1f} s"])
