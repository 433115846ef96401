"""``backburn train`` and ``backburn evaluate``."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backburn.backend import AnyBackend, is_autodiff, load_backend
from backburn.base.errors import BackburnError, ConfigError, NumericalInstabilityError
from backburn.decorators import Profile, Trace
from backburn.tensor.creation import full

DEFAULT = "autodiff(numpy)"
#: The file of a traced run's timeline, in its folder.
TIMELINE = "timeline.json"
#: Exit statuses of a run that a signal has ended: 128 and the signal's number.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
ORDER = "else BACKBURN_BACKEND, else that of the file"


def add_train(commands: Any, common: argparse.ArgumentParser) -> None:
    """Enter ``backburn train``."""
    command = commands.add_parser(
        "train",
        parents=[common],
        help="train a network on the handwritten digits",
        description="Train a network on the handwritten digits, as configured in a TOML file.",
    )
    command.add_argument("config", metavar="CONFIG", type=Path, help="the TOML file, such as examples/digits.toml")
    command.add_argument("--backend", metavar="SPEC", help=f"the backend to train on; {ORDER}, else {DEFAULT}")
    command.add_argument("--epochs", metavar="N", type=int, help="the number of passes over the images")
    command.add_argument("--seed", metavar="N", type=int, help="the seed of all random numbers")
    command.add_argument("--out", metavar="DIR", help="the folder of the model and the learning curves")
    earlier = command.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    earlier.add_argument("--overwrite", action="store_true", help="replace a run in the output folder")
    command.set_defaults(run=train)


def add_evaluate(commands: Any, common: argparse.ArgumentParser) -> None:
    """Enter ``backburn evaluate``."""
    command = commands.add_parser(
        "evaluate",
        parents=[common],
        help="the held-out accuracy of a saved model",
        description="Print the accuracy of a saved model on the held-out digits.",
    )
    command.add_argument("model", metavar="MODEL", type=Path, help="a model file that 'backburn train' wrote")
    command.add_argument("--backend", metavar="SPEC", help=f"the backend to compute on; {ORDER}")
    command.set_defaults(run=evaluate)


def train(options: argparse.Namespace) -> int:
    """Train, save, draw the curves, and print the held-out accuracy."""
    require("pydantic", "tqdm", "matplotlib", "safetensors")
    from backburn.train import config as configuration
    from backburn.train import outputs
    from backburn.train.digits_trainer import Trainer

    config = configuration.read_config(options.config)
    config = configuration.changed(config, "train", epochs=options.epochs, seed=options.seed)
    config = configuration.changed(config, "output", folder=options.out)
    said = configuration.place_of_key(options.config, "backend") if config.backend else ""
    backend = training_backend(chosen_backend(options.backend, config.backend, said))
    folder = outputs.prepare(config.output.folder, keeps=options.resume or options.overwrite)
    trainer = Trainer(config, backend)
    if options.resume:
        outputs.resume(trainer, folder)
    _print_header(trainer, options.config, folder)
    with terminable():
        saved, signalled = _train(trainer, folder)
    if signalled is not None:
        print(_how_to_resume(options, saved, config.train.epochs, folder), file=sys.stderr)
        return TERMINATED if isinstance(signalled, Terminated) else INTERRUPTED
    outputs.draw_curves(trainer.history, folder / outputs.CURVES, trainer.unseen_name)
    print(f"model     {folder / outputs.MODEL}")
    print(f"curves    {folder / outputs.CURVES}")
    for profile in _profiles(backend):
        print(f"\n{profile.spec}, all epochs:\n{profile.table()}\n")
        if isinstance(profile, Trace):
            profile.save(folder / TIMELINE)
            print(f"timeline  {folder / TIMELINE}")
    _print_result(trainer.held_out_accuracy())
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Load a model and print its held-out accuracy."""
    require("pydantic", "safetensors")
    from backburn.data import hold_out, load_digits
    from backburn.train.digits_trainer import accuracy
    from backburn.train.outputs import saved_model, trained_on

    backend = chosen_backend(options.backend, trained_on(options.model), str(options.model))
    model, _ = saved_model(options.model, backend)
    _, held_out = hold_out(*load_digits())
    _print_result(accuracy(model, *held_out))
    return 0


def require(*packages: str) -> None:
    """Raise before a run that would fail at its end because a package is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                f"{package} is not installed; training and model files need it: pip install 'backburn[train]'"
            )


def chosen_backend(option: str | None, configured: str | None, place: str = "the file") -> AnyBackend:
    """The backend of the option, else of ``BACKBURN_BACKEND``, else of the file, else the default.

    Raises for an invalid expression, naming where it comes from (for the file, ``place``), and for a backend that only
    computes shapes, which can neither train nor evaluate.
    """
    sources = {
        "--backend": option,
        "BACKBURN_BACKEND": os.environ.get("BACKBURN_BACKEND") or None,
        place: configured,
        "the default": DEFAULT,
    }
    source, spec = next((source, spec) for source, spec in sources.items() if spec is not None)
    try:
        backend = load_backend(spec)
        if full(1, 1.0, backend=backend).item() != 1.0:
            raise ConfigError(f"{backend.spec} computes no values, which training and measuring need")
        return backend
    except BackburnError as error:
        raise type(error)(f"{source}: {error}") from error


def training_backend(backend: AnyBackend) -> AnyBackend:
    """``backend`` if it differentiates, else ``autodiff`` around it, with a note that says so."""
    if is_autodiff(backend):
        return backend
    wrapped = load_backend(f"autodiff({backend.spec})")
    print(f"note: training needs gradients, which {backend.spec} does not have: using {wrapped.spec}", file=sys.stderr)
    return wrapped


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM), as a batch system does before it kills."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise :class:`Terminated` where SIGTERM would end the process. Only the main thread can; others do not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


#: Seconds from one save of a run to the next, which a kill may cost in addition to an epoch.
PAUSE = 1.0


def _train(trainer: Any, folder: Path) -> tuple[int, KeyboardInterrupt | None]:
    """Run the remaining epochs and save the run; returns how many are saved, and what interrupted the run.

    It is saved after the first epoch that ends :data:`PAUSE` seconds or more after the save before, and in the end,
    also where a signal ends it or the loss is not a finite number. A second thread saves it during the
    next epoch.
    """
    from tqdm import tqdm

    from backburn import __version__
    from backburn.train import outputs

    epochs = trainer.config.train.epochs
    signalled: KeyboardInterrupt | None = None
    diverged: NumericalInstabilityError | None = None
    saving: Future[int] | None = None
    waiting: dict[str, Any] | None = None
    started = due = time.perf_counter()

    def save(state: dict[str, Any]) -> int:
        outputs.save(folder, state, __version__, trainer.backend)
        return len(state["history"])

    with ThreadPoolExecutor(1) as writer:
        saved = len(trainer.history)
        try:
            for number in range(saved + 1, epochs + 1):
                shown = {"desc": f"epoch {number}/{epochs}", "total": trainer.steps_per_epoch, "unit": "batch"}
                # The bar is shown only if standard error is a terminal.
                epoch = trainer.run_epoch(partial(tqdm, leave=False, disable=None, **shown))
                waiting = state = trainer.state()
                if time.perf_counter() >= due:
                    saved = saving.result() if saving else saved
                    saving, waiting = writer.submit(save, state), None
                    due = time.perf_counter() + PAUSE
                print(
                    f"epoch {epoch.number:>{len(str(epochs))}}/{epochs}  loss {epoch.loss:.4f}  "
                    f"accuracy {epoch.accuracy:7.2%}  {trainer.unseen_name} {epoch.unseen:7.2%}",
                    flush=True,
                )
        except KeyboardInterrupt as interrupt:  # the unfinished epoch is not saved
            signalled = interrupt
        except NumericalInstabilityError as error:
            diverged = error
        saved = saving.result() if saving else saved
        saved = writer.submit(save, waiting).result() if waiting else saved
    if diverged is not None:
        kept = f"the model of epoch {saved} is in {folder}" if saved else "there is nothing to keep"
        raise NumericalInstabilityError(f"{diverged}; {kept}") from diverged
    if signalled is None:
        print(f"time      {time.perf_counter() - started:.1f} s")
    return saved, signalled


def _profiles(backend: Any) -> Iterator[Profile]:
    """The profiles among a backend and those that it is made around."""
    while backend is not None:
        if isinstance(backend, Profile):
            yield backend
        backend = getattr(backend, "wrapped", None) or getattr(backend, "inner_backend", None)


def _print_header(trainer: Any, path: Path, folder: Path) -> None:
    model, config = trainer.model, trainer.config
    layers = [64, *config.model.hidden, 10]
    print(f"config    {path}")
    validated = "" if trainer.unseen is trainer.held_out else f"{len(trainer.unseen[0])} to validate on, "
    print(f"data      {len(trainer.images)} images to train on, {validated}{len(trainer.held_out[0])} held out")
    print(f"model     {'-'.join(map(str, layers))} {config.model.activation}, {model.num_parameters} parameters")
    print(f"backend   {trainer.backend.spec}")
    print(f"output    {folder}")
    if trainer.history:
        print(f"resumed   after epoch {len(trainer.history)}")


def _print_result(accuracy: float) -> None:
    """The last line of a command, by which others read its result."""
    print(f"held-out accuracy: {100 * accuracy:.2f}%")


def _how_to_resume(options: argparse.Namespace, done: int, epochs: int, folder: Path) -> str:
    """A message about the saved part of an interrupted run, and how to resume it."""
    if not done:
        return "interrupted in the first epoch: there is nothing to keep"
    words = ["backburn", "train", str(options.config), "--resume"]
    for name in ("backend", "epochs", "seed", "out"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value is not None else []
    return f"interrupted: the model of epoch {done} of {epochs} is in {folder}; go on with\n    {shlex.join(words)}"
