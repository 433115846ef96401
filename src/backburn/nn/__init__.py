"""Neural networks: modules, layers, and the initialization of their parameters.

    model = Sequential(Linear(64, 128), ReLU(), Dropout(0.2), Linear(128, 10))

New layers are on the default backend (:func:`backburn.use_backend`); their parameters require gradients when it
differentiates.
"""

from typing import TYPE_CHECKING

from backburn.hints import add_hints, explain_arguments, lookups
from backburn.hints.general import MODELS
from backburn.nn import functional, init
from backburn.nn.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from backburn.nn.adapters import LoRALinear, add_adapters, merge_adapters
from backburn.nn.attention import KeyValueCache, MultiheadAttention, RotaryEmbedding
from backburn.nn.containers import Function, ModuleList, Sequential
from backburn.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from backburn.nn.linear import Bilinear, Embedding, EmbeddingBag, Linear
from backburn.nn.model_summary import LayerSummary, Summary, summary
from backburn.nn.module import Module, parameter
from backburn.nn.normalization import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from backburn.nn.padding import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, Flatten, Pad, Unflatten
from backburn.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    Upsample,
)
from backburn.nn.quantized import FakeQuantizedConv, FakeQuantizedLinear, QuantizedConv, QuantizedLinear
from backburn.nn.quantized_models import fake_quantize_model, quantize_like, quantize_model
from backburn.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from backburn.nn.reparametrized import SpectralNorm, WeightNorm
from backburn.nn.transformer import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "Module", "parameter", "Sequential", "ModuleList", "Function",
    "Linear", "Bilinear", "Embedding", "EmbeddingBag",
    "Identity", "Flatten", "Unflatten", "Pad",
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout",
    "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "GLU", "Tanh", "Sigmoid",
    "LogSigmoid", "Softplus", "Softsign", "Hardsigmoid", "Hardswish", "Hardtanh", "Hardshrink", "Softshrink",
    "Tanhshrink", "Threshold", "Softmax", "LogSoftmax", "Softmin",
    "LayerNorm", "RMSNorm", "GroupNorm", "LocalResponseNorm",
    "BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
    "InstanceNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "WeightNorm", "SpectralNorm",
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "LPPool1d", "LPPool2d", "LPPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "Upsample",
    "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell",
    "MultiheadAttention", "KeyValueCache", "RotaryEmbedding", "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "QuantizedLinear", "QuantizedConv", "quantize_model", "quantize_like", "fake_quantize_model",
    "FakeQuantizedLinear", "FakeQuantizedConv", "LoRALinear", "add_adapters", "merge_adapters",
    "summary", "Summary", "LayerSummary", "functional", "init",
]  # fmt: skip


add_hints(Module, MODELS)
explain_arguments(*(globals()[name] for name in __all__ if name != "Module"))


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.nn", __all__)
