"""Gradient rules: what crosses from one kind to another.

``quantize`` has none: rounding to steps is a constant almost everywhere, and a model that should learn through it
says so with a straight-through estimator. A quantized tensor has no gradient, so ``dequantize`` is a constant.
"""
