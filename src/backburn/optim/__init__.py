"""Optimizers, which update the parameters of a model.

A training loop::

    optimizer = Adam(lr=1e-3)
    for images, labels in batches:
        loss = cross_entropy(model(images), labels)
        optimizer.step(model, loss.backward())

Tensors do not store gradients, so nothing needs zeroing between steps.
"""

from typing import TYPE_CHECKING

from backburn.hints import explain_arguments, lookups
from backburn.optim import schedules
from backburn.optim.adaptive import Adadelta, Adagrad, RMSprop
from backburn.optim.algorithms import SGD, Adam, AdamW
from backburn.optim.average import Average
from backburn.optim.gradients import add, clip_grad_norm, clip_grad_value, global_norm, named_gradients, scale
from backburn.optim.groups import Groups
from backburn.optim.lbfgs import LBFGS
from backburn.optim.matrices import Adafactor, Muon
from backburn.optim.moments import Adamax, Adan, Lion, NAdam, RAdam
from backburn.optim.optimizer import Optimizer

__all__ = [
    "Optimizer", "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lion", "Adan", "RMSprop", "Adagrad",
    "Adadelta", "Adafactor", "Muon", "LBFGS", "Groups", "Average", "schedules", "named_gradients", "add", "scale",
    "global_norm", "clip_grad_norm", "clip_grad_value",
]  # fmt: skip

explain_arguments(SGD, Adam, AdamW, Adamax, NAdam, RAdam, Lion, Adan, RMSprop, Adagrad, Adadelta)
explain_arguments(Adafactor, Muon, LBFGS, Groups, Average)


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.optim", __all__)
