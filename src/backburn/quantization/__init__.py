"""Quantizing models: calibration, replacing layers, measuring sensitivity, and compensating rounding errors.

    found = calibrate(model, batches, MovingAverage())              # the ranges of the layers' inputs
    costs = sensitivity(model, batches, scheme)                     # a table: what each layer's weight costs
    small = quantize_model(model, scheme, skip=costs.worst(1), activations="quint8_affine_tensor_float32", inputs=found)
    small = gptq(model, batches, "qint4_symmetric_block32_float16") # or: 4 bits, with the errors compensated

Schemes are :class:`backburn.QuantizedDType`; layers and adapters on them are in :mod:`backburn.nn`.
"""

from backburn.nn import (
    FakeQuantizedConv,
    FakeQuantizedLinear,
    LoRALinear,
    QuantizedConv,
    QuantizedLinear,
    add_adapters,
    fake_quantize_model,
    merge_adapters,
    quantize_like,
    quantize_model,
)
from backburn.quantization.calibration import calibrate, observe
from backburn.quantization.gptq import compensated, gptq
from backburn.quantization.observers import MSE, AbsMean, MinMax, MovingAverage, Observer, Percentile
from backburn.quantization.sensitivity import LayerCost, Sensitivity, sensitivity

__all__ = [
    "Observer", "MinMax", "MovingAverage", "AbsMean", "Percentile", "MSE",
    "observe", "calibrate", "sensitivity", "Sensitivity", "LayerCost", "gptq", "compensated",
    "quantize_model", "quantize_like", "fake_quantize_model", "add_adapters", "merge_adapters",
    "QuantizedLinear", "QuantizedConv", "FakeQuantizedLinear", "FakeQuantizedConv", "LoRALinear",
]  # fmt: skip
