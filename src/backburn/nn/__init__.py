"""Models: modules, layers, and the first values of their parameters.

    model = Sequential(Linear(64, 128), ReLU(), Dropout(0.2), Linear(128, 10))

New layers live on the default backend (:func:`backburn.use_backend`); their parameters require gradients when it
differentiates.
"""

from backburn.nn import functional, init
from backburn.nn.activation import (
    ELU,
    GELU,
    Dropout,
    Flatten,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from backburn.nn.containers import Function, ModuleList, Sequential
from backburn.nn.linear import Embedding, Linear
from backburn.nn.module import Module, parameter
from backburn.nn.normalization import BatchNorm, LayerNorm, RMSNorm

__all__ = [
    "Module", "parameter", "Sequential", "ModuleList", "Function",
    "Linear", "Embedding",
    "Identity", "Flatten", "Dropout",
    "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softmax",
    "LayerNorm", "RMSNorm", "BatchNorm",
    "functional", "init",
]  # fmt: skip
