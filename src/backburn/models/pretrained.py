"""Models in folders: a ``config.json`` and weights, in Hugging Face's layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from backburn.backend.contract import AnyBackend
from backburn.backend.registry import shapes_only
from backburn.base.dtypes import FloatDType, as_dtype
from backburn.base.errors import BackburnError, ConfigError, FileFormatError
from backburn.base.foreign_files import inside
from backburn.base.regular import read_regular
from backburn.io import load_weights, save_weights, write_atomically
from backburn.io.weights.save import save_file
from backburn.io.weights.sources import opened
from backburn.models.config import Config, check_layers, read_config, unknown
from backburn.nn import Embedding, init
from backburn.nn.module import Module, parameter, state_places
from backburn.tensor import creation, shape
from backburn.tensor.core.defaults import as_backend, default_dtype, use_backend, use_dtype
from backburn.tensor.core.dispatch import is_quantized

if TYPE_CHECKING:
    from typing import Self

#: The methods of quantization in ``config.json`` whose weights stay quantized when read: ours first.
QUANTIZED = ("backburn", "gptq", "awq")

#: The files beside the weights that saving a model copies, unless the folder has them.
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json", "preprocessor_config.json",
)  # fmt: skip
#: The largest of them.
_LONGEST = 100_000_000

#: Every architecture: the name in ``config.json``, and the classes of the model and of its configuration.
ARCHITECTURES: dict[str, tuple[type[Pretrained], type[Config]]] = {}


class Pretrained(Module):
    """The base class of published models: built from ``config``, loaded from a folder, and saved to one.

    Names of parameters are those of the published files. Where a file has another layout, :meth:`rename_weight` says
    so, and :meth:`published` restores it.
    """

    #: The names of the architectures that the class implements, each with the class of its configuration.
    ARCHITECTURES: ClassVar[Mapping[str, type[Config]]] = MappingProxyType({})
    #: The file of weights that :meth:`save_pretrained` writes; in a folder of shards if it is ``model.safetensors``.
    WEIGHTS: ClassVar[str] = "model.safetensors"
    #: The key of ``config.json`` with the architecture's name.
    NAME_KEY: ClassVar[str] = "architectures"
    config: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class under its architectures."""
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("ARCHITECTURES", {})
        ARCHITECTURES.update({name: (cls, config) for name, config in own.items()})

    def __init__(self, config: Any) -> None:
        """Raises :class:`ConfigError` unless ``config`` is a configuration of this model."""
        if type(config) not in self.ARCHITECTURES.values():
            known = dict.fromkeys(kind.__name__ for kind in self.ARCHITECTURES.values())
            raise ConfigError(f"{type(self).__name__}: takes a {' or '.join(known)}, not {config!r:.100}")
        self.config = config

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        backend: AnyBackend | str | None = None,
        dtype: FloatDType | str | None = None,
    ) -> Self:
        """The model in a folder, in evaluation mode: see :func:`from_pretrained`."""
        where, values = str(Path(os.fsdecode(folder)) / "config.json"), read_config(Path(os.fsdecode(folder)))
        made, kind = _classes(where, values)
        if not issubclass(made, cls) and not issubclass(cls, made):
            raise unknown(where, "architecture", values.get("architectures"), sorted(cls.ARCHITECTURES))
        quantization = values.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        is_packed = isinstance(method, str) and method in QUANTIZED
        if is_packed:
            values = {key: value for key, value in values.items() if key != "quantization_config"}
        target = as_backend(backend)
        with use_dtype(default_dtype() if dtype is None else as_dtype(dtype)):
            try:
                config = kind.from_dict(values)
                vars(config)["folder"] = Path(
                    os.fsdecode(folder)
                ).absolute()  # no field: equal models come from several folders
                with opened(folder) as found:
                    check_layers(config, len(found.tensors))
                with use_backend(shapes_only()):
                    model: Any = (cls if issubclass(cls, made) else made)(config)
            except FileFormatError:  # of the weights
                raise
            except BackburnError as error:
                raise ConfigError(f"{where}: {error}") from error
            if not is_packed:
                _place(model, target)
        if is_packed:  # into layers without values, so that the weights never all exist as floats
            rename = _own_name if method == QUANTIZED[0] else None
            load_weights(model, folder, rename=rename, quantized=True, backend=target)
        else:
            load_weights(model, folder)
        return cast("Self", model.eval())

    def save_pretrained(self, folder: str | os.PathLike[str], *, max_shard_size: int | str = "5GB") -> None:
        """Write ``config.json`` and the weights to a folder, which transformers and :func:`from_pretrained` read.

        Weights are in ``model.safetensors``, or in shards of at most ``max_shard_size`` and their index (see
        :func:`backburn.io.save_weights`, whose errors it raises), under the published names; those of a quantized
        model, which only :func:`from_pretrained` reads, under its own. The configuration keeps the keys of the file
        that it was read from. The tokenizer's files and ``generation_config.json`` of the folder that the model was
        read from are copied, unless ``folder`` has such files.
        """
        path = Path(os.fsdecode(folder))
        name = next(name for name, kind in self.ARCHITECTURES.items() if kind is type(self.config))
        values = {**self.config.to_dict(), self.NAME_KEY: name}
        written: Module = self
        if any(is_quantized(x) for x in self.state_dict().values()):
            values["quantization_config"] = {"quant_method": QUANTIZED[0]}
        else:
            written = self.published()
        if self.NAME_KEY == Pretrained.NAME_KEY:
            dtype = next((str(x.dtype) for x in self.parameters()), "float32")
            values |= {"architectures": [name], "dtype": dtype}
            values.pop("torch_dtype", None)  # the older name
        if self.WEIGHTS == Pretrained.WEIGHTS:
            save_weights(written, path, max_shard_size=max_shard_size)
        else:
            path.mkdir(parents=True, exist_ok=True)
            save_file(written, path / self.WEIGHTS, follow=False)
        text = json.dumps(values, indent=2, sort_keys=True) + "\n"
        write_atomically(path / "config.json", text.encode(), follow=False)
        source: Path | None = vars(self.config).get("folder")
        if source is not None:
            _copy_beside(source, path)

    def draw(self, std: float, scaled: Mapping[str, float] = MappingProxyType({})) -> None:
        """Initialize all matrices normally with the deviation ``std``, and biases to 0, as published models do.

        A matrix whose path ends with a key of ``scaled`` has its deviation times the value. Padding rows are 0.
        """
        rows = {id(x.weight): x.padding_idx for _, x in self.named_modules() if isinstance(x, Embedding)}
        for leaf in state_places(self)[0]:
            old, name = leaf.value, leaf.path.rpartition(".")[2]
            if name == "bias":
                leaf.put(parameter(init.zeros(old.shape)))
            elif name == "weight" and old.ndim > 1:
                factor = next((x for end, x in scaled.items() if leaf.path.endswith(end)), 1.0)
                new, row = init.normal(old.shape, std=std * factor), rows.get(id(old))
                leaf.put(parameter(new if row is None else new.at[row].set(0.0)))

    def published(self) -> Module:
        """The model with its weights in the layout of published files; itself if that is the same."""
        return self


def _copy_beside(source: Path, folder: Path) -> None:
    """Copy the files of ``BESIDE`` that only ``source`` has."""
    for name in BESIDE:
        if (source / name).is_file() and not (folder / name).exists():
            content = read_regular(inside(source / name, source), _LONGEST)
            write_atomically(folder / name, content, follow=False)


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    backend: AnyBackend | str | None = None,
    dtype: FloatDType | str | None = None,
) -> Pretrained:
    """The model in a folder in Hugging Face's layout: its ``config.json`` names the class and all sizes.

    The weights, of any width, become floats of ``dtype`` (by default :func:`backburn.use_dtype`'s) on ``backend``;
    loading needs memory for the model and one tensor. The model is in evaluation mode; ``train()`` enables dropout.

    Raises :class:`ConfigError` for a missing or damaged ``config.json``, an unknown architecture, values of wrong
    types, and values that the model does not support; and the errors of :func:`backburn.io.load_weights`. Each names
    the file, what is wrong in it, and what is known.

        >>> import tempfile, backburn as bb
        >>> folder = tempfile.mkdtemp()
        >>> config = bb.models.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        ...                                num_attention_heads=2)
        >>> bb.models.Llama(config).save_pretrained(folder)
        >>> model = from_pretrained(folder, backend="numpy")
        >>> type(model).__name__, model(bb.asarray([[1, 2, 3]], backend="numpy")).shape
        ('Llama', (1, 3, 32))
    """
    return Pretrained.from_pretrained(folder, backend=backend, dtype=dtype)


def _classes(where: str, values: Mapping[str, Any]) -> tuple[type[Pretrained], type[Config]]:
    """The classes that a table names by its architecture, or if it has none by its family."""
    named = values.get("architectures", values.get("_class_name"))
    if named is None:
        family = values.get("model_type")
        for made, kind in ARCHITECTURES.values():
            if family and family == kind.model_type:
                return made, kind
        raise unknown(
            where, "model_type", family, sorted({kind.model_type for _, kind in ARCHITECTURES.values()} - {""})
        )
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise unknown(where, "architecture", name, sorted(ARCHITECTURES))
    return ARCHITECTURES[name]


def _own_name(name: str) -> str:
    """The name itself: the path of a tensor in a folder with the model's own names."""
    return name


def _place(model: Module, target: AnyBackend) -> None:
    """Put a model without values onto a backend, with a broadcast zero for each tensor until its values are read."""
    trained = set(map(id, model.parameters()))
    for leaf in state_places(model)[0]:
        old = leaf.value
        new: Any = shape.broadcast_to(creation.zeros((), dtype=old.dtype, backend=target), old.shape)
        leaf.put(parameter(new) if id(old) in trained else new)
