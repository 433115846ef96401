"""Parts of a run's state: a model's tensors, and the description by which two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, BackburnError, RunFolderError
from backburn.base.foreign import is_deep, printable
from backburn.base.mutable_trees import MutableTree
from backburn.distributed.rows import Rows
from backburn.nn.module import placed_as
from backburn.optim.groups import Groups
from backburn.tensor.core.copying import copy_if_overwritten
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor, wrap

if TYPE_CHECKING:
    from backburn.train.trainer import Trainer


def model_state(model: Any) -> dict[str, Any]:
    """The tensors of a model by name, as a snapshot that further steps do not change."""
    if hasattr(model, "state_dict"):
        return dict(model.state_dict())
    leaves = MutableTree(model, is_tensor).leaves
    return {
        leaf.path: leaf.value.detach() if leaf.value.dtype.has_gradient else _own(copy_if_overwritten(leaf.value))
        for leaf in leaves
    }


def _own(x: Any) -> Any:
    """A tensor of the same values, which a captured step does not consume."""
    return wrap(x._primitive, x._backend)


def load_model_state(model: Any, state: Mapping[str, Any]) -> None:
    """Put saved tensors into a model that has those of the same names."""
    if hasattr(model, "load_state_dict"):
        model.load_state_dict(state)
        return
    for leaf in MutableTree(model, is_tensor).leaves:
        x = leaf.value
        new = placed_as(asarray(state[leaf.path], dtype=x.dtype, backend=x.backend), x)
        leaf.put(new.require_grad() if x.dtype.has_gradient and x.is_require_grad else new)


@dataclass(frozen=True)
class Description:
    """A run in plain values, which are compared with those of the run that resumes it."""

    model: dict[str, str]
    optimizer: str
    options: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]

    @classmethod
    def of(cls, trainer: Trainer[Any]) -> Description:
        """The description of a trainer's run."""
        options = {
            "accumulate": trainer.accumulate,
            "precision": trainer.precision.dtype.name,
            "average": None if trainer.average is None else repr(trainer.average),
            "seed": trainer.seed,
            "steps_per_epoch": trainer.steps_per_epoch,
        }
        return cls(
            {name: _described(x) for name, x in model_state(trainer.model).items()},
            _kind(trainer.optimizer),
            options,
            data_description(trainer.data),
            {name: x for name, x in flat(trainer.about.get("config", {})).items() if not _is_free(name)},
        )

    def tables(self) -> dict[str, Any]:
        """The description as a tree of plain values."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "options": self.options,
            "data": self.data,
            "config": self.config,
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise :class:`RunFolderError` if a saved run is another one, and say what differs, by name."""
        own, found = self.tables(), []
        for table in ("config", "model", "options", "data"):
            before, now = saved[table], own[table]
            for name in {**before, **now}:
                if before.get(name) != now.get(name):
                    was = printable(before.get(name))
                    found.append(f"{table} {printable(name)} was {was}, is {printable(now.get(name))}")
        if saved["optimizer"] != own["optimizer"]:
            found.append(f"optimizer was {printable(saved['optimizer'])}, is {own['optimizer']}")
        if found:
            more = f", and {len(found) - 5} more" if len(found) > 5 else ""
            raise RunFolderError(f"the saved run is another one: {'; '.join(found[:5])}{more}")


#: The errors of reading a state that is not one of this run, and of setting its parts.
MISFITS = (ArithmeticError, AttributeError, BackburnError, LookupError, RecursionError, TypeError, ValueError)


def check_parts(state: Any) -> None:
    """Raise :class:`ArgumentError` for a saved state whose plain values are not those of a run, whatever wrote it.

    The parts of the model, the optimizer, the average, the precision and the rates are checked when they are loaded.
    """
    if not isinstance(state, Mapping) or is_deep(state):
        raise ArgumentError("it is not a table, or is nested too deeply")
    counts = [state[name] for name in ("epoch", "steps", "batches", "passes")]
    sums, logged, seconds = (_table(state, name) for name in ("sums", "logged", "seconds"))
    for each in (sums, logged):
        values, numbers = _table(each, "sums"), _table(each, "counts")
        counts += [each["examples"], *numbers.values()]
        if values.keys() != numbers.keys() or not all(map(_is_number, values.values())):
            raise ArgumentError("its sums are malformed")
    skipped = state["skipped"]
    if not isinstance(skipped, list) or len(skipped) != 2:
        raise ArgumentError("its skipped steps are not a pair of numbers")
    for number in (*counts, *skipped):
        if type(number) is not int or not 0 <= number < 2**63:
            raise ArgumentError(f"{printable(number, 40)} is not a count")
    if not all(_is_number(x) and 0 <= x < inf for x in seconds.values()) or not 0 < state["lowered"] <= 1:
        raise ArgumentError("its times or its rate are not numbers")
    key = state["evaluation"]
    if type(key) is not int or not 0 <= key < 2**128:
        raise ArgumentError("its random numbers have no key")
    rows = state["history"]
    if not isinstance(rows, list) or not all(isinstance(r, dict) and all(map(_is_number, r.values())) for r in rows):
        raise ArgumentError("its history has no rows of numbers")
    layout = state["layout"]
    if layout is not None and not (isinstance(layout, dict) and all(isinstance(x, str) for x in layout.values())):
        raise ArgumentError("its batches have no layout")


def _table(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = state[name]
    if not isinstance(found, dict):
        raise ArgumentError(f"{name} of it is not a table")
    return found


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def data_description(data: Any) -> dict[str, Any]:
    """The kind and the length of data, and the result of their method ``describe``, if any."""
    kind = type(data.loader if isinstance(data, Rows) else data)  # the same run whether batches are split or not
    given: Any = data
    found: dict[str, Any] = {"kind": kind.__name__}
    if isinstance(given, Sized):
        found["batches"] = len(given)
    if describe := getattr(data, "describe", None):
        found |= dict(describe())
    return found


def _described(x: Any) -> str:
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def _kind(optimizer: Any) -> str:
    if isinstance(optimizer, Groups):
        return ", ".join(f"{name}: {type(one).__name__}" for name, one in optimizer.optimizers.items())
    return type(optimizer).__name__


#: Keys of a configuration that may differ in another process, since they do not change what is computed.
_FREE = ("backend", "callbacks", "distributed", "output", "train.epochs", "train.capture", "train.log_every")


def _is_free(name: str) -> bool:
    return any(f"{name}.".startswith(f"{free}.") for free in _FREE)


def flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The keys of a configuration with dots, and their values.

    >>> flat({"train": {"epochs": 3}, "backend": "numpy"})
    {'train.epochs': 3, 'backend': 'numpy'}
    """
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{above}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found
