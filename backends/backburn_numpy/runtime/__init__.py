"""The runtime below the operations: memory, threads, matrix products and their libraries, NumPy's warnings."""
