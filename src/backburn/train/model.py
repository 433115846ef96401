"""The model and the optimizer of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from backburn.backend import AnyBackend
from backburn.nn import GELU, Dropout, Linear, Module, ReLU, Sequential, Sigmoid, SiLU, Tanh
from backburn.optim import SGD, Adam, AdamW, Optimizer
from backburn.optim.optimizer import Rate
from backburn.optim.schedules import Cosine, ReduceOnPlateau
from backburn.tensor.core.defaults import use_backend
from backburn.train.config import ModelConfig, OptimizerConfig

ACTIVATIONS: dict[str, Callable[[], Module]] = {
    "relu": ReLU,
    "gelu": GELU,
    "silu": SiLU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
}


def build_model(config: ModelConfig, pixels: int, classes: int, backend: AnyBackend) -> Sequential:
    """Linear layers with activations and dropout between them, on ``backend``; from pixels to one number per class.

        >>> from backburn.backend import load_backend
        >>> model = build_model(ModelConfig(hidden=[32]), 64, 10, load_backend("numpy"))
        >>> model.num_parameters
        2410

    The values are drawn from the random state of the tensors.
    """
    layers: list[Module] = []
    with use_backend(backend):
        width = pixels
        for units in config.hidden:
            layers += [Linear(width, units), ACTIVATIONS[config.activation]()]
            if config.dropout:
                layers.append(Dropout(config.dropout))
            width = units
        layers.append(Linear(width, classes))
    return Sequential(*layers)


def build_optimizer(config: OptimizerConfig, steps: int) -> Optimizer:
    """The optimizer of a run of ``steps`` steps.

        >>> optimizer = build_optimizer(OptimizerConfig(name="sgd", learning_rate=0.5, schedule="cosine"), 100)
        >>> [round(optimizer.lr(step), 4) for step in (0, 50, 100)]
        [0.5, 0.25, 0.0]

    The learning rate is a number, or a :class:`backburn.optim.schedules.Cosine` or ``ReduceOnPlateau``.
    """
    lr: Rate = config.learning_rate
    if config.schedule == "cosine":
        lr = Cosine(config.learning_rate, steps)
    elif config.schedule == "plateau":
        lr = ReduceOnPlateau(config.learning_rate, factor=config.factor, patience=config.patience)
    if config.name == "sgd":
        return SGD(lr, momentum=config.momentum, weight_decay=config.weight_decay)
    kind = AdamW if config.name == "adamw" else Adam
    return kind(lr, weight_decay=config.weight_decay)
