"""Checks and benchmarks that need a GPU, in one command: ``python -m benchmarks.gpu``.

It needs only what it measures: backburn (from this checkout or installed), CuPy, and PyTorch for comparison.
"""
