"""``Trainer`` and ``fit``: the loop around a model, a loss and data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import inf, isfinite
from typing import Any, Generic, Literal, TypeVar

from backburn.backend.contract import is_autodiff
from backburn.base.errors import ArgumentError, GraphError, NumericalInstabilityError
from backburn.base.mutable_trees import MutableTree
from backburn.optim import Average, Optimizer
from backburn.optim.groups import Groups
from backburn.tensor.core.defaults import no_grad
from backburn.tensor.core.host import asarray
from backburn.tensor.core.options import bounded, flags, integer, one_of
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.generators import Generator, default_generator, fork
from backburn.tensor.shape import stack
from backburn.train.batches import Place, described, examples, layout
from backburn.train.callbacks import Callback, Plateau, Progress, Row
from backburn.train.precision import Precision
from backburn.train.steps import Step, check_scalar, parts_of
from backburn.transforms.capturing import capture as captured

M = TypeVar("M")

#: A loss: of a model and a batch, a scalar, or a pair of a scalar and further scalars by name.
Loss = Callable[[Any, Any], Any]
#: A metric: of a model and a batch, a scalar that is a mean over the batch.
Metric = Callable[[Any, Any], Any]
Data = Iterable[Any] | Callable[[int], Iterable[Any]]
OnNaN = Literal["stop", "skip", "back_off"]

#: Steps whose values are kept on the device before they are read, all at once.
READ_AFTER = 100
#: Steps skipped in a row after which a run ends.
MOST_SKIPPED = 50


class Trainer(Generic[M]):
    """A training run and its pieces: one step, one epoch, an evaluation, the state to save and restore.

    ``loss`` is a function of the model and a batch that returns a scalar, the mean over the batch, or a pair of it and
    a dict of further scalars, such as an accuracy. A batch is any tree of arrays; the loss gets it with tensors on the
    model's backend, host floats in the dtype of the model's parameters and all else in its own. ``data`` is anything
    that can be iterated over once in each epoch, or a function from the number of the epoch, from 1 on, to that. Where
    it has a method ``set_epoch``, that is called with the number first.

    - ``optimizer``: any of :mod:`backburn.optim`. A schedule is its learning rate.
    - ``validation``: data to evaluate on after each epoch, whose values are named ``validation/...``, by the loss and
      by ``metrics``: functions like the loss, by name.
    - ``callbacks``: :class:`Callback` objects, called in their order.
    - ``capture``: whether to record steps and to replay them; by default on backends that can.
    - ``precision``: a :class:`Precision`, or the name of its dtype.
    - ``accumulate``: the number of batches in a step, whose gradients are averaged with the batches' sizes as weights,
      so that a step is that of one large batch.
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
    ) -> None:
        self.model = model
        self.data = _checked_data("data", data)
        self.optimizer = optimizer
        self.validation = None if validation is None else _checked_data("validation", validation)
        self.metrics = _checked_metrics(metrics)
        self.precision = precision if isinstance(precision, Precision) else Precision(precision)
        self.accumulate = integer("Trainer", "accumulate", accumulate, least=1)
        self.clip = None if clip is None else bounded("Trainer", "clip", clip, above=0, below=inf)
        self.average = average
        self.on_nan: OnNaN = one_of("Trainer", "on_nan", on_nan, ("stop", "skip", "back_off"))
        self.steps_per_epoch = _positive("steps_per_epoch", steps_per_epoch)
        self.log_every = _positive("log_every", log_every)
        self.loss = _checked_function("loss", loss)
        _check_optimizer(optimizer)
        self._place = _place_of(model)
        self._given_seed = seed
        #: The generator of the draws in steps.
        self.random = Generator(integer("Trainer", "seed", seed, least=0)) if seed is not None else _spawned()
        self._evaluation_key = self.random.spawn(1)[0].key
        #: Rows of the epochs so far: numbers by name.
        self.history: list[dict[str, float]] = []
        #: The number of whole epochs, of steps, and of batches taken in the epoch that has begun.
        self.epoch = self.steps = self.batches = 0
        #: Why the run ended before its last epoch, or None.
        self.stopped: str | None = None
        #: The last epoch of the running ``fit``, and the one with which it began.
        self.last_epoch: int | None = None
        self.first_epoch = 1
        #: The rate that each optimizer had at first, and the factor by which ``on_nan="back_off"`` has lowered it.
        self.lowered = 1.0
        records = self._place.backend.capabilities.capture if capture is None else capture
        flags("Trainer", capture=records)
        fallback: Any = None if not records else "allow" if capture is None else "warn"
        guarded = self.on_nan != "stop"
        self._step = Step(self.loss, self.precision, self.clip, guarded, fallback)
        self._measure: Callable[..., Any] = self._measured
        if fallback is not None:
            self._measure = captured(self._measured, state=False, on_fallback="allow")
        self._rates = {name: optimizer.lr for name, optimizer in _optimizers(optimizer).items()}
        self.callbacks = self._all_callbacks(callbacks, progress)
        #: Values of steps that have not been read: the number of examples, and scalars by name.
        self._unread: list[tuple[int, dict[str, Any]]] = []
        self._sums = _Sums()
        self._logged = _Sums()
        self._skipped = self._skipped_in_row = 0
        self._iterator: Iterator[Any] | None = None
        self._data_state: Any = None
        self._layout: dict[str, str] | None = None
        self._seconds = dict.fromkeys(("data", "steps", "validation"), 0.0)

    # ---- pieces ----

    def step(self, *batches: Any) -> dict[str, Any]:
        """Take one step on a batch, or on several whose gradients are averaged; returns its values as 0-d tensors.

        The values are those of the loss function, without history, and with ``clip`` the ``gradient_norm`` before it.
        A batch that does not fit is described in a note of the error.
        """
        tensors = tuple([self._place.tensors(batch) for batch in batches])
        try:
            with fork(self.random):
                values, taken = self._step((self.model, self.optimizer, self.average), tensors)
        except Exception as error:
            self._note(error, tensors)
            raise
        if taken:
            self.steps += 1
            self._skipped_in_row = 0
        else:
            self._skip()
        return values

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
        finished = self._run_steps()
        if not finished:
            return {}
        self._read()
        self._check_parameters()
        row: dict[str, float] = {"epoch": self.epoch + 1, "step": self.steps, **self._sums.means()}
        row |= self._rate_values()
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
        self._sums = _Sums()
        self.history.append(row)
        return row

    def evaluate(self, data: Data | None = None) -> dict[str, float]:
        """The means over ``data`` of the loss, its further values and the metrics, by name; nothing is recorded.

        ``data`` are the validation data by default. The model is in ``eval()`` mode, has the averaged parameters if
        there is an ``average``, and draws the same random numbers at each evaluation. Raises :class:`ArgumentError` if
        there is no batch.
        """
        source = self.validation if data is None else _checked_data("evaluate", data)
        if source is None:
            raise ArgumentError("evaluate: takes data, since this trainer has no validation data")
        sums, found = _Sums(), list[tuple[int, dict[str, Any]]]()
        self._train_mode(False)
        with self._averaged(), no_grad(), fork(Generator(self._evaluation_key)):
            for batch in _batches_of(source, self.epoch + 1):
                tensors = self._place.tensors(batch)
                try:
                    found.append((examples(tensors), self._measure(self.model, tensors)))
                except Exception as error:
                    self._note(error, (tensors,))
                    raise
                if len(found) >= READ_AFTER:
                    sums.add(found)
        sums.add(found)
        if not sums.examples:
            raise ArgumentError("evaluate: the data have no batch")
        return sums.means()

    def stop(self, reason: str) -> None:
        """End the run after the present step or epoch; the reason is kept in :attr:`stopped`."""
        self.stopped = reason

    def fit(self, epochs: int) -> Trainer[M]:
        """Train until ``epochs`` epochs have ended, those before this call included; returns the trainer.

        Leaves the model in ``eval()`` mode.
        """
        self.last_epoch = integer("fit", "epochs", epochs, least=1)
        self.first_epoch, self.stopped = self.epoch + 1, None
        error: BaseException | None = None
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            while self.epoch < self.last_epoch and self.stopped is None:
                row = self.run_epoch()
                if row:
                    for callback in self.callbacks:
                        callback.on_epoch(self, row)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._train_mode(False)
            for callback in self.callbacks:
                callback.on_end(self, error)
        return self

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

    def _run_steps(self) -> bool:
        """Take the steps of an epoch that are left; whether it has ended, rather than been stopped."""
        number, per_step, end = self.epoch + 1, self.accumulate, self.steps_per_epoch
        is_new = self._iterator is None
        iterator = self._begin(number) if self._iterator is None else self._iterator
        self._iterator = iterator
        stepped = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        seconds, clock = self._seconds, time.perf_counter
        group: list[Any] = []
        now = clock()
        while end is None or self.batches < end * per_step:
            batch = next(iterator, _END)
            then = clock()
            seconds["data"] += then - now
            now = then
            if batch is _END:
                if is_new:
                    raise self._exhausted(number)
                if end is None:
                    break
                iterator = self._iterator = self._begin(number)  # the data begin again within a long epoch
                is_new = True
                continue
            is_new = False
            group.append(batch)
            self.batches += 1
            if len(group) < per_step:
                continue
            row = self._take(group, number)
            group = []
            for callback in stepped:
                callback.on_step(self, row)
            now = clock()
            seconds["steps"] += now - then
            if self.stopped is not None:
                return False
        if group:  # fewer batches than a step has
            self._take(group, number)
        if end is None:
            self._iterator = None
        return True

    def _take(self, group: list[Any], number: int) -> Row:
        """One step on the batches of a group; returns its row."""
        if self._layout is None:
            self._layout = layout(group[0])
        before = self.steps
        values = self.step(*group)
        if self.steps != before:
            self._unread.append((sum(map(_host_examples, group)), values))
            if len(self._unread) >= READ_AFTER:
                self._read()
            if self.log_every is not None and self.steps % self.log_every == 0:
                self._log(number)
        return {"epoch": number, "step": self.steps, **values}

    def _log(self, number: int) -> None:
        self._read()
        row = {"epoch": number, "step": self.steps, **self._logged.means(), **self._rate_values()}
        self._logged = _Sums()
        for callback in self.callbacks:
            callback.on_log(self, row)

    def _begin(self, number: int) -> Iterator[Any]:
        """The iterator over the data of an epoch."""
        return _batches_of(self.data, number)

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
        rates = ", ".join(f"{value:g}" for value in self._rate_values().values())
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
        if self.on_nan == "back_off":
            self._lower(self.lowered / 2.0)

    def _lower(self, factor: float) -> None:
        """Let the optimizers have ``factor`` times the rates that were given."""
        self.lowered = factor
        for name, optimizer in _optimizers(self.optimizer).items():
            rate = self._rates[name]
            optimizer.lr = _Lowered(rate, factor) if callable(rate) else factor * rate

    def _rate_values(self) -> dict[str, float]:
        found = {}
        for name, optimizer in _optimizers(self.optimizer).items():
            rate = optimizer.lr
            found[f"lr/{name}" if name else "lr"] = float(rate(optimizer.steps) if callable(rate) else rate)
        return found

    def _measured(self, model: Any, batch: Any) -> dict[str, Any]:
        """The values of an evaluation on one batch."""
        value, further = parts_of(self.loss(model, batch))
        values = {"loss": value, **further}
        for name, metric in self.metrics.items():
            found = metric(model, batch)
            check_scalar("metrics", name, found)
            values[name] = found
        return {name: x.detach() if x.dtype.kind == "float" else x for name, x in values.items()}

    def _averaged(self) -> Any:
        """A context in which the model has its averaged parameters, if there is an average with any."""
        return self.average.applied(self.model) if self.average is not None and self.average.updates else nullcontext()

    def _train_mode(self, mode: bool) -> None:
        for node in _modules(self.model):
            node.train(mode)

    def _note(self, error: Exception, batches: tuple[Any, ...]) -> None:
        """Say in a note of an error which batch it arose with."""
        error.add_note(f"In step {self.steps + 1}, with the batch {' and '.join(map(described, batches))}.")

    def _all_callbacks(self, callbacks: Sequence[Callback], progress: bool | None) -> list[Callback]:
        given: Any = callbacks
        if isinstance(given, Callback) or not isinstance(given, (list, tuple)):
            raise ArgumentError(f"Trainer: callbacks are a list of Callback objects, not {given!r:.80}")
        for callback in given:
            if not isinstance(callback, Callback):
                made = "; an object is meant, not the class" if isinstance(callback, type) else ""
                raise ArgumentError(
                    f"Trainer: a callback derives from train.Callback, and {callback!r:.80} does not{made}"
                )
        found = list(given)
        if any(hasattr(rate, "observe") for rate in self._rates.values()) and not _has(found, Plateau):
            found.insert(0, Plateau("loss" if self.validation is None else "validation/loss"))
        shown = sys.stderr.isatty() if progress is None else progress
        flags("Trainer", progress=shown)
        if shown and not _has(found, Progress):
            found.append(Progress())
        return found


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
    )
    return trainer.fit(epochs)


class _Sums:
    """Sums of values over examples, in the order of the steps."""

    def __init__(self) -> None:
        self.examples = 0
        #: The examples since the process began, which rates are measured by.
        self.examples_here = 0
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, found: list[tuple[int, dict[str, Any]]]) -> tuple[float, int] | None:
        """Read values, with one transfer for each name, and empty the list; returns a loss that is not finite.

        Beside it stands how many steps ago it was.
        """
        bad: tuple[float, int] | None = None
        columns: dict[str, list[tuple[int, Any]]] = {}
        for count, values in found:
            self.examples += count
            self.examples_here += count
            for name, x in values.items():
                columns.setdefault(name, []).append((count, x))
        for name, entries in columns.items():
            read = stack([x for _, x in entries]).tolist()
            total = self.sums.get(name, 0.0)
            for position, ((count, _), value) in enumerate(zip(entries, read, strict=True)):
                total += value * count
                if name == "loss" and bad is None and not isfinite(value):
                    bad = value, len(entries) - 1 - position
            self.sums[name] = total
            self.counts[name] = self.counts.get(name, 0) + sum(count for count, _ in entries)
        found.clear()
        return bad

    def means(self) -> dict[str, float]:
        """The means of all values."""
        return {name: total / self.counts[name] for name, total in self.sums.items() if self.counts[name]}


class _Lowered:
    """A schedule times a factor."""

    def __init__(self, rate: Callable[[int], float], factor: float) -> None:
        self.rate, self.factor = rate, factor

    def __call__(self, step: int) -> float:
        return self.factor * self.rate(step)


_END = object()


def _host_examples(batch: Any) -> int:
    """The number of examples of a batch as it was given."""
    for x in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else (batch,):
        if isinstance(x, (dict, tuple, list)):
            return _host_examples(x)
        shape = getattr(x, "shape", None)
        if shape:
            return int(shape[0])
    return 1


def _batches_of(data: Data, epoch: int) -> Iterator[Any]:
    """An iterator over the batches of an epoch."""
    if callable(data) and not hasattr(data, "__iter__"):
        return iter(data(epoch))
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    return iter(data)


def _checked_data(name: str, data: Any) -> Any:
    if isinstance(data, (str, bytes, dict)) or not (hasattr(data, "__iter__") or callable(data)):
        kind = type(data).__name__ + (
            "; bb.data.batches(..., batch_size=64) makes them" if hasattr(data, "items") else ""
        )
        raise ArgumentError(
            f"Trainer: {name} is an iterable of batches, or a function from an epoch to one, not {kind}"
        )
    if is_tensor(data) or hasattr(data, "__array__"):
        raise ArgumentError(
            f"Trainer: {name} is an iterable of batches, not one array: bb.data.batches(x, y, batch_size=64) makes them"
        )
    return data


def _checked_function(name: str, function: Any) -> Any:
    if not callable(function):
        raise ArgumentError(f"Trainer: {name} is a function of the model and a batch, not {function!r:.80}")
    return function


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(
        isinstance(name, str) and callable(f) for name, f in metrics.items()
    ):
        raise ArgumentError("Trainer: metrics are functions of the model and a batch by name: {'accuracy': accuracy}")
    if "loss" in metrics:
        raise ArgumentError("Trainer: metrics have names of their own, and 'loss' is that of the loss")
    return dict(metrics)


def _check_optimizer(optimizer: Any) -> None:
    if not hasattr(optimizer, "step") or isinstance(optimizer, type):
        raise ArgumentError(f"Trainer: optimizer is one of bb.optim, such as optim.AdamW(1e-3), not {optimizer!r:.80}")


def _positive(name: str, value: int | None) -> int | None:
    return None if value is None else integer("Trainer", name, value, least=1)


def _place_of(model: Any) -> Place:
    """The place of a model. Raises :class:`GraphError` if it has nothing that can be trained."""
    place = Place.of(model)
    if not is_autodiff(place.backend):
        spec = place.backend.spec
        raise GraphError(
            f"Trainer: the model is on {spec}, which has no gradients: model.to('autodiff({spec})').require_grad()"
        )
    if not any(
        leaf.value.dtype.kind == "float" and leaf.value.is_require_grad
        for leaf in MutableTree([model], is_tensor).leaves
    ):
        raise GraphError("Trainer: no parameter of the model requires a gradient: model.require_grad() lets all do")
    return place


def _modules(model: Any) -> list[Any]:
    """The outermost modules of a tree."""
    if hasattr(model, "train") and hasattr(model, "named_parameters"):
        return [model]
    found = [node for node in MutableTree(model, is_tensor).nodes if hasattr(node.value, "named_parameters")]
    return [node.value for node in found]


def _optimizers(optimizer: Any) -> dict[str, Any]:
    """The optimizers of groups by name, or the one that there is under an empty one."""
    return dict(optimizer.optimizers) if isinstance(optimizer, Groups) else {"": optimizer}


def _spawned() -> Generator:
    return default_generator().spawn(1)[0]


def _has(callbacks: Sequence[Callback], kind: type[Callback]) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)
