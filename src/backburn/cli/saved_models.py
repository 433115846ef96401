"""The model of an untrusted file or run folder: what it names is not imported.

A model file says how its model is built: by which functions and with which arguments. These are used if they are
installed with backburn itself, or if the user names them with ``--trust``, or a configuration with ``--config``, which
then replaces the file's. The folder of the configuration with which a model was trained is not searched.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backburn.backend import AnyBackend, load_backend
from backburn.backend.registry import BACKENDS, BUILT_IN, DECORATORS
from backburn.backend.spec import parse
from backburn.base.errors import BackburnError, ConfigError, FileFormatError
from backburn.base.foreign import printable, quoted
from backburn.tensor.creation import full

DEFAULT = "autodiff(numpy)"
ORDER = "else BACKBURN_BACKEND, else that of the file"
#: The most values in the tables of a model file: what is built from them grows with them.
MOST_VALUES = 10_000


def add_saved_model(command: argparse.ArgumentParser) -> None:
    """Add the arguments that name a saved model, and what it may use."""
    words = "a model file that 'backburn train' wrote, or the folder of a run, for its model after the last epoch"
    command.add_argument("model", metavar="MODEL", type=Path, help=words)
    trusted = command.add_mutually_exclusive_group()
    trusted.add_argument(
        "--config", metavar="TOML", type=Path, help="build the model from this file, with its functions"
    )
    trusted.add_argument(
        "--trust",
        metavar="NAMES",
        action="append",
        default=[],
        help="functions that the model file may use, such as shapes:network,shapes:loss; they are searched for on the "
        "path, then in the current folder",
    )


def saved_model(options: argparse.Namespace, *further: str) -> tuple[Any, Any]:
    """The model of a file or of a run's folder on the chosen backend, and its configuration.

    ``further`` are the tables beside ``model`` whose functions the command calls. Raises :class:`ConfigError` for
    functions and backends that the file names and the user has not, before anything of theirs is imported.
    """
    from backburn.io import load_model
    from backburn.nn import quantize_like
    from backburn.train.building import model_of
    from backburn.train.config import read_config, run_of

    path = options.model / "model.safetensors" if options.model.is_dir() else options.model
    if path != options.model and path.is_symlink():
        raise FileFormatError(f"{path}: this is a link, which is not followed in this folder: name its target")
    saved = load_model(path)
    tables = saved.about.get("config")
    if not isinstance(tables, dict):
        raise FileFormatError(f"{path}: this is not a model that 'backburn train' makes: it has no configuration")
    if options.config is not None:
        run = read_config(options.config)
        backend = chosen_backend(options.backend, run.config.backend, str(options.config))
    else:
        if _count(tables) > MOST_VALUES:
            raise FileFormatError(f"{path}: its configuration has more than {MOST_VALUES:,} values")
        run = run_of(tables, Path(), str(path))
        check_names(run, options.trust, "model", *further)
        backend = chosen_backend(options.backend, _own_backend(saved.about, options, path), str(path))
    try:
        if options.config is None:
            _check_shapes(run, saved.state)
        model = quantize_like(model_of(run, backend), saved.state)
        model.load_state_dict(saved.state)
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise FileFormatError(f"{path}: this is not a model that 'backburn train' makes: {error}") from error
    return model, run


def check_names(run: Any, trusted: list[str], *tables: str) -> None:
    """Raise :class:`ConfigError` for functions of these tables that are neither backburn's nor trusted by the user."""
    from backburn.train.config import INSTALLED

    allowed = dict.fromkeys(name.strip() for words in trusted for name in words.split(","))  # in the order given
    wanted = {key: name for key, name in run.names(*tables).items() if name not in INSTALLED and name not in allowed}
    if wanted:
        listed = ", ".join(f"{printable(key)} = {quoted(name)}" for key, name in wanted.items())
        names = ",".join(dict.fromkeys([*(n for n in allowed if n), *wanted.values()]))
        raise ConfigError(
            f"{printable(run.source.name)}: the model file wants functions that are not backburn's: {listed}. A file "
            f"may be anybody's, and nothing that it names is imported. Name its configuration, --config run.toml, or, "
            f"if you know these functions, allow just these: --trust {quoted(names, 2000)}"
        )


def _own_backend(about: Mapping[str, Any], options: argparse.Namespace, path: Path) -> str | None:
    """The backend that a file names, if it is one of backburn's own; others would import packages."""
    spec = about.get("backend")
    if not isinstance(spec, str) or options.backend or os.environ.get("BACKBURN_BACKEND"):
        return None
    others = [name for name in parse(spec).names() if name not in BUILT_IN[BACKENDS] | BUILT_IN[DECORATORS]]
    if others:
        raise ConfigError(
            f"{printable(path)}: the model file names the backend {quoted(spec)}, and {quoted(others[0])} is not "
            f"backburn's: name a backend with --backend"
        )
    return spec


def _check_shapes(run: Any, state: Mapping[str, Any]) -> None:
    """Compare the shapes of a state with those of a model built without memory: a file may ask for terabytes.

    Functions of the user, which may need values, are not called.
    """
    from backburn.backend.registry import shapes_only
    from backburn.train.building import model_of
    from backburn.train.config import INSTALLED

    if run.config.model.build not in INSTALLED:
        return
    for name, x in model_of(run, shapes_only()).state_dict().items():
        found = getattr(state.get(name), "shape", None)
        if found is None or tuple(found) != tuple(x.shape):
            has = "nothing" if found is None else f"the shape {list(found)}"
            raise ValueError(f"{name} of its configuration has the shape {list(x.shape)}, and {has} in the file")


def _count(tree: Any) -> int:
    """The number of tables, lists and values in a tree, which is not deep."""
    count, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return count


def require(*packages: str) -> None:
    """Raise if a package is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; configuration files need it: pip install 'backburn[train]'")


def chosen_backend(option: str | None, configured: str | None, place: str = "the file") -> AnyBackend:
    """The backend of the option, else of ``BACKBURN_BACKEND``, else of the file, else the default.

    Raises for an invalid expression, naming where it comes from (for the file, ``place``), and for a backend that only
    computes shapes, which can neither train nor evaluate.
    """
    source, spec = chosen_spec(option, configured, place)
    try:
        backend = load_backend(spec)
        if full(1, 1.0, backend=backend).item() != 1.0:
            raise ConfigError(f"{backend.spec} computes no values, which training and measuring need")
        return backend
    except BackburnError as error:
        raise type(error)(f"{source}: {error}") from error


def chosen_spec(option: str | None, configured: str | None, place: str) -> tuple[str, str]:
    """Where the expression of :func:`chosen_backend` comes from, and the expression."""
    sources = {
        "--backend": option,
        "BACKBURN_BACKEND": os.environ.get("BACKBURN_BACKEND") or None,
        place: configured,
        "the default": DEFAULT,
    }
    return next((source, spec) for source, spec in sources.items() if spec is not None)
