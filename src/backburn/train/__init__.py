"""Training: ``fit`` and ``Trainer`` for any model, loss and data, with callbacks and precision.

Needs only NumPy; the extra ``train`` adds progress bars, pictures and configuration files.
"""

from typing import TYPE_CHECKING

from backburn.hints import explain_arguments, lookups
from backburn.train.callbacks import Callback, Checkpoints, EarlyStopping, Monitor, Plateau, Progress
from backburn.train.evaluation import evaluate, predict
from backburn.train.loggers import Logger, TensorBoard, WandB
from backburn.train.precision import Precision
from backburn.train.report import Confusion, Pictures, Report, write_comparison, write_report
from backburn.train.run_folder import RunFolder, read_rows
from backburn.train.runs import Run, find_runs, read_run
from backburn.train.signals import Terminated
from backburn.train.trainer import Trainer, fit

__all__ = [
    "Callback", "Checkpoints", "Confusion", "EarlyStopping", "Logger", "Monitor", "Pictures", "Plateau", "Precision",
    "Progress", "Report", "Run", "RunFolder", "TensorBoard", "Terminated", "Trainer", "WandB", "evaluate",
    "find_runs", "fit", "predict", "read_rows", "read_run", "write_comparison", "write_report",
]  # fmt: skip

explain_arguments(Checkpoints, EarlyStopping, Plateau, Precision, Trainer)


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.train", __all__)
