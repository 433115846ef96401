"""The learning curves of a run as a picture, which needs the extra ``train``."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backburn.io import write_atomically

#: Values of rows that are not results.
_OTHER = ("epoch", "step", "lr", "skipped", "loss_scale", "gradient_norm", "examples", "seconds")


def draw_curves(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw losses and all other values over the epochs into a PNG file.

    With matplotlib's default settings: an untrusted ``matplotlibrc`` in the current folder could have text typeset by a
    program, LaTeX.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        picture = _picture(history)
    write_atomically(path, picture, follow=False)


def _picture(history: Sequence[Mapping[str, Any]]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in dict.fromkeys(name for row in history for name in row) if not name.startswith(_OTHER)]
    losses = [name for name in names if name.endswith("loss")]
    others = [name for name in names if name not in losses]
    numbers = [row["epoch"] for row in history]
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, shown in zip(figure.subplots(1, 2), (losses, others), strict=True):
        for name in shown:
            scale = 100.0 if name.endswith("accuracy") else 1.0
            values = [scale * row[name] if name in row else float("nan") for row in history]
            axes.plot(numbers, values, marker="." if len(numbers) < 2 else "", label=name)
        accuracies = bool(shown) and all(name.endswith("accuracy") for name in shown)
        axes.set(title="loss" if shown is losses else "accuracy" if accuracies else "", xlabel="epoch")
        axes.set(ylabel="%" if accuracies else "")
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if shown:
            axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()
