"""Configurations: dataclasses with the names of published ``config.json`` files; other keys are kept."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from backburn.base.errors import ConfigError, FileFormatError, hint_for
from backburn.base.foreign_files import inside, is_number, parsed
from backburn.base.metadata import warn_of
from backburn.base.regular import read_regular
from backburn.models.keys import COMMON, GENERATION, GENERATION_IDLE, GENERATION_OFF

C = TypeVar("C", bound="Config")

#: The keys of a ``config.json`` that name the model.
_NAMES = ("architectures", "model_type", "_class_name")
#: The values that all models support.
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,), "is_encoder_decoder": (False,), "pruned_heads": ({}, None),
    "add_cross_attention": (False,),
}  # fmt: skip
#: Limits of numbers of Python objects in a model, so that a number in a file cannot exhaust the memory.
_MOST = {"num_hidden_layers": 10_000, "n_layer": 10_000, "layers_per_block": 10_000, "num_labels": 100_000}
#: The largest ``config.json`` that is read, and the largest integer in it.
_LONGEST, _LARGEST = 10_000_000, 1 << 62
#: The keys that count or name a model's layers, or blocks of layers.
_LAYERS = (
    "num_hidden_layers", "n_layer", "layers_per_block", "depths", "hidden_sizes", "down_block_types", "up_block_types",
    "block_out_channels",
)  # fmt: skip


@dataclass(kw_only=True)
class Config:
    """The base class of configurations; a subclass's fields are the published names and defaults.

    Keys of a file that are not fields do not change what a model computes: they are kept in ``extra`` and written back;
    unknown ones cause a ``MetadataWarning`` that names them. Raises :class:`ConfigError` for values of another type,
    for sizes below 1, and for values that a model does not support.
    """

    #: The family, which published files name besides the architecture.
    model_type: ClassVar[str] = ""
    #: The supported values of keys that change the result, whether the keys are fields or not.
    SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = types.MappingProxyType({})
    #: Other keys, which do not change what a model computes.
    IDLE: ClassVar[frozenset[str]] = COMMON
    #: Fields that files of this family may have without an effect.
    NOT_READ: ClassVar[frozenset[str]] = frozenset()
    #: Fields that may be 0.
    MAY_BE_ZERO: ClassVar[frozenset[str]] = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})

    #: Other keys of the file, written by :meth:`to_dict` as they are.
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for values that the class does not support."""
        name = type(self).__name__
        for key, hint in _hints(type(self)).items():
            value = getattr(self, key)
            if not _fits(value, hint):
                raise ConfigError(f"{name}: {key} is {_words(hint)}, not {value!r:.100}")
            is_size = type(value) is int and key not in self.MAY_BE_ZERO
            if (is_size and value < 1) or (type(value) is float and not math.isfinite(value)):
                raise ConfigError(f"{name}: {key} is {value}, and has to be {'1 or more' if is_size else 'finite'}")
            if is_size and value > _MOST.get(key, value):
                raise ConfigError(f"{name}: {key} is {value}, and may be {_MOST[key]} at most")
        for key, known in {**_SUPPORTED, **self.SUPPORTED}.items():
            value = getattr(self, key, self.extra.get(key, known[0]))
            if not any(value == other and type(value) is type(other) for other in known):
                words = ", ".join(map(repr, known))
                raise ConfigError(f"{name}: {key} is {value!r:.100}, which is not supported; supported: {words}")

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """The configuration of a published table. Raises :class:`ConfigError`."""
        names = _hints(cls)
        fields = {key: x for key, x in values.items() if key in names and key not in cls.NOT_READ}
        extra = {key: x for key, x in values.items() if key not in names and key not in _NAMES}
        warn_of(cls.__name__, extra.keys() - cls.known())
        return cls(**fields, extra=extra)

    @classmethod
    def known(cls) -> set[str]:
        """The known keys of files: those that are read, supported with some values, or without effect."""
        return {*_hints(cls), *cls.SUPPORTED, *_SUPPORTED, *cls.IDLE, *_NAMES}

    def to_dict(self) -> dict[str, Any]:
        """The table for a ``config.json``: all fields, and the other keys of the file that this one was read from."""
        own = {key: getattr(self, key) for key in _hints(type(self))}
        return {**self.extra, **own, **({"model_type": self.model_type} if self.model_type else {})}


def _hints(cls: type[Config]) -> dict[str, Any]:
    """The types of the fields."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name != "extra"}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of a field."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, kind) for kind in get_args(hint))
    if origin is list:
        return isinstance(value, list) and all(_fits(x, get_args(hint)[0]) for x in value)
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is float:
        return isinstance(value, float) or is_number(value)  # non-finite ones get another message
    return type(value) is hint and (hint is not int or abs(value) < _LARGEST)


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(hint)))
    if get_origin(hint) is list:
        return f"a list, each item {_words(get_args(hint)[0])}"
    return _WORDS.get(hint, "a table")


def read_config(folder: Path) -> dict[str, Any]:
    """The table in a folder's ``config.json``. Raises :class:`ConfigError` if there is none, or no table in it.

    Tokens that end a text are those of ``generation_config.json``, if the folder has it: in ``config.json`` chat models
    often have only the end of a document.
    """
    path, generation = folder / "config.json", folder / "generation_config.json"
    if not path.is_file():
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: this is a file; give a folder with {path.name} and weights")
        if not folder.is_dir():
            raise ConfigError(
                f"{folder}: there is no such folder, and nothing is downloaded: "
                "huggingface-cli download NAME --local-dir FOLDER makes one"
            )
        raise ConfigError(f"{path}: there is no such file; a model's folder has it beside the weights")
    values = _table(path)
    generating = _table(generation) if generation.is_file() else {}
    on = {key for key, value in generating.items() if not any(value == off for off in GENERATION_OFF)}
    warn_of(str(generation), (on - GENERATION_IDLE) | (generating.keys() - GENERATION), stacklevel=4)
    stops = generating.get("eos_token_id")
    if stops is None:
        return values
    if not _fits(stops, int | list[int]):
        raise ConfigError(f"{generation}: eos_token_id is {_words(int | list[int])}, not {stops!r:.100}")
    return {**values, "eos_token_id": stops}


def check_layers(config: Config, tensors: int) -> None:
    """Raise :class:`ConfigError` for more layers than the weights have tensors."""
    for key in _LAYERS:
        value = getattr(config, key, 0)
        count = max(len(value), *(n for n in value if isinstance(n, int)), 0) if isinstance(value, list) else value
        if count > tensors:
            words = f"{key} is {value!r:.100}, and the weights beside it have {tensors} tensors in all"
            raise ConfigError(f"{type(config).__name__}: {words}")


def _table(path: Path) -> dict[str, Any]:
    """The table in a file."""
    try:
        values = parsed(read_regular(inside(path, path.parent), _LONGEST), f"{path}:")
    except FileFormatError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds {type(values).__name__}, and a configuration is a table")
    return values


def unknown(where: str, kind: str, name: object, known: list[str]) -> ConfigError:
    """The error for an unknown model."""
    hint = hint_for(name, known) if isinstance(name, str) else ""
    near = f" {hint}" if hint.startswith("Did") else ""
    return ConfigError(f"{where}: no model has the {kind} {name!r:.100}.{near} Known: {', '.join(known)}")
