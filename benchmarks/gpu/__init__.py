"""What only a GPU can show, in one command: ``python -m benchmarks.gpu``.

It needs nothing but what it measures: backburn (from this checkout or installed), CuPy, and PyTorch for the peers.
"""
