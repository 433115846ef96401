"""``Trainer`` and ``fit``: the loop around a model, a loss and data."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import inf
from typing import Any, Generic, Literal, TypeVar

from backburn.base.errors import (
    ArgumentError,
    BackburnError,
    FileFormatError,
    NumericalInstabilityError,
    RunFolderError,
)
from backburn.base.mutable_trees import MutableTree
from backburn.data.loader import Batches
from backburn.decorators.sharding import levels_of, spec_without_shards
from backburn.distributed import Cutting, Mesh, place, placement
from backburn.distributed.rows import Rows
from backburn.hints.arguments import explained
from backburn.io import load_state, save_state
from backburn.optim import Average, Optimizer
from backburn.optim.groups import Groups
from backburn.tensor.core.host import asarray
from backburn.tensor.core.options import bounded, flags, integer, one_of
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.generators import Generator, default_generator, fork
from backburn.tensor.shape import stack
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
from backburn.train.batches import Data, batches_of, described, host_examples, layout, not_finite
from backburn.train.callbacks import Callback, Checkpoints, Row
from backburn.train.evaluation import Evaluation
from backburn.train.positions import has_position, iterator_at, position_of
from backburn.train.precision import Precision
from backburn.train.rates import changed_rate, lower, optimizers_of, rate_values
from backburn.train.run_folder import BEST, MODEL, RunFolder, environment, versions
from backburn.train.shared_folder import SharedFolder
from backburn.train.signals import Terminated, interruptible
from backburn.train.states import MISFITS, Description, check_parts, load_model_state, model_state
from backburn.train.steps import Step, Values, Weights
from backburn.train.sums import Entry, Sums

M = TypeVar("M")

#: A loss: of a model and a batch, a scalar, or a pair of a scalar and further scalars by name.
Loss = Callable[[Any, Any], Any]
#: A metric: of a model and a batch, a scalar that is a mean over the batch.
Metric = Callable[[Any, Any], Any]
OnNaN = Literal["stop", "skip", "back_off"]

#: Steps whose values are kept on the device before they are read, all at once.
READ_AFTER = 100
#: Steps skipped in a row after which a run ends.
MOST_SKIPPED = 50


class Trainer(Generic[M]):
    """A training run and its pieces: one step, one epoch, an evaluation, the state to save and restore.

    ``loss`` is a function of the model and a batch that returns a scalar, the mean over the batch, or a pair of it and
    a dict of further scalars, such as an accuracy. In the place of each may stand a pair of a mean and its weight, such
    as the number of tokens with a label, which is found for ``cross_entropy`` and ``nll_loss`` themselves; else a batch
    weighs as much as it has examples. A batch is any tree of arrays; the loss gets it with tensors on the
    model's backend, host floats in the dtype of the model's parameters and all else in its own. ``data`` is anything
    that can be iterated over once in each epoch, or a function from the number of the epoch, from 1 on, to that. Where
    it has a method ``set_epoch``, that is called with the number first.

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
      save, ``"skip"`` leaves the step out, ``"back_off"`` also halves the learning rate. The latter two ask the device
      in each step. After 50 such steps in a row the run ends.
    - ``steps_per_epoch``: the number of steps in an epoch for data without an end, or to end epochs earlier. The next
      epoch goes on where the last one ended.
    - ``log_every``: the number of steps between calls of ``on_log``.
    - ``progress``: whether to print a line per epoch, and a bar; by default if standard error is a terminal.
    - ``mesh``: a :func:`backburn.distributed.mesh`, on whose backend the model is. Batches are cut over its
      ``data_axis``; of several processes the first one prints and writes, and has the callbacks that do.

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
            self._cut_over(mesh)
        self.seed = seed
        #: The generator of the draws in steps.
        self.random = (
            Generator(integer("Trainer", "seed", seed, least=0))
            if seed is not None
            else default_generator().spawn(1)[0]
        )
        self._evaluation_key = self.random.spawn(1)[0].key
        #: Rows of the epochs so far: numbers by name.
        self.history: list[dict[str, float]] = []
        #: The number of whole epochs, of steps, and of batches taken in the epoch that has begun.
        self.epoch = self.steps = self.batches = 0
        #: Why the run ended before its last epoch, or None.
        self.stopped: str | None = None
        self._told: str | None = None
        #: The last epoch of the running ``fit``, and the one with which it began.
        self.last_epoch: int | None = None
        self.first_epoch = 1
        #: The rate that each optimizer had at first, and the factor by which ``on_nan="back_off"`` has lowered it.
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
        self.folder: RunFolder | SharedFolder | None = None
        if folder is not None:
            self.folder = SharedFolder(folder, mesh) if mesh is not None and self.is_shared else RunFolder(folder)
        #: Further plain values by name, for ``config.json`` and for what model files say about themselves.
        self.about: dict[str, Any] = {}
        self._rates = {name: optimizer.lr for name, optimizer in optimizers_of(optimizer).items()}
        monitored = "loss" if self.validation is None else "validation/loss"
        self.callbacks = all_callbacks(callbacks, self._rates, monitored, progress, self.is_first)
        self.checkpoints = next((c for c in self.callbacks if isinstance(c, Checkpoints)), Checkpoints())
        #: Values of steps that have not been read.
        self._unread: list[Entry] = []
        self._sums = Sums()
        self._logged = Sums()
        self._skipped = self._skipped_in_row = 0
        self._iterator: Iterator[Any] | None = None
        #: The number of times that the data have been begun, and where to go on with them.
        self._passes = 0
        self._position: Any = None
        self._layout: dict[str, str] | None = None
        self._saved_layout: dict[str, str] | None = None
        self._noted_length = False
        self._described: Description | None = None
        self._last_saved = -1
        self._waiting: tuple[dict[str, Any], Any] | None = None
        self._seconds = dict.fromkeys(("data", "steps", "validation", "checkpoints"), 0.0)

    def _cut_over(self, mesh: Mesh) -> None:
        """Cut batches over the data axis of a mesh. Raises :class:`ArgumentError` for a model on another backend."""
        place = self._place
        own = {level.mesh_axis: level.size for level in levels_of(place.backend)}
        if own != mesh.axes:
            raise ArgumentError(
                f"Trainer: the model is on {place.backend.spec}, which is not a backend of {mesh!r}: make it in a "
                f"block, with bb.use_backend(mesh.backend()):"
            )
        place.cutting = Cutting(place.backend, mesh.data_axis, place.dtype)
        self.data, self.validation = self._rows(mesh, self.data), self._rows(mesh, self.validation)

    def _rows(self, mesh: Mesh, data: Any) -> Any:
        """Data of :func:`backburn.data.batches` as the rows of this process; other data are cut when they arrive."""
        if type(data) is Batches:
            return mesh.rows(data, backend=self._place.backend, dtype=self._place.dtype)
        if isinstance(data, Rows):
            data.backend, data.dtype = self._place.backend, self._place.dtype
        return data

    # ---- pieces ----

    def step(self, *batches: Any) -> dict[str, Any]:
        """Take one step on a batch, or on several whose gradients are averaged; returns its values as 0-d tensors.

        The values are those of the loss function, without history, and with ``clip`` the ``gradient_norm`` before it.
        A batch that does not fit is described in a note of the error.
        """
        with fork(self.random):
            return self._stepped(batches)[0]

    def _stepped(self, batches: Sequence[Any]) -> tuple[Values, Weights]:
        """:meth:`step`, within a block of the run's random numbers, with the weights of the values."""
        tensors = tuple(batches)
        try:
            tensors = tuple([self._place.tensors(batch) for batch in batches])
            values, weights, taken = self._step((self.model, self.optimizer, self.average), tensors)
        except Exception as error:
            self._note(error, tensors)
            raise
        if taken:
            self.steps += 1
            self._skipped_in_row = 0
        else:
            self._skip()
        if self.mesh is not None:  # reading a sum of addends is communication, and a callback may read on one process
            whole = dict.fromkeys(self.mesh.axes)
            values = {name: place(x, whole) for name, x in values.items()}
            weights = {name: place(x, whole) if is_tensor(x) else x for name, x in weights.items()}
        return values, weights

    def run_epoch(self) -> dict[str, float]:
        """Train on all data once, or on the rest of an epoch that has begun, and evaluate; returns the epoch's row.

        The row has ``epoch``, ``step``, the means of the loss and its further values over the examples, ``lr``,
        ``validation/...``, ``seconds``, of which ``seconds/data``, ``seconds/steps`` and ``seconds/validation``, and
        ``examples_per_second`` while training. An epoch that ``stop`` has ended early has an empty one.

        Raises :class:`ArgumentError` for data without a batch, and :class:`NumericalInstabilityError` where the loss or
        a parameter is not a finite number any more.
        """
        self._train_mode(True)
        started = time.perf_counter()
        with fork(self.random):
            finished = self._run_steps()
        if not finished:
            return {}
        self._read()
        self._check_parameters()
        row: dict[str, float] = {"epoch": self.epoch + 1, "step": self.steps, **self._sums.means()}
        row |= rate_values(self.optimizer)
        if self._step.guarded:
            row["skipped"] = self._skipped
        if self.precision.scales:
            row["loss_scale"] = self.precision.scale
        trained = time.perf_counter() - started
        if self.validation is not None:
            now = time.perf_counter()
            row |= {f"validation/{name}": value for name, value in self.evaluate(self.validation).items()}
            self._seconds["validation"] += time.perf_counter() - now
        row["examples"] = self._sums.examples
        row["examples_per_second"] = self._sums.examples_here / trained if trained else 0.0
        row["seconds"] = time.perf_counter() - started
        row |= {f"seconds/{name}": value for name, value in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self.epoch += 1
        self.batches = self._skipped = 0
        self._sums = Sums()
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
        with self._averaged():
            return self._evaluation(self.model, source, Generator(self._evaluation_key), self.epoch + 1)

    def stop(self, reason: str) -> None:
        """End the run after the present step or epoch; the reason is kept in :attr:`stopped`.

        Of several processes any one can end the run, for all, when they next agree on it.
        """
        if self.is_shared:  # a signal may come at any moment
            self._told = reason
        else:
            self.stopped = reason

    def fit(self, epochs: int, *, resume: bool = False, overwrite: bool = False) -> Trainer[M]:
        """Train until ``epochs`` epochs have ended, those before this call included; returns the trainer.

        The model is in ``eval()`` mode afterwards. With a folder, the run is saved there, and ``resume`` goes on with
        the run that is in it, if there is one: in the middle of an epoch for data whose position can be saved, with the
        bits of a run that was never interrupted, and at the beginning of an epoch for others. ``overwrite`` replaces a
        run in the folder. Ctrl-C and SIGTERM end the run after the present step, save it, and raise
        :class:`KeyboardInterrupt`.

        Raises :class:`RunFolderError` for a folder with a run, one that another process trains in or that cannot be
        written to, and for a run of another model or other data; it says what differs.
        """
        self.last_epoch, self.stopped = integer("fit", "epochs", epochs, least=1), None
        self._told = None
        flags("fit", resume=resume, overwrite=overwrite)
        if resume and overwrite:
            raise ArgumentError("fit: resume goes on with the run in the folder, and overwrite replaces it: give one")
        folder = self.folder
        if folder is None:
            if resume or overwrite:
                raise ArgumentError("fit: resume and overwrite are about a run in a folder: pass folder='runs/name'")
            self._fit()
            return self
        is_own = self._last_saved >= 0  # a second call, which goes on with the run that the first has saved
        folder.open(resume=resume or is_own, overwrite=overwrite)
        try:
            if not is_own and not (resume and self.resume()):
                folder.write_config(self._config())
            with interruptible(self.stop) as interrupt:
                try:
                    self._fit()
                finally:
                    folder.close()
            if (raised := self._agreed_interrupt(interrupt())) is not None:
                raise raised
        finally:
            folder.close()
        return self

    def _agreed_interrupt(self, own: KeyboardInterrupt | None) -> KeyboardInterrupt | None:
        """The error to raise after a signal that any process has got."""
        if self.mesh is None or not self.is_shared:
            return own
        is_terminated, is_interrupted = self.mesh.agreed([isinstance(own, Terminated), own is not None])
        return Terminated() if is_terminated else KeyboardInterrupt() if is_interrupted else None

    def _agree(self, is_due: bool) -> bool:
        """Whether a save is due, by the clock of the first process; and stop if any process has been told to."""
        if self.mesh is None or not self.is_shared:
            return is_due
        found = self.mesh.communicator.gather_objects((is_due, self._told))
        self.stopped = self.stopped or next((reason for _, reason in found if reason is not None), None)
        return bool(found[0][0])

    def _fit(self) -> None:
        assert self.last_epoch is not None
        self.first_epoch = self.epoch + 1
        error: BaseException | None = None
        try:
            self._say_notes()
            for callback in self.callbacks:
                callback.on_start(self)
            self._agree(False)
            if self.folder is not None and not self.folder.has_checkpoints:
                self.save()  # what cannot be written is known before the first step
            while self.epoch < self.last_epoch and self.stopped is None:
                row = self.run_epoch()
                if row:
                    self._after_epoch(row)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._train_mode(False)
            try:
                self._save_end(error)
            except BaseException as raised:
                error = error or raised
                raise
            finally:
                for callback in self.callbacks:
                    callback.on_end(self, error)

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """The complete state, as a tree of tensors and plain values, which further steps do not change.

        The parameters, the optimizer, the average, the random state, the loss scale, rates with a state, the callbacks'
        states, the history and the sums of an epoch that has begun, and where the iteration over the data stands.
        Raises :class:`ArgumentError` within an epoch if the position in the data cannot be saved.
        """
        self._read()
        position = None if self._iterator is None else position_of(self.data, self._iterator)
        if self.batches and position is None:
            raise ArgumentError(
                f"state: the position in the data, a {type(self.data).__name__}, cannot be saved within an epoch: an "
                f"iterator has get_state() and set_state(), or the data state_dict() and load_state_dict()"
            )
        return {
            "about": self._description().tables(),
            "layout": self._layout or self._saved_layout,
            "epoch": self.epoch,
            "steps": self.steps,
            "batches": self.batches,
            "passes": self._passes,
            "skipped": [self._skipped, self._skipped_in_row],
            "lowered": self.lowered,
            "history": list(self.history),
            "sums": self._sums.state(),
            "logged": self._logged.state(),
            "seconds": dict(self._seconds),
            **self._parts(),
            "position": position,
        }

    def _parts(self) -> dict[str, Any]:
        """The states of the objects that a trainer consists of."""
        return {
            "model": model_state(self.model),
            "optimizer": dict(self.optimizer.state_dict()),
            "average": None if self.average is None else dict(self.average.state_dict()),
            "random": self.random.state(),
            "evaluation": self._evaluation_key,
            "precision": self.precision.state_dict(),
            "rates": {n: dict(rate.state_dict()) for n, rate in self._rates.items() if hasattr(rate, "state_dict")},
            "callbacks": {name: c.state_dict() for name, c in self._with_state().items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state`.

        Raises :class:`RunFolderError` for that of another model, optimizer or other data, and says what differs. After
        that, or any other error on the way, the trainer is what it was. What the first batch shows to be other data is
        an error of the next step.
        """
        check_parts(state)
        self._description().check(state["about"])
        sums, logged = Sums.of(state["sums"]), Sums.of(state["logged"])
        seconds = {name: state["seconds"][name] for name in self._seconds}
        before, lowered = self._parts(), self.lowered
        try:
            self._load_parts(state)
            if state["lowered"] != self.lowered:
                self._lower(state["lowered"])
        except BaseException:
            self._load_parts(before)
            if lowered != self.lowered:
                self._lower(lowered)
            raise
        self.epoch, self.steps, self.batches = state["epoch"], state["steps"], state["batches"]
        self._passes, self._position = state["passes"], state["position"]
        self._skipped, self._skipped_in_row = state["skipped"]
        self.history = [dict(row) for row in state["history"]]
        self._sums, self._logged, self._seconds = sums, logged, seconds
        self._saved_layout = state["layout"]
        self._iterator, self._layout, self._unread = None, None, []

    def _load_parts(self, state: Mapping[str, Any]) -> None:
        """Put the states of :meth:`_parts` into the objects."""
        load_model_state(self.model, state["model"])
        placements = self._placements()
        self.optimizer.load_state_dict(self._here(state["optimizer"], placements))
        if self.average is not None:
            self.average.load_state_dict(self._here(state["average"], placements))
        self.random.set_state(state["random"])
        self._evaluation_key = state["evaluation"]
        self.precision.load_state_dict(state["precision"])
        for name, saved in state["rates"].items():
            self._rates[name].load_state_dict(saved)
        known = self._with_state()
        for name, saved in state["callbacks"].items():
            if name in known:
                known[name].load_state_dict(saved)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Save the state to a file, or without ``path`` as a checkpoint in the run's folder.

        Checkpoints are written in the background; an error in writing one is raised by the next call, or at the end of
        ``fit``. Raises :class:`NumericalInstabilityError` where a loss or parameter is not finite: a state that is
        saved is a good one.
        """
        state = self.state()
        if self.batches:
            self._check_parameters()
        if path is not None:
            save_state(path, state)
        else:
            self._save_in_folder(state, {})

    def resume(self, path: str | os.PathLike[str] | None = None) -> bool:
        """Restore the state of a file of :meth:`save`, or the last checkpoint in the run's folder that can be read.

        Returns whether there was one in the folder. Raises :class:`RunFolderError` as :meth:`load_state` does.
        """
        if path is not None:
            self._load(path, load_state(path))
            return True
        if self.folder is None:
            raise ArgumentError("resume: takes the path of a saved state, since this trainer has no folder")
        found = self.folder.latest(self._say)
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

    def _save_in_folder(self, state: dict[str, Any], models: dict[str, Any]) -> None:
        if self.folder is None or not self.folder.is_open:
            raise ArgumentError("save: takes a path, since no run folder is open; fit opens that of the trainer")
        self.folder.save(state, self.checkpoints.last, models)
        self.checkpoints.saved()
        self._last_saved, self._waiting = state["steps"], None

    def _after_epoch(self, row: dict[str, float]) -> None:
        """Write the row of an epoch, tell the callbacks, and save what is due."""
        if self.folder is not None:
            self.folder.append(row)
        for callback in self.callbacks:
            if callback is not self.checkpoints:
                callback.on_epoch(self, row)
        is_due = self._agree(self.checkpoints.due_after_epoch())
        if self.folder is None:
            return
        is_best, state = self.checkpoints.is_best(row), self.state()
        if is_best or is_due or self.epoch == self.last_epoch or self.stopped:
            files = [MODEL, BEST] if is_best else [MODEL]
            self._save_in_folder(state, dict.fromkeys(files, self._saved_model()))
        else:
            self._waiting = state, self._saved_model()  # saved if an error comes before the next save

    def _save_end(self, error: BaseException | None) -> None:
        """Save what has been reached, or what had been when an error came."""
        if self.folder is None or (error is not None and self.is_shared):  # the others may not have failed
            return
        if error is None and (not self.batches or self._has_position()):
            if self.steps != self._last_saved:
                model = self._saved_model() if not self.batches else self._waiting[1] if self._waiting else None
                self._save_in_folder(self.state(), {} if model is None else {MODEL: model})
        elif self._waiting is not None and not isinstance(error, RunFolderError):
            state, model = self._waiting
            self._save_in_folder(state, {MODEL: model})

    def _saved_model(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The model as it is saved, with its averaged parameters if there are any, and what is said about it.

        That does not tell on how many shards or processes it was trained: the file is the same.
        """
        about = {
            "backburn": versions().get("backburn", "of no installation"),
            "backend": spec_without_shards(self._place.backend),
            "epoch": self.epoch,
            "step": self.steps,
            "metrics": {
                name: x
                for row in self.history[-1:]
                for name, x in row.items()
                if not name.startswith(("seconds", "examples"))
            },
            **self.about,
        }
        if isinstance(config := about.get("config"), dict):
            about["config"] = {name: table for name, table in config.items() if name != "distributed"}
        with self._averaged():
            return model_state(self.model), about

    def _with_state(self) -> dict[str, Any]:
        """The callbacks that have a state, by the names of their classes; further ones of a class are counted."""
        found: dict[str, Any] = {}
        for callback in dict.fromkeys((*self.callbacks, self.checkpoints)):
            if hasattr(callback, "state_dict"):
                name = type(callback).__name__
                count = sum(key.partition("-")[0] == name for key in found)
                found[f"{name}-{count + 1}" if count else name] = callback
        return found

    def _here(self, state: Mapping[str, Any], placements: Mapping[str, Any]) -> dict[str, Any]:
        """A state whose arrays are tensors on the backend of the model, cut as ``placements`` say by name."""
        k = self._place.backend

        def here(name: str, x: Any) -> Any:
            if not hasattr(x, "shape"):
                return x
            made = asarray(x, backend=k)
            return place(made, placements[name]) if name in placements else made

        return {name: here(name, x) for name, x in state.items()}

    def _placements(self) -> dict[str, Any]:
        """Where the tensors of the optimizer's and the average's states are, by name, on a backend with shards."""
        if not levels_of(self._place.backend):
            return {}
        self.optimizer.begin(self.model, lambda _, x: x)
        found = {name: placement(x) for name, x in self.optimizer.state_tensors().items()}
        leaves = MutableTree(self.model, is_tensor).leaves
        return found | {f"{leaf.path}.mean": placement(leaf.value) for leaf in leaves}

    def _description(self) -> Description:
        if self._described is None:
            self._described = Description.of(self)
        return self._described

    def _config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {
            "fit": {"epochs": self.last_epoch, **self._description().tables()},
            **self.about,
            "environment": environment(),
        }

    def _has_position(self) -> bool:
        return self._iterator is not None and has_position(self.data, self._iterator)

    def _say_notes(self) -> None:
        """Say at the start what the data do not allow."""
        if self.folder is None:
            return
        if self.history and (changed := changed_rate(self.optimizer, self.history[-1])) is not None:
            self._say(f"note: the run goes on at another rate: {changed}. A schedule over more epochs has other rates")
        if self.batches_per_epoch is None and hasattr(self.data, "__iter__"):
            self._say(
                f"note: the data, a {type(self.data).__name__}, have no length: an epoch ends where they do, or "
                f"after steps_per_epoch steps"
            )

    def _say(self, words: str) -> None:
        if self.is_first:
            print(words, file=sys.stderr, flush=True)

    # ---- steps of an epoch ----

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

    def _run_steps(self) -> bool:
        """Take the steps of an epoch that are left; whether it has ended, rather than been stopped."""
        number, per_step, end = self.epoch + 1, self.accumulate, self.steps_per_epoch
        is_new = self._iterator is None and self._position is None
        iterator = self._begin(number) if self._iterator is None else self._iterator
        self._iterator = iterator
        stepped = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        saves = self.folder is not None and self.folder.is_open and has_position(self.data, iterator)
        seconds, clock = self._seconds, time.perf_counter
        group: list[Any] = []
        now = clock()
        while end is None or self.batches < end * per_step:
            batch = next(iterator, _END)
            then = clock()
            seconds["data"] += then - now
            now = then
            if batch is _END and is_new:
                raise self._exhausted(number)
            if batch is _END and end is not None:  # the data begin again within a long epoch
                iterator = self._iterator = self._begin(number)
                is_new = True
                continue
            if batch is not _END:
                is_new = False
                group.append(batch)
                self.batches += 1
                if len(group) < per_step:
                    continue
            if group:  # as many batches as a step has, or what is left of them
                row = self._take(group, number)
                group = []
                for callback in stepped:
                    callback.on_step(self, row)
                now = clock()
                seconds["steps"] += now - then
                if self._agree(saves and self.checkpoints.due_after_step(self.steps)):
                    self.save()
                    seconds["checkpoints"] += clock() - now
                    now = clock()
                if self.stopped is not None:
                    return False
            if batch is _END:
                break
        if end is None:
            self._iterator = None
            self._note_length()
        return True

    def _note_length(self) -> None:
        """Say, once, that an epoch had another number of batches than the data have said."""
        expected = self.batches_per_epoch
        if expected is not None and expected != self.batches and not self._noted_length:
            self._noted_length = True
            self._say(
                f"note: the data, a {type(self.data).__name__}, say that they have {expected} batches, and epoch "
                f"{self.epoch + 1} had {self.batches}"
            )

    def _take(self, group: list[Any], number: int) -> Row:
        """One step on the batches of a group; returns its row."""
        if self._layout is None:
            self._layout = self._checked_layout(group[0])
        before = self.steps
        values, weights = self._stepped(group)
        if self.steps != before:
            self._unread.append((sum(map(host_examples, group)), values, weights))
            if len(self._unread) >= READ_AFTER:
                self._read()
            if self.log_every is not None and self.steps % self.log_every == 0:
                self._log(number)
        return {"epoch": number, "step": self.steps, **values}

    def _checked_layout(self, batch: Any) -> dict[str, str]:
        """The layout of the first batch. Raises if a resumed run had another."""
        found, saved = layout(batch), self._saved_layout
        if saved is not None and saved != found:
            keys = [key for key in {**saved, **found} if saved.get(key) != found.get(key)]
            words = ", ".join(f"{key or 'batch'} was {saved.get(key)}, is {found.get(key)}" for key in keys)
            raise RunFolderError(f"fit: the run that is resumed had other data: {words}")
        return found

    def _log(self, number: int) -> None:
        self._read()
        row = {"epoch": number, "step": self.steps, **self._logged.means(), **rate_values(self.optimizer)}
        self._logged = Sums()
        if self.folder is not None and self.folder.is_open:
            self.folder.append_steps(row)
        for callback in self.callbacks:
            callback.on_log(self, row)

    def _begin(self, number: int) -> Iterator[Any]:
        """The iterator over the data of an epoch, or of one more pass over them within a long one."""
        position, self._position = self._position, None
        if position is None:
            self._passes += 1
        passes = number if self.steps_per_epoch is None else self._passes
        try:
            iterator = iterator_at(self.data, lambda: batches_of(self.data, passes), position)
        except MISFITS as error:
            if position is None or isinstance(error, BackburnError):
                raise
            raise FileFormatError(f"the saved position in the data is none of a {type(self.data).__name__}") from error
        if self.folder is not None and passes == 1 and position is None and not has_position(self.data, iterator):
            self._say(
                f"note: the position in the data, a {type(self.data).__name__}, cannot be saved: a run that is killed "
                f"goes on at the beginning of an epoch"
            )
        return iterator

    def _exhausted(self, number: int) -> ArgumentError:
        kind = type(self.data).__name__
        once = iter(self.data) is self.data if hasattr(self.data, "__iter__") else False
        if once and self.steps:
            return ArgumentError(
                f"fit: the data have no batch left in epoch {number}: a {kind} can be gone through only once. Pass "
                f"data that can be iterated over again, or a function of the epoch's number that returns them"
            )
        return ArgumentError(f"fit: the data, a {kind}, have no batch in epoch {number}")

    def _read(self) -> None:
        """Read the values of steps that are on the device. Raises where a loss is not finite."""
        if self._unread:
            unread = self._unread
            if self.log_every is not None:
                self._logged.add(list(unread))
            bad = self._sums.add(unread)
            if bad is not None:
                value, before = bad
                raise self._diverged(f"the loss is {value} in step {self.steps - before}")

    def _check_parameters(self) -> None:
        """Raise if a parameter is not finite."""
        largest = [
            (leaf.path, leaf.value.max_abs())
            for leaf in MutableTree(self.model, is_tensor).leaves
            if leaf.value.dtype.kind == "float" and all(leaf.value.shape)
        ]
        values = stack([asarray(x, backend=self._place.backend).astype("float32") for _, x in largest]).tolist()
        bad = next((path for (path, _), value in zip(largest, values, strict=True) if not value < inf), None)
        if bad is not None:
            raise self._diverged(f"{bad} is not finite after step {self.steps}")

    def _diverged(self, how: str) -> NumericalInstabilityError:
        found = None if self.steps_per_epoch is not None else not_finite(self.data, self.epoch + 1, self.batches)
        if found is not None:
            return NumericalInstabilityError(
                f"fit: {how}, in epoch {self.epoch + 1}, and the data are not finite: {found}. Leave such examples "
                f"out, or replace the values (bb.nan_to_num); on_nan='skip' leaves their steps out"
            )
        rates = ", ".join(f"{value:g}" for value in rate_values(self.optimizer).values())
        return NumericalInstabilityError(
            f"fit: training has diverged: {how}, in epoch {self.epoch + 1}. Try a smaller learning rate than {rates}, "
            f"clip=1.0, or on_nan='skip'"
        )

    def _skip(self) -> None:
        """Note a step that was left out, and lower the rate if it is to back off."""
        self._skipped += 1
        self._skipped_in_row += 1
        if self._skipped_in_row >= MOST_SKIPPED:
            raise self._diverged(f"gradients were not finite in {MOST_SKIPPED} steps in a row")
        if self.on_nan == "back_off" and self.precision.scale <= 1.0:  # a larger one may be the cause, and is lowered
            self._lower(self.lowered / 2.0)

    def _lower(self, factor: float) -> None:
        self.lowered = factor
        lower(self.optimizer, self._rates, factor)

    def _averaged(self) -> Any:
        """A context in which the model has its averaged parameters, if there is an average with any."""
        return self.average.applied(self.model) if self.average is not None and self.average.updates else nullcontext()

    def _train_mode(self, mode: bool) -> None:
        for node in modules_of(self.model):
            node.train(mode)

    def _note(self, error: Exception, batches: tuple[Any, ...]) -> None:
        """Say in a note of an error which batch it arose with."""
        error.add_note(f"In step {self.steps + 1}, with the batch {' and '.join(map(described, batches))}.")


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


_END = object()
