"""``RunState``: the state of a run besides the attributes of its trainer, and how all of it is saved and restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, NumericalInstabilityError, RunFolderError
from backburn.base.mutable_trees import MutableTree
from backburn.decorators.sharding import spec_without_shards
from backburn.optim import Average
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.shape import stack
from backburn.train.batches import Place, layout, not_finite
from backburn.train.iteration import Iteration
from backburn.train.rates import rate_values
from backburn.train.run_folder import BEST, MODEL, environment, versions
from backburn.train.several_processes import placed, placements
from backburn.train.states import Description, check_parts, load_model_state, model_state
from backburn.train.sums import Entry, Sums

if TYPE_CHECKING:
    from backburn.train.trainer import Trainer


class RunState:
    """The sums, times and positions of a run. It holds no trainer: a reference cycle would keep a model's memory."""

    def __init__(self, at: Place, evaluation_key: int, note: Callable[[str], None] | None) -> None:
        self._at = at
        #: The key of the random numbers of evaluations.
        self.evaluation_key = evaluation_key
        self.iteration = Iteration(note)
        #: Sums since the last epoch and the last ``on_log``, and the values of steps that have not been read.
        self.sums, self.logged = Sums(), Sums()
        self.unread: list[Entry] = []
        #: The number of steps skipped in this epoch, and in a row.
        self.skipped = self.skipped_in_row = 0
        #: The seconds of the epoch by what they were spent on, up to the last lap.
        self.seconds: dict[str, float] = dict.fromkeys(("data", "steps", "validation", "checkpoints"), 0.0)
        self._lap_began = 0.0
        #: The number of steps in the last state that was saved.
        self.last_saved = -1
        #: A state and a model at the end of the last epoch, which are saved if an error occurs.
        self._waiting: tuple[dict[str, Any], Any] | None = None
        self._layout: dict[str, str] | None = None
        self._saved_layout: dict[str, str] | None = None
        self._described: Description | None = None

    # ---- within an epoch ----

    def lap(self, name: str | None = None) -> None:
        """Count the seconds since the last call for ``name``, if one is given."""
        now = time.perf_counter()
        if name is not None:
            self.seconds[name] += now - self._lap_began
        self._lap_began = now

    def check_layout(self, batch: Any) -> None:
        """Raise :class:`RunFolderError` if the first batch has another layout than the saved run had."""
        if self._layout is not None:
            return
        found, saved = layout(batch), self._saved_layout
        if saved is not None and saved != found:
            keys = [key for key in {**saved, **found} if saved.get(key) != found.get(key)]
            words = ", ".join(f"{key or 'batch'} was {saved.get(key)}, is {found.get(key)}" for key in keys)
            raise RunFolderError(f"fit: the run that is resumed had other data: {words}")
        self._layout = found

    def read(self, trainer: Trainer[Any]) -> None:
        """Read the values of steps from the device. Raises where a loss is not finite."""
        if self.unread:
            if trainer.log_every is not None:
                self.logged.add(list(self.unread))
            bad = self.sums.add(self.unread)
            if bad is not None:
                value, before = bad
                raise diverged(trainer, f"the loss is {value} in step {trainer.steps - before}")

    def check_parameters(self, trainer: Trainer[Any]) -> None:
        """Raise :class:`NumericalInstabilityError` if a parameter is not finite."""
        largest = [
            (leaf.path, leaf.value.max_abs())
            for leaf in MutableTree(trainer.model, is_tensor).leaves
            if leaf.value.dtype.is_floating and all(leaf.value.shape)
        ]
        values = stack([asarray(x, backend=self._at.backend).astype("float32") for _, x in largest]).tolist()
        bad = next((path for (path, _), value in zip(largest, values, strict=True) if not value < inf), None)
        if bad is not None:
            raise diverged(trainer, f"{bad} is not finite after step {trainer.steps}")

    def begin_epoch(self) -> None:
        """Reset the sums and times of the epoch that has ended."""
        self.skipped, self.sums = 0, Sums()
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    # ---- the whole ----

    def tree(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """See :meth:`backburn.train.Trainer.state`."""
        self.read(trainer)
        position = self.iteration.position_in(trainer.data)
        if trainer.batches and position is None:
            raise ArgumentError(
                f"state: the position in the data, a {type(trainer.data).__name__}, cannot be saved within an epoch: "
                f"an iterator has get_state() and set_state(), or the data state_dict() and load_state_dict()"
            )
        return {
            "about": self._description(trainer).tables(),
            "layout": self._layout or self._saved_layout,
            "epoch": trainer.epoch,
            "steps": trainer.steps,
            "batches": trainer.batches,
            "passes": self.iteration.passes,
            "skipped": [self.skipped, self.skipped_in_row],
            "lowered": trainer.lowered,
            "history": list(trainer.history),
            "sums": self.sums.state(),
            "logged": self.logged.state(),
            "seconds": dict(self.seconds),
            **self._parts(trainer),
            "position": position,
        }

    def _parts(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """The states of the objects that a trainer consists of."""
        average, rates = trainer.average, trainer.rates
        return {
            "model": model_state(trainer.model),
            "optimizer": dict(trainer.optimizer.state_dict()),
            "average": None if average is None else dict(average.state_dict()),
            "random": trainer.random.state(),
            "evaluation": self.evaluation_key,
            "precision": trainer.precision.state_dict(),
            "rates": {name: dict(rate.state_dict()) for name, rate in rates.items() if hasattr(rate, "state_dict")},
            "callbacks": {name: callback.state_dict() for name, callback in _with_state(trainer).items()},
        }

    def restore(self, trainer: Trainer[Any], state: Mapping[str, Any], lower: Callable[[float], object]) -> None:
        """Restore a saved :meth:`tree` in a trainer, and by ``lower`` the factor of its rates; all or nothing."""
        check_parts(state)
        self._description(trainer).check(state["about"])
        sums, logged = Sums.of(state["sums"]), Sums.of(state["logged"])
        seconds = {name: state["seconds"][name] for name in self.seconds}
        epoch, steps, batches = state["epoch"], state["steps"], state["batches"]
        passes, position, saved_layout = state["passes"], state["position"], state["layout"]
        skipped, skipped_in_row = state["skipped"]
        history = [dict(row) for row in state["history"]]
        before, lowered = self._parts(trainer), trainer.lowered
        try:
            self._load_parts(trainer, state)
            if state["lowered"] != lowered:
                lower(state["lowered"])
        except BaseException:
            self._load_parts(trainer, before)
            if trainer.lowered != lowered:
                lower(lowered)
            raise
        trainer.epoch, trainer.steps, trainer.batches, trainer.history = epoch, steps, batches, history
        self.iteration.go_on(passes, position)
        self.skipped, self.skipped_in_row = skipped, skipped_in_row
        self.sums, self.logged, self.seconds = sums, logged, seconds
        self._layout, self._saved_layout, self.unread = None, saved_layout, []

    def _load_parts(self, trainer: Trainer[Any], state: Mapping[str, Any]) -> None:
        """Put the states of :meth:`_parts` into the objects."""
        load_model_state(trainer.model, state["model"])
        where = placements(trainer.model, trainer.optimizer, self._at)
        trainer.optimizer.load_state_dict(placed(state["optimizer"], self._at, where))
        if trainer.average is not None:
            trainer.average.load_state_dict(placed(state["average"], self._at, where))
        trainer.random.set_state(state["random"])
        self.evaluation_key = state["evaluation"]
        trainer.precision.load_state_dict(state["precision"])
        for name, saved in state["rates"].items():
            trainer.rates[name].load_state_dict(saved)
        known = _with_state(trainer)
        for name, saved in state["callbacks"].items():
            if name in known:
                known[name].load_state_dict(saved)

    def config(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """The content of ``config.json``."""
        tables = self._description(trainer).tables()
        return {"fit": {"epochs": trainer.last_epoch, **tables}, **trainer.about, "environment": environment()}

    def _description(self, trainer: Trainer[Any]) -> Description:
        if self._described is None:
            self._described = Description.of(trainer)
        return self._described

    # ---- in the folder ----

    def save(self, trainer: Trainer[Any], state: dict[str, Any], models: dict[str, Any]) -> None:
        """Save a state, and models by their files' names, in the run's folder."""
        if trainer.folder is None or not trainer.folder.is_open:
            raise ArgumentError("save: takes a path, since no run folder is open; fit opens that of the trainer")
        trainer.folder.save(state, trainer.checkpoints.last, models)
        trainer.checkpoints.saved()
        self.last_saved, self._waiting = state["steps"], None

    def save_epoch(self, trainer: Trainer[Any], row: Mapping[str, Any], is_due: bool) -> None:
        """Save the state after an epoch if that is due, else keep it in memory."""
        is_best, state = trainer.checkpoints.is_best(row), self.tree(trainer)
        if is_best or is_due or trainer.epoch == trainer.last_epoch or trainer.stopped:
            files = [MODEL, BEST] if is_best else [MODEL]
            self.save(trainer, state, dict.fromkeys(files, self._model(trainer)))
        else:
            self._waiting = state, self._model(trainer)

    def save_end(self, trainer: Trainer[Any], error: BaseException | None) -> None:
        """Save the present state, or after an error that of the last epoch."""
        if trainer.folder is None or (error is not None and trainer.is_shared):  # the others may not have failed
            return
        if error is None and (not trainer.batches or self.iteration.has_position(trainer.data)):
            if trainer.steps != self.last_saved:
                kept = self._waiting[1] if self._waiting else None
                model = kept if trainer.batches else self._model(trainer)
                self.save(trainer, self.tree(trainer), {} if model is None else {MODEL: model})
        elif self._waiting is not None and not isinstance(error, RunFolderError):
            state, model = self._waiting
            self.save(trainer, state, {MODEL: model})

    def _model(self, trainer: Trainer[Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The model as it is saved, with averaged parameters if there are any, and its metadata.

        The metadata do not depend on the number of shards or processes: the file is the same.
        """
        last = trainer.history[-1] if trainer.history else {}
        about = {
            "backburn": versions().get("backburn", "of no installation"),
            "backend": spec_without_shards(self._at.backend),
            "epoch": trainer.epoch,
            "step": trainer.steps,
            "metrics": {name: x for name, x in last.items() if not name.startswith(("seconds", "examples"))},
            **trainer.about,
        }
        if isinstance(config := about.get("config"), dict):
            about["config"] = {name: table for name, table in config.items() if name != "distributed"}
        with averaged(trainer.model, trainer.average):
            return model_state(trainer.model), about


def _with_state(trainer: Trainer[Any]) -> dict[str, Any]:
    """The callbacks that have a state, by the names of their classes; further ones of a class are numbered."""
    found: dict[str, Any] = {}
    for callback in dict.fromkeys((*trainer.callbacks, trainer.checkpoints)):
        if hasattr(callback, "state_dict"):
            name = type(callback).__name__
            count = sum(key.partition("-")[0] == name for key in found)
            found[f"{name}-{count + 1}" if count else name] = callback
    return found


def averaged(model: Any, average: Average | None) -> AbstractContextManager[Any]:
    """A context in which a model has its averaged parameters, if there is an average with any."""
    return average.applied(model) if average is not None and average.updates else nullcontext()


def diverged(trainer: Trainer[Any], how: str) -> NumericalInstabilityError:
    """The error for a run with values that are not finite, which names the data as the cause if theirs are not."""
    epoch = trainer.epoch + 1
    found = None if trainer.steps_per_epoch is not None else not_finite(trainer.data, epoch, trainer.batches)
    if found is not None:
        return NumericalInstabilityError(
            f"fit: {how}, in epoch {epoch}, and the data are not finite: {found}. Leave such examples "
            f"out, or replace the values (bb.nan_to_num); on_nan='skip' skips their steps"
        )
    rates = ", ".join(f"{value:g}" for value in rate_values(trainer.optimizer).values())
    return NumericalInstabilityError(
        f"fit: training has diverged: {how}, in epoch {epoch}. Try a smaller learning rate than {rates}, "
        f"clip=1.0, or on_nan='skip'"
    )
