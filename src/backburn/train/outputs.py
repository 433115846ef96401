"""The files of a run: the model, the state for resuming, and a plot of the learning curves."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backburn.backend import AnyBackend
from backburn.base.errors import ConfigError, FileFormatError
from backburn.io import load_model, load_state, save_model, save_state, write_atomically
from backburn.nn import Module, quantize_like
from backburn.train.config import Config, config_of
from backburn.train.digits_trainer import Epoch, Trainer, model_of

MODEL, STATE, CURVES = "model.safetensors", "resume.safetensors", "curves.png"
ANOTHER = "Choose another with --out or the key 'folder' of [output]"


def prepare(folder: str | os.PathLike[str], keeps: bool = False) -> Path:
    """The output folder, created if it does not exist.

    Raises :class:`ConfigError` if it is not writable, or contains a run, unless ``keeps``.
    """
    folder = Path(folder)
    for name in (MODEL, STATE, CURVES):
        if (folder / name).is_dir():
            raise ConfigError(f"the output folder {folder} cannot be used: {name} in it is a folder. {ANOTHER}")
        if not keeps and name != CURVES and (folder / name).exists():
            raise ConfigError(
                f"the output folder {folder} has a run in it already ({name}): go on with it by --resume, or "
                f"replace it by --overwrite. {ANOTHER}"
            )
    trial = folder / f".{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.write_bytes(b"")
        trial.unlink()
    except OSError as error:
        raise ConfigError(f"the output folder {folder} cannot be written to: {error.strerror}. {ANOTHER}") from error
    return folder


def save(folder: Path, state: dict[str, Any], version: str, backend: AnyBackend) -> None:
    """Write the model and the state of a run into its folder, from the result of :meth:`Trainer.state`.

    Each file is written atomically, so that a run can always be resumed.
    """
    about = {
        "backburn": version,
        "backend": backend.spec,
        "config": state["config"],
        "epoch": len(state["history"]),
        "metrics": state["history"][-1],
    }
    save_model(folder / MODEL, state["model"], about=about)
    save_state(folder / STATE, state)


def resume(trainer: Trainer, folder: Path) -> None:
    """Restore a run from ``folder``.

    Raises :class:`ConfigError` if there is none or its configuration differs, :class:`FileFormatError` for a file that
    is not a saved run.
    """
    path = folder / STATE
    if not path.exists():
        raise ConfigError(f"there is nothing to resume in {folder}: it has no {STATE}")
    state = load_state(path)
    try:
        trainer.load_state(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path}: this is not the state of a training run ({error})") from error


def saved_model(path: str | os.PathLike[str], backend: AnyBackend) -> tuple[Module, Config]:
    """A trained model on ``backend``, and the configuration that it was trained with.

    Raises :class:`FileFormatError`, which names the file, if it is not such a model.
    """
    saved = load_model(path)
    try:
        config = config_of(saved.about["config"], path)
        model = quantize_like(model_of(config, backend), saved.state)
        model.load_state_dict(saved.state)
    except (KeyError, ValueError, TypeError) as error:
        raise FileFormatError(f"{Path(path)}: this is not a model that 'backburn train' makes: {error}") from error
    return model, config


def trained_on(path: str | os.PathLike[str]) -> str | None:
    """The spec of the backend on which a model was trained."""
    spec = load_model(path).about.get("backend")
    return spec if isinstance(spec, str) else None


def draw_curves(history: Sequence[Epoch], path: Path, unseen: str = "held out") -> None:
    """Draw loss and accuracies over the epochs into a PNG file; ``unseen`` names the images not trained on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    numbers = [epoch.number for epoch in history]
    marker = "." if len(numbers) < 2 else ""
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(numbers, [epoch.loss for epoch in history], marker=marker, color="tab:blue")
    left.set(title="training loss", xlabel="epoch", ylabel="cross-entropy")
    right.plot(numbers, [100 * epoch.accuracy for epoch in history], marker=marker, label="training")
    right.plot(numbers, [100 * epoch.unseen for epoch in history], marker=marker, label=unseen)
    right.set(title="accuracy", xlabel="epoch", ylabel="%")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())
