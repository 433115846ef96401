"""Loading weights into a model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from typing import cast as cast_to

import numpy as np
from numpy.typing import NDArray

from backburn.backend.contract import AnyBackend, is_autodiff
from backburn.base.dtypes import DType, FloatDType, QuantizedDType, as_dtype
from backburn.base.errors import ArgumentError, DTypeError, ShapeError, hint_for
from backburn.base.foreign import listed, printable, quoted
from backburn.base.mutable_trees import Leaf, MutableTree
from backburn.base.trees import joined
from backburn.io.weights.report import WeightsReport
from backburn.io.weights.sources import opened
from backburn.io.weights.stored import Source, Stored
from backburn.nn.conv import Convolution
from backburn.nn.linear import Linear
from backburn.nn.module import Module, Pack, constant_on, is_optional, state_places
from backburn.nn.quantized import unfilled
from backburn.tensor.core.defaults import as_backend
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.host import asarray, to_host
from backburn.tensor.core.levels import innermost
from backburn.tensor.core.wrapping import is_tensor

#: How many characters and dots of a name a hint considers.
_LONGEST_PATH, _MOST_DOTS = 1000, 30
#: A path in the model; with ``"T"``, axes or rows if their order in the source differs; None leaves a tensor out.
Renamed: TypeAlias = str | tuple[str, str | tuple[int, ...] | NDArray[Any]] | None


@dataclass(frozen=True)
class _Named:
    """A tensor of the source under the model's name."""

    name: str
    stored: Stored
    is_turned: bool


def load_weights(
    model: Module,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    rename: Callable[[str], Renamed] | None = None,
    dtype: FloatDType | str | None = None,
    strict: bool = True,
    quantized: bool = False,
    backend: AnyBackend | str | None = None,
) -> WeightsReport:
    """Load weights into a model from a file of any library, or from arrays by name; returns which names were used.

    ``source`` is a file of safetensors, PyTorch (``.pt``, of either format), NumPy (``.npz``) or llama.cpp (GGUF),
    detected by content; a folder in Hugging Face's layout, with or without an index of shards; or a mapping of names to
    arrays of any library, such as ``theirs.state_dict()``. Nothing in a file is executed.

    Names decide, never shapes. ``rename`` is given each name of the source and returns the model's path; a path and
    ``"T"`` for a matrix that is transposed in the source, a path and axes for another order, or a path and an array of
    the source's row indices in the model's order; or None, which skips the tensor without an error. Without it, the
    model's own :meth:`~backburn.nn.Module.rename_weight` is used. Tensors that a layer declares as packed are split, as
    in :meth:`~backburn.nn.Module.load_state_dict`. One name suffices for tied parameters, which stay tied.

    Floats of any width, including bfloat16 and 8-bit floats, are cast to the model's dtypes, or to ``dtype``, which
    then applies to all floats of the model; integers can only become wider. Tensors are read one at a time from mapped
    files: loading needs memory for the model and one tensor.

    With ``quantized``, linear and convolutional layers whose weights have a scheme in the source become quantized
    layers, bit for bit: from files of :func:`save_weights`, blocks ``Q8_0`` and ``Q4_0`` of GGUF, and weights of GPTQ
    and AWQ, which are named ``weight`` as in a float model. Otherwise other libraries' quantized weights become floats.
    Layers that are already quantized take weights of the same scheme.

    All tensors are then on ``backend``. To load a large model without memory for its initial values, build it where
    tensors have no values, ``with bb.use_backend("autodiff(null)"):``, and name the backend here.

    Raises :class:`ArgumentError` for unused and missing names (not with ``strict=False``), names that collide, and a
    tensor that the source lacks and that has no values, :class:`ConfigError` for a GGUF file whose metadata contradict
    a :class:`~backburn.models.Llama` (with ``strict=False`` a ``MetadataWarning``), :class:`ShapeError` and
    :class:`DTypeError` for tensors that do not fit, and :class:`FileFormatError` for damaged and hostile files. On
    errors the model is unchanged: a source is checked completely before a tensor is replaced.

        >>> import tempfile, backburn as bb
        >>> model = bb.nn.Linear(2, 1)
        >>> path = tempfile.mkdtemp() + "/fc.npz"
        >>> bb.io.save_npz(path, {"fc.weight": bb.ones((1, 2), dtype="float16"), "fc.bias": bb.zeros(1)})
        >>> print(load_weights(model, path, rename=lambda name: name.removeprefix("fc.")))
        model   source     dtype
        weight  fc.weight  float16 -> float32
        bias    fc.bias
        2 used, 0 unused, 0 missing, 1 cast, 2 renamed
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"load_weights: loads into a model, and not into a {type(model).__name__}")
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None and not wanted.is_floating:
        raise DTypeError(f"load_weights: dtype is a float dtype, not {wanted}")
    there = None if backend is None else as_backend(backend)
    with opened(source) as found, ExitStack() as undone:
        if found.metadata:
            model._check_metadata(found.where, found.metadata, strict)
        leaves, packs = state_places(model)
        own = {path: leaf.value for leaf in leaves for path in leaf.paths}
        wanted_paths = own.keys() | {packed for packed, _ in packs}
        named, left_out = _renamed(found.where, found.tensors, rename or model.rename_weight, wanted_paths)
        named = _unpacked(found.where, named, packs, own)
        schemes = _quantize_layers(model, named, leaves, undone) if quantized else {}
        if schemes:
            leaves = state_places(model)[0]
            own = {path: leaf.value for leaf in leaves for path in leaf.paths}
        targets = {leaf.path: schemes.get(leaf.path) or _target(leaf, wanted) for leaf in leaves}
        unused = list(dict.fromkeys(x.name for path, x in named.items() if path not in own))
        missing = [leaf for leaf in leaves if not any(path in named for path in leaf.paths)]
        required = [leaf.path for leaf in missing if not is_optional(leaf)]
        if strict and (required or unused):
            raise _wrong_names(found.where, required, unused, own)
        report = _report(leaves, named, (*unused, *left_out), required, targets)
        _check(found, leaves, named, targets, there)
        undone.pop_all()
        own.clear()  # it would keep replaced tensors alive
        for leaf in leaves:
            name = next((path for path in leaf.paths if path in named), None)
            _put(leaf, None if name is None else named[name].stored, targets[leaf.path], there)
            found.release()
    return report


def _quantize_layers(
    model: Module, named: Mapping[str, _Named], leaves: Iterable[Leaf], undone: ExitStack
) -> dict[str, DType]:
    """Replace layers whose weights are quantized in the source; ``undone`` restores them. Returns schemes by path.

    A tied weight, such as that of an embedding, stays as it is, unless the source has both layers' weights: then this
    one is untied.
    """
    found: dict[int, Module] = {}
    schemes: dict[str, DType] = {}
    modules = {id(module): (path, module) for path, module in model.named_modules()}
    for leaf in leaves:
        holders = dict.fromkeys(id(node.value) for node, _ in leaf.parents)
        for holder in dict.fromkeys(id(node.value) for node, key in leaf.parents if key == "weight"):
            path, layer = modules.get(holder, ("", None))
            own = joined(path, "weight")
            names = leaf.paths if len(holders) == 1 else (own,) if {*leaf.paths} & named.keys() > {own} else ()
            stored = next((named[name].stored for name in names if name in named), None)
            if not isinstance(layer, (Linear, Convolution)) or stored is None or stored.parts is None:
                continue
            if isinstance(layer, Convolution) and len(stored.shape) != 2:
                continue
            inputs = named.get(joined(path, "inputs"))
            activations = None
            if inputs is not None and inputs.stored.scheme:
                activations = cast_to(QuantizedDType, as_dtype(inputs.stored.scheme))
            found[holder] = unfilled(layer, activations, joined(path, "low") in named)
            schemes[leaf.path if len(holders) == 1 else own] = as_dtype(stored.scheme)
    for node in MutableTree(model, is_tensor).nodes:
        if id(node.value) not in found:
            continue
        if node.parent is None:
            raise ArgumentError("load_weights: the model is a layer itself; put it into Sequential(...) to quantize it")
        node.parent.put(node.key, found[id(node.value)])
        undone.callback(node.parent.put, node.key, node.value)
    return schemes


def _renamed(
    where: str, tensors: Mapping[str, Stored], rename: Callable[[str], Renamed], wanted: Set[str]
) -> tuple[dict[str, _Named], list[str]]:
    """The tensors by the model's paths, reordered at ``wanted`` paths, and the names that are left out."""
    named: dict[str, _Named] = {}
    unused: list[str] = []
    for name, stored in tensors.items():
        path, order = _answer(name, rename(name))
        if path is None:
            unused.append(name)
        elif path in named:
            both = f"{printable(named[path].name)} and {printable(name)}"
            raise ArgumentError(f"load_weights: {where}: {both} are both renamed to {printable(path)}")
        else:
            turned = stored if order is None or path not in wanted else _turned(where, name, stored, order)
            named[path] = _Named(name, turned, order is not None)
    return named, unused


def _answer(name: str, answer: Any) -> tuple[str | None, Any]:
    """The path and the order of axes that ``rename`` returned."""
    if answer is None or isinstance(answer, str):
        return answer, None
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str):
        path, order = answer
        is_rows = isinstance(order, np.ndarray) and order.ndim == 1 and order.dtype.kind in "iu"
        is_axes = isinstance(order, tuple) and all(type(axis) is int for axis in order)
        if is_rows or is_axes or (isinstance(order, str) and order == "T"):
            return path, order
    raise ArgumentError(
        f"load_weights: rename({quoted(name)}) returns a path, a path with 'T', a tuple of axes or an array of rows, "
        f"or None, not {answer!r:.100}"
    )


def _turned(where: str, name: str, stored: Stored, order: str | tuple[int, ...] | NDArray[Any]) -> Stored:
    is_rows = isinstance(order, np.ndarray)
    numbers = (1, 0) if isinstance(order, str) else tuple(order)
    count = stored.shape[0] if stored.shape and is_rows else len(stored.shape)
    if len(numbers) != count or sorted(numbers) != [*range(count)] or stored.kind == "quantized":
        about = f"load_weights: {where}: {printable(name)}, {stored.dtype}{list(stored.shape)}, has"
        if is_rows:
            raise ShapeError(f"{about} other rows than the {len(numbers)} that rename returns")
        raise ShapeError(f"{about} no order of axes {order!r}")
    return stored.taken(order) if isinstance(order, np.ndarray) else stored.turned(numbers)


def _unpacked(where: str, named: dict[str, _Named], packs: Iterable[Pack], own: Mapping[str, Any]) -> dict[str, _Named]:
    """The tensors, with packed ones split into the model's parts, unless the source has one of the parts too."""
    named = dict(named)
    for packed, parts in packs:
        if packed not in named or any(part in named or part not in own for part in parts):
            continue
        whole, shapes = named[packed], [own[part].shape for part in parts]
        together = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        if whole.stored.shape != together:
            raise ShapeError(
                f"load_weights: {where}: {printable(whole.name)} has shape {list(whole.stored.shape)} there and is "
                f"made of {', '.join(parts)} here, together {list(together)}. Nothing was loaded"
            )
        del named[packed]
        start = 0
        for part, shape in zip(parts, shapes, strict=True):
            named[part] = replace(whole, stored=whole.stored.rows(start, start + shape[0]))
            start += shape[0]
    return named


def _report(
    leaves: Iterable[Leaf],
    named: Mapping[str, _Named],
    unused: tuple[str, ...],
    missing: list[str],
    targets: Mapping[str, DType],
) -> WeightsReport:
    used, casts, renamed = {}, {}, {}
    for leaf in leaves:
        for path in leaf.paths:
            if path in named:
                found = named[path]
                used[path] = found.name
                target = targets[leaf.path]
                if found.stored.dtype != target.name:
                    casts[path] = (found.stored.dtype, target.name)
                if found.name != path or found.is_turned:
                    renamed[path] = found.name
    return WeightsReport(used, unused, tuple(missing), casts, renamed)


def _target(leaf: Leaf, wanted: DType | None) -> DType:
    """The dtype that a tensor of the model gets."""
    own: DType = leaf.value.dtype
    return wanted if wanted is not None and own.is_floating else own


def _wrong_names(where: str, missing: list[str], unused: list[str], own: Mapping[str, Any]) -> ArgumentError:
    words = [f"{kind}: {listed(names)}." for kind, names in (("missing", missing), ("unused", unused)) if names]
    return ArgumentError(
        f"load_weights: {where}: {' '.join(words)} {_advice(missing, unused, own)}. Nothing was "
        "loaded; strict=False leaves such names alone"
    )


def _advice(missing: list[str], unused: list[str], own: Mapping[str, Any]) -> str:
    """The renaming to suggest: a prefix to remove or add, or a similar name."""
    ends = {end: path for path in reversed(missing) for end in _ends(path)}
    absent = set(missing)
    for theirs in unused:
        path = next((end for end in _ends(theirs) if end in absent), None)
        if path is not None:
            prefix = theirs.removesuffix(path)
            alone = all(name.startswith(prefix) for name in unused)
            return f"Write rename=lambda name: name.removeprefix({prefix!r})" + (
                "" if alone else f" if name.startswith({prefix!r}) else None"
            )
        if theirs in ends:
            return f"Write rename=lambda name: {ends[theirs].removesuffix(theirs)!r} + name"
    if unused and missing:
        return f"rename= gives them other names. {hint_for(unused[0], own)}".rstrip(".")
    return "rename= leaves out names for which it returns None" if unused else "The weights are of another model"


def _ends(name: str) -> Iterator[str]:
    """The endings of a name after its dots; of very many, the longest ones."""
    for place in itertools.islice((i for i, sign in enumerate(name[:_LONGEST_PATH]) if sign == "."), _MOST_DOTS):
        yield name[place + 1 :]


def _check(
    source: Source,
    leaves: Iterable[Leaf],
    named: Mapping[str, _Named],
    targets: Mapping[str, DType],
    backend: AnyBackend | None,
) -> None:
    """Check everything that can be wrong with the tensors, so that a model is loaded as a whole or not at all."""
    where = source.where
    problems: dict[type[Exception], list[str]] = {ShapeError: [], DTypeError: []}
    chosen: list[tuple[Leaf, list[str]]] = []
    for leaf in leaves:
        paths = [path for path in leaf.paths if path in named]
        chosen.append((leaf, paths))
        for path in paths:
            stored, target = named[path].stored, targets[leaf.path]
            theirs = printable(named[path].name)
            about = f"{theirs} for {path}" if named[path].name != path else path
            if stored.where not in ("", where):
                about = f"{about} (in {stored.where})"
            if stored.kind and stored.shape != leaf.value.shape:
                problems[ShapeError].append(
                    f"{about} has shape {list(stored.shape)} there and {list(leaf.value.shape)} here"
                )
            elif not _fits(stored, target):
                way_out = _way_out(stored, target)
                problems[DTypeError].append(f"{about} is {stored.dtype} there and {target} here{way_out}")
    for kind, lines in problems.items():
        if lines:
            more = f", and {len(lines) - 20} more" if len(lines) > 20 else ""
            raise kind(f"load_weights: {where}: {'; '.join(lines[:20])}{more}. Nothing was loaded")
    checks = []
    for leaf, paths in chosen:
        is_quantized = targets[leaf.path].kind == "quantized"
        for stored in (named[path].stored for path in paths):
            checks += [stored.check, stored.check_parts] if is_quantized else [stored.check]
        if not paths and backend is not None:
            _check_values(leaf, backend)
    for check in dict.fromkeys(checks):
        check()
        source.release()
    for leaf, paths in chosen:
        for path in paths[1:]:
            tensors = [_made(named[p].stored, leaf.value.backend, targets[leaf.path]) for p in (paths[0], path)]
            first, other = (to_host(x) for x in tensors)
            if not np.array_equal(first, other, equal_nan=True):
                raise ArgumentError(
                    f"load_weights: {where}: {paths[0]} and {path} are one parameter here and two there: leave one "
                    "out by rename, or untie them. Nothing was loaded"
                )


def _fits(stored: Stored, target: DType) -> bool:
    """Whether a tensor can be cast without surprise: floats to floats, complex to complex, integers to wider ones.

    Other dtypes must be equal.
    """
    if target.kind == "quantized":
        return stored.parts is not None and stored.scheme == target.name
    if stored.dtype == target.name:
        return True
    if stored.kind == "int" and target.kind == "int":
        return np.can_cast(as_dtype(stored.dtype).dtype, target.dtype, "safe")
    return stored.kind == target.kind and target.has_gradient


def _way_out(stored: Stored, target: DType) -> str:
    if not stored.kind:
        return ", and this dtype is not read"
    if target.kind == "quantized":
        return ": load the float weights, then quantize"
    if stored.kind == "quantized":
        return ": quantized=True quantizes linear and convolutional layers as the source does"
    return ""


def _made(stored: Stored, backend: Any, target: DType) -> Any:
    """The tensor on a backend, in a dtype, without history."""
    if target.kind == "quantized":
        return stored.quantized(backend)
    value = stored.read()
    if is_tensor(value):
        return cast(constant_on(value, backend), target)
    return asarray(value, dtype=target, backend=backend)


def _check_values(leaf: Leaf, backend: AnyBackend) -> None:
    """Raise :class:`ArgumentError` for a tensor that the source lacks, on a backend whose tensors have no values."""
    old = leaf.value.backend
    if not is_optional(leaf) and old != backend and asarray(1, backend=innermost(old)).item() != 1:
        raise ArgumentError(
            f"load_weights: {leaf.path} is not in the source, and has no values on {old.spec} that could be moved to "
            f"{backend.spec}. Nothing was loaded"
        )


def _put(leaf: Leaf, stored: Stored | None, target: DType, backend: AnyBackend | None) -> None:
    old = leaf.value
    if stored is not None:
        new = _made(stored, old.backend if backend is None else backend, target)
    elif backend is not None or target is not old.dtype:
        new = cast(constant_on(old, old.backend if backend is None else backend), target)
    else:
        return
    differentiates = old.is_require_grad and is_autodiff(new.backend)
    leaf.put(new.require_grad() if differentiates and new.dtype.has_gradient else new)
