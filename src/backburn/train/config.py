"""The configuration of a training run: typed, validated, read from TOML.

Each table has its keys, listed below, and ``[model]``, ``[data]``, ``[loss]`` and ``[metrics]`` also name functions,
``package.module:function``, whose keyword arguments are the other keys. Unknown keys and invalid values raise an error
with file and line, for the arguments of functions too. An empty file trains on the digits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from backburn.base.errors import ConfigError, hint_for
from backburn.base.foreign import printable, quoted
from backburn.train.signatures import Parameters, check_fits, imported, parameters_in_source, parameters_of
from backburn.train.toml import check_tables, line_of, parsed, read_toml

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
#: Text other than blanks and quotation marks: a shell may pass an empty '' literally.
Name: TypeAlias = Annotated[str, Field(pattern="[^\\s'\"]")]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: The most faults that one error lists.
MOST_FAULTS = 20
#: The functions of a configuration that names none.
DIGITS = {
    "model": "backburn.train.digits:network",
    "data": "backburn.train.digits:data",
    "loss": "backburn.train.digits:loss",
}

#: The functions that a model file may name: those that are installed with backburn itself and read no other file.
INSTALLED = frozenset(DIGITS.values()) | {
    f"backburn.models:{name}"
    for name in ["Llama", "GPT2", "Bert", "BertForMaskedLM", "BertForSequenceClassification", "ViT", "ResNet", "UNet"]
}


class Section(BaseModel):
    """A table of the configuration. Unknown keys are refused, values are not converted, nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Arguments(Section):
    """A table whose other keys are arguments of a function."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def arguments(self) -> dict[str, Any]:
        """The other keys."""
        return dict(self.model_extra or {})


class ModelConfig(Arguments):
    """``[model]``: ``build`` is a function that returns the model; the other keys are its arguments."""

    build: Name = DIGITS["model"]


class DataConfig(Arguments):
    """``[data]``: ``build`` is a function that returns data to train on, or several by name.

    Names are ``"train"``, ``"validation"``, and any others, on which the trained model is measured. ``batch_size`` and
    ``seed`` of ``[train]`` are passed to a function that takes them, unless they are given here.
    """

    build: Name = DIGITS["data"]


class LossConfig(Arguments):
    """``[loss]``: ``function`` of model and batch; the other keys are further arguments."""

    function: Name = DIGITS["loss"]


class OptimizerConfig(Arguments):
    """``[optimizer]``: the name and the learning rate of an optimizer; the other keys are options of its class.

    ``schedule`` is ``"constant"``, ``"cosine"``, with which the learning rate falls to 0 over the whole run, or
    ``"plateau"``, with which it is multiplied by ``factor`` when the training loss has not fallen for more than
    ``patience`` epochs. ``[schedule]`` has all others.
    """

    name: Literal[
        "sgd", "adam", "adamw", "adamax", "nadam", "radam", "lion", "adan", "rmsprop", "adagrad", "adadelta",
        "adafactor", "muon",
    ] = "adamw"  # fmt: skip
    learning_rate: Rate = 1e-3
    weight_decay: Amount = 0.0
    schedule: Literal["constant", "cosine", "plateau"] = "constant"
    factor: Share = 0.1
    patience: Annotated[int, Field(ge=0)] = 10


class ScheduleConfig(Arguments):
    """``[schedule]``: the name of one of :mod:`backburn.optim.schedules`; the other keys are its options.

    Its rate is that of ``[optimizer]``, and its length the whole run, unless options say otherwise. ``warmup`` is a
    number of steps before it, in which the rate rises.
    """

    name: Literal[
        "constant", "linear", "polynomial", "cosine", "cosine_warm_restarts", "exponential", "step", "multi_step",
        "one_cycle", "plateau",
    ] = "constant"  # fmt: skip
    warmup: Annotated[int, Field(ge=0)] = 0


class TrainConfig(Section):
    """``[train]``: what :func:`backburn.train.fit` takes, with the same meaning.

    With ``capture`` steps are recorded and replayed; by default they are if the backend can. ``average`` is the decay
    of an exponential moving average. ``label_smoothing`` is passed to a loss that takes it.
    """

    epochs: Positive = 20
    batch_size: Positive = 64
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    label_smoothing: Share | None = None
    capture: bool | None = None
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    accumulate: Positive = 1
    clip: Rate | None = None
    average: Share | None = None
    on_nan: Literal["stop", "skip", "back_off"] = "stop"
    steps_per_epoch: Positive | None = None
    log_every: Positive | None = None


class EarlyStoppingConfig(Section):
    """``[callbacks.early_stopping]``: the options of :class:`backburn.train.EarlyStopping`."""

    monitor: Name = "validation/loss"
    patience: Annotated[int, Field(ge=0)] = 5
    mode: Literal["min", "max"] = "min"
    min_delta: Amount = 0.0


class CheckpointsConfig(Section):
    """``[callbacks.checkpoints]``: the options of :class:`backburn.train.Checkpoints`; ``best = ""`` keeps no best."""

    last: Positive = 3
    best: str = "validation/loss"
    mode: Literal["min", "max"] = "min"
    every: Positive | None = None
    minutes: Rate = 5.0


class CallbacksConfig(Arguments):
    """``[callbacks]``: a table for each callback; those of any other name have ``build``, a class or function."""

    early_stopping: EarlyStoppingConfig | None = None
    checkpoints: CheckpointsConfig | None = None


class OutputConfig(Section):
    """``[output]``: the folder of the run."""

    folder: Name = "runs/digits"


class DistributedConfig(Section):
    """``[distributed]``: the mesh, and how parameters are placed on it; see :mod:`backburn.distributed`.

    ``mesh`` has the axes with their numbers of shards, the outermost first. ``parameters`` says how parameters and the
    optimizer's state are placed over the axis of the data: ``"replicated"``, ``"sharded"`` or ``"state"``. ``plan`` is
    ``"transformer"`` for a mesh with an axis ``tp``. The other keys are options of :func:`backburn.distributed.mesh`.
    """

    mesh: Annotated[dict[str, Positive], Field(min_length=1)]
    parameters: Literal["replicated", "sharded", "state"] = "replicated"
    plan: Literal["transformer"] | None = None
    deterministic: bool = True
    timeout: Rate | None = None
    check: bool = False
    threads: Positive | None = None


class Config(Section):
    """A whole configuration file."""

    backend: Name | None = None
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    metrics: dict[str, Name] = {}
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig | None = None
    train: TrainConfig = TrainConfig()
    callbacks: CallbacksConfig = CallbacksConfig()
    output: OutputConfig = OutputConfig()
    distributed: DistributedConfig | None = None


@dataclass(frozen=True)
class Source:
    """Where a configuration was read: the file's name and text for errors, and the folder for its functions."""

    name: str = "the configuration"
    text: str = ""
    folder: Path = field(default_factory=Path.cwd)
    #: The keys that options of the command line have set, with each option's name.
    options: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def place(self, keys: Sequence[str | int]) -> str:
        """``file, line 3`` of a key."""
        for option, name in self.options.items():
            if tuple(keys[: len(option)]) == option:
                return name
        line = line_of(self.text, [key for key in keys if isinstance(key, str)])
        return f"{self.name}, line {line}" if line else self.name


@dataclass(frozen=True)
class Run:
    """A configuration, where it was read, and its tables as they were given."""

    config: Config
    source: Source
    tables: Mapping[str, Any]

    def changed(self, keys: tuple[str, ...], value: Any, name: str) -> Run:
        """The configuration with another value, checked again; ``name`` says what set it."""
        tables = json.loads(json.dumps(self.tables, default=str))
        inside = tables
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ConfigError(f"{name}: {key} is a value, and not a table")
        inside[keys[-1]] = value
        source = Source(self.source.name, self.source.text, self.source.folder, {**self.source.options, keys: name})
        return Run(_checked(tables, source), source, tables)

    def overridden(self, words: Sequence[str]) -> Run:
        """The configuration after options of the form ``train.epochs=3``, whose values are those of TOML, or text."""
        run = self
        for word in words:
            keys, equals, value = word.partition("=")
            if not equals or not all(keys.split(".")):
                raise ConfigError(f"{quoted(word)} changes nothing: write table.key=value, such as train.epochs=3")
            try:
                found = parsed(f"value = {value}")["value"]
            except ValueError:
                found = value
            run = run.changed(tuple(keys.split(".")), found, f"the option {word}")
        return run

    def place_of(self, *keys: str) -> str:
        """``file, line N: a.b = value`` of a key that is given, for messages about its value."""
        value: Any = self.tables
        for key in keys:
            value = value[key]
        return f"{self.source.place(keys)}: {'.'.join(keys)} = {_short(value)}"

    # ---- functions ----

    def check_without_import(self) -> list[str]:
        """Check functions' arguments by their source code, without running any; returns those that could not be."""
        unknown = []
        for keys, name, arguments, skip in self._functions():
            with self._placed(keys):
                parameters = parameters_in_source(name, self.source.folder, skip)
            if parameters is None:
                unknown.append(name)
            else:
                self._validated(keys[:-1], name, parameters, arguments)
        return unknown

    def functions(self, *tables: str) -> dict[tuple[str, ...], tuple[Any, dict[str, Any]]]:
        """The functions that tables name, imported, and their arguments, by the keys of the tables.

        ``tables`` are the outermost tables to look at, by default all. Raises :class:`ConfigError`, which names file
        and line, for names without a function, and for functions that do not take their arguments.
        """
        found = {}
        for keys, name, arguments, skip in self._functions():
            if tables and keys[0] not in tables:
                continue
            with self._placed(keys):
                function = imported(name, self.source.folder)
                parameters = parameters_of(function, skip)
            valid = self._validated(keys[:-1], name, parameters, arguments)
            with self._placed(keys):
                check_fits(name, function, skip, valid)
            found[keys if keys[0] == "metrics" else keys[:-1]] = function, valid
        return found

    def names(self, *tables: str) -> dict[str, str]:
        """The names of the functions of some tables, by their keys."""
        return {".".join(keys): name for keys, name, _, _ in self._functions() if keys[0] in tables}

    def _functions(self) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any], int]]:
        """The keys and names of all functions, their arguments, and how many of these come from elsewhere."""
        config = self.config
        yield ("model", "build"), config.model.build, config.model.arguments, 0
        yield ("data", "build"), config.data.build, config.data.arguments, 0
        yield ("loss", "function"), config.loss.function, config.loss.arguments, 2
        for name, function in config.metrics.items():
            yield ("metrics", name), function, {}, 2
        for name, table in config.callbacks.arguments.items():
            if not isinstance(table, dict) or not isinstance(table.get("build"), str):
                known = ("early_stopping", "checkpoints")
                raise ConfigError(
                    f"{self.source.place(('callbacks', name))}: [callbacks.{printable(name)}] has a key build, the "
                    f"name of a class or function. {hint_for(name, known)}"
                )
            yield ("callbacks", name, "build"), table["build"], {k: x for k, x in table.items() if k != "build"}, 0

    def _placed(self, keys: tuple[str, ...]) -> Any:
        return _Placed(self.source.place(keys), ".".join(map(printable, keys)))

    def _validated(
        self, keys: tuple[str, ...], name: str, parameters: Parameters, given: dict[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a function, converted from values of TOML, with those that ``[train]`` gives."""
        arguments, train = dict(given), self.config.train
        passed: dict[str, Any] = (
            {"batch_size": train.batch_size, "seed": train.seed} if keys in (("model",), ("data",)) else {}
        )
        if keys == ("loss",) and train.label_smoothing is not None:
            passed["label_smoothing"] = train.label_smoothing
            if "label_smoothing" not in parameters.types and not parameters.takes_any:
                place = self.source.place(("train", "label_smoothing"))
                raise ConfigError(f"{place}: train.label_smoothing: the loss, {name}, does not take it")
        arguments |= {k: x for k, x in passed.items() if k in parameters.types and k not in arguments}
        return validated(arguments, parameters, self.source, keys)


class _Placed:
    """A context that puts the place of a key before a :class:`ConfigError`."""

    def __init__(self, place: str, key: str) -> None:
        self.place, self.key = place, key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(f"{self.place}: {self.key}: {error}") from error


def validated(
    arguments: Mapping[str, Any], parameters: Parameters, source: Source, keys: Sequence[str]
) -> dict[str, Any]:
    """Arguments of a function, checked and converted to the types of its parameters.

    Raises :class:`ConfigError` with file and line for unknown, missing and wrong ones.
    """
    fields: dict[str, Any] = {
        f"f{i}": (_known_type(kind), Field(... if name in parameters.required else None, alias=name))
        for i, (name, kind) in enumerate(parameters.types.items())
    }
    extra: Any = "allow" if parameters.takes_any else "forbid"
    config = ConfigDict(extra=extra, strict=True, arbitrary_types_allowed=True)
    model: Any = create_model("Arguments", __config__=config, **fields)
    try:
        found = model.model_validate_json(json.dumps(arguments, default=str))
    except ValidationError as error:
        raise _errors(error, source, keys, lambda tables: _names_in(parameters.types, tables)) from None
    own = {name: getattr(found, f"f{i}") for i, name in enumerate(parameters.types)}
    return {name: own.get(name, x) for name, x in arguments.items()}


def _known_type(kind: Any) -> Any:
    """A type that values can be checked against, or any."""
    try:
        TypeAdapter(kind)
    except Exception:  # of another library, or one that is for type checkers only
        return Any
    return kind


def _names_in(types: Mapping[str, Any], tables: Sequence[str]) -> list[str]:
    """The keys of a function's arguments, or of a table among them."""
    if not tables:
        return list(types)
    inside = types.get(tables[0])
    return list(getattr(inside, "__dataclass_fields__", getattr(inside, "model_fields", {})))


def read_config(path: str | os.PathLike[str]) -> Run:
    """Read and check a TOML file. Raises :class:`ConfigError` that names the file, each wrong key and its line."""
    tables, text = read_toml(path)
    source = Source(str(Path(path)), text, Path(path).resolve().parent)
    run = Run(_checked(tables, source), source, tables)
    for one, key in (("model", "build"), ("data", "build"), ("loss", "function")):
        others = {"model", "data", "loss"} - {one}
        named = [o for o in sorted(others) if {"build", "function"} & set(tables.get(o, {}))]
        if named and key not in tables.get(one, {}):
            raise ConfigError(
                f"{source.place((one,))}: [{one}] has no {key}, which names a function, package.module:function; "
                f"[{named[0]}] names one"
            )
    return run


def run_of(tables: Mapping[str, Any], folder: Path, name: str) -> Run:
    """Check tables that were read before, such as those in a model file, called ``name`` in errors."""
    source = Source(name, "", folder)
    return Run(_checked(dict(tables), source), source, tables)


def _checked(tables: dict[str, Any], source: Source) -> Config:
    check_tables(tables, source.name)
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise _errors(error, source, (), lambda names: list(_section(names).model_fields)) from None


def _errors(error: ValidationError, source: Source, keys: Sequence[str], known: Any) -> ConfigError:
    """All faults that pydantic found, each with its place."""
    lines, faults = [], error.errors(include_url=False, include_context=True)
    for found in faults[:MOST_FAULTS]:
        where = [*keys, *found["loc"]]
        places = [key for key in where if isinstance(key, str)]
        lines.append(f"{source.place(places)}: {_problem(where, len(keys), found, known)}")
    more = [f"and {len(faults) - MOST_FAULTS:,} more"] if len(faults) > MOST_FAULTS else []
    return ConfigError("\n".join([*dict.fromkeys(lines), *more]))


def _problem(location: Sequence[str | int], depth: int, found: Any, known: Any) -> str:
    """The message about the fault of a value."""
    kind, message, value = found["type"], found["msg"], _short(found["input"])
    names = [printable(part) for part in location]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        *tables, key = names
        return no_key(tables, key, known(tables[depth:]))
    key = ".".join(names)
    if kind == "missing" and type(location[-1]) is int:  # an item of a list
        return f"{'.'.join(names[:-1])} = {value}: it lacks item {location[-1] + 1}"
    if kind == "missing":
        *tables, last = names
        return f"[{'.'.join(tables)}] lacks the key {last!r}, which its function needs"
    if kind == "literal_error":
        values = [part.strip(" '") for part in found["ctx"]["expected"].replace(" or ", ", ").split(",")]
        return f"{key} = {value} is not one of its values. {hint_for(str(found['input']), values)}"
    if kind == "string_pattern_mismatch":
        return f"{key} = {value}: this is not a name"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key} = {value}: this is a table, [{key}]"
    return f"{key} = {value}: {printable(message.removeprefix('Value error, ').replace('Input', 'it'))}"


def _short(value: Any) -> str:
    """A value of a file for a message; only the beginning and the end of a long one."""
    return quoted(value) if isinstance(value, str) else printable(repr(value))


#: Names in other libraries, and of arguments of classes, for the keys of tables.
_ELSEWHERE = {
    "lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "per_device_train_batch_size": "batch_size",
    "max_epochs": "epochs", "num_epochs": "epochs", "num_train_epochs": "epochs", "max_grad_norm": "clip",
    "grad_clip": "clip", "gradient_clip_val": "clip", "gradient_accumulation_steps": "accumulate",
    "accumulate_grad_batches": "accumulate", "ema": "average", "ema_decay": "average", "warmup_steps": "warmup",
    "num_warmup_steps": "warmup", "logging_steps": "log_every", "scheduler": "schedule", "optim": "optimizer",
    "device": "backend", "path": "folder",
}  # fmt: skip


def no_key(tables: Sequence[str], key: str, known: Sequence[str]) -> str:
    """The message about an unknown key of a table, with the key that is probably meant, even of another table."""
    what = f"[{'.'.join(tables)}] has no key {key!r}" if tables else f"unknown key {key!r}"
    meant = _ELSEWHERE.get(key, key)
    if meant in known:
        return f"{what}. Did you mean {meant!r}?"
    for table, entry in Config.model_fields.items():
        if [table] != list(tables) and meant in getattr(entry.annotation, "model_fields", {}):
            return f"{what}. Did you mean {meant!r} of [{table}]?"
    return f"{what}. {hint_for(key, known)}".rstrip()


def _section(tables: Sequence[str]) -> type[BaseModel]:
    section: Any = Config
    for table in tables:
        section = section.model_fields[table].annotation
        section = next((part for part in get_args(section) if hasattr(part, "model_fields")), section)
    return section
