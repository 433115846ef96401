"""``Trainer`` and ``fit``: the loop around a model, a loss and data."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Generic, Literal, TypeVar

from backburn.base.errors import ArgumentError, FileFormatError, RunFolderError
from backburn.distributed import Mesh
from backburn.hints.arguments import explained
from backburn.io import load_state, save_state
from backburn.optim import Average, Optimizer
from backburn.optim.groups import Groups
from backburn.tensor.core.options import bounded, flags, integer, one_of
from backburn.tensor.generators import Generator, default_generator, fork
from backburn.train.arguments import (
    all_callbacks,
    check_optimizer,
    checked_data,
    checked_function,
    checked_metrics,
    modules_of,
    place_of,
    positive,
)
from backburn.train.batches import Data, described, host_examples
from backburn.train.callbacks import Callback, Checkpoints, Row
from backburn.train.evaluation import Evaluation
from backburn.train.iteration import END
from backburn.train.precision import Precision
from backburn.train.rates import changed_rate, lower, optimizers_of, rate_values
from backburn.train.run_folder import RunFolder
from backburn.train.run_state import RunState, averaged, diverged
from backburn.train.several_processes import SeveralProcesses, cut_batches, joined, own_rows
from backburn.train.shared_folder import SharedFolder
from backburn.train.signals import interruptible
from backburn.train.states import MISFITS
from backburn.train.steps import Step, Values, Weights
from backburn.train.sums import READ_AFTER, Sums

M = TypeVar("M")

OnNaN = Literal["stop", "skip", "back_off"]

#: Steps skipped in a row after which a run ends.
MOST_SKIPPED = 50


class Trainer(Generic[M]):
    """A training run and its pieces: one step, one epoch, an evaluation, the state to save and restore.

    ``loss`` is a function of the model and a batch that returns a scalar, the mean over the batch, or a pair of that
    and a dict of further scalars, such as an accuracy. Each may also be a pair of a mean and its weight, such as the
    number of labelled tokens, which is found automatically for ``cross_entropy`` and ``nll_loss``; otherwise means are
    weighted by batch size. A batch is any tree of arrays; the loss receives it as tensors on the model's backend, host
    floats in the dtype of the model's parameters and everything else in its own. ``data`` is any iterable that can be
    iterated over once in each epoch, or a function from the epoch number, counted from 1, to such an iterable. If it
    has a method ``set_epoch``, that is called with the number first.

    - ``optimizer``: any of :mod:`backburn.optim`. A schedule is its learning rate.
    - ``validation``: data to evaluate on after each epoch, whose values are named ``validation/...``, by the loss and
      by ``metrics``: functions like the loss, by name.
    - ``callbacks``: :class:`Callback` objects, called in their order.
    - ``folder``: where ``fit`` keeps the run: configuration, metrics, checkpoints and models, as in
      :mod:`backburn.train.run_folder`. :class:`Checkpoints` among the callbacks says when, and how many.
    - ``capture``: whether to record steps and to replay them; by default on backends that can.
    - ``precision``: a :class:`Precision`, or the name of its dtype.
    - ``accumulate``: the number of batches in a step, whose gradients are averaged with the batches' sizes or the
      losses' own weights, so that a step is that of one large batch.
    - ``clip``: the largest norm of all gradients together, to which greater ones are scaled down.
    - ``average``: an :class:`backburn.optim.Average`, updated by each step. Evaluations and saved models use it.
    - ``seed``: of all random draws in steps; by default it follows from the state of :mod:`backburn.random`.
    - ``on_nan``: what happens when gradients are not finite: ``"stop"`` ends the run with an error before the next
      save, ``"skip"`` skips the step, ``"back_off"`` also halves the learning rate. The latter two wait for the device
      in each step. After 50 such steps in a row the run ends.
    - ``steps_per_epoch``: the number of steps in an epoch for data without an end, or to end epochs earlier. The next
      epoch continues where the last one ended.
    - ``log_every``: the number of steps between calls of ``on_log``.
    - ``progress``: whether to print a line per epoch, and a bar; by default if standard error is a terminal.
    - ``mesh``: a :func:`backburn.distributed.mesh`, on whose backend the model is. Batches are split over its
      ``data_axis``; of several processes, only the first prints and writes, and runs callbacks with ``only_first``.

    Raises :class:`ArgumentError` for wrong options, and :class:`GraphError` for a model that cannot be trained.

        >>> import backburn as bb
        >>> from backburn import nn, optim, train
        >>> model = nn.Linear(1, 1)
        >>> def loss(model, batch):
        ...     return nn.functional.mse_loss(model(batch["x"]), batch["y"])
        >>> batch = {"x": bb.asarray([[0.0], [1.0]]), "y": bb.asarray([[1.0], [3.0]])}
        >>> trainer = train.Trainer(model, loss, [batch], optimizer=optim.Adam(0.1))
        >>> values = trainer.step(batch)
        >>> trainer.fit(epochs=200).history[-1]["loss"] < 1e-3, trainer.steps
        (True, 201)
    """

    def __init__(
        self,
        model: M,
        loss: Callable[[M, Any], Any],
        data: Data,
        *,
        optimizer: Optimizer | Groups,
        validation: Data | None = None,
        metrics: Mapping[str, Callable[[M, Any], Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        folder: str | os.PathLike[str] | None = None,
        capture: bool | None = None,
        precision: Precision | str = "float32",
        accumulate: int = 1,
        clip: float | None = None,
        average: Average | None = None,
        seed: int | None = None,
        on_nan: OnNaN = "stop",
        steps_per_epoch: int | None = None,
        log_every: int | None = None,
        progress: bool | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self.model = model
        self.mesh = mesh
        self.data = checked_data("data", data)
        self.optimizer = optimizer
        self.validation = None if validation is None else checked_data("validation", validation)
        self.metrics = checked_metrics(metrics)
        self.precision = precision if isinstance(precision, Precision) else Precision(precision)
        self.accumulate = integer("Trainer", "accumulate", accumulate, least=1)
        self.clip = None if clip is None else bounded("Trainer", "clip", clip, above=0, below=inf)
        self.average = average
        self.on_nan: OnNaN = one_of("Trainer", "on_nan", on_nan, ("stop", "skip", "back_off"))
        self.steps_per_epoch = positive("steps_per_epoch", steps_per_epoch)
        self.log_every = positive("log_every", log_every)
        self.loss = checked_function("loss", loss)
        check_optimizer(optimizer)
        self._place = place_of(model)
        if mesh is not None:
            cut_batches(mesh, self._place)
            self.data, self.validation = (own_rows(mesh, self._place, x) for x in (self.data, self.validation))
        self.seed = seed
        #: The generator of the draws in steps.
        self.random = (
            Generator(integer("Trainer", "seed", seed, least=0))
            if seed is not None
            else default_generator().spawn(1)[0]
        )
        evaluation_key = self.random.spawn(1)[0].key
        #: Rows of the epochs so far: numbers by name.
        self.history: list[dict[str, float]] = []
        #: The number of whole epochs, of steps, and of batches taken in the epoch that has begun.
        self.epoch = self.steps = self.batches = 0
        #: Why the run ended before its last epoch, or None.
        self.stopped: str | None = None
        #: The last epoch of the running ``fit``, and the one with which it began.
        self.last_epoch: int | None = None
        self.first_epoch = 1
        #: The factor by which ``on_nan="back_off"`` has lowered the initial rates.
        self.lowered = 1.0
        records = self._place.backend.capabilities.capture if capture is None else capture
        flags("Trainer", capture=records)
        fallback: Any = None if not records else "allow" if capture is None else "warn"
        guarded = self.on_nan != "stop"
        self._step = Step(self.loss, self.precision, self.clip, guarded, fallback, self._place.backend)
        self._evaluation = Evaluation(self.loss, self.metrics, self._place, records=fallback is not None)
        #: Whether there are several processes, and whether this is the first, which prints and writes.
        self.is_shared = mesh is not None and mesh.processes > 1
        self.is_first = mesh is None or mesh.rank == 0
        self._processes = SeveralProcesses(mesh) if mesh is not None and self.is_shared else None
        self.folder: RunFolder | SharedFolder | None = None
        if folder is not None:
            self.folder = SharedFolder(folder, mesh) if mesh is not None and self.is_shared else RunFolder(folder)
        note = _print_note if folder is not None and self.is_first else None
        self._run = RunState(self._place, evaluation_key, note)
        #: Further plain values by name, for ``config.json`` and for the metadata of model files.
        self.about: dict[str, Any] = {}
        self._noted_length = False
        self._rates = {name: optimizer.lr for name, optimizer in optimizers_of(optimizer).items()}
        monitored = "loss" if self.validation is None else "validation/loss"
        self.callbacks = all_callbacks(callbacks, self._rates, monitored, progress, self.is_first)
        self.checkpoints = next((c for c in self.callbacks if isinstance(c, Checkpoints)), Checkpoints())

    # ---- pieces ----

    def step(self, *batches: Any) -> dict[str, Any]:
        """Take one step on a batch, or on several whose gradients are averaged; returns its values as 0-d tensors.

        The values are those of the loss function, without history, and with ``clip`` the ``gradient_norm`` before it.
        A batch that does not fit is described in a note of the error.
        """
        with fork(self.random):
            return self._stepped(batches)[0]

    def _stepped(self, batches: Sequence[Any]) -> tuple[Values, Weights]:
        """:meth:`step`, within a context of the run's random numbers, with the weights of the values."""
        tensors = tuple(batches)
        try:
            tensors = tuple([self._place.tensors(batch) for batch in batches])
            values, weights, taken = self._step((self.model, self.optimizer, self.average), tensors)
        except Exception as error:
            error.add_note(f"In step {self.steps + 1}, with the batch {' and '.join(map(described, tensors))}.")
            raise
        if taken:
            self.steps += 1
            self._run.skipped_in_row = 0
        else:
            self._skip()
        if self.mesh is not None:  # reading a sum of addends is communication, and a callback may read on one process
            values, weights = joined(self.mesh, values), joined(self.mesh, weights)
        return values, weights

    def run_epoch(self) -> dict[str, float]:
        """Train on all data once, or on the rest of an epoch that has begun, and evaluate; returns the epoch's row.

        The row has ``epoch``, ``step``, the means of the loss and its further values over the examples, ``lr``,
        ``validation/...``, ``seconds`` (of which ``seconds/data``, ``seconds/steps`` and ``seconds/validation``), and
        ``examples_per_second`` while training. An epoch that ``stop`` has ended early has an empty row.

        Raises :class:`ArgumentError` for data without a batch, and :class:`NumericalInstabilityError` where the loss or
        a parameter is no longer finite.
        """
        self._train_mode(True)
        run, started = self._run, time.perf_counter()
        with fork(self.random):
            finished = self._take_steps()
        if not finished:
            return {}
        run.read(self)
        run.check_parameters(self)
        row: dict[str, float] = {"epoch": self.epoch + 1, "step": self.steps, **run.sums.means()}
        row |= rate_values(self.optimizer)
        if self._step.guarded:
            row["skipped"] = run.skipped
        if self.precision.scales:
            row["loss_scale"] = self.precision.scale
        trained = time.perf_counter() - started
        if self.validation is not None:
            run.lap()
            row |= {f"validation/{name}": value for name, value in self.evaluate(self.validation).items()}
            run.lap("validation")
        row["examples"] = run.sums.examples
        row["examples_per_second"] = run.sums.examples_here / trained if trained else 0.0
        row["seconds"] = time.perf_counter() - started
        row |= {f"seconds/{name}": value for name, value in run.seconds.items()}
        run.begin_epoch()
        self.epoch += 1
        self.batches = 0
        self.history.append(row)
        return row

    def evaluate(self, data: Data | None = None) -> dict[str, float]:
        """The means over ``data`` of the loss, its further values and the metrics, by name; nothing is recorded.

        ``data`` are the validation data by default. The model is in ``eval()`` mode, has the averaged parameters if
        there is an ``average``, and draws the same random numbers at each evaluation. Raises :class:`ArgumentError` if
        there is no batch.
        """
        source = self.validation if data is None else checked_data("evaluate", data)
        if source is None:
            raise ArgumentError("evaluate: takes data, since this trainer has no validation data")
        with averaged(self.model, self.average):
            return self._evaluation(self.model, source, Generator(self._run.evaluation_key), self.epoch + 1)

    def stop(self, reason: str) -> None:
        """End the run after the present step or epoch; the reason is kept in :attr:`stopped`.

        Any of several processes can end the run for all, when they next synchronize.
        """
        if self._processes is not None:  # a signal may come at any moment
            self._processes.reason = reason
        else:
            self.stopped = reason

    def fit(self, epochs: int, *, resume: bool = False, overwrite: bool = False) -> Trainer[M]:
        """Train until ``epochs`` epochs have ended, those before this call included; returns the trainer.

        The model is in ``eval()`` mode afterwards. With a folder, the run is saved there, and ``resume`` continues the
        run in it, if there is one: in the middle of an epoch for data whose position can be saved (bitwise identical to
        an uninterrupted run), else at the beginning of one. ``overwrite`` replaces a run in the folder, which is
        deleted after the first step, and restored if there is none. Ctrl-C and SIGTERM end the run after the present
        step, save it, and raise :class:`KeyboardInterrupt`.

        Raises :class:`RunFolderError` for a folder with a run, one that another process trains in or that cannot be
        written to, and for a run of another model or other data; it says what differs.
        """
        self.last_epoch, self.stopped = integer("fit", "epochs", epochs, least=1), None
        if self._processes is not None:
            self._processes.reason = None
        flags("fit", resume=resume, overwrite=overwrite)
        if resume and overwrite:
            raise ArgumentError("fit: resume continues the run in the folder, and overwrite replaces it: pass one")
        folder = self.folder
        if folder is None:
            if resume or overwrite:
                raise ArgumentError("fit: resume and overwrite are about a run in a folder: pass folder='runs/name'")
            self._fit()
            return self
        is_own = self._run.last_saved >= 0  # a second call, which continues the run that the first has saved
        folder.open(resume=resume or is_own, overwrite=overwrite)
        try:
            if not is_own and not (resume and self.resume()):
                folder.write_config(self._run.config(self))
            with interruptible(self.stop) as interrupt:
                try:
                    self._fit()
                finally:
                    if folder.replaces:  # the other run is restored, and this one has saved nothing
                        self._run.last_saved = -1
                    folder.close()
            raised = interrupt()
            if self._processes is not None:
                raised = self._processes.interrupt(raised)
            if raised is not None:
                raise raised
        finally:
            folder.close()
        return self

    # ---- the loop ----

    def _fit(self) -> None:
        assert self.last_epoch is not None
        self.first_epoch = self.epoch + 1
        error: BaseException | None = None
        try:
            self._note_data_and_rate()
            for callback in self.callbacks:
                callback.on_start(self)
            self._agree(False)
            if self.folder is not None and not self.folder.has_checkpoints:
                self.save()  # raises before the first step if the folder cannot be written to
            while self.epoch < self.last_epoch and self.stopped is None:
                row = self.run_epoch()
                if row:
                    self._end_epoch(row)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._train_mode(False)
            try:
                self._run.save_end(self, error)
            except BaseException as raised:
                error = error or raised
                raise
            finally:
                for callback in self.callbacks:
                    callback.on_end(self, error)

    def _end_epoch(self, row: Row) -> None:
        """Write the row of an epoch, call the callbacks, and save if that is due."""
        if self.folder is not None:
            self.folder.append(row)
        for callback in self.callbacks:
            callback.on_epoch(self, row)
        is_due = self._agree(self.checkpoints.due_after_epoch())
        if self.folder is not None:
            self._run.save_epoch(self, row, is_due)

    def _take_steps(self) -> bool:
        """Take the remaining steps of an epoch; returns whether it has ended, rather than been stopped."""
        run = self._run
        stepped = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        run.lap()
        for batches in self._batches_of_steps():
            row = self._take(batches)
            for callback in stepped:
                callback.on_step(self, row)
            run.lap("steps")
            if self._agree(self._is_save_due()):
                self.save()
                run.lap("checkpoints")
            if self.stopped is not None:
                return False
        return True

    def _batches_of_steps(self) -> Iterator[list[Any]]:
        """The batches of each remaining step of an epoch: as many as a step has, or what remains of the data."""
        iteration, epoch, is_long = self._run.iteration, self.epoch + 1, self.steps_per_epoch is not None
        end = self.batches_per_epoch if is_long else None
        group: list[Any] = []
        while end is None or self.batches < end:
            batch = iteration.next_batch(self.data, epoch, again=is_long)
            self._run.lap("data")
            if batch is END:
                break
            group.append(batch)
            self.batches += 1
            if len(group) == self.accumulate:
                yield group
                group.clear()
        if group:
            yield group
        if not is_long:
            iteration.end()
            self._note_length()

    def _take(self, batches: list[Any]) -> Row:
        """One step on batches; returns its row."""
        run, before, epoch = self._run, self.steps, self.epoch + 1
        run.check_layout(batches[0])
        values, weights = self._stepped(batches)
        if self.steps != before:
            if self.folder is not None:
                self.folder.start()
            run.unread.append((sum(map(host_examples, batches)), values, weights))
            if len(run.unread) >= READ_AFTER:
                run.read(self)
            if self.log_every is not None and self.steps % self.log_every == 0:
                self._log(epoch)
        return {"epoch": epoch, "step": self.steps, **values}

    def _log(self, epoch: int) -> None:
        self._run.read(self)
        row = {"epoch": epoch, "step": self.steps, **self._run.logged.means(), **rate_values(self.optimizer)}
        self._run.logged = Sums()
        if self.folder is not None and self.folder.is_open:
            self.folder.append_steps(row)
        for callback in self.callbacks:
            callback.on_log(self, row)

    def _skip(self) -> None:
        """Count a skipped step, and lower the rate with ``on_nan="back_off"``."""
        self._run.skipped += 1
        self._run.skipped_in_row += 1
        if self._run.skipped_in_row >= MOST_SKIPPED:
            raise diverged(self, f"gradients were not finite in {MOST_SKIPPED} steps in a row")
        if self.on_nan == "back_off" and self.precision.scale <= 1.0:  # a larger scale may be the cause, and is lowered
            self._lower(self.lowered / 2.0)

    def _lower(self, factor: float) -> None:
        self.lowered = factor
        lower(self.optimizer, self._rates, factor)

    def _is_save_due(self) -> bool:
        """Whether a save within an epoch is due and possible."""
        if self.folder is None or not self.folder.is_open or not self.checkpoints.due_after_step(self.steps):
            return False
        return self._run.iteration.has_position(self.data)

    def _agree(self, is_due: bool) -> bool:
        """Whether a save is due, by the clock of the first process; and stop if any process wants to."""
        if self._processes is None:
            return is_due
        is_due, reason = self._processes.agree(is_due)
        self.stopped = self.stopped or reason
        return is_due

    def _train_mode(self, mode: bool) -> None:
        for node in modules_of(self.model):
            node.train(mode)

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """The complete state, as a tree of tensors and plain values, which further steps do not change.

        It has the parameters, the optimizer, the average, the random state, the loss scale, rates with a state, the
        callbacks' states, the history, the sums of an epoch that has begun, and the position in the data. Raises
        :class:`ArgumentError` within an epoch if the position in the data cannot be saved.
        """
        return self._run.tree(self)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state`.

        Raises :class:`RunFolderError` for a state of another model, optimizer or data, and says what differs. After any
        error the trainer is unchanged. If only the first batch shows that the data are different, the next step raises
        the error.
        """
        self._run.restore(self, state, self._lower)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Save the state to a file, or without ``path`` as a checkpoint in the run's folder.

        Checkpoints are written in the background; an error in writing one is raised by the next call, or at the end of
        ``fit``. Raises :class:`NumericalInstabilityError` where a loss or parameter is not finite: no bad state is
        saved.
        """
        state = self.state()
        if self.batches:
            self._run.check_parameters(self)
        if path is not None:
            save_state(path, state)
        else:
            self._run.save(self, state, {})

    def resume(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Restore the state of a file of :meth:`save`, or the last checkpoint in the run's folder that can be read.

        Returns whether there was one in the folder. Raises :class:`RunFolderError` as :meth:`load_state` does.
        """
        if path is not None:
            self._load(path, load_state(path))
            return True
        if self.folder is None:
            raise ArgumentError("resume: takes the path of a saved state, since this trainer has no folder")
        found = self.folder.latest(self._note)
        if found is None:
            return False
        self._load(*found)
        if self.folder.is_open:
            self.folder.forget(self.epoch, self.steps)
        return True

    def _load(self, path: str | os.PathLike[str], state: Any) -> None:
        try:
            self.load_state(state)
        except RunFolderError as error:
            raise RunFolderError(f"{os.fspath(path)}: {error}") from error
        except MISFITS as error:
            raise FileFormatError(f"{os.fspath(path)}: this is not the state of a training run ({error})") from error

    # ---- reports ----

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches in an epoch, if it is known."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch * self.accumulate
        return len(self.data) if hasattr(self.data, "__len__") else None

    @property
    def rates(self) -> dict[str, Any]:
        """The learning rates as they were given, numbers or schedules; of groups of parameters by their names."""
        return self._rates

    @property
    def not_replayed(self) -> str | None:
        """Why the last step was not replayed: empty if it was, None if steps are not recorded."""
        return self._step.reason

    @property
    def plans(self) -> list[Any]:
        """The passes over memory of a recorded step's parts, as text; empty before, or if steps are not recorded."""
        return self._step.plans

    def _note_data_and_rate(self) -> None:
        """Note at the start that a schedule has changed, and that the data have no length."""
        if self.folder is None:
            return
        if self.history and (changed := changed_rate(self.optimizer, self.history[-1])) is not None:
            self._note(
                f"note: the run continues at another rate: {changed}. A schedule over more epochs has other rates"
            )
        if self.batches_per_epoch is None and hasattr(self.data, "__iter__"):
            self._note(
                f"note: the data, a {type(self.data).__name__}, have no length: an epoch ends where they do, or "
                f"after steps_per_epoch steps"
            )

    def _note_length(self) -> None:
        """Note, once, that an epoch had another number of batches than the data's length."""
        expected = self.batches_per_epoch
        if expected is not None and expected != self.batches and not self._noted_length:
            self._noted_length = True
            self._note(
                f"note: the data, a {type(self.data).__name__}, say that they have {expected} batches, and epoch "
                f"{self.epoch + 1} had {self.batches}"
            )

    def _note(self, words: str) -> None:
        if self.is_first:
            _print_note(words)


def _print_note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@explained
def fit(
    model: M,
    loss: Callable[[M, Any], Any],
    data: Data,
    *,
    optimizer: Optimizer | Groups,
    epochs: int,
    validation: Data | None = None,
    metrics: Mapping[str, Callable[[M, Any], Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    capture: bool | None = None,
    precision: Precision | str = "float32",
    accumulate: int = 1,
    clip: float | None = None,
    average: Average | None = None,
    seed: int | None = None,
    on_nan: OnNaN = "stop",
    steps_per_epoch: int | None = None,
    log_every: int | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> Trainer[M]:
    """Train a model on data for some epochs; returns the :class:`Trainer`, whose arguments these are.

    The model is trained in place, and left in ``eval()`` mode.

        >>> import numpy as np
        >>> import backburn as bb
        >>> from backburn import data, nn, optim, train
        >>> x = np.linspace(-1, 1, 64)[:, None]
        >>> def loss(model, batch):
        ...     x, y = batch
        ...     return nn.functional.mse_loss(model(x), y)
        >>> bb.random.seed(0)
        >>> model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        >>> batches = data.batches(x, x**2, batch_size=16, seed=0)
        >>> run = train.fit(model, loss, batches, optimizer=optim.Adam(0.02), epochs=100)
        >>> run.history[-1]["loss"] < 0.01, run.history[-1]["step"]
        (True, 400)
    """
    trainer = Trainer(
        model,
        loss,
        data,
        optimizer=optimizer,
        validation=validation,
        metrics=metrics,
        callbacks=callbacks,
        folder=folder,
        capture=capture,
        precision=precision,
        accumulate=accumulate,
        clip=clip,
        average=average,
        seed=seed,
        on_nan=on_nan,
        steps_per_epoch=steps_per_epoch,
        log_every=log_every,
        progress=progress,
        mesh=mesh,
    )
    return trainer.fit(epochs, resume=resume, overwrite=overwrite)
