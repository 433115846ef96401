"""Adapters without their base, in PEFT's layout: ``adapter_config.json`` beside ``adapter_model.safetensors``.

The metadata of the tensor file holds a checksum of the base, which PEFT ignores.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from backburn.base.errors import ArgumentError, FileFormatError, ShapeError, hint_for
from backburn.base.foreign import printable, quoted
from backburn.base.foreign_files import inside, is_number, parsed
from backburn.base.regular import read_regular
from backburn.io.adapter_keys import check_keys
from backburn.io.atomic import write_atomically
from backburn.io.name_patterns import NamePatterns
from backburn.io.weights.load import Renamed
from backburn.io.weights.safetensors_file import entries_of, looks_like
from backburn.io.weights.safetensors_writer import Part, write
from backburn.io.weights.sources import opened
from backburn.io.weights.stored import Source, Stored
from backburn.nn.adapters import LoRALinear, adapters
from backburn.nn.linear import Linear
from backburn.nn.module import Module, state_places
from backburn.nn.quantized import QuantizedLinear
from backburn.nn.quantized_models import replaced
from backburn.tensor.core.host import asarray, quantized_parts, to_host
from backburn.tensor.core.options import flags
from backburn.tensor.core.wrapping import is_tensor

M = TypeVar("M", bound=Module)

CONFIG, TENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
#: The metadata entry with the checksum of the base.
BASE = "backburn_base"
PREFIX = "base_model.model."
PARTS = ("lora_A", "lora_B", "lora_magnitude_vector")
_NAME = re.compile(r"base_model\.model\.(?:(.+)\.)?(lora_A|lora_B|lora_magnitude_vector)(?:\.default)?(?:\.weight)?")
_LARGEST_CONFIG = 1 << 22


def save_adapters(model: Module, folder: str | os.PathLike[str], *, rename: Callable[[str], str] | None = None) -> None:
    """Write the adapters of ``model``, without its base, to a folder, as PEFT lays them out.

    ``rename`` maps the path of each adapted layer to its name in the other library's model. For
    :func:`load_adapters`, a checksum of parameters and quantized weights identifies the base. PEFT reads the folder
    with ``PeftModel.from_pretrained(base, folder)``.

    Raises :class:`ArgumentError` for a model without adapters (:func:`backburn.nn.add_adapters`), for other parameters
    that require gradients, which would be lost, and for adapters that differ in ``use_dora`` or ``use_rslora``, which
    one configuration cannot describe. OSError if a file cannot be written.

        >>> import tempfile, backburn as bb
        >>> base, folder = bb.nn.Sequential(bb.nn.Linear(4, 2)), tempfile.mkdtemp()
        >>> save_adapters(bb.nn.add_adapters(base, rank=1), folder)
        >>> again = load_adapters(base, folder)
        >>> type(again[0]).__name__
        'LoRALinear'
    """
    found = adapters("save_adapters", model)
    own = {f"{path}.{part}" for path, _ in found for part in PARTS}
    others = [path for path, x in model.named_parameters() if x.is_require_grad and path not in own]
    if others:
        raise ArgumentError(
            f"save_adapters: {others[0]!r} requires a gradient too, and is in no adapter: its values would be lost. "
            f"model.freeze({others[0]!r}) if it is the base's; else save the model"
        )
    names = {path: path if rename is None else rename(path) for path, _ in found}
    if len(set(names.values())) < len(names):
        raise ArgumentError("save_adapters: rename returns the same name for two layers")
    tensors = []
    for path, layer in found:
        for part in PARTS:
            x = getattr(layer, part)
            if x is not None:
                suffix = "" if part == PARTS[2] else ".weight"
                tensors.append(Part(f"{PREFIX}{names[path]}.{part}{suffix}", (x,)))
    config = _config(model, found, names)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write(target / TENSORS, tensors, {"format": "pt", BASE: fingerprint(model)}, follow=False)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    write_atomically(target / CONFIG, text.encode(), follow=False)


def load_adapters(
    model: M,
    folder: str | os.PathLike[str],
    *,
    rename: Callable[[str], Renamed] | None = None,
    strict: bool = True,
) -> M:
    """A frozen copy of ``model``, the base, with adapters from a folder written by :func:`save_adapters` or PEFT.

    The adapters are trainable, like those of :func:`backburn.nn.add_adapters`; dropout is ignored. Layers are found by
    name. ``rename`` maps the name of each adapted weight, such as ``"layers.0.q_proj.weight"``, to its path in
    ``model``, as for :func:`load_weights`; the default is the model's :meth:`~backburn.nn.Module.rename_weight`.

    Raises :class:`ArgumentError` for names that are not linear layers of the model, a model that has adapters already,
    and a base with other values than the one that the adapters were trained on, if the folder has its checksum.
    ``strict=False`` skips this check, which reads the whole base, and accepts any base of the same shapes, such as the
    one before quantization. :class:`ShapeError` for adapters that do not fit their layers, :class:`FileFormatError` for
    damaged files and unsupported kinds of adapters.

        >>> import tempfile, backburn as bb
        >>> base, folder = bb.nn.Sequential(bb.nn.Linear(4, 2)), tempfile.mkdtemp()
        >>> save_adapters(bb.nn.add_adapters(base), folder)
        >>> load_adapters(bb.nn.Sequential(bb.nn.Linear(4, 2)), folder)   # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
            ...
        backburn.base.errors.ArgumentError: load_adapters: the adapters were trained on another base
    """
    given: object = model
    if not isinstance(given, Module):
        raise ArgumentError(f"load_adapters: takes a model, and not a {type(model).__name__}")
    flags("load_adapters", strict=strict)
    if any(isinstance(layer, LoRALinear) for _, layer in model.named_modules()):
        raise ArgumentError("load_adapters: the model has adapters already: give its base")
    target = Path(folder)
    config = _read_config(inside(target / CONFIG, target))
    source = target / TENSORS if (target / TENSORS).exists() or not (target / PICKLED).exists() else target / PICKLED
    with opened(inside(source, target)) as found:
        base = _base_of(found)
        if strict and base is not None and base != fingerprint(model):
            raise ArgumentError(
                f"load_adapters: {source}: the adapters were trained on another base: its parameters have other "
                f"names, shapes, dtypes or values. strict=False loads adapters that fit by name and shape"
            )
        layers = _layers(found.where, found.tensors)
        known = {path: x for path, x in model.named_modules() if isinstance(x, (Linear, QuantizedLinear))}
        made: dict[str, LoRALinear] = {}
        for name, parts in layers.items():
            path = _path(name, rename or model.rename_weight)
            if path is None:
                continue
            if path not in known:
                words = f"the model has no linear layer {quoted(path)}. {hint_for(path, known)}"
                raise ArgumentError(f"load_adapters: {found.where}: {words}")
            if path in made:
                raise ArgumentError(f"load_adapters: {found.where}: two adapters are renamed to {printable(path)}")
            made[path] = _adapter(found.where, config, name, known[path], parts)
            found.release()
    if not made:
        raise ArgumentError(f"load_adapters: {source}: no adapter is left")
    frozen = replaced(model, {})
    if frozen.parameters():
        frozen.freeze()
    return replaced(frozen, made)


def fingerprint(model: Module) -> str:
    """A checksum of names, dtypes, shapes and bytes of a model's parameters and quantized weights, without adapters."""
    digest = hashlib.sha256()
    bases = {f"{path}.base." if path else "base." for path, x in model.named_modules() if isinstance(x, LoRALinear)}
    trained = {id(x) for x in model.parameters()}
    entries = {}
    for leaf in state_places(model)[0]:
        path, x = leaf.path, leaf.value
        above, _, part = path.rpartition(".")
        if (id(x) not in trained and x.dtype.kind != "quantized") or (f"{above}.base." in bases and part in PARTS):
            continue
        base = next((b for b in bases if path.startswith(b)), None)
        entries[path if base is None else base.removesuffix("base.") + path.removeprefix(base)] = x
    for path in sorted(entries):
        x = entries[path]
        digest.update(f"\0{path}\0{x.dtype.name}\0{x.shape}\0".encode())
        for part in quantized_parts(x) if x.dtype.kind == "quantized" else (x,):
            if part is not None:
                array = np.ascontiguousarray(to_host(part) if is_tensor(part) else part)
                digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# ---- writing ----


def _config(model: Module, found: list[tuple[str, LoRALinear]], names: Mapping[str, str]) -> dict[str, Any]:
    """PEFT's configuration of these adapters."""
    kinds = {(layer.use_rslora, layer.lora_magnitude_vector is not None) for _, layer in found}
    if len(kinds) > 1:
        raise ArgumentError("save_adapters: all adapters need the same use_rslora and use_dora; these differ")
    ((use_rslora, use_dora),) = kinds
    ranks = {names[path]: layer.lora_A.shape[0] for path, layer in found}
    alphas = {names[path]: layer.alpha for path, layer in found}
    rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
    return {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "inference_mode": True, "bias": "none",
        "r": rank, "lora_alpha": _plain(alpha), "lora_dropout": 0.0, "fan_in_fan_out": False, "modules_to_save": None,
        "init_lora_weights": True, "use_rslora": use_rslora, "use_dora": use_dora,
        "target_modules": _targets(model, names),
        "rank_pattern": {re.escape(name): n for name, n in ranks.items() if n != rank},
        "alpha_pattern": {re.escape(name): _plain(n) for name, n in alphas.items() if n != alpha},
    }  # fmt: skip


def _plain(x: float) -> float:
    return int(x) if x == int(x) else x


def _targets(model: Module, names: Mapping[str, str]) -> list[str] | str:
    """The names of the adapted layers, or a regular expression if PEFT would match other layers that end in them."""
    others = [
        path for path, x in model.named_modules() if path not in names and isinstance(x, (Linear, QuantizedLinear))
    ]
    chosen = sorted(names.values())
    if any(path == name or path.endswith(f".{name}") for path in others for name in chosen):
        return "|".join(map(re.escape, chosen))
    return chosen


# ---- reading ----


def _read_config(path: Path) -> dict[str, Any]:
    """The checked configuration. Raises :class:`FileFormatError` for other kinds of adapters and damaged files."""
    config = parsed(read_regular(path, _LARGEST_CONFIG), f"{path}:")
    if not isinstance(config, dict):
        raise FileFormatError(f"{path}: not a JSON object")
    if config.get("peft_type") != "LORA":
        raise FileFormatError(f"{path}: adapters of the kind {config.get('peft_type')!r:.50}; LORA is read")
    check_keys(str(path), config)
    for name in ("use_rslora", "use_dora"):
        if not isinstance(config.setdefault(name, False), bool):
            raise FileFormatError(f"{path}: {name} is true or false, not {config[name]!r:.50}")
    for name in ("rank_pattern", "alpha_pattern"):
        config[name] = config.get(name) or {}
        if not isinstance(config[name], dict):
            raise FileFormatError(f"{path}: {name} is a table, not {config[name]!r:.50}")
        config[name] = NamePatterns(f"{path}: {name}", config[name])
    config["where"] = str(path)
    return config


def _number(config: Mapping[str, Any], pattern: str, name: str, layer: str) -> float:
    """The rank or alpha of a layer: that of the first pattern that matches the end of its name, else the common one."""
    value = config[pattern].value(layer, config.get(name))
    if not is_number(value):
        words = f"{name} of {printable(layer)} is a number, not {value!r:.50}"
        raise FileFormatError(f"{config['where']}: {words}")
    if name == "r" and (value < 1 or value != int(value)):
        words = f"r of {printable(layer)} is a whole number of at least 1, not {value!r:.50}"
        raise FileFormatError(f"{config['where']}: {words}")
    return float(value)


def _base_of(source: Source) -> str | None:
    """The checksum of the base in the metadata of a file, if any."""
    (file,) = source.files
    is_safe = looks_like(file.bytes(0, min(9, file.size), "the file"))
    return entries_of(file)[1].get(BASE) if is_safe else None


def _layers(where: str, tensors: Mapping[str, Stored]) -> dict[str, dict[str, Stored]]:
    """The parts of each adapter, by the name of its layer."""
    layers: dict[str, dict[str, Stored]] = {}
    for name, stored in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or match[1] is None:
            raise FileFormatError(
                f"{where}: {quoted(name)} is not part of an adapter of a linear layer, such as "
                f"{PREFIX}<path>.lora_A.weight"
            )
        if match[2] in layers.setdefault(match[1], {}):
            raise FileFormatError(f"{where}: {printable(match[1])} has {match[2]} twice")
        layers[match[1]][match[2]] = stored
    return layers


def _path(name: str, rename: Callable[[str], Renamed]) -> str | None:
    """The path of a layer in the model."""
    answer: Any = rename(f"{name}.weight")
    if isinstance(answer, tuple):  # the layout of the base's weight does not concern the adapter
        answer = answer[0]
    if answer is None:
        return None
    if not isinstance(answer, str) or not answer.endswith(".weight"):
        raise ArgumentError(
            f"load_adapters: rename({name + '.weight'!r}) returns the path of a weight, not {answer!r:.80}"
        )
    return answer.removesuffix(".weight")


def _adapter(
    where: str, config: Mapping[str, Any], name: str, base: Linear | QuantizedLinear, parts: Mapping[str, Stored]
) -> LoRALinear:
    """The adapter of a layer."""
    expected = PARTS[: 3 if config["use_dora"] else 2]
    if parts.keys() != {*expected}:
        wrong = sorted({*expected} ^ parts.keys())
        kind = "lacks" if wrong[0] in expected else "has an unexpected"
        raise FileFormatError(f"{where}: the adapter of {printable(name)} {kind} {wrong[0]}")
    rank = _number(config, "rank_pattern", "r", name)
    outputs, inputs = base.weight.shape
    shapes: dict[str, tuple[float, ...]]
    shapes = dict(zip(PARTS, ((rank, inputs), (outputs, rank), (outputs,)), strict=True))
    for part, stored in parts.items():
        if stored.kind != "float":
            raise FileFormatError(f"{where}: {part} of {name} is {stored.dtype}, not a float tensor")
        if stored.shape != shapes[part] and not (part == PARTS[2] and math.prod(stored.shape) == outputs):
            need = [int(n) for n in shapes[part]]
            raise ShapeError(f"load_adapters: {where}: {part} of {name} is {list(stored.shape)} there, and {need} fits")
        stored.check()
    made = LoRALinear(
        base, int(rank), _number(config, "alpha_pattern", "lora_alpha", name), use_rslora=config["use_rslora"]
    )
    for part, stored in parts.items():
        value = stored.read()
        host = to_host(value) if is_tensor(value) else np.asarray(value)
        x = asarray(host.reshape([int(n) for n in shapes[part]]), dtype=made.lora_A.dtype, backend=base.weight.backend)
        setattr(made, part, x.require_grad() if made.lora_A.is_require_grad else x)
    return made
