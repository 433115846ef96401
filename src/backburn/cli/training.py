"""``backburn train``, ``backburn evaluate`` and ``backburn predict``."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backburn.backend import AnyBackend, is_autodiff, load_backend
from backburn.backend.registry import unknown_name
from backburn.base.errors import (
    ArgumentError,
    BackburnError,
    ConfigError,
    FileFormatError,
    NumericalInstabilityError,
    RunFolderError,
    SpecError,
)
from backburn.base.foreign import printable
from backburn.base.regular import open_regular
from backburn.cli.saved_models import DEFAULT, ORDER, add_saved_model, chosen_backend, chosen_spec, require, saved_model
from backburn.decorators import Profile, Trace

#: Exit statuses of a run that a signal has ended: 128 and the signal's number.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def add_train(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn train``."""
    command = commands.add_parser(
        "train",
        parents=[common],
        help="train a model described by a TOML file",
        description="Train a model on data, both built by functions of yours that a TOML file names.",
    )
    command.add_argument("config", metavar="CONFIG", type=Path, help="the TOML file, such as examples/digits.toml")
    command.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="other values, such as train.epochs=3"
    )
    command.add_argument("--backend", metavar="SPEC", help=f"the backend to train on; {ORDER}, else {DEFAULT}")
    command.add_argument("--epochs", metavar="N", type=int, help="the number of passes over the data")
    command.add_argument("--seed", metavar="N", type=int, help="the seed of all random numbers")
    command.add_argument("--out", metavar="DIR", help="the folder of the run")
    command.add_argument(
        "--check",
        action="store_true",
        help="check the configuration, without importing your code (except a model that a plan splits)",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print what a step takes on one of the mesh's processes; train nothing"
    )
    earlier = command.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    earlier.add_argument("--overwrite", action="store_true", help="replace a run in the output folder")
    command.set_defaults(run=train)


def add_evaluate(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn evaluate``."""
    command = commands.add_parser(
        "evaluate",
        parents=[common],
        help="the loss and the metrics of a saved model",
        description="Print the loss and the metrics of a saved model on the data that are held out, else on those for "
        "validation.",
    )
    add_saved_model(command)
    command.add_argument("--backend", metavar="SPEC", help=f"the backend to compute on; {ORDER}")
    command.set_defaults(run=evaluate)


def add_predict(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``backburn predict``."""
    command = commands.add_parser(
        "predict",
        parents=[common],
        help="the outputs of a saved model for arrays",
        description="Write the outputs of a saved model, called with the rows of an array or of a dict of arrays, to a "
        "file.",
    )
    add_saved_model(command)
    command.add_argument(
        "inputs",
        metavar="INPUTS",
        type=Path,
        help="the array in a .npy or .npz file, or a dict of those in a .npz file",
    )
    command.add_argument("--dict", action="store_true", help="pass a dict even for a .npz file with one array")
    command.add_argument("--out", metavar="FILE", type=Path, default=Path("predictions.npz"), help="the file to write")
    command.add_argument("--batch-size", metavar="N", type=int, default=256, help="the number of rows in each call")
    command.add_argument("--backend", metavar="SPEC", help=f"the backend to compute on; {ORDER}")
    command.set_defaults(run=predict)


def train(options: argparse.Namespace) -> int:
    """Train, save, draw the curves, and print the results on data that are held out."""
    require("pydantic")
    from backburn.train import Progress, RunFolder, Terminated
    from backburn.train import config as configuration
    from backburn.train.building import build, check_plan, check_steps, mesh_of
    from backburn.train.run_folder import BEST, MODEL, TIMELINE

    run = configuration.read_config(options.config)
    run = run.overridden(options.overrides)
    for keys, value in ((("train", "epochs"), options.epochs), (("train", "seed"), options.seed)):
        run = run if value is None else run.changed(keys, value, f"the option for [{keys[0]}]")
    if options.out is not None:
        run = run.changed(("output", "folder"), options.out, "the option for [output]")
    check_steps(run)  # before any code of the user is imported, and data are read
    if options.check:
        unchecked = [f"the arguments of {name}, whose source does not list them" for name in run.check_without_import()]
        unchecked += check_backend(options.backend, run)
        unchecked += [words] if (words := check_plan(run)) else []
        print(f"{options.config}: the configuration is valid")
        for words in unchecked:
            print(f"not checked: {words}")
        return 0
    said = run.place_of("backend") if run.config.backend else ""
    run.functions()  # their modules may register the backend
    backend = training_backend(chosen_backend(options.backend, run.config.backend, said))
    if options.dry_run:
        print(dry_run_of(run, backend))
        return 0
    mesh = mesh_of(run)
    folder = Path(run.config.output.folder)
    if mesh is None:
        check_folder(folder, resume=options.resume, overwrite=options.overwrite)
    else:
        backend = mesh.backend(backend.spec)
        mesh.first(lambda: check_folder(folder, resume=options.resume, overwrite=options.overwrite))
    built = build(run, backend, [Progress(sys.stdout, sys.stderr)], str(folder), mesh)
    trainer = built.trainer
    if trainer.is_first:
        print_header(built, options.config, backend, folder)
    started = time.perf_counter()
    try:
        trainer.fit(run.config.train.epochs, resume=options.resume, overwrite=options.overwrite)
    except KeyboardInterrupt as interrupt:
        if trainer.is_first:
            print(how_to_resume(options, trainer, folder), file=sys.stderr)
        return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
    except NumericalInstabilityError as error:
        saved = RunFolder(folder).checkpoints
        kept = f"the last good state is {saved[-1]}" if saved else "nothing is kept"
        raise NumericalInstabilityError(f"{error}; {kept}") from error
    if trainer.is_first:
        print(f"time      {time.perf_counter() - started:.1f} s")
        print(f"model     {folder / MODEL}, after epoch {trainer.epoch}")
        monitor, value = trainer.checkpoints.monitor, trainer.checkpoints.best
        best = next((row for row in trainer.history if monitor and row.get(monitor) == value), None)
        if best is not None:
            print(f"best      {folder / BEST}, after epoch {best['epoch']:.0f}, by {monitor}")
        draw(trainer.history, folder)
        for profile in _profiles(backend):
            print(f"\n{profile.spec}, all epochs:\n{profile.table()}\n")
            if isinstance(profile, Trace):
                profile.save(folder / TIMELINE)
                print(f"timeline  {folder / TIMELINE}")
    results = {name: trainer.evaluate(data) for name, data in built.splits.items()}
    if not results:
        results["final"] = {k: x for k, x in trainer.history[-1].items() if k.endswith(("loss", "accuracy"))}
    if trainer.is_first:
        for name, values in results.items():
            print_results(name, values)
    return 0


def check_backend(option: str | None, run: Any) -> list[str]:
    """Check the names in the backend's expression, importing nothing; returns descriptions of what could not be.

    Raises :class:`SpecError` for a name that no package has, unless it occurs in the source of a module that the
    configuration names, which may register it.
    """
    from backburn.train.signatures import parts_of_name, source_of

    place = run.place_of("backend") if run.config.backend else ""
    source, spec = chosen_spec(option, run.config.backend, place)
    try:
        unknown = unknown_name(spec)
    except BackburnError as error:
        raise type(error)(f"{source}: {error}") from error
    if unknown is None:
        return []
    name, misspelt = unknown
    for function in run.names("model", "data", "loss", "metrics", "callbacks").values():
        path = source_of(parts_of_name(function)[0], run.source.folder)
        if path is None or path.suffix != ".py":
            continue
        if re.search(rf"[\"']{name}[\"']", path.read_text("utf-8", "replace")):
            return [f"the backend {name!r}, which {path.name} may register"]
    raise SpecError(f"{source}: {misspelt}")


def dry_run_of(run: Any, backend: AnyBackend) -> Any:
    """Memory, messages and time of a step of a configuration, on the first of as many processes as there are shards."""
    from backburn.distributed import Mesh, dry_run
    from backburn.train.building import build

    def program(mesh: Mesh) -> Any:
        trainer = build(run, mesh.backend(backend.spec), [], None, mesh).trainer
        batch = next(iter(trainer.data))
        return trainer.model, lambda: trainer.step(batch)

    config = run.config.distributed
    if config is None:
        raise ConfigError("--dry-run: follows one process of a mesh, but the file has no table [distributed]")
    return dry_run(program, measure=True, **config.mesh)


def plan_of(path: str | None) -> str:
    """The passes over memory (docs/passes.md) of a configuration's training step, recorded on its backend."""
    if path is None or not path.endswith(".toml"):
        raise ArgumentError("info: --plan describes the training step of a configuration: write info FILE.toml --plan")
    require("pydantic")
    from backburn.train.building import build
    from backburn.train.config import read_config

    run = read_config(path).changed(("train", "capture"), True, "the option --plan")
    said = run.place_of("backend") if run.config.backend else ""
    run.functions()
    backend = training_backend(chosen_backend(None, run.config.backend, said))
    if not backend.capabilities.capture:
        inner = getattr(backend, "inner_backend", backend)
        backend = load_backend(f"autodiff(capture({inner.spec}))")
    trainer = build(run, backend, [], None, None).trainer
    batch = next(iter(trainer.data))
    for _ in range(3):  # unrecorded, recorded, replayed
        trainer.step(batch)
    if not (plans := trainer.plans):
        raise ConfigError(f"{path}: on {backend.spec} the training step has no plan: {trainer.not_replayed}")
    return "\n".join(map(str, plans))


def evaluate(options: argparse.Namespace) -> int:
    """Load a model, and print its results on data that are held out."""
    require("pydantic")
    from functools import partial

    from backburn.train import evaluate as measure

    model, run = saved_model(options, "data", "loss", "metrics")
    functions = run.functions("data", "loss", "metrics")
    function, arguments = functions["data",]
    made = function(**arguments)
    loss, given = functions["loss",]
    metrics = {name: functions["metrics", name][0] for name in run.config.metrics}
    from backburn.train.building import splits_of

    splits = splits_of(made, run)
    held_out = {name: data for name, data in splits.items() if name not in ("train", "validation")}
    if not held_out and "validation" not in splits:
        raise ConfigError(
            f"{run.config.data.build} returns no data to evaluate on: return a dict with 'validation', or another name "
            f"beside 'train'"
        )
    for name, data in (held_out or {"validation": splits["validation"]}).items():
        print_results(name, measure(model, partial(loss, **given), data, metrics=metrics))
    return 0


def predict(options: argparse.Namespace) -> int:
    """Load a model, call it with an array, and write what it returns."""
    require("pydantic")
    from backburn.data import batches
    from backburn.io import save_npz
    from backburn.train import predict as outputs_of

    open_regular(options.inputs).close()  # a pipe would be waited for, after the model has been read
    model, _ = saved_model(options)
    if options.batch_size < 1:
        raise ArgumentError(f"predict: --batch-size is at least 1, not {options.batch_size}")
    rows = inputs_of(options.inputs, as_dict=options.dict)
    parts = batches(rows, batch_size=options.batch_size)
    try:
        found = outputs_of(model, parts if isinstance(rows, dict) else (batch for (batch,) in parts))
    except Exception as error:
        if not isinstance(rows, dict) and options.inputs.suffix.lower() == ".npz":
            words = printable(options.inputs)
            error.add_note(f"The model was given the only array of {words}; with --dict, a dict of it.")
        raise
    save_npz(options.out, {"predictions": found})
    print(f"{options.out}: predictions, {found.dtype} of shape {found.shape}")
    return 0


def inputs_of(path: Path, *, as_dict: bool = False) -> Any:
    """The array of a ``.npy`` file or of a ``.npz`` file with one, else a dict of those in a ``.npz`` file.

    ``as_dict`` makes a dict of every ``.npz`` file. Raises :class:`FileFormatError` for other files.
    """
    from backburn.io import load_npz
    from backburn.io.npz import load_array

    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz") and path.is_file():
        made = "np.savez('inputs.npz', x=..., ...), of the arrays that the model takes"
        if suffix in (".csv", ".tsv", ".gz", ".parquet"):
            made = f"{made}, made of table = bb.data.read_table({path.name!r}) as for the training"
        raise FileFormatError(f"predict: {printable(path)} is neither .npy nor .npz, by its name: write {made}")
    if as_dict and suffix == ".npy":
        raise FileFormatError(f"predict: {printable(path)} has no names; --dict takes a file of np.savez(path, x=...)")
    if suffix == ".npz" and (len(arrays := load_npz(path)) > 1 or as_dict):
        return arrays
    return load_array(path)


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise before anything is built for a folder in which the run cannot be kept."""
    from backburn.train import RunFolder

    run = RunFolder(folder)
    try:
        run.check()
        if resume and not run.has_run:
            raise ConfigError(f"there is nothing to resume in {printable(folder)}")
        if run.has_run and not (resume or overwrite):
            raise ConfigError(
                f"the output folder {printable(folder)} already has a run: continue it with --resume, or replace it "
                f"with --overwrite. {ANOTHER}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except ConfigError:
        raise
    except RunFolderError as error:
        raise ConfigError(f"the output folder {str(error).removeprefix('the run folder ')}. {ANOTHER}") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"the output folder {printable(folder)} cannot be written to: {why}. {ANOTHER}") from error


ANOTHER = "Choose another with --out or the key 'folder' of [output]"


def draw(history: Any, folder: Path) -> None:
    """Draw the learning curves, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        print(
            "note: without matplotlib there is no picture of the curves: pip install 'backburn[train]'", file=sys.stderr
        )
        return
    from backburn.train.outputs import draw_curves
    from backburn.train.run_folder import CURVES

    try:
        draw_curves(history, folder / CURVES)
    except OSError:  # of the run's folder
        raise
    except Exception as error:  # whatever matplotlib raises, as for a damaged file of settings: the run is done
        words = f"{type(error).__name__}: {error}"
        print(f"note: matplotlib fails, and there is no picture of the curves: {printable(words)}", file=sys.stderr)
        return
    print(f"curves    {folder / CURVES}")


def training_backend(backend: AnyBackend) -> AnyBackend:
    """``backend`` if it differentiates, else ``autodiff`` around it, with a note that says so."""
    if is_autodiff(backend):
        return backend
    wrapped = load_backend(f"autodiff({backend.spec})")
    print(f"note: training needs gradients, which {backend.spec} does not have: using {wrapped.spec}", file=sys.stderr)
    return wrapped


def _profiles(backend: Any) -> Iterator[Profile]:
    """The profiles among a backend and those that it wraps."""
    while backend is not None:
        if isinstance(backend, Profile):
            yield backend
        backend = getattr(backend, "wrapped", None) or getattr(backend, "inner_backend", None)


def print_header(built: Any, path: Path, backend: AnyBackend, folder: Path) -> None:
    """Print a summary of the run."""
    trainer = built.trainer
    data = {"train": trainer.data, "validation": trainer.validation, **built.splits}
    sizes = [f"{name} {_batches(part)}" for name, part in data.items() if part is not None]
    parameters = getattr(trainer.model, "num_parameters", None)
    print(f"config    {path}")
    print(f"data      {', '.join(sizes)}")
    print(
        f"model     {type(trainer.model).__name__}" + (f", {parameters} parameters" if parameters is not None else "")
    )
    print(f"backend   {backend.spec}")
    print(f"output    {folder}", flush=True)


def _batches(data: Any) -> str:
    count = len(data) if hasattr(data, "__len__") else None
    return "of unknown length" if count is None else f"{count} batch{'' if count == 1 else 'es'}"


def print_results(split: str, values: dict[str, float]) -> None:
    """Print the last lines of a command, from which programs read its results."""
    for name, value in values.items():
        print(f"{split} {name}: {100 * value:.2f}%" if name.endswith("accuracy") else f"{split} {name}: {value:.6g}")


def how_to_resume(options: argparse.Namespace, trainer: Any, folder: Path) -> str:
    """A message about the saved part of an interrupted run, and how to resume it."""
    words = ["backburn", "train", str(options.config), *options.overrides, "--resume"]
    for name in ("backend", "epochs", "seed", "out"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value is not None else []
    if options.overwrite and not trainer.steps:
        words[words.index("--resume")] = "--overwrite"
        return f"interrupted before the first step: {folder} is as it was; begin again with\n    {shlex.join(words)}"
    where = f"in epoch {trainer.epoch + 1} of {trainer.last_epoch}, after step {trainer.steps}"
    return f"interrupted {where}: the run is in {folder}; continue with\n    {shlex.join(words)}"
