"""The configuration of a training run: typed, validated, read from TOML.

Every key has a default, so that an empty file is a configuration. Unknown keys and invalid values raise an error with
file and line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from backburn.base.errors import ConfigError, hint_for
from backburn.train.toml import line_of, read_toml

Positive: TypeAlias = Annotated[int, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
#: Text with more than blanks and quotation marks: a shell may pass an empty '' literally.
Name: TypeAlias = Annotated[str, Field(pattern="[^\\s'\"]")]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ActivationName: TypeAlias = Literal["relu", "gelu", "silu", "tanh", "sigmoid"]


class Section(BaseModel):
    """A table of the configuration. Unknown keys are refused, values are not converted, nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DistortConfig(Section):
    """``[data.distort]``: how far training images are distorted at most; see :class:`backburn.data.Distortion`."""

    rotation: Annotated[float, Field(ge=0, le=180)] = 0.0
    scale: Annotated[float, Field(ge=0, le=3)] = 0.0
    shear: Annotated[float, Field(ge=0, le=3)] = 0.0
    shift: Annotated[float, Field(ge=0, le=8)] = 0.0


class DataConfig(Section):
    """``[data]``: the training data.

    ``validation`` is the share of the training images, taken from their end, that is used for validation after each
    epoch, instead of the held-out images, so that these do not influence the choice of a configuration.
    """

    name: Literal["digits"] = "digits"
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    distort: DistortConfig = DistortConfig()


class ModelConfig(Section):
    """``[model]``: linear layers of ``hidden`` units, each followed by the activation and dropout, then ten outputs."""

    hidden: list[Positive] = [128]
    activation: ActivationName = "relu"
    dropout: Share = 0.0


class OptimizerConfig(Section):
    """``[optimizer]``: the optimizer and its options; ``momentum`` is for SGD.

    ``schedule = "cosine"`` lets the learning rate fall to 0 over the whole run; with ``"plateau"`` it is multiplied by
    ``factor`` when the training loss has not fallen for more than ``patience`` epochs.
    """

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Amount = 0.0
    momentum: Share = 0.0
    schedule: Literal["constant", "cosine", "plateau"] = "constant"
    factor: Share = 0.1
    patience: Annotated[int, Field(ge=0)] = 10

    @field_validator("momentum")
    @classmethod
    def _of_sgd(cls, momentum: float, info: ValidationInfo) -> float:
        if momentum and info.data.get("name", "sgd") != "sgd":
            raise ValueError(f"{info.data['name']} has no momentum, sgd has")
        return momentum


class TrainConfig(Section):
    """``[train]``: epochs, batch size and seed.

    With ``capture`` steps are recorded and replayed, on a backend that can: see :func:`backburn.capture`.
    """

    epochs: Positive = 20
    batch_size: Positive = 64
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    label_smoothing: Share = 0.0
    capture: bool = False


class OutputConfig(Section):
    """``[output]``: the folder for the model and the learning curves."""

    folder: Name = "runs/digits"


class Config(Section):
    """A whole configuration file."""

    backend: Name | None = None
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    output: OutputConfig = OutputConfig()


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read and check a TOML file. Raises :class:`ConfigError` that names the file, each wrong key and its line."""
    tables, text = read_toml(path)
    return _checked(tables, Path(path), text)


def place_of_key(path: str | os.PathLike[str], *keys: str) -> str:
    """``file, line N: a.b = value`` of a key that a readable file sets, for messages about its value."""
    tables, text = read_toml(path)
    value: Any = tables
    for key in keys:
        value = value[key]
    return f"{Path(path)}, line {line_of(text, keys)}: {'.'.join(keys)} = {value!r}"


def config_of(tables: Mapping[str, Any], source: str | os.PathLike[str] = "the configuration") -> Config:
    """Check tables that were read before, such as those in a model file, named by ``source`` in errors.

    >>> config_of({"train": {"epochs": 3}}).train.epochs
    3
    """
    return _checked(dict(tables), Path(source), "")


def changed(config: Config, section: str, **values: Any) -> Config:
    """``config`` with other values in one section, checked again; values that are None change nothing.

    >>> changed(Config(), "train", epochs=3, seed=None).train.epochs
    3
    """
    tables = config.model_dump()
    tables[section].update({key: value for key, value in values.items() if value is not None})
    return _checked(tables, Path(f"the option for [{section}]"), "")


def _checked(tables: dict[str, Any], source: Path, text: str) -> Config:
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        problems = [_problem(e["loc"], e["type"], e["msg"], e["input"]) for e in error.errors()]
        lines = [line_of(text, [k for k in e["loc"] if isinstance(k, str)]) for e in error.errors()]
    raise ConfigError(
        "\n".join(
            f"{source}, line {line}: {problem}" if line else f"{source}: {problem}"
            for line, problem in zip(lines, problems, strict=True)
        )
    )


def _problem(location: Sequence[str | int], kind: str, message: str, value: Any) -> str:
    """The fault of a value, in words."""
    names = [str(part) for part in location]
    if kind == "extra_forbidden":
        *tables, key = names
        what = f"[{'.'.join(tables)}] has no key {key!r}" if tables else f"unknown key {key!r}"
        return f"{what}. {hint_for(key, _section(tables).model_fields)}"
    key = ".".join(names)
    if kind == "literal_error":
        return f"{key} = {value!r} is not one of its values. {hint_for(str(value), _values(names))}"
    if kind == "string_pattern_mismatch":
        return f"{key} = {value!r}: this is not a name"
    if kind == "model_type":
        return f"{key} = {value!r}: this is a table, [{key}]"
    return f"{key} = {value!r}: {message.removeprefix('Value error, ').replace('Input', 'it')}"


def _section(tables: Sequence[str]) -> type[BaseModel]:
    section: Any = Config
    for table in tables:
        section = section.model_fields[table].annotation
    return section


def _values(names: Sequence[str]) -> list[str]:
    """The values that a key with a fixed set of them takes."""
    return [str(value) for value in get_args(_section(names[:-1]).model_fields[names[-1]].annotation)]
